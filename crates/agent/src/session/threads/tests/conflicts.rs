//! The cost of a conflict: one refused commit, and one audit row per call however often it is repeated.

use super::*;
use crate::audit::AuditLog;
use crate::feed::Feed;

/// Returns the threads of a process whose events and audit rows are in the same store.
fn recorded(store: &Arc<Lossy>, durability: ThreadDurability) -> Arc<Threads> {
    let builder = Workspace::builder()
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .audit_log(AuditLog::new(store.clone()))
        .feed(Feed::new(store.clone()))
        .durability(durability);
    Arc::new(Threads::new(builder.build()))
}

async fn rows(threads: &Threads) -> Vec<(String, String)> {
    let log = threads.workspace().audit_log().expect("calls are recorded");
    let page = log.calls(&scope("t"), None, None, 100).await.expect("read");
    page.calls.into_iter().map(|row| (row.tool, row.outcome)).collect()
}

#[tokio::test]
async fn each_conflict_costs_one_commit_and_a_repeated_call_has_one_row() {
    for durability in [ThreadDurability::Step, ThreadDurability::Sync] {
        for conflicts in 0..4 {
            let store = Arc::new(Lossy::default());
            let (one, other) = (recorded(&store, durability), recorded(&store, ThreadDurability::Step));
            assert!(!other.call(&scope("t"), write("/start", "x")).await.is_error);
            store.tried.store(0, Ordering::Relaxed);
            conflict(&store, &other, conflicts);
            let output = one.call(&scope("t"), write("/a", "one")).await;
            assert!(!output.is_error, "{}", output.text);
            // The other process takes one commit for each of its saves.
            let tried = store.tried.load(Ordering::Relaxed) - conflicts;
            assert_eq!(tried, conflicts + 1, "{durability} {conflicts}");
            let written = rows(&one).await;
            assert_eq!(written.len(), conflicts + 2, "{durability}: {written:?}");
            assert!(written.iter().all(|(tool, outcome)| tool == "write_file" && outcome == "ok"), "{written:?}");
        }
    }
}

#[tokio::test]
async fn save_is_not_tried_again_once_others_have_moved_the_head() {
    let store = Arc::new(Lossy::default());
    let (one, other) = (recorded(&store, ThreadDurability::Step), recorded(&store, ThreadDurability::Step));
    let session = one.workspace().session(scope("t")).await.expect("opened");
    session.backend().write("/a", "one").await.expect("written");
    assert!(!other.call(&scope("t"), write("/b", "two")).await.is_error);
    store.tried.store(0, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(session.save().await.expect_err("other sessions saved meanwhile").kind(), ErrorKind::Conflict);
    }
    assert_eq!(store.tried.load(Ordering::Relaxed), 1);
    session.reload().await.expect("read again");
    session.backend().write("/a", "one").await.expect("written");
    assert!(session.save().await.expect("the save follows the new head"));
}

#[tokio::test]
async fn applied_batch_that_cannot_be_saved_answers_with_its_results_and_the_reason() {
    let store = Arc::new(Lossy::default());
    let one = recorded(&store, ThreadDurability::Step);
    let path = treehold_core::path::VfsPathBuf::parse("/a").expect("a path");
    let write = Change::Write { path, content: "one".into(), mode: treehold_core::ops::WriteMode::Overwrite };
    let failing = store.clone();
    store.before_commit(async move { failing.lose(100) });
    let done = one.apply(&scope("t"), &[write], &ApplyOptions::new()).await.expect("the change is made");
    assert_eq!(done.answer.len(), 1);
    let error = done.unsaved.expect("the store answers nothing");
    assert!(error.kind() == ErrorKind::Unavailable && error.may_have_effect(), "{error}");
    store.lose(0);
    assert_eq!(text(&one, "/a").await, "one");
}
