//! Stores on servers: PostgreSQL, MySQL and MariaDB, Redis and Redis Cluster.

use super::{Expected, Layout, assert_same, expected, migrated, rows_of, unpacked, unpacked_from};
use crate::servers;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;
use std::path::Path;
use treehold::ErrorKind;
use treehold::config::{OpenStoreOptions, migrate_store, open_store};
use treehold::store::{Batch, MigrateOptions, MigrateOutcome, Namespace, OldLayout, Partition, Store, StoreExt};

/// Returns a dump of a server's store in which namespaces have their present names, but one counter was for all partitions. It is that of
/// the second layout, migrated.
fn unpacked_of_one_counter(name: &str) -> Vec<u8> {
    unpacked_from(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/layout3").join(name))
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
    for create in [true, false] {
        let refused = open_store(url, &OpenStoreOptions::new().with_create(create)).await.unwrap_err();
        assert!(OldLayout::is_source_of(&refused) && refused.message().contains("treehold store migrate"), "{refused}");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    }
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
