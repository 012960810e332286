//! The index: every row without its body, and the effect of a record.

use crate::failed;
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::io;
use treehold::Result;
use treehold::ops::Version;
use treehold::store::effect::{Effect, PutEffect};
use treehold::store::{Namespace, log_key};

/// The effect of one step of a record.
const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_PREFIX: u8 = 3;
const TOUCH: u8 = 4;

/// The expiry of a row that never expires.
const NEVER: i64 = i64::MAX;

/// A row whose body lies in the file.
pub(crate) struct Row {
    pub(crate) meta: Bytes,
    pub(crate) value_at: u64,
    pub(crate) value_bytes: u64,
    pub(crate) version: Version,
    pub(crate) created_at: Timestamp,
    pub(crate) modified_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
}

impl Row {
    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }
}

/// All rows, and the version of the newest commit.
#[derive(Default)]
pub(crate) struct Index {
    rows: BTreeMap<Namespace, BTreeMap<String, Row>>,
    version: u64,
}

impl Index {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn live(&self, namespace: &Namespace, key: &str, now: Timestamp) -> Option<&Row> {
        self.rows.get(namespace)?.get(key).filter(|row| row.is_live(now))
    }

    /// Returns the rows from a key on, expired ones as well.
    pub(crate) fn rows(&self, namespace: &Namespace, from: String) -> impl Iterator<Item = (&String, &Row)> {
        self.rows.get(namespace).into_iter().flat_map(move |rows| rows.range(from.clone()..))
    }

    pub(crate) fn namespaces(&self, now: Timestamp) -> impl Iterator<Item = &Namespace> {
        self.rows.iter().filter(move |(_, rows)| rows.values().any(|row| row.is_live(now))).map(|(namespace, _)| namespace)
    }

    /// Encodes a batch as a record. Returns it with the version of the store after it.
    pub(crate) fn record(&self, effect: &Effect<'_>, now: Timestamp) -> (Vec<u8>, Version) {
        let mut steps = Steps::default();
        let mut removes = false;
        for (namespace, prefix) in &effect.prefixes {
            removes |= self.rows(namespace, (*prefix).to_owned()).next().is_some_and(|(key, _)| key.starts_with(prefix));
            steps.place(DELETE_PREFIX, namespace, prefix);
        }
        for (namespace, key) in &effect.deletes {
            removes |= self.rows.get(*namespace).is_some_and(|rows| rows.contains_key(*key));
            steps.place(DELETE, namespace, key);
        }
        for (namespace, key, expires_at) in &effect.touches {
            if self.live(namespace, key, now).is_some() {
                steps.place(TOUCH, namespace, key);
                steps.number(expires_at.unwrap_or(NEVER));
            }
        }
        for put in &effect.puts {
            let kept = self.live(put.namespace, put.key, now).map(|row| row.created_at.as_microsecond());
            steps.put(put, put.key, put.version.unwrap_or(self.version + 1 + put.number), kept);
        }
        for append in &effect.appends {
            let version = self.version + 1 + append.number;
            steps.put(append, &log_key(Version::new(version)), version, None);
        }
        let version = (self.version + effect.numbers).max(effect.floor) + u64::from(effect.numbers == 0 && removes);
        steps.0.splice(0..0, version.to_le_bytes());
        (steps.0, Version::new(version))
    }

    /// Applies a record at an offset of the file.
    pub(crate) fn apply(&mut self, record: &[u8], at: u64) -> Result<()> {
        self.replay(record, at).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
    }

    fn replay(&mut self, record: &[u8], at: u64) -> Option<()> {
        let mut left = Left { record, at: 0 };
        self.version = u64::try_from(left.number()?).ok()?;
        while left.at < record.len() {
            let (kind, namespace, key) = (left.bytes(1)?[0], left.text()?, left.text()?);
            let namespace = Namespace::from_encoded(namespace).ok()?;
            let rows = self.rows.entry(namespace).or_default();
            match kind {
                PUT => {
                    let meta = Bytes::copy_from_slice(left.field()?);
                    let version = Version::new(u64::try_from(left.number()?).ok()?);
                    let (created_at, modified_at, expires_at) = (left.time()?, left.time()?, left.end()?);
                    let value_bytes = left.field()?.len() as u64;
                    let value_at = at + left.at as u64 - value_bytes;
                    rows.insert(key.to_owned(), Row { meta, value_at, value_bytes, version, created_at, modified_at, expires_at });
                }
                TOUCH => {
                    let expires_at = left.end()?;
                    rows.entry(key.to_owned()).and_modify(|row| row.expires_at = expires_at);
                }
                DELETE => drop(rows.remove(key)),
                DELETE_PREFIX => rows.retain(|found, _| !found.starts_with(key)),
                _ => return None,
            }
        }
        self.rows.retain(|_, rows| !rows.is_empty());
        Some(())
    }
}

/// The steps of a record: a kind, a namespace, a key, and for a put the row.
#[derive(Default)]
struct Steps(Vec<u8>);

impl Steps {
    fn number(&mut self, number: i64) {
        self.0.extend(number.to_le_bytes());
    }

    fn field(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as i64);
        self.0.extend(bytes);
    }

    fn place(&mut self, kind: u8, namespace: &Namespace, key: &str) {
        self.0.push(kind);
        self.field(namespace.encoded().as_bytes());
        self.field(key.as_bytes());
    }

    fn put(&mut self, put: &PutEffect<'_>, key: &str, version: u64, kept: Option<i64>) {
        self.place(PUT, put.namespace, key);
        self.field(put.meta);
        self.number(version as i64);
        self.number(put.created_at.or(kept).unwrap_or(put.modified_at));
        self.number(put.modified_at);
        self.number(put.expires_at.unwrap_or(NEVER));
        self.field(put.value);
    }
}

/// The unread rest of a record.
struct Left<'r> {
    record: &'r [u8],
    at: usize,
}

impl<'r> Left<'r> {
    fn bytes(&mut self, length: usize) -> Option<&'r [u8]> {
        let bytes = self.record.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(bytes)
    }

    fn number(&mut self) -> Option<i64> {
        Some(i64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn field(&mut self) -> Option<&'r [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.bytes(length)
    }

    fn text(&mut self) -> Option<&'r str> {
        std::str::from_utf8(self.field()?).ok()
    }

    fn time(&mut self) -> Option<Timestamp> {
        Timestamp::from_microsecond(self.number()?).ok()
    }

    fn end(&mut self) -> Option<Option<Timestamp>> {
        match self.number()? {
            NEVER => Some(None),
            at => Timestamp::from_microsecond(at).ok().map(Some),
        }
    }
}
