//! A backend wrapped around a backend.
//!
//! A layer that observes, delays, refuses or repeats calls is one function, [`Layer::around`]; [`Layered`] turns it into a backend. A layer
//! that changes results, or queries the tree itself, implements [`Backend`] directly: [`Permissions`] hides paths, [`Quota`] counts files,
//! [`VectorRecall`] also finds by meaning.
//!
//! Order matters: the outermost layer is called first. From the outside in, this order suits most trees:
//! `Audit(Permissions(Quota(Timeout(Retry(Limit(tree))))))`. Refused calls are recorded and take no slot among the running calls, one
//! deadline covers all attempts of a call, and a call that waits for its next attempt holds no slot.

use crate::backend::Backend;
use async_trait::async_trait;
use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, Op,
    OpKind, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::VfsPath;

mod audit;
mod fault;
mod limit;
mod permissions;
mod protected;
mod quota;
mod random;
mod read_only;
mod reply;
mod retry;
mod timeout;
mod vector_recall;
mod walk;

pub use audit::{Audit, AuditChange, AuditOutcome, AuditRecord, AuditSink, JsonLinesSink, MemorySink, SinkFailure};
pub use fault::Fault;
pub use limit::Limit;
pub use permissions::{Approval, ApprovalRequest, Approver, Effect, Operations, Permissions, Rule};
pub use protected::{Allowance, Refusal};
pub use protected::{Protected, Protections, RUNS_CODE};
pub use quota::Quiet;
pub use quota::{Quota, QuotaLimits, Usage};
pub use read_only::ReadOnly;
pub use reply::Reply;
pub use retry::Retry;
pub use timeout::Timeout;
pub use vector_recall::{EmbeddedKind, Embedder, VectorCache, VectorRecall};

/// Code around every call of a backend.
///
/// `Display` prints the layer's name and its important settings without the closing bracket, such as `Limit(8`; [`Layered`] appends the
/// inner backend and closes the bracket. Use [`LayerName`] to get it right.
#[async_trait]
pub trait Layer: Send + Sync + fmt::Debug {
    /// Returns the name and settings that `Display` shows.
    fn name(&self) -> LayerName;

    /// Runs the call, or refuses it, or repeats it. The [`Reply`] can be measured, but not changed.
    ///
    /// # Errors
    /// The layer's own, and those of the inner backend.
    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T>;

    /// Refuses changes that bypass [`apply`](Backend::apply) (see [`Backend::review`]). Allows all by default. A layer that decides by
    /// paths also considers [`Review::covers_beneath`].
    ///
    /// # Errors
    /// The layer's own.
    fn review(&self, review: &Review) -> Result<()> {
        let _ = review;
        Ok(())
    }

    /// Adjusts the declared capabilities. Unchanged by default.
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }
}

/// A layer shared by several trees, such as one [`Limit`] for all of them.
#[async_trait]
impl<L: Layer> Layer for Arc<L> {
    fn name(&self) -> LayerName {
        (**self).name()
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        (**self).around(op, next).await
    }

    fn review(&self, review: &Review) -> Result<()> {
        (**self).review(review)
    }

    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        (**self).capabilities(inner)
    }
}

/// How a layer is displayed: `Name(inner)` or `Name(settings, inner)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerName {
    name: &'static str,
    settings: Option<String>,
}

impl LayerName {
    /// Displays the layer as `Name(inner)`.
    pub fn new(name: &'static str) -> Self {
        Self { name, settings: None }
    }

    /// Displays the layer as `Name(settings, inner)`.
    #[must_use]
    pub fn with_settings(mut self, settings: impl fmt::Display) -> Self {
        self.settings = Some(settings.to_string());
        self
    }
}

/// The rest of a call, inside a layer. It may run several times.
pub struct Next<'a, T> {
    run: &'a (dyn Fn() -> BoxFuture<'a, Result<T>> + Send + Sync + 'a),
}

impl<'a, T> Next<'a, T> {
    /// Creates the rest of a call from a function.
    pub fn new(run: &'a (dyn Fn() -> BoxFuture<'a, Result<T>> + Send + Sync + 'a)) -> Self {
        Self { run }
    }

    /// Runs the call.
    ///
    /// # Errors
    /// The errors of the inner backend.
    pub async fn run(&self) -> Result<T> {
        (self.run)().await
    }
}

impl<T> fmt::Debug for Next<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

/// A backend with one layer around it.
#[derive(Debug)]
pub struct Layered<L, B> {
    layer: L,
    inner: B,
}

impl<L: Layer, B: Backend> Layered<L, B> {
    /// Puts a layer around a backend.
    pub fn new(layer: L, inner: B) -> Self {
        Self { layer, inner }
    }

    /// Returns the layer.
    pub fn layer(&self) -> &L {
        &self.layer
    }

    /// Returns the backend inside.
    pub fn inner(&self) -> &B {
        &self.inner
    }
}

impl<L: Layer, B: Backend> fmt::Display for Layered<L, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.layer.name();
        match name.settings {
            Some(settings) => write!(f, "{}({settings}, {})", name.name, self.inner),
            None => write!(f, "{}({})", name.name, self.inner),
        }
    }
}

#[async_trait]
impl<L: Layer, B: Backend> Backend for Layered<L, B> {
    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.inner.capabilities())
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        self.layer.around(Op::read(OpKind::Stat, path), Next::new(&|| self.inner.stat(path, options))).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.layer.around(Op::read(OpKind::Read, path), Next::new(&|| self.inner.read(path, options))).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.layer.around(Op::read(OpKind::Ls, path), Next::new(&|| self.inner.ls(path, options))).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.layer.around(Op::read(OpKind::Glob, path), Next::new(&|| self.inner.glob(path, options))).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.layer.around(Op::read(OpKind::Grep, path), Next::new(&|| self.inner.grep(path, options))).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.layer.around(Op::read(OpKind::Search, path), Next::new(&|| self.inner.search(path, options))).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.layer.around(Op::apply(changes), Next::new(&|| self.inner.apply(changes, options))).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        self.layer.review(review)?;
        self.inner.review(review).await
    }
}
