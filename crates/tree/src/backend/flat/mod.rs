//! The effect of every [`Change`] on a tree of nodes, written once for all tiers that store nodes.
//!
//! [`StateBackend`](super::StateBackend) and [`StoreBackend`](super::StoreBackend) differ in where nodes are stored and how a
//! batch takes effect atomically. Both run [`apply`] over the primitives of a [`TreeTransaction`], so changes have the same
//! effect in both. A [`Walk`] decides node by node which paths a search visits, so searches agree too.
//!
//! Directories are nodes. Two invariants hold before and after every batch: each node except the root is in a
//! directory that is a node, and no path is both a file and a directory.

mod chunk;
mod parts;
mod walk;

pub(super) use chunk::{Body, search_chunk, search_each};
pub(super) use parts::search_parts;
pub(super) use walk::{Stretch, Walk};

use bytes::Bytes;
use jiff::Timestamp;
use std::future::Future;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Change, Changed, Edit, OpKind, Version, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::text;
use treehold_core::work::Pace;
use treehold_store::FileOutcome;

/// The most bytes of paths of all directories that one batch creates together: eight of the deepest, or some hundred thousand
/// of usual ones.
const MADE_BYTES_MAX: u64 = 32 << 20;

/// The most files and directories that one batch moves and copies.
const MOVED_ENTRIES_MAX: usize = 1_000_000;

/// A tree as one batch sees and changes it: the batch sees its own changes, which become visible to others only at the end.
pub(super) trait TreeTransaction: Send {
    /// Returns the largest allowed file in bytes, if there is a limit.
    fn file_bytes_max(&self) -> Option<u64>;

    /// Returns the node at a path. The root is always a directory.
    fn node(&mut self, path: &VfsPath) -> impl Future<Output = Result<Option<Node>>> + Send;

    /// Returns the version at a path before the batch. The batch must have read the path's node.
    fn stored_version(&self, path: &VfsPath) -> Option<Version>;

    /// Makes the batch depend on the version of a file that it has read: it takes effect only if the file still has that version.
    fn pin(&mut self, path: &VfsPath);

    /// Returns the content of a file whose node was read, and pins its version.
    fn content(&mut self, path: &VfsPath) -> impl Future<Output = Result<Bytes>> + Send;

    /// Returns whether a directory is empty.
    fn is_empty(&mut self, directory: &VfsPath) -> impl Future<Output = Result<bool>> + Send;

    /// Counts the nodes beneath a directory.
    fn count(&mut self, directory: &VfsPath) -> impl Future<Output = Result<usize>> + Send;

    /// Returns the nodes beneath a directory in path order, and makes the batch depend on them.
    fn subtree(&mut self, directory: &VfsPath) -> impl Future<Output = Result<Vec<Beneath>>> + Send;

    /// Puts a file into a directory, at a path without a node or with a file. If times are not given, a replaced file keeps its
    /// creation time, and all other times are the present.
    fn put_file(&mut self, path: &VfsPath, content: Bytes, times: Times) -> Mark;

    /// Puts a directory into a directory, at a path without a node.
    fn put_directory(&mut self, path: &VfsPath, created_at: Option<Timestamp>);

    /// Returns the pace of the batch, which is checked before each step.
    fn pace(&mut self) -> &mut Pace;

    /// Returns the bytes of the paths of all directories that the batch has created.
    fn made_bytes(&self) -> u64;

    /// Removes a file.
    fn remove_file(&mut self, path: &VfsPath);

    /// Removes a directory with everything beneath it.
    fn remove_directory(&mut self, path: &VfsPath);
}

/// The node at a path, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    /// A file.
    File(FileNode),
    /// A directory, with its creation time if known.
    Directory(Option<Timestamp>),
}

/// The times of a file, if known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Times {
    /// The creation time.
    pub(super) created_at: Option<Timestamp>,
    /// The time of the last change of its content.
    pub(super) modified_at: Option<Timestamp>,
}

/// A file as a batch sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileNode {
    /// Its version.
    pub(super) mark: Mark,
    /// Its size in bytes.
    pub(super) size_bytes: u64,
    /// Its times.
    pub(super) times: Times,
}

/// The version of a file as a batch sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// The file existed before the batch.
    Stored(Version),
    /// The batch itself put the file, with its put of this number, from 0.
    Put(usize),
}

/// One node of a subtree that is moved or copied.
#[derive(Debug, Clone)]
pub(super) struct Beneath {
    /// Its path.
    pub(super) path: VfsPathBuf,
    /// The content of a file; `None` for a directory.
    pub(super) content: Option<Bytes>,
    /// Its times.
    pub(super) times: Times,
}

/// The result of one change, before the versions of its batch are known.
#[derive(Debug)]
pub(super) struct Done {
    changed: Changed,
    mark: Option<Mark>,
}

impl Done {
    /// Returns what it does, with puts counted by file.
    pub(super) fn outcome(&self) -> FileOutcome {
        match self.mark {
            _ if self.changed.entries == 0 => FileOutcome::Unchanged,
            Some(Mark::Put(number)) => FileOutcome::Put(number),
            Some(Mark::Stored(version)) => FileOutcome::Version(version),
            None => FileOutcome::Other,
        }
    }

    /// Returns the result, given the version of each put of the batch.
    pub(super) fn resolve(self, version_of_put: impl FnOnce(usize) -> Version) -> Changed {
        let Self { mut changed, mark } = self;
        changed.version = mark.map(|mark| match mark {
            Mark::Stored(version) => version,
            Mark::Put(number) => version_of_put(number),
        });
        changed
    }
}

/// Applies changes in order. After an error the transaction must be dropped.
///
/// # Errors
/// Those of [`Backend::apply`](super::Backend::apply), with the path, the operation and the index of the change.
pub(super) async fn apply<T: TreeTransaction>(tree: &mut T, changes: &[Change]) -> Result<Vec<Done>> {
    let mut results = Vec::with_capacity(changes.len());
    let mut moved = 0;
    for (index, change) in changes.iter().enumerate() {
        tree.pace().step().await;
        let done = apply_one(tree, change).await.and_then(|done| check_made(tree).map(|()| done)).map_err(|error| {
            let error = if error.path().is_none() { error.at(change.path()) } else { error };
            error.during(change.kind()).in_batch(index, 0)
        })?;
        if matches!(change, Change::Copy { .. } | Change::Rename { .. }) {
            moved += done.changed.entries;
            check_moved(moved).map_err(|error| error.at(change.path()).during(change.kind()).in_batch(index, 0))?;
        }
        results.push(done);
    }
    Ok(results)
}

/// Bounds the directories that a batch creates: a small request can ask for thousands of them, each with a path of thousands of bytes.
fn check_made<T: TreeTransaction>(tree: &T) -> Result<()> {
    if tree.made_bytes() <= MADE_BYTES_MAX {
        return Ok(());
    }
    let message =
        format!("the batch makes directories whose paths take over {MADE_BYTES_MAX} bytes together; make fewer at once, or less deep");
    Err(Error::new(ErrorKind::TooLarge, message))
}

/// Bounds what a batch moves and copies: each copy can include the earlier ones, so a few dozen could exceed any memory.
fn check_moved(entries: usize) -> Result<()> {
    if entries <= MOVED_ENTRIES_MAX {
        return Ok(());
    }
    let message = format!("the batch moves and copies over {MOVED_ENTRIES_MAX} files and directories; do it in parts");
    Err(Error::new(ErrorKind::TooLarge, message))
}

async fn apply_one<T: TreeTransaction>(tree: &mut T, change: &Change) -> Result<Done> {
    match change {
        Change::Write { path, content, mode } => write(tree, path, content, *mode).await,
        Change::Append { path, content } => append(tree, path, content).await,
        Change::Edit { path, edits, expect } => edit(tree, path, edits, *expect).await,
        Change::CreateDir { path } => create_dir(tree, path).await,
        Change::Delete { path, recursive, expect } => delete(tree, path, *recursive, *expect).await,
        Change::Rename { from, to, overwrite } => transfer(tree, OpKind::Rename, from, to, *overwrite).await,
        Change::Copy { from, to, overwrite } => transfer(tree, OpKind::Copy, from, to, *overwrite).await,
        other => Err(other.unsupported()),
    }
}

async fn write<T: TreeTransaction>(tree: &mut T, path: &VfsPath, content: &Bytes, mode: WriteMode) -> Result<Done> {
    let found = file_at(tree, path).await?;
    let parents = if found.is_none() { missing_parents(tree, path).await? } else { Vec::new() };
    match (mode, &found) {
        (WriteMode::CreateNew, Some(_)) => return Err(Error::already_exists(path)),
        (WriteMode::IfVersion(_), None) => return Err(Error::conflict(path, None)),
        (WriteMode::IfVersion(expected), Some(file)) => check_version(tree, path, file, expected)?,
        _ => {}
    }
    check_size(tree, path, content.len())?;
    put_parents(tree, &parents).await;
    let mark = tree.put_file(path, content.clone(), Times::default());
    let changed = Changed::new(OpKind::Write, path).with_created(found.is_none());
    Ok(landed(changed, mark, content.len() as u64))
}

async fn append<T: TreeTransaction>(tree: &mut T, path: &VfsPath, content: &Bytes) -> Result<Done> {
    let Some(file) = file_at(tree, path).await? else {
        let parents = missing_parents(tree, path).await?;
        check_size(tree, path, content.len())?;
        put_parents(tree, &parents).await;
        let mark = tree.put_file(path, content.clone(), Times::default());
        return Ok(landed(Changed::new(OpKind::Append, path).with_created(true), mark, content.len() as u64));
    };
    let changed = Changed::new(OpKind::Append, path);
    if content.is_empty() {
        return Ok(landed(changed.with_entries(0), file.mark, file.size_bytes));
    }
    let old = tree.content(path).await?;
    check_size(tree, path, old.len().saturating_add(content.len()))?;
    let new = text::joined(&old, content).await?;
    let size_bytes = new.len() as u64;
    let mark = tree.put_file(path, new, Times::default());
    Ok(landed(changed, mark, size_bytes))
}

async fn edit<T: TreeTransaction>(tree: &mut T, path: &VfsPath, edits: &[Edit], expect: Option<Version>) -> Result<Done> {
    let Some(file) = file_at(tree, path).await? else { return Err(missing(tree, path).await) };
    if let Some(expected) = expect {
        check_version(tree, path, &file, expected)?;
    }
    let old = tree.content(path).await?;
    let (new, replacements) = text::edit_apart(&old, edits).await?;
    let changed = Changed::new(OpKind::Edit, path).with_replacements(replacements);
    if new == old {
        return Ok(landed(changed.with_entries(0), file.mark, file.size_bytes));
    }
    check_size(tree, path, new.len())?;
    let size_bytes = new.len() as u64;
    let mark = tree.put_file(path, new.into(), Times::default());
    Ok(landed(changed, mark, size_bytes))
}

async fn create_dir<T: TreeTransaction>(tree: &mut T, path: &VfsPath) -> Result<Done> {
    let changed = Changed::new(OpKind::CreateDir, path);
    match tree.node(path).await? {
        Some(Node::Directory(_)) => Ok(gone_or_directory(changed.with_entries(0))),
        Some(Node::File(_)) => Err(Error::already_exists(path)),
        None => {
            let parents = missing_parents(tree, path).await?;
            put_parents(tree, &parents).await;
            tree.put_directory(path, None);
            Ok(gone_or_directory(changed.with_created(true)))
        }
    }
}

async fn delete<T: TreeTransaction>(tree: &mut T, path: &VfsPath, recursive: bool, expect: Option<Version>) -> Result<Done> {
    if path.is_root() {
        return Err(Error::invalid_argument("the root cannot be deleted; name a path beneath it"));
    }
    let changed = Changed::new(OpKind::Delete, path);
    match tree.node(path).await? {
        None => Err(missing(tree, path).await),
        Some(Node::File(file)) => {
            if let Some(expected) = expect {
                check_version(tree, path, &file, expected)?;
            }
            tree.remove_file(path);
            Ok(gone_or_directory(changed))
        }
        Some(Node::Directory(_)) if expect.is_some() => {
            Err(Error::invalid_argument(format!("`{path}` is a directory and directories have no version; delete it without one")))
        }
        Some(Node::Directory(_)) if recursive => {
            let beneath = tree.count(path).await?;
            tree.remove_directory(path);
            Ok(gone_or_directory(changed.with_entries(beneath + 1)))
        }
        Some(Node::Directory(_)) => {
            if !tree.is_empty(path).await? {
                return Err(Error::invalid_argument(format!("the directory `{path}` is not empty; delete it recursively")));
            }
            tree.remove_directory(path);
            Ok(gone_or_directory(changed))
        }
    }
}

/// Renames or copies; only a rename removes the source and keeps its times.
async fn transfer<T: TreeTransaction>(tree: &mut T, kind: OpKind, from: &VfsPath, to: &VfsPath, overwrite: bool) -> Result<Done> {
    let moves = kind == OpKind::Rename;
    let verb = if moves { "moved" } else { "copied" };
    if from.is_root() || to.is_root() {
        return Err(Error::invalid_argument(format!("the root cannot be {verb} or be a target; name a path beneath it")));
    }
    let Some(source) = tree.node(from).await? else { return Err(missing(tree, from).await) };
    let changed = Changed::new(kind, to);
    if from == to {
        return match source {
            _ if !moves => Err(Error::invalid_argument(format!("`{from}` cannot be copied onto itself; name another target"))),
            Node::File(file) => Ok(landed(changed.with_entries(0), file.mark, file.size_bytes)),
            Node::Directory(_) => Ok(gone_or_directory(changed.with_entries(0))),
        };
    }
    let is_directory = matches!(source, Node::Directory(_));
    if is_directory && to.starts_with(from) {
        return Err(Error::invalid_argument(format!("`{to}` lies beneath `{from}`; a directory cannot be {verb} into itself")).at(to));
    }
    let (created, parents) = match tree.node(to).await? {
        None => (true, missing_parents(tree, to).await?),
        Some(Node::File(_)) if overwrite && !is_directory => (false, Vec::new()),
        Some(Node::File(_)) if is_directory => {
            return Err(taken(to, "is a file and no directory replaces it; choose another name or delete it first"));
        }
        Some(Node::File(_)) => return Err(Error::already_exists(to)),
        Some(Node::Directory(_)) => {
            return Err(taken(to, "is a directory and is never replaced; choose another name or delete it first"));
        }
    };
    let changed = changed.with_created(created);
    match source {
        Node::File(file) => {
            let content = tree.content(from).await?;
            if moves {
                tree.remove_file(from);
            }
            put_parents(tree, &parents).await;
            let mark = tree.put_file(to, content, if moves { file.times } else { Times::default() });
            Ok(landed(changed, mark, file.size_bytes))
        }
        Node::Directory(created_at) => {
            let beneath = tree.subtree(from).await?;
            if moves {
                tree.remove_directory(from);
            }
            put_parents(tree, &parents).await;
            tree.put_directory(to, created_at.filter(|_| moves));
            let entries = beneath.len() + 1;
            for node in beneath {
                tree.pace().step().await;
                put_beneath(tree, from, to, node, moves)?;
            }
            Ok(gone_or_directory(changed.with_entries(entries)))
        }
    }
}

fn put_beneath<T: TreeTransaction>(tree: &mut T, from: &VfsPath, to: &VfsPath, node: Beneath, moves: bool) -> Result<()> {
    let rest = node.path.strip_prefix(from).expect("descendants start with the directory's path");
    // A path that was legal beneath the old directory may be too long beneath the new one, so the length is checked here.
    let path = VfsPathBuf::parse(to.concat(rest).as_str()).map_err(|error| Error::from(error).at(to))?;
    let times = if moves { node.times } else { Times::default() };
    match node.content {
        Some(content) => {
            tree.put_file(&path, content, times);
        }
        None => tree.put_directory(&path, times.created_at),
    }
    Ok(())
}

/// Returns the file at a path, or `None` if nothing exists there. A directory is an error.
async fn file_at<T: TreeTransaction>(tree: &mut T, path: &VfsPath) -> Result<Option<FileNode>> {
    match tree.node(path).await? {
        Some(Node::File(file)) => Ok(Some(file)),
        Some(Node::Directory(_)) => Err(Error::is_directory(path)),
        None => Ok(None),
    }
}

/// Returns the missing directories above a path, the deepest first.
async fn missing_parents<'p, T: TreeTransaction>(tree: &mut T, path: &'p VfsPath) -> Result<Vec<&'p VfsPath>> {
    let mut parents = Vec::new();
    let mut above = path.parent();
    while let Some(parent) = above {
        tree.pace().step().await;
        match tree.node(parent).await? {
            Some(Node::Directory(_)) => break,
            Some(Node::File(_)) => return Err(beneath_a_file(path)),
            None => parents.push(parent),
        }
        above = parent.parent();
    }
    Ok(parents)
}

async fn put_parents<T: TreeTransaction>(tree: &mut T, parents: &[&VfsPath]) {
    for parent in parents.iter().rev() {
        tree.pace().step().await;
        tree.put_directory(parent, None);
    }
}

/// Makes the error for an absent path: `not_a_directory` beneath a file, otherwise `not_found`.
async fn missing<T: TreeTransaction>(tree: &mut T, path: &VfsPath) -> Error {
    match missing_parents(tree, path).await {
        Ok(_) => Error::not_found(path),
        Err(error) => error,
    }
}

/// Makes the `not_a_directory` error for a path beneath a file.
pub(super) fn beneath_a_file(path: &VfsPath) -> Error {
    Error::new(ErrorKind::NotADirectory, format!("`{path}` lies beneath a file; name a path in a directory")).at(path)
}

fn taken(path: &VfsPath, why: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("`{path}` {why}")).at(path)
}

fn check_version<T: TreeTransaction>(tree: &mut T, path: &VfsPath, file: &FileNode, expected: Version) -> Result<()> {
    match file.mark {
        Mark::Stored(version) if version == expected => {
            tree.pin(path);
            Ok(())
        }
        Mark::Stored(version) => Err(Error::conflict(path, Some(version))),
        Mark::Put(_) => Err(Error::new(
            ErrorKind::Conflict,
            format!("`{path}` was changed earlier in this batch; expect a version in the first change of a file only"),
        )
        .at(path)
        .with_current_version(tree.stored_version(path))),
    }
}

fn check_size<T: TreeTransaction>(tree: &T, path: &VfsPath, size_bytes: usize) -> Result<()> {
    match tree.file_bytes_max() {
        Some(max) if size_bytes as u64 > max => {
            let message = format!("`{path}` would have {size_bytes} bytes and a file here has at most {max}; split it");
            Err(Error::new(ErrorKind::TooLarge, message).at(path))
        }
        _ => Ok(()),
    }
}

fn landed(mut changed: Changed, mark: Mark, size_bytes: u64) -> Done {
    changed.size_bytes = size_bytes;
    Done { changed, mark: Some(mark) }
}

fn gone_or_directory(changed: Changed) -> Done {
    Done { changed, mark: None }
}
