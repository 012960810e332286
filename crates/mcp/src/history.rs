//! Tools for the past: list checkpoints and versions of files, create a checkpoint, restore, undo.

use super::consent::Question;
use futures::future::BoxFuture;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;
use treehold_agent::session::{CallOutcome, Done, Session, Target, Threads, UndoOf};
use treehold_agent::tools::{RecordedArguments, ToolCall, ToolOutput};
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Author, Changed};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;
use treehold_tree::checkpoint::{At, Checkpoint, ListOptions, PutOptions, find_checkpoint, with_checkpoint};

/// The most checkpoints of one result, and the default number.
const LIMIT_MAX: usize = 200;
const LIMIT: usize = 20;

/// The tool that restores a thread, or files.
pub(super) const RESTORE: &str = "restore";

/// The tool that undoes the newest change.
pub(super) const UNDO: &str = "undo";

/// Returns the tools in their fixed order.
pub(super) fn tools() -> Vec<Tool> {
    let schema = |properties: Value, required: &[&str]| {
        let schema = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        Arc::new(schema.as_object().cloned().unwrap_or_default())
    };
    let limit =
        json!({"type": "integer", "minimum": 1, "default": LIMIT, "description": "The most checkpoints or versions to list, up to 200."});
    let label = json!({"type": "string", "default": "", "description": "A label by which to find the checkpoint again."});
    let name = json!({
        "type": "string",
        "default": "",
        "description": "The id or label of a checkpoint, `latest`, or `~N` for the N-th before it. Restores all of `/`.",
    });
    let path = json!({"type": "string", "default": "", "description": "A file: lists its versions instead."});
    let at_of_file = json!({
        "type": "string",
        "default": "",
        "description": "With `path`: returns the content at this moment: `~1` for the version before, `v3` for the third, a time such as \
                        `2026-11-21T09:00:00Z` or `2h` (ago), or a checkpoint.",
    });
    let paths = json!({
        "type": "array",
        "items": {"type": "string"},
        "default": [],
        "description": "Files and directories to restore to `at`, instead of `checkpoint`.",
    });
    let at = json!({"type": "string", "default": "", "description": "With `paths`: `~1`, `v3`, a time, or a checkpoint."});
    let history = "Lists the checkpoints of this conversation's own files (`/`), newest first: id, time, entries, bytes and label. With \
                   `path`, lists the versions of one file, also of `/memories`; with `at` as well, returns its content then.";
    let checkpoint = "Creates a checkpoint of this conversation's own files (`/`).";
    let restore = "Restores this conversation's own files (`/`) to a checkpoint, as a new checkpoint: nothing is lost, and restoring `~1` \
                   undoes it. Other mounts are not changed. With `paths` and `at`, restores only these, also in `/memories`, as new versions.";
    let undo = "Undoes the newest change that this conversation made to its own files (`/`) or to mounts with a history, such as \
                `/memories`. Call it again to go further back.";
    let hints = |read_only: bool, destructive: bool| {
        ToolAnnotations::new().read_only(read_only).destructive(destructive).idempotent(read_only).open_world(false)
    };
    vec![
        Tool::new("history", history, schema(json!({"limit": limit, "path": path, "at": at_of_file}), &[]))
            .with_title("History")
            .with_annotations(hints(true, false)),
        Tool::new("checkpoint", checkpoint, schema(json!({"label": label}), &[]))
            .with_title("Create checkpoint")
            .with_annotations(hints(false, false)),
        Tool::new(RESTORE, restore, schema(json!({"checkpoint": name, "paths": paths, "at": at}), &[]))
            .with_title("Restore")
            .with_annotations(hints(false, true)),
        Tool::new(UNDO, undo, schema(json!({}), &[])).with_title("Undo").with_annotations(hints(false, true)),
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
                UNDO => undo(threads, scope).await,
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
    let path = text(arguments, "history", "path")?;
    if !path.is_empty() {
        return history_of(threads, scope, &path, &text(arguments, "history", "at")?, limit).await;
    }
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

/// Lists the versions of a file, or returns its content at a moment.
async fn history_of(threads: &Threads, scope: &Scope, path: &str, at: &str, limit: usize) -> Result<ToolOutput> {
    if !at.is_empty() {
        let past = threads.workspace().tree_as_of(scope, at).await?;
        return Ok(ToolCall::from_json("read_file", json!({"path": path}))?.run(&*past).await);
    }
    let mut log = threads.session(scope).await?.log(&VfsPathBuf::parse(path)?, limit).await?;
    for revision in log.revisions.iter_mut().filter(|revision| revision.author.thread != scope.thread) {
        // The client may be limited to its thread.
        revision.author = Author::new();
    }
    let mut text = String::new();
    for revision in &log.revisions {
        let name = revision.checkpoint.map_or_else(|| format!("v{}", revision.number), |checkpoint| checkpoint.to_string());
        let time = revision.at.strftime("%Y-%m-%dT%H:%M:%SZ");
        let size = if revision.exists() { format!("{} bytes", revision.size_bytes) } else { "removed".to_owned() };
        let by = revision.author.tool.as_ref().map_or_else(String::new, |tool| format!(" by {tool}"));
        let kept = if revision.is_kept { "" } else { " (content not kept)" };
        text.push_str(&format!("{name} {time} {} {size}{by}{kept}\n", revision.operation));
    }
    if log.more {
        text.push_str("\n[history] there may be older versions; for more, set limit\n");
    }
    Ok(ToolOutput::new(text).with_data(json!(log)))
}

async fn undo(threads: &Threads, scope: &Scope) -> Result<ToolOutput> {
    let undone = threads.undo(scope, UndoOf::Thread).await?;
    let by = undone.author.tool.as_ref().map_or_else(String::new, |tool| format!(" of {tool}"));
    let mut text = format!("Undid the change{by} of {}\n", undone.at.strftime("%Y-%m-%dT%H:%M:%SZ"));
    undone.files.iter().for_each(|changed| text.push_str(&format!("{} {}\n", changed.operation, changed.path)));
    if let Some(checkpoint) = &undone.checkpoint {
        text.push_str(&format!("restored `/`, as checkpoint {}\n", line(checkpoint)));
    }
    Ok(ToolOutput::new(text).with_data(json!(undone)))
}

/// Restores files to a moment.
async fn restore_files(threads: &Threads, scope: &Scope, paths: &[VfsPathBuf], at: &str) -> Result<ToolOutput> {
    let work =
        |session: Session| -> BoxFuture<'_, Result<Vec<Changed>>> { Box::pin(async move { session.restore_files(paths, at).await }) };
    let changed = threads.lasting(scope, &Target::Paths(paths.to_vec()), work).await?;
    let mut text: String = changed.iter().map(|changed| format!("{} {}\n", changed.operation, changed.path)).collect();
    if changed.is_empty() {
        text.push_str("[restore] nothing differs; nothing was changed\n");
    }
    Ok(ToolOutput::new(text).with_data(json!({"changed": changed})))
}

/// Returns the paths to restore; empty if a checkpoint is to be restored.
fn paths_of(arguments: &JsonObject) -> Result<Vec<VfsPathBuf>> {
    let invalid = |value: &Value| Error::invalid_argument(format!("`paths` of `restore` must be a list of paths; it is {value}"));
    let paths = match arguments.get("paths") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(paths)) if paths.len() <= LIMIT_MAX => paths,
        Some(other) => return Err(invalid(other)),
    };
    paths.iter().map(|path| Ok(VfsPathBuf::parse(path.as_str().ok_or_else(|| invalid(path))?)?)).collect()
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
    let work = move |session: Session| -> BoxFuture<'static, Result<Checkpoint>> {
        let notes = notes.clone();
        Box::pin(async move { session.checkpoint(notes).await })
    };
    let made = threads.lasting_history(scope, work).await?;
    Ok(ToolOutput::new(format!("Created checkpoint {}", line(&made))).with_data(json!(made)))
}

/// Returns the question to ask before a restore or undo, or `None` if the thread is already at that checkpoint or it does not exist.
pub(super) async fn question(threads: &Threads, scope: &Scope, tool: &str, arguments: &JsonObject) -> Result<Option<Question>> {
    if tool == UNDO {
        let doing = "undo the newest change that this conversation made; what is undone stays in the history".to_owned();
        return Ok(Some(Question::new("Undo", doing, None)));
    }
    if let Some(paths) = paths_of(arguments).ok().filter(|paths| !paths.is_empty()) {
        let Ok(at) = text(arguments, RESTORE, "at") else { return Ok(None) };
        let paths: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
        let doing = format!("restore {} to {at}; their current content stays in the history", paths.join(", "));
        return Ok(Some(Question::new("Restore", doing, None)));
    }
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
    let (name, paths, at) = (text(arguments, "restore", "checkpoint")?, paths_of(arguments)?, text(arguments, "restore", "at")?);
    match (name.is_empty(), paths.is_empty(), at.is_empty()) {
        (true, false, false) => return restore_files(threads, scope, &paths, &at).await,
        (false, true, true) => {}
        (_, true, true) => {
            return Err(Error::invalid_argument("`restore` needs `checkpoint`: the id or label of one, `latest`, or `~N`"));
        }
        _ => return Err(Error::invalid_argument("`restore` needs `checkpoint` alone, or `paths` and `at`")),
    }
    let restore = |found: Checkpoint| -> BoxFuture<'_, Result<_>> {
        let work = move |session: Session| -> BoxFuture<'static, Result<Checkpoint>> {
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
