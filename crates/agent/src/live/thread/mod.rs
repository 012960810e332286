//! The state of one live thread: opened on first use, saved in checkpoints, unloaded when idle.
//!
//! `tree` shows it as a backend, `save` puts it, `lost` finds puts whose answers were lost, and `replace` restores, merges and reloads.

mod lost;
mod replace;
mod save;
#[cfg(test)]
pub(super) mod tests;
mod tree;

pub(crate) use replace::ReloadListener;
pub(crate) use tree::ThreadTree;

use super::durability::ThreadDurability;
use super::held::{HeldOutbox, Place};
use super::unsaved_until;
use jiff::Timestamp;
use lost::Kept;
use parking_lot::RwLock;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::Mutex;
use treehold_core::error::{Error, Result};
use treehold_core::scope::Scope;
use treehold_store::Partition;
use treehold_tree::backend::{StateBackend, StateSnapshot};
use treehold_tree::checkpoint::{At, CheckpointId, Checkpointer, PutOptions, partition_of};

/// The state of one thread, shared by its sessions.
#[derive(Debug)]
pub(crate) struct LiveThread {
    scope: Scope,
    /// Where the rows of the scope's threads lie; `None` for a scope that no checkpointer accepts. Computed by the first save.
    partition: OnceLock<Option<Partition>>,
    checkpointer: Option<Arc<dyn Checkpointer>>,
    durability: ThreadDurability,
    /// The state; `None` until first use and after it was unloaded.
    state: RwLock<Option<Arc<StateBackend>>>,
    /// Held while the thread is opened or saved, which serializes both.
    saved: Mutex<Kept>,
    /// Listeners for a replaced state, as long as they live.
    listeners: parking_lot::Mutex<Vec<Weak<dyn ReloadListener>>>,
    /// The time of the last use, as a number that grows with each use of any thread.
    used_at: AtomicU64,
    /// The approximate memory that changes of the state take, in bytes; without what was loaded, which the state counts itself.
    held_bytes: AtomicU64,
    /// The ids that were created here.
    ids: parking_lot::Mutex<Ids>,
    /// Rows that commit with the checkpoint of their changes.
    held: HeldOutbox,
}

/// The ids of a thread's checkpoints and calls. They share one increasing sequence, which orders calls relative to checkpoints.
#[derive(Debug, Clone, Copy, Default)]
struct Ids {
    /// The greatest known id.
    last: Option<CheckpointId>,
    /// The id of the last saved checkpoint.
    saved: Option<CheckpointId>,
}

static USES: AtomicU64 = AtomicU64::new(0);

impl LiveThread {
    pub(crate) fn new(scope: Scope, checkpointer: Option<Arc<dyn Checkpointer>>, durability: ThreadDurability) -> Self {
        Self {
            partition: OnceLock::new(),
            scope,
            checkpointer,
            durability,
            state: RwLock::default(),
            saved: Mutex::default(),
            listeners: Default::default(),
            used_at: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            ids: Default::default(),
            held: Default::default(),
        }
    }

    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Returns where a checkpointer saves the thread, if other rows can commit with it.
    fn place<'t>(&'t self, checkpointer: &'t dyn Checkpointer) -> Option<Place<'t>> {
        checkpointer.store().zip(self.partition.get_or_init(|| partition_of(&self.scope).ok()).as_ref())
    }

    pub(crate) fn durability(&self) -> ThreadDurability {
        self.durability
    }

    /// Creates an id that is greater than all known ids of the thread.
    pub(crate) fn next_id(&self) -> CheckpointId {
        let mut ids = self.ids.lock();
        let id = CheckpointId::new(Timestamp::now(), ids.last);
        ids.last = Some(id);
        id
    }

    /// Returns the last saved checkpoint if it is newer than an id.
    pub(crate) fn saved_since(&self, id: CheckpointId) -> Option<CheckpointId> {
        self.ids.lock().saved.filter(|saved| *saved > id)
    }

    /// Returns whether anything was saved here.
    pub(crate) fn has_saved(&self) -> bool {
        self.ids.lock().saved.is_some()
    }

    /// Registers the id of an existing checkpoint.
    fn know(&self, id: CheckpointId) {
        let mut ids = self.ids.lock();
        ids.last = ids.last.max(Some(id));
    }

    /// Returns the checkpointer.
    pub(crate) fn checkpointer(&self) -> Result<&Arc<dyn Checkpointer>> {
        self.checkpointer.as_ref().ok_or_else(|| Error::unsupported("this workspace does not save threads; build it with a checkpointer"))
    }

    /// Returns the state, opening it on the first call. A failure is not cached: the next call retries.
    async fn state(&self) -> Result<Arc<StateBackend>> {
        self.used_at.store(USES.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        if let Some(state) = &*self.state.read() {
            return Ok(state.clone());
        }
        let mut kept = self.saved.lock().await;
        if let Some(state) = &*self.state.read() {
            return Ok(state.clone());
        }
        let (snapshot, found) = self.open().await?;
        let state = Arc::new(StateBackend::from_snapshot(&snapshot));
        *kept = found;
        *self.state.write() = Some(state.clone());
        Ok(state)
    }

    async fn open(&self) -> Result<(StateSnapshot, Kept)> {
        let found = match &self.checkpointer {
            Some(checkpointer) => checkpointer.open(&self.scope, At::Latest).await?,
            None => None,
        };
        let (state, head) = found.map_or_else(Default::default, |found| (found.state, found.head));
        if let Some(head) = &head {
            self.know(head.id);
        }
        let kept = Kept { head, state: Some(state.version()), ..Kept::default() };
        Ok((state, kept))
    }

    /// Returns the approximate memory of the state in bytes, and when it was last used.
    pub(crate) fn weight(&self) -> (u64, u64) {
        let loaded = self.state.read().as_ref().map_or(0, |state| state.loaded_bytes());
        (self.held_bytes.load(Ordering::Relaxed) + loaded, self.used_at.load(Ordering::Relaxed))
    }

    /// Saves the state and unloads it if nobody uses it. Returns whether it did. The next call opens it again.
    ///
    /// A state that cannot be saved is kept.
    pub(crate) async fn put_down(self: &Arc<Self>) -> Result<bool> {
        if self.checkpointer.is_none() {
            return Ok(false);
        }
        self.save(PutOptions::new()).await?;
        let kept = self.saved.lock().await;
        let mut state = self.state.write();
        let is_idle = state.as_ref().is_some_and(|state| Arc::strong_count(state) == 1 && Some(state.version()) == kept.state)
            && self.held.is_empty();
        if is_idle {
            *state = None;
            self.held_bytes.store(0, Ordering::Relaxed);
        }
        Ok(is_idle)
    }

    fn hold(&self, size_bytes: u64) {
        self.held_bytes.fetch_add(size_bytes, Ordering::Relaxed);
    }
}

impl fmt::Display for LiveThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}
