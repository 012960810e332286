//! The routes that answer as agent hosts do.

use super::{Caller, encoded, fill};
use crate::serve::{Served, within};
use crate::tiers::spy::Spy;
use serde_json::{Value, json};
use std::sync::Arc;
use treehold::serve::{Access, ActsFor, Rights};

/// The inspector of agent hosts is a program of its own, which expects exactly these answers.
#[test]
fn host_routes_answer_as_agent_hosts_do() {
    let served = Served::with(|options| options.with_tokens(true).with_host_routes(Some("/agentrail".to_owned())));
    let host = Caller::new(&served, "default", "host", Rights::new(Access::Admin).with_acts_for(ActsFor::All));
    let of_ada = host.named("default", "ada");
    fill(&of_ada, "s");
    let run = |id: &str, event: Value| {
        let mut all = json!({"eventId": id, "occurredAt": format!("2026-01-01T00:00:0{id}Z"), "runId": "r"});
        all.as_object_mut().unwrap().extend(event.as_object().unwrap().clone());
        of_ada.ok("POST", "/v1/sessions/s/orchestration/events", json!({"event": all}));
    };
    run("1", json!({"type": "run_started", "initialTask": {"id": "k", "kind": "chat", "input": {}}}));
    run("2", json!({"type": "agent_spawned", "agent": {"id": "a", "role": "scout"}}));
    run("3", json!({"type": "agent_input_removed", "inputId": "i", "agentId": "a", "reason": "delivered"}));
    let text = |path: &str| host.send("GET", path, &Value::Null).text();
    let at = "/agentrail/__inspector";
    assert_eq!(text("/agentrail/health"), r#"{"status":"ok"}"#);
    assert_eq!(text(&format!("{at}/health")), r#"{"status":"ok"}"#);
    assert_eq!(text("/agentrail/ready"), r#"{"status":"ready","checks":[{"name":"session_store","status":"ok"}]}"#);
    let sessions = host.get(&format!("{at}/sessions"));
    let session = &sessions["sessions"][0];
    assert_eq!((&session["tenantId"], &session["sessionId"], &session["userId"]), (&json!("default"), &json!("s"), &json!("ada")));
    assert_eq!((&session["turns"], &session["tokens"], &session["status"]), (&json!(1), &json!(7), &json!("error")));
    assert!(session["lastActive"].as_str().unwrap().ends_with('Z'));
    let messages = host.get(&format!("{at}/sessions/s/messages"));
    assert_eq!(messages["messages"].as_array().unwrap().len(), 8);
    let trace = text(&format!("{at}/sessions/s/trace?tenantId=default"));
    let made = r#"{"id":"orchestration-2-2","timestamp":"2026-01-01T00:00:02Z","sequence":3,"source":"orchestration","event":{"type":"subagent_spawned","agent":{"id":"a","role":"scout","createdAt":"2026-01-01T00:00:02Z"}}}"#;
    assert!(trace.starts_with(r#"{"events":["#) && trace.contains(made), "{trace}");
    assert!(!trace.contains("agent_input_removed"), "{trace}");
    let orchestration = host.get(&format!("{at}/sessions/s/orchestration"));
    assert_eq!(orchestration["run"]["status"], "running", "{orchestration}");
    let mailbox = json!({"processedEventCount": 1, "closeRequested": null});
    assert_eq!((&orchestration["agents"][0]["role"], &orchestration["agents"][0]["mailbox"]), (&json!("scout"), &mailbox));
    assert_eq!(orchestration["events"].as_array().unwrap().len(), 4);
    // An unknown session is empty, as in a host.
    assert_eq!(text(&format!("{at}/sessions/none/trace")), r#"{"events":[]}"#);
    assert_eq!(text(&format!("{at}/sessions/s/messages?tenantId=other")), r#"{"messages":[]}"#);
    assert_eq!(text(&format!("{at}/sessions/none/orchestration")), r#"{"run":null,"agents":[],"events":[]}"#);
    let refused = host.send("GET", &format!("{at}/sessions/%00/trace"), &Value::Null);
    assert_eq!((refused.status, refused.header("content-type").as_deref()), (500, Some("application/json")));
    assert_eq!(refused.text(), r#"{"error":"the session id holds a control character; remove it"}"#);
    // Other users see their own sessions only, and nobody else anything.
    let bob = Caller::new(&served, "default", "bob", Rights::new(Access::Read));
    assert_eq!(bob.get(&format!("{at}/sessions"))["sessions"], json!([]));
    assert_eq!(bob.get(&format!("{at}/sessions/s/messages"))["messages"], json!([]));
    assert_eq!(bob.get("/v1/inspector/sessions")["sessions"], json!([]));
    assert_eq!(host.get("/v1/inspector/sessions")["sessions"].as_array().unwrap().len(), 1);
    host.named("default", "bob").open("a");
    let page = host.get("/v1/inspector/sessions?limit=1");
    let rest = host.get(&format!("/v1/inspector/sessions?limit=1&cursor={}", encoded(page["cursor"].as_str().unwrap())));
    assert_eq!((&page["sessions"][0]["sessionId"], &rest["sessions"][0]["sessionId"]), (&json!("a"), &json!("s")));
    assert_eq!(bob.get("/v1/inspector/sessions?limit=1")["sessions"][0]["sessionId"], "a");
    assert_eq!(host.get(&format!("{at}/sessions"))["sessions"][0]["sessionId"], "a", "the newest first");
    for wrong in ["?limit=0", "?limit=1001", "?cursor=%25", "?cursor=", "?unknown=1"] {
        assert_eq!(host.send("GET", &format!("/v1/inspector/sessions{wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }
    for path in ["/health", "/ready", "/__inspector/health", "/__inspector/sessions", "/__inspector/sessions/s/trace"] {
        assert_eq!(served.get(&format!("/agentrail{path}")).status, 401, "{path}");
    }
    assert_eq!(Served::start().get("/__inspector/health").status, 404, "they are not served by default");
}

/// The trace and the events of the orchestration are merged by time, however precisely each is written, then by sequence.
#[test]
fn host_routes_merge_the_trace_by_time_and_sequence() {
    let served = Served::with(|options| options.with_tokens(true).with_host_routes(Some("/agentrail".to_owned())));
    let ada = Caller::new(&served, "default", "ada", Rights::new(Access::Admin));
    ada.open("s");
    let envelopes = [
        ("late", "00:00:09.000Z", 1),
        ("early", "00:00:01.000Z", 2),
        ("ninth", "00:00:05.000Z", 9),
        ("first", "00:00:05.000Z", 1),
        ("after the run", "00:00:02.123Z", 3),
        ("of no time", "noon", 1),
    ];
    for (id, time, sequence) in envelopes {
        let time = if time == "noon" { time.to_owned() } else { format!("2026-01-01T{time}") };
        let envelope = json!({"id": id, "timestamp": time, "sequence": sequence, "source": "host", "event": {"type": "error"}});
        ada.ok("POST", "/v1/sessions/s/trace", json!({"envelope": envelope}));
    }
    // Their sequences follow those of the six envelopes: 6, 7 and so on.
    let events = [
        ("run", "00:00:02Z", json!({"type": "run_started", "initialTask": {"id": "k", "kind": "chat", "input": {}}})),
        ("spawned", "00:00:02.123456Z", json!({"type": "agent_spawned", "agent": {"id": "a", "role": "scout"}})),
        ("seventh", "00:00:05Z", json!({"type": "agent_status_changed", "agentId": "a", "status": "idle"})),
        ("closed", "00:00:06Z", json!({"type": "agent_closed", "close": {"id": "c", "agentId": "a"}})),
    ];
    for (id, time, event) in events {
        let mut all = json!({"eventId": id, "occurredAt": format!("2026-01-01T{time}"), "runId": "r"});
        all.as_object_mut().unwrap().extend(event.as_object().unwrap().clone());
        ada.ok("POST", "/v1/sessions/s/orchestration/events", json!({"event": all}));
    }
    let trace = ada.get("/agentrail/__inspector/sessions/s/trace?tenantId=default");
    let order: Vec<&str> = trace["events"].as_array().unwrap().iter().map(|envelope| envelope["id"].as_str().unwrap()).collect();
    let expected = [
        "early",
        "orchestration-run-0",
        "after the run",
        "orchestration-spawned-1",
        "first",
        "orchestration-seventh-2",
        "ninth",
        "orchestration-closed-3",
        "late",
        "of no time",
    ];
    assert_eq!(order, expected);
}

#[test]
fn host_route_of_readiness_names_the_failing_check() {
    let spy = Spy::default();
    let served = Served::on(Arc::new(spy.clone()), |options| options.with_host_routes(Some("/agentrail".to_owned())));
    let ready = || served.get("/agentrail/ready");
    assert_eq!(ready().status, 200);
    spy.fail(true);
    // The result of a probe is cached for a second.
    within(|| ready().status != 200);
    let answer = ready();
    assert_eq!((answer.status, answer.header("content-type").as_deref()), (503, Some("application/json")));
    let expected = r#"{"status":"not_ready","checks":[{"name":"session_store","status":"fail","error":"the store is down"}]}"#;
    assert_eq!(answer.text(), expected);
    spy.fail(false);
    within(|| ready().status == 200);
    assert_eq!(ready().text(), r#"{"status":"ready","checks":[{"name":"session_store","status":"ok"}]}"#);
}
