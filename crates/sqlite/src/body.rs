//! Bodies: small ones in the row of their item, others in a row of `bodies`, long ones in rows of `chunks`.
//!
//! A commit writes whole pages, so a small body in a row of its own doubles what a put writes. But a listing reads the pages with the
//! bodies in the rows of items, so these are small ([`IN_ITEM_BYTES`]). `docs/design/engines.md` has the measurements.
//!
//! SQLite stores a long value as a chain of pages, each of which names the next. It finds a byte by reading all pages before it, so
//! reading a body of n bytes part by part reads on the order of n² bytes. A body of more than [`CHUNK_BYTES`] is therefore split into
//! chunks, and a read opens only the chunks that hold its range. Keeping one blob handle open from part to part would avoid the
//! quadratic cost too, but only for reads in order, and its read transaction would stop the write-ahead log from restarting.
//!
//! The column `chunk_bytes` of an item says where its body is, see [`BodyPlace`]. Earlier versions stored bodies elsewhere: all of them in
//! rows of `bodies`, then only those without chunks. A body moves to its present place when it is put again.

use super::error::{damaged, failed};
use bytes::Bytes;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Connection, MAIN_DB, ToSql};
use std::ops::Range;
use treehold_core::error::{Error, ErrorKind, Result};

/// Longer bodies are split into chunks of this many bytes.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// Bodies of at most this many bytes are stored in the row of their item.
pub(super) const IN_ITEM_BYTES: u64 = 512;

/// The kind of place of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyPlace {
    /// The row of the item; −1 in `chunk_bytes`.
    Item,
    /// A row of `bodies`, or none for an empty body; 0 in `chunk_bytes`.
    Row,
    /// Rows of `chunks` of this many bytes, all but the last, as in `chunk_bytes`.
    Chunks(u64),
}

impl FromSql for BodyPlace {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_i64()? {
            -1 => Ok(Self::Item),
            0 => Ok(Self::Row),
            bytes => u64::try_from(bytes).map(Self::Chunks).map_err(|_| FromSqlError::OutOfRange(bytes)),
        }
    }
}

impl ToSql for BodyPlace {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Item => Ok((-1).into()),
            Self::Row => Ok(0.into()),
            Self::Chunks(bytes) => {
                i64::try_from(*bytes).map(Into::into).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
            }
        }
    }
}

/// The lengths that decide where a new body is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlaceLimits {
    /// The longest body in the row of its item.
    pub(super) in_item_bytes: u64,
    /// The longest body in one row.
    pub(super) chunk_bytes: u64,
}

impl Default for PlaceLimits {
    fn default() -> Self {
        Self { in_item_bytes: IN_ITEM_BYTES, chunk_bytes: CHUNK_BYTES }
    }
}

impl PlaceLimits {
    /// Returns where to store a new body.
    pub(super) fn place(self, size: u64) -> BodyPlace {
        match size {
            0 => BodyPlace::Row,
            size if size <= self.in_item_bytes => BodyPlace::Item,
            size if size <= self.chunk_bytes => BodyPlace::Row,
            _ => BodyPlace::Chunks(self.chunk_bytes),
        }
    }
}

/// Where the body of an item is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredBody {
    /// The id of the item.
    pub(super) id: i64,
    /// The length of the body in bytes.
    pub(super) size: u64,
    pub(super) place: BodyPlace,
}

impl StoredBody {
    /// Reads the whole body. `in_item` is the body in the row of the item. The caller is in a transaction, or has a statement running that
    /// read the item.
    pub(super) fn read<'r>(self, connection: &Connection, in_item: impl FnOnce() -> rusqlite::Result<ValueRef<'r>>) -> Result<Bytes> {
        match self.place {
            BodyPlace::Item => self.check(in_item().map_err(failed)?),
            BodyPlace::Row if self.size == 0 => Ok(Bytes::new()),
            BodyPlace::Row => {
                let mut statement = connection.prepare_cached("SELECT body FROM bodies WHERE id = ?1").map_err(failed)?;
                let mut rows = statement.query((self.id,)).map_err(failed)?;
                let row = rows.next().map_err(failed)?;
                self.check(row.map_or(Ok(ValueRef::Null), |row| row.get_ref(0)).map_err(failed)?)
            }
            BodyPlace::Chunks(bytes) => Ok(self.read_chunks(connection, bytes, 0..self.size)?.into()),
        }
    }

    /// Returns a body that a statement read from its row, or an error if it is not the item's.
    pub(super) fn check(self, stored: ValueRef<'_>) -> Result<Bytes> {
        let body = match stored {
            ValueRef::Null => &[],
            ValueRef::Blob(body) => body,
            _ => return Err(damaged("a body is not bytes")),
        };
        if body.len() as u64 != self.size { Err(lost()) } else { Ok(Bytes::copy_from_slice(body)) }
    }

    /// Reads a range within the body; `in_item` is as in [`read`](Self::read). The caller is in a transaction.
    ///
    /// Cost: the chunks that hold the range, each up to the end of it. Without chunks, all pages before the end of the range.
    pub(super) fn read_part<'r>(
        self,
        connection: &Connection,
        within: Range<u64>,
        in_item: impl FnOnce() -> rusqlite::Result<ValueRef<'r>>,
    ) -> Result<Bytes> {
        if within.is_empty() {
            return Ok(Bytes::new());
        }
        match self.place {
            BodyPlace::Item => Ok(self.read(connection, in_item)?.slice(within.start as usize..within.end as usize)),
            BodyPlace::Row => self.read_in_row(connection, within).map(Bytes::from),
            BodyPlace::Chunks(bytes) => self.read_chunks(connection, bytes, within).map(Bytes::from),
        }
    }

    fn read_in_row(self, connection: &Connection, within: Range<u64>) -> Result<Vec<u8>> {
        let blob = connection.blob_open(MAIN_DB, "bodies", "body", self.id, true).map_err(|error| match failed(error) {
            // The engine reports an absent row only by this error.
            error if error.kind() == ErrorKind::Internal => lost().with_source(error),
            error => error,
        })?;
        if blob.len() as u64 != self.size {
            return Err(lost());
        }
        let mut part = vec![0; (within.end - within.start) as usize];
        blob.read_at_exact(&mut part, within.start as usize).map_err(failed)?;
        Ok(part)
    }

    fn read_chunks(self, connection: &Connection, chunk_bytes: u64, within: Range<u64>) -> Result<Vec<u8>> {
        let mut part = vec![0; (within.end - within.start) as usize];
        let numbers = within.start / chunk_bytes..=(within.end - 1) / chunk_bytes;
        let mut statement = connection
            .prepare_cached("SELECT rowid, number FROM chunks WHERE item = ?1 AND number BETWEEN ?2 AND ?3 ORDER BY number")
            .map_err(failed)?;
        let mut rows = statement.query((self.id, *numbers.start(), *numbers.end())).map_err(failed)?;
        let (mut rest, mut open) = (&mut part[..], None);
        for number in numbers {
            let row = rows.next().map_err(failed)?.ok_or_else(lost)?;
            let (rowid, found): (i64, u64) = row.try_into().map_err(failed)?;
            let start = number * chunk_bytes;
            let end = (start + chunk_bytes).min(self.size);
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

    /// Replaces an old body, except one in the row of the item. The caller is in a transaction, and writes the item.
    pub(super) fn replace(self, old: Option<Self>, connection: &Connection, body: &[u8]) -> rusqlite::Result<()> {
        let is_in_row = |stored: &Self| stored.size > 0 && stored.place == BodyPlace::Row;
        let stays_in_row = old.as_ref().is_some_and(is_in_row) && is_in_row(&self);
        if let Some(old) = old.filter(|_| !stays_in_row) {
            old.remove(connection)?;
        }
        // Nothing is left in the way, even if the item was damaged and said another place.
        match self.place {
            BodyPlace::Chunks(bytes) => {
                connection.prepare_cached("DELETE FROM chunks WHERE item = ?1")?.execute((self.id,))?;
                let mut insert = connection.prepare_cached("INSERT INTO chunks(item, number, body) VALUES (?1, ?2, ?3)")?;
                for (number, chunk) in body.chunks(bytes as usize).enumerate() {
                    insert.execute((self.id, number, chunk))?;
                }
            }
            BodyPlace::Row if self.size > 0 => {
                let sql = "INSERT INTO bodies(id, body) VALUES (?1, ?2) ON CONFLICT(id) DO UPDATE SET body = excluded.body";
                connection.prepare_cached(sql)?.execute((self.id, body))?;
            }
            BodyPlace::Row | BodyPlace::Item => {}
        }
        Ok(())
    }

    /// Removes the body, except one in the row of the item. The caller is in a transaction, and removes or rewrites the item.
    pub(super) fn remove(self, connection: &Connection) -> rusqlite::Result<()> {
        let sql = match self.place {
            BodyPlace::Item => return Ok(()),
            BodyPlace::Row if self.size == 0 => return Ok(()),
            BodyPlace::Row => "DELETE FROM bodies WHERE id = ?1",
            BodyPlace::Chunks(_) => "DELETE FROM chunks WHERE item = ?1",
        };
        connection.prepare_cached(sql)?.execute((self.id,)).map(drop)
    }
}

/// Makes the error for an item without its body.
pub(super) fn lost() -> Error {
    damaged("a row has lost its body")
}

/// The checks of bodies: a query that counts the faults, and what each is.
pub(super) const CHECKS: [(&str, &str); 5] = [
    (
        "SELECT COUNT(*) FROM items WHERE chunk_bytes < -1
            OR CASE chunk_bytes WHEN -1 THEN size <> COALESCE(LENGTH(body), -1) ELSE body IS NOT NULL END",
        "there are rows whose own body is missing or has the wrong length",
    ),
    (
        "SELECT COUNT(*) FROM bodies WHERE id NOT IN (SELECT id FROM items WHERE size > 0 AND chunk_bytes = 0)",
        "there are bodies without a row",
    ),
    (
        "SELECT COUNT(*) FROM items LEFT JOIN bodies USING (id) WHERE chunk_bytes = 0 AND size <> COALESCE(LENGTH(bodies.body), 0)",
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
                OR TOTAL(number >= 0 AND LENGTH(chunks.body) = MIN(chunk_bytes, size - number * chunk_bytes)) <> COUNT(*)
            FROM chunks WHERE item = items.id)",
        "there are rows without a chunk of their body",
    ),
];
