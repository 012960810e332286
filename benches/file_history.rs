//! Puts of a file with a history beside puts without, on SQLite: interleaved, in the same run, each in a tree of its own.
//!
//! Prints a table of medians and their ratio, which should stay at or below 1.3. Without `--bench`, as a test, it runs once at a small size.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};
use treehold::backend::HistoryPolicy;
use treehold::store::{Namespace, SqliteStore, Store};
use treehold::{BackendExt, StoreBackend};

/// The sizes of the file in bytes: a short note, a page, a long document.
const SIZES: [usize; 3] = [200, 4 << 10, 64 << 10];

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let puts = if is_bench { 400 } else { 3 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("{:>8}  {:>12}  {:>12}  {:>12}  ratio", "bytes", "without", "history", "full history");
    for size in SIZES {
        let [without, with, full] = runtime.block_on(medians(size, puts));
        let ratio = full.as_secs_f64() / without.as_secs_f64();
        println!("{size:>8}  {without:>12.1?}  {with:>12.1?}  {full:>12.1?}  {ratio:.2}");
    }
}

/// Returns the median of a put without a history, of one with a history of few versions, and of one with as many as are kept.
async fn medians(size: usize, puts: usize) -> [Duration; 3] {
    let directory = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path().join("bench.db")).unwrap());
    let tree = |name: &str| StoreBackend::new(store.clone(), Namespace::new(["bench", name]).unwrap());
    let plain = tree("plain");
    let short = tree("short").with_history(HistoryPolicy::new().with_keep_last(2));
    let full = tree("full").with_history(HistoryPolicy::new());
    let trees = [&plain, &short, &full];
    let content = |number: usize| format!("{number:>8}").repeat(size.div_ceil(8));
    for number in 0..30 {
        for tree in trees {
            tree.write("/notes.md", content(number)).await.unwrap();
        }
    }
    let mut times = [const { Vec::new() }; 3];
    for number in 0..puts {
        for (tree, times) in trees.into_iter().zip(&mut times) {
            let content = content(number);
            let start = Instant::now();
            tree.write("/notes.md", content).await.unwrap();
            times.push(start.elapsed());
        }
    }
    times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    })
}
