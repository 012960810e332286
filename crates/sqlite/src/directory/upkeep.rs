//! Maintenance of all files: sweeping, counting, checking, and giving back space.

use super::names::{Found, strays};
use super::opened::on_blocking_thread;
use super::walk::Walk;
use super::{SCHEMA, Shared, SqliteDirectory, of_partition};
use crate::SqliteStore;
use crate::recognise::with_suffix;
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::{Duration, SystemTime};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_store::{Faults, Partition, PartitionPage, Store, StoreDescription, StoreMaintenance, StoreStats, SweepCount};

/// How many files one round visits at most. The next one goes on after them.
const VISITS_MAX: usize = 10_000;

/// The most findings of a check.
const FINDINGS_MAX: usize = 100;

/// Changes in quick succession may have the same time. After this long, every later change has another.
const SETTLED: Duration = Duration::from_millis(100);

/// The times and sizes of a file and of its log, which differ after every commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileMark {
    file: Option<(SystemTime, u64)>,
    log: Option<(SystemTime, u64)>,
}

impl FileMark {
    pub(super) fn of(file: &Path) -> Self {
        let mark = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.modified().ok()?, found.len()))
        };
        Self { file: mark(file), log: mark(&with_suffix(file, "-wal")) }
    }

    /// Returns whether every later commit changes the mark. Asked when the mark is made.
    pub(super) fn is_settled(&self) -> bool {
        let now = SystemTime::now();
        let is_old = |mark: &Option<(SystemTime, u64)>| mark.is_none_or(|(at, _)| now.duration_since(at).is_ok_and(|age| age > SETTLED));
        is_old(&self.file) && is_old(&self.log)
    }
}

/// What earlier rounds have left for later ones.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    sweeps: Round,
    shrinks: Round,
}

/// Rounds over the files, of which those without work are skipped until they change. Memory: some 100 bytes for each file.
#[derive(Debug, Default)]
struct Round {
    state: Mutex<RoundState>,
    hashes: RandomState,
}

#[derive(Debug, Default)]
struct RoundState {
    /// The partition with which the next round begins.
    from: Option<Partition>,
    /// The marks of the files that had no work, by the hashes of their partitions, and when there will be some.
    idle: HashMap<u64, (FileMark, Option<Timestamp>)>,
    /// The first failure that no call has returned yet.
    failed: Option<Error>,
}

impl Round {
    /// Keeps the first failure for the call that returns it.
    fn fail(&self, error: Error) {
        tracing::warn!(%error, "maintaining a part of the store failed");
        self.state.lock().failed.get_or_insert(error);
    }

    fn is_idle(&self, found: &Found, mark: FileMark, now: Timestamp) -> bool {
        let idle = self.state.lock().idle.get(&self.hashes.hash_one(&found.partition)).copied();
        idle.is_some_and(|(known, due)| due.is_none_or(|due| now < due) && known == mark)
    }

    /// Skips a file from now on, if it has not changed since `before` and every later commit changes its mark.
    fn rest(&self, found: &Found, before: FileMark, due: Option<Timestamp>) {
        let mark = FileMark::of(&found.path);
        if mark == before && mark.is_settled() {
            self.state.lock().idle.insert(self.hashes.hash_one(&found.partition), (mark, due));
        }
    }
}

/// What a visit of a file did.
struct Visited {
    done: usize,
    next: NextVisit,
}

/// When a file has to be visited again.
enum NextVisit {
    /// In the next round.
    Now,
    /// When it has changed, or at that time.
    AfterChange(Option<Timestamp>),
}

impl Shared {
    /// Visits files until `limit` units of work are done, and counts them. A file that fails stops no other, nor does a directory that cannot
    /// be listed: the first failure is returned by the call that has less than `limit` left to do.
    async fn round<F: Future<Output = Result<Visited>>>(
        &self,
        round: &Round,
        limit: usize,
        count: &SweepCount,
        visit: impl Fn(SqliteStore, usize) -> F,
    ) -> Result<usize> {
        let done = self.visit_files(round, limit, count, visit).await?;
        let failed = if done < limit { round.state.lock().failed.take() } else { None };
        failed.map_or(Ok(done), Err)
    }

    async fn visit_files<F: Future<Output = Result<Visited>>>(
        &self,
        round: &Round,
        limit: usize,
        count: &SweepCount,
        visit: impl Fn(SqliteStore, usize) -> F,
    ) -> Result<usize> {
        let now = self.files.options().clock.now();
        let from = round.state.lock().from.take();
        let mut walk = Walk::new(&self.files, String::new(), from.as_ref()).with_marks();
        // A round that begins in the middle ends with what comes before.
        let before = from;
        let mut is_past_the_end = before.is_none();
        let (mut done, mut visits) = (0, 0);
        while done < limit {
            let (mark, found) = match walk.next_marked_past(|error| round.fail(error)).await? {
                Some((_, found)) if is_past_the_end && before.as_ref().is_some_and(|before| found.partition >= *before) => return Ok(done),
                Some((Some(mark), found)) => (mark, found),
                Some((None, found)) => (FileMark::of(&found.path), found),
                None if is_past_the_end => return Ok(done),
                None => {
                    is_past_the_end = true;
                    walk = Walk::new(&self.files, String::new(), None).with_marks();
                    continue;
                }
            };
            if round.is_idle(&found, mark, now) {
                continue;
            }
            if visits == VISITS_MAX {
                round.state.lock().from = Some(found.partition);
                return Ok(done);
            }
            visits += 1;
            let left = limit - done;
            match self.files.look(&found, |store| visit(store, left)).await {
                Ok(Some(visited)) => {
                    done += visited.done;
                    count.add(visited.done);
                    if let NextVisit::AfterChange(due) = visited.next {
                        round.rest(&found, mark, due);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    let error = of_partition(&found.partition, error);
                    if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) {
                        round.rest(&found, mark, None);
                    }
                    round.fail(error);
                }
            }
            if done >= limit {
                round.state.lock().from = Some(found.partition);
            }
        }
        Ok(done)
    }
}

#[async_trait]
impl StoreMaintenance for SqliteDirectory {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        self.sweep_counting(limit, &SweepCount::new()).await
    }

    /// Cost: two `stat` for each file, and an opening of those that have changed since the last sweep or have rows that expire.
    async fn sweep_counting(&self, limit: usize, count: &SweepCount) -> Result<usize> {
        let visit = |store: SqliteStore, left: usize| async move {
            let done = store.sweep(left).await?;
            let next = if done < left { NextVisit::AfterChange(store.next_expiry()?) } else { NextVisit::Now };
            Ok(Visited { done, next })
        };
        self.shared.round(&self.shared.upkeep.sweeps, limit, count, visit).await
    }

    async fn shrink(&self, pages: usize) -> Result<usize> {
        self.shrink_counting(pages, &SweepCount::new()).await
    }

    /// Cost: as [`SqliteStore`]'s, for each file that has changed since the last time.
    async fn shrink_counting(&self, pages: usize, count: &SweepCount) -> Result<usize> {
        let visit = |store: SqliteStore, left: usize| async move {
            let done = store.shrink(left).await?;
            Ok(Visited { done, next: if done < left { NextVisit::AfterChange(None) } else { NextVisit::Now } })
        };
        self.shared.round(&self.shared.upkeep.shrinks, pages, count, visit).await
    }

    /// Cost: lists the directories of the tenants from there on, and opens no file.
    async fn partitions(&self, start_after: Option<&Partition>, limit: usize) -> Result<Option<PartitionPage>> {
        let mut walk = Walk::new(&self.shared.files, String::new(), start_after);
        let (mut partitions, mut faults) = (Vec::new(), Vec::new());
        while partitions.len() < limit
            && let Some(found) = walk.next_past(|error| faults.push(error)).await?
        {
            if start_after != Some(&found.partition) {
                partitions.push(found.partition);
            }
        }
        Ok(Some(PartitionPage::new(partitions, faults)))
    }

    /// Rewrites every file. One that fails stops no other: the first failure is returned at the end.
    async fn compact(&self) -> Result<bool> {
        let mut failed: Option<Error> = None;
        let mut walk = Walk::new(&self.shared.files, String::new(), None);
        while let Some(found) = walk.next_past(|error| _ = failed.get_or_insert(error)).await? {
            if let Err(error) = self.shared.files.look(&found, |store| async move { store.compact().await }).await {
                failed.get_or_insert(of_partition(&found.partition, error));
            }
        }
        failed.map_or(Ok(true), Err)
    }

    async fn describe(&self) -> Result<StoreDescription> {
        let engine = format!("SQLite {}, a file for each partition", rusqlite::version());
        Ok(StoreDescription::new(engine, self.capabilities().durability).with_schema(SCHEMA))
    }

    /// Counts every file. One that fails stops no other: the first failure is returned at the end.
    async fn stats(&self) -> Result<StoreStats> {
        let mut faults = Faults::new();
        let stats = self.stats_with_faults(&mut faults).await?;
        faults.into_first().map_or(Ok(stats), Err)
    }

    async fn stats_with_faults(&self, faults: &mut Faults) -> Result<StoreStats> {
        let mut stats = StoreStats::new();
        let mut walk = Walk::new(&self.shared.files, String::new(), None);
        while let Some(found) = walk.next_past(|error| faults.add(error)).await? {
            match self.shared.files.look(&found, |store| async move { store.stats().await }).await {
                Ok(counted) => counted.iter().for_each(|counted| stats.merge(counted)),
                Err(error) => faults.add(of_partition(&found.partition, error)),
            }
        }
        Ok(stats)
    }

    /// Checks every file. One that cannot be examined is a finding, and so is one whose name is that of no partition.
    async fn check(&self) -> Result<Vec<Error>> {
        let mut findings = Vec::new();
        let mut walk = Walk::new(&self.shared.files, String::new(), None);
        while findings.len() < FINDINGS_MAX
            && let Some(found) = walk.next_past(|error| findings.push(error)).await?
        {
            match self.shared.files.look(&found, |store| async move { store.check().await }).await {
                Ok(of_file) => findings.extend(of_file.into_iter().flatten().map(|error| of_partition(&found.partition, error))),
                Err(error) => findings.push(of_partition(&found.partition, error)),
            }
        }
        findings.truncate(FINDINGS_MAX);
        let (root, left) = (self.shared.files.root().to_owned(), FINDINGS_MAX - findings.len());
        findings.extend(on_blocking_thread(move || Ok(strays(&root, left))).await?);
        Ok(findings)
    }
}
