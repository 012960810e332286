//! Connections that break or are closed, and a runtime that ends.

use super::{conditional, open, put, value};
use crate::servers::postgres::{connect, proxied, schema};
use crate::servers::proxy::Break;
use crate::stores::namespace;
use treehold::ErrorKind;
use treehold::store::{Batch, Condition, PostgresOptions, PostgresStore, Store};

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn lost_answer_leaves_commit_unknown_and_read_is_retried() {
    let schema = schema().await;
    let (proxy, url) = proxied(&schema).await;
    let store = PostgresStore::open_with(PostgresOptions::new(url).with_schema(&schema.name)).await.unwrap();
    put(&store, "k", "v").await;
    store.commit(conditional("first").delete(&namespace(), "k2")).await.unwrap();
    assert_eq!(value(&store, "k").await.as_deref(), Some("v"));
    for at in [Break::Request, Break::Answer] {
        proxy.break_next(at);
        assert_eq!(value(&store, "k").await.as_deref(), Some("v"), "{at:?}");
        for (name, batch) in [("alone", Batch::new()), ("transaction", Batch::new().expect(&namespace(), "k", Condition::Exists))] {
            let key = format!("{name} {at:?}");
            // The connection has prepared the statements, so the commit itself is what breaks.
            store.commit(batch.clone().put(&namespace(), "warm", "v")).await.unwrap();
            proxy.break_next(at);
            let error = store.commit(batch.put(&namespace(), &key, "v")).await.unwrap_err();
            assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Unavailable, true), "{key}: {error:?}");
            put(&store, "after", "v").await;
            // In a transaction, the first answer may be lost while the server is in the middle of it.
            if at == Break::Request || name == "alone" {
                assert_eq!(value(&store, &key).await.is_some(), at == Break::Answer, "{key}");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn connections_closed_by_the_server_are_replaced() {
    let schema = schema().await;
    let name = format!("{} killed", schema.name).replace(' ', "_");
    let options = PostgresOptions::new(format!("{}?application_name={name}", schema.url)).with_schema(&schema.name);
    let store = PostgresStore::open_with(options).await.unwrap();
    put(&store, "k", "v").await;
    let client = connect(&schema.url).await.unwrap();
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = left($1::text, 63)";
    let is_waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = left($1::text, 63) AND wait_event_type = 'Lock'";
    let lock = connect(&schema.url).await.unwrap();
    for (batch, key, is_without_effect) in
        [(conditional("transaction"), "transaction", true), (Batch::new().put(&namespace(), "alone", "v"), "alone", false)]
    {
        // Another writer holds the counter, so that the commit is running when its connection is cut.
        lock.batch_execute(&format!("BEGIN; SELECT version FROM \"{}\".partitions FOR UPDATE", schema.name)).await.unwrap();
        let commit = tokio::spawn({
            let store = store.clone();
            async move { store.commit(batch).await }
        });
        while client.query_one(is_waiting, &[&name]).await.unwrap().get::<_, i64>(0) == 0 {}
        assert!(client.query_one(kill, &[&name]).await.unwrap().get::<_, i64>(0) > 0);
        let error = commit.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.is_without_effect()), (ErrorKind::Unavailable, is_without_effect), "{error:?}");
        assert_eq!(error.may_have_effect(), !is_without_effect);
        lock.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(value(&store, key).await, None, "the interrupted commit has no effect");
        put(&store, key, "again").await;
        assert_eq!(value(&store, key).await.as_deref(), Some("again"));
    }
}

#[test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
fn store_outlives_the_runtime_that_opened_it() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (one, other) = (runtime(), runtime());
    let (_schema, store) = one.block_on(async {
        let schema = schema().await;
        let store = open(&schema).await;
        put(&store, "k", "v").await;
        (schema, store)
    });
    one.shutdown_background();
    other.block_on(async {
        while store.get(&namespace(), "k").await.is_err() {}
        put(&store, "k", "w").await;
        assert_eq!(value(&store, "k").await.as_deref(), Some("w"));
    });
}
