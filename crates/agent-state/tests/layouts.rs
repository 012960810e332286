//! The layouts of AgentScope's own state stores.
//!
//! Tests on servers are ignored by default; `scripts/servers.sh` starts the servers and sets their URLs.

#![cfg(any(all(feature = "filesystem", unix), feature = "mysql", feature = "redis"))]
#![allow(missing_docs, clippy::unwrap_used)]

#[allow(dead_code, reason = "the layouts run the cases of the contract only")]
#[macro_use]
mod cases;

#[path = "layouts/support.rs"]
mod support;

#[cfg(all(feature = "filesystem", unix))]
#[path = "layouts/copy.rs"]
mod copy;

#[cfg(all(feature = "filesystem", unix))]
#[path = "layouts/file.rs"]
mod file;

#[cfg(feature = "mysql")]
#[path = "layouts/mysql.rs"]
mod mysql;

#[cfg(feature = "redis")]
#[path = "layouts/redis.rs"]
mod redis;
