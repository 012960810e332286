//! Keys of all lengths, and pages of them, compared with the in-memory store.

use super::open;
use crate::servers::postgres::{fresh_with, schema};
use crate::stores::namespace;
use jiff::Timestamp;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::Arc;
use std::time::Duration;
use treehold::clock::Clock;
use treehold::ops::Version;
use treehold::store::{Batch, Condition, KEY_BYTES_MAX, MemoryStore, ScanOptions, Store, StoreExt};

/// Keys around the length at which they are split, with long common prefixes.
fn long_key() -> impl Strategy<Value = String> {
    let lengths = vec![0, 1, 382, 383, 384, 385, 700];
    let ends = vec!["", "a", "/", "a/", "a/b", "b", "\u{1}", "é", "\u{10FFFF}"];
    (select(vec!['x', 'é', '日', '\u{10FFFF}']), select(lengths), vec(select(ends), 0..3))
        .prop_map(|(character, count, ends)| {
            let mut key = character.to_string().repeat(count) + &ends.concat();
            while key.len() > KEY_BYTES_MAX {
                key.pop();
            }
            key
        })
        .prop_filter("a key is not empty", |key| !key.is_empty())
}

fn long_scan() -> impl Strategy<Value = ScanOptions> {
    let delimiter = option::of(select(vec!['/', '\u{1}', 'é', '\u{10FFFF}']));
    (option::of(long_key()), delimiter, option::of(long_key()), 0..6_usize, any::<bool>(), select(vec![0, 30, 1 << 20])).prop_map(
        |(prefix, delimiter, start_after, limit, with_values, bytes_max)| {
            let mut options = ScanOptions::new().with_limit(limit * 3).with_values(with_values).with_bytes_max(bytes_max);
            options.prefix = prefix.unwrap_or_default();
            options.delimiter = delimiter;
            options.start_after = start_after;
            options
        },
    )
}

async fn agree(store: &dyn Store, keys: &[String], scans: Vec<ScanOptions>, removed: &str, clock: Clock) {
    let memory = MemoryStore::with_clock(clock);
    let same = async |batch: Batch| {
        let expected = memory.commit(batch.clone()).await.map_err(|error| (error.change(), error.current_version()));
        let found = store.commit(batch).await.map_err(|error| (error.change(), error.current_version()));
        assert_eq!(found, expected);
    };
    same(keys.iter().enumerate().fold(Batch::new(), |batch, (number, key)| batch.put(&namespace(), key, number.to_string()))).await;
    let compared = async || {
        for options in &scans {
            let (found, expected) =
                (store.scan(&namespace(), options.clone()).await.unwrap(), memory.scan(&namespace(), options.clone()).await);
            assert_eq!(found, expected.unwrap(), "{options:?}");
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).chain(["absent", removed]).collect();
        let found = store.get_many(&namespace(), &keys, true).await.unwrap();
        assert_eq!(found, memory.get_many(&namespace(), &keys, true).await.unwrap());
    };
    compared().await;
    for condition in
        [Condition::NoneBeneath, Condition::NoneBeneathSince(Version::new(3)), Condition::Absent, Condition::Version(Version::new(1))]
    {
        same(Batch::new().expect(&namespace(), removed, condition)).await;
    }
    same(Batch::new().delete_prefix(&namespace(), removed).put(&namespace(), format!("{removed}a"), "new")).await;
    compared().await;
    same(Batch::new().delete(&namespace(), &keys[0]).touch(&namespace(), keys[keys.len() - 1].clone(), Some(Duration::ZERO))).await;
    compared().await;
    assert_eq!(store.sweep(100).await.unwrap(), memory.sweep(100).await.unwrap());
    let partition = namespace().partition();
    assert_eq!(store.current_version(&partition).await.unwrap(), memory.current_version(&partition).await.unwrap());
    assert!(store.check().await.unwrap().is_empty());
}

#[test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
fn long_keys_behave_as_in_memory() {
    let cases = std::env::var("TREEHOLD_MODEL_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 500, ..ProptestConfig::default() };
    proptest!(config, |(keys in vec(long_key(), 1..60), scans in vec(long_scan(), 12), removed in long_key())| {
        runtime.block_on(async {
            let clock = Clock::from_fn(|| Timestamp::from_second(1_700_000_000).unwrap());
            let (store, _keep) = fresh_with(clock.clone()).await;
            agree(&*store, &keys, scans, &removed, clock).await;
        });
    });
}

/// A page of many groups, items and chunks equals the in-memory one, wherever it ends.
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn stepwise_walk_skips_nothing() {
    let schema = schema().await;
    let (store, memory): (Arc<dyn Store>, _) = (Arc::new(open(&schema).await), MemoryStore::new());
    let key = |number: u32| match number % 7 {
        0 => format!("{:04}/x", number / 70),
        1 => format!("{number:04}/"),
        _ => format!("{number:04}"),
    };
    let batch = (0..2_000).fold(Batch::new(), |batch, number| batch.put(&namespace(), key(number), "body"));
    memory.commit(batch.clone()).await.unwrap();
    store.commit(batch).await.unwrap();
    for limit in [1, 2, 255, 256, 257, 3_000] {
        for with_values in [false, true] {
            let mut options = ScanOptions::new().with_delimiter('/').with_limit(limit).with_values(with_values).with_bytes_max(1_000);
            for _ in 0..4 {
                let (found, expected) =
                    (store.scan(&namespace(), options.clone()).await.unwrap(), memory.scan(&namespace(), options.clone()).await);
                let expected = expected.unwrap();
                let keys = |scan: &treehold::store::Scan| scan.entries.iter().map(|entry| entry.key().to_owned()).collect::<Vec<_>>();
                assert_eq!((keys(&found), &found.next), (keys(&expected), &expected.next), "{options:?}");
                let Some(next) = expected.next else { break };
                options = options.with_start_after(next);
            }
        }
    }
}
