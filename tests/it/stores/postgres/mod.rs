//! PostgreSQL: refusals, sharing between processes, broken connections, and the cost of calls.

mod batches;
mod connections;
mod costs;
mod keys;
mod partitions;
mod refusals;
mod sharing;

use crate::servers::postgres::Schema;
use crate::stores::namespace;
use treehold::ops::Version;
use treehold::store::{Batch, Condition, PostgresStore, Store};

async fn open(schema: &Schema) -> PostgresStore {
    PostgresStore::open_with(schema.options()).await.unwrap()
}

async fn put(store: &PostgresStore, key: &str, value: &str) -> Version {
    store.commit(Batch::new().put(&namespace(), key, value.to_owned())).await.unwrap()[0]
}

async fn value(store: &PostgresStore, key: &str) -> Option<String> {
    let item = store.get(&namespace(), key).await.unwrap()?;
    Some(String::from_utf8(item.value.to_vec()).unwrap())
}

/// Returns a batch that needs a transaction: only batches without conditions do without.
fn conditional(key: &str) -> Batch {
    Batch::new().expect(&namespace(), key, Condition::Absent).put(&namespace(), key, "v")
}
