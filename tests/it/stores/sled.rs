//! A sled directory: refusals and leftovers.

use super::namespace;
use std::fs;
use std::path::Path;
use std::time::Duration;
use treehold::ErrorKind;
use treehold::store::{Batch, ScanOptions, SledOptions, SledStore, Store};

async fn put(store: &SledStore, key: &str, value: &str) -> u64 {
    store.commit(Batch::new().put(&namespace(), key, value.to_owned())).await.unwrap()[0].number()
}

async fn value(store: &SledStore, key: &str) -> Option<String> {
    let item = store.get(&namespace(), key).await.unwrap()?;
    Some(String::from_utf8(item.value.to_vec()).unwrap())
}

/// Opens a store that may just have been closed. The engine's threads keep its lock until they have written to disk.
fn open(path: &Path) -> treehold::Result<SledStore> {
    SledStore::open_with(SledOptions::new(path).with_lock_timeout(Duration::from_secs(60)))
}

#[tokio::test]
async fn rows_and_counter_survive_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sled");
    let mut last = 0;
    for round in 0..5 {
        let store = open(&path).unwrap();
        assert_eq!(store.to_string(), "sled:store.sled");
        assert_eq!(value(&store, "k").await, (round > 0).then(|| format!("round {}", round - 1)));
        assert_eq!(store.current_version(&namespace().partition()).await.unwrap().number(), last);
        let version = put(&store, "k", &format!("round {round}")).await;
        assert!(version > last);
        last = version;
    }
}

#[tokio::test]
async fn submitted_writes_finish_before_the_store_closes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sled");
    let store = SledStore::open(&path).unwrap();
    for number in 0..20 {
        let mut dropped = Box::pin(store.commit(Batch::new().put(&namespace(), format!("{number}"), "v")));
        assert!(futures::poll!(&mut dropped).is_pending());
    }
    drop(store);
    let store = open(&path).unwrap();
    assert_eq!(store.scan(&namespace(), ScanOptions::new()).await.unwrap().entries.len(), 20);
}

/// Regression: the engine's threads keep the lock for a moment after a store is closed, and the next opener was refused.
#[tokio::test]
async fn open_waits_for_a_store_being_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sled");
    for _ in 0..10 {
        let store = open(&path).unwrap();
        let place = path.clone();
        let (begin, begun) = std::sync::mpsc::channel();
        let opener = std::thread::spawn(move || {
            begin.send(()).unwrap();
            open(&place).map(drop)
        });
        begun.recv().unwrap();
        put(&store, "k", "v").await;
        drop(store);
        opener.join().unwrap().unwrap();
    }
}

#[tokio::test]
async fn second_opener_is_refused_while_the_store_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sled");
    let store = SledStore::open(&path).unwrap();
    let error = SledStore::open_with(SledOptions::new(&path).with_lock_timeout(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("another process has"), "{error}");
    put(&store, "k", "v").await;
    drop(store);
    assert_eq!(value(&open(&path).unwrap(), "k").await.as_deref(), Some("v"));
}

#[test]
fn foreign_directory_is_refused_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let foreign = directory.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("file"), "x").unwrap();
    let error = SledStore::open(&foreign).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    let error = SledStore::open(foreign.join("file")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotADirectory, "{error:?}");
    let error = SledStore::open(directory.path().join("absent/store.sled")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
}

/// Opens a directory without the store. A process that another test starts has the lock of a closed directory until it runs its program,
/// and the engine does not wait.
fn opened_by_the_engine(directory: &Path) -> ::sled::Db {
    loop {
        match ::sled::open(directory) {
            Err(error) if error.to_string().contains("could not acquire lock") => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

#[test]
fn another_programs_rows_and_a_newer_format_are_refused() {
    for (key, value, kind) in [
        (&b"theirs"[..], &b"x"[..], ErrorKind::Corrupt),
        (b"f", b"x", ErrorKind::Corrupt),
        (b"f", b"treehold rows 4", ErrorKind::Unsupported),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let theirs = opened_by_the_engine(directory.path());
        theirs.insert(key, value).unwrap();
        drop(theirs);
        let error = SledStore::open(directory.path()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert_eq!(opened_by_the_engine(directory.path()).len(), 1, "nothing was written");
    }
}

#[tokio::test]
async fn damaged_directory_is_an_error_never_an_empty_store() {
    for damage in ["overwrite the log", "overwrite half of the log", "empty the log", "remove the log", "remove all but the mark"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.sled");
        let store = SledStore::open(&path).unwrap();
        for number in 0..100 {
            put(&store, &format!("{number}"), &"body ".repeat(2_000)).await;
        }
        drop(store);
        let log = fs::read(path.join("db")).unwrap();
        match damage {
            "overwrite the log" => fs::write(path.join("db"), vec![0xA5; log.len()]).unwrap(),
            "overwrite half of the log" => {
                fs::write(path.join("db"), [&vec![0xA5; log.len() / 2][..], &log[log.len() / 2..]].concat()).unwrap()
            }
            "empty the log" => fs::write(path.join("db"), "").unwrap(),
            "remove the log" => fs::remove_file(path.join("db")).unwrap(),
            _ => {
                fs::rename(path.join("treehold"), directory.path().join("mark")).unwrap();
                fs::remove_dir_all(&path).unwrap();
                fs::create_dir_all(path.join("blobs")).unwrap();
                fs::rename(directory.path().join("mark"), path.join("treehold")).unwrap();
            }
        }
        let error = open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage}: {error:?}");
    }
}

/// Separate files for single nodes are sled's weakest point; bodies and metadata of every size must stay below the size that creates one.
#[tokio::test]
async fn no_row_creates_a_blob_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sled");
    let store = SledStore::open(&path).unwrap();
    for round in 0..4 {
        for number in 0..60_usize {
            let (meta, body) = (vec![1; number * 1_000], vec![2; (number * 6_151 + round) % 90_000]);
            store.commit(Batch::new().put_with_meta(&namespace(), format!("{number:02}"), meta, body)).await.unwrap();
        }
        store
            .commit((0..60).step_by(3).fold(Batch::new(), |batch, number| batch.delete(&namespace(), format!("{number:02}"))))
            .await
            .unwrap();
    }
    assert_eq!(fs::read_dir(path.join("blobs")).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn directory_is_accessible_to_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sled");
    let _store = SledStore::open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
}
