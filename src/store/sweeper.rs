//! A task that removes what has ended, so that its room comes back without anybody asking.

use super::Store;
use crate::error::Result;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How often a [`Sweeper`] sweeps, and how much at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweeperOptions {
    /// The pause before each round, the first one too. Default one minute.
    pub every: Duration,
    /// How many rows are removed in one step. Others write between steps. Default 1,000.
    pub rows: usize,
}

impl Default for SweeperOptions {
    fn default() -> Self {
        Self { every: Duration::from_secs(60), rows: 1_000 }
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

    /// Sets how many rows are removed in one step.
    #[must_use]
    pub fn with_rows(mut self, rows: usize) -> Self {
        self.rows = rows;
        self
    }
}

/// Removes the rows of a store whose time is over, now and then, until it is dropped.
///
/// A round goes on, step by step, until nothing is left that has ended; one that fails is logged, and the next one tries again. The
/// sweeper does not keep the store open: between two rounds it holds nothing of it, and it ends with the store.
///
/// Several processes may sweep one store: what one removed the others do not meet. Cost: one [`Store::sweep`] a round while
/// nothing has ended.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use stratafs::store::{MemoryStore, Store, Sweeper, SweeperOptions};
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
    /// Starts a task of the current runtime, with which it ends.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start(store: &Arc<dyn Store>, options: SweeperOptions) -> Self {
        Self { task: tokio::spawn(sweep_on(Arc::downgrade(store), options)) }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sweep_on(store: Weak<dyn Store>, options: SweeperOptions) {
    loop {
        tokio::time::sleep(options.every).await;
        let Some(store) = store.upgrade() else { return };
        match round(&*store, options.rows.max(1)).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(%store, removed, "rows whose time is over were removed"),
            Err(error) => tracing::warn!(%store, %error, "rows whose time is over could not be removed; it is tried again"),
        }
    }
}

async fn round(store: &dyn Store, rows: usize) -> Result<usize> {
    let mut removed = 0;
    loop {
        let step = store.sweep(rows).await?;
        removed += step;
        if step < rows {
            return Ok(removed);
        }
        // A store that never waits would keep every other task of the thread waiting.
        tokio::task::yield_now().await;
    }
}
