//! Directories of SQLite files: which files there are, how long they stay open, and what sweeps do.

mod damaged;

use super::names::file_of;
use super::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use treehold_store::{Condition, StoreExt};

fn space(text: &str) -> Namespace {
    Namespace::parse(text).expect("a legal namespace")
}

/// A store in a new directory, with few open files.
fn fresh(open_max: usize) -> (tempfile::TempDir, SqliteDirectory) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let store = SqliteDirectory::open_with(SqliteDirectoryOptions::new(path).with_open_max(open_max)).expect("opened");
    (directory, store)
}

fn files(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("listed") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => directories.push(path),
                false => drop(found.insert(path.strip_prefix(root).expect("beneath").display().to_string())),
            }
        }
    }
    found
}

/// Makes a file look as if it had last changed at the start of 1970.
fn age(file: &Path) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let past = Timespec { tv_sec: 1, tv_nsec: 0 };
    utimensat(CWD, file, &Timestamps { last_access: past, last_modification: past }, AtFlags::empty()).expect("its times are set");
}

async fn put(store: &dyn Store, namespace: &str, key: &str) -> Version {
    store.commit(Batch::new().put(&space(namespace), key, key.to_owned())).await.expect("committed")[0]
}

/// Another process holds the file of one user.
#[tokio::test]
async fn writer_of_a_partition_waits_for_no_other_partition() {
    const PATIENCE: Duration = Duration::from_secs(600);
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().join("store");
    let mut options = SqliteDirectoryOptions::new(&root).with_open_max(8);
    options.busy_timeout = 2 * PATIENCE;
    let store = SqliteDirectory::open_with(options).expect("opened");
    let ada = space("acme/ada/notes");
    put(&store, "acme/ada/notes", "k").await;
    let other = rusqlite::Connection::open(file_of(&root, &ada.partition())).expect("its file");
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { put(&store, "acme/ada/notes", "l").await }
    });
    let others = async {
        for number in 0..20 {
            for namespace in ["acme/bob/notes", "acme//notes", &format!("acme/u{number}/notes")] {
                put(&store, namespace, &format!("{number}")).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, others).await.expect("they wait for no other partition");
    assert!(!waiting.is_finished());
    other.execute_batch("ROLLBACK").expect("released");
    assert_eq!(waiting.await.expect("it ends well"), Version::new(2));
}

#[tokio::test]
async fn each_partition_is_a_file_that_only_its_rows_create() {
    let (directory, store) = fresh(8);
    let root = directory.path().join("store");
    let (ada, bob) = (space("acme/ada/notes"), space("acme/bob/notes"));
    assert_eq!(store.get(&ada, "k").await.expect("read"), None);
    assert_eq!(store.get_many(&ada, &["k", "l"], true).await.expect("read"), [None, None]);
    assert!(store.scan(&ada, ScanOptions::new()).await.expect("read").entries.is_empty());
    assert_eq!(store.current_version(&ada.partition()).await.expect("a version"), Version::new(0));
    store.commit(Batch::new().delete(&ada, "k").delete_prefix(&ada, "").touch(&ada, "k", None)).await.expect("nothing to do");
    let refused = store.commit(Batch::new().expect(&ada, "k", Condition::Exists).put(&ada, "k", "v")).await.expect_err("it is absent");
    assert_eq!((refused.kind(), refused.change()), (ErrorKind::Conflict, Some(0)));
    store.commit(Batch::new().expect(&ada, "", Condition::NoneBeneath).delete(&ada, "k")).await.expect("it holds");
    assert_eq!(files(&root), BTreeSet::from([MARK.to_owned()]));

    assert_eq!([put(&store, "acme/ada/notes", "k").await, put(&store, "acme/ada/notes", "l").await], [1, 2].map(Version::new));
    assert_eq!(put(&store, "acme/bob/notes", "k").await, Version::new(1), "each counts for itself");
    put(&store, "acme//policies", "k").await;
    put(&store, "_treehold/events/x", "k").await;
    drop(store);
    assert_eq!(files(&root), ["_treehold/events.db", "acme.db", "acme/ada.db", "acme/bob.db", MARK].map(str::to_owned).into());
    let one = SqliteStore::open(root.join("acme/ada.db")).expect("a store of its own");
    assert!(one.get(&ada, "k").await.expect("read").is_some() && one.get(&bob, "k").await.expect("read").is_none());
}

#[tokio::test]
async fn few_files_stay_open_and_namespaces_page_over_all() {
    let (_directory, store) = fresh(3);
    let long = format!("{}/{}", "x".repeat(300), "y".repeat(400));
    let mut expected: BTreeSet<Namespace> = BTreeSet::new();
    for owner in ["acme/", "acme/ada", "acme/Ada", "acme-x/ada", "a!/b", "b/", "b/é", "b/c", &long, &format!("b/{}", "z".repeat(600))] {
        for name in ["notes", "notes/old", "z"] {
            let namespace = space(&format!("{owner}/{name}"));
            store.commit(Batch::new().put(&namespace, "k", "v")).await.expect("committed");
            expected.insert(namespace);
        }
        assert!(store.shared.files.open_count() <= 3);
    }
    let expected: Vec<Namespace> = expected.into_iter().collect();
    for limit in [1, 2, 7, 29, 30, 100] {
        let (mut found, mut options) = (Vec::new(), NamespacesOptions::new().with_limit(limit));
        loop {
            let page = store.namespaces(options.clone()).await.expect("listed");
            found.extend(page.namespaces);
            if !page.more {
                break;
            }
            options.start_after = found.last().cloned();
        }
        assert_eq!(found, expected, "{limit}");
    }
    for (options, count) in [
        (NamespacesOptions::new().with_tenant("acme"), 9),
        (NamespacesOptions::new().with_beneath(space("acme/ada/notes")), 2),
        (NamespacesOptions::new().with_beneath(space("acme//notes")), 2),
        (NamespacesOptions::new().with_tenant("none"), 0),
    ] {
        let page = store.namespaces(options.clone()).await.expect("listed");
        assert_eq!((page.namespaces.len(), page.more), (count, false), "{options:?}");
    }
    assert!(store.shared.files.open_count() <= 3);
    assert_eq!(store.stats().await.expect("counted").items, 30);
}

#[tokio::test]
async fn damaged_file_harms_only_its_partition() {
    let (directory, store) = fresh(8);
    let root = directory.path().join("store");
    for namespace in ["acme/ada/notes", "acme/bob/notes", "acme/eve/notes"] {
        put(&store, namespace, "k").await;
    }
    drop(store);
    std::fs::write(root.join("acme/bob.db"), vec![7; 8192]).expect("damaged");
    std::fs::rename(root.join("acme/eve.db"), root.join("acme/mallory.db")).expect("renamed");
    let store = SqliteDirectory::open(&root).expect("opened");
    assert!(store.get(&space("acme/ada/notes"), "k").await.expect("read").is_some());
    put(&store, "acme/ada/notes", "l").await;
    for (namespace, text) in [("acme/bob/notes", "acme/bob"), ("acme/mallory/notes", "acme/eve")] {
        let error = store.get(&space(namespace), "k").await.expect_err("it is damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(text), "{error}");
        let error = store.commit(Batch::new().put(&space(namespace), "k", "v")).await.expect_err("it is damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    let error = store.get(&space("acme/bob/notes"), "k").await.expect_err("it is damaged");
    assert!(error.message().ends_with("it is damaged; restore it from a backup"), "nobody named that file: {error}");
    let findings = store.check().await.expect("checked");
    assert_eq!(findings.len(), 2, "{findings:?}");
    for limit in [1, 2, 100] {
        // Not even a page that starts after rows which are not where they belong.
        let options = NamespacesOptions::new().with_limit(limit).with_start_after(space("acme/ada/notes"));
        assert_eq!(store.namespaces(options).await.expect_err("one cannot be read").kind(), ErrorKind::Corrupt);
    }
    assert_eq!(store.sweep(10).await.expect_err("one cannot be swept").kind(), ErrorKind::Corrupt);
}

/// Regression: only the first rows of a file were looked at.
#[tokio::test]
async fn rows_of_another_partition_are_reported_whether_they_come_first_or_last() {
    for foreign in [&["aa/bb"][..], &["zz/bb"], &["aa/bb", "zz/bb"]] {
        let (directory, store) = fresh(8);
        let own = space("default/u1/notes");
        let others: Vec<_> = foreign.iter().map(|partition| space(&format!("{partition}/notes"))).collect();
        put(&store, "default/u1/notes", "k").await;
        drop(store);
        let root = directory.path().join("store");
        let file = root.join("default/u1.db");
        let one = SqliteStore::open(&file).expect("a store of its own");
        for other in &others {
            one.commit(Batch::new().put(other, "k", "v")).await.expect("committed");
        }
        drop(one);
        let store = SqliteDirectory::open(&root).expect("opened");
        let error = store.get(&own, "k").await.expect_err("another partition is in its file");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(&format!("it also holds rows of the partition `{}`", foreign[0])), "{error}");
        assert_eq!(store.check().await.expect("checked").len(), 1);
        drop(store);
        let one = SqliteStore::open(&file).expect("a store of its own");
        for other in &others {
            one.commit(Batch::new().delete(other, "k")).await.expect("removed");
        }
        drop(one);
        let store = SqliteDirectory::open(&root).expect("opened");
        assert!(store.get(&own, "k").await.expect("read").is_some());
    }
}

/// Regression: its directory would have been in the place of the mark.
#[tokio::test]
async fn tenant_may_have_the_name_of_the_mark() {
    let (directory, store) = fresh(8);
    let all = [format!("{MARK}//notes"), format!("{MARK}/ada/notes")];
    for namespace in &all {
        put(&store, namespace, "k").await;
    }
    drop(store);
    let store = SqliteDirectory::open(directory.path().join("store")).expect("opened");
    let listed = store.namespaces(NamespacesOptions::new()).await.expect("listed").namespaces;
    assert_eq!(listed, all.map(|namespace| space(&namespace)));
}

#[tokio::test]
async fn deleted_file_is_a_deleted_partition_while_the_store_is_open() {
    let (directory, store) = fresh(8);
    let file = directory.path().join("store/acme/ada.db");
    put(&store, "acme/ada/notes", "k").await;
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    assert_eq!(store.get(&space("acme/ada/notes"), "k").await.expect("read"), None);
    assert_eq!(put(&store, "acme/ada/notes", "new").await, Version::new(1));
    assert!(file.exists());
}

#[tokio::test]
async fn replaced_file_is_an_error_until_the_store_is_opened_again() {
    let (directory, store) = fresh(8);
    let file = directory.path().join("store/acme/ada.db");
    put(&store, "acme/ada/notes", "k").await;
    put(&store, "acme/bob/notes", "k").await;
    let backup = directory.path().join("backup.db");
    drop(SqliteStore::open(&backup).expect("opened"));
    std::fs::rename(&backup, &file).expect("replaced");
    for _ in 0..2 {
        let error = store.get(&space("acme/ada/notes"), "k").await.expect_err("another file is there");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let error = store.commit(Batch::new().put(&space("acme/ada/notes"), "k", "v")).await.expect_err("another file is there");
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Unavailable, false));
        assert!(store.get(&space("acme/bob/notes"), "k").await.expect("read").is_some(), "it affects no other partition");
    }
}

/// Its disk is not mounted any more, say. Nothing may look empty, and nothing may be created in its place.
#[tokio::test]
async fn missing_directory_is_an_error_not_an_empty_store() {
    let (directory, store) = fresh(1);
    let (root, away) = (directory.path().join("store"), directory.path().join("away"));
    for user in ["ada", "bob"] {
        put(&store, &format!("acme/{user}/notes"), "k").await;
    }
    std::fs::rename(&root, &away).expect("moved");
    std::fs::create_dir(&root).expect("an empty mount point");
    for user in ["ada", "bob", "new"] {
        let notes = space(&format!("acme/{user}/notes"));
        for error in [
            store.get(&notes, "k").await.expect_err("nobody knows"),
            store.scan(&notes, ScanOptions::new()).await.expect_err("nobody knows"),
            store.current_version(&notes.partition()).await.expect_err("nobody knows"),
            store.commit(Batch::new().put(&notes, "k", "v")).await.expect_err("it would be lost"),
            store.commit(Batch::new().delete(&notes, "k")).await.expect_err("it would stay"),
            store.namespaces(NamespacesOptions::new()).await.expect_err("nobody knows"),
            store.ping().await.expect_err("it is not there"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{user}: {error}");
        }
    }
    assert!(files(&root).is_empty());
    std::fs::remove_dir(&root).expect("removed");
    std::fs::rename(&away, &root).expect("moved back");
    assert!(store.get(&space("acme/bob/notes"), "k").await.expect("read").is_some());
}

#[cfg(unix)]
#[tokio::test]
async fn tenant_may_be_on_another_disk() {
    let (directory, store) = fresh(8);
    let elsewhere = directory.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("made");
    std::os::unix::fs::symlink(&elsewhere, directory.path().join("store/acme")).expect("linked");
    put(&store, "acme/ada/notes", "k").await;
    assert!(elsewhere.join("ada.db").exists());
    let listed = store.namespaces(NamespacesOptions::new()).await.expect("listed").namespaces;
    assert_eq!(listed, [space("acme/ada/notes")]);
}

#[tokio::test]
async fn other_directories_are_refused_untouched() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    std::fs::write(path.join("notes.txt"), "own").expect("written");
    assert_eq!(SqliteDirectory::open(path).expect_err("it has other content").kind(), ErrorKind::Corrupt);
    assert_eq!(files(path), BTreeSet::from(["notes.txt".to_owned()]));
    assert_eq!(SqliteDirectory::open(path.join("notes.txt")).expect_err("a file").kind(), ErrorKind::NotADirectory);
    assert_eq!(SqliteDirectory::open(path.join("none/store")).expect_err("no parent").kind(), ErrorKind::NotFound);
    std::fs::create_dir(path.join("newer")).expect("made");
    std::fs::write(path.join("newer").join(MARK), "2\n").expect("written");
    assert_eq!(SqliteDirectory::open(path.join("newer")).expect_err("newer").kind(), ErrorKind::Unsupported);
    for garbage in [&b"junk"[..], b"\xff1\n", b"\0\x07"] {
        std::fs::write(path.join("newer").join(MARK), garbage).expect("written");
        let error = SqliteDirectory::open(path.join("newer")).expect_err("damaged");
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("is damaged"), "{error}");
    }
}

/// A process was stopped before it wrote the mark, or the power was lost before the mark was durable.
#[tokio::test]
async fn directory_with_an_unfinished_mark_is_completed() {
    for left in ["", "\0\0"] {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = directory.path().join(MARK);
        std::fs::write(&mark, left).expect("written");
        SqliteDirectory::open(directory.path()).expect("completed");
        assert_eq!(std::fs::read_to_string(&mark).expect("read"), MARK_TEXT);
    }
}

#[tokio::test]
async fn commits_of_another_handle_are_watched_while_no_file_is_open() {
    let (directory, store) = fresh(1);
    let other = SqliteDirectory::open(directory.path().join("store")).expect("opened");
    let mut watches = Vec::new();
    for user in ["ada", "bob", "eve"] {
        watches.push((user, store.watch(&space(&format!("acme/{user}/notes"))).await.expect("watched")));
    }
    for round in 1..4 {
        for (user, watch) in &mut watches {
            let version = put(&other, &format!("acme/{user}/notes"), &format!("{round}")).await;
            while watch.changed().await.expect("it is open") < version {}
        }
    }
    let version = put(&store, "acme/ada/notes", "own").await;
    let own = watches[0].1.changed().await.expect("it is open");
    assert_eq!(own, version);
}

#[tokio::test]
async fn sweeps_go_on_over_all_files_in_steps() {
    let directory = tempfile::tempdir().expect("a directory");
    let now = Arc::new(AtomicI64::new(0));
    let told = now.clone();
    let clock = Clock::from_fn(move || jiff::Timestamp::from_second(told.load(Ordering::Relaxed)).expect("a time"));
    let options = SqliteDirectoryOptions::new(directory.path().join("store")).with_clock(clock).with_open_max(2);
    let store = SqliteDirectory::open_with(options).expect("opened");
    for user in 0..6 {
        let namespace = space(&format!("acme/u{user}/notes"));
        let batch = (0..3).fold(Batch::new().put(&namespace, "stays", ""), |batch, number| {
            batch.put_for(&namespace, format!("{number}"), "", Duration::from_secs(60 + user))
        });
        store.commit(batch).await.expect("committed");
    }
    assert_eq!(store.sweep(100).await.expect("swept"), 0);
    // Files that have not changed for a while are not visited before their first row expires.
    let root = directory.path().join("store");
    for file in files(&root) {
        age(&root.join(file));
    }
    assert_eq!(store.sweep(100).await.expect("swept"), 0);
    now.store(63, Ordering::Relaxed);
    let mut steps = Vec::new();
    loop {
        let swept = store.sweep(5).await.expect("swept");
        steps.push(swept);
        if swept < 5 {
            break;
        }
    }
    assert_eq!(steps.iter().sum::<usize>(), 12, "{steps:?}");
    now.store(1_000, Ordering::Relaxed);
    assert_eq!(store.sweep(100).await.expect("swept"), 6, "a sweep that begins in the middle comes round");
    assert_eq!(store.stats().await.expect("counted").items, 6);
}

#[test]
fn file_names_are_beneath_the_directory() {
    let partition = Partition::new(["..", "/etc"]).expect("a legal partition");
    assert_eq!(file_of(Path::new("/r"), &partition), Path::new("/r/%2e%2e/%2fetc.db"));
}
