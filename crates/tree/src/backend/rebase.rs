//! Maps paths, cursors, options, results and errors between two trees, one of which contains the other.
//!
//! A mount shows a tree beneath a prefix; a [`Subtree`](super::Subtree) shows the part of a tree beneath a base. Each maps calls by one
//! [`View`] and results by its [inverse](View::inverse), so everything that contains a path is mapped in one place.

use treehold_core::error::{Error, ErrorRecord};
use treehold_core::ops::{
    Changed, Entry, Failure, GlobOptions, GlobResult, GrepCursor, GrepOptions, GrepResult, Listing, PathGuard, SearchOptions, SearchResult,
    SearchScope, Truncation,
};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// How paths of one tree appear in another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum View<'a> {
    /// Beneath a prefix: with `/m`, `/a` appears as `/m/a`.
    Beneath(&'a VfsPath),
    /// From a base: with `/m`, `/m/a` appears as `/a`, and any path outside `/m` as `/`.
    From(&'a VfsPath),
}

impl View<'_> {
    /// Returns the inverse view.
    pub(crate) fn inverse(self) -> Self {
        match self {
            Self::Beneath(prefix) => Self::From(prefix),
            Self::From(base) => Self::Beneath(base),
        }
    }

    fn is_identity(self) -> bool {
        match self {
            Self::Beneath(path) | Self::From(path) => path.is_root(),
        }
    }

    /// Maps a path.
    pub(crate) fn path(self, path: &VfsPath) -> VfsPathBuf {
        match self {
            Self::Beneath(prefix) => prefix.concat(path),
            Self::From(base) => path.strip_prefix(base).unwrap_or(VfsPath::ROOT).to_owned(),
        }
    }

    /// Maps an error, in its path field and its message. `asked` lists the paths of the call, as its own tree names them: the first is used
    /// if the error has no path.
    pub(crate) fn error(self, error: Error, asked: &[&VfsPath]) -> Error {
        let error = match (error.path(), asked) {
            (None, [first, ..]) => error.at(first),
            _ => error,
        };
        match self {
            Self::Beneath(prefix) => error.rebased(prefix, asked),
            Self::From(base) => error.stripped(base, asked),
        }
    }

    /// Maps a listing.
    pub(crate) fn listing(self, mut listing: Listing) -> Listing {
        self.entries(&mut listing.entries);
        self.failures(&mut listing.failures);
        // The cursor is a name.
        listing
    }

    /// Maps the result of a glob.
    pub(crate) fn globbed(self, mut result: GlobResult) -> GlobResult {
        self.entries(&mut result.entries);
        self.failures(&mut result.failures);
        result.truncated =
            result.truncated.map(|cut| self.truncation(cut, |cursor| Some(self.path(&VfsPath::parse(cursor).ok()?).into_string())));
        result
    }

    /// Maps the result of a grep.
    pub(crate) fn grepped(self, mut result: GrepResult) -> GrepResult {
        if !self.is_identity() {
            result.files.iter_mut().for_each(|file| file.path = self.path(&file.path));
        }
        self.failures(&mut result.failures);
        result.truncated = result.truncated.map(|cut| {
            self.truncation(cut, |cursor| {
                let GrepCursor { path, line } = cursor.parse().ok()?;
                Some(GrepCursor { path: self.path(&path), line }.to_string())
            })
        });
        result
    }

    /// Maps the result of a search.
    pub(crate) fn recalled(self, mut result: SearchResult) -> SearchResult {
        if !self.is_identity() {
            result.hits.iter_mut().for_each(|hit| hit.path = self.path(&hit.path));
        }
        self.failures(&mut result.failures);
        result
    }

    /// Maps the results of changes.
    pub(crate) fn changed(self, mut changed: Vec<Changed>) -> Vec<Changed> {
        if !self.is_identity() {
            changed.iter_mut().for_each(|changed| changed.path = self.path(&changed.path));
        }
        changed
    }

    /// Maps the options of a glob except the cursor: it is a position, and not every position lies in the other tree.
    pub(crate) fn glob_options(self, options: &GlobOptions, start_after: Option<VfsPathBuf>) -> GlobOptions {
        let mut mapped = options.clone();
        mapped.start_after = start_after;
        self.scope(&mut mapped.scope);
        mapped
    }

    /// Maps the options of a grep except the cursor.
    pub(crate) fn grep_options(self, options: &GrepOptions, start_after: Option<GrepCursor>) -> GrepOptions {
        let mut mapped = options.clone();
        mapped.start_after = start_after;
        self.scope(&mut mapped.scope);
        mapped
    }

    /// Maps the options of a search.
    pub(crate) fn search_options(self, options: &SearchOptions) -> SearchOptions {
        let mut mapped = options.clone();
        self.scope(&mut mapped.scope);
        mapped
    }

    fn scope(self, scope: &mut SearchScope) {
        match self {
            Self::Beneath(prefix) => scope.prune.iter_mut().for_each(|path| *path = prefix.concat(path)),
            Self::From(base) => {
                scope.prune = scope.prune.iter().filter_map(|path| path.strip_prefix(base)).map(VfsPath::to_owned).collect();
            }
        }
        scope.guard = scope.guard.as_ref().map(|guard| self.guard(guard));
    }

    /// Returns a guard for the other tree that applies this tree's guard.
    fn guard(self, guard: &PathGuard) -> PathGuard {
        match self {
            Self::From(base) => guard.beneath(base),
            Self::Beneath(prefix) if prefix.is_root() => guard.clone(),
            Self::Beneath(prefix) => {
                let (guard, prefix) = (guard.clone(), prefix.to_owned());
                PathGuard::new(move |path, is_directory| path.strip_prefix(&prefix).is_none_or(|rest| guard.admits(rest, is_directory)))
            }
        }
    }

    fn entries(self, entries: &mut [Entry]) {
        if !self.is_identity() {
            entries.iter_mut().for_each(|entry| entry.path = self.path(&entry.path));
        }
    }

    fn failures(self, failures: &mut [Failure]) {
        if self.is_identity() {
            return;
        }
        for failure in failures {
            failure.path = self.path(&failure.path);
            failure.error = self.record(&failure.error);
        }
    }

    fn record(self, record: &ErrorRecord) -> ErrorRecord {
        match self {
            Self::Beneath(prefix) => record.clone().rebased(prefix),
            Self::From(base) => record.clone().stripped(base),
        }
    }

    /// Maps a cursor. A cursor that is not a path (of a search with limit 0) is unchanged.
    fn truncation(self, cut: Truncation, map: impl Fn(&str) -> Option<String>) -> Truncation {
        let cursor = if self.is_identity() { None } else { map(&cut.cursor) };
        Truncation { reason: cut.reason, cursor: cursor.unwrap_or(cut.cursor) }
    }
}

/// Where a position in path order lies relative to a subtree, which decides the meaning of a cursor there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position<'p> {
    /// Before the whole subtree.
    Before,
    /// At a path in the subtree, as the subtree names it.
    Within(&'p VfsPath),
    /// After the whole subtree.
    After,
}

impl<'p> Position<'p> {
    /// Finds where `position` lies relative to the subtree at `prefix`.
    pub(crate) fn of(position: &'p VfsPath, prefix: &VfsPath) -> Self {
        match position.strip_prefix(prefix) {
            Some(rest) => Self::Within(rest),
            None if position < prefix => Self::Before,
            None => Self::After,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::error::ErrorKind;
    use treehold_core::ops::{GrepFile, TruncationReason, Version};

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    #[test]
    fn mapped_path_maps_back() {
        let prefix = path("/m/n");
        for text in ["/", "/a", "/a/b"] {
            let out = View::Beneath(&prefix).path(&path(text));
            assert_eq!(View::Beneath(&prefix).inverse().path(&out), path(text));
        }
        assert_eq!(View::From(&prefix).path(&path("/m")), "/");
        assert_eq!(View::From(&prefix).path(&path("/m/nn")), "/");
    }

    #[test]
    fn cursors_of_results_are_mapped() {
        let cut = |cursor: &str| Some(Truncation { reason: TruncationReason::Limit, cursor: cursor.to_owned() });
        let prefix = path("/m");
        let mut result = GlobResult::default();
        for (cursor, mapped) in [("/a", "/m/a"), ("/", "/m"), ("", "")] {
            result.truncated = cut(cursor);
            assert_eq!(View::Beneath(&prefix).globbed(result.clone()).truncated, cut(mapped));
        }
        let mut result = GrepResult::default();
        result.files.push(GrepFile::new(path("/a"), 1, Vec::new()));
        for (cursor, mapped) in [("/a:7", "/m/a:7"), ("/a:b:end", "/m/a:b:end"), ("/:3", "/m:3"), ("", "")] {
            result.truncated = cut(cursor);
            let out = View::Beneath(&prefix).grepped(result.clone());
            assert_eq!(out.truncated, cut(mapped));
            assert_eq!(out.files[0].path, "/m/a");
            assert_eq!(View::From(&prefix).grepped(out), result);
        }
    }

    #[test]
    fn options_are_mapped_to_paths_of_the_inner_tree() {
        let base = path("/m");
        let mut options = GlobOptions::new("*");
        options.scope.prune = vec![path("/m/a"), path("/x"), path("/m")];
        options.scope.guard = Some(PathGuard::new(|path, _| path.as_str() != "/m/secret"));
        let inward = View::From(&base).glob_options(&options, None);
        assert_eq!(inward.scope.prune, [path("/a"), path("/")]);
        assert!(!inward.scope.guard.as_ref().is_some_and(|guard| guard.admits(&path("/secret"), false)));
        let outward = View::Beneath(&base).glob_options(&inward, Some(path("/m/k")));
        assert_eq!(outward.scope.prune, [path("/m/a"), path("/m")]);
        assert_eq!(outward.start_after, Some(path("/m/k")));
        let guard = outward.scope.guard.expect("it was set");
        assert!(!guard.admits(&path("/m/secret"), false));
        assert!(guard.admits(&path("/elsewhere"), true));
    }

    #[test]
    fn errors_and_failures_are_mapped_in_field_and_message() {
        let prefix = path("/m");
        let error = View::Beneath(&prefix).error(Error::new(ErrorKind::Unavailable, "`/a` cannot be reached"), &[&path("/a")]);
        assert_eq!((error.message(), error.path().map(VfsPath::as_str)), ("`/m/a` cannot be reached", Some("/m/a")));
        let mut result = GrepResult::default();
        result.push_failure(Failure { path: path("/a"), error: ErrorRecord::from(&Error::conflict(&path("/a"), Some(Version::new(7)))) });
        let out = View::Beneath(&prefix).grepped(result);
        assert_eq!(out.failures[0].path, "/m/a");
        assert!(out.failures[0].error.message.starts_with("`/m/a` has changed"), "{}", out.failures[0].error.message);
        assert_eq!(out.failures[0].error.path, Some(path("/m/a")));
    }

    #[test]
    fn position_of_a_base_is_before_within_or_after() {
        let prefix = path("/m/n");
        for (position, seen) in [
            ("/", Position::Before),
            ("/m", Position::Before),
            ("/m/a", Position::Before),
            ("/m/n", Position::Within(VfsPath::ROOT)),
            ("/m/n/x", Position::Within(&path("/x"))),
            ("/m/n-1", Position::After),
            ("/m/z", Position::After),
        ] {
            assert_eq!(Position::of(&path(position), &prefix), seen, "{position}");
        }
    }
}
