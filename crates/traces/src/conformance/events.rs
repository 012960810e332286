//! Events: one for each change, read in pages and followed.

use super::*;
use crate::contract::EventStream;
use futures::StreamExt;
use serde_json::{Map, json};
use std::time::Duration;

/// Waits for the next event. The time only ends a test that would hang.
async fn next(stream: &mut EventStream) -> Option<Result<TraceEvent>> {
    tokio::time::timeout(Duration::from_secs(60), stream.next()).await.expect("an event comes")
}

async fn take(stream: &mut EventStream, count: usize) -> Vec<u64> {
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        ids.push(next(stream).await.expect("the stream goes on").expect("an event").event_id);
    }
    ids
}

pub(super) async fn every_change_is_one_event_in_order(traces: Subject) {
    let trace = begin(&traces).await;
    add(&traces, &trace, vec![NewMessage::text("user", "a"), NewMessage::text("assistant", "b").with_goal("1")]).await;
    traces.add_goal(&trace, NewGoal::new("x")).await.expect("added");
    let started = GoalUpdate { status: Some(GoalStatus::InProgress), ..GoalUpdate::default() };
    traces.update_goal(&trace, "1", started).await.expect("changed");
    let tokens = MessageUpdate { tokens: Some(1), ..MessageUpdate::default() };
    traces.update_message(&trace, &MessageRef::Sequence(1), tokens).await.expect("changed");
    traces.update_goal_tree(&trace, GoalTree::default()).await.expect("replaced");
    traces.update_trace(&trace, TraceUpdate::new().with_duration_ms(1)).await.expect("changed");
    traces.update_trace(&trace, TraceUpdate::new().with_head(1).with_status(TraceStatus::Completed)).await.expect("changed");
    let all = events(&traces, &trace).await;
    let told: Vec<(u64, &str)> = all.iter().map(|event| (event.event_id, event.event.as_str())).collect();
    let expected = [
        kinds::TRACE_CREATED,
        kinds::MESSAGE_ADDED,
        kinds::MESSAGE_ADDED,
        kinds::GOAL_ADDED,
        kinds::GOAL_UPDATED,
        kinds::MESSAGE_UPDATED,
        kinds::GOAL_TREE_UPDATED,
        kinds::TRACE_UPDATED,
        kinds::HEAD_MOVED,
        kinds::TRACE_COMPLETED,
    ];
    assert_eq!(told, (1..).zip(expected).collect::<Vec<_>>());
    assert_eq!(get(&traces, &trace).await.last_event_id, 10);
    assert!(all.iter().all(|event| event.ts.is_some()));
    let (message, id) = (&all[2].data, format!("{}-0002", trace.id()));
    assert_eq!((&message["sequence"], &message["parent_sequence"], &message["message_id"]), (&json!(2), &json!(1), &json!(id)));
    assert_eq!((&message["head_sequence"], &message["goal_id"], &message["role"]), (&json!(2), &json!("1"), &json!("assistant")));
}

pub(super) async fn events_of_callers_get_the_next_id(traces: Subject) {
    let trace = begin(&traces).await;
    let data: Map<_, _> = [("goal_id".to_owned(), json!("1")), ("nested".to_owned(), json!({"a": [1, null]}))].into_iter().collect();
    assert_eq!(traces.append_event(&trace, "sub_trace_started", data.clone()).await.expect("appended"), 2);
    assert_eq!(traces.append_event(&trace, "x", Map::new()).await.expect("appended"), 3);
    let all = events(&traces, &trace).await;
    assert_eq!((all[1].event.as_str(), &all[1].data), ("sub_trace_started", &data));
    for kind in ["", "a\nb", &"x".repeat(256)] {
        let refused = traces.append_event(&trace, kind, Map::new()).await.map(drop);
        assert_eq!(refused.expect_err("a bad kind").kind(), ErrorKind::InvalidArgument, "{kind:?}");
    }
    assert_eq!(get(&traces, &trace).await.last_event_id, 3);
}

pub(super) async fn pages_of_events_follow_each_other(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 6).await;
    let page = async |since: u64, limit: usize| {
        let page = traces.get_events(&trace, since, limit).await.expect("readable");
        (page.events.iter().map(|event| event.event_id).collect::<Vec<_>>(), page.more)
    };
    assert_eq!(page(0, 3).await, (vec![1, 2, 3], true));
    assert_eq!(page(3, 3).await, (vec![4, 5, 6], true));
    assert_eq!(page(6, 3).await, (vec![7], false));
    assert_eq!(page(7, 3).await, (vec![], false));
    assert_eq!(page(u64::MAX, 3).await, (vec![], false));
    assert_eq!(traces.get_events(&trace, 0, 0).await.map(drop).expect_err("no limit").kind(), ErrorKind::InvalidArgument);
}

pub(super) async fn watch_replays_and_continues_with_new_events(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 4).await;
    let mut whole = traces.watch(&trace, 0).await.expect("followed");
    let mut rest = traces.watch(&trace, 3).await.expect("followed");
    assert_eq!(take(&mut whole, 5).await, [1, 2, 3, 4, 5]);
    assert_eq!(take(&mut rest, 2).await, [4, 5]);
    say(&traces, &trace, "live").await;
    assert_eq!(take(&mut whole, 1).await, [6]);
    fill(&traces, &trace, 2).await;
    assert_eq!(take(&mut whole, 2).await, [7, 8]);
    assert_eq!(take(&mut rest, 3).await, [6, 7, 8]);
}

pub(super) async fn watch_of_a_deleted_trace_ends_with_an_error(traces: Subject) {
    let trace = begin(&traces).await;
    let mut stream = traces.watch(&trace, 0).await.expect("followed");
    assert_eq!(take(&mut stream, 1).await, [1]);
    assert!(traces.delete_trace(&trace).await.expect("deleted"));
    let ended = next(&mut stream).await.expect("an error").map(drop);
    assert_eq!(ended.expect_err("the trace is gone").kind(), ErrorKind::NotFound);
    assert!(next(&mut stream).await.is_none());
}

pub(super) async fn concurrent_events_are_watched_once_and_in_order(traces: Subject) {
    const WRITERS: usize = 8;
    const EACH: usize = 10;
    let trace = begin(&traces).await;
    let mut stream = traces.watch(&trace, 0).await.expect("followed");
    let write = |writer: usize| {
        let (traces, trace) = (traces.clone(), trace.clone());
        tokio::spawn(async move {
            for number in 0..EACH {
                if writer.is_multiple_of(2) {
                    say(&traces, &trace, "x").await;
                } else {
                    let data = [("number".to_owned(), json!(number))].into_iter().collect();
                    traces.append_event(&trace, "noted", data).await.expect("appended");
                }
            }
        })
    };
    let writers: Vec<_> = (0..WRITERS).map(write).collect();
    assert_eq!(take(&mut stream, 1 + WRITERS * EACH).await, (1..=1 + (WRITERS * EACH) as u64).collect::<Vec<_>>());
    for writer in writers {
        writer.await.expect("no writer panics");
    }
}
