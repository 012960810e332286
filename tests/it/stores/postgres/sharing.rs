//! Processes that share a store, and a standby that shares the rows of its primary.

use super::{open, put, value};
use crate::servers::postgres::{Schema, connect, schema, server};
use crate::stores::namespace;
use std::process::{Child, Command};
use std::time::Duration;
use treehold::ErrorKind;
use treehold::ops::Version;
use treehold::store::{Batch, Condition, Namespace, PostgresOptions, PostgresStore, Store, StoreExt};

const PART: &str = "TREEHOLD_TEST_POSTGRES_PART";

/// Starts this binary again to run a test as one of its parts.
fn start(test: &str, schema: &Schema) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--include-ignored", "--exact", &format!("stores::postgres::sharing::{test}"), "--nocapture"])
        .env(PART, &schema.name)
        .spawn()
        .unwrap()
}

/// Returns the options of the store for which this process was started, if it is such a part.
fn part() -> Option<PostgresOptions> {
    Some(PostgresOptions::new(server()).with_schema(std::env::var(PART).ok()?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn empty_database_is_set_up_once_by_concurrent_openers() {
    if let Some(options) = part() {
        PostgresStore::open_with(options).await.unwrap();
        return;
    }
    let schema = schema().await;
    let children: Vec<Child> = (0..4).map(|_| start("empty_database_is_set_up_once_by_concurrent_openers", &schema)).collect();
    let opens = (0..8).map(|_| tokio::spawn(PostgresStore::open_with(schema.options())));
    let stores: Vec<PostgresStore> = futures::future::join_all(opens).await.into_iter().map(|store| store.unwrap().unwrap()).collect();
    let versions = futures::future::join_all(stores.iter().map(|store| put(store, "k", "v"))).await;
    let mut distinct: Vec<Version> = versions.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 8, "one counter for all: {versions:?}");
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn write_of_another_process_is_read_and_announced() {
    if let Some(options) = part() {
        let store = PostgresStore::open_with(options).await.unwrap();
        store.commit(Batch::new().put(&Namespace::new(["other"]).unwrap(), "k", "v")).await.unwrap();
        put(&store, "k", "of the other").await;
        return;
    }
    let schema = schema().await;
    let store = open(&schema).await;
    put(&store, "k", "before").await;
    let mut watch = store.watch(&namespace()).await.unwrap();
    let mut unconcerned = store.watch(&Namespace::new(["third"]).unwrap()).await.unwrap();
    let child = tokio::task::spawn_blocking({
        let mut child = start("write_of_another_process_is_read_and_announced", &schema);
        move || child.wait().unwrap()
    });
    let told = tokio::time::timeout(Duration::from_secs(60), watch.changed()).await.expect("the watch is notified").unwrap();
    assert!(child.await.unwrap().success());
    assert_eq!(value(&store, "k").await.as_deref(), Some("of the other"));
    assert!(told >= store.get(&namespace(), "k").await.unwrap().unwrap().version);
    assert!(futures::poll!(Box::pin(unconcerned.changed())).is_pending(), "nothing was written there");
}

/// Regression: each namespace that was ever written to was listed forever.
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn dropped_namespace_is_announced_once_more() {
    let schema = schema().await;
    let store = open(&schema).await;
    // Acts as another process.
    let other = open(&schema).await;
    let spaces: Vec<_> = (0..8).map(|number| Namespace::parse(&format!("a//{number}")).unwrap()).collect();
    let watched = Namespace::parse("a//w").unwrap();
    let mut watch = store.watch(&watched).await.unwrap();
    other.commit(Batch::new().put(&watched, "k", "v")).await.unwrap();
    for space in &spaces {
        other.commit(Batch::new().put(space, "k", "v")).await.unwrap();
        if space != &spaces[3] {
            other.commit(Batch::new().delete(space, "k")).await.unwrap();
        }
    }
    other.commit(Batch::new().delete(&watched, "k")).await.unwrap();
    let version = other.current_version(&watched.partition()).await.unwrap();
    assert_eq!(other.sweep(4).await.unwrap(), 0);
    let client = connect(&schema.url).await.unwrap();
    let kept = format!("SELECT string_agg(partition || name, ' ') FROM \"{}\".namespaces", schema.name);
    assert_eq!(client.query_one(&kept, &[]).await.unwrap().get::<_, &str>(0), "a//3/");
    let told = tokio::time::timeout(Duration::from_secs(60), watch.changed()).await.expect("the watch is notified").unwrap();
    assert!(told >= version);
    // A new watch has seen all of it.
    let mut late = store.watch(&spaces[0]).await.unwrap();
    assert!(futures::poll!(Box::pin(late.changed())).is_pending(), "nothing was written since");
    other.commit(Batch::new().put(&watched, "k", "w")).await.unwrap();
    let again = tokio::time::timeout(Duration::from_secs(60), watch.changed()).await.expect("the watch is notified").unwrap();
    assert!(again > told);
    assert!(store.check().await.unwrap().is_empty());
}

/// `scripts/standby-postgres.sh` starts a server and its standby, and passes both.
#[tokio::test]
#[ignore = "needs a standby of PostgreSQL: run scripts/standby-postgres.sh"]
async fn hot_standby_serves_reads_and_reports_read_only() {
    let standby = std::env::var("TREEHOLD_TEST_POSTGRES_STANDBY_URL").expect("scripts/standby-postgres.sh sets it");
    let schema = schema().await;
    let primary = open(&schema).await;
    primary.commit(Batch::new().put_for(&namespace(), "over", "v", Duration::ZERO)).await.unwrap();
    put(&primary, "key", "value").await;
    let client = connect(&standby).await.unwrap();
    let there = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = $1::text AND tablename = 'rows'";
    while client.query_one(there, &[&schema.name]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
    let replica = PostgresStore::open_with(PostgresOptions::new(&standby).with_schema(&schema.name)).await.unwrap();
    while value(&replica, "key").await.is_none() {
        tokio::task::yield_now().await;
    }
    let batches = [
        Batch::new().put(&namespace(), "other", "value"),
        Batch::new().delete(&namespace(), "key"),
        Batch::new().delete_prefix(&namespace(), ""),
        Batch::new().expect(&namespace(), "other", Condition::Absent).put(&namespace(), "other", "value"),
    ];
    for batch in batches {
        let error = replica.commit(batch).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::ReadOnly, false), "{error:?}");
    }
    assert_eq!(replica.sweep(10).await.unwrap_err().kind(), ErrorKind::ReadOnly);
    let fresh = PostgresOptions::new(&standby).with_schema("nothing here");
    assert_eq!(PostgresStore::open_with(fresh).await.unwrap_err().kind(), ErrorKind::ReadOnly);
}
