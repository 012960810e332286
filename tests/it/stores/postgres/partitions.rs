//! Partitions: their counters, the locks on them, and the nodes that they are spread over.

use super::{conditional, open, put, value};
use crate::servers::postgres::{connect, distributed_schema, proxied, schema, server};
use crate::stores::namespace;
use std::time::Duration;
use treehold::ErrorKind;
use treehold::ops::Version;
use treehold::store::{Batch, Condition, Namespace, NamespacesOptions, PostgresOptions, PostgresStore, Store, StoreExt};

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn wait_for_another_writers_lock_is_bounded() {
    let schema = schema().await;
    // On a slow disk, creating the tables may take longer than the timeout. A commit waits for a lock for half of it.
    put(&open(&schema).await, "k", "before").await;
    let store = PostgresStore::open_with(schema.options().with_timeout(Duration::from_secs(10))).await.unwrap();
    let lock = connect(&schema.url).await.unwrap();
    lock.batch_execute(&format!("BEGIN; SELECT version FROM \"{}\".partitions FOR UPDATE", schema.name)).await.unwrap();
    let refused =
        futures::future::join_all([conditional("x"), Batch::new().put(&namespace(), "k", "lost")].map(|batch| store.commit(batch)));
    let answers = refused.await;
    let meanwhile = value(&store, "k").await;
    // A failure from here on must not leave the schema locked.
    lock.batch_execute("ROLLBACK").await.unwrap();
    for answer in answers {
        let error = answer.unwrap_err();
        // The server gave up before the store did, so the outcome is known.
        assert_eq!((error.kind(), error.is_without_effect()), (ErrorKind::Unavailable, true), "{error:?}");
    }
    assert_eq!(meanwhile.as_deref(), Some("before"), "reads wait for nobody");
    put(&store, "k", "after").await;
}

#[tokio::test]
#[ignore = "needs a Citus cluster: run scripts/citus.sh"]
async fn partitions_spread_over_the_workers_of_citus() {
    assert!(std::env::var_os("TREEHOLD_TEST_CITUS").is_some(), "no Citus cluster: run scripts/citus.sh");
    let schema = distributed_schema().await;
    let store = open(&schema).await;
    for number in 0..64 {
        let space = Namespace::new(["acme".to_owned(), format!("user {number}"), "notes".to_owned()]).unwrap();
        store.commit(Batch::new().put(&space, "k", "v").put(&space, "l", "v")).await.unwrap();
    }
    let client = connect(&server()).await.unwrap();
    let sql = format!(
        "SELECT nodeport, sum(result::bigint)::bigint FROM run_command_on_shards('\"{}\".rows', 'SELECT count(*) FROM %s') r
         JOIN pg_dist_shard_placement p USING (shardid) GROUP BY nodeport",
        schema.name
    );
    let nodes: Vec<i64> = client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(1)).collect();
    assert_eq!((nodes.len() >= 2, nodes.iter().sum::<i64>()), (true, 128), "{nodes:?}");
    assert!(nodes.iter().all(|rows| *rows > 0 && rows % 2 == 0), "a partition is on one node: {nodes:?}");
    assert_eq!(store.stats().await.unwrap().namespaces, 64);
    assert!(store.check().await.unwrap().is_empty());
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn writer_of_a_partition_waits_for_no_other_partition() {
    let schema = schema().await;
    // A commit gives up on a lock after half of the timeout, so one that waits for another partition fails.
    let store = PostgresStore::open_with(schema.options().with_timeout(Duration::from_secs(240))).await.unwrap();
    put(&store, "k", "v").await;
    let lock = connect(&schema.url).await.unwrap();
    let locked = namespace().partition();
    let sql = format!("BEGIN; SELECT version FROM \"{}\".partitions WHERE partition = '{}' FOR UPDATE", schema.name, locked.encoded());
    lock.batch_execute(&sql).await.unwrap();
    let mut waiting: Vec<_> = (0..8).map(|number| Box::pin(store.commit(conditional(&format!("waiting {number}"))))).collect();
    assert!(futures::poll!(&mut waiting[0]).is_pending());
    let others: Vec<_> = (0..40).map(|number| Namespace::new([format!("other {number}")]).unwrap()).collect();
    let batches = others.iter().flat_map(|other| {
        let put = Batch::new().put(other, "k", "v");
        [put.clone(), put.clone().expect(other, "l", Condition::Absent).delete(other, "m"), put.delete_prefix(other, "x/")]
    });
    // They are written while the others wait, by the connections that are left.
    let written = futures::future::join_all(batches.map(|batch| store.commit(batch))).await;
    assert!(written.iter().all(Result::is_ok), "another partition is locked: {written:?}");
    assert!(waiting.iter_mut().all(|commit| futures::FutureExt::now_or_never(commit).is_none()));
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert!(futures::future::join_all(waiting).await.iter().all(Result::is_ok));
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn partition_is_made_with_its_first_row() {
    let schema = schema().await;
    let (proxy, url) = proxied(&schema).await;
    let store = PostgresStore::open_with(PostgresOptions::new(url).with_schema(&schema.name).with_connections_max(2)).await.unwrap();
    let rows = async || {
        let client = connect(&schema.url).await.unwrap();
        let sql = format!("SELECT count(*) FROM \"{}\".partitions", schema.name);
        client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    let space = |name: &str| Namespace::new([name]).unwrap();
    let absent = space("absent");
    assert_eq!(store.commit(Batch::new().delete(&absent, "k").delete_prefix(&absent, "")).await.unwrap(), []);
    assert_eq!(store.commit(Batch::new().touch(&absent, "k", None)).await.unwrap(), []);
    let refused = store.commit(Batch::new().expect(&absent, "k", Condition::Exists).put(&absent, "k", "v")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.change()), (ErrorKind::Conflict, Some(0)));
    assert_eq!((store.current_version(&absent.partition()).await.unwrap(), rows().await), (Version::new(0), 0));
    for name in ["first", "second"] {
        proxy.round_trips();
        store.commit(Batch::new().put(&space(name), "k", "v")).await.unwrap();
        // Each statement is prepared once, in a round trip of its own.
        assert!(name == "first" || proxy.round_trips() == 4, "the attempt, whether there are rows, the counter, the commit");
    }
    // Concurrent first commits of several processes.
    let others = futures::future::join_all((0..4).map(|_| open(&schema))).await;
    let third = space("third");
    let puts = others.iter().flat_map(|store| (0..4).map(|number| store.commit(Batch::new().put(&third, format!("{number}"), "v"))));
    let mut versions: Vec<Version> = futures::future::join_all(puts).await.into_iter().map(|put| put.unwrap()[0]).collect();
    versions.sort();
    assert_eq!(versions, (1..=16).map(Version::new).collect::<Vec<_>>());
    assert_eq!(rows().await, 3);
    // A counter that is lost is never made again beneath rows.
    schema.run("DELETE FROM {s}.partitions WHERE partition = 'third//'").await;
    for batch in [
        Batch::new().put(&third, "k", "v"),
        Batch::new().delete(&third, "0"),
        Batch::new().expect(&third, "0", Condition::Absent).delete(&third, "1"),
    ] {
        let lost = store.commit(batch).await.unwrap_err();
        assert_eq!((lost.kind(), lost.is_without_effect()), (ErrorKind::Corrupt, true), "{lost:?}");
    }
    schema.run("UPDATE {s}.rows SET expires_at = 1").await;
    assert_eq!(store.sweep(100).await.unwrap(), 2, "the rows of the other partitions");
    assert_eq!(store.current_version(&third.partition()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.check().await.unwrap().len(), 1);
    put(&store, "k", "other partitions are not affected").await;
}

/// Regression: where a partition was made between the lock, which found none, and the next statement of a group, the group was written
/// without the lock: its versions were used twice, and its namespaces were not listed.
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn partition_made_after_the_lock_found_none_is_locked_again() {
    let schema = schema().await;
    let name = format!("{} racing", schema.name).replace(' ', "_");
    let options = PostgresOptions::new(format!("{}?application_name={name}", schema.url)).with_schema(&schema.name);
    let store = PostgresStore::open_with(options.with_connections_max(2)).await.unwrap();
    let spaces: Vec<_> = (0..3).map(|number| Namespace::new([format!("racing {number}")]).unwrap()).collect();
    let batch = |space: &Namespace| Batch::new().expect(space, "k", Condition::Absent).put(space, "k", "v").delete(space, "l");
    // The connection has prepared the statements from here on.
    store.commit(batch(&spaces[0])).await.unwrap();
    let (other, client) = (connect(&schema.url).await.unwrap(), connect(&schema.url).await.unwrap());
    for space in &spaces[1..] {
        // The lock does not read the rows; the next statement does.
        other.batch_execute(&format!("BEGIN; LOCK TABLE \"{}\".rows IN ACCESS EXCLUSIVE MODE", schema.name)).await.unwrap();
        let commit = tokio::spawn({
            let (store, batch) = (store.clone(), batch(space));
            async move { store.commit(batch).await }
        });
        let is_waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = left($1::text, 63) AND wait_event_type = 'Lock'";
        while client.query_one(is_waiting, &[&name]).await.unwrap().get::<_, i64>(0) == 0 {}
        // Another process makes the partition, and writes a row that the condition forbids.
        let partition = space.partition();
        client.execute(&format!("INSERT INTO \"{}\".partitions VALUES ($1, 7)", schema.name), &[&partition.encoded()]).await.unwrap();
        other.batch_execute("COMMIT").await.unwrap();
        assert_eq!(commit.await.unwrap().unwrap(), [Version::new(8)]);
        assert_eq!(store.current_version(&partition).await.unwrap(), Version::new(8));
        assert_eq!(store.check().await.unwrap().len(), 0);
    }
    let listed = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    assert_eq!(listed, spaces);
}

/// Regression: the transaction of a sweep stayed open, with the lock of a partition.
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn sweep_that_is_dropped_locks_nothing() {
    const PATIENCE: Duration = Duration::from_secs(120);
    let schema = schema().await;
    let (proxy, url) = proxied(&schema).await;
    // The server ends an abandoned transaction after this time, which is long after the test has failed.
    let options = PostgresOptions::new(url).with_schema(&schema.name).with_timeout(10 * PATIENCE);
    let store = PostgresStore::open_with(options).await.unwrap();
    for number in 0..20 {
        let space = Namespace::parse(&format!("a//{number}")).unwrap();
        store.commit(Batch::new().put(&space, "k", "v")).await.unwrap();
        store.commit(Batch::new().delete(&space, "k")).await.unwrap();
    }
    // Dropped after each number of round trips.
    for trips in 0..12 {
        let mut sweep = Box::pin(store.sweep(100));
        proxy.round_trips();
        let mut seen = 0;
        while seen < trips {
            if futures::poll!(&mut sweep).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
            seen += proxy.round_trips();
        }
        drop(sweep);
    }
    let batch = conditional("after").expect(&namespace(), "none", Condition::Absent);
    tokio::time::timeout(PATIENCE, store.commit(batch)).await.expect("nothing is locked").unwrap();
    let client = connect(&schema.url).await.unwrap();
    let locked = format!("SELECT version FROM \"{}\".partitions FOR UPDATE NOWAIT", schema.name);
    let attempts = async {
        while client.query(&locked, &[]).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, attempts).await.expect("nothing stays locked");
}
