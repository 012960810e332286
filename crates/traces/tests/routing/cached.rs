//! The cache: what it saves, and that it never shows what its owner does not say.

use crate::support::{Owner, local, made};
use futures::StreamExt as _;
use std::sync::Arc;
use std::time::Duration;
use treehold_conformance::Fresh;
use treehold_core::error::ErrorKind;
use treehold_core::json::Json;
use treehold_traces::{
    AddOptions, CacheOptions, CachedTraces, MessageRef, MessageUpdate, MessagesQuery, NewGoal, NewMessage, NewTrace, OtherFields,
    PathQuery, StoredTraces, TraceAddress, TraceStatus, TraceStore, TraceUpdate, TracesQuery,
};

async fn fresh() -> Fresh<dyn TraceStore> {
    Fresh::new(Arc::new(CachedTraces::new(Arc::new(local()), CacheOptions::new())))
}

treehold_traces::trace_store_conformance!(cached, fresh);

fn texts(count: usize) -> Vec<NewMessage> {
    (0..count).map(|number| NewMessage::text("user", &number.to_string())).collect()
}

/// Returns a store, its owner, a cache before it, and a trace with three messages.
async fn cached(options: CacheOptions) -> (StoredTraces, Arc<Owner>, CachedTraces, TraceAddress) {
    let store = local();
    let owner = Owner::new(store.clone());
    let cache = CachedTraces::new(owner.clone(), options);
    let trace = store.create_trace(NewTrace::new("tea")).await.expect("created").trace_id;
    store.add_messages(&trace, texts(3), &AddOptions::new()).await.expect("added");
    (store, owner, cache, trace)
}

async fn finish(store: &impl TraceStore, trace: &TraceAddress) {
    store.update_trace(trace, TraceUpdate::new().with_status(TraceStatus::Completed)).await.expect("updated");
}

async fn path(store: &impl TraceStore, trace: &TraceAddress) -> Vec<u64> {
    let page = store.get_main_path(trace, &PathQuery::default()).await.expect("readable");
    assert!(!page.stale);
    page.messages.iter().map(|message| message.sequence).collect()
}

#[tokio::test]
async fn running_trace_is_asked_for_and_only_new_messages_are_fetched() {
    let (store, owner, cache, trace) = cached(CacheOptions::new()).await;
    assert_eq!(path(&cache, &trace).await, [1, 2, 3]);
    assert_eq!(owner.take(), ["get_trace", "get_main_path"]);
    assert_eq!(path(&cache, &trace).await, [1, 2, 3]);
    assert_eq!(owner.take(), ["get_trace"], "nothing changed");
    store.add_messages(&trace, texts(2), &AddOptions::new()).await.expect("added");
    assert_eq!(path(&cache, &trace).await, [1, 2, 3, 4, 5]);
    assert_eq!(owner.take(), ["get_trace", "get_events", "get_messages"]);
    // A rewind: the old end is no longer on the path.
    store.add_messages(&trace, vec![NewMessage::text("user", "x").with_parent(2)], &AddOptions::new()).await.expect("added");
    assert_eq!(path(&cache, &trace).await, [1, 2, 6]);
    owner.take();
    let query = made(|value: &mut MessagesQuery| (value.since_sequence, value.limit) = (Some(1), 3));
    let page = cache.get_messages(&trace, &query).await.expect("readable");
    assert_eq!((page, owner.take()), (store.get_messages(&trace, &query).await.expect("readable"), vec!["get_trace"]));
}

#[tokio::test]
async fn changed_message_is_fetched_again() {
    let (store, owner, cache, trace) = cached(CacheOptions::new()).await;
    path(&cache, &trace).await;
    let update = made(|value: &mut MessageUpdate| value.content = Some(Json::of("new").expect("JSON")));
    store.update_message(&trace, &MessageRef::Sequence(2), update).await.expect("updated");
    let page = cache.get_main_path(&trace, &PathQuery::default()).await.expect("readable");
    assert_eq!(page, store.get_main_path(&trace, &PathQuery::default()).await.expect("readable"));
    owner.take();
    let message = cache.get_message(&trace, &MessageRef::Sequence(2)).await.expect("readable").expect("it exists");
    assert_eq!((message.content.expect("a content").as_str(), owner.take()), ("\"new\"", vec!["get_trace"]));
}

#[tokio::test(start_paused = true)]
async fn final_trace_is_served_without_its_owner_until_a_change_is_known() {
    let (store, owner, cache, trace) = cached(CacheOptions::new().with_final_age_max(Duration::from_secs(60))).await;
    finish(&store, &trace).await;
    path(&cache, &trace).await;
    cache.get_goal_tree(&trace).await.expect("readable");
    owner.take();
    let is_quiet = async || {
        let found = cache.get_trace(&trace).await.expect("readable").expect("it exists");
        path(&cache, &trace).await;
        cache.get_goal_tree(&trace).await.expect("readable");
        assert!(!found.stale);
        owner.take().is_empty()
    };
    assert!(is_quiet().await);
    // A write of another client is not known, until the age of the cache says that one may have happened.
    store.add_messages(&trace, texts(1), &AddOptions::new()).await.expect("added");
    assert_eq!(path(&cache, &trace).await, [1, 2, 3]);
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(path(&cache, &trace).await, [1, 2, 3, 4]);
    owner.take();
    // A listing shows a newer event.
    store.add_messages(&trace, texts(1), &AddOptions::new()).await.expect("added");
    cache.list_traces(&TracesQuery::default()).await.expect("listed");
    assert_eq!(path(&cache, &trace).await, [1, 2, 3, 4, 5]);
    // An event passes through.
    store.add_messages(&trace, texts(1), &AddOptions::new()).await.expect("added");
    cache.get_events(&trace, 0, 100).await.expect("readable");
    assert_eq!(path(&cache, &trace).await, [1, 2, 3, 4, 5, 6]);
    let known = cache.get_trace(&trace).await.expect("readable").expect("it exists").last_event_id;
    let mut events = cache.watch(&trace, known).await.expect("readable");
    store.add_messages(&trace, texts(1), &AddOptions::new()).await.expect("added");
    events.next().await.expect("an event").expect("readable");
    assert_eq!(path(&cache, &trace).await, [1, 2, 3, 4, 5, 6, 7]);
    // Its own write.
    cache.add_messages(&trace, texts(1), &AddOptions::new()).await.expect("added");
    assert_eq!(path(&cache, &trace).await, [1, 2, 3, 4, 5, 6, 7, 8]);
    // A caller who knows better.
    store.add_messages(&trace, texts(1), &AddOptions::new()).await.expect("added");
    cache.invalidate(&trace);
    assert_eq!(path(&cache, &trace).await.len(), 9);
    cache.get_goal_tree(&trace).await.expect("readable");
    owner.take();
    assert!(is_quiet().await);
}

#[tokio::test]
async fn owner_that_is_away_leaves_stale_pages_and_takes_no_writes() {
    let (store, owner, cache, trace) = cached(CacheOptions::new()).await;
    path(&cache, &trace).await;
    cache.get_goal_tree(&trace).await.expect("readable");
    for away in [ErrorKind::Unavailable, ErrorKind::Deadline] {
        owner.fail(away);
        assert!(cache.get_trace(&trace).await.expect("cached").expect("it exists").stale);
        let page = cache.get_main_path(&trace, &PathQuery::default()).await.expect("cached");
        assert_eq!((page.messages.len(), page.stale), (3, true));
        assert!(cache.get_messages(&trace, &MessagesQuery::default()).await.expect("cached").stale);
        // What cannot carry the mark is an error.
        assert_eq!(cache.get_goal_tree(&trace).await.expect_err("away").kind(), away);
        assert_eq!(cache.get_message(&trace, &MessageRef::Sequence(1)).await.expect_err("away").kind(), away);
        assert_eq!(cache.get_events(&trace, 0, 10).await.expect_err("away").kind(), away);
        let filtered = made(|value: &mut MessagesQuery| value.goal_id = Some("1".to_owned()));
        assert_eq!(cache.get_messages(&trace, &filtered).await.expect_err("away").kind(), away);
        let unknown = "unknown".parse().expect("a legal id");
        assert_eq!(cache.get_trace(&unknown).await.expect_err("not cached").kind(), away, "an owner that is away never looks like absence");
        // The owner comes first: a write that it did not confirm leaves no trace in the cache.
        assert_eq!(cache.add_messages(&trace, texts(1), &AddOptions::new()).await.expect_err("away").kind(), away);
        assert_eq!(cache.get_main_path(&trace, &PathQuery::default()).await.expect("cached").messages.len(), 3);
    }
    owner.fail(None);
    store.add_messages(&trace, texts(1), &AddOptions::new()).await.expect("added");
    assert_eq!(path(&cache, &trace).await, [1, 2, 3, 4]);
    assert!(!cache.get_trace(&trace).await.expect("readable").expect("it exists").stale);
}

#[tokio::test]
async fn own_messages_are_read_while_the_owner_is_away() {
    let (_, owner, cache, trace) = cached(CacheOptions::new()).await;
    path(&cache, &trace).await;
    cache.add_messages(&trace, texts(2), &AddOptions::new()).await.expect("added");
    owner.fail(ErrorKind::Unavailable);
    let page = cache.get_main_path(&trace, &PathQuery::default()).await.expect("cached");
    assert_eq!((page.messages.last().expect("messages").sequence, page.stale), (5, true));
}

#[tokio::test]
async fn denied_or_removed_trace_leaves_the_cache() {
    let (store, owner, cache, trace) = cached(CacheOptions::new()).await;
    for (kind, is_kept) in [(ErrorKind::PermissionDenied, false), (ErrorKind::Corrupt, true), (ErrorKind::Internal, true)] {
        path(&cache, &trace).await;
        owner.fail(kind);
        assert_eq!(cache.get_main_path(&trace, &PathQuery::default()).await.expect_err("refused").kind(), kind);
        owner.fail(ErrorKind::Unavailable);
        assert_eq!(cache.get_trace(&trace).await.is_ok(), is_kept, "{kind}");
        owner.fail(None);
    }
    path(&cache, &trace).await;
    store.delete_trace(&trace).await.expect("deleted");
    assert_eq!(cache.get_trace(&trace).await.expect("readable"), None);
    assert_eq!(cache.usage(), (0, 0));
    // Another trace under the same id shares nothing with the first.
    store.create_trace(NewTrace::new("coffee").with_id(trace.clone())).await.expect("created");
    store.add_messages(&trace, texts(1), &AddOptions::new()).await.expect("added");
    assert_eq!(path(&cache, &trace).await, [1]);
}

/// A trace that ended is read without asking for it, so the denial comes with the answer to something else.
#[tokio::test]
async fn trace_that_any_read_is_denied_leaves_the_cache() {
    type Read = for<'a> fn(&'a CachedTraces, &'a TraceAddress) -> futures::future::BoxFuture<'a, Option<ErrorKind>>;
    let reads: [(&str, Read); 6] = [
        ("goals", |cache, trace| Box::pin(async { cache.get_goal_tree(trace).await.err().map(|error| error.kind()) })),
        ("message", |cache, trace| {
            Box::pin(async { cache.get_message(trace, &MessageRef::Id("x".to_owned())).await.err().map(|error| error.kind()) })
        }),
        ("page", |cache, trace| {
            let of_goal = made(|value: &mut MessagesQuery| value.goal_id = Some("1".to_owned()));
            Box::pin(async move { cache.get_messages(trace, &of_goal).await.err().map(|error| error.kind()) })
        }),
        ("path", |cache, trace| {
            Box::pin(async { cache.get_main_path(trace, &PathQuery::new().with_head(9)).await.err().map(|error| error.kind()) })
        }),
        ("events", |cache, trace| Box::pin(async { cache.get_events(trace, 0, 10).await.err().map(|error| error.kind()) })),
        ("watch", |cache, trace| Box::pin(async { cache.watch(trace, 0).await.err().map(|error| error.kind()) })),
    ];
    for (name, read) in reads {
        let (store, owner, cache, trace) = cached(CacheOptions::new()).await;
        finish(&store, &trace).await;
        path(&cache, &trace).await;
        owner.fail(ErrorKind::PermissionDenied);
        assert_eq!(cache.get_trace(&trace).await.expect("young").map(|trace| trace.status), Some(TraceStatus::Completed));
        assert_eq!(read(&cache, &trace).await, Some(ErrorKind::PermissionDenied), "{name}");
        owner.fail(ErrorKind::Unavailable);
        assert_eq!(cache.get_trace(&trace).await.expect_err(name).kind(), ErrorKind::Unavailable);
        assert_eq!(cache.usage(), (0, 0), "{name}");
    }
    // A write that is denied says nothing about reading, but the next read asks.
    let (store, owner, cache, trace) = cached(CacheOptions::new()).await;
    finish(&store, &trace).await;
    path(&cache, &trace).await;
    owner.fail(ErrorKind::PermissionDenied);
    assert_eq!(cache.add_messages(&trace, texts(1), &AddOptions::new()).await.expect_err("denied").kind(), ErrorKind::PermissionDenied);
    assert_eq!(cache.get_trace(&trace).await.expect_err("asked").kind(), ErrorKind::PermissionDenied);
}

/// An id may name the agent or its host. Both are one trace.
#[tokio::test]
async fn trace_with_two_addresses_is_cached_once() {
    let (store, id) = (local(), "x".parse::<TraceAddress>().expect("a legal id"));
    let far = treehold_traces::Location::agent("other").expect("a legal name");
    let owner = Owner::new(treehold_traces::HybridTraces::new(Arc::new(store.clone()), Arc::new(local())).with_own_location(far));
    let cache = CachedTraces::new(owner.clone(), CacheOptions::new()).with_peers(crate::support::Scripted::unused().peers());
    let [one, other] = ["@other/x", "agent://Other.example:8000/x"].map(|id| id.parse::<TraceAddress>().expect("a legal id"));
    store.create_trace(NewTrace::new("tea").with_id(id.clone())).await.expect("created");
    store.add_messages(&id, texts(3), &AddOptions::new()).await.expect("added");
    finish(&store, &id).await;
    for address in [&one, &other] {
        assert_eq!(path(&cache, address).await, [1, 2, 3]);
    }
    assert_eq!(cache.usage().0, 1);
    for (writer, reader) in [(&one, &other), (&other, &one)] {
        let last = *path(&cache, reader).await.last().expect("a message");
        cache.add_messages(writer, texts(1), &AddOptions::new()).await.expect("added");
        assert_eq!(path(&cache, reader).await.last(), Some(&(last + 1)), "{writer}");
    }
    // An agent that nobody registered is refused by the owner, as without a cache.
    assert_eq!(cache.get_trace(&"@nobody/x".parse().expect("a legal id")).await.expect_err("refused").kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn trace_that_was_replaced_shares_nothing_with_the_first() {
    let (store, _, cache, trace) = cached(CacheOptions::new()).await;
    path(&cache, &trace).await;
    store.delete_trace(&trace).await.expect("deleted");
    store.create_trace(NewTrace::new("coffee").with_id(trace.clone())).await.expect("created");
    store.add_messages(&trace, vec![NewMessage::text("user", "other"); 3], &AddOptions::new()).await.expect("added");
    let page = cache.get_main_path(&trace, &PathQuery::default()).await.expect("readable");
    assert_eq!(page, store.get_main_path(&trace, &PathQuery::default()).await.expect("readable"));
}

#[tokio::test]
async fn two_caches_and_a_writer_agree_with_the_owner() {
    let (store, owner, one, trace) = cached(CacheOptions::new()).await;
    let two = CachedTraces::new(owner, CacheOptions::new().with_final_age_max(Duration::ZERO));
    for round in 0..20 {
        let parent = if round % 3 == 0 { 1 } else { store.get_trace(&trace).await.expect("readable").expect("it exists").head_sequence };
        one.add_messages(&trace, vec![NewMessage::text("user", "x").with_parent(parent)], &AddOptions::new()).await.expect("added");
        match round % 4 {
            0 => finish(&one, &trace).await,
            1 => drop(two.add_goal(&trace, NewGoal::new("boil")).await.expect("added")),
            2 => {
                let update = made(|value: &mut MessageUpdate| value.tokens = Some(round));
                two.update_message(&trace, &MessageRef::Sequence(1), update).await.expect("updated");
            }
            _ => drop(store.append_event(&trace, "noted", OtherFields::new()).await.expect("appended")),
        }
        // The first cache may serve a final trace that the second changed; the second always asks.
        one.invalidate(&trace);
        for cache in [&one, &two] {
            assert_eq!(cache.get_trace(&trace).await.expect("readable"), store.get_trace(&trace).await.expect("readable"));
            assert_eq!(
                cache.get_main_path(&trace, &PathQuery::default()).await.expect("readable"),
                store.get_main_path(&trace, &PathQuery::default()).await.expect("readable")
            );
            assert_eq!(
                cache.get_messages(&trace, &MessagesQuery::default()).await.expect("readable"),
                store.get_messages(&trace, &MessagesQuery::default()).await.expect("readable")
            );
            assert_eq!(cache.get_goal_tree(&trace).await.expect("readable"), store.get_goal_tree(&trace).await.expect("readable"));
        }
    }
}

#[tokio::test]
async fn answer_that_a_write_overtook_is_not_cached() {
    let (store, owner, cache, trace) = cached(CacheOptions::new()).await;
    finish(&store, &trace).await;
    for held in ["get_trace", "get_main_path"] {
        cache.clear();
        let gate = owner.gate.write().await;
        owner.hold(held);
        let reader = tokio::spawn({
            let (cache, trace) = (cache.clone(), trace.clone());
            async move { cache.get_main_path(&trace, &PathQuery::default()).await.expect("readable") }
        });
        while !owner.take().contains(&held) {
            tokio::task::yield_now().await;
        }
        // The owner answered, and the answer is on its way. Meanwhile this process writes.
        let update = made(|value: &mut MessageUpdate| value.content = Some(Json::of(held).expect("JSON")));
        cache.update_message(&trace, &MessageRef::Sequence(2), update).await.expect("updated");
        drop(gate);
        reader.await.expect("no panic");
        let page = cache.get_main_path(&trace, &PathQuery::default()).await.expect("readable");
        assert_eq!(page.messages[1].content.as_ref().expect("a content").as_str(), format!("\"{held}\""));
    }
}

#[tokio::test]
async fn least_recently_used_traces_leave_within_the_bound() {
    let store = local();
    let owner = Owner::new(store.clone());
    let bytes_max = 64 << 10;
    let cache = CachedTraces::new(owner.clone(), CacheOptions::new().with_bytes_max(bytes_max));
    let mut ids = Vec::new();
    for _ in 0..20 {
        let trace = store.create_trace(NewTrace::new("tea")).await.expect("created").trace_id;
        let text = "x".repeat(1_000);
        store.add_messages(&trace, vec![NewMessage::text("user", &text); 10], &AddOptions::new()).await.expect("added");
        finish(&store, &trace).await;
        path(&cache, &trace).await;
        if let Some(first) = ids.first() {
            path(&cache, first).await;
        }
        ids.push(trace);
        assert!(cache.usage().1 <= bytes_max, "{:?}", cache.usage());
    }
    assert!((2..=5).contains(&cache.usage().0), "{:?}", cache.usage());
    owner.take();
    path(&cache, &ids[0]).await;
    assert!(owner.take().is_empty(), "the first one was used again and again");
    path(&cache, &ids[1]).await;
    assert_eq!(owner.take(), ["get_trace", "get_main_path"]);
    // A single trace that is larger than the cache stays within the bound, too.
    let text = "x".repeat(10_000);
    store.add_messages(&ids[0], vec![NewMessage::text("user", &text); 20], &AddOptions::new()).await.expect("added");
    cache.invalidate(&ids[0]);
    assert_eq!(path(&cache, &ids[0]).await.len(), 30);
    assert!(cache.usage().1 <= bytes_max, "{:?}", cache.usage());
    assert_eq!(path(&cache, &ids[0]).await.len(), 30);
    let tiny = CachedTraces::new(owner, CacheOptions::new().with_bytes_max(1));
    assert_eq!(path(&tiny, &ids[0]).await.len(), 30);
    assert_eq!(tiny.usage(), (0, 0));
}
