//! The sessions of clients that use the `initialize` handshake, each with its owner.
//!
//! `rmcp` manages the sessions, but lets anyone who knows a session id use it. So this module records the tenant, user and credential of
//! the handshake, and [`Sessions::is_of`] is checked before a request reaches `rmcp`. A session ends once its owner is no longer authorized
//! ([`Sessions::end_with`]), even if it is idle.

use super::caller::{McpCaller, Standing};
use super::long::LongAnswer;
use futures::Stream;
use parking_lot::Mutex;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, LocalSessionManagerError, SessionError};
use rmcp::transport::streamable_http_server::session::{ServerSseMessage, SessionId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use treehold_core::shares::{Share, User};

/// How often to check whether the owner of a session is still authorized, if no change is notified.
const STANDING_EVERY: Duration = Duration::from_secs(15);

/// The owner of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Owner {
    tenant: Option<String>,
    user: Option<String>,
    credential: Option<String>,
}

impl Owner {
    /// Returns the owner for a caller. If the router does not distinguish callers, all share one owner.
    pub(super) fn of(caller: Option<&McpCaller>) -> Self {
        let Some(caller) = caller else { return Self::default() };
        Self { tenant: caller.scope.tenant.clone(), user: caller.scope.user.clone(), credential: caller.credential.clone() }
    }

    pub(super) fn user(&self) -> User {
        (self.tenant.clone(), self.user.clone())
    }
}

/// The record of a session.
#[derive(Debug)]
struct Begun {
    owner: Owner,
    /// Its slot among the user's sessions.
    _place: Share<User>,
    /// The task that ends it when its owner is no longer authorized.
    ending: Option<AbortHandle>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(ending) = &self.ending {
            ending.abort();
        }
    }
}

tokio::task_local! {
    /// The session to be started by the current request.
    static BEGINNING: Mutex<Option<Begun>>;
}

/// The sessions of one service, each with its owner.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    local: LocalSessionManager,
    begun: Mutex<HashMap<SessionId, Begun>>,
}

impl Sessions {
    /// Handles a request that may start a session. The session belongs to `owner` and holds the slot `place` until it ends.
    pub(super) async fn begun_by<T>(owner: Owner, place: Share<User>, handle: impl Future<Output = T>) -> T {
        BEGINNING.scope(Mutex::new(Some(Begun { owner, _place: place, ending: None })), handle).await
    }

    /// Ends a session as soon as its owner is no longer authorized, or cannot be checked for longer than a check may take.
    pub(super) fn end_with(self: &Arc<Self>, id: &str, standing: Standing) {
        let mut begun = self.begun.lock();
        let Some(session) = begun.get_mut(id) else { return };
        let (sessions, id) = (Arc::downgrade(self), SessionId::from(id));
        let ending = tokio::spawn(async move {
            if let Err(error) = standing.ends(STANDING_EVERY).await {
                tracing::warn!(%error, "ending a session because its token cannot be checked");
            }
            let Some(sessions) = sessions.upgrade() else { return };
            // Closing the session aborts this task, so close it in another one.
            tokio::spawn(async move {
                if let Err(error) = sessions.close_session(&id).await {
                    tracing::warn!(%error, "a session whose token has ended cannot be closed");
                }
            });
        });
        session.ending = Some(ending.abort_handle());
    }

    /// Returns whether the session with this id exists and belongs to this owner.
    pub(super) fn is_of(&self, id: &str, owner: &Owner) -> bool {
        self.begun.lock().get(id).is_some_and(|begun| begun.owner == *owner)
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let begun = BEGINNING.try_with(|begun| begun.lock().take()).ok().flatten();
        let begun = begun.ok_or_else(|| SessionError::Io(std::io::Error::other("a session must begin with a handshake")))?;
        let (id, transport) = self.local.create_session().await?;
        self.begun.lock().insert(id.clone(), begun);
        Ok((id, transport))
    }

    async fn initialize_session(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.local.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.local.has_session(id).await
    }

    // Called by the service for a DELETE, and by the session's own task when it ends for any reason.
    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.begun.lock().remove(id);
        self.local.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.local.resume(id, last_event_id).await.map(LongAnswer::marking)
    }
}
