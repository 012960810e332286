//! Tokens: authentication, and that no request reaches another user's data.

use super::{Answer, Served};
use serde_json::json;
use treehold::VfsPathBuf;
use treehold::serve::{Access, Rights, TokenBook};

fn send(served: &Served, token: &str, method: &str, path: &str, body: &[u8]) -> Answer {
    let bearer = format!("Bearer {token}");
    served.send(method, path, &[("authorization", &bearer), ("content-type", "application/json")], body)
}

#[test]
fn request_without_token_is_refused() {
    let served = Served::closed();
    for path in ["/v1/fs/a", "/v1/ls", "/v1/threads", "/metrics", "/mcp", "/v1/nothing-here"] {
        let answer = served.get(path);
        if path == "/v1/nothing-here" {
            assert_eq!(answer.status, 404);
            continue;
        }
        assert_eq!((answer.status, answer.header("www-authenticate").as_deref()), (401, Some("Bearer")), "{path}");
    }
    // What is wrong with a token is not told, only that it is not a missing one.
    let wrong = send(&served, "thd_none", "GET", "/v1/ls", b"");
    assert_eq!((wrong.status, wrong.header("www-authenticate").as_deref()), (401, Some("Bearer")));
    assert!(wrong.text().contains("the token is wrong, revoked or expired"));
    for headers in [&[][..], &[("authorization", "Basic YTpi")]] {
        assert!(served.send("GET", "/v1/ls", headers, b"").text().contains("this server requires a token"), "{headers:?}");
    }
    for open in ["/livez", "/readyz", "/version", "/openapi.json"] {
        assert_eq!(served.get(open).status, 200, "{open}");
    }
}

#[test]
fn token_reaches_only_its_own_tenant_and_user() {
    let served = Served::closed();
    let ada = served.token("acme", "ada", Rights::new(Access::Admin));
    let bob = served.token("acme", "bob", Rights::new(Access::Admin));
    let eve = served.token("other", "ada", Rights::new(Access::Admin));
    assert_eq!(send(&served, &ada, "PUT", "/v1/threads/t/fs/memories/secret", b"of ada").status, 201);
    assert_eq!(send(&served, &ada, "PUT", "/v1/threads/t/fs/own", b"of ada").status, 201);
    assert_eq!(send(&served, &ada, "PUT", "/v1/store/item?namespace=n&key=k", b"1").status, 200);
    for stranger in [&bob, &eve] {
        for (method, path, body) in [
            ("GET", "/v1/threads/t/fs/memories/secret", &b""[..]),
            ("GET", "/v1/threads/t/fs/own", b""),
            ("GET", "/v1/threads/t", b""),
            ("GET", "/v1/threads/t/checkpoints/latest", b""),
            ("DELETE", "/v1/threads/t", b""),
            ("GET", "/v1/store/item?namespace=n&key=k", b""),
            ("POST", "/v1/threads/mine/merge", br#"{"source": "t"}"#),
        ] {
            let answer = send(&served, stranger, method, path, body);
            assert_eq!(answer.status, 404, "{path}");
            assert!(!answer.text().contains("of ada"));
        }
        for (path, body) in
            [("/v1/grep", r#"{"pattern": "ada"}"#), ("/v1/search", r#"{"query": "ada secret"}"#), ("/v1/glob", r#"{"pattern": "**"}"#)]
        {
            let text = send(&served, stranger, "POST", path, body.as_bytes()).text();
            assert!(!text.contains("/memories/secret") && !text.contains("of ada"), "{text}");
        }
        assert_eq!(send(&served, stranger, "GET", "/v1/threads", b"").json()["threads"], json!([]));
        assert_eq!(send(&served, stranger, "GET", "/v1/store/namespaces", b"").json()["namespaces"], json!([]));
    }
    // Idempotency keys of different users are separate.
    let keyed = |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("idempotency-key", "same"), ("content-type", "application/json")];
        served.send("POST", "/v1/apply", &headers, br#"{"changes": [{"operation": "write", "path": "/memories/k", "content": "x"}]}"#)
    };
    assert_eq!(keyed(&ada).header("idempotency-replayed"), None);
    assert_eq!(keyed(&bob).header("idempotency-replayed"), None);
}

#[test]
fn token_is_restricted_to_its_rights() {
    let served = Served::closed();
    let admin = served.token("acme", "ada", Rights::new(Access::Admin));
    send(&served, &admin, "PUT", "/v1/fs/memories/a", b"text");
    send(&served, &admin, "PUT", "/v1/fs/other", b"hidden text");
    let reader = served.token("acme", "ada", Rights::new(Access::Read));
    assert_eq!(send(&served, &reader, "GET", "/v1/fs/memories/a", b"").text(), "text");
    for (method, path, body) in [
        ("PUT", "/v1/fs/memories/a", &b"x"[..]),
        ("POST", "/v1/fs/memories/a", b"x"),
        ("DELETE", "/v1/fs/memories/a", b""),
        ("POST", "/v1/tools/write_file", br#"{"path": "/memories/a", "content": "x"}"#),
        ("POST", "/v1/tools/memory?set=memory", br#"{"command": "delete", "path": "/memories/a"}"#),
        ("POST", "/v1/threads/default/checkpoints", b"{}"),
        ("POST", "/v1/threads/default/checkpoints/latest/restore", b"{}"),
        ("DELETE", "/v1/threads/default", b""),
        ("PUT", "/v1/store/item?namespace=n&key=k", b"1"),
        ("GET", "/v1/audit", b""),
    ] {
        assert_eq!(send(&served, &reader, method, path, body).code(), "permission_denied", "{method} {path}");
    }
    let memories = VfsPathBuf::parse("/memories").unwrap();
    let partial = served.token("acme", "ada", Rights::new(Access::Write).with_paths([memories]));
    assert_eq!(send(&served, &partial, "PUT", "/v1/fs/memories/a", b"new text").status, 200);
    for path in ["/v1/fs/other", "/v1/threads/default/checkpoints/latest/fs/other"] {
        assert_eq!(send(&served, &partial, "GET", path, b"").status, 404, "{path}");
    }
    // Near paths are those that the caller may see.
    assert!(send(&served, &admin, "GET", "/v1/fs/othr", b"").text().contains("did you mean `/other`?"));
    assert!(!send(&served, &partial, "GET", "/v1/fs/othr", b"").text().contains("did you mean"));
    assert!(send(&served, &partial, "GET", "/v1/fs/memories/b", b"").text().contains("`/memories/b` does not exist"));
    assert_eq!(send(&served, &partial, "PUT", "/v1/fs/else", b"x").code(), "permission_denied");
    let grep = send(&served, &partial, "POST", "/v1/grep", br#"{"pattern": "text"}"#).json();
    assert_eq!(grep["files"].as_array().unwrap().len(), 1, "{grep}");
    for path in ["/v1/threads", "/v1/threads/default/checkpoints", "/v1/threads/default"] {
        let answer = send(&served, &partial, "GET", path, b"");
        assert_eq!(answer.status, 200, "{path}");
        assert!(!answer.text().contains("\"entries\":1"), "the count reveals hidden entries: {path}");
    }
    assert_eq!(send(&served, &partial, "GET", "/v1/store/namespaces", b"").code(), "permission_denied");
    assert_eq!(send(&served, &partial, "POST", "/v1/threads/default/prune", br#"{"keep_last": 1}"#).code(), "permission_denied");
    let tied = served.token("acme", "ada", Rights::new(Access::Write).with_threads(["own".to_owned()]));
    assert_eq!(send(&served, &tied, "PUT", "/v1/fs/x", b"x").status, 201);
    assert_eq!(send(&served, &tied, "GET", "/v1/threads/own/fs/x", b"").text(), "x");
    for (method, path, body) in [
        ("GET", "/v1/threads/default/fs/other", &b""[..]),
        ("POST", "/v1/threads/own/fork", br#"{"thread": "default2"}"#),
        ("POST", "/v1/threads/own/merge", br#"{"source": "default"}"#),
    ] {
        assert_eq!(send(&served, &tied, method, path, body).code(), "permission_denied", "{path}");
    }
    assert!(!send(&served, &tied, "GET", "/v1/threads", b"").text().contains("default"));
    // Threads that a token may not see take no space on a page.
    for thread in ["a", "b", "p", "q", "z"] {
        send(&served, &admin, "PUT", &format!("/v1/threads/{thread}/fs/x"), b"x");
    }
    let two = served.token("acme", "ada", Rights::new(Access::Read).with_threads(["own".to_owned(), "q".to_owned()]));
    let first = send(&served, &two, "GET", "/v1/threads?limit=1", b"").json();
    assert_eq!((&first["threads"][0]["thread"], &first["next"]), (&json!("own"), &json!("own")));
    let rest = send(&served, &two, "GET", "/v1/threads?limit=1&cursor=own", b"").json();
    assert_eq!((&rest["threads"][0]["thread"], rest.get("next")), (&json!("q"), None));
}

#[test]
fn mcp_is_restricted_to_the_rights_of_the_token() {
    let served = Served::closed();
    let admin = served.token("acme", "ada", Rights::new(Access::Admin));
    send(&served, &admin, "PUT", "/v1/fs/memories/a", b"text");
    send(&served, &admin, "PUT", "/v1/fs/other", b"hidden text");
    let call = |token: &str, path: &str, tool: &str, arguments: serde_json::Value| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments, "_meta": meta}});
        let bearer = format!("Bearer {token}");
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", tool),
        ];
        served.send("POST", path, &headers, body.to_string().as_bytes()).text()
    };
    let memories = VfsPathBuf::parse("/memories").unwrap();
    let partial = served.token("acme", "ada", Rights::new(Access::Write).with_paths([memories]));
    assert!(call(&partial, "/mcp", "read_file", json!({"path": "/memories/a"})).contains("text"));
    assert!(call(&partial, "/mcp", "read_file", json!({"path": "/other"})).contains("not_found"));
    assert!(!call(&partial, "/mcp", "grep", json!({"pattern": "text"})).contains("hidden"));
    let reader = served.token("acme", "ada", Rights::new(Access::Read));
    assert!(!call(&reader, "/mcp", "write_file", json!({"path": "/memories/a", "content": "x"})).contains("Replaced"));
    assert_eq!(send(&served, &admin, "GET", "/v1/fs/memories/a", b"").text(), "text");
    let tied = served.token("acme", "ada", Rights::new(Access::Read).with_threads(["own".to_owned()]));
    assert!(!call(&tied, "/mcp/t/default", "read_file", json!({"path": "/other"})).contains("hidden"));
    let bob = served.token("acme", "bob", Rights::new(Access::Admin));
    assert!(call(&bob, "/mcp", "read_file", json!({"path": "/memories/a"})).contains("not_found"));
}

#[test]
fn revoked_token_is_refused() {
    let served = Served::closed();
    let token = served.token("acme", "ada", Rights::new(Access::Read));
    assert_eq!(send(&served, &token, "GET", "/v1/ls", b"").status, 200);
    let id = token.split('_').nth(1).unwrap();
    served.block_on(TokenBook::new(served.store.clone()).revoke(id)).unwrap();
    // A token lookup is cached for at most a second.
    let refused = (0..1_000_000).any(|_| send(&served, &token, "GET", "/v1/ls", b"").status == 401);
    assert!(refused);
}
