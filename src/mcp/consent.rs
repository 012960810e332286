//! Asking a person before much is removed, where the client can ask: in the way of its era.

use crate::backend::{Backend, BackendExt};
use crate::error::{Error, ErrorKind, Result};
use crate::path::{VfsPath, VfsPathBuf};
use crate::tools::{MemoryCommand, ToolCall};
use rmcp::RoleServer;
use rmcp::model::{
    ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, ProtocolVersion,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};
use std::time::Duration;

/// What the question is called in the protocol.
const QUESTION: &str = "confirm";

/// How many entries are counted; there may be more.
const COUNTED_MAX: usize = 1_000;

/// How long an answer is waited for where the connection waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// What came of asking.
#[derive(Debug)]
pub(super) enum Consent {
    /// The call may be made: a person said so, or nobody is there to be asked.
    Given,
    /// The question goes to the client, which makes the call again with the answer.
    Ask(InputRequiredResult),
}

/// Returns what a call removes with all that is in it, if it is a directory.
pub(super) fn removed(call: &ToolCall) -> Option<VfsPathBuf> {
    match call {
        ToolCall::Delete(delete) => delete.recursive.then(|| delete.path.clone()),
        // What is no path is the call's own to tell.
        ToolCall::Memory(memory) if memory.command == MemoryCommand::Delete => VfsPathBuf::parse(memory.path.as_deref()?).ok(),
        _ => None,
    }
}

/// Asks whether a directory may be removed with all it holds. One that is empty or not there is not asked about.
///
/// # Errors
/// [`PermissionDenied`](ErrorKind::PermissionDenied) when the person said no, and those of counting what is in it.
pub(super) async fn to_remove(
    tree: &dyn Backend,
    path: &VfsPath,
    answers: Option<&InputResponses>,
    context: &RequestContext<RoleServer>,
) -> Result<Consent> {
    if !can_ask(context) {
        return Ok(Consent::Given);
    }
    let held = match tree.tree(path.as_str(), usize::MAX, COUNTED_MAX).await {
        Ok(held) => held,
        // A file, or nothing: that is the call's own to tell.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Consent::Given),
        Err(error) => return Err(error),
    };
    if held.entries.is_empty() {
        return Ok(Consent::Given);
    }
    let count = if held.truncated { format!("more than {COUNTED_MAX}") } else { held.entries.len().to_string() };
    let noun = if held.entries.len() == 1 { "entry" } else { "entries" };
    let question = format!("Remove `{path}` and the {count} {noun} in it?");
    if context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28) {
        return match answers.and_then(|answers| answers.get(QUESTION)) {
            Some(answer) => decided(path, serde_json::from_value(answer.clone()).ok()),
            None => {
                let request = InputRequest::Elicitation(ElicitRequest::new(form(question)?));
                Ok(Consent::Ask(InputRequiredResult::from_input_requests(InputRequests::from([(QUESTION.to_owned(), request)]))))
            }
        };
    }
    let answer = context.peer.create_elicitation_with_timeout(form(question)?, Some(ANSWER_TIMEOUT)).await;
    decided(path, answer.ok())
}

/// Tells whether the client has somebody to ask. A client that says no more than that it can ask, asks by forms.
fn can_ask(context: &RequestContext<RoleServer>) -> bool {
    let asks = context.client_capabilities().and_then(|capabilities| capabilities.elicitation);
    asks.is_some_and(|asks| asks.form.is_some() || asks.url.is_none())
}

fn form(question: String) -> Result<ElicitRequestParams> {
    let schema = json!({
        "type": "object",
        "properties": {QUESTION: {"type": "boolean", "title": "Remove", "description": "Remove all of it", "default": false}},
        "required": [QUESTION],
    });
    let schema = schema.as_object().cloned().unwrap_or_default();
    let requested_schema = ElicitationSchema::from_json_schema(schema)
        .map_err(|error| Error::new(ErrorKind::Internal, "a question has no form").with_source(error))?;
    Ok(ElicitRequestParams::FormElicitationParams { meta: None, message: question, requested_schema })
}

/// Reads the answer: only a clear yes is one.
fn decided(path: &VfsPath, answer: Option<ElicitResult>) -> Result<Consent> {
    let is_yes = answer.is_some_and(|answer| {
        answer.action == ElicitationAction::Accept && answer.content.is_some_and(|content| content[QUESTION] == Value::Bool(true))
    });
    if is_yes {
        return Ok(Consent::Given);
    }
    let message = format!("the user did not agree to remove `{path}`; nothing was removed");
    Err(Error::new(ErrorKind::PermissionDenied, message).at(path))
}
