//! Rounds at regular intervals.

use super::claim::{Claim, HELD_FOR};
use super::{Retention, RetentionReport};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use treehold_core::error::Result;
use treehold_store::SweepCount;

/// The longest pause before the first round.
const FIRST_AFTER: Duration = Duration::from_secs(60);

/// A round of a [`RetentionSweeper`] that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Round {
    /// What it removed.
    pub report: RetentionReport,
    /// The number of pages that it gave back to the file system.
    pub pages: u64,
    /// How long it took.
    pub took: Duration,
    /// Whether it looked at everything.
    pub is_complete: bool,
}

/// Runs a [`Retention`] at regular intervals, until it is dropped or stopped.
///
/// A running round is given up then: each of its commits is complete in itself. Only [`RetentionSweeper::stop`] lets another process
/// continue at once; after a drop, none looks for up to two minutes.
///
/// Of several processes, one at a time works on a store, and the next round begins only after the pause, whichever process ran the last.
/// A failed round is logged, and the next one tries again.
///
/// Cost: one commit per round while another process does the work.
#[derive(Debug)]
pub struct RetentionSweeper {
    task: JoinHandle<()>,
    stopping: watch::Sender<bool>,
}

impl RetentionSweeper {
    /// Starts a task on the current runtime. `tell` receives each round that has ended. The first round is after the pause, at most a minute.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start(retention: Retention, every: Duration, tell: Arc<dyn Fn(&Round) + Send + Sync>) -> Self {
        let (stopping, stopped) = watch::channel(false);
        Self { task: tokio::spawn(sweep_on(retention, every, tell, stopped)), stopping }
    }

    /// Gives up a running round and its claim, and waits for that for at most `limit`.
    pub async fn stop(mut self, limit: Duration) {
        self.stopping.send_replace(true);
        if tokio::time::timeout(limit, &mut self.task).await.is_err() {
            tracing::warn!(
                "the removal of what is no longer kept did not stop in time; after a restart, it begins up to two minutes later"
            );
        }
    }
}

impl Drop for RetentionSweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits until the sweeper is stopped.
async fn ended(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
}

async fn sweep_on(retention: Retention, every: Duration, tell: Arc<dyn Fn(&Round) + Send + Sync>, mut stopped: watch::Receiver<bool>) {
    let mut pause = every.min(FIRST_AFTER);
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = ended(&mut stopped) => return,
        }
        pause = every;
        let began = Instant::now();
        let mut round = Round { report: RetentionReport::default(), pages: 0, took: Duration::ZERO, is_complete: false };
        match claimed(&retention, every, &mut round, &mut stopped).await {
            // Another process does the work, or has ended while it did, or this sweeper is stopped.
            Ok(false) => {
                pause = every.min(HELD_FOR);
                continue;
            }
            Ok(true) => {}
            Err(error) => {
                tracing::warn!(store = %retention.store, %error, "removing what is no longer kept failed; retrying in the next round")
            }
        }
        round.took = began.elapsed();
        let RetentionReport { checkpoints, calls, contents, .. } = &round.report;
        if checkpoints + calls + contents > 0 {
            tracing::info!(store = %retention.store, checkpoints, calls, contents, took = ?round.took, "removed what is no longer kept");
        }
        tell(&round);
    }
}

/// Runs one round under a claim. Returns false if another process has it, or if the sweeper is stopped meanwhile.
async fn claimed(retention: &Retention, every: Duration, round: &mut Round, stopped: &mut watch::Receiver<bool>) -> Result<bool> {
    let Some(mut claim) = Claim::take(&*retention.store).await? else { return Ok(false) };
    let done = tokio::select! {
        done = once(retention, round) => done,
        kept = claim.keep() => {
            tracing::warn!(store = %retention.store, "another process took over the removal of what is no longer kept");
            return kept.map(|()| true);
        }
        () = ended(stopped) => {
            return claim.release().await.map(|()| false);
        }
    };
    // Shorter than the pause, so that this process finds it ended after its next pause.
    claim.rest(every - every / 10).await?;
    done.map(|()| true)
}

async fn once(retention: &Retention, round: &mut Round) -> Result<()> {
    retention.run(false, &mut round.report).await?;
    let pages = SweepCount::new();
    let shrunk = retention.shrink(&pages).await;
    round.pages = pages.get();
    shrunk?;
    round.is_complete = true;
    Ok(())
}
