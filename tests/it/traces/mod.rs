//! Traces over HTTP: the contract of the original protocol, beneath both of its paths, with real clients.
//!
//! The tables take their routes from the API description. A new route fails here until [`body`] has a valid body for it.

mod doors;
mod hostile;
mod keys;
#[cfg(all(feature = "remote", feature = "sqlite"))]
mod nat;
mod queries;
mod requirements;
mod runs;
mod sockets;
#[cfg(feature = "remote")]
mod story;
mod streams;

use crate::serve::{Answer, Served};
use serde_json::{Value, json};
use treehold::serve::{Access, Rights};

/// The paths that traces are served beneath.
const BASES: [&str; 2] = ["/v1/traces", "/api/traces"];

/// A caller with a token.
struct Caller<'a> {
    served: &'a Served,
    token: String,
}

impl<'a> Caller<'a> {
    fn new(served: &'a Served, tenant: &str, user: &str, rights: Rights) -> Self {
        Self { served, token: served.token(tenant, user, rights) }
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    fn with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let bearer = self.bearer();
        let mut all = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
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

    fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.send(method, path, &body);
        let (status, said) = (answer.status, answer.text());
        assert!(status < 300, "{method} {path} {body}: {status} {said}");
        serde_json::from_str(&said).unwrap_or(Value::Null)
    }

    /// Creates a trace.
    fn create(&self, id: &str) {
        self.ok("POST", "/api/traces", json!({"trace_id": id, "task": "secret task"}));
    }

    /// Appends texts of a user.
    fn say(&self, id: &str, texts: &[&str]) -> Value {
        let messages: Vec<Value> = texts.iter().map(|text| user(text)).collect();
        self.ok("POST", &format!("/api/traces/{id}/messages"), json!({"messages": messages}))
    }

    /// Creates a trace for which every read finds something.
    fn fill(&self, id: &str) {
        self.create(id);
        let answer = json!({"role": "assistant", "content": {"text": "secret answer", "tool_calls": []}, "tokens": 5, "cost": 0.25});
        self.ok("POST", &format!("/api/traces/{id}/messages"), json!({"messages": [user("secret question"), answer]}));
        self.ok("POST", &format!("/api/traces/{id}/goals"), json!({"id": "1", "description": "secret goal"}));
        self.ok("POST", &format!("/api/traces/{id}/events"), json!({"event": "note", "text": "secret note"}));
    }

    /// Returns everything of a trace.
    fn whole(&self, id: &str) -> Value {
        let of = |rest: &str| self.get(&format!("/api/traces/{id}{rest}"));
        json!([of(""), of("/messages"), of("/events"), self.get("/api/traces")])
    }
}

fn admin(served: &Served) -> Caller<'_> {
    Caller::new(served, "acme", "ada", Rights::new(Access::Admin))
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn sequences(page: &Value) -> Vec<u64> {
    page["messages"].as_array().unwrap().iter().map(|message| message["sequence"].as_u64().unwrap()).collect()
}

/// Returns a body that a route accepts.
fn body(id: &str) -> Value {
    match id {
        "createTrace" => json!({"task": "other", "mode": "agent", "agent_type": "helper"}),
        "updateTrace" => json!({"task": "intruder", "status": "completed", "add_duration_ms": 7, "current_goal_id": "1"}),
        "appendTraceMessages" => json!({"role": "user", "content": "intruder", "tokens": 1, "cost": 0.5, "goal_id": "1"}),
        "updateTraceMessage" => json!({"content": "intruder", "tokens": 3}),
        "replaceGoals" => json!({"mission": "intruder", "goals": [{"id": "7", "description": "intruder"}]}),
        "addGoal" => json!({"description": "intruder", "parent_id": "1"}),
        "updateGoal" => json!({"status": "completed", "summary": "intruder"}),
        "appendTraceEvent" => json!({"event": "note", "text": "intruder"}),
        "reflectTrace" => json!({"focus": "intruder", "after_sequence": 1, "wait_ms": 0}),
        "runTrace" => json!({"messages": [user("intruder")], "after_sequence": 1, "wait_ms": 0}),
        "deleteTrace" | "getGoals" | "getTrace" | "getTraceMessage" | "listTraceEvents" | "listTraceMessages" | "listTraces"
        | "stopTrace" | "watchTrace" => Value::Null,
        other => panic!("say here what the body of `{other}` is"),
    }
}

/// A route of traces.
struct Route {
    id: String,
    method: String,
    pattern: String,
    /// Whether the body is JSON.
    takes_json: bool,
    /// The status of success.
    status: u16,
}

impl Route {
    /// Returns the path beneath a base.
    fn url(&self, base: &str, trace: &str) -> String {
        let path = self.pattern.replacen("/v1/traces", base, 1).replace("{trace}", trace);
        path.replace("{message}", &format!("{trace}-0001")).replace("{goal}", "1")
    }

    fn changes(&self) -> bool {
        self.method != "GET"
    }

    fn names_trace(&self) -> bool {
        self.pattern.contains("{trace}")
    }

    /// Returns whether the route needs a runner.
    fn is_of_runs(&self) -> bool {
        matches!(self.id.as_str(), "reflectTrace" | "runTrace" | "stopTrace")
    }
}

fn routes(served: &Served) -> Vec<Route> {
    let document = served.get("/openapi.json").json();
    let mut routes = Vec::new();
    for (pattern, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap().iter().filter(|_| pattern.starts_with("/v1/traces")) {
            let status = operation["responses"].as_object().unwrap().keys().filter_map(|status| status.parse().ok()).max();
            routes.push(Route {
                id: operation["operationId"].as_str().unwrap().to_owned(),
                method: method.to_uppercase(),
                pattern: pattern.clone(),
                takes_json: operation["requestBody"]["content"]["application/json"].is_object(),
                status: status.unwrap(),
            });
        }
    }
    assert!(routes.len() >= 18, "{}", routes.len());
    routes
}
