//! A backend on the tree of another server, through the HTTP API below `/v1`.
//!
//! Every operation is one round trip on pooled connections; a batch is sent as a whole. Requests and answers use the
//! types of [`wire`](treehold_core::wire), so errors arrive complete: kind, message, path, lines, versions and what took
//! effect.
//!
//! - Reads are retried if the server was unreachable or busy. So are batches, with one idempotency key for all
//!   attempts: if an answer was lost, the server repeats the answer, not the batch.
//! - Network failures are `unavailable`, name the peer, and say whether a change may have taken effect.
//! - Answers are untrusted input: bounded and validated before use. An answer may name only requested paths, in order;
//!   its cursors must advance, and its ranges must lie within their texts. A 200 without a valid answer is an error,
//!   not an empty tree.
//! - The token never appears in messages or logs.
//!
//! [`PeerClient`] is the client of one server, for any of its routes, and sends its requests over a [`Transport`].
//!
//! `address` parses the URL, `transport` describes what sends one request, `network` does so over the network, `public_only` limits it to
//! public addresses, `client` sends and retries, `stream` follows server-sent events, `check` validates answers, `question` asks one thing
//! of a tree, `page` combines several answers, `tree` implements the operations, and `events` follows the change feed. `dial` connects to
//! a server that calls back over that connection, and `tunnel` holds the connections of machines that dialled this process. `embeddings`
//! asks a model for vectors, for search by meaning.

mod address;
mod check;
mod client;
mod dial;
mod embeddings;
mod events;
mod network;
mod page;
mod public_only;
mod question;
mod stream;
mod transport;
mod tree;
mod tunnel;

use self::address::Address;
use self::question::RemoteTree;
use async_trait::async_trait;
use futures::stream::BoxStream;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{Capabilities, Review, Sight};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::{Backend, Subtree};
use treehold_tree::forward_backend;

pub use client::{Answer, Ask, PeerClient, RefusedStatus};
pub use dial::{CONNECT, TUNNEL_PROTOCOL, dial};
pub use embeddings::{EmbeddingsClient, EmbeddingsOptions};
pub use http::{HeaderMap, Method, StatusCode};
pub use stream::{ServerEvent, StreamNews};
pub use transport::{Failure, Transport, TransportError, TransportRequest, TransportResponse};
pub use tunnel::{Reservation, TunnelCounts, TunnelEnd, TunnelOptions, Tunnels};

/// The most bytes of an answer, unless a caller sets another bound.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Options for connecting to another server.
#[derive(Clone)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// The token for `Authorization: Bearer`; never shown.
    token: Option<String>,
    /// The thread on the remote server. Default: the server's own choice.
    pub thread: Option<String>,
    /// The actor recorded in the remote server's change history.
    pub actor: Option<String>,
    /// The time limit for connecting. Default 5 s.
    pub connect_timeout: Duration,
    /// The time limit for one attempt, including its answer. Default 60 s.
    pub timeout: Duration,
    /// The most attempts of a request that is safe to repeat. Default 4.
    pub attempts_max: usize,
    /// The most bytes of an answer other than file content. Default 64 MiB. File content is bounded by the read's own
    /// limit.
    pub answer_bytes_max: u64,
    /// Whether to allow `http` to other hosts, which sends content and token unencrypted. Default false.
    pub plain_http: bool,
    /// How long the change feed may be silent before it counts as lost. Default 60 s.
    pub feed_silence_max: Duration,
    /// Whether to connect to public addresses only, past any proxy: for a server whose URL somebody else chose. Default false.
    pub public_only: bool,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            token: None,
            thread: None,
            actor: None,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(60),
            attempts_max: 4,
            answer_bytes_max: ANSWER_BYTES_MAX,
            plain_http: false,
            feed_silence_max: Duration::from_secs(60),
            public_only: false,
        }
    }
}

impl RemoteOptions {
    /// Uses no token, and the thread that the server chooses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the token.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the thread on the remote server.
    #[must_use]
    pub fn with_thread(mut self, thread: impl Into<String>) -> Self {
        self.thread = Some(thread.into());
        self
    }

    /// Sets the actor recorded in the change history.
    #[must_use]
    pub fn with_actor(mut self, actor: impl Into<String>) -> Self {
        self.actor = Some(actor.into());
        self
    }

    /// Sets the time limits for connecting and for one attempt.
    #[must_use]
    pub fn with_timeouts(mut self, connect: Duration, request: Duration) -> Self {
        (self.connect_timeout, self.timeout) = (connect, request);
        self
    }

    /// Sets the most attempts of a request; 0 counts as 1.
    #[must_use]
    pub fn with_attempts_max(mut self, attempts_max: usize) -> Self {
        self.attempts_max = attempts_max.max(1);
        self
    }

    /// Sets the most bytes of an answer other than file content.
    #[must_use]
    pub fn with_answer_bytes_max(mut self, answer_bytes_max: u64) -> Self {
        self.answer_bytes_max = answer_bytes_max;
        self
    }

    /// Sets whether `http` to other hosts is allowed.
    #[must_use]
    pub fn with_plain_http(mut self, plain_http: bool) -> Self {
        self.plain_http = plain_http;
        self
    }

    /// Sets how long the change feed may be silent before it counts as lost.
    #[must_use]
    pub fn with_feed_silence_max(mut self, feed_silence_max: Duration) -> Self {
        self.feed_silence_max = feed_silence_max;
        self
    }

    /// Sets whether to connect to public addresses only: neither to this machine nor to a private network, whatever a name resolves to.
    #[must_use]
    pub fn with_public_only(mut self, public_only: bool) -> Self {
        self.public_only = public_only;
        self
    }
}

impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteOptions")
            .field("token", &self.token.as_ref().map(|_| ".."))
            .field("thread", &self.thread)
            .field("actor", &self.actor)
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("attempts_max", &self.attempts_max)
            .field("answer_bytes_max", &self.answer_bytes_max)
            .field("plain_http", &self.plain_http)
            .field("feed_silence_max", &self.feed_silence_max)
            .field("public_only", &self.public_only)
            .finish()
    }
}

/// The tree of another treehold server, or a directory within it.
///
/// A search guard ([`SearchScope::guard`](treehold_core::ops::SearchScope::guard)) is a function and cannot be sent. So it is
/// applied here: refused paths are dropped, further pages are fetched until the limit is reached, and file counts cover
/// only what is returned.
///
/// The remote tree's capabilities are fetched in the background with the first call, or by [`RemoteBackend::connect`].
/// Until they are known, the backend claims neither atomic batches nor durability.
///
/// Cost: one round trip per operation; more with a guard or for a limit over [`LIMIT_MAX`](treehold_core::wire::LIMIT_MAX).
#[derive(Debug, Clone)]
pub struct RemoteBackend {
    whole: Arc<RemoteTree>,
    base: VfsPathBuf,
    tree: Arc<dyn Backend>,
}

impl RemoteBackend {
    /// Makes the client of a server, given as `https://HOST:PORT` with an optional path of a directory within its tree.
    /// Sends nothing. Blocks for some milliseconds to read the system's root certificates.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a URL that is invalid, contains a user, or uses
    /// `http` to another host without permission, and for a token, thread or actor that does not fit into a header.
    /// [`Unavailable`](treehold_core::error::ErrorKind::Unavailable) if no root certificates can be found.
    pub fn new(url: &str, options: RemoteOptions) -> Result<Self> {
        let address = Address::parse(url, options.plain_http)?;
        Ok(Self::over(PeerClient::at(&address, options)?, address.base))
    }

    /// Shows a directory of the tree of a server that a client reaches.
    pub fn over(client: PeerClient, base: VfsPathBuf) -> Self {
        let whole = Arc::new(RemoteTree::new(client));
        let tree: Arc<dyn Backend> = match base.is_root() {
            true => whole.clone(),
            false => Arc::new(Subtree::new(whole.clone(), base.clone())),
        };
        Self { whole, base, tree }
    }

    /// Checks a URL as [`RemoteBackend::new`] does, without opening anything.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument), as [`RemoteBackend::new`].
    pub fn check_url(url: &str, plain_http: bool) -> Result<()> {
        Address::parse(url, plain_http).map(drop)
    }

    /// Fetches the capabilities of the remote tree, which [`Backend::capabilities`] reports from then on.
    ///
    /// # Errors
    /// Those of any call: [`Unavailable`](treehold_core::error::ErrorKind::Unavailable), [`PermissionDenied`](treehold_core::error::ErrorKind::PermissionDenied).
    pub async fn connect(&self) -> Result<Capabilities> {
        self.whole.ask_capabilities().await
    }

    /// Returns the server's name in messages: scheme, host and port, or the name of the peer.
    pub fn peer(&self) -> &str {
        self.whole.client().name()
    }

    /// Returns the directory of the remote tree that this backend shows.
    pub fn base(&self) -> &VfsPath {
        &self.base
    }

    fn asked(&self) -> &dyn Backend {
        self.whole.ask_capabilities_beside();
        &*self.tree
    }

    /// Follows the changes in the tree, whoever makes them. The stream never ends: a lost connection is reported,
    /// reestablished, and resumed after the last event.
    pub fn changes(&self) -> BoxStream<'static, treehold_tree::backend::TreeNews> {
        events::follow(self.whole.client(), self.base.clone())
    }
}

impl fmt::Display for RemoteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base.is_root() {
            true => write!(f, "Remote({})", self.peer()),
            false => write!(f, "Remote({}{})", self.peer(), self.base),
        }
    }
}

/// Makes the error for an invalid answer. Its content is not repeated, because it may contain anything.
fn no_answer(peer: &str, what: impl fmt::Display) -> Error {
    Error::new(treehold_core::error::ErrorKind::Corrupt, format!("`{peer}` answered with {what}; is it a treehold server of this version?"))
}

#[async_trait]
impl Backend for RemoteBackend {
    fn capabilities(&self) -> Capabilities {
        self.tree.capabilities()
    }

    forward_backend! { self => self.asked(); stat, read, ls, glob, grep, search, apply }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
