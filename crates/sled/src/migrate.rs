//! The migration from former layouts to the present one, a bounded number of rows at a time.
//!
//! Only one process can have the directory open. Each step begins with a format version that no version opens, [`FIRST_MOVING`] or
//! [`SECOND_MOVING`], and ends with that of the layout it leads to. In between, rows are written under their new keys, synced, and then
//! removed under the old ones. An interrupted migration resumes from the remaining old keys. Bodies are stored by number and stay
//! untouched.

use super::SledOptions;
use super::barrier::Barrier;
use super::error::{failed, guarded};
use super::open::{MARK, engine, locked, not_there, unreachable_directory};
use super::rows::{
    FIRST, FIRST_MOVING, FORMAT, FORMAT_KEY, Record, SECOND, SECOND_MOVING, expiry_key, is_former, records_of, split_record_key,
};
use super::waker::Waker;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use treehold_core::error::Result;
use treehold_store::migrate::{
    FORMER_COPY, FORMER_NAME, MOVABLE_BYTES_MAX, MOVED, MOVED_TO, MigrateOptions, MigrateProgress, MigrateReport, StepCounts, TellMigrate,
    copy_is_unfinished, partition_moves, partition_moves_of_first_layout, range_of, root_is_taken, too_long,
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
    let format = rows.get(FORMAT_KEY).map_err(failed)?.unwrap_or_default();
    if !is_former(&format) {
        return Ok(MigrateReport::up_to_date());
    }
    let counts = planned(rows, &format)?;
    if how.dry_run {
        return Ok(MigrateReport::of(how, counts.into_rows()));
    }
    let mut barrier = Barrier::new(path).map_err(|cause| unreachable_directory(path, cause))?;
    let mut progress = counts.progress();
    tell(progress);
    if [FIRST, FIRST_MOVING].contains(&&*format) {
        move_below_root(rows, &mut barrier, &mut progress, tell)?;
    }
    move_to_partitions(rows, &mut barrier, &mut progress, tell)?;
    barrier.keep(&path.join(MARK), FORMAT).map_err(|cause| unreachable_directory(path, cause))?;
    match std::fs::remove_file(path.join(FORMER_NAME)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unreachable_directory(path, error)),
        _ => {}
    }
    Ok(MigrateReport::of(how, counts.into_rows()))
}

/// Takes the step from the first layout to the second.
fn move_below_root(rows: &::sled::Db, barrier: &mut Barrier, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
    set_format(rows, FIRST_MOVING, barrier)?;
    for name in MOVED {
        let moved = |key: &[u8]| fits(key).then(|| [b"r", MOVED_TO.as_bytes(), &key[1..]].concat());
        move_all(rows, keys_of(name), moved, barrier, progress, tell)?;
    }
    set_format(rows, SECOND, barrier)
}

/// Takes the step from the second layout to the third.
fn move_to_partitions(rows: &::sled::Db, barrier: &mut Barrier, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
    let is_resumed = rows.get(FORMAT_KEY).map_err(failed)?.as_deref() == Some(SECOND_MOVING);
    let moves = partition_moves(&namespaces(rows)?, is_resumed)?;
    set_format(rows, SECOND_MOVING, barrier)?;
    for part in moves {
        let moved = |key: &[u8]| part.to.as_ref().map(|to| [b"r", to.as_bytes(), &key[1 + part.from.len()..]].concat());
        move_all(rows, records_of(&part.from), moved, barrier, progress, tell)?;
    }
    set_format(rows, FORMAT, barrier)
}

fn set_format(rows: &::sled::Db, format: &[u8], barrier: &mut Barrier) -> Result<()> {
    rows.insert(FORMAT_KEY, format).map_err(failed)?;
    carry(rows, barrier)
}

/// Returns the bounds of the record keys below a first component: the first included, the second excluded.
fn keys_of(name: &str) -> Range<Vec<u8>> {
    let (start, end) = range_of(name);
    [b"r", start.as_bytes()].concat()..[b"r", end.as_bytes()].concat()
}

/// Lists the texts of all namespaces: one seek each.
fn namespaces(rows: &::sled::Db) -> Result<Vec<String>> {
    let mut all: Vec<String> = Vec::new();
    let mut from = b"r".to_vec();
    while let Some(key) = rows.range(from..b"s".to_vec()).keys().next() {
        let key = key.map_err(failed)?;
        let (namespace, _) = split_record_key(&key)?;
        from = records_of(namespace).end;
        all.push(namespace.to_owned());
    }
    Ok(all)
}

/// Counts the rows that will move; fails for those that cannot.
fn planned(rows: &::sled::Db, format: &[u8]) -> Result<StepCounts> {
    let mut counts = StepCounts::default();
    let namespaces = namespaces(rows)?;
    let moves = if [FIRST, FIRST_MOVING].contains(&format) {
        counts.first = planned_below_root(rows, format == FIRST_MOVING)?;
        partition_moves_of_first_layout(&namespaces)?
    } else {
        partition_moves(&namespaces, format == SECOND_MOVING)?
    };
    for part in &moves {
        let keys = rows.range(records_of(&part.from)).keys();
        counts.add(part, keys.map(|key| key.map(|_| 1)).sum::<Result<u64, _>>().map_err(failed)?);
    }
    Ok(counts)
}

/// Counts the rows that the first step will move; fails for those that it cannot.
fn planned_below_root(rows: &::sled::Db, is_resumed: bool) -> Result<BTreeMap<&'static str, u64>> {
    let any = |prefix: &str| rows.scan_prefix([b"r", prefix.as_bytes()].concat()).next().transpose().map_err(failed);
    if !is_resumed && any(MOVED_TO)?.is_some() {
        return Err(root_is_taken());
    }
    if any(FORMER_COPY)?.is_some() {
        return Err(copy_is_unfinished());
    }
    let mut counts = BTreeMap::new();
    for name in MOVED {
        let mut count = 0;
        for key in rows.range(keys_of(name)).keys() {
            match fits(&key.map_err(failed)?) {
                true => count += 1,
                false if name != "indexes" => return Err(too_long()),
                false => {}
            }
        }
        counts.insert(name, count);
    }
    Ok(counts)
}

/// Returns whether the namespace of a record's key can get the prefix.
fn fits(key: &[u8]) -> bool {
    key.iter().position(|byte| *byte == 0).is_some_and(|end| end - 1 <= MOVABLE_BYTES_MAX)
}

/// Moves the records of a range, one batch after the other. `moved` returns the new key of each, or `None` for one that is removed.
fn move_all(
    rows: &::sled::Db,
    range: Range<Vec<u8>>,
    moved: impl Fn(&[u8]) -> Option<Vec<u8>>,
    barrier: &mut Barrier,
    progress: &mut MigrateProgress,
    tell: TellMigrate<'_>,
) -> Result<()> {
    while let Some(count) = move_some(rows, range.clone(), &moved, barrier)? {
        progress.rows += count;
        tell(*progress);
    }
    Ok(())
}

/// Moves one batch of records; returns how many moved and were not removed, or `None` if no records were left.
fn move_some(
    rows: &::sled::Db,
    range: Range<Vec<u8>>,
    moved: impl Fn(&[u8]) -> Option<Vec<u8>>,
    barrier: &mut Barrier,
) -> Result<Option<u64>> {
    let (mut puts, mut removes) = (::sled::Batch::default(), ::sled::Batch::default());
    let mut count = None;
    for row in rows.range(range).take(ROWS_AT_ONCE) {
        let (key, stored) = row.map_err(failed)?;
        let record = Record::decode(&stored)?;
        if let Some(at) = record.expires_at {
            removes.remove(expiry_key(at, &key));
        }
        let count = count.get_or_insert(0);
        if let Some(moved) = moved(&key) {
            if let Some(at) = record.expires_at {
                puts.insert(expiry_key(at, &moved), &[][..]);
            }
            puts.insert(moved, stored);
            *count += 1;
        } else {
            // A part of an index whose namespace would become too long.
            record.piece_keys().for_each(|piece| removes.remove(&piece));
        }
        removes.remove(key);
    }
    if count.is_some() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SledStore;
    use std::time::Duration;
    use treehold_store::migrate::MigrateOutcome;
    use treehold_store::{Batch, Namespace, Store, StoreMaintenance};

    /// More than two batches.
    const ROWS: usize = 2 * ROWS_AT_ONCE + 300;

    fn open_rows(options: &SledOptions) -> ::sled::Db {
        let config = engine(&options.path, options);
        locked(&options.path, &config, options.lock_timeout).expect("opened")
    }

    /// Makes a store of the second layout, whose rows are in a namespace of one component.
    async fn make_second_layout(options: &SledOptions) {
        let store = SledStore::open_with(options.clone()).expect("opened");
        let namespace = Namespace::parse("notes").expect("legal");
        let time_to_live = Duration::from_secs(3_600);
        let put = |batch: Batch, number| batch.put_for(&namespace, format!("{number:05}"), vec![b'x'; number], time_to_live);
        for numbers in (0..ROWS).collect::<Vec<_>>().chunks(500) {
            store.commit(numbers.iter().copied().fold(Batch::new(), put)).await.expect("committed");
        }
        drop(store);
        let rows = open_rows(options);
        let former = |key: &[u8]| Some([b"rnotes/", &key[b"rnotes//".len()..]].concat());
        let mut barrier = Barrier::new(&options.path).expect("there");
        while move_some(&rows, records_of("notes//"), former, &mut barrier).expect("moved").is_some() {}
        set_format(&rows, SECOND, &mut barrier).expect("set");
    }

    #[tokio::test]
    async fn migration_interrupted_within_a_namespace_keeps_every_row() {
        for tells in 0.. {
            let directory = tempfile::tempdir().expect("a directory");
            // The engine may still be truncating its log when the store is opened again.
            let options = SledOptions::new(directory.path().join("store")).with_lock_timeout(Duration::from_secs(60));
            make_second_layout(&options).await;
            let mut left = tells;
            let stopped = migrate(&options, &MigrateOptions::new(), &mut |_| {
                assert!(left > 0, "stopped by the test");
                left -= 1;
            });
            let report = match stopped {
                Ok(report) => report,
                Err(_) => migrate(&options, &MigrateOptions::new(), &mut |_| {}).expect("resumed"),
            };
            assert_eq!(report.outcome, MigrateOutcome::Migrated);
            let store = SledStore::open_with(options).expect("opened");
            assert!(store.check().await.expect("checked").is_empty());
            let stats = store.stats().await.expect("counted");
            assert_eq!((stats.items, stats.namespaces, stats.value_bytes), (ROWS as u64, 1, (ROWS * (ROWS - 1) / 2) as u64));
            if left > 0 {
                assert_eq!(tells, 5, "the first report and one for each batch");
                break;
            }
        }
    }
}
