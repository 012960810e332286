//! The memory story as an embedding program: what one thread learns, another knows.
//!
//! ```text
//! cargo run --example memory_story
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use serde_json::json;
use std::sync::Arc;
use treehold::checkpoint::StoreCheckpointer;
use treehold::store::SqliteStore;
use treehold::{NamespaceTemplate, Result, Scope, Session, Store, StoreBackend, ToolCall, Workspace};

#[tokio::main]
async fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("treehold-memory-story-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a temporary directory can be made");
    let ada = Scope::new().with_tenant("acme").with_user("ada");

    // Thread 1 learns something worth keeping, and also writes a scratch file.
    let session = open(&directory.join("agent.db"))?.session(ada.clone().with_thread("monday")).await?;
    call(&session, "write_file", json!({"path": "/memories/AGENTS.md", "content": "# House style\n\nTheme colour: unknown\n"})).await;
    call(&session, "edit_file", json!({"path": "/memories/AGENTS.md", "old_string": "unknown", "new_string": "#FD5108"})).await;
    call(&session, "write_file", json!({"path": "/notes.txt", "content": "scratch of monday\n"})).await;
    session.close().await?;

    // Thread 2 starts later, from a newly opened workspace, as in another process.
    let workspace = open(&directory.join("agent.db"))?;
    let session = workspace.session(ada.clone().with_thread("tuesday")).await?;
    let memory = call(&session, "read_file", json!({"path": "/memories/AGENTS.md"})).await;
    assert!(memory.contains("#FD5108"), "thread 2 knows what thread 1 learned");
    let scratch = call(&session, "glob", json!({"pattern": "*.txt", "path": "/"})).await;
    assert!(!scratch.contains("notes.txt"), "the scratch file belongs to thread 1");
    session.close().await?;

    // Thread 1 continues where it stopped.
    let session = workspace.session(ada.with_thread("monday")).await?;
    assert!(call(&session, "read_file", json!({"path": "/notes.txt"})).await.contains("scratch of monday"));
    session.close().await?;

    std::fs::remove_dir_all(&directory).expect("the temporary directory can be removed");
    Ok(())
}

/// Opens a workspace: the thread's state at `/`, with memories and saved threads in one SQLite file.
fn open(file: &std::path::Path) -> Result<Workspace> {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(file)?);
    let memories = NamespaceTemplate::parse("{tenant}/{user}/memories")?;
    let rows = store.clone();
    let builder = Workspace::builder().checkpointer(StoreCheckpointer::new(store));
    Ok(builder.mount("/memories", move |opening| Ok(Arc::new(StoreBackend::new(rows.clone(), memories.fill(opening.scope())?))))?.build())
}

/// Calls a tool as a model would, and prints call and answer.
async fn call(session: &Session, name: &str, arguments: serde_json::Value) -> String {
    println!("> {name} {arguments}");
    let output = match ToolCall::from_json(name, arguments) {
        Ok(call) => session.call(call).await.text,
        Err(error) => error.to_string(),
    };
    println!("{output}\n");
    output
}
