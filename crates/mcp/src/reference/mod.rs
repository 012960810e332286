//! The tools of the reference filesystem server (`@modelcontextprotocol/server-filesystem`) over this tree: a drop-in replacement.
//!
//! Names, arguments, results and errors are those of the reference server, byte for byte, so that prompts and programs written for it keep
//! working; `scripts/mcp-reference.sh` compares the two. Facts that a tree does not have are substituted: the times of creation and last
//! access are that of the last change if a tier has no other, and permissions are the defaults of a new file or directory.

mod arguments;
mod described;
mod diff;
mod edit;
mod list;
mod minimatch;
mod names;
mod paths;
mod read;
mod write;

pub(super) use described::tools;

use arguments::Arguments;
use futures::future::BoxFuture;
use paths::Allowed;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool};
use serde_json::{Value, json};
use std::sync::Arc;
use treehold_agent::session::{CallOutcome, Done, Target, Threads};
use treehold_agent::tools::{RecordedArguments, ToolOutput, named_paths};
use treehold_core::error::{Error, ErrorKind};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_tree::backend::Backend;

/// Why a call was refused, in the words of the reference server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused(String);

type Answer = std::result::Result<Vec<Value>, Refused>;

/// Handles calls of these tools within the allowed directories.
#[derive(Debug, Clone)]
pub(super) struct Reference {
    allowed: Arc<Allowed>,
}

impl Reference {
    /// Allows access to the directories, or to the whole tree if there are none, but only within the subtrees that callers may know about.
    pub(super) fn new(directories: &[VfsPathBuf], shown: &[VfsPathBuf]) -> Self {
        Self { allowed: Arc::new(Allowed::new(directories).restricted_to(shown)) }
    }

    /// Handles a call of a described tool.
    pub(super) async fn call(&self, threads: &Threads, scope: &Scope, tool: &Tool, arguments: JsonObject) -> CallToolResult {
        let name = tool.name.to_string();
        let arguments = match arguments::check(&tool.input_schema, arguments) {
            Ok(arguments) => Arguments::new(arguments),
            Err(wrong) => {
                return refused(&format!("MCP error -32602: Input validation error: Invalid arguments for tool {name}: {wrong}"));
            }
        };
        let recorded = RecordedArguments::of(arguments.given());
        let answer = match name.as_str() {
            "write_file" | "edit_file" | "create_directory" | "move_file" => self.change(threads, scope, name, arguments, recorded).await,
            _ => self.look(threads, scope, name, arguments, recorded).await,
        };
        match answer {
            Ok(content) => answered(content),
            Err(Refused(message)) => refused(&message),
        }
    }

    async fn look(&self, threads: &Threads, scope: &Scope, name: String, arguments: Arguments, recorded: RecordedArguments) -> Answer {
        let (tool, arguments) = (&*name, &arguments);
        let work = |tree: Arc<dyn Backend>| -> BoxFuture<'_, (Answer, CallOutcome)> {
            Box::pin(async move { with_outcome(self.looked(&tree, tool, arguments).await) })
        };
        answer_of(threads.call_as(scope, tool, recorded, None, work).await)
    }

    async fn looked(&self, tree: &Arc<dyn Backend>, name: &str, arguments: &Arguments) -> Answer {
        let (allowed, tree) = self.allowed.within(tree.clone()).await?;
        let (allowed, tree) = (&allowed, &*tree);
        match name {
            "read_file" | "read_text_file" => read::text_file(tree, allowed, arguments).await,
            "read_media_file" => read::media_file(tree, allowed, arguments).await,
            "read_multiple_files" => read::multiple_files(tree, allowed, arguments).await,
            "list_directory" => list::directory(tree, allowed, arguments).await,
            "list_directory_with_sizes" => list::directory_with_sizes(tree, allowed, arguments).await,
            "directory_tree" => list::directory_tree(tree, allowed, arguments).await,
            "search_files" => list::search_files(tree, allowed, arguments).await,
            "get_file_info" => list::file_info(tree, allowed, arguments).await,
            _ => Ok(vec![text(format!("Allowed directories:\n{}", allowed.joined("\n")))]),
        }
    }

    async fn change(&self, threads: &Threads, scope: &Scope, name: String, arguments: Arguments, recorded: RecordedArguments) -> Answer {
        let target = Target::of_paths(named_paths(arguments.given()));
        let (tool, arguments) = (&*name, &arguments);
        let work = |tree: Arc<dyn Backend>| -> BoxFuture<'_, (Answer, CallOutcome)> {
            Box::pin(async move { with_outcome(self.changed(tree, tool, arguments).await) })
        };
        answer_of(threads.call_as(scope, tool, recorded, Some(&target), work).await)
    }

    async fn changed(&self, tree: Arc<dyn Backend>, name: &str, arguments: &Arguments) -> Answer {
        let (allowed, tree) = self.allowed.within(tree).await?;
        match name {
            "write_file" => write::file(&*tree, &allowed, arguments).await,
            "edit_file" => edit::file(&*tree, &allowed, arguments).await,
            "create_directory" => write::directory(&*tree, &allowed, arguments).await,
            _ => write::moved(&*tree, &allowed, arguments).await,
        }
    }
}

/// Adds to an answer what the audit log records about it.
fn with_outcome(answer: Answer) -> (Answer, CallOutcome) {
    let outcome = match &answer {
        Ok(_) => CallOutcome { error: None, bytes_out: 0 },
        Err(Refused(message)) => CallOutcome::from(&ToolOutput::from_error(&Error::new(kind_of(message), message.clone()))),
    };
    (answer, outcome)
}

fn answer_of(done: treehold_core::error::Result<Done<Answer>>) -> Answer {
    done.and_then(Done::into_saved).unwrap_or_else(|error| Err(Refused(error.message().to_owned())))
}

/// Returns the error kind of a refusal. The message is all that is known of it.
fn kind_of(message: &str) -> ErrorKind {
    let kinds = [
        ("ENOENT", ErrorKind::NotFound),
        ("ENOTDIR", ErrorKind::NotADirectory),
        ("EISDIR", ErrorKind::IsDirectory),
        ("EEXIST", ErrorKind::AlreadyExists),
        ("Destination already exists", ErrorKind::AlreadyExists),
        ("EROFS", ErrorKind::ReadOnly),
        ("EACCES", ErrorKind::PermissionDenied),
        ("Access denied", ErrorKind::PermissionDenied),
        ("EDQUOT", ErrorKind::QuotaExceeded),
        ("Could not find exact match", ErrorKind::NoMatch),
    ];
    kinds.into_iter().find(|(start, _)| message.starts_with(start)).map_or(ErrorKind::InvalidArgument, |(_, kind)| kind)
}

/// Handles a call of a tool that does not exist.
pub(super) fn no_tool(name: &str) -> CallToolResult {
    refused(&format!("MCP error -32602: Tool {name} not found"))
}

/// Returns a text block.
fn text(text: impl Into<String>) -> Value {
    json!({"type": "text", "text": text.into()})
}

/// Returns the result for some blocks. Like the reference server, it repeats a single text block as structured content in plain form, and
/// other blocks as they are.
fn answered(content: Vec<Value>) -> CallToolResult {
    let structured = match content.as_slice() {
        [block] if block["type"] == "text" => block["text"].clone(),
        blocks => blocks.to_vec().into(),
    };
    let blocks = content.into_iter().filter_map(|block| serde_json::from_value::<ContentBlock>(block).ok()).collect();
    let mut result = CallToolResult::success(blocks);
    result.is_error = None;
    result.structured_content = Some(json!({"content": structured}));
    result
}

fn refused(message: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(message)])
}

/// Phrases an error as the reference server would: the failed system call with its path.
fn failed(error: &Error, call: &str, path: &VfsPath) -> Refused {
    let message = match error.kind() {
        ErrorKind::NotFound => format!("ENOENT: no such file or directory, {call} '{path}'"),
        ErrorKind::NotADirectory => format!("ENOTDIR: not a directory, {call} '{path}'"),
        ErrorKind::IsDirectory => "EISDIR: illegal operation on a directory, read".to_owned(),
        ErrorKind::AlreadyExists => format!("EEXIST: file already exists, {call} '{path}'"),
        ErrorKind::ReadOnly => format!("EROFS: read-only file system, {call} '{path}'"),
        ErrorKind::PermissionDenied => format!("EACCES: permission denied, {call} '{path}'"),
        ErrorKind::QuotaExceeded => format!("EDQUOT: disk quota exceeded, {call} '{path}'"),
        _ => error.message().to_owned(),
    };
    Refused(message)
}

#[cfg(test)]
mod tests {
    use super::super::history;
    use super::*;
    use treehold_agent::audit::AuditLog;
    use treehold_agent::workspace::Workspace;
    use treehold_store::MemoryStore;
    use treehold_tree::checkpoint::StoreCheckpointer;

    /// Regression: a dry run over 60,000 lines took more than a minute, on the thread that serves all clients.
    #[tokio::test]
    async fn edit_of_every_line_of_a_large_file_does_not_block_others() {
        let workspace = Workspace::builder().build();
        let (threads, scope) = (Threads::new(workspace), Scope::new().with_thread("t"));
        let (reference, offered) = (Reference::new(&[], &[]), tools());
        let call = async |name: &str, arguments: Value| {
            let tool = offered.iter().find(|tool| tool.name == name).expect("a tool");
            reference.call(&threads, &scope, tool, arguments.as_object().cloned().expect("arguments")).await
        };
        let text = |name: &str| (0..60_000).map(|number| format!("{name} {number}\n")).collect::<String>();
        call("write_file", json!({"path": "/a.md", "content": text("old")})).await;
        let edit = json!({"path": "/a.md", "edits": [{"oldText": text("old"), "newText": text("new")}], "dryRun": true});
        let (answer, turns) = treehold_core::work::turns_during(call("edit_file", edit)).await;
        let shown = serde_json::to_string(&answer).expect("plain data");
        assert!(shown.contains("-old 59999") && shown.contains("+new 59999") && answer.is_error != Some(true));
        assert!(turns > 0, "the thread was free meanwhile");
    }

    /// Regression: calls of the reference and history tools were missing from the audit log.
    #[tokio::test]
    async fn calls_are_audited_like_those_of_the_other_tools() {
        let store = Arc::new(MemoryStore::new());
        let workspace = Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone())).audit_log(AuditLog::new(store)).build();
        let (threads, scope) = (Threads::new(workspace.clone()), Scope::new().with_thread("t"));
        let (reference, offered) = (Reference::new(&[], &[]), tools());
        let call = async |name: &str, arguments: Value| {
            let tool = offered.iter().find(|tool| tool.name == name).expect("a tool");
            reference.call(&threads, &scope, tool, arguments.as_object().cloned().expect("arguments")).await
        };
        call("write_file", json!({"path": "/a.md", "content": "secret"})).await;
        call("read_multiple_files", json!({"paths": ["/a.md", "/b.md"]})).await;
        call("move_file", json!({"source": "/none", "destination": "/b.md"})).await;
        history::call(&threads, &scope, "checkpoint", json!({"label": "secret"}).as_object().expect("arguments")).await;
        let rows = workspace.audit_log().expect("recorded").calls(&scope, None, None, 9).await.expect("read").calls;
        // Calls within the same millisecond are in no particular order, since each opened the thread anew.
        let row = |tool: &str| rows.iter().find(|row| row.tool == tool).expect("a row");
        let told = ["write_file", "read_multiple_files", "move_file", "checkpoint"].map(|tool| row(tool).outcome.as_str());
        assert_eq!((told, rows.len()), (["ok", "ok", "not_found", "ok"], 4));
        assert_eq!(row("write_file").arguments, json!({"path": "/a.md", "content": {"bytes": 6}}));
        assert!(row("write_file").checkpoint.is_some() && row("read_multiple_files").checkpoint.is_none());
        assert_eq!(row("read_multiple_files").arguments, json!({"paths": ["/a.md", "/b.md"]}));
        assert!(rows.iter().all(|row| !row.arguments.to_string().contains("secret")));
    }
}
