//! The contract of [`Backend`], one law a case.
//!
//! A case gets a [`Tree`]: a fresh, empty tree, seen from its root or, for a tree mounted somewhere, from a base path, so
//! that the same cases prove a backend, a layer around it, and a composite that holds it. Run them by
//! [`backend_conformance!`](crate::backend_conformance), which makes one test of each.

mod changes;
mod concurrency;
mod finding;
mod listing;
mod reading;
mod recalling;

pub use changes::LINE_ENDING_EDITS;
use changes::*;
use concurrency::*;
use finding::*;
use listing::*;
use reading::*;
use recalling::*;

use super::{Fresh, cases};
use crate::backend::{Backend, BackendExt};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::{
    Change, Changed, Edit, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, ReadOptions,
    SearchOptions, SearchResult, Version, WriteMode,
};
use crate::path::{VfsPath, VfsPathBuf};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// What a case gets.
type Subject = Arc<Tree>;

/// A fresh tree for one case.
pub struct Tree {
    backend: Arc<dyn Backend>,
    base: VfsPathBuf,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree({} at {})", self.backend, self.base)
    }
}

impl Tree {
    /// Makes the tree of an empty backend.
    pub fn new(backend: impl Backend + 'static) -> Self {
        Self { backend: Arc::new(backend), base: VfsPathBuf::root() }
    }

    /// Shows the backend's directory `base`, which exists and is empty, as the tree.
    ///
    /// # Panics
    /// When `base` is not a path.
    #[must_use]
    pub fn at(mut self, base: &str) -> Self {
        self.base = VfsPathBuf::parse(base).expect("the base is a path");
        self
    }

    /// Makes the tree the subject of a case.
    pub fn fresh(self) -> Fresh<Self> {
        Fresh::new(Arc::new(self))
    }

    /// Returns the backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Tells whether the tree is all of the backend, so that its root cannot be moved, copied or removed.
    pub(crate) fn is_whole(&self) -> bool {
        self.base.is_root()
    }

    /// Returns the whole path of one within the tree.
    ///
    /// # Panics
    /// When `path` is not a path.
    pub fn path(&self, path: &str) -> VfsPathBuf {
        self.base.concat(&VfsPath::parse(path).expect("cases name legal paths"))
    }

    /// Returns a path of the backend as seen from the tree's root.
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
        self.backend.stat(&self.path(path)).await
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

    /// Lists the names in a directory; directories end with `/`.
    async fn names(&self, path: &str) -> Vec<String> {
        let listing = self.ls(path, &LsOptions::new()).await.unwrap_or_else(|error| panic!("ls of {path}: {error:?}"));
        assert_eq!(listing.truncated, None);
        listing.entries.iter().map(|entry| format!("{}{}", entry.name(), if entry.is_directory() { "/" } else { "" })).collect()
    }

    pub(crate) async fn glob(&self, path: &str, options: &GlobOptions) -> Result<GlobResult> {
        self.backend.glob(&self.path(path), options).await
    }

    /// Finds by pattern from the tree's root and returns the paths.
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

    /// Finds lines from the tree's root and returns them as `path:line:text`, context lines as `path-line-text`.
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

    /// Asserts that a call failed with a kind, and that the error is in the caller's paths.
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
    /// Makes a module of tests, one for each case of the backend contract: `backend_conformance!(name, fresh)`, where `fresh`
    /// is an async function that returns a [`Fresh<Tree>`](crate::conformance::Fresh).
    ///
    /// ```no_run
    /// use stratafs::StateBackend;
    /// use stratafs::conformance::{Fresh, backend::Tree};
    ///
    /// async fn state() -> Fresh<Tree> {
    ///     Tree::new(StateBackend::new()).fresh()
    /// }
    ///
    /// stratafs::backend_conformance!(state_backend, state);
    /// ```
    backend_conformance, backend, Tree:
    an_empty_tree_lists_nothing,
    the_root_is_a_directory,
    content_comes_back_byte_for_byte,
    large_content_comes_back_byte_for_byte,
    parts_of_a_large_file_are_those_of_its_content,
    legal_names_are_kept,
    stat_tells_what_is_there,
    a_missing_path_is_not_found,
    beneath_a_file_nothing_is,
    a_directory_is_not_read,
    read_returns_a_window_of_lines,
    read_returns_a_range_of_bytes,
    read_is_bounded,
    an_offset_past_the_end_is_refused,
    line_numbers_of_read_and_grep_agree,
    parents_appear_by_themselves,
    overwrite_replaces_and_keeps_the_creation_time,
    create_new_refuses_what_is_there,
    a_conditional_write_compares_the_version,
    a_file_is_never_a_directory_too,
    a_refused_write_leaves_no_parents,
    review_answers_each_path_and_changes_nothing,
    append_creates_and_adds,
    edit_replaces_the_only_occurrence,
    edit_rejects_ambiguous_match,
    edit_rejects_no_match,
    edit_rejects_an_empty_text,
    edit_replaces_all_when_asked,
    edits_of_one_call_take_effect_together,
    edit_meets_text_as_shown,
    edit_keeps_other_line_endings,
    edit_takes_line_endings_as_units,
    edit_counts_occurrences_across_line_endings,
    edit_keeps_binary_content,
    edit_compares_an_expected_version,
    edit_needs_a_file,
    every_write_makes_a_version_of_its_own,
    a_version_is_never_used_again,
    create_dir_makes_an_empty_directory,
    delete_removes_a_file,
    delete_of_a_directory_asks_for_recursive,
    delete_of_the_root_is_refused,
    delete_compares_an_expected_version,
    rename_moves_a_file,
    rename_moves_a_directory,
    rename_refuses_what_cannot_be,
    rename_overwrites_only_files_and_when_asked,
    copy_leaves_the_source,
    copy_copies_a_directory,
    copy_refuses_what_cannot_be,
    a_batch_is_applied_in_order,
    a_failing_batch_says_which_change,
    an_empty_batch_does_nothing,
    ls_sorts_by_name,
    ls_shows_children_only,
    ls_tells_sizes_and_versions,
    ls_of_what_is_no_directory_is_refused,
    ls_pages_by_name,
    tree_walks_in_path_order,
    glob_star_stays_within_a_segment,
    glob_double_star_crosses,
    glob_without_slash_matches_names_at_any_depth,
    glob_knows_braces_and_classes,
    globs_know_posix_classes_wherever_they_are_taken,
    glob_counts_characters,
    glob_hides_dot_names_unless_named,
    glob_respects_ignore_files,
    glob_finds_directories_when_asked,
    glob_ignores_case_when_asked,
    glob_pages_in_path_order,
    glob_searches_beneath_its_path,
    glob_refuses_malformed_patterns,
    glob_sees_its_base_and_prunes,
    grep_is_literal_by_default,
    grep_finds_regular_expressions,
    grep_knows_case_word_and_line,
    grep_inverts,
    grep_gives_context,
    grep_filters_by_glob_and_type,
    grep_lists_files_and_counts,
    grep_skips_and_counts_binary_files,
    grep_decodes_by_the_byte_order_mark,
    grep_skips_and_counts_large_files,
    grep_reports_ranges_and_offsets,
    grep_hides_what_glob_hides,
    grep_searches_one_file,
    grep_pages_through_everything,
    grep_matches_across_lines_when_asked,
    grep_sees_its_base_and_prunes,
    grep_refuses_malformed_patterns,
    // recall
    search_finds_files_by_any_word,
    search_ranks_rare_and_frequent_words_higher,
    search_finds_files_by_their_paths,
    search_shows_the_lines_that_tell_why,
    search_takes_binary_content_for_none,
    search_is_cut_into_pages,
    search_selects_files_as_grep_does,
    search_selects_files_by_time,
    search_sees_what_was_changed,
    search_of_a_file_looks_at_it_alone,
    search_refuses_what_makes_no_sense,
    concurrent_edits_are_all_there,
    concurrent_appends_are_all_there,
    one_of_many_creators_wins,
    compare_and_swap_counts_right,
    a_reader_never_sees_half_a_write,
    writers_and_deleters_keep_the_tree_whole,
}
