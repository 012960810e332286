//! The state of one live thread as a tree: opened when it is first needed, kept by checkpoints, put down when it is idle.

use super::durability::ThreadDurability;
use super::riders::Riders;
use super::unsaved_until;
use crate::backend::{Backend, StateBackend, StateSnapshot};
use crate::checkpoint::{
    At, Checkpoint, CheckpointId, Checkpointer, Head, ListOptions, MergeOptions, MergeOutcome, PutOptions, Reviewer, Saved, merge_state,
};
use crate::error::{Error, ErrorKind, Result};
use crate::layer::Quota;
use crate::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight, Version,
};
use crate::path::VfsPath;
use crate::scope::Scope;
use crate::work;
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::RwLock;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Mutex;

/// What a change takes in memory beside its content, at most, for the budget.
const CHANGE_BYTES: u64 = 512;

/// What a look at a saved tree takes in memory, about, for the budget.
const LOOK_BYTES: u64 = 4 << 10;

/// How many checkpoints are remembered whose answer was lost.
const UNSETTLED_MAX: usize = 16;

/// How often a state is put whose answers are lost before its save fails.
const PUTS_MAX: usize = 3;

/// How many checkpoints are looked at for one that followed on a lost one, at most, and how many at once.
const FOLLOWERS_MAX: usize = 5_000;
const FOLLOWERS: usize = 100;

/// The state of one thread, shared by its sessions.
#[derive(Debug)]
pub(crate) struct LiveThread {
    scope: Scope,
    checkpointer: Option<Arc<dyn Checkpointer>>,
    durability: ThreadDurability,
    /// The state, unless it was not needed yet or was put down.
    state: RwLock<Option<Arc<StateBackend>>>,
    /// Held while the thread is opened or saved, so that these follow one another.
    saved: Mutex<Kept>,
    /// Who is told when another state takes the place of this one, as long as they are there.
    listeners: parking_lot::Mutex<Vec<Weak<dyn ReloadListener>>>,
    /// When it was last used, as a number that grows with each use of any thread.
    used_at: AtomicU64,
    /// About how many bytes the state takes in memory.
    held_bytes: AtomicU64,
    /// The ids that were made here.
    ids: parking_lot::Mutex<Ids>,
    /// What goes along with the checkpoint that makes changes last.
    riders: Riders,
}

/// The ids of a thread's checkpoints and calls, which grow together: so it is told which call was before which checkpoint.
#[derive(Debug, Clone, Copy, Default)]
struct Ids {
    /// The greatest that is known.
    last: Option<CheckpointId>,
    /// That of the checkpoint put last.
    saved: Option<CheckpointId>,
}

/// What keeps something that it knows of the state.
pub(crate) trait ReloadListener: Send + Sync + fmt::Debug {
    /// The state is another one now.
    fn reloaded(&self);
}

impl<B: Backend> ReloadListener for Quota<B> {
    fn reloaded(&self) {
        self.forget();
    }
}

/// What is known of the thread where it is kept.
#[derive(Debug, Clone, Default)]
struct Kept {
    /// Its newest checkpoint; none when it has none.
    head: Option<Head>,
    /// The version of the state at that time: as long as it is the same, nothing changed.
    state: Option<Version>,
    /// The checkpoints that were put and of which the answer was lost, with the version of their state: any of them may be the head.
    unsettled: Vec<(CheckpointId, Version)>,
}

impl Kept {
    /// Remembers a checkpoint of which the answer was lost.
    fn unsettle(&mut self, id: CheckpointId, version: Version) {
        self.unsettled.truncate(UNSETTLED_MAX - 1);
        self.unsettled.insert(0, (id, version));
    }

    /// Returns the version of the state of a checkpoint, if its answer was one of those lost.
    fn own(&self, id: CheckpointId) -> Option<Version> {
        self.unsettled.iter().find(|(own, _)| *own == id).map(|(_, version)| *version)
    }

    /// Notes what was saved: with a state, as a head unless others have gone on from it.
    ///
    /// Then the head stays the one before, which is no head any more, so that the next save is refused.
    fn settle(&mut self, head: Option<Head>, state: Version) {
        *self = Self { head: head.or(self.head), state: Some(state), unsettled: Vec::new() };
    }
}

/// What became of the checkpoints whose answers were lost.
enum Lost {
    /// One of them was saved.
    Saved {
        id: CheckpointId,
        /// The version of its state.
        state: Version,
        /// None when it was removed since.
        checkpoint: Option<Box<Checkpoint>>,
        /// None when others have gone on from it.
        head: Option<Head>,
    },
    /// None of them was saved, and the head is the one they were to follow on: one of them may be on its way still.
    Open,
    /// None of them was saved, and none can be any more: others have gone on from where they were to follow on.
    Gone,
    /// Checkpoints were removed since, and one of these may have been among them.
    Unknown,
}

static USES: AtomicU64 = AtomicU64::new(0);

impl LiveThread {
    pub(crate) fn new(scope: Scope, checkpointer: Option<Arc<dyn Checkpointer>>, durability: ThreadDurability) -> Self {
        Self {
            scope,
            checkpointer,
            durability,
            state: RwLock::default(),
            saved: Mutex::default(),
            listeners: Default::default(),
            used_at: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            ids: Default::default(),
            riders: Default::default(),
        }
    }

    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(crate) fn durability(&self) -> ThreadDurability {
        self.durability
    }

    /// Makes an id that is greater than all that are known of the thread.
    pub(crate) fn next_id(&self) -> CheckpointId {
        let mut ids = self.ids.lock();
        let id = CheckpointId::new(Timestamp::now(), ids.last);
        ids.last = Some(id);
        id
    }

    /// Returns the checkpoint put last, if that was after an id.
    pub(crate) fn saved_since(&self, id: CheckpointId) -> Option<CheckpointId> {
        self.ids.lock().saved.filter(|saved| *saved > id)
    }

    /// Tells whether anything was saved here.
    #[cfg(feature = "mcp")]
    pub(super) fn has_saved(&self) -> bool {
        self.ids.lock().saved.is_some()
    }

    /// Notes a checkpoint that there is.
    fn know(&self, id: CheckpointId) {
        let mut ids = self.ids.lock();
        ids.last = ids.last.max(Some(id));
    }

    /// Returns where the thread is kept.
    pub(crate) fn checkpointer(&self) -> Result<&Arc<dyn Checkpointer>> {
        self.checkpointer
            .as_ref()
            .ok_or_else(|| Error::unsupported("this workspace keeps no threads; build it with a place to keep them in"))
    }

    /// Returns the state, opened when this is the first call. A failure is not kept: the next call tries again.
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
        let kept = Kept { head, state: Some(state.version()), unsettled: Vec::new() };
        Ok((state, kept))
    }

    /// Saves the state if it changed, to the end even when the future is dropped.
    pub(crate) async fn save(self: &Arc<Self>, notes: PutOptions) -> Result<Option<Checkpoint>> {
        if self.checkpointer.is_none() || self.state.read().is_none() {
            return Ok(None);
        }
        self.put(notes, false).await
    }

    /// Makes a checkpoint, though nothing changed.
    pub(crate) async fn checkpoint(self: &Arc<Self>, notes: PutOptions) -> Result<Checkpoint> {
        self.checkpointer()?;
        self.state().await?;
        let made = self.put(notes, true).await?;
        made.ok_or_else(|| Error::new(ErrorKind::Internal, "a checkpoint was asked for and not made"))
    }

    /// Half-way it would be unknown what the thread's head is, and the next save would take its own for another's: so a save that
    /// has begun is a task of its own.
    async fn put(self: &Arc<Self>, notes: PutOptions, always: bool) -> Result<Option<Checkpoint>> {
        let live = self.clone();
        let saving = tokio::spawn(work::carried(async move { live.put_now(notes, always).await }));
        saving.await.map_err(|error| Error::new(ErrorKind::Internal, "the save of a thread was stopped").with_source(error))?
    }

    async fn put_now(&self, notes: PutOptions, always: bool) -> Result<Option<Checkpoint>> {
        let mut kept = self.saved.lock().await;
        let Some(checkpointer) = &self.checkpointer else { return Ok(None) };
        let Some(state) = self.state.read().clone() else { return Ok(None) };
        self.put_on(&mut kept, &**checkpointer, &state.snapshot(), notes, always).await
    }

    /// Puts a state on top of what is kept of the thread.
    async fn put_on(
        &self,
        kept: &mut Kept,
        checkpointer: &dyn Checkpointer,
        snapshot: &StateSnapshot,
        notes: PutOptions,
        always: bool,
    ) -> Result<Option<Checkpoint>> {
        let version = snapshot.version();
        if !always && Some(version) == kept.state {
            // Another's save took the change along before what tells of it was there to go with it.
            self.riders.went(version, self.riders.waiting(version), None).await;
            return Ok(None);
        }
        if !kept.unsettled.is_empty() {
            // Before anything else is put it has to be known what the head is: else saves that fail one after the other would
            // put the one out of mind that took effect, and the session's own would be another's for ever.
            match self.find_lost(kept, checkpointer).await? {
                Lost::Saved { id, state, checkpoint, head } => {
                    kept.settle(head, state);
                    self.ids.lock().saved = Some(id);
                    self.riders.went(state, self.riders.waiting(state), checkpointer.store()).await;
                    if !always && state == version {
                        return Ok(checkpoint.map(|checkpoint| *checkpoint));
                    }
                }
                Lost::Open => {}
                // The save is refused, and whoever asked for it has what it left set aside.
                Lost::Gone | Lost::Unknown => kept.unsettled.clear(),
            }
        }
        let waiting = self.riders.waiting(version);
        let mut notes = notes;
        waiting.iter().cloned().for_each(|rider| notes.along.push(rider));
        let mut made = Vec::new();
        loop {
            let id = self.next_id();
            made.push(id);
            let options = notes.clone().with_head(kept.head).with_id(id);
            let error = match checkpointer.put(&self.scope, snapshot, &options).await {
                Ok(Saved { checkpoint, head, .. }) => {
                    self.know(checkpoint.id);
                    self.ids.lock().saved = Some(checkpoint.id);
                    kept.settle(head, version);
                    self.riders.went(version, waiting, checkpointer.store()).await;
                    return Ok(Some(checkpoint));
                }
                Err(error) => error,
            };
            let is_refused = error.kind() == ErrorKind::Conflict;
            if error.may_have_effect() && !is_refused {
                kept.unsettle(id, version);
            } else if !is_refused || kept.unsettled.is_empty() {
                return Err(error);
            }
            // The answer of this save, or of one before it, may have been lost behind its effect: then it is the head, or others have
            // gone on from it. A refusal stands only where it is known that it has had none: work that is refused is done again.
            match self.find_lost(kept, checkpointer).await {
                Ok(Lost::Saved { id: own, state, checkpoint, head }) => {
                    kept.settle(head, state);
                    self.ids.lock().saved = Some(own);
                    self.riders.went(state, self.riders.waiting(state), checkpointer.store()).await;
                    if made.contains(&own) || state == version && !always {
                        return Ok(checkpoint.map(|checkpoint| *checkpoint));
                    }
                }
                Ok(Lost::Gone) if is_refused => {
                    kept.unsettled.clear();
                    return Err(error);
                }
                // Whichever of the two is first, the other is refused.
                Ok(Lost::Open | Lost::Gone) if made.len() < PUTS_MAX => {}
                _ if is_refused => return Err(error.with_kind(ErrorKind::Unavailable).with_unknown_effect()),
                _ => return Err(error),
            }
        }
    }

    /// Looks for the checkpoints whose answers were lost: at the head, and among those that it goes back to.
    ///
    /// Cost: one read while the head is as it was, and one more for each of them when it is not. Where checkpoints were removed meanwhile
    /// those that are left are listed, back to the time of the lost ones.
    async fn find_lost(&self, kept: &Kept, checkpointer: &dyn Checkpointer) -> Result<Lost> {
        let Some(Saved { checkpoint: newest, head }) = checkpointer.get(&self.scope, At::Latest).await? else {
            return Ok(if kept.head.is_none() { Lost::Open } else { Lost::Gone });
        };
        if let Some(state) = kept.own(newest.id) {
            return Ok(Lost::Saved { id: newest.id, state, checkpoint: Some(Box::new(newest)), head });
        }
        if kept.head.is_some_and(|head| head.id == newest.id) {
            return Ok(Lost::Open);
        }
        for (id, state) in &kept.unsettled {
            if let Some(Saved { checkpoint, head }) = checkpointer.get(&self.scope, At::Id(*id)).await? {
                return Ok(Lost::Saved { id: *id, state: *state, checkpoint: Some(Box::new(checkpoint)), head });
            }
        }
        // It may have been removed; then the one that followed on it tells. Ids grow from each checkpoint to the next.
        let Some(first) = kept.unsettled.iter().map(|(id, _)| *id).min() else { return Ok(Lost::Gone) };
        let mut options = ListOptions::new().with_limit(FOLLOWERS);
        for _ in 0..FOLLOWERS_MAX / FOLLOWERS {
            let page = checkpointer.list(&self.scope, &options).await?;
            for Checkpoint { parent, .. } in page.checkpoints {
                let Some(parent) = parent.filter(|parent| parent.thread.is_none()) else { return Ok(Lost::Gone) };
                if let Some(state) = kept.own(parent.id) {
                    return Ok(Lost::Saved { id: parent.id, state, checkpoint: None, head: None });
                }
                if parent.id < first {
                    return Ok(Lost::Gone);
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        Ok(Lost::Unknown)
    }

    /// Makes a checkpoint the state again, as a new checkpoint, to the end even when the future is dropped.
    pub(crate) async fn restore(
        self: &Arc<Self>,
        id: CheckpointId,
        save: PutOptions,
        notes: PutOptions,
        reviewer: Reviewer,
    ) -> Result<Checkpoint> {
        let live = self.clone();
        let restoring = tokio::spawn(work::carried(async move { live.restore_now(id, save, notes, reviewer).await }));
        restoring.await.map_err(|error| Error::new(ErrorKind::Internal, "the restore of a thread was stopped").with_source(error))?
    }

    async fn restore_now(&self, id: CheckpointId, save: PutOptions, notes: PutOptions, reviewer: Reviewer) -> Result<Checkpoint> {
        let checkpointer = self.checkpointer()?;
        // The tree is asked about it while nothing changes, and may look at the state: so it is open by then.
        let state = self.state().await?;
        let mut kept = self.saved.lock().await;
        let state = self.state.read().clone().unwrap_or(state);
        // Between the save and the restore nobody changes the state: a change that was answered would be gone.
        let paused = state.pause().await;
        let Some(before) = checkpointer.open(&self.scope, id.into()).await? else {
            let thread = self.scope.thread.as_deref().unwrap_or_default();
            let message = format!("thread `{thread}` has no checkpoint `{id}`; list them to see those there are");
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        reviewer.allow(&state.snapshot(), &before.state).await?;
        self.put_on(&mut kept, &**checkpointer, &state.snapshot(), save, false).await?;
        let own = self.next_id();
        let Saved { checkpoint, head } = match checkpointer.restore(&self.scope, id, &notes.with_id(own)).await {
            Ok(saved) => saved,
            Err(error) if error.may_have_effect() => {
                // If it took effect it is of no state that this session has had.
                kept.unsettle(own, Version::new(u64::MAX));
                match self.find_lost(&kept, &**checkpointer).await {
                    Ok(Lost::Saved { id, checkpoint: Some(checkpoint), head, .. }) if id == own => Saved { checkpoint: *checkpoint, head },
                    _ => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        self.know(checkpoint.id);
        // It is the same tree, and the new checkpoint is the one that stays as long as the thread does.
        let opened = checkpointer.open(&self.scope, checkpoint.id.into()).await.ok().flatten().unwrap_or(before).state;
        paused.restore(&opened);
        kept.settle(head, opened.version());
        self.tell_reloaded();
        Ok(checkpoint)
    }

    /// Merges a checkpoint of another thread into the state, saved before, to the end even when the future is dropped. Changes of
    /// the state wait meanwhile, so that none is lost between its save and the merged state taking its place.
    pub(crate) async fn merge(
        self: &Arc<Self>,
        source: String,
        at: At,
        save: PutOptions,
        options: MergeOptions,
        reviewer: Reviewer,
    ) -> Result<MergeOutcome> {
        let live = self.clone();
        let merging = tokio::spawn(work::carried(async move { live.merge_now((&source, at), save, options, reviewer).await }));
        merging.await.map_err(|error| Error::new(ErrorKind::Internal, "the merge of a thread was stopped").with_source(error))?
    }

    async fn merge_now(
        &self,
        (source, at): (&str, At),
        save: PutOptions,
        options: MergeOptions,
        reviewer: Reviewer,
    ) -> Result<MergeOutcome> {
        let checkpointer = self.checkpointer()?;
        let state = self.state().await?;
        let mut kept = self.saved.lock().await;
        // It may have been put down since, and opened again.
        let state = self.state.read().clone().unwrap_or(state);
        let paused = state.pause().await;
        self.put_on(&mut kept, &**checkpointer, &state.snapshot(), save, false).await?;
        // The new checkpoint's id is greater than that of the merged one.
        if let Some(theirs) = checkpointer.get(&self.scope.clone().with_thread(source), at).await? {
            self.know(theirs.checkpoint.id);
        }
        let own = self.next_id();
        let options = options.with_head(kept.head);
        let (outcome, merged) = match merge_state(&**checkpointer, &self.scope, (source, at), &options, Some(own), Some(&reviewer)).await {
            Ok(done) => done,
            Err(error) => {
                if error.may_have_effect() {
                    // If it took effect the head is ours, and of no state that this session has had.
                    kept.unsettle(own, Version::new(u64::MAX));
                }
                return Err(error);
            }
        };
        if let Some(checkpoint) = &outcome.checkpoint {
            self.know(checkpoint.id);
        }
        if let Some((head, snapshot)) = merged {
            paused.restore(&snapshot);
            kept.settle(head, snapshot.version());
            self.tell_reloaded();
        }
        Ok(outcome)
    }

    /// Saves the state as the first checkpoint of another thread.
    pub(crate) async fn save_as(&self, thread: &str) -> Result<()> {
        let checkpointer = self.checkpointer()?;
        let scope = self.scope.clone().with_thread(thread);
        let snapshot = self.state().await?.snapshot();
        let id = CheckpointId::new(Timestamp::now(), None);
        let Err(error) = checkpointer.put(&scope, &snapshot, &PutOptions::new().with_id(id)).await else { return Ok(()) };
        if error.kind() == ErrorKind::Conflict {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("a thread `{thread}` is saved already; choose another id")));
        }
        match checkpointer.get(&scope, At::Id(id)).await {
            Ok(Some(_)) if error.may_have_effect() => Ok(()),
            _ => Err(error),
        }
    }

    /// Tells a listener of each reload, as long as it is there.
    pub(crate) fn on_reload(&self, listener: Weak<dyn ReloadListener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Makes the state what was saved last.
    pub(crate) async fn reload(&self) -> Result<()> {
        let mut kept = self.saved.lock().await;
        let Some(state) = self.state.read().clone() else { return Ok(()) };
        let (snapshot, found) = self.open().await?;
        state.restore(&snapshot).await;
        // The changes are gone, and so is what tells of them.
        self.riders.clear();
        *kept = found;
        self.tell_reloaded();
        Ok(())
    }

    fn tell_reloaded(&self) {
        self.listeners.lock().iter().filter_map(Weak::upgrade).for_each(|listener| listener.reloaded());
    }

    /// Returns about how many bytes the state takes in memory, and when it was last used.
    pub(crate) fn weight(&self) -> (u64, u64) {
        (self.held_bytes.load(Ordering::Relaxed), self.used_at.load(Ordering::Relaxed))
    }

    /// Puts the state down if nobody works with it, saved first; tells whether it did. The next call opens it again.
    ///
    /// A state that cannot be saved is kept.
    pub(crate) async fn put_down(self: &Arc<Self>) -> Result<bool> {
        if self.checkpointer.is_none() {
            return Ok(false);
        }
        self.save(PutOptions::new()).await?;
        let kept = self.saved.lock().await;
        let mut state = self.state.write();
        let is_idle = state.as_ref().is_some_and(|state| Arc::strong_count(state) == 1 && Some(state.version()) == kept.state);
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

/// The tree of a live thread, as sessions mount it.
#[derive(Debug, Clone)]
pub(crate) struct ThreadTree(pub(crate) Arc<LiveThread>);

impl fmt::Display for ThreadTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl Backend for ThreadTree {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.0.state().await?.stat(path).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let read = self.0.state().await?.read(path, options).await?;
        self.0.hold(LOOK_BYTES.min(read.size_bytes));
        Ok(read)
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.0.state().await?.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.0.state().await?.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.0.state().await?.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.0.state().await?.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let state = self.0.state().await?;
        let changed = state.apply(changes, options).await?;
        let version = changed.iter().filter_map(|changed| changed.version).max().unwrap_or_else(|| state.version());
        if self.0.checkpointer.is_some() {
            self.0.riders.hold(&options.along, version, &changed);
        }
        let content: u64 = changed.iter().map(|changed| changed.size_bytes).sum();
        self.0.hold(content + changes.len() as u64 * CHANGE_BYTES);
        if self.0.durability == ThreadDurability::Sync {
            let saved = self.0.save(PutOptions::new()).await;
            saved.map_err(|error| unsaved_until(error, "it is saved with the next one, or by a checkpoint"))?;
        }
        Ok(changed)
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::backend::BackendExt;
    use crate::checkpoint::StoreCheckpointer;
    use crate::store::{
        Batch, Item, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Scan, ScanOptions, Store, StoreCapabilities,
    };
    use std::sync::atomic::AtomicUsize;

    /// Something that happens once, at a moment of a commit.
    type Then = Box<dyn FnOnce() -> futures::future::BoxFuture<'static, ()> + Send>;

    /// A store that loses answers: of the first commits after their effect, and of the first reads.
    #[derive(Default)]
    pub(crate) struct Lossy {
        inner: MemoryStore,
        pub(in crate::session) commits: AtomicUsize,
        pub(in crate::session) reads: AtomicUsize,
        /// What happens before the next commit, and after the next whose answer is lost.
        before: parking_lot::Mutex<Option<Then>>,
        after: parking_lot::Mutex<Option<Then>>,
    }

    impl fmt::Debug for Lossy {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Lossy")
        }
    }

    impl Lossy {
        /// Has something happen before the next commit.
        #[cfg(feature = "mcp")]
        pub(in crate::session) fn before_commit(&self, then: impl Future<Output = ()> + Send + 'static) {
            *self.before.lock() = Some(Box::new(|| Box::pin(then)));
        }

        /// Loses the answer of the next commit, behind which something else happens.
        pub(in crate::session) fn lose_commit(&self, then: impl Future<Output = ()> + Send + 'static) {
            *self.after.lock() = Some(Box::new(|| Box::pin(then)));
            self.commits.store(1, Ordering::Relaxed);
        }

        /// Loses this many answers of commits and reads each.
        #[cfg(feature = "mcp")]
        pub(crate) fn lose(&self, answers: usize) {
            self.commits.store(answers, Ordering::Relaxed);
            self.reads.store(answers, Ordering::Relaxed);
        }

        fn answer<T>(left: &AtomicUsize, answer: Result<T>) -> Result<T> {
            match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => answer.and(Err(Error::new(ErrorKind::Unavailable, "the answer was lost").with_unknown_effect())),
                Err(_) => answer,
            }
        }
    }

    impl fmt::Display for Lossy {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Lossy")
        }
    }

    #[async_trait]
    impl Store for Lossy {
        fn capabilities(&self) -> StoreCapabilities {
            self.inner.capabilities()
        }

        async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
            Self::answer(&self.reads, self.inner.get(namespace, key).await)
        }

        async fn get_part(&self, namespace: &Namespace, key: &str, range: std::ops::Range<u64>) -> Result<Option<crate::store::ItemPart>> {
            Self::answer(&self.reads, self.inner.get_part(namespace, key, range).await)
        }

        async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
            Self::answer(&self.reads, self.inner.get_many(namespace, keys, with_values).await)
        }

        async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
            self.inner.scan(namespace, options).await
        }

        async fn lend(&self, namespace: &Namespace) -> Result<Option<Arc<dyn crate::store::LentRows>>> {
            self.inner.lend(namespace).await
        }

        async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
            self.inner.namespaces(options).await
        }

        async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
            let before = self.before.lock().take();
            if let Some(before) = before {
                before().await;
            }
            let answer = Self::answer(&self.commits, self.inner.commit(batch).await);
            let after = answer.is_err().then(|| self.after.lock().take()).flatten();
            if let Some(after) = after {
                after().await;
            }
            answer
        }

        async fn current_version(&self) -> Result<Version> {
            self.inner.current_version().await
        }

        async fn sweep(&self, limit: usize) -> Result<usize> {
            self.inner.sweep(limit).await
        }

        async fn watch(&self, namespace: &Namespace) -> Result<crate::store::Watch> {
            self.inner.watch(namespace).await
        }

        async fn describe(&self) -> Result<crate::store::StoreDescription> {
            self.inner.describe().await
        }

        async fn stats(&self) -> Result<crate::store::StoreStats> {
            self.inner.stats().await
        }

        async fn check(&self) -> Result<Vec<Error>> {
            self.inner.check().await
        }
    }

    fn thread(store: &Arc<Lossy>) -> (Arc<LiveThread>, ThreadTree) {
        let checkpointer = Arc::new(StoreCheckpointer::new(store.clone()));
        let live = Arc::new(LiveThread::new(Scope::new().with_thread("t"), Some(checkpointer), ThreadDurability::Exit));
        (live.clone(), ThreadTree(live))
    }

    async fn save(live: &Arc<LiveThread>) -> Result<bool> {
        live.save(PutOptions::new()).await.map(|saved| saved.is_some())
    }

    /// The next save took the session's own for another's, and was refused for ever.
    #[tokio::test]
    async fn a_save_whose_answer_was_lost_is_found_again() {
        let store = Arc::new(Lossy { commits: 1.into(), ..Lossy::default() });
        let (live, tree) = thread(&store);
        tree.write("/a", "one").await.expect("written");
        assert!(save(&live).await.expect("the head is read and is ours"));
        assert!(!save(&live).await.expect("nothing is left to save"));
        tree.write("/a", "two").await.expect("written");
        assert!(save(&live).await.expect("on top of it"));
        assert_eq!(thread(&store).1.read_text("/a").await.expect("as saved"), "two");
    }

    #[tokio::test]
    async fn a_save_whose_answer_was_lost_is_found_by_the_next_when_it_cannot_be_read_at_once() {
        let store = Arc::new(Lossy { commits: 1.into(), ..Lossy::default() });
        let (live, tree) = thread(&store);
        tree.write("/a", "one").await.expect("written");
        store.reads.store(2, Ordering::Relaxed);
        assert_eq!(save(&live).await.expect_err("its end is not known").kind(), ErrorKind::Unavailable);
        tree.write("/a", "two").await.expect("written");
        assert!(save(&live).await.expect("what was saved before is ours"));
        assert_eq!(thread(&store).1.read_text("/a").await.expect("as saved"), "two");
    }

    /// The save was taken for one that had no effect, and the work was done again.
    #[tokio::test]
    async fn lost_save_is_found_beneath_the_saves_of_others_however_late_it_is_looked_for() {
        for reads in 0..6 {
            let store = Arc::new(Lossy::default());
            let ((live, tree), (other, other_tree)) = (thread(&store), thread(&store));
            tree.write("/a", "one").await.expect("written");
            let failing = store.clone();
            store.lose_commit(async move {
                for number in 0..3 {
                    other_tree.write("/b", number.to_string()).await.expect("written");
                    assert!(save(&other).await.expect("on top of it"));
                }
                failing.reads.store(reads, Ordering::Relaxed);
            });
            let mut saved = save(&live).await;
            while let Err(error) = saved {
                assert!(error.kind() == ErrorKind::Unavailable && error.may_have_effect(), "{error:?}");
                saved = save(&live).await;
            }
            assert!(!save(&live).await.expect("nothing is left to save"), "{reads}");
            // What comes after it is not mixed with what the others saved.
            tree.write("/a", "two").await.expect("written");
            assert_eq!(save(&live).await.expect_err("others went on").kind(), ErrorKind::Conflict);
            let now = thread(&store).1;
            assert_eq!(now.read_text("/a").await.expect("read") + &now.read_text("/b").await.expect("read"), "one2");
        }
    }

    #[tokio::test]
    async fn lost_save_is_found_by_what_followed_on_it_after_it_was_pruned() {
        for kept in [1, 2] {
            let store = Arc::new(Lossy::default());
            let ((live, tree), (other, other_tree)) = (thread(&store), thread(&store));
            tree.write("/a", "one").await.expect("written");
            let (failing, pruned) = (store.clone(), store.clone());
            store.lose_commit(async move {
                for number in 0..2 {
                    other_tree.write("/b", number.to_string()).await.expect("written");
                    assert!(save(&other).await.expect("on top of it"));
                }
                let checkpointer = StoreCheckpointer::new(pruned);
                let options = crate::checkpoint::PruneOptions::new().with_keep_last(kept);
                checkpointer.prune(&Scope::new().with_thread("t"), &options).await.expect("pruned");
                failing.reads.store(0, Ordering::Relaxed);
            });
            let saved = save(&live).await;
            match kept {
                2 => assert!(!saved.expect("the one that followed on it tells"), "and it is gone itself"),
                // Nothing tells any more: then it is not said that it had no effect.
                _ => assert!(saved.expect_err("its end is not known").may_have_effect()),
            }
        }
    }

    #[tokio::test]
    async fn lost_restore_is_found_beneath_the_saves_of_others() {
        let store = Arc::new(Lossy::default());
        let (live, tree) = thread(&store);
        tree.write("/a", "one").await.expect("written");
        let first = live.checkpoint(PutOptions::new()).await.expect("saved").id;
        tree.write("/a", "two").await.expect("written");
        save(&live).await.expect("saved");
        let on = store.clone();
        store.lose_commit(async move {
            let (other, other_tree) = thread(&on);
            other_tree.write("/b", "on").await.expect("written");
            save(&other).await.expect("on top of it");
        });
        let reviewer = Reviewer::new(Arc::new(tree.clone()), vec![crate::path::VfsPathBuf::root()]);
        live.restore(first, PutOptions::new(), PutOptions::new(), reviewer).await.expect("it is found");
        assert_eq!(tree.read_text("/a").await.expect("restored"), "one");
        let now = thread(&store).1;
        assert_eq!(now.read_text("/a").await.expect("read") + &now.read_text("/b").await.expect("read"), "oneon");
    }

    #[tokio::test]
    async fn a_save_of_another_is_never_taken_for_the_lost_one() {
        let store = Arc::new(Lossy::default());
        let ((live, tree), (other, other_tree)) = (thread(&store), thread(&store));
        tree.write("/a", "mine").await.expect("written");
        other_tree.write("/a", "his!").await.expect("written");
        assert!(save(&other).await.expect("the first"));
        let lost = CheckpointId::new(Timestamp::now(), None);
        live.saved.lock().await.unsettled.push((lost, Version::new(1)));
        assert_eq!(save(&live).await.expect_err("the second").kind(), ErrorKind::Conflict);
        assert_eq!(thread(&store).1.read_text("/a").await.expect("as saved"), "his!");
    }

    #[tokio::test]
    async fn a_thread_saved_aside_whose_answer_was_lost_is_there() {
        let store = Arc::new(Lossy { commits: 1.into(), ..Lossy::default() });
        let (live, tree) = thread(&store);
        tree.write("/a", "one").await.expect("written");
        live.save_as("u").await.expect("it is read again and is ours");
        assert_eq!(live.save_as("u").await.expect_err("it is there").kind(), ErrorKind::AlreadyExists);
    }

    #[tokio::test]
    async fn a_state_is_put_down_saved_and_opened_again() {
        let store = Arc::new(Lossy::default());
        let (live, tree) = thread(&store);
        tree.write("/a", "one").await.expect("written");
        assert!(live.put_down().await.expect("saved"));
        assert!(live.state.read().is_none());
        assert_eq!(tree.read_text("/a").await.expect("opened again"), "one");
        tree.write("/b", "two").await.expect("written");
        store.commits.store(1, Ordering::Relaxed);
        store.reads.store(2, Ordering::Relaxed);
        assert!(live.put_down().await.is_err(), "it cannot be saved");
        assert_eq!(tree.read_text("/b").await.expect("kept"), "two");
    }

    #[tokio::test]
    async fn a_store_that_fails_to_read_is_no_empty_thread() {
        let store = Arc::new(Lossy::default());
        let (live, tree) = thread(&store);
        tree.write("/a", "one").await.expect("written");
        save(&live).await.expect("saved");
        store.reads.store(1, Ordering::Relaxed);
        let (_, again) = thread(&store);
        assert_eq!(again.exists("/a").await.expect_err("the store fails").kind(), ErrorKind::Unavailable);
        assert!(again.exists("/a").await.expect("the next call tries again"));
    }
}
