//! Rows that go along with a commit: a transactional outbox.
//!
//! Whoever changes something hands a [`Rider`] down with it. A tier whose change ends in a commit to the store that the rows are for adds them
//! to that commit, so that both are there or neither; another tier leaves it, and they are committed after the change.

use super::{BatchWrite, Store};
use crate::error::Result;
use crate::ops::{Along, Changed};
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;

/// What goes along with a change, see [`Ride`].
#[derive(Debug, Clone)]
pub(crate) struct Rider(pub(crate) Arc<dyn Ride>);

impl Rider {
    /// Returns those that are for a store, and says that they are taken.
    pub(crate) fn taken(along: &Along, store: &Arc<dyn Store>) -> Vec<Self> {
        let riders = along.iter::<Self>().filter(|rider| rider.0.is_of(store));
        riders.inspect(|rider| rider.0.take()).cloned().collect()
    }

    /// Notes that a commit with their rows was done.
    pub(crate) fn settle(riders: &[Self], checkpoint: Option<[u8; 16]>) {
        riders.iter().for_each(|rider| rider.0.settle(checkpoint));
    }
}

/// Tells whether two handles are of one store.
pub(crate) fn is_same(one: &Arc<dyn Store>, other: &Arc<dyn Store>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// Rows for the commit of a change.
pub(crate) trait Ride: Send + Sync + fmt::Debug {
    /// Tells whether the rows are for a store.
    fn is_of(&self, store: &Arc<dyn Store>) -> bool;

    /// Says that whoever calls it commits the rows with the change.
    fn take(&self);

    /// Tells whether somebody has said so.
    fn is_taken(&self) -> bool;

    /// Notes what became of the changes.
    fn know(&self, changed: &[Changed]);

    /// Returns the rows: writes for a batch whose next put is of the number `next_put`, in which the file of each change was put by the put of
    /// the number that `file_put` tells, if it was. The commit may make a checkpoint.
    fn rows(&self, next_put: usize, file_put: &dyn Fn(usize) -> Option<usize>, checkpoint: Option<[u8; 16]>) -> Result<Vec<BatchWrite>>;

    /// Notes that a commit with the rows was done.
    fn settle(&self, checkpoint: Option<[u8; 16]>);

    /// Returns one that tells instead that all is another, of the same tree; none where no change is told of.
    fn folded(&self) -> Option<Rider>;

    /// Returns how many changes they tell of.
    fn count(&self) -> usize;

    /// Commits the rows of the first changes by themselves. When that fails there is no one to refuse the change to: the loss is logged and
    /// counted.
    fn send(&self, count: usize) -> BoxFuture<'_, ()>;
}
