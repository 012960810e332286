//! One batch on an overlay: its view of both trees, and its result in the upper one.
//!
//! A batch becomes one batch of the upper tree: files, marks and the turn together. The turn is a file that each batch replaces on the
//! condition that it still has the version read at the start. A batch that was planned on outdated content, because another batch committed
//! meanwhile in any process, therefore does not take effect and is planned again.

use super::OverlayBackend;
use super::marks::{Base, Intent, Mark, TURN, base_of, mark_path, tree_path};
use super::merge::{Look, Shown, about, absent, lower_version, upper_version};
use crate::backend::flat::{Beneath, FileNode, Mark as NodeMark, Node, Times, TreeTransaction};
use crate::backend::{Backend, BackendExt};
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change, Entry, EntryKind, Extensions, Failure, ReadOptions, StatOptions, Version, WriteMode};
use treehold_core::path::{InvalidPath, PATH_BYTES_MAX, VfsPath, VfsPathBuf};
use treehold_core::work::Pace;
use treehold_store::Outbox;

/// The most bytes of content that one rename or copy of a directory holds in memory.
const SUBTREE_BYTES_MAX: u64 = 1 << 30;

/// A batch being planned.
pub(super) struct OverlayTransaction<'b> {
    overlay: &'b OverlayBackend,
    /// The entries and marks of paths that were looked up.
    facts: HashMap<VfsPathBuf, Fact>,
    /// The batch's own result at a path; `None` if it removed a file.
    pending: BTreeMap<VfsPathBuf, Option<Pending>>,
    /// Directories that were removed with everything beneath them.
    gone: BTreeSet<VfsPathBuf>,
    /// The total length of the paths of created directories, in bytes.
    made_bytes: u64,
    pace: Pace,
    /// The marks that the batch leaves.
    marks: BTreeMap<VfsPathBuf, Mark>,
    /// The paths whose marks in the upper tree the batch removes. Kept apart, so that removing a directory visits only existing marks.
    unmarked: BTreeSet<VfsPathBuf>,
    /// The paths that have a mark in the upper tree.
    marked: HashSet<VfsPathBuf>,
    /// The lower tree's content beneath directories that are about to be removed.
    surveys: HashMap<VfsPathBuf, Survey>,
    writes: Vec<Change>,
    /// For each write, the index of the caller's change that caused it.
    owners: Vec<usize>,
    /// For each put of a file, the index of its write.
    puts: Vec<usize>,
    /// The index of the current change.
    current: usize,
    /// Whether the current change removes its path, for which the name suffices.
    removes: bool,
    /// Whether a file of the lower tree changed between two reads of it.
    is_stale: bool,
}

#[derive(Debug, Clone)]
struct Fact {
    look: Look,
    mark: Option<Mark>,
}

#[derive(Debug, Clone)]
enum Pending {
    File { content: Bytes, node: FileNode },
    Directory(Option<Timestamp>),
}

/// The marks of a directory that is removed.
#[derive(Debug, Clone, Default)]
struct Survey {
    /// What the lower tree had beneath it.
    beneath: BTreeMap<String, Option<u64>>,
    /// What an apply intended to leave beneath it.
    intents: BTreeMap<String, Vec<Intent>>,
    /// The marks that the directory's own mark replaces.
    marks: Vec<VfsPathBuf>,
}

impl<'b> OverlayTransaction<'b> {
    /// Starts an empty batch.
    pub(super) fn new(overlay: &'b OverlayBackend) -> Self {
        Self {
            overlay,
            facts: HashMap::new(),
            pending: BTreeMap::new(),
            gone: BTreeSet::new(),
            made_bytes: 0,
            pace: Pace::default(),
            marks: BTreeMap::new(),
            unmarked: BTreeSet::new(),
            marked: HashSet::new(),
            surveys: HashMap::new(),
            writes: Vec::new(),
            owners: Vec::new(),
            puts: Vec::new(),
            current: 0,
            removes: false,
            is_stale: false,
        }
    }

    /// Sets the change that is planned next.
    pub(super) fn begin(&mut self, index: usize, change: &Change) {
        self.current = index;
        self.removes = matches!(change, Change::Delete { .. });
    }

    /// Returns whether content of the lower tree changed while it was read.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Commits the batch if the turn still has this version. Returns the version of each put of a file, or `None` if another batch took the
    /// turn.
    pub(super) async fn commit(mut self, turn: Option<Version>, extensions: &Extensions) -> Result<Option<Vec<Version>>> {
        self.write_marks();
        if self.writes.is_empty() && Outbox::of(extensions).is_empty() {
            return Ok(Some(Vec::new()));
        }
        let mut batch = Vec::with_capacity(self.writes.len() + 1);
        batch.push(take_turn(turn));
        batch.extend(self.writes);
        for (change, owner) in batch[1..].iter().zip(&self.owners) {
            if change.path().as_str().len() > PATH_BYTES_MAX {
                let error = Error::from(InvalidPath::Long).at(&overlay_path(change.path()));
                return Err(error.in_batch(*owner, 0));
            }
        }
        let mut options = ApplyOptions::new();
        options.extensions = extensions.clone();
        match self.overlay.upper.apply(&batch, &options).await {
            Ok(results) => {
                let version = |put: &usize| results.get(put + 1).and_then(|changed| changed.version).map(upper_version);
                let versions: Option<Vec<Version>> = self.puts.iter().map(version).collect();
                let unanswered = || Error::new(ErrorKind::Internal, "the upper tree did not return a version for every write");
                versions.ok_or_else(unanswered).map(Some)
            }
            Err(error) if error.change() == Some(0) && lost_turn(&error) => Ok(None),
            Err(error) => {
                let owner = error.change().and_then(|index| index.checked_sub(1)).and_then(|index| self.owners.get(index)).copied();
                let path = error.change().and_then(|index| batch.get(index)).map(|change| overlay_path(change.path()));
                Err(outward(error, path.as_deref()).in_batch(owner.unwrap_or(0), 0))
            }
        }
    }

    fn write_marks(&mut self) {
        for (path, mark) in std::mem::take(&mut self.marks) {
            let place = mark_path(&path);
            let content = mark.to_bytes(&path).into();
            self.write(Change::Write { path: place, content, mode: WriteMode::Overwrite });
        }
        for path in std::mem::take(&mut self.unmarked) {
            self.write(Change::Delete { path: mark_path(&path), recursive: false, expect: None });
        }
    }

    fn write(&mut self, change: Change) {
        self.writes.push(change);
        self.owners.push(self.current);
    }

    /// Looks up a path that the batch did not touch.
    async fn fact(&mut self, path: &VfsPath) -> Result<&Fact> {
        if !self.facts.contains_key(path) {
            let look = self.overlay.look(path).await?;
            let mark = if look.marked { self.overlay.mark(path).await? } else { None };
            if self.overlay.lower.capabilities().symlinks && look.shows_lower() {
                self.refuse_links(path, &look).await?;
            }
            if look.marked {
                self.marked.insert(path.to_owned());
            }
            self.facts.insert(path.to_owned(), Fact { look, mark });
        }
        Ok(&self.facts[path])
    }

    /// Refuses to change what is reached through a link of the lower tree: the change would not show at its other name.
    async fn refuse_links(&self, path: &VfsPath, look: &Look) -> Result<()> {
        let is_link = |entry: &Entry| matches!(entry.kind, EntryKind::Symlink | EntryKind::Other);
        for above in path.ancestors().filter(|above| !above.is_root()) {
            if let Some(entry) = absent(self.overlay.lower.stat(above, &StatOptions::new()).await)?
                && is_link(&entry)
            {
                return Err(link(above));
            }
        }
        match &look.lower {
            Some(entry) if is_link(entry) && look.upper.is_none() && !self.removes => Err(link(path)),
            _ => Ok(()),
        }
    }

    /// Returns whether the batch removed what was at a path.
    fn is_gone(&self, path: &VfsPath) -> bool {
        self.gone.contains(path) || path.ancestors().any(|above| self.gone.contains(above))
    }

    /// Returns whether the batch removed a directory above a path. That directory's mark then covers the path.
    fn is_gone_above(&self, path: &VfsPath) -> bool {
        path.ancestors().any(|above| self.gone.contains(above))
    }

    fn is_overlaid(&self, path: &VfsPath) -> bool {
        self.pending.contains_key(path) || self.is_gone(path)
    }

    fn pending_beneath(&self, directory: &VfsPath) -> impl Iterator<Item = (&VfsPathBuf, &Pending)> {
        self.pending
            .range::<VfsPath, _>((Bound::Excluded(directory), Bound::Unbounded))
            .take_while(move |(path, _)| path.starts_with(directory))
            .filter_map(|(path, pending)| pending.as_ref().map(|pending| (path, pending)))
    }

    /// Takes the mark of a path after the changes so far; the caller then calls [`Self::set_mark`]. A mark may list everything that was
    /// beneath a directory, so it is not copied for each change.
    fn take_mark(&mut self, path: &VfsPath) -> Mark {
        match self.marks.remove(path) {
            Some(mark) => mark,
            None if self.unmarked.contains(path) || self.is_gone_above(path) => Mark::default(),
            None => self.facts.get(path).and_then(|fact| fact.mark.clone()).unwrap_or_default(),
        }
    }

    /// Sets the mark of a path, or removes it.
    fn set_mark(&mut self, path: &VfsPath, mark: Mark) {
        if mark.is_needed() {
            self.unmarked.remove(path);
            self.marks.insert(path.to_owned(), mark);
        } else {
            self.marks.remove(path);
            if self.marked.contains(path) {
                self.unmarked.insert(path.to_owned());
            }
        }
    }

    /// Returns the lower tree's content at a path as the base of a mark, if the path needs a mark and has none.
    fn base_at(&self, path: &VfsPath) -> Option<Base> {
        if self.is_gone_above(path) {
            return None;
        }
        let look = &self.facts.get(path)?.look;
        match (&look.upper, &look.lower) {
            (Some(upper), Some(lower)) if !look.marked => {
                let is_merged = upper.is_directory() && lower.is_directory();
                // Entries that do not merge appeared in the lower tree after something was written here.
                Some(if is_merged { base_of(lower) } else { Base::Nothing })
            }
            (None, Some(lower)) if look.shows_lower() => Some(base_of(lower)),
            _ => None,
        }
    }

    /// Returns the entries beneath a directory that the batch did not remove or replace, in no order, and the failures.
    async fn stored_beneath(&self, directory: &VfsPath) -> Result<(Vec<Entry>, Vec<Failure>)> {
        let (mut found, mut failures) = (Vec::new(), Vec::new());
        if self.is_gone(directory) || self.pending.contains_key(directory) {
            return Ok((found, failures));
        }
        let mut stack = vec![directory.to_owned()];
        while let Some(directory) = stack.pop() {
            let children = self.overlay.children(&directory).await?;
            failures.extend(children.failures);
            for entry in children.entries {
                if self.is_overlaid(&entry.path) {
                    continue;
                }
                if entry.is_directory() {
                    stack.push(entry.path.clone());
                }
                found.push(entry);
            }
        }
        Ok((found, failures))
    }

    /// Collects what the mark of a directory must record once the directory is removed.
    async fn survey(&mut self, directory: &VfsPath) -> Result<()> {
        let mut survey = Survey::default();
        let is_stored = !self.is_gone(directory);
        let fact = if is_stored { Some(self.fact(directory).await?.clone()) } else { None };
        if let Some(fact) = &fact {
            if fact.look.shows_lower() && fact.look.lower.as_ref().is_some_and(Entry::is_directory) {
                for entry in self.overlay.lower.tree(directory.as_str(), usize::MAX, usize::MAX - 1).await?.entries {
                    // A link or a pipe has no version, but is not a directory either.
                    let version = entry.version.map_or(0, |version| version.number());
                    survey.insert(directory, &entry.path, (!entry.is_directory()).then_some(version));
                }
            }
            if fact.look.upper.is_some() {
                for path in self.marks_beneath(directory).await? {
                    if !self.marks.contains_key(&path)
                        && !self.unmarked.contains(&path)
                        && let Some(mark) = self.overlay.mark(&path).await?
                    {
                        survey.fold(directory, &path, mark);
                        survey.marks.push(path.clone());
                    }
                    self.marked.insert(path);
                }
            }
        }
        let marks = self.marks.range::<VfsPath, _>((Bound::Excluded(directory), Bound::Unbounded));
        for (path, mark) in marks.take_while(|(path, _)| path.starts_with(directory)) {
            survey.fold(directory, path, mark.clone());
        }
        self.surveys.insert(directory.to_owned(), survey);
        Ok(())
    }

    /// Returns the paths beneath a directory that have marks; they are in directories of the upper tree.
    async fn marks_beneath(&self, directory: &VfsPath) -> Result<Vec<VfsPathBuf>> {
        let tree = &self.overlay.tree;
        let below = absent(tree.tree(directory.as_str(), usize::MAX, usize::MAX - 1).await)?.unwrap_or_default();
        let directories = below.entries.into_iter().filter(Entry::is_directory).map(|entry| entry.path);
        let mut found = Vec::new();
        for directory in std::iter::once(directory.to_owned()).chain(directories) {
            for name in self.overlay.marked_names(&directory).await? {
                found.push(directory.child(&name)?);
            }
        }
        Ok(found)
    }
}

impl Survey {
    fn insert(&mut self, directory: &VfsPath, path: &VfsPath, version: Option<u64>) {
        if let Some(rest) = path.strip_prefix(directory) {
            self.beneath.insert(rest.relative().to_owned(), version);
        }
    }

    /// Takes over the record of a mark beneath the directory.
    fn fold(&mut self, directory: &VfsPath, path: &VfsPath, mark: Mark) {
        if let Some(rest) = path.strip_prefix(directory) {
            for (name, intents) in mark.intents {
                let below = if name.is_empty() { rest.relative().to_owned() } else { format!("{}/{name}", rest.relative()) };
                self.intents.insert(below, intents);
            }
        }
        match mark.base {
            None => {}
            Some(Base::Nothing) => {
                if let Some(rest) = path.strip_prefix(directory) {
                    self.beneath.remove(rest.relative());
                }
            }
            Some(Base::File(version)) => self.insert(directory, path, Some(version)),
            Some(Base::Directory(beneath)) => {
                self.insert(directory, path, None);
                let Some(rest) = path.strip_prefix(directory) else { return };
                for (name, version) in beneath {
                    self.beneath.insert(format!("{}/{name}", rest.relative()), version);
                }
            }
        }
    }
}

impl TreeTransaction for OverlayTransaction<'_> {
    fn file_bytes_max(&self) -> Option<u64> {
        self.overlay.upper.capabilities().file_bytes_max
    }

    async fn node(&mut self, path: &VfsPath) -> Result<Option<Node>> {
        if path.is_root() {
            return Ok(Some(Node::Directory(None)));
        }
        if let Some(pending) = self.pending.get(path) {
            return Ok(pending.as_ref().map(|pending| match pending {
                Pending::File { node, .. } => Node::File(*node),
                Pending::Directory(created_at) => Node::Directory(*created_at),
            }));
        }
        if self.is_gone(path) {
            return Ok(None);
        }
        let fact = self.fact(path).await?;
        Ok(fact.look.shown().map(|shown| match shown {
            Shown::Upper(entry) | Shown::Lower(entry) if entry.is_directory() => Node::Directory(entry.created_at),
            Shown::Upper(entry) => {
                let mark = fact.mark.clone().unwrap_or_default();
                Node::File(file_node(&mark.timed(entry.clone()), upper_version))
            }
            Shown::Lower(entry) => Node::File(file_node(entry, lower_version)),
        }))
    }

    fn stored_version(&self, path: &VfsPath) -> Option<Version> {
        match self.facts.get(path)?.look.shown()? {
            Shown::Upper(entry) => entry.version.map(upper_version),
            Shown::Lower(entry) => entry.version.map(lower_version),
        }
    }

    fn pin(&mut self, _path: &VfsPath) {}

    async fn content(&mut self, path: &VfsPath) -> Result<Bytes> {
        if let Some(Some(Pending::File { content, .. })) = self.pending.get(path) {
            return Ok(content.clone());
        }
        let overlay = self.overlay;
        let options = ReadOptions::new().with_bytes_max(u64::MAX);
        let fact = self.fact(path).await?;
        let (read, expected) = match fact.look.shown() {
            Some(Shown::Upper(entry)) => (overlay.tree.read(path, &options).await, entry.version),
            Some(Shown::Lower(entry)) => (overlay.lower.read(path, &options).await, entry.version),
            None => return Err(Error::not_found(path)),
        };
        match read {
            Ok(read) if Some(read.version) == expected => Ok(read.content),
            // The batch is planned again on the current content.
            Ok(read) => {
                self.is_stale = true;
                Err(Error::conflict(path, Some(read.version)))
            }
            Err(error) => {
                self.is_stale = error.kind() == ErrorKind::NotFound;
                Err(error)
            }
        }
    }

    async fn is_empty(&mut self, directory: &VfsPath) -> Result<bool> {
        if self.pending_beneath(directory).next().is_some() {
            return Ok(false);
        }
        if !self.is_overlaid(directory) {
            let children = self.overlay.children(directory).await?;
            if children.entries.iter().any(|entry| !self.is_overlaid(&entry.path)) || !children.failures.is_empty() {
                return Ok(false);
            }
        }
        self.survey(directory).await?;
        Ok(true)
    }

    async fn count(&mut self, directory: &VfsPath) -> Result<usize> {
        self.survey(directory).await?;
        Ok(self.stored_beneath(directory).await?.0.len() + self.pending_beneath(directory).count())
    }

    async fn subtree(&mut self, directory: &VfsPath) -> Result<Vec<Beneath>> {
        self.survey(directory).await?;
        let mut found = Vec::new();
        let mut left = SUBTREE_BYTES_MAX;
        let (stored, failures) = self.stored_beneath(directory).await?;
        // Unreadable content would be left behind.
        if let Some(failure) = failures.first() {
            return Err(Error::from(&failure.error));
        }
        for entry in stored {
            if !matches!(entry.kind, EntryKind::File | EntryKind::Directory) {
                return Err(link(&entry.path));
            }
            let times = Times { created_at: entry.created_at, modified_at: entry.modified_at.filter(|_| !entry.is_directory()) };
            let Some(rest) = left.checked_sub(entry.size_bytes) else {
                let message = format!("`{directory}` holds over {SUBTREE_BYTES_MAX} bytes; move or copy its contents in parts");
                return Err(Error::new(ErrorKind::TooLarge, message).at(directory));
            };
            left = rest;
            let content = if entry.is_directory() { None } else { Some(self.content(&entry.path).await?) };
            found.push(Beneath { path: entry.path, content, times });
        }
        found.extend(self.pending_beneath(directory).map(|(path, pending)| match pending {
            Pending::File { content, node } => Beneath { path: path.clone(), content: Some(content.clone()), times: node.times },
            Pending::Directory(created_at) => {
                Beneath { path: path.clone(), content: None, times: Times { created_at: *created_at, modified_at: None } }
            }
        }));
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    fn put_file(&mut self, path: &VfsPath, content: Bytes, times: Times) -> NodeMark {
        let Mark { base, created_at: marked_at, intents, .. } = self.take_mark(path);
        let stored = if self.is_gone(path) { None } else { self.facts.get(path).and_then(|fact| fact.look.shown()) };
        // If the row of the upper tree is replaced in place, it keeps its own time.
        let (replaced, own) = match (self.pending.get(path), stored) {
            (Some(Some(Pending::File { node, .. })), _) => (node.times.created_at, marked_at),
            (Some(_), _) | (None, None) => (None, None),
            (None, Some(Shown::Upper(entry))) => (marked_at.or(entry.created_at), marked_at),
            (None, Some(Shown::Lower(entry))) => (entry.created_at, entry.created_at),
        };
        // A new file has no base, so that anything that appears in the lower tree later is recognised as another writer's.
        let base = base.or_else(|| self.base_at(path).filter(|base| *base != Base::Nothing && !self.pending.contains_key(path)));
        let mark = Mark { base, created_at: times.created_at.or(own), modified_at: times.modified_at, intents };
        let number = self.puts.len();
        self.puts.push(self.writes.len());
        self.write(Change::Write { path: tree_path(path), content: content.clone(), mode: WriteMode::Overwrite });
        self.set_mark(path, mark);
        let times = Times { created_at: times.created_at.or(replaced), ..times };
        let node = FileNode { mark: NodeMark::Put(number), size_bytes: content.len() as u64, times };
        self.pending.insert(path.to_owned(), Some(Pending::File { content, node }));
        NodeMark::Put(number)
    }

    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    fn made_bytes(&self) -> u64 {
        self.made_bytes
    }

    fn put_directory(&mut self, path: &VfsPath, created_at: Option<Timestamp>) {
        self.made_bytes += path.as_str().len() as u64;
        self.write(Change::CreateDir { path: tree_path(path) });
        self.pending.insert(path.to_owned(), Some(Pending::Directory(created_at)));
    }

    fn remove_file(&mut self, path: &VfsPath) {
        let is_upper = match self.pending.get(path) {
            Some(pending) => pending.is_some(),
            None => !self.is_gone(path) && self.facts.get(path).is_some_and(|fact| fact.look.upper.is_some()),
        };
        if is_upper {
            self.write(Change::Delete { path: tree_path(path), recursive: false, expect: None });
        } else if let Some(parent) = path.parent() {
            self.write(Change::CreateDir { path: tree_path(parent) });
        }
        let Mark { base, intents, .. } = self.take_mark(path);
        let base = base.or_else(|| self.base_at(path));
        self.set_mark(path, Mark { intents, ..Mark::over(base) });
        self.pending.insert(path.to_owned(), None);
    }

    fn remove_directory(&mut self, path: &VfsPath) {
        let survey = self.surveys.remove(path).unwrap_or_default();
        // Create the directory first if the upper tree lacks it, so that the delete succeeds and the mark's directory exists.
        self.write(Change::CreateDir { path: tree_path(path) });
        self.write(Change::Delete { path: tree_path(path), recursive: true, expect: None });
        let mut mark = self.take_mark(path);
        // A running apply may create the directory and its content in the lower tree. The mark hides that, and knows it as the overlay's
        // own.
        mark.intents.extend(survey.intents);
        let places: Vec<String> = mark.intents.keys().cloned().collect();
        for place in places {
            let above = std::iter::successors(place.rsplit_once('/').map(|(above, _)| above), |above| Some(above.rsplit_once('/')?.0));
            for directory in above.chain((!place.is_empty()).then_some("")) {
                mark.intents.entry(directory.to_owned()).or_insert_with(|| vec![Intent::Directory]);
            }
        }
        let base = match mark.base.or_else(|| self.base_at(path)) {
            Some(Base::Directory(mut beneath)) => {
                beneath.extend(survey.beneath);
                Some(Base::Directory(beneath))
            }
            None if !survey.beneath.is_empty() => Some(Base::Directory(survey.beneath)),
            other => other,
        };
        for below in beneath(&self.marks, path).into_iter().chain(survey.marks) {
            self.set_mark(&below, Mark::default());
        }
        self.set_mark(path, Mark { intents: mark.intents, ..Mark::over(base) });
        // Visit only what lies beneath: a batch may remove as many directories as it has changes.
        self.pending.remove(path);
        for below in beneath(&self.pending, path) {
            self.pending.remove(&below);
        }
        self.gone.insert(path.to_owned());
    }
}

/// Returns the paths beneath a directory. Cost: grows with what lies beneath, because it follows the directory directly.
fn beneath<T>(paths: &BTreeMap<VfsPathBuf, T>, directory: &VfsPath) -> Vec<VfsPathBuf> {
    let following = paths.range::<VfsPath, _>((Bound::Excluded(directory), Bound::Unbounded)).map(|(path, _)| path);
    following.take_while(|path| path.starts_with(directory)).cloned().collect()
}

fn file_node(entry: &Entry, version: impl Fn(Version) -> Version) -> FileNode {
    let stored = version(entry.version.unwrap_or(Version::new(0)));
    let times = Times { created_at: entry.created_at, modified_at: entry.modified_at };
    FileNode { mark: NodeMark::Stored(stored), size_bytes: entry.size_bytes, times }
}

/// Returns the change that every batch starts with: replacing the turn on the condition that it still has this version.
pub(super) fn take_turn(turn: Option<Version>) -> Change {
    let mode = turn.map_or(WriteMode::CreateNew, WriteMode::IfVersion);
    Change::Write { path: TURN.parse().expect("a legal path"), content: Bytes::new(), mode }
}

/// Returns whether the turn was lost.
pub(super) fn lost_turn(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)
}

/// Returns the path in the overlay that a path of the upper tree belongs to; the root for bookkeeping.
fn overlay_path(inner: &VfsPath) -> VfsPathBuf {
    let tree = tree_path(VfsPath::ROOT);
    inner.strip_prefix(&tree).unwrap_or(VfsPath::ROOT).to_owned()
}

/// Translates an error of the upper tree to the overlay's paths.
fn outward(error: Error, path: Option<&VfsPath>) -> Error {
    match error.path() {
        Some(at) if at.starts_with(&tree_path(VfsPath::ROOT)) => error.stripped(&tree_path(VfsPath::ROOT), &[]),
        _ => about(path.unwrap_or(VfsPath::ROOT), error),
    }
}

fn link(path: &VfsPath) -> Error {
    let message = format!("`{path}` is a link or special file of the lower tree; change its target by the target's own path");
    Error::unsupported(message).at(path)
}
