//! A tool call, from its arguments to its answer: whose thread, may it be made, by whom it is answered, and is the answer too long.

use super::caller::McpCaller;
use super::consent::{self, Consent};
use super::offer::{Offer, OfferKind, THREAD_ARGUMENT};
use super::{Offered, answer, history, oversized, progress};
use crate::error::{Error, Result};
use crate::scope::Scope;
use crate::tools::{ToolCall, ToolOutput, ToolSet};
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, JsonObject};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::Value;
use std::sync::Arc;

/// Answers a call of a tool that is offered.
pub(super) async fn answered(
    offered: &Arc<Offered>,
    offer: &Offer,
    caller: &McpCaller,
    request: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let mut arguments = request.arguments.unwrap_or_default();
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
    if let Some(path) = call.as_ref().and_then(consent::removed) {
        let tree = match offered.threads.session(&scope).await {
            Ok(session) => session.backend(),
            Err(error) => return Ok(told(&error)),
        };
        match consent::to_remove(&*tree, &path, request.input_responses.as_ref(), context).await {
            Ok(Consent::Given) => {}
            Ok(Consent::Ask(question)) => return Ok(question.into()),
            Err(error) => return Ok(told(&error)),
        }
    }
    // A change that has begun goes on when the client goes away, so that it is made and saved or not made.
    let doing = name.clone();
    let work = tokio::spawn(async move { run(&offered, &offer, &scope, call, arguments).await });
    let result = progress::told(context, &doing, work).await;
    let result = result.map_err(|error| ErrorData::internal_error(format!("the call was not finished: {error}"), None))?;
    Ok(result.into())
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
