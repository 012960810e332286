//! Checkpoints as rows of a store. [`namespaces`](super::namespaces) maps the rows.
//!
//! A checkpoint is one batch: new contents and pages, its record, and the head, whose version is the precondition. Pages and contents never
//! change, so reading a checkpoint needs no lock. A [`sweep`](super::sweep) removes unused ones.
//!
//! `put` saves a state, and `fork` makes checkpoints of trees that are stored already. Both end with `commit`. `prune` removes checkpoints.

mod commit;
mod fork;
mod prune;
mod put;

pub(super) use prune::{Selected, removal};

use super::cache::PageCache;
use super::fault::{no_checkpoint, no_thread};
use super::namespaces::{PRUNED_KEY, SEPARATOR, UserNamespaces, checkpoint_key, items, named_key, namespace_of, read_head, thread_of};
use super::pages::Pages;
use super::record::Record;
use super::{
    At, Checkpoint, CheckpointId, CheckpointPage, Checkpointer, Head, ListOptions, Opened, PruneOptions, Pruned, PutOptions, Saved, Swept,
    ThreadInfo, ThreadPage,
};
use crate::backend::{Holder, Link, StateSnapshot};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold_core::clock::Clock;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::recent::Recent;
use treehold_core::scope::Scope;
use treehold_store::{Batch, Condition, Item, ScanOptions, Store, Watch};

/// The number of rows that are read or removed at once.
const ROWS: usize = 500;

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
        self.put_state(scope, state, options).await
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
        self.restore_to(scope, id, options).await
    }

    async fn fork(&self, scope: &Scope, at: At, thread: &str, options: &PutOptions) -> Result<Saved> {
        self.fork_into(scope, at, thread, options).await
    }

    async fn copy(&self, scope: &Scope, thread: &str) -> Result<u64> {
        self.copy_into(scope, thread).await
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

fn no_places() -> Arc<Mutex<Recent<TenantAndUser, Arc<UserNamespaces>>>> {
    Arc::new(Mutex::new(Recent::new(PLACES_MAX)))
}

/// Returns the holder of a checkpoint's tree.
fn holder(place: &UserNamespaces, thread: &str, id: CheckpointId) -> Holder {
    Holder { origin: place.pages.origin, name: checkpoint_key(thread, id).into() }
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
