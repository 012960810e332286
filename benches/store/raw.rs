//! The workload of every raw engine.

use crate::work::{BODY, ROWS, WRITERS, body, by_writers, key, listed_directory, listed_files, shuffled};
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use std::cell::{OnceCell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// A row.
pub(crate) type Row = (String, Vec<u8>);

/// Durably puts one row, as one of many writers.
pub(crate) type Writer = Arc<dyn Fn(Row) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// An engine used without this crate.
pub(crate) trait Raw: Send + 'static {
    fn get(&self, key: &str) -> Option<Vec<u8>>;
    /// Puts rows in one durable step.
    fn put(&mut self, rows: &[Row]);
    /// Replaces a body if it is still the one with this number, which the engine stores beside it or determines by
    /// reading.
    fn compare_and_swap(&mut self, key: &str, number: u64, value: Vec<u8>);
    /// Returns the total bytes of all keys with a prefix, and of their bodies if requested.
    fn scan(&self, prefix: &str, with_values: bool) -> usize;
    /// Makes a handle for many concurrent writers; the engine is not used otherwise meanwhile.
    fn writer(&mut self, runtime: &Runtime) -> Writer;
}

/// Runs the workload of `bench_store` on an engine without this crate. `open` gets the name of a table or file.
pub(crate) fn bench_raw<R: Raw>(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime, name: &str, open: impl Fn(&str) -> R) {
    let filled = OnceCell::new();
    let raw = || {
        filled.get_or_init(|| {
            let mut raw = open("raw");
            for chunk in (0..ROWS).collect::<Vec<_>>().chunks(500) {
                raw.put(&chunk.iter().map(|number| (key(*number), body())).collect::<Vec<_>>());
            }
            RefCell::new(raw)
        })
    };
    let mut number = 0;
    let mut next = move || {
        number += 1;
        shuffled(number)
    };
    group.bench_function(format!("get/{name}"), |bencher| {
        let raw = raw().borrow();
        bencher.iter(|| raw.get(&key(next())).unwrap());
    });
    group.bench_function(format!("scan_10000_keys/{name}"), |bencher| {
        let raw = raw().borrow();
        bencher.iter(|| assert!(raw.scan("notes/", false) >= ROWS));
    });
    group.bench_function(format!("scan_10000_values/{name}"), |bencher| {
        let raw = raw().borrow();
        bencher.iter(|| assert!(raw.scan("notes/", true) >= ROWS * *BODY));
    });
    group.bench_function(format!("put/{name}"), |bencher| {
        let mut raw = raw().borrow_mut();
        bencher.iter(|| raw.put(&[(key(next()), body())]));
    });
    group.bench_function(format!("batch_of_20/{name}"), |bencher| {
        let mut raw = raw().borrow_mut();
        bencher.iter(|| raw.put(&(0..20).map(|_| (key(next()), body())).collect::<Vec<_>>()));
    });
    let mut swaps = 0;
    group.bench_function(format!("compare_and_swap/{name}"), |bencher| {
        let mut raw = raw().borrow_mut();
        if swaps == 0 {
            raw.put(&[("counter".to_owned(), body())]);
        }
        bencher.iter(|| {
            raw.compare_and_swap("counter", swaps, body());
            swaps += 1;
        });
    });
    let mut writer = None;
    group.bench_function(format!("put_{WRITERS}_writers/{name}"), |bencher| {
        let writer = writer.get_or_insert_with(|| raw().borrow_mut().writer(runtime));
        bencher.iter_custom(|count| {
            let writer = writer.clone();
            by_writers(runtime, count, move |key, body| writer((key, body)))
        });
    });
    // One directory by key range. A program that does this must drop deeper entries itself.
    let listed = OnceCell::new();
    let mut number = 0;
    group.bench_function(format!("ls_200_of_100000/{name}"), |bencher| {
        let listed = listed.get_or_init(|| {
            let mut listed = open("listed");
            for chunk in listed_files().collect::<Vec<_>>().chunks(500) {
                listed.put(&chunk.iter().map(|path| (path.clone(), b"small".to_vec())).collect::<Vec<_>>());
            }
            listed
        });
        bencher.iter(|| {
            number += 1;
            assert!(listed.scan(&format!("{}/", listed_directory(number)), false) > 0);
        });
    });
}
