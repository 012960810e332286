//! Every route with every kind of caller.

use super::{BASES, Caller, admin, body, routes};
use crate::serve::Served;
use serde_json::{Value, json};
use treehold::VfsPathBuf;
use treehold::serve::{Access, Rights};

#[test]
fn every_route_refuses_callers_without_a_valid_key() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.fill("t");
    let before = ada.whole("t");
    let (mut cut, revoked) = (ada.token.clone(), served.token("acme", "ada", Rights::new(Access::Admin)));
    cut.pop();
    ada.served.block_on(treehold::serve::TokenBook::new(served.store.clone()).revoke(revoked.split('_').nth(1).unwrap())).unwrap();
    let wrong = [String::new(), "Bearer ".into(), "Bearer nonsense".into(), format!("Basic {}", ada.token), format!("Bearer {cut}")];
    let wrong: Vec<String> = wrong.into_iter().chain([format!("Bearer {revoked}"), ada.token.clone()]).collect();
    for route in routes(&served) {
        for base in BASES {
            let (url, body) = (route.url(base, "t"), body(&route.id).to_string());
            let json = ("content-type", "application/json");
            let none = std::iter::once(vec![json]);
            for headers in none.chain(wrong.iter().map(|wrong| vec![json, ("authorization", wrong.as_str())])) {
                let answer = served.send(&route.method, &url, &headers, body.as_bytes());
                assert_eq!((answer.status, answer.header("www-authenticate").as_deref()), (401, Some("Bearer")), "{url} {headers:?}");
                assert_eq!(answer.code(), "permission_denied", "{url} {headers:?}");
            }
        }
    }
    assert_eq!(ada.whole("t"), before);
}

#[test]
fn no_route_reaches_the_trace_of_another_user_or_tenant() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.fill("t");
    let before = ada.whole("t");
    let bob = Caller::new(&served, "acme", "bob", Rights::new(Access::Admin));
    let other = Caller::new(&served, "other", "ada", Rights::new(Access::Admin));
    for route in routes(&served) {
        for base in BASES {
            let url = route.url(base, "t");
            for (stranger, status, code) in [(&bob, 403, "permission_denied"), (&other, 404, "not_found")] {
                let answer = stranger.send(&route.method, &url, &body(&route.id));
                let (met, said) = (answer.status, answer.text());
                assert!(!said.contains("secret"), "{url}: {said}");
                if !route.names_trace() {
                    assert_eq!(met, route.status, "{url}: {said}");
                    continue;
                }
                let problem: Value = serde_json::from_str(&said).unwrap();
                assert_eq!((met, &problem["code"]), (status, &json!(code)), "{url}: {said}");
                if status == 403 {
                    assert_eq!(problem["detail"], "Cannot access other user's trace", "{url}");
                } else {
                    // Nothing tells that another tenant has this id.
                    let unknown = stranger.send(&route.method, &route.url(base, "unknown"), &body(&route.id)).text();
                    let unknown = unknown.replace("unknown", "t");
                    let without_id = |text: &str| {
                        let mut problem: Value = serde_json::from_str(text).unwrap();
                        problem["trace_id"] = Value::Null;
                        problem
                    };
                    assert_eq!(without_id(&unknown), without_id(&said), "{url}");
                }
            }
            assert_eq!(ada.whole("t"), before, "{url}");
        }
    }
    // An id belongs to one user of a tenant. Other tenants have ids of their own.
    assert_eq!(bob.send("POST", "/api/traces", &json!({"trace_id": "t"})).code(), "already_exists");
    assert_eq!(other.ok("POST", "/api/traces", json!({"trace_id": "t"}))["trace_id"], "t");
    assert_eq!((bob.get("/api/traces?limit=1")["traces"][0]["uid"].clone(), ada.whole("t")), (json!("bob"), before));
    // The headers that name other users are for sessions.
    let host = Caller::new(&served, "acme", "host", Rights::new(Access::Admin).with_acts_for(treehold::serve::ActsFor::All));
    for base in BASES {
        assert_eq!(host.with("GET", base, &[("treehold-user", "ada")], b"").code(), "invalid_argument");
        assert_eq!(host.send("GET", &format!("{base}/t"), &Value::Null).status, 403, "a trace is its user's, whomever a token acts for");
    }
}

/// A machine that dialled is asked through its tunnel by whoever the other server is. Every route asks for a key of the machine.
#[cfg(feature = "remote")]
#[test]
fn every_route_asks_for_a_key_through_a_tunnel() {
    use treehold::remote::{Ask, Method, PeerClient, StreamNews, TunnelOptions, Tunnels};
    use treehold::serve::Dial;
    use treehold::{ErrorKind, RemoteOptions};

    let tunnels = Tunnels::new(TunnelOptions::new());
    let cloud = Served::with(|options| options.with_tokens(true).with_tunnels(tunnels.clone()));
    let connect = cloud.token("acme", "ada", Rights::new(Access::Read).with_connect_as(Some("laptop".to_owned())));
    let dial = Dial::new(cloud.base.clone(), RemoteOptions::new().with_token(connect.clone()));
    let laptop = Served::with(|options| options.with_tokens(true).with_dials(vec![dial]));
    crate::serve::within(|| tunnels.is_connected(Some("acme"), "laptop"));
    let ada = admin(&laptop);
    let caller = |tenant: &str, user: &str, access| Some(laptop.token(tenant, user, Rights::new(access)));
    let of_cloud = Some(cloud.token("acme", "ada", Rights::new(Access::Admin)));
    let client = |token: Option<&String>| {
        let options = token.iter().fold(RemoteOptions::new(), |options, token| options.with_token(token.as_str()));
        PeerClient::over(tunnels.transport(Some("acme"), "laptop"), "@laptop", options).unwrap()
    };
    let strangers = [
        ("none", None, "requires a token"),
        ("nonsense", Some("nonsense-nonsense".to_owned()), "rejects its token"),
        ("a key of the other server", of_cloud, "rejects its token"),
        ("the key to connect", Some(connect), "rejects its token"),
        ("another user's", caller("acme", "bob", Access::Admin), "Cannot access other user's trace"),
        ("another tenant's", caller("other", "ada", Access::Admin), "does not exist"),
    ];
    let (reader, writer) = (caller("acme", "ada", Access::Read), caller("acme", "ada", Access::Admin));
    let ask = |route: &super::Route, base: &str, trace: &str| {
        let ask =
            Ask::new(Method::from_bytes(route.method.as_bytes()).unwrap(), route.url(base, trace)).with_key(format!("{}{base}", route.id));
        let body = body(&route.id);
        if body.is_null() { ask } else { ask.with_json(&body).unwrap() }
    };
    for (number, route) in routes(&laptop).iter().enumerate() {
        for (at, base) in BASES.into_iter().enumerate() {
            let trace = format!("t{number}-{at}");
            ada.fill(&trace);
            let (asked, before) = (ask(route, base, &trace), ada.whole(&trace));
            for (who, token, says) in &strangers {
                let answer = laptop.block_on(client(token.as_ref()).ask(&asked));
                if !route.names_trace() && !says.contains("token") {
                    answer.unwrap();
                    continue;
                }
                let error = answer.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound), "{} {who}: {error}", route.id);
                assert!(error.message().contains(says), "{} {who}: {error}", route.id);
                assert!(!format!("{error:?}").contains("secret"), "{} {who}: {error:?}", route.id);
            }
            let changes_own = ada.get(&format!("/api/traces/{trace}"));
            assert_eq!(changes_own, before[0], "{}", route.id);
            if route.id == "watchTrace" {
                let mut news = client(reader.as_ref()).stream(&asked.path_and_query);
                let first =
                    laptop.block_on(async { [futures::StreamExt::next(&mut news).await, futures::StreamExt::next(&mut news).await] });
                assert!(matches!(first, [Some(StreamNews::Live), Some(StreamNews::Event(_))]), "{first:?}");
                continue;
            }
            let read = laptop.block_on(client(reader.as_ref()).ask(&asked));
            match route.changes() {
                true => assert_eq!(read.unwrap_err().kind(), ErrorKind::PermissionDenied, "{}", route.id),
                false => assert_eq!(read.unwrap().status.as_u16(), 200, "{}", route.id),
            }
            let written = laptop.block_on(client(writer.as_ref()).ask(&asked));
            match route.is_of_runs() {
                true => assert_eq!(written.unwrap_err().kind(), ErrorKind::Unsupported, "{}", route.id),
                false => assert_eq!(written.unwrap().status.as_u16(), route.status, "{}", route.id),
            }
        }
    }
    // What was dialled is not what dialled: the cloud's own routes know none of the machine's keys.
    for token in [&reader, &writer] {
        let own = PeerClient::new(&cloud.base, RemoteOptions::new().with_token(token.clone().unwrap())).unwrap();
        assert_eq!(laptop.block_on(own.ask(&Ask::get("/api/traces"))).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}

#[test]
fn tokens_reach_what_their_rights_allow_on_every_route() {
    let served = Served::closed();
    let ada = admin(&served);
    let reader = Caller::new(&served, "acme", "ada", Rights::new(Access::Read));
    let writer = Caller::new(&served, "acme", "ada", Rights::new(Access::Write));
    let partial = Rights::new(Access::Admin).with_paths([VfsPathBuf::parse("/memories").unwrap()]);
    let tied = Rights::new(Access::Admin).with_threads(["default".to_owned()]);
    let limited = [partial, tied].map(|rights| Caller::new(&served, "acme", "ada", rights));
    for (number, route) in routes(&served).into_iter().enumerate() {
        for (at, base) in BASES.into_iter().enumerate() {
            let trace = format!("t{number}-{at}");
            ada.fill(&trace);
            let (url, body, before) = (route.url(base, &trace), body(&route.id), ada.whole(&trace));
            for caller in &limited {
                assert_eq!(caller.send(&route.method, &url, &body).code(), "permission_denied", "{url}");
            }
            let met = reader.send(&route.method, &url, &body);
            match route.changes() {
                true => assert_eq!((met.status, met.code().as_str()), (403, "permission_denied"), "{url}"),
                false => assert_eq!(met.status, 200, "{url}"),
            }
            assert_eq!(ada.whole(&trace), before, "{url}");
            let met = writer.send(&route.method, &url, &body);
            let (status, said) = (met.status, if route.id == "watchTrace" { String::new() } else { met.text() });
            let expected = match route.id.as_str() {
                "deleteTrace" => 403,
                _ if route.is_of_runs() => 501,
                _ => route.status,
            };
            assert_eq!(status, expected, "{url}: {said}");
        }
    }
    ada.create("gone");
    assert_eq!(ada.send("DELETE", "/api/traces/gone", &Value::Null).status, 204);
    assert_eq!(ada.send("DELETE", "/api/traces/gone", &Value::Null).code(), "not_found");
    // A server without tokens serves the caller whom it was started for.
    let open = Served::start();
    assert_eq!(open.post("/api/traces", &json!({"trace_id": "own"})).json()["uid"], "ada");
    assert_eq!(open.get("/v1/traces/own").json()["trace_id"], "own");
}
