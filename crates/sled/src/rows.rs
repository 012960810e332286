//! The stored format: rows of five kinds in one tree, distinguished by their first byte.
//!
//! One tree, because a batch on one tree is atomic and several times cheaper than a transaction over two.
//!
//! | tag | key | value |
//! | --- | --- | --- |
//! | `f` | | the format version |
//! | `c` | | the version of the newest commit, big-endian |
//! | `r` | namespace, NUL, key | the record of an item |
//! | `e` | moment of expiry, namespace, NUL, key | nothing |
//! | `v` | number of the body, number of the piece, both big-endian | version of the item, big-endian, and a piece of its body, at most 6,400 bytes |
//!
//! Neither namespaces nor keys contain NUL, so records sort by namespace, then by key. An overwritten body keeps its
//! number (the version of the first put of its key), so an overwrite writes to one place instead of two. Every piece
//! carries its version, so bodies of different versions never mix. Pieces sort last: in the middle they would be
//! neighbours of the counter, and would be rewritten with it.

use super::error::damaged;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::ops::Range;
use treehold_core::error::Result;
use treehold_store::{Item, ItemPart, Namespace, within};

/// The key of the format version.
pub(super) const FORMAT_KEY: &[u8] = b"f";

/// The format version that this program writes.
pub(super) const FORMAT: &[u8] = b"treehold rows 3";

/// The format version as a number.
pub(super) const SCHEMA: u32 = 3;

/// The prefix of every format version.
pub(super) const FORMAT_MARK: &[u8] = b"treehold rows ";

/// The format version of the first layout.
pub(super) const FIRST: &[u8] = b"stratafs rows 1";

/// The format version during the migration from the first layout to the second.
pub(super) const FIRST_MOVING: &[u8] = b"treehold rows 1 to 2";

/// The format version of the second layout.
pub(super) const SECOND: &[u8] = b"treehold rows 2";

/// The format version during the migration from the second layout to the third.
pub(super) const SECOND_MOVING: &[u8] = b"treehold rows 2 to 3";

/// Returns whether a format version needs a migration.
pub(super) fn is_former(format: &[u8]) -> bool {
    [FIRST, FIRST_MOVING, SECOND, SECOND_MOVING].contains(&format)
}

/// The key of the version counter.
pub(super) const COUNTER_KEY: &[u8] = b"c";

/// The most bytes of a body in one row.
///
/// The engine writes nodes over 128 KiB to files of their own, which a simulated power loss damaged (assuming that an
/// unsynced file name is lost). A node holds up to 16 rows, plus one before it
/// is split and three after a merge. 20 rows of this size with their keys stay below the limit.
const PIECE_BYTES: usize = 6_400;

/// Longer metadata is stored in front of the body instead of in the record, so that a record is never larger than a
/// piece, even with the longest key.
const META_INLINE_BYTES: usize = 1_000;

/// The record of an item.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Record<'r> {
    pub(super) version: u64,
    pub(super) created_at: i64,
    pub(super) modified_at: i64,
    pub(super) expires_at: Option<i64>,
    /// The number of the body, shared by its pieces.
    body: u64,
    /// The length of the body in bytes.
    pub(super) size: u64,
    /// The length of metadata stored in front of the body; 0 if the record contains the metadata.
    meta_size: u64,
    #[serde(borrow)]
    meta: &'r [u8],
}

impl<'r> Record<'r> {
    /// Makes the record of a put.
    pub(super) fn new(version: u64, (created_at, modified_at): (i64, i64), expires_at: Option<i64>, meta: &'r [u8], value: &[u8]) -> Self {
        let (meta_size, meta) = if meta.len() > META_INLINE_BYTES { (meta.len() as u64, &[][..]) } else { (0, meta) };
        Self { version, created_at, modified_at, expires_at, body: version, size: value.len() as u64, meta_size, meta }
    }

    /// Sets the body number of a new key.
    pub(super) fn with_body(self, body: u64) -> Self {
        Self { body, ..self }
    }

    /// Changes the expiry.
    pub(super) fn with_expires_at(self, expires_at: Option<i64>) -> Self {
        Self { expires_at, ..self }
    }

    /// Reuses the body number of the previous record at the key, if there is one.
    pub(super) fn in_place_of(self, old: Option<Record<'_>>) -> Self {
        Self { body: old.map_or(self.body, |old| old.body), ..self }
    }

    /// Decodes a record.
    pub(super) fn decode(stored: &'r [u8]) -> Result<Self> {
        postcard::from_bytes(stored).map_err(|source| damaged("a row cannot be read back").with_source(source))
    }

    /// Encodes the record.
    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("numbers and bytes always serialize")
    }

    pub(super) fn is_live(&self, now: i64) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }

    /// Returns the record without its metadata, independent of the buffer it was decoded from.
    pub(super) fn detached(&self) -> Record<'static> {
        Record { meta: &[], ..*self }
    }

    /// Returns the length of the metadata in bytes, wherever it is stored.
    pub(super) fn meta_bytes(&self) -> u64 {
        self.meta_size + self.meta.len() as u64
    }

    /// Returns the number of the body.
    pub(super) fn body(&self) -> u64 {
        self.body
    }

    /// Returns the keys of the body's pieces.
    pub(super) fn piece_keys(&self) -> impl Iterator<Item = [u8; 13]> + use<> {
        let (body, size) = (self.body, self.meta_size + self.size);
        let count = u32::try_from(size.div_ceil(PIECE_BYTES as u64)).expect("bodies are bounded to 64 MiB");
        (0..count).map(move |number| piece_key(body, number))
    }

    /// Calls `put` with the key and value of each piece.
    pub(super) fn each_piece(&self, meta: &[u8], value: &[u8], mut put: impl FnMut([u8; 13], Vec<u8>)) {
        let joined = if self.meta_size > 0 { Cow::Owned([meta, value].concat()) } else { Cow::Borrowed(value) };
        let pieces = joined.chunks(PIECE_BYTES).map(|piece| [&self.version.to_be_bytes(), piece].concat());
        self.piece_keys().zip(pieces).for_each(|(key, piece)| put(key, piece));
    }

    /// Assembles the item with a part of its body. `piece` and the result are as in [`Record::item`].
    pub(super) fn part(
        &self,
        key: &str,
        range: &Range<u64>,
        mut piece: impl FnMut(&[u8]) -> Result<Option<::sled::IVec>>,
    ) -> Result<Option<ItemPart>> {
        let Some(item) = self.item(key, false, &mut piece)? else { return Ok(None) };
        // Long metadata is stored in front of the body.
        let within = within(range, self.size);
        let (start, end) = (self.meta_size + within.start, self.meta_size + within.end);
        let mut part = Vec::with_capacity((end - start) as usize);
        let mut at = start;
        while at < end {
            let (number, before) = (at / PIECE_BYTES as u64, (at % PIECE_BYTES as u64) as usize);
            let number = u32::try_from(number).map_err(|_| damaged("a body has more parts than allowed"))?;
            let row = piece(&piece_key(self.body, number))?;
            let Some(stored) = row.as_ref().and_then(|row| row.strip_prefix(&self.version.to_be_bytes())) else { return Ok(None) };
            let wanted = (end - at).min((PIECE_BYTES - before) as u64) as usize;
            part.extend_from_slice(stored.get(before..before + wanted).ok_or_else(|| damaged("a body has lost a part"))?);
            at += wanted as u64;
        }
        Ok(Some(ItemPart::new(item.with_value(part), self.size)))
    }

    /// Assembles the item, with its body if requested. `piece` looks up a piece by its key. Returns `None` if a piece is
    /// missing or has another version, which means that another put has replaced it meanwhile.
    pub(super) fn item(
        &self,
        key: &str,
        with_value: bool,
        mut piece: impl FnMut(&[u8]) -> Result<Option<::sled::IVec>>,
    ) -> Result<Option<Item>> {
        let wanted = self.meta_size + if with_value { self.size } else { 0 };
        let mut joined = Vec::with_capacity(usize::try_from(wanted).map_err(|_| damaged("a body is longer than memory"))?);
        for key in self.piece_keys().take_while(|key| piece_start(key) < wanted) {
            match piece(&key)?.as_ref().and_then(|row| row.strip_prefix(&self.version.to_be_bytes())) {
                Some(piece) => joined.extend_from_slice(piece),
                None => return Ok(None),
            }
        }
        if (joined.len() as u64) < wanted || (with_value && joined.len() as u64 > wanted) {
            return Err(damaged("a body has lost a part"));
        }
        let joined = Bytes::from(joined);
        let meta_size = self.meta_size as usize;
        let meta = if meta_size > 0 { joined.slice(..meta_size) } else { Bytes::copy_from_slice(self.meta) };
        let value = if with_value { joined.slice(meta_size..) } else { Bytes::new() };
        let item =
            Item::new(key, meta, value, treehold_core::ops::Version::new(self.version), time(self.created_at)?, time(self.modified_at)?);
        Ok(Some(item.with_expires_at(self.expires_at.map(time).transpose()?)))
    }
}

fn piece_key(body: u64, number: u32) -> [u8; 13] {
    let mut key = [b'v'; 13];
    key[1..9].copy_from_slice(&body.to_be_bytes());
    key[9..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Returns the offset of a piece within its body.
fn piece_start(key: &[u8; 13]) -> u64 {
    u64::from(u32::from_be_bytes([key[9], key[10], key[11], key[12]])) * PIECE_BYTES as u64
}

fn time(microseconds: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(microseconds).map_err(|_| damaged("a row has a time outside the calendar"))
}

/// Returns the key of an item's record.
pub(super) fn record_key(namespace: &Namespace, key: &str) -> Vec<u8> {
    [b"r", namespace.encoded().as_bytes(), b"\0", key.as_bytes()].concat()
}

/// Returns the start of the record keys of the namespace with a text, and their exclusive end.
pub(super) fn records_of(encoded: &str) -> Range<Vec<u8>> {
    [b"r", encoded.as_bytes(), b"\0"].concat()..[b"r", encoded.as_bytes(), b"\x01"].concat()
}

/// Returns the exclusive end of a namespace's records below the key `end`, or of all its records.
pub(super) fn records_end(namespace: &Namespace, end: Option<&str>) -> Vec<u8> {
    match end {
        Some(end) => record_key(namespace, end),
        None => [b"r", namespace.encoded().as_bytes(), b"\x01"].concat(),
    }
}

/// Returns the least possible record key of the namespaces from `encoded` on.
pub(super) fn namespaces_start(encoded: &str) -> Vec<u8> {
    [b"r", encoded.as_bytes()].concat()
}

/// Splits the key of a record into namespace and key.
pub(super) fn split_record_key(stored: &[u8]) -> Result<(&str, &str)> {
    let split = || {
        let text = std::str::from_utf8(stored.strip_prefix(b"r")?).ok()?;
        text.split_once('\0')
    };
    split().ok_or_else(|| damaged("the key of a row cannot be read back"))
}

/// Returns the key of a record's expiry row.
pub(super) fn expiry_key(expires_at: i64, record_key: &[u8]) -> Vec<u8> {
    [&expiries_before(expires_at)[..], &record_key[1..]].concat()
}

/// Returns the exclusive end of the expiry rows before `moment`.
pub(super) fn expiries_before(moment: i64) -> [u8; 9] {
    let mut key = [b'e'; 9];
    // With the sign bit flipped, big-endian bytes sort like signed numbers.
    key[1..].copy_from_slice(&(moment ^ i64::MIN).to_be_bytes());
    key
}

/// Returns the record key that an expiry row refers to.
pub(super) fn expiring_record_key(stored: &[u8]) -> Vec<u8> {
    [b"r", stored.get(9..).unwrap_or_default()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_sort_by_namespace_then_key() {
        let namespace = |text: &str| Namespace::parse(text).expect("a legal namespace");
        let rows = [("a!", "z"), ("a", "x"), ("a", "x\u{1}"), ("a", "\u{10FFFF}"), ("a/b", "a"), ("b", "")];
        let keys: Vec<Vec<u8>> = rows.iter().map(|(space, key)| record_key(&namespace(space), key)).collect();
        assert!(keys.is_sorted());
        assert!(records_end(&namespace("a"), None) > keys[3] && records_end(&namespace("a"), None) < keys[4]);
        for ((space, key), stored) in rows.iter().zip(&keys) {
            assert_eq!(split_record_key(stored).expect("its own key"), (namespace(space).encoded(), *key));
        }
        assert!(split_record_key(b"rno nul").is_err());
    }

    #[test]
    fn expiries_sort_by_time() {
        let times = [i64::MIN, -1, 0, 1, i64::MAX];
        assert!(times.map(expiries_before).is_sorted());
        let key = record_key(&Namespace::parse("a").expect("a legal namespace"), "k");
        let stored = expiry_key(5, &key);
        assert!(expiries_before(5)[..] < stored[..] && stored[..] < expiries_before(6)[..]);
        assert_eq!(expiring_record_key(&expiry_key(5, &key)), key);
    }

    #[test]
    fn record_and_pieces_assemble_the_item() {
        for (meta_size, size) in [(0, 0), (1, 1), (1_000, 6_400), (1_001, 0), (1_001, 6_399), (65_536, 6_401), (10, 19_200)] {
            let (meta, value) = (vec![1; meta_size], vec![2; size]);
            let record = Record::new(7, (1, 2), Some(3), &meta, &value);
            let mut pieces = Vec::new();
            record.each_piece(&meta, &value, |key, piece| pieces.push((key, piece)));
            assert!(pieces.iter().all(|(_, piece)| piece.len() > 8 && piece.len() <= PIECE_BYTES + 8));
            let stored = record.encode();
            let record = Record::decode(&stored).expect("its own bytes");
            let get = |key: &[u8]| Ok(pieces.iter().find(|(name, _)| name[..] == *key).map(|(_, piece)| piece.as_slice().into()));
            let item = record.item("k", true, get).expect("a whole item").expect("a whole item");
            assert_eq!((&item.meta[..], &item.value[..]), (&meta[..], &value[..]));
            let bare = record.item("k", false, get).expect("a whole item").expect("a whole item");
            assert_eq!((&bare.meta[..], &bare.value[..]), (&meta[..], &b""[..]));
            if size > 0 {
                assert_eq!(record.item("k", true, |_| Ok(None)).expect("no damage"), None);
                let other = Record::new(8, (1, 2), None, &meta, &value).in_place_of(Some(record));
                assert_eq!(other.item("k", true, get).expect("no damage"), None, "pieces of another version");
                let short = |key: &[u8]| Ok(get(key)?.map(|row: ::sled::IVec| row[..8].into()));
                assert!(record.item("k", true, short).is_err());
            }
        }
        assert!(Record::decode(b"\xFF").is_err());
    }
}
