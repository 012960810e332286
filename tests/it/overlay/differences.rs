//! The differences of an overlay, and its conflicts.

use super::*;

#[tokio::test]
async fn diff_lists_changes_while_lower_tree_stays_unchanged() {
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
    let stat = lower.stat(&path("/src/main.rs"), &StatOptions::new()).await.unwrap();
    assert_eq!((main.before.as_ref(), main.based_on), (Some(&stat), stat.version));
    assert_eq!(main.after, Some(overlay.stat(&path("/src/main.rs"), &StatOptions::new()).await.unwrap()));
    // Consecutive pages form the whole.
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
    let none = OverlayDiffOptions::new().with_limit(0);
    let page = overlay.diff(&none).await.unwrap();
    assert_eq!((page.differences.len(), page.truncated.unwrap().cursor.as_str()), (0, "/"));
    let page = overlay.diff(&none.clone().with_start_after(path("/docs"))).await.unwrap();
    assert_eq!((page.differences.len(), page.truncated.unwrap().cursor.as_str()), (0, "/docs"));
    assert_eq!(overlay.diff(&none.with_start_after(path("/src/run.rs"))).await.unwrap().truncated, None);
}

#[tokio::test]
async fn concurrent_change_of_lower_tree_is_a_conflict_and_nothing_is_written() {
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
