//! Requests that ask for much work: each is refused or bounded, and another tenant is answered meanwhile.
//!
//! One thread of the runtime serves everybody here, so a handler that works on it answers nobody else until it is done: then each read of
//! the other tenant would wait for a whole request of the attacker, and as many of these would end as there are reads.

use super::{Answer, Served, workspace};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::runtime::Builder;
use treehold::ops::OpKind;
use treehold::serve::{Access, Rights};
use treehold::tools::ToolSet;
use treehold::{MemoryStore, Store};

const READS: usize = 30;

/// How many rounds may fail before a read counts as one that waits.
const ROUNDS: usize = 5;

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

    /// Checks that the other tenant's reads do not wait for whole requests of the attacker.
    ///
    /// A read that waits for the attacker's request is answered after it, in every round. On a busy machine short requests may end as often
    /// as reads by chance, so one round with fewer is enough.
    fn others_are_answered(&self, what: &str, attack: impl Fn() -> u16 + Sync) {
        let rounds: Vec<usize> =
            (0..ROUNDS).map(|_| self.attacks_during_reads(what, &attack)).take_while(|attacks| *attacks >= READS / 2).collect();
        assert!(rounds.len() < ROUNDS, "{what}: {rounds:?} requests of the attacker ended while another tenant read {READS} times");
    }

    /// Has the attacker send a request again and again while the other tenant reads, and counts the requests that ended.
    fn attacks_during_reads(&self, what: &str, attack: &(impl Fn() -> u16 + Sync)) -> usize {
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
            attacks
        })
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

/// A text of some megabytes, whose last line is told apart by its number.
fn many_lines() -> String {
    (0..=LAST_LINE).map(|number| format!("line number {number} of many\n")).collect()
}

const LAST_LINE: usize = 200_000;

impl Tenants {
    /// Stores the text in a row and in the thread.
    fn with_large_files() -> Self {
        let tenants = Self::new();
        for path in ["/v1/fs/large", "/v1/fs/memories/large"] {
            assert_eq!(tenants.attack("PUT", path, many_lines().as_bytes()).status, 201);
        }
        tenants
    }
}

/// Returns the arguments of a call that takes long and can be repeated; none for a tool that looks at one name or one page, or stores what
/// it was given. Another tool has to be decided about.
fn much_for(set: &str, tool: &str) -> Option<Value> {
    let line = format!("line number {LAST_LINE} of many");
    Some(match (set, tool) {
        ("default", "edit_file") => json!({"path": "/large", "old_string": line, "new_string": line}),
        ("default", "apply_patch") => {
            json!({"patch": format!("*** Begin Patch\n*** Update File: /large\n@@\n-{line}\n+{line}\n*** End Patch")})
        }
        ("default", "grep") => json!({"pattern": "(no|other) [sS]uch (text|word)", "regex": true, "path": "/large"}),
        ("default", "search") => json!({"query": "many lines", "path": "/large"}),
        ("memory", "memory") => json!({"command": "str_replace", "path": "/memories/large", "old_str": line, "new_str": line}),
        ("text-editor", "str_replace_based_edit_tool") => {
            json!({"command": "str_replace", "path": "/large", "old_str": line, "new_str": line})
        }
        ("agent", "edit") => json!({"file_path": "/large", "old_string": line, "new_string": line}),
        ("agent", "grep") => json!({"pattern": "(no|other) [sS]uch (text|word)", "path": "/large"}),
        ("default", "ls" | "glob" | "read_file" | "write_file" | "delete" | "move") | ("agent", "read" | "write" | "glob") => return None,
        (set, tool) => panic!("decide what much work is for `{tool}` of the set {set}"),
    })
}

#[test]
fn every_tool_on_much_content_keeps_nobody_waiting() {
    let tenants = Tenants::with_large_files();
    for set in ToolSet::ALL.map(ToolSet::name) {
        for tool in tenants.attack("GET", &format!("/v1/tools?set={set}"), b"").json().as_array().unwrap() {
            let name = tool["name"].as_str().unwrap();
            let Some(arguments) = much_for(set, name) else { continue };
            let (path, body) = (format!("/v1/tools/{name}?set={set}"), arguments.to_string());
            let answer = tenants.attack("POST", &path, body.as_bytes()).json();
            assert_eq!(answer["is_error"], false, "{name} of {set}: {answer}");
            tenants.others_are_answered(&format!("{name} of {set}"), || tenants.attack("POST", &path, body.as_bytes()).status);
        }
    }
}

#[test]
fn every_operation_on_much_content_keeps_nobody_waiting() {
    let tenants = Tenants::with_large_files();
    let edit = json!({"edits": [{"old": "line number", "new": "line number", "replace_all": true}]});
    for file in ["/large", "/memories/large"] {
        for kind in OpKind::ALL {
            let (method, path, body) = match kind {
                // They look at one name or one page, count at the speed of memory, or store what was given.
                OpKind::Stat | OpKind::Read | OpKind::Ls | OpKind::Glob | OpKind::Write | OpKind::Append | OpKind::Delete => continue,
                // Batches of them are tested by themselves.
                OpKind::CreateDir | OpKind::Rename | OpKind::Copy | OpKind::Apply => continue,
                OpKind::Grep => ("POST", "/v1/grep".to_owned(), json!({"pattern": "[a-z]+ 7+.[a-z]+$", "regex": true, "path": file})),
                OpKind::Search => ("POST", "/v1/search".to_owned(), json!({"query": "many numbers of lines", "path": file})),
                OpKind::Edit => ("PATCH", format!("/v1/fs{file}"), edit.clone()),
                kind => panic!("{kind:?} is new: add a request that makes it work much"),
            };
            let body = body.to_string();
            tenants.others_are_answered(&format!("{kind:?} of {file}"), || tenants.attack(method, &path, body.as_bytes()).status);
        }
    }
}

#[test]
fn a_dry_run_of_a_merge_keeps_nobody_waiting() {
    let tenants = Tenants::new();
    let text = |step: usize| (0..60_000).map(|number| format!("{}\n", number * step % 60_013)).collect::<String>();
    let put = |thread: &str, text: &str| {
        let path = format!("/v1/threads/{thread}/fs/text");
        assert!(tenants.attack("PUT", &path, text.as_bytes()).status < 300);
    };
    put("main", &text(1));
    assert!(tenants.attack("POST", "/v1/threads/main/fork", br#"{"thread": "other"}"#).status < 300);
    put("main", &text(7));
    put("other", &text(11));
    let body = br#"{"source": "other", "dry_run": true}"#;
    tenants.others_are_answered("a merge", || tenants.attack("POST", "/v1/threads/main/merge", body).status);
}
