//! The leases of an orchestration's manager and of a consolidation as time passes. Tokio's paused clock is also the clock of the store.

use crate::cases::support::{TENANT, USER, reference, sessions, user, with_session};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_sessions::orchestration::{
    Agent, AgentRuntime, Claim, Delivery, InputEnvelope, MailboxEvent, MailboxState, ManagerOptions, OrchestrationCommit,
    OrchestrationEvent, OrchestrationManager, OrchestrationPersistence, RecoveredState, Snapshot, StoredOrchestration,
};
use treehold_sessions::{
    AppendOptions, Consolidation, ConsolidationOptions, Consolidator, Json, MemoScope, MemorySummarizer, Message, USER as USER_DOCUMENT,
};
use treehold_store::{MemoryStore, Store};

const LEASE: Duration = Duration::from_secs(30);

/// A persistence whose renewals fail while `is_away`, as for a process that cannot reach its store.
struct Away {
    inner: StoredOrchestration,
    is_away: AtomicBool,
}

#[async_trait]
impl OrchestrationPersistence for Away {
    async fn append_event(&self, event: &OrchestrationEvent) -> Result<()> {
        self.inner.append_event(event).await
    }

    async fn load_events(&self) -> Result<Vec<OrchestrationEvent>> {
        self.inner.load_events().await
    }

    async fn load_snapshot(&self) -> Result<Option<Snapshot>> {
        self.inner.load_snapshot().await
    }

    async fn write_checkpoint(&self, snapshot: &Snapshot) -> Result<()> {
        self.inner.write_checkpoint(snapshot).await
    }

    async fn recover_state(&self) -> Result<RecoveredState> {
        self.inner.recover_state().await
    }

    async fn append_mailbox_event(&self, agent: &str, event: &MailboxEvent) -> Result<()> {
        self.inner.append_mailbox_event(agent, event).await
    }

    async fn load_mailbox_events(&self, agent: &str) -> Result<Vec<MailboxEvent>> {
        self.inner.load_mailbox_events(agent).await
    }

    async fn load_mailbox_state(&self, agent: &str) -> Result<MailboxState> {
        self.inner.load_mailbox_state(agent).await
    }

    async fn write_mailbox_state(&self, agent: &str, state: &MailboxState) -> Result<()> {
        self.inner.write_mailbox_state(agent, state).await
    }

    async fn load_agent_history(&self, agent: &str) -> Result<Vec<Json>> {
        self.inner.load_agent_history(agent).await
    }

    async fn write_agent_history(&self, agent: &str, history: &[Json]) -> Result<()> {
        self.inner.write_agent_history(agent, history).await
    }

    async fn commit(&self, commit: &OrchestrationCommit) -> Result<()> {
        self.inner.commit(commit).await
    }

    async fn claim(&self, holder: &str, lease: Duration) -> Result<Claim> {
        self.inner.claim(holder, lease).await
    }

    async fn renew(&self, claim: Claim, holder: &str, lease: Duration) -> Result<()> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is unreachable"));
        }
        self.inner.renew(claim, holder, lease).await
    }

    async fn release(&self, claim: Claim) -> Result<()> {
        self.inner.release(claim).await
    }
}

struct Idle;

#[async_trait]
impl AgentRuntime for Idle {
    async fn attach(&self, _: &Agent) -> Result<()> {
        Ok(())
    }

    async fn deliver(&self, _: &Agent, _: &InputEnvelope) -> Result<Delivery> {
        Ok(Delivery::completed("done"))
    }

    async fn detach(&self, _: &Agent) {}
}

/// Makes a store whose time is that of tokio.
fn store() -> Arc<dyn Store> {
    let start = tokio::time::Instant::now();
    let clock = Clock::from_fn(move || {
        jiff::Timestamp::from_second(1_800_000_000).unwrap() + jiff::SignedDuration::try_from(start.elapsed()).unwrap()
    });
    Arc::new(MemoryStore::with_clock(clock))
}

fn persistence(store: &Arc<dyn Store>) -> Arc<Away> {
    Arc::new(Away { inner: sessions(store).orchestration(reference()), is_away: AtomicBool::new(false) })
}

async fn open(persistence: &Arc<Away>) -> Result<OrchestrationManager> {
    OrchestrationManager::open("s-1", persistence.clone(), Arc::new(Idle), ManagerOptions::new().with_lease(LEASE)).await
}

#[tokio::test(start_paused = true)]
async fn lease_of_a_living_manager_never_ends() {
    let store = store();
    with_session(&store).await;
    let first = open(&persistence(&store)).await.unwrap();
    for _ in 0..10 {
        tokio::time::advance(LEASE / 2).await;
        // Lets the renewal run.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(open(&persistence(&store)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    first.start_run(None, None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn manager_that_cannot_renew_is_replaced_after_its_lease_and_then_ends() {
    let store = store();
    with_session(&store).await;
    let cut_off = persistence(&store);
    let first = open(&cut_off).await.unwrap();
    first.start_run(None, None).await.unwrap();
    cut_off.is_away.store(true, Ordering::Relaxed);
    tokio::time::sleep(LEASE - Duration::from_millis(1)).await;
    assert_eq!(open(&persistence(&store)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    tokio::time::sleep(Duration::from_millis(2)).await;
    // Nobody took over yet, so the first one continues, and renews its lease once it can.
    first.start_run(Some("second"), None).await.unwrap();
    cut_off.is_away.store(false, Ordering::Relaxed);
    tokio::time::sleep(LEASE).await;
    assert_eq!(open(&persistence(&store)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    cut_off.is_away.store(true, Ordering::Relaxed);
    tokio::time::sleep(LEASE * 2).await;
    let second = open(&persistence(&store)).await.unwrap();
    assert_eq!(second.snapshot().await.runs.len(), 2);
    cut_off.is_away.store(false, Ordering::Relaxed);
    // Its next renewal tells the first one that it was replaced, even if it changes nothing.
    tokio::time::sleep(LEASE).await;
    assert_eq!(first.start_run(Some("third"), None).await.unwrap_err().kind(), ErrorKind::Conflict);
    second.start_run(Some("third"), None).await.unwrap();
    drop(first);
    tokio::time::sleep(LEASE).await;
    assert_eq!(open(&persistence(&store)).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Takes most of a lease for each summary.
struct Slow;

#[async_trait]
impl MemorySummarizer for Slow {
    async fn summarize_session(&self, messages: &[Message]) -> Result<String> {
        tokio::time::sleep(LEASE - Duration::from_secs(1)).await;
        Ok(format!("{} messages", messages.len()))
    }

    async fn consolidate(&self, _: Option<&str>, summaries: &[String]) -> Result<String> {
        tokio::time::sleep(LEASE - Duration::from_secs(1)).await;
        Ok(format!("{} summaries", summaries.len()))
    }
}

/// A run over many sessions takes longer than its lease, and still nobody else begins one.
#[tokio::test(start_paused = true)]
async fn lease_of_a_consolidation_lasts_as_long_as_its_run() {
    let store = store();
    let sessions = sessions(&store);
    for number in 0..8 {
        let id = format!("s-{number}");
        sessions.get_or_create(TENANT, USER, "helper", Some(&id)).await.unwrap();
        sessions.append(TENANT, &id, &(0..4).map(user).collect::<Vec<_>>(), &AppendOptions::new()).await.unwrap();
    }
    let mut options = ConsolidationOptions::default();
    (options.idle, options.lease) = (Duration::ZERO, LEASE);
    let consolidator = Consolidator::new(sessions.clone(), options);
    let running = tokio::spawn({
        let consolidator = consolidator.clone();
        async move { consolidator.run(TENANT, USER, &Slow).await }
    });
    for _ in 0..8 {
        tokio::time::sleep(LEASE).await;
        assert_eq!(consolidator.run(TENANT, USER, &Slow).await.unwrap(), Consolidation::Running);
    }
    assert!(matches!(running.await.unwrap().unwrap(), Consolidation::Done { sessions: 8, read: 8, .. }));
    let document = sessions.read_memory_document(TENANT, USER, MemoScope::User, USER_DOCUMENT).await.unwrap().unwrap();
    assert_eq!(document.matches("\n- 20").count(), 1, "{document}");
}
