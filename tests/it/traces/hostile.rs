//! Requests that nobody should send: all are refused with a reason, and nothing is stored.

#[cfg(feature = "remote")]
use super::Caller;
use super::{BASES, admin, body, routes, user};
use crate::serve::Served;
use serde_json::{Value, json};
#[cfg(feature = "remote")]
use treehold::serve::{Access, Rights};

#[test]
fn ids_that_name_no_trace_are_refused_on_every_route() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.fill("t");
    let before = ada.whole("t");
    let long = "x".repeat(256);
    let bad = ["%2E", "%2E%2E", "%00", "a%0Ab", "%7F", "_treehold", &long, "a%2Fb", "..%2Fa", "agent%3A%2F%2F", "agent%3A%2F%2Fh"];
    let bad = bad.into_iter().chain(["agent%3A%2F%2Fh%2F", "agent%3A%2F%2Fu%40h%2Fx", "%40%2Fx", "%40a%2F", "%40a%2Fb%2Fc"]);
    let elsewhere = ["agent%3A%2F%2Fhost%3A8080%2Fx", "%40laptop%2Fx", "agent%3A%2F%2F127.0.0.1%2Fx"];
    for id in bad.chain(elsewhere) {
        for route in routes(&served).iter().filter(|route| route.names_trace()) {
            for base in BASES {
                let url =
                    route.pattern.replacen("/v1/traces", base, 1).replace("{trace}", id).replace("{message}", "m").replace("{goal}", "1");
                let answer = ada.send(&route.method, &url, &body(&route.id));
                let (status, said) = (answer.status, answer.text());
                assert!(status == 400 && said.contains("invalid_argument"), "{url}: {status} {said}");
                assert_eq!(said.contains("bad trace id"), !elsewhere.contains(&id), "{url}: {said}");
            }
        }
    }
    for id in ["a:b", "%25", "%252E", "...", "%20", "%40laptop", "t%40explore-20260204123456-001", &long[1..]] {
        for route in routes(&served).iter().filter(|route| route.names_trace()) {
            let answer = ada.send(&route.method, &route.url("/api/traces", id), &body(&route.id));
            assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"), "{} {id}", route.id);
        }
    }
    for id in ["", ".", "..", "a/b", "a\nb", "agent://", "agent://h", "@/x", "@a/", "@laptop/x", "agent://host/x", &long] {
        for base in BASES {
            assert_eq!(ada.send("POST", base, &json!({"trace_id": id})).code(), "invalid_argument", "{id:?}");
        }
    }
    for (path, statuses) in [
        ("/api/traces/t/messages/%00", &[400, 404][..]),
        ("/api/traces/t/messages/a%2Fb", &[400, 404]),
        ("/api/traces/t/messages/unknown", &[404]),
        ("/api/traces/t/messages/9?by=sequence", &[404]),
        ("/api/traces/t/messages/0?by=sequence", &[400, 404]),
        ("/api/traces/t/messages/x?by=sequence", &[400]),
        ("/api/traces/t/messages/-1?by=sequence", &[400]),
        ("/api/traces/t/messages/18446744073709551616?by=sequence", &[400]),
        ("/api/traces/t/messages/1?by=name", &[400]),
        ("/api/traces/t/unknown", &[404]),
        ("/api/traces/t/", &[404]),
        ("/api/tracesx", &[404]),
        ("/api/traces/t/%2E%2E/t", &[404]),
    ] {
        let status = ada.send("GET", path, &Value::Null).status;
        assert!(statuses.contains(&status), "{path}: {status}");
    }
    for goal in ["%00", "a%2Fb", "%2E%2E", &long] {
        let status = ada.send("PATCH", &format!("/api/traces/t/goals/{goal}"), &json!({"status": "completed"})).status;
        assert!([400, 404].contains(&status), "{goal}: {status}");
    }
    assert_eq!(ada.whole("t"), before);
}

/// Whoever chooses an id must not choose where the server connects to, nor use the key that the server has for a peer.
#[cfg(feature = "remote")]
#[test]
fn no_route_connects_to_a_place_that_its_caller_may_not_name() {
    use std::net::TcpListener;
    use std::sync::Arc;
    use treehold::traces::{ApiKey, OrganizationTraces, Peer, Peers, PeersOptions, Traces};

    let (registered, stranger) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let [far, port] = [&registered, &stranger].map(|listener| listener.local_addr().unwrap().port());
    let connected = |listener: &TcpListener| {
        listener.set_nonblocking(true).unwrap();
        std::iter::from_fn(|| listener.accept().ok()).count()
    };
    let timeout = std::time::Duration::from_millis(50);
    for (are_allowed, is_refused) in [(false, 400), (true, 403)] {
        let peer = Peer::new("far", format!("http://127.0.0.1:{far}"), false).unwrap().with_key(ApiKey::text("s3cret-s3cret"));
        let remote = treehold::RemoteOptions::new().with_timeouts(timeout, timeout).with_attempts_max(1);
        let peers = Peers::new([peer], PeersOptions::new().with_remote(remote).with_unregistered_hosts(are_allowed)).unwrap();
        let store: Arc<dyn treehold::store::Store> = Arc::new(treehold::MemoryStore::new());
        let traces = OrganizationTraces::new(Traces::new(store.clone()), "acme").with_peers(peers, None, None);
        let served = Served::on(store, |options| options.with_tokens(true).with_organization_traces(traces));
        let ada = admin(&served);
        let outsider = Caller::new(&served, "other", "ada", Rights::new(Access::Admin));
        let unregistered = [
            format!("agent://127.0.0.1:{port}/x"),
            format!("agent://2130706433:{port}/x"),
            format!("agent://0x7f.1:{port}/x"),
            format!("agent://[::1]:{port}/x"),
            format!("agent://[::ffff:127.0.0.1]:{port}/x"),
            format!("agent://localhost:{port}/x"),
            format!("agent://localhost.:{port}/x"),
        ];
        let of_peers = ["@far/x".to_owned(), format!("agent://127.0.0.1:{far}/x")];
        let encoded = |id: &str| id.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        for route in routes(&served) {
            for base in BASES {
                let send = |caller: &Caller<'_>, id: &str| {
                    let (mut body, mut url) = (body(&route.id), route.url(base, "TRACE").replace("TRACE", &encoded(id)));
                    if !route.names_trace() {
                        url = base.to_owned();
                        body["trace_id"] = id.into();
                    }
                    let answer = caller.send(&route.method, &url, &body);
                    (answer.status, answer.text())
                };
                if route.id == "listTraces" {
                    continue;
                }
                for id in &unregistered {
                    let (status, said) = send(&ada, id);
                    // A name is resolved before it is refused, and then it is as if nobody answered.
                    let is_name = are_allowed && id.contains("localhost");
                    assert!(status == is_refused || is_name && status == 503, "{} {id}: {status} {said}", route.id);
                }
                for id in unregistered.iter().chain(&of_peers) {
                    let (status, said) = send(&outsider, id);
                    assert_eq!(status, 400, "{} {id}: {said}", route.id);
                    assert!(!said.contains("s3cret"), "{said}");
                }
            }
        }
        assert_eq!((connected(&registered), connected(&stranger)), (0, 0));
        // A member reaches the peer, who does not answer in time.
        assert_eq!(ada.send("GET", "/api/traces/%40far%2Fx", &Value::Null).status, 504);
        assert_eq!((connected(&registered), connected(&stranger)), (1, 0));
    }
}

#[test]
fn queries_that_mean_nothing_are_refused() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.fill("t");
    let of_numbers = ["=x", "=-1", "=1.5", "=18446744073709551616", "=1&{}=2"];
    let mut refused: Vec<String> = Vec::new();
    for (path, names) in [
        ("", &["limit"][..]),
        ("/t/messages", &["limit", "offset", "since_sequence"]),
        ("/t/events", &["limit", "since_event_id"]),
        ("/t/watch", &["since_event_id"]),
    ] {
        for name in names {
            refused.extend(of_numbers.map(|value| format!("{path}?{name}{}", value.replace("{}", name))));
        }
    }
    let more = [
        "?limit=0",
        "?limit=101",
        "?status=done",
        "?mode=main_path",
        "?cursor=x",
        "?unknown=1",
        "/t/messages?limit=0",
        "/t/messages?limit=1001",
        "/t/messages?mode=all",
        "/t/messages?mode=MAIN_PATH",
        "/t/messages?head_sequence=1",
        "/t/messages?mode=main_path&head_sequence=x",
        "/t/messages?mode=main_path&head_sequence=99",
        "/t/messages?mode=main_path&offset=0",
        "/t/messages?mode=main_path&since_sequence=1",
        "/t/messages?mode=main_path&goal_id=1",
        "/t/messages?mode=main_path&limit=0",
        "/t/messages?mode=main_path&limit=1001",
        "/t/messages?unknown=1",
        "/t/messages/t-0001?by=",
        "/t/messages/t-0001?unknown=1",
        "/t/events?limit=0",
        "/t/events?limit=1001",
        "/t/events?unknown=1",
        "/t/watch?unknown=1",
    ];
    refused.extend(more.map(str::to_owned));
    for rest in refused {
        for base in BASES {
            let answer = ada.send("GET", &format!("{base}{rest}"), &Value::Null);
            assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_argument"), "{base}{rest}");
        }
    }
}

#[test]
fn bodies_of_a_wrong_shape_are_refused_on_every_route() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.fill("t");
    let before = ada.whole("t");
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for route in routes(&served).iter().filter(|route| route.takes_json) {
        let url = route.url("/api/traces", "t");
        let mut bodies = vec!["[]".to_owned(), "7".to_owned(), "\"x\"".to_owned(), "{".to_owned(), "{}x".to_owned(), deep.clone()];
        // Each field with a value of another type, and with deep nesting.
        let valid = body(&route.id);
        for name in valid.as_object().unwrap().keys() {
            for wrong in [json!(true), json!([[7]]), Value::String("@deep".to_owned())] {
                let mut body = valid.clone();
                body[name] = wrong.clone();
                // Contents and fields of runners are any JSON.
                if (name == "content" || name == "text") && wrong != json!("@deep") {
                    continue;
                }
                bodies.push(body.to_string().replace("\"@deep\"", &deep));
            }
        }
        // What a runner adds to its traces, messages, goals and events is kept; changes have known fields only.
        if route.method == "PATCH" || ["reflectTrace", "runTrace"].contains(&route.id.as_str()) {
            let mut body = valid.clone();
            body["unknown"] = json!(1);
            bodies.push(body.to_string());
        }
        for body in bodies {
            let answer = ada.with(&route.method, &url, &[], body.as_bytes());
            let (status, said) = (answer.status, answer.text());
            let start: String = body.chars().take(120).collect();
            assert!(status == 400 && said.contains("invalid_argument"), "{} {start}: {status} {said}", route.id);
        }
        let text = ada.with(&route.method, &url, &[("content-type", "text/plain")], valid.to_string().as_bytes());
        assert!(text.status >= 400, "{}", route.id);
    }
    for (path, bodies) in [
        (
            "/messages",
            vec![
                json!({}),
                json!({"content": "no role"}),
                json!({"role": ""}),
                json!({"role": "a\nb"}),
                json!({"role": "user", "parent_sequence": 99}),
                json!({"role": "user", "parent_sequence": -1}),
                json!({"role": "user", "tokens": -1}),
                json!({"role": "user", "cost": -0.5}),
                json!({"role": "user", "message_id": "a/b"}),
                json!({"role": "user", "summarizes": {"from": 2, "to": 1}}),
                json!({"role": "user", "summarizes": [1, 2]}),
                json!({"messages": []}),
                json!({"messages": null}),
                json!({"messages": [user("first"), {"role": "user", "parent_sequence": 99}]}),
                json!({"messages": [user("first"), 7]}),
                json!({"messages": [user("first")], "role": "user"}),
                json!({"messages": [user("first")], "expected_head": "2"}),
                json!({"messages": (0..1_001).map(|_| user("x")).collect::<Vec<_>>()}),
            ],
        ),
        (
            "/events",
            vec![json!({}), json!({"event": ""}), json!({"event": 7}), json!({"event": "a\nb"}), json!({"event": "x".repeat(300)})],
        ),
        (
            "/goals",
            vec![json!({}), json!({"description": 7}), json!({"id": "a/b", "description": "x"}), json!({"id": "\0", "description": "x"})],
        ),
        ("/run", vec![json!({"wait_ms": 30_001}), json!({"wait_ms": -1}), json!({"after_sequence": "1"}), json!({"messages": {}})]),
    ] {
        for body in bodies {
            let answer = ada.send("POST", &format!("/v1/traces/t{path}"), &body);
            let (status, said) = (answer.status, answer.text());
            let start: String = body.to_string().chars().take(120).collect();
            assert!(status == 400 && said.contains("invalid_argument"), "{path} {start}: {status} {said}");
        }
    }
    let unknown_parent = json!({"description": "x", "parent_id": "unknown"});
    assert_eq!(ada.send("POST", "/v1/traces/t/goals", &unknown_parent).code(), "not_found");
    for head in [json!(99), json!(-1), json!("1")] {
        assert_eq!(ada.send("PATCH", "/v1/traces/t", &json!({"head_sequence": head})).code(), "invalid_argument");
    }
    assert_eq!(ada.whole("t"), before, "nothing was written");
}

#[test]
fn values_beyond_the_limits_are_too_large() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.fill("t");
    let before = ada.whole("t");
    for (method, path, body) in [
        ("POST", "/t/messages", user(&"x".repeat(2 << 20))),
        ("POST", "/t/messages", user(&"x".repeat(40 << 20))),
        ("POST", "/t/messages", json!({"messages": [user("small"), user(&"x".repeat(2 << 20))]})),
        ("PATCH", "/t/messages/t-0001", json!({"content": "x".repeat(2 << 20)})),
        ("POST", "/t/events", json!({"event": "note", "text": "x".repeat(100 << 10)})),
        ("PUT", "/t/goals", json!({"mission": "x".repeat(2 << 20)})),
        ("PATCH", "/t", json!({"task": "x".repeat(1 << 20)})),
        ("POST", "", json!({"task": "x".repeat(1 << 20)})),
    ] {
        for base in BASES {
            let answer = ada.send(method, &format!("{base}{path}"), &body);
            assert_eq!((answer.status, answer.code().as_str()), (413, "too_large"), "{method} {path}");
        }
    }
    assert_eq!(ada.whole("t"), before, "nothing was written");
}

/// A store keeps what it knows about a trace, whatever a client claims.
#[test]
fn fields_that_the_store_keeps_cannot_be_forged() {
    let served = Served::closed();
    let ada = admin(&served);
    let forged =
        json!({"trace_id": "t", "uid": "bob", "status": "completed", "total_messages": 99, "goal_tree": {"goals": [7]}, "remote": true});
    ada.ok("POST", "/api/traces", forged);
    let found = ada.get("/api/traces/t");
    assert_eq!((&found["uid"], &found["status"], &found["total_messages"]), (&json!("ada"), &json!("running"), &json!(0)));
    assert_eq!((&found["goal_tree"]["goals"], found.get("remote")), (&json!([]), None));
    // A client of the original protocol sends the whole message.
    let forged = json!({"role": "user", "content": "x", "trace_id": "other", "sequence": 77, "created_at": "1970-01-01T00:00:00Z"});
    let added = ada.ok("POST", "/api/traces/t/messages", forged);
    let message = &added["messages"][0];
    assert_eq!((&message["trace_id"], &message["sequence"]), (&json!("t"), &json!(1)));
    assert_ne!(message["created_at"], "1970-01-01T00:00:00Z");
    let forged = json!({"event": "note", "event_id": 99, "ts": "1970"});
    let answer = ada.send("POST", "/api/traces/t/events", &forged);
    let (status, said) = (answer.status, answer.text());
    assert!(status == 400 || status == 201, "{said}");
    for event in ada.get("/api/traces/t/events")["events"].as_array().unwrap() {
        assert!(event["event_id"] != 99 && event["ts"] != "1970", "{event}");
    }
}
