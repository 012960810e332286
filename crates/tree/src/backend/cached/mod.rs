//! What was read of a tree, kept near: validated by version, bounded in bytes, and forgotten when it changes.

mod table;

use self::table::{Kind, Known, Stamp, Table};
use super::{Backend, TreeNews};
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
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, EntryKind, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing,
    LsOptions, OpKind, ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use treehold_core::path::VfsPath;
use treehold_core::text;

/// For how long an owner that was away is not asked again, where something kept can be served.
const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// What is kept, and for how long it may be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheOptions {
    /// The most bytes kept, records included. Default 64 MiB.
    pub bytes_max: usize,
    /// The largest file kept, in bytes. Default 1 MiB.
    pub file_bytes_max: u64,
    /// For how long something is served without asking while the feed is live. Default 10 s: it bounds the age of what changes behind the
    /// owner's back, such as a file that an editor writes into a served directory, of which no feed tells.
    pub believed_for: Duration,
    /// Serves what is kept when the owner is away. Default false: the failure is told.
    pub serve_stale: bool,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { bytes_max: 64 << 20, file_bytes_max: 1 << 20, believed_for: Duration::from_secs(10), serve_stale: false }
    }
}

impl CacheOptions {
    /// Keeps 64 MiB, and serves nothing that may be stale.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most bytes kept.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Sets the largest file kept, in bytes.
    #[must_use]
    pub fn with_file_bytes_max(mut self, file_bytes_max: u64) -> Self {
        self.file_bytes_max = file_bytes_max;
        self
    }

    /// Sets for how long something is served without asking while the feed is live.
    #[must_use]
    pub fn with_believed_for(mut self, believed_for: Duration) -> Self {
        self.believed_for = believed_for;
        self
    }

    /// Serves what is kept when the owner is away.
    #[must_use]
    pub fn with_serve_stale(mut self, serve_stale: bool) -> Self {
        self.serve_stale = serve_stale;
        self
    }
}

/// How far what a [`CachedBackend`] serves can be relied on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Staleness {
    /// Whether a feed tells of every change now. Without it everything kept is compared with the owner's version before it is served.
    pub is_live: bool,
    /// Since when the owner is away; none while it answers.
    pub away_since: Option<Timestamp>,
    /// How many answers were served that could not be compared with the owner's.
    pub stale_count: u64,
    /// How many bytes are kept.
    pub bytes: usize,
}

/// A tree whose files and listings are kept near.
///
/// Kept are whole files, entries and listings; a window of lines or a range of bytes is cut out of the whole file. Searches always
/// ask the owner, and every change goes to the owner first.
///
/// - Without a feed, a file that is kept is served after one `stat` of the owner that finds the same version; entries and listings are
///   asked for again.
/// - With a [feed](CachedBackend::with_feed) of changes, what is kept is served at once while the feed is live, for
///   [`CacheOptions::believed_for`] at the longest. A change is seen as soon as the feed tells of it; one made through this
///   tree at once. When the feed was lost or reset, everything is compared before it is served again.
/// - When the owner is away (`unavailable`, `deadline`), reads of what is kept are served if [`CacheOptions::serve_stale`] says
///   so. Each is counted by [`CachedBackend::staleness`] and told of by a `tracing` event at the level `WARN`.
///
/// One cache belongs to one opened tree and knows nothing of scopes: whoever opens a tree for each scope wraps each in a cache of its own.
///
/// Cost: as said, nothing or one look at the version; the memory is bounded by [`CacheOptions::bytes_max`].
pub struct CachedBackend<B> {
    owner: B,
    options: CacheOptions,
    shared: Arc<Shared>,
    feed: Mutex<FeedTask>,
}

/// What the calls and the feed share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    stale_count: AtomicU64,
}

#[derive(Debug)]
struct State {
    table: Table,
    /// The feed that tells of every change now, by its number.
    live: Option<u64>,
    feeds: u64,
    /// Since when the owner is away, and when that was seen last.
    away: Option<(Timestamp, Instant)>,
}

enum FeedTask {
    None,
    /// It begins with the first read.
    Waiting(BoxStream<'static, TreeNews>),
    Running(AbortHandle),
}

impl<B: Backend> CachedBackend<B> {
    /// Keeps what is read of a tree.
    pub fn new(owner: B, options: CacheOptions) -> Self {
        let state = State { table: Table::new(options.bytes_max), live: None, feeds: 0, away: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), stale_count: AtomicU64::new(0) });
        Self { owner, options, shared, feed: Mutex::new(FeedTask::None) }
    }

    /// Listens to what changes in the tree, from the first read on and as long as the cache lives, in a task of its own.
    #[must_use]
    pub fn with_feed(self, feed: BoxStream<'static, TreeNews>) -> Self {
        *self.feed.lock() = FeedTask::Waiting(feed);
        self
    }

    /// Returns the tree that is kept.
    pub fn owner(&self) -> &B {
        &self.owner
    }

    /// Tells how far what is served can be relied on.
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

    /// Returns what is known of a path, and whether it may be served without asking.
    fn known(&self, path: &VfsPath, kind: Kind) -> Option<(Known, bool)> {
        let mut state = self.shared.state.lock();
        let (known, stamp) = state.table.get(path, kind)?;
        let is_told_of = stamp.feed.is_some() && stamp.feed == state.live;
        Some((known, is_told_of && stamp.at.elapsed() < self.options.believed_for))
    }

    /// Tells whether the owner was away a moment ago and need not be waited for again.
    fn is_away_still(&self) -> bool {
        self.options.serve_stale && self.shared.state.lock().away.is_some_and(|(_, seen)| seen.elapsed() < AWAY_PAUSE)
    }

    /// Notes whether the owner answered, and tells whether it is away and what is kept may be served for it.
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
        tracing::warn!(%path, stale_count, owner = %self.owner, "the owner is away, what was kept is served and may be stale");
        Ok(kept)
    }

    fn begin(&self, path: &VfsPath) -> Fetch<'_> {
        let mut state = self.shared.state.lock();
        let stamp = Stamp { feed: state.live, at: Instant::now() };
        Fetch { shared: &self.shared, id: Some(state.table.begin_fetch(path)), stamp }
    }

    /// Reads from the owner: the whole file where it is small enough to be kept, else what was asked for.
    async fn fetch(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let fetch = self.begin(path);
        let whole = ReadOptions::new().with_bytes_max(self.options.file_bytes_max);
        match self.owner.read(path, &whole).await {
            Ok(read) => {
                let mut kept = read.clone();
                // What came may be a part of a larger buffer.
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
            // What was known before is of an earlier feed, and is compared before it is served.
            TreeNews::Reset => {
                self.feeds += 1;
                self.live = self.live.map(|_| self.feeds);
            }
            TreeNews::Lost => self.live = None,
        }
    }
}

/// A look at the owner that is under way.
struct Fetch<'a> {
    shared: &'a Shared,
    id: Option<u64>,
    /// What it will have known, if nothing changes meanwhile.
    stamp: Stamp,
}

impl Fetch<'_> {
    /// Keeps what came, unless it changed meanwhile.
    fn keep(mut self, path: &VfsPath, known: Known) {
        let mut state = self.shared.state.lock();
        if self.id.take().is_some_and(|id| state.table.end_fetch(id)) {
            state.table.insert(path, known, self.stamp);
        }
    }

    /// Notes that what is kept still holds, unless it changed meanwhile.
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

/// Forgets what a batch is about when it is over: done, failed, or given up by its caller.
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

/// Cuts what was asked for out of a whole file.
fn cut(path: &VfsPath, mut read: FileRead, options: &ReadOptions) -> Result<FileRead> {
    (read.content, read.window) = text::cut(&read.content, options).map_err(|error| error.at(path).during(OpKind::Read))?;
    Ok(read)
}

/// Returns the page of a whole listing that was asked for.
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
    fn capabilities(&self) -> Capabilities {
        self.owner.capabilities()
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.listen();
        let kept = match self.known(path, Kind::Entry) {
            Some((Known::Entry(entry), true)) => return Ok(entry),
            Some((Known::Entry(entry), false)) => Some(entry),
            _ => None,
        };
        if kept.is_some() && self.is_away_still() {
            return self.stale(path, kept).map(|entry| entry.expect("it was there a line ago"));
        }
        let fetch = self.begin(path);
        let answer = self.owner.stat(path).await;
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
        let answer = self.owner.stat(path).await;
        if self.is_away(&answer) {
            return self.stale(path, kept).and_then(|read| cut(path, read, options));
        }
        match answer {
            Ok(entry) if entry.kind == EntryKind::File && entry.version == Some(kept.version) => {
                fetch.renew(path, Kind::Content);
                cut(path, kept, options)
            }
            // Another version, or a directory by now: the owner says which.
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

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.owner.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.owner.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.owner.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        let _forget = Forget { shared: &self.shared, changes };
        self.owner.apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        self.owner.review(review).await
    }
}

/// Shows an error of the look at the version as one of the read it was made for.
fn read_error(error: Error, path: &VfsPath) -> Error {
    let error = if error.path().is_none() { error.at(path) } else { error };
    error.during(OpKind::Read)
}

#[cfg(test)]
mod laws;
