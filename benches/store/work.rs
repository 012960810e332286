//! The workload of every store.

use bytes::Bytes;
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use std::cell::LazyCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use treehold::ops::{ApplyOptions, Change, LsOptions, ReadOptions, WriteMode};
use treehold::store::{Batch, Condition, Namespace, ScanEntry, ScanOptions, Store};
use treehold::{Backend, StoreBackend, VfsPath, VfsPathBuf};

pub(crate) const ROWS: usize = 10_000;
/// The length of a body in bytes: 4,096, or as `TREEHOLD_STORE_BODY` says, a multiple of 8.
pub(crate) static BODY: LazyLock<usize> = LazyLock::new(|| {
    let given = std::env::var("TREEHOLD_STORE_BODY").ok();
    given.map_or(4_096, |bytes| bytes.parse().expect("TREEHOLD_STORE_BODY is a number of bytes"))
});
pub(crate) const WRITERS: usize = 16;

/// A tree of 500 directories with 200 files each.
const DIRECTORIES: usize = 500;
const FILES_EACH: usize = 200;

pub(crate) fn key(number: usize) -> String {
    format!("notes/project-{:03}/2026/a-name-of-a-file-{:06}.md", number % 100, number % ROWS)
}

/// Visits all numbers in an order unlike that of the keys.
pub(crate) fn shuffled(number: usize) -> usize {
    number.wrapping_mul(7_919) % ROWS
}

/// Returns a body that was never written before, because engines skip unchanged pages.
pub(crate) fn body() -> Vec<u8> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let stamp = WRITTEN.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    stamp.repeat(*BODY / stamp.len())
}

/// Has sixteen tasks put `count` rows in all. Returns how long it took.
pub(crate) fn by_writers<F: Future<Output = ()> + Send>(
    runtime: &Runtime,
    count: u64,
    put: impl Fn(String, Vec<u8>) -> F + Clone + Send + 'static,
) -> Duration {
    runtime.block_on(async {
        let started = Instant::now();
        let tasks: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let put = put.clone();
                tokio::spawn(async move {
                    for number in (writer..count as usize).step_by(WRITERS) {
                        put(key(shuffled(number)), body()).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        started.elapsed()
    })
}

/// Runs the workload on a store, which the first benchmark that is not filtered out opens and fills before it measures anything.
pub(crate) fn bench_store(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime, name: &str, open: impl FnOnce() -> Arc<dyn Store>) {
    let space = Namespace::new(["acme", "ada", "memories"]).unwrap();
    let opened = LazyCell::new(open);
    let store = LazyCell::new(|| {
        for chunk in (0..ROWS).collect::<Vec<_>>().chunks(500) {
            let batch = chunk.iter().fold(Batch::new(), |batch, number| batch.put(&space, key(*number), body()));
            runtime.block_on(opened.commit(batch)).unwrap();
        }
        opened.clone()
    });
    // As many files of the same size, read as files.
    let tree = LazyCell::new(|| {
        let tree = StoreBackend::new(opened.clone(), Namespace::new(["acme", "ada", "files"]).unwrap());
        write_files(runtime, &tree, (0..ROWS).map(|number| (format!("/{}", key(number)), body())));
        tree
    });
    let large = LazyCell::new(|| {
        let large = StoreBackend::new(opened.clone(), Namespace::new(["acme", "ada", "large"]).unwrap());
        write_files(runtime, &large, listed_files().map(|path| (format!("/{path}"), b"small".to_vec())));
        large
    });
    let mut number = 0;
    let mut next = move || {
        number += 1;
        shuffled(number)
    };
    group.bench_function(format!("get/{name}"), |bencher| {
        let store = &*store;
        bencher.iter(|| runtime.block_on(store.get(&space, &key(next()))).unwrap().unwrap().value);
    });
    group.bench_function(format!("read_through_backend/{name}"), |bencher| {
        let tree = &*tree;
        bencher.iter(|| {
            let path = VfsPathBuf::parse(format!("/{}", key(next()))).unwrap();
            runtime.block_on(tree.read(&path, &ReadOptions::new())).unwrap().content
        });
    });
    group.bench_function(format!("scan_10000_keys/{name}"), |bencher| {
        let store = &*store;
        bencher.iter(|| assert_eq!(runtime.block_on(scan_all(&**store, &space, false)).0, ROWS));
    });
    group.bench_function(format!("scan_10000_values/{name}"), |bencher| {
        let store = &*store;
        bencher.iter(|| assert_eq!(runtime.block_on(scan_all(&**store, &space, true)).1, ROWS * *BODY));
    });
    group.bench_function(format!("put/{name}"), |bencher| {
        let store = &*store;
        bencher.iter(|| runtime.block_on(store.commit(Batch::new().put(&space, key(next()), body()))).unwrap());
    });
    group.bench_function(format!("put_{WRITERS}_writers/{name}"), |bencher| {
        let store = &*store;
        bencher.iter_custom(|count| {
            let (store, space) = (store.clone(), space.clone());
            by_writers(runtime, count, move |key, body| {
                let (store, space) = (store.clone(), space.clone());
                async move { drop(store.commit(Batch::new().put(&space, key, body)).await.unwrap()) }
            })
        });
    });
    group.bench_function(format!("batch_of_20/{name}"), |bencher| {
        let store = &*store;
        bencher.iter(|| {
            let batch = (0..20).fold(Batch::new(), |batch, _| batch.put(&space, key(next()), body()));
            runtime.block_on(store.commit(batch)).unwrap()
        });
    });
    group.bench_function(format!("compare_and_swap/{name}"), |bencher| {
        let store = &*store;
        let mut version = runtime.block_on(store.commit(Batch::new().put(&space, "counter", body()))).unwrap()[0];
        bencher.iter(|| {
            let batch = Batch::new().expect(&space, "counter", Condition::Version(version)).put(&space, "counter", body());
            version = runtime.block_on(store.commit(batch)).unwrap()[0];
        });
    });
    let mut number = 0;
    group.bench_function(format!("ls_{FILES_EACH}_of_100000/{name}"), |bencher| {
        let large = &*large;
        bencher.iter(|| {
            number += 1;
            let path = VfsPathBuf::parse(format!("/{}", listed_directory(number))).unwrap();
            assert_eq!(runtime.block_on(large.ls(&path, &LsOptions::new())).unwrap().entries.len(), FILES_EACH);
        });
    });
}

/// Returns the paths of the tree that is listed.
pub(crate) fn listed_files() -> impl Iterator<Item = String> {
    (0..DIRECTORIES)
        .flat_map(|directory| (0..FILES_EACH).map(move |file| format!("{}/a-name-of-a-file-{file:04}.md", listed_directory(directory))))
}

/// Returns one of its directories, in an order unlike theirs.
pub(crate) fn listed_directory(number: usize) -> String {
    format!("tree/project-{:03}", number.wrapping_mul(7_919) % DIRECTORIES)
}

pub(crate) fn delete_of(path: &VfsPath) -> Change {
    Change::Delete { path: path.to_owned(), recursive: true, expect: None }
}

pub(crate) fn write_files(runtime: &Runtime, tree: &StoreBackend, files: impl Iterator<Item = (String, Vec<u8>)>) {
    let files: Vec<_> = files.collect();
    for chunk in files.chunks(500) {
        let write = |(path, content): &(String, Vec<u8>)| Change::Write {
            path: VfsPathBuf::parse(path.clone()).unwrap(),
            content: content.clone().into(),
            mode: WriteMode::Overwrite,
        };
        let batch: Vec<Change> = chunk.iter().map(write).collect();
        runtime.block_on(tree.apply(&batch, &ApplyOptions::new())).unwrap();
    }
}

/// Returns the number of rows and the bytes of their bodies over all pages.
async fn scan_all(store: &dyn Store, space: &Namespace, with_values: bool) -> (usize, usize) {
    let mut options = ScanOptions::new().with_prefix("notes/").with_values(with_values);
    let (mut rows, mut bytes) = (0, 0);
    loop {
        let page = store.scan(space, options.clone()).await.unwrap();
        rows += page.entries.len();
        let values = page.entries.iter().map(|entry| if let ScanEntry::Item(item) = entry { &item.value } else { &EMPTY });
        bytes += values.map(Bytes::len).sum::<usize>();
        match page.next {
            Some(next) => options = options.with_start_after(next),
            None => return (rows, bytes),
        }
    }
}

static EMPTY: Bytes = Bytes::new();
