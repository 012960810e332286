//! Watches.

use super::*;

/// How long a wake-up may take. Engines that poll for commits need up to a second.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn changed(watch: &mut treehold_store::Watch) -> Version {
    let told = tokio::time::timeout(PATIENCE, watch.changed()).await;
    told.expect("a commit notifies the watch").expect("the store is open")
}

async fn watch(store: &Subject, text: &str) -> treehold_store::Watch {
    store.watch(&namespace(text)).await.unwrap_or_else(|error| panic!("watch: {error:?}"))
}

pub(super) async fn watch_wakes_after_commit(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["before"]).await;
    let mut watch = watch(&store, "a").await;
    for key in ["one", "two"] {
        let writer = tokio::spawn({
            let (store, a) = (store.clone(), a.clone());
            async move { commit(&store, Batch::new().put(&a, key, "")).await[0] }
        });
        // There may be spurious wake-ups, but none may be missing.
        let mut told = changed(&mut watch).await;
        let version = writer.await.expect("a writer");
        while told < version {
            told = changed(&mut watch).await;
        }
        assert!(get(&store, &a, key).await.is_some(), "a commit is readable once it is announced");
    }
}

pub(super) async fn watch_reports_commits_made_between_waits(store: Subject) {
    let mut watch = watch(&store, "a").await;
    let mut newest = Version::new(0);
    for key in ["one", "two", "three"] {
        newest = commit(&store, Batch::new().put(&namespace("a"), key, "")).await[0];
    }
    // Dropping a wait loses nothing.
    drop(futures::poll!(Box::pin(store.watch(&namespace("a")))));
    while changed(&mut watch).await < newest {}
}

pub(super) async fn watch_wakes_after_delete(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["k", "d/x"]).await;
    let mut watch = watch(&store, "a").await;
    for batch in [Batch::new().delete(&a, "k"), Batch::new().delete_prefix(&a, "d/")] {
        commit(&store, batch).await;
        let version = store.current_version(&a.partition()).await.expect("a version");
        while changed(&mut watch).await < version {}
    }
}

pub(super) async fn watch_ignores_other_namespaces(store: Subject) {
    let mut watched = watch(&store, "a").await;
    put_all(&store, &namespace("a/b"), &["k"]).await;
    put_all(&store, &namespace("b"), &["k"]).await;
    let version = commit(&store, Batch::new().put(&namespace("a"), "k", "")).await[0];
    while changed(&mut watched).await < version {}
}

pub(super) async fn every_watch_wakes(store: Subject) {
    let mut watches = [watch(&store, "a").await, watch(&store, "a").await, watch(&store, "b").await];
    let (a, b) = (namespace("a"), namespace("b"));
    commit(&store, Batch::new().put(&a, "k", "").put(&b, "k", "")).await;
    let version = store.current_version(&a.partition()).await.expect("a version");
    for watch in &mut watches {
        while changed(watch).await < version {}
    }
    drop(watches);
    let mut again = watch(&store, "b").await;
    let version = commit(&store, Batch::new().put(&b, "k", "")).await[0];
    while changed(&mut again).await < version {}
}
