//! Managers of one orchestration in several processes, and in processes that are killed.

use super::{Process, SESSION, Subject, kills, on_shared_stores, paused, reference, report};
use async_trait::async_trait;
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use treehold::sessions::Sessions;
use treehold::sessions::orchestration::{
    Agent, AgentRuntime, AgentSpawn, Delivery, EventKind, InputEnvelope, MailboxEventKind, ManagerOptions, OrchestrationManager,
    OrchestrationPersistence, WaitKind, WaitMatch, WaitRegistration, recover,
};
use treehold::{ErrorKind, Result};

on_shared_stores! {
    killed_manager_delivers_inputs_in_order_and_at_least_once: (super::kill_while_delivering, super::deliver_until_killed),
    second_process_takes_over_only_when_the_lease_of_a_killed_one_ends: (super::take_over, super::hold),
}

const AGENTS: [&str; 2] = ["a", "b"];

/// The most inputs that wait for an agent.
const WAITING_MAX: usize = 5;

/// Reports each input to the parent, if this is a child, then answers it.
struct Answering {
    reports: bool,
}

#[async_trait]
impl AgentRuntime for Answering {
    async fn attach(&self, _: &Agent) -> Result<()> {
        Ok(())
    }

    async fn deliver(&self, agent: &Agent, input: &InputEnvelope) -> Result<Delivery> {
        if self.reports {
            report(format!("{} {}", agent.id, input.payload["n"]));
        }
        Ok(Delivery::completed("done"))
    }

    async fn detach(&self, _: &Agent) {}
}

pub(super) async fn open(sessions: &Sessions, options: ManagerOptions) -> Result<OrchestrationManager> {
    let persistence = Arc::new(sessions.orchestration(reference()));
    let reports = std::env::var_os(super::STORE).is_some();
    OrchestrationManager::open(SESSION, persistence, Arc::new(Answering { reports }), options).await
}

fn wait(id: &str) -> WaitRegistration {
    WaitRegistration {
        id: id.to_owned(),
        agent_id: AGENTS[0].to_owned(),
        agent_ids: Some(AGENTS.map(str::to_owned).to_vec()),
        kind: WaitKind::AgentIdle,
        description: String::new(),
        matching: Some(WaitMatch::All),
        timeout_at: None,
    }
}

/// Returns the numbers in an agent's mailbox.
pub(super) async fn mailbox(sessions: &Sessions, agent: &str) -> Vec<u64> {
    let events = sessions.orchestration(reference()).load_mailbox_events(agent).await.unwrap();
    let number = |kind: &MailboxEventKind| match kind {
        MailboxEventKind::InputEnqueued { payload, .. } => payload["n"].as_u64(),
        _ => None,
    };
    events.iter().map(|event| number(&event.kind).unwrap()).collect()
}

/// Sends numbers to two agents while they work, starting with the first number that is in no mailbox.
async fn deliver_until_killed(sessions: Sessions, _: u64) {
    // The same host, started again: it need not wait for the lease of the killed process.
    let manager = open(&sessions, ManagerOptions::new().with_holder("host")).await.unwrap();
    let run = manager.start_run(None, None).await.unwrap();
    let mut next = Vec::new();
    for agent in AGENTS {
        let spawn = AgentSpawn { id: agent.to_owned(), run_id: None, task_id: None, display_name: None, role: "scout".to_owned() };
        manager.spawn_agent(&run.id, spawn).await.unwrap();
        next.push(mailbox(&sessions, agent).await.len() as u64);
    }
    let mut events = manager.subscribe();
    loop {
        for (agent, next) in AGENTS.iter().zip(&mut next) {
            let waiting = manager.snapshot().await.queued_inputs.iter().filter(|input| input.agent_id == *agent).count();
            if waiting < WAITING_MAX {
                manager.send_input(agent, json!({"n": *next})).await.unwrap();
                *next += 1;
            }
        }
        // Wait for the next event, or for the notice that some were missed.
        let _ = events.recv().await;
    }
}

/// Adds a delivery, after checking that it repeats the last one of its agent or is the next.
pub(super) fn note(delivered: &mut HashMap<String, Vec<u64>>, line: &str) {
    let (agent, number) = line.split_once(' ').unwrap();
    let (number, list) = (number.parse().unwrap(), delivered.entry(agent.to_owned()).or_default());
    let next = list.last().map_or(0, |last| last + 1);
    assert!(number == next || (next > 0 && number == next - 1), "{agent} got {number} instead of {next}");
    list.push(number);
}

async fn kill_while_delivering(subject: Subject) {
    let mut delivered = HashMap::new();
    for round in 0..kills() {
        let mut process: Process = subject.start(round);
        for _ in 0..1 + round * 11 % 37 {
            note(&mut delivered, &process.next().unwrap());
        }
        process.kill().iter().for_each(|line| note(&mut delivered, line));
        // The log, the checkpoint and the mailboxes agree, wherever it was killed.
        let sessions = subject.sessions().await;
        let orchestration = sessions.orchestration(reference());
        let events = orchestration.load_events().await.unwrap();
        assert_eq!(orchestration.recover_state().await.unwrap(), recover(None, &events));
        let mut ended: HashMap<&str, u64> = HashMap::new();
        for event in &events {
            if let EventKind::AgentInputRemoved { input_id, agent_id, .. } = &event.kind {
                assert!(ended.insert(input_id, 1).is_none(), "an input of {agent_id} ended twice");
            }
        }
        let mut processed = 0;
        for agent in AGENTS {
            let sent = mailbox(&sessions, agent).await;
            assert!(sent.iter().copied().eq(0..sent.len() as u64), "{sent:?}");
            processed += orchestration.load_mailbox_state(agent).await.unwrap().processed_event_count;
        }
        assert_eq!(processed, ended.len() as u64, "an input is queued or processed, never both");
    }
    // The last manager finishes what is left.
    let sessions = subject.sessions().await;
    let manager = open(&sessions, ManagerOptions::new().with_holder("host")).await.unwrap();
    manager.wait(wait("all")).await.unwrap();
    let orchestration = sessions.orchestration(reference());
    for agent in AGENTS {
        let sent = mailbox(&sessions, agent).await.len() as u64;
        let state = orchestration.load_mailbox_state(agent).await.unwrap();
        let last = delivered[agent].last().unwrap() + 1;
        assert!(state.processed_event_count == sent && last <= sent && sent - last <= WAITING_MAX as u64, "{agent}: {last} of {sent}");
    }
    assert!(manager.snapshot().await.queued_inputs.is_empty());
}

/// Holds the orchestration until it is killed.
async fn hold(sessions: Sessions, lease_milliseconds: u64) {
    let options = ManagerOptions::new().with_holder("one").with_lease(Duration::from_millis(lease_milliseconds));
    let manager = open(&sessions, options).await.unwrap();
    manager.start_run(None, None).await.unwrap();
    report("open");
    paused().await;
}

async fn take_over(subject: Subject) {
    let sessions = subject.sessions().await;
    let mut first = subject.start(600_000);
    assert_eq!(first.next().as_deref(), Some("open"));
    let refused = open(&sessions, ManagerOptions::new()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    first.kill();
    // It had no time to release its lease.
    assert_eq!(open(&sessions, ManagerOptions::new()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let mut again = subject.start(300);
    assert_eq!(again.next().as_deref(), Some("open"), "the same host continues at once");
    again.kill();
    loop {
        match open(&sessions, ManagerOptions::new()).await {
            Ok(manager) => return assert_eq!(manager.snapshot().await.runs.len(), 1),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
}
