//! Prevents readers from showing rows that are not durable yet.
//!
//! The engine shows a group of commits as soon as it is applied, shortly before the disk has it. If the disk then failed, a reader would
//! have shown rows that were never acknowledged and that are gone after a restart; worse, a caller that checks whether its own write took
//! effect would take them as proof. So the writer announces the keys of a group before it applies the group, and a read that finds one of
//! them waits for the end of the barrier before it returns. Reads of other rows do not wait. After a failed write, all reads and writes are
//! refused until the store is opened again.

use super::rows::{record_key, records_end};
use parking_lot::RwLock;
use std::sync::Arc;
use tokio::sync::watch;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::Namespace;
use treehold_store::page::prefix_end;

/// The current group, if any, and the failure of a write, if there was one.
pub(super) struct Pending {
    state: RwLock<State>,
    /// The number of the last group that has ended, successfully or not.
    ended: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    groups: u64,
    group: Option<Group>,
    failure: Option<Arc<Error>>,
}

/// A group that is applied, or about to be, and not durable yet.
struct Group {
    number: u64,
    /// The keys of the records it changes, in order.
    keys: Vec<Vec<u8>>,
}

/// The rows that a read has seen.
pub(super) enum Seen {
    /// These records.
    Records(Vec<Vec<u8>>),
    /// All records from the first key (inclusive) up to the second (exclusive).
    Range(Vec<u8>, Vec<u8>),
    /// Any record of the store.
    All,
}

impl Seen {
    /// Returns the records of some keys.
    pub(super) fn records<'k>(namespace: &Namespace, keys: impl IntoIterator<Item = &'k str>) -> Self {
        Self::Records(keys.into_iter().map(|key| record_key(namespace, key)).collect())
    }

    /// Returns the records whose keys start with a prefix.
    pub(super) fn prefix(namespace: &Namespace, prefix: &str) -> Self {
        Self::Range(record_key(namespace, prefix), records_end(namespace, prefix_end(prefix).as_deref()))
    }
}

impl Group {
    fn changes(&self, seen: &Seen) -> bool {
        match seen {
            Seen::Records(records) => records.iter().any(|record| self.keys.binary_search(record).is_ok()),
            Seen::Range(start, end) => {
                let first = self.keys.partition_point(|key| key < start);
                self.keys.get(first).is_some_and(|key| key < end)
            }
            Seen::All => true,
        }
    }
}

impl Default for Pending {
    fn default() -> Self {
        Self { state: RwLock::default(), ended: watch::Sender::new(0) }
    }
}

impl Pending {
    /// Announces a group by the keys of the records it changes, in order. Called before the first of them changes.
    pub(super) fn begin(&self, keys: Vec<Vec<u8>>) {
        debug_assert!(keys.is_sorted(), "the keys are not sorted, and lookups search them by bisection");
        let mut state = self.state.write();
        state.groups += 1;
        state.group = Some(Group { number: state.groups, keys });
    }

    /// Ends the group: it is durable, and readers may show it.
    pub(super) fn settle(&self) {
        self.end(None);
    }

    /// Closes the store: a write failed, and it is unknown what the disk holds of it.
    pub(super) fn fail(&self, failure: Arc<Error>) {
        self.end(Some(failure));
    }

    fn end(&self, failure: Option<Arc<Error>>) {
        let mut state = self.state.write();
        state.group = None;
        if state.failure.is_none() {
            state.failure = failure;
        }
        let groups = state.groups;
        drop(state);
        self.ended.send_replace(groups);
    }

    /// Returns the failure that closed the store, if one has.
    pub(super) fn failure(&self) -> Option<Arc<Error>> {
        self.state.read().failure.clone()
    }

    /// Fails if a failed write has closed the store.
    pub(super) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |failure| Err(closed(&failure)))
    }

    /// Waits until what a read has seen is durable. Call it after the read: it cannot have seen a group that begins later.
    pub(super) async fn shown(&self, seen: &Seen) -> Result<()> {
        let number = {
            let state = self.state.read();
            if let Some(failure) = &state.failure {
                return Err(closed(failure));
            }
            match state.group.as_ref().filter(|group| group.changes(seen)) {
                Some(group) => group.number,
                None => return Ok(()),
            }
        };
        // The sender lives as long as `self`, so the wait ends with the group.
        let _ = self.ended.subscribe().wait_for(|ended| *ended >= number).await;
        self.check()
    }
}

/// Returns the error for a store closed by a failed write.
pub(super) fn closed(failure: &Arc<Error>) -> Error {
    let kind = if failure.kind() == ErrorKind::Corrupt { ErrorKind::Corrupt } else { ErrorKind::Unavailable };
    let message =
        "a write to the store failed, and it is closed to reads and changes until it is opened again; free its disk, then restart";
    Error::new(kind, message).with_source(failure.clone()).without_effect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn namespace() -> Namespace {
        Namespace::new(["ada", "notes"]).expect("a namespace")
    }

    fn pending(keys: &[&str]) -> Pending {
        let pending = Pending::default();
        pending.begin(keys.iter().map(|key| record_key(&namespace(), key)).collect());
        pending
    }

    #[test]
    fn only_reads_of_pending_rows_wait() {
        let pending = pending(&["b", "d/1", "x"]);
        let waits = |seen: Seen| pending.shown(&seen).now_or_never().is_none();
        for (keys, expected) in [(&["b"][..], true), (&["a", "c"], false), (&["a", "x"], true), (&["d"], false), (&[], false)] {
            assert_eq!(waits(Seen::records(&namespace(), keys.iter().copied())), expected, "{keys:?}");
        }
        for (prefix, expected) in [("", true), ("a", false), ("b", true), ("d/", true), ("d/2", false), ("e", false), ("y", false)] {
            assert_eq!(waits(Seen::prefix(&namespace(), prefix)), expected, "`{prefix}`");
        }
        let other = Namespace::new(["ada", "notes2"]).expect("a namespace");
        assert!(!waits(Seen::prefix(&other, "")));
        assert!(waits(Seen::All));
    }

    #[tokio::test]
    async fn waiting_read_returns_once_the_group_is_durable() {
        let pending = pending(&["b"]);
        let seen = Seen::All;
        let mut read = Box::pin(pending.shown(&seen));
        assert!(futures::poll!(&mut read).is_pending());
        pending.settle();
        read.await.expect("it is durable");
        pending.shown(&seen).await.expect("nothing is pending");
    }

    #[tokio::test]
    async fn waiting_and_later_reads_are_refused_after_a_failure() {
        let pending = pending(&["b"]);
        let seen = Seen::records(&namespace(), ["b"]);
        let mut read = Box::pin(pending.shown(&seen));
        assert!(futures::poll!(&mut read).is_pending());
        pending.fail(Arc::new(Error::new(ErrorKind::Unavailable, "the disk is full")));
        assert_eq!(read.await.expect_err("it may be gone").kind(), ErrorKind::Unavailable);
        let unrelated = Seen::records(&namespace(), ["z"]);
        assert_eq!(pending.shown(&unrelated).await.expect_err("the store is closed").kind(), ErrorKind::Unavailable);
        pending.settle();
        assert!(pending.check().is_err(), "only opening it again helps");
    }
}
