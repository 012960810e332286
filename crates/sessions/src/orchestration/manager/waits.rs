//! Waits for agents: registration, resolution and deadlines.

use super::{OrchestrationManager, State, Step, find_agent};
use crate::orchestration::event::{AgentStatus, EventKind, WaitKind, WaitMatch, WaitRegistration};
use crate::orchestration::snapshot::{SnapshotFields, Wait, WaitStatus};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};

impl OrchestrationManager {
    /// Waits for agents and returns the outcome as `{status, match, resolvedAgentIds, pendingAgentIds, job?}`. Another call
    /// with the same id joins the same wait. A wait survives a restart: call again with its id to get the outcome.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown agent, [`InvalidArgument`](ErrorKind::InvalidArgument) for a
    /// deadline that cannot be parsed, [`Conflict`](ErrorKind::Conflict) once another manager took over, and those of the
    /// persistence.
    pub async fn wait(&self, wait: WaitRegistration) -> Result<Value> {
        let mut changes = self.0.changes.subscribe();
        let id = wait.id.clone();
        {
            let mut state = self.0.state.lock().await;
            if !state.snapshot.waits.contains_key(&id) {
                if let Some(time) = &wait.timeout_at {
                    parse_time(time)?;
                }
                let run_id = find_agent(&state.snapshot, &wait.agent_id)?.run_id.clone();
                for agent in wait.agent_ids.iter().flatten() {
                    find_agent(&state.snapshot, agent)?;
                }
                self.record_one(&mut state, &run_id, EventKind::WaitRegistered { wait }).await?;
                self.settle_waits(&mut state).await?;
                self.time_out(&state.snapshot.waits[&id]);
            }
        }
        loop {
            {
                let state = self.0.state.lock().await;
                if let Some(wait) = state.snapshot.waits.get(&id).filter(|wait| wait.status != WaitStatus::Pending) {
                    return Ok(wait.resolution.clone().unwrap_or(Value::Null));
                }
                self.check_has_not_ended(&state)?;
            }
            let gone = |_| Error::new(ErrorKind::Internal, "the manager of the orchestration was dropped");
            changes.changed().await.map_err(gone)?;
        }
    }

    /// Resolves a wait at its deadline, if it is still pending then.
    pub(super) fn time_out(&self, wait: &Wait) {
        let Some(Ok(at)) = wait.timeout_at.as_deref().map(parse_time) else { return };
        let left = Duration::try_from(at.duration_since(self.0.clock.now())).unwrap_or_default();
        let (manager, id) = (Arc::downgrade(&self.0), wait.id.clone());
        tokio::spawn(async move {
            tokio::time::sleep(left).await;
            let Some(manager) = manager.upgrade().map(Self) else { return };
            let mut state = manager.0.state.lock().await;
            if let Some(wait) = state.snapshot.waits.get(&id).filter(|wait| wait.status == WaitStatus::Pending) {
                let (run_id, resolution) = (wait.run_id.clone(), Some(resolution(&state.snapshot, wait, "timed_out")));
                if let Err(error) = manager.record_one(&mut state, &run_id, EventKind::WaitResolved { wait_id: id, resolution }).await {
                    tracing::warn!(%error, "a wait could not be ended");
                }
            }
        });
    }

    /// Resolves the waits whose condition holds.
    pub(super) async fn settle_waits(&self, state: &mut State) -> Result<()> {
        let over = state.snapshot.waits.values().filter(|wait| wait.status == WaitStatus::Pending && is_over(&state.snapshot, wait));
        let over: Vec<_> = over.map(|wait| (wait.run_id.clone(), wait.id.clone(), resolution(&state.snapshot, wait, "resolved"))).collect();
        for (run_id, wait_id, resolution) in over {
            let resolution = Some(resolution);
            self.commit(state, Step { run_id, kinds: vec![EventKind::WaitResolved { wait_id, resolution }], ..Step::default() }).await?;
        }
        Ok(())
    }
}

fn parse_time(time: &str) -> Result<jiff::Timestamp> {
    let bad = |error| Error::invalid_argument(format!("`{time}` is not a time such as `2026-11-23T04:05:06Z`")).with_source(error);
    time.parse().map_err(bad)
}

/// Returns whether an agent meets the condition of a wait. An unknown agent does.
fn fulfils(state: &SnapshotFields, wait: &Wait, agent: &str) -> bool {
    let Some(found) = state.agents.get(agent) else { return true };
    let is_closed = found.status == AgentStatus::Closed;
    match wait.kind {
        WaitKind::AgentIdle => {
            let has_input = state.queued_inputs.iter().any(|input| input.agent_id == agent);
            is_closed || (found.status == AgentStatus::Idle && !has_input)
        }
        WaitKind::AgentClosed => is_closed,
        WaitKind::Other(_) => false,
    }
}

fn is_over(state: &SnapshotFields, wait: &Wait) -> bool {
    let mut agents = wait.agents().into_iter().map(|agent| fulfils(state, wait, agent));
    match wait.matching.unwrap_or_default() {
        WaitMatch::Any => agents.any(|fulfilled| fulfilled),
        WaitMatch::All => agents.all(|fulfilled| fulfilled),
    }
}

fn resolution(state: &SnapshotFields, wait: &Wait, status: &str) -> Value {
    let (resolved, pending): (Vec<&str>, Vec<&str>) = wait.agents().into_iter().partition(|agent| fulfils(state, wait, agent));
    let job = resolved.first().and_then(|agent| state.agents.get(*agent)).and_then(|agent| agent.last_job.as_ref());
    let mut resolution = json!({
        "status": status, "match": wait.matching.unwrap_or_default(), "resolvedAgentIds": resolved, "pendingAgentIds": pending,
    });
    if let (Some(job), Value::Object(fields)) = (job, &mut resolution) {
        fields.insert("job".to_owned(), json!(job));
    }
    resolution
}
