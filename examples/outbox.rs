//! Rows of an embedder that commit together with file changes: a run's journal that can never disagree with its files. Its rows lie in the
//! partition of the user, as the files do.
//!
//! Run it with `cargo run --example outbox`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use treehold::checkpoint::{PutOptions, StoreCheckpointer};
use treehold::ops::{ApplyOptions, Change, Edit, WriteMode};
use treehold::session::{CallNotes, Threads};
use treehold::store::{Batch, Delivery, Outbox, Receipt};
use treehold::tools::ToolCall;
use treehold::{Backend, ErrorKind, MemoryStore, Namespace, Scope, Store, StoreBackend, VfsPathBuf, Workspace};

/// Creates an outbox with an entry for the journal: the row `key` commits with the changes, or not at all.
fn entry(store: &Arc<dyn Store>, key: &str) -> treehold::Result<(Outbox, Receipt)> {
    let row = Batch::new().put(&Namespace::parse("acme/ada/journal")?, key, "done");
    let mut outbox = Outbox::new();
    let receipt = outbox.push_rows(store.clone(), row.writes);
    Ok((outbox, receipt))
}

/// Creates the options of changes with an entry for the journal.
fn journal(store: &Arc<dyn Store>, key: &str) -> treehold::Result<(ApplyOptions, Receipt)> {
    let (outbox, receipt) = entry(store, key)?;
    Ok((ApplyOptions::new().with_extension(outbox), receipt))
}

/// Returns whether the journal has a row.
async fn is_noted(store: &Arc<dyn Store>, key: &str) -> treehold::Result<bool> {
    Ok(store.get(&Namespace::parse("acme/ada/journal")?, key).await?.is_some())
}

fn write(path: &str, content: &'static str) -> treehold::Result<Change> {
    Ok(Change::Write { path: VfsPathBuf::parse(path)?, content: content.into(), mode: WriteMode::Overwrite })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> treehold::Result<()> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let rows = store.clone();
    let workspace = Workspace::builder()
        .mount("/memories", move |_| Ok(Arc::new(StoreBackend::new(rows.clone(), Namespace::parse("acme/ada/memories")?))))?
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .build();
    let session = workspace.session(Scope::new().with_tenant("acme").with_user("ada").with_thread("monday")).await?;
    let tree = session.backend();

    // On a route to the store, the row commits with the file.
    let (options, receipt) = journal(&store, "1")?;
    tree.apply(&[write("/memories/plan.md", "1. ask\n")?], &options).await?;
    assert_eq!((receipt.delivery(), is_noted(&store, "1").await?), (Delivery::Committed, true));

    // A refused change leaves no row.
    let (options, receipt) = journal(&store, "2")?;
    let edit = Change::Edit { path: VfsPathBuf::parse("/memories/plan.md")?, edits: vec![Edit::new("2. answer", "")], expect: None };
    let error = tree.apply(&[edit], &options).await.expect_err("the text is not there");
    assert_eq!((error.kind(), receipt.delivery(), is_noted(&store, "2").await?), (ErrorKind::NoMatch, Delivery::Ignored, false));

    // In the thread's state, the row waits for the save that makes the change durable.
    let (options, receipt) = journal(&store, "3")?;
    tree.apply(&[write("/draft.md", "Dear Ada,\n")?], &options).await?;
    assert_eq!((receipt.delivery(), is_noted(&store, "3").await?), (Delivery::Held, false));
    session.save().await?;
    assert_eq!((receipt.delivery(), is_noted(&store, "3").await?), (Delivery::Committed, true));

    // If the change is dropped before it is saved, so is the row.
    let (options, receipt) = journal(&store, "4")?;
    tree.apply(&[write("/draft.md", "Dear Bob,\n")?], &options).await?;
    session.reload().await?;
    assert_eq!((receipt.delivery(), is_noted(&store, "4").await?), (Delivery::Dropped, false));

    // A save can commit further rows of the caller.
    let (outbox, receipt) = entry(&store, "5")?;
    session.checkpoint(PutOptions::new().with_label("reviewed").with_extension(outbox)).await?;
    assert_eq!((receipt.delivery(), is_noted(&store, "5").await?), (Delivery::Committed, true));

    // The row of a tool call commits with the save of its thread. If others save the thread meanwhile, the call is repeated, and the row
    // is still put once.
    let threads = Threads::new(workspace);
    let (outbox, receipt) = entry(&store, "6")?;
    let call = ToolCall::from_json("write_file", serde_json::json!({"path": "/draft.md", "content": "Dear Eve,\n"}))?;
    let output = threads.call_with(session.scope(), call, CallNotes::new().with_extension(outbox)).await;
    assert!(!output.is_error, "{}", output.text);
    assert_eq!((receipt.delivery(), is_noted(&store, "6").await?), (Delivery::Committed, true));

    // A call that changes nothing ignores the row. The caller can put it.
    let (outbox, receipt) = entry(&store, "7")?;
    let call = ToolCall::from_json("read_file", serde_json::json!({"path": "/draft.md"}))?;
    threads.call_with(session.scope(), call, CallNotes::new().with_extension(outbox)).await;
    assert_eq!((receipt.delivery(), is_noted(&store, "7").await?), (Delivery::Ignored, false));

    println!("each row of the journal stands for a change that is saved, and for no other");
    Ok(())
}

#[test]
fn each_row_of_the_journal_stands_for_a_saved_change() {
    main().expect("the example runs");
}
