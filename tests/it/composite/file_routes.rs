//! Routes that mount a single file.

use super::*;

async fn with_agents_file() -> (Arc<dyn Backend>, CompositeBackend) {
    let (default, kept) = (state(), state());
    fill(&default, &["/AGENTS.md", "/a.md"]).await;
    let file = Arc::new(Subtree::file(kept.clone(), path("/shared/AGENTS.md")));
    (kept, CompositeBackend::builder(default).file_route("/AGENTS.md", file).unwrap().build().unwrap())
}

#[tokio::test]
async fn file_mount_is_absent_until_written() {
    let (kept, tree) = with_agents_file().await;
    refused(tree.read_bytes("/AGENTS.md").await, ErrorKind::NotFound, "`/AGENTS.md` does not exist");
    refused(tree.stat(&path("/AGENTS.md"), &StatOptions::new()).await, ErrorKind::NotFound, "`/AGENTS.md` does not exist");
    assert_eq!(names(&tree, "/").await, ["a.md"], "the default's file is hidden nevertheless");
    assert_eq!(globbed(&tree, "*.md").await, ["/a.md"]);
    assert_eq!(grepped(&tree, "/", GrepOptions::new("needle")).await, ["/a.md"]);
    let made = tree.write("/AGENTS.md", "needle one\n").await.unwrap();
    assert_eq!((made.path.as_str(), made.created), ("/AGENTS.md", true));
    assert_eq!(kept.read_text("/shared/AGENTS.md").await.unwrap(), "needle one\n");
    tree.edit("/AGENTS.md", "one", "two").await.unwrap();
    assert_eq!(tree.stat(&path("/AGENTS.md"), &StatOptions::new()).await.unwrap().path, "/AGENTS.md");
    assert_eq!(names(&tree, "/").await, ["AGENTS.md", "a.md"]);
    assert_eq!(globbed(&tree, "*.md").await, ["/AGENTS.md", "/a.md"]);
    assert_eq!(found(&tree, "/", GlobOptions::new("*.md").with_start_after(path("/AGENTS.md"))).await, ["/a.md"]);
    assert_eq!(grepped(&tree, "/", GrepOptions::new("needle")).await, ["/AGENTS.md", "/a.md"]);
    assert_eq!(grepped(&tree, "/", GrepOptions::new("needle").with_include("a*")).await, ["/a.md"], "the filter applies to it too");
    assert_eq!(grepped(&tree, "/AGENTS.md", GrepOptions::new("two")).await, ["/AGENTS.md"]);
}

#[tokio::test]
async fn file_mount_is_not_a_directory() {
    let (_, tree) = with_agents_file().await;
    let no_directory = "`/AGENTS.md` is a file, not a directory";
    for result in [tree.write("/AGENTS.md/x", "x").await, tree.create_dir("/AGENTS.md/x").await, tree.rename("/a.md", "/AGENTS.md/x").await]
    {
        refused(result, ErrorKind::NotADirectory, no_directory);
    }
    refused(tree.stat(&path("/AGENTS.md/x"), &StatOptions::new()).await, ErrorKind::NotADirectory, no_directory);
    refused(tree.ls(&path("/AGENTS.md/x"), &LsOptions::new()).await, ErrorKind::NotADirectory, no_directory);
    refused(
        tree.create_dir("/AGENTS.md").await,
        ErrorKind::AlreadyExists,
        "`/AGENTS.md` is a file in this tree, not a directory; write the file",
    );
    refused(
        tree.delete("/AGENTS.md").await,
        ErrorKind::InvalidArgument,
        "`/AGENTS.md` is a mount and cannot be deleted; name a path in it",
    );
    tree.rename("/a.md", "/AGENTS.md").await.unwrap();
    assert_eq!((tree.read_text("/AGENTS.md").await.unwrap().as_str(), names(&tree, "/").await), ("needle\n", vec!["AGENTS.md".to_owned()]));
    tree.copy("/AGENTS.md", "/b.md").await.unwrap();
    assert_eq!(tree.read_text("/b.md").await.unwrap(), "needle\n");
    assert_eq!(tree.rename("/b.md", "/AGENTS.md").await.unwrap_err().kind(), ErrorKind::AlreadyExists);
}
