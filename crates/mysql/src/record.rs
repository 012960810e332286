//! Conversion of result rows into items.

use super::error::{Fault, damaged};
use super::key::join;
use super::pool::column;
use bytes::Bytes;
use jiff::Timestamp;
use mysql_async::Row;
use std::ops::Range;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_store::page::PageRow;
use treehold_store::{Item, ItemPart, within};

/// The columns of a record, in the order in which [`Record::of`] reads them.
pub(super) const COLUMNS: [&str; 8] = ["head", "tail", "version", "created_at", "modified_at", "expires_at", "size", "meta"];

/// The index of the body column, which follows the record if bodies are read.
pub(super) const BODY: usize = COLUMNS.len();

/// The index of the body length column, which follows the body if bodies may be left out.
pub(super) const BODY_LENGTH: usize = BODY + 1;

/// Lists the columns of a record, each preceded by `prefix`.
pub(super) fn columns(prefix: &str) -> String {
    COLUMNS.map(|column| format!("{prefix}{column}")).join(", ")
}

/// The fault of a row whose body is missing or has the wrong length.
const LOST: &str = "a row has lost its body";

/// A row without its body.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) key: String,
    version: u64,
    created_at: i64,
    modified_at: i64,
    expires_at: Option<i64>,
    pub(super) size: u64,
    meta: Bytes,
}

impl Record {
    /// Reads a record from a result row.
    pub(super) fn of(row: &mut Row) -> Result<Self, Fault> {
        let (head, tail): (Vec<u8>, Vec<u8>) = (column(row, 0)?, column(row, 1)?);
        Ok(Self {
            key: join(head, &tail)?,
            version: column(row, 2)?,
            created_at: column(row, 3)?,
            modified_at: column(row, 4)?,
            expires_at: column(row, 5)?,
            size: column(row, 6)?,
            meta: column::<Vec<u8>>(row, 7)?.into(),
        })
    }

    /// Makes the item without its body.
    pub(super) fn into_item(self) -> Result<Item> {
        let expires_at = self.expires_at.map(time).transpose()?;
        let (created_at, modified_at) = (time(self.created_at)?, time(self.modified_at)?);
        let version = Version::new(self.version);
        Ok(Item::new(self.key, self.meta, Bytes::new(), version, created_at, modified_at).with_expires_at(expires_at))
    }

    /// Makes the item whose body of `length` bytes was left out, after checking the length.
    pub(super) fn into_item_without(self, length: u64) -> Result<PageRow> {
        if length != self.size {
            return Err(damaged(LOST));
        }
        Ok(PageRow::without_body(self.into_item()?, length))
    }

    /// Makes the item with the part of its body that was read.
    pub(super) fn into_part(self, part: Option<Vec<u8>>, range: &Range<u64>) -> Result<ItemPart> {
        let (size, within) = (self.size, within(range, self.size));
        let part = part.filter(|part| part.len() as u64 == within.end - within.start).ok_or_else(|| damaged(LOST))?;
        let mut item = self.into_item()?;
        item.value = part.into();
        Ok(ItemPart::new(item, size))
    }

    /// Makes the item with the body that was read.
    pub(super) fn into_item_with(self, body: Option<Vec<u8>>) -> Result<Item> {
        let body = body.filter(|body| body.len() as u64 == self.size).ok_or_else(|| damaged(LOST))?;
        let mut item = self.into_item()?;
        item.value = body.into();
        Ok(item)
    }
}

/// Reads an item with its body.
pub(super) fn item_with_body(row: &mut Row) -> Result<Item, Fault> {
    let body = column(row, BODY)?;
    Ok(Record::of(row)?.into_item_with(body)?)
}

fn time(microseconds: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(microseconds).map_err(|_| damaged("a row has a time outside the calendar"))
}
