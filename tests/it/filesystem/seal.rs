//! Nothing leads out of the root: no link, no mount, no directory swapped at the wrong moment.

use super::{Host, SECRET, kind, path, refusals};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mkfifoat, mknodat, renameat_with};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use treehold::ops::{EntryKind, GlobOptions, GrepOptions, LsOptions, ReadOptions, StatOptions};
use treehold::{Backend, BackendExt, ErrorKind, FilesystemBackend, FilesystemOptions, VfsPath};

const DENIED: ErrorKind = ErrorKind::PermissionDenied;

#[tokio::test]
async fn links_that_leave_the_root_are_refused() {
    for host in Host::both() {
        let (tree, outside) = (&host.tree, host.outside());
        fs::create_dir(host.at("d")).unwrap();
        symlink(outside.join("secret"), host.at("absolute")).unwrap();
        symlink("../outside/secret", host.at("relative")).unwrap();
        symlink("../../outside/secret", host.at("d/deeper")).unwrap();
        symlink("d/deeper", host.at("chained")).unwrap();
        symlink("/", host.at("host")).unwrap();
        symlink("d/../..", host.at("above")).unwrap();
        for file in ["/absolute", "/relative", "/d/deeper", "/chained"] {
            assert_eq!(kind(tree.read_bytes(file).await), DENIED, "{file}");
            assert_eq!(refusals(tree, &path(file)).await, [DENIED; 4], "{file}");
            assert_eq!(tree.stat(&path(file), &StatOptions::new()).await.unwrap().kind, EntryKind::Symlink, "{file}");
            assert_eq!(kind(tree.grep(&path(file), &GrepOptions::new("secret")).await), DENIED, "{file}");
        }
        for directory in ["/host", "/above"] {
            assert_eq!(kind(tree.ls(&path(directory), &LsOptions::new()).await), DENIED, "{directory}");
            assert_eq!(kind(tree.glob(&path(directory), &GlobOptions::new("**")).await), DENIED, "{directory}");
            assert_eq!(kind(tree.grep(&path(directory), &GrepOptions::new("x")).await), DENIED, "{directory}");
            assert_eq!(kind(tree.write(&format!("{directory}/new"), "x").await), DENIED, "{directory}");
            assert_eq!(kind(tree.create_dir(&format!("{directory}/new")).await), DENIED, "{directory}");
            assert_eq!(kind(tree.copy(directory, "/refused").await), DENIED, "{directory}");
        }
        assert_eq!(kind(tree.read_bytes("/above/outside/secret").await), DENIED);
        assert_eq!(kind(tree.delete("/above/outside/secret").await), DENIED);
        assert_eq!(kind(tree.rename("/above/outside/secret", "/mine").await), DENIED);
        assert!(!tree.exists("/refused").await.unwrap());
        host.assert_outside_is_untouched();
        host.assert_no_leftovers();
    }
}

#[tokio::test]
async fn absolute_links_are_followed_only_within_the_root() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/real/deep/file", "one").await.unwrap();
        tree.write("/file", "secret").await.unwrap();
        let root = host.at("");
        for (name, target) in [
            ("directory", host.at("real/deep")),
            ("chain", host.at("directory/file")),
            ("back", host.at("real/../real/deep/file")),
            ("root", root.clone()),
            // A name that only starts like the root's, and escapes that start within it.
            ("beside", std::path::PathBuf::from(format!("{}x/file", root.to_str().unwrap().trim_end_matches('/')))),
            ("above", host.at("../outside/secret")),
            ("far", host.at("real/../../outside/secret")),
            ("slash", "/".into()),
        ] {
            symlink(target, host.at(name)).unwrap();
        }
        symlink("../directory/file", host.at("real/relative")).unwrap();
        for file in ["/directory/file", "/chain", "/back", "/root/real/deep/file", "/root/directory/file", "/real/relative"] {
            assert_eq!(tree.read_text(file).await.unwrap(), "one", "{file}");
            let resolved = tree.stat(&path(file), &StatOptions::new()).await.unwrap();
            assert!(resolved.leads_to.is_none_or(|leads_to| leads_to == path("/real/deep/file")), "{file}");
        }
        tree.write("/chain", "two").await.unwrap();
        tree.write("/directory/new", "made").await.unwrap();
        assert_eq!(tree.read_text("/real/deep/file").await.unwrap(), "two");
        assert_eq!(tree.read_text("/real/deep/new").await.unwrap(), "made");
        assert_eq!(tree.ls(&path("/directory"), &LsOptions::new()).await.unwrap().entries.len(), 2);
        assert!(fs::symlink_metadata(host.at("chain")).unwrap().is_symlink(), "a link stays a link");
        for outside in ["/beside", "/above", "/far", "/slash/etc"] {
            assert_eq!(kind(tree.read_bytes(outside).await), DENIED, "{outside}");
            assert_eq!(kind(tree.write(outside, "x").await), DENIED, "{outside}");
        }
        // Links that form a loop count as too many.
        symlink(host.at("ring"), host.at("ring")).unwrap();
        assert_eq!(kind(tree.read_bytes("/ring").await), DENIED);
        host.assert_outside_is_untouched();
        host.assert_no_leftovers();
    }
}

#[tokio::test]
async fn links_within_the_root_are_followed() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/real/deep/file", "one").await.unwrap();
        symlink("real/deep", host.at("directory")).unwrap();
        symlink("directory/../deep/./file", host.at("file")).unwrap();
        symlink("../file", host.at("real/chain")).unwrap();
        // `directory/..` is the parent of the link's target, as on the host, not the parent of the link.
        assert_eq!(tree.read_text("/file").await.unwrap(), "one");
        assert_eq!(tree.read_text("/real/chain").await.unwrap(), "one");
        let written = tree.write("/file", "two").await.unwrap();
        assert_eq!(tree.read(&path("/file"), &ReadOptions::new()).await.unwrap().version, written.version.unwrap());
        assert_eq!(tree.append("/real/chain", "!").await.unwrap().size_bytes, 4);
        tree.edit("/directory/file", "two", "three").await.unwrap();
        assert_eq!(tree.read_text("/real/deep/file").await.unwrap(), "three!");
        assert!(fs::symlink_metadata(host.at("file")).unwrap().is_symlink(), "a link stays a link");
        let names: Vec<_> = tree.ls(&path("/directory"), &LsOptions::new()).await.unwrap().entries;
        assert_eq!(names.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/directory/file"]);
        let current = tree.read(&path("/real/chain"), &ReadOptions::new()).await.unwrap().version;
        tree.write_if("/real/chain", "four", current).await.unwrap();
        assert_eq!(kind(tree.write_if("/real/chain", "five", current).await), ErrorKind::Conflict);
        assert_eq!(tree.read_text("/real/deep/file").await.unwrap(), "four");
        assert_eq!(kind(tree.create("/file", "new").await), ErrorKind::AlreadyExists);
    }
}

#[tokio::test]
async fn dangling_and_looping_links_are_distinguished() {
    for host in Host::both() {
        let tree = &host.tree;
        symlink("missing", host.at("dangling")).unwrap();
        symlink("b", host.at("a")).unwrap();
        symlink("a", host.at("b")).unwrap();
        for error in [
            tree.read_bytes("/dangling").await.unwrap_err(),
            tree.write("/dangling", "x").await.unwrap_err(),
            tree.append("/dangling", "x").await.unwrap_err(),
            tree.edit("/dangling", "x", "y").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.message().contains("a link to something that does not exist"), "{error}");
        }
        assert_eq!(kind(tree.create("/dangling", "x").await), ErrorKind::AlreadyExists);
        assert_eq!(kind(tree.write("/dangling/below", "x").await), ErrorKind::NotFound);
        assert!(!host.at("missing").exists(), "nothing is created through a link");
        assert_eq!(kind(tree.read_bytes("/a").await), DENIED);
        assert_eq!(kind(tree.write("/a/below", "x").await), DENIED);
        tree.delete("/dangling").await.unwrap();
        tree.delete("/a").await.unwrap();
        assert_eq!(tree.stat(&path("/b"), &StatOptions::new()).await.unwrap().kind, EntryKind::Symlink);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn magic_links_of_proc_are_not_followed() {
    for openat2 in [true, false] {
        let tree = FilesystemBackend::open("/proc/self", FilesystemOptions::new().with_openat2(openat2)).unwrap();
        for magic in ["/root/etc/hostname", "/cwd/Cargo.toml", "/exe", "/fd/0/x"] {
            let refused = kind(tree.read_bytes(magic).await);
            assert!(matches!(refused, ErrorKind::PermissionDenied | ErrorKind::NotFound | ErrorKind::NotADirectory), "{magic}: {refused}");
        }
        assert_eq!(kind(tree.ls(&path("/root"), &LsOptions::new()).await), DENIED);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn host_mounts_are_listed_and_entered_only_on_request() {
    for openat2 in [true, false] {
        let options = FilesystemOptions::new().with_openat2(openat2);
        let tree = FilesystemBackend::open("/", options.clone()).unwrap();
        let names = tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap().entries;
        let proc = names.iter().find(|entry| entry.name() == "proc").unwrap();
        assert_eq!(proc.kind, EntryKind::Directory);
        assert_eq!(kind(tree.stat(&path("/proc/version"), &StatOptions::new()).await), DENIED);
        assert_eq!(kind(tree.read_bytes("/proc/version").await), DENIED);
        assert_eq!(kind(tree.ls(&path("/proc"), &LsOptions::new()).await), DENIED);
        let crossing = FilesystemBackend::open("/", options.with_cross_mounts(true)).unwrap();
        // A host file that claims to be empty and is not.
        assert_eq!(crossing.stat(&path("/proc/version"), &StatOptions::new()).await.unwrap().size_bytes, 0);
        assert!(!crossing.read_bytes("/proc/version").await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn devices_pipes_and_sockets_are_listed_and_never_opened() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/file", "needle").await.unwrap();
        mkfifoat(CWD, host.at("pipe"), Mode::from_raw_mode(0o666)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(host.at("socket")).unwrap();
        let mut specials = vec!["/pipe", "/socket"];
        if mknodat(CWD, host.at("zero"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), rustix::fs::makedev(1, 5)).is_ok() {
            specials.push("/zero");
        }
        for special in &specials {
            assert_eq!(tree.stat(&path(special), &StatOptions::new()).await.unwrap().kind, EntryKind::Other);
            // Opening a pipe for reading waits for a writer, so these calls would never return.
            assert_eq!(kind(tree.read_bytes(special).await), DENIED, "{special}");
            assert_eq!(kind(tree.grep(&path(special), &GrepOptions::new("x")).await), DENIED, "{special}");
            assert_eq!(refusals(tree, &path(special)).await, [DENIED; 4], "{special}");
        }
        let listed = tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap().entries;
        assert_eq!(listed.iter().filter(|entry| entry.kind == EntryKind::Other).count(), specials.len());
        let found = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap();
        assert_eq!((found.files.len(), found.files_searched, found.failures_count), (1, 1, 0));
        for special in &specials {
            tree.delete(special).await.unwrap();
        }
        assert_eq!(tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap().entries.len(), 1);
    }
}

#[tokio::test]
async fn ignore_file_that_is_a_pipe_or_leads_out_is_not_read() {
    for host in Host::both() {
        fs::write(host.outside().join("secret"), SECRET).unwrap();
        host.tree.write("/d/file", "x").await.unwrap();
        mkfifoat(CWD, host.at(".gitignore"), Mode::from_raw_mode(0o666)).unwrap();
        symlink(host.outside().join("secret"), host.at("d/.gitignore")).unwrap();
        let found = host.tree.glob(VfsPath::ROOT, &GlobOptions::new("file")).await.unwrap();
        assert_eq!(found.entries.len(), 1);
    }
}

#[tokio::test]
async fn directory_replaced_by_a_link_is_not_followed() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/d/secret", "mine").await.unwrap();
        fs::rename(host.at("d"), host.at("was")).unwrap();
        symlink(host.outside(), host.at("d")).unwrap();
        assert_eq!(kind(tree.read_bytes("/d/secret").await), DENIED);
        assert_eq!(kind(tree.write("/d/secret", "x").await), DENIED);
        assert_eq!(kind(tree.delete("/d/secret").await), DENIED);
        assert_eq!(tree.grep(VfsPath::ROOT, &GrepOptions::new("outside")).await.unwrap().files.len(), 0);
        host.assert_outside_is_untouched();
    }
}

#[tokio::test]
async fn moved_root_is_still_the_root() {
    for host in Host::both() {
        host.tree.write("/a", "x").await.unwrap();
        fs::rename(host.root(), host.directory.path().join("moved")).unwrap();
        symlink("outside", host.root()).unwrap();
        assert_eq!(host.tree.read_text("/a").await.unwrap(), "x");
        assert_eq!(kind(host.tree.read_bytes("/secret").await), ErrorKind::NotFound);
    }
}

#[tokio::test]
async fn root_is_opened_created_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("a/b");
    let error = FilesystemBackend::open(&missing, FilesystemOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(!error.message().contains("a/b") && error.message().contains("create_root"), "{error}");
    let made = FilesystemBackend::open(&missing, FilesystemOptions::new().with_create_root(true)).unwrap();
    made.write("/x", "x").await.unwrap();
    assert_eq!(made.to_string(), "Filesystem(b)");
    for create_root in [false, true] {
        let options = FilesystemOptions::new().with_create_root(create_root);
        assert_eq!(FilesystemBackend::open(missing.join("x"), options).unwrap_err().kind(), ErrorKind::NotADirectory);
    }
}

/// Swaps a directory for a link to the outside and back as fast as possible, until told to stop.
fn swap(host: &Host, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<usize> {
    let (one, other) = (host.at("d"), host.at("swapped"));
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut swaps = 0;
        while !stop.load(Ordering::Relaxed) {
            renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            swaps += 1;
        }
        swaps
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn directory_swapped_in_a_loop_never_leads_out() {
    for host in Host::both() {
        let tree = &host.tree;
        for directory in ["/d", "/d/sub", "/d/sub/deep"] {
            tree.write(&format!("{directory}/secret"), "mine").await.unwrap();
        }
        fs::create_dir(host.outside().join("sub")).unwrap();
        fs::write(host.outside().join("sub/secret"), SECRET).unwrap();
        symlink("../outside", host.at("swapped")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let swapping = swap(&host, &stop);
        for round in 0..150 {
            if let Ok(text) = tree.read_text("/d/secret").await {
                assert_ne!(text, SECRET);
            }
            if let Ok(text) = tree.read_text("/d/sub/secret").await {
                assert_ne!(text, SECRET);
            }
            let grepped = tree.grep(VfsPath::ROOT, &GrepOptions::new("outside").with_hidden(true)).await.unwrap();
            assert_eq!(grepped.files, [], "round {round}");
            let globbed = tree.glob(VfsPath::ROOT, &GlobOptions::new("**/secret")).await.unwrap();
            assert!(globbed.entries.iter().all(|entry| entry.size_bytes == 4), "round {round}: {globbed:?}");
            // A write goes to the directory within the root or nowhere. That directory may be named `swapped` by then.
            let _ = tree.write("/d/secret", "mine").await;
            let _ = tree.write("/d/new", "mine").await;
            let _ = tree.append("/d/sub/log", "x").await;
            let _ = tree.edit("/d/sub/secret", "mine", "mine").await;
            let _ = tree.create_dir("/d/made/deep").await;
            let _ = tree.copy("/d", &format!("/copy-{round}")).await;
            let _ = tree.rename("/d/new", "/d/newer").await;
            let _ = tree.delete("/d/newer").await;
            let _ = tree.delete_all("/d/made").await;
            let _ = tree.delete_all(&format!("/copy-{round}")).await;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(swapping.join().unwrap() > 0);
        assert_eq!(fs::read_to_string(host.outside().join("secret")).unwrap(), SECRET);
        assert_eq!(fs::read_to_string(host.outside().join("sub/secret")).unwrap(), SECRET);
        assert_eq!(fs::read_dir(host.outside()).unwrap().count(), 2);
        assert_eq!(fs::read_dir(host.outside().join("sub")).unwrap().count(), 1);
    }
}

#[tokio::test]
async fn copied_tree_keeps_links_without_copying_their_targets() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/d/file", "x").await.unwrap();
        symlink(host.outside().join("secret"), host.at("d/out")).unwrap();
        symlink("file", host.at("d/in")).unwrap();
        assert_eq!(tree.copy("/d", "/e/copy").await.unwrap().entries, 4);
        assert_eq!(fs::read_link(host.at("e/copy/out")).unwrap(), host.outside().join("secret"));
        assert_eq!(kind(tree.read_bytes("/e/copy/out").await), DENIED);
        assert_eq!(tree.read_text("/e/copy/in").await.unwrap(), "x");
        // A link that is copied by itself becomes the file that reading it returns.
        tree.copy("/d/in", "/e/alone").await.unwrap();
        assert_eq!(tree.stat(&path("/e/alone"), &StatOptions::new()).await.unwrap().kind, EntryKind::File);
        tree.delete_all("/d").await.unwrap();
        tree.delete_all("/e").await.unwrap();
        host.assert_outside_is_untouched();
        assert_eq!(tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap().entries.len(), 0);
    }
}

#[tokio::test]
async fn link_to_an_ancestor_does_not_loop() {
    for host in Host::both() {
        let tree = &host.tree;
        tree.write("/d/file", "x").await.unwrap();
        symlink("..", host.at("d/loop")).unwrap();
        let found = tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_directories(true)).await.unwrap().entries;
        assert_eq!(found.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["/d", "/d/file", "/d/loop"]);
        assert_eq!(tree.grep(VfsPath::ROOT, &GrepOptions::new("x")).await.unwrap().files.len(), 1);
        // A tree that is copied into itself through a link is copied once.
        symlink("d", host.at("alias")).unwrap();
        tree.copy("/d", "/alias/inside").await.unwrap();
        assert_eq!(tree.read_text("/d/inside/file").await.unwrap(), "x");
        assert!(!tree.exists("/d/inside/inside").await.unwrap());
    }
}
