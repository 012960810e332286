//! The stored record of a row: 36 bytes, then the metadata.
//!
//! The fields are version, expiry, creation and modification time (8 bytes each) and size of the body (4 bytes), all
//! big-endian. The scripts read the same format.

use super::error::damaged;
use bytes::Bytes;
use jiff::Timestamp;
use std::ops::Range;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_store::{Item, ItemPart, within};

/// The expiry of a row that never expires.
pub(super) const NEVER: i64 = i64::MAX;

/// The bytes before the metadata.
const HEAD: usize = 36;

/// A row without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) version: u64,
    pub(super) expires_at: i64,
    pub(super) created_at: i64,
    pub(super) modified_at: i64,
    pub(super) size: u32,
    pub(super) meta: Bytes,
}

impl Record {
    /// Parses a stored record.
    pub(super) fn parse(stored: Bytes) -> Result<Self> {
        let number = |at: usize| stored.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        let size = stored.get(32..HEAD).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        let (Some(version), Some(expires), Some(created), Some(modified), Some(size)) =
            (number(0), number(8), number(16), number(24), size)
        else {
            return Err(damaged("a row is truncated"));
        };
        let (expires_at, created_at, modified_at) = (expires.cast_signed(), created.cast_signed(), modified.cast_signed());
        Ok(Self { version, expires_at, created_at, modified_at, size, meta: stored.slice(HEAD..) })
    }

    /// Returns the stored form.
    #[cfg(test)]
    fn encode(&self) -> Vec<u8> {
        let mut stored = self.version.to_be_bytes().to_vec();
        stored.extend([self.expires_at, self.created_at, self.modified_at].iter().flat_map(|time| time.to_be_bytes()));
        stored.extend(self.size.to_be_bytes());
        stored.extend(&self.meta);
        stored
    }

    /// Returns whether the row has not expired.
    pub(super) fn is_live(&self, now: i64) -> bool {
        now < self.expires_at
    }

    /// Makes the item with the part of its body that was read.
    pub(super) fn into_part(self, key: &str, part: Bytes, range: &Range<u64>) -> Result<ItemPart> {
        let size = u64::from(self.size);
        let within = within(range, size);
        if part.len() as u64 != within.end - within.start {
            return Err(damaged("a row has lost its body"));
        }
        let item = self.into_item(key, None)?;
        Ok(ItemPart::new(item.with_value(part), size))
    }

    /// Makes the item. `body` is `None` if it was not requested.
    pub(super) fn into_item(self, key: &str, body: Option<Bytes>) -> Result<Item> {
        if body.as_ref().is_some_and(|body| body.len() as u64 != u64::from(self.size)) {
            return Err(damaged("a row has lost its body"));
        }
        let expires_at = if self.expires_at == NEVER { None } else { Some(time(self.expires_at)?) };
        let (created_at, modified_at) = (time(self.created_at)?, time(self.modified_at)?);
        let item = Item::new(key, self.meta, body.unwrap_or_default(), Version::new(self.version), created_at, modified_at);
        Ok(item.with_expires_at(expires_at))
    }
}

fn time(microseconds: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(microseconds).map_err(|_| damaged("a row has a time outside the calendar"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::error::ErrorKind;

    #[test]
    fn record_round_trips_and_damage_is_detected() {
        let record = Record { version: 7, expires_at: NEVER, created_at: -5, modified_at: 6, size: 2, meta: Bytes::from_static(b"meta") };
        let stored = record.encode();
        assert_eq!(Record::parse(stored.clone().into()).expect("its own bytes"), record);
        let item = record.clone().into_item("k", Some(Bytes::from_static(b"12"))).expect("an item");
        assert_eq!((item.expires_at, item.created_at.as_microsecond()), (None, -5));
        for error in [
            Record::parse(Bytes::copy_from_slice(&stored[..35])).expect_err("it is cut off"),
            record.clone().into_item("k", Some(Bytes::new())).expect_err("the body is gone"),
            Record { created_at: i64::MIN, ..record }.into_item("k", None).expect_err("no such time"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        }
    }
}
