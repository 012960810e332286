//! Large bodies, read by range: an engine may store them in pieces, without any visible difference.

use super::*;

/// Lengths at which engines and the program split bodies, in bytes.
const BORDERS: [usize; 5] = [6_400, 65_536, 1 << 20, 2 << 20, 4 << 20];

/// Returns a length that the store accepts.
fn accepted(store: &Subject, size: usize) -> usize {
    store.capabilities().value_bytes_max.map_or(size, |max| size.min(max as usize))
}

/// Returns the part of an item that must exist.
async fn part(store: &Subject, namespace: &Namespace, range: std::ops::Range<u64>) -> ItemPart {
    let part = store.get_part(namespace, "k", range.clone()).await.unwrap_or_else(|error| panic!("{range:?}: {error:?}"));
    part.unwrap_or_else(|| panic!("{range:?}: it was put"))
}

async fn is_sound(store: &Subject) {
    let found = store.check().await.expect("checked");
    assert!(found.is_empty(), "{found:?}");
}

pub(super) async fn parts_of_large_body_are_exact_at_every_border(store: Subject) {
    let a = namespace("a");
    let body = noise(accepted(&store, (8 << 20) + 5));
    let size = body.len() as u64;
    commit(&store, Batch::new().put(&a, "k", body.clone())).await;
    let at_border = |border: usize| {
        let (border, length) = (border as u64, 3 * border as u64);
        // On a border, one byte before it, across it, and from within one piece to within a later one.
        [(border, border), (border, border + 1), (border - 1, border), (border - 1, border + 1), (border - 3, border + length + 3)]
    };
    let ends = [(0, 1), (size - 1, size), (size - 1, size + 9), (size, size + 1), (size + 1, u64::MAX), (u64::MAX, u64::MAX), (0, 0)];
    for (start, end) in BORDERS.into_iter().flat_map(at_border).chain(ends) {
        let part = part(&store, &a, start..end).await;
        let (start, end) = (start.min(size), end.min(size));
        assert!(part.item.value == body.slice(start as usize..end as usize), "bytes {start} to {end} of {size}");
        assert_eq!(part.value_bytes, size, "bytes {start} to {end}");
    }
    // All parts together are the body.
    let mut whole = Vec::new();
    while (whole.len() as u64) < size {
        let start = whole.len() as u64;
        whole.extend_from_slice(&part(&store, &a, start..start + 1_500_000).await.item.value);
    }
    assert!(whole == body, "the parts are not the body");
}

pub(super) async fn bodies_around_each_border_replace_each_other(store: Subject) {
    let a = namespace("a");
    let around = |border: usize| [border - 1, border, border + 1];
    let sizes = [1 << 20, 2 << 20, 4 << 20].into_iter().flat_map(around);
    // Each is followed by one that is much shorter, much longer or empty.
    let sizes = sizes.flat_map(|size| [size, 0, size, 10]).chain([(3 << 20) + 7, (2 << 20) + 7, (3 << 20) + 8]);
    for size in sizes {
        let body = noise(accepted(&store, size));
        let end = body.len() as u64;
        let version = commit(&store, Batch::new().put(&a, "k", body.clone())).await[0];
        assert!(value(&store, &a, "k").await.as_ref() == Some(&body), "a body of {size} bytes");
        let last = part(&store, &a, end.saturating_sub(2)..end).await;
        assert!(last.item.value == body.slice(body.len().saturating_sub(2)..), "the end of {size} bytes");
        assert_eq!((last.item.version, last.value_bytes), (version, end));
    }
    is_sound(&store).await;
}

pub(super) async fn version_of_part_is_refused_after_change(store: Subject) {
    let a = namespace("a");
    let size = accepted(&store, 5 << 20);
    let restored = Item::new("k", Bytes::new(), noise(size - 2), Version::new(1_000_000), Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
    for change in [Batch::new().put(&a, "k", noise(size - 1)), Batch::new().restore(&a, restored)] {
        commit(&store, Batch::new().put(&a, "k", noise(size))).await;
        let first = part(&store, &a, 0..1_000).await;
        commit(&store, change).await;
        let second = part(&store, &a, 1_000..2_000).await;
        assert_ne!((first.item.version, first.value_bytes), (second.item.version, second.value_bytes));
        let append = Batch::new().expect(&a, "k", Condition::Version(first.item.version)).put(&a, "k", "of what was read");
        let error = refused(&store, append, ErrorKind::Conflict).await;
        assert_eq!(error.current_version(), Some(second.item.version));
        // A touch changes the end of an item and not its content.
        commit(&store, Batch::new().touch(&a, "k", Some(Duration::from_secs(3_600)))).await;
        assert_eq!(part(&store, &a, 0..10).await.item.version, second.item.version);
    }
}

pub(super) async fn large_body_that_ends_between_parts_is_absent(store: Subject) {
    let a = namespace("a");
    let body = noise(accepted(&store, (4 << 20) + 1));
    for end in [Batch::new().delete(&a, "k"), Batch::new().delete_prefix(&a, ""), Batch::new().touch(&a, "k", Some(Duration::ZERO))] {
        commit(&store, Batch::new().put(&a, "k", body.clone())).await;
        assert!(part(&store, &a, 0..9).await.item.value == body.slice(0..9));
        commit(&store, end.clone()).await;
        for range in [0..9, 0..u64::MAX, (4 << 20)..(4 << 20) + 1, 9..9] {
            assert_eq!(store.get_part(&a, "k", range.clone()).await.expect("a read"), None, "{range:?} after {end:?}");
        }
        assert_eq!(value(&store, &a, "k").await, None);
    }
    sweep(&store, 10, 1).await;
    is_sound(&store).await;
}

pub(super) async fn large_bodies_are_removed_with_their_items(store: Subject) {
    let a = namespace("a");
    let body = noise(accepted(&store, (2 << 20) + 3));
    let all = |batch: Batch| ["a", "b/1", "b/2", "c", "d"].iter().fold(batch, |batch, key| batch.put(&a, *key, body.clone()));
    commit(&store, all(Batch::new())).await;
    refused(&store, Batch::new().expect(&a, "a", Condition::Absent).put(&a, "a", "x").delete(&a, "c"), ErrorKind::Conflict).await;
    assert!(value(&store, &a, "a").await.as_ref() == Some(&body), "the batch was refused");
    // Within one batch, each write sees those before it.
    let batch =
        all(Batch::new().delete_prefix(&a, "")).delete_prefix(&a, "b/").delete(&a, "c").put(&a, "a", "short").put(&a, "c", body.clone());
    commit(&store, batch.touch(&a, "d", Some(Duration::ZERO))).await;
    is_sound(&store).await;
    sweep(&store, usize::MAX, 1).await;
    let items = scan_all(&store, &a, ScanOptions::new().with_values(true)).await;
    assert_eq!(keys(&items), ["a", "c"]);
    let found = store.get_many(&a, &["c", "a", "b/1", "d"], true).await.expect("a read");
    let found: Vec<Option<usize>> = found.into_iter().map(|item| Some(item?.value.len())).collect();
    assert_eq!(found, [Some(body.len()), Some(5), None, None]);
    is_sound(&store).await;
    commit(&store, Batch::new().delete_prefix(&a, "")).await;
    assert_eq!(store.stats().await.expect("counted").value_bytes, 0);
    is_sound(&store).await;
}
