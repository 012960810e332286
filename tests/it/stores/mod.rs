//! The stores as files: opening, refusals, sharing, and what a killed process leaves.

use treehold::store::Namespace;

#[cfg(feature = "archive")]
mod archive;
mod copy;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis", feature = "sled", feature = "sqlite"))]
pub(crate) mod crash;
#[cfg(all(feature = "mysql", feature = "postgres", feature = "redis", feature = "sqlite"))]
mod feeds;
#[cfg(feature = "mysql")]
mod galera;
#[cfg(all(feature = "mysql", feature = "postgres"))]
mod holding;
mod indexed;
mod linearizable;
#[cfg(all(
    feature = "archive",
    feature = "cli",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "serve",
    feature = "sled",
    feature = "sqlite",
    unix
))]
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_plans;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_cluster;
#[cfg(feature = "sled")]
mod sled;
#[cfg(feature = "sqlite")]
mod sqlite;
mod sweeper;
#[cfg(all(feature = "mysql", feature = "postgres", feature = "redis", feature = "sled", feature = "sqlite"))]
mod user_rows;
pub(crate) mod wrapped;

fn namespace() -> Namespace {
    Namespace::new(["rows"]).unwrap()
}
