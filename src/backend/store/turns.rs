//! Who goes first when tasks of one process edit the same file.
//!
//! Correctness is the store's preconditions alone. But writers that race on one row would do all but one of their rounds
//! for nothing, so those of one process wait for one another here.

use crate::store::{Namespace, Store};
use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};
use tokio::sync::{Mutex, MutexGuard};

/// How many turns there are. Files share one by hash, which makes some wait without need and none for ever.
const TURNS: usize = 1_024;

/// One table for all backends of the process, as several of them may stand on one store. It is of one size, 1,024 locks, however
/// many stores and files there were.
static TABLE: LazyLock<Vec<Mutex<()>>> = LazyLock::new(|| (0..TURNS).map(|_| Mutex::new(())).collect());

/// The turns that a batch holds.
pub(super) struct Turns {
    _held: Vec<MutexGuard<'static, ()>>,
}

/// Waits for the turn of every key.
pub(super) async fn take(store: &Arc<dyn Store>, namespace: &Namespace, keys: impl Iterator<Item = String>) -> Turns {
    let address = Arc::as_ptr(store).cast::<()>() as usize;
    let slot = |key: String| {
        let mut hasher = DefaultHasher::new();
        (address, namespace, key).hash(&mut hasher);
        hasher.finish() as usize % TURNS
    };
    // All batches take their turns in the same order, so none waits in a circle.
    let slots: BTreeSet<usize> = keys.map(slot).collect();
    let mut held = Vec::with_capacity(slots.len());
    for slot in slots {
        held.push(TABLE[slot].lock().await);
    }
    Turns { _held: held }
}
