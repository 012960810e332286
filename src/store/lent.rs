//! Rows lent in place: for a reader that goes over many and keeps few.
//!
//! A page of a scan gives its rows away, so each is made for the reader: a key, a record, a share of the body. A store that has
//! its rows in memory shows them where they are instead ([`Store::lend`](super::Store::lend)), as of one moment, for as long
//! as the reader holds what it was lent. Others lend nothing, and are read in pages.

use bytes::Bytes;
use std::fmt;

/// The live rows of one namespace as of one moment, where they are.
///
/// What is committed later is not seen, and what it replaces stays in memory until this is dropped.
pub trait LentRows: Send + Sync + fmt::Debug {
    /// Returns one row, or none.
    ///
    /// Cost: as of [`Store::get`](super::Store::get), without copies.
    fn get(&self, key: &str) -> Option<LentRow<'_>>;

    /// Returns the rows from `start` up to and without `end`, in key order; without an `end`, all from `start` on. Where `end` is not
    /// after `start` there are none.
    ///
    /// Cost: one seek, and a step for each row; nothing is copied.
    fn range<'r>(&'r self, start: &str, end: Option<&str>) -> Box<dyn Iterator<Item = LentRow<'r>> + Send + 'r>;
}

/// One row where it is. Its parts are looked at when they are asked for: to go over rows is to go over their keys.
#[derive(Clone, Copy)]
pub struct LentRow<'r> {
    key: &'r str,
    parts: &'r dyn LentParts,
}

/// What a row has beside its key.
pub trait LentParts: Send + Sync {
    /// Returns the small part.
    fn meta(&self) -> &[u8];

    /// Returns the body.
    fn value(&self) -> &Bytes;

    /// Tells whether the body is [binary](crate::file::is_binary). Searches ask each time, and to look takes half as long as the search: a
    /// store that has room for the answer remembers it.
    fn is_binary(&self) -> bool;
}

impl<'r> LentRow<'r> {
    /// Shows a row.
    pub fn new(key: &'r str, parts: &'r dyn LentParts) -> Self {
        Self { key, parts }
    }

    /// Returns the key.
    pub fn key(&self) -> &'r str {
        self.key
    }

    /// Returns the small part.
    pub fn meta(&self) -> &'r [u8] {
        self.parts.meta()
    }

    /// Returns the body.
    pub fn value(&self) -> &'r Bytes {
        self.parts.value()
    }

    /// Tells whether the body is [binary](crate::file::is_binary).
    pub fn is_binary(&self) -> bool {
        self.parts.is_binary()
    }
}

impl fmt::Debug for LentRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentRow").field("key", &self.key).finish_non_exhaustive()
    }
}
