//! Traces: created, changed, listed and deleted.

use super::*;
use serde_json::json;

pub(super) async fn created_trace_is_returned_as_it_is_stored(traces: Subject) {
    let mut new = NewTrace::new("make tea").with_id(TraceId::new("abc@explore-20260204123456-001").expect("legal"));
    new = new.with_mode(TraceMode::Call).with_agent_type("cook").with_run_config(json(r#"{ "temperature": 0.30 }"#));
    new = new.with_parent("@laptop/parent".parse().expect("legal"), Some("1".to_owned()));
    new.other.insert("colour".to_owned(), json!("red"));
    let created = traces.create_trace(new).await.expect("created");
    assert_eq!(created.trace_id.id().as_str(), "abc@explore-20260204123456-001");
    assert_eq!((created.mode, created.status), (TraceMode::Call, TraceStatus::Running));
    assert_eq!((created.task.as_deref(), created.agent_type.as_deref()), (Some("make tea"), Some("cook")));
    assert_eq!(created.run_config.as_ref().map(Json::as_str), Some(r#"{ "temperature": 0.30 }"#));
    assert_eq!(created.parent_goal_id.as_deref(), Some("1"));
    assert_eq!(created.other.get("colour"), Some(&json!("red")));
    assert_eq!((created.total_messages, created.last_sequence, created.head_sequence, created.last_event_id), (0, 0, 0, 1));
    assert!(created.created_at.as_deref().is_some_and(|at| at.parse::<jiff::Timestamp>().is_ok()), "{created:?}");
    assert!(created.completed_at.is_none() && created.uid.is_some());
    assert_eq!(get(&traces, &created.trace_id).await, created);
    let other = traces.create_trace(NewTrace::default()).await.expect("created");
    assert_ne!(other.trace_id, created.trace_id);
}

pub(super) async fn taken_id_is_refused(traces: Subject) {
    let new = || NewTrace::new("first").with_id(TraceId::new("abc").expect("legal"));
    let trace = traces.create_trace(new()).await.expect("created").trace_id;
    assert_eq!(traces.create_trace(new()).await.map(drop).expect_err("taken").kind(), ErrorKind::AlreadyExists);
    assert_eq!(get(&traces, &trace).await.task.as_deref(), Some("first"));
    assert_eq!(traces.list_traces(&TracesQuery::default()).await.expect("listed").total, 1);
}

pub(super) async fn unknown_trace_is_none_and_takes_nothing(traces: Subject) {
    let trace = sibling(&begin(&traces).await, "no-such-trace");
    assert_eq!(traces.get_trace(&trace).await.expect("readable"), None);
    assert!(!traces.delete_trace(&trace).await.expect("nothing to delete"));
    let is_not_found = |result: Result<()>, what: &str| assert_eq!(result.expect_err(what).kind(), ErrorKind::NotFound, "{what}");
    let message = MessageRef::Sequence(1);
    let text = || vec![NewMessage::text("user", "hi")];
    is_not_found(traces.update_trace(&trace, TraceUpdate::new()).await.map(drop), "update");
    is_not_found(traces.add_messages(&trace, text(), &AddOptions::new()).await.map(drop), "add");
    is_not_found(traces.get_message(&trace, &message).await.map(drop), "message");
    is_not_found(traces.update_message(&trace, &message, MessageUpdate::default()).await.map(drop), "update of a message");
    is_not_found(traces.get_messages(&trace, &MessagesQuery::default()).await.map(drop), "messages");
    is_not_found(traces.get_main_path(&trace, &PathQuery::default()).await.map(drop), "path");
    is_not_found(traces.get_goal_tree(&trace).await.map(drop), "goals");
    is_not_found(traces.update_goal_tree(&trace, GoalTree::default()).await, "replacement of the goals");
    is_not_found(traces.add_goal(&trace, NewGoal::new("x")).await.map(drop), "goal");
    is_not_found(traces.update_goal(&trace, "1", GoalUpdate::default()).await.map(drop), "update of a goal");
    is_not_found(traces.append_event(&trace, "x", serde_json::Map::new()).await.map(drop), "event");
    is_not_found(traces.get_events(&trace, 0, 10).await.map(drop), "events");
    is_not_found(traces.watch(&trace, 0).await.map(drop), "watch");
    assert_eq!(traces.get_trace(&trace).await.expect("readable"), None);
    assert_eq!(traces.list_traces(&TracesQuery::default()).await.expect("listed").total, 1);
}

pub(super) async fn update_changes_what_it_names(traces: Subject) {
    let trace = begin(&traces).await;
    let before = get(&traces, &trace).await;
    assert_eq!(traces.update_trace(&trace, TraceUpdate::new()).await.expect("nothing to do"), before);
    let update = TraceUpdate { task: Some("make coffee".to_owned()), ..TraceUpdate::new() }.with_duration_ms(20);
    let changed = traces.update_trace(&trace, update).await.expect("changed");
    let expected = Trace { task: Some("make coffee".to_owned()), total_duration_ms: 20, last_event_id: 2, ..before };
    assert_eq!(changed, expected);
    let again = traces.update_trace(&trace, TraceUpdate::new().with_duration_ms(5)).await.expect("changed");
    assert_eq!(again.total_duration_ms, 25, "durations add up");
    assert_eq!(get(&traces, &trace).await, again);
}

pub(super) async fn final_status_sets_the_time_of_completion_and_running_clears_it(traces: Subject) {
    let trace = begin(&traces).await;
    for (status, kind) in [
        (TraceStatus::Completed, kinds::TRACE_COMPLETED),
        (TraceStatus::Failed, kinds::TRACE_FAILED),
        (TraceStatus::Stopped, kinds::TRACE_STOPPED),
        (TraceStatus::Running, kinds::TRACE_RESUMED),
    ] {
        let changed = traces.update_trace(&trace, TraceUpdate::new().with_status(status)).await.expect("changed");
        assert_eq!((changed.status, changed.completed_at.is_some()), (status, status.is_final()));
        assert_eq!(event_kinds(&traces, &trace).await.last().map(String::as_str), Some(kind));
        let same = traces.update_trace(&trace, TraceUpdate::new().with_status(status)).await.expect("nothing to do");
        assert_eq!(same, changed, "the same status again is no change");
    }
    say(&traces, &trace, "a trace that ended can be continued").await;
}

pub(super) async fn traces_are_listed_newest_first_with_an_exact_total(traces: Subject) {
    let empty = traces.list_traces(&TracesQuery::default()).await.expect("listed");
    assert_eq!((empty.traces.len(), empty.total, empty.next), (0, 0, None));
    let mut created = Vec::new();
    for _ in 0..5 {
        created.insert(0, begin(&traces).await);
    }
    // Activity does not change the order.
    say(&traces, &created[4], "hi").await;
    let page = traces.list_traces(&TracesQuery::default()).await.expect("listed");
    let listed: Vec<TraceAddress> = page.traces.iter().map(|trace| trace.trace_id.clone()).collect();
    assert_eq!((listed, page.total, page.next), (created.clone(), 5, None));
    assert_eq!(page.traces[4], get(&traces, &created[4]).await);
    assert!(traces.delete_trace(&created[2]).await.expect("deleted"));
    assert_eq!(traces.list_traces(&TracesQuery::default()).await.expect("listed").total, 4);
}

pub(super) async fn lists_filter_by_status_and_mode(traces: Subject) {
    for (mode, status) in [
        (TraceMode::Agent, None),
        (TraceMode::Agent, Some(TraceStatus::Completed)),
        (TraceMode::Call, Some(TraceStatus::Completed)),
        (TraceMode::Call, Some(TraceStatus::Failed)),
        (TraceMode::Call, None),
    ] {
        let trace = traces.create_trace(NewTrace::new("x").with_mode(mode)).await.expect("created").trace_id;
        if let Some(status) = status {
            traces.update_trace(&trace, TraceUpdate::new().with_status(status)).await.expect("changed");
        }
    }
    for (status, mode, expected) in [
        (None, None, 5),
        (None, Some(TraceMode::Agent), 2),
        (None, Some(TraceMode::Call), 3),
        (Some(TraceStatus::Running), None, 2),
        (Some(TraceStatus::Completed), None, 2),
        (Some(TraceStatus::Failed), Some(TraceMode::Call), 1),
        (Some(TraceStatus::Failed), Some(TraceMode::Agent), 0),
        (Some(TraceStatus::Stopped), None, 0),
    ] {
        let page = traces.list_traces(&TracesQuery { status, mode, ..TracesQuery::default() }).await.expect("listed");
        assert_eq!((page.traces.len() as u64, page.total), (expected, expected), "{status:?} {mode:?}");
        let is_asked = |trace: &Trace| status.is_none_or(|status| trace.status == status) && mode.is_none_or(|mode| trace.mode == mode);
        assert!(page.traces.iter().all(is_asked), "{status:?} {mode:?}");
    }
}

pub(super) async fn list_continues_at_its_cursor(traces: Subject) {
    let mut created = Vec::new();
    for _ in 0..5 {
        created.insert(0, begin(&traces).await);
    }
    let (mut listed, mut cursor) = (Vec::new(), None);
    loop {
        let page = traces.list_traces(&TracesQuery { limit: 2, cursor, ..TracesQuery::default() }).await.expect("listed");
        assert_eq!(page.total, 5);
        assert!(page.traces.len() <= 2);
        listed.extend(page.traces.into_iter().map(|trace| trace.trace_id));
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(listed, created);
    for cursor in ["", "x", "00000000000000000000", "9223370236854775807/x", "é"] {
        let query = TracesQuery { cursor: Some(cursor.to_owned()), ..TracesQuery::default() };
        assert_eq!(traces.list_traces(&query).await.map(drop).expect_err(cursor).kind(), ErrorKind::InvalidArgument, "{cursor}");
    }
}

pub(super) async fn deleted_trace_is_gone_and_its_id_is_free(traces: Subject) {
    let new = || NewTrace::new("x").with_id(TraceId::new("abc").expect("legal"));
    let trace = traces.create_trace(new()).await.expect("created").trace_id;
    fill(&traces, &trace, 3).await;
    traces.add_goal(&trace, NewGoal::new("x")).await.expect("added");
    assert!(traces.delete_trace(&trace).await.expect("deleted"));
    assert_eq!(traces.get_trace(&trace).await.expect("readable"), None);
    assert!(!traces.delete_trace(&trace).await.expect("nothing left"));
    let again = traces.create_trace(new()).await.expect("the id is free");
    assert_eq!((again.total_messages, again.head_sequence, again.last_event_id), (0, 0, 1));
    assert!(all(&traces, &trace).await.is_empty());
    assert_eq!(traces.get_goal_tree(&trace).await.expect("readable"), GoalTree::default());
    assert_eq!(say(&traces, &trace, "hi").await, 1);
}

pub(super) async fn fields_of_the_store_cannot_be_set_by_callers(traces: Subject) {
    let text = r#"{"task":"x","uid":"mallory","status":"failed","total_messages":9,"head_sequence":9,"stale":true,"mine":1}"#;
    let trace = traces.create_trace(serde_json::from_str(text).expect("a trace")).await.expect("created");
    assert_eq!((trace.status, trace.total_messages, trace.head_sequence, trace.stale), (TraceStatus::Running, 0, 0, false));
    assert_ne!(trace.uid.as_deref(), Some("mallory"));
    let text = r#"{"role":"user","sequence":77,"trace_id":"other","created_at":"1970-01-01T00:00:00Z","mine":1}"#;
    let message = add(&traces, &trace.trace_id, vec![serde_json::from_str(text).expect("a message")]).await.messages.remove(0);
    assert_eq!((message.sequence, &message.trace_id), (1, &trace.trace_id));
    assert_ne!(message.created_at.as_deref(), Some("1970-01-01T00:00:00Z"));
    for other in [&trace.other, &message.other] {
        assert_eq!(other.keys().collect::<Vec<_>>(), ["mine"]);
    }
    let data = [("event_id", json!(77)), ("event", json!("x")), ("ts", json!("y")), ("mine", json!(1))];
    let data = data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let event_id = traces.append_event(&trace.trace_id, "noted", data).await.expect("appended");
    let event = events(&traces, &trace.trace_id).await.pop().expect("an event");
    assert_eq!((event.event_id, event.event.as_str(), event.data.len()), (event_id, "noted", 1));
}
