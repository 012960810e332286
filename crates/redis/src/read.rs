//! The reading side: one command or script per answer, as of one moment.
//!
//! A page too large for one script is assembled from several, and is valid only if nothing was committed between them.
//! Otherwise it is read again with more rows per script, up to a bound, because the server serves nobody else while a
//! script runs.

use super::error::{Fault, damaged};
use super::link::{Lane, Link, Request};
use super::record::Record;
use super::reply::Reply;
use super::script::{self, Keys};
use super::write::row;
use ::redis::cmd;
use std::ops::Range;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::page::{PageBuilder, Step};
use treehold_store::{Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Scan, ScanOptions};

/// The default number of rows that one script reads: about 30 ms, during which the server serves nobody else.
pub(super) const ROWS_AT_ONCE: u64 = 10_000;

/// The most bytes in the answer of one script, exceeded by at most one row.
const BYTES_AT_ONCE: u64 = 32 << 20;

/// The growth of these limits after a disturbed page. It goes no further: reading 80,000 rows takes about 0.4 s, with
/// bodies 0.7 s.
const GROWTH: u64 = 8;

/// The growth at each attempt. The second attempt reads a page of up to 80,000 rows and 256 MiB in one script.
const TRIES: [u64; 3] = [1, GROWTH, GROWTH];

/// The most keys per lookup; Redis 6.2 accepts 2^20 arguments.
const KEYS_MAX: usize = 500_000;

/// Makes the error for a page whose every attempt was disturbed.
fn disturbed() -> Error {
    let message = "writes interrupted every attempt to read the page; request a shorter page, or try again when the store is less busy";
    Error::new(ErrorKind::Unavailable, message)
}

/// The counts of commits and sweeps at one moment. A page is valid if they do not change while it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    version: u64,
    turns: u64,
}

impl Moment {
    /// Reads the moment from an answer.
    pub(super) fn of(reply: &mut Reply) -> Result<Self> {
        Ok(Self { version: reply.number()?, turns: reply.number()? })
    }
}

/// Reads one row.
pub(super) async fn get(link: &Link, keys: &Keys, namespace: &Namespace, key: &str, now: i64) -> Result<Option<Item>> {
    Ok(get_many(link, keys, namespace, &[key], true, now).await?.pop().flatten())
}

/// Reads one row with a part of its body, with one script.
pub(super) async fn get_part(
    link: &Link,
    keys: &Keys,
    namespace: &Namespace,
    key: &str,
    range: &Range<u64>,
    now: i64,
) -> Result<Option<ItemPart>> {
    let row = row(namespace, key);
    // No body is longer than a `u32` can count, and the script computes in floating point.
    let clamped = |bytes: u64| bytes.min(u64::from(u32::MAX));
    let invocation = script::PART
        .on(keys)
        .arg(keys.schema())
        .arg(field(b'r', &row))
        .arg(field(b'b', &row))
        .number(clamped(range.start) + 1)
        .number(clamped(range.end));
    let answer = link.call(Lane::Large, &Request::Script(invocation)).await.map_err(Fault::of_read)?;
    let mut reply = Reply::of_store(answer, keys)?;
    if reply.len() == 0 {
        return Ok(None);
    }
    let record = Record::parse(reply.bytes()?)?;
    let part = reply.bytes()?;
    if !record.is_live(now) { Ok(None) } else { record.into_part(key, part, range).map(Some) }
}

/// Reads several rows with one command.
pub(super) async fn get_many(
    link: &Link,
    keys: &Keys,
    namespace: &Namespace,
    wanted: &[&str],
    with_values: bool,
    now: i64,
) -> Result<Vec<Option<Item>>> {
    if wanted.len() > KEYS_MAX {
        return Err(Error::invalid_argument(format!("more than {KEYS_MAX} keys were requested at once; request fewer")));
    }
    let mut command = cmd("HMGET");
    command.arg(keys.rows()).arg(".schema");
    for key in wanted {
        let row = row(namespace, key);
        command.arg(field(b'r', &row));
        if with_values {
            command.arg(field(b'b', &row));
        }
    }
    let lane = if wanted.len() > 1 { Lane::Large } else { Lane::Small };
    let answer = link.call(lane, &Request::Read(command)).await.map_err(Fault::of_read)?;
    let mut reply = Reply::of_store(answer, keys)?;
    let mut items = Vec::with_capacity(wanted.len());
    for key in wanted {
        let record = reply.bytes_or_none()?;
        let body = if with_values { reply.bytes_or_none()? } else { None };
        let record = record.map(Record::parse).transpose()?.filter(|record| record.is_live(now));
        let body = with_values.then(|| body.unwrap_or_default());
        items.push(record.map(|record| record.into_item(key, body)).transpose()?);
    }
    Ok(items)
}

/// Reads a page, initially `rows` rows per script.
pub(super) async fn scan(link: &Link, keys: &Keys, namespace: &Namespace, options: &ScanOptions, now: i64, rows: u64) -> Result<Scan> {
    for growth in TRIES {
        let at_once = (rows.max(1).saturating_mul(growth), BYTES_AT_ONCE.saturating_mul(growth));
        if let Some(page) = scan_at_once(link, keys, namespace, options, now, at_once).await? {
            return Ok(page);
        }
    }
    Err(disturbed())
}

/// Reads a page once. Returns `None` if a commit disturbed it.
async fn scan_at_once(
    link: &Link,
    keys: &Keys,
    namespace: &Namespace,
    options: &ScanOptions,
    now: i64,
    (rows, reply_bytes): (u64, u64),
) -> Result<Option<Scan>> {
    let mut page = PageBuilder::new(options.clone());
    let Some(start) = page.start() else { return Ok(Some(page.finish())) };
    let inner = row(namespace, &options.prefix);
    let mut from = bound(b'[', &row(namespace, &start));
    let to = end(&inner);
    let lane = if options.with_values { Lane::Large } else { Lane::Small };
    let (mut entries, mut bytes) = (0_u64, 0_u64);
    let mut began = None;
    loop {
        let invocation = script::SCAN
            .on(keys)
            .arg(keys.schema())
            .arg(now.to_be_bytes())
            .arg(from)
            .arg(&to[..])
            .number(namespace.encoded().len() + 1)
            .number(inner.len())
            .arg(options.delimiter.map(String::from).unwrap_or_default())
            .number(u8::from(options.with_values))
            .number(entries)
            .number(options.limit)
            .number(bytes)
            .number(options.bytes_max)
            .number(rows)
            .number(reply_bytes);
        let answer = link.call(lane, &Request::Script(invocation)).await.map_err(Fault::of_read)?;
        let mut reply = Reply::of_store(answer, keys)?;
        let moment = Moment::of(&mut reply)?;
        if *began.get_or_insert(moment) != moment {
            return Ok(None);
        }
        let cursor = reply.bytes()?;
        while reply.len() > 0 {
            let key = reply.text()?;
            let record = Record::parse(reply.bytes()?)?;
            let body = reply.bytes_or_none()?;
            let step = page.offer(&key, |with_value| {
                if with_value {
                    bytes += u64::from(record.size);
                }
                record.into_item(&key, with_value.then(|| body.unwrap_or_default()))
            })?;
            if step == Step::End {
                return Ok(Some(page.finish()));
            }
            entries += 1;
        }
        if cursor.is_empty() {
            return Ok(Some(page.finish()));
        }
        from = cursor.into();
    }
}

/// Lists namespaces with a live row, initially examining `rows` rows per script.
pub(super) async fn namespaces(link: &Link, keys: &Keys, options: &NamespacesOptions, now: i64, rows: u64) -> Result<NamespacePage> {
    for growth in TRIES {
        if let Some(page) = namespaces_at_once(link, keys, options, now, rows.max(1).saturating_mul(growth)).await? {
            return Ok(page);
        }
    }
    Err(disturbed())
}

async fn namespaces_at_once(link: &Link, keys: &Keys, options: &NamespacesOptions, now: i64, rows: u64) -> Result<Option<NamespacePage>> {
    let Some(prefix) = options.prefix() else { return Ok(Some(NamespacePage::default())) };
    let beneath = prefix.as_bytes();
    // The set always contains an empty member, so the list starts after it.
    let mut from = if beneath.is_empty() { b"(".to_vec() } else { bound(b'[', beneath) };
    if let Some(after) = &options.start_after {
        from = from.max(end_of(b'[', &row(after, "")));
    }
    let to = end(beneath);
    let limit = options.limit.saturating_add(1);
    let mut found: Vec<Namespace> = Vec::new();
    let mut began = None;
    loop {
        let invocation = script::NAMESPACES
            .on(keys)
            .arg(keys.schema())
            .arg(now.to_be_bytes())
            .arg(from)
            .arg(&to[..])
            .number(limit - found.len())
            .number(rows);
        let answer = link.call(Lane::Small, &Request::Script(invocation)).await.map_err(Fault::of_read)?;
        let mut reply = Reply::of_store(answer, keys)?;
        let moment = Moment::of(&mut reply)?;
        if *began.get_or_insert(moment) != moment {
            return Ok(None);
        }
        let cursor = reply.bytes()?;
        while reply.len() > 0 {
            found.push(Namespace::from_encoded(&reply.text()?)?);
        }
        if cursor.is_empty() || found.len() >= limit {
            let more = found.len() > options.limit;
            found.truncate(options.limit);
            return Ok(Some(NamespacePage::new(found, more)));
        }
        from = cursor.into();
    }
}

/// Reads the version counter.
pub(super) async fn current_version(link: &Link, keys: &Keys) -> Result<Version> {
    let command = cmd("HMGET").arg(keys.rows()).arg(".schema").arg(".version").to_owned();
    let answer = link.call(Lane::Small, &Request::Read(command)).await.map_err(Fault::of_read)?;
    Ok(Version::new(Reply::of_store(answer, keys)?.number()?))
}

/// A namespace changed after a version, and the version of the change. The namespace is `None` if the store's list of
/// changes no longer reaches back far enough.
pub(super) type Changed = (Option<Namespace>, Version);

/// Returns the changes after a version.
pub(super) async fn changed_since(link: &Link, keys: &Keys, version: u64) -> Result<Vec<Changed>> {
    let mut command = cmd("ZRANGEBYSCORE");
    command.arg(keys.changes()).arg(format!("({version}")).arg("+inf").arg("WITHSCORES");
    let answer = link.call(Lane::Small, &Request::Read(command)).await.map_err(Fault::of_read)?;
    let mut reply = Reply::of(answer)?;
    let mut changed = Vec::new();
    while reply.len() > 0 {
        let mut pair = reply.list()?;
        let namespace = pair.text()?;
        let namespace = if namespace.is_empty() { None } else { Some(Namespace::from_encoded(&namespace)?) };
        let score = pair.score()?;
        if !(0.0..=super::write::VERSION_MAX as f64).contains(&score) {
            return Err(damaged("a namespace has an invalid change version"));
        }
        changed.push((namespace, Version::new(score as u64)));
    }
    Ok(changed)
}

/// Returns the hash field of a row's record (`r`) or body (`b`).
fn field(kind: u8, row: &[u8]) -> Vec<u8> {
    bound(kind, row)
}

/// Returns a bound of a range: `[` includes the row, `(` excludes it.
pub(super) fn bound(kind: u8, row: &[u8]) -> Vec<u8> {
    let mut bound = Vec::with_capacity(row.len() + 2);
    bound.push(kind);
    bound.extend(row);
    bound
}

/// Returns the bound after everything that starts with `prefix`; no text contains the byte 255.
fn end(prefix: &[u8]) -> Vec<u8> {
    end_of(b'(', prefix)
}

fn end_of(kind: u8, prefix: &[u8]) -> Vec<u8> {
    let mut end = bound(kind, prefix);
    end.push(0xff);
    end
}
