//! Listings and trees.

use super::Subject;
use treehold_core::error::ErrorKind;
use treehold_core::ops::{EntryKind, LsOptions};
use treehold_tree::backend::BackendExt;

/// Children are sorted by name, byte by byte, with files and directories mixed.
pub(super) async fn ls_sorts_by_name(tree: Subject) {
    for path in ["/sub/x", "/sub-x", "/sub.x/y", "/Sub", "/.dot", "/subs", "/é", "/a b"] {
        tree.put(path, "x").await;
    }
    assert_eq!(tree.names("/").await, [".dot", "Sub", "a b", "sub/", "sub-x", "sub.x/", "subs", "é"]);
}

/// Deeper paths and paths with similar names are not listed.
pub(super) async fn ls_shows_children_only(tree: Subject) {
    for path in ["/d/a", "/d/e/f/g", "/d/e/h", "/dd/x", "/d-/x", "/d.txt"] {
        tree.put(path, "x").await;
    }
    assert_eq!((tree.names("/d").await, tree.names("/d/e").await), (vec!["a".to_owned(), "e/".into()], vec!["f/".to_owned(), "h".into()]));
    let listing = tree.ls("/d", &LsOptions::new()).await.expect("it is a directory");
    assert_eq!(listing.entries[0].path, tree.path("/d/a"));
}

/// An entry equals the result of `stat`.
pub(super) async fn ls_entries_equal_stat(tree: Subject) {
    tree.put("/d/a", "four").await;
    tree.put("/d/b/c", "x").await;
    let listing = tree.ls("/d", &LsOptions::new()).await.expect("it is a directory");
    assert_eq!(listing.entries[0], tree.stat("/d/a").await.expect("it was written"));
    assert_eq!((listing.entries[0].size_bytes, listing.entries[1].kind, listing.entries[1].version), (4, EntryKind::Directory, None));
}

/// Listing a missing directory or a file is an error, not an empty result.
pub(super) async fn ls_of_file_or_missing_path_is_rejected(tree: Subject) {
    tree.put("/d/a", "x").await;
    let error = tree.refused(tree.ls("/missing", &LsOptions::new()).await, ErrorKind::NotFound);
    assert_eq!(error.path(), Some(&*tree.path("/missing")));
    let error = tree.refused(tree.ls("/d/a", &LsOptions::new()).await, ErrorKind::NotADirectory);
    assert_eq!(error.path(), Some(&*tree.path("/d/a")));
}

/// Pages of any size return every child once, in order, and only the last page is not truncated.
pub(super) async fn ls_pages_are_complete_and_in_order(tree: Subject) {
    let mut names = Vec::new();
    for index in 0..7 {
        tree.put(&format!("/d/f{index}"), "x").await;
        tree.put(&format!("/d/f{index}-dir/x"), "x").await;
        names.extend([format!("f{index}"), format!("f{index}-dir")]);
    }
    for limit in [1, 2, 3, 13, 14, 15] {
        let mut seen = Vec::new();
        let mut options = LsOptions::new().with_limit(limit);
        loop {
            let page = tree.ls("/d", &options).await.expect("it is a directory");
            assert!(page.entries.len() <= limit);
            seen.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
            match page.truncated {
                Some(truncation) => options = options.with_start_after(truncation.cursor),
                None => break,
            }
        }
        assert_eq!(seen, names, "limit {limit}");
    }
    let rest = tree.ls("/d", &LsOptions::new().with_start_after("f5-dir")).await.expect("it is a directory");
    assert_eq!(rest.entries.iter().map(|entry| entry.name()).collect::<Vec<_>>(), ["f6", "f6-dir"]);
}

/// Entries that are no links lead nowhere.
pub(super) async fn link_targets_of_a_listing_without_links_are_none(tree: Subject) {
    tree.put("/d/f", "x").await;
    tree.put("/d/g/h", "x").await;
    let listing = tree.ls("/d", &LsOptions::new()).await.expect("it is a directory");
    assert_eq!(tree.backend().link_targets(&listing).await.expect("all can be seen"), [None, None]);
}

/// `tree` lists everything beneath a directory in path order, down to a depth and up to a limit.
pub(super) async fn tree_walks_in_path_order(tree: Subject) {
    for path in ["/d/b/c", "/d/b-/x", "/d/a", "/e"] {
        tree.put(path, "x").await;
    }
    let root = tree.path("/d");
    let whole = tree.backend().tree(root.as_str(), 9, 100).await.expect("it is a directory");
    let names: Vec<_> = whole.entries.iter().map(|entry| tree.seen(&entry.path)).collect();
    assert_eq!((names, whole.truncated), (["/d/a", "/d/b", "/d/b/c", "/d/b-", "/d/b-/x"].map(str::to_owned).to_vec(), false));
    let flat = tree.backend().tree(root.as_str(), 1, 100).await.expect("it is a directory");
    assert_eq!(flat.entries.len(), 3);
    let cut = tree.backend().tree(root.as_str(), 9, 2).await.expect("it is a directory");
    assert_eq!((cut.entries.len(), cut.truncated), (2, true));
}
