//! The stores beside their raw engines, doing the same bytes with the same durability in the same run.
//!
//! `raw` is the engine used directly, as a program without this crate would: one table or tree of keys and values. Its
//! sixteen writers share commits through a thread that gathers what waits, because that is the best the engine can do.

#![allow(missing_docs, clippy::unwrap_used)]

use bytes::Bytes;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stratafs::ops::{ApplyOptions, Change, ReadOptions, WriteMode};
use stratafs::store::{Batch, Condition, MemoryStore, Namespace, ScanOptions, SledStore, SqliteStore, Store};
use stratafs::{Backend, StoreBackend, VfsPathBuf};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

const ROWS: usize = 10_000;
const BODY: usize = 4_096;
const WRITERS: usize = 16;

fn key(number: usize) -> String {
    format!("notes/project-{:03}/2026/a-name-of-a-file-{:06}.md", number % 100, number % ROWS)
}

/// Passes over all numbers in an order that is not that of the keys.
fn shuffled(number: usize) -> usize {
    number.wrapping_mul(7_919) % ROWS
}

/// Returns a body that was never written before: engines leave a page alone that would not change.
fn body() -> Vec<u8> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let stamp = WRITTEN.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    stamp.repeat(BODY / stamp.len())
}

fn namespace() -> Namespace {
    Namespace::new(["acme", "ada", "memories"]).unwrap()
}

/// An engine without this crate.
trait Raw: Send + 'static {
    fn get(&self, key: &str) -> Option<Vec<u8>>;
    /// Puts rows in one durable step.
    fn put(&mut self, rows: &[(String, Vec<u8>)]);
    /// Returns the bytes of all keys, and of bodies if asked.
    fn scan(&self, with_values: bool) -> usize;
}

struct RawSqlite(rusqlite::Connection);

impl RawSqlite {
    fn open(directory: &Path) -> Self {
        let connection = rusqlite::Connection::open(directory.join("raw.db")).unwrap();
        let setup = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -8192;
                     CREATE TABLE rows(key TEXT PRIMARY KEY, value BLOB NOT NULL)";
        connection.execute_batch(setup).unwrap();
        Self(connection)
    }
}

impl Raw for RawSqlite {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut statement = self.0.prepare_cached("SELECT value FROM rows WHERE key = ?1").unwrap();
        statement.query_row((key,), |row| row.get(0)).ok()
    }

    fn put(&mut self, rows: &[(String, Vec<u8>)]) {
        let transaction = self.0.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
        for (key, value) in rows {
            let sql = "INSERT INTO rows(key, value) VALUES (?1, ?2) ON CONFLICT(key) DO UPDATE SET value = ?2";
            transaction.prepare_cached(sql).unwrap().execute((key, value)).unwrap();
        }
        transaction.commit().unwrap();
    }

    fn scan(&self, with_values: bool) -> usize {
        let sql = if with_values { "SELECT key, value FROM rows ORDER BY key" } else { "SELECT key, NULL FROM rows ORDER BY key" };
        let mut statement = self.0.prepare_cached(sql).unwrap();
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<Vec<u8>>>(1)?))).unwrap();
        rows.map(|row| row.unwrap()).map(|(key, value)| key.len() + value.map_or(0, |value| value.len())).sum()
    }
}

struct RawSled(sled::Db, File);

impl RawSled {
    fn open(directory: &Path) -> Self {
        let path = directory.join("raw.sled");
        let rows = sled::Config::new().path(&path).cache_capacity(64 << 20).mode(sled::Mode::LowSpace).open().unwrap();
        Self(rows, File::open(path.join("db")).unwrap())
    }
}

impl Raw for RawSled {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.0.get(key).unwrap().map(|value| value.to_vec())
    }

    fn put(&mut self, rows: &[(String, Vec<u8>)]) {
        let mut batch = sled::Batch::default();
        rows.iter().for_each(|(key, value)| batch.insert(key.as_bytes(), value.as_slice()));
        self.0.apply_batch(batch).unwrap();
        self.0.flush().unwrap();
        self.1.sync_data().unwrap();
    }

    fn scan(&self, with_values: bool) -> usize {
        self.0.iter().map(|row| row.unwrap()).map(|(key, value)| key.len() + if with_values { value.to_vec().len() } else { 0 }).sum()
    }
}

/// Group commit for a raw engine.
type Queue = mpsc::Sender<((String, Vec<u8>), oneshot::Sender<()>)>;

fn grouped(mut raw: impl Raw) -> Queue {
    let (queue, mut waiting) = mpsc::channel(1_024);
    std::thread::spawn(move || {
        while let Some((row, answer)) = waiting.blocking_recv() {
            let (mut rows, mut answers) = (vec![row], vec![answer]);
            while rows.len() < 64
                && let Ok((row, answer)) = waiting.try_recv()
            {
                rows.push(row);
                answers.push(answer);
            }
            raw.put(&rows);
            for answer in answers {
                let _: Result<(), ()> = oneshot::Sender::send(answer, ());
            }
        }
    });
    queue
}

/// Lets sixteen tasks put `count` rows in all, and returns how long it took.
fn by_writers<F: Future<Output = ()> + Send>(
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

fn bench_store(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime, name: &str, store: Arc<dyn Store>) {
    let space = namespace();
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(500) {
        let batch = chunk.iter().fold(Batch::new(), |batch, number| batch.put(&space, key(*number), body()));
        runtime.block_on(store.commit(batch)).unwrap();
    }
    let mut number = 0;
    let mut next = move || {
        number += 1;
        shuffled(number)
    };
    group.bench_function(format!("get/{name}"), |bencher| {
        bencher.iter(|| runtime.block_on(store.get(&space, &key(next()))).unwrap().unwrap().value);
    });
    // The same number of files of the same size, read as files.
    let tree = StoreBackend::new(store.clone(), Namespace::new(["acme", "ada", "files"]).unwrap());
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(500) {
        let write = |number: &usize| {
            let path = VfsPathBuf::parse(format!("/{}", key(*number))).unwrap();
            Change::Write { path, content: body().into(), mode: WriteMode::Overwrite }
        };
        let batch: Vec<Change> = chunk.iter().map(write).collect();
        runtime.block_on(tree.apply(&batch, &ApplyOptions::new())).unwrap();
    }
    group.bench_function(format!("read_through_backend/{name}"), |bencher| {
        bencher.iter(|| {
            let path = VfsPathBuf::parse(format!("/{}", key(next()))).unwrap();
            runtime.block_on(tree.read(&path, &ReadOptions::new())).unwrap().content
        });
    });
    group.bench_function(format!("scan_10000_keys/{name}"), |bencher| {
        bencher.iter(|| assert_eq!(runtime.block_on(scan_all(&*store, &space, false)).0, ROWS));
    });
    group.bench_function(format!("scan_10000_values/{name}"), |bencher| {
        bencher.iter(|| assert_eq!(runtime.block_on(scan_all(&*store, &space, true)).1, ROWS * BODY));
    });
    group.bench_function(format!("put/{name}"), |bencher| {
        bencher.iter(|| runtime.block_on(store.commit(Batch::new().put(&space, key(next()), body()))).unwrap());
    });
    group.bench_function(format!("put_16_writers/{name}"), |bencher| {
        bencher.iter_custom(|count| {
            let (store, space) = (store.clone(), space.clone());
            by_writers(runtime, count, move |key, body| {
                let (store, space) = (store.clone(), space.clone());
                async move { drop(store.commit(Batch::new().put(&space, key, body)).await.unwrap()) }
            })
        });
    });
    group.bench_function(format!("batch_of_20/{name}"), |bencher| {
        bencher.iter(|| {
            let batch = (0..20).fold(Batch::new(), |batch, _| batch.put(&space, key(next()), body()));
            runtime.block_on(store.commit(batch)).unwrap()
        });
    });
    group.bench_function(format!("compare_and_swap/{name}"), |bencher| {
        let mut version = runtime.block_on(store.commit(Batch::new().put(&space, "counter", body()))).unwrap()[0];
        bencher.iter(|| {
            let batch = Batch::new().expect(&space, "counter", Condition::Version(version)).put(&space, "counter", body());
            version = runtime.block_on(store.commit(batch)).unwrap()[0];
        });
    });
}

/// Returns how many rows, and bytes of bodies, all pages hold.
async fn scan_all(store: &dyn Store, space: &Namespace, with_values: bool) -> (usize, usize) {
    let mut options = ScanOptions::new().with_prefix("notes/").with_values(with_values);
    let (mut rows, mut bytes) = (0, 0);
    loop {
        let page = store.scan(space, options.clone()).await.unwrap();
        rows += page.entries.len();
        let values = page.entries.iter().map(|entry| if let stratafs::store::ScanEntry::Item(item) = entry { &item.value } else { &EMPTY });
        bytes += values.map(Bytes::len).sum::<usize>();
        match page.next {
            Some(next) => options = options.with_start_after(next),
            None => return (rows, bytes),
        }
    }
}

static EMPTY: Bytes = Bytes::new();

fn bench_raw(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime, name: &str, mut raw: impl Raw) {
    for chunk in (0..ROWS).collect::<Vec<_>>().chunks(500) {
        raw.put(&chunk.iter().map(|number| (key(*number), body())).collect::<Vec<_>>());
    }
    let mut number = 0;
    let mut next = move || {
        number += 1;
        shuffled(number)
    };
    group.bench_function(format!("get/{name}"), |bencher| bencher.iter(|| raw.get(&key(next())).unwrap()));
    group.bench_function(format!("scan_10000_keys/{name}"), |bencher| bencher.iter(|| raw.scan(false)));
    group.bench_function(format!("scan_10000_values/{name}"), |bencher| bencher.iter(|| raw.scan(true)));
    group.bench_function(format!("put/{name}"), |bencher| bencher.iter(|| raw.put(&[(key(next()), body())])));
    group.bench_function(format!("batch_of_20/{name}"), |bencher| {
        bencher.iter(|| raw.put(&(0..20).map(|_| (key(next()), body())).collect::<Vec<_>>()));
    });
    group.bench_function(format!("compare_and_swap/{name}"), |bencher| {
        raw.put(&[("counter".to_owned(), body())]);
        bencher.iter(|| {
            let current = raw.get("counter").unwrap();
            assert_eq!(current.len(), BODY);
            raw.put(&[("counter".to_owned(), body())]);
        });
    });
    let queue = grouped(raw);
    group.bench_function(format!("put_16_writers/{name}"), |bencher| {
        bencher.iter_custom(|count| {
            let queue = queue.clone();
            by_writers(runtime, count, move |key, body| {
                let queue = queue.clone();
                async move {
                    let (answer, done) = oneshot::channel();
                    queue.send(((key, body), answer)).await.unwrap();
                    done.await.unwrap();
                }
            })
        });
    });
}

fn stores(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let mut group = criterion.benchmark_group("store");
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
    bench_store(&mut group, &runtime, "memory", Arc::new(MemoryStore::new()));
    let directory = tempfile::tempdir().unwrap();
    bench_store(&mut group, &runtime, "sqlite", Arc::new(SqliteStore::open(directory.path().join("store.db")).unwrap()));
    bench_raw(&mut group, &runtime, "sqlite_raw", RawSqlite::open(directory.path()));
    bench_store(&mut group, &runtime, "sled", Arc::new(SledStore::open(directory.path().join("store.sled")).unwrap()));
    bench_raw(&mut group, &runtime, "sled_raw", RawSled::open(directory.path()));
    group.finish();
}

criterion_group!(benches, stores);
criterion_main!(benches);
