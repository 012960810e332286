use super::names::file_of;
use super::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use treehold_store::{AllNamespaces, Condition, CopyOptions, Faults, MemoryStore, StoreExt, SweepCount, copy, move_user_rows, verify};

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

/// Regression: what was found only once the file was open did not say which one it was.
#[tokio::test]
async fn damaged_page_is_reported_with_its_partition() {
    let (directory, store) = fresh(8);
    let notes = space("acme/bob/notes");
    let keys: Vec<String> = (0..400).map(|number| format!("{number:03}")).collect();
    store.commit(keys.iter().fold(Batch::new(), |batch, key| batch.put(&notes, key, vec![1; 200]))).await.expect("committed");
    drop(store);
    let file = directory.path().join("store/acme/bob.db");
    let whole = std::fs::read(&file).expect("read");
    let names = keys.iter().map(String::as_str).collect::<Vec<_>>();
    let mut damaged = 0;
    for page in 1..whole.len() / 4_096 {
        let mut bytes = whole.clone();
        bytes[page * 4_096..][..4_096].fill(7);
        std::fs::write(&file, bytes).expect("damaged");
        let store = SqliteDirectory::open(directory.path().join("store")).expect("opened");
        let mut errors = Vec::new();
        for key in &names {
            errors.push([store.get(&notes, key).await.err(), store.get_part(&notes, key, 0..1).await.err()]);
        }
        // Where nothing can be read, the file cannot even be opened.
        if errors.iter().all(|errors| errors[0].is_none()) || errors.iter().all(|errors| errors[0].is_some()) {
            continue;
        }
        damaged += 1;
        let mut errors: Vec<Error> = errors.into_iter().flatten().flatten().collect();
        errors.extend([
            store.get_many(&notes, &names, true).await.expect_err("it is damaged"),
            store.scan(&notes, ScanOptions::new().with_limit(400)).await.expect_err("it is damaged"),
            store.commit(names.iter().fold(Batch::new(), |batch, key| batch.put(&notes, *key, ""))).await.expect_err("it is damaged"),
        ]);
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
            assert!(error.message().starts_with("the file of the partition `acme/bob`: "), "{error}");
        }
    }
    assert!(damaged > 4, "only {damaged} pages have some of the rows");
}

/// Regression: the first damaged file ended the listing of all namespaces and the verification, and sweeps did not say that they had
/// skipped it.
#[tokio::test]
async fn damaged_file_stops_no_work_on_the_other_partitions() {
    let users = ["acme/ada", "acme/eve", "bob/zoe"];
    for damaged in users {
        let (directory, store) = fresh(8);
        for user in users {
            let notes = space(&format!("{user}/notes"));
            let batch = Batch::new().put(&notes, "stays", "").put_for(&notes, "ends", "", Duration::ZERO);
            store.commit(batch).await.expect("committed");
        }
        drop(store);
        let root = directory.path().join("store");
        std::fs::write(root.join(format!("{damaged}.db")), vec![7; 8192]).expect("damaged");
        let store = SqliteDirectory::open(&root).expect("opened");
        let is_named = |error: &Error| error.kind() == ErrorKind::Corrupt && error.message().contains(damaged);

        let (mut all, mut found, mut failed) = (AllNamespaces::new(&store), Vec::new(), 0);
        loop {
            match all.next_page().await {
                Ok(Some(page)) => found.extend(page),
                Ok(None) => break,
                Err(error) => {
                    assert!(is_named(&error) && !all.is_over(), "{error}");
                    failed += 1;
                }
            }
        }
        let others = users.into_iter().filter(|user| *user != damaged).map(|user| space(&format!("{user}/notes")));
        assert_eq!((found, failed), (others.collect::<Vec<_>>(), 1), "{damaged}");

        let verified = verify(&store, |_, _| Ok(()), |_| {}).await.expect("verified");
        assert_eq!((verified.rows, verified.faults_count), (2, 1), "{damaged}: {:?}", verified.faults);
        assert!(verified.faults.iter().all(is_named), "{:?}", verified.faults);

        let (count, mut swept) = (SweepCount::new(), Vec::new());
        for _ in 0..3 {
            swept.push(store.sweep_counting(1, &count).await.map_err(|error| is_named(&error)));
        }
        assert_eq!((swept, count.get()), (vec![Ok(1), Ok(1), Err(true)], 2), "{damaged}");
        let shrunk = store.shrink_counting(1_000, &SweepCount::new()).await;
        assert!(is_named(&shrunk.expect_err("one cannot be visited")), "{damaged}");
    }
}

#[tokio::test]
async fn compact_goes_on_after_a_damaged_file() {
    let (directory, store) = fresh(8);
    let zoe = space("bob/zoe/notes");
    put(&store, "acme/ada/notes", "k").await;
    put(&store, "bob/zoe/notes", "k").await;
    store.commit(Batch::new().put(&zoe, "large", vec![b'x'; 1 << 20])).await.expect("committed");
    store.commit(Batch::new().delete(&zoe, "large")).await.expect("removed");
    drop(store);
    let root = directory.path().join("store");
    std::fs::write(root.join("acme/ada.db"), vec![7; 8192]).expect("damaged");
    let size = || std::fs::metadata(root.join("bob/zoe.db")).expect("it is there").len();
    let full = size();
    let store = SqliteDirectory::open(&root).expect("opened");
    assert_eq!(store.compact().await.expect_err("one cannot be rewritten").kind(), ErrorKind::Corrupt);
    drop(store);
    assert!(size() * 2 < full, "{} of {full} bytes", size());
}

#[tokio::test]
async fn partitions_are_listed_in_pages_whatever_their_files_hold() {
    let (directory, store) = fresh(8);
    let mut expected = Vec::new();
    for owner in ["acme/", "acme/ada", "acme/bob", "b/ada"] {
        let notes = space(&format!("{owner}/notes"));
        put(&store, &format!("{owner}/notes"), "k").await;
        expected.push(notes.partition());
    }
    drop(store);
    let root = directory.path().join("store");
    std::fs::write(root.join("acme/bob.db"), vec![7; 8192]).expect("damaged");
    let store = SqliteDirectory::open(&root).expect("opened");
    for limit in 1..6 {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = store.partitions(after.as_ref(), limit).await.expect("listed").expect("each can fail alone");
            assert!(page.faults.is_empty(), "{:?}", page.faults);
            let is_last = page.partitions.len() < limit;
            listed.extend(page.partitions);
            after = listed.last().cloned();
            if is_last {
                break;
            }
        }
        assert_eq!(listed, expected, "{limit}");
    }
}

const USERS: [&str; 3] = ["acme/ada", "acme/eve", "bob/zoe"];

/// Returns the root of a directory in which each user has two rows, one of which has expired.
async fn of_users() -> (tempfile::TempDir, PathBuf) {
    let (directory, store) = fresh(8);
    for user in USERS {
        let notes = space(&format!("{user}/notes"));
        store.commit(Batch::new().put(&notes, "stays", "body").put_for(&notes, "ends", "", Duration::ZERO)).await.expect("committed");
    }
    let root = directory.path().join("store");
    (directory, root)
}

/// Replaces the file of a partition by garbage, and returns its content.
fn damage(file: &Path) -> Vec<u8> {
    let content = std::fs::read(file).expect("read");
    std::fs::write(file, vec![7; 8192]).expect("damaged");
    content
}

/// Returns the rows of the users in a store.
async fn rows_of_users(store: &dyn Store) -> Vec<&'static str> {
    let mut found = Vec::new();
    for user in USERS {
        if store.get(&space(&format!("{user}/notes")), "stays").await.expect("read").is_some() {
            found.push(user);
        }
    }
    found
}

/// Regression: the first damaged file ended the count.
#[tokio::test]
async fn damaged_file_is_named_and_the_others_are_counted() {
    for damaged in USERS {
        let (_directory, root) = of_users().await;
        damage(&root.join(format!("{damaged}.db")));
        let store = SqliteDirectory::open(&root).expect("opened");
        let mut faults = Faults::new();
        let stats = store.stats_with_faults(&mut faults).await.expect("the others are counted");
        assert_eq!((stats.namespaces, stats.items, stats.expired, faults.count()), (2, 2, 2, 1), "{damaged}");
        let fault = faults.into_first().expect("one is damaged");
        assert!(fault.kind() == ErrorKind::Corrupt && fault.message().contains(damaged), "{fault}");
        assert_eq!(store.stats().await.expect_err("one is damaged").message(), fault.message());
    }
}

/// Regression: the first damaged file ended the copy. Once it is repaired, the same copy brings what is missing, and only that.
#[tokio::test]
async fn copy_brings_all_but_the_damaged_file_and_that_once_it_is_repaired() {
    for damaged in USERS {
        let (_directory, root) = of_users().await;
        let file = root.join(format!("{damaged}.db"));
        let content = damage(&file);
        let target = MemoryStore::new();
        let others: Vec<_> = USERS.into_iter().filter(|user| *user != damaged).collect();
        // The first run, and one more that changes nothing.
        for resumed in [false, true] {
            let source = SqliteDirectory::open(&root).expect("opened");
            let report = copy(&source, &target, &CopyOptions::new(), |_| {}).await.expect("the others are copied");
            assert_eq!((report.settled, report.resumed, report.rows, report.digest), (false, resumed, 2, None), "{damaged}");
            assert_eq!((report.sent, report.faults_count), (if resumed { 0 } else { 2 }, 1), "{:?}", report.faults);
            assert!(report.faults[0].code == "corrupt" && report.faults[0].message.contains(damaged), "{:?}", report.faults);
            assert_eq!(rows_of_users(&target).await, others);
        }
        std::fs::write(&file, content).expect("repaired");
        let source = SqliteDirectory::open(&root).expect("opened");
        let report = copy(&source, &target, &CopyOptions::new(), |_| {}).await.expect("all is copied");
        assert_eq!((report.settled, report.resumed, report.rows, report.sent, report.faults_count), (true, true, 3, 1, 0), "{damaged}");
        assert_eq!(rows_of_users(&target).await, USERS);
        for user in USERS {
            let partition = space(&format!("{user}/notes")).partition();
            assert!(target.current_version(&partition).await.expect("read") >= source.current_version(&partition).await.expect("read"));
        }
    }
}

/// A copy that has brought a partition does not remove its rows when the file is damaged later, and removes those of a deleted file.
#[tokio::test]
async fn rows_that_were_copied_stay_while_their_file_is_damaged() {
    for onto in [false, true] {
        let (_directory, root) = of_users().await;
        let (ada, eve) = (root.join("acme/ada.db"), root.join("acme/eve.db"));
        let content = damage(&eve);
        let (target, options) = (MemoryStore::new(), CopyOptions::new().with_onto(onto));
        let copied = async || {
            let source = SqliteDirectory::open(&root).expect("opened");
            copy(&source, &target, &options, |_| {}).await.expect("copied")
        };
        assert_eq!(copied().await.faults_count, 1);
        std::fs::write(&eve, content).expect("repaired");
        damage(&ada);
        let report = copied().await;
        assert_eq!((report.settled, report.removed, report.faults_count), (false, 0, 1), "onto: {onto}");
        assert_eq!(rows_of_users(&target).await, USERS, "onto: {onto}");
        std::fs::remove_file(&ada).expect("removed");
        let report = copied().await;
        assert_eq!((report.settled, report.removed, report.faults_count), (true, 1, 0), "onto: {onto}");
        assert_eq!(rows_of_users(&target).await, USERS[1..], "onto: {onto}");
    }
}

/// Only some pages of a file are damaged. What can be read of it is copied too.
#[tokio::test]
async fn copy_brings_what_can_be_read_of_a_file_with_damaged_pages() {
    let (_directory, root) = of_users().await;
    let (file, notes) = (root.join("acme/eve.db"), space("acme/eve/notes"));
    let store = SqliteDirectory::open(&root).expect("opened");
    let batch = (0..400).fold(Batch::new(), |batch, number| batch.put(&notes, format!("{number:03}"), vec![1; 200]));
    store.commit(batch).await.expect("committed");
    drop(store);
    let mut bytes = std::fs::read(&file).expect("read");
    // Only one page, so that the file can be opened and its namespaces are listed.
    let page = bytes.len() / 4_096 / 2;
    bytes[page * 4_096..][..4_096].fill(7);
    std::fs::write(&file, bytes).expect("damaged");
    let (source, target) = (SqliteDirectory::open(&root).expect("opened"), MemoryStore::new());
    let report = copy(&source, &target, &CopyOptions::new(), |_| {}).await.expect("the others are copied");
    assert_eq!((report.settled, report.digest, report.faults_count), (false, None, 1), "{:?}", report.faults);
    assert!(report.faults[0].message.contains("`acme/eve`"), "{:?}", report.faults);
    let copied = target.scan(&notes, ScanOptions::new().with_limit(500)).await.expect("listed").entries.len();
    assert!(copied < 401, "{copied} rows");
    for user in ["acme/ada", "bob/zoe"] {
        assert!(target.get(&space(&format!("{user}/notes")), "stays").await.expect("read").is_some(), "{user}");
    }
}

/// Regression: the first damaged file ended the migration, unnamed.
#[tokio::test]
async fn damaged_file_is_named_and_the_others_are_migrated() {
    for damaged in USERS {
        let (_directory, root) = of_users().await;
        damage(&root.join(format!("{damaged}.db")));
        for how in [MigrateOptions::new().with_dry_run(true), MigrateOptions::new()] {
            let report = SqliteDirectory::migrate(&root, &how, &mut |_| {}).expect("the others are looked at");
            assert_eq!((report.outcome, report.faults_count), (MigrateOutcome::UpToDate, 1), "{damaged}");
            let fault = &report.faults[0];
            assert_eq!(fault.message, format!("the file of the partition `{damaged}`: it is damaged; restore it from a backup"));
            assert_eq!(fault.code, "corrupt");
        }
    }
}

/// The rows of a former version move to the partitions of their users, except from a partition that is damaged.
#[tokio::test]
async fn rows_of_a_former_version_move_beside_a_damaged_partition() {
    let (directory, store) = fresh(8);
    let from = space("_treehold/agent-state/acme/users/ada/agents/helper/states");
    let to = space("acme/ada/_treehold/agent-state/agents/helper/states");
    for namespace in ["_treehold/sessions/acme", "_treehold/agent-state/acme/users/ada/agents/helper/states"] {
        put(&store, namespace, "k").await;
    }
    drop(store);
    let root = directory.path().join("store");
    damage(&root.join("_treehold/sessions.db"));
    let store = SqliteDirectory::open(&root).expect("opened");
    for how in [MigrateOptions::new().with_dry_run(true), MigrateOptions::new()] {
        let report = move_user_rows(&store, &how, &mut |_| {}).await.expect("the others move");
        assert_eq!((report.rows_total(), report.faults_count), (1, 1), "{:?}", report.faults);
        assert!(report.faults[0].message.contains("`_treehold/sessions`"), "{:?}", report.faults);
    }
    assert!(store.get(&from, "k").await.expect("read").is_none());
    assert!(store.get(&to, "k").await.expect("read").is_some());
}

/// Does all work that goes over every partition. It must handle so many rows, and name one part of the store, `what`, that it cannot.
async fn faults_of_all_work(root: &Path, what: &str, items: u64) {
    let store = SqliteDirectory::open(root).expect("opened");
    let mut faults = Faults::new();
    let stats = store.stats_with_faults(&mut faults).await.expect("counted");
    assert_eq!((stats.items, stats.expired), (items, items));
    let mut all = AllNamespaces::new(&store);
    let mut listed = 0;
    loop {
        match all.next_page().await {
            Ok(Some(page)) => listed += page.len() as u64,
            Ok(None) => break,
            Err(error) => {
                assert!(!all.is_over(), "{error}");
                faults.add(error);
            }
        }
    }
    assert_eq!(listed, items);
    store.check().await.expect("checked").into_iter().for_each(|error| faults.add(error));
    let verified = verify(&store, |_, _| Ok(()), |_| {}).await.expect("verified");
    assert_eq!((verified.rows, verified.faults_count), (items, 1), "{:?}", verified.faults);
    verified.faults.into_iter().for_each(|error| faults.add(error));
    let target = MemoryStore::new();
    let report = copy(&store, &target, &CopyOptions::new(), |_| {}).await.expect("copied");
    assert_eq!((report.settled, report.rows, report.faults_count), (false, items, 1), "{:?}", report.faults);
    faults.add(Error::from(&report.faults[0]));
    let count = SweepCount::new();
    faults.add(store.sweep_counting(100, &count).await.expect_err("one part cannot be swept"));
    assert_eq!(count.get(), items);
    faults.add(store.shrink_counting(1_000, &SweepCount::new()).await.expect_err("one part cannot be visited"));
    faults.add(store.compact().await.expect_err("one part cannot be rewritten"));
    faults.kept().iter().for_each(|fault| assert!(fault.message().contains(what), "{fault}"));
}

/// Regression: one entry that could not be opened hid all partitions. The directory of a tenant is a link to a disk that is not mounted.
#[cfg(unix)]
#[tokio::test]
async fn tenant_whose_directory_cannot_be_opened_hides_no_other() {
    for (tenant, items) in [("acme", 1), ("bob", 2)] {
        let (directory, root) = of_users().await;
        std::fs::rename(root.join(tenant), directory.path().join("away")).expect("moved away");
        std::os::unix::fs::symlink(directory.path().join("unmounted"), root.join(tenant)).expect("linked");
        faults_of_all_work(&root, &format!("the directory of the tenant `{tenant}` cannot be listed"), items).await;
    }
}

/// Regression: a partition with a directory in the place of its file looked empty.
#[tokio::test]
async fn directory_in_the_place_of_a_file_is_named_and_hides_no_other_partition() {
    for (name, what) in [
        ("acme/ada.db", "the file `ada.db` of the tenant `acme`"),
        ("bob/zoe.db", "the file `zoe.db` of the tenant `bob`"),
        ("bob.db", "the file of the tenant `bob`"),
    ] {
        let (_directory, root) = of_users().await;
        let is_of_user = root.join(name).exists();
        if is_of_user {
            std::fs::remove_file(root.join(name)).expect("removed");
        }
        std::fs::create_dir(root.join(name)).expect("made");
        faults_of_all_work(&root, what, if is_of_user { 2 } else { 3 }).await;
    }
}

/// Regression: one directory or file that its owner may not read hid all partitions.
#[cfg(unix)]
#[tokio::test]
async fn entry_without_permissions_hides_no_other() {
    use std::os::unix::fs::PermissionsExt;
    if rustix::process::geteuid().is_root() {
        // The permissions of files do not hold for this user.
        return;
    }
    for (entry, what, items) in [("acme", "the tenant `acme`", 1), ("bob", "the tenant `bob`", 2), ("acme/ada.db", "`acme/ada`", 2)] {
        let (_directory, root) = of_users().await;
        let permit = |mode| std::fs::set_permissions(root.join(entry), std::fs::Permissions::from_mode(mode)).expect("permissions set");
        permit(0o000);
        faults_of_all_work(&root, what, items).await;
        permit(0o700);
    }
}

/// Regression: the lost name of one long component hid all partitions.
#[tokio::test]
async fn lost_name_of_a_long_component_hides_no_other_partition() {
    let long = "x".repeat(200);
    for owner in [format!("{long}/zed"), format!("acme/{long}")] {
        let (_directory, root) = of_users().await;
        let store = SqliteDirectory::open(&root).expect("opened");
        put(&store, &format!("{owner}/notes"), "k").await;
        drop(store);
        let lost: Vec<_> = files(&root).into_iter().filter(|name| name.ends_with(".name")).collect();
        assert_eq!(lost.len(), 1, "{lost:?}");
        std::fs::remove_file(root.join(&lost[0])).expect("removed");
        faults_of_all_work(&root, "has lost the file beside it", 3).await;
    }
}

/// Regression: files that nobody finds were not mentioned.
#[tokio::test]
async fn files_named_like_no_partition_are_findings_and_nothing_else() {
    let (_directory, root) = of_users().await;
    std::fs::create_dir(root.join("Zed")).expect("made");
    std::fs::create_dir(root.join("lost+found")).expect("made");
    let strays = ["Zoe.db", "acme/a b.db", "Zed/ada.db", "treehold-partitions.db"];
    for name in strays.into_iter().chain(["notes.txt", "acme/notes.txt", "lost+found/1", "acme/ada.db-old"]) {
        std::fs::write(root.join(name), "").expect("written");
    }
    let store = SqliteDirectory::open(&root).expect("opened");
    let findings = store.check().await.expect("checked");
    assert_eq!(findings.len(), strays.len(), "{findings:?}");
    for name in strays {
        let is_named = |error: &Error| error.kind() == ErrorKind::Corrupt && error.message().starts_with(&format!("the file `{name}`"));
        assert!(findings.iter().any(is_named), "{name}: {findings:?}");
    }
    let verified = verify(&store, |_, _| Ok(()), |_| {}).await.expect("verified");
    assert_eq!((verified.rows, verified.faults_count), (3, strays.len() as u64));
    assert_eq!(store.stats().await.expect("counted").items, 3);
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
