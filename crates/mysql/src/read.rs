//! The reading side, except scans: rows by key, namespaces, counts and integrity checks.

use super::error::{Fault, damaged};
use super::key::Parts;
use super::pool::{Connection, Pool, column, reading};
use super::record::{BODY, Record, columns, item_with_body};
use super::sql::{NEW, Tables, in_keys, live, partition_of, partition_range, quoted};
use mysql_async::Row;
use mysql_async::prelude::Queryable;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;
use treehold_store::page::{key_after, prefix_end};
use treehold_store::{Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, StoreStats};

/// Runs reads on pooled connections.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) pool: Arc<Pool>,
    pub(super) tables: Tables,
    /// The most bytes of statements per round trip.
    text_bytes_max: usize,
    get: String,
    get_part: String,
}

impl Reader {
    /// Prepares the statement texts.
    pub(super) fn new(pool: Arc<Pool>, tables: Tables, text_bytes_max: usize) -> Self {
        let of_key =
            |select: String| format!("{select} WHERE items.namespace = ? AND items.head = ? AND items.digest = ? AND {}", live("?"));
        let get = of_key(select(&tables, true));
        let get_part = of_key(select_body(&tables, "SUBSTRING(bodies.body, ?, ?)"));
        Self { pool, tables, text_bytes_max, get, get_part }
    }

    /// Reads one item. One round trip.
    pub(super) async fn get(&self, namespace: &Namespace, key: &str, now: i64) -> Result<Option<Item>> {
        let parts = Parts::of(key);
        reading!(self.pool, connection => async {
            let parameters = (namespace.encoded().as_bytes(), parts.head, parts.digest(), now);
            let found: Option<Row> = connection.conn.exec_first(self.get.as_str(), parameters).await?;
            found.map(|mut row| item_with_body(&mut row)).transpose()
        })
    }

    /// Reads one item with a part of its body. One round trip.
    pub(super) async fn get_part(&self, namespace: &Namespace, key: &str, range: &Range<u64>, now: i64) -> Result<Option<ItemPart>> {
        let parts = Parts::of(key);
        // No body is longer than a `u32` can count.
        let clamped = |bytes: u64| bytes.min(u64::from(u32::MAX));
        reading!(self.pool, connection => async {
            let (start, length) = (clamped(range.start) + 1, clamped(range.end.saturating_sub(range.start)));
            let parameters = (start, length, namespace.encoded().as_bytes(), parts.head, parts.digest(), now);
            let found: Option<Row> = connection.conn.exec_first(self.get_part.as_str(), parameters).await?;
            let Some(mut row) = found else { return Ok(None) };
            let part = column(&mut row, BODY)?;
            Ok(Some(Record::of(&mut row)?.into_part(part, range)?))
        })
    }

    /// Reads several items at one moment. One round trip, unless the keys exceed one packet.
    pub(super) async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool, now: i64) -> Result<Vec<Option<Item>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let select = select(&self.tables, with_values);
        let statements: Vec<String> = in_keys("items.", keys.iter().map(|key| (namespace, *key)))
            .into_iter()
            .map(|condition| format!("{select} WHERE {condition} AND {}", live(now)))
            .collect();
        let found = reading!(self.pool, connection => self.items(connection, &statements, with_values))?;
        Ok(keys.iter().map(|key| found.get(*key).cloned()).collect())
    }

    /// Runs statements that see one moment, and returns the items by key.
    async fn items(&self, connection: &mut Connection, statements: &[String], with_values: bool) -> Result<HashMap<String, Item>, Fault> {
        let mut found = HashMap::new();
        for rows in self.at_one_moment(connection, statements).await? {
            for mut row in rows {
                let item = if with_values { item_with_body(&mut row)? } else { Record::of(&mut row)?.into_item()? };
                found.insert(item.key.clone(), item);
            }
        }
        Ok(found)
    }

    /// Runs reads that see one moment of the store, in as few round trips as the packet size allows. Returns the rows
    /// of each.
    pub(super) async fn at_one_moment(&self, connection: &mut Connection, statements: &[String]) -> Result<Vec<Vec<Row>>, Fault> {
        if let [statement] = statements {
            return Ok(connection.run(statement.clone()).await?);
        }
        let mut found = Vec::new();
        let mut text = BEGIN_SNAPSHOT.to_owned();
        // The number of statements in the text that are not the caller's.
        let mut others = BEGIN_SNAPSHOT_STATEMENTS;
        for (index, statement) in statements.iter().enumerate() {
            text += statement;
            let is_last = index + 1 == statements.len();
            if is_last {
                text += "; COMMIT";
            }
            if is_last || text.len() + statements[index + 1].len() > self.text_bytes_max {
                let sets = connection.run(std::mem::take(&mut text)).await?;
                found.extend(sets.into_iter().skip(others));
                others = 0;
            } else {
                text += "; ";
            }
        }
        found.truncate(statements.len());
        Ok(found)
    }

    /// Lists namespaces with a live item: one lookup per namespace that has a row. One round trip.
    pub(super) async fn namespaces(&self, options: &NamespacesOptions, now: i64) -> Result<NamespacePage> {
        let Some(prefix) = options.prefix() else { return Ok(NamespacePage::default()) };
        let mut start = prefix.clone();
        if let Some(after) = &options.start_after {
            start = start.max(key_after(after.encoded()));
        }
        let end = prefix_end(&prefix);
        let end = end.map_or_else(String::new, |end| format!("AND registered.namespace < {}", quoted(end.as_bytes())));
        let Tables { items, namespaces, .. } = &self.tables;
        let sql = format!(
            "SELECT registered.namespace FROM {namespaces} registered WHERE registered.namespace >= {} {end} AND \
             (SELECT 1 FROM {items} items FORCE INDEX (PRIMARY) WHERE items.namespace = registered.namespace AND {} LIMIT 1) = 1 \
             ORDER BY registered.namespace LIMIT {}",
            quoted(start.as_bytes()),
            live(now),
            options.limit.saturating_add(1),
        );
        let mut found: Vec<Namespace> = reading!(self.pool, connection => async {
            let rows = connection.run(sql.clone()).await?.into_iter().flatten();
            rows.map(|mut row| Ok(Namespace::from_encoded(&column::<String>(&mut row, 0)?)?)).collect()
        })?;
        let more = found.len() > options.limit;
        found.truncate(options.limit);
        Ok(NamespacePage::new(found, more))
    }

    /// Returns the version of the newest commit in a partition. One round trip.
    pub(super) async fn current_version(&self, partition: &Partition) -> Result<Version> {
        let Tables { partitions, items, .. } = &self.tables;
        let of = |name: &str| format!("(SELECT version FROM {partitions} WHERE partition_name = {})", quoted(name.as_bytes()));
        let (own, new) = (of(partition.encoded()), of(NEW));
        let has_rows = format!("(SELECT 1 FROM {items} i WHERE {} LIMIT 1)", partition_range(partition));
        let sql = format!("SELECT COALESCE({own}, IF({has_rows}, NULL, {new}))");
        reading!(self.pool, connection => async {
            let found: Option<Option<u64>> = connection.conn.query_first(sql.as_str()).await?;
            let missing = || damaged("the version counter of a partition that has rows is missing");
            Ok(Version::new(found.flatten().ok_or_else(missing)?))
        })
    }

    /// Returns, for each of some namespaces, the version of the newest commit to its partition, unless there is none. One round trip for each
    /// 100 partitions.
    pub(super) async fn changed(&self, namespaces: &[Namespace]) -> Result<Vec<(Namespace, Version)>> {
        let partitions: BTreeSet<&str> = namespaces.iter().map(|namespace| namespace.encoded_parts().0).collect();
        let names: Vec<String> = partitions.into_iter().map(|partition| quoted(partition.as_bytes())).collect();
        let table = &self.tables.partitions;
        let versions: HashMap<String, Version> = reading!(self.pool, connection => async {
            let mut versions = HashMap::new();
            for names in names.chunks(100) {
                let sql = format!("SELECT partition_name, version FROM {table} WHERE partition_name IN ({})", names.join(", "));
                for mut row in connection.run(sql).await?.into_iter().flatten() {
                    versions.insert(column::<String>(&mut row, 0)?, Version::new(column(&mut row, 1)?));
                }
            }
            Ok(versions)
        })?;
        let version = |namespace: &Namespace| versions.get(namespace.encoded_parts().0).copied();
        Ok(namespaces.iter().filter_map(|namespace| Some((namespace.clone(), version(namespace)?))).collect())
    }

    /// Counts rows and their bytes without reading bodies. One round trip.
    pub(super) async fn stats(&self, now: i64) -> Result<StoreStats> {
        let Tables { prefix, items, .. } = &self.tables;
        let statements = [
            format!(
                "SELECT COUNT(*), CAST(COALESCE(SUM(LENGTH(meta)), 0) AS UNSIGNED), CAST(COALESCE(SUM(size), 0) AS UNSIGNED), \
                 COUNT(DISTINCT namespace) FROM {items} FORCE INDEX (PRIMARY) WHERE {}",
                live(now)
            ),
            format!("SELECT COUNT(*) FROM {items} WHERE expires_at <= {now}"),
            format!(
                "SELECT CAST(COALESCE(SUM(DATA_LENGTH + INDEX_LENGTH), 0) AS UNSIGNED) FROM information_schema.TABLES \
                 WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ('{prefix}rows', '{prefix}bodies', '{prefix}namespaces', '{prefix}partitions')"
            ),
        ];
        reading!(self.pool, connection => async {
            let mut rows = self.at_one_moment(connection, &statements).await?.into_iter().map(|mut rows| rows.pop());
            let mut next = || rows.next().flatten().ok_or_else(|| damaged("a count is missing"));
            let (mut counts, mut expired, mut stored) = (next()?, next()?, next()?);
            let mut stats = StoreStats::new();
            stats.items = column(&mut counts, 0)?;
            stats.meta_bytes = column(&mut counts, 1)?;
            stats.value_bytes = column(&mut counts, 2)?;
            stats.namespaces = column(&mut counts, 3)?;
            stats.expired = column(&mut expired, 0)?;
            stats.stored_bytes = Some(column(&mut stored, 0)?);
            Ok(stats)
        })
    }

    /// Looks for damage: the engine's own check, and rows that do not fit together.
    pub(super) async fn check(&self) -> Result<Vec<Error>> {
        let Tables { items, bodies, partitions, namespaces, .. } = &self.tables;
        let one = |one: &str, other: &str| {
            format!("{one}.namespace = {other}.namespace AND {one}.head = {other}.head AND {one}.digest = {other}.digest")
        };
        let together = [
            (
                format!("SELECT COUNT(*) FROM {bodies} b LEFT JOIN {items} i ON {} WHERE i.namespace IS NULL", one("i", "b")),
                "there are bodies without a row",
            ),
            (
                format!(
                    "SELECT COUNT(*) FROM {items} i LEFT JOIN {bodies} b ON {} WHERE b.body IS NULL OR LENGTH(b.body) <> i.size",
                    one("b", "i")
                ),
                "there are rows without a body",
            ),
            (
                format!(
                    "SELECT COUNT(*) FROM {items} i JOIN {partitions} p ON p.partition_name = {} WHERE i.version > p.version",
                    partition_of("i.namespace")
                ),
                "there are rows newer than the version counter",
            ),
            (
                format!("SELECT COUNT(*) FROM {items} i LEFT JOIN {namespaces} n ON n.namespace = i.namespace WHERE n.namespace IS NULL"),
                "there are rows in a namespace that is not listed",
            ),
            (
                format!(
                    "SELECT COUNT(*) FROM {items} i LEFT JOIN {partitions} p ON p.partition_name = {} WHERE p.partition_name IS NULL",
                    partition_of("i.namespace")
                ),
                "there are rows in a partition whose version counter is missing",
            ),
        ];
        let statements: Vec<String> = together.iter().map(|(sql, _)| sql.clone()).collect();
        let tables = [items, bodies, partitions, namespaces].map(String::as_str).join(", ");
        let check = format!("CHECK TABLE {tables}");
        reading!(self.pool, connection => async {
            let mut found = Vec::new();
            for mut row in connection.run(check.clone()).await?.into_iter().flatten() {
                let (table, kind, text): (String, String, String) = (column(&mut row, 0)?, column(&mut row, 2)?, column(&mut row, 3)?);
                if kind.eq_ignore_ascii_case("error") || (kind.eq_ignore_ascii_case("status") && text != "OK") {
                    let line = std::io::Error::other(format!("{table}: {text}"));
                    found.push(damaged("the engine's own check failed").with_source(line));
                }
            }
            let counts = self.at_one_moment(connection, &statements).await?;
            for (mut rows, (_, what)) in counts.into_iter().zip(&together) {
                let count = rows.pop().map_or(Ok(1), |mut row| column::<u64>(&mut row, 0))?;
                if count > 0 {
                    found.push(damaged(&format!("{what} ({count})")));
                }
            }
            found.truncate(FAULTS_MAX);
            Ok(found)
        })
    }
}

/// Begins a transaction whose reads all see one moment.
pub(super) const BEGIN_SNAPSHOT: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY; ";

/// How many statements [`BEGIN_SNAPSHOT`] contains.
pub(super) const BEGIN_SNAPSHOT_STATEMENTS: usize = 2;

/// The most faults that a check reports.
const FAULTS_MAX: usize = 100;

/// Returns the beginning of a statement that reads rows, with their bodies if requested.
fn select(tables: &Tables, with_values: bool) -> String {
    if with_values {
        return select_body(tables, "bodies.body");
    }
    format!("SELECT {} FROM {} items", columns("items."), tables.items)
}

/// Returns the beginning of a statement that reads rows with the expression `body` in place of the body.
fn select_body(tables: &Tables, body: &str) -> String {
    let (items, bodies, columns) = (&tables.items, &tables.bodies, columns("items."));
    format!(
        "SELECT {columns}, {body} FROM {items} items LEFT JOIN {bodies} bodies \
         ON bodies.namespace = items.namespace AND bodies.head = items.head AND bodies.digest = items.digest"
    )
}
