//! A listing of which a part is left out, filled up from the next pages.

use crate::ops::{Entry, Failure, Truncation, TruncationReason};

/// How many entries are asked for at least, once some had to be left out.
const PAGE_MIN: usize = 256;

/// Collects the entries that may be seen, up to one more than the limit, which tells whether there are more.
#[derive(Debug)]
pub(super) struct Refill {
    limit: usize,
    pub(super) entries: Vec<Entry>,
    pub(super) failures: Vec<Failure>,
    left_out: bool,
}

/// What to do after a page.
#[derive(Debug)]
pub(super) enum Next {
    /// Ask for so many more after the cursor.
    Page {
        /// Where the page before ended.
        cursor: String,
        /// How many entries to ask for.
        limit: usize,
    },
    /// All is known; set when the tree itself said where the result ends.
    Done(Option<Truncation>),
}

impl Refill {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, entries: Vec::new(), failures: Vec::new(), left_out: false }
    }

    /// Adds what may be seen of a page.
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
        // While nothing was left out the tree's own word on where to go on is exact. A page without entries gets no further.
        if !self.left_out || came == 0 {
            return Next::Done(Some(truncated));
        }
        if self.entries.len() > self.limit || (truncated.reason == TruncationReason::Size && !self.entries.is_empty()) {
            return Next::Done(None);
        }
        Next::Page { cursor: truncated.cursor, limit: (self.limit - self.entries.len()).saturating_add(1).max(PAGE_MIN) }
    }
}
