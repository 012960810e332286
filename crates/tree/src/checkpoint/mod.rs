//! The history of threads: checkpoints of their state, and operations on them.
//!
//! A [`Checkpointer`] keeps a chain of immutable checkpoints for each thread; the newest is its *head*. The cost of a checkpoint is
//! proportional to the changes since its parent, independent of the rest of the tree. Opening one loads only what is accessed. Restoring
//! one, or forking it into another thread, writes a pointer. [`StoreCheckpointer`] keeps checkpoints in any [`Store`];
//! [`MemoryCheckpointer`] is the in-memory reference.
//!
//! Every put names the head that it follows. Of two sessions that save one thread, the second gets `conflict`, and their states never mix.
//! An unreadable thread is an error, never an empty thread.

use crate::backend::StateSnapshot;
use async_trait::async_trait;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::Result;
use treehold_core::ops::{Extensions, Version};
use treehold_core::scope::Scope;
use treehold_store::{Store, Watch, whole_microseconds};

mod cache;
mod diff;
mod fault;
mod history;
mod memory;
mod merge;
mod name;
mod namespaces;
mod pages;
mod record;
mod retain;
mod review;
mod row;
mod store;
mod sweep;

pub use diff::{ChangeKind, Diff, PathDiff, diff};
pub use history::HistoryBackend;
pub use memory::MemoryCheckpointer;
pub use merge::plan_merge;
pub use merge::{
    MERGED_CHECKPOINT, MERGED_THREAD, MergeChange, MergeConflict, MergeConflictKind, MergeHunk, MergeLines, MergeOptions, MergeOrigin,
    MergeOutcome, MergeResolution, MergeSide, MergeStatus, MergeStrategy, merge,
};
pub use name::check_checkpoint_name;
pub use name::{find_checkpoint, is_reserved_name, open_checkpoint, with_checkpoint};
pub use namespaces::{RESERVED_NAMESPACE, SEPARATOR, namespace_of, partition_of, thread_of};
pub use retain::{NamedCheckpoints, Owners, RetainOptions, Retained};
pub use review::Reviewer;
pub use row::check_row;
pub use store::StoreCheckpointer;
pub use treehold_core::checkpoint_id::{CheckpointId, InvalidCheckpointId};

/// The longest label in bytes.
pub const LABEL_BYTES_MAX: usize = 256;

/// The total length in bytes of a checkpoint's metadata names and values.
pub const METADATA_BYTES_MAX: usize = 16 << 10;

/// The checkpoints of threads, by the tenant, user and thread of a scope.
///
/// A scope without a tenant or user has threads of its own, separate from those of scopes that have one. Methods that need a thread fail
/// with [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) if the scope names none. All methods return the errors of the store.
#[async_trait]
pub trait Checkpointer: Send + Sync + fmt::Display + fmt::Debug {
    /// Saves a state as the new head of the scope's thread, atomically.
    ///
    /// Cost: one round trip, with the contents that are not stored yet, the changed pages of the tree (at most about 3 KiB for one file
    /// among 100,000) and two small records.
    ///
    /// # Errors
    /// [`Conflict`](treehold_core::error::ErrorKind::Conflict) when the thread's head is not the one that `options` names (the error's current version is
    /// that of the actual head), [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a label or metadata that is too long.
    async fn put(&self, scope: &Scope, state: &StateSnapshot, options: &PutOptions) -> Result<Saved>;

    /// Returns a checkpoint, or `None` if the thread does not have it.
    ///
    /// Cost: one round trip for the latest checkpoint, two for an id.
    async fn get(&self, scope: &Scope, at: At) -> Result<Option<Saved>>;

    /// Makes a checkpoint that reads already show durable, and returns it; `None` if the thread does not have it.
    ///
    /// A read may show a commit that the disk or a standby does not have yet. A save whose outcome was unknown therefore counts as done
    /// only once this has returned its checkpoint.
    ///
    /// Cost: two reads and one commit; one read if the checkpoint does not exist.
    async fn confirm(&self, scope: &Scope, id: CheckpointId) -> Result<Option<Saved>>;

    /// Returns a checkpoint with its state, or `None` if the thread does not have it. The state loads only what is accessed.
    ///
    /// Cost: one round trip for the latest checkpoint, two for an id.
    async fn open(&self, scope: &Scope, at: At) -> Result<Option<Opened>>;

    /// Returns a page of the thread's checkpoints, newest first.
    ///
    /// Cost: one round trip for every 500 checkpoints read. A filter by label or metadata reads every checkpoint of the requested time
    /// range.
    async fn list(&self, scope: &Scope, options: &ListOptions) -> Result<CheckpointPage>;

    /// Restores a checkpoint's state as a new head with the same tree, so that nothing is lost.
    ///
    /// Cost: one read and one commit, independent of the size of the tree.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a checkpoint that the thread does not have, and those of
    /// [`Checkpointer::put`]; a restore for which `options` name no head follows on any.
    async fn restore(&self, scope: &Scope, id: CheckpointId, options: &PutOptions) -> Result<Saved>;

    /// Starts another thread of the same tenant and user from a checkpoint. Unchanged content is shared, and changes to either thread stay
    /// invisible to the other.
    ///
    /// Cost: one read and one commit, independent of the size of the tree.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a checkpoint that the thread does not have,
    /// [`AlreadyExists`](treehold_core::error::ErrorKind::AlreadyExists) when the other thread exists.
    async fn fork(&self, scope: &Scope, at: At, thread: &str, options: &PutOptions) -> Result<Saved>;

    /// Copies a thread with all its checkpoints, and returns their number.
    ///
    /// Cost: grows with the number of checkpoints, not with their content.
    ///
    /// # Errors
    /// Those of [`Checkpointer::fork`].
    async fn copy(&self, scope: &Scope, thread: &str) -> Result<u64>;

    /// Removes a thread with all its checkpoints. The next sweep removes content that only they held.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) when the thread does not exist.
    async fn delete(&self, scope: &Scope) -> Result<()>;

    /// Removes old checkpoints of a thread, never its head. The next sweep removes content that only they held.
    async fn prune(&self, scope: &Scope, options: &PruneOptions) -> Result<Pruned>;

    /// Removes, or only counts, everything that no checkpoint of the scope's tenant and user holds any more.
    ///
    /// Safe to run beside all other work: rows that are put meanwhile stay. Cost: reads every page of every tree once.
    async fn sweep(&self, scope: &Scope, dry_run: bool) -> Result<Swept>;

    /// Returns a page of the threads of the scope's tenant and user, ordered by id.
    ///
    /// Cost: one round trip.
    async fn threads(&self, scope: &Scope, start_after: Option<&str>, limit: usize) -> Result<ThreadPage>;

    /// Watches the threads of the scope's tenant and user: the [`Watch`] fires whenever one of them gets another head, from any process.
    /// Returns `None` if there are no notifications; poll the head then.
    async fn watch(&self, scope: &Scope) -> Result<Option<Watch>>;

    /// Returns the store into which the events and audit rows of a change are committed together with its checkpoint, if they lie in the
    /// [partition of the scope](partition_of), or `None` if they are committed separately afterwards. Checkpointers outside this crate return
    /// `None`.
    fn store(&self) -> Option<&Arc<dyn Store>>;
}

/// Selects a checkpoint of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum At {
    /// The head.
    #[default]
    Latest,
    /// The checkpoint with this id.
    Id(CheckpointId),
}

impl From<CheckpointId> for At {
    fn from(id: CheckpointId) -> Self {
        Self::Id(id)
    }
}

/// A saved state of one thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The id. Ids within one thread increase with time.
    pub id: CheckpointId,
    /// The checkpoint that this one followed, or was restored or forked from; `None` for the first. It may have been pruned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The checkpoint that was merged into it besides its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged: Option<ThreadCheckpoint>,
    /// The time of its creation.
    pub created_at: Timestamp,
    /// Its label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Its metadata, such as the id of the tool call that created it and the actor.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The number of files and directories.
    pub entries: u64,
    /// The total size in bytes of all files.
    pub size_bytes: u64,
}

impl Checkpoint {
    /// Creates a checkpoint. Its time is the one in its id, with full precision if the clock agrees.
    pub(crate) fn new(
        id: CheckpointId,
        parent: Option<Parent>,
        now: Timestamp,
        options: &PutOptions,
        (entries, size_bytes): (u64, u64),
    ) -> Self {
        let now = whole_microseconds(now);
        // Listings by time seek by id, so the time must match the id.
        let created_at = if now.as_microsecond().div_euclid(1_000) == id.time().as_millisecond() { now } else { id.time() };
        let (label, metadata, merged) = (options.label.clone(), options.metadata.clone(), options.merged.clone());
        Self { id, parent, merged, created_at, label, metadata, entries, size_bytes }
    }

    /// Clears the counts and sizes, for a caller who may not see everything.
    #[must_use]
    pub fn without_totals(mut self) -> Self {
        (self.entries, self.size_bytes) = (0, 0);
        self
    }
}

/// The origin of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parent {
    /// The thread, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The checkpoint.
    pub id: CheckpointId,
    /// The checkpoint whose tree was restored, after a restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<CheckpointId>,
}

/// A checkpoint of a thread of the same tenant and user.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, JsonSchema)]
pub struct ThreadCheckpoint {
    /// The thread.
    pub thread: String,
    /// The checkpoint.
    pub id: CheckpointId,
}

/// A checkpoint and, if it is the head, its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Saved {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The head to name in a put on top of this checkpoint; `None` if the checkpoint is not the head.
    #[serde(skip)]
    pub head: Option<Head>,
}

impl Saved {
    /// Makes the answer of a checkpointer. `head` is none when the checkpoint is not the head.
    pub fn new(checkpoint: Checkpoint, head: Option<Head>) -> Self {
        Self { checkpoint, head }
    }
}

/// A checkpoint with its state.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Opened {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The head to name in a put on top of this checkpoint; `None` if the checkpoint is not the head.
    pub head: Option<Head>,
    /// The state.
    pub state: StateSnapshot,
}

/// The newest checkpoint of a thread, as the condition of the next put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The checkpoint.
    pub id: CheckpointId,
    /// The version of the thread, which changes with each new head.
    pub version: Version,
}

/// Options for putting a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PutOptions {
    /// The head that it follows; `None` for the first checkpoint of a thread. A restore without one follows on any head. Ignored by fork.
    pub head: Option<Head>,
    /// The id of the checkpoint, greater than that of the head, so that it can be recognised if the outcome is unknown. Generated by
    /// default.
    pub id: Option<CheckpointId>,
    /// The label.
    pub label: Option<String>,
    /// The metadata.
    pub metadata: BTreeMap<String, String>,
    /// The checkpoint that was merged into the state, which must still exist. Ignored by restore and fork.
    pub merged: Option<ThreadCheckpoint>,
    /// Values for the checkpointers that know their types, such as an [`Outbox`](treehold_store::Outbox) of rows to commit together with the
    /// checkpoint.
    pub extensions: Extensions,
}

impl PutOptions {
    /// Options for the first checkpoint of a thread, without a label.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the head that it follows.
    #[must_use]
    pub fn with_head(mut self, head: Option<Head>) -> Self {
        self.head = head;
        self
    }

    /// Sets the id of the checkpoint.
    #[must_use]
    pub fn with_id(mut self, id: CheckpointId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the label.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Adds a metadata entry.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Sets the checkpoint that was merged into the state.
    #[must_use]
    pub fn with_merged(mut self, merged: ThreadCheckpoint) -> Self {
        self.merged = Some(merged);
        self
    }

    /// Adds a value for the checkpointers that know its type. It replaces the value of the same type.
    #[must_use]
    pub fn with_extension<T: std::any::Any + Send + Sync>(mut self, value: T) -> Self {
        self.extensions.insert(value);
        self
    }

    /// Returns an id for a put at time `now` after a checkpoint. It is greater than the ids of all its origins.
    pub(crate) fn id_after(&self, now: Timestamp, after: Option<CheckpointId>) -> CheckpointId {
        let after = after.max(self.merged.as_ref().map(|merged| merged.id));
        let own = self.id.filter(|id| after.is_none_or(|after| *id > after));
        own.unwrap_or_else(|| CheckpointId::new(now, after))
    }
}

/// Options for listing checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListOptions {
    /// Only checkpoints with this label.
    pub label: Option<String>,
    /// Only checkpoints with all of these metadata entries.
    pub metadata: BTreeMap<String, String>,
    /// Only checkpoints created at this time or later.
    pub since: Option<Timestamp>,
    /// Only checkpoints created before this time.
    pub until: Option<Timestamp>,
    /// Only checkpoints older than this one: the end of the previous page.
    pub start_after: Option<CheckpointId>,
    /// The largest number to return. Default 100.
    pub limit: usize,
}

impl Default for ListOptions {
    fn default() -> Self {
        Self { label: None, metadata: BTreeMap::new(), since: None, until: None, start_after: None, limit: 100 }
    }
}

impl ListOptions {
    /// Lists all checkpoints, 100 a page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lists checkpoints with a label.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Lists checkpoints with a metadata entry.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Lists checkpoints created at `since` or later.
    #[must_use]
    pub fn with_since(mut self, since: Timestamp) -> Self {
        self.since = Some(since);
        self
    }

    /// Lists checkpoints created before `until`.
    #[must_use]
    pub fn with_until(mut self, until: Timestamp) -> Self {
        self.until = Some(until);
        self
    }

    /// Continues after the last checkpoint of a page.
    #[must_use]
    pub fn with_start_after(mut self, id: CheckpointId) -> Self {
        self.start_after = Some(id);
        self
    }

    /// Sets the largest number to return.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    pub(crate) fn selects(&self, checkpoint: &Checkpoint) -> bool {
        self.label.as_ref().is_none_or(|label| checkpoint.label.as_ref() == Some(label))
            && self.metadata.iter().all(|(name, value)| checkpoint.metadata.get(name) == Some(value))
            && self.since.is_none_or(|since| checkpoint.created_at >= since)
            && self.until.is_none_or(|until| checkpoint.created_at < until)
            && self.start_after.is_none_or(|after| checkpoint.id < after)
    }
}

/// A page of checkpoints, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct CheckpointPage {
    /// The checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// The `start_after` of the next page; `None` on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<CheckpointId>,
}

/// Options for pruning. A checkpoint is removed only if every rule that is set allows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PruneOptions {
    /// Keeps this many of the newest checkpoints.
    pub keep_last: Option<u64>,
    /// Keeps checkpoints that are at most this old.
    pub older_than: Option<Duration>,
    /// Keeps checkpoints with a label.
    pub keep_labelled: bool,
    /// Only counts.
    pub dry_run: bool,
}

impl PruneOptions {
    /// Removes all checkpoints except the head.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps this many of the newest checkpoints.
    #[must_use]
    pub fn with_keep_last(mut self, count: u64) -> Self {
        self.keep_last = Some(count);
        self
    }

    /// Keeps checkpoints that are at most this old.
    #[must_use]
    pub fn with_older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Keeps checkpoints with a label.
    #[must_use]
    pub fn with_keep_labelled(mut self, keep: bool) -> Self {
        self.keep_labelled = keep;
        self
    }

    /// Only counts.
    #[must_use]
    pub fn with_dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Returns whether to remove a checkpoint that is not the head and has `newer` newer ones.
    pub(crate) fn removes(&self, checkpoint: &Checkpoint, newer: u64, now: Timestamp) -> bool {
        let is_old = |age: Duration| now.duration_since(checkpoint.created_at).unsigned_abs() > age && checkpoint.created_at < now;
        self.keep_last.is_none_or(|count| newer >= count)
            && self.older_than.is_none_or(is_old)
            && !(self.keep_labelled && checkpoint.label.is_some())
    }
}

/// The result of a prune or of its dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Pruned {
    /// The number of removed checkpoints.
    pub removed: u64,
    /// The number of remaining checkpoints.
    pub kept: u64,
}

/// The result of a sweep or of its dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Swept {
    /// The number of removed contents.
    pub bodies: u64,
    /// Their size in bytes.
    pub body_bytes: u64,
    /// The number of removed packs of pages.
    pub packs: u64,
    /// The number of contents that checkpoints hold.
    pub bodies_kept: u64,
}

/// A thread in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ThreadInfo {
    /// The id.
    pub thread: String,
    /// Its newest checkpoint.
    pub head: CheckpointId,
    /// The number of files and directories.
    pub entries: u64,
    /// The total size in bytes of all files.
    pub size_bytes: u64,
    /// The time of the first save.
    pub created_at: Timestamp,
    /// The time of the last save.
    pub saved_at: Timestamp,
}

impl ThreadInfo {
    /// Clears the counts and sizes, for a caller who may not see everything.
    #[must_use]
    pub fn without_totals(mut self) -> Self {
        (self.entries, self.size_bytes) = (0, 0);
        self
    }
}

/// A page of threads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ThreadPage {
    /// The threads, ordered by id.
    pub threads: Vec<ThreadInfo>,
    /// The `start_after` of the next page; `None` on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
