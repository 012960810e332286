//! Serializes tasks of one process that edit the same file.
//!
//! The preconditions of the store alone ensure correctness. But when writers race for one row, all but one of them waste their
//! round trips, so those of one process wait for each other here.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};
use tokio::sync::{Mutex, MutexGuard};
use treehold_store::{Namespace, Store};

/// The number of locks. Files share locks by hash, which may delay a task needlessly but never forever.
const TURNS: usize = 1_024;

/// One table for all backends of the process, because several may use the same store. Its size is fixed, whatever the number of
/// stores and files.
static TABLE: LazyLock<Vec<Mutex<()>>> = LazyLock::new(|| (0..TURNS).map(|_| Mutex::new(())).collect());

/// The locks that a batch holds.
pub(super) struct Turns {
    _held: Vec<MutexGuard<'static, ()>>,
}

/// Locks every key, waiting for other holders.
pub(super) async fn take(store: &Arc<dyn Store>, namespace: &Namespace, keys: impl Iterator<Item = String>) -> Turns {
    let address = Arc::as_ptr(store).cast::<()>() as usize;
    let slot = |key: String| {
        let mut hasher = DefaultHasher::new();
        (address, namespace, key).hash(&mut hasher);
        hasher.finish() as usize % TURNS
    };
    // All batches lock in the same order, so there is no deadlock.
    let slots: BTreeSet<usize> = keys.map(slot).collect();
    let mut held = Vec::with_capacity(slots.len());
    for slot in slots {
        held.push(TABLE[slot].lock().await);
    }
    Turns { _held: held }
}
