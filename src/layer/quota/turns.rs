//! Whose turn it is: changes of different files at the same time, all others one after the other.

use crate::ops::Change;
use crate::path::VfsPath;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How many locks the files share. Two files on one lock wait for each other without need, one time in as many.
const FILE_LOCKS: usize = 64;

/// Locks of tokio's, held while a change runs, and fair.
#[derive(Debug)]
pub(super) struct Turns {
    tree: Arc<RwLock<()>>,
    files: Vec<Mutex<()>>,
    hasher: RandomState,
}

/// A turn, over when dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "the locks are held, not looked at")]
pub(super) enum Turn<'a> {
    Alone(RwLockWriteGuard<'a, ()>),
    OfFiles(RwLockReadGuard<'a, ()>, Vec<MutexGuard<'a, ()>>),
}

/// A time without changes, over when dropped.
#[derive(Debug)]
pub(crate) struct Quiet {
    _alone: OwnedRwLockWriteGuard<()>,
}

impl Turn<'_> {
    /// Tells whether no other change runs.
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

    /// Waits until no change runs, for who replaces the tree past the layer.
    pub(super) fn quiet(&self) -> impl Future<Output = Quiet> + use<> {
        let tree = self.tree.clone();
        async move { Quiet { _alone: tree.write_owned().await } }
    }

    /// Waits until nothing runs that may change the size of what these changes name.
    pub(super) async fn of(&self, changes: &[Change]) -> Turn<'_> {
        let Some(paths) = changes.iter().map(only_file).collect::<Option<Vec<_>>>() else {
            return self.alone().await;
        };
        let tree = self.tree.read().await;
        // Always taken in the same order, so that two batches never wait for each other.
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

/// Returns the only path whose file a change may make, grow or remove; none when there may be others.
fn only_file(change: &Change) -> Option<&VfsPath> {
    match change {
        Change::Write { path, .. }
        | Change::Append { path, .. }
        | Change::Edit { path, .. }
        | Change::CreateDir { path }
        | Change::Delete { path, recursive: false, .. } => Some(path),
        Change::Delete { recursive: true, .. } | Change::Rename { .. } | Change::Copy { .. } => None,
    }
}
