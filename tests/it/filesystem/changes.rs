//! Changes on a host: all or nothing, preserving mode bits and bytes.

use super::{Host, kind, leftovers, path};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use treehold::ops::{ApplyOptions, Change, Durability, Edit, EntryKind, GlobOptions, GrepOptions, LsOptions, StatOptions, WriteMode};
use treehold::{Backend, BackendExt, ErrorKind, FilesystemBackend, FilesystemOptions, SyncMode, VfsPath};

fn mode(path: impl AsRef<std::path::Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// deepagents resolves a link before it deletes, so it deletes the target and keeps the link.
#[tokio::test]
async fn delete_of_a_link_removes_the_link_and_not_its_target() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/d/file", "x").await.unwrap();
        symlink("d/file", host.at("file-link")).unwrap();
        symlink("d", host.at("directory-link")).unwrap();
        tree.delete("/file-link").await.unwrap();
        assert_eq!(tree.delete_all("/directory-link").await.unwrap().entries, 1);
        assert_eq!(tree.read_text("/d/file").await.unwrap(), "x");
        assert_eq!(tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap().entries.len(), 1);
        // The version behind a link also guards the link.
        symlink("d/file", host.at("guarded")).unwrap();
        let stale = tree.read(&path("/guarded"), &treehold::ops::ReadOptions::new()).await.unwrap().version;
        tree.write("/d/file", "y").await.unwrap();
        let delete = Change::Delete { path: path("/guarded"), recursive: false, expect: Some(stale) };
        assert_eq!(kind(tree.apply_one(delete).await), ErrorKind::Conflict);
        assert!(tree.exists("/guarded").await.unwrap());
    }
}

/// deepagents' `delete("/")` removes the root directory itself.
#[tokio::test]
async fn delete_of_the_root_is_refused() {
    for host in Host::both() {
        host.tree.write("/file", "x").await.unwrap();
        assert_eq!(kind(host.tree.delete_all("/").await), ErrorKind::InvalidArgument);
        assert_eq!(kind(host.tree.delete("/").await), ErrorKind::InvalidArgument);
        assert_eq!(host.tree.read_text("/file").await.unwrap(), "x");
    }
}

/// deepagents searches the whole path for `..`, so it refuses legal names.
#[tokio::test]
async fn names_with_dots_and_brackets_are_legal() {
    for host in Host::both() {
        for name in ["foo..bar.txt", "[...slug].tsx", "...", "a b", ".hidden", "~", "-rf", "ünï", "🦀", "back\\slash", "a:b", "*?"] {
            let path = format!("/app/{name}");
            host.tree.write(&path, name).await.unwrap();
            assert_eq!(host.tree.read_text(&path).await.unwrap(), name);
            assert!(host.at("app").join(name).is_file(), "{name}");
        }
        assert_eq!(host.tree.ls(&path("/app"), &LsOptions::new()).await.unwrap().entries.len(), 12);
        let long = "x".repeat(255);
        host.tree.write(&format!("/{long}"), "x").await.unwrap();
        assert_eq!(host.tree.read_text(&format!("/{long}")).await.unwrap(), "x");
    }
}

/// deepagents' edit rewrites every line ending of a file.
#[tokio::test]
async fn edit_keeps_line_endings_and_bytes() {
    for host in Host::both() {
        let content = b"\xef\xbb\xbfone\r\ntwo\r\n\xff\0three\nfour";
        fs::write(host.at("file"), content).unwrap();
        host.tree.edit("/file", "two", "2").await.unwrap();
        assert_eq!(fs::read(host.at("file")).unwrap(), b"\xef\xbb\xbfone\r\n2\r\n\xff\0three\nfour");
    }
}

#[tokio::test]
async fn failed_edit_leaves_file_and_directory_unchanged() {
    for host in Host::both() {
        host.tree.write("/d/file", "x y x\n").await.unwrap();
        let before = fs::metadata(host.at("d/file")).unwrap();
        for edits in [vec![Edit::new("x", "z")], vec![Edit::new("missing", "z")], vec![Edit::new("y", "z"), Edit::new("y", "z")], vec![]] {
            assert!(host.tree.edit_many("/d/file", edits).await.is_err());
        }
        let after = fs::metadata(host.at("d/file")).unwrap();
        assert_eq!((before.ino(), before.mtime_nsec(), before.ctime_nsec()), (after.ino(), after.mtime_nsec(), after.ctime_nsec()));
        assert_eq!(fs::read(host.at("d/file")).unwrap(), b"x y x\n");
        assert_eq!(fs::read_dir(host.at("d")).unwrap().count(), 1);
    }
}

#[tokio::test]
async fn mode_bits_are_preserved() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/script", "one").await.unwrap();
        let fresh = mode(host.at("script"));
        fs::write(host.at("plain"), "x").unwrap();
        assert_eq!(fresh, mode(host.at("plain")), "a new file has the mode that any program gives it");
        fs::set_permissions(host.at("script"), fs::Permissions::from_mode(0o751)).unwrap();
        tree.write("/script", "two").await.unwrap();
        tree.append("/script", "!").await.unwrap();
        tree.edit("/script", "two", "three").await.unwrap();
        assert_eq!(mode(host.at("script")), 0o751);
        // A copy is executable if its source is, within the umask. A replaced file keeps its own mode.
        tree.copy("/script", "/copy").await.unwrap();
        assert_eq!(mode(host.at("copy")) & 0o100, 0o100);
        let overwrite = Change::Copy { from: path("/script"), to: path("/plain"), overwrite: true };
        tree.apply_one(overwrite).await.unwrap();
        assert_eq!(mode(host.at("plain")), fresh);
        // New content does not inherit the setuid and setgid bits.
        fs::set_permissions(host.at("script"), fs::Permissions::from_mode(0o4755)).unwrap();
        tree.write("/script", "four").await.unwrap();
        assert_eq!(mode(host.at("script")), 0o755);
    }
}

#[tokio::test]
async fn invalid_host_names_are_reported_and_skipped() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/fine", "needle").await.unwrap();
        for name in [&b"\xff\xfe"[..], b"new\nline", b"tab\tbed"] {
            fs::write(host.root().join(OsStr::from_bytes(name)), "needle").unwrap();
        }
        fs::create_dir(host.root().join(OsStr::from_bytes(b"dir\xff"))).unwrap();
        fs::write(host.root().join(OsStr::from_bytes(b"dir\xff/file")), "needle").unwrap();
        let listing = tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap();
        assert_eq!(listing.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/fine"]);
        let codes: Vec<_> = listing.failures.iter().map(|failure| failure.error.code.as_str()).collect();
        assert_eq!(codes, ["invalid_path"; 4]);
        assert!(listing.failures.iter().any(|failure| failure.path.as_str() == "/new\u{fffd}line"), "{listing:?}");
        let globbed = tree.glob(VfsPath::ROOT, &GlobOptions::new("*")).await.unwrap();
        assert_eq!((globbed.entries.len(), globbed.failures.len()), (1, 4));
        let grepped = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap();
        assert_eq!((grepped.files.len(), grepped.failures_count), (1, 4));
        // They are moved, copied and deleted with their directory.
        fs::create_dir(host.at("d")).unwrap();
        fs::write(host.root().join(OsStr::from_bytes(b"d/\xff")), "x").unwrap();
        assert_eq!(tree.copy("/d", "/e").await.unwrap().entries, 2);
        assert!(host.root().join(OsStr::from_bytes(b"e/\xff")).exists());
        assert_eq!(tree.delete_all("/d").await.unwrap().entries, 2);
    }
}

/// deepagents truncates a file before writing, so a reader in a loop mostly sees it empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reader_never_sees_a_partial_write() {
    for host in Host::both() {
        let tree = &host.tree;
        let contents: Vec<String> =
            (0..4).map(|letter| char::from(b'a' + letter).to_string().repeat(40_000 + usize::from(letter))).collect();
        tree.write("/file", contents[0].clone()).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (at, stop) = (host.at("file"), Arc::clone(&stop));
                let whole: HashSet<Vec<u8>> = contents.iter().map(|content| content.clone().into_bytes()).collect();
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        assert!(whole.contains(&fs::read(&at).unwrap()), "a partial write was visible");
                    }
                })
            })
            .collect();
        for round in 0..200 {
            tree.write("/file", contents[round % contents.len()].clone()).await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        host.assert_no_leftovers();
    }
}

/// deepagents loses acknowledged edits and damages files under concurrent writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_edits_of_one_file_by_tasks_are_all_kept() {
    let host = Host::new(FilesystemOptions::new());
    let lines: String = (0..8).flat_map(|task| (0..200).map(move |line| format!("{task}-{line}=old\n"))).collect();
    host.tree.write("/file", lines).await.unwrap();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let tree = host.tree.clone();
            tokio::spawn(async move {
                for line in 0..200 {
                    tree.edit("/file", &format!("{task}-{line}=old\n"), &format!("{task}-{line}=new\n")).await.unwrap();
                    tree.append("/log", format!("{task}-{line}\n")).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let text = host.tree.read_text("/file").await.unwrap();
    assert_eq!((text.lines().count(), text.matches("=new").count()), (1600, 1600));
    let log = host.tree.read_text("/log").await.unwrap();
    assert_eq!(log.lines().collect::<HashSet<_>>().len(), 1600);
    host.assert_no_leftovers();
}

#[tokio::test]
async fn versions_are_not_reused_under_rapid_writes() {
    let host = Host::new(FilesystemOptions::new());
    let mut seen = HashSet::new();
    for round in 0..500 {
        // Same size and a new or reused inode within one tick of the kernel's clock.
        let changed = host.tree.write("/file", format!("{round:03}")).await.unwrap();
        assert!(seen.insert(changed.version.unwrap()), "round {round}");
        match round % 3 {
            0 => drop(host.tree.delete("/file").await.unwrap()),
            1 => {
                host.tree.rename("/file", "/other").await.unwrap();
                host.tree.copy("/other", "/file").await.unwrap();
                assert!(seen.insert(host.tree.stat(&path("/file"), &StatOptions::new()).await.unwrap().version.unwrap()), "round {round}");
                host.tree.delete("/other").await.unwrap();
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn failed_batch_reports_what_took_effect() {
    for host in Host::both() {
        let changes = [
            Change::Write { path: path("/a"), content: "1".into(), mode: WriteMode::CreateNew },
            Change::Write { path: path("/d/b"), content: "2".into(), mode: WriteMode::CreateNew },
            Change::Write { path: path("/new/deep/a"), content: "3".into(), mode: WriteMode::IfVersion(treehold::ops::Version::new(1)) },
            Change::Write { path: path("/c"), content: "4".into(), mode: WriteMode::CreateNew },
        ];
        assert!(!host.tree.capabilities().atomic_batch);
        let error = host.tree.apply(&changes, &ApplyOptions::new()).await.unwrap_err();
        assert_eq!((error.kind(), error.change(), error.applied()), (ErrorKind::Conflict, Some(2), 2));
        let names = tree_names(&host.tree).await;
        assert_eq!(names, ["/a", "/d", "/d/b"]);
    }
}

async fn tree_names(tree: &FilesystemBackend) -> Vec<String> {
    tree.tree("/", 9, 99).await.unwrap().entries.iter().map(|entry| entry.path.to_string()).collect()
}

#[tokio::test]
async fn unfinished_writes_are_hidden_protected_and_swept() {
    for host in Host::both() {
        let tree = &host.tree;
        let left = [".treehold-", &"0123456789abcdef".repeat(2), ".tmp"].concat();
        tree.write("/d/file", "needle").await.unwrap();
        fs::write(host.at("d").join(&left), "needle").unwrap();
        fs::create_dir(host.at(&left)).unwrap();
        fs::write(host.at(&left).join("inside"), "needle").unwrap();
        assert_eq!(tree_names(tree).await, ["/d", "/d/file"]);
        assert_eq!(tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_hidden(true)).await.unwrap().entries.len(), 1);
        assert_eq!(tree.grep(VfsPath::ROOT, &GrepOptions::new("needle").with_hidden(true)).await.unwrap().files.len(), 1);
        for at in [format!("/{left}"), format!("/d/{left}"), format!("/{left}/inside")] {
            assert_eq!(kind(tree.read_bytes(&at).await), ErrorKind::InvalidPath);
            assert_eq!(kind(tree.write(&at, "x").await), ErrorKind::InvalidPath);
            assert_eq!(kind(tree.delete_all(&at).await), ErrorKind::InvalidPath);
        }
        assert_eq!(tree.copy("/d", "/copy").await.unwrap().entries, 2);
        assert_eq!(tree.sweep(Duration::from_secs(3600)).await.unwrap(), 0, "they may be under way");
        let old = SystemTime::now() - Duration::from_secs(7200);
        for at in [host.at("d").join(&left), host.at(&left)] {
            fs::File::open(at).unwrap().set_modified(old).unwrap();
        }
        assert_eq!(tree.sweep(Duration::from_secs(3600)).await.unwrap(), 2);
        assert_eq!(leftovers(&host.root()), Vec::<std::path::PathBuf>::new());
        assert_eq!(tree.read_text("/d/file").await.unwrap(), "needle");
    }
}

#[tokio::test]
async fn leftover_of_a_killed_write_does_not_block_rmdir() {
    for host in Host::both() {
        host.tree.create_dir("/d").await.unwrap();
        let left = |digit: &str| host.at("d").join([".treehold-", &digit.repeat(32), ".tmp"].concat());
        fs::write(left("0"), "of a dead process").unwrap();
        fs::create_dir(left("1")).unwrap();
        let under_way = fs::File::create(left("2")).unwrap();
        under_way.lock().unwrap();
        assert_eq!(kind(host.tree.delete("/d").await), ErrorKind::InvalidArgument);
        assert!(left("2").exists(), "the writer is still running");
        drop(under_way);
        host.tree.delete("/d").await.unwrap();
        assert!(!host.at("d").exists());
    }
}

#[tokio::test]
async fn directory_with_only_leftovers_counts_as_empty() {
    for host in Host::both() {
        host.tree.create_dir("/d").await.unwrap();
        let left = [".treehold-", &"0123456789abcdef".repeat(2), ".tmp"].concat();
        fs::write(host.at("d").join(&left), "x").unwrap();
        fs::File::open(host.at("d").join(&left)).unwrap().set_modified(SystemTime::now() - Duration::from_secs(200_000)).unwrap();
        host.tree.delete("/d").await.unwrap();
        assert!(!host.at("d").exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_change_leaves_old_or_new_content() {
    let host = Host::new(FilesystemOptions::new());
    let contents = ["a".repeat(100_000), "b".repeat(100_001)];
    host.tree.write("/file", contents[0].clone()).await.unwrap();
    for round in 0..60 {
        let next = contents[round % 2].clone();
        let tree = host.tree.clone();
        let write = tokio::spawn(async move { tree.write("/file", next).await });
        for _ in 0..round % 4 {
            tokio::task::yield_now().await;
        }
        write.abort();
        let _ = write.await;
        let text = host.tree.read_text("/file").await.unwrap();
        assert!(contents.contains(&text), "round {round}: {} bytes", text.len());
    }
    // A queued change is dropped with its caller, and later ones proceed.
    host.tree.write("/file", "done").await.unwrap();
    assert_eq!(host.tree.read_text("/file").await.unwrap(), "done");
}

#[tokio::test]
async fn durable_mode_gives_the_same_results() {
    for (sync, durability) in [(SyncMode::File, Durability::Process), (SyncMode::Full, Durability::Power)] {
        let host = Host::new(FilesystemOptions::new().with_sync(sync));
        let tree = &host.tree;
        assert_eq!(tree.capabilities().durability, durability);
        tree.write("/a/b/file", "one").await.unwrap();
        tree.append("/a/b/file", " two").await.unwrap();
        tree.edit("/a/b/file", "one", "1").await.unwrap();
        tree.copy("/a", "/c").await.unwrap();
        tree.rename("/a/b/file", "/moved").await.unwrap();
        tree.delete_all("/a").await.unwrap();
        assert_eq!(tree.read_text("/moved").await.unwrap(), "1 two");
        assert_eq!(tree_names(tree).await, ["/c", "/c/b", "/c/b/file", "/moved"]);
        host.assert_no_leftovers();
    }
}

#[tokio::test]
async fn rename_moves_the_entry_and_nothing_else() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/file", "x").await.unwrap();
        symlink("file", host.at("link")).unwrap();
        tree.rename("/link", "/d/moved").await.unwrap();
        assert_eq!(fs::read_link(host.at("d/moved")).unwrap(), std::path::Path::new("file"));
        assert_eq!(tree.stat(&path("/d/moved"), &StatOptions::new()).await.unwrap().kind, EntryKind::Symlink);
        // Two names of one file: the source is removed, as when any other file is replaced.
        fs::hard_link(host.at("file"), host.at("second")).unwrap();
        let overwrite = Change::Rename { from: path("/file"), to: path("/second"), overwrite: true };
        assert!(!tree.apply_one(overwrite).await.unwrap().created);
        assert_eq!(tree_names(tree).await, ["/d", "/d/moved", "/second"]);
        // A directory cannot be moved into itself under any name.
        symlink("d", host.at("alias")).unwrap();
        assert_eq!(kind(tree.rename("/d", "/alias/inside").await), ErrorKind::InvalidArgument);
        assert_eq!(kind(tree.rename("/d", "/d/inside").await), ErrorKind::InvalidArgument);
    }
}

/// Regression: because the file had a second name elsewhere, this name was removed as one of two.
#[tokio::test]
async fn rename_onto_the_same_entry_by_another_path_loses_nothing() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/d/file", "x").await.unwrap();
        symlink("d", host.at("alias")).unwrap();
        fs::hard_link(host.at("d/file"), host.at("elsewhere")).unwrap();
        for overwrite in [true, false] {
            for (from, to) in [("/d/file", "/alias/file"), ("/alias/file", "/d/file")] {
                let renamed = tree.apply_one(Change::Rename { from: path(from), to: path(to), overwrite }).await.unwrap();
                assert_eq!((renamed.created, renamed.entries), (false, 0));
                assert_eq!(tree.read_text("/d/file").await.unwrap(), "x");
            }
        }
        // Directories can have several names on the host, too.
        fs::create_dir_all(host.at("d/sub/below")).unwrap();
        tree.rename("/d/sub", "/alias/sub").await.unwrap();
        assert!(host.at("d/sub/below").is_dir());
    }
}

#[tokio::test]
async fn rename_between_hard_links_keeps_the_target() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/one", "x").await.unwrap();
        fs::create_dir(host.at("d")).unwrap();
        for (from, to) in [("/one", "/two"), ("/two", "/d/three"), ("/d/three", "/One")] {
            fs::hard_link(host.at(&from[1..]), host.at(&to[1..])).unwrap();
            assert_eq!(kind(tree.rename(from, to).await), ErrorKind::AlreadyExists);
            assert_eq!(tree.read_text(from).await.unwrap(), "x");
            tree.apply_one(Change::Rename { from: path(from), to: path(to), overwrite: true }).await.unwrap();
            assert!(!tree.exists(from).await.unwrap());
            assert_eq!(tree.read_text(to).await.unwrap(), "x");
        }
    }
}

#[tokio::test]
async fn write_breaks_a_hard_link_and_keeps_the_other_name() {
    for host in Host::both() {
        fs::write(host.at("one"), "old").unwrap();
        fs::hard_link(host.at("one"), host.at("two")).unwrap();
        host.tree.write("/one", "new").await.unwrap();
        assert_eq!(fs::read_to_string(host.at("two")).unwrap(), "old");
    }
}

#[tokio::test]
async fn change_waits_for_a_directory_lock_of_another_program() {
    let host = Host::new(FilesystemOptions::new());
    host.tree.write("/file", "x").await.unwrap();
    let lock = fs::File::open(host.root()).unwrap();
    lock.lock().unwrap();
    let tree = host.tree.clone();
    let write = tokio::spawn(async move { tree.write("/file", "y").await });
    // Reads do not wait.
    assert_eq!(host.tree.read_text("/file").await.unwrap(), "x");
    assert!(!write.is_finished());
    lock.unlock().unwrap();
    write.await.unwrap().unwrap();
    assert_eq!(host.tree.read_text("/file").await.unwrap(), "y");
}

/// Directories come and go while others write into them. Each write creates its path or reports why not.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn write_survives_concurrent_removal_of_its_directories() {
    for host in Host::both() {
        let refused = {
            let tree = host.tree.clone();
            tokio::spawn(async move {
                for _ in 0..200 {
                    // Refused, so that the directories created for it are removed again.
                    let absent = WriteMode::IfVersion(treehold::ops::Version::new(1));
                    let change = Change::Write { path: path("/new/deep/refused"), content: "x".into(), mode: absent };
                    assert_eq!(kind(tree.apply_one(change).await), ErrorKind::Conflict);
                }
            })
        };
        let made = {
            let tree = host.tree.clone();
            tokio::spawn(async move {
                for round in 0..200 {
                    tree.create_dir("/new/deep/made").await.unwrap();
                    if round % 2 == 0 {
                        let _ = tree.delete_all("/new").await;
                    }
                }
            })
        };
        for round in 0..200 {
            let at = format!("/new/deep/{round}");
            tree_write(&host.tree, &at).await;
            if round % 3 == 0 {
                let _ = host.tree.delete_all("/new/deep").await;
            }
        }
        refused.await.unwrap();
        made.await.unwrap();
        host.assert_no_leftovers();
    }
}

async fn tree_write(tree: &FilesystemBackend, at: &str) {
    tree.write(at, "x").await.unwrap();
    tree.append(at, "y").await.unwrap();
}

#[tokio::test]
async fn refused_change_has_no_effect() {
    let host = Host::new(FilesystemOptions::new());
    host.tree.write("/file", "x").await.unwrap();
    for error in [
        host.tree.write("/file/below", "x").await.unwrap_err(),
        host.tree.edit("/file", "missing", "x").await.unwrap_err(),
        host.tree.rename("/missing", "/new/deep/name").await.unwrap_err(),
        host.tree.copy("/missing", "/new/deep/name").await.unwrap_err(),
        host.tree.delete("/missing").await.unwrap_err(),
    ] {
        assert!(error.is_without_effect(), "{error:?}");
    }
    assert_eq!(tree_names(&host.tree).await, ["/file"]);
}

#[tokio::test]
async fn write_preserves_the_owner_if_permitted() {
    // Only root may give a file away.
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let owner = if user.is_root() { (65534, 65534) } else { (user.as_raw(), group.as_raw()) };
    for host in Host::both() {
        host.tree.write("/file", "x").await.unwrap();
        std::os::unix::fs::chown(host.at("file"), Some(owner.0), Some(owner.1)).unwrap();
        host.tree.edit("/file", "x", "y").await.unwrap();
        let meta = fs::metadata(host.at("file")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), owner);
    }
}

#[tokio::test]
async fn tree_deeper_than_the_handle_limit_is_walked_and_removed() {
    let host = Host::new(FilesystemOptions::new());
    let deep = format!("/{}", ["d"; 2000].join("/"));
    host.tree.write(&format!("{deep}/file"), "needle").await.unwrap();
    let found = host.tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap();
    assert_eq!((found.files.len(), found.failures_count), (1, 0));
    assert_eq!(host.tree.glob(VfsPath::ROOT, &GlobOptions::new("file")).await.unwrap().entries.len(), 1);
    assert_eq!(host.tree.delete_all("/d").await.unwrap().entries, 2001);
    host.assert_no_leftovers();
}

#[tokio::test]
async fn delayed_write_goes_to_the_current_directory_of_its_path() {
    for host in Host::both() {
        host.tree.write("/d/file", "old").await.unwrap();
        let lock = fs::File::open(host.at("d")).unwrap();
        lock.lock().unwrap();
        let tree = host.tree.clone();
        let write = tokio::spawn(async move { tree.write("/d/file", "new").await });
        while leftovers(&host.root()).is_empty() {
            tokio::task::yield_now().await;
        }
        // The write is prepared and waits; now its directory is replaced.
        fs::rename(host.at("d"), host.at("was")).unwrap();
        // The write may find no directory and make it.
        fs::create_dir_all(host.at("d")).unwrap();
        lock.unlock().unwrap();
        assert!(write.await.unwrap().unwrap().created);
        assert_eq!(fs::read_to_string(host.at("d/file")).unwrap(), "new");
        assert_eq!(fs::read_to_string(host.at("was/file")).unwrap(), "old");
        host.assert_no_leftovers();
    }
}

#[tokio::test]
async fn write_has_a_later_time_than_the_replaced_file() {
    let host = Host::new(FilesystemOptions::new());
    host.tree.write("/file", "old").await.unwrap();
    let ahead = SystemTime::now() + Duration::from_secs(600);
    fs::File::options().write(true).open(host.at("file")).unwrap().set_modified(ahead).unwrap();
    host.tree.write("/file", "new").await.unwrap();
    assert_eq!(fs::metadata(host.at("file")).unwrap().modified().unwrap(), ahead + Duration::from_nanos(1));
}
