//! Threads over HTTP: separate states, checkpoints, forks and merges; tools and memory.

use super::Served;
use serde_json::json;

#[test]
fn threads_have_separate_states_and_share_memories() {
    let served = Served::start();
    served.put("/v1/threads/one/fs/own", b"one");
    served.put("/v1/threads/one/fs/memories/ours", b"ours");
    assert_eq!(served.get("/v1/threads/two/fs/own").code(), "not_found");
    assert_eq!(served.get("/v1/threads/two/fs/memories/ours").text(), "ours");
    assert_eq!(served.send("GET", "/v1/fs/own", &[("treehold-thread", "one")], b"").text(), "one");
    assert_eq!(served.send("GET", "/v1/threads/two/fs/own", &[("treehold-thread", "one")], b"").code(), "invalid_argument");
    let threads = served.get("/v1/threads").json();
    assert_eq!(threads["threads"][0]["thread"], "one", "{threads}");
}

#[test]
fn history_is_listed_compared_and_restored() {
    let served = Served::start();
    served.put("/v1/threads/t/fs/plan", b"first");
    let marked = served.post("/v1/threads/t/checkpoints", &json!({"label": "start", "metadata": {"why": "test"}}));
    assert_eq!(marked.status, 201);
    served.put("/v1/threads/t/fs/plan", b"second");
    assert_eq!(served.get("/v1/threads/t/checkpoints?label=start").json()["checkpoints"].as_array().unwrap().len(), 1);
    assert_eq!(served.get("/v1/threads/t/checkpoints/start/fs/plan").text(), "first");
    let diff = served.get("/v1/threads/t/diff?from=start&to=latest").json();
    assert_eq!((&diff["paths"][0]["path"], &diff["paths"][0]["change"]), (&json!("/plan"), &json!("changed")));
    assert_eq!(served.post("/v1/threads/t/checkpoints/start/restore", &json!({})).status, 201);
    assert_eq!(served.get("/v1/threads/t/fs/plan").text(), "first");
    assert_eq!(served.post("/v1/threads/t/fork", &json!({"thread": "u", "at": "start"})).status, 201);
    assert_eq!(served.post("/v1/threads/t/fork", &json!({"thread": "u"})).code(), "already_exists");
    served.put("/v1/threads/u/fs/new", b"of the fork");
    let merged = served.post("/v1/threads/t/merge", &json!({"source": "u"}));
    assert_eq!((merged.status, merged.json()["status"].as_str()), (200, Some("merged")));
    assert_eq!(served.get("/v1/threads/t/fs/new").text(), "of the fork");
    assert_eq!(served.post("/v1/threads/t/prune", &json!({})).code(), "invalid_argument");
    assert_eq!(served.post("/v1/threads/t/prune", &json!({"keep_last": 1})).json()["kept"], 1);
    assert_eq!(served.send("DELETE", "/v1/threads/t", &[], b"").status, 204);
    assert_eq!(served.get("/v1/threads/t").code(), "not_found");
}

#[test]
fn tools_are_called_and_recorded() {
    let served = Served::start();
    let written = served.post("/v1/threads/t/tools/write_file", &json!({"path": "/a.md", "content": "# A\n"})).json();
    assert_eq!((&written["is_error"], written["text"].as_str().unwrap().starts_with("Created /a.md")), (&json!(false), true));
    let failed = served.post("/v1/threads/t/tools/read_file", &json!({"path": "/none"}));
    assert_eq!(failed.status, 200);
    assert_eq!(failed.json()["error"]["code"], "not_found");
    assert_eq!(served.post("/v1/tools/shred", &json!({})).code(), "not_found");
    let wrong = served.post("/v1/tools/read_file", &json!({"pth": "/"}));
    assert_eq!(wrong.status, 200);
    let wrong = wrong.json();
    assert_eq!((&wrong["is_error"], &wrong["error"]["code"]), (&json!(true), &json!("invalid_argument")), "{wrong}");
    assert!(served.get("/v1/tools").json().as_array().unwrap().len() >= 10);
    let audit = served.send("GET", "/v1/audit", &[("treehold-thread", "t")], b"").json();
    assert_eq!((&audit["calls"][0]["tool"], &audit["calls"][1]["outcome"]), (&json!("write_file"), &json!("not_found")));
    served.put("/v1/fs/memories/AGENTS.md", b"Answer in French.");
    assert!(served.get("/v1/memory").json()["text"].as_str().unwrap().contains("Answer in French."));
}

#[test]
fn concurrent_writers_of_one_thread_lose_nothing() {
    let served = Served::start();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let served = &served;
            scope.spawn(move || {
                for number in 0..10 {
                    let line = format!("{writer}-{number}\n");
                    assert!(served.send("POST", "/v1/threads/t/fs/log", &[], line.as_bytes()).status < 300);
                }
            });
        }
    });
    assert_eq!(served.get("/v1/threads/t/fs/log").text().lines().count(), 40);
}
