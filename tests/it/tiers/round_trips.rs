//! The store calls of each operation.

use super::spy::Spy;
use super::{kind, namespace, path};
use std::sync::Arc;
use treehold::checkpoint::{At, Checkpointer, PutOptions, StoreCheckpointer};
use treehold::memory::MemoryReader;
use treehold::ops::{Change, FileRead, GlobOptions, GrepOptions, LsOptions, ReadOptions, StatOptions};
use treehold::store::{Batch, Namespace, Store};
use treehold::{Backend, BackendExt, ErrorKind, Scope, StateBackend, StoreBackend, VfsPath};

fn spied() -> (StoreBackend, Spy) {
    let spy = Spy::default();
    (StoreBackend::new(Arc::new(spy.clone()), namespace()), spy)
}

#[tokio::test]
async fn stat_read_and_ls_take_one_round_trip() {
    let (tree, spy) = spied();
    tree.write("/a/b/file", "content").await.unwrap();
    spy.calls();
    tree.stat(&path("/a/b/file"), &StatOptions::new()).await.unwrap();
    assert_eq!(spy.calls(), ["get_many"]);
    tree.read(&path("/a/b/file"), &ReadOptions::lines(0, 1)).await.unwrap();
    assert_eq!(spy.calls(), ["get_part"]);
    tree.ls(&path("/a/b"), &LsOptions::new()).await.unwrap();
    assert_eq!(spy.calls(), ["scan"]);
    tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap();
    assert_eq!(spy.calls(), ["scan"]);
    assert_eq!(tree.stat(VfsPath::ROOT, &StatOptions::new()).await.unwrap().name(), "");
    assert_eq!(spy.calls(), Vec::<&str>::new());
}

#[tokio::test]
async fn change_of_a_file_takes_one_read_and_one_commit() {
    let (tree, spy) = spied();
    tree.write("/a/b/file", "one\n").await.unwrap();
    assert_eq!(spy.calls(), ["get_many", "get_many", "commit"], "the parents were missing");
    tree.write("/a/b/new", "one\n").await.unwrap();
    assert_eq!(spy.calls(), ["get_many", "commit"], "a new file");
    tree.write("/a/b/file", "two\n").await.unwrap();
    assert_eq!(spy.calls(), ["get_many", "commit"], "an overwrite");
    tree.append("/a/b/file", "three\n").await.unwrap();
    assert_eq!(spy.calls(), ["get_many", "commit"], "an append");
    tree.edit("/a/b/file", "two", "2").await.unwrap();
    assert_eq!(spy.calls(), ["get_many", "commit"], "an edit");
    tree.edit("/a/b/file", "2", "2").await.unwrap();
    assert_eq!(spy.calls(), ["get_many"], "an edit that changes nothing");
    tree.delete("/a/b/file").await.unwrap();
    assert_eq!(spy.calls(), ["get_many", "commit"], "a delete");
    tree.create_dir("/a/b/c").await.unwrap();
    assert_eq!(spy.calls(), ["get_many", "commit"], "a directory");
    tree.rename("/a/b/new", "/a/b/c/old").await.unwrap();
    assert_eq!(spy.calls(), ["get_many", "get_many", "commit"], "a rename reads records and a body at once");
}

#[tokio::test]
async fn change_with_an_expected_version_takes_one_commit() {
    let (tree, spy) = spied();
    tree.create_dir("/a/b").await.unwrap();
    spy.calls();
    let first = tree.create("/a/b/file", "one").await.unwrap();
    assert_eq!((spy.calls(), first.created), (vec!["commit"], true));
    let second = tree.write_if("/a/b/file", "two", first.version.unwrap()).await.unwrap();
    assert_eq!((spy.calls(), second.created), (vec!["commit"], false));
    let delete = |version| Change::Delete { path: path("/a/b/file"), recursive: false, expect: version };
    assert_eq!(kind(tree.apply_one(delete(first.version)).await), ErrorKind::Conflict);
    assert_eq!(spy.calls(), ["commit", "get_many"], "the refused commit is followed by one read of the current row");
    tree.apply_one(delete(second.version)).await.unwrap();
    assert_eq!(spy.calls(), ["commit"]);
    tree.create("/x/y/file", "one").await.unwrap();
    assert_eq!(spy.calls(), ["commit", "get_many", "get_many", "commit"], "the parents were missing");
}

#[tokio::test]
async fn existing_directories_are_not_rewritten() {
    let (tree, _) = spied();
    tree.write("/a/b/one", "").await.unwrap();
    let made = tree.stat(&path("/a/b"), &StatOptions::new()).await.unwrap().created_at;
    let rows = tree.store().get_many(&namespace(), &["a\u{1}", "a\u{1}b\u{1}"], false).await.unwrap();
    tree.write("/a/b/two", "").await.unwrap();
    tree.delete("/a/b/one").await.unwrap();
    tree.create_dir("/a/b").await.unwrap();
    assert_eq!(tree.store().get_many(&namespace(), &["a\u{1}", "a\u{1}b\u{1}"], false).await.unwrap(), rows);
    assert_eq!(tree.stat(&path("/a/b"), &StatOptions::new()).await.unwrap().created_at, made);
}

#[tokio::test]
async fn listing_reads_children_without_bodies() {
    let (tree, spy) = spied();
    for index in 0..20 {
        tree.write(&format!("/here/file{index}"), "body").await.unwrap();
        for beneath in 0..50 {
            tree.write(&format!("/here/directory{index}/{beneath}"), "body").await.unwrap();
        }
    }
    spy.read();
    assert_eq!(tree.ls(&path("/here"), &LsOptions::new()).await.unwrap().entries.len(), 40);
    assert_eq!(spy.read(), (41, 0), "the children and the directory itself");
    spy.calls();
    let page = tree.ls(&path("/here"), &LsOptions::new().with_limit(5).with_start_after("directory3")).await.unwrap();
    assert_eq!(
        page.entries.iter().map(|entry| entry.name()).collect::<Vec<_>>(),
        ["directory4", "directory5", "directory6", "directory7", "directory8"]
    );
    assert_eq!((spy.calls(), spy.read()), (vec!["scan"], (7, 0)));
}

#[tokio::test]
async fn glob_reads_only_rows_beneath_its_literal_prefix() {
    let (tree, spy) = spied();
    for directory in ["src", "src/lib", "target", "target/debug"] {
        for index in 0..300 {
            tree.write(&format!("/{directory}/{index}.rs"), "body").await.unwrap();
        }
    }
    spy.calls();
    spy.read();
    let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("src/lib/*.rs")).await.unwrap();
    assert_eq!(found.entries.len(), 300);
    let (rows, _) = spy.read();
    assert!(rows < 320, "{rows} rows for 300 files");
    assert!(spy.calls().len() <= 5, "two stats and three pages");
    // A directory that is not entered is skipped: at most one page of it is read.
    let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("/*/7.rs")).await.unwrap();
    assert_eq!(found.entries.len(), 2);
    let (rows, _) = spy.read();
    assert!(rows < 1_000, "{rows} rows of 1,200");
}

#[tokio::test]
async fn absent_ignore_files_cost_no_round_trip() {
    let (tree, spy) = spied();
    for index in 0..500 {
        tree.write(&format!("/d{}/f{index}", index % 10), "body").await.unwrap();
    }
    spy.calls();
    let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.unwrap();
    assert_eq!(found.entries.len(), 500);
    let calls = spy.calls();
    let pages = calls.iter().filter(|call| **call == "scan").count();
    assert_eq!(calls.len(), pages + 1, "one stat of the root, and one scan per page: {calls:?}");
    tree.write("/.gitignore", "/d3/\n").await.unwrap();
    tree.write("/d4/.ignore", "f4*\n").await.unwrap();
    let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("f4")).await.unwrap();
    assert_eq!(found.entries.len(), 0);
    let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("f*3")).await.unwrap();
    assert_eq!(found.entries.len(), 0);
    assert_eq!(tree.glob(VfsPath::ROOT, &GlobOptions::new("f*3").with_ignored(true)).await.unwrap().entries.len(), 50);
}

#[tokio::test]
async fn grep_reads_only_selected_bodies() {
    let (tree, spy) = spied();
    for index in 0..600 {
        tree.write(&format!("/d{}/{index}.{}", index % 6, if index % 10 == 0 { "md" } else { "bin" }), "needle").await.unwrap();
    }
    spy.read();
    let found = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_include("*.md")).await.unwrap();
    let (_, bodies) = spy.read();
    assert_eq!(found.files.len(), 60);
    assert!((60..100).contains(&bodies), "{bodies} bodies for 60 files and the ignore files asked for");
    // A limit ends the reading.
    let found = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_matches_max(1)).await.unwrap();
    assert!(found.truncated.is_some());
    let (_, bodies) = spy.read();
    assert!(bodies < 100, "{bodies}");
}

#[tokio::test]
async fn failing_store_is_never_an_empty_tree() {
    let (tree, spy) = spied();
    tree.write("/d/file", "needle").await.unwrap();
    spy.fail(true);
    assert_eq!(kind(tree.stat(&path("/d/file"), &StatOptions::new()).await), ErrorKind::Unavailable);
    assert_eq!(kind(tree.read(&path("/d/file"), &ReadOptions::new()).await), ErrorKind::Unavailable);
    assert_eq!(kind(tree.ls(&path("/d"), &LsOptions::new()).await), ErrorKind::Unavailable);
    assert_eq!(kind(tree.ls(VfsPath::ROOT, &LsOptions::new()).await), ErrorKind::Unavailable);
    assert_eq!(kind(tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_ignored(true)).await), ErrorKind::Unavailable);
    assert_eq!(kind(tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await), ErrorKind::Unavailable);
    assert_eq!(kind(tree.write("/d/file", "").await), ErrorKind::Unavailable);
    assert_eq!(kind(tree.delete_all("/d").await), ErrorKind::Unavailable);
    assert_eq!(kind(tree.exists("/d/file").await), ErrorKind::Unavailable);
    let error = tree.append("/d/file", "x").await.unwrap_err();
    assert_eq!(error.path(), Some(&*path("/d/file")));
    spy.fail(false);
    assert_eq!(tree.read_text("/d/file").await.unwrap(), "needle");
}

#[tokio::test]
async fn unchanged_memory_is_checked_without_reading_bodies() {
    let (tree, spy) = spied();
    tree.write("/AGENTS.md", "x".repeat(100_000)).await.unwrap();
    tree.write("/style.md", "spaces").await.unwrap();
    let (reader, sources) = (MemoryReader::new(), [path("/AGENTS.md"), path("/style.md")]);
    spy.calls();
    assert_eq!(reader.read(&tree, &sources).await.files.len(), 2);
    assert_eq!(spy.calls(), ["get_part", "get_part"]);
    spy.read();
    assert_eq!(reader.read(&tree, &sources).await.files.len(), 2);
    assert_eq!(spy.calls(), ["get_many", "get_many"]);
    assert_eq!(spy.read().1, 0, "no body");
    // Another process that writes the same rows.
    let other = StoreBackend::new(tree.store().clone(), namespace());
    other.edit("/style.md", "spaces", "tabs").await.unwrap();
    spy.calls();
    assert_eq!(&*reader.read(&tree, &sources).await.files[1].text, "tabs");
    assert_eq!(spy.calls(), ["get_many", "get_many", "get_part"]);
}

#[tokio::test]
async fn read_of_a_part_fetches_only_that_part() {
    const MIB: u64 = 1 << 20;
    let (tree, spy) = spied();
    let line = [vec![b'x'; 1_023], vec![b'\n']].concat();
    tree.write("/large", line.repeat(20 << 10)).await.unwrap();
    spy.value_bytes();
    for (options, bytes_max) in [
        (ReadOptions::bytes(19 * MIB, 10), 10),
        (ReadOptions::bytes(0, 4 * MIB), 4 * MIB),
        (ReadOptions::bytes(20 * MIB - 5, u64::MAX), 5),
        // All lines are counted, each byte once.
        (ReadOptions::lines(15_000, 2), 20 * MIB),
        // Too large to be returned, so not read beyond the first part.
        (ReadOptions::new().with_bytes_max(10 * MIB), 4 * MIB),
        (ReadOptions::new(), 24 * MIB),
    ] {
        let _ = tree.read(&path("/large"), &options).await;
        let (bytes, largest) = spy.value_bytes();
        assert!(bytes <= bytes_max, "{options:?} took {bytes} bytes");
        assert!(largest <= 4 * MIB || options == ReadOptions::new(), "{options:?} took {largest} bytes at once");
    }
}

/// Regression: the first read of ten bytes of a saved file loaded all of it and kept it in memory.
#[tokio::test]
async fn read_of_a_part_in_a_saved_thread_fetches_only_that_part() {
    const MIB: u64 = 1 << 20;
    let spy = Spy::default();
    let checkpointer = StoreCheckpointer::new(Arc::new(spy.clone()));
    let scope = Scope::new().with_thread("t");
    let tree = StateBackend::new();
    let line = [vec![b'x'; 1_023], vec![b'\n']].concat();
    tree.write("/large", line.repeat(20 << 10)).await.unwrap();
    checkpointer.put(&scope, &tree.snapshot(), &PutOptions::new()).await.unwrap();
    for (options, bytes_max, at_once_max) in [
        (ReadOptions::bytes(19 * MIB, 10), 10, 10),
        (ReadOptions::bytes(0, 4 * MIB), 4 * MIB, 4 * MIB),
        (ReadOptions::bytes(4 * MIB - 1, 2), 2, 2),
        (ReadOptions::bytes(20 * MIB - 5, u64::MAX), 5, 5),
        (ReadOptions::bytes(20 * MIB, 1), 0, 0),
        (ReadOptions::bytes(20 * MIB + 1, 1), 0, 0),
        (ReadOptions::bytes(0, u64::MAX).with_bytes_max(3), 3, 3),
        // All lines are counted, each byte once.
        (ReadOptions::lines(15_000, 2), 20 * MIB, 4 * MIB),
        (ReadOptions::lines(4_095, 3).with_bytes_max(2_000), 20 * MIB, 4 * MIB),
        (ReadOptions::lines(20 << 10, 1), 20 * MIB, 4 * MIB),
        (ReadOptions::lines((20 << 10) + 1, 1), 20 * MIB, 4 * MIB),
        // Too large to be returned, so not read.
        (ReadOptions::new().with_bytes_max(10 * MIB), 0, 0),
        (ReadOptions::new(), 20 * MIB, 20 * MIB),
    ] {
        let saved = checkpointer.open(&scope, At::Latest).await.unwrap().unwrap().state;
        spy.value_bytes();
        let read = saved.read(&path("/large"), &options).await;
        let (bytes, at_once) = spy.value_bytes();
        assert!(bytes <= bytes_max && at_once <= at_once_max, "{options:?} read {bytes} bytes, {at_once} at once");
        match (read, tree.read(&path("/large"), &options).await) {
            (Ok(read), Ok(expected)) => {
                assert!(read.content == expected.content, "{options:?}");
                let facts = |read: &FileRead| (read.version, read.size_bytes, read.window, read.modified_at);
                assert_eq!(facts(&read), facts(&expected), "{options:?}");
            }
            (read, expected) => {
                let error = read.expect_err("it is refused");
                assert_eq!(error.to_string(), expected.expect_err("it is refused").to_string());
                assert_eq!(error.path(), Some(&*path("/large")), "{options:?}");
            }
        }
    }
    let saved = checkpointer.open(&scope, At::Latest).await.unwrap().unwrap().state;
    let bodies = Namespace::new(["-", "-", "_treehold", "threads", "bodies"]).unwrap();
    spy.inner.commit(Batch::new().delete_prefix(&bodies, "")).await.unwrap();
    for options in [ReadOptions::bytes(5, 5), ReadOptions::lines(5, 5), ReadOptions::new()] {
        assert_eq!(saved.read(&path("/large"), &options).await.unwrap_err().kind(), ErrorKind::Corrupt, "{options:?}");
    }
}
