//! Copies of cached traces in a store, for those who ask for them.
//!
//! A copy has one row for the trace and one for each message, in the partition of its tenant. Messages belong to a generation, which the row
//! of the trace names: when a cached message may have changed, a new generation begins, and the old rows expire. Copies are no more than a
//! cache: a failed write is logged, and the call goes on.

use super::table::Uncopied;
use crate::id::{Location, TraceAddress};
use crate::model::{Message, Trace};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::Result;
use treehold_core::json::{row, stored};
use treehold_core::reserved::TRACES;
use treehold_core::scope::check_id;
use treehold_store::{Batch, Namespace, Partition, ScanEntry, ScanOptions, Store};

/// How long a copy lives after its last change.
const LIVES_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The most messages of one commit.
const BATCH_MAX: usize = 200;

/// Between the parts of a key. No id contains it.
const SEPARATOR: char = '\u{1}';

/// Where copies are kept: a store, and the tenant that they belong to. No other tenant reads them.
#[derive(Debug, Clone)]
pub struct TraceCopies {
    store: Arc<dyn Store>,
    namespace: Namespace,
    /// Distinguishes the generations of this process from those of others.
    process: String,
    lives_for: Duration,
}

/// The row of a trace.
#[derive(Serialize, Deserialize)]
struct CopyRow {
    generation: String,
    trace: Trace,
}

/// A copy as it was read.
pub(super) struct Copied {
    pub(super) trace: Trace,
    pub(super) messages: Vec<Message>,
}

impl TraceCopies {
    /// Keeps copies for one tenant, for 7 days after their last change.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed id of the tenant.
    pub fn new(store: Arc<dyn Store>, tenant: &str) -> Result<Self> {
        check_id("tenant", tenant)?;
        let namespace = Partition::new([tenant])?.namespace(TRACES.into_iter().chain(["copies"]))?;
        Ok(Self { store, namespace, process: uuid::Uuid::new_v4().to_string(), lives_for: LIVES_FOR })
    }

    /// Sets how long a copy lives after its last change.
    #[must_use]
    pub fn with_lives_for(mut self, lives_for: Duration) -> Self {
        self.lives_for = lives_for;
        self
    }

    /// Reads the copy of a trace, with about as many bytes of messages as allowed. The newest come first.
    pub(super) async fn load(&self, trace: &TraceAddress, bytes_max: usize) -> Option<Copied> {
        match self.try_load(trace, bytes_max).await {
            Ok(copied) => copied,
            Err(error) => {
                tracing::debug!(%trace, %error, "the copy of a trace cannot be read");
                None
            }
        }
    }

    async fn try_load(&self, trace: &TraceAddress, bytes_max: usize) -> Result<Option<Copied>> {
        let Some(item) = self.store.get(&self.namespace, &trace_key(trace)).await? else { return Ok(None) };
        let CopyRow { generation, trace: found } = stored("copy of a trace", &item.value)?;
        let (mut messages, mut bytes, mut after) = (Vec::new(), 0, None);
        loop {
            let mut options = ScanOptions::new().with_prefix(message_prefix(trace, &generation)).with_values(true);
            options.start_after = after;
            let page = self.store.scan(&self.namespace, options).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                bytes += item.value.len();
                messages.push(stored("copy of a message", &item.value)?);
            }
            after = page.next;
            if after.is_none() || bytes > bytes_max {
                return Ok(Some(Copied { trace: found, messages }));
            }
        }
    }

    /// Writes what a copy lacks.
    pub(super) async fn save(&self, trace: &TraceAddress, uncopied: Uncopied) {
        if let Err(error) = self.try_save(trace, uncopied).await {
            tracing::warn!(%trace, %error, "the copy of a trace cannot be written");
        }
    }

    async fn try_save(&self, trace: &TraceAddress, Uncopied { generation, trace: found, messages }: Uncopied) -> Result<()> {
        let generation = format!("{}-{generation}", self.process);
        for messages in messages.chunks(BATCH_MAX) {
            let batch = messages.iter().fold(Batch::new(), |batch, message| {
                let key = format!("{}{:020}", message_prefix(trace, &generation), u64::MAX - message.sequence);
                batch.put_for(&self.namespace, key, row(message), self.lives_for)
            });
            self.store.commit(batch).await?;
        }
        let copy = row(&CopyRow { generation, trace: found });
        self.store.commit(Batch::new().put_for(&self.namespace, trace_key(trace), copy, self.lives_for)).await.map(drop)
    }

    /// Removes the copy of a trace.
    pub(super) async fn remove(&self, trace: &TraceAddress) {
        self.remove_beneath(format!("{trace}{SEPARATOR}")).await;
    }

    /// Removes the copies of all traces of a place.
    pub(super) async fn remove_at(&self, location: &Location) {
        self.remove_beneath(format!("{location}/")).await;
    }

    async fn remove_beneath(&self, prefix: String) {
        if let Err(error) = self.store.commit(Batch::new().delete_prefix(&self.namespace, &prefix)).await {
            tracing::warn!(beneath = prefix, %error, "copies of traces cannot be removed");
        }
    }
}

fn trace_key(trace: &TraceAddress) -> String {
    format!("{trace}{SEPARATOR}trace")
}

fn message_prefix(trace: &TraceAddress, generation: &str) -> String {
    format!("{trace}{SEPARATOR}message{SEPARATOR}{generation}{SEPARATOR}")
}
