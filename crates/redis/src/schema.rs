//! The schemas of stores of all layouts.

use super::error::{Fault, damaged};
use super::link::{Lane, Link, Request};
use super::script::{Keys, SCHEMA};
use ::redis::{Value, cmd};
use treehold_core::error::Result;

/// The schemas of a step: before it, during it and after it.
pub(super) struct Step {
    pub(super) before: &'static str,
    pub(super) during: &'static str,
    pub(super) after: &'static str,
}

/// The step from the first layout to the second.
pub(super) const BELOW_ROOT: Step = Step { before: "1", during: "2", after: "3" };

/// The step from the second layout to the third.
pub(super) const TO_PARTITIONS: Step = Step { before: "3", during: "4", after: SCHEMA };

/// The step of a store in a cluster from one slot to a slot for each partition.
pub(super) const TO_SLOTS: Step = Step { before: SCHEMA, during: "6", after: CLUSTER_SCHEMA };

/// The schema that marks a store in a cluster, whose partitions have keys of their own.
pub(super) const CLUSTER_SCHEMA: &str = "7";

impl Step {
    fn starts_at(&self, schema: &str) -> bool {
        schema == self.before || schema == self.during
    }
}

/// Returns whether a schema needs a migration.
pub(super) fn is_former(schema: &str) -> bool {
    is_of_first_layout(schema) || TO_PARTITIONS.starts_at(schema)
}

/// Returns whether a schema is that of a store in a cluster that has all its rows in one slot, or is on its way from there.
pub(super) fn is_of_one_slot(schema: &str) -> bool {
    TO_SLOTS.starts_at(schema)
}

/// Returns whether a schema is that of the first layout, or of a store on its way from there to the second.
pub(super) fn is_of_first_layout(schema: &str) -> bool {
    BELOW_ROOT.starts_at(schema)
}

/// Returns the schema of the store under some keys; an empty text if there is none.
pub(super) async fn schema_of(link: &Link, keys: &Keys) -> Result<String> {
    let command = cmd("HGET").arg(keys.rows()).arg(".schema").to_owned();
    match link.call(Lane::Small, &Request::Read(command)).await.map_err(Fault::of_read)? {
        Value::BulkString(text) => String::from_utf8(text).map_err(|_| damaged("the schema of the store is not text")),
        _ => Ok(String::new()),
    }
}
