//! Items by namespace and key.

use super::support::{damage, json, kind, look_alike_owners, numbered, owner, partition};
use std::collections::BTreeSet;
use std::sync::Arc;
use treehold_agent_state::kv::{KEY_BYTES_MAX, KeyValues, KvSearch, OFFSET_MAX, PAGE_MAX};
use treehold_core::ErrorKind;
use treehold_store::Store;

fn items(store: &Arc<dyn Store>) -> KeyValues {
    KeyValues::new(store.clone(), owner())
}

const NONE: [&str; 0] = [];

pub(crate) async fn versions_start_at_one_and_grow_by_one(store: Arc<dyn Store>) {
    let items = items(&store);
    for (key, namespace) in [("a", &["x"][..]), ("a", &["x", "y"]), ("", &NONE)] {
        let key = if key.is_empty() { "root" } else { key };
        assert_eq!(items.get(namespace, key).await.unwrap(), None);
        for version in 1..=3 {
            assert_eq!(items.put(namespace, key, &numbered(version)).await.unwrap(), version as u64);
            let found = items.get(namespace, key).await.unwrap().unwrap();
            assert_eq!((found.version, &found.value, &*found.key), (version as u64, &numbered(version), key));
            assert_eq!(found.namespace, namespace);
        }
    }
}

pub(crate) async fn put_if_version_replaces_only_that_version(store: Arc<dyn Store>) {
    let items = items(&store);
    let put = async |expected| items.put_if_version(&["x"], "k", &numbered(0), expected).await;
    let absent = put(1).await.unwrap_err();
    assert_eq!((absent.kind(), absent.current_version()), (ErrorKind::Conflict, None));
    assert_eq!(put(0).await.unwrap(), 1);
    for stale in [0, 2, 9] {
        let error = put(stale).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{stale}");
        assert_eq!(error.current_version().map(|version| version.number()), Some(1), "{stale}");
    }
    assert_eq!(put(1).await.unwrap(), 2);
    items.delete(&["x"], "k").await.unwrap();
    items.delete(&["x"], "k").await.unwrap();
    assert_eq!(items.get(&["x"], "k").await.unwrap(), None);
}

/// A writer that read version 1 before the item was deleted and created again must not replace the new one.
pub(crate) async fn deleted_item_is_never_replaced_by_its_version(store: Arc<dyn Store>) {
    let items = items(&store);
    let mut seen = BTreeSet::new();
    for round in 0..3 {
        let version = items.put_if_version(&["x"], "k", &numbered(round), 0).await.unwrap();
        assert!(seen.insert(version), "the version {version} was used before");
        for old in seen.iter().filter(|old| **old != version) {
            assert_eq!(kind(items.put_if_version(&["x"], "k", &json("{}"), *old).await), ErrorKind::Conflict);
        }
        items.delete(&["x"], "k").await.unwrap();
    }
    assert_eq!(items.search(&KvSearch::new(NONE)).await.unwrap().items, [], "no trace of a deleted item is found");
}

pub(crate) async fn concurrent_puts_get_distinct_versions(store: Arc<dyn Store>) {
    let items = items(&store);
    let puts = (0..12).map(|number| {
        let items = items.clone();
        tokio::spawn(async move { items.put(&["x"], "k", &numbered(number)).await.unwrap() })
    });
    let versions: BTreeSet<u64> = futures::future::join_all(puts).await.into_iter().map(|put| put.unwrap()).collect();
    assert_eq!(versions, (1..=12).collect());
    // One of several that expect the same version wins.
    let races = (0..8).map(|number| {
        let items = items.clone();
        tokio::spawn(async move { items.put_if_version(&["x"], "k", &numbered(number), 12).await })
    });
    let won = futures::future::join_all(races).await.into_iter().filter(|put| put.as_ref().unwrap().is_ok()).count();
    assert_eq!((won, items.get(&["x"], "k").await.unwrap().unwrap().version), (1, 13));
}

pub(crate) async fn search_finds_a_namespace_and_those_beneath_it(store: Arc<dyn Store>) {
    let items = items(&store);
    // A component that only starts with the same text is another one.
    for (namespace, key) in [(&["a"][..], "p"), (&["a", "b"], "q"), (&["a", "b", "c"], "r"), (&["ab"], "s"), (&["a/b"], "t"), (&NONE, "u")]
    {
        items.put(namespace, key, &numbered(1)).await.unwrap();
    }
    let found = async |namespace: &[&str], exact: bool| {
        let search = KvSearch::new(namespace.iter().copied()).with_exact(exact);
        let page = items.search(&search).await.unwrap();
        assert_eq!(page.next, None);
        page.items.into_iter().map(|item| item.key).collect::<String>()
    };
    for (namespace, beneath, exact) in
        [(&["a"][..], "pqr", "p"), (&["a", "b"], "qr", "q"), (&["ab"], "s", "s"), (&["a/b"], "t", "t"), (&["b"], "", "")]
    {
        assert_eq!((&*found(namespace, false).await, &*found(namespace, true).await), (beneath, exact), "{namespace:?}");
    }
    assert_eq!((found(&NONE, false).await.len(), &*found(&NONE, true).await), (6, "u"));
}

pub(crate) async fn pages_by_cursor_and_by_offset_list_every_item_once(store: Arc<dyn Store>) {
    let items = items(&store);
    let mut expected = Vec::new();
    for namespace in [vec![], vec!["a"], vec!["a", "b"], vec!["c"]] {
        for key in 0..4 {
            let key = format!("k{key}");
            items.put(&namespace, &key, &numbered(1)).await.unwrap();
            expected.push((namespace.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>(), key));
        }
    }
    // A deleted item leaves no gap.
    items.put(&["a"], "k1x", &numbered(1)).await.unwrap();
    items.delete(&["a"], "k1x").await.unwrap();
    for limit in [1, 2, 3, 4, 5, 16, 17, PAGE_MAX] {
        let (mut by_cursor, mut search) = (Vec::new(), KvSearch::new(NONE).with_limit(limit));
        loop {
            let page = items.search(&search).await.unwrap();
            assert!(page.items.len() <= limit);
            by_cursor.extend(page.items.into_iter().map(|item| (item.namespace, item.key)));
            let Some(next) = page.next else { break };
            search = search.with_after(Some(next));
        }
        assert_eq!(by_cursor, expected, "limit {limit}");
        let mut by_offset = Vec::new();
        loop {
            let search = KvSearch::new(NONE).with_limit(limit).with_offset(by_offset.len());
            let page = items.search(&search).await.unwrap();
            let has_items = !page.items.is_empty();
            by_offset.extend(page.items.into_iter().map(|item| (item.namespace, item.key)));
            if !has_items {
                break;
            }
        }
        assert_eq!(by_offset, expected, "limit {limit}");
    }
    let page = items.search(&KvSearch::new(["c"]).with_limit(1)).await.unwrap();
    assert_eq!(kind(items.search(&KvSearch::new(["a"]).with_after(page.next)).await), ErrorKind::InvalidArgument);
}

pub(crate) async fn values_keep_their_text(store: Arc<dyn Store>) {
    let items = items(&store);
    let text = "{ \"z\": 1.0,\n  \"a\": 12345678901234567890123, \"é\": \"\\u00e9\" }";
    items.put(&["x"], "k \u{1}/%'\u{1F980}", &json(text)).await.unwrap();
    let got = items.get(&["x"], "k \u{1}/%'\u{1F980}").await.unwrap().unwrap();
    let found = items.search(&KvSearch::new(["x"])).await.unwrap().items;
    assert_eq!((got.value.as_str(), &found[..]), (text, &[got.clone()][..]));
}

pub(crate) async fn items_of_different_owners_are_apart(store: Arc<dyn Store>) {
    for (number, owner) in look_alike_owners().into_iter().enumerate() {
        let items = KeyValues::new(store.clone(), owner.clone());
        assert_eq!(items.search(&KvSearch::new(NONE)).await.unwrap().items, [], "{owner}");
        assert_eq!(items.put_if_version(&["agents"], "k", &numbered(number), 0).await.unwrap(), 1, "{owner}");
    }
    for (number, owner) in look_alike_owners().into_iter().enumerate() {
        let found = KeyValues::new(store.clone(), owner).search(&KvSearch::new(NONE)).await.unwrap().items;
        assert_eq!(found.iter().map(|item| item.value.clone()).collect::<Vec<_>>(), [numbered(number)]);
    }
}

pub(crate) async fn bad_arguments_of_items_write_nothing(store: Arc<dyn Store>) {
    let items = items(&store).with_value_bytes_max(20);
    let before = store.current_version(&partition()).await.unwrap();
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    for key in ["", "a\0b", &long] {
        assert_eq!(kind(items.put(&["x"], key, &json("{}")).await), ErrorKind::InvalidArgument, "{key:.9}");
        assert_eq!(kind(items.get(&["x"], key).await), ErrorKind::InvalidArgument, "{key:.9}");
        assert_eq!(kind(items.delete(&["x"], key).await), ErrorKind::InvalidArgument, "{key:.9}");
    }
    let deep = vec!["x"; 20];
    let wide = "w".repeat(1_100);
    for namespace in [&[""][..], &["a", ""], &deep, &[&wide]] {
        assert_eq!(kind(items.put(namespace, "k", &json("{}")).await), ErrorKind::InvalidArgument);
        assert_eq!(kind(items.search(&KvSearch::new(namespace.iter().copied())).await), ErrorKind::InvalidArgument);
    }
    for value in ["[]", "1", "null", "\"{}\""] {
        assert_eq!(kind(items.put(&["x"], "k", &json(value)).await), ErrorKind::InvalidArgument, "{value}");
    }
    assert_eq!(kind(items.put(&["x"], "k", &json("{\"text\": \"too long for this\"}")).await), ErrorKind::TooLarge);
    for search in [
        KvSearch::new(["x"]).with_limit(0),
        KvSearch::new(["x"]).with_limit(PAGE_MAX + 1),
        KvSearch::new(["x"]).with_offset(OFFSET_MAX + 1),
    ] {
        assert_eq!(kind(items.search(&search).await), ErrorKind::InvalidArgument, "{search:?}");
    }
    assert_eq!(store.current_version(&partition()).await.unwrap(), before);
}

pub(crate) async fn damaged_item_is_corrupt(store: Arc<dyn Store>) {
    let items = items(&store);
    items.put(&["x"], "k", &json("{}")).await.unwrap();
    assert_eq!(damage(&store, "kv").await, 1);
    assert_eq!(kind(items.get(&["x"], "k").await), ErrorKind::Corrupt);
    assert_eq!(kind(items.search(&KvSearch::new(["x"])).await), ErrorKind::Corrupt);
    // It can still be replaced, which repairs it.
    assert_eq!(items.put(&["x"], "k", &json("{}")).await.unwrap(), 2);
    assert!(items.get(&["x"], "k").await.unwrap().is_some());
}
