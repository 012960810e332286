//! An orderly end: no new calls, running calls stop at their next safe point, and at a limit at the latest.

use super::gate::TurnRefusal;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use treehold_core::error::{Error, ErrorKind, Result};

/// How far a shutdown is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ShutdownState {
    /// Calls are accepted.
    #[default]
    Running,
    /// No call is accepted. Those that run stop at their next safe point.
    ShuttingDown,
    /// No call runs any more.
    Terminated,
}

impl fmt::Display for ShutdownState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::ShuttingDown => "shutting down",
            Self::Terminated => "terminated",
        })
    }
}

/// Shuts the agents of a process down. Give all of them a clone of one.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use treehold_agent_state::call::{Shutdown, ShutdownState};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let shutdown = Shutdown::new();
/// assert!(shutdown.begin(Some(Duration::ZERO)).is_err());
/// shutdown.begin(Some(Duration::from_secs(30)))?;
/// assert!(shutdown.terminated(None).await);
/// assert_eq!(shutdown.state(), ShutdownState::Terminated);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Shutdown(Arc<watch::Sender<Phase>>);

#[derive(Debug, Clone, Copy, Default)]
struct Phase {
    state: ShutdownState,
    is_forced: bool,
    calls: usize,
}

impl Phase {
    fn end_if_idle(&mut self) {
        if self.state == ShutdownState::ShuttingDown && self.calls == 0 {
            self.state = ShutdownState::Terminated;
        }
    }
}

impl Shutdown {
    /// Accepts calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how far the shutdown is.
    pub fn state(&self) -> ShutdownState {
        self.0.borrow().state
    }

    /// Returns how many calls run, those included that are being saved.
    pub fn calls(&self) -> usize {
        self.0.borrow().calls
    }

    /// Begins the shutdown. From now on calls are refused, those that wait for their turn included, and those that run stop at their next
    /// safe point. After `limit` they are stopped wherever they are; without a limit they have for ever. A call that is stopped saves its
    /// state with a mark, so that another process can go on with it.
    ///
    /// A second call changes nothing. Must be called within a tokio runtime if there is a limit.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a limit of zero.
    pub fn begin(&self, limit: Option<Duration>) -> Result<()> {
        if limit.is_some_and(|limit| limit.is_zero()) {
            return Err(Error::invalid_argument("the limit of a shutdown is zero; choose a longer one, or none to wait for ever"));
        }
        let has_begun = self.0.send_if_modified(|phase| {
            let begins = phase.state == ShutdownState::Running;
            if begins {
                phase.state = ShutdownState::ShuttingDown;
                phase.end_if_idle();
            }
            begins
        });
        if let Some(limit) = limit.filter(|_| has_begun) {
            let phase = self.0.clone();
            let mut ended = phase.subscribe();
            tokio::spawn(async move {
                tokio::select! {
                    _ = ended.wait_for(|phase| phase.state == ShutdownState::Terminated) => {}
                    () = tokio::time::sleep(limit) => {
                        tracing::warn!(calls = phase.borrow().calls, "the limit of the shutdown has passed; the calls that run are stopped");
                        phase.send_modify(|phase| phase.is_forced = true);
                    }
                }
            });
        }
        Ok(())
    }

    /// Waits until no call runs any more, for at most `limit`, and returns whether that is so.
    pub async fn terminated(&self, limit: Option<Duration>) -> bool {
        let mut phase = self.0.subscribe();
        let ended = async { phase.wait_for(|phase| phase.state == ShutdownState::Terminated).await.is_ok() };
        match limit {
            Some(limit) => tokio::time::timeout(limit, ended).await.unwrap_or(false),
            None => ended.await,
        }
    }

    /// Returns whether the shutdown has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.state() != ShutdownState::Running
    }

    /// Waits until the shutdown begins.
    pub(super) async fn begun(&self) {
        self.wait_for(|phase| phase.state != ShutdownState::Running).await;
    }

    /// Waits until calls are to be stopped wherever they are.
    pub(super) async fn forced(&self) {
        self.wait_for(|phase| phase.is_forced).await;
    }

    async fn wait_for(&self, is_met: impl FnMut(&Phase) -> bool) {
        // The sender is borrowed, so the channel stays open.
        let _ = self.0.subscribe().wait_for(is_met).await;
    }

    /// Counts a call, or refuses it.
    pub(super) fn enter(&self) -> Result<ActiveCall> {
        let mut is_accepted = false;
        self.0.send_if_modified(|phase| {
            is_accepted = phase.state == ShutdownState::Running;
            phase.calls += usize::from(is_accepted);
            false
        });
        if is_accepted { Ok(ActiveCall(self.clone())) } else { Err(shutting_down().without_effect()) }
    }
}

/// A call that counts until it is dropped.
#[derive(Debug)]
pub(super) struct ActiveCall(Shutdown);

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.0.0.send_modify(|phase| {
            phase.calls -= 1;
            phase.end_if_idle();
        });
    }
}

/// Makes the error for a call that a shutdown refuses or stops.
pub(super) fn shutting_down() -> Error {
    let message = "this process shuts down; repeat the call in another process, or here after the restart";
    Error::new(ErrorKind::Unavailable, message).with_source(TurnRefusal::ShuttingDown)
}
