//! The two contracts about conversations, with the method names of agent hosts.

use crate::append::AppendOptions;
use crate::compact::{CompactOptions, Summarizer};
use crate::info::SessionMeta;
use crate::memo::SandboxMemoProvider;
use crate::message::Message;
use crate::sessions::{SessionHandle, Sessions};
use crate::usage::Usage;
use async_trait::async_trait;
use treehold_core::error::Result;
use treehold_store::StoreExt;

/// The conversations of an agent host. The methods of [`Sessions`] document the contract of each method.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Returns a session, and creates it if it does not exist, see [`Sessions::get_or_create`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn get_or_create(&self, tenant: &str, user: &str, agent: &str, session: Option<&str>) -> Result<SessionHandle>;

    /// Returns the most recent messages, see [`Sessions::load`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_messages(&self, tenant: &str, session: &str, limit: Option<usize>) -> Result<Vec<Message>>;

    /// Returns the messages that a budget allows, see [`Sessions::load_with_budget`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_messages_with_budget(&self, tenant: &str, session: &str, budget_tokens: u64) -> Result<Vec<Message>>;

    /// Returns the window, see [`Sessions::load_all`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_all_messages(&self, tenant: &str, session: &str) -> Result<Vec<Message>>;

    /// Appends messages, see [`Sessions::append`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn append_messages(&self, tenant: &str, session: &str, messages: &[Message]) -> Result<()>;

    /// Records a turn, see [`Sessions::record_turn`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn record_turn(&self, tenant: &str, session: &str, usage: &Usage) -> Result<()>;

    /// Compacts the window if it is long enough, see [`Sessions::compact_if_needed`]. Returns whether it did.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn compact_if_needed(&self, tenant: &str, session: &str, summarizer: &dyn Summarizer, options: &CompactOptions) -> Result<bool>;

    /// Checks that the store answers.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn ping(&self) -> Result<()>;

    /// Returns the memory documents and tool results, if the store keeps them. A host without them offers no tools for
    /// notes and tasks, and mounts nothing at `/workspace/memo`.
    fn memo(&self) -> Option<&dyn SandboxMemoProvider>;
}

/// The sessions of a user.
#[async_trait]
pub trait UserSessionLister: Send + Sync {
    /// Lists all sessions of a user, newest first.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn list_sessions_by_user(&self, tenant: &str, user: &str) -> Result<Vec<SessionMeta>>;
}

#[async_trait]
impl SessionStore for Sessions {
    async fn get_or_create(&self, tenant: &str, user: &str, agent: &str, session: Option<&str>) -> Result<SessionHandle> {
        Sessions::get_or_create(self, tenant, user, agent, session).await
    }

    async fn load_messages(&self, tenant: &str, session: &str, limit: Option<usize>) -> Result<Vec<Message>> {
        self.load(tenant, session, limit).await
    }

    async fn load_messages_with_budget(&self, tenant: &str, session: &str, budget_tokens: u64) -> Result<Vec<Message>> {
        self.load_with_budget(tenant, session, budget_tokens).await
    }

    async fn load_all_messages(&self, tenant: &str, session: &str) -> Result<Vec<Message>> {
        self.load_all(tenant, session).await
    }

    async fn append_messages(&self, tenant: &str, session: &str, messages: &[Message]) -> Result<()> {
        self.append(tenant, session, messages, &AppendOptions::new()).await.map(drop)
    }

    async fn record_turn(&self, tenant: &str, session: &str, usage: &Usage) -> Result<()> {
        Sessions::record_turn(self, tenant, session, usage).await.map(drop)
    }

    async fn compact_if_needed(&self, tenant: &str, session: &str, summarizer: &dyn Summarizer, options: &CompactOptions) -> Result<bool> {
        Ok(Sessions::compact_if_needed(self, tenant, session, summarizer, options).await?.is_some())
    }

    async fn ping(&self) -> Result<()> {
        self.store.ping().await
    }

    fn memo(&self) -> Option<&dyn SandboxMemoProvider> {
        Some(self)
    }
}

#[async_trait]
impl UserSessionLister for Sessions {
    async fn list_sessions_by_user(&self, tenant: &str, user: &str) -> Result<Vec<SessionMeta>> {
        self.list_all(tenant, user).await
    }
}
