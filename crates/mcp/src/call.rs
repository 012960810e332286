//! Tool calls: finds the thread, asks for consent, runs the tool, and moves an oversized result to a file.

use super::caller::McpCaller;
use super::consent::{self, Consent, Question};
use super::offer::{Offer, OfferKind, THREAD_ARGUMENT};
use super::{Offered, answer, history, oversized, progress};
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, JsonObject};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use treehold_agent::tools::{ToolCall, ToolOutput, ToolSet};
use treehold_core::error::{Error, Result};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;
use treehold_core::work::{self, Owner};
use treehold_tree::layer::Allowance;

/// The time limit of one call. Searches and edits are the slowest.
const WORK_MAX: Duration = Duration::from_secs(120);

/// Handles a call of an offered tool.
pub(super) async fn answered(
    offered: &Arc<Offered>,
    offer: &Offer,
    caller: &McpCaller,
    request: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let mut request = request;
    let mut arguments = request.arguments.take().unwrap_or_default();
    let takes_thread = offered.options.thread_argument && !matches!(offer.kind, OfferKind::Reference);
    let named = if takes_thread { thread(&mut arguments) } else { Ok(String::new()) };
    let scope = match named.and_then(|thread| caller.scope_of(&thread)) {
        Ok(scope) => scope,
        Err(error) => return Ok(told(&error)),
    };
    let (name, offered, offer) = (offer.tool.name.to_string(), offered.clone(), offer.clone());
    let call = match offer.kind {
        OfferKind::Call(set) => match offered.threads.workspace().tools().decode(set, &name, Value::Object(std::mem::take(&mut arguments)))
        {
            Ok(call) => Some(call),
            Err(error) => return Ok(told(&error)),
        },
        _ => None,
    };
    let can_ask = consent::can_ask(context);
    // An added tool may have changed something before it was refused, so only one that is safe to repeat runs again after a question.
    let may_repeat = !matches!(&call, Some(call @ ToolCall::Custom(_)) if !call.info().idempotent);
    let mut asks_no_more = !can_ask || !may_repeat;
    let mut allowed = Vec::new();
    if can_ask {
        match asked(&offered, &scope, caller.credential.as_deref(), &name, call.as_ref(), &arguments).await {
            Ok(None) => {}
            Ok(Some(Doubt { question, of_call, protected })) => match offered.consents.ask(&question, &of_call, &request, context).await? {
                // One question per call, since the reply that comes with a call answers only one.
                Consent::Given => (asks_no_more, allowed) = (true, protected),
                Consent::Ask(question) => return Ok(question.into()),
                Consent::Denied(error) => return Ok(told(&error)),
            },
            Err(error) => return Ok(told(&error)),
        }
    }
    loop {
        let allowance = Allowance::new(allowed);
        // A change that has begun continues when the client disconnects, so that it is both made and saved, or not made.
        let work = {
            let (offered, offer, scope, allowance) = (offered.clone(), offer.clone(), scope.clone(), allowance.clone());
            let (call, arguments) = (call.clone(), arguments.clone());
            async move {
                let run = run(&offered, &offer, &scope, call, arguments);
                // Only this limit ends it: it outlives its client, and the deadline of the request does not apply.
                allowance.during(work::as_owner(Owner::from(&scope), Some(WORK_MAX), run)).await
            }
        };
        #[cfg(feature = "http")]
        let work = super::http::within_trace(context, work);
        let result = progress::told(context, &name, tokio::spawn(work)).await;
        let result = result.map_err(|error| ErrorData::internal_error(format!("the call did not finish: {error}"), None))?;
        // A refused call has changed nothing. If a person consents, run it again.
        let refused = allowance.refused();
        if asks_no_more || refused.is_empty() || result.is_error != Some(true) {
            return Ok(answer::ready(context, result).into());
        }
        let question = consent::of_protected(&refused);
        let arguments = call.as_ref().map_or_else(|| Value::Object(arguments.clone()), ToolCall::arguments);
        let of_call = consent::of_call(&scope, caller.credential.as_deref(), &name, &arguments);
        match offered.consents.ask(&question, &of_call, &request, context).await? {
            Consent::Given => {
                allowed = refused.into_iter().map(|refusal| refusal.path).collect();
                asks_no_more = true;
            }
            Consent::Ask(question) => return Ok(question.into()),
            Consent::Denied(error) => return Ok(told(&error)),
        }
    }
}

/// What to ask a person before a call.
struct Doubt {
    question: Question,
    /// The fingerprint of the call.
    of_call: [u8; 32],
    /// The protected files that the question names.
    protected: Vec<VfsPathBuf>,
}

/// Returns the question to ask before a call, if any.
async fn asked(
    offered: &Offered,
    scope: &Scope,
    credential: Option<&str>,
    name: &str,
    call: Option<&ToolCall>,
    arguments: &JsonObject,
) -> Result<Option<Doubt>> {
    match call {
        Some(call) if consent::concerns(call) => {
            let tree = offered.threads.session(scope).await?.backend();
            let asked = consent::asked(&*tree, call, scope).await?;
            let of_call = consent::of_call(scope, credential, name, &call.arguments());
            Ok(asked.map(|(question, protected)| Doubt { question, of_call, protected }))
        }
        None if name == history::RESTORE || name == history::UNDO => {
            let question = history::question(&offered.threads, scope, name, arguments).await?;
            let of_call = consent::of_call(scope, credential, name, &Value::Object(arguments.clone()));
            Ok(question.map(|question| Doubt { question, of_call, protected: Vec::new() }))
        }
        _ => Ok(None),
    }
}

async fn run(offered: &Offered, offer: &Offer, scope: &Scope, call: Option<ToolCall>, arguments: JsonObject) -> CallToolResult {
    let threads = &*offered.threads;
    match (offer.kind, call) {
        (OfferKind::Reference, _) => offered.reference.call(threads, scope, &offer.tool, arguments).await,
        (OfferKind::Call(set), Some(call)) => {
            let name = call.name().to_owned();
            let output = threads.call(scope, call).await;
            // `read_file` has its own arguments for paging, and moving its result to a file that is read with `read_file` would never end.
            let is_file = set != ToolSet::Default || name == "read_file";
            let output = if is_file || !offered.may_write() { output } else { oversized::offloaded(threads, scope, &name, output).await };
            answer::result(output)
        }
        _ => answer::result(history::call(threads, scope, &offer.tool.name, &arguments).await),
    }
}

fn told(error: &Error) -> CallToolResponse {
    answer::result(ToolOutput::from_error(error)).into()
}

/// Removes the thread from the arguments. Returns an empty string if they name none.
fn thread(arguments: &mut JsonObject) -> Result<String> {
    match arguments.remove(THREAD_ARGUMENT) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(thread)) => Ok(thread),
        Some(other) => Err(Error::invalid_argument(format!("`{THREAD_ARGUMENT}` must be text; it is {other}"))),
    }
}
