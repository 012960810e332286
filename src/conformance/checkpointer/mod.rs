//! The contract of [`Checkpointer`], one law a case.
//!
//! A case gets a fresh checkpointer that keeps nothing yet, whatever clock it has: one that stands still or goes back too. Run
//! them by [`checkpointer_conformance!`](crate::checkpointer_conformance), which makes one test of each.

mod branches;
mod concurrency;
mod differences;
mod lists;
mod puts;
mod scopes;
mod sweeps;
mod trees;

use branches::*;
use concurrency::*;
use differences::*;
use lists::*;
use puts::*;
use scopes::*;
use sweeps::*;
use trees::*;

use super::cases;
use crate::backend::{Backend, BackendExt, StateBackend, StateSnapshot};
use crate::checkpoint::{
    At, ChangeKind, Checkpoint, CheckpointId, Checkpointer, Diff, Head, LABEL_BYTES_MAX, ListOptions, METADATA_BYTES_MAX, Opened,
    PruneOptions, Pruned, PutOptions, Saved, Swept, ThreadInfo, diff,
};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{GlobOptions, GrepOptions, LsOptions, ReadOptions};
use crate::path::{VfsPath, VfsPathBuf};
use crate::scope::Scope;
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a case gets.
type Subject = Arc<dyn Checkpointer>;

cases! { $
    /// Makes a module of tests, one for each case of the checkpointer contract: `checkpointer_conformance!(name, fresh)`, where
    /// `fresh` is an async function that returns a [`Fresh<dyn Checkpointer>`](crate::conformance::Fresh).
    checkpointer_conformance, checkpointer, dyn Checkpointer:
    // puts
    a_thread_that_was_never_saved_is_none,
    a_put_is_the_latest_and_is_found_by_its_id,
    an_unknown_id_is_none,
    an_id_of_another_thread_is_none,
    a_put_follows_on_the_head_it_names,
    a_put_on_an_old_head_is_a_conflict_that_names_the_current_one,
    a_first_put_where_a_thread_is_saved_is_a_conflict,
    a_put_that_names_a_head_where_nothing_is_saved_is_a_conflict,
    a_refused_put_leaves_nothing,
    a_checkpoint_counts_what_it_holds,
    a_label_and_metadata_are_kept,
    labels_and_metadata_are_bounded_and_checked,
    ids_and_versions_grow_with_each_put,
    an_id_is_given_if_it_is_newer_than_the_head,
    only_the_head_is_told_as_one,
    // trees
    every_path_is_read_back_byte_for_byte,
    versions_and_times_are_read_back,
    an_empty_thread_is_read_back,
    empty_files_and_directories_are_read_back,
    every_checkpoint_stays_as_it_was,
    a_large_tree_is_read_back_listed_and_searched,
    deep_paths_and_long_names_are_read_back,
    a_saved_tree_is_changed_without_being_loaded,
    a_state_that_was_saved_elsewhere_is_kept_whole,
    a_state_whose_checkpoint_is_gone_is_kept_whole_or_refused,
    // differences
    a_diff_tells_what_was_added_changed_and_removed,
    a_diff_of_a_checkpoint_with_itself_is_empty,
    what_was_written_again_as_it_was_is_no_difference,
    a_diff_tells_when_a_path_became_another_kind,
    pages_of_a_diff_join_to_the_whole,
    a_diff_of_forks_sees_what_both_wrote_at_once,
    // lists
    a_list_shows_the_newest_first,
    pages_of_a_list_join_to_the_whole,
    a_list_is_filtered_by_label_and_metadata,
    a_list_is_filtered_by_time,
    filters_and_pages_go_together,
    a_list_of_no_thread_is_empty,
    threads_are_listed_in_pages,
    a_thread_is_listed_as_its_head_is,
    // branches
    a_restore_is_a_new_head_with_the_old_tree,
    a_restore_loses_nothing,
    a_restore_of_another_head_than_expected_is_a_conflict,
    a_restore_of_an_unknown_checkpoint_is_not_found,
    a_restored_thread_goes_on,
    a_fork_and_its_source_never_see_each_other,
    a_fork_starts_at_any_checkpoint,
    a_fork_of_a_fork_stands_by_itself,
    a_fork_takes_no_thread_that_is_there,
    a_fork_of_nothing_is_not_found,
    a_copy_has_all_checkpoints_and_stands_by_itself,
    a_copy_takes_no_thread_that_is_there,
    a_deleted_thread_is_gone_and_no_other,
    a_deleted_thread_can_start_anew,
    // sweeps
    a_prune_keeps_the_newest,
    a_prune_never_removes_the_head,
    a_prune_keeps_what_is_young_or_labelled,
    a_dry_prune_counts_and_removes_nothing,
    a_prune_of_no_thread_is_not_found,
    a_sweep_removes_what_nothing_holds_and_is_then_done,
    a_dry_sweep_counts_what_a_sweep_removes,
    a_sweep_leaves_what_forks_and_copies_hold,
    a_content_that_is_put_again_after_its_removal_is_kept,
    contents_are_kept_once,
    what_a_session_still_holds_is_kept_by_its_next_put,
    a_sweep_is_of_one_user,
    // scopes
    scopes_never_meet,
    threads_of_other_users_are_not_listed,
    an_agent_does_not_matter,
    ids_that_are_no_ids_are_refused,
    a_scope_without_a_thread_is_refused,
    // concurrency
    of_many_writers_one_wins_each_head,
    of_many_forks_to_one_thread_one_wins,
    restores_beside_puts_lose_nothing,
    sweeps_beside_puts_lose_nothing,
    sweeps_and_prunes_beside_forks_and_restores_lose_nothing,
    sweeps_of_many_threads_at_once_lose_nothing,
    forks_of_the_latest_beside_prunes_always_find_it,
    a_dropped_put_leaves_the_old_or_the_new,
}

/// The files of a tree by path; a directory has no content.
type Files = BTreeMap<String, Option<Bytes>>;

fn scope(thread: &str) -> Scope {
    Scope::new().with_tenant("acme").with_user("ada").with_thread(thread)
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

/// Makes a state of files.
async fn state(files: &[(&str, &str)]) -> StateSnapshot {
    let tree = StateBackend::new();
    write(&tree, files).await;
    tree.snapshot()
}

async fn write(tree: &StateBackend, files: &[(&str, &str)]) {
    for (file, content) in files {
        tree.write(file, content.to_string()).await.unwrap_or_else(|error| panic!("write of {file}: {error:?}"));
    }
}

/// Puts what is expected to succeed.
async fn put(subject: &Subject, scope: &Scope, state: &StateSnapshot, head: Option<Head>) -> Saved {
    put_as(subject, scope, state, PutOptions::new().with_head(head)).await
}

async fn put_as(subject: &Subject, scope: &Scope, state: &StateSnapshot, options: PutOptions) -> Saved {
    let expected = options.head;
    let saved = subject.put(scope, state, &options).await.unwrap_or_else(|error| panic!("put: {error:?}"));
    assert_eq!(saved.head.map(|head| head.id), Some(saved.checkpoint.id), "what was put is the head");
    assert_eq!(saved.checkpoint.parent.as_ref().map(|parent| parent.id), expected.map(|head| head.id));
    saved
}

/// Puts files as a whole new state on top of the head there is.
async fn put_files(subject: &Subject, thread: &str, files: &[(&str, &str)]) -> Checkpoint {
    let head = head(subject, thread).await;
    put(subject, &scope(thread), &state(files).await, head).await.checkpoint
}

/// Changes the thread as a session does: opens its head, writes, and puts.
async fn change(subject: &Subject, thread: &str, files: &[(&str, &str)]) -> Checkpoint {
    let scope = scope(thread);
    let opened = subject.open(&scope, At::Latest).await.unwrap_or_else(|error| panic!("open: {error:?}"));
    let (snapshot, head) = opened.map_or_else(Default::default, |opened| (opened.state, opened.head));
    let tree = StateBackend::from_snapshot(&snapshot);
    write(&tree, files).await;
    put(subject, &scope, &tree.snapshot(), head).await.checkpoint
}

async fn head(subject: &Subject, thread: &str) -> Option<Head> {
    let saved = subject.get(&scope(thread), At::Latest).await.unwrap_or_else(|error| panic!("get: {error:?}"));
    saved.map(|saved| saved.head.expect("the latest is the head"))
}

async fn open(subject: &Subject, thread: &str, at: impl Into<At>) -> Opened {
    let at = at.into();
    let opened = subject.open(&scope(thread), at).await.unwrap_or_else(|error| panic!("open of {at:?}: {error:?}"));
    opened.unwrap_or_else(|| panic!("`{thread}` has no {at:?}"))
}

/// Reads all of a tree.
async fn read(state: &StateSnapshot) -> Files {
    let nodes = state.nodes(None, usize::MAX).await.unwrap_or_else(|error| panic!("nodes: {error:?}"));
    let mut files = Files::new();
    for (path, node) in nodes {
        let content = match node.is_directory() {
            true => None,
            false => Some(state.read(&path, &ReadOptions::new()).await.unwrap_or_else(|error| panic!("{path}: {error:?}")).content),
        };
        files.insert(path.to_string(), content);
    }
    files
}

/// Asserts that a checkpoint holds these files and the directories they stand in, and nothing else.
#[track_caller]
fn assert_files(files: &Files, expected: &[(&str, &str)]) {
    let found: Vec<(&str, &[u8])> = files.iter().filter_map(|(path, content)| Some((path.as_str(), &content.as_ref()?[..]))).collect();
    let mut expected: Vec<(&str, &[u8])> = expected.iter().map(|(path, content)| (*path, content.as_bytes())).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

async fn assert_holds(subject: &Subject, thread: &str, at: impl Into<At>, expected: &[(&str, &str)]) {
    assert_files(&read(&open(subject, thread, at).await.state).await, expected);
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) -> Error {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind(), kind, "{error:?}");
    error
}

/// Lists to the end, page by page.
async fn list_all(subject: &Subject, thread: &str, mut options: ListOptions) -> Vec<Checkpoint> {
    let mut all: Vec<Checkpoint> = Vec::new();
    loop {
        let page = subject.list(&scope(thread), &options).await.unwrap_or_else(|error| panic!("list: {error:?}"));
        assert!(page.checkpoints.len() <= options.limit, "a page of {}, limit {}", page.checkpoints.len(), options.limit);
        all.extend(page.checkpoints);
        match page.next {
            Some(next) => {
                assert!(options.start_after.is_none_or(|after| next < after), "the cursor does not go on");
                options = options.with_start_after(next);
            }
            None => return all,
        }
    }
}

fn ids(checkpoints: &[Checkpoint]) -> Vec<CheckpointId> {
    checkpoints.iter().map(|checkpoint| checkpoint.id).collect()
}

async fn threads(subject: &Subject, scope: &Scope, limit: usize) -> Vec<ThreadInfo> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = subject.threads(scope, after.as_deref(), limit).await.unwrap_or_else(|error| panic!("threads: {error:?}"));
        assert!(page.threads.len() <= limit);
        all.extend(page.threads);
        match page.next {
            Some(next) => {
                assert!(after.is_none_or(|after| after < next), "the cursor does not go on");
                after = Some(next);
            }
            None => return all,
        }
    }
}

async fn sweep(subject: &Subject, dry_run: bool) -> Swept {
    subject.sweep(&scope("-"), dry_run).await.unwrap_or_else(|error| panic!("sweep: {error:?}"))
}

async fn prune(subject: &Subject, thread: &str, options: PruneOptions) -> Pruned {
    subject.prune(&scope(thread), &options).await.unwrap_or_else(|error| panic!("prune: {error:?}"))
}

/// Bytes that repeat nowhere near, of a seed of their own.
fn noise(seed: u64, length: usize) -> Bytes {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64 ^ seed.wrapping_mul(0xD129_0B28_7A6B_11D5) ^ length as u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(length)
    .collect()
}
