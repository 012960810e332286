//! What happens to a consolidation whose server died, as time passes. Tokio's paused clock is also the clock of the store.

use crate::cases::support::{TENANT, USER, append, user, with_session};
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use treehold_core::clock::Clock;
use treehold_core::error::Result;
use treehold_sessions::{
    Consolidation, ConsolidationOptions, ConsolidationReason, Consolidator, MemoScope, MemorySummarizer, Message, USER as USER_DOCUMENT,
};
use treehold_store::{MemoryStore, Store};

const LEASE: Duration = Duration::from_secs(30);

/// Never answers.
#[derive(Default)]
struct Stuck(Notify);

#[async_trait]
impl MemorySummarizer for Stuck {
    async fn summarize_session(&self, _: &[Message]) -> Result<String> {
        Ok("tea".to_owned())
    }

    async fn consolidate(&self, _: Option<&str>, _: &[String]) -> Result<String> {
        self.0.notify_one();
        std::future::pending().await
    }
}

struct Prompt;

#[async_trait]
impl MemorySummarizer for Prompt {
    async fn summarize_session(&self, _: &[Message]) -> Result<String> {
        unreachable!("the run that died kept the summary")
    }

    async fn consolidate(&self, _: Option<&str>, summaries: &[String]) -> Result<String> {
        Ok(summaries.join(", "))
    }
}

/// The lease of a server that died ends by itself. Then another one completes its run.
#[tokio::test(start_paused = true)]
async fn consolidation_of_a_dead_server_is_taken_over_when_its_lease_ends() {
    let start = tokio::time::Instant::now();
    let clock = Clock::from_fn(move || {
        jiff::Timestamp::from_second(1_800_000_000).unwrap() + jiff::SignedDuration::try_from(start.elapsed()).unwrap()
    });
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_clock(clock.clone()));
    let sessions = with_session(&store).await.with_clock(clock);
    append(&sessions, &(0..5).map(user).collect::<Vec<_>>()).await;
    let mut options = ConsolidationOptions::default();
    options.lease = LEASE;
    tokio::time::sleep(options.idle + Duration::from_secs(60)).await;
    let (consolidator, stuck) = (Consolidator::new(sessions.clone(), options), Arc::new(Stuck::default()));
    let dying = tokio::spawn({
        let (consolidator, stuck) = (consolidator.clone(), stuck.clone());
        async move { consolidator.run(TENANT, USER, &*stuck).await }
    });
    stuck.0.notified().await;
    dying.abort();
    assert!(dying.await.unwrap_err().is_cancelled());
    assert_eq!(consolidator.run(TENANT, USER, &Prompt).await.unwrap(), Consolidation::Running);
    tokio::time::sleep(LEASE - Duration::from_secs(1)).await;
    assert_eq!(consolidator.run(TENANT, USER, &Prompt).await.unwrap(), Consolidation::Running);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let done = consolidator.run(TENANT, USER, &Prompt).await.unwrap();
    assert_eq!(done, Consolidation::Done { reason: ConsolidationReason::Initial, sessions: 1, read: 0 });
    let document = sessions.read_memory_document(TENANT, USER, MemoScope::User, USER_DOCUMENT).await.unwrap().unwrap();
    assert!(document.starts_with("tea\n") && document.matches("\n- 20").count() == 1, "{document}");
}
