//! Applying changes to the lower tree.

use super::*;
use treehold::forward_backend;

#[tokio::test]
async fn apply_makes_lower_tree_equal_and_empties_the_overlay() {
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
    // The overlay can be used further.
    overlay.append("/docs", "more\n").await.unwrap();
    assert_eq!(differences(&overlay).await, ["~/docs"]);
}

#[tokio::test]
async fn theirs_also_drops_dependent_differences() {
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
async fn obstacle_removed_before_a_failure_is_not_a_conflict_afterwards() {
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

/// A tree without atomic batches: changes are made one by one, and one of them fails.
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

    forward_backend! { self => self.tree; stat, read, ls, glob, grep, search }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> treehold::Result<Vec<Changed>> {
        let mut results = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let fails = self.left.fetch_sub(1, Ordering::Relaxed) == 0;
            let failed = || Err(treehold::Error::new(ErrorKind::Unavailable, "the disk is away").in_batch(index, index));
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

    async fn review(&self, review: &Review) -> treehold::Result<Vec<Sight>> {
        Ok(review.open())
    }
}

#[tokio::test]
async fn apply_of_a_path_leaves_the_other_changes() {
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
    // Applied content is the base of later changes, so it causes no conflict.
    overlay.append("/src/main.rs", "more\n").await.unwrap();
    let left = ["-/src/a", "-/src/a/one.rs", "-/src/a/two.rs", "-/src/lib.rs", "~/src/main.rs", "+/src/other.rs"];
    assert_eq!(differences(&overlay).await, left);
    assert_eq!(applied(&overlay).await.failure, None);
    assert_eq!(whole(&*lower).await, whole(&overlay).await);
    assert_is_empty(&overlay).await;
}

/// A file never disappears while the overlay's copy of it is applied or discarded, in this overlay or in another over the same trees.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reader_always_finds_a_file_being_applied_or_discarded() {
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
                    assert!(!overlay.stat(&path("/d/file"), &StatOptions::new()).await.unwrap().is_directory());
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

#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn host_directory_accepts_every_kind_of_difference() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir_all(root.join("src/deep")).unwrap();
    for file in ["a.md", "src/one.rs", "src/deep/two.rs"] {
        std::fs::write(root.join(file), file).unwrap();
    }
    std::os::unix::fs::symlink("a.md", root.join("link")).unwrap();
    std::os::unix::fs::symlink("src", root.join("way")).unwrap();
    let files = treehold::FilesystemBackend::open(root, treehold::FilesystemOptions::new()).unwrap();
    let overlay = OverlayBackend::new(Arc::new(files), rows());
    assert_eq!(overlay.read_text("/link").await.unwrap(), "a.md");
    assert_eq!(overlay.read_text("/way/one.rs").await.unwrap(), "src/one.rs");
    let found = |directories| GlobOptions::new("{link,way,a.md}").with_directories(directories);
    let globbed = async |options: GlobOptions| -> Vec<String> {
        let found = overlay.glob(VfsPath::ROOT, &options).await.unwrap();
        found.entries.iter().map(|entry| entry.path.to_string()).collect()
    };
    assert_eq!(globbed(found(false)).await, ["/a.md"], "a link is not a file");
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
async fn failed_apply_reports_what_was_applied_and_the_next_one_finishes() {
    for (n, after) in [(0, false), (0, true), (1, false), (1, true)] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::write(root.join("gone"), "old").unwrap();
        let files: Arc<dyn Backend> = Arc::new(treehold::FilesystemBackend::open(root, treehold::FilesystemOptions::new()).unwrap());
        let fault = Fault::nth(n).on_changes();
        let fault = if after { fault.after_effect() } else { fault };
        let overlay = OverlayBackend::new(Arc::new(Layered::new(fault, files)), rows());
        // More changes than one call passes on.
        let batch: Vec<Change> = (0..300)
            .map(|number| Change::Write { path: path(&format!("/d/{number:03}")), content: "new".into(), mode: WriteMode::CreateNew })
            .collect();
        overlay.apply(&batch, &ApplyOptions::new()).await.unwrap();
        overlay.delete("/gone").await.unwrap();
        let shown = whole(&overlay).await;
        let done = applied(&overlay).await;
        assert_eq!(done.failure.as_ref().expect("the lower tree refused").error.code, "unavailable");
        assert!(root.join("gone").exists() || after, "files are removed last");
        assert_eq!(whole(&overlay).await, shown, "the overlay shows what it did");
        let written = std::fs::read_dir(root.join("d")).map_or(0, Iterator::count);
        assert!(done.applied.len() <= written + 1, "{} of {written}", done.applied.len());
        assert_eq!(differences(&overlay).await.iter().filter(|line| line.starts_with("+/d/")).count(), 300 - written);
        assert_eq!(applied(&overlay).await.failure, None);
        assert_eq!((std::fs::read_dir(root.join("d")).unwrap().count(), root.join("gone").exists()), (300, false));
        assert_is_empty(&overlay).await;
    }
}

/// Regression: a link has no version, and was mistaken for a directory that had been replaced.
#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn directory_with_links_is_removed_without_conflict() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir_all(root.join("modules/.bin")).unwrap();
    std::fs::write(root.join("modules/tool.js"), "tool").unwrap();
    std::os::unix::fs::symlink("../tool.js", root.join("modules/.bin/tool")).unwrap();
    std::os::unix::fs::symlink("/nowhere", root.join("modules/dangling")).unwrap();
    std::os::unix::fs::symlink("modules", root.join("modules/.bin/up")).unwrap();
    let files = treehold::FilesystemBackend::open(root, treehold::FilesystemOptions::new()).unwrap();
    let overlay = OverlayBackend::new(Arc::new(files), rows());
    overlay.delete_all("/modules").await.unwrap();
    let conflicts: Vec<String> = differences(&overlay).await.into_iter().filter(|drawn| drawn.contains('!')).collect();
    assert_eq!(conflicts, Vec::<String>::new());
    let applied = overlay.apply_changes(&OverlayApplyOptions::new()).await.unwrap();
    assert!(applied.conflicts.is_empty() && applied.failure.is_none(), "{applied:?}");
    assert!(!root.join("modules").exists());
}
