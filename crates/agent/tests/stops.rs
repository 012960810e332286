//! Every operation and every tool, run on much content, checks its stop as it goes and ends at the first check that finds it set.
//!
//! The tables are exhaustive matches and lists generated from the code, so a new operation or tool must be decided here.

use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use treehold_agent::tools::{ToolCall, ToolSet};
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change, Edit, GlobOptions, GrepOptions, OpKind, ReadOptions, SearchOptions, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_core::work::stops::Watch;
use treehold_core::work::{LOOK_BYTES, Owner, as_owner, cores};
use treehold_store::{MemoryStore, Namespace};
use treehold_tree::backend::{Backend, BackendExt, StateBackend, StoreBackend};

/// The most bytes between two checks: a single step may process a few times [`LOOK_BYTES`].
const STEP_BYTES_MAX: usize = 4 * LOOK_BYTES;

/// The fewest checks of work that is worth ending.
const LOOKS_MIN: usize = 4;

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

/// Runs work to its end, then again until halfway through its checks.
async fn ends_midway<T, F: Future<Output = Result<T>>>(name: &str, run: impl Fn() -> F) {
    let owner = |part: &str| Owner::from(&Scope::new().with_user(format!("{name} {part}")));
    let whole = Watch::start(owner("whole"), usize::MAX);
    as_owner(owner("whole"), None, run()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let (looks, step_bytes) = (whole.looks(), whole.step_bytes_max());
    assert!(looks >= LOOKS_MIN && step_bytes <= STEP_BYTES_MAX, "{name}: {looks} checks, up to {step_bytes} bytes apart");
    let half = Watch::start(owner("half"), looks / 2);
    let ended = as_owner(owner("half"), None, run()).await;
    assert_eq!(ended.err().map(|error| error.kind()), Some(ErrorKind::Unavailable), "{name}");
    // Each helper thread may need one check of its own to notice the stop.
    assert!(half.later() <= cores() + 1, "{name}: {} checks after the one that ended it", half.later());
}

/// Returns numbered lines; every hundredth contains `needle`.
fn content() -> Bytes {
    let line = |number: usize| if number.is_multiple_of(100) { "some needle\n".to_owned() } else { format!("line number {number}\n") };
    (0..800_000).map(line).collect::<String>().into()
}

async fn filled(tree: impl Backend, many: usize) -> impl Backend {
    tree.write("/large", content()).await.expect("written");
    let file = |number: usize| Change::Write {
        path: path(&format!("/many/{number}")),
        content: "one more needle in a file of its own\n".repeat(8).into(),
        mode: WriteMode::Overwrite,
    };
    tree.apply(&(0..many).map(file).collect::<Vec<_>>(), &ApplyOptions::new()).await.expect("written");
    tree
}

async fn store() -> StoreBackend {
    StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::parse("files").expect("legal"))
}

async fn each_operation_ends_midway(tier: &str, tree: &dyn Backend) {
    let large = path("/large");
    for kind in OpKind::ALL {
        let name = format!("{tier} {kind:?}");
        let edit = || vec![Change::Edit { path: path("/large"), edits: vec![Edit::all("needle", "Needle")], expect: None }];
        match kind {
            // These touch one name, a page of names, or rows one by one with yields between them.
            OpKind::Stat | OpKind::Ls | OpKind::CreateDir | OpKind::Delete | OpKind::Rename | OpKind::Copy => {}
            // The content already exists and becomes the file's as it is.
            OpKind::Write => {}
            // A store reads a file in parts of a few megabytes.
            OpKind::Read if tier == "store" => {}
            OpKind::Read => {
                let options = ReadOptions::lines(700_000, 100_000);
                ends_midway(&name, || tree.read(&large, &options)).await;
            }
            OpKind::Glob if tier == "store" => {}
            OpKind::Glob => {
                let options = GlobOptions::new("**/no-such-name");
                ends_midway(&name, || tree.glob(VfsPath::ROOT, &options)).await;
            }
            OpKind::Grep => {
                for (how, options) in [
                    ("text", GrepOptions::new("no such text")),
                    ("expression", GrepOptions::regex("no [sS]uch (text|word)")),
                    ("lines", GrepOptions::regex("number 1[0-9]+\nline").with_multiline(true)),
                    ("others", GrepOptions::new("line").with_invert(true)),
                ] {
                    ends_midway(&format!("{name} {how}"), || tree.grep(&large, &options)).await;
                }
            }
            OpKind::Search => {
                let options = SearchOptions::new("needle");
                ends_midway(&name, || tree.search(VfsPath::ROOT, &options)).await;
            }
            OpKind::Append => {
                let append = || vec![Change::Append { path: path("/large"), content: "x".into() }];
                ends_midway(&name, || async { tree.apply(&append(), &ApplyOptions::new()).await }).await;
            }
            OpKind::Edit | OpKind::Apply => {
                ends_midway(&name, || async {
                    // Edits back afterwards, because the next run must find text to replace.
                    let result = tree.apply(&edit(), &ApplyOptions::new()).await;
                    let back = vec![Edit::all("Needle", "needle")];
                    let back = Change::Edit { path: path("/large"), edits: back, expect: None };
                    result?;
                    tree.apply(&[back], &ApplyOptions::new()).await
                })
                .await;
            }
            kind => panic!("{kind:?} is new: decide what much work is for it"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_operations_end_midway_when_stopped() {
    each_operation_ends_midway("state", &filled(StateBackend::new(), 20_000).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_operations_end_midway_when_stopped() {
    each_operation_ends_midway("store", &filled(store().await, 20_000).await).await;
}

/// Returns arguments that make a call do much work; `None` for a tool that runs a single operation or does little.
fn much_for(set: ToolSet, tool: &str) -> Option<Value> {
    let replaced = "line number 799999\n";
    Some(match (set, tool) {
        (ToolSet::Default, "edit_file") => json!({"path": "/large", "old_string": replaced, "new_string": "x\n"}),
        (ToolSet::Default, "apply_patch") => {
            json!({"patch": format!("*** Begin Patch\n*** Update File: large\n@@\n-{replaced}+x\n*** End Patch")})
        }
        (ToolSet::Default, "grep") => json!({"pattern": "no such text", "path": "/large"}),
        (ToolSet::Default, "search") => json!({"query": "needle"}),
        (ToolSet::Default, "glob") => json!({"pattern": "**/no-such-name"}),
        (ToolSet::Default, "read_file") => json!({"path": "/large", "offset": 700_000, "limit": 10}),
        (ToolSet::Default, "ls" | "write_file" | "delete" | "move") => return None,
        (ToolSet::Memory, "memory") => {
            json!({"command": "str_replace", "path": "/memories/large", "old_str": replaced, "new_str": "x\n"})
        }
        (ToolSet::TextEditor, "str_replace_based_edit_tool") => {
            json!({"command": "insert", "path": "/large", "insert_line": 799_000, "insert_text": "x"})
        }
        (ToolSet::Agent, "edit") => json!({"file_path": "/large", "old_string": replaced, "new_string": "x\n"}),
        (ToolSet::Agent, "grep") => json!({"pattern": "no such text", "path": "/large"}),
        (ToolSet::Agent, "glob") => json!({"pattern": "**/no-such-name"}),
        (ToolSet::Agent, "read" | "write") => return None,
        (set, tool) => panic!("decide what much work is for `{tool}` of {set}"),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_tool_ends_midway_when_stopped() {
    for set in ToolSet::ALL {
        for info in set.tools() {
            let Some(arguments) = much_for(set, &info.name) else { continue };
            let call: ToolCall = set.decode(&info.name, arguments).expect("a legal call");
            let owner = |part: &str| Owner::from(&Scope::new().with_user(format!("{set} {} {part}", info.name)));
            let fresh = || async {
                let tree = filled(StateBackend::new(), 20_000).await;
                tree.write("/memories/large", content()).await.expect("written");
                tree
            };
            let whole = Watch::start(owner("whole"), usize::MAX);
            let output = as_owner(owner("whole"), None, async { call.run(&fresh().await).await }).await;
            assert!(!output.is_error, "{set} {}: {}", info.name, output.text);
            let (looks, step_bytes) = (whole.looks(), whole.step_bytes_max());
            assert!(
                looks >= LOOKS_MIN && step_bytes <= STEP_BYTES_MAX,
                "{set} {}: {looks} checks, up to {step_bytes} bytes apart",
                info.name
            );
            let tree = fresh().await;
            let half = Watch::start(owner("half"), looks / 2);
            let output = as_owner(owner("half"), None, call.run(&tree)).await;
            assert!(half.looks() >= looks / 2, "{set} {}: {} of {looks} checks: {}", info.name, half.looks(), output.text);
        }
    }
}
