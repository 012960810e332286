//! Mutations and their results.

use super::{Extensions, OpKind, Version};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::path::{VfsPath, VfsPathBuf};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a write treats an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteMode {
    /// Creates the file or replaces its content. A replaced file keeps its creation time.
    #[default]
    Overwrite,
    /// Creates the file; fails with `already_exists` if there is one.
    CreateNew,
    /// Replaces the content if the file has this version; fails with `conflict` otherwise.
    IfVersion(Version),
}

/// One replacement within a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Edit {
    /// The text to replace: not empty, and unique in the file unless `replace_all`.
    pub old: String,
    /// The replacement.
    pub new: String,
    /// Replaces every occurrence instead of the only one.
    #[serde(default)]
    pub replace_all: bool,
}

impl Edit {
    /// Replaces the only occurrence of `old`.
    pub fn new(old: impl Into<String>, new: impl Into<String>) -> Self {
        Self { old: old.into(), new: new.into(), replace_all: false }
    }

    /// Replaces every occurrence of `old`.
    pub fn all(old: impl Into<String>, new: impl Into<String>) -> Self {
        Self { old: old.into(), new: new.into(), replace_all: true }
    }
}

/// The most changes in one batch of an entry point.
pub const CHANGES_MAX: usize = 20_000;

/// One mutation. A list of them is a batch.
///
/// A backend or layer that does not know a change answers [`Change::unsupported`]: a layer must not pass on a change that it cannot judge.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Writes a whole file, creating missing parents.
    Write {
        /// The file.
        path: VfsPathBuf,
        /// Its new content.
        content: Bytes,
        /// How to treat an existing file.
        mode: WriteMode,
    },
    /// Appends to a file, creating it and missing parents.
    Append {
        /// The file.
        path: VfsPathBuf,
        /// The bytes to append.
        content: Bytes,
    },
    /// Applies replacements in order to one file, all or none.
    Edit {
        /// The file.
        path: VfsPathBuf,
        /// At least one replacement.
        edits: Vec<Edit>,
        /// The version that the file must have.
        expect: Option<Version>,
    },
    /// Creates a directory and missing parents. An existing directory is not an error.
    CreateDir {
        /// The directory.
        path: VfsPathBuf,
    },
    /// Removes a file, a link, or a directory.
    Delete {
        /// What to remove.
        path: VfsPathBuf,
        /// Whether to remove a directory with everything in it; otherwise it must be empty.
        recursive: bool,
        /// The version that the file must have.
        expect: Option<Version>,
    },
    /// Moves a file, or a directory with everything in it, creating missing parents of the target.
    Rename {
        /// What to move.
        from: VfsPathBuf,
        /// The new path.
        to: VfsPathBuf,
        /// Whether to replace an existing file; directories are never replaced.
        overwrite: bool,
    },
    /// Copies a file, or a directory with everything in it, creating missing parents of the target.
    Copy {
        /// What to copy.
        from: VfsPathBuf,
        /// The path of the copy.
        to: VfsPathBuf,
        /// Whether to replace an existing file; directories are never replaced.
        overwrite: bool,
    },
}

impl Change {
    /// Returns the error of a backend or layer that does not know the change: [`Unsupported`](ErrorKind::Unsupported),
    /// without effect.
    pub fn unsupported(&self) -> Error {
        Error::unsupported(format!("this tree does not support `{}`", self.kind())).at(self.path()).without_effect()
    }

    /// Returns the operation that the change performs.
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

    /// Returns the path of the change; for a rename or copy, the source.
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

    /// Returns all paths of the change: one, or source and target.
    pub fn paths(&self) -> impl Iterator<Item = &VfsPath> {
        std::iter::once(self.path()).chain(self.target())
    }

    /// Returns the change with every path mapped, such as to the paths of an outer or inner tree.
    ///
    /// # Errors
    /// Those of `map`.
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

/// The result of one change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Changed {
    /// The operation.
    pub operation: OpKind,
    /// The path that was written or removed; for a rename or copy, the target.
    pub path: VfsPathBuf,
    /// The version that this change gave the file; `None` for directories and deletes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// The size of the file afterwards, in bytes; 0 for directories and deletes.
    pub size_bytes: u64,
    /// Whether the path did not exist before.
    pub created: bool,
    /// How many occurrences an edit replaced; 0 otherwise.
    pub replacements: usize,
    /// How many files and directories were affected, including the path itself; 0 if nothing had to change. A rename
    /// may count a directory that moves as a whole as one.
    pub entries: usize,
}

impl Changed {
    /// Makes the result of `operation` at `path`, with one affected entry and nothing created or replaced.
    pub fn new(operation: OpKind, path: impl Into<VfsPathBuf>) -> Self {
        Self { operation, path: path.into(), version: None, size_bytes: 0, created: false, replacements: 0, entries: 1 }
    }

    /// Sets the version and size of the file after the change.
    #[must_use]
    pub fn with_file(mut self, version: Version, size_bytes: u64) -> Self {
        self.version = Some(version);
        self.size_bytes = size_bytes;
        self
    }

    /// Sets whether the path did not exist before.
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

    /// Sets how many entries were affected.
    #[must_use]
    pub fn with_entries(mut self, entries: usize) -> Self {
        self.entries = entries;
        self
    }
}

/// Options of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ApplyOptions {
    /// Allows a batch that cannot be atomic, such as one over several mounts. It is applied in order up to the first
    /// failure, and the error says how many changes took effect. Default false: such a batch is refused.
    pub allow_partial: bool,
    /// Refuses with `permission_denied` to follow host links in any path. Default false. Renaming or deleting a link
    /// itself follows none.
    pub refuse_links: bool,
    /// Values for the tiers that know their types, such as rows to commit together with the batch.
    pub extensions: Extensions,
}

impl ApplyOptions {
    /// Applies the batch atomically.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether a partial result is allowed.
    #[must_use]
    pub fn with_allow_partial(mut self, allow_partial: bool) -> Self {
        self.allow_partial = allow_partial;
        self
    }

    /// Sets whether following host links is refused.
    #[must_use]
    pub fn with_refuse_links(mut self, refuse_links: bool) -> Self {
        self.refuse_links = refuse_links;
        self
    }

    /// Adds a value for the tiers that know its type. It replaces the value of the same type.
    #[must_use]
    pub fn with_extension<T: std::any::Any + Send + Sync>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }
}
