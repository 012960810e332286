//! Sweeps: expired rows, and the list of namespaces.
//!
//! Both are found by reads over all partitions, a bounded number at a time, and removed by statements that each concern one partition.

use super::Shared;
use super::error::failed;
use super::script::Script;
use std::collections::BTreeMap;
use tokio_postgres::Row;
use treehold_core::error::{Error, Result};

/// How many expired rows are found at a time.
const ROWS_AT_ONCE: usize = 1_000;

/// How many listed namespaces a sweep looks at.
const NAMESPACES_AT_ONCE: usize = 1_000;

/// The keys of rows in one partition, as arrays.
#[derive(Default)]
struct Expired {
    names: Vec<String>,
    heads: Vec<String>,
    digests: Vec<Vec<u8>>,
}

impl Shared {
    /// Removes up to `limit` expired rows, those that expired first. Skips rows that a writer has locked, so that it never waits for one.
    pub(super) async fn sweep_rows(&self, limit: usize) -> Result<usize> {
        let mut swept = 0;
        while swept < limit {
            let count = (limit - swept).min(ROWS_AT_ONCE);
            let (partitions, found) = self.expired(count).await?;
            let mut removed = 0;
            for (partition, keys) in partitions {
                removed += self.remove(&partition, keys).await?;
            }
            swept += removed;
            if found < count || removed == 0 {
                break;
            }
        }
        Ok(swept)
    }

    /// Finds expired rows by partition. Returns how many there are, too. The rows of a partition whose counter is missing stay: without them
    /// it would look new, and use versions again.
    async fn expired(&self, count: usize) -> Result<(BTreeMap<String, Expired>, usize)> {
        let mut script = Script::default();
        let now = script.parameter(self.clock.now().as_microsecond());
        let limit = script.parameter(i64::try_from(count).unwrap_or(i64::MAX));
        script.push(&format!(
            "SELECT i.partition, i.name, i.head, i.tail_digest FROM {schema}.rows i
             WHERE i.expires_at <= {now}::bigint AND EXISTS (SELECT 1 FROM {schema}.partitions p WHERE p.partition = i.partition{barrier})
             ORDER BY i.expires_at LIMIT {limit}::bigint",
            schema = self.tables.schema,
            barrier = self.tables.barrier()
        ));
        let rows = self.connections.read(&script).await?;
        let mut partitions = BTreeMap::<String, Expired>::new();
        for row in &rows {
            let keys = partitions.entry(row.try_get(0).map_err(failed)?).or_default();
            keys.names.push(row.try_get(1).map_err(failed)?);
            keys.heads.push(row.try_get(2).map_err(failed)?);
            keys.digests.push(row.try_get(3).map_err(failed)?);
        }
        Ok((partitions, rows.len()))
    }

    /// Removes these rows of a partition if they are still expired.
    async fn remove(&self, partition: &str, keys: Expired) -> Result<usize> {
        let mut script = Script::default();
        let at = script.parameter(partition.to_owned());
        let now = script.parameter(self.clock.now().as_microsecond());
        let (names, heads) = (script.parameter(keys.names), script.parameter(keys.heads));
        let digests = script.parameter(keys.digests);
        let on_one_node = if self.tables.is_sharded { format!("i.partition = {at}::text AND ") } else { String::new() };
        // Both steps look up each key.
        script.push(&format!(
            "WITH expired AS MATERIALIZED (
               SELECT r.partition, r.name, r.head, r.tail_digest
               FROM unnest({names}::text[], {heads}::text[], {digests}::bytea[]) AS d(name, head, digest)
               CROSS JOIN LATERAL (
                 SELECT i.partition, i.name, i.head, i.tail_digest FROM {schema}.rows i
                 WHERE i.partition = {at}::text AND i.name = d.name AND i.head = d.head AND i.tail_digest = d.digest
                   AND i.expires_at <= {now}::bigint OFFSET 0 FOR UPDATE SKIP LOCKED) r
             ), swept AS (
               DELETE FROM {schema}.rows i USING expired e
               WHERE {on_one_node}i.partition = e.partition AND i.name = e.name AND i.head = e.head AND i.tail_digest = e.tail_digest
                 AND i.expires_at <= {now}::bigint RETURNING 1 AS one
             ) SELECT count(*) FROM swept",
            schema = self.tables.schema
        ));
        let rows = self.connections.write(&script).await?;
        let removed: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(failed)?;
        Ok(usize::try_from(removed).unwrap_or_default())
    }

    /// Takes namespaces without rows off the list, among the next ones on it.
    pub(super) async fn forget_empty_namespaces(&self) -> Result<()> {
        let schema = &self.tables.schema;
        let after = self.looked_at.lock().clone();
        let mut script = Script::default();
        let (partition, name) = (script.parameter(&after.0), script.parameter(&after.1));
        script.push(&format!(
            "SELECT partition, name FROM {schema}.namespaces WHERE (partition, name) > ({partition}, {name})
             ORDER BY partition, name LIMIT {NAMESPACES_AT_ONCE}"
        ));
        let listed = self.connections.read(&script).await?;
        let text = |row: &Row, column| row.try_get::<_, String>(column).map_err(failed);
        let last = listed.last().map(|row| Ok::<_, Error>((text(row, 0)?, text(row, 1)?))).transpose()?;
        let Some(last) = last else {
            *self.looked_at.lock() = Default::default();
            return Ok(());
        };
        // The next sweep goes on behind them, even if one of them makes this one fail.
        *self.looked_at.lock() = if listed.len() < NAMESPACES_AT_ONCE { Default::default() } else { last.clone() };
        let barrier = self.tables.barrier();
        let mut script = Script::default();
        let [from, from_name, to, to_name] = [&after.0, &after.1, &last.0, &last.1].map(|text| script.parameter(text));
        script.push(&format!(
            "SELECT n.partition, n.name FROM {schema}.namespaces n
             WHERE (n.partition, n.name) > ({from}, {from_name}) AND (n.partition, n.name) <= ({to}, {to_name})
               AND NOT EXISTS (SELECT 1 FROM {schema}.rows i WHERE i.partition = n.partition AND i.name = n.name{barrier})"
        ));
        let mut empty = BTreeMap::<String, Vec<String>>::new();
        for row in &self.connections.read(&script).await? {
            empty.entry(text(row, 0)?).or_default().push(text(row, 1)?);
        }
        for (partition, names) in &empty {
            self.forget(partition, names).await?;
        }
        Ok(())
    }

    /// Takes names in a partition off the list, unless they have rows by now: no writer adds any while the counter is locked, and what the
    /// second statement sees begins after the lock. If a writer holds it, the next round comes again.
    async fn forget(&self, partition: &str, names: &[String]) -> Result<()> {
        let schema = &self.tables.schema;
        let mut lock = Script::new(format!("SELECT version FROM {schema}.partitions WHERE partition = "));
        let at = lock.parameter(partition);
        lock.push(&format!("{at} FOR UPDATE SKIP LOCKED"));
        let mut script = Script::default();
        let (at, names) = (script.parameter(partition), script.parameter(names));
        script.push(&format!(
            "WITH empty AS MATERIALIZED (
               SELECT w.name FROM unnest({names}::text[]) AS w(name)
               LEFT JOIN LATERAL (SELECT 1 AS one FROM {schema}.rows i WHERE i.partition = {at}::text AND i.name = w.name LIMIT 1) r ON true
               WHERE r.one IS NULL
             ) DELETE FROM {schema}.namespaces n USING empty e WHERE n.partition = {at}::text AND n.name = e.name"
        ));
        self.connections.write_locked(&lock, &script).await
    }
}
