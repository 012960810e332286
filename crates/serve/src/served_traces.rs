//! The traces that a server offers: in which store each user finds them, and what runs them.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::Result;
use treehold_core::shares::User;
use treehold_traces::{Runs, TraceRuns, TraceStore, Traces};

/// How many stores of users are kept. Beyond it, some store is dropped and opened again when needed.
const STORES_MAX: usize = 1_000;

/// Opens the traces of a user, by tenant and user.
type Open = dyn Fn(&str, &str) -> Result<Arc<dyn TraceStore>> + Send + Sync;

/// Opens the store in which a user finds traces.
///
/// The server asks once for each user and keeps what it gets for a while, so that a store may hold connections and a cache. Whatever the
/// store reaches, it reaches with the server's own keys: it must know which places this user may reach.
#[derive(Clone)]
pub struct TraceStoreOf(Arc<Open>);

impl TraceStoreOf {
    /// Opens stores with a function of tenant and user.
    pub fn new(open: impl Fn(&str, &str) -> Result<Arc<dyn TraceStore>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(open))
    }
}

impl From<Traces> for TraceStoreOf {
    fn from(traces: Traces) -> Self {
        Self::new(move |tenant, user| Ok(Arc::new(traces.for_user(tenant, user)?)))
    }
}

impl fmt::Debug for TraceStoreOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceStoreOf")
    }
}

/// The traces of all users.
#[derive(Debug)]
pub(super) struct ServedTraces {
    traces: Traces,
    stores: TraceStoreOf,
    opened: Mutex<HashMap<(String, String), Arc<dyn TraceStore>>>,
    runs: Option<Runs>,
}

impl ServedTraces {
    /// Serves traces. `traces` has those of this server, and claims them for runs; `stores` may reach others.
    pub(super) fn new(traces: Traces, stores: Option<TraceStoreOf>, runs: Option<Runs>) -> Self {
        let stores = stores.unwrap_or_else(|| traces.clone().into());
        Self { traces, stores, opened: Mutex::default(), runs }
    }

    /// Returns the traces of a user.
    pub(super) fn of_user(&self, tenant: &str, user: &str) -> Result<Arc<dyn TraceStore>> {
        let key = (tenant.to_owned(), user.to_owned());
        let mut opened = self.opened.lock();
        if let Some(store) = opened.get(&key) {
            return Ok(store.clone());
        }
        let store = (self.stores.0)(tenant, user)?;
        if opened.len() >= STORES_MAX
            && let Some(some) = opened.keys().next().cloned()
        {
            opened.remove(&some);
        }
        opened.insert(key, store.clone());
        Ok(store)
    }

    /// Returns the runs on the traces of a user, or `None` without a runner.
    pub(super) fn runs(&self, user: User, store: Arc<dyn TraceStore>) -> Result<Option<TraceRuns>> {
        let Some(runs) = &self.runs else { return Ok(None) };
        Ok(Some(runs.on(user, store)))
    }

    /// Stops all runs, and waits for at most `limit` until their traces say so.
    pub(super) async fn shutdown(&self, limit: Duration) {
        if let Some(runs) = &self.runs
            && !runs.shutdown(limit).await
        {
            tracing::warn!("some runs did not stop in time; their traces stay `running` until their next run");
        }
    }
}
