//! Copies that are interrupted and resumed.

use super::{FailingAfter, assert_same, filled, is_note, refused, rows, space};
use crate::stores::wrapped::{Wrapped, Wrapper};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use treehold::ErrorKind;
use treehold::store::{Batch, COPY_NAMESPACE, CopyOptions, MemoryStore, Namespace, Store, copy};

/// Interrupted after any commit, before or after its effect, a copy resumes, and sends again only what no note says.
#[tokio::test]
async fn interrupted_copy_resumes() {
    let source = filled(30).await;
    let options = CopyOptions::new().with_batch_bytes(300);
    for after_effect in [false, true] {
        for commits in 0.. {
            let target = Arc::new(MemoryStore::new());
            let failing = Wrapped::new(target.clone(), FailingAfter { commits: AtomicUsize::new(commits), after_effect });
            let Err(error) = copy(&source, &failing, &options, |_| {}).await else {
                assert!(commits > 12, "there are many batches: {commits}");
                break;
            };
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let note = Namespace::new(COPY_NAMESPACE).unwrap();
            let is_half = target.get(&note, "note").await.unwrap().is_some();
            let there = rows(&*target).await.iter().filter(|(namespace, _)| !is_note(namespace)).count() as u64;
            if there == 31 && !is_half {
                // The note is gone, so the copy was complete. Only fences may be left, which expire.
                let mut left = rows(&*target).await;
                left.retain(|(namespace, _)| !is_note(namespace));
                assert_eq!(left, rows(&source).await);
                continue;
            }
            let report = copy(&source, &*target, &options, |_| {}).await.unwrap();
            assert_eq!((report.settled, report.rows), (true, 31), "after {commits}: {report:?}");
            // The rows since the last note are sent again: at most those of a batch, and the first ones have few bytes.
            assert!((31 - there..31 - there + 14).contains(&report.sent), "after {commits}, with {there} there: {report:?}");
            assert_eq!(report.resumed, is_half);
            assert_same(&source, &*target).await;
        }
    }
}

#[tokio::test]
async fn unfinished_copy_cannot_be_source_or_target_of_another() {
    let source = filled(30).await;
    let half = Arc::new(MemoryStore::new());
    let options = CopyOptions::new().with_batch_bytes(300);
    let failing = Wrapped::new(half.clone(), FailingAfter { commits: AtomicUsize::new(5), after_effect: false });
    copy(&source, &failing, &options, |_| {}).await.unwrap_err();
    let error = refused(&*half, &MemoryStore::new()).await;
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    struct Named;
    impl Wrapper for Named {
        fn name(&self) -> Option<&str> {
            Some("sqlite:other.db")
        }
    }
    let other = Wrapped::new(Arc::new(filled(4).await), Named);
    let error = refused(&other, &*half).await;
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.message().contains("`memory`") && error.message().contains("`sqlite:other.db`"), "{error}");
}

/// With `onto`, rows that were sent and then lost by the source are removed from the target, while the target's own rows stay, even if the
/// copy is interrupted in between.
#[tokio::test]
async fn onto_removes_sent_rows_that_the_source_lost() {
    for commits in 1..16 {
        let (source, target) = (filled(30).await, Arc::new(MemoryStore::new()));
        for kept in ["a", "0"] {
            target.commit(Batch::new().put(&space(kept), "own", "stays")).await.unwrap();
        }
        let options = CopyOptions::new().with_batch_bytes(300).with_onto(true);
        let failing = Wrapped::new(target.clone(), FailingAfter { commits: AtomicUsize::new(commits), after_effect: true });
        if copy(&source, &failing, &options, |_| {}).await.is_ok() {
            panic!("there are more batches than {commits}");
        }
        for lost in ["a", "mortal"] {
            source.commit(Batch::new().delete_prefix(&space(lost), "")).await.unwrap();
        }
        let report = copy(&source, &*target, &options, |_| {}).await.unwrap();
        assert!(report.settled && report.resumed && report.left == 2, "after {commits}: {report:?}");
        let mut there = rows(&*target).await;
        there.retain(|(_, item)| item.key != "own");
        assert_eq!(there, rows(&source).await, "after {commits}");
    }
}

#[tokio::test]
async fn resumed_copy_must_keep_its_mode() {
    let source = filled(30).await;
    for onto in [false, true] {
        let target = Arc::new(MemoryStore::new());
        let options = CopyOptions::new().with_batch_bytes(300).with_onto(onto).with_source_id("redis://host?prefix=a");
        let failing = Wrapped::new(target.clone(), FailingAfter { commits: AtomicUsize::new(5), after_effect: false });
        copy(&source, &failing, &options, |_| {}).await.unwrap_err();
        let before = rows(&*target).await;
        let error = copy(&source, &*target, &options.clone().with_onto(!onto), |_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("--onto"), "{error}");
        let error = copy(&source, &*target, &options.clone().with_source_id("redis://host?prefix=b"), |_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(rows(&*target).await, before);
        assert!(copy(&source, &*target, &options, |_| {}).await.unwrap().settled);
    }
}
