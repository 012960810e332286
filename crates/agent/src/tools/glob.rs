//! `glob`: paths by pattern.

use super::render::{self, Page};
use super::{FileTool, Hints, ToolOutput};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Entry, GlobOptions, OnFailure};
use treehold_core::path::VfsPathBuf;
use treehold_tree::backend::Backend;

/// The most paths in one answer.
const LIMIT: usize = 200;

/// The arguments of `glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Glob {
    /// The pattern, such as `*.rs`, `src/**/*.ts` or `**/{test,spec}_*.py`.
    pub pattern: String,
    /// The directory to search, absolute.
    #[serde(default = "VfsPathBuf::root")]
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// Also finds directories.
    #[serde(default)]
    pub directories: bool,
    /// Also finds names that start with a dot.
    #[serde(default)]
    pub hidden: bool,
    /// Also finds files that .gitignore and .ignore exclude.
    #[serde(default)]
    pub ignored: bool,
    /// The most paths to return, up to 200.
    #[serde(default = "limit")]
    #[schemars(range(min = 1))]
    pub limit: usize,
    /// Continues after this path: the cursor of a truncated result.
    #[serde(default)]
    pub cursor: String,
}

impl Glob {
    /// Finds up to 200 files below the root by pattern.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            path: VfsPathBuf::root(),
            directories: false,
            hidden: false,
            ignored: false,
            limit: LIMIT,
            cursor: String::new(),
        }
    }

    fn options(&self) -> Result<GlobOptions> {
        let mut options = GlobOptions::new(&self.pattern)
            .with_directories(self.directories)
            .with_hidden(self.hidden)
            .with_ignored(self.ignored)
            .with_limit(self.limit.min(LIMIT))
            .with_on_failure(OnFailure::Partial);
        if !self.cursor.is_empty() {
            let cursor = VfsPathBuf::parse(&self.cursor).map_err(|_| {
                Error::invalid_argument(format!(
                    "`cursor` is `{}`; use the one that the truncated \
                    result returned",
                    self.cursor
                ))
            })?;
            options = options.with_start_after(cursor);
        }
        Ok(options)
    }
}

const fn limit() -> usize {
    LIMIT
}

impl FileTool for Glob {
    const NAME: &'static str = "glob";
    const TITLE: &'static str = "Find files";
    const DESCRIPTION: &'static str = "Finds files by name pattern and returns their paths, in path order.\n\n\
        - `*` and `?` match within a name, `**` across directories, `{a,b}` and `[a-z]` alternatives.\n\
        - A pattern without `/` matches names at any depth; one with `/` is anchored at path.\n\
        - Hidden and git-ignored files are skipped unless requested.";
    const HINTS: Hints = Hints::ReadOnly;
    const PATHS: &'static [&'static str] = &["path"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[("dir_path", "path"), ("head_limit", "limit")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let result = backend.glob(&self.path, &self.options()?).await?;
        let mut page = Page::new(Self::NAME);
        let shown = result.entries.iter().take_while(|entry| page.push(&line(entry))).count();
        let mut cursor = result.truncated.as_ref().map(|truncation| truncation.cursor.clone());
        if shown < result.entries.len() {
            cursor = result.entries[..shown].last().map(|entry| entry.path.to_string());
        }
        match (&cursor, shown) {
            (Some(cursor), _) => page.note(format!(
                "{} shown, there are more; to continue, set cursor={cursor:?}, or narrow the pattern",
                render::counted(shown, "path")
            )),
            (None, 0) => {
                page.note(format!("nothing matches `{}` beneath `{}`{}", self.pattern, self.path, left_out(self.hidden, self.ignored)))
            }
            (None, _) => {}
        }
        page.note_failures(&result.failures, result.failures.len());
        let data = json!({
            "entries": result.entries[..shown],
            "cursor": cursor,
            "failures": result.failures,
        });
        Ok(ToolOutput::new(page.finish()).with_data(data))
    }
}

/// Describes what a search without results has excluded.
pub(super) fn left_out(hidden: bool, ignored: bool) -> &'static str {
    match (hidden, ignored) {
        (false, false) => "; hidden and git-ignored files were skipped: set hidden=true or ignored=true to include them",
        (false, true) => "; hidden files were skipped: set hidden=true to include them",
        (true, false) => "; git-ignored files were skipped: set ignored=true to include them",
        (true, true) => "",
    }
}

fn line(entry: &Entry) -> String {
    format!("{}{}\n", entry.path, if entry.is_directory() { "/" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::super::stage::{call, played, tree};
    use super::*;

    #[tokio::test]
    async fn answers_match_snapshot() {
        let backend = tree(&[
            ("/README.md", ""),
            ("/src/main.rs", ""),
            ("/src/lib/a.rs", ""),
            ("/src/lib/b.rs", ""),
            ("/.github/ci.yml", ""),
            ("/.gitignore", "target/\n"),
            ("/target/out.rs", ""),
        ])
        .await;
        let calls = [
            json!({"pattern": "*.rs"}),
            json!({"pattern": "src/*.rs"}),
            json!({"pattern": "*.rs", "path": "/src/lib/"}),
            json!({"pattern": "*.rs", "ignored": true}),
            json!({"pattern": "*.yml"}),
            json!({"pattern": "*.yml", "hidden": true}),
            json!({"pattern": "{src,docs}/**", "directories": true}),
            json!({"pattern": "*.rs", "limit": 2}),
            json!({"pattern": "*.rs", "limit": 2, "cursor": "/src/lib/b.rs"}),
            json!({"pattern": "*.py", "hidden": true, "ignored": true}),
            json!({"pattern": "[a"}),
            json!({"pattern": "*.rs", "cursor": "b.rs"}),
            json!({"pattern": "*.rs", "path": "/scr"}),
        ];
        insta::assert_snapshot!(played(&backend, "glob", &calls).await);
    }

    #[tokio::test]
    async fn cursors_page_through_all_matches() {
        let names: Vec<String> = (0..1000).map(|number| format!("/d{:02}/{number:04}{}", number / 100, "x".repeat(240))).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        let backend = tree(&files).await;
        let mut seen: Vec<String> = Vec::new();
        let mut cursor = String::new();
        loop {
            let output = call(&backend, "glob", json!({"pattern": "*x", "limit": 9999, "cursor": cursor})).await;
            let shown: Vec<&str> = output.text.lines().take_while(|line| line.starts_with('/')).collect();
            assert!(shown.len() <= LIMIT);
            seen.extend(shown.into_iter().map(ToOwned::to_owned));
            match output.data.expect("a result")["cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => break,
            }
        }
        assert_eq!(seen, names);
    }
}
