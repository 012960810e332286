//! Zero-copy access to rows in memory, for readers that visit many rows and keep few.
//!
//! A page of a scan hands its rows over, so each must be built: a key, a record, a share of the body. A store that
//! keeps its rows in memory can instead show them in place ([`SnapshotRows`]), as of one moment, for as long as the
//! reader holds the snapshot. Readers of other stores scan them in pages.

use super::Namespace;
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;

/// Reads rows in place: the optional extension of stores that keep their rows in memory.
#[async_trait]
pub trait SnapshotRows: Send + Sync {
    /// Returns the rows of a namespace as of one moment. Returns `None` if it turns out that the store has none in
    /// memory, as a wrapper that opens its store on first use may; then callers use
    /// [`Store::scan`](super::Store::scan).
    ///
    /// Cost: one round trip, independent of the number of rows.
    ///
    /// # Errors
    /// As [`Store::get`](super::Store::get).
    async fn snapshot_rows(&self, namespace: &Namespace) -> Result<Option<Arc<dyn RowsSnapshot>>>;
}

/// The live rows of one namespace at one moment, in place.
///
/// Later commits are invisible. Rows that they replace stay in memory until this is dropped.
pub trait RowsSnapshot: Send + Sync + fmt::Debug {
    /// Returns one row, if it exists.
    ///
    /// Cost: as [`Store::get`](super::Store::get), without copies.
    fn get(&self, key: &str) -> Option<SnapshotRow<'_>>;

    /// Returns the rows in `start..end` in key order, or all from `start` on without an `end`. The range is empty if
    /// `end` is not after `start`.
    ///
    /// Cost: one seek plus one step per row; nothing is copied.
    fn range<'r>(&'r self, start: &str, end: Option<&str>) -> Box<dyn Iterator<Item = SnapshotRow<'r>> + Send + 'r>;
}

/// One row in place. Metadata and body are fetched only when asked for, so iterating touches keys only.
#[derive(Clone, Copy)]
pub struct SnapshotRow<'r> {
    key: &'r str,
    parts: &'r dyn SnapshotParts,
}

/// The parts of a row besides its key.
pub trait SnapshotParts: Send + Sync {
    /// Returns the metadata.
    fn meta(&self) -> &[u8];

    /// Returns the body.
    fn value(&self) -> &Bytes;

    /// Returns whether the body is [binary](treehold_core::file::is_binary). Every search asks, and finding out takes half as
    /// long as the search itself, so stores cache the answer where they can.
    fn is_binary(&self) -> bool;
}

impl<'r> SnapshotRow<'r> {
    /// Makes a row of its key and parts.
    pub fn new(key: &'r str, parts: &'r dyn SnapshotParts) -> Self {
        Self { key, parts }
    }

    /// Returns the key.
    pub fn key(&self) -> &'r str {
        self.key
    }

    /// Returns the metadata.
    pub fn meta(&self) -> &'r [u8] {
        self.parts.meta()
    }

    /// Returns the body.
    pub fn value(&self) -> &'r Bytes {
        self.parts.value()
    }

    /// Returns whether the body is [binary](treehold_core::file::is_binary).
    pub fn is_binary(&self) -> bool {
        self.parts.is_binary()
    }
}

impl fmt::Debug for SnapshotRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotRow").field("key", &self.key).finish_non_exhaustive()
    }
}
