//! The history of threads: checkpoints of their state, and what can be done with them.
//!
//! A [`Checkpointer`] keeps for each thread a chain of immutable checkpoints, of which the newest is its *head*. A checkpoint
//! costs what changed since the one before, whatever else there is; opening one loads nothing but what is looked at; going back to
//! one, or forking one into another thread, writes a pointer. [`StoreCheckpointer`] keeps all of it in any
//! [`Store`], [`MemoryCheckpointer`] in memory, as the reference.
//!
//! Whoever puts a checkpoint names the head it follows on: of two sessions on one thread the second is told `conflict`, and
//! neither state is mixed. What cannot be read is an error, never an empty thread.

use crate::backend::StateSnapshot;
use crate::error::Result;
use crate::ops::{Along, Version};
use crate::scope::Scope;
use crate::store::{Store, Watch, whole_microseconds};
use async_trait::async_trait;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

mod cache;
mod diff;
mod fault;
mod history;
mod id;
mod memory;
mod merge;
mod name;
mod pages;
mod record;
mod review;
mod row;
mod store;
mod sweep;

pub use diff::{ChangeKind, Diff, PathDiff, diff};
pub use history::HistoryBackend;
pub use id::{CheckpointId, InvalidCheckpointId};
pub use memory::MemoryCheckpointer;
pub(crate) use merge::plan_merge;
pub use merge::{
    MERGED_CHECKPOINT, MERGED_THREAD, MergeChange, MergeConflict, MergeConflictKind, MergeHunk, MergeLines, MergeOptions, MergeOrigin,
    MergeOutcome, MergeResolution, MergeSide, MergeStatus, MergeStrategy, merge,
};
pub(crate) use name::check_checkpoint_name;
pub use name::{find_checkpoint, is_reserved_name, open_checkpoint, with_checkpoint};
pub(crate) use review::Reviewer;
pub use row::check_row;
pub use store::{RESERVED_NAMESPACE, StoreCheckpointer};
pub(crate) use store::{SEPARATOR, namespace_of, thread_of};

/// The most bytes of a label.
pub const LABEL_BYTES_MAX: usize = 256;

/// The most bytes of all names and values of a checkpoint's metadata together.
pub const METADATA_BYTES_MAX: usize = 16 << 10;

/// The checkpoints of threads, by the tenant, user and thread of a scope.
///
/// A scope without a tenant or user is its own: it never meets the threads of one that has them. Where a method needs a thread
/// and the scope names none, it fails with [`InvalidArgument`](crate::ErrorKind::InvalidArgument); all of them fail with what the
/// store fails with.
#[async_trait]
pub trait Checkpointer: Send + Sync + fmt::Display + fmt::Debug {
    /// Keeps a state as the new head of the scope's thread, as a whole or not at all.
    ///
    /// Cost: one round trip, with the contents that are not kept yet, the pages of the tree that changed (at most about 3 KiB for one
    /// file among 100,000) and two small records.
    ///
    /// # Errors
    /// [`Conflict`](crate::ErrorKind::Conflict) when the thread's head is not the one that `options` names (the error's
    /// current version is that of the head there is), [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a label or
    /// metadata that is too long.
    async fn put(&self, scope: &Scope, state: &StateSnapshot, options: &PutOptions) -> Result<Saved>;

    /// Returns a checkpoint; none when the thread has no such one.
    ///
    /// Cost: one round trip.
    async fn get(&self, scope: &Scope, at: At) -> Result<Option<Saved>>;

    /// Makes sure that a checkpoint that a read shows is durable, and returns it; none when the thread has no such one.
    ///
    /// A read may show a commit that the disk or a standby does not have yet. So a save whose answer was lost counts as done only
    /// once this has returned its checkpoint.
    ///
    /// Cost: two reads and one commit; one read where there is no such checkpoint.
    async fn confirm(&self, scope: &Scope, id: CheckpointId) -> Result<Option<Saved>>;

    /// Returns a checkpoint with its state, of which nothing is loaded but what is looked at; none when the thread has no such one.
    ///
    /// Cost: one round trip.
    async fn open(&self, scope: &Scope, at: At) -> Result<Option<Opened>>;

    /// Returns a page of the thread's checkpoints, the newest first.
    ///
    /// Cost: one round trip a page; a filter by label or metadata looks at every checkpoint of the time asked for.
    async fn list(&self, scope: &Scope, options: &ListOptions) -> Result<CheckpointPage>;

    /// Makes a checkpoint the thread's state again: as a new head with the same tree, so that nothing is lost.
    ///
    /// Cost: one read and one commit, whatever the size of the tree.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) for a checkpoint that the thread does not have, and as [`Checkpointer::put`].
    async fn restore(&self, scope: &Scope, id: CheckpointId, options: &PutOptions) -> Result<Saved>;

    /// Starts another thread of the same tenant and user from a checkpoint. The two share what neither changes, and never see
    /// each other's changes.
    ///
    /// Cost: one read and one commit, whatever the size of the tree.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) for a checkpoint that the thread does not have,
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) when the other thread exists.
    async fn fork(&self, scope: &Scope, at: At, thread: &str, options: &PutOptions) -> Result<Saved>;

    /// Copies a thread with all its checkpoints, and returns how many they are.
    ///
    /// Cost: grows with the number of checkpoints, not with what they hold.
    ///
    /// # Errors
    /// As [`Checkpointer::fork`].
    async fn copy(&self, scope: &Scope, thread: &str) -> Result<u64>;

    /// Removes a thread with all its checkpoints. What only they held is removed by the next sweep.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) when there is no such thread.
    async fn delete(&self, scope: &Scope) -> Result<()>;

    /// Removes old checkpoints of a thread, never its head. What only they held is removed by the next sweep.
    async fn prune(&self, scope: &Scope, options: &PruneOptions) -> Result<Pruned>;

    /// Removes what no checkpoint of the scope's tenant and user holds any more, or only counts it.
    ///
    /// Safe beside all other work: what is put meanwhile stays. Cost: looks at every page of every tree once.
    async fn sweep(&self, scope: &Scope, dry_run: bool) -> Result<Swept>;

    /// Returns a page of the threads of the scope's tenant and user, by id.
    ///
    /// Cost: one round trip.
    async fn threads(&self, scope: &Scope, start_after: Option<&str>, limit: usize) -> Result<ThreadPage>;

    /// Watches the threads of the scope's tenant and user: the [`Watch`] tells whenever one of them got another head, by whatever process.
    /// None where nothing tells of it; then the head has to be asked for.
    async fn watch(&self, scope: &Scope) -> Result<Option<Watch>>;

    /// Returns the store that the events and audit rows of a change are committed to together with its checkpoint; none where checkpoints
    /// take nothing along, and these are committed after them. A checkpointer from outside of this crate returns none.
    fn store(&self) -> Option<&Arc<dyn Store>>;
}

/// Which checkpoint of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum At {
    /// The head.
    #[default]
    Latest,
    /// The one of this id.
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
    /// The id. Those of one thread grow with time.
    pub id: CheckpointId,
    /// What it followed on, or was restored or forked from; none of the first. It may have been pruned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// What was merged into it beside its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged: Option<ThreadCheckpoint>,
    /// When it was made.
    pub created_at: Timestamp,
    /// What it was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What was noted with it, such as the id of the tool call that led to it and who acted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// How many files and directories it holds.
    pub entries: u64,
    /// The size in bytes of all files together.
    pub size_bytes: u64,
}

impl Checkpoint {
    /// Makes a checkpoint. Its time is that of its id, and more exact where the clock agrees.
    pub(crate) fn new(
        id: CheckpointId,
        parent: Option<Parent>,
        now: Timestamp,
        options: &PutOptions,
        (entries, size_bytes): (u64, u64),
    ) -> Self {
        let now = whole_microseconds(now);
        // Lists by time seek by id.
        let created_at = if now.as_microsecond().div_euclid(1_000) == id.time().as_millisecond() { now } else { id.time() };
        let (label, metadata, merged) = (options.label.clone(), options.metadata.clone(), options.merged.clone());
        Self { id, parent, merged, created_at, label, metadata, entries, size_bytes }
    }
}

/// What a checkpoint came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parent {
    /// The thread, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The checkpoint.
    pub id: CheckpointId,
    /// The checkpoint whose tree this one has again, after a restore.
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

/// A checkpoint, and the version of its thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Saved {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The head that a put on top of this checkpoint names; none when the checkpoint is not the head.
    #[serde(skip)]
    pub head: Option<Head>,
}

/// A checkpoint with its state.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Opened {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The head that a put on top of this checkpoint names; none when the checkpoint is not the head.
    pub head: Option<Head>,
    /// The state.
    pub state: StateSnapshot,
}

/// The newest checkpoint of a thread, as a put names it that follows on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The checkpoint.
    pub id: CheckpointId,
    /// The version of the thread, which changes with each new head.
    pub version: Version,
}

/// How to put a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PutOptions {
    /// The head it follows on; none for the first of a thread. A restore and a fork do without.
    pub head: Option<Head>,
    /// The id it gets, greater than that of the head: so that it is known again when the answer was lost. One is made otherwise.
    pub id: Option<CheckpointId>,
    /// What to call it.
    pub label: Option<String>,
    /// What to note with it.
    pub metadata: BTreeMap<String, String>,
    /// The checkpoint that was merged into the state beside the head, and that must still be there. A restore and a fork do without.
    pub merged: Option<ThreadCheckpoint>,
    /// What is committed with the checkpoint.
    pub(crate) along: Along,
}

impl PutOptions {
    /// Puts the first checkpoint of a thread, without a label.
    pub fn new() -> Self {
        Self::default()
    }

    /// Follows on a head.
    #[must_use]
    pub fn with_head(mut self, head: Option<Head>) -> Self {
        self.head = head;
        self
    }

    /// Sets the id it gets.
    #[must_use]
    pub fn with_id(mut self, id: CheckpointId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets what to call it.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Notes something with it.
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

    /// Returns the id of a put at a time that follows on a checkpoint. It is greater than those of all that it comes from.
    pub(crate) fn id_after(&self, now: Timestamp, after: Option<CheckpointId>) -> CheckpointId {
        let after = after.max(self.merged.as_ref().map(|merged| merged.id));
        let own = self.id.filter(|id| after.is_none_or(|after| *id > after));
        own.unwrap_or_else(|| CheckpointId::new(now, after))
    }
}

/// Which checkpoints to list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListOptions {
    /// Only those of this label.
    pub label: Option<String>,
    /// Only those that have all of this noted with them.
    pub metadata: BTreeMap<String, String>,
    /// Only those made at this time or later.
    pub since: Option<Timestamp>,
    /// Only those made before this time.
    pub until: Option<Timestamp>,
    /// Only those older than this one: where the page before ended.
    pub start_after: Option<CheckpointId>,
    /// The most that are returned. Default 100.
    pub limit: usize,
}

impl Default for ListOptions {
    fn default() -> Self {
        Self { label: None, metadata: BTreeMap::new(), since: None, until: None, start_after: None, limit: 100 }
    }
}

impl ListOptions {
    /// Lists all, 100 a page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lists those of a label.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Lists those that have something noted with them.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Lists those made from a time on.
    #[must_use]
    pub fn with_since(mut self, since: Timestamp) -> Self {
        self.since = Some(since);
        self
    }

    /// Lists those made before a time.
    #[must_use]
    pub fn with_until(mut self, until: Timestamp) -> Self {
        self.until = Some(until);
        self
    }

    /// Goes on where a page ended.
    #[must_use]
    pub fn with_start_after(mut self, id: CheckpointId) -> Self {
        self.start_after = Some(id);
        self
    }

    /// Sets the most that are returned.
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
    /// What to give as `start_after` for the rest; none when there is no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<CheckpointId>,
}

/// Which checkpoints to remove. Those are removed that each of the rules set removes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PruneOptions {
    /// Keeps this many of the newest.
    pub keep_last: Option<u64>,
    /// Keeps those that are at most this old.
    pub older_than: Option<Duration>,
    /// Keeps those with a label.
    pub keep_labelled: bool,
    /// Removes nothing, and only counts.
    pub dry_run: bool,
}

impl PruneOptions {
    /// Removes all but the head.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps this many of the newest.
    #[must_use]
    pub fn with_keep_last(mut self, count: u64) -> Self {
        self.keep_last = Some(count);
        self
    }

    /// Keeps those that are at most this old.
    #[must_use]
    pub fn with_older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Keeps those with a label.
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

    /// Tells whether a checkpoint that is no head, with this many newer ones, is removed.
    pub(crate) fn removes(&self, checkpoint: &Checkpoint, newer: u64, now: Timestamp) -> bool {
        let is_old = |age: Duration| now.duration_since(checkpoint.created_at).unsigned_abs() > age && checkpoint.created_at < now;
        self.keep_last.is_none_or(|count| newer >= count)
            && self.older_than.is_none_or(is_old)
            && !(self.keep_labelled && checkpoint.label.is_some())
    }
}

/// What a prune did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Pruned {
    /// How many checkpoints were removed.
    pub removed: u64,
    /// How many are left.
    pub kept: u64,
}

/// What a sweep did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Swept {
    /// How many contents were removed.
    pub bodies: u64,
    /// Their bytes.
    pub body_bytes: u64,
    /// How many packs of pages were removed.
    pub packs: u64,
    /// How many contents are held by a checkpoint.
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
    /// How many files and directories it holds.
    pub entries: u64,
    /// The size in bytes of all files together.
    pub size_bytes: u64,
    /// When it was saved first.
    pub created_at: Timestamp,
    /// When it was saved last.
    pub saved_at: Timestamp,
}

/// A page of threads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ThreadPage {
    /// The threads by id.
    pub threads: Vec<ThreadInfo>,
    /// What to give as `start_after` for the rest; none when there is no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}
