//! The checkpointers, over each store: one row each.

use crate::trees::SmallPages;
use jiff::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use treehold::checkpoint::{Checkpointer, MemoryCheckpointer, StoreCheckpointer};
use treehold::checkpointer_conformance;
use treehold::clock::Clock;
use treehold::conformance::Fresh;
use treehold::store::MemoryStore;

fn of(checkpointer: impl Checkpointer + 'static) -> Fresh<dyn Checkpointer> {
    Fresh::new(Arc::new(checkpointer) as Arc<dyn Checkpointer>)
}

/// A clock that changes by some microseconds at each reading: by none, or backwards.
fn clock(step: i64) -> Clock {
    let now = AtomicI64::new(Timestamp::now().as_microsecond());
    Clock::from_fn(move || Timestamp::from_microsecond(now.fetch_add(step, Ordering::Relaxed)).unwrap())
}

async fn memory() -> Fresh<dyn Checkpointer> {
    of(MemoryCheckpointer::new())
}

async fn memory_still() -> Fresh<dyn Checkpointer> {
    of(MemoryCheckpointer::new().with_clock(clock(0)))
}

async fn store_memory() -> Fresh<dyn Checkpointer> {
    of(StoreCheckpointer::new(Arc::new(MemoryStore::new())))
}

async fn store_still() -> Fresh<dyn Checkpointer> {
    of(StoreCheckpointer::new(Arc::new(MemoryStore::new())).with_clock(clock(0)))
}

async fn store_back() -> Fresh<dyn Checkpointer> {
    of(StoreCheckpointer::new(Arc::new(MemoryStore::new())).with_clock(clock(-700)))
}

async fn store_small_pages() -> Fresh<dyn Checkpointer> {
    of(StoreCheckpointer::new(Arc::new(SmallPages::default())))
}

checkpointer_conformance!(memory, crate::checkpointer::memory);
checkpointer_conformance!(memory_still, crate::checkpointer::memory_still);
checkpointer_conformance!(store_memory, crate::checkpointer::store_memory);
checkpointer_conformance!(store_still, crate::checkpointer::store_still);
checkpointer_conformance!(store_back, crate::checkpointer::store_back);
checkpointer_conformance!(store_small_pages, crate::checkpointer::store_small_pages);

#[cfg(feature = "sqlite")]
async fn store_sqlite() -> Fresh<dyn Checkpointer> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SqliteStore::open(directory.path().join("store.db")).unwrap();
    of(StoreCheckpointer::new(Arc::new(store))).keeping(directory)
}

#[cfg(feature = "sqlite")]
checkpointer_conformance!(store_sqlite, crate::checkpointer::store_sqlite);

#[cfg(feature = "sqlite")]
async fn store_sqlite_directory() -> Fresh<dyn Checkpointer> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SqliteDirectory::open(directory.path().join("store")).unwrap();
    of(StoreCheckpointer::new(Arc::new(store))).keeping(directory)
}

#[cfg(feature = "sqlite")]
checkpointer_conformance!(store_sqlite_directory, crate::checkpointer::store_sqlite_directory);

#[cfg(feature = "sled")]
async fn store_sled() -> Fresh<dyn Checkpointer> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SledStore::open(directory.path().join("store.sled")).unwrap();
    of(StoreCheckpointer::new(Arc::new(store))).keeping(directory)
}

#[cfg(feature = "sled")]
checkpointer_conformance!(store_sled, crate::checkpointer::store_sled);

/// Makes the checkpointer over a store on a server.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn on(store: crate::servers::OnServer) -> Fresh<dyn Checkpointer> {
    let (store, keep) = store;
    of(StoreCheckpointer::new(store)).keeping(keep)
}

#[cfg(feature = "mysql")]
async fn store_mysql() -> Fresh<dyn Checkpointer> {
    on(crate::servers::mysql::fresh().await)
}

#[cfg(feature = "mysql")]
checkpointer_conformance!(
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    store_mysql,
    crate::checkpointer::store_mysql
);

#[cfg(feature = "postgres")]
async fn store_postgres() -> Fresh<dyn Checkpointer> {
    on(crate::servers::postgres::fresh().await)
}

#[cfg(feature = "postgres")]
checkpointer_conformance!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    store_postgres,
    crate::checkpointer::store_postgres
);

#[cfg(feature = "redis")]
async fn store_redis() -> Fresh<dyn Checkpointer> {
    on(crate::servers::redis::fresh().await)
}

#[cfg(feature = "redis")]
checkpointer_conformance!(
    #[ignore = "needs Redis: run scripts/servers.sh"]
    store_redis,
    crate::checkpointer::store_redis
);
