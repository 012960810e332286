//! `delete`: removes a file or directory.

use super::render;
use super::{FileTool, Hints, ToolOutput};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use treehold_core::error::Result;
use treehold_core::ops::Change;
use treehold_core::path::VfsPathBuf;
use treehold_tree::backend::{Backend, BackendExt};

/// The arguments of `delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Delete {
    /// The file or directory to remove, absolute.
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// Removes a directory and its contents; otherwise the directory must be empty.
    #[serde(default)]
    pub recursive: bool,
}

impl Delete {
    /// Removes a file or an empty directory.
    pub fn new(path: impl Into<VfsPathBuf>) -> Self {
        Self { path: path.into(), recursive: false }
    }
}

impl FileTool for Delete {
    const NAME: &'static str = "delete";
    const TITLE: &'static str = "Delete";
    const DESCRIPTION: &'static str = "Removes a file or an empty directory; with recursive=true a directory and everything in it.";
    const HINTS: Hints = Hints::Writes { idempotent: true };
    const PATHS: &'static [&'static str] = &["path"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("file_path", "path")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let change = Change::Delete { path: self.path.clone(), recursive: self.recursive, expect: None };
        let changed = backend.apply_one(change).await?;
        let text = match changed.entries {
            0 | 1 => format!("Deleted {}", self.path),
            entries => format!("Deleted {} and the {} in it", self.path, render::counted(entries - 1, "entry")),
        };
        Ok(ToolOutput::new(text).with_data(json!(changed)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage::{played, tree};
    use super::*;

    #[tokio::test]
    async fn answers_match_snapshot() {
        let backend = tree(&[("/a.md", ""), ("/d/one", ""), ("/d/e/two", ""), ("/single/file", "")]).await;
        let calls = [
            json!({"path": "/a.md"}),
            json!({"path": "/a.md"}),
            json!({"path": "/d"}),
            json!({"path": "/d/", "recursive": true}),
            json!({"path": "/single", "recursive": true}),
            json!({"path": "/", "recursive": true}),
        ];
        insta::assert_snapshot!(played(&backend, "delete", &calls).await);
    }
}
