//! Injected failures, for testing the code around a tree.

use super::{Layer, LayerName, Next, Reply, random};
use async_trait::async_trait;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Op;

/// Fails, delays or hangs chosen calls, before or after their effect, deterministically.
///
/// A test sweeps `n` over every call of a scenario and checks the result: the old content or the new, never a mixture.
///
/// ```
/// use treehold_tree::layer::{Fault, Layered};
/// use treehold_core::ErrorKind;
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let tree = Layered::new(Fault::nth(0).after_effect(), StateBackend::new());
/// assert_eq!(tree.write("/a.md", "one").await.unwrap_err().kind(), ErrorKind::Unavailable);
/// assert_eq!(tree.read_text("/a.md").await?, "one");
/// assert_eq!(tree.layer().calls(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Fault {
    trigger: Trigger,
    action: Action,
    after_effect: bool,
    stated: bool,
    changes_only: bool,
    calls: AtomicU64,
    faults: AtomicU64,
}

/// Which of the counted calls fail.
#[derive(Debug, Clone, Copy)]
enum Trigger {
    Never,
    Nth(u64),
    FromNth(u64),
    Random { seed: u64, probability: f64 },
}

/// What happens to them.
#[derive(Debug, Clone, Copy)]
enum Action {
    Fail(ErrorKind),
    Delay(Duration),
    Hang,
}

impl Fault {
    /// Fails no call, and counts them.
    pub fn never() -> Self {
        Self::when(Trigger::Never)
    }

    /// Fails only call `n`, from 0.
    pub fn nth(n: u64) -> Self {
        Self::when(Trigger::Nth(n))
    }

    /// Fails every call from `n` on, from 0.
    pub fn from_nth(n: u64) -> Self {
        Self::when(Trigger::FromNth(n))
    }

    /// Fails calls at random with this probability (0 to 1). A seed always fails the same call numbers.
    pub fn random(seed: u64, probability: f64) -> Self {
        Self::when(Trigger::Random { seed, probability })
    }

    fn when(trigger: Trigger) -> Self {
        Self {
            trigger,
            action: Action::Fail(ErrorKind::Unavailable),
            after_effect: false,
            stated: false,
            changes_only: false,
            calls: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        }
    }

    /// Sets the kind of the failure; `unavailable` by default.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.action = Action::Fail(kind);
        self
    }

    /// Delays the calls instead of failing them, on tokio's clock.
    #[must_use]
    pub fn delaying(mut self, delay: Duration) -> Self {
        self.action = Action::Delay(delay);
        self
    }

    /// Makes the calls hang instead of failing them.
    #[must_use]
    pub fn hanging(mut self) -> Self {
        self.action = Action::Hang;
        self
    }

    /// Fails after the call took effect, so that its answer is lost. By default it fails before.
    #[must_use]
    pub fn after_effect(mut self) -> Self {
        self.after_effect = true;
        self
    }

    /// Marks errors before the effect as without effect ([`Error::without_effect`]).
    #[must_use]
    pub fn stated(mut self) -> Self {
        self.stated = true;
        self
    }

    /// Counts and fails changes only.
    #[must_use]
    pub fn on_changes(mut self) -> Self {
        self.changes_only = true;
        self
    }

    /// Returns the number of counted calls.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of failed calls.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Counts a call. Returns its number if it must fail.
    fn struck(&self, op: &Op<'_>) -> Option<u64> {
        if self.changes_only && !op.kind.writes() {
            return None;
        }
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let strikes = match self.trigger {
            Trigger::Never => false,
            Trigger::Nth(n) => number == n,
            Trigger::FromNth(n) => number >= n,
            Trigger::Random { seed, probability } => random::fraction(seed, number) < probability,
        };
        strikes.then(|| {
            self.faults.fetch_add(1, Ordering::Relaxed);
            number
        })
    }

    async fn act(&self, op: &Op<'_>, number: u64) -> Result<()> {
        match self.action {
            Action::Fail(kind) => {
                let moment = if self.after_effect { "after" } else { "before" };
                let message = format!("call {number} was made to fail {moment} its effect");
                let error = Error::new(kind, message).at(op.path).during(op.kind);
                Err(if self.stated && !self.after_effect { error.without_effect() } else { error })
            }
            Action::Delay(delay) => {
                tokio::time::sleep(delay).await;
                Ok(())
            }
            Action::Hang => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Layer for Fault {
    fn name(&self) -> LayerName {
        LayerName::new("Fault")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        let Some(number) = self.struck(&op) else {
            return next.run().await;
        };
        if self.after_effect {
            let reply = next.run().await?;
            self.act(&op, number).await?;
            return Ok(reply);
        }
        self.act(&op, number).await?;
        next.run().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use treehold_core::ops::{Change, Changed, OpKind};
    use treehold_core::path::{VfsPath, VfsPathBuf};

    async fn call(fault: &Fault, op: Op<'_>) -> Result<Vec<Changed>> {
        fault.around(op, Next::new(&|| async { Ok(Vec::new()) }.boxed())).await
    }

    async fn failed(fault: &Fault, calls: usize) -> Vec<usize> {
        let mut failed = Vec::new();
        for number in 0..calls {
            if call(fault, Op::read(OpKind::Stat, VfsPath::ROOT)).await.is_err() {
                failed.push(number);
            }
        }
        failed
    }

    #[tokio::test]
    async fn fault_fails_the_chosen_calls() {
        assert_eq!(failed(&Fault::never(), 4).await, [] as [usize; 0]);
        assert_eq!(failed(&Fault::nth(2), 4).await, [2]);
        assert_eq!(failed(&Fault::from_nth(2), 4).await, [2, 3]);
        let drawn = failed(&Fault::random(11, 0.5), 200).await;
        assert!((50..150).contains(&drawn.len()), "{}", drawn.len());
        assert_eq!(drawn, failed(&Fault::random(11, 0.5), 200).await);
        assert_eq!(failed(&Fault::random(11, 1.0), 3).await, [0, 1, 2]);
        assert_eq!(failed(&Fault::random(11, 0.0), 3).await, [] as [usize; 0]);
    }

    #[tokio::test]
    async fn on_changes_counts_only_changes() {
        let fault = Fault::nth(0).on_changes();
        let changes = [Change::CreateDir { path: VfsPathBuf::parse("/d").expect("a legal path") }];
        assert!(call(&fault, Op::read(OpKind::Stat, VfsPath::ROOT)).await.is_ok());
        assert!(call(&fault, Op::apply(&changes)).await.is_err());
        assert_eq!((fault.calls(), fault.faults()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn fault_can_delay_or_hang() {
        let started = tokio::time::Instant::now();
        assert!(call(&Fault::nth(0).delaying(Duration::from_secs(3)), Op::read(OpKind::Stat, VfsPath::ROOT)).await.is_ok());
        assert_eq!(started.elapsed(), Duration::from_secs(3));
        let fault = Fault::nth(0).hanging();
        let hung = call(&fault, Op::read(OpKind::Stat, VfsPath::ROOT));
        assert!(tokio::time::timeout(Duration::from_secs(3600), hung).await.is_err());
    }
}
