//! The calls that changed a tree, newest first, and how to undo one.

use super::StoreHistory;
use super::rows::Kept;
use crate::backend::store::StoreBackend;
use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Author, Change, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_store::{BatchWrite, ScanEntry, ScanOptions};

/// The prefix of the keys of calls.
const CALLS: &str = "u";

/// The most paths that are recorded of one commit, some 60 bytes each. A call with a larger one cannot be undone as one.
const PATHS_MAX: usize = 20_000;

/// The most rows that are read at once.
const PAGE_ROWS: usize = 100;

/// One commit that changed files of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecordedCall {
    /// When it was made.
    pub at: Timestamp,
    /// Who made it. [`Author::call`] is set.
    pub author: Author,
    /// The files that it changed.
    pub paths: Vec<VfsPathBuf>,
    /// Whether it changed more files than are recorded.
    #[serde(default)]
    pub is_cut: bool,
}

/// The prefix of the keys of a user's calls. Users of different tenants with one name have different prefixes.
fn prefix_of(author: &Author) -> String {
    let id = serde_json::to_vec(&(&author.tenant, &author.user)).expect("texts always serialize");
    format!("{CALLS}{}", &blake3::hash(&id).to_hex()[..32])
}

/// Returns the write that records a call, unless its author is unknown.
pub(in crate::backend::store) fn record(history: &StoreHistory, author: &Author, paths: &[VfsPathBuf]) -> Option<BatchWrite> {
    let call = author.call.as_ref()?;
    let at = Timestamp::now();
    // Keys are scanned in ascending order, and the newest call comes first.
    let age = u64::MAX - u64::try_from(at.as_microsecond()).unwrap_or(0);
    let key = format!("{}{age:016x}{call}", prefix_of(author));
    let is_cut = paths.len() > PATHS_MAX;
    let paths = paths[..paths.len().min(PATHS_MAX)].to_vec();
    let row = RecordedCall { at, author: author.clone(), paths, is_cut };
    let value: Bytes = serde_json::to_vec(&row).expect("texts always serialize").into();
    let time_to_live: Option<Duration> = Some(history.policy.older_than);
    Some(BatchWrite::Put { namespace: history.namespace.clone(), key, meta: Bytes::new(), value, time_to_live, created_at: None })
}

impl StoreBackend {
    /// Returns up to `limit` calls of a user that changed files of this tree, newest first, and where to continue. Tenant and user of
    /// `author` choose them.
    ///
    /// Cost: one scan, proportional to the result.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) without a history, [`Corrupt`](ErrorKind::Corrupt) if it cannot be read, and errors of the
    /// store.
    pub async fn calls(&self, author: &Author, after: Option<String>, limit: usize) -> Result<(Vec<RecordedCall>, Option<String>)> {
        let history = self.history()?;
        let mut options = ScanOptions::new().with_prefix(prefix_of(author)).with_values(true).with_limit(limit.min(PAGE_ROWS));
        options.start_after = after;
        let page = self.store.scan(&history.namespace, options).await?;
        let mut calls = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            let unread = |error| Error::new(ErrorKind::Corrupt, "a recorded call of this tree cannot be read").with_source(error);
            calls.push(serde_json::from_slice(&item.value).map_err(unread)?);
        }
        Ok((calls, page.next))
    }

    /// Returns the changes that undo a call: each file gets the content that it had before. Each change is conditional on the version that
    /// the file has now.
    ///
    /// Cost: four round trips for each file, and up to `bytes_max` bytes of content in memory.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if a file was changed by another call, since then or in between,
    /// [`NotFound`](ErrorKind::NotFound) if a content is not kept any more, [`TooLarge`](ErrorKind::TooLarge) for a call that changed over
    /// 20,000 files at once or replaced over `bytes_max` bytes, and errors of the store.
    pub async fn reversal(&self, call: &RecordedCall, bytes_max: u64) -> Result<Vec<Change>> {
        if call.is_cut {
            let before = call.at.checked_sub(SignedDuration::from_millis(1)).unwrap_or(call.at);
            let message = format!(
                "the call changed over {PATHS_MAX} files at once, too many to undo as one; restore their directory to the time before it, \
                    {before}"
            );
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let mut changes = Vec::with_capacity(call.paths.len());
        let mut left = bytes_max;
        for path in &call.paths {
            let too_large = || {
                let message = format!("the call replaced over {bytes_max} bytes, too much to undo as one; restore its files in parts");
                Error::new(ErrorKind::TooLarge, message).at(path)
            };
            let fits = |size_bytes: u64| left.checked_sub(size_bytes).ok_or_else(too_large);
            if let Some((change, rest)) = self.reversal_of(path, call, fits).await? {
                changes.push(change);
                left = rest;
            }
        }
        // A file may return to where the call made a directory of files, so removals come first.
        changes.sort_by_key(|change| !matches!(change, Change::Delete { .. }));
        Ok(changes)
    }

    /// Returns the change that gives a file its earlier content, with what `fits` returns for the size of that content.
    async fn reversal_of(
        &self,
        path: &VfsPath,
        call: &RecordedCall,
        fits: impl Fn(u64) -> Result<u64> + Send,
    ) -> Result<Option<(Change, u64)>> {
        let history = self.file_history(path).await?;
        let is_of_call = |kept: &Kept| kept.revision.author.call == call.author.call;
        let (first, made) = (history.revisions().iter().position(is_of_call), history.revisions().iter().rposition(is_of_call));
        let (Some(first), Some(made), Some(last)) = (first, made, history.revisions().last()) else { return Err(forgotten(path)) };
        if let Some(other) = history.revisions()[first..=made].iter().find(|kept| !is_of_call(kept)) {
            let message =
                format!("`{path}` was also changed by another call in between, at {}; restore the file instead", other.revision.at);
            return Err(Error::new(ErrorKind::Conflict, message).at(path).with_current_version(last.revision.version));
        }
        let before = match first.checked_sub(1) {
            Some(before) => Some(&history.revisions()[before]).filter(|kept| kept.revision.exists()),
            None if history.is_cut() => return Err(forgotten(path)),
            None => None,
        };
        let made = &history.revisions()[made];
        if made.revision.number != last.revision.number && !self.is_alike(path, made, last).await? {
            let message = format!("`{path}` changed since, at {}; undo that first, or restore the file", last.revision.at);
            return Err(Error::new(ErrorKind::Conflict, message).at(path).with_current_version(last.revision.version));
        }
        let path = path.to_owned();
        Ok(match (before, last.revision.version) {
            (None, None) => None,
            (None, version) => Some((Change::Delete { path, recursive: false, expect: version }, fits(0)?)),
            (Some(before), version) => {
                let left = fits(before.revision.size_bytes)?;
                let content = self.content_of(&path, before).await?;
                let mode = version.map_or(WriteMode::CreateNew, WriteMode::IfVersion);
                Some((Change::Write { path, content, mode }, left))
            }
        })
    }

    /// Returns whether two revisions of a file have the same content.
    async fn is_alike(&self, path: &VfsPath, one: &Kept, other: &Kept) -> Result<bool> {
        if one.revision.exists() != other.revision.exists() || one.revision.size_bytes != other.revision.size_bytes {
            return Ok(false);
        }
        Ok(!one.revision.exists() || self.content_of(path, one).await? == self.content_of(path, other).await?)
    }
}

fn forgotten(path: &VfsPath) -> Error {
    let message = format!("what `{path}` was before is not kept any more");
    Error::new(ErrorKind::NotFound, message).at(path)
}
