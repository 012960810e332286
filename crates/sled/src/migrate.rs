//! The migration from the former layout to the present one, a bounded number of rows at a time.
//!
//! Only one process can have the directory open. The format version is [`MOVING`] first, which no version opens, and the present
//! one last. In between, rows are written under their new keys, synced, and then removed under the old ones. An interrupted
//! migration resumes from the remaining old keys. Bodies are stored by number and stay untouched.

use super::SledOptions;
use super::barrier::Barrier;
use super::error::{failed, guarded};
use super::open::{MARK, engine, locked, not_there, unreachable_directory};
use super::rows::{FORMAT, FORMAT_KEY, FORMER, MOVING, Record, expiry_key};
use super::waker::Waker;
use std::collections::BTreeMap;
use std::path::Path;
use treehold_core::error::Result;
use treehold_store::migrate::{
    FORMER_COPY, FORMER_NAME, MOVABLE_BYTES_MAX, MOVED, MOVED_TO, MigrateOptions, MigrateProgress, MigrateReport, TellMigrate,
    copy_is_unfinished, range_of, root_is_taken, too_long,
};

/// How many rows move per batch: up to 6.5 MB of records, of which the engine needs several times as much memory.
const ROWS_AT_ONCE: usize = 1_000;

pub(super) fn migrate(options: &SledOptions, how: &MigrateOptions, tell: TellMigrate<'_>) -> Result<MigrateReport> {
    let path = std::path::absolute(&options.path).map_err(|cause| unreachable_directory(&options.path, cause))?;
    if !path.join("db").is_file() {
        return Err(not_there(&path));
    }
    let config = engine(&path, options);
    let rows = guarded(|| locked(&path, &config, options.lock_timeout))?;
    let _waker = Waker::start(rows.clone(), config)?;
    guarded(|| migrate_rows(&path, &rows, how, tell))
}

fn migrate_rows(path: &Path, rows: &::sled::Db, how: &MigrateOptions, tell: TellMigrate<'_>) -> Result<MigrateReport> {
    let format = rows.get(FORMAT_KEY).map_err(failed)?;
    let is_resumed = format.as_deref() == Some(MOVING);
    if format.as_deref() != Some(FORMER) && !is_resumed {
        return Ok(MigrateReport::up_to_date());
    }
    let counts = planned(rows, is_resumed)?;
    if how.dry_run {
        return Ok(MigrateReport::of(how, counts));
    }
    let mut barrier = Barrier::new(path).map_err(|cause| unreachable_directory(path, cause))?;
    rows.insert(FORMAT_KEY, MOVING).map_err(failed)?;
    carry(rows, &mut barrier)?;
    let mut progress = MigrateProgress::new(counts.values().sum());
    tell(progress);
    for name in MOVED {
        loop {
            let moved = move_some(rows, name, &mut barrier)?;
            if moved == 0 {
                break;
            }
            progress.rows += moved;
            tell(progress);
        }
    }
    rows.insert(FORMAT_KEY, FORMAT).map_err(failed)?;
    carry(rows, &mut barrier)?;
    barrier.keep(&path.join(MARK), FORMAT).map_err(|cause| unreachable_directory(path, cause))?;
    match std::fs::remove_file(path.join(FORMER_NAME)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unreachable_directory(path, error)),
        _ => {}
    }
    Ok(MigrateReport::of(how, counts))
}

/// Returns the bounds of the record keys below a first component: the first included, the second excluded.
fn keys_of(name: &str) -> (Vec<u8>, Vec<u8>) {
    let (start, end) = range_of(name);
    ([b"r", start.as_bytes()].concat(), [b"r", end.as_bytes()].concat())
}

/// Counts the rows that will move; fails for those that cannot.
fn planned(rows: &::sled::Db, is_resumed: bool) -> Result<BTreeMap<&'static str, u64>> {
    let any = |prefix: &str| rows.scan_prefix([b"r", prefix.as_bytes()].concat()).next().transpose().map_err(failed);
    if !is_resumed && any(MOVED_TO)?.is_some() {
        return Err(root_is_taken());
    }
    if any(FORMER_COPY)?.is_some() {
        return Err(copy_is_unfinished());
    }
    let mut counts = BTreeMap::new();
    for name in MOVED {
        let (start, end) = keys_of(name);
        let mut count = 0;
        for key in rows.range(start..end).keys() {
            if !fits(&key.map_err(failed)?) && name != "indexes" {
                return Err(too_long());
            }
            count += 1;
        }
        counts.insert(name, count);
    }
    Ok(counts)
}

/// Returns whether the namespace of a record's key can get the prefix.
fn fits(key: &[u8]) -> bool {
    key.iter().position(|byte| *byte == 0).is_some_and(|end| end - 1 <= MOVABLE_BYTES_MAX)
}

/// Moves one batch of rows; returns their number.
fn move_some(rows: &::sled::Db, name: &str, barrier: &mut Barrier) -> Result<u64> {
    let (start, end) = keys_of(name);
    let (mut puts, mut removes) = (::sled::Batch::default(), ::sled::Batch::default());
    let mut count = 0;
    for row in rows.range(start..end).take(ROWS_AT_ONCE) {
        let (key, stored) = row.map_err(failed)?;
        let record = Record::decode(&stored)?;
        let moved = [b"r", MOVED_TO.as_bytes(), &key[1..]].concat();
        if let Some(at) = record.expires_at {
            removes.remove(expiry_key(at, &key));
        }
        if fits(&key) {
            if let Some(at) = record.expires_at {
                puts.insert(expiry_key(at, &moved), &[][..]);
            }
            puts.insert(moved, stored);
        } else {
            // Drop a part of an index whose namespace would become too long.
            record.piece_keys().for_each(|piece| removes.remove(&piece));
        }
        removes.remove(key);
        count += 1;
    }
    if count > 0 {
        rows.apply_batch(puts).map_err(failed)?;
        carry(rows, barrier)?;
        rows.apply_batch(removes).map_err(failed)?;
        carry(rows, barrier)?;
    }
    Ok(count)
}

/// Makes what was written durable.
fn carry(rows: &::sled::Db, barrier: &mut Barrier) -> Result<()> {
    rows.flush().map_err(failed)?;
    barrier.sync().map_err(|error| failed(error.into()))
}
