//! Ids that cross the border, idempotency keys and retries.

use crate::support::{Reply, Scripted, Sent, address, far, made, message_json, problem, trace_json};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold_core::error::ErrorKind;
use treehold_remote::{Failure, Method};
use treehold_traces::{
    AddOptions, ForeignTrace, Goal, GoalTree, GoalUpdate, Location, MessageRef, MessageUpdate, MessagesQuery, NewGoal, NewMessage,
    NewTrace, OtherFields, PathQuery, RemoteTraces, TraceStore, TraceUpdate, TracesQuery,
};

/// Answers every route about the trace `a b@x`.
fn answers(sent: &Sent) -> Reply {
    const ID: &str = "a b@x";
    let (path, query) = sent.path.split_once('?').unwrap_or((&sent.path, ""));
    let goal = json!({"id": "1", "description": "boil", "sub_trace_ids": ["sub", "@third/sub", "agent://cloud.example/mine"]});
    match (sent.method.as_str(), path) {
        ("POST", "/api/traces") => Reply::Json(201, trace_json(ID)),
        ("GET", "/api/traces") => Reply::Json(200, json!({"traces": [trace_json(ID)], "total": 1})),
        ("DELETE", _) => Reply::Text(204, "text/plain", String::new()),
        (_, "/api/traces/a%20b%40x") => {
            let mut trace = trace_json(ID);
            trace["parent_trace_id"] = "parent".into();
            trace["goal_tree"] = json!({"mission": "tea", "goals": [goal]});
            Reply::Json(200, trace)
        }
        ("GET" | "PUT", "/api/traces/a%20b%40x/goals") => Reply::Json(200, json!({"mission": "tea", "goals": [goal]})),
        ("POST", "/api/traces/a%20b%40x/goals") => Reply::Json(201, goal),
        ("PATCH", "/api/traces/a%20b%40x/goals/1") => Reply::Json(200, goal),
        ("POST", "/api/traces/a%20b%40x/messages") => {
            Reply::Json(200, json!({"message_id": "m1", "messages": [message_json(ID, 1)], "head_sequence": 1, "repeated": false}))
        }
        ("GET", "/api/traces/a%20b%40x/messages") if query.contains("main_path") => {
            Reply::Json(200, json!({"messages": [message_json(ID, 1), message_json(ID, 2)]}))
        }
        ("GET", "/api/traces/a%20b%40x/messages") => Reply::Json(200, json!({"messages": [message_json(ID, 1)], "more": true})),
        (_, "/api/traces/a%20b%40x/messages/m1") => Reply::Json(200, message_json(ID, 1)),
        ("GET", "/api/traces/a%20b%40x/events") => {
            let goal = json!({"event_id": 1, "event": "goal_added", "trace_id": ID, "goal": {"sub_trace_ids": ["sub"]}, "content": {"trace_id": "kept"}});
            Reply::Json(200, json!({"events": [goal], "more": false}))
        }
        ("POST", "/api/traces/a%20b%40x/events") => Reply::Json(201, json!({"event_id": 2})),
        (method, path) => panic!("no route {method} {path}"),
    }
}

#[tokio::test]
async fn every_operation_strips_ids_that_it_sends_and_qualifies_those_that_arrive() {
    let network = Scripted::new(answers);
    let cloud = Location::host("cloud.example").expect("a host");
    let traces = RemoteTraces::new(network.peers()).with_own_location(cloud.clone());
    let id = address("@far/a b@x");
    let messages = vec![NewMessage::text("user", "hi")];
    let created = traces.create_trace(NewTrace::new("tea").with_id(id.clone()).with_parent(address("mine"), None)).await.expect("created");
    assert_eq!((&created.trace_id, created.remote), (&id, true));
    let got = traces.get_trace(&id).await.expect("readable").expect("it exists");
    assert_eq!((got.parent_trace_id, got.other.get("goal_tree")), (Some(address("@far/parent")), None));
    assert_eq!(traces.update_trace(&id, TraceUpdate::new().with_head(1)).await.expect("updated").trace_id, id);
    let goals = traces.get_goal_tree(&id).await.expect("readable");
    assert_eq!(goals.goals[0].sub_trace_ids, [address("@far/sub"), address("@third/sub"), address("mine")]);
    traces.update_goal_tree(&id, goals.clone()).await.expect("replaced");
    assert_eq!(traces.add_goal(&id, NewGoal::new("boil")).await.expect("added").sub_trace_ids[0], address("@far/sub"));
    let update = made(|value: &mut GoalUpdate| value.add_sub_trace = Some(address("@far/sub")));
    assert_eq!(traces.update_goal(&id, "1", update).await.expect("updated").sub_trace_ids[2], address("mine"));
    assert_eq!(traces.add_messages(&id, messages, &AddOptions::new()).await.expect("added").messages[0].trace_id, id);
    let by_id = MessageRef::Id("m1".to_owned());
    assert_eq!(traces.get_message(&id, &by_id).await.expect("readable").expect("it exists").trace_id, id);
    assert_eq!(traces.update_message(&id, &by_id, MessageUpdate::default()).await.expect("updated").trace_id, id);
    assert_eq!(traces.get_messages(&id, &MessagesQuery::default()).await.expect("readable").messages[0].trace_id, id);
    assert_eq!(traces.get_main_path(&id, &PathQuery::default()).await.expect("readable").messages[1].trace_id, id);
    let data: OtherFields = json!({"sub_trace_id": "mine", "text": "mine"}).as_object().expect("an object").clone();
    assert_eq!(traces.append_event(&id, "sub_trace_started", data).await.expect("appended"), 2);
    let event = traces.get_events(&id, 0, 10).await.expect("readable").events.remove(0).data;
    assert_eq!((&event["trace_id"], &event["goal"]["sub_trace_ids"][0]), (&json!("@far/a b@x"), &json!("@far/sub")));
    assert_eq!(event["content"]["trace_id"], "kept", "contents are not ids");
    assert!(traces.delete_trace(&id).await.expect("deleted"));

    let sent = network.take();
    assert!(sent.iter().all(|sent| !sent.path.contains("far") && !sent.body.to_string().contains("@far")), "{sent:?}");
    assert_eq!((&sent[0].body["trace_id"], &sent[0].body["parent_trace_id"]), (&json!("a b@x"), &json!("agent://cloud.example/mine")));
    let replaced = &sent.iter().find(|sent| sent.method == Method::PUT).expect("replaced").body;
    assert_eq!(replaced["goals"][0]["sub_trace_ids"], json!(["sub", "@third/sub", "agent://cloud.example/mine"]));
    let event = &sent.iter().find(|sent| sent.body["event"] == "sub_trace_started").expect("appended").body;
    assert_eq!((&event["sub_trace_id"], &event["text"]), (&json!("agent://cloud.example/mine"), &json!("mine")));
    // Every request has the key of its place; every change has an idempotency key of its own.
    assert!(sent.iter().all(|sent| sent.header("authorization") == Some("Bearer s3cret")));
    let mut keys: Vec<&str> = sent.iter().filter_map(|sent| sent.header("idempotency-key")).collect();
    assert_eq!(keys.len(), sent.iter().filter(|sent| sent.method != Method::GET).count());
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 9);
}

#[tokio::test]
async fn store_of_one_place_completes_ids_and_lists_there() {
    let network = Scripted::new(answers);
    let traces = RemoteTraces::at(network.peers(), far()).expect("registered");
    assert_eq!(traces.get_trace(&address("a b@x")).await.expect("readable").expect("it exists").trace_id, address("@far/a b@x"));
    let page = traces.list_traces(&made(|value: &mut TracesQuery| value.limit = 500)).await.expect("listed");
    assert_eq!(page.traces[0].trace_id, address("@far/a b@x"));
    let sent = network.take();
    assert_eq!(sent[1].path, "/api/traces?limit=100");
    let error = traces.get_trace(&address("@other/x")).await.expect_err("another place");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let everywhere = network.traces();
    assert_eq!(everywhere.get_trace(&address("x")).await.expect_err("a local id").kind(), ErrorKind::InvalidArgument);
    assert_eq!(everywhere.create_trace(NewTrace::new("tea")).await.expect_err("no place").kind(), ErrorKind::InvalidArgument);
    assert_eq!(everywhere.list_traces(&TracesQuery::default()).await.expect_err("no place").kind(), ErrorKind::Unsupported);
    assert!(network.take().is_empty());
}

#[tokio::test]
async fn ids_of_this_place_are_not_sent_as_those_of_the_owner() {
    let network = Scripted::new(answers);
    let traces = network.traces();
    let id = address("@far/a b@x");
    traces.create_trace(NewTrace::new("tea").with_id(id.clone()).with_parent(address("mine"), None)).await.expect("created");
    assert_eq!(network.take()[0].body.get("parent_trace_id"), Some(&serde_json::Value::Null));
    let goal = made(|value: &mut Goal| (value.id, value.sub_trace_ids) = ("1".to_owned(), vec![address("mine")]));
    let tree = made(|value: &mut GoalTree| value.goals = vec![goal]);
    assert_eq!(traces.update_goal_tree(&id, tree).await.expect_err("no location").kind(), ErrorKind::InvalidArgument);
    let update = made(|value: &mut GoalUpdate| value.add_sub_trace = Some(address("mine")));
    assert_eq!(traces.update_goal(&id, "1", update).await.expect_err("no location").kind(), ErrorKind::InvalidArgument);
    assert!(network.take().is_empty());
    // An agent of this registry is sent by its host, which means the same server everywhere.
    let update = made(|value: &mut GoalUpdate| value.add_sub_trace = Some(address("@other/x")));
    traces.update_goal(&id, "1", update).await.expect("updated");
    assert_eq!(network.take()[0].body["add_sub_trace"], "agent://other.example:8000/x");
}

#[tokio::test(start_paused = true)]
async fn lost_answer_is_asked_for_again_with_the_same_key() {
    let attempts = AtomicUsize::new(0);
    let network = Scripted::new(move |sent| match attempts.fetch_add(1, Ordering::Relaxed) % 3 {
        0 => Reply::Lost(Failure::Broken),
        1 => problem(ErrorKind::Unavailable, "busy"),
        _ => answers(sent),
    });
    let traces = network.traces();
    let id = address("@far/a b@x");
    let options = AddOptions::new().with_idempotency_key("once");
    traces.add_messages(&id, vec![NewMessage::text("user", "hi")], &options).await.expect("added");
    let keys: Vec<_> = network.take().iter().map(|sent| sent.header("idempotency-key").map(str::to_owned)).collect();
    assert_eq!(keys, vec![Some("once".to_owned()); 3]);
    traces.append_event(&id, "noted", OtherFields::new()).await.expect("appended");
    let keys: Vec<_> = network.take().iter().map(|sent| sent.header("idempotency-key").map(str::to_owned)).collect();
    assert!(keys.len() == 3 && keys[0].is_some() && keys.windows(2).all(|pair| pair[0] == pair[1]), "{keys:?}");
}

#[tokio::test]
async fn only_an_absent_trace_is_none() {
    let id = address("@far/x");
    let get = async |reply: fn() -> Reply| {
        let network = Scripted::new(move |_| reply());
        network.traces().get_trace(&id).await
    };
    assert_eq!(get(|| problem(ErrorKind::NotFound, "no trace")).await.expect("absent"), None);
    assert_eq!(get(|| Reply::Text(404, "application/json", r#"{"detail": "Trace not found"}"#.to_owned())).await.expect("absent"), None);
    let error = get(|| problem(ErrorKind::PermissionDenied, "Cannot access other user's trace")).await.expect_err("another user's");
    assert!(std::error::Error::source(&error).is_some_and(|source| source.is::<ForeignTrace>()), "{error:?}");
    type Case = (fn() -> Reply, ErrorKind);
    let errors: [Case; 8] = [
        (|| Reply::Text(401, "text/plain", String::new()), ErrorKind::PermissionDenied),
        (|| Reply::Text(403, "text/plain", String::new()), ErrorKind::PermissionDenied),
        (|| Reply::Text(400, "text/plain", String::new()), ErrorKind::Unsupported),
        (|| Reply::Text(302, "text/plain", String::new()), ErrorKind::Unsupported),
        (|| Reply::Text(500, "text/plain", String::new()), ErrorKind::Internal),
        (|| Reply::Text(200, "text/html", "<html>".to_owned()), ErrorKind::Corrupt),
        (|| Reply::Text(200, "application/json", "null".to_owned()), ErrorKind::Corrupt),
        (
            || {
                Reply::Json(
                    404,
                    serde_json::to_value(treehold_core::wire::Problem::of_request(
                        treehold_core::wire::RequestFault::NoSuchRoute,
                        "no route",
                    ))
                    .expect("JSON"),
                )
            },
            ErrorKind::Unsupported,
        ),
    ];
    for (index, (reply, kind)) in errors.into_iter().enumerate() {
        let error = get(reply).await.expect_err("not absent");
        assert_eq!(error.kind(), kind, "{index}: {error}");
        assert!(!format!("{error:?} {error}").contains("s3cret"), "{error:?}");
    }
}
