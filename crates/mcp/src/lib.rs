//! The Model Context Protocol (MCP): serves the tools of [`tools`](treehold_agent::tools) to MCP clients.
//!
//! [`McpServer`] serves any number of connections in one process. It supports every revision of the protocol from 2024-11-05 to
//! [2026-07-28](https://modelcontextprotocol.io/specification/2026-07-28), which `rmcp` negotiates. The protocol has no conversations, so a
//! call names its thread with the argument `thread_id`, or the connection has a fixed one ([`McpCaller`]).
//!
//! The following holds for every tool:
//!
//! - An error that a model can act on is a result with `isError`, whose text starts with the stable code: `error [not_found]: ...`.
//!   Protocol errors are reserved for what no tool is responsible for, such as a tool that is not offered.
//! - Results are text only. Clients that also receive structured content show that to the model instead, and a file reads badly as JSON.
//!   Programs find the data in `_meta`.
//! - A thread is saved before the response, as the command line does, so every acknowledged change is on record.
//!
//! The tree is also available as resources (`vfs:///path`): mounts with templates, files, directories and skills. Clients are notified of
//! changes to the resources that they subscribed to.
//!
//! Where to start reading: `connection.rs` has the protocol's methods, one line each; [`Threads`] finds and saves the thread of a
//! call.

mod answer;
mod call;
mod caller;
mod connection;
mod consent;
#[cfg(feature = "conformance")]
mod fixtures;
mod history;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod long;
mod media;
mod offer;
mod oversized;
mod profile;
mod progress;
mod prompts;
mod reference;
mod resources;
#[cfg(feature = "http")]
mod sessions;
#[cfg(feature = "http")]
mod single;
mod skills;
mod stdio;
mod subscriptions;
mod uri;
mod watches;

pub use caller::McpCaller;
#[cfg(feature = "http")]
pub use caller::{REMEMBERED_FOR, Standing};
pub use consent::Consents;
#[cfg(feature = "http")]
pub use http::{HttpLimits, HttpService};
pub use profile::McpTools;
#[cfg(feature = "http")]
pub use single::check_single;
#[cfg(feature = "http")]
pub use stdio::refusal;

use connection::Connection;
use offer::Offer;
use reference::Reference;
use std::fmt;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use treehold_agent::session::{Session, Threads};
use treehold_agent::workspace::Workspace;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Entry, EntryKind, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_core::shares::{Shares, User};

/// Which tools a server offers, and to whom.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct McpOptions {
    /// The scope of callers that the transport does not identify. Its thread is the default of calls that name none.
    pub scope: Scope,
    /// Whether the tools take the argument `thread_id`. Default false.
    pub thread_argument: bool,
    /// Which tools to offer.
    pub tools: McpTools,
    /// The directories that the tools of the reference server may access, or empty for the whole tree. Other tools ignore this.
    pub allowed: Vec<VfsPathBuf>,
    /// The consents that several servers share.
    pub consents: Option<Arc<Consents>>,
    /// The session and subscription slots of each user, if several servers share them.
    pub(crate) pools: Arc<Pools>,
    /// Whether to offer the fixtures of the protocol's conformance suites.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    pub fixtures: bool,
}

impl McpOptions {
    /// Offers the default tools to one caller.
    pub fn new(scope: Scope) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Sets whether the tools take the argument `thread_id`, which is worth its tokens if the tree has threads.
    #[must_use]
    pub fn with_thread_argument(mut self, thread_argument: bool) -> Self {
        self.thread_argument = thread_argument;
        self
    }

    /// Sets which tools to offer.
    #[must_use]
    pub fn with_tools(mut self, tools: McpTools) -> Self {
        self.tools = tools;
        self
    }

    /// Sets whether to offer the fixtures of the protocol's conformance suites.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_fixtures(mut self, fixtures: bool) -> Self {
        self.fixtures = fixtures;
        self
    }

    /// Sets the directories that the tools of the reference server may access.
    #[must_use]
    pub fn with_allowed(mut self, allowed: impl IntoIterator<Item = VfsPathBuf>) -> Self {
        self.allowed = allowed.into_iter().collect();
        self
    }
}

/// What each user holds of a server's limited resources.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    #[cfg(feature = "http")]
    sessions: Arc<Shares<User>>,
    subscriptions: Arc<Shares<User>>,
}

/// A tree served over MCP. Clones share the open threads.
///
/// ```no_run
/// use treehold_mcp::{McpOptions, McpServer};
/// use treehold_agent::workspace::Workspace;
/// use treehold_core::Scope;
///
/// # async fn serve() -> treehold_core::Result<()> {
/// let scope = Scope::new().with_thread("monday");
/// McpServer::new(Workspace::builder().build(), McpOptions::new(scope)).serve_stdio(std::future::pending()).await
/// # }
/// ```
#[derive(Clone)]
pub struct McpServer(Arc<Offered>);

/// The state that all connections of a server share.
struct Offered {
    options: McpOptions,
    offers: Vec<Offer>,
    reference: Reference,
    instructions: String,
    /// The mounts that callers may know about, the root first.
    mounts: Vec<VfsPathBuf>,
    threads: Arc<Threads>,
    consents: Arc<Consents>,
    #[cfg(feature = "conformance")]
    fixtures: Option<fixtures::Fixtures>,
}

impl Offered {
    /// Returns whether any offered tool makes changes.
    fn may_write(&self) -> bool {
        self.offers.iter().any(|offer| offer.tool.annotations.as_ref().is_none_or(|hints| hints.read_only_hint != Some(true)))
    }
}

impl McpServer {
    /// Creates the server without accepting connections.
    pub fn new(workspace: Workspace, options: McpOptions) -> Self {
        let offers = offer::all(options.tools, workspace.tools(), options.thread_argument);
        let reference = Reference::new(&options.allowed, workspace.shown());
        let mut mounts = vec![VfsPathBuf::root()];
        mounts.extend(workspace.visible_mounts().filter(|mount| !mount.is_root()).map(ToOwned::to_owned));
        let instructions = instructions(&mounts);
        Self(Arc::new(Offered {
            #[cfg(feature = "conformance")]
            fixtures: options.fixtures.then(fixtures::Fixtures::new),
            consents: options.consents.clone().unwrap_or_else(|| Arc::new(Consents::new())),
            options,
            offers,
            reference,
            instructions,
            mounts,
            threads: Arc::new(Threads::new(workspace)),
        }))
    }

    /// Checks that the directories in [`McpOptions::allowed`] exist in the tree of the options' scope, which is the only tree that is served
    /// over standard input and output.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a missing directory, and errors of opening the tree.
    pub async fn check(&self) -> Result<()> {
        self.check_each(|_, _| true).await
    }

    /// Checks as [`McpServer::check`] does, but only directories that every thread of the options' user shares. A server whose requests name
    /// their threads cannot know the others when it starts: a directory that a thread lacks is missing in each call.
    ///
    /// # Errors
    /// As [`McpServer::check`].
    pub async fn check_shared(&self) -> Result<()> {
        self.check_each(|session, path| !session.is_state(path)).await
    }

    async fn check_each(&self, is_checked: impl Fn(&Session, &VfsPath) -> bool) -> Result<()> {
        let Offered { options, threads, .. } = &*self.0;
        for path in &options.allowed {
            let session = threads.session(&options.scope).await?;
            if !is_checked(&session, path) {
                continue;
            }
            let tree = session.backend();
            let is_missing = match tree.stat(path, &StatOptions::new()).await {
                Ok(Entry { kind: EntryKind::Symlink, leads_to, .. }) => match leads_to {
                    Some(target) => !tree.stat(&target, &StatOptions::new()).await.is_ok_and(|entry| entry.is_directory()),
                    None => true,
                },
                Ok(entry) => !entry.is_directory(),
                Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
            };
            if is_missing {
                let message = format!(
                    "`{path}` is not a directory of the tree; create it first (`treehold mkdir {path}`), or allow one that `treehold ls \
                        /` shows"
                );
                return Err(Error::invalid_argument(message).at(path));
            }
        }
        Ok(())
    }

    /// Serves one connection on standard input and output until the client closes it or `stop` completes, then saves the threads.
    ///
    /// # Errors
    /// [`Unavailable`](treehold_core::error::ErrorKind::Unavailable) if the connection breaks before it is established, and errors of saving threads.
    pub async fn serve_stdio(&self, stop: impl Future<Output = ()>) -> Result<()> {
        let served = tokio::select! {
            served = stdio::serve(self.connection()) => served,
            () = stop => Ok(()),
        };
        self.close().await.and(served)
    }

    /// Serves one connection like [`McpServer::serve_stdio`], over any two streams of bytes, such as those of a socket or of a pipe within
    /// the process.
    ///
    /// # Errors
    /// As [`McpServer::serve_stdio`].
    pub async fn serve_over(
        &self,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        let served = tokio::select! {
            served = stdio::serve_over(self.connection(), input, output) => served,
            () = stop => Ok(()),
        };
        self.close().await.and(served)
    }

    /// Saves the threads that are kept open.
    ///
    /// # Errors
    /// Errors of [`Session::save`](treehold_agent::session::Session::save). The first failure is returned after all threads were tried.
    pub async fn close(&self) -> Result<()> {
        self.0.threads.close().await
    }

    /// Returns the threads that are kept open.
    #[cfg(feature = "http")]
    pub fn threads(&self) -> &Arc<Threads> {
        &self.0.threads
    }

    fn connection(&self) -> Connection {
        Connection::new(self.0.clone())
    }
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServer").field("options", &self.0.options).finish_non_exhaustive()
    }
}

/// Describes the tree to a model in a few words, since they are part of every conversation.
fn instructions(mounts: &[VfsPathBuf]) -> String {
    let mounts: Vec<String> = mounts.iter().filter(|mount| !mount.is_root()).map(|mount| format!("`{mount}`")).collect();
    let mut text = "One file tree; every path is absolute. `/` holds this conversation's own files".to_owned();
    if !mounts.is_empty() {
        text.push_str(&format!("; mounted in it: {}", mounts.join(", ")));
    }
    text.push_str(". A truncated answer says how to continue.");
    text
}
