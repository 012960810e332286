//! The in-memory checkpointer: the reference implementation of the contract, in the simplest code.

use super::fault::{busy, no_checkpoint, no_thread, saved_meanwhile, taken};
use super::namespaces::thread_of;
use super::{
    At, Checkpoint, CheckpointId, CheckpointPage, Checkpointer, Head, ListOptions, Opened, Parent, PruneOptions, Pruned, PutOptions, Saved,
    Swept, ThreadInfo, ThreadPage, record,
};
use crate::backend::StateSnapshot;
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use treehold_core::clock::Clock;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_core::scope::Scope;
use treehold_store::{Store, Watch};

/// Checkpoints that live as long as this value.
///
/// Each holds its tree, which shares unchanged parts with the others.
#[derive(Debug, Default)]
pub struct MemoryCheckpointer {
    users: Mutex<HashMap<Owner, User>>,
    clock: Clock,
}

/// A tenant and a user.
type Owner = (Option<String>, Option<String>);

#[derive(Debug, Default)]
struct User {
    threads: BTreeMap<String, Thread>,
    /// The size in bytes of every content that was put and not yet swept, by its hash.
    bodies: HashMap<[u8; 32], u64>,
    version: u64,
}

#[derive(Debug, Clone)]
struct Thread {
    checkpoints: BTreeMap<CheckpointId, (Checkpoint, StateSnapshot)>,
    version: Version,
    created_at: Timestamp,
}

impl Thread {
    fn latest(&self) -> &(Checkpoint, StateSnapshot) {
        self.checkpoints.last_key_value().expect("a saved thread has a checkpoint").1
    }

    fn head(&self) -> Head {
        Head { id: self.latest().0.id, version: self.version }
    }

    fn find(&self, at: At) -> Option<&(Checkpoint, StateSnapshot)> {
        match at {
            At::Latest => Some(self.latest()),
            At::Id(id) => self.checkpoints.get(&id),
        }
    }

    fn head_if(&self, id: CheckpointId) -> Option<Head> {
        Some(self.head()).filter(|head| head.id == id)
    }
}

impl User {
    fn thread(&self, thread: &str) -> Result<&Thread> {
        self.threads.get(thread).ok_or_else(|| no_thread(thread))
    }

    /// Adds a checkpoint as the new head.
    fn push(&mut self, thread: &str, checkpoint: Checkpoint, state: StateSnapshot) -> Saved {
        self.version += 1;
        let version = Version::new(self.version);
        let created_at = checkpoint.created_at;
        let known = self.threads.entry(thread.to_owned());
        let known = known.or_insert_with(|| Thread { checkpoints: BTreeMap::new(), version, created_at });
        known.version = version;
        known.checkpoints.insert(checkpoint.id, (checkpoint.clone(), state));
        Saved { checkpoint, head: Some(known.head()) }
    }
}

impl MemoryCheckpointer {
    /// Creates an empty checkpointer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    fn user<T>(&self, scope: &Scope, act: impl FnOnce(&mut User) -> Result<T>) -> Result<T> {
        scope.validate()?;
        act(self.users.lock().entry((scope.tenant.clone(), scope.user.clone())).or_default())
    }
}

/// Returns the hash and size of every content in a state.
async fn bodies(state: &StateSnapshot) -> Result<Vec<([u8; 32], u64)>> {
    let nodes = state.nodes(None, usize::MAX).await?;
    let nodes: Vec<_> = nodes.into_iter().map(|(_, node)| node).filter(|node| node.size_bytes() > 0).collect();
    let contents = state.contents(&nodes).await?;
    Ok(contents.iter().map(|content| (*blake3::hash(content).as_bytes(), content.len() as u64)).collect())
}

/// Returns the state fully loaded into memory.
async fn in_memory(state: &StateSnapshot) -> Result<StateSnapshot> {
    let (paths, nodes): (Vec<_>, Vec<_>) = state.nodes(None, usize::MAX).await?.into_iter().unzip();
    let contents = state.contents(&nodes).await?;
    let nodes = paths.into_iter().zip(nodes).zip(contents).map(|((path, node), content)| {
        let node = match node.version() {
            Some(version) => {
                let node_of = crate::backend::StateNode::file;
                node_of(content, version, node.created_at(), node.modified_at().unwrap_or_default())
            }
            None => (*node).clone(),
        };
        (path, node)
    });
    StateSnapshot::from_nodes(nodes, state.version())
}

#[async_trait]
impl Checkpointer for MemoryCheckpointer {
    async fn watch(&self, _scope: &Scope) -> Result<Option<Watch>> {
        Ok(None)
    }

    fn store(&self) -> Option<&Arc<dyn Store>> {
        None
    }

    async fn put(&self, scope: &Scope, state: &StateSnapshot, options: &PutOptions) -> Result<Saved> {
        let thread = thread_of(scope)?;
        record::check_notes(options)?;
        let (bodies, totals) = (bodies(state).await?, state.totals().await?);
        // The checkpointer must not depend on where the state was saved before.
        let state = if state.source().is_some() { in_memory(state).await? } else { state.clone() };
        self.user(scope, |user| {
            let head = user.threads.get(thread).map(Thread::head);
            if head != options.head {
                return Err(saved_meanwhile(thread, head.map(|head| head.version)));
            }
            if let Some(merged) = &options.merged {
                let thread = user.threads.get(&merged.thread);
                thread.and_then(|thread| thread.find(At::Id(merged.id))).ok_or_else(|| no_checkpoint(&merged.thread, merged.id))?;
            }
            let now = self.clock.now();
            let id = options.id_after(now, head.map(|head| head.id));
            let parent = head.map(|head| Parent { thread: None, id: head.id, restored: None });
            user.bodies.extend(bodies);
            Ok(user.push(thread, Checkpoint::new(id, parent, now, options, totals), state))
        })
    }

    async fn get(&self, scope: &Scope, at: At) -> Result<Option<Saved>> {
        Ok(self.open(scope, at).await?.map(|opened| Saved { checkpoint: opened.checkpoint, head: opened.head }))
    }

    async fn confirm(&self, scope: &Scope, id: CheckpointId) -> Result<Option<Saved>> {
        self.get(scope, At::Id(id)).await
    }

    async fn open(&self, scope: &Scope, at: At) -> Result<Option<Opened>> {
        let thread = thread_of(scope)?;
        self.user(scope, |user| {
            let Some(thread) = user.threads.get(thread) else { return Ok(None) };
            let found = thread.find(at);
            Ok(found.map(|(checkpoint, state)| Opened {
                head: thread.head_if(checkpoint.id),
                checkpoint: checkpoint.clone(),
                state: state.clone(),
            }))
        })
    }

    async fn list(&self, scope: &Scope, options: &ListOptions) -> Result<CheckpointPage> {
        let thread = thread_of(scope)?;
        self.user(scope, |user| {
            let all = user.threads.get(thread).into_iter().flat_map(|thread| thread.checkpoints.values().rev());
            let mut selected = all.map(|(checkpoint, _)| checkpoint).filter(|checkpoint| options.selects(checkpoint));
            let checkpoints: Vec<Checkpoint> = selected.by_ref().take(options.limit).cloned().collect();
            let next = selected.next().map(|_| checkpoints.last().map(|last| last.id).or(options.start_after).unwrap_or(CheckpointId::MAX));
            Ok(CheckpointPage { checkpoints, next })
        })
    }

    async fn restore(&self, scope: &Scope, id: CheckpointId, options: &PutOptions) -> Result<Saved> {
        let thread = thread_of(scope)?;
        record::check_notes(options)?;
        self.user(scope, |user| {
            let known = user.thread(thread)?;
            let (checkpoint, state) = known.find(At::Id(id)).cloned().ok_or_else(|| no_checkpoint(thread, id))?;
            let (head, now) = (known.head(), self.clock.now());
            if options.head.is_some_and(|expected| expected != head) {
                return Err(saved_meanwhile(thread, Some(head.version)));
            }
            let parent = Parent { thread: None, id: head.id, restored: Some(id) };
            let totals = (checkpoint.entries, checkpoint.size_bytes);
            Ok(user.push(thread, Checkpoint::new(options.id_after(now, Some(head.id)), Some(parent), now, options, totals), state))
        })
    }

    async fn fork(&self, scope: &Scope, at: At, thread: &str, options: &PutOptions) -> Result<Saved> {
        let source = thread_of(scope)?;
        scope.clone().with_thread(thread).validate()?;
        record::check_notes(options)?;
        self.user(scope, |user| {
            let known = user.thread(source)?;
            let missing = || if let At::Id(id) = at { no_checkpoint(source, id) } else { no_thread(source) };
            let (checkpoint, state) = known.find(at).cloned().ok_or_else(missing)?;
            if user.threads.contains_key(thread) {
                return Err(taken(thread));
            }
            let now = self.clock.now();
            let parent = Parent { thread: Some(source.to_owned()), id: checkpoint.id, restored: None };
            let totals = (checkpoint.entries, checkpoint.size_bytes);
            Ok(user.push(thread, Checkpoint::new(options.id_after(now, Some(checkpoint.id)), Some(parent), now, options, totals), state))
        })
    }

    async fn copy(&self, scope: &Scope, thread: &str) -> Result<u64> {
        let source = thread_of(scope)?;
        scope.clone().with_thread(thread).validate()?;
        self.user(scope, |user| {
            let mut copy = user.thread(source)?.clone();
            if user.threads.contains_key(thread) {
                return Err(taken(thread));
            }
            user.version += 1;
            copy.version = Version::new(user.version);
            let count = copy.checkpoints.len() as u64;
            user.threads.insert(thread.to_owned(), copy);
            Ok(count)
        })
    }

    async fn delete(&self, scope: &Scope) -> Result<()> {
        let thread = thread_of(scope)?;
        self.user(scope, |user| user.threads.remove(thread).map(drop).ok_or_else(|| no_thread(thread)))
    }

    async fn prune(&self, scope: &Scope, options: &PruneOptions) -> Result<Pruned> {
        let thread = thread_of(scope)?;
        let now = self.clock.now();
        self.user(scope, |user| {
            let known = user.threads.get_mut(thread).ok_or_else(|| no_thread(thread))?;
            let newest_first = known.checkpoints.values().rev().zip(0..);
            let removed: Vec<CheckpointId> = newest_first
                .filter(|((checkpoint, _), newer)| *newer > 0 && options.removes(checkpoint, *newer, now))
                .map(|((checkpoint, _), _)| checkpoint.id)
                .collect();
            let kept = (known.checkpoints.len() - removed.len()) as u64;
            if !options.dry_run {
                removed.iter().for_each(|id| drop(known.checkpoints.remove(id)));
            }
            Ok(Pruned { removed: removed.len() as u64, kept })
        })
    }

    async fn sweep(&self, scope: &Scope, dry_run: bool) -> Result<Swept> {
        for _ in 0..8 {
            let (version, states) = self.user(scope, |user| {
                let states = user.threads.values().flat_map(|thread| thread.checkpoints.values());
                Ok((user.version, states.map(|(_, state)| state.clone()).collect::<Vec<_>>()))
            })?;
            let mut held = HashSet::new();
            for state in states {
                held.extend(bodies(&state).await?.into_iter().map(|(hash, _)| hash));
            }
            let swept = self.user(scope, |user| {
                if user.version != version {
                    return Ok(None);
                }
                let unheld: Vec<u64> = user.bodies.iter().filter(|(hash, _)| !held.contains(*hash)).map(|(_, size)| *size).collect();
                if !dry_run {
                    user.bodies.retain(|hash, _| held.contains(hash));
                }
                Ok(Some(Swept { bodies: unheld.len() as u64, body_bytes: unheld.iter().sum(), packs: 0, bodies_kept: held.len() as u64 }))
            })?;
            if let Some(swept) = swept {
                return Ok(swept);
            }
        }
        Err(busy("-"))
    }

    async fn threads(&self, scope: &Scope, start_after: Option<&str>, limit: usize) -> Result<ThreadPage> {
        self.user(scope, |user| {
            let behind = (start_after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            let mut behind = user.threads.range::<str, _>(behind);
            let threads: Vec<ThreadInfo> = behind.by_ref().take(limit).map(|(thread, known)| info(thread, known)).collect();
            let next = behind.next().map(|_| threads.last().map_or(start_after.unwrap_or_default(), |last| &*last.thread).to_owned());
            Ok(ThreadPage { threads, next })
        })
    }
}

impl fmt::Display for MemoryCheckpointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checkpoints(memory)")
    }
}

fn info(thread: &str, known: &Thread) -> ThreadInfo {
    let (checkpoint, _) = known.latest();
    ThreadInfo {
        thread: thread.to_owned(),
        head: checkpoint.id,
        entries: checkpoint.entries,
        size_bytes: checkpoint.size_bytes,
        created_at: known.created_at,
        saved_at: checkpoint.created_at,
    }
}
