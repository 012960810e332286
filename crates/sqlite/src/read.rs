//! The reading side: a connection pool and the queries.
//!
//! A page is read in one transaction, so it shows one moment of the store and never half a batch.

use super::SqliteOptions;
use super::body::{self, BodyPlace, StoredBody};
use super::error::{damaged, failed};
use super::open::connect;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, ToSql};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;
use treehold_store::page::{PageBuilder, Step, key_after, prefix_end};
use treehold_store::within;
use treehold_store::{Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Scan, ScanOptions, StoreStats};

/// How many idle connections are kept. Concurrent reads open more as needed, and none waits.
pub(super) const IDLE_MAX: usize = 8;

/// The most faults reported from the engine's own check.
const CHECK_FAULTS_MAX: usize = 90;

/// A pool of read-only connections.
pub(super) struct ReaderPool {
    options: SqliteOptions,
    idle: Mutex<Vec<Connection>>,
}

impl ReaderPool {
    /// Makes a pool for the file at an absolute path.
    pub(super) fn new(path: PathBuf, options: &SqliteOptions) -> Self {
        Self { options: SqliteOptions { path, ..options.clone() }, idle: Mutex::default() }
    }

    /// Returns the file.
    pub(super) fn path(&self) -> &Path {
        &self.options.path
    }

    /// Returns how long a reader waits for locks of other processes.
    pub(super) fn busy_timeout(&self) -> Duration {
        self.options.busy_timeout
    }

    /// Takes a connection, which returns to the pool when the reader is dropped.
    pub(super) fn take(self: &Arc<Self>) -> Result<Reader> {
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let connection = connect(&self.options.path, &self.options)?;
                connection.pragma_update(None, "query_only", true).map_err(failed)?;
                connection
            }
        };
        Ok(Reader { connection: Some(connection), pool: self.clone() })
    }
}

/// A connection borrowed from the pool.
pub(super) struct Reader {
    connection: Option<Connection>,
    pool: Arc<ReaderPool>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        if !connection.is_autocommit() && connection.execute_batch("ROLLBACK").is_err() {
            return;
        }
        let mut idle = self.pool.idle.lock();
        if idle.len() < self.pool.options.idle_readers_max {
            idle.push(connection);
        }
    }
}

/// The result of reading one item.
pub(super) enum Got {
    /// No live item has the key.
    Absent,
    /// The item.
    Item(Item),
    /// The item's body exceeds the requested limit.
    TooLong,
}

impl Got {
    /// Returns the item, if one was found.
    pub(super) fn into_item(self) -> Option<Item> {
        if let Self::Item(item) = self { Some(item) } else { None }
    }
}

impl Reader {
    pub(super) fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("taken only on drop")
    }

    /// Reads one item. Includes the body if it has at most `body_bytes_max` bytes; `None` skips bodies.
    pub(super) fn get(&self, namespace: &Namespace, key: &str, now: i64, body_bytes_max: Option<u64>) -> Result<Got> {
        // The body is in a CASE, so SQLite reads it only when it is wanted.
        let mut statement = self
            .connection()
            .prepare_cached(
                "SELECT key, version, created_at, modified_at, expires_at, size, meta, id, chunk_bytes,
                        CASE WHEN size <= ?3 THEN
                            CASE chunk_bytes WHEN -1 THEN body WHEN 0 THEN (SELECT body FROM bodies WHERE bodies.id = items.id) END
                        END
                 FROM items WHERE namespace = ?1 AND key = ?2",
            )
            .map_err(failed)?;
        let wanted = body_bytes_max.map_or(-1, |max| i64::try_from(max).unwrap_or(i64::MAX));
        let mut rows = statement.query((namespace.encoded(), key, wanted)).map_err(failed)?;
        let Some(row) = rows.next().map_err(failed)? else { return Ok(Got::Absent) };
        let record = Record::of(row)?;
        if !record.is_live(now) {
            return Ok(Got::Absent);
        }
        match body_bytes_max {
            Some(max) if record.size > max => Ok(Got::TooLong),
            Some(_) => {
                let stored = record.stored();
                let body = match stored.place {
                    BodyPlace::Item | BodyPlace::Row => stored.check(row.get_ref(9).map_err(failed)?)?,
                    BodyPlace::Chunks(_) => stored.read(self.connection(), || row.get_ref(9))?,
                };
                record.into_item(row, body).map(Got::Item)
            }
            None => record.into_item(row, Bytes::new()).map(Got::Item),
        }
    }

    /// Reads one item with a part of its body, without loading the rest.
    pub(super) fn get_part(&self, namespace: &Namespace, key: &str, now: i64, range: &Range<u64>) -> Result<Option<ItemPart>> {
        // One transaction, so that the row and the body show the same moment.
        self.begin()?;
        let part = self.part(namespace, key, now, range)?;
        self.end()?;
        Ok(part)
    }

    fn part(&self, namespace: &Namespace, key: &str, now: i64, range: &Range<u64>) -> Result<Option<ItemPart>> {
        let sql = "SELECT key, version, created_at, modified_at, expires_at, size, meta, id, chunk_bytes, body
                   FROM items WHERE namespace = ?1 AND key = ?2";
        let mut statement = self.connection().prepare_cached(sql).map_err(failed)?;
        let mut rows = statement.query((namespace.encoded(), key)).map_err(failed)?;
        let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
        let record = Record::of(row)?;
        if !record.is_live(now) {
            return Ok(None);
        }
        let size = record.size;
        let part = record.stored().read_part(self.connection(), within(range, size), || row.get_ref(9))?;
        Ok(Some(ItemPart::new(record.into_item(row, part)?, size)))
    }

    /// Reads several items at one moment; `None` if a body exceeds `body_bytes_max`.
    pub(super) fn get_many(
        &self,
        namespace: &Namespace,
        keys: &[impl AsRef<str>],
        now: i64,
        body_bytes_max: Option<u64>,
    ) -> Result<Option<Vec<Option<Item>>>> {
        self.begin()?;
        let mut items = Vec::with_capacity(keys.len());
        for key in keys {
            match self.get(namespace, key.as_ref(), now, body_bytes_max)? {
                Got::TooLong => return Ok(None),
                got => items.push(got.into_item()),
            }
        }
        self.end()?;
        Ok(Some(items))
    }

    /// Reads a page of a scan.
    pub(super) fn scan(&mut self, run: &mut ScanRun) -> Result<Scan> {
        self.scan_some(run, usize::MAX)?;
        Ok(run.finish())
    }

    /// Continues a scan for up to `rows_max` rows and returns whether it is complete. Until then the reader stays in
    /// one transaction, and the scan continues on it.
    pub(super) fn scan_some(&mut self, run: &mut ScanRun, rows_max: usize) -> Result<bool> {
        if self.connection().is_autocommit() {
            self.begin()?;
        }
        let mut rows_left = rows_max;
        while let Some(start) = run.start.take() {
            rows_left = self.scan_from(run, &start, rows_left)?;
            if rows_left == 0 && run.start.is_some() {
                return Ok(false);
            }
        }
        self.end()?;
        Ok(true)
    }

    /// Offers the rows from `start` on to the page until it seeks, ends or `rows_left` is used up. Sets where to
    /// continue, if anywhere, and returns how many rows are left.
    fn scan_from(&self, run: &mut ScanRun, start: &str, mut rows_left: usize) -> Result<usize> {
        let mut statement = self
            .connection()
            .prepare_cached(
                "SELECT key, version, created_at, modified_at, expires_at, size, meta, id, chunk_bytes, CASE WHEN ?4 THEN body END
                 FROM items WHERE namespace = ?1 AND key >= ?2 AND key < ?3 ORDER BY key",
            )
            .map_err(failed)?;
        let parameters = (run.namespace.encoded(), start, End(run.end.as_deref()), run.with_values);
        let mut rows = statement.query(parameters).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let record = Record::of(row)?;
            let key = row.get_ref(0).and_then(|key| Ok(key.as_str()?)).map_err(failed)?;
            if record.is_live(run.now) {
                let step = run.page.offer(key, |with_value| {
                    let body = if with_value { record.stored().read(self.connection(), || row.get_ref(9))? } else { Bytes::new() };
                    record.into_item(row, body)
                })?;
                match step {
                    Step::Next => {}
                    Step::Seek(to) => {
                        run.start = Some(to);
                        return Ok(rows_left.saturating_sub(1));
                    }
                    Step::End => return Ok(rows_left),
                }
            }
            rows_left -= 1;
            if rows_left == 0 {
                run.start = Some(key_after(key));
                return Ok(0);
            }
        }
        Ok(rows_left)
    }

    /// Lists namespaces with a live item: one seek per namespace, plus one per expired item that comes first in its
    /// namespace.
    pub(super) fn namespaces(&self, options: &NamespacesOptions, now: i64) -> Result<NamespacePage> {
        let Some(mut start) = options.prefix() else { return Ok(NamespacePage::default()) };
        let end = prefix_end(&start);
        if let Some(after) = &options.start_after {
            start = start.max(key_after(after.encoded()));
        }
        self.begin()?;
        let mut namespaces = Vec::new();
        loop {
            let Some(found) = self.first_namespace(&start, end.as_deref(), now)? else { break };
            if namespaces.len() >= options.limit {
                self.end()?;
                return Ok(NamespacePage::new(namespaces, true));
            }
            start = key_after(&found);
            namespaces.push(Namespace::from_encoded(&found)?);
        }
        self.end()?;
        Ok(NamespacePage::new(namespaces, false))
    }

    fn first_namespace(&self, start: &str, end: Option<&str>, now: i64) -> Result<Option<String>> {
        self.connection()
            .prepare_cached(
                "SELECT namespace FROM items
                 WHERE namespace >= ?1 AND namespace < ?2 AND (+expires_at IS NULL OR +expires_at > ?3)
                 ORDER BY namespace, key LIMIT 1",
            )
            .and_then(|mut statement| statement.query_row((start, End(end), now), |row| row.get(0)).optional())
            .map_err(failed)
    }

    /// Returns the last namespace with a row, expired or not.
    pub(super) fn last_namespace(&self) -> Result<Option<Namespace>> {
        let sql = "SELECT namespace FROM items ORDER BY namespace DESC LIMIT 1";
        let last: Option<String> = self.connection().query_row(sql, [], |row| row.get(0)).optional().map_err(failed)?;
        last.map(|last| Namespace::from_encoded(&last)).transpose()
    }

    /// Returns when the next row expires.
    pub(super) fn next_expiry(&self) -> Result<Option<Timestamp>> {
        let sql = "SELECT expires_at FROM items WHERE expires_at IS NOT NULL ORDER BY expires_at LIMIT 1";
        let next = self.connection().query_row(sql, [], |row| row.get(0)).optional().map_err(failed)?;
        next.map(time).transpose()
    }

    /// Returns the version of the newest commit.
    pub(super) fn current_version(&self) -> Result<Version> {
        current_version(self.connection())
    }

    /// Counts the rows and their bytes.
    pub(super) fn stats(&self, now: i64) -> Result<StoreStats> {
        let count = || -> rusqlite::Result<StoreStats> {
            let mut stats = self.connection().query_row(
                "SELECT COUNT(*), COALESCE(SUM(LENGTH(meta)), 0), COALESCE(SUM(size), 0), COUNT(DISTINCT namespace)
                 FROM items WHERE +expires_at IS NULL OR +expires_at > ?1",
                (now,),
                |row| {
                    let mut stats = StoreStats::new();
                    (stats.items, stats.meta_bytes, stats.value_bytes, stats.namespaces) =
                        (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
                    Ok(stats)
                },
            )?;
            stats.expired = self.connection().query_row("SELECT COUNT(*) FROM items WHERE expires_at <= ?1", (now,), |row| row.get(0))?;
            let pages: u64 = self.connection().query_row("PRAGMA page_count", [], |row| row.get(0))?;
            let page_bytes: u64 = self.connection().query_row("PRAGMA page_size", [], |row| row.get(0))?;
            stats.stored_bytes = Some(pages * page_bytes);
            Ok(stats)
        };
        self.begin()?;
        let stats = count().map_err(failed)?;
        self.end()?;
        Ok(stats)
    }

    /// Looks for damage: the engine's own check, bodies and chunks without items, and items without them.
    pub(super) fn check(&self) -> Result<Vec<Error>> {
        let look = || -> rusqlite::Result<Vec<Error>> {
            let mut found = Vec::new();
            let mut statement = self.connection().prepare(&format!("PRAGMA integrity_check({CHECK_FAULTS_MAX})"))?;
            for line in statement.query_map([], |row| row.get::<_, String>(0))? {
                let line = line?;
                if line != "ok" {
                    found.push(damaged("the engine's own check failed").with_source(std::io::Error::other(line)));
                }
            }
            let newer = (
                "SELECT COUNT(*) FROM items WHERE version > (SELECT version FROM counter)",
                "there are rows newer than the version counter",
            );
            for (sql, what) in body::CHECKS.into_iter().chain([newer]) {
                let count: u64 = self.connection().query_row(sql, [], |row| row.get(0))?;
                if count > 0 {
                    found.push(damaged(&format!("{what} ({count})")));
                }
            }
            Ok(found)
        };
        self.begin()?;
        let found = look().map_err(failed)?;
        self.end()?;
        Ok(found)
    }

    fn begin(&self) -> Result<()> {
        self.run("BEGIN")
    }

    fn end(&self) -> Result<()> {
        self.run("COMMIT")
    }

    fn run(&self, sql: &str) -> Result<()> {
        self.connection().prepare_cached(sql).and_then(|mut statement| statement.execute([])).map(drop).map_err(failed)
    }
}

/// A scan in progress.
pub(super) struct ScanRun {
    namespace: Namespace,
    page: PageBuilder,
    /// Where to continue; `None` when the page is complete.
    start: Option<String>,
    end: Option<String>,
    with_values: bool,
    now: i64,
}

impl ScanRun {
    /// Starts a scan.
    pub(super) fn new(namespace: Namespace, options: ScanOptions, now: i64) -> Self {
        let with_values = options.with_values;
        let page = PageBuilder::new(options);
        let (start, end) = (page.start(), page.end());
        Self { namespace, page, start, end, with_values, now }
    }

    /// Returns the finished page.
    pub(super) fn finish(&mut self) -> Scan {
        std::mem::replace(&mut self.page, PageBuilder::new(ScanOptions::new())).finish()
    }
}

/// Reads the version counter.
pub(super) fn current_version(connection: &Connection) -> Result<Version> {
    let number: u64 = connection
        .prepare_cached("SELECT version FROM counter WHERE id = 1")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(failed)?;
    Ok(Version::new(number))
}

/// An exclusive upper bound for text. No bound is an empty blob: SQLite sorts every blob after every text.
pub(super) struct End<'e>(pub(super) Option<&'e str>);

impl ToSql for End<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Some(end) => ToSqlOutput::Borrowed(ValueRef::Text(end.as_bytes())),
            None => ToSqlOutput::Owned(Value::Blob(Vec::new())),
        })
    }
}

/// The fixed columns of a row: key, version, created_at, modified_at, expires_at, size, meta, id, chunk_bytes.
#[derive(Clone, Copy)]
struct Record {
    version: u64,
    created_at: i64,
    modified_at: i64,
    expires_at: Option<i64>,
    size: u64,
    id: i64,
    place: BodyPlace,
}

impl Record {
    fn of(row: &Row<'_>) -> Result<Self> {
        let read = || -> rusqlite::Result<Self> {
            Ok(Self {
                version: row.get(1)?,
                created_at: row.get(2)?,
                modified_at: row.get(3)?,
                expires_at: row.get(4)?,
                size: row.get(5)?,
                id: row.get(7)?,
                place: row.get(8)?,
            })
        };
        read().map_err(failed)
    }

    fn is_live(&self, now: i64) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }

    fn stored(&self) -> StoredBody {
        StoredBody { id: self.id, size: self.size, place: self.place }
    }

    fn into_item(self, row: &Row<'_>, body: Bytes) -> Result<Item> {
        let key: String = row.get(0).map_err(failed)?;
        let meta = row.get_ref(6).and_then(|meta| Ok(Bytes::copy_from_slice(meta.as_blob()?))).map_err(failed)?;
        let (created_at, modified_at) = (time(self.created_at)?, time(self.modified_at)?);
        let expires_at = self.expires_at.map(time).transpose()?;
        Ok(Item::new(key, meta, body, Version::new(self.version), created_at, modified_at).with_expires_at(expires_at))
    }
}

fn time(microseconds: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(microseconds).map_err(|_| damaged("a row has a time outside the calendar"))
}
