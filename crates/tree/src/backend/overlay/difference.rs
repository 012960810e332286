//! Differences between an overlay and its lower tree, in path order.
//!
//! The walk visits the directories of the upper tree and the hidden parts of the lower tree; the rest of the lower tree is not read. A file
//! that was rewritten with its content in the lower tree is not a difference.

use super::OverlayBackend;
use super::marks::{Base, Intent, Mark};
use super::merge::{Pages, absent, of_upper};
use crate::backend::Backend;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::{
    Entry, EntryKind, FileRead, ReadOptions, ReviewPurpose, Sight, StatOptions, Truncation, TruncationReason, Version,
};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// What the overlay did at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlayDifferenceKind {
    /// The lower tree has nothing there.
    Added,
    /// Both have something there, with different content or of different kinds.
    Changed,
    /// The overlay has nothing there.
    Removed,
}

impl fmt::Display for OverlayDifferenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Removed => "removed",
        })
    }
}

/// What happened to a path of the lower tree since the overlay first touched it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlayConflict {
    /// Something appeared there.
    Added,
    /// Its content or kind changed.
    Changed,
    /// It was removed.
    Removed,
}

impl fmt::Display for OverlayConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Removed => "removed",
        })
    }
}

/// One path at which the overlay and its lower tree differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OverlayDifference {
    /// The path.
    pub path: VfsPathBuf,
    /// The kind of difference.
    pub kind: OverlayDifferenceKind,
    /// The lower tree's current entry, with its own version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Entry>,
    /// The overlay's entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Entry>,
    /// The version of the lower tree's file when the overlay first touched it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub based_on: Option<Version>,
    /// The change of the lower tree since then, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<OverlayConflict>,
    /// Whether the caller may read what either tree has there.
    #[serde(skip)]
    pub is_readable: bool,
}

/// Options for listing differences.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverlayDiffOptions {
    /// Only differences at and beneath this path. Default `/`.
    pub path: VfsPathBuf,
    /// The largest number to return. Default 10,000.
    pub limit: usize,
    /// Continues after this path: the cursor of a truncated list.
    pub start_after: Option<VfsPathBuf>,
}

impl Default for OverlayDiffOptions {
    fn default() -> Self {
        Self { path: VfsPathBuf::root(), limit: 10_000, start_after: None }
    }
}

impl OverlayDiffOptions {
    /// Lists up to 10,000 differences.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lists differences at and beneath a path.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<VfsPathBuf>) -> Self {
        self.path = path.into();
        self
    }

    /// Sets the largest number to return.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Continues after a path.
    #[must_use]
    pub fn with_start_after(mut self, path: impl Into<VfsPathBuf>) -> Self {
        self.start_after = Some(path.into());
        self
    }
}

/// The differences between an overlay and its lower tree, in path order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct OverlayDiff {
    /// The differences.
    pub differences: Vec<OverlayDifference>,
    /// Set when there are more; the cursor is a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
}

impl OverlayBackend {
    /// Lists the differences between the overlay and its lower tree, in path order.
    ///
    /// Cost: grows with the number of changes, not with the lower tree. A written file is compared with the one in the lower tree if both
    /// have the same size.
    ///
    /// # Errors
    /// The errors of the two trees.
    pub async fn diff(&self, options: &OverlayDiffOptions) -> Result<OverlayDiff> {
        if self.whole.is_none() {
            return self.diff_all(options).await;
        }
        // Hidden differences do not count towards the limit, so only a shown one reveals that there are more, and the cursor never names a
        // hidden one.
        let (mut shown, mut asked) = (OverlayDiff::default(), options.clone());
        loop {
            asked.limit = (options.limit - shown.differences.len()).saturating_add(1);
            let page = self.diff_all(&asked).await?;
            let sights = self.review(ReviewPurpose::Show, &page.differences, false).await?;
            for (mut difference, sight) in page.differences.into_iter().zip(sights) {
                if sight == Sight::Hidden {
                    continue;
                }
                if shown.differences.len() == options.limit {
                    shown.truncated = Some(cut_after(&shown.differences, options));
                    return Ok(shown);
                }
                difference.is_readable = sight == Sight::Open;
                shown.differences.push(difference);
            }
            match page.truncated {
                Some(cut) => asked.start_after = Some(VfsPathBuf::parse(&cut.cursor)?),
                None => return Ok(shown),
            }
        }
    }

    /// Lists differences as [`OverlayBackend::diff`] does, including hidden ones.
    async fn diff_all(&self, options: &OverlayDiffOptions) -> Result<OverlayDiff> {
        let mut differences = Differences::of(self, options);
        let mut diff = OverlayDiff::default();
        while let Some(difference) = differences.next().await? {
            if diff.differences.len() == options.limit {
                diff.truncated = Some(cut_after(&diff.differences, options));
                break;
            }
            diff.differences.push(difference);
        }
        Ok(diff)
    }

    /// Lists all differences at and beneath a path.
    pub(super) async fn all_differences(&self, path: &VfsPath) -> Result<Vec<OverlayDifference>> {
        Ok(self.diff_all(&OverlayDiffOptions::new().with_path(path).with_limit(usize::MAX)).await?.differences)
    }

    /// Returns whether a file of the upper tree has the same content as the one in the lower tree. One that is gone by now has not.
    async fn is_same(&self, path: &VfsPath, upper: &Entry, lower: &Entry) -> Result<bool> {
        if lower.kind != EntryKind::File || upper.size_bytes != lower.size_bytes {
            return Ok(false);
        }
        let options = ReadOptions::new().with_bytes_max(u64::MAX);
        let (above, beneath) = futures::join!(self.tree.read(path, &options), self.lower.read(path, &options));
        let (above, beneath) = (still_a_file(above)?, still_a_file(beneath)?);
        Ok(above.zip(beneath).is_some_and(|(above, beneath)| above.content == beneath.content))
    }
}

/// Returns `None` for a file that was removed or replaced by a directory since it was listed.
fn still_a_file(read: Result<FileRead>) -> Result<Option<FileRead>> {
    match absent(read) {
        Err(error) if error.kind() == ErrorKind::IsDirectory => Ok(None),
        read => read,
    }
}

impl OverlayBackend {
    /// Returns whether the lower tree has at a path what an apply of this overlay intended to leave there.
    async fn is_intended(&self, path: &VfsPath, lower: Option<&Entry>, intents: &[Intent]) -> Result<bool> {
        for intent in intents {
            let is_so = match (intent, lower) {
                (Intent::Nothing, lower) => lower.is_none(),
                (Intent::Directory, Some(lower)) => lower.is_directory(),
                (Intent::File(digest), Some(lower)) if lower.kind == EntryKind::File => {
                    let read = still_a_file(self.lower.read(path, &ReadOptions::new().with_bytes_max(u64::MAX)).await)?;
                    read.is_some_and(|read| lower.version.is_none_or(|seen| seen == read.version) && blake3::hash(&read.content) == *digest)
                }
                _ => false,
            };
            if is_so {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the truncation of a page that the limit ended: its cursor is the last path, or the start of an empty page.
fn cut_after(differences: &[OverlayDifference], options: &OverlayDiffOptions) -> Truncation {
    let last = differences.last().map(|last| &last.path).or(options.start_after.as_ref());
    Truncation { reason: TruncationReason::Limit, cursor: last.map_or(VfsPath::ROOT, |last| last).to_string() }
}

/// What the marks above a path record about the lower tree, nearest first.
#[derive(Debug)]
struct Said {
    directory: VfsPathBuf,
    beneath: BTreeMap<String, Option<u64>>,
    /// What an apply intended to leave beneath.
    intents: BTreeMap<String, Vec<Intent>>,
    above: Option<Arc<Said>>,
}

/// A path of the walk.
#[derive(Debug)]
struct WalkedPath {
    path: VfsPathBuf,
    upper: Option<Entry>,
    lower: Option<Entry>,
    /// Whether the lower tree is hidden above the path.
    is_hidden: bool,
    is_marked: bool,
    said: Option<Arc<Said>>,
}

/// A walk over the differences.
struct Differences<'o> {
    overlay: &'o OverlayBackend,
    options: &'o OverlayDiffOptions,
    /// The remaining paths of each entered directory, the next one last.
    stack: Vec<Vec<WalkedPath>>,
    is_started: bool,
}

impl<'o> Differences<'o> {
    fn of(overlay: &'o OverlayBackend, options: &'o OverlayDiffOptions) -> Self {
        Self { overlay, options, stack: Vec::new(), is_started: false }
    }

    async fn next(&mut self) -> Result<Option<OverlayDifference>> {
        if !self.is_started {
            self.is_started = true;
            let root = WalkedPath {
                path: VfsPathBuf::root(),
                upper: Some(Entry::directory(VfsPath::ROOT)),
                lower: absent(self.overlay.lower.stat(VfsPath::ROOT, &StatOptions::new()).await)?,
                is_hidden: false,
                is_marked: false,
                said: None,
            };
            self.stack.push(vec![root]);
        }
        loop {
            let Some(level) = self.stack.last_mut() else { return Ok(None) };
            let Some(place) = level.pop() else {
                self.stack.pop();
                continue;
            };
            let of_path = &self.options.path;
            if !(place.path.starts_with(of_path) || of_path.starts_with(&place.path)) {
                continue;
            }
            let is_passed = |cursor: &VfsPathBuf| place.path <= *cursor;
            let is_passed = self.options.start_after.as_ref().is_some_and(is_passed);
            if is_passed && !self.options.start_after.as_ref().is_some_and(|cursor| cursor.starts_with(&place.path)) {
                continue;
            }
            let found = if is_passed || !place.path.starts_with(of_path) { None } else { Some(()) };
            let (difference, place) = self.decide(place, found.is_some()).await?;
            self.enter(place).await?;
            if let Some(difference) = difference {
                return Ok(Some(difference));
            }
        }
    }

    /// Decides whether a path differs, and reads its mark.
    async fn decide(&self, mut place: WalkedPath, is_wanted: bool) -> Result<(Option<OverlayDifference>, WalkedPath)> {
        let mark = if place.is_marked { self.overlay.mark(&place.path).await?.unwrap_or_default() } else { Mark::default() };
        let base = match &mark.base {
            Some(base) => base.clone(),
            None => said(place.said.as_deref(), &place.path),
        };
        let both_are_directories = || [&place.upper, &place.lower].into_iter().all(|entry| entry.as_ref().is_some_and(Entry::is_directory));
        if mark.claims_directory() && both_are_directories() {
            place.is_marked = false;
            return Ok((None, place));
        }
        let intents = match mark.own_intents() {
            [] => intended(place.said.as_deref(), &place.path).to_vec(),
            own => own.to_vec(),
        };
        let beneath = if let Some(Base::Directory(beneath)) = &mark.base { beneath.clone() } else { BTreeMap::new() };
        if !beneath.is_empty() || !mark.intents.is_empty() {
            let (above, intents) = (place.said.take(), mark.intents.clone());
            place.said = Some(Arc::new(Said { directory: place.path.clone(), beneath, intents, above }));
        }
        if !is_wanted || place.path.is_root() {
            return Ok((None, place));
        }
        let hides = place.is_hidden || place.is_marked;
        let kind = match (&place.upper, &place.lower) {
            (None, Some(_)) if hides => OverlayDifferenceKind::Removed,
            (None, _) => return Ok((None, place)),
            (Some(_), None) => OverlayDifferenceKind::Added,
            (Some(upper), Some(lower)) if upper.is_directory() && lower.is_directory() => return Ok((None, place)),
            (Some(upper), Some(lower)) => {
                if !upper.is_directory() && self.overlay.is_same(&place.path, upper, lower).await? {
                    return Ok((None, place));
                }
                OverlayDifferenceKind::Changed
            }
        };
        let after = match &place.upper {
            Some(upper) if upper.is_directory() => Some(of_upper(upper.clone())),
            Some(upper) => Some(of_upper(mark.timed(upper.clone()))),
            None => None,
        };
        let mut conflict = conflict(&base, place.lower.as_ref());
        if conflict.is_some() && self.overlay.is_intended(&place.path, place.lower.as_ref(), &intents).await? {
            conflict = None;
        }
        let difference = OverlayDifference {
            path: place.path.clone(),
            kind,
            before: place.lower.clone(),
            after,
            based_on: if let Base::File(version) = base { Some(Version::new(version)) } else { None },
            conflict,
            is_readable: true,
        };
        Ok((Some(difference), place))
    }

    /// Continues with what lies beneath a path.
    async fn enter(&mut self, place: WalkedPath) -> Result<()> {
        let overlay = self.overlay;
        let is_upper = place.upper.as_ref().is_some_and(Entry::is_directory);
        let is_lower = place.lower.as_ref().is_some_and(Entry::is_directory);
        // Beneath a file, and beneath a removed path, nothing of the lower tree shows.
        let is_hidden = place.is_hidden || place.is_marked || place.upper.as_ref().is_some_and(|upper| !upper.is_directory());
        if !(is_upper || (is_lower && is_hidden)) {
            return Ok(());
        }
        let mut children: BTreeMap<String, WalkedPath> = BTreeMap::new();
        let child = |name: &str| -> Result<WalkedPath> {
            let path = place.path.child(name)?;
            Ok(WalkedPath { path, upper: None, lower: None, is_hidden, is_marked: false, said: place.said.clone() })
        };
        if is_upper {
            let mut pages = Pages::new(&overlay.tree, &place.path, None);
            while let Some(entry) = absent(pages.next().await)?.flatten() {
                let mut place = child(entry.name())?;
                let name = entry.name().to_owned();
                place.upper = Some(entry);
                children.insert(name, place);
            }
            for name in overlay.marked_names(&place.path).await? {
                let entry = children.entry(name.clone());
                match entry {
                    std::collections::btree_map::Entry::Occupied(mut known) => known.get_mut().is_marked = true,
                    std::collections::btree_map::Entry::Vacant(free) => {
                        free.insert(WalkedPath { is_marked: true, ..child(&name)? });
                    }
                }
            }
        }
        if is_lower && is_hidden {
            let mut pages = Pages::new(&*overlay.lower, &place.path, None);
            while let Some(entry) = absent(pages.next().await)?.flatten() {
                let name = entry.name().to_owned();
                if !children.contains_key(&name) {
                    children.insert(name.clone(), child(&name)?);
                }
                if let Some(place) = children.get_mut(&name) {
                    place.lower = Some(entry);
                }
            }
        } else if is_lower {
            for place in children.values_mut() {
                place.lower = absent(overlay.lower.stat(&place.path, &StatOptions::new()).await)?;
            }
        }
        self.stack.push(children.into_values().rev().collect());
        Ok(())
    }
}

/// Returns what the lower tree had at a path, according to the marks above it.
fn said(mut nearest: Option<&Said>, path: &VfsPath) -> Base {
    while let Some(said) = nearest {
        if let Some(rest) = path.strip_prefix(&said.directory)
            && let Some(version) = said.beneath.get(rest.relative())
        {
            return version.map_or_else(|| Base::Directory(BTreeMap::new()), Base::File);
        }
        nearest = said.above.as_deref();
    }
    Base::Nothing
}

/// Returns what an apply intended to leave at a path, according to the marks above it.
fn intended<'s>(mut nearest: Option<&'s Said>, path: &VfsPath) -> &'s [Intent] {
    while let Some(said) = nearest {
        if let Some(intents) = path.strip_prefix(&said.directory).and_then(|rest| said.intents.get(rest.relative())) {
            return intents;
        }
        nearest = said.above.as_deref();
    }
    &[]
}

/// Compares the lower tree's entry with its recorded base.
pub(super) fn conflict(base: &Base, lower: Option<&Entry>) -> Option<OverlayConflict> {
    match (base, lower) {
        (Base::Nothing, None) => None,
        (Base::Nothing, Some(_)) => Some(OverlayConflict::Added),
        (Base::File(_) | Base::Directory(_), None) => Some(OverlayConflict::Removed),
        (Base::Directory(_), Some(lower)) => (!lower.is_directory()).then_some(OverlayConflict::Changed),
        (Base::File(version), Some(lower)) => {
            let is_kept = !lower.is_directory() && lower.version.is_none_or(|current| current.number() == *version);
            (!is_kept).then_some(OverlayConflict::Changed)
        }
    }
}
