//! Side writes: traces and orchestration that must not stop an agent when the store fails.
//!
//! The stores of this crate return their errors. [`SideWrites`] wraps them for hosts: it logs and counts a failed write, and
//! the agent continues. Orchestration is needed to recover from a crash, so its writes may be made strict: then a failed one
//! is an error.

use crate::contract::SessionStore;
use crate::orchestration::{
    Claim, MailboxEvent, MailboxState, OrchestrationCommit, OrchestrationEvent, OrchestrationPersistence, RecoveredState, Snapshot,
};
use crate::trace::{Envelope, SessionTraceStore};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::ops::Version;

/// Wraps stores of traces and orchestrations, and counts their failed writes.
#[derive(Debug, Default)]
pub struct SideWrites {
    is_strict: bool,
    trace: Failures,
    orchestration: Failures,
}

/// The failed writes of one kind.
#[derive(Debug, Default)]
struct Failures {
    count: AtomicU64,
    /// The error of the newest write, if it failed.
    last: Mutex<Option<String>>,
}

impl Failures {
    /// Counts a failed write. Returns the result.
    fn note<T>(&self, what: &str, result: Result<T>) -> Result<T> {
        *self.last.lock() = result.as_ref().err().map(ToString::to_string);
        if let Err(error) = &result {
            self.count.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "a write of the {what} failed");
        }
        result
    }

    fn check(&self, name: &str) -> ReadyCheck {
        let error = self.last.lock().clone();
        let count = self.count.load(Ordering::Relaxed);
        ReadyCheck::new(name, error.map(|error| format!("{count} writes failed, the last with: {error}")))
    }
}

impl SideWrites {
    /// Swallows failed writes of the trace and of the orchestration.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Swallows failed writes of the trace alone.
    pub fn strict() -> Arc<Self> {
        Arc::new(Self { is_strict: true, ..Self::default() })
    }

    /// Returns how many writes of traces failed.
    pub fn failed_trace_writes(&self) -> u64 {
        self.trace.count.load(Ordering::Relaxed)
    }

    /// Returns how many writes of orchestrations failed.
    pub fn failed_orchestration_writes(&self) -> u64 {
        self.orchestration.count.load(Ordering::Relaxed)
    }

    /// Wraps a trace. Its writes do not fail.
    pub fn trace(self: &Arc<Self>, inner: impl SessionTraceStore + 'static) -> SideTrace {
        SideTrace { inner: Arc::new(inner), side: self.clone() }
    }

    /// Wraps an orchestration. Its writes do not fail, unless writes are strict.
    pub fn orchestration(self: &Arc<Self>, inner: impl OrchestrationPersistence + 'static) -> SideOrchestration {
        SideOrchestration { inner: Arc::new(inner), side: self.clone() }
    }

    /// Returns whether a host is ready: whether its store answers and, with strict writes, whether the newest write of an
    /// orchestration succeeded. Failed writes are shown in any case.
    pub async fn readiness(&self, store: &dyn SessionStore) -> Readiness {
        let store = ReadyCheck::new("session_store", store.ping().await.err().map(|error| error.to_string()));
        let orchestration = self.orchestration.check("orchestration_writes");
        let is_ready = store.is_ok() && (orchestration.is_ok() || !self.is_strict);
        let status = if is_ready { ReadyStatus::Ready } else { ReadyStatus::NotReady };
        Readiness { status, checks: vec![store, self.trace.check("trace_writes"), orchestration] }
    }

    fn settle(&self, result: Result<()>) -> Result<()> {
        // Nothing failed: another manager took over, and this one must stop.
        if matches!(&result, Err(error) if error.kind() == ErrorKind::Conflict) {
            return result;
        }
        let result = self.orchestration.note("orchestration", result);
        if self.is_strict { result } else { Ok(()) }
    }
}

/// Whether a host is ready: its answer to `GET /ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// Whether the host accepts requests.
    pub status: ReadyStatus,
    /// The checks, each with its result.
    pub checks: Vec<ReadyCheck>,
}

/// Whether a host accepts requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyStatus {
    /// The host accepts requests.
    Ready,
    /// The host cannot serve requests.
    NotReady,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyCheck {
    /// Its name.
    pub name: String,
    /// Its result.
    pub status: CheckStatus,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ReadyCheck {
    fn new(name: &str, error: Option<String>) -> Self {
        let status = if error.is_none() { CheckStatus::Ok } else { CheckStatus::Fail };
        Self { name: name.to_owned(), status, error }
    }

    fn is_ok(&self) -> bool {
        self.status == CheckStatus::Ok
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// It passed.
    Ok,
    /// It failed.
    Fail,
}

/// A trace whose failed writes are counted and swallowed.
pub struct SideTrace {
    inner: Arc<dyn SessionTraceStore>,
    side: Arc<SideWrites>,
}

#[async_trait]
impl SessionTraceStore for SideTrace {
    async fn append_envelope(&self, envelope: &Envelope) -> Result<Option<Version>> {
        let appended = self.inner.append_envelope(envelope).await;
        Ok(self.side.trace.note("trace", appended).unwrap_or_default())
    }

    async fn load_envelopes(&self) -> Result<Vec<Envelope>> {
        self.inner.load_envelopes().await
    }
}

/// An orchestration whose failed writes are counted, and swallowed unless writes are strict.
pub struct SideOrchestration {
    inner: Arc<dyn OrchestrationPersistence>,
    side: Arc<SideWrites>,
}

#[async_trait]
impl OrchestrationPersistence for SideOrchestration {
    async fn append_event(&self, event: &OrchestrationEvent) -> Result<()> {
        self.side.settle(self.inner.append_event(event).await)
    }

    async fn load_events(&self) -> Result<Vec<OrchestrationEvent>> {
        self.inner.load_events().await
    }

    async fn load_snapshot(&self) -> Result<Option<Snapshot>> {
        self.inner.load_snapshot().await
    }

    async fn write_checkpoint(&self, snapshot: &Snapshot) -> Result<()> {
        self.side.settle(self.inner.write_checkpoint(snapshot).await)
    }

    async fn recover_state(&self) -> Result<RecoveredState> {
        self.inner.recover_state().await
    }

    async fn append_mailbox_event(&self, agent: &str, event: &MailboxEvent) -> Result<()> {
        self.side.settle(self.inner.append_mailbox_event(agent, event).await)
    }

    async fn load_mailbox_events(&self, agent: &str) -> Result<Vec<MailboxEvent>> {
        self.inner.load_mailbox_events(agent).await
    }

    async fn load_mailbox_state(&self, agent: &str) -> Result<MailboxState> {
        self.inner.load_mailbox_state(agent).await
    }

    async fn write_mailbox_state(&self, agent: &str, state: &MailboxState) -> Result<()> {
        self.side.settle(self.inner.write_mailbox_state(agent, state).await)
    }

    async fn load_agent_history(&self, agent: &str) -> Result<Vec<Json>> {
        self.inner.load_agent_history(agent).await
    }

    async fn write_agent_history(&self, agent: &str, history: &[Json]) -> Result<()> {
        self.side.settle(self.inner.write_agent_history(agent, history).await)
    }

    async fn commit(&self, commit: &OrchestrationCommit) -> Result<()> {
        self.side.settle(self.inner.commit(commit).await)
    }

    /// Never swallows an error: without a claim, two managers could run the same agents.
    async fn claim(&self, holder: &str, lease: Duration) -> Result<Claim> {
        self.inner.claim(holder, lease).await
    }

    async fn renew(&self, claim: Claim, holder: &str, lease: Duration) -> Result<()> {
        self.side.settle(self.inner.renew(claim, holder, lease).await)
    }

    async fn release(&self, claim: Claim) -> Result<()> {
        self.side.settle(self.inner.release(claim).await)
    }
}
