//! What every raw engine is asked to do.

use crate::work::{BODY, ROWS, WRITERS, body, by_writers, key, shuffled};
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use std::pin::Pin;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// A row.
pub(crate) type Row = (String, Vec<u8>);

/// Puts one row durably, as one of many writers.
pub(crate) type Writer = Arc<dyn Fn(Row) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// An engine without this crate.
pub(crate) trait Raw: Send + 'static {
    fn get(&self, key: &str) -> Option<Vec<u8>>;
    /// Puts rows in one durable step.
    fn put(&mut self, rows: &[Row]);
    /// Replaces a body if it is still that of a number, which the engine keeps beside it or finds by reading.
    fn compare_and_swap(&mut self, key: &str, number: u64, value: Vec<u8>);
    /// Returns the bytes of all keys that start with a prefix, and of their bodies if asked.
    fn scan(&self, prefix: &str, with_values: bool) -> usize;
    /// Becomes what many writers use at once.
    fn into_writer(self, runtime: &Runtime) -> Writer;
}

/// Runs the work of `bench_store` on an engine without this crate.
pub(crate) fn bench_raw(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime, name: &str, mut raw: impl Raw) {
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(500) {
        raw.put(&chunk.iter().map(|number| (key(*number), body())).collect::<Vec<_>>());
    }
    let mut number = 0;
    let mut next = move || {
        number += 1;
        shuffled(number)
    };
    group.bench_function(format!("get/{name}"), |bencher| bencher.iter(|| raw.get(&key(next())).unwrap()));
    group.bench_function(format!("scan_10000_keys/{name}"), |bencher| bencher.iter(|| assert!(raw.scan("notes/", false) >= ROWS)));
    group.bench_function(format!("scan_10000_values/{name}"), |bencher| bencher.iter(|| assert!(raw.scan("notes/", true) >= ROWS * BODY)));
    group.bench_function(format!("put/{name}"), |bencher| bencher.iter(|| raw.put(&[(key(next()), body())])));
    group.bench_function(format!("batch_of_20/{name}"), |bencher| {
        bencher.iter(|| raw.put(&(0..20).map(|_| (key(next()), body())).collect::<Vec<_>>()));
    });
    group.bench_function(format!("compare_and_swap/{name}"), |bencher| {
        raw.put(&[("counter".to_owned(), body())]);
        let mut number = 0;
        bencher.iter(|| {
            raw.compare_and_swap("counter", number, body());
            number += 1;
        });
    });
    let writer = raw.into_writer(runtime);
    group.bench_function(format!("put_{WRITERS}_writers/{name}"), |bencher| {
        bencher.iter_custom(|count| {
            let writer = writer.clone();
            by_writers(runtime, count, move |key, body| writer((key, body)))
        });
    });
}
