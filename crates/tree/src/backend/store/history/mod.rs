//! The past of a tree's files, in rows of the same store.
//!
//! Each commit that replaces or removes a file also keeps its old content and adds a revision to the list of its path. The rows are in a
//! namespace of their own, `history` followed by the namespace of the tree:
//!
//! | key | row |
//! | --- | --- |
//! | `p`, key of the file | the revisions of the path, oldest first, the current one included |
//! | `c`, hash of the path, hash of the content | a content that was replaced or removed |
//! | `u`, hash of tenant and user, time, call | the files that a commit changed, for undo |
//! | `s` | since when the history is complete, put by the first recorded change; the only row that does not expire |
//!
//! A content is kept once for each path, however often it recurs, so a commit that drops a revision knows whether its content is still
//! needed. The commit reads the list and depends on its version, and on the version of the file that it replaces.
//!
//! The [policy](HistoryPolicy) bounds both numbers: a commit drops the oldest revisions of its path, and all other rows expire.
//!
//! A list tolerates writers without a history, such as a program of an older version: the next recorded change finds a version that the
//! list lacks, and adds it as a revision of an unknown author. `rows` defines the rows, `transaction/record.rs` adds them to commits, and
//! `past` shows a tree as it was.

pub(super) mod calls;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod laws;
mod past;
mod rows;

pub use self::calls::RecordedCall;
pub use self::past::StorePast;
pub(super) use self::rows::NewRevision;

use self::rows::{FileHistory, Kept, SINCE, Since, list_key};
use super::StoreBackend;
use crate::rows::file_key;
use bytes::Bytes;
use jiff::Timestamp;
use std::ops::Range;
use std::time::Duration;
use treehold_core::backoff::LostRaces;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Forgotten, Moment, Revision};
use treehold_core::path::VfsPath;
use treehold_core::reserved::{HISTORY, beside};
use treehold_store::{Item, Namespace};

/// How many times the rows of one path are read until they belong together.
const READS_MAX: u32 = 16;

/// How much of the past of each file is kept. Both bounds hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryPolicy {
    /// The most replaced or removed contents of each path, at least 1. Default 20.
    pub keep_last: usize,
    /// How long a content is kept after it was replaced or removed. Default 30 days.
    pub older_than: Duration,
}

impl HistoryPolicy {
    /// The largest `keep_last`. Every change of a file writes the list of its revisions, some 200 bytes each.
    pub const KEEP_LAST_MAX: usize = 1_000;

    /// Keeps the last 20 contents of each path for 30 days.
    pub fn new() -> Self {
        Self { keep_last: 20, older_than: Duration::from_secs(30 * 24 * 60 * 60) }
    }

    /// Sets how many contents of each path are kept, from 1 to [`KEEP_LAST_MAX`](Self::KEEP_LAST_MAX).
    #[must_use]
    pub fn with_keep_last(mut self, count: usize) -> Self {
        self.keep_last = count.clamp(1, Self::KEEP_LAST_MAX);
        self
    }

    /// Sets how long a content is kept.
    #[must_use]
    pub fn with_older_than(mut self, age: Duration) -> Self {
        self.older_than = age;
        self
    }
}

impl Default for HistoryPolicy {
    fn default() -> Self {
        Self::new()
    }
}

/// The history of a tree.
#[derive(Debug, Clone)]
pub(super) struct StoreHistory {
    policy: HistoryPolicy,
    namespace: Namespace,
}

impl StoreBackend {
    /// Keeps the past of every file that this backend changes: the content, with time and [author](treehold_core::ops::Author).
    ///
    /// A namespace of 16 components or nearly 1,024 bytes has no room for a history and gets none; [`StoreBackend::log`] says so. Changes of
    /// backends without a history are not recorded.
    ///
    /// Cost: every change reads the file that it replaces and the list of its revisions, and puts both. A batch reads all that it replaces
    /// and removes, up to 1 GiB together.
    #[must_use]
    pub fn with_history(mut self, policy: HistoryPolicy) -> Self {
        self.history = beside(&self.namespace, HISTORY).ok().map(|namespace| StoreHistory { policy, namespace });
        self
    }

    fn history(&self) -> Result<&StoreHistory> {
        let message = "this tree keeps no history; set `history` on its route, with a namespace of at most 15 components";
        self.history.as_ref().ok_or_else(|| Error::unsupported(message))
    }

    /// Returns the revisions of a path, the newest first; the first is what is there now. Empty for a path that no recorded change touched.
    ///
    /// Cost: two or three round trips.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) without a history, [`Corrupt`](ErrorKind::Corrupt) if it cannot be read, and errors of the
    /// store.
    pub async fn log(&self, path: &VfsPath) -> Result<Vec<Revision>> {
        let found = self.file_history(path).await?;
        Ok(found.revisions().iter().rev().map(|kept| kept.revision.clone()).collect())
    }

    /// Returns the tree as it was at a moment, read-only.
    ///
    /// With a time, it has the files that existed then. A moment that counts the revisions of a file is of use for files only: a directory
    /// has no revisions.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) without a history.
    pub fn at(&self, moment: Moment) -> Result<StorePast> {
        self.history()?;
        Ok(StorePast::new(self.clone(), moment))
    }

    /// Reads the history of a path together with the file that is there now.
    async fn file_history(&self, path: &VfsPath) -> Result<FileHistory> {
        let history = self.history()?;
        if path.is_root() {
            return Ok(FileHistory::default());
        }
        let (list, file) = (list_key(&file_key(path)), file_key(path));
        let mut races = LostRaces::at_most(READS_MAX);
        let mut rows = self.store.get_many(&history.namespace, &[&list, SINCE], true).await?;
        let since = history.since(rows.pop().flatten().as_ref());
        let mut before = rows.pop().flatten();
        loop {
            let now = self.store.get_many(&self.namespace, &[&file], false).await?.pop().flatten();
            let found = FileHistory::decode(path, before.as_ref(), &history.policy)?.with_since(since);
            if found.is_of(now.as_ref()) {
                return Ok(found);
            }
            // Either the file changed between the two reads, or a writer without a history changed it.
            let after = self.store.get(&history.namespace, &list).await?;
            if after.as_ref().map(|item| item.version) == before.as_ref().map(|item| item.version) {
                return Ok(found.with_found(path, now.as_ref()));
            }
            before = after;
            if !races.lost().await {
                break;
            }
        }
        let message = format!("`{path}` was changed {READS_MAX} times while its history was read; try again");
        Err(Error::new(ErrorKind::Unavailable, message).at(path))
    }

    /// Reads the content of a revision.
    async fn content_of(&self, path: &VfsPath, kept: &Kept) -> Result<Bytes> {
        self.content_part(path, kept, 0..u64::MAX).await
    }

    /// Reads a range of the content of a revision.
    async fn content_part(&self, path: &VfsPath, kept: &Kept, range: Range<u64>) -> Result<Bytes> {
        let history = self.history()?;
        let lost = || {
            let message = format!("the content of `{path}` at {} is not kept; `log` lists the versions that are", kept.revision.at);
            Error::new(ErrorKind::NotFound, message).with_source(Forgotten).at(path)
        };
        let part = async |namespace: &Namespace, key: &str| {
            self.store.get_part(namespace, key, range.clone()).await.map_err(|error| error.at(path))
        };
        if !kept.revision.is_kept {
            return Err(lost());
        }
        if let Some(key) = kept.content_key(path) {
            return part(&history.namespace, &key).await?.map(|part| part.item.value).ok_or_else(lost);
        }
        match part(&self.namespace, &file_key(path)).await? {
            Some(part) if Some(part.item.version) == kept.revision.version => {
                let record = crate::rows::record(path, &part.item)?;
                if record.size_bytes != part.value_bytes {
                    return Err(crate::rows::size_mismatch(path, &record, part.value_bytes));
                }
                Ok(part.item.value)
            }
            _ => {
                // It was replaced since, so its content is in the history now.
                let found = self.file_history(path).await?;
                let again = found.revisions().iter().find(|other| other.revision.version == kept.revision.version);
                let key = again.and_then(|kept| kept.content_key(path)).ok_or_else(lost)?;
                part(&history.namespace, &key).await?.map(|part| part.item.value).ok_or_else(lost)
            }
        }
    }
}

impl StoreHistory {
    /// The key of the row that says since when the history is complete.
    pub(super) const SINCE: &str = SINCE;

    pub(super) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(super) fn policy(&self) -> &HistoryPolicy {
        &self.policy
    }

    /// Returns the key of the list of a file's revisions.
    pub(super) fn list_key(&self, file_key: &str) -> String {
        list_key(file_key)
    }

    /// Returns the earliest time of which everything is known, by the row that says so.
    fn since(&self, row: Option<&Item>) -> Option<Timestamp> {
        Since::decode(row).map(|since| since.reaches_back_to(&self.policy, Timestamp::now()))
    }

    /// Returns the value of the row that says since when the history is complete, unless it is there already. `is_empty` says whether the
    /// tree had nothing before its first change.
    pub(super) fn renewed_since(&self, row: Option<&Item>, is_empty: bool) -> Option<Vec<u8>> {
        Since::renewed(Since::decode(row), &self.policy, is_empty, Timestamp::now())
    }

    /// Returns the key of a content of a path.
    pub(super) fn content_key(&self, path: &VfsPath, hash: &str) -> String {
        rows::content_key(path, hash)
    }

    /// Decodes a list in order to add a revision. A damaged list is replaced, because it must not prevent changes of the file.
    pub(super) fn decode_to_extend(&self, path: &VfsPath, list: Option<&Item>) -> Result<FileHistory> {
        match FileHistory::decode(path, list, &self.policy) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                tracing::warn!(%path, %error, "the history of a file is damaged and begins anew");
                Ok(FileHistory::cut())
            }
            decoded => decoded,
        }
    }
}
