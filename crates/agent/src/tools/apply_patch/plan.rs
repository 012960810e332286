//! Computes the results of a patch from what is read, before anything is written.

use crate::tools::patch::{self, Chunk, Section};
use crate::tools::render;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file;
use treehold_core::ops::{Change, EntryKind, ReadOptions, StatOptions, Version, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::text::EDIT_WORK_BYTES_MAX;
use treehold_core::work;
use treehold_tree::backend::Backend;

/// The files of a patch, computed section by section as if each had been applied.
pub(super) struct Plan<'a> {
    backend: &'a dyn Backend,
    files: BTreeMap<VfsPathBuf, Planned>,
    /// The existing files that are removed, and those replaced by unrelated content.
    removed: BTreeSet<VfsPathBuf>,
    replaced: BTreeSet<VfsPathBuf>,
    /// The original path of each existing file that was moved.
    moved: BTreeMap<VfsPathBuf, VfsPathBuf>,
    pub(super) summary: Summary,
}

/// A file as it was read and as it will be.
struct Planned {
    before: Before,
    after: Content,
}

#[derive(Clone, Copy)]
enum Before {
    Absent,
    /// Host links have no version.
    There(Option<Version>),
}

#[derive(Clone)]
enum Content {
    /// Unchanged: known to exist, not read.
    Kept,
    Absent,
    Present(Bytes),
}

impl<'a> Plan<'a> {
    pub(super) fn new(backend: &'a dyn Backend) -> Self {
        Self {
            backend,
            files: BTreeMap::new(),
            removed: BTreeSet::new(),
            replaced: BTreeSet::new(),
            moved: BTreeMap::new(),
            summary: Summary::default(),
        }
    }

    pub(super) async fn add(&mut self, base: &VfsPath, section: &Section) -> Result<()> {
        work::step().await;
        match section {
            Section::Add { path, content } => {
                self.put_over(resolved(base, path)?, Bytes::from(content.clone())).await?;
                self.summary.note(Mark::Added, path);
            }
            Section::Delete { path } => {
                let place = resolved(base, path)?;
                self.remove(place.clone()).await?;
                let gone = self.at(&place);
                self.removed.extend(gone);
                self.summary.note(Mark::Deleted, path);
            }
            Section::Update { path, target, chunks } => {
                let source = resolved(base, path)?;
                let content = self.content(&source).await?;
                let updated = updated(path, content, chunks).await.map_err(|error| error.at(&source))?;
                let place = target.as_deref().map(|target| resolved(base, target)).transpose()?;
                match place.filter(|place| *place != source) {
                    Some(place) => {
                        self.put_over(place.clone(), updated.into()).await?;
                        self.remove(source.clone()).await?;
                        if let Some(origin) = self.at(&source) {
                            self.moved.insert(place, origin);
                        }
                    }
                    None => self.put(source, updated.into()).await?,
                }
                self.summary.note(Mark::Modified, target.as_ref().unwrap_or(path));
            }
        }
        Ok(())
    }

    async fn put(&mut self, path: VfsPathBuf, content: Bytes) -> Result<()> {
        if !self.files.contains_key(&path) {
            // Only the file's existence and version matter, not its content.
            let before = match self.backend.read(&path, &ReadOptions::bytes(0, 0)).await {
                Ok(read) => Before::There(Some(read.version)),
                Err(error) if error.kind() == ErrorKind::NotFound => Before::Absent,
                Err(error) if error.kind() == ErrorKind::NotADirectory && self.is_cleared(&path) => Before::Absent,
                Err(error) => return Err(error),
            };
            self.files.insert(path.clone(), Planned { before, after: Content::Kept });
        }
        self.set(&path, Content::Present(content));
        Ok(())
    }

    /// Writes content that does not derive from the file that may exist there.
    async fn put_over(&mut self, path: VfsPathBuf, content: Bytes) -> Result<()> {
        self.put(path.clone(), content).await?;
        let gone = self.at(&path);
        self.replaced.extend(gone);
        Ok(())
    }

    /// Takes the original path of the existing file whose content is now at `path`; `None` if the patch created that
    /// content.
    fn at(&mut self, path: &VfsPath) -> Option<VfsPathBuf> {
        let was_there = matches!(self.files.get(path), Some(Planned { before: Before::There(_), .. }));
        self.moved.remove(path).or_else(|| was_there.then(|| path.to_owned()))
    }

    /// Returns the existing files whose content is lost: those removed and those replaced. A file that is written again
    /// after its removal counts as replaced.
    pub(crate) fn losses(self) -> (Vec<VfsPathBuf>, Vec<VfsPathBuf>) {
        let Self { files, removed, replaced, .. } = self;
        let is_gone = |path: &VfsPathBuf| matches!(files.get(path), Some(Planned { after: Content::Absent, .. }));
        let (gone, written): (Vec<_>, Vec<_>) = removed.into_iter().chain(replaced).collect::<BTreeSet<_>>().into_iter().partition(is_gone);
        (gone, written)
    }

    /// Returns whether the patch removes a file above a path.
    fn is_cleared(&self, path: &VfsPath) -> bool {
        path.ancestors().any(|above| self.files.get(above).is_some_and(|planned| matches!(planned.after, Content::Absent)))
    }

    async fn remove(&mut self, path: VfsPathBuf) -> Result<()> {
        if !self.files.contains_key(&path) {
            let entry = self.backend.stat(&path, &StatOptions::new()).await?;
            if entry.kind == EntryKind::Directory {
                let message = format!("`{path}` is a directory and a patch deletes files only; use the tool delete");
                return Err(Error::is_directory(&path).with_message(message));
            }
            self.files.insert(path.clone(), Planned { before: Before::There(entry.version), after: Content::Kept });
        }
        if matches!(self.files.get(&path), Some(Planned { after: Content::Absent, .. })) {
            return Err(Error::not_found(&path));
        }
        self.set(&path, Content::Absent);
        Ok(())
    }

    async fn content(&mut self, path: &VfsPathBuf) -> Result<Bytes> {
        match self.files.get(path).map(|planned| planned.after.clone()) {
            Some(Content::Present(content)) => return Ok(content),
            Some(Content::Absent) => return Err(Error::not_found(path)),
            Some(Content::Kept) | None => {}
        }
        let read = self.backend.read(path, &ReadOptions::new()).await?;
        if file::is_binary(&read.content) {
            let message = format!("`{path}` is binary ({}); a patch updates text only", render::size(read.size_bytes));
            return Err(Error::invalid_argument(message).at(path));
        }
        self.files
            .insert(path.clone(), Planned { before: Before::There(Some(read.version)), after: Content::Present(read.content.clone()) });
        Ok(read.content)
    }

    fn set(&mut self, path: &VfsPath, content: Content) {
        if let Some(planned) = self.files.get_mut(path) {
            planned.after = content;
        }
    }

    /// Returns the batch. Writes come before deletes, so that an interrupted move leaves both files; but a file that
    /// makes way for a directory is deleted first.
    pub(super) fn changes(&self) -> Vec<Change> {
        let mut first = Vec::new();
        let mut writes = Vec::new();
        let mut last = Vec::new();
        for (path, planned) in &self.files {
            let path = path.clone();
            match (&planned.after, planned.before) {
                (Content::Present(content), before) => {
                    let mode = match before {
                        Before::Absent => WriteMode::CreateNew,
                        Before::There(version) => version.map_or(WriteMode::Overwrite, WriteMode::IfVersion),
                    };
                    writes.push(Change::Write { path, content: content.clone(), mode });
                }
                (Content::Absent, Before::There(expect)) => {
                    let order = if self.makes_way(&path) { &mut first } else { &mut last };
                    order.push(Change::Delete { path, recursive: false, expect });
                }
                (Content::Absent, Before::Absent) | (Content::Kept, _) => {}
            }
        }
        first.append(&mut writes);
        first.append(&mut last);
        first
    }

    /// Returns whether a file is written below a path. Paths below it follow it in path order.
    fn makes_way(&self, path: &VfsPath) -> bool {
        let beneath = self.files.range::<VfsPath, _>((std::ops::Bound::Excluded(path), std::ops::Bound::Unbounded));
        beneath.take_while(|(other, _)| other.starts_with(path)).any(|(_, planned)| matches!(planned.after, Content::Present(_)))
    }
}

/// A summary in the terms of the patch.
#[derive(Default)]
pub(super) struct Summary {
    pub(super) added: Vec<String>,
    pub(super) modified: Vec<String>,
    pub(super) deleted: Vec<String>,
    noted: HashSet<(Mark, String)>,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Mark {
    Added,
    Modified,
    Deleted,
}

impl Summary {
    /// Adds a path, once per mark.
    fn note(&mut self, mark: Mark, path: &str) {
        if !self.noted.insert((mark, path.to_owned())) {
            return;
        }
        let paths = match mark {
            Mark::Added => &mut self.added,
            Mark::Modified => &mut self.modified,
            Mark::Deleted => &mut self.deleted,
        };
        paths.push(path.to_owned());
    }
}

/// Applies chunks to a content. Each may scan all of it once per strictness.
async fn updated(path: &str, content: Bytes, chunks: &[Chunk]) -> Result<Vec<u8>> {
    // Each header above the lines of a chunk is searched for like a chunk.
    let looks: u64 = chunks.iter().map(|chunk| 1 + chunk.headers.len() as u64).sum();
    let cost_bytes = (content.len() as u64).saturating_mul(looks);
    if looks > 1 && cost_bytes > EDIT_WORK_BYTES_MAX {
        let count = EDIT_WORK_BYTES_MAX / (content.len() as u64);
        let message =
            format!("{looks} chunks and headers are too many for `{path}` of {} bytes; send at most {count} at once", content.len());
        return Err(Error::new(ErrorKind::TooLarge, message));
    }
    let (path, chunks) = (path.to_owned(), chunks.to_vec());
    work::run(cost_bytes, move |_| patch::update(&path, &content, &chunks)).await?
}

/// Resolves a path of a patch against the base directory.
fn resolved(base: &VfsPath, path: &str) -> Result<VfsPathBuf> {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{base}/{path}") };
    match VfsPathBuf::parse(&whole) {
        Ok(resolved) if resolved.is_root() => {
            Err(Error::new(ErrorKind::InvalidPath, format!("the patch names `{path}`, which is not a file")))
        }
        Ok(resolved) => Ok(resolved),
        Err(invalid) => Err(Error::new(ErrorKind::InvalidPath, format!("the patch names `{path}`: {invalid}"))),
    }
}
