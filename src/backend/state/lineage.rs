//! Where a tree was saved last: what its stored pages may be relied on to stay for.
//!
//! A tree goes on from one state to the next, and a page that has left it does not come back. So once all of a state is held by
//! a checkpoint, the stored pages of every later state of the same line are among those that this checkpoint holds. A backend
//! that starts from a snapshot, or goes back to one, starts a line of its own.

use parking_lot::Mutex;
use std::sync::Arc;

/// What holds all stored pages of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The source it stands in.
    pub(crate) origin: u32,
    /// What the source calls it.
    pub(crate) name: Arc<str>,
}

/// What is known of a line of states: the number of the newest change that was saved, and what holds it.
pub(crate) type Known = Option<(u64, Holder)>;

/// One line of states.
#[derive(Debug, Default)]
pub(super) struct Lineage(Mutex<Known>);

impl Lineage {
    pub(super) fn new(known: Known) -> Arc<Self> {
        Arc::new(Self(Mutex::new(known)))
    }

    /// Returns what is known.
    pub(super) fn known(&self) -> Known {
        self.0.lock().clone()
    }

    /// Replaces what was known, unless it is another by now, and marks the pages that were saved with it: nobody sees the marks
    /// and not what holds them.
    pub(super) fn settle(&self, before: &Known, after: (u64, Holder), mark: impl FnOnce()) {
        let mut known = self.0.lock();
        if *known == *before {
            *known = Some(after);
            mark();
        }
    }
}
