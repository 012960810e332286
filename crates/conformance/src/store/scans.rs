//! Scans and namespace lists: order, prefixes, groups, cursors, limits.

use super::*;
use treehold_core::file::is_binary;
use treehold_store::{NamespacesOptions, RowsSnapshot, SnapshotRow};

pub(super) async fn scan_returns_keys_in_order_without_bodies(store: Subject) {
    let a = namespace("a");
    commit(&store, Batch::new().put_with_meta(&a, "b", "m", "body").put(&a, "c", "").put(&a, "a", "body")).await;
    let page = scan(&store, &a, ScanOptions::new()).await;
    assert_eq!(keys(&page.entries), ["a", "b", "c"]);
    assert_eq!(page.next, None);
    let whole = get(&store, &a, "b").await.expect("it was put");
    assert_eq!(page.entries[1], ScanEntry::Item(whole.with_value("")));
}

pub(super) async fn scan_with_values_returns_bodies(store: Subject) {
    let a = namespace("a");
    commit(&store, Batch::new().put(&a, "x", noise(20_000)).put(&a, "y", "").put_with_meta(&a, "z", "m", "body")).await;
    for entry in scan_all(&store, &a, ScanOptions::new().with_values(true)).await {
        let whole = get(&store, &a, entry.key()).await.expect("it was put");
        assert!(entry == ScanEntry::Item(whole), "{}", entry.key());
    }
}

pub(super) async fn keys_are_ordered_bytewise(store: Subject) {
    let a = namespace("a");
    let mut all = [
        "a",
        "B",
        "b",
        "ab",
        "a b",
        "a\u{1}b",
        "a-b",
        "a/b",
        "a0",
        "é",
        "e\u{301}",
        "z",
        "\u{FFFD}",
        "\u{10000}",
        "\u{7F}",
        "\u{80}",
        "~",
        "10",
        "9",
    ];
    put_all(&store, &a, &all).await;
    all.sort_unstable();
    assert_eq!(keys(&scan_all(&store, &a, ScanOptions::new()).await), all);
}

pub(super) async fn scan_of_absent_namespace_is_empty(store: Subject) {
    put_all(&store, &namespace("a/b"), &["k"]).await;
    for absent in ["a", "a/b/c", "b"] {
        for options in [ScanOptions::new(), ScanOptions::new().with_delimiter('/'), ScanOptions::new().with_values(true).with_limit(0)] {
            assert_eq!(scan(&store, &namespace(absent), options).await, Scan::default(), "{absent}");
        }
    }
}

pub(super) async fn scan_prefix_is_literal(store: Subject) {
    let a = namespace("a");
    let all = ["%", "%x", "*x", "A", "_x", "a", "a/", "a/b", "a0", "aa", "é", "éa", "\u{10FFFF}", "\u{10FFFF}x"];
    put_all(&store, &a, &all).await;
    for prefix in ["", "%", "_", "*", "a", "a/", "a/b", "aa", "aaa", "é", "\u{10FFFF}", "\u{10FFFF}x", "\u{10FFFF}\u{10FFFF}", "~"] {
        let expected: Vec<&str> = all.into_iter().filter(|key| key.starts_with(prefix)).collect();
        for limit in [1, 1_000] {
            let options = ScanOptions::new().with_prefix(prefix).with_limit(limit);
            assert_eq!(keys(&scan_all(&store, &a, options).await), expected, "prefix {prefix:?}");
        }
    }
}

pub(super) async fn scan_pages_add_up_to_whole(store: Subject) {
    let a = namespace("a");
    let all: Vec<String> = (0..25).map(|number| format!("k{number:02}")).collect();
    put_all(&store, &a, &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for limit in [1, 2, 5, 7, 24, 25, 26, usize::MAX] {
        for with_values in [false, true] {
            let entries = scan_all(&store, &a, ScanOptions::new().with_limit(limit).with_values(with_values)).await;
            assert_eq!(keys(&entries), all, "limit {limit}");
        }
    }
}

pub(super) async fn scan_may_start_after_absent_key(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["d/a", "d/c", "e"]).await;
    for (prefix, start_after, expected) in [
        ("", "", &["d/a", "d/c", "e"][..]),
        ("", "d/a", &["d/c", "e"]),
        ("", "d/b", &["d/c", "e"]),
        ("", "d/a\u{1}", &["d/c", "e"]),
        ("", "e", &[]),
        ("", "z", &[]),
        ("d/", "a", &["d/a", "d/c"]),
        ("d/", "d/b", &["d/c"]),
        ("d/", "d/z", &[]),
        ("d/", "z", &[]),
    ] {
        let options = ScanOptions::new().with_prefix(prefix).with_start_after(start_after);
        assert_eq!(keys(&scan(&store, &a, options).await.entries), expected, "{prefix:?} after {start_after:?}");
    }
}

pub(super) async fn last_scan_page_has_no_cursor(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["a", "b", "c/d"]).await;
    put_all(&store, &namespace("a/b"), &["z"]).await;
    for (options, next) in [
        (ScanOptions::new().with_limit(2), Some("b")),
        (ScanOptions::new().with_limit(3), None),
        (ScanOptions::new().with_limit(3).with_delimiter('/'), None),
        (ScanOptions::new().with_limit(1).with_prefix("c"), None),
        (ScanOptions::new().with_limit(1).with_prefix("a"), None),
        (ScanOptions::new().with_limit(2).with_delimiter('/'), Some("b")),
    ] {
        assert_eq!(scan(&store, &a, options.clone()).await.next.as_deref(), next, "{options:?}");
    }
}

pub(super) async fn scan_with_limit_zero_reports_whether_there_is_more(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["a", "b"]).await;
    let none = ScanOptions::new().with_limit(0);
    assert_eq!(scan(&store, &a, none.clone()).await, Scan::new(Vec::new(), Some(String::new())));
    assert_eq!(scan(&store, &a, none.clone().with_start_after("a")).await, Scan::new(Vec::new(), Some("a".to_owned())));
    assert_eq!(scan(&store, &a, none.with_start_after("b")).await, Scan::default());
}

pub(super) async fn scan_page_is_bounded_by_size_of_bodies(store: Subject) {
    let a = namespace("a");
    let batch = Batch::new().put(&a, "a", noise(100)).put(&a, "b", noise(100)).put(&a, "c", noise(5_000)).put(&a, "d", noise(1));
    commit(&store, batch).await;
    for (bytes_max, pages) in [
        (0, &[&["a"][..], &["b"], &["c"], &["d"]][..]),
        (100, &[&["a"], &["b"], &["c"], &["d"]]),
        (101, &[&["a", "b"], &["c"], &["d"]]),
        (201, &[&["a", "b", "c"], &["d"]]),
        (1_000_000, &[&["a", "b", "c", "d"]]),
    ] {
        let mut options = ScanOptions::new().with_values(true).with_bytes_max(bytes_max);
        for (index, page) in pages.iter().enumerate() {
            let found = scan(&store, &a, options.clone()).await;
            assert_eq!(keys(&found.entries), *page, "{bytes_max} bytes, page {index}");
            assert_eq!(found.next.is_some(), index + 1 < pages.len(), "{bytes_max} bytes, page {index}");
            options = options.with_start_after(found.next.unwrap_or_default());
        }
    }
    let without_values = scan(&store, &a, ScanOptions::new().with_bytes_max(0)).await;
    assert_eq!(without_values.entries.len(), 4);
}

pub(super) async fn scan_omits_only_bodies_without_requested_text(store: Subject) {
    let a = namespace("a");
    let text = b"\xffsought'\\%_\n";
    // Sizes around the threshold from which engines check bodies, and around those at which they store bodies separately.
    for (number, size) in [0, 1, 13, 1_000, 1_023, 1_024, 1_025, 8_191, 8_192, 8_193, 20_000, 200_000].into_iter().enumerate() {
        let plain = vec![b'.'; size];
        let with = |at: usize, part: &[u8]| {
            let mut body = plain.clone();
            body.splice(at..at, part.iter().copied());
            body
        };
        let long = "k".repeat(1_600);
        let batch = Batch::new()
            .put(&a, format!("{number}/end"), with(size, text))
            .put(&a, format!("{number}/{long}"), plain.clone())
            .put(&a, format!("{number}/middle"), with(size / 2, text))
            .put_with_meta(&a, format!("{number}/none"), "meta", plain.clone())
            .put(&a, format!("{number}/nul"), with(size.min(8_191), b"\0"))
            .put(&a, format!("{number}/nul behind"), with(size, b"\0"))
            .put(&a, format!("{number}/part"), with(size, &text[..text.len() - 1]))
            .put(&a, format!("{number}/start"), with(0, text));
        commit(&store, batch).await;
    }
    for options in [
        ScanOptions::new(),
        ScanOptions::new().with_limit(7),
        ScanOptions::new().with_bytes_max(30_000),
        ScanOptions::new().with_bytes_max(0),
        ScanOptions::new().with_prefix("10/"),
        ScanOptions::new().with_delimiter('/'),
    ] {
        let mut options = options.with_values(true);
        loop {
            let whole = scan(&store, &a, options.clone()).await;
            let page = store.scan_holding(&a, options.clone(), &Bytes::from_static(text)).await.expect("a page");
            assert_eq!((page.next.as_ref(), page.entries.len()), (whole.next.as_ref(), whole.entries.len()), "{options:?}");
            for (entry, whole) in page.entries.into_iter().zip(whole.entries) {
                let ScanEntry::LeftOut { item, value_bytes } = entry else {
                    assert!(entry == whole, "{}", whole.key());
                    continue;
                };
                let ScanEntry::Item(whole) = whole else { panic!("{} is a group", whole.key()) };
                let is_of_use = whole.value.windows(text.len()).any(|part| part == text) || is_binary(&whole.value);
                assert!(!is_of_use, "{}", whole.key);
                assert_eq!((value_bytes, &item), (whole.value.len() as u64, &whole.with_value("")));
            }
            let Some(next) = whole.next else { break };
            options = options.with_start_after(next);
        }
    }
    // Without bodies there is nothing to omit.
    let keys_only = store.scan_holding(&a, ScanOptions::new(), &Bytes::from_static(text)).await.expect("a page");
    assert_eq!(keys_only, scan(&store, &a, ScanOptions::new()).await);
}

/// Returns the rows from one key up to another.
fn listed(rows: &dyn RowsSnapshot, start: &str, end: Option<&str>) -> Vec<(String, Bytes, Bytes)> {
    let owned = |row: SnapshotRow<'_>| (row.key().to_owned(), Bytes::copy_from_slice(row.meta()), row.value().clone());
    rows.range(start, end).map(owned).collect()
}

pub(super) async fn snapshot_rows_equal_scanned_rows(store: Subject) {
    let (a, other) = (namespace("a"), namespace("a/b"));
    let batch = Batch::new().put_with_meta(&a, "b", "meta", "body").put(&a, "c", "").put(&a, "a/x", "nul\0").put(&a, "a", noise(9_000));
    commit(&store, batch.put(&other, "b0", "")).await;
    commit(&store, put_for(&a, "bb", Duration::ZERO)).await;
    let Some(rows) = store.snapshot_rows(&a).await.expect("an answer") else { return };
    let whole = scan_all(&store, &a, ScanOptions::new().with_values(true)).await;
    let expected: Vec<_> = whole
        .into_iter()
        .map(|entry| match entry {
            ScanEntry::Item(item) => (item.key, item.meta, item.value),
            other => panic!("{} is no row", other.key()),
        })
        .collect();
    for (start, end) in [
        ("", None),
        ("", Some("")),
        ("a", Some("a")),
        ("a", Some("b")),
        ("a\0", None),
        ("b", Some("a")),
        ("bb", Some("c")),
        ("c", None),
        ("d", None),
    ] {
        let within = expected.iter().filter(|(key, ..)| **key >= *start && end.is_none_or(|end| **key < *end));
        assert_eq!(listed(&*rows, start, end), within.cloned().collect::<Vec<_>>(), "from {start:?} to {end:?}");
    }
    for key in ["a", "a/", "a/x", "b", "b0", "bb", "c", ""] {
        let row = rows.get(key).map(|row| (row.key().to_owned(), row.value().clone(), row.is_binary()));
        let item = get(&store, &a, key).await.map(|item| (item.key, item.value.clone(), is_binary(&item.value)));
        assert_eq!(row, item, "{key:?}");
    }
    // They are a snapshot of the moment when the snapshot was taken.
    commit(&store, Batch::new().delete(&a, "b").put(&a, "d", "new").put(&a, "c", "nul\0")).await;
    assert_eq!(listed(&*rows, "", None), expected);
    assert!(!rows.get("c").expect("it existed").is_binary());
    let now = store.snapshot_rows(&a).await.expect("an answer").expect("the engine offered a snapshot before");
    assert!(now.get("c").expect("it exists").is_binary() && now.get("b").is_none());
    let none = store.snapshot_rows(&namespace("b")).await.expect("an answer").expect("the engine offered a snapshot before");
    assert!(listed(&*none, "", None).is_empty());
}

pub(super) async fn scan_delimiter_groups_keys(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["a", "b/x", "b/y/z", "b0", "c/x", "d"]).await;
    let page = scan(&store, &a, ScanOptions::new().with_delimiter('/').with_values(true)).await;
    assert_eq!(keys(&page.entries), ["a", "b/", "b0", "c/", "d"]);
    assert_eq!(page.entries[1], ScanEntry::Group { name: "b/".to_owned(), item: None });
    assert!(matches!(&page.entries[2], ScanEntry::Item(item) if item.value == "body of b0"));
    for (delimiter, expected) in
        [('\u{1}', &["a\u{1}", "b"][..]), ('é', &["a\u{1}x", "a\u{1}é", "b"]), ('\u{10FFFF}', &["a\u{1}x", "a\u{1}éz", "b"])]
    {
        let b = namespace(&format!("other/{}", u32::from(delimiter)));
        put_all(&store, &b, &["a\u{1}x", "a\u{1}éz", "b"]).await;
        let entries = scan_all(&store, &b, ScanOptions::new().with_delimiter(delimiter)).await;
        assert_eq!(keys(&entries), expected, "delimiter {delimiter:?}");
    }
}

pub(super) async fn scan_group_carries_row_of_its_name(store: Subject) {
    let a = namespace("a");
    commit(&store, Batch::new().put_with_meta(&a, "d/", "meta", "body").put(&a, "d/x", "").put_with_meta(&a, "e/", "meta", "body")).await;
    let page = scan(&store, &a, ScanOptions::new().with_delimiter('/').with_values(true)).await;
    for (entry, name) in page.entries.iter().zip(["d/", "e/"]) {
        let whole = get(&store, &a, name).await.expect("it was put");
        let item = whole.with_value("");
        assert_eq!(*entry, ScanEntry::Group { name: name.to_owned(), item: Some(item) });
    }
    assert_eq!(page.entries.len(), 2);
}

pub(super) async fn scan_cursor_skips_its_group(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["a", "d/", "d/x", "d/y", "d0", "e/x"]).await;
    let grouped = ScanOptions::new().with_delimiter('/');
    for (start_after, expected) in [
        ("a", &["d/", "d0", "e/"][..]),
        ("d", &["d/", "d0", "e/"]),
        ("d/", &["d0", "e/"]),
        ("d/x", &["d0", "e/"]),
        ("d/zzz/z", &["d0", "e/"]),
        ("d0", &["e/"]),
        ("e/", &[]),
    ] {
        let page = scan(&store, &a, grouped.clone().with_start_after(start_after)).await;
        assert_eq!(keys(&page.entries), expected, "after {start_after:?}");
    }
    // Without a delimiter, the name of a group is a key like any other.
    assert_eq!(keys(&scan(&store, &a, ScanOptions::new().with_start_after("d/")).await.entries), ["d/x", "d/y", "d0", "e/x"]);
}

pub(super) async fn scan_delimiter_applies_after_prefix(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["d/", "d/x", "d/y/", "d/y/z", "d/y0", "e"]).await;
    for (prefix, expected) in
        [("d/", &["d/", "d/x", "d/y/", "d/y0"][..]), ("d/y", &["d/y/", "d/y0"]), ("d", &["d/"]), ("d/y/", &["d/y/", "d/y/z"])]
    {
        for limit in [1, 100] {
            let options = ScanOptions::new().with_prefix(prefix).with_delimiter('/').with_limit(limit);
            assert_eq!(keys(&scan_all(&store, &a, options).await), expected, "prefix {prefix:?}");
        }
    }
}

pub(super) async fn scan_pages_of_groups_add_up_to_whole(store: Subject) {
    let a = namespace("a");
    let mut all = Vec::new();
    let mut expected = Vec::new();
    for number in 0..20 {
        expected.push(if number % 3 == 0 { format!("{number:02}") } else { format!("{number:02}/") });
        all.extend(if number % 3 == 0 {
            vec![format!("{number:02}")]
        } else {
            (0..number).map(|inner| format!("{number:02}/{inner}")).collect()
        });
    }
    put_all(&store, &a, &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for limit in [1, 2, 3, 19, 20, 21] {
        let entries = scan_all(&store, &a, ScanOptions::new().with_delimiter('/').with_limit(limit)).await;
        assert_eq!(keys(&entries), expected, "limit {limit}");
    }
}

pub(super) async fn long_scans_page_like_short_ones(store: Subject) {
    let a = namespace("a");
    let key = |number: usize| if number.is_multiple_of(10) { format!("{number:04}/x") } else { format!("{number:04}") };
    let batch = (0..1_500).fold(Batch::new(), |batch, number| batch.put(&a, key(number), ""));
    commit(&store, batch).await;
    for limit in [90, 100, 101, 600, 1_500, 5_000] {
        let entries = scan_all(&store, &a, ScanOptions::new().with_limit(limit)).await;
        assert!(entries.iter().enumerate().all(|(number, entry)| entry.key() == key(number)) && entries.len() == 1_500, "limit {limit}");
        let entries = scan_all(&store, &a, ScanOptions::new().with_limit(limit).with_delimiter('/')).await;
        assert!(entries.iter().enumerate().all(|(number, entry)| entry.key() == key(number).trim_end_matches('x')), "limit {limit}");
        assert_eq!(entries.len(), 1_500, "limit {limit}");
    }
}

const NAMESPACES: [&str; 11] = ["a", "a//-", "a//b", "a//b/c", "a/-", "a/b", "a/b/c", "a/bc", "a%2Fb", "ab", "b"];

async fn put_namespaces(store: &Subject) -> Vec<Namespace> {
    let mut all: Vec<Namespace> = NAMESPACES.iter().map(|text| parsed(text)).collect();
    for namespace in &all {
        put_all(store, namespace, &["k", "l"]).await;
    }
    all.sort();
    all
}

pub(super) async fn namespaces_are_listed_in_order(store: Subject) {
    let all = put_namespaces(&store).await;
    let page = store.namespaces(NamespacesOptions::new()).await.expect("a page");
    assert_eq!((page.namespaces, page.more), (all, false));
}

pub(super) async fn namespaces_beneath_prefix_are_listed(store: Subject) {
    let all = put_namespaces(&store).await;
    for beneath in ["a", "a//b", "a/b", "a/b/c", "b", "c", "a/b/c/d"].map(parsed) {
        let expected: Vec<Namespace> = all.iter().filter(|namespace| namespace.starts_with(&beneath)).cloned().collect();
        let page = store.namespaces(NamespacesOptions::new().with_beneath(beneath.clone())).await.expect("a page");
        assert_eq!((page.namespaces, page.more), (expected, false), "beneath {beneath}");
    }
}

pub(super) async fn namespace_pages_add_up_to_whole(store: Subject) {
    let all = put_namespaces(&store).await;
    let chosen = |is_chosen: &dyn Fn(&Namespace) -> bool| all.iter().filter(|namespace| is_chosen(namespace)).cloned().collect();
    let of_tenant = |tenant: &str| chosen(&|namespace| namespace.components().next().is_some_and(|first| first == tenant));
    let beneath = |above: &str| chosen(&|other| other.starts_with(&parsed(above)));
    let listings: [(NamespacesOptions, Vec<Namespace>); 7] = [
        (NamespacesOptions::new(), all.clone()),
        (NamespacesOptions::new().with_beneath(parsed("a")), beneath("a")),
        (NamespacesOptions::new().with_beneath(parsed("a/b")), beneath("a/b")),
        (NamespacesOptions::new().with_tenant("a"), of_tenant("a")),
        (NamespacesOptions::new().with_tenant("a/b"), of_tenant("a/b")),
        (NamespacesOptions::new().with_tenant("a").with_beneath(parsed("a//b")), beneath("a//b")),
        (NamespacesOptions::new().with_tenant("b").with_beneath(parsed("a/b")), Vec::new()),
    ];
    for (listing, expected) in &listings {
        for limit in 1..=all.len() {
            let mut options = listing.clone().with_limit(limit);
            let mut found = Vec::new();
            loop {
                let page = store.namespaces(options.clone()).await.expect("a page");
                assert!(page.namespaces.len() <= limit);
                found.extend(page.namespaces);
                if !page.more {
                    break;
                }
                options = options.with_start_after(found.last().expect("a page that has more is not empty").clone());
            }
            assert_eq!(&found, expected, "{listing:?}, limit {limit}");
        }
    }
    let before = NamespacesOptions::new().with_beneath(parsed("b")).with_start_after(parsed("a"));
    assert_eq!(store.namespaces(before).await.expect("a page").namespaces, [parsed("b")]);
    let none = store.namespaces(NamespacesOptions::new().with_limit(0)).await.expect("a page");
    assert_eq!((none.namespaces, none.more), (Vec::new(), true));
}

pub(super) async fn namespace_disappears_with_its_last_item(store: Subject) {
    let all = put_namespaces(&store).await;
    for batch in
        [Batch::new().delete(&all[0], "k"), Batch::new().delete(&all[1], "k").delete(&all[1], "l"), Batch::new().delete_prefix(&all[2], "")]
    {
        commit(&store, batch).await;
    }
    let page = store.namespaces(NamespacesOptions::new()).await.expect("a page");
    assert_eq!(page.namespaces, [&all[..1], &all[3..]].concat());
}
