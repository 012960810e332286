//! The change feed: every change of a tree as an event with a position, stored in a [`Store`] and readable by any process that
//! shares it.
//!
//! Each mounted tree has a log of its own, so that whoever sees a tree sees its events and no others. Two users whose mounts lead
//! to the same rows read the same log; two users whose mounts at one path lead to different rows do not.
//!
//! | namespace | events of |
//! | --- | --- |
//! | `{partition}/events/rows/{name}` | files in the rows of a namespace |
//! | `events/directory/{path}` | files in a host directory |
//! | `events/{kind}/{name}` | another tree that a workspace names |
//! | `{tenant}/{user}/threads/events` | the states of a user's threads |
//!
//! An event is an [append](treehold_store::BatchWrite::Append) and its key is its version. So a log is in commit order, and so are all logs
//! of one partition. A view may have logs in several partitions, whose versions say nothing about each other: a [`FeedPosition`] has one for
//! each, and pages merge them by the times of the commits. If the files of a tree are in the same store, the event is committed
//! atomically with the change; for a thread's state, with the checkpoint that persists the change. For other trees (a host
//! directory, another server, another store or partition), the event is committed after the change and before the call returns.
//! A process that dies in between leaves a change without an event; failures short of that are counted by [`Feed::lost`].
//! Changes that other programs make to a host directory are not recorded.
//!
//! Start with [`Feed`]. Writing: `announce.rs` wraps each mount, and `events.rs` is the outbox entry that it adds to changes. Reading:
//! `view.rs` defines what a reader sees, `merge.rs` makes a page of several partitions, `tail.rs` follows the feed, and `news.rs` reports it
//! to code that keeps a copy of a tree.

mod announce;
mod elsewhere;
mod events;
mod merge;
mod news;
mod position;
mod tail;
mod view;

pub(crate) use announce::{Announce, FeedLog};
pub(crate) use elsewhere::Elsewhere;
pub(crate) use events::{Draft, Events};
pub use position::FeedPosition;
pub use tail::FeedTail;
pub use view::FeedView;

use merge::{FoundPage, Order, Run, merge};
use view::{FeedPart, FeedPlace};

use futures::future::try_join_all;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{OpKind, Version};
use treehold_core::path::VfsPathBuf;
use treehold_core::scope::Scope;
use treehold_store::{Namespace, ScanEntry, ScanOptions, Store, event_log, is_same, log_key};

/// The namespace that contains all logs.
pub const EVENTS_NAMESPACE: [&str; 2] = treehold_core::reserved::EVENTS;

/// How long events are kept by default: one week.
pub const KEEP: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How many rows of a log are read at once.
const ROWS: usize = 500;

/// The most rows of a log read for one page, whether or not the reader sees them.
const ROWS_MAX: usize = 10_000;

/// How many positions the first step back covers.
const LOOK_BACK: u64 = 1_024;

/// The most events read for one step back before a smaller step is tried.
const LOOK_BACK_ROWS: usize = 5_000;

/// How many log rows a search backwards reads before it returns a partial page.
const LOOK_BACK_ROWS_MAX: usize = 50_000;

/// The longest tree name, in bytes, that is used in a namespace verbatim.
const NAME_BYTES_MAX: usize = 200;

/// What happened at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeedKind {
    /// A file was created or replaced.
    Write,
    /// Content was added to the end of a file.
    Append,
    /// Parts of a file were replaced.
    Edit,
    /// A directory was created.
    CreateDir,
    /// A file or directory was deleted, with everything beneath it.
    Delete,
    /// A file or directory was moved to the target, with everything beneath it.
    Rename,
    /// A file or directory was copied to the target, with everything beneath it.
    Copy,
    /// The state of a thread was replaced: a checkpoint was restored, the thread was removed, or there were too many changes at once to
    /// list them.
    Restore,
    /// A checkpoint of another thread was merged into the state of a thread.
    Merge,
    /// A thread was started with the state of another, as a fork or a copy.
    Fork,
}

impl FeedKind {
    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Append => "append",
            Self::Edit => "edit",
            Self::CreateDir => "create_dir",
            Self::Delete => "delete",
            Self::Rename => "rename",
            Self::Copy => "copy",
            Self::Restore => "restore",
            Self::Merge => "merge",
            Self::Fork => "fork",
        }
    }

    fn of(kind: OpKind) -> Self {
        match kind {
            OpKind::Append => Self::Append,
            OpKind::Edit => Self::Edit,
            OpKind::CreateDir => Self::CreateDir,
            OpKind::Delete => Self::Delete,
            OpKind::Rename => Self::Rename,
            OpKind::Copy => Self::Copy,
            _ => Self::Write,
        }
    }
}

impl fmt::Display for FeedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct FeedEvent {
    /// The version of the commit that added the event. It grows with each commit in the partition of the event's log.
    pub position: Version,
    /// The path that changed, as the reader sees it.
    pub path: VfsPathBuf,
    /// What happened.
    pub operation: FeedKind,
    /// The target of a rename or copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<VfsPathBuf>,
    /// The version of the file after the change, if it was a single file and its tree reports versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// The thread that made the change, if it belongs to the reader's user. Changes of a thread's state are visible only in that
    /// thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Who made the change, if it was made for the reader's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// When the change was made.
    pub at: Timestamp,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct FeedPage {
    /// The events.
    pub events: Vec<FeedEvent>,
    /// The end of the page, from which the next page continues.
    pub position: FeedPosition,
    /// Whether there may be more events.
    pub more: bool,
}

/// Stores and reads the changes of trees.
///
/// All methods may fail with the errors of the store.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_agent::feed::{Feed, FeedKind, FeedPosition};
/// use treehold_store::MemoryStore;
/// use treehold_agent::workspace::Workspace;
/// use treehold_core::Scope;
/// use treehold_store::Namespace;
/// use treehold_tree::backend::{BackendExt, StoreBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let store = Arc::new(MemoryStore::new());
/// let (rows, notes) = (store.clone(), Namespace::parse("notes")?);
/// let (of_watch, same) = (store.clone(), notes.clone());
/// let workspace = Workspace::builder()
///     .mount("/notes", move |_| Ok(Arc::new(StoreBackend::new(rows.clone(), notes.clone()))))?
///     .with_change_source("/notes", move |_| Ok((of_watch.clone(), same.clone())))?
///     .feed(Feed::new(store))
///     .build();
/// let scope = Scope::new().with_thread("t");
/// let written = workspace.session(scope.clone()).await?.backend().write("/notes/a.md", "text").await?;
///
/// let feed = workspace.feed().expect("changes are kept");
/// let page = feed.after(&workspace.feed_view(&scope)?, &FeedPosition::start(), 10).await?;
/// assert_eq!(page.events[0].path.as_str(), "/notes/a.md");
/// assert_eq!((page.events[0].operation, page.events[0].version), (FeedKind::Write, written.version));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Feed {
    store: Arc<dyn Store>,
    keep: Duration,
    lost: AtomicU64,
}

impl Feed {
    /// Creates a feed that keeps events in a store for one week.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, keep: KEEP, lost: AtomicU64::new(0) }
    }

    /// Sets how long events are kept.
    #[must_use]
    pub fn with_keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Returns how long events are kept.
    pub fn keep(&self) -> Duration {
        self.keep
    }

    /// Returns the number of changes whose events could not be stored.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns whether events are kept in the given store.
    pub(crate) fn is_in(&self, store: &Arc<dyn Store>) -> bool {
        is_same(&self.store, store)
    }

    /// Returns the log of files in the rows of a namespace, if those rows are in the same store as the events. It is in their partition, so
    /// that they change together.
    pub fn log_of_rows(rows: &Namespace) -> Namespace {
        event_log(rows)
    }

    /// Returns the log of another tree, by its kind and name.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the kind is not a legal namespace component.
    pub fn log(kind: &str, name: &str) -> Result<Namespace> {
        if !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control) {
            return Namespace::new(EVENTS_NAMESPACE.into_iter().chain([kind, name]));
        }
        // One more component keeps hashes apart from names.
        let hash = blake3::hash(name.as_bytes()).to_hex();
        Namespace::new(EVENTS_NAMESPACE.into_iter().chain([kind, "#", hash.as_str()]))
    }

    /// Returns the log of the states of a user's threads.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid scope.
    pub fn log_of_threads(scope: &Scope) -> Result<Namespace> {
        treehold_tree::checkpoint::namespace_of(scope, "events")
    }

    /// Returns the current end of the feed of a view. Every event up to it is visible to later reads.
    ///
    /// Cost: one round trip for each partition of the view, all at once.
    pub async fn position(&self, view: &FeedView) -> Result<FeedPosition> {
        let mut position = FeedPosition::start();
        for (part, version) in self.newest(&view.parts()).await? {
            position.set(part.label, version);
        }
        Ok(position)
    }

    /// Reads the counter of each partition.
    async fn newest<'p, 'v>(&self, parts: &'p [FeedPart<'v>]) -> Result<Vec<(&'p FeedPart<'v>, Version)>> {
        try_join_all(parts.iter().map(|part| async move { Ok((part, self.store.current_version(&part.partition).await?)) })).await
    }

    /// Returns the events after a position, oldest first. No event can appear later within the returned page. Events of one partition are in
    /// the order of their commits; those of several are merged by the times of their commits.
    ///
    /// Cost: two round trips, plus one scan for each tree of the view that is proportional to the limit.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) if an event cannot be decoded. [`InvalidArgument`](ErrorKind::InvalidArgument) for a plain version that
    /// lies beyond one of several partitions.
    pub async fn after(&self, view: &FeedView, after: &FeedPosition, limit: usize) -> Result<FeedPage> {
        self.found_after(view, after, limit).await.map(Into::into)
    }

    async fn found_after(&self, view: &FeedView, after: &FeedPosition, limit: usize) -> Result<FoundPage> {
        let parts = view.parts();
        // Commits of a partition become visible in version order, so every scan from here on sees all events up to its version.
        let newest = self.newest(&parts).await?;
        check_plain(after, &newest, 0)?;
        let looks = newest.into_iter().map(|(part, newest)| async move {
            let start = after.of(part.label);
            self.between(view, part, start, newest.max(start), limit, None).await.map(|look| Run::new(part.label, start, look))
        });
        Ok(merge(try_join_all(looks).await?, limit, Order::OldestFirst))
    }

    /// Returns the events before a position, or the latest if there is none, newest first, back to those committed at `since`. A
    /// page may exceed `limit` to keep events of one commit together, and may be shorter even if there are more events.
    ///
    /// Cost: like [`Feed::after`], several times if events are rare. Reads at most about 50,000 log rows of each partition, whether or not
    /// they are visible.
    ///
    /// # Errors
    /// As [`Feed::after`].
    pub async fn before(&self, view: &FeedView, before: Option<&FeedPosition>, since: Option<Timestamp>, limit: usize) -> Result<FeedPage> {
        let parts = view.parts();
        let newest = self.newest(&parts).await?;
        if let Some(before) = before {
            // A page backwards begins after the newest event.
            check_plain(before, &newest, 1)?;
        }
        let looks = newest.into_iter().map(|(part, newest)| async move {
            let end = Version::new(newest.number() + 1);
            let end = before.and_then(|before| before.before(part.label)).map_or(end, |before| before.min(end));
            self.back(view, part, end, since, limit).await.map(|look| Run::new(part.label, end, look))
        });
        Ok(merge(try_join_all(looks).await?, limit, Order::NewestFirst).into())
    }

    /// Returns the newest events of a partition before a version, newest first. The position of what it returns is where the next look
    /// continues.
    async fn back(&self, view: &FeedView, part: &FeedPart<'_>, before: Version, since: Option<Timestamp>, limit: usize) -> Result<Look> {
        let mut end = Version::new(before.number().saturating_sub(1));
        let mut events: Vec<Found> = Vec::new();
        let (mut width, mut rows) = (LOOK_BACK, 0);
        while end > Version::new(0) {
            if events.len() >= limit {
                break;
            }
            let start = Version::new(end.number().saturating_sub(width));
            let look = self.between(view, part, start, end, LOOK_BACK_ROWS, since).await?;
            rows += look.rows;
            if look.more && width > 1 {
                // Too many for one step: the newest of them are in its later half.
                width /= 2;
                continue;
            }
            events.extend(look.events.into_iter().rev());
            end = if look.is_over { Version::new(0) } else { start };
            if rows > LOOK_BACK_ROWS_MAX {
                break;
            }
            width = width.saturating_mul(8);
        }
        let position = if end > Version::new(0) { Version::new(end.number() + 1) } else { end };
        Ok(Look { events, position, more: end > Version::new(0), rows, is_over: false })
    }

    /// Follows the events after a position.
    ///
    /// Cost: one watch for each tree of the view; each wake-up costs as much as [`Feed::after`].
    ///
    /// # Errors
    /// As [`Feed::after`].
    pub async fn follow(self: &Arc<Self>, view: FeedView, after: FeedPosition) -> Result<FeedTail> {
        if after.is_plain() {
            check_plain(&after, &self.newest(&view.parts()).await?, 0)?;
        }
        FeedTail::new(self.clone(), view, after).await
    }

    /// Returns the events of a partition after one version and up to another, restricted to those committed at `since` or later. Everything
    /// up to `until` must be visible already.
    async fn between(
        &self,
        view: &FeedView,
        part: &FeedPart<'_>,
        after: Version,
        until: Version,
        limit: usize,
        since: Option<Timestamp>,
    ) -> Result<Look> {
        if limit == 0 || after >= until {
            return Ok(Look { events: Vec::new(), position: after, more: after < until, rows: 0, is_over: false });
        }
        let scans = part.places.iter().map(|place| self.scan(view, place, (after, until), limit, since));
        let (mut reach, mut rows, mut is_over) = (until, 0, false);
        let mut found = Vec::new();
        for scanned in try_join_all(scans).await? {
            found.extend(scanned.events);
            reach = reach.min(scanned.reach);
            rows += scanned.rows;
            is_over |= scanned.is_over;
        }
        // If two mounts lead to one tree, each event appears once for each of them.
        found.sort_by(|a: &Found, b| (a.event.position, &a.event.path).cmp(&(b.event.position, &b.event.path)));
        if let Some(cut) = found.get(limit).map(|found| found.event.position) {
            // Keep events of one position together, because the next page continues after that position.
            let first = found.partition_point(|found| found.event.position < cut);
            let whole = if first == 0 { found.partition_point(|found| found.event.position <= cut) } else { first };
            found.truncate(whole);
            reach = reach.min(found.last().map_or(after, |found| found.event.position));
        }
        found.retain(|found| found.event.position <= reach);
        Ok(Look { events: found, position: reach, more: reach < until, rows, is_over })
    }

    /// Reads the log of one tree after one position and up to another.
    async fn scan(
        &self,
        view: &FeedView,
        place: &FeedPlace,
        (after, until): (Version, Version),
        limit: usize,
        since: Option<Timestamp>,
    ) -> Result<Scanned> {
        let mut options =
            ScanOptions::new().with_start_after(log_key(after)).with_values(true).with_limit(ROWS.min(limit.saturating_add(1)));
        let mut scanned = Scanned { events: Vec::new(), reach: until, rows: 0, is_over: false };
        loop {
            let page = self.store.scan(&place.log, options.clone()).await?;
            let (mut rows, mut is_end) = (Vec::with_capacity(page.entries.len()), page.next.is_none());
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                if item.version > until {
                    is_end = true;
                    break;
                }
                let is_over = since.is_some_and(|since| item.modified_at < since);
                rows.push((item.version, item.modified_at, (!is_over).then(|| serde_json::from_slice::<events::Row>(&item.value))));
            }
            let hidden = view.hidden(place, rows.iter().filter_map(|(_, _, row)| row.as_ref()?.as_ref().ok())).await?;
            for (version, committed_at, row) in rows {
                scanned.rows += 1;
                match row {
                    None => scanned.is_over = true,
                    Some(row) => {
                        let row = row
                            .map_err(|error| Error::new(ErrorKind::Corrupt, "an event in the feed cannot be decoded").with_source(error))?;
                        let events = view.show(place, row, version, &hidden).into_iter();
                        scanned.events.extend(events.map(|event| Found { event, committed_at }));
                    }
                }
                if scanned.events.len() > limit || scanned.rows == ROWS_MAX {
                    scanned.reach = version;
                    return Ok(scanned);
                }
            }
            match page.next {
                Some(next) if !is_end => options.start_after = Some(next),
                _ => return Ok(scanned),
            }
        }
    }
}

/// Refuses a plain version that lies more than `margin` beyond one of several partitions: it would skip the next events there, or backwards
/// repeat the newest.
fn check_plain(position: &FeedPosition, newest: &[(&FeedPart<'_>, Version)], margin: u64) -> Result<()> {
    let is_within = |(part, newest): &(&FeedPart<'_>, Version)| position.of(part.label).number() <= newest.number().saturating_add(margin);
    if !position.is_plain() || newest.len() < 2 || newest.iter().all(is_within) {
        return Ok(());
    }
    let message = "this number is a position in one partition, and this tree has changes in several; continue from the position of a page, or \
                   from 0";
    Err(Error::invalid_argument(message))
}

/// An event, and when it was committed.
#[derive(Debug)]
struct Found {
    event: FeedEvent,
    committed_at: Timestamp,
}

/// Some events of one partition, in order.
struct Look {
    events: Vec<Found>,
    /// Where the next look continues.
    position: Version,
    /// Whether there may be more.
    more: bool,
    /// How many rows were read.
    rows: usize,
    /// Whether some events were committed before `since`.
    is_over: bool,
}

/// The events of one log.
struct Scanned {
    events: Vec<Found>,
    /// The position up to which the log was read.
    reach: Version,
    rows: usize,
    is_over: bool,
}

impl fmt::Display for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Feed({})", self.store)
    }
}

#[cfg(test)]
mod tests;
