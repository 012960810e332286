use super::*;
use crate::MemoryStore;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicI64, Ordering};
use treehold_core::clock::Clock;

fn space(text: &str) -> Namespace {
    Namespace::parse(text).expect("a legal namespace")
}

fn items() -> JsonStore {
    JsonStore::new(Arc::new(MemoryStore::new()))
}

async fn keys(items: &JsonStore, namespace: &str, search: JsonSearch) -> Vec<String> {
    let mut all = Vec::new();
    let mut search = search;
    loop {
        let page = items.search::<Value>(&space(namespace), &search).await.expect("a page");
        assert!(page.items.len() <= search.limit);
        all.extend(page.items.iter().map(|found| format!("{}:{}", found.namespace, found.key)));
        match page.next {
            Some(next) => {
                assert!(search.start_after.as_ref() < Some(&next), "the cursor advances");
                search.start_after = Some(next);
            }
            None => return all,
        }
    }
}

/// Regression: a page held as many items as its limit allowed, whatever their size.
#[tokio::test]
async fn page_of_large_items_ends_early_and_continues() {
    let items = items();
    for number in 0..20 {
        items.put(&space("a"), &format!("{number:02}"), &json!("x".repeat(2 << 20))).await.expect("put");
    }
    let mut search = JsonSearch::new();
    let mut pages = Vec::new();
    loop {
        let page = items.search::<Value>(&space("a"), &search).await.expect("a page");
        pages.push(page.items.len());
        match page.next {
            Some(next) => search.start_after = Some(next),
            None => break,
        }
    }
    assert_eq!(pages, [8, 8, 4]);
}

#[tokio::test]
async fn typed_value_round_trips() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Task {
        title: String,
        minutes: u32,
    }
    let items = items();
    let task = Task { title: "walk".into(), minutes: 30 };
    let version = items.put(&space("ada"), "k", &task).await.expect("put");
    let item: JsonItem<Task> = items.get(&space("ada"), "k").await.expect("read").expect("there");
    assert_eq!((item.value, item.version), (task, version));
    assert!(items.get::<Value>(&space("ada"), "other").await.expect("read").is_none());
    let error = items.get::<Vec<u8>>(&space("ada"), "k").await.expect_err("it is not a list");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    items.delete(&space("ada"), "k").await.expect("removed");
    assert!(items.get::<Task>(&space("ada"), "k").await.expect("read").is_none());
}

#[tokio::test]
async fn concurrent_updates_are_all_applied() {
    let items = Arc::new(items());
    let count = |items: Arc<JsonStore>| async move {
        for _ in 0..20 {
            items.update(&space("a"), "n", |count: Option<u64>| Ok(count.unwrap_or(0) + 1)).await.expect("counted");
            tokio::task::yield_now().await;
        }
    };
    futures::future::join_all((0..4).map(|_| tokio::spawn(count(items.clone())))).await;
    assert_eq!(items.get::<u64>(&space("a"), "n").await.expect("read").expect("there").value, 80);
}

#[tokio::test]
async fn put_and_delete_honor_version_conditions() {
    let items = items();
    let a = space("a");
    let first = items.put_if(&a, "k", &1, Condition::Absent).await.expect("created");
    assert_eq!(items.put_if(&a, "k", &2, Condition::Absent).await.expect_err("it exists").kind(), ErrorKind::Conflict);
    let second = items.put_if(&a, "k", &2, Condition::Version(first)).await.expect("as read");
    let error = items.put_if(&a, "k", &3, Condition::Version(first)).await.expect_err("changed");
    assert_eq!(error.current_version(), Some(second));
    assert_eq!(items.delete_if(&a, "k", Condition::Version(first)).await.expect_err("changed").kind(), ErrorKind::Conflict);
    items.delete_if(&a, "k", Condition::Version(second)).await.expect("as read");
}

#[tokio::test]
async fn search_covers_one_namespace_unless_descendants_are_requested() {
    let items = items();
    for place in ["a", "a/b", "a/b/c", "ab", "b"] {
        for key in ["k1", "k2", "other"] {
            items.put(&space(place), key, &json!({"at": place})).await.expect("put");
        }
    }
    assert_eq!(keys(&items, "a", JsonSearch::new()).await, ["a:k1", "a:k2", "a:other"]);
    let beneath = JsonSearch::new().with_beneath(true).with_prefix("k");
    let all = ["a:k1", "a:k2", "a/b:k1", "a/b:k2", "a/b/c:k1", "a/b/c:k2"];
    assert_eq!(keys(&items, "a", beneath.clone()).await, all);
    for (limit, rows_max) in [(1, 100), (2, 100), (4, 100), (100, 1), (100, 5), (2, 2), (0, 100)] {
        let paged = beneath.clone().with_limit(limit.max(1)).with_rows_max(rows_max);
        assert_eq!(keys(&items, "a", paged).await, all, "{limit} {rows_max}");
    }
    let outside = JsonSearch::new().with_start_after(JsonCursor::new(&space("b"), "k"));
    assert_eq!(
        items.search::<Value>(&space("a"), &outside).await.expect_err("the cursor belongs to another search").kind(),
        ErrorKind::InvalidArgument
    );
}

#[tokio::test]
async fn search_skips_rows_that_are_not_items() {
    let items = items();
    let a = space("a");
    items.put(&a, "item", &json!({"n": 1})).await.expect("put");
    let others = Batch::new().put_with_meta(&a, "file", vec![1, 2], "{}").put(&a, "raw", "{\"n\": 2}").put(&a, "text", "no json");
    items.store().commit(others).await.expect("put");
    assert_eq!(keys(&items, "a", JsonSearch::new()).await, ["a:item", "a:raw"]);
    for key in ["file", "text"] {
        assert_eq!(items.get::<Value>(&a, key).await.expect_err("not an item").kind(), ErrorKind::InvalidArgument);
    }
}

#[tokio::test]
async fn read_extends_an_items_life_without_changing_its_version() {
    let now = Arc::new(AtomicI64::new(Timestamp::now().as_second()));
    let clock = Clock::from_fn({
        let now = now.clone();
        move || Timestamp::from_second(now.load(Ordering::Relaxed)).expect("a time")
    });
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(clock.clone()));
    let items = JsonStore::new(store).with_clock(clock).with_time_to_live(Some(Duration::from_secs(100)));
    let a = space("a");
    let version = items.put(&a, "read", &1).await.expect("put");
    items.put(&a, "searched", &1).await.expect("put");
    items.put(&a, "left", &1).await.expect("put");
    items.put_for(&a, "good", &1, None).await.expect("put");
    let counter = items.store().current_version(&a.partition()).await.expect("a version");
    for _ in 0..3 {
        now.fetch_add(60, Ordering::Relaxed);
        let item: JsonItem<u8> = items.get(&a, "read").await.expect("read").expect("the read extended the item's life");
        assert_eq!(item.version, version);
        let search = JsonSearch::new().with_prefix("searched");
        assert_eq!(items.search::<u8>(&a, &search).await.expect("a page").items.len(), 1);
    }
    assert_eq!(items.store().current_version(&a.partition()).await.expect("a version"), counter, "nothing was put");
    assert!(items.get::<u8>(&a, "left").await.expect("read").is_none(), "it expired unread");
    assert!(items.get::<u8>(&a, "good").await.expect("read").is_some());
    // An update keeps the time to live of the item.
    items.update(&a, "read", |count: Option<u8>| Ok(count.unwrap_or(0) + 1)).await.expect("updated");
    now.fetch_add(99, Ordering::Relaxed);
    let still = items.clone().with_refresh_on_read(false);
    assert!(still.get::<u8>(&a, "read").await.expect("read").is_some());
    now.fetch_add(1, Ordering::Relaxed);
    assert!(still.get::<u8>(&a, "read").await.expect("read").is_none(), "reads without refresh do not extend its life");
}

#[tokio::test]
async fn rows_that_the_filter_cannot_decide_about_are_found_as_rows_only() {
    let items = items();
    let (place, deep) = (space("acme"), format!("{}1{}", r#"{"n":"#.repeat(200), "}".repeat(200)));
    let bodies = [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":1e999}"#, r#"{"n":"\ud800"}"#, &deep];
    let batch = bodies
        .iter()
        .zip('a'..)
        .fold(Batch::new(), |batch, (body, key)| batch.put_with_meta(&place, key.to_string(), MARK, body.to_string()));
    items.store().commit(batch.put(&place, "z", "no JSON")).await.expect("put");
    let search = JsonSearch::new().with_filter(JsonFilter::parse(&serde_json::json!({"n": 1})).expect("valid"));
    let (rows, next) = items.search_rows(&place, &search).await.expect("found");
    assert_eq!(rows.iter().map(|(_, row)| row.key.as_str()).collect::<Vec<_>>(), ["a", "c", "d", "e"]);
    assert_eq!(next, None);
    let page = items.search::<serde_json::Value>(&place, &search).await.expect("found");
    assert_eq!(page.items.iter().map(|found| found.key.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn namespaces_match_by_component() {
    let items = items();
    for place in ["acme/ada/notes", "acme/ada/tasks", "acme/bob/notes", "acme/bob/notes/old", "other/ada/notes", "acme"] {
        items.put(&space(place), "k", &1).await.expect("put");
    }
    let list = |search: NamespaceSearch| {
        let items = items.clone();
        async move {
            let (mut search, mut all) = (search, Vec::new());
            loop {
                let page = items.namespaces(&search).await.expect("a page");
                all.extend(page.namespaces.iter().map(ToString::to_string));
                match page.next {
                    Some(next) => search.start_after = Some(next),
                    None => return all,
                }
            }
        }
    };
    let search = NamespaceSearch::new;
    let notes = ["acme/ada/notes", "acme/bob/notes", "other/ada/notes"];
    for limit in [1, 2, 100] {
        assert_eq!(list(search().with_suffix(["notes"]).with_limit(limit)).await, notes);
        assert_eq!(list(search().with_prefix(["acme", "*"]).with_depth_max(2).with_limit(limit)).await, ["acme/ada", "acme/bob"]);
        assert_eq!(
            list(search().with_prefix(["*", "ada"]).with_suffix(["*"]).with_limit(limit)).await,
            ["acme/ada/notes", "acme/ada/tasks", "other/ada/notes"]
        );
        assert_eq!(list(search().with_depth_max(1).with_limit(limit)).await, ["acme", "other"]);
        assert_eq!(list(search().with_suffix(["old"]).with_depth_max(2).with_limit(limit)).await, ["acme/bob"]);
    }
    assert_eq!(list(search().with_suffix(["notes"]).with_namespaces_max(1)).await, notes);
    assert_eq!(list(search().with_prefix(["ac"])).await, [""; 0], "components are matched whole");
    assert_eq!(items.namespaces(&search().with_depth_max(0)).await.expect_err("no depth").kind(), ErrorKind::InvalidArgument);
}

/// A user has several namespaces of the program's own for each session.
#[tokio::test]
async fn listing_passes_over_the_sessions_of_a_user() {
    let items = items();
    for session in 0..1_100 {
        items.put(&space(&format!("acme/ada/_treehold/sessions/data/{session}/messages")), "k", &1).await.expect("put");
    }
    items.put(&space("acme/ada/tasks"), "k", &1).await.expect("put");
    let search = NamespaceSearch::new().with_prefix(["acme"]).with_namespaces_max(1_050);
    let page = items.namespaces(&search).await.expect("a page");
    assert_eq!((page.namespaces, page.next), (vec![space("acme/ada/tasks")], None), "one page is enough");
}

#[tokio::test]
async fn tenant_includes_all_of_its_partitions() {
    let items = items();
    let places = ["acme//ada", "acme//policies/2026", "acme/-", "acme/ada", "acme/ada/notes", "acme", "acm", "acmes/x"];
    for place in places.iter().chain(&["acme/ada/_treehold/threads/audit", "acme//_treehold/items"]) {
        items.put(&space(place), "k", place).await.expect("put");
    }
    let mut of_tenant: Vec<&str> = places[..6].to_vec();
    of_tenant.sort_by_key(|place| space(place));
    for limit in 1..=6 {
        let (mut search, mut found) = (JsonSearch::new().with_beneath(true).with_limit(limit), Vec::new());
        loop {
            let page = items.search::<String>(&space("acme"), &search).await.expect("a page");
            found.extend(page.items.iter().map(|item| item.value.clone()));
            match page.next {
                Some(next) => search.start_after = Some(next),
                None => break,
            }
        }
        assert_eq!(found, of_tenant, "limit {limit}");
    }
    let search = NamespaceSearch::new().with_prefix(["acme"]);
    let list = async |search: &NamespaceSearch| -> Vec<String> {
        items.namespaces(search).await.expect("a page").namespaces.iter().map(ToString::to_string).collect()
    };
    assert_eq!(list(&search).await, of_tenant);
    assert_eq!(list(&search.clone().with_depth_max(2)).await, ["acme/-", "acme", "acme//ada", "acme//policies", "acme/ada"]);
    assert_eq!(list(&search.with_depth_max(1)).await, ["acme"]);
    let reserved = JsonSearch::new().with_beneath(true);
    let found = items.search::<String>(&space("acme/ada/_treehold"), &reserved).await.expect("a page");
    assert_eq!(found.items.len(), 1, "rows of this crate are found where they are searched");
    assert_eq!(list(&NamespaceSearch::new().with_prefix(["acme", "ada", "_treehold"])).await, ["acme/ada/_treehold/threads/audit"]);
    assert!(items.search::<String>(&space("acme"), &JsonSearch::new()).await.expect("a page").items.len() == 1);
}
