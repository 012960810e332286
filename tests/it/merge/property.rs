//! Two forks of one tree, edited at random, and merged.

use super::{Files, Threads, all, path, scope};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;
use treehold::checkpoint::{At, MergeOptions, MergeStatus, MergeStrategy, PutOptions};
use treehold::{BackendExt, StateBackend};

const PATHS: [&str; 9] = ["/a", "/b", "/d", "/d/x", "/d/y", "/d/e", "/d/e/z", "/f/g", "/f"];
const CONTENTS: [&str; 6] = ["1\n2\n3\n4\n", "one\n2\n3\n4\n", "1\n2\n3\nfour\n", "1\n4\n", "", "\0"];

#[derive(Debug, Clone)]
enum Edit {
    Write(usize, usize),
    Remove(usize),
    Directory(usize),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        4 => (0..PATHS.len(), 0..CONTENTS.len()).prop_map(|(path, content)| Edit::Write(path, content)),
        2 => (0..PATHS.len()).prop_map(Edit::Remove),
        1 => (0..PATHS.len()).prop_map(Edit::Directory),
    ];
    vec(edit, 0..8)
}

/// Edits a thread; impossible edits are skipped.
async fn edit(threads: &Threads, thread: &str, edits: &[Edit]) {
    let opened = threads.0.open(&scope(thread), At::Latest).await.unwrap();
    let (state, head) = opened.map_or_else(Default::default, |opened| (opened.state, opened.head));
    let tree = StateBackend::from_snapshot(&state);
    for edit in edits {
        let _ = match edit {
            Edit::Write(path, content) => tree.write(PATHS[*path], CONTENTS[*content]).await,
            Edit::Remove(path) => tree.delete_all(PATHS[*path]).await,
            Edit::Directory(path) => tree.create_dir(PATHS[*path]).await,
        };
    }
    threads.0.put(&scope(thread), &tree.snapshot(), &PutOptions::new().with_head(head)).await.unwrap();
}

/// Returns the content of the file at a path, or that it is a directory.
fn at<'f>(files: &'f Files, path: &str) -> Option<&'f str> {
    if files.contains_key(&format!("{path}/")) { Some("/") } else { files.get(path).map(String::as_str) }
}

async fn check(threads: Threads, base: Vec<Edit>, ours: Vec<Edit>, theirs: Vec<Edit>) {
    edit(&threads, "main", &base).await;
    threads.fork("main", "fork").await;
    edit(&threads, "main", &ours).await;
    edit(&threads, "fork", &theirs).await;
    let was = threads.0.list(&scope("main"), &Default::default()).await.unwrap().checkpoints.pop().unwrap().id;
    threads.0.fork(&scope("main"), At::Id(was), "base", &PutOptions::new()).await.unwrap();
    let (base, ours, theirs) = (threads.files("base").await, threads.files("main").await, threads.files("fork").await);
    let outcome = threads.merge("fork", "main", &MergeOptions::new().with_dry_run(true)).await.unwrap();
    let is_in_conflict = |wanted: &str| {
        outcome.conflicts.iter().any(|conflict| path(wanted).starts_with(&conflict.path) || conflict.path.starts_with(&path(wanted)))
    };
    let names: BTreeSet<&str> =
        [&base, &ours, &theirs].into_iter().flat_map(|files| files.keys()).map(|path| path.trim_end_matches('/')).collect();
    for strategy in [MergeStrategy::Ours, MergeStrategy::Theirs] {
        let into = format!("{strategy}");
        threads.0.copy(&scope("main"), &into).await.unwrap();
        let merged = threads.merge("fork", &into, &MergeOptions::new().with_strategy(strategy)).await.unwrap();
        assert_ne!(merged.status, MergeStatus::Conflict);
        let files = threads.files(&into).await;
        for name in &names {
            let [base, ours, theirs, now] = [&base, &ours, &theirs, &files].map(|files| at(files, name));
            if is_in_conflict(name) {
                continue;
            }
            let is_lines = ours != base && theirs != base && ours != theirs;
            let expected = if theirs == base { ours } else { theirs };
            assert!(is_lines || now == expected, "{name} is {now:?} of {base:?}, {ours:?}, {theirs:?}");
        }
        for conflict in &outcome.conflicts {
            let side = if strategy == MergeStrategy::Ours { &ours } else { &theirs };
            // A directory stays as long as anything is left in it.
            if !matches!(at(side, conflict.path.as_str()), Some("/") | None) {
                assert_eq!(at(&files, conflict.path.as_str()), at(side, conflict.path.as_str()), "{conflict:?}");
            }
        }
        let again = threads.merge("fork", &into, &MergeOptions::new()).await.unwrap();
        assert_eq!(again.status, MergeStatus::UpToDate);
        // The merged tree has exactly the reported changes.
        let changed: BTreeSet<String> = names_of_changes(&ours, &files);
        let told: BTreeSet<String> = merged.changes.iter().map(|change| change.path.to_string()).collect();
        assert_eq!(told, changed);
    }
    if outcome.status == MergeStatus::Merged {
        threads.0.copy(&scope("fork"), "turned").await.unwrap();
        threads.merge("main", "turned", &MergeOptions::new()).await.unwrap();
        threads.merge("fork", "main", &MergeOptions::new()).await.unwrap();
        let (one, other) = (threads.files("main").await, threads.files("turned").await);
        assert_eq!(one, other, "a merge without conflict is the same from both sides");
    }
}

fn names_of_changes(before: &Files, after: &Files) -> BTreeSet<String> {
    let names = before.keys().chain(after.keys()).map(|path| path.trim_end_matches('/'));
    names.filter(|name| at(before, name) != at(after, name)).map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn changes_of_one_side_are_never_lost(base in edits(), ours in edits(), theirs in edits()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for threads in all() {
            runtime.block_on(check(threads, base.clone(), ours.clone(), theirs.clone()));
        }
    }
}
