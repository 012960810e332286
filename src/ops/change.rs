//! Everything that mutates: changes, and what they did.

use super::{Along, OpKind, Version};
use crate::path::{VfsPath, VfsPathBuf};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// The most changes that an entry point takes as one batch.
pub const CHANGES_MAX: usize = 20_000;

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// How to apply a batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ApplyOptions {
    /// Allows a batch that cannot be atomic as a whole, such as one over several mounts: it is then applied in order up to
    /// the first failure, and the error says how many changes took effect. Default false: such a batch is refused.
    pub allow_partial: bool,
    /// Refuses with `permission_denied` a path on which a link of the host would be followed. Default false.
    /// A rename or delete of a link itself follows none.
    pub refuse_links: bool,
    /// What is committed with the batch.
    pub(crate) along: Along,
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

    /// Refuses to follow links of the host.
    #[must_use]
    pub fn with_refuse_links(mut self, refuse_links: bool) -> Self {
        self.refuse_links = refuse_links;
        self
    }
}
