//! Keys and bodies of all bytes and lengths.

use crate::servers::mysql::database as fresh;
use crate::stores::namespace;
use proptest::prelude::*;
use treehold::ErrorKind;
use treehold::store::{Batch, Condition, MemoryStore, MysqlStore, ScanEntry, ScanOptions, Store};

/// Keys around the length of a head and of other lengths, with long common prefixes.
fn long_key() -> impl Strategy<Value = String> {
    let piece = proptest::sample::select(vec!["a", "b", "/", "\u{1}", "é"]);
    let length = proptest::sample::select(vec![0_usize, 1, 1_500, 1_534, 1_535, 1_536, 1_537, 1_600, 3_000, 4_080]);
    (length, proptest::collection::vec(piece, 0..5), any::<bool>()).prop_map(|(length, pieces, has_group)| {
        let start = if has_group { "x/" } else { "" };
        let key = format!("{start}{}{}", "l".repeat(length.saturating_sub(start.len())), pieces.concat());
        if key.is_empty() { "a".to_owned() } else { key }
    })
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn contents_with_all_bytes_round_trip() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let a = namespace();
    let all: Vec<u8> = (0..=255).collect();
    // Every byte before each byte that is special in statements, and partial characters before those.
    let pairs: Vec<u8> = all.iter().flat_map(|byte| [*byte, b'\'', *byte, b'\\', *byte, 0, *byte, 0x1A]).collect();
    let contents = [all, pairs, b"\\".to_vec(), b"'".to_vec(), b"\xF0\x9F'; DROP TABLE treehold_rows; --".to_vec(), vec![0; 4_096]];
    let batch = contents
        .iter()
        .enumerate()
        .fold(Batch::new(), |batch, (number, content)| batch.put_with_meta(&a, format!("{number}"), content.clone(), content.clone()));
    store.commit(batch).await.unwrap();
    for (number, content) in contents.iter().enumerate() {
        let item = store.get(&a, &format!("{number}")).await.unwrap().unwrap();
        assert!(item.value == content && item.meta == content, "{number}: {item:?}");
    }
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn body_of_the_size_limit_round_trips() {
    let database = fresh().await;
    let store = MysqlStore::open(&database.url).await.unwrap();
    let limit = usize::try_from(store.capabilities().value_bytes_max.unwrap()).unwrap();
    let a = namespace();
    let meta = vec![b'm'; treehold::store::META_BYTES_MAX];
    let key = "k".repeat(treehold::store::KEY_BYTES_MAX);
    let body = vec![0xA5; limit];
    store.commit(Batch::new().put_with_meta(&a, &key, meta, body.clone()).put(&a, "small", "v")).await.unwrap();
    assert!(store.get(&a, &key).await.unwrap().unwrap().value == body);
    let page = store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap();
    assert_eq!(page.entries.len(), 1, "the first ends the page by its bytes");
    let error = store.commit(Batch::new().put(&a, "k", vec![0; limit + 1])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}

/// Pages of keys that the index does not order equal those of the in-memory store.
#[test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
fn long_keys_sort_like_short_ones() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(fresh());
    let store = runtime.block_on(MysqlStore::open(&database.url)).unwrap();
    let delimiters = proptest::option::of(proptest::sample::select(vec!['/', '\u{1}', 'é']));
    let scans = proptest::collection::vec((long_key(), delimiters, 1..6_usize, any::<bool>(), 0..60_usize), 1..8);
    let config = ProptestConfig { cases: 24, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() };
    proptest!(config, |(keys in proptest::collection::vec(long_key(), 1..40), scans in scans, removed in long_key())| {
        runtime.block_on(async {
            let (memory, a) = (MemoryStore::new(), namespace());
            store.commit(Batch::new().delete_prefix(&a, "")).await.unwrap();
            let batch = keys.iter().enumerate().fold(Batch::new(), |batch, (n, key)| batch.put(&a, key, "body".repeat(n)));
            for batch in [batch, Batch::new().delete_prefix(&a, &removed)] {
                let ours = store.commit(batch.clone().expect(&a, "none", Condition::Absent)).await.unwrap();
                assert_eq!(ours.len(), memory.commit(batch).await.unwrap().len());
            }
            let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
            let found = |items: Vec<Option<treehold::store::Item>>| items.into_iter().map(|item| item.map(|item| item.value)).collect::<Vec<_>>();
            assert_eq!(found(store.get_many(&a, &wanted, true).await.unwrap()), found(memory.get_many(&a, &wanted, true).await.unwrap()));
            for (prefix, delimiter, limit, with_values, bytes_max) in scans {
                // A prefix of one of the keys.
                let half = prefix.char_indices().nth(prefix.chars().count() / 2).map_or(0, |(at, _)| at);
                for prefix in ["", &prefix[..half], &prefix] {
                    let mut options = ScanOptions::new().with_prefix(prefix).with_limit(limit).with_values(with_values).with_bytes_max(bytes_max);
                    options.delimiter = delimiter;
                    loop {
                        let ours = store.scan(&a, options.clone()).await.unwrap();
                        let theirs = memory.scan(&a, options.clone()).await.unwrap();
                        let shown = |entries: &[ScanEntry]| entries.iter().map(|entry| match entry {
                            ScanEntry::Item(item) | ScanEntry::LeftOut { item, .. } => (item.key.clone(), Some(item.value.clone()), false),
                            ScanEntry::Group { name, item } => (name.clone(), item.as_ref().map(|item| item.value.clone()), true),
                        }).collect::<Vec<_>>();
                        assert!(shown(&ours.entries) == shown(&theirs.entries) && ours.next == theirs.next, "a page of {limit} at a prefix of {} bytes", prefix.len());
                        let Some(next) = ours.next else { break };
                        options = options.with_start_after(next);
                    }
                }
            }
        });
    });
    drop((store, runtime, database));
}
