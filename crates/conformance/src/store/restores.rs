//! Restored items: copied from elsewhere, unchanged.

use super::*;

fn elsewhere(key: &str, version: u64) -> Item {
    let at = |second| Timestamp::from_second(second).expect("a time");
    Item::new(key, Bytes::from_static(b"meta"), noise(9_000), Version::new(version), at(1_000), at(2_000))
}

pub(super) async fn restored_item_is_unchanged(store: Subject) {
    let a = namespace("a");
    let later = Timestamp::from_second(Timestamp::now().as_second() + 3_600).expect("a time");
    let mortal = elsewhere("mortal", 7).with_expires_at(Some(later));
    let items = [elsewhere("k", 5), mortal, Item::new("small", Bytes::new(), Bytes::new(), Version::new(6), later, later)];
    let batch = items.iter().fold(Batch::new(), |batch, item| batch.restore(&a, item.clone()));
    assert_eq!(commit(&store, batch).await, []);
    for item in &items {
        assert_eq!(get(&store, &a, &item.key).await.as_ref(), Some(item));
    }
    let scanned = scan_all(&store, &a, ScanOptions::new().with_values(true)).await;
    assert_eq!(scanned, items.map(ScanEntry::Item));
}

pub(super) async fn restore_replaces_existing_item(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["k", "other"]).await;
    commit(&store, Batch::new().restore(&a, elsewhere("k", 900))).await;
    assert_eq!(get(&store, &a, "k").await, Some(elsewhere("k", 900)));
    assert_eq!(value(&store, &a, "other").await, Some(Bytes::from_static(b"body of other")));
    // Again, with a version below the counter, as in a repeated copy.
    commit(&store, Batch::new().restore(&a, elsewhere("k", 40))).await;
    assert_eq!(get(&store, &a, "k").await, Some(elsewhere("k", 40)));
    commit(&store, Batch::new().restore(&a, elsewhere("twin", 40))).await;
    commit(&store, Batch::new().delete(&a, "twin")).await;
    assert_eq!(get(&store, &a, "k").await, Some(elsewhere("k", 40)), "two items of one version share nothing");
}

pub(super) async fn version_counter_continues_after_restored_version(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["first"]).await;
    let before = store.current_version(&a.partition()).await.expect("a version");
    commit(&store, Batch::new().restore(&a, elsewhere("k", 5_000)).restore(&a, elsewhere("l", 3))).await;
    let restored = store.current_version(&a.partition()).await.expect("a version");
    assert!(restored >= Version::new(5_000) && restored > before, "{restored} after {before}");
    commit(&store, Batch::new().restore(&a, elsewhere("m", 4))).await;
    let grown = store.current_version(&a.partition()).await.expect("a version");
    assert!(grown > restored, "a restore of an old version is a commit too");
    let version = commit(&store, Batch::new().put(&a, "n", "")).await[0];
    assert!(version > grown);
}

/// Copying a store raises the counter this way, without leaving an item.
pub(super) async fn restore_deleted_by_its_batch_still_raises_version_counter(store: Subject) {
    let a = namespace("a");
    commit(&store, Batch::new().restore(&a, elsewhere("k", 7_000)).delete_prefix(&a, "")).await;
    commit(&store, Batch::new().restore(&a, elsewhere("l", 8_000)).delete(&a, "l")).await;
    assert_eq!(scan_all(&store, &a, ScanOptions::new()).await, []);
    let version = commit(&store, Batch::new().put(&a, "n", "")).await[0];
    assert!(version > Version::new(8_000), "{version}");
}

pub(super) async fn batch_with_restore_returns_versions_of_its_puts(store: Subject) {
    let a = namespace("a");
    let batch = Batch::new().put(&a, "p", "1").restore(&a, elsewhere("k", 2)).put(&a, "q", "2");
    let versions = commit(&store, batch).await;
    assert_eq!(versions.len(), 2);
    assert_eq!(get(&store, &a, "p").await.map(|item| item.version), Some(versions[0]));
    assert_eq!(get(&store, &a, "q").await.map(|item| item.version), Some(versions[1]));
    assert!(versions[0] < versions[1]);
    assert_eq!(get(&store, &a, "k").await, Some(elsewhere("k", 2)));
}

pub(super) async fn expired_restored_item_is_absent(store: Subject) {
    let a = namespace("a");
    let over = elsewhere("k", 5).with_expires_at(Some(Timestamp::from_second(3_000).expect("a time")));
    commit(&store, Batch::new().restore(&a, over)).await;
    assert_eq!(get(&store, &a, "k").await, None);
    sweep(&store, 10, 1).await;
}

/// Regression: one such item blocked every later write to a store.
pub(super) async fn restore_of_version_too_large_to_continue_is_rejected(store: Subject) {
    let a = namespace("a");
    for version in [1 << 52, i64::MAX as u64, u64::MAX] {
        refused(&store, Batch::new().put(&a, "x", "").restore(&a, elsewhere("k", version)), ErrorKind::InvalidArgument).await;
    }
    assert_eq!(get(&store, &a, "x").await, None);
    commit(&store, Batch::new().restore(&a, elsewhere("k", (1 << 52) - 1))).await;
    let versions = commit(&store, Batch::new().put(&a, "l", "").put(&a, "m", "")).await;
    assert!(versions[0] > Version::new((1 << 52) - 1) && versions[1] > versions[0]);
    assert_eq!(get(&store, &a, "m").await.map(|item| item.version), Some(versions[1]));
}

/// Regression: `NoneBeneath` looks for items newer than version 0, and missed such an item in some stores.
pub(super) async fn restore_of_version_zero_is_rejected(store: Subject) {
    let a = namespace("a");
    refused(&store, Batch::new().put(&a, "x", "").restore(&a, elsewhere("d/k", 0)), ErrorKind::InvalidArgument).await;
    assert_eq!(scan_all(&store, &a, ScanOptions::new()).await, []);
    commit(&store, Batch::new().restore(&a, elsewhere("d/k", 1))).await;
    refused(&store, Batch::new().expect(&a, "d/", Condition::NoneBeneath).put(&a, "x", ""), ErrorKind::Conflict).await;
}
