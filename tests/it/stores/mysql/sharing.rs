//! Processes that share a store.

use super::PATIENCE;
use crate::servers::mysql::database as fresh;
use crate::stores::namespace;
use futures::future::join_all;
use std::process::{Command, Stdio};
use treehold::store::{Batch, MysqlStore, Store};

const URL: &str = "TREEHOLD_TEST_STORE";

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn watch_fires_when_another_process_removes_the_last_row() {
    let database = fresh().await;
    let (store, other) = (MysqlStore::open(&database.url).await.unwrap(), MysqlStore::open(&database.url).await.unwrap());
    let a = namespace();
    other.commit(Batch::new().put(&a, "k", "")).await.unwrap();
    let mut watch = store.watch(&a).await.unwrap();
    for batch in [Batch::new().delete_prefix(&a, ""), Batch::new().put(&a, "k", ""), Batch::new().delete(&a, "k")] {
        other.commit(batch).await.unwrap();
        let told = tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap().unwrap();
        assert_eq!(told, other.current_version(&a.partition()).await.unwrap());
    }
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn concurrent_openers_create_the_tables_once() {
    for _ in 0..3 {
        let database = fresh().await;
        let stores = join_all((0..8).map(|_| tokio::spawn(MysqlStore::open(database.url.clone())))).await;
        for (number, store) in stores.into_iter().enumerate() {
            let store = store.unwrap().unwrap();
            store.commit(Batch::new().put(&namespace(), format!("{number}"), "")).await.unwrap();
            assert_eq!(store.current_version(&namespace().partition()).await.unwrap().number(), number as u64 + 1);
        }
    }
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn write_of_one_process_is_read_and_announced_in_another() {
    let a = namespace();
    if let Ok(url) = std::env::var(URL) {
        MysqlStore::open(url).await.unwrap().commit(Batch::new().put(&a, "k", "theirs")).await.unwrap();
        return;
    }
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    store.commit(Batch::new().put(&a, "k", "ours")).await.unwrap();
    let other = treehold::store::Namespace::new(["other"]).unwrap();
    let (mut watch, mut elsewhere) = (store.watch(&a).await.unwrap(), store.watch(&other).await.unwrap());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--include-ignored", "--exact", "stores::mysql::sharing::write_of_one_process_is_read_and_announced_in_another"])
        .env(URL, &database.url)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap().unwrap().number(), 2);
    assert_eq!(store.get(&a, "k").await.unwrap().unwrap().value, "theirs");
    assert!(futures::poll!(Box::pin(elsewhere.changed())).is_pending(), "nothing was put there");
    assert!(child.wait_with_output().unwrap().status.success());
}
