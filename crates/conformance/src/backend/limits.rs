//! Pages with a limit of 0.

use super::Subject;
use treehold_core::ops::{GlobOptions, GrepCursor, GrepOptions, GrepOutput, LsOptions, SearchOptions, Truncation};
use treehold_core::path::VfsPathBuf;

/// Returns the cursor of an empty, truncated page.
#[track_caller]
fn cursor(came: usize, truncated: Option<Truncation>) -> String {
    assert_eq!(came, 0, "a limit of 0 returns nothing");
    truncated.expect("there is more").cursor
}

/// With a limit of 0 a page is empty. Its cursor continues with everything that follows, and there is none at the end.
pub(super) async fn limit_zero_returns_nothing_and_reports_more(tree: Subject) {
    for path in ["/d/a.txt", "/d/b/c.txt"] {
        tree.put(path, "needle\n").await;
    }
    let ls = LsOptions::new().with_limit(0);
    let page = tree.ls("/d", &ls).await.expect("it is a directory");
    let all = LsOptions::new().with_start_after(cursor(page.entries.len(), page.truncated));
    assert_eq!(tree.ls("/d", &all).await.expect("it is a directory").entries.len(), 2);
    let page = tree.ls("/d", &ls.clone().with_start_after("a.txt")).await.expect("it is a directory");
    assert_eq!(cursor(page.entries.len(), page.truncated), "a.txt");
    let page = tree.ls("/d", &ls.with_start_after("b")).await.expect("it is a directory");
    assert_eq!((page.entries.len(), page.truncated), (0, None));

    let glob = GlobOptions::new("*.txt");
    let page = tree.glob("/d", &glob.clone().with_limit(0)).await.expect("it is a directory");
    let start: VfsPathBuf = cursor(page.entries.len(), page.truncated).parse().expect("the cursor is a path");
    assert_eq!(tree.glob("/d", &glob.clone().with_start_after(start)).await.expect("it is a directory").entries.len(), 2);
    let page = tree.glob("/d", &glob.with_limit(0).with_start_after(tree.path("/d/b/c.txt"))).await.expect("it is a directory");
    assert_eq!((page.entries.len(), page.truncated), (0, None));

    for output in [GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts] {
        let grep = GrepOptions::new("needle").with_output(output);
        let page = tree.grep("/d", &grep.clone().with_matches_max(0)).await.expect("it can be searched");
        let start: GrepCursor = cursor(page.files.len(), page.truncated).parse().expect("the cursor is one");
        assert_eq!(tree.grep("/d", &grep.clone().with_start_after(start)).await.expect("it can be searched").files.len(), 2, "{output:?}");
        let end = GrepCursor { path: tree.path("/d/b/c.txt"), line: GrepCursor::END };
        let page = tree.grep("/d", &grep.with_matches_max(0).with_start_after(end)).await.expect("it can be searched");
        assert_eq!((page.files.len(), page.truncated), (0, None), "{output:?}");
    }

    let search = SearchOptions::new("needle");
    let page = tree.search("/d", &search.clone().with_limit(0)).await.expect("it can be searched");
    let offset: usize = cursor(page.hits.len(), page.truncated).parse().expect("the cursor is an offset");
    assert_eq!(tree.search("/d", &search.clone().with_offset(offset)).await.expect("it can be searched").hits.len(), 2);
    let page = tree.search("/d", &search.with_limit(0).with_offset(2)).await.expect("it can be searched");
    assert_eq!((page.hits.len(), page.truncated), (0, None));
}
