//! The migration from the former layout to the present one, a bounded number of rows and bytes per script.
//!
//! The first script sets the schema to [`MOVING`], which fences the store: every script of either version checks the schema and
//! fails. The last one sets the present schema. In between, an interrupted migration resumes from the names of the rows. A store
//! under the former default prefix is renamed last, which a cluster cannot do: there the prefix stays, and the URL names it.

use super::error::{Fault, damaged};
use super::link::{Lane, Link, Request};
use super::reply::{Reply, SCHEMA};
use super::script::{self, Keys};
use ::redis::{Value, cmd};
use std::collections::BTreeMap;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::migrate::{
    FORMER_COPY, FORMER_NAME, MOVABLE_BYTES_MAX, MOVED, MOVED_TO, MigrateOptions, MigrateProgress, MigrateReport, TellMigrate,
    copy_is_unfinished, range_of, root_is_taken, too_long,
};

/// The schema of the former layout.
const FORMER_SCHEMA: &str = "1";

/// The schema during the migration.
const MOVING: &str = "2";

/// How many rows one script moves, or one command lists.
const ROWS_AT_ONCE: usize = 500;

/// After how many bytes a script ends, at the next row.
const BYTES_AT_ONCE: usize = 4 << 20;

/// Returns whether a schema needs a migration.
pub(super) fn is_former(schema: &str) -> bool {
    matches!(schema, FORMER_SCHEMA | MOVING)
}

/// Returns the schema of the store under some keys; an empty text if there is none.
pub(super) async fn schema_of(link: &Link, keys: &Keys) -> Result<String> {
    let command = cmd("HGET").arg(keys.rows()).arg(".schema").to_owned();
    match link.call(Lane::Small, &Request::Read(command)).await.map_err(Fault::of_read)? {
        Value::BulkString(text) => String::from_utf8(text).map_err(|_| damaged("the schema of the store is not text")),
        _ => Ok(String::new()),
    }
}

/// A store to migrate, and where it is.
pub(super) struct Move<'m> {
    /// The keys that the store has once it is migrated.
    pub(super) keys: &'m Keys,
    /// The connection for them.
    pub(super) link: &'m Link,
    /// The keys under the former default prefix, and the connection for them, if the URL names no prefix.
    pub(super) former: Option<(&'m Keys, &'m Link)>,
}

impl Move<'_> {
    pub(super) async fn run(&self, how: &MigrateOptions, tell: TellMigrate<'_>) -> Result<MigrateReport> {
        let (keys, link, is_renamed) = match schema_of(self.link, self.keys).await?.as_str() {
            schema if is_former(schema) => (self.keys, self.link, false),
            "" => match self.former {
                Some((keys, link)) if !schema_of(link, keys).await?.is_empty() => (keys, link, true),
                _ => return Err(Error::new(ErrorKind::NotFound, "the server holds no store of this name; check the URL").without_effect()),
            },
            _ => return Ok(MigrateReport::up_to_date()),
        };
        if is_renamed && link.address().is_cluster {
            return Err(Error::unsupported(format!(
                "a cluster keeps the store under its former prefix, as its keys cannot be renamed to another slot; add \
                 `?prefix={FORMER_NAME}` to the URL, here and in the configuration"
            )));
        }
        let counts = planned(link, keys).await?;
        let taken_from = is_renamed.then(|| format!("the prefix `{FORMER_NAME}`"));
        if how.dry_run {
            return Ok(MigrateReport::of(how, counts).with_taken_from(taken_from));
        }
        let mut progress = MigrateProgress::new(counts.values().sum());
        tell(progress);
        for name in MOVED {
            loop {
                let moved = move_some(link, keys, name).await?;
                if moved == 0 {
                    break;
                }
                progress.rows += moved;
                tell(progress);
            }
        }
        if is_renamed {
            rename(link, keys, self.keys).await?;
        }
        finish(self.link, self.keys).await?;
        Ok(MigrateReport::of(how, counts).with_taken_from(taken_from))
    }
}

async fn move_some(link: &Link, keys: &Keys, name: &str) -> Result<u64> {
    let (start, end) = range_of(name);
    let invocation = script::MOVE.on(keys).arg(start).arg(end).arg(MOVED_TO);
    let invocation = invocation.number(ROWS_AT_ONCE).number(BYTES_AT_ONCE).number(MOVABLE_BYTES_MAX);
    let mut reply = Reply::of(link.call(Lane::Large, &Request::Script(invocation)).await.map_err(Fault::of_write)?)?;
    let schema = reply.text()?;
    if schema == MOVING || schema == SCHEMA { reply.number() } else { Err(super::error::of_schema(schema.as_bytes())) }
}

/// Renames the keys of a store, all or none of them.
async fn rename(link: &Link, from: &Keys, to: &Keys) -> Result<()> {
    const SCRIPT: &str = "for index = 1, 4 do redis.call('RENAME', KEYS[index], KEYS[index + 4]) end return 1";
    let mut command = cmd("EVAL");
    command.arg(SCRIPT).arg(8).arg(from.all()).arg(to.all());
    // Sent once: a second one would find nothing to rename.
    link.call(Lane::Small, &Request::Write(command)).await.map_err(Fault::of_write).map(drop)
}

async fn finish(link: &Link, keys: &Keys) -> Result<()> {
    let mut invocation = script::MOVED.on(keys).arg(SCHEMA).arg(MOVED_TO);
    for name in MOVED {
        invocation = invocation.arg(name);
    }
    let answer = link.call(Lane::Small, &Request::Script(invocation)).await.map_err(Fault::of_write)?;
    let schema = Reply::of(answer)?.text()?;
    if schema == SCHEMA { Ok(()) } else { Err(super::error::of_schema(schema.as_bytes())) }
}

/// Counts what will move; refuses what cannot.
async fn planned(link: &Link, keys: &Keys) -> Result<BTreeMap<&'static str, u64>> {
    let is_resumed = schema_of(link, keys).await? == MOVING;
    if !is_resumed && !members(link, keys, format!("[{MOVED_TO}"), "(_treehold0", 1).await?.is_empty() {
        return Err(root_is_taken());
    }
    if !members(link, keys, format!("[{FORMER_COPY}"), "(stratafs/copy0", 1).await?.is_empty() {
        return Err(copy_is_unfinished());
    }
    let mut counts = BTreeMap::new();
    for name in MOVED {
        let (start, end) = range_of(name);
        let (mut from, end) = (format!("[{start}").into_bytes(), format!("({end}"));
        let mut count = 0;
        loop {
            let page = members(link, keys, from, &end, ROWS_AT_ONCE).await?;
            let Some(last) = page.last() else { break };
            let is_long = |row: &Vec<u8>| row.iter().position(|byte| *byte == 0).is_none_or(|end| end > MOVABLE_BYTES_MAX);
            if name != "indexes" && page.iter().any(is_long) {
                return Err(too_long());
            }
            count += page.len() as u64;
            from = [b"(", last.as_slice()].concat();
        }
        counts.insert(name, count);
    }
    Ok(counts)
}

/// Lists rows by name.
async fn members(link: &Link, keys: &Keys, from: impl Into<Vec<u8>>, to: &str, limit: usize) -> Result<Vec<Vec<u8>>> {
    let mut command = cmd("ZRANGEBYLEX");
    command.arg(&keys.all()[1]).arg(from.into()).arg(to).arg("LIMIT").arg(0).arg(limit);
    let answer = link.call(Lane::Large, &Request::Read(command)).await.map_err(Fault::of_read)?;
    let mut reply = Reply::of(answer)?;
    (0..reply.len()).map(|_| Ok(reply.bytes()?.into())).collect()
}
