//! The bases of merges, and the checkpoints that merges leave.

use super::{all, files, path, scope};
use treehold::ErrorKind;
use treehold::checkpoint::{
    At, MERGED_CHECKPOINT, MERGED_THREAD, MergeOptions, MergeStatus, MergeStrategy, PruneOptions, PutOptions, merge,
};

#[tokio::test]
async fn merge_is_one_checkpoint_that_records_its_source() {
    for threads in all() {
        let base = threads.edit("main", &[("/a", Some("a"))]).await;
        threads.fork("main", "fork").await;
        let theirs = threads.edit("fork", &[("/b", Some("b"))]).await;
        let options = MergeOptions::new().with_label("merged").with_metadata("why", "done");
        let outcome = threads.merge("fork", "main", &options).await.unwrap();
        let made = outcome.checkpoint.unwrap();
        assert_eq!((outcome.base.thread.as_str(), outcome.base.id), ("main", base));
        assert_eq!(made.parent.clone().unwrap().id, base, "a thread without changes gets a checkpoint too");
        assert_eq!(made.merged.as_ref().unwrap(), &outcome.theirs);
        assert_eq!((outcome.theirs.thread.as_str(), outcome.theirs.id), ("fork", theirs));
        assert!(made.id > theirs && made.label.as_deref() == Some("merged"));
        let noted = [("why", "done"), (MERGED_THREAD, "fork"), (MERGED_CHECKPOINT, &theirs.to_string())];
        assert!(noted.iter().all(|(name, value)| made.metadata[*name] == *value), "{:?}", made.metadata);
        let read = threads.0.get(&scope("main"), At::Latest).await.unwrap().unwrap();
        assert_eq!(read.checkpoint, made, "the stored checkpoint equals the returned one");
    }
}

#[tokio::test]
async fn threads_can_be_merged_back_and_forth() {
    for threads in all() {
        threads.edit("main", &[("/t", Some("1\n2\n3\n4\n5\n"))]).await;
        threads.fork("main", "fork").await;
        assert_eq!(
            threads.merge("fork", "main", &MergeOptions::new()).await.unwrap().status,
            MergeStatus::UpToDate,
            "a fork without changes has nothing to merge"
        );
        let mut count = threads.count("main").await;
        for round in 0..4 {
            let content = format!("{round}\n2\n3\n4\n5\n");
            threads.edit("fork", &[("/t", Some(&content)), ("/f", Some(&content))]).await;
            assert_eq!(threads.merge("fork", "main", &MergeOptions::new()).await.unwrap().status, MergeStatus::Merged);
            assert_eq!(threads.merge("fork", "main", &MergeOptions::new()).await.unwrap().status, MergeStatus::UpToDate);
            threads.edit("main", &[("/m", Some(&content))]).await;
            assert_eq!(threads.merge("main", "fork", &MergeOptions::new()).await.unwrap().status, MergeStatus::Merged);
            assert_eq!(threads.files("main").await, threads.files("fork").await);
            count += 2;
            assert_eq!(threads.count("main").await, count);
        }
    }
}

#[tokio::test]
async fn two_forks_merge_into_their_thread_and_into_each_other() {
    for threads in all() {
        threads.edit("main", &[("/t", Some("1\n2\n3\n4\n5\n"))]).await;
        threads.fork("main", "one").await;
        threads.fork("main", "two").await;
        threads.edit("one", &[("/t", Some("one\n2\n3\n4\n5\n")), ("/one", Some("1"))]).await;
        threads.edit("two", &[("/t", Some("1\n2\n3\n4\ntwo\n")), ("/two", Some("2"))]).await;
        threads.merge("one", "two", &MergeOptions::new()).await.unwrap();
        let outcome = threads.merge("two", "main", &MergeOptions::new()).await.unwrap();
        assert_eq!((outcome.status, outcome.conflicts_total), (MergeStatus::Merged, 0));
        let expected = files(&[("/t", "one\n2\n3\n4\ntwo\n"), ("/one", "1"), ("/two", "2")]);
        assert_eq!(threads.files("main").await, expected);
        let outcome = threads.merge("one", "main", &MergeOptions::new()).await.unwrap();
        assert_eq!(outcome.status, MergeStatus::UpToDate, "the other merge has brought these changes");
    }
}

/// Each merges the other's earlier state, so there are two common ancestors, neither of which descends from the other. If only the newer
/// one were the base, a change that one side had reverted would be lost without a conflict.
#[tokio::test]
async fn criss_cross_merge_requires_a_named_base() {
    for threads in all() {
        threads.edit("main", &[("/a", Some("a")), ("/b", Some("b"))]).await;
        threads.fork("main", "fork").await;
        let ours = threads.edit("main", &[("/a", Some("A"))]).await;
        let theirs = threads.edit("fork", &[("/b", Some("B"))]).await;
        merge(&*threads.0, &scope("main"), ("fork", At::Id(theirs)), &MergeOptions::new()).await.unwrap();
        merge(&*threads.0, &scope("fork"), ("main", At::Id(ours)), &MergeOptions::new()).await.unwrap();
        assert_eq!(threads.files("main").await, threads.files("fork").await);
        threads.edit("fork", &[("/c", Some("C")), ("/a", Some("a"))]).await;
        let error = threads.merge("fork", "main", &MergeOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous);
        assert!(error.message().contains(&ours.to_string()) && error.message().contains(&theirs.to_string()), "{error}");
        let outcome = threads.merge("fork", "main", &MergeOptions::new().with_base(ours)).await.unwrap();
        assert_eq!((outcome.status, outcome.conflicts_total), (MergeStatus::Merged, 0));
        assert_eq!(threads.files("main").await, files(&[("/a", "a"), ("/b", "B"), ("/c", "C")]));
    }
}

#[tokio::test]
async fn restore_is_merged_like_any_other_change() {
    for threads in all() {
        let first = threads.edit("main", &[("/a", Some("one"))]).await;
        threads.edit("main", &[("/a", Some("two"))]).await;
        threads.fork("main", "fork").await;
        threads.edit("fork", &[("/b", Some("b"))]).await;
        threads.0.restore(&scope("main"), first, &PutOptions::new()).await.unwrap();
        threads.merge("fork", "main", &MergeOptions::new()).await.unwrap();
        assert_eq!(threads.files("main").await, files(&[("/a", "one"), ("/b", "b")]));
    }
}

#[tokio::test]
async fn undone_merge_can_be_repeated() {
    for threads in all() {
        threads.edit("main", &[("/a", Some("one"))]).await;
        threads.fork("main", "fork").await;
        threads.edit("fork", &[("/b", Some("b"))]).await;
        let before = threads.edit("main", &[("/m", Some("m"))]).await;
        for _ in 0..2 {
            assert_eq!(threads.merge("fork", "main", &MergeOptions::new()).await.unwrap().status, MergeStatus::Merged);
            assert_eq!(threads.merge("fork", "main", &MergeOptions::new()).await.unwrap().status, MergeStatus::UpToDate);
            threads.0.restore(&scope("main"), before, &PutOptions::new()).await.unwrap();
            assert_eq!(threads.files("main").await, files(&[("/a", "one"), ("/m", "m")]));
        }
        // A fork of the merged state has the merge, whose undoing is a change of main.
        let made = threads.merge("fork", "main", &MergeOptions::new()).await.unwrap().checkpoint.unwrap();
        threads.fork("main", "later").await;
        threads.edit("later", &[("/l", Some("l"))]).await;
        threads.0.restore(&scope("main"), before, &PutOptions::new()).await.unwrap();
        threads.merge("later", "main", &MergeOptions::new()).await.unwrap();
        assert_eq!(threads.files("main").await, files(&[("/a", "one"), ("/l", "l"), ("/m", "m")]));
        // A restore of the merged state has the merge again.
        threads.0.restore(&scope("main"), made.id, &PutOptions::new()).await.unwrap();
        assert_eq!(threads.merge("fork", "main", &MergeOptions::new()).await.unwrap().status, MergeStatus::UpToDate);
    }
}

#[tokio::test]
async fn base_older_than_one_page_of_checkpoints_is_found() {
    for threads in all() {
        let base = threads.edit("main", &[("/a", Some("a"))]).await;
        threads.fork("main", "fork").await;
        for round in 0..150 {
            threads.edit("main", &[("/m", Some(&round.to_string()))]).await;
            threads.edit("fork", &[("/f", Some(&round.to_string()))]).await;
        }
        let outcome = threads.merge("fork", "main", &MergeOptions::new()).await.unwrap();
        assert_eq!((outcome.status, outcome.base.id), (MergeStatus::Merged, base));
    }
}

#[tokio::test]
async fn pruned_base_is_reported_and_another_can_be_named() {
    for threads in all() {
        let old = threads.edit("main", &[("/t", Some("1\n2\n3\n"))]).await;
        threads.edit("main", &[("/other", Some("x"))]).await;
        threads.fork("main", "fork").await;
        threads.edit("main", &[("/m", Some("m"))]).await;
        threads.edit("fork", &[("/f", Some("f"))]).await;
        threads.0.prune(&scope("main"), &PruneOptions::new().with_keep_last(1)).await.unwrap();
        let error = threads.merge("fork", "main", &MergeOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("was pruned; name a checkpoint"), "{error}");
        assert_eq!(threads.merge("fork", "main", &MergeOptions::new().with_base(old)).await.unwrap_err().kind(), ErrorKind::NotFound);
        // The fork's first checkpoint has the tree of the one that was pruned.
        let first = threads.0.list(&scope("fork"), &Default::default()).await.unwrap().checkpoints.pop().unwrap().id;
        let outcome = threads.merge("fork", "main", &MergeOptions::new().with_base(first)).await.unwrap();
        assert_eq!((outcome.status, outcome.base.thread.as_str()), (MergeStatus::Merged, "fork"));
        let expected = [("/t", "1\n2\n3\n"), ("/other", "x"), ("/m", "m"), ("/f", "f")];
        assert_eq!(threads.files("main").await, files(&expected));
        assert_eq!(
            threads.merge("fork", "main", &MergeOptions::new()).await.unwrap().status,
            MergeStatus::UpToDate,
            "the merge is the base now"
        );
    }
}

#[tokio::test]
async fn pruned_checkpoint_other_than_the_base_is_skipped() {
    for threads in all() {
        threads.edit("main", &[("/a", Some("a"))]).await;
        let base = threads.edit("main", &[("/a", Some("b"))]).await;
        threads.fork("main", "fork").await;
        threads.edit("fork", &[("/f", Some("f"))]).await;
        threads.edit("fork", &[("/f", Some("ff"))]).await;
        threads.edit("fork", &[("/f", Some("fff"))]).await;
        let newest = threads.0.list(&scope("fork"), &Default::default()).await.unwrap().checkpoints.len() as u64;
        threads.0.prune(&scope("fork"), &PruneOptions::new().with_keep_last(1)).await.unwrap();
        assert_eq!((newest, threads.count("fork").await), (4, 1));
        // The fork's first checkpoint is gone, and with it the record of its origin.
        let error = threads.merge("fork", "main", &MergeOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let outcome = threads.merge("fork", "main", &MergeOptions::new().with_base(base)).await.unwrap();
        assert_eq!(outcome.status, MergeStatus::Merged);
    }
}

#[tokio::test]
async fn threads_without_a_common_ancestor_are_refused() {
    for threads in all() {
        threads.edit("main", &[("/a", Some("a"))]).await;
        threads.edit("other", &[("/a", Some("a"))]).await;
        let error = threads.merge("other", "main", &MergeOptions::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("have no common ancestor"), "{error}");
        for (source, into) in [("none", "main"), ("main", "none")] {
            let error = threads.merge(source, into, &MergeOptions::new()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.message().contains("`none`"), "{error}");
        }
    }
}

#[tokio::test]
async fn copied_thread_is_merged_like_its_source() {
    for threads in all() {
        threads.edit("main", &[("/a", Some("a"))]).await;
        let base = threads.edit("main", &[("/b", Some("b"))]).await;
        threads.0.copy(&scope("main"), "copy").await.unwrap();
        threads.edit("main", &[("/m", Some("m"))]).await;
        threads.edit("copy", &[("/c", Some("c"))]).await;
        let outcome = threads.merge("copy", "main", &MergeOptions::new()).await.unwrap();
        assert_eq!((outcome.status, outcome.base.id), (MergeStatus::Merged, base));
        assert_eq!(threads.files("main").await, files(&[("/a", "a"), ("/b", "b"), ("/m", "m"), ("/c", "c")]));
    }
}

#[tokio::test]
async fn merge_onto_an_outdated_head_conflicts_and_writes_nothing() {
    for threads in all() {
        threads.edit("main", &[("/a", Some("a"))]).await;
        let head = threads.0.get(&scope("main"), At::Latest).await.unwrap().unwrap().head;
        threads.fork("main", "fork").await;
        threads.edit("fork", &[("/a", Some("f"))]).await;
        threads.edit("main", &[("/a", Some("m"))]).await;
        let options = MergeOptions::new().with_head(head).with_strategy(MergeStrategy::Theirs);
        let (before, count) = (threads.files("main").await, threads.count("main").await);
        assert_eq!(threads.merge("fork", "main", &options).await.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!((threads.files("main").await, threads.count("main").await), (before, count));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_merges_are_each_complete_or_a_conflict() {
    for threads in all() {
        threads.edit("main", &[("/a", Some("a"))]).await;
        let mut merging = Vec::new();
        for fork in 0..8 {
            let name = format!("fork{fork}");
            threads.fork("main", &name).await;
            threads.edit(&name, &[(&format!("/{name}/x"), Some("x")), (&format!("/{name}/y"), Some("y"))]).await;
            let threads = threads.clone();
            merging.push(tokio::spawn(async move { (threads.merge(&name, "main", &MergeOptions::new()).await, name) }));
        }
        let mut merged = 0;
        for ended in merging {
            let (ended, name) = ended.await.unwrap();
            let files = threads.files("main").await;
            let [x, y] = ["x", "y"].map(|file| files.contains_key(&format!("/{name}/{file}")));
            match ended {
                Ok(outcome) => assert_eq!((outcome.status, x, y), (MergeStatus::Merged, true, true)),
                Err(error) => assert_eq!((error.kind(), x, y), (ErrorKind::Conflict, false, false)),
            }
            merged += usize::from(x);
        }
        assert!(merged > 0);
        assert_eq!(threads.count("main").await, 1 + merged);
    }
}

/// Merged content is read from the fork's rows, and stays when the fork is removed.
#[tokio::test]
async fn merged_content_survives_removal_and_sweep_of_the_fork() {
    for threads in all() {
        threads.edit("main", &[("/a", Some("a"))]).await;
        threads.fork("main", "fork").await;
        threads.edit("fork", &[("/d/f", Some("of the fork")), ("/a", None)]).await;
        threads.merge("fork", "main", &MergeOptions::new()).await.unwrap();
        threads.0.delete(&scope("fork")).await.unwrap();
        threads.0.sweep(&scope("main"), false).await.unwrap();
        assert_eq!(threads.files("main").await, files(&[("/d/", ""), ("/d/f", "of the fork")]));
        let node = threads.0.open(&scope("main"), At::Latest).await.unwrap().unwrap().state.node(&path("/d/f")).await.unwrap().unwrap();
        assert!(node.version().is_some());
    }
}
