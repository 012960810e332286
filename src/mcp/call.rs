//! A tool call, from its arguments to its answer: whose thread, may it be made, by whom it is answered, and is the answer too long.

use super::caller::McpCaller;
use super::consent::{self, Consent, Question};
use super::offer::{Offer, OfferKind, THREAD_ARGUMENT};
use super::{Offered, answer, history, oversized, progress};
use crate::error::{Error, Result};
use crate::layer::Allowance;
use crate::path::VfsPathBuf;
use crate::scope::Scope;
use crate::tools::{ToolCall, ToolOutput, ToolSet};
use crate::work::{self, Owner};
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, JsonObject};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// How long the work of one call may take, searches and edits above all.
const WORK_MAX: Duration = Duration::from_secs(120);

/// Answers a call of a tool that is offered.
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
        OfferKind::Call(set) => match set.decode(&name, Value::Object(std::mem::take(&mut arguments))) {
            Ok(call) => Some(call),
            Err(error) => return Ok(told(&error)),
        },
        _ => None,
    };
    let can_ask = consent::can_ask(context);
    let mut asks_no_more = !can_ask;
    let mut allowed = Vec::new();
    if can_ask {
        match asked(&offered, &scope, caller.credential.as_deref(), &name, call.as_ref(), &arguments).await {
            Ok(None) => {}
            Ok(Some(Doubt { question, of_call, protected })) => match offered.consents.ask(&question, &of_call, &request, context).await? {
                // One question a call: the answer that comes with a call belongs to one of them.
                Consent::Given => (asks_no_more, allowed) = (true, protected),
                Consent::Ask(question) => return Ok(question.into()),
                Consent::Denied(error) => return Ok(told(&error)),
            },
            Err(error) => return Ok(told(&error)),
        }
    }
    loop {
        let allowance = Allowance::new(allowed);
        // A change that has begun goes on when the client goes away, so that it is made and saved or not made.
        let work = {
            let (offered, offer, scope, allowance) = (offered.clone(), offer.clone(), scope.clone(), allowance.clone());
            let (call, arguments) = (call.clone(), arguments.clone());
            async move {
                let run = run(&offered, &offer, &scope, call, arguments);
                // Nothing else ends it: it goes on without its client, and no request's deadline reaches it.
                allowance.during(work::as_owner(Owner::from(&scope), Some(WORK_MAX), run)).await
            }
        };
        #[cfg(feature = "serve")]
        let work = super::http::within_trace(context, work);
        let result = progress::told(context, &name, tokio::spawn(work)).await;
        let result = result.map_err(|error| ErrorData::internal_error(format!("the call was not finished: {error}"), None))?;
        // What was refused has changed nothing; a person who agrees has the call made again.
        let refused = allowance.refused();
        if asks_no_more || refused.is_empty() || result.is_error != Some(true) {
            return Ok(result.into());
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

/// What a person is asked before a call.
struct Doubt {
    question: Question,
    /// Which call it is about.
    of_call: [u8; 32],
    /// The protected files that the question names.
    protected: Vec<VfsPathBuf>,
}

/// Returns what a person is to be asked before a call.
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
            let Some(question) = consent::question(&*tree, call).await? else { return Ok(None) };
            let refused = consent::protected(&*tree, call).await;
            let of_call = consent::of_call(scope, credential, name, &call.arguments());
            let question = question.and_protected(&refused);
            Ok(Some(Doubt { question, of_call, protected: refused.into_iter().map(|refusal| refusal.path).collect() }))
        }
        None if name == history::RESTORE => {
            let question = history::question(&offered.threads, scope, arguments).await?;
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
            let name = call.name();
            let output = threads.call(scope, call).await;
            // What is read goes on by its own arguments, and to read a file by reading a file would not end.
            let is_file = set != ToolSet::Default || name == "read_file";
            let output = if is_file || !offered.may_write() { output } else { oversized::offloaded(threads, scope, name, output).await };
            answer::result(output)
        }
        _ => answer::result(history::call(threads, scope, &offer.tool.name, &arguments).await),
    }
}

fn told(error: &Error) -> CallToolResponse {
    answer::result(ToolOutput::from_error(error)).into()
}

/// Takes the thread out of the arguments; empty when they name none.
fn thread(arguments: &mut JsonObject) -> Result<String> {
    match arguments.remove(THREAD_ARGUMENT) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(thread)) => Ok(thread),
        Some(other) => Err(Error::invalid_argument(format!("`{THREAD_ARGUMENT}` must be text; it is {other}"))),
    }
}
