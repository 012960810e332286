//! One error for the whole crate: a kind that is the contract, a message for the reader, and where it happened.
//!
//! Match on [`Error::kind`]; show [`Error`] itself. What only the operator should see (SQL, host paths) is kept as the
//! [`source`](std::error::Error::source) and never stands in the message.

mod host;

pub(crate) use host::AtHost;

use crate::ops::{InvalidVersion, OpKind, Version};
use crate::path::{InvalidPath, VfsPath, VfsPathBuf};
use std::fmt;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as a caller can act on it. Each kind has a stable wire name, [`ErrorKind::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing is at the path, key or id. Look at a listing, or create it.
    NotFound,
    /// Something is there already and the call was to create. Choose another name, or overwrite.
    AlreadyExists,
    /// The path is a directory and the call needs a file.
    IsDirectory,
    /// A directory was needed and the path, or one above it, is a file.
    NotADirectory,
    /// The text is not a legal path.
    InvalidPath,
    /// An argument is outside its range or malformed. The message says which and what is allowed.
    InvalidArgument,
    /// The content changed since the version the caller expects; [`Error::current_version`] is what is there now.
    Conflict,
    /// The text to replace does not occur.
    NoMatch,
    /// The text to replace occurs several times and one was asked for; [`Error::lines`] names them.
    Ambiguous,
    /// A rule, the host's permissions or the root's seal forbids the call.
    PermissionDenied,
    /// The tree takes no changes.
    ReadOnly,
    /// The content or argument is over a fixed limit.
    TooLarge,
    /// The change would go over a quota.
    QuotaExceeded,
    /// This tier does not offer the call; [`capabilities`](crate::Backend::capabilities) would have said so.
    Unsupported,
    /// The tier cannot be reached now. Trying again may help.
    Unavailable,
    /// The call ran out of time. Whether a change took effect is unknown unless the message says so.
    Deadline,
    /// What was stored cannot be read back as what it was, or another server sent what is no answer to the question.
    Corrupt,
    /// A fault of this program or of an engine below it.
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

    /// Returns the stable wire name, the same through every door.
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

    /// Tells whether the same call may succeed later with nothing else changed.
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

/// What was stated of a failed change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Nothing: the kind decides.
    Unstated,
    /// It had none.
    None,
    /// It may have had one, in whole or in part.
    Open,
}

impl Error {
    /// Makes an error. The message is for an agent that will act on it: lower case, no full stop, values in backticks.
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

    /// Makes a `not_found` for a path.
    pub fn not_found(path: &VfsPath) -> Self {
        Self::new(ErrorKind::NotFound, format!("`{path}` does not exist")).at(path)
    }

    /// Makes an `already_exists` for a path.
    pub fn already_exists(path: &VfsPath) -> Self {
        Self::new(ErrorKind::AlreadyExists, format!("`{path}` exists already; choose another name or overwrite it")).at(path)
    }

    /// Makes an `is_directory` for a path that had to be a file.
    pub fn is_directory(path: &VfsPath) -> Self {
        Self::new(ErrorKind::IsDirectory, format!("`{path}` is a directory; name a file")).at(path)
    }

    /// Makes a `not_a_directory` for a path that had to be a directory.
    pub fn not_a_directory(path: &VfsPath) -> Self {
        Self::new(ErrorKind::NotADirectory, format!("`{path}` is a file, not a directory")).at(path)
    }

    /// Makes a `conflict` that names the version there is now; none when nothing is there.
    pub fn conflict(path: &VfsPath, current: Option<Version>) -> Self {
        let message = match current {
            Some(version) => format!("`{path}` has changed: its version is now `{version}`; read it again and redo the change"),
            None => format!("`{path}` has changed: it does not exist any more; create it anew or drop the change"),
        };
        Self::new(ErrorKind::Conflict, message).at(path).with_current_version(current)
    }

    /// Makes an `invalid_argument`.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Makes a `read_only`.
    pub fn read_only(path: &VfsPath) -> Self {
        Self::new(ErrorKind::ReadOnly, format!("`{path}` lies in a read-only tree")).at(path)
    }

    /// Makes an `unsupported`.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Sets the path, as the caller named it.
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

    /// Keeps what lies beneath, for the operator's log.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Sets the version that a `conflict` met.
    #[must_use]
    pub fn with_current_version(mut self, version: Option<Version>) -> Self {
        self.0.current_version = version;
        self
    }

    /// Sets the lines, from 1, that an `ambiguous` names.
    #[must_use]
    pub fn with_lines(mut self, lines: Vec<usize>) -> Self {
        self.0.lines = lines;
        self
    }

    /// Says which change of a batch failed, from 0, and how many changes before it took effect and stay.
    #[must_use]
    pub fn in_batch(mut self, change: usize, applied: usize) -> Self {
        self.0.change = Some(change);
        self.0.applied = applied;
        self
    }

    /// States that the call failed before it had any effect, where that is known of a failure that leaves it open otherwise
    /// ([`Unavailable`](ErrorKind::Unavailable), [`Deadline`](ErrorKind::Deadline)): then any change may be tried again.
    #[must_use]
    pub fn without_effect(mut self) -> Self {
        self.0.effect = Effect::None;
        self
    }

    /// States that the failed change may have had an effect, in whole or in part, whatever its kind: it failed after its first
    /// step, or an earlier attempt of it did. Takes back [`Error::without_effect`].
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

    /// Replaces the kind: what happened beneath may mean something else to the caller.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Shows the error in the paths of a tree that holds this one at `prefix`: in the path field and in the message,
    /// where paths stand in backticks.
    ///
    /// Of the message it rewrites the path that [`Error::path`] holds, those that `others` lists, and the directories above them.
    #[must_use]
    pub fn rebased(self, prefix: &VfsPath, others: &[&VfsPath]) -> Self {
        if prefix.is_root() { self } else { self.with_paths(others, |path| prefix.concat(path)) }
    }

    /// Shows the error in the paths of the tree that stands at `base` of this one: [`Error::rebased`] the other way. What lies
    /// outside of `base` shows as `/`, so that nobody learns where the tree stands.
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

    /// Returns the path, as the caller named it.
    pub fn path(&self) -> Option<&VfsPath> {
        self.0.path.as_deref()
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> Option<OpKind> {
        self.0.operation
    }

    /// Returns the version that a `conflict` met, if something was there.
    pub fn current_version(&self) -> Option<Version> {
        self.0.current_version
    }

    /// Returns the lines, from 1, that an `ambiguous` names.
    pub fn lines(&self) -> &[usize] {
        &self.0.lines
    }

    /// Returns which change of a batch failed, from 0.
    pub fn change(&self) -> Option<usize> {
        self.0.change
    }

    /// Returns how many changes of the batch took effect all the same: always the first ones, 0 where batches are atomic.
    pub fn applied(&self) -> usize {
        self.0.applied
    }

    /// Tells whether it was stated that the failed change had no effect ([`Error::without_effect`]). Of a batch that is not
    /// atomic the changes before it took effect all the same.
    pub fn is_without_effect(&self) -> bool {
        self.0.effect == Effect::None
    }

    /// Tells whether the failed change may have had an effect: by what was stated of it, and otherwise by its kind, as a failure
    /// of the tier ([`Unavailable`](ErrorKind::Unavailable), [`Deadline`](ErrorKind::Deadline), [`Corrupt`](ErrorKind::Corrupt),
    /// [`Internal`](ErrorKind::Internal)) may come from behind the change, and a refusal comes before it.
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

/// An error as data: what every door that speaks JSON sends.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ErrorRecord {
    /// The stable wire name of the kind.
    pub code: String,
    /// What went wrong and what to do.
    pub message: String,
    /// The path, as the caller named it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<VfsPathBuf>,
    /// The version that a `conflict` met.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub current_version: Option<Version>,
    /// The lines, from 1, that an `ambiguous` names.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub lines: Vec<usize>,
    /// Which change of a batch failed, from 0.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub change: Option<usize>,
    /// How many changes before it took effect all the same.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub applied: Option<usize>,
    /// Whether it was stated that the failed change may have had an effect all the same: look at what is there before it is repeated.
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
    /// Shows the record in the paths of a tree that holds its own at `prefix`, as [`Error::rebased`] does.
    #[must_use]
    pub fn rebased(self, prefix: &VfsPath) -> Self {
        if prefix.is_root() { self } else { self.with_paths(|path| prefix.concat(path)) }
    }

    /// Shows the record in the paths of the tree that stands at `base` of its own, as [`Error::stripped`] does.
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

/// Rewrites the paths of a message that stand in backticks and that are among `known` or above one of them.
///
/// One pass from left to right, so that nothing is rewritten twice. The root counts only when it is known itself: in a
/// message it is more often the character than the path.
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

/// Finds the longest path that `text` starts with and a backtick ends. A name may hold backticks, so whole paths are tried.
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
    fn codes_are_distinct_and_found_again() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
        }
    }

    #[test]
    fn is_one_word_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn rebases_the_path_in_field_and_message() {
        let path = |text: &str| VfsPathBuf::parse(text).expect("a legal path");
        let error = Error::not_found(&path("/a")).rebased(&path("/a"), &[]);
        assert_eq!(error.message(), "`/a/a` does not exist");
        assert_eq!(error.path().map(VfsPath::as_str), Some("/a/a"));
        let error =
            Error::new(ErrorKind::InvalidArgument, "cannot move `/a` into `/a/b`").at(&path("/a")).rebased(&path("/m"), &[&path("/a/b")]);
        assert_eq!(error.message(), "cannot move `/m/a` into `/m/a/b`");
    }

    #[test]
    fn rewrites_what_is_a_path_of_the_tree_and_nothing_else() {
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
