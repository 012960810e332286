//! The door for clients of the Model Context Protocol (MCP): the tools of [`tools`](crate::tools), offered as the protocol asks for.
//!
//! [`McpServer`] is what one process offers, to any number of connections; it answers every revision of the protocol from
//! 2024-11-05 to [2026-07-28](https://modelcontextprotocol.io/specification/2026-07-28), which `rmcp` tells apart. The protocol knows
//! no conversations, so a call names its thread: by the argument `thread_id`, or the connection has one ([`McpCaller`]).
//!
//! What holds for every tool:
//!
//! - An error that a model can act on is a result with `isError`, whose text starts with the stable code: `error [not_found]: ...`.
//!   A protocol error is left for what no tool is responsible for, such as a tool that is not offered.
//! - Answers are text alone: clients that are given data too show a model the data, and a file reads badly as JSON. The data
//!   stands in `_meta` for programs.
//! - A thread is saved before the answer, as the command line does it, so what is told is on record.
//!
//! The same tree is offered as resources too (`vfs:///path`): mounts with templates, files, directories, skills, and what was
//! subscribed to is told of when it changed.
//!
//! Where to start reading: `connection.rs` is the protocol's methods, one line each; `session/threads.rs` finds and saves what a call is about.

mod answer;
mod call;
mod caller;
mod connection;
mod consent;
#[cfg(feature = "conformance")]
mod fixtures;
mod history;
#[cfg(feature = "serve")]
mod http;
mod media;
mod offer;
mod oversized;
mod profile;
mod progress;
mod prompts;
mod reference;
mod resources;
#[cfg(feature = "serve")]
mod sessions;
mod skills;
mod stdio;
mod subscriptions;
mod uri;
mod watches;

pub use caller::McpCaller;
#[cfg(feature = "serve")]
pub(crate) use caller::{REMEMBERED_FOR, Standing};
pub(crate) use consent::Consents;
#[cfg(feature = "serve")]
pub(crate) use http::names_one_host;
#[cfg(feature = "serve")]
pub use http::{HttpLimits, HttpService};
pub use profile::McpTools;

use crate::error::{Error, ErrorKind, Result};
use crate::ops::{Entry, EntryKind};
use crate::path::VfsPathBuf;
use crate::scope::Scope;
use crate::session::Threads;
use crate::shares::{Shares, User};
use crate::workspace::Workspace;
use connection::Connection;
use offer::Offer;
use reference::Reference;
use std::fmt;
use std::sync::Arc;

/// What a server offers, and to whom.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct McpOptions {
    /// Who calls when nothing else says so. Its thread is that of calls which name none.
    pub scope: Scope,
    /// Whether the tools take the argument `thread_id`. Default false.
    pub thread_argument: bool,
    /// Which tools are offered.
    pub tools: McpTools,
    /// The directories that the tools of the reference server reach; all of the tree when none is named. The others do not ask this.
    pub allowed: Vec<VfsPathBuf>,
    /// What is asked of people, and answered, where servers share it.
    pub(crate) consents: Option<Arc<Consents>>,
    /// What each user holds of sessions and subscriptions, where servers share it.
    pub(crate) pools: Arc<Pools>,
    /// Whether the fixtures of the protocol's conformance suites are offered too.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    pub fixtures: bool,
}

impl McpOptions {
    /// Offers the default tools to one caller.
    pub fn new(scope: Scope) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Sets whether the tools take the argument `thread_id`: worth its tokens where the tree has threads.
    #[must_use]
    pub fn with_thread_argument(mut self, thread_argument: bool) -> Self {
        self.thread_argument = thread_argument;
        self
    }

    /// Sets which tools are offered.
    #[must_use]
    pub fn with_tools(mut self, tools: McpTools) -> Self {
        self.tools = tools;
        self
    }

    /// Sets whether the fixtures of the protocol's conformance suites are offered too.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_fixtures(mut self, fixtures: bool) -> Self {
        self.fixtures = fixtures;
        self
    }

    /// Sets the directories that the tools of the reference server reach.
    #[must_use]
    pub fn with_allowed(mut self, allowed: impl IntoIterator<Item = VfsPathBuf>) -> Self {
        self.allowed = allowed.into_iter().collect();
        self
    }
}

/// What each user holds of what a server has only so many of.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    #[cfg(feature = "serve")]
    sessions: Arc<Shares<User>>,
    subscriptions: Arc<Shares<User>>,
}

/// A tree offered over MCP. Clones share the open threads.
///
/// ```no_run
/// use treehold::mcp::{McpOptions, McpServer};
/// use treehold::{Scope, Workspace};
///
/// # async fn serve() -> treehold::Result<()> {
/// let scope = Scope::new().with_thread("monday");
/// McpServer::new(Workspace::builder().build(), McpOptions::new(scope)).serve_stdio(std::future::pending()).await
/// # }
/// ```
#[derive(Clone)]
pub struct McpServer(Arc<Offered>);

/// What all connections of a server share.
struct Offered {
    options: McpOptions,
    offers: Vec<Offer>,
    reference: Reference,
    instructions: String,
    /// Where something is mounted that callers may know of, the root first.
    mounts: Vec<VfsPathBuf>,
    threads: Arc<Threads>,
    consents: Arc<Consents>,
    #[cfg(feature = "conformance")]
    fixtures: Option<fixtures::Fixtures>,
}

impl Offered {
    /// Tells whether some tool that is offered changes something.
    fn may_write(&self) -> bool {
        self.offers.iter().any(|offer| offer.tool.annotations.as_ref().is_none_or(|hints| hints.read_only_hint != Some(true)))
    }
}

impl McpServer {
    /// Makes the server; it waits for nobody yet.
    pub fn new(workspace: Workspace, options: McpOptions) -> Self {
        let offers = offer::all(options.tools, options.thread_argument);
        let reference = Reference::new(&options.allowed, workspace.shown());
        let mut mounts = vec![VfsPathBuf::root()];
        mounts.extend(workspace.shown_mounts().filter(|mount| !mount.is_root()).map(ToOwned::to_owned));
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

    /// Looks whether what the options name is there: the directories that the tools of the reference server reach. What lies in the files of
    /// a thread is not looked for where a call may name another thread.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a directory that is not there, and those of opening the tree.
    pub async fn check(&self) -> Result<()> {
        let Offered { options, threads, .. } = &*self.0;
        for path in &options.allowed {
            let tree = threads.session(&options.scope).await?.backend();
            let is_missing = match tree.stat(path).await {
                Ok(Entry { kind: EntryKind::Symlink, leads_to, .. }) => match leads_to {
                    Some(target) => !tree.stat(&target).await.is_ok_and(|entry| entry.is_directory()),
                    None => true,
                },
                Ok(entry) => !entry.is_directory(),
                Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
            };
            if is_missing {
                let message = format!(
                    "`{path}` is no directory of the tree; make it first (`treehold mkdir {path}`), or allow one that `treehold ls /` shows"
                );
                return Err(Error::invalid_argument(message).at(path));
            }
        }
        Ok(())
    }

    /// Serves one connection on standard input and output, until the client closes it or `stop` ends. Threads are saved then.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the connection breaks before it has begun, and those of saving threads.
    pub async fn serve_stdio(&self, stop: impl Future<Output = ()>) -> Result<()> {
        let served = tokio::select! {
            served = stdio::serve(self.connection()) => served,
            () = stop => Ok(()),
        };
        self.close().await.and(served)
    }

    /// Saves the threads that were kept open.
    ///
    /// # Errors
    /// Those of [`Session::save`](crate::Session::save), of the first thread that cannot be saved; the others are.
    pub async fn close(&self) -> Result<()> {
        self.0.threads.close().await
    }

    /// Returns the threads that calls find.
    #[cfg(feature = "serve")]
    pub(crate) fn threads(&self) -> &Arc<Threads> {
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

/// Tells a model what the tree is, in a few words: it reads them with every conversation.
fn instructions(mounts: &[VfsPathBuf]) -> String {
    let mounts: Vec<String> = mounts.iter().filter(|mount| !mount.is_root()).map(|mount| format!("`{mount}`")).collect();
    let mut text = "One file tree; every path is absolute. `/` holds this conversation's own files".to_owned();
    if !mounts.is_empty() {
        text.push_str(&format!("; mounted in it: {}", mounts.join(", ")));
    }
    text.push_str(". An answer that was cut says how to go on.");
    text
}
