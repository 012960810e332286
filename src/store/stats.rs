//! What a store tells of itself.

use crate::ops::Durability;
use schemars::JsonSchema;
use serde::Serialize;

/// The engine behind a store, for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct StoreDescription {
    /// Its name and version: `SQLite 3.54.1`.
    pub engine: String,
    /// The number of the format that the data is in, which only grows; none where there is nothing to bring up to date.
    pub schema: Option<u32>,
    /// What an acknowledged commit survives, as the engine is set up now.
    pub durability: Durability,
    /// What should be known of how the engine is set up, a sentence each: `appendfsync is everysec: ...`.
    pub notices: Vec<String>,
}

impl StoreDescription {
    /// Describes an engine without a schema and without notices.
    pub fn new(engine: impl Into<String>, durability: Durability) -> Self {
        Self { engine: engine.into(), schema: None, durability, notices: Vec::new() }
    }

    /// Sets the number of the format.
    #[must_use]
    pub fn with_schema(mut self, schema: u32) -> Self {
        self.schema = Some(schema);
        self
    }

    /// Adds something that should be known.
    #[must_use]
    pub fn with_notice(mut self, notice: impl Into<String>) -> Self {
        self.notices.push(notice.into());
        self
    }
}

/// How much a store holds. Items whose time is over count as `expired` until they are swept, and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct StoreStats {
    /// Namespaces with at least one live item.
    pub namespaces: u64,
    /// Live items.
    pub items: u64,
    /// The bytes of their metas.
    pub meta_bytes: u64,
    /// The bytes of their bodies.
    pub value_bytes: u64,
    /// Items whose time is over and that are still to be swept.
    pub expired: u64,
    /// The bytes that the engine takes for all of it, where it can tell.
    pub stored_bytes: Option<u64>,
}

impl StoreStats {
    /// Counts nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one item.
    pub(super) fn add(&mut self, is_live: bool, meta_bytes: u64, value_bytes: u64) {
        if !is_live {
            self.expired += 1;
            return;
        }
        self.items += 1;
        self.meta_bytes += meta_bytes;
        self.value_bytes += value_bytes;
    }
}
