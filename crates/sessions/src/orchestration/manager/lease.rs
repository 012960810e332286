//! Keeps the claim of a manager, and ends the manager when another one takes over.

use super::{Inner, OrchestrationManager, State};
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};

/// How many renewals fall into one lease, so that a lost one does not end it.
const RENEWALS: u32 = 3;

impl OrchestrationManager {
    /// Gives the orchestration up, so that another manager can take over at once. All later calls are
    /// [`Conflict`](ErrorKind::Conflict). The work of agents that are running is not recorded; the next manager delivers
    /// their inputs again.
    ///
    /// # Errors
    /// Those of the persistence. Then the lease ends by itself.
    pub async fn close(&self) -> Result<()> {
        self.end(&mut *self.0.state.lock().await);
        self.0.persistence.release(self.0.claim).await
    }

    /// Renews the lease until the manager is dropped or ends.
    pub(super) fn keep_lease(&self) {
        let (manager, pause) = (Arc::downgrade(&self.0), self.0.lease / RENEWALS);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(manager) = manager.upgrade().map(Self) else { return };
                if manager.0.state.lock().await.has_ended {
                    return;
                }
                let Inner { persistence, claim, holder, lease, .. } = &*manager.0;
                match persistence.renew(*claim, holder, *lease).await {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::Conflict => {
                        tracing::warn!(%error, session = manager.0.session, "a manager of an orchestration ends");
                        manager.end(&mut *manager.0.state.lock().await);
                        return;
                    }
                    Err(error) => tracing::warn!(%error, session = manager.0.session, "a lease could not be renewed"),
                }
            }
        });
    }

    /// Ends the manager: it records nothing more, and pending calls of [`OrchestrationManager::wait`] return.
    pub(super) fn end(&self, state: &mut State) {
        state.has_ended = true;
        self.0.changes.send_modify(|number| *number += 1);
    }

    pub(super) fn check_has_not_ended(&self, state: &State) -> Result<()> {
        if !state.has_ended {
            return Ok(());
        }
        let message = format!("this manager of the orchestration of `{}` has ended; open it again", self.0.session);
        Err(Error::new(ErrorKind::Conflict, message))
    }
}

impl Drop for Inner {
    /// Releases the lease, without waiting for it.
    fn drop(&mut self) {
        if self.state.get_mut().has_ended {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (persistence, claim) = (self.persistence.clone(), self.claim);
            runtime.spawn(async move {
                if let Err(error) = persistence.release(claim).await {
                    tracing::warn!(%error, "a lease could not be released; it ends by itself");
                }
            });
        }
    }
}
