//! The stores: one row each.

use std::sync::Arc;
use treehold::conformance::Fresh;
use treehold::store::{MemoryStore, Store};

async fn fresh_memory() -> Fresh<dyn Store> {
    Fresh::new(Arc::new(MemoryStore::new()))
}

treehold::store_conformance!(memory, fresh_memory);

#[cfg(feature = "sqlite")]
async fn fresh_sqlite() -> Fresh<dyn Store> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SqliteStore::open(directory.path().join("store.db")).unwrap();
    Fresh::new(Arc::new(store) as Arc<dyn Store>).keeping(directory)
}

#[cfg(feature = "sqlite")]
treehold::store_conformance!(sqlite, fresh_sqlite);

#[cfg(feature = "sqlite")]
async fn fresh_sqlite_directory() -> Fresh<dyn Store> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SqliteDirectory::open(directory.path().join("store")).unwrap();
    Fresh::new(Arc::new(store) as Arc<dyn Store>).keeping(directory)
}

#[cfg(feature = "sqlite")]
treehold::store_conformance!(sqlite_directory, fresh_sqlite_directory);

#[cfg(feature = "sled")]
async fn fresh_sled() -> Fresh<dyn Store> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SledStore::open(directory.path().join("store.sled")).unwrap();
    Fresh::new(Arc::new(store) as Arc<dyn Store>).keeping(directory)
}

#[cfg(feature = "sled")]
treehold::store_conformance!(sled, fresh_sled);

#[cfg(feature = "postgres")]
async fn fresh_postgres() -> Fresh<dyn Store> {
    crate::servers::fresh(crate::servers::postgres::fresh().await)
}

#[cfg(feature = "postgres")]
treehold::store_conformance!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    postgres,
    fresh_postgres
);

#[cfg(feature = "redis")]
async fn fresh_redis() -> Fresh<dyn Store> {
    crate::servers::fresh(crate::servers::redis::fresh().await)
}

#[cfg(feature = "redis")]
treehold::store_conformance!(
    #[ignore = "needs Redis: run scripts/servers.sh"]
    redis,
    fresh_redis
);

#[cfg(feature = "redis")]
async fn fresh_redis_cluster() -> Fresh<dyn Store> {
    crate::servers::fresh(crate::servers::redis::fresh_in_cluster().await)
}

#[cfg(feature = "redis")]
treehold::store_conformance!(
    #[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
    redis_cluster,
    fresh_redis_cluster
);

#[cfg(feature = "mysql")]
async fn fresh_mysql() -> Fresh<dyn Store> {
    crate::servers::fresh(crate::servers::mysql::fresh().await)
}

#[cfg(feature = "mysql")]
treehold::store_conformance!(
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    mysql,
    fresh_mysql
);

#[cfg(feature = "mysql")]
async fn fresh_galera() -> Fresh<dyn Store> {
    crate::servers::fresh(crate::servers::galera::fresh().await)
}

#[cfg(feature = "mysql")]
treehold::store_conformance!(
    #[ignore = "needs a MariaDB Galera cluster: run scripts/galera.sh"]
    galera,
    fresh_galera
);
