//! Killed writers of a tree that keeps the past of its files: an acknowledged change is there with what it replaced, and no change is there
//! without.

use super::{Path, SLOTS, Store, body, fault_at_system_calls, kill_again_and_again, number_of, part};
use std::io::Write;
use std::sync::Arc;
use treehold::backend::HistoryPolicy;
use treehold::ops::{ApplyOptions, Change, Moment, ReadOptions, WriteMode};
use treehold::store::{Namespace, StoreExt};
use treehold::{Backend, BackendExt, ErrorKind, StoreBackend, VfsPathBuf};

/// How many contents are kept of each file.
const KEPT: u64 = 5;

fn tree(store: Arc<dyn Store>) -> StoreBackend {
    StoreBackend::new(store, Namespace::new(["files"]).unwrap()).with_history(HistoryPolicy::new().with_keep_last(KEPT as usize))
}

/// Returns the two files that a change writes or removes together.
fn files(slot: u64) -> [VfsPathBuf; 2] {
    [format!("/{slot:02}.md"), format!("/pair/{slot:02}.md")].map(|path| VfsPathBuf::parse(&path).unwrap())
}

/// Returns whether a change removes the files that the one before it wrote.
fn removes(number: u64) -> bool {
    number > SLOTS && number % 5 == 4
}

/// Changes two files at once forever, and prints the number of each acknowledged change.
async fn write(store: Arc<dyn Store>, first: u64) {
    let tree = tree(store);
    for number in first.. {
        let change = |path: VfsPathBuf| match removes(number) {
            true => Change::Delete { path, recursive: false, expect: None },
            false => Change::Write { path, content: body(number).into(), mode: WriteMode::Overwrite },
        };
        let changes = files(number % SLOTS).map(change);
        match tree.apply(&changes, &ApplyOptions::new()).await {
            Ok(_) => {}
            // The last change of the killed writer reached the server only now.
            Err(error) => assert!(error.kind() == ErrorKind::NotFound && removes(number), "{error:?}"),
        }
        let mut out = std::io::stdout();
        out.write_all(format!("acknowledged {number}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
}

/// Returns the number of the change that a file shows, and checks that its past is that of the changes before it, without a gap.
async fn check_file(tree: &StoreBackend, path: &VfsPathBuf) -> u64 {
    let log = tree.log(path).await.unwrap();
    let (mut newest, mut last) = (None, None);
    for (index, revision) in log.iter().enumerate() {
        let past = tree.at(Moment::Number(revision.number)).unwrap();
        let read = past.read(path, &ReadOptions::new()).await;
        let number = match revision.version {
            Some(_) if revision.is_kept => Some(number_of(&read.unwrap().content)),
            Some(_) => None,
            None => {
                assert_eq!(read.unwrap_err().kind(), ErrorKind::NotFound, "{path} {revision:?}");
                None
            }
        };
        let expected = match (last, number) {
            (None, Some(number)) => number,
            // The newest change removed the file; the one before it tells which it was.
            (None, None) => {
                let before = log.get(1).map(|before| tree.at(Moment::Number(before.number)).unwrap());
                let before = before.expect("a file was there before it was removed").read(path, &ReadOptions::new()).await.unwrap();
                number_of(&before.content) + SLOTS
            }
            // A killed writer's last change may have been made twice.
            (Some(last), Some(number)) if number == last => last,
            (Some(last), _) => last - SLOTS,
        };
        assert_eq!(revision.version.is_none(), removes(expected), "{path} {index}: change {expected} of {log:?}");
        assert!(number.is_none_or(|number| number == expected), "{path} {index}: change {number:?} instead of {expected}");
        assert!(revision.is_kept || index as u64 > KEPT, "{path}: revision {index} is gone: {log:?}");
        newest.get_or_insert(expected);
        last = Some(expected);
    }
    let newest = newest.unwrap_or_default();
    let now = tree.read_text(path.as_str()).await.map(|text| number_of(text.as_bytes()));
    match now {
        Ok(number) => assert_eq!(number, newest, "{path} shows something else than its newest revision"),
        Err(error) => assert!(error.kind() == ErrorKind::NotFound && (newest == 0 || removes(newest)), "{path}: {error:?}"),
    }
    newest
}

/// Asserts that every acknowledged change is there, with the past of its files. Returns the newest one.
async fn check(store: Arc<dyn Store>, acknowledged: u64) -> u64 {
    let tree = tree(store.clone());
    let mut newest = 0;
    for slot in 0..SLOTS {
        let [one, other] = files(slot);
        let number = check_file(&tree, &one).await;
        assert_eq!(check_file(&tree, &other).await, number, "half of the change of slot {slot}");
        let expected = (1..=acknowledged).rev().find(|number| number % SLOTS == slot).unwrap_or_default();
        assert!(number >= expected, "slot {slot} shows change {number} and {expected} was acknowledged");
        newest = newest.max(number);
    }
    let damage = store.check().await.unwrap();
    assert!(damage.is_empty(), "{damage:?}");
    newest
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn killed_sqlite_writer_keeps_the_past() {
    if let Some((path, first)) = part() {
        return write(super::open_sqlite(&path), first).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let open = async |path: &Path| super::open_sqlite(path);
    kill_again_and_again("past::killed_sqlite_writer_keeps_the_past", &directory.path().join("store.db"), open, check).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn killed_sqlite_directory_writer_keeps_the_past() {
    if let Some((path, first)) = part() {
        return write(super::open_sqlite_directory(&path), first).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let open = async |path: &Path| super::open_sqlite_directory(path);
    kill_again_and_again("past::killed_sqlite_directory_writer_keeps_the_past", &directory.path().join("store"), open, check).await;
}

#[cfg(feature = "sled")]
#[tokio::test]
async fn killed_sled_writer_keeps_the_past() {
    if let Some((path, first)) = part() {
        return write(super::open_sled(&path), first).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let open = async |path: &Path| super::open_sled(path);
    kill_again_and_again("past::killed_sled_writer_keeps_the_past", &directory.path().join("store.sled"), open, check).await;
}

#[cfg(all(feature = "sqlite", unix))]
#[tokio::test]
#[ignore = "needs strace and the right to trace"]
async fn sqlite_writer_with_failing_system_calls_keeps_the_past() {
    if let Some((path, first)) = part() {
        return write(super::open_sqlite(&path), first).await;
    }
    let test = "past::sqlite_writer_with_failing_system_calls_keeps_the_past";
    fault_at_system_calls(test, async |path| super::open_sqlite(path), check).await;
}

#[cfg(all(feature = "sqlite", unix))]
#[tokio::test]
#[ignore = "needs strace and the right to trace"]
async fn sqlite_directory_writer_with_failing_system_calls_keeps_the_past() {
    if let Some((path, first)) = part() {
        return write(super::open_sqlite_directory(&path), first).await;
    }
    let test = "past::sqlite_directory_writer_with_failing_system_calls_keeps_the_past";
    fault_at_system_calls(test, async |path| super::open_sqlite_directory(path), check).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn killed_redis_writer_keeps_the_past() {
    if let Some((prefix, first)) = part() {
        return write(super::open_redis(&prefix).await, first).await;
    }
    let prefix = crate::servers::redis::prefix().await;
    kill_again_and_again("past::killed_redis_writer_keeps_the_past", Path::new(&prefix.name), super::open_redis, check).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn killed_mysql_writer_keeps_the_past() {
    if let Some((url, first)) = part() {
        return write(super::open_mysql(&url).await, first).await;
    }
    let database = crate::servers::mysql::database().await;
    kill_again_and_again("past::killed_mysql_writer_keeps_the_past", Path::new(&database.url), super::open_mysql, check).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn killed_postgres_writer_keeps_the_past() {
    if let Some((schema, first)) = part() {
        return write(super::open_postgres(&schema).await, first).await;
    }
    let schema = crate::servers::postgres::schema().await;
    let test = "past::killed_postgres_writer_keeps_the_past";
    kill_again_and_again(test, Path::new(&schema.name), super::open_postgres_after_kill, check).await;
}
