//! Random patches on a small tree: each takes effect as a whole or not at all, and never panics.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use treehold_agent::tools::ToolCall;
use treehold_tree::backend::{BackendExt, StateBackend, StateSnapshot};

const FILES: [(&str, &str); 5] = [
    ("/a.txt", "one\ntwo\nthree\nfour\nfive\n"),
    ("/crlf.txt", "one\r\ntwo\r\nthree\r\n"),
    ("/d/b.txt", "fn main() {\n    one();\n}\n\nfn other() {\n    one();\n}\n"),
    ("/d/empty", ""),
    ("/no-newline", "x\ny"),
];

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().build().expect("a runtime");
    static FRESH: StateSnapshot = RUNTIME.with(|runtime| runtime.block_on(fresh()));
}

async fn fresh() -> StateSnapshot {
    let tree = StateBackend::new();
    for (path, content) in FILES {
        tree.write(path, content).await.expect("a fresh tree takes files");
    }
    tree.snapshot()
}

fuzz_target!(|patch: &str| {
    let Ok(call) = ToolCall::from_json("apply_patch", json!({ "patch": patch })) else { return };
    let tree = StateBackend::from_snapshot(&FRESH.with(Clone::clone));
    RUNTIME.with(|runtime| runtime.block_on(check(&tree, &call, patch)));
});

async fn check(tree: &StateBackend, call: &ToolCall, patch: &str) {
    let before = tree.version();
    let output = call.run(tree).await;
    assert!(!output.is_error || tree.version() == before, "a patch that failed changed something: {}", output.text);
    for (path, content) in FILES {
        let name = path.rsplit('/').next().expect("a path has a name");
        // A patch may name a directory above the file.
        if !patch.contains(name) && !patch.contains("/d") {
            let now = tree.read_bytes(path).await.expect("files that no patch names still exist");
            assert_eq!(now, content, "`{path}` is not in the patch");
        }
    }
}
