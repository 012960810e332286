//! Bodies: short ones in a row of `bodies`, long ones in rows of `chunks`.
//!
//! SQLite stores a long value as a chain of pages, each of which names the next. It finds a byte by reading all pages before it, so
//! reading a body of n bytes part by part reads on the order of n² bytes. A body of more than [`CHUNK_BYTES`] is therefore split into
//! chunks, and a read opens only the chunks that hold its range. Keeping one blob handle open from part to part would avoid the
//! quadratic cost too, but only for reads in order, and its read transaction would stop the write-ahead log from restarting.
//!
//! The column `chunk_bytes` of an item says how long its chunks are, all but the last. It is 0 for a body in one row, which is how
//! earlier versions stored bodies of any length.

use super::error::{damaged, failed};
use bytes::Bytes;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, MAIN_DB};
use std::ops::Range;
use treehold_core::error::{Error, ErrorKind, Result};

/// Longer bodies are split into chunks of this many bytes.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// Where the body of an item is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredBody {
    /// The id of the item.
    pub(super) id: i64,
    /// The length of the body in bytes.
    pub(super) size: u64,
    /// The length of a chunk in bytes; 0 for a body in one row.
    pub(super) chunk_bytes: u64,
}

impl StoredBody {
    /// Returns where to store a new body, with chunks of `chunk_bytes` if it is longer than that.
    pub(super) fn new(id: i64, size: u64, chunk_bytes: u64) -> Self {
        Self { id, size, chunk_bytes: if size > chunk_bytes { chunk_bytes } else { 0 } }
    }

    fn is_chunked(self) -> bool {
        self.chunk_bytes > 0
    }

    /// Reads the whole body. The caller is in a transaction, or has a statement running that read the item.
    pub(super) fn read(self, connection: &Connection) -> Result<Bytes> {
        if self.is_chunked() {
            return Ok(self.read_part(connection, 0..self.size)?.into());
        }
        if self.size == 0 {
            return Ok(Bytes::new());
        }
        let mut statement = connection.prepare_cached("SELECT body FROM bodies WHERE id = ?1").map_err(failed)?;
        let mut rows = statement.query((self.id,)).map_err(failed)?;
        let row = rows.next().map_err(failed)?;
        self.check(row.map_or(Ok(ValueRef::Null), |row| row.get_ref(0)).map_err(failed)?)
    }

    /// Returns a body that a statement read from `bodies`, or an error if it is not the item's.
    pub(super) fn check(self, stored: ValueRef<'_>) -> Result<Bytes> {
        let body = match stored {
            ValueRef::Null => &[],
            ValueRef::Blob(body) => body,
            _ => return Err(damaged("a body is not bytes")),
        };
        if body.len() as u64 != self.size { Err(lost()) } else { Ok(Bytes::copy_from_slice(body)) }
    }

    /// Reads a range within the body. The caller is in a transaction.
    ///
    /// Cost: the chunks that hold the range, each up to the end of it. Without chunks, all pages before the end of the range.
    pub(super) fn read_part(self, connection: &Connection, within: Range<u64>) -> Result<Vec<u8>> {
        if within.is_empty() {
            return Ok(Vec::new());
        }
        let mut part = vec![0; (within.end - within.start) as usize];
        if !self.is_chunked() {
            let blob = connection.blob_open(MAIN_DB, "bodies", "body", self.id, true).map_err(|error| match failed(error) {
                // The engine reports an absent row only by this error.
                error if error.kind() == ErrorKind::Internal => lost().with_source(error),
                error => error,
            })?;
            if blob.len() as u64 != self.size {
                return Err(lost());
            }
            blob.read_at_exact(&mut part, within.start as usize).map_err(failed)?;
            return Ok(part);
        }
        let numbers = within.start / self.chunk_bytes..=(within.end - 1) / self.chunk_bytes;
        let mut statement = connection
            .prepare_cached("SELECT rowid, number FROM chunks WHERE item = ?1 AND number BETWEEN ?2 AND ?3 ORDER BY number")
            .map_err(failed)?;
        let mut rows = statement.query((self.id, *numbers.start(), *numbers.end())).map_err(failed)?;
        let (mut rest, mut open) = (&mut part[..], None);
        for number in numbers {
            let row = rows.next().map_err(failed)?.ok_or_else(lost)?;
            let (rowid, found): (i64, u64) = row.try_into().map_err(failed)?;
            let start = number * self.chunk_bytes;
            let end = (start + self.chunk_bytes).min(self.size);
            let blob = match open.take() {
                None => connection.blob_open(MAIN_DB, "chunks", "body", rowid, true).map_err(failed)?,
                Some(mut blob) => {
                    rusqlite::blob::Blob::reopen(&mut blob, rowid).map_err(failed)?;
                    blob
                }
            };
            if found != number || blob.len() as u64 != end - start {
                return Err(lost());
            }
            let from = within.start.max(start);
            let (now, later) = rest.split_at_mut((within.end.min(end) - from) as usize);
            blob.read_at_exact(now, (from - start) as usize).map_err(failed)?;
            (rest, open) = (later, Some(blob));
        }
        Ok(part)
    }

    /// Replaces an old body. The caller is in a transaction, and writes the item.
    pub(super) fn replace(self, old: Option<Self>, connection: &Connection, body: &[u8]) -> rusqlite::Result<()> {
        let is_in_row = |place: &Self| place.size > 0 && !place.is_chunked();
        let was_in_row = old.as_ref().is_some_and(is_in_row);
        if let Some(old) = old.filter(|old| old.is_chunked() || was_in_row && !is_in_row(&self)) {
            old.remove(connection)?;
        }
        if self.is_chunked() {
            let mut insert = connection.prepare_cached("INSERT INTO chunks(item, number, body) VALUES (?1, ?2, ?3)")?;
            for (number, chunk) in body.chunks(self.chunk_bytes as usize).enumerate() {
                insert.execute((self.id, number, chunk))?;
            }
        } else if is_in_row(&self) {
            let sql = if was_in_row { "UPDATE bodies SET body = ?2 WHERE id = ?1" } else { "INSERT INTO bodies(id, body) VALUES (?1, ?2)" };
            connection.prepare_cached(sql)?.execute((self.id, body))?;
        }
        Ok(())
    }

    /// Removes the body. The caller is in a transaction, and removes or rewrites the item.
    pub(super) fn remove(self, connection: &Connection) -> rusqlite::Result<()> {
        let sql = match self {
            Self { size: 0, .. } => return Ok(()),
            Self { chunk_bytes: 0, .. } => "DELETE FROM bodies WHERE id = ?1",
            _ => "DELETE FROM chunks WHERE item = ?1",
        };
        connection.prepare_cached(sql)?.execute((self.id,)).map(drop)
    }
}

/// Makes the error for an item without its body.
pub(super) fn lost() -> Error {
    damaged("a row has lost its body")
}

/// The checks of bodies: a query that counts the faults, and what each is.
pub(super) const CHECKS: [(&str, &str); 4] = [
    (
        "SELECT COUNT(*) FROM bodies WHERE id NOT IN (SELECT id FROM items WHERE size > 0 AND chunk_bytes = 0)",
        "there are bodies without a row",
    ),
    (
        "SELECT COUNT(*) FROM items LEFT JOIN bodies USING (id) WHERE chunk_bytes = 0 AND size <> COALESCE(LENGTH(body), 0)",
        "there are rows without a body",
    ),
    (
        "SELECT COUNT(*) FROM chunks WHERE item NOT IN (SELECT id FROM items WHERE chunk_bytes > 0)",
        "there are chunks of bodies without a row",
    ),
    // Chunks are numbered from 0 without a gap, since a row has no more of them than its body needs and each has its length.
    (
        "SELECT COUNT(*) FROM items WHERE chunk_bytes > 0 AND (
            SELECT COUNT(*) <> (size + chunk_bytes - 1) / chunk_bytes
                OR TOTAL(number >= 0 AND LENGTH(body) = MIN(chunk_bytes, size - number * chunk_bytes)) <> COUNT(*)
            FROM chunks WHERE item = items.id)",
        "there are rows without a chunk of their body",
    ),
];
