//! The states of agents on stores that need a server. The tests of `treehold-agent-state` run the same cases on stores that need none.

#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]

use std::any::Any;
use std::sync::Arc;
use treehold_agent_state::{AgentStateStore, AgentStates};
use treehold_store::Store;

#[macro_use]
#[path = "../crates/agent-state/tests/cases/mod.rs"]
mod cases;
mod servers;

fn states(store: Arc<dyn Store>, keep: impl Any + Send) -> (Arc<dyn AgentStateStore>, Box<dyn Any + Send>) {
    (Arc::new(AgentStates::new(store).for_agent("acme", "helper").unwrap()), Box::new(keep))
}

#[cfg(feature = "postgres")]
async fn postgres_states() -> (Arc<dyn AgentStateStore>, Box<dyn Any + Send>) {
    let (store, keep) = servers::postgres::fresh().await;
    states(store, keep)
}

#[cfg(feature = "postgres")]
state_store_cases!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    postgres,
    crate::postgres_states
);

#[cfg(feature = "postgres")]
stored_state_cases!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    postgres_rows,
    crate::servers::postgres::fresh
);

#[cfg(feature = "redis")]
async fn redis_states() -> (Arc<dyn AgentStateStore>, Box<dyn Any + Send>) {
    let (store, keep) = servers::redis::fresh().await;
    states(store, keep)
}

#[cfg(feature = "redis")]
state_store_cases!(
    #[ignore = "needs Redis: run scripts/servers.sh"]
    redis,
    crate::redis_states
);

#[cfg(feature = "redis")]
stored_state_cases!(
    #[ignore = "needs Redis: run scripts/servers.sh"]
    redis_rows,
    crate::servers::redis::fresh
);

#[cfg(feature = "mysql")]
async fn mysql_states() -> (Arc<dyn AgentStateStore>, Box<dyn Any + Send>) {
    let (store, keep) = servers::mysql::fresh().await;
    states(store, keep)
}

#[cfg(feature = "mysql")]
state_store_cases!(
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    mysql,
    crate::mysql_states
);

#[cfg(feature = "mysql")]
stored_state_cases!(
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    mysql_rows,
    crate::servers::mysql::fresh
);
