//! Partitions: their counters, and the locks on them.

use super::{PATIENCE, blocked, proxied};
use crate::servers::mysql::{administer, database as fresh};
use crate::stores::namespace;
use futures::future::join_all;
use mysql_async::prelude::Queryable;
use treehold::ErrorKind;
use treehold::store::{Batch, Condition, MysqlStore, Namespace, ScanOptions, Store, StoreExt};

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn writer_of_a_partition_waits_for_no_other_partition() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let a = namespace();
    store.commit(Batch::new().put(&a, "k", "v")).await.unwrap();
    let mut other = mysql_async::Conn::from_url(&database.url).await.unwrap();
    let locked = a.partition();
    let sql =
        format!("START TRANSACTION; SELECT version FROM treehold_partitions WHERE partition_name = '{}' FOR UPDATE", locked.encoded());
    other.query_drop(sql).await.unwrap();
    let waiting = tokio::spawn({
        let (store, batch) = (store.clone(), Batch::new().expect(&a, "new", Condition::Absent).put(&a, "new", "v"));
        async move {
            loop {
                match store.commit(batch.clone()).await {
                    // The store gives up after 20 seconds, and the others may need longer.
                    Err(error) if error.kind() == ErrorKind::Unavailable && error.is_without_effect() => {}
                    done => return done,
                }
            }
        }
    });
    blocked(&database).await;
    let spaces: Vec<_> = (0..40).map(|number| Namespace::new([format!("other {number}")]).unwrap()).collect();
    let batches = spaces.iter().flat_map(|space| {
        let put = Batch::new().put(space, "k", "v");
        [put.clone(), put.clone().expect(space, "l", Condition::Absent).delete(space, "m"), put.delete_prefix(space, "x/")]
    });
    let written = tokio::time::timeout(PATIENCE, join_all(batches.map(|batch| store.commit(batch)))).await.expect("a partition is locked");
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    assert!(!waiting.is_finished());
    other.query_drop("ROLLBACK").await.unwrap();
    assert!(waiting.await.unwrap().is_ok());
    // Regression: the removal of a prefix looked for its end in the first row of the next partition.
    let (before, after) = (Namespace::parse("p1//a").unwrap(), Namespace::parse("p2//a").unwrap());
    store.commit((0..500).fold(Batch::new(), |batch, number| batch.put(&before, format!("x/{number}"), "v"))).await.unwrap();
    store.commit((1..500).fold(Batch::new(), |batch, number| batch.put(&after, format!("x/{number}"), "v"))).await.unwrap();
    // Keys that share more than their heads, and are the last ones of their partition.
    let long = format!("y/{}", "z".repeat(1_600));
    store.commit((0..20).fold(Batch::new(), |batch, number| batch.put(&before, format!("{long}{number}"), "v"))).await.unwrap();
    let row = "'p2//a/', 'x/0', x''";
    for sql in [
        "START TRANSACTION".to_owned(),
        format!("INSERT INTO treehold_rows VALUES ({row}, x'', 1, 0, 0, NULL, 0, x'')"),
        format!("INSERT INTO treehold_bodies VALUES ({row}, x'')"),
    ] {
        other.query_drop(sql).await.unwrap();
    }
    let prefixes = [("x/4", 409), (&*format!("{long}1"), 398), (&*long, 389), (&*format!("{long}1"), 389), ("", 0), ("x", 0)];
    for (prefix, left) in prefixes {
        let removal = Batch::new().delete_prefix(&before, prefix);
        store.commit(removal).await.expect("it waits for no other partition");
        let rows = administer(&format!("SELECT * FROM `{}`.treehold_bodies WHERE namespace = 'p1//a/'", database.name)).await.unwrap();
        assert_eq!(rows.len(), left, "{prefix}");
    }
    assert_eq!(store.scan(&before, ScanOptions::new()).await.unwrap().entries.len(), 0);
    // Regression: the removal of many keys of a small table read all its rows.
    let keys = || (0..200).map(|number| format!("y/{number}"));
    store.commit(keys().fold(Batch::new(), |batch, key| batch.put(&before, key, "v"))).await.unwrap();
    let removal = keys().take(50).fold(Batch::new(), |batch, key| batch.delete(&before, key));
    let touch = keys().skip(100).take(50).fold(Batch::new(), |batch, key| batch.touch(&before, key, Some(PATIENCE)));
    for batch in [removal, touch] {
        store.commit(batch).await.expect("it waits for no other partition");
    }
    other.query_drop("ROLLBACK").await.unwrap();
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn partition_is_made_with_its_first_row() {
    let database = fresh().await;
    let (store, proxy) = proxied(&database).await;
    let rows = async || {
        administer(&format!("SELECT * FROM `{}`.treehold_partitions WHERE partition_name > ''", database.name)).await.unwrap().len()
    };
    let space = |name: &str| Namespace::new([name]).unwrap();
    let absent = space("absent");
    assert_eq!(store.commit(Batch::new().delete(&absent, "k").delete_prefix(&absent, "")).await.unwrap(), []);
    let refused = store.commit(Batch::new().expect(&absent, "k", Condition::Exists).put(&absent, "k", "v")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.change()), (ErrorKind::Conflict, Some(0)));
    assert_eq!((store.current_version(&absent.partition()).await.unwrap().number(), rows().await), (0, 0));
    proxy.round_trips();
    store.commit(Batch::new().put(&space("first"), "k", "v")).await.unwrap();
    assert_eq!(proxy.round_trips(), 6, "four more than a commit");
    // Concurrent first commits of several processes.
    let others = join_all((0..4).map(|_| MysqlStore::open(&database.url))).await;
    let second = space("second");
    let puts = others.iter().flat_map(|store| {
        let store = store.as_ref().unwrap();
        (0..4).map(|number| store.commit(Batch::new().put(&second, format!("{number}"), "v")))
    });
    let mut versions: Vec<u64> = join_all(puts).await.into_iter().map(|put| put.unwrap()[0].number()).collect();
    versions.sort_unstable();
    assert_eq!((versions, rows().await), ((1..=16).collect(), 2));
    // A counter that is lost is never made again beneath rows.
    administer(&format!("DELETE FROM `{}`.treehold_partitions WHERE partition_name = 'second//'", database.name)).await.unwrap();
    for batch in [
        Batch::new().put(&second, "k", "v"),
        Batch::new().delete(&second, "0"),
        Batch::new().expect(&second, "0", Condition::Absent).delete(&second, "1"),
    ] {
        let lost = store.commit(batch).await.unwrap_err();
        assert_eq!((lost.kind(), lost.is_without_effect()), (ErrorKind::Corrupt, true), "{lost:?}");
    }
    assert_eq!(store.current_version(&second.partition()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(store.check().await.unwrap().iter().any(|error| error.message().contains("version counter is missing (4)")));
    store.commit(Batch::new().put(&namespace(), "k", "other partitions are not affected")).await.unwrap();
}
