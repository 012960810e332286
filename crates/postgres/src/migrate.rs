//! The migration from former layouts to the present one, in one transaction.
//!
//! It locks the tables exclusively, so it waits for running transactions and blocks new ones. Each step renames or drops a table that every
//! write needs, and the first one, for a store under the former default name, the schema. So a server of a former version that still runs
//! fails on every write, instead of writing rows that nobody reads. The last step writes every row again, but not bodies that the engine
//! stores out of line.

use super::connect::Target;
use super::error::failed;
use super::schema::{
    FIRST_LAYOUT, ONE_COUNTER, SCHEMA, check_number, is_former, is_under_former_name, number, quoted, renames_from, to_partitions,
};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use tokio_postgres::error::SqlState;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::migrate::{
    FORMER_COPY, FORMER_NAME, MOVABLE_BYTES_MAX, MOVED, MOVED_TO, MigrateOptions, MigrateProgress, MigrateReport, StepCounts, TellMigrate,
    copy_is_unfinished, in_use, partition_moves, partition_moves_of_first_layout, partition_moves_with_listed, range_of, root_is_taken,
    too_long,
};

pub(super) async fn migrate(
    connection: &ClientWrapper,
    target: &Target,
    how: &MigrateOptions,
    tell: TellMigrate<'_>,
) -> Result<MigrateReport> {
    let schema = quoted(&target.schema);
    let found = number(connection, &target.schema, &schema).await?.map(|found| check_number(Some(found))).transpose()?;
    let (source, found) = match found {
        Some(found) if is_former(found) => (target.schema.clone(), found),
        Some(_) => return Ok(MigrateReport::up_to_date()),
        None if target.is_default && is_under_former_name(connection).await? => (FORMER_NAME.to_owned(), FIRST_LAYOUT),
        None => return Err(Error::new(ErrorKind::NotFound, "the database holds no store; check the URL").without_effect()),
    };
    if how.dry_run {
        let (rows, _) = planned(connection, &quoted(&source), found).await?;
        return Ok(MigrateReport::of(how, rows).with_taken_from(taken_from(&source, target)));
    }
    connection.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await.map_err(failed)?;
    match migrate_within(connection, &source, found, target, tell).await {
        Ok(rows) => {
            connection.batch_execute("COMMIT").await.map_err(|error| failed(error).with_unknown_effect())?;
            Ok(MigrateReport::of(how, rows).with_taken_from(taken_from(&source, target)))
        }
        Err(error) => {
            // If even this fails, the connection is not used again.
            let _ = connection.batch_execute("ROLLBACK").await;
            Err(error.without_effect())
        }
    }
}

fn taken_from(source: &str, target: &Target) -> Option<String> {
    (source != target.schema).then(|| format!("the schema `{source}`"))
}

/// Migrates the store in the schema `source`, of the schema version `found`, within a transaction.
async fn migrate_within(connection: &ClientWrapper, source: &str, found: u32, target: &Target, tell: TellMigrate<'_>) -> Result<RowCounts> {
    let from = quoted(source);
    let rows = rows_of(found);
    let counter = if found < ONE_COUNTER { "counter" } else { "version_counter" };
    let lock = format!("LOCK TABLE {from}.schema_version, {from}.{counter}, {from}.{rows}, {from}.touched IN ACCESS EXCLUSIVE MODE");
    connection.batch_execute(&lock).await.map_err(|error| match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => in_use().with_source(error),
        // Another migration finished first.
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => in_use().with_source(error),
        _ => failed(error),
    })?;
    let (counts, mut progress) = planned(connection, &from, found).await?;
    tell(progress);
    if found == FIRST_LAYOUT {
        move_below_root(connection, &from, &mut progress, tell).await?;
    }
    for rename in renames_from(found, &from) {
        connection.batch_execute(&rename).await.map_err(failed)?;
    }
    if found < ONE_COUNTER {
        move_to_partitions(connection, &from, &mut progress, tell).await?;
    }
    connection.batch_execute(&to_partitions(&from)).await.map_err(failed)?;
    progress.rows += counts.get(PARTITIONS).copied().unwrap_or(0);
    tell(progress);
    let mut last = format!("UPDATE {from}.schema_version SET version = {SCHEMA} WHERE id = 1");
    if source != target.schema {
        last += &format!("; ALTER SCHEMA {from} RENAME TO {}", quoted(&target.schema));
    }
    connection.batch_execute(&last).await.map_err(|error| match error.code() {
        Some(&SqlState::DUPLICATE_SCHEMA) => {
            let message = format!(
                "the schema `{}` exists and holds no store; drop it, or keep the store where it is by `schema={source}` in its URL",
                target.schema
            );
            Error::new(ErrorKind::AlreadyExists, message).with_source(error)
        }
        _ => failed(error),
    })?;
    Ok(counts)
}

/// The numbers of rows that move, by what they are.
type RowCounts = BTreeMap<&'static str, u64>;

/// What a report calls the rows that the last step gives a partition: all.
const PARTITIONS: &str = "partitions";

/// Returns the name of the table of rows in a schema version of a former layout.
fn rows_of(number: u32) -> &'static str {
    if number == FIRST_LAYOUT { "items" } else { "rows" }
}

/// Takes the step from the first layout to the second.
async fn move_below_root(connection: &ClientWrapper, from: &str, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
    for name in MOVED {
        let (start, end) = range_of(name);
        for table in ["items", "touched"] {
            // Only parts of indexes can be this long; the plan fails for other rows.
            let sql = format!(
                "DELETE FROM {from}.{table} WHERE namespace >= $1 AND namespace < $2 AND octet_length(namespace) > {MOVABLE_BYTES_MAX}"
            );
            connection.execute(&sql, &[&start, &end]).await.map_err(failed)?;
            let sql = format!("UPDATE {from}.{table} SET namespace = $3::text || namespace WHERE namespace >= $1 AND namespace < $2");
            let moved = connection.execute(&sql, &[&start, &end, &MOVED_TO]).await.map_err(failed)?;
            progress.rows += if table == "items" { moved } else { 0 };
        }
        tell(*progress);
    }
    Ok(())
}

/// Takes the step from the second layout to the third. The tables have their present names.
async fn move_to_partitions(connection: &ClientWrapper, from: &str, progress: &mut MigrateProgress, tell: TellMigrate<'_>) -> Result<()> {
    let namespaces = namespaces(connection, from, "rows").await?;
    let listed = connection.query(&format!("SELECT namespace FROM {from}.touched WHERE namespace <> ''"), &[]).await.map_err(failed)?;
    let listed: Result<Vec<String>> = listed.iter().map(|row| row.try_get(0).map_err(failed)).collect();
    for part in partition_moves_with_listed(&namespaces, &listed?, false)? {
        for table in ["rows", "touched"] {
            let Some(to) = &part.to else {
                let sql = format!("DELETE FROM {from}.{table} WHERE namespace = $1");
                connection.execute(&sql, &[&part.from]).await.map_err(failed)?;
                continue;
            };
            let sql = format!("UPDATE {from}.{table} SET namespace = $2 WHERE namespace = $1");
            let moved = connection.execute(&sql, &[&part.from, to]).await.map_err(failed)?;
            progress.rows += if table == "rows" { moved } else { 0 };
        }
        tell(*progress);
    }
    Ok(())
}

/// Lists the texts of all namespaces with rows: one seek each.
async fn namespaces(connection: &ClientWrapper, from: &str, rows: &str) -> Result<Vec<String>> {
    let sql = format!(
        "WITH RECURSIVE found(namespace) AS (
           (SELECT i.namespace FROM {from}.{rows} i ORDER BY i.namespace LIMIT 1)
         UNION ALL
           SELECT (SELECT i.namespace FROM {from}.{rows} i WHERE i.namespace > f.namespace ORDER BY i.namespace LIMIT 1)
           FROM found f WHERE f.namespace IS NOT NULL)
         SELECT namespace FROM found WHERE namespace IS NOT NULL"
    );
    let rows = connection.query(&sql, &[]).await.map_err(failed)?;
    rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
}

/// Counts the rows that will move; fails for those that cannot. `found` is the schema version. A row that several steps move counts in each
/// for the progress.
async fn planned(connection: &ClientWrapper, from: &str, found: u32) -> Result<(RowCounts, MigrateProgress)> {
    let mut counts = StepCounts::default();
    let rows = rows_of(found);
    let moves = if found == FIRST_LAYOUT {
        counts.first = planned_below_root(connection, from).await?;
        partition_moves_of_first_layout(&namespaces(connection, from, rows).await?)?
    } else if found < ONE_COUNTER {
        partition_moves(&namespaces(connection, from, rows).await?, false)?
    } else {
        Vec::new()
    };
    let sql = format!("SELECT count(*) FROM {from}.{rows} WHERE namespace = $1");
    for part in &moves {
        let count: i64 = connection.query_one(&sql, &[&part.from]).await.and_then(|row| row.try_get(0)).map_err(failed)?;
        counts.add(part, count.unsigned_abs());
    }
    let mut progress = counts.progress();
    let mut counts = counts.into_rows();
    let all: i64 =
        connection.query_one(&format!("SELECT count(*) FROM {from}.{rows}"), &[]).await.and_then(|row| row.try_get(0)).map_err(failed)?;
    counts.insert(PARTITIONS, all.unsigned_abs());
    progress.rows_total += all.unsigned_abs();
    Ok((counts, progress))
}

/// Counts the rows that the first step will move; fails for those that it cannot.
async fn planned_below_root(connection: &ClientWrapper, from: &str) -> Result<BTreeMap<&'static str, u64>> {
    let sql = format!(
        "SELECT count(*) FILTER (WHERE octet_length(namespace) <= {MOVABLE_BYTES_MAX}),
                count(*) FILTER (WHERE octet_length(namespace) > {MOVABLE_BYTES_MAX})
         FROM {from}.items WHERE namespace >= $1::text AND namespace < $2::text"
    );
    let count = async |start: &str, end: &str| -> Result<(u64, u64)> {
        let row = connection.query_one(&sql, &[&start, &end]).await.map_err(failed)?;
        let number = |index: usize| row.try_get::<_, i64>(index).map_err(failed).map(|count| u64::try_from(count).unwrap_or_default());
        Ok((number(0)?, number(1)?))
    };
    if count(MOVED_TO, "_treehold0").await? != (0, 0) {
        return Err(root_is_taken());
    }
    if count(FORMER_COPY, "stratafs/copy0").await? != (0, 0) {
        return Err(copy_is_unfinished());
    }
    let mut counts = BTreeMap::new();
    for name in MOVED {
        let (start, end) = range_of(name);
        let (fitting, long) = count(&start, &end).await?;
        if long > 0 && name != "indexes" {
            return Err(too_long());
        }
        counts.insert(name, fitting);
    }
    Ok(counts)
}
