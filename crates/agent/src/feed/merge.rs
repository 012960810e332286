//! One page of the events of several partitions.

use super::position::Label;
use super::{FeedPage, FeedPosition, Found, Look};
use jiff::Timestamp;
use std::collections::VecDeque;
use treehold_core::ops::Version;

/// The direction of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    OldestFirst,
    NewestFirst,
}

/// The events of one partition that were read for a page, in the order of the page.
pub(super) struct Run {
    label: Label,
    /// Where the page continues as long as nothing of this run is in it.
    start: Version,
    events: VecDeque<Found>,
    /// Where the page continues once all of it is in the page.
    end: Version,
    more: bool,
}

impl Run {
    pub(super) fn new(label: Label, start: Version, look: Look) -> Self {
        Self { label, start, events: look.events.into(), end: look.position, more: look.more }
    }

    /// Takes the events of the next commit.
    fn pop(&mut self) -> Vec<Found> {
        let Some(first) = self.events.front().map(|found| found.event.position) else { return Vec::new() };
        self.start = first;
        let of_commit = self.events.iter().take_while(|found| found.event.position == first).count();
        self.events.drain(..of_commit).collect()
    }

    /// Returns how many events the next commit has.
    fn next_len(&self) -> usize {
        let first = self.events.front().map(|found| found.event.position);
        self.events.iter().take_while(|found| Some(found.event.position) == first).count()
    }

    /// Returns whether the next event of the partition is not known.
    fn is_cut(&self) -> bool {
        self.events.is_empty() && self.more
    }

    fn next_time(&self) -> Option<(Timestamp, Timestamp)> {
        self.events.front().map(|found| (found.committed_at, found.event.at))
    }
}

/// A page whose events know their partitions.
pub(super) struct FoundPage {
    pub(super) events: Vec<(Label, Found)>,
    pub(super) position: FeedPosition,
    pub(super) more: bool,
}

impl From<FoundPage> for FeedPage {
    fn from(page: FoundPage) -> Self {
        Self { events: page.events.into_iter().map(|(_, found)| found.event).collect(), position: page.position, more: page.more }
    }
}

/// Merges what was read of each partition by the times of the commits, and ends the page after about `limit` events. Clocks may disagree, so
/// a commit may stand behind a later one of another partition; within a partition the order is that of the commits.
pub(super) fn merge(mut runs: Vec<Run>, limit: usize, order: Order) -> FoundPage {
    let mut events: Vec<(Label, Found)> = Vec::new();
    // An event that was not read yet may belong before all others.
    while !runs.iter().any(Run::is_cut) {
        let timed = runs.iter_mut().filter_map(|run| run.next_time().map(|time| (time, run)));
        let next = match order {
            Order::OldestFirst => timed.min_by_key(|(time, _)| *time),
            Order::NewestFirst => timed.max_by_key(|(time, _)| *time),
        };
        let Some((_, run)) = next else { break };
        let is_full = match order {
            Order::OldestFirst => !events.is_empty() && events.len() + run.next_len() > limit,
            Order::NewestFirst => events.len() >= limit,
        };
        if is_full {
            break;
        }
        let label = run.label;
        events.extend(run.pop().into_iter().map(|found| (label, found)));
    }
    let (mut position, mut more) = (FeedPosition::start(), false);
    for run in runs {
        more |= run.more || !run.events.is_empty();
        position.set(run.label, if run.events.is_empty() { run.end } else { run.start });
    }
    FoundPage { events, position, more }
}
