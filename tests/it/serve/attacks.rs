//! Requests that ask for much work: each is refused or bounded, and another tenant is served meanwhile.
//!
//! A single runtime thread serves everybody here, so a handler that computes on it blocks every other request. The tests measure the longest
//! stretch that the thread computes without yielding, in processor time, which does not grow when the machine is busy with other programs.

use super::{Answer, Served, workspace};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Builder;
use treehold::ops::OpKind;
use treehold::serve::{Access, Rights};
use treehold::tools::ToolSet;
use treehold::{MemoryStore, Store};

/// The longest the runtime thread may compute without yielding. A patch of 3,000 files took 78 ms in a debug build.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The interval of the task that observes the thread.
const BEAT: Duration = Duration::from_millis(1);

/// Far beyond what an attack takes: the refusals are tested, not the deadline.
const DEADLINE: Duration = Duration::from_secs(600);

/// How many attempts an attack gets, because the system sometimes charges a thread for handling interrupts.
const ROUNDS: usize = 3;

struct Tenants {
    served: Served,
    attacker: String,
    other: String,
}

impl Tenants {
    fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let served = Served::of(runtime, workspace(&store), store, |options| options.with_tokens(true).with_deadline(DEADLINE));
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

    /// Checks that the runtime thread keeps yielding during the attacker's request, and that another tenant's reads succeed.
    fn others_are_answered(&self, what: &str, attack: impl Fn() -> u16 + Sync) {
        let rounds: Vec<Duration> = (0..ROUNDS).map(|_| self.longest_work(what, &attack)).take_while(|work| *work > PAUSE_MAX).collect();
        assert!(rounds.len() < ROUNDS, "{what}: the runtime thread computed without yielding for {rounds:?}");
    }

    /// Sends the attacker's request while the other tenant reads. Returns the longest processor time between two turns of an observing task.
    fn longest_work(&self, what: &str, attack: &(impl Fn() -> u16 + Sync)) -> Duration {
        let done = Arc::new(AtomicBool::new(false));
        let watched = done.clone();
        let longest = self.served.spawn(async move {
            let (mut longest, mut last) = (Duration::ZERO, processor_time());
            while !watched.load(Ordering::Relaxed) {
                tokio::time::sleep(BEAT).await;
                let now = processor_time();
                longest = longest.max(now - last);
                last = now;
            }
            longest
        });
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _done = SetOnDrop(&done);
                assert_eq!(attack(), 200, "{what}");
            });
            while !done.load(Ordering::Relaxed) {
                assert_eq!(self.send(&self.other, "GET", "/v1/fs/memories/a", b"").status, 200, "{what}");
            }
        });
        self.served.block_on(longest).unwrap()
    }
}

/// Ends the other tenant's reads, even if the attack fails its assertion.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Edits that go back and forth, each of which scans the whole file.
fn edits(count: usize) -> Vec<u8> {
    let edits: Vec<Value> = (0..count)
        .map(|number| if number % 2 == 0 { json!({"old": "<one>", "new": "<two>"}) } else { json!({"old": "<two>", "new": "<one>"}) })
        .collect();
    json!({"edits": edits}).to_string().into_bytes()
}

#[test]
fn many_edits_of_a_large_file_are_bounded_and_do_not_block_others() {
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
fn memory_full_of_closing_tags_takes_few_tokens() {
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
fn patch_of_many_files_is_bounded_and_does_not_block_others() {
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
fn batch_of_deep_directories_is_bounded_and_does_not_block_others() {
    let tenants = Tenants::new();
    let batch = |count: usize, depth: usize| {
        let change = |number: usize| json!({"operation": "create_dir", "path": format!("/{number}{}", "/d".repeat(depth))});
        json!({"changes": (0..count).map(change).collect::<Vec<_>>()}).to_string().into_bytes()
    };
    assert_eq!(tenants.attack("POST", "/v1/apply", &batch(100, 1_000)).code(), "too_large");
    assert_eq!(tenants.attack("POST", "/v1/apply", &batch(100_000, 1)).code(), "too_large");
    // Use new directories each time, since existing ones cost nothing.
    let round = AtomicUsize::new(0);
    tenants.others_are_answered("directories", || {
        let round = round.fetch_add(1, Ordering::Relaxed);
        let change = |number: usize| json!({"operation": "create_dir", "path": format!("/{round}-{number}{}", "/d".repeat(200))});
        let body = json!({"changes": (0..20).map(change).collect::<Vec<_>>()}).to_string();
        tenants.attack("POST", "/v1/apply", body.as_bytes()).status
    });
}

/// A text of several megabytes whose last line has a unique number.
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

/// Returns the arguments of a repeatable call that takes long, or `None` for a tool that reads one name or one page, or stores what it is
/// given. A new tool needs a decision here.
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
fn tools_on_large_content_do_not_block_others() {
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
fn operations_on_large_content_do_not_block_others() {
    let tenants = Tenants::with_large_files();
    let edit = json!({"edits": [{"old": "line number", "new": "line number", "replace_all": true}]});
    for file in ["/large", "/memories/large"] {
        for kind in OpKind::ALL {
            let (method, path, body) = match kind {
                // These read one name or one page, count at memory speed, or store what they are given.
                OpKind::Stat | OpKind::Read | OpKind::Ls | OpKind::Glob | OpKind::Write | OpKind::Append | OpKind::Delete => continue,
                // Batches of these have their own tests.
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
fn answers_of_megabytes_do_not_block_others() {
    let tenants = Tenants::new();
    let content = "x\n".repeat(6 << 20);
    assert_eq!(tenants.attack("PUT", "/v1/fs/memories/lines", content.as_bytes()).status, 201);
    // One match covers the whole file.
    let body = json!({"pattern": "(?s).*", "regex": true, "multiline": true, "path": "/memories/lines"}).to_string();
    for path in ["/v1/grep", "/v1/tools/grep"] {
        assert_eq!(tenants.attack("POST", path, body.as_bytes()).status, 200);
        for coding in ["identity", "gzip", "br", "zstd"] {
            let headers = [("authorization", &*tenants.attacker), ("content-type", "application/json"), ("accept-encoding", coding)];
            tenants.others_are_answered(&format!("the answer of {path} as {coding}"), || {
                tenants.served.send("POST", path, &headers, body.as_bytes()).status
            });
        }
    }
    let long = "x".repeat(8 << 20);
    assert_eq!(tenants.attack("PUT", "/v1/store/item?namespace=notes&key=long", json!({"text": long}).to_string().as_bytes()).status, 200);
    let read = "/v1/store/item?namespace=notes&key=long";
    tenants.others_are_answered("a long item", || tenants.attack("GET", read, b"").status);
}

/// Calls a method of the Model Context Protocol without a session.
fn mcp(method: &str, params: &Value) -> Vec<u8> {
    let mut params = params.clone();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MCP_VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string().into_bytes()
}

const MCP_VERSION: &str = "2026-07-28";

#[test]
fn answers_of_megabytes_over_mcp_do_not_block_others() {
    let tenants = Tenants::new();
    let content = "x\n".repeat(4 << 20);
    assert_eq!(tenants.attack("PUT", "/v1/fs/memories/lines", content.as_bytes()).status, 201);
    let read = mcp("resources/read", &json!({"uri": "vfs:///memories/lines"}));
    let attack = || {
        let headers = [
            ("authorization", &*tenants.attacker),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", MCP_VERSION),
            ("mcp-method", "resources/read"),
            ("mcp-name", "vfs:///memories/lines"),
        ];
        tenants.served.send("POST", "/mcp", &headers, &read)
    };
    let answer = attack();
    assert_eq!(answer.json()["result"]["contents"][0]["text"].as_str().map(str::len), Some(content.len()));
    tenants.others_are_answered("a resource over MCP", || attack().status);
}

#[test]
fn requests_of_megabytes_over_mcp_do_not_block_others() {
    let tenants = Tenants::new();
    let write = |values: usize| {
        mcp("tools/call", &json!({"name": "write_file", "arguments": {"path": "/memories/a", "content": "x", "more": vec![0; values]}}))
    };
    let attack = |body: &[u8]| {
        let headers = [
            ("authorization", &*tenants.attacker),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", MCP_VERSION),
            ("mcp-method", "tools/call"),
            ("mcp-name", "write_file"),
        ];
        tenants.served.send("POST", "/mcp", &headers, body)
    };
    assert_eq!(attack(&write(2_000_000)).code(), "too_large");
    let body = write(900_000);
    tenants.others_are_answered("many values over MCP", || attack(&body).status);
}

#[test]
fn merge_dry_run_does_not_block_others() {
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
