//! Tools for the history of a thread: list checkpoints, create one, restore one.

use super::consent::Question;
use futures::future::BoxFuture;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;
use treehold_agent::session::{CallOutcome, Done, Threads};
use treehold_agent::tools::{RecordedArguments, ToolOutput};
use treehold_core::error::{Error, Result};
use treehold_core::scope::Scope;
use treehold_tree::checkpoint::{At, Checkpoint, ListOptions, PutOptions, find_checkpoint, with_checkpoint};

/// The most checkpoints of one result, and the default number.
const LIMIT_MAX: usize = 200;
const LIMIT: usize = 20;

/// The tool that restores a thread.
pub(super) const RESTORE: &str = "restore";

/// Returns the tools in their fixed order.
pub(super) fn tools() -> Vec<Tool> {
    let schema = |properties: Value, required: &[&str]| {
        let schema = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        Arc::new(schema.as_object().cloned().unwrap_or_default())
    };
    let limit = json!({"type": "integer", "minimum": 1, "default": LIMIT, "description": "The most checkpoints to list, up to 200."});
    let label = json!({"type": "string", "default": "", "description": "A label by which to find the checkpoint again."});
    let name = json!({"type": "string", "description": "The id or label of a checkpoint, `latest`, or `~N` for the N-th before it."});
    let history = "Lists the checkpoints of this conversation's own files (`/`), newest first: id, time, entries, bytes and label.";
    let checkpoint = "Creates a checkpoint of this conversation's own files (`/`).";
    let restore = "Restores this conversation's own files (`/`) to a checkpoint, as a new checkpoint: nothing is lost, and restoring `~1` \
                   undoes it. Other mounts are not changed.";
    let hints = |read_only: bool, destructive: bool| {
        ToolAnnotations::new().read_only(read_only).destructive(destructive).idempotent(read_only).open_world(false)
    };
    vec![
        Tool::new("history", history, schema(json!({"limit": limit}), &[])).with_title("History").with_annotations(hints(true, false)),
        Tool::new("checkpoint", checkpoint, schema(json!({"label": label}), &[]))
            .with_title("Create checkpoint")
            .with_annotations(hints(false, false)),
        Tool::new(RESTORE, restore, schema(json!({"checkpoint": name}), &["checkpoint"]))
            .with_title("Restore checkpoint")
            .with_annotations(hints(false, true)),
    ]
}

/// Handles a call of one of the tools.
pub(super) async fn call(threads: &Threads, scope: &Scope, tool: &str, arguments: &JsonObject) -> ToolOutput {
    // These tools save the thread themselves if needed, so nothing is left to save.
    let work = |_| -> BoxFuture<'_, (ToolOutput, CallOutcome)> {
        Box::pin(async move {
            let answer = match tool {
                "history" => history(threads, scope, arguments).await,
                "checkpoint" => checkpoint(threads, scope, arguments).await,
                _ => restore(threads, scope, arguments).await,
            };
            let output = answer.unwrap_or_else(|error| ToolOutput::from_error(&error));
            let outcome = CallOutcome::from(&output);
            (output, outcome)
        })
    };
    let done = threads.call_as(scope, tool, RecordedArguments::of(arguments), None, work).await;
    done.and_then(Done::into_saved).unwrap_or_else(|error| ToolOutput::from_error(&error))
}

async fn history(threads: &Threads, scope: &Scope, arguments: &JsonObject) -> Result<ToolOutput> {
    let limit =
        match arguments.get("limit") {
            None | Some(Value::Null) => LIMIT,
            Some(value) => value.as_u64().filter(|limit| *limit >= 1).map(|limit| (limit as usize).min(LIMIT_MAX)).ok_or_else(|| {
                Error::invalid_argument(format!("`limit` of `history` must be a whole number of 1 or more; it is {value}"))
            })?,
        };
    let mut options = ListOptions::new();
    options.limit = limit;
    let mut page = threads.checkpointer()?.list(scope, &options).await?;
    page.checkpoints = threads.session(scope).await?.shown_all(page.checkpoints).await?;
    if page.checkpoints.is_empty() {
        return Ok(ToolOutput::new("[history] this conversation has no checkpoint yet"));
    }
    let mut text: String = page.checkpoints.iter().map(|checkpoint| format!("{}\n", line(checkpoint))).collect();
    if page.next.is_some() {
        text.push_str("\n[history] there are older checkpoints; for more, set limit\n");
    }
    Ok(ToolOutput::new(text).with_data(json!({"checkpoints": page.checkpoints})))
}

fn line(checkpoint: &Checkpoint) -> String {
    let time = checkpoint.created_at.strftime("%Y-%m-%dT%H:%M:%SZ");
    let label = checkpoint.label.as_ref().map_or_else(String::new, |label| format!(" [{label}]"));
    format!("{} {time} {} {}{label}", checkpoint.id, checkpoint.entries, checkpoint.size_bytes)
}

async fn checkpoint(threads: &Threads, scope: &Scope, arguments: &JsonObject) -> Result<ToolOutput> {
    let label = text(arguments, "checkpoint", "label")?;
    let mut notes = PutOptions::new();
    notes.label = (!label.is_empty()).then_some(label);
    let work = move |session: treehold_agent::session::Session| -> BoxFuture<'static, Result<Checkpoint>> {
        let notes = notes.clone();
        Box::pin(async move { session.checkpoint(notes).await })
    };
    let made = threads.lasting_history(scope, work).await?;
    Ok(ToolOutput::new(format!("Created checkpoint {}", line(&made))).with_data(json!(made)))
}

/// Returns the question to ask before a restore, or `None` if the thread is already at that checkpoint or it does not exist.
pub(super) async fn question(threads: &Threads, scope: &Scope, arguments: &JsonObject) -> Result<Option<Question>> {
    let Ok(name) = text(arguments, RESTORE, "checkpoint") else { return Ok(None) };
    let checkpointer = threads.checkpointer()?;
    let found = match find_checkpoint(&*checkpointer, scope, &name).await {
        Ok(found) => found,
        // The call itself reports the error.
        Err(_) => return Ok(None),
    };
    let found = threads.session(scope).await?.shown(found).await?;
    let head = checkpointer.get(scope, At::Latest).await?;
    if head.is_none_or(|head| head.checkpoint.id == found.id) {
        return Ok(None);
    }
    let label = found.label.as_ref().map_or_else(String::new, |label| format!(", `{label}`"));
    let time = found.created_at.strftime("%Y-%m-%dT%H:%M:%SZ");
    let doing = format!(
        "restore the files of this conversation to the checkpoint `{}` of {time} ({} entries{label}); their current state is kept as a checkpoint",
        found.id, found.entries
    );
    Ok(Some(Question::new("Restore", doing, None)))
}

async fn restore(threads: &Threads, scope: &Scope, arguments: &JsonObject) -> Result<ToolOutput> {
    let name = text(arguments, "restore", "checkpoint")?;
    if name.is_empty() {
        return Err(Error::invalid_argument("`restore` needs `checkpoint`: the id or label of one, `latest`, or `~N`"));
    }
    let restore = |found: Checkpoint| -> BoxFuture<'_, Result<_>> {
        let work = move |session: treehold_agent::session::Session| -> BoxFuture<'static, Result<Checkpoint>> {
            Box::pin(async move { session.restore(found.id, PutOptions::new()).await })
        };
        Box::pin(async move { Ok((found.id, threads.lasting_history(scope, work).await?)) })
    };
    let (id, made) = with_checkpoint(&*threads.checkpointer()?, scope, &name, restore).await?;
    Ok(ToolOutput::new(format!("Restored {id}, as checkpoint {}", line(&made))).with_data(json!(made)))
}

fn text(arguments: &JsonObject, tool: &str, name: &str) -> Result<String> {
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(Error::invalid_argument(format!("`{name}` of `{tool}` must be text; it is {other}"))),
    }
}
