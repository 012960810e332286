//! Every backend, and composites that hold them: one row each.

use crate::{indexed_trees, trees};
use treehold::backend_conformance;

backend_conformance!(model, trees::model);
backend_conformance!(state, trees::state);
backend_conformance!(store_memory, trees::store_memory);
backend_conformance!(store_small_pages, trees::store_small_pages);
backend_conformance!(store_with_history, trees::store_with_history);
backend_conformance!(store_indexed, trees::store_indexed);
#[cfg(feature = "sqlite")]
backend_conformance!(store_indexed_sqlite, indexed_trees::sqlite);
#[cfg(feature = "sled")]
backend_conformance!(store_indexed_sled, indexed_trees::sled);
#[cfg(feature = "postgres")]
backend_conformance!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    store_indexed_postgres,
    indexed_trees::postgres
);
#[cfg(feature = "sqlite")]
backend_conformance!(store_sqlite, trees::store_sqlite);
#[cfg(feature = "sqlite")]
async fn store_sqlite_directory() -> treehold::conformance::Fresh<treehold::conformance::backend::Tree> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SqliteDirectory::open(directory.path().join("store")).unwrap();
    trees::rows_tree(store).fresh().keeping(directory)
}

#[cfg(feature = "sqlite")]
backend_conformance!(store_sqlite_directory, crate::backend::store_sqlite_directory);
#[cfg(feature = "sled")]
backend_conformance!(store_sled, trees::store_sled);
#[cfg(feature = "mysql")]
backend_conformance!(
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    store_mysql,
    trees::store_mysql
);
#[cfg(feature = "postgres")]
backend_conformance!(
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    store_postgres,
    trees::store_postgres
);
#[cfg(feature = "redis")]
backend_conformance!(
    #[ignore = "needs Redis: run scripts/servers.sh"]
    store_redis,
    trees::store_redis
);
#[cfg(feature = "filesystem")]
backend_conformance!(filesystem, trees::filesystem);
#[cfg(feature = "filesystem")]
backend_conformance!(filesystem_by_component, trees::filesystem_by_component);
backend_conformance!(composite_default, trees::composite_default);
backend_conformance!(composite_mount, trees::composite_mount);
backend_conformance!(composite_nested, trees::composite_nested);
backend_conformance!(composite_three_deep, trees::composite_three_deep);
backend_conformance!(composite_merged, trees::composite_merged);
backend_conformance!(composite_merged_mount, trees::composite_merged_mount);
backend_conformance!(subtree, trees::subtree);
backend_conformance!(overlay_empty, trees::overlay_empty);
backend_conformance!(overlay_store, trees::overlay_store);
backend_conformance!(overlay_beside, trees::overlay_beside);
backend_conformance!(overlay_hiding, trees::overlay_hiding);
backend_conformance!(overlay_nested, trees::overlay_nested);
#[cfg(feature = "filesystem")]
backend_conformance!(overlay_filesystem, trees::overlay_filesystem);
