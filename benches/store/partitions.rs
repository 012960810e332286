//! Sixteen writers of sixteen partitions, beside sixteen writers of one, and beside the raw engine with a file or a connection for each.

use crate::work::{WRITERS, body, key, shuffled};
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use treehold::store::{Batch, Namespace, SqliteDirectory, SqliteStore, Store};

pub(crate) fn bench(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Arc<Runtime>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    bench_partitions(group, runtime, "sqlite", &(Arc::new(SqliteStore::open(path.join("store.db")).unwrap()) as Arc<dyn Store>));
    let by_file: Arc<dyn Store> = Arc::new(SqliteDirectory::open(path.join("store")).unwrap());
    bench_partitions(group, runtime, "sqlite_directory", &by_file);
    let files: Vec<_> = (0..WRITERS).map(|number| raw_file(&path.join(format!("{number}.db")))).collect();
    group.bench_function("put_16_writers_of_16_partitions/sqlite_raw", |bencher| {
        bencher.iter_custom(|count| {
            let started = Instant::now();
            std::thread::scope(|threads| {
                for (writer, file) in files.iter().enumerate() {
                    threads.spawn(move || {
                        for number in (writer..count as usize).step_by(WRITERS) {
                            let sql = "INSERT INTO rows(key, value) VALUES (?1, ?2) ON CONFLICT(key) DO UPDATE SET value = ?2";
                            file.lock().prepare_cached(sql).unwrap().execute((key(shuffled(number)), body())).unwrap();
                        }
                    });
                }
            });
            started.elapsed()
        });
    });
    #[cfg(feature = "redis")]
    cluster(group, runtime);
}

/// The cluster that the tests use, if there is one: `scripts/redis-cluster.sh` starts it.
#[cfg(feature = "redis")]
fn cluster(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Arc<Runtime>) {
    let Ok(url) = std::env::var("TREEHOLD_TEST_REDIS_CLUSTER_URL") else {
        println!("Redis Cluster is omitted: `scripts/redis-cluster.sh` starts one");
        return;
    };
    let options = treehold::store::RedisOptions::new(url).with_prefix(format!("bench-{}", std::process::id()));
    let store: Arc<dyn Store> = Arc::new(runtime.block_on(treehold::store::RedisStore::open_with(options)).unwrap());
    bench_partitions(group, runtime, "redis_cluster", &store);
}

/// Puts by sixteen writers, into one partition and into one for each.
pub(crate) fn bench_partitions(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime, name: &str, store: &Arc<dyn Store>) {
    for partitions in [1, WRITERS] {
        group.bench_function(format!("put_16_writers_of_{partitions}_partitions/{name}"), |bencher| {
            bencher.iter_custom(|count| by_writers(runtime, store, partitions, count));
        });
    }
}

/// Has sixteen tasks put `count` rows in all, spread over partitions. Returns how long it took.
fn by_writers(runtime: &Runtime, store: &Arc<dyn Store>, partitions: usize, count: u64) -> Duration {
    runtime.block_on(async {
        let started = Instant::now();
        let tasks: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let store = store.clone();
                let space = Namespace::new(["acme", &format!("user-{}", writer % partitions), "memories"]).unwrap();
                tokio::spawn(async move {
                    for number in (writer..count as usize).step_by(WRITERS) {
                        store.commit(Batch::new().put(&space, key(shuffled(number)), body())).await.unwrap();
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

fn raw_file(path: &Path) -> Mutex<rusqlite::Connection> {
    let connection = rusqlite::Connection::open(path).unwrap();
    let setup = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -1024;
                 CREATE TABLE rows(key TEXT PRIMARY KEY, value BLOB NOT NULL)";
    connection.execute_batch(setup).unwrap();
    Mutex::new(connection)
}
