//! The steps of single files: transfers, removals and merges.
//!
//! Each reads what it replaces and replaces it on the condition that it is still what was read: by version in the tree, by stamp in the
//! directory. The order makes a crash between two steps harmless: the tree first, then the directory, then the base.

use super::bases::Bases;
use super::event::{MirrorAction, MirrorEvent, MirrorSide};
use super::options::{MirrorConflicts, MirrorOptions};
use super::plan::{Known, KnownFile, Step};
use crate::backend::{Backend, HostDirectory, HostNode};
use crate::checkpoint::MergeConflictKind;
use blake3::Hash;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::Semaphore;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change, Changed, EntryKind, FileRead, ReadOptions, StatOptions, Version, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::text::merge::{self, MarkerNames, MarkerStyle};
use treehold_core::work;

/// How many KiB of contents are held in memory at once.
const SPACE_KIB: u32 = 128 << 10;

/// The names of the sides in conflict markers.
const NAMES: MarkerNames<'_> = MarkerNames { ours: "tree", base: "base", theirs: "directory" };

/// The directory, and the bases of merges.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) host: HostDirectory,
    pub(super) bases: Option<Bases>,
}

impl Ground {
    /// Keeps what was mirrored; a directory has no content.
    pub(super) fn keep(&self, path: &VfsPath, content: Option<(&[u8], Hash)>) -> Result<()> {
        self.bases.as_ref().map_or(Ok(()), |bases| bases.put(path, content))
    }

    /// Forgets what was mirrored.
    pub(super) fn forget(&self, path: &VfsPath) -> Result<()> {
        self.bases.as_ref().map_or(Ok(()), |bases| bases.remove(path))
    }

    /// Removes everything that was mirrored. The bases go first: without them, a directory that is empty in part is filled again, and not
    /// taken for one whose files were removed.
    pub(super) fn clear(&self) -> Result<()> {
        self.bases.as_ref().map_or(Ok(()), Bases::clear)?;
        self.host.clear()
    }
}

/// Transfers files between a tree and a directory.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) tree: Arc<dyn Backend>,
    pub(super) ground: Arc<Ground>,
    pub(super) options: MirrorOptions,
    space: Semaphore,
}

/// What to do at the path of a file.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) step: Step,
    pub(super) path: VfsPathBuf,
    pub(super) base: Option<KnownFile>,
    /// The version and size of the tree's file.
    pub(super) tree: Option<(Option<Version>, u64)>,
    /// The version of an empty file of the tree that counts as absent.
    pub(super) empty: Option<Version>,
    pub(super) host: Option<HostNode>,
}

/// The result of a step.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) path: VfsPathBuf,
    /// What is known afterwards: `None` if that is unchanged, `Some(None)` if neither side has the path.
    pub(super) known: Option<Option<Known>>,
    pub(super) events: Vec<MirrorEvent>,
    /// Whether one of the sides changed meanwhile, so that the step must be decided again.
    pub(super) again: bool,
    /// The reason why a change of the directory is not in the tree, or the reverse.
    pub(super) failed: Option<Error>,
}

impl Outcome {
    fn new(path: &VfsPath) -> Self {
        Self { path: path.to_owned(), known: None, events: Vec::new(), again: false, failed: None }
    }

    fn again(path: &VfsPath) -> Self {
        Self { again: true, ..Self::new(path) }
    }

    fn known(path: &VfsPath, known: Known) -> Self {
        Self { known: Some(Some(known)), ..Self::new(path) }
    }

    fn gone(path: &VfsPath) -> Self {
        Self { known: Some(None), ..Self::new(path) }
    }

    fn did(mut self, action: MirrorAction) -> Self {
        self.events.push(MirrorEvent::new(action, &self.path));
        self
    }

    fn with(mut self, event: MirrorEvent) -> Self {
        self.events.insert(0, event);
        self
    }

    /// Classifies an error: sides that changed meanwhile are compared again, and any other error is a failure.
    fn of_error(path: &VfsPath, error: Error) -> Self {
        if is_race(&error) { Self::again(path) } else { Self { failed: Some(error), ..Self::new(path) } }
    }
}

/// Returns whether an error says that a side has changed since it was listed.
pub(super) fn is_race(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Conflict | ErrorKind::AlreadyExists | ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsDirectory
    )
}

/// Returns whether an error says that the tree does not admit a change.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnly)
}

/// A file as it was read, with the hash of its content.
struct Content {
    bytes: Bytes,
    hash: Hash,
}

impl Content {
    fn of(bytes: Bytes) -> Self {
        Self { hash: blake3::hash(&bytes), bytes }
    }
}

impl Files {
    pub(super) fn new(tree: Arc<dyn Backend>, ground: Ground, options: MirrorOptions) -> Self {
        Self { tree, ground: Arc::new(ground), options, space: Semaphore::new(SPACE_KIB as usize) }
    }

    /// Runs host calls on a blocking thread.
    pub(super) async fn on_host<T: Send + 'static>(&self, run: impl FnOnce(&Ground) -> Result<T> + Send + 'static) -> Result<T> {
        let ground = self.ground.clone();
        let done = tokio::task::spawn_blocking(move || run(&ground)).await;
        done.map_err(|error| Error::new(ErrorKind::Internal, "the work on the host ended without a result").with_source(error))?
    }

    /// Does a step.
    pub(super) async fn run(&self, job: Job) -> Outcome {
        let bytes = job.tree.map_or(0, |(_, size)| size).max(job.host.map_or(0, |node| node.size_bytes)).min(self.options.file_bytes_max);
        let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(SPACE_KIB).min(SPACE_KIB);
        let _space = self.space.acquire_many(kib).await;
        let path = job.path.clone();
        let done = match job.step {
            Step::PutHost => self.put_host(&job, MirrorAction::Mirrored).await,
            Step::PutTree => self.put_tree(&job).await,
            Step::RemoveTree => self.remove_tree(&job).await,
            Step::RemoveHost => self.remove_host(&job).await,
            _ => self.both(&job).await,
        };
        done.unwrap_or_else(|error| Outcome::of_error(&path, error))
    }

    /// Writes the tree's file to the directory.
    async fn put_host(&self, job: &Job, action: MirrorAction) -> Result<Outcome> {
        let read = self.read_tree(&job.path).await?.ok_or_else(|| Error::not_found(&job.path))?;
        let content = Content::of(read.content);
        let is_same = job.base.is_some_and(|base| base.hash == content.hash);
        let is_host_same = job.host.is_some_and(|node| job.base.is_some_and(|base| base.host == Some(node.stamp)));
        let is_mode_right = self.options.write_back || job.host.is_some_and(|node| !node.is_writable);
        if is_same && is_host_same && is_mode_right {
            let base = job.base.map(|base| KnownFile { tree: Some(read.version), ..base });
            return Ok(base.map_or_else(|| Outcome::again(&job.path), |base| Outcome::known(&job.path, Known::File(base))));
        }
        // What the tree has was in the directory already.
        let action = if is_same && job.host.is_some() { MirrorAction::Overwritten } else { action };
        let known = self.write_host(&job.path, content, Some(read.version), job.host).await?;
        Ok(Outcome::known(&job.path, Known::File(known)).did(action))
    }

    /// Refuses what would make a tool run code in the directory. The tree stands for the directory, which gets all that the tree has: of
    /// the parts of a repository none is made, whichever would be the last.
    pub(super) async fn check_protected(&self, change: Change) -> Result<()> {
        match &self.options.guard {
            Some(guard) => guard.check(&*self.tree, &[change], &[]).await,
            None => Ok(()),
        }
    }

    /// Writes content to the directory and keeps it as the base.
    async fn write_host(&self, path: &VfsPath, content: Content, tree: Option<Version>, expected: Option<HostNode>) -> Result<KnownFile> {
        let change = Change::Write { path: path.to_owned(), content: content.bytes.clone(), mode: WriteMode::Overwrite };
        self.check_protected(change).await?;
        let at = path.to_owned();
        self.on_host(move |ground| {
            let node = ground.host.write(&at, &content.bytes, expected)?;
            ground.keep(&at, Some((&content.bytes, content.hash)))?;
            Ok(KnownFile { hash: content.hash, size_bytes: content.bytes.len() as u64, tree, host: Some(node.stamp) })
        })
        .await
    }

    /// Keeps content that both sides have.
    async fn keep(&self, path: &VfsPath, content: Content, tree: Option<Version>, node: HostNode) -> Result<KnownFile> {
        let at = path.to_owned();
        self.on_host(move |ground| {
            ground.keep(&at, Some((&content.bytes, content.hash)))?;
            let host = (!node.is_fresh).then_some(node.stamp);
            Ok(KnownFile { hash: content.hash, size_bytes: content.bytes.len() as u64, tree, host })
        })
        .await
    }

    async fn forget(&self, path: &VfsPath) -> Result<()> {
        let at = path.to_owned();
        self.on_host(move |ground| ground.forget(&at)).await
    }

    /// Reads the directory's file; `None` if there is none.
    async fn read_host(&self, path: &VfsPath) -> Result<Option<(Content, HostNode)>> {
        let (at, bytes_max) = (path.to_owned(), self.options.file_bytes_max);
        let read = self.on_host(move |ground| {
            let (bytes, node) = ground.host.read(&at, bytes_max)?;
            Ok((Content::of(bytes), node))
        });
        match read.await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Reads the tree's file; `None` if there is none.
    async fn read_tree(&self, path: &VfsPath) -> Result<Option<FileRead>> {
        let options = ReadOptions::new().with_bytes_max(self.options.file_bytes_max);
        match self.tree.read(path, &options).await {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Applies one change to the tree.
    async fn apply(&self, change: Change) -> Result<Changed> {
        let mut changed = self.tree.apply(std::slice::from_ref(&change), &ApplyOptions::new()).await?;
        changed.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "a batch of one change returned no result"))
    }

    async fn write_tree(&self, path: &VfsPath, content: Bytes, expected: Option<Version>) -> Result<Changed> {
        let mode = expected.map_or(WriteMode::CreateNew, WriteMode::IfVersion);
        self.apply(Change::Write { path: path.to_owned(), content, mode }).await
    }

    /// Writes the directory's file to the tree.
    async fn put_tree(&self, job: &Job) -> Result<Outcome> {
        let Some((content, node)) = self.read_host(&job.path).await? else { return Ok(Outcome::again(&job.path)) };
        if let Some(base) = job.base.filter(|base| base.hash == content.hash && job.tree.is_some()) {
            let host = (!node.is_fresh).then_some(node.stamp);
            return Ok(Outcome::known(&job.path, Known::File(KnownFile { host, ..base })));
        }
        let expected = match job.tree {
            Some((version, _)) => version.or(job.base.and_then(|base| base.tree)),
            None => job.empty,
        };
        self.send(job, content, node, expected, MirrorAction::WrittenBack).await
    }

    /// Writes content of the directory to the tree, if the tree is as expected.
    async fn send(&self, job: &Job, content: Content, node: HostNode, expected: Option<Version>, action: MirrorAction) -> Result<Outcome> {
        match self.write_tree(&job.path, content.bytes.clone(), expected).await {
            Ok(changed) => {
                let known = self.keep(&job.path, content, changed.version, node).await?;
                Ok(Outcome::known(&job.path, Known::File(known)).did(action))
            }
            Err(error) if is_refusal(&error) => self.refused(&job.path, Some(node), &error).await,
            Err(error) => Err(error),
        }
    }

    /// Removes a file from the tree that was removed from the directory.
    async fn remove_tree(&self, job: &Job) -> Result<Outcome> {
        let expect = job.tree.and_then(|(version, _)| version).or(job.base.and_then(|base| base.tree));
        match self.apply(Change::Delete { path: job.path.clone(), recursive: false, expect }).await {
            Ok(_) => {
                self.forget(&job.path).await?;
                Ok(Outcome::gone(&job.path).did(MirrorAction::RemovedFromTree))
            }
            Err(error) if is_refusal(&error) => self.refused(&job.path, None, &error).await,
            Err(error) => Err(error),
        }
    }

    /// Puts back what the tree has, after it refused a change.
    pub(super) async fn refused(&self, path: &VfsPath, host: Option<HostNode>, error: &Error) -> Result<Outcome> {
        if self.options.loses_nothing() && host.is_some() {
            let message = format!("{}; the file in the directory stays as it is", error.message());
            return Err(Error::new(error.kind(), message).at(path));
        }
        let event = MirrorEvent::new(MirrorAction::Refused, &path.to_owned()).with_error(error);
        let read = match self.read_tree(path).await {
            // Unreadable files are not in the directory either.
            Err(error) if is_refusal(&error) => None,
            read => read?,
        };
        match (read, host) {
            (Some(read), host) => {
                let known = self.write_host(path, Content::of(read.content), Some(read.version), host).await?;
                Ok(Outcome::known(path, Known::File(known)).with(event))
            }
            (None, host) => {
                let at = path.to_owned();
                self.on_host(move |ground| {
                    host.map_or(Ok(()), |node| ground.host.remove(&at, node))?;
                    ground.forget(&at)
                })
                .await?;
                Ok(Outcome::gone(path).with(event))
            }
        }
    }

    /// Removes a file from the directory that was removed from the tree.
    async fn remove_host(&self, job: &Job) -> Result<Outcome> {
        match self.tree.stat(&job.path, &StatOptions::new()).await {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Ok(entry) if entry.kind == EntryKind::File && entry.size_bytes == 0 && self.options.skip_empty => {}
            // It was moved or created while the tree was listed.
            Ok(_) => return Ok(Outcome::again(&job.path)),
            Err(error) => return Err(error),
        }
        let (at, node) = (job.path.clone(), job.host);
        self.on_host(move |ground| {
            node.map_or(Ok(()), |node| ground.host.remove(&at, node))?;
            ground.forget(&at)
        })
        .await?;
        Ok(Outcome::gone(&job.path).did(MirrorAction::Removed))
    }

    /// Reads both sides, takes over the change of the only side that changed, and merges if both did.
    async fn both(&self, job: &Job) -> Result<Outcome> {
        let path = &job.path;
        let is_absent = |read: &FileRead| self.options.skip_empty && read.content.is_empty();
        let tree = self.read_tree(path).await?;
        let empty = tree.as_ref().filter(|read| is_absent(read)).map(|read| read.version);
        let tree = tree.filter(|read| !is_absent(read));
        let host = match job.host {
            Some(_) => self.read_host(path).await?,
            None => None,
        };
        let base = job.base;
        match (tree, host) {
            (None, None) => {
                self.forget(path).await?;
                Ok(Outcome::gone(path))
            }
            (None, Some((content, node))) => {
                if base.is_some_and(|base| base.hash == content.hash) {
                    return self.remove_host(&Job { host: Some(node), ..job.copy() }).await;
                }
                if base.is_none() {
                    return self.send(job, content, node, empty, MirrorAction::WrittenBack).await;
                }
                let kind = MergeConflictKind::ChangedAndRemoved;
                if self.options.conflicts != MirrorConflicts::Tree {
                    let sent = self.send(job, content, node, empty, MirrorAction::WrittenBack).await?;
                    return Ok(sent.with(MirrorEvent::conflict(path, kind, MirrorSide::Directory)));
                }
                let removed = self.remove_host(&Job { host: Some(node), ..job.copy() }).await?;
                Ok(if removed.again { removed } else { removed.with(MirrorEvent::conflict(path, kind, MirrorSide::Tree)) })
            }
            (Some(read), None) => {
                let (version, content) = (read.version, Content::of(read.content));
                if base.is_some_and(|base| base.hash == content.hash) {
                    return self.remove_tree(&Job { tree: Some((Some(version), 0)), ..job.copy() }).await;
                }
                let known = self.write_host(path, content, Some(version), None).await?;
                let known = Outcome::known(path, Known::File(known)).did(MirrorAction::Mirrored);
                let event = MirrorEvent::conflict(path, MergeConflictKind::ChangedAndRemoved, MirrorSide::Tree);
                Ok(if base.is_some() { known.with(event) } else { known })
            }
            (Some(read), Some((content, node))) => {
                let (version, tree) = (read.version, Content::of(read.content));
                if tree.hash == content.hash {
                    let known = self.keep(path, content, Some(version), node).await?;
                    return Ok(Outcome::known(path, Known::File(known)));
                }
                if base.is_some_and(|base| base.hash == tree.hash) {
                    return self.send(job, content, node, Some(version), MirrorAction::WrittenBack).await;
                }
                if base.is_some_and(|base| base.hash == content.hash) {
                    let known = self.write_host(path, tree, Some(version), Some(node)).await?;
                    return Ok(Outcome::known(path, Known::File(known)).did(MirrorAction::Mirrored));
                }
                self.merge(job, tree, version, content, node).await
            }
        }
    }

    /// Writes the directory's side of a conflict to a new file beside it, which the next look takes as an addition. If something
    /// else has its name, the name gets the whole hash of the content.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if something else has each of the names.
    async fn copy_aside(&self, path: &VfsPath, content: &Content) -> Result<()> {
        let names = ASIDE_DIGITS.map(|digits| name_aside(path, content.hash, digits));
        let bytes = content.bytes.clone();
        let write = move |ground: &Ground| {
            for at in names {
                let at = at?;
                match ground.host.write(&at, &bytes, None) {
                    Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::Conflict) => {}
                    written => return written.map(drop),
                }
                // An earlier attempt may have made it.
                if ground.host.read(&at, bytes.len() as u64).is_ok_and(|(there, _)| there == bytes) {
                    return Ok(());
                }
            }
            let message = "the names for a copy of the directory's file are taken; remove what is there";
            Err(Error::new(ErrorKind::Unavailable, message))
        };
        self.on_host(write).await.map_err(|error| error.at(path))
    }

    /// Merges two files that both changed.
    async fn merge(&self, job: &Job, tree: Content, version: Version, content: Content, node: HostNode) -> Result<Outcome> {
        let path = &job.path;
        let base = match job.base {
            Some(base) => {
                let at = path.clone();
                let get = move |ground: &Ground| ground.bases.as_ref().map_or(Ok(None), |bases| bases.get(&at, base.hash));
                self.on_host(get).await?
            }
            None => None,
        };
        let (merged, kind) = merge_texts(base, tree.bytes.clone(), content.bytes.clone(), self.options.conflicts).await?;
        let copies = self.options.loses_nothing();
        let event = kind.map(|kind| {
            let kept = if merged.is_some() || copies { MirrorSide::Both } else { MirrorSide::Tree };
            MirrorEvent::conflict(path, kind, kept)
        });
        let Some(merged) = merged else {
            if copies {
                self.copy_aside(path, &content).await?;
            }
            let known = self.write_host(path, tree, Some(version), Some(node)).await?;
            return Ok(Outcome { events: event.into_iter().collect(), ..Outcome::known(path, Known::File(known)) });
        };
        let merged = Content::of(merged);
        let changed = match self.write_tree(path, merged.bytes.clone(), Some(version)).await {
            Err(error) if is_refusal(&error) => return self.refused(path, Some(node), &error).await,
            changed => changed?,
        };
        let events = vec![event.unwrap_or_else(|| MirrorEvent::new(MirrorAction::Merged, path))];
        if merged.hash == content.hash {
            let known = self.keep(path, merged, changed.version, node).await?;
            return Ok(Outcome { events, ..Outcome::known(path, Known::File(known)) });
        }
        match self.write_host(path, merged, changed.version, Some(node)).await {
            Ok(known) => Ok(Outcome { events, ..Outcome::known(path, Known::File(known)) }),
            // The file was edited again. The tree has the first edit, which is therefore the base of the next merge.
            Err(error) if is_race(&error) => {
                let known = self.keep(path, content, None, node).await?;
                Ok(Outcome { events, again: true, ..Outcome::known(path, Known::File(known)) })
            }
            Err(error) => Err(error),
        }
    }
}

impl Job {
    fn copy(&self) -> Self {
        let Self { step, path, base, tree, empty, host } = self;
        Self { step: *step, path: path.clone(), base: *base, tree: *tree, empty: *empty, host: *host }
    }
}

/// How many digits of a content's hash are in the name of its copy: few, and all if other content has that name.
const ASIDE_DIGITS: [usize; 2] = [8, 64];

/// Returns the name of a copy of some content beside a file: with a part of the hash, before the extension.
fn name_aside(path: &VfsPath, hash: Hash, digits: usize) -> Result<VfsPathBuf> {
    let name = path.name();
    let (stem, extension) = match name.rfind('.') {
        Some(dot) if dot > 0 => name.split_at(dot),
        _ => (name, ""),
    };
    let mark = format!(".conflict-{}", &hash.to_hex().as_str()[..digits]);
    // Hosts limit a name to 255 bytes.
    let room = 255_usize.saturating_sub(mark.len() + extension.len());
    let stem = &stem[..stem.floor_char_boundary(room)];
    let above = path.parent().filter(|parent| !parent.is_root()).map_or("", VfsPath::as_str);
    Ok(VfsPathBuf::parse(format!("{above}/{stem}{mark}{extension}"))?)
}

/// Merges two texts. Returns the merged text, if there is one, and the conflict, if there is one.
async fn merge_texts(
    base: Option<Vec<u8>>,
    tree: Bytes,
    host: Bytes,
    conflicts: MirrorConflicts,
) -> Result<(Option<Bytes>, Option<MergeConflictKind>)> {
    let has_base = base.is_some();
    let base = Bytes::from(base.unwrap_or_default());
    let cost_bytes = (base.len() + tree.len() + host.len()) as u64;
    work::run(cost_bytes, move |_| {
        if ![&base, &tree, &host].into_iter().all(|content| merge::is_mergeable(content)) {
            return (None, Some(MergeConflictKind::Binary));
        }
        let lines = merge::merge(&base, &tree, &host);
        if let Some(merged) = lines.merged() {
            return (Some(merged.into()), None);
        }
        let kind = if has_base { MergeConflictKind::BothChanged } else { MergeConflictKind::BothAdded };
        let marked = (conflicts == MirrorConflicts::Markers).then(|| lines.marked(NAMES, MarkerStyle::Sides).into());
        (marked, Some(kind))
    })
    .await
}
