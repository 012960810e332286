//! The cost of calls: round trips, and the namespaces that are examined.

use super::proxied;
use crate::servers::mysql::{administer, database as fresh};
use crate::stores::namespace;
use std::time::Duration;
use treehold::ErrorKind;
use treehold::store::{Batch, Condition, MysqlStore, Namespace, NamespacesOptions, ScanOptions, Store, StoreExt};

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
