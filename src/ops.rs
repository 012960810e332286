//! Every operation as data: options go in, results come out, and [`Change`] is all that mutates.
//!
//! Reading is methods of [`Backend`](crate::Backend), each with one options struct here. Changing is a list of [`Change`]
//! for [`apply`](crate::Backend::apply). Every operation is bounded: limits come in with the options, and a result that
//! was cut says why and how to go on in its [`Truncation`].

use crate::error::ErrorRecord;
use crate::path::{VfsPath, VfsPathBuf};
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What a conditional change compares: an opaque mark of one content at one path.
///
/// A version is never used again for other content at the same path, not even after a delete. Compare for equality only.
/// As text and in JSON it is a string of hexadecimal digits, so that no client rounds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(u64);

impl Version {
    /// Makes a version from a backend's own number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the backend's own number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({:x})", self.0)
    }
}

impl std::str::FromStr for Version {
    type Err = crate::error::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self).map_err(|_| {
            crate::error::Error::invalid_argument(format!("`{text}` is not a version; use the one that stat or read returned"))
        })
    }
}

impl Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The name of an operation, as rules, audit rows and errors say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OpKind {
    /// Looks at one path.
    Stat,
    /// Reads content.
    Read,
    /// Lists the children of a directory.
    Ls,
    /// Finds paths by pattern.
    Glob,
    /// Finds lines by pattern.
    Grep,
    /// Writes a whole file.
    Write,
    /// Adds to the end of a file.
    Append,
    /// Replaces text within a file.
    Edit,
    /// Makes a directory.
    CreateDir,
    /// Removes a file or directory.
    Delete,
    /// Moves a file or directory.
    Rename,
    /// Copies a file or directory.
    Copy,
    /// Applies several changes as one batch.
    Apply,
}

impl OpKind {
    /// Tells whether the operation changes the tree.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Stat | Self::Read | Self::Ls | Self::Glob | Self::Grep)
    }

    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::Read => "read",
            Self::Ls => "ls",
            Self::Glob => "glob",
            Self::Grep => "grep",
            Self::Write => "write",
            Self::Append => "append",
            Self::Edit => "edit",
            Self::CreateDir => "create_dir",
            Self::Delete => "delete",
            Self::Rename => "rename",
            Self::Copy => "copy",
            Self::Apply => "apply",
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One call as a layer sees it before it runs.
#[derive(Debug, Clone, Copy)]
pub struct Op<'a> {
    /// What is called. A batch of one change is called by that change's kind.
    pub kind: OpKind,
    /// The path it is called on; of a batch, its first change's.
    pub path: &'a VfsPath,
    /// The changes, when it writes.
    pub changes: &'a [Change],
}

impl<'a> Op<'a> {
    /// Makes the call of a read method.
    pub const fn read(kind: OpKind, path: &'a VfsPath) -> Self {
        Self { kind, path, changes: &[] }
    }

    /// Makes the call of `apply`.
    pub fn apply(changes: &'a [Change]) -> Self {
        match changes {
            [] => Self { kind: OpKind::Apply, path: VfsPath::ROOT, changes },
            [one] => Self { kind: one.kind(), path: one.path(), changes },
            [first, ..] => Self { kind: OpKind::Apply, path: first.path(), changes },
        }
    }
}

/// How a write treats what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteMode {
    /// Creates the file or replaces its content; a replaced file keeps its creation time.
    #[default]
    Overwrite,
    /// Creates the file; `already_exists` when one is there.
    CreateNew,
    /// Replaces the content if the file still has this version; `conflict` otherwise.
    IfVersion(Version),
}

/// One replacement within a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    /// The text to replace: not empty, and unique in the file unless `replace_all`.
    pub old: String,
    /// The text that takes its place.
    pub new: String,
    /// Replaces every occurrence instead of the only one.
    #[serde(default)]
    pub replace_all: bool,
}

impl Edit {
    /// Replaces the one occurrence of `old`.
    pub fn new(old: impl Into<String>, new: impl Into<String>) -> Self {
        Self { old: old.into(), new: new.into(), replace_all: false }
    }

    /// Replaces every occurrence of `old`.
    pub fn all(old: impl Into<String>, new: impl Into<String>) -> Self {
        Self { old: old.into(), new: new.into(), replace_all: true }
    }
}

/// One mutation. A list of them is a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes a whole file; parents appear by themselves.
    Write {
        /// The file.
        path: VfsPathBuf,
        /// Its new content.
        content: Bytes,
        /// How to treat what is there.
        mode: WriteMode,
    },
    /// Adds to the end of a file, creating it and its parents when absent.
    Append {
        /// The file.
        path: VfsPathBuf,
        /// What to add.
        content: Bytes,
    },
    /// Applies replacements in order to one file, all or none.
    Edit {
        /// The file.
        path: VfsPathBuf,
        /// At least one replacement.
        edits: Vec<Edit>,
        /// The version the file must have.
        expect: Option<Version>,
    },
    /// Makes a directory and its parents; a directory that exists is no error.
    CreateDir {
        /// The directory.
        path: VfsPathBuf,
    },
    /// Removes a file, a link, or a directory.
    Delete {
        /// What to remove.
        path: VfsPathBuf,
        /// Removes a directory with all it holds; without it the directory must be empty.
        recursive: bool,
        /// The version the file must have.
        expect: Option<Version>,
    },
    /// Moves a file, or a directory with all it holds; parents of the target appear by themselves.
    Rename {
        /// What to move.
        from: VfsPathBuf,
        /// Where it stands afterwards.
        to: VfsPathBuf,
        /// Replaces a file that is there; a directory is never replaced.
        overwrite: bool,
    },
    /// Copies a file, or a directory with all it holds; parents of the target appear by themselves.
    Copy {
        /// What to copy.
        from: VfsPathBuf,
        /// Where the copy stands.
        to: VfsPathBuf,
        /// Replaces a file that is there; a directory is never replaced.
        overwrite: bool,
    },
}

impl Change {
    /// Returns the operation this change is.
    pub const fn kind(&self) -> OpKind {
        match self {
            Self::Write { .. } => OpKind::Write,
            Self::Append { .. } => OpKind::Append,
            Self::Edit { .. } => OpKind::Edit,
            Self::CreateDir { .. } => OpKind::CreateDir,
            Self::Delete { .. } => OpKind::Delete,
            Self::Rename { .. } => OpKind::Rename,
            Self::Copy { .. } => OpKind::Copy,
        }
    }

    /// Returns the path it is about; of a rename or copy, the source.
    pub fn path(&self) -> &VfsPath {
        match self {
            Self::Write { path, .. }
            | Self::Append { path, .. }
            | Self::Edit { path, .. }
            | Self::CreateDir { path }
            | Self::Delete { path, .. } => path,
            Self::Rename { from, .. } | Self::Copy { from, .. } => from,
        }
    }

    /// Returns the target of a rename or copy.
    pub fn target(&self) -> Option<&VfsPath> {
        match self {
            Self::Rename { to, .. } | Self::Copy { to, .. } => Some(to),
            _ => None,
        }
    }

    /// Returns every path it names: one, or the source and the target.
    pub fn paths(&self) -> impl Iterator<Item = &VfsPath> {
        std::iter::once(self.path()).chain(self.target())
    }

    /// Returns the same change with every path mapped, such as into the paths of a tree below or above.
    ///
    /// # Errors
    /// What `map` returns.
    pub fn try_map_paths<E>(&self, mut map: impl FnMut(&VfsPath) -> Result<VfsPathBuf, E>) -> Result<Self, E> {
        Ok(match self {
            Self::Write { path, content, mode } => Self::Write { path: map(path)?, content: content.clone(), mode: *mode },
            Self::Append { path, content } => Self::Append { path: map(path)?, content: content.clone() },
            Self::Edit { path, edits, expect } => Self::Edit { path: map(path)?, edits: edits.clone(), expect: *expect },
            Self::CreateDir { path } => Self::CreateDir { path: map(path)? },
            Self::Delete { path, recursive, expect } => Self::Delete { path: map(path)?, recursive: *recursive, expect: *expect },
            Self::Rename { from, to, overwrite } => Self::Rename { from: map(from)?, to: map(to)?, overwrite: *overwrite },
            Self::Copy { from, to, overwrite } => Self::Copy { from: map(from)?, to: map(to)?, overwrite: *overwrite },
        })
    }
}

/// What one change did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Changed {
    /// The operation.
    pub operation: OpKind,
    /// The path it left something at, or removed; of a rename or copy, the target.
    pub path: VfsPathBuf,
    /// The version of the file this very change made; none for directories and deletes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// The size in bytes of the file afterwards; 0 for directories and deletes.
    pub size_bytes: u64,
    /// Whether the path was new.
    pub created: bool,
    /// How many occurrences an edit replaced; 0 otherwise.
    pub replacements: usize,
    /// How many files and directories the change touched, the path itself included; 0 when nothing had to change. A rename may
    /// count a directory that moves as a whole as one.
    pub entries: usize,
}

impl Changed {
    /// Starts the result of `operation` at `path`, with nothing created or replaced and one entry touched.
    pub fn new(operation: OpKind, path: impl Into<VfsPathBuf>) -> Self {
        Self { operation, path: path.into(), version: None, size_bytes: 0, created: false, replacements: 0, entries: 1 }
    }

    /// Sets the version and size of the file that stands there now.
    #[must_use]
    pub fn with_file(mut self, version: Version, size_bytes: u64) -> Self {
        self.version = Some(version);
        self.size_bytes = size_bytes;
        self
    }

    /// Sets whether the path was new.
    #[must_use]
    pub fn with_created(mut self, created: bool) -> Self {
        self.created = created;
        self
    }

    /// Sets how many occurrences were replaced.
    #[must_use]
    pub fn with_replacements(mut self, replacements: usize) -> Self {
        self.replacements = replacements;
        self
    }

    /// Sets how many entries were touched.
    #[must_use]
    pub fn with_entries(mut self, entries: usize) -> Self {
        self.entries = entries;
        self
    }
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// Bytes.
    File,
    /// A directory.
    Directory,
    /// A symbolic link of the host, shown as such.
    Symlink,
    /// A device, socket or pipe of the host: listed, never opened.
    Other,
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Other => "other",
        })
    }
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// The whole path.
    pub path: VfsPathBuf,
    /// What it is.
    pub kind: EntryKind,
    /// The size in bytes; 0 for directories.
    pub size_bytes: u64,
    /// The version; none for directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// When it first appeared, where the tier knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// When its content last changed, where the tier knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Timestamp>,
}

impl Entry {
    /// Makes the entry of a directory without times.
    pub fn directory(path: impl Into<VfsPathBuf>) -> Self {
        Self { path: path.into(), kind: EntryKind::Directory, size_bytes: 0, version: None, created_at: None, modified_at: None }
    }

    /// Makes the entry of a file without times.
    pub fn file(path: impl Into<VfsPathBuf>, size_bytes: u64, version: Version) -> Self {
        Self { path: path.into(), kind: EntryKind::File, size_bytes, version: Some(version), created_at: None, modified_at: None }
    }

    /// Sets the kind.
    #[must_use]
    pub fn with_kind(mut self, kind: EntryKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the times.
    #[must_use]
    pub fn with_times(mut self, created_at: Option<Timestamp>, modified_at: Option<Timestamp>) -> Self {
        self.created_at = created_at;
        self.modified_at = modified_at;
        self
    }

    /// Returns the last segment of the path.
    pub fn name(&self) -> &str {
        self.path.name()
    }

    /// Tells whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == EntryKind::Directory
    }
}

/// Why a result was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TruncationReason {
    /// The caller's limit was reached.
    Limit,
    /// The result would be larger in bytes than one answer may be.
    Size,
}

/// A result that was cut, and how to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Truncation {
    /// Why.
    pub reason: TruncationReason,
    /// What to give as `start_after` for the rest.
    pub cursor: String,
}

/// A part of the tree that could not be read; what was read stands beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The file, directory or mount.
    pub path: VfsPathBuf,
    /// Why.
    pub error: ErrorRecord,
}

/// What a search over several mounts does when one of them fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// Fails as a whole, naming the mount.
    #[default]
    Fail,
    /// Returns what the others found and lists the mount among the failures.
    Partial,
}

/// Which part of a file to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadRange {
    /// All of it.
    #[default]
    Whole,
    /// A window of lines.
    Lines {
        /// How many lines to pass over, from 0.
        offset: usize,
        /// How many lines to return at most.
        limit: usize,
    },
    /// A range of bytes; what lies past the end is left out.
    Bytes {
        /// How many bytes to pass over, from 0.
        offset: u64,
        /// How many bytes to return at most.
        limit: u64,
    },
}

/// How to read one file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOptions {
    /// Which part.
    pub range: ReadRange,
    /// The most bytes one read returns: more is `too_large` for a whole file, and ends a window of lines early (the window
    /// then says where to go on). Default 64 MiB.
    pub bytes_max: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { range: ReadRange::Whole, bytes_max: 64 << 20 }
    }
}

impl ReadOptions {
    /// Reads the whole file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads at most `limit` lines after passing over `offset`.
    pub fn lines(offset: usize, limit: usize) -> Self {
        Self { range: ReadRange::Lines { offset, limit }, ..Self::default() }
    }

    /// Reads at most `limit` bytes after passing over `offset`.
    pub fn bytes(offset: u64, limit: u64) -> Self {
        Self { range: ReadRange::Bytes { offset, limit }, ..Self::default() }
    }

    /// Sets the most bytes returned.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: u64) -> Self {
        self.bytes_max = bytes_max;
        self
    }
}

/// Which lines a window of a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Window {
    /// How many lines lie before it.
    pub offset: usize,
    /// How many lines it holds.
    pub lines: usize,
    /// How many lines the file has.
    pub total_lines: usize,
}

impl Window {
    /// Returns the number of the first line, from 1; none when the window is empty.
    pub fn first_line(&self) -> Option<usize> {
        (self.lines > 0).then_some(self.offset + 1)
    }

    /// Returns the number of the last line, from 1; none when the window is empty.
    pub fn last_line(&self) -> Option<usize> {
        (self.lines > 0).then_some(self.offset + self.lines)
    }

    /// Returns the offset to go on from; none at the end of the file.
    pub fn next_offset(&self) -> Option<usize> {
        let next = self.offset + self.lines;
        (next < self.total_lines).then_some(next)
    }
}

/// What a read returned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileRead {
    /// The bytes asked for, exactly as stored.
    pub content: Bytes,
    /// The version of the file they are of.
    pub version: Version,
    /// The size in bytes of the whole file.
    pub size_bytes: u64,
    /// When the content last changed, where the tier knows.
    pub modified_at: Option<Timestamp>,
    /// Which lines these are, when lines were asked for.
    pub window: Option<Window>,
}

impl FileRead {
    /// Makes the result of reading a whole file.
    pub fn new(content: Bytes, version: Version, modified_at: Option<Timestamp>) -> Self {
        Self { size_bytes: content.len() as u64, content, version, modified_at, window: None }
    }

    /// Returns the content as text, with what is not UTF-8 replaced.
    pub fn text_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.content)
    }
}

/// How to list a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LsOptions {
    /// The most entries returned. Default 10,000.
    pub limit: usize,
    /// Goes on after this name: the cursor of a cut listing.
    pub start_after: Option<String>,
    /// What a failing mount does to the listing of the directory above it.
    pub on_failure: OnFailure,
}

impl Default for LsOptions {
    fn default() -> Self {
        Self { limit: 10_000, start_after: None, on_failure: OnFailure::default() }
    }
}

impl LsOptions {
    /// Lists up to 10,000 children.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most entries returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Goes on after a name.
    #[must_use]
    pub fn with_start_after(mut self, name: impl Into<String>) -> Self {
        self.start_after = Some(name.into());
        self
    }

    /// Sets what a failing mount does.
    #[must_use]
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }
}

/// The children of one directory, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Listing {
    /// The children.
    pub entries: Vec<Entry>,
    /// Set when there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// Mounts that could not be looked at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

impl Listing {
    /// Makes a listing from all children after the cursor, in order; cuts at the limit.
    pub fn from_sorted(entries: impl IntoIterator<Item = Entry>, options: &LsOptions) -> Self {
        let mut all = entries.into_iter();
        let entries: Vec<Entry> = all.by_ref().take(options.limit).collect();
        let truncated = all.next().map(|_| Truncation {
            reason: TruncationReason::Limit,
            cursor: entries.last().map(|entry| entry.name().to_owned()).or_else(|| options.start_after.clone()).unwrap_or_default(),
        });
        Self { entries, truncated, failures: Vec::new() }
    }
}

/// Where a search stands in its caller's tree, and what it leaves out; the same for `glob` and `grep`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SearchScope {
    /// What stands between the caller's search root and the path searched here, `/` when they are the same. Patterns match
    /// `base` followed by the path beneath the path searched, so a mount is matched as its ancestor sees it.
    pub base: VfsPathBuf,
    /// Subtrees that are not entered, as whole paths of this tree: what a mount hides.
    pub prune: Vec<VfsPathBuf>,
    /// Includes names that start with a dot. Without it such a name is met only by a segment of the pattern that starts
    /// with a dot itself. Default false.
    pub hidden: bool,
    /// Includes what `.gitignore` and `.ignore` files of the tree exclude. Default false.
    pub ignored: bool,
    /// What a failing mount does.
    pub on_failure: OnFailure,
    /// Asked for every path met, when set: what it refuses is not found, not entered, and its content is not read.
    pub guard: Option<PathGuard>,
}

impl Default for SearchScope {
    fn default() -> Self {
        Self { base: VfsPathBuf::root(), prune: Vec::new(), hidden: false, ignored: false, on_failure: OnFailure::default(), guard: None }
    }
}

/// Which paths of a tree a search may meet, decided path by path while it walks.
///
/// A layer that hides paths sets it, so that what is hidden is never read and never takes a place under a limit. It speaks of
/// whole paths of the tree searched; a tree that asks another at a prefix hands on [`PathGuard::beneath`] that prefix. Two
/// guards are equal when they are the same one.
#[derive(Clone)]
pub struct PathGuard(Arc<dyn Fn(&VfsPath, bool) -> bool + Send + Sync>);

impl PathGuard {
    /// Makes a guard of a function of a path and whether a directory is there: true when it may be found, and entered.
    pub fn new(admits: impl Fn(&VfsPath, bool) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admits))
    }

    /// Tells whether a search may find a path, and enter it when it is a directory.
    pub fn admits(&self, path: &VfsPath, is_directory: bool) -> bool {
        (self.0)(path, is_directory)
    }

    /// Returns the same guard for the tree that stands at `prefix`.
    #[must_use]
    pub fn beneath(&self, prefix: &VfsPath) -> Self {
        if prefix.is_root() {
            return self.clone();
        }
        let (outer, prefix) = (self.clone(), prefix.to_owned());
        Self::new(move |path, is_directory| outer.admits(&prefix.concat(path), is_directory))
    }

    /// Returns a guard that admits what both admit.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (one, other) = (self.clone(), other.clone());
        Self::new(move |path, is_directory| one.admits(path, is_directory) && other.admits(path, is_directory))
    }
}

impl PartialEq for PathGuard {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PathGuard {}

impl fmt::Debug for PathGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathGuard")
    }
}

/// How to find paths.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GlobOptions {
    /// The pattern: `*` and `?` stay within a segment, `**` crosses, `{a,b}`, `[...]`; without `/` it matches names at any
    /// depth, with a leading `/` it is anchored at the search root, as any other with a `/` is.
    pub pattern: String,
    /// Ignores case. Default false.
    pub case_insensitive: bool,
    /// Finds directories too. Default false: files (and links).
    pub directories: bool,
    /// The most entries returned. Default 10,000.
    pub limit: usize,
    /// Goes on after this path: the cursor of a cut result.
    pub start_after: Option<VfsPathBuf>,
    /// Where the search stands and what it leaves out.
    pub scope: SearchScope,
}

impl GlobOptions {
    /// Finds up to 10,000 files by pattern.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            case_insensitive: false,
            directories: false,
            limit: 10_000,
            start_after: None,
            scope: SearchScope::default(),
        }
    }

    /// Ignores case.
    #[must_use]
    pub fn with_case_insensitive(mut self, case_insensitive: bool) -> Self {
        self.case_insensitive = case_insensitive;
        self
    }

    /// Finds directories too.
    #[must_use]
    pub fn with_directories(mut self, directories: bool) -> Self {
        self.directories = directories;
        self
    }

    /// Sets the most entries returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Goes on after a path.
    #[must_use]
    pub fn with_start_after(mut self, path: impl Into<VfsPathBuf>) -> Self {
        self.start_after = Some(path.into());
        self
    }

    /// Includes names that start with a dot.
    #[must_use]
    pub fn with_hidden(mut self, hidden: bool) -> Self {
        self.scope.hidden = hidden;
        self
    }

    /// Includes what ignore files exclude.
    #[must_use]
    pub fn with_ignored(mut self, ignored: bool) -> Self {
        self.scope.ignored = ignored;
        self
    }

    /// Sets what a failing mount does.
    #[must_use]
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.scope.on_failure = on_failure;
        self
    }
}

/// The paths a glob found, in path order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct GlobResult {
    /// What was found.
    pub entries: Vec<Entry>,
    /// Set when there are more; the cursor is a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// What could not be looked at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

impl GlobResult {
    /// Makes a result from all that was found after the cursor, in path order; cuts at the limit.
    pub fn from_sorted(entries: impl IntoIterator<Item = Entry>, options: &GlobOptions) -> Self {
        let mut all = entries.into_iter();
        let entries: Vec<Entry> = all.by_ref().take(options.limit).collect();
        let truncated = all.next().map(|_| Truncation {
            reason: TruncationReason::Limit,
            cursor: entries
                .last()
                .map(|entry| entry.path.to_string())
                .or_else(|| options.start_after.as_ref().map(ToString::to_string))
                .unwrap_or_default(),
        });
        Self { entries, truncated, failures: Vec::new() }
    }
}

/// How letters compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CaseMode {
    /// As written.
    #[default]
    Sensitive,
    /// Ignoring case.
    Insensitive,
    /// Ignoring case unless the pattern has an upper-case letter.
    Smart,
}

/// What a grep returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GrepOutput {
    /// The matching lines.
    #[default]
    Content,
    /// The files that hold a match, each once.
    Files,
    /// The number of matching lines of each file that holds one.
    Counts,
}

/// How to find lines.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrepOptions {
    /// What to find: literal text unless `regex`.
    pub pattern: String,
    /// Reads the pattern as a regular expression (linear time; the syntax of the `regex` crate). Default false.
    pub regex: bool,
    /// How letters compare.
    pub case: CaseMode,
    /// Matches whole words only.
    pub word: bool,
    /// Matches whole lines only.
    pub whole_line: bool,
    /// Finds the lines that do not match.
    pub invert: bool,
    /// Lets a match span lines.
    pub multiline: bool,
    /// How many lines before each match to return.
    pub before: usize,
    /// How many lines after each match to return.
    pub after: usize,
    /// Searches only files that one of these globs matches.
    pub include: Vec<String>,
    /// Searches no file that one of these globs matches, and nothing beneath a directory that one matches.
    pub exclude: Vec<String>,
    /// Searches only files of these types, such as `rust` or `py`.
    pub types: Vec<String>,
    /// Searches binary files too, as bytes. Default false: they are skipped and counted.
    pub binary: bool,
    /// Skips and counts files over this size in bytes. Default none.
    pub size_max_bytes: Option<u64>,
    /// What to return.
    pub output: GrepOutput,
    /// The most matching lines (with [`GrepOutput::Content`]) or files returned. Default 10,000.
    pub matches_max: usize,
    /// The most matching lines returned of one file.
    pub file_matches_max: Option<usize>,
    /// Goes on after this file and line: the cursor of a cut result.
    pub start_after: Option<GrepCursor>,
    /// Where the search stands and what it leaves out.
    pub scope: SearchScope,
}

impl GrepOptions {
    /// Finds literal text, returning up to 10,000 lines.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            regex: false,
            case: CaseMode::default(),
            word: false,
            whole_line: false,
            invert: false,
            multiline: false,
            before: 0,
            after: 0,
            include: Vec::new(),
            exclude: Vec::new(),
            types: Vec::new(),
            binary: false,
            size_max_bytes: None,
            output: GrepOutput::default(),
            matches_max: 10_000,
            file_matches_max: None,
            start_after: None,
            scope: SearchScope::default(),
        }
    }

    /// Finds a regular expression, returning up to 10,000 lines.
    pub fn regex(pattern: impl Into<String>) -> Self {
        Self { regex: true, ..Self::new(pattern) }
    }

    /// Sets how letters compare.
    #[must_use]
    pub fn with_case(mut self, case: CaseMode) -> Self {
        self.case = case;
        self
    }

    /// Matches whole words only.
    #[must_use]
    pub fn with_word(mut self, word: bool) -> Self {
        self.word = word;
        self
    }

    /// Matches whole lines only.
    #[must_use]
    pub fn with_whole_line(mut self, whole_line: bool) -> Self {
        self.whole_line = whole_line;
        self
    }

    /// Finds the lines that do not match.
    #[must_use]
    pub fn with_invert(mut self, invert: bool) -> Self {
        self.invert = invert;
        self
    }

    /// Lets a match span lines.
    #[must_use]
    pub fn with_multiline(mut self, multiline: bool) -> Self {
        self.multiline = multiline;
        self
    }

    /// Sets how many lines around each match to return.
    #[must_use]
    pub fn with_context(mut self, before: usize, after: usize) -> Self {
        self.before = before;
        self.after = after;
        self
    }

    /// Adds a glob of files to search.
    #[must_use]
    pub fn with_include(mut self, glob: impl Into<String>) -> Self {
        self.include.push(glob.into());
        self
    }

    /// Adds a glob of files not to search.
    #[must_use]
    pub fn with_exclude(mut self, glob: impl Into<String>) -> Self {
        self.exclude.push(glob.into());
        self
    }

    /// Adds a file type to search.
    #[must_use]
    pub fn with_type(mut self, name: impl Into<String>) -> Self {
        self.types.push(name.into());
        self
    }

    /// Searches binary files too.
    #[must_use]
    pub fn with_binary(mut self, binary: bool) -> Self {
        self.binary = binary;
        self
    }

    /// Skips files over a size in bytes.
    #[must_use]
    pub fn with_size_max_bytes(mut self, size_max_bytes: u64) -> Self {
        self.size_max_bytes = Some(size_max_bytes);
        self
    }

    /// Sets what to return.
    #[must_use]
    pub fn with_output(mut self, output: GrepOutput) -> Self {
        self.output = output;
        self
    }

    /// Sets the most matching lines or files returned.
    #[must_use]
    pub fn with_matches_max(mut self, matches_max: usize) -> Self {
        self.matches_max = matches_max;
        self
    }

    /// Sets the most matching lines returned of one file.
    #[must_use]
    pub fn with_file_matches_max(mut self, file_matches_max: usize) -> Self {
        self.file_matches_max = Some(file_matches_max);
        self
    }

    /// Goes on after a file and line.
    #[must_use]
    pub fn with_start_after(mut self, cursor: GrepCursor) -> Self {
        self.start_after = Some(cursor);
        self
    }

    /// Includes names that start with a dot.
    #[must_use]
    pub fn with_hidden(mut self, hidden: bool) -> Self {
        self.scope.hidden = hidden;
        self
    }

    /// Includes what ignore files exclude.
    #[must_use]
    pub fn with_ignored(mut self, ignored: bool) -> Self {
        self.scope.ignored = ignored;
        self
    }

    /// Sets what a failing mount does.
    #[must_use]
    pub fn with_on_failure(mut self, on_failure: OnFailure) -> Self {
        self.scope.on_failure = on_failure;
        self
    }
}

/// The place a grep goes on from: what lies after this line of this file. As text, `path:line`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrepCursor {
    /// The file.
    pub path: VfsPathBuf,
    /// The last line already returned, from 1; [`GrepCursor::END`] when the whole file was.
    pub line: usize,
}

impl GrepCursor {
    /// Stands for the end of a file, whatever its length.
    pub const END: usize = usize::MAX;
}

impl fmt::Display for GrepCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Self::END => write!(f, "{}:end", self.path),
            line => write!(f, "{}:{line}", self.path),
        }
    }
}

impl std::str::FromStr for GrepCursor {
    type Err = crate::error::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || crate::error::Error::invalid_argument(format!("`{text}` is not a cursor; use the one that the cut result gave"));
        let (path, line) = text.rsplit_once(':').ok_or_else(invalid)?;
        let line = if line == "end" { Self::END } else { line.parse().map_err(|_| invalid())? };
        Ok(Self { path: VfsPathBuf::parse(path).map_err(|_| invalid())?, line })
    }
}

/// One line of a file that a grep returned, or several when a match spans them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrepLine {
    /// The number of the (first) line, from 1: read's line number.
    pub line: usize,
    /// Where the line starts in the file, in bytes from 0.
    pub byte_offset: u64,
    /// The line as stored, without its terminator (`\n` or `\r\n`).
    pub text: Bytes,
    /// Where the matches lie, in bytes of `text`; empty for a line of context and with `invert`.
    pub ranges: Vec<Range<usize>>,
    /// False for a line of context.
    pub is_match: bool,
}

impl GrepLine {
    /// Makes a line.
    pub fn new(line: usize, byte_offset: u64, text: Bytes, ranges: Vec<Range<usize>>, is_match: bool) -> Self {
        Self { line, byte_offset, text, ranges, is_match }
    }

    /// Returns the column of the first match in bytes, from 1.
    pub fn column(&self) -> Option<usize> {
        self.ranges.first().map(|range| range.start + 1)
    }

    /// Returns the line as text, with what is not UTF-8 replaced.
    pub fn text_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.text)
    }
}

impl Serialize for GrepLine {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut line = serializer.serialize_struct("GrepLine", 5)?;
        line.serialize_field("line", &self.line)?;
        line.serialize_field("byte_offset", &self.byte_offset)?;
        line.serialize_field("text", &self.text_lossy())?;
        line.serialize_field("ranges", &self.ranges.iter().map(|range| [range.start, range.end]).collect::<Vec<_>>())?;
        line.serialize_field("is_match", &self.is_match)?;
        line.end()
    }
}

/// What a grep found in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GrepFile {
    /// The file.
    pub path: VfsPathBuf,
    /// How many of its lines match; with [`GrepOutput::Files`] at least 1, with [`GrepOutput::Content`] those returned.
    pub count: usize,
    /// The lines, with [`GrepOutput::Content`], in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<GrepLine>,
}

impl GrepFile {
    /// Makes the result of one file.
    pub fn new(path: impl Into<VfsPathBuf>, count: usize, lines: Vec<GrepLine>) -> Self {
        Self { path: path.into(), count, lines }
    }
}

/// What a grep found, by file in path order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct GrepResult {
    /// The files with a match.
    pub files: Vec<GrepFile>,
    /// How many files were searched to the end or to their limit.
    pub files_searched: usize,
    /// How many files were skipped because they are binary.
    pub files_binary: usize,
    /// How many files were skipped for their size.
    pub files_too_large: usize,
    /// Set when there is more; the cursor is a [`GrepCursor`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// What could not be read: at most [`GrepResult::FAILURES_MAX`] are named, [`GrepResult::failures_count`] counts all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// How many could not be read.
    pub failures_count: usize,
}

impl GrepResult {
    /// How many failures are named at most.
    pub const FAILURES_MAX: usize = 100;

    /// Returns how many lines (or, without lines, files) were found.
    pub fn matches(&self) -> usize {
        self.files.iter().map(|file| file.lines.iter().filter(|line| line.is_match).count().max(usize::from(file.lines.is_empty()))).sum()
    }

    /// Adds a failure, named while there is room.
    pub fn push_failure(&mut self, failure: Failure) {
        self.failures_count += 1;
        if self.failures.len() < Self::FAILURES_MAX {
            self.failures.push(failure);
        }
    }
}

/// How to apply a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ApplyOptions {
    /// Allows a batch that cannot be atomic as a whole, such as one over several mounts: it is then applied in order up to
    /// the first failure, and the error says how many changes took effect. Default false: such a batch is refused.
    pub allow_partial: bool,
}

impl ApplyOptions {
    /// Applies all or nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows a partial result.
    #[must_use]
    pub fn with_allow_partial(mut self, allow_partial: bool) -> Self {
        self.allow_partial = allow_partial;
        self
    }
}

/// What an acknowledged change survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing: it lives in this process.
    None,
    /// The end of the process, however it ends.
    Process,
    /// The loss of power.
    Power,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Process => "process",
            Self::Power => "power",
        })
    }
}

/// What a backend offers beyond the contract that all keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// A batch takes effect as a whole or not at all. Without it a batch is applied in order up to the first failure.
    pub atomic_batch: bool,
    /// Changes are accepted.
    pub writable: bool,
    /// What an acknowledged change survives.
    pub durability: Durability,
    /// The largest file in bytes, where there is a limit.
    pub file_bytes_max: Option<u64>,
    /// Directory entries may be symbolic links of the host.
    pub symlinks: bool,
}

impl Capabilities {
    /// Declares a writable tree with atomic batches, no durability and no limit.
    pub fn new() -> Self {
        Self { atomic_batch: true, writable: true, durability: Durability::None, file_bytes_max: None, symlinks: false }
    }

    /// Sets whether batches are atomic.
    #[must_use]
    pub fn with_atomic_batch(mut self, atomic_batch: bool) -> Self {
        self.atomic_batch = atomic_batch;
        self
    }

    /// Sets whether changes are accepted.
    #[must_use]
    pub fn with_writable(mut self, writable: bool) -> Self {
        self.writable = writable;
        self
    }

    /// Sets what a change survives.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the largest file in bytes.
    #[must_use]
    pub fn with_file_bytes_max(mut self, file_bytes_max: Option<u64>) -> Self {
        self.file_bytes_max = file_bytes_max;
        self
    }

    /// Sets whether entries may be symbolic links.
    #[must_use]
    pub fn with_symlinks(mut self, symlinks: bool) -> Self {
        self.symlinks = symlinks;
        self
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_speaks_the_paths_of_the_tree_it_is_lent_to() {
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        let guard = PathGuard::new(|path, _| !path.as_str().starts_with("/m/secret"));
        let lent = guard.beneath(&path("/m"));
        assert!(!lent.admits(&path("/secret/a"), false));
        assert!(lent.admits(&path("/a"), false));
        assert!(!lent.and(&PathGuard::new(|_, is_directory| is_directory)).admits(&path("/a"), false));
        assert_eq!(guard.beneath(VfsPath::ROOT), guard);
        assert_ne!(lent, guard);
    }
}
