//! The round trips to the store per request, as stated in docs/scale.md.

use super::Served;
use crate::threads::watched::Watched;
use serde_json::json;
use std::sync::Arc;

/// Returns the reads and the commits of a request, which must succeed. Commits that are refused count too.
fn cost(served: &Served, store: &Watched, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (usize, usize) {
    store.seen();
    let answer = served.send(method, path, headers, body);
    let status = answer.status;
    assert!(status < 400, "{method} {path}: {status}: {}", answer.text());
    answer.bytes();
    let seen = store.seen();
    (seen.reads, seen.tried)
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn request_takes_the_documented_round_trips() {
    let store = Watched::default();
    let served = Served::on(Arc::new(store.clone()), |options| options);
    let changes: Vec<_> = (0..10)
        .map(|file| json!({"operation": "write", "path": format!("/notes/{file}"), "content": format!("{file} needle\n")}))
        .collect();
    let made = served.send("POST", "/v1/apply", &[JSON, ("treehold-thread", "t")], json!({"changes": changes}).to_string().as_bytes());
    assert_eq!(made.status, 200);
    served.put("/v1/fs/memories/a", b"ours needle\n");
    let cost = |method, path, headers: &[_], body: &[u8]| cost(&served, &store, method, path, headers, body);
    let edit = json!({"edits": [{"old": "needle", "new": "nail"}]}).to_string();
    let tool = json!({"path": "/notes/3"}).to_string();
    let write = json!({"path": "/notes/3", "content": "new"}).to_string();
    let shared = json!({"path": "/memories/a", "content": "new"}).to_string();
    let thread = ("treehold-thread", "t");
    // A user's keys are counted once a minute; do it before measuring.
    assert!(served.send("PUT", "/v1/threads/t/fs/notes/0", &[("idempotency-key", "first")], b"new").status < 400);
    let costs = [
        ("read", cost("GET", "/v1/threads/t/fs/notes/1", &[], b"")),
        ("head", cost("HEAD", "/v1/threads/t/fs/notes/1", &[], b"")),
        ("ls", cost("GET", "/v1/ls?path=/notes", &[thread], b"")),
        ("grep", cost("GET", "/v1/grep?pattern=needle&path=/notes", &[thread], b"")),
        ("write", cost("PUT", "/v1/threads/t/fs/notes/1", &[], b"new")),
        ("edit", cost("PATCH", "/v1/threads/t/fs/notes/2", &[JSON], edit.as_bytes())),
        ("write, with a key", cost("PUT", "/v1/threads/t/fs/notes/4", &[("idempotency-key", "k")], b"new")),
        ("the key again", cost("PUT", "/v1/threads/t/fs/notes/4", &[("idempotency-key", "k")], b"new")),
        ("tool that reads", cost("POST", "/v1/tools/read_file", &[JSON, thread], tool.as_bytes())),
        ("tool that writes", cost("POST", "/v1/tools/write_file", &[JSON, thread], write.as_bytes())),
        ("memories: tool that writes", cost("POST", "/v1/tools/write_file", &[JSON, thread], shared.as_bytes())),
        ("memories: read", cost("GET", "/v1/fs/memories/a", &[], b"")),
        ("memories: write", cost("PUT", "/v1/fs/memories/a", &[], b"new")),
        ("memories: append", cost("POST", "/v1/fs/memories/a", &[], b"more")),
    ];
    let told: Vec<String> = costs.iter().map(|(what, (reads, commits))| format!("{what}: {reads} + {commits}")).collect();
    let expected = [
        "read: 1 + 0",
        "head: 1 + 0",
        "ls: 1 + 0",
        "grep: 1 + 0",
        "write: 1 + 1",
        "edit: 1 + 1",
        "write, with a key: 1 + 3",
        "the key again: 1 + 1",
        "tool that reads: 1 + 1",
        "tool that writes: 1 + 1",
        "memories: tool that writes: 1 + 1",
        "memories: read: 1 + 0",
        "memories: write: 1 + 1",
        "memories: append: 1 + 1",
    ];
    assert_eq!(told, expected);
}

/// A server that has not seen a thread reads its page and its contents once, and again only what another server has changed since.
#[test]
fn thread_is_read_once_by_each_server() {
    let store = Watched::default();
    let served = Served::on(Arc::new(store.quiet()), |options| options);
    for file in 0..3 {
        served.put(&format!("/v1/threads/t/fs/notes/{file}"), format!("{file} needle\n").as_bytes());
    }
    let other = Served::on(Arc::new(store.clone()), |options| options);
    let cost = |path: &str| cost(&other, &store, "GET", path, &[("treehold-thread", "t")], b"");
    // The first request of a server reads more than its thread.
    assert_eq!(other.send("GET", "/v1/ls?path=/", &[("treehold-thread", "other")], b"").status, 200);
    let grep = "/v1/grep?pattern=needle&path=/notes";
    let [file_0, file_1] = ["/v1/threads/t/fs/notes/0", "/v1/threads/t/fs/notes/1"];
    assert_eq!([file_1, file_1, grep, grep].map(cost), [(3, 0), (1, 0), (2, 0), (1, 0)]);
    served.put("/v1/threads/t/fs/notes/1", b"new needle\n");
    assert_eq!([file_0, file_1, grep].map(cost), [(2, 0), (2, 0), (1, 0)], "the page and one content are new");
    assert!(other.send("GET", file_1, &[], b"").bytes() == b"new needle\n");
}

/// Each request goes to a server of its own, which has not seen the thread.
#[test]
fn first_request_of_a_server_takes_the_documented_round_trips() {
    let store = Watched::default();
    let served = Served::on(Arc::new(store.quiet()), |options| options);
    for file in 0..3 {
        served.put(&format!("/v1/threads/t/fs/notes/{file}"), format!("{file} needle\n").as_bytes());
    }
    let edit = json!({"edits": [{"old": "needle", "new": "nail"}]}).to_string();
    let thread = ("treehold-thread", "t");
    let file = "/v1/threads/t/fs/notes/1";
    let requests: [(Request<'_>, (usize, usize)); 6] = [
        (("GET", file, &[], b""), (3, 0)),
        (("HEAD", file, &[], b""), (2, 0)),
        (("GET", "/v1/ls?path=/notes", &[thread], b""), (2, 0)),
        (("GET", "/v1/grep?pattern=needle&path=/notes", &[thread], b""), (3, 0)),
        (("PUT", "/v1/threads/t/fs/notes/2", &[], b"new"), (2, 1)),
        (("PATCH", file, &[JSON], edit.as_bytes()), (3, 1)),
    ];
    for ((method, path, headers, body), expected) in requests {
        let other = Served::on(Arc::new(store.clone()), |options| options);
        // The first request of a server reads more than its thread.
        assert_eq!(other.send("GET", "/v1/ls?path=/", &[("treehold-thread", "other")], b"").status, 200);
        assert_eq!(cost(&other, &store, method, path, headers, body), expected, "{method} {path}");
    }
}

/// A method, a path, headers and a body.
type Request<'r> = (&'r str, &'r str, &'r [(&'r str, &'r str)], &'r [u8]);

/// Each request meets one save of another server between its read of the head and its own save.
#[test]
fn conflict_costs_one_commit_at_every_entry_point() {
    let store = Watched::default();
    let served = Served::on(Arc::new(store.clone()), |options| options);
    let other = Served::on(Arc::new(store.quiet()), |options| options);
    let other_base = other.base.clone();
    served.put("/v1/threads/t/fs/start", b"start");
    let thread = ("treehold-thread", "t");
    let changes = json!({"changes": [{"operation": "write", "path": "/applied", "content": "x"}]}).to_string();
    let tool = json!({"path": "/called", "content": "x"}).to_string();
    let rename = json!({"from": "/start", "to": "/moved"}).to_string();
    let mcp = |name: &str, arguments: serde_json::Value| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
        let params = json!({"name": name, "arguments": arguments, "_meta": meta});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
    };
    let called = mcp("write_file", json!({"path": "/mcp", "content": "x"}));
    let edited = mcp("edit_file", json!({"path": "/mcp", "old_string": "x", "new_string": "y"}));
    let rpc = |name| {
        let accept = ("accept", "application/json, text/event-stream");
        [JSON, accept, ("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", name), thread]
    };
    let (write_file, edit_file) = (rpc("write_file"), rpc("edit_file"));
    let requests: [Request; 7] = [
        ("PUT", "/v1/threads/t/fs/put", &[], b"x"),
        ("POST", "/v1/apply", &[JSON, thread], changes.as_bytes()),
        ("POST", "/v1/tools/write_file", &[JSON, thread], tool.as_bytes()),
        ("POST", "/v1/move", &[JSON, thread], rename.as_bytes()),
        ("POST", "/v1/threads/t/checkpoints", &[JSON], b"{}"),
        ("POST", "/mcp", &write_file, called.as_bytes()),
        ("POST", "/mcp", &edit_file, edited.as_bytes()),
    ];
    for (number, (method, path, headers, body)) in requests.into_iter().enumerate() {
        let url = format!("{other_base}/v1/threads/t/fs/other-{number}");
        store.before_commit(move || async move {
            let sent = tokio::task::spawn_blocking(move || ureq::put(&url).send("other").map(|answer| answer.status().as_u16())).await;
            assert!(sent.unwrap().unwrap() < 300);
        });
        store.seen();
        let answer = served.send(method, path, headers, body);
        assert!(answer.status < 400, "{method} {path}: {}", answer.text());
        let text = answer.text();
        let tried = store.seen().tried;
        assert_eq!(tried, 2, "{method} {path} {}: one is refused, one takes effect: {text}", String::from_utf8_lossy(body));
        let kept = served.send("GET", &format!("/v1/threads/t/fs/other-{number}"), &[], b"");
        assert_eq!(kept.text(), "other", "{method} {path}");
    }
    let listed = served.send("GET", "/v1/ls?path=/", &[thread], b"").text();
    for file in ["put", "applied", "called", "moved", "mcp"] {
        assert!(listed.contains(&format!("\"/{file}\"")), "{file}: {listed}");
    }
}
