//! Pruning by a policy, which runs by itself and therefore removes less than [`Checkpointer::prune`] on request.
//!
//! A policy never removes what somebody may still need:
//!
//! - the head of a thread and the checkpoint before it, to which an undo returns; after a restore also the restored checkpoint and the one
//!   before that;
//! - the checkpoints between which forks and merges run, as long as both threads exist, and restores in a thread that has merges, since one
//!   of them may have undone a merge: they decide from where later merges begin;
//! - checkpoints that were the head until a short time ago, because a call may still read them;
//! - checkpoints that history routes name, and for a name that counts back, such as `~3`, all newer ones, because it counts them.
//!
//! The references between threads are collected once for all threads of a user ([`NamedCheckpoints`]). Forks, merges and restores change a
//! row of the thread whose checkpoint they name, and a removal depends on the version that this row had before the references were
//! collected. So no checkpoint is removed that was named meanwhile.

#[cfg(doc)]
use super::Checkpointer;
use super::fault::no_thread;
use super::name::depends_on;
use super::namespaces::{NAMED, PRUNED_KEY, items, named_key, namespace_of, thread_of};
use super::record::Record;
use super::store::{Selected, StoreCheckpointer, removal};
use super::{At, Checkpoint, CheckpointId, PruneOptions, Pruned, SEPARATOR, Swept};
use jiff::Timestamp;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_core::scope::Scope;
use treehold_store::{AllNamespaces, Batch, Condition, Namespace, ScanOptions, Store};

/// The key of the row with the version of the `pruned` row after which was swept.
const SWEPT_KEY: &str = "swept";

/// The checkpoints of a user that forks and merges name, as of one moment.
#[derive(Debug, Clone, Default)]
pub struct NamedCheckpoints {
    /// By thread, the version of the row that changes whenever one of its checkpoints is named.
    versions: HashMap<String, Version>,
    /// The threads that exist.
    threads: HashSet<String>,
    /// The threads into which something was merged.
    merging: HashSet<String>,
    /// The named checkpoints by thread.
    named: HashMap<String, HashSet<CheckpointId>>,
}

impl NamedCheckpoints {
    /// Returns whether a fork or merge needs a checkpoint: one that starts a fork of an existing thread, that merged an existing thread, that
    /// another names, or that may say that a merge was undone.
    fn needs(&self, thread: &str, checkpoint: &Checkpoint) -> bool {
        let source = checkpoint.parent.as_ref().and_then(|parent| parent.thread.as_ref());
        let merged = checkpoint.merged.as_ref().map(|merged| &merged.thread);
        let is_restore = checkpoint.parent.as_ref().is_some_and(|parent| parent.restored.is_some());
        source.into_iter().chain(merged).any(|other| self.threads.contains(other))
            || (is_restore && self.merging.contains(thread))
            || self.named.get(thread).is_some_and(|ids| ids.contains(&checkpoint.id))
    }

    fn add(&mut self, key: &str, checkpoint: Checkpoint) {
        if let Some(parent) = checkpoint.parent
            && let Some(thread) = parent.thread
        {
            self.named.entry(thread).or_default().insert(parent.id);
        }
        if let Some(merged) = checkpoint.merged {
            self.merging.extend(key.split_once(SEPARATOR).map(|(thread, _)| thread.to_owned()));
            self.named.entry(merged.thread).or_default().insert(merged.id);
        }
    }
}

/// What a policy keeps of a thread, besides what is always kept.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RetainOptions {
    /// The rules.
    pub prune: PruneOptions,
    /// Keeps a checkpoint for this long after another one followed it.
    pub grace: Duration,
    /// Keeps checkpoints that these names may mean, as [`find_checkpoint`](super::find_checkpoint) reads them, and those that they count. So
    /// a name means the same before and after.
    pub names: Vec<String>,
}

impl RetainOptions {
    /// Removes what the rules remove.
    pub fn new(prune: PruneOptions) -> Self {
        Self { prune, grace: Duration::ZERO, names: Vec::new() }
    }

    /// Keeps a checkpoint for this long after another one followed it.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Keeps what these names mean ([`RetainOptions::names`]).
    #[must_use]
    pub fn with_names(mut self, names: Vec<String>) -> Self {
        self.names = names;
        self
    }
}

/// What a policy removed from a thread.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Retained {
    /// The counts.
    pub pruned: Pruned,
    /// How many of the kept ones stay only for now: they were the head until a short time ago, or a fork, merge or restore was made from the
    /// thread since the references were collected.
    pub deferred: u64,
    /// After a dry run, what a following [`StoreCheckpointer::sweep_after`] counts as removed.
    pub gone: Vec<String>,
}

/// Decides about the checkpoints of one thread, newest first.
struct Retention<'r> {
    thread: &'r str,
    options: &'r RetainOptions,
    named: &'r NamedCheckpoints,
    now: Timestamp,
    /// The checkpoints that an undo or a look at a restored one needs.
    undo: HashSet<CheckpointId>,
    /// The checkpoint that the head restored.
    restored: Option<CheckpointId>,
    /// When the next newer checkpoint was created.
    followed_at: Option<Timestamp>,
    deferred: u64,
}

impl<'r> Retention<'r> {
    fn new(thread: &'r str, head: &Checkpoint, options: &'r RetainOptions, named: &'r NamedCheckpoints, now: Timestamp) -> Self {
        let restored = head.parent.as_ref().and_then(|parent| parent.restored);
        let undo = head.parent.iter().map(|parent| parent.id).chain(restored).collect();
        Self { thread, options, named, now, undo, restored, followed_at: None, deferred: 0 }
    }

    fn removes(&mut self, checkpoint: &Checkpoint, newer: u64) -> bool {
        if self.restored == Some(checkpoint.id) {
            self.undo.extend(checkpoint.parent.as_ref().map(|parent| parent.id));
        }
        let followed_at = self.followed_at.replace(checkpoint.created_at);
        let is_removed = self.options.prune.removes(checkpoint, newer, self.now)
            && !self.undo.contains(&checkpoint.id)
            && !self.named.needs(self.thread, checkpoint)
            && !self.options.names.iter().any(|name| depends_on(name, checkpoint, newer));
        // The newest one is followed by none.
        let is_read = followed_at.is_none_or(|at| self.now.duration_since(at).as_millis() < self.options.grace.as_millis() as i128);
        self.deferred += u64::from(is_removed && is_read && followed_at.is_some());
        is_removed && !is_read
    }
}

impl StoreCheckpointer {
    /// Collects what the forks and merges of the scope's tenant and user name. An unreadable checkpoint names nothing.
    ///
    /// Cost: reads the records of all checkpoints of the user.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn named(&self, scope: &Scope) -> Result<NamedCheckpoints> {
        let place = self.place(scope)?;
        let mut named = NamedCheckpoints::default();
        // The versions come first: whatever is named later changes them.
        for (namespace, prefix) in [(&place.pruned, NAMED), (&place.heads, ""), (&place.checkpoints, "")] {
            let mut options = ScanOptions::new().with_prefix(prefix);
            loop {
                let page = self.store.scan(namespace, options.clone()).await?;
                for item in items(page.entries) {
                    if let Some(thread) = item.key.strip_prefix(prefix).filter(|_| !prefix.is_empty()) {
                        named.versions.insert(thread.to_owned(), item.version);
                    } else if namespace == &place.heads {
                        named.threads.insert(item.key);
                    } else if let Ok(record) = Record::from_bytes(&item.meta) {
                        named.add(&item.key, record.checkpoint);
                    }
                }
                match page.next {
                    Some(next) => options.start_after = Some(next),
                    None => break,
                }
            }
        }
        Ok(named)
    }

    /// Lists the threads of the scope's tenant and user by id alone, so that an unreadable one hides no other. Returns up to `limit` ids after
    /// `start_after`, and where the next page begins.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn thread_ids(&self, scope: &Scope, start_after: Option<&str>, limit: usize) -> Result<(Vec<String>, Option<String>)> {
        let mut options = ScanOptions::new().with_limit(limit);
        options.start_after = start_after.map(str::to_owned);
        let page = self.store.scan(&self.place(scope)?.heads, options).await?;
        Ok((items(page.entries).map(|item| item.key).collect(), page.next))
    }

    /// Removes what a policy does not keep of a thread, oldest first. `named` was collected for the same user before.
    ///
    /// Every commit removes at most as many checkpoints as [`StoreCheckpointer::with_batch_rows`] says, and only while no fork, merge or
    /// restore of the thread has been made since `named` was collected. After one, the rest is deferred.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when the thread does not exist, [`Corrupt`](ErrorKind::Corrupt) if a checkpoint is unreadable,
    /// before anything is removed, and those of the store.
    pub async fn retain(&self, scope: &Scope, options: &RetainOptions, named: &NamedCheckpoints) -> Result<Retained> {
        let (place, thread) = (self.place(scope)?, thread_of(scope)?);
        let Some((record, _)) = self.find(&place, thread, At::Latest).await? else { return Err(no_thread(thread)) };
        let head = record.checkpoint;
        let mut retention = Retention::new(thread, &head, options, named, self.clock.now());
        let selected = self.select(&place, thread, head.id, |checkpoint, newer| retention.removes(checkpoint, newer)).await?;
        let Selected { keys, kept } = selected;
        let deferred = retention.deferred;
        let mut pruned = Pruned { removed: keys.len() as u64, kept };
        if options.prune.dry_run {
            return Ok(Retained { pruned, deferred, gone: keys });
        }
        pruned.removed = 0;
        let condition = named.versions.get(thread).map_or(Condition::Absent, |version| Condition::Version(*version));
        for some in keys.rchunks(self.batch_rows) {
            let mut batch = Batch::new().expect(&place.pruned, named_key(thread), condition.clone());
            batch.writes = removal(&place, some).writes;
            match self.store.commit(batch).await {
                Ok(_) => pruned.removed += some.len() as u64,
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    let left = keys.len() as u64 - pruned.removed;
                    pruned.kept += left;
                    return Ok(Retained { pruned, deferred: deferred + left, gone: Vec::new() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Retained { pruned, deferred, gone: Vec::new() })
    }

    /// Sweeps ([`Checkpointer::sweep`]) if checkpoints of the scope's tenant and user were removed since the last time, by this or another
    /// process, or if there are some that count as `gone`. Returns `None` if there is nothing to sweep.
    ///
    /// # Errors
    /// Those of [`Checkpointer::sweep`].
    pub async fn sweep_after(&self, scope: &Scope, dry_run: bool, gone: &HashSet<String>) -> Result<Option<Swept>> {
        let place = self.place(scope)?;
        let mut marks = self.store.get_many(&place.pruned, &[PRUNED_KEY, SWEPT_KEY], true).await?.into_iter();
        let (pruned, swept) = (marks.next().flatten(), marks.next().flatten());
        let is_due = pruned.as_ref().is_some_and(|pruned| swept.is_none_or(|swept| swept.value != pruned.version.number().to_string()));
        if !is_due && gone.is_empty() {
            return Ok(None);
        }
        let swept = self.sweep_place(&place, dry_run, gone).await?;
        if let Some(pruned) = pruned.filter(|_| !dry_run) {
            self.store.commit(Batch::new().put(&place.pruned, SWEPT_KEY, pruned.version.number().to_string())).await?;
        }
        Ok(Some(swept))
    }
}

/// Lists the tenant and user of everyone who has rows of some kinds in a store, each once, page by page.
#[derive(Debug)]
pub struct Owners<'s> {
    namespaces: AllNamespaces<'s>,
    kinds: &'s [&'s str],
    /// The owner found last. The namespaces of a partition follow each other.
    last: Option<Scope>,
}

impl<'s> Owners<'s> {
    /// Lists the owners of rows of these kinds.
    pub fn new(store: &'s dyn Store, kinds: &'s [&'s str]) -> Self {
        Self { namespaces: AllNamespaces::new(store), kinds, last: None }
    }

    /// Returns whether no more owners are listed. After an error that says whether it was about the whole store.
    pub fn is_over(&self) -> bool {
        self.namespaces.is_over()
    }

    /// Returns those of the next page of namespaces, possibly none; `None` after the last page.
    ///
    /// Cost: one page of the namespaces of the store, which are all listed in the end.
    ///
    /// # Errors
    /// As [`AllNamespaces::next_page`]: if only one partition failed, the next call goes on after it.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Scope>>> {
        let Some(namespaces) = self.namespaces.next_page().await? else { return Ok(None) };
        let mut owners = Vec::new();
        for namespace in namespaces {
            let Some(owner) = self.owner(&namespace) else { continue };
            if self.last.as_ref() != Some(&owner) {
                owners.push(owner.clone());
                self.last = Some(owner);
            }
        }
        Ok(Some(owners))
    }

    /// Returns the owner of a namespace if it is of one of the kinds.
    fn owner(&self, namespace: &Namespace) -> Option<Scope> {
        let partition = namespace.partition();
        let ids: Vec<_> = partition.components().collect();
        let [tenant, user] = &ids[..] else { return None };
        let mut scope = Scope::new();
        (scope.tenant, scope.user) = (id_of(tenant), id_of(user));
        // Only what leads back to the namespace is an owner.
        let is_own = self.kinds.iter().any(|kind| namespace_of(&scope, kind).is_ok_and(|own| own == *namespace));
        is_own.then_some(scope)
    }
}

/// Returns the id of a component of a namespace.
fn id_of(component: &str) -> Option<String> {
    match component.strip_prefix('-') {
        Some("") => None,
        Some(id) => Some(id.to_owned()),
        None => Some(component.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{BackendExt, StateBackend};
    use crate::checkpoint::{Checkpointer, Head, ListOptions, MergeOptions, PutOptions, ThreadCheckpoint, find_checkpoint, merge};
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use treehold_core::clock::Clock;
    use treehold_store::{MemoryStore, StoreExt};

    const HOUR: Duration = Duration::from_secs(3_600);

    /// One step of a history. Each is an hour after the one before.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Save,
        Label,
        /// Restores a checkpoint of the thread by its number.
        Restore(usize),
        /// Forks another thread from a checkpoint.
        Fork(usize),
        /// Saves in the other thread.
        SaveOther,
        /// Merges the newest checkpoint of the other thread.
        Merge,
        /// Removes the other thread.
        RemoveOther,
    }

    /// A merge that was undone, so that a later one begins at the fork again.
    const UNDONE_MERGE: [Step; 11] = [
        Step::Save,
        Step::Save,
        Step::Fork(1),
        Step::SaveOther,
        Step::Merge,
        Step::Restore(1),
        Step::Save,
        Step::Save,
        Step::SaveOther,
        Step::Save,
        Step::Save,
    ];

    struct World {
        checkpointer: StoreCheckpointer,
        hour: Arc<AtomicI64>,
        saved: u32,
    }

    fn thread() -> Scope {
        Scope::new().with_user("ada").with_thread("main")
    }

    fn other() -> Scope {
        Scope::new().with_user("ada").with_thread("other")
    }

    impl World {
        fn new(store: MemoryStore) -> Self {
            let hour = Arc::new(AtomicI64::new(0));
            let now = hour.clone();
            let clock = Clock::from_fn(move || Timestamp::from_second(now.load(Ordering::Relaxed) * 3_600).expect("a time"));
            Self { checkpointer: StoreCheckpointer::new(Arc::new(store)).with_clock(clock).with_batch_rows(2), hour, saved: 0 }
        }

        async fn all(&self, scope: &Scope) -> Vec<Checkpoint> {
            self.checkpointer.list(scope, &ListOptions::new().with_limit(100)).await.expect("listed").checkpoints
        }

        async fn head(&self, scope: &Scope) -> Option<Head> {
            self.checkpointer.get(scope, At::Latest).await.expect("read").and_then(|saved| saved.head)
        }

        async fn save(&mut self, scope: &Scope, options: PutOptions) {
            self.saved += 1;
            let state = match self.checkpointer.open(scope, At::Latest).await.expect("read") {
                Some(opened) => StateBackend::from_snapshot(&opened.state),
                None => StateBackend::new(),
            };
            state.write("/a", format!("content {}", self.saved)).await.expect("written");
            let head = self.head(scope).await;
            self.checkpointer.put(scope, &state.snapshot(), &options.with_head(head)).await.expect("saved");
        }

        async fn play(&mut self, steps: &[Step]) {
            for step in steps {
                self.hour.fetch_add(1, Ordering::Relaxed);
                let id = async |number: usize| self.all(&thread()).await.iter().rev().nth(number).expect("a checkpoint").id;
                match step {
                    Step::Save => self.save(&thread(), PutOptions::new()).await,
                    Step::Label => self.save(&thread(), PutOptions::new().with_label("named")).await,
                    Step::SaveOther => self.save(&other(), PutOptions::new()).await,
                    Step::Restore(number) => {
                        let id = id(*number).await;
                        self.checkpointer.restore(&thread(), id, &PutOptions::new()).await.map(drop).expect("restored");
                    }
                    Step::Fork(number) => {
                        let id = id(*number).await;
                        self.checkpointer.fork(&thread(), id.into(), "other", &PutOptions::new()).await.map(drop).expect("forked");
                    }
                    Step::Merge => {
                        let merged = ThreadCheckpoint { thread: "other".to_owned(), id: self.head(&other()).await.expect("a head").id };
                        self.save(&thread(), PutOptions::new().with_merged(merged)).await;
                    }
                    Step::RemoveOther => self.checkpointer.delete(&other()).await.expect("removed"),
                }
            }
            self.hour.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The model: which checkpoints of a thread stay, by rules that each name some of them.
    fn model(all: &[Checkpoint], other: &[Checkpoint], options: &RetainOptions, now: Timestamp) -> BTreeSet<CheckpointId> {
        let age = |checkpoint: &Checkpoint| Duration::try_from(now.duration_since(checkpoint.created_at)).expect("in the past");
        let (head, rules) = (&all[0], &options.prune);
        let mut stay = BTreeSet::from([head.id]);
        // What undo needs.
        let restored = head.parent.as_ref().and_then(|parent| parent.restored);
        stay.extend(head.parent.as_ref().map(|parent| parent.id).into_iter().chain(restored));
        stay.extend(all.iter().filter(|one| Some(one.id) == restored).filter_map(|one| one.parent.as_ref()).map(|parent| parent.id));
        // What the other thread was forked from, and what was merged.
        stay.extend(other.iter().filter_map(|one| one.parent.as_ref()).filter(|parent| parent.thread.is_some()).map(|parent| parent.id));
        stay.extend(all.iter().filter(|one| one.merged.is_some() && !other.is_empty()).map(|one| one.id));
        let is_restore = |one: &&Checkpoint| one.parent.as_ref().is_some_and(|parent| parent.restored.is_some());
        stay.extend(all.iter().filter(|one| is_restore(one) && all.iter().any(|one| one.merged.is_some())).map(|one| one.id));
        // What the policy keeps.
        stay.extend(all.iter().take(rules.keep_last.unwrap_or(0) as usize).map(|one| one.id));
        stay.extend(all.iter().filter(|one| rules.older_than.is_some_and(|old| age(one) <= old)).map(|one| one.id));
        stay.extend(all.iter().filter(|one| rules.keep_labelled && one.label.is_some()).map(|one| one.id));
        // What was the head a short time ago.
        stay.extend(all.windows(2).filter(|pair| age(&pair[0]) < options.grace).map(|pair| pair[1].id));
        stay.extend(all.iter().filter(|one| one.label.is_some() && options.names.contains(&"named".to_owned())).map(|one| one.id));
        stay.retain(|id| all.iter().any(|one| one.id == *id));
        stay
    }

    #[tokio::test]
    async fn what_a_policy_keeps_equals_the_model_for_every_combination_of_rules_and_histories() {
        use Step::*;
        let histories: &[&[Step]] = &[
            &[Save],
            &[Save, Save],
            &[Save, Label, Save, Save, Save, Save],
            &[Label, Save, Save, Save, Restore(0)],
            &[Save, Save, Save, Save, Restore(2), Save],
            &[Save, Save, Save, Restore(1), Restore(0)],
            &[Save, Save, Fork(0), Save, Save, SaveOther, Save],
            &[Save, Save, Fork(1), SaveOther, Save, Merge, SaveOther, Save, Save, Save],
            &[Save, Save, Fork(1), SaveOther, Save, Merge, RemoveOther, Save, Save, Save],
            &UNDONE_MERGE,
        ];
        let mut cases = 0;
        for history in histories {
            for keep_last in [None, Some(1), Some(2), Some(4)] {
                for older_than in [None, Some(2), Some(50)] {
                    for (keep_labelled, names) in [(false, &[][..]), (true, &[]), (false, &["named"])] {
                        for grace in [0, 2, 50] {
                            let mut world = World::new(MemoryStore::new());
                            world.play(history).await;
                            let mut prune = PruneOptions::new().with_keep_labelled(keep_labelled);
                            (prune.keep_last, prune.older_than) = (keep_last, older_than.map(|hours| HOUR * hours));
                            let options = RetainOptions::new(prune).with_grace(HOUR * grace);
                            let options = options.with_names(names.iter().map(|name| (*name).to_owned()).collect());
                            let case = format!("{history:?} {options:?}");
                            let (all, others) = (world.all(&thread()).await, world.all(&other()).await);
                            let expected = model(&all, &others, &options, world.checkpointer.clock.now());
                            let named = world.checkpointer.named(&thread()).await.expect("read");
                            let mut dry = options.clone();
                            dry.prune.dry_run = true;
                            let would = world.checkpointer.retain(&thread(), &dry, &named).await.expect("counted");
                            assert_eq!(world.all(&thread()).await, all, "{case}");
                            let gone: HashSet<String> = would.gone.into_iter().collect();
                            let would_sweep = world.checkpointer.sweep_after(&thread(), true, &gone).await.expect("counted");
                            let done = world.checkpointer.retain(&thread(), &options, &named).await.expect("pruned");
                            let left: BTreeSet<_> = world.all(&thread()).await.into_iter().map(|one| one.id).collect();
                            assert_eq!(left, expected, "{case}");
                            assert_eq!((would.pruned, would.deferred), (done.pruned, done.deferred), "{case}");
                            assert_eq!(done.pruned.removed as usize, all.len() - left.len(), "{case}");
                            let swept = world.checkpointer.sweep_after(&thread(), false, &HashSet::new()).await.expect("swept");
                            assert_eq!(swept, would_sweep, "{case}");
                            assert_eq!(world.checkpointer.sweep_after(&thread(), false, &HashSet::new()).await.expect("swept"), None);
                            for checkpoint in world.all(&thread()).await {
                                let opened = world.checkpointer.open(&thread(), At::Id(checkpoint.id)).await.expect("read").expect("kept");
                                StateBackend::from_snapshot(&opened.state).read_text("/a").await.expect("its content is kept");
                            }
                            cases += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(cases, histories.len() * 108);
    }

    /// Regression: a sweep removed the checkpoints newer than `~3`, which then named an older one, or none.
    #[tokio::test]
    async fn name_means_the_same_checkpoint_after_every_sweep() {
        use Step::*;
        let histories: &[&[Step]] = &[
            &[Save, Save, Save, Save, Save, Save, Save, Save],
            &[Label, Save, Label, Save, Save, Save, Save, Save],
            &[Save, Save, Label, Save, Label, Save, Save, Label],
        ];
        for history in histories {
            for keep_labelled in [false, true] {
                for name in ["latest", "~0", "~1", "~2", "~3", "latest~5", "named"] {
                    let case = format!("{history:?} {keep_labelled} {name}");
                    let mut world = World::new(MemoryStore::new());
                    world.play(history).await;
                    let prune = PruneOptions::new().with_keep_last(1).with_keep_labelled(keep_labelled);
                    let options = RetainOptions::new(prune).with_names(vec![name.to_owned()]);
                    for more in [&[][..], &[Save], &[Save, Label]] {
                        world.play(more).await;
                        let meant = find_checkpoint(&world.checkpointer, &thread(), name).await.ok().map(|found| found.id);
                        assert!(meant.is_some() || name == "named", "{case}");
                        for _ in 0..2 {
                            let named = world.checkpointer.named(&thread()).await.expect("read");
                            world.checkpointer.retain(&thread(), &options, &named).await.expect("pruned");
                            let found = find_checkpoint(&world.checkpointer, &thread(), name).await.ok().map(|found| found.id);
                            assert_eq!(found, meant, "{case}");
                        }
                    }
                    assert!(world.all(&thread()).await.len() < history.len() + 3, "{case}: nothing was removed");
                }
            }
        }
    }

    #[tokio::test]
    async fn fork_made_after_the_references_were_collected_stops_the_removal() {
        let mut world = World::new(MemoryStore::new());
        world.play(&[Step::Save; 6]).await;
        let named = world.checkpointer.named(&thread()).await.expect("read");
        let all = world.all(&thread()).await;
        world.checkpointer.fork(&thread(), all[4].id.into(), "other", &PutOptions::new()).await.expect("forked");
        let options = RetainOptions::new(PruneOptions::new());
        let stopped = world.checkpointer.retain(&thread(), &options, &named).await.expect("it is no failure");
        assert_eq!((stopped.pruned.removed, stopped.deferred, world.all(&thread()).await.len()), (0, 4, 6));
        let named = world.checkpointer.named(&thread()).await.expect("read");
        let done = world.checkpointer.retain(&thread(), &options, &named).await.expect("pruned");
        let left: Vec<_> = world.all(&thread()).await.into_iter().map(|one| one.id).collect();
        assert_eq!((done.deferred, left), (0, vec![all[0].id, all[1].id, all[4].id]));
    }

    /// Only what is named of the thread itself stops a removal.
    #[tokio::test]
    async fn fork_of_another_thread_stops_nothing() {
        let mut world = World::new(MemoryStore::new());
        world.play(&[Step::Save; 6]).await;
        world.play(&[Step::Fork(0), Step::SaveOther]).await;
        let named = world.checkpointer.named(&thread()).await.expect("read");
        world.checkpointer.fork(&other(), At::Latest, "third", &PutOptions::new()).await.expect("forked");
        let done = world.checkpointer.retain(&thread(), &RetainOptions::new(PruneOptions::new()), &named).await.expect("pruned");
        assert_eq!((done.deferred, done.pruned.removed), (0, 3));
    }

    /// Whatever a policy removes, a merge begins where it would have begun.
    #[tokio::test]
    async fn merge_after_an_undone_one_begins_where_it_did_before_the_prune() {
        let mut begins = Vec::new();
        for prunes in [false, true] {
            let mut world = World::new(MemoryStore::new());
            world.play(&UNDONE_MERGE).await;
            let all = world.all(&thread()).await;
            if prunes {
                let named = world.checkpointer.named(&thread()).await.expect("read");
                let done = world.checkpointer.retain(&thread(), &RetainOptions::new(PruneOptions::new()), &named).await.expect("pruned");
                assert!(done.pruned.removed > 0);
            }
            let options = MergeOptions::new().with_dry_run(true);
            let outcome = merge(&world.checkpointer, &thread(), ("other", At::Latest), &options).await.expect("merged");
            begins.push(all.iter().rev().position(|one| one.id == outcome.base.id));
        }
        assert_eq!(begins, [Some(1), Some(1)]);
    }

    #[tokio::test]
    async fn unreadable_checkpoint_stops_its_thread_before_anything_is_removed() {
        let store = MemoryStore::new();
        let mut world = World::new(store.clone());
        world.play(&[Step::Save; 5]).await;
        let oldest = world.all(&thread()).await.pop().expect("saved").id;
        let namespace = namespace_of(&thread(), "checkpoints").expect("legal");
        let key = format!("main{}{}", super::super::SEPARATOR, oldest.descending());
        store.commit(Batch::new().put_with_meta(&namespace, key, "damaged", "")).await.expect("damaged");
        let before = store.stats().await.expect("counted").items;
        let named = world.checkpointer.named(&thread()).await.expect("it names nothing");
        let failed = world.checkpointer.retain(&thread(), &RetainOptions::new(PruneOptions::new()), &named).await;
        assert_eq!(failed.expect_err("it is unreadable").kind(), ErrorKind::Corrupt);
        assert_eq!(store.stats().await.expect("counted").items, before);
    }

    #[tokio::test]
    async fn owners_are_everyone_with_rows_whatever_their_ids() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let checkpointer = StoreCheckpointer::new(store.clone());
        let ids = [None, Some("-"), Some("--x"), Some("ada"), Some("a/b")];
        let mut expected = Vec::new();
        for tenant in ids {
            for user in ids {
                let mut scope = Scope::new();
                (scope.tenant, scope.user) = (tenant.map(str::to_owned), user.map(str::to_owned));
                let state = StateBackend::new().snapshot();
                checkpointer.put(&scope.clone().with_thread("t"), &state, &PutOptions::new()).await.expect("saved");
                expected.push(scope);
            }
        }
        let by = |scope: &Scope| (scope.tenant.clone(), scope.user.clone());
        expected.sort_by_key(by);
        // Pages of every length, so that some begin and end within a partition, or have no owner.
        for limit in (1..8).chain([1_000]) {
            let mut owners = Owners::new(&*store, &["heads", "checkpoints"]);
            owners.namespaces = owners.namespaces.with_limit(limit);
            let mut found = Vec::new();
            while let Some(page) = owners.next_page().await.expect("listed") {
                assert!(page.len() <= limit, "{page:?}");
                found.extend(page);
            }
            found.sort_by_key(by);
            assert_eq!(found, expected, "pages of {limit}");
        }
    }
}
