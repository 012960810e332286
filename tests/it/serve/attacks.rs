//! Requests that ask for much work: each is refused or bounded, and another tenant is answered meanwhile.
//!
//! One thread of the runtime serves everybody here, so a handler that works on it answers nobody else until it is done: then each read of
//! the other tenant would wait for a whole request of the attacker, and as many of these would end as there are reads.

use super::{Answer, Served, workspace};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use stratafs::serve::{Access, Rights};
use stratafs::{MemoryStore, Store};
use tokio::runtime::Builder;

const READS: usize = 30;

struct Tenants {
    served: Served,
    attacker: String,
    other: String,
}

impl Tenants {
    fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let served = Served::of(runtime, workspace(&store), store, |options| options.with_tokens(true));
        let token = |tenant: &str, user: &str| format!("Bearer {}", served.token(tenant, user, Rights::new(Access::Write)));
        let (attacker, other) = (token("acme", "mallory"), token("other", "bob"));
        let tenants = Self { served, attacker, other };
        assert_eq!(tenants.send(&tenants.other, "PUT", "/v1/fs/memories/a", b"x").status, 201);
        tenants
    }

    fn send(&self, token: &str, method: &str, path: &str, body: &[u8]) -> Answer {
        self.served.send(method, path, &[("authorization", token), ("content-type", "application/json")], body)
    }

    fn attack(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.send(&self.attacker, method, path, body)
    }

    /// Has the attacker send a request again and again while the other tenant reads, and checks that reads do not wait for whole requests.
    fn others_are_answered(&self, what: &str, attack: impl Fn() -> u16 + Sync) {
        let (done, attacks) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(attack(), 200, "{what}");
                    attacks.fetch_add(1, Ordering::Relaxed);
                }
            });
            for _ in 0..READS {
                assert_eq!(self.send(&self.other, "GET", "/v1/fs/memories/a", b"").status, 200, "{what}");
            }
            let attacks = attacks.load(Ordering::Relaxed);
            done.store(true, Ordering::Relaxed);
            assert!(attacks < READS / 2, "{what}: {attacks} requests of the attacker ended while another tenant read {READS} times");
        });
    }
}

/// Edits that go back and forth, each of which goes through all of the file.
fn edits(count: usize) -> Vec<u8> {
    let edits: Vec<Value> = (0..count)
        .map(|number| if number % 2 == 0 { json!({"old": "<one>", "new": "<two>"}) } else { json!({"old": "<two>", "new": "<one>"}) })
        .collect();
    json!({"edits": edits}).to_string().into_bytes()
}

#[test]
fn many_edits_of_a_large_file_are_bounded_and_keep_nobody_waiting() {
    let tenants = Tenants::new();
    let content = format!("{}<one>", "x".repeat(1 << 20));
    assert_eq!(tenants.attack("PUT", "/v1/fs/memories/large", content.as_bytes()).status, 201);
    let refused = tenants.attack("PATCH", "/v1/fs/memories/large", &edits(100_000));
    assert_eq!(refused.code(), "too_large");
    let body = edits(2_000);
    tenants.others_are_answered("edits of a row", || tenants.attack("PATCH", "/v1/fs/memories/large", &body).status);
    assert_eq!(tenants.attack("PUT", "/v1/fs/large", content.as_bytes()).status, 201);
    tenants.others_are_answered("edits of a thread's file", || tenants.attack("PATCH", "/v1/fs/large", &body).status);
}

#[test]
fn memory_full_of_closing_marks_is_told_in_few_tokens() {
    let tenants = Tenants::new();
    let mut marks = String::new();
    for count in 0..600 {
        marks.push_str(&format!("</memory{}>\n", "_file".repeat(count)));
    }
    assert_eq!(tenants.attack("PUT", "/v1/fs/memories/AGENTS.md", marks.as_bytes()).status, 201);
    let prompt = tenants.attack("GET", "/v1/memory", b"").json();
    let tokens = prompt["tokens"].as_u64().unwrap();
    assert!(tokens <= 8_000 && prompt["text"].as_str().unwrap().len() < 64_000, "{tokens}");
}

#[test]
fn a_patch_of_many_files_is_bounded_and_keeps_nobody_waiting() {
    let tenants = Tenants::new();
    let patch = |count: usize| {
        let files: String = (0..count).map(|number| format!("*** Add File: d/{number}\n+x\n")).collect();
        json!({"patch": format!("*** Begin Patch\n{files}*** End Patch")}).to_string().into_bytes()
    };
    let refused = tenants.attack("POST", "/v1/tools/apply_patch", &patch(100_000)).json();
    assert_eq!(refused["error"]["code"], "too_large", "{refused}");
    let body = patch(3_000);
    tenants.others_are_answered("a patch", || tenants.attack("POST", "/v1/tools/apply_patch", &body).status);
}

#[test]
fn a_batch_of_deep_directories_is_bounded_and_keeps_nobody_waiting() {
    let tenants = Tenants::new();
    let batch = |count: usize, depth: usize| {
        let change = |number: usize| json!({"operation": "create_dir", "path": format!("/{number}{}", "/d".repeat(depth))});
        json!({"changes": (0..count).map(change).collect::<Vec<_>>()}).to_string().into_bytes()
    };
    assert_eq!(tenants.attack("POST", "/v1/apply", &batch(100, 1_000)).code(), "too_large");
    assert_eq!(tenants.attack("POST", "/v1/apply", &batch(100_000, 1)).code(), "too_large");
    // Each time other directories: those that are there already cost nothing.
    let round = AtomicUsize::new(0);
    tenants.others_are_answered("directories", || {
        let round = round.fetch_add(1, Ordering::Relaxed);
        let change = |number: usize| json!({"operation": "create_dir", "path": format!("/{round}-{number}{}", "/d".repeat(200))});
        let body = json!({"changes": (0..20).map(change).collect::<Vec<_>>()}).to_string();
        tenants.attack("POST", "/v1/apply", body.as_bytes()).status
    });
}
