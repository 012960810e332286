//! What changed: every change of a tree as an event with a position, kept in a [`Store`] and replayable by any process that shares it.
//!
//! Each tree that a mount leads to has a log of its own, so that whoever sees a tree sees its events and no others: two users whose
//! mounts lead to the same rows read the same log, and two users of one path to different rows do not.
//!
//! | namespace | whose events |
//! | --- | --- |
//! | `events/rows/{namespace}` | files in the rows of a namespace |
//! | `events/directory/{path}` | files of a directory of the host |
//! | `events/{kind}/{name}` | another tree that a workspace names |
//! | `threads/events/{tenant}/{user}` | the states of a user's threads |
//!
//! An event is an [append](crate::store::BatchWrite::Append): its key is its version, so a log is in the order of commits, and a position
//! in one is a position in all of the store. Where the files of a tree lie in the same store the event is committed with the change, both or
//! neither; that of a thread's state with the checkpoint that makes the change last. Of other trees (a directory of the host, another
//! server, another store) it is committed after the change and before the answer: a process that dies in between leaves a change without an
//! event, which [`Feed::lost`] counts where it can. What other programs do to a directory of the host is not seen.
//!
//! Start with [`Feed`]. Writing: `announce.rs` stands around each mount, `outbox.rs` is what it hands down. Reading: `view.rs` is what a reader
//! sees, `tail.rs` follows.

mod announce;
mod outbox;
mod tail;
mod view;

pub(crate) use announce::Announce;
pub(crate) use outbox::{Draft, Outbox};
pub use tail::FeedTail;
pub use view::FeedView;

use crate::error::{Error, ErrorKind, Result};
use crate::ops::{OpKind, Version};
use crate::path::VfsPathBuf;
use crate::scope::Scope;
use crate::store::{Namespace, ScanEntry, ScanOptions, Store, is_same, log_key};
use futures::future::try_join_all;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The first component of the namespaces of logs, which no route has.
pub const EVENTS_NAMESPACE: &str = crate::store::reserved::EVENTS;

/// How long events are kept by default: a week.
pub const KEEP: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How many rows of a log are read at once.
const ROWS: usize = 500;

/// How many rows of a log are read for one page at most, whatever of them the reader sees.
const ROWS_MAX: usize = 10_000;

/// How many positions the first look back goes.
const LOOK_BACK: u64 = 1_024;

/// How many events of a look back are read at most before a shorter one is tried.
const LOOK_BACK_ROWS: usize = 5_000;

/// How many rows of logs a look back reads before it says how far it came.
const LOOK_BACK_ROWS_MAX: usize = 50_000;

/// The longest name of a tree that its namespace holds as it is.
const NAME_BYTES_MAX: usize = 200;

/// What was done at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeedKind {
    /// A file was made or replaced.
    Write,
    /// A file grew.
    Append,
    /// Parts of a file were replaced.
    Edit,
    /// A directory was made.
    CreateDir,
    /// A file or directory went, with all beneath it.
    Delete,
    /// A file or directory, with all beneath it, is at the target now.
    Rename,
    /// A file or directory, with all beneath it, is at the target too.
    Copy,
    /// The state of a thread is another: a checkpoint was restored or merged into it, or so much changed at once that it is not told apart.
    Restore,
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
    /// Where it stands among all events of the store: it grows from commit to commit.
    pub position: Version,
    /// What was changed, in the reader's paths.
    pub path: VfsPathBuf,
    /// How.
    pub operation: FeedKind,
    /// Where a rename or copy led.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<VfsPathBuf>,
    /// The version of the file after the change, where there is one file and its tree told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// The thread that it was made in, if that is one of the reader's own user. A change of a thread's state is seen in that thread alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Who acted, if it was for the reader's own user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct FeedPage {
    /// The events.
    pub events: Vec<FeedEvent>,
    /// Where the page ends: to go on from.
    pub position: Version,
    /// There may be more beyond it.
    pub more: bool,
}

/// Where the changes of trees are kept, and read again.
///
/// All methods fail with what the store fails with.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use stratafs::feed::{Feed, FeedKind};
/// use stratafs::store::MemoryStore;
/// use stratafs::ops::Version;
/// use stratafs::{BackendExt, Namespace, Scope, StoreBackend, Workspace};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
/// let store = Arc::new(MemoryStore::new());
/// let (rows, notes) = (store.clone(), Namespace::parse("notes")?);
/// let (of_watch, same) = (store.clone(), notes.clone());
/// let workspace = Workspace::builder()
///     .mount("/notes", move |_| Ok(Arc::new(StoreBackend::new(rows.clone(), notes.clone()))))?
///     .watched("/notes", move |_| Ok((of_watch.clone(), same.clone())))?
///     .feed(Feed::new(store))
///     .build();
/// let scope = Scope::new().with_thread("t");
/// let written = workspace.session(scope.clone()).await?.backend().write("/notes/a.md", "text").await?;
///
/// let feed = workspace.feed().expect("changes are kept");
/// let page = feed.after(&workspace.feed_view(&scope)?, Version::new(0), 10).await?;
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
    /// Keeps events in a store, for a week.
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

    /// Returns how many changes were made whose events could not be kept.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Tells whether events are kept in a store.
    pub(crate) fn is_in(&self, store: &Arc<dyn Store>) -> bool {
        is_same(&self.store, store)
    }

    /// Returns the log of the files in the rows of a namespace of the store that events are kept in.
    ///
    /// # Errors
    /// As [`Feed::log`].
    pub fn log_of_rows(rows: &Namespace) -> Result<Namespace> {
        Self::log("rows", &rows.to_string())
    }

    /// Returns the log of another tree, by what it is and which.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a kind that is no component of a namespace.
    pub fn log(kind: &str, name: &str) -> Result<Namespace> {
        if !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control) {
            return Namespace::new([EVENTS_NAMESPACE, kind, name]);
        }
        // One component more, so it is never that of a name.
        Namespace::new([EVENTS_NAMESPACE, kind, "#", blake3::hash(name.as_bytes()).to_hex().as_str()])
    }

    /// Returns the log of the states of a user's threads.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a scope that is not sound.
    pub fn log_of_threads(scope: &Scope) -> Result<Namespace> {
        crate::checkpoint::namespace_of(scope, "events")
    }

    /// Returns the position of what happens last: what is read after it happened later.
    ///
    /// Cost: one round trip.
    pub async fn position(&self) -> Result<Version> {
        self.store.current_version().await
    }

    /// Returns the events after a position, the oldest first; the page ends where nothing before it can come any more.
    ///
    /// Cost: two round trips, and for each tree of the view one scan that grows with the limit.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for an event that cannot be read back.
    pub async fn after(&self, view: &FeedView, after: Version, limit: usize) -> Result<FeedPage> {
        // Commits become visible in the order of their versions, so what is at or before this one is seen by every scan from here on.
        let until = self.position().await?;
        Ok(self.between(view, after, until.max(after), limit, None).await?.page)
    }

    /// Returns the events before a position (the newest of all without one), the newest first, back to those that were committed at a time. A page
    /// may have a few more than `limit`, all of one position, and may have fewer though there are more.
    ///
    /// Cost: as [`Feed::after`], some times over where events are rare; some 50,000 rows of the logs at most, whatever of them is seen.
    ///
    /// # Errors
    /// As [`Feed::after`].
    pub async fn before(&self, view: &FeedView, before: Option<Version>, since: Option<Timestamp>, limit: usize) -> Result<FeedPage> {
        let newest = self.position().await?;
        let mut end = before.map_or(newest, |before| Version::new(before.number().saturating_sub(1)).min(newest));
        let mut events: Vec<FeedEvent> = Vec::new();
        let (mut width, mut rows) = (LOOK_BACK, 0);
        while end > Version::new(0) && limit > 0 {
            let start = Version::new(end.number().saturating_sub(width));
            let look = self.between(view, start, end, LOOK_BACK_ROWS, since).await?;
            rows += look.rows;
            if look.page.more && width > 1 {
                // Too many for one look: the newest of them are in the later half.
                width /= 2;
                continue;
            }
            for event in look.page.events.into_iter().rev() {
                // All of one position: who goes on before it has seen what is at it.
                if events.len() >= limit && events.last().is_some_and(|last| last.position != event.position) {
                    break;
                }
                events.push(event);
            }
            if let Some(last) = events.last().filter(|_| events.len() >= limit) {
                let position = last.position;
                return Ok(FeedPage { events, position, more: position > Version::new(1) });
            }
            if look.is_over {
                break;
            }
            end = start;
            if rows > LOOK_BACK_ROWS_MAX && end > Version::new(0) {
                return Ok(FeedPage { events, position: Version::new(end.number() + 1), more: true });
            }
            width = width.saturating_mul(8);
        }
        Ok(FeedPage { events, position: Version::new(0), more: false })
    }

    /// Follows the events after a position.
    ///
    /// Cost: one watch for each tree of the view; each wake-up that of [`Feed::after`].
    pub async fn follow(self: &Arc<Self>, view: FeedView, after: Version) -> Result<FeedTail> {
        FeedTail::new(self.clone(), view, after).await
    }

    /// Returns the events after one position and up to another, at which all before it are visible; of them those that were committed at a time
    /// or later.
    async fn between(&self, view: &FeedView, after: Version, until: Version, limit: usize, since: Option<Timestamp>) -> Result<Look> {
        let page = |events, position: Version| FeedPage { events, position, more: position < until };
        if limit == 0 || after >= until {
            return Ok(Look { page: page(Vec::new(), after), rows: 0, is_over: false });
        }
        let scans = view.places.iter().map(|place| self.scan(view, place, (after, until), limit, since));
        let (mut reach, mut rows, mut is_over) = (until, 0, false);
        let mut found = Vec::new();
        for scanned in try_join_all(scans).await? {
            found.extend(scanned.events);
            reach = reach.min(scanned.reach);
            rows += scanned.rows;
            is_over |= scanned.is_over;
        }
        // Where two mounts lead to one tree, an event is there once for each.
        found.sort_by(|a: &FeedEvent, b| (a.position, &a.path).cmp(&(b.position, &b.path)));
        if let Some(cut) = found.get(limit).map(|event| event.position) {
            // All of one position, or none: who goes on from a position has seen what is at it.
            let first = found.partition_point(|event| event.position < cut);
            let whole = if first == 0 { found.partition_point(|event| event.position <= cut) } else { first };
            found.truncate(whole);
            reach = reach.min(found.last().map_or(after, |event| event.position));
        }
        found.retain(|event| event.position <= reach);
        Ok(Look { page: page(found, reach), rows, is_over })
    }

    /// Reads the log of one tree after one position and up to another.
    async fn scan(
        &self,
        view: &FeedView,
        place: &view::FeedPlace,
        (after, until): (Version, Version),
        limit: usize,
        since: Option<Timestamp>,
    ) -> Result<Scanned> {
        let mut options =
            ScanOptions::new().with_start_after(log_key(after)).with_values(true).with_limit(ROWS.min(limit.saturating_add(1)));
        let mut scanned = Scanned { events: Vec::new(), reach: until, rows: 0, is_over: false };
        loop {
            let page = self.store.scan(&place.log, options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                if item.version > until {
                    return Ok(scanned);
                }
                scanned.rows += 1;
                if since.is_some_and(|since| item.modified_at < since) {
                    scanned.is_over = true;
                } else {
                    let row: outbox::Row = serde_json::from_slice(&item.value).map_err(|error| {
                        Error::new(ErrorKind::Corrupt, "an event cannot be read back; it is left as it is").with_source(error)
                    })?;
                    scanned.events.extend(view.show(place, row, item.version));
                }
                if scanned.events.len() > limit || scanned.rows == ROWS_MAX {
                    scanned.reach = item.version;
                    return Ok(scanned);
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return Ok(scanned),
            }
        }
    }
}

/// What was found between two positions.
struct Look {
    page: FeedPage,
    /// How many rows were read for it.
    rows: usize,
    /// Some were committed before the time that is asked for.
    is_over: bool,
}

/// What was found in one log.
struct Scanned {
    events: Vec<FeedEvent>,
    /// Up to where it was read.
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
