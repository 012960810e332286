//! Limits, and values at their borders.

use super::support::{add, address, all, begin, fill, text, traces, traces_with, whole};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::ErrorKind;
use treehold_core::json::Json;
use treehold_store::Store;
use treehold_traces::{
    AddOptions, Goal, GoalTree, MessageRef, MessageUpdate, MessagesQuery, NewGoal, NewMessage, NewTrace, PathQuery, TraceStore,
    TraceUpdate, TracesOptions,
};

pub(crate) async fn values_over_the_limits_are_refused_and_store_nothing(store: Arc<dyn Store>) {
    let own = traces(&store);
    begin(&own).await;
    add(&own, vec![text("a")]).await;
    own.add_goal(&address(), NewGoal::new("x")).await.unwrap();
    let before = whole(&own).await;
    let long = "x".repeat(10 << 20);
    let at = address();
    let is_large = |what: &str, kind: ErrorKind| assert_eq!(kind, ErrorKind::TooLarge, "{what}");
    is_large("message", own.add_messages(&at, vec![text("b"), text(&long)], &AddOptions::new()).await.map(drop).expect_err("m").kind());
    let many = (0..20).map(|_| text(&long[..1_000_000])).collect();
    is_large("batch", own.add_messages(&at, many, &AddOptions::new()).await.map(drop).expect_err("b").kind());
    let content = MessageUpdate::new().with_content(Json::of(&long).unwrap());
    is_large("update", own.update_message(&at, &MessageRef::Sequence(1), content).await.map(drop).expect_err("u").kind());
    is_large("trace", own.create_trace(NewTrace::new(&long)).await.map(drop).expect_err("t").kind());
    let task = TraceUpdate::new().with_task(&long);
    is_large("task", own.update_trace(&at, task).await.map(drop).expect_err("u").kind());
    is_large("goal", own.add_goal(&at, NewGoal::new(&long)).await.map(drop).expect_err("g").kind());
    is_large("tree", own.update_goal_tree(&at, GoalTree::new(&long, Vec::new())).await.expect_err("g").kind());
    let data: Map<String, Value> = [("text".to_owned(), json!(long))].into_iter().collect();
    is_large("event", own.append_event(&at, "noted", data).await.map(drop).expect_err("e").kind());
    assert_eq!(whole(&own).await, before);
}

pub(crate) async fn pages_end_at_their_bytes(store: Arc<dyn Store>) {
    let own = traces_with(&store, TracesOptions::new().with_page_bytes_max(1_000).with_page_max(50));
    begin(&own).await;
    let message = |number: usize| text(&format!("{number} {}", "x".repeat(300))).with_goal("1");
    add(&own, (0..9).map(message).collect()).await;
    add(&own, vec![text(&"y".repeat(5_000)).with_goal("1"), text("z").with_goal("1")]).await;
    let (mut read, mut since) = (Vec::new(), 0);
    for goal in [None, Some("1")] {
        loop {
            let query = goal.into_iter().fold(MessagesQuery::new().with_since(since), MessagesQuery::with_goal);
            let page = own.get_messages(&address(), &query).await.unwrap();
            assert!((1..=4).contains(&page.messages.len()), "{}", page.messages.len());
            since = page.messages.last().unwrap().sequence;
            read.extend(page.messages.iter().map(|message| message.sequence));
            if !page.more {
                break;
            }
        }
        assert_eq!(std::mem::take(&mut read), (1..=11).collect::<Vec<_>>());
        since = 0;
    }
    let mut end = None;
    loop {
        let query = end.into_iter().fold(PathQuery::new(), PathQuery::with_head);
        let page = own.get_main_path(&address(), &query).await.unwrap();
        assert!((1..=4).contains(&page.messages.len()), "{}", page.messages.len());
        read.splice(0..0, page.messages.iter().map(|message| message.sequence));
        match page.earlier {
            Some(earlier) => end = Some(earlier),
            None => break,
        }
    }
    assert_eq!(read, (1..=11).collect::<Vec<_>>());
    let events = own.get_events(&address(), 0, usize::MAX).await.unwrap();
    assert!(events.more && (1..12).contains(&events.events.len()), "{}", events.events.len());
    let too_many = own.add_messages(&address(), (0..51).map(|_| text("a")).collect(), &AddOptions::new()).await.map(drop);
    assert_eq!(too_many.expect_err("over the page").kind(), ErrorKind::InvalidArgument);
}

pub(crate) async fn deep_json_is_refused_and_the_deepest_allowed_is_readable(store: Arc<dyn Store>) {
    let own = traces(&store);
    begin(&own).await;
    let nested = |depth: usize| (0..depth).fold(json!(1), |value, _| json!([value]));
    // A message is one level, and so are an event, a goal and a trace; a goal in its tree is two levels deeper.
    let mut accepted = 0;
    for depth in [90, 96, 97, 98, 99, 100, 101, 127] {
        let message = own.add_messages(&address(), vec![text("a").with_field("deep", nested(depth))], &AddOptions::new()).await.map(drop);
        let event = own.append_event(&address(), "noted", [("deep".to_owned(), nested(depth))].into_iter().collect()).await.map(drop);
        let goal = own.add_goal(&address(), NewGoal::new("x").with_field("deep", nested(depth))).await.map(drop);
        let trace = own.create_trace(NewTrace::new("x").with_field("deep", nested(depth))).await.map(drop);
        for result in [message, event, goal, trace] {
            match result {
                Ok(()) => accepted += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{depth}"),
            }
        }
        // Whatever was accepted can be read.
        whole(&own).await;
    }
    assert!((12..=22).contains(&accepted), "{accepted}");
    let content = Json::parse(&format!("{}1{}", "[".repeat(99), "]".repeat(99))).unwrap();
    add(&own, vec![NewMessage::new("user", content)]).await;
    whole(&own).await;
}

pub(crate) async fn totals_that_would_overflow_are_refused(store: Arc<dyn Store>) {
    const TOKENS: u64 = 1 << 53;
    let own = traces(&store);
    begin(&own).await;
    let full = |count: usize| (0..count).map(|_| text("a").with_usage(TOKENS, 1e12)).collect::<Vec<_>>();
    for _ in 0..2 {
        add(&own, full(1_000)).await;
    }
    add(&own, full(47)).await;
    let before = own.get_trace(&address()).await.unwrap().unwrap();
    assert_eq!((before.total_tokens, before.total_cost), (2_047 * TOKENS, 2_047.0 * 1e12));
    let refused = own.add_messages(&address(), full(2), &AddOptions::new()).await.map(drop);
    assert_eq!(refused.expect_err("2^64 tokens").kind(), ErrorKind::InvalidArgument);
    assert_eq!(own.get_trace(&address()).await.unwrap().unwrap(), before);
    add(&own, vec![text("free")]).await;
}

pub(crate) async fn expired_key_is_forgotten(store: Arc<dyn Store>) {
    let own = traces_with(&store, TracesOptions::new().with_idempotency_time(Duration::ZERO));
    begin(&own).await;
    let options = AddOptions::new().with_idempotency_key("k");
    for sequence in 1..=2 {
        let added = own.add_messages(&address(), vec![text("a")], &options).await.unwrap();
        assert_eq!((added.messages[0].sequence, added.repeated), (sequence, false));
    }
}

/// Cumulative statistics of a deep tree are made in linear time and without recursion.
pub(crate) async fn many_goals_are_counted_together(store: Arc<dyn Store>) {
    const GOALS: usize = 2_000;
    let own = all(&store).for_user("acme", "ada").unwrap();
    begin(&own).await;
    let goal = |number: usize| match number.checked_sub(1) {
        Some(parent) => Goal::new(number.to_string(), "x").with_parent(parent.to_string()),
        None => Goal::new("0", "x"),
    };
    let tree = GoalTree::new("", (0..GOALS).map(goal).collect());
    own.update_goal_tree(&address(), tree).await.unwrap();
    add(&own, vec![text("a").with_goal((GOALS - 1).to_string()).with_usage(3, 0.5)]).await;
    fill(&own, 1).await;
    let tree = own.get_goal_tree(&address()).await.unwrap();
    assert!(tree.goals.iter().all(|goal| goal.cumulative_stats.total_tokens == 3));
    assert_eq!(tree.goals.iter().map(|goal| goal.self_stats.total_tokens).sum::<u64>(), 3);
}
