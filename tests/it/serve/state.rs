//! The states of agents: each contract through the API, and every route against callers and input that it must refuse.
//!
//! The tables take their routes from the API description. A new route fails here until [`body`] has a valid body for it.

use super::{Answer, Served, within};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use treehold::agent_state::undo::remember;
use treehold::agent_state::{AgentStates, Json, OperatorCompaction, SessionCompactor, StateSlot};
use treehold::serve::{Access, ActsFor, Rights};
use treehold::{AuditLog, Scope, VfsPathBuf};

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

#[test]
fn state_is_saved_and_returned_byte_for_byte_with_its_version() {
    let served = Served::closed();
    let ada = admin(&served);
    let at = "/v1/state/ada/s/agent_state";
    assert_eq!(ada.send("GET", at, &Value::Null).code(), "not_found");
    assert_eq!(ada.send("HEAD", at, &Value::Null).status, 404);
    assert_eq!(ada.send("GET", "/v1/state/ada/s", &Value::Null).code(), "not_found");
    let saved = ada.with("PUT", at, &[], STATE.as_bytes());
    assert_eq!((saved.status, saved.header("etag").as_deref()), (200, Some("\"1\"")));
    assert_eq!(saved.json(), json!({"version": 1}));
    let found = ada.send("GET", at, &Value::Null);
    let headers = ["etag", "content-type", "cache-control"].map(|name| found.header(name).unwrap());
    assert_eq!(headers, ["\"1\"", "application/json", "no-store"]);
    assert_eq!(found.text(), STATE);
    // Versions are decimal numbers everywhere.
    for version in 2..12 {
        assert_eq!(ada.with("PUT", at, &[], STATE.as_bytes()).json(), json!({"version": version}));
    }
    let head = ada.send("HEAD", at, &Value::Null);
    assert_eq!((head.status, head.header("etag").as_deref()), (200, Some("\"11\"")));
    assert_eq!(ada.with("GET", at, &[("if-none-match", "\"11\"")], b"").status, 304);
    assert_eq!(ada.with("GET", at, &[("if-none-match", "\"10\"")], b"").status, 200);
    // A compressed answer has a tag of its own, which still names the version.
    let long = format!("[{}1]", "1,".repeat(2_000));
    ada.with("PUT", at, &[], long.as_bytes());
    let coded = ada.with("GET", at, &[("accept-encoding", "gzip")], b"").header("etag").unwrap();
    assert_eq!(coded, "\"12-gzip\"");
    assert_eq!(ada.with("PUT", at, &[("if-match", &coded)], b"7").json(), json!({"version": 13}));
    assert_eq!(ada.get(at), json!(7));
    // Any JSON value is one, `null` included; an empty body is none.
    for text in ["null", "0", "\"\"", "[]", " {} ", "1e400", "[1.0,\"\\u0000\"]"] {
        assert_eq!(ada.with("PUT", at, &[], text.as_bytes()).status, 200, "{text}");
        assert_eq!(ada.send("GET", at, &Value::Null).text(), text.trim());
    }
    assert_eq!(ada.with("PUT", at, &[], b"").code(), "invalid_argument");
    for _ in 0..2 {
        assert_eq!(ada.ok("DELETE", at, Value::Null).status, 204);
    }
    assert_eq!(ada.send("GET", at, &Value::Null).code(), "not_found");
}

#[test]
fn failed_condition_returns_the_present_version() {
    let served = Served::closed();
    let ada = admin(&served);
    for form in ["", "?form=list"] {
        let at = format!("/v1/state/ada/s/k{form}");
        let body = if form.is_empty() { "1" } else { "[1]" };
        let put = |headers: &[(&str, &str)]| ada.with("PUT", &at, headers, body.as_bytes());
        for headers in [[("if-match", "\"1\"")], [("if-match", "*")]] {
            let refused = put(&headers);
            assert_eq!((refused.status, refused.header("etag")), (412, None), "{headers:?}: there is no value");
            assert_eq!(refused.code(), "conflict");
        }
        assert_eq!(put(&[("if-none-match", "*")]).json(), json!({"version": 1}));
        for number in 2..=11 {
            assert_eq!(put(&[("if-match", &format!("\"{}\"", number - 1))]).json(), json!({"version": number}), "{form}");
        }
        assert_eq!(put(&[("if-match", "\"3\", \"11\"")]).json(), json!({"version": 12}));
        assert_eq!(put(&[("if-match", "*")]).json(), json!({"version": 13}));
        for headers in [[("if-match", "\"12\"")], [("if-match", "\"1\", \"2\"")], [("if-none-match", "*")], [("if-match", "\"d\"")]] {
            let refused = put(&headers);
            assert_eq!((refused.status, refused.header("etag").as_deref()), (412, Some("\"13\"")), "{headers:?}");
            let problem = refused.json();
            assert_eq!((&problem["code"], &problem["may_have_effect"]), (&json!("conflict"), &json!(false)), "{problem}");
            assert_eq!(problem.get("current_version"), None, "it is for versions of files, which are hexadecimal");
        }
        let head = ada.send("HEAD", &at, &Value::Null);
        assert_eq!((head.status, head.header("etag").as_deref()), (200, Some("\"13\"")), "{form}");
        let found = ada.send("GET", &at, &Value::Null);
        assert_eq!((found.header("etag").as_deref(), found.text().as_str()), (Some("\"13\""), body));
        assert_eq!(ada.with("GET", &at, &[("if-none-match", "\"13\"")], b"").status, 304);
    }
}

/// A removal under a condition is about one form of the key. One without removes both.
#[test]
fn removal_under_a_condition_removes_one_form_and_no_other_version() {
    let served = Served::closed();
    let ada = admin(&served);
    let remove = |query: &str, tag: &str| ada.with("DELETE", &format!("/v1/state/ada/s/k{query}"), &[("if-match", tag)], b"");
    let keys = || -> Vec<(Value, Value)> {
        let keys = ada.get("/v1/state/ada/s")["keys"].as_array().unwrap().clone();
        keys.into_iter().map(|key| (key["form"].clone(), key["version"].clone())).collect()
    };
    let (single, list) = (json!("single"), json!("list"));
    ada.ok("PUT", "/v1/state/ada/s/k", json!(1));
    for number in 0..2 {
        ada.ok("PUT", "/v1/state/ada/s/k?form=list", json!([number]));
    }
    let both = vec![(single.clone(), json!(1)), (list.clone(), json!(2))];
    for (query, tag, present) in [("", "\"2\"", "\"1\""), ("?form=single", "\"2\"", "\"1\""), ("?form=list", "\"1\"", "\"2\"")] {
        for tags in [tag, "\"7\", \"8\"", "\"other\""] {
            let refused = remove(query, tags);
            assert_eq!((refused.status, refused.header("etag").as_deref()), (412, Some(present)), "{query} {tags}");
            assert_eq!(refused.code(), "conflict", "{query} {tags}");
        }
        assert_eq!(keys(), both, "{query}");
    }
    assert_eq!(remove("", "\"1\"").status, 204);
    assert_eq!(keys(), [both[1].clone()], "the list stays");
    assert_eq!(remove("", "*").status, 412, "there is no single value");
    ada.ok("PUT", "/v1/state/ada/s/k", json!(1));
    assert_eq!(remove("?form=list", "\"1\", \"2\"").status, 204);
    assert_eq!(keys(), [(single, json!(2))]);
    ada.ok("PUT", "/v1/state/ada/s/k?form=list", json!([1]));
    assert_eq!(ada.ok("DELETE", "/v1/state/ada/s/k?form=list", Value::Null).status, 204);
    assert_eq!(keys().len(), 1);
    ada.ok("PUT", "/v1/state/ada/s/k?form=list", json!([1]));
    assert_eq!(ada.ok("DELETE", "/v1/state/ada/s/k", Value::Null).status, 204);
    assert_eq!(ada.send("GET", "/v1/state/ada/s", &Value::Null).code(), "not_found");
    for wrong in ["?form=other", "?fence=x", "?fence=-1", "?unknown=1"] {
        assert_eq!(ada.send("DELETE", &format!("/v1/state/ada/s/k{wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }
    for wrong in ["?form=list", "?fence=x", "?unknown=1"] {
        assert_eq!(ada.send("DELETE", &format!("/v1/state/ada/s{wrong}"), &Value::Null).code(), "invalid_argument", "{wrong}");
    }
}

/// Every change of a session's states takes the fencing token of a turn, and is refused once the turn is lost.
#[test]
fn every_change_of_states_is_refused_once_its_turn_is_lost() {
    let served = Served::closed();
    let ada = admin(&served);
    let document = served.get("/openapi.json").json();
    let mut checked = 0;
    for route in routes(&served) {
        // An interrupt changes no state, whoever holds the turn.
        if !route.changes() || !route.pattern.starts_with("/v1/state/") || route.id == "interruptState" {
            continue;
        }
        let parameters = document["paths"][&route.pattern][route.method.to_lowercase()]["parameters"].as_array().unwrap().clone();
        assert!(parameters.iter().any(|parameter| parameter["name"] == "fence"), "{}", route.id);
        fill(&ada, "ada", "s");
        let before = ada.get("/v1/state/ada/s:export");
        let body = body(&route.id, Some("ada"), "s");
        let send = |fence: &Value| ada.send(&route.method, &format!("{}?fence={fence}", route.url("ada", "s", "k")), &body);
        let lost = ada.turn("s");
        ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": lost["token"]}));
        for _ in 0..2 {
            let late = send(&lost["fence"]);
            assert_eq!(late.status, 409, "{}", route.id);
            let problem = late.json();
            assert_eq!((&problem["code"], &problem["may_have_effect"]), (&json!("conflict"), &json!(false)), "{}", route.id);
            assert_eq!(ada.get("/v1/state/ada/s:export"), before, "{}", route.id);
        }
        let turn = ada.turn("s");
        assert_eq!(send(&lost["fence"]).status, 409, "{}: another turn holds the session", route.id);
        assert!(send(&turn["fence"]).status < 300, "{}", route.id);
        assert_ne!(ada.send("GET", "/v1/state/ada/s:export", &Value::Null).json(), before, "{}", route.id);
        ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": turn["token"]}));
        checked += 1;
    }
    assert_eq!(checked, 3);
}

#[test]
fn keys_sessions_and_users_are_listed_in_pages() {
    let served = Served::closed();
    let (ada, host) = (admin(&served), Caller::new(&served, "acme", "host", Rights::new(Access::Write).with_acts_for(ActsFor::Tenant)));
    fill(&ada, "ada", "s");
    ada.ok("PUT", "/v1/state/ada/s/k", json!(2));
    let key = |key: &str, form: &str, version: u64| json!({"key": key, "form": form, "version": version});
    let keys = json!({"keys": [key("agent_state", "single", 1), key("k", "single", 2), key("notes", "list", 1)]});
    assert_eq!(ada.get("/v1/state/ada/s"), keys);
    assert_eq!(ada.get("/v1/state/ada/s/notes?form=list"), json!(["secret one", 2]));
    assert_eq!(ada.get("/v1/state/ada/s/none?form=list"), json!([]), "an absent list is empty");
    assert_eq!(ada.send("GET", "/v1/state/ada/s/notes", &Value::Null).code(), "not_found", "a list is no single value");
    for session in ["a", "b", "c"] {
        ada.ok("PUT", &format!("/v1/state/ada/{session}/k"), json!(1));
    }
    assert_eq!(ada.get("/v1/state/ada"), json!({"sessions": ["a", "b", "c", "s"], "next": null}));
    let page = ada.get("/v1/state/ada?limit=3");
    assert_eq!(page["sessions"], json!(["a", "b", "c"]));
    let rest = ada.get(&format!("/v1/state/ada?limit=3&after={}", page["next"].as_str().unwrap()));
    assert_eq!(rest, json!({"sessions": ["s"], "next": null}));
    // Agents have states of their own.
    assert_eq!(ada.get("/v1/state/ada?agent=other"), json!({"sessions": [], "next": null}));
    ada.ok("PUT", "/v1/state/ada/s/k?agent=other", json!("other"));
    assert_eq!((ada.get("/v1/state/ada/s/k?agent=other"), ada.get("/v1/state/ada/s/k")), (json!("other"), json!(2)));
    // The anonymous user is `null`, and comes first.
    host.ok("PUT", "/v1/state/-/s/k", json!("anonymous"));
    host.ok("PUT", "/v1/state/%2D/s/k", json!("of a user named -"));
    host.ok("PUT", "/v1/state/__anon__/s/k", json!("of a user named __anon__"));
    assert_eq!(host.get("/v1/state"), json!({"users": [null, "-", "__anon__", "ada"], "next": null}));
    let first = host.get("/v1/state?limit=1");
    assert_eq!(first["users"], json!([null]));
    let second = host.get(&format!("/v1/state?limit=1&after={}", first["next"].as_str().unwrap()));
    assert_eq!(second["users"], json!(["-"]));
    assert_eq!(host.get("/v1/state/-/s/k"), json!("anonymous"));
    assert_eq!(host.get("/v1/state/%2d/s/k"), json!("of a user named -"));
    assert_eq!(host.get("/v1/state/%5F_anon__/s/k"), json!("of a user named __anon__"));
    assert_eq!(ada.get("/v1/state"), json!({"users": ["ada"], "next": null}), "a caller sees its own user");
    let nobody = Caller::new(&served, "acme", "nobody", Rights::new(Access::Read));
    assert_eq!(nobody.get("/v1/state"), json!({"users": [], "next": null}));
    for wrong in ["?limit=0", "?limit=1001", "?limit=x", "?unknown=1", "?agent=", "?agent=.."] {
        for at in ["/v1/state", "/v1/state/ada", "/v1/admin/sessions"] {
            assert_eq!(ada.send("GET", &format!("{at}{wrong}"), &Value::Null).code(), "invalid_argument", "{at}{wrong}");
        }
    }
    for _ in 0..2 {
        assert_eq!(ada.ok("DELETE", "/v1/state/ada/s", Value::Null).status, 204);
    }
    assert_eq!(ada.send("GET", "/v1/state/ada/s", &Value::Null).code(), "not_found");
    assert_eq!(ada.get("/v1/state/ada")["sessions"], json!(["a", "b", "c"]));
}

#[test]
fn session_is_exported_as_json_or_markdown() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "ada", "s");
    let export = ada.send("GET", "/v1/state/ada/s:export", &Value::Null).text();
    assert!(export.contains(r#""cur_iter":1.0"#) && export.contains(r#""mood":[ ]"#), "the text of values is kept: {export}");
    let export: Value = serde_json::from_str(&export).unwrap();
    assert_eq!((&export["session"], &export["user"], &export["agent"]), (&json!("s"), &json!("ada"), &json!("default")));
    let entries: Vec<(&Value, &Value, &Value)> =
        export["entries"].as_array().unwrap().iter().map(|entry| (&entry["key"], &entry["form"], &entry["version"])).collect();
    let (one, single, list) = (json!(1), json!("single"), json!("list"));
    let names = ["agent_state", "k", "notes"].map(|name| json!(name));
    assert_eq!(entries, [(&names[0], &single, &one), (&names[1], &single, &one), (&names[2], &list, &one)]);
    assert_eq!(export["entries"][2]["value"], json!(["secret one", 2]));
    let markdown = ada.with("GET", "/v1/state/ada/s:export", &[("accept", "text/markdown")], b"");
    assert_eq!(markdown.header("content-type").as_deref(), Some("text/markdown; charset=utf-8"));
    let text = markdown.text();
    assert!(text.starts_with("# Session s\n\n## Summary\n\n> secret summary\n"), "{text}");
    assert!(text.contains("### assistant — helper\n\n> secret answer\n"), "{text}");
    for accept in ["application/json", "text/markdown"] {
        assert_eq!(ada.with("GET", "/v1/state/ada/none:export", &[("accept", accept)], b"").code(), "not_found");
    }
    ada.ok("PUT", "/v1/state/ada/odd/agent_state", json!({"context": 7}));
    assert_eq!(ada.with("GET", "/v1/state/ada/odd:export", &[("accept", "text/markdown")], b"").code(), "corrupt");
}

/// The colon of an action is literal, so a session whose id ends like an action is written with `%3A`.
#[test]
fn action_is_distinguished_from_an_id_that_looks_like_one() {
    let served = Served::closed();
    let ada = admin(&served);
    for id in ["s%3Aexport", "s%3ainterrupt", "a:b", "%3Aexport", "s%3Aexport%3Aexport"] {
        ada.ok("PUT", &format!("/v1/state/ada/{id}/k"), json!(id));
        assert_eq!(ada.get(&format!("/v1/state/ada/{id}"))["keys"][0]["key"], "k", "{id}");
        assert_eq!(ada.get(&format!("/v1/state/ada/{id}:export"))["entries"][0]["value"], json!(id));
        assert_eq!(ada.ok("POST", &format!("/v1/state/ada/{id}:interrupt"), Value::Null).json(), json!({"hit": false}));
    }
    let sessions = ada.get("/v1/state/ada")["sessions"].clone();
    assert_eq!(sessions, json!([":export", "a:b", "s:export", "s:export:export", "s:interrupt"]));
    for (method, path) in [
        ("POST", "/v1/state/ada/s"),
        ("POST", "/v1/state/ada/s:none"),
        ("POST", "/v1/state/ada/s:export"),
        ("GET", "/v1/state/ada/s:interrupt"),
        ("DELETE", "/v1/state/ada/s:export"),
        ("POST", "/v1/admin/sessions/s"),
        ("POST", "/v1/admin/sessions/s:export"),
        ("GET", "/v1/admin/sessions/s:abort"),
        ("GET", "/v1/admin/sessions/s"),
        ("POST", "/v1/turns:none"),
    ] {
        assert_eq!(ada.send(method, path, &Value::Null).code(), "no_such_route", "{method} {path}");
    }
    assert_eq!(ada.get("/v1/state/ada")["sessions"], sessions, "nothing was removed");
    ada.ok("DELETE", "/v1/state/ada/s%3Aexport", Value::Null);
    assert_eq!(ada.get("/v1/state/ada")["sessions"].as_array().unwrap().len(), 4);
}

/// Waits for the turn of the session `s`.
fn acquire(caller: &Caller<'_>, wait_ms: u64, ticket: Option<&str>) -> Answer {
    caller.send("POST", "/v1/turns:acquire", &json!({"user": "ada", "session": "s", "wait_ms": wait_ms, "owner": "test", "ticket": ticket}))
}

#[test]
fn turns_are_granted_in_the_order_of_tickets_and_fence_saves() {
    let served = Served::closed();
    let ada = admin(&served);
    let first = ada.turn("s");
    let busy = acquire(&ada, 0, None);
    assert_eq!((busy.status, busy.header("retry-after").as_deref()), (409, Some("1")));
    assert_eq!(busy.code(), "unavailable");
    // A client that asks to wait gets a ticket, which keeps its place.
    let tickets: Vec<String> = (0..2)
        .map(|_| {
            let waiting = acquire(&ada, 1, None);
            assert_eq!(waiting.status, 202);
            waiting.json()["ticket"].as_str().unwrap().to_owned()
        })
        .collect();
    let release = |turn: &Value| ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": turn["token"]})).status;
    assert_eq!(release(&first), 204);
    assert_eq!(acquire(&ada, 0, None).status, 409, "others wait");
    assert_eq!(acquire(&ada, 1, Some(&tickets[1])).status, 202, "it is second");
    let second = acquire(&ada, 20_000, Some(&tickets[0])).json();
    assert!(second["fence"].as_u64() > first["fence"].as_u64(), "{first} {second}");
    // A lost answer is repeated with the ticket.
    assert_eq!(acquire(&ada, 1, Some(&tickets[0])).json()["token"], second["token"]);
    let save = |turn: &Value, body: Value| ada.send("PUT", &format!("/v1/state/ada/s/k?fence={}", turn["fence"]), &body);
    assert_eq!(save(&second, json!("second")).status, 200);
    let late = save(&first, json!("late"));
    assert_eq!((late.status, late.code().as_str()), (409, "conflict"));
    assert_eq!(ada.get("/v1/state/ada/s/k"), json!("second"));
    let renew = |turn: &Value| ada.send("POST", "/v1/turns:renew", &json!({"user": "ada", "session": "s", "token": turn["token"]}));
    let renewed = renew(&second).json();
    assert!(renewed["expires_at"].as_i64() >= second["expires_at"].as_i64() && renewed["interrupt"].is_null(), "{renewed}");
    assert_eq!(renew(&first).code(), "conflict");
    // An interrupt hits the turn that runs, and no later one.
    let interrupt = |body: Value| ada.ok("POST", "/v1/state/ada/s:interrupt", body);
    let hit = interrupt(json!({"message": {"role": "USER", "content": "stop"}}));
    assert_eq!((hit.status, hit.json()), (202, json!({"hit": true})));
    assert_eq!(renew(&second).json()["interrupt"], json!({"message": {"role": "USER", "content": "stop"}, "source": "user"}));
    assert_eq!([release(&second), release(&second)], [204, 204], "it is idempotent");
    let third = acquire(&ada, 20_000, Some(&tickets[1])).json();
    assert!(renew(&third).json()["interrupt"].is_null());
    assert_eq!(interrupt(json!({"source": "system"})).json(), json!({"hit": true}));
    assert_eq!(renew(&third).json()["interrupt"], json!({"message": null, "source": "system"}));
    release(&third);
    assert_eq!(interrupt(Value::Null).json(), json!({"hit": false}));
    // Other sessions and users have turns of their own.
    let host = Caller::new(&served, "acme", "host", Rights::new(Access::Write).with_acts_for(ActsFor::Tenant));
    for (user, session) in [(Some("ada"), "s"), (Some("ada"), "t"), (Some("bob"), "s"), (None, "s")] {
        assert_eq!(host.send("POST", "/v1/turns:acquire", &json!({"user": user, "session": session})).status, 200, "{user:?} {session}");
        let of_agent = json!({"user": user, "session": session, "agent": "other"});
        assert_eq!(host.send("POST", "/v1/turns:acquire", &of_agent).status, 200, "{user:?} {session}");
    }
    let long = "x".repeat(256);
    for (name, wrong) in [("wait_ms", json!(30_001)), ("wait_ms", json!(-1)), ("owner", json!(long)), ("ticket", json!("x"))] {
        let mut body = json!({"user": "ada", "session": "u"});
        body[name] = wrong;
        assert_eq!(ada.send("POST", "/v1/turns:acquire", &body).code(), "invalid_argument", "{body}");
    }
    let message = json!({"message": "x".repeat(300 << 10)});
    assert_eq!(ada.send("POST", "/v1/state/ada/s:interrupt", &message).code(), "too_large");
}

/// A repeated request with one key gets the first turn, unless the first one was refused.
#[test]
fn key_of_a_refused_turn_can_be_sent_again() {
    let served = Served::closed();
    let ada = admin(&served);
    let first = ada.turn("s");
    let body = json!({"user": "ada", "session": "s"}).to_string();
    let ask = || ada.with("POST", "/v1/turns:acquire", &[("idempotency-key", "k")], body.as_bytes());
    assert_eq!(ask().status, 409);
    ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": first["token"]}));
    let granted = ask();
    assert_eq!((granted.status, granted.header("idempotency-replayed")), (200, None));
    let (token, again) = (granted.json()["token"].clone(), ask());
    assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"));
    assert_eq!(again.json()["token"], token);
}

/// Regression guard: a save with a key is made once, and its answer is the first one.
#[test]
fn repeated_save_with_a_key_takes_effect_once() {
    let served = Served::closed();
    let ada = admin(&served);
    let put = |key: &str, body: &[u8]| ada.with("PUT", "/v1/state/ada/s/k", &[("idempotency-key", key)], body);
    let first = put("k", b"[1.0]");
    assert_eq!((first.header("idempotency-replayed"), first.header("etag").as_deref()), (None, Some("\"1\"")));
    let again = put("k", b"[1.0]");
    assert_eq!((again.header("idempotency-replayed").as_deref(), again.header("etag").as_deref()), (Some("true"), Some("\"1\"")));
    assert_eq!(again.json(), json!({"version": 1}));
    assert_eq!(put("k", b"[2.0]").code(), "key_reused");
    assert_eq!(put("other", b"[2.0]").json(), json!({"version": 2}));
}

/// Sends a request for the turn of `s` on a connection of its own, without waiting for the answer.
fn waiting(caller: &Caller<'_>) -> TcpStream {
    let body = json!({"user": "ada", "session": "s", "wait_ms": 30_000}).to_string();
    let mut stream = TcpStream::connect(caller.served.base.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let token = &caller.token;
    let head =
        format!("POST /v1/turns:acquire HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: application/json");
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    stream
}

/// How many rows the queue of `s` has: one for each waiter, and those of the turn.
fn queued(served: &Served) -> usize {
    let namespace = treehold::Namespace::parse("acme/ada/_treehold/agent-state/agents/default/turns/s").unwrap();
    served.block_on(served.store.scan(&namespace, treehold::store::ScanOptions::new())).unwrap().entries.len()
}

/// A waiting request uses nothing of the server, so that it must not keep others from being answered.
#[test]
fn waiting_for_a_turn_takes_no_request_slot_and_ends_with_its_caller() {
    let served = Served::with(|options| options.with_tokens(true).with_requests_per_user_max(2).with_streams_max(16));
    let ada = admin(&served);
    let turn = ada.turn("s");
    let alone = queued(&served);
    // A user has a quarter of the slots.
    let mut streams: Vec<TcpStream> = Vec::new();
    for count in 1..=4 {
        streams.push(waiting(&ada));
        within(|| queued(&served) == alone + count);
    }
    assert_eq!(acquire(&ada, 1, None).code(), "unavailable");
    let bob = Caller::new(&served, "acme", "bob", Rights::new(Access::Write));
    assert_eq!(bob.send("POST", "/v1/turns:acquire", &json!({"user": "bob", "session": "s", "wait_ms": 1})).status, 200);
    assert_eq!(ada.get("/v1/state/ada")["sessions"], json!([]), "the slots for requests are free");
    // Callers that go away leave the queue, wherever they stand.
    drop(streams.remove(1));
    within(|| queued(&served) == alone + 3);
    drop(streams);
    within(|| queued(&served) == alone);
    ada.ok("POST", "/v1/turns:release", json!({"user": "ada", "session": "s", "token": turn["token"]}));
    within(|| acquire(&ada, 1, None).status == 200);
}

#[test]
fn stopping_server_answers_clients_that_wait_for_a_turn() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.turn("s");
    let alone = queued(&served);
    let mut stream = waiting(&ada);
    within(|| queued(&served) == alone + 1);
    served.stop().unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("the server is stopping"), "{answer}");
}

/// Returns whether a status is no failure of the server. This one makes no summaries.
fn is_answered(route: &Route, status: u16) -> bool {
    status < 500 || (route.id == "adminCompact" && status == 501)
}

#[test]
fn no_route_reaches_the_states_of_another_user_or_tenant() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "ada", "s");
    let turn = ada.turn("s");
    let before = ada.get("/v1/state/ada/s:export");
    let other_user = Caller::new(&served, "acme", "bob", Rights::new(Access::Admin));
    let other_tenant = Caller::new(&served, "other", "ada", Rights::new(Access::Admin));
    for route in routes(&served) {
        let (url, body) = (route.url("ada", "s", "k"), body(&route.id, Some("ada"), "s"));
        // Another user may not name this one at all.
        let names_user = route.pattern.contains("{user}") || route.is_of_turns();
        let urls = if route.is_of_admin() { vec![url.clone(), format!("{url}?user=ada")] } else { vec![url.clone()] };
        for url in urls {
            let answer = other_user.send(&route.method, &url, &body);
            let (status, said) = (answer.status, answer.text());
            assert!(!said.contains("secret"), "{}: {status} {said}", route.id);
            if names_user || url.contains("user=") {
                assert!(status == 403 && (route.method == "HEAD" || said.contains("permission_denied")), "{}: {status} {said}", route.id);
            }
        }
        // A user of the same name in another tenant has states and turns of its own.
        let answer = other_tenant.send(&route.method, &url, &body);
        let (status, said) = (answer.status, answer.text());
        assert!(!said.contains("secret") && !said.contains("\"hit\":true") && is_answered(&route, status), "{}: {status} {said}", route.id);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let foreign = other_tenant.with(&route.method, &url, &[("treehold-tenant", "acme")], body.as_bytes());
        assert_eq!(foreign.status, 403, "{}", route.id);
        assert_eq!(ada.get("/v1/state/ada/s:export"), before, "{}", route.id);
        let renewed = ada.ok("POST", "/v1/turns:renew", json!({"user": "ada", "session": "s", "token": turn["token"]})).json();
        assert!(renewed["interrupt"].is_null(), "{}: {renewed}", route.id);
    }
}

#[test]
fn tokens_without_the_right_are_refused_on_every_route() {
    let served = Served::closed();
    fill(&admin(&served), "ada", "s");
    let reader = Caller::new(&served, "acme", "ada", Rights::new(Access::Read));
    let writer = Caller::new(&served, "acme", "ada", Rights::new(Access::Write));
    let partial = Rights::new(Access::Admin).with_paths([VfsPathBuf::parse("/memories").unwrap()]);
    let tied = Rights::new(Access::Admin).with_threads(["default".to_owned()]);
    let limited = [partial, tied].map(|rights| Caller::new(&served, "acme", "ada", rights));
    for route in routes(&served) {
        let (url, body) = (route.url("ada", "s", "k"), body(&route.id, Some("ada"), "s"));
        for caller in &limited {
            assert_eq!(caller.send(&route.method, &url, &body).status, 403, "{}", route.id);
        }
        let answer = reader.send(&route.method, &url, &body);
        let (status, said) = (answer.status, answer.text());
        assert_eq!(status, if route.changes() { 403 } else { 200 }, "{}: {said}", route.id);
        if route.is_of_admin() && route.changes() {
            assert_eq!(writer.send(&route.method, &url, &body).code(), "permission_denied", "{}", route.id);
        }
    }
}

#[test]
fn callers_act_for_others_only_by_right() {
    let served = Served::closed();
    let rights = |acts_for| Rights::new(Access::Admin).with_acts_for(acts_for);
    let [own, tenant, all] = [ActsFor::Own, ActsFor::Tenant, ActsFor::All].map(|acts| Caller::new(&served, "acme", "ada", rights(acts)));
    for (caller, others) in [(&own, [true, false, false, false]), (&tenant, [true, true, true, false]), (&all, [true, true, true, true])] {
        let cases = [("acme", Some("ada")), ("acme", Some("bob")), ("acme", None), ("other", Some("eve"))];
        for ((named, user), allowed) in cases.into_iter().zip(others) {
            for route in routes(&served) {
                if route.pattern == "/v1/state" {
                    continue;
                }
                let mut url = route.url(user.unwrap_or("-"), "s", "k");
                if route.is_of_admin() {
                    url.push_str(&user.map_or_else(|| "?anonymous=true".to_owned(), |user| format!("?user={user}")));
                }
                let headers: &[(&str, &str)] = if named == "acme" { &[] } else { &[("treehold-tenant", named)] };
                let body = body(&route.id, user, "s");
                let body = if body.is_null() { String::new() } else { body.to_string() };
                let answer = caller.with(&route.method, &url, headers, body.as_bytes());
                let (status, said) = (answer.status, answer.text());
                assert_eq!(status != 403, allowed, "{} {named} {user:?}: {status} {said}", route.id);
            }
        }
    }
    // The path names the user, so the header for sessions has no meaning here.
    assert_eq!(all.with("GET", "/v1/state/ada", &[("treehold-user", "bob")], b"").code(), "invalid_argument");
    assert_eq!(own.send("GET", "/v1/admin/sessions?user=ada&anonymous=true", &Value::Null).code(), "invalid_argument");
    // A caller without a user is the anonymous one.
    let open = Served::with(|options| {
        let mut options = options;
        options.scope = Scope::new().with_tenant("acme").with_thread("default");
        options
    });
    assert_eq!(open.put("/v1/state/-/s/agent_state", STATE.as_bytes()).status, 200);
    assert_eq!(open.get("/v1/admin/sessions").json(), json!(["s"]));
    assert_eq!(open.get("/v1/admin/sessions/s/messages").json()[0]["text"], "secret question");
}

#[test]
fn ids_that_cannot_be_kept_are_refused_on_every_route() {
    let served = Served::closed();
    let host = Caller::new(&served, "acme", "ada", Rights::new(Access::Admin).with_acts_for(ActsFor::Tenant));
    fill(&host, "ada", "s");
    let before = host.get("/v1/state/ada/s:export");
    let long = "x".repeat(256);
    let refused = ["%2E", "%2E%2E", "%00", "a%0Ab", "%7F", "_treehold", &long];
    let unknown = ["a%2Fb", "a:b", "%25", "%252E", "...", "%20", "%2D", "__anon__", "%C3%A9", &long[1..]];
    let code = |route: &Route, answer: Answer| {
        if route.method == "HEAD" { (answer.status == 400).then(|| "invalid_argument".to_owned()) } else { Some(answer.code()) }
    };
    let decoded = |id: &str| percent_decoded(id);
    for route in routes(&served) {
        let send = |user: &str, session: &str, key: &str| {
            let body = body(&route.id, Some(&decoded(user)), &decoded(session));
            host.send(&route.method, &route.url(user, session, key), &body)
        };
        let fills_user = route.pattern.contains("{user}") || route.is_of_turns();
        let fills_session = route.pattern.contains("{session}") || route.is_of_turns();
        for id in refused {
            if fills_user {
                assert_eq!(code(&route, send(id, "s", "k")).as_deref(), Some("invalid_argument"), "{} {id}", route.id);
            }
            if fills_session {
                assert_eq!(code(&route, send("ada", id, "k")).as_deref(), Some("invalid_argument"), "{} {id}", route.id);
            }
        }
        for id in unknown {
            for (user, session) in [(id, "s"), ("ada", id)] {
                // Routes of administration have the caller's own user, whose session stays as it is.
                if session == "s" && !fills_user {
                    continue;
                }
                let answer = send(user, session, "k");
                let (status, said) = (answer.status, answer.text());
                assert!(is_answered(&route, status) && status != 400, "{} {id}: {status} {said}", route.id);
            }
        }
        if route.pattern.contains("{key}") {
            assert_eq!(code(&route, send("ada", "s", &long)).as_deref(), Some("invalid_argument"), "{}", route.id);
            for key in ["%00", "a%2Fb", "%2E%2E", "%3Aexport", "k:export", "%F0%9F%8D%B5"] {
                let answer = send("ada", "t", key);
                let (status, said) = (answer.status, answer.text());
                assert!(status < 300 || status == 404, "{} {key}: {status} {said}", route.id);
            }
        }
        // What the loop saved or removed is not that of the session.
        assert_eq!(host.get("/v1/state/ada/s:export"), before, "{}", route.id);
    }
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                bytes.push(u8::from_str_radix(&String::from_utf8(vec![*high, *low]).unwrap(), 16).unwrap());
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn bodies_of_a_wrong_shape_are_refused_on_every_route() {
    let served = Served::closed();
    let ada = admin(&served);
    fill(&ada, "ada", "s");
    let before = ada.get("/v1/state/ada/s:export");
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for route in routes(&served).iter().filter(|route| route.takes_json) {
        let url = route.url("ada", "s", "k");
        let mut bodies = vec!["{".to_owned(), deep.clone(), "\u{fffd}".to_owned(), "1 2".to_owned()];
        // Any JSON value is a state.
        if route.id != "putState" {
            bodies.extend(["7", "[1,2,3,4,5,6,7,8,9]", "\"x\"", r#"{"unknown": 1}"#].map(str::to_owned));
            let valid = body(&route.id, Some("ada"), "s");
            for name in valid.as_object().unwrap().keys() {
                for wrong in [json!(true), json!([[7]]), Value::String("@deep".to_owned())] {
                    // The message of an interrupt is any value.
                    if name == "message" && wrong != json!("@deep") {
                        continue;
                    }
                    let mut body = valid.clone();
                    body[name] = wrong;
                    bodies.push(body.to_string().replace("\"@deep\"", &deep));
                }
            }
        }
        for body in bodies {
            let answer = ada.with(&route.method, &url, &[], body.as_bytes());
            let (status, said) = (answer.status, answer.text());
            let start: String = body.chars().take(80).collect();
            assert!(said.contains("invalid_argument"), "{} {start}: {status} {said}", route.id);
        }
        let text = ada.with(&route.method, &url, &[("content-type", "text/plain")], b"{}");
        assert!(text.status >= 400, "{}: {}", route.id, text.status);
    }
    for wrong in ["{}", "7", "null", "[1", ""] {
        assert_eq!(ada.with("PUT", "/v1/state/ada/s/notes?form=list", &[], wrong.as_bytes()).code(), "invalid_argument", "{wrong}");
    }
    for wrong in ["?form=other", "?fence=x", "?fence=-1", "?unknown=1"] {
        assert_eq!(ada.send("PUT", &format!("/v1/state/ada/s/k{wrong}"), &json!(1)).code(), "invalid_argument", "{wrong}");
    }
    let large = format!("\"{}\"", "x".repeat(65 << 20));
    assert_eq!(ada.with("PUT", "/v1/state/ada/s/k", &[], large.as_bytes()).code(), "too_large");
    assert_eq!(ada.get("/v1/state/ada/s:export"), before, "nothing was written");
}

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

#[test]
fn refused_method_names_those_of_the_action() {
    let served = Served::start();
    for (path, allowed) in [
        ("/v1/state/ada/s", "GET,DELETE,HEAD"),
        ("/v1/state/ada/s:export", "GET,HEAD"),
        ("/v1/state/ada/s:interrupt", "POST"),
        ("/v1/admin/sessions/s:undo", "POST"),
    ] {
        for method in ["OPTIONS", "PATCH"] {
            let answer = served.send(method, path, &[], b"");
            assert_eq!(answer.header("allow").as_deref(), Some(allowed), "{method} {path}");
        }
    }
}
