//! Limits and other settings.

use crate::contract::PAGE_MAX;
use std::time::Duration;

/// The settings of [`Traces`](crate::Traces).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracesOptions {
    /// The largest message in bytes, as JSON. Default 1 MiB.
    pub message_bytes_max: usize,
    /// The most bytes of the messages of one call. Default 16 MiB.
    pub batch_bytes_max: usize,
    /// The largest description of a trace in bytes: its task, its configuration and other fields, as JSON. Default 256 KiB.
    pub trace_bytes_max: usize,
    /// The largest goal tree in bytes, as JSON and without its statistics. Default 1 MiB.
    pub goal_tree_bytes_max: usize,
    /// The largest event in bytes, as JSON. Default 64 KiB.
    pub event_bytes_max: usize,
    /// The most messages or events of one page, and messages of one call. Default and at most [`PAGE_MAX`].
    pub page_max: usize,
    /// Ends a page of messages or events once it has this many bytes. Default 8 MiB.
    pub page_bytes_max: usize,
    /// How long a repeated call with the same idempotency key is recognised. Default 24 hours.
    pub idempotency_time: Duration,
}

impl Default for TracesOptions {
    fn default() -> Self {
        Self {
            message_bytes_max: 1 << 20,
            batch_bytes_max: 16 << 20,
            trace_bytes_max: 256 << 10,
            goal_tree_bytes_max: 1 << 20,
            event_bytes_max: 64 << 10,
            page_max: PAGE_MAX,
            page_bytes_max: 8 << 20,
            idempotency_time: Duration::from_secs(24 * 60 * 60),
        }
    }
}

impl TracesOptions {
    /// Starts from the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the largest message in bytes.
    #[must_use]
    pub fn with_message_bytes_max(mut self, bytes: usize) -> Self {
        self.message_bytes_max = bytes;
        self
    }

    /// Sets the most bytes of the messages of one call.
    #[must_use]
    pub fn with_batch_bytes_max(mut self, bytes: usize) -> Self {
        self.batch_bytes_max = bytes;
        self
    }

    /// Sets the largest description of a trace in bytes.
    #[must_use]
    pub fn with_trace_bytes_max(mut self, bytes: usize) -> Self {
        self.trace_bytes_max = bytes;
        self
    }

    /// Sets the largest goal tree in bytes.
    #[must_use]
    pub fn with_goal_tree_bytes_max(mut self, bytes: usize) -> Self {
        self.goal_tree_bytes_max = bytes;
        self
    }

    /// Sets the largest event in bytes.
    #[must_use]
    pub fn with_event_bytes_max(mut self, bytes: usize) -> Self {
        self.event_bytes_max = bytes;
        self
    }

    /// Sets the most entries of one page: at least 1 and at most [`PAGE_MAX`].
    #[must_use]
    pub fn with_page_max(mut self, entries: usize) -> Self {
        self.page_max = entries.clamp(1, PAGE_MAX);
        self
    }

    /// Sets how many bytes end a page.
    #[must_use]
    pub fn with_page_bytes_max(mut self, bytes: usize) -> Self {
        self.page_bytes_max = bytes;
        self
    }

    /// Sets how long a repeated call is recognised.
    #[must_use]
    pub fn with_idempotency_time(mut self, time: Duration) -> Self {
        self.idempotency_time = time;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Traces;
    use std::sync::Arc;
    use treehold_store::MemoryStore;

    #[test]
    fn page_has_at_least_one_entry_and_at_most_the_maximum() {
        for (given, used) in [(0, 1), (7, 7), (PAGE_MAX + 1, PAGE_MAX)] {
            let mut options = TracesOptions::new();
            options.page_max = given;
            assert_eq!(Traces::new(Arc::new(MemoryStore::new())).with_options(options).options().page_max, used);
        }
    }
}
