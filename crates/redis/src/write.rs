//! The writing side: one script per batch.

use super::error::{of_schema, unexpected};
use super::link::{Lane, Link, Request};
use super::open::VALUE_BYTES_MAX;
use super::record::NEVER;
use super::reply::Reply;
use super::script::{self, Invocation, Keys};
use jiff::Timestamp;
use std::collections::BTreeSet;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_store::effect::{Effect, PutEffect};
use treehold_store::{Batch, Condition, KEY_BYTES_MAX, META_BYTES_MAX, Namespace, Precondition, precondition_failed, unvalidated};

/// The server's scripts count versions in numbers that are exact below this.
pub(super) const VERSION_MAX: u64 = 1 << 53;

/// The most arguments of one command; Redis 6.2 accepts 2^20.
const ARGUMENTS_MAX: usize = 1_000_000;

/// The most bytes in one batch: enough for one body of the largest size. Writing a batch blocks all other clients; with
/// `appendfsync always` this much takes about 1 s, and four times as much about 7 s.
const BATCH_BYTES_MAX: usize = 129 << 20;
const _: () = assert!(BATCH_BYTES_MAX >= VALUE_BYTES_MAX as usize + META_BYTES_MAX + KEY_BYTES_MAX);

/// Larger batches use the lane for large requests.
const SMALL_BYTES: usize = 64 << 10;

/// How many rows one script sweeps.
const SWEEP_ROWS: usize = 2_000;

/// The result of a commit.
pub(super) struct Committed {
    pub(super) versions: Vec<Version>,
    /// The version of the keys afterwards.
    pub(super) after: u64,
}

impl Committed {
    /// The result of a batch that changes nothing.
    pub(super) fn none() -> Self {
        Self { versions: Vec::new(), after: 0 }
    }
}

/// Applies a valid batch.
pub(super) async fn commit(link: &Link, keys: &Keys, batch: &Batch, now: Timestamp) -> Result<Committed> {
    let effect = Effect::of(&batch.writes, now);
    let invocation = invocation(keys, batch, &effect, now)?;
    let lane = if batch.size_bytes() > SMALL_BYTES { Lane::Large } else { Lane::Small };
    let answer = link.call(lane, &Request::Script(invocation)).await.map_err(super::error::Fault::of_write)?;
    let mut reply = Reply::of(answer)?;
    match &reply.text()?[..] {
        "done" => {
            let (before, after) = (reply.number()?, reply.number()?);
            let versions = effect.versions.iter().map(|number| Version::new(before + 1 + number)).collect();
            Ok(Committed { versions, after })
        }
        "conflict" => {
            let index = usize::try_from(reply.number()?).map_err(|_| unexpected())?;
            let met = reply.bytes()?;
            let met = <[u8; 8]>::try_from(&met[..]).ok().map(|bytes| Version::new(u64::from_be_bytes(bytes)));
            Err(precondition_failed(index, batch.preconditions.get(index).ok_or_else(unexpected)?, met))
        }
        "state" => Err(of_schema(&reply.bytes()?)),
        "exhausted" => {
            Err(Error::unsupported("the store has used up its versions, which end at 2^53; copy its items into a new store")
                .without_effect())
        }
        _ => Err(unexpected()),
    }
}

/// Encodes a batch: the schema, the counts, then conditions, puts (three arguments each), touches, deletes, prefixes,
/// and the namespaces that may change.
fn invocation<'a>(keys: &'a Keys, batch: &'a Batch, effect: &Effect<'a>, now: Timestamp) -> Result<Invocation<'a>> {
    if batch.size_bytes() > BATCH_BYTES_MAX {
        let message = format!("the batch has over {} MiB of bodies; split it", BATCH_BYTES_MAX >> 20);
        return Err(Error::new(ErrorKind::TooLarge, message).without_effect());
    }
    if effect.floor >= VERSION_MAX || effect.puts.iter().any(|put| put.version.is_some_and(|version| version >= VERSION_MAX)) {
        return Err(Error::unsupported(
            "the version of the item to restore exceeds 2^53, the limit of a Redis store; put the item instead",
        )
        .without_effect());
    }
    let namespaces: BTreeSet<&Namespace> = batch.written().collect();
    let mut counts = Vec::with_capacity(48);
    for count in [
        batch.preconditions.len(),
        effect.puts.len() + effect.appends.len(),
        effect.touches.len(),
        effect.deletes.len(),
        effect.prefixes.len(),
        namespaces.len(),
    ] {
        counts.extend(u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
    }
    counts.extend(effect.numbers.to_be_bytes());
    counts.extend(effect.floor.to_be_bytes());
    counts.extend(now.as_microsecond().to_be_bytes());
    let mut invocation = script::COMMIT.on(keys).arg(keys.schema()).arg(counts);
    batch.preconditions.iter().for_each(|precondition| invocation.push(condition(precondition)));
    for put in effect.puts.iter().chain(&effect.appends) {
        invocation.push(row(put.namespace, put.key));
        invocation.push(head(put)?);
        invocation.push(put.value);
    }
    for (namespace, key, expires_at) in &effect.touches {
        let mut touch = expires_at.unwrap_or(NEVER).to_be_bytes().to_vec();
        touch.extend(row(namespace, key));
        invocation.push(touch);
    }
    effect.deletes.iter().chain(&effect.prefixes).for_each(|(namespace, key)| invocation.push(row(namespace, key)));
    namespaces.iter().for_each(|namespace| invocation.push(namespace.encoded().as_bytes()));
    if invocation.len() > ARGUMENTS_MAX {
        return Err(Error::new(ErrorKind::TooLarge, "the batch has too many writes for one request; split it").without_effect());
    }
    Ok(invocation)
}

/// Encodes the position of a row: namespace, NUL, key. Namespaces contain no control characters and keys no NUL, so
/// rows sort by namespace, then by key.
pub(super) fn row(namespace: &Namespace, key: &str) -> Vec<u8> {
    let mut row = Vec::with_capacity(namespace.encoded().len() + 1 + key.len());
    row.extend(namespace.encoded().as_bytes());
    row.push(0);
    row.extend(key.as_bytes());
    row
}

/// Encodes a condition: kind, version, row.
fn condition(precondition: &Precondition) -> Vec<u8> {
    let (kind, version) = match precondition.condition {
        Condition::Absent => (b'a', 0),
        Condition::Exists => (b'e', 0),
        Condition::Version(version) => (b'v', version.number()),
        Condition::NoneBeneath => (b'n', 0),
        // The store's versions are lower, and the script could not read a higher one exactly.
        Condition::NoneBeneathSince(version) => (b's', version.number().min(VERSION_MAX)),
        _ => unvalidated(),
    };
    let mut packed = vec![kind];
    packed.extend(version.to_be_bytes());
    packed.extend(row(&precondition.namespace, &precondition.key));
    packed
}

/// Encodes what is known of a record: whether to keep the creation time, how the version is given (`a`: it is a number
/// of the batch and the key is derived from it), then the record.
fn head(put: &PutEffect<'_>) -> Result<Vec<u8>> {
    let size = u32::try_from(put.value.len()).map_err(|_| unexpected())?;
    let numbered = if put.key.is_empty() { b'a' } else { b'n' };
    let mut head = vec![if put.created_at.is_some() { b'c' } else { b'k' }, if put.version.is_some() { b'v' } else { numbered }];
    head.extend(put.version.unwrap_or(put.number).to_be_bytes());
    head.extend(put.expires_at.unwrap_or(NEVER).to_be_bytes());
    head.extend(put.created_at.unwrap_or(put.modified_at).to_be_bytes());
    head.extend(put.modified_at.to_be_bytes());
    head.extend(size.to_be_bytes());
    head.extend(put.meta);
    Ok(head)
}

/// Removes up to `limit` expired rows, a few thousand per script so that other clients are served in between.
pub(super) async fn sweep(link: &Link, keys: &Keys, limit: usize, now: i64) -> Result<usize> {
    let mut swept = 0;
    while swept < limit {
        let count = SWEEP_ROWS.min(limit - swept);
        let invocation = script::SWEEP.on(keys).arg(keys.schema()).arg(now.to_be_bytes()).number(now).number(count);
        let answer = link.call(Lane::Small, &Request::Script(invocation)).await.map_err(super::error::Fault::of_write)?;
        let removed = usize::try_from(Reply::of_store(answer, keys)?.number()?).map_err(|_| unexpected())?;
        swept += removed;
        if removed < count {
            break;
        }
    }
    Ok(swept)
}
