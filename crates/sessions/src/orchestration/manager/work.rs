//! Runs agents: one task for each agent that has input.

use super::{Delivery, Inner, OrchestrationManager, State, Step, find_agent};
use crate::orchestration::event::{AgentJob, AgentStatus, EventKind, InputRemoval, JobOutcome};
use crate::orchestration::snapshot::Agent;
use serde_json::Map;
use std::sync::{Arc, Weak};
use treehold_core::error::Result;

impl OrchestrationManager {
    pub(super) async fn attach(&self, state: &mut State, agent: &Agent) {
        if let Err(error) = self.0.runtime.attach(agent).await {
            tracing::warn!(%error, agent = agent.id, "an agent cannot be attached; its inputs wait");
            state.unattached.insert(agent.id.clone());
        }
    }

    /// Starts the task of an agent, if the agent has input and no task yet.
    pub(super) fn work(&self, state: &mut State, agent: &str) {
        let has_input = state.snapshot.queued_inputs.iter().any(|input| input.agent_id == agent);
        if has_input && !state.unattached.contains(agent) && state.working.insert(agent.to_owned()) {
            tokio::spawn(work_on(Arc::downgrade(&self.0), agent.to_owned()));
        }
    }

    /// Delivers the first queued input to an agent. Returns whether another may follow.
    async fn work_once(&self, agent: &str) -> Result<bool> {
        let mut state = self.0.state.lock().await;
        let Some(input) = state.snapshot.queued_inputs.iter().find(|input| input.agent_id == agent).cloned() else {
            state.working.remove(agent);
            return Ok(false);
        };
        let found = find_agent(&state.snapshot, agent)?.clone();
        let (job_id, input_ids) = (self.0.ids.next(), vec![input.id.clone()]);
        let kinds = vec![
            EventKind::AgentStatusChanged { agent_id: agent.to_owned(), status: AgentStatus::Running },
            EventKind::AgentJobStarted { agent_id: agent.to_owned(), job_id: job_id.clone(), input_ids: input_ids.clone() },
        ];
        self.record(&mut state, Step { run_id: found.run_id.clone(), kinds, ..Step::default() }).await?;
        drop(state);
        let delivery = self.0.runtime.deliver(&found, &input).await.unwrap_or_else(|error| Delivery::failed(error.to_string()));
        let mut state = self.0.state.lock().await;
        let is_closing = !state.snapshot.takes_input(agent);
        let mut mailbox = state.mailboxes.get(agent).cloned().unwrap_or_default();
        mailbox.pass(&input.id);
        let Delivery { outcome, output_text, error } = delivery;
        let is_done = outcome == JobOutcome::Completed;
        let job = AgentJob { job_id, input_ids, outcome, output_text, error, more: Map::new() };
        let agent_id = agent.to_owned();
        let ended = match is_done {
            true => EventKind::AgentJobCompleted { agent_id, job },
            false => EventKind::AgentJobFailed { agent_id, job },
        };
        let removed = EventKind::AgentInputRemoved { input_id: input.id, agent_id: agent.to_owned(), reason: InputRemoval::Delivered };
        let mut kinds = vec![ended, removed];
        if !is_closing {
            kinds.push(EventKind::AgentStatusChanged { agent_id: agent.to_owned(), status: AgentStatus::Idle });
        }
        let step = Step { run_id: found.run_id, kinds, mail: Vec::new(), counted: vec![(agent.to_owned(), mailbox)] };
        self.record(&mut state, step).await?;
        if is_closing {
            state.working.remove(agent);
            self.finish_close(&mut state, agent, None).await?;
        }
        Ok(!is_closing)
    }
}

/// Delivers inputs to an agent until none is queued. If a commit fails, the task ends; the next input or a restart starts
/// another.
async fn work_on(manager: Weak<Inner>, agent: String) {
    loop {
        let Some(manager) = manager.upgrade().map(OrchestrationManager) else { return };
        match manager.work_once(&agent).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%error, agent, "an agent stops working; its inputs wait");
                manager.0.state.lock().await.working.remove(&agent);
                return;
            }
        }
    }
}
