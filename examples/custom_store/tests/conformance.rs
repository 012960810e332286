//! The published kit, and a rule that it cannot check: the file alone holds everything.

use custom_store::{LogEngine, LogStore};
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use treehold::config::{ConfigBase, OpenStoreOptions, Registry};
use treehold::conformance::Fresh;
use treehold::store::{Batch, ScanOptions, Store};
use treehold::{BackendExt, ErrorKind, Namespace};

async fn fresh() -> Fresh<dyn Store> {
    let directory = tempfile::tempdir().expect("a directory");
    let store = LogStore::open(&directory.path().join("rows.log")).expect("opened");
    Fresh::new(Arc::new(store) as Arc<dyn Store>).keeping(directory)
}

treehold::store_conformance!(log, fresh);

fn notes() -> Namespace {
    Namespace::new(["ada", "notes"]).expect("a legal namespace")
}

#[tokio::test]
async fn reopened_store_has_the_same_rows_and_counter() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rows.log");
    let store = LogStore::open(&file).expect("opened");
    let other = Namespace::new(["ada", "notes", "log"]).expect("a legal namespace");
    for batch in [
        Batch::new().put_with_meta(&notes(), "a", "meta", "1").put(&notes(), "b", "2").put(&other, "gone/x", "3"),
        Batch::new().put(&notes(), "a", "4").touch(&notes(), "b", Some(Duration::from_secs(3_600))).delete_prefix(&other, "gone/"),
        Batch::new().append(&other, "5", None).delete(&notes(), "absent"),
    ] {
        store.commit(batch).await.expect("committed");
    }
    let all = ScanOptions::new().with_values(true);
    let before = (store.scan(&notes(), all.clone()).await.unwrap(), store.scan(&other, all.clone()).await.unwrap());
    let version = store.current_version(&notes().partition()).await.unwrap();
    assert_eq!(LogStore::open(&file).expect_err("it is open").kind(), ErrorKind::Unavailable);
    drop(store);
    // A crash tore the next record.
    OpenOptions::new().append(true).open(&file).unwrap().write_all(&[9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]).unwrap();
    let store = LogStore::open(&file).expect("opened");
    assert_eq!((store.scan(&notes(), all.clone()).await.unwrap(), store.scan(&other, all.clone()).await.unwrap()), before);
    assert_eq!(store.current_version(&notes().partition()).await.unwrap(), version);
    store.commit(Batch::new().put(&notes(), "c", "6")).await.expect("committed");
    drop(store);
    assert_eq!(LogStore::open(&file).expect("opened").scan(&notes(), all).await.unwrap().entries.len(), 3);
}

#[tokio::test]
async fn damaged_record_within_the_file_is_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rows.log");
    let store = LogStore::open(&file).expect("opened");
    for body in ["first", "second"] {
        store.commit(Batch::new().put(&notes(), "a", body)).await.expect("committed");
    }
    drop(store);
    let bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(5).position(|bytes| bytes == b"first").expect("it exists");
    let mut damaged = bytes.clone();
    damaged[at] ^= 1;
    std::fs::write(&file, damaged).unwrap();
    assert_eq!(LogStore::open(&file).expect_err("damaged").kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn configuration_and_url_name_the_engine() {
    let directory = tempfile::tempdir().expect("a directory");
    let registry = Registry::builtin().with_engine(LogEngine);
    let base = ConfigBase::new(directory.path(), directory.path());
    let text =
        "[stores.default]\nurl = \"log:{data}/agent/rows.log\"\n[routes.\"/notes\"]\ntype = \"store\"\nnamespace = \"{user}/notes\"\n";
    let config = registry.parse_config(text, &base).expect("a sound configuration");
    let workspace = config.workspace().expect("a workspace");
    let session = workspace.session(config.scope()).await.expect("opened");
    session.backend().write("/notes/a.md", "walk the dog\n").await.expect("written");
    session.close().await.expect("saved");
    // The store is open once in this process, under any of its names.
    let options = OpenStoreOptions::new().with_directory(directory.path());
    let store = registry.open_store("log:agent/rows.log", &options).await.expect("opened");
    let notes = Namespace::new(["default", "notes"]).expect("a legal namespace");
    assert_eq!(store.get(&notes, "a.md").await.unwrap().expect("it was written").value, "walk the dog\n");
    let fault = registry.parse_config("[stores.default]\nurl = \"log:\"\n", &base).expect_err("no place");
    assert_eq!(fault.to_string(), "configuration:2:7: `log:` names no location; write `log:FILE`");
}

#[test]
fn command_line_accepts_the_engine() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_custom_store"));
        command.args(arguments).current_dir(directory.path()).env("TREEHOLD_DATA", directory.path());
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let text = "[stores.default]\nurl = \"log:{data}/all.log\"\n[routes.\"/\"]\ntype = \"state\"\n\
        [routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{user}/memories\"\n";
    std::fs::write(directory.path().join("own.toml"), text).unwrap();
    run(&["--config", "own.toml", "config", "check"]);
    assert!(run(&["--config", "own.toml", "config", "show"]).contains("log:{data}/all.log"));
    run(&["--config", "own.toml", "write", "/memories/a.md", "the colour is orange"]);
    assert_eq!(run(&["--config", "own.toml", "cat", "/memories/a.md"]).trim_end(), "the colour is orange");
    // Commands on a store take the URL of one that exists.
    run(&["store", "put", "--store", "log:all.log", "ada/notes", "today", "{\"text\": \"walk the dog\"}"]);
    assert!(run(&["store", "get", "--store", "log:all.log", "ada/notes", "today"]).contains("walk the dog"));
    assert!(run(&["store", "ls", "--store", "log:all.log"]).contains("ada/notes"));
    assert!(run(&["store", "stats", "--store", "log:all.log"]).contains("rows"));
    assert!(run(&["--config", "own.toml", "doctor"]).contains("log:"));
    run(&["store", "copy", "log:all.log", "sqlite:copy.db"]);
    assert!(run(&["store", "get", "--store", "sqlite:copy.db", "ada/notes", "today"]).contains("walk the dog"));
}
