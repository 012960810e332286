//! A background task that removes expired rows and gives unused space back to the file system.

use super::{Store, StoreExt, SweepCount};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;
use treehold_core::error::Result;

/// How many unused pages of a file one step gives back by default. Other writers get their turn between steps.
pub const SHRINK_PAGES: usize = 64;

/// How often a [`Sweeper`] runs, and how much it does per step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweeperOptions {
    /// The pause before each round, including the first. Default one minute.
    pub every: Duration,
    /// How many rows are removed per step. Other writers get their turn between steps. Default 200.
    pub rows: usize,
    /// How many unused pages of a file are given back per step. Default [`SHRINK_PAGES`].
    pub pages: usize,
    /// The pause between two steps of a round. Default 20 ms, which makes 10,000 rows or 3,200 pages a second at most.
    pub pause: Duration,
}

impl Default for SweeperOptions {
    fn default() -> Self {
        Self { every: Duration::from_secs(60), rows: 200, pages: SHRINK_PAGES, pause: Duration::from_millis(20) }
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

    /// Sets how many unused pages are given back per step.
    #[must_use]
    pub fn with_pages(mut self, pages: usize) -> Self {
        self.pages = pages;
        self
    }

    /// Sets the pause between two steps of a round.
    #[must_use]
    pub fn with_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }
}

/// What the [`Sweeper`]s of stores have done since they started. Clones share the counts.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SweeperCounts {
    /// The expired rows that they removed.
    pub rows: SweepCount,
    /// The unused pages that they gave back to the file system.
    pub pages: SweepCount,
}

impl SweeperCounts {
    /// Starts at zero.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Removes the expired rows of a store at regular intervals and gives its unused space back to the file system, until it is dropped.
///
/// Each round removes rows step by step until none is expired, and then gives pages back until none is unused, whatever removed their
/// rows. A failure is logged, and the next round tries again. The sweeper holds only a weak reference between rounds, so it does not keep
/// the store open, and it ends with the store.
///
/// Several processes may sweep one store. Cost: one [`StoreExt::sweep`] and one [`StoreExt::shrink`] per round while there is nothing to
/// do.
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
        Self::start_counting(store, options, SweeperCounts::new())
    }

    /// As [`Sweeper::start`], and counts what it does, also in rounds that fail.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start_counting(store: &Arc<dyn Store>, options: SweeperOptions, counts: SweeperCounts) -> Self {
        Self { task: tokio::spawn(sweep_on(Arc::downgrade(store), options, counts)) }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sweep_on(store: Weak<dyn Store>, options: SweeperOptions, counts: SweeperCounts) {
    loop {
        tokio::time::sleep(options.every).await;
        let Some(store) = store.upgrade() else { return };
        match Step::Sweep.repeat(&*store, options.rows, options.pause, &counts.rows).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(%store, removed, "expired rows were removed"),
            Err(error) => tracing::warn!(%store, %error, "removing expired rows failed; retrying in the next round"),
        }
        match Step::Shrink.repeat(&*store, options.pages, options.pause, &counts.pages).await {
            Ok(0) => {}
            Ok(pages) => tracing::debug!(%store, pages, "unused space was given back"),
            Err(error) => tracing::warn!(%store, %error, "giving unused space back failed; retrying in the next round"),
        }
    }
}

/// A step of a round.
#[derive(Debug, Clone, Copy)]
enum Step {
    Sweep,
    Shrink,
}

impl Step {
    /// Repeats the step until one does less than `most`, and counts what each does, also if it fails. Returns the sum.
    async fn repeat(self, store: &dyn Store, most: usize, pause: Duration, count: &SweepCount) -> Result<usize> {
        let (most, mut sum) = (most.max(1), 0);
        loop {
            let done = match self {
                Self::Sweep => store.sweep_counting(most, count).await?,
                Self::Shrink => store.shrink_counting(most, count).await?,
            };
            sum += done;
            if done < most {
                return Ok(sum);
            }
            tokio::time::sleep(pause).await;
        }
    }
}
