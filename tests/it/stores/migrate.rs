//! Migration of stores written by the last versions of the former layouts (`tests/fixtures/layout1` and `layout2`, created by
//! `scripts/layout1-fixtures.sh` and `scripts/layout2-fixtures.sh`). Each engine migrates them, interrupted at every step, and everything in
//! them can be read through the command and the server.

use crate::serve::process::{Process, command, ended};
use crate::servers;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;
use treehold::ErrorKind;
use treehold::config::{OpenStoreOptions, migrate_store, open_store};
use treehold::store::{
    Batch, ImportOptions, MemoryStore, MigrateOptions, MigrateOutcome, MigrateReport, Namespace, NamespacesOptions, OldLayout, Partition,
    ScanEntry, ScanOptions, SledOptions, SledStore, SqliteOptions, SqliteStore, Store, StoreExt, Withheld, import,
};

/// A row without its key: version, times, expiry, metadata, body.
type Row = (u64, i64, i64, Option<i64>, Bytes, Bytes);

/// All rows by namespace and key.
type Rows = BTreeMap<(String, String), Row>;

/// A former layout. There are fixtures of stores in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// The program's rows beside those of tenants.
    First,
    /// Rows about a user's rows outside of the user's partition.
    Second,
}

impl Layout {
    const ALL: [Self; 2] = [Self::First, Self::Second];

    fn directory(self) -> &'static str {
        match self {
            Self::First => "layout1",
            Self::Second => "layout2",
        }
    }

    /// The name of the product then, from which default names were derived.
    fn product(self) -> &'static str {
        match self {
            Self::First => "stratafs",
            Self::Second => "treehold",
        }
    }

    /// What its stores hold below the reserved root.
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::First => &["threads", "overlays", "items", "events", "indexes", "tokens", "answers"],
            Self::Second => {
                &["threads", "overlays", "items", "events", "indexes", "tokens", "answers", "history", "sessions", "agent-state", "traces"]
            }
        }
    }
}

fn fixture(layout: Layout, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(layout.directory()).join(name)
}

/// Returns a dump of a server's store in which namespaces have their present names, but one counter was for all partitions. It is that of
/// the second layout, migrated.
fn unpacked_of_one_counter(name: &str) -> Vec<u8> {
    unpacked_from(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/layout3").join(name))
}

fn unpacked(layout: Layout, name: &str) -> Vec<u8> {
    unpacked_from(&fixture(layout, name))
}

fn unpacked_from(file: &Path) -> Vec<u8> {
    let output = Command::new("gzip").arg("-dc").arg(file).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

fn facts(layout: Layout) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(layout, "facts.json")).unwrap()).unwrap()
}

/// Writes the SQLite store of a former layout.
fn put_sqlite(layout: Layout, file: &Path) {
    std::fs::write(file, unpacked(layout, &format!("{}.db.gz", layout.product()))).unwrap();
}

/// Writes the sled store of a former layout.
fn put_sled(layout: Layout, directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    let fixture = fixture(layout, "sled.tar.gz");
    let done = Command::new("tar").arg("-xzf").arg(fixture).arg("-C").arg(directory).arg("--strip-components=1").status();
    assert!(done.unwrap().success());
}

/// Returns the name in the present layout of a namespace in a fixture.
fn present_name(layout: Layout, namespace: &str) -> String {
    let namespace = namespace.trim_end_matches('/');
    let (first, rest) = namespace.split_once('/').unwrap_or((namespace, ""));
    let (kind, rest) = match layout {
        Layout::First if layout.kinds().contains(&first) => (first, rest),
        Layout::Second if first == "_treehold" => rest.split_once('/').unwrap_or((rest, "")),
        _ => return namespace.to_owned(),
    };
    let beside = |kind: &str, of: &str| match present_name(layout, of).split('/').collect::<Vec<_>>()[..] {
        [tenant] => format!("{tenant}//_treehold/{kind}"),
        [tenant, user] => format!("{tenant}/{user}/_treehold/{kind}"),
        [tenant, user, ref name @ ..] => format!("{tenant}/{user}/_treehold/{kind}/{}", name.join("/")),
        [] => unreachable!("a text has a part"),
    };
    match (kind, rest.split_once('/')) {
        ("threads", Some((kind, of))) => beside(&format!("threads/{kind}"), of),
        ("overlays" | "items" | "indexes" | "history", _) => beside(kind, rest),
        ("events", Some(("rows", of))) => beside("events/rows", &of.replace("%2F", "/")),
        ("agent-state", Some((tenant, of))) if tenant != "_treehold" => match of.strip_prefix("users/") {
            Some(of) => beside(kind, &format!("{tenant}/{of}")),
            None => format!("{tenant}//_treehold/{kind}/{of}"),
        },
        ("sessions" | "traces", _) if !rest.is_empty() && !rest.starts_with("_treehold/") => beside(kind, rest),
        (_, None) if rest.is_empty() => format!("_treehold/{kind}"),
        _ => format!("_treehold/{kind}/{rest}"),
    }
}

/// What a store is after its migration.
struct Expected {
    rows: Rows,
    /// How many rows move.
    moved: u64,
}

/// Reads the rows of a former layout without this crate, under the names of the present layout.
fn expected(layout: Layout) -> Expected {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("old.db");
    put_sqlite(layout, &file);
    let connection = rusqlite::Connection::open(&file).unwrap();
    let sql = "SELECT namespace, key, version, created_at, modified_at, expires_at, meta, coalesce(body, x'') FROM items i LEFT JOIN bodies b \
               ON b.id = i.id";
    let mut statement = connection.prepare(sql).unwrap();
    let mut moved = 0;
    let rows = statement.query_map([], |row| {
        let before: String = row.get(0)?;
        let namespace = present_name(layout, &before);
        // A namespace of one component gets another slash.
        moved += u64::from(format!("{namespace}/") != before || !namespace.contains('/'));
        let (meta, body): (Vec<u8>, Vec<u8>) = (row.get(6)?, row.get(7)?);
        let place = (namespace, row.get::<_, String>(1)?);
        Ok((place, (row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, Bytes::from(meta), Bytes::from(body))))
    });
    let rows: Rows = rows.unwrap().map(Result::unwrap).collect();
    for kind in layout.kinds() {
        let kind = format!("_treehold/{kind}");
        assert!(rows.keys().any(|(namespace, _)| format!("{namespace}/").contains(&format!("{kind}/"))), "the fixture holds no {kind}");
    }
    Expected { rows, moved }
}

/// Reads all rows of a store.
async fn rows_of(store: &dyn Store) -> Rows {
    let mut rows = Rows::new();
    let namespaces = store.namespaces(NamespacesOptions::new().with_limit(1_000)).await.unwrap();
    assert!(!namespaces.more);
    for namespace in namespaces.namespaces {
        let page = store.scan(&namespace, ScanOptions::new().with_values(true).with_limit(1_000)).await.unwrap();
        assert_eq!(page.next, None);
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { panic!("{entry:?}") };
            let times =
                (item.created_at.as_microsecond(), item.modified_at.as_microsecond(), item.expires_at.map(|at| at.as_microsecond()));
            let row = (item.version.number(), times.0, times.1, times.2, item.meta, item.value);
            rows.insert((namespace.to_string(), item.key), row);
        }
    }
    rows
}

/// Compares without printing bodies.
fn assert_same(found: &Rows, expected: &Rows) {
    let keys = |rows: &Rows| rows.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(found), keys(expected));
    for (place, row) in expected {
        assert_eq!(&found[place], row, "{place:?}");
    }
}

async fn migrated(url: &str, how: MigrateOptions) -> treehold::Result<MigrateReport> {
    migrate_store(url, &OpenStoreOptions::new(), &how, |_| {}).await
}

/// Migrates until the progress was reported `tells` times, then stops as if the process had been killed. Returns whether it was stopped.
async fn interrupted(url: &str, tells: usize) -> bool {
    let url = url.to_owned();
    let task = tokio::spawn(async move {
        let mut left = tells;
        let tell = |_| {
            assert!(left > 0, "stopped by the test");
            left -= 1;
        };
        migrate_store(&url, &OpenStoreOptions::new(), &MigrateOptions::new(), tell).await
    });
    match task.await {
        Ok(Ok(report)) => {
            assert_eq!(report.outcome, MigrateOutcome::Migrated);
            false
        }
        Ok(Err(error)) => {
            assert!(std::error::Error::source(&error).is_some(), "{error:?}");
            true
        }
        Err(error) => {
            assert!(error.is_panic());
            true
        }
    }
}

/// Migrates a store that `put` creates at a URL, once without interruption and once interrupted at each reported step.
async fn migrates_from_every_step(layout: Layout, url: &str, put: impl AsyncFn()) {
    let steps = migrates_from_every_step_to(&expected(layout), url, put).await;
    assert!(steps > 5, "only {steps} steps reported progress");
}

/// Returns how many steps reported progress.
async fn migrates_from_every_step_to(expected: &Expected, url: &str, put: impl AsyncFn()) -> usize {
    let Expected { rows: expected, moved } = expected;
    put().await;
    let refused = open_store(url, &OpenStoreOptions::new()).await.unwrap_err();
    assert!(OldLayout::is_source_of(&refused) && refused.message().contains("treehold store migrate"), "{refused}");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let planned = migrated(url, MigrateOptions::new().with_dry_run(true)).await.unwrap();
    // In PostgreSQL and in a Redis Cluster, every row moves to its partition besides.
    let spread = planned.rows.get("partitions").copied().unwrap_or(0);
    assert_eq!((planned.outcome, planned.rows_total() - spread), (MigrateOutcome::Planned, *moved));
    assert!(open_store(url, &OpenStoreOptions::new()).await.is_err(), "a dry run changes nothing");
    let report = migrated(url, MigrateOptions::new()).await.unwrap();
    let mut rows = report.rows.clone();
    if *moved == 0 {
        // The plan for an engine's tables does not count the rows that move afterwards.
        rows.retain(|name, _| !["sessions", "traces", "agent-state"].contains(name));
    }
    assert_eq!((report.outcome, &rows), (MigrateOutcome::Migrated, &planned.rows));
    assert_eq!(migrated(url, MigrateOptions::new()).await.unwrap().outcome, MigrateOutcome::UpToDate);
    let store = open_store(url, &OpenStoreOptions::new()).await.unwrap();
    assert_same(&rows_of(&*store).await, expected);
    assert_eq!(store.check().await.unwrap().len(), 0);
    let mut newest: BTreeMap<Partition, u64> = BTreeMap::new();
    for ((namespace, _), row) in expected {
        let newest = newest.entry(Namespace::parse(namespace).unwrap().partition()).or_default();
        *newest = row.0.max(*newest);
    }
    for (partition, newest) in newest {
        let before = store.current_version(&partition).await.unwrap();
        let written = store.commit(Batch::new().put(&partition.namespace(["new"]).unwrap(), "k", "v")).await.unwrap();
        assert!(written[0] > before && before.number() >= newest, "{partition}: {before} after {newest}, then {written:?}");
    }
    drop(store);
    for tells in 0.. {
        put().await;
        if !interrupted(url, tells).await {
            return tells;
        }
        let again = migrated(url, MigrateOptions::new()).await.unwrap();
        assert_ne!(again.outcome, MigrateOutcome::Planned);
        let store = open_store(url, &OpenStoreOptions::new()).await.unwrap();
        assert_same(&rows_of(&*store).await, expected);
        assert_eq!(store.check().await.unwrap().len(), 0, "interrupted after {tells}");
    }
    unreachable!("a migration ends")
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
        let refused = open_store(url, &OpenStoreOptions::new()).await.unwrap_err();
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

/// The environment of a child process: which store it migrates, and after how many reported steps it kills itself.
#[cfg(unix)]
const KILLED_URL: &str = "TREEHOLD_TEST_KILLED_URL";
#[cfg(unix)]
const KILLED_AFTER: &str = "TREEHOLD_TEST_KILLED_AFTER";

/// Migrates an embedded store in child processes, each of which is killed at a later step than the one before, and checks that the next
/// migration completes. The test binary starts itself; the environment tells a child what to do.
#[cfg(unix)]
async fn killed_migration_is_completed(test: &str, engine: &str, put: impl Fn(Layout, &Path)) {
    use std::os::unix::process::ExitStatusExt;
    if let Some(url) = std::env::var_os(KILLED_URL) {
        let mut left: usize = std::env::var(KILLED_AFTER).unwrap().parse().unwrap();
        let mut tell = move |_| match left.checked_sub(1) {
            Some(less) => left = less,
            None => rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap(),
        };
        let path = url.to_str().unwrap().split_once(':').unwrap().1;
        // The engine's own call: it reports each step on this thread.
        match engine {
            "sqlite" => SqliteStore::migrate(&SqliteOptions::new(path), &MigrateOptions::new(), &mut tell).unwrap(),
            _ => SledStore::migrate(&SledOptions::new(path), &MigrateOptions::new(), &mut tell).unwrap(),
        };
        return;
    }
    for layout in Layout::ALL {
        let expected = expected(layout).rows;
        for steps in 0.. {
            let directory = tempfile::tempdir().unwrap();
            let place = directory.path().join("old");
            put(layout, &place);
            let url = format!("{engine}:{}", place.display());
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &format!("stores::migrate::{test}")])
                .env(KILLED_URL, &url)
                .env(KILLED_AFTER, steps.to_string())
                .stdout(Stdio::null())
                .status()
                .unwrap();
            if status.success() {
                assert!(steps > 5, "only {steps} steps reported progress");
                break;
            }
            assert_eq!(status.signal(), Some(9), "{layout:?}, killed after {steps} steps");
            let refused = open_store(&url, &OpenStoreOptions::new()).await.unwrap_err();
            assert!(OldLayout::is_source_of(&refused), "{refused}");
            assert_eq!(migrated(&url, MigrateOptions::new()).await.unwrap().outcome, MigrateOutcome::Migrated);
            let store = open_store(&url, &OpenStoreOptions::new()).await.unwrap();
            assert_same(&rows_of(&*store).await, &expected);
            assert_eq!(store.check().await.unwrap().len(), 0, "{layout:?}, killed after {steps} steps");
        }
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn killed_migration_of_a_sqlite_store_is_completed_by_the_next_one() {
    killed_migration_is_completed("killed_migration_of_a_sqlite_store_is_completed_by_the_next_one", "sqlite", put_sqlite).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn killed_migration_of_a_sled_store_is_completed_by_the_next_one() {
    killed_migration_is_completed("killed_migration_of_a_sled_store_is_completed_by_the_next_one", "sled", put_sled).await;
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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn postgres_store_of_a_former_layout_keeps_every_row() {
    let schema = servers::postgres::schema().await;
    // A separate database, because the schema has a default name.
    let database = schema.name.replace(' ', "_");
    let admin = servers::postgres::connect(&schema.url).await.unwrap();
    admin.batch_execute(&format!("CREATE DATABASE \"{database}\"")).await.unwrap();
    let (server, _) = schema.url.rsplit_once('/').unwrap();
    let url = format!("{server}/{database}");
    let client = servers::postgres::connect(&url).await.unwrap();
    let load = async |layout: Layout| {
        client.batch_execute("DROP SCHEMA IF EXISTS stratafs CASCADE; DROP SCHEMA IF EXISTS treehold CASCADE").await.unwrap();
        client.batch_execute(&String::from_utf8(unpacked(layout, "postgres.sql.gz")).unwrap()).await.unwrap();
    };
    for layout in Layout::ALL {
        migrates_from_every_step(layout, &url, async || load(layout).await).await;
    }
    // A server of the second layout finds no counter, and fails instead of writing rows that nobody reads.
    assert!(client.batch_execute("UPDATE treehold.counter SET version = version").await.is_err());
    // A namespace without rows is listed no more.
    load(Layout::Second).await;
    client.batch_execute("INSERT INTO treehold.touched VALUES ('empty/', 1)").await.unwrap();
    migrated(&url, MigrateOptions::new()).await.unwrap();
    let listed = client.query_one("SELECT count(*) FROM treehold.namespaces WHERE partition = 'empty//'", &[]).await.unwrap();
    assert_eq!(listed.get::<_, i64>(0), 0);
    // A store with a counter for all partitions. Its server finds no counter either.
    let put = async || {
        client.batch_execute("DROP SCHEMA IF EXISTS stratafs CASCADE; DROP SCHEMA IF EXISTS treehold CASCADE").await.unwrap();
        client.batch_execute(&String::from_utf8(unpacked_of_one_counter("postgres.sql.gz")).unwrap()).await.unwrap();
    };
    let second = Expected { rows: expected(Layout::Second).rows, moved: 0 };
    assert!(migrates_from_every_step_to(&second, &url, put).await >= 2, "before and after");
    assert!(client.batch_execute("UPDATE treehold.version_counter SET version = version").await.is_err());
    // A store with a named schema stays there.
    load(Layout::First).await;
    let named = format!("{url}?schema=stratafs");
    assert!(OldLayout::is_source_of(&open_store(&named, &OpenStoreOptions::new()).await.unwrap_err()));
    let report = migrated(&named, MigrateOptions::new()).await.unwrap();
    assert_eq!((report.outcome, report.taken_from), (MigrateOutcome::Migrated, None));
    let store = open_store(&named, &OpenStoreOptions::new()).await.unwrap();
    assert_same(&rows_of(&*store).await, &expected(Layout::First).rows);
    // A server of the first layout finds no table.
    assert!(client.batch_execute("UPDATE stratafs.items SET version = version").await.is_err());
    drop((store, client));
    admin.batch_execute(&format!("DROP DATABASE \"{database}\" WITH (FORCE)")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn mysql_store_of_a_former_layout_keeps_every_row() {
    let database = servers::mysql::database().await;
    let name = &database.name;
    let tables = ["schema", "counter", "version_counter", "former_counter", "partitions", "items", "rows", "bodies", "namespaces"];
    let drop_tables = async |prefixes: &[&str]| {
        let names = prefixes.iter().flat_map(|prefix| tables.map(|table| format!("`{name}`.`{prefix}{table}`")));
        servers::mysql::administer(&format!("DROP TABLE IF EXISTS {}", names.collect::<Vec<_>>().join(", "))).await.unwrap();
    };
    let load = async |layout: Layout| {
        drop_tables(&["stratafs_", "treehold_"]).await;
        servers::mysql::load(&database, &String::from_utf8(unpacked(layout, "mysql.sql.gz")).unwrap()).await;
    };
    for layout in Layout::ALL {
        migrates_from_every_step(layout, &database.url, async || load(layout).await).await;
    }
    assert!(servers::mysql::administer(&format!("UPDATE `{name}`.`treehold_counter` SET version = version")).await.is_err());
    let put = async || {
        load(Layout::Second).await;
        drop_tables(&["treehold_"]).await;
        servers::mysql::load(&database, &String::from_utf8(unpacked_of_one_counter("mysql.sql.gz")).unwrap()).await;
    };
    let second = Expected { rows: expected(Layout::Second).rows, moved: 0 };
    assert!(migrates_from_every_step_to(&second, &database.url, put).await >= 9, "each statement reports progress");
    assert!(servers::mysql::administer(&format!("UPDATE `{name}`.`treehold_version_counter` SET version = version")).await.is_err());
    // More rows than one statement moves, and a namespace that is only listed. Only the logs move before it.
    let numbers = "(WITH RECURSIVE n(seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < 71) \
                   SELECT a.seq * 71 + b.seq AS seq FROM n a, n b) numbers";
    for tells in [12, 13, 14, 15, 16, 17] {
        load(Layout::Second).await;
        for sql in [
            format!("INSERT INTO `{name}`.treehold_rows SELECT 'A/', CONCAT('n', seq), x'', x'', 1, 0, 0, NULL, 0, x'' FROM {numbers}"),
            format!("INSERT INTO `{name}`.treehold_bodies SELECT 'A/', CONCAT('n', seq), x'', x'' FROM {numbers}"),
            format!("INSERT INTO `{name}`.treehold_namespaces VALUES ('A/', 1), ('empty/', 1)"),
        ] {
            servers::mysql::administer(&sql).await.unwrap();
        }
        assert!(interrupted(&database.url, tells).await);
        assert_eq!(migrated(&database.url, MigrateOptions::new()).await.unwrap().outcome, MigrateOutcome::Migrated);
        let store = open_store(&database.url, &OpenStoreOptions::new()).await.unwrap();
        assert_eq!(store.check().await.unwrap().len(), 0);
        assert_eq!(store.stats().await.unwrap().items, expected(Layout::Second).rows.len() as u64 + 71 * 71);
        store.commit(treehold::store::Batch::new().delete_prefix(&Namespace::parse("A").unwrap(), "")).await.unwrap();
        assert_same(&rows_of(&*store).await, &expected(Layout::Second).rows);
    }
    let listed = format!("SELECT namespace FROM `{name}`.treehold_namespaces WHERE namespace = 'empty//'");
    assert_eq!(servers::mysql::administer(&listed).await.unwrap().len(), 1);
    load(Layout::First).await;
    let named = format!("{}{}prefix=stratafs_", database.url, if database.url.contains('?') { '&' } else { '?' });
    assert!(OldLayout::is_source_of(&open_store(&named, &OpenStoreOptions::new()).await.unwrap_err()));
    let report = migrated(&named, MigrateOptions::new()).await.unwrap();
    assert_eq!((report.outcome, report.taken_from), (MigrateOutcome::Migrated, None));
    let store = open_store(&named, &OpenStoreOptions::new()).await.unwrap();
    assert_same(&rows_of(&*store).await, &expected(Layout::First).rows);
    assert!(servers::mysql::administer(&format!("UPDATE `{name}`.`stratafs_items` SET version = version")).await.is_err());
}

/// Writes the Redis store of a former layout under a name.
fn load_redis(layout: Layout, connection: &mut redis::Connection, name: &str) {
    for tag in ["stratafs", "treehold", name] {
        let keys = ["rows", "keys", "expiries", "changes"].map(|part| format!("{{{tag}}}:{part}"));
        // On a cluster, another node may have the default names.
        let _: redis::RedisResult<u64> = redis::cmd("DEL").arg(&keys[..]).query(connection);
    }
    let mut pipe = redis::pipe();
    for line in String::from_utf8(unpacked(layout, "redis.jsonl.gz")).unwrap().lines() {
        let arguments: Vec<String> = serde_json::from_str(line).unwrap();
        let mut arguments = arguments.into_iter().map(|argument| STANDARD.decode(argument).unwrap());
        let command = String::from_utf8(arguments.next().unwrap()).unwrap();
        let key = String::from_utf8(arguments.next().unwrap()).unwrap();
        pipe.cmd(&command).arg(key.replace(&format!("{{{}}}", layout.product()), &format!("{{{name}}}")));
        for argument in arguments {
            pipe.arg(argument);
        }
    }
    pipe.exec(connection).unwrap();
}

/// A cluster cannot rename keys to another slot, so a store stays under its prefix.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn redis_cluster_store_of_a_former_layout_keeps_every_row() {
    let prefix = servers::redis::prefix_in_cluster().await;
    let named = format!("{}?prefix={}", prefix.url, prefix.name);
    for layout in Layout::ALL {
        let load = async || {
            prefix.clear();
            load_redis(layout, &mut prefix.connect().unwrap(), &prefix.name);
        };
        migrates_from_every_step(layout, &named, load).await;
    }
    let former = servers::redis::Prefix { name: "stratafs".to_owned(), url: prefix.url.clone(), _use: None };
    former.clear();
    load_redis(Layout::First, &mut former.connect().unwrap(), &former.name);
    let refused = migrated(&prefix.url, MigrateOptions::new()).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Unsupported && refused.message().contains("?prefix=stratafs"), "{refused}");
    let named = format!("{}?prefix=stratafs", prefix.url);
    assert_eq!(migrated(&named, MigrateOptions::new()).await.unwrap().outcome, MigrateOutcome::Migrated);
    assert_same(&rows_of(&*open_store(&named, &OpenStoreOptions::new()).await.unwrap()).await, &expected(Layout::First).rows);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn redis_store_of_a_former_layout_keeps_every_row() {
    let prefix = servers::redis::prefix().await;
    let server = servers::redis::server();
    let load = async |layout: Layout, url: &str, name: &str| {
        let client = redis::Client::open(url).unwrap();
        load_redis(layout, &mut client.get_connection().unwrap(), name);
    };
    // Under the default name of then, in a database that no other test uses.
    let plain = format!("{server}/8");
    let client = redis::Client::open(plain.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for layout in Layout::ALL {
        migrates_from_every_step(layout, &plain, async || load(layout, &plain, layout.product()).await).await;
        for part in ["rows", "keys", "expiries", "changes"] {
            let left: u64 = redis::cmd("EXISTS").arg(format!("{{stratafs}}:{part}")).query_async(&mut connection).await.unwrap();
            assert_eq!(left, 0, "{part} is still under the former name");
            redis::cmd("DEL").arg(format!("{{treehold}}:{part}")).exec_async(&mut connection).await.unwrap();
        }
    }
    // Under a name from the URL, in place: with more rows than one script moves, and a namespace that is only in the list of changes.
    let named = format!("{server}?prefix={}", prefix.name);
    let mut connection = redis::Client::open(server.as_str()).unwrap().get_connection().unwrap();
    let [rows, keys, changes] = ["rows", "keys", "changes"].map(|part| format!("{{{}}}:{part}", prefix.name));
    let record = [[0, 0, 0, 0, 0, 0, 0, 1], i64::MAX.to_be_bytes(), [0; 8], [0; 8]].concat();
    // Only the logs move before the many rows.
    for (layout, tells) in [(Layout::First, 12), (Layout::Second, 4), (Layout::Second, 5), (Layout::Second, 6), (Layout::Second, 7)] {
        load(layout, &server, &prefix.name).await;
        let mut pipe = redis::pipe();
        for number in 0..1_200 {
            let row = format!("A/\0{number}");
            pipe.cmd("HSET").arg(&rows).arg(format!("r{row}")).arg([&record[..], &[0; 4]].concat());
            pipe.cmd("ZADD").arg(&keys).arg(0).arg(row);
        }
        pipe.cmd("ZADD").arg(&changes).arg(7).arg("empty/").exec(&mut connection).unwrap();
        assert!(interrupted(&named, tells).await);
        let report = migrated(&named, MigrateOptions::new()).await.unwrap();
        assert_eq!((report.outcome, report.taken_from), (MigrateOutcome::Migrated, None));
        let store = open_store(&named, &OpenStoreOptions::new()).await.unwrap();
        assert_eq!(store.check().await.unwrap().len(), 0);
        assert_eq!(store.stats().await.unwrap().items, expected(layout).rows.len() as u64 + 1_200);
        store.commit(treehold::store::Batch::new().delete_prefix(&Namespace::parse("A").unwrap(), "")).await.unwrap();
        assert_same(&rows_of(&*store).await, &expected(layout).rows);
        let listed: Option<f64> = redis::cmd("ZSCORE").arg(&changes).arg("empty//").query(&mut connection).unwrap();
        assert_eq!(listed, Some(7.0));
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

/// A home with a fixture's configuration, and the store at a URL.
fn home(layout: Layout, url: &str) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("workspace")).unwrap();
    std::fs::write(home.path().join("workspace/beneath.txt"), "the file beneath\n").unwrap();
    let history = "history = { keep_last = 20, older_than = \"30000d\" }\n";
    let (history, shared) = match layout {
        Layout::First => ("", String::new()),
        Layout::Second => {
            (history, format!("[routes.\"/shared\"]\ntype = \"store\"\nnamespace = \"shared\"\nindex = [\"trigram\"]\n{history}"))
        }
    };
    let config = format!(
        "[events]\nkeep = \"30000d\"\n[stores.default]\nurl = \"{url}\"\n[routes.\"/memories\"]\ntype = \"store\"\n\
         namespace = \"{{tenant}}/{{user}}/memories\"\nindex = [\"trigram\", \"words\"]\n{history}{shared}\
         [routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"workspace\"\n[routes.\"/workspace\".overlay]\n"
    );
    std::fs::write(home.path().join("treehold.toml"), config).unwrap();
    home
}

fn run(home: &Path, args: &[&str]) -> String {
    let (code, output, said) = ended(home, args);
    assert_eq!(code, Some(0), "{args:?}: {said}");
    output
}

/// Reads everything in a fixture, through the command and a server.
fn reads_everything(layout: Layout, home: &Path) {
    let facts = facts(layout);
    let json = |args: &[&str]| serde_json::from_str::<Value>(&run(home, &[&["--json"], args].concat())).unwrap();
    // Threads, by every checkpoint and label.
    assert_eq!(json(&["checkpoint", "ls"]), facts["checkpoints"]);
    assert_eq!(run(home, &["cat", "/plan.md"]).trim_end(), "third draft");
    assert_eq!(run(home, &["cat", "--at", "start", "/plan.md"]).trim_end(), "first draft");
    assert_eq!(run(home, &["cat", "--at", "review", "/plan.md"]).trim_end(), "second draft");
    assert_eq!(run(home, &["cat", "/called.md"]).trim_end(), "written by a tool call");
    assert_eq!(run(home, &["cat", "/long.txt"]).lines().count(), 2_000);
    assert_eq!(run(home, &["--thread", "side", "cat", "/only-here.md"]).trim_end(), "of the fork");
    // Memories, by path, index and recall.
    assert_eq!(run(home, &["cat", "/memories/AGENTS.md"]).trim_end(), "remember the walrus");
    assert_eq!(run(home, &["--user", "bob", "cat", "/memories/own.md"]).trim_end(), "of bob");
    assert!(run(home, &["grep", "walrus", "/memories"]).contains("deep/er/note.md"));
    assert!(run(home, &["search", "sleeping walrus", "/memories"]).contains("note.md"));
    run(home, &["store", "verify"]);
    if layout == Layout::Second {
        reads_what_the_second_layout_added(&facts, home);
    }
    // The overlay.
    let diff = run(home, &["overlay", "diff", "/workspace"]);
    assert!(diff.contains("new.txt") && diff.contains("beneath.txt"), "{diff}");
    // Events keep their numbers.
    assert_eq!(json(&["timeline", "/"]), facts["timeline"]);
    // The token, items, and the stored answer.
    let server = Process::of(command(home, &["serve", "--listen", "127.0.0.1:0", "--tokens"]), home);
    let bearer = format!("Bearer {}", facts["token"].as_str().unwrap());
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let get = |path: &str| {
        let mut answer = agent.get(format!("{}{path}", server.base())).header("authorization", &bearer).call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_json::<Value>().unwrap())
    };
    let (status, item) = get("/v1/store/item?namespace=tasks&key=one");
    assert_eq!((status, &item["value"]), (200, &json!({"title": "walk", "done": false})));
    assert_eq!(get("/v1/store/item?namespace=tasks&namespace=done&key=two").1["value"]["title"], "sleep");
    let repeated = || {
        let request = agent.post(format!("{}/v1/fs/memories/once.md", server.base()));
        // As curl sent it: the content type is part of what the key identifies.
        let request = request.header("authorization", &bearer).header("content-type", "application/x-www-form-urlencoded");
        let mut answer = request.header("idempotency-key", "\"fixture-key\"").send(&b"written once"[..]).unwrap();
        answer.body_mut().read_json::<Value>().unwrap()
    };
    assert_eq!(repeated(), facts["answer"], "the stored answer is repeated and the request does not run again");
    assert_eq!(run(home, &["cat", "/memories/once.md"]), "written once");
    assert_eq!(agent.get(format!("{}/v1/stat?path=/", server.base())).call().unwrap().status(), 401, "without the token");
    assert!(server.stop().success());
}

/// Reads the past of files, a namespace of one component, and what agents and their hosts keep.
fn reads_what_the_second_layout_added(facts: &Value, home: &Path) {
    let json = |args: &[&str]| serde_json::from_str::<Value>(&run(home, &[&["--json"], args].concat())).unwrap();
    assert_eq!(json(&["log", "/memories/AGENTS.md"]), facts["log"]);
    assert_eq!(run(home, &["cat", "--at", "~1", "/memories/AGENTS.md"]).trim_end(), "remember the tiger");
    assert_eq!(run(home, &["cat", "--at", "v1", "/memories/gone.md"]).trim_end(), "removed later");
    assert_eq!(run(home, &["--user", "bob", "cat", "--at", "~1", "/memories/own.md"]).trim_end(), "from bob");
    assert_eq!(run(home, &["cat", "/shared/board.md"]).trim_end(), "everybody sees a walrus");
    assert_eq!(json(&["log", "/shared/board.md"]), facts["shared_log"]);
    assert_eq!(run(home, &["cat", "--at", "v1", "/shared/board.md"]).trim_end(), "everybody sees a heron");
    assert!(run(home, &["grep", "walrus", "/shared"]).contains("board.md"));
    assert_eq!(json(&["state", "get", "tea"])["value"]["context"][0]["content"], "Tea?");
    assert_eq!(json(&["state", "get", "tea", "notes", "--list"])["value"], json!(["milk", "sugar"]));
    assert_eq!(run(home, &["--json", "session", "messages", "tea"]), facts["messages"].as_str().unwrap());
    assert_eq!(run(home, &["--session", "tea", "cat", "/memo/session/NOTES.md"]).trim_end(), "- likes oolong");
    assert_eq!(run(home, &["--json", "trace", "show", "brewing"]), facts["trace"].as_str().unwrap());
}

#[test]
fn migrated_sqlite_store_is_read_through_command_and_server() {
    for layout in Layout::ALL {
        let home = home(layout, "sqlite:old.db");
        put_sqlite(layout, &home.path().join("old.db"));
        let (code, output, said) = ended(home.path(), &["cat", "/plan.md"]);
        assert!(code != Some(0) && output.is_empty() && said.contains("run `treehold store migrate default`"), "{said}");
        let planned: Value = serde_json::from_str(&run(home.path(), &["--json", "store", "migrate", "--dry-run"])).unwrap();
        assert_eq!(planned["outcome"], "planned");
        let done = run(home.path(), &["store", "migrate"]);
        assert!(done.contains("threads") && done.contains("rows") && done.contains("moved"), "{done}");
        assert!(run(home.path(), &["store", "migrate"]).contains("nothing to do"));
        reads_everything(layout, home.path());
    }
}

#[test]
fn migrated_sled_store_is_read_through_command() {
    for layout in Layout::ALL {
        let home = home(layout, "sled:old");
        put_sled(layout, &home.path().join("old"));
        run(home.path(), &["store", "migrate", "default"]);
        assert_eq!(run(home.path(), &["cat", "--at", "review", "/plan.md"]).trim_end(), "second draft");
        run(home.path(), &["store", "verify"]);
    }
}

/// A takeover by the last version may have been killed after the file was migrated to the second layout.
#[test]
fn default_file_of_the_former_name_is_taken_over() {
    for (layout, former) in [
        (Layout::First, "treehold/stratafs.db"),
        (Layout::First, "stratafs/stratafs.db"),
        (Layout::Second, "treehold/stratafs.db"),
        (Layout::Second, "stratafs/stratafs.db"),
    ] {
        let home = home(layout, "sqlite:{data}/treehold.db");
        let data = home.path().join("share/treehold");
        std::fs::create_dir_all(home.path().join("share/treehold")).unwrap();
        std::fs::create_dir_all(home.path().join("share/stratafs")).unwrap();
        let former = home.path().join("share").join(former);
        put_sqlite(layout, &former);
        let run_there = |args: &[&str]| {
            let output = command(home.path(), args).env("TREEHOLD_DATA", &data).stdin(Stdio::null()).output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
        };
        let (code, _, said) = run_there(&["cat", "/plan.md"]);
        assert!(code != Some(0) && said.contains("`stratafs.db`") && said.contains("treehold store migrate"), "{said}");
        assert!(!data.join("treehold.db").exists(), "no empty store is made beside it");
        let (code, planned, said) = run_there(&["store", "migrate", "--dry-run"]);
        assert!(code == Some(0) && planned.contains("would be renamed") && former.exists(), "{said}");
        let (code, done, said) = run_there(&["store", "migrate"]);
        assert!(code == Some(0) && done.contains("renamed from"), "{said}");
        assert!(!former.exists() && data.join("treehold.db").exists());
        assert_eq!(run_there(&["cat", "/plan.md"]).1.trim_end(), "third draft");
    }
}
