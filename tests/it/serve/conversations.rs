//! The sessions of agent hosts: each contract through the API, and every route against callers and input that it must refuse.
//!
//! The tables take their routes from the API description. A new route fails here until [`body`] has a valid body for it.

use super::{Answer, Served, within};
use crate::tiers::spy::Spy;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use treehold::serve::{Access, ActsFor, Rights};
use treehold::store::Store;
use treehold::{MemoryStore, VfsPathBuf};

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

#[test]
fn conversation_is_appended_read_and_listed() {
    let served = Served::closed();
    let ada = admin(&served);
    let created = ada.ok("POST", "/v1/sessions", json!({"agent_id": "helper", "session_id": "tea"}));
    assert_eq!(created.status, 201);
    assert_eq!(created.json(), json!({"sessionId": "tea", "sessionRef": "acme:tea"}));
    assert_eq!(ada.ok("POST", "/v1/sessions", json!({"agent_id": "other", "session_id": "tea"})).status, 200);
    let minted = ada.ok("POST", "/v1/sessions", json!({"agent_id": "helper"})).json();
    assert!(minted["sessionId"].as_str().is_some_and(|id| id.len() == 36), "{minted}");

    // The text of a message is kept, with its spaces and unknown fields.
    let text = r#"{"messages": [{"role":"user", "content":"Where is the tea?","timestamp":1.0,"mood":[ ]},
        {"role":"assistant","content":[{"type":"toolCall","id":"c","name":"find","arguments":{}}]},
        {"role":"toolResult","toolCallId":"c","content":[{"type":"text","text":"here"}]}], "usage": {"inputTokens": 10, "cost": {"total": 0.5}}}"#;
    let appended = ada.with("POST", "/v1/sessions/tea/messages", &[], text.as_bytes()).json();
    assert_eq!(appended, json!({"positions": {"start": 0, "end": 3}, "turn_index": 0}));
    let answer = ada.send("GET", "/v1/sessions/tea/messages", &Value::Null).text();
    assert!(answer.contains(r#"{"role":"user", "content":"Where is the tea?","timestamp":1.0,"mood":[ ]}"#), "{answer}");
    let messages = |query: &str| ada.get(&format!("/v1/sessions/tea/messages{query}"));
    assert_eq!(messages("?limit=1")["messages"][0]["role"], "toolResult");
    assert_eq!(messages("?budget_tokens=1")["messages"].as_array().unwrap().len(), 2, "a result keeps its call");
    assert_eq!(messages("?limit=all")["window"]["end"], 3);
    let page = messages("?from=1&limit=1");
    assert_eq!((&page["messages"][0]["role"], &page["next"]), (&json!("assistant"), &json!(2)));
    assert_eq!(messages("?from=2&limit=5").get("next"), None);
    for wrong in ["?limit=0", "?limit=1001", "?limit=x", "?full=true&limit=2", "?from=0&budget_tokens=1", "?from=-1", "?unknown=1"] {
        assert_eq!(ada.send("GET", &format!("/v1/sessions/tea/messages{wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }

    assert_eq!(
        ada.ok("POST", "/v1/sessions/tea/turns", json!({"usage": {"inputTokens": 2, "outputTokens": 1}})).json(),
        json!({"turn_index": 1})
    );
    let turns = ada.get("/v1/sessions/tea/turns");
    assert_eq!((&turns["turns"][0]["turnIndex"], &turns["turns"][1]["inputTokens"]), (&json!(0), &json!(2)), "{turns}");
    let first = ada.get("/v1/sessions/tea/turns?limit=1");
    let rest = ada.get(&format!("/v1/sessions/tea/turns?limit=1&cursor={}", first["cursor"]));
    assert_eq!(rest["turns"][0]["turnIndex"], 1, "{first} {rest}");

    let described = ada.send("GET", "/v1/sessions/tea", &Value::Null);
    let tag = described.header("etag").unwrap();
    let described = described.json();
    assert_eq!(described["lastContextUsage"], json!({"inputTokens": 2, "outputTokens": 1, "budgetUsedPct": 0}));
    assert_eq!((&described["agentId"], &described["title"]), (&json!("helper"), &Value::Null));
    assert_eq!(ada.with("GET", "/v1/sessions/tea", &[("if-none-match", &tag)], b"").status, 304);
    ada.ok("PATCH", "/v1/sessions/tea", json!({"title": "tea time"}));
    let changed = ada.with("GET", "/v1/sessions/tea", &[("if-none-match", &tag)], b"");
    assert_eq!((changed.status, &changed.json()["title"]), (200, &json!("tea time")));
    ada.ok("PATCH", "/v1/sessions/tea", json!({"title": null}));
    assert_eq!(ada.send("PATCH", "/v1/sessions/tea", &json!({})).code(), "invalid_argument", "an absent title is not `null`");

    let page = ada.get("/v1/sessions?limit=1");
    assert_eq!(page["sessions"][0]["sessionId"], "tea");
    let rest = ada.get(&format!("/v1/sessions?limit=1&cursor={}", encoded(page["cursor"].as_str().unwrap())));
    assert_eq!((&rest["sessions"][0]["sessionId"], rest.get("cursor")), (&minted["sessionId"], None));
    for _ in 0..2 {
        assert_eq!(ada.ok("DELETE", "/v1/sessions/tea", Value::Null).status, 204);
    }
    assert_eq!(ada.send("GET", "/v1/sessions/tea", &Value::Null).code(), "not_found");
}

/// The session stores the key, so the answer is known even if the server that made the append died.
#[test]
fn repeated_append_with_a_key_takes_effect_once() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    let append = |key: &str, text: &str| {
        let body = json!({"messages": [user(text)], "usage": {"inputTokens": 1}}).to_string();
        ada.with("POST", "/v1/sessions/s/messages", &[("idempotency-key", key)], body.as_bytes())
    };
    let first = append("k", "one");
    assert_eq!((first.header("idempotency-replayed"), first.header("idempotency-state").as_deref()), (None, Some("done")));
    let first = first.json();
    let again = append("k", "one");
    assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"));
    let left: u64 = again.header("idempotency-expires-in").unwrap().parse().unwrap();
    assert!((86_000..=86_400).contains(&left), "{left}");
    assert_eq!(again.json(), first);
    assert_eq!(append("k", "two").code(), "key_reused");
    assert_eq!(append("", "two").code(), "invalid_argument");
    assert_eq!(append("l", "two").json()["positions"], json!({"start": 1, "end": 2}));
    assert_eq!(ada.get("/v1/sessions/s/messages")["messages"].as_array().unwrap().len(), 2);
}

/// The routes whose key is kept with the session.
const KEYED: [&str; 6] =
    ["appendMessages", "recordTurn", "appendTrace", "appendOrchestrationEvent", "commitOrchestration", "appendMailboxEvent"];

/// The keys are rows of the session, so a server that is started on the same store knows them. They are known to every token of the user.
#[test]
fn keys_of_a_session_are_known_after_a_restart() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let start = || Served::on(store.clone(), |options| options.with_tokens(true));
    let send = |served: &Served, route: &Route, key: &str, body: &Value| {
        admin(served).with(&route.method, &route.url("s", "a", "c"), &[("idempotency-key", key)], body.to_string().as_bytes())
    };
    let served = start();
    fill(&admin(&served), "s");
    let routes: Vec<Route> = routes(&served).into_iter().filter(|route| KEYED.contains(&route.id.as_str())).collect();
    assert_eq!(routes.len(), KEYED.len());
    let mut first = Vec::new();
    for route in &routes {
        let answer = send(&served, route, &route.id, &body(&route.id));
        assert!(answer.status < 300 && answer.header("idempotency-replayed").is_none(), "{}: {}", route.id, answer.status);
        assert_eq!(answer.header("idempotency-state").as_deref(), Some("done"), "{}", route.id);
        first.push((answer.status, answer.text()));
    }
    served.stop().unwrap();
    let served = start();
    let before = admin(&served).get("/v1/sessions/s/export");
    for (route, first) in routes.iter().zip(&first) {
        let again = send(&served, route, &route.id, &body(&route.id));
        assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"), "{}", route.id);
        let left: u64 = again.header("idempotency-expires-in").unwrap().parse().unwrap();
        assert!((86_000..=86_400).contains(&left), "{}: {left}", route.id);
        assert_eq!((again.status, again.text()), *first, "{}", route.id);
        for other in &routes {
            if other.id != route.id {
                assert_eq!(send(&served, other, &route.id, &body(&other.id)).code(), "key_reused", "{} as {}", route.id, other.id);
            }
        }
        let refused = [&"k".repeat(256), ""].map(|key| send(&served, route, key, &body(&route.id)).code());
        assert_eq!(refused, ["invalid_argument", "invalid_argument"], "{}", route.id);
    }
    assert_eq!(admin(&served).get("/v1/sessions/s/export"), before, "nothing was written again");
    // The key belongs to the session, so that of another one is free.
    admin(&served).open("other");
    let turn = routes.iter().find(|route| route.id == "recordTurn").unwrap();
    let body = body("recordTurn").to_string();
    let answer = admin(&served).with("POST", &turn.url("other", "a", "c"), &[("idempotency-key", "recordTurn")], body.as_bytes());
    assert_eq!((answer.header("idempotency-replayed"), answer.json()), (None, json!({"turn_index": 0})));
}

/// Another holder waits until the lease is released or ends. The same holder can claim again, as after a restart.
#[test]
fn orchestration_is_claimed_by_one_holder_at_a_time() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    let at = "/v1/sessions/s/orchestration/claim";
    let claim = |holder: &str| ada.send("POST", at, &json!({"holder": holder}));
    let named = |method: &str, claim: &str, body: &str| ada.with(method, at, &[("treehold-claim", claim)], body.as_bytes());
    let of = |answer: Answer| {
        assert_eq!(answer.status, 200);
        answer.json()["claim"].as_str().unwrap().to_owned()
    };
    let first = of(claim("one"));
    let refused = claim("other");
    assert_eq!((refused.status, refused.header("retry-after").as_deref()), (503, Some("1")));
    let refused = refused.json();
    assert!(refused["code"] == "unavailable" && refused["may_have_effect"] != true, "{refused}");
    assert_eq!(named("PUT", &first, r#"{"holder": "one", "lease_seconds": 3600}"#).status, 204);
    let second = of(claim("one"));
    assert_ne!(first, second);
    assert_eq!(named("PUT", &first, r#"{"holder": "one"}"#).code(), "conflict");
    assert_eq!(named("DELETE", &first, "").status, 204, "it holds nothing any more");
    assert_eq!(claim("other").code(), "unavailable", "the release of an earlier claim releases nothing");
    assert_eq!(named("DELETE", &second, "").status, 204);
    let third = of(claim("other"));
    assert_eq!(claim("one").code(), "unavailable");
    for bad in ["", "x y", "g", "-1"] {
        assert_eq!(named("PUT", bad, r#"{"holder": "other"}"#).code(), "invalid_argument", "{bad}");
        assert_eq!(named("DELETE", bad, "").code(), "invalid_argument", "{bad}");
    }
    for (method, body) in [("PUT", json!({"holder": "other"})), ("DELETE", Value::Null)] {
        assert_eq!(ada.send(method, at, &body).code(), "invalid_argument", "{method} names no claim");
    }
    for wrong in [json!({}), json!({"holder": ""}), json!({"holder": "a\n"}), json!({"holder": "x".repeat(256)})] {
        assert_eq!(ada.send("POST", at, &wrong).code(), "invalid_argument", "{wrong}");
    }
    for seconds in [json!(0), json!(3_601), json!(-1), json!("30"), json!(1.5)] {
        let wrong = json!({"holder": "other", "lease_seconds": seconds});
        assert_eq!(ada.send("POST", at, &wrong).code(), "invalid_argument", "{wrong}");
        assert_eq!(named("PUT", &third, &wrong.to_string()).code(), "invalid_argument", "{wrong}");
    }
    // The claim of a deleted session is not one of the next session with its id.
    ada.ok("DELETE", "/v1/sessions/s", Value::Null);
    assert_eq!(claim("other").code(), "not_found");
    ada.open("s");
    assert_eq!(named("PUT", &third, r#"{"holder": "other"}"#).code(), "conflict");
    of(claim("one"));
}

/// Every write of an orchestration depends on the claim that it names, with and without a key.
#[test]
fn writes_under_a_replaced_claim_change_nothing() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "s");
    let claim =
        || ada.ok("POST", "/v1/sessions/s/orchestration/claim", json!({"holder": "h"})).json()["claim"].as_str().unwrap().to_owned();
    let (replaced, present) = (claim(), claim());
    let is_claim = |id: &str| id.ends_with("OrchestrationClaim") || id == "claimOrchestration";
    let routes = routes(&served);
    let writes: Vec<&Route> =
        routes.iter().filter(|route| route.changes() && route.pattern.contains("/orchestration/") && !is_claim(&route.id)).collect();
    assert!(writes.len() >= 6, "{}", writes.len());
    let before = ada.get("/v1/sessions/s/export");
    let send = |route: &Route, headers: &[(&str, &str)]| {
        ada.with(&route.method, &route.url("s", "a", "c"), headers, body(&route.id).to_string().as_bytes())
    };
    for route in &writes {
        assert_eq!(send(route, &[("treehold-claim", &replaced)]).code(), "conflict", "{}", route.id);
        let keyed = send(route, &[("treehold-claim", &replaced), ("idempotency-key", &route.id)]);
        assert_eq!((keyed.status, keyed.code().as_str()), (409, "conflict"), "{}", route.id);
        for bad in ["", "x y", "claim"] {
            assert_eq!(send(route, &[("treehold-claim", bad)]).code(), "invalid_argument", "{}: {bad}", route.id);
        }
        assert_eq!(ada.get("/v1/sessions/s/export"), before, "{}", route.id);
    }
    for route in &writes {
        assert_eq!(send(route, &[("treehold-claim", &present)]).status, 204, "{}", route.id);
        assert_eq!(send(route, &[]).status, 204, "{} depends on no claim", route.id);
    }
    let is_replayed = |route: &Route, claim: &str| {
        let answer = send(route, &[("treehold-claim", claim), ("idempotency-key", "once")]);
        (answer.status, answer.header("idempotency-replayed").is_some())
    };
    // A claim that is lost after a write does not hide that the write took effect.
    let event = writes.iter().find(|route| route.id == "appendOrchestrationEvent").unwrap();
    assert_eq!(is_replayed(event, &present), (204, false));
    claim();
    assert_eq!(is_replayed(event, &present), (204, true));
}

/// Regression: an agent whose id names no mailbox was accepted in an event, and the inspector failed from then on.
#[test]
fn agent_ids_that_name_no_mailbox_are_refused_in_every_write() {
    let served = Served::with(|options| options.with_tokens(true).with_host_routes(Some("/host".to_owned())));
    let host = Caller::new(&served, "default", "host", Rights::new(Access::Admin));
    host.open("o");
    let event = |agent: &str| json!({"eventId": "e", "occurredAt": "t", "runId": "r", "type": "agent_spawned", "agent": {"id": agent, "role": "scout"}});
    let agent =
        |id: &str| json!({"id": id, "runId": "r", "taskId": "k", "role": "scout", "status": "idle", "createdAt": "t", "updatedAt": "t"});
    let at = |rest: &str| format!("/v1/sessions/o/orchestration/{rest}");
    for bad in ["a/b\u{0}", "", "..", "_treehold"] {
        let writes = [
            ("POST", "events", json!({"event": event(bad)})),
            ("POST", "commit", json!({"events": [event(bad)]})),
            ("POST", "commit", json!({"checkpoint": {"agents": {"a": agent(bad)}}})),
            ("PUT", "checkpoint", json!({"snapshot": {"agents": {"a": agent(bad)}}})),
            (
                "POST",
                "mailboxes/a/events",
                json!({"event": {"eventId": "m", "agentId": bad, "occurredAt": "t", "type": "agent_close_requested"}}),
            ),
        ];
        for (method, rest, body) in writes {
            assert_eq!(host.send(method, &at(rest), &body).code(), "invalid_argument", "{rest} {body}");
        }
    }
    // The files of a host may have such an agent.
    let files = host.get("/v1/sessions/o/export");
    let mut files = files["files"].as_object().unwrap().clone();
    files.insert("orchestration/events.jsonl".to_owned(), json!(format!("{}\n{}\n", event("a/b\u{0}"), event("good"))));
    host.ok("DELETE", "/v1/sessions/o", Value::Null);
    host.ok("POST", "/v1/sessions/o/import", json!({"files": files}));
    let shown = host.get("/host/__inspector/sessions/o/orchestration");
    assert_eq!((shown["agents"].as_array().unwrap().len(), &shown["agents"][0]["id"]), (1, &json!("good")), "{shown}");
    assert_eq!(shown["events"].as_array().unwrap().len(), 2);
    assert_eq!(host.get(&at("state"))["snapshot"]["agents"].as_object().unwrap().len(), 1);
}

/// Other routes keep keys as the rest of the API does. A key for one user's session is not one for another's.
#[test]
fn key_of_a_change_for_one_user_is_refused_for_another() {
    let served = Served::closed();
    let host = Caller::new(&served, "acme", "host", Rights::new(Access::Write).with_acts_for(ActsFor::Tenant));
    let open = |user: &str| {
        let body = json!({"agent_id": "helper", "session_id": format!("of {user}")}).to_string();
        host.with("POST", "/v1/sessions", &[("treehold-user", user), ("idempotency-key", "k")], body.as_bytes())
    };
    assert_eq!(open("ada").status, 201);
    assert_eq!(open("ada").header("idempotency-replayed").as_deref(), Some("true"));
    assert_eq!(open("bob").code(), "key_reused");
}

#[test]
fn compaction_in_two_requests_replaces_the_planned_window_only() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "s");
    let plan = |query: &str| ada.get(&format!("/v1/sessions/s/compaction{query}"))["plan"].clone();
    assert_eq!(plan(""), Value::Null, "the window is below the trigger");
    let planned = plan("?force=true&compact_fraction=0.5");
    assert_eq!((&planned["count"], planned["messages"].as_array().unwrap().len()), (&json!(4), 4));
    assert_eq!(plan("?trigger_tokens=1")["count"], 4);
    ada.ok("POST", "/v1/sessions/s/messages", json!({"messages": [user("meanwhile")]}));
    let apply = |window: &Value, count: u64| {
        ada.send("POST", "/v1/sessions/s/compaction", &json!({"window": window, "count": count, "summary": "They spoke."}))
    };
    for count in [0, 9, 10] {
        assert_eq!(apply(&planned["window"], count).code(), "invalid_argument", "{count}");
    }
    let done = apply(&planned["window"], 4).json();
    assert_eq!((&done["archive_id"], &done["messages"]), (&json!("0001"), &json!(4)));
    assert_eq!(apply(&planned["window"], 4).code(), "conflict", "the window starts elsewhere now");
    let window = ada.get("/v1/sessions/s/messages?limit=all");
    assert_eq!(window["messages"].as_array().unwrap().len(), 6);
    assert_eq!(window["messages"][5]["content"], "meanwhile");
    assert_eq!(window["window"]["tokens"], done["tokens_after"]);
    assert_eq!(ada.get("/v1/sessions/s/messages?full=true")["messages"].as_array().unwrap().len(), 9);
    assert_eq!(ada.get("/v1/sessions/s/messages?archive=latest")["messages"].as_array().unwrap().len(), 4);
    assert_eq!(ada.get("/v1/sessions/s/messages?archive=0001&limit=1")["messages"][0]["content"], "secret 0");
    assert!(ada.send("GET", "/v1/sessions/s/memo/NOTES.md", &Value::Null).text().contains("They spoke."));
    // A plan for a session that was deleted and created again is not applied to the new one.
    let planned = plan("?force=true");
    ada.ok("DELETE", "/v1/sessions/s", Value::Null);
    fill(&ada, "s");
    assert_eq!(apply(&planned["window"], 4).code(), "conflict");
    for wrong in ["?compact_fraction=2", "?trigger_tokens=-1", "?force=maybe"] {
        assert_eq!(ada.send("GET", &format!("/v1/sessions/s/compaction{wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }
}

#[test]
fn documents_and_tool_results_are_texts_with_tags() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    for at in ["/v1/sessions/s/memo/TODO.md", "/v1/user-memo/USER.md"] {
        assert_eq!(ada.send("GET", at, &Value::Null).code(), "not_found");
        assert_eq!(ada.with("PUT", at, &[("if-none-match", "*")], b"one").status, 204);
        assert_eq!(ada.with("PUT", at, &[("if-none-match", "*")], b"one").status, 412);
        ada.ok("POST", at, json!(" two"));
        let read = ada.send("GET", at, &Value::Null);
        let tag = read.header("etag").unwrap();
        assert_eq!(read.text(), "one two");
        assert_eq!(ada.with("GET", at, &[("if-none-match", &tag)], b"").status, 304);
        assert_eq!(ada.with("PUT", at, &[("if-match", &tag)], b"three").status, 204);
        assert_eq!(ada.with("PUT", at, &[("if-match", &tag)], b"late").status, 412);
        assert_eq!(ada.with("PUT", at, &[], b"\xff").code(), "invalid_argument");
    }
    assert_eq!(ada.send("GET", "/v1/sessions/s/memo/USER.md", &Value::Null).code(), "invalid_argument");
    let index = ada.get("/v1/sessions/s/memory-index");
    let exists: Vec<bool> = index["documents"].as_array().unwrap().iter().map(|document| document["exists"].as_bool().unwrap()).collect();
    assert_eq!(exists, [true, false, true], "{index}");
    for id in ["a/b", "a%b", "é", "plain"] {
        let at = format!("/v1/sessions/s/tool-results/{}", encoded(id));
        ada.ok("PUT", &at, json!(id));
        assert_eq!(ada.send("GET", &at, &Value::Null).text(), id);
    }
    let (mut ids, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = ada.get(&format!("/v1/sessions/s/tool-results?limit=3{cursor}"));
        ids.extend(page["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()));
        let Some(next) = page.get("cursor") else { break };
        cursor = format!("&cursor={}", encoded(next.as_str().unwrap()));
    }
    ids.sort();
    assert_eq!(ids, ["a%b", "a/b", "plain", "é"]);
}

#[test]
fn runs_are_recorded_and_a_session_moves_as_files() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "s");
    let trace = ada.get("/v1/sessions/s/trace");
    assert_eq!(trace["entries"][0]["envelope"]["event"]["type"], "error");
    let position = trace["entries"][0]["position"].as_str().unwrap();
    assert_eq!(ada.get(&format!("/v1/sessions/s/trace?after={position}"))["entries"], json!([]));
    let delta = json!({"envelope": {"id": "1", "timestamp": "t", "sequence": 1, "source": "runtime", "event": {"type": "text_delta"}}});
    assert_eq!(ada.ok("POST", "/v1/sessions/s/trace", delta).json(), json!({"position": null}));
    assert_eq!(ada.get("/v1/sessions/s/orchestration/events?limit=1")["entries"][0]["event"]["eventId"], "e1");
    assert_eq!(ada.get("/v1/sessions/s/orchestration/mailboxes/a/events")["entries"][0]["event"]["eventId"], "m1");
    assert_eq!(ada.get("/v1/sessions/s/orchestration/mailboxes/a/state")["state"]["processedEventCount"], 1);
    assert_eq!(ada.get("/v1/sessions/s/orchestration/mailboxes/new/state")["state"]["processedEventCount"], 0);
    assert_eq!(ada.get("/v1/sessions/s/orchestration/histories/a")["messages"], json!([user("x")]));
    assert_eq!(ada.get("/v1/sessions/s/orchestration/checkpoint")["snapshot"]["queuedInputs"], json!([]));
    assert_eq!(ada.get("/v1/sessions/s/orchestration/state")["activeAgents"], json!([]));

    let files = ada.get("/v1/sessions/s/export");
    assert!(files["files"]["messages.jsonl"].as_str().unwrap().contains("secret 7"), "{files}");
    assert_eq!(ada.send("POST", "/v1/sessions/s/import", &files).code(), "already_exists");
    ada.ok("DELETE", "/v1/sessions/s", Value::Null);
    let report = ada.ok("POST", "/v1/sessions/s/import", files.clone());
    assert_eq!((report.status, &report.json()["messages"]), (201, &json!(8)));
    assert_eq!(ada.get("/v1/sessions/s/export"), files);
    assert_eq!(ada.send("POST", "/v1/sessions/other/import", &files).code(), "invalid_argument", "the files are those of another session");
    assert_eq!(ada.send("POST", "/v1/sessions/other/import", &json!({"files": {}})).code(), "invalid_argument", "it was status 500");
}

#[test]
fn no_route_reaches_the_session_of_another_user_or_tenant() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "s");
    let before = ada.get("/v1/sessions/s/export");
    let strangers =
        [("acme", "bob"), ("other", "ada")].map(|(tenant, user)| Caller::new(&served, tenant, user, Rights::new(Access::Admin)));
    for route in routes(&served) {
        for stranger in &strangers {
            let url = route.url("s", "a", "call-1");
            let answer = stranger.send(&route.method, &url, &body(&route.id));
            let (status, said) = (answer.status, answer.text());
            assert!(!said.contains("secret"), "{}: {status} {said}", route.id);
            let is_taken = matches!(route.id.as_str(), "openSession" | "importSession");
            if route.pattern.contains("{session}") && !matches!(route.id.as_str(), "deleteSession" | "importSession") {
                assert_eq!(status, 404, "{}: {said}", route.id);
            } else if is_taken && stranger.get("/v1/sessions")["sessions"] == json!([]) {
                // A tenant of its own may have a session of the same id, but its files name another tenant.
                assert!(said.contains("permission_denied") || said.contains("invalid_argument"), "{}: {said}", route.id);
            }
            assert_eq!(ada.get("/v1/sessions/s/export"), before, "{}", route.id);
        }
    }
}

#[test]
fn tokens_without_the_right_are_refused_on_every_route() {
    let served = Served::closed();
    fill(&admin(&served), "s");
    let reader = Caller::new(&served, "acme", "ada", Rights::new(Access::Read));
    let writer = Caller::new(&served, "acme", "ada", Rights::new(Access::Write));
    let partial = Rights::new(Access::Admin).with_paths([VfsPathBuf::parse("/memories").unwrap()]);
    let tied = Rights::new(Access::Admin).with_threads(["default".to_owned()]);
    let limited = [partial, tied].map(|rights| Caller::new(&served, "acme", "ada", rights));
    for route in routes(&served) {
        let (url, body) = (route.url("s", "a", "call-1"), body(&route.id));
        for caller in &limited {
            assert_eq!(caller.send(&route.method, &url, &body).code(), "permission_denied", "{}", route.id);
        }
        let answer = reader.send(&route.method, &url, &body);
        match route.changes() {
            true => assert_eq!(answer.code(), "permission_denied", "{}", route.id),
            // The user has no document yet.
            false => assert!(answer.status == 200 || route.id == "readUserMemo", "{}: {}", route.id, answer.text()),
        }
    }
    assert_eq!(writer.send("DELETE", "/v1/sessions/s", &Value::Null).code(), "permission_denied");
}

#[test]
fn callers_act_for_others_only_by_right() {
    let served = Served::closed();
    let rights = |acts_for| Rights::new(Access::Admin).with_acts_for(acts_for);
    let [own, tenant, all] = [ActsFor::Own, ActsFor::Tenant, ActsFor::All].map(|acts| Caller::new(&served, "acme", "ada", rights(acts)));
    for (caller, others) in [(&own, [true, false, false]), (&tenant, [true, true, false]), (&all, [true, true, true])] {
        for ((named, user), allowed) in [("acme", "ada"), ("acme", "bob"), ("other", "eve")].into_iter().zip(others) {
            let answer = caller.named(named, user).send("GET", "/v1/sessions", &Value::Null);
            let (status, said) = (answer.status, answer.text());
            assert_eq!(status, if allowed { 200 } else { 403 }, "{named} {user}: {said}");
        }
    }
    // A host knows a session by its tenant alone, so a named tenant without a user is every user of it.
    all.named("acme", "bob").open("of-bob");
    let of_tenant =
        |caller: &Caller<'_>, tenant: &str| caller.with("GET", "/v1/sessions/of-bob", &[("treehold-tenant", tenant)], b"").status;
    assert_eq!([of_tenant(&own, "acme"), of_tenant(&tenant, "acme"), of_tenant(&all, "acme")], [404, 200, 200]);
    assert_eq!([of_tenant(&tenant, "other"), of_tenant(&all, "other")], [403, 404]);
    assert_eq!(tenant.send("GET", "/v1/sessions/of-bob", &Value::Null).status, 404, "without the header it is the token's own user");
    // Ids that join to the same text are different users and sessions.
    for (named, user) in [("a:b", "c"), ("a", "b:c"), ("a%2Fb", "c"), ("%C3%A9", "u")] {
        let caller = all.named(named, user);
        assert_eq!(caller.get("/v1/sessions")["sessions"], json!([]), "{named} {user}");
        caller.open("c");
        assert_eq!(caller.get("/v1/sessions")["sessions"].as_array().unwrap().len(), 1);
    }
    assert_eq!(all.named("%C3%A9", "u").get("/v1/sessions/c")["tenantId"], "é");
    for bad in ["", "%00", "%ff", "%2E", "%2E%2E", "_treehold", &"x".repeat(256)] {
        assert_eq!(all.named("acme", bad).send("GET", "/v1/sessions", &Value::Null).code(), "invalid_argument", "{bad}");
        assert_eq!(all.named(bad, "ada").send("GET", "/v1/sessions", &Value::Null).code(), "invalid_argument", "{bad}");
    }
    // The headers apply to sessions only; other routes refuse them and say why.
    for path in ["/v1/ls", "/v1/fs/a", "/v1/store/namespaces", "/mcp", "/metrics"] {
        assert_eq!(all.named("other", "eve").send("GET", path, &Value::Null).code(), "invalid_argument", "{path}");
    }
    // A server without tokens, and the single secret of a server, allow all users.
    let open = Served::start();
    let headers = [("treehold-tenant", "t"), ("treehold-user", "u"), ("content-type", "application/json")];
    assert_eq!(open.send("POST", "/v1/sessions", &headers, br#"{"agent_id": "h", "session_id": "s"}"#).status, 201);
    assert_eq!(open.send("GET", "/v1/sessions/s", &headers, b"").json()["tenantId"], "t");
    assert_eq!(open.get("/v1/sessions/s").code(), "not_found", "it belongs to another user");
}

#[test]
fn ids_that_cannot_be_kept_are_refused_on_every_route() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "s");
    let long = "x".repeat(256);
    let refused = ["%2E", "%2E%2E", "%00", "a%0Ab", "%7F", "_treehold", &long];
    let unknown = ["a%2Fb", "a:b", "%25", "%252E", "...", "%20", &long[1..]];
    for route in routes(&served) {
        let send = |session: &str, agent: &str, call: &str| ada.send(&route.method, &route.url(session, agent, call), &body(&route.id));
        if route.pattern.contains("{session}") {
            for id in refused {
                assert_eq!(send(id, "a", "c").code(), "invalid_argument", "{} {id}", route.id);
            }
            for id in unknown {
                let answer = send(id, "a", "c");
                let (status, said) = (answer.status, answer.text());
                let is_made = matches!(route.id.as_str(), "deleteSession" | "importSession");
                assert!(status == 404 || is_made && status < 500, "{} {id}: {status} {said}", route.id);
            }
            let empty = send("", "a", "c").status;
            assert!([400, 404].contains(&empty), "{}: {empty}", route.id);
        }
        if route.pattern.contains("{agent}") {
            for id in refused {
                assert_eq!(send("s", id, "c").code(), "invalid_argument", "{} {id}", route.id);
            }
        }
        if route.pattern.contains("{tool_call}") {
            for id in ["%00", &"x".repeat(513)] {
                assert_eq!(send("s", "a", id).code(), "invalid_argument", "{} {id}", route.id);
            }
        }
    }
    for session in ["", ".", "..", "a\u{0}", "a\nb", &long] {
        assert_eq!(
            ada.send("POST", "/v1/sessions", &json!({"agent_id": "h", "session_id": session})).code(),
            "invalid_argument",
            "{session:?}"
        );
        assert_eq!(ada.send("POST", "/v1/sessions", &json!({"agent_id": session})).code(), "invalid_argument", "{session:?}");
    }
}

#[test]
fn bodies_of_a_wrong_shape_are_refused_on_every_route() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "s");
    let before = ada.get("/v1/sessions/s/export");
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for route in routes(&served).iter().filter(|route| route.takes_json) {
        let url = route.url("s", "a", "c");
        let mut bodies = vec!["[]".to_owned(), "7".to_owned(), "{".to_owned(), deep.clone(), r#"{"unknown": 1}"#.to_owned(), String::new()];
        // Each field with a value of another type, and with deep nesting.
        let valid = body(&route.id);
        for name in valid.as_object().unwrap().keys() {
            for wrong in [json!(true), json!([[7]]), Value::String("@deep".to_owned())] {
                let mut body = valid.clone();
                body[name] = wrong;
                bodies.push(body.to_string().replace("\"@deep\"", &deep));
            }
        }
        // Histories and logs of skills have lists of any values.
        bodies.retain(|body| !(["putAgentHistory", "storeSkillLog"].contains(&route.id.as_str()) && body.contains("[[7]]")));
        for body in bodies {
            let answer = ada.with(&route.method, &url, &[], body.as_bytes());
            // Fields that are optional may be missing.
            let is_valid = route.id == "commitOrchestration" && ["", "[]"].contains(&body.as_str());
            let (status, said) = (answer.status, answer.text());
            let start: String = body.chars().take(80).collect();
            assert!(is_valid || said.contains("invalid_argument"), "{} {start}: {status} {said}", route.id);
        }
        let text = ada.with(&route.method, &url, &[("content-type", "text/plain")], valid.to_string().as_bytes());
        assert!(text.status >= 400, "{}", route.id);
    }
    let message = |message: Value| ada.send("POST", "/v1/sessions/s/messages", &json!({"messages": [user("first"), message]}));
    for wrong in [
        json!({"role": "system", "content": "x"}),
        json!({"role": "user"}),
        json!({"role": "user", "content": 7}),
        json!({"role": "toolResult", "toolCallId": "unknown", "content": []}),
        json!({"role": "toolResult", "content": []}),
        json!({"role": "user", "content": [{"type": "toolCall", "id": "c"}]}),
    ] {
        assert_eq!(message(wrong.clone()).code(), "invalid_argument", "{wrong}");
    }
    assert_eq!(message(user(&"x".repeat(10 << 20))).code(), "too_large");
    assert_eq!(message(user(&"x".repeat(20 << 20))).code(), "too_large");
    let many: Vec<Value> = (0..1_001).map(|_| user("x")).collect();
    assert_eq!(ada.send("POST", "/v1/sessions/s/messages", &json!({"messages": many})).code(), "invalid_argument");
    assert_eq!(ada.send("PATCH", "/v1/sessions/s", &json!({"title": "x".repeat(5_000)})).code(), "too_large");
    let summary = json!({"window": {"log": "x", "from": 0, "end": 0, "tokens": 0}, "count": 1, "summary": "x".repeat((256 << 10) + 1)});
    assert_eq!(ada.send("POST", "/v1/sessions/s/compaction", &summary).code(), "too_large");
    assert_eq!(ada.get("/v1/sessions/s/export"), before, "nothing was written");
    assert_eq!(served.get("/livez").status, 200);
}

/// Reads server-sent events until one matches. Returns the last id before it or with it, and the matching data.
fn event(lines: &mut impl Iterator<Item = std::io::Result<String>>, kind: &str) -> (String, String) {
    let (mut id, mut data) = (String::new(), String::new());
    for line in lines {
        let line = line.unwrap();
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.to_owned();
        } else if let Some(text) = line.strip_prefix("data: ") {
            data = text.to_owned();
        } else if line.is_empty() && data.contains(kind) {
            return (id, data);
        }
    }
    panic!("the stream ended before `{kind}`");
}

#[test]
fn stream_of_a_session_reports_changes_and_resumes() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    let lines = |query: &str| {
        let answer = ada.with("GET", &format!("/v1/sessions/s/events{query}"), &[], b"");
        assert_eq!((answer.status, answer.header("content-type").as_deref()), (200, Some("text/event-stream")));
        let reader = answer.response.into_body().into_with_config().limit(u64::MAX).reader();
        BufReader::new(reader).lines()
    };
    let mut live = lines("");
    let (start, _) = event(&mut live, "{}");
    ada.ok("POST", "/v1/sessions/s/messages", json!({"messages": [user("one"), user("two")], "usage": {"inputTokens": 1}}));
    assert_eq!(event(&mut live, "messages").1, r#"{"kind":"messages","from":0,"end":2}"#);
    assert_eq!(event(&mut live, "turns").1, r#"{"kind":"turns","from":0,"end":1}"#);
    ada.ok("PUT", "/v1/sessions/s/memo/TODO.md", json!("tea"));
    assert!(event(&mut live, "memo").1.contains("TODO.md"));
    ada.ok("POST", "/v1/sessions/s/trace", body("appendTrace"));
    event(&mut live, "trace");
    ada.ok("POST", "/v1/sessions/s/orchestration/commit", body("commitOrchestration"));
    event(&mut live, "orchestration");
    ada.ok("PATCH", "/v1/sessions/s", json!({"title": "t"}));
    event(&mut live, "description");

    // A reader that was away is told of everything since, whatever it was.
    let mut resumed = lines(&format!("?after={start}"));
    for kind in ["{}", "messages", "turns", "trace", "orchestration", "memo"] {
        event(&mut resumed, kind);
    }
    ada.ok("DELETE", "/v1/sessions/s", Value::Null);
    event(&mut live, "deleted");
    assert!(live.all(|line| line.is_ok()), "the stream ends");
    assert_eq!(ada.send("GET", "/v1/sessions/s/events", &Value::Null).code(), "not_found");
    // The position is that of a session which no longer exists.
    ada.open("s");
    let mut other = lines(&format!("?after={start}"));
    let first: Vec<String> = other.by_ref().take(1).map(Result::unwrap).collect();
    assert_eq!(first, ["event: reset"]);
    for wrong in ["", "x", "a.b.c.d.e.f", "1.2.3"] {
        assert_eq!(ada.send("GET", &format!("/v1/sessions/s/events?after={wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }
}

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

/// Without a limit, the newest 50 messages are read, oldest first.
#[test]
fn messages_without_a_limit_are_the_newest_fifty() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.open("s");
    let messages: Vec<Value> = (0..60).map(|number| user(&format!("message {number}"))).collect();
    ada.ok("POST", "/v1/sessions/s/messages", json!({"messages": messages}));
    assert_eq!(ada.get("/v1/sessions/s/messages")["messages"], json!(messages[10..]));
    assert_eq!(ada.get("/v1/sessions/s/messages?limit=all")["messages"], json!(messages));
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
