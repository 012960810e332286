//! The effects of changes on the upper tree.

use super::*;

#[tokio::test]
async fn expected_version_still_matches_after_copy_up() {
    let (_, overlay) = project().await;
    let version = overlay.stat(&path("/src/main.rs"), &StatOptions::new()).await.unwrap().version.unwrap();
    overlay.write("/src/lib.rs", "x").await.unwrap();
    let written = overlay.write_if("/src/main.rs", "one\n", version).await.unwrap().version.unwrap();
    assert_ne!(version, written);
    let error = overlay.write_if("/src/main.rs", "two\n", version).await.unwrap_err();
    assert_eq!((error.kind(), error.current_version()), (ErrorKind::Conflict, Some(written)));
    let stat = overlay.stat(&path("/src/main.rs"), &StatOptions::new()).await.unwrap();
    assert_eq!(
        stat.created_at,
        overlay.lower().stat(&path("/src/main.rs"), &StatOptions::new()).await.unwrap().created_at,
        "an overwrite keeps the time"
    );
}

#[tokio::test]
async fn overlay_survives_its_process_and_can_be_shared() {
    let lower = Arc::new(StateBackend::new());
    lower.write("/a/b", "below\n").await.unwrap();
    lower.write("/count", "0").await.unwrap();
    let upper = rows();
    {
        let overlay = OverlayBackend::new(lower.clone(), upper.clone());
        overlay.delete_all("/a").await.unwrap();
        overlay.write("/c", "mine\n").await.unwrap();
    }
    let (one, two) = (OverlayBackend::new(lower.clone(), upper.clone()), OverlayBackend::new(lower.clone(), upper));
    assert_eq!(differences(&one).await, ["-/a", "-/a/b", "+/c"]);
    let add = async |overlay: OverlayBackend| {
        for _ in 0..20 {
            overlay.append("/c", "x").await.unwrap();
        }
    };
    let tasks: Vec<_> = [one.clone(), two.clone(), one.clone(), two].into_iter().map(add).collect();
    futures::future::join_all(tasks).await;
    assert_eq!(one.read_text("/c").await.unwrap(), format!("mine\n{}", "x".repeat(80)));
}

#[tokio::test]
async fn batch_and_its_marks_take_effect_atomically() {
    let (_, overlay) = project().await;
    let batch = [
        Change::Delete { path: path("/docs"), recursive: true, expect: None },
        Change::Write { path: path("/docs/new.md"), content: "x".into(), mode: WriteMode::CreateNew },
        Change::Rename { from: path("/src/a"), to: path("/moved"), overwrite: false },
        Change::Delete { path: path("/moved/one.rs"), recursive: false, expect: None },
    ];
    let failing: Vec<Change> =
        batch.iter().cloned().chain([Change::Delete { path: path("/gone"), recursive: false, expect: None }]).collect();
    let error = overlay.apply(&failing, &ApplyOptions::new()).await.unwrap_err();
    assert_eq!((error.kind(), error.change(), error.path()), (ErrorKind::NotFound, Some(4), Some(&*path("/gone"))));
    assert_eq!(differences(&overlay).await, Vec::<String>::new());
    overlay.apply(&batch, &ApplyOptions::new()).await.unwrap();
    let expected = ["-/docs/guide.md", "+/docs/new.md", "+/moved", "+/moved/two.rs", "-/src/a", "-/src/a/one.rs", "-/src/a/two.rs"];
    assert_eq!(differences(&overlay).await, expected);
}

#[tokio::test]
async fn deleted_directory_that_is_empty_in_lower_tree_stays_deleted() {
    let (lower, overlay) = project().await;
    lower.create_dir("/empty").await.unwrap();
    overlay.write("/empty/file", "x").await.unwrap();
    overlay.delete_all("/empty").await.unwrap();
    assert!(!overlay.exists("/empty").await.unwrap());
    assert_eq!(differences(&overlay).await, ["-/empty"]);
}

#[tokio::test]
async fn lower_entry_created_under_a_written_path_is_hidden_with_it() {
    let (lower, overlay) = project().await;
    overlay.write("/x", "the agent's").await.unwrap();
    overlay.write("/y/z", "the agent's").await.unwrap();
    lower.write("/x/beneath", "the user's").await.unwrap();
    lower.write("/y", "the user's").await.unwrap();
    assert_eq!(overlay.read_text("/x").await.unwrap(), "the agent's");
    assert_eq!(overlay.stat(&path("/x/beneath"), &StatOptions::new()).await.unwrap_err().kind(), ErrorKind::NotADirectory);
    assert_eq!(overlay.stat(&path("/y/other"), &StatOptions::new()).await.unwrap_err().kind(), ErrorKind::NotFound);
    overlay.delete("/x").await.unwrap();
    overlay.delete_all("/y").await.unwrap();
    assert!(!overlay.exists("/x").await.unwrap() && !overlay.exists("/y").await.unwrap());
    assert_eq!(differences(&overlay).await, ["-/x !added", "-/x/beneath !added", "-/y !added"]);
}

#[cfg(all(feature = "filesystem", unix))]
#[tokio::test]
async fn upper_tree_without_atomic_batches_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let files = treehold::FilesystemBackend::open(directory.path(), treehold::FilesystemOptions::new()).unwrap();
    let overlay = OverlayBackend::new(Arc::new(StateBackend::new()), Arc::new(files));
    assert!(!overlay.capabilities().writable);
    assert_eq!(overlay.write("/a", "x").await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn overlay_futures_are_send() {
    fn assert_send<T: Send>(_: T) {}
    let overlay = OverlayBackend::new(Arc::new(StateBackend::new()), Arc::new(StateBackend::new()));
    assert_send(overlay.diff(&OverlayDiffOptions::new()));
    assert_send(overlay.discard(&[]));
    assert_send(overlay.apply_changes(&OverlayApplyOptions::new()));
    assert_eq!(overlay.to_string(), "Overlay(State, State)");
}
