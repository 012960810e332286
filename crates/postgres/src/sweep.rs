//! Sweeps: expired rows, and the list of namespaces.
//!
//! Both are found by reads over all partitions, a bounded number at a time, and removed by statements that each concern one partition.

use super::Shared;
use super::error::failed;
use super::script::Script;
use std::collections::BTreeMap;
use treehold_core::error::Result;

/// How many expired rows are found at a time.
const ROWS_AT_ONCE: usize = 1_000;

/// How many listed namespaces a sweep looks at.
const NAMESPACES_AT_ONCE: i64 = 1_000;

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

    /// Finds expired rows by partition. Returns how many there are, too.
    async fn expired(&self, count: usize) -> Result<(BTreeMap<String, Expired>, usize)> {
        let mut script = Script::default();
        let now = script.parameter(self.clock.now().as_microsecond());
        let limit = script.parameter(i64::try_from(count).unwrap_or(i64::MAX));
        script.push(&format!(
            "SELECT partition, name, head, tail_digest FROM {}.rows WHERE expires_at <= {now}::bigint ORDER BY expires_at LIMIT {limit}::bigint",
            self.tables.schema
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
        let (partition, name) = self.looked_at.lock().clone();
        let mut script = Script::default();
        let (partition, name) = (script.parameter(partition), script.parameter(name));
        script.push(&format!(
            "SELECT partition, name FROM {}.namespaces WHERE (partition, name) > ({partition}, {name}) ORDER BY partition, name LIMIT {NAMESPACES_AT_ONCE}",
            self.tables.schema
        ));
        let rows = self.connections.read(&script).await?;
        let mut listed = BTreeMap::<String, Vec<String>>::new();
        for row in &rows {
            listed.entry(row.try_get(0).map_err(failed)?).or_default().push(row.try_get(1).map_err(failed)?);
        }
        for (partition, names) in &listed {
            let empty = self.empty(partition, names).await?;
            if !empty.is_empty() {
                self.forget(partition, &empty).await?;
            }
        }
        let last = rows.last().filter(|_| rows.len() as i64 == NAMESPACES_AT_ONCE);
        let last = last.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose().map_err(failed)?;
        *self.looked_at.lock() = last.unwrap_or_default();
        Ok(())
    }

    /// Returns those of some names in a partition that have no rows.
    async fn empty(&self, partition: &str, names: &[String]) -> Result<Vec<String>> {
        let mut script = Script::default();
        let (at, names) = (script.parameter(partition.to_owned()), script.parameter(names.to_vec()));
        script.push(&format!(
            "SELECT w.name FROM unnest({names}::text[]) AS w(name)
             LEFT JOIN LATERAL (SELECT 1 AS one FROM {}.rows i WHERE i.partition = {at}::text AND i.name = w.name LIMIT 1) r ON true
             WHERE r.one IS NULL",
            self.tables.schema
        ));
        let rows = self.connections.read(&script).await?;
        rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
    }

    /// Takes names in a partition off the list, unless they have rows by now: no writer adds any while the counter is locked. What the second
    /// statement sees begins after the lock.
    async fn forget(&self, partition: &str, names: &[String]) -> Result<()> {
        let schema = &self.tables.schema;
        let mut lock = Script::new(format!("SELECT version FROM {schema}.partitions WHERE partition = "));
        let at = lock.parameter(partition.to_owned());
        lock.push(&format!("{at} FOR UPDATE"));
        let mut script = Script::default();
        let (at, names) = (script.parameter(partition.to_owned()), script.parameter(names.to_vec()));
        script.push(&format!(
            "WITH empty AS MATERIALIZED (
               SELECT w.name FROM unnest({names}::text[]) AS w(name)
               LEFT JOIN LATERAL (SELECT 1 AS one FROM {schema}.rows i WHERE i.partition = {at}::text AND i.name = w.name LIMIT 1) r ON true
               WHERE r.one IS NULL
             ), gone AS (
               DELETE FROM {schema}.namespaces n USING empty e WHERE n.partition = {at}::text AND n.name = e.name RETURNING n.version
             ) UPDATE {schema}.partitions p SET forgotten = greatest(p.forgotten, g.version)
             FROM (SELECT max(version) AS version FROM gone) g WHERE p.partition = {at}::text AND g.version IS NOT NULL"
        ));
        self.connections.write_together(&[lock, script]).await
    }
}
