//! SQLite and sled.

use crate::raw::{Raw, Row, Writer, bench_raw};
use crate::work::{bench_store, listed_directory, listed_files};
use criterion::BenchmarkGroup;
use criterion::measurement::WallTime;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use stratafs::store::{SledStore, SqliteStore};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

pub(crate) fn bench(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime) {
    let directory = tempfile::tempdir().unwrap();
    bench_store(group, runtime, "sqlite", Arc::new(SqliteStore::open(directory.path().join("store.db")).unwrap()));
    bench_ls(group, "sqlite_raw", RawSqlite::open(directory.path(), "listed.db"));
    bench_raw(group, runtime, "sqlite_raw", RawSqlite::open(directory.path(), "raw.db"));
    bench_store(group, runtime, "sled", Arc::new(SledStore::open(directory.path().join("store.sled")).unwrap()));
    bench_ls(group, "sled_raw", RawSled::open(directory.path(), "listed.sled"));
    bench_raw(group, runtime, "sled_raw", RawSled::open(directory.path(), "raw.sled"));
}

/// Lists one directory by a range of keys. A program that does so has to cut what lies deeper itself.
pub(crate) fn bench_ls(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, mut raw: impl Raw) {
    for chunk in listed_files().collect::<Vec<_>>().chunks(500) {
        raw.put(&chunk.iter().map(|path| (path.clone(), b"small".to_vec())).collect::<Vec<_>>());
    }
    let mut number = 0;
    group.bench_function(format!("ls_200_of_100000/{name}"), |bencher| {
        bencher.iter(|| {
            number += 1;
            assert!(raw.scan(&format!("{}/", listed_directory(number)), false) > 0);
        });
    });
}

struct RawSqlite(rusqlite::Connection);

impl RawSqlite {
    fn open(directory: &Path, name: &str) -> Self {
        let connection = rusqlite::Connection::open(directory.join(name)).unwrap();
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

    fn put(&mut self, rows: &[Row]) {
        let transaction = self.0.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
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
        let mut statement = self.0.prepare_cached(&sql).unwrap();
        let end = format!("{prefix}\u{10FFFF}");
        let rows = statement.query_map((prefix, end), |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<Vec<u8>>>(1)?))).unwrap();
        rows.map(|row| row.unwrap()).map(|(key, value)| key.len() + value.map_or(0, |value| value.len())).sum()
    }

    fn into_writer(self, _runtime: &Runtime) -> Writer {
        grouped(self)
    }
}

struct RawSled(sled::Db, File);

impl RawSled {
    fn open(directory: &Path, name: &str) -> Self {
        let path = directory.join(name);
        let rows = sled::Config::new().path(&path).cache_capacity(64 << 20).mode(sled::Mode::LowSpace).open().unwrap();
        Self(rows, File::open(path.join("db")).unwrap())
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

    fn into_writer(self, _runtime: &Runtime) -> Writer {
        grouped(self)
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
