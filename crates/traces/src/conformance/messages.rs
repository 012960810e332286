//! Messages: added, read and changed.

use super::*;
use futures::future::join_all;
use serde_json::json;

pub(super) async fn sequences_begin_at_one_and_have_no_gaps(traces: Subject) {
    let trace = begin(&traces).await;
    assert_eq!(say(&traces, &trace, "one").await, 1);
    let added = add(&traces, &trace, vec![NewMessage::text("assistant", "two"), NewMessage::text("tool", "three")]).await;
    assert_eq!((sequences(&added.messages), added.head_sequence, added.repeated), (vec![2, 3], 3, false));
    let parents: Vec<Option<u64>> = all(&traces, &trace).await.iter().map(|message| message.parent_sequence).collect();
    assert_eq!(parents, [None, Some(1), Some(2)]);
    let now = get(&traces, &trace).await;
    assert_eq!((now.total_messages, now.last_sequence, now.head_sequence), (3, 3, 3));
    let none = add(&traces, &trace, Vec::new()).await;
    assert_eq!((none.messages.len(), none.head_sequence), (0, 3));
    assert_eq!(get(&traces, &trace).await, now, "adding nothing changes nothing");
}

pub(super) async fn message_keeps_its_content_and_unknown_fields(traces: Subject) {
    let trace = begin(&traces).await;
    let content = json(r#"{ "text": "é \u00e9 \"q\"", "tool_calls": [{"id": "c1", "n": 1.00, "big": 12345678901234567890123}] }"#);
    let mut new = NewMessage::new("a role of tomorrow", content.clone()).with_tool_call("c0").with_goal("2.1").with_usage(7, 0.25);
    new.other.insert("abort".to_owned(), json!({"why": null}));
    let added = add(&traces, &trace, vec![new]).await.messages.remove(0);
    assert_eq!(added.content.as_ref().map(Json::as_str), Some(content.as_str()));
    assert_eq!((added.role.as_str(), added.tool_call_id.as_deref()), ("a role of tomorrow", Some("c0")));
    assert_eq!((added.goal_id.as_deref(), added.tokens, added.cost), (Some("2.1"), Some(7), Some(0.25)));
    assert_eq!(added.other.get("abort"), Some(&json!({"why": null})));
    assert_eq!(all(&traces, &trace).await, [added]);
    let empty = NewMessage { role: "user".to_owned(), ..NewMessage::default() };
    assert_eq!(add(&traces, &trace, vec![empty]).await.messages[0].content, None);
}

pub(super) async fn message_is_found_by_its_id_and_sequence(traces: Subject) {
    let trace = begin(&traces).await;
    let own = NewMessage { message_id: Some("m é 1".to_owned()), ..NewMessage::text("user", "own") };
    let added = add(&traces, &trace, vec![NewMessage::text("user", "default"), own]).await.messages;
    assert_eq!(added[0].message_id, format!("{}-0001", trace.id()));
    assert_eq!(added[1].message_id, "m é 1");
    for message in &added {
        for reference in [MessageRef::Id(message.message_id.clone()), MessageRef::Sequence(message.sequence)] {
            assert_eq!(traces.get_message(&trace, &reference).await.expect("readable").as_ref(), Some(message), "{reference:?}");
        }
    }
    // The second message has an id of its own, so its default id names nothing.
    for unknown in [MessageRef::Sequence(0), MessageRef::Sequence(3), MessageRef::Id("m".to_owned())] {
        assert_eq!(traces.get_message(&trace, &unknown).await.expect("readable"), None, "{unknown:?}");
        let update = MessageUpdate { tokens: Some(1), ..MessageUpdate::default() };
        let refused = traces.update_message(&trace, &unknown, update).await.map(drop);
        assert_eq!(refused.expect_err("unknown").kind(), ErrorKind::NotFound, "{unknown:?}");
    }
    let default = MessageRef::Id(format!("{}-0002", trace.id()));
    assert_eq!(traces.get_message(&trace, &default).await.expect("readable"), None);
}

pub(super) async fn message_ids_are_unique(traces: Subject) {
    let trace = begin(&traces).await;
    let with_id = |id: &str| NewMessage { message_id: Some(id.to_owned()), ..NewMessage::text("user", "x") };
    add(&traces, &trace, vec![with_id("a")]).await;
    refuse(&traces, &trace, vec![with_id("b"), with_id("a")], &AddOptions::new(), ErrorKind::AlreadyExists).await;
    refuse(&traces, &trace, vec![with_id("b"), with_id("b")], &AddOptions::new(), ErrorKind::AlreadyExists).await;
    // An id that is the default one of another message would be ambiguous.
    let later = format!("{}-0009", trace.id());
    refuse(&traces, &trace, vec![with_id(&later)], &AddOptions::new(), ErrorKind::InvalidArgument).await;
    let own = format!("{}-0002", trace.id());
    assert_eq!(add(&traces, &trace, vec![with_id(&own)]).await.messages[0].message_id, own);
}

pub(super) async fn refused_messages_store_nothing(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 2).await;
    let good = || NewMessage::text("user", "good");
    let span = |from, to| SequenceRange { from, to };
    let bad: Vec<(&str, NewMessage)> = vec![
        ("an unknown parent", good().with_parent(9)),
        ("itself as the parent", good().with_parent(4)),
        ("an empty role", NewMessage::text("", "x")),
        ("a control character in a role", NewMessage::text("us\ner", "x")),
        ("a negative cost", good().with_usage(1, -0.5)),
        ("too many tokens", good().with_usage(u64::MAX, 0.0)),
        ("an empty goal", good().with_goal("")),
        ("a long goal", good().with_goal("x".repeat(256))),
        ("a goal with a control character", good().with_goal("a\u{1}b")),
        ("an empty tool call", good().with_tool_call("")),
        ("an empty message id", NewMessage { message_id: Some(String::new()), ..good() }),
        ("a message id with a slash", NewMessage { message_id: Some("a/b".to_owned()), ..good() }),
        ("a message id that names a directory", NewMessage { message_id: Some("..".to_owned()), ..good() }),
        ("a span beyond the head", good().with_summarizes(span(1, 9))),
        ("a span that ends before it begins", good().with_summarizes(span(2, 1))),
        ("a summary in a side branch", good().with_summarizes(span(1, 2)).with_branch_type("reflection")),
    ];
    for (what, message) in bad {
        let messages = vec![good(), message];
        let before = get(&traces, &trace).await;
        let refused = traces.add_messages(&trace, messages, &AddOptions::new()).await.map(drop);
        assert_eq!(refused.expect_err(what).kind(), ErrorKind::InvalidArgument, "{what}");
        assert_eq!(get(&traces, &trace).await, before, "{what}");
    }
    let many = (0..1_001).map(|_| good()).collect();
    refuse(&traces, &trace, many, &AddOptions::new(), ErrorKind::InvalidArgument).await;
    let key = |key: &str| AddOptions::new().with_idempotency_key(key);
    refuse(&traces, &trace, vec![good()], &key(""), ErrorKind::InvalidArgument).await;
    refuse(&traces, &trace, vec![good()], &key(&"x".repeat(256)), ErrorKind::InvalidArgument).await;
}

pub(super) async fn unexpected_head_is_a_conflict(traces: Subject) {
    let trace = begin(&traces).await;
    let text = |text: &str| vec![NewMessage::text("user", text)];
    let at = |head| AddOptions::new().with_expected_head(head);
    traces.add_messages(&trace, text("one"), &at(0)).await.expect("the trace is empty");
    refuse(&traces, &trace, text("two"), &at(0), ErrorKind::Conflict).await;
    refuse(&traces, &trace, text("two"), &at(2), ErrorKind::Conflict).await;
    traces.add_messages(&trace, text("two"), &at(1)).await.expect("the head is 1");
}

pub(super) async fn call_repeated_with_its_key_takes_effect_once(traces: Subject) {
    let trace = begin(&traces).await;
    let messages = || vec![NewMessage::text("user", "one"), NewMessage::text("user", "two").with_usage(3, 0.5)];
    let options = AddOptions::new().with_idempotency_key("k 1").with_expected_head(0);
    let first = traces.add_messages(&trace, messages(), &options).await.expect("added");
    say(&traces, &trace, "in between").await;
    let before = (get(&traces, &trace).await, events(&traces, &trace).await.len());
    let again = traces.add_messages(&trace, messages(), &options).await.expect("repeated");
    assert!(again.repeated && !first.repeated);
    assert_eq!((&again.messages, again.head_sequence), (&first.messages, first.head_sequence));
    assert_eq!((get(&traces, &trace).await, events(&traces, &trace).await.len()), before);
    let other = traces.add_messages(&trace, messages(), &AddOptions::new().with_idempotency_key("k 2")).await.expect("added");
    assert_eq!(sequences(&other.messages), [4, 5], "another key is another call");
}

pub(super) async fn key_used_for_other_messages_is_refused(traces: Subject) {
    let trace = begin(&traces).await;
    let options = AddOptions::new().with_idempotency_key("k");
    traces.add_messages(&trace, vec![NewMessage::text("user", "one")], &options).await.expect("added");
    for other in [vec![NewMessage::text("user", "two")], vec![NewMessage::text("tool", "one")], Vec::new()] {
        refuse(&traces, &trace, other, &options, ErrorKind::InvalidArgument).await;
    }
}

pub(super) async fn append_changes_the_trace_in_the_same_commit(traces: Subject) {
    let trace = begin(&traces).await;
    let end = |status| TraceUpdate::new().with_status(status);
    traces.update_trace(&trace, end(TraceStatus::Completed)).await.expect("changed");
    let mut update = end(TraceStatus::Running).with_current_goal("7").with_duration_ms(5);
    (update.task, update.run_config) = (Some("make coffee".to_owned()), Some(json(r#"{"model": "m"}"#)));
    let options = AddOptions::new().with_idempotency_key("k").with_update(update.clone());
    let messages = || vec![NewMessage::text("user", "go on")];
    let before = events(&traces, &trace).await.len();
    assert_eq!(traces.add_messages(&trace, messages(), &options).await.expect("added").head_sequence, 1);
    let now = get(&traces, &trace).await;
    assert_eq!((now.status, now.completed_at.as_deref(), now.head_sequence), (TraceStatus::Running, None, 1));
    assert_eq!((now.task.as_deref(), now.current_goal_id.as_deref(), now.total_duration_ms), (Some("make coffee"), Some("7"), 5));
    assert_eq!(now.run_config.as_ref().map(Json::as_str), Some(r#"{"model": "m"}"#));
    let told = event_kinds(&traces, &trace).await.split_off(before);
    assert_eq!(told, [kinds::MESSAGE_ADDED, kinds::TRACE_UPDATED, kinds::TRACE_RESUMED]);
    // A repeated call repeats nothing of it, and its key stands for the change too.
    let ended = traces.update_trace(&trace, end(TraceStatus::Failed)).await.expect("changed");
    assert!(traces.add_messages(&trace, messages(), &options).await.expect("repeated").repeated);
    assert_eq!(get(&traces, &trace).await, ended);
    for other in [AddOptions::new(), AddOptions::new().with_update(update.with_task("make tea"))] {
        refuse(&traces, &trace, messages(), &other.with_idempotency_key("k"), ErrorKind::InvalidArgument).await;
    }
    // What is refused changes neither.
    let options = AddOptions::new().with_update(end(TraceStatus::Running));
    refuse(&traces, &trace, vec![NewMessage::text("user", "x").with_parent(99)], &options, ErrorKind::InvalidArgument).await;
    let options = options.with_expected_head(7);
    refuse(&traces, &trace, messages(), &options, ErrorKind::Conflict).await;
}

pub(super) async fn change_that_no_append_can_make_is_refused(traces: Subject) {
    let trace = begin(&traces).await;
    say(&traces, &trace, "one").await;
    let messages = || vec![NewMessage::text("user", "two")];
    let of = |update| AddOptions::new().with_update(update);
    for update in [TraceUpdate::new().with_head(1), TraceUpdate::new().with_current_goal("a/b")] {
        refuse(&traces, &trace, messages(), &of(update), ErrorKind::InvalidArgument).await;
    }
    let ended = of(TraceUpdate::new().with_status(TraceStatus::Completed));
    refuse(&traces, &trace, Vec::new(), &ended, ErrorKind::InvalidArgument).await;
}

pub(super) async fn totals_are_the_sums_of_all_messages(traces: Subject) {
    let trace = begin(&traces).await;
    let message = |tokens, cost| NewMessage::text("assistant", "x").with_usage(tokens, cost);
    add(&traces, &trace, vec![message(10, 0.5), message(5, 0.25), NewMessage::text("user", "free")]).await;
    add(&traces, &trace, vec![message(1, 1.0).with_parent(1), message(2, 2.0).with_branch_type("reflection")]).await;
    let now = get(&traces, &trace).await;
    assert_eq!((now.total_messages, now.total_tokens, now.total_cost), (5, 18, 3.75));
}

pub(super) async fn changed_message_corrects_the_totals(traces: Subject) {
    let trace = begin(&traces).await;
    for goal in ["a", "b"] {
        traces.add_goal(&trace, NewGoal { id: Some(goal.to_owned()), ..NewGoal::new(goal) }).await.expect("added");
    }
    let added = add(&traces, &trace, vec![NewMessage::text("assistant", "x").with_usage(10, 0.5).with_goal("a")]).await.messages.remove(0);
    let reference = MessageRef::Id(added.message_id.clone());
    let update = MessageUpdate { tokens: Some(4), cost: Some(2.0), content: Some(json("\"y\"")), ..MessageUpdate::default() };
    let changed = traces.update_message(&trace, &reference, update.clone()).await.expect("changed");
    let expected = Message { tokens: Some(4), cost: Some(2.0), content: Some(json("\"y\"")), ..added };
    assert_eq!(changed, expected);
    assert_eq!(traces.get_message(&trace, &reference).await.expect("readable"), Some(expected.clone()));
    let now = get(&traces, &trace).await;
    assert_eq!((now.total_messages, now.total_tokens, now.total_cost), (1, 4, 2.0));
    let stats = async |goal: &str| {
        let tree = traces.get_goal_tree(&trace).await.expect("readable");
        let GoalStats { message_count, total_tokens, total_cost, .. } = tree.get(goal).expect("a goal").self_stats.clone();
        (message_count, total_tokens, total_cost)
    };
    assert_eq!((stats("a").await, stats("b").await), ((1, 4, 2.0), (0, 0, 0.0)));
    let moved = MessageUpdate { goal_id: Some("b".to_owned()), ..MessageUpdate::default() };
    traces.update_message(&trace, &MessageRef::Sequence(1), moved).await.expect("changed");
    assert_eq!((stats("a").await, stats("b").await), ((0, 0, 0.0), (1, 4, 2.0)));
    let count = events(&traces, &trace).await.len();
    traces.update_message(&trace, &reference, update).await.expect("nothing to do");
    assert_eq!(events(&traces, &trace).await.len(), count, "the same content again is no change");
    for (tokens, cost) in [(None, Some(-1.0)), (Some(u64::MAX), None)] {
        let refused = traces.update_message(&trace, &reference, MessageUpdate { tokens, cost, ..MessageUpdate::default() }).await.map(drop);
        assert_eq!(refused.expect_err("bad").kind(), ErrorKind::InvalidArgument);
    }
}

pub(super) async fn pages_of_messages_follow_each_other(traces: Subject) {
    let trace = begin(&traces).await;
    fill(&traces, &trace, 7).await;
    let page = async |since: Option<u64>, offset: u64, limit: usize| {
        let query = MessagesQuery { since_sequence: since, offset, limit, goal_id: None };
        let page = traces.get_messages(&trace, &query).await.expect("readable");
        (sequences(&page.messages), page.more)
    };
    assert_eq!(page(None, 0, 3).await, (vec![1, 2, 3], true));
    assert_eq!(page(Some(3), 0, 3).await, (vec![4, 5, 6], true));
    assert_eq!(page(Some(6), 0, 3).await, (vec![7], false));
    assert_eq!(page(None, 4, 3).await, (vec![5, 6, 7], false));
    assert_eq!(page(Some(2), 2, 2).await, (vec![5, 6], true));
    assert_eq!(page(Some(7), 0, 3).await, (vec![], false));
    assert_eq!(page(Some(u64::MAX), u64::MAX, 3).await, (vec![], false));
    assert_eq!(page(None, 0, usize::MAX).await.0.len(), 7);
    let query = MessagesQuery { limit: 0, ..MessagesQuery::default() };
    assert_eq!(traces.get_messages(&trace, &query).await.map(drop).expect_err("no limit").kind(), ErrorKind::InvalidArgument);
}

pub(super) async fn messages_of_a_goal_are_listed_in_order(traces: Subject) {
    let trace = begin(&traces).await;
    let goals = ["a", "ab", "a", "b", "a", "a", "ab"];
    add(&traces, &trace, goals.iter().map(|goal| NewMessage::text("user", goal).with_goal(*goal)).collect()).await;
    let page = async |goal: &str, since: Option<u64>, offset: u64, limit: usize| {
        let query = MessagesQuery { goal_id: Some(goal.to_owned()), since_sequence: since, offset, limit };
        let page = traces.get_messages(&trace, &query).await.expect("readable");
        (sequences(&page.messages), page.more)
    };
    assert_eq!(page("a", None, 0, 100).await, (vec![1, 3, 5, 6], false));
    assert_eq!(page("ab", None, 0, 100).await, (vec![2, 7], false));
    assert_eq!(page("a", None, 0, 2).await, (vec![1, 3], true));
    assert_eq!(page("a", Some(3), 0, 100).await, (vec![5, 6], false));
    assert_eq!(page("a", None, 3, 2).await, (vec![6], false));
    assert_eq!(page("a", Some(1), 1, 1).await, (vec![5], true));
    assert_eq!(page("c", None, 0, 100).await, (vec![], false));
    let moved = MessageUpdate { goal_id: Some("b".to_owned()), ..MessageUpdate::default() };
    traces.update_message(&trace, &MessageRef::Sequence(3), moved).await.expect("changed");
    assert_eq!(page("a", None, 0, 100).await, (vec![1, 5, 6], false));
    assert_eq!(page("b", None, 0, 100).await, (vec![3, 4], false));
}

pub(super) async fn concurrent_writers_get_unique_sequences_without_gaps(traces: Subject) {
    const WRITERS: u64 = 50;
    let trace = begin(&traces).await;
    let write = |writer: u64| {
        let (traces, trace) = (traces.clone(), trace.clone());
        tokio::spawn(async move {
            let messages = (0..2).map(|number| NewMessage::text("user", &format!("{writer} {number}")).with_usage(1, 0.5)).collect();
            add(&traces, &trace, messages).await
        })
    };
    let added = join_all((0..WRITERS).map(write)).await;
    let mut given = Vec::new();
    for added in added {
        let messages = added.expect("no writer panics").messages;
        assert_eq!(messages[0].sequence + 1, messages[1].sequence, "the messages of a call stay together");
        assert_eq!(messages[1].parent_sequence, Some(messages[0].sequence));
        given.extend(sequences(&messages));
    }
    given.sort_unstable();
    assert_eq!(given, (1..=2 * WRITERS).collect::<Vec<_>>());
    let now = get(&traces, &trace).await;
    assert_eq!((now.last_sequence, now.head_sequence, now.total_messages), (2 * WRITERS, 2 * WRITERS, 2 * WRITERS));
    assert_eq!((now.total_tokens, now.total_cost), (2 * WRITERS, WRITERS as f64));
    assert_eq!(path(&traces, &trace, None).await, (1..=2 * WRITERS).collect::<Vec<_>>());
    let ids: Vec<u64> = events(&traces, &trace).await.iter().map(|event| event.event_id).collect();
    assert_eq!(ids, (1..=2 * WRITERS + 1).collect::<Vec<_>>());
}

pub(super) async fn concurrent_rewinds_summaries_and_moves_of_the_head_leave_a_tree(traces: Subject) {
    const WRITERS: u64 = 50;
    let trace = begin(&traces).await;
    fill(&traces, &trace, 3).await;
    let write = |writer: u64| {
        let (traces, trace) = (traces.clone(), trace.clone());
        tokio::spawn(async move {
            let new = NewMessage::text("user", &writer.to_string()).with_usage(1, 0.5);
            let head = get(&traces, &trace).await.head_sequence;
            let new = match writer % 5 {
                0 => new,
                1 => new.with_parent(1),
                2 => new.with_branch_type("reflection"),
                // The head may move before the summary comes. Then the span is refused.
                3 => new.with_summarizes(SequenceRange { from: head, to: head }),
                _ => {
                    traces.update_trace(&trace, TraceUpdate::new().with_head(2)).await.expect("moved");
                    return 0;
                }
            };
            match traces.add_messages(&trace, vec![new], &AddOptions::new()).await {
                Ok(added) => added.messages.len() as u64,
                Err(error) => {
                    assert_eq!((error.kind(), writer % 5), (ErrorKind::InvalidArgument, 3), "{error}");
                    0
                }
            }
        })
    };
    let added: u64 = join_all((0..WRITERS).map(write)).await.into_iter().map(|added| added.expect("no writer panics")).sum();
    let (now, messages, events) = (get(&traces, &trace).await, all(&traces, &trace).await, events(&traces, &trace).await);
    assert_eq!(sequences(&messages), (1..=3 + added).collect::<Vec<_>>());
    assert_eq!((now.last_sequence, now.total_messages, now.total_tokens), (3 + added, 3 + added, added));
    // The path is what the parents say, and the head what the last event that moved it says.
    let mut chain = Vec::new();
    let mut next = Some(now.head_sequence).filter(|head| *head > 0);
    while let Some(sequence) = next {
        chain.insert(0, sequence);
        next = messages[sequence as usize - 1].parent_sequence;
        assert!(next.is_none_or(|parent| parent < sequence), "{messages:?}");
    }
    assert_eq!(path(&traces, &trace, None).await, chain);
    let head = events.iter().rev().find_map(|event| event.data.get("head_sequence")?.as_u64());
    assert_eq!(head, Some(now.head_sequence));
    assert_eq!(events.iter().map(|event| event.event_id).collect::<Vec<_>>(), (1..=events.len() as u64).collect::<Vec<_>>());
}

pub(super) async fn concurrent_repetitions_of_one_key_take_effect_once(traces: Subject) {
    let trace = begin(&traces).await;
    let write = |_| {
        let (traces, trace) = (traces.clone(), trace.clone());
        tokio::spawn(async move {
            let options = AddOptions::new().with_idempotency_key("k");
            traces.add_messages(&trace, vec![NewMessage::text("user", "once")], &options).await.expect("added")
        })
    };
    let added = join_all((0..8).map(write)).await;
    let added: Vec<Added> = added.into_iter().map(|added| added.expect("no writer panics")).collect();
    assert_eq!(added.iter().filter(|added| !added.repeated).count(), 1);
    assert!(added.iter().all(|other| other.messages == added[0].messages && sequences(&other.messages) == [1]));
    assert_eq!(get(&traces, &trace).await.total_messages, 1);
}
