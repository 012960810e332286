//! Which checkpoint holds the saved pages of a tree.
//!
//! A tree evolves from state to state, and a page that was dropped from it never returns. So once a checkpoint holds a
//! whole state, it also holds the saved pages of every later state of the same line. A backend that starts from a
//! snapshot, or is restored to one, starts a new line.
//!
//! A line also counts what was loaded for it, because loaded pages and contents stay in memory as long as it does.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The checkpoint that holds all saved pages of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The source that contains it.
    pub(crate) origin: u32,
    /// Its name in the source.
    pub(crate) name: Arc<str>,
}

/// The last saved version of a line of states, and the checkpoint that holds it.
pub(crate) type Known = Option<(u64, Holder)>;

/// One line of states.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    known: Mutex<Known>,
    /// About how many bytes of memory the pages and contents take that were loaded.
    loaded_bytes: AtomicU64,
}

impl Lineage {
    pub(super) fn new(known: Known) -> Arc<Self> {
        Arc::new(Self { known: Mutex::new(known), loaded_bytes: AtomicU64::new(0) })
    }

    /// Returns the last save.
    pub(super) fn known(&self) -> Known {
        self.known.lock().clone()
    }

    /// Returns about how many bytes of memory the pages and contents take that were loaded.
    pub(super) fn loaded_bytes(&self) -> u64 {
        self.loaded_bytes.load(Ordering::Relaxed)
    }

    /// Counts something that was loaded.
    pub(super) fn add_loaded(&self, size_bytes: u64) {
        self.loaded_bytes.fetch_add(size_bytes, Ordering::Relaxed);
    }

    /// Replaces the last save if it is still `before`, and marks the saved pages under the same lock, so that nobody
    /// sees the marks without the holder.
    pub(super) fn settle(&self, before: &Known, after: (u64, Holder), mark: impl FnOnce()) {
        let mut known = self.known.lock();
        if *known == *before {
            *known = Some(after);
            mark();
        }
    }
}
