//! Lookup of a path in two trees laid over each other.

use super::OverlayBackend;
use super::marks::{Mark, mark_path, marks_of};
use crate::backend::flat::beneath_a_file;
use crate::backend::{Backend, Subtree};
use futures::future::try_join_all;
use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Entry, EntryKind, Failure, Listing, LsOptions, ReadOptions, StatOptions, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The largest page requested from the lower or upper tree.
const PAGE_ENTRIES: usize = 4_096;

/// The entries of both trees at one path.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    /// The entry written to the overlay.
    pub(super) upper: Option<Entry>,
    /// The lower tree's entry, whether or not it shows; not looked up beneath a mark.
    pub(super) lower: Option<Entry>,
    /// Whether the path itself has a mark.
    pub(super) marked: bool,
    /// Whether a directory above has one.
    pub(super) hidden_above: bool,
    /// Whether the path lies beneath a file of the upper tree.
    pub(super) beneath_a_file: bool,
    /// Whether the lower tree reports that the path lies beneath a file.
    lower_is_beneath_a_file: bool,
}

impl Look {
    /// Returns whether the lower tree shows at the path.
    pub(super) fn shows_lower(&self) -> bool {
        !(self.marked || self.hidden_above || self.beneath_a_file)
    }

    /// Returns the entry at the path, with the versions of its own tree.
    pub(super) fn shown(&self) -> Option<Shown<'_>> {
        match (&self.upper, &self.lower) {
            (Some(upper), _) => Some(Shown::Upper(upper)),
            (None, Some(lower)) if self.shows_lower() => Some(Shown::Lower(lower)),
            _ => None,
        }
    }
}

/// The entry that shows at a path, and its tree.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shown<'l> {
    Upper(&'l Entry),
    Lower(&'l Entry),
}

/// Converts a version of the upper tree to one of the overlay.
///
/// The last bit identifies the tree, so equal numbers in both trees are different versions.
pub(super) fn upper_version(version: Version) -> Version {
    Version::new(version.number() << 1)
}

/// Converts a version of the lower tree to one of the overlay.
pub(super) fn lower_version(version: Version) -> Version {
    Version::new((version.number() << 1) | 1)
}

/// Converts an entry of the upper tree to one of the overlay.
pub(super) fn of_upper(mut entry: Entry) -> Entry {
    entry.version = entry.version.map(upper_version);
    entry
}

/// Converts an entry of the lower tree to one of the overlay.
pub(super) fn of_lower(mut entry: Entry) -> Entry {
    entry.version = entry.version.map(lower_version);
    entry
}

/// Returns `None` for an error that only says that nothing is there.
pub(super) fn absent<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

impl OverlayBackend {
    /// Looks up one path in both trees.
    pub(super) async fn look(&self, path: &VfsPath) -> Result<Look> {
        self.look_with(path, &StatOptions::new()).await
    }

    /// Looks up one path in both trees, with the caller's options.
    pub(super) async fn look_with(&self, path: &VfsPath, options: &StatOptions) -> Result<Look> {
        let mut look = Look::default();
        match self.tree.stat(path, options).await {
            Ok(entry) => look.upper = Some(entry),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::NotADirectory => look.beneath_a_file = true,
            Err(error) => return Err(error),
        }
        let above = path.ancestors().filter(|above| !above.is_root());
        let marks = try_join_all(above.chain((!path.is_root()).then_some(path)).map(|at| self.is_marked(at))).await?;
        if let Some((own, above)) = marks.split_last() {
            look.marked = *own;
            look.hidden_above = above.contains(&true);
        }
        if look.hidden_above || look.beneath_a_file {
            return Ok(look);
        }
        match self.lower.stat(path, options).await {
            Ok(entry) => look.lower = Some(entry),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::NotADirectory => look.lower_is_beneath_a_file = true,
            Err(error) => return Err(error),
        }
        Ok(look)
    }

    /// Returns the error for a path where nothing shows.
    pub(super) async fn missing(&self, path: &VfsPath, look: &Look) -> Error {
        if look.beneath_a_file {
            return beneath_a_file(path);
        }
        if !look.lower_is_beneath_a_file {
            return Error::not_found(path);
        }
        // A file above the path in the lower tree may be a directory in the overlay.
        for above in path.ancestors().filter(|above| !above.is_root()) {
            match self.look(above).await {
                Ok(look) => match look.shown() {
                    Some(Shown::Upper(entry) | Shown::Lower(entry)) if entry.is_directory() => {}
                    Some(_) => return beneath_a_file(path),
                    None => return Error::not_found(path),
                },
                Err(error) => return error,
            }
        }
        Error::not_found(path)
    }

    async fn is_marked(&self, path: &VfsPath) -> Result<bool> {
        let found = absent(self.upper.stat(&mark_path(path), &StatOptions::new()).await).map_err(|error| about(path, error))?;
        Ok(found.is_some())
    }

    /// Reads the mark of a path, if it has one.
    pub(super) async fn mark(&self, path: &VfsPath) -> Result<Option<Mark>> {
        let options = ReadOptions::new().with_bytes_max(u64::MAX);
        let read = absent(self.upper.read(&mark_path(path), &options).await).map_err(|error| about(path, error))?;
        read.map(|read| Mark::from_bytes(&read.content).map(|(_, mark)| mark).map_err(|error| error.at(path))).transpose()
    }

    /// Returns the names beneath a directory that have marks.
    pub(super) async fn marked_names(&self, directory: &VfsPath) -> Result<HashSet<String>> {
        self.marked_names_at(&marks_of(directory)).await.map_err(|error| about(directory, error))
    }

    async fn marked_names_at(&self, place: &VfsPath) -> Result<HashSet<String>> {
        let mut names = HashSet::new();
        let mut pages = Pages::new(&*self.upper, place, None);
        while let Some(entry) = absent(pages.next().await)?.flatten() {
            names.insert(entry.name().to_owned());
        }
        Ok(names)
    }

    /// Converts an entry of the upper tree, with the times that its mark records.
    pub(super) async fn shown_upper(&self, entry: Entry, marked: bool) -> Result<Entry> {
        let mark = if marked && !entry.is_directory() { self.mark(&entry.path).await? } else { None };
        Ok(of_upper(mark.map_or_else(|| entry.clone(), |mark| mark.timed(entry.clone()))))
    }

    /// Lists up to `limit` children of a directory of the overlay, and one more if there are more.
    pub(super) async fn merged(&self, path: &VfsPath, options: &LsOptions) -> Result<Merged> {
        let look = self.look_with(path, &StatOptions::new().with_refuse_links(options.refuse_links)).await?;
        let shows_lower = look.shows_lower();
        let (upper, lower) = (look.upper.as_ref(), look.lower.as_ref().filter(|_| shows_lower));
        match (upper, lower) {
            (Some(upper), _) if !upper.is_directory() => return Err(Error::not_a_directory(path)),
            (None, None) => return Err(self.missing(path, &look).await),
            (None, Some(lower)) if lower.kind == EntryKind::File || lower.kind == EntryKind::Other => {
                return Err(Error::not_a_directory(path));
            }
            _ => {}
        }
        let after = options.start_after.as_deref();
        let mut merged = Merged { entries: Vec::new(), failures: Vec::new() };
        let pages = |tree| Pages::new(tree, path, after).up_to(options.limit).with_refuse_links(options.refuse_links);
        let mut upper = upper.map(|_| pages(&self.tree));
        // The lower tree may have something other than a directory here, which then does not show.
        let is_merged = lower.is_some_and(|lower| upper.is_none() || lower.is_directory());
        let mut lower = is_merged.then(|| pages(&*self.lower));
        let marked = if upper.is_some() { self.marked_names(path).await? } else { HashSet::new() };
        while merged.entries.len() <= options.limit {
            if let Some(pages) = &mut upper {
                pages.fill().await?;
            }
            if let Some(pages) = &mut lower {
                pages.fill().await?;
            }
            let (above, beneath) = (upper.as_ref().and_then(Pages::first), lower.as_ref().and_then(Pages::first));
            let order = match (above, beneath) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(above), Some(beneath)) => above.name().cmp(beneath.name()),
            };
            let above = (order != Ordering::Greater).then(|| upper.as_mut().and_then(Pages::take)).flatten();
            let beneath = (order != Ordering::Less).then(|| lower.as_mut().and_then(Pages::take)).flatten();
            match (above, beneath) {
                // A directory in both trees has the times of the lower one.
                (Some(above), Some(beneath)) if above.is_directory() && beneath.is_directory() && !marked.contains(above.name()) => {
                    merged.entries.push(of_lower(beneath));
                }
                (Some(above), _) => {
                    let is_marked = marked.contains(above.name());
                    merged.entries.push(self.shown_upper(above, is_marked).await?);
                }
                (None, Some(beneath)) if !marked.contains(beneath.name()) => merged.entries.push(of_lower(beneath)),
                _ => {}
            }
        }
        merged.failures = [upper.map(|pages| pages.failures), lower.map(|pages| pages.failures)].into_iter().flatten().flatten().collect();
        Ok(merged)
    }

    /// Lists all children of a directory of the overlay.
    pub(super) async fn children(&self, path: &VfsPath) -> Result<Merged> {
        self.merged(path, &LsOptions::new().with_limit(usize::MAX)).await
    }

    /// Lists a page of a directory of the overlay.
    pub(super) async fn list(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let merged = self.merged(path, options).await?;
        let mut listing = Listing::from_sorted(merged.entries, options);
        listing.failures = merged.failures;
        Ok(listing)
    }
}

/// The children of a directory of the overlay.
pub(super) struct Merged {
    pub(super) entries: Vec<Entry>,
    pub(super) failures: Vec<Failure>,
}

/// The children of a directory of one tree, a page at a time.
pub(super) struct Pages<'b> {
    backend: &'b dyn Backend,
    path: VfsPathBuf,
    options: LsOptions,
    page: VecDeque<Entry>,
    is_last: bool,
    failures: Vec<Failure>,
}

impl<'b> Pages<'b> {
    pub(super) fn new(backend: &'b dyn Backend, path: &VfsPath, start_after: Option<&str>) -> Self {
        let mut options = LsOptions::new().with_limit(PAGE_ENTRIES);
        options.start_after = start_after.map(str::to_owned);
        Self { backend, path: path.to_owned(), options, page: VecDeque::new(), is_last: false, failures: Vec::new() }
    }

    /// Limits pages to the number of entries likely to be used.
    fn up_to(mut self, limit: usize) -> Self {
        self.options.limit = limit.saturating_add(1).min(PAGE_ENTRIES);
        self
    }

    fn with_refuse_links(mut self, refuse_links: bool) -> Self {
        self.options.refuse_links = refuse_links;
        self
    }

    async fn fill(&mut self) -> Result<()> {
        while self.page.is_empty() && !self.is_last {
            let listing = self.backend.ls(&self.path, &self.options).await?;
            self.page = listing.entries.into();
            self.failures.extend(listing.failures);
            match listing.truncated {
                Some(truncation) => self.options.start_after = Some(truncation.cursor),
                None => self.is_last = true,
            }
        }
        Ok(())
    }

    fn first(&self) -> Option<&Entry> {
        self.page.front()
    }

    fn take(&mut self) -> Option<Entry> {
        self.page.pop_front()
    }

    /// Returns the next child.
    pub(super) async fn next(&mut self) -> Result<Option<Entry>> {
        self.fill().await?;
        Ok(self.take())
    }
}

/// Rewrites the error of a mark to name the overlay's path, because the mark's own location is an internal detail.
pub(super) fn about(path: &VfsPath, error: Error) -> Error {
    let message = format!("the overlay's record of `{path}` cannot be read or written ({})", error.kind().code());
    let about = Error::new(error.kind(), message).at(path);
    if error.is_without_effect() { about.without_effect().with_source(error) } else { about.with_source(error) }
}

/// Returns the upper tree's files as a separate tree.
pub(super) fn tree_of(upper: &std::sync::Arc<dyn Backend>) -> Subtree {
    Subtree::new(upper.clone(), super::marks::TREE.parse().expect("a legal path"))
}
