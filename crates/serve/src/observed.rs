//! The layer that observes every operation on the served tree: duration, outcome and bytes, as metrics and as a span.

use super::large::{LargeAnswers, may_be_large};
use super::metrics::Metrics;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{Instrument, debug_span};
use treehold_core::error::Result;
use treehold_core::ops::{Change, Op, OpKind};
use treehold_core::work::{self, Owner};
use treehold_tree::layer::{Layer, LayerName, Next, Reply};

/// Counts and times operations, bounds how many have a large result, and sets their owner, since a request may be answered by tasks that run without one.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    pub(super) metrics: Arc<Metrics>,
    pub(super) large: Arc<LargeAnswers>,
    pub(super) owner: Owner,
    /// How long one operation may take.
    pub(super) deadline: Duration,
}

/// A running operation. Dropping it counts the operation, however it ended.
struct Running<'a> {
    metrics: &'a Metrics,
    kind: OpKind,
    begun: Instant,
    outcome: &'static str,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.metrics.operation(self.kind, self.outcome, self.begun.elapsed());
    }
}

#[async_trait]
impl Layer for Observed {
    fn name(&self) -> LayerName {
        LayerName::new("Observed")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        let _slot = if may_be_large(op.kind) { self.large.take(&self.owner, self.deadline / 2).await? } else { None };
        let mut running = Running { metrics: &self.metrics, kind: op.kind, begun: Instant::now(), outcome: "given_up" };
        let span = debug_span!("operation", vfs.operation = op.kind.name(), vfs.path = %op.path, error.type = tracing::field::Empty);
        let run = work::as_owner(self.owner.clone(), Some(self.deadline), next.run());
        let done = run.instrument(span.clone()).await;
        match &done {
            Ok(reply) => {
                running.outcome = "ok";
                self.metrics.content(reply.content_bytes(), op.changes.iter().map(carried).sum());
            }
            Err(error) => {
                running.outcome = error.kind().code();
                span.record("error.type", running.outcome);
            }
        }
        done
    }
}

/// Returns how many bytes of content a change carries.
fn carried(change: &Change) -> u64 {
    match change {
        Change::Write { content, .. } | Change::Append { content, .. } => content.len() as u64,
        Change::Edit { edits, .. } => edits.iter().map(|edit| edit.new.len() as u64).sum(),
        _ => 0,
    }
}
