//! Routing of paths to backends.

use super::*;

#[tokio::test]
async fn prefix_matches_whole_segments_only() {
    let tree = filled(&["/mem", "/memories", "/a"], &["/mem/x", "/memories/y", "/memo/z", "/abc/w", "/a/v"]).await;
    let all: Vec<(&VfsPath, &Arc<dyn Backend>)> = tree.mounts().collect();
    assert_eq!(names(all[0].1, "/").await, ["abc/", "memo/"]);
    assert_eq!((names(all[2].1, "/").await, names(all[3].1, "/").await), (vec!["x".to_owned()], vec!["y".to_owned()]));
    assert_eq!(tree.read_text("/abc/w").await.unwrap(), "needle\n");
}

#[tokio::test]
async fn errors_use_the_callers_paths() {
    let tree = filled(&["/memories", "/memories/deep"], &["/memories/f", "/memories/d/x"]).await;
    let gone = "`/memories/n.txt` does not exist";
    let at = |error: Error| error.path().map(ToString::to_string);
    assert_eq!(at(refused(tree.read_bytes("/memories/n.txt").await, ErrorKind::NotFound, gone)).as_deref(), Some("/memories/n.txt"));
    let deep = "`/memories/deep/n.txt` does not exist";
    let error = refused(tree.delete("/memories/deep/n.txt").await, ErrorKind::NotFound, deep);
    assert_eq!((at(error).as_deref(), deep.len()), (Some("/memories/deep/n.txt"), 37));
    refused(tree.edit("/memories/n.txt", "a", "b").await, ErrorKind::NotFound, gone);
    refused(tree.rename("/memories/n.txt", "/memories/x").await, ErrorKind::NotFound, gone);
    refused(tree.rename("/memories/n.txt", "/x").await, ErrorKind::NotFound, gone);
    refused(
        tree.stat(&path("/memories/f/x"), &StatOptions::new()).await,
        ErrorKind::NotADirectory,
        "`/memories/f/x` lies beneath a file; name a path in a directory",
    );
    refused(tree.glob(&path("/memories/n.txt"), &GlobOptions::new("*")).await, ErrorKind::NotFound, gone);
    refused(tree.grep(&path("/memories/n.txt"), &GrepOptions::new("x")).await, ErrorKind::NotFound, gone);
    refused(tree.ls(&path("/memories/n.txt"), &LsOptions::new()).await, ErrorKind::NotFound, gone);
    for refusal in [tree.delete("/memories/d").await, tree.copy("/memories/d", "/memories/d/e").await] {
        let error = refusal.unwrap_err();
        assert!(error.message().contains("`/memories/d`") && !error.message().contains("`/d"), "{error}");
    }
    let stale = tree.stat(&path("/memories/f"), &StatOptions::new()).await.unwrap().version.unwrap();
    let current = tree.write("/memories/f", "new").await.unwrap().version;
    let error = tree.write_if("/memories/f", "mine", stale).await.unwrap_err();
    assert_eq!((error.current_version(), at(error).as_deref()), (current, Some("/memories/f")));
}

#[tokio::test]
async fn directory_that_leads_to_mounts_exists() {
    let tree = mounted(&["/a/b/c"]);
    for of in ["/a", "/a/b"] {
        assert_eq!(tree.stat(&path(of), &StatOptions::new()).await.unwrap().kind, EntryKind::Directory);
        refused(tree.read_bytes(of).await, ErrorKind::IsDirectory, &format!("`{of}` is a directory; name a file"));
        refused(tree.write(of, "x").await, ErrorKind::IsDirectory, &format!("`{of}` is a directory; name a file"));
        let made = tree.create_dir(of).await.unwrap();
        assert_eq!((made.created, made.entries, made.path), (false, 0, path(of)));
    }
    let default = tree.mounts().next().unwrap().1.clone();
    assert_eq!(names(&default, "/").await, [""; 0], "nothing had to be made");
    tree.write("/a/b/x", "x").await.unwrap();
    assert_eq!(default.read_text("/a/b/x").await.unwrap(), "x");
    assert_eq!(names(&tree, "/a/b").await, ["c/", "x"]);
}

/// A file of the default backend at the path of a mount's ancestor is never visible.
#[tokio::test]
async fn file_at_the_path_of_a_mounts_ancestor_is_hidden() {
    let default = state();
    default.write("/a", "needle\n").await.unwrap();
    let tree = built(CompositeBackend::builder(default.clone()), &["/a/b"]);
    fill(&tree, &["/a/b/f"]).await;
    assert_eq!(tree.stat(&path("/a"), &StatOptions::new()).await.unwrap().kind, EntryKind::Directory);
    assert_eq!(names(&tree, "/").await, ["a/"]);
    assert_eq!(names(&tree, "/a").await, ["b/"]);
    assert_eq!(globbed(&tree, "**").await, ["/a/b/f"]);
    assert_eq!(found(&tree, "/a", GlobOptions::new("**")).await, ["/a/b/f"]);
    for of in ["/", "/a"] {
        let result = tree.grep(&path(of), &GrepOptions::new("needle").with_output(GrepOutput::Files)).await.unwrap();
        assert_eq!((result.files.len(), result.files_searched), (1, 1), "grep from {of}");
    }
    refused(tree.stat(&path("/a/x"), &StatOptions::new()).await, ErrorKind::NotFound, "`/a/x` does not exist");
    refused(tree.read_bytes("/a/x").await, ErrorKind::NotFound, "`/a/x` does not exist");
    refused(
        tree.write("/a/x", "x").await,
        ErrorKind::NotADirectory,
        "`/a/x` cannot be written: its directory exists only for mounts, and the underlying tree has a file in its place",
    );
    assert_eq!(default.read_text("/a").await.unwrap(), "needle\n");
}

/// Regression, found by the flat tree: the file was mistaken for one hidden by the directory above its mount.
#[tokio::test]
async fn paths_beneath_a_file_of_a_mount_are_rejected() {
    let tree = filled(&["/v/w"], &["/v/w/f"]).await;
    let message = "`/v/w/f/x` lies beneath a file; name a path in a directory";
    refused(tree.stat(&path("/v/w/f/x"), &StatOptions::new()).await, ErrorKind::NotADirectory, message);
    refused(tree.delete("/v/w/f/x").await, ErrorKind::NotADirectory, message);
}

#[tokio::test]
async fn two_mounts_of_one_backend_both_show_it() {
    let shared = state();
    let builder = CompositeBackend::builder(state()).route("/one", shared.clone()).unwrap();
    let tree = builder.route("/two", Arc::new(Subtree::new(shared, path("/d")))).unwrap().build().unwrap();
    fill(&tree, &["/one/d/n.md"]).await;
    assert_eq!(tree.read_text("/two/n.md").await.unwrap(), "needle\n");
    assert_eq!(globbed(&tree, "n.md").await, ["/one/d/n.md", "/two/n.md"]);
    tree.edit("/two/n.md", "needle", "pin").await.unwrap();
    assert_eq!(tree.read_text("/one/d/n.md").await.unwrap(), "pin\n");
    refused(tree.copy("/one/d", "/two").await, ErrorKind::InvalidArgument, "`/two` is a mount and cannot be replaced; name a path in it");
    tree.copy("/one/d", "/two/again").await.unwrap();
    assert_eq!(globbed(&tree, "/one/**").await, ["/one/d/again/n.md", "/one/d/n.md"], "a copy into itself ends");
    let error = tree.rename("/one/d/n.md", "/two/n.md").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(tree.read_text("/one/d/n.md").await.unwrap(), "pin\n");
}
