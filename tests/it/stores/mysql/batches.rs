//! Batches that are committed together: each takes effect and is answered by itself.

use super::{blocked, lock};
use crate::servers::mysql::{administer, database as fresh};
use crate::stores::namespace;
use futures::future::join_all;
use mysql_async::prelude::Queryable;
use std::time::Duration;
use treehold::ErrorKind;
use treehold::store::{Batch, Condition, MysqlStore, ScanEntry, ScanOptions, Store, StoreExt};

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn batch_refused_by_the_server_fails_alone() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let sql = format!(
        "CREATE TRIGGER `{0}`.refuse BEFORE INSERT ON `{0}`.treehold_rows FOR EACH ROW \
         BEGIN IF NEW.head = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'bad'; END IF; END",
        database.name
    );
    administer(&sql).await.unwrap();
    let a = namespace();
    let batches = (0..20).map(|number| {
        let batch = Batch::new().put(&a, format!("{number:02}"), "v");
        store.commit(if number % 5 == 2 { batch.put(&a, "bad", "v") } else { batch })
    });
    let answers = join_all(batches).await;
    let failed: Vec<usize> = answers.iter().enumerate().filter(|(_, answer)| answer.is_err()).map(|(number, _)| number).collect();
    assert_eq!(failed, [2, 7, 12, 17]);
    assert!(answers.iter().filter_map(|answer| answer.as_ref().err()).all(|error| error.is_without_effect()));
    assert_eq!(store.scan(&a, ScanOptions::new()).await.unwrap().entries.len(), 16);
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn group_keeps_the_order_of_its_batches() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let a = namespace();
    store.commit(Batch::new().put(&a, "d/x", "1")).await.unwrap();
    // All of them wait behind a writer, and form one group.
    let mut other = lock(&database).await;
    let first = tokio::spawn({
        let (store, a) = (store.clone(), a.clone());
        async move { store.commit(Batch::new().put(&a, "first", "")).await }
    });
    blocked(&database).await;
    let batches = [
        Batch::new().put(&a, "k", "1"),
        Batch::new().expect(&a, "k", Condition::Exists).put(&a, "l", "2"),
        Batch::new().expect(&a, "k", Condition::Absent).put(&a, "never", ""),
        Batch::new().expect(&a, "never", Condition::Absent).delete_prefix(&a, "d/"),
        Batch::new().expect(&a, "d/x", Condition::Absent).expect(&a, "d/", Condition::NoneBeneath).put(&a, "m", "3"),
        Batch::new().expect(&a, "", Condition::NoneBeneath).put(&a, "never", ""),
        Batch::new().touch(&a, "l", Some(Duration::ZERO)),
        Batch::new().expect(&a, "l", Condition::Absent).put(&a, "l", "4"),
    ];
    let mut committing: Vec<_> = batches.into_iter().map(|batch| Box::pin(store.commit(batch))).collect();
    for commit in &mut committing {
        assert!(futures::poll!(commit).is_pending());
    }
    other.query_drop("ROLLBACK").await.unwrap();
    let answers = join_all(committing).await;
    first.await.unwrap().unwrap();
    let kinds: Vec<_> = answers.iter().map(|answer| answer.as_ref().map(Vec::len).map_err(treehold::Error::kind)).collect();
    let conflict = Err(ErrorKind::Conflict);
    assert_eq!(kinds, [Ok(1), Ok(1), conflict, Ok(0), Ok(1), conflict, Ok(0), Ok(1)], "{answers:?}");
    let versions: Vec<u64> = answers.iter().flatten().flatten().map(|version| version.number()).collect();
    assert_eq!(versions, [3, 4, 5, 6], "a removal takes no number where there are puts");
    assert_eq!(answers[2].as_ref().unwrap_err().current_version().map(|version| version.number()), Some(3));
    let entries = store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap().entries;
    let rows: Vec<(&str, u64)> = entries
        .iter()
        .map(|entry| if let ScanEntry::Item(item) = entry { (item.key.as_str(), item.version.number()) } else { ("", 0) })
        .collect();
    assert_eq!(rows, [("first", 2), ("k", 3), ("l", 6), ("m", 5)]);
    assert!(store.check().await.unwrap().is_empty());
}
