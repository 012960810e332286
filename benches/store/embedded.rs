//! The embedded engines: SQLite and sled.

use crate::raw::{Raw, Row, Writer, bench_raw};
use crate::work::bench_store;
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use parking_lot::Mutex;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use treehold::store::{SledStore, SqliteStore};

pub(crate) fn bench(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    bench_store(group, runtime, "sqlite", || Arc::new(SqliteStore::open(path.join("store.db")).unwrap()));
    bench_raw(group, runtime, "sqlite_raw", |name| RawSqlite::open(&path.join(name)));
    bench_store(group, runtime, "sled", || Arc::new(SledStore::open(path.join("store.sled")).unwrap()));
    bench_raw(group, runtime, "sled_raw", |name| RawSled::open(&path.join(format!("{name}.sled"))));
}

#[derive(Clone)]
struct RawSqlite(Arc<Mutex<rusqlite::Connection>>);

impl RawSqlite {
    fn open(path: &Path) -> Self {
        let connection = rusqlite::Connection::open(path).unwrap();
        let setup = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -8192;
                     CREATE TABLE rows(key TEXT PRIMARY KEY, value BLOB NOT NULL)";
        connection.execute_batch(setup).unwrap();
        Self(Arc::new(Mutex::new(connection)))
    }
}

impl Raw for RawSqlite {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        let connection = self.0.lock();
        let mut statement = connection.prepare_cached("SELECT value FROM rows WHERE key = ?1").unwrap();
        statement.query_row((key,), |row| row.get(0)).ok()
    }

    fn put(&mut self, rows: &[Row]) {
        let mut connection = self.0.lock();
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
        for (key, value) in rows {
            let sql = "INSERT INTO rows(key, value) VALUES (?1, ?2) ON CONFLICT(key) DO UPDATE SET value = ?2";
            transaction.prepare_cached(sql).unwrap().execute((key, value)).unwrap();
        }
        transaction.commit().unwrap();
    }

    fn compare_and_swap(&mut self, key: &str, _number: u64, value: Vec<u8>) {
        assert!(self.get(key).is_some());
        self.put(&[(key.to_owned(), value)]);
    }

    fn scan(&self, prefix: &str, with_values: bool) -> usize {
        let columns = if with_values { "key, value" } else { "key, NULL" };
        let sql = format!("SELECT {columns} FROM rows WHERE key >= ?1 AND key < ?2 ORDER BY key");
        let connection = self.0.lock();
        let mut statement = connection.prepare_cached(&sql).unwrap();
        let end = format!("{prefix}\u{10FFFF}");
        let rows = statement.query_map((prefix, end), |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<Vec<u8>>>(1)?))).unwrap();
        rows.map(|row| row.unwrap()).map(|(key, value)| key.len() + value.map_or(0, |value| value.len())).sum()
    }

    fn writer(&mut self, _runtime: &Runtime) -> Writer {
        grouped(self.clone())
    }
}

#[derive(Clone)]
struct RawSled(sled::Db, Arc<File>);

impl RawSled {
    fn open(path: &Path) -> Self {
        let rows = sled::Config::new().path(path).cache_capacity(64 << 20).mode(sled::Mode::LowSpace).open().unwrap();
        Self(rows, Arc::new(File::open(path.join("db")).unwrap()))
    }
}

impl Raw for RawSled {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.0.get(key).unwrap().map(|value| value.to_vec())
    }

    fn put(&mut self, rows: &[Row]) {
        let mut batch = sled::Batch::default();
        rows.iter().for_each(|(key, value)| batch.insert(key.as_bytes(), value.as_slice()));
        self.0.apply_batch(batch).unwrap();
        self.0.flush().unwrap();
        self.1.sync_data().unwrap();
    }

    fn compare_and_swap(&mut self, key: &str, _number: u64, value: Vec<u8>) {
        assert!(self.get(key).is_some());
        self.put(&[(key.to_owned(), value)]);
    }

    fn scan(&self, prefix: &str, with_values: bool) -> usize {
        let rows = self.0.scan_prefix(prefix).map(|row| row.unwrap());
        rows.map(|(key, value)| key.len() + if with_values { value.to_vec().len() } else { 0 }).sum()
    }

    fn writer(&mut self, _runtime: &Runtime) -> Writer {
        grouped(self.clone())
    }
}

/// Group commit for a raw engine.
fn grouped(mut raw: impl Raw) -> Writer {
    let (queue, mut waiting) = mpsc::channel::<(Row, oneshot::Sender<()>)>(1_024);
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
                let _: Result<(), ()> = answer.send(());
            }
        }
    });
    Arc::new(move |row| {
        let queue = queue.clone();
        Box::pin(async move {
            let (answer, done) = oneshot::channel();
            queue.send((row, answer)).await.unwrap();
            done.await.unwrap();
        })
    })
}
