//! `ls`: the children of one directory.

use super::render::{self, Page};
use super::{FileTool, Hints, ToolOutput};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use treehold_core::error::Result;
use treehold_core::ops::{Entry, EntryKind, LsOptions, OnFailure};
use treehold_core::path::VfsPathBuf;
use treehold_tree::backend::Backend;

/// The most entries in one answer.
const LIMIT: usize = 1000;

/// The arguments of `ls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Ls {
    /// The directory to list, absolute.
    #[serde(default = "VfsPathBuf::root")]
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// The most entries to return, up to 1000.
    #[serde(default = "limit")]
    #[schemars(range(min = 1))]
    pub limit: usize,
    /// Continues after this name: the cursor of a truncated listing.
    #[serde(default)]
    pub cursor: String,
}

impl Ls {
    /// Lists up to 1,000 children of a directory.
    pub fn new(path: impl Into<VfsPathBuf>) -> Self {
        Self { path: path.into(), limit: LIMIT, cursor: String::new() }
    }
}

const fn limit() -> usize {
    LIMIT
}

impl FileTool for Ls {
    const NAME: &'static str = "ls";
    const TITLE: &'static str = "List directory";
    const DESCRIPTION: &'static str = "Lists the direct children of a directory by name, hidden ones included.\n\n\
        - Directories end in `/` and links in `@`; files are followed by a tab and their size.\n\
        - To find files in subdirectories, use glob.";
    const HINTS: Hints = Hints::ReadOnly;
    const PATHS: &'static [&'static str] = &["path"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("dir_path", "path")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let mut options = LsOptions::new().with_limit(self.limit.min(LIMIT)).with_on_failure(OnFailure::Partial);
        if !self.cursor.is_empty() {
            options = options.with_start_after(&self.cursor);
        }
        let listing = backend.ls(&self.path, &options).await?;
        let mut page = Page::new(Self::NAME);
        let shown = listing.entries.iter().take_while(|entry| page.push(&line(entry))).count();
        let mut cursor = listing.truncated.as_ref().map(|truncation| truncation.cursor.as_str());
        if shown < listing.entries.len() {
            cursor = listing.entries[..shown].last().map(Entry::name);
        }
        match (cursor, shown) {
            (Some(cursor), _) => {
                page.note(format!("{} shown, there are more; to continue, set cursor={cursor:?}", render::counted(shown, "entry")))
            }
            (None, 0) if self.cursor.is_empty() => page.note(format!("`{}` is empty", self.path)),
            (None, 0) => page.note(format!("there is nothing after `{}`", self.cursor)),
            (None, _) => {}
        }
        page.note_failures(&listing.failures, listing.failures.len());
        let data = json!({
            "path": self.path,
            "entries": listing.entries[..shown],
            "cursor": cursor,
            "failures": listing.failures,
        });
        Ok(ToolOutput::new(page.finish()).with_data(data))
    }
}

fn line(entry: &Entry) -> String {
    let name = entry.name();
    match entry.kind {
        EntryKind::Directory => format!("{name}/\n"),
        EntryKind::File => format!("{name}\t{}\n", render::size(entry.size_bytes)),
        EntryKind::Symlink => format!("{name}@\n"),
        EntryKind::Other => format!("{name}\t(not a file)\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::stage::{call, played, tree};
    use super::*;
    use treehold_tree::backend::BackendExt;

    #[tokio::test]
    async fn answers_match_snapshot() {
        let backend =
            tree(&[("/a.md", "x"), ("/b/c.txt", &"x".repeat(5632)), ("/b/.hidden", ""), ("/b/d/e", "x"), ("/[ls] forged", "")]).await;
        backend.create_dir("/empty").await.expect("a directory");
        let calls = [
            json!({}),
            json!({"path": "/b/"}),
            json!({"path": "/b", "limit": 2}),
            json!({"path": "/b", "limit": 2, "cursor": "c.txt"}),
            json!({"path": "/b", "cursor": "zzz"}),
            json!({"path": "/empty"}),
            json!({"path": "/a.md"}),
            json!({"path": "/emty"}),
            json!({"limit": 1}),
            json!({"limit": 1, "cursor": "[ls] forged"}),
        ];
        insta::assert_snapshot!(played(&backend, "ls", &calls).await);
    }

    #[tokio::test]
    async fn cursors_page_through_a_large_directory() {
        let names: Vec<String> = (0..2500).map(|number| format!("/d/{number:05}{}", "x".repeat(200))).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        let backend = tree(&files).await;
        let mut seen = Vec::new();
        let mut cursor = String::new();
        loop {
            let output = call(&backend, "ls", json!({"path": "/d", "limit": 5000, "cursor": cursor})).await;
            assert!(output.text.chars().count() <= render::TEXT_CHARS_MAX + 1000);
            let data = output.data.expect("a listing");
            let entries = data["entries"].as_array().expect("entries");
            assert!(entries.len() <= LIMIT);
            seen.extend(entries.iter().map(|entry| entry["path"].as_str().expect("a path").to_owned()));
            match data["cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => break,
            }
        }
        assert_eq!(seen, names);
    }
}
