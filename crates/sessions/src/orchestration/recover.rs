//! Recovers the state from a checkpoint and a log of events.

use super::event::{AgentStatus, OrchestrationEvent};
use super::snapshot::{Agent, SnapshotFields, Wait, WaitStatus};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use std::borrow::Cow;
use treehold_core::scope::check_id;

/// A recovered orchestration.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RecoveredState {
    /// The state.
    pub snapshot: SnapshotFields,
    /// The unfinished waits; empty once every run has ended.
    pub pending_waits: Vec<Wait>,
    /// The agents that are not closed; empty once every run has ended.
    pub active_agents: Vec<Agent>,
}

/// Recovers the state from the last checkpoint and all events.
///
/// Events after the checkpoint's last one are replayed. A checkpoint whose last event is not in the log does not belong to
/// it, so it is ignored and all events are replayed. Without events the checkpoint alone is the state. Agents with an id that
/// no call takes are left out.
pub fn recover(checkpoint: Option<SnapshotFields>, events: &[OrchestrationEvent]) -> RecoveredState {
    let last = checkpoint.as_ref().and_then(|checkpoint| checkpoint.last_event_id.as_deref());
    let found = last.map(|last| events.iter().rposition(|event| event.event_id == last));
    let (checkpoint, from) = match found {
        None => (checkpoint, 0),
        Some(Some(at)) => (checkpoint, at + 1),
        Some(None) if events.is_empty() => (checkpoint, 0),
        Some(None) => (None, 0),
    };
    replay(checkpoint.unwrap_or_default(), &events[from..])
}

/// Recovers the state from a checkpoint and the events after it.
pub(super) fn replay(mut snapshot: SnapshotFields, events: &[OrchestrationEvent]) -> RecoveredState {
    events.iter().for_each(|event| snapshot.apply(event));
    leave_out_bad_agents(&mut snapshot);
    let is_resumable = snapshot.is_resumable();
    let waits = snapshot.waits.values().filter(|wait| is_resumable && wait.status == WaitStatus::Pending).cloned().collect();
    let agents = snapshot.agents.values().filter(|agent| is_resumable && agent.status != AgentStatus::Closed).cloned().collect();
    RecoveredState { pending_waits: waits, active_agents: agents, snapshot }
}

/// Leaves out agents that cannot have a mailbox, which logs of hosts may name, and their inputs and waits.
fn leave_out_bad_agents(snapshot: &mut SnapshotFields) {
    let is_good = |agent: &str| check_id("agent", agent).is_ok();
    let bad = snapshot.agent_ids().filter(|agent| !is_good(agent)).count();
    if bad == 0 {
        return;
    }
    tracing::warn!(names = bad, "leaving agents out of an orchestration whose ids cannot be used");
    snapshot.agents.retain(|id, agent| is_good(id) && is_good(&agent.id));
    snapshot.queued_inputs.retain(|input| is_good(&input.agent_id));
    snapshot.waits.retain(|_, wait| wait.agent_ids().all(is_good));
}

impl JsonSchema for RecoveredState {
    fn schema_name() -> Cow<'static, str> {
        "RecoveredOrchestration".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "a recovered orchestration",
            "properties": {
                "snapshot": generator.subschema_for::<SnapshotFields>(),
                "pendingWaits": {"type": "array", "items": {"type": "object"}, "description": "the unfinished waits"},
                "activeAgents": {"type": "array", "items": {"type": "object"}, "description": "the agents that are not closed"}
            },
            "required": ["snapshot", "pendingWaits", "activeAgents"]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> OrchestrationEvent {
        OrchestrationEvent::parse(text).expect(text)
    }

    fn events() -> Vec<OrchestrationEvent> {
        vec![
            event(
                r#"{"eventId":"1","occurredAt":"t1","runId":"r","type":"run_started","initialTask":{"id":"k","kind":"chat","input":{}}}"#,
            ),
            event(r#"{"eventId":"2","occurredAt":"t2","runId":"r","type":"agent_spawned","agent":{"id":"a","role":"scout"}}"#),
            event(
                r#"{"eventId":"3","occurredAt":"t3","runId":"r","type":"agent_input_queued","input":{"id":"i","agentId":"a","payload":{}}}"#,
            ),
            event(r#"{"eventId":"4","occurredAt":"t4","runId":"r","type":"agent_status_changed","agentId":"a","status":"running"}"#),
        ]
    }

    #[test]
    fn recovery_from_every_checkpoint_gives_the_same_state() {
        let events = events();
        let whole = recover(None, &events);
        assert_eq!((whole.active_agents.len(), whole.snapshot.queued_inputs.len()), (1, 1));
        for cut in 0..=events.len() {
            let checkpoint = recover(None, &events[..cut]).snapshot;
            assert_eq!(recover(Some(checkpoint), &events), whole, "checkpoint after {cut} events");
        }
    }

    /// A checkpoint whose last event is not in a log does not belong to it. Without any events the checkpoint is all there is.
    #[test]
    fn foreign_checkpoint_is_dropped_and_a_checkpoint_without_events_is_trusted() {
        let mut foreign = recover(None, &events()).snapshot;
        foreign.last_event_id = Some("elsewhere".to_owned());
        foreign.agents.clear();
        assert_eq!(recover(Some(foreign.clone()), &events()), recover(None, &events()));
        assert_eq!(recover(Some(foreign.clone()), &[]).snapshot, foreign);
        assert_eq!(recover(None, &[]), RecoveredState::default());
    }

    /// A log of a host, or one that was written before ids were checked, may name agents that no other call takes.
    #[test]
    fn agents_with_ids_that_cannot_be_used_are_left_out() {
        let mut named = events();
        let bad = r"a/b\u0000";
        named.push(event(&format!(
            r#"{{"eventId":"5","occurredAt":"t5","runId":"r","type":"agent_spawned","agent":{{"id":"{bad}","role":"scout"}}}}"#
        )));
        named.push(event(&format!(
            r#"{{"eventId":"6","occurredAt":"t6","runId":"r","type":"agent_input_queued","input":{{"id":"i","agentId":"{bad}"}}}}"#
        )));
        named.push(event(&format!(
            r#"{{"eventId":"7","occurredAt":"t7","runId":"r","type":"wait_registered","wait":{{"id":"w","agentId":"a","agentIds":["a","{bad}"],"kind":"agent-idle"}}}}"#
        )));
        let recovered = recover(None, &named);
        assert_eq!(recovered.snapshot.agents.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!((recovered.active_agents.len(), recovered.pending_waits.len(), recovered.snapshot.queued_inputs.len()), (1, 0, 1));
    }

    #[test]
    fn nothing_is_pending_once_every_run_is_over() {
        let mut events = events();
        events.push(event(
            r#"{"eventId":"5","occurredAt":"t5","runId":"r","type":"wait_registered","wait":{"id":"w","agentId":"a","kind":"agent-idle"}}"#,
        ));
        let going_on = recover(None, &events);
        assert_eq!((going_on.pending_waits.len(), going_on.active_agents.len()), (1, 1));
        events.push(event(r#"{"eventId":"6","occurredAt":"t6","runId":"r","type":"run_completed","status":"completed"}"#));
        let over = recover(None, &events);
        assert_eq!((over.pending_waits.len(), over.active_agents.len(), over.snapshot.agents.len()), (0, 0, 1));
    }
}
