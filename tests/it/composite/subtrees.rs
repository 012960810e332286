//! Subtrees, alone and as routes.

use super::*;

#[tokio::test]
async fn root_of_a_directory_subtree_always_exists() {
    let whole = state();
    let part = Subtree::new(whole.clone(), path("/p/q"));
    assert_eq!(part.stat(VfsPath::ROOT, &StatOptions::new()).await.unwrap().kind, EntryKind::Directory);
    assert_eq!((names(&part, "/").await, globbed(&part, "**").await), (vec![], vec![]));
    assert_eq!(grepped(&part, "/", GrepOptions::new("x")).await, [""; 0]);
    refused(part.read_bytes("/").await, ErrorKind::IsDirectory, "`/` is a directory; name a file");
    refused(part.stat(&path("/x"), &StatOptions::new()).await, ErrorKind::NotFound, "`/x` does not exist");
    assert!(!part.create_dir("/").await.unwrap().created);
    fill(&part, &["/x", "/d/y"]).await;
    assert_eq!(globbed(&whole, "**").await, ["/p/q/d/y", "/p/q/x"]);
    assert_eq!(part.to_string(), "Subtree(/p/q, State)");
}

#[tokio::test]
async fn paths_outside_the_subtree_are_neither_reached_nor_named() {
    let whole = state();
    fill(&whole, &["/p", "/secret/x", "/q/a"]).await;
    let part = Subtree::new(whole.clone(), path("/p"));
    refused(part.stat(VfsPath::ROOT, &StatOptions::new()).await, ErrorKind::NotADirectory, "`/` is a file, not a directory");
    refused(part.ls(VfsPath::ROOT, &LsOptions::new()).await, ErrorKind::NotADirectory, "`/` is a file, not a directory");
    let beneath_file = Subtree::new(whole.clone(), path("/p/deep"));
    refused(beneath_file.read_bytes("/x").await, ErrorKind::NotADirectory, "`/x` lies beneath a file; name a path in a directory");
    let part = Subtree::new(whole.clone(), path("/q"));
    for result in [part.delete_all("/").await, part.rename("/", "/x").await, part.copy("/a", "/").await] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let moved = part.rename("/a", "/b").await.unwrap();
    assert_eq!(moved.path, "/b");
    refused(part.rename("/a", "/c").await, ErrorKind::NotFound, "`/a` does not exist");
    let long = format!("/{}", "abcdefg/".repeat(511));
    assert_eq!(Subtree::new(whole, path("/base/of/it")).write(&long, "x").await.unwrap_err().kind(), ErrorKind::InvalidPath);
}

#[tokio::test]
async fn searches_and_cursors_use_paths_of_the_subtree() {
    let whole = state();
    fill(&whole, &["/p/a", "/p/b/c", "/p/b/d", "/x"]).await;
    let part = Subtree::new(whole, path("/p"));
    let mut options = GlobOptions::new("**").with_limit(1);
    let mut seen = Vec::new();
    while let Some(cut) = part
        .glob(VfsPath::ROOT, &options)
        .await
        .map(|page| (page.entries, page.truncated))
        .map(|(entries, cut)| {
            seen.extend(entries.iter().map(|entry| entry.path.to_string()));
            cut
        })
        .unwrap()
    {
        options.start_after = Some(cut.cursor.parse().unwrap());
    }
    assert_eq!(seen, ["/a", "/b/c", "/b/d"]);
    let page = part.grep(&path("/b"), &GrepOptions::new("needle").with_matches_max(1)).await.unwrap();
    assert_eq!((page.files[0].path.as_str(), page.truncated.unwrap().cursor), ("/b/c", "/b/d:0".to_owned()));
}

#[tokio::test]
async fn single_file_can_be_a_subtree() {
    let whole = state();
    let file = Subtree::file(whole.clone(), path("/d/f"));
    refused(file.stat(VfsPath::ROOT, &StatOptions::new()).await, ErrorKind::NotFound, "`/` does not exist");
    file.write("/", "needle\n").await.unwrap();
    file.append("/", "more\n").await.unwrap();
    assert_eq!(
        (file.read_text("/").await.unwrap().as_str(), file.stat(VfsPath::ROOT, &StatOptions::new()).await.unwrap().kind),
        ("needle\nmore\n", EntryKind::File)
    );
    assert_eq!(grepped(&file, "/", GrepOptions::new("needle")).await, ["/"]);
    for error in [
        file.ls(VfsPath::ROOT, &LsOptions::new()).await.unwrap_err(),
        file.glob(VfsPath::ROOT, &GlobOptions::new("*")).await.unwrap_err(),
        file.write("/x", "x").await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.message()), (ErrorKind::NotADirectory, "`/` is a file, not a directory"));
    }
    let directory = Subtree::file(whole, path("/d"));
    refused(directory.stat(VfsPath::ROOT, &StatOptions::new()).await, ErrorKind::IsDirectory, "`/` is a directory; name a file");
    refused(directory.grep(VfsPath::ROOT, &GrepOptions::new("needle")).await, ErrorKind::IsDirectory, "`/` is a directory; name a file");
}
