//! Limits and other settings.

use std::time::Duration;

/// The settings of [`Sessions`](crate::Sessions).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionsOptions {
    /// The largest message, event, document or other single value in bytes. Default 1 MiB.
    pub item_bytes_max: usize,
    /// The most messages of one append. Default 1,000.
    pub batch_max: usize,
    /// The largest append in bytes. Default 16 MiB.
    pub batch_bytes_max: usize,
    /// The most entries of one page, at least 1. Default 1,000.
    pub page_max: usize,
    /// How long a repeated append with the same idempotency key is recognised. Default 24 hours.
    pub idempotency_time: Duration,
    /// The most bytes that one call reads of a session. Default unlimited.
    pub read_bytes_max: usize,
    /// Whether to accept a tool result whose call is not in the session. Default false.
    pub accept_orphan_results: bool,
}

impl Default for SessionsOptions {
    fn default() -> Self {
        Self {
            item_bytes_max: 1 << 20,
            batch_max: 1_000,
            batch_bytes_max: 16 << 20,
            page_max: 1_000,
            idempotency_time: Duration::from_secs(24 * 60 * 60),
            read_bytes_max: usize::MAX,
            accept_orphan_results: false,
        }
    }
}

impl SessionsOptions {
    /// Starts from the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the largest single value in bytes.
    #[must_use]
    pub fn with_item_bytes_max(mut self, bytes: usize) -> Self {
        self.item_bytes_max = bytes;
        self
    }

    /// Sets the most messages of one append.
    #[must_use]
    pub fn with_batch_max(mut self, messages: usize) -> Self {
        self.batch_max = messages;
        self
    }

    /// Sets the largest append in bytes.
    #[must_use]
    pub fn with_batch_bytes_max(mut self, bytes: usize) -> Self {
        self.batch_bytes_max = bytes;
        self
    }

    /// Sets the most entries of one page; 0 counts as 1.
    #[must_use]
    pub fn with_page_max(mut self, entries: usize) -> Self {
        self.page_max = entries;
        self
    }

    /// Sets how long a repeated append is recognised.
    #[must_use]
    pub fn with_idempotency_time(mut self, time: Duration) -> Self {
        self.idempotency_time = time;
        self
    }

    /// Sets the most bytes that one call reads of a session. A call that would read more fails with
    /// [`TooLarge`](treehold_core::ErrorKind::TooLarge). Servers set it, so that no request fills their memory.
    #[must_use]
    pub fn with_read_bytes_max(mut self, bytes: usize) -> Self {
        self.read_bytes_max = bytes;
        self
    }

    /// Sets whether tool results without a call are accepted.
    #[must_use]
    pub fn with_accept_orphan_results(mut self, accept: bool) -> Self {
        self.accept_orphan_results = accept;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sessions;
    use std::sync::Arc;
    use treehold_store::MemoryStore;

    /// Regression: a sweep with such pages never ended, and an inspector's list panicked.
    #[tokio::test]
    async fn page_has_at_least_one_entry() {
        let sessions = Sessions::new(Arc::new(MemoryStore::new())).with_options(SessionsOptions::new().with_page_max(0));
        for id in ["s", "t"] {
            sessions.get_or_create("acme", "ada", "helper", Some(id)).await.expect("created");
        }
        assert_eq!(sessions.options().page_max, 1);
        let page = sessions.list("acme", "ada", 9, None).await.expect("listed");
        assert_eq!((page.sessions.len(), page.next.is_some()), (1, true));
    }
}
