//! The sessions of clients of the era of handshakes, each with its owner.
//!
//! `rmcp` keeps the sessions, and takes whoever knows the id of one for its owner. Here a session is noted with the tenant, user and
//! credential of its handshake, and [`Sessions::is_of`] is asked before a request reaches `rmcp`. A session ends with the standing of its
//! owner ([`Sessions::end_with`]), whether or not anything comes of it.

use super::caller::{McpCaller, Standing};
use crate::shares::{Share, User};
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

/// How often it is asked whether the owner of a session would still be let in, where nothing tells of a change.
const STANDING_EVERY: Duration = Duration::from_secs(15);

/// Who began a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Owner {
    tenant: Option<String>,
    user: Option<String>,
    credential: Option<String>,
}

impl Owner {
    /// Returns who calls. Where a router does not tell callers apart, all are one.
    pub(super) fn of(caller: Option<&McpCaller>) -> Self {
        let Some(caller) = caller else { return Self::default() };
        Self { tenant: caller.scope.tenant.clone(), user: caller.scope.user.clone(), credential: caller.credential.clone() }
    }

    pub(super) fn user(&self) -> User {
        (self.tenant.clone(), self.user.clone())
    }
}

/// What is noted of a session.
#[derive(Debug)]
struct Begun {
    owner: Owner,
    /// Its place among the sessions of its user.
    _place: Share<User>,
    /// What ends it when its owner would not be let in any more.
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
    /// Who sends the request that is handled, until it has begun a session.
    static BEGINNING: Mutex<Option<Begun>>;
}

/// The sessions of one service, each with its owner.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    local: LocalSessionManager,
    begun: Mutex<HashMap<SessionId, Begun>>,
}

impl Sessions {
    /// Handles a request that may begin a session; a session belongs to the owner, and takes the place until it ends.
    pub(super) async fn begun_by<T>(owner: Owner, place: Share<User>, handle: impl Future<Output = T>) -> T {
        BEGINNING.scope(Mutex::new(Some(Begun { owner, _place: place, ending: None })), handle).await
    }

    /// Ends a session as soon as its owner would not be let in any more.
    pub(super) fn end_with(self: &Arc<Self>, id: &str, standing: Standing) {
        let mut begun = self.begun.lock();
        let Some(session) = begun.get_mut(id) else { return };
        let (sessions, id) = (Arc::downgrade(self), SessionId::from(id));
        let ending = tokio::spawn(async move {
            standing.ends(STANDING_EVERY).await;
            let Some(sessions) = sessions.upgrade() else { return };
            // The end of a session aborts this task.
            tokio::spawn(async move {
                if let Err(error) = sessions.close_session(&id).await {
                    tracing::warn!(%error, "a session whose token ended cannot be closed");
                }
            });
        });
        session.ending = Some(ending.abort_handle());
    }

    /// Tells whether there is a session of this id that belongs to this owner.
    pub(super) fn is_of(&self, id: &str, owner: &Owner) -> bool {
        self.begun.lock().get(id).is_some_and(|begun| begun.owner == *owner)
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let begun = BEGINNING.try_with(|begun| begun.lock().take()).ok().flatten();
        let begun = begun.ok_or_else(|| SessionError::Io(std::io::Error::other("a session begins with a handshake")))?;
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

    // Called by the service for a DELETE, and by the session's own task when it ends for whatever reason.
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
        self.local.resume(id, last_event_id).await
    }
}
