//! The contract of [`Store`], one law a case.
//!
//! A case gets a fresh, empty store. Run them by [`store_conformance!`](crate::store_conformance), which makes one test of
//! each. No case waits for a clock: an item whose time to live is zero is over at once.

mod batches;
mod concurrency;
mod expiry;
mod items;
mod logs;
mod reports;
mod restores;
mod scans;
mod watches;

use batches::*;
use concurrency::*;
use expiry::*;
use items::*;
use logs::*;
use reports::*;
use restores::*;
use scans::*;
use watches::*;

use super::cases;
use crate::error::{Error, ErrorKind};
use crate::ops::Version;
use crate::store::{Batch, BatchWrite, Condition, Item, Namespace, Scan, ScanEntry, ScanOptions, Store};
use bytes::Bytes;
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// What a case gets.
type Subject = Arc<dyn Store>;

cases! { $
    /// Makes a module of tests, one for each case of the store contract: `store_conformance!(name, fresh)`, where `fresh` is an
    /// async function that returns a [`Fresh<dyn Store>`](crate::conformance::Fresh).
    store_conformance, store, dyn Store:
    // items
    get_of_absent_is_none,
    a_body_comes_back_byte_for_byte,
    a_body_of_any_size_comes_back,
    a_meta_comes_back_beside_its_body,
    a_put_replaces_the_whole_item,
    a_put_keeps_the_creation_time,
    a_put_after_a_delete_starts_a_new_creation_time,
    a_put_can_set_the_creation_time,
    times_are_whole_microseconds,
    any_text_is_a_key,
    keys_and_namespaces_are_bounded_and_checked,
    a_body_over_the_limit_is_too_large,
    a_namespace_is_matched_whole,
    get_part_returns_the_bytes_of_the_range,
    get_part_of_absent_is_none,
    parts_of_a_replaced_body_have_another_version,
    get_many_keeps_order_and_repeats,
    get_many_without_values_reads_no_bodies,
    get_many_of_many_keys_finds_each,
    get_many_reads_large_bodies,
    // logs
    an_append_has_its_version_as_its_key,
    a_refused_batch_appends_nothing,
    an_append_ends_with_its_time,
    a_reader_of_a_log_misses_nothing,
    // batches
    commit_is_all_or_nothing,
    a_batch_spans_namespaces,
    a_refused_argument_writes_nothing,
    writes_take_effect_in_order,
    conditions_see_the_state_before_the_batch,
    absent_holds_without_an_item,
    exists_holds_with_an_item,
    version_holds_for_that_version_only,
    none_beneath_leaves_the_key_itself_out,
    none_beneath_since_sees_newer_items_only,
    a_conflict_names_the_condition_and_what_it_met,
    a_batch_without_writes_only_checks,
    versions_of_a_batch_are_distinct_and_newer,
    a_version_is_never_used_again,
    the_version_of_an_item_is_that_of_its_put,
    current_version_grows_with_every_change,
    a_delete_of_what_is_absent_is_no_error,
    delete_prefix_takes_the_prefix_literally,
    delete_prefix_of_nothing_empties_one_namespace,
    a_large_batch_is_one_step,
    a_large_range_delete_is_one_step,
    // restores
    a_restored_item_is_as_it_was,
    a_restore_takes_the_place_of_what_is_there,
    the_counter_goes_on_behind_a_restored_version,
    a_restore_that_is_removed_by_its_batch_lifts_the_counter,
    a_restore_beside_puts_returns_the_versions_of_the_puts,
    an_old_restored_item_is_absent_once_its_time_is_over,
    a_version_that_stores_cannot_count_on_from_is_not_restored,
    a_version_that_no_put_gives_is_not_restored,
    // scans
    a_scan_returns_keys_in_order_without_bodies,
    a_scan_with_values_returns_bodies,
    keys_are_ordered_bytewise,
    a_scan_of_an_absent_namespace_is_empty,
    a_prefix_is_taken_literally,
    pages_join_to_the_whole,
    a_scan_starts_after_a_key_that_is_not_there,
    the_last_page_has_no_cursor,
    a_limit_of_zero_tells_whether_there_is_more,
    a_page_ends_by_the_bytes_of_its_bodies,
    only_bodies_that_do_not_hold_a_text_are_left_out,
    rows_that_are_lent_are_those_of_a_scan,
    a_delimiter_groups_keys,
    a_group_carries_the_row_of_its_name,
    a_cursor_passes_over_its_group,
    a_delimiter_counts_after_the_prefix,
    pages_of_groups_join_to_the_whole,
    long_scans_page_as_short_ones,
    namespaces_are_listed_in_order,
    namespaces_are_listed_beneath_one,
    namespaces_are_paged,
    a_namespace_ends_with_its_last_item,
    // expiry
    an_item_with_time_left_is_live,
    an_item_whose_time_is_over_is_absent_from_reads,
    an_item_whose_time_is_over_is_absent_from_scans,
    an_item_whose_time_is_over_is_absent_for_conditions,
    a_put_over_what_is_over_starts_anew,
    a_put_without_time_to_live_lives_for_good,
    a_time_to_live_beyond_the_calendar_is_accepted,
    sweep_removes_what_is_over_up_to_its_limit,
    sweep_leaves_what_is_live,
    a_touch_moves_the_end_and_nothing_else,
    a_touch_can_let_an_item_live_for_good,
    a_touch_of_what_is_absent_is_no_error,
    writes_of_one_batch_touch_what_those_before_left,
    a_touch_keeps_all_that_its_batch_puts,
    a_swept_store_forgets_no_touched_item,
    // watches
    a_watch_tells_of_a_commit,
    a_watch_tells_of_what_was_committed_while_nobody_looked,
    a_watch_tells_of_deletes,
    a_watch_is_of_one_namespace,
    every_watch_is_told,
    // what a store tells of itself
    stats_count_what_is_live,
    a_store_describes_its_engine,
    a_sound_store_has_no_damage,
    // concurrency
    no_increment_is_lost,
    one_creator_wins,
    versions_are_distinct_across_writers,
    writers_of_different_keys_all_succeed,
    a_page_shows_no_batch_half,
    a_read_of_several_items_shows_no_batch_half,
    what_stays_is_on_the_pages_of_every_scan,
    current_version_never_goes_back,
    a_dropped_commit_leaves_old_or_new,
}

fn namespace(text: &str) -> Namespace {
    Namespace::parse(text).expect("a legal namespace")
}

/// Commits what is expected to succeed.
async fn commit(store: &Subject, batch: Batch) -> Vec<Version> {
    store.commit(batch).await.unwrap_or_else(|error| panic!("commit: {error:?}"))
}

/// Commits what is expected to fail.
async fn refused(store: &Subject, batch: Batch, kind: ErrorKind) -> Error {
    let error = store.commit(batch.clone()).await.expect_err(&format!("{batch:?} is refused"));
    assert_eq!(error.kind(), kind, "{error:?}");
    error
}

/// Puts bodies in one batch.
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

/// Scans to the end, page by page.
async fn scan_all(store: &Subject, namespace: &Namespace, mut options: ScanOptions) -> Vec<ScanEntry> {
    let mut entries = Vec::new();
    loop {
        let page = scan(store, namespace, options.clone()).await;
        assert!(page.entries.len() <= options.limit, "a page of {} entries, limit {}", page.entries.len(), options.limit);
        entries.extend(page.entries);
        match page.next {
            Some(next) => {
                assert!(options.start_after.as_ref() < Some(&next), "the cursor {next:?} does not go on from {:?}", options.start_after);
                options = options.with_start_after(next);
            }
            None => return entries,
        }
    }
}

fn keys(entries: &[ScanEntry]) -> Vec<&str> {
    entries.iter().map(ScanEntry::key).collect()
}

/// A put with a time to live.
fn put_for(namespace: &Namespace, key: &str, time_to_live: Duration) -> Batch {
    Batch::new().put_for(namespace, key, "mortal", time_to_live)
}

/// A put that sets the creation time.
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

/// Bytes that repeat nowhere near, so that a lost, doubled or swapped piece shows.
fn noise(length: usize) -> Bytes {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64 ^ length as u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(length)
    .collect()
}
