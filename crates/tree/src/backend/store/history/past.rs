//! A tree in a store as it was at a moment.

use super::rows::{FileHistory, Kept, LISTS, Then, path_of};
use crate::backend::store::StoreBackend;
use crate::backend::{Backend, Holder, PageSource, StateNode, StateSnapshot, StoredBody};
use crate::rows::{RowKey, file_key};
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::OnceCell;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, Forgotten, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing,
    LsOptions, Moment, ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions, Version,
};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work::Pace;
use treehold_store::{ScanEntry, ScanOptions};

/// The number of rows in a page of a scan.
const PAGE_ROWS: usize = 1_000;

/// A tree of a [`StoreBackend`] at a moment, read-only.
///
/// At a time it holds the files that existed then, with their contents, and their directories. It has an empty directory only if that still
/// exists. A file whose content at that time is not kept any more is listed, but reading it fails, and so does a search of it.
///
/// At a moment that counts revisions, such as `~1`, it has each file as of that revision, but directories cannot be listed.
///
/// Cost: a read or stat of a file takes three or four round trips. The first other call reads the list of every file of the tree, without
/// contents, and keeps 300 bytes for each; a search also reads the contents.
#[derive(Debug)]
pub struct StorePast {
    tree: StoreBackend,
    moment: Moment,
    opened: OnceCell<StateSnapshot>,
}

/// What a path was at the moment.
enum Place {
    /// A file, in a tree of its own.
    File(Box<StateSnapshot>),
    Nothing,
}

impl StorePast {
    pub(super) fn new(tree: StoreBackend, moment: Moment) -> Self {
        Self { tree, moment, opened: OnceCell::new() }
    }

    /// Returns the moment.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Looks up a single file.
    async fn file(&self, path: &VfsPath) -> Result<Place> {
        let history = self.tree.file_history(path).await?;
        let kept = match history.then(self.moment) {
            Then::File(kept) => kept,
            Then::Nothing => return Ok(Place::Nothing),
            Then::Forgotten if history.revisions().is_empty() && self.moment.time().is_none() => return Ok(Place::Nothing),
            Then::Forgotten => return Err(self.forgotten(path)),
        };
        let content = self.tree.content_of(path, kept).await?;
        let (created_at, at) = (history.created_at(kept), kept.revision.at);
        let version = kept.revision.version.unwrap_or(Version::new(0));
        let above = path.ancestors().filter(|above| !above.is_root()).map(|above| (above, StateNode::directory(created_at)));
        let file = StateNode::file(content, version, created_at, at);
        let tree = StateSnapshot::from_nodes(above.chain([(path, file)]), version)?;
        Ok(Place::File(Box::new(tree)))
    }

    fn forgotten(&self, path: &VfsPath) -> Error {
        let message = format!("the history of `{path}` does not reach back to {}; `log` lists what is kept", self.moment);
        Error::new(ErrorKind::NotFound, message).with_source(Forgotten).at(path)
    }

    /// Returns the tree for a call on a path: that of the file alone if there was one.
    async fn tree_for(&self, path: &VfsPath) -> Result<StateSnapshot> {
        if !path.is_root()
            && let Place::File(tree) = self.file(path).await?
        {
            return Ok(*tree);
        }
        self.whole(path).await
    }

    async fn whole(&self, path: &VfsPath) -> Result<StateSnapshot> {
        if self.moment.time().is_none() {
            let at = self.tree.stat(path, &StatOptions::new()).await;
            return Err(match at {
                Ok(entry) if entry.is_directory() => {
                    let message =
                        format!("`{}` names a version of one file and `{path}` is a directory; name a file, or a time", self.moment);
                    Error::invalid_argument(message).at(path)
                }
                _ => {
                    let message = format!("`{path}` has no version {}; `log` lists its versions", self.moment);
                    Error::new(ErrorKind::NotFound, message).at(path)
                }
            });
        }
        if self.moment.time().is_some_and(|time| self.is_before_all_that_is_kept(time)) {
            return Err(self.forgotten(path));
        }
        self.opened.get_or_try_init(|| self.open()).await.cloned()
    }

    /// Returns whether the lists of files that were removed since a time may have expired.
    fn is_before_all_that_is_kept(&self, time: Timestamp) -> bool {
        let kept = self.tree.history().map(|history| history.policy.older_than);
        kept.is_ok_and(|kept| Timestamp::now().checked_sub(kept).is_ok_and(|oldest| time < oldest))
    }

    /// Finds every file of the tree as of the moment.
    async fn open(&self) -> Result<StateSnapshot> {
        let mut pace = Pace::default();
        // The lists are read before the files: a change in between is found as a file that its list lacks, and looked up again.
        let mut histories = self.lists(&mut pace).await?;
        let mut directories: BTreeMap<VfsPathBuf, StateNode> = BTreeMap::new();
        let mut files: BTreeSet<VfsPathBuf> = histories.keys().cloned().collect();
        let mut suspects: BTreeSet<VfsPathBuf> = BTreeSet::new();
        let mut seen: BTreeSet<VfsPathBuf> = BTreeSet::new();
        let mut options = ScanOptions::new().with_limit(PAGE_ROWS);
        loop {
            let page = self.tree.store.scan(&self.tree.namespace, options.clone()).await?;
            for entry in page.entries {
                pace.step().await;
                let ScanEntry::Item(item) = entry else { continue };
                let Ok(RowKey { path, is_directory }) = RowKey::of(&item.key) else { continue };
                if is_directory {
                    // A directory that is moved keeps its creation time, but is put anew.
                    if self.moment.time().is_some_and(|time| item.modified_at <= time) {
                        directories.insert(path, StateNode::directory(item.created_at));
                    }
                    continue;
                }
                seen.insert(path.clone());
                match histories.remove(&path) {
                    Some(history) if history.is_of(Some(&item)) => {
                        histories.insert(path, history);
                    }
                    Some(_) => {
                        suspects.insert(path);
                    }
                    None => {
                        histories.insert(path.clone(), FileHistory::default().with_found(&path, Some(&item)));
                        files.insert(path);
                    }
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        suspects.extend(files.iter().filter(|path| !seen.contains(*path)).cloned());
        suspects.retain(|path| histories.get(path).is_none_or(|history| !history.is_of(None)));
        for path in suspects {
            let history = self.tree.file_history(&path).await?;
            histories.insert(path, history);
        }
        self.assemble(histories, directories, &mut pace).await
    }

    /// Reads every list.
    async fn lists(&self, pace: &mut Pace) -> Result<HashMap<VfsPathBuf, FileHistory>> {
        let history = self.tree.history()?;
        let mut options = ScanOptions::new().with_prefix(LISTS).with_limit(PAGE_ROWS).with_values(true);
        let mut histories = HashMap::new();
        loop {
            let page = self.tree.store.scan(&history.namespace, options.clone()).await?;
            for entry in page.entries {
                pace.step().await;
                let ScanEntry::Item(item) = entry else { continue };
                let path = path_of(&item.key)?;
                let decoded = FileHistory::decode(&path, Some(&item), &history.policy)?;
                histories.insert(path, decoded);
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(histories),
            }
        }
    }

    async fn assemble(
        &self,
        histories: HashMap<VfsPathBuf, FileHistory>,
        mut nodes: BTreeMap<VfsPathBuf, StateNode>,
        pace: &mut Pace,
    ) -> Result<StateSnapshot> {
        let mut contents = HashMap::new();
        let mut newest = Version::new(0);
        let mut forgotten = BTreeMap::new();
        for (path, history) in histories {
            pace.step().await;
            let kept = match history.then(self.moment) {
                Then::Nothing => continue,
                Then::File(kept) => kept.clone(),
                Then::Forgotten => {
                    forgotten.extend(history.revisions().first().map(|first| (path, first.clone().lost())));
                    continue;
                }
            };
            let created_at = history.created_at(&kept);
            for above in path.ancestors().filter(|above| !above.is_root()) {
                nodes.entry(above.to_owned()).or_insert_with(|| StateNode::directory(created_at));
            }
            newest = newest.max(kept.revision.version.unwrap_or(newest));
            nodes.insert(path.clone(), node_of(&path, &kept, created_at));
            contents.insert(id_of(&path, &kept), (path, kept));
        }
        // These may have existed, so they must not look absent unless something else is known to have been there. Reading them fails.
        for (path, kept) in forgotten {
            let is_file = |path: &VfsPath| nodes.get(path).is_some_and(|node| !node.is_directory());
            if nodes.contains_key(&path) || path.ancestors().any(is_file) {
                continue;
            }
            let at = kept.revision.at;
            for above in path.ancestors().filter(|above| !above.is_root()) {
                nodes.entry(above.to_owned()).or_insert_with(|| StateNode::directory(at));
            }
            newest = newest.max(kept.revision.version.unwrap_or(newest));
            nodes.insert(path.clone(), node_of(&path, &kept, at));
            contents.insert(id_of(&path, &kept), (path, kept));
        }
        let tree = StateSnapshot::from_nodes(nodes, newest)?;
        let source = Arc::new(Contents { tree: self.tree.clone(), contents });
        let holder = Holder { origin: 0, name: "".into() };
        Ok(StateSnapshot::saved(tree.root().clone(), newest, source, holder))
    }
}

/// Returns the node of a revision.
fn node_of(path: &VfsPath, kept: &Kept, created_at: Timestamp) -> StateNode {
    let revision = &kept.revision;
    // An empty content would not be looked up, and a lost one must not read as empty.
    let size_bytes = if revision.is_kept { revision.size_bytes } else { revision.size_bytes.max(1) };
    let body = StoredBody { origin: 0, hash: id_of(path, kept) };
    StateNode::saved_file(body, size_bytes, revision.version.unwrap_or(Version::new(0)), created_at, revision.at)
}

/// Returns a hash that identifies a content of the tree.
fn id_of(path: &VfsPath, kept: &Kept) -> [u8; 32] {
    let version = kept.revision.version.map_or(0, Version::number);
    *blake3::hash(format!("{}\n{version}", file_key(path)).as_bytes()).as_bytes()
}

/// Reads the contents of a past tree.
#[derive(Debug)]
struct Contents {
    tree: StoreBackend,
    contents: HashMap<[u8; 32], (VfsPathBuf, Kept)>,
}

#[async_trait]
impl PageSource for Contents {
    async fn pages(&self, _ids: &[crate::backend::PageId]) -> Result<Vec<crate::backend::Page>> {
        Err(Error::new(ErrorKind::Internal, "the pages of a past tree are in memory"))
    }

    async fn bodies(&self, hashes: &[[u8; 32]]) -> Result<Vec<Bytes>> {
        let mut bodies = Vec::with_capacity(hashes.len());
        for hash in hashes {
            let (path, kept) =
                self.contents.get(hash).ok_or_else(|| Error::new(ErrorKind::Internal, "a content of a past tree is unknown"))?;
            bodies.push(self.tree.content_of(path, kept).await?);
        }
        Ok(bodies)
    }

    async fn body_part(&self, hash: &[u8; 32], _size_bytes: u64, range: Range<u64>) -> Result<Bytes> {
        let body = self.bodies(std::slice::from_ref(hash)).await?.pop().unwrap_or_default();
        let range = treehold_store::within(&range, body.len() as u64);
        Ok(body.slice(range.start as usize..range.end as usize))
    }
}

impl fmt::Display for StorePast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.tree, self.moment)
    }
}

#[async_trait]
impl Backend for StorePast {
    fn capabilities(&self) -> Capabilities {
        StateSnapshot::default().capabilities()
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        if path.is_root() {
            return Ok(Entry::directory(path));
        }
        self.tree_for(path).await?.stat(path, options).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.tree_for(path).await?.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.whole(path).await?.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.whole(path).await?.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.tree_for(path).await?.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.tree_for(path).await?.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        StateSnapshot::default().apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
