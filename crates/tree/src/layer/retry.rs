//! Retries of transient failures, where that is safe.

use super::{Layer, LayerName, Next, Reply};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Change, Op, WriteMode};

/// Repeats a call that failed transiently ([`ErrorKind::is_transient`](treehold_core::error::ErrorKind::is_transient)), if repeating it is safe.
///
/// A failed change may have taken effect before its answer was lost, so safety depends on the change:
///
/// | call | stated to be without effect ([`Error::is_without_effect`]) | effect unknown |
/// | --- | --- | --- |
/// | `stat`, `read`, `ls`, `glob`, `grep`, `search` | retried | retried |
/// | write with `Overwrite` | retried | retried: twice has the same effect as once |
/// | create a directory | retried | retried: twice has the same effect as once |
/// | write with `CreateNew` | retried | no: it would report `already_exists` for its own file |
/// | write with `IfVersion`, edit or delete with `expect` | retried | no: it would report `conflict` with its own change |
/// | append, edit | retried | no: it could take effect twice |
/// | delete | retried | no: it would report `not_found`, or remove a file that another writer created since |
/// | rename, copy | retried | no: it would report `not_found` or `already_exists`, or move what another writer put there since |
/// | batch | retried | if every change of it is |
///
/// A batch that took partial effect ([`Error::applied`]) counts as unknown. A failure that is not safe to repeat is returned as it is. An
/// overwrite that was made twice reports `created: false` even if its first attempt created the file.
///
/// Between attempts it waits a random time up to a ceiling that doubles ("full jitter",
/// <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>), so that callers that failed together do not retry
/// together. Time is tokio's clock.
#[derive(Clone)]
pub struct Retry {
    attempts_max: usize,
    backoff: Backoff,
    jitter: Option<Arc<dyn Fn(Duration) -> Duration + Send + Sync>>,
}

impl Retry {
    /// Makes at most `attempts_max` attempts (0 counts as 1), waiting up to 50 ms before the second attempt and up to 2 s before any other.
    pub fn new(attempts_max: usize) -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        Self { attempts_max: attempts_max.max(1), backoff, jitter: None }
    }

    /// Sets the ceiling of the first wait, which doubles each time, and the largest ceiling.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration, delay_max: Duration) -> Self {
        self.backoff = Backoff::new(delay, delay_max);
        self
    }

    /// Sets how a wait is derived from its ceiling; by default uniformly random up to it.
    #[must_use]
    pub fn with_jitter(mut self, jitter: impl Fn(Duration) -> Duration + Send + Sync + 'static) -> Self {
        self.jitter = Some(Arc::new(jitter));
        self
    }

    /// Returns how long to wait after `attempts` failed attempts, from 1.
    fn delay_after(&self, attempts: usize) -> Duration {
        let attempt = u32::try_from(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        match &self.jitter {
            Some(jitter) => {
                let ceiling = self.backoff.ceiling(attempt);
                jitter(ceiling).min(ceiling)
            }
            None => self.backoff.pause(attempt),
        }
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry").field("attempts_max", &self.attempts_max).field("backoff", &self.backoff).finish_non_exhaustive()
    }
}

#[async_trait]
impl Layer for Retry {
    fn name(&self) -> LayerName {
        LayerName::new("Retry").with_settings(self.attempts_max)
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        let mut attempts = 1;
        let mut effect_open = false;
        loop {
            let error = match next.run().await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if attempts == self.attempts_max || !is_safe(op, &error) {
                return Err(told(error, attempts, effect_open));
            }
            let delay = self.delay_after(attempts);
            tracing::debug!(operation = %op.kind, path = %op.path, attempts, ?delay, error = %error, "a transient failure; trying again");
            tokio::time::sleep(delay).await;
            effect_open |= !is_without_effect(&error);
            attempts += 1;
        }
    }
}

/// Returns whether nothing of the call took effect.
fn is_without_effect(error: &Error) -> bool {
    error.is_without_effect() && error.applied() == 0
}

/// Returns whether a failed call may be repeated, by the table of [`Retry`].
fn is_safe(op: Op<'_>, error: &Error) -> bool {
    error.kind().is_transient() && (is_without_effect(error) || op.changes.iter().all(is_repeatable))
}

/// Returns whether making a change twice has the same effect as once, whoever writes in between.
fn is_repeatable(change: &Change) -> bool {
    match change {
        Change::Write { mode: WriteMode::Overwrite, .. } | Change::CreateDir { .. } => true,
        Change::Write { mode: WriteMode::CreateNew | WriteMode::IfVersion(_), .. }
        | Change::Append { .. }
        | Change::Edit { .. }
        | Change::Delete { .. }
        | Change::Rename { .. }
        | Change::Copy { .. } => false,
        _ => false,
    }
}

/// Adds the number of attempts, and marks the effect as unknown if an earlier attempt left it so.
fn told(error: Error, attempts: usize, effect_open: bool) -> Error {
    let error = if effect_open { error.with_unknown_effect() } else { error };
    match attempts {
        1 => error,
        _ => {
            let message = format!("{} (tried {attempts} times)", error.message());
            error.with_message(message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Fault;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    use treehold_core::error::ErrorKind;
    use treehold_core::ops::{Changed, Edit, OpKind, Version};
    use treehold_core::path::{VfsPath, VfsPathBuf};

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn write(mode: WriteMode) -> Change {
        Change::Write { path: path("/a"), content: "x".into(), mode }
    }

    /// Runs a call through retry and then a fault. Returns whether it succeeded, and how often it took effect.
    async fn through(fault: &Fault, changes: &[Change]) -> (bool, usize) {
        let op = if changes.is_empty() { Op::read(OpKind::Read, VfsPath::ROOT) } else { Op::apply(changes) };
        let effects = Mutex::new(0);
        let tree = || -> BoxFuture<'_, Result<Vec<Changed>>> {
            *effects.lock() += 1;
            async { Ok(Vec::new()) }.boxed()
        };
        let faulty = || fault.around(op, Next::new(&tree));
        let done = Retry::new(3).with_jitter(|_| Duration::ZERO).around(op, Next::new(&faulty)).await;
        (done.is_ok(), *effects.lock())
    }

    #[tokio::test]
    async fn retries_follow_the_documented_table() {
        let edits = vec![Edit::new("a", "b")];
        let delete = |expect| Change::Delete { path: path("/a"), recursive: false, expect };
        // Each call, and whether it is retried when its effect is unknown.
        for (changes, repeats) in [
            (vec![], true),
            (vec![write(WriteMode::Overwrite)], true),
            (vec![Change::CreateDir { path: path("/d") }], true),
            (vec![write(WriteMode::CreateNew)], false),
            (vec![write(WriteMode::IfVersion(Version::new(1)))], false),
            (vec![Change::Append { path: path("/a"), content: "x".into() }], false),
            (vec![Change::Edit { path: path("/a"), edits: edits.clone(), expect: None }], false),
            (vec![Change::Edit { path: path("/a"), edits, expect: Some(Version::new(1)) }], false),
            (vec![delete(None)], false),
            (vec![delete(Some(Version::new(1)))], false),
            (vec![Change::Rename { from: path("/a"), to: path("/b"), overwrite: true }], false),
            (vec![Change::Copy { from: path("/a"), to: path("/b"), overwrite: true }], false),
            (vec![write(WriteMode::Overwrite), Change::CreateDir { path: path("/d") }], true),
            (vec![write(WriteMode::Overwrite), Change::Append { path: path("/b"), content: "x".into() }], false),
        ] {
            assert_eq!(through(&Fault::nth(0).after_effect(), &changes).await, (repeats, 1 + usize::from(repeats)), "after: {changes:?}");
            assert_eq!(
                through(&Fault::nth(0), &changes).await,
                (repeats, usize::from(repeats)),
                "failed before the effect, with an unknown effect: {changes:?}"
            );
            assert_eq!(
                through(&Fault::nth(0).stated(), &changes).await,
                (true, 1),
                "failed before the effect, and the error says so: {changes:?}"
            );
            assert_eq!(through(&Fault::nth(0).with_kind(ErrorKind::Corrupt), &changes).await, (false, 0), "lasting: {changes:?}");
        }
    }

    #[tokio::test]
    async fn last_failure_reports_the_number_of_attempts() {
        let fault = Fault::from_nth(0).stated();
        let faulty = || fault.around(Op::read(OpKind::Stat, VfsPath::ROOT), Next::new(&|| async { Ok(Vec::<Changed>::new()) }.boxed()));
        let retry = Retry::new(4).with_jitter(|_| Duration::ZERO);
        let error = retry.around(Op::read(OpKind::Stat, VfsPath::ROOT), Next::new(&faulty)).await.expect_err("always fails");
        assert_eq!(fault.calls(), 4);
        assert!(error.message().ends_with("(tried 4 times)"), "{error}");
        assert!(error.is_without_effect());
    }

    #[tokio::test]
    async fn earlier_unknown_effect_is_kept_in_the_final_error() {
        let attempts = AtomicU64::new(0);
        let changes = [write(WriteMode::Overwrite)];
        let run = || -> BoxFuture<'_, Result<Vec<Changed>>> {
            let lost = Error::new(ErrorKind::Unavailable, "lost");
            let error = if attempts.fetch_add(1, Ordering::Relaxed) == 0 { lost } else { lost.without_effect() };
            async { Err(error) }.boxed()
        };
        let retry = Retry::new(2).with_jitter(|_| Duration::ZERO);
        let error = retry.around(Op::apply(&changes), Next::new(&run)).await.expect_err("always fails");
        assert!(!error.is_without_effect());
    }

    #[tokio::test]
    async fn partially_applied_batch_has_unknown_effect() {
        let changes = [Change::Append { path: path("/a"), content: "x".into() }, Change::CreateDir { path: path("/d") }];
        let attempts = AtomicU64::new(0);
        let run = || -> BoxFuture<'_, Result<Vec<Changed>>> {
            attempts.fetch_add(1, Ordering::Relaxed);
            async { Err(Error::new(ErrorKind::Unavailable, "gone").without_effect().in_batch(1, 1)) }.boxed()
        };
        assert!(Retry::new(3).around(Op::apply(&changes), Next::new(&run)).await.is_err());
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn wait_doubles_up_to_the_ceiling() {
        let retry = Retry::new(99).with_jitter(|ceiling| ceiling).with_delay(Duration::from_millis(50), Duration::from_secs(2));
        let waits: Vec<u128> = [1, 2, 3, 6, 7, 64, usize::MAX].map(|attempts| retry.delay_after(attempts).as_millis()).into();
        assert_eq!(waits, [50, 100, 200, 1600, 2000, 2000, 2000]);
        let drawn = Retry::new(2);
        assert!((0..100).all(|_| drawn.delay_after(1) <= Duration::from_millis(50)));
        assert!((0..100).any(|_| drawn.delay_after(1) != drawn.delay_after(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_wait_longer_each_time() {
        let fault = Fault::from_nth(0);
        let faulty = || fault.around(Op::read(OpKind::Stat, VfsPath::ROOT), Next::new(&|| async { Ok(Vec::<Changed>::new()) }.boxed()));
        let started = tokio::time::Instant::now();
        let retry = Retry::new(4).with_jitter(|ceiling| ceiling);
        assert!(retry.around(Op::read(OpKind::Stat, VfsPath::ROOT), Next::new(&faulty)).await.is_err());
        assert_eq!(started.elapsed().as_millis(), 50 + 100 + 200);
    }
}
