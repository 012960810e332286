//! Approval of a call before it proceeds.

use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::{Change, OpKind};
use treehold_core::path::VfsPathBuf;

/// Decides calls for which a rule says [`Effect::Ask`](super::Effect::Ask): a person at an entry point, or a policy engine.
///
/// It is asked once per call, before any effect of the call, and may take its time. A caller that cannot wait drops the call, or wraps it
/// in a [`Timeout`](crate::layer::Timeout).
#[async_trait]
pub trait Approver: Send + Sync + fmt::Debug {
    /// Decides a request.
    ///
    /// # Errors
    /// The approver's own, if it cannot decide; the call then fails with that error and has no effect.
    async fn approve(&self, request: &ApprovalRequest<'_>) -> Result<Approval>;
}

#[async_trait]
impl<A: Approver + ?Sized> Approver for Arc<A> {
    async fn approve(&self, request: &ApprovalRequest<'_>) -> Result<Approval> {
        (**self).approve(request).await
    }
}

/// A request for approval.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ApprovalRequest<'a> {
    /// The operation; a batch of several changes is `apply`.
    pub operation: OpKind,
    /// The paths that need approval: at most [`ApprovalRequest::PATHS_MAX`] of them.
    pub paths: Vec<VfsPathBuf>,
    /// The whole batch, if the call is one.
    pub changes: &'a [Change],
}

impl ApprovalRequest<'_> {
    /// The largest number of paths in a request.
    pub const PATHS_MAX: usize = 100;
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    /// The call proceeds.
    Granted,
    /// The call fails with `permission_denied`.
    Refused {
        /// The reason, for the caller to read.
        reason: Option<String>,
    },
}
