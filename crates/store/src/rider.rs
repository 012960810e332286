//! Rows that join the commit of a change: a transactional outbox.
//!
//! The initiator of a change passes a [`Rider`] down with it. A tier that commits the change to the store of the
//! rider's rows adds them to that commit, so that both take effect or neither. If no tier does, the rows are committed
//! after the change.

use super::{BatchWrite, Store};
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::{Along, Changed};

/// Rows that travel with a change, see [`Ride`].
#[derive(Debug, Clone)]
pub struct Rider(pub Arc<dyn Ride>);

impl Rider {
    /// Returns the riders whose rows belong to `store`, and marks them as taken.
    pub fn taken(along: &Along, store: &Arc<dyn Store>) -> Vec<Self> {
        let riders = along.iter::<Self>().filter(|rider| rider.0.is_of(store));
        riders.inspect(|rider| rider.0.take()).cloned().collect()
    }

    /// Reports that a commit with the riders' rows is done.
    pub fn settle(riders: &[Self], checkpoint: Option<[u8; 16]>) {
        riders.iter().for_each(|rider| rider.0.settle(checkpoint));
    }
}

/// Returns whether two handles refer to the same store.
pub fn is_same(one: &Arc<dyn Store>, other: &Arc<dyn Store>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// Rows to commit together with a change.
pub trait Ride: Send + Sync + fmt::Debug {
    /// Returns whether the rows belong to `store`.
    fn is_of(&self, store: &Arc<dyn Store>) -> bool;

    /// Marks the rows as taken: the caller commits them with the change.
    fn take(&self);

    /// Returns whether the rows were taken.
    fn is_taken(&self) -> bool;

    /// Records the outcome of the changes.
    fn know(&self, changed: &[Changed]);

    /// Returns the writes to add to a batch that makes a checkpoint, if `checkpoint` is set. The batch's puts are
    /// counted from 0: the first put of these writes has the number `next_put`, and `file_put` returns the number of
    /// the put that wrote the file of a change, if one did.
    fn rows(&self, next_put: usize, file_put: &dyn Fn(usize) -> Option<usize>, checkpoint: Option<[u8; 16]>) -> Result<Vec<BatchWrite>>;

    /// Reports that a commit with the rows is done.
    fn settle(&self, checkpoint: Option<[u8; 16]>);

    /// Returns a rider for the same tree that announces a single change of everything; `None` if this one announces no
    /// changes.
    fn folded(&self) -> Option<Rider>;

    /// Returns how many changes the rows announce.
    fn count(&self) -> usize;

    /// Commits the rows of the first `count` changes on their own. The changes have already taken effect, so a failure
    /// is logged and counted.
    fn send(&self, count: usize) -> BoxFuture<'_, ()>;
}
