//! Logs: items whose keys are their versions.

use super::*;
use std::collections::BTreeSet;
use treehold_store::log_key;

async fn rows(store: &Subject, log: &Namespace, options: ScanOptions) -> Vec<Item> {
    let entries = scan(store, log, options).await.entries;
    entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item) } else { None }).collect()
}

pub(super) async fn append_uses_its_version_as_key(store: Subject) {
    let (log, other) = (namespace("log"), namespace("other"));
    let batch = Batch::new().append(&log, "one", None).put(&other, "k", "put").append(&log, "", None).append(
        &log,
        vec![0, 255],
        Some(Duration::from_secs(3_600)),
    );
    let versions = store.commit(batch).await.expect("committed");
    assert_eq!(versions.len(), 4, "one for each");
    for pair in versions.windows(2) {
        assert_eq!(pair[1].number(), pair[0].number() + 1, "versions of a batch follow each other");
    }
    let found: Vec<(String, Version, Bytes, bool)> = rows(&store, &log, ScanOptions::new().with_values(true))
        .await
        .into_iter()
        .map(|item| (item.key, item.version, item.value, item.expires_at.is_some()))
        .collect();
    let appended = |version: Version, value: &'static [u8], ends| (log_key(version), version, Bytes::from_static(value), ends);
    assert_eq!(found, [appended(versions[0], b"one", false), appended(versions[2], b"", false), appended(versions[3], &[0, 255], true)]);
    let item = store.get(&log, &log_key(versions[0])).await.expect("read").expect("found by its key");
    assert_eq!(item.created_at, item.modified_at);
}

pub(super) async fn rejected_batch_appends_nothing(store: Subject) {
    let log = namespace("log");
    let batch = Batch::new().expect(&log, "never", Condition::Exists).append(&log, "one", None);
    assert_eq!(store.commit(batch).await.expect_err("refused").kind(), ErrorKind::Conflict);
    let batch = Batch::new().append(&log, "one", None).delete_prefix(&log, "");
    assert_eq!(
        store.commit(batch).await.expect_err("two appends to one log in one batch have no order").kind(),
        ErrorKind::InvalidArgument
    );
    assert!(rows(&store, &log, ScanOptions::new()).await.is_empty());
}

pub(super) async fn append_expires(store: Subject) {
    let log = namespace("log");
    store.commit(Batch::new().append(&log, "over", Some(Duration::ZERO)).append(&log, "kept", None)).await.expect("committed");
    let left = rows(&store, &log, ScanOptions::new().with_values(true)).await;
    assert_eq!(left.iter().map(|item| &item.value[..]).collect::<Vec<_>>(), [b"kept"]);
    sweep(&store, 10, 1).await;
}

/// Readers that continue from the last key they saw miss nothing, however many writers there are.
pub(super) async fn log_reader_misses_nothing(store: Subject) {
    const WRITERS: usize = 6;
    const EACH: usize = 12;
    let log = namespace("log");
    let writers = (0..WRITERS).map(|writer| {
        let (store, log) = (store.clone(), log.clone());
        tokio::spawn(async move {
            for number in 0..EACH {
                let mut batch = Batch::new();
                if number % 3 == 0 {
                    // Some engines process batches with conditions differently.
                    batch = batch.expect(&log, "never", Condition::Absent);
                }
                batch = batch.put(&namespace("other"), format!("{writer}"), "x").append(&log, format!("{writer} {number}"), None);
                store.commit(batch).await.expect("committed");
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut seen = BTreeSet::new();
    let mut options = ScanOptions::new().with_values(true).with_limit(5);
    while seen.len() < WRITERS * EACH {
        let are_done = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let found = rows(&store, &log, options.clone()).await;
        assert!(!(are_done && found.is_empty()), "{} of {} were seen", seen.len(), WRITERS * EACH);
        for item in found {
            assert!(options.start_after.as_ref().is_none_or(|last| *last < item.key));
            options.start_after = Some(item.key);
            assert!(seen.insert(item.value), "twice");
        }
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.expect("written");
    }
}
