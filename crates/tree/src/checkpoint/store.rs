//! Checkpoints as rows of a store.
//!
//! | namespace, under `{tenant}/{user}/_treehold/threads` | key | meta | value |
//! | --- | --- | --- | --- |
//! | `heads` | thread | | the record of its newest checkpoint |
//! | `checkpoints` | thread, U+0001, id in descending order | the record | |
//! | `pages` | number of the pack | | pages of trees |
//! | `bodies` | BLAKE3 hash | size | the content |
//! | `pruned` | `pruned` | | changes whenever checkpoints are removed |
//! | `pruned` | `named` | | changes whenever a fork, merge or restore names a checkpoint |
//! | `pruned` | `swept` | | the version of `pruned` that a [policy](super::retain) has swept after |
//!
//! A checkpoint is one batch: new contents and pages, its record, and the head, whose version is the precondition. Pages and contents never
//! change, so reading a checkpoint needs no lock. A [`sweep`](super::sweep) removes unused ones.

use super::cache::PageCache;
use super::fault::{busy, no_checkpoint, no_thread, saved_meanwhile, taken};
use super::pages::{Pages, Unsaved, body_key, load_foreign, pack_key};
use super::record::{self, Record, Root};
use super::sweep::{self, SweepOptions};
use super::{
    At, Checkpoint, CheckpointId, CheckpointPage, Checkpointer, Head, ListOptions, Opened, Parent, PruneOptions, Pruned, PutOptions, Saved,
    Swept, ThreadInfo, ThreadPage,
};
use crate::backend::{Holder, Link, StateSnapshot};
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold_core::backoff::LostRaces;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::recent::Recent;
use treehold_core::scope::Scope;
use treehold_core::work;
use treehold_store::{
    Batch, BatchWrite, Condition, Item, Namespace, Outbox, OutboxRows, Partition, ScanEntry, ScanOptions, Store, TakenEntries, Watch,
};

/// The prefix of the namespaces that hold threads. Nothing else may be stored beneath it.
pub const RESERVED_NAMESPACE: [&str; 2] = treehold_core::reserved::THREADS;

/// How often a checkpoint is put together. Each time hashes what changed since the last checkpoint.
const PUTS_MAX: u32 = 16;

/// The most bytes of contents in a checkpoint's batch. Larger contents are put beforehand, and the batch depends on them.
const BATCH_BYTES_MAX: usize = 32 << 20;

/// The number of rows that are read or removed at once.
const ROWS: usize = 500;

/// Separates the thread from the id in a checkpoint's key. Ids of scopes never contain it.
pub const SEPARATOR: char = '\u{1}';

/// Checkpoints kept in a [`Store`].
///
/// A missing tenant or user is stored as `-`, and an id that starts with `-` gets one more in front, so the two never collide. Contents are
/// stored once for all threads of a tenant and user, and never shared between users.
#[derive(Debug, Clone)]
pub struct StoreCheckpointer {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    /// Distinguishes the pages of this checkpointer from those of others.
    instance: u64,
    /// The number after that of the last pack, so that pack numbers differ even if the clock stands still.
    next_pack: Arc<AtomicU64>,
    cache: Arc<PageCache>,
    /// The namespaces of the most recently used tenants and users.
    places: Arc<Mutex<Recent<TenantAndUser, Arc<UserNamespaces>>>>,
    /// The most rows that are removed at once.
    pub(super) batch_rows: usize,
}

type TenantAndUser = (Option<String>, Option<String>);

/// The most tenants and users whose namespaces are kept: five short texts each.
const PLACES_MAX: usize = 2_048;

/// The namespaces of one tenant and user.
#[derive(Debug)]
pub(super) struct UserNamespaces {
    pub(super) heads: Namespace,
    pub(super) checkpoints: Namespace,
    pub(super) pruned: Namespace,
    pub(super) pages: Arc<Pages>,
}

/// The checkpoints of a thread that are to be removed.
#[derive(Debug, Default)]
pub(super) struct Selected {
    /// Their keys, newest first.
    pub(super) keys: Vec<String>,
    /// The number of the others.
    pub(super) kept: u64,
}

fn no_places() -> Arc<Mutex<Recent<TenantAndUser, Arc<UserNamespaces>>>> {
    Arc::new(Mutex::new(Recent::new(PLACES_MAX)))
}

/// Returns the batch that removes checkpoints.
pub(super) fn removal(place: &UserNamespaces, keys: &[String]) -> Batch {
    let batch = Batch::new().put(&place.pruned, PRUNED_KEY, Bytes::new());
    keys.iter().fold(batch, |batch, key| batch.delete(&place.checkpoints, key.as_str()))
}

/// The key of the row that changes whenever checkpoints are removed.
pub(super) const PRUNED_KEY: &str = "pruned";

/// The start of the keys of rows that change whenever a fork, merge or restore names a checkpoint: one row for each thread that has it.
pub(super) const NAMED: &str = "named\u{1}";

/// Returns the key of the row that changes whenever a checkpoint of a thread is named.
pub(super) fn named_key(thread: &str) -> String {
    format!("{NAMED}{thread}")
}

impl StoreCheckpointer {
    /// Creates a checkpointer on a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let instance = INSTANCES.fetch_add(1, Ordering::Relaxed);
        Self {
            store,
            clock: Clock::system(),
            instance,
            next_pack: Arc::default(),
            cache: Arc::default(),
            places: no_places(),
            batch_rows: ROWS,
        }
    }

    /// Sets the most rows that a prune or sweep removes in one commit, at least 1. Other writers get their turn in between. Default 500.
    #[must_use]
    pub fn with_batch_rows(mut self, rows: usize) -> Self {
        self.batch_rows = rows.max(1);
        self
    }

    /// Sets how many bytes of contents are kept in memory, so that a thread that was read or saved lately is read by one round trip. A
    /// content of more than a sixteenth of that is not kept. Pages take up to half as much besides. 0 keeps nothing. Default 16 MiB.
    #[must_use]
    pub fn with_cache_bytes(mut self, bytes: usize) -> Self {
        self.cache = Arc::new(PageCache::new(bytes));
        // Cached namespaces refer to the former cache.
        self.places = no_places();
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Returns the namespaces of a scope's tenant and user.
    pub(super) fn place(&self, scope: &Scope) -> Result<Arc<UserNamespaces>> {
        scope.validate()?;
        let user = (scope.tenant.clone(), scope.user.clone());
        if let Some(place) = self.places.lock().get(&user) {
            return Ok(place);
        }
        let place = Arc::new(self.new_place(scope)?);
        self.places.lock().insert(user, place.clone(), 1);
        Ok(place)
    }

    fn new_place(&self, scope: &Scope) -> Result<UserNamespaces> {
        let namespace = |kind: &str| namespace_of(scope, kind);
        let mut hasher = DefaultHasher::new();
        (self.instance, &scope.tenant, &scope.user).hash(&mut hasher);
        let pages = Arc::new(Pages {
            store: self.store.clone(),
            cache: self.cache.clone(),
            origin: hasher.finish() as u32,
            packs: namespace("pages")?,
            bodies: namespace("bodies")?,
        });
        Ok(UserNamespaces { heads: namespace("heads")?, checkpoints: namespace("checkpoints")?, pruned: namespace("pruned")?, pages })
    }

    /// Returns a checkpoint's record, and the head if the checkpoint is the head.
    pub(super) async fn find(&self, place: &UserNamespaces, thread: &str, at: At) -> Result<Option<(Record, Option<Head>)>> {
        let head = async || {
            let item = self.store.get(&place.heads, thread).await?;
            item.map(|item| read_head(&item)).transpose()
        };
        match at {
            At::Latest => Ok(head().await?.map(|(record, head)| (record, Some(head)))),
            At::Id(id) => {
                let key = checkpoint_key(thread, id);
                let Some(item) = self.store.get_many(&place.checkpoints, &[&key], false).await?.pop().flatten() else { return Ok(None) };
                let head = head().await?.map(|(_, head)| head).filter(|head| head.id == id);
                Ok(Some((Record::from_bytes(&item.meta)?, head)))
            }
        }
    }

    async fn require(&self, place: &UserNamespaces, thread: &str, at: At) -> Result<(Record, Option<Head>)> {
        self.find(place, thread, at).await?.ok_or_else(|| match at {
            At::Latest => no_thread(thread),
            At::Id(id) => no_checkpoint(thread, id),
        })
    }

    fn tree(&self, place: &UserNamespaces, thread: &str, record: &Record) -> StateSnapshot {
        let link = Link::stored_at(record.root.page(place.pages.origin));
        let holder = holder(place, thread, record.checkpoint.id);
        StateSnapshot::saved(link, Version::new(record.root.version), place.pages.clone(), holder)
    }

    /// Adds a checkpoint to a batch as the new head. The head's row keeps the creation time of the thread.
    fn put_head(mut batch: Batch, place: &UserNamespaces, thread: &str, record: &Record, created_at: Option<Timestamp>) -> Result<Batch> {
        let bytes = Bytes::from(record.to_bytes()?);
        batch = batch.put_with_meta(&place.checkpoints, checkpoint_key(thread, record.checkpoint.id), bytes.clone(), Bytes::new());
        let (namespace, key) = (place.heads.clone(), thread.to_owned());
        batch.writes.push(BatchWrite::Put { namespace, key, meta: Bytes::new(), value: bytes, time_to_live: None, created_at });
        Ok(batch)
    }

    /// Returns a number for the packs of a put, larger than all earlier ones.
    fn pack_number(&self) -> u64 {
        let now = first_pack(self.clock.now());
        let next = |last: u64| Some(last.max(now) + 1);
        self.next_pack.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_or(now, |last| last.max(now))
    }

    /// Commits a batch that ends with the put of a head. If the outcome is unknown, looks for the checkpoint: if it exists, the batch was
    /// committed, whether it is the head or others have continued from it.
    async fn commit(&self, batch: Batch, place: &UserNamespaces, thread: &str, record: Record, taken: TakenEntries) -> Result<Saved> {
        let id = record.checkpoint.id;
        match self.store.commit(batch).await {
            Ok(versions) => {
                taken.committed(Some(id));
                let version = versions.last().copied();
                let version = version.ok_or_else(|| Error::new(ErrorKind::Internal, "a batch with puts returned no version"))?;
                Ok(Saved { checkpoint: record.checkpoint, head: Some(Head { id, version }) })
            }
            Err(error) if error.may_have_effect() && error.kind() != ErrorKind::Conflict => {
                match self.confirm_in(place, thread, id).await {
                    Ok(Some(saved)) => {
                        taken.committed(Some(id));
                        Ok(saved)
                    }
                    // The outcome remains unknown, as the first error says.
                    _ => Err(error),
                }
            }
            Err(error) => {
                taken.failed(&error);
                Err(error)
            }
        }
    }

    /// Makes a checkpoint that a read shows durable.
    ///
    /// A read may show commits that are not durable yet: InnoDB without a binary log, and PostgreSQL waiting for a standby, show a commit
    /// before the disk or the standby has it. So the checkpoint's own row, which no other save depends on, is put again unchanged. That
    /// write is acknowledged only once everything before it is durable.
    async fn confirm_in(&self, place: &UserNamespaces, thread: &str, id: CheckpointId) -> Result<Option<Saved>> {
        let key = checkpoint_key(thread, id);
        let mut races = LostRaces::new();
        loop {
            let Some(item) = self.store.get_many(&place.checkpoints, &[&key], false).await?.pop().flatten() else { return Ok(None) };
            let Record { checkpoint, .. } = Record::from_bytes(&item.meta)?;
            let head = self.store.get(&place.heads, thread).await?;
            let head = head.map(|item| read_head(&item)).transpose()?.map(|(_, head)| head).filter(|head| head.id == id);
            let batch = Batch::new().expect(&place.checkpoints, &key, Condition::Version(item.version));
            match self.store.commit(batch.put_with_meta(&place.checkpoints, &*key, item.meta, Bytes::new())).await {
                Ok(_) => return Ok(Some(Saved { checkpoint, head })),
                // Another caller confirmed it, or it was pruned.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
            if !races.lost().await {
                return Err(busy(thread));
            }
        }
    }

    /// Collects the parts of a state that are not stored yet, on a separate thread because contents are hashed.
    async fn unsaved(&self, place: &UserNamespaces, state: &StateSnapshot, relied_on: Option<u32>, pack: u64) -> Result<Unsaved> {
        load_foreign(state, relied_on).await?;
        let (root, origin) = (state.root().clone(), place.pages.origin);
        work::run(work::LARGE, move |_| Unsaved::of(&root, relied_on, origin, pack)).await?
    }

    /// Puts contents before the checkpoint that holds them, and makes its batch depend on them.
    async fn put_bodies(&self, place: &UserNamespaces, unsaved: &mut Unsaved, mut batch: Batch) -> Result<Batch> {
        let bodies = std::mem::take(&mut unsaved.bodies);
        let mut early = Batch::new();
        let mut early_keys: Vec<String> = Vec::new();
        let mut size_bytes = 0;
        let mut rest = bodies.into_iter().peekable();
        while let Some((hash, content)) = rest.next() {
            size_bytes += content.len();
            let key = body_key(&hash);
            early = early.put_with_meta(&place.pages.bodies, key.clone(), record::encode(&content.len())?, content);
            early_keys.push(key);
            if size_bytes >= BATCH_BYTES_MAX || rest.peek().is_none() {
                let versions = self.store.commit(std::mem::take(&mut early)).await?;
                for (key, version) in early_keys.drain(..).zip(versions) {
                    batch = batch.expect(&place.pages.bodies, key, Condition::Version(version));
                }
                size_bytes = 0;
            }
        }
        Ok(batch)
    }

    /// Makes a checkpoint with an already stored tree the head of a thread.
    async fn point(
        &self,
        place: &UserNamespaces,
        thread: &str,
        to: &Record,
        parent: Parent,
        head: Option<Head>,
        options: &PutOptions,
    ) -> Result<Saved> {
        let source = parent.thread.clone().unwrap_or_else(|| thread.to_owned());
        let after = head.map_or(parent.id, |head| head.id.max(parent.id));
        let id = options.id_after(self.clock.now(), Some(after));
        let checkpoint = Checkpoint::new(id, Some(parent), self.clock.now(), options, (to.checkpoint.entries, to.checkpoint.size_bytes));
        let record = Record { checkpoint, root: to.root };
        let condition = head.map_or(Condition::Absent, |head| Condition::Version(head.version));
        let batch = Batch::new()
            .expect(&place.heads, thread, condition)
            // Its pages are only guaranteed to stay as long as it exists.
            .expect(&place.checkpoints, checkpoint_key(&source, to.checkpoint.id), Condition::Exists)
            .put(&place.pruned, named_key(&source), Bytes::new());
        let created_at = head.is_none().then_some(record.checkpoint.created_at);
        let taken = Outbox::of(&options.extensions).take(&self.store, &place.heads.partition());
        let batch = with_outbox(batch, &taken, id)?;
        self.commit(Self::put_head(batch, place, thread, &record, created_at)?, place, thread, record, taken).await
    }

    /// Sweeps the pages and contents of a user. Contents that are gone must not be read from the cache either.
    pub(super) async fn sweep_place(&self, place: &UserNamespaces, dry_run: bool, gone: &HashSet<String>) -> Result<Swept> {
        let options = SweepOptions { dry_run, rows: self.batch_rows, gone };
        let swept = sweep::sweep(&*self.store, place, &options).await;
        if !dry_run {
            self.cache.forget_bodies();
        }
        swept
    }

    /// Selects the checkpoints of a thread that `removes` accepts, given each and the number of newer ones. The head is never selected.
    pub(super) async fn select(
        &self,
        place: &UserNamespaces,
        thread: &str,
        head: CheckpointId,
        mut removes: impl FnMut(&Checkpoint, u64) -> bool,
    ) -> Result<Selected> {
        let (mut newer, mut selected) = (0, Selected::default());
        self.each(place, thread, |key, Record { checkpoint, .. }| {
            // A checkpoint newer than the head that was read became the head since. `removes` sees every checkpoint.
            if removes(&checkpoint, newer) && checkpoint.id < head {
                selected.keys.push(key.to_owned());
            } else {
                selected.kept += 1;
            }
            newer += 1;
            Ok(())
        })
        .await?;
        Ok(selected)
    }

    /// Calls `each` with every checkpoint of a thread, newest first.
    async fn each(&self, place: &UserNamespaces, thread: &str, mut each: impl FnMut(&str, Record) -> Result<()>) -> Result<()> {
        let mut options = ScanOptions::new().with_prefix(format!("{thread}{SEPARATOR}"));
        loop {
            let page = self.store.scan(&place.checkpoints, options.clone()).await?;
            for item in items(page.entries) {
                each(&item.key, Record::from_bytes(&item.meta)?)?;
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

#[async_trait]
impl Checkpointer for StoreCheckpointer {
    async fn watch(&self, scope: &Scope) -> Result<Option<Watch>> {
        self.store.watch(&self.place(scope)?.heads).await.map(Some)
    }

    fn store(&self) -> Option<&Arc<dyn Store>> {
        Some(&self.store)
    }

    async fn put(&self, scope: &Scope, state: &StateSnapshot, options: &PutOptions) -> Result<Saved> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        record::check_notes(options)?;
        let totals = state.totals().await?;
        let mut pack = self.pack_number();
        // Whether the holder of the state's stored pages is gone.
        let mut is_unheld = false;
        let outbox = Outbox::of(&options.extensions);
        for attempt in 0..PUTS_MAX {
            let id = options.id_after(self.clock.now(), options.head.map(|head| head.id));
            let parent = options.head.map(|head| Parent { thread: None, id: head.id, restored: None });
            // Stored parts are relied on only while a checkpoint holds them, and are written again otherwise.
            let known = state.known();
            let newest = state.version().number();
            let held = known.as_ref().filter(|(version, holder)| *version <= newest && holder.origin == place.pages.origin && !is_unheld);
            let held = held.map(|(_, holder)| holder);
            let mut unsaved = self.unsaved(&place, state, held.map(|holder| holder.origin), pack).await?;
            self.next_pack.fetch_max(pack + unsaved.packs.len() as u64, Ordering::Relaxed);
            if state.known() != known {
                // Another put of the same state marked its pages meanwhile.
                continue;
            }
            let root = unsaved.root.ok_or_else(|| Error::new(ErrorKind::Internal, "a tree without a root was saved"))?;
            let root = Root { pack: root.pack, index: root.index, version: state.version().number() };
            let record = Record { checkpoint: Checkpoint::new(id, parent, self.clock.now(), options, totals), root };
            let condition = options.head.map_or(Condition::Absent, |head| Condition::Version(head.version));
            let mut batch = Batch::new().expect(&place.heads, thread, condition);
            for (number, _) in &unsaved.packs {
                batch = batch.expect(&place.pages.packs, pack_key(*number), Condition::Absent);
            }
            let packs_end = 1 + unsaved.packs.len();
            // The parent exists if the first condition holds.
            let head_key = options.head.map(|head| checkpoint_key(thread, head.id));
            let holder_key = held.map(|holder| holder.name.as_ref()).filter(|name| Some(*name) != head_key.as_deref());
            let holder_at = holder_key.map(|key| {
                batch = std::mem::take(&mut batch).expect(&place.checkpoints, key, Condition::Exists);
                packs_end
            });
            let merged_at = packs_end + usize::from(holder_at.is_some());
            if let Some(merged) = &options.merged {
                // Content taken from it is only guaranteed to stay as long as it exists.
                batch = batch.expect(&place.checkpoints, checkpoint_key(&merged.thread, merged.id), Condition::Exists);
                batch = batch.put(&place.pruned, named_key(&merged.thread), Bytes::new());
            }
            if unsaved.body_bytes() > BATCH_BYTES_MAX {
                batch = self.put_bodies(&place, &mut unsaved, batch).await?;
            }
            for (hash, content) in &unsaved.bodies {
                batch = batch.put_with_meta(&place.pages.bodies, body_key(hash), record::encode(&content.len())?, content.clone());
            }
            for (number, bytes) in &mut unsaved.packs {
                batch = batch.put(&place.pages.packs, pack_key(*number), std::mem::take(bytes));
            }
            let created_at = options.head.is_none().then_some(record.checkpoint.created_at);
            let taken = outbox.take(&self.store, &place.heads.partition());
            let batch = with_outbox(batch, &taken, id)?;
            match self.commit(Self::put_head(batch, &place, thread, &record, created_at)?, &place, thread, record, taken).await {
                Ok(saved) => {
                    if unsaved.can_be_marked() {
                        state.settle(&known, holder(&place, thread, id), || unsaved.mark_saved(&self.cache));
                    }
                    return Ok(saved);
                }
                Err(error) if error.kind() == ErrorKind::Conflict => match error.change() {
                    Some(0) => return Err(saved_meanwhile(thread, error.current_version())),
                    // Another checkpointer of this store took the number.
                    Some(index) if index < packs_end => pack += 7_919 << attempt,
                    index if index == holder_at && index.is_some() => is_unheld = true,
                    Some(index) if index == merged_at && options.merged.is_some() => {
                        return Err(options.merged.as_ref().map_or(error, |merged| no_checkpoint(&merged.thread, merged.id)));
                    }
                    // A sweep removed a content that was put before its checkpoint.
                    _ => {}
                },
                Err(error) => return Err(error),
            }
        }
        Err(busy(thread))
    }

    async fn get(&self, scope: &Scope, at: At) -> Result<Option<Saved>> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        let found = self.find(&place, thread, at).await?;
        Ok(found.map(|(record, head)| Saved { checkpoint: record.checkpoint, head }))
    }

    async fn confirm(&self, scope: &Scope, id: CheckpointId) -> Result<Option<Saved>> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        self.confirm_in(&place, thread, id).await
    }

    async fn open(&self, scope: &Scope, at: At) -> Result<Option<Opened>> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        let found = self.find(&place, thread, at).await?;
        Ok(found.map(|(record, head)| Opened { state: self.tree(&place, thread, &record), checkpoint: record.checkpoint, head }))
    }

    async fn list(&self, scope: &Scope, options: &ListOptions) -> Result<CheckpointPage> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        let mut scan = ScanOptions::new().with_prefix(format!("{thread}{SEPARATOR}")).with_limit(options.limit.saturating_add(1).min(ROWS));
        // Keys are ids in descending order, and an id starts with its time, so newer checkpoints are skipped by seeking.
        let newest = options.start_after.into_iter().chain(options.until.map(CheckpointId::behind)).min();
        scan.start_after = newest.map(|id| checkpoint_key(thread, id));
        let mut checkpoints: Vec<Checkpoint> = Vec::new();
        loop {
            let page = self.store.scan(&place.checkpoints, scan.clone()).await?;
            for item in items(page.entries) {
                let checkpoint = Record::from_bytes(&item.meta)?.checkpoint;
                // The id holds the time in milliseconds.
                if options.since.is_some_and(|since| checkpoint.id < CheckpointId::at_least(since)) {
                    return Ok(CheckpointPage { checkpoints, next: None });
                }
                if options.selects(&checkpoint) {
                    if checkpoints.len() == options.limit {
                        let next = checkpoints.last().map(|last| last.id).or(options.start_after).unwrap_or(CheckpointId::MAX);
                        return Ok(CheckpointPage { checkpoints, next: Some(next) });
                    }
                    checkpoints.push(checkpoint);
                }
            }
            match page.next {
                Some(next) => scan.start_after = Some(next),
                None => return Ok(CheckpointPage { checkpoints, next: None }),
            }
        }
    }

    async fn restore(&self, scope: &Scope, id: CheckpointId, options: &PutOptions) -> Result<Saved> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        record::check_notes(options)?;
        let mut races = LostRaces::new();
        loop {
            let (record, _) = self.require(&place, thread, At::Id(id)).await?;
            let (_, head) = self.require(&place, thread, At::Latest).await?;
            let head = head.ok_or_else(|| no_thread(thread))?;
            if options.head.is_some_and(|expected| expected != head) {
                return Err(saved_meanwhile(thread, Some(head.version)));
            }
            let parent = Parent { thread: None, id: head.id, restored: Some(id) };
            match self.point(&place, thread, &record, parent, Some(head), options).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                ended => return ended,
            }
            if !races.lost().await {
                return Err(busy(thread));
            }
        }
    }

    async fn fork(&self, scope: &Scope, at: At, thread: &str, options: &PutOptions) -> Result<Saved> {
        let (place, source) = (self.place(scope)?, thread_of(scope)?);
        self.place(&scope.clone().with_thread(thread))?;
        record::check_notes(options)?;
        let mut races = LostRaces::new();
        loop {
            let (record, _) = self.require(&place, source, at).await?;
            let parent = Parent { thread: Some(source.to_owned()), id: record.checkpoint.id, restored: None };
            match self.point(&place, thread, &record, parent, None, options).await {
                Err(error) if error.kind() == ErrorKind::Conflict && error.change() == Some(0) => return Err(taken(thread)),
                // It was pruned since it was found. The latest is a different one by now; an id has no other.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                ended => return ended,
            }
            if !races.lost().await {
                return Err(busy(source));
            }
        }
    }

    async fn copy(&self, scope: &Scope, thread: &str) -> Result<u64> {
        let (place, source) = (self.place(scope)?, thread_of(scope)?);
        self.place(&scope.clone().with_thread(thread))?;
        let mut races = LostRaces::new();
        loop {
            let pruned =
                self.store.get(&place.pruned, PRUNED_KEY).await?.map_or(Condition::Absent, |item| Condition::Version(item.version));
            let Some(head) = self.store.get(&place.heads, source).await? else { return Err(no_thread(source)) };
            // Unless checkpoints are removed meanwhile, everything being copied stays.
            let mut batch = Batch::new().expect(&place.heads, thread, Condition::Absent).expect(&place.pruned, PRUNED_KEY, pruned);
            let newest = read_head(&head)?.1.id;
            let mut count = 0;
            self.each(&place, source, |_, record| {
                if record.checkpoint.id <= newest {
                    let key = checkpoint_key(thread, record.checkpoint.id);
                    batch = std::mem::take(&mut batch).put_with_meta(&place.checkpoints, key, record.to_bytes()?, Bytes::new());
                    count += 1;
                }
                Ok(())
            })
            .await?;
            let (namespace, key, created_at) = (place.heads.clone(), thread.to_owned(), Some(head.created_at));
            batch.writes.push(BatchWrite::Put { namespace, key, meta: Bytes::new(), value: head.value, time_to_live: None, created_at });
            match self.store.commit(batch).await {
                Ok(_) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::Conflict && error.change() == Some(0) => return Err(taken(thread)),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
            if !races.lost().await {
                return Err(busy(source));
            }
        }
    }

    async fn delete(&self, scope: &Scope) -> Result<()> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        let batch = Batch::new()
            .expect(&place.heads, thread, Condition::Exists)
            .delete(&place.heads, thread)
            .delete_prefix(&place.checkpoints, format!("{thread}{SEPARATOR}"))
            .delete(&place.pruned, named_key(thread))
            .put(&place.pruned, PRUNED_KEY, Bytes::new());
        self.store.commit(batch).await.map(drop).map_err(|error| match error.kind() {
            ErrorKind::Conflict => no_thread(thread),
            _ => error,
        })
    }

    async fn prune(&self, scope: &Scope, options: &PruneOptions) -> Result<Pruned> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        let Some((_, head)) = self.find(&place, thread, At::Latest).await? else { return Err(no_thread(thread)) };
        let head = head.ok_or_else(|| no_thread(thread))?.id;
        let now = self.clock.now();
        let selected = self.select(&place, thread, head, |checkpoint, newer| options.removes(checkpoint, newer, now)).await?;
        if !options.dry_run {
            for some in selected.keys.rchunks(self.batch_rows) {
                self.store.commit(removal(&place, some)).await?;
            }
        }
        Ok(Pruned { removed: selected.keys.len() as u64, kept: selected.kept })
    }

    async fn sweep(&self, scope: &Scope, dry_run: bool) -> Result<Swept> {
        let place = self.place(scope)?;
        self.sweep_place(&place, dry_run, &HashSet::new()).await
    }

    async fn threads(&self, scope: &Scope, start_after: Option<&str>, limit: usize) -> Result<ThreadPage> {
        let place = self.place(scope)?;
        let mut options = ScanOptions::new().with_limit(limit).with_values(true);
        options.start_after = start_after.map(str::to_owned);
        let scan = self.store.scan(&place.heads, options).await?;
        let threads: Vec<ThreadInfo> = items(scan.entries).map(|item| info(&item)).collect::<Result<_>>()?;
        Ok(ThreadPage { threads, next: scan.next })
    }
}

impl fmt::Display for StoreCheckpointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoints({})", self.store)
    }
}

/// Adds the rows of an outbox to the batch of a checkpoint.
fn with_outbox(mut batch: Batch, taken: &TakenEntries, id: CheckpointId) -> Result<Batch> {
    // A state's files have versions of their own, which the entries know.
    let mut rows = OutboxRows::of_checkpoint(id);
    taken.write(&mut rows)?;
    batch.writes.extend(rows.into_writes());
    Ok(batch)
}

/// Returns the number of a first pack. Numbers are never reused, even if the clock goes back, because they identify pages.
fn first_pack(now: jiff::Timestamp) -> u64 {
    let microseconds = u64::try_from(now.as_microsecond()).unwrap_or(0);
    let random = CheckpointId::new(now, None).to_bytes();
    (microseconds << 10) | u64::from(u16::from_be_bytes([random[14], random[15]]) & 0x3FF)
}

pub(super) fn items(entries: Vec<ScanEntry>) -> impl Iterator<Item = Item> {
    entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item) } else { None })
}

/// Returns the holder of a checkpoint's tree.
fn holder(place: &UserNamespaces, thread: &str, id: CheckpointId) -> Holder {
    Holder { origin: place.pages.origin, name: checkpoint_key(thread, id).into() }
}

fn checkpoint_key(thread: &str, id: CheckpointId) -> String {
    format!("{thread}{SEPARATOR}{}", id.descending())
}

/// Returns the partition of a scope's tenant and user, which holds all rows of their threads.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid scope.
pub fn partition_of(scope: &Scope) -> Result<Partition> {
    scope.validate()?;
    Partition::new([component(scope.tenant.as_deref()), component(scope.user.as_deref())])
}

/// Returns the namespace of a kind of row for a scope's tenant and user.
///
/// # Errors
/// As [`partition_of`].
pub fn namespace_of(scope: &Scope, kind: &str) -> Result<Namespace> {
    let [root, threads] = RESERVED_NAMESPACE;
    partition_of(scope)?.namespace([root, threads, kind])
}

/// Returns the thread of a scope.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for a scope without one.
pub fn thread_of(scope: &Scope) -> Result<&str> {
    scope.thread.as_deref().ok_or_else(|| Error::invalid_argument("the scope names no thread; set one"))
}

fn component(id: Option<&str>) -> String {
    match id {
        None => "-".to_owned(),
        Some(id) if id.starts_with('-') => format!("-{id}"),
        Some(id) => id.to_owned(),
    }
}

/// Reads the row of a head.
pub(super) fn read_head(item: &Item) -> Result<(Record, Head)> {
    let record = Record::from_bytes(&item.value)?;
    let head = Head { id: record.checkpoint.id, version: item.version };
    Ok((record, head))
}

fn info(item: &Item) -> Result<ThreadInfo> {
    let (Record { checkpoint, .. }, head) = read_head(item)?;
    Ok(ThreadInfo {
        thread: item.key.clone(),
        head: head.id,
        entries: checkpoint.entries,
        size_bytes: checkpoint.size_bytes,
        created_at: item.created_at,
        saved_at: checkpoint.created_at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_store::MemoryStore;

    #[test]
    fn namespaces_are_those_of_the_scope_whatever_was_asked_before() {
        let checkpointer = StoreCheckpointer::new(Arc::new(MemoryStore::new()));
        let ids = [None, Some("-"), Some("--"), Some("ada"), Some("bob")].map(|id| id.map(str::to_owned));
        let mut scopes = Vec::new();
        for (tenant, user) in ids.iter().flat_map(|tenant| ids.iter().map(move |user| (tenant, user))) {
            let mut scope = Scope::new().with_thread("monday");
            (scope.tenant, scope.user) = (tenant.clone(), user.clone());
            scopes.push(scope);
        }
        for scope in scopes.iter().chain(&scopes) {
            let (found, fresh) = (checkpointer.place(scope).expect("valid"), checkpointer.new_place(scope).expect("valid"));
            assert_eq!((&found.heads, &found.checkpoints, &found.pruned), (&fresh.heads, &fresh.checkpoints, &fresh.pruned), "{scope:?}");
            assert_eq!((&found.pages.packs, &found.pages.bodies), (&fresh.pages.packs, &fresh.pages.bodies), "{scope:?}");
            assert_eq!(
                (&found.heads, found.pages.origin),
                (&namespace_of(scope, "heads").expect("valid"), fresh.pages.origin),
                "{scope:?}"
            );
            let invalid = checkpointer.place(&scope.clone().with_thread("a\nb")).expect_err("an invalid thread");
            assert_eq!(invalid.kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn checkpointer_with_another_cache_reads_through_its_own() {
        let scope = Scope::new().with_thread("monday");
        let one = StoreCheckpointer::new(Arc::new(MemoryStore::new()));
        one.place(&scope).expect("valid");
        let other = one.clone().with_cache_bytes(0);
        for checkpointer in [one, other] {
            assert!(Arc::ptr_eq(&checkpointer.place(&scope).expect("valid").pages.cache, &checkpointer.cache));
        }
    }
}
