//! Receiving the entries of a log as they are added.

use super::{BusEntry, EntryId, MessageBus};
use futures::stream::{self, Stream};
use std::collections::VecDeque;
use std::fmt;
use treehold_core::error::Result;
use treehold_store::{Namespace, Watch};

/// How many entries are read at once.
const PAGE: usize = 100;

/// The entries that are added to a log after the subscription was made, in order.
pub struct Subscription {
    bus: MessageBus,
    log: Namespace,
    watch: Watch,
    /// The last entry that was read.
    last: EntryId,
    received: VecDeque<BusEntry>,
}

impl Subscription {
    pub(super) async fn start(bus: MessageBus, log: Namespace) -> Result<Self> {
        // The watch comes first: it reports every commit that a read started after it might miss.
        let watch = bus.store.watch(&log).await?;
        let last = EntryId(bus.store.current_version(&log.partition()).await?);
        Ok(Self { bus, log, watch, last, received: VecDeque::new() })
    }

    /// Waits for the next entry. Cancel-safe: dropping the future loses no entry.
    ///
    /// # Errors
    /// As [`MessageBus::log_read`]. The next call continues after the last entry that was received.
    pub async fn next(&mut self) -> Result<BusEntry> {
        loop {
            if let Some(entry) = self.received.pop_front() {
                return Ok(entry);
            }
            let page = self.bus.page(&self.log, Some(self.last), PAGE).await?;
            match page.last() {
                Some(newest) => {
                    self.last = newest.id;
                    self.received = page.into();
                }
                None => drop(self.watch.changed().await?),
            }
        }
    }

    /// Returns the entries as a stream that ends with the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<BusEntry>> + Send {
        stream::unfold(Some(self), async |subscription| {
            let mut subscription = subscription?;
            let next = subscription.next().await;
            let rest = next.is_ok().then_some(subscription);
            Some((next, rest))
        })
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("log", &self.log).field("last", &self.last).finish_non_exhaustive()
    }
}
