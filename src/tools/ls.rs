//! `ls`: the children of one directory.

use super::render::{self, Page};
use super::{Hints, Tool, ToolOutput};
use crate::backend::Backend;
use crate::error::Result;
use crate::ops::{Entry, EntryKind, LsOptions, OnFailure};
use crate::path::VfsPathBuf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The most entries of one answer.
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
    /// Goes on after this name: the cursor that a cut listing gave.
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

impl Tool for Ls {
    const NAME: &'static str = "ls";
    const TITLE: &'static str = "List directory";
    const DESCRIPTION: &'static str = "Lists the direct children of a directory by name, hidden ones included.\n\n\
        - Directories end in `/`, files are followed by a tab and their size, links end in `@`.\n\
        - For files further down use glob.";
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
                page.note(format!("{} shown, there are more; to go on, set cursor={cursor:?}", render::counted(shown, "entry")))
            }
            (None, 0) if self.cursor.is_empty() => page.note(format!("`{}` is empty", self.path)),
            (None, 0) => page.note(format!("nothing stands after `{}`", self.cursor)),
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
