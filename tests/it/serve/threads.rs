//! Threads over HTTP: separate states, checkpoints, forks and merges; tools and memory.

use super::{Served, ruled, workspace};
use serde_json::json;
use std::sync::Arc;
use tokio::runtime::Runtime;
use treehold::checkpoint::{StoreCheckpointer, namespace_of};
use treehold::layer::{Layered, Operations, ReadOnly, Rule};
use treehold::ops::OpKind;
use treehold::serve::{Access, Rights};
use treehold::store::{Batch, Namespace, ScanOptions, Store};
use treehold::{MemoryStore, Scope, VfsPathBuf, Workspace};

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

/// The part of a saved thread that is damaged.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// The record of its newest checkpoint.
    Head,
    /// The pages with its paths.
    Pages,
}

fn threads(kind: &str) -> Namespace {
    namespace_of(&Scope::new().with_tenant("acme").with_user("ada"), kind).unwrap()
}

/// Returns a store with a thread `bad` that cannot be read.
fn damaged(damage: Damage) -> Arc<dyn Store> {
    let served = Served::start();
    assert_eq!(served.put("/v1/threads/bad/fs/dir/a", b"x").status, 201);
    let store = served.store.clone();
    served.block_on(async {
        let batch = match damage {
            Damage::Head => Batch::new().put(&threads("heads"), "bad", b"\x01damaged".to_vec()),
            Damage::Pages => {
                let pages = threads("pages");
                let found = store.scan(&pages, ScanOptions::new()).await.unwrap().entries;
                assert!(!found.is_empty());
                found.iter().fold(Batch::new(), |batch, entry| batch.delete(&pages, entry.key()))
            }
        };
        store.commit(batch).await.unwrap();
    });
    store
}

/// Regression: a server refused to remove a thread that cannot be read, whoever asked.
#[test]
fn unreadable_thread_is_removed_where_nothing_could_refuse_one_of_its_paths() {
    let deny = |operations: Operations, pattern: &str| Rule::deny(operations, [pattern]).unwrap();
    let allow = |pattern: &str| Rule::allow(Operations::ALL, [pattern]).unwrap();
    let delete = Operations::from(OpKind::Delete);
    let whole = || Rights::new(Access::Admin);
    let part = || whole().with_paths([VfsPathBuf::parse("/dir").unwrap()]);
    let cases = [
        (vec![], whole(), true),
        (vec![], part(), false),
        (vec![allow("/dir")], whole(), true),
        (vec![deny(OpKind::Write.into(), "/kept")], whole(), true),
        (vec![allow("/"), deny(Operations::ALL, "/kept")], whole(), true),
        (vec![allow("/"), deny(Operations::ALL, "/kept")], part(), false),
        (vec![deny(Operations::WRITE, "/kept")], whole(), false),
        (vec![deny(Operations::READ, "/kept")], whole(), false),
        (vec![deny(delete, "/**/*.lock")], whole(), false),
        (vec![deny(delete, "/memories/kept")], whole(), false),
        (vec![Rule::ask(delete, ["/kept"]).unwrap()], whole(), false),
    ];
    for (rules, rights, is_removed) in cases {
        for damage in [Damage::Head, Damage::Pages] {
            let case = format!("{rules:?} {rights:?} {damage:?}");
            let store = damaged(damage);
            let (admin, lent) = removal(ruled(&store, rules.clone()), &store, rights.clone());
            match is_removed {
                true => assert_eq!((admin, lent), (404, (204, String::new())), "{case}"),
                false => {
                    assert_eq!((admin, lent.0), (500, 403), "{case}: {}", lent.1);
                    let told = |words: &str| assert!(lent.1.contains(words), "{case}: {}", lent.1);
                    told("\"code\":\"permission_denied\"");
                    told("the thread cannot be read");
                    told("remove it as a caller whose rules refuse nothing");
                }
            }
        }
    }
}

#[test]
fn unreadable_thread_of_a_read_only_tree_is_not_removed() {
    for damage in [Damage::Head, Damage::Pages] {
        let store = damaged(damage);
        let shut = Workspace::builder().mount("/", |opening| Ok(Arc::new(Layered::new(ReadOnly::new(), opening.state())))).unwrap();
        let shut = shut.with_state_mount("/").unwrap().checkpointer(StoreCheckpointer::new(store.clone())).build();
        let (left, (status, told)) = removal(shut, &store, Rights::new(Access::Admin));
        assert_eq!((left, status), (500, 403), "{told}");
        assert!(told.contains("\"code\":\"read_only\""), "{told}");
    }
    // What a store lacks is not damaged.
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    assert_eq!(removal(workspace(&store), &store, Rights::new(Access::Admin)).1.0, 404);
}

/// Removes the thread `bad` through a new server. Returns the status of its files afterwards, and the answer with its status.
fn removal(workspace: Workspace, store: &Arc<dyn Store>, rights: Rights) -> (u16, (u16, String)) {
    let served = Served::of(Runtime::new().unwrap(), workspace, store.clone(), |options| options.with_tokens(true));
    let as_bearer = |token: &str, method: &str, path: &str| {
        let answer = served.send(method, path, &[("authorization", &format!("Bearer {token}"))], b"");
        (answer.status, answer.text())
    };
    let answer = as_bearer(&served.token("acme", "ada", rights), "DELETE", "/v1/threads/bad");
    let left = as_bearer(&served.token("acme", "ada", Rights::new(Access::Admin)), "GET", "/v1/threads/bad/fs/dir/a").0;
    (left, answer)
}
