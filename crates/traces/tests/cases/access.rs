//! Whose traces a store shows.

use super::support::{TENANT, USER, add, address, all, begin, id, rows, text, traces, whole};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Map;
use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::reserved::RESERVED_ROOT;
use treehold_store::Store;
use treehold_traces::{
    AddOptions, ForeignTrace, GoalTree, GoalUpdate, MessageRef, MessageUpdate, MessagesQuery, NewGoal, NewTrace, PathQuery, TraceAddress,
    TraceStatus, TraceStore, TraceUpdate, TracesQuery,
};

type Call<'c> = (&'static str, BoxFuture<'c, Result<()>>);

/// Returns a call of every method about one trace.
fn calls<'c>(traces: &'c dyn TraceStore, trace: &'c TraceAddress) -> Vec<Call<'c>> {
    macro_rules! call {
        ($name:literal, $call:expr) => {
            ($name, async move { $call.await.map(drop) }.boxed())
        };
    }
    let message = MessageRef::Sequence(1);
    let (by_update, query) = (message.clone(), MessagesQuery::new());
    let status = TraceUpdate::new().with_status(TraceStatus::Failed);
    vec![
        call!("get_trace", traces.get_trace(trace)),
        call!("update_trace", traces.update_trace(trace, status)),
        call!("delete_trace", traces.delete_trace(trace)),
        call!("get_goal_tree", traces.get_goal_tree(trace)),
        call!("update_goal_tree", traces.update_goal_tree(trace, GoalTree::default())),
        call!("add_goal", traces.add_goal(trace, NewGoal::new("x"))),
        call!("update_goal", traces.update_goal(trace, "1", GoalUpdate::new())),
        call!("add_messages", traces.add_messages(trace, vec![text("x")], &AddOptions::new())),
        ("get_message", async move { traces.get_message(trace, &message).await.map(drop) }.boxed()),
        ("update_message", async move { traces.update_message(trace, &by_update, MessageUpdate::new()).await.map(drop) }.boxed()),
        ("get_messages", async move { traces.get_messages(trace, &query).await.map(drop) }.boxed()),
        ("get_main_path", async move { traces.get_main_path(trace, &PathQuery::new()).await.map(drop) }.boxed()),
        call!("append_event", traces.append_event(trace, "x", Map::new())),
        call!("get_events", traces.get_events(trace, 0, 10)),
        call!("watch", traces.watch(trace, 0)),
    ]
}

pub(crate) async fn trace_of_another_user_is_refused_by_every_method(store: Arc<dyn Store>) {
    let own = traces(&store);
    begin(&own).await;
    add(&own, vec![text("secret")]).await;
    let before = whole(&own).await;
    let other = all(&store).for_user(TENANT, "eve").unwrap();
    for (name, call) in calls(&other, &address()) {
        let error = call.await.expect_err(name);
        assert_eq!((error.kind(), error.message()), (ErrorKind::PermissionDenied, "Cannot access other user's trace"), "{name}");
        assert!(error.source().is_some_and(|source| source.is::<ForeignTrace>()), "{name}");
    }
    let claimed = other.claim_run(&id(), Duration::from_secs(60)).await.map(drop);
    assert_eq!(claimed.expect_err("another's").kind(), ErrorKind::PermissionDenied);
    let taken = other.create_trace(NewTrace::new("mine").with_id(id())).await.map(drop);
    assert_eq!(taken.expect_err("taken").kind(), ErrorKind::AlreadyExists);
    let listed = other.list_traces(&TracesQuery::new()).await.unwrap();
    assert_eq!((listed.traces.len(), listed.total), (0, 0));
    assert_eq!(whole(&own).await, before);
}

pub(crate) async fn tenants_have_traces_of_their_own(store: Arc<dyn Store>) {
    let own = traces(&store);
    begin(&own).await;
    add(&own, vec![text("secret")]).await;
    let other = all(&store).for_user("other", USER).unwrap();
    assert_eq!(other.get_trace(&address()).await.unwrap(), None);
    other.create_trace(NewTrace::new("mine").with_id(id())).await.unwrap();
    assert!(other.delete_trace(&address()).await.unwrap());
    assert_eq!(whole(&own).await.messages.len(), 1);
}

pub(crate) async fn trace_that_lives_elsewhere_is_refused_by_every_method(store: Arc<dyn Store>) {
    let own = traces(&store);
    begin(&own).await;
    let before = whole(&own).await;
    for elsewhere in ["@laptop/abc", "agent://host/abc"] {
        let elsewhere: TraceAddress = elsewhere.parse().unwrap();
        for (name, call) in calls(&own, &elsewhere) {
            assert_eq!(call.await.expect_err(name).kind(), ErrorKind::InvalidArgument, "{name}");
        }
        let created = own.create_trace(NewTrace::new("x").with_id(elsewhere)).await.map(drop);
        assert_eq!(created.expect_err("elsewhere").kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(whole(&own).await, before);
}

pub(crate) async fn ids_that_name_no_tenant_or_user_are_refused(store: Arc<dyn Store>) {
    let all = all(&store);
    let long = "x".repeat(256);
    for bad in ["", ".", "..", RESERVED_ROOT, "a\nb", "a\0b", &long] {
        assert_eq!(all.for_user(bad, USER).map(drop).expect_err(bad).kind(), ErrorKind::InvalidArgument, "{bad:?}");
        assert_eq!(all.for_user(TENANT, bad).map(drop).expect_err(bad).kind(), ErrorKind::InvalidArgument, "{bad:?}");
    }
    // Ids of the longest form, whose escapes fit or are refused before anything is written.
    let wide = "/".repeat(255);
    if let Ok(traces) = all.for_user(&wide, &wide) {
        begin(&traces).await;
        add(&traces, vec![text("x")]).await;
    } else {
        assert!(rows(&store).await.is_empty());
    }
    let odd = all.for_user("a/b c%", "é:@\u{202e}").unwrap();
    begin(&odd).await;
    add(&odd, vec![text("x")]).await;
    assert_eq!(whole(&odd).await.messages.len(), 1);
}

/// The directory of the tenant is the only other row.
pub(crate) async fn all_rows_of_a_user_share_a_prefix(store: Arc<dyn Store>) {
    let own = traces(&store);
    begin(&own).await;
    add(&own, vec![text("x").with_goal("1"), text("y").with_usage(1, 1.0)]).await;
    own.add_goal(&address(), NewGoal::new("x")).await.unwrap();
    let _claim = own.claim_run(&id(), Duration::from_secs(60)).await.unwrap();
    let rows = rows(&store).await;
    let outside: BTreeSet<String> = rows
        .iter()
        .filter(|(namespace, _)| !namespace.encoded().starts_with("acme/ada/_treehold/traces/"))
        .map(|(namespace, item)| format!("{namespace} {}", item.key))
        .collect();
    assert_eq!(outside, BTreeSet::from(["acme//_treehold/traces abc".to_owned()]));
}
