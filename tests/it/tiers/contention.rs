//! Many writers on one file: every acknowledged change is kept.

use super::{kind, tiers};
use std::sync::Arc;
use tokio::task::JoinSet;
use treehold::ops::ReadOptions;
use treehold::{Backend, BackendExt, ErrorKind, VfsPath};

const WRITERS: usize = 8;
const ROUNDS: usize = 200;

/// Runs `work` for each writer and round: rounds one after the other, writers at the same time.
async fn at_once<F: Future<Output = ()> + Send + 'static>(
    tree: &Arc<dyn Backend>,
    work: impl Fn(Arc<dyn Backend>, usize, usize) -> F + Clone + Send + 'static,
) {
    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        let (tree, work) = (tree.clone(), work.clone());
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                work(tree.clone(), writer, round).await;
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
}

fn lines(mark: &str) -> String {
    (0..WRITERS).flat_map(|writer| (0..ROUNDS).map(move |round| format!("{writer}-{round}={mark}\n"))).collect()
}

/// deepagents' store backend reads, edits and puts without a version check: of 160 acknowledged edits, 66 to 85 were kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn edits_of_different_lines_by_eight_writers_are_all_kept() {
    for tier in tiers() {
        tier.tree.write("/d/file", lines("old")).await.unwrap();
        at_once(&tier.tree, async |tree, writer, round| {
            tree.edit("/d/file", &format!("{writer}-{round}=old\n"), &format!("{writer}-{round}=new\n")).await.unwrap();
        })
        .await;
        assert_eq!(tier.tree.read_text("/d/file").await.unwrap(), lines("new"), "{}", tier.tree);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn appends_by_eight_writers_are_all_kept() {
    for tier in tiers() {
        at_once(&tier.tree, async |tree, writer, round| {
            tree.append("/d/log", format!("{writer}-{round}=new\n")).await.unwrap();
        })
        .await;
        let log = tier.tree.read_text("/d/log").await.unwrap();
        let mut found: Vec<&str> = log.lines().collect();
        found.sort_unstable();
        let expected = lines("new");
        let mut expected: Vec<&str> = expected.lines().collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "{}", tier.tree);
        for writer in 0..WRITERS {
            let own = format!("{writer}-");
            let rounds: Vec<&str> = log.lines().filter(|line| line.starts_with(&own)).collect();
            let in_order: Vec<String> = (0..ROUNDS).map(|round| format!("{writer}-{round}=new")).collect();
            assert_eq!(rounds, in_order, "the appends of one writer keep its order");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conditional_writes_each_count_once() {
    for tier in tiers() {
        tier.tree.write("/counter", "0").await.unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..WRITERS {
            let tree = tier.tree.clone();
            tasks.spawn(async move {
                let mut counted = 0;
                while counted < 20 {
                    let read = tree.read(&VfsPath::parse("/counter").unwrap(), &ReadOptions::new()).await.unwrap();
                    let next = read.text_lossy().parse::<usize>().unwrap() + 1;
                    match tree.write_if("/counter", next.to_string(), read.version).await {
                        Ok(_) => counted += 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
                    }
                }
            });
        }
        while let Some(result) = tasks.join_next().await {
            result.unwrap();
        }
        assert_eq!(tier.tree.read_text("/counter").await.unwrap(), (WRITERS * 20).to_string(), "{}", tier.tree);
    }
}

/// Two agents replace the same line: one gets an error because the line is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_two_edits_of_one_line_is_refused() {
    for tier in tiers() {
        for round in 0..50 {
            let file = format!("/{round}");
            tier.tree.write(&file, "the line\n").await.unwrap();
            let (one, other) = tokio::join!(tier.tree.edit(&file, "the line", "mine"), tier.tree.edit(&file, "the line", "yours"));
            let (kept, refused) = if one.is_ok() { ("mine\n", kind(other)) } else { ("yours\n", kind(one)) };
            assert_eq!(refused, ErrorKind::NoMatch);
            assert_eq!(tier.tree.read_text(&file).await.unwrap(), kept);
        }
    }
}

/// The test binary starts itself as a child process; an environment variable selects the role.
#[cfg(feature = "sqlite")]
mod processes {
    use super::super::namespace;
    use super::*;
    use std::process::{Command, Stdio};
    use treehold::StoreBackend;
    use treehold::store::{SqliteOptions, SqliteStore};

    const FILE: &str = "TREEHOLD_TEST_STORE";
    const NUMBER: &str = "TREEHOLD_TEST_NUMBER";
    const PROCESSES: usize = 4;

    fn open(file: &std::ffi::OsStr) -> StoreBackend {
        // A writer may wait for several commits of others, and each of them for the disk.
        let options = SqliteOptions::new(file).with_busy_timeout(std::time::Duration::from_secs(120));
        StoreBackend::new(Arc::new(SqliteStore::open_with(options).unwrap()), namespace())
    }

    #[tokio::test]
    async fn edits_and_appends_by_four_processes_are_all_kept() {
        if let Some(file) = std::env::var_os(FILE) {
            let (tree, number) = (open(&file), std::env::var(NUMBER).unwrap());
            for round in 0..ROUNDS {
                tree.edit("/d/file", &format!("{number}-{round}=old\n"), &format!("{number}-{round}=new\n")).await.unwrap();
                tree.append("/d/log", format!("{number}-{round}\n")).await.unwrap();
            }
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("store.db");
        let tree = open(file.as_os_str());
        tree.write("/d/file", lines("old")).await.unwrap();
        let test = "tiers::contention::processes::edits_and_appends_by_four_processes_are_all_kept";
        let children: Vec<_> = (0..PROCESSES)
            .map(|number| {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", test, "--nocapture"]).env(FILE, &file).env(NUMBER, number.to_string());
                command.stdout(Stdio::null()).spawn().unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let text = tree.read_text("/d/file").await.unwrap();
        assert_eq!((text.lines().count(), text.matches("=new").count()), (WRITERS * ROUNDS, PROCESSES * ROUNDS));
        let log = tree.read_text("/d/log").await.unwrap();
        let mut found: Vec<&str> = log.lines().collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!((log.lines().count(), found.len()), (PROCESSES * ROUNDS, PROCESSES * ROUNDS));
    }
}
