//! Bounding the write-ahead log under constant reads.
//!
//! SQLite restarts the log once all of it is in the database file and nobody reads from it. It tries after commits but
//! never waits, so overlapping readers, of one process or many, let the log grow without bound however short each read
//! is. Above a bound the writer therefore waits for them: `wal_checkpoint(RESTART)` blocks writers while current
//! readers finish one by one and new ones read from the file alone. If a long reader such as a snapshot does not finish
//! in time, the next attempt waits until the log has grown by another half of the bound, so that few commits are
//! delayed.

use super::recognise::with_suffix;
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for readers. Writers of all processes wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);

/// The least growth of the log, in bytes, between two attempts.
const GROWTH_BYTES_MIN: u64 = 1 << 20;

/// Keeps a database's log within a bound, as far as readers allow.
pub(super) struct LogBound {
    /// The path of the log.
    path: PathBuf,
    bytes_max: u64,
    /// The size from which the next attempt is made.
    due_bytes: u64,
    pub(super) patience: Duration,
}

impl LogBound {
    /// Sets the bound for a database's log.
    pub(super) fn new(database: &Path, bytes_max: u64) -> Self {
        // SQLite follows links and puts the log beside their target.
        let database = std::fs::canonicalize(database).unwrap_or_else(|_| database.to_owned());
        Self { path: with_suffix(&database, "-wal"), bytes_max, due_bytes: bytes_max, patience: PATIENCE }
    }

    /// Returns the path of the log.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the log restart if it exceeds the bound; the next commit of any process then truncates it.
    ///
    /// Cost: one `stat`. Above the bound it also folds the log into the file and waits for readers.
    pub(super) fn keep(&mut self, connection: &Connection) {
        let size_bytes = std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        if self.is_due(size_bytes) && !self.restart(connection) {
            self.put_off(size_bytes);
        }
    }

    fn is_due(&mut self, size_bytes: u64) -> bool {
        if size_bytes <= self.bytes_max {
            self.due_bytes = self.bytes_max;
        }
        size_bytes > self.due_bytes
    }

    fn put_off(&mut self, size_bytes: u64) {
        self.due_bytes = size_bytes.saturating_add((self.bytes_max / 2).max(GROWTH_BYTES_MIN));
    }

    /// Returns whether the log restarts with the next commit.
    fn restart(&self, connection: &Connection) -> bool {
        let restarted = connection
            .busy_timeout(self.patience)
            .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get::<_, bool>(0)));
        match restarted {
            Ok(is_busy) => !is_busy,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "folding the write-ahead log into the store's file failed");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::open;
    use super::super::recognise::with_suffix;
    use super::super::write::SqliteWriter;
    use super::*;
    use crate::SqliteOptions;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use treehold_store::committer::{Work, Writer};
    use treehold_store::{Batch, Namespace};

    #[test]
    fn failed_log_restart_is_retried_after_growth_by_half_the_bound() {
        const MIB: u64 = 1 << 20;
        let mut bound = LogBound::new(Path::new("absent"), 64 * MIB);
        for (size, is_due, succeeds) in [
            (0, false, true),
            (64 * MIB, false, true),
            (65 * MIB, true, true),
            // The file is truncated only by the next commit, and may be checked before that.
            (65 * MIB, true, false),
            (66 * MIB, false, true),
            (97 * MIB, false, true),
            (98 * MIB, true, false),
            (130 * MIB, false, true),
            (131 * MIB, true, false),
            // Another process restarted the log.
            (64 * MIB, false, true),
            (65 * MIB, true, true),
        ] {
            assert_eq!(bound.is_due(size), is_due, "{size}");
            if is_due && !succeeds {
                bound.put_off(size);
            }
        }
        let mut small = LogBound::new(Path::new("absent"), 0);
        assert!(small.is_due(1));
        small.put_off(1);
        assert!(!small.is_due(MIB), "a long reader does not delay every commit");
    }

    fn begin(reader: &Connection) {
        reader.execute_batch("BEGIN").expect("begun");
        reader.query_row("SELECT count(*) FROM items", [], |row| row.get::<_, u64>(0)).expect("read");
    }

    /// Each commit runs beside a reader that began before it. Between commits readers overlap: the next begins before
    /// the last ends.
    #[test]
    fn log_restarts_despite_overlapping_readers() {
        const BOUND: u64 = 256 << 10;
        let directory = tempfile::tempdir().expect("a directory");
        let options = SqliteOptions::new(directory.path().join("store.db")).with_log_bytes_max(BOUND);
        let (path, connection) = open::open(&options).expect("opened");
        let log = with_suffix(&path, "-wal");
        let mut writer = SqliteWriter::new(&path, connection, &options, Arc::default());
        // No reader stays, so wait as long as a slow machine needs.
        writer.log.patience = Duration::from_secs(3600);
        let namespace = Namespace::parse("a").expect("plain");
        let mut readers = [(); 2].map(|()| Connection::open(&path).expect("opened"));
        begin(&readers[0]);
        let mut largest = 0;
        for number in 0..200 {
            // SQLite skips pages whose content does not change, so write new content each time.
            assert!(writer.write(&[Work::Commit(Batch::new().put(&namespace, "k", vec![number; 20_000]))])[0].is_ok());
            largest = largest.max(std::fs::metadata(&log).expect("it exists").len());
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) {
                        begin(&readers[1]);
                        readers[0].execute_batch("COMMIT").expect("ended");
                        readers.swap(0, 1);
                    }
                });
                writer.tidy();
                is_over.store(true, Ordering::SeqCst);
            });
        }
        assert!((BOUND..2 * BOUND).contains(&largest), "the log had {largest} bytes");
    }
}
