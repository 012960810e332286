//! Asking someone before a call goes on.

use crate::error::Result;
use crate::ops::{Change, OpKind};
use crate::path::VfsPathBuf;
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;

/// Whoever decides what a rule with [`Effect::Ask`](super::Effect::Ask) leaves open: a person behind a door, a policy engine.
///
/// It is asked once per call, before anything of the call happens, and may take its time: a caller that does not wait as long
/// drops the call, or has a [`Timeout`](crate::layer::Timeout) around it.
#[async_trait]
pub trait Approver: Send + Sync + fmt::Debug {
    /// Decides.
    ///
    /// # Errors
    /// Its own, when no decision can be had; the call then fails with it and nothing happens.
    async fn approve(&self, request: &ApprovalRequest<'_>) -> Result<Approval>;
}

#[async_trait]
impl<A: Approver + ?Sized> Approver for Arc<A> {
    async fn approve(&self, request: &ApprovalRequest<'_>) -> Result<Approval> {
        (**self).approve(request).await
    }
}

/// What is to be decided.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ApprovalRequest<'a> {
    /// The call; a batch of several changes is `apply`.
    pub operation: OpKind,
    /// The paths whose rules ask: at most [`ApprovalRequest::PATHS_MAX`] of them.
    pub paths: Vec<VfsPathBuf>,
    /// The whole batch, when it is one.
    pub changes: &'a [Change],
}

impl ApprovalRequest<'_> {
    /// How many paths are named at most.
    pub const PATHS_MAX: usize = 100;
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    /// The call goes on.
    Granted,
    /// The call fails with `permission_denied`.
    Refused {
        /// Why, for the caller to read.
        reason: Option<String>,
    },
}
