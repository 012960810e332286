//! The contract by which a sandbox reads and writes the memory documents and tool results of its session.

use super::{MemoScope, TODO};
use crate::info::SessionRef;
use crate::sessions::Sessions;
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_core::error::Result;

/// A memory document as a prompt lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryIndexEntry {
    /// Its name.
    pub name: String,
    /// Its path in a sandbox.
    pub path: String,
    /// Whether it exists.
    pub exists: bool,
    /// The estimate of its tokens, by its size.
    pub size_tokens_approx: u64,
    /// When it was last written, in milliseconds since 1970.
    pub updated_at: Option<i64>,
    /// The summary that the document states.
    pub summary: Option<String>,
}

/// The memory documents and tool results of sessions, for a sandbox.
#[async_trait]
pub trait SandboxMemoProvider: Send + Sync {
    /// Returns a document, see [`Sessions::read_memory_document`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn read_memory_document(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str) -> Result<Option<String>>;

    /// Replaces a document, see [`Sessions::write_memory_document`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn write_memory_document(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str, content: &str) -> Result<()>;

    /// Appends to a document, see [`Sessions::append_memory_document`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn append_memory_document(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str, content: &str) -> Result<()>;

    /// Returns a tool's result, see [`Sessions::read_tool_result`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn read_tool_result_artifact(&self, session: &SessionRef, tool_call_id: &str) -> Result<Option<String>>;

    /// Stores a tool's result, see [`Sessions::write_tool_result`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn write_tool_result_artifact(&self, session: &SessionRef, tool_call_id: &str, content: &str) -> Result<()>;

    /// Lists the tool calls whose results are kept, see [`Sessions::list_tool_result_ids`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn list_tool_result_artifact_ids(&self, session: &SessionRef) -> Result<Vec<String>>;
}

#[async_trait]
impl SandboxMemoProvider for Sessions {
    async fn read_memory_document(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str) -> Result<Option<String>> {
        Sessions::read_memory_document(self, tenant, owner, scope, name).await
    }

    async fn write_memory_document(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str, content: &str) -> Result<()> {
        Sessions::write_memory_document(self, tenant, owner, scope, name, content).await
    }

    async fn append_memory_document(&self, tenant: &str, owner: &str, scope: MemoScope, name: &str, content: &str) -> Result<()> {
        Sessions::append_memory_document(self, tenant, owner, scope, name, content).await
    }

    async fn read_tool_result_artifact(&self, session: &SessionRef, tool_call_id: &str) -> Result<Option<String>> {
        self.read_tool_result(session, tool_call_id).await
    }

    async fn write_tool_result_artifact(&self, session: &SessionRef, tool_call_id: &str, content: &str) -> Result<()> {
        self.write_tool_result(session, tool_call_id, content).await
    }

    async fn list_tool_result_artifact_ids(&self, session: &SessionRef) -> Result<Vec<String>> {
        self.list_tool_result_ids(session).await
    }
}

/// The tasks of one session.
#[derive(Debug, Clone)]
pub struct TodoStorage {
    sessions: Sessions,
    session: SessionRef,
}

impl TodoStorage {
    /// Returns the tasks; `None` before they are written.
    ///
    /// # Errors
    /// As [`Sessions::read_memory_document`].
    pub async fn read(&self) -> Result<Option<String>> {
        let (tenant, session) = (self.session.tenant(), self.session.session());
        self.sessions.read_memory_document(tenant, session, MemoScope::Session, TODO).await
    }

    /// Replaces the tasks.
    ///
    /// # Errors
    /// As [`Sessions::write_memory_document`].
    pub async fn write(&self, content: &str) -> Result<()> {
        let (tenant, session) = (self.session.tenant(), self.session.session());
        self.sessions.write_memory_document(tenant, session, MemoScope::Session, TODO, content).await
    }
}

impl Sessions {
    /// Returns a separate storage for the tasks of a session.
    pub fn todo_storage(&self, session: SessionRef) -> TodoStorage {
        TodoStorage { sessions: self.clone(), session }
    }
}
