//! A tree in a store as it was at a moment.

use super::rows::{FileHistory, Kept, LISTS, SINCE, Then, path_of};
use crate::backend::store::StoreBackend;
use crate::backend::{Backend, ENTRIES_MAX, Holder, PageSource, StateNode, StateSnapshot, StoredBody};
use crate::rows::{RowKey, directory_key, file_key};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::Mutex;
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

/// The number of contents that are read concurrently.
const READS_AT_ONCE: usize = 16;

/// A tree of a [`StoreBackend`] at a moment, read-only.
///
/// At a time it holds the files that existed then, with their contents, and their directories. It has an empty directory only if that still
/// exists. A file whose content at that time is not kept any more is listed, but reading it fails, and a search of it is a failure of that
/// file. Directories at a time before the history is complete cannot be listed.
///
/// At a moment that counts revisions, such as `~1`, it has each file as of that revision, but directories cannot be listed.
///
/// Cost: a stat of a file takes two round trips, a read one more for each part. Any other call reads the list of every file beneath its
/// path, a page at a time, and keeps some 500 bytes for each file as long as no other directory is asked for; a search also reads the
/// contents.
#[derive(Debug)]
pub struct StorePast {
    tree: StoreBackend,
    moment: Moment,
    /// The most files and directories beneath the path of a call.
    pub(super) entries_max: u64,
    /// The directory that was read last, and what was beneath it. Locked while it is read, so that concurrent calls read it once.
    opened: Mutex<Option<(VfsPathBuf, StateSnapshot)>>,
}

/// What a path was at the moment.
enum Place {
    /// A file, in a tree of its own.
    File(Box<StateSnapshot>),
    Nothing,
}

/// What the list of a path says of the moment.
enum Known {
    File(Box<Kept>, Timestamp),
    Nothing,
    /// The moment is before the first revision. Unless the list is cut, there was nothing as far back as the history is complete.
    Before {
        is_cut: bool,
        first: Option<Box<Kept>>,
    },
}

/// A list without what does not matter for the moment.
struct Reduced {
    known: Known,
    /// The version of the last revision: that of the file as it is now, if nothing else changed it.
    last: Option<Version>,
    first_recorded: Option<Timestamp>,
    /// Whether the file is there now.
    is_seen: bool,
}

impl Reduced {
    fn of(history: &FileHistory, moment: Moment) -> Self {
        let known = match history.then(moment) {
            Then::File(kept) => Known::File(Box::new(kept.clone().anonymous()), history.created_at(kept)),
            Then::Nothing => Known::Nothing,
            Then::Forgotten => {
                let first = history.revisions().first().map(|first| Box::new(first.clone().anonymous().lost()));
                Known::Before { is_cut: history.is_cut(), first }
            }
        };
        Self { known, last: history.last_version(), first_recorded: history.first_recorded(), is_seen: false }
    }
}

impl StorePast {
    pub(super) fn new(tree: StoreBackend, moment: Moment) -> Self {
        Self { tree, moment, entries_max: ENTRIES_MAX, opened: Mutex::default() }
    }

    /// Returns the moment.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Looks up a single file. Its content is not read.
    async fn file(&self, path: &VfsPath) -> Result<Place> {
        let history = self.tree.file_history(path).await?;
        let kept = match history.then(self.moment) {
            Then::File(kept) => kept,
            Then::Nothing => return Ok(Place::Nothing),
            Then::Forgotten if history.revisions().is_empty() && self.moment.time().is_none() => return Ok(Place::Nothing),
            Then::Forgotten => return Err(self.forgotten(path)),
        };
        let file = (path.to_owned(), kept.clone().anonymous(), history.created_at(kept));
        let tree = self.assemble([file], BTreeMap::new(), BTreeMap::new(), &mut Pace::default()).await?;
        Ok(Place::File(Box::new(tree)))
    }

    fn forgotten(&self, path: &VfsPath) -> Error {
        let message = format!("the history of `{path}` does not reach back to {}; `log` lists what is kept", self.moment);
        Error::new(ErrorKind::NotFound, message).with_source(Forgotten).at(path)
    }

    /// Returns a tree with everything at and beneath a path: that of the file alone if there was one.
    async fn tree_for(&self, path: &VfsPath) -> Result<StateSnapshot> {
        if path.is_root() {
            return self.beneath(path).await;
        }
        let forgotten = match self.file(path).await {
            Ok(Place::File(tree)) => return Ok(*tree),
            Ok(Place::Nothing) => None,
            Err(error) if Forgotten::is_source_of(&error) && self.moment.time().is_some() => Some(error),
            Err(error) => return Err(error),
        };
        let tree = self.beneath(path).await?;
        if tree.node(path).await?.is_some_and(|node| node.is_directory()) {
            return Ok(tree);
        }
        if let Some(error) = forgotten {
            return Err(error);
        }
        // The error for a path beneath a file names the file.
        for above in path.ancestors().filter(|above| !above.is_root()) {
            match self.file(above).await {
                Ok(Place::File(tree)) => return Ok(*tree),
                Ok(Place::Nothing) => {}
                Err(error) if Forgotten::is_source_of(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(tree)
    }

    /// Returns a tree with everything beneath a directory.
    async fn beneath(&self, path: &VfsPath) -> Result<StateSnapshot> {
        let Some(time) = self.moment.time() else { return Err(self.not_listed(path).await) };
        let mut opened = self.opened.lock().await;
        if let Some((directory, tree)) = &*opened
            && path.starts_with(directory)
        {
            return Ok(tree.clone());
        }
        let tree = self.open(path, time).await?;
        *opened = Some((path.to_owned(), tree.clone()));
        Ok(tree)
    }

    /// Creates the error for a path without a file, at a moment that counts revisions.
    async fn not_listed(&self, path: &VfsPath) -> Error {
        match self.tree.stat(path, &StatOptions::new()).await {
            Ok(entry) if entry.is_directory() => {
                let message = format!("`{}` names a version of one file and `{path}` is a directory; name a file, or a time", self.moment);
                Error::invalid_argument(message).at(path)
            }
            _ => {
                let message = format!("`{path}` has no version {}; `log` lists its versions", self.moment);
                Error::new(ErrorKind::NotFound, message).at(path)
            }
        }
    }

    /// Finds every file beneath a directory as of the moment.
    async fn open(&self, directory: &VfsPath, time: Timestamp) -> Result<StateSnapshot> {
        let history = self.tree.history()?;
        let since = history.since(self.tree.store.get(&history.namespace, SINCE).await?.as_ref());
        if since.is_some_and(|since| time < since) {
            return Err(self.forgotten(directory));
        }
        let mut pace = Pace::default();
        // The lists are read before the files: a change in between is found as a file that its list lacks, and looked up again.
        let mut lists = self.lists(directory, &mut pace).await?;
        let directories = self.files(directory, &mut lists, &mut pace).await?;
        let first = lists.values().filter_map(|list| list.first_recorded).min();
        // Without the row, the history is complete since its oldest known change. Of a tree without any file nothing can be mistaken.
        let since = since.or(first).unwrap_or_else(Timestamp::now);
        if time < since && !(directory.is_root() && lists.is_empty()) {
            return Err(self.forgotten(directory));
        }
        let (mut files, mut lost) = (Vec::new(), BTreeMap::new());
        for (path, list) in lists {
            pace.step().await;
            match list.known {
                Known::File(kept, created_at) => files.push((path, *kept, created_at)),
                Known::Nothing | Known::Before { is_cut: false, .. } => {}
                Known::Before { is_cut: true, first } => lost.extend(first.map(|first| (path, *first))),
            }
        }
        self.assemble(files, directories, lost, &mut pace).await
    }

    /// Reads the lists beneath a directory. Of each, only what it says of the moment stays in memory.
    async fn lists(&self, directory: &VfsPath, pace: &mut Pace) -> Result<BTreeMap<VfsPathBuf, Reduced>> {
        let history = self.tree.history()?;
        let prefix = format!("{LISTS}{}", directory_key(directory));
        let mut options = ScanOptions::new().with_prefix(prefix).with_limit(PAGE_ROWS).with_values(true);
        let mut lists = BTreeMap::new();
        loop {
            let page = self.tree.store.scan(&history.namespace, options.clone()).await?;
            for entry in page.entries {
                pace.step().await;
                let ScanEntry::Item(item) = entry else { continue };
                let path = path_of(&item.key)?;
                let decoded = FileHistory::decode(&path, Some(&item), &history.policy)?;
                lists.insert(path, Reduced::of(&decoded, self.moment));
            }
            self.check_count(directory, lists.len())?;
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(lists),
            }
        }
    }

    /// Adds the files that are beneath a directory now to the lists, and reads again what changed meanwhile. Returns the directories that
    /// existed at the moment and still do.
    async fn files(
        &self,
        directory: &VfsPath,
        lists: &mut BTreeMap<VfsPathBuf, Reduced>,
        pace: &mut Pace,
    ) -> Result<BTreeMap<VfsPathBuf, Timestamp>> {
        let mut directories = BTreeMap::new();
        let mut suspects: BTreeSet<VfsPathBuf> = BTreeSet::new();
        let mut options = ScanOptions::new().with_prefix(directory_key(directory)).with_limit(PAGE_ROWS);
        loop {
            let page = self.tree.store.scan(&self.tree.namespace, options.clone()).await?;
            for entry in page.entries {
                pace.step().await;
                let ScanEntry::Item(item) = entry else { continue };
                let Ok(RowKey { path, is_directory }) = RowKey::of(&item.key) else { continue };
                if is_directory {
                    // A directory that is moved keeps its creation time, but is put anew.
                    if self.moment.time().is_some_and(|time| item.modified_at <= time) {
                        directories.insert(path, item.created_at);
                    }
                    continue;
                }
                match lists.get_mut(&path) {
                    Some(list) if list.last == Some(item.version) => list.is_seen = true,
                    Some(_) => {
                        suspects.insert(path);
                    }
                    None => {
                        let found = FileHistory::default().with_found(&path, Some(&item));
                        lists.insert(path, Reduced { is_seen: true, ..Reduced::of(&found, self.moment) });
                    }
                }
            }
            self.check_count(directory, lists.len() + directories.len())?;
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        suspects.extend(lists.iter().filter(|(_, list)| !list.is_seen && list.last.is_some()).map(|(path, _)| path.clone()));
        for path in suspects {
            let history = self.tree.file_history(&path).await?;
            lists.insert(path, Reduced::of(&history, self.moment));
        }
        Ok(directories)
    }

    fn check_count(&self, directory: &VfsPath, count: usize) -> Result<()> {
        if count as u64 <= self.entries_max {
            return Ok(());
        }
        let message = format!(
            "`{directory}` holds over {} files and directories, then and now, too many to show as of a time; name a directory beneath it",
            self.entries_max
        );
        Err(Error::new(ErrorKind::TooLarge, message).at(directory))
    }

    /// Assembles a tree of files, each with its creation time, of directories, and of files whose content is lost.
    async fn assemble(
        &self,
        files: impl IntoIterator<Item = (VfsPathBuf, Kept, Timestamp)>,
        directories: BTreeMap<VfsPathBuf, Timestamp>,
        lost: BTreeMap<VfsPathBuf, Kept>,
        pace: &mut Pace,
    ) -> Result<StateSnapshot> {
        let mut nodes: BTreeMap<VfsPathBuf, StateNode> = BTreeMap::new();
        let mut contents = HashMap::new();
        let mut newest = Version::new(0);
        for (path, created_at) in directories {
            add_above(&mut nodes, &path, created_at);
            nodes.insert(path, StateNode::directory(created_at));
        }
        for (path, kept, created_at) in files {
            pace.step().await;
            add_above(&mut nodes, &path, created_at);
            newest = newest.max(kept.revision.version.unwrap_or(newest));
            nodes.insert(path.clone(), node_of(&path, &kept, created_at));
            contents.insert(id_of(&path, &kept), (path, kept));
        }
        // These may have existed, so they must not look absent unless something else is known to have been there. Reading them fails.
        for (path, kept) in lost {
            let is_file = |path: &VfsPath| nodes.get(path).is_some_and(|node| !node.is_directory());
            if nodes.contains_key(&path) || path.ancestors().any(is_file) {
                continue;
            }
            let at = kept.revision.at;
            add_above(&mut nodes, &path, at);
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

/// Adds the directories above a path, unless they are there.
fn add_above(nodes: &mut BTreeMap<VfsPathBuf, StateNode>, path: &VfsPath, created_at: Timestamp) {
    for above in path.ancestors().filter(|above| !above.is_root()) {
        if !nodes.contains_key(above) {
            nodes.insert(above.to_owned(), StateNode::directory(created_at));
        }
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
        let reads: Vec<BoxFuture<'_, Result<Bytes>>> = hashes
            .iter()
            .map(|hash| {
                Box::pin(async move {
                    let (path, kept) = self.of(hash)?;
                    self.tree.content_of(path, kept).await
                }) as _
            })
            .collect();
        stream::iter(reads).buffered(READS_AT_ONCE).try_collect().await
    }

    async fn body_part(&self, hash: &[u8; 32], _size_bytes: u64, range: Range<u64>) -> Result<Bytes> {
        let (path, kept) = self.of(hash)?;
        self.tree.content_part(path, kept, range).await
    }
}

impl Contents {
    fn of(&self, hash: &[u8; 32]) -> Result<&(VfsPathBuf, Kept)> {
        self.contents.get(hash).ok_or_else(|| Error::new(ErrorKind::Internal, "a content of a past tree is unknown"))
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
        self.tree_for(path).await?.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.tree_for(path).await?.glob(path, options).await
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
