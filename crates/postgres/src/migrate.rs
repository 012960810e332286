//! The migration from the former layout to the present one, in one transaction.
//!
//! It locks the tables exclusively, so it waits for running transactions and blocks new ones. It renames the table of rows and, for a
//! store under the former default name, the schema. So a server of the former version that still runs fails on every call, instead
//! of writing rows that nobody reads. Only namespaces change; the engine does not rewrite bodies that it stores out of line.

use super::connect::Target;
use super::error::failed;
use super::schema::{FORMER_SCHEMA, SCHEMA, check_number, number, quoted};
use deadpool_postgres::ClientWrapper;
use std::collections::BTreeMap;
use tokio_postgres::error::SqlState;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::migrate::{
    FORMER_COPY, FORMER_NAME, MOVABLE_BYTES_MAX, MOVED, MOVED_TO, MigrateOptions, MigrateProgress, MigrateReport, TellMigrate,
    copy_is_unfinished, in_use, range_of, root_is_taken, too_long,
};

pub(super) async fn migrate(
    connection: &ClientWrapper,
    target: &Target,
    how: &MigrateOptions,
    tell: TellMigrate<'_>,
) -> Result<MigrateReport> {
    let schema = quoted(&target.schema);
    let found = number(connection, &target.schema, &schema).await?;
    let source = match found {
        Some(_) if check_number(found)? != FORMER_SCHEMA => return Ok(MigrateReport::up_to_date()),
        Some(_) => target.schema.clone(),
        None if target.is_default && number(connection, FORMER_NAME, &quoted(FORMER_NAME)).await? == Some(FORMER_SCHEMA as i32) => {
            FORMER_NAME.to_owned()
        }
        None => return Err(Error::new(ErrorKind::NotFound, "the database holds no store; check the URL").without_effect()),
    };
    if how.dry_run {
        let counts = planned(connection, &quoted(&source)).await?;
        return Ok(MigrateReport::of(how, counts).with_taken_from(taken_from(&source, target)));
    }
    connection.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await.map_err(failed)?;
    match migrate_within(connection, &source, target, tell).await {
        Ok(counts) => {
            connection.batch_execute("COMMIT").await.map_err(|error| failed(error).with_unknown_effect())?;
            Ok(MigrateReport::of(how, counts).with_taken_from(taken_from(&source, target)))
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

async fn migrate_within(
    connection: &ClientWrapper,
    source: &str,
    target: &Target,
    tell: TellMigrate<'_>,
) -> Result<BTreeMap<&'static str, u64>> {
    let from = quoted(source);
    let lock = format!("LOCK TABLE {from}.schema_version, {from}.counter, {from}.items, {from}.touched IN ACCESS EXCLUSIVE MODE");
    connection.batch_execute(&lock).await.map_err(|error| match error.code() {
        Some(&SqlState::LOCK_NOT_AVAILABLE) => in_use().with_source(error),
        // Another migration finished first.
        Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME) => in_use().with_source(error),
        _ => failed(error),
    })?;
    let counts = planned(connection, &from).await?;
    let mut progress = MigrateProgress::new(counts.values().sum());
    tell(progress);
    for name in MOVED {
        let (start, end) = range_of(name);
        if name == "indexes" {
            let sql = format!(
                "DELETE FROM {from}.items WHERE namespace >= $1 AND namespace < $2 AND octet_length(namespace) > {MOVABLE_BYTES_MAX}"
            );
            connection.execute(&sql, &[&start, &end]).await.map_err(failed)?;
        }
        for table in ["items", "touched"] {
            let sql = format!(
                "UPDATE {from}.{table} SET namespace = $3::text || namespace WHERE namespace >= $1 AND namespace < $2 AND octet_length(namespace) <= {MOVABLE_BYTES_MAX}"
            );
            let moved = connection.execute(&sql, &[&start, &end, &MOVED_TO]).await.map_err(failed)?;
            progress.rows += if table == "items" { moved } else { 0 };
        }
        tell(progress);
    }
    let mut last = format!("ALTER TABLE {from}.items RENAME TO rows; UPDATE {from}.schema_version SET version = {SCHEMA} WHERE id = 1");
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

/// Counts the rows that will move; fails for those that cannot.
async fn planned(connection: &ClientWrapper, from: &str) -> Result<BTreeMap<&'static str, u64>> {
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
