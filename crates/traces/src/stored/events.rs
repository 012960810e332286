//! Appends, reads and follows events.

use super::StoredTraces;
use super::rows::{Opened, Part, position_key};
use super::text::{check_name, page_limit};
use super::{no_trace, rows};
use crate::contract::EventStream;
use crate::id::TraceId;
use crate::model::{EventsPage, OtherFields, TraceEvent};
use futures::stream::{self, StreamExt};
use std::collections::VecDeque;
use treehold_core::error::{Error, Result};
use treehold_core::json::stored;
use treehold_core::retry::Attempts;
use treehold_store::{ScanEntry, ScanOptions, Watch};

/// The most events that a follower reads at once.
const FOLLOWED_MAX: usize = 100;

impl StoredTraces {
    /// Appends an event. Cost: two round trips.
    pub(super) async fn put_event(&self, id: &TraceId, kind: &str, data: &OtherFields) -> Result<u64> {
        check_name("kind of the event", kind)?;
        let mut attempts = Attempts::new();
        loop {
            let mut draft = self.draft(id).await?;
            let event_id = draft.event(kind, data)?;
            if draft.commit().await? {
                return Ok(event_id);
            }
            attempts.lost().await?;
        }
    }

    /// Returns a page of events. Cost: two round trips.
    pub(super) async fn events(&self, id: &TraceId, since_event_id: u64, limit: usize) -> Result<EventsPage> {
        let limit = page_limit(limit, self.options().page_max)?;
        let opened = self.find_existing(id).await?;
        self.events_after(&opened, since_event_id, limit).await
    }

    async fn events_after(&self, opened: &Opened, since_event_id: u64, limit: usize) -> Result<EventsPage> {
        let options = ScanOptions::new().with_start_after(position_key(since_event_id)).with_limit(limit).with_values(true);
        let options = options.with_bytes_max(self.options().page_bytes_max);
        let page = self.store().scan(&self.part(opened, Part::Events)?, options).await?;
        let mut events: Vec<TraceEvent> = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            let expected = since_event_id.saturating_add(events.len() as u64).saturating_add(1);
            if item.key != position_key(expected) {
                return Err(missing(expected));
            }
            events.push(stored("event", &item.value)?);
        }
        let end = since_event_id.saturating_add(events.len() as u64);
        if page.next.is_none() && end < opened.head.last_event_id {
            return Err(missing(end + 1));
        }
        Ok(EventsPage { events, more: page.next.is_some() })
    }

    /// Follows events. Holds at most one page of them. Cost: two round trips for each page, and for each report of new rows.
    pub(super) async fn follow(&self, id: &TraceId, since_event_id: u64) -> Result<EventStream> {
        let opened = self.find_existing(id).await?;
        // Made before the first read, so that no event between the two is missed.
        let watch = self.store().watch(&self.part(&opened, Part::Events)?).await?;
        let follower = Follower {
            traces: self.clone(),
            id: id.clone(),
            data: opened.head.data,
            watch,
            seen: since_event_id,
            read: VecDeque::new(),
            is_stale: true,
            is_over: false,
        };
        Ok(stream::unfold(follower, |mut follower| async move {
            let next = follower.next().await?;
            follower.is_over = next.is_err();
            Some((next, follower))
        })
        .boxed())
    }
}

fn missing(event_id: u64) -> Error {
    rows::corrupt(format!("the row of event {event_id} is missing; restore a backup"))
}

/// A reader that waits for further events.
struct Follower {
    traces: StoredTraces,
    id: TraceId,
    /// The trace's data. A trace that is created again with the same id is another one.
    data: String,
    watch: Watch,
    /// The id of the last event that was read.
    seen: u64,
    /// Events that were read and not returned yet.
    read: VecDeque<TraceEvent>,
    /// Whether there may be events after the last one that was read.
    is_stale: bool,
    is_over: bool,
}

impl Follower {
    /// Returns the next event, and waits for it; `None` after an error.
    async fn next(&mut self) -> Option<Result<TraceEvent>> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Some(Ok(event));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.read_more().await {
                return Some(Err(error));
            }
        }
    }

    async fn read_more(&mut self) -> Result<()> {
        if !self.is_stale {
            self.watch.changed().await?;
            self.is_stale = true;
        }
        let opened = self.traces.find_existing(&self.id).await?;
        if opened.head.data != self.data {
            return Err(no_trace(&self.id));
        }
        if opened.head.last_event_id <= self.seen {
            self.is_stale = false;
            return Ok(());
        }
        let page = self.traces.events_after(&opened, self.seen, FOLLOWED_MAX).await?;
        self.seen = page.events.last().map_or(self.seen, |event| event.event_id);
        self.is_stale = page.more;
        self.read.extend(page.events);
        Ok(())
    }
}
