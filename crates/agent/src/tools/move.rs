//! `move`: moves or renames a file or directory.

use super::{FileTool, Hints, ToolOutput};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use treehold_core::error::Result;
use treehold_core::ops::Change;
use treehold_core::path::VfsPathBuf;
use treehold_tree::backend::{Backend, BackendExt};

/// The arguments of `move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Move {
    /// The file or directory to move, absolute.
    #[schemars(with = "String")]
    pub from: VfsPathBuf,
    /// The full new path, absolute; missing directories are created.
    #[schemars(with = "String")]
    pub to: VfsPathBuf,
    /// Replaces an existing file at the new path; a directory is never replaced.
    #[serde(default)]
    pub overwrite: bool,
}

impl Move {
    /// Moves to a path that must not exist.
    pub fn new(from: impl Into<VfsPathBuf>, to: impl Into<VfsPathBuf>) -> Self {
        Self { from: from.into(), to: to.into(), overwrite: false }
    }
}

impl FileTool for Move {
    const NAME: &'static str = "move";
    const TITLE: &'static str = "Move or rename";
    const DESCRIPTION: &'static str = "Moves or renames a file, or a directory with everything in it.\n\n\
        - `to` is the full new path, not the directory to move into.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const PATHS: &'static [&'static str] = &["from", "to"];
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("source", "from"), ("old_path", "from"), ("destination", "to"), ("new_path", "to")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let change = Change::Rename { from: self.from.clone(), to: self.to.clone(), overwrite: self.overwrite };
        let changed = backend.apply_one(change).await?;
        Ok(ToolOutput::new(format!("Moved {} to {}", self.from, self.to)).with_data(json!(changed)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage::{played, tree};
    use super::*;

    #[tokio::test]
    async fn answers_match_snapshot() {
        let backend = tree(&[("/a.md", "a"), ("/b.md", "b"), ("/d/one", "1")]).await;
        let calls = [
            json!({"from": "/a.md", "to": "/new/a.md"}),
            json!({"from": "/new/a.md", "to": "/b.md"}),
            json!({"from": "/new/a.md", "to": "/b.md", "overwrite": true}),
            json!({"from": "/d/", "to": "/e/"}),
            json!({"from": "/e", "to": "/e/f"}),
            json!({"from": "/b.md", "to": "/e", "overwrite": true}),
            json!({"from": "/b.txt", "to": "/c.txt"}),
        ];
        let shown = played(&backend, "move", &calls).await;
        // The raw identifier of this module must not appear in a file name.
        insta::with_settings!({prepend_module_to_snapshot => false}, {
            insta::assert_snapshot!("treehold_agent__tools__move__tests__answers_match_snapshot", shown);
        });
        assert_eq!(backend.read_text("/b.md").await.expect("the file"), "a");
    }
}
