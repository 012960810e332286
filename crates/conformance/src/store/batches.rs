//! Batches: conditions, order, versions, atomicity.

use super::*;

pub(super) async fn commit_is_all_or_nothing(store: Subject) {
    let (a, b) = (namespace("a"), namespace("b"));
    put_all(&store, &a, &["kept"]).await;
    let before = store.current_version(&a.partition()).await.expect("a version");
    let batch = Batch::new()
        .expect(&a, "kept", Condition::Exists)
        .expect(&a, "missing", Condition::Exists)
        .put(&a, "new", "v")
        .put(&b, "new", "v")
        .delete(&a, "kept")
        .delete_prefix(&a, "");
    refused(&store, batch, ErrorKind::Conflict).await;
    assert_eq!(keys(&scan_all(&store, &a, ScanOptions::new()).await), ["kept"]);
    assert!(scan_all(&store, &b, ScanOptions::new()).await.is_empty());
    assert_eq!(store.current_version(&a.partition()).await.expect("a version"), before);
}

pub(super) async fn batch_may_span_namespaces(store: Subject) {
    let (a, b) = (namespace("a"), namespace("a/b"));
    put_all(&store, &a, &["old"]).await;
    let batch = Batch::new().expect(&a, "old", Condition::Exists).put(&b, "new", "v").delete(&a, "old");
    commit(&store, batch).await;
    assert_eq!(get(&store, &a, "old").await, None);
    assert_eq!(value(&store, &b, "new").await.expect("it was put"), "v");
}

/// Otherwise code that is written on an engine in one file would fail on one that spreads partitions over nodes.
pub(super) async fn batch_over_two_partitions_is_unsupported(store: Subject) {
    let here = namespace("a");
    put_all(&store, &here, &["old"]).await;
    let item = get(&store, &here, "old").await.expect("it was put");
    // Another user, the tenant itself, the same name in the partition of the tenant, and another tenant.
    for there in ["acme/bob/a", "acme", "acme//ada/a", "other/ada/a"].map(parsed) {
        let time_to_live = Some(Duration::from_secs(60));
        let parts = |space: &Namespace| {
            [
                Batch::new().expect(space, "k", Condition::Absent),
                Batch::new().expect(space, "k", Condition::NoneBeneath),
                Batch::new().put(space, "new", "v"),
                Batch::new().append(space, "v", None),
                Batch::new().restore(space, item.clone()),
                Batch::new().touch(space, "old", time_to_live),
                Batch::new().delete(space, "old"),
                Batch::new().delete_prefix(space, ""),
            ]
        };
        for one in parts(&here) {
            for other in parts(&there) {
                let mut batch = one.clone();
                batch.preconditions.extend(other.preconditions);
                batch.writes.extend(other.writes);
                let error = refused(&store, batch, ErrorKind::Unsupported).await;
                let names_both = [&here, &there].iter().all(|space| error.message().contains(&format!("`{space}`")));
                assert!(names_both && error.message().contains("one batch for each"), "{error}");
            }
        }
        assert_eq!(keys(&scan_all(&store, &there, ScanOptions::new()).await), [""; 0], "{there}");
    }
    assert_eq!(keys(&scan_all(&store, &here, ScanOptions::new()).await), ["old"]);
    assert_eq!(get(&store, &here, "old").await, Some(item));
}

pub(super) async fn batch_with_invalid_argument_writes_nothing(store: Subject) {
    let a = namespace("a");
    refused(&store, Batch::new().put(&a, "first", "v").put(&a, "", "v"), ErrorKind::InvalidArgument).await;
    assert_eq!(get(&store, &a, "first").await, None);
}

pub(super) async fn writes_take_effect_in_order(store: Subject) {
    let a = namespace("a");
    let versions = commit(&store, Batch::new().put(&a, "k", "1").put(&a, "k", "2")).await;
    let item = get(&store, &a, "k").await.expect("it was put");
    assert_eq!((&item.value[..], item.version), (&b"2"[..], versions[1]));
    commit(&store, Batch::new().put(&a, "k", "3").delete(&a, "k")).await;
    assert_eq!(get(&store, &a, "k").await, None);
    commit(&store, Batch::new().delete(&a, "k").put(&a, "k", "4")).await;
    assert_eq!(value(&store, &a, "k").await.expect("it was put"), "4");
    commit(&store, Batch::new().put(&a, "d/x", "x").delete_prefix(&a, "d/").put(&a, "d/y", "y")).await;
    assert_eq!(keys(&scan_all(&store, &a, ScanOptions::new()).await), ["d/y", "k"]);
    assert_eq!(value(&store, &a, "d/y").await.expect("it was put"), "y");
}

pub(super) async fn conditions_apply_to_state_before_batch(store: Subject) {
    let a = namespace("a");
    let batch = Batch::new().expect(&a, "k", Condition::Absent).put(&a, "k", "v");
    commit(&store, batch.clone()).await;
    refused(&store, batch, ErrorKind::Conflict).await;
    let batch = Batch::new().delete(&a, "k").expect(&a, "k", Condition::Absent);
    refused(&store, batch, ErrorKind::Conflict).await;
}

pub(super) async fn absent_holds_only_without_item(store: Subject) {
    let (a, b) = (namespace("a"), namespace("b"));
    put_all(&store, &a, &["k"]).await;
    refused(&store, Batch::new().expect(&a, "k", Condition::Absent).put(&a, "k", "v"), ErrorKind::Conflict).await;
    commit(&store, Batch::new().expect(&a, "kk", Condition::Absent).expect(&b, "k", Condition::Absent).put(&a, "other", "v")).await;
}

pub(super) async fn exists_holds_only_with_item(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["k"]).await;
    commit(&store, Batch::new().expect(&a, "k", Condition::Exists).put(&a, "k", "v")).await;
    refused(&store, Batch::new().expect(&a, "absent", Condition::Exists).put(&a, "k", "w"), ErrorKind::Conflict).await;
}

pub(super) async fn version_holds_only_for_that_version(store: Subject) {
    let a = namespace("a");
    let first = commit(&store, Batch::new().put(&a, "k", "1")).await[0];
    let second = commit(&store, Batch::new().expect(&a, "k", Condition::Version(first)).put(&a, "k", "2")).await[0];
    for stale in [first, Version::new(second.number() + 1), Version::new(0), Version::new(u64::MAX)] {
        refused(&store, Batch::new().expect(&a, "k", Condition::Version(stale)).put(&a, "k", "3"), ErrorKind::Conflict).await;
    }
    refused(&store, Batch::new().expect(&a, "absent", Condition::Version(second)).put(&a, "k", "3"), ErrorKind::Conflict).await;
    assert_eq!(value(&store, &a, "k").await.expect("it was put"), "2");
}

pub(super) async fn none_beneath_ignores_key_itself(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["d/", "d0", "e"]).await;
    commit(&store, Batch::new().expect(&a, "d/", Condition::NoneBeneath).put(&a, "z", "v")).await;
    put_all(&store, &a, &["d/x"]).await;
    refused(&store, Batch::new().expect(&a, "d/", Condition::NoneBeneath).delete(&a, "z"), ErrorKind::Conflict).await;
    refused(&store, Batch::new().expect(&a, "", Condition::NoneBeneath).delete(&a, "z"), ErrorKind::Conflict).await;
    commit(&store, Batch::new().expect(&namespace("b"), "", Condition::NoneBeneath).delete(&a, "z")).await;
}

pub(super) async fn none_beneath_since_ignores_older_items(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["d/x", "d/y"]).await;
    let since = store.current_version(&a.partition()).await.expect("a version");
    let condition = Condition::NoneBeneathSince(since);
    put_all(&store, &a, &["d/", "e"]).await;
    commit(&store, Batch::new().delete(&a, "d/x").expect(&a, "d/", condition.clone())).await;
    put_all(&store, &a, &["d/y"]).await;
    refused(&store, Batch::new().delete_prefix(&a, "d/").expect(&a, "d/", condition), ErrorKind::Conflict).await;
    let never = Condition::NoneBeneathSince(Version::new(u64::MAX));
    commit(&store, Batch::new().delete_prefix(&a, "d/").expect(&a, "d/", never)).await;
}

pub(super) async fn conflict_names_failed_condition_and_current_version(store: Subject) {
    let a = namespace("a");
    let version = commit(&store, Batch::new().put(&a, "d/k", "v")).await[0];
    for (key, condition, met) in [
        ("d/k", Condition::Absent, Some(version)),
        ("d/k", Condition::Version(Version::new(0)), Some(version)),
        ("absent", Condition::Version(version), None),
        ("absent", Condition::Exists, None),
        ("d/", Condition::NoneBeneath, Some(version)),
        ("d/", Condition::NoneBeneathSince(Version::new(0)), Some(version)),
    ] {
        let batch = Batch::new().expect(&a, "d/k", Condition::Exists).expect(&a, key, condition.clone()).put(&a, "x", "v");
        let error = refused(&store, batch, ErrorKind::Conflict).await;
        assert_eq!((error.change(), error.applied(), error.current_version()), (Some(1), 0, met), "{condition:?}");
        assert!(error.message().contains(key), "{error:?}");
    }
}

pub(super) async fn batch_without_writes_only_checks_conditions(store: Subject) {
    let a = namespace("a");
    put_all(&store, &a, &["k"]).await;
    let before = store.current_version(&a.partition()).await.expect("a version");
    assert_eq!(commit(&store, Batch::new().expect(&a, "k", Condition::Exists)).await, []);
    assert_eq!(commit(&store, Batch::new()).await, []);
    refused(&store, Batch::new().expect(&a, "k", Condition::Absent), ErrorKind::Conflict).await;
    assert_eq!(store.current_version(&a.partition()).await.expect("a version"), before);
}

pub(super) async fn versions_of_batch_are_distinct_and_newer(store: Subject) {
    let (a, b) = (namespace("a"), namespace("b"));
    let mut newest = Version::new(0);
    for _ in 0..3 {
        let batch = Batch::new().put(&a, "x", "1").put(&b, "x", "2").delete(&a, "x").put(&a, "y", "3").put(&a, "x", "4");
        let versions = commit(&store, batch).await;
        assert_eq!(versions.len(), 4);
        for version in versions {
            assert!(version > newest, "{version:?} after {newest:?}");
            newest = version;
        }
        assert_eq!(store.current_version(&a.partition()).await.expect("a version"), newest);
    }
}

pub(super) async fn versions_are_never_reused(store: Subject) {
    let a = namespace("a");
    let mut seen = Vec::new();
    for delete in [Batch::new().delete(&a, "k"), Batch::new().delete_prefix(&a, ""), Batch::new()] {
        seen.extend(commit(&store, Batch::new().put(&a, "k", "same")).await);
        commit(&store, delete).await;
        store.sweep(10).await.expect("a sweep");
    }
    seen.extend(commit(&store, Batch::new().put(&a, "k", "same")).await);
    assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
}

pub(super) async fn item_has_version_of_its_put(store: Subject) {
    let (a, b) = (namespace("a"), namespace("b"));
    let versions = commit(&store, Batch::new().put(&a, "x", "").put(&b, "x", "").put(&a, "y", "")).await;
    assert_eq!(get(&store, &a, "x").await.map(|item| item.version), Some(versions[0]));
    assert_eq!(get(&store, &b, "x").await.map(|item| item.version), Some(versions[1]));
    let many = store.get_many(&a, &["y"], false).await.expect("a read");
    assert_eq!(many[0].as_ref().map(|item| item.version), Some(versions[2]));
    let ScanEntry::Item(item) = &scan(&store, &a, ScanOptions::new()).await.entries[1] else { panic!("an item") };
    assert_eq!(item.version, versions[2]);
}

pub(super) async fn current_version_grows_with_every_change(store: Subject) {
    let a = namespace("a");
    let mut last = store.current_version(&a.partition()).await.expect("a version");
    for batch in [
        Batch::new().put(&a, "k", "1"),
        Batch::new().put(&a, "k", "1"),
        Batch::new().delete(&a, "k"),
        Batch::new().put(&a, "k", "1").put(&a, "l", "1"),
        Batch::new().delete_prefix(&a, "k"),
        Batch::new().put(&a, "m", "1").delete(&a, "l"),
        Batch::new().delete_prefix(&a, ""),
    ] {
        commit(&store, batch.clone()).await;
        let now = store.current_version(&a.partition()).await.expect("a version");
        assert!(now > last, "{now:?} after {last:?} and {batch:?}");
        last = now;
    }
}

pub(super) async fn delete_of_absent_item_succeeds(store: Subject) {
    let a = namespace("a");
    assert_eq!(commit(&store, Batch::new().delete(&a, "k").delete_prefix(&a, "k").delete_prefix(&a, "")).await, []);
    put_all(&store, &a, &["l"]).await;
    commit(&store, Batch::new().delete(&a, "k").delete_prefix(&a, "k").delete(&namespace("b"), "l")).await;
    assert_eq!(keys(&scan_all(&store, &a, ScanOptions::new()).await), ["l"]);
}

pub(super) async fn delete_prefix_is_literal(store: Subject) {
    let a = namespace("a");
    let all = ["%", "%x", "*x", "_x", "a", "a/", "a/b", "a/b/c", "a0", "aa", "\u{10FFFF}", "\u{10FFFF}x"];
    for prefix in ["%", "_", "*", "a", "a/", "a/b", "aa", "\u{10FFFF}", "absent", ""] {
        put_all(&store, &a, &all).await;
        commit(&store, Batch::new().delete_prefix(&a, prefix)).await;
        let left: Vec<&str> = all.into_iter().filter(|key| !key.starts_with(prefix)).collect();
        assert_eq!(keys(&scan_all(&store, &a, ScanOptions::new()).await), left, "prefix {prefix:?}");
    }
}

pub(super) async fn delete_prefix_with_empty_prefix_empties_one_namespace(store: Subject) {
    let all = ["a", "a/b", "ab"].map(namespace);
    for namespace in &all {
        put_all(&store, namespace, &["k", "l"]).await;
    }
    commit(&store, Batch::new().delete_prefix(&all[0], "")).await;
    assert!(scan_all(&store, &all[0], ScanOptions::new()).await.is_empty());
    assert_eq!(scan_all(&store, &all[1], ScanOptions::new()).await.len(), 2);
    assert_eq!(scan_all(&store, &all[2], ScanOptions::new()).await.len(), 2);
}

pub(super) async fn large_batch_is_atomic(store: Subject) {
    let a = namespace("a");
    let fill = |batch: Batch, text: &str| (0..2_000).fold(batch, |batch, number| batch.put(&a, format!("{number:04}"), text.to_owned()));
    let versions = commit(&store, fill(Batch::new(), "old")).await;
    assert_eq!(versions.len(), 2_000);
    assert!(versions.is_sorted_by(|one, next| one < next));
    refused(&store, fill(Batch::new().expect(&a, "absent", Condition::Exists), "new"), ErrorKind::Conflict).await;
    let entries = scan_all(&store, &a, ScanOptions::new().with_values(true)).await;
    assert_eq!(entries.len(), 2_000);
    assert!(entries.iter().all(|entry| matches!(entry, ScanEntry::Item(item) if item.value == "old")));
}

pub(super) async fn large_range_delete_is_atomic(store: Subject) {
    let a = namespace("a");
    let batch = (0..3_000).fold(Batch::new(), |batch, number| batch.put(&a, format!("d/{number:04}"), "body"));
    commit(&store, batch).await;
    put_all(&store, &a, &["e"]).await;
    let delete = |batch: Batch| batch.delete_prefix(&a, "d/").put(&a, "done", "");
    refused(&store, delete(Batch::new().expect(&a, "done", Condition::Exists)), ErrorKind::Conflict).await;
    assert_eq!(scan_all(&store, &a, ScanOptions::new()).await.len(), 3_001);
    commit(&store, delete(Batch::new())).await;
    assert_eq!(keys(&scan_all(&store, &a, ScanOptions::new()).await), ["done", "e"]);
}
