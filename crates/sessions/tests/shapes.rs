//! The JSON that hosts write and read, field by field.

#![allow(missing_docs, clippy::unwrap_used)]

use serde_json::{Value, json};
use treehold_sessions::orchestration::{AgentStatus, EventKind, InputRemoval, JobOutcome, OrchestrationEvent, Snapshot, SnapshotFields};
use treehold_sessions::{Cost, TurnUsage, Usage};

#[test]
fn usage_has_every_field_of_hosts() {
    let value = json!({
        "inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 3, "cacheWriteTokens": 4, "totalTokens": 5,
        "cost": {"input": 0.5, "output": 0.25, "cacheRead": 0.125, "cacheWrite": 0.75, "total": 1.625},
    });
    let fields = TurnUsage {
        input_tokens: 1,
        output_tokens: 2,
        cache_read_tokens: 3,
        cache_write_tokens: 4,
        total_tokens: 5,
        cost: Cost { input: 0.5, output: 0.25, cache_read: 0.125, cache_write: 0.75, total: 1.625 },
    };
    assert_eq!(*Usage::parse(&value.to_string()).unwrap(), fields);
    assert_eq!(serde_json::to_value(Usage::of(fields).unwrap()).unwrap(), value);
    let sums = serde_json::to_value(Usage::of_tokens(7, 8).unwrap()).unwrap();
    assert_eq!((&sums["totalTokens"], &sums["cost"]["cacheRead"]), (&json!(15), &json!(0.0)));
}

fn event(number: usize, rest: Value) -> OrchestrationEvent {
    let mut fields = json!({"eventId": format!("e{number}"), "occurredAt": format!("t{number}"), "runId": "r"});
    fields.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    OrchestrationEvent::parse(&fields.to_string()).unwrap()
}

/// Every reason, outcome and status has its word. A word that is unknown here is kept.
#[test]
fn words_of_events_are_those_of_hosts() {
    let job = |outcome: &str| json!({"jobId": "j", "inputIds": [], "outcome": outcome});
    for (word, reason) in [("delivered", InputRemoval::Delivered), ("agent_closed", InputRemoval::AgentClosed)] {
        let fields = json!({"type": "agent_input_removed", "inputId": "i", "agentId": "a", "reason": word});
        let removed = event(1, fields);
        assert!(matches!(&removed.kind, EventKind::AgentInputRemoved { reason: read, .. } if *read == reason), "{word}");
        let made = OrchestrationEvent::of((*removed).clone()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(made.json().as_str()).unwrap()["reason"], word);
    }
    for (word, outcome) in [
        ("completed", JobOutcome::Completed),
        ("failed", JobOutcome::Failed),
        ("cancelled", JobOutcome::Cancelled),
        ("timed_out", JobOutcome::TimedOut),
        ("vanished", JobOutcome::Other("vanished".to_owned())),
    ] {
        let failed = event(1, json!({"type": "agent_job_failed", "agentId": "a", "job": job(word)}));
        assert!(matches!(&failed.kind, EventKind::AgentJobFailed { job, .. } if job.outcome == outcome), "{word}");
        let made = OrchestrationEvent::of((*failed).clone()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(made.json().as_str()).unwrap()["job"], job(word));
    }
    for (word, status) in [
        ("idle", AgentStatus::Idle),
        ("running", AgentStatus::Running),
        ("waiting", AgentStatus::Waiting),
        ("closing", AgentStatus::Closing),
        ("closed", AgentStatus::Closed),
    ] {
        let changed = event(1, json!({"type": "agent_status_changed", "agentId": "a", "status": word}));
        assert!(matches!(&changed.kind, EventKind::AgentStatusChanged { status: read, .. } if *read == status), "{word}");
        let made = OrchestrationEvent::of((*changed).clone()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(made.json().as_str()).unwrap()["status"], word);
    }
}

#[test]
fn checkpoint_has_the_json_of_hosts() {
    let job = json!({"jobId": "j", "inputIds": ["i1"], "outcome": "cancelled", "outputText": "half", "error": "stopped", "toolCalls": [1]});
    let events = [
        json!({"type": "run_started", "initialTask": {"id": "k", "kind": "chat", "input": {"z": 1}}}),
        json!({"type": "agent_spawned", "agent": {"id": "a", "role": "scout", "displayName": "Ann", "taskId": "own"}}),
        json!({"type": "agent_spawned", "agent": {"id": "b", "role": "critic"}}),
        json!({"type": "agent_input_queued", "input": {"id": "i1", "agentId": "a", "payload": {"n": 1}}}),
        json!({"type": "agent_input_queued", "input": {"id": "i2", "agentId": "b", "payload": {"n": 2}}}),
        json!({"type": "agent_job_started", "agentId": "a", "jobId": "j", "inputIds": ["i1"]}),
        json!({"type": "agent_job_failed", "agentId": "a", "job": job}),
        json!({"type": "agent_input_removed", "inputId": "i1", "agentId": "a", "reason": "agent_closed"}),
        json!({"type": "wait_registered", "wait": {"id": "w1", "agentId": "a", "agentIds": ["a", "b"], "kind": "agent-closed",
            "description": "d", "match": "any", "timeoutAt": "2027-01-01T00:00:00Z"}}),
        json!({"type": "wait_registered", "wait": {"id": "w2", "agentId": "b", "kind": "agent-idle", "description": "d"}}),
        json!({"type": "agent_closed", "close": {"id": "c", "agentId": "a", "reason": "enough"}}),
        json!({"type": "wait_resolved", "waitId": "w1", "resolution": {"status": "resolved"}}),
        json!({"type": "run_completed", "status": "failed", "error": "late"}),
    ];
    let mut state = SnapshotFields::default();
    for (number, rest) in events.into_iter().enumerate() {
        state.apply(&event(number, rest));
    }
    let expected = json!({
        "runs": {"r": {
            "id": "r", "status": "failed", "initialTaskId": "k", "createdAt": "t0", "updatedAt": "t12", "completedAt": "t12", "error": "late",
        }},
        "tasks": {"k": {"id": "k", "runId": "r", "kind": "chat", "input": {"z": 1}, "createdAt": "t0"}},
        "agents": {
            "a": {
                "id": "a", "runId": "r", "taskId": "own", "displayName": "Ann", "role": "scout", "status": "closed",
                "createdAt": "t1", "updatedAt": "t10", "closedAt": "t10",
                "lastJob": {
                    "jobId": "j", "inputIds": ["i1"], "outcome": "cancelled", "outputText": "half", "error": "stopped", "toolCalls": [1],
                    "completedAt": "t6",
                },
            },
            "b": {"id": "b", "runId": "r", "taskId": "k", "role": "critic", "status": "idle", "createdAt": "t2", "updatedAt": "t2"},
        },
        "waits": {
            "w1": {
                "id": "w1", "runId": "r", "agentId": "a", "agentIds": ["a", "b"], "kind": "agent-closed", "description": "d", "match": "any",
                "status": "resolved", "registeredAt": "t8", "timeoutAt": "2027-01-01T00:00:00Z", "resolvedAt": "t11",
                "resolution": {"status": "resolved"},
            },
            "w2": {"id": "w2", "runId": "r", "agentId": "b", "kind": "agent-idle", "description": "d", "status": "pending", "registeredAt": "t9"},
        },
        "queuedInputs": [{"id": "i2", "agentId": "b", "payload": {"n": 2}, "queuedAt": "t4"}],
        "lastEventId": "e12",
    });
    let checkpoint = Snapshot::of_state(&state).unwrap();
    assert_eq!(serde_json::from_str::<Value>(checkpoint.json().as_str()).unwrap(), expected);
    assert_eq!(*Snapshot::parse(&expected.to_string()).unwrap(), state);
}
