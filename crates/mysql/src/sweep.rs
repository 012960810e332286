//! Sweeps of expired rows: found over all partitions, and removed in a transaction for each.

use super::error::{Fault, damaged, is_busy};
use super::plan::PlannedKeys;
use super::pool::{Connection, ROLLBACK, column};
use super::sql::{Tables, partition_of};
use super::write::{PATIENCE, Writer, commit_in_cluster, mark};
use mysql_async::Row;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use treehold_core::error::Result;
use treehold_store::{Namespace, Partition};

/// How many rows a sweep finds at a time.
const SWEEP_ROWS: usize = 1_000;

impl Writer {
    /// Removes up to `limit` expired rows.
    pub(super) async fn sweep(&self, limit: usize) -> Result<usize> {
        let until = Instant::now() + PATIENCE;
        let mut swept = 0;
        while swept < limit {
            let rows = (limit - swept).min(SWEEP_ROWS);
            let mut loan = self.pool.take().await?;
            let before = swept;
            match self.sweep_within(loan.connection(), rows, &mut swept).await {
                Ok(()) => {
                    loan.give_back();
                    if swept - before < rows {
                        break;
                    }
                }
                Err(Fault::Engine(error)) if is_busy(&error) && Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(fault) if swept == 0 && fault.is_lost() && Instant::now() < until => {
                    // Expired rows already count as absent, so removing them twice does no harm.
                    self.pool.clear();
                    drop(loan);
                    let mut loan = self.pool.take().await?;
                    self.sweep_within(loan.connection(), rows, &mut swept).await?;
                    loan.give_back();
                }
                Err(fault) => return Err(fault.into()),
            }
        }
        Ok(swept)
    }

    async fn sweep_within(&self, connection: &mut Connection, limit: usize, swept: &mut usize) -> Result<(), Fault> {
        tokio::time::timeout(self.pool.timeout(), self.sweep_some(connection, limit, swept)).await.unwrap_or(Err(Fault::Silent))
    }

    /// Adds what it removed to `swept`, even if it fails in the middle.
    async fn sweep_some(&self, connection: &mut Connection, limit: usize, swept: &mut usize) -> Result<(), Fault> {
        let over = self.clock.now().as_microsecond();
        let Tables { items, partitions, .. } = &self.tables;
        // The rows of a partition whose counter is missing stay: without them it would look new, and use versions again.
        let read = format!(
            "SELECT i.namespace, i.head, i.tail FROM {items} i FORCE INDEX (by_expiry) WHERE i.expires_at <= {over} \
             AND EXISTS (SELECT 1 FROM {partitions} p WHERE p.partition_name = {}) ORDER BY i.expires_at LIMIT {limit}",
            partition_of("i.namespace")
        );
        let mut partitions = BTreeMap::<Partition, PlannedKeys>::new();
        for keys in planned_keys(connection.run(read).await?.into_iter().flatten())? {
            partitions.entry(keys.0.partition()).or_default().push(keys.0, keys.1);
        }
        for (partition, keys) in &partitions {
            *swept += self.sweep_partition(connection, partition, keys, over).await?;
        }
        Ok(())
    }

    /// Removes these rows of a partition if they are still expired.
    async fn sweep_partition(
        &self,
        connection: &mut Connection,
        partition: &Partition,
        keys: &PlannedKeys,
        over: i64,
    ) -> Result<usize, Fault> {
        let items = &self.tables.items;
        let still = |keys: String| format!("SELECT namespace, head, tail FROM {items} WHERE {keys} AND expires_at <= {over}");
        let reads = keys.conditions().into_iter().map(still).collect();
        let missing = || damaged("the version counter of a partition that has rows is missing");
        let (version, sets) = self.begin(connection, partition, reads).await?.ok_or_else(missing)?;
        let mut keys = PlannedKeys::default();
        for (namespace, key) in planned_keys(sets.into_iter().flatten())? {
            keys.push(namespace, key);
        }
        if keys.len() == 0 {
            connection.run(ROLLBACK).await?;
            return Ok(0);
        }
        let mut text = String::new();
        for statement in keys.deletes(&self.tables, partition, version, mark(connection, version)) {
            if !text.is_empty() && text.len() + statement.len() > self.text_bytes_max {
                connection.run(std::mem::take(&mut text)).await?;
            }
            text += if text.is_empty() { "" } else { "; " };
            text += &statement;
        }
        if connection.is_of_cluster() {
            connection.run(text).await?;
            commit_in_cluster(connection, &mut false).await?;
        } else {
            connection.run(text + "; COMMIT").await?;
        }
        Ok(keys.len())
    }
}

/// Reads the keys of rows.
fn planned_keys(rows: impl Iterator<Item = Row>) -> Result<Vec<(Namespace, String)>, Fault> {
    let key = |mut row: Row| {
        let namespace = Namespace::from_encoded(&column::<String>(&mut row, 0)?)?;
        Ok((namespace, super::key::join(column(&mut row, 1)?, &column::<Vec<u8>>(&mut row, 2)?)?))
    };
    rows.map(key).collect()
}
