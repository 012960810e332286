//! How a workspace opens sessions.

use super::Session;
use crate::live::LiveThread;
use crate::workspace::Workspace;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::scope::Scope;

impl Workspace {
    /// Opens a session. The scope must name a thread.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a scope without a thread or without a field that a mount needs, and the
    /// errors of opening the mounts.
    pub async fn session(&self, scope: Scope) -> Result<Session> {
        Session::open(self, self.live(&scope)?, scope)
    }

    /// Opens a session whose state is not shared with other sessions of the thread until it is saved.
    pub(super) async fn session_apart(&self, scope: Scope) -> Result<Session> {
        Session::open(self, self.live_apart(&scope)?, scope)
    }
}

impl Session {
    fn open(workspace: &Workspace, thread: Arc<LiveThread>, scope: Scope) -> Result<Self> {
        let (tree, reach) = workspace.reviewer(&scope, &thread)?;
        Ok(Self {
            scope,
            thread,
            backend: tree.tree().clone(),
            tree,
            reach,
            open: workspace.threads().clone(),
            audit: workspace.audit_log().cloned(),
            feed: workspace.feed().cloned(),
            memory: Arc::default(),
            workspace: workspace.clone(),
        })
    }
}
