//! Rows of an embedder that commit with a tool call.

use super::*;
use crate::session::CallNotes;
use treehold_core::ops::WriteMode;
use treehold_core::path::VfsPathBuf;
use treehold_store::{BatchWrite, Delivery, Namespace, Outbox, Receipt, ScanOptions, Store};
use treehold_tree::backend::StoreBackend;
use treehold_tree::checkpoint::partition_of;

fn journal() -> Namespace {
    partition_of(&Scope::new()).and_then(|own| own.namespace(["journal"])).expect("a namespace")
}

/// Returns an outbox with one row of the journal.
fn entry(store: &Arc<dyn Store>) -> (Outbox, Receipt) {
    let mut outbox = Outbox::new();
    let append = BatchWrite::Append { namespace: journal(), meta: Default::default(), value: "row".into(), time_to_live: None };
    let receipt = outbox.push_rows(store.clone(), vec![append]);
    (outbox, receipt)
}

async fn rows(store: &Arc<dyn Store>) -> usize {
    store.scan(&journal(), ScanOptions::new()).await.expect("scanned").entries.len()
}

/// Returns the threads of a process with rows at `/memories` in the partition of the threads, at `/shared` in another one of the same store,
/// and at `/far` in another store.
fn process_with_rows(store: &Arc<dyn Store>, durability: ThreadDurability) -> Threads {
    let (near, shared) = (store.clone(), store.clone());
    let far: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let workspace = Workspace::builder()
        .mount("/memories", move |_| Ok(Arc::new(StoreBackend::new(near.clone(), partition_of(&Scope::new())?.namespace(["memories"])?))))
        .and_then(|builder| builder.mount("/shared", move |_| Ok(Arc::new(StoreBackend::new(shared.clone(), namespace())))))
        .and_then(|builder| builder.mount("/far", move |_| Ok(Arc::new(StoreBackend::new(far.clone(), namespace())))))
        .expect("three mounts")
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .durability(durability)
        .build();
    Threads::new(workspace)
}

#[tokio::test]
async fn rows_of_a_call_commit_with_its_changes_or_are_ignored() {
    let failing = call("edit_file", json!({"path": "/start", "old_string": "none such", "new_string": ""}));
    let cases = [
        ("state", write("/a", "one"), Delivery::Committed),
        ("rows of the same partition", write("/memories/a", "one"), Delivery::Committed),
        ("rows of another partition", write("/shared/a", "one"), Delivery::Ignored),
        ("rows of another store", write("/far/a", "one"), Delivery::Ignored),
        ("a move from the state", call("move", json!({"from": "/a", "to": "/memories/b"})), Delivery::Committed),
        ("a read", call("read_file", json!({"path": "/start"})), Delivery::Ignored),
        ("a failed call", failing, Delivery::Ignored),
    ];
    for durability in [ThreadDurability::Step, ThreadDurability::Sync] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let threads = process_with_rows(&store, durability);
        assert!(!threads.call(&scope("t"), write("/start", "x")).await.is_error);
        for (name, call, delivery) in &cases {
            let (before, (outbox, receipt)) = (rows(&store).await, entry(&store));
            threads.call_with(&scope("t"), call.clone(), CallNotes::new().with_extension(outbox)).await;
            let added = usize::from(*delivery == Delivery::Committed);
            assert_eq!((receipt.delivery(), rows(&store).await - before), (*delivery, added), "{durability}: {name}");
        }
    }
}

#[tokio::test]
async fn rows_of_a_session_call_wait_for_the_save_under_exit() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let threads = process_with_rows(&store, ThreadDurability::Exit);
    let session = threads.workspace().session(scope("t")).await.expect("opened");
    let (outbox, receipt) = entry(&store);
    assert!(!session.call_with(write("/a", "one"), CallNotes::new().with_extension(outbox)).await.is_error);
    assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Held, 0));
    session.close().await.expect("saved");
    assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Committed, 1));
}

/// Regression: the rows of a batch were dropped with its first attempt, and the repeated one was saved without them.
#[tokio::test]
async fn rows_of_repeated_work_commit_once() {
    for conflicts in 0..4 {
        let lossy = Arc::new(Lossy::default());
        let store: Arc<dyn Store> = lossy.clone();
        let one = process_with_rows(&store, ThreadDurability::Step);
        let other = Arc::new(process_with_rows(&store, ThreadDurability::Step));
        conflict(&lossy, &other, conflicts);
        let (outbox, receipt) = entry(&store);
        let output = one.call_with(&scope("t"), write("/a", "one"), CallNotes::new().with_extension(outbox)).await;
        assert!(!output.is_error, "{}", output.text);
        assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Committed, 1), "a call, {conflicts}");
        conflict(&lossy, &other, conflicts);
        let (outbox, receipt) = entry(&store);
        let path = VfsPathBuf::parse("/a").expect("a path");
        let change = Change::Write { path, content: "two".into(), mode: WriteMode::Overwrite };
        let done = one.apply(&scope("t"), &[change], &ApplyOptions::new().with_extension(outbox)).await.expect("applied");
        assert!(done.unsaved.is_none());
        assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Committed, 2), "a batch, {conflicts}");
        conflict(&lossy, &other, conflicts);
        let (outbox, receipt) = entry(&store);
        let mut turn = one.begin(&scope("t"), &Target::Thread).await.expect("begun");
        // A caller may keep the sessions of refused attempts.
        let mut attempts = Vec::new();
        loop {
            attempts.push(turn.session().clone());
            let notes = CallNotes::new().with_extension(outbox.clone());
            let output = turn.session().call_with(write("/a", "three"), notes).await;
            // The call has tried to save the thread.
            if turn.save(Done::saved(output)).await.expect("saved or repeated").is_some() {
                break;
            }
        }
        assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Committed, 3), "a turn, {conflicts}");
        assert_eq!(attempts.len(), conflicts + 1);
    }
}

#[tokio::test]
async fn rows_of_a_state_that_is_set_aside_are_dropped() {
    let lossy = Arc::new(Lossy::default());
    let store: Arc<dyn Store> = lossy.clone();
    let one = process_with_rows(&store, ThreadDurability::Step);
    let other = Arc::new(process_with_rows(&store, ThreadDurability::Step));
    conflict(&lossy, &other, 1);
    let ((outbox, receipt), kept) = (entry(&store), Arc::new(Mutex::new(None)));
    let keep = kept.clone();
    let work = |session: Session| -> BoxFuture<'static, Result<()>> {
        *keep.lock() = Some(session.clone());
        let notes = CallNotes::new().with_extension(outbox.clone());
        Box::pin(async move {
            // The other mount has changed, so the work cannot be repeated.
            session.backend().write("/far/a", "one").await?;
            assert!(session.call_with(write("/a", "one"), notes).await.unsaved.is_some());
            Ok(())
        })
    };
    let error = one.lasting(&scope("t"), &Target::Thread, work).await.expect_err("another saved");
    assert!(error.kind() == ErrorKind::Conflict && error.may_have_effect(), "{error:?}");
    assert_eq!((receipt.delivery(), rows(&store).await), (Delivery::Dropped, 0));
}
