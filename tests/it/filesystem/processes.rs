//! Several processes on one root. The test binary starts itself, with its role in the environment.

use super::{Host, kind, path};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use treehold::ops::{GlobOptions, GrepOptions, LsOptions, ReadOptions, StatOptions};
use treehold::{Backend, BackendExt, ErrorKind, FilesystemBackend, FilesystemOptions, VfsPath};

const ROOT: &str = "TREEHOLD_TEST_ROOT";
const NUMBER: &str = "TREEHOLD_TEST_NUMBER";
const WRITERS: usize = 4;
const ROUNDS: usize = 200;

/// Starts this test again, as a worker on a root.
fn start(test: &str, root: &Path, number: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("filesystem::processes::{test}"), "--nocapture"]).env(ROOT, root).env(NUMBER, number.to_string());
    command
}

/// Returns the root and number that this process was started with, if it is a worker.
fn part() -> Option<(FilesystemBackend, usize)> {
    let root = std::env::var_os(ROOT)?;
    let number = std::env::var(NUMBER).unwrap().parse().unwrap();
    Some((FilesystemBackend::open(root, FilesystemOptions::new()).unwrap(), number))
}

fn start_writers(test: &str, root: &Path) -> Vec<Child> {
    (0..WRITERS).map(|number| start(test, root, number).stdout(std::process::Stdio::null()).spawn().unwrap()).collect()
}

fn assert_all_succeed(children: Vec<Child>) {
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

#[tokio::test]
async fn concurrent_edits_and_appends_by_processes_are_all_kept() {
    if let Some((tree, number)) = part() {
        for round in 0..ROUNDS {
            tree.edit("/d/file", &format!("{number}-{round}=old\n"), &format!("{number}-{round}=new\n")).await.unwrap();
            tree.append("/d/log", format!("{number}-{round}\n")).await.unwrap();
        }
        return;
    }
    let host = Host::new(FilesystemOptions::new());
    let lines: String = (0..WRITERS).flat_map(|number| (0..ROUNDS).map(move |round| format!("{number}-{round}=old\n"))).collect();
    host.tree.write("/d/file", lines).await.unwrap();
    assert_all_succeed(start_writers("concurrent_edits_and_appends_by_processes_are_all_kept", &host.root()));
    let text = host.tree.read_text("/d/file").await.unwrap();
    assert_eq!((text.lines().count(), text.matches("=new").count()), (WRITERS * ROUNDS, WRITERS * ROUNDS));
    let log = host.tree.read_text("/d/log").await.unwrap();
    assert_eq!((log.lines().count(), log.lines().collect::<HashSet<_>>().len()), (WRITERS * ROUNDS, WRITERS * ROUNDS));
    host.assert_no_leftovers();
}

#[tokio::test]
async fn conditional_writes_by_processes_each_count_once() {
    if let Some((tree, _)) = part() {
        let mut counted = 0;
        while counted < 50 {
            let read = tree.read(&path("/counter"), &ReadOptions::new()).await.unwrap();
            let next: usize = read.text_lossy().parse::<usize>().unwrap() + 1;
            match tree.write_if("/counter", next.to_string(), read.version).await {
                Ok(_) => counted += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
            }
        }
        return;
    }
    let host = Host::new(FilesystemOptions::new());
    host.tree.write("/counter", "0").await.unwrap();
    assert_all_succeed(start_writers("conditional_writes_by_processes_each_count_once", &host.root()));
    assert_eq!(host.tree.read_text("/counter").await.unwrap(), (WRITERS * 50).to_string());
}

#[tokio::test]
async fn create_new_succeeds_in_one_process_only() {
    if let Some((tree, number)) = part() {
        let mut won = Vec::new();
        for round in 0..100 {
            match tree.create(&format!("/made/{round}/file"), number.to_string()).await {
                Ok(_) => won.push(round.to_string()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
            }
        }
        tree.write(&format!("/won/{number}"), won.join("\n")).await.unwrap();
        return;
    }
    let host = Host::new(FilesystemOptions::new());
    assert_all_succeed(start_writers("create_new_succeeds_in_one_process_only", &host.root()));
    let mut seen = HashSet::new();
    for number in 0..WRITERS {
        for round in host.tree.read_text(&format!("/won/{number}")).await.unwrap().lines() {
            assert!(seen.insert(round.to_owned()), "{round} was created twice");
            assert_eq!(host.tree.read_text(&format!("/made/{round}/file")).await.unwrap(), number.to_string());
        }
    }
    assert_eq!(seen.len(), 100);
}

#[tokio::test]
async fn killed_writer_leaves_old_or_new_content() {
    if let Some((tree, _)) = part() {
        let contents = ["a".repeat(300_000), "b".repeat(300_000)];
        for round in 0.. {
            tree.write("/file", contents[round % 2].clone()).await.unwrap();
        }
    }
    let host = Host::new(FilesystemOptions::new());
    host.tree.write("/file", "a".repeat(300_000)).await.unwrap();
    for _ in 0..8 {
        let before = host.tree.stat(&path("/file"), &StatOptions::new()).await.unwrap().version;
        let mut child =
            start("killed_writer_leaves_old_or_new_content", &host.root(), 0).stdout(std::process::Stdio::null()).spawn().unwrap();
        while host.tree.stat(&path("/file"), &StatOptions::new()).await.unwrap().version == before {
            tokio::task::yield_now().await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let text = host.tree.read_text("/file").await.unwrap();
        assert!(text.len() == 300_000 && (text.bytes().all(|byte| byte == b'a') || text.bytes().all(|byte| byte == b'b')));
        // The process's lock ended with it.
        host.tree.append("/log", "alive\n").await.unwrap();
    }
    let names: Vec<_> = host.tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap().entries;
    assert_eq!(names.iter().map(|entry| entry.name()).collect::<Vec<_>>(), ["file", "log"]);
    host.tree.sweep(std::time::Duration::ZERO).await.unwrap();
    host.assert_no_leftovers();
}

/// Unreadable entries are named and not treated as empty.
#[tokio::test]
async fn entries_forbidden_by_the_host_are_denied_and_named() {
    if let Some((tree, _)) = part() {
        return forbidden(&tree).await;
    }
    let host = Host::new(FilesystemOptions::new());
    for directory in [host.directory.path(), &host.root()] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    }
    host.tree.write("/open/file", "needle").await.unwrap();
    host.tree.write("/closed/file", "needle").await.unwrap();
    host.tree.write("/open/unreadable", "needle").await.unwrap();
    host.tree.write("/protected", "needle").await.unwrap();
    for (name, mode) in [("closed", 0o000), ("open/unreadable", 0o000), ("protected", 0o444), ("open", 0o555)] {
        fs::set_permissions(host.at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = start("entries_forbidden_by_the_host_are_denied_and_named", &host.root(), 0);
    if rustix::process::geteuid().is_root() {
        // The superuser may read everything, so another user must try. If the test binary is inaccessible to other
        // users, skip.
        command.uid(65534).gid(65534);
    }
    match command.stdout(std::process::Stdio::null()).spawn() {
        Ok(child) => assert_all_succeed(vec![child]),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
    assert_eq!(host.tree.read_text("/protected").await.unwrap(), "needle");
    for name in ["closed", "open"] {
        fs::set_permissions(host.at(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    host.assert_no_leftovers();
}

async fn forbidden(tree: &FilesystemBackend) {
    let denied = ErrorKind::PermissionDenied;
    assert_eq!(kind(tree.read_bytes("/open/unreadable").await), denied);
    assert_eq!(kind(tree.ls(&path("/closed"), &LsOptions::new()).await), denied);
    assert_eq!(kind(tree.stat(&path("/closed/file"), &StatOptions::new()).await), denied);
    assert_eq!(kind(tree.write("/open/new", "x").await), denied);
    assert_eq!(kind(tree.delete("/open/file").await), denied);
    // A rename could replace the file, because its directory permits that, but its own mode forbids it.
    assert_eq!(kind(tree.write("/protected", "x").await), denied);
    assert_eq!(kind(tree.append("/protected", "x").await), denied);
    assert_eq!(kind(tree.edit("/protected", "needle", "x").await), denied);
    let result = tree.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap();
    assert_eq!(result.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["/open/file", "/protected"]);
    assert_eq!(result.failures.iter().map(|failure| failure.path.as_str()).collect::<Vec<_>>(), ["/closed", "/open/unreadable"]);
    assert!(result.failures.iter().all(|failure| failure.error.code == "permission_denied"));
    let result = tree.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.unwrap();
    assert_eq!(result.failures.iter().map(|failure| failure.path.as_str()).collect::<Vec<_>>(), ["/closed"]);
    assert_eq!(kind(tree.grep(&path("/closed"), &GrepOptions::new("needle")).await), denied);
    // A directory that could not be removed completely is restored.
    tree.write("/mine/file", "x").await.unwrap();
    assert_eq!(kind(tree.delete_all("/open").await), denied);
    assert!(tree.exists("/open/file").await.unwrap());
    tree.delete_all("/mine").await.unwrap();
}
