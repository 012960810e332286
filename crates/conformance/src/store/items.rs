//! Single items: what is put can be read back.

use super::*;

pub(super) async fn get_of_absent_item_is_none(store: Subject) {
    assert_eq!(get(&store, &namespace("a"), "k").await, None);
    assert_eq!(get(&store, &namespace("a"), "").await, None);
}

pub(super) async fn body_is_preserved_byte_for_byte(store: Subject) {
    let a = namespace("a");
    for body in [&b""[..], b"\0", b"a\0b", b"\r\n", b"\xEF\xBB\xBFbom", b"\xFF\xFE invalid", "é \u{1F600}".as_bytes(), b"no newline"] {
        commit(&store, Batch::new().put(&a, "k", body.to_vec())).await;
        assert_eq!(value(&store, &a, "k").await.as_deref(), Some(body));
    }
}

pub(super) async fn body_of_any_size_is_preserved(store: Subject) {
    let a = namespace("a");
    for size in [1, 100, 4_095, 4_096, 7_999, 8_000, 8_001, 16_000, 65_536, 300_000, 3_000_000] {
        commit(&store, Batch::new().put(&a, format!("{size}"), noise(size))).await;
        assert!(value(&store, &a, &format!("{size}")).await == Some(noise(size)), "a body of {size} bytes");
    }
    // Longer, shorter, empty and back again at one key.
    for size in [5, 20_000, 8_000, 0, 12_345, 1] {
        commit(&store, Batch::new().put(&a, "k", noise(size))).await;
        assert!(value(&store, &a, "k").await == Some(noise(size)), "a body of {size} bytes over another");
    }
}

pub(super) async fn get_part_returns_requested_range(store: Subject) {
    let a = namespace("a");
    for (size, meta) in [(0, 0), (1, 5), (6_400, 2_000), (6_401, 0), (300_000, 1_001), (5_000_003, 10)] {
        let (body, meta) = (noise(size), noise(meta));
        commit(&store, Batch::new().put_with_meta(&a, "k", meta, body.clone())).await;
        let whole = get(&store, &a, "k").await.expect("it was put");
        let end = size as u64;
        let ranges = [(0, 0), (0, 1), (0, end), (0, u64::MAX), (1, 7), (6_399, 6_402), (end / 2, end / 2 + 70_000), (end, end + 9)];
        let behind = [(end.saturating_sub(3), end), (end.saturating_sub(3), end + 3), (end + 5, u64::MAX), (u64::MAX, u64::MAX)];
        for (start, end) in ranges.into_iter().chain(behind) {
            let part = store.get_part(&a, "k", start..end).await.expect("a read").expect("it was put");
            let within = start.min(size as u64) as usize..end.clamp(start.min(size as u64), size as u64) as usize;
            assert!(part.item.value == body.slice(within), "bytes {start} to {end} of {size}");
            assert_eq!(part.value_bytes, size as u64, "bytes {start} to {end}");
            assert_eq!(part.item.with_value(""), whole.clone().with_value(""), "bytes {start} to {end}");
        }
    }
}

pub(super) async fn get_part_of_absent_item_is_none(store: Subject) {
    let a = namespace("a");
    commit(&store, Batch::new().put(&a, "k", "body").put_for(&a, "over", noise(10_000), Duration::ZERO)).await;
    for key in ["absent", "over", "", "k\0"] {
        assert_eq!(store.get_part(&a, key, 0..9).await.expect("a read"), None, "{key:?}");
    }
    assert_eq!(store.get_part(&namespace("a/b"), "k", 0..9).await.expect("a read"), None);
}

pub(super) async fn parts_of_replaced_body_have_new_version(store: Subject) {
    let a = namespace("a");
    let versions = commit(&store, Batch::new().put(&a, "k", noise(500_000))).await;
    let first = store.get_part(&a, "k", 0..10).await.expect("a read").expect("it was put");
    assert_eq!(first.item.version, versions[0]);
    let versions = commit(&store, Batch::new().put(&a, "k", Bytes::from(vec![7; 400_000]))).await;
    let second = store.get_part(&a, "k", 399_990..400_010).await.expect("a read").expect("it was put");
    assert_eq!((second.item.version, second.value_bytes, &second.item.value[..]), (versions[0], 400_000, &[7; 10][..]));
    assert_ne!(first.item.version, second.item.version);
}

pub(super) async fn metadata_is_preserved_with_body(store: Subject) {
    let a = namespace("a");
    for meta in [Bytes::new(), Bytes::from_static(b"\0m\xFF"), noise(treehold_store::META_BYTES_MAX)] {
        commit(&store, Batch::new().put_with_meta(&a, "k", meta.clone(), "body")).await;
        let item = get(&store, &a, "k").await.expect("it was put");
        assert!(item.meta == meta && item.value == "body" && item.key == "k", "{} bytes of meta", meta.len());
    }
}

pub(super) async fn put_replaces_whole_item(store: Subject) {
    let a = namespace("a");
    commit(&store, Batch::new().put_with_meta(&a, "k", "meta", "body")).await;
    commit(&store, Batch::new().put(&a, "k", "other")).await;
    let item = get(&store, &a, "k").await.expect("it was put");
    assert_eq!((&item.meta[..], &item.value[..]), (&b""[..], &b"other"[..]));
}

pub(super) async fn put_keeps_creation_time(store: Subject) {
    let a = namespace("a");
    let before = store_time();
    commit(&store, Batch::new().put(&a, "k", "1")).await;
    let first = get(&store, &a, "k").await.expect("it was put");
    assert_eq!(first.created_at, first.modified_at);
    assert!(before <= first.created_at && first.created_at <= Timestamp::now(), "{}", first.created_at);
    commit(&store, Batch::new().put(&a, "k", "2")).await;
    commit(&store, Batch::new().put(&a, "k", "3").put(&a, "k", "4")).await;
    let last = get(&store, &a, "k").await.expect("it was put");
    assert_eq!(last.created_at, first.created_at);
    assert!(last.modified_at >= first.modified_at);
}

pub(super) async fn put_after_delete_renews_creation_time(store: Subject) {
    let a = namespace("a");
    let long_ago = Timestamp::from_second(1_000).expect("a time");
    commit(&store, put_created_at(&a, "k", long_ago)).await;
    commit(&store, Batch::new().delete(&a, "k").put(&a, "k", "new")).await;
    assert!(get(&store, &a, "k").await.expect("it was put").created_at > long_ago);
    commit(&store, put_created_at(&a, "k", long_ago)).await;
    commit(&store, Batch::new().delete_prefix(&a, "")).await;
    commit(&store, Batch::new().put(&a, "k", "new")).await;
    assert!(get(&store, &a, "k").await.expect("it was put").created_at > long_ago);
}

pub(super) async fn put_can_set_creation_time(store: Subject) {
    let a = namespace("a");
    for microsecond in [0, -1, 1, -62_135_596_800_000_000, 4_102_444_800_123_456] {
        let created_at = Timestamp::from_microsecond(microsecond).expect("a time");
        commit(&store, put_created_at(&a, "k", created_at)).await;
        assert_eq!(get(&store, &a, "k").await.expect("it was put").created_at, created_at);
        commit(&store, Batch::new().put(&a, "k", "kept")).await;
        assert_eq!(get(&store, &a, "k").await.expect("it was put").created_at, created_at);
    }
}

pub(super) async fn times_are_whole_microseconds(store: Subject) {
    let a = namespace("a");
    for (nanosecond, microsecond) in [(1_999, 1), (-1, -1), (-1_000, -1), (-1_001, -2), (0, 0)] {
        let created_at = Timestamp::from_nanosecond(nanosecond).expect("a time");
        commit(&store, put_created_at(&a, "k", created_at)).await;
        let item = get(&store, &a, "k").await.expect("it was put");
        assert_eq!(item.created_at, Timestamp::from_microsecond(microsecond).expect("a time"), "{nanosecond} ns");
        assert_eq!(item.modified_at.as_nanosecond() % 1_000, 0);
    }
}

pub(super) async fn any_text_can_be_a_key(store: Subject) {
    let a = namespace("a");
    let longest = "é".repeat(treehold_store::KEY_BYTES_MAX / 2);
    let all = [
        " ",
        ".",
        "..",
        "a b",
        "a%b",
        "a_b",
        "a*b",
        "a'b\"c`d",
        "a\\b",
        "a\u{1}b",
        "\u{1}",
        "a\nb",
        "a/b/",
        "/",
        "-- DROP TABLE",
        "日本語",
        "\u{1F600}",
        "e\u{301}",
        "é",
        "A",
        "a",
        "\u{10FFFF}",
        "\u{D7FF}\u{E000}",
        &longest,
    ];
    let batch = all.iter().fold(Batch::new(), |batch, key| batch.put(&a, *key, key.as_bytes().to_vec()));
    commit(&store, batch).await;
    for key in all {
        assert_eq!(value(&store, &a, key).await.as_deref(), Some(key.as_bytes()), "key {key:?}");
    }
    assert_eq!(scan_all(&store, &a, ScanOptions::new()).await.len(), all.len());
}

pub(super) async fn keys_and_namespaces_are_validated(store: Subject) {
    let a = namespace("a");
    for key in ["", "a\0b", &"k".repeat(treehold_store::KEY_BYTES_MAX + 1)] {
        refused(&store, Batch::new().put(&a, key, "v"), ErrorKind::InvalidArgument).await;
        // A key that cannot be put is merely absent: reading or deleting it is not an error.
        assert_eq!(get(&store, &a, key).await, None);
        commit(&store, Batch::new().delete(&a, key)).await;
    }
    let meta = vec![0; treehold_store::META_BYTES_MAX + 1];
    refused(&store, Batch::new().put_with_meta(&a, "k", meta, "v"), ErrorKind::TooLarge).await;
    let longest = Namespace::new(["n".repeat(1_022)]).expect("a namespace of 1,024 bytes");
    commit(&store, Batch::new().put(&longest, "k".repeat(treehold_store::KEY_BYTES_MAX), "v")).await;
    assert_eq!(scan_all(&store, &longest, ScanOptions::new()).await.len(), 1);
}

pub(super) async fn body_over_limit_is_rejected(store: Subject) {
    let Some(max) = store.capabilities().value_bytes_max.and_then(|max| usize::try_from(max).ok()) else {
        // A store that states no limit accepts a large body.
        let large = vec![7; 32 << 20];
        commit(&store, Batch::new().put(&namespace("a"), "k", large.clone())).await;
        assert!(get(&store, &namespace("a"), "k").await.is_some_and(|item| item.value == large), "the body came back");
        return;
    };
    refused(&store, Batch::new().put(&namespace("a"), "k", vec![0; max + 1]), ErrorKind::TooLarge).await;
    assert_eq!(get(&store, &namespace("a"), "k").await, None);
}

pub(super) async fn namespaces_match_whole(store: Subject) {
    let all = ["a", "a/b", "ab", "a/b/c", "b", "a%2Fb", "a%2F", "A"].map(parsed);
    for (index, namespace) in all.iter().enumerate() {
        commit(&store, Batch::new().put(namespace, "k", format!("{index}")).put(namespace, format!("only {index}"), "")).await;
    }
    for (index, namespace) in all.iter().enumerate() {
        assert_eq!(value(&store, namespace, "k").await.expect("it was put"), format!("{index}"));
        let entries = scan_all(&store, namespace, ScanOptions::new()).await;
        assert_eq!(keys(&entries), ["k".to_owned(), format!("only {index}")], "{namespace}");
    }
    // A key that looks like the end of a namespace is still a key.
    commit(&store, Batch::new().put(&all[0], "b/k", "of a")).await;
    assert_eq!(value(&store, &all[1], "k").await.expect("it was put"), "1");
}

pub(super) async fn get_many_keeps_order_and_duplicates(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["x", "y"]).await;
    let items = store.get_many(&a, &["y", "absent", "x", "y"], true).await.expect("a read");
    let bodies: Vec<Option<Bytes>> = items.into_iter().map(|item| item.map(|item| item.value)).collect();
    assert_eq!(bodies, [Some("body of y".into()), None, Some("body of x".into()), Some("body of y".into())]);
    assert_eq!(store.get_many(&a, &[], true).await.expect("a read"), []);
}

pub(super) async fn get_many_without_values_reads_no_bodies(store: Subject) {
    let a = namespace("a");
    commit(&store, Batch::new().put_with_meta(&a, "k", "meta", noise(20_000))).await;
    let items = store.get_many(&a, &["k"], false).await.expect("a read");
    let whole = get(&store, &a, "k").await.expect("it was put");
    assert_eq!(items, [Some(whole.with_value(""))]);
}

pub(super) async fn get_many_finds_all_of_many_keys(store: Subject) {
    let a = namespace("a");
    let all: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
    let batch = all.iter().step_by(2).fold(Batch::new(), |batch, key| batch.put(&a, key, key.clone()));
    commit(&store, batch).await;
    let wanted: Vec<&str> = all.iter().rev().map(String::as_str).collect();
    let items = store.get_many(&a, &wanted, true).await.expect("a read");
    for (key, item) in wanted.iter().zip(&items) {
        let even = key.parse::<usize>().expect("a number") % 2 == 0;
        assert_eq!(item.as_ref().map(|item| &item.value[..]), even.then_some(key.as_bytes()), "key {key}");
    }
}

pub(super) async fn get_many_reads_large_bodies(store: Subject) {
    let a = namespace("a");
    commit(&store, Batch::new().put(&a, "large", noise(2_000_000)).put(&a, "small", "s")).await;
    let items = store.get_many(&a, &["small", "large"], true).await.expect("a read");
    let sizes: Vec<Option<usize>> = items.iter().map(|item| item.as_ref().map(|item| item.value.len())).collect();
    assert_eq!(sizes, [Some(1), Some(2_000_000)]);
}

/// The current time with the precision of stores.
fn store_time() -> Timestamp {
    treehold_store::whole_microseconds(Timestamp::now())
}
