//! A store that is used at a bounded rate, for work that nobody waits for.

use super::{
    Batch, Faults, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, PartitionPage, Scan, ScanOptions, Store,
    StoreCapabilities, StoreDescription, StoreExt, StoreExtensions, StoreMaintenance, StoreStats, SweepCount, Watch,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;

/// How long a call waits at most for a moment in which nobody else uses the process, and how often it looks.
const BUSY_MAX: Duration = Duration::from_secs(1);
const BUSY_LOOK: Duration = Duration::from_millis(10);

/// How fast a [`PacedStore`] is used.
#[derive(Clone)]
#[non_exhaustive]
pub struct Pace {
    /// How many rows are read or written per second on average. Every call counts as at least one. Default 1,000.
    pub rows_per_second: u32,
    /// How many rows a scan returns at most. Default 100.
    pub page_rows: usize,
    /// Whether the process has more urgent work. A call waits until it has none, at most as long again as the rate makes it wait, and at most
    /// a second. By default it never has.
    pub is_busy: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rows_per_second: 1_000, page_rows: 100, is_busy: Arc::new(|| false) }
    }
}

impl Pace {
    /// Uses 1,000 rows per second.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many rows are read or written per second, at least 1.
    #[must_use]
    pub fn with_rows_per_second(mut self, rows: u32) -> Self {
        self.rows_per_second = rows.max(1);
        self
    }

    /// Sets what tells whether the process has more urgent work.
    #[must_use]
    pub fn with_is_busy(mut self, is_busy: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        self.is_busy = is_busy;
        self
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace").field("rows_per_second", &self.rows_per_second).field("page_rows", &self.page_rows).finish_non_exhaustive()
    }
}

/// A store around a store, for work that nobody waits for: it is used at a bounded rate.
///
/// After each call, the next one waits for as long as its rows take at the rate. Unused time is lost, so a pause is never followed by a
/// burst. Scans return small pages; the caller bounds its batches.
#[derive(Debug)]
pub struct PacedStore {
    inner: Arc<dyn Store>,
    pace: Pace,
    /// When the next call may begin, and how long it has to wait after the one before.
    next: Mutex<(Instant, Duration)>,
}

impl PacedStore {
    /// Uses a store at a rate.
    ///
    /// # Panics
    /// Its calls panic outside of a Tokio runtime.
    pub fn new(inner: Arc<dyn Store>, pace: Pace) -> Self {
        Self { inner, pace, next: Mutex::new((Instant::now(), Duration::ZERO)) }
    }

    /// Waits for the turn of a call.
    async fn turn(&self) {
        let (next, wait) = *self.next.lock();
        sleep_until(next).await;
        let until = Instant::now() + wait.min(BUSY_MAX);
        while (self.pace.is_busy)() && Instant::now() < until {
            sleep(BUSY_LOOK).await;
        }
    }

    /// Delays the next call by the rows of this one.
    fn spend(&self, rows: usize) {
        let time = Duration::from_secs_f64(rows.max(1) as f64 / f64::from(self.pace.rows_per_second));
        let mut next = self.next.lock();
        *next = (Instant::now().max(next.0) + time, time);
    }
}

impl fmt::Display for PacedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Store for PacedStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::new().with_maintenance(self)
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.turn().await;
        self.spend(1);
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.turn().await;
        self.spend(1);
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.turn().await;
        self.spend(keys.len());
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.turn().await;
        let limit = options.limit.min(self.pace.page_rows);
        let scan = self.inner.scan(namespace, options.with_limit(limit)).await;
        self.spend(scan.as_ref().map_or(1, |scan| scan.entries.len()));
        scan
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.turn().await;
        let limit = options.limit.min(self.pace.page_rows);
        let page = self.inner.namespaces(options.with_limit(limit)).await;
        self.spend(page.as_ref().map_or(1, |page| page.namespaces.len()));
        page
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.turn().await;
        self.spend(batch.writes.len());
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.turn().await;
        self.spend(1);
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

#[async_trait]
impl StoreMaintenance for PacedStore {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        self.turn().await;
        let swept = self.inner.sweep(limit).await;
        self.spend(swept.as_ref().map_or(1, |swept| *swept));
        swept
    }

    async fn sweep_counting(&self, limit: usize, count: &SweepCount) -> Result<usize> {
        self.turn().await;
        let swept = self.inner.sweep_counting(limit, count).await;
        self.spend(swept.as_ref().map_or(1, |swept| *swept));
        swept
    }

    async fn shrink(&self, pages: usize) -> Result<usize> {
        self.turn().await;
        let given = self.inner.shrink(pages).await;
        self.spend(given.as_ref().map_or(1, |given| *given));
        given
    }

    async fn shrink_counting(&self, pages: usize, count: &SweepCount) -> Result<usize> {
        self.turn().await;
        let given = self.inner.shrink_counting(pages, count).await;
        self.spend(given.as_ref().map_or(1, |given| *given));
        given
    }

    async fn partitions(&self, start_after: Option<&Partition>, limit: usize) -> Result<Option<PartitionPage>> {
        let listed = self.inner.partitions(start_after, limit).await;
        // Most stores have no answer, which costs nothing.
        if let Ok(Some(page)) = &listed {
            self.spend(page.partitions.len());
        }
        listed
    }

    async fn compact(&self) -> Result<bool> {
        self.turn().await;
        self.inner.compact().await
    }

    async fn describe(&self) -> Result<StoreDescription> {
        self.inner.describe().await
    }

    async fn stats(&self) -> Result<StoreStats> {
        self.inner.stats().await
    }

    async fn stats_with_faults(&self, faults: &mut Faults) -> Result<StoreStats> {
        self.inner.stats_with_faults(faults).await
    }

    async fn check(&self) -> Result<Vec<Error>> {
        self.inner.check().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn namespace() -> Namespace {
        Namespace::new(["a"]).expect("plain")
    }

    #[tokio::test(start_paused = true)]
    async fn calls_take_as_long_as_their_rows_and_a_pause_is_not_made_up_for() {
        let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let batch = (0..250).fold(Batch::new(), |batch, number| batch.put(&namespace(), format!("{number:03}"), ""));
        inner.commit(batch).await.expect("committed");
        let paced = PacedStore::new(inner, Pace::new().with_rows_per_second(100));
        // The clock of the test advances by itself while every task waits.
        sleep(Duration::from_secs(3600)).await;
        let began = Instant::now();
        let mut options = ScanOptions::new();
        for rows in [100, 100, 50] {
            let page = paced.scan(&namespace(), options.clone()).await.expect("read");
            assert_eq!(page.entries.len(), rows);
            options.start_after = page.next;
        }
        assert_eq!(began.elapsed().as_secs(), 2, "the third page waits for 200 rows");
        paced
            .commit((0..30).fold(Batch::new(), |batch, number| batch.delete(&namespace(), format!("{number:03}"))))
            .await
            .expect("removed");
        paced.get(&namespace(), "1").await.expect("read");
        let ended = began.elapsed();
        assert!((2_800..2_900).contains(&ended.as_millis()), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_work_at_most_doubles_the_wait() {
        let busy = Arc::new(AtomicBool::new(true));
        let asked = busy.clone();
        let pace = Pace::new().with_rows_per_second(10).with_is_busy(Arc::new(move || asked.load(Ordering::Relaxed)));
        let paced = PacedStore::new(Arc::new(MemoryStore::new()), pace);
        let began = Instant::now();
        for (is_busy, ended_at) in [(true, 0), (true, 200), (true, 400), (false, 500), (false, 600)] {
            busy.store(is_busy, Ordering::Relaxed);
            paced.get(&namespace(), "k").await.expect("read");
            assert_eq!(began.elapsed().as_millis() / 10 * 10, ended_at);
        }
    }
}
