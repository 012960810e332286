//! The stores compared with their raw engines, for the same bytes and durability in the same run.
//!
//! `raw` uses the engine directly, as a program without this crate would: one table or tree of keys and values, and for
//! a server its usual client with prepared statements. Sixteen raw writers do what is best for the engine: embedded
//! engines share commits through a thread that groups waiting writes, and on a server each writer has its own
//! connection.
//!
//! Servers are expected where the tests expect them (`TREEHOLD_TEST_POSTGRES_URL` and so on); those that are missing
//! are omitted with a notice.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use criterion::{Criterion, criterion_group, criterion_main};
use std::sync::Arc;
use std::time::Duration;
use treehold::store::MemoryStore;

mod embedded;
mod files;
mod partitions;
mod raw;
#[cfg(all(feature = "mysql", feature = "postgres", feature = "redis"))]
mod servers;
mod work;

fn stores(criterion: &mut Criterion) {
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());
    let mut group = criterion.benchmark_group("store");
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
    work::bench_store(&mut group, &runtime, "memory", || Arc::new(MemoryStore::new()));
    embedded::bench(&mut group, &runtime);
    #[cfg(all(feature = "mysql", feature = "postgres", feature = "redis"))]
    servers::bench(&mut group, &runtime);
    files::bench(&mut group, &runtime);
    partitions::bench(&mut group, &runtime);
    group.finish();
}

criterion_group!(benches, stores);
criterion_main!(benches);
