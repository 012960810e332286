//! `write_file`: writes or appends to a file.

use super::render;
use super::{FileTool, Hints, ToolOutput};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use treehold_core::error::Result;
use treehold_core::ops::{Change, WriteMode};
use treehold_core::path::VfsPathBuf;
use treehold_core::text;
use treehold_tree::backend::{Backend, BackendExt};

/// The arguments of `write_file`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct WriteFile {
    /// The file to write, absolute; missing directories are created.
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// The text to write.
    pub content: String,
    /// How to write: overwrite an existing file, create only (an error if the file exists), or append to the file.
    #[serde(default)]
    pub mode: WriteFileMode,
}

/// What `write_file` does with an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WriteFileMode {
    /// Replaces its content.
    #[default]
    Overwrite,
    /// Fails if the file exists.
    Create,
    /// Appends to the file.
    Append,
}

impl WriteFile {
    /// Creates a file or replaces its content.
    pub fn new(path: impl Into<VfsPathBuf>, content: impl Into<String>) -> Self {
        Self { path: path.into(), content: content.into(), mode: WriteFileMode::Overwrite }
    }
}

impl FileTool for WriteFile {
    const NAME: &'static str = "write_file";
    const TITLE: &'static str = "Write file";
    const DESCRIPTION: &'static str = "Creates a file, or replaces its whole content.\n\n\
        - To change part of a file, use edit_file: it is shorter and keeps concurrent changes elsewhere in the file.\n\
        - mode=append adds to the end of a file without reading it.";
    const HINTS: Hints = Hints::Writes { idempotent: false };
    const PATHS: &'static [&'static str] = &["path"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("file_path", "path"), ("filePath", "path"), ("file_text", "content")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let path = self.path.clone();
        let content = Bytes::from(self.content.clone());
        let change = match self.mode {
            WriteFileMode::Overwrite => Change::Write { path, content, mode: WriteMode::Overwrite },
            WriteFileMode::Create => Change::Write { path, content, mode: WriteMode::CreateNew },
            WriteFileMode::Append => Change::Append { path, content },
        };
        let changed = backend.apply_one(change).await?;
        let lines = render::counted(text::count_lines(self.content.as_bytes()), "line");
        let bytes = render::counted(self.content.len(), "byte");
        let text = match (self.mode, changed.created) {
            (_, true) => format!("Created {} ({lines}, {bytes})", self.path),
            (WriteFileMode::Append, false) => {
                format!("Appended {lines} ({bytes}) to {}; it has {} bytes now", self.path, render::thousands(changed.size_bytes))
            }
            (_, false) => format!("Updated {} ({lines}, {bytes})", self.path),
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
        let backend = tree(&[("/a/b", "x")]).await;
        let calls = [
            json!({"path": "/new/file.md", "content": "one\ntwo\n"}),
            json!({"path": "/new/file.md", "content": "three"}),
            json!({"path": "/new/file.md", "content": "\nfour\n", "mode": "append"}),
            json!({"path": "/log.txt", "content": "first\n", "mode": "append"}),
            json!({"path": "/new/file.md", "content": "", "mode": "create"}),
            json!({"path": "/empty", "content": "", "mode": "create"}),
            json!({"path": "/a", "content": "x"}),
            json!({"path": "/a/b/c", "content": "x"}),
        ];
        insta::assert_snapshot!(played(&backend, "write_file", &calls).await);
        assert_eq!(backend.read_text("/new/file.md").await.expect("the file"), "three\nfour\n");
    }
}
