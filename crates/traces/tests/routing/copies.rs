//! Copies in a store: none unless asked for, and then no more than a cache.

use crate::support::{Owner, address, far, local, made};
use std::sync::Arc;
use treehold_core::error::ErrorKind;
use treehold_core::json::Json;
use treehold_store::{MemoryStore, NamespacesOptions, Store};
use treehold_traces::{
    AddOptions, CacheOptions, CachedTraces, HybridTraces, MessageRef, MessageUpdate, NewMessage, NewTrace, OrganizationTraces, PathQuery,
    TraceCopies, TraceStatus, TraceStore, TraceUpdate, Traces,
};

async fn namespaces(store: &Arc<MemoryStore>) -> usize {
    store.namespaces(NamespacesOptions::default()).await.expect("readable").namespaces.len()
}

fn cache(owner: &Arc<Owner>, copies: Option<TraceCopies>) -> CachedTraces {
    let cached = CachedTraces::new(owner.clone(), CacheOptions::new());
    copies.into_iter().fold(cached, CachedTraces::with_copies)
}

#[tokio::test]
async fn no_copy_is_kept_unless_asked_for() {
    let owner = Owner::new(HybridTraces::new(Arc::new(local()), Arc::new(local())).with_own_location(far()));
    let store = Arc::new(MemoryStore::new());
    let here = Arc::new(Traces::new(store.clone()).for_user("acme", "ada").expect("legal ids"));
    let traces = HybridTraces::new(here, Arc::new(cache(&owner, None)));
    let id = address("@far/x");
    traces.create_trace(NewTrace::new("tea").with_id(id.clone())).await.expect("created");
    traces.add_messages(&id, vec![NewMessage::text("user", "hi")], &AddOptions::new()).await.expect("added");
    traces.update_trace(&id, TraceUpdate::new().with_status(TraceStatus::Completed)).await.expect("updated");
    traces.get_trace(&id).await.expect("readable");
    traces.get_main_path(&id, &PathQuery::default()).await.expect("readable");
    traces.get_goal_tree(&id).await.expect("readable");
    traces.get_events(&id, 0, 10).await.expect("readable");
    assert_eq!(namespaces(&store).await, 0, "nothing was written here");
}

#[tokio::test]
async fn copy_survives_the_process_and_is_never_newer_than_its_owner() {
    let there = local();
    let owner = Owner::new(there.clone());
    let store = Arc::new(MemoryStore::new());
    let copies = || Some(TraceCopies::new(store.clone(), "acme").expect("a legal id"));
    let first = cache(&owner, copies());
    let id = there.create_trace(NewTrace::new("tea")).await.expect("created").trace_id;
    let texts = |count: usize| (0..count).map(|number| NewMessage::text("user", &number.to_string())).collect::<Vec<_>>();
    there.add_messages(&id, texts(300), &AddOptions::new()).await.expect("added");
    let all = first.get_main_path(&id, &PathQuery::default()).await.expect("readable");
    // Another process, while the owner is away.
    owner.fail(ErrorKind::Unavailable);
    let second = cache(&owner, copies());
    let page = second.get_main_path(&id, &PathQuery::default()).await.expect("copied");
    assert_eq!((&page.messages, page.stale), (&all.messages, true));
    let other = cache(&owner, Some(TraceCopies::new(store.clone(), "other").expect("a legal id")));
    assert_eq!(other.get_trace(&id).await.expect_err("of another tenant").kind(), ErrorKind::Unavailable);
    // The owner is back with a change: the copy is brought up to date, and not used as it was.
    owner.fail(None);
    let update = made(|value: &mut MessageUpdate| value.content = Some(Json::of("new").expect("JSON")));
    there.update_message(&id, &MessageRef::Sequence(7), update).await.expect("updated");
    there.add_messages(&id, texts(1), &AddOptions::new()).await.expect("added");
    owner.take();
    let now = second.get_main_path(&id, &PathQuery::default()).await.expect("readable");
    assert_eq!(now, there.get_main_path(&id, &PathQuery::default()).await.expect("readable"));
    owner.fail(ErrorKind::Unavailable);
    let third = cache(&owner, copies());
    let page = third.get_main_path(&id, &PathQuery::default()).await.expect("copied");
    assert_eq!((&page.messages, page.stale), (&now.messages, true));
    // A removed trace leaves no copy.
    owner.fail(None);
    third.delete_trace(&id).await.expect("deleted");
    assert_eq!(namespaces(&store).await, 0);
}

#[tokio::test]
async fn members_of_an_organization_share_traces_and_others_do_not() {
    let store = Arc::new(MemoryStore::new());
    let traces = OrganizationTraces::new(Traces::new(store), "home");
    let traces = traces.with_owner(Some("acme".to_owned()), Some("agents".to_owned())).with_own_location(far());
    let of = |tenant: &str, user: &str| traces.for_user(tenant, user).expect("legal ids");
    let id = of("home", "ada").create_trace(NewTrace::new("tea")).await.expect("created").trace_id;
    let qualified = id.qualified(&far());
    assert!(of("home", "bob").get_trace(&qualified).await.expect("readable").is_some());
    assert!(of("acme", "agents").get_trace(&id).await.expect("readable").is_some(), "the tenant that owns them");
    assert!(of("other", "ada").get_trace(&id).await.expect("readable").is_none());
    assert_eq!(traces.owner_of("other", "ada"), ("other", "ada"));
    assert!(of("home", "ada").get_trace(&address("@nobody/x")).await.is_err());
}
