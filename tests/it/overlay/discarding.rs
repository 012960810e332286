//! Discarding changes.

use super::*;

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
async fn versions_are_not_reused_after_discard_and_apply() {
    let (lower, overlay) = project().await;
    let file = path("/src/main.rs");
    let mut seen = std::collections::HashMap::new();
    let mut look = async |overlay: &OverlayBackend| {
        let read = overlay.read(&file, &treehold::ops::ReadOptions::new()).await.unwrap();
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
async fn damaged_mark_is_reported_and_can_be_discarded_with_everything() {
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
