//! MCP sessions: each exists only for the caller that started it.

use super::{Answer, Served};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use tokio::runtime::Runtime;
use treehold::mcp::HttpLimits;
use treehold::memory::MemorySettings;
use treehold::serve::{Access, Rights, TokenBook};
use treehold::store::{MemoryStore, Store};
use treehold::{NamespaceTemplate, StoreBackend, VfsPathBuf};

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

/// Sends one MCP request, with a session header if a session is given.
pub(super) fn send(served: &Served, token: &str, method: &str, session: Option<&str>, more: &[(&str, &str)], body: &Value) -> Answer {
    let bearer = format!("Bearer {token}");
    let mut headers =
        vec![("authorization", bearer.as_str()), ("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    headers.extend(session.map(|session| ("mcp-session-id", session)));
    headers.extend(more);
    if !more.iter().any(|(name, _)| *name == "mcp-protocol-version") {
        headers.push(("mcp-protocol-version", LEGACY));
    }
    let body = if method == "POST" { body.to_string().into_bytes() } else { Vec::new() };
    served.send(method, "/mcp", &headers, &body)
}

fn handshake(served: &Served, token: &str, capabilities: &Value) -> Answer {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": client});
    send(served, token, "POST", None, &[], &json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}))
}

/// Starts a session and returns its id.
pub(super) fn begin(served: &Served, token: &str) -> String {
    let answer = handshake(served, token, &json!({"elicitation": {"form": {}}}));
    assert_eq!(answer.status, 200);
    let session = answer.header("mcp-session-id").expect("a session");
    drop(answer.text());
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(send(served, token, "POST", Some(&session), &[], &ready).status, 202);
    session
}

pub(super) fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// Sends a request as clients of revision 2026-07-28 do, without a session.
fn ask(served: &Served, token: &str, method: &str, mut params: Value) -> Answer {
    params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}});
    let name = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default().to_owned();
    let mut headers = vec![("mcp-protocol-version", MODERN), ("mcp-method", method)];
    if !name.is_empty() {
        headers.push(("mcp-name", &name));
    }
    send(served, token, "POST", None, &headers, &request(1, method, params))
}

/// The messages of a stream, read incrementally.
struct Messages(Box<dyn BufRead + Send>);

impl Messages {
    fn of(answer: Answer) -> Self {
        assert_eq!((answer.status, answer.header("content-type").as_deref()), (200, Some("text/event-stream")));
        Self(Box::new(BufReader::new(answer.response.into_body().into_with_config().limit(u64::MAX).reader())))
    }
}

impl Iterator for Messages {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(data) = line.strip_prefix("data:").map(str::trim).filter(|data| data.starts_with('{')) {
                return Some(serde_json::from_str(data).unwrap());
            }
        }
    }
}

/// Revokes a token, and returns once the server refuses it.
fn revoke(served: &Served, token: &str) {
    let id = token.split('_').nth(1).unwrap();
    served.block_on(TokenBook::new(served.store.clone()).revoke(id)).unwrap();
    // A token lookup is cached for at most a second.
    while send(served, token, "GET", Some("none"), &[], &Value::Null).status != 401 {}
}

/// Description, method, headers and body of a request, and the status for the session's owner.
type Asked = (&'static str, &'static str, Vec<(&'static str, &'static str)>, Value, u16);

/// Every kind of request on a session. The last one ends it.
fn requests() -> Vec<Asked> {
    let of = |id: u64, method: &str, params: Value| request(id, method, params);
    let uri = json!({"uri": "vfs:///memories/a"});
    let mut all = vec![
        ("open its stream", "GET", vec![], Value::Null, 200),
        ("resume its stream", "GET", vec![("last-event-id", "0")], Value::Null, 200),
        ("resume an answer", "GET", vec![("last-event-id", "0/1")], Value::Null, 200),
        ("ask for the instructions again", "POST", vec![], of(2, "ping", json!({})), 200),
        ("call a tool", "POST", vec![], of(3, "tools/call", json!({"name": "ls", "arguments": {"path": "/"}})), 200),
        ("list the tools", "POST", vec![], of(4, "tools/list", json!({})), 200),
        ("list the resources", "POST", vec![], of(5, "resources/list", json!({})), 200),
        ("read a resource", "POST", vec![], of(6, "resources/read", json!({"uri": "vfs:///memories"})), 200),
        ("subscribe", "POST", vec![], of(7, "resources/subscribe", uri.clone()), 200),
        ("unsubscribe", "POST", vec![], of(8, "resources/unsubscribe", uri), 200),
        ("list the prompts", "POST", vec![], of(9, "prompts/list", json!({})), 200),
        ("start again", "POST", vec![], json!({"jsonrpc": "2.0", "method": "notifications/initialized"}), 202),
        ("cancel a call", "POST", vec![], json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}), 202),
        ("answer a question", "POST", vec![], json!({"jsonrpc": "2.0", "id": 0, "result": {"action": "accept"}}), 202),
        ("refuse a question", "POST", vec![], json!({"jsonrpc": "2.0", "id": 0, "error": {"code": -1, "message": "no"}}), 202),
    ];
    all.push(("end it", "DELETE", vec![], Value::Null, 202));
    all
}

#[test]
fn session_exists_only_for_its_owner() {
    let served = Served::closed();
    let write = || Rights::new(Access::Write);
    let owner = served.token("acme", "ada", write());
    let revoked = served.token("acme", "ada", write());
    let strangers = [
        ("another tenant", served.token("other", "ada", write())),
        ("another user of the tenant", served.token("acme", "bob", write())),
        ("a narrower token of the user", served.token("acme", "ada", write().with_paths([path("/memories")]))),
        ("a reading token of the user", served.token("acme", "ada", Rights::new(Access::Read))),
        ("a token of the user for one thread", served.token("acme", "ada", write().with_threads(["default".to_owned()]))),
        ("another token of the same rights", served.token("acme", "ada", write())),
    ];
    let session = begin(&served, &owner);
    let of_revoked = begin(&served, &revoked);
    revoke(&served, &revoked);
    for (what, method, headers, body, status) in requests() {
        for (who, token) in &strangers {
            let refused = send(&served, token, method, Some(&session), &headers, &body);
            let unknown = send(&served, token, method, Some("no-such-session"), &headers, &body);
            assert_eq!((refused.status, unknown.status), (404, 404), "{who}: {what}");
            assert_eq!(refused.text(), unknown.text(), "{who}: {what}");
        }
        for session in [&of_revoked, &session] {
            assert_eq!(send(&served, &revoked, method, Some(session), &headers, &body).status, 401, "a revoked token: {what}");
        }
        // The attempts of others had no effect.
        assert_eq!(send(&served, &owner, method, Some(&session), &headers, &body).status, status, "the owner: {what}");
    }
    assert_eq!(send(&served, &owner, "GET", Some(&session), &[], &Value::Null).status, 404, "it has ended");
}

#[test]
fn session_header_is_ignored_in_sessionless_revisions() {
    let served = Served::closed();
    let [ada, eve] = ["ada", "eve"].map(|user| served.token("acme", user, Rights::new(Access::Write)));
    let session = begin(&served, &ada);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}});
    let call = request(1, "tools/call", json!({"name": "ls", "arguments": {}, "_meta": meta}));
    let headers = [("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "ls")];
    for session in [&session, "no-such-session"] {
        assert_eq!(send(&served, &eve, "POST", Some(session), &headers, &call).status, 200);
        // Without a session there is nothing to end or to follow.
        for method in ["GET", "DELETE"] {
            assert_eq!(send(&served, &eve, method, Some(session), &headers[..1], &Value::Null).status, 405, "{method}");
        }
    }
    // A request that mixes both forms does not reach a session either.
    let mixed = request(2, "resources/unsubscribe", json!({"uri": "vfs:///memories/a"}));
    assert!(send(&served, &eve, "POST", Some(&session), &headers[..1], &mixed).status >= 400);
    assert_eq!(send(&served, &ada, "POST", Some(&session), &[], &request(3, "ping", json!({}))).status, 200);
}

#[test]
fn question_in_a_session_can_be_answered_only_by_its_owner() {
    let served = Served::closed();
    let owner = served.token("acme", "ada", Rights::new(Access::Write));
    let stranger = served.token("other", "ada", Rights::new(Access::Admin));
    let bearer = format!("Bearer {owner}");
    served.send("PUT", "/v1/fs/memories/d/a", &[("authorization", &bearer)], b"x");
    let session = begin(&served, &owner);
    let delete = request(9, "tools/call", json!({"name": "delete", "arguments": {"path": "/memories/d", "recursive": true}}));
    let mut messages = Messages::of(send(&served, &owner, "POST", Some(&session), &[], &delete));
    let asked = messages.next().expect("a question");
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    let answer = |yes: bool| json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"confirm": yes}}});
    assert_eq!(send(&served, &stranger, "POST", Some(&session), &[], &answer(true)).status, 404);
    assert_eq!(send(&served, &owner, "POST", Some(&session), &[], &answer(false)).status, 202);
    let done = messages.next().expect("an answer");
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("did not agree"), "{done}");
    assert_eq!(served.send("GET", "/v1/fs/memories/d/a", &[("authorization", &bearer)], b"").status, 200);
}

#[test]
fn reply_to_a_question_is_bound_to_the_token_that_received_it() {
    let served = Served::closed();
    let [one, two] = [(); 2].map(|()| served.token("acme", "ada", Rights::new(Access::Write)));
    let bearer = format!("Bearer {one}");
    served.send("PUT", "/v1/fs/memories/d/a", &[("authorization", &bearer)], b"x");
    let delete = |token: &str, more: Value| {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        });
        let mut params = json!({"name": "delete", "arguments": {"path": "/memories/d", "recursive": true}, "_meta": meta});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let headers = [("mcp-protocol-version", MODERN), ("mcp-method", "tools/call"), ("mcp-name", "delete")];
        send(&served, token, "POST", None, &headers, &request(1, "tools/call", params)).json()
    };
    let asked = delete(&one, json!({}));
    let yes = json!({
        "inputResponses": {"confirm": {"action": "accept", "content": {"confirm": true}}},
        "requestState": asked["result"]["requestState"],
    });
    assert!(delete(&two, yes.clone())["error"]["message"].as_str().is_some_and(|text| text.contains("belongs to another call")));
    assert!(delete(&one, yes)["result"]["content"][0]["text"].as_str().unwrap().starts_with("Deleted"));
}

#[test]
fn stream_of_a_revoked_token_ends_without_further_events() {
    let mut limits = HttpLimits::default();
    limits.sessions_max = 1;
    let served = Served::with(|options| options.with_tokens(true).with_limits(limits));
    let own = served.token("acme", "ada", Rights::new(Access::Write));
    let token = served.token("acme", "ada", Rights::new(Access::Read));
    let write = |content: &[u8]| {
        let bearer = format!("Bearer {own}");
        assert!(served.send("PUT", "/v1/fs/memories/a", &[("authorization", &bearer)], content).status < 300);
    };
    write(b"one");
    let session = begin(&served, &token);
    let subscribe = request(1, "resources/subscribe", json!({"uri": "vfs:///memories/a"}));
    drop(send(&served, &token, "POST", Some(&session), &[], &subscribe).text());
    let of_session = Messages::of(send(&served, &token, "GET", Some(&session), &[], &Value::Null));
    let filter = json!({"notifications": {"resourceSubscriptions": ["vfs:///memories/a"]}});
    let mut streams = vec![of_session, Messages::of(ask(&served, &token, "subscriptions/listen", filter))];
    assert_eq!(streams[1].next().expect("the server acknowledges the subscription")["method"], "notifications/subscriptions/acknowledged");
    write(b"two");
    for stream in &mut streams {
        assert_eq!(stream.next().expect("a change")["method"], "notifications/resources/updated");
    }
    assert_eq!(handshake(&served, &own, &json!({})).status, 503, "the user has one session, and may have no more");
    revoke(&served, &token);
    write(b"three");
    for stream in streams {
        assert_eq!(stream.collect::<Vec<_>>(), [Value::Null; 0]);
    }
    // The session ended with the stream.
    assert_eq!(handshake(&served, &own, &json!({})).status, 200);
}

#[test]
fn idle_session_of_a_revoked_token_ends() {
    let mut limits = HttpLimits::default();
    limits.sessions_max = 1;
    let served = Served::with(|options| options.with_tokens(true).with_limits(limits));
    let own = served.token("acme", "ada", Rights::new(Access::Write));
    let token = served.token("acme", "ada", Rights::new(Access::Read));
    begin(&served, &token);
    assert_eq!(handshake(&served, &own, &json!({})).status, 503, "the user has one session, and may have no more");
    revoke(&served, &token);
    // Without any use of the session, and long before it is idle for too long.
    super::within(|| handshake(&served, &own, &json!({})).status == 200);
}

#[test]
fn sessions_of_one_user_do_not_limit_another() {
    let mut limits = HttpLimits::default();
    limits.sessions_max = 2;
    let served = Served::with(|options| options.with_tokens(true).with_limits(limits));
    let ada = [Rights::new(Access::Admin), Rights::new(Access::Read), Rights::new(Access::Write).with_paths([path("/memories")])]
        .map(|rights| served.token("acme", "ada", rights));
    let bob = served.token("acme", "bob", Rights::new(Access::Admin));
    let eve = served.token("other", "ada", Rights::new(Access::Admin));
    let sessions = [begin(&served, &ada[0]), begin(&served, &ada[1])];
    for token in &ada {
        let refused = handshake(&served, token, &json!({}));
        assert_eq!((refused.status, refused.header("retry-after").as_deref()), (503, Some("30")));
        assert_eq!(refused.json()["error"]["data"]["code"], "unavailable");
    }
    for other in [&bob, &eve] {
        begin(&served, other);
        begin(&served, other);
    }
    assert_eq!(send(&served, &ada[1], "DELETE", Some(&sessions[1]), &[], &Value::Null).status, 202);
    begin(&served, &ada[2]);
    // A failed handshake keeps no slot.
    assert_eq!(send(&served, &ada[0], "DELETE", Some(&sessions[0]), &[], &Value::Null).status, 202);
    for _ in 0..5 {
        assert!(send(&served, &ada[0], "POST", None, &[], &request(1, "tools/list", json!({}))).status >= 400);
    }
    begin(&served, &ada[0]);
}

#[test]
fn subscriptions_of_one_user_do_not_limit_another() {
    let served = Served::closed();
    let ada = [Access::Read, Access::Write].map(|access| served.token("acme", "ada", Rights::new(access)));
    let bob = served.token("acme", "bob", Rights::new(Access::Read));
    let subscribe = |token: &str, session: &str, number: usize| {
        let subscribe = request(1, "resources/subscribe", json!({"uri": format!("vfs:///memories/{number}")}));
        Messages::of(send(&served, token, "POST", Some(session), &[], &subscribe)).next().expect("an answer")
    };
    for connection in 0..10 {
        let token = &ada[connection % 2];
        let session = begin(&served, token);
        for number in 0..100 {
            assert!(subscribe(token, &session, number)["result"].is_object());
        }
    }
    for token in &ada {
        let refused = subscribe(token, &begin(&served, token), 0);
        assert_eq!(refused["error"]["data"]["code"], "unavailable", "{refused}");
    }
    assert!(subscribe(&bob, &begin(&served, &bob), 0)["result"].is_object());
}

#[test]
fn token_restricted_to_paths_sees_no_other_mount() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let workspace = super::built(
        |mut builder, store| {
            for mount in ["/vault", "/vault/inner", "/work/docs"] {
                let template = NamespaceTemplate::parse(&format!("{{tenant}}{}", mount.replace('/', "-"))).unwrap();
                let rows = store.clone();
                let open = move |opening: &treehold::workspace::Opening<'_>| {
                    let backend = StoreBackend::new(rows.clone(), template.fill(opening.scope())?);
                    Ok(Arc::new(backend) as Arc<dyn treehold::Backend>)
                };
                builder = builder.mount(mount, open).unwrap();
            }
            builder.memory(MemorySettings::new().with_sources([path("/vault/AGENTS.md"), path("/work/docs/AGENTS.md")]))
        },
        &store,
    );
    let served = Served::of(Runtime::new().unwrap(), workspace, store, |options| options.with_tokens(true));
    let whole = served.token("acme", "ada", Rights::new(Access::Write));
    let kept = served.token("acme", "ada", Rights::new(Access::Write).with_paths([path("/work/docs/own")]));
    let bearers = [&whole, &kept].map(|token| format!("Bearer {token}"));
    served.send("PUT", "/v1/fs/vault/AGENTS.md", &[("authorization", &bearers[0])], b"in the vault");

    let over_mcp: Vec<(&str, Value, bool)> = vec![
        ("server/discover", json!({}), true),
        ("tools/list", json!({}), false),
        ("prompts/list", json!({}), false),
        ("prompts/get", json!({"name": "memory"}), true),
        ("resources/list", json!({}), true),
        ("resources/templates/list", json!({}), true),
        ("resources/read", json!({"uri": "vfs:///"}), true),
        ("resources/directory/read", json!({"uri": "vfs:///"}), true),
        ("skills/list", json!({}), false),
        ("tools/call", json!({"name": "ls", "arguments": {"path": "/"}}), true),
        ("tools/call", json!({"name": "glob", "arguments": {"pattern": "**"}}), true),
        ("tools/call", json!({"name": "no_such_tool", "arguments": {}}), false),
        ("tools/call", json!({"name": "read_file", "arguments": {"path": "/work"}}), false),
    ];
    for (method, params, tells_all) in over_mcp {
        let [all, own] = [&whole, &kept].map(|token| ask(&served, token, method, params.clone()).text());
        assert_eq!(all.contains("vault"), tells_all, "{method} {params}: {all}");
        assert!(!own.contains("vault"), "{method} {params}: {own}");
    }
    let [all, own] = [&whole, &kept].map(|token| handshake(&served, token, &json!({})).text());
    assert!(all.contains("`/vault`") && all.contains("in the vault"), "{all}");
    assert!(!own.contains("vault") && own.contains("`/work/docs`"), "{own}");
    for (over_http, tells_all) in [
        ("/v1/capabilities", true),
        ("/v1/memory", true),
        ("/v1/ls?path=/", true),
        ("/v1/tree?path=/", true),
        ("/v1/stat?path=/none", false),
        ("/v1/tools", false),
        ("/v1/timeline", false),
    ] {
        let [all, own] = [&bearers[0], &bearers[1]].map(|bearer| served.send("GET", over_http, &[("authorization", bearer)], b"").text());
        assert_eq!(all.contains("vault"), tells_all, "{over_http}: {all}");
        assert!(!own.contains("vault"), "{over_http}: {own}");
    }
}
