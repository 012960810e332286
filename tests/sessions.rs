//! The contracts of an agent host on stores that need a server. The tests of `treehold-sessions` run the same cases on stores
//! that need none.

#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]

#[macro_use]
#[path = "../crates/sessions/tests/cases/mod.rs"]
mod cases;
mod servers;

#[cfg(feature = "postgres")]
session_cases!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    postgres,
    crate::servers::postgres::fresh
);

#[cfg(feature = "redis")]
session_cases!(
    #[ignore = "needs Redis: run scripts/servers.sh"]
    redis,
    crate::servers::redis::fresh
);

#[cfg(feature = "mysql")]
session_cases!(
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    mysql,
    crate::servers::mysql::fresh
);
