//! What a host is told, and what its manager keeps, while the store cannot be reached.

use crate::cases::support::{reference, sessions, with_session};
use async_trait::async_trait;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::broadcast::error::TryRecvError;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_sessions::orchestration::{
    Agent, AgentRuntime, AgentSpawn, Delivery, InputEnvelope, ManagerOptions, OrchestrationManager, OrchestrationPersistence, RunStatus,
};
use treehold_sessions::{SessionStore, SideWrites};
use treehold_store::watch::Watch;
use treehold_store::{
    Batch, Item, ItemPart, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store,
    StoreCapabilities, StoreExtensions,
};

/// Answers no probe and takes no commit while it is away.
#[derive(Debug, Default)]
struct Away {
    inner: MemoryStore,
    is_away: AtomicBool,
}

impl Away {
    fn check(&self) -> Result<()> {
        match self.is_away.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Unavailable, "the store is away")),
            false => Ok(()),
        }
    }

    fn set(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Away({})", self.inner)
    }
}

#[async_trait]
impl Store for Away {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        StoreExtensions::default()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.check()?;
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.check()?;
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

#[tokio::test]
async fn host_is_not_ready_while_its_store_does_not_answer() {
    let away = Arc::new(Away::default());
    let store: Arc<dyn Store> = away.clone();
    let sessions = sessions(&store);
    let side = SideWrites::new();
    sessions.ping().await.unwrap();
    away.set(true);
    assert_eq!(sessions.ping().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let shown = serde_json::to_value(side.readiness(&sessions).await).unwrap();
    assert_eq!(shown["status"], "not_ready", "{shown}");
    let check = &shown["checks"][0];
    assert_eq!((&check["name"], &check["status"]), (&"session_store".into(), &"fail".into()), "{shown}");
    assert!(check["error"].as_str().is_some_and(|error| error.contains("the store is away")), "{shown}");
    assert!(shown["checks"].as_array().unwrap()[1..].iter().all(|check| check["status"] == "ok"), "{shown}");
    away.set(false);
    assert_eq!(serde_json::to_value(side.readiness(&sessions).await).unwrap()["status"], "ready");
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

/// Nobody learns of an event that was not stored.
#[tokio::test]
async fn events_of_a_failed_commit_are_not_announced() {
    let away = Arc::new(Away::default());
    let store: Arc<dyn Store> = away.clone();
    let sessions = with_session(&store).await;
    let persistence = || Arc::new(sessions.orchestration(reference()));
    let manager = OrchestrationManager::open("s-1", persistence(), Arc::new(Idle), ManagerOptions::new()).await.unwrap();
    let run = manager.start_run(None, None).await.unwrap().id;
    let spawn = |id: &str| AgentSpawn { id: id.to_owned(), run_id: None, task_id: None, display_name: None, role: "scout".to_owned() };
    manager.spawn_agent(&run, spawn("a")).await.unwrap();
    let (before, mut events) = (manager.snapshot().await, manager.subscribe());
    away.set(true);
    for failed in [
        manager.start_run(Some("other"), None).await.map(drop),
        manager.spawn_agent(&run, spawn("b")).await.map(drop),
        manager.send_input("a", serde_json::json!({"n": 1})).await.map(drop),
        manager.close_agent("a", None).await,
        manager.complete_run(&run, RunStatus::Completed, None).await,
    ] {
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(manager.snapshot().await, before);
    assert!(matches!(events.try_recv(), Err(TryRecvError::Empty)));
    away.set(false);
    assert_eq!(persistence().recover_state().await.unwrap().snapshot, before);
    // The manager continues as soon as the store takes commits again.
    manager.spawn_agent(&run, spawn("b")).await.unwrap();
    let announced = events.try_recv().unwrap();
    let stored = persistence().load_events().await.unwrap();
    assert_eq!(stored.last().map(|event| event.event_id.as_str()), Some(announced.event_id.as_str()));
}
