//! Each commit of a scenario in turn fails before or after its effect: the last acknowledged state opens, old or new, never a mixture.

use super::watched::{FAULTS, Fault, Watched};
use super::{checkpointer, found, is_saved, scope, workspace, write};
use std::collections::BTreeMap;
use treehold::backend::StateSnapshot;
use treehold::checkpoint::{At, Checkpointer, ListOptions, PruneOptions, PutOptions};
use treehold::ops::{GlobOptions, GrepOptions, LsOptions, ReadOptions, StatOptions};
use treehold::{Backend, BackendExt, ErrorKind, StateBackend, ThreadDurability, VfsPath, VfsPathBuf};

type Files = BTreeMap<String, String>;

async fn read(state: &StateSnapshot) -> Files {
    let mut files = Files::new();
    for (path, node) in state.nodes(None, usize::MAX).await.unwrap() {
        if !node.is_directory() {
            files.insert(path.to_string(), state.read_text(path.as_str()).await.unwrap());
        }
    }
    files
}

#[tokio::test]
async fn session_continues_after_every_fault_of_its_saves() {
    for fault in FAULTS {
        for (skipped, count) in (0..8).flat_map(|skipped| [1, 2, 7].map(|count| (skipped, count))) {
            for reads_fail in [false, true] {
                let case = format!("{fault:?} of {count} behind {skipped}, reads fail: {reads_fail}");
                let store = Watched::default();
                let session = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
                let (mut history, mut acknowledged) = (vec![Files::new()], 0);
                assert!(!session.backend().exists("/d0").await.unwrap(), "it is opened");
                store.fail_commits(skipped, count, fault);
                for step in 0..8 {
                    if reads_fail && step == skipped {
                        store.fail_reads(0);
                    }
                    let (path, content) = (format!("/d{}/f{}", step % 2, step % 3), format!("step {step}"));
                    let mut files = history[step].clone();
                    files.insert(path.clone(), content.clone());
                    history.push(files);
                    if is_saved(&session, write(&path, &content)).await {
                        acknowledged = step + 1;
                    }
                    if step == skipped + 3 {
                        store.heal();
                        store.fail_commits(0, count.saturating_sub(4), fault);
                    }
                    let opened = checkpointer(&store.quiet()).open(&scope("t"), At::Latest).await.unwrap();
                    let files = match opened {
                        Some(opened) => read(&opened.state).await,
                        None => Files::new(),
                    };
                    let at = history.iter().rposition(|known| *known == files);
                    assert!(at.is_some_and(|at| at >= acknowledged), "{case}, step {step}: {files:?}");
                }
                store.heal();
                assert_eq!(session.backend().read_text("/d1/f1").await.unwrap(), "step 7", "the session keeps its state");
                session.close().await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
                let opened = checkpointer(&store).open(&scope("t"), At::Latest).await.unwrap().unwrap();
                assert_eq!(read(&opened.state).await, history[8], "{case}");
            }
        }
    }
}

/// Regression: more saves failed than were remembered, and the one that had taken effect was mistaken for another writer's.
#[tokio::test]
async fn effective_save_is_recognised_after_many_failed_ones() {
    let store = Watched::default();
    let session = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
    assert!(is_saved(&session, write("/a", "0")).await);
    store.fail_commits(0, 1, Fault::After);
    store.fail_reads(0);
    assert!(!is_saved(&session, write("/a", "1")).await);
    for number in 2..20 {
        store.heal();
        store.fail_commits(0, 1, Fault::Before);
        store.fail_reads(number % 2);
        assert!(!is_saved(&session, write("/a", &number.to_string())).await);
    }
    store.heal();
    session.close().await.unwrap();
    assert_eq!(found(&store, "t", "/a").await.as_deref(), Some("19"));
}

#[tokio::test]
async fn unreadable_store_is_never_an_empty_thread() {
    let store = Watched::default();
    let session = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
    for number in 0..60 {
        session.backend().write(&format!("/d{}/f{number}", number % 3), "needle").await.unwrap();
    }
    session.close().await.unwrap();
    let path = VfsPathBuf::parse("/d1/f4").unwrap();
    // The store fails at each step on the way to the answer.
    for skipped in 0..4 {
        let mut failed = 0;
        for operation in 0..7 {
            let session = workspace(&store, ThreadDurability::Step).session(scope("t")).await.unwrap();
            let tree = session.backend();
            store.fail_reads(skipped);
            let ended = match operation {
                0 => tree.stat(&path, &StatOptions::new()).await.map(|_| true),
                1 => tree.read(&path, &ReadOptions::new()).await.map(|read| &read.content[..] == b"needle"),
                2 => tree.ls(VfsPath::ROOT, &LsOptions::new()).await.map(|listing| listing.entries.len() == 3),
                3 => tree.glob(VfsPath::ROOT, &GlobOptions::new("f*")).await.map(|found| found.entries.len() == 60),
                4 => tree
                    .grep(VfsPath::ROOT, &GrepOptions::new("needle"))
                    .await
                    .map(|found| found.files.len() == 60 || !found.failures.is_empty()),
                5 => tree.exists("/d1/f4").await,
                _ => tree.edit("/d1/f4", "needle", "thread").await.map(|_| true),
            };
            match ended {
                Ok(is_whole) => assert!(is_whole, "operation {operation} after {skipped} reads"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "operation {operation}: {error:?}");
                    failed += 1;
                }
            }
            store.heal();
            assert_eq!(tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap().entries.len(), 3, "the next call finds it");
        }
        assert!(skipped > 0 || failed == 7, "{failed} of 7 fail at the first read");
    }
    let checkpointer = checkpointer(&store);
    store.fail_reads(0);
    assert_eq!(checkpointer.get(&scope("t"), At::Latest).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(checkpointer.open(&scope("t"), At::Latest).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(checkpointer.list(&scope("t"), &ListOptions::new()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(checkpointer.sweep(&scope("t"), false).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(checkpointer.threads(&scope("t"), None, 9).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Runs an operation on a thread with a history.
async fn act(checkpointer: &dyn Checkpointer, operation: usize) -> treehold::Result<()> {
    let listed = checkpointer.list(&scope("t"), &ListOptions::new()).await?.checkpoints;
    match operation {
        0 => {
            let opened = checkpointer.open(&scope("t"), At::Latest).await?.unwrap();
            let tree = StateBackend::from_snapshot(&opened.state);
            tree.write("/new", "new").await?;
            checkpointer.put(&scope("t"), &tree.snapshot(), &PutOptions::new().with_head(opened.head)).await.map(drop)
        }
        1 => checkpointer.restore(&scope("t"), listed[3].id, &PutOptions::new()).await.map(drop),
        2 => checkpointer.fork(&scope("t"), listed[2].id.into(), "u", &PutOptions::new()).await.map(drop),
        3 => checkpointer.copy(&scope("t"), "u").await.map(drop),
        4 => checkpointer.prune(&scope("t"), &PruneOptions::new().with_keep_last(2)).await.map(drop),
        5 => {
            checkpointer.prune(&scope("t"), &PruneOptions::new().with_keep_last(2)).await?;
            checkpointer.sweep(&scope("t"), false).await.map(drop)
        }
        _ => checkpointer.delete(&scope("t")).await,
    }
}

#[tokio::test]
async fn every_listed_checkpoint_opens_after_any_fault() {
    for (operation, fault, skipped) in (0..7)
        .flat_map(|operation| FAULTS.map(|fault| (operation, fault)))
        .flat_map(|(operation, fault)| [(operation, fault, 0), (operation, fault, 1), (operation, fault, 2), (operation, fault, 3)])
    {
        let case = format!("operation {operation}, {fault:?} the effect of commit {skipped}");
        let store = Watched::default();
        let keeper = checkpointer(&store);
        let tree = StateBackend::new();
        let (mut head, mut history) = (None, BTreeMap::new());
        for round in 0..6 {
            tree.write(&format!("/d/f{}", round % 2), format!("{round}")).await.unwrap();
            tree.write("/same", "same").await.unwrap();
            let saved = keeper.put(&scope("t"), &tree.snapshot(), &PutOptions::new().with_head(head)).await.unwrap();
            history.insert(saved.checkpoint.id, read(&tree.snapshot()).await);
            head = saved.head;
        }
        store.fail_commits(skipped, 1, fault);
        let ended = act(&keeper, operation).await;
        assert!(ended.as_ref().is_err_and(|error| error.may_have_effect()) || ended.is_ok(), "{case}: {ended:?}");
        store.heal();
        for thread in ["t", "u"] {
            let listed = keeper.list(&scope(thread), &ListOptions::new()).await.unwrap().checkpoints;
            let latest = keeper.get(&scope(thread), At::Latest).await.unwrap();
            assert_eq!(latest.map(|saved| saved.checkpoint), listed.first().cloned(), "{case}");
            for checkpoint in listed {
                let files = read(&keeper.open(&scope(thread), checkpoint.id.into()).await.unwrap().unwrap().state).await;
                if let Some(known) = history.get(&checkpoint.id) {
                    assert_eq!(files, *known, "{case}");
                }
            }
        }
        // A sweep removes the leftovers, and nothing else.
        keeper.sweep(&scope("t"), false).await.unwrap_or_else(|error| panic!("{case}: {error:?}"));
        assert_eq!(keeper.sweep(&scope("t"), false).await.unwrap().bodies, 0);
        for thread in ["t", "u"] {
            for checkpoint in keeper.list(&scope(thread), &ListOptions::new()).await.unwrap().checkpoints {
                read(&keeper.open(&scope(thread), checkpoint.id.into()).await.unwrap().unwrap().state).await;
            }
        }
    }
}
