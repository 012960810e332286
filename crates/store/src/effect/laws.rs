//! Property test: the folded effect of a batch equals its writes applied one by one.

use super::*;
use crate::{Batch, Item, MemoryStore, Partition, ScanEntry, ScanOptions, Store, StoreExt, log_key};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::ops::Version;

/// When the existing rows were put and when the batch is applied, in microseconds.
const BEFORE: i64 = 1_000_000_000;
const NOW: i64 = 1_010_000_000;

fn time(microseconds: i64) -> Timestamp {
    Timestamp::from_microsecond(microseconds).expect("a time")
}

fn namespace() -> impl Strategy<Value = Namespace> {
    select(vec!["p//a", "p//b"]).prop_map(|name| Namespace::parse(name).expect("a legal namespace"))
}

fn key() -> impl Strategy<Value = String> {
    select(vec!["k", "k/x", "k/y", "l"]).prop_map(str::to_owned)
}

/// Expires at once, between the two times, or after both.
fn time_to_live() -> impl Strategy<Value = Option<Duration>> {
    select(vec![None, None, Some(Duration::ZERO), Some(Duration::from_secs(5)), Some(Duration::from_secs(3_600))])
}

fn put() -> impl Strategy<Value = BatchWrite> {
    let created_at = select(vec![None, None, None, Some(time(5)), Some(time(NOW + 7))]);
    (namespace(), key(), any::<u8>(), time_to_live(), created_at).prop_map(|(namespace, key, value, time_to_live, created_at)| {
        let (meta, value) = (Bytes::from(vec![value; 2]), Bytes::from(vec![value]));
        BatchWrite::Put { namespace, key, meta, value, time_to_live, created_at }
    })
}

fn restore() -> impl Strategy<Value = BatchWrite> {
    let ends = select(vec![None, Some(time(NOW)), Some(time(NOW - 1)), Some(time(NOW + 1)), Some(Timestamp::MAX)]);
    (namespace(), key(), any::<u8>(), 1..30_u64, ends).prop_map(|(namespace, key, value, version, ends)| {
        // A restore truncates times to microseconds, so these have nanoseconds.
        let (created_at, modified_at) = (time(11) + Duration::from_nanos(999), time(12) + Duration::from_nanos(1));
        let item = Item::new(key, Bytes::new(), Bytes::from(vec![value]), Version::new(version), created_at, modified_at);
        BatchWrite::Restore { namespace, item: item.with_expires_at(ends) }
    })
}

fn write() -> impl Strategy<Value = BatchWrite> {
    prop_oneof![
        4 => put(),
        2 => restore(),
        2 => (any::<u8>(), time_to_live()).prop_map(|(value, time_to_live)| {
            // The log has a separate namespace, because a batch may not append to a log and delete from it by prefix.
            let namespace = Namespace::parse("p//log").expect("a legal namespace");
            BatchWrite::Append { namespace, meta: Bytes::new(), value: Bytes::from(vec![value]), time_to_live }
        }),
        3 => (namespace(), key(), time_to_live())
            .prop_map(|(namespace, key, time_to_live)| BatchWrite::Touch { namespace, key, time_to_live }),
        3 => (namespace(), key()).prop_map(|(namespace, key)| BatchWrite::Delete { namespace, key }),
        2 => (namespace(), select(vec!["", "k", "k/", "m"]))
            .prop_map(|(namespace, prefix)| BatchWrite::DeletePrefix { namespace, prefix: prefix.to_owned() }),
    ]
}

/// The rows by namespace and key.
type Rows = BTreeMap<(Namespace, String), Item>;

fn is_live(item: &Item, now: i64) -> bool {
    item.expires_at.is_none_or(|at| time(now) < at)
}

async fn rows(store: &MemoryStore) -> Rows {
    let mut rows = Rows::new();
    for name in ["p//a", "p//b", "p//log"] {
        let namespace = Namespace::parse(name).expect("a legal namespace");
        let page = store.scan(&namespace, ScanOptions::new().with_values(true)).await.expect("a scan");
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { panic!("no delimiter was given") };
            rows.insert((namespace.clone(), item.key.clone()), item);
        }
    }
    rows
}

/// Applies an effect as documented, all lists against the previous rows; returns the counter and the versions.
fn apply(effect: &Effect<'_>, before: &Rows, counter: u64) -> (Rows, u64, Vec<Version>) {
    let at = |namespace: &Namespace, key: &str| (namespace.clone(), key.to_owned());
    let mut rows = before.clone();
    for (namespace, key, ends) in &effect.touches {
        if let Some(item) = rows.get_mut(&at(namespace, key)).filter(|item| is_live(item, NOW)) {
            item.expires_at = ends.map(time);
        }
    }
    for (namespace, prefix) in &effect.prefixes {
        rows.retain(|(space, key), _| space != *namespace || !key.starts_with(prefix));
    }
    for (namespace, key) in &effect.deletes {
        rows.remove(&at(namespace, key));
    }
    let is_removed = rows.len() < before.len();
    for put in &effect.puts {
        let place = at(put.namespace, put.key);
        let kept = before.get(&place).filter(|item| is_live(item, NOW)).map(|item| item.created_at);
        let created_at = put.created_at.map(time).or(kept).unwrap_or(time(put.modified_at));
        let version = Version::new(put.version.unwrap_or(counter + 1 + put.number));
        let (meta, value) = (Bytes::copy_from_slice(put.meta), Bytes::copy_from_slice(put.value));
        let item = Item::new(put.key, meta, value, version, created_at, time(put.modified_at));
        rows.insert(place, item.with_expires_at(put.expires_at.map(time)));
    }
    for put in &effect.appends {
        let version = Version::new(counter + 1 + put.number);
        let item = Item::new(log_key(version), Bytes::new(), Bytes::copy_from_slice(put.value), version, time(NOW), time(put.modified_at));
        rows.insert((put.namespace.clone(), item.key.clone()), item.with_expires_at(put.expires_at.map(time)));
    }
    let counted = if effect.numbers == 0 { counter + u64::from(is_removed) } else { counter + effect.numbers };
    let versions = effect.versions.iter().map(|number| Version::new(counter + 1 + number)).collect();
    (rows, counted.max(effect.floor), versions)
}

fn assert_no_key_twice(effect: &Effect<'_>) {
    let puts = effect.puts.iter().map(|put| (put.namespace, put.key));
    let touches = effect.touches.iter().map(|(namespace, key, _)| (*namespace, *key));
    let mut keys: Vec<(&Namespace, &str)> = puts.chain(touches).chain(effect.deletes.iter().copied()).collect();
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count, "a key is in two lists: {effect:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn folded_effect_equals_sequential_writes(
        there in vec(prop_oneof![3 => put(), 1 => restore()], 0..8),
        writes in vec(write(), 0..10),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let clock = Arc::new(AtomicI64::new(BEFORE));
            let shared = clock.clone();
            let store = MemoryStore::with_clock(Clock::from_fn(move || time(shared.load(Ordering::Relaxed))));
            // One batch each, so that the counter advances.
            for write in there {
                store.commit(Batch { preconditions: Vec::new(), writes: vec![write] }).await.expect("a commit");
            }
            let before = rows(&store).await;
            let partition = Partition::new(["p"]).expect("a legal partition");
            let counter = store.current_version(&partition).await.expect("a version").number();
            // Rows that expired earlier are gone on both sides.
            store.sweep(usize::MAX).await.expect("a sweep");
            clock.store(NOW, Ordering::Relaxed);
            let effect = Effect::of(&writes, time(NOW));
            assert_no_key_twice(&effect);
            let (mut folded, folded_counter, folded_versions) = apply(&effect, &before, counter);
            folded.retain(|_, item| is_live(item, NOW));
            let versions = store.commit(Batch { preconditions: Vec::new(), writes: writes.clone() }).await.expect("a commit");
            assert_eq!(folded, rows(&store).await, "{writes:?}");
            let counter = store.current_version(&partition).await.expect("a version").number();
            assert_eq!((folded_counter, folded_versions), (counter, versions));
        });
    }
}
