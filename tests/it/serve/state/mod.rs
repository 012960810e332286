//! The states of agents: each contract through the API, and every route against callers and input that it must refuse.
//!
//! The tables take their routes from the API description. A new route fails here until [`body`] has a valid body for it.

mod administration;
mod refusals;
mod sessions;
mod turns;
mod values;

use super::{Answer, Served};
use serde_json::{Value, json};
use treehold::serve::{Access, Rights};

/// A caller with a token.
struct Caller<'a> {
    served: &'a Served,
    token: String,
}

impl<'a> Caller<'a> {
    fn new(served: &'a Served, tenant: &str, user: &str, rights: Rights) -> Self {
        Self { served, token: served.token(tenant, user, rights) }
    }

    fn with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        let mut all = vec![("authorization", bearer.as_str())];
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            all.push(("content-type", "application/json"));
        }
        all.extend_from_slice(headers);
        self.served.send(method, path, &all, body)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
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

    /// Takes the turn of a session that is free.
    fn turn(&self, session: &str) -> Value {
        let answer = self.ok("POST", "/v1/turns:acquire", json!({"user": "ada", "session": session}));
        assert_eq!(answer.status, 200);
        answer.json()
    }
}

fn admin(served: &Served) -> Caller<'_> {
    Caller::new(served, "acme", "ada", Rights::new(Access::Admin))
}

/// A route of states, turns and administration.
struct Route {
    id: String,
    method: String,
    pattern: String,
    takes_json: bool,
}

impl Route {
    fn url(&self, user: &str, session: &str, key: &str) -> String {
        self.pattern.replace("{user}", user).replace("{session}", session).replace("{key}", key)
    }

    fn changes(&self) -> bool {
        !matches!(self.method.as_str(), "GET" | "HEAD")
    }

    fn is_of_admin(&self) -> bool {
        self.pattern.starts_with("/v1/admin/")
    }

    /// Returns whether the body names user and session.
    fn is_of_turns(&self) -> bool {
        self.pattern.starts_with("/v1/turns:")
    }
}

fn routes(served: &Served) -> Vec<Route> {
    let document = served.get("/openapi.json").json();
    let mut routes = Vec::new();
    for (pattern, methods) in document["paths"].as_object().unwrap() {
        if !["/v1/state", "/v1/turns:", "/v1/admin/"].iter().any(|route| pattern.starts_with(route)) || pattern == "/v1/stat" {
            continue;
        }
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            let takes_json = operation["requestBody"]["content"]["application/json"].is_object();
            routes.push(Route { id, method: method.to_uppercase(), pattern: pattern.clone(), takes_json });
        }
    }
    assert!(routes.len() >= 18, "{}", routes.len());
    routes
}

/// Returns a body that a route accepts.
fn body(id: &str, user: Option<&str>, session: &str) -> Value {
    match id {
        "putState" => json!({"context": [], "by": "intruder"}),
        "interruptState" => json!({"message": "stop", "source": "user"}),
        "acquireTurn" => json!({"user": user, "session": session, "wait_ms": 0, "owner": "test"}),
        "renewTurn" | "releaseTurn" => json!({"user": user, "session": session, "token": format!("1.{}", "a".repeat(32))}),
        "adminCompact" => json!({"keepLastMessages": 2}),
        "listStateUsers" | "listStateSessions" | "listStateKeys" | "deleteStateSession" | "exportState" | "getState" | "statState"
        | "deleteState" | "adminListSessions" | "adminListMessages" | "adminGetState" | "adminExport" | "adminAbort" | "adminUndo"
        | "adminRedo" => Value::Null,
        other => panic!("say here what the body of `{other}` is"),
    }
}

const STATE: &str = r#"{
  "session_id" : "s", "summary" : "secret summary", "cur_iter":1.0,
  "context" : [ {"id":"m1","name":"ada","role":"USER","content":[{"type":"text","text":"secret question"}],"timestamp":"2026-01-02 03:04:05.678"},
    {"id":"m2","name":"helper","role":"ASSISTANT","content":[{"type":"text","text":"secret answer"}],"mood":[ ]} ]
}"#;

/// Fills a session, so that every read finds something.
fn fill(caller: &Caller<'_>, user: &str, session: &str) {
    let at = |key: &str| format!("/v1/state/{user}/{session}/{key}");
    assert_eq!(caller.with("PUT", &at("agent_state"), &[], STATE.as_bytes()).status, 200);
    caller.ok("PUT", &at("k"), json!({"secret": "value"}));
    caller.ok("PUT", &at("notes?form=list"), json!(["secret one", 2]));
}
