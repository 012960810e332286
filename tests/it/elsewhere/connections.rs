//! Lost answers, wrong keys, and owners that come and go.

use super::proxy::Proxy;
use super::{Server, far, registry};
use futures::StreamExt as _;
use serde_json::json;
use std::error::Error as _;
use std::sync::Arc;
use treehold::ErrorKind;
use treehold::traces::{
    AddOptions, CacheOptions, CachedTraces, ForeignTrace, HybridTraces, MessagesQuery, NewGoal, NewMessage, NewTrace, OtherFields,
    PathQuery, RemoteTraces, TraceAddress, TraceStatus, TraceStore, TraceUpdate, TracesQuery,
};

fn texts(count: usize) -> Vec<NewMessage> {
    (0..count).map(|number| NewMessage::text("user", &number.to_string())).collect()
}

#[tokio::test]
async fn change_whose_answer_is_lost_takes_effect_once() {
    let server = Server::start().await;
    let (proxy, token) = (Proxy::start(&server.url).await, server.token("ada").await);
    // A new client makes a new connection, whose first answer the proxy loses.
    let lossy = || {
        proxy.lose(1);
        RemoteTraces::at(registry(&proxy.url(), &token), far()).unwrap()
    };
    let trace = lossy().create_trace(NewTrace::new("tea")).await.unwrap().trace_id;
    let added = lossy().add_messages(&trace, texts(2), &AddOptions::new()).await.unwrap();
    assert_eq!((added.head_sequence, added.messages[1].sequence), (2, 2));
    let data: OtherFields = json!({"text": "x"}).as_object().unwrap().clone();
    let event = lossy().append_event(&trace, "noted", data).await.unwrap();
    let goal = lossy().add_goal(&trace, NewGoal::new("boil")).await.unwrap();
    lossy().update_trace(&trace, TraceUpdate::new().with_duration_ms(5)).await.unwrap();
    let (local, stored) = (trace.stripped(), server.traces("ada"));
    let found = stored.get_trace(&local).await.unwrap().unwrap();
    assert_eq!((found.total_messages, found.head_sequence, found.total_duration_ms), (2, 2, 5));
    let events = stored.get_events(&local, 0, 100).await.unwrap().events;
    assert_eq!(events.iter().filter(|event| event.event == "noted").map(|event| event.event_id).collect::<Vec<_>>(), [event]);
    assert_eq!(stored.get_goal_tree(&local).await.unwrap().goals.iter().map(|goal| &goal.id).collect::<Vec<_>>(), [&goal.id]);
    assert_eq!(stored.list_traces(&TracesQuery::default()).await.unwrap().total, 1);
    assert!(lossy().delete_trace(&trace).await.unwrap());
    assert!(stored.get_trace(&local).await.unwrap().is_none());
}

#[tokio::test]
async fn keys_decide_which_traces_exist() {
    let server = Server::start().await;
    let ada = server.remote().await;
    let trace = ada.create_trace(NewTrace::new("tea")).await.unwrap().trace_id;
    let of_bob = RemoteTraces::at(registry(&server.url, &server.token("bob").await), far()).unwrap();
    for error in [
        of_bob.get_trace(&trace).await.unwrap_err(),
        of_bob.add_messages(&trace, texts(1), &AddOptions::new()).await.unwrap_err(),
        of_bob.delete_trace(&trace).await.unwrap_err(),
        of_bob.watch(&trace, 0).await.err().unwrap(),
    ] {
        assert_eq!((error.kind(), error.message()), (ErrorKind::PermissionDenied, "Cannot access other user's trace"));
        assert!(error.source().is_some_and(|source| source.is::<ForeignTrace>()));
    }
    let wrong = RemoteTraces::at(registry(&server.url, "wrong-s3cret"), far()).unwrap();
    let error = wrong.get_trace(&trace).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(!format!("{error:?} {error} {wrong:?}").contains("s3cret"), "{error:?}");
    assert!(ada.get_trace(&trace).await.unwrap().is_some());
}

/// What a key gave must not be served after it was revoked, also not while the owner is away.
#[tokio::test]
async fn revoked_key_empties_the_cache_of_all_that_it_gave() {
    let server = Server::start().await;
    let (proxy, token) = (Proxy::start(&server.url).await, server.token("ada").await);
    let copies: Arc<dyn treehold::store::Store> = Arc::new(treehold::MemoryStore::new());
    let open = || {
        let options = CacheOptions::new().with_final_age_max(std::time::Duration::ZERO);
        let cached = CachedTraces::new(Arc::new(RemoteTraces::new(registry(&proxy.url(), &token))), options);
        cached.with_copies(treehold::traces::TraceCopies::new(copies.clone(), "acme").unwrap())
    };
    let cached = open();
    let ids = ["@far/one", "@far/two"].map(|id| id.parse::<TraceAddress>().unwrap());
    for id in &ids {
        cached.create_trace(NewTrace::new("tea").with_id(id.clone())).await.unwrap();
        cached.add_messages(id, texts(2), &AddOptions::new()).await.unwrap();
        cached.get_main_path(id, &PathQuery::default()).await.unwrap();
    }
    assert_eq!(cached.usage().0, 2);
    // The trace of another user says nothing about the key.
    server.traces("bob").create_trace(NewTrace::new("x").with_id("bobs".parse::<TraceAddress>().unwrap())).await.unwrap();
    assert_eq!(cached.get_trace(&"@far/bobs".parse().unwrap()).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(cached.usage().0, 2);
    let book = treehold::serve::TokenBook::new(server.store.clone());
    book.revoke(token.split('_').nth(1).unwrap()).await.unwrap();
    // The server learns of it within moments.
    let denied = async {
        loop {
            if let Err(error) = cached.get_trace(&ids[0]).await {
                return error;
            }
        }
    };
    let denied = tokio::time::timeout(std::time::Duration::from_secs(60), denied).await.unwrap();
    assert_eq!((denied.kind(), cached.usage().0), (ErrorKind::PermissionDenied, 0), "{denied}");
    proxy.close(true);
    for cached in [cached, open()] {
        for id in &ids {
            assert_eq!(cached.get_main_path(id, &PathQuery::default()).await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
    }
}

#[tokio::test]
async fn pages_are_compressed_on_the_way() {
    let server = Server::start().await;
    let (proxy, token) = (Proxy::start(&server.url).await, server.token("ada").await);
    let traces = RemoteTraces::at(registry(&proxy.url(), &token), far()).unwrap();
    let trace = traces.create_trace(NewTrace::new("tea")).await.unwrap().trace_id;
    let long = "the same words again and again ".repeat(100);
    traces.add_messages(&trace, vec![NewMessage::text("user", &long); 100], &AddOptions::new()).await.unwrap();
    proxy.received();
    let page = traces.get_messages(&trace, &MessagesQuery::default()).await.unwrap();
    assert_eq!(page.messages.len(), 100);
    let received = proxy.received();
    assert!(received < long.len() * 100 / 10, "{received} bytes for {}", long.len() * 100);
}

#[tokio::test]
async fn watched_events_come_once_and_in_order_across_lost_connections() {
    let server = Server::start().await;
    let (proxy, token) = (Proxy::start(&server.url).await, server.token("ada").await);
    let traces = RemoteTraces::at(registry(&proxy.url(), &token), far()).unwrap();
    let trace = traces.create_trace(NewTrace::new("tea")).await.unwrap().trace_id;
    let mut events = traces.watch(&trace, 0).await.unwrap();
    let (stored, local) = (server.traces("ada"), trace.stripped());
    let mut ids = Vec::new();
    for round in 0..5 {
        stored.append_event(&local, "noted", OtherFields::new()).await.unwrap();
        while ids.len() < round + 2 {
            ids.push(events.next().await.unwrap().unwrap().event_id);
        }
        proxy.close(false);
    }
    assert_eq!(ids, (1..=6).collect::<Vec<_>>());
    stored.delete_trace(&local).await.unwrap();
    let ended = events.next().await.unwrap().unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::NotFound, "{ended}");
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn owner_that_is_away_leaves_stale_pages_until_it_is_back() {
    let server = Server::start().await;
    let (proxy, token) = (Proxy::start(&server.url).await, server.token("ada").await);
    let cached = CachedTraces::new(Arc::new(RemoteTraces::new(registry(&proxy.url(), &token))), CacheOptions::new());
    let here = treehold::traces::Traces::new(Arc::new(treehold::MemoryStore::new())).for_user("acme", "ada").unwrap();
    let traces = HybridTraces::new(Arc::new(here), Arc::new(cached));
    let trace: TraceAddress = "@far/t".parse().unwrap();
    traces.create_trace(NewTrace::new("tea").with_id(trace.clone())).await.unwrap();
    traces.add_messages(&trace, texts(3), &AddOptions::new()).await.unwrap();
    assert!(!traces.get_main_path(&trace, &PathQuery::default()).await.unwrap().stale);
    proxy.close(true);
    let page = traces.get_main_path(&trace, &PathQuery::default()).await.unwrap();
    assert_eq!((page.messages.len(), page.stale), (3, true));
    assert!(traces.get_trace(&trace).await.unwrap().unwrap().stale);
    let error = traces.add_messages(&trace, texts(1), &AddOptions::new()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_without_effect()), (ErrorKind::Unavailable, false), "{error}");
    proxy.close(false);
    server.traces("ada").add_messages(&trace.stripped(), texts(1), &AddOptions::new()).await.unwrap();
    let page = traces.get_main_path(&trace, &PathQuery::default()).await.unwrap();
    assert_eq!((page.messages.len(), page.stale), (4, false));
}

#[tokio::test]
async fn two_caches_and_a_writer_agree_with_the_server() {
    let server = Server::start().await;
    let cache =
        async || CachedTraces::new(Arc::new(server.remote().await), CacheOptions::new().with_final_age_max(std::time::Duration::ZERO));
    let (one, two, stored) = (cache().await, cache().await, server.traces("ada"));
    let trace = one.create_trace(NewTrace::new("tea")).await.unwrap().trace_id;
    let local = trace.stripped();
    for round in 0..12 {
        let writer: &dyn TraceStore = if round % 2 == 0 { &one } else { &two };
        let parent = if round % 5 == 4 { 1 } else { stored.get_trace(&local).await.unwrap().unwrap().head_sequence };
        writer.add_messages(&trace, vec![NewMessage::text("user", "x").with_parent(parent)], &AddOptions::new()).await.unwrap();
        if round % 3 == 0 {
            writer.update_trace(&trace, TraceUpdate::new().with_status(TraceStatus::Completed)).await.unwrap();
        }
        let sequences = |page: treehold::traces::MessagesPage| page.messages.iter().map(|message| message.sequence).collect::<Vec<_>>();
        let path = sequences(stored.get_main_path(&local, &PathQuery::default()).await.unwrap());
        for cache in [&one, &two] {
            assert_eq!(sequences(cache.get_main_path(&trace, &PathQuery::default()).await.unwrap()), path, "{round}");
            assert_eq!(
                cache.get_trace(&trace).await.unwrap().unwrap().last_event_id,
                stored.get_trace(&local).await.unwrap().unwrap().last_event_id
            );
        }
    }
}
