//! The contract of [`Backend`], one rule for each case.
//!
//! A case gets a [`Tree`]: a fresh, empty tree, addressed from its root or, for a mounted tree, from a base path. So the same
//! cases test a backend, a layer around it, and a composite that contains it. Run them with
//! [`backend_conformance!`](crate::backend_conformance), which creates one test for each case.

mod changes;
mod concurrency;
mod finding;
mod limits;
mod listing;
mod outbox;
mod reading;
mod recalling;
mod streaming;

pub use changes::LINE_ENDING_EDITS;
use changes::*;
use concurrency::*;
use finding::*;
use limits::*;
use listing::*;
use outbox::*;
use reading::*;
use recalling::*;
use streaming::*;

use super::{Fresh, cases};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    Change, Changed, Edit, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, ReadOptions,
    SearchOptions, SearchResult, StatOptions, Version, WriteMode,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::{Partition, Store};
use treehold_tree::backend::{Backend, BackendExt};

/// The subject of a case.
type Subject = Arc<Tree>;

/// A fresh tree for one case.
pub struct Tree {
    backend: Arc<dyn Backend>,
    base: VfsPathBuf,
    /// The store to which it commits its files.
    store: Option<(Arc<dyn Store>, Partition)>,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree({} at {})", self.backend, self.base)
    }
}

impl Tree {
    /// Creates the tree of an empty backend.
    pub fn new(backend: impl Backend + 'static) -> Self {
        Self { backend: Arc::new(backend), base: VfsPathBuf::root(), store: None }
    }

    /// Addresses the tree from the backend's directory `base`, which must exist and be empty.
    ///
    /// # Panics
    /// If `base` is not a path.
    #[must_use]
    pub fn at(mut self, base: &str) -> Self {
        self.base = VfsPathBuf::parse(base).expect("the base is a path");
        self
    }

    /// Says that the tree commits its files to a partition of a store, so that rows of an outbox commit with them. Other trees must ignore
    /// outboxes.
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn Store>, partition: Partition) -> Self {
        self.store = Some((store, partition));
        self
    }

    /// Returns the store to which the tree commits its files, and the partition.
    pub fn store(&self) -> Option<(&Arc<dyn Store>, &Partition)> {
        self.store.as_ref().map(|(store, partition)| (store, partition))
    }

    /// Makes the tree the subject of a case.
    pub fn fresh(self) -> Fresh<Self> {
        Fresh::new(Arc::new(self))
    }

    /// Returns the backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Returns whether the tree is the whole backend, so that its root cannot be moved, copied or removed.
    pub(crate) fn is_whole(&self) -> bool {
        self.base.is_root()
    }

    /// Converts a path within the tree to a path of the backend.
    ///
    /// # Panics
    /// If `path` is not a path.
    pub fn path(&self, path: &str) -> VfsPathBuf {
        self.base.concat(&VfsPath::parse(path).expect("cases name legal paths"))
    }

    /// Converts a path of the backend to a path within the tree.
    pub(crate) fn seen(&self, path: &VfsPath) -> String {
        path.strip_prefix(&self.base).map_or_else(|| format!("outside the tree: {path}"), ToString::to_string)
    }

    pub(crate) async fn apply(&self, change: Change) -> Result<Changed> {
        self.backend.apply_one(change).await
    }

    async fn put(&self, path: &str, content: impl Into<Bytes>) -> Changed {
        self.try_put(path, content, WriteMode::Overwrite).await.unwrap_or_else(|error| panic!("write of {path}: {error:?}"))
    }

    async fn try_put(&self, path: &str, content: impl Into<Bytes>, mode: WriteMode) -> Result<Changed> {
        self.apply(Change::Write { path: self.path(path), content: content.into(), mode }).await
    }

    async fn append(&self, path: &str, content: &'static str) -> Result<Changed> {
        self.apply(Change::Append { path: self.path(path), content: content.into() }).await
    }

    async fn edit(&self, path: &str, edits: &[Edit]) -> Result<Changed> {
        self.apply(Change::Edit { path: self.path(path), edits: edits.to_vec(), expect: None }).await
    }

    async fn create_dir(&self, path: &str) -> Result<Changed> {
        self.apply(Change::CreateDir { path: self.path(path) }).await
    }

    async fn delete(&self, path: &str, recursive: bool, expect: Option<Version>) -> Result<Changed> {
        self.apply(Change::Delete { path: self.path(path), recursive, expect }).await
    }

    async fn rename(&self, from: &str, to: &str, overwrite: bool) -> Result<Changed> {
        self.apply(Change::Rename { from: self.path(from), to: self.path(to), overwrite }).await
    }

    async fn copy(&self, from: &str, to: &str, overwrite: bool) -> Result<Changed> {
        self.apply(Change::Copy { from: self.path(from), to: self.path(to), overwrite }).await
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<Entry> {
        self.backend.stat(&self.path(path), &StatOptions::new()).await
    }

    async fn version(&self, path: &str) -> Version {
        self.stat(path).await.unwrap_or_else(|error| panic!("stat of {path}: {error:?}")).version.expect("a file has a version")
    }

    pub(crate) async fn read(&self, path: &str, options: &ReadOptions) -> Result<FileRead> {
        self.backend.read(&self.path(path), options).await
    }

    async fn content(&self, path: &str) -> Bytes {
        self.read(path, &ReadOptions::new()).await.unwrap_or_else(|error| panic!("read of {path}: {error:?}")).content
    }

    pub(crate) async fn ls(&self, path: &str, options: &LsOptions) -> Result<Listing> {
        self.backend.ls(&self.path(path), options).await
    }

    /// Lists the names in a directory. Those of directories end with `/`.
    async fn names(&self, path: &str) -> Vec<String> {
        let listing = self.ls(path, &LsOptions::new()).await.unwrap_or_else(|error| panic!("ls of {path}: {error:?}"));
        assert_eq!(listing.truncated, None);
        listing.entries.iter().map(|entry| format!("{}{}", entry.name(), if entry.is_directory() { "/" } else { "" })).collect()
    }

    pub(crate) async fn glob(&self, path: &str, options: &GlobOptions) -> Result<GlobResult> {
        self.backend.glob(&self.path(path), options).await
    }

    /// Globs from the tree's root, and returns the paths.
    async fn found(&self, pattern: &str) -> Vec<String> {
        self.found_by(&GlobOptions::new(pattern)).await
    }

    async fn found_by(&self, options: &GlobOptions) -> Vec<String> {
        let result = self.glob("/", options).await.unwrap_or_else(|error| panic!("glob {options:?}: {error:?}"));
        assert_eq!((&result.truncated, &result.failures[..]), (&None, &[][..]));
        result.entries.iter().map(|entry| self.seen(&entry.path)).collect()
    }

    pub(crate) async fn grep(&self, path: &str, options: &GrepOptions) -> Result<GrepResult> {
        self.backend.grep(&self.path(path), options).await
    }

    pub(crate) async fn search(&self, path: &str, options: &SearchOptions) -> Result<SearchResult> {
        self.backend.search(&self.path(path), options).await
    }

    /// Greps from the tree's root. Returns `path:line:text`, and `path-line-text` for context lines.
    async fn lines(&self, options: &GrepOptions) -> Vec<String> {
        self.lines_in("/", options).await
    }

    async fn lines_in(&self, path: &str, options: &GrepOptions) -> Vec<String> {
        let result = self.grep(path, options).await.unwrap_or_else(|error| panic!("grep {options:?}: {error:?}"));
        assert_eq!((&result.truncated, result.failures_count), (&None, 0));
        self.shown(&result)
    }

    fn shown(&self, result: &GrepResult) -> Vec<String> {
        let mut shown = Vec::new();
        for file in &result.files {
            if file.lines.is_empty() {
                shown.push(format!("{}:{}", self.seen(&file.path), file.count));
            }
            for line in &file.lines {
                let mark = if line.is_match { ':' } else { '-' };
                shown.push(format!("{}{mark}{}{mark}{}", self.seen(&file.path), line.line, line.text_lossy()));
            }
        }
        shown
    }

    /// Asserts that a call failed with a kind, and that the error uses the caller's paths.
    #[track_caller]
    fn refused<T: fmt::Debug>(&self, result: Result<T>, kind: ErrorKind) -> Error {
        let error = result.expect_err("the call is refused");
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(!error.message().is_empty());
        if let Some(path) = error.path() {
            assert!(
                path.starts_with(&self.base) || self.base.starts_with(path),
                "the error names {path}, the caller knows {}: {error:?}",
                self.base
            );
        }
        error
    }
}

cases! { $
    /// Creates a module of tests, one for each case of the backend contract: `backend_conformance!(name, fresh)`, where `fresh`
    /// is an async function that returns a [`Fresh<Tree>`](crate::Fresh).
    ///
    /// ```no_run
    /// use treehold_tree::backend::StateBackend;
    /// use treehold_conformance::Fresh;
    /// use treehold_conformance::backend::Tree;
    ///
    /// async fn state() -> Fresh<Tree> {
    ///     Tree::new(StateBackend::new()).fresh()
    /// }
    ///
    /// treehold_conformance::backend_conformance!(state_backend, state);
    /// ```
    backend_conformance, backend, Tree:
    empty_tree_lists_nothing,
    root_is_a_directory,
    content_is_preserved_byte_for_byte,
    text_shown_with_unix_lines_is_found_by_edits,
    read_many_returns_contents_and_errors_in_order,
    large_content_is_preserved_byte_for_byte,
    parts_of_large_file_equal_parts_of_its_content,
    version_of_part_is_refused_after_change,
    stream_returns_content_in_parts,
    stream_of_changed_file_is_a_conflict,
    stream_reads_nothing_that_is_not_taken,
    legal_names_are_preserved,
    stat_reports_kind_size_and_version,
    missing_path_is_not_found,
    paths_beneath_file_are_rejected,
    read_of_directory_is_rejected,
    read_returns_window_of_lines,
    read_returns_range_of_bytes,
    read_respects_size_limit,
    offset_past_end_is_rejected,
    line_numbers_of_read_and_grep_agree,
    write_creates_missing_parents,
    overwrite_replaces_content_and_keeps_creation_time,
    create_new_rejects_existing_path,
    conditional_write_requires_current_version,
    path_is_never_both_file_and_directory,
    rejected_write_creates_no_parents,
    review_answers_for_each_path_and_changes_nothing,
    append_creates_file_and_adds_to_it,
    edit_replaces_single_occurrence,
    edit_rejects_ambiguous_match,
    edit_rejects_no_match,
    edit_rejects_empty_text,
    edit_with_replace_all_replaces_every_occurrence,
    edits_of_one_call_are_atomic,
    edit_with_lf_matches_crlf_content,
    edit_in_mixed_file_keeps_other_line_endings,
    edit_treats_line_endings_as_units,
    edit_counts_occurrences_across_line_endings,
    edit_keeps_binary_content,
    edit_requires_expected_version,
    edit_requires_a_file,
    every_write_creates_new_version,
    versions_are_never_reused,
    create_dir_creates_empty_directory,
    delete_removes_a_file,
    delete_of_filled_directory_requires_recursive,
    delete_of_root_is_rejected,
    delete_requires_expected_version,
    rename_moves_a_file,
    rename_moves_a_directory,
    rename_rejects_impossible_moves,
    rename_overwrites_only_files_and_only_if_asked,
    copy_is_independent_of_source,
    copy_of_directory_copies_contents,
    copy_rejects_impossible_copies,
    batch_is_applied_in_order,
    failing_batch_reports_failed_change,
    empty_batch_has_no_effect,
    outbox_rows_commit_with_the_change_exactly_once_or_are_ignored,
    outbox_rows_commit_with_a_change_that_finds_everything_done,
    outbox_rows_are_not_committed_with_a_refused_change,
    outbox_rows_of_another_store_are_ignored,
    outbox_rows_of_another_partition_are_ignored,
    ls_sorts_by_name,
    ls_shows_children_only,
    ls_entries_equal_stat,
    ls_of_file_or_missing_path_is_rejected,
    ls_pages_are_complete_and_in_order,
    link_targets_of_a_listing_without_links_are_none,
    tree_walks_in_path_order,
    glob_star_stays_within_a_segment,
    glob_double_star_crosses_segments,
    glob_without_slash_matches_names_at_any_depth,
    glob_supports_braces_and_classes,
    posix_classes_work_in_globs_filters_and_ignore_files,
    glob_matches_characters_not_bytes,
    glob_hides_dot_names_unless_named,
    hidden_directories_are_entered_for_names_if_asked,
    glob_respects_ignore_files,
    glob_finds_directories_only_if_asked,
    glob_ignores_case_only_if_asked,
    glob_pages_are_complete_and_in_path_order,
    glob_searches_beneath_its_path,
    glob_rejects_malformed_patterns,
    glob_applies_base_and_prune,
    grep_is_literal_by_default,
    grep_finds_regular_expressions,
    grep_supports_case_word_and_whole_line,
    grep_with_invert_finds_other_lines,
    grep_returns_context_lines,
    grep_filters_by_glob_and_type,
    grep_lists_files_and_counts,
    grep_skips_and_counts_binary_files,
    grep_decodes_utf_16_if_asked,
    grep_skips_and_counts_large_files,
    grep_reports_ranges_and_offsets,
    grep_skips_hidden_and_ignored_files,
    grep_searches_directly_named_file,
    grep_pages_are_complete_and_in_order,
    grep_matches_across_lines_only_if_asked,
    grep_applies_base_and_prune,
    grep_rejects_malformed_patterns,
    search_finds_files_by_any_word,
    search_finds_words_spelled_nearly_like_unknown_ones,
    search_ranks_rare_and_frequent_words_higher,
    search_finds_files_by_their_paths,
    search_snippets_show_matching_lines,
    search_ignores_binary_content,
    search_pages_add_up_to_whole_ranking,
    search_selects_files_as_grep_does,
    search_selects_files_by_modification_time,
    search_reflects_changes,
    search_of_file_searches_only_that_file,
    search_rejects_invalid_arguments,
    limit_zero_returns_nothing_and_reports_more,
    concurrent_edits_lose_nothing,
    concurrent_appends_lose_nothing,
    one_of_many_concurrent_creators_wins,
    compare_and_swap_loses_no_increment,
    reader_never_sees_partial_write,
    concurrent_writers_and_deleters_keep_tree_consistent,
}
