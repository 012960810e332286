//! The write-ahead log: how large it becomes while somebody always reads.
//!
//! The log starts over once all of it is in the file and nobody reads from it. SQLite tries that after commits and waits for
//! nobody, so readers that overlap, of one process or of many, let it grow without end however short each of them is. Over a
//! bound they are therefore waited for: `wal_checkpoint(RESTART)` keeps writers out, those who read leave one by one, and those
//! who come meanwhile read from the file alone. One that stays for long, as a snapshot does, is given up on until the log has
//! grown by half of the bound again, so that it delays few commits.

use super::open::with_suffix;
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long readers are waited for. Writers of all processes wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);

/// By how much the log grows at least before readers are waited for again.
const GROWTH_BYTES_MIN: u64 = 1 << 20;

/// Keeps the log of one file within a bound, as far as its readers let it.
pub(super) struct LogBound {
    /// Where the log is.
    path: PathBuf,
    bytes_max: u64,
    /// The size from which on something is done.
    due_bytes: u64,
    pub(super) patience: Duration,
}

impl LogBound {
    /// Makes the bound of the log of a database.
    pub(super) fn new(database: &Path, bytes_max: u64) -> Self {
        // SQLite follows links, and has the log beside what they lead to.
        let database = std::fs::canonicalize(database).unwrap_or_else(|_| database.to_owned());
        Self { path: with_suffix(&database, "-wal"), bytes_max, due_bytes: bytes_max, patience: PATIENCE }
    }

    /// Returns where the log is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the log start over when it is over the bound: the next commit, of whichever process, then cuts its file.
    ///
    /// Cost: the size of a file is asked for. Over the bound the log is folded into the file, and readers are waited for.
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

    /// Tells whether the log starts over with the next commit.
    fn restart(&self, connection: &Connection) -> bool {
        let restarted = connection
            .busy_timeout(self.patience)
            .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get::<_, bool>(0)));
        match restarted {
            Ok(is_busy) => !is_busy,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the log of a store cannot be folded into its file");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::open::{self, with_suffix};
    use super::super::write::SqliteWriter;
    use super::*;
    use crate::store::committer::{Work, Writer};
    use crate::store::{Batch, Namespace, SqliteOptions};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn what_failed_is_tried_again_after_half_of_the_bound() {
        const MIB: u64 = 1 << 20;
        let mut bound = LogBound::new(Path::new("absent"), 64 * MIB);
        for (size, is_due, succeeds) in [
            (0, false, true),
            (64 * MIB, false, true),
            (65 * MIB, true, true),
            // The file is cut with the next commit, and may be asked about before.
            (65 * MIB, true, false),
            (66 * MIB, false, true),
            (97 * MIB, false, true),
            (98 * MIB, true, false),
            (130 * MIB, false, true),
            (131 * MIB, true, false),
            // Somebody else has let it start over.
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
        assert!(!small.is_due(MIB), "a reader that stays does not delay every commit");
    }

    fn begin(reader: &Connection) {
        reader.execute_batch("BEGIN").expect("begun");
        reader.query_row("SELECT count(*) FROM items", [], |row| row.get::<_, u64>(0)).expect("read");
    }

    /// Each commit meets a reader that began before it, and between commits readers come and go, the next before the last.
    #[test]
    fn a_log_that_is_read_without_a_gap_starts_over() {
        const BOUND: u64 = 256 << 10;
        let directory = tempfile::tempdir().expect("a directory");
        let options = SqliteOptions::new(directory.path().join("store.db")).with_log_bytes_max(BOUND);
        let (path, connection) = open::open(&options).expect("opened");
        let log = with_suffix(&path, "-wal");
        let mut writer = SqliteWriter::new(&path, connection, &options, Arc::default());
        // No reader here stays, however slow the machine is.
        writer.log.patience = Duration::from_secs(3600);
        let namespace = Namespace::parse("a").expect("plain");
        let mut readers = [(); 2].map(|()| Connection::open(&path).expect("opened"));
        begin(&readers[0]);
        let mut largest = 0;
        for number in 0..200 {
            // What is put over the same is not written again.
            assert!(writer.write(&[Work::Commit(Batch::new().put(&namespace, "k", vec![number; 20_000]))])[0].is_ok());
            largest = largest.max(std::fs::metadata(&log).expect("it is there").len());
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
