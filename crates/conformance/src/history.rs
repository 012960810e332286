//! Histories: lists of operations that run against a tree and the model.
//!
//! A [`Step`] uses paths within the tree and symbolic expectations ("the current version"), so that one list fits every backend.
//! [`check`] runs it on both sides and panics at the first difference: in what a step returned, in the kind of its error, in the
//! tree after a change, or in a version used for two contents. Property tests and fuzz targets generate the lists.

use super::backend::Tree;
use super::model::ModelBackend;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Change, Changed, Edit, EntryKind, GlobOptions, GrepLine, GrepOptions, LsOptions, OpKind, ReadOptions, SearchOptions,
    Version, WriteMode,
};
use treehold_core::path::VfsPath;
use treehold_tree::backend::Backend;

/// One call of a history. Paths are within the tree.
#[derive(Debug, Clone)]
pub enum Step {
    /// A batch of changes.
    Apply(Vec<Mutation>),
    /// `stat` of a path.
    Stat(String),
    /// `read` of a path.
    Read(String, ReadOptions),
    /// `ls` of a path, page by page.
    Ls(String, LsOptions),
    /// `glob` beneath a path, page by page.
    Glob(String, GlobOptions),
    /// `grep` beneath a path, page by page.
    Grep(String, GrepOptions),
    /// `search` beneath a path, all pages. Compares what it finds but not the order, which depends on statistics that an index
    /// may have over other files.
    Search(String, SearchOptions),
}

/// Which version a change expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// The current version, or an invented one if there is none.
    Current,
    /// An earlier version, or an invented one.
    Stale,
}

/// A [`Change`] without concrete versions, so that it fits every tree.
#[derive(Debug, Clone)]
pub enum Mutation {
    /// [`Change::Write`] that overwrites.
    Overwrite(String, Bytes),
    /// [`Change::Write`] that creates.
    Create(String, Bytes),
    /// [`Change::Write`] that expects a version.
    WriteIf(String, Bytes, Expectation),
    /// [`Change::Append`].
    Append(String, Bytes),
    /// [`Change::Edit`].
    Edit(String, Vec<Edit>, Option<Expectation>),
    /// [`Change::CreateDir`].
    CreateDir(String),
    /// [`Change::Delete`].
    Delete(String, bool, Option<Expectation>),
    /// [`Change::Rename`].
    Rename(String, String, bool),
    /// [`Change::Copy`].
    Copy(String, String, bool),
}

impl Mutation {
    /// Returns whether the change would move, copy or remove the root of the tree.
    fn moves_root(&self) -> bool {
        match self {
            Self::Delete(path, _, _) => path == "/",
            Self::Rename(from, to, _) | Self::Copy(from, to, _) => from == "/" || to == "/",
            _ => false,
        }
    }

    /// Returns whether the change involves the root of the tree. A wrapper may reject that before checking anything else.
    fn involves_root(&self) -> bool {
        match self {
            Self::Overwrite(path, _) | Self::Create(path, _) | Self::WriteIf(path, _, _) | Self::Append(path, _) => path == "/",
            Self::Edit(path, _, _) | Self::CreateDir(path) => path == "/",
            Self::Delete(..) | Self::Rename(..) | Self::Copy(..) => self.moves_root(),
        }
    }
}

/// Runs a history on a tree and on a fresh model, and compares them step by step.
///
/// # Panics
/// At the first difference, showing the step.
pub async fn check(tree: &Tree, steps: &[Step]) {
    let model = Tree::new(ModelBackend::new());
    let (mut of_tree, mut of_model) = (Versions::default(), Versions::default());
    for (index, step) in steps.iter().enumerate() {
        match step {
            // In a part of a tree, the root is a mount point or an ordinary directory, so the rules for roots do not apply.
            Step::Apply(mutations) if !tree.is_whole() && mutations.iter().any(Mutation::moves_root) => {}
            // In a batch, it may be rejected before earlier changes are tried.
            Step::Apply(mutations) if mutations.len() > 1 && mutations.iter().any(Mutation::involves_root) => {}
            Step::Apply(mutations) => {
                let seen = apply(tree, &changes(tree, mutations, &of_tree).await).await;
                // A layer with rules may reject a batch that moves something its rules may cover. Then nothing of it takes
                // effect.
                let refused = matches!(seen, Applied::Failed(ErrorKind::PermissionDenied, _, 0)) && mutations.len() > 1;
                if !refused {
                    let expected = apply_to_model(&model, &changes(&model, mutations, &of_model).await, &seen, tree).await;
                    assert_eq!(seen, expected, "step {index}: {step:?} on {tree:?}");
                }
                let (left, right) = (dump(tree, &mut of_tree).await, dump(&model, &mut of_model).await);
                assert_eq!(left, right, "the tree after step {index}: {step:?} on {tree:?}");
            }
            _ => {
                let (mut seen, mut expected) = (observe(tree, step).await, observe(&model, step).await);
                if matches!(step, Step::Grep(..)) && tree.backend().capabilities().indexed {
                    without_counts(&mut seen);
                    without_counts(&mut expected);
                }
                assert_eq!(seen, expected, "step {index}: {step:?} on {tree:?}");
            }
        }
    }
}

/// The outcome of a batch in a form that fits every tree: one line for each change, or the kind, index and applied count of a
/// failure.
#[derive(Debug, PartialEq, Eq)]
enum Applied {
    Done(Vec<String>),
    Failed(ErrorKind, Option<usize>, usize),
}

/// The versions seen at each path, oldest first, with their contents.
#[derive(Debug, Default)]
struct Versions {
    seen: HashMap<String, Vec<(Version, Bytes)>>,
}

impl Versions {
    /// Records a version, and checks that it was never used for other content at this path.
    fn note(&mut self, path: &str, version: Version, content: &Bytes) {
        let seen = self.seen.entry(path.to_owned()).or_default();
        match seen.iter().find(|(known, _)| *known == version) {
            Some((_, known)) => assert_eq!(known, content, "version {version} of {path} had other content before"),
            None => seen.push((version, content.clone())),
        }
    }

    async fn expected(&self, tree: &Tree, path: &str, expectation: Expectation) -> Version {
        let made_up = Version::new(u64::MAX - 7);
        let current = tree.stat(path).await.ok().and_then(|entry| entry.version);
        match expectation {
            Expectation::Current => current.unwrap_or(made_up),
            Expectation::Stale => {
                let mut older = self.seen.get(path).into_iter().flatten().rev().map(|(version, _)| *version);
                older.find(|version| Some(*version) != current).unwrap_or(made_up)
            }
        }
    }
}

async fn change(tree: &Tree, mutation: &Mutation, versions: &Versions) -> Change {
    let path = |path: &str| tree.path(path);
    let expect = async |at: &str, expectation: &Option<Expectation>| match expectation {
        Some(expectation) => Some(versions.expected(tree, at, *expectation).await),
        None => None,
    };
    match mutation {
        Mutation::Overwrite(at, content) => Change::Write { path: path(at), content: content.clone(), mode: WriteMode::Overwrite },
        Mutation::Create(at, content) => Change::Write { path: path(at), content: content.clone(), mode: WriteMode::CreateNew },
        Mutation::WriteIf(at, content, expectation) => {
            let mode = WriteMode::IfVersion(versions.expected(tree, at, *expectation).await);
            Change::Write { path: path(at), content: content.clone(), mode }
        }
        Mutation::Append(at, content) => Change::Append { path: path(at), content: content.clone() },
        Mutation::Edit(at, edits, expectation) => {
            Change::Edit { path: path(at), edits: edits.clone(), expect: expect(at, expectation).await }
        }
        Mutation::CreateDir(at) => Change::CreateDir { path: path(at) },
        Mutation::Delete(at, recursive, expectation) => {
            Change::Delete { path: path(at), recursive: *recursive, expect: expect(at, expectation).await }
        }
        Mutation::Rename(from, to, overwrite) => Change::Rename { from: path(from), to: path(to), overwrite: *overwrite },
        Mutation::Copy(from, to, overwrite) => Change::Copy { from: path(from), to: path(to), overwrite: *overwrite },
    }
}

async fn changes(tree: &Tree, mutations: &[Mutation], versions: &Versions) -> Vec<Change> {
    let mut changes = Vec::new();
    for mutation in mutations {
        changes.push(change(tree, mutation, versions).await);
    }
    changes
}

async fn apply(tree: &Tree, changes: &[Change]) -> Applied {
    match tree.backend().apply(changes, &ApplyOptions::new()).await {
        Ok(results) => Applied::Done(results.iter().map(|of| shown_change(tree, of)).collect()),
        Err(error) => Applied::Failed(error.kind(), error.change(), error.applied()),
    }
}

fn shown_change(tree: &Tree, of: &Changed) -> String {
    // A tier may count a moved directory as one entry, and skip changes without effect.
    let counted = matches!(of.operation, OpKind::Write | OpKind::CreateDir | OpKind::Delete | OpKind::Copy);
    let entries = if counted { of.entries } else { 0 };
    let (path, versioned) = (tree.seen(&of.path), of.version.is_some());
    let (size, created, replaced) = (of.size_bytes, of.created, of.replacements);
    format!("{} {path}: {size} bytes, created {created}, {replaced} replaced, {entries} entries, version {versioned}", of.operation)
}

/// Applies a batch to the model as the tree's tier would: without atomic batches, the changes before a failure remain.
async fn apply_to_model(model: &Tree, changes: &[Change], seen: &Applied, tree: &Tree) -> Applied {
    match seen {
        Applied::Failed(_, Some(failed), applied) if !tree.backend().capabilities().atomic_batch => {
            assert_eq!(applied, failed, "a tier without atomic batches stops at the first failure");
            apply(model, &changes[..*applied]).await;
            match apply(model, &changes[*applied..=*failed]).await {
                Applied::Failed(kind, _, _) => Applied::Failed(kind, Some(*failed), *applied),
                done @ Applied::Done(_) => done,
            }
        }
        _ => apply(model, changes).await,
    }
}

/// Returns every path of a tree with its kind and content, and records the versions.
async fn dump(tree: &Tree, versions: &mut Versions) -> BTreeMap<String, Option<Bytes>> {
    let mut all = BTreeMap::new();
    let mut directories = vec!["/".to_owned()];
    while let Some(directory) = directories.pop() {
        let listing = tree.ls(&directory, &LsOptions::new()).await.unwrap_or_else(|error| panic!("ls of {directory}: {error:?}"));
        for entry in listing.entries {
            let path = tree.seen(&entry.path);
            if entry.is_directory() {
                directories.push(path.clone());
                all.insert(path, None);
            } else {
                let read = tree.read(&path, &ReadOptions::new()).await.unwrap_or_else(|error| panic!("read of {path}: {error:?}"));
                assert_eq!((Some(read.version), read.size_bytes), (entry.version, entry.size_bytes), "ls and read of {path} differ");
                versions.note(&path, read.version, &read.content);
                all.insert(path, Some(read.content));
            }
        }
    }
    all
}

/// Runs a reading step through all pages, and renders the results as lines of text.
async fn observe(tree: &Tree, step: &Step) -> Result<Vec<String>, ErrorKind> {
    let seen = match step {
        Step::Apply(_) => Ok(Vec::new()),
        Step::Stat(path) => tree.stat(path).await.map(|entry| vec![shown(tree, &entry.path, entry.kind, entry.size_bytes)]),
        Step::Read(path, options) => tree.read(path, options).await.map(|read| {
            let window = read.window.map(|window| (window.offset, window.lines, window.total_lines));
            vec![format!("{:?} of {}, {window:?}", read.content, read.size_bytes)]
        }),
        Step::Ls(path, options) => observe_ls(tree, path, options.clone()).await,
        Step::Glob(path, options) => observe_glob(tree, path, options.clone()).await,
        Step::Grep(path, options) => observe_grep(tree, path, options.clone()).await,
        Step::Search(path, options) => observe_search(tree, path, options.clone()).await,
    };
    seen.map_err(|error| error.kind())
}

fn shown(tree: &Tree, path: &VfsPath, kind: EntryKind, size_bytes: u64) -> String {
    format!("{} {kind} {size_bytes}", tree.seen(path))
}

async fn observe_ls(tree: &Tree, path: &str, mut options: LsOptions) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    loop {
        let page = tree.ls(path, &options).await?;
        assert!(page.entries.len() <= options.limit && page.failures.is_empty(), "{page:?}");
        seen.extend(page.entries.iter().map(|entry| shown(tree, &entry.path, entry.kind, entry.size_bytes)));
        match page.truncated {
            Some(truncation) if options.limit > 0 => options.start_after = Some(truncation.cursor),
            truncated => {
                seen.push(format!("truncated {}", truncated.is_some()));
                return Ok(seen);
            }
        }
    }
}

async fn observe_glob(tree: &Tree, path: &str, mut options: GlobOptions) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    loop {
        let page = tree.glob(path, &options).await?;
        assert!(page.entries.len() <= options.limit && page.failures.is_empty(), "{page:?}");
        seen.extend(page.entries.iter().map(|entry| shown(tree, &entry.path, entry.kind, entry.size_bytes)));
        match page.truncated {
            Some(truncation) if options.limit > 0 => options.start_after = Some(parsed(&truncation.cursor)?),
            truncated => {
                seen.push(format!("truncated {}", truncated.is_some()));
                return Ok(seen);
            }
        }
    }
}

async fn observe_grep(tree: &Tree, path: &str, mut options: GrepOptions) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    loop {
        let page = tree.grep(path, &options).await?;
        assert!(page.matches() <= options.matches_max && page.failures_count == 0, "{page:?}");
        for file in &page.files {
            let path = tree.seen(&file.path);
            seen.push(format!("{path}: {}", file.count));
            seen.extend(
                file.lines
                    .iter()
                    .map(|of| format!("{path}:{}:{} {:?} {:?} {}", of.line, of.byte_offset, of.text, ranges_of(of), of.is_match)),
            );
        }
        match page.truncated {
            Some(truncation) if options.matches_max > 0 => options.start_after = Some(parsed(&truncation.cursor)?),
            truncated => {
                let skipped = (page.files_searched, page.files_binary, page.files_too_large);
                // How much was searched before a limit ended the search is not part of the contract.
                let counts = if truncated.is_none() && options.start_after.is_none() { format!("{skipped:?}") } else { String::new() };
                seen.push(format!("truncated {} {counts}", truncated.is_some()));
                return Ok(seen);
            }
        }
    }
}

async fn observe_search(tree: &Tree, path: &str, mut options: SearchOptions) -> Result<Vec<String>> {
    // Which lines become snippets depends on word weights too, so request all of them.
    options.snippets_max = usize::MAX;
    let mut seen = Vec::new();
    loop {
        let page = tree.search(path, &options).await?;
        assert!(page.hits.len() <= options.limit && page.failures_count == 0, "{page:?}");
        seen.extend(page.hits.iter().map(|hit| {
            let snippets = hit.snippets.iter().map(|snippet| format!("{}:{:?} {:?}", snippet.line, snippet.text, snippet.ranges));
            format!("{} {} {:?} {:?}", tree.seen(&hit.path), hit.size_bytes, hit.frequencies, snippets.collect::<Vec<_>>())
        }));
        match page.truncated {
            Some(truncation) if options.limit > 0 => options.offset = parsed(&truncation.cursor)?,
            truncated => {
                seen.sort_unstable();
                seen.push(format!("truncated {}", truncated.is_some()));
                return Ok(seen);
            }
        }
    }
}

/// Removes the number of files a grep read, which depends on whether there is an index.
fn without_counts(seen: &mut Result<Vec<String>, ErrorKind>) {
    if let Ok(lines) = seen
        && let Some(last) = lines.last_mut()
    {
        last.truncate(last.find(" (").unwrap_or(last.len()));
    }
}

/// Returns the match ranges, up to the limit for one line.
fn ranges_of(line: &GrepLine) -> &[std::ops::Range<usize>] {
    &line.ranges[..line.ranges.len().min(1000)]
}

fn parsed<T: std::str::FromStr>(cursor: &str) -> Result<T> {
    cursor.parse().map_err(|_| Error::new(ErrorKind::Internal, format!("the cursor `{cursor}` cannot be used")))
}
