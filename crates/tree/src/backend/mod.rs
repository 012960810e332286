//! A file tree behind one root: the trait that every tier, layer and composite implements.
//!
//! It consists of six read methods, [`apply`](Backend::apply) and [`review`](Backend::review). All are required, so that a wrapper which
//! forgets one fails to compile; [`forward_backend!`](crate::forward_backend) writes those that a wrapper passes on. [`BackendExt`] adds
//! verbs (`write`, `edit`, `delete`...) that make one change each, and [`ContentStream`] reads a file in parts. The rules that all
//! implementations share are written once, as the cases of `conformance` and as the pure functions
//! of [`text`](treehold_core::text) and [`search`](treehold_core::search).
//!
//! [`StateBackend`] keeps a tree in memory, [`StoreBackend`] in the rows of a [`Store`](treehold_store::Store), and
//! [`FilesystemBackend`] in a directory of the host; [`Subtree`] shows a part of any of them as a tree of its own,
//! [`OverlayBackend`] keeps the changes of one separate from it, and [`CachedBackend`] caches what was read from one.

use crate::forward_backend;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, ErrorRecord, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Edit, Entry, EntryKind, Failure, FileRead, GlobOptions, GlobResult, GrepOptions,
    GrepResult, Listing, LsOptions, OnFailure, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions, Version, WriteMode,
};
use treehold_core::path::{VfsPath, VfsPathBuf};

mod cached;
#[cfg(all(feature = "filesystem", unix))]
mod filesystem;
mod flat;
#[doc(hidden)]
pub mod forward;
mod news;
pub(crate) mod overlay;
pub(crate) mod rebase;
pub(crate) mod recall;
mod state;
mod store;
mod stream;
mod subtree;

pub use cached::{CacheOptions, CachedBackend, Staleness};
#[cfg(all(feature = "filesystem", unix))]
pub use filesystem::{FilesystemBackend, FilesystemOptions, SyncMode};
#[cfg(all(feature = "filesystem", unix))]
pub(crate) use filesystem::{HostDirectory, HostNode, open_to_pass};
pub use news::TreeNews;
pub use overlay::{
    OverlayApplied, OverlayApplyOptions, OverlayBackend, OverlayConflict, OverlayDiff, OverlayDiffOptions, OverlayDifference,
    OverlayDifferenceKind, OverlayStrategy,
};
pub use recall::search_by_reading;
pub(crate) use recall::{NearBounds, add_snippets, listed_files, nearly_by_reading};
pub(crate) use state::{Child, ENTRIES_MAX, Graft, Holder, Link, Page, PageId, PageSource, Row, StoredBody, Totals};
pub use state::{StateBackend, StateDifference, StateNode, StateSnapshot};
pub use store::{HistoryPolicy, IndexKind, IndexProgress, IndexState, RecordedCall, StoreBackend, StorePast, Verification};
pub use stream::{ContentStream, StreamOptions};
pub use subtree::Subtree;

/// A file tree behind one root.
///
/// Paths are absolute within the tree. `Display` prints the tree with all its layers and mounts, but without secrets and full host paths:
/// `Audit(Limit(8, Composite(State, /memories => Store(sqlite:agent.db))))`.
///
/// Dropping a future stops its work; a dropped change leaves either the old content or the new, never a part.
#[async_trait]
pub trait Backend: Send + Sync + fmt::Display + fmt::Debug {
    /// Declares what the tree offers beyond the contract.
    fn capabilities(&self) -> Capabilities;

    /// Returns the entry at a path. A link is shown as the link, not as its target.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`NotADirectory`](ErrorKind::NotADirectory) beneath a file, and
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) beneath a link that the options refuse to follow.
    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry>;

    /// Reads a file: whole, a window of lines, or a range of bytes.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`NotADirectory`](ErrorKind::NotADirectory) beneath a file,
    /// [`IsDirectory`](ErrorKind::IsDirectory), [`TooLarge`](ErrorKind::TooLarge) for a whole file over the limit,
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an offset past the end.
    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead>;

    /// Lists the direct children of a directory by name.
    ///
    /// Cost: proportional to the children, independent of the files beneath them.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`NotADirectory`](ErrorKind::NotADirectory) for a file.
    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing>;

    /// Finds paths beneath a directory by pattern, in path order.
    ///
    /// # Errors
    /// As [`Backend::ls`], and [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed pattern.
    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult>;

    /// Finds lines by pattern in one file or in the files beneath a directory, in path order.
    ///
    /// A file named directly is searched whatever the hidden and ignore rules and the globs say.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`NotADirectory`](ErrorKind::NotADirectory) beneath a file, and
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed pattern, glob or type.
    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult>;

    /// Ranks files by words, the best first: one file or those beneath a directory.
    ///
    /// A file is found by any word of the query, in its path or its content, and ranked by all of them
    /// ([`rank`](treehold_core::search::rank)). Only the first 1 MiB of a content counts. If the tree has an index of words, that is
    /// used, and words are weighted by the whole tree; otherwise the selected files are read ([`search_by_reading`]) and words weighted
    /// by them. A file named directly is searched whatever its name.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`NotADirectory`](ErrorKind::NotADirectory) beneath a file, and
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a query without a word, a malformed glob, or ranks over
    /// [`SearchOptions::RANK_MAX`].
    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult>;

    /// Applies changes in order and returns the result of each. This is the only method that changes a tree.
    ///
    /// Later changes see the earlier ones. With [`Capabilities::atomic_batch`], either all changes take effect or none does;
    /// otherwise a batch stops at the first failure, and the error says how many took effect ([`Error::applied`]).
    /// [`Error::change`] is the index of the failed change. An edit or append that loses a race is repeated on the new
    /// content. An empty batch does nothing.
    ///
    /// # Errors
    /// By change: [`NotFound`](ErrorKind::NotFound), [`AlreadyExists`](ErrorKind::AlreadyExists),
    /// [`IsDirectory`](ErrorKind::IsDirectory), [`NotADirectory`](ErrorKind::NotADirectory), [`Conflict`](ErrorKind::Conflict)
    /// for an outdated expected version, [`NoMatch`](ErrorKind::NoMatch) and [`Ambiguous`](ErrorKind::Ambiguous) of an
    /// edit, [`InvalidArgument`](ErrorKind::InvalidArgument), [`ReadOnly`](ErrorKind::ReadOnly), [`TooLarge`](ErrorKind::TooLarge).
    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>>;

    /// Asks the tree and all its layers about differences that bypass [`apply`](Backend::apply), such as a restore of the
    /// state, before they are made. The review itself changes nothing. Returns how much of each difference may be shown.
    ///
    /// A wrapper passes the review on in the paths of the inner tree; a tree without rules returns [`Review::open`]. Where
    /// [`Review::covers_beneath`] is set, a wrapper that decides by paths refuses if it could refuse any path beneath.
    ///
    /// # Errors
    /// If the differences are about to be made, the errors with which [`apply`](Backend::apply) would refuse such changes: of rules
    /// [`PermissionDenied`](ErrorKind::PermissionDenied), of quotas [`QuotaExceeded`](ErrorKind::QuotaExceeded), of a read-only
    /// tree [`ReadOnly`](ErrorKind::ReadOnly).
    async fn review(&self, review: &Review) -> Result<Vec<Sight>>;
}

#[async_trait]
impl<B: Backend + ?Sized> Backend for Arc<B> {
    forward_backend! { self => (**self); capabilities, stat, read, ls, glob, grep, search, apply, review }
}

#[async_trait]
impl<B: Backend + ?Sized> Backend for &B {
    forward_backend! { self => (**self); capabilities, stat, read, ls, glob, grep, search, apply, review }
}

/// Convenience verbs for every backend. They take paths as text and parse them.
///
/// ```
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let tree = StateBackend::new();
/// tree.write("/notes/todo.md", "milk\nbread\n").await?;
/// tree.edit("/notes/todo.md", "bread", "butter").await?;
/// assert_eq!(tree.read_text("/notes/todo.md").await?, "milk\nbutter\n");
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait BackendExt: Backend {
    /// Applies one change.
    ///
    /// # Errors
    /// Those of [`Backend::apply`].
    async fn apply_one(&self, change: Change) -> Result<Changed> {
        let mut results = self.apply(std::slice::from_ref(&change), &ApplyOptions::new()).await?;
        results.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "a batch of one change returned no result"))
    }

    /// Creates a file or replaces its content.
    ///
    /// # Errors
    /// Those of [`Backend::apply`].
    async fn write(&self, path: &str, content: impl Into<Bytes> + Send) -> Result<Changed> {
        let change = Change::Write { path: VfsPathBuf::parse(path)?, content: content.into(), mode: WriteMode::Overwrite };
        self.apply_one(change).await
    }

    /// Creates a file that must not exist yet.
    ///
    /// # Errors
    /// Those of [`Backend::apply`], [`AlreadyExists`](ErrorKind::AlreadyExists) among them.
    async fn create(&self, path: &str, content: impl Into<Bytes> + Send) -> Result<Changed> {
        let change = Change::Write { path: VfsPathBuf::parse(path)?, content: content.into(), mode: WriteMode::CreateNew };
        self.apply_one(change).await
    }

    /// Replaces a file's content if it still has a version.
    ///
    /// # Errors
    /// Those of [`Backend::apply`], [`Conflict`](ErrorKind::Conflict) among them.
    async fn write_if(&self, path: &str, content: impl Into<Bytes> + Send, version: Version) -> Result<Changed> {
        let change = Change::Write { path: VfsPathBuf::parse(path)?, content: content.into(), mode: WriteMode::IfVersion(version) };
        self.apply_one(change).await
    }

    /// Adds to the end of a file, creating it when absent.
    ///
    /// # Errors
    /// Those of [`Backend::apply`].
    async fn append(&self, path: &str, content: impl Into<Bytes> + Send) -> Result<Changed> {
        let change = Change::Append { path: VfsPathBuf::parse(path)?, content: content.into() };
        self.apply_one(change).await
    }

    /// Replaces the one occurrence of `old` in a file by `new`, atomically.
    ///
    /// Cost: one read and one conditional write; a lost race is retried on the new content.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) without a file, [`NoMatch`](ErrorKind::NoMatch) or
    /// [`Ambiguous`](ErrorKind::Ambiguous) by what was counted.
    async fn edit(&self, path: &str, old: &str, new: &str) -> Result<Changed> {
        self.edit_many(path, vec![Edit::new(old, new)]).await
    }

    /// Replaces every occurrence of `old` in a file by `new`, atomically.
    ///
    /// # Errors
    /// As [`BackendExt::edit`], without [`Ambiguous`](ErrorKind::Ambiguous).
    async fn edit_all(&self, path: &str, old: &str, new: &str) -> Result<Changed> {
        self.edit_many(path, vec![Edit::all(old, new)]).await
    }

    /// Applies several replacements in order to one file, all or none.
    ///
    /// # Errors
    /// As [`BackendExt::edit`].
    async fn edit_many(&self, path: &str, edits: Vec<Edit>) -> Result<Changed> {
        let change = Change::Edit { path: VfsPathBuf::parse(path)?, edits, expect: None };
        self.apply_one(change).await
    }

    /// Creates a directory and its parents; an existing directory is not an error.
    ///
    /// # Errors
    /// Those of [`Backend::apply`].
    async fn create_dir(&self, path: &str) -> Result<Changed> {
        let change = Change::CreateDir { path: VfsPathBuf::parse(path)? };
        self.apply_one(change).await
    }

    /// Removes a file, a link or an empty directory.
    ///
    /// # Errors
    /// Those of [`Backend::apply`].
    async fn delete(&self, path: &str) -> Result<Changed> {
        let change = Change::Delete { path: VfsPathBuf::parse(path)?, recursive: false, expect: None };
        self.apply_one(change).await
    }

    /// Removes a file, a link, or a directory with everything beneath it.
    ///
    /// # Errors
    /// Those of [`Backend::apply`].
    async fn delete_all(&self, path: &str) -> Result<Changed> {
        let change = Change::Delete { path: VfsPathBuf::parse(path)?, recursive: true, expect: None };
        self.apply_one(change).await
    }

    /// Moves a file or directory to an absent path.
    ///
    /// # Errors
    /// Those of [`Backend::apply`].
    async fn rename(&self, from: &str, to: &str) -> Result<Changed> {
        let change = Change::Rename { from: VfsPathBuf::parse(from)?, to: VfsPathBuf::parse(to)?, overwrite: false };
        self.apply_one(change).await
    }

    /// Copies a file or directory to an absent path.
    ///
    /// # Errors
    /// Those of [`Backend::apply`].
    async fn copy(&self, from: &str, to: &str) -> Result<Changed> {
        let change = Change::Copy { from: VfsPathBuf::parse(from)?, to: VfsPathBuf::parse(to)?, overwrite: false };
        self.apply_one(change).await
    }

    /// Reads a whole file as bytes.
    ///
    /// # Errors
    /// Those of [`Backend::read`].
    async fn read_bytes(&self, path: &str) -> Result<Bytes> {
        Ok(self.read(&VfsPath::parse(path)?, &ReadOptions::new()).await?.content)
    }

    /// Reads a whole file as UTF-8 text.
    ///
    /// # Errors
    /// Those of [`Backend::read`], and [`InvalidArgument`](ErrorKind::InvalidArgument) for content that is not UTF-8.
    async fn read_text(&self, path: &str) -> Result<String> {
        let path = VfsPath::parse(path)?;
        let content = self.read(&path, &ReadOptions::new()).await?.content;
        String::from_utf8(content.into()).map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, format!("`{path}` is not UTF-8 text; read it as bytes")).at(&path).with_source(error)
        })
    }

    /// Reads several files, some of them at the same time. Returns the content of each, or the error of reading it, in the order of the
    /// paths.
    ///
    /// Cost: one read for each path. All contents are in memory at once, so bound them by the options.
    async fn read_many<P: AsRef<str> + Sync>(&self, paths: &[P], options: &ReadOptions) -> Vec<Result<FileRead>> {
        let reads: Vec<_> = paths.iter().map(|path| read_one(self, path.as_ref(), options)).collect();
        futures::stream::iter(reads).buffered(AT_ONCE).collect().await
    }

    /// Returns what each host link of a listing leads to, in the order of its entries: `None` for an entry that is no link, and for a link
    /// that leads nowhere or out of the tree.
    ///
    /// Cost: two lookups for each link, some of them at the same time; none without links.
    ///
    /// # Errors
    /// Those of [`Backend::stat`], except that a link or target that is gone or may not be seen leads nowhere.
    async fn link_targets(&self, listing: &Listing) -> Result<Vec<Option<Entry>>> {
        let targets: Vec<_> = listing.entries.iter().map(|entry| link_target(self, entry)).collect();
        futures::stream::iter(targets).buffered(AT_ONCE).try_collect().await
    }

    /// Reads a file in parts, all of one version. For a tree that the stream should own, such as an `Arc`, use [`ContentStream::open`].
    ///
    /// # Errors
    /// Those of [`Backend::read`].
    async fn read_stream(&self, path: &str) -> Result<ContentStream<&Self>> {
        ContentStream::open(self, &VfsPath::parse(path)?, &StreamOptions::new()).await
    }

    /// Returns whether a path exists.
    ///
    /// # Errors
    /// Those of [`Backend::stat`] except [`NotFound`](ErrorKind::NotFound) and [`NotADirectory`](ErrorKind::NotADirectory).
    async fn exists(&self, path: &str) -> Result<bool> {
        match self.stat(&VfsPath::parse(path)?, &StatOptions::new()).await {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists up to `limit` entries beneath a directory in path order, at most `depth` levels deep, including hidden ones. Directories that
    /// cannot be listed are reported as failures.
    ///
    /// Cost: one listing for each directory met.
    ///
    /// # Errors
    /// Those of [`Backend::ls`] of the directory itself.
    async fn tree(&self, path: &str, depth: usize, limit: usize) -> Result<Tree> {
        let mut tree = Tree::default();
        // The top of the stack is listed next; children are pushed in reverse, so the walk is in path order.
        let mut stack: Vec<(Entry, usize)> = Vec::new();
        let list = async |of: &VfsPath, level: usize, stack: &mut Vec<(Entry, usize)>, failures: &mut Vec<Failure>| -> Result<()> {
            let mut options = LsOptions::new().with_limit(limit.saturating_add(1)).with_on_failure(OnFailure::Partial);
            let mut children = Vec::new();
            loop {
                let listing = self.ls(of, &options).await?;
                children.extend(listing.entries);
                failures.extend(listing.failures);
                match listing.truncated {
                    Some(truncation) if children.len() <= limit => {
                        options.start_after = Some(truncation.next_after(options.start_after.as_ref())?);
                    }
                    _ => break,
                }
            }
            stack.extend(children.into_iter().rev().map(|entry| (entry, level)));
            Ok(())
        };
        list(&*VfsPath::parse(path)?, 1, &mut stack, &mut tree.failures).await?;
        while let Some((entry, level)) = stack.pop() {
            if tree.entries.len() == limit {
                tree.truncated = true;
                break;
            }
            if entry.kind == EntryKind::Directory && level < depth {
                match list(&entry.path, level + 1, &mut stack, &mut tree.failures).await {
                    Ok(()) => {}
                    // It was removed after it was listed.
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                    // Report the failure, so that the directory does not look empty, and continue with the rest of the tree.
                    Err(error) => tree.failures.push(Failure { path: entry.path.clone(), error: ErrorRecord::from(&error) }),
                }
            }
            tree.entries.push(entry);
        }
        Ok(tree)
    }
}

impl<B: Backend + ?Sized> BackendExt for B {}

/// How many operations of one call run at the same time.
const AT_ONCE: usize = 16;

async fn read_one<B: Backend + ?Sized>(tree: &B, path: &str, options: &ReadOptions) -> Result<FileRead> {
    tree.read(&VfsPath::parse(path)?, options).await
}

/// Returns what a link leads to; `None` for any other entry.
async fn link_target<B: Backend + ?Sized>(tree: &B, entry: &Entry) -> Result<Option<Entry>> {
    if entry.kind != EntryKind::Symlink {
        return Ok(None);
    }
    match seen(tree, &entry.path).await?.and_then(|link| link.leads_to) {
        Some(target) => seen(tree, &target).await,
        None => Ok(None),
    }
}

/// Returns what is at a path, or `None` if nothing can be seen there.
async fn seen<B: Backend + ?Sized>(tree: &B, path: &VfsPath) -> Result<Option<Entry>> {
    match tree.stat(path, &StatOptions::new()).await {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A directory with what is beneath it, as [`tree`](BackendExt::tree) returns it.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Tree {
    /// The entries in path order.
    pub entries: Vec<Entry>,
    /// Whether there were more than the limit.
    pub truncated: bool,
    /// What could not be listed: directories among the entries, mounts, and entries that are damaged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}
