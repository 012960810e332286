//! The sessions of agent hosts: each contract through the API, and every route against callers and input that it must refuse.
//!
//! The tables take their routes from the API description. A new route fails here until [`body`] has a valid body for it.

mod contents;
mod host_routes;
mod keys;
mod orchestration;
mod refusals;

use super::{Answer, Served};
use serde_json::{Value, json};
use treehold::serve::{Access, Rights};

/// A caller with a token, who may name another tenant and user.
struct Caller<'a> {
    served: &'a Served,
    token: String,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Caller<'a> {
    fn new(served: &'a Served, tenant: &str, user: &str, rights: Rights) -> Self {
        Self { served, token: served.token(tenant, user, rights), named: Vec::new() }
    }

    fn named(&self, tenant: &'a str, user: &'a str) -> Self {
        Self { served: self.served, token: self.token.clone(), named: vec![("treehold-tenant", tenant), ("treehold-user", user)] }
    }

    fn with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        let mut all = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
        all.extend(self.named.iter().copied());
        all.extend_from_slice(headers);
        self.served.send(method, path, &all, body)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = match body {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            body => body.to_string(),
        };
        self.with(method, path, &[], body.as_bytes())
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.send("GET", path, &Value::Null);
        assert_eq!(answer.status, 200, "{path}");
        answer.json()
    }

    fn ok(&self, method: &str, path: &str, body: Value) -> Answer {
        let answer = self.send(method, path, &body);
        assert!(answer.status < 300, "{method} {path} {body}: {}", answer.text());
        answer
    }

    fn open(&self, session: &str) {
        self.ok("POST", "/v1/sessions", json!({"agent_id": "helper", "session_id": session}));
    }
}

fn admin(served: &Served) -> Caller<'_> {
    Caller::new(served, "acme", "ada", Rights::new(Access::Admin))
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text, "timestamp": 1})
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Returns a body that a route accepts.
fn body(id: &str) -> Value {
    let event = json!({"eventId": "e1", "occurredAt": "t", "runId": "r", "type": "agent_closed", "close": {"id": "c", "agentId": "a"}});
    let mail = json!({"eventId": "m1", "agentId": "a", "occurredAt": "t", "type": "agent_close_requested"});
    let init = json!({"type": "init", "sessionId": "s", "tenantId": "acme", "userId": "ada", "agentId": "helper", "createdAt": 1});
    match id {
        "openSession" => json!({"agent_id": "helper", "session_id": "s"}),
        "changeSession" => json!({"title": "changed"}),
        "appendMessages" => json!({"messages": [user("intruder")], "usage": {"inputTokens": 1}}),
        "recordTurn" => json!({"usage": {"inputTokens": 1, "outputTokens": 1}}),
        "applyCompaction" => json!({"window": {"log": "x", "from": 0, "end": 0, "tokens": 0}, "count": 3, "summary": "short"}),
        "writeMemo" | "appendMemo" | "writeUserMemo" | "appendUserMemo" | "writeToolResult" => json!("text"),
        "appendTrace" => {
            json!({"envelope": {"id": "h-1-1", "timestamp": "t", "sequence": 1, "source": "host", "event": {"type": "error"}}})
        }
        "appendOrchestrationEvent" => json!({"event": event}),
        "putOrchestrationCheckpoint" => json!({"snapshot": {"runs": {}, "tasks": {}, "agents": {}, "waits": {}, "queuedInputs": []}}),
        "commitOrchestration" => json!({"events": [event], "mailbox_events": [{"agent": "a", "event": mail}]}),
        "appendMailboxEvent" => json!({"event": mail}),
        "putMailboxState" => json!({"state": {"processedEventCount": 1, "closeRequested": null}}),
        "putAgentHistory" => json!({"messages": [user("x")]}),
        "claimOrchestration" | "renewOrchestrationClaim" => json!({"holder": "h", "lease_seconds": 60}),
        "storeSkillLog" => json!({"skillName": "s", "task": "t", "input": "i", "systemPrompt": "p", "messages": [], "resultText": "r",
            "startedAt": 1, "finishedAt": 2}),
        "importSession" => json!({"files": {"session.jsonl": format!("{init}\n")}}),
        "deleteSession"
        | "releaseOrchestrationClaim"
        | "listSessions"
        | "getSession"
        | "listMessages"
        | "listTurns"
        | "planCompaction"
        | "getMemoryIndex"
        | "readMemo"
        | "readUserMemo"
        | "listToolResults"
        | "readToolResult"
        | "readTrace"
        | "listOrchestrationEvents"
        | "getOrchestrationCheckpoint"
        | "recoverOrchestration"
        | "listMailboxEvents"
        | "getMailboxState"
        | "getAgentHistory"
        | "exportSession"
        | "followSession"
        | "inspectSessions" => Value::Null,
        other => panic!("say here what the body of `{other}` is"),
    }
}

/// A route of sessions.
struct Route {
    id: String,
    method: String,
    pattern: String,
    /// Whether the body is JSON.
    takes_json: bool,
}

impl Route {
    fn url(&self, session: &str, agent: &str, call: &str) -> String {
        let name = if self.pattern.starts_with("/v1/user-memo") { "USER.md" } else { "NOTES.md" };
        self.pattern.replace("{session}", session).replace("{agent}", agent).replace("{tool_call}", call).replace("{name}", name)
    }

    fn changes(&self) -> bool {
        self.method != "GET"
    }
}

fn routes(served: &Served) -> Vec<Route> {
    let document = served.get("/openapi.json").json();
    let mut routes = Vec::new();
    for (pattern, methods) in document["paths"].as_object().unwrap() {
        if !["/v1/sessions", "/v1/user-memo", "/v1/inspector"].iter().any(|route| pattern.starts_with(route)) {
            continue;
        }
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            let takes_json = operation["requestBody"]["content"]["application/json"].is_object();
            routes.push(Route { id, method: method.to_uppercase(), pattern: pattern.clone(), takes_json });
        }
    }
    assert!(routes.len() > 35, "{}", routes.len());
    routes
}

/// Fills a session, so that every read finds something.
fn fill(caller: &Caller<'_>, session: &str) {
    caller.open(session);
    let at = |rest: &str| format!("/v1/sessions/{session}/{rest}");
    let messages: Vec<Value> = (0..8).map(|number| user(&format!("secret {number}"))).collect();
    caller.ok("POST", &at("messages"), json!({"messages": messages, "usage": {"inputTokens": 7}}));
    caller.ok("PUT", &at("memo/NOTES.md"), json!("secret notes"));
    caller.ok("PUT", &at("tool-results/call-1"), json!("secret result"));
    for (id, rest) in [
        ("appendTrace", "trace"),
        ("commitOrchestration", "orchestration/commit"),
        ("putOrchestrationCheckpoint", "orchestration/checkpoint"),
        ("putMailboxState", "orchestration/mailboxes/a/state"),
        ("putAgentHistory", "orchestration/histories/a"),
        ("storeSkillLog", "skill-logs"),
    ] {
        caller.ok(if id.starts_with("put") { "PUT" } else { "POST" }, &at(rest), body(id));
    }
}
