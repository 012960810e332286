//! The cost of calls: round trips, and the plans that the server makes.

use super::{conditional, open};
use crate::servers::postgres::{Schema, connect, proxied, schema, server};
use crate::stores::namespace;
use treehold::ErrorKind;
use treehold::store::{Batch, Namespace, NamespacesOptions, PostgresOptions, PostgresStore, ScanOptions, Store, StoreExt};

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn each_call_is_one_round_trip() {
    let schema = schema().await;
    let (proxy, url) = proxied(&schema).await;
    let store = PostgresStore::open_with(PostgresOptions::new(url).with_schema(&schema.name).with_connections_max(2)).await.unwrap();
    let fill = (0..300).fold(Batch::new(), |batch, number| batch.put(&namespace(), format!("d{}/{number:03}", number % 20), "body"));
    store.commit(fill).await.unwrap();
    let grouped = ScanOptions::new().with_delimiter('/');
    let mixed = |key: &str| conditional(key).delete(&namespace(), "absent").delete_prefix(&namespace(), "gone/");
    for round in 0..2 {
        let mut costs = Vec::new();
        let mut cost = |what| costs.push((what, proxy.round_trips()));
        cost("before");
        store.get(&namespace(), "d1/001").await.unwrap().unwrap();
        cost("get");
        store.get_many(&namespace(), &["d1/001", "absent", "d2/002"], true).await.unwrap();
        cost("get_many");
        assert_eq!(store.scan(&namespace(), grouped.clone()).await.unwrap().entries.len(), 20);
        cost("scan of groups");
        assert_eq!(store.scan(&namespace(), ScanOptions::new().with_values(true)).await.unwrap().entries.len(), 300 + round);
        cost("scan with bodies");
        store.namespaces(NamespacesOptions::new()).await.unwrap();
        cost("namespaces");
        store.commit(Batch::new().put(&Namespace::new(["puts"]).unwrap(), "new", "v")).await.unwrap();
        cost("commit of a put");
        store.commit(mixed(&format!("d1/conditional {round}"))).await.unwrap();
        cost("commit of a transaction");
        let refused = store.commit(mixed(&format!("d1/conditional {round}"))).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused:?}");
        cost("commit that is refused");
        store.current_version(&namespace().partition()).await.unwrap();
        cost("current_version");
        store.describe().await.unwrap();
        cost("describe");
        // Each statement is prepared once, in a round trip of its own.
        assert!(round == 0 || costs[1..].iter().all(|(_, count)| *count == 1), "{costs:?}");
        store.sweep(10).await.unwrap();
        // Expired rows, the next part of the list of namespaces, and those on it that are empty.
        assert!(round == 0 || proxy.round_trips() == 3, "a sweep");
    }
}

/// Returns how often an index of a schema was searched, once the sessions with a name have ended and reported it.
async fn searches_once_ended(schema: &Schema, sessions_of: &str, index: &str) -> i64 {
    let client = connect(&server()).await.unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1::text";
    while client.query_one(sessions, &[&sessions_of]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::task::yield_now().await;
    }
    let searches = "SELECT idx_scan FROM pg_stat_user_indexes WHERE schemaname = $1::text AND indexrelname = $2::text";
    client.query_one(searches, &[&schema.name, &index]).await.unwrap().get(0)
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn plan_made_on_empty_table_looks_up_each_of_many_keys() {
    const KEYS: usize = 500;
    let schema = schema().await;
    let names_of = ["reads", "writes"].map(|role| format!("{role}-{}", schema.name.replace(' ', "-")));
    let named = |name: &str| {
        let joined = if schema.url.contains('?') { '&' } else { '?' };
        PostgresStore::open_with(PostgresOptions::new(format!("{}{joined}application_name={name}", schema.url)).with_schema(&schema.name))
    };
    drop(open(&schema).await);
    schema.run("ALTER TABLE {s}.rows SET (autovacuum_enabled = off)").await;
    let names: Vec<String> = (0..KEYS * 4).map(|number| format!("dir/{number:05}")).collect();
    let keys: Vec<&str> = names[..KEYS].iter().map(String::as_str).collect();
    let reader = named(&names_of[0]).await.unwrap();
    assert!(reader.get_many(&namespace(), &["none"], true).await.unwrap()[0].is_none(), "the plan is made here");
    let writer = named(&names_of[1]).await.unwrap();
    writer.commit(names.iter().fold(Batch::new(), |batch, name| batch.put(&namespace(), name.as_str(), "v"))).await.unwrap();
    drop(writer);
    let before = searches_once_ended(&schema, &names_of[1], "rows_pkey").await;
    let found = reader.get_many(&namespace(), &keys, true).await.unwrap();
    assert!(found.iter().zip(&keys).all(|(item, key)| item.as_ref().is_some_and(|item| item.key == *key)));
    drop(reader);
    let searches = searches_once_ended(&schema, &names_of[0], "rows_pkey").await - before;
    assert!(searches >= KEYS as i64, "a walk over the namespace searches the index once: {searches}");
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn large_unanalysed_table_is_reported() {
    let schema = schema().await;
    let store = open(&schema).await;
    schema.run("ALTER TABLE {s}.rows SET (autovacuum_enabled = off); ALTER TABLE {s}.rows ALTER COLUMN body SET STORAGE PLAIN").await;
    let told = async || store.describe().await.unwrap().notices.iter().any(|notice| notice.contains("never analysed"));
    assert!(!told().await, "it is empty");
    let body = vec![b'x'; 6_000];
    for part in 0..10 {
        let batch = (0..300).fold(Batch::new(), |batch, number| batch.put(&namespace(), format!("{part}/{number}"), body.clone()));
        store.commit(batch).await.unwrap();
    }
    assert!(told().await);
    schema.run("ANALYZE {s}.rows").await;
    let client = connect(&server()).await.unwrap();
    let analysed = "SELECT count(*) FROM pg_stat_user_tables WHERE schemaname = $1::text AND last_analyze IS NOT NULL";
    while client.query_one(analysed, &[&schema.name]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!told().await);
}
