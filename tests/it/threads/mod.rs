//! Threads in sessions: their costs, the effects of faults, and when others see changes.

mod costs;
mod faults;
mod memory;
mod outbox;
mod sessions;
pub(crate) mod watched;

use serde_json::json;
use std::sync::Arc;
use treehold::checkpoint::{At, Checkpointer, StoreCheckpointer};
use treehold::{BackendExt, Scope, Session, ThreadDurability, ToolCall, Workspace};
use watched::Watched;

fn scope(thread: &str) -> Scope {
    Scope::new().with_tenant("acme").with_user("ada").with_thread(thread)
}

fn workspace(store: &Watched, durability: ThreadDurability) -> Workspace {
    Workspace::builder().checkpointer(checkpointer(store)).durability(durability).build()
}

fn checkpointer(store: &Watched) -> StoreCheckpointer {
    StoreCheckpointer::new(Arc::new(store.clone()))
}

fn write(path: &str, content: &str) -> ToolCall {
    ToolCall::from_json("write_file", json!({"path": path, "content": content})).unwrap()
}

/// Makes a call. Returns whether its change is saved.
async fn is_saved(session: &Session, call: ToolCall) -> bool {
    let output = session.call(call).await;
    assert_eq!(output.is_error, output.unsaved.is_some(), "the change is made: {}", output.text);
    assert!(output.error.is_none_or(|error| error.may_have_effect), "{}", output.text);
    output.unsaved.is_none()
}

/// Reads a file as another process finds it now; `None` if it does not exist.
async fn found(store: &Watched, thread: &str, path: &str) -> Option<String> {
    let opened = checkpointer(&store.quiet()).open(&scope(thread), At::Latest).await.unwrap()?;
    match opened.state.exists(path).await.unwrap() {
        true => Some(opened.state.read_text(path).await.unwrap()),
        false => None,
    }
}
