//! One SQLite file: refusals, sharing, and leftovers.

use super::namespace;
use rusqlite::Connection;
use std::fs;
use std::path::Path;
use std::time::Duration;
use treehold::ErrorKind;
use treehold::ops::Durability;
use treehold::store::{Batch, Condition, ScanOptions, SnapshotOptions, SnapshotProgress, SqliteOptions, SqliteStore, Store, StoreExt};

async fn put(store: &SqliteStore, key: &str, value: &str) -> u64 {
    store.commit(Batch::new().put(&namespace(), key, value.to_owned())).await.unwrap()[0].number()
}

async fn value(store: &SqliteStore, key: &str) -> Option<String> {
    let item = store.get(&namespace(), key).await.unwrap()?;
    Some(String::from_utf8(item.value.to_vec()).unwrap())
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn rows_and_counter_survive_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.to_string(), "sqlite:store.db", "the path is for the operator");
    assert_eq!(store.capabilities().durability, Durability::Power);
    let first = put(&store, "k", "one").await;
    store.commit(Batch::new().delete(&namespace(), "k")).await.unwrap();
    drop(store);
    // Closing the last handle folds the log into the file.
    assert_eq!(names(directory.path()), ["store.db"]);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(value(&store, "k").await, None);
    assert!(put(&store, "k", "two").await > first + 1);
}

#[tokio::test]
async fn clone_keeps_the_store_open() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("store.db")).unwrap();
    let clone = store.clone();
    drop(store);
    put(&clone, "k", "v").await;
    assert_eq!(value(&clone, "k").await.as_deref(), Some("v"));
}

#[tokio::test]
async fn submitted_writes_finish_before_the_store_closes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = SqliteStore::open(&path).unwrap();
    for number in 0..20 {
        let mut dropped = Box::pin(store.commit(Batch::new().put(&namespace(), format!("{number}"), "v")));
        assert!(futures::poll!(&mut dropped).is_pending());
    }
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.scan(&namespace(), ScanOptions::new()).await.unwrap().entries.len(), 20);
}

#[test]
fn foreign_file_is_refused_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "not a database").unwrap();
    // Less than a page. Regression: the engine treated it as an empty file and filled it.
    let byte = directory.path().join("byte");
    fs::write(&byte, "x").unwrap();
    let other = directory.path().join("other.db");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE items(a); INSERT INTO items VALUES (1)").unwrap();
    let logged = directory.path().join("logged.db");
    let log = Connection::open(&logged).unwrap();
    log.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t(a); INSERT INTO t VALUES (1)").unwrap();
    let before: Vec<_> = names(directory.path());
    for path in [&text, &byte, &other, &logged] {
        let bytes = fs::read(path).unwrap();
        let error = SqliteStore::open(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        assert!(error.message().contains("is not a treehold store"), "{error}");
        assert_eq!(fs::read(path).unwrap(), bytes);
    }
    assert_eq!(names(directory.path()), before);
}

#[tokio::test]
async fn newer_file_is_refused_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    drop(SqliteStore::open(&path).unwrap());
    Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
    let bytes = fs::read(&path).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("newer version"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(names(directory.path()), ["store.db"]);
}

#[test]
fn invalid_location_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let absent = SqliteStore::open(directory.path().join("absent/store.db")).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound, "{absent:?}");
    let place = SqliteStore::open(directory.path()).unwrap_err();
    assert_eq!(place.kind(), ErrorKind::IsDirectory, "{place:?}");
    assert_eq!(names(directory.path()), [""; 0]);
}

/// Run on a thread without root privileges; the threads that it starts have none either.
#[cfg(target_os = "linux")]
#[test]
fn unwritable_location_is_permission_denied() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let refused = || {
        let error = SqliteStore::open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
        assert!(error.message().contains("change the permissions"), "{error}");
        assert!(!error.to_string().contains("store.db"), "the path is for the operator: {error}");
    };
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let unprivileged = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective = CapabilitySet::empty();
        set_capabilities(None, sets).unwrap();
        // There is no file yet, and none can be created.
        set_mode(directory.path(), 0o500);
        refused();
        set_mode(directory.path(), 0o700);
        drop(SqliteStore::open(&path).unwrap());
        // The log cannot be created beside the file.
        set_mode(directory.path(), 0o500);
        refused();
        set_mode(directory.path(), 0o700);
        // Regression: the engine opened the file read-only, and the first commit failed.
        set_mode(&path, 0o400);
        refused();
        set_mode(&path, 0o200);
        refused();
        set_mode(&path, 0o600);
        let open = SqliteStore::open(&path).unwrap();
        // The log exists already, and all the necessary files are writable.
        set_mode(directory.path(), 0o500);
        drop(SqliteStore::open(&path).unwrap());
        set_mode(&directory.path().join("store.db-wal"), 0o400);
        refused();
        set_mode(directory.path(), 0o700);
        drop(open);
    };
    std::thread::scope(|scope| scope.spawn(unprivileged).join().unwrap());
}

/// Several processes share a log, and a long read lets it grow. It shrinks some commits after the read has ended.
#[tokio::test]
async fn log_that_grew_during_a_long_read_is_truncated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let log_bytes = || fs::metadata(directory.path().join("store.db-wal")).unwrap().len();
    let store = SqliteStore::open_with(SqliteOptions::new(&path).with_log_bytes_max(100_000)).unwrap();
    put(&store, "k", "first").await;
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN").unwrap();
    let seen = || reader.query_row("SELECT version FROM items", [], |row| row.get::<_, u64>(0)).unwrap();
    let first = seen();
    // Equal content would not be written again.
    let body = |number: u64| format!("{number:05}").repeat(4_000);
    for number in 0..100 {
        put(&store, "k", &body(number)).await;
    }
    assert!(log_bytes() > 2_000_000, "{}", log_bytes());
    assert_eq!(seen(), first, "the snapshot does not change");
    reader.execute_batch("COMMIT").unwrap();
    for number in 100..200 {
        put(&store, "k", &body(number)).await;
    }
    assert!(log_bytes() < 200_000, "{}", log_bytes());
}

#[tokio::test]
async fn file_can_have_any_name() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["file:x?mode=ro", "a b%20c", "日本#", ":memory:", "x?immutable=1"] {
        let path = directory.path().join(name);
        put(&SqliteStore::open(&path).unwrap(), "k", name).await;
        assert!(path.is_file(), "{name}");
        assert_eq!(value(&SqliteStore::open(&path).unwrap(), "k").await.as_deref(), Some(name));
    }
}

#[cfg(unix)]
#[tokio::test]
async fn files_are_accessible_to_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("store.db")).unwrap();
    put(&store, "k", "v").await;
    assert_eq!(names(directory.path()), ["store.db", "store.db-shm", "store.db-wal"]);
    for name in names(directory.path()) {
        let mode = fs::metadata(directory.path().join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

/// Between two page writes of a checkpoint, the file is shorter than its header says; the rest is in the log.
#[tokio::test]
async fn interrupted_checkpoint_is_not_damage() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("store.db"), directory.path().join("copy.db"));
    let store = SqliteStore::open(&path).unwrap();
    put(&store, "k", &"long ".repeat(50_000)).await;
    let short = fs::read(&path).unwrap();
    fs::copy(directory.path().join("store.db-wal"), directory.path().join("copy.db-wal")).unwrap();
    drop(store);
    let whole = fs::read(&path).unwrap();
    assert!(short.len() < whole.len() / 2);
    fs::write(&copy, [&whole[..4096], &short[4096..]].concat()).unwrap();
    let store = SqliteStore::open(&copy).unwrap();
    assert_eq!(value(&store, "k").await.map(|value| value.len()), Some(250_000));
}

#[tokio::test]
async fn row_without_its_body_is_corrupt() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = SqliteStore::open(&path).unwrap();
    put(&store, "k", "body").await;
    put(&store, "long", &"body ".repeat(500)).await;
    put(&store, "empty", "").await;
    Connection::open(&path).unwrap().execute_batch("DELETE FROM bodies; UPDATE items SET body = NULL").unwrap();
    for key in ["k", "long"] {
        let error = store.get(&namespace(), key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        let error = store.get_part(&namespace(), key, 1..2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    }
    let error = store.scan(&namespace(), ScanOptions::new().with_values(true)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    // Reads that do not need the body succeed.
    assert_eq!(value(&store, "empty").await.as_deref(), Some(""));
    assert_eq!(store.scan(&namespace(), ScanOptions::new()).await.unwrap().entries.len(), 3);
}

#[tokio::test]
async fn damaged_file_is_corrupt_not_empty() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = SqliteStore::open(&path).unwrap();
    for number in 0..200 {
        put(&store, &format!("{number}"), &"body ".repeat(500)).await;
    }
    drop(store);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..].fill(0xA5);
    fs::write(&path, bytes).unwrap();
    let damaged = match SqliteStore::open(&path) {
        Ok(store) => store.scan(&namespace(), ScanOptions::new()).await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(damaged.kind(), ErrorKind::Corrupt, "{damaged:?}");
}

#[tokio::test]
async fn two_stores_on_one_file_see_each_others_writes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let (one, other) = (SqliteStore::open(&path).unwrap(), SqliteStore::open(&path).unwrap());
    let version = put(&one, "k", "one").await;
    assert_eq!(value(&other, "k").await.as_deref(), Some("one"));
    assert!(put(&other, "k", "other").await > version);
    // Closing one handle does not release the other's locks: its file is not folded away.
    drop(one);
    put(&other, "k", "still").await;
    assert_eq!(value(&SqliteStore::open(&path).unwrap(), "k").await.as_deref(), Some("still"));
}

#[test]
fn new_file_is_created_once_by_concurrent_openers() {
    for _ in 0..5 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.db");
        let stores: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| SqliteStore::open(&path).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(stores.len(), 8);
    }
}

#[tokio::test]
async fn lock_that_is_never_released_is_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = SqliteStore::open_with(SqliteOptions::new(&path).with_busy_timeout(Duration::from_millis(20))).unwrap();
    put(&store, "k", "before").await;
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = futures::future::join_all((0..5).map(|_| store.commit(Batch::new().put(&namespace(), "k", "lost")))).await;
    for answer in refused {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.kind().is_transient() && std::error::Error::source(&error).is_some());
        assert!(error.is_without_effect(), "any batch may be retried");
    }
    assert_eq!(value(&store, "k").await.as_deref(), Some("before"), "reads wait for nobody");
    other.execute_batch("COMMIT").unwrap();
    put(&store, "k", "after").await;
    assert_eq!(value(&store, "k").await.as_deref(), Some("after"));
}

#[tokio::test]
async fn batch_refused_by_the_engine_fails_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let store = SqliteStore::open(&path).unwrap();
    let refuse_bad = "CREATE TRIGGER t BEFORE INSERT ON items WHEN NEW.key = 'bad' BEGIN SELECT RAISE(ABORT, 'bad'); END";
    Connection::open(&path).unwrap().execute_batch(refuse_bad).unwrap();
    let batches = (0..20).map(|number| {
        let batch = Batch::new().put(&namespace(), format!("{number:02}"), "v");
        store.commit(if number % 5 == 2 { batch.put(&namespace(), "bad", "v") } else { batch })
    });
    let answers = futures::future::join_all(batches).await;
    let failed: Vec<usize> = answers.iter().enumerate().filter(|(_, answer)| answer.is_err()).map(|(number, _)| number).collect();
    assert_eq!(failed, [2, 7, 12, 17]);
    let kept = store.scan(&namespace(), ScanOptions::new()).await.unwrap().entries;
    assert_eq!(kept.len(), 16);
    let versions: Vec<u64> = answers.into_iter().flatten().map(|versions| versions[0].number()).collect();
    assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
}

#[tokio::test]
async fn conflicting_batch_does_not_affect_its_group() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("store.db")).unwrap();
    let batches = (0..20).map(|number| {
        let batch = Batch::new().put(&namespace(), format!("{number:02}"), "v");
        store.commit(if number % 2 == 0 { batch } else { batch.expect(&namespace(), "absent", Condition::Exists) })
    });
    let answers = futures::future::join_all(batches).await;
    assert!(answers.iter().enumerate().all(|(number, answer)| answer.is_ok() == (number % 2 == 0)));
    assert_eq!(store.scan(&namespace(), ScanOptions::new()).await.unwrap().entries.len(), 10);
}

/// Several writers commit batches of four equal rows while snapshots are taken. Each snapshot shows whole batches only, and all of those
/// that were acknowledged before it began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_under_writers_shows_one_moment() {
    const WRITERS: u64 = 4;
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("store.db")).unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let acknowledged: std::sync::Arc<Vec<std::sync::atomic::AtomicU64>> = std::sync::Arc::new((0..WRITERS).map(|_| 0.into()).collect());
    let relaxed = std::sync::atomic::Ordering::SeqCst;
    let batch = |writer: u64, number: u64| {
        let body = format!("{number} ").repeat(2_000);
        (0..4).fold(Batch::new(), |batch, row| batch.put(&namespace(), format!("{writer}/{row}"), body.clone()))
    };
    for writer in 0..WRITERS {
        store.commit(batch(writer, 0)).await.unwrap();
    }
    // One of them is another handle on the file, as another process would have. It may wait for several commits of the others.
    let options = SqliteOptions::new(directory.path().join("store.db")).with_busy_timeout(Duration::from_secs(120));
    let other = SqliteStore::open_with(options).unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = if writer == 0 { other.clone() } else { store.clone() };
            let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
            tokio::spawn(async move {
                for number in 1.. {
                    if stop.load(relaxed) {
                        return;
                    }
                    store.commit(batch(writer, number)).await.unwrap();
                    acknowledged[writer as usize].store(number, relaxed);
                }
            })
        })
        .collect();
    // At least five rounds, and as many as it takes for every writer to have written during them.
    let wrote_all_the_while = || acknowledged.iter().all(|number| number.load(relaxed) > 5);
    for round in 0.. {
        if round >= 5 && wrote_all_the_while() {
            break;
        }
        let before: Vec<u64> = acknowledged.iter().map(|number| number.load(relaxed)).collect();
        let path = directory.path().join(format!("snapshot{round}.db"));
        let mut told = 0;
        let bytes = store.snapshot(SnapshotOptions::new(&path), |at| told = told.max(at.bytes)).await.unwrap();
        assert_eq!(bytes, fs::metadata(&path).unwrap().len());
        assert!(told <= bytes);
        let snapshot = SqliteStore::open(&path).unwrap();
        assert!(snapshot.check().await.unwrap().is_empty());
        for writer in 0..WRITERS {
            let mut numbers = Vec::new();
            for row in 0..4 {
                let body = value(&snapshot, &format!("{writer}/{row}")).await.unwrap();
                numbers.push(body.split(' ').next().unwrap().parse::<u64>().unwrap());
            }
            assert!(numbers.iter().all(|number| *number == numbers[0] && *number >= before[writer as usize]), "{numbers:?} {before:?}");
        }
        // The snapshot is a complete store.
        put(&snapshot, "own", "x").await;
        assert_eq!(value(&store, "own").await, None);
    }
    stop.store(true, relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn snapshot_replaces_existing_file_only_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let (path, target) = (directory.path().join("store.db"), directory.path().join("snapshot.db"));
    let store = SqliteStore::open(&path).unwrap();
    put(&store, "k", "v").await;
    fs::write(&target, "somebody's").unwrap();
    let taken = async |options| store.snapshot(options, |_| {}).await.map_err(|error| error.kind());
    assert_eq!(taken(SnapshotOptions::new(&target)).await, Err(ErrorKind::AlreadyExists));
    assert_eq!(fs::read(&target).unwrap(), b"somebody's");
    assert_eq!(taken(SnapshotOptions::new(&path).with_replace(true)).await, Err(ErrorKind::InvalidArgument));
    assert_eq!(taken(SnapshotOptions::new(directory.path().join("absent/a.db"))).await, Err(ErrorKind::NotFound));
    assert_eq!(taken(SnapshotOptions::new(directory.path()).with_replace(true)).await, Err(ErrorKind::IsDirectory));
    // The log of another database would be replayed into it.
    let open = SqliteStore::open(directory.path().join("open.db")).unwrap();
    put(&open, "k", "other").await;
    assert_eq!(taken(SnapshotOptions::new(directory.path().join("open.db")).with_replace(true)).await, Err(ErrorKind::AlreadyExists));
    drop(open);
    for replaced in ["snapshot.db", "open.db"] {
        taken(SnapshotOptions::new(directory.path().join(replaced)).with_replace(true)).await.unwrap();
        assert_eq!(value(&SqliteStore::open(directory.path().join(replaced)).unwrap(), "k").await.as_deref(), Some("v"));
    }
    assert_eq!(names(directory.path()), ["open.db", "snapshot.db", "store.db", "store.db-shm", "store.db-wal"], "nothing is left beside");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// Regression: only the thread that copies removed the file, so a program that was interrupted left it.
#[tokio::test(flavor = "multi_thread")]
async fn snapshot_dropped_while_it_copies_removes_its_file_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (store, target) = (SqliteStore::open(directory.path().join("store.db")).unwrap(), directory.path().join("snapshot.db"));
    let mut rows = 0;
    // A copy may be complete before it is dropped. Then it is tried again with a larger store.
    for wanted in [100, 300, 900, 2_700] {
        while rows < wanted {
            put(&store, &format!("{rows}"), &"x".repeat(400_000)).await;
            rows += 1;
        }
        let copying = tokio::sync::Notify::new();
        let report = |at: SnapshotProgress| {
            if at.bytes < at.bytes_total {
                copying.notify_one();
            }
        };
        let is_dropped = tokio::select! {
            biased;
            () = copying.notified() => true,
            taken = store.snapshot(SnapshotOptions::new(&target), report) => taken.map(|_| false).unwrap(),
        };
        assert!(names(directory.path()).iter().all(|name| !name.ends_with(".tmp")), "{:?}", names(directory.path()));
        // Without its unfinished file, a copy can no longer be completed.
        if is_dropped && !target.exists() {
            return;
        }
        fs::remove_file(&target).unwrap();
    }
    panic!("each copy was complete before it was dropped");
}

#[test]
fn dropped_snapshot_leaves_no_temporary_file() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(directory.path().join("store.db")).unwrap();
        for number in 0..40 {
            put(&store, &format!("{number}"), &"x".repeat(200_000)).await;
        }
        let mut taken = Box::pin(store.snapshot(SnapshotOptions::new(directory.path().join("snapshot.db")), |_| {}));
        assert!(futures::poll!(&mut taken).is_pending());
    });
    // Work on another thread ends before the runtime does.
    drop(runtime);
    assert!(names(directory.path()).iter().all(|name| !name.ends_with(".tmp")), "{:?}", names(directory.path()));
}
