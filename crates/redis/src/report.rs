//! Statistics and integrity checks, a limited number of rows per script so that other clients are served in between.

use super::error::{Fault, damaged};
use super::link::{Lane, Link, Request};
use super::open::memory_usage;
use super::read::Moment;
use super::reply::Reply;
use super::script::{self, Keys};
use ::redis::Value;
use treehold_core::error::{Error, Result};
use treehold_store::StoreStats;

/// How many rows one script counts.
const STATS_ROWS: usize = 5_000;

/// How many rows one script checks.
const CHECK_ROWS: usize = 2_000;

/// How often the comparison is repeated after concurrent commits.
const CHECKS_MAX: usize = 3;

/// The fields of the hash that do not belong to rows: schema, version, turns.
const FIELDS: u64 = 3;

/// Counts rows and their bytes page by page. Concurrent commits may or may not be counted.
pub(super) async fn stats(link: &Link, keys: &Keys, now: i64) -> Result<StoreStats> {
    let mut stats = StoreStats::new();
    let (mut from, mut last) = (b"(".to_vec(), Vec::new());
    while !from.is_empty() {
        let invocation = script::STATS.on(keys).arg(keys.schema()).arg(now.to_be_bytes()).arg(from).number(STATS_ROWS).arg(last);
        let answer = link.call(Lane::Small, &Request::Script(invocation)).await.map_err(Fault::of_read)?;
        let mut reply = Reply::of_store(answer, keys)?;
        from = reply.bytes()?.into();
        for count in [&mut stats.items, &mut stats.meta_bytes, &mut stats.value_bytes, &mut stats.expired, &mut stats.namespaces] {
            *count += reply.number()?;
        }
        last = reply.bytes()?.into();
    }
    stats.stored_bytes = stored_bytes(link, keys).await;
    Ok(stats)
}

/// Returns the server's estimate of the bytes that the keys use, if it reports one.
async fn stored_bytes(link: &Link, keys: &Keys) -> Option<u64> {
    let answers = link.ask_each(keys.all().iter().map(|key| memory_usage(key))).await;
    let bytes = |answer| match answer {
        Ok(Value::Int(bytes)) => u64::try_from(bytes).ok(),
        _ => None,
    };
    answers.into_iter().map(bytes).sum()
}

/// The findings so far.
#[derive(Default)]
struct Found {
    rows: u64,
    with_body: u64,
    with_end: u64,
    no_record: u64,
    no_body: u64,
    newer: u64,
    wrong_end: u64,
}

/// Looks for rows whose parts do not fit together.
pub(super) async fn check(link: &Link, keys: &Keys) -> Result<Vec<Error>> {
    for checks_left in (0..CHECKS_MAX).rev() {
        if let Some(found) = check_once(link, keys, checks_left == 0).await? {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// Checks every row. Returns `None` if a commit intervened, except on the last attempt, which skips the comparison of
/// totals instead.
async fn check_once(link: &Link, keys: &Keys, is_last: bool) -> Result<Option<Vec<Error>>> {
    let mut found = Found::default();
    let mut from = b"(".to_vec();
    let mut began = None;
    let (moment, fields, members, ends) = loop {
        let invocation = script::CHECK.on(keys).arg(keys.schema()).arg(from).number(CHECK_ROWS);
        let answer = link.call(Lane::Small, &Request::Script(invocation)).await.map_err(Fault::of_read)?;
        let mut reply = Reply::of_store(answer, keys)?;
        let moment = Moment::of(&mut reply)?;
        began.get_or_insert(moment);
        from = reply.bytes()?.into();
        let (fields, members, ends) = (reply.number()?, reply.number()?, reply.number()?);
        for count in
            [&mut found.with_body, &mut found.with_end, &mut found.no_record, &mut found.no_body, &mut found.newer, &mut found.wrong_end]
        {
            *count += reply.number()?;
        }
        found.rows = members.saturating_sub(1);
        if from.is_empty() {
            break (moment, fields, members, ends);
        }
    };
    let is_still = began == Some(moment);
    if !is_still && !is_last {
        return Ok(None);
    }
    let orphans = is_still && fields != FIELDS + found.rows - found.no_record + found.with_body;
    let of_none = is_still && (members == 0 || ends != found.with_end + 1);
    let faults = [
        (found.no_record > 0, "there are rows without a record", Some(found.no_record)),
        (found.no_body > 0, "there are rows without a body", Some(found.no_body)),
        (found.newer > 0, "there are rows newer than the version counter", Some(found.newer)),
        (found.wrong_end > 0, "there are rows whose expiry differs from the one they are swept by", Some(found.wrong_end)),
        (orphans, "there are records or bodies without a row", None),
        (of_none, "there are expiries without a row", None),
    ];
    let fault = |what: &str, count: Option<u64>| damaged(&count.map_or_else(|| what.to_owned(), |count| format!("{what} ({count})")));
    Ok(Some(faults.into_iter().filter(|(is_met, ..)| *is_met).map(|(_, what, count)| fault(what, count)).collect()))
}
