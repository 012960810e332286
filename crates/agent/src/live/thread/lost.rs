//! What is known about the saved thread, and the search for checkpoints whose puts had an unknown outcome.

use super::LiveThread;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_tree::checkpoint::{At, Checkpoint, CheckpointId, Checkpointer, Head, ListOptions, Saved};

/// How many checkpoints with an unknown outcome are remembered.
const UNSETTLED_MAX: usize = 16;

/// The most checkpoints that are searched for a child of a lost one, and the number per page.
const FOLLOWERS_MAX: usize = 5_000;
const FOLLOWERS: usize = 100;

/// What is known about the saved thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    /// Its newest checkpoint, if it has one.
    pub(super) head: Option<Head>,
    /// The version of the state at that checkpoint: while it is the same, nothing changed.
    pub(super) state: Option<Version>,
    /// The checkpoints whose put had an unknown outcome; any of them may be the head.
    pub(super) unsettled: Vec<Unsettled>,
    /// The refusal of a put because others have moved the head. The store never takes the old head again, so no further put is tried.
    pub(super) refusal: Option<Refusal>,
}

/// A checkpoint whose put had an unknown outcome.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unsettled {
    pub(super) id: CheckpointId,
    /// The version of its state; `None` for a restored or merged state, which has no version in this session.
    pub(super) version: Option<Version>,
    /// The end of the held outbox entries that it commits.
    pub(super) held_end: u64,
}

/// What is known about a save that others prevented.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    message: String,
    current: Option<Version>,
}

impl Refusal {
    /// Returns the error of a save that is not tried again.
    pub(super) fn error(&self) -> Error {
        Error::new(ErrorKind::Conflict, self.message.clone()).with_current_version(self.current)
    }
}

impl Kept {
    /// Remembers a checkpoint whose put had an unknown outcome.
    pub(super) fn unsettle(&mut self, checkpoint: Unsettled) {
        self.unsettled.truncate(UNSETTLED_MAX - 1);
        self.unsettled.insert(0, checkpoint);
    }

    /// Remembers that others have moved the head, as the error of a put says.
    pub(super) fn refuse(&mut self, error: &Error) {
        self.unsettled.clear();
        self.refusal = Some(Refusal { message: error.message().to_owned(), current: error.current_version() });
    }

    /// Returns the version of a checkpoint's state, if its put had an unknown outcome.
    pub(super) fn own(&self, id: CheckpointId) -> Option<Option<Version>> {
        self.unsettled.iter().find(|own| own.id == id).map(|own| own.version)
    }

    /// Returns the end of the held outbox entries that a checkpoint commits whose put had an unknown outcome.
    pub(super) fn held_end(&self, id: CheckpointId) -> u64 {
        self.unsettled.iter().find(|own| own.id == id).map_or(0, |own| own.held_end)
    }

    /// Records a save: the version of the state, and the new head unless others have continued from it.
    ///
    /// If they have, the old head remains, which is outdated, so the next save is refused.
    pub(super) fn settle(&mut self, head: Option<Head>, state: Option<Version>) {
        *self = Self { head: head.or(self.head), state, ..Self::default() };
    }
}

/// The outcome of the checkpoints whose puts had an unknown outcome.
pub(super) enum Lost {
    /// One of them was saved and is durable.
    Saved {
        id: CheckpointId,
        /// The version of its state; `None` for a state that this session never held.
        state: Option<Version>,
        /// `None` if it has been removed since.
        checkpoint: Option<Box<Checkpoint>>,
        /// `None` if others have continued from it.
        head: Option<Head>,
    },
    /// None of them was saved, and the head is still their parent: one of them may still be in flight.
    Open,
    /// None of them was saved, and none can be saved any more: others have continued from their parent.
    Gone,
    /// Checkpoints were removed since, and one of these may have been among them.
    Unknown,
}

impl LiveThread {
    /// Searches for the checkpoints with an unknown outcome, at the head and among its ancestors. Makes a found one durable first, because
    /// a read may show what a crash of the store would undo.
    ///
    /// Cost: one read while the head is unchanged. Otherwise one more read for each checkpoint, and a commit for a found one. If none is
    /// found, the thread's checkpoints are listed, back to the time of the lost ones.
    pub(super) async fn find_lost(&self, kept: &Kept, checkpointer: &dyn Checkpointer) -> Result<Lost> {
        let Some(Saved { checkpoint: newest, .. }) = checkpointer.get(&self.scope, At::Latest).await? else {
            return Ok(if kept.head.is_none() { Lost::Open } else { Lost::Gone });
        };
        if kept.head.is_some_and(|head| head.id == newest.id) {
            return Ok(Lost::Open);
        }
        for Unsettled { id, version, .. } in &kept.unsettled {
            if let Some(Saved { checkpoint, head, .. }) = checkpointer.confirm(&self.scope, *id).await? {
                return Ok(Lost::Saved { id: *id, state: *version, checkpoint: Some(Box::new(checkpoint)), head });
            }
        }
        // It may have been removed; then its child names it as parent. Ids grow from each checkpoint to the next.
        let Some(first) = kept.unsettled.iter().map(|own| own.id).min() else { return Ok(Lost::Gone) };
        let mut options = ListOptions::new().with_limit(FOLLOWERS);
        for _ in 0..FOLLOWERS_MAX / FOLLOWERS {
            let page = checkpointer.list(&self.scope, &options).await?;
            for Checkpoint { id, parent, .. } in page.checkpoints {
                let Some(parent) = parent.filter(|parent| parent.thread.is_none()) else { return Ok(Lost::Gone) };
                if let Some(state) = kept.own(parent.id) {
                    // If the child is durable, its parent is too.
                    return Ok(match checkpointer.confirm(&self.scope, id).await? {
                        Some(_) => Lost::Saved { id: parent.id, state, checkpoint: None, head: None },
                        None => Lost::Unknown,
                    });
                }
                if parent.id < first {
                    return Ok(Lost::Gone);
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        Ok(Lost::Unknown)
    }
}
