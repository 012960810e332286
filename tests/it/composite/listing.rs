//! Listings with mounts, and of the entries that mounts hide.

use super::*;

#[tokio::test]
async fn root_lists_first_segments_of_all_mounts() {
    let tree = filled(&["/memories", "/memories/deep", "/a/b", "/z"], &["/f", "/a-file", "/memories/m"]).await;
    assert_eq!(names(&tree, "/").await, ["a/", "a-file", "f", "memories/", "z/"]);
    assert_eq!(names(&tree, "/memories").await, ["deep/", "m"]);
}

#[tokio::test]
async fn directory_that_only_leads_to_mounts_is_listed() {
    let tree = mounted(&["/a/b", "/a/c/d"]);
    assert_eq!(names(&tree, "/a").await, ["b/", "c/"]);
    assert_eq!(names(&tree, "/a/c").await, ["d/"]);
    let listing = tree.ls(&path("/a"), &LsOptions::new()).await.unwrap();
    assert_eq!(listing.entries[0].path, "/a/b");
    refused(tree.ls(&path("/b"), &LsOptions::new()).await, ErrorKind::NotFound, "`/b` does not exist");
}

#[tokio::test]
async fn entries_hidden_by_a_mount_are_not_listed() {
    let default = state();
    fill(&default, &["/memories/old.md", "/x/y/old.md", "/x/z", "/f"]).await;
    let tree = built(CompositeBackend::builder(default), &["/memories", "/x/y"]);
    assert_eq!(names(&tree, "/").await, ["f", "memories/", "x/"]);
    assert_eq!(names(&tree, "/x").await, ["y/", "z"]);
    assert_eq!(names(&tree, "/memories").await, [""; 0]);
}

#[tokio::test]
async fn listing_pages_join_without_gap_or_overlap() {
    let default = state();
    fill(&default, &["/a", "/b/hidden", "/c", "/d", "/e/x", "/g"]).await;
    let tree = built(CompositeBackend::builder(default), &["/b", "/bb", "/e/m", "/f/m", "/h"]);
    let whole = names(&tree, "/").await;
    assert_eq!(whole, ["a", "b/", "bb/", "c", "d", "e/", "f/", "g", "h/"]);
    for limit in 1..=whole.len() + 1 {
        let mut options = LsOptions::new().with_limit(limit);
        let mut seen = Vec::new();
        loop {
            let page = tree.ls(VfsPath::ROOT, &options).await.unwrap();
            seen.extend(page.entries.iter().map(|entry| entry.name().to_owned()));
            let Some(cut) = page.truncated else { break };
            assert_eq!(page.entries.len(), limit, "a truncated page is as long as the limit");
            options.start_after = Some(cut.cursor);
        }
        assert_eq!(seen, whole.iter().map(|name| name.trim_end_matches('/')).collect::<Vec<_>>(), "pages of {limit}");
    }
    let none = tree.ls(VfsPath::ROOT, &LsOptions::new().with_limit(0).with_start_after("c")).await.unwrap();
    assert_eq!((none.entries.len(), none.truncated.unwrap().cursor), (0, "c".to_owned()));
}

#[tokio::test]
async fn failing_mount_does_not_fail_the_listing_of_its_parent() {
    let broken: Arc<dyn Backend> = Arc::new(Layered::new(Fault::from_nth(0), StateBackend::new()));
    let tree = CompositeBackend::builder(state()).route("/broken", broken.clone()).unwrap().build().unwrap();
    assert_eq!(names(&tree, "/").await, ["broken/"]);
    // A failing default backend fails the listing, unless partial results are allowed.
    let tree = built(CompositeBackend::builder(broken), &["/m"]);
    let error = tree.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().starts_with("mount `/`: "), "{error}");
    let listing = tree.ls(VfsPath::ROOT, &LsOptions::new().with_on_failure(OnFailure::Partial)).await.unwrap();
    assert_eq!((listing.entries.len(), listing.failures.len(), listing.failures[0].error.code.as_str()), (1, 1, "unavailable"));
}
