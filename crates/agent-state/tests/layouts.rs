//! The layouts of AgentScope's own state stores.
//!
//! Tests on servers are ignored by default; `scripts/servers.sh` starts the servers and sets their URLs.

#![cfg(any(all(feature = "filesystem", unix), feature = "mysql", feature = "redis"))]
#![allow(missing_docs, clippy::unwrap_used)]

#[macro_use]
mod cases;

#[path = "layouts/support.rs"]
mod support;

#[cfg(all(feature = "filesystem", unix))]
#[path = "layouts/file.rs"]
mod file;

#[cfg(feature = "redis")]
#[path = "layouts/redis.rs"]
mod redis;
