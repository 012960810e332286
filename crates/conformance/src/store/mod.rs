//! The contract of [`Store`], one rule for each case.
//!
//! A case gets a fresh, empty store. Run the cases with [`store_conformance!`](crate::store_conformance), which creates one test
//! for each. No case waits for a clock: an item with a time to live of zero expires at once.

mod batches;
mod concurrency;
mod expiry;
mod items;
mod logs;
mod partitions;
mod parts;
mod reports;
mod restores;
mod scans;
mod watches;

use batches::*;
use concurrency::*;
use expiry::*;
use items::*;
use logs::*;
use partitions::*;
use parts::*;
use reports::*;
use restores::*;
use scans::*;
use watches::*;

use super::cases;
use bytes::Bytes;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind};
use treehold_core::ops::Version;
use treehold_store::{Batch, BatchWrite, Condition, Item, ItemPart, Namespace, Scan, ScanEntry, ScanOptions, Store, StoreExt};

/// The subject of a case.
type Subject = Arc<dyn Store>;

/// Sweeps, and requires how many rows that removes. A store that needs no sweeps removes none.
async fn sweep(store: &Subject, limit: usize, expected: usize) {
    let expected = if store.capabilities().sweeps { expected } else { 0 };
    assert_eq!(store.sweep(limit).await.expect("a sweep"), expected);
}

cases! { $
    /// Creates a module of tests, one for each case of the store contract: `store_conformance!(name, fresh)`, where `fresh` is an
    /// async function that returns a [`Fresh<dyn Store>`](crate::Fresh).
    store_conformance, store, dyn Store:
    // items
    get_of_absent_item_is_none,
    body_is_preserved_byte_for_byte,
    body_of_any_size_is_preserved,
    metadata_is_preserved_with_body,
    put_replaces_whole_item,
    put_keeps_creation_time,
    put_after_delete_renews_creation_time,
    put_can_set_creation_time,
    times_are_whole_microseconds,
    any_text_can_be_a_key,
    keys_and_namespaces_are_validated,
    body_over_limit_is_rejected,
    namespaces_match_whole,
    get_part_returns_requested_range,
    get_part_of_absent_item_is_none,
    parts_of_replaced_body_have_new_version,
    get_many_keeps_order_and_duplicates,
    get_many_without_values_reads_no_bodies,
    get_many_finds_all_of_many_keys,
    get_many_reads_large_bodies,
    // parts of large bodies
    parts_of_large_body_are_exact_at_every_border,
    bodies_around_each_border_replace_each_other,
    version_of_part_is_refused_after_change,
    large_body_that_ends_between_parts_is_absent,
    large_bodies_are_removed_with_their_items,
    // logs
    append_uses_its_version_as_key,
    rejected_batch_appends_nothing,
    append_expires,
    log_reader_misses_nothing,
    // batches
    commit_is_all_or_nothing,
    batch_may_span_namespaces,
    batch_over_two_partitions_is_unsupported,
    batch_with_invalid_argument_writes_nothing,
    writes_take_effect_in_order,
    conditions_apply_to_state_before_batch,
    absent_holds_only_without_item,
    exists_holds_only_with_item,
    version_holds_only_for_that_version,
    none_beneath_ignores_key_itself,
    none_beneath_since_ignores_older_items,
    conflict_names_failed_condition_and_current_version,
    batch_without_writes_only_checks_conditions,
    versions_of_batch_are_distinct_and_newer,
    versions_are_never_reused,
    item_has_version_of_its_put,
    current_version_grows_with_every_change,
    delete_of_absent_item_succeeds,
    delete_prefix_is_literal,
    delete_prefix_with_empty_prefix_empties_one_namespace,
    large_batch_is_atomic,
    large_range_delete_is_atomic,
    // partitions
    partitions_share_no_rows,
    conditions_see_only_their_partition,
    versions_grow_within_each_partition,
    concurrent_commits_of_partitions_lose_nothing,
    watch_wakes_after_commits_of_its_partition,
    // restores
    restored_item_is_unchanged,
    restore_replaces_existing_item,
    version_counter_continues_after_restored_version,
    restore_deleted_by_its_batch_still_raises_version_counter,
    batch_with_restore_returns_versions_of_its_puts,
    expired_restored_item_is_absent,
    restore_of_version_too_large_to_continue_is_rejected,
    restore_of_version_zero_is_rejected,
    // scans
    scan_returns_keys_in_order_without_bodies,
    scan_with_values_returns_bodies,
    keys_are_ordered_bytewise,
    scan_of_absent_namespace_is_empty,
    scan_prefix_is_literal,
    scan_pages_add_up_to_whole,
    scan_may_start_after_absent_key,
    last_scan_page_has_no_cursor,
    scan_with_limit_zero_reports_whether_there_is_more,
    scan_page_is_bounded_by_size_of_bodies,
    scan_omits_only_bodies_without_requested_text,
    snapshot_rows_equal_scanned_rows,
    scan_delimiter_groups_keys,
    scan_group_carries_row_of_its_name,
    scan_cursor_skips_its_group,
    scan_delimiter_applies_after_prefix,
    scan_pages_of_groups_add_up_to_whole,
    long_scans_page_like_short_ones,
    namespaces_are_listed_in_order,
    namespaces_beneath_prefix_are_listed,
    namespace_pages_add_up_to_whole,
    namespace_disappears_with_its_last_item,
    // expiry
    item_with_time_left_is_live,
    expired_item_is_absent_from_reads,
    expired_item_is_absent_from_scans,
    expired_item_is_absent_for_conditions,
    put_over_expired_item_starts_anew,
    put_without_time_to_live_removes_expiry,
    time_to_live_beyond_representable_time_is_accepted,
    sweep_removes_expired_items_up_to_limit,
    sweep_keeps_live_items,
    touch_changes_only_expiry,
    touch_can_remove_expiry,
    touch_of_absent_item_succeeds,
    touch_sees_earlier_writes_of_its_batch,
    touch_keeps_content_put_by_its_batch,
    sweep_keeps_touched_item,
    // watches
    watch_wakes_after_commit,
    watch_reports_commits_made_between_waits,
    watch_wakes_after_delete,
    watch_ignores_other_namespaces,
    every_watch_wakes,
    // what a store reports about itself
    stats_count_live_items,
    store_describes_its_engine,
    store_that_sweeps_offers_maintenance,
    check_of_sound_store_finds_no_damage,
    // concurrency
    concurrent_increments_lose_nothing,
    one_of_several_creators_wins,
    concurrent_writers_get_distinct_versions,
    concurrent_writers_of_different_keys_succeed,
    scan_page_never_shows_partial_batch,
    get_many_never_shows_partial_batch,
    unchanged_items_are_in_every_concurrent_scan,
    current_version_never_decreases,
    dropped_commit_leaves_old_or_new_items,
}

/// Returns a namespace by its name in one partition, in which most cases stay.
fn namespace(name: &str) -> Namespace {
    parsed(&format!("acme/ada/{name}"))
}

/// Returns a namespace in the partition that its text names.
fn parsed(text: &str) -> Namespace {
    Namespace::parse(text).expect("a legal namespace")
}

/// Commits a batch that must succeed.
async fn commit(store: &Subject, batch: Batch) -> Vec<Version> {
    store.commit(batch).await.unwrap_or_else(|error| panic!("commit: {error:?}"))
}

/// Commits a batch that must fail.
async fn refused(store: &Subject, batch: Batch, kind: ErrorKind) -> Error {
    let Err(error) = store.commit(batch.clone()).await else { panic!("{batch:?} was not refused") };
    assert_eq!(error.kind(), kind, "{error:?}");
    error
}

/// Puts items in one batch.
async fn put_all(store: &Subject, namespace: &Namespace, keys: &[&str]) {
    let batch = keys.iter().fold(Batch::new(), |batch, key| batch.put(namespace, *key, format!("body of {key}")));
    commit(store, batch).await;
}

async fn get(store: &Subject, namespace: &Namespace, key: &str) -> Option<Item> {
    store.get(namespace, key).await.unwrap_or_else(|error| panic!("get of {key:?}: {error:?}"))
}

async fn value(store: &Subject, namespace: &Namespace, key: &str) -> Option<Bytes> {
    get(store, namespace, key).await.map(|item| item.value)
}

async fn scan(store: &Subject, namespace: &Namespace, options: ScanOptions) -> Scan {
    store.scan(namespace, options.clone()).await.unwrap_or_else(|error| panic!("scan {options:?}: {error:?}"))
}

/// Scans all pages.
async fn scan_all(store: &Subject, namespace: &Namespace, mut options: ScanOptions) -> Vec<ScanEntry> {
    let mut entries = Vec::new();
    loop {
        let page = scan(store, namespace, options.clone()).await;
        assert!(page.entries.len() <= options.limit, "a page of {} entries, limit {}", page.entries.len(), options.limit);
        entries.extend(page.entries);
        match page.next {
            Some(next) => {
                assert!(options.start_after.as_ref() < Some(&next), "the cursor {next:?} does not advance from {:?}", options.start_after);
                options = options.with_start_after(next);
            }
            None => return entries,
        }
    }
}

fn keys(entries: &[ScanEntry]) -> Vec<&str> {
    entries.iter().map(ScanEntry::key).collect()
}

/// Creates a put with a time to live.
fn put_for(namespace: &Namespace, key: &str, time_to_live: Duration) -> Batch {
    Batch::new().put_for(namespace, key, "mortal", time_to_live)
}

/// Creates a put that sets the creation time.
fn put_created_at(namespace: &Namespace, key: &str, created_at: Timestamp) -> Batch {
    let mut batch = Batch::new();
    batch.writes.push(BatchWrite::Put {
        namespace: namespace.clone(),
        key: key.to_owned(),
        meta: Bytes::new(),
        value: Bytes::new(),
        time_to_live: None,
        created_at: Some(created_at),
    });
    batch
}

/// Returns bytes without repetitions, which depend on their number.
fn noise(length: usize) -> Bytes {
    crate::noise::noise(length as u64, length)
}
