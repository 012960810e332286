//! Retention: what a policy does not keep is removed, slowly and by itself.
//!
//! A [`RetentionPolicy`] says how many checkpoints and recorded calls are kept, by class of thread. [`Retention::run`] looks at every
//! thread of a store once: it prunes checkpoints and calls, and removes the contents that only pruned checkpoints held. It works at a
//! bounded rate, in small commits, so it can run beside a server ([`RetentionSweeper`]). Every commit is complete in itself, so a round
//! may be dropped at any moment, and several processes may work on one store.
//!
//! [`treehold_tree::checkpoint`] decides what is never removed: the newest checkpoints of a thread, what forks and merges need, and what a
//! call may still read.

mod claim;
mod policy;
mod sweeper;

pub use policy::{KeepRule, RetentionPolicy, ThreadClass, ThreadRules};
pub use sweeper::{RetentionSweeper, Round};

use crate::audit::{self, AuditLog, PruneCalls};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_store::{Pace, PacedStore, SHRINK_PAGES, Store, StoreExt, SweepCount};
use treehold_tree::checkpoint::{NamedCheckpoints, Owners, RetainOptions, Retained, StoreCheckpointer};

/// The most rows that are removed in one commit.
const BATCH_ROWS: usize = 100;

/// How many threads are listed at once.
const THREADS: usize = 100;

/// How many faults a report describes.
const FAULTS_MAX: usize = 20;

/// What one or more rounds removed, or what a dry run would remove.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct RetentionReport {
    /// The number of threads with a rule.
    pub threads: u64,
    /// The number of removed checkpoints.
    pub checkpoints: u64,
    /// The number of removed records of calls.
    pub calls: u64,
    /// The number of removed contents, which no checkpoint held any more.
    pub contents: u64,
    /// Their size in bytes.
    pub content_bytes: u64,
    /// The number of removed packs of pages.
    pub packs: u64,
    /// The number of checkpoints that stay only for now: a call may still read them, or they were named while the round ran.
    pub deferred: u64,
    /// The number of threads, users and partitions that could not be handled. The next round tries again.
    pub failed: u64,
    /// What went wrong with the first of them. The log has all.
    pub faults: Vec<String>,
}

impl RetentionReport {
    /// Counts and describes something that could not be handled, unless the same is described already.
    pub fn fail(&mut self, fault: String) {
        if self.faults.contains(&fault) {
            return;
        }
        self.failed += 1;
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }
}

/// A policy and the store whose threads it is for.
#[derive(Debug, Clone)]
pub struct Retention {
    store: Arc<dyn Store>,
    policy: RetentionPolicy,
    pace: Pace,
    clock: Clock,
}

impl Retention {
    /// Applies a policy to the threads of a store.
    pub fn new(store: Arc<dyn Store>, policy: RetentionPolicy) -> Self {
        let pace = Pace::new().with_rows_per_second(policy.rows_per_second);
        Self { store, policy, pace, clock: Clock::system() }
    }

    /// Sets the clock that says how old something is.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets what tells whether the process has more urgent work.
    #[must_use]
    pub fn with_is_busy(mut self, is_busy: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.pace = self.pace.with_is_busy(Arc::new(is_busy));
        self
    }

    /// Raises the time for which a checkpoint stays after another one followed it, for callers that may read it for so long. A policy
    /// without such a time keeps none.
    #[must_use]
    pub fn with_grace_of_at_least(mut self, grace: Duration) -> Self {
        if !self.policy.grace.is_zero() {
            self.policy.grace = self.policy.grace.max(grace);
        }
        self
    }

    /// Returns the policy.
    pub fn policy(&self) -> &RetentionPolicy {
        &self.policy
    }

    /// Looks at every thread once, and removes or only counts what the policy does not keep. Adds to `report` what was done, also if it
    /// fails. A thread, user or partition that fails does not stop the others.
    ///
    /// Cost: reads the record of every checkpoint twice, and the keys of old calls. After a removal, it reads every page of the user's
    /// trees once. All of that at the rate of the policy.
    ///
    /// # Errors
    /// The errors of the store if it cannot be used at all.
    pub async fn run(&self, dry_run: bool, report: &mut RetentionReport) -> Result<()> {
        if self.policy.keeps_everything() {
            return Ok(());
        }
        let store: Arc<dyn Store> = Arc::new(PacedStore::new(self.store.clone(), self.pace.clone()));
        let checkpointer = StoreCheckpointer::new(store.clone()).with_clock(self.clock.clone()).with_batch_rows(BATCH_ROWS);
        let kinds = if self.policy.has_checkpoints() { &["heads", "pruned", audit::KIND][..] } else { &["heads", audit::KIND] };
        let log = AuditLog::new(store.clone());
        let mut owners = Owners::new(&*store, kinds);
        loop {
            let users = match owners.next_page().await {
                Ok(Some(users)) => users,
                Ok(None) => return Ok(()),
                Err(error) if owners.is_over() || self.is_lost(&error).await => return Err(error),
                // One partition that cannot be read does not stop the others.
                Err(error) => {
                    report.fail(error.to_string());
                    tracing::warn!(%error, "retention failed for a partition; retrying in the next round");
                    continue;
                }
            };
            for user in &users {
                let round = UserRound { retention: self, checkpointer: &checkpointer, log: &log, user, dry_run };
                if self.policy.has_checkpoints() {
                    self.settle(round.checkpoints(report).await, user, report).await?;
                }
                if self.policy.has_calls() {
                    self.settle(round.calls(report).await, user, report).await?;
                }
            }
        }
    }

    /// Returns whether an error means that the store cannot be used at all.
    async fn is_lost(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Unavailable && self.store.ping().await.is_err()
    }

    /// Logs and counts the failure of a user or a thread, and returns it if the store cannot be used at all.
    async fn settle(&self, done: Result<()>, scope: &Scope, report: &mut RetentionReport) -> Result<()> {
        let Err(error) = done else { return Ok(()) };
        if self.is_lost(&error).await {
            return Err(error);
        }
        report.fail(fault(scope, &error));
        let Scope { tenant, user, thread, .. } = scope;
        tracing::warn!(tenant, user, thread, %error, "retention failed; retrying in the next round");
        Ok(())
    }

    /// Removes the expired rows of the store, in small steps at the rate of the policy. Adds their number to `removed`, also if it fails.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn remove_expired(&self, removed: &SweepCount) -> Result<()> {
        let store = PacedStore::new(self.store.clone(), self.pace.clone());
        while store.sweep_counting(BATCH_ROWS, removed).await? >= BATCH_ROWS {}
        Ok(())
    }

    /// Gives space that the store no longer uses back to the file system, where its engine can, in small steps. Adds the number of pages
    /// to `given`, also if it fails.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn shrink(&self, given: &SweepCount) -> Result<()> {
        let store = PacedStore::new(self.store.clone(), self.pace.clone());
        while store.shrink_counting(SHRINK_PAGES, given).await? >= SHRINK_PAGES {}
        Ok(())
    }
}

/// Describes what went wrong with a user or a thread.
fn fault(scope: &Scope, error: &Error) -> String {
    let named = |what: &str, id: &Option<String>| id.as_ref().map(|id| format!("{what} `{id}`"));
    let who = [named("thread", &scope.thread), named("user", &scope.user), named("tenant", &scope.tenant)];
    format!("{}: {error}", who.into_iter().flatten().collect::<Vec<_>>().join(" of "))
}

/// One look at the threads of a user.
struct UserRound<'r> {
    retention: &'r Retention,
    checkpointer: &'r StoreCheckpointer,
    log: &'r AuditLog,
    user: &'r Scope,
    dry_run: bool,
}

impl UserRound<'_> {
    /// Prunes the checkpoints of every thread, and then sweeps what only these held.
    async fn checkpoints(&self, report: &mut RetentionReport) -> Result<()> {
        let policy = &self.retention.policy;
        // The references between threads are collected only for a user with a rule.
        let mut named = None;
        let mut gone = HashSet::new();
        let mut after = None;
        loop {
            let (threads, next) = self.checkpointer.thread_ids(self.user, after.as_deref(), THREADS).await?;
            for thread in threads {
                let Some(rule) = &policy.of(self.user, &thread).checkpoints else { continue };
                let named = match &mut named {
                    Some(named) => named,
                    none => none.insert(self.checkpointer.named(self.user).await?),
                };
                let options = RetainOptions::new(rule.prune().with_dry_run(self.dry_run)).with_grace(policy.grace);
                let options = options.with_names(policy.names.clone());
                let scope = self.user.clone().with_thread(thread);
                let pruned = self.prune(&scope, &options, named, &mut gone, report).await;
                self.retention.settle(pruned, &scope, report).await?;
            }
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        match self.checkpointer.sweep_after(self.user, self.dry_run, &gone).await {
            Ok(Some(swept)) => {
                report.contents += swept.bodies;
                report.content_bytes += swept.body_bytes;
                report.packs += swept.packs;
                Ok(())
            }
            Ok(None) => Ok(()),
            // Checkpoints kept being removed meanwhile; what is left is swept in the next round.
            Err(error) if error.kind() == ErrorKind::Unavailable && self.retention.store.ping().await.is_ok() => {
                tracing::debug!(%error, "contents are swept in the next round");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn prune(
        &self,
        scope: &Scope,
        options: &RetainOptions,
        named: &NamedCheckpoints,
        gone: &mut HashSet<String>,
        report: &mut RetentionReport,
    ) -> Result<()> {
        report.threads += 1;
        let Retained { pruned, deferred, gone: keys, .. } = match self.checkpointer.retain(scope, options, named).await {
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            retained => retained?,
        };
        report.checkpoints += pruned.removed;
        report.deferred += deferred;
        gone.extend(keys);
        Ok(())
    }

    /// Prunes the record of calls of every thread, also of those without a checkpoint.
    async fn calls(&self, report: &mut RetentionReport) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            let (threads, more) = self.log.threads(self.user, after.as_deref(), THREADS).await?;
            for thread in &threads {
                let Some(rule) = &self.retention.policy.of(self.user, thread).calls else { continue };
                let before = rule.older_than().map(|age| self.retention.clock.now().checked_sub(age).unwrap_or(jiff::Timestamp::MIN));
                let options = PruneCalls::new().with_keep_last(rule.keep_last()).with_before(before);
                let options = options.with_dry_run(self.dry_run).with_batch_rows(BATCH_ROWS);
                let scope = self.user.clone().with_thread(thread);
                let pruned = self.log.prune(&scope, &options).await.map(|removed| report.calls += removed);
                self.retention.settle(pruned, &scope, report).await?;
            }
            after = threads.last().cloned();
            if !more || after.is_none() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests;
