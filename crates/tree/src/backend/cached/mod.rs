//! A cache of what was read from a tree: validated by version, bounded in bytes, and invalidated by changes.

mod table;

use self::table::{Kind, Known, Stamp, Table};
use super::{Backend, TreeNews};
use crate::forward_backend;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{ApplyOptions, Change, Changed, Entry, EntryKind, FileRead, Listing, LsOptions, OpKind, ReadOptions, StatOptions};
use treehold_core::path::VfsPath;
use treehold_core::text;

/// How long an unreachable owner is not contacted again while cached content can be served.
const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// What a cache holds, and how long it serves that without validation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheOptions {
    /// The most bytes cached, records included. Default 64 MiB.
    pub bytes_max: usize,
    /// The largest file cached, in bytes. Default 1 MiB.
    pub file_bytes_max: u64,
    /// How long cached content is served without validation while the feed is live. Default 10 s. It bounds the age of content that changes
    /// without an event in the feed, such as a file that an editor writes into a served directory.
    pub believed_for: Duration,
    /// Serves cached content when the owner is unreachable. Default false: the call fails.
    pub serve_stale: bool,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { bytes_max: 64 << 20, file_bytes_max: 1 << 20, believed_for: Duration::from_secs(10), serve_stale: false }
    }
}

impl CacheOptions {
    /// Caches up to 64 MiB and serves nothing that may be stale.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most bytes cached.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Sets the largest file cached, in bytes.
    #[must_use]
    pub fn with_file_bytes_max(mut self, file_bytes_max: u64) -> Self {
        self.file_bytes_max = file_bytes_max;
        self
    }

    /// Sets how long cached content is served without validation while the feed is live.
    #[must_use]
    pub fn with_believed_for(mut self, believed_for: Duration) -> Self {
        self.believed_for = believed_for;
        self
    }

    /// Sets whether cached content is served when the owner is unreachable.
    #[must_use]
    pub fn with_serve_stale(mut self, serve_stale: bool) -> Self {
        self.serve_stale = serve_stale;
        self
    }
}

/// How fresh the answers of a [`CachedBackend`] are.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Staleness {
    /// Whether a feed currently reports every change. Otherwise all cached content is validated against the owner's version.
    pub is_live: bool,
    /// When the owner became unreachable; `None` while it answers.
    pub away_since: Option<Timestamp>,
    /// The number of answers served without a possible validation.
    pub stale_count: u64,
    /// The number of cached bytes.
    pub bytes: usize,
}

/// A tree whose files and listings are cached.
///
/// Whole files, entries and listings are cached; a window of lines or a range of bytes is cut out of the whole file. Searches always
/// run on the owner, and every change goes to the owner first.
///
/// - Without a feed, a cached file is served after one `stat` of the owner finds the same version; entries and listings are
///   fetched again.
/// - With a [feed](CachedBackend::with_feed) of changes, cached content is served at once while the feed is live, for
///   at most [`CacheOptions::believed_for`]. A change is visible as soon as the feed reports it; a change made through this
///   tree is visible at once. After the feed was lost or reset, everything is validated before it is served again.
/// - When the owner is unreachable (`unavailable`, `deadline`), cached content is served if [`CacheOptions::serve_stale`] is
///   set. [`CachedBackend::staleness`] counts each such read, and a `tracing` event at the level `WARN` reports it.
///
/// A cache belongs to one opened tree and does not distinguish scopes: if a tree is opened for each scope, wrap each in its own cache.
///
/// Cost: as described, none or one `stat` for each cached read; [`CacheOptions::bytes_max`] bounds the memory.
pub struct CachedBackend<B> {
    owner: B,
    options: CacheOptions,
    shared: Arc<Shared>,
    feed: Mutex<FeedTask>,
}

/// The state that calls and the feed task share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    stale_count: AtomicU64,
}

#[derive(Debug)]
struct State {
    table: Table,
    /// The number of the feed that currently reports every change.
    live: Option<u64>,
    feeds: u64,
    /// When the owner became unreachable, and when that was last observed.
    away: Option<(Timestamp, Instant)>,
}

enum FeedTask {
    None,
    /// The task starts with the first read.
    Waiting(BoxStream<'static, TreeNews>),
    Running(AbortHandle),
}

impl<B: Backend> CachedBackend<B> {
    /// Caches reads of a tree.
    pub fn new(owner: B, options: CacheOptions) -> Self {
        let state = State { table: Table::new(options.bytes_max), live: None, feeds: 0, away: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), stale_count: AtomicU64::new(0) });
        Self { owner, options, shared, feed: Mutex::new(FeedTask::None) }
    }

    /// Follows a feed of the tree's changes in a separate task, from the first read until the cache is dropped.
    #[must_use]
    pub fn with_feed(self, feed: BoxStream<'static, TreeNews>) -> Self {
        *self.feed.lock() = FeedTask::Waiting(feed);
        self
    }

    /// Returns the cached tree.
    pub fn owner(&self) -> &B {
        &self.owner
    }

    /// Returns how fresh the answers are.
    pub fn staleness(&self) -> Staleness {
        let state = self.shared.state.lock();
        Staleness {
            is_live: state.live.is_some(),
            away_since: state.away.map(|(since, _)| since),
            stale_count: self.shared.stale_count.load(Ordering::Relaxed),
            bytes: state.table.bytes(),
        }
    }

    fn listen(&self) {
        let mut task = self.feed.lock();
        if !matches!(*task, FeedTask::Waiting(_)) {
            return;
        }
        let FeedTask::Waiting(mut feed) = std::mem::replace(&mut *task, FeedTask::None) else { return };
        let shared = self.shared.clone();
        let listening = tokio::spawn(async move {
            while let Some(news) = feed.next().await {
                shared.state.lock().hear(news);
            }
            shared.state.lock().hear(TreeNews::Lost);
        });
        *task = FeedTask::Running(listening.abort_handle());
    }

    /// Returns what is cached of a path, and whether it may be served without validation.
    fn known(&self, path: &VfsPath, kind: Kind) -> Option<(Known, bool)> {
        let mut state = self.shared.state.lock();
        let (known, stamp) = state.table.get(path, kind)?;
        let is_told_of = stamp.feed.is_some() && stamp.feed == state.live;
        Some((known, is_told_of && stamp.at.elapsed() < self.options.believed_for))
    }

    /// Returns whether the owner was unreachable so recently that no call should wait for it again.
    fn is_away_still(&self) -> bool {
        self.options.serve_stale && self.shared.state.lock().away.is_some_and(|(_, seen)| seen.elapsed() < AWAY_PAUSE)
    }

    /// Records whether the owner answered. Returns whether it is unreachable and cached content may be served instead.
    fn is_away<T>(&self, answer: &Result<T>) -> bool {
        let is_away = answer.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Deadline));
        let mut state = self.shared.state.lock();
        state.away = match (is_away, state.away) {
            (false, _) => None,
            (true, Some((since, _))) => Some((since, Instant::now())),
            (true, None) => Some((Timestamp::now(), Instant::now())),
        };
        is_away && self.options.serve_stale
    }

    fn stale<T>(&self, path: &VfsPath, kept: T) -> Result<T> {
        let stale_count = self.shared.stale_count.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(%path, stale_count, owner = %self.owner, "the owner is unreachable; serving cached content that may be stale");
        Ok(kept)
    }

    fn begin(&self, path: &VfsPath) -> Fetch<'_> {
        let mut state = self.shared.state.lock();
        let stamp = Stamp { feed: state.live, at: Instant::now() };
        Fetch { shared: &self.shared, id: Some(state.table.begin_fetch(path)), stamp }
    }

    /// Reads from the owner: the whole file if it is small enough to be cached, otherwise only what was requested.
    async fn fetch(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let fetch = self.begin(path);
        let whole = ReadOptions::new().with_bytes_max(self.options.file_bytes_max).with_refuse_links(options.refuse_links);
        match self.owner.read(path, &whole).await {
            Ok(read) => {
                let mut kept = read.clone();
                // The received content may be a slice of a larger buffer.
                kept.content = Bytes::copy_from_slice(&read.content);
                fetch.keep(path, Known::File(kept));
                cut(path, read, options)
            }
            Err(error) if error.kind() == ErrorKind::TooLarge => {
                fetch.keep(path, Known::Large);
                self.owner.read(path, options).await
            }
            Err(error) => Err(error),
        }
    }
}

impl State {
    fn hear(&mut self, news: TreeNews) {
        match news {
            TreeNews::Live => {
                self.feeds += 1;
                self.live = Some(self.feeds);
            }
            TreeNews::Changed(path) => self.table.forget(&path),
            // Earlier content belongs to a previous feed and is validated before it is served.
            TreeNews::Reset => {
                self.feeds += 1;
                self.live = self.live.map(|_| self.feeds);
            }
            TreeNews::Lost => self.live = None,
        }
    }
}

/// A request to the owner in progress.
struct Fetch<'a> {
    shared: &'a Shared,
    id: Option<u64>,
    /// The stamp of its result if nothing changes meanwhile.
    stamp: Stamp,
}

impl Fetch<'_> {
    /// Caches the result unless it changed meanwhile.
    fn keep(mut self, path: &VfsPath, known: Known) {
        let mut state = self.shared.state.lock();
        if self.id.take().is_some_and(|id| state.table.end_fetch(id)) {
            state.table.insert(path, known, self.stamp);
        }
    }

    /// Marks cached content as valid unless it changed meanwhile.
    fn renew(mut self, path: &VfsPath, kind: Kind) {
        let mut state = self.shared.state.lock();
        if self.id.take().is_some_and(|id| state.table.end_fetch(id)) {
            state.table.renew(path, kind, self.stamp);
        }
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.shared.state.lock().table.end_fetch(id);
        }
    }
}

/// Invalidates the paths of a batch when the batch ends: done, failed, or abandoned by its caller.
struct Forget<'a> {
    shared: &'a Shared,
    changes: &'a [Change],
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        self.changes.iter().flat_map(Change::paths).for_each(|path| state.table.forget(path));
    }
}

/// Cuts the requested part out of a whole file.
fn cut(path: &VfsPath, mut read: FileRead, options: &ReadOptions) -> Result<FileRead> {
    (read.content, read.window) = text::cut(&read.content, options).map_err(|error| error.at(path).during(OpKind::Read))?;
    Ok(read)
}

/// Returns the requested page of a whole listing.
fn page(listing: Listing, options: &LsOptions) -> Listing {
    let start_after = options.start_after.as_deref();
    let after = listing.entries.into_iter().filter(|entry| start_after.is_none_or(|name| entry.name() > name));
    Listing::from_sorted(after, options)
}

impl<B> Drop for CachedBackend<B> {
    fn drop(&mut self) {
        if let FeedTask::Running(task) = &*self.feed.lock() {
            task.abort();
        }
    }
}

impl<B: Backend> fmt::Display for CachedBackend<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cached({})", self.owner)
    }
}

impl<B: Backend> fmt::Debug for CachedBackend<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedBackend").field("owner", &self.owner).field("options", &self.options).finish_non_exhaustive()
    }
}

#[async_trait]
impl<B: Backend> Backend for CachedBackend<B> {
    forward_backend! { self => self.owner; capabilities, glob, grep, search, review }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        self.listen();
        let kept = match self.known(path, Kind::Entry) {
            Some((Known::Entry(entry), true)) => return Ok(entry),
            Some((Known::Entry(entry), false)) => Some(entry),
            _ => None,
        };
        if kept.is_some() && self.is_away_still() {
            return self.stale(path, kept).map(|entry| entry.expect("`kept` is present"));
        }
        let fetch = self.begin(path);
        let answer = self.owner.stat(path, options).await;
        match (self.is_away(&answer), kept) {
            (true, Some(entry)) => self.stale(path, entry),
            _ => {
                match &answer {
                    Ok(entry) => fetch.keep(path, Known::Entry(entry.clone())),
                    Err(_) => drop(fetch),
                }
                answer
            }
        }
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.listen();
        let kept = match self.known(path, Kind::Content) {
            Some((Known::File(read), true)) => return cut(path, read, options),
            Some((Known::Large, true)) => return self.owner.read(path, options).await,
            Some((Known::File(read), false)) => read,
            _ => {
                let answer = self.fetch(path, options).await;
                self.is_away(&answer);
                return answer;
            }
        };
        if self.is_away_still() {
            return self.stale(path, kept).and_then(|read| cut(path, read, options));
        }
        let fetch = self.begin(path);
        let answer = self.owner.stat(path, &StatOptions::new().with_refuse_links(options.refuse_links)).await;
        if self.is_away(&answer) {
            return self.stale(path, kept).and_then(|read| cut(path, read, options));
        }
        match answer {
            Ok(entry) if entry.kind == EntryKind::File && entry.version == Some(kept.version) => {
                fetch.renew(path, Kind::Content);
                cut(path, kept, options)
            }
            // It has another version, or is a directory by now: read it from the owner.
            Ok(_) => {
                drop(fetch);
                self.fetch(path, options).await
            }
            Err(error) => {
                drop(fetch);
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied) {
                    self.shared.state.lock().table.forget(path);
                }
                Err(read_error(error, path))
            }
        }
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.listen();
        let kept = match self.known(path, Kind::Children) {
            Some((Known::Children(listing), true)) => return Ok(page(listing, options)),
            Some((Known::Children(listing), false)) => Some(listing),
            _ => None,
        };
        if self.is_away_still()
            && let Some(listing) = kept
        {
            return self.stale(path, page(listing, options));
        }
        let fetch = self.begin(path);
        let answer = self.owner.ls(path, options).await;
        match (self.is_away(&answer), kept) {
            (true, Some(listing)) => self.stale(path, page(listing, options)),
            _ => {
                match &answer {
                    Ok(listing) if options.start_after.is_none() && listing.truncated.is_none() && listing.failures.is_empty() => {
                        fetch.keep(path, Known::Children(listing.clone()));
                    }
                    _ => drop(fetch),
                }
                answer
            }
        }
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let _forget = Forget { shared: &self.shared, changes };
        self.owner.apply(changes, options).await
    }
}

/// Turns an error of the validating `stat` into one of the read that needed it.
fn read_error(error: Error, path: &VfsPath) -> Error {
    let error = if error.path().is_none() { error.at(path) } else { error };
    error.during(OpKind::Read)
}

#[cfg(test)]
mod laws;
