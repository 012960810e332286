//! Copies into one store at the same time.

use super::{assert_same, copied, filled, is_note, rows, space};
use crate::stores::wrapped::{Wrapped, Wrapper};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold::ops::Version;
use treehold::store::{Batch, COPY_NAMESPACE, CopyOptions, MemoryStore, Namespace, Store, copy};
use treehold::{Error, ErrorKind, Result};

#[tokio::test]
async fn two_copies_into_one_store_do_not_mix() {
    let (source, target) = (filled(30).await, MemoryStore::new());
    let options = CopyOptions::new().with_batch_bytes(300);
    let (one, other) = tokio::join!(copy(&source, &target, &options, |_| {}), copy(&source, &target, &options, |_| {}));
    let errors: Vec<Error> = [one, other].into_iter().filter_map(std::result::Result::err).collect();
    assert!(errors.iter().all(|error| matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)), "{errors:?}");
    if target.get(&Namespace::new(COPY_NAMESPACE).unwrap(), "note").await.unwrap().is_some() {
        copied(&source, &target).await;
    }
    assert_same(&source, &target).await;
}

/// Holds one commit back until it is told to go on.
struct Stalling {
    commits: AtomicUsize,
    reached: tokio::sync::Notify,
    goes_on: tokio::sync::Notify,
}

#[async_trait]
impl Wrapper for Stalling {
    async fn commit(&self, inner: &dyn Store, batch: Batch) -> Result<Vec<Version>> {
        if self.commits.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.reached.notify_one();
            self.goes_on.notified().await;
        }
        inner.commit(batch).await
    }
}

/// A copy stalls at any of its commits, and another one finishes meanwhile. The first then writes nothing that it read before.
#[tokio::test]
async fn copy_that_was_taken_over_writes_nothing_more() {
    let options = CopyOptions::new().with_batch_bytes(300);
    let mut refusals = 0;
    for commits in 0.. {
        let (source, target) = (filled(30).await, Arc::new(MemoryStore::new()));
        let stalling = Stalling { commits: AtomicUsize::new(commits), reached: Default::default(), goes_on: Default::default() };
        let stalled = Wrapped::new(target.clone(), stalling);
        let mut first = Box::pin(copy(&source, &stalled, &options, |_| {}));
        tokio::select! {
            biased;
            () = stalled.wrapper().reached.notified() => {}
            done = &mut first => {
                assert!(done.unwrap().settled && commits > 25, "there are many commits: {commits}");
                break;
            }
        }
        source.commit(Batch::new().put(&space("a"), "k000", "newer").delete(&space("a"), "k003")).await.unwrap();
        source.commit(Batch::new().put(&space("z"), "k002", "newer").put(&space("z"), "k999", "new")).await.unwrap();
        let second = copy(&source, &*target, &options, |_| {}).await;
        stalled.wrapper().goes_on.notify_one();
        let Ok(second) = second else {
            // Only fences were left to remove.
            assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists, "after {commits}");
            assert!(first.await.unwrap().settled, "after {commits}");
            continue;
        };
        assert!(second.settled, "after {commits}: {second:?}");
        match first.await {
            Ok(report) => assert!(report.settled, "after {commits}: {report:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "after {commits}: {error}");
                refusals += 1;
            }
        }
        let mut there = rows(&*target).await;
        there.retain(|(namespace, _)| !is_note(namespace));
        assert_eq!(there, rows(&source).await, "after {commits}");
    }
    assert!(refusals > 15, "most are refused: {refusals}");
}

/// As above, but the first copy wakes while the second stalls at one of its commits. Whichever of them says that it is done has copied all.
#[tokio::test]
async fn copies_that_stall_in_turn_do_not_mix() {
    let options = CopyOptions::new().with_batch_bytes(300);
    let stalling = |target: &Arc<MemoryStore>, commits: usize| {
        let wrapper = Stalling { commits: AtomicUsize::new(commits), reached: Default::default(), goes_on: Default::default() };
        Wrapped::new(target.clone(), wrapper)
    };
    let (mut firsts, mut seconds) = (0, 0);
    let mut is_over = false;
    for commits in (0..).step_by(3) {
        for later in 0.. {
            let what = format!("after {commits} and {later}");
            let (source, target) = (filled(30).await, Arc::new(MemoryStore::new()));
            let (one, other) = (stalling(&target, commits), stalling(&target, later));
            let mut first = Box::pin(copy(&source, &one, &options, |_| {}));
            is_over = tokio::select! {
                biased;
                () = one.wrapper().reached.notified() => false,
                done = &mut first => done.unwrap().settled,
            };
            if is_over {
                break;
            }
            let before = rows(&source).await;
            source.commit(Batch::new().put(&space("a"), "k000", "newer").delete(&space("a"), "k003")).await.unwrap();
            source.commit(Batch::new().put(&space("z"), "k002", "newer").put(&space("z"), "k999", "new")).await.unwrap();
            let now = rows(&source).await;
            let there = async || {
                let mut there = rows(&*target).await;
                there.retain(|(namespace, _)| !is_note(namespace));
                there
            };
            let mut second = Box::pin(copy(&source, &other, &options, |_| {}));
            tokio::select! {
                biased;
                () = other.wrapper().reached.notified() => {}
                // It is over before it stalls.
                done = &mut second => {
                    drop(done.map_err(|error| assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{what}")));
                    break;
                }
            }
            one.wrapper().goes_on.notify_one();
            let mut settled = 0;
            match first.await {
                // It may have compared both sides before the change.
                Ok(report) => {
                    assert!(report.settled && [&before, &now].contains(&&there().await), "{what}: {report:?}");
                    (settled, firsts) = (settled + 1, firsts + 1);
                }
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists), "{what}: {error}"),
            }
            other.wrapper().goes_on.notify_one();
            match second.await {
                Ok(report) => {
                    assert!(report.settled && there().await == now, "{what}: {report:?}");
                    (settled, seconds) = (settled + 1, seconds + 1);
                }
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists), "{what}: {error}"),
            }
            if settled == 0 {
                copied(&source, &*target).await;
                assert_eq!(there().await, now, "{what}");
            }
        }
        if is_over {
            break;
        }
    }
    assert!(firsts > 5 && seconds > 50, "{firsts} and {seconds}");
}
