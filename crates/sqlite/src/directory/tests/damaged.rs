//! Parts of a directory that cannot be read: damaged files and pages, and entries that cannot be opened.

use super::*;
use treehold_store::{AllNamespaces, CopyOptions, Faults, MemoryStore, SweepCount, copy, move_user_rows, verify};

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
