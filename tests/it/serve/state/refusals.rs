//! Every route against callers without the right, ids that cannot be kept, and bodies of a wrong shape.

use super::{Caller, Route, STATE, admin, body, fill, routes};
use crate::serve::{Answer, Served};
use serde_json::{Value, json};
use treehold::serve::{Access, ActsFor, Rights};
use treehold::{Scope, VfsPathBuf};

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
