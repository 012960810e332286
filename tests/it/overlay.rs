//! Overlays: a tree under change and the one beneath, which stays as it is until somebody decides.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stratafs::backend::{
    OverlayApplied, OverlayApplyOptions, OverlayConflict, OverlayDiffOptions, OverlayDifference, OverlayDifferenceKind, OverlayStrategy,
};
#[cfg(all(feature = "filesystem", unix))]
use stratafs::layer::{Fault, Layered};
use stratafs::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, WriteMode,
};
use stratafs::{Backend, BackendExt, ErrorKind, MemoryStore, Namespace, OverlayBackend, StateBackend, StoreBackend, VfsPath, VfsPathBuf};

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

fn rows() -> Arc<dyn Backend> {
    Arc::new(StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["overlay"]).unwrap()))
}

/// A project, and an overlay over it.
async fn project() -> (Arc<StateBackend>, OverlayBackend) {
    let lower = Arc::new(StateBackend::new());
    for (file, content) in [
        ("/README.md", "a project\n"),
        ("/src/main.rs", "fn main() {}\n"),
        ("/src/lib.rs", "pub mod a;\n"),
        ("/src/a/one.rs", "one\n"),
        ("/src/a/two.rs", "two\n"),
        ("/docs/guide.md", "read me\n"),
    ] {
        lower.write(file, content).await.unwrap();
    }
    let overlay = OverlayBackend::new(lower.clone(), rows());
    (lower, overlay)
}

fn letter(kind: OverlayDifferenceKind) -> char {
    match kind {
        OverlayDifferenceKind::Added => '+',
        OverlayDifferenceKind::Changed => '~',
        OverlayDifferenceKind::Removed => '-',
    }
}

fn drawn(differences: &[OverlayDifference]) -> Vec<String> {
    let shown = |difference: &OverlayDifference| {
        let conflict = difference.conflict.map_or_else(String::new, |conflict| format!(" !{conflict}"));
        format!("{}{}{conflict}", letter(difference.kind), difference.path)
    };
    differences.iter().map(shown).collect()
}

async fn differences(overlay: &OverlayBackend) -> Vec<String> {
    drawn(&overlay.diff(&OverlayDiffOptions::new()).await.unwrap().differences)
}

/// All files and directories of a tree, with content.
async fn whole(tree: &dyn Backend) -> Vec<(String, Option<String>)> {
    let mut all = Vec::new();
    for entry in tree.tree("/", 100, 10_000).await.unwrap().entries {
        let content = if entry.is_directory() { None } else { Some(tree.read_text(entry.path.as_str()).await.unwrap()) };
        all.push((entry.path.to_string(), content));
    }
    all
}

async fn applied(overlay: &OverlayBackend) -> OverlayApplied {
    overlay.apply_changes(&OverlayApplyOptions::new()).await.unwrap()
}

/// Nothing but the turn is left in the upper tree.
async fn assert_is_empty(overlay: &OverlayBackend) {
    let left = overlay.upper().tree("/", 100, 10_000).await.unwrap().entries;
    let left: Vec<_> = left.iter().filter(|entry| !entry.is_directory()).map(|entry| entry.path.to_string()).collect();
    assert_eq!(left, ["/turn"]);
    assert_eq!(overlay.upper().ls(&path("/tree"), &LsOptions::new()).await.map_or(0, |listing| listing.entries.len()), 0);
}

#[tokio::test]
async fn the_lower_tree_is_as_it_was_and_the_diff_says_what_would_change() {
    let (lower, overlay) = project().await;
    let before = (whole(&*lower).await, lower.version());
    overlay.edit("/src/main.rs", "{}", "{ run() }").await.unwrap();
    overlay.write("/src/run.rs", "pub fn run() {}\n").await.unwrap();
    overlay.delete("/README.md").await.unwrap();
    overlay.delete_all("/docs").await.unwrap();
    overlay.rename("/src/a", "/src/b").await.unwrap();
    overlay.create_dir("/empty").await.unwrap();
    assert_eq!((whole(&*lower).await, lower.version()), before);
    let expected = [
        "-/README.md",
        "-/docs",
        "-/docs/guide.md",
        "+/empty",
        "-/src/a",
        "-/src/a/one.rs",
        "-/src/a/two.rs",
        "+/src/b",
        "+/src/b/one.rs",
        "+/src/b/two.rs",
        "~/src/main.rs",
        "+/src/run.rs",
    ];
    assert_eq!(differences(&overlay).await, expected);
    let diff = overlay.diff(&OverlayDiffOptions::new().with_path(path("/src/main.rs"))).await.unwrap();
    let main = &diff.differences[0];
    let stat = lower.stat(&path("/src/main.rs")).await.unwrap();
    assert_eq!((main.before.as_ref(), main.based_on), (Some(&stat), stat.version));
    assert_eq!(main.after, Some(overlay.stat(&path("/src/main.rs")).await.unwrap()));
    // Pages laid end to end are the whole.
    let mut options = OverlayDiffOptions::new().with_limit(1);
    let mut paged = Vec::new();
    loop {
        let diff = overlay.diff(&options).await.unwrap();
        paged.extend(drawn(&diff.differences));
        match diff.truncated {
            Some(cut) => options.start_after = Some(path(&cut.cursor)),
            None => break,
        }
    }
    assert_eq!(paged, expected);
}

#[tokio::test]
async fn apply_makes_the_lower_tree_what_the_overlay_showed_and_empties_it() {
    let (lower, overlay) = project().await;
    overlay.edit("/src/main.rs", "{}", "{ run() }").await.unwrap();
    overlay.write("/new/deep/file.md", "new\n").await.unwrap();
    overlay.delete_all("/docs").await.unwrap();
    overlay.write("/docs", "now a file\n").await.unwrap();
    overlay.delete("/README.md").await.unwrap();
    overlay.write("/README.md/inside", "now a directory\n").await.unwrap();
    overlay.delete_all("/src/a").await.unwrap();
    overlay.write("/src/a/one.rs", "another one\n").await.unwrap();
    let shown = whole(&overlay).await;
    let count = differences(&overlay).await.len();
    let dry = overlay.apply_changes(&OverlayApplyOptions::new().with_dry_run(true)).await.unwrap();
    assert_eq!((dry.applied.len(), lower.exists("/new").await.unwrap()), (count, false));
    let done = applied(&overlay).await;
    assert_eq!((done.applied.len(), done.conflicts.len(), &done.failure), (count, 0, &None));
    assert_eq!(whole(&*lower).await, shown);
    assert_eq!(whole(&overlay).await, shown);
    assert_eq!(differences(&overlay).await, Vec::<String>::new());
    assert_is_empty(&overlay).await;
    // And on from there.
    overlay.append("/docs", "more\n").await.unwrap();
    assert_eq!(differences(&overlay).await, ["~/docs"]);
}

#[tokio::test]
async fn what_the_user_changed_meanwhile_is_a_conflict_and_nothing_is_written() {
    let (lower, overlay) = project().await;
    overlay.edit("/src/main.rs", "{}", "{ run() }").await.unwrap();
    overlay.write("/src/lib.rs", "pub mod b;\n").await.unwrap();
    overlay.delete("/README.md").await.unwrap();
    overlay.delete_all("/src/a").await.unwrap();
    overlay.write("/new.md", "the agent's\n").await.unwrap();
    overlay.write("/both.md", "the same\n").await.unwrap();
    lower.write("/src/main.rs", "fn main() { /* user */ }\n").await.unwrap();
    lower.delete("/src/lib.rs").await.unwrap();
    lower.write("/src/a/three.rs", "appeared\n").await.unwrap();
    lower.write("/new.md", "the user's\n").await.unwrap();
    lower.write("/both.md", "the same\n").await.unwrap();
    let before = whole(&*lower).await;
    let expected = ["+/new.md !added", "-/src/a/three.rs !added", "+/src/lib.rs !removed", "~/src/main.rs !changed"];
    let expected = expected.map(|line| line.replacen('+', if line.contains("new.md") { "~" } else { "+" }, 1));
    let refused = applied(&overlay).await;
    assert_eq!(drawn(&refused.conflicts), expected);
    assert_eq!(refused.conflicts[3].conflict, Some(OverlayConflict::Changed));
    assert_eq!((refused.applied.len(), whole(&*lower).await), (0, before));

    let options = OverlayApplyOptions::new()
        .with_strategy(OverlayStrategy::Ours)
        .with_strategy_for(path("/src/a"), OverlayStrategy::Theirs)
        .with_strategy_for(path("/src/main.rs"), OverlayStrategy::Theirs);
    let done = overlay.apply_changes(&options).await.unwrap();
    assert_eq!((done.conflicts.len(), &done.failure), (0, &None));
    assert_eq!(lower.read_text("/new.md").await.unwrap(), "the agent's\n");
    assert_eq!(lower.read_text("/src/lib.rs").await.unwrap(), "pub mod b;\n");
    assert_eq!(lower.read_text("/src/main.rs").await.unwrap(), "fn main() { /* user */ }\n");
    assert_eq!(lower.read_text("/src/a/three.rs").await.unwrap(), "appeared\n");
    assert!(!lower.exists("/src/a/one.rs").await.unwrap() && !lower.exists("/README.md").await.unwrap());
    assert_eq!(whole(&overlay).await, whole(&*lower).await);
    assert_eq!(differences(&overlay).await, Vec::<String>::new());
    assert_is_empty(&overlay).await;
}

#[tokio::test]
async fn theirs_takes_with_it_what_cannot_stand_without() {
    let (lower, overlay) = project().await;
    overlay.write("/y/z/deep", "the agent's").await.unwrap();
    overlay.delete_all("/src/a").await.unwrap();
    overlay.write("/src/a", "a file now").await.unwrap();
    lower.write("/y", "the user's").await.unwrap();
    lower.write("/src/a/three.rs", "the user's").await.unwrap();
    let conflicts = ["-/src/a/three.rs !added", "~/y !added"];
    assert_eq!(drawn(&applied(&overlay).await.conflicts), conflicts);
    let done = overlay.apply_changes(&OverlayApplyOptions::new().with_strategy(OverlayStrategy::Theirs)).await.unwrap();
    assert_eq!(done.failure, None);
    assert_eq!(drawn(&done.dropped), ["~/src/a", "-/src/a/three.rs !added", "~/y !added", "+/y/z", "+/y/z/deep"]);
    assert_eq!(lower.read_text("/y").await.unwrap(), "the user's");
    assert_eq!(lower.read_text("/src/a/three.rs").await.unwrap(), "the user's");
    assert_eq!(whole(&overlay).await, whole(&*lower).await);
    assert_is_empty(&overlay).await;
}

#[tokio::test]
async fn what_made_way_before_a_failure_is_no_conflict_afterwards() {
    for after in [false, true] {
        for nth in 0..6 {
            let lower = Arc::new(StateBackend::new());
            lower.write("/d/file", "old").await.unwrap();
            lower.write("/f", "old").await.unwrap();
            let one_by_one = OneByOne { tree: lower.clone(), left: AtomicUsize::new(nth), after };
            let overlay = OverlayBackend::new(Arc::new(one_by_one), rows());
            overlay.delete_all("/d").await.unwrap();
            overlay.write("/d", "a file now").await.unwrap();
            overlay.delete("/f").await.unwrap();
            overlay.write("/f/inside", "a directory now").await.unwrap();
            let shown = whole(&overlay).await;
            assert!(applied(&overlay).await.failure.is_some(), "{after} {nth}");
            let done = applied(&overlay).await;
            assert_eq!((drawn(&done.conflicts), &done.failure), (Vec::new(), &None), "{after} {nth}");
            assert_eq!(whole(&*lower).await, shown);
            assert_is_empty(&overlay).await;
        }
    }
}

/// A tree whose batches are not atomic: each change is one of its own, and one of them fails.
#[derive(Debug)]
struct OneByOne {
    tree: Arc<StateBackend>,
    left: AtomicUsize,
    after: bool,
}

impl std::fmt::Display for OneByOne {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tree.fmt(f)
    }
}

#[async_trait::async_trait]
impl Backend for OneByOne {
    fn capabilities(&self) -> Capabilities {
        self.tree.capabilities().with_atomic_batch(false)
    }

    async fn stat(&self, path: &VfsPath) -> stratafs::Result<Entry> {
        self.tree.stat(path).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> stratafs::Result<FileRead> {
        self.tree.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> stratafs::Result<Listing> {
        self.tree.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> stratafs::Result<GlobResult> {
        self.tree.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> stratafs::Result<GrepResult> {
        self.tree.grep(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> stratafs::Result<Vec<Changed>> {
        let mut results = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let fails = self.left.fetch_sub(1, Ordering::Relaxed) == 0;
            let failed = || Err(stratafs::Error::new(ErrorKind::Unavailable, "the disk is away").in_batch(index, index));
            if fails && !self.after {
                return failed();
            }
            results.extend(self.tree.apply(std::slice::from_ref(change), options).await.map_err(|error| error.in_batch(index, index))?);
            if fails {
                return failed();
            }
        }
        Ok(results)
    }
}

#[tokio::test]
async fn a_part_is_applied_and_the_rest_stays() {
    let (lower, overlay) = project().await;
    overlay.delete_all("/src").await.unwrap();
    overlay.write("/src/main.rs", "new main\n").await.unwrap();
    overlay.write("/src/other.rs", "other\n").await.unwrap();
    let shown = whole(&overlay).await;
    let done = overlay.apply_changes(&OverlayApplyOptions::new().with_path(path("/src/main.rs"))).await.unwrap();
    assert_eq!(drawn(&done.applied), ["~/src/main.rs"]);
    assert_eq!(lower.read_text("/src/main.rs").await.unwrap(), "new main\n");
    assert!(lower.exists("/src/lib.rs").await.unwrap() && !lower.exists("/src/other.rs").await.unwrap());
    assert_eq!(whole(&overlay).await, shown);
    // What was applied is the base of what comes: it is no conflict with itself.
    overlay.append("/src/main.rs", "more\n").await.unwrap();
    let left = ["-/src/a", "-/src/a/one.rs", "-/src/a/two.rs", "-/src/lib.rs", "~/src/main.rs", "+/src/other.rs"];
    assert_eq!(differences(&overlay).await, left);
    assert_eq!(applied(&overlay).await.failure, None);
    assert_eq!(whole(&*lower).await, whole(&overlay).await);
    assert_is_empty(&overlay).await;
}

#[tokio::test]
async fn discard_shows_the_lower_tree_again() {
    let (lower, overlay) = project().await;
    overlay.write("/src/main.rs", "gone again\n").await.unwrap();
    overlay.write("/new/file", "gone again\n").await.unwrap();
    overlay.delete_all("/src/a").await.unwrap();
    overlay.delete("/README.md").await.unwrap();
    let dropped = overlay.discard(&[path("/src/main.rs"), path("/README.md")]).await.unwrap();
    assert_eq!(drawn(&dropped), ["-/README.md", "~/src/main.rs"]);
    assert_eq!(differences(&overlay).await, ["+/new", "+/new/file", "-/src/a", "-/src/a/one.rs", "-/src/a/two.rs"]);
    assert_eq!(overlay.read_text("/src/main.rs").await.unwrap(), "fn main() {}\n");
    // One file of a directory that was removed comes back alone.
    overlay.discard(&[path("/src/a/one.rs")]).await.unwrap();
    assert_eq!(differences(&overlay).await, ["+/new", "+/new/file", "-/src/a/two.rs"]);
    assert_eq!(overlay.read_text("/src/a/one.rs").await.unwrap(), "one\n");
    overlay.discard(&[]).await.unwrap();
    assert_eq!(whole(&overlay).await, whole(&*lower).await);
    assert_is_empty(&overlay).await;
    assert_eq!(overlay.discard(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn versions_are_not_used_again_through_discard_and_apply() {
    let (lower, overlay) = project().await;
    let file = path("/src/main.rs");
    let mut seen = std::collections::HashMap::new();
    let mut look = async |overlay: &OverlayBackend| {
        let read = overlay.read(&file, &stratafs::ops::ReadOptions::new()).await.unwrap();
        assert_eq!(overlay.stat(&file).await.unwrap().version, Some(read.version));
        let content = seen.entry(read.version).or_insert_with(|| read.content.clone());
        assert_eq!(*content, read.content, "a version stands for one content");
    };
    look(&overlay).await;
    for round in 0..3 {
        overlay.write(file.as_str(), format!("discarded {round}\n")).await.unwrap();
        look(&overlay).await;
        overlay.discard(std::slice::from_ref(&file)).await.unwrap();
        look(&overlay).await;
        overlay.write(file.as_str(), format!("applied {round}\n")).await.unwrap();
        look(&overlay).await;
        applied(&overlay).await;
        look(&overlay).await;
        lower.write(file.as_str(), format!("below {round}\n")).await.unwrap();
        look(&overlay).await;
        overlay.delete(file.as_str()).await.unwrap();
        overlay.write(file.as_str(), format!("anew {round}\n")).await.unwrap();
        look(&overlay).await;
        overlay.discard(&[]).await.unwrap();
    }
}

#[tokio::test]
async fn a_damaged_mark_is_told_and_can_be_discarded_with_all() {
    let (lower, overlay) = project().await;
    overlay.delete("/README.md").await.unwrap();
    let marks = overlay.upper().tree("/marks", 2, 100).await.unwrap().entries;
    overlay.upper().write(marks.last().unwrap().path.as_str(), "damage").await.unwrap();
    let error = overlay.diff(&OverlayDiffOptions::new()).await.unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::Corrupt, Some(&*path("/README.md"))));
    assert_eq!(overlay.discard(&[path("/README.md")]).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!overlay.exists("/README.md").await.unwrap(), "what is hidden does not come back by itself");
    overlay.discard(&[]).await.unwrap();
    assert_eq!(whole(&overlay).await, whole(&*lower).await);
    assert_is_empty(&overlay).await;
}

#[tokio::test]
async fn an_expected_version_holds_through_the_copy() {
    let (_, overlay) = project().await;
    let version = overlay.stat(&path("/src/main.rs")).await.unwrap().version.unwrap();
    overlay.write("/src/lib.rs", "x").await.unwrap();
    let written = overlay.write_if("/src/main.rs", "one\n", version).await.unwrap().version.unwrap();
    assert_ne!(version, written);
    let error = overlay.write_if("/src/main.rs", "two\n", version).await.unwrap_err();
    assert_eq!((error.kind(), error.current_version()), (ErrorKind::Conflict, Some(written)));
    let stat = overlay.stat(&path("/src/main.rs")).await.unwrap();
    assert_eq!(stat.created_at, overlay.lower().stat(&path("/src/main.rs")).await.unwrap().created_at, "an overwrite keeps the time");
}

#[tokio::test]
async fn an_overlay_survives_its_process_and_is_shared() {
    let lower = Arc::new(StateBackend::new());
    lower.write("/a/b", "below\n").await.unwrap();
    lower.write("/count", "0").await.unwrap();
    let upper = rows();
    {
        let overlay = OverlayBackend::new(lower.clone(), upper.clone());
        overlay.delete_all("/a").await.unwrap();
        overlay.write("/c", "mine\n").await.unwrap();
    }
    let (one, two) = (OverlayBackend::new(lower.clone(), upper.clone()), OverlayBackend::new(lower.clone(), upper));
    assert_eq!(differences(&one).await, ["-/a", "-/a/b", "+/c"]);
    let add = async |overlay: OverlayBackend| {
        for _ in 0..20 {
            overlay.append("/c", "x").await.unwrap();
        }
    };
    let tasks: Vec<_> = [one.clone(), two.clone(), one.clone(), two].into_iter().map(add).collect();
    futures::future::join_all(tasks).await;
    assert_eq!(one.read_text("/c").await.unwrap(), format!("mine\n{}", "x".repeat(80)));
}

/// A file is there whatever becomes of the overlay's copy of it, in this overlay or in another over the same trees.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_never_misses_a_file_that_is_applied_or_discarded() {
    let (lower, upper) = (Arc::new(StateBackend::new()), rows());
    lower.write("/d/file", "0").await.unwrap();
    let overlay = OverlayBackend::new(lower.clone(), upper.clone());
    let readers: Vec<_> = [overlay.clone(), OverlayBackend::new(lower, upper)]
        .into_iter()
        .map(|overlay| {
            tokio::spawn(async move {
                loop {
                    let content = overlay.read_text("/d/file").await.unwrap();
                    assert_eq!(overlay.ls(&path("/d"), &LsOptions::new()).await.unwrap().entries.len(), 1);
                    assert!(!overlay.stat(&path("/d/file")).await.unwrap().is_directory());
                    if content == "end" {
                        break;
                    }
                }
            })
        })
        .collect();
    for round in 1..60 {
        overlay.write("/d/file", round.to_string()).await.unwrap();
        match round % 3 {
            0 => drop(overlay.discard(&[path("/d/file")]).await.unwrap()),
            1 => drop(applied(&overlay).await),
            _ => drop(overlay.discard(&[]).await.unwrap()),
        }
    }
    overlay.write("/d/file", "end").await.unwrap();
    for reader in readers {
        reader.await.unwrap();
    }
}

#[tokio::test]
async fn a_batch_takes_effect_with_its_marks_or_not_at_all() {
    let (_, overlay) = project().await;
    let batch = [
        Change::Delete { path: path("/docs"), recursive: true, expect: None },
        Change::Write { path: path("/docs/new.md"), content: "x".into(), mode: WriteMode::CreateNew },
        Change::Rename { from: path("/src/a"), to: path("/moved"), overwrite: false },
        Change::Delete { path: path("/moved/one.rs"), recursive: false, expect: None },
    ];
    let failing: Vec<Change> =
        batch.iter().cloned().chain([Change::Delete { path: path("/gone"), recursive: false, expect: None }]).collect();
    let error = overlay.apply(&failing, &ApplyOptions::new()).await.unwrap_err();
    assert_eq!((error.kind(), error.change(), error.path()), (ErrorKind::NotFound, Some(4), Some(&*path("/gone"))));
    assert_eq!(differences(&overlay).await, Vec::<String>::new());
    overlay.apply(&batch, &ApplyOptions::new()).await.unwrap();
    let expected = ["-/docs/guide.md", "+/docs/new.md", "+/moved", "+/moved/two.rs", "-/src/a", "-/src/a/one.rs", "-/src/a/two.rs"];
    assert_eq!(differences(&overlay).await, expected);
}

#[tokio::test]
async fn a_directory_of_both_trees_that_is_empty_below_stays_deleted() {
    let (lower, overlay) = project().await;
    lower.create_dir("/empty").await.unwrap();
    overlay.write("/empty/file", "x").await.unwrap();
    overlay.delete_all("/empty").await.unwrap();
    assert!(!overlay.exists("/empty").await.unwrap());
    assert_eq!(differences(&overlay).await, ["-/empty"]);
}

#[tokio::test]
async fn what_appeared_below_what_was_written_is_hidden_with_it() {
    let (lower, overlay) = project().await;
    overlay.write("/x", "the agent's").await.unwrap();
    overlay.write("/y/z", "the agent's").await.unwrap();
    lower.write("/x/beneath", "the user's").await.unwrap();
    lower.write("/y", "the user's").await.unwrap();
    assert_eq!(overlay.read_text("/x").await.unwrap(), "the agent's");
    assert_eq!(overlay.stat(&path("/x/beneath")).await.unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(overlay.stat(&path("/y/other")).await.unwrap_err().kind(), ErrorKind::NotFound);
    overlay.delete("/x").await.unwrap();
    overlay.delete_all("/y").await.unwrap();
    assert!(!overlay.exists("/x").await.unwrap() && !overlay.exists("/y").await.unwrap());
    assert_eq!(differences(&overlay).await, ["-/x !added", "-/x/beneath !added", "-/y !added"]);
}

#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn an_upper_tree_without_atomic_batches_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let files = stratafs::FilesystemBackend::open(directory.path(), stratafs::FilesystemOptions::new()).unwrap();
    let overlay = OverlayBackend::new(Arc::new(StateBackend::new()), Arc::new(files));
    assert!(!overlay.capabilities().writable);
    assert_eq!(overlay.write("/a", "x").await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn a_directory_of_the_host_takes_every_kind_of_difference() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir_all(root.join("src/deep")).unwrap();
    for file in ["a.md", "src/one.rs", "src/deep/two.rs"] {
        std::fs::write(root.join(file), file).unwrap();
    }
    std::os::unix::fs::symlink("a.md", root.join("link")).unwrap();
    std::os::unix::fs::symlink("src", root.join("way")).unwrap();
    let files = stratafs::FilesystemBackend::open(root, stratafs::FilesystemOptions::new()).unwrap();
    let overlay = OverlayBackend::new(Arc::new(files), rows());
    assert_eq!(overlay.read_text("/link").await.unwrap(), "a.md");
    assert_eq!(overlay.read_text("/way/one.rs").await.unwrap(), "src/one.rs");
    let found = |directories| GlobOptions::new("{link,way,a.md}").with_directories(directories);
    let globbed = async |options: GlobOptions| -> Vec<String> {
        let found = overlay.glob(VfsPath::ROOT, &options).await.unwrap();
        found.entries.iter().map(|entry| entry.path.to_string()).collect()
    };
    assert_eq!(globbed(found(false)).await, ["/a.md"], "a link is no file");
    assert_eq!(globbed(found(true)).await, ["/a.md", "/link", "/way"]);
    overlay.write("/.gitignore", "b.md\n").await.unwrap();
    assert_eq!(globbed(found(false)).await, ["/a.md"]);
    assert_eq!(globbed(found(true)).await, ["/a.md", "/link", "/way"]);
    overlay.discard(&[path("/.gitignore")]).await.unwrap();
    for refused in ["/link", "/way/one.rs", "/way/new.rs"] {
        let error = overlay.write(refused, "x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{refused}: {error}");
    }
    overlay.delete("/link").await.unwrap();
    overlay.write("/link", "a file now").await.unwrap();
    overlay.delete_all("/src").await.unwrap();
    overlay.write("/src", "a file too").await.unwrap();
    overlay.delete("/a.md").await.unwrap();
    overlay.write("/a.md/b/c", "beneath").await.unwrap();
    let done = applied(&overlay).await;
    assert_eq!((&done.failure, done.conflicts.len()), (&None, 0));
    assert_eq!(std::fs::read_to_string(root.join("link")).unwrap(), "a file now");
    assert!(!root.join("link").is_symlink());
    assert_eq!(std::fs::read_to_string(root.join("src")).unwrap(), "a file too");
    assert_eq!(std::fs::read_to_string(root.join("a.md/b/c")).unwrap(), "beneath");
    assert_eq!(differences(&overlay).await, Vec::<String>::new());
    assert_is_empty(&overlay).await;
}

#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn a_failure_midway_says_what_was_applied_and_the_next_apply_finishes() {
    for (n, after) in [(0, false), (0, true), (1, false), (1, true)] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::write(root.join("gone"), "old").unwrap();
        let files: Arc<dyn Backend> = Arc::new(stratafs::FilesystemBackend::open(root, stratafs::FilesystemOptions::new()).unwrap());
        let fault = Fault::nth(n).on_changes();
        let fault = if after { fault.after_effect() } else { fault };
        let overlay = OverlayBackend::new(Arc::new(Layered::new(fault, files)), rows());
        // More than are handed over at once.
        let batch: Vec<Change> = (0..300)
            .map(|number| Change::Write { path: path(&format!("/d/{number:03}")), content: "new".into(), mode: WriteMode::CreateNew })
            .collect();
        overlay.apply(&batch, &ApplyOptions::new()).await.unwrap();
        overlay.delete("/gone").await.unwrap();
        let shown = whole(&overlay).await;
        let done = applied(&overlay).await;
        assert_eq!(done.failure.as_ref().expect("the lower tree refused").error.code, "unavailable");
        assert!(root.join("gone").exists() || after, "what is removed goes last");
        assert_eq!(whole(&overlay).await, shown, "the overlay shows what it did");
        let written = std::fs::read_dir(root.join("d")).map_or(0, Iterator::count);
        assert!(done.applied.len() <= written + 1, "{} of {written}", done.applied.len());
        assert_eq!(differences(&overlay).await.iter().filter(|line| line.starts_with("+/d/")).count(), 300 - written);
        assert_eq!(applied(&overlay).await.failure, None);
        assert_eq!((std::fs::read_dir(root.join("d")).unwrap().count(), root.join("gone").exists()), (300, false));
        assert_is_empty(&overlay).await;
    }
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn place() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(&NAMES[..]), 1..4).prop_map(|names| format!("/{}", names.join("/")))
}

fn change() -> impl Strategy<Value = Change> {
    let content = proptest::sample::select(vec!["one\n", "two\n", ""]);
    let file = || place().prop_map(|text| path(&text));
    prop_oneof![
        4 => (file(), content.clone()).prop_map(|(path, content)| Change::Write { path, content: content.into(), mode: WriteMode::Overwrite }),
        2 => (file(), content).prop_map(|(path, content)| Change::Append { path, content: content.into() }),
        1 => file().prop_map(|path| Change::CreateDir { path }),
        1 => proptest::sample::select(vec![("/.gitignore", "a\n"), ("/b/.gitignore", "/c\n"), ("/.gitignore", "!a\nb/c\n"), ("/a/.ignore", "d/\n")])
            .prop_map(|(at, rules)| Change::Write { path: path(at), content: rules.into(), mode: WriteMode::Overwrite }),
        4 => (file(), any::<bool>()).prop_map(|(path, recursive)| Change::Delete { path, recursive, expect: None }),
        3 => (file(), file(), any::<bool>()).prop_map(|(from, to, overwrite)| Change::Rename { from, to, overwrite }),
        2 => (file(), file(), any::<bool>()).prop_map(|(from, to, overwrite)| Change::Copy { from, to, overwrite }),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Batch(Vec<Change>),
    Apply(Option<String>),
    Discard(String),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => proptest::collection::vec(change(), 1..5).prop_map(Step::Batch),
        2 => proptest::option::of(place()).prop_map(Step::Apply),
        2 => place().prop_map(Step::Discard),
        1 => Just(Step::Reopen),
    ]
}

/// An overlay over a tree with files does what a plain tree with the same files does; its diff is what the two trees differ in;
/// and nothing but `apply` changes the tree beneath.
async fn follow(lower: Arc<dyn Backend>, seeds: Vec<Change>, steps: Vec<Step>) {
    let upper = rows();
    let plain = StateBackend::new();
    for seed in &seeds {
        let one = lower.apply_one(seed.clone()).await.map_err(|error| error.kind());
        assert_eq!(one.is_ok(), plain.apply_one(seed.clone()).await.is_ok());
    }
    let mut overlay = OverlayBackend::new(lower.clone(), upper.clone());
    for step in steps {
        let beneath = whole(&*lower).await;
        let may_write = matches!(step, Step::Apply(_));
        match step {
            Step::Batch(batch) => {
                let kinds = |result: stratafs::Result<Vec<stratafs::ops::Changed>>| match result {
                    Ok(changed) => {
                        Ok(changed.iter().map(|changed| (changed.path.clone(), changed.entries, changed.created)).collect::<Vec<_>>())
                    }
                    Err(error) => Err((error.kind(), error.change(), error.path().map(VfsPath::to_owned))),
                };
                let options = ApplyOptions::new();
                assert_eq!(kinds(overlay.apply(&batch, &options).await), kinds(plain.apply(&batch, &options).await), "{batch:?}");
            }
            Step::Apply(only) => {
                let mut options = OverlayApplyOptions::new();
                options.paths = only.iter().map(|text| path(text)).collect();
                let done = overlay.apply_changes(&options).await.unwrap();
                assert_eq!(drawn(&done.conflicts), Vec::<String>::new());
                if only.is_none() {
                    assert_eq!(done.failure, None);
                    assert_eq!(whole(&*lower).await, whole(&overlay).await);
                    assert_is_empty_if_touched(&overlay).await;
                }
            }
            Step::Discard(of) => {
                if overlay.discard(&[path(&of)]).await.is_err() {
                    continue;
                }
                let here = |all: Vec<(String, Option<String>)>| -> Vec<_> {
                    all.into_iter().filter(|(at, _)| path(at).starts_with(&path(&of))).collect()
                };
                assert_eq!(here(whole(&overlay).await), here(whole(&*lower).await), "{of} is as below");
                // The plain tree follows.
                let _ = plain.delete_all("/").await;
                for (at, _) in whole(&plain).await {
                    let _ = plain.delete_all(&at).await;
                }
                for (at, content) in whole(&overlay).await {
                    match content {
                        Some(content) => plain.write(&at, content).await.map(drop).unwrap(),
                        None => plain.create_dir(&at).await.map(drop).unwrap(),
                    }
                }
            }
            Step::Reopen => overlay = OverlayBackend::new(lower.clone(), upper.clone()),
        }
        assert!(may_write || whole(&*lower).await == beneath, "only `apply` writes to the lower tree");
        let shown = whole(&overlay).await;
        assert_eq!(shown, whole(&plain).await);
        assert_found_alike(&overlay, &plain).await;
        let mut expected: Vec<(VfsPathBuf, char)> = Vec::new();
        let (above, beneath) = (shown, whole(&*lower).await);
        for (at, content) in &above {
            match beneath.iter().find(|(other, _)| other == at) {
                None => expected.push((path(at), '+')),
                Some((_, other)) if other != content => expected.push((path(at), '~')),
                Some(_) => {}
            }
        }
        expected.extend(beneath.iter().filter(|(at, _)| !above.iter().any(|(other, _)| other == at)).map(|(at, _)| (path(at), '-')));
        expected.sort();
        let diff = overlay.diff(&OverlayDiffOptions::new()).await.unwrap().differences;
        assert!(diff.iter().all(|difference| difference.conflict.is_none()), "{:?}", drawn(&diff));
        assert_eq!(diff.iter().map(|difference| (difference.path.clone(), letter(difference.kind))).collect::<Vec<_>>(), expected);
    }
}

/// Searches find the same in both trees, page by page.
async fn assert_found_alike(overlay: &OverlayBackend, plain: &StateBackend) {
    for (root, pattern) in [("/", "**"), ("/", "a"), ("/", "b/**"), ("/", "*/a/*"), ("/a", "*"), ("/b/c", "**")] {
        for limit in [0, 1, 3, 1_000] {
            let options = GlobOptions::new(pattern).with_limit(limit).with_directories(limit != 3).with_ignored(limit == 1);
            let (here, there) = (overlay.glob(&path(root), &options).await, plain.glob(&path(root), &options).await);
            match (here, there) {
                (Ok(here), Ok(there)) => {
                    let paths =
                        |found: &stratafs::ops::GlobResult| found.entries.iter().map(|entry| entry.path.clone()).collect::<Vec<_>>();
                    assert_eq!((paths(&here), here.truncated), (paths(&there), there.truncated), "{root} {options:?}");
                    for entry in here.entries {
                        assert_eq!(entry, overlay.stat(&entry.path).await.unwrap());
                    }
                }
                (here, there) => assert_eq!(here.map_err(|error| error.kind()), there.map_err(|error| error.kind())),
            }
            let options = GrepOptions::new("o").with_matches_max(limit).with_ignored(limit == 1).with_hidden(limit == 3);
            let (here, there) = (overlay.grep(&path(root), &options).await, plain.grep(&path(root), &options).await);
            match (here, there) {
                (Ok(here), Ok(there)) => assert_eq!((here.files, here.truncated), (there.files, there.truncated), "{root} {options:?}"),
                (here, there) => assert_eq!(here.map_err(|error| error.kind()), there.map_err(|error| error.kind())),
            }
        }
    }
}

async fn assert_is_empty_if_touched(overlay: &OverlayBackend) {
    if overlay.upper().exists("/turn").await.unwrap() {
        assert_is_empty(overlay).await;
    }
}

fn histories(cases: u32, lower: impl Fn() -> (Arc<dyn Backend>, Option<tempfile::TempDir>)) {
    let asked = std::env::var("STRATAFS_MODEL_CASES").ok().and_then(|text| text.parse().ok());
    let (cases, rng_seed) = asked.map_or((cases, RngSeed::Fixed(1)), |asked| (asked, RngSeed::Random));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(seeds in proptest::collection::vec(change(), 0..25), steps in proptest::collection::vec(step(), 1..15))| {
        let (lower, keep) = lower();
        runtime.block_on(follow(lower, seeds, steps));
        drop(keep);
    });
}

#[test]
fn an_overlay_over_a_state_follows_a_plain_tree() {
    histories(48, || (Arc::new(StateBackend::new()), None));
}

#[cfg(all(feature = "filesystem", unix))]
#[test]
fn an_overlay_over_a_directory_follows_a_plain_tree() {
    histories(16, || {
        let directory = tempfile::tempdir().unwrap();
        let files = stratafs::FilesystemBackend::open(directory.path(), stratafs::FilesystemOptions::new()).unwrap();
        (Arc::new(files), Some(directory))
    });
}

#[test]
fn its_futures_go_to_other_threads() {
    fn assert_send<T: Send>(_: T) {}
    let overlay = OverlayBackend::new(Arc::new(StateBackend::new()), Arc::new(StateBackend::new()));
    assert_send(overlay.diff(&OverlayDiffOptions::new()));
    assert_send(overlay.discard(&[]));
    assert_send(overlay.apply_changes(&OverlayApplyOptions::new()));
    assert_eq!(overlay.to_string(), "Overlay(State, State)");
}

/// A link has no version, and was taken for a directory that had become something else.
#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn a_directory_that_holds_links_is_removed_without_a_conflict() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir_all(root.join("modules/.bin")).unwrap();
    std::fs::write(root.join("modules/tool.js"), "tool").unwrap();
    std::os::unix::fs::symlink("../tool.js", root.join("modules/.bin/tool")).unwrap();
    std::os::unix::fs::symlink("/nowhere", root.join("modules/dangling")).unwrap();
    std::os::unix::fs::symlink("modules", root.join("modules/.bin/up")).unwrap();
    let files = stratafs::FilesystemBackend::open(root, stratafs::FilesystemOptions::new()).unwrap();
    let overlay = OverlayBackend::new(Arc::new(files), rows());
    overlay.delete_all("/modules").await.unwrap();
    let conflicts: Vec<String> = differences(&overlay).await.into_iter().filter(|drawn| drawn.contains('!')).collect();
    assert_eq!(conflicts, Vec::<String>::new());
    let applied = overlay.apply_changes(&OverlayApplyOptions::new()).await.unwrap();
    assert!(applied.conflicts.is_empty() && applied.failure.is_none(), "{applied:?}");
    assert!(!root.join("modules").exists());
}
