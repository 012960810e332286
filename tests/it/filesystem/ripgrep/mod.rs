//! Search results compared with those of `rg` in the same tree with the same settings. Trees, patterns and flags are
//! generated from a fixed seed.
//!
//! Intended differences are excluded as narrowly as possible, with the reason given in each case. `rg` reads a file
//! that turns out to be binary up to that point; here the first 8 KiB decide, and no generated file is larger. The
//! filesystem tier is compared with `rg`, and the other tiers with the filesystem tier ([`tiers`]).

mod query;
#[cfg(feature = "sqlite")]
mod tiers;
mod tree;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use query::Query;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use tree::File;
use treehold::ops::{GlobOptions, GrepFile, GrepOptions, GrepOutput};
use treehold::{Backend, FilesystemBackend, FilesystemOptions, VfsPath};

const TREES: usize = 24;
const QUERIES: usize = 90;
const GLOBS: usize = 40;
const DIFFERENCES_SHOWN: usize = 12;

/// Runs `rg` in a directory.
fn rg(root: &Path, arguments: &[String]) -> Vec<u8> {
    let output = Command::new("rg")
        .args(["--no-config", "--no-ignore-global", "--no-ignore-parent", "--no-ignore-exclude", "--no-require-git", "-j1", "--crlf", "-n"])
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // `rg` reports an error if filters leave no files.
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() < Some(2) || error.starts_with("No files were searched"), "{arguments:?}: {error}");
    output.stdout
}

/// Searches trees on both cores, each with its own files and random cases, and reports the first differences.
fn each_tree(check: impl Fn(&Path, &FilesystemBackend, &[File], &mut TestRunner) -> Vec<String> + Sync) {
    let differences = Mutex::new(Vec::new());
    let work = |worker: usize| {
        let mut runner = TestRunner::new_with_rng(Config::default(), proptest::test_runner::TestRng::deterministic_rng(Default::default()));
        for number in 0..TREES {
            let files = tree::files().new_tree(&mut runner).unwrap().current();
            let mut cases = TestRunner::new_with_rng(Config::default(), runner.new_rng());
            if number % 2 == worker {
                let directory = tempfile::tempdir().unwrap();
                tree::write(directory.path(), &files);
                let backend = FilesystemBackend::open(directory.path(), FilesystemOptions::new()).unwrap();
                let found = check(directory.path(), &backend, &files, &mut cases);
                differences.lock().unwrap().extend(found);
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(1));
        work(0);
        if let Err(panic) = other.join() {
            std::panic::resume_unwind(panic);
        }
    });
    let differences = differences.into_inner().unwrap();
    let shown = differences.iter().take(DIFFERENCES_SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} differences:\n{shown}", differences.len());
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// A line as reported by either side.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    number: usize,
    offset: usize,
    is_match: bool,
    text: String,
    ranges: Vec<(usize, usize)>,
}

/// The results per file: a count, which is 1 if only the name was requested, and the lines.
type Found = BTreeMap<String, (usize, Vec<Line>)>;

#[test]
#[ignore = "needs ripgrep: install `rg`, then run scripts/servers.sh"]
fn grep_finds_what_rg_finds() {
    each_tree(|root, tree, files, runner| {
        let mut differences = Vec::new();
        for _ in 0..QUERIES {
            let query = query::query().new_tree(runner).unwrap().current();
            let result = block_on(tree.grep(VfsPath::ROOT, &query.options)).unwrap();
            let mut ours = ours(&result.files, &query.options);
            let mut theirs = theirs(&rg(root, &query.arguments), &query.options);
            for file in files {
                if file.is_binary(query.options.encoding) && !query.options.binary {
                    // A match before the NUL is reported there, with a warning.
                    assert!(!ours.contains_key(&file.path), "{} is binary: {query:?}", file.path);
                    theirs.remove(&file.path);
                }
                if is_left_out(file, &query) {
                    ours.remove(&file.path);
                    theirs.remove(&file.path);
                }
            }
            if ours != theirs {
                differences.push(report(&query, files, &ours, &theirs));
            }
        }
        differences
    });
}

/// Returns whether the two sides differ on purpose for a file.
fn is_left_out(file: &File, query: &Query) -> bool {
    // Here the `\r` of a terminator is not part of the text.
    (file.has_carriage_returns() && query.meets_carriage_returns())
        // `rg` 13 requires characters beside a word; here bytes that are not text are allowed.
        || (query.options.word && !file.is_text())
}

fn report(query: &Query, files: &[File], ours: &Found, theirs: &Found) -> String {
    let mut differences = String::new();
    for path in ours.keys().chain(theirs.keys()) {
        if ours.get(path) != theirs.get(path) {
            let content = files.iter().find(|file| file.path == *path).map(|file| String::from_utf8_lossy(&file.content).into_owned());
            differences += &format!("{path}: {content:?}\n  ours   {:?}\n  theirs {:?}\n", ours.get(path), theirs.get(path));
        }
    }
    let rules: Vec<_> = files.iter().filter(|file| file.path.ends_with("ignore")).collect();
    format!("rg {:?}\n{differences}{rules:?}", query.arguments)
}

fn ours(files: &[GrepFile], options: &GrepOptions) -> Found {
    let mut found = Found::new();
    for file in files {
        let mut lines = Vec::new();
        for line in &file.lines {
            let ranges = if options.multiline { Vec::new() } else { line.ranges.clone() };
            split(&mut lines, line.line, line.byte_offset as usize, line.is_match, &line.text, &ranges);
        }
        let count = match options.output {
            GrepOutput::Counts => file.count,
            _ => 1,
        };
        found.insert(file.path.as_str()[1..].to_owned(), (count, lines));
    }
    found
}

fn theirs(output: &[u8], options: &GrepOptions) -> Found {
    let mut found = Found::new();
    for row in output.split(|byte| *byte == b'\n').filter(|row| !row.is_empty()) {
        // With `--crlf` `rg` ends its own lines that way too.
        let row = std::str::from_utf8(row).unwrap().trim_end_matches('\r');
        match options.output {
            GrepOutput::Files => drop(found.insert(row.to_owned(), (1, Vec::new()))),
            GrepOutput::Counts => {
                // Anything but a count is the message about a binary file.
                let (path, count) = row.rsplit_once(':').unwrap();
                match count.parse() {
                    Ok(count) => drop(found.insert(path.to_owned(), (count, Vec::new()))),
                    Err(_) => assert!(row.contains("binary file"), "{row}"),
                }
            }
            GrepOutput::Content => {
                let row: Value = serde_json::from_str(row).unwrap();
                let (kind, data) = (row["type"].as_str().unwrap(), &row["data"]);
                if kind != "match" && kind != "context" {
                    continue;
                }
                let (_, lines) = found.entry(data["path"]["text"].as_str().unwrap().to_owned()).or_insert((1, Vec::new()));
                let text = bytes(&data["lines"]);
                let end = text.without_terminator().len();
                // With inverted matching, `rg` reports the matches in context lines.
                let ranges = if options.multiline || kind == "context" { Vec::new() } else { ranges(&data["submatches"], end) };
                let place = |name: &str| data[name].as_u64().unwrap() as usize;
                split(lines, place("line_number"), place("absolute_offset"), kind == "match", text.without_terminator(), &ranges);
            }
        }
    }
    found
}

/// Removes the terminator of a line.
trait WithoutTerminator {
    fn without_terminator(&self) -> &[u8];
}

impl WithoutTerminator for Vec<u8> {
    fn without_terminator(&self) -> &[u8] {
        let line = self.strip_suffix(b"\n").unwrap_or(self);
        if line.len() < self.len() { line.strip_suffix(b"\r").unwrap_or(line) } else { line }
    }
}

fn bytes(data: &Value) -> Vec<u8> {
    use base64::Engine;
    match data["text"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => base64::engine::general_purpose::STANDARD.decode(data["bytes"].as_str().unwrap()).unwrap(),
    }
}

/// Normalizes the ranges of a line: an empty range only if it is the only one, and none in the terminator.
fn ranges(submatches: &Value, end: usize) -> Vec<Range<usize>> {
    let place = |found: &Value, name: &str| (found[name].as_u64().unwrap() as usize).min(end);
    let all: Vec<_> = submatches.as_array().unwrap().iter().map(|found| place(found, "start")..place(found, "end")).collect();
    let solid: Vec<_> = all.iter().filter(|range| !range.is_empty()).cloned().collect();
    if solid.is_empty() { all.into_iter().take(1).collect() } else { solid }
}

/// Splits a multi-line match, so that it does not matter how such matches are joined.
fn split(lines: &mut Vec<Line>, number: usize, offset: usize, is_match: bool, text: &[u8], ranges: &[Range<usize>]) {
    let mut at = 0;
    for (index, text) in text.split(|byte| *byte == b'\n').enumerate() {
        let ranges = ranges.iter().map(|range| (range.start, range.end)).collect();
        lines.push(Line {
            number: number + index,
            offset: offset + at,
            is_match,
            text: text.strip_suffix(b"\r").unwrap_or(text).escape_ascii().to_string(),
            ranges,
        });
        at += text.len() + 1;
    }
}

#[test]
#[ignore = "needs ripgrep: install `rg`, then run scripts/servers.sh"]
fn glob_finds_what_rg_lists() {
    each_tree(|root, tree, files, runner| {
        let mut differences = Vec::new();
        let mut compare = |options: &GlobOptions, flags: &[&str]| {
            let result = block_on(tree.glob(VfsPath::ROOT, options)).unwrap();
            let mut ours: Vec<&str> = result.entries.iter().map(|entry| &entry.path.as_str()[1..]).collect();
            ours.sort_unstable();
            let arguments: Vec<String> = ["--files"].iter().chain(flags).map(|&flag| flag.to_owned()).collect();
            let listed = rg(root, &arguments);
            let mut theirs: Vec<&str> = std::str::from_utf8(&listed).unwrap().lines().collect();
            theirs.sort_unstable();
            if ours != theirs {
                let rules: Vec<_> = files.iter().filter(|file| file.path.ends_with("ignore")).collect();
                let only = |one: &[&str], other: &[&str]| {
                    one.iter().filter(|path| !other.contains(path)).map(|path| path.to_string()).collect::<Vec<_>>()
                };
                let (more, less) = (only(&ours, &theirs), only(&theirs, &ours));
                differences.push(format!("rg {arguments:?}\n  only ours {more:?}\n  only theirs {less:?}\n  {rules:?}"));
            }
        };
        for _ in 0..GLOBS {
            let (pattern, insensitive) = query::glob().new_tree(runner).unwrap().current();
            let mut options = GlobOptions::new(pattern).with_case_insensitive(insensitive);
            // A glob makes `rg` find hidden and ignored files whose directory is neither, so compare only without
            // exclusions.
            (options.scope.hidden, options.scope.ignored) = (true, true);
            compare(&options, &["--hidden", "--no-ignore", if insensitive { "--iglob" } else { "--glob" }, pattern]);
        }
        // Exclusions are compared without a pattern.
        for (hidden, ignored) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut options = GlobOptions::new("**");
            (options.scope.hidden, options.scope.ignored) = (hidden, ignored);
            let flags: Vec<&str> =
                [(hidden, "--hidden"), (ignored, "--no-ignore")].into_iter().filter(|(on, _)| *on).map(|(_, flag)| flag).collect();
            compare(&options, &flags);
        }
        differences
    });
}
