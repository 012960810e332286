//! Refilling a filtered listing from the next pages.

use treehold_core::ops::{Entry, Failure, Truncation, TruncationReason};

/// The fewest entries to request once some were left out.
const PAGE_MIN: usize = 256;

/// Collects visible entries, up to one more than the limit, which tells whether there are more.
#[derive(Debug)]
pub(super) struct Refill {
    limit: usize,
    pub(super) entries: Vec<Entry>,
    pub(super) failures: Vec<Failure>,
    left_out: bool,
}

/// The next action after a page.
#[derive(Debug)]
pub(super) enum Next {
    /// Request more entries after the cursor.
    Page {
        /// The end of the previous page.
        cursor: String,
        /// The number of entries to request.
        limit: usize,
    },
    /// The listing is complete; with a truncation if the tree itself truncated it.
    Done(Option<Truncation>),
}

impl Refill {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, entries: Vec::new(), failures: Vec::new(), left_out: false }
    }

    /// Adds the visible entries of a page.
    pub(super) fn add(
        &mut self,
        entries: Vec<Entry>,
        failures: Vec<Failure>,
        truncated: Option<Truncation>,
        shows: impl Fn(&Entry) -> bool,
        shows_failure: impl Fn(&Failure) -> bool,
    ) -> Next {
        let came = entries.len();
        let before = self.entries.len();
        self.entries.extend(entries.into_iter().filter(shows));
        self.failures.extend(failures.into_iter().filter(shows_failure));
        self.left_out |= self.entries.len() - before < came;
        let Some(truncated) = truncated else {
            return Next::Done(None);
        };
        // While nothing was left out, the tree's own cursor is exact. A page without entries makes no progress.
        if !self.left_out || came == 0 {
            return Next::Done(Some(truncated));
        }
        if self.entries.len() > self.limit || (truncated.reason == TruncationReason::Size && !self.entries.is_empty()) {
            return Next::Done(None);
        }
        Next::Page { cursor: truncated.cursor, limit: (self.limit - self.entries.len()).saturating_add(1).max(PAGE_MIN) }
    }
}
