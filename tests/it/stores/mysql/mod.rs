//! MySQL and MariaDB: round trips, broken connections, processes that share a store, long keys, servers that refuse.

mod batches;
mod connections;
mod contents;
mod costs;
mod partitions;
mod refusals;
mod sharing;

use crate::servers::mysql::{Database, administer};
use crate::servers::proxy::Proxy;
use mysql_async::prelude::Queryable;
use std::time::Duration;
use treehold::store::{MysqlOptions, MysqlStore};

const PATIENCE: Duration = Duration::from_secs(120);

/// Opens the store of a database through a proxy, on one connection.
async fn proxied(database: &Database) -> (MysqlStore, Proxy) {
    proxied_within(database, Duration::from_secs(60)).await
}

/// Opens it with a limit on how long an answer may take.
async fn proxied_within(database: &Database, timeout: Duration) -> (MysqlStore, Proxy) {
    let (proxy, url) = crate::servers::mysql::proxied(&database.url).await;
    let store = MysqlStore::open_with(MysqlOptions::new(url).with_connections_max(1).with_timeout(timeout)).await.unwrap();
    (store, proxy)
}

/// Waits until a commit of the store waits for the counter row.
async fn blocked(database: &Database) -> u64 {
    loop {
        let sql = format!(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = '{}' AND COMMAND = 'Query' AND INFO LIKE '%FOR UPDATE%'",
            database.name
        );
        if let Some(row) = administer(&sql).await.unwrap().into_iter().next() {
            return row.get(0).unwrap();
        }
        tokio::task::yield_now().await;
    }
}

/// Locks the counter row, as a writer in another process does.
async fn lock(database: &Database) -> mysql_async::Conn {
    let mut other = mysql_async::Conn::from_url(&database.url).await.unwrap();
    other.query_drop("START TRANSACTION; SELECT version FROM treehold_partitions FOR UPDATE").await.unwrap();
    other
}
