//! Helpers for the tests of this module: a small tree, calls on it, and their answers as readers see them.

use super::{ToolCall, ToolOutput};
use serde_json::Value;
use treehold_tree::backend::{Backend, BackendExt, StateBackend};

/// Makes a tree with the given files.
pub(super) async fn tree(files: &[(&str, &str)]) -> StateBackend {
    let backend = StateBackend::new();
    for (path, content) in files {
        backend.write(path, content.to_string()).await.expect("a legal file");
    }
    backend
}

/// Makes one call.
pub(super) async fn call(backend: &dyn Backend, name: &str, arguments: Value) -> ToolOutput {
    ToolCall::from_json(name, arguments).expect("a legal call").run(backend).await
}

/// Runs calls in order and shows each with its answer.
pub(super) async fn played(backend: &dyn Backend, name: &str, calls: &[Value]) -> String {
    let mut shown = String::new();
    for arguments in calls {
        let output = call(backend, name, arguments.clone()).await;
        shown.push_str(&format!("> {name} {arguments}\n{}\n", output.text));
        assert_eq!(output.is_error, output.error.is_some(), "{name} {arguments}");
        assert_eq!(output.is_error, output.data.is_none(), "{name} {arguments}");
    }
    shown
}
