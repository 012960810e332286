//! One workspace, thread table and MCP service for all callers with the same rights.

use super::rights::{Access, ActsFor, Rights};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use treehold_agent::session::Threads;
use treehold_agent::workspace::Workspace;
use treehold_core::error::Result;
use treehold_mcp::{HttpLimits, HttpService, McpOptions, McpServer, McpTools};

/// The most doors to keep. Beyond it, some door is dropped and created again when needed.
const DOORS_MAX: usize = 1_000;

/// The doors by rights.
pub(super) struct Doors {
    workspace: Workspace,
    options: McpOptions,
    limits: HttpLimits,
    made: Mutex<HashMap<Rights, Arc<Door>>>,
}

/// The tree as callers with certain rights see it.
pub(super) struct Door {
    pub(super) workspace: Workspace,
    pub(super) mcp: McpServer,
    pub(super) service: HttpService,
    end_streams: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Door {
    /// Returns the threads that are kept open.
    pub(super) fn threads(&self) -> &Arc<Threads> {
        self.mcp.threads()
    }

    fn end_streams(&self) {
        if let Some(end) = self.end_streams.lock().take() {
            end();
        }
    }
}

impl Doors {
    pub(super) fn new(workspace: Workspace, options: McpOptions, limits: HttpLimits) -> Self {
        Self { workspace, options, limits, made: Mutex::default() }
    }

    /// Returns the door for some rights. It ignores their threads, whom they act for and whether they connect, which each request checks on its own.
    pub(super) fn of(&self, rights: &Rights) -> Result<Arc<Door>> {
        let key = Rights { threads: Vec::new(), acts_for: ActsFor::Own, connect_as: None, ..rights.clone() };
        let mut made = self.made.lock();
        if let Some(door) = made.get(&key) {
            return Ok(door.clone());
        }
        let workspace = match key.layer(self.workspace.past().cloned().collect())? {
            Some(layer) => self.workspace.with_layer(layer).restricted_to(&key.paths),
            None => self.workspace.clone(),
        };
        let mut options = self.options.clone();
        options.tools = offered(&key, options.tools);
        let mcp = McpServer::new(workspace.clone(), options);
        let (service, end_streams) = mcp.http_service(self.limits.clone());
        let door = Arc::new(Door { workspace, mcp, service, end_streams: Mutex::new(Some(Box::new(end_streams))) });
        if made.len() >= DOORS_MAX
            && let Some(some) = made.keys().next().cloned()
        {
            // No later request finds the sessions of a dropped door.
            made.remove(&some).inspect(|door| door.end_streams());
        }
        made.insert(key, door.clone());
        Ok(door)
    }

    /// Ends the streams of all doors.
    pub(super) fn end_streams(&self) {
        self.made.lock().values().for_each(|door| door.end_streams());
    }

    /// Saves the threads that are kept open.
    pub(super) async fn close(&self) -> Result<()> {
        let doors: Vec<Arc<Door>> = self.made.lock().values().cloned().collect();
        let mut closed = Ok(());
        for door in doors {
            closed = closed.and(door.mcp.close().await);
        }
        closed
    }
}

/// Returns the offered tools that these rights allow.
fn offered(rights: &Rights, tools: McpTools) -> McpTools {
    match tools {
        McpTools::Default | McpTools::ReadWrite | McpTools::Admin if rights.access == Access::Read => McpTools::ReadOnly,
        McpTools::Admin if rights.access < Access::Admin => McpTools::ReadWrite,
        tools => tools,
    }
}

impl fmt::Debug for Doors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doors").field("workspace", &self.workspace).finish_non_exhaustive()
    }
}
