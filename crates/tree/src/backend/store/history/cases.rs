//! Histories in particular situations: writers without one, lost contents, bounds, and the time before the first change.

use super::laws::{namespace, path, store};
use super::*;
use crate::backend::{Backend, BackendExt, RecordedCall};
use bytes::Bytes;
use jiff::Timestamp;
use std::sync::atomic::Ordering;
use treehold_core::ops::{
    ApplyOptions, Author, Change, Failure, GlobOptions, GrepOptions, LsOptions, ReadOptions, SearchOptions, StatOptions, WriteMode,
};
use treehold_core::path::VfsPathBuf;
use treehold_store::{Batch, BatchWrite, ScanOptions};

#[tokio::test]
async fn contents_are_kept_once_for_each_path_and_pruned_with_their_revisions() {
    let (store, micros) = store();
    let tree = StoreBackend::new(store.clone(), namespace()).with_history(HistoryPolicy::new().with_keep_last(3));
    let history = Namespace::parse("ada/notes/_treehold/history").expect("legal");
    let contents = async || {
        let page = store.scan(&history, ScanOptions::new().with_prefix("c")).await.expect("scanned");
        page.entries.len()
    };
    for (content, kept) in [("a", 0), ("b", 1), ("a", 2), ("b", 2), ("c", 2), ("d", 3), ("e", 3)] {
        micros.fetch_add(1, Ordering::Relaxed);
        tree.write("/f", content).await.expect("written");
        assert_eq!(contents().await, kept, "{content}");
    }
    let log = tree.log(&path("/f")).await.expect("readable");
    assert_eq!(log.iter().map(|revision| revision.number).collect::<Vec<_>>(), [7, 6, 5, 4]);
    let error = tree.at(Moment::Number(3)).expect("a history").read_bytes("/f").await.expect_err("pruned");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn history_expires_and_says_so() {
    let (store, micros) = store();
    let policy = HistoryPolicy::new().with_older_than(Duration::from_secs(60));
    let tree = StoreBackend::new(store.clone(), namespace()).with_history(policy);
    let start = micros.load(Ordering::Relaxed) - 3_600_000_000;
    micros.store(start, Ordering::Relaxed);
    for content in ["one", "two"] {
        micros.fetch_add(1_000_000, Ordering::Relaxed);
        tree.write("/f", content).await.expect("written");
    }
    let before = Timestamp::from_microsecond(start + 1_500_000).expect("a time");
    micros.fetch_add(61_000_000, Ordering::Relaxed);
    let log = tree.log(&path("/f")).await.expect("readable");
    assert_eq!((log.len(), log[0].is_recorded), (1, false), "what is there now is all that is known");
    let past = tree.at(Moment::Time(before)).expect("a history");
    let error = past.read_bytes("/f").await.expect_err("not kept");
    assert!(error.kind() == ErrorKind::NotFound && error.message().contains("does not reach back"), "{error}");
    assert!(past.glob(VfsPath::ROOT, &GlobOptions::new("*")).await.is_err());
    // Every row of the history expires, except the one that says since when it is complete.
    let history = Namespace::parse("ada/notes/_treehold/history").expect("legal");
    let left = store.scan(&history, ScanOptions::new()).await.expect("scanned").entries;
    assert_eq!(left.iter().map(|entry| entry.key()).collect::<Vec<_>>(), ["s"]);
}

/// The clocks of several servers of one store differ.
#[tokio::test]
async fn times_of_a_log_increase_although_a_clock_goes_back() {
    let (store, micros) = store();
    let tree = StoreBackend::new(store, namespace()).with_history(HistoryPolicy::new());
    let start = micros.load(Ordering::Relaxed);
    for (seconds, content) in [(-10, "one"), (-20, "two"), (-5, "three")] {
        micros.store(start + seconds * 1_000_000, Ordering::Relaxed);
        tree.write("/f", content).await.expect("written");
    }
    let log = tree.log(&path("/f")).await.expect("readable");
    assert!(log.is_sorted_by_key(|revision| std::cmp::Reverse(revision.at)), "{log:?}");
    for (seconds, content) in [(-9, "two"), (-4, "three")] {
        let time = Timestamp::from_microsecond(start + seconds * 1_000_000).expect("a time");
        let past = tree.at(Moment::Time(time)).expect("a history");
        assert_eq!(past.read_bytes("/f").await.expect("kept"), content, "{seconds}");
    }
}

#[tokio::test]
async fn changes_of_writers_without_history_are_found_later() {
    let (store, micros) = store();
    let plain = StoreBackend::new(store.clone(), namespace());
    let tree = plain.clone().with_history(HistoryPolicy::new());
    let next = || micros.fetch_add(1_000, Ordering::Relaxed);
    plain.write("/f", "old").await.expect("written");
    next();
    tree.write("/f", "one").await.expect("written");
    next();
    plain.write("/f", "two").await.expect("written");
    next();
    let log = tree.log(&path("/f")).await.expect("readable");
    let told: Vec<_> = log.iter().map(|revision| (revision.number, revision.is_recorded, revision.is_kept)).collect();
    assert_eq!(told, [(3, false, true), (2, true, false), (1, false, true)]);
    tree.delete("/f").await.expect("deleted");
    next();
    for (moment, expected) in [(Moment::Number(1), Some("old")), (Moment::Number(2), None), (Moment::Number(3), Some("two"))] {
        let read = tree.at(moment).expect("a history").read_text("/f").await;
        assert_eq!(read.ok().as_deref(), expected, "{moment}");
    }
    plain.write("/f", "again").await.expect("written");
    plain.delete("/f").await.expect("deleted");
    assert!(tree.log(&path("/f")).await.expect("readable")[0].version.is_none());
}

#[tokio::test]
async fn moves_keep_the_past_at_the_old_path_and_name_the_other() {
    let (store, micros) = store();
    let tree = StoreBackend::new(store, namespace()).with_history(HistoryPolicy::new());
    for file in ["/d/a", "/d/e/b"] {
        tree.write(file, file).await.expect("written");
    }
    micros.fetch_add(1_000, Ordering::Relaxed);
    tree.rename("/d", "/n").await.expect("moved");
    let old = tree.log(&path("/d/e/b")).await.expect("readable");
    assert_eq!((old.len(), old[0].exists(), old[0].other.clone()), (2, false, Some(path("/n/e/b"))));
    let new = tree.log(&path("/n/e/b")).await.expect("readable");
    assert_eq!((new.len(), new[0].exists(), new[0].other.clone()), (1, true, Some(path("/d/e/b"))));
    assert_eq!(tree.at(Moment::Back(1)).expect("a history").read_text("/d/e/b").await.expect("kept"), "/d/e/b");
    let error = tree.at(Moment::Back(1)).expect("a history").ls(&path("/n"), &Default::default()).await.expect_err("a directory");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn damaged_list_prevents_no_change() {
    let (store, _) = store();
    let tree = StoreBackend::new(store.clone(), namespace()).with_history(HistoryPolicy::new());
    tree.write("/f", "one").await.expect("written");
    let history = Namespace::parse("ada/notes/_treehold/history").expect("legal");
    store.commit(Batch::new().put(&history, "pf", "damaged")).await.expect("put");
    assert_eq!(tree.log(&path("/f")).await.expect_err("damaged").kind(), ErrorKind::Corrupt);
    tree.write("/f", "two").await.expect("written");
    assert_eq!(tree.log(&path("/f")).await.expect("readable").len(), 2);
    assert_eq!(tree.at(Moment::Back(1)).expect("a history").read_text("/f").await.expect("kept"), "one");
}

#[tokio::test]
async fn tree_without_history_says_so() {
    let (store, _) = store();
    let tree = StoreBackend::new(store.clone(), namespace());
    assert_eq!(tree.at(Moment::Back(0)).expect_err("none").kind(), ErrorKind::Unsupported);
    let deep = Namespace::new(vec!["a"; treehold_store::NAMESPACE_COMPONENTS_MAX]).expect("legal");
    let tree = StoreBackend::new(store, deep).with_history(HistoryPolicy::new());
    tree.write("/f", "one").await.expect("a tree without room for a history");
    assert_eq!(tree.log(&path("/f")).await.expect_err("none").kind(), ErrorKind::Unsupported);
}

/// Regression: the revision that a count names was computed with an overflow.
#[tokio::test]
async fn moments_with_huge_counts_name_no_version() {
    let (store, _) = store();
    let tree = StoreBackend::new(store, namespace()).with_history(HistoryPolicy::new());
    tree.write("/d/f", "one").await.expect("written");
    let counts = [1, usize::MAX as u64 - 1, usize::MAX as u64, u64::MAX - 1, u64::MAX];
    for moment in counts.into_iter().flat_map(|count| [Moment::Back(count), Moment::Number(count.saturating_add(1))]) {
        let past = tree.at(moment).expect("a history");
        let file = path("/d/f");
        let (search, grep) = (SearchOptions::new("one"), GrepOptions::new("one"));
        let errors = [
            past.stat(&file, &StatOptions::new()).await.err(),
            past.read(&file, &ReadOptions::new()).await.err(),
            past.ls(&file, &LsOptions::new()).await.err(),
            past.glob(&file, &GlobOptions::new("*")).await.err(),
            past.grep(&file, &grep).await.err(),
            past.search(&file, &search).await.err(),
        ];
        for (operation, error) in errors.into_iter().enumerate() {
            assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::NotFound), "{moment} {operation}");
        }
    }
}

/// Regression: a search left such files out, and a grep failed as a whole.
#[tokio::test]
async fn searches_of_the_past_report_each_file_whose_content_is_lost() {
    let (store, micros) = store();
    let plain = StoreBackend::new(store.clone(), namespace());
    let tree = plain.clone().with_history(HistoryPolicy::new());
    let large = "needle\n".repeat(2 << 20);
    let files = [("/kept", "needle"), ("/replaced", "needle"), ("/large", &*large), ("/expired", "needle"), ("/d/.gitignore", "ignored")];
    for (file, content) in files {
        tree.write(file, content.to_owned()).await.expect("written");
    }
    tree.write("/d/ignored", "needle").await.expect("written");
    let then = Timestamp::from_microsecond(micros.load(Ordering::Relaxed)).expect("a time");
    micros.fetch_add(1_000, Ordering::Relaxed);
    for file in ["/replaced", "/large", "/d/.gitignore"] {
        plain.write(file, "by a writer without a history").await.expect("written");
    }
    tree.write("/expired", "new").await.expect("written");
    let history = Namespace::parse("ada/notes/_treehold/history").expect("legal");
    store.commit(Batch::new().delete_prefix(&history, "c")).await.expect("removed");
    let past = tree.at(Moment::Time(then)).expect("a history");
    let lost = |failures: &[Failure]| -> Vec<String> {
        assert!(failures.iter().all(|failure| failure.error.code == "not_found"), "{failures:?}");
        let mut paths: Vec<String> = failures.iter().map(|failure| failure.path.to_string()).collect();
        paths.sort();
        paths
    };
    let found = past.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.expect("searched");
    assert_eq!(found.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["/d/ignored", "/kept"]);
    assert_eq!(lost(&found.failures), ["/d/.gitignore", "/expired", "/large", "/replaced"]);
    let found = past.search(VfsPath::ROOT, &SearchOptions::new("needle")).await.expect("searched");
    let mut hits: Vec<&str> = found.hits.iter().map(|hit| hit.path.as_str()).collect();
    hits.sort_unstable();
    assert_eq!(hits, ["/d/ignored", "/kept"]);
    let failed = lost(&found.failures);
    assert!(["/expired", "/large", "/replaced"].iter().all(|path| failed.iter().any(|failed| failed == path)), "{failed:?}");
    let found = past.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.expect("listed");
    assert_eq!((found.entries.len(), lost(&found.failures)), (5, vec!["/d/.gitignore".to_owned()]), "{:?}", found.entries);
    for (file, _) in &files[1..4] {
        let error = past.grep(&path(file), &GrepOptions::new("needle")).await.expect_err("its content is lost");
        assert!(Forgotten::is_source_of(&error), "{file}: {error}");
        assert!(past.stat(&path(file), &StatOptions::new()).await.expect("known").size_bytes > 0, "{file}");
    }
}

/// Regression: a batch read everything that it replaced, however much that was.
#[tokio::test]
async fn batches_that_replace_or_move_too_much_are_refused() {
    let (store, _) = store();
    let tree = StoreBackend::new(store.clone(), namespace()).with_history(HistoryPolicy::new());
    let (count, size_bytes) = (40, 1 << 20);
    // Nothing is read: their contents are not as long as their records say, which would be an error.
    let record = treehold_core::file::FileRecord { size_bytes, modified_at_microseconds: None };
    for index in 0..count {
        let (namespace, key) = (namespace(), format!("{index:02}"));
        let write = BatchWrite::Put { namespace, key, meta: record.to_bytes(), value: Bytes::new(), time_to_live: None, created_at: None };
        store.commit(Batch { preconditions: Vec::new(), writes: vec![write] }).await.expect("put");
    }
    let paths: Vec<VfsPathBuf> = (0..count).map(|index| path(&format!("/{index:02}"))).collect();
    let write = |path: &VfsPathBuf| Change::Write { path: path.clone(), content: "new".into(), mode: WriteMode::Overwrite };
    let delete = |path: &VfsPathBuf| Change::Delete { path: path.clone(), recursive: false, expect: None };
    let append = |path: &VfsPathBuf| Change::Append { path: path.clone(), content: "new".into() };
    let changes: [&dyn Fn(&VfsPathBuf) -> Change; 3] = [&write, &delete, &append];
    for change in changes {
        let changes: Vec<Change> = paths.iter().map(change).collect();
        let error = tree.apply(&changes, &ApplyOptions::new()).await.expect_err("40 MiB");
        assert!(error.kind() == ErrorKind::TooLarge && error.message().contains("in parts"), "{error}");
    }
    let half: Vec<Change> = paths[..20].iter().map(write).collect();
    tree.apply(&half, &ApplyOptions::new()).await.expect("20 MiB");
    let plain = StoreBackend::new(store, Namespace::parse("ada/plain").expect("legal"));
    for directory in ["/a", "/b"] {
        plain.write(&format!("{directory}/f"), vec![b'x'; 20 << 20]).await.expect("written");
    }
    let rename = |from: &str| Change::Rename { from: path(from), to: path(&format!("{from}-moved")), overwrite: false };
    let error = plain.apply(&[rename("/a"), rename("/b")], &ApplyOptions::new()).await.expect_err("40 MiB");
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    plain.apply(&[rename("/a")], &ApplyOptions::new()).await.expect("20 MiB");
}

/// Applies one write by a call.
async fn call(tree: &StoreBackend, call: &str, file: &str, content: &str) -> RecordedCall {
    let mut author = Author::new();
    (author.user, author.call) = (Some("ada".to_owned()), Some(call.to_owned()));
    let write = Change::Write { path: path(file), content: content.to_owned().into(), mode: WriteMode::Overwrite };
    tree.apply(&[write], &ApplyOptions::new().with_extension(author.clone())).await.expect("written");
    RecordedCall { at: Timestamp::now(), author, paths: vec![path(file)], is_cut: false }
}

/// Regression: such an undo went back to before the first change of the call, and lost the change in between.
#[tokio::test]
async fn undo_of_a_call_with_a_foreign_change_in_between_is_a_conflict() {
    let (store, _) = store();
    let tree = StoreBackend::new(store, namespace()).with_history(HistoryPolicy::new());
    for (file, calls, conflicts) in
        [("/one", ["1", "1", "1"], false), ("/other", ["1", "2", "1"], true), ("/after", ["2", "1", "1"], false)]
    {
        let mut last = None;
        for (index, id) in calls.into_iter().enumerate() {
            last = Some(call(&tree, id, file, &format!("{index}")).await);
        }
        let reversal = tree.reversal(&last.expect("a call"), u64::MAX).await;
        assert_eq!(reversal.map(drop).map_err(|error| error.kind()).err(), conflicts.then_some(ErrorKind::Conflict), "{file}");
    }
}

#[tokio::test]
async fn undo_of_more_bytes_than_allowed_is_refused() {
    let (store, _) = store();
    let tree = StoreBackend::new(store, namespace()).with_history(HistoryPolicy::new());
    let mut recorded = None;
    for file in ["/a", "/b"] {
        call(&tree, "1", file, "old").await;
        recorded = Some(call(&tree, "2", file, "new").await);
    }
    let mut recorded = recorded.expect("a call");
    recorded.paths = vec![path("/a"), path("/b")];
    assert_eq!(tree.reversal(&recorded, 5).await.expect_err("6 bytes").kind(), ErrorKind::TooLarge);
    assert_eq!(tree.reversal(&recorded, 6).await.expect("6 bytes").len(), 2);
}

/// Regression: any call but a read of a file read the whole tree.
#[tokio::test]
async fn past_of_a_part_of_a_tree_reads_no_more_than_that() {
    let (store, micros) = store();
    let tree = StoreBackend::new(store, namespace()).with_history(HistoryPolicy::new());
    for index in 0..10 {
        tree.write(&format!("/large/{index}"), "x").await.expect("written");
    }
    tree.write("/small/f", "x").await.expect("written");
    let then = Timestamp::from_microsecond(micros.load(Ordering::Relaxed)).expect("a time");
    let past = || {
        let mut past = tree.at(Moment::Time(then)).expect("a history");
        past.entries_max = 5;
        past
    };
    for directory in ["/", "/large"] {
        let error = past().ls(&path(directory), &LsOptions::new()).await.expect_err("too many");
        assert!(error.kind() == ErrorKind::TooLarge && error.message().contains("name a directory beneath"), "{error}");
    }
    assert_eq!(past().ls(&path("/small"), &LsOptions::new()).await.expect("few").entries.len(), 1);
    let answers = [("/small", None), ("/nowhere", Some(ErrorKind::NotFound)), ("/small/f/x", Some(ErrorKind::NotADirectory))];
    for (at, expected) in answers {
        let stat = past().stat(&path(at), &StatOptions::new()).await;
        assert_eq!(stat.map_err(|error| error.kind()).err(), expected, "{at}");
    }
    assert_eq!(past().stat(&path("/large/3"), &StatOptions::new()).await.expect("a file").size_bytes, 1);
    // What was read for a directory answers for those beneath it, and another directory replaces it.
    let past = tree.at(Moment::Time(then)).expect("a history");
    for (directory, count) in [("/large", 10), ("/", 2), ("/large", 10), ("/small", 1)] {
        assert_eq!(past.ls(&path(directory), &LsOptions::new()).await.expect("listed").entries.len(), count, "{directory}");
    }
}

#[tokio::test]
async fn part_of_a_past_content_is_read_alone() {
    let (store, _) = store();
    let tree = StoreBackend::new(store, namespace()).with_history(HistoryPolicy::new());
    let content: Bytes = (0..6 << 20).map(|index: u32| (index % 251) as u8).collect::<Vec<u8>>().into();
    tree.write("/f", content.clone()).await.expect("written");
    // The newest version is still in the file, the older one in the history.
    tree.write("/g", "new").await.expect("written");
    tree.write("/g", content.clone()).await.expect("written");
    tree.write("/f", "new").await.expect("written");
    for (file, back) in [("/f", 1), ("/g", 0)] {
        let past = tree.at(Moment::Back(back)).expect("a history");
        for range in [0..10_u64, 5_000_000..5_000_100, content.len() as u64 - 1..content.len() as u64] {
            let options = ReadOptions::bytes(range.start, range.end - range.start);
            let read = past.read(&path(file), &options).await.expect("kept");
            assert_eq!(read.content, content.slice(range.start as usize..range.end as usize), "{file} {range:?}");
            assert_eq!(read.size_bytes, content.len() as u64);
        }
        assert_eq!(past.read(&path(file), &ReadOptions::new().with_bytes_max(u64::MAX)).await.expect("kept").content, content);
    }
}

/// Regression: a file that was removed before the history began looked absent, so a restore of its directory removed today's file.
#[tokio::test]
async fn what_was_before_the_history_began_is_unknown() {
    let (store, micros) = store();
    let plain = StoreBackend::new(store.clone(), namespace());
    let tree = plain.clone().with_history(HistoryPolicy::new());
    let next = || {
        micros.fetch_add(1_000, Ordering::Relaxed);
        Timestamp::from_microsecond(micros.load(Ordering::Relaxed)).expect("a time")
    };
    plain.write("/d/old", "old").await.expect("written");
    plain.write("/d/gone", "gone").await.expect("written");
    let before = next();
    plain.delete("/d/gone").await.expect("deleted");
    next();
    tree.write("/d/new", "new").await.expect("written");
    let began = next();
    tree.write("/d/gone", "again").await.expect("written");
    let history = Namespace::parse("ada/notes/_treehold/history").expect("legal");
    // Without the row, such as of a history by an earlier version, the oldest recorded change says when it began.
    for has_row in [true, false] {
        if !has_row {
            store.commit(Batch::new().delete(&history, "s")).await.expect("removed");
        }
        let past = tree.at(Moment::Time(before)).expect("a history");
        for unknown in ["/", "/d"] {
            let error = past.ls(&path(unknown), &LsOptions::new()).await.expect_err("unknown");
            assert!(Forgotten::is_source_of(&error), "{unknown}: {error}");
            let error = past.glob(&path(unknown), &GlobOptions::new("**")).await.expect_err("unknown");
            assert!(Forgotten::is_source_of(&error), "{unknown}: {error}");
        }
        for unknown in ["/d/gone", "/d/new", "/d/never"] {
            let error = past.stat(&path(unknown), &StatOptions::new()).await.expect_err("unknown");
            assert!(Forgotten::is_source_of(&error), "{unknown}: {error}");
        }
        assert_eq!(past.read_text("/d/old").await.expect("it has not changed since"), "old");
        let past = tree.at(Moment::Time(began)).expect("a history");
        let found = past.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.expect("known");
        let mut found: Vec<&str> = found.entries.iter().map(|entry| entry.path.as_str()).collect();
        found.retain(|path| *path != "/d/gone");
        assert_eq!(found, ["/d/new", "/d/old"]);
    }
}

#[tokio::test]
async fn new_tree_is_known_from_its_beginning() {
    let (store, micros) = store();
    let tree = StoreBackend::new(store, namespace()).with_history(HistoryPolicy::new());
    let before = Timestamp::from_microsecond(micros.load(Ordering::Relaxed)).expect("a time");
    for step in 0..3 {
        let past = tree.at(Moment::Time(before)).expect("a history");
        let found = past.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.expect("known");
        assert!(found.entries.is_empty(), "{step}: {found:?}");
        micros.fetch_add(1_000, Ordering::Relaxed);
        tree.write(&format!("/{step}"), "x").await.expect("written");
    }
    let past = tree.at(Moment::Time(before)).expect("a history");
    let error = past.stat(&path("/0"), &StatOptions::new()).await.expect_err("absent");
    assert!(error.kind() == ErrorKind::NotFound && !Forgotten::is_source_of(&error), "{error}");
}

#[tokio::test]
async fn longer_policy_does_not_bring_back_what_a_shorter_one_let_expire() {
    let (store, micros) = store();
    let now = Timestamp::from_microsecond(micros.load(Ordering::Relaxed)).expect("a time");
    let tree = |seconds| {
        let policy = HistoryPolicy::new().with_older_than(Duration::from_secs(seconds));
        StoreBackend::new(store.clone(), namespace()).with_history(policy)
    };
    let ago = |seconds: i64| now.checked_sub(jiff::SignedDuration::from_secs(seconds)).expect("a time");
    let is_known = async |seconds, at| {
        let past = tree(seconds).at(Moment::Time(at)).expect("a history");
        match past.ls(VfsPath::ROOT, &LsOptions::new()).await {
            Ok(_) => true,
            Err(error) => {
                assert!(Forgotten::is_source_of(&error), "{error}");
                false
            }
        }
    };
    micros.store(ago(7_200).as_microsecond(), Ordering::Relaxed);
    tree(600).write("/a", "x").await.expect("written");
    micros.store(now.as_microsecond(), Ordering::Relaxed);
    // At first the longer policy only reads, then it records changes.
    for _ in 0..2 {
        assert!(is_known(36_000, ago(300)).await && !is_known(36_000, ago(900)).await);
        tree(36_000).write("/a", "y").await.expect("written");
    }
    // One that was longer all the time reaches back to the beginning.
    let other = StoreBackend::new(store.clone(), Namespace::parse("ada/other").expect("legal")).with_history(HistoryPolicy::new());
    micros.store(ago(7_200).as_microsecond(), Ordering::Relaxed);
    other.write("/a", "x").await.expect("written");
    assert!(other.at(Moment::Time(ago(3_600))).expect("a history").ls(VfsPath::ROOT, &LsOptions::new()).await.is_ok());
}

/// Regression: a directory that the batch itself made and removed hid that a file had been there before.
#[tokio::test]
async fn file_that_a_batch_replaces_by_a_directory_and_removes_is_recorded() {
    let remove = |path_of: &str| Change::Delete { path: path(path_of), recursive: true, expect: None };
    let write = |path_of: &str, mode| Change::Write { path: path(path_of), content: "new".into(), mode };
    let between = [
        vec![write("/a/x", WriteMode::Overwrite), remove("/a")],
        vec![Change::CreateDir { path: path("/a") }, remove("/a")],
        vec![write("/a/x", WriteMode::Overwrite), Change::Rename { from: path("/a"), to: path("/b"), overwrite: false }],
        vec![write("/a/x", WriteMode::Overwrite), remove("/a"), write("/a/y/z", WriteMode::Overwrite), remove("/a")],
    ];
    for between in between {
        for ends_with_a_file in [false, true] {
            let tree = StoreBackend::new(store().0, namespace()).with_history(HistoryPolicy::new());
            tree.write("/a", "old").await.expect("written");
            let end = ends_with_a_file.then(|| write("/a", WriteMode::CreateNew));
            let changes: Vec<Change> = [remove("/a")].into_iter().chain(between.clone()).chain(end).collect();
            tree.apply(&changes, &ApplyOptions::new()).await.unwrap_or_else(|error| panic!("{changes:?}: {error}"));
            let log = tree.log(&path("/a")).await.expect("readable");
            assert_eq!(log.len(), 2, "{changes:?}: {log:?}");
            assert!(log[0].is_recorded && log[0].exists() == ends_with_a_file, "{changes:?}: {log:?}");
            let before = tree.at(Moment::Back(1)).expect("a history").read_text("/a").await.expect("kept");
            assert_eq!(before, "old", "{changes:?}");
        }
    }
}
