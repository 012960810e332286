//! The error of the whole crate: a kind that callers match on, a message to read, and the context.
//!
//! Match on [`Error::kind`] and show [`Error`] itself. Details for the operator only (SQL, host paths) are in the
//! [`source`](std::error::Error::source), never in the message.

mod host;

pub use host::AtHost;

use crate::kind::OpKind;
use crate::path::{InvalidPath, VfsPath, VfsPathBuf};
use crate::version::{InvalidVersion, Version};
use std::fmt;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, classified by what a caller can do. Each kind has a stable wire name, [`ErrorKind::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing exists at the path, key or id. List what exists, or create it.
    NotFound,
    /// Something exists already and the call was to create it. Choose another name, or overwrite.
    AlreadyExists,
    /// The path is a directory and the call needs a file. Name a file; `ls` lists those inside.
    IsDirectory,
    /// The path, or one above it, is a file, and the call needs a directory. Name a directory, or remove the file.
    NotADirectory,
    /// The text is not a valid path. Write an absolute path without `..`, such as `/notes/plan.md`.
    InvalidPath,
    /// An argument is outside its range or malformed. Correct it; the message says which and what is allowed.
    InvalidArgument,
    /// The content changed since the version that the caller expects. Read it again and redo the change; [`Error::current_version`] is the
    /// present version.
    Conflict,
    /// The text to replace does not occur. Read the file, and copy the text from it.
    NoMatch,
    /// The text to replace occurs several times although it must be unique. Add lines around it, or replace all; [`Error::lines`] lists
    /// where it occurs.
    Ambiguous,
    /// A rule or the host's permissions forbid the call, or it would leave the root of a host directory. Use another path, or ask whoever
    /// wrote the rule; repeating the call does not help.
    PermissionDenied,
    /// The tree is read-only. Write elsewhere.
    ReadOnly,
    /// The content or argument exceeds a fixed limit. Split it; the message names the limit.
    TooLarge,
    /// The change would exceed a quota. Remove something, or ask for a larger quota.
    QuotaExceeded,
    /// This tier does not support the call. Do without it; `capabilities` says what a tier supports.
    Unsupported,
    /// The tier is temporarily unavailable. Retry after a pause.
    Unavailable,
    /// The call timed out. Read before you repeat a change: unless the message says otherwise, it may have taken effect.
    Deadline,
    /// Stored data is damaged, or another server's answer is invalid. Tell the operator; `treehold doctor` and `treehold store verify` find
    /// what is damaged.
    Corrupt,
    /// A bug in this program or in an underlying engine. Report it with the lines of the log.
    Internal,
}

impl ErrorKind {
    /// Every kind, in order of declaration.
    pub const ALL: [Self; 18] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::IsDirectory,
        Self::NotADirectory,
        Self::InvalidPath,
        Self::InvalidArgument,
        Self::Conflict,
        Self::NoMatch,
        Self::Ambiguous,
        Self::PermissionDenied,
        Self::ReadOnly,
        Self::TooLarge,
        Self::QuotaExceeded,
        Self::Unsupported,
        Self::Unavailable,
        Self::Deadline,
        Self::Corrupt,
        Self::Internal,
    ];

    /// Returns the stable wire name, the same at every entry point.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::IsDirectory => "is_directory",
            Self::NotADirectory => "not_a_directory",
            Self::InvalidPath => "invalid_path",
            Self::InvalidArgument => "invalid_argument",
            Self::Conflict => "conflict",
            Self::NoMatch => "no_match",
            Self::Ambiguous => "ambiguous",
            Self::PermissionDenied => "permission_denied",
            Self::ReadOnly => "read_only",
            Self::TooLarge => "too_large",
            Self::QuotaExceeded => "quota_exceeded",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Deadline => "deadline",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }

    /// Finds a kind by its wire name.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns whether the same call may succeed later with nothing else changed.
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Unavailable)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

/// The error of every operation: boxed, one word wide.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    path: Option<VfsPathBuf>,
    operation: Option<OpKind>,
    current_version: Option<Version>,
    lines: Vec<usize>,
    change: Option<usize>,
    applied: usize,
    effect: Effect,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What is known about the effect of a failed change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Nothing; the kind decides.
    Unstated,
    /// It had no effect.
    None,
    /// It may have had an effect, in whole or in part.
    Open,
}

impl Error {
    /// Makes an error. Write the message for an agent that will act on it: lowercase, no full stop, values in
    /// backticks.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            path: None,
            operation: None,
            current_version: None,
            lines: Vec::new(),
            change: None,
            applied: 0,
            effect: Effect::Unstated,
            source: None,
        }))
    }

    /// Makes a `not_found` error for a path.
    pub fn not_found(path: &VfsPath) -> Self {
        Self::new(ErrorKind::NotFound, format!("`{path}` does not exist")).at(path)
    }

    /// Makes an `already_exists` error for a path.
    pub fn already_exists(path: &VfsPath) -> Self {
        Self::new(ErrorKind::AlreadyExists, format!("`{path}` exists already; choose another name or overwrite it")).at(path)
    }

    /// Makes an `is_directory` error for a path that must be a file.
    pub fn is_directory(path: &VfsPath) -> Self {
        Self::new(ErrorKind::IsDirectory, format!("`{path}` is a directory; name a file")).at(path)
    }

    /// Makes a `not_a_directory` error for a path that must be a directory.
    pub fn not_a_directory(path: &VfsPath) -> Self {
        Self::new(ErrorKind::NotADirectory, format!("`{path}` is a file, not a directory")).at(path)
    }

    /// Makes a `conflict` error with the current version; `None` if nothing exists.
    pub fn conflict(path: &VfsPath, current: Option<Version>) -> Self {
        let message = match current {
            Some(version) => format!("`{path}` has changed: its version is now `{version}`; read it again and redo the change"),
            None => format!("`{path}` has changed: it no longer exists; create it again or drop the change"),
        };
        Self::new(ErrorKind::Conflict, message).at(path).with_current_version(current)
    }

    /// Makes an `invalid_argument` error.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Makes a `read_only` error for a path.
    pub fn read_only(path: &VfsPath) -> Self {
        Self::new(ErrorKind::ReadOnly, format!("`{path}` lies in a read-only tree")).at(path)
    }

    /// Makes an `unsupported` error.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Sets the path as the caller wrote it.
    #[must_use]
    pub fn at(mut self, path: &VfsPath) -> Self {
        self.0.path = Some(path.to_owned());
        self
    }

    /// Sets the operation that failed, unless one is set.
    #[must_use]
    pub fn during(mut self, operation: OpKind) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Attaches the underlying error, for the operator's log.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Sets the current version of a `conflict`.
    #[must_use]
    pub fn with_current_version(mut self, version: Option<Version>) -> Self {
        self.0.current_version = version;
        self
    }

    /// Sets the lines, from 1, of an `ambiguous` error.
    #[must_use]
    pub fn with_lines(mut self, lines: Vec<usize>) -> Self {
        self.0.lines = lines;
        self
    }

    /// Sets which change of a batch failed, from 0, and how many changes before it took effect permanently.
    #[must_use]
    pub fn in_batch(mut self, change: usize, applied: usize) -> Self {
        self.0.change = Some(change);
        self.0.applied = applied;
        self
    }

    /// Declares that the call failed before it had any effect, so that even a change may be retried. Useful for kinds
    /// that leave the effect open ([`Unavailable`](ErrorKind::Unavailable), [`Deadline`](ErrorKind::Deadline)).
    #[must_use]
    pub fn without_effect(mut self) -> Self {
        self.0.effect = Effect::None;
        self
    }

    /// Declares that the failed change may have had an effect, in whole or in part, whatever its kind: it failed after
    /// its first step, or an earlier attempt may have succeeded. Overrides [`Error::without_effect`].
    #[must_use]
    pub fn with_unknown_effect(mut self) -> Self {
        self.0.effect = Effect::Open;
        self
    }

    /// Replaces the message.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = message.into();
        self
    }

    /// Replaces the kind, when an inner failure means something else to the caller.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Converts the error to the paths of an outer tree that mounts this one at `prefix`: in the path field, and in the
    /// message where paths are in backticks.
    ///
    /// In the message it rewrites [`Error::path`], the paths in `others`, and their ancestors.
    #[must_use]
    pub fn rebased(self, prefix: &VfsPath, others: &[&VfsPath]) -> Self {
        if prefix.is_root() { self } else { self.with_paths(others, |path| prefix.concat(path)) }
    }

    /// Converts the error to the paths of an inner tree rooted at `base` of this one, the inverse of
    /// [`Error::rebased`]. Paths outside `base` become `/`, so that the position of the inner tree is not revealed.
    #[must_use]
    pub fn stripped(self, base: &VfsPath, others: &[&VfsPath]) -> Self {
        if base.is_root() { self } else { self.with_paths(others, |path| path.strip_prefix(base).unwrap_or(VfsPath::ROOT).to_owned()) }
    }

    fn with_paths(mut self, others: &[&VfsPath], map: impl Fn(&VfsPath) -> VfsPathBuf) -> Self {
        let known: Vec<&VfsPath> = self.0.path.as_deref().into_iter().chain(others.iter().copied()).collect();
        self.0.message = with_quoted_paths(&self.0.message, &known, &map);
        self.0.path = self.0.path.as_deref().map(map);
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the path as the caller wrote it.
    pub fn path(&self) -> Option<&VfsPath> {
        self.0.path.as_deref()
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> Option<OpKind> {
        self.0.operation
    }

    /// Returns the current version of a `conflict`, if something exists.
    pub fn current_version(&self) -> Option<Version> {
        self.0.current_version
    }

    /// Returns the lines, from 1, of an `ambiguous` error.
    pub fn lines(&self) -> &[usize] {
        &self.0.lines
    }

    /// Returns which change of a batch failed, from 0.
    pub fn change(&self) -> Option<usize> {
        self.0.change
    }

    /// Returns how many changes of the batch took effect nevertheless: always the first ones, and 0 if batches are
    /// atomic.
    pub fn applied(&self) -> usize {
        self.0.applied
    }

    /// Returns whether the failed change is known to have had no effect ([`Error::without_effect`]). In a batch that is
    /// not atomic, the changes before it may still have taken effect.
    pub fn is_without_effect(&self) -> bool {
        self.0.effect == Effect::None
    }

    /// Returns whether the failed change may have had an effect: as declared, or else according to the kind. Failures
    /// of the tier ([`Unavailable`](ErrorKind::Unavailable), [`Deadline`](ErrorKind::Deadline),
    /// [`Corrupt`](ErrorKind::Corrupt), [`Internal`](ErrorKind::Internal)) can happen after the change, refusals happen
    /// before it.
    pub fn may_have_effect(&self) -> bool {
        match self.0.effect {
            Effect::None => false,
            Effect::Open => true,
            Effect::Unstated => {
                matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::Deadline | ErrorKind::Corrupt | ErrorKind::Internal)
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Error");
        debug.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(path) = &self.0.path {
            debug.field("path", path);
        }
        if let Some(operation) = &self.0.operation {
            debug.field("operation", operation);
        }
        if let Some(version) = &self.0.current_version {
            debug.field("current_version", version);
        }
        if !self.0.lines.is_empty() {
            debug.field("lines", &self.0.lines);
        }
        if let Some(change) = &self.0.change {
            debug.field("change", change).field("applied", &self.0.applied);
        }
        if let Some(source) = &self.0.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static))
    }
}

impl From<InvalidVersion> for Error {
    fn from(invalid: InvalidVersion) -> Self {
        Self::new(ErrorKind::InvalidArgument, invalid.to_string())
    }
}

impl From<InvalidPath> for Error {
    fn from(invalid: InvalidPath) -> Self {
        Self::new(ErrorKind::InvalidPath, invalid.to_string())
    }
}

/// An error as data, as every JSON interface sends it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ErrorRecord {
    /// The stable wire name of the kind.
    pub code: String,
    /// What went wrong and what to do.
    pub message: String,
    /// The path as the caller wrote it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<VfsPathBuf>,
    /// The current version of a `conflict`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub current_version: Option<Version>,
    /// The lines, from 1, of an `ambiguous` error.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub lines: Vec<usize>,
    /// Which change of a batch failed, from 0.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub change: Option<usize>,
    /// How many changes before it took effect nevertheless.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub applied: Option<usize>,
    /// Whether the failed change may have had an effect; check the current state before repeating it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub may_have_effect: bool,
}

impl From<&Error> for ErrorRecord {
    fn from(error: &Error) -> Self {
        Self {
            code: error.kind().code().to_owned(),
            message: error.message().to_owned(),
            path: error.0.path.clone(),
            current_version: error.current_version(),
            lines: error.lines().to_vec(),
            change: error.change(),
            applied: error.change().map(|_| error.applied()),
            may_have_effect: error.0.effect == Effect::Open,
        }
    }
}

impl From<&ErrorRecord> for Error {
    fn from(record: &ErrorRecord) -> Self {
        let kind = ErrorKind::from_code(&record.code).unwrap_or(ErrorKind::Internal);
        let error = Self::new(kind, record.message.clone()).with_current_version(record.current_version).with_lines(record.lines.clone());
        let error = if record.may_have_effect { error.with_unknown_effect() } else { error };
        match &record.path {
            Some(path) => error.at(path),
            None => error,
        }
    }
}

impl ErrorRecord {
    /// Converts the record to the paths of an outer tree that mounts its own at `prefix`, like [`Error::rebased`].
    #[must_use]
    pub fn rebased(self, prefix: &VfsPath) -> Self {
        if prefix.is_root() { self } else { self.with_paths(|path| prefix.concat(path)) }
    }

    /// Converts the record to the paths of an inner tree rooted at `base` of its own, like [`Error::stripped`].
    #[must_use]
    pub fn stripped(self, base: &VfsPath) -> Self {
        if base.is_root() { self } else { self.with_paths(|path| path.strip_prefix(base).unwrap_or(VfsPath::ROOT).to_owned()) }
    }

    fn with_paths(mut self, map: impl Fn(&VfsPath) -> VfsPathBuf) -> Self {
        self.message = with_quoted_paths(&self.message, self.path.as_deref().as_slice(), &map);
        self.path = self.path.as_deref().map(map);
        self
    }
}

/// Rewrites the paths of a message that are in backticks and are in `known` or an ancestor of one.
///
/// Works in one pass from left to right, so that nothing is rewritten twice. The root is rewritten only if it is in
/// `known`: in messages, `/` is more often the character than the path.
fn with_quoted_paths(message: &str, known: &[&VfsPath], map: &impl Fn(&VfsPath) -> VfsPathBuf) -> String {
    let mut rewritten = String::with_capacity(message.len() + 32);
    let mut rest = message;
    while let Some(quote) = rest.find("`/") {
        let (before, quoted) = rest.split_at(quote + 1);
        rewritten.push_str(before);
        rest = quoted;
        if let Some(path) = quoted_path(quoted, known) {
            rewritten.push_str(map(path).as_str());
            rest = &quoted[path.as_str().len()..];
        }
    }
    rewritten.push_str(rest);
    rewritten
}

/// Finds the longest known path that `text` starts with and that a backtick follows. Names may contain backticks, so
/// whole paths are compared.
fn quoted_path<'p>(text: &str, known: &[&'p VfsPath]) -> Option<&'p VfsPath> {
    let ends_here = |path: &VfsPath| text.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('`'));
    known
        .iter()
        .flat_map(|path| std::iter::once(*path).chain(path.ancestors().filter(|above| !above.is_root())))
        .filter(|path| ends_here(path))
        .max_by_key(|path| path.as_str().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_parse_back() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
        }
    }

    #[test]
    fn error_is_one_word_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn rebased_changes_path_field_and_message() {
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        let error = Error::not_found(&path("/a")).rebased(&path("/a"), &[]);
        assert_eq!(error.message(), "`/a/a` does not exist");
        assert_eq!(error.path().map(VfsPath::as_str), Some("/a/a"));
        let error =
            Error::new(ErrorKind::InvalidArgument, "cannot move `/a` into `/a/b`").at(&path("/a")).rebased(&path("/m"), &[&path("/a/b")]);
        assert_eq!(error.message(), "cannot move `/m/a` into `/m/a/b`");
    }

    #[test]
    fn rebased_rewrites_only_paths_of_the_tree() {
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        for (message, at, rebased, stripped) in [
            ("`/a/b` is a file", "/a/b/c", "`/m/a/b` is a file", "`/b` is a file"),
            ("`/a/b/c`: start it with `/`", "/a/b/c", "`/m/a/b/c`: start it with `/`", "`/b/c`: start it with `/`"),
            ("`/` is the root", "/", "`/m` is the root", "`/` is the root"),
            ("`/a/b` not `/a/bc` nor `b` nor `/x`", "/a/b", "`/m/a/b` not `/a/bc` nor `b` nor `/x`", "`/b` not `/a/bc` nor `b` nor `/x`"),
            ("`/a/x`y` is odd", "/a/x`y", "`/m/a/x`y` is odd", "`/x`y` is odd"),
            ("`/a` holds it", "/a/b", "`/m/a` holds it", "`/` holds it"),
            ("no path", "/a", "no path", "no path"),
            ("an open quote `/a", "/a", "an open quote `/a", "an open quote `/a"),
        ] {
            let error = || Error::new(ErrorKind::Internal, message).at(&path(at));
            assert_eq!(error().rebased(&path("/m"), &[]).message(), rebased, "{message}");
            assert_eq!(error().stripped(&path("/a"), &[]).message(), stripped, "{message}");
            assert_eq!(ErrorRecord::from(&error()).rebased(&path("/m")).message, rebased, "{message}");
            assert_eq!(ErrorRecord::from(&error()).stripped(&path("/a")).message, stripped, "{message}");
        }
        assert_eq!(Error::not_found(&path("/outside")).stripped(&path("/a"), &[]).message(), "`/` does not exist");
    }
}
