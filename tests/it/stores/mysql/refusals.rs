//! Servers, tables and rows that the store refuses.

use crate::servers::mysql::{administer, database as fresh};
use crate::stores::namespace;
use treehold::ErrorKind;
use treehold::store::{Batch, MysqlStore, ScanOptions, Store, StoreExt};

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn server_refusal_is_reported_without_secrets() {
    let database = fresh().await;
    let (_, rest) = database.url.rsplit_once('@').unwrap();
    let (host, _) = rest.split_once('/').unwrap();
    for (url, kind) in [
        (format!("mysql://nobody:s3cret@{rest}"), ErrorKind::PermissionDenied),
        (database.url.replace(&database.name, "treehold_absent"), ErrorKind::NotFound),
        (format!("mysql://root:s3cret@127.0.0.1:1/{}", database.name), ErrorKind::Unavailable),
        (format!("mysql://root:s3cret@{host}"), ErrorKind::InvalidArgument),
    ] {
        let error = MysqlStore::open(&url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.is_without_effect() || kind == ErrorKind::InvalidArgument);
        let hidden = ["s3cret", "nobody", "treehold_absent", "127.0.0.1"];
        assert!(!hidden.iter().any(|hidden| error.message().contains(hidden)), "{error}");
    }
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn tables_of_a_newer_version_are_refused_unchanged() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    assert!(store.to_string().starts_with("mysql://") && !store.to_string().contains('@'), "{store}");
    drop(store);
    administer(&format!("UPDATE `{}`.treehold_schema SET version = 99", database.name)).await.unwrap();
    let error = MysqlStore::open(&database.url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("newer version"), "{error}");
    // Another prefix is another store.
    let url = format!("{}?prefix=other_", database.url);
    MysqlStore::open(url).await.unwrap().commit(Batch::new().put(&namespace(), "k", "")).await.unwrap();
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn damage_is_found() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let a = namespace();
    store.commit(Batch::new().put(&a, "k", "body").put(&a, "l", "body")).await.unwrap();
    let run = async |sql: &str| administer(&sql.replace("treehold_", &format!("`{}`.treehold_", database.name))).await.unwrap();
    run("DELETE FROM treehold_bodies WHERE head = 'k'").await;
    assert_eq!(store.get(&a, "k").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.scan(&a, ScanOptions::new()).await.unwrap().entries.len(), 2, "a scan without bodies succeeds");
    run("DELETE FROM treehold_rows WHERE head = 'l'").await;
    run("UPDATE treehold_partitions SET version = 0").await;
    run("DELETE FROM treehold_namespaces").await;
    let found: Vec<String> = store.check().await.unwrap().iter().map(ToString::to_string).collect();
    for what in ["bodies without a row (1)", "rows without a body (1)", "newer than the version counter (1)", "not listed (1)"] {
        assert!(found.iter().any(|found| found.contains(what)), "{what} among {found:?}");
    }
}
