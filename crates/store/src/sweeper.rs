//! A background task that removes expired rows.

use super::{Store, StoreExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;
use treehold_core::error::Result;

/// How often a [`Sweeper`] runs, and how many rows it removes per step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweeperOptions {
    /// The pause before each round, including the first. Default one minute.
    pub every: Duration,
    /// How many rows are removed per step. Other writers get their turn between steps. Default 200.
    pub rows: usize,
    /// The pause between two steps of a round. Default 20 ms, which makes 10,000 rows a second at most.
    pub pause: Duration,
}

impl Default for SweeperOptions {
    fn default() -> Self {
        Self { every: Duration::from_secs(60), rows: 200, pause: Duration::from_millis(20) }
    }
}

impl SweeperOptions {
    /// Sweeps every minute.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the pause before each round.
    #[must_use]
    pub fn with_every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Sets how many rows are removed per step.
    #[must_use]
    pub fn with_rows(mut self, rows: usize) -> Self {
        self.rows = rows;
        self
    }

    /// Sets the pause between two steps of a round.
    #[must_use]
    pub fn with_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }
}

/// How much sweepers have removed since they started. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct RemovedCount(Arc<AtomicU64>);

impl RemovedCount {
    /// Starts at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how much was removed.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts what was removed.
    pub fn add(&self, removed: usize) {
        self.0.fetch_add(removed as u64, Ordering::Relaxed);
    }
}

/// Removes the expired rows of a store at regular intervals, until it is dropped.
///
/// Each round removes rows step by step until none is expired. A failed round is logged, and the next one tries again.
/// The sweeper holds only a weak reference between rounds, so it does not keep the store open, and it ends with the
/// store.
///
/// Several processes may sweep one store. Cost: one [`StoreExt::sweep`] per round while nothing has expired.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_store::{MemoryStore, Store, Sweeper, SweeperOptions};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
/// let sweeper = Sweeper::start(&store, SweeperOptions::new());
/// # drop(sweeper);
/// # }
/// ```
#[derive(Debug)]
pub struct Sweeper {
    task: JoinHandle<()>,
}

impl Sweeper {
    /// Starts a task on the current runtime. It ends with the runtime.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start(store: &Arc<dyn Store>, options: SweeperOptions) -> Self {
        Self::start_counting(store, options, RemovedCount::new())
    }

    /// As [`Sweeper::start`], and counts the rows that it removes.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start_counting(store: &Arc<dyn Store>, options: SweeperOptions, removed: RemovedCount) -> Self {
        Self { task: tokio::spawn(sweep_on(Arc::downgrade(store), options, removed)) }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sweep_on(store: Weak<dyn Store>, options: SweeperOptions, count: RemovedCount) {
    loop {
        tokio::time::sleep(options.every).await;
        let Some(store) = store.upgrade() else { return };
        match round(&*store, &options, &count).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(%store, removed, "expired rows were removed"),
            Err(error) => tracing::warn!(%store, %error, "removing expired rows failed; retrying in the next round"),
        }
    }
}

async fn round(store: &dyn Store, options: &SweeperOptions, count: &RemovedCount) -> Result<usize> {
    let (rows, mut removed) = (options.rows.max(1), 0);
    loop {
        let step = store.sweep(rows).await?;
        removed += step;
        count.add(step);
        if step < rows {
            return Ok(removed);
        }
        tokio::time::sleep(options.pause).await;
    }
}
