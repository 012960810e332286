//! The contract of [`Checkpointer`], one rule for each case.
//!
//! A case gets a fresh, empty checkpointer with any clock, even one that stands still or runs backwards. Run the cases with
//! [`checkpointer_conformance!`](crate::checkpointer_conformance), which creates one test for each.

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
use crate::noise::noise;
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{GlobOptions, GrepOptions, LsOptions, ReadOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_tree::backend::{Backend, BackendExt, StateBackend, StateSnapshot};
use treehold_tree::checkpoint::{
    At, ChangeKind, Checkpoint, CheckpointId, Checkpointer, Diff, Head, LABEL_BYTES_MAX, ListOptions, METADATA_BYTES_MAX, Opened,
    PruneOptions, Pruned, PutOptions, Saved, Swept, ThreadInfo, diff,
};

/// The subject of a case.
type Subject = Arc<dyn Checkpointer>;

cases! { $
    /// Creates a module of tests, one for each case of the checkpointer contract: `checkpointer_conformance!(name, fresh)`, where
    /// `fresh` is an async function that returns a [`Fresh<dyn Checkpointer>`](crate::Fresh).
    checkpointer_conformance, checkpointer, dyn Checkpointer:
    // puts
    unsaved_thread_has_no_checkpoint,
    put_becomes_latest_and_is_found_by_id,
    unknown_id_is_not_found,
    id_of_another_thread_is_not_found,
    put_follows_expected_head,
    put_on_outdated_head_conflicts_and_names_current_head,
    first_put_to_saved_thread_conflicts,
    put_with_head_to_unsaved_thread_conflicts,
    rejected_put_leaves_nothing,
    checkpoint_counts_its_files_and_bytes,
    label_and_metadata_are_preserved,
    labels_and_metadata_are_validated,
    ids_and_versions_grow_with_each_put,
    requested_id_is_used_if_newer_than_head,
    only_head_is_opened_as_head,
    confirm_returns_checkpoint_as_read,
    // trees
    saved_files_are_preserved_byte_for_byte,
    versions_and_times_are_preserved,
    empty_thread_is_preserved,
    empty_files_and_directories_are_preserved,
    older_checkpoints_do_not_change,
    large_saved_tree_can_be_read_listed_and_searched,
    deep_paths_and_long_names_are_preserved,
    saved_tree_can_be_changed_without_loading_it,
    state_saved_elsewhere_is_stored_completely,
    state_of_removed_checkpoint_is_stored_completely_or_rejected,
    // differences
    diff_reports_added_changed_and_removed_paths,
    diff_of_checkpoint_with_itself_is_empty,
    diff_ignores_rewrites_of_same_content,
    diff_reports_change_of_kind,
    diff_pages_add_up_to_whole,
    diff_of_forks_reports_simultaneous_writes,
    // lists
    checkpoints_are_listed_newest_first,
    checkpoint_list_pages_add_up_to_whole,
    checkpoint_list_filters_by_label_and_metadata,
    checkpoint_list_filters_by_time,
    filtered_list_pages_add_up_to_whole,
    checkpoint_list_of_missing_thread_is_empty,
    threads_are_listed_in_pages,
    list_with_limit_zero_reports_whether_there_is_more,
    thread_entry_reflects_its_head,
    // branches
    restore_creates_new_head_with_old_tree,
    restore_keeps_other_checkpoints,
    restore_with_outdated_head_conflicts,
    restore_of_unknown_checkpoint_is_not_found,
    restored_thread_accepts_puts,
    fork_and_source_are_independent,
    fork_can_start_at_any_checkpoint,
    fork_of_fork_is_independent,
    fork_to_existing_thread_is_rejected,
    fork_of_missing_thread_is_not_found,
    copy_has_all_checkpoints_and_is_independent,
    copy_to_existing_thread_is_rejected,
    delete_removes_only_that_thread,
    deleted_thread_can_start_anew,
    // sweeps
    prune_keeps_newest,
    prune_never_removes_head,
    prune_keeps_young_and_labelled_checkpoints,
    dry_prune_only_counts,
    prune_of_missing_thread_is_not_found,
    sweep_removes_unreferenced_contents_once,
    dry_sweep_counts_what_sweep_would_remove,
    sweep_keeps_contents_of_forks_and_copies,
    content_put_again_after_sweep_is_kept,
    equal_contents_are_stored_once,
    put_restores_swept_contents_that_session_still_holds,
    sweep_affects_only_one_user,
    // scopes
    scopes_are_isolated,
    threads_of_other_users_are_not_listed,
    agent_does_not_affect_threads,
    invalid_scope_ids_are_rejected,
    scope_without_thread_is_rejected,
    // concurrency
    one_of_many_concurrent_writers_wins_each_head,
    one_of_many_concurrent_forks_to_one_thread_wins,
    concurrent_restores_and_puts_lose_nothing,
    concurrent_sweeps_and_puts_lose_nothing,
    concurrent_sweeps_prunes_forks_and_restores_lose_nothing,
    concurrent_sweeps_of_many_threads_lose_nothing,
    fork_of_latest_succeeds_during_prunes,
    dropped_put_leaves_old_or_new_head,
}

/// The files of a tree by path. Directories have no content.
type Files = BTreeMap<String, Option<Bytes>>;

fn scope(thread: &str) -> Scope {
    Scope::new().with_tenant("acme").with_user("ada").with_thread(thread)
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

/// Creates a state with files.
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

/// Puts a state that must be accepted.
async fn put(subject: &Subject, scope: &Scope, state: &StateSnapshot, head: Option<Head>) -> Saved {
    put_as(subject, scope, state, PutOptions::new().with_head(head)).await
}

async fn put_as(subject: &Subject, scope: &Scope, state: &StateSnapshot, options: PutOptions) -> Saved {
    let expected = options.head;
    let saved = subject.put(scope, state, &options).await.unwrap_or_else(|error| panic!("put: {error:?}"));
    assert_eq!(saved.head.map(|head| head.id), Some(saved.checkpoint.id), "the new checkpoint is the head");
    assert_eq!(saved.checkpoint.parent.as_ref().map(|parent| parent.id), expected.map(|head| head.id));
    saved
}

/// Puts files as a new state on top of the current head.
async fn put_files(subject: &Subject, thread: &str, files: &[(&str, &str)]) -> Checkpoint {
    let head = head(subject, thread).await;
    put(subject, &scope(thread), &state(files).await, head).await.checkpoint
}

/// Changes a thread like a session does: opens its head, writes, and puts.
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

/// Reads a whole tree.
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

/// Asserts that a checkpoint contains exactly these files and their parent directories.
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

/// Lists all pages.
async fn list_all(subject: &Subject, thread: &str, mut options: ListOptions) -> Vec<Checkpoint> {
    let mut all: Vec<Checkpoint> = Vec::new();
    loop {
        let page = subject.list(&scope(thread), &options).await.unwrap_or_else(|error| panic!("list: {error:?}"));
        assert!(page.checkpoints.len() <= options.limit, "a page of {}, limit {}", page.checkpoints.len(), options.limit);
        all.extend(page.checkpoints);
        match page.next {
            Some(next) => {
                assert!(options.start_after.is_none_or(|after| next < after), "the cursor does not advance");
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
                assert!(after.is_none_or(|after| after < next), "the cursor does not advance");
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
