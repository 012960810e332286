//! Zero-copy access to rows in memory, for readers that visit many rows and keep few.
//!
//! A page of a scan hands its rows over, so each must be built: a key, a record, a share of the body. A store that
//! keeps its rows in memory can instead expose them in place ([`Store::lend`](super::Store::lend)), as of one moment,
//! for as long as the reader holds the handle. Other stores return `None`, and readers scan them in pages.

use bytes::Bytes;
use std::fmt;

/// The live rows of one namespace at one moment, in place.
///
/// Later commits are invisible. Rows that they replace stay in memory until this is dropped.
pub trait LentRows: Send + Sync + fmt::Debug {
    /// Returns one row, if it exists.
    ///
    /// Cost: as [`Store::get`](super::Store::get), without copies.
    fn get(&self, key: &str) -> Option<LentRow<'_>>;

    /// Returns the rows in `start..end` in key order, or all from `start` on without an `end`. The range is empty if
    /// `end` is not after `start`.
    ///
    /// Cost: one seek plus one step per row; nothing is copied.
    fn range<'r>(&'r self, start: &str, end: Option<&str>) -> Box<dyn Iterator<Item = LentRow<'r>> + Send + 'r>;
}

/// One row in place. Metadata and body are fetched only when asked for, so iterating touches keys only.
#[derive(Clone, Copy)]
pub struct LentRow<'r> {
    key: &'r str,
    parts: &'r dyn LentParts,
}

/// The parts of a row besides its key.
pub trait LentParts: Send + Sync {
    /// Returns the metadata.
    fn meta(&self) -> &[u8];

    /// Returns the body.
    fn value(&self) -> &Bytes;

    /// Returns whether the body is [binary](treehold_core::file::is_binary). Every search asks, and finding out takes half as
    /// long as the search itself, so stores cache the answer where they can.
    fn is_binary(&self) -> bool;
}

impl<'r> LentRow<'r> {
    /// Makes a row of its key and parts.
    pub fn new(key: &'r str, parts: &'r dyn LentParts) -> Self {
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

impl fmt::Debug for LentRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentRow").field("key", &self.key).finish_non_exhaustive()
    }
}
