//! Follows the feed: first past events, then new ones, each once and in order.

use super::position::Label;
use super::{Feed, FeedEvent, FeedPosition, FeedView, ROWS};
use futures::future::select_all;
use std::collections::VecDeque;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_store::Watch;

/// The events after a position, as they arrive.
#[derive(Debug)]
pub struct FeedTail {
    feed: Arc<Feed>,
    view: FeedView,
    watches: Vec<Watch>,
    found: VecDeque<(Label, FeedEvent)>,
    /// The position up to which everything was read.
    read: FeedPosition,
    /// The position up to which everything was returned.
    returned: FeedPosition,
    is_within_commit: bool,
    /// Whether there may be something to read.
    is_behind: bool,
}

impl FeedTail {
    pub(super) async fn new(feed: Arc<Feed>, view: FeedView, after: FeedPosition) -> Result<Self> {
        let mut watches = Vec::with_capacity(view.places.len());
        for place in &view.places {
            watches.push(feed.store.watch(&place.log).await?);
        }
        // Every partition is named, so that the position stands for nothing else later.
        let mut read = FeedPosition::start();
        for part in view.parts() {
            read.set(part.label, after.of(part.label));
        }
        Ok(Self { feed, view, watches, found: VecDeque::new(), returned: read.clone(), read, is_within_commit: false, is_behind: true })
    }

    /// Returns the position from which another tail continues with the first event that this one has not returned.
    ///
    /// While several events of one commit are being returned, it is the position before them.
    pub fn position(&self) -> &FeedPosition {
        &self.returned
    }

    /// Returns whether more events of the commit of the last event are still to be returned.
    pub fn is_within_commit(&self) -> bool {
        self.is_within_commit
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
            if let Some((label, event)) = self.found.pop_front() {
                let next = self.found.front();
                self.is_within_commit = next.is_some_and(|(next, of)| *next == label && of.position == event.position);
                match next {
                    None => self.returned.clone_from(&self.read),
                    Some(_) if self.is_within_commit => {}
                    Some(_) => self.returned.set(label, event.position),
                }
                return Ok(event);
            }
            if !self.is_behind {
                self.changed().await?;
                self.is_behind = true;
            }
            let page = self.feed.found_after(&self.view, &self.read, ROWS).await?;
            self.found.extend(page.events.into_iter().map(|(label, found)| (label, found.event)));
            self.read = page.position;
            self.is_behind = page.more;
            if self.found.is_empty() {
                self.returned.clone_from(&self.read);
            }
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
