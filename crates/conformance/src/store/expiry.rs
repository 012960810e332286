//! Time to live. A time to live of zero expires at once, so no case waits.

use super::*;
use treehold_store::NamespacesOptions;

const HOUR: Duration = Duration::from_secs(3_600);

pub(super) async fn item_with_time_left_is_live(store: Subject) {
    let a = namespace("a");
    commit(&store, put_for(&a, "k", HOUR)).await;
    let item = get(&store, &a, "k").await.expect("the item has not expired");
    let expires_at = item.expires_at.expect("it has a time to live");
    assert_eq!(expires_at.duration_since(item.modified_at).as_secs(), 3_600);
    assert_eq!(scan_all(&store, &a, ScanOptions::new().with_values(true)).await, [ScanEntry::Item(item)]);
    refused(&store, Batch::new().expect(&a, "k", Condition::Absent), ErrorKind::Conflict).await;
}

pub(super) async fn expired_item_is_absent_from_reads(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["live"]).await;
    commit(&store, put_for(&a, "over", Duration::ZERO)).await;
    assert_eq!(get(&store, &a, "over").await, None);
    for with_values in [false, true] {
        let items = store.get_many(&a, &["over", "live"], with_values).await.expect("a read");
        assert_eq!(items.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    }
    // An item that was live is absent too after it is put with a time to live of zero.
    commit(&store, put_for(&a, "live", Duration::ZERO)).await;
    assert_eq!(get(&store, &a, "live").await, None);
}

pub(super) async fn expired_item_is_absent_from_scans(store: Subject) {
    let (a, b) = (namespace("a"), namespace("b"));
    for key in ["a", "c/", "d/x", "e/x", "z"] {
        commit(&store, put_for(&a, key, Duration::ZERO)).await;
    }
    put_all(&store, &a, &["b", "c/y", "e/y"]).await;
    commit(&store, put_for(&b, "k", Duration::ZERO)).await;
    assert_eq!(keys(&scan_all(&store, &a, ScanOptions::new()).await), ["b", "c/y", "e/y"]);
    assert_eq!(keys(&scan_all(&store, &a, ScanOptions::new().with_values(true).with_limit(1)).await), ["b", "c/y", "e/y"]);
    let page = scan(&store, &a, ScanOptions::new().with_delimiter('/').with_limit(3)).await;
    assert_eq!(keys(&page.entries), ["b", "c/", "e/"]);
    assert_eq!(page.entries[1], ScanEntry::Group { name: "c/".to_owned(), item: None });
    assert_eq!(page.next, None, "an expired item does not make a next page");
    let listed = store.namespaces(NamespacesOptions::new()).await.expect("a page");
    assert_eq!((listed.namespaces, listed.more), (vec![a], false));
}

pub(super) async fn expired_item_is_absent_for_conditions(store: Subject) {
    let a = namespace("a");
    let version = commit(&store, put_for(&a, "d/k", Duration::ZERO)).await[0];
    for condition in [Condition::Exists, Condition::Version(version)] {
        let error = refused(&store, Batch::new().expect(&a, "d/k", condition).put(&a, "x", ""), ErrorKind::Conflict).await;
        assert_eq!(error.current_version(), None);
    }
    let batch = Batch::new().expect(&a, "d/k", Condition::Absent).expect(&a, "d/", Condition::NoneBeneath).expect(
        &a,
        "",
        Condition::NoneBeneathSince(Version::new(0)),
    );
    commit(&store, batch.put(&a, "d/k", "new")).await;
    assert_eq!(value(&store, &a, "d/k").await.expect("it was put"), "new");
}

pub(super) async fn put_over_expired_item_starts_anew(store: Subject) {
    let a = namespace("a");
    let mut batch = put_created_at(&a, "k", Timestamp::from_second(1_000).expect("a time"));
    if let BatchWrite::Put { time_to_live, .. } = &mut batch.writes[0] {
        *time_to_live = Some(Duration::ZERO);
    }
    commit(&store, batch).await;
    commit(&store, Batch::new().put(&a, "k", "new")).await;
    let item = get(&store, &a, "k").await.expect("it was put");
    assert_eq!((item.created_at, item.expires_at), (item.modified_at, None));
}

pub(super) async fn put_without_time_to_live_removes_expiry(store: Subject) {
    let a = namespace("a");
    commit(&store, put_for(&a, "k", HOUR)).await;
    commit(&store, Batch::new().put(&a, "k", "for good")).await;
    assert_eq!(get(&store, &a, "k").await.expect("it was put").expires_at, None);
}

pub(super) async fn time_to_live_beyond_representable_time_is_accepted(store: Subject) {
    let a = namespace("a");
    commit(&store, put_for(&a, "k", Duration::MAX)).await;
    let item = get(&store, &a, "k").await.expect("it was put");
    assert!(item.expires_at.is_some_and(|at| at > Timestamp::from_second(200_000_000_000).expect("a time")), "{item:?}");
    sweep(&store, 10, 0).await;
}

pub(super) async fn sweep_removes_expired_items_up_to_limit(store: Subject) {
    let (a, b) = (namespace("a"), namespace("b"));
    for number in 0..5 {
        commit(&store, put_for(if number % 2 == 0 { &a } else { &b }, &format!("{number}"), Duration::ZERO)).await;
    }
    let before = store.current_version(&a.partition()).await.expect("a version");
    sweep(&store, 0, 0).await;
    sweep(&store, 3, 3).await;
    sweep(&store, 100, 2).await;
    sweep(&store, 100, 0).await;
    assert_eq!(store.current_version(&a.partition()).await.expect("a version"), before, "a sweep changes nothing that can be seen");
}

pub(super) async fn sweep_keeps_live_items(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["a", "b"]).await;
    commit(&store, put_for(&a, "hour", HOUR)).await;
    for key in ["again", "again later", "deleted", "ranged/x"] {
        commit(&store, put_for(&a, key, Duration::ZERO)).await;
    }
    put_all(&store, &a, &["again"]).await;
    commit(&store, put_for(&a, "again later", HOUR)).await;
    commit(&store, Batch::new().delete(&a, "deleted").delete_prefix(&a, "ranged/")).await;
    sweep(&store, usize::MAX, 0).await;
    assert_eq!(keys(&scan_all(&store, &a, ScanOptions::new()).await), ["a", "again", "again later", "b", "hour"]);
    assert_eq!(value(&store, &a, "again").await.expect("it was put"), "body of again");
}

fn touch(namespace: &Namespace, key: &str, time_to_live: Option<Duration>) -> Batch {
    Batch::new().touch(namespace, key, time_to_live)
}

pub(super) async fn touch_changes_only_expiry(store: Subject) {
    let a = namespace("a");
    let body = noise(20_000);
    commit(&store, Batch::new().put_with_meta(&a, "k", noise(2_000), body.clone())).await;
    let before = get(&store, &a, "k").await.expect("it was put");
    let counter = store.current_version(&a.partition()).await.expect("a version");
    assert_eq!(commit(&store, touch(&a, "k", Some(HOUR))).await, []);
    let after = get(&store, &a, "k").await.expect("it is live");
    let expires_at = after.expires_at.expect("the item expires");
    assert!(expires_at.duration_since(Timestamp::now()).as_secs().abs_diff(3_600) < 60, "{expires_at}");
    assert_eq!(after.clone().with_expires_at(None), before);
    assert_eq!(store.current_version(&a.partition()).await.expect("a version"), counter);
    // The version is unchanged, so the touch does not disturb a writer that read before it.
    commit(&store, Batch::new().expect(&a, "k", Condition::Version(before.version)).put(&a, "k", "new")).await;
    commit(&store, touch(&a, "k", Some(Duration::ZERO))).await;
    assert_eq!(get(&store, &a, "k").await, None);
}

pub(super) async fn touch_can_remove_expiry(store: Subject) {
    let a = namespace("a");
    commit(&store, put_for(&a, "k", HOUR)).await;
    commit(&store, touch(&a, "k", None)).await;
    assert_eq!(get(&store, &a, "k").await.expect("it is live").expires_at, None);
}

pub(super) async fn touch_of_absent_item_succeeds(store: Subject) {
    let a = namespace("a");
    commit(&store, put_for(&a, "over", Duration::ZERO)).await;
    for key in ["over", "never"] {
        commit(&store, touch(&a, key, Some(HOUR))).await;
        assert_eq!(get(&store, &a, key).await, None);
    }
}

pub(super) async fn touch_sees_earlier_writes_of_its_batch(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["removed", "d/x", "kept"]).await;
    let batch = Batch::new()
        .put(&a, "put", "1")
        .touch(&a, "put", Some(HOUR))
        .touch(&a, "kept", Some(HOUR))
        .touch(&a, "again", Some(HOUR))
        .put(&a, "again", "2")
        .delete(&a, "removed")
        .touch(&a, "removed", Some(HOUR))
        .delete_prefix(&a, "d/")
        .touch(&a, "d/x", Some(HOUR));
    commit(&store, batch).await;
    let mut ends = Vec::new();
    for key in ["put", "kept", "again", "removed", "d/x"] {
        ends.push(get(&store, &a, key).await.map(|item| item.expires_at.is_some()));
    }
    assert_eq!(ends, [Some(true), Some(true), Some(false), None, None]);
}

pub(super) async fn touch_keeps_content_put_by_its_batch(store: Subject) {
    let a = namespace("a");
    for (key, meta, body) in [("short", noise(3), noise(5)), ("long", noise(2_000), noise(20_000))] {
        let batch = Batch::new().put_with_meta(&a, key, meta.clone(), body.clone()).touch(&a, key, Some(HOUR)).touch(&a, key, None);
        commit(&store, batch).await;
        let item = get(&store, &a, key).await.expect("it was put");
        assert_eq!((item.meta, item.value, item.expires_at), (meta, body, None), "{key}");
    }
}

pub(super) async fn sweep_keeps_touched_item(store: Subject) {
    let a = namespace("a");
    commit(&store, put_for(&a, "longer", Duration::from_secs(60))).await;
    commit(&store, touch(&a, "longer", Some(HOUR))).await;
    commit(&store, put_for(&a, "shorter", HOUR)).await;
    commit(&store, touch(&a, "shorter", Some(Duration::ZERO))).await;
    sweep(&store, 10, 1).await;
    assert!(get(&store, &a, "longer").await.is_some());
    sweep(&store, 10, 0).await;
}
