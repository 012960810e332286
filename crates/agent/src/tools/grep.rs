//! `grep`: lines by content.

use super::glob::left_out;
use super::render::{self, Page};
use super::{FileTool, Hints, ToolOutput};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use treehold_core::error::Result;
use treehold_core::ops::{CaseMode, GrepCursor, GrepFile, GrepLine, GrepOptions, GrepOutput, GrepResult, OnFailure};
use treehold_core::path::VfsPathBuf;
use treehold_tree::backend::Backend;

/// The most matching lines or files in one answer.
const LIMIT: usize = 250;

/// The most context lines on either side.
const CONTEXT_MAX: usize = 20;

/// The most characters shown of a line, around its first match.
const LINE_CHARS_MAX: usize = 500;

/// How many characters before the match a cut line shows.
const LEAD_CHARS: usize = 100;

/// Signs of a regular expression that rarely occur in plain text.
const REGEX_SIGNS: [&str; 14] = [".*", ".+", "\\w", "\\d", "\\s", "\\b", "\\.", "\\(", "\\[", "|", "[a-", "[A-", "[0-", "[^"];

/// The arguments of `grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Grep {
    /// The text to find; literal unless regex is set.
    pub pattern: String,
    /// The file or directory to search, absolute.
    #[serde(default = "VfsPathBuf::root")]
    #[schemars(with = "String")]
    pub path: VfsPathBuf,
    /// Searches only files that this pattern matches, such as `*.rs` or `src/**`.
    #[serde(default)]
    pub glob: String,
    /// What to return: the matching lines, the paths of the files, or the count of matching lines of each file.
    #[serde(default)]
    pub output_mode: GrepOutputMode,
    /// Treats the pattern as a regular expression (Rust regex syntax: no look-around, no back-references).
    #[serde(default)]
    pub regex: bool,
    /// Ignores case.
    #[serde(default)]
    pub ignore_case: bool,
    /// Lets matches span several lines.
    #[serde(default)]
    pub multiline: bool,
    /// Lines to show before and after each match, up to 20.
    #[serde(default)]
    pub context: usize,
    /// Lines to show before each match.
    #[serde(default)]
    pub before: usize,
    /// Lines to show after each match.
    #[serde(default)]
    pub after: usize,
    /// Also searches names that start with a dot.
    #[serde(default)]
    pub hidden: bool,
    /// Also searches files that .gitignore and .ignore exclude.
    #[serde(default)]
    pub ignored: bool,
    /// The most matching lines or files to return, up to 250.
    #[serde(default = "limit")]
    #[schemars(range(min = 1))]
    pub limit: usize,
    /// Continues after this match: the cursor of a truncated result.
    #[serde(default)]
    pub cursor: String,
}

/// What `grep` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrepOutputMode {
    /// The matching lines.
    #[default]
    Content,
    /// The paths of the files with a match.
    FilesWithMatches,
    /// The number of matching lines of each file.
    Count,
}

impl Grep {
    /// Finds up to 250 lines below the root that contain a literal text.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            path: VfsPathBuf::root(),
            glob: String::new(),
            output_mode: GrepOutputMode::default(),
            regex: false,
            ignore_case: false,
            multiline: false,
            context: 0,
            before: 0,
            after: 0,
            hidden: false,
            ignored: false,
            limit: LIMIT,
            cursor: String::new(),
        }
    }

    fn options(&self) -> Result<GrepOptions> {
        let mut options = if self.regex { GrepOptions::regex(&self.pattern) } else { GrepOptions::new(&self.pattern) }
            .with_case(if self.ignore_case { CaseMode::Insensitive } else { CaseMode::Sensitive })
            .with_multiline(self.multiline)
            .with_context(self.before.max(self.context).min(CONTEXT_MAX), self.after.max(self.context).min(CONTEXT_MAX))
            .with_hidden(self.hidden)
            .with_ignored(self.ignored)
            .with_output(match self.output_mode {
                GrepOutputMode::Content => GrepOutput::Content,
                GrepOutputMode::FilesWithMatches => GrepOutput::Files,
                GrepOutputMode::Count => GrepOutput::Counts,
            })
            .with_matches_max(self.limit.min(LIMIT))
            .with_on_failure(OnFailure::Partial);
        if !self.glob.is_empty() {
            options = options.with_include(&self.glob);
        }
        if !self.cursor.is_empty() {
            options = options.with_start_after(self.cursor.parse::<GrepCursor>()?);
        }
        Ok(options)
    }
}

const fn limit() -> usize {
    LIMIT
}

impl FileTool for Grep {
    const NAME: &'static str = "grep";
    const TITLE: &'static str = "Search content";
    const DESCRIPTION: &'static str = "Finds lines in files; the pattern is literal text unless regex=true.\n\n\
        - Returns matches as `path:line:text` and context lines as `path-line-text`; line numbers are those of read_file.\n\
        - output_mode=files_with_matches returns only paths; count returns the number of matching lines of each file.\n\
        - Binary, hidden and git-ignored files are skipped; hidden and git-ignored ones can be requested.";
    const HINTS: Hints = Hints::ReadOnly;
    const PATHS: &'static [&'static str] = &["path"];
    const ALIASES: &'static [(&'static str, &'static str)] = &[
        ("dir_path", "path"),
        ("include_pattern", "glob"),
        ("-i", "ignore_case"),
        ("-A", "after"),
        ("-B", "before"),
        ("-C", "context"),
        ("head_limit", "limit"),
        ("max_count", "limit"),
    ];

    async fn run(&self, backend: &dyn Backend) -> Result<ToolOutput> {
        let options = self.options()?;
        let result = backend.grep(&self.path, &options).await?;
        let mut answer = Answer {
            page: Page::new(Self::NAME),
            after: options.after,
            files: Vec::new(),
            matches: 0,
            cursor: None,
            lines_cut: 0,
            first_cut: None,
        };
        for file in &result.files {
            if !answer.push_file(file, self.output_mode) {
                break;
            }
        }
        let complete = answer.files.len() == result.files.len() && answer.cursor.is_none();
        if complete {
            answer.cursor = result.truncated.as_ref().map(|truncation| truncation.cursor.clone());
        }
        self.remark(&mut answer, &result);
        let data = json!({
            "files": answer.files,
            "matches": answer.matches,
            "files_searched": result.files_searched,
            "files_binary": result.files_binary,
            "files_too_large": result.files_too_large,
            "cursor": answer.cursor,
            "failures": result.failures,
            "failures_count": result.failures_count,
        });
        Ok(ToolOutput::new(answer.page.finish()).with_data(data))
    }
}

impl Grep {
    fn remark(&self, answer: &mut Answer, result: &GrepResult) {
        let noun = if self.output_mode == GrepOutputMode::Content { "matching line" } else { "file" };
        let page = &mut answer.page;
        if let Some(cursor) = &answer.cursor {
            page.note(format!(
                "{} shown, there are more; to continue, set cursor={cursor:?}, or narrow the search",
                render::counted(answer.matches, noun)
            ));
        } else if answer.files.is_empty() && self.cursor.is_empty() {
            let files = render::counted(result.files_searched, "file");
            page.note(format!("no match for `{}` in {files}{}", self.pattern, left_out(self.hidden, self.ignored)));
            if result.files_binary > 0 {
                page.note(format!("{} skipped", render::counted(result.files_binary, "binary file")));
            }
            if !self.regex && REGEX_SIGNS.iter().any(|sign| self.pattern.contains(sign)) {
                page.note("the pattern was taken literally; to use it as a regular expression, set regex=true");
            }
        } else if answer.files.is_empty() {
            page.note("no further match");
        }
        if let Some(first) = &answer.first_cut {
            let lines = if answer.lines_cut == 1 { "1 line is".to_owned() } else { format!("{} lines are", answer.lines_cut) };
            page.note(format!("{lines} cut to {LINE_CHARS_MAX} characters around the match; to see more, call read_file with {first}"));
        }
        if result.files_too_large > 0 {
            page.note(format!("{} skipped for their size", render::counted(result.files_too_large, "file")));
        }
        page.note_failures(&result.failures, result.failures_count);
    }
}

/// An answer under construction.
struct Answer {
    page: Page,
    /// How many context lines follow a match.
    after: usize,
    files: Vec<Value>,
    /// How many matching lines or files are shown.
    matches: usize,
    /// Where to continue, once the answer is full.
    cursor: Option<String>,
    lines_cut: usize,
    /// The arguments of `read_file` that show the rest of the first cut line.
    first_cut: Option<String>,
}

impl Answer {
    /// Adds one file; returns false when the answer is full.
    fn push_file(&mut self, file: &GrepFile, mode: GrepOutputMode) -> bool {
        let pushed = match mode {
            GrepOutputMode::Content => return self.push_lines(file),
            GrepOutputMode::FilesWithMatches => self.page.push(&format!("{}\n", file.path)),
            GrepOutputMode::Count => self.page.push(&format!("{}:{}\n", file.path, file.count)),
        };
        if pushed {
            self.matches += 1;
            self.files.push(json!({"path": file.path, "count": file.count}));
        } else {
            self.cursor = self.after_last_file();
        }
        pushed
    }

    fn push_lines(&mut self, file: &GrepFile) -> bool {
        let in_groups = file.lines.iter().any(|line| !line.is_match);
        let mut lines = Vec::new();
        let (mut last, mut shown): (Option<&GrepLine>, usize) = (None, 0);
        let mut cursor = None;
        for part in parts(&file.lines, self.after) {
            let texts: Vec<(String, Option<usize>)> = part.iter().map(shown_text).collect();
            let mut piece = String::new();
            for (line, (text, _)) in part.iter().zip(&texts) {
                let apart = in_groups && last.is_some_and(|last| last_line(last) + 1 < line.line);
                piece.push_str(if apart { "--\n" } else { "" });
                piece.push_str(&printed(file, line, text));
                last = Some(line);
            }
            if !self.page.push(&piece) {
                break;
            }
            shown += part.len();
            for (line, (text, cut)) in part.iter().zip(texts) {
                self.matches += usize::from(line.is_match);
                if let Some(column) = cut {
                    self.lines_cut += 1;
                    let place =
                        || format!("path={:?}, offset={}, limit=1, column={column}", file.path.as_str(), line.line.saturating_sub(1));
                    self.first_cut.get_or_insert_with(place);
                }
                lines.push(json!({"line": line.line, "text": text, "is_match": line.is_match}));
            }
            let found = part.iter().rfind(|line| line.is_match);
            cursor = found.map(|found| GrepCursor { path: file.path.clone(), line: last_line(found) }.to_string()).or(cursor);
        }
        let full = shown < file.lines.len();
        if full {
            self.cursor = cursor.or_else(|| self.after_last_file());
        }
        if !lines.is_empty() {
            self.files.push(json!({"path": file.path, "lines": lines}));
        }
        !full
    }

    fn after_last_file(&self) -> Option<String> {
        let path = self.files.last()?["path"].as_str()?;
        Some(format!("{path}:end"))
    }
}

/// Formats a line as `path:line:text`, context lines with `-`. Each line of a multi-line match is formatted separately.
fn printed(file: &GrepFile, line: &GrepLine, text: &str) -> String {
    let mark = if line.is_match { ':' } else { '-' };
    let pieces = text.split('\n').enumerate();
    pieces
        .map(|(index, piece)| format!("{}{mark}{}{mark}{}\n", file.path, line.line + index, piece.strip_suffix('\r').unwrap_or(piece)))
        .collect()
}

/// Returns the last line number that a match spans.
fn last_line(line: &GrepLine) -> usize {
    line.line + memchr::memchr_iter(b'\n', &line.text).count()
}

/// Splits a file's lines after each match and its context. Answers end only at these points, because a search that
/// continues after a match does not repeat the context of that match.
fn parts(lines: &[GrepLine], after: usize) -> Vec<&[GrepLine]> {
    let (mut parts, mut rest) = (Vec::new(), lines);
    while let Some(at) = rest.iter().position(|line| line.is_match) {
        let end = last_line(&rest[at]) + after;
        let context = rest[at + 1..].iter().take_while(|line| !line.is_match && line.line <= end).count();
        let (part, others) = rest.split_at(at + 1 + context);
        parts.push(part);
        rest = others;
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

/// Returns the shown text of a line: all of it, or the part around its first match and the column where that part
/// starts.
fn shown_text(line: &GrepLine) -> (String, Option<usize>) {
    let text = line.text_lossy();
    if text.len() <= LINE_CHARS_MAX {
        return (text.into_owned(), None);
    }
    let at = line.ranges.first().map_or(0, |range| range.start);
    let before = String::from_utf8_lossy(&line.text[..at.min(line.text.len())]).chars().count();
    let column = before.saturating_sub(LEAD_CHARS);
    let (part, more) = render::cut_line(&text, column, LINE_CHARS_MAX);
    let cut = more || column > 0;
    (format!("{}{part}{}", if column > 0 { "..." } else { "" }, if more { "..." } else { "" }), cut.then_some(column))
}

#[cfg(test)]
mod tests {
    use super::super::stage::{call, played, tree};
    use super::*;
    use treehold_core::path::VfsPath;
    use treehold_tree::backend::BackendExt;

    #[tokio::test]
    async fn answers_match_snapshot() {
        let minified = format!("{}needle{}", "a".repeat(3000), "b".repeat(3000));
        let backend = tree(&[
            ("/README.md", "# Greeter\n\nSays hello.\n"),
            ("/src/main.rs", "fn main() {\n    greet(\"hello\");\n}\n\nfn greet(name: &str) {\n    println!(\"Hello, {name}\");\n}\n"),
            ("/src/lib.rs", "pub fn greet() {}\r\n// hello\r\n"),
            ("/src/app.min.js", &minified),
            ("/.env", "GREETING=hello\n"),
            ("/.gitignore", "target/\n"),
            ("/target/log", "hello\n"),
        ])
        .await;
        backend.write("/data.bin", &b"hello\0"[..]).await.expect("bytes");
        let calls = [
            json!({"pattern": "hello"}),
            json!({"pattern": "hello", "ignore_case": true, "glob": "*.rs"}),
            json!({"pattern": "greet", "output_mode": "files_with_matches"}),
            json!({"pattern": "greet", "output_mode": "count"}),
            json!({"pattern": "fn \\w+\\(\\)", "regex": true}),
            json!({"pattern": "greet", "path": "/src/main.rs", "-C": 1}),
            json!({"pattern": "println", "path": "/src", "before": 1}),
            json!({"pattern": "main\\(\\) \\{\\n    greet", "regex": true, "multiline": true}),
            json!({"pattern": "hello", "hidden": true, "ignored": true, "output_mode": "files_with_matches"}),
            json!({"pattern": "hello", "limit": 2}),
            json!({"pattern": "hello", "limit": 2, "cursor": "/src/lib.rs:2"}),
            json!({"pattern": "greet", "limit": 1, "output_mode": "count"}),
            json!({"pattern": "needle"}),
            json!({"pattern": "n", "path": "/src/main.rs", "regex": true, "after": 1, "limit": 2}),
            json!({"pattern": "}", "path": "/src/main.rs", "before": 1}),
            json!({"pattern": "goodbye"}),
            json!({"pattern": "fn .*main", "hidden": true, "ignored": true}),
            json!({"pattern": "(", "regex": true}),
            json!({"pattern": "hello", "cursor": "nowhere"}),
            json!({"pattern": "hello", "path": "/source"}),
            json!({"pattern": "hello", "path": "/main.rs"}),
        ];
        insta::assert_snapshot!(played(&backend, "grep", &calls).await);
    }

    /// Follows the cursors to the end; returns the lines of each page.
    async fn all_pages(backend: &dyn Backend, mut arguments: Value) -> Vec<Vec<(String, u64, bool)>> {
        let mut pages = Vec::new();
        loop {
            let output = call(backend, "grep", arguments.clone()).await;
            let data = output.data.expect("a result");
            assert!(data["matches"].as_u64().expect("a count") as usize <= LIMIT);
            assert!(output.text.chars().count() <= render::TEXT_CHARS_MAX + 1000);
            let mut page = Vec::new();
            for file in data["files"].as_array().expect("files") {
                for line in file["lines"].as_array().expect("lines") {
                    let path = file["path"].as_str().expect("a path").to_owned();
                    page.push((path, line["line"].as_u64().expect("a number"), line["is_match"] == true));
                }
            }
            pages.push(page);
            match data["cursor"].as_str() {
                Some(next) => arguments["cursor"] = json!(next),
                None => return pages,
            }
        }
    }

    #[tokio::test]
    async fn pages_together_equal_the_whole_result() {
        let files: Vec<(String, String)> = (0..40)
            .map(|file| {
                let lines = (0..60).map(|line| {
                    let others = if line % 7 == 0 { "other\n".repeat(9) } else { "other\n".to_owned() };
                    format!("{} needle {line}\n{others}", "x".repeat(file * 14))
                });
                (format!("/{file:02}.txt"), lines.collect())
            })
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
        let backend = tree(&files).await;
        for (pattern, multiline, context) in [
            ("needle", false, 0),
            ("needle", false, 1),
            ("needle", false, 4),
            (r"needle \d+\nother", true, 0),
            (r"needle \d+\nother", true, 2),
        ] {
            let arguments = json!({"pattern": pattern, "regex": multiline, "multiline": multiline, "limit": 9999, "context": context});
            let pages = all_pages(&backend, arguments).await;
            assert!(pages.len() >= 10, "{pattern} {context}");
            let options = GrepOptions::regex(pattern).with_multiline(multiline).with_context(context, context).with_matches_max(usize::MAX);
            let whole = backend.grep(VfsPath::ROOT, &options).await.expect("a search");
            let whole: Vec<(String, u64, bool)> = whole
                .files
                .iter()
                .flat_map(|file| file.lines.iter().map(|line| (file.path.to_string(), line.line as u64, line.is_match)))
                .collect();
            assert_eq!(pages.concat(), whole, "{pattern} {context}");
        }
    }
}
