//! `search`: ranks files by relevance to a query.

use super::glob::left_out;
use super::render::{self, Page};
use super::{FileTool, Hints, ToolOutput};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use treehold_core::clock::parse_time;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{NearWord, OnFailure, SearchHit, SearchOptions, SearchResult};
use treehold_core::path::VfsPathBuf;
use treehold_tree::backend::Backend;

/// The default number of files in an answer.
const LIMIT: usize = 10;

/// The most files in one answer.
const LIMIT_MAX: usize = 50;

/// The arguments of `search`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Search {
    /// What to look for, in a few words.
    pub query: String,
    /// The directory to search, absolute, such as `/memories`.
    #[serde(default = "VfsPathBuf::root")]
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// Finds only files that this pattern matches, such as `*.md` or `projects/**`.
    #[serde(default)]
    pub glob: String,
    /// Finds only files changed at this time or later: `2026-11-21`, `2026-11-21T12:00:00Z`, or an age such as `7d` or `12h`.
    #[serde(default)]
    pub since: String,
    /// Finds only files changed before this time.
    #[serde(default)]
    pub before: String,
    /// Also finds names that start with a dot.
    #[serde(default)]
    pub hidden: bool,
    /// Also finds files that .gitignore and .ignore exclude.
    #[serde(default)]
    pub ignored: bool,
    /// The most files to return, up to 50.
    #[serde(default = "limit")]
    #[schemars(range(min = 1))]
    pub limit: usize,
    /// Best files to skip: the offset of a truncated result.
    #[serde(default)]
    pub offset: usize,
}

impl Search {
    /// Searches the root for up to 10 files.
    pub fn new(query: impl Into<String>) -> Self {
        Self {
            query: query.into(),
            path: VfsPathBuf::root(),
            glob: String::new(),
            since: String::new(),
            before: String::new(),
            hidden: false,
            ignored: false,
            limit: LIMIT,
            offset: 0,
        }
    }

    fn options(&self) -> Result<SearchOptions> {
        let mut options = SearchOptions::new(&self.query)
            .with_hidden(self.hidden)
            .with_ignored(self.ignored)
            .with_limit(self.limit.min(LIMIT_MAX))
            .with_offset(self.offset)
            .with_on_failure(OnFailure::Partial);
        if !self.glob.is_empty() {
            options = options.with_include(&self.glob);
        }
        options.modified_since = time("since", &self.since)?;
        options.modified_before = time("before", &self.before)?;
        Ok(options)
    }
}

const fn limit() -> usize {
    LIMIT
}

/// Parses a time argument; an empty text means none.
fn time(argument: &str, text: &str) -> Result<Option<Timestamp>> {
    if text.is_empty() {
        return Ok(None);
    }
    let unread = |error: Error| Error::invalid_argument(format!("`{argument}` is `{text}`; {}", error.message()));
    parse_time(text, Timestamp::now()).map(Some).map_err(unread)
}

impl FileTool for Search {
    const NAME: &'static str = "search";
    const TITLE: &'static str = "Find files by topic";
    const DESCRIPTION: &'static str = "Finds files by topic and returns the best match first, with its matching lines.\n\n\
        - A file matches if its path or text contains any word of the query; more words and rarer ones rank higher. Word endings and case are ignored, \
        and a word that no file contains finds those spelled nearly like it.\n\
        - Use it to find notes and memories when you do not know the exact wording; use grep to find all occurrences of an exact text.\n\
        - Line numbers are those of read_file.";
    const HINTS: Hints = Hints::ReadOnly;
    const PATHS: &'static [&'static str] = &["path"];
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("dir_path", "path"), ("include_pattern", "glob"), ("q", "query"), ("head_limit", "limit"), ("top_k", "limit")];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let result = backend.search(&self.path, &self.options()?).await?;
        let mut page = Page::new(Self::NAME);
        let shown = result.hits.iter().take_while(|hit| page.push(&drawn(hit))).count();
        let is_cut = shown < result.hits.len() || result.truncated.is_some();
        match (is_cut, shown) {
            (true, _) => page.note(format!(
                "the best {} shown, there are more; to continue, set offset={}, or use more precise words",
                render::counted(shown, "file"),
                self.offset + shown
            )),
            (false, 0) => page.note(self.nothing(&result)),
            (false, _) => {}
        }
        if shown > 0 {
            result.near.iter().for_each(|near| page.note(instead(near)));
        }
        if result.is_near_omitted {
            page.note("too much text to look for words that are spelled nearly like those of the query; to find them, name a directory");
        }
        if result.failures_of_meaning == result.failures_count {
            page.note_by_words(&result.failures, result.failures_count);
        } else {
            page.note_failures(&result.failures, result.failures_count);
        }
        let data = json!({
            "hits": result.hits[..shown],
            "near": result.near,
            "is_near_omitted": result.is_near_omitted,
            "offset": is_cut.then_some(self.offset + shown),
            "failures": result.failures,
            "failures_count": result.failures_count,
            "failures_of_meaning": result.failures_of_meaning,
        });
        Ok(ToolOutput::new(page.finish()).with_data(data))
    }
}

impl Search {
    fn nothing(&self, result: &SearchResult) -> String {
        if self.offset > 0 {
            return "no further file".to_owned();
        }
        let filters = [("matches", &self.glob), ("changed since", &self.since), ("changed before", &self.before)];
        let filters = filters.into_iter().filter(|(_, filter)| !filter.is_empty()).map(|(what, filter)| format!("{what} `{filter}`"));
        let filters = filters.collect::<Vec<_>>().join(" and ");
        if !filters.is_empty() {
            let left_out = left_out(self.hidden, self.ignored);
            return format!("no file beneath `{}` that {filters} holds a word of `{}`{left_out}", self.path, self.query);
        }
        let files = render::counted(usize::try_from(result.corpus.files).unwrap_or(usize::MAX), "file");
        let alike = if result.near.is_empty() { "" } else { ", nor one that is spelled like it," };
        format!("no word of `{}`{alike} in {files} beneath `{}`{}", self.query, self.path, left_out(self.hidden, self.ignored))
    }
}

/// Says what was found in place of a word that no file contains.
fn instead(near: &NearWord) -> String {
    match near.found.is_empty() {
        true => format!("no file contains `{}`", near.spelled),
        false => format!("no file contains `{}`; found instead: {}", near.spelled, near.found.join(", ")),
    }
}

/// Renders a file with its snippets.
fn drawn(hit: &SearchHit) -> String {
    let mut drawn = hit.path.to_string();
    if let Some(time) = hit.modified_at {
        drawn.push_str(&format!(" (changed {})", time.strftime("%Y-%m-%d")));
    }
    drawn.push('\n');
    for snippet in &hit.snippets {
        drawn.push_str(&format!("  {}: {}\n", snippet.line, snippet.text.trim()));
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::super::stage::{call, tree};
    use super::*;

    #[tokio::test]
    async fn best_files_come_first_with_matching_lines() {
        let backend = tree(&[
            ("/memories/deploy.md", "# Deploying\n\nNever deploy on Fridays.\nAsk Ada first.\n"),
            ("/memories/food.md", "Ada eats no meat.\n"),
            ("/notes/plan.md", "buy milk\n"),
        ])
        .await;
        let output = call(&backend, "search", json!({"query": "when may I deploy?"})).await;
        assert_eq!(output.data.as_ref().expect("facts")["hits"][0]["path"], "/memories/deploy.md");
        let text: Vec<&str> = output.text.lines().collect();
        assert!(text[0].starts_with("/memories/deploy.md (changed "), "{}", output.text);
        assert_eq!(text[1..], ["  1: # Deploying", "  3: Never deploy on Fridays."]);
        let both = call(&backend, "search", json!({"query": "ada", "limit": 1})).await;
        let notice = "[search] the best 1 file shown, there are more; to continue, set offset=1, or use more precise words";
        assert!(both.text.trim_end().ends_with(notice), "{}", both.text);
        let rest = call(&backend, "search", json!({"query": "ada", "limit": 1, "offset": 1})).await;
        assert_ne!(rest.data.expect("facts")["hits"][0]["path"], both.data.expect("facts")["hits"][0]["path"]);
    }

    #[tokio::test]
    async fn invalid_and_empty_searches_are_explained() {
        let backend = tree(&[("/a.md", "text\n")]).await;
        let none = call(&backend, "search", json!({"query": "absent", "path": "/"})).await;
        assert!(
            none.text.starts_with("[search] no word of `absent`, nor one that is spelled like it, in 1 file beneath `/`; hidden"),
            "{}",
            none.text
        );
        let filtered = call(&backend, "search", json!({"query": "text", "glob": "*.rs", "before": "2020-01-01"})).await;
        let expected = "[search] no file beneath `/` that matches `*.rs` and changed before `2020-01-01` holds a word of `text`; hidden";
        assert!(filtered.text.starts_with(expected), "{}", filtered.text);
        let wordless = call(&backend, "search", json!({"query": "?!"})).await;
        assert!(wordless.is_error && wordless.text.contains("has no searchable word"), "{}", wordless.text);
        let time = call(&backend, "search", json!({"query": "text", "since": "yesterday"})).await;
        assert!(time.is_error && time.text.contains("`since` is `yesterday`; write a time as"), "{}", time.text);
        let later = call(&backend, "search", json!({"query": "text", "since": "2999-01-01"})).await;
        assert!(later.text.contains("no file beneath `/` that changed since `2999-01-01` holds a word of `text`"), "{}", later.text);
        let recent = call(&backend, "search", json!({"query": "text", "since": "7d"})).await;
        assert!(recent.text.starts_with("/a.md"), "{}", recent.text);
        let old = call(&backend, "search", json!({"query": "text", "before": "2w"})).await;
        assert!(old.text.contains("that changed before `2w`"), "{}", old.text);
        let earlier = call(&backend, "search", json!({"query": "text", "before": "2999-01-01T00:00:00Z"})).await;
        assert!(earlier.text.starts_with("/a.md"), "{}", earlier.text);
    }
}
