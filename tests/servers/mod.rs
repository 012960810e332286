//! The database servers for tests: how each is found, and the message if it is absent.
//!
//! An environment variable names a server; without it, the usual address on this machine is tried. Tests that need a server are
//! ignored by default and run by `scripts/servers.sh`. Once they run, an absent server is a failure.

#![allow(dead_code, reason = "each test binary uses a part of it")]

#[cfg(feature = "mysql")]
pub(crate) mod galera;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod proxy;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redis")]
pub(crate) mod redis_nodes;

use std::any::Any;
use std::sync::Arc;
use treehold::conformance::Fresh;
use treehold::store::Store;

/// A fresh store on a server, and a guard that removes it.
pub(crate) type OnServer = (Arc<dyn Store>, Box<dyn Any + Send>);

/// Returns the address of a server: the value of `variable`, else the usual address.
pub(crate) fn url(variable: &str, usual: &str) -> String {
    std::env::var(variable).ok().filter(|url| !url.is_empty()).unwrap_or_else(|| usual.to_owned())
}

/// Returns the message of a test whose server does not answer.
pub(crate) fn absent(server: &str, variable: &str, error: &dyn std::fmt::Display) -> String {
    format!("no {server} answers ({error}); run scripts/servers.sh, or set {variable}")
}

/// Makes the subject of a store case.
pub(crate) fn fresh(store: OnServer) -> Fresh<dyn Store> {
    let (store, keep) = store;
    Fresh::new(store).keeping(keep)
}
