//! The settings of a mirror.

use super::event::MirrorEvent;
use crate::backend::overlay::ApplyGuard;
use crate::layer::Protections;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, Result};
use treehold_core::path::VfsPath;

/// What happens to an edit in the directory that conflicts with a change of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MirrorConflicts {
    /// The tree's content stays and replaces that in the directory.
    #[default]
    Tree,
    /// Both contents stay: text is merged with conflict markers, and an edited file that the tree no longer has is created there again.
    /// Where that is impossible, the tree's content stays.
    Markers,
    /// Nothing of the directory is lost: the tree's content is at the path, and the directory's in a new file beside it, such as
    /// `notes.conflict-1f3a9c02.md`. An edited file that the tree no longer has is created there again. What a rule refuses, a directory
    /// in place of a file, and a link in place of a file stay as they are and are failures.
    Copies,
}

type Observer = Arc<dyn Fn(&MirrorEvent) + Send + Sync>;

/// Options of a mirror.
#[derive(Clone)]
#[non_exhaustive]
pub struct MirrorOptions {
    /// Writes changes in the directory back to the tree. Default false: they are overwritten.
    pub write_back: bool,
    /// What happens to conflicting edits. Default [`MirrorConflicts::Tree`].
    pub conflicts: MirrorConflicts,
    /// Leaves out empty files of the tree. Default false.
    pub skip_empty: bool,
    /// How many files are transferred at once, at least 1. Default 8.
    pub parallel: usize,
    /// The most files and directories on either side. Default 100,000.
    pub nodes_max: usize,
    /// The largest file that is mirrored, in bytes. Default 64 MiB.
    pub file_bytes_max: u64,
    /// The most bytes of all files together. Default 4 GiB.
    pub bytes_max: u64,
    /// How often the directory is checked for changes. Default 1 s.
    pub look_every: Duration,
    /// How often the tree is compared with the directory while a feed reports its changes. Default 10 s. Without a feed, the tree is
    /// compared as often as the directory is checked.
    pub validate_every: Duration,
    /// Leaves the files in the directory when the mirror ends. Default false.
    pub keep: bool,
    /// Identifies the tree, for example by its store, user and path. A mirror that is written back continues an earlier one of the
    /// directory only if both have the same id, or none. Otherwise it is the first one of the directory, so neither side loses a file
    /// because the other lacks it. Default `None`: all trees without an id count as one. Set it if several trees may be mirrored in the
    /// same directory.
    pub tree_id: Option<String>,
    /// Takes a directory that has files already: they count as added there, and stay when the mirror ends. Default false. Needs
    /// `write_back`, `keep` and [`MirrorConflicts::Copies`].
    pub existing: bool,
    pub(super) guard: Option<Arc<dyn ApplyGuard>>,
    pub(super) observer: Option<Observer>,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self {
            write_back: false,
            conflicts: MirrorConflicts::default(),
            skip_empty: false,
            parallel: 8,
            nodes_max: 100_000,
            file_bytes_max: 64 << 20,
            bytes_max: 4 << 30,
            look_every: Duration::from_secs(1),
            validate_every: Duration::from_secs(10),
            keep: false,
            tree_id: None,
            existing: false,
            guard: Some(Arc::new(Protections::new(VfsPath::ROOT))),
            observer: None,
        }
    }
}

impl MirrorOptions {
    /// Returns the defaults: a read-only mirror.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether changes in the directory are written back.
    #[must_use]
    pub fn with_write_back(mut self, write_back: bool) -> Self {
        self.write_back = write_back;
        self
    }

    /// Sets what happens to conflicting edits.
    #[must_use]
    pub fn with_conflicts(mut self, conflicts: MirrorConflicts) -> Self {
        self.conflicts = conflicts;
        self
    }

    /// Sets whether empty files of the tree are left out.
    #[must_use]
    pub fn with_skip_empty(mut self, skip_empty: bool) -> Self {
        self.skip_empty = skip_empty;
        self
    }

    /// Sets how many files are transferred at once.
    #[must_use]
    pub fn with_parallel(mut self, parallel: usize) -> Self {
        self.parallel = parallel.max(1);
        self
    }

    /// Sets the most files and directories on either side.
    #[must_use]
    pub fn with_nodes_max(mut self, nodes_max: usize) -> Self {
        self.nodes_max = nodes_max;
        self
    }

    /// Sets the largest file that is mirrored, in bytes.
    #[must_use]
    pub fn with_file_bytes_max(mut self, file_bytes_max: u64) -> Self {
        self.file_bytes_max = file_bytes_max;
        self
    }

    /// Sets the most bytes of all files together.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: u64) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Sets how often the directory is checked for changes.
    #[must_use]
    pub fn with_look_every(mut self, look_every: Duration) -> Self {
        self.look_every = look_every;
        self
    }

    /// Sets how often the tree is compared with the directory while a feed reports its changes.
    #[must_use]
    pub fn with_validate_every(mut self, validate_every: Duration) -> Self {
        self.validate_every = validate_every;
        self
    }

    /// Sets whether the files stay when the mirror ends.
    #[must_use]
    pub fn with_keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Sets what identifies the tree.
    #[must_use]
    pub fn with_tree_id(mut self, tree_id: impl Into<String>) -> Self {
        self.tree_id = Some(tree_id.into());
        self
    }

    /// Sets whether the directory may have files already.
    #[must_use]
    pub fn with_existing(mut self, existing: bool) -> Self {
        self.existing = existing;
        self
    }

    /// Fails for settings that contradict each other.
    pub(super) fn check(&self) -> Result<()> {
        if self.existing && !(self.write_back && self.keep && self.loses_nothing()) {
            return Err(Error::invalid_argument("`existing` needs `write_back`, `keep` and conflicts of `copies`; set all of them"));
        }
        Ok(())
    }

    /// Returns whether the directory's side of a conflict is always kept.
    pub(super) fn loses_nothing(&self) -> bool {
        self.conflicts == MirrorConflicts::Copies
    }

    /// Sets which files of the tree are not mirrored because they make a tool run code later. By default those are the names in
    /// [`RUNS_CODE`](crate::layer::RUNS_CODE); `None` mirrors everything.
    #[must_use]
    pub fn with_protections(mut self, protections: impl Into<Option<Protections>>) -> Self {
        self.guard = protections.into().map(|protections| Arc::new(protections) as Arc<dyn ApplyGuard>);
        self
    }

    /// Sets a function that is called with each event. It must not block.
    #[must_use]
    pub fn with_observer(mut self, observer: impl Fn(&MirrorEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl fmt::Debug for MirrorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirrorOptions")
            .field("write_back", &self.write_back)
            .field("conflicts", &self.conflicts)
            .field("skip_empty", &self.skip_empty)
            .field("keep", &self.keep)
            .field("existing", &self.existing)
            .finish_non_exhaustive()
    }
}
