//! What a store reports about itself.

use super::*;

pub(super) async fn stats_count_live_items(store: Subject) {
    let (a, b) = (namespace("a"), namespace("b"));
    let empty = store.stats().await.expect("stats");
    assert_eq!((empty.items, empty.namespaces, empty.value_bytes, empty.expired), (0, 0, 0, 0));
    let batch = Batch::new().put_with_meta(&a, "k", "meta", noise(5_000)).put(&a, "l", "12345").put(&b, "m", "");
    commit(&store, batch).await;
    commit(&store, put_for(&namespace("c"), "over", Duration::ZERO)).await;
    commit(&store, put_for(&b, "over", Duration::ZERO)).await;
    commit(&store, put_for(&b, "mortal", Duration::from_secs(3_600))).await;
    let stats = store.stats().await.expect("stats");
    let expired = if store.capabilities().sweeps { 2 } else { 0 };
    assert_eq!((stats.items, stats.namespaces, stats.expired), (4, 2, expired));
    assert_eq!((stats.meta_bytes, stats.value_bytes), (4, 5_005 + 6));
}

pub(super) async fn store_describes_its_engine(store: Subject) {
    let description = store.describe().await.expect("a description");
    assert!(!description.engine.is_empty());
    assert_eq!(description.durability, store.capabilities().durability);
}

pub(super) async fn store_that_sweeps_offers_maintenance(store: Subject) {
    assert!(!store.capabilities().sweeps || store.extensions().maintenance.is_some(), "a store that sweeps offers maintenance");
}

pub(super) async fn check_of_sound_store_finds_no_damage(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["k", "l", "d/x", "d/y"]).await;
    commit(&store, Batch::new().put(&a, "large", noise(200_000)).put(&a, "l", "").put_with_meta(&a, "meta", noise(3_000), "")).await;
    commit(&store, Batch::new().delete(&a, "k").delete_prefix(&a, "d/")).await;
    commit(&store, put_for(&a, "over", Duration::ZERO)).await;
    commit(&store, Batch::new().touch(&a, "large", Some(Duration::from_secs(60)))).await;
    sweep(&store, 10, 1).await;
    let found = store.check().await.expect("checked");
    assert!(found.is_empty(), "{found:?}");
}
