//! The migration from the former layout to the present one, a bounded number of rows at a time.
//!
//! MySQL commits each schema change on its own, so every step is repeatable. The schema version is [`MOVING`] first, which no version
//! opens. Then the tables are renamed, which waits for running transactions. The table of rows is called `rows` now, so a server of
//! the former version that still runs fails on every call. Then rows, bodies and the list of namespaces get their new namespaces. The
//! present schema version comes last.

use super::error::failed;
use super::pool::{Connection, column};
use super::schema::{
    FORMER_SCHEMA, MOVING, SCHEMA, former_prefix, is_under_former_name, lock_tables, run_repeatable, schema_version, unlock_tables,
};
use super::sql::{Tables, quoted};
use std::collections::{BTreeMap, BTreeSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::migrate::{
    FORMER_COPY, MOVABLE_BYTES_MAX, MOVED, MOVED_TO, MigrateOptions, MigrateProgress, MigrateReport, TellMigrate, copy_is_unfinished,
    in_use, range_of, root_is_taken, too_long,
};

/// How many rows one statement moves.
const ROWS_AT_ONCE: u64 = 2_000;

/// The error code for a table lock that was not granted in time.
const LOCK_WAIT_TIMEOUT: u16 = 1205;

pub(super) async fn migrate(
    connection: &mut Connection,
    tables: &Tables,
    is_default: bool,
    how: &MigrateOptions,
    tell: TellMigrate<'_>,
) -> Result<MigrateReport> {
    let found = schema_version(connection, tables).await?;
    let prefix = match found {
        0 if is_default && is_under_former_name(connection).await? => former_prefix(),
        0 => return Err(Error::new(ErrorKind::NotFound, "the database holds no store; check the URL").without_effect()),
        FORMER_SCHEMA | MOVING => tables.prefix.clone(),
        _ => return Ok(MigrateReport::up_to_date()),
    };
    let taken_from = (prefix != tables.prefix).then(|| format!("tables with the prefix `{prefix}`"));
    if how.dry_run {
        let counts = planned(connection, &prefix, &tables.prefix).await?;
        return Ok(MigrateReport::of(how, counts).with_taken_from(taken_from));
    }
    lock_tables(connection, tables).await?;
    let moved = migrate_locked(connection, tables, &prefix, tell).await;
    unlock_tables(connection, tables).await?;
    Ok(MigrateReport::of(how, moved?).with_taken_from(taken_from))
}

async fn migrate_locked(
    connection: &mut Connection,
    tables: &Tables,
    prefix: &str,
    tell: TellMigrate<'_>,
) -> Result<BTreeMap<&'static str, u64>> {
    let counts = planned(connection, prefix, &tables.prefix).await?;
    // An interrupted migration may have renamed this table already.
    let schema = if existing(connection, prefix).await?.contains("schema") { format!("`{prefix}schema`") } else { tables.schema.clone() };
    run(connection, &format!("UPDATE {schema} SET version = {MOVING} WHERE id = 1")).await?;
    rename(connection, prefix, &tables.prefix).await?;
    let mut progress = MigrateProgress::new(counts.values().sum());
    tell(progress);
    for name in MOVED {
        let (start, end) = range_of(name);
        let range = format!("namespace >= {} AND namespace < {}", quoted(start.as_bytes()), quoted(end.as_bytes()));
        let [bodies, namespaces, rows] = [&tables.bodies, &tables.namespaces, &tables.items];
        for (table, order) in [(bodies, "namespace, head, digest"), (namespaces, "namespace"), (rows, "namespace, head, digest")] {
            let long = format!("{range} AND LENGTH(namespace) > {MOVABLE_BYTES_MAX}");
            // Only parts of indexes can be this long; the plan fails for other rows.
            while run(connection, &format!("DELETE FROM {table} WHERE {long} LIMIT {ROWS_AT_ONCE}")).await? > 0 {}
            loop {
                let to = quoted(MOVED_TO.as_bytes());
                let sql =
                    format!("UPDATE {table} SET namespace = CONCAT({to}, namespace) WHERE {range} ORDER BY {order} LIMIT {ROWS_AT_ONCE}");
                let moved = run(connection, &sql).await?;
                if moved == 0 {
                    break;
                }
                if std::ptr::eq(table, rows) {
                    progress.rows += moved;
                    tell(progress);
                }
            }
        }
    }
    run(connection, &format!("UPDATE {} SET version = {SCHEMA} WHERE id = 1", tables.schema)).await?;
    Ok(counts)
}

/// Runs a statement; returns how many rows it changed.
async fn run(connection: &mut Connection, sql: &str) -> Result<u64> {
    run_repeatable(connection, sql).await.map_err(failed)?;
    Ok(connection.conn.affected_rows())
}

/// Returns the names of the existing tables of a store, without the prefix.
async fn existing(connection: &mut Connection, prefix: &str) -> Result<BTreeSet<String>> {
    let sql = format!(
        "SELECT CONVERT(TABLE_NAME USING utf8mb4) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN \
         ('{prefix}schema', '{prefix}counter', '{prefix}items', '{prefix}rows', '{prefix}bodies', '{prefix}namespaces')"
    );
    let mut names = BTreeSet::new();
    for mut row in connection.run(sql).await.map_err(failed)?.into_iter().flatten() {
        let name: String = column(&mut row, 0)?;
        names.extend(name.strip_prefix(prefix).map(str::to_owned));
    }
    Ok(names)
}

/// Renames the tables that still have their former names. The table with the schema version comes last, so that a store whose
/// server stopped halfway is still recognised.
async fn rename(connection: &mut Connection, from: &str, to: &str) -> Result<()> {
    let there = existing(connection, from).await?;
    let names = [("items", "rows"), ("counter", "counter"), ("bodies", "bodies"), ("namespaces", "namespaces"), ("schema", "schema")];
    let renames: Vec<String> = names
        .into_iter()
        .filter(|(old, new)| there.contains(*old) && (from != to || old != new))
        .map(|(old, new)| format!("`{from}{old}` TO `{to}{new}`"))
        .collect();
    if renames.is_empty() {
        return Ok(());
    }
    let renamed = connection.run(format!("RENAME TABLE {}", renames.join(", "))).await;
    renamed.map(drop).map_err(|error| match &error {
        mysql_async::Error::Server(refusal) if refusal.code == LOCK_WAIT_TIMEOUT => in_use().with_source(error),
        _ => failed(error),
    })
}

/// Counts the rows that will move; fails for those that cannot.
async fn planned(connection: &mut Connection, prefix: &str, target: &str) -> Result<BTreeMap<&'static str, u64>> {
    let there = existing(connection, prefix).await?;
    let (table, is_resumed) = match there.contains("items") {
        true => (format!("`{prefix}items`"), false),
        false => (format!("`{target}rows`"), true),
    };
    let mut count = async |(start, end): (String, String)| -> Result<(u64, u64)> {
        let sql = format!(
            "SELECT COUNT(*), COUNT(CASE WHEN LENGTH(namespace) > {MOVABLE_BYTES_MAX} THEN 1 END) FROM {table} \
             WHERE namespace >= {} AND namespace < {}",
            quoted(start.as_bytes()),
            quoted(end.as_bytes())
        );
        let rows = connection.run(sql).await.map_err(failed)?;
        let mut row = rows.into_iter().flatten().next().ok_or_else(|| super::error::damaged("a count has no row"))?;
        let (all, long): (u64, u64) = (column(&mut row, 0)?, column(&mut row, 1)?);
        Ok((all - long, long))
    };
    if !is_resumed && count((MOVED_TO.to_owned(), "_treehold0".to_owned())).await? != (0, 0) {
        return Err(root_is_taken());
    }
    if count((FORMER_COPY.to_owned(), "stratafs/copy0".to_owned())).await? != (0, 0) {
        return Err(copy_is_unfinished());
    }
    let mut counts = BTreeMap::new();
    for name in MOVED {
        let (fitting, long) = count(range_of(name)).await?;
        if long > 0 && name != "indexes" {
            return Err(too_long());
        }
        counts.insert(name, fitting);
    }
    Ok(counts)
}
