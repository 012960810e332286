//! Several partitions in one store: each has rows, conditions, versions and watches of its own.

use super::*;
use futures::future::join_all;
use std::collections::BTreeSet;
use treehold_store::Partition;

/// Namespaces with the same name: of two users, of a tenant, of a named partition for everybody, and of another tenant's user.
const SPACES: [&str; 5] = ["acme/ada/n", "acme/bob/n", "acme//n", "shared//n", "other/ada/n"];

fn spaces() -> Vec<Namespace> {
    SPACES.map(parsed).to_vec()
}

async fn current(store: &Subject, partition: &Partition) -> Version {
    store.current_version(partition).await.unwrap_or_else(|error| panic!("version of {partition}: {error:?}"))
}

pub(super) async fn partitions_share_no_rows(store: Subject) {
    let spaces = spaces();
    for (number, space) in spaces.iter().enumerate() {
        commit(&store, Batch::new().put(space, "k", format!("{number}")).put(space, "d/x", "")).await;
    }
    for (number, space) in spaces.iter().enumerate() {
        assert_eq!(value(&store, space, "k").await, Some(format!("{number}").into()), "{space}");
        assert_eq!(keys(&scan_all(&store, space, ScanOptions::new()).await), ["d/x", "k"], "{space}");
    }
    commit(&store, Batch::new().delete_prefix(&spaces[0], "")).await;
    commit(&store, Batch::new().delete(&spaces[1], "k")).await;
    for (number, space) in spaces.iter().enumerate() {
        let left: &[&str] = [&[][..], &["d/x"]].get(number).copied().unwrap_or(&["d/x", "k"]);
        assert_eq!(keys(&scan_all(&store, space, ScanOptions::new()).await), left, "{space}");
    }
}

pub(super) async fn conditions_see_only_their_partition(store: Subject) {
    let spaces = spaces();
    for space in &spaces {
        // Whatever the others contain, this one is empty.
        let batch = Batch::new().expect(space, "d/x", Condition::Absent).expect(space, "d/", Condition::NoneBeneath);
        commit(&store, batch.put(space, "d/x", "")).await;
    }
    for space in &spaces {
        let since = current(&store, &space.partition()).await;
        for other in spaces.iter().filter(|other| *other != space) {
            commit(&store, Batch::new().put(other, "d/y", "newer")).await;
        }
        let batch = Batch::new().expect(space, "d/", Condition::NoneBeneathSince(since)).expect(space, "d/x", Condition::Exists);
        commit(&store, batch).await;
        let before = current(&store, &space.partition()).await;
        commit(&store, Batch::new().put(space, "d/z", "")).await;
        refused(&store, Batch::new().expect(space, "d/", Condition::NoneBeneathSince(before)), ErrorKind::Conflict).await;
    }
}

/// A store may have one counter for all partitions, so the version of a partition may grow with commits to others. It never decreases, and
/// each commit gets a newer version than the partition had before.
pub(super) async fn versions_grow_within_each_partition(store: Subject) {
    let spaces = spaces();
    let mut last = vec![Version::new(0); spaces.len()];
    for round in 0..6 {
        for (place, space) in spaces.iter().enumerate().filter(|(place, _)| (round + place) % 2 == 0) {
            let before = current(&store, &space.partition()).await;
            assert!(before >= last[place], "{before:?} after {:?} of {space}", last[place]);
            let version = commit(&store, Batch::new().put(space, "k", "")).await[0];
            assert!(version > before, "{version:?} after {before:?} of {space}");
            last[place] = current(&store, &space.partition()).await;
            assert!(last[place] >= version, "{space}");
            assert_eq!(get(&store, space, "k").await.map(|item| item.version), Some(version), "{space}");
        }
    }
    let unused = Partition::new(["unused", "nobody"]).expect("a legal partition");
    let before = current(&store, &unused).await;
    let version = commit(&store, Batch::new().put(&unused.namespace(["n"]).expect("a legal namespace"), "k", "")).await[0];
    assert!(version > before);
}

pub(super) async fn concurrent_commits_of_partitions_lose_nothing(store: Subject) {
    const TASKS_EACH: usize = 4;
    const EACH: usize = 10;
    let tasks = spaces().into_iter().flat_map(|space| vec![space; TASKS_EACH]).map(|space| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut versions = Vec::new();
            while versions.len() < EACH {
                let item = get(&store, &space, "counter").await;
                let count = item.as_ref().map_or(0, |item| item.value.len());
                let condition = item.map_or(Condition::Absent, |item| Condition::Version(item.version));
                let batch = Batch::new().expect(&space, "counter", condition).put(&space, "counter", vec![b'1'; count + 1]);
                match store.commit(batch).await {
                    Ok(own) => versions.extend(own),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}"),
                }
            }
            (space, versions)
        })
    });
    let mut done: Vec<(Namespace, Vec<Version>)> =
        join_all(tasks.collect::<Vec<_>>()).await.into_iter().map(|task| task.expect("the task ended well")).collect();
    for space in spaces() {
        let own: Vec<Vec<Version>> = done.extract_if(.., |(of, _)| *of == space).map(|(_, versions)| versions).collect();
        assert!(own.iter().all(|versions| versions.is_sorted_by(|one, next| one < next)), "{space}");
        let distinct: BTreeSet<Version> = own.into_iter().flatten().collect();
        assert_eq!(distinct.len(), TASKS_EACH * EACH, "{space}");
        assert_eq!(value(&store, &space, "counter").await.map(|value| value.len()), Some(TASKS_EACH * EACH), "{space}");
        assert!(current(&store, &space.partition()).await >= *distinct.last().expect("every task commits"), "{space}");
    }
}

pub(super) async fn watch_wakes_after_commits_of_its_partition(store: Subject) {
    let spaces = spaces();
    let mut watches = Vec::new();
    for (number, space) in spaces.iter().enumerate() {
        // The counters of partitions may differ, so that a version of another partition is recognised.
        for _ in 0..10 * number {
            commit(&store, Batch::new().put(space, "k", "")).await;
        }
        watches.push(store.watch(space).await.unwrap_or_else(|error| panic!("watch: {error:?}")));
    }
    for (space, watch) in spaces.iter().zip(&mut watches) {
        let version = commit(&store, Batch::new().put(space, "k", "")).await[0];
        while watches::changed(watch).await < version {}
    }
}
