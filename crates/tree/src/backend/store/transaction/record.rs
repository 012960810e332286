//! The revisions that a batch adds to the history of its tree, in the same commit.

use super::{Fact, Pending, StoreTransaction};
use crate::backend::flat::Mark;
use crate::backend::store::history::{NewRevision, StoreHistory, calls};
use crate::background::in_background;
use crate::rows::{self, RowKey, directory_key, file_key};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Author, Change, OpKind};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::{BatchWrite, Condition, Item, Precondition, ScanEntry, ScanOptions};

/// The most rows that are read at once.
const ROWS_AT_ONCE: usize = 500;

/// Contents up to this size are hashed on the calling thread.
const IN_PLACE_BYTES: usize = 256 << 10;

impl StoreTransaction<'_> {
    /// Reads the lists of the files that the changes name, for [`StoreTransaction::record`].
    pub(super) async fn prefetch_lists(&self, keys: &[String]) -> Result<Lists> {
        let mut found = Lists::default();
        let Some(history) = &self.backend.history else { return Ok(found) };
        for keys in keys.chunks(ROWS_AT_ONCE) {
            let lists: Vec<String> = keys.iter().map(|key| history.list_key(key)).collect();
            // The row of the whole history comes along, so that it costs no request.
            let borrowed: Vec<&str> = lists.iter().map(String::as_str).chain([StoreHistory::SINCE]).collect();
            let mut items = self.backend.store.get_many(history.namespace(), &borrowed, true).await?;
            found.since = items.pop();
            found.by_file.extend(keys.iter().cloned().zip(items));
        }
        Ok(found)
    }

    /// Adds a revision for each file that the batch changes, and keeps the contents that it replaces or removes.
    ///
    /// Returns the preconditions on the lists.
    pub(super) async fn record(&mut self, changes: &[Change], author: Option<&Author>) -> Result<Vec<Precondition>> {
        let Some(history) = self.backend.history.clone() else { return Ok(Vec::new()) };
        let replaced = self.replaced().await?;
        let keys: Vec<String> = replaced.keys().map(|path| file_key(path)).filter(|key| !self.lists.by_file.contains_key(key)).collect();
        let unread = self.prefetch_lists(&keys).await?;
        self.lists.by_file.extend(unread.by_file);
        self.lists.since = self.lists.since.take().or(unread.since);
        let causes = Causes::of(changes);
        let author = author.cloned().unwrap_or_default().clipped();
        let mut conditions = Vec::with_capacity(replaced.len());
        let mut paths = Vec::new();
        for (path, before) in replaced {
            self.pace.step().await;
            let after = match self.pending.get(&path) {
                Some(Some(Pending::File { content, node })) => Some((content.len() as u64, node.mark)),
                _ => None,
            };
            if before.is_none() && after.is_none() {
                continue;
            }
            let list = self.lists.by_file.remove(&file_key(&path)).flatten();
            let condition = list.as_ref().map_or(Condition::Absent, |item| Condition::Version(item.version));
            conditions.push(Precondition { namespace: history.namespace().clone(), key: history.list_key(&file_key(&path)), condition });
            let (operation, other) = causes.of_path(&path, after.is_some());
            let new = NewFile { operation, other, author: author.clone(), after };
            self.record_file(&history, &path, before, list.as_ref(), new).await?;
            paths.push(path);
        }
        if paths.is_empty() {
            return Ok(conditions);
        }
        if let Some(write) = calls::record(&history, &author, &paths) {
            self.writes.push(write);
            self.puts += 1;
        }
        self.record_since(&history).await?;
        Ok(conditions)
    }

    /// Records since when the history is complete, unless that is recorded already. Concurrent first changes may both do so: the later
    /// time is true as well.
    async fn record_since(&mut self, history: &StoreHistory) -> Result<()> {
        let row = match self.lists.since.take() {
            Some(row) => row,
            None => self.backend.store.get(history.namespace(), StoreHistory::SINCE).await?,
        };
        // Once for each tree: a new one is known from its beginning.
        let is_empty = row.is_none() && {
            let first = ScanOptions::new().with_limit(1);
            self.backend.store.scan(&self.backend.namespace, first).await?.entries.is_empty()
        };
        if let Some(value) = history.renewed_since(row.as_ref(), is_empty) {
            let (namespace, key) = (history.namespace().clone(), StoreHistory::SINCE.to_owned());
            self.writes.push(BatchWrite::Put {
                namespace,
                key,
                meta: Bytes::new(),
                value: value.into(),
                time_to_live: None,
                created_at: None,
            });
            self.puts += 1;
        }
        Ok(())
    }

    async fn record_file(
        &mut self,
        history: &StoreHistory,
        path: &VfsPath,
        before: Option<Item>,
        list: Option<&Item>,
        new: NewFile,
    ) -> Result<()> {
        let mut past = history.decode_to_extend(path, list)?.with_found(path, before.as_ref());
        // A damaged file can be replaced; its content is lost either way.
        if let Some(content) = before.and_then(|item| rows::body(path, &item).ok()) {
            let hash = hash_of(content.clone()).await?;
            self.put_history(history, history.content_key(path, &hash), content);
            past.keep_last(hash);
        }
        let dropped = past.prune(history.policy());
        // The version of the new file is not known yet, but how many puts lie between it and the list is.
        let put = new.after.map(|(size_bytes, mark)| {
            let file = match mark {
                Mark::Put(number) => self.puts_of_files[number],
                Mark::Stored(_) => unreachable!("a pending file was put by the batch"),
            };
            (size_bytes, (self.puts - file) as u64)
        });
        let value = past.encode(NewRevision { operation: new.operation, other: new.other, author: new.author, put });
        self.put_history(history, history.list_key(&file_key(path)), value.into());
        let deletes = dropped
            .into_iter()
            .map(|hash| BatchWrite::Delete { namespace: history.namespace().clone(), key: history.content_key(path, &hash) });
        self.writes.extend(deletes);
        Ok(())
    }

    fn put_history(&mut self, history: &StoreHistory, key: String, value: Bytes) {
        let (namespace, time_to_live) = (history.namespace().clone(), Some(history.policy().older_than));
        self.writes.push(BatchWrite::Put { namespace, key, meta: Bytes::new(), value, time_to_live, created_at: None });
        self.puts += 1;
    }

    /// Returns the files that the batch changes, as they are in the store, with their contents. Makes the batch depend on them.
    async fn replaced(&mut self) -> Result<BTreeMap<VfsPathBuf, Option<Item>>> {
        let mut replaced = self.replaced_beneath().await?;
        // A directory may stand where a file was.
        let is_file = |(path, pending): &(&VfsPathBuf, &Option<Pending>)| {
            !matches!(pending, Some(Pending::Directory(_))) || matches!(self.known(&file_key(path)), Some(Some(_)))
        };
        let changed: Vec<VfsPathBuf> = self.pending.iter().filter(is_file).map(|(path, _)| path.clone()).collect();
        let mut unread = Vec::new();
        for path in changed {
            if replaced.contains_key(&path) {
                continue;
            }
            let key = file_key(&path);
            match self.facts.get(&key) {
                // What lies beneath a removed directory was found above.
                _ if path.ancestors().any(|above| self.gone.contains(above)) => {
                    replaced.insert(path, None);
                }
                Some(Fact { item: None, .. }) => {
                    replaced.insert(path, None);
                }
                Some(Fact { item: Some(item), has_value: true }) => {
                    let item = item.clone();
                    self.require(key, Condition::Version(item.version));
                    replaced.insert(path, Some(item));
                }
                _ => unread.push((path, key)),
            }
        }
        let keys: Vec<String> = unread.iter().map(|(_, key)| key.clone()).collect();
        self.charge(&keys).await?;
        for unread in unread.chunks(ROWS_AT_ONCE) {
            let keys: Vec<String> = unread.iter().map(|(_, key)| key.clone()).collect();
            let items = self.fetch_replaced(&keys).await?;
            for ((path, key), item) in unread.iter().zip(items) {
                let condition = item.as_ref().map_or(Condition::Absent, |item| Condition::Version(item.version));
                self.require(key.clone(), condition);
                replaced.insert(path.clone(), item);
            }
        }
        Ok(replaced)
    }

    /// Reads files with their contents. One whose content is damaged comes without it, so that it can still be replaced or removed.
    async fn fetch_replaced(&self, keys: &[String]) -> Result<Vec<Option<Item>>> {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let (store, namespace) = (&*self.backend.store, &self.backend.namespace);
        let mut items = Vec::with_capacity(keys.len());
        for (key, read) in keys.iter().zip(rows::read_each(store, namespace, &keys).await?) {
            items.push(match read {
                Ok(item) => item,
                Err(_) => store.get_many(namespace, &[key], false).await?.pop().flatten(),
            });
        }
        Ok(items)
    }

    /// Returns the files beneath the directories that the batch removes.
    async fn replaced_beneath(&mut self) -> Result<BTreeMap<VfsPathBuf, Option<Item>>> {
        let mut replaced = BTreeMap::new();
        let topmost = |path: &&VfsPathBuf| !path.ancestors().any(|above| self.gone.contains(above));
        let directories: Vec<VfsPathBuf> = self.gone.iter().filter(topmost).cloned().collect();
        for directory in directories {
            self.begin_scan().await?;
            let prefix = directory_key(&directory);
            let mut options =
                ScanOptions::new().with_prefix(&prefix).with_start_after(&prefix).with_limit(super::PAGE_ROWS).with_values(true);
            loop {
                let (page, damaged) = rows::read_page(&*self.backend.store, &self.backend.namespace, &options).await?;
                let damaged: Vec<String> = damaged.into_iter().map(|(key, _)| key).collect();
                let damaged = self.fetch(&damaged, false).await?.into_iter().flatten().map(ScanEntry::Item);
                for entry in page.entries.into_iter().chain(damaged) {
                    // A row that does not belong to the tree has no past.
                    let ScanEntry::Item(item) = entry else { continue };
                    let Ok(RowKey { path, is_directory: false }) = RowKey::of(&item.key) else { continue };
                    self.contents_left = self.contents_left.checked_sub(item.value.len() as u64).ok_or_else(|| too_large(&directory))?;
                    self.require(item.key.clone(), Condition::Version(item.version));
                    replaced.insert(path, Some(item));
                }
                match page.next {
                    Some(next) => options.start_after = Some(next),
                    None => break,
                }
            }
            self.require_unchanged_beneath(&directory);
        }
        Ok(replaced)
    }
}

/// The lists of revisions that were read.
#[derive(Default)]
pub(super) struct Lists {
    /// By key of the file.
    by_file: HashMap<String, Option<Item>>,
    /// The row that says since when the history is complete, if it was looked up.
    since: Option<Option<Item>>,
}

/// What a batch makes of one file.
struct NewFile {
    operation: OpKind,
    other: Option<VfsPathBuf>,
    author: Author,
    /// The size and the put of the new file; `None` if it is removed.
    after: Option<(u64, Mark)>,
}

/// The last change of a batch that names each path: the reason for what happens to a file there or beneath.
struct Causes<'c>(HashMap<&'c VfsPath, &'c Change>);

impl<'c> Causes<'c> {
    fn of(changes: &'c [Change]) -> Self {
        Self(changes.iter().flat_map(|change| change.paths().map(move |path| (path, change))).collect())
    }

    /// Returns the operation that made or removed the file at a path, and the other path of a move or copy.
    fn of_path(&self, path: &VfsPath, exists: bool) -> (OpKind, Option<VfsPathBuf>) {
        let above = || path.ancestors().filter_map(|above| self.0.get(above)).last();
        let moved = |from: &VfsPath, to: &VfsPath| path.strip_prefix(from).map(|rest| to.concat(rest));
        match self.0.get(path).or_else(above) {
            Some(Change::Rename { from, to, .. }) if exists => (OpKind::Rename, moved(to, from)),
            Some(Change::Rename { from, to, .. }) => (OpKind::Rename, moved(from, to)),
            Some(Change::Copy { from, to, .. }) if exists => (OpKind::Copy, moved(to, from)),
            Some(change) if exists && !matches!(change, Change::Delete { .. }) => (change.kind(), None),
            _ => (if exists { OpKind::Write } else { OpKind::Delete }, None),
        }
    }
}

async fn hash_of(content: Bytes) -> Result<String> {
    if content.len() <= IN_PLACE_BYTES {
        return Ok(blake3::hash(&content).to_hex().to_string());
    }
    in_background(move |_| blake3::hash(&content).to_hex().to_string()).await
}

fn too_large(directory: &VfsPath) -> Error {
    let message = format!(
        "the batch removes over {} bytes with `{directory}`, more than one commit can keep in the history; delete or move its contents \
            in parts",
        super::SUBTREE_BYTES_MAX
    );
    Error::new(ErrorKind::TooLarge, message).at(directory)
}
