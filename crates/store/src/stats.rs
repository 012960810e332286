//! What a store reports about itself.

use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold_core::ops::Durability;

/// Counts what sweeps remove or give back. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct SweepCount(Arc<AtomicU64>);

impl SweepCount {
    /// Starts at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to the count.
    pub fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }
}

/// A description of a store's engine, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct StoreDescription {
    /// The engine's name and version: `SQLite 3.54.1`.
    pub engine: String,
    /// The version of the data format, which only grows; `None` for engines without one to migrate.
    pub schema: Option<u32>,
    /// What an acknowledged commit survives under the engine's current settings.
    pub durability: Durability,
    /// Settings that the operator should know about, one sentence each: `appendfsync is everysec: ...`.
    pub notices: Vec<String>,
}

impl StoreDescription {
    /// Describes an engine without a schema and without notices.
    pub fn new(engine: impl Into<String>, durability: Durability) -> Self {
        Self { engine: engine.into(), schema: None, durability, notices: Vec::new() }
    }

    /// Sets the version of the data format.
    #[must_use]
    pub fn with_schema(mut self, schema: u32) -> Self {
        self.schema = Some(schema);
        self
    }

    /// Adds a notice for the operator.
    #[must_use]
    pub fn with_notice(mut self, notice: impl Into<String>) -> Self {
        self.notices.push(notice.into());
        self
    }
}

/// How much a store holds. Expired items that are not swept yet count as `expired` only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct StoreStats {
    /// Namespaces with at least one live item.
    pub namespaces: u64,
    /// Live items.
    pub items: u64,
    /// The bytes of the live items' metadata.
    pub meta_bytes: u64,
    /// The bytes of the live items' bodies.
    pub value_bytes: u64,
    /// Items that have expired and are not swept yet.
    pub expired: u64,
    /// The bytes that the engine uses on disk or in memory for everything, if known.
    pub stored_bytes: Option<u64>,
}

impl StoreStats {
    /// Starts with all counts at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the counts of another part of a store.
    pub fn merge(&mut self, other: &Self) {
        self.namespaces += other.namespaces;
        self.items += other.items;
        self.meta_bytes += other.meta_bytes;
        self.value_bytes += other.value_bytes;
        self.expired += other.expired;
        self.stored_bytes = other.stored_bytes.map(|bytes| self.stored_bytes.unwrap_or(0) + bytes).or(self.stored_bytes);
    }

    /// Counts one item.
    pub fn add(&mut self, is_live: bool, meta_bytes: u64, value_bytes: u64) {
        if !is_live {
            self.expired += 1;
            return;
        }
        self.items += 1;
        self.meta_bytes += meta_bytes;
        self.value_bytes += value_bytes;
    }
}
