//! The data plane: what the agents of a fleet share, in the forms that their clients read.

use super::{Answer, Served};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use treehold::MemoryStore;
use treehold::path::VfsPathBuf;
use treehold::serve::{Access, Rights};
use treehold::store::{NamespacesOptions, Store};

const AGENT: &str = "agentName=helper&namespace=prod";

/// A client of one agent.
struct Client<'s> {
    served: &'s Served,
    token: String,
    /// The agent as a query and as fields of a body.
    agent: (String, Value),
}

impl<'s> Client<'s> {
    fn new(served: &'s Served, tenant: &str, user: &str, agent: &str, namespace: &str) -> Self {
        let token = served.token(tenant, user, Rights::new(Access::Write));
        let query = format!("agentName={}&namespace={}", agent.replace('/', "%2F"), namespace.replace('/', "%2F"));
        Self { served, token, agent: (query, json!({"agentName": agent, "namespace": namespace})) }
    }

    fn helper(served: &'s Served) -> Self {
        Self::new(served, "acme", "ada", "helper", "prod")
    }

    fn get(&self, path: &str) -> Answer {
        let separator = if path.contains('?') { '&' } else { '?' };
        self.send("GET", &format!("{path}{separator}{}", self.agent.0), b"")
    }

    fn delete(&self, path: &str) -> Answer {
        let separator = if path.contains('?') { '&' } else { '?' };
        self.send("DELETE", &format!("{path}{separator}{}", self.agent.0), b"")
    }

    /// Sends a body with the agent in it.
    fn say(&self, method: &str, path: &str, mut body: Value) -> Answer {
        for (name, value) in self.agent.1.as_object().unwrap() {
            body[name] = value.clone();
        }
        self.send(method, path, body.to_string().as_bytes())
    }

    fn post(&self, path: &str, body: Value) -> Answer {
        self.say("POST", path, body)
    }

    fn put_item(&self, ns: &[&str], key: &str, value: Value, expected: Option<i64>) -> Answer {
        let mut body = json!({"namespaceSegments": ns, "key": key, "value": value});
        if let Some(expected) = expected {
            body["expectedVersion"] = json!(expected);
        }
        self.say("PUT", "/kv/item", body)
    }

    fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let headers = [("x-builder-internal-token", &*self.token), ("content-type", "application/json")];
        self.served.send(method, &format!("/api/v1/dp{path}"), &headers, body)
    }
}

/// A request for each route of the data plane: its id, method, path with a query, and body.
fn requests() -> Vec<(&'static str, &'static str, String, Value)> {
    let task = json!({"parentSessionId": "s1", "status": "RUNNING"});
    let lock = json!({"name": "l", "ownerToken": "none"});
    let message = json!({"key": "k", "payload": {"n": 1}});
    let get = |id, path: &str| (id, "GET", format!("/api/v1/dp{path}"), Value::Null);
    let post = |id, path: &str, body: &Value| (id, "POST", format!("/api/v1/dp{path}"), body.clone());
    vec![
        get("dpHealth", "/healthz"),
        ("dpPutItem", "PUT", "/api/v1/dp/kv/item".into(), json!({"ns": ["a"], "key": "k", "value": {"n": 1}})),
        get("dpGetItem", "/kv/item?ns=a&key=k"),
        get("dpSearchItems", "/kv/search?ns=a"),
        ("dpDeleteItem", "DELETE", "/api/v1/dp/kv/item?ns=a&key=k".into(), Value::Null),
        post("dpAcquireLock", "/locks/acquire", &lock),
        get("dpPeekLock", "/locks?name=l"),
        post("dpRenewLock", "/locks/renew", &lock),
        post("dpReleaseLock", "/locks/release", &lock),
        ("dpPutSnapshot", "PUT", "/api/v1/dp/snapshots/x".into(), json!("bytes")),
        get("dpGetSnapshot", "/snapshots/x"),
        ("dpStatSnapshot", "HEAD", "/api/v1/dp/snapshots/x".into(), Value::Null),
        post("dpSnapshotTarget", "/snapshots/x/upload-url", &json!({})),
        post("dpPushQueue", "/bus/queue/push", &message),
        get("dpPeekQueue", "/bus/queue/peek?key=k"),
        post("dpDrainQueue", "/bus/queue/drain", &message),
        post("dpDeleteQueue", "/bus/queue/delete", &message),
        post("dpAppendLog", "/bus/log/append", &message),
        get("dpReadLog", "/bus/log/read?key=k"),
        post("dpTrimLog", "/bus/log/trim", &message),
        post("dpRegisterTool", "/async-tools", &json!({"id": "i", "sessionId": "s1"})),
        get("dpStaleTools", "/async-tools/stale?sessionId=s1"),
        post("dpCompleteTool", "/async-tools/i/complete", &json!({"result": "r"})),
        post("dpFailTool", "/async-tools/i/fail", &json!({"error": "e"})),
        post("dpTimeOutTool", "/async-tools/i/timeout", &json!({})),
        ("dpPutTask", "PUT", "/api/v1/dp/tasks/t".into(), task.clone()),
        get("dpGetTask", "/tasks/t?parentSessionId=s1"),
        get("dpListTasks", "/tasks?parentSessionId=s1"),
        get("dpPendingTasks", "/tasks/pending-deliveries?parentSessionId=s1"),
        post("dpKeepTasks", "/tasks/heartbeat", &json!({"tasks": [{"parentSessionId": "s1", "taskId": "t"}]})),
        post("dpCancelTask", "/tasks/t/cancel", &task),
        post("dpDeliverTask", "/tasks/t/delivered", &task),
        ("dpDeleteTask", "DELETE", "/api/v1/dp/tasks/t?parentSessionId=s1".into(), Value::Null),
    ]
}

/// Sends a request with the agent in its query.
fn ask(served: &Served, headers: &[(&str, &str)], method: &str, path: &str, agent: &str, body: &Value) -> Answer {
    let separator = if path.contains('?') { '&' } else { '?' };
    let path = if agent.is_empty() { path.to_owned() } else { format!("{path}{separator}{agent}") };
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let mut headers = headers.to_vec();
    headers.push(("content-type", if path.contains("/snapshots/x?") { "application/octet-stream" } else { "application/json" }));
    served.send(method, &path, &headers, &body)
}

fn rows(served: &Served) -> usize {
    let namespaces = served.block_on(served.store.namespaces(NamespacesOptions::new())).unwrap().namespaces;
    namespaces.iter().filter(|namespace| namespace.components().any(|component| component == "agent-state")).count()
}

#[test]
fn requests_of_this_table_cover_every_route() {
    let served = Served::start();
    let described: Value = served.get("/openapi.json").json();
    let mut routes = BTreeSet::new();
    for (path, methods) in described["paths"].as_object().unwrap().iter().filter(|(path, _)| path.starts_with("/api/v1/dp/")) {
        for (method, operation) in methods.as_object().unwrap() {
            if let Some(id) = operation["operationId"].as_str() {
                routes.insert(format!("{id} {} {path}", method.to_uppercase()));
            }
        }
    }
    let asked: BTreeSet<String> = requests()
        .into_iter()
        .map(|(id, method, path, _)| {
            let path =
                path.split('?').next().unwrap().replace("/snapshots/x", "/snapshots/{id}").replace("/async-tools/i", "/async-tools/{id}");
            format!("{id} {method} {}", path.replace("/tasks/t", "/tasks/{id}"))
        })
        .collect();
    assert_eq!(routes, asked);
}

#[test]
fn every_route_asks_for_a_token_its_rights_and_an_agent() {
    let served = Served::closed();
    let bearer = |rights: Rights| format!("Bearer {}", served.token("acme", "ada", rights));
    let writer = bearer(Rights::new(Access::Write));
    let reader = bearer(Rights::new(Access::Read));
    let partial = bearer(Rights::new(Access::Admin).with_paths([VfsPathBuf::parse("/a").unwrap()]));
    let tied = bearer(Rights::new(Access::Admin).with_threads(["t".to_owned()]));
    for (id, method, path, body) in requests() {
        let send = |headers: &[(&str, &str)], agent: &str| ask(&served, headers, method, &path, agent, &body);
        for headers in
            [&[][..], &[("authorization", "Bearer none")], &[("x-builder-internal-token", "none")], &[("x-builder-internal-token", "")]]
        {
            assert_eq!(send(headers, AGENT).status, 401, "{id} {headers:?}");
        }
        for token in [&partial, &tied] {
            assert_eq!(send(&[("authorization", token)], AGENT).status, 403, "{id}");
        }
        let changes = !matches!(method, "GET" | "HEAD") && id != "dpSnapshotTarget";
        if changes {
            assert_eq!(send(&[("authorization", &reader)], AGENT).status, 403, "{id}");
        }
        if id != "dpHealth" {
            let long = format!("agentName={}", "a".repeat(300));
            for agent in ["", "agentName=", "agentName=%20", "namespace=prod", "agentName=helper&namespace=a%2Fb", "agentName=a%00b", &long]
            {
                assert_eq!(send(&[("authorization", &writer)], agent).status, 400, "{id} {agent:.40}");
            }
        }
    }
    assert_eq!(rows(&served), 0, "nothing was written");
    // A server without users has no owner for the data.
    let open = Served::start();
    let answer = ask(&open, &[], "GET", "/api/v1/dp/kv/item?key=k", AGENT, &Value::Null);
    assert!([400, 404].contains(&answer.status), "{}", answer.status);
}

/// Every kind of data is written for one agent. Other tenants, users, namespaces and agents find nothing, also where ids look alike.
#[test]
fn agents_of_others_find_nothing() {
    let served = Served::closed();
    let own = Client::helper(&served);
    let fill = |client: &Client<'_>| {
        assert_eq!(client.put_item(&["a"], "k", json!({"n": 1}), Some(0)).status, 200);
        assert_eq!(client.post("/locks/acquire", json!({"name": "l"})).status, 200);
        assert_eq!(client.post("/bus/queue/push", json!({"key": "k", "payload": {}})).status, 200);
        assert_eq!(client.post("/bus/log/append", json!({"key": "k", "payload": {}})).status, 200);
        let old = json!({"id": "i", "sessionId": "s1", "createdAt": "2020-01-01T00:00:00Z"});
        assert_eq!(client.post("/async-tools", old).status, 200);
        assert_eq!(client.say("PUT", "/tasks/t", json!({"parentSessionId": "s1", "status": "COMPLETED"})).status, 200);
        assert_eq!(client.send("PUT", &format!("/snapshots/x?{}", client.agent.0), b"bytes").status, 201);
    };
    fill(&own);
    let others = [
        ("globex", "ada", "helper", "prod"),
        ("acme", "bob", "helper", "prod"),
        ("acme", "ada", "scribe", "prod"),
        ("acme", "ada", "helper", "dev"),
        ("acme", "ada", "prod/helper", "default"),
        ("acme", "ada", "Helper", "prod"),
    ];
    for (tenant, user, agent, namespace) in others {
        let other = Client::new(&served, tenant, user, agent, namespace);
        let who = format!("{tenant} {user} {agent} {namespace}");
        assert_eq!(other.get("/kv/item?ns=a&key=k").status, 404, "{who}");
        assert_eq!(other.get("/kv/search").json()["items"], json!([]), "{who}");
        assert_eq!(other.delete("/kv/item?ns=a&key=k").status, 204, "{who}");
        assert_eq!(other.get("/locks?name=l").status, 404, "{who}");
        assert_eq!(other.get("/bus/queue/peek?key=k").json(), json!({"exists": false}), "{who}");
        assert_eq!(other.post("/bus/queue/drain", json!({"key": "k"})).json()["entries"], json!([]), "{who}");
        assert_eq!(other.get("/bus/log/read?key=k").json()["entries"], json!([]), "{who}");
        for path in ["/bus/queue/delete", "/bus/log/trim"] {
            assert_eq!(other.post(path, json!({"key": "k"})).status, 204, "{who}");
        }
        assert_eq!(other.get("/async-tools/stale?sessionId=s1").json()["records"], json!([]), "{who}");
        assert_eq!(other.post("/async-tools/i/complete", json!({"result": "r"})).status, 404, "{who}");
        assert_eq!(other.get("/tasks?parentSessionId=s1").json()["tasks"], json!([]), "{who}");
        for path in ["/tasks/t/cancel", "/tasks/t/delivered"] {
            assert_eq!(other.post(path, json!({"parentSessionId": "s1"})).status, 404, "{who}");
        }
        assert_eq!(other.delete("/tasks/t?parentSessionId=s1").status, 404, "{who}");
        assert_eq!(other.get("/snapshots/x").status, 404, "{who}");
        fill(&other);
    }
    assert_eq!(own.get("/kv/item?ns=a&key=k").json(), json!({"key": "k", "value": {"n": 1}, "version": 1, "nsPath": "a"}));
    assert_eq!(own.post("/bus/queue/drain", json!({"key": "k"})).json()["entries"].as_array().unwrap().len(), 1);
    assert_eq!(own.get("/bus/log/read?key=k").json()["entries"].as_array().unwrap().len(), 1);
    assert_eq!(own.get("/tasks/pending-deliveries?parentSessionId=s1").json()["tasks"].as_array().unwrap().len(), 1);
}

#[test]
fn items_have_the_forms_of_the_protocol() {
    let served = Served::closed();
    let client = Client::helper(&served);
    assert_eq!(client.get("/healthz").json(), json!({"status": "ok"}));
    assert_eq!(client.get("/kv/item?ns=a&ns=b&key=k").code(), "not_found");
    assert_eq!(client.put_item(&["a", "b"], "k", json!({"text": "hello"}), Some(0)).json(), json!({"version": 1}));
    let expected = json!({"key": "k", "value": {"text": "hello"}, "version": 1, "nsPath": "a\u{1f}b"});
    assert_eq!(client.get("/kv/item?ns=a&ns=b&key=k").json(), expected);
    for (stale, current) in [(0, 1), (2, 1)] {
        let answer = client.put_item(&["a", "b"], "k", json!({}), Some(stale));
        assert_eq!((answer.status, answer.json()), (409, json!({"error": "conflict", "currentVersion": current})));
    }
    let absent = client.put_item(&["a", "b"], "absent", json!({}), Some(3));
    assert_eq!((absent.status, absent.json()), (409, json!({"error": "conflict", "currentVersion": 0})));
    assert_eq!(client.put_item(&["a", "b"], "k", json!({}), Some(1)).json(), json!({"version": 2}));
    assert_eq!(client.put_item(&["a"], "top", Value::Null, None).json(), json!({"version": 1}), "no value is an empty object");
    assert_eq!(client.put_item(&["ab"], "other", json!({}), None).status, 200);

    let found = client.get("/kv/search?ns=a").json();
    let keys =
        |found: &Value| found["items"].as_array().unwrap().iter().map(|item| item["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(keys(&found), ["top", "k"], "{found}");
    assert_eq!(keys(&client.get("/kv/search?ns=a&exact=true").json()), ["top"]);
    assert_eq!(keys(&client.get("/kv/search?ns=a&limit=1&offset=1").json()), ["k"]);
    let first = client.get("/kv/search?limit=2").json();
    let cursor = first["next"].as_str().unwrap().replace('"', "%22").replace('{', "%7B").replace('}', "%7D");
    let second = client.get(&format!("/kv/search?limit=2&cursor={cursor}")).json();
    assert_eq!([keys(&first), keys(&second)].concat().len(), 3);
    assert_eq!(second["next"], Value::Null);
    for bad in ["limit=0", "limit=-1", "limit=1001", "offset=10001", "cursor=x", "ns="] {
        assert_eq!(client.get(&format!("/kv/search?{bad}")).code(), "invalid_argument", "{bad}");
    }
    assert_eq!(client.put_item(&["a"], "", json!({}), None).code(), "invalid_argument");
    assert_eq!(client.put_item(&["a"], "k", json!([1]), None).code(), "invalid_argument");
    assert_eq!(client.put_item(&["a"], "k", json!({}), Some(-1)).code(), "invalid_argument");
    let large = client.put_item(&["a"], "k", json!({"text": "x".repeat(1 << 20)}), None);
    assert_eq!((large.status, large.code().as_str()), (413, "too_large"));
    for _ in 0..2 {
        assert_eq!(client.delete("/kv/item?ns=a&ns=b&key=k").status, 204);
    }
    assert_eq!(client.get("/kv/item?ns=a&ns=b&key=k").status, 404);
}

#[test]
fn locks_have_the_forms_of_the_protocol() {
    let served = Served::closed();
    let client = Client::helper(&served);
    assert_eq!(client.get("/locks?name=turn%3Aa%2Fb").status, 404);
    let held = client.post("/locks/acquire", json!({"name": "turn:a/b", "ttlSeconds": 60, "holder": "node-1"}));
    assert_eq!(held.status, 200);
    let held = held.json();
    for field in ["ownerToken", "fencingToken", "expiresAt", "holder", "name"] {
        assert!(!held[field].is_null(), "{field} in {held}");
    }
    let refused = client.post("/locks/acquire", json!({"name": "turn:a/b"}));
    assert_eq!(refused.status, 409);
    let refused = refused.json();
    assert_eq!((&refused["error"], &refused["holder"]), (&json!("conflict"), &json!("node-1")));
    assert!(refused["expiresAt"].is_string());
    let shown = client.get("/locks?name=turn%3Aa%2Fb").json();
    assert_eq!(shown["fencingToken"], held["fencingToken"]);
    assert_eq!(shown["ownerToken"], Value::Null, "only the owner knows the token");
    let renewed = client.post("/locks/renew", json!({"name": "turn:a/b", "ownerToken": held["ownerToken"], "ttlSeconds": 120}));
    assert_eq!(renewed.status, 200);
    assert!(renewed.json()["expiresAt"].as_str().unwrap() > held["expiresAt"].as_str().unwrap());
    let stolen = client.post("/locks/renew", json!({"name": "turn:a/b", "ownerToken": "another"}));
    assert_eq!((stolen.status, stolen.json()), (409, json!({"error": "conflict"})));
    assert_eq!(client.post("/locks/release", json!({"name": "turn:a/b", "ownerToken": "another"})).status, 204);
    assert_eq!(client.get("/locks?name=turn%3Aa%2Fb").status, 200, "another token releases nothing");
    for _ in 0..2 {
        assert_eq!(client.post("/locks/release", json!({"name": "turn:a/b", "ownerToken": held["ownerToken"]})).status, 204);
    }
    let next = client.post("/locks/acquire", json!({"name": "turn:a/b"})).json();
    assert!(next["fencingToken"].as_u64() > held["fencingToken"].as_u64());
    assert_eq!(client.post("/locks/acquire", json!({"name": " "})).code(), "invalid_argument");
    assert_eq!(client.post("/locks/acquire", json!({"name": "l", "ttlSeconds": 100_000})).code(), "invalid_argument");
}

#[test]
fn bus_has_the_forms_of_the_protocol() {
    let served = Served::closed();
    let client = Client::helper(&served);
    let key = "agentscope:inbox:s1";
    let mut ids = Vec::new();
    for number in 0..3 {
        let pushed = client.post("/bus/queue/push", json!({"key": key, "payload": {"n": number}})).json();
        ids.push(pushed["entryId"].as_str().unwrap().to_owned());
    }
    assert_eq!(client.get("/bus/queue/peek?key=agentscope%3Ainbox%3As1").json(), json!({"exists": true}));
    let drained = client.post("/bus/queue/drain", json!({"key": key, "maxCount": 2})).json();
    let expected: Vec<Value> = (0..2).map(|number| json!({"entryId": ids[number], "payload": {"n": number}})).collect();
    assert_eq!(drained, json!({"entries": expected}));
    assert_eq!(client.post("/bus/queue/drain", json!({"key": key, "maxCount": 1_000_000})).json()["entries"].as_array().unwrap().len(), 1);
    assert_eq!(client.post("/bus/queue/drain", json!({"key": key})).json(), json!({"entries": []}));
    assert_eq!(client.post("/bus/queue/delete", json!({"key": key})).status, 204);

    let mut ids = Vec::new();
    for number in 0..5 {
        let appended = client.post("/bus/log/append", json!({"key": "log", "payload": {"n": number}, "maxLen": 0})).json();
        ids.push(appended["entryId"].as_str().unwrap().to_owned());
    }
    let read = client.get(&format!("/bus/log/read?key=log&since={}&maxCount=2", ids[1])).json();
    assert_eq!(read["entries"], json!([{"entryId": ids[2], "payload": {"n": 2}}, {"entryId": ids[3], "payload": {"n": 3}}]));
    assert_eq!(client.get("/bus/log/read?key=log").json()["entries"].as_array().unwrap().len(), 5);
    assert_eq!(client.get("/bus/log/read?key=log&since=x").code(), "invalid_argument");
    for number in 5..40 {
        assert_eq!(client.post("/bus/log/append", json!({"key": "log", "payload": {"n": number}, "maxLen": 8})).status, 200);
    }
    assert!(client.get("/bus/log/read?key=log").json()["entries"].as_array().unwrap().len() <= 9);
    assert_eq!(client.post("/bus/log/trim", json!({"key": "log"})).status, 204);
    assert_eq!(client.get("/bus/log/read?key=log").json(), json!({"entries": []}));
    let large = json!({"key": "k", "payload": {"text": "x".repeat(1 << 20)}});
    assert_eq!(client.post("/bus/queue/push", large).status, 413);
}

#[test]
fn tools_tasks_and_snapshots_have_the_forms_of_the_protocol() {
    let served = Served::closed();
    let client = Client::helper(&served);
    let run = json!({"id": "i1", "sessionId": "s1", "toolName": "grep", "toolCallId": "c1", "status": "RUNNING", "createdAt": "2020-01-01T00:00:00Z"});
    assert_eq!(client.post("/async-tools", run).json(), json!({"id": "i1"}));
    let stale = client.get("/async-tools/stale?sessionId=s1&ttlSeconds=60").json();
    let record = &stale["records"][0];
    for (field, value) in [("id", "i1"), ("sessionId", "s1"), ("toolName", "grep"), ("toolCallId", "c1"), ("status", "RUNNING")] {
        assert_eq!(record[field], value, "{record}");
    }
    assert_eq!(client.post("/async-tools/i1/timeout", json!({})).status, 204);
    assert_eq!(client.get("/async-tools/stale?sessionId=s1&ttlSeconds=60").json(), json!({"records": []}));
    for (path, status) in [("/async-tools/i1/complete", 204), ("/async-tools/i1/fail", 204), ("/async-tools/none/complete", 404)] {
        assert_eq!(client.post(path, json!({"result": "r"})).status, status, "{path}");
    }
    assert_eq!(client.post("/async-tools", json!({"id": "", "sessionId": "s1"})).status, 400);

    // The clients send every field, also those that are null.
    let sent = json!({
        "parentSessionId": "s1", "subAgentId": "scribe", "subSessionId": null, "status": "PENDING", "result": null, "errorMessage": null,
        "cancelRequested": false, "transportType": null, "remoteBaseUrl": null, "userId": "ada", "lastCheckedAt": "2026-11-23T09:00:00.123456789Z"
    });
    let task = client.say("PUT", "/tasks/t1", sent.clone()).json();
    for (field, value) in
        [("parentAgentId", json!("prod/helper")), ("taskId", json!("t1")), ("status", json!("PENDING")), ("terminal", json!(false))]
    {
        assert_eq!(task[field], value, "{task}");
    }
    assert_eq!(client.post("/tasks/t1/cancel", json!({"parentSessionId": "s1"})).status, 204);
    let mut running = sent;
    running["status"] = json!("RUNNING");
    assert_eq!(client.say("PUT", "/tasks/t1", running.clone()).json()["cancelRequested"], true, "a request to cancel is not lost");
    assert_eq!(client.post("/tasks/heartbeat", json!({"tasks": [{"parentSessionId": "s1", "taskId": "t1"}]})).status, 204);
    assert_eq!(client.get("/tasks/pending-deliveries?parentSessionId=s1").json(), json!({"tasks": []}));
    running["status"] = json!("COMPLETED");
    assert_eq!(client.say("PUT", "/tasks/t1", running).json()["terminal"], true);
    assert_eq!(client.get("/tasks?parentSessionId=s1&status=COMPLETED").json()["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(client.get("/tasks?parentSessionId=s1&status=RUNNING").json()["tasks"], json!([]));
    assert_eq!(client.get("/tasks/pending-deliveries?parentSessionId=s1").json()["tasks"][0]["taskId"], "t1");
    for written in [true, false] {
        assert_eq!(client.post("/tasks/t1/delivered", json!({"parentSessionId": "s1"})).json(), json!({"written": written}));
    }
    assert!(client.get("/tasks/t1?parentSessionId=s1").json()["deliveredAt"].is_string());
    for status in [204, 404] {
        assert_eq!(client.delete("/tasks/t1?parentSessionId=s1").status, status);
    }
    assert_eq!(client.get("/tasks/t1").code(), "invalid_argument", "the session is missing");

    let at = format!("/snapshots/a%2Fb?{}", client.agent.0);
    assert_eq!((client.send("HEAD", &at, b"").status, client.send("GET", &at, b"").status), (404, 404));
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    let put = client.send("PUT", &at, &bytes);
    assert_eq!((put.status, put.json()), (201, json!({"sizeBytes": 5_000_000, "storageMode": "inline"})));
    assert_eq!(client.send("HEAD", &at, b"").status, 200);
    let got = client.send("GET", &at, b"");
    assert_eq!(got.header("content-type").as_deref(), Some("application/octet-stream"));
    assert!(got.bytes() == bytes);
    assert_eq!(client.post("/snapshots/a%2Fb/upload-url", json!({})).json(), json!({"mode": "inline"}));
    let large = client.send("PUT", &at, &vec![0; (32 << 20) + 1]);
    assert_eq!((large.status, large.code().as_str()), (413, "too_large"));
}

#[test]
fn internal_token_is_accepted_on_the_data_plane_only() {
    let served = Served::closed();
    let (ada, bob) = (served.token("acme", "ada", Rights::new(Access::Write)), served.token("acme", "bob", Rights::new(Access::Write)));
    let internal = |token: &str| served.send("GET", "/v1/ls?path=/", &[("x-builder-internal-token", token)], b"").status;
    assert_eq!(internal(&ada), 401, "other routes read `Authorization` only");
    let path = format!("/api/v1/dp/kv/search?{AGENT}");
    let send = |headers: &[(&str, &str)]| served.send("GET", &path, headers, b"").status;
    assert_eq!(send(&[("x-builder-internal-token", &ada)]), 200);
    assert_eq!(send(&[("authorization", &format!("Bearer {ada}"))]), 200);
    assert_eq!(send(&[("authorization", "Bearer none"), ("x-builder-internal-token", &ada)]), 401, "`Authorization` comes first");
    assert_eq!(send(&[("x-builder-internal-token", &ada), ("x-builder-internal-token", &bob)]), 400);
}

/// Two servers over one store: a lock has one holder, an entry one consumer, and an item one winner of a race.
#[test]
fn two_servers_share_one_data_plane() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let servers = [0, 1].map(|_| Served::on(store.clone(), |options| options.with_tokens(true)));
    let clients = servers.each_ref().map(Client::helper);
    for number in 0..40 {
        assert_eq!(clients[number % 2].post("/bus/queue/push", json!({"key": "q", "payload": {"n": number}})).status, 200);
    }
    let done = std::thread::scope(|scope| {
        let works = clients.each_ref().map(|client| {
            scope.spawn(move || {
                let mut drained = Vec::new();
                loop {
                    let entries = client.post("/bus/queue/drain", json!({"key": "q", "maxCount": 3})).json();
                    let entries = entries["entries"].as_array().unwrap().clone();
                    if entries.is_empty() {
                        break;
                    }
                    drained.extend(entries.iter().map(|entry| entry["payload"]["n"].as_u64().unwrap()));
                }
                let locked = client.post("/locks/acquire", json!({"name": "once"})).status == 200;
                let won = client.put_item(&["race"], "k", json!({}), Some(0)).status == 200;
                (drained, locked, won)
            })
        });
        works.map(|work| work.join().unwrap())
    });
    let mut all: Vec<u64> = done.iter().flat_map(|(drained, ..)| drained.clone()).collect();
    all.sort_unstable();
    assert_eq!(all, (0..40).collect::<Vec<_>>());
    assert_eq!(done.iter().filter(|(_, locked, _)| *locked).count(), 1);
    assert_eq!(done.iter().filter(|(.., won)| *won).count(), 1);
}
