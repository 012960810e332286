//! Traces on stores that need a server. The tests of `treehold-traces` run the same cases on stores that need none.

#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]

use treehold::conformance::Fresh;
use treehold::traces::{TraceStore, trace_store_conformance};

#[macro_use]
#[path = "../crates/traces/tests/cases/mod.rs"]
mod cases;
mod servers;

fn traces((store, keep): servers::OnServer) -> Fresh<dyn TraceStore> {
    Fresh::new(cases::support::shared(store)).keeping(keep)
}

#[cfg(feature = "postgres")]
async fn postgres_traces() -> Fresh<dyn TraceStore> {
    traces(servers::postgres::fresh().await)
}

#[cfg(feature = "postgres")]
trace_store_conformance!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    postgres,
    postgres_traces
);

#[cfg(feature = "postgres")]
stored_trace_cases!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    postgres_rows,
    crate::servers::postgres::fresh
);

#[cfg(feature = "redis")]
async fn redis_traces() -> Fresh<dyn TraceStore> {
    traces(servers::redis::fresh().await)
}

#[cfg(feature = "redis")]
trace_store_conformance!(
    #[ignore = "needs Redis: run scripts/servers.sh"]
    redis,
    redis_traces
);

#[cfg(feature = "redis")]
stored_trace_cases!(
    #[ignore = "needs Redis: run scripts/servers.sh"]
    redis_rows,
    crate::servers::redis::fresh
);

#[cfg(feature = "mysql")]
async fn mysql_traces() -> Fresh<dyn TraceStore> {
    traces(servers::mysql::fresh().await)
}

#[cfg(feature = "mysql")]
trace_store_conformance!(
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    mysql,
    mysql_traces
);

#[cfg(feature = "mysql")]
stored_trace_cases!(
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    mysql_rows,
    crate::servers::mysql::fresh
);
