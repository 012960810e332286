//! Laws of where bodies are stored: against a model, and of files of earlier versions.

use super::body::{CHUNK_BYTES, IN_ITEM_BYTES, PlaceLimits};
use super::read::ReaderPool;
use super::write::SqliteWriter;
use super::{SqliteOptions, SqliteStore, open};
use bytes::Bytes;
use jiff::Timestamp;
use proptest::prelude::*;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::ErrorKind;
use treehold_store::committer::{Work, Writer};
use treehold_store::{Batch, Item, MigrateOptions, MigrateOutcome, Namespace, ScanEntry, ScanOptions, Store, StoreMaintenance};

/// The chunk length of the model test: with bodies of up to 40 bytes, up to five chunks.
const SMALL: u64 = 8;

#[derive(Debug, Clone)]
enum Step {
    Put {
        key: usize,
        size: usize,
        is_mortal: bool,
    },
    Restore {
        key: usize,
        size: usize,
    },
    Refused {
        key: usize,
        size: usize,
    },
    Touch {
        key: usize,
        expires: bool,
    },
    Delete {
        key: usize,
    },
    DeletePrefix {
        key: usize,
    },
    Sweep {
        limit: usize,
    },
    /// From here on, bodies of other lengths are stored in the row of their item, in a row of their own, as earlier versions did, or in
    /// chunks.
    Store {
        in_item_bytes: u64,
        chunk_bytes: u64,
    },
}

const KEYS: [&str; 4] = ["a", "ab", "abc", "b"];

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(1), 7_usize..10, 15_usize..18, 0_usize..40]
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..KEYS.len();
    prop_oneof![
        6 => (key(), size(), any::<bool>()).prop_map(|(key, size, is_mortal)| Step::Put { key, size, is_mortal }),
        2 => (key(), size()).prop_map(|(key, size)| Step::Restore { key, size }),
        1 => (key(), size()).prop_map(|(key, size)| Step::Refused { key, size }),
        1 => (key(), any::<bool>()).prop_map(|(key, expires)| Step::Touch { key, expires }),
        2 => key().prop_map(|key| Step::Delete { key }),
        1 => key().prop_map(|key| Step::DeletePrefix { key }),
        1 => (0_usize..3).prop_map(|limit| Step::Sweep { limit }),
        2 => (prop_oneof![Just(0), Just(3), Just(9)], prop_oneof![Just(SMALL), Just(5), Just(u64::MAX)])
            .prop_map(|(in_item_bytes, chunk_bytes)| Step::Store { in_item_bytes, chunk_bytes }),
    ]
}

fn body(size: usize, number: usize) -> Bytes {
    (0..size).map(|at| (at * 31 + number * 7) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn bodies_around_the_lengths_match_a_model_and_leave_no_part_behind(steps in prop::collection::vec(step(), 1..40)) {
        let directory = tempfile::tempdir().expect("a directory");
        let clock = Clock::from_fn(|| Timestamp::UNIX_EPOCH);
        let options = SqliteOptions::new(directory.path().join("store.db")).with_clock(clock);
        let (path, connection) = open::open(&options).expect("opened");
        let mut writer = SqliteWriter::new(&path, connection, &options, Arc::default());
        writer.limits = PlaceLimits { in_item_bytes: 3, chunk_bytes: SMALL };
        let pool = Arc::new(ReaderPool::new(path, &options));
        let namespace = Namespace::parse("a").expect("plain");
        let now = 0;
        // The live rows. Expired ones are absent to every reader, whether they were swept or not.
        let mut model: BTreeMap<&str, Bytes> = BTreeMap::new();
        for (number, step) in steps.iter().enumerate() {
            let work = match *step {
                Step::Store { in_item_bytes, chunk_bytes } => {
                    writer.limits = PlaceLimits { in_item_bytes, chunk_bytes };
                    continue;
                }
                Step::Put { key, size, is_mortal } => {
                    let (key, value) = (KEYS[key], body(size, number));
                    if is_mortal { model.remove(key) } else { model.insert(key, value.clone()) };
                    let batch = Batch::new();
                    Work::Commit(if is_mortal { batch.put_for(&namespace, key, value, Duration::ZERO) } else { batch.put(&namespace, key, value) })
                }
                Step::Restore { key, size } => {
                    let (key, value) = (KEYS[key], body(size, number));
                    model.insert(key, value.clone());
                    let (version, epoch) = (treehold_core::ops::Version::new(1_000 + number as u64), Timestamp::UNIX_EPOCH);
                    Work::Commit(Batch::new().restore(&namespace, Item::new(key, Bytes::new(), value, version, epoch, epoch)))
                }
                Step::Refused { key, size } => {
                    let batch = Batch::new().put(&namespace, KEYS[key], body(size, number));
                    Work::Commit(batch.expect(&namespace, "absent", treehold_store::Condition::Exists))
                }
                Step::Touch { key, expires } => {
                    if expires {
                        model.remove(KEYS[key]);
                    }
                    Work::Commit(Batch::new().touch(&namespace, KEYS[key], expires.then_some(Duration::ZERO)))
                }
                Step::Delete { key } => {
                    model.remove(KEYS[key]);
                    Work::Commit(Batch::new().delete(&namespace, KEYS[key]))
                }
                Step::DeletePrefix { key } => {
                    model.retain(|live, _| !live.starts_with(KEYS[key]));
                    Work::Commit(Batch::new().delete_prefix(&namespace, KEYS[key]))
                }
                Step::Sweep { limit } => Work::Sweep(limit),
            };
            let answer = writer.write(&[work]).pop().expect("one answer");
            prop_assert_eq!(answer.is_err(), matches!(step, Step::Refused { .. }));
            let reader = pool.take().expect("a reader");
            for key in KEYS {
                let read = reader.get(&namespace, key, now, Some(u64::MAX)).expect("read").into_item();
                prop_assert_eq!(read.as_ref().map(|item| &item.value), model.get(key), "{} after {:?}", key, step);
                let Some(value) = model.get(key) else { continue };
                let size = value.len() as u64;
                for start in 0..=size {
                    for end in [start, start + 1, start + SMALL, size, size + 9] {
                        let part = reader.get_part(&namespace, key, now, &(start..end)).expect("read").expect("it exists");
                        let expected = value.slice(start as usize..end.clamp(start, size) as usize);
                        prop_assert_eq!((part.item.value, part.value_bytes), (expected, size), "{}..{} of {}", start, end, key);
                    }
                }
            }
            prop_assert!(reader.check().expect("checked").is_empty(), "after {:?}", step);
            let orphans = "SELECT COUNT(*) FROM chunks LEFT JOIN items ON items.id = item WHERE items.id IS NULL OR chunk_bytes <= 0";
            prop_assert_eq!(reader.connection().query_row(orphans, [], |row| row.get::<_, u64>(0)).expect("counted"), 0);
        }
    }
}

/// Returns a store with a long body, and its file.
async fn with_long_body(directory: &tempfile::TempDir) -> (SqliteStore, Namespace, Connection) {
    let path = directory.path().join("store.db");
    let store = SqliteStore::open(&path).expect("opened");
    let namespace = Namespace::parse("a").expect("plain");
    let long = body(2 * CHUNK_BYTES as usize + 5, 1);
    store.commit(Batch::new().put(&namespace, "long", long).put(&namespace, "short", "body")).await.expect("committed");
    assert!(store.check().await.expect("checked").is_empty());
    (store, namespace, Connection::open(&path).expect("opened"))
}

#[tokio::test]
async fn every_damage_of_chunks_is_found_and_read_as_corrupt() {
    for (damage, is_read_as_corrupt) in [
        ("DELETE FROM chunks WHERE number = 0", true),
        ("DELETE FROM chunks WHERE number = 2", true),
        ("DELETE FROM chunks", true),
        ("UPDATE chunks SET number = 7 WHERE number = 1", true),
        ("UPDATE chunks SET body = x'00' WHERE number = 1", true),
        ("INSERT INTO chunks(item, number, body) SELECT item, 3, x'' FROM chunks LIMIT 1", false),
        ("INSERT INTO chunks(item, number, body) SELECT item, -1, body FROM chunks LIMIT 1", false),
        ("INSERT INTO chunks(item, number, body) VALUES (99, 0, x'00')", false),
        ("INSERT INTO chunks(item, number, body) SELECT id, 0, x'00' FROM items WHERE key = 'short'", false),
        ("INSERT INTO bodies(id, body) SELECT item, x'00' FROM chunks LIMIT 1", false),
        ("UPDATE items SET size = size + 1 WHERE key = 'long'", true),
        ("UPDATE items SET chunk_bytes = 0 WHERE key = 'long'", true),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, namespace, connection) = with_long_body(&directory).await;
        connection.execute(damage, []).expect("damaged");
        let found = store.check().await.expect("checked");
        assert!(!found.is_empty() && found.iter().all(|error| error.kind() == ErrorKind::Corrupt), "{damage}: {found:?}");
        let (whole, part) = (store.get(&namespace, "long").await, store.get_part(&namespace, "long", 5..3 * CHUNK_BYTES).await);
        assert_eq!(whole.err().map(|error| error.kind()), is_read_as_corrupt.then_some(ErrorKind::Corrupt), "{damage}");
        assert_eq!(part.err().map(|error| error.kind()), is_read_as_corrupt.then_some(ErrorKind::Corrupt), "{damage}");
    }
}

#[tokio::test]
async fn every_damage_of_a_small_body_is_found_and_read_as_corrupt() {
    for (damage, key) in [
        ("UPDATE items SET body = NULL WHERE key = 'short'", "short"),
        ("UPDATE items SET body = x'00' WHERE key = 'short'", "short"),
        ("UPDATE items SET size = size + 1 WHERE key = 'short'", "short"),
        ("UPDATE items SET chunk_bytes = 0 WHERE key = 'short'", "short"),
        ("UPDATE items SET chunk_bytes = -1 WHERE key = 'long'", "long"),
        ("UPDATE items SET chunk_bytes = -2 WHERE key = 'long'", "long"),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, namespace, connection) = with_long_body(&directory).await;
        connection.execute(damage, []).expect("damaged");
        let found = store.check().await.expect("checked");
        assert!(!found.is_empty() && found.iter().all(|error| error.kind() == ErrorKind::Corrupt), "{damage}: {found:?}");
        for failed in [store.get(&namespace, key).await.err(), store.get_part(&namespace, key, 1..2).await.err()] {
            assert_eq!(failed.map(|error| error.kind()), Some(ErrorKind::Corrupt), "{damage}");
        }
    }
}

/// A body is where its length says, so that neither a put nor a listing takes longer than measured.
#[tokio::test]
async fn length_of_a_body_decides_where_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store.db");
    let store = SqliteStore::open(&path).expect("opened");
    let namespace = Namespace::parse("a").expect("plain");
    let connection = Connection::open(&path).expect("opened");
    for (size, expected) in [
        (0, (0, 0, 0)),
        (1, (1, 0, 0)),
        (IN_ITEM_BYTES, (1, 0, 0)),
        (IN_ITEM_BYTES + 1, (0, 1, 0)),
        (CHUNK_BYTES, (0, 1, 0)),
        (CHUNK_BYTES + 1, (0, 0, 2)),
        (IN_ITEM_BYTES, (1, 0, 0)),
        (0, (0, 0, 0)),
    ] {
        store.commit(Batch::new().put(&namespace, "k", body(size as usize, 1))).await.expect("committed");
        let sql = "SELECT (SELECT COUNT(body) FROM items), (SELECT COUNT(*) FROM bodies), (SELECT COUNT(*) FROM chunks)";
        let counted: (u64, u64, u64) = connection.query_row(sql, [], |row| row.try_into()).expect("counted");
        assert_eq!(counted, expected, "{size}");
        assert!(store.check().await.expect("checked").is_empty());
    }
}

/// Makes a file of the version before bodies were split, with a long body and an item with time left.
fn make_file_without_chunks(options: &SqliteOptions) -> Bytes {
    let long = body(3 * CHUNK_BYTES as usize, 4);
    let (path, connection) = open::open(options).expect("opened");
    let mut writer = SqliteWriter::new(&path, connection, options, Arc::default());
    writer.limits = PlaceLimits { in_item_bytes: 0, chunk_bytes: u64::MAX };
    let namespace = Namespace::parse("a").expect("plain");
    let batch = Batch::new().put(&namespace, "long", long.clone()).put(&namespace, "short", "body");
    assert!(writer.write(&[Work::Commit(batch)])[0].is_ok());
    drop(writer);
    let former = "DROP INDEX items_in_chunks; DROP TABLE chunks; ALTER TABLE items DROP COLUMN chunk_bytes; ALTER TABLE items DROP COLUMN body; PRAGMA user_version = 2; \
                  PRAGMA application_id = 0x73747274; UPDATE items SET namespace = 'a/'";
    Connection::open(&path).expect("opened").execute_batch(former).expect("made");
    long
}

#[tokio::test]
async fn migrated_file_without_chunks_keeps_its_bodies() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db"));
    let long = make_file_without_chunks(&options);
    SqliteStore::migrate(&options, &MigrateOptions::new(), &mut |_| {}).expect("migrated");
    let store = SqliteStore::open_with(options.clone()).expect("opened");
    let namespace = Namespace::parse("a").expect("plain");
    assert!(store.check().await.expect("checked").is_empty());
    let part = store.get_part(&namespace, "long", 7..9).await.expect("read").expect("it exists");
    assert_eq!((part.item.value, part.value_bytes), (long.slice(7..9), long.len() as u64));
    let page = store.scan(&namespace, ScanOptions::new().with_values(true)).await.expect("scanned");
    let values: Vec<Bytes> =
        page.entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item.value) } else { None }).collect();
    assert!(values == [long.clone(), Bytes::from_static(b"body")]);
    // The next put splits it.
    store.commit(Batch::new().put(&namespace, "long", long.clone())).await.expect("committed");
    assert!(store.get(&namespace, "long").await.expect("read").expect("it exists").value == long);
    assert!(store.check().await.expect("checked").is_empty());
    let connection = Connection::open(&options.path).expect("opened");
    let counted: (u64, u64) = connection
        .query_row("SELECT (SELECT COUNT(*) FROM chunks), (SELECT COUNT(*) FROM bodies)", [], |row| row.try_into())
        .expect("counted");
    assert_eq!(counted, (3, 1));
    // The next put takes it into the row of its item.
    store.commit(Batch::new().put(&namespace, "short", "body")).await.expect("committed");
    assert!(store.check().await.expect("checked").is_empty());
    assert_eq!(connection.query_row("SELECT COUNT(*) FROM bodies", [], |row| row.get::<_, u64>(0)), Ok(0));
    drop(store);
    let mark: i32 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).expect("read");
    assert_eq!(&mark.to_be_bytes(), b"thld");
}

/// Makes a file of the version before small bodies were in the rows of their items. Returns what it holds.
fn make_file_of_format_5(options: &SqliteOptions, namespace: &Namespace) -> BTreeMap<&'static str, Bytes> {
    let bodies = BTreeMap::from([("empty", 0), ("long", CHUNK_BYTES as usize + 5), ("medium", 3_000), ("short", 4)]);
    let bodies: BTreeMap<_, _> = bodies.into_iter().map(|(key, size)| (key, body(size, 2))).collect();
    let (path, connection) = open::open(options).expect("opened");
    let mut writer = SqliteWriter::new(&path, connection, options, Arc::default());
    writer.limits.in_item_bytes = 0;
    let batch = bodies.iter().fold(Batch::new(), |batch, (key, value)| batch.put(namespace, *key, value.clone()));
    assert!(writer.write(&[Work::Commit(batch)])[0].is_ok());
    drop(writer);
    let connection = Connection::open(path).expect("opened");
    connection.execute_batch("ALTER TABLE items DROP COLUMN body; PRAGMA user_version = 5").expect("made");
    bodies
}

async fn assert_holds(store: &dyn Store, namespace: &Namespace, bodies: &BTreeMap<&'static str, Bytes>) {
    for (key, value) in bodies {
        assert!(store.get(namespace, key).await.expect("read").expect("it exists").value == *value, "{key}");
    }
}

#[tokio::test]
async fn file_of_format_5_is_upgraded_once_by_many_threads_and_keeps_its_bodies() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db"));
    let namespace = Namespace::parse("a").expect("plain");
    let bodies = make_file_of_format_5(&options, &namespace);
    let stores: Vec<SqliteStore> = std::thread::scope(|scope| {
        let open = || SqliteStore::open_with(options.clone()).expect("opened");
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for store in &stores {
        assert_holds(store, &namespace, &bodies).await;
        assert!(store.check().await.expect("checked").is_empty());
    }
    // Each put moves a body to its present place.
    for (key, value) in &bodies {
        stores[0].commit(Batch::new().put(&namespace, *key, value.clone())).await.expect("committed");
    }
    assert_holds(&stores[1], &namespace, &bodies).await;
    assert!(stores[1].check().await.expect("checked").is_empty());
    let connection = Connection::open(&options.path).expect("opened");
    let sql = "SELECT (SELECT COUNT(body) FROM items), (SELECT COUNT(*) FROM bodies), (SELECT COUNT(*) FROM chunks)";
    assert_eq!(connection.query_row(sql, [], |row| row.try_into()), Ok((1, 1, 2)));
}

/// A program of the earlier version would not find the bodies that this one writes.
#[tokio::test]
async fn file_of_format_5_is_not_upgraded_while_another_process_has_it_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db")).with_busy_timeout(Duration::ZERO);
    let namespace = Namespace::parse("a").expect("plain");
    let bodies = make_file_of_format_5(&options, &namespace);
    let other = Connection::open(&options.path).expect("opened");
    assert_eq!(other.query_row("SELECT COUNT(*) FROM items", [], |row| row.get::<_, usize>(0)), Ok(bodies.len()));
    let error = SqliteStore::open_with(options.clone()).expect_err("it is in use");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("stop that process"), "{error}");
    assert_eq!(other.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0)), Ok(5));
    drop(other);
    assert_holds(&SqliteStore::open_with(options).expect("nobody else has it open"), &namespace, &bodies).await;
}

#[tokio::test]
async fn partition_of_format_5_in_a_directory_is_upgraded() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let namespace = Namespace::new(["acme", "ada", "memories"]).expect("plain");
    let store = super::SqliteDirectory::open(&path).expect("opened");
    store.commit(Batch::new().put(&namespace, "first", "")).await.expect("committed");
    drop(store);
    let bodies = make_file_of_format_5(&SqliteOptions::new(path.join("acme/ada.db")), &namespace);
    assert_holds(&super::SqliteDirectory::open(&path).expect("opened"), &namespace, &bodies).await;
}

/// A put repairs a row whose place was damaged.
#[tokio::test]
async fn put_over_a_row_with_a_damaged_place_is_kept() {
    for (key, damage) in [
        ("short", "UPDATE items SET chunk_bytes = 0 WHERE key = 'short'"),
        ("short", "UPDATE items SET chunk_bytes = 7 WHERE key = 'short'"),
        ("medium", "UPDATE items SET chunk_bytes = -1 WHERE key = 'medium'"),
        ("medium", "DELETE FROM bodies"),
        ("long", "UPDATE items SET chunk_bytes = 0 WHERE key = 'long'"),
        ("long", "DELETE FROM chunks"),
    ] {
        for size in [4, 3_000, CHUNK_BYTES as usize + 1] {
            let directory = tempfile::tempdir().expect("a directory");
            let (store, namespace, connection) = with_long_body(&directory).await;
            store.commit(Batch::new().put(&namespace, "medium", body(3_000, 3))).await.expect("committed");
            connection.execute(damage, []).expect("damaged");
            let value = body(size, 4);
            store.commit(Batch::new().put(&namespace, key, value.clone())).await.expect("committed");
            assert!(store.get(&namespace, key).await.expect("read").expect("it exists").value == value, "{damage}, {size}");
        }
    }
}

/// The former mark counts only together with a schema version that had it.
#[test]
fn file_with_former_mark_and_present_version_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db"));
    drop(SqliteStore::open_with(options.clone()).expect("made"));
    let connection = Connection::open(&options.path).expect("opened");
    connection.execute_batch("PRAGMA application_id = 0x73747274; PRAGMA wal_checkpoint(TRUNCATE)").expect("marked");
    drop(connection);
    assert_eq!(SqliteStore::open_with(options).expect_err("it is not ours").kind(), ErrorKind::Corrupt);
}

/// A program of the earlier version would not find the bodies that this one writes.
#[test]
fn file_without_chunks_is_not_migrated_while_another_process_has_it_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db")).with_busy_timeout(Duration::ZERO);
    make_file_without_chunks(&options);
    let other = Connection::open(&options.path).expect("opened");
    let count = || other.query_row("SELECT COUNT(*) FROM items", [], |row| row.get::<_, u64>(0));
    assert_eq!(count(), Ok(2));
    let migrate = || SqliteStore::migrate(&options, &MigrateOptions::new(), &mut |_| {});
    let error = migrate().expect_err("it is in use");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("stop every server"), "{error}");
    assert_eq!(count(), Ok(2));
    assert_eq!(other.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0)), Ok(2));
    drop(other);
    assert_eq!(migrate().expect("nobody else has it open").outcome, MigrateOutcome::Migrated);
}

/// Several threads migrate a file at once; each finds it whole.
#[test]
fn file_without_chunks_is_migrated_once_by_many_threads() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("store.db"));
    make_file_without_chunks(&options);
    let outcomes = std::thread::scope(|scope| {
        let migrate = || SqliteStore::migrate(&options, &MigrateOptions::new(), &mut |_| {}).expect("migrated").outcome;
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(migrate)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == MigrateOutcome::Migrated).count(), 1);
    SqliteStore::open_with(options).expect("opened");
}
