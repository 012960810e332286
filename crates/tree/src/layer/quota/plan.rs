//! Plans what a batch would add to a tree, change by change, without changing anything.

use super::{QuotaLimits, Usage};
use crate::backend::Backend;
use crate::layer::walk::{Met, walk};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::{Add, AddAssign, SubAssign};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Change, Changed, Edit, EntryKind, ReadOptions, StatOptions, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::text;
use treehold_core::work;

/// The growth of a tree; negative if it shrinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Growth {
    /// Including [`QuotaLimits::DIRECTORY_BYTES`] for each directory.
    pub(super) bytes: i128,
    pub(super) files: i128,
    pub(super) directories: i128,
}

impl Growth {
    pub(super) fn of_file(old: Option<u64>, new: Option<u64>) -> Self {
        let bytes = |size: Option<u64>| i128::from(size.unwrap_or(0));
        Self { bytes: bytes(new) - bytes(old), files: i128::from(new.is_some()) - i128::from(old.is_some()), directories: 0 }
    }

    /// Returns the growth by `count` directories.
    pub(super) fn of_directories(count: i128) -> Self {
        Self { bytes: count * i128::from(QuotaLimits::DIRECTORY_BYTES), files: 0, directories: count }
    }

    /// Returns the number of added files and directories.
    pub(super) fn entries(self) -> i128 {
        self.files + self.directories
    }

    /// Returns the resulting usage, at least zero.
    pub(super) fn after(self, usage: Usage) -> Usage {
        let sum = |held: u64, added: i128| u64::try_from((i128::from(held) + added).max(0)).unwrap_or(u64::MAX);
        Usage {
            bytes: sum(usage.bytes, self.bytes),
            files: sum(usage.files, self.files),
            directories: sum(usage.directories, self.directories),
        }
    }

    /// Returns whether it takes a tree of this usage over a limit, or further over it.
    pub(super) fn is_over(self, usage: Usage, limits: &QuotaLimits) -> bool {
        let after = self.after(usage);
        (self.bytes > 0 && limits.bytes_max.is_some_and(|max| after.bytes > max))
            || (self.entries() > 0 && limits.files_max.is_some_and(|max| after.entries() > max))
    }

    /// Returns the room that it needs whether or not it succeeds.
    pub(super) fn without_shrinkage(self) -> Self {
        Self { bytes: self.bytes.max(0), files: self.files.max(0), directories: self.directories.max(0) }
    }

    fn most(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            files: self.files.max(other.files),
            directories: self.directories.max(other.directories),
        }
    }
}

impl AddAssign for Growth {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.files += other.files;
        self.directories += other.directories;
    }
}

impl Add for Growth {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl SubAssign for Growth {
    fn sub_assign(&mut self, other: Self) {
        self.bytes -= other.bytes;
        self.files -= other.files;
        self.directories -= other.directories;
    }
}

/// The largest file whose edits are applied in order to judge their result. This holds the content in memory twice.
const EXACT_BYTES_MAX: u64 = 16 << 20;

/// How precisely edits are planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// Bounds the size after an edit from above. For a batch of one change.
    Bounds,
    /// Applies the edit to the content.
    Exact,
}

/// The growth by each change of a batch.
#[derive(Debug)]
pub(super) struct Plan {
    steps: Vec<Growth>,
    /// The planned size of a single edited file, if it is only a bound.
    bounded: Option<u64>,
    /// Whether something was found whose size cannot be known beforehand, such as a link: the tree is then counted again.
    is_open: bool,
    /// Whether directories are created or removed, which concurrent changes of files may also cause or need: the batch must run alone.
    pub(super) has_directories: bool,
}

impl Plan {
    /// Plans the changes in order, based on the sizes that the tree reports.
    ///
    /// A change that the tree itself will refuse adds nothing.
    pub(super) async fn sketch<B: Backend>(inner: &B, changes: &[Change], limits: &QuotaLimits, detail: Detail) -> Result<Self> {
        let mut sketch = Sketch {
            inner,
            file_bytes_max: limits.file_bytes_max.unwrap_or(u64::MAX),
            is_single: changes.len() == 1,
            bounds: detail == Detail::Bounds,
            nodes: BTreeMap::new(),
            plan: Self { steps: Vec::with_capacity(changes.len()), bounded: None, is_open: false, has_directories: false },
        };
        for (index, change) in changes.iter().enumerate() {
            work::step().await;
            let step = sketch.step(change).await.map_err(|error| error.during(change.kind()).in_batch(index, 0))?;
            sketch.plan.has_directories |= step.directories != 0;
            sketch.plan.steps.push(step);
        }
        Ok(sketch.plan)
    }

    /// Returns the growth by the whole batch.
    pub(super) fn total(&self) -> Growth {
        self.after(self.steps.len())
    }

    /// Returns the largest growth on the way through the batch.
    pub(super) fn peak(&self) -> Growth {
        self.sums().fold(Growth::default(), Growth::most)
    }

    /// Returns the index of the first change that takes the tree over a limit.
    pub(super) fn first_over(&self, usage: Usage, limits: &QuotaLimits) -> usize {
        self.sums().position(|sum| sum.is_over(usage, limits)).unwrap_or(0)
    }

    /// Returns the growth after each change of the batch.
    fn sums(&self) -> impl Iterator<Item = Growth> {
        self.steps.iter().scan(Growth::default(), |sum, step| {
            *sum += *step;
            Some(*sum)
        })
    }

    /// Returns the growth by the first `steps` changes.
    fn after(&self, steps: usize) -> Growth {
        self.steps[..steps].iter().fold(Growth::default(), |mut sum, step| {
            sum += *step;
            sum
        })
    }

    /// Returns what was really added, given the outcome of the batch; `None` if that is unknown.
    pub(super) fn outcome(&self, result: &Result<Vec<Changed>>) -> Option<Growth> {
        if self.is_open {
            return None;
        }
        match result {
            Ok(results) => {
                let mut total = self.total();
                if let Some(bounded) = self.bounded {
                    total.bytes += i128::from(results.first()?.size_bytes) - i128::from(bounded);
                }
                Some(total)
            }
            Err(error) if error.may_have_effect() => None,
            Err(error) => Some(self.after(error.applied().min(self.steps.len()))),
        }
    }
}

/// The tree as it would be after the changes so far.
struct Sketch<'a, B> {
    inner: &'a B,
    file_bytes_max: u64,
    is_single: bool,
    /// Whether an edit is bounded instead of applied.
    bounds: bool,
    /// The result of the changes so far at a path; `None` if nothing is left there.
    nodes: BTreeMap<VfsPathBuf, Option<Put>>,
    plan: Plan,
}

/// A file, and the source of its content: what the tree stores at a path, followed by what the changes append.
#[derive(Debug, Clone)]
struct Sketched {
    size_bytes: u64,
    stored: Option<VfsPathBuf>,
    brought: Vec<Bytes>,
}

impl Sketched {
    fn stored(path: &VfsPath, size_bytes: u64) -> Self {
        Self { size_bytes, stored: Some(path.to_owned()), brought: Vec::new() }
    }

    fn brought(content: Bytes) -> Self {
        Self { size_bytes: content.len() as u64, stored: None, brought: vec![content] }
    }
}

/// What changes put at a path.
#[derive(Debug, Clone)]
enum Put {
    File(Sketched),
    Directory,
}

impl Put {
    /// Returns the growth if nothing was there before.
    fn growth(&self) -> Growth {
        match self {
            Self::File(file) => Growth::of_file(None, Some(file.size_bytes)),
            Self::Directory => Growth::of_directories(1),
        }
    }
}

/// What is at a path.
enum Node {
    File(Sketched),
    /// A link of the host, with the file it points to.
    Link(Option<Sketched>),
    Directory,
    Nothing,
}

impl Node {
    /// Returns the file that a write to the path would replace.
    fn file(&self) -> Option<&Sketched> {
        match self {
            Self::File(file) => Some(file),
            Self::Link(file) => file.as_ref(),
            Self::Directory | Self::Nothing => None,
        }
    }
}

impl<B: Backend> Sketch<'_, B> {
    async fn step(&mut self, change: &Change) -> Result<Growth> {
        match change {
            Change::Write { path, content, mode } => {
                let node = self.node(path).await?;
                if matches!(node, Node::Directory) || (*mode == WriteMode::CreateNew && !matches!(node, Node::Nothing)) {
                    return Ok(Growth::default());
                }
                self.put(path, node, Sketched::brought(content.clone())).await
            }
            Change::Append { path, content } => {
                let node = self.node(path).await?;
                if matches!(node, Node::Directory) {
                    return Ok(Growth::default());
                }
                let old = node.file();
                let mut new = old.cloned().unwrap_or_else(|| Sketched::brought(Bytes::new()));
                new.size_bytes = new.size_bytes.saturating_add(content.len() as u64);
                new.brought.push(content.clone());
                self.put(path, node, new).await
            }
            Change::Edit { path, edits, .. } => match self.node(path).await?.file() {
                Some(old) => self.edit(path, old.clone(), edits).await,
                None => Ok(Growth::default()),
            },
            Change::CreateDir { path } => match self.node(path).await? {
                Node::Nothing => {
                    let parents = self.parents(path).await?;
                    self.nodes.insert(path.clone(), Some(Put::Directory));
                    Ok(parents + Growth::of_directories(1))
                }
                _ => Ok(Growth::default()),
            },
            Change::Delete { path, recursive, .. } => match self.node(path).await? {
                Node::File(old) => Ok(self.remove(path, &old)),
                Node::Directory if path.is_root() => Ok(Growth::default()),
                Node::Directory if *recursive => self.remove_directory(path).await,
                // A directory that is not empty is refused.
                Node::Directory => {
                    self.nodes.insert(path.clone(), None);
                    Ok(Growth::of_directories(-1))
                }
                Node::Link(_) => {
                    self.nodes.insert(path.clone(), None);
                    Ok(Growth::default())
                }
                Node::Nothing => Ok(Growth::default()),
            },
            Change::Rename { from, to, overwrite } => self.rename(from, to, *overwrite).await,
            Change::Copy { from, to, overwrite } => self.copy(from, to, *overwrite).await,
            other => Err(other.unsupported()),
        }
    }

    /// Replaces what is at a path with a file, creating the directories above it.
    async fn put(&mut self, path: &VfsPath, stands: Node, new: Sketched) -> Result<Growth> {
        self.check_size(path, new.size_bytes)?;
        let parents = if matches!(stands, Node::Nothing) { self.parents(path).await? } else { Growth::default() };
        let growth = Growth::of_file(stands.file().map(|old| old.size_bytes), Some(new.size_bytes));
        self.nodes.insert(path.to_owned(), Some(Put::File(new)));
        Ok(parents + growth)
    }

    /// Creates the missing directories above a path.
    async fn parents(&mut self, path: &VfsPath) -> Result<Growth> {
        let mut missing = Vec::new();
        let mut above = path.parent();
        while let Some(parent) = above.filter(|parent| !parent.is_root()) {
            work::step().await;
            match self.node(parent).await? {
                Node::Nothing => missing.push(parent.to_owned()),
                // A path beneath a file is refused.
                Node::File(_) => return Ok(Growth::default()),
                Node::Directory | Node::Link(_) => break,
            }
            above = parent.parent();
        }
        let growth = Growth::of_directories(missing.len() as i128);
        self.nodes.extend(missing.into_iter().map(|parent| (parent, Some(Put::Directory))));
        Ok(growth)
    }

    fn remove(&mut self, path: &VfsPath, old: &Sketched) -> Growth {
        self.nodes.insert(path.to_owned(), None);
        Growth::of_file(Some(old.size_bytes), None)
    }

    async fn edit(&mut self, path: &VfsPath, old: Sketched, edits: &[Edit]) -> Result<Growth> {
        if self.bounds || old.size_bytes > EXACT_BYTES_MAX {
            let size_bytes = edited_bytes_max(old.size_bytes, edits);
            match self.is_single {
                true => self.plan.bounded = Some(size_bytes),
                // In a longer batch, only a count shows the real size after the edit.
                false => self.plan.is_open = true,
            }
            let bounded = Sketched { size_bytes, ..old.clone() };
            return self.put(path, Node::File(old), bounded).await;
        }
        let mut content = match &old.stored {
            Some(stored) => match self.inner.read(stored, &ReadOptions::new().with_bytes_max(EXACT_BYTES_MAX)).await {
                Ok(read) => Vec::from(read.content),
                Err(error) if is_absence(&error) => return Ok(Growth::default()),
                Err(error) => return Err(error),
            },
            None => Vec::new(),
        };
        old.brought.iter().for_each(|piece| content.extend_from_slice(piece));
        match text::edit_apart(&content.into(), edits).await {
            Ok((edited, _)) => self.put(path, Node::File(old), Sketched::brought(edited.into())).await,
            Err(_) => Ok(Growth::default()),
        }
    }

    async fn remove_directory(&mut self, path: &VfsPath) -> Result<Growth> {
        let mut growth = Growth::of_directories(-1);
        for (beneath, old) in self.beneath(path).await? {
            growth -= old.growth();
            if !self.is_single {
                self.nodes.insert(beneath, None);
            }
        }
        self.nodes.insert(path.to_owned(), None);
        Ok(growth)
    }

    async fn rename(&mut self, from: &VfsPath, to: &VfsPath, overwrite: bool) -> Result<Growth> {
        if from == to {
            return Ok(Growth::default());
        }
        match (self.node(from).await?, self.node(to).await?) {
            (Node::Nothing, _) | (_, Node::Directory) => Ok(Growth::default()),
            (_, Node::File(_) | Node::Link(_)) if !overwrite => Ok(Growth::default()),
            (Node::File(moved), target) => {
                let mut growth = if matches!(target, Node::Nothing) { self.parents(to).await? } else { Growth::default() };
                growth += self.remove(from, &moved);
                growth += self.put_moved(to, target, moved);
                Ok(growth)
            }
            (Node::Link(_), target) => {
                // The target of the link is unknown, and so is what a later change of the batch would find at the new path.
                self.plan.is_open |= !self.is_single;
                match target {
                    Node::File(replaced) => Ok(self.remove(to, &replaced)),
                    Node::Nothing => self.parents(to).await,
                    Node::Link(_) | Node::Directory => Ok(Growth::default()),
                }
            }
            (Node::Directory, Node::Nothing) if !to.starts_with(from) => {
                let parents = self.parents(to).await?;
                if !self.is_single {
                    for (beneath, moved) in self.beneath(from).await? {
                        let place = to.concat(beneath.strip_prefix(from).unwrap_or(VfsPath::ROOT));
                        self.nodes.insert(beneath, None);
                        self.nodes.insert(place, Some(moved));
                    }
                    self.nodes.insert(from.to_owned(), None);
                    self.nodes.insert(to.to_owned(), Some(Put::Directory));
                }
                Ok(parents)
            }
            (Node::Directory, _) => Ok(Growth::default()),
        }
    }

    /// Puts an existing file at another path; its size was checked when it was written.
    fn put_moved(&mut self, to: &VfsPath, target: Node, moved: Sketched) -> Growth {
        let replaced = if let Node::File(replaced) = target { Some(replaced.size_bytes) } else { None };
        let growth = Growth::of_file(replaced, Some(moved.size_bytes));
        self.nodes.insert(to.to_owned(), Some(Put::File(moved)));
        growth
    }

    async fn copy(&mut self, from: &VfsPath, to: &VfsPath, overwrite: bool) -> Result<Growth> {
        if to.starts_with(from) || from.is_root() {
            return Ok(Growth::default());
        }
        match (self.node(from).await?, self.node(to).await?) {
            (Node::File(_), Node::Directory) | (Node::Nothing, _) => Ok(Growth::default()),
            (Node::File(_), Node::File(_) | Node::Link(_)) if !overwrite => Ok(Growth::default()),
            (Node::File(file), target) => {
                if matches!(target, Node::Link(_)) {
                    self.plan.is_open = true;
                }
                self.put(to, target, file).await
            }
            // Each tier decides whether a link is copied as a link or as its target: reserve room for the larger.
            (Node::Link(file), target) => {
                self.plan.is_open = true;
                match file {
                    Some(file) => self.put(to, target, file).await,
                    None => Ok(Growth::default()),
                }
            }
            (Node::Directory, Node::Nothing) => {
                let mut growth = self.parents(to).await? + Growth::of_directories(1);
                for (beneath, copied) in self.beneath(from).await? {
                    if let Put::File(file) = &copied {
                        self.check_size(&beneath, file.size_bytes)?;
                    }
                    growth += copied.growth();
                    if !self.is_single {
                        self.nodes.insert(to.concat(beneath.strip_prefix(from).unwrap_or(VfsPath::ROOT)), Some(copied));
                    }
                }
                self.nodes.insert(to.to_owned(), Some(Put::Directory));
                Ok(growth)
            }
            (Node::Directory, _) => Ok(Growth::default()),
        }
    }

    fn check_size(&self, path: &VfsPath, size_bytes: u64) -> Result<()> {
        check_size(path, size_bytes, self.file_bytes_max)
    }

    /// Returns what is at a path after the changes so far.
    async fn node(&self, path: &VfsPath) -> Result<Node> {
        match self.nodes.get(path) {
            Some(Some(Put::File(file))) => return Ok(Node::File(file.clone())),
            Some(Some(Put::Directory)) => return Ok(Node::Directory),
            Some(None) => return Ok(Node::Nothing),
            None => {}
        }
        let entry = match self.inner.stat(path, &StatOptions::new()).await {
            Ok(entry) => entry,
            Err(error) if is_absence(&error) => return Ok(Node::Nothing),
            Err(error) => return Err(error),
        };
        Ok(match entry.kind {
            EntryKind::File => Node::File(Sketched::stored(path, entry.size_bytes)),
            EntryKind::Directory => Node::Directory,
            EntryKind::Symlink => Node::Link(self.linked(path).await?),
            EntryKind::Other => Node::Nothing,
        })
    }

    /// Returns the file that a link points to, which a read follows.
    async fn linked(&self, path: &VfsPath) -> Result<Option<Sketched>> {
        match self.inner.read(path, &ReadOptions::bytes(0, 0)).await {
            Ok(read) => Ok(Some(Sketched::stored(path, read.size_bytes))),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists the files and directories beneath a directory after the changes so far.
    async fn beneath(&mut self, path: &VfsPath) -> Result<BTreeMap<VfsPathBuf, Put>> {
        let mut found = BTreeMap::new();
        let mut has_unknown = false;
        let walked = walk(self.inner, path, true, |met| {
            match met {
                Met::Entry(entry) if entry.kind == EntryKind::File => {
                    let file = Sketched::stored(&entry.path, entry.size_bytes);
                    found.insert(entry.path, Put::File(file));
                }
                Met::Entry(entry) if entry.is_directory() => drop(found.insert(entry.path, Put::Directory)),
                Met::Entry(_) | Met::Failure(_) => has_unknown = true,
            }
            Ok(())
        });
        match walked.await {
            Err(error) if !is_absence(&error) => return Err(error),
            _ => {}
        }
        self.plan.is_open |= has_unknown;
        // Paths beneath a path follow it directly in path order.
        for (beneath, put) in self.nodes.range(path.to_owned()..).take_while(|(beneath, _)| beneath.starts_with(path)) {
            match put {
                Some(put) => drop(found.insert(beneath.clone(), put.clone())),
                None => drop(found.remove(beneath)),
            }
        }
        found.remove(path);
        Ok(found)
    }
}

/// Checks the size limit of one file.
pub(super) fn check_size(path: &VfsPath, size_bytes: u64, file_bytes_max: u64) -> Result<()> {
    if size_bytes <= file_bytes_max {
        return Ok(());
    }
    let message = format!(
        "`{path}` would have {size_bytes} bytes and one file may have {file_bytes_max}; write less, or split it into several files"
    );
    Err(Error::new(ErrorKind::QuotaExceeded, message).at(path))
}

/// Returns whether an error says that there is no file to read.
fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsDirectory)
}

/// Bounds the size of a file after edits: each occurrence shrinks or grows it by as much as the texts allow, for any line endings.
fn edited_bytes_max(size_bytes: u64, edits: &[Edit]) -> u64 {
    let count = |text: &str, pattern: &str| text.matches(pattern).count() as u64;
    edits.iter().fold(size_bytes, |size, edit| {
        let shortest = (edit.old.len() as u64).saturating_sub(count(&edit.old, "\r\n")).max(1);
        let longest = edit.new.len() as u64 + count(&edit.new, "\n");
        let occurrences = if edit.replace_all { size / shortest } else { 1 };
        size.saturating_add(longest.saturating_sub(shortest).saturating_mul(occurrences))
    })
}
