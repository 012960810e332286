//! Answers of faulty and hostile servers: each is refused, and none is used in part.

use crate::support::{Reply, Scripted, address, made, message_json, trace_json};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_traces::{
    AddOptions, GoalUpdate, MessageRef, MessageUpdate, MessagesQuery, NewGoal, NewMessage, PathQuery, RemoteTraces, TraceAddress,
    TraceStore, TraceUpdate, TracesQuery,
};

type Call = for<'a> fn(&'a RemoteTraces, &'a TraceAddress) -> BoxFuture<'a, Result<()>>;

fn get(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move { traces.get_trace(&id).await.map(drop) })
}

fn update(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move { traces.update_trace(&id, TraceUpdate::new()).await.map(drop) })
}

fn list(traces: &RemoteTraces, _: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let traces = traces.clone();
    Box::pin(async move {
        let query = made(|value: &mut TracesQuery| (value.limit, value.cursor) = (2, Some("c".to_owned())));
        traces.list_traces(&query).await.map(drop)
    })
}

fn add(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move { traces.add_messages(&id, vec![NewMessage::text("user", "a"); 2], &AddOptions::new()).await.map(drop) })
}

fn message(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move { traces.get_message(&id, &MessageRef::Sequence(2)).await.map(drop) })
}

fn change_message(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move { traces.update_message(&id, &MessageRef::Id("m2".to_owned()), MessageUpdate::default()).await.map(drop) })
}

fn messages(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move {
        let query = made(|value: &mut MessagesQuery| (value.since_sequence, value.limit) = (Some(1), 2));
        traces.get_messages(&id, &query).await.map(drop)
    })
}

fn goal_messages(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move {
        let query = made(|value: &mut MessagesQuery| value.goal_id = Some("1".to_owned()));
        traces.get_messages(&id, &query).await.map(drop)
    })
}

fn path(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move {
        traces.get_main_path(&id, &made(|value: &mut PathQuery| (value.head_sequence, value.limit) = (Some(3), Some(2)))).await.map(drop)
    })
}

fn events(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move { traces.get_events(&id, 5, 2).await.map(drop) })
}

fn goal(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move { traces.update_goal(&id, "1", GoalUpdate::default()).await.map(drop) })
}

fn new_goal(traces: &RemoteTraces, id: &TraceAddress) -> BoxFuture<'static, Result<()>> {
    let (traces, id) = (traces.clone(), id.clone());
    Box::pin(async move { traces.add_goal(&id, made(|value: &mut NewGoal| value.id = Some("1".to_owned()))).await.map(drop) })
}

fn with(mut value: Value, key: &str, field: Value) -> Value {
    value[key] = field;
    value
}

async fn refusal(call: Call, answer: Reply) -> Error {
    let answer = parking_lot::Mutex::new(Some(answer));
    let network = Scripted::new(move |_| answer.lock().take().expect("one request"));
    let traces = RemoteTraces::at(network.peers(), crate::support::far()).expect("registered");
    call(&traces, &address("@far/x")).await.expect_err("a hostile answer")
}

#[tokio::test]
async fn answers_that_contradict_the_request_are_refused() {
    let page = |sequences: &[u64]| json!({"messages": sequences.iter().map(|sequence| message_json("x", *sequence)).collect::<Vec<_>>()});
    let event = |id: u64| json!({"event_id": id, "event": "e"});
    let cases: Vec<(Call, Value)> = vec![
        // Ids that do not match.
        (get, trace_json("y")),
        (get, trace_json("@far/x")),
        (get, trace_json("agent://evil.example/x")),
        (get, with(trace_json("x"), "trace_id", json!("../x"))),
        (get, with(trace_json("x"), "parent_trace_id", json!("a/b"))),
        (get, with(trace_json("x"), "head_sequence", json!(3))),
        (update, trace_json("y")),
        (message, message_json("y", 2)),
        (message, message_json("x", 1)),
        (change_message, message_json("x", 1)),
        (goal, json!({"id": "2"})),
        (new_goal, json!({"id": "2"})),
        // Lists.
        (list, json!({"traces": [trace_json("a"), trace_json("b"), trace_json("c")], "total": 3})),
        (list, json!({"traces": [trace_json("a"), trace_json("a")], "total": 2})),
        (list, json!({"traces": [trace_json("@far/a")], "total": 1})),
        (list, json!({"traces": [trace_json("a")], "total": 1, "next": "c"})),
        (list, json!({"traces": [], "total": 1, "next": "d"})),
        (list, json!({"traces": [trace_json("a")], "total": 1, "next": "x".repeat(5_000)})),
        // Messages that were added.
        (add, json!({"messages": [message_json("x", 1)], "head_sequence": 1})),
        (add, json!({"messages": [message_json("x", 1), message_json("x", 3)], "head_sequence": 3})),
        (add, json!({"messages": [message_json("x", 2), message_json("x", 1)], "head_sequence": 2})),
        (add, json!({"messages": [message_json("x", 1), message_json("y", 2)], "head_sequence": 2})),
        // Pages of messages.
        (messages, page(&[2, 3, 4])),
        (messages, page(&[1])),
        (messages, page(&[3, 2])),
        (messages, page(&[2, 2])),
        (messages, page(&[0])),
        (messages, json!({"messages": [message_json("y", 2)]})),
        (messages, json!({"messages": [], "more": true})),
        (messages, json!({"messages": [with(message_json("x", 2), "parent_sequence", json!(2))]})),
        (messages, json!({"messages": [with(message_json("x", 2), "parent_sequence", json!(0))]})),
        (goal_messages, page(&[2])),
        // Paths.
        (path, page(&[1, 2, 3])),
        (path, page(&[2])),
        (path, page(&[1, 3])),
        (path, page(&[])),
        (path, page(&[2, 3])),
        (path, with(page(&[2, 3]), "earlier", json!(3))),
        (path, with(page(&[2, 3]), "earlier", json!(2))),
        // Pages of events.
        (events, json!({"events": [event(6), event(7), event(8)], "more": true})),
        (events, json!({"events": [event(5)], "more": false})),
        (events, json!({"events": [event(7), event(6)], "more": false})),
        (events, json!({"events": [], "more": true})),
        // Other values.
        (get, json!([])),
        (get, with(trace_json("x"), "total_messages", json!(-1))),
        (messages, json!({"messages": {}})),
    ];
    for (call, answer) in cases {
        let shown = answer.to_string();
        let error = refusal(call, Reply::Json(200, answer)).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{shown}: {error}");
        assert!(!error.message().contains("evil"), "{error}");
    }
    let sound = refusal(path, Reply::Json(200, json!({"messages": [message_json("x", 3)], "earlier": 3}))).await;
    assert_eq!(sound.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn deep_and_large_json_is_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let content = trace_json("x").to_string().replace("\"make tea\"", &format!("null, \"run_config\": {deep}"));
    for text in [deep.clone(), content, format!("{{\"trace_id\": \"x\", \"other\": {deep}}}")] {
        let error = refusal(get, Reply::Text(200, "application/json", text)).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    let many = format!("{{\"trace_id\": \"x\", \"other\": [{}1]}}", "1,".repeat(2_000_000));
    assert_eq!(refusal(get, Reply::Text(200, "application/json", many)).await.kind(), ErrorKind::Corrupt);
    let long = format!("{{\"trace_id\": \"x\", \"other\": \"{}\"}}", "x".repeat(65 << 20));
    assert_eq!(refusal(get, Reply::Text(200, "application/json", long)).await.kind(), ErrorKind::TooLarge);
}

/// A page that is too large to be taken is asked for in halves. An owner whose every answer is too large is asked no more often than that.
#[tokio::test]
async fn pages_with_too_many_values_are_asked_for_in_halves() {
    let many = format!("[{}1]", "1,".repeat(300_000));
    let sound = Scripted::new(move |sent| {
        let of = |name: &str| -> Option<u64> {
            sent.path.split(['?', '&']).find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let (limit, since) = (of("limit").expect("a limit"), of("since_sequence").unwrap_or(0));
        let (first, last) = match of("head_sequence") {
            Some(head) => (head.saturating_sub(limit - 1).max(1), head),
            None => (since + 1, (since + limit).min(6)),
        };
        let message = |sequence: u64| message_json("x", sequence).to_string().replace("\"hi\"", &many);
        let messages: Vec<String> = (first..=last).map(message).collect();
        let earlier = if first > 1 && sent.path.contains("main_path") { format!(", \"earlier\": {}", first - 1) } else { String::new() };
        Reply::Text(200, "application/json", format!("{{\"messages\": [{}], \"more\": {}{earlier}}}", messages.join(","), last < 6))
    });
    let (traces, id) = (sound.traces(), address("@far/x"));
    let (mut read, mut more) = (Vec::new(), true);
    while more {
        let query = made(|value: &mut MessagesQuery| (value.since_sequence, value.limit) = (read.last().copied(), 8));
        let page = traces.get_messages(&id, &query).await.expect("readable in parts");
        read.extend(page.messages.iter().map(|message| message.sequence));
        more = page.more;
    }
    assert_eq!(read, (1..=6).collect::<Vec<_>>());
    let (mut path, mut end) = (Vec::new(), Some(6));
    while let Some(head) = end {
        let query = made(|value: &mut PathQuery| (value.head_sequence, value.limit) = (Some(head), Some(8)));
        let page = traces.get_main_path(&id, &query).await.expect("readable in parts");
        path.splice(0..0, page.messages.iter().map(|message| message.sequence));
        end = page.earlier;
    }
    assert_eq!(path, read);
    let endless = Scripted::new(|_| Reply::Text(200, "application/json", format!("{{\"messages\": [{}1]}}", "1,".repeat(1_000_001))));
    let query = made(|value: &mut MessagesQuery| value.limit = 1_000);
    assert_eq!(endless.traces().get_messages(&id, &query).await.expect_err("never").kind(), ErrorKind::Corrupt);
    assert_eq!(endless.take().len(), 10);
}

#[tokio::test]
async fn ids_that_no_path_can_contain_are_refused_before_anything_is_sent() {
    let traces = Scripted::unused().traces();
    let id = address("@far/x");
    for bad in ["", ".", ".."] {
        let by_id = MessageRef::Id(bad.to_owned());
        assert_eq!(traces.get_message(&id, &by_id).await.expect_err("refused").kind(), ErrorKind::InvalidArgument);
        assert_eq!(traces.update_goal(&id, bad, GoalUpdate::default()).await.expect_err("refused").kind(), ErrorKind::InvalidArgument);
    }
    let many = vec![NewMessage::text("user", "a"); 1_001];
    assert_eq!(traces.add_messages(&id, many, &AddOptions::new()).await.expect_err("refused").kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn ids_with_meaning_in_urls_stay_one_segment() {
    let network = Scripted::new(|_| Reply::Text(404, "text/plain", String::new()));
    let traces = network.traces();
    for (id, path) in [
        ("a?b#c", "/api/traces/a%3Fb%23c"),
        ("a%2Fb", "/api/traces/a%252Fb"),
        ("..%2f", "/api/traces/..%252f"),
        ("é\\", "/api/traces/%C3%A9%5C"),
        ("a b&c=d", "/api/traces/a%20b%26c%3Dd"),
    ] {
        traces.get_trace(&address(&format!("@far/{id}"))).await.expect("absent");
        assert_eq!(network.take()[0].path, path);
    }
}
