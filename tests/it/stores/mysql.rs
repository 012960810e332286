//! MySQL and MariaDB: round trips, broken connections, processes that share a store, long keys, servers that refuse.

use super::namespace;
use crate::servers::mysql::{Database, administer, database as fresh};
use crate::servers::proxy::{Break, Proxy};
use futures::future::join_all;
use mysql_async::prelude::Queryable;
use proptest::prelude::*;
use std::process::{Command, Stdio};
use std::time::Duration;
use treehold::ErrorKind;
use treehold::store::{
    Batch, Condition, MemoryStore, MysqlOptions, MysqlStore, Namespace, NamespacesOptions, ScanEntry, ScanOptions, Store, StoreExt,
};

const PATIENCE: Duration = Duration::from_secs(120);

/// Opens the store of a database through a proxy, on one connection.
async fn proxied(database: &Database) -> (MysqlStore, Proxy) {
    proxied_within(database, Duration::from_secs(60)).await
}

/// Opens it with a limit on how long an answer may take.
async fn proxied_within(database: &Database, timeout: Duration) -> (MysqlStore, Proxy) {
    let (proxy, url) = crate::servers::mysql::proxied(&database.url).await;
    let store = MysqlStore::open_with(MysqlOptions::new(url).with_connections_max(1).with_timeout(timeout)).await.unwrap();
    (store, proxy)
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn calls_take_the_documented_round_trips() {
    let database = fresh().await;
    let (store, proxy) = proxied(&database).await;
    let a = namespace();
    let listing = ScanOptions::new().with_delimiter('/');
    // Prepares every statement.
    store.commit(Batch::new().put(&a, "k", "v").put(&a, "long", vec![0; 200_000])).await.unwrap();
    store.get(&a, "k").await.unwrap();
    store.scan(&a, ScanOptions::new()).await.unwrap();
    store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap();
    store.current_version(&a.partition()).await.unwrap();
    proxy.round_trips();
    let batch = (0..20).fold(Batch::new(), |batch, number| batch.expect(&a, format!("none{number}"), Condition::Absent));
    store.commit(batch.expect(&a, "d/", Condition::NoneBeneath).put(&a, "k", "w").delete_prefix(&a, "x/")).await.unwrap();
    assert_eq!(proxy.round_trips(), 2, "a commit with conditions");
    let refused = store.commit(Batch::new().expect(&a, "k", Condition::Absent).put(&a, "k", "x")).await.unwrap_err();
    assert_eq!((refused.kind(), proxy.round_trips()), (ErrorKind::Conflict, 2), "a commit that is refused");
    store.commit((0..200).fold(Batch::new(), |batch, n| batch.put(&a, format!("d/{n}"), vec![7; 4_096]))).await.unwrap();
    assert_eq!(proxy.round_trips(), 2, "a commit of 200 bodies");
    store.commit(Batch::new().put(&a, "long", vec![1; 200_000])).await.unwrap();
    assert_eq!(proxy.round_trips(), 4, "a commit with a long body, whose pieces go before the commit");
    assert!(store.get(&a, "k").await.unwrap().is_some());
    assert_eq!(proxy.round_trips(), 1, "a get");
    assert_eq!(store.get_many(&a, &["k", "none", "d/1"], true).await.unwrap().iter().flatten().count(), 2);
    assert_eq!(proxy.round_trips(), 1, "a get of many");
    assert_eq!(store.scan(&a, ScanOptions::new()).await.unwrap().entries.len(), 202);
    assert_eq!(proxy.round_trips(), 1, "a page");
    assert_eq!(store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap().entries.len(), 202);
    assert_eq!(proxy.round_trips(), 1, "a page with bodies");
    assert_eq!(store.scan(&a, listing.clone()).await.unwrap().entries.len(), 3);
    assert_eq!(proxy.round_trips(), 1, "a page of few groups");
    assert_eq!(store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces.len(), 1);
    assert_eq!(proxy.round_trips(), 1, "a page of namespaces");
    store.current_version(&a.partition()).await.unwrap();
    assert_eq!(proxy.round_trips(), 1, "the version");
    store.commit((0..2_000).fold(Batch::new(), |batch, n| batch.put(&a, format!("g{:02}/{n}", n % 40), ""))).await.unwrap();
    proxy.round_trips();
    assert_eq!(store.scan(&a, listing).await.unwrap().entries.len(), 43);
    assert_eq!(proxy.round_trips(), 2, "a page of groups with many rows");
}

/// Waits until a commit of the store waits for the counter row.
async fn blocked(database: &Database) -> u64 {
    loop {
        let sql = format!(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = '{}' AND COMMAND = 'Query' AND INFO LIKE '%FOR UPDATE%'",
            database.name
        );
        if let Some(row) = administer(&sql).await.unwrap().into_iter().next() {
            return row.get(0).unwrap();
        }
        tokio::task::yield_now().await;
    }
}

/// Locks the counter row, as a writer in another process does.
async fn lock(database: &Database) -> mysql_async::Conn {
    let mut other = mysql_async::Conn::from_url(&database.url).await.unwrap();
    other.query_drop("START TRANSACTION; SELECT version FROM treehold_partitions FOR UPDATE").await.unwrap();
    other
}

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

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn contents_with_all_bytes_round_trip() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let a = namespace();
    let all: Vec<u8> = (0..=255).collect();
    // Every byte before each byte that is special in statements, and partial characters before those.
    let pairs: Vec<u8> = all.iter().flat_map(|byte| [*byte, b'\'', *byte, b'\\', *byte, 0, *byte, 0x1A]).collect();
    let contents = [all, pairs, b"\\".to_vec(), b"'".to_vec(), b"\xF0\x9F'; DROP TABLE treehold_rows; --".to_vec(), vec![0; 4_096]];
    let batch = contents
        .iter()
        .enumerate()
        .fold(Batch::new(), |batch, (number, content)| batch.put_with_meta(&a, format!("{number}"), content.clone(), content.clone()));
    store.commit(batch).await.unwrap();
    for (number, content) in contents.iter().enumerate() {
        let item = store.get(&a, &format!("{number}")).await.unwrap().unwrap();
        assert!(item.value == content && item.meta == content, "{number}: {item:?}");
    }
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn namespaces_without_rows_are_not_examined() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let listed = async || {
        let sql = format!("SELECT COUNT(*) FROM `{}`.treehold_namespaces", database.name);
        administer(&sql).await.unwrap()[0].get::<u64, _>(0).unwrap()
    };
    let spaces: Vec<Namespace> =
        (0..30).map(|number| Namespace::new(["acme".to_owned(), "ada".to_owned(), number.to_string()]).unwrap()).collect();
    let puts = || spaces.iter().fold(Batch::new(), |batch, space| batch.put(space, "k", "").put(space, "l", ""));
    store.commit(puts()).await.unwrap();
    assert_eq!(listed().await, 30);
    // By prefix, by key, and together with puts to another namespace.
    let removed = spaces[..10].iter().fold(Batch::new(), |batch, space| batch.delete_prefix(space, ""));
    store.commit(removed).await.unwrap();
    let removed = spaces[10..20].iter().fold(Batch::new(), |batch, space| batch.delete(space, "k").delete(space, "l"));
    store.commit(removed.put(&spaces[20], "k", "").delete(&spaces[21], "k")).await.unwrap();
    assert_eq!(listed().await, 10, "only namespaces with a row are listed");
    // Touches and removals of absent rows, and expired rows.
    let ends = |batch: Batch, space| batch.touch(space, "k", Some(Duration::ZERO)).touch(space, "l", Some(Duration::ZERO));
    store.commit(spaces[22..].iter().fold(Batch::new().touch(&spaces[0], "k", None).delete(&spaces[1], "k"), ends)).await.unwrap();
    assert_eq!(listed().await, 10);
    assert_eq!(store.sweep(100).await.unwrap(), 16);
    assert_eq!(listed().await, 2);
    assert_eq!(store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces, spaces[20..22]);
    assert!(store.check().await.unwrap().is_empty());
    store.commit(puts()).await.unwrap();
    assert_eq!((listed().await, store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces.len()), (30, 30));
}

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
async fn page_after_a_long_key_is_read_normally() {
    let database = fresh().await;
    let (store, proxy) = proxied(&database).await;
    let a = namespace();
    let long = format!("a{}", "l".repeat(1_600));
    let batch = (0..300).fold(Batch::new().put(&a, &long, "long"), |batch, n| batch.put(&a, format!("b{n:03}/x"), "short"));
    store.commit(batch.put(&a, "z".repeat(1_536), "last")).await.unwrap();
    for (options, entries) in [
        (ScanOptions::new(), 302),
        (ScanOptions::new().with_values(true), 302),
        (ScanOptions::new().with_delimiter('/'), 302),
        (ScanOptions::new().with_delimiter('/').with_values(true), 302),
        (ScanOptions::new().with_values(true).with_bytes_max(504), 101),
    ] {
        // The first page prepares missing statements.
        for _ in 0..2 {
            proxy.round_trips();
            let page = store.scan(&a, options.clone()).await.unwrap();
            assert_eq!(page.entries.len(), entries, "{options:?}");
        }
        let round_trips = proxy.round_trips();
        assert!(round_trips <= 12, "{round_trips} for {options:?}");
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

const URL: &str = "TREEHOLD_TEST_STORE";

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
        .args(["--include-ignored", "--exact", "stores::mysql::write_of_one_process_is_read_and_announced_in_another"])
        .env(URL, &database.url)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap().unwrap().number(), 2);
    assert_eq!(store.get(&a, "k").await.unwrap().unwrap().value, "theirs");
    assert!(futures::poll!(Box::pin(elsewhere.changed())).is_pending(), "nothing was put there");
    assert!(child.wait_with_output().unwrap().status.success());
}

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
async fn body_of_the_size_limit_round_trips() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let limit = usize::try_from(store.capabilities().value_bytes_max.unwrap()).unwrap();
    let a = namespace();
    let meta = vec![b'm'; treehold::store::META_BYTES_MAX];
    let key = "k".repeat(treehold::store::KEY_BYTES_MAX);
    let body = vec![0xA5; limit];
    store.commit(Batch::new().put_with_meta(&a, &key, meta, body.clone()).put(&a, "small", "v")).await.unwrap();
    assert!(store.get(&a, &key).await.unwrap().unwrap().value == body);
    let page = store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap();
    assert_eq!(page.entries.len(), 1, "the first ends the page by its bytes");
    let error = store.commit(Batch::new().put(&a, "k", vec![0; limit + 1])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
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

/// Keys around the length of a head and of other lengths, with long common prefixes.
fn long_key() -> impl Strategy<Value = String> {
    let piece = proptest::sample::select(vec!["a", "b", "/", "\u{1}", "é"]);
    let length = proptest::sample::select(vec![0_usize, 1, 1_500, 1_534, 1_535, 1_536, 1_537, 1_600, 3_000, 4_080]);
    (length, proptest::collection::vec(piece, 0..5), any::<bool>()).prop_map(|(length, pieces, has_group)| {
        let start = if has_group { "x/" } else { "" };
        let key = format!("{start}{}{}", "l".repeat(length.saturating_sub(start.len())), pieces.concat());
        if key.is_empty() { "a".to_owned() } else { key }
    })
}

/// Pages of keys that the index does not order equal those of the in-memory store.
#[test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
fn long_keys_sort_like_short_ones() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(fresh());
    let store = runtime.block_on(MysqlStore::open(&database.url)).unwrap();
    let delimiters = proptest::option::of(proptest::sample::select(vec!['/', '\u{1}', 'é']));
    let scans = proptest::collection::vec((long_key(), delimiters, 1..6_usize, any::<bool>(), 0..60_usize), 1..8);
    let config = ProptestConfig { cases: 24, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() };
    proptest!(config, |(keys in proptest::collection::vec(long_key(), 1..40), scans in scans, removed in long_key())| {
        runtime.block_on(async {
            let (memory, a) = (MemoryStore::new(), namespace());
            store.commit(Batch::new().delete_prefix(&a, "")).await.unwrap();
            let batch = keys.iter().enumerate().fold(Batch::new(), |batch, (n, key)| batch.put(&a, key, "body".repeat(n)));
            for batch in [batch, Batch::new().delete_prefix(&a, &removed)] {
                let ours = store.commit(batch.clone().expect(&a, "none", Condition::Absent)).await.unwrap();
                assert_eq!(ours.len(), memory.commit(batch).await.unwrap().len());
            }
            let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
            let found = |items: Vec<Option<treehold::store::Item>>| items.into_iter().map(|item| item.map(|item| item.value)).collect::<Vec<_>>();
            assert_eq!(found(store.get_many(&a, &wanted, true).await.unwrap()), found(memory.get_many(&a, &wanted, true).await.unwrap()));
            for (prefix, delimiter, limit, with_values, bytes_max) in scans {
                // A prefix of one of the keys.
                let half = prefix.char_indices().nth(prefix.chars().count() / 2).map_or(0, |(at, _)| at);
                for prefix in ["", &prefix[..half], &prefix] {
                    let mut options = ScanOptions::new().with_prefix(prefix).with_limit(limit).with_values(with_values).with_bytes_max(bytes_max);
                    options.delimiter = delimiter;
                    loop {
                        let ours = store.scan(&a, options.clone()).await.unwrap();
                        let theirs = memory.scan(&a, options.clone()).await.unwrap();
                        let shown = |entries: &[ScanEntry]| entries.iter().map(|entry| match entry {
                            ScanEntry::Item(item) | ScanEntry::LeftOut { item, .. } => (item.key.clone(), Some(item.value.clone()), false),
                            ScanEntry::Group { name, item } => (name.clone(), item.as_ref().map(|item| item.value.clone()), true),
                        }).collect::<Vec<_>>();
                        assert!(shown(&ours.entries) == shown(&theirs.entries) && ours.next == theirs.next, "a page of {limit} at a prefix of {} bytes", prefix.len());
                        let Some(next) = ours.next else { break };
                        options = options.with_start_after(next);
                    }
                }
            }
        });
    });
    drop((store, runtime, database));
}
