//! Changes through a composite.

use super::*;

fn write(at: &str, content: &'static str) -> Change {
    Change::Write { path: path(at), content: content.into(), mode: WriteMode::Overwrite }
}

#[tokio::test]
async fn mount_points_and_their_parents_cannot_be_deleted_or_moved() {
    let tree = filled(&["/memories", "/a/b"], &["/memories/x", "/a/b/x", "/a/y"]).await;
    for (at, verb, message) in [
        ("/", "deleted", "`/` is the root and cannot be deleted; name a path beneath it"),
        ("/memories", "deleted", "`/memories` is a mount and cannot be deleted; name a path in it"),
        ("/a", "deleted", "`/a` cannot be deleted because `/a/b` is mounted in it; name the entries beside the mount"),
        ("/", "moved", "`/` is the root and cannot be moved; name a path beneath it"),
        ("/memories", "moved", "`/memories` is a mount and cannot be moved; name a path in it"),
        ("/a", "moved", "`/a` cannot be moved because `/a/b` is mounted in it; name the entries beside the mount"),
    ] {
        let result = if verb == "deleted" { tree.delete_all(at).await } else { tree.rename(at, "/elsewhere").await };
        let error = refused(result, ErrorKind::InvalidArgument, message);
        assert_eq!((error.path(), error.change(), error.applied()), (Some(&*path(at)), Some(0), 0));
    }
    assert_eq!(globbed(&tree, "**").await, ["/a/b/x", "/a/y", "/memories/x"]);
    refused(tree.write("/memories", "x").await, ErrorKind::IsDirectory, "`/memories` is a directory; name a file");
    assert!(!tree.create_dir("/memories").await.unwrap().created);
    assert_eq!(tree.rename("/a/y", "/a").await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    refused(tree.copy("/", "/c").await, ErrorKind::InvalidArgument, "`/` is the root and cannot be copied; copy its entries instead");
    refused(tree.copy("/a", "/a/z").await, ErrorKind::InvalidArgument, "`/a` cannot be copied to `/a/z`, which lies in it");
}

#[tokio::test]
async fn batch_within_one_mount_stays_one_batch() {
    let tree = filled(&["/m", "/v/w"], &["/m/x"]).await;
    let edit = |old: &str| Change::Edit { path: path("/m/x"), edits: vec![treehold::ops::Edit::new(old, "pin")], expect: None };
    let error = tree.apply(&[write("/m/y", "1"), edit("absent"), write("/m/z", "2")], &ApplyOptions::new()).await.unwrap_err();
    assert_eq!((error.kind(), error.path(), error.change(), error.applied()), (ErrorKind::NoMatch, Some(&*path("/m/x")), Some(1), 0));
    assert_eq!(names(&tree, "/m").await, ["x"]);
    let results = tree.apply(&[write("/m/y", "1"), edit("needle"), write("/m/z", "22")], &ApplyOptions::new()).await.unwrap();
    let seen: Vec<(&str, u64)> = results.iter().map(|changed| (changed.path.as_str(), changed.size_bytes)).collect();
    assert_eq!(seen, [("/m/y", 1), ("/m/x", 4), ("/m/z", 2)]);
    // A directory that exists only because of mounts cannot be created.
    let make = |at: &str| Change::CreateDir { path: path(at) };
    let results = tree.apply(&[make("/v"), write("/v/x", "1"), make("/v"), write("/v/y", "2")], &ApplyOptions::new()).await.unwrap();
    let seen: Vec<(&str, usize)> = results.iter().map(|changed| (changed.path.as_str(), changed.entries)).collect();
    assert_eq!(seen, [("/v", 0), ("/v/x", 1), ("/v", 0), ("/v/y", 1)]);
    let error = tree.apply(&[make("/v"), write("/v/z", "1"), write("/v/x/no", "2")], &ApplyOptions::new()).await.unwrap_err();
    assert_eq!((error.change(), error.applied(), names(&tree, "/v").await.len()), (Some(2), 0, 3));
    assert_eq!(tree.apply(&[], &ApplyOptions::new()).await.unwrap(), []);
}

/// Records the memory address of the changes of a call.
#[derive(Debug)]
struct Noted(Arc<AtomicUsize>);

#[async_trait]
impl Layer for Noted {
    fn name(&self) -> LayerName {
        LayerName::new("Noted")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        self.0.store(op.changes.as_ptr() as usize, Ordering::Relaxed);
        next.run().await
    }
}

#[tokio::test]
async fn batch_for_the_default_backend_is_passed_on_unchanged() {
    let noted = Arc::new(AtomicUsize::new(0));
    let tree = built(CompositeBackend::builder(Arc::new(Layered::new(Noted(noted.clone()), StateBackend::new()))), &["/m"]);
    let batch = [write("/a", "1"), write("/b", "2")];
    tree.apply(&batch, &ApplyOptions::new()).await.unwrap();
    assert_eq!(noted.load(Ordering::Relaxed), batch.as_ptr() as usize);
}

#[tokio::test]
async fn batch_over_several_mounts_is_refused_unless_partial_results_are_allowed() {
    let tree = filled(&["/m", "/n"], &["/m/x"]).await;
    let batch = [write("/m/a", "1"), write("/m/b", "2"), write("/c", "3"), write("/n/d", "4"), write("/m/x/no", "5"), write("/e", "6")];
    let error = refused(
        tree.apply(&batch, &ApplyOptions::new()).await,
        ErrorKind::Unsupported,
        "the batch changes `/`, `/m`, `/n`, which are separate mounts and cannot change atomically; apply it mount by mount, or allow a partial result",
    );
    assert_eq!((error.change(), error.applied(), error.path()), (Some(2), 0, Some(&*path("/c"))));
    assert_eq!(globbed(&tree, "**").await, ["/m/x"]);
    let error = tree.apply(&batch, &ApplyOptions::new().with_allow_partial(true)).await.unwrap_err();
    assert_eq!((error.kind(), error.change(), error.applied()), (ErrorKind::NotADirectory, Some(4), 4));
    assert_eq!(globbed(&tree, "**").await, ["/c", "/m/a", "/m/b", "/m/x", "/n/d"]);
    let moving = [write("/m/y", "1"), Change::Rename { from: path("/m/y"), to: path("/n/y"), overwrite: false }];
    assert_eq!(tree.apply(&moving, &ApplyOptions::new()).await.unwrap_err().kind(), ErrorKind::Unsupported);
    let results = tree.apply(&moving, &ApplyOptions::new().with_allow_partial(true)).await.unwrap();
    assert_eq!((results.len(), results[1].path.as_str()), (2, "/n/y"));
    // A change that no mount allows is refused before any effect.
    let error =
        tree.apply(&[write("/m/q", "1"), Change::Delete { path: path("/n"), recursive: true, expect: None }], &ApplyOptions::new()).await;
    assert_eq!((error.unwrap_err().change(), tree.exists("/m/q").await.unwrap()), (Some(1), false));
}

#[tokio::test]
async fn write_goes_to_the_mount_of_its_path() {
    let tree = filled(&["/a", "/a/b"], &["/a/b/x", "/a/x", "/x"]).await;
    tree.rename("/a/x", "/a/y").await.unwrap();
    tree.rename("/a/y", "/a/b/y").await.unwrap();
    tree.copy("/x", "/a/b/c/z").await.unwrap();
    assert_eq!(globbed(&tree, "**").await, ["/a/b/c/z", "/a/b/x", "/a/b/y", "/x"]);
    let outer = tree.mounts().nth(1).unwrap().1;
    assert_eq!(names(outer, "/").await, [""; 0]);
}
