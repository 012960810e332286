//! Deadlines of waits as time passes. Tokio's paused clock is also the clock of the store and of the manager.

use crate::cases::support::{reference, sessions, with_session};
use async_trait::async_trait;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::Result;
use treehold_sessions::orchestration::{
    Agent, AgentRuntime, AgentSpawn, Delivery, InputEnvelope, ManagerOptions, OrchestrationManager, OrchestrationPersistence, WaitKind,
    WaitRegistration, WaitStatus,
};
use treehold_store::{MemoryStore, Store};

/// Agents that never answer.
struct Silent;

#[async_trait]
impl AgentRuntime for Silent {
    async fn attach(&self, _: &Agent) -> Result<()> {
        Ok(())
    }

    async fn deliver(&self, _: &Agent, _: &InputEnvelope) -> Result<Delivery> {
        std::future::pending().await
    }

    async fn detach(&self, _: &Agent) {}
}

fn clock() -> Clock {
    let start = tokio::time::Instant::now();
    Clock::from_fn(move || jiff::Timestamp::from_second(1_800_000_000).unwrap() + jiff::SignedDuration::try_from(start.elapsed()).unwrap())
}

/// The deadline of a wait does not begin again with a restart, and needs nobody who waits.
#[tokio::test(start_paused = true)]
async fn wait_ends_at_its_deadline_after_a_restart() {
    let clock = clock();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(clock.clone()));
    with_session(&store).await;
    let open = async || {
        let persistence = Arc::new(sessions(&store).orchestration(reference()));
        let options = ManagerOptions::new().with_clock(clock.clone());
        OrchestrationManager::open("s-1", persistence, Arc::new(Silent), options).await.unwrap()
    };
    let first = open().await;
    let run = first.start_run(None, None).await.unwrap().id;
    let agent = AgentSpawn { id: "a".to_owned(), run_id: None, task_id: None, display_name: None, role: "scout".to_owned() };
    first.spawn_agent(&run, agent).await.unwrap();
    first.send_input("a", json!({})).await.unwrap();
    let registration = WaitRegistration {
        id: "w".to_owned(),
        agent_id: "a".to_owned(),
        agent_ids: None,
        kind: WaitKind::AgentIdle,
        description: String::new(),
        matching: None,
        timeout_at: Some((clock.now() + jiff::SignedDuration::from_secs(60)).to_string()),
    };
    let waiting = tokio::spawn({
        let (first, registration) = (first.clone(), registration.clone());
        async move { first.wait(registration).await }
    });
    tokio::time::sleep(Duration::from_secs(20)).await;
    first.close().await.unwrap();
    assert!(waiting.await.unwrap().is_err());
    drop(first);
    let second = open().await;
    tokio::time::sleep(Duration::from_secs(39)).await;
    assert_eq!(second.snapshot().await.waits["w"].status, WaitStatus::Pending);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(second.snapshot().await.waits["w"].status, WaitStatus::Resolved);
    let outcome = second.wait(registration).await.unwrap();
    assert_eq!(outcome, json!({"status": "timed_out", "match": "all", "resolvedAgentIds": [], "pendingAgentIds": ["a"]}));
    let stored = sessions(&store).orchestration(reference()).load_events().await.unwrap();
    assert_eq!(stored.iter().filter(|event| event.json().as_str().contains(r#""type":"wait_resolved""#)).count(), 1);
}
