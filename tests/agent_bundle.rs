//! The parts of the bundle on stores that need a server. The tests of `treehold-agent-state` run the same cases on stores that need none.

#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]

#[macro_use]
#[path = "../crates/agent-state/tests/bundle_cases/mod.rs"]
mod bundle_cases;
mod servers;

#[cfg(feature = "postgres")]
bundle_cases!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    postgres,
    crate::servers::postgres::fresh
);

#[cfg(feature = "redis")]
bundle_cases!(
    #[ignore = "needs Redis: run scripts/servers.sh"]
    redis,
    crate::servers::redis::fresh
);

#[cfg(feature = "mysql")]
bundle_cases!(
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    mysql,
    crate::servers::mysql::fresh
);
