//! Stores and archives that are files.

use super::{Expected, Layout, assert_same, expected, migrated, put_sled, put_sqlite, rows_of, unpacked};
use treehold::ErrorKind;
use treehold::config::{OpenStoreOptions, open_store};
use treehold::store::{
    ImportOptions, MemoryStore, MigrateOptions, MigrateOutcome, OldLayout, SledOptions, SledStore, SqliteOptions, SqliteStore, StoreExt,
    Withheld, import,
};

/// An embedded store is migrated on another thread, which a panic of the caller does not stop. So the store is checked once, without
/// interruption; each engine's own tests cover interruptions.
async fn migrates_from_every_step_blocking(layout: Layout, url: &str, put: impl Fn()) {
    let Expected { rows: expected, moved } = expected(layout);
    put();
    let refused = open_store(url, &OpenStoreOptions::new()).await.unwrap_err();
    assert!(OldLayout::is_source_of(&refused) && refused.kind() == ErrorKind::Unsupported, "{refused}");
    let planned = migrated(url, MigrateOptions::new().with_dry_run(true)).await.unwrap();
    assert_eq!((planned.outcome, planned.rows_total()), (MigrateOutcome::Planned, moved));
    assert!(open_store(url, &OpenStoreOptions::new()).await.is_err(), "a dry run changes nothing");
    let report = migrated(url, MigrateOptions::new()).await.unwrap();
    assert_eq!((report.outcome, &report.rows), (MigrateOutcome::Migrated, &planned.rows));
    assert_eq!(migrated(url, MigrateOptions::new()).await.unwrap().outcome, MigrateOutcome::UpToDate);
    let store = open_store(url, &OpenStoreOptions::new()).await.unwrap();
    assert_same(&rows_of(&*store).await, &expected);
    assert_eq!(store.check().await.unwrap().len(), 0);
    drop(store);
    // Interrupted at each step: the engine's own call, on this thread.
    for tells in 0.. {
        put();
        let url_of_step = url.to_owned();
        let stopped = tokio::task::spawn_blocking(move || stopped_after(&url_of_step, tells)).await.unwrap();
        if !stopped {
            assert!(tells > 5, "only {tells} steps reported progress");
            break;
        }
        let refused = open_store(url, &OpenStoreOptions::new().with_create(false)).await.unwrap_err();
        assert!(OldLayout::is_source_of(&refused), "{refused}");
        assert_eq!(migrated(url, MigrateOptions::new()).await.unwrap().outcome, MigrateOutcome::Migrated);
        let store = open_store(url, &OpenStoreOptions::new()).await.unwrap();
        assert_same(&rows_of(&*store).await, &expected);
        assert_eq!(store.check().await.unwrap().len(), 0, "interrupted after {tells}");
    }
}

/// Migrates an embedded store until it reported `tells` steps. Returns whether it was stopped.
fn stopped_after(url: &str, tells: usize) -> bool {
    let mut left = tells;
    let mut tell = move |_| {
        assert!(left > 0, "stopped by the test");
        left -= 1;
    };
    let (engine, path) = url.split_once(':').unwrap();
    let run = std::panic::AssertUnwindSafe(|| match engine {
        "sqlite" => SqliteStore::migrate(&SqliteOptions::new(path), &MigrateOptions::new(), &mut tell),
        _ => SledStore::migrate(&SledOptions::new(path), &MigrateOptions::new(), &mut tell),
    });
    // sled's calls are guarded, so the panic becomes an error there.
    !matches!(std::panic::catch_unwind(run), Ok(Ok(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_store_of_a_former_layout_keeps_every_row() {
    for layout in Layout::ALL {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("old.db");
        migrates_from_every_step_blocking(layout, &format!("sqlite:{}", file.display()), || {
            for suffix in ["", "-wal", "-shm", "-journal"] {
                let _ = std::fs::remove_file(directory.path().join(format!("old.db{suffix}")));
            }
            put_sqlite(layout, &file);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sled_store_of_a_former_layout_keeps_every_row() {
    for layout in Layout::ALL {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("old");
        migrates_from_every_step_blocking(layout, &format!("sled:{}", place.display()), || {
            let _ = std::fs::remove_dir_all(&place);
            put_sled(layout, &place);
        })
        .await;
        assert!(place.join("treehold").exists() && !place.join("stratafs").exists(), "the mark has the present name");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_store_open_elsewhere_is_not_migrated() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("old.db");
    put_sqlite(Layout::First, &file);
    let url = format!("sqlite:{}", file.display());
    // As a server of the former version has it open: in write-ahead mode, read from once.
    let server = rusqlite::Connection::open(&file).unwrap();
    let mode: String = server.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).unwrap();
    let rows = |connection: &rusqlite::Connection| connection.query_row("SELECT COUNT(*) FROM items", [], |row| row.get::<_, u64>(0));
    let before = rows(&server).unwrap();
    assert_eq!(mode, "wal");
    let refused = migrated(&url, MigrateOptions::new()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.message().contains("stop every server"), "{refused}");
    assert_eq!(rows(&server).unwrap(), before);
    drop(server);
    assert_eq!(migrated(&url, MigrateOptions::new()).await.unwrap().outcome, MigrateOutcome::Migrated);
}

#[tokio::test(flavor = "multi_thread")]
async fn store_with_rows_in_a_reserved_place_is_refused_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("old.db");
    let url = format!("sqlite:{}", file.display());
    let long_tokens = format!("tokens/{}/", "x".repeat(1_010));
    let long = format!("{}/", "x".repeat(1_023));
    for (layout, namespace, kind) in [
        (Layout::First, "_treehold/x/", ErrorKind::AlreadyExists),
        (Layout::First, "acme/ada/_treehold/x/", ErrorKind::AlreadyExists),
        (Layout::First, "stratafs/copy/", ErrorKind::Conflict),
        (Layout::First, long_tokens.as_str(), ErrorKind::TooLarge),
        (Layout::First, long.as_str(), ErrorKind::TooLarge),
        (Layout::Second, "acme/ada/_treehold/x/", ErrorKind::AlreadyExists),
        (Layout::Second, "_treehold/copy/", ErrorKind::Conflict),
        (Layout::Second, long.as_str(), ErrorKind::TooLarge),
    ] {
        put_sqlite(layout, &file);
        let connection = rusqlite::Connection::open(&file).unwrap();
        let version = || connection.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0)).unwrap();
        let before = version();
        let sql = "INSERT INTO items(namespace, key, version, created_at, modified_at, size, meta) VALUES (?1, 'k', 1, 0, 0, 0, x'')";
        connection.execute(sql, [namespace]).unwrap();
        drop(connection);
        for how in [MigrateOptions::new().with_dry_run(true), MigrateOptions::new()] {
            let error = migrated(&url, how).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{namespace}: {error}");
        }
        let connection = rusqlite::Connection::open(&file).unwrap();
        assert_eq!(connection.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0)).unwrap(), before, "{namespace}");
        drop(connection);
        let _ = std::fs::remove_file(directory.path().join("old.db-wal"));
    }
}

/// An index is derived from other rows, so a part of one whose namespace becomes too long is removed.
#[tokio::test(flavor = "multi_thread")]
async fn index_whose_namespace_becomes_too_long_is_removed_with_its_bodies() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("old.db");
    let url = format!("sqlite:{}", file.display());
    let index = format!("indexes/{}/", "y".repeat(1_005));
    for (layout, index) in [(Layout::First, index.clone()), (Layout::Second, format!("_treehold/{index}"))] {
        put_sqlite(layout, &file);
        let connection = rusqlite::Connection::open(&file).unwrap();
        let sql = "INSERT INTO items(namespace, key, version, created_at, modified_at, size, meta) VALUES (?1, 'k', 1, 0, 0, 1, x'')";
        connection.execute(sql, [&index]).unwrap();
        connection.execute("INSERT INTO bodies VALUES (last_insert_rowid(), x'01')", []).unwrap();
        drop(connection);
        let expected = expected(layout);
        let report = migrated(&url, MigrateOptions::new()).await.unwrap();
        assert_eq!((report.outcome, report.rows_total()), (MigrateOutcome::Migrated, expected.moved + u64::from(layout == Layout::First)));
        let store = open_store(&url, &OpenStoreOptions::new()).await.unwrap();
        assert_same(&rows_of(&*store).await, &expected.rows);
        assert_eq!(store.check().await.unwrap().len(), 0);
        drop(store);
        let _ = std::fs::remove_file(directory.path().join("old.db-wal"));
    }
}

#[tokio::test]
async fn archive_of_a_former_layout_is_imported_into_the_present_one() {
    for layout in Layout::ALL {
        let store = MemoryStore::new();
        let options = Withheld::ALL.iter().fold(ImportOptions::new(), |options, name| options.with_include(*name));
        import(&store, std::io::Cursor::new(unpacked(layout, "archive.tar.gz")), &options, |_| {}).await.unwrap();
        let mut expected = expected(layout).rows;
        expected.retain(|(namespace, _), _| !namespace.contains("_treehold/indexes"));
        assert_same(&rows_of(&store).await, &expected);
    }
}
