//! Concurrency: nothing acknowledged is lost, and nothing half done is visible.

use super::Subject;
use tokio::task::JoinSet;
use treehold_core::error::ErrorKind;
use treehold_core::ops::{Change, Edit, LsOptions, ReadOptions, WriteMode};

const TASKS: usize = 8;
const ROUNDS: usize = 25;

async fn join(mut tasks: JoinSet<()>) {
    while let Some(result) = tasks.join_next().await {
        result.expect("the task did not fail");
    }
}

/// Concurrent edits of different lines of one file all succeed, and none is lost.
pub(super) async fn concurrent_edits_lose_nothing(tree: Subject) {
    let lines: String = (0..TASKS * ROUNDS).map(|line| format!("line {line} .\n")).collect();
    tree.put("/shared", lines).await;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let tree = tree.clone();
        tasks.spawn(async move {
            for line in (0..ROUNDS).map(|round| round * TASKS + task) {
                tree.edit("/shared", &[Edit::new(format!("line {line} ."), format!("line {line} done"))]).await.expect("its line is there");
            }
        });
    }
    join(tasks).await;
    let expected: String = (0..TASKS * ROUNDS).map(|line| format!("line {line} done\n")).collect();
    assert_eq!(tree.content("/shared").await, expected);
}

/// Concurrent appends to one file all succeed, and every piece is there in full.
pub(super) async fn concurrent_appends_lose_nothing(tree: Subject) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let tree = tree.clone();
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let change = Change::Append { path: tree.path("/log"), content: format!("{task} {round}\n").into() };
                tree.apply(change).await.expect("an append has no precondition");
            }
        });
    }
    join(tasks).await;
    let content = tree.content("/log").await;
    let mut lines: Vec<&str> = std::str::from_utf8(&content).expect("text was appended").lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<String> = (0..TASKS).flat_map(|task| (0..ROUNDS).map(move |round| format!("{task} {round}"))).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

/// Of several tasks that create one path, exactly one succeeds and the others get an error.
pub(super) async fn one_of_many_concurrent_creators_wins(tree: Subject) {
    for round in 0..10 {
        let path = format!("/new/{round}");
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (tree, path) = (tree.clone(), path.clone());
            tasks.spawn(async move { (task, tree.try_put(&path, format!("{task}"), WriteMode::CreateNew).await) });
        }
        let mut winners = Vec::new();
        while let Some(result) = tasks.join_next().await {
            match result.expect("the task did not fail") {
                (task, Ok(_)) => winners.push(task),
                (_, Err(error)) => assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        assert_eq!(tree.content(&path).await, winners[0].to_string());
    }
}

/// Concurrent increments by compare-and-swap add up: conflicts are reported, and acknowledged writes are kept.
pub(super) async fn compare_and_swap_loses_no_increment(tree: Subject) {
    tree.put("/counter", "0").await;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let tree = tree.clone();
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                loop {
                    let read = tree.read("/counter", &ReadOptions::new()).await.expect("it exists");
                    let count: usize = read.text_lossy().parse().expect("it is a number");
                    match tree.try_put("/counter", (count + 1).to_string(), WriteMode::IfVersion(read.version)).await {
                        Ok(_) => break,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}"),
                    }
                }
            }
        });
    }
    join(tasks).await;
    assert_eq!(tree.content("/counter").await, (TASKS * ROUNDS).to_string());
}

/// A reader sees one complete content or another, never a mixture, a part, or nothing.
pub(super) async fn reader_never_sees_partial_write(tree: Subject) {
    let content = |letter: u8| vec![letter; 64 << 10];
    tree.put("/a", content(b'a')).await;
    let mut tasks = JoinSet::new();
    let writer = tree.clone();
    tasks.spawn(async move {
        for round in 0..100_u8 {
            writer.put("/a", content(b'a' + round % 26)).await;
        }
    });
    for _ in 0..2 {
        let tree = tree.clone();
        tasks.spawn(async move {
            for _ in 0..200 {
                let read = tree.content("/a").await;
                assert_eq!(read.len(), 64 << 10);
                assert!(read == content(read[0]), "two writes are mixed");
            }
        });
    }
    join(tasks).await;
}

/// Whoever wins, every listed file can be read and every listed directory can be listed.
pub(super) async fn concurrent_writers_and_deleters_keep_tree_consistent(tree: Subject) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS / 2 {
        let writer = tree.clone();
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let path = format!("/d/{}/{task}", round % 3);
                match writer.try_put(&path, "x", WriteMode::Overwrite).await {
                    Ok(_) => {}
                    // On a tier without transactions, a directory may be removed between creating it and writing into it.
                    Err(error) => {
                        assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Unavailable), "{error:?}")
                    }
                }
            }
        });
        let deleter = tree.clone();
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let path = if round % 5 == 0 { "/d".to_owned() } else { format!("/d/{}", round % 3) };
                match deleter.delete(&path, true, None).await {
                    Ok(_) => {}
                    Err(error) => {
                        assert!(
                            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument | ErrorKind::Unavailable),
                            "{error:?}"
                        );
                    }
                }
            }
        });
    }
    join(tasks).await;
    tree.put("/d/last/file", "x").await;
    let mut directories = vec!["/d".to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in tree.ls(&directory, &LsOptions::new()).await.expect("a listed directory can be listed").entries {
            let path = tree.seen(&entry.path);
            if entry.is_directory() {
                directories.push(path);
            } else {
                assert_eq!(tree.content(&path).await, "x");
            }
        }
    }
    tree.delete("/d", true, None).await.expect("it exists");
    assert_eq!(tree.names("/").await, [""; 0], "nothing is left behind beneath what was deleted");
}
