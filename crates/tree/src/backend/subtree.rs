//! A part of a backend as a tree of its own.

use super::rebase::View;
use crate::backend::Backend;
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, EntryKind, FileRead, GlobOptions, GlobResult, GrepCursor, GrepOptions, GrepResult,
    Listing, LsOptions, OpKind, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::{InvalidPath, PATH_BYTES_MAX, VfsPath, VfsPathBuf};
use treehold_core::search::rank;

/// A part of a backend as a tree of its own: the directory at a base, or one file.
///
/// [`Subtree::new`] shows a directory. Its root always exists, as in every tree: while nothing exists at the base it reads
/// as an empty directory, and the first write creates it. [`Subtree::file`] shows one file, whose path within the tree is `/`;
/// a [file route](crate::composite::CompositeBuilder::file_route) takes one.
///
/// Paths in results, cursors and errors are the subtree's; paths outside are never named. Ignore files above the base
/// still apply to searches, because what they exclude is excluded in the whole tree.
///
/// Cost: that of the backend, and the construction of one path per call.
///
/// ```
/// use std::sync::Arc;
/// use treehold_tree::backend::{BackendExt, StateBackend, Subtree};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let whole = Arc::new(StateBackend::new());
/// whole.write("/projects/one/readme.md", "hello\n").await?;
/// let part = Subtree::new(whole.clone(), "/projects/one".parse()?);
/// assert_eq!(part.read_text("/readme.md").await?, "hello\n");
/// assert_eq!(part.read_text("/gone.md").await.unwrap_err().to_string(), "`/gone.md` does not exist");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Subtree {
    whole: Arc<dyn Backend>,
    base: VfsPathBuf,
    root: Root,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    Directory,
    File,
}

impl Subtree {
    /// Shows the directory at `base`.
    pub fn new(whole: Arc<dyn Backend>, base: VfsPathBuf) -> Self {
        Self { whole, base, root: Root::Directory }
    }

    /// Shows the file at `base`, whose path is then `/`. It need not exist yet: writing `/` creates it.
    pub fn file(whole: Arc<dyn Backend>, base: VfsPathBuf) -> Self {
        Self { whole, base, root: Root::File }
    }

    /// Returns the base of the subtree in the backend.
    pub fn base(&self) -> &VfsPath {
        &self.base
    }

    fn inward(&self) -> View<'_> {
        View::Beneath(&self.base)
    }

    fn outward(&self, error: Error, inner: &VfsPath) -> Error {
        self.inward().inverse().error(error, &[inner])
    }

    /// Maps the path of a read to the backend. Nothing exists beneath a file.
    fn enter(&self, path: &VfsPath) -> Result<VfsPathBuf> {
        if self.root == Root::File && !path.is_root() {
            return Err(Error::not_a_directory(VfsPath::ROOT));
        }
        Ok(self.base.concat(path))
    }

    /// Returns whether an error only says that nothing exists at the base yet.
    fn is_unmade_root(&self, path: &VfsPath, error: &Error) -> bool {
        self.root == Root::Directory && path.is_root() && error.kind() == ErrorKind::NotFound
    }

    /// Refuses changes of the root that are not allowed, and maps all others to the backend.
    fn enter_change(&self, change: &Change) -> Result<Change> {
        let of_root = change.path().is_root() || change.target().is_some_and(VfsPath::is_root);
        if of_root {
            self.check_root_change(change)?;
        }
        change.try_map_paths(|path| {
            let inner = self.enter(path)?;
            if inner.as_str().len() > PATH_BYTES_MAX {
                return Err(Error::from(InvalidPath::Long).at(path));
            }
            Ok(inner)
        })
    }

    fn check_root_change(&self, change: &Change) -> Result<()> {
        let root = VfsPath::ROOT;
        match (change, self.root) {
            (Change::Delete { .. }, _) => {
                Err(Error::invalid_argument("`/` is the root and cannot be deleted; delete its entries instead").at(root))
            }
            (Change::Rename { .. } | Change::Copy { .. }, _) => {
                Err(Error::invalid_argument("`/` is the root; name a path beneath it").at(root))
            }
            (Change::CreateDir { .. }, Root::File) => {
                Err(Error::new(ErrorKind::AlreadyExists, "`/` is a file in this tree, not a directory; write the file").at(root))
            }
            (Change::Write { .. } | Change::Append { .. } | Change::Edit { .. }, Root::Directory) => Err(Error::is_directory(root)),
            (Change::CreateDir { .. }, Root::Directory)
            | (Change::Write { .. } | Change::Append { .. } | Change::Edit { .. }, Root::File) => Ok(()),
            (other, _) => Err(other.unsupported()),
        }
    }

    /// Checks that the base is of the kind that the tree shows. Reads follow a link at the base, so it shows as a directory.
    fn root_entry(&self, entry: Entry) -> Result<Entry> {
        match (self.root, entry.kind) {
            (Root::File, EntryKind::Directory) => Err(Error::is_directory(VfsPath::ROOT)),
            (Root::Directory, EntryKind::File) => Err(Error::not_a_directory(VfsPath::ROOT)),
            (Root::Directory, EntryKind::Symlink | EntryKind::Other) => {
                Ok(Entry::directory(VfsPath::ROOT).with_times(entry.created_at, entry.modified_at))
            }
            (Root::File, _) | (Root::Directory, EntryKind::Directory) => Ok(entry),
        }
    }

    /// Maps the error of a batch, whose message may name the paths of the failed change.
    fn changes_outward(&self, error: Error, inner: &[Change]) -> Error {
        let asked: Vec<&VfsPath> =
            error.change().and_then(|index| inner.get(index)).or(inner.first()).into_iter().flat_map(Change::paths).collect();
        self.inward().inverse().error(error, &asked)
    }

    /// Refuses to search a directory at the path of this tree's file.
    async fn check_file(&self) -> Result<()> {
        match self.whole.stat(&self.base, &StatOptions::new()).await {
            Ok(entry) if entry.is_directory() => Err(Error::is_directory(VfsPath::ROOT)),
            Ok(_) => Ok(()),
            Err(error) => Err(self.outward(error, &self.base)),
        }
    }
}

impl fmt::Display for Subtree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subtree({}, {})", self.base, self.whole)
    }
}

#[async_trait]
impl Backend for Subtree {
    fn capabilities(&self) -> Capabilities {
        self.whole.capabilities()
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        let inner = self.enter(path)?;
        let mut entry = match self.whole.stat(&inner, options).await {
            Ok(entry) => entry,
            Err(error) if self.is_unmade_root(path, &error) => Entry::directory(VfsPath::ROOT),
            Err(error) => return Err(self.outward(error, &inner)),
        };
        if path.is_root() {
            entry = self.root_entry(entry)?;
        }
        entry.path = path.to_owned();
        entry.leads_to = entry.leads_to.and_then(|target| target.strip_prefix(&self.base).map(ToOwned::to_owned));
        Ok(entry)
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        if self.root == Root::Directory && path.is_root() {
            return Err(Error::is_directory(path));
        }
        let inner = self.enter(path)?;
        self.whole.read(&inner, options).await.map_err(|error| self.outward(error, &inner))
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        let inner = self.enter(path)?;
        match self.whole.ls(&inner, options).await {
            Ok(listing) => Ok(self.inward().inverse().listing(listing)),
            Err(error) if self.is_unmade_root(path, &error) => Ok(Listing::default()),
            Err(error) => Err(self.outward(error, &inner)),
        }
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        let inner = self.enter(path)?;
        if self.root == Root::File {
            return Err(Error::not_a_directory(path));
        }
        let start_after = options.start_after.as_deref().map(|cursor| self.base.concat(cursor));
        match self.whole.glob(&inner, &self.inward().glob_options(options, start_after)).await {
            Ok(result) => Ok(self.inward().inverse().globbed(result)),
            Err(error) if self.is_unmade_root(path, &error) => Ok(GlobResult::default()),
            Err(error) => Err(self.outward(error, &inner)),
        }
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        let inner = self.enter(path)?;
        if self.root == Root::File {
            self.check_file().await?;
        }
        let start_after = options.start_after.as_ref().map(|cursor| GrepCursor { path: self.base.concat(&cursor.path), line: cursor.line });
        match self.whole.grep(&inner, &self.inward().grep_options(options, start_after)).await {
            Ok(result) => Ok(self.inward().inverse().grepped(result)),
            Err(error) if self.is_unmade_root(path, &error) => Ok(GrepResult::default()),
            Err(error) => Err(self.outward(error, &inner)),
        }
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        let inner = self.enter(path)?;
        if self.root == Root::File {
            self.check_file().await?;
        }
        match self.whole.search(&inner, &self.inward().search_options(options)).await {
            Ok(result) => Ok(self.inward().inverse().recalled(result)),
            Err(error) if self.is_unmade_root(path, &error) => rank::nothing(options),
            Err(error) => Err(self.outward(error, &inner)),
        }
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let inner = changes
            .iter()
            .enumerate()
            .map(|(index, change)| self.enter_change(change).map_err(|error| error.during(change.kind()).in_batch(index, 0)))
            .collect::<Result<Vec<_>>>()?;
        let results = self.whole.apply(&inner, options).await.map_err(|error| self.changes_outward(error, &inner))?;
        let mut results = self.inward().inverse().changed(results);
        // The root always exists, so it cannot be created.
        for result in results.iter_mut().filter(|result| result.operation == OpKind::CreateDir && result.path.is_root()) {
            (result.created, result.entries) = (false, 0);
        }
        Ok(results)
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        let inner = review.map_paths(|path| self.base.concat(path));
        self.whole.review(&inner).await.map_err(|error| self.inward().inverse().error(error, &[]))
    }
}
