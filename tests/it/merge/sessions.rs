//! Merges into a thread that is open.

use std::sync::Arc;
use treehold::checkpoint::{At, MergeOptions, MergeStatus, PutOptions, StoreCheckpointer};
use treehold::{BackendExt, MemoryStore, Scope, Session, ThreadDurability, Workspace};

async fn forked(durability: ThreadDurability) -> (Session, Session) {
    let checkpointer = StoreCheckpointer::new(Arc::new(MemoryStore::new()));
    let workspace = Workspace::builder().checkpointer(checkpointer).durability(durability).build();
    let session = workspace.session(Scope::new().with_thread("main")).await.unwrap();
    session.backend().write("/t", "1\n2\n3\n4\n5\n").await.unwrap();
    session.save().await.unwrap();
    let checkpointer = workspace.checkpointer().unwrap();
    checkpointer.fork(session.scope(), At::Latest, "fork", &PutOptions::new()).await.unwrap();
    let fork = workspace.session(Scope::new().with_thread("fork")).await.unwrap();
    (session, fork)
}

#[tokio::test]
async fn session_continues_after_saving_and_merging() {
    for durability in [ThreadDurability::Sync, ThreadDurability::Step, ThreadDurability::Exit] {
        let (session, fork) = forked(durability).await;
        fork.backend().write("/t", "1\n2\n3\n4\nfork\n").await.unwrap();
        fork.save().await.unwrap();
        session.backend().write("/t", "main\n2\n3\n4\n5\n").await.unwrap();
        let outcome = session.merge("fork", At::Latest, MergeOptions::new()).await.unwrap();
        assert_eq!(outcome.status, MergeStatus::Merged);
        assert_eq!(session.backend().read_text("/t").await.unwrap(), "main\n2\n3\n4\nfork\n");
        assert!(!session.save().await.unwrap(), "it is saved");
        session.backend().write("/after", "x").await.unwrap();
        session.save().await.unwrap();
        assert_eq!(session.merge("fork", At::Latest, MergeOptions::new()).await.unwrap().status, MergeStatus::UpToDate);
        assert_eq!(session.history(At::Latest).await.unwrap().read_text("/t").await.unwrap(), "main\n2\n3\n4\nfork\n");
    }
}

#[tokio::test]
async fn conflict_leaves_the_session_unchanged() {
    let (session, fork) = forked(ThreadDurability::Exit).await;
    fork.backend().write("/t", "fork").await.unwrap();
    fork.save().await.unwrap();
    session.backend().write("/t", "main").await.unwrap();
    assert_eq!(session.merge("fork", At::Latest, MergeOptions::new()).await.unwrap().status, MergeStatus::Conflict);
    assert_eq!(session.backend().read_text("/t").await.unwrap(), "main");
}

/// Regression: a change made between the save and the switch to the merged state was lost.
#[tokio::test(flavor = "multi_thread")]
async fn changes_concurrent_with_a_merge_are_not_lost() {
    let (session, fork) = forked(ThreadDurability::Step).await;
    for round in 0..20 {
        fork.backend().write("/f", format!("{round}")).await.unwrap();
        fork.save().await.unwrap();
        let writing = session.clone();
        let writer = tokio::spawn(async move {
            for at in 0..20 {
                writing.backend().append("/log", format!("{round}.{at}\n")).await.unwrap();
            }
        });
        session.merge("fork", At::Latest, MergeOptions::new()).await.unwrap();
        writer.await.unwrap();
    }
    session.save().await.unwrap();
    let log = session.history(At::Latest).await.unwrap().read_text("/log").await.unwrap();
    let expected: String = (0..20).flat_map(|round| (0..20).map(move |at| format!("{round}.{at}\n"))).collect();
    assert_eq!(log, expected);
}
