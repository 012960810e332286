//! The migration from former layouts to the present one, a bounded number of rows at a time.
//!
//! MySQL commits each schema change on its own, so every part is repeatable. Each step begins with a schema version that no version opens,
//! [`FIRST_MOVING`], [`SECOND_MOVING`] or [`ONE_COUNTER_MOVING`], and ends with that of the layout it leads to. In between, it first renames
//! tables, which waits for running transactions: the first step the table of rows, the others the counter. So a server of a former version
//! that still runs fails on every write. Then rows, bodies and the list of namespaces get their new namespaces. The last step moves no rows.

use super::error::failed;
use super::pool::{Connection, column};
use super::schema::{
    FIRST, FIRST_MOVING, ONE_COUNTER, ONE_COUNTER_MOVING, SCHEMA, SECOND, SECOND_MOVING, creation_of_partitions, former_prefix,
    is_under_former_name, lock_tables, run_repeatable, schema_version, unlock_tables,
};
use super::sql::{NEW, Tables, partition_of, quoted};
use std::collections::{BTreeMap, BTreeSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::migrate::{
    FORMER_COPY, MOVABLE_BYTES_MAX, MOVED, MOVED_TO, MigrateOptions, MigrateProgress, MigrateReport, StepCounts, TellMigrate,
    copy_is_unfinished, in_use, partition_moves, partition_moves_of_first_layout, partition_moves_with_listed, range_of, root_is_taken,
    too_long,
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
    if how.dry_run {
        let Some(place) = find(connection, tables, is_default).await? else { return Ok(MigrateReport::up_to_date()) };
        let counts = planned(connection, &place, &tables.prefix).await?;
        return Ok(MigrateReport::of(how, counts.into_rows()).with_taken_from(place.taken_from(tables)));
    }
    lock_tables(connection, tables).await?;
    let migrated = migrate_locked(connection, tables, is_default, how, tell).await;
    unlock_tables(connection, tables).await?;
    migrated
}

/// A store of a former layout.
struct Place {
    /// The prefix of its tables, or of those that are not renamed yet.
    prefix: String,
    /// Its schema version.
    version: u64,
}

impl Place {
    fn is_of_first_layout(&self) -> bool {
        matches!(self.version, FIRST | FIRST_MOVING)
    }

    /// Returns where the store was found, if not at its present location.
    fn taken_from(&self, tables: &Tables) -> Option<String> {
        (self.prefix != tables.prefix).then(|| format!("tables with the prefix `{}`", self.prefix))
    }
}

/// Finds the store to migrate; none if it has the present layout.
async fn find(connection: &mut Connection, tables: &Tables, is_default: bool) -> Result<Option<Place>> {
    let version = schema_version(connection, tables).await?;
    match version {
        0 if is_default && is_under_former_name(connection).await? => {
            let prefix = former_prefix();
            let version = schema_version(connection, &Tables::new(&prefix)).await?;
            Ok(Some(Place { prefix, version }))
        }
        0 => Err(Error::new(ErrorKind::NotFound, "the database holds no store; check the URL").without_effect()),
        FIRST..=ONE_COUNTER_MOVING => Ok(Some(Place { prefix: tables.prefix.clone(), version })),
        _ => Ok(None),
    }
}

async fn migrate_locked(
    connection: &mut Connection,
    tables: &Tables,
    is_default: bool,
    how: &MigrateOptions,
    tell: TellMigrate<'_>,
) -> Result<MigrateReport> {
    // Another process may have migrated it before this one got the lock.
    let Some(place) = find(connection, tables, is_default).await? else { return Ok(MigrateReport::up_to_date()) };
    let counts = planned(connection, &place, &tables.prefix).await?;
    let mut progress = counts.progress();
    tell(progress);
    if place.is_of_first_layout() {
        move_below_root(connection, tables, &place.prefix, &mut progress, tell).await?;
    }
    if place.version < ONE_COUNTER {
        move_to_partitions(connection, tables, &mut progress, tell).await?;
    }
    count_by_partition(connection, tables, &mut || tell(progress)).await?;
    Ok(MigrateReport::of(how, counts.into_rows()).with_taken_from(place.taken_from(tables)))
}

/// Takes the step from the first layout to the second.
async fn move_below_root(
    connection: &mut Connection,
    tables: &Tables,
    prefix: &str,
    progress: &mut MigrateProgress,
    tell: TellMigrate<'_>,
) -> Result<()> {
    // An interrupted migration may have renamed this table already.
    let schema = if existing(connection, prefix).await?.contains("schema") { format!("`{prefix}schema`") } else { tables.schema.clone() };
    run(connection, &format!("UPDATE {schema} SET version = {FIRST_MOVING} WHERE id = 1")).await?;
    rename(connection, prefix, &tables.prefix).await?;
    tell(*progress);
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
                    tell(*progress);
                }
            }
        }
    }
    set_version(connection, tables, SECOND).await
}

/// Takes the step from the second layout to the third.
async fn move_to_partitions(
    connection: &mut Connection,
    tables: &Tables,
    progress: &mut MigrateProgress,
    tell: TellMigrate<'_>,
) -> Result<()> {
    let is_resumed = schema_version(connection, tables).await? == SECOND_MOVING;
    let listed = format!("SELECT namespace FROM {} WHERE namespace > x''", tables.namespaces);
    let listed = connection.run(listed).await.map_err(failed)?.into_iter().flatten();
    let listed: Vec<String> = listed.map(|mut row| Ok(column(&mut row, 0)?)).collect::<Result<_>>()?;
    let moves = partition_moves_with_listed(&texts(connection, &tables.items).await?, &listed, is_resumed)?;
    set_version(connection, tables, SECOND_MOVING).await?;
    let prefix = &tables.prefix;
    if existing(connection, prefix).await?.contains("counter") {
        rename_tables(connection, &format!("`{prefix}counter` TO `{prefix}version_counter`")).await?;
    }
    tell(*progress);
    for part in moves {
        let from = quoted(part.from.as_bytes());
        let Tables { bodies, items: rows, namespaces, .. } = tables;
        // A namespace with rows is listed throughout.
        if let Some(to) = &part.to {
            let to = quoted(to.as_bytes());
            let sql = format!(
                "INSERT IGNORE INTO {namespaces} (namespace, version) SELECT {to}, l.version FROM {namespaces} l WHERE l.namespace = {from}"
            );
            run(connection, &sql).await?;
        }
        for table in [bodies, rows] {
            let change = match &part.to {
                Some(to) => format!("UPDATE {table} SET namespace = {}", quoted(to.as_bytes())),
                None => format!("DELETE FROM {table}"),
            };
            let sql = format!("{change} WHERE namespace = {from} ORDER BY head, digest LIMIT {ROWS_AT_ONCE}");
            loop {
                let moved = run(connection, &sql).await?;
                if moved == 0 {
                    break;
                }
                progress.rows += if part.to.is_some() && std::ptr::eq(table, rows) { moved } else { 0 };
                tell(*progress);
            }
        }
        run(connection, &format!("DELETE FROM {namespaces} WHERE namespace = {from}")).await?;
        tell(*progress);
    }
    set_version(connection, tables, ONE_COUNTER).await
}

/// Takes the step from one counter to one for each partition, which all start at its number. Servers of the former version find no counter.
async fn count_by_partition(connection: &mut Connection, tables: &Tables, tell: &mut (dyn FnMut() + Send)) -> Result<()> {
    set_version(connection, tables, ONE_COUNTER_MOVING).await?;
    tell();
    let Tables { prefix, partitions, namespaces, .. } = tables;
    let there = existing(connection, prefix).await?;
    let former = format!("`{prefix}former_counter`");
    if there.contains("version_counter") {
        rename_tables(connection, &format!("`{prefix}version_counter` TO {former}")).await?;
        tell();
    }
    run(connection, &creation_of_partitions(tables)).await?;
    tell();
    // An interrupted migration may have removed it, once the other counters were there.
    if existing(connection, prefix).await?.contains("former_counter") {
        let (new, of) = (quoted(NEW.as_bytes()), partition_of("n.namespace"));
        for sql in [
            format!(
                "INSERT IGNORE INTO {partitions} SELECT DISTINCT {of}, c.version FROM {namespaces} n CROSS JOIN {former} c \
                 WHERE n.namespace > x'' AND c.id = 1"
            ),
            format!("INSERT IGNORE INTO {partitions} SELECT {new}, c.version FROM {former} c WHERE c.id = 1"),
            format!("DELETE FROM {namespaces} WHERE namespace = x''"),
            format!("DROP TABLE {former}"),
        ] {
            run(connection, &sql).await?;
            tell();
        }
    }
    let column = format!(
        "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{prefix}namespaces' AND COLUMN_NAME = 'version'"
    );
    if !connection.run(column).await.map_err(failed)?.concat().is_empty() {
        run(connection, &format!("ALTER TABLE {namespaces} DROP COLUMN version")).await?;
        tell();
    }
    set_version(connection, tables, SCHEMA.into()).await
}

async fn set_version(connection: &mut Connection, tables: &Tables, version: u64) -> Result<()> {
    run(connection, &format!("UPDATE {} SET version = {version} WHERE id = 1", tables.schema)).await.map(drop)
}

/// Lists the texts of all namespaces with rows: one seek each.
async fn texts(connection: &mut Connection, rows: &str) -> Result<Vec<String>> {
    let mut texts: Vec<String> = Vec::new();
    loop {
        let last = texts.last().map_or("", String::as_str);
        let sql = format!("SELECT namespace FROM {rows} WHERE namespace > {} ORDER BY namespace LIMIT 1", quoted(last.as_bytes()));
        let found = connection.run(sql).await.map_err(failed)?.into_iter().flatten().next();
        let Some(mut row) = found else { return Ok(texts) };
        texts.push(column(&mut row, 0)?);
    }
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
         ('{prefix}schema', '{prefix}counter', '{prefix}version_counter', '{prefix}former_counter', '{prefix}items', '{prefix}rows', '{prefix}bodies', '{prefix}namespaces')"
    );
    let mut names = BTreeSet::new();
    for mut row in connection.run(sql).await.map_err(failed)?.into_iter().flatten() {
        let name: String = column(&mut row, 0)?;
        names.extend(name.strip_prefix(prefix).map(str::to_owned));
    }
    Ok(names)
}

/// Renames the tables that still have the names of the first layout. The table with the schema version comes last, so that a store whose
/// server stopped halfway is still recognised.
async fn rename(connection: &mut Connection, from: &str, to: &str) -> Result<()> {
    let there = existing(connection, from).await?;
    let names = [("items", "rows"), ("counter", "counter"), ("bodies", "bodies"), ("namespaces", "namespaces"), ("schema", "schema")];
    let renames: Vec<String> = names
        .into_iter()
        .filter(|(old, new)| there.contains(*old) && (from != to || old != new))
        .map(|(old, new)| format!("`{from}{old}` TO `{to}{new}`"))
        .collect();
    if renames.is_empty() { Ok(()) } else { rename_tables(connection, &renames.join(", ")).await }
}

/// Renames tables, which waits for running transactions.
async fn rename_tables(connection: &mut Connection, renames: &str) -> Result<()> {
    let renamed = connection.run(format!("RENAME TABLE {renames}")).await;
    renamed.map(drop).map_err(|error| match &error {
        mysql_async::Error::Server(refusal) if refusal.code == LOCK_WAIT_TIMEOUT => in_use().with_source(error),
        _ => failed(error),
    })
}

/// Counts the rows that will move; fails for those that cannot. `target` is the present prefix of the tables.
async fn planned(connection: &mut Connection, place: &Place, target: &str) -> Result<StepCounts> {
    let prefix = &place.prefix;
    let there = existing(connection, prefix).await?;
    // Interrupted after its tables were renamed, the first step left them under the present prefix.
    let named = |name: &str| format!("`{}{name}`", if there.contains(name) { prefix } else { target });
    let (rows, is_renamed) = if there.contains("items") { (named("items"), false) } else { (named("rows"), true) };
    let mut counts = StepCounts::default();
    let texts = texts(connection, &rows).await?;
    let moves = if place.is_of_first_layout() {
        counts.first = planned_below_root(connection, &rows, is_renamed).await?;
        partition_moves_of_first_layout(&texts)?
    } else if place.version < ONE_COUNTER {
        partition_moves(&texts, place.version == SECOND_MOVING)?
    } else {
        Vec::new()
    };
    for part in &moves {
        let sql = format!("SELECT COUNT(*) FROM {rows} WHERE namespace = {}", quoted(part.from.as_bytes()));
        let found = connection.run(sql).await.map_err(failed)?.into_iter().flatten().next();
        let mut row = found.ok_or_else(|| super::error::damaged("a count has no row"))?;
        counts.add(part, column(&mut row, 0)?);
    }
    Ok(counts)
}

/// Counts the rows that the first step will move; fails for those that it cannot.
async fn planned_below_root(connection: &mut Connection, table: &str, is_resumed: bool) -> Result<BTreeMap<&'static str, u64>> {
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
