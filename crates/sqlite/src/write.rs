//! The writing side: one connection, and one transaction per group of batches.

use super::SqliteOptions;
use super::body::{BodyPlace, PlaceLimits, StoredBody};
use super::error::{describe, failed, is_busy};
use super::log::LogBound;
use super::open::Place;
use super::read::{End, current_version};
use super::watched::Watched;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Params};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::lock_wait::LockWait;
use treehold_core::ops::Version;
use treehold_store::committer::{Work, Writer, Written};
use treehold_store::file_identity::FileIdentity;
use treehold_store::page::{key_after, prefix_end};
use treehold_store::{
    Batch, BatchWrite, Condition, Namespace, Precondition, expiry, log_key, precondition_failed, unvalidated, whole_microseconds,
};

/// How long to sleep before retrying for another process's lock, which it holds for one group, about 200 µs.
const RETRY_PAUSE: Duration = Duration::from_micros(500);

/// The writing connection.
pub(super) struct SqliteWriter {
    connection: Connection,
    clock: Clock,
    busy_timeout: Duration,
    /// The version of the newest commit, valid within a transaction.
    version: u64,
    /// Decides where bodies are stored.
    pub(super) limits: PlaceLimits,
    watched: Arc<Watched>,
    pub(super) log: LogBound,
    path: PathBuf,
    /// The files of the database and, once it exists, of its log.
    places: Vec<FileIdentity>,
}

impl SqliteWriter {
    /// Takes over a connection to the file at `path`.
    pub(super) fn new(path: &Path, connection: Connection, options: &SqliteOptions, watched: Arc<Watched>) -> Self {
        let log = LogBound::new(path, options.log_bytes_max);
        let (clock, busy_timeout, places) = (options.clock.clone(), options.busy_timeout, FileIdentity::of(path).into_iter().collect());
        let path = path.to_owned();
        Self { connection, clock, busy_timeout, version: 0, limits: PlaceLimits::default(), watched, log, path, places }
    }
}

impl Writer for SqliteWriter {
    fn write(&mut self, group: &[Work]) -> Vec<Result<Written>> {
        self.write_until(group, Instant::now() + self.busy_timeout)
    }

    fn tidy(&mut self) {
        self.log.keep(&self.connection);
    }
}

impl SqliteWriter {
    /// Performs a group. All of it shares the deadline `until` for other processes' locks; otherwise each piece of work would wait as long
    /// again.
    fn write_until(&mut self, group: &[Work], until: Instant) -> Vec<Result<Written>> {
        if let Err(error) = self.check_places() {
            return answer_all(group, error.without_effect());
        }
        if group.iter().any(|work| matches!(work, Work::Compact)) {
            // It cannot share a transaction.
            return match group.len() {
                1 => vec![self.compact()],
                _ => group.iter().flat_map(|work| self.write_until(std::slice::from_ref(work), until)).collect(),
            };
        }
        if let Err(error) = self.begin(until) {
            return refuse(group, error);
        }
        match self.write_together(group) {
            Ok(answers) => answers,
            Err(error) if group.len() == 1 => vec![Err(error)],
            // The commit may have taken effect. Repeating it could fail its own preconditions or apply it twice.
            Err(error) if !error.is_without_effect() => answer_all(group, error),
            // A piece of work hit an engine error and nothing of the group took effect, so retry each separately.
            Err(_) => group.iter().flat_map(|work| self.write_until(std::slice::from_ref(work), until)).collect(),
        }
    }

    /// Fails if the database or its log is no longer at its path: whatever is committed then is lost on close.
    fn check_places(&mut self) -> Result<()> {
        // The log exists from the first commit until the database is closed.
        if self.places.len() == 1 {
            self.places.extend(FileIdentity::of(self.log.path()));
        }
        self.places.iter().try_for_each(FileIdentity::check)
    }

    /// Takes the write lock, waiting while another process holds it.
    ///
    /// SQLite's own waiting sleeps up to 100 ms at a time. Here the lock changes hands every fraction of a millisecond,
    /// so a caller that polls that rarely would starve.
    fn begin(&mut self, until: Instant) -> Result<(), rusqlite::Error> {
        self.connection.busy_timeout(Duration::ZERO)?;
        let mut wait = LockWait::begin();
        let begun = loop {
            match self.run("BEGIN IMMEDIATE", []) {
                Err(error) if is_busy(&error) && Instant::now() < until => {
                    wait.still(Place(&self.path));
                    std::thread::sleep(RETRY_PAUSE);
                }
                begun => break begun,
            }
        };
        self.connection.busy_timeout(self.busy_timeout)?;
        begun.map(drop)
    }

    /// Performs the group and commits it. An engine error rolls back all of it; a refused batch affects only itself.
    fn write_together(&mut self, group: &[Work]) -> Result<Vec<Result<Written>>> {
        // Nothing takes effect before COMMIT. If COMMIT fails, only the disk knows what would be there after a crash.
        let written = self.write_each(group).map_err(Error::without_effect);
        let answers = written.and_then(|(before, answers)| {
            self.run("COMMIT", []).map_err(not_committed)?;
            self.check_places().map_err(Error::with_unknown_effect)?;
            self.watched.announce(before, self.version, group, &answers);
            Ok(answers)
        });
        if answers.is_err() && !self.connection.is_autocommit() {
            // If the rollback fails too, the next BEGIN reports it.
            let _ = self.run("ROLLBACK", []);
        }
        answers
    }

    /// Returns the results and the version before the group.
    fn write_each(&mut self, group: &[Work]) -> Result<(u64, Vec<Result<Written>>)> {
        let before = current_version(&self.connection)?.number();
        self.version = before;
        let mut answers = Vec::with_capacity(group.len());
        for work in group {
            answers.push(match work {
                Work::Commit(batch) => self.commit(batch)?,
                Work::Sweep(limit) => Ok(Written { swept: self.sweep(*limit).map_err(failed)?, ..Written::default() }),
                Work::Shrink(pages) => Ok(Written { shrunk: self.shrink(*pages).map_err(failed)?, ..Written::default() }),
                Work::Compact => unreachable!("`write_until` performs it on its own"),
            });
        }
        if self.version != before {
            self.run("UPDATE counter SET version = ?1", (self.version,)).map_err(failed)?;
        }
        Ok((before, answers))
    }

    /// Applies one batch, or refuses it with the inner error.
    fn commit(&mut self, batch: &Batch) -> Result<Result<Written>> {
        let now = whole_microseconds(self.clock.now());
        for (index, precondition) in batch.preconditions.iter().enumerate() {
            let met = self.met(precondition, now).map_err(failed)?;
            if !precondition.condition.holds(met) {
                return Ok(Err(precondition_failed(index, precondition, met)));
            }
        }
        let versions = self.apply(&batch.writes, now).map_err(failed)?;
        Ok(Ok(Written { versions, ..Written::default() }))
    }

    /// Returns the version that decides whether a condition holds.
    fn met(&self, precondition: &Precondition, now: Timestamp) -> rusqlite::Result<Option<Version>> {
        let Precondition { namespace, key, condition } = precondition;
        let version = match condition {
            Condition::NoneBeneath => self.beneath(namespace, key, now, 0)?,
            Condition::NoneBeneathSince(version) => self.beneath(namespace, key, now, version.number().min(i64::MAX as u64))?,
            Condition::Absent | Condition::Exists | Condition::Version(_) => {
                self.find(namespace, key)?.filter(|row| row.is_live(now)).map(|row| row.version)
            }
            _ => unvalidated(),
        };
        Ok(version.map(Version::new))
    }

    /// Returns the version of the first live item below a prefix that is newer than `since`.
    fn beneath(&self, namespace: &Namespace, prefix: &str, now: Timestamp, since: u64) -> rusqlite::Result<Option<u64>> {
        // The unary plus keeps SQLite from choosing the expiry index.
        self.connection
            .prepare_cached(
                "SELECT version FROM items
                 WHERE namespace = ?1 AND key >= ?2 AND key < ?3 AND version > ?4 AND (+expires_at IS NULL OR +expires_at > ?5)
                 ORDER BY key LIMIT 1",
            )?
            .query_row((namespace.encoded(), key_after(prefix), End(prefix_end(prefix).as_deref()), since, now.as_microsecond()), |row| {
                row.get(0)
            })
            .optional()
    }

    fn apply(&mut self, writes: &[BatchWrite], now: Timestamp) -> rusqlite::Result<Vec<Version>> {
        let mut versions = Vec::new();
        let mut removed = 0;
        let mut restored = None;
        for write in writes {
            match write {
                BatchWrite::Put { namespace, key, meta, value, time_to_live, created_at } => {
                    self.version += 1;
                    versions.push(Version::new(self.version));
                    let row = NewRow {
                        namespace,
                        key,
                        meta,
                        value,
                        version: self.version,
                        created_at: created_at.map(|at| whole_microseconds(at).as_microsecond()),
                        modified_at: now.as_microsecond(),
                        expires_at: time_to_live.map(|duration| expiry(now, duration).as_microsecond()),
                    };
                    self.put(&row, now)?;
                }
                BatchWrite::Append { namespace, meta, value, time_to_live } => {
                    self.version += 1;
                    versions.push(Version::new(self.version));
                    let row = NewRow {
                        namespace,
                        key: &log_key(Version::new(self.version)),
                        meta,
                        value,
                        version: self.version,
                        created_at: None,
                        modified_at: now.as_microsecond(),
                        expires_at: time_to_live.map(|duration| expiry(now, duration).as_microsecond()),
                    };
                    self.put(&row, now)?;
                }
                BatchWrite::Restore { namespace, item } => {
                    self.version += 1;
                    restored = restored.max(Some(item.version.number()));
                    let row = NewRow {
                        namespace,
                        key: &item.key,
                        meta: &item.meta,
                        value: &item.value,
                        version: item.version.number(),
                        created_at: Some(whole_microseconds(item.created_at).as_microsecond()),
                        modified_at: whole_microseconds(item.modified_at).as_microsecond(),
                        expires_at: item.expires_at.map(|at| whole_microseconds(at).as_microsecond()),
                    };
                    self.put(&row, now)?;
                }
                BatchWrite::Touch { namespace, key, time_to_live } => {
                    let expires_at = time_to_live.map(|duration| expiry(now, duration).as_microsecond());
                    self.touch(namespace, key, expires_at, now)?;
                }
                BatchWrite::Delete { namespace, key } => removed += self.delete(namespace, key)?,
                BatchWrite::DeletePrefix { namespace, prefix } => removed += self.delete_prefix(namespace, prefix)?,
                _ => unvalidated(),
            }
        }
        if versions.is_empty() && restored.is_none() && removed > 0 {
            self.version += 1;
        }
        self.version = self.version.max(restored.unwrap_or(0));
        Ok(versions)
    }

    fn put(&self, row: &NewRow<'_>, now: Timestamp) -> rusqlite::Result<()> {
        let old = self.find(row.namespace, row.key)?;
        let kept = old.as_ref().filter(|old| old.is_live(now)).map(|old| old.created_at);
        let created_at = row.created_at.or(kept).unwrap_or(now.as_microsecond());
        let size = row.value.len() as u64;
        let place = self.limits.place(size);
        let in_item = (place == BodyPlace::Item).then_some(row.value);
        let id = match &old {
            Some(old) => {
                self.run(
                    "UPDATE items SET version = ?2, created_at = ?3, modified_at = ?4, expires_at = ?5, size = ?6, meta = ?7, chunk_bytes = ?8, \
                     body = ?9 WHERE id = ?1",
                    (old.body.id, row.version, created_at, row.modified_at, row.expires_at, size, row.meta, place, in_item),
                )?;
                old.body.id
            }
            None => {
                self.run(
                    "INSERT INTO items(namespace, key, version, created_at, modified_at, expires_at, size, meta, chunk_bytes, body)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                    (
                        row.namespace.encoded(),
                        row.key,
                        row.version,
                        created_at,
                        row.modified_at,
                        row.expires_at,
                        size,
                        row.meta,
                        place,
                        in_item,
                    ),
                )?;
                self.connection.last_insert_rowid()
            }
        };
        StoredBody { id, size, place }.replace(old.map(|old| old.body), &self.connection, row.value)
    }

    fn touch(&self, namespace: &Namespace, key: &str, expires_at: Option<i64>, now: Timestamp) -> rusqlite::Result<()> {
        let Some(row) = self.find(namespace, key)?.filter(|row| row.is_live(now)) else { return Ok(()) };
        self.run("UPDATE items SET expires_at = ?2 WHERE id = ?1", (row.body.id, expires_at)).map(drop)
    }

    fn delete(&self, namespace: &Namespace, key: &str) -> rusqlite::Result<usize> {
        let Some(row) = self.find(namespace, key)? else { return Ok(0) };
        row.body.remove(&self.connection)?;
        self.run("DELETE FROM items WHERE id = ?1", (row.body.id,))
    }

    fn delete_prefix(&self, namespace: &Namespace, prefix: &str) -> rusqlite::Result<usize> {
        let end = prefix_end(prefix);
        let mut removed = 0;
        for sql in [
            "DELETE FROM chunks WHERE item IN (
                SELECT id FROM items INDEXED BY items_in_chunks WHERE namespace = ?1 AND key >= ?2 AND key < ?3 AND chunk_bytes > 0)",
            "DELETE FROM bodies WHERE id IN (
                SELECT id FROM items WHERE namespace = ?1 AND key >= ?2 AND key < ?3 AND size > 0 AND chunk_bytes = 0)",
            "DELETE FROM items WHERE namespace = ?1 AND key >= ?2 AND key < ?3",
        ] {
            removed = self.run(sql, (namespace.encoded(), prefix, End(end.as_deref())))?;
        }
        Ok(removed)
    }

    fn sweep(&self, limit: usize) -> rusqlite::Result<usize> {
        let over = (self.clock.now().as_microsecond(), i64::try_from(limit).unwrap_or(i64::MAX));
        let mut swept = 0;
        for sql in [
            "DELETE FROM chunks WHERE item IN (SELECT id FROM items WHERE expires_at <= ?1 ORDER BY expires_at, id LIMIT ?2)",
            "DELETE FROM bodies WHERE id IN (SELECT id FROM items WHERE expires_at <= ?1 ORDER BY expires_at, id LIMIT ?2)",
            "DELETE FROM items WHERE id IN (SELECT id FROM items WHERE expires_at <= ?1 ORDER BY expires_at, id LIMIT ?2)",
        ] {
            swept = self.run(sql, over)?;
        }
        Ok(swept)
    }

    /// Gives unused pages back: moves pages from the end of the file into their place. A file without the mode that this needs is left
    /// alone. Returns how many were given back.
    fn shrink(&self, pages: usize) -> rusqlite::Result<usize> {
        let unused = || self.connection.query_row("PRAGMA freelist_count", [], |row| row.get::<_, usize>(0));
        let before = unused()?;
        if before == 0 || pages == 0 {
            return Ok(0);
        }
        let mut vacuum = self.connection.prepare(&format!("PRAGMA incremental_vacuum({})", pages.min(i32::MAX as usize)))?;
        let mut moved = vacuum.query([])?;
        while moved.next()?.is_some() {}
        Ok(before.saturating_sub(unused()?))
    }

    /// Rewrites the file without unused pages, in the mode in which [`shrink`](Self::shrink) works.
    fn compact(&self) -> Result<Written> {
        self.connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(failed)?;
        self.connection.execute_batch("VACUUM").map_err(failed)?;
        // A reader of the old pages delays this until the next time.
        let _ = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        Ok(Written::default())
    }

    fn find(&self, namespace: &Namespace, key: &str) -> rusqlite::Result<Option<Found>> {
        self.connection
            .prepare_cached("SELECT id, version, created_at, expires_at, size, chunk_bytes FROM items WHERE namespace = ?1 AND key = ?2")?
            .query_row((namespace.encoded(), key), |row| {
                let body = StoredBody { id: row.get(0)?, size: row.get(4)?, place: row.get(5)? };
                Ok(Found { body, version: row.get(1)?, created_at: row.get(2)?, expires_at: row.get(3)? })
            })
            .optional()
    }

    fn run(&self, sql: &str, parameters: impl Params) -> rusqlite::Result<usize> {
        self.connection.prepare_cached(sql)?.execute(parameters)
    }
}

/// A row to write.
struct NewRow<'w> {
    namespace: &'w Namespace,
    key: &'w str,
    meta: &'w [u8],
    value: &'w [u8],
    version: u64,
    created_at: Option<i64>,
    modified_at: i64,
    expires_at: Option<i64>,
}

/// The row at a key, live or expired.
struct Found {
    body: StoredBody,
    version: u64,
    created_at: i64,
    expires_at: Option<i64>,
}

impl Found {
    fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| now.as_microsecond() < at)
    }
}

/// Converts the failure of a commit. If a lock is held, the commit has not begun.
fn not_committed(error: rusqlite::Error) -> Error {
    if is_busy(&error) { failed(error).without_effect() } else { failed(error).with_unknown_effect() }
}

/// Answers the whole group with the same error.
fn answer_all(group: &[Work], error: Error) -> Vec<Result<Written>> {
    let (kind, message) = (error.kind(), error.message().to_owned());
    let may_have_effect = error.may_have_effect();
    let source = Arc::new(error);
    let again = || {
        let error = Error::new(kind, message.clone()).with_source(source.clone());
        Err(if may_have_effect { error.with_unknown_effect() } else { error.without_effect() })
    };
    group.iter().map(|_| again()).collect()
}

/// Answers the whole group with the same error, from before anything was written.
fn refuse(group: &[Work], error: rusqlite::Error) -> Vec<Result<Written>> {
    let (kind, message): (ErrorKind, _) = describe(&error);
    let source = Arc::new(error);
    group.iter().map(|_| Err(Error::new(kind, message).with_source(source.clone()).without_effect())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::open;
    use super::*;

    /// Regression: after a group was split, each part waited anew. With separate waits the test would not finish in
    /// time.
    #[test]
    fn group_past_its_deadline_does_not_wait_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = SqliteOptions::new(directory.path().join("store.db")).with_busy_timeout(Duration::from_secs(3600));
        let (path, connection) = open::open(&options).expect("opened");
        let mut writer = SqliteWriter::new(&path, connection, &options, Arc::default());
        let other = Connection::open(&path).expect("opened");
        other.execute_batch("BEGIN IMMEDIATE").expect("the lock is free");
        let group: Vec<Work> = (0..3).map(|_| Work::Sweep(1)).collect();
        for answer in writer.write_until(&group, Instant::now()) {
            let error = answer.expect_err("the lock is held");
            assert_eq!((error.kind(), error.is_without_effect()), (ErrorKind::Unavailable, true));
        }
        other.execute_batch("ROLLBACK").expect("released");
        assert!(writer.write_until(&group, Instant::now()).iter().all(Result::is_ok));
    }

    /// The commit of the group fails; single commits would succeed. A commit that may have taken effect must not be
    /// repeated.
    #[test]
    fn commit_with_unknown_outcome_is_not_retried() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = SqliteOptions::new(directory.path().join("store.db"));
        let (path, connection) = open::open(&options).expect("opened");
        connection
            .execute_batch(
                "PRAGMA foreign_keys = ON;
                 CREATE TABLE child(parent INTEGER REFERENCES counter(id) DEFERRABLE INITIALLY DEFERRED);
                 CREATE TRIGGER two AFTER INSERT ON items WHEN (SELECT count(*) FROM items) > 1 BEGIN INSERT INTO child VALUES (7); END;",
            )
            .expect("made");
        let mut writer = SqliteWriter::new(&path, connection, &options, Arc::default());
        let namespace = Namespace::parse("a").expect("plain");
        let group = ["one", "two"].map(|key| Work::Commit(Batch::new().put(&namespace, key, "")));
        for answer in writer.write(&group) {
            assert!(!answer.expect_err("the commit fails").is_without_effect());
        }
        assert!(writer.write(&group[..1])[0].is_ok());
    }
}
