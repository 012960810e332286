//! The routes of operators: compaction, undo, and the record of who acted.

use super::{STATE, admin, fill};
use crate::serve::Served;
use serde_json::{Value, json};
use std::sync::Arc;
use treehold::agent_state::undo::remember;
use treehold::agent_state::{AgentStates, Json, OperatorCompaction, SessionCompactor, StateSlot};
use treehold::{AuditLog, Scope};

/// Replaces all but the last messages by a summary that counts them.
#[derive(Debug)]
struct Counting;

#[async_trait::async_trait]
impl SessionCompactor for Counting {
    async fn compact(&self, state: &Json, how: &OperatorCompaction) -> treehold::Result<Option<Json>> {
        let mut state: Value = state.view()?;
        let kept = how.keep_messages.unwrap_or(1);
        let messages = state["context"].as_array_mut().unwrap();
        let Some(count) = messages.len().checked_sub(kept).filter(|count| *count > 0) else { return Ok(None) };
        messages.drain(..count);
        let before = if how.replace_summary { String::new() } else { state["summary"].as_str().unwrap().to_owned() };
        state["summary"] = json!(format!("{before}{count} messages"));
        Ok(Some(Json::of(&state)?))
    }
}

#[test]
fn operator_compacts_a_session_and_undoes_it() {
    let served = Served::with(|options| options.with_tokens(true).with_compactor(Arc::new(Counting)));
    let ada = admin(&served);
    let compact = |body: Value| ada.send("POST", "/v1/admin/sessions/s:compact", &body);
    assert_eq!(compact(Value::Null).code(), "not_found");
    fill(&ada, "ada", "s");
    let done = |after: usize, summary: usize| json!({"sessionId": "s", "messagesBefore": 2, "messagesAfter": after, "summaryLengthBefore": 14, "summaryLengthAfter": summary});
    assert_eq!(compact(json!({"keepLastMessages": 2})).json(), done(2, 14), "there is nothing to do");
    assert_eq!(compact(json!({"keepLastMessages": 1, "replaceSummary": true})).json(), done(1, 10));
    assert_eq!(ada.get("/v1/state/ada/s/agent_state")["summary"], "1 messages");
    let undone = ada.ok("POST", "/v1/admin/sessions/s:undo", Value::Null).json();
    assert_eq!(undone, json!({"sessionId": "s", "restored": true, "undoDepth": 0, "redoDepth": 1}));
    assert_eq!(ada.send("GET", "/v1/admin/sessions/s/state", &Value::Null).text(), STATE);
    assert_eq!(compact(Value::Null).json(), done(1, 24));
    let turn = ada.turn("s");
    assert_eq!(compact(Value::Null).status, 409, "a call of the session runs");
    ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": turn["token"]}));
    let without = Served::closed();
    fill(&admin(&without), "ada", "s");
    let refused = admin(&without).send("POST", "/v1/admin/sessions/s:compact", &Value::Null);
    assert_eq!((refused.status, refused.code().as_str()), (501, "unsupported"));
}

#[test]
fn administration_shows_a_session_and_records_its_operator() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "ada", "s");
    ada.ok("PUT", "/v1/state/ada/other/k", json!(1));
    // The token may come in the header of the consoles.
    let by_header = |method: &str, path: &str, more: &[(&str, &str)]| {
        served.send(method, path, &[&[("x-agentscope-admin-token", ada.token.as_str())], more].concat(), b"")
    };
    assert_eq!(by_header("GET", "/v1/admin/sessions", &[]).json(), json!(["other", "s"]));
    assert_eq!(by_header("GET", "/v1/state/ada", &[]).status, 401, "only routes of administration take that header");
    let wrong = served.send("GET", "/v1/admin/sessions", &[("x-agentscope-admin-token", "nonsense")], b"");
    assert_eq!((wrong.status, served.get("/v1/admin/sessions").status), (401, 401));
    let both = by_header("GET", "/v1/admin/sessions", &[("authorization", "Bearer nonsense")]);
    assert_eq!(both.status, 401, "`Authorization` takes precedence");
    let page = by_header("GET", "/v1/admin/sessions?limit=1&agent=default", &[]);
    let link = page.header("link").unwrap();
    assert_eq!(page.json(), json!(["other"]));
    let next = link.trim_start_matches('<').split('>').next().unwrap().to_owned();
    let rest = by_header("GET", &next, &[]);
    assert_eq!((rest.header("link"), rest.json()), (None, json!(["s"])));
    let message = |id: &str, role: &str, name: &str, timestamp: Value, text: &str| json!({"id": id, "role": role, "name": name, "timestamp": timestamp, "text": text});
    let messages = json!([
        message("m1", "USER", "ada", json!("2026-01-02 03:04:05.678"), "secret question"),
        message("m2", "ASSISTANT", "helper", Value::Null, "secret answer"),
    ]);
    assert_eq!(ada.get("/v1/admin/sessions/s/messages"), messages);
    assert_eq!(ada.send("GET", "/v1/admin/sessions/s/state", &Value::Null).text(), STATE);
    let export = ada.send("GET", "/v1/admin/sessions/s:export", &Value::Null);
    assert_eq!(export.header("content-disposition").as_deref(), Some("attachment; filename*=UTF-8''session-s.md"));
    assert!(export.text().contains("> secret answer"));
    for route in ["messages", "state"] {
        assert_eq!(ada.send("GET", &format!("/v1/admin/sessions/other/{route}"), &Value::Null).code(), "not_found");
    }
    let turn = ada.turn("s");
    let operator = [("x-agentscope-admin-operator", "grace"), ("content-type", "application/json")];
    let abort = by_header("POST", "/v1/admin/sessions/s:abort", &operator);
    assert_eq!((abort.status, abort.text().as_str()), (202, ""));
    let renewed = ada.ok("POST", "/v1/turns:renew", json!({"user": "ada", "session": "s", "token": turn["token"]})).json();
    assert_eq!(renewed["interrupt"]["source"], "user");
    let scope = Scope::new().with_tenant("acme").with_user("ada").with_thread("s");
    let calls = served.block_on(AuditLog::new(served.store.clone()).calls(&scope, None, None, 10)).unwrap().calls;
    let recorded: Vec<(&str, Option<&str>, &str)> =
        calls.iter().map(|call| (call.tool.as_str(), call.actor.as_deref(), call.outcome.as_str())).collect();
    assert_eq!(recorded, [("session.abort", Some("grace"), "ok")]);
    // A call that runs would replace what an undo restores.
    for action in ["undo", "redo"] {
        let busy = by_header("POST", &format!("/v1/admin/sessions/s:{action}"), &operator);
        assert_eq!((busy.status, busy.code().as_str()), (409, "unavailable"));
    }
    ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": turn["token"]}));
    let undone = by_header("POST", "/v1/admin/sessions/s:undo", &operator).json();
    assert_eq!(undone, json!({"sessionId": "s", "restored": false, "undoDepth": 0, "redoDepth": 0}));
    let states = AgentStates::new(served.store.clone()).for_agent("acme", "default").unwrap();
    let slot = StateSlot::new(Some("ada"), "s").unwrap();
    served.block_on(remember(&states, &slot, None)).unwrap();
    ada.ok("PUT", "/v1/state/ada/s/agent_state", json!({"context": []}));
    let undone = by_header("POST", "/v1/admin/sessions/s:undo", &operator).json();
    assert_eq!(undone, json!({"sessionId": "s", "restored": true, "undoDepth": 0, "redoDepth": 1}));
    assert_eq!(ada.send("GET", "/v1/admin/sessions/s/state", &Value::Null).text(), STATE);
    let redone = by_header("POST", "/v1/admin/sessions/s:redo", &operator).json();
    assert_eq!(redone, json!({"sessionId": "s", "restored": true, "undoDepth": 1, "redoDepth": 0}));
    assert_eq!(ada.get("/v1/state/ada/s/agent_state"), json!({"context": []}));
    for bad in ["", "..", &"x".repeat(256)] {
        let answer = by_header("GET", "/v1/admin/sessions", &[("x-agentscope-admin-operator", bad)]);
        assert_eq!(answer.code(), "invalid_argument", "{bad}");
    }
}
