//! Discarding changes.

use super::*;
use treehold::layer::{Layer, LayerName, Layered, Next, Reply};
use treehold::ops::{Op, OpKind, StatOptions};

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
    // A single file of a removed directory comes back.
    overlay.discard(&[path("/src/a/one.rs")]).await.unwrap();
    assert_eq!(differences(&overlay).await, ["+/new", "+/new/file", "-/src/a/two.rs"]);
    assert_eq!(overlay.read_text("/src/a/one.rs").await.unwrap(), "one\n");
    overlay.discard(&[]).await.unwrap();
    assert_eq!(whole(&overlay).await, whole(&*lower).await);
    assert_is_empty(&overlay).await;
    assert_eq!(overlay.discard(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn nested_paths_are_discarded_together_or_not_at_all() {
    let (lower, overlay) = project().await;
    overlay.delete_all("/src").await.unwrap();
    overlay.write("/src/a/one.rs", "another\n").await.unwrap();
    overlay.write("/docs", "a file").await.unwrap_err();
    overlay.delete_all("/docs").await.unwrap();
    overlay.write("/docs", "a file").await.unwrap();
    let before = differences(&overlay).await;
    let beneath_a_file = overlay.discard(&[path("/src"), path("/docs/guide.md")]).await.unwrap_err();
    assert_eq!(beneath_a_file.kind(), ErrorKind::InvalidArgument);
    assert_eq!(overlay.discard(&[path("/src"), path("/")]).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(differences(&overlay).await, before, "nothing was discarded");
    // In either order.
    for named in [["/src/a/one.rs", "/src"], ["/src", "/src/a/one.rs"]] {
        overlay.delete_all("/src").await.unwrap();
        overlay.discard(&named.map(path)).await.unwrap();
        assert_eq!(differences(&overlay).await, ["~/docs", "-/docs/guide.md"]);
    }
    overlay.discard(&[path("/docs"), path("/docs/guide.md")]).await.unwrap();
    assert_eq!(whole(&overlay).await, whole(&*lower).await);
    assert_is_empty(&overlay).await;
}

/// Counts reads of the upper tree.
#[derive(Debug, Default)]
struct Reads(AtomicUsize);

#[async_trait::async_trait]
impl Layer for Reads {
    fn name(&self) -> LayerName {
        LayerName::new("Reads")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> treehold::Result<T> {
        self.0.fetch_add(usize::from(op.kind == OpKind::Read), Ordering::Relaxed);
        next.run().await
    }
}

/// Regression: each dropped path read all marks, so a thousand paths read a million.
#[tokio::test]
async fn dropping_many_paths_reads_each_mark_a_fixed_number_of_times() {
    let count = async |files: usize| {
        let lower = Arc::new(StateBackend::new());
        let paths: Vec<VfsPathBuf> = (0..files).map(|number| path(&format!("/d{}/{number}", number % 7))).collect();
        for path in &paths {
            lower.write(path.as_str(), "below").await.unwrap();
        }
        let reads = Arc::new(Reads::default());
        let overlay = OverlayBackend::new(lower.clone(), Arc::new(Layered::new(reads.clone(), StateBackend::new())));
        let changed = async || {
            for path in &paths {
                overlay.write(path.as_str(), "above").await.unwrap();
            }
            reads.0.swap(0, Ordering::Relaxed)
        };
        changed().await;
        assert_eq!(overlay.discard(&paths).await.unwrap().len(), files);
        let discarded = reads.0.swap(0, Ordering::Relaxed);
        assert_is_empty(&overlay).await;
        changed().await;
        for path in &paths {
            lower.write(path.as_str(), "below again").await.unwrap();
        }
        let options = OverlayApplyOptions::new().with_strategy(OverlayStrategy::Theirs);
        reads.0.store(0, Ordering::Relaxed);
        assert_eq!(overlay.apply_changes(&options).await.unwrap().dropped.len(), files);
        (discarded, reads.0.swap(0, Ordering::Relaxed))
    };
    let (small, large) = (count(20).await, count(200).await);
    assert!(large.0 <= 12 * small.0 && large.1 <= 12 * small.1, "discard and apply of 20 and of 200 files: {small:?} and {large:?}");
}

#[tokio::test]
async fn versions_are_not_reused_after_discard_and_apply() {
    let (lower, overlay) = project().await;
    let file = path("/src/main.rs");
    let mut seen = std::collections::HashMap::new();
    let mut look = async |overlay: &OverlayBackend| {
        let read = overlay.read(&file, &treehold::ops::ReadOptions::new()).await.unwrap();
        assert_eq!(overlay.stat(&file, &StatOptions::new()).await.unwrap().version, Some(read.version));
        let content = seen.entry(read.version).or_insert_with(|| read.content.clone());
        assert_eq!(*content, read.content, "one version has one content");
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
async fn damaged_mark_is_reported_and_can_be_discarded_with_everything() {
    let (lower, overlay) = project().await;
    overlay.delete("/README.md").await.unwrap();
    let marks = overlay.upper().tree("/marks", 2, 100).await.unwrap().entries;
    overlay.upper().write(marks.last().unwrap().path.as_str(), "damage").await.unwrap();
    let error = overlay.diff(&OverlayDiffOptions::new()).await.unwrap_err();
    assert_eq!((error.kind(), error.path()), (ErrorKind::Corrupt, Some(&*path("/README.md"))));
    assert_eq!(overlay.discard(&[path("/README.md")]).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!overlay.exists("/README.md").await.unwrap(), "a deleted file stays hidden");
    overlay.discard(&[]).await.unwrap();
    assert_eq!(whole(&overlay).await, whole(&*lower).await);
    assert_is_empty(&overlay).await;
}
