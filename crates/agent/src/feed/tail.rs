//! Follows the feed: first past events, then new ones, each once and in order.

use super::{Feed, FeedEvent, FeedView, ROWS};
use futures::future::select_all;
use std::collections::VecDeque;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_store::Watch;

/// The events after a position, as they arrive.
#[derive(Debug)]
pub struct FeedTail {
    feed: Arc<Feed>,
    view: FeedView,
    watches: Vec<Watch>,
    found: VecDeque<FeedEvent>,
    /// The position up to which everything was read.
    position: Version,
    /// Whether there may be something to read.
    is_behind: bool,
}

impl FeedTail {
    pub(super) async fn new(feed: Arc<Feed>, view: FeedView, after: Version) -> Result<Self> {
        let mut watches = Vec::with_capacity(view.places.len());
        for place in &view.places {
            watches.push(feed.store.watch(&place.log).await?);
        }
        Ok(Self { feed, view, watches, found: VecDeque::new(), position: after, is_behind: true })
    }

    /// Returns the position from which another tail continues with the first event that this one has not returned.
    ///
    /// While several events of one position are being returned, it is the position before them.
    pub fn position(&self) -> Version {
        match self.found.front() {
            Some(next) => Version::new(next.position.number().saturating_sub(1)),
            None => self.position,
        }
    }

    /// Returns whether all events so far have been returned.
    pub fn is_caught_up(&self) -> bool {
        !self.is_behind && self.found.is_empty()
    }

    /// Waits for the next event. Cancel-safe: dropping the future loses no event.
    ///
    /// # Errors
    /// Those of [`Feed::after`], and [`Unavailable`](treehold_core::error::ErrorKind::Unavailable) once the store is closed. The next
    /// call tries again.
    pub async fn next(&mut self) -> Result<FeedEvent> {
        loop {
            if let Some(event) = self.found.pop_front() {
                return Ok(event);
            }
            if !self.is_behind {
                self.changed().await?;
                self.is_behind = true;
            }
            let page = self.feed.after(&self.view, self.position, ROWS).await?;
            self.found.extend(page.events);
            self.position = page.position;
            self.is_behind = page.more;
        }
    }

    /// Waits until a log may have grown.
    async fn changed(&mut self) -> Result<()> {
        if self.watches.is_empty() {
            return std::future::pending().await;
        }
        let waits = self.watches.iter_mut().map(|watch| Box::pin(watch.changed()));
        select_all(waits).await.0.map(drop)
    }
}
