//! Connections that break, fall silent or are killed, and runtimes that stand idle.

use super::{PATIENCE, blocked, lock, proxied, proxied_within};
use crate::servers::mysql::{administer, database as fresh};
use crate::servers::proxy::Break;
use crate::stores::namespace;
use mysql_async::prelude::Queryable;
use std::time::Duration;
use treehold::ErrorKind;
use treehold::store::{Batch, MysqlStore, Store};

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn commit_on_broken_connection_reports_its_possible_effect() {
    let database = fresh().await;
    let (store, proxy) = proxied(&database).await;
    let a = namespace();
    store.commit(Batch::new().put(&a, "first", "v")).await.unwrap();
    // Until the lock is taken, nothing that could have an effect has been sent, and the commit is started again.
    proxy.break_next(Break::Request);
    store.commit(Batch::new().put(&a, "begun again", "v")).await.unwrap();
    proxy.break_next(Break::Answer);
    store.commit(Batch::new().put(&a, "begun again too", "v")).await.unwrap();
    for (at, is_done) in [(Break::Request, false), (Break::Answer, true)] {
        let key = format!("{at:?}");
        let mut other = lock(&database).await;
        let committing = tokio::spawn({
            let (store, batch) = (store.clone(), Batch::new().put(&a, &key, "v"));
            async move { store.commit(batch).await }
        });
        blocked(&database).await;
        proxy.break_next(at);
        other.query_drop("ROLLBACK").await.unwrap();
        let error = committing.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Unavailable, true), "{error:?}");
        proxy.all_ended().await;
        // The server may still be working on it; locking the counter waits for that.
        lock(&database).await.query_drop("ROLLBACK").await.unwrap();
        assert_eq!(store.get(&a, &key).await.unwrap().is_some(), is_done, "nothing is sent twice or lost");
    }
    // A read is tried once more.
    proxy.break_next(Break::Answer);
    assert!(store.get(&a, "first").await.unwrap().is_some());
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn silent_server_is_unavailable_within_the_timeout() {
    let database = fresh().await;
    let a = namespace();
    // On a slow disk, creating the tables and this commit may take longer than the timeout.
    MysqlStore::open(&database.url).await.unwrap().commit(Batch::new().put(&a, "k", "v")).await.unwrap();
    let (store, proxy) = proxied_within(&database, Duration::from_secs(5)).await;
    proxy.break_next(Break::Silence);
    let error = store.get(&a, "k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    proxy.break_next(Break::Silence);
    let error = store.commit(Batch::new().put(&a, "never", "v")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_without_effect()), (ErrorKind::Unavailable, true), "{error:?}");
    // The only connection is reused each time. The server rolls the transaction back once it notices that its client is gone.
    assert!(store.get(&a, "never").await.unwrap().is_none());
    lock(&database).await.query_drop("ROLLBACK").await.unwrap();
    let mut other = lock(&database).await;
    let committing = tokio::spawn({
        let (store, batch) = (store.clone(), Batch::new().put(&a, "done", "v"));
        async move { store.commit(batch).await }
    });
    blocked(&database).await;
    proxy.break_next(Break::Silence);
    other.query_drop("ROLLBACK").await.unwrap();
    let error = committing.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Unavailable, true), "{error:?}");
    lock(&database).await.query_drop("ROLLBACK").await.unwrap();
    assert!(store.get(&a, "done").await.unwrap().is_some());
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn killed_connection_is_replaced() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let a = namespace();
    store.commit(Batch::new().put(&a, "k", "v")).await.unwrap();
    for round in 0..3 {
        // The connections of the previous round may still be ending.
        let sql = format!("SELECT ID FROM information_schema.PROCESSLIST WHERE DB = '{}' AND COMMAND <> 'Killed'", database.name);
        for row in administer(&sql).await.unwrap() {
            administer(&format!("KILL {}", row.get::<u64, _>(0).unwrap())).await.unwrap();
        }
        if round == 1 {
            store.commit(Batch::new().put(&a, "k", "w")).await.unwrap();
        } else {
            assert!(store.get(&a, "k").await.unwrap().is_some());
        }
    }
    // A commit killed while it waits for another writer is started again.
    let mut other = lock(&database).await;
    let committing = tokio::spawn({
        let (store, batch) = (store.clone(), Batch::new().put(&a, "waited", "v"));
        async move { store.commit(batch).await }
    });
    administer(&format!("KILL {}", blocked(&database).await)).await.unwrap();
    other.query_drop("ROLLBACK").await.unwrap();
    committing.await.unwrap().unwrap();
    assert!(store.get(&a, "waited").await.unwrap().is_some());
}

/// Nobody drives the connections of an idle runtime.
#[test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
fn store_works_across_runtimes() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let (database, store) = first.block_on(async {
        let database = fresh().await;
        let store = MysqlStore::open(&database.url).await.unwrap();
        store.commit(Batch::new().put(&namespace(), "k", "one")).await.unwrap();
        (database, store)
    });
    second.block_on(async {
        let work = async {
            assert!(store.get(&namespace(), "k").await.unwrap().is_some());
            store.commit(Batch::new().put(&namespace(), "k", "two")).await.unwrap();
        };
        tokio::time::timeout(PATIENCE, work).await.unwrap();
    });
    drop((store, first, second, database));
}
