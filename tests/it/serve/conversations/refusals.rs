//! Every route against callers without the right, ids that cannot be kept, and bodies of a wrong shape.

use super::{Caller, admin, body, fill, routes, user};
use crate::serve::Served;
use serde_json::{Value, json};
use treehold::VfsPathBuf;
use treehold::serve::{Access, ActsFor, Rights};

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
