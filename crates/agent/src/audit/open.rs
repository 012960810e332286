//! A call in progress, whose row commits with its first change.

use super::{AuditLog, AuditRow, OUTCOME_OK, write};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use treehold_core::error::Result;
use treehold_core::scope::Scope;
use treehold_store::{BatchWrite, OutboxEntry, OutboxRows, Partition, Store};
use treehold_tree::checkpoint::{CheckpointId, partition_of};

/// A call in progress, and its row.
#[derive(Debug)]
pub(crate) struct OpenCall {
    log: Arc<AuditLog>,
    scope: Scope,
    started: Instant,
    state: Mutex<CallState>,
}

#[derive(Debug)]
struct CallState {
    row: AuditRow,
    /// Whether the row has the outcome of the call.
    is_done: bool,
    /// Whether the row is reserved for the checkpoint that the call itself saves, and for no other commit.
    is_claimed: bool,
    /// The outcome that was committed with a change, if one was.
    kept: Option<String>,
    /// Whether the call has ended and its row was put.
    is_over: bool,
}

/// The extension of a batch that a call makes. Each mount adds the call's row to the outbox of its changes.
#[derive(Debug, Clone)]
pub(crate) struct CurrentCall(pub(crate) Arc<OpenCall>);

/// The row of a call in the outbox of a change or of a save.
#[derive(Debug)]
pub(crate) struct CallEntry {
    call: Arc<OpenCall>,
    /// Whether it belongs to the commit by which the call itself saves its thread.
    is_own: bool,
}

impl CallEntry {
    /// Creates the entry for a change that the call makes.
    pub(crate) fn of_change(call: Arc<OpenCall>) -> Self {
        Self { call, is_own: false }
    }

    /// Creates the entry for the commit by which the call saves its thread.
    pub(crate) fn of_save(call: Arc<OpenCall>) -> Self {
        Self { call, is_own: true }
    }
}

impl OutboxEntry for CallEntry {
    fn store(&self) -> &Arc<dyn Store> {
        &self.call.log.store
    }

    fn is_in(&self, partition: &Partition) -> bool {
        partition_of(&self.call.scope).is_ok_and(|own| own == *partition)
    }

    fn write(&self, rows: &mut OutboxRows) -> Result<()> {
        if let Some(row) = self.call.write(rows.checkpoint(), self.is_own)? {
            rows.push(row);
        }
        Ok(())
    }

    fn committed(&self, checkpoint: Option<CheckpointId>) {
        self.call.settle(checkpoint, self.is_own);
    }

    /// The row of a call is written at its end at the latest.
    fn is_required(&self) -> bool {
        false
    }
}

impl OpenCall {
    pub(crate) fn new(log: Arc<AuditLog>, scope: Scope, row: AuditRow) -> Arc<Self> {
        let state = CallState { row, is_done: false, is_claimed: false, kept: None, is_over: false };
        Arc::new(Self { log, scope, started: Instant::now(), state: Mutex::new(state) })
    }

    /// Sets the outcome of the call, before its thread is saved.
    pub(crate) fn done(&self, outcome: &str, bytes_out: u64) {
        let mut state = self.state.lock();
        outcome.clone_into(&mut state.row.outcome);
        state.row.bytes_out = Some(bytes_out);
        (state.is_done, state.is_claimed) = (true, true);
    }

    /// Starts another attempt of the call. The state that the earlier one changed is gone.
    pub(crate) fn retry(&self) {
        let mut state = self.state.lock();
        (state.is_done, state.is_claimed, state.kept) = (false, false, None);
        state.row.checkpoint = None;
    }

    /// Returns the write of the row for a commit, stating the outcome that holds if the commit succeeds. The commit may create a
    /// checkpoint, by the call's own save if `is_own`. Returns `None` if the row is not part of this commit.
    fn write(&self, checkpoint: Option<CheckpointId>, is_own: bool) -> Result<Option<BatchWrite>> {
        let row = {
            let state = self.state.lock();
            if state.is_over || state.is_claimed && !is_own {
                return Ok(None);
            }
            let mut row = state.row.clone();
            if !state.is_done {
                OUTCOME_OK.clone_into(&mut row.outcome);
            }
            set_checkpoint(&mut row, checkpoint, is_own && state.kept.is_none());
            row
        };
        write(&self.scope, &AuditRow { duration: self.started.elapsed(), ..row }).map(Some)
    }

    /// Records that the row was committed.
    fn settle(&self, checkpoint: Option<CheckpointId>, is_own: bool) {
        let mut state = self.state.lock();
        if state.is_over || state.is_claimed && !is_own {
            return;
        }
        let is_first = state.kept.is_none();
        set_checkpoint(&mut state.row, checkpoint, is_own && is_first);
        let outcome = if state.is_done { state.row.outcome.clone() } else { OUTCOME_OK.to_owned() };
        state.kept = Some(outcome);
    }

    /// Puts the row of a call that ended, unless it was already committed with this outcome.
    pub(crate) async fn end(&self, outcome: &str, bytes_out: Option<u64>, checkpoint: Option<CheckpointId>) {
        let row = {
            let mut state = self.state.lock();
            state.is_over = true;
            let is_led = checkpoint.is_none() || state.row.checkpoint == checkpoint;
            if is_led && state.kept.as_deref() == Some(outcome) {
                return;
            }
            let is_first = state.kept.is_none();
            outcome.clone_into(&mut state.row.outcome);
            state.row.bytes_out = bytes_out;
            state.row.duration = self.started.elapsed();
            set_checkpoint(&mut state.row, checkpoint, is_first);
            state.row.clone()
        };
        self.log.record(&self.scope, &row).await;
    }
}

/// Sets the checkpoint that a call led to. With `takes_id`, the row also takes over the checkpoint's id; a caller must not set it for a row
/// that was committed under its own id, or for a checkpoint of another call.
fn set_checkpoint(row: &mut AuditRow, checkpoint: Option<CheckpointId>, takes_id: bool) {
    if let Some(checkpoint) = checkpoint {
        row.checkpoint = Some(checkpoint);
        if takes_id {
            row.id = checkpoint;
        }
    }
}
