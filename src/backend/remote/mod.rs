//! The tree of another server as a backend: a client of what [`serve`](https://docs.rs/stratafs) offers beneath `/v1`.
//!
//! Every operation is one round trip on a pool of connections, a batch goes as a whole. What is asked and answered are the words
//! of [`wire`](crate::wire), so errors come as the far side had them: kind, message, path, lines, versions, and what took effect.
//!
//! - A read is repeated when the far side could not be reached or was busy. A batch is repeated too, under one idempotency key for all
//!   attempts: one whose answer was lost is answered again, and not done again.
//! - A failure of the network is `unavailable`, names the peer, and says whether a change may have had an effect.
//! - What the far side sends is input: it is held to a bound and checked before anything reads it. An answer names the paths that were
//!   asked about and no others, in order; its cursors go on, its ranges lie in their texts, and a 200 that is no answer is an error
//!   and not an empty tree.
//! - The token stands in no message and in no log.
//!
//! `address` takes the URL apart, `client` sends and repeats, `check` checks answers, `tree` is the operations, `page` goes on where
//! one answer is not enough, and `events` follows what changes over there.

mod address;
mod check;
mod client;
mod events;
mod page;
mod tree;

use self::address::Address;
use self::client::Far;
use super::{Backend, Subtree};
use crate::error::{Error, Result};
use crate::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use crate::path::{VfsPath, VfsPathBuf};
use async_trait::async_trait;
use futures::stream::BoxStream;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How another server is spoken to.
#[derive(Clone)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// What the far side asks for as `Authorization: Bearer`. Shown nowhere.
    token: Option<String>,
    /// The thread over there. Default: the far side's own.
    pub thread: Option<String>,
    /// Who acts, for the far side's history of changes.
    pub actor: Option<String>,
    /// How long to wait for a connection. Default 5 s.
    pub connect_timeout: Duration,
    /// How long one attempt may take, its answer included. Default 60 s.
    pub timeout: Duration,
    /// How often a request is sent at most, where that is safe. Default 4.
    pub attempts_max: usize,
    /// The most bytes of an answer that is no content of a file. Default 64 MiB; content is bounded by what a read asks for.
    pub answer_bytes_max: u64,
    /// Allows `http` to other hosts than this one. Default false: content and token would go in the clear.
    pub plain_http: bool,
    /// How long the feed of changes may be silent before it counts as lost. Default 60 s.
    pub feed_silence_max: Duration,
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
            answer_bytes_max: 64 << 20,
            plain_http: false,
            feed_silence_max: Duration::from_secs(60),
        }
    }
}

impl RemoteOptions {
    /// Speaks without a token, about the thread that the far side chooses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the token.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the thread over there.
    #[must_use]
    pub fn with_thread(mut self, thread: impl Into<String>) -> Self {
        self.thread = Some(thread.into());
        self
    }

    /// Sets who acts.
    #[must_use]
    pub fn with_actor(mut self, actor: impl Into<String>) -> Self {
        self.actor = Some(actor.into());
        self
    }

    /// Sets how long to wait for a connection, and how long one attempt may take.
    #[must_use]
    pub fn with_timeouts(mut self, connect: Duration, request: Duration) -> Self {
        (self.connect_timeout, self.timeout) = (connect, request);
        self
    }

    /// Sets how often a request is sent at most; 0 counts as 1.
    #[must_use]
    pub fn with_attempts_max(mut self, attempts_max: usize) -> Self {
        self.attempts_max = attempts_max.max(1);
        self
    }

    /// Sets the most bytes of an answer that is no content of a file.
    #[must_use]
    pub fn with_answer_bytes_max(mut self, answer_bytes_max: u64) -> Self {
        self.answer_bytes_max = answer_bytes_max;
        self
    }

    /// Allows `http` to other hosts than this one.
    #[must_use]
    pub fn with_plain_http(mut self, plain_http: bool) -> Self {
        self.plain_http = plain_http;
        self
    }

    /// Sets how long the feed of changes may be silent.
    #[must_use]
    pub fn with_feed_silence_max(mut self, feed_silence_max: Duration) -> Self {
        self.feed_silence_max = feed_silence_max;
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
            .finish()
    }
}

/// The tree of another stratafs server, or a directory of it.
///
/// A guard of a search ([`SearchScope::guard`](crate::ops::SearchScope::guard)) is a function and cannot be sent: what it refuses is
/// left out of what comes back, pages are fetched on until the limit is filled, and counts of files are of those returned.
///
/// What the far tree declares is asked for with the first call, beside it, or by [`RemoteBackend::connect`]; until the answer is
/// there, batches do not count as atomic and changes as kept by nothing.
///
/// Cost: one round trip an operation; more only with a guard, or for a limit over [`LIMIT_MAX`](crate::wire::LIMIT_MAX).
#[derive(Debug, Clone)]
pub struct RemoteBackend {
    far: Arc<Far>,
    base: VfsPathBuf,
    tree: Arc<dyn Backend>,
}

impl RemoteBackend {
    /// Makes the client of a server: `https://HOST:PORT`, with the path of a directory of its tree to stand on that. Nothing is
    /// sent yet. The roots that the system trusts are read, which blocks for some milliseconds.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a URL that is none, that names a user, or that is `http` to another
    /// host where that is not allowed; for a token, thread or actor that fits in no header;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) without root certificates.
    pub fn new(url: &str, options: RemoteOptions) -> Result<Self> {
        let address = Address::parse(url, options.plain_http)?;
        let base = address.base.clone();
        let far = Arc::new(Far::new(address, options)?);
        let tree: Arc<dyn Backend> = match base.is_root() {
            true => far.clone(),
            false => Arc::new(Subtree::new(far.clone(), base.clone())),
        };
        Ok(Self { far, base, tree })
    }

    /// Checks a URL without opening anything: all that [`RemoteBackend::new`] refuses of it.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument), as [`RemoteBackend::new`].
    pub fn check_url(url: &str, plain_http: bool) -> Result<()> {
        Address::parse(url, plain_http).map(drop)
    }

    /// Asks the far side what its tree declares, which [`Backend::capabilities`] then says.
    ///
    /// # Errors
    /// Those of any call: [`Unavailable`](crate::ErrorKind::Unavailable), [`PermissionDenied`](crate::ErrorKind::PermissionDenied).
    pub async fn connect(&self) -> Result<Capabilities> {
        self.far.ask_capabilities().await
    }

    /// Returns the server as messages name it: scheme, host and port.
    pub fn peer(&self) -> &str {
        self.far.peer()
    }

    /// Returns where in the far tree this one stands.
    pub fn base(&self) -> &VfsPath {
        &self.base
    }

    fn asked(&self) -> &dyn Backend {
        self.far.ask_capabilities_beside();
        &*self.tree
    }

    /// Follows what changes in the tree, whoever changes it. The stream has no end: a lost connection is told and made again, and
    /// goes on after the last event that came.
    pub fn changes(&self) -> BoxStream<'static, super::TreeNews> {
        events::follow(self.far.clone(), self.base.clone())
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

/// Makes the error of an answer that is none: what came is not repeated, it may hold anything.
fn no_answer(peer: &str, what: impl fmt::Display) -> Error {
    Error::new(crate::ErrorKind::Corrupt, format!("`{peer}` answered with {what}; is it a stratafs server of this version?"))
}

#[async_trait]
impl Backend for RemoteBackend {
    fn capabilities(&self) -> Capabilities {
        self.tree.capabilities()
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.asked().stat(path).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.asked().read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.asked().ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.asked().glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.asked().grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.asked().search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.asked().apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
