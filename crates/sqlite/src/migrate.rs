//! The migration from former layouts to the present one, in one exclusive transaction.
//!
//! Leaving write-ahead mode fails while any other process has the file open, so the migration never runs beside a server. Rows
//! change their namespace in place; bodies are stored by row id and stay untouched. After a kill, the next process rolls the
//! transaction back by its journal.

use super::SqliteOptions;
use super::error::{failed, is_busy, unreachable_file};
use super::open::{
    FIRST_LAYOUT, check_ours, check_version, check_writable, connect, is_former, migrate_from, opening, schema_version, sync_directory_of,
};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use std::collections::BTreeMap;
use std::time::Duration;
use treehold_core::error::Result;
use treehold_store::migrate::{
    FORMER_COPY, MOVABLE_BYTES_MAX, MOVED, MOVED_TO, MigrateOptions, MigrateProgress, MigrateReport, StepCounts, TellMigrate,
    copy_is_unfinished, in_use, partition_moves, partition_moves_of_first_layout, range_of, root_is_taken, too_long,
};

/// How long to wait for other processes; a server never closes the file.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn migrate(options: &SqliteOptions, how: &MigrateOptions, tell: TellMigrate<'_>) -> Result<MigrateReport> {
    let path = std::path::absolute(&options.path).map_err(|cause| unreachable_file(&options.path, cause))?;
    let lock = opening(&path);
    let _opening = lock.lock();
    if std::fs::metadata(&path).map_err(|cause| unreachable_file(&path, cause))?.is_dir() {
        return Err(unreachable_file(&path, std::io::ErrorKind::IsADirectory.into()));
    }
    check_writable(&path)?;
    check_ours(&path)?;
    let mut connection = connect(&path, options)?;
    let version = check_version(&path, schema_version(&connection)?)?;
    if !is_former(version) {
        return Ok(MigrateReport::up_to_date());
    }
    if how.dry_run {
        return Ok(MigrateReport::of(how, planned(&connection, version)?.into_rows()));
    }
    leave_write_ahead_logging(&connection)?;
    connection.pragma_update(None, "synchronous", "EXTRA").map_err(failed)?;
    connection.pragma_update(None, "fullfsync", true).map_err(failed)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Exclusive).map_err(failed)?;
    let version = check_version(&path, schema_version(&transaction)?)?;
    if !is_former(version) {
        return Ok(MigrateReport::up_to_date());
    }
    let counts = planned(&transaction, version)?;
    let mut progress = counts.progress();
    tell(progress);
    if version == FIRST_LAYOUT {
        move_below_root(&transaction, &mut progress, tell)?;
    }
    migrate_from(version, &transaction)?;
    move_to_partitions(&transaction, &mut progress, tell)?;
    transaction.commit().map_err(failed)?;
    sync_directory_of(&path).map_err(|cause| unreachable_file(&path, cause))?;
    Ok(MigrateReport::of(how, counts.into_rows()))
}

/// Takes the step from the first layout to the second.
fn move_below_root(transaction: &Connection, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
    for name in MOVED {
        let (start, end) = range_of(name);
        if name == "indexes" {
            // Drop parts of indexes whose namespace would become too long. Such trees have no index in the present layout.
            let sql = "DELETE FROM bodies WHERE id IN (SELECT id FROM items WHERE namespace >= ?1 AND namespace < ?2 AND length(CAST(namespace AS BLOB)) > ?3)";
            transaction.execute(sql, (&start, &end, MOVABLE_BYTES_MAX)).map_err(failed)?;
            let sql = "DELETE FROM items WHERE namespace >= ?1 AND namespace < ?2 AND length(CAST(namespace AS BLOB)) > ?3";
            transaction.execute(sql, (&start, &end, MOVABLE_BYTES_MAX)).map_err(failed)?;
        }
        let sql = "UPDATE items SET namespace = ?3 || namespace WHERE namespace >= ?1 AND namespace < ?2";
        progress.rows += transaction.execute(sql, (&start, &end, MOVED_TO)).map_err(failed)? as u64;
        tell(*progress);
    }
    Ok(())
}

/// Takes the step from the second layout to the third. The tables are those of the present schema version.
fn move_to_partitions(transaction: &Connection, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
    for part in partition_moves(&namespaces(transaction)?, false)? {
        if let Some(to) = &part.to {
            let sql = "UPDATE items SET namespace = ?2 WHERE namespace = ?1";
            progress.rows +=
                transaction.prepare_cached(sql).and_then(|mut update| update.execute((&part.from, to))).map_err(failed)? as u64;
        } else {
            for sql in [
                "DELETE FROM bodies WHERE id IN (SELECT id FROM items WHERE namespace = ?1)",
                "DELETE FROM chunks WHERE item IN (SELECT id FROM items WHERE namespace = ?1)",
                "DELETE FROM items WHERE namespace = ?1",
            ] {
                transaction.execute(sql, (&part.from,)).map_err(failed)?;
            }
        }
        tell(*progress);
    }
    Ok(())
}

/// Counts the rows that will move; fails for those that cannot.
fn planned(connection: &Connection, version: usize) -> Result<StepCounts> {
    let mut counts = StepCounts::default();
    let namespaces = namespaces(connection)?;
    let moves = if version == FIRST_LAYOUT {
        counts.first = planned_below_root(connection)?;
        partition_moves_of_first_layout(&namespaces)?
    } else {
        partition_moves(&namespaces, false)?
    };
    let mut count = connection.prepare("SELECT COUNT(*) FROM items WHERE namespace = ?1").map_err(failed)?;
    for part in &moves {
        counts.add(part, count.query_row((&part.from,), |row| row.get(0)).map_err(failed)?);
    }
    Ok(counts)
}

/// Counts the rows that the first step will move; fails for those that it cannot.
fn planned_below_root(connection: &Connection) -> Result<BTreeMap<&'static str, u64>> {
    let count = |sql: &str, start: &str, end: &str| -> Result<u64> {
        connection.query_row(sql, (start, end), |row| row.get::<_, u64>(0)).map_err(failed)
    };
    let all = "SELECT COUNT(*) FROM items WHERE namespace >= ?1 AND namespace < ?2";
    if count(all, MOVED_TO, "_treehold0")? > 0 {
        return Err(root_is_taken());
    }
    if count(all, FORMER_COPY, "stratafs/copy0")? > 0 {
        return Err(copy_is_unfinished());
    }
    let mut rows = BTreeMap::new();
    for name in MOVED {
        let (start, end) = range_of(name);
        let long = format!("{all} AND length(CAST(namespace AS BLOB)) > {MOVABLE_BYTES_MAX}");
        let too_long_rows = count(&long, &start, &end)?;
        if too_long_rows > 0 && name != "indexes" {
            return Err(too_long());
        }
        rows.insert(name, count(all, &start, &end)? - too_long_rows);
    }
    Ok(rows)
}

/// Lists the texts of all namespaces: one seek each.
fn namespaces(connection: &Connection) -> Result<Vec<String>> {
    let sql = "SELECT namespace FROM items WHERE namespace > ?1 ORDER BY namespace LIMIT 1";
    let mut next = connection.prepare(sql).map_err(failed)?;
    let mut all: Vec<String> = Vec::new();
    loop {
        let last = all.last().map_or("", String::as_str);
        match next.query_row((last,), |row| row.get(0)).optional().map_err(failed)? {
            Some(namespace) => all.push(namespace),
            None => return Ok(all),
        }
    }
}

/// Turns the write-ahead log off, which fails while other processes have the file open.
fn leave_write_ahead_logging(connection: &Connection) -> Result<()> {
    connection.busy_timeout(PATIENCE).map_err(failed)?;
    match connection.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get::<_, String>(0)) {
        Ok(mode) if mode == "delete" => Ok(()),
        Ok(_) => Err(in_use()),
        Err(error) if is_busy(&error) => Err(in_use().with_source(error)),
        Err(error) => Err(failed(error)),
    }
}
