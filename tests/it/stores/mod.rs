//! The stores as files: opening, refusing, sharing, and what a killed process leaves.

use stratafs::store::Namespace;

mod copy;
#[cfg(any(feature = "sled", feature = "sqlite"))]
mod crash;
#[cfg(feature = "sled")]
mod sled;
#[cfg(feature = "sqlite")]
mod sqlite;
mod sweeper;
mod wrapped;

fn namespace() -> Namespace {
    Namespace::new(["rows"]).unwrap()
}
