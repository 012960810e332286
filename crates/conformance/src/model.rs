//! The reference model: a `BTreeMap` and the plainest code that keeps the contract.
//!
//! It shares nothing with the real backends except the types of [`ops`](treehold_core::ops) and the rules of gitignore(5), so that mistakes
//! are not made twice. Every listing visits every path, edits go unit by unit, and globs and lines have separate matchers. Property tests
//! and fuzz targets run the same operations against it and a real backend.

use super::pattern::{Pattern, grep_lines};
use async_trait::async_trait;
use bytes::Bytes;
use ignore::types::{Types, TypesBuilder};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file::is_binary;
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Edit, Encoding, Entry, FileRead, GlobOptions, GlobResult, GrepCursor, GrepFile,
    GrepOptions, GrepOutput, GrepResult, Listing, LsOptions, OpKind, ReadOptions, ReadRange, Review, SearchOptions, SearchResult,
    SearchScope, Sight, StatOptions, Truncation, TruncationReason, Version, Window, WriteMode,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::search::IgnoreFiles;
use treehold_tree::backend::Backend;
use treehold_tree::backend::search_by_reading;

/// A file tree as the contract describes it, in a `BTreeMap`. Clones share the tree.
#[derive(Debug, Clone)]
pub struct ModelBackend {
    tree: Arc<Mutex<Tree>>,
    clock: Clock,
}

#[derive(Debug, Clone, Default)]
struct Tree {
    nodes: BTreeMap<VfsPathBuf, Node>,
    version: u64,
}

#[derive(Debug, Clone)]
struct Node {
    /// `None` for a directory.
    content: Option<Bytes>,
    version: u64,
    created_at: Timestamp,
    modified_at: Timestamp,
}

impl ModelBackend {
    /// Creates an empty tree.
    pub fn new() -> Self {
        Self { tree: Arc::default(), clock: Clock::system() }
    }
}

impl Default for ModelBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for ModelBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Model")
    }
}

#[async_trait]
impl Backend for ModelBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    async fn stat(&self, path: &VfsPath, _options: &StatOptions) -> Result<Entry> {
        self.tree.lock().entry(path)
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.tree.lock().read(path, options).map_err(|error| error.at(path))
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let tree = self.tree.lock();
        tree.expect_directory(path)?;
        let mut children: Vec<Entry> =
            tree.nodes.keys().filter(|key| key.parent() == Some(path)).filter_map(|key| tree.entry(key).ok()).collect();
        children.sort_by(|a, b| a.name().cmp(b.name()));
        let rest = children.into_iter().filter(|entry| options.start_after.as_deref().is_none_or(|after| entry.name() > after));
        Ok(Listing::from_sorted(rest, options))
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        let tree = self.tree.lock();
        let pattern = Pattern::within(&options.pattern, options.case_insensitive, &options.scope)?;
        tree.expect_directory(path)?;
        let found = tree
            .nodes
            .iter()
            .filter(|(key, node)| {
                key.parent().is_some_and(|parent| parent.starts_with(path))
                    && (options.directories || node.content.is_some())
                    && options.start_after.as_ref().is_none_or(|after| *key > after)
                    && tree.is_entered(path, key, &options.scope)
                    && pattern.matches(&relative(path, key, &options.scope))
            })
            .filter_map(|(key, _)| tree.entry(key).ok());
        Ok(GlobResult::from_sorted(found, options))
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.tree.lock().grep(path, options)
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        search_by_reading(self, path, options).await
    }

    async fn apply(&self, changes: &[Change], _: &ApplyOptions) -> Result<Vec<Changed>> {
        let mut tree = self.tree.lock();
        let mut next = tree.clone();
        let now = self.clock.now();
        let mut results = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            results.push(next.apply(change, now).map_err(|error| error.during(change.kind()).in_batch(index, 0))?);
        }
        *tree = next;
        Ok(results)
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}

impl Tree {
    fn entry(&self, path: &VfsPath) -> Result<Entry> {
        if path.is_root() {
            return Ok(Entry::directory(path));
        }
        let node = self.node(path)?.ok_or_else(|| Error::not_found(path))?;
        let entry = match &node.content {
            None => Entry::directory(path),
            Some(content) => Entry::file(path, content.len() as u64, Version::new(node.version)),
        };
        Ok(entry.with_times(Some(node.created_at), Some(node.modified_at)))
    }

    /// Looks up a path. Fails beneath a file.
    fn node(&self, path: &VfsPath) -> Result<Option<&Node>> {
        for above in path.ancestors() {
            if self.nodes.get(above).is_some_and(|node| node.content.is_some()) {
                return Err(Error::not_a_directory(above).at(path));
            }
        }
        Ok(self.nodes.get(path))
    }

    fn expect_directory(&self, path: &VfsPath) -> Result<()> {
        if self.entry(path)?.is_directory() { Ok(()) } else { Err(Error::not_a_directory(path)) }
    }

    /// Returns the node and content of a file.
    fn file(&self, path: &VfsPath) -> Result<(&Node, &Bytes)> {
        if path.is_root() {
            return Err(Error::is_directory(path));
        }
        let node = self.node(path)?.ok_or_else(|| Error::not_found(path))?;
        node.content.as_ref().map(|content| (node, content)).ok_or_else(|| Error::is_directory(path))
    }

    fn file_if_any(&self, path: &VfsPath) -> Result<Option<(&Node, &Bytes)>> {
        match self.file(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let (node, content) = self.file(path)?;
        let mut read = FileRead::new(content.clone(), Version::new(node.version), Some(node.modified_at));
        match options.range {
            ReadRange::Whole if content.len() as u64 > options.bytes_max => return Err(Error::new(ErrorKind::TooLarge, "over the limit")),
            ReadRange::Whole => {}
            ReadRange::Bytes { offset, limit } => {
                if offset > content.len() as u64 {
                    return Err(Error::invalid_argument(format!("byte offset {offset} is past the end of {} bytes", content.len())));
                }
                let limit = usize::try_from(limit.min(options.bytes_max)).unwrap_or(usize::MAX);
                read.content = content.iter().skip(offset as usize).take(limit).copied().collect();
            }
            ReadRange::Lines { offset, limit } => {
                let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
                if offset > lines.len() {
                    return Err(Error::invalid_argument(format!("line offset {offset} is past the end of {} lines", lines.len())));
                }
                let mut taken: Vec<u8> = Vec::new();
                let mut count = 0;
                for line in lines.iter().skip(offset).take(limit) {
                    if count > 0 && (taken.len() + line.len()) as u64 > options.bytes_max {
                        break;
                    }
                    taken.extend_from_slice(line);
                    count += 1;
                }
                read.content = taken.into();
                read.window = Some(Window { offset, lines: count, total_lines: lines.len() });
            }
        }
        Ok(read)
    }

    fn apply(&mut self, change: &Change, now: Timestamp) -> Result<Changed> {
        self.version += 1;
        match change {
            Change::Write { path, content, mode } => {
                let current = self.file_if_any(path)?.map(|(node, _)| Version::new(node.version));
                match mode {
                    WriteMode::CreateNew if current.is_some() => return Err(Error::already_exists(path)),
                    WriteMode::IfVersion(version) if current != Some(*version) => return Err(Error::conflict(path, current)),
                    _ => {}
                }
                self.put(path, content.clone(), now);
                Ok(self.changed(OpKind::Write, path).with_created(current.is_none()))
            }
            Change::Append { path, content } => {
                let old = self.file_if_any(path)?.map(|(_, content)| content.clone());
                let created = old.is_none();
                self.put(path, [&old.unwrap_or_default()[..], &content[..]].concat().into(), now);
                Ok(self.changed(OpKind::Append, path).with_created(created))
            }
            Change::Edit { path, edits, expect } => {
                let (node, content) = self.file(path)?;
                expect_version(path, *expect, node.version)?;
                if edits.is_empty() {
                    return Err(Error::invalid_argument("no edit was given").at(path));
                }
                let mut text = content.to_vec();
                let mut replacements = 0;
                for edit in edits {
                    let (next, count) = replaced(&text, edit).map_err(|error| error.at(path))?;
                    text = next;
                    replacements += count;
                }
                self.put(path, text.into(), now);
                Ok(self.changed(OpKind::Edit, path).with_replacements(replacements))
            }
            Change::CreateDir { path } => self.create_dir(path, now),
            Change::Delete { path, recursive, expect } => self.delete(path, *recursive, *expect),
            Change::Rename { from, to, overwrite } => self.transfer(from, to, *overwrite, true, now),
            Change::Copy { from, to, overwrite } => self.transfer(from, to, *overwrite, false, now),
            other => Err(other.unsupported()),
        }
    }

    fn create_dir(&mut self, path: &VfsPath, now: Timestamp) -> Result<Changed> {
        let there = Changed::new(OpKind::CreateDir, path).with_entries(0);
        if path.is_root() {
            return Ok(there);
        }
        match self.node(path)? {
            Some(Node { content: Some(_), .. }) => Err(Error::already_exists(path)),
            Some(_) => Ok(there),
            None => {
                self.make_parents(path, now);
                self.nodes.insert(path.to_owned(), Node { content: None, version: self.version, created_at: now, modified_at: now });
                Ok(Changed::new(OpKind::CreateDir, path).with_created(true))
            }
        }
    }

    fn delete(&mut self, path: &VfsPath, recursive: bool, expect: Option<Version>) -> Result<Changed> {
        if path.is_root() {
            return Err(Error::invalid_argument("the root cannot be deleted").at(path));
        }
        let node = self.node(path)?.ok_or_else(|| Error::not_found(path))?;
        if node.content.is_some() {
            expect_version(path, expect, node.version)?;
        } else if expect.is_some() {
            return Err(Error::invalid_argument("a directory has no version").at(path));
        }
        let gone = self.beneath(path);
        if gone.len() > 1 && !recursive {
            return Err(Error::invalid_argument(format!("`{path}` is not empty; delete it with `recursive`")).at(path));
        }
        self.nodes.retain(|key, _| !gone.contains(key));
        Ok(Changed::new(OpKind::Delete, path).with_entries(gone.len()))
    }

    fn transfer(&mut self, from: &VfsPath, to: &VfsPath, overwrite: bool, moves: bool, now: Timestamp) -> Result<Changed> {
        let operation = if moves { OpKind::Rename } else { OpKind::Copy };
        if from.is_root() || to.is_root() {
            return Err(Error::invalid_argument("the root cannot be moved or copied").at(from));
        }
        let is_file = self.node(from)?.ok_or_else(|| Error::not_found(from))?.content.is_some();
        if from == to {
            return match moves {
                true => Ok(self.changed(operation, to).with_entries(0)),
                false => Err(Error::invalid_argument("the copy is its own source").at(from)),
            };
        }
        if !is_file && to.starts_with(from) {
            return Err(Error::invalid_argument(format!("`{to}` lies beneath `{from}`")).at(from));
        }
        let replaced = self.node(to)?.cloned();
        if replaced.as_ref().is_some_and(|node| node.content.is_none() || !is_file || !overwrite) {
            return Err(Error::already_exists(to));
        }
        let sources = self.beneath(from);
        self.make_parents(to, now);
        for key in &sources {
            let mut node = self.nodes[key].clone();
            self.version += 1;
            node.version = self.version;
            if moves {
                self.nodes.remove(key);
            } else {
                node.created_at = replaced.as_ref().map_or(now, |node| node.created_at);
                node.modified_at = now;
            }
            self.nodes.insert(to.concat(key.strip_prefix(from).expect("the sources lie beneath the directory")), node);
        }
        Ok(self.changed(operation, to).with_created(replaced.is_none()).with_entries(sources.len()))
    }

    fn put(&mut self, path: &VfsPath, content: Bytes, now: Timestamp) {
        let created_at = self.nodes.get(path).map_or(now, |node| node.created_at);
        self.make_parents(path, now);
        self.nodes.insert(path.to_owned(), Node { content: Some(content), version: self.version, created_at, modified_at: now });
    }

    fn make_parents(&mut self, path: &VfsPath, now: Timestamp) {
        for above in path.ancestors().filter(|above| !above.is_root()) {
            self.nodes.entry(above.to_owned()).or_insert(Node { content: None, version: self.version, created_at: now, modified_at: now });
        }
    }

    /// Returns a path and everything beneath it.
    fn beneath(&self, path: &VfsPath) -> Vec<VfsPathBuf> {
        self.nodes.keys().filter(|key| key.starts_with(path)).cloned().collect()
    }

    fn changed(&self, operation: OpKind, path: &VfsPath) -> Changed {
        match self.nodes.get(path) {
            Some(Node { content: Some(content), version, .. }) => {
                Changed::new(operation, path).with_file(Version::new(*version), content.len() as u64)
            }
            _ => Changed::new(operation, path),
        }
    }

    /// Returns whether a walk from `root` reaches `key`: nothing on the way is pruned, ignored or rejected by the guard.
    fn is_entered(&self, root: &VfsPath, key: &VfsPath, scope: &SearchScope) -> bool {
        !scope.prune.iter().any(|pruned| key.starts_with(pruned))
            && (scope.ignored || !self.is_ignored(root, key))
            && key.ancestors().filter(|above| above.starts_with(root) && *above != root).all(|above| admits(scope, above, true))
            && admits(scope, key, self.nodes[key].content.is_none())
    }

    /// Checks the ignore rules for the path and for each directory between it and the search root.
    fn is_ignored(&self, root: &VfsPath, key: &VfsPath) -> bool {
        let content = |directory: &VfsPath, name: &str| self.nodes.get(&*directory.child(name).ok()?).and_then(|node| node.content.clone());
        let mut rules = IgnoreFiles::new();
        for above in key.ancestors() {
            if above != root && above.starts_with(root) && rules.excludes(above, true) {
                return true;
            }
            let contents = [".gitignore", ".ignore"].map(|name| content(above, name));
            rules.insert(above, [contents[0].as_deref(), contents[1].as_deref()]);
        }
        rules.excludes(key, self.nodes.get(key).is_some_and(|node| node.content.is_none()))
    }

    fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        let include = options.include.iter().map(|glob| Pattern::within(glob, false, &options.scope)).collect::<Result<Vec<_>>>()?;
        let exclude = options.exclude.iter().map(|glob| Pattern::parse(glob, false, true)).collect::<Result<Vec<_>>>()?;
        grep_lines(&Bytes::new(), options)?;
        let types = types(&options.types)?;
        let one_file = !self.entry(path)?.is_directory();
        let mut result = GrepResult::default();
        let mut left = options.matches_max;
        for (key, node) in self.nodes.iter().filter(|(key, _)| key.starts_with(path)) {
            let Some(content) = &node.content else { continue };
            let name = relative(path, key, &options.scope);
            let matches_any = |patterns: &[Pattern], name: &str| patterns.iter().any(|pattern| pattern.matches(name));
            let excluded =
                || matches_any(&exclude, &name) || name.match_indices('/').any(|(slash, _)| matches_any(&exclude, &name[..slash]));
            let is_plain = || {
                let depth = if options.scope.hidden_directories { 1 } else { usize::MAX };
                options.scope.hidden || !name.rsplit('/').take(depth).any(|segment| segment.starts_with('.'))
            };
            let included = || if include.is_empty() { is_plain() } else { matches_any(&include, &name) };
            let typed = || types.as_ref().is_none_or(|types| types.matched(&name, false).is_whitelist());
            if !one_file && (!typed() || !self.is_entered(path, key, &options.scope) || !included() || excluded()) {
                continue;
            }
            let after_line = match &options.start_after {
                Some(cursor) if cursor.path == *key => cursor.line,
                Some(cursor) if cursor.path > *key => continue,
                _ => 0,
            };
            if after_line == GrepCursor::END {
                continue;
            }
            let text = decoded(content, options.encoding);
            if options.size_max_bytes.is_some_and(|max| content.len() as u64 > max) {
                result.files_too_large += 1;
            } else if !options.binary && is_binary(&text) {
                result.files_binary += 1;
            } else if let Some(cursor) = grep_file(key, &text, after_line, options, &mut left, &mut result)? {
                result.truncated = Some(Truncation { reason: TruncationReason::Limit, cursor: cursor.to_string() });
                break;
            }
        }
        Ok(result)
    }
}

/// Decodes content that has a byte order mark.
fn decoded(content: &Bytes, encoding: Encoding) -> Bytes {
    let utf_16 = |rest: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = rest.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
        let odd = if rest.len() % 2 == 1 { "\u{fffd}" } else { "" };
        Bytes::from(String::from_utf16_lossy(&units) + odd)
    };
    match (encoding, &content[..]) {
        (Encoding::Auto, [0xff, 0xfe, rest @ ..]) => utf_16(rest, u16::from_le_bytes),
        (Encoding::Auto, [0xfe, 0xff, rest @ ..]) => utf_16(rest, u16::from_be_bytes),
        (Encoding::Auto, [0xef, 0xbb, 0xbf, ..]) => content.slice(3..),
        _ => content.clone(),
    }
}

/// Adds one file to the result. Returns where to continue if the limit is reached and there is more.
fn grep_file(
    key: &VfsPath,
    content: &Bytes,
    after_line: usize,
    options: &GrepOptions,
    left: &mut usize,
    result: &mut GrepResult,
) -> Result<Option<GrepCursor>> {
    let lines = grep_lines(content, options)?;
    let matching: Vec<usize> = lines.iter().filter(|line| line.is_match && line.line > after_line).map(|line| line.line).collect();
    if *left == 0 && !matching.is_empty() {
        let last = result.files.last().map(|file| GrepCursor { path: file.path.clone(), line: GrepCursor::END });
        return Ok(last.or_else(|| options.start_after.clone()).or(Some(GrepCursor { path: key.to_owned(), line: 0 })));
    }
    result.files_searched += 1;
    if matching.is_empty() {
        return Ok(None);
    }
    let of_file = matching.len().min(options.file_matches_max.unwrap_or(usize::MAX));
    if options.output != GrepOutput::Content {
        *left -= 1;
        let count = if options.output == GrepOutput::Files { 1 } else { of_file };
        result.files.push(GrepFile::new(key, count, Vec::new()));
        return Ok(None);
    }
    let wanted = &matching[..of_file.min(*left)];
    *left -= wanted.len();
    let is_shown = |line: usize, is_match: bool| match is_match {
        true => wanted.contains(&line),
        false => wanted.iter().any(|of| line + options.before >= *of && line <= of + options.after),
    };
    let shown = lines.into_iter().filter(|line| is_shown(line.line, line.is_match)).collect();
    result.files.push(GrepFile::new(key, wanted.len(), shown));
    Ok((wanted.len() < of_file).then(|| GrepCursor { path: key.to_owned(), line: wanted.last().copied().unwrap_or(after_line) }))
}

/// Compiles file types. Returns `None` if there are none.
fn types(names: &[String]) -> Result<Option<Types>> {
    let mut builder = TypesBuilder::new();
    builder.add_defaults();
    for name in names {
        builder.select(name);
    }
    let types = builder.build().map_err(|error| Error::invalid_argument(error.to_string()))?;
    Ok((!names.is_empty()).then_some(types))
}

fn expect_version(path: &VfsPath, expect: Option<Version>, current: u64) -> Result<()> {
    match expect {
        Some(version) if version.number() != current => Err(Error::conflict(path, Some(Version::new(current)))),
        _ => Ok(()),
    }
}

/// A unit of text in edits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Byte(u8),
    /// A line ending, and whether it is `\r\n`.
    End(bool),
}

impl Unit {
    fn all(content: &[u8]) -> Vec<Self> {
        let mut units = Vec::new();
        for byte in content {
            match (byte, units.last()) {
                (b'\n', Some(Self::Byte(b'\r'))) => {
                    units.pop();
                    units.push(Self::End(true));
                }
                (b'\n', _) => units.push(Self::End(false)),
                (byte, _) => units.push(Self::Byte(*byte)),
            }
        }
        units
    }

    fn is_end(&self) -> bool {
        matches!(self, Self::End(_))
    }

    fn matches(&self, other: &Self) -> bool {
        self == other || (self.is_end() && other.is_end())
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Byte(byte) => vec![*byte],
            Self::End(true) => b"\r\n".to_vec(),
            Self::End(false) => b"\n".to_vec(),
        }
    }
}

/// Replaces text by the contract, unit by unit.
pub fn replaced(content: &[u8], edit: &Edit) -> Result<(Vec<u8>, usize)> {
    if edit.old.is_empty() {
        return Err(Error::invalid_argument("the text to replace is empty"));
    }
    let (units, old, new) = (Unit::all(content), Unit::all(edit.old.as_bytes()), Unit::all(edit.new.as_bytes()));
    let same = |one: &[Unit], other: &[Unit]| one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.matches(other));
    let is_exact = old != new && same(&old, &new);
    // Kept as the loop advances, so that the work is linear even where everything matches.
    let (mut line, mut end_before) = (1, None);
    let ends_behind = ends_at_or_behind(&units);
    let (mut result, mut lines, mut at) = (Vec::new(), Vec::new(), 0);
    while at < units.len() {
        let start = at;
        match units.get(at..at + old.len()).filter(|place| if is_exact { *place == old } else { same(place, &old) }) {
            Some(place) => {
                lines.push(line);
                let put = if is_exact { new.clone() } else { ended(place, ends_behind[at + old.len()].or(end_before), &new) };
                result.extend(put.iter().flat_map(Unit::bytes));
                at += old.len();
            }
            None => {
                result.extend(units[at].bytes());
                at += 1;
            }
        }
        let mut passed = units[start..at].iter().filter(|unit| unit.is_end());
        line += passed.clone().count();
        end_before = passed.next_back().copied().or(end_before);
    }
    match lines.len() {
        0 => Err(Error::new(ErrorKind::NoMatch, "the text to replace does not occur")),
        count if count == 1 || edit.replace_all => Ok((result, count)),
        count => Err(Error::new(ErrorKind::Ambiguous, format!("the text to replace occurs {count} times")).with_lines(lines)),
    }
}

/// Returns, for each position and for the end, the first line ending there or behind.
fn ends_at_or_behind(units: &[Unit]) -> Vec<Option<Unit>> {
    let mut ends = vec![None; units.len() + 1];
    for at in (0..units.len()).rev() {
        ends[at] = if units[at].is_end() { Some(units[at]) } else { ends[at + 1] };
    }
    ends
}

/// Returns the new text with the line endings that the text around it requires. `neighbour` is the nearest line ending outside of the
/// replaced text: the first one behind it, otherwise the last one before it.
fn ended(place: &[Unit], neighbour: Option<Unit>, new: &[Unit]) -> Vec<Unit> {
    let ends = |units: &[Unit]| -> Vec<Unit> { units.iter().copied().filter(Unit::is_end).collect() };
    let lines = |units: &[Unit]| -> Vec<Vec<Unit>> {
        let mut lines: Vec<Vec<Unit>> = units.split(Unit::is_end).map(<[Unit]>::to_vec).collect();
        lines.pop();
        lines
    };
    let (old_ends, old_lines, new_lines) = (ends(place), lines(place), lines(new));
    let mut taken: Vec<Unit> = if old_ends.is_empty() {
        ends(new).into_iter().map(|written| neighbour.unwrap_or(written)).collect()
    } else {
        let (mut first, mut last) = (0, 0);
        while first < old_lines.len().min(new_lines.len()) && old_lines[first] == new_lines[first] {
            first += 1;
        }
        while last < old_lines.len().min(new_lines.len()) - first
            && old_lines[old_lines.len() - 1 - last] == new_lines[new_lines.len() - 1 - last]
        {
            last += 1;
        }
        let mut taken = old_ends[..first].to_vec();
        let replaced = &old_ends[first..old_ends.len() - last];
        for index in 0..new_lines.len() - first - last {
            let line_before = taken.last().copied();
            taken.push(replaced.get(index).copied().or(line_before).unwrap_or(old_ends[0]));
        }
        taken.extend_from_slice(&old_ends[old_ends.len() - last..]);
        taken
    };
    taken.reverse();
    new.iter().map(|unit| if unit.is_end() { taken.pop().expect("one for each") } else { *unit }).collect()
}

/// Asks the guard of a search, if there is one.
fn admits(scope: &SearchScope, path: &VfsPath, is_directory: bool) -> bool {
    scope.guard.as_ref().is_none_or(|guard| guard.admits(path, is_directory))
}

/// Returns what patterns match: the base and the path beneath the search root, without a leading slash.
fn relative(root: &VfsPath, key: &VfsPath, scope: &SearchScope) -> String {
    scope.base.concat(key.strip_prefix(root).expect("it lies beneath")).relative().to_owned()
}
