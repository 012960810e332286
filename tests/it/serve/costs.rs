//! The round trips to the store per request, as stated in docs/scale.md.

use super::Served;
use crate::threads::watched::Watched;
use serde_json::json;
use std::sync::Arc;

/// Returns the reads and the commits of a request, which must succeed.
fn cost(served: &Served, store: &Watched, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (usize, usize) {
    store.seen();
    let answer = served.send(method, path, headers, body);
    let status = answer.status;
    assert!(status < 400, "{method} {path}: {status}: {}", answer.text());
    answer.bytes();
    let seen = store.seen();
    (seen.reads, seen.batches.len())
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
        "read: 3 + 0",
        "head: 2 + 0",
        "ls: 2 + 0",
        "grep: 3 + 0",
        "write: 2 + 1",
        "edit: 3 + 1",
        "write, with a key: 2 + 3",
        "the key again: 1 + 0",
        "tool that reads: 3 + 1",
        "tool that writes: 2 + 1",
        "memories: tool that writes: 1 + 1",
        "memories: read: 1 + 0",
        "memories: write: 1 + 1",
        "memories: append: 1 + 1",
    ];
    assert_eq!(told, expected);
}
