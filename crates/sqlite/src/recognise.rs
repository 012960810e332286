//! Decides whether a file is ours before it is opened for writing, so that files of other programs stay untouched.
//!
//! The header of a database is the start of its page 1. After a loss of power it may be missing from the file: SQLite overwrites a page only
//! once its content is durable elsewhere, in the write-ahead log or (the former content) in a rollback journal, and the page itself may be
//! torn until the file is synced ([atomic commit](https://www.sqlite.org/atomiccommit.html), [WAL](https://www.sqlite.org/wal.html)). SQLite
//! reads the page from there, so a header that does not name us is inconclusive while such a file holds page 1. Both formats are in
//! [the description of the file format](https://www.sqlite.org/fileformat2.html).

use super::error::{failed, foreign, unreachable_file};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use treehold_core::error::Result;
use treehold_core::escape::{escape_bytes, is_unreserved};

/// Marks our files.
pub(super) const APPLICATION_ID: i32 = i32::from_be_bytes(*b"thld");

/// Marks files of a schema version below [`MARKED`].
const FORMER_APPLICATION_ID: i32 = i32::from_be_bytes(*b"strt");

/// The first schema version whose files have the present mark.
const MARKED: i64 = 4;

/// The start of every database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The length of a database's header, in bytes.
const HEADER_BYTES: usize = 100;

/// Decides whether the file is ours, or empty and free to use. Returns its schema version if the header has it.
///
/// # Errors
/// [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) for a file of another program.
pub(super) fn recognise(path: &Path) -> Result<Option<i64>> {
    // Check this first: another process may be filling an empty file at this moment.
    if std::fs::metadata(path).map_err(|cause| unreachable_file(path, cause))?.len() == 0 {
        return Ok(None);
    }
    let version = version_in_header(path)?;
    match version.is_some() || is_ours_beside(path).map_err(|cause| unreachable_file(path, cause))? {
        true => Ok(version),
        false => Err(foreign(path)),
    }
}

/// Returns the schema version in the header if the header names us.
///
/// With `immutable`, SQLite reads the header without taking locks, rolling back or creating files. After an interrupted
/// checkpoint the file may be shorter than its header says, with the rest in the log; SQLite treats that as damage
/// unless `writable_schema` is set.
fn version_in_header(path: &Path) -> Result<Option<i64>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(immutable_uri(path), flags).map_err(failed)?;
    connection.pragma_update(None, "writable_schema", true).map_err(failed)?;
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    match number("PRAGMA page_count") {
        // A file shorter than a page still belongs to somebody.
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(error) if matches!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)) => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let (mark, version) = (number("PRAGMA application_id").map_err(failed)?, number("PRAGMA user_version").map_err(failed)?);
    Ok(is_mark(mark, version).then_some(version))
}

/// Returns whether a mark is ours, for a schema version.
fn is_mark(mark: i64, version: i64) -> bool {
    mark == i64::from(APPLICATION_ID) || (mark == i64::from(FORMER_APPLICATION_ID) && version < MARKED)
}

fn immutable_uri(path: &Path) -> String {
    let is_plain = |character| character == '/' || is_unreserved(character);
    format!("file:{}?immutable=1", escape_bytes(path.as_os_str().as_encoded_bytes(), is_plain))
}

/// Appends a suffix to the path of a database, such as `-wal` for its log.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns whether a log or journal beside the file shows that it is ours: it holds a page 1 that names us, or the journal of a database
/// that is being created in an empty file, which SQLite empties again.
///
/// Cost: reads the heads of all pages of the log and the journal. It is paid only for a file whose header does not name us.
fn is_ours_beside(path: &Path) -> io::Result<bool> {
    // SQLite follows links and puts both beside their target.
    let real = std::fs::canonicalize(path)?;
    let beside = |suffix: &str| match File::open(with_suffix(&real, suffix)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    };
    // SQLite locks neither file, so closing these handles releases no lock.
    if let Some(log) = beside("-wal")?
        && ended(is_ours_in_log(log))?
    {
        return Ok(true);
    }
    match beside("-journal")? {
        Some(journal) => ended(is_ours_in_journal(journal, || is_blank(&real))),
        None => Ok(false),
    }
}

/// Treats a file that ends early as inconclusive.
fn ended(found: io::Result<bool>) -> io::Result<bool> {
    match found {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        found => found,
    }
}

/// Returns whether a page 1 in the current content of a write-ahead log names us. Whether it was committed does not matter: the log belongs
/// to one database.
fn is_ours_in_log(mut log: File) -> io::Result<bool> {
    let header: [u8; 32] = read(&mut log)?;
    let page_bytes = u64::from(number(&header, 8));
    if number(&header, 0) & !1 != 0x377f_0682 || !is_page_size(page_bytes) {
        return Ok(false);
    }
    loop {
        let frame: [u8; 24] = read(&mut log)?;
        // Frames with other salts are left over from before the log was restarted.
        if frame[8..16] != header[16..24] {
            return Ok(false);
        }
        if number(&frame, 0) == 1 {
            return is_our_page(&mut log);
        }
        log.seek_relative(page_bytes as i64)?;
    }
}

/// Returns whether the page 1 in a rollback journal names us, or the file is blank and had no page before the transaction.
fn is_ours_in_journal(mut journal: File, is_blank: impl FnOnce() -> io::Result<bool>) -> io::Result<bool> {
    let mut at = 0;
    loop {
        journal.seek(SeekFrom::Start(at))?;
        let header: [u8; 28] = read(&mut journal)?;
        let [records, pages_before, sector_bytes, page_bytes] = [8, 16, 20, 24].map(|at| u64::from(number(&header, at)));
        let is_valid = header[..8] == [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
        if !is_valid || !is_page_size(page_bytes) || !(32..=0x10000).contains(&sector_bytes) {
            return Ok(false);
        }
        if pages_before == 0 {
            return is_blank();
        }
        at += sector_bytes;
        // A count of all ones means all pages that follow.
        for _ in 0..records {
            journal.seek(SeekFrom::Start(at))?;
            if u32::from_be_bytes(read(&mut journal)?) == 1 {
                return is_our_page(&mut journal);
            }
            at += 4 + page_bytes + 4;
        }
        if records == 0 || records == u64::from(u32::MAX) {
            return Ok(false);
        }
        at = at.next_multiple_of(sector_bytes);
    }
}

/// Returns whether a file starts with zeros where its header should be.
fn is_blank(path: &Path) -> io::Result<bool> {
    // Closing a handle would drop SQLite's locks on the file. This file has no header, so no connection of this process has it open.
    Ok(read::<HEADER_BYTES>(&mut File::open(path)?)? == [0; HEADER_BYTES])
}

/// Returns whether the next page is the first page of one of our databases.
fn is_our_page(file: &mut File) -> io::Result<bool> {
    let header: [u8; HEADER_BYTES] = read(file)?;
    let [version, mark] = [60, 68].map(|at| i64::from(number(&header, at).cast_signed()));
    Ok(header.starts_with(MAGIC) && is_mark(mark, version))
}

fn is_page_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (512..=0x10000).contains(&bytes)
}

fn read<const N: usize>(file: &mut File) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use crate::SqliteStore;
    use rusqlite::Connection;
    use std::fs;
    use std::path::{Path, PathBuf};
    use treehold_core::error::ErrorKind;
    use treehold_store::{Batch, Namespace, Store, StoreMaintenance};

    const SUFFIXES: [&str; 3] = ["", "-wal", "-journal"];

    fn beside(path: &Path, suffix: &str) -> PathBuf {
        super::with_suffix(path, suffix)
    }

    /// Copies a database with its log and journal as a power failure leaves it: without the first page, which was not synced.
    fn after_power_loss(from: &Path, to: &Path) -> Vec<Option<Vec<u8>>> {
        for suffix in SUFFIXES {
            if beside(from, suffix).exists() {
                fs::copy(beside(from, suffix), beside(to, suffix)).expect("copied");
            }
        }
        let mut bytes = fs::read(to).expect("a file");
        let page_bytes = bytes.len().min(4_096);
        bytes[..page_bytes].fill(0);
        fs::write(to, bytes).expect("written");
        contents(to)
    }

    fn contents(path: &Path) -> Vec<Option<Vec<u8>>> {
        SUFFIXES.iter().map(|suffix| fs::read(beside(path, suffix)).ok()).collect()
    }

    /// Regression: a checkpoint overwrites page 1, and a loss of power before its sync left a file that was mistaken for another program's.
    #[tokio::test]
    async fn file_whose_first_page_is_only_in_the_log_is_opened() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, left) = (directory.path().join("store.db"), directory.path().join("left.db"));
        let store = SqliteStore::open(&path).expect("opened");
        let space = Namespace::new(["a"]).expect("legal");
        for number in 0..20 {
            store.commit(Batch::new().put(&space, format!("{number:02}"), vec![number; 300_000])).await.expect("committed");
        }
        after_power_loss(&path, &left);
        let left = SqliteStore::open(&left).expect("page 1 is in the log");
        for number in 0..20 {
            let item = left.get(&space, &format!("{number:02}")).await.expect("read").expect("acknowledged");
            assert_eq!(item.value, vec![number; 300_000]);
        }
        assert!(left.check().await.expect("checked").is_empty());
    }

    #[test]
    fn other_database_whose_first_page_is_only_in_the_log_is_refused_unchanged() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, left) = (directory.path().join("other.db"), directory.path().join("left.db"));
        let other = Connection::open(&path).expect("opened");
        other.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t(a); INSERT INTO t VALUES (1)").expect("written");
        let before = after_power_loss(&path, &left);
        assert!(before[1].is_some(), "there is a log");
        let error = SqliteStore::open(&left).expect_err("of another program");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        assert_eq!(contents(&left), before);
        // The log of a store of ours, before it was restarted by another database.
        let mut log = fs::read(beside(&left, "-wal")).expect("a log");
        log[16..24].fill(0xff);
        fs::write(beside(&left, "-wal"), log).expect("written");
        assert_eq!(SqliteStore::open(&left).expect_err("of another program").kind(), ErrorKind::Corrupt);
    }

    /// A transaction of a file that has no write-ahead log, such as a migration, is interrupted after it wrote to the file.
    fn interrupted(path: &Path, application_id: i32, left: &Path) -> Vec<Option<Vec<u8>>> {
        let writer = Connection::open(path).expect("opened");
        writer.pragma_update(None, "journal_mode", "DELETE").expect("set");
        writer.pragma_update(None, "application_id", application_id).expect("set");
        writer.execute_batch("PRAGMA cache_size = 1; PRAGMA cache_spill = ON; BEGIN; CREATE TABLE IF NOT EXISTS t(a)").expect("begun");
        for _ in 0..200 {
            writer.execute("INSERT INTO t VALUES (zeroblob(4000))", []).expect("inserted");
        }
        after_power_loss(path, left)
    }

    #[test]
    fn file_whose_first_page_is_only_in_the_journal_is_opened_if_it_is_ours() {
        let directory = tempfile::tempdir().expect("a directory");
        let [path, left, other, other_left] = ["a.db", "b.db", "c.db", "d.db"].map(|name| directory.path().join(name));
        drop(SqliteStore::open(&path).expect("opened"));
        let before = interrupted(&path, super::APPLICATION_ID, &left);
        assert!(before[2].is_some(), "there is a journal");
        SqliteStore::open(&left).expect("page 1 is in the journal");
        drop(Connection::open(&other).expect("opened").execute_batch("CREATE TABLE t(a)"));
        let before = interrupted(&other, 7, &other_left);
        assert!(before[2].is_some(), "there is a journal");
        assert_eq!(SqliteStore::open(&other_left).expect_err("of another program").kind(), ErrorKind::Corrupt);
        assert_eq!(contents(&other_left), before);
    }

    /// Regression: a loss of power while a store was created left a file that was mistaken for another program's.
    #[test]
    fn file_whose_creation_was_interrupted_is_created_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        let header = |pages_before: u32| {
            let numbers = [0, 7, pages_before, 512, 4_096].map(u32::to_be_bytes).concat();
            let mut header = [&[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7][..], &numbers].concat();
            header.resize(512, 0);
            header
        };
        for (content, pages_before, is_ours) in [(vec![0; 8_192], 0, true), (vec![b'x'; 8_192], 0, false), (vec![0; 8_192], 1, false)] {
            fs::write(&path, content).expect("written");
            fs::write(beside(&path, "-journal"), header(pages_before)).expect("written");
            let before = contents(&path);
            match SqliteStore::open(&path) {
                Ok(_) => assert!(is_ours),
                Err(error) => {
                    assert_eq!((error.kind(), is_ours), (ErrorKind::Corrupt, false), "{error:?}");
                    assert_eq!(contents(&path), before);
                }
            }
            fs::remove_file(&path).expect("removed");
        }
    }
}
