//! One batch of changes on a store: the rows it reads, the preconditions it derives from them, and the writes of its single
//! commit.
//!
//! Batches are optimistic. Every row whose presence, absence or version affected a decision becomes a precondition of the commit.
//! If one no longer holds, the batch is redone with fresh rows. Since every batch preserves the invariants of
//! [`flat`](crate::backend::flat) and depends on what it saw, they hold under any concurrent changes: the row of a file or
//! directory proves that all its parent directories exist.

mod record;

use self::record::Lists;
use super::StoreBackend;
use crate::backend::flat::{Beneath, FileNode, Mark, Node, Times, TreeTransaction};
use crate::index::{self, KINDS, Presences, ToIndex};
use crate::rows::{self, RowKey, directory_key, file_key};
use bytes::Bytes;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::take;
use std::ops::Bound;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file::FileRecord;
use treehold_core::ops::{Author, Change, Version, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::work::Pace;
use treehold_store::{Batch, BatchWrite, Condition, FileOutcome, Item, OutboxRows, Precondition, ScanEntry, ScanOptions, TakenEntries};

/// The most content, in bytes, that one batch may load into memory to move or copy directories, and the most that it may load to edit files
/// and to keep what it replaces or removes.
pub(super) const SUBTREE_BYTES_MAX: u64 = if cfg!(test) { 32 << 20 } else { 1 << 30 };

/// How many contents a batch reads without looking up their sizes first. The bound can be exceeded by that many files.
const CONTENTS_UNCHECKED: usize = 16;

/// How many of a batch's preconditions are about indexes. They come first.
pub(super) const INDEX_CONDITIONS: usize = KINDS;

/// The number of rows in a page of a subtree scan.
const PAGE_ROWS: usize = 1_000;

/// A batch being prepared.
pub(super) struct StoreTransaction<'b> {
    backend: &'b StoreBackend,
    /// Which indexes the batch assumes to exist.
    indexes: Presences,
    /// Rows that were read, by key.
    facts: HashMap<String, Fact>,
    /// Preconditions on single rows, by key.
    conditions: BTreeMap<String, Condition>,
    /// Preconditions on whole subtrees.
    beneath: Vec<(String, Condition)>,
    /// What the batch itself has put at each path; `None` where it removed a file.
    pending: BTreeMap<VfsPathBuf, Option<Pending>>,
    /// Directories that the batch removes with everything the store has beneath them.
    gone: BTreeSet<VfsPathBuf>,
    /// The total length in bytes of the paths of directories the batch creates.
    made_bytes: u64,
    pace: Pace,
    writes: Vec<BatchWrite>,
    /// The position of each file put among all puts of the batch.
    puts_of_files: Vec<usize>,
    /// Puts into index tails, by position among the writes. Their values are computed just before the commit.
    to_index: Vec<(usize, ToIndex)>,
    puts: usize,
    /// The newest version in the store before the first scan of this batch.
    since: Option<Version>,
    /// The lists of revisions that were read.
    lists: Lists,
    /// How many more bytes of files the batch may load.
    contents_left: u64,
    /// How many more bytes the batch may move and copy with directories.
    moved_left: u64,
}

#[derive(Debug, Clone)]
struct Fact {
    item: Option<Item>,
    has_value: bool,
}

#[derive(Debug, Clone)]
enum Pending {
    File { content: Bytes, node: FileNode },
    Directory(Option<Timestamp>),
}

impl<'b> StoreTransaction<'b> {
    /// Starts an empty batch.
    pub(super) fn new(backend: &'b StoreBackend) -> Self {
        Self {
            backend,
            indexes: backend.indexes.presences(),
            facts: HashMap::new(),
            conditions: BTreeMap::new(),
            beneath: Vec::new(),
            pending: BTreeMap::new(),
            gone: BTreeSet::new(),
            made_bytes: 0,
            pace: Pace::default(),
            writes: Vec::new(),
            puts_of_files: Vec::new(),
            to_index: Vec::new(),
            puts: 0,
            since: None,
            lists: Lists::default(),
            contents_left: SUBTREE_BYTES_MAX,
            moved_left: SUBTREE_BYTES_MAX,
        }
    }

    /// Fills in the rows of a single change from its own condition, so that none has to be read: a file with the expected
    /// version, or an absent file whose parent exists. The commit verifies these assumptions. Returns whether the change permits
    /// this.
    pub(super) fn assume(&mut self, changes: &[Change]) -> bool {
        let (path, expected) = match changes {
            [Change::Write { path, mode: WriteMode::IfVersion(version), .. } | Change::Delete { path, expect: Some(version), .. }] => {
                (path, Some(*version))
            }
            [Change::Write { path, mode: WriteMode::CreateNew, .. }] => (path, None),
            _ => return false,
        };
        let Some(parent) = path.parent() else { return false };
        match expected {
            Some(version) => self.assume_row(file_key(path), FileRecord::default().to_bytes(), version),
            None => {
                for key in [file_key(path), directory_key(path)] {
                    self.facts.insert(key, Fact { item: None, has_value: false });
                }
                self.assume_row(directory_key(parent), Bytes::new(), Version::new(0));
            }
        }
        true
    }

    /// Fills in a row that was not read. Only its presence and version are used.
    fn assume_row(&mut self, key: String, meta: Bytes, version: Version) {
        let never = Timestamp::UNIX_EPOCH;
        let item = Item::new(key.clone(), meta, Bytes::new(), version, never, never);
        self.facts.insert(key, Fact { item: Some(item), has_value: false });
    }

    /// Reads the rows that the changes will probably need, with at most three concurrent requests: for records, for
    /// contents, and for the past of the files. For many contents, another request before looks up their sizes.
    pub(super) async fn prefetch(&mut self, changes: &[Change]) -> Result<()> {
        let mut records = BTreeSet::new();
        let mut contents = BTreeSet::new();
        // The files whose content a history keeps.
        let mut replaced = BTreeSet::new();
        for change in changes {
            let path = change.path();
            if let Change::Edit { .. } | Change::Append { .. } | Change::Write { .. } | Change::Delete { .. } = change {
                replaced.insert(file_key(path));
            }
            match change {
                Change::Edit { .. } | Change::Append { .. } => {
                    contents.insert(file_key(path));
                }
                Change::Rename { to, .. } | Change::Copy { to, .. } => {
                    contents.insert(file_key(path));
                    records.insert(directory_key(path));
                    records.extend(keys_of(to));
                    replaced.extend([file_key(path), file_key(to)]);
                }
                Change::Write { .. } | Change::CreateDir { .. } => records.extend(keys_of(path)),
                Change::Delete { .. } => records.extend([file_key(path), directory_key(path)]),
                // It is refused when it is applied.
                _ => {}
            }
        }
        replaced.remove("");
        if self.backend.history.is_some() {
            contents.extend(replaced.iter().cloned());
        }
        records.retain(|key| !key.is_empty() && !contents.contains(key));
        contents.remove("");
        let records: Vec<String> = records.into_iter().collect();
        let contents: Vec<String> = contents.into_iter().collect();
        let replaced: Vec<String> = replaced.into_iter().collect();
        self.charge(&contents).await?;
        let (of_records, of_contents, lists) =
            futures::try_join!(self.fetch(&records, false), self.fetch_sound(&contents), self.prefetch_lists(&replaced))?;
        self.lists = lists;
        self.learn(records, of_records, false);
        let (of_contents, has_values) = of_contents;
        self.learn(contents, of_contents, has_values);
        Ok(())
    }

    /// Commits the batch together with its history and the rows of its outbox. Returns the version of each put of a file. `outcomes` says what each change
    /// does, with puts counted by file.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if a precondition no longer holds, [`NotFound`](ErrorKind::NotFound) without the owner of the
    /// tree, and errors of the store.
    pub(super) async fn commit(
        mut self,
        changes: &[Change],
        author: Option<&Author>,
        taken: &TakenEntries,
        outcomes: Vec<FileOutcome>,
    ) -> Result<Vec<Version>> {
        let of_history = self.record(changes, author).await?;
        let of_batch = |outcome| match outcome {
            FileOutcome::Put(file) => self.puts_of_files.get(file).map_or(FileOutcome::Other, |put| FileOutcome::Put(*put)),
            outcome => outcome,
        };
        let mut rows = OutboxRows::of_changes(self.puts, outcomes.into_iter().map(of_batch).collect());
        taken.write(&mut rows)?;
        self.writes.extend(rows.into_writes());
        if self.writes.is_empty() {
            return Ok(Vec::new());
        }
        self.writes.extend(self.backend.extra_row.clone());
        let row_bytes_max = self.backend.store.capabilities().value_bytes_max;
        let (places, files): (Vec<usize>, Vec<ToIndex>) = take(&mut self.to_index).into_iter().unzip();
        for (place, row) in places.into_iter().zip(index::rows_of_tail(files, row_bytes_max).await?) {
            if let BatchWrite::Put { value, .. } = &mut self.writes[place] {
                *value = row;
            }
        }
        let conditions = self.conditions.into_iter().chain(self.beneath);
        let namespace = &self.backend.namespace;
        let conditions = conditions.map(|(key, condition)| Precondition { namespace: namespace.clone(), key, condition });
        let mut preconditions = self.backend.indexes.preconditions(self.indexes);
        let owner = self.backend.owner.as_deref().map(|owner| (preconditions.len(), owner));
        preconditions.extend(owner.map(|(_, owner)| owner.row.clone()));
        preconditions.extend(conditions);
        preconditions.extend(of_history);
        let versions = self.backend.store.commit(Batch { preconditions, writes: self.writes }).await.map_err(|error| match owner {
            Some((place, owner)) if error.kind() == ErrorKind::Conflict && error.change() == Some(place) => {
                Error::new(ErrorKind::NotFound, owner.message.clone()).without_effect()
            }
            _ => error,
        })?;
        self.puts_of_files
            .iter()
            .map(|put| {
                let unanswered = || Error::new(ErrorKind::Internal, "the store did not return a version for every put");
                versions.get(*put).copied().ok_or_else(unanswered)
            })
            .collect()
    }

    async fn fetch(&self, keys: &[String], with_values: bool) -> Result<Vec<Option<Item>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.backend.store.get_many(&self.backend.namespace, &keys, with_values).await
    }

    /// Checks that the contents of some files, which are about to be read, fit into the bound of the batch.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) if they do not.
    async fn charge(&mut self, keys: &[String]) -> Result<()> {
        if keys.len() <= CONTENTS_UNCHECKED {
            return Ok(());
        }
        for item in self.fetch(keys, false).await?.into_iter().flatten() {
            let size_bytes = FileRecord::from_bytes(&item.meta).map_or(0, |record| record.size_bytes);
            self.contents_left = self.contents_left.checked_sub(size_bytes).ok_or_else(|| {
                let message = format!("the batch replaces or edits over {SUBTREE_BYTES_MAX} bytes; make the changes in parts");
                Error::new(ErrorKind::TooLarge, message)
            })?;
        }
        Ok(())
    }

    /// Reads rows with their bodies, or without any if one is damaged and a history only wanted to keep it. Returns whether they have them.
    async fn fetch_sound(&self, keys: &[String]) -> Result<(Vec<Option<Item>>, bool)> {
        match self.fetch(keys, true).await {
            Err(error) if error.kind() == ErrorKind::Corrupt && self.backend.history.is_some() => {
                Ok((self.fetch(keys, false).await?, false))
            }
            fetched => Ok((fetched?, true)),
        }
    }

    fn learn(&mut self, keys: Vec<String>, items: Vec<Option<Item>>, has_value: bool) {
        for (key, item) in keys.into_iter().zip(items) {
            self.facts.insert(key, Fact { item, has_value });
        }
    }

    /// Returns a row that was read: `None` if it was not read, `Some(None)` if it is absent.
    fn known(&self, key: &str) -> Option<Option<&Item>> {
        self.facts.get(key).map(|fact| fact.item.as_ref())
    }

    /// Reads the rows at a path unless they are known. Also reads those of its parent directories, which are needed next.
    async fn look(&mut self, path: &VfsPath) -> Result<()> {
        let keys = [file_key(path), directory_key(path)];
        if keys.iter().any(|key| matches!(self.known(key), Some(Some(_)))) || keys.iter().all(|key| self.known(key).is_some()) {
            return Ok(());
        }
        let above = path.ancestors().filter(|above| !above.is_root()).flat_map(|above| [file_key(above), directory_key(above)]);
        let unknown: Vec<String> = keys.into_iter().chain(above).filter(|key| self.known(key).is_none()).collect();
        let items = self.fetch(&unknown, false).await?;
        self.learn(unknown, items, false);
        Ok(())
    }

    /// Adds a precondition on a row, unless a stronger one exists.
    fn require(&mut self, key: String, condition: Condition) {
        let kept = self.conditions.entry(key).or_insert_with(|| condition.clone());
        if *kept == Condition::Exists {
            *kept = condition;
        }
    }

    /// Returns whether the batch has removed what the store has at a path.
    fn is_gone(&self, path: &VfsPath) -> bool {
        self.gone.contains(path) || path.ancestors().any(|above| self.gone.contains(above))
    }

    /// Returns whether the batch determines what is at a path, so that the stored row does not count.
    fn is_overlaid(&self, path: &VfsPath) -> bool {
        self.pending.contains_key(path) || self.is_gone(path)
    }

    /// Returns what the batch has put beneath a directory, in path order.
    fn pending_beneath(&self, directory: &VfsPath) -> impl Iterator<Item = (&VfsPathBuf, &Pending)> {
        self.pending
            .range::<VfsPath, _>((Bound::Excluded(directory), Bound::Unbounded))
            .take_while(move |(path, _)| path.starts_with(directory))
            .filter_map(|(path, pending)| pending.as_ref().map(|pending| (path, pending)))
    }

    /// Passes each row beneath a directory to `take`, except those that the batch has removed or replaced. A row that does not
    /// belong to the tree comes with an error in place of its path.
    async fn scan_beneath(
        &mut self,
        directory: &VfsPath,
        with_values: bool,
        mut take: impl FnMut(Result<RowKey>, Item) -> Result<()> + Send,
    ) -> Result<()> {
        if self.is_gone(directory) {
            return Ok(());
        }
        let prefix = directory_key(directory);
        let mut options = ScanOptions::new().with_prefix(&prefix).with_start_after(&prefix).with_limit(PAGE_ROWS).with_values(with_values);
        loop {
            let page = self.backend.store.scan(&self.backend.namespace, options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                match RowKey::of(&item.key) {
                    Ok(place) if self.is_overlaid(&place.path) => {}
                    place => take(place, item)?,
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Adds the precondition that nothing was put beneath a directory since the batch first scanned.
    fn require_unchanged_beneath(&mut self, directory: &VfsPath) {
        let since = self.since.unwrap_or(Version::new(0));
        self.beneath.push((directory_key(directory), Condition::NoneBeneathSince(since)));
    }

    async fn begin_scan(&mut self) -> Result<()> {
        if self.since.is_none() {
            self.since = Some(self.backend.store.current_version(&self.backend.namespace.partition()).await?);
        }
        Ok(())
    }

    fn put(&mut self, key: String, record: Option<FileRecord>, value: Bytes, created_at: Option<Timestamp>) {
        let time_to_live = record.and(self.backend.time_to_live);
        let meta = record.map(FileRecord::to_bytes).unwrap_or_default();
        self.writes.push(BatchWrite::Put { namespace: self.backend.namespace.clone(), key, meta, value, time_to_live, created_at });
        self.puts += 1;
    }
}

impl TreeTransaction for StoreTransaction<'_> {
    fn file_bytes_max(&self) -> Option<u64> {
        self.backend.size_bytes_max()
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
        self.look(path).await?;
        let (file, directory) = (file_key(path), directory_key(path));
        if let Some(Some(item)) = self.known(&file) {
            let node = file_node(path, item);
            self.require(file, Condition::Exists);
            return Ok(Some(Node::File(node)));
        }
        if let Some(Some(item)) = self.known(&directory) {
            let created_at = item.created_at;
            self.require(directory, Condition::Exists);
            return Ok(Some(Node::Directory(Some(created_at))));
        }
        self.require(file, Condition::Absent);
        self.require(directory, Condition::Absent);
        Ok(None)
    }

    fn stored_version(&self, path: &VfsPath) -> Option<Version> {
        self.known(&file_key(path)).flatten().map(|item| item.version)
    }

    fn pin(&mut self, path: &VfsPath) {
        if self.is_overlaid(path) {
            return;
        }
        if let Some(version) = self.stored_version(path) {
            self.require(file_key(path), Condition::Version(version));
        }
    }

    async fn content(&mut self, path: &VfsPath) -> Result<Bytes> {
        if let Some(Some(Pending::File { content, .. })) = self.pending.get(path) {
            return Ok(content.clone());
        }
        self.pin(path);
        let key = file_key(path);
        if let Some(Fact { item: Some(item), has_value: true }) = self.facts.get(&key) {
            return rows::body(path, item);
        }
        // If the version differs from the pinned one, the commit fails and the batch is redone.
        let item = self.backend.store.get(&self.backend.namespace, &key).await?;
        item.map_or_else(|| Err(Error::not_found(path)), |item| rows::body(path, &item))
    }

    async fn is_empty(&mut self, directory: &VfsPath) -> Result<bool> {
        if self.pending_beneath(directory).next().is_some() {
            return Ok(false);
        }
        if self.is_gone(directory) {
            return Ok(true);
        }
        let prefix = directory_key(directory);
        // In path order, the contents of a directory follow it directly.
        let from = (Bound::Included(directory), Bound::Unbounded);
        let is_beneath = |path: Option<&VfsPathBuf>| path.is_some_and(|path| path.starts_with(directory));
        let pending = self.pending.range::<VfsPath, _>(from).next().map(|(path, _)| path);
        let touches = is_beneath(pending) || is_beneath(self.gone.range::<VfsPath, _>(from).next());
        if !touches {
            let first = ScanOptions::new().with_prefix(&prefix).with_start_after(&prefix).with_limit(1);
            let page = self.backend.store.scan(&self.backend.namespace, first).await?;
            self.beneath.push((prefix, Condition::NoneBeneath));
            return Ok(page.entries.is_empty());
        }
        self.begin_scan().await?;
        let mut is_empty = true;
        self.scan_beneath(directory, false, |_, _| {
            is_empty = false;
            Ok(())
        })
        .await?;
        self.require_unchanged_beneath(directory);
        Ok(is_empty)
    }

    async fn count(&mut self, directory: &VfsPath) -> Result<usize> {
        let mut count = self.pending_beneath(directory).count();
        self.scan_beneath(directory, false, |_, _| {
            count += 1;
            Ok(())
        })
        .await?;
        Ok(count)
    }

    async fn subtree(&mut self, directory: &VfsPath) -> Result<Vec<Beneath>> {
        self.begin_scan().await?;
        let mut found: Vec<Beneath> = Vec::new();
        let mut conditions = Vec::new();
        let mut left = self.moved_left;
        self.scan_beneath(directory, true, |place, item| {
            let place = place?;
            let Some(rest) = left.checked_sub(item.value.len() as u64) else {
                let message = format!("the batch moves or copies over {SUBTREE_BYTES_MAX} bytes with `{directory}`; do so in parts");
                return Err(Error::new(ErrorKind::TooLarge, message).at(directory));
            };
            left = rest;
            let condition = if place.is_directory { Condition::Exists } else { Condition::Version(item.version) };
            let (content, times) = if place.is_directory {
                (None, Times { created_at: Some(item.created_at), modified_at: None })
            } else {
                (Some(rows::body(&place.path, &item)?), file_node(&place.path, &item).times)
            };
            conditions.push((item.key, condition));
            found.push(Beneath { path: place.path, content, times });
            Ok(())
        })
        .await?;
        self.moved_left = left;
        for (key, condition) in conditions {
            self.require(key, condition);
        }
        self.require_unchanged_beneath(directory);
        found.extend(self.pending_beneath(directory).map(|(path, pending)| match pending {
            Pending::File { content, node } => Beneath { path: path.clone(), content: Some(content.clone()), times: node.times },
            Pending::Directory(created_at) => {
                Beneath { path: path.clone(), content: None, times: Times { created_at: *created_at, modified_at: None } }
            }
        }));
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    fn put_file(&mut self, path: &VfsPath, content: Bytes, times: Times) -> Mark {
        let replaced = match self.pending.get(path) {
            Some(Some(Pending::File { node, .. })) => node.times.created_at,
            Some(_) => None,
            None if self.is_gone(path) => None,
            None => self.known(&file_key(path)).flatten().map(|item| item.created_at),
        };
        let record =
            FileRecord { size_bytes: content.len() as u64, modified_at_microseconds: times.modified_at.map(Timestamp::as_microsecond) };
        let mark = Mark::Put(self.puts_of_files.len());
        let key = file_key(path);
        for (kind, put) in self.backend.indexes.puts(self.indexes, &key, self.backend.time_to_live) {
            self.to_index.push((self.writes.len(), ToIndex { kind, path: path.to_owned(), content: content.clone() }));
            self.writes.push(put);
            self.puts += 1;
        }
        self.puts_of_files.push(self.puts);
        self.put(key, Some(record), content.clone(), times.created_at);
        let times = Times { created_at: times.created_at.or(replaced), ..times };
        let node = FileNode { mark, size_bytes: record.size_bytes, times };
        self.pending.insert(path.to_owned(), Some(Pending::File { content, node }));
        mark
    }

    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    fn made_bytes(&self) -> u64 {
        self.made_bytes
    }

    fn put_directory(&mut self, path: &VfsPath, created_at: Option<Timestamp>) {
        self.made_bytes += path.as_str().len() as u64;
        self.put(directory_key(path), None, Bytes::new(), created_at);
        self.pending.insert(path.to_owned(), Some(Pending::Directory(created_at)));
    }

    fn remove_file(&mut self, path: &VfsPath) {
        self.writes.extend(self.backend.indexes.deletes(self.indexes, &file_key(path)));
        self.writes.push(BatchWrite::Delete { namespace: self.backend.namespace.clone(), key: file_key(path) });
        self.pending.insert(path.to_owned(), None);
    }

    fn remove_directory(&mut self, path: &VfsPath) {
        self.writes.extend(self.backend.indexes.deletes_beneath(self.indexes, &directory_key(path)));
        self.writes.push(BatchWrite::DeletePrefix { namespace: self.backend.namespace.clone(), prefix: directory_key(path) });
        let is_of_batch = self.pending.contains_key(path);
        self.pending.retain(|pending, _| !pending.starts_with(path));
        if is_of_batch {
            // The store may have a file there, which the batch removed before it made the directory.
            self.pending.insert(path.to_owned(), None);
        }
        self.gone.insert(path.to_owned());
    }
}

/// Returns the keys of the rows that determine whether a file or directory can be put at a path.
fn keys_of(path: &VfsPath) -> [String; 3] {
    [file_key(path), directory_key(path), path.parent().map(directory_key).unwrap_or_default()]
}

/// Returns the file that a row represents. A row with an unreadable record still counts as a file, so that it can be replaced or
/// deleted and never looks absent; reading its content fails.
fn file_node(path: &VfsPath, item: &Item) -> FileNode {
    let record = rows::record(path, item).ok();
    let modified_at = record.map_or(item.modified_at, |record| rows::modified_at(&record, item));
    let times = Times { created_at: Some(item.created_at), modified_at: Some(modified_at) };
    FileNode { mark: Mark::Stored(item.version), size_bytes: record.map_or(0, |record| record.size_bytes), times }
}
