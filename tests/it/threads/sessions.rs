//! When a session's changes become visible to others, and what happens to idle sessions.

use super::watched::{Fault, Watched};
use super::{checkpointer, found, is_saved, scope, workspace, write};
use serde_json::json;
use std::sync::Arc;
use treehold::checkpoint::{At, CheckpointId, Checkpointer, ListOptions, PutOptions};
use treehold::ops::{ApplyOptions, Change, WriteMode};
use treehold::{AuditLog, BackendExt, ErrorKind, ThreadDurability, ToolCall, VfsPathBuf, Workspace};

async fn made(store: &Watched, thread: &str) -> Vec<CheckpointId> {
    let page = checkpointer(store).list(&scope(thread), &ListOptions::new()).await.unwrap();
    page.checkpoints.iter().map(|checkpoint| checkpoint.id).collect()
}

#[tokio::test]
async fn sync_changes_are_visible_to_others_after_each_change() {
    let store = Watched::default();
    let session = workspace(&store, ThreadDurability::Sync).session(scope("t")).await.unwrap();
    session.backend().write("/a", "one").await.unwrap();
    assert_eq!(found(&store, "t", "/a").await.as_deref(), Some("one"));
    session.backend().append("/a", "!").await.unwrap();
    assert_eq!(found(&store, "t", "/a").await.as_deref(), Some("one!"));
    assert!(is_saved(&session, write("/b", "two")).await);
    assert_eq!(found(&store, "t", "/b").await.as_deref(), Some("two"));
    assert_eq!(made(&store, "t").await.len(), 3);
    store.fail_commits(0, 9, Fault::Before);
    let error = session.backend().write("/c", "three").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.may_have_effect() && error.message().contains("not saved yet"), "{error:?}");
    store.heal();
    assert_eq!(session.backend().read_text("/c").await.unwrap(), "three", "the state is kept");
    session.backend().write("/d", "four").await.unwrap();
    assert_eq!(found(&store, "t", "/c").await.as_deref(), Some("three"), "the next call saves the change");
}

#[tokio::test]
async fn step_changes_are_visible_to_others_after_each_call_or_batch() {
    let store = Watched::default();
    let session = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
    session.backend().write("/a", "one").await.unwrap();
    assert_eq!(found(&store, "t", "/a").await, None, "a change by itself is not a step");
    assert!(is_saved(&session, write("/b", "two")).await);
    assert_eq!(found(&store, "t", "/a").await.as_deref(), Some("one"));
    let change = |path: &str| {
        let path = VfsPathBuf::parse(path).unwrap();
        Change::Write { path, content: "three".into(), mode: WriteMode::Overwrite }
    };
    assert!(session.apply(&[change("/c"), change("/d")], &ApplyOptions::new()).await.unwrap().unsaved.is_none());
    assert_eq!(found(&store, "t", "/d").await.as_deref(), Some("three"));
    assert_eq!(made(&store, "t").await.len(), 2);
    let refused = session.call(write("/a/b", "beneath a file")).await;
    assert!(refused.error.is_some());
    assert_eq!(made(&store, "t").await.len(), 2, "nothing changed");
    store.fail_commits(0, 9, Fault::Before);
    let done = session.apply(&[change("/e")], &ApplyOptions::new()).await.unwrap();
    assert_eq!(done.answer.len(), 1, "the change is made");
    let error = done.unsaved.unwrap();
    assert!(error.may_have_effect() && error.message().contains("not saved yet"), "{error:?}");
    assert!(!is_saved(&session, write("/f", "four")).await, "the error reaches the model");
    store.heal();
    session.close().await.unwrap();
    assert_eq!(found(&store, "t", "/e").await.as_deref(), Some("three"));
    assert_eq!(found(&store, "t", "/f").await.as_deref(), Some("four"));
}

#[tokio::test]
async fn exit_changes_are_visible_to_others_after_close() {
    let store = Watched::default();
    let workspace = workspace(&store, ThreadDurability::Exit);
    let session = workspace.session(scope("t")).await.unwrap();
    assert!(is_saved(&session, write("/a", "one")).await);
    session.backend().write("/b", "two").await.unwrap();
    assert_eq!(found(&store, "t", "/a").await, None);
    session.close().await.unwrap();
    assert_eq!(found(&store, "t", "/b").await.as_deref(), Some("two"));
    assert_eq!(made(&store, "t").await.len(), 1);
    let dropped = workspace.session(scope("t")).await.unwrap();
    dropped.backend().write("/c", "three").await.unwrap();
    drop(dropped);
    assert_eq!(found(&store, "t", "/c").await, None, "dropping a session saves nothing");
}

#[tokio::test]
async fn idle_threads_are_saved_unloaded_and_opened_again() {
    let store = Watched::default();
    // Without a cache, reads show what was unloaded.
    let workspace = Workspace::builder()
        .checkpointer(checkpointer(&store).with_cache_bytes(0))
        .durability(ThreadDurability::Exit)
        .threads_bytes_max(200 << 10)
        .build();
    let mut sessions = Vec::new();
    for number in 0..30 {
        let session = workspace.session(scope(&format!("t{number}"))).await.unwrap();
        assert!(is_saved(&session, write("/a", &format!("{number} ").repeat(6_000))).await);
        sessions.push(session);
    }
    let mut saved = 0;
    for number in 0..30 {
        saved += usize::from(found(&store, &format!("t{number}"), "/a").await.is_some());
    }
    assert!((15..30).contains(&saved), "{saved} threads were unloaded; expected 15 to 29");
    assert!(found(&store, "t0", "/a").await.is_some() && found(&store, "t29", "/a").await.is_none());
    store.seen();
    for (number, session) in sessions.iter().enumerate() {
        assert_eq!(session.backend().read_text("/a").await.unwrap(), format!("{number} ").repeat(6_000));
    }
    assert_eq!(store.seen().rows_of("bodies"), saved, "the unloaded threads are read again");
    // A state that cannot be saved stays in memory.
    for (number, session) in sessions.iter().enumerate() {
        session.backend().write("/b", format!("{number}").repeat(10_000)).await.unwrap();
    }
    store.fail_commits(0, usize::MAX, Fault::Before);
    for session in &sessions {
        session.call(write("/c", &"x".repeat(10_000))).await;
    }
    store.heal();
    for (number, session) in sessions.into_iter().enumerate() {
        assert_eq!(session.backend().read_text("/b").await.unwrap(), format!("{number}").repeat(10_000));
        session.close().await.unwrap();
        assert_eq!(found(&store, &format!("t{number}"), "/b").await, Some(format!("{number}").repeat(10_000)));
    }
}

/// Regression: only reads and changes counted, so threads that were only listed or searched stayed in memory.
#[tokio::test]
async fn content_loaded_by_listings_and_searches_counts_towards_the_memory_budget() {
    let store = Watched::default();
    let writer = workspace(&store, ThreadDurability::Exit).session(scope("t")).await.unwrap();
    let file = |number: usize| Change::Write {
        path: VfsPathBuf::parse(format!("/d/{number:04}.md")).unwrap(),
        content: format!("word {number}\n").into(),
        mode: WriteMode::Overwrite,
    };
    let done = writer.apply(&(0..2_000).map(file).collect::<Vec<_>>(), &ApplyOptions::new()).await.unwrap();
    assert!(done.unsaved.is_none());
    writer.close().await.unwrap();
    let calls = [
        ("ls", json!({"path": "/d"})),
        ("glob", json!({"pattern": "**/*.md"})),
        ("grep", json!({"pattern": "word"})),
        ("search", json!({"query": "word"})),
        ("read_file", json!({"path": "/d/1000.md"})),
    ];
    for (tool, arguments) in calls {
        // A page of 16 files takes some KiB; what a read loads fits into the larger budget.
        for (budget_bytes, is_put_down) in [(1 << 10, true), (8 << 20, false)] {
            let uncached = checkpointer(&store).with_cache_bytes(0);
            let workspace = Workspace::builder().checkpointer(uncached).threads_bytes_max(budget_bytes).build();
            let (reader, other) = (workspace.session(scope("t")).await.unwrap(), workspace.session(scope("u")).await.unwrap());
            let call = async || {
                store.seen();
                let output = reader.call(ToolCall::from_json(tool, arguments.clone()).unwrap()).await;
                assert!(!output.is_error, "{}", output.text);
                store.seen().rows_of("pages")
            };
            assert!(call().await > 0, "{tool} loads pages");
            // Threads are unloaded at the end of a call, except the thread of the call.
            other.call(ToolCall::from_json("ls", json!({"path": "/"})).unwrap()).await;
            assert_eq!(call().await > 0, is_put_down, "{tool} under a budget of {budget_bytes} bytes");
        }
    }
}

/// Regression: the pages of calls with a limit of 0 had no cursor, as if nothing followed.
#[tokio::test]
async fn calls_with_limit_zero_report_whether_there_are_more() {
    let store = Watched::default();
    let log = AuditLog::new(Arc::new(store.clone()));
    let workspace = Workspace::builder().checkpointer(checkpointer(&store)).audit_log(log).build();
    let session = workspace.session(scope("t")).await.unwrap();
    assert!(is_saved(&session, write("/a", "one")).await);
    let page = session.calls(None, None, 0).await.unwrap();
    assert_eq!(page.calls.len(), 0);
    let all = session.calls(page.next, None, 9).await.unwrap();
    assert_eq!((page.next.is_some(), all.calls.len(), all.next), (true, 1, None));
    assert_eq!(session.calls(Some(all.calls[0].id), None, 0).await.unwrap().next, None);
}

/// Regression: a change between the save and the replacement of the state was acknowledged and then lost.
#[tokio::test]
async fn change_concurrent_with_a_restore_is_not_lost() {
    let store = Watched::default();
    let workspace = workspace(&store, ThreadDurability::Step);
    let session = workspace.session(scope("t")).await.unwrap();
    assert!(is_saved(&session, write("/a", "one")).await);
    let first = made(&store, "t").await[0];
    assert!(is_saved(&session, write("/a", "two")).await);
    let other = workspace.session(scope("t")).await.unwrap();
    let writing = Arc::new(parking_lot::Mutex::new(None));
    let slot = writing.clone();
    store.before_commit(move || async move {
        *slot.lock() = Some(tokio::spawn(async move { is_saved(&other, write("/b", "beside")).await }));
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    });
    session.restore(first, PutOptions::new()).await.unwrap();
    let written = writing.lock().take().unwrap();
    assert!(written.await.unwrap(), "the answer says that the state is saved");
    assert_eq!(session.backend().read_text("/b").await.unwrap(), "beside");
    assert_eq!(session.backend().read_text("/a").await.unwrap(), "one");
    assert_eq!(found(&store, "t", "/b").await.as_deref(), Some("beside"));
}

#[tokio::test]
async fn dropped_restore_still_completes() {
    let store = Watched::default();
    let session = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
    assert!(is_saved(&session, write("/a", "one")).await);
    let first = made(&store, "t").await[0];
    assert!(is_saved(&session, write("/a", "two")).await);
    {
        let mut restore = Box::pin(session.restore(first, PutOptions::new()));
        assert!(futures::poll!(&mut restore).is_pending());
    }
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(made(&store, "t").await.len(), 3, "the thread continues");
    assert!(is_saved(&session, write("/b", "on")).await, "the restore was this session's own");
    assert_eq!(found(&store, "t", "/a").await.as_deref(), Some("one"));
}

/// A session that lost a race saves its state as another thread, even if its base checkpoint has been pruned and swept.
#[tokio::test]
async fn state_is_set_aside_completely_after_its_checkpoint_was_pruned() {
    let store = Watched::default();
    let session = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
    for number in 0..100 {
        session.backend().write(&format!("/d{}/f{number}", number % 5), format!("{number}")).await.unwrap();
    }
    session.save().await.unwrap();
    let other = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
    other.backend().delete_all("/d0").await.unwrap();
    other.save().await.unwrap();
    let keeper = checkpointer(&store);
    keeper.prune(&scope("t"), &Default::default()).await.unwrap();
    keeper.sweep(&scope("t"), false).await.unwrap();
    assert!(!is_saved(&session, write("/late", "mine")).await);
    assert_eq!(session.save().await.unwrap_err().kind(), ErrorKind::Conflict);
    session.save_as("aside").await.unwrap();
    for number in 0..100 {
        let path = format!("/d{}/f{number}", number % 5);
        assert_eq!(found(&store, "aside", &path).await, Some(number.to_string()), "{path}");
    }
    assert_eq!(found(&store, "aside", "/late").await.as_deref(), Some("mine"));
    let opened = keeper.open(&scope("t"), At::Latest).await.unwrap().unwrap();
    assert!(!opened.state.exists("/late").await.unwrap());
}
