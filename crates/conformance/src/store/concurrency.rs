//! Concurrency: nothing is lost, and nothing is seen half done.

use super::*;
use futures::future::join_all;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

const TASKS: usize = 16;

async fn join<T: Send + 'static>(tasks: impl Iterator<Item = tokio::task::JoinHandle<T>>) -> Vec<T> {
    join_all(tasks).await.into_iter().map(|task| task.expect("the task ended well")).collect()
}

async fn number(store: &Subject, namespace: &Namespace, key: &str) -> (u64, Option<Version>) {
    match get(store, namespace, key).await {
        Some(item) => (std::str::from_utf8(&item.value).expect("digits").parse().expect("a number"), Some(item.version)),
        None => (0, None),
    }
}

pub(super) async fn concurrent_increments_lose_nothing(store: Subject) {
    const EACH: u64 = 20;
    let tasks = (0..TASKS).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            let a = namespace("a");
            let mut done = 0;
            while done < EACH {
                let (count, version) = number(&store, &a, "counter").await;
                let condition = version.map_or(Condition::Absent, Condition::Version);
                let batch = Batch::new().expect(&a, "counter", condition).put(&a, "counter", format!("{}", count + 1));
                match store.commit(batch).await {
                    Ok(_) => done += 1,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}"),
                }
            }
        })
    });
    join(tasks).await;
    assert_eq!(number(&store, &namespace("a"), "counter").await.0, TASKS as u64 * EACH);
}

pub(super) async fn one_of_several_creators_wins(store: Subject) {
    let a = namespace("a");
    for round in 0..10 {
        let tasks = (0..TASKS).map(|task| {
            let (store, a) = (store.clone(), a.clone());
            tokio::spawn(async move {
                let key = format!("{round}");
                store.commit(Batch::new().expect(&a, &key, Condition::Absent).put(&a, &key, format!("{task}"))).await
            })
        });
        let answers = join(tasks).await;
        let item = get(&store, &a, &format!("{round}")).await.expect("one writer has won");
        for (task, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(versions) => assert_eq!((format!("{task}").as_bytes(), versions[0]), (&item.value[..], item.version)),
                Err(error) => assert_eq!((error.kind(), error.current_version()), (ErrorKind::Conflict, Some(item.version))),
            }
        }
    }
}

pub(super) async fn concurrent_writers_get_distinct_versions(store: Subject) {
    let tasks = (0..TASKS).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            let a = namespace("a");
            let mut versions = Vec::new();
            for _ in 0..20 {
                versions.extend(commit(&store, Batch::new().put(&a, format!("{task}"), "1").put(&a, "shared", "2")).await);
            }
            versions
        })
    });
    let versions = join(tasks).await;
    assert!(versions.iter().all(|versions| versions.is_sorted_by(|one, next| one < next)));
    let distinct: BTreeSet<Version> = versions.iter().flatten().copied().collect();
    assert_eq!(distinct.len(), TASKS * 40);
    let newest = store.current_version(&namespace("a").partition()).await.expect("a version");
    assert_eq!(newest, *distinct.last().expect("every task commits"));
}

pub(super) async fn concurrent_writers_of_different_keys_succeed(store: Subject) {
    let tasks = (0..TASKS).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            let a = namespace("a");
            for round in 0..20 {
                let key = format!("{task:02}/{round:02}");
                commit(&store, Batch::new().expect(&a, &key, Condition::Absent).put(&a, &key, noise(task * 1_000))).await;
                assert!(value(&store, &a, &key).await == Some(noise(task * 1_000)), "a task reads its own write");
            }
        })
    });
    join(tasks).await;
    let entries = scan_all(&store, &namespace("a"), ScanOptions::new().with_values(true)).await;
    assert_eq!(entries.len(), TASKS * 20);
}

/// Changes the rows `x`, `y` and `z` together until stopped.
fn change_together(store: &Subject, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<()> {
    let (store, stop) = (store.clone(), stop.clone());
    tokio::spawn(async move {
        let a = namespace("a");
        for round in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let body = format!("{round} ").repeat(1 + round % 3_000);
            let batch = ["x", "y", "z"].iter().fold(Batch::new(), |batch, key| batch.put(&a, *key, body.clone()));
            commit(&store, if round % 5 == 4 { Batch::new().delete_prefix(&a, "") } else { batch }).await;
        }
    })
}

fn assert_whole(bodies: &[Bytes]) {
    assert!(matches!(bodies.len(), 0 | 3), "{} of three rows that come and go together", bodies.len());
    assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]), "rows of different batches");
}

pub(super) async fn scan_page_never_shows_partial_batch(store: Subject) {
    let a = namespace("a");
    let stop = Arc::new(AtomicBool::new(false));
    let writer = change_together(&store, &stop);
    for _ in 0..200 {
        let page = scan(&store, &a, ScanOptions::new().with_values(true)).await;
        let bodies: Vec<Bytes> =
            page.entries.into_iter().map(|entry| if let ScanEntry::Item(item) = entry { item.value } else { Bytes::new() }).collect();
        assert_whole(&bodies);
        let entries = scan(&store, &a, ScanOptions::new()).await.entries;
        let versions: Vec<u64> =
            entries.iter().map(|entry| if let ScanEntry::Item(item) = entry { item.version.number() } else { 0 }).collect();
        assert!(versions.windows(2).all(|pair| pair[0] + 1 == pair[1]), "rows of different batches: {versions:?}");
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.expect("the writer ended well");
}

pub(super) async fn get_many_never_shows_partial_batch(store: Subject) {
    let a = namespace("a");
    let stop = Arc::new(AtomicBool::new(false));
    let writer = change_together(&store, &stop);
    for _ in 0..200 {
        let items = store.get_many(&a, &["x", "y", "z"], true).await.expect("a read");
        assert_whole(&items.into_iter().flatten().map(|item| item.value).collect::<Vec<_>>());
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.expect("the writer ended well");
}

pub(super) async fn unchanged_items_are_in_every_concurrent_scan(store: Subject) {
    let a = namespace("a");
    let stay: Vec<String> = (0..40).map(|number| format!("{number:02} stays")).collect();
    put_all(&store, &a, &stay.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, stop, a) = (store.clone(), stop.clone(), a.clone());
        async move {
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let key = format!("{:02} comes and goes", round * 7 % 40);
                commit(&store, if round % 2 == 0 { Batch::new().put(&a, key, "") } else { Batch::new().delete(&a, key) }).await;
            }
        }
    });
    for round in 0..40 {
        let entries = scan_all(&store, &a, ScanOptions::new().with_limit(1 + round % 7)).await;
        let found: Vec<&str> = keys(&entries).into_iter().filter(|key| key.ends_with("stays")).collect();
        assert_eq!(found, stay);
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.expect("the writer ended well");
}

pub(super) async fn current_version_never_decreases(store: Subject) {
    let stop = Arc::new(AtomicBool::new(false));
    let writer = change_together(&store, &stop);
    let mut last = Version::new(0);
    for _ in 0..200 {
        let now = store.current_version(&namespace("a").partition()).await.expect("a version");
        assert!(now >= last, "{now:?} after {last:?}");
        last = now;
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.expect("the writer ended well");
}

pub(super) async fn dropped_commit_leaves_old_or_new_items(store: Subject) {
    let a = namespace("a");
    let mut newest = 0;
    for round in 1..=50_u64 {
        let batch = ["x", "y", "z"].iter().fold(Batch::new(), |batch, key| batch.put(&a, *key, format!("{round}")));
        {
            let mut dropped = Box::pin(store.commit(batch));
            let _ = futures::poll!(&mut dropped);
        }
        let items = store.get_many(&a, &["x", "y", "z"], true).await.expect("a read");
        let bodies: Vec<Bytes> = items.into_iter().flatten().map(|item| item.value).collect();
        assert_whole(&bodies);
        if let Some(body) = bodies.first() {
            let seen: u64 = std::str::from_utf8(body).expect("digits").parse().expect("a number");
            assert!(newest <= seen && seen <= round, "round {seen} after {newest}");
            newest = seen;
        }
    }
    // This commit waits until the store has processed all earlier ones.
    commit(&store, Batch::new().put(&a, "w", "")).await;
    assert_whole(
        &store.get_many(&a, &["x", "y", "z"], true).await.expect("a read").into_iter().flatten().map(|item| item.value).collect::<Vec<_>>(),
    );
}
