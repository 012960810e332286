//! The rows of a history: the revisions of a path as JSON, and the keys of contents.

use super::HistoryPolicy;
use crate::rows::file_key;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Author, Moment, OpKind, Revision, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::Item;

/// The prefix of the keys of lists.
pub(super) const LISTS: &str = "p";

/// The key of the row that says since when the history is complete.
pub(super) const SINCE: &str = "s";

/// The number of bytes of a path's hash in the key of a content.
const PATH_HASH_BYTES: usize = 16;

/// The number of the format of lists.
const FORMAT: u8 = 1;

/// Returns the key of the list of a file's revisions.
pub(super) fn list_key(file_key: &str) -> String {
    format!("{LISTS}{file_key}")
}

/// Since when a history is complete: it has every change of the tree's files from then on, as far as the policy keeps them.
///
/// A file that was removed before left nothing in the history, so nothing is known of earlier times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Since {
    since: Timestamp,
    /// The shortest `older_than` of the rows put since then, unless they have expired in due time.
    older_than: Duration,
}

#[derive(Serialize, Deserialize)]
struct StoredSince {
    format: u8,
    /// In microseconds since 1970; that of the row if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
    older_than_seconds: u64,
}

impl Since {
    /// Decodes the row. One that cannot be read says nothing.
    pub(super) fn decode(item: Option<&Item>) -> Option<Self> {
        let item = item?;
        let stored: StoredSince = serde_json::from_slice(&item.value).ok().filter(|stored: &StoredSince| stored.format <= FORMAT)?;
        let since = stored.since.map_or(Some(item.modified_at), |since| Timestamp::from_microsecond(since).ok())?;
        Some(Self { since, older_than: Duration::from_secs(stored.older_than_seconds) })
    }

    /// Returns the row to put with a change of a tree, or `None` if it is there already. `is_empty` says whether the tree had nothing
    /// before its first change.
    pub(super) fn renewed(known: Option<Self>, policy: &HistoryPolicy, is_empty: bool, now: Timestamp) -> Option<Vec<u8>> {
        let older_than_seconds = policy.older_than.as_secs();
        let since = match known {
            Some(known) if known.older_than.as_secs() == older_than_seconds => return None,
            // What a shorter policy has let expire by now does not come back.
            Some(known) => Some(known.reaches_back_to(policy, now)),
            None => is_empty.then_some(Timestamp::MIN),
        };
        let since = since.map(Timestamp::as_microsecond);
        let row = StoredSince { format: FORMAT, since, older_than_seconds };
        Some(serde_json::to_vec(&row).expect("numbers always serialize"))
    }

    /// Returns the earliest time of which everything is known.
    pub(super) fn reaches_back_to(self, policy: &HistoryPolicy, now: Timestamp) -> Timestamp {
        let kept = now.checked_sub(self.older_than.min(policy.older_than)).unwrap_or(Timestamp::MIN);
        self.since.max(kept)
    }
}

/// Returns the key of a content of a path.
pub(super) fn content_key(path: &VfsPath, hash: &str) -> String {
    let of_path = blake3::hash(path.as_str().as_bytes()).to_hex();
    format!("c{}{hash}", &of_path[..2 * PATH_HASH_BYTES])
}

/// A list as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    format: u8,
    /// Whether there are revisions before the first.
    #[serde(default, skip_serializing_if = "is_false")]
    is_cut: bool,
    revisions: Vec<StoredRevision>,
}

#[derive(Serialize, Deserialize)]
struct StoredRevision {
    number: u64,
    operation: OpKind,
    /// When the change was made, in microseconds since 1970; that of the row if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    /// The version as its distance before that of the row, for a file put by the same commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    back: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    size_bytes: u64,
    /// The hash of the content, once it was replaced or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    other: Option<VfsPathBuf>,
    #[serde(flatten)]
    author: Author,
    /// Whether the change itself was not recorded.
    #[serde(default, skip_serializing_if = "is_false")]
    is_found: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A revision, and where its content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) revision: Revision,
    /// The hash of the content in the history; `None` while it is the content of the file.
    hash: Option<String>,
}

impl Kept {
    /// Returns the revision without the author, whom the tree of a moment does not show.
    pub(super) fn anonymous(mut self) -> Self {
        self.revision.author = Author::new();
        self
    }

    /// Returns the revision without its content.
    pub(super) fn lost(mut self) -> Self {
        self.revision.is_kept = false;
        self
    }

    /// Returns the key of the content in the history; `None` while it is the content of the file.
    pub(super) fn content_key(&self, path: &VfsPath) -> Option<String> {
        self.hash.as_ref().map(|hash| content_key(path, hash))
    }
}

/// The revisions of one path, oldest first. Only the last may be the file as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::backend::store) struct FileHistory {
    revisions: Vec<Kept>,
    /// Whether there were revisions before the first.
    is_cut: bool,
    /// The earliest time of which everything is known of the whole tree; `None` if that is not recorded.
    since: Option<Timestamp>,
}

/// A change that is about to be committed.
pub(in crate::backend::store) struct NewRevision {
    pub(in crate::backend::store) operation: OpKind,
    pub(in crate::backend::store) other: Option<VfsPathBuf>,
    pub(in crate::backend::store) author: Author,
    /// The size of the new file, and the distance of its put before that of the list; `None` if the change removes it.
    pub(in crate::backend::store) put: Option<(u64, u64)>,
}

/// What was at a path at a moment.
pub(super) enum Then<'h> {
    /// A file.
    File(&'h Kept),
    /// No file.
    Nothing,
    /// It is not known any more.
    Forgotten,
}

impl FileHistory {
    /// Creates an empty list of a path whose past is lost.
    pub(super) fn cut() -> Self {
        Self { is_cut: true, ..Self::default() }
    }

    /// Decodes a list, without the revisions that the policy drops.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if it cannot be decoded.
    pub(super) fn decode(path: &VfsPath, item: Option<&Item>, policy: &HistoryPolicy) -> Result<Self> {
        let Some(item) = item else { return Ok(Self::default()) };
        let corrupt = || Error::new(ErrorKind::Corrupt, format!("the history of `{path}` cannot be read")).at(path);
        let stored: Stored = serde_json::from_slice(&item.value).map_err(|error| corrupt().with_source(error))?;
        if stored.format > FORMAT {
            let message = format!("the history of `{path}` has format {}; use a newer version of treehold", stored.format);
            return Err(corrupt().with_message(message));
        }
        let mut revisions = Vec::with_capacity(stored.revisions.len());
        let mut last = Timestamp::MIN;
        for stored in stored.revisions {
            let at = stored.at.map_or(Ok(item.modified_at), Timestamp::from_microsecond).map_err(|error| corrupt().with_source(error))?;
            // Clocks of several machines differ, and a search by time needs an order.
            let at = at.max(last);
            last = at;
            let back = stored.back.map(|back| item.version.number().saturating_sub(back));
            let version = stored.version.or(back).map(Version::new);
            let mut revision = Revision::new(stored.number, at, stored.operation, version, stored.size_bytes);
            (revision.other, revision.author, revision.is_recorded) = (stored.other, stored.author, !stored.is_found);
            revisions.push(Kept { revision, hash: stored.hash });
        }
        let mut history = Self { revisions, is_cut: stored.is_cut, since: None };
        history.mark_lost();
        history.drop_old(policy, Timestamp::now());
        Ok(history)
    }

    /// Encodes the list.
    pub(in crate::backend::store) fn encode(&self, new: NewRevision) -> Vec<u8> {
        let mut revisions: Vec<StoredRevision> = self
            .revisions
            .iter()
            .map(|Kept { revision, hash }| StoredRevision {
                number: revision.number,
                operation: revision.operation,
                at: Some(revision.at.as_microsecond()),
                version: revision.version.map(Version::number),
                back: None,
                size_bytes: revision.size_bytes,
                hash: hash.clone(),
                other: revision.other.clone(),
                author: revision.author.clone(),
                is_found: !revision.is_recorded,
            })
            .collect();
        revisions.push(StoredRevision {
            number: self.next_number(),
            operation: new.operation,
            at: None,
            version: None,
            back: new.put.map(|(_, back)| back),
            size_bytes: new.put.map_or(0, |(size_bytes, _)| size_bytes),
            hash: None,
            other: new.other,
            author: new.author,
            is_found: false,
        });
        serde_json::to_vec(&Stored { format: FORMAT, is_cut: self.is_cut, revisions }).expect("texts and numbers always serialize")
    }

    /// Returns whether there were revisions before the first.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub(super) fn revisions(&self) -> &[Kept] {
        &self.revisions
    }

    fn next_number(&self) -> u64 {
        self.revisions.last().map_or(1, |last| last.revision.number.saturating_add(1))
    }

    /// Sets the earliest time of which everything is known of the whole tree.
    pub(super) fn with_since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    /// Returns when the first change was recorded of which the list knows.
    pub(super) fn first_recorded(&self) -> Option<Timestamp> {
        self.revisions.iter().find(|kept| kept.revision.is_recorded).map(|kept| kept.revision.at)
    }

    /// Returns whether nothing was at the path at a time before its first revision.
    fn was_absent(&self, time: Timestamp) -> bool {
        // Without the row, the oldest recorded change is when the history began.
        let since = self.since.or_else(|| self.first_recorded());
        !self.is_cut && since.is_some_and(|since| since <= time)
    }

    /// Returns the version of the last revision.
    pub(super) fn last_version(&self) -> Option<Version> {
        self.revisions.last().and_then(|last| last.revision.version)
    }

    /// Returns whether the last revision is what is at the path now.
    pub(super) fn is_of(&self, file: Option<&Item>) -> bool {
        self.last_version() == file.map(|item| item.version)
    }

    /// Adds what is at the path now, unless it is the last revision already.
    pub(in crate::backend::store) fn with_found(mut self, path: &VfsPath, file: Option<&Item>) -> Self {
        if self.is_of(file) {
            return self;
        }
        let number = self.next_number();
        let mut revision = match file {
            Some(item) => {
                let record = crate::rows::record(path, item).ok();
                // The time of the row: a file that was moved here is older than its time at this path.
                let at = item.modified_at;
                let at = self.revisions.last().map_or(at, |last| at.max(last.revision.at));
                self.is_cut |= self.revisions.is_empty() && item.created_at < at;
                Revision::new(number, at, OpKind::Write, Some(item.version), record.map_or(0, |record| record.size_bytes))
            }
            None => {
                // Nobody knows when it was removed, so until now its content counts as lost rather than absent.
                let now = Timestamp::now();
                let at = self.revisions.last().map_or(now, |last| now.max(last.revision.at));
                Revision::new(number, at, OpKind::Delete, None, 0)
            }
        };
        revision.is_recorded = false;
        self.revisions.push(Kept { revision, hash: None });
        self.mark_lost();
        self
    }

    /// Sets the hash of the last revision, whose content is about to be replaced or removed.
    pub(in crate::backend::store) fn keep_last(&mut self, hash: String) {
        if let Some(last) = self.revisions.last_mut() {
            last.hash = Some(hash);
        }
    }

    /// Drops what the policy does not keep after one more change. Returns the hashes of contents that no revision needs any more.
    pub(in crate::backend::store) fn prune(&mut self, policy: &HistoryPolicy) -> Vec<String> {
        let over = self.revisions.len().saturating_sub(policy.keep_last);
        self.drop_first(over)
    }

    /// Drops the revisions that ended too long ago.
    fn drop_old(&mut self, policy: &HistoryPolicy, now: Timestamp) {
        let Ok(oldest) = now.checked_sub(policy.older_than) else { return };
        let ended = self.revisions.windows(2).take_while(|pair| pair[1].revision.at < oldest).count();
        // Their contents expire on their own.
        self.drop_first(ended);
    }

    fn drop_first(&mut self, count: usize) -> Vec<String> {
        if count == 0 {
            return Vec::new();
        }
        self.is_cut = true;
        let dropped: Vec<Kept> = self.revisions.drain(..count).collect();
        let is_needed = |hash: &String| self.revisions.iter().any(|kept| kept.hash.as_ref() == Some(hash));
        dropped.into_iter().filter_map(|kept| kept.hash).filter(|hash| !is_needed(hash)).collect()
    }

    /// Marks the revisions whose content was never kept, because a writer without a history replaced it.
    fn mark_lost(&mut self) {
        let before_last = self.revisions.len().saturating_sub(1);
        for kept in &mut self.revisions[..before_last] {
            kept.revision.is_kept = kept.hash.is_some() || !kept.revision.exists();
        }
    }

    /// Returns what was at the path at a moment. The current file must have been added.
    pub(super) fn then(&self, moment: Moment) -> Then<'_> {
        let found = match moment {
            Moment::Back(back) => {
                let index = usize::try_from(back).ok().and_then(|back| self.revisions.len().checked_sub(back.checked_add(1)?));
                index.map(|index| &self.revisions[index])
            }
            Moment::Number(number) => self.revisions.iter().find(|kept| kept.revision.number == number),
            Moment::Time(time) => {
                let after = self.revisions.partition_point(|kept| kept.revision.at <= time);
                after.checked_sub(1).map(|index| &self.revisions[index])
            }
        };
        match (found, moment) {
            (Some(kept), _) if kept.revision.exists() => Then::File(kept),
            (Some(_), _) => Then::Nothing,
            (None, Moment::Time(time)) if self.was_absent(time) => Then::Nothing,
            (None, _) => Then::Forgotten,
        }
    }

    /// Returns when the file of a revision was created, as far as is known.
    pub(super) fn created_at(&self, kept: &Kept) -> Timestamp {
        let until = self.revisions.iter().take_while(|other| other.revision.number <= kept.revision.number);
        let mut created_at = None;
        for other in until {
            created_at = if other.revision.exists() { created_at.or(Some(other.revision.at)) } else { None };
        }
        created_at.unwrap_or(kept.revision.at)
    }
}

/// Returns the path of a list.
pub(super) fn path_of(key: &str) -> Result<VfsPathBuf> {
    let row = crate::rows::RowKey::of(key.strip_prefix(LISTS).unwrap_or(key))?;
    debug_assert_eq!(file_key(&row.path), &key[LISTS.len()..]);
    Ok(row.path)
}
