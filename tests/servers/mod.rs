//! The servers that stores of tests stand on: where each is looked for, and what is said when it is not there.
//!
//! A variable of the environment names a server, else the usual place on this machine is tried. A test whose server is not
//! there is skipped and says so; `STRATAFS_TEST_REQUIRE` lists servers whose absence is a failure instead.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::print_stdout, reason = "what is skipped is said")]

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod proxy;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::any::Any;
use std::sync::Arc;
use stratafs::conformance::Fresh;
use stratafs::store::Store;

/// A fresh store on a server and what removes it at the end, or why there is none.
pub(crate) type OnServer = Result<(Arc<dyn Store>, Box<dyn Any + Send>), String>;

/// Returns where a server is: what `variable` says, else the usual place.
pub(crate) fn url(variable: &str, usual: &str) -> String {
    std::env::var(variable).ok().filter(|url| !url.is_empty()).unwrap_or_else(|| usual.to_owned())
}

/// Says why a test is skipped.
///
/// # Panics
/// When the server is required.
pub(crate) fn absent(server: &str, variable: &str, error: &dyn std::fmt::Display) -> String {
    let reason = format!("no {server} answers ({error}); set {variable}");
    let required = std::env::var("STRATAFS_TEST_REQUIRE").unwrap_or_default();
    assert!(!required.split_whitespace().any(|name| name == server), "{reason}");
    reason
}

/// Makes two fresh stores on a server, or says that the test is skipped.
pub(crate) async fn two(fresh: impl AsyncFn() -> OnServer) -> Option<[(Arc<dyn Store>, Box<dyn Any + Send>); 2]> {
    let one = fresh().await.map_err(|reason| println!("skipped: {reason}")).ok()?;
    Some([one, fresh().await.unwrap()])
}

/// Makes the subject of a store case.
pub(crate) fn fresh(store: OnServer) -> Fresh<dyn Store> {
    match store {
        Ok((store, keep)) => Fresh::new(store).keeping(keep),
        Err(reason) => Fresh::skipped(reason),
    }
}
