//! Faults observed in peers, each as a test of the rule that it broke.

use super::{kind, path, tiers};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use treehold::ops::{Edit, GlobOptions, GrepCursor, GrepOptions, LsOptions, StatOptions};
use treehold::{Backend, BackendExt, Clock, ErrorKind, InvalidPath, MemoryStore, Namespace, StoreBackend, VfsPath, VfsPathBuf};

/// deepagents: ls, glob and grep of a missing directory or of a file are an empty success.
#[tokio::test]
async fn missing_directory_is_not_an_empty_one() {
    for tier in tiers() {
        let tree = &tier.tree;
        tree.write("/d/file", "needle").await.unwrap();
        for missing in ["/x", "/d/x", "/d/x/y"] {
            assert_eq!(kind(tree.ls(&path(missing), &LsOptions::new()).await), ErrorKind::NotFound, "{tree} {missing}");
            assert_eq!(kind(tree.glob(&path(missing), &GlobOptions::new("*")).await), ErrorKind::NotFound, "{tree} {missing}");
            assert_eq!(kind(tree.grep(&path(missing), &GrepOptions::new("x")).await), ErrorKind::NotFound, "{tree} {missing}");
        }
        assert_eq!(kind(tree.ls(&path("/d/file"), &LsOptions::new()).await), ErrorKind::NotADirectory, "{tree}");
        assert_eq!(kind(tree.glob(&path("/d/file"), &GlobOptions::new("*")).await), ErrorKind::NotADirectory, "{tree}");
        assert_eq!(tree.grep(&path("/d/file"), &GrepOptions::new("needle")).await.unwrap().files.len(), 1, "{tree}");
        tree.delete("/d/file").await.unwrap();
        assert!(tree.ls(&path("/d"), &LsOptions::new()).await.unwrap().entries.is_empty(), "{tree}: an empty directory stays");
    }
}

/// deepagents: a file can also be a directory.
#[tokio::test]
async fn path_is_either_file_or_directory() {
    for tier in tiers() {
        let tree = &tier.tree;
        tree.write("/a", "file").await.unwrap();
        tree.write("/d/file", "file").await.unwrap();
        assert_eq!(kind(tree.write("/a/b", "x").await), ErrorKind::NotADirectory, "{tree}");
        assert_eq!(kind(tree.append("/a/b/c", "x").await), ErrorKind::NotADirectory, "{tree}");
        assert_eq!(kind(tree.create_dir("/a/b").await), ErrorKind::NotADirectory, "{tree}");
        assert_eq!(kind(tree.rename("/d", "/a/d").await), ErrorKind::NotADirectory, "{tree}");
        assert_eq!(kind(tree.write("/d", "x").await), ErrorKind::IsDirectory, "{tree}");
        assert_eq!(kind(tree.append("/d", "x").await), ErrorKind::IsDirectory, "{tree}");
        assert_eq!(kind(tree.copy("/a", "/d").await), ErrorKind::AlreadyExists, "{tree}");
        let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_directories(true)).await.unwrap();
        assert_eq!(found.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/a", "/d", "/d/file"], "{tree}");
    }
}

/// deepagents stores `rel.txt`, `//dbl//x`, `/../../etc/passwd` and `/dir/` as separate keys.
#[tokio::test]
async fn file_has_exactly_one_path() {
    for tier in tiers() {
        let tree = &tier.tree;
        tree.write("//dbl//x", "one").await.unwrap();
        tree.write("/dbl/./x/", "two").await.unwrap();
        assert_eq!(tree.read_text("/dbl/x").await.unwrap(), "two", "{tree}");
        assert_eq!(tree.ls(&path("/dbl"), &LsOptions::new()).await.unwrap().entries.len(), 1, "{tree}");
        for refused in ["rel.txt", "", "/../../etc/passwd", "/a/../b", "/a\0b", "/a\u{1}b"] {
            assert_eq!(kind(tree.write(refused, "x").await), ErrorKind::InvalidPath, "{tree} {refused:?}");
        }
        assert_eq!(VfsPathBuf::parse("/a\u{1}b"), Err(InvalidPath::Control), "no path contains the separator of keys");
    }
}

/// deepagents: a backend on `("a",)` lists, greps and deletes the files of `("a", "b")`.
#[tokio::test]
async fn namespace_excludes_longer_namespaces() {
    let store = Arc::new(MemoryStore::new());
    let tree = |components: &[&str]| StoreBackend::new(store.clone(), Namespace::new(components).unwrap());
    let outer = tree(&["a"]);
    let others = [tree(&["a", "b"]), tree(&["a", "b", "c"]), tree(&["ab"]), tree(&["a/b"]), tree(&["a%2Fb"])];
    for other in &others {
        other.write("/n.md", "needle").await.unwrap();
    }
    assert!(outer.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap().entries.is_empty());
    assert!(outer.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.unwrap().entries.is_empty());
    assert!(outer.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap().files.is_empty());
    assert_eq!(kind(outer.delete_all("/n.md").await), ErrorKind::NotFound);
    outer.write("/n.md", "mine").await.unwrap();
    outer.write("/b/n.md", "mine").await.unwrap();
    outer.delete_all("/b").await.unwrap();
    outer.delete("/n.md").await.unwrap();
    for other in &others {
        assert_eq!(other.read_text("/n.md").await.unwrap(), "needle", "{:?}", other.namespace());
    }
}

/// deepagents: pages ordered by time skip one file and repeat another after a write between them.
#[tokio::test]
async fn pages_neither_skip_nor_repeat_entries_during_writes() {
    for tier in tiers() {
        let tree = &tier.tree;
        let stays: Vec<String> = (0..60).map(|index| format!("/d/{index:02}")).collect();
        for file in &stays {
            tree.write(file, "needle\n").await.unwrap();
        }
        let mut round = 0;
        let mut disturb = async || {
            // Before and after the cursor: new files, removed files, and changes of files that were or will be listed.
            round += 1;
            tree.write(&format!("/d/{:02}x{round}", round % 60), "needle\n").await.unwrap();
            tree.write(&stays[(round * 37) % 60], "needle\n").await.unwrap();
            tree.write(&format!("/d/{:02}y", (round * 7) % 60), "").await.unwrap();
            tree.delete(&format!("/d/{:02}y", (round * 7) % 60)).await.unwrap();
        };
        let mut seen: BTreeMap<String, [usize; 3]> = BTreeMap::new();
        let mut options = LsOptions::new().with_limit(7);
        loop {
            let listing = tree.ls(&path("/d"), &options).await.unwrap();
            listing.entries.iter().for_each(|entry| seen.entry(entry.path.to_string()).or_default()[0] += 1);
            let Some(truncation) = listing.truncated else { break };
            options.start_after = Some(truncation.cursor);
            disturb().await;
        }
        let mut options = GlobOptions::new("**").with_limit(7);
        loop {
            let found = tree.glob(VfsPath::ROOT, &options).await.unwrap();
            found.entries.iter().for_each(|entry| seen.entry(entry.path.to_string()).or_default()[1] += 1);
            let Some(truncation) = found.truncated else { break };
            options.start_after = Some(path(&truncation.cursor));
            disturb().await;
        }
        let mut options = GrepOptions::new("needle").with_matches_max(7);
        loop {
            let found = tree.grep(VfsPath::ROOT, &options).await.unwrap();
            found.files.iter().for_each(|file| seen.entry(file.path.to_string()).or_default()[2] += file.lines.len());
            let Some(truncation) = found.truncated else { break };
            options.start_after = Some(truncation.cursor.parse::<GrepCursor>().unwrap());
            disturb().await;
        }
        for file in &stays {
            assert_eq!(seen[file], [1, 1, 1], "{tree} {file}");
        }
        assert!(seen.values().all(|times| times.iter().all(|times| *times <= 1)), "{tree} {seen:?}");
    }
}

/// deepagents: text written over a binary file keeps the old encoding and becomes unreadable.
#[tokio::test]
async fn content_is_preserved_whatever_it_replaces() {
    for tier in tiers() {
        let tree = &tier.tree;
        let all: Vec<u8> = (0..=255).collect();
        let contents: [&[u8]; 6] = [&all, b"text", b"\xff\xfe", b"", b"\xef\xbb\xbfa\r\nb", b"aGk="];
        for content in contents.iter().chain(contents.iter().rev()) {
            tree.write("/image.png", content.to_vec()).await.unwrap();
            assert_eq!(tree.read_bytes("/image.png").await.unwrap(), content, "{tree}");
        }
        tree.write("/image.png", all.clone()).await.unwrap();
        tree.edit("/image.png", "ABC", "abc").await.unwrap();
        let edited = tree.read_bytes("/image.png").await.unwrap();
        assert_eq!((edited.len(), edited[0x40], &edited[0x41..0x44], edited[0xff]), (256, 0x40, &b"abc"[..], 0xff), "{tree}");
    }
}

/// deepagents: an upload over a file resets its creation time.
#[tokio::test]
async fn file_keeps_its_creation_time_until_deleted() {
    for tier in tiers() {
        let tree = &tier.tree;
        let created_at = async |of: &str| tree.stat(&path(of), &StatOptions::new()).await.unwrap().created_at.unwrap();
        tree.write("/a", "one").await.unwrap();
        let first = created_at("/a").await;
        let wait = async || while jiff::Timestamp::now().as_microsecond() <= first.as_microsecond() + 1 {};
        wait().await;
        tree.write("/a", "two").await.unwrap();
        tree.append("/a", "three").await.unwrap();
        tree.edit("/a", "two", "2").await.unwrap();
        let entry = tree.stat(&path("/a"), &StatOptions::new()).await.unwrap();
        assert!(entry.modified_at.unwrap() > first, "{tree}");
        tree.rename("/a", "/d/b").await.unwrap();
        assert_eq!(
            (created_at("/d/b").await, tree.stat(&path("/d/b"), &StatOptions::new()).await.unwrap().modified_at),
            (first, entry.modified_at),
            "{tree}"
        );
        tree.rename("/d", "/e").await.unwrap();
        assert_eq!(
            (created_at("/e/b").await, tree.stat(&path("/e/b"), &StatOptions::new()).await.unwrap().modified_at),
            (first, entry.modified_at),
            "{tree}"
        );
        tree.copy("/e/b", "/c").await.unwrap();
        assert!(created_at("/c").await > first, "{tree}");
        tree.delete("/e/b").await.unwrap();
        tree.write("/e/b", "new").await.unwrap();
        assert!(created_at("/e/b").await > first, "{tree}");
    }
}

/// deepagents: replacing an empty text inserts the new one between all characters.
#[tokio::test]
async fn edit_of_empty_text_is_refused() {
    for tier in tiers() {
        let tree = &tier.tree;
        tree.write("/a", "abc").await.unwrap();
        let version = tree.stat(&path("/a"), &StatOptions::new()).await.unwrap().version;
        assert_eq!(kind(tree.edit_all("/a", "", "Z").await), ErrorKind::InvalidArgument, "{tree}");
        assert_eq!(kind(tree.edit_many("/a", vec![Edit::new("a", "b"), Edit::new("", "Z")]).await), ErrorKind::InvalidArgument, "{tree}");
        assert_eq!(
            (tree.read_text("/a").await.unwrap().as_str(), tree.stat(&path("/a"), &StatOptions::new()).await.unwrap().version),
            ("abc", version),
            "{tree}"
        );
    }
}

/// deepagents: a delete of the root empties the backend.
#[tokio::test]
async fn delete_of_the_root_is_refused_on_every_tier() {
    for tier in tiers() {
        let tree = &tier.tree;
        tree.write("/a", "abc").await.unwrap();
        assert_eq!(kind(tree.delete_all("/").await), ErrorKind::InvalidArgument, "{tree}");
        assert_eq!(tree.read_text("/a").await.unwrap(), "abc", "{tree}");
    }
}

/// A file with a time to live expires and disappears from every read; its directory stays.
#[tokio::test]
async fn expired_files_are_absent_everywhere() {
    let micros = Arc::new(AtomicI64::new(1_000_000));
    let source = micros.clone();
    let clock = Clock::from_fn(move || jiff::Timestamp::from_microsecond(source.load(Ordering::Relaxed)).unwrap());
    let namespace = Namespace::new(["a"]).unwrap();
    let tree = StoreBackend::new(Arc::new(MemoryStore::with_clock(clock)), namespace).with_time_to_live(Duration::from_secs(10));
    tree.write("/d/file", "needle").await.unwrap();
    micros.fetch_add(9_999_999, Ordering::Relaxed);
    tree.write("/d/kept", "needle").await.unwrap();
    assert_eq!(tree.read_text("/d/file").await.unwrap(), "needle");
    micros.fetch_add(1, Ordering::Relaxed);
    assert_eq!(kind(tree.read_text("/d/file").await), ErrorKind::NotFound);
    assert_eq!(kind(tree.stat(&path("/d/file"), &StatOptions::new()).await), ErrorKind::NotFound);
    assert_eq!(tree.ls(&path("/d"), &LsOptions::new()).await.unwrap().entries.len(), 1);
    assert_eq!(tree.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.unwrap().entries.len(), 1);
    assert_eq!(tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap().files.len(), 1);
    assert!(tree.create("/d/file", "new").await.unwrap().created, "the path is free");
    micros.fetch_add(20_000_000, Ordering::Relaxed);
    assert!(tree.ls(&path("/d"), &LsOptions::new()).await.unwrap().entries.is_empty());
    tree.delete("/d").await.unwrap();
}
