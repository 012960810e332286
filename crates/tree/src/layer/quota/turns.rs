//! Turns: changes of different files run concurrently, all others one at a time.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use treehold_core::ops::Change;
use treehold_core::path::VfsPath;

/// The number of locks that files share. Two files have the same lock, and wait for each other needlessly, with a probability of one in
/// this number.
const FILE_LOCKS: usize = 64;

/// Locks from tokio, which are fair and may be held while a change runs.
#[derive(Debug)]
pub(super) struct Turns {
    tree: Arc<RwLock<()>>,
    files: Vec<Mutex<()>>,
    hasher: RandomState,
}

/// A turn, over when dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "the guards are held, never read")]
pub(super) enum Turn<'a> {
    Alone(RwLockWriteGuard<'a, ()>),
    OfFiles(RwLockReadGuard<'a, ()>, Vec<MutexGuard<'a, ()>>),
}

/// A period without changes, over when dropped.
#[derive(Debug)]
pub struct Quiet {
    _alone: OwnedRwLockWriteGuard<()>,
}

impl Turn<'_> {
    /// Returns whether no other change runs.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self, Self::Alone(_))
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self { tree: Arc::default(), files: (0..FILE_LOCKS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }
}

impl Turns {
    /// Waits until no change runs.
    pub(super) async fn alone(&self) -> Turn<'_> {
        Turn::Alone(self.tree.write().await)
    }

    /// Waits until no change runs, for code that replaces the tree past the layer.
    pub(crate) fn quiet(&self) -> impl Future<Output = Quiet> + use<> {
        let tree = self.tree.clone();
        async move { Quiet { _alone: tree.write_owned().await } }
    }

    /// Waits until nothing runs that may change the size of what these changes name.
    pub(super) async fn of(&self, changes: &[Change]) -> Turn<'_> {
        let Some(paths) = changes.iter().map(only_file).collect::<Option<Vec<_>>>() else {
            return self.alone().await;
        };
        let tree = self.tree.read().await;
        // Locks are always taken in the same order, so that two batches cannot deadlock.
        let mut wanted: Vec<usize> = paths.into_iter().map(|path| self.lock_of(path)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut files = Vec::with_capacity(wanted.len());
        for index in wanted {
            files.push(self.files[index].lock().await);
        }
        Turn::OfFiles(tree, files)
    }

    fn lock_of(&self, path: &VfsPath) -> usize {
        (self.hasher.hash_one(path) % FILE_LOCKS as u64) as usize
    }
}

/// Returns the only path whose file a change may create, grow or remove; `None` if there may be others.
fn only_file(change: &Change) -> Option<&VfsPath> {
    match change {
        Change::Write { path, .. }
        | Change::Append { path, .. }
        | Change::Edit { path, .. }
        | Change::CreateDir { path }
        | Change::Delete { path, recursive: false, .. } => Some(path),
        Change::Delete { recursive: true, .. } | Change::Rename { .. } | Change::Copy { .. } => None,
        _ => None,
    }
}
