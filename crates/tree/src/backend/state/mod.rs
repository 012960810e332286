//! The state tier: a tree in memory with O(1) snapshots.
//!
//! The nodes live in pages of a persistent B+tree. A batch changes a clone of the tree, which is one pointer, and
//! replaces the tree if all of it succeeds. So readers never wait for writers and never see half a batch. Durability
//! comes from the checkpointer, which takes a [`StateSnapshot`] and writes the pages that are not saved yet. Saved
//! trees are loaded page by page on access.

mod cursor;
mod difference;
mod graft;
#[cfg(test)]
mod laws;
mod lineage;
mod load;
mod node;
mod page;
mod search;
mod snapshot;
mod transaction;
mod tree;

pub use difference::StateDifference;
pub use node::StateNode;
pub use snapshot::StateSnapshot;

use self::tree::Tree;
use crate::forward_backend;
pub(crate) use graft::Graft;
pub(crate) use lineage::Holder;
pub(crate) use load::PageSource;
pub(crate) use node::StoredBody;
pub(crate) use page::{Child, Link, Page, PageId, Row, Totals};
pub(crate) use tree::ENTRIES_MAX;

use self::transaction::StateTransaction;
use super::{Backend, flat};
use crate::backend::search_by_reading;
use async_trait::async_trait;
use parking_lot::RwLock;
use std::fmt;
use treehold_core::clock::Clock;
use treehold_core::error::Result;
use treehold_core::ops::{ApplyOptions, Capabilities, Change, Changed, OpKind, Review, SearchOptions, SearchResult, Sight, Version};
use treehold_core::path::VfsPath;
use treehold_store::whole_microseconds;

/// A tree in memory, kept by checkpoints.
///
/// Bodies are shared, so reads copy nothing. Versions follow the clock: a new backend's first version exceeds the microseconds since 1970
/// at its start. So after a crash, a restored tree never reissues a version that other content had before the crash.
///
/// Cost: a lookup is logarithmic in the number of files, a listing linear in the children, a change linear in the
/// content plus one lookup. A recursive delete counts its entries without a walk. An idle file takes its content plus
/// less than 300 bytes.
pub struct StateBackend {
    live: RwLock<Live>,
    /// Held during a batch, so that batches run one after the other. Readers do not take it.
    turn: tokio::sync::Mutex<()>,
    clock: Clock,
}

#[derive(Clone)]
struct Live {
    tree: Tree,
    /// The highest version issued.
    issued: u64,
}

impl StateBackend {
    /// Makes an empty tree.
    pub fn new() -> Self {
        Self::from_snapshot(&StateSnapshot::new())
    }

    /// Makes a tree that continues from a snapshot.
    ///
    /// Cost: O(1).
    pub fn from_snapshot(snapshot: &StateSnapshot) -> Self {
        Self::with_clock(snapshot, Clock::system())
    }

    /// Makes a tree that continues from a snapshot and reads the time from `clock`.
    pub fn with_clock(snapshot: &StateSnapshot, clock: Clock) -> Self {
        let started = u64::try_from(clock.now().as_microsecond()).unwrap_or(0);
        let tree = snapshot.tree.branch();
        let issued = tree.version().max(started);
        Self { live: RwLock::new(Live { tree, issued }), turn: tokio::sync::Mutex::new(()), clock }
    }

    /// Returns the current tree.
    ///
    /// Cost: O(1).
    pub fn snapshot(&self) -> StateSnapshot {
        StateSnapshot { tree: self.live.read().tree.clone() }
    }

    /// Returns the version of the newest change. It equals a snapshot's version as long as nothing has changed since
    /// the snapshot.
    pub fn version(&self) -> Version {
        Version::new(self.live.read().tree.version())
    }

    /// Returns about how many bytes of memory the pages and contents of a saved tree take that were loaded since the backend was
    /// made or restored.
    pub fn loaded_bytes(&self) -> u64 {
        self.live.read().tree.lineage().loaded_bytes()
    }

    /// Restores the tree to a snapshot. Versions issued since are not reused.
    ///
    /// Cost: O(1).
    pub async fn restore(&self, snapshot: &StateSnapshot) {
        self.pause().await.restore(snapshot);
    }

    /// Blocks changes until the guard is dropped; reads continue.
    pub async fn pause(&self) -> Paused<'_> {
        Paused { backend: self, _turn: self.turn.lock().await }
    }

    /// Applies changes like [`Backend::apply`]. Calls `publish` with the results and the version of the new tree just before readers see it:
    /// every snapshot with at least this version was taken after the call.
    ///
    /// # Errors
    /// Those of [`Backend::apply`]; `publish` is not called then.
    pub async fn apply_then(&self, changes: &[Change], publish: impl FnOnce(&[Changed], Version) + Send) -> Result<Vec<Changed>> {
        let _turn = self.turn.lock().await;
        let Live { tree, issued } = self.live.read().clone();
        loop {
            let mut transaction = StateTransaction::new(tree.clone(), whole_microseconds(self.clock.now()), issued);
            let done = flat::apply(&mut transaction, changes).await;
            if let Some(miss) = transaction.take_missed() {
                tree.load(miss).await?;
                continue;
            }
            let done = done?;
            let next = match transaction.finish() {
                Some((changed, issued)) => {
                    changed.check_entries(&tree).await.map_err(|error| error.at(changes[0].path()).during(OpKind::Apply))?;
                    Some(Live { tree: changed, issued })
                }
                None => None,
            };
            let done = done.into_iter().map(|done| done.resolve(|put| StateTransaction::version_of_put(issued, put)));
            let done: Vec<Changed> = done.collect();
            publish(&done, Version::new(next.as_ref().map_or(tree.version(), |next| next.tree.version())));
            if let Some(next) = next {
                self.replace(next);
            }
            return Ok(done);
        }
    }

    /// Replaces the tree. What only the old one held is freed after the lock is released.
    fn replace(&self, live: Live) {
        let old = std::mem::replace(&mut *self.live.write(), live);
        drop(old);
    }
}

/// A tree whose changes are blocked.
pub struct Paused<'b> {
    backend: &'b StateBackend,
    _turn: tokio::sync::MutexGuard<'b, ()>,
}

impl Paused<'_> {
    /// Restores the tree to a snapshot, like [`StateBackend::restore`].
    pub fn restore(self, snapshot: &StateSnapshot) {
        let issued = self.backend.live.read().issued.max(snapshot.tree.version());
        self.backend.replace(Live { tree: snapshot.tree.branch(), issued });
    }
}

impl Default for StateBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for StateBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StateBackend").field(&self.snapshot()).finish()
    }
}

impl fmt::Display for StateBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

#[async_trait]
impl Backend for StateBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    forward_backend! { self => self.snapshot(); stat, read, ls, glob, grep }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        search_by_reading(self, path, options).await
    }

    async fn apply(&self, changes: &[Change], _options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.apply_then(changes, |_, _| {}).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendExt;
    use jiff::Timestamp;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use treehold_core::error::ErrorKind;
    use treehold_core::ops::{Edit, WriteMode};
    use treehold_core::ops::{GlobOptions, GrepOptions, LsOptions, StatOptions};
    use treehold_core::path::VfsPath;
    use treehold_core::path::VfsPathBuf;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn ticking() -> (StateBackend, Arc<AtomicI64>) {
        let micros = Arc::new(AtomicI64::new(1_000_000));
        let source = micros.clone();
        let clock = Clock::from_fn(move || Timestamp::from_microsecond(source.load(Ordering::Relaxed)).expect("within the calendar"));
        (StateBackend::with_clock(&StateSnapshot::new(), clock), micros)
    }

    async fn names(tree: &impl Backend, of: &str) -> Vec<String> {
        let listing = tree.ls(&path(of), &LsOptions::new()).await.expect("a directory");
        listing.entries.iter().map(|entry| entry.name().to_owned()).collect()
    }

    #[tokio::test]
    async fn listing_skips_descendants_of_children() {
        let tree = StateBackend::new();
        for file in ["/a/x/1", "/a/x/y/2", "/a/x-/3", "/a/x.md", "/a/z", "/ab", "/b/c"] {
            tree.write(file, "").await.expect("written");
        }
        tree.create_dir("/a/empty").await.expect("made");
        assert_eq!(names(&tree, "/").await, ["a", "ab", "b"]);
        assert_eq!(names(&tree, "/a").await, ["empty", "x", "x-", "x.md", "z"]);
        assert_eq!(names(&tree, "/a/empty").await, Vec::<String>::new());
        let mut options = LsOptions::new().with_limit(2);
        let mut pages = Vec::new();
        loop {
            let listing = tree.ls(&path("/a"), &options).await.expect("a directory");
            pages.push(listing.entries.iter().map(|entry| entry.name().to_owned()).collect::<Vec<_>>());
            match listing.truncated {
                Some(truncation) => options.start_after = Some(truncation.cursor),
                None => break,
            }
        }
        assert_eq!(pages, [vec!["empty", "x"], vec!["x-", "x.md"], vec!["z"]]);
    }

    #[tokio::test]
    async fn long_batch_yields_to_other_tasks() {
        let tree = StateBackend::new();
        let write = |number: usize| Change::Write { path: path(&format!("/d/{number}")), content: "x".into(), mode: WriteMode::Overwrite };
        let batch: Vec<Change> = (0..5_000).map(write).collect();
        let (done, turns) = treehold_core::work::turns_during(tree.apply(&batch, &ApplyOptions::new())).await;
        assert!(done.is_ok() && turns > 0, "{turns}");
        tree.write("/large", "x".repeat(1 << 20)).await.expect("written");
        let edits = (0..50).map(|_| Edit::all("x", "x")).collect();
        let batch = [Change::Edit { path: path("/large"), edits, expect: None }];
        let (done, turns) = treehold_core::work::turns_during(tree.apply(&batch, &ApplyOptions::new())).await;
        assert!(done.is_ok() && turns > 0, "{turns}");
    }

    /// Regression: a batch of 2 MB created directories whose paths took 5.7 GB.
    #[tokio::test]
    async fn batch_creating_excessive_directory_paths_is_refused() {
        let tree = StateBackend::new();
        let make = |number: usize| Change::CreateDir { path: path(&format!("/{number}{}", "/d".repeat(1_000))) };
        let error = tree.apply(&(0..100).map(make).collect::<Vec<_>>(), &ApplyOptions::new()).await.expect_err("too many");
        assert_eq!((error.kind(), error.applied()), (ErrorKind::TooLarge, 0));
        assert_eq!(names(&tree, "/").await, Vec::<String>::new());
        tree.apply(&[make(1)], &ApplyOptions::new()).await.expect("a single change fits");
    }

    /// Regression: a few dozen copies, each including the earlier ones, could exceed any memory.
    #[tokio::test]
    async fn batch_of_nested_copies_beyond_the_bound_changes_nothing() {
        let tree = StateBackend::new();
        let write = |number: usize| Change::Write { path: path(&format!("/d/{number}")), content: "x".into(), mode: WriteMode::Overwrite };
        tree.apply(&(0..10_000).map(write).collect::<Vec<_>>(), &ApplyOptions::new()).await.expect("written");
        let double = |number: usize| {
            let (copy, within) = (path("/copy"), path(&format!("/d/copy-{number}")));
            [
                Change::Copy { from: path("/d"), to: copy.clone(), overwrite: false },
                Change::Rename { from: copy, to: within, overwrite: false },
            ]
        };
        let batch: Vec<Change> = (0..30).flat_map(double).collect();
        let error = tree.apply(&batch, &ApplyOptions::new()).await.expect_err("2^30 times ten thousand");
        assert_eq!((error.kind(), error.applied()), (ErrorKind::TooLarge, 0));
        assert_eq!(names(&tree, "/").await, ["d"]);
    }

    /// Regression: successive batches could create any number of directories.
    #[tokio::test]
    async fn tree_never_exceeds_its_entry_limit() {
        let tree = StateBackend::new();
        let make = |number: usize| Change::CreateDir { path: path(&format!("/d/{number}")) };
        tree.apply(&(0..50_000).map(make).collect::<Vec<_>>(), &ApplyOptions::new()).await.expect("made");
        let mut copies = 0;
        let error = loop {
            match tree.copy("/d", &format!("/copy-{copies}")).await {
                Ok(_) => copies += 1,
                Err(error) => break error,
            }
            assert!(copies < 20, "the tree grows without bound");
        };
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
        tree.create_dir("/more").await.expect("there is room for one");
        tree.delete_all("/d").await.expect("a change that shrinks the tree is allowed");
    }

    #[tokio::test]
    async fn failed_batch_leaves_the_tree_unchanged() {
        let tree = StateBackend::new();
        tree.write("/a", "old").await.expect("written");
        let before = tree.version();
        let batch = [
            Change::Write { path: path("/a"), content: "new".into(), mode: WriteMode::Overwrite },
            Change::Append { path: path("/a"), content: "er".into() },
            Change::Edit { path: path("/a"), edits: vec![Edit::new("missing", "")], expect: None },
        ];
        let error = tree.apply(&batch, &ApplyOptions::new()).await.expect_err("the third fails");
        assert_eq!((error.kind(), error.change(), error.applied()), (ErrorKind::NoMatch, Some(2), 0));
        assert_eq!((tree.read_text("/a").await.expect("a file").as_str(), tree.version()), ("old", before));
        let results = tree.apply(&batch[..2], &ApplyOptions::new()).await.expect("both succeed");
        assert_eq!(tree.read_text("/a").await.expect("a file"), "newer");
        assert_eq!(tree.stat(&path("/a"), &StatOptions::new()).await.expect("a file").version, results[1].version);
        assert_ne!(results[0].version, results[1].version);
    }

    #[tokio::test]
    async fn versions_are_not_reused_after_a_crash_or_restore() {
        let (tree, micros) = ticking();
        tree.write("/a", "one").await.expect("written");
        let saved = tree.snapshot();
        let lost = tree.write("/a", "two").await.expect("written").version;
        micros.fetch_add(10, Ordering::Relaxed);
        let clock = tree.clock.clone();
        let reopened = StateBackend::with_clock(&saved, clock);
        assert_eq!(reopened.version(), saved.version(), "nothing changed yet");
        let other = reopened.write("/a", "three").await.expect("written").version;
        assert_ne!(lost, other);
        tree.restore(&saved).await;
        assert_eq!(tree.version(), saved.version());
        let again = tree.write("/a", "four").await.expect("written").version;
        assert!(again > lost);
        tree.delete("/a").await.expect("deleted");
        assert!(tree.write("/a", "five").await.expect("written").version > again);
    }

    #[tokio::test]
    async fn times_follow_the_clock_and_overwrite_keeps_creation_time() {
        let (tree, micros) = ticking();
        tree.write("/d/a", "one").await.expect("written");
        micros.fetch_add(5, Ordering::Relaxed);
        tree.write("/d/a", "two").await.expect("written");
        micros.fetch_add(5, Ordering::Relaxed);
        tree.rename("/d/a", "/d/b").await.expect("moved");
        let entry = tree.stat(&path("/d/b"), &StatOptions::new()).await.expect("a file");
        let times = [entry.created_at, entry.modified_at].map(|time| time.expect("known").as_microsecond());
        assert_eq!(times, [1_000_000, 1_000_005]);
        tree.copy("/d/b", "/d/c").await.expect("copied");
        let entry = tree.stat(&path("/d/c"), &StatOptions::new()).await.expect("a file");
        assert_eq!(entry.created_at.expect("known").as_microsecond(), 1_000_010);
    }

    #[tokio::test]
    async fn snapshot_is_immutable_and_reports_differences() {
        let tree = StateBackend::new();
        for index in 0..1_000 {
            tree.write(&format!("/d{}/f{index}", index % 10), index.to_string()).await.expect("written");
        }
        let before = tree.snapshot();
        tree.write("/d3/f3", "changed").await.expect("written");
        tree.delete("/d4/f4").await.expect("deleted");
        tree.write("/new/file", "").await.expect("written");
        let after = tree.snapshot();
        let changes = after.differences(&before, None, 100).await.expect("it is in memory");
        let changes: Vec<String> = changes
            .iter()
            .map(|difference| match difference {
                StateDifference::Added(path, _) => format!("+{path}"),
                StateDifference::Changed(path, ..) => format!("~{path}"),
                StateDifference::Removed(path, _) => format!("-{path}"),
            })
            .collect();
        assert_eq!(changes, ["~/d3/f3", "-/d4/f4", "+/new", "+/new/file"]);
        assert_eq!(before.read_text("/d3/f3").await.expect("the state is unchanged"), "3");
        assert_eq!(before.write("/x", "").await.expect_err("it is immutable").kind(), ErrorKind::ReadOnly);
        let nodes = after.nodes(None, usize::MAX).await.expect("it is in memory");
        let size_bytes = nodes.iter().map(|(_, node)| node.size_bytes()).sum::<u64>();
        let totals = after.totals().await.expect("it is in memory");
        assert_eq!(totals, (nodes.len() as u64, size_bytes));
        let read_back = nodes.into_iter().map(|(path, node)| (path, (*node).clone()));
        let read_back = StateSnapshot::from_nodes(read_back, after.version()).expect("a whole tree");
        assert_eq!(read_back.differences(&after, None, 9).await.expect("it is in memory"), []);
        assert_eq!(read_back.totals().await.expect("it is in memory"), totals);
    }

    #[tokio::test]
    async fn differences_include_paths_that_changed_kind() {
        let tree = StateBackend::new();
        tree.write("/d/x/y", "").await.expect("written");
        tree.write("/f", "").await.expect("written");
        let before = tree.snapshot();
        tree.delete_all("/d/x").await.expect("deleted");
        tree.write("/d/x", "now a file").await.expect("written");
        tree.delete("/f").await.expect("deleted");
        tree.write("/f/g/h", "now beneath a directory").await.expect("written");
        let after = tree.snapshot();
        let shown = |differences: Vec<StateDifference>| -> Vec<String> {
            differences
                .iter()
                .map(|difference| match difference {
                    StateDifference::Added(path, node) => format!("+{path}{}", if node.is_directory() { "/" } else { "" }),
                    StateDifference::Changed(path, old, new) => format!("~{path} {} {}", old.is_directory(), new.is_directory()),
                    StateDifference::Removed(path, _) => format!("-{path}"),
                })
                .collect()
        };
        let forth = after.differences(&before, None, 100).await.expect("it is in memory");
        let back = before.differences(&after, None, 100).await.expect("it is in memory");
        assert_eq!(shown(forth.clone()), ["~/d/x true false", "-/d/x/y", "~/f false true", "+/f/g/", "+/f/g/h"]);
        assert_eq!(shown(back), ["~/d/x false true", "+/d/x/y", "~/f true false", "-/f/g", "-/f/g/h"]);
        assert_eq!(after.differences(&after, None, 100).await.expect("it is in memory"), []);
        let behind = after.differences(&before, Some(forth[1].path()), 2).await.expect("it is in memory");
        assert_eq!(behind, forth[2..4]);
    }

    /// The deepest possible tree. Nothing may recurse with its depth, so a small stack suffices.
    #[test]
    fn deepest_possible_tree_works_on_a_small_stack() {
        let deepest = "/d".repeat(treehold_core::path::PATH_BYTES_MAX / 2);
        let work = async move {
            let tree = StateBackend::new();
            tree.write(&deepest, "needle").await.expect("written");
            let before = tree.snapshot();
            tree.append(&deepest, "s").await.expect("appended");
            let after = tree.snapshot();
            assert_eq!(after.totals().await.expect("it is in memory").0, 2_048);
            assert_eq!(after.nodes(None, usize::MAX).await.expect("it is in memory").len(), 2_048);
            assert_eq!(after.differences(&before, None, usize::MAX).await.expect("it is in memory").len(), 1);
            assert_eq!(after.differences(&StateSnapshot::new(), None, usize::MAX).await.expect("it is in memory").len(), 2_048);
            assert_eq!(tree.grep(VfsPath::ROOT, &GrepOptions::new("needles")).await.expect("searched").files.len(), 1);
            assert_eq!(tree.glob(VfsPath::ROOT, &GlobOptions::new("**")).await.expect("searched").entries.len(), 1);
            drop((before, after));
            assert_eq!(tree.delete_all("/d").await.expect("deleted").entries, 2_048);
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be started");
        let thread =
            std::thread::Builder::new().stack_size(256 << 10).spawn(move || runtime.block_on(work)).expect("a thread can be started");
        thread.join().expect("nothing overflowed the stack");
    }

    #[tokio::test]
    async fn search_continues_after_any_cursor() {
        let tree = StateBackend::new();
        for file in ["/a/1", "/a/b/2", "/a/b/3", "/a/c", "/d", "/e/4"] {
            tree.write(file, "needle").await.expect("written");
        }
        let after = async |of: &str, pattern: &str, cursor: &str| -> Vec<String> {
            let options = GlobOptions::new(pattern).with_start_after(path(cursor));
            let found = tree.glob(&path(of), &options).await.expect("searched");
            found.entries.iter().map(|entry| entry.path.to_string()).collect()
        };
        assert_eq!(after("/", "**", "/a").await, ["/a/1", "/a/b/2", "/a/b/3", "/a/c", "/d", "/e/4"]);
        assert_eq!(after("/", "**", "/a/b/2").await, ["/a/b/3", "/a/c", "/d", "/e/4"]);
        assert_eq!(after("/", "**", "/a/b/2/gone/x").await, ["/a/b/3", "/a/c", "/d", "/e/4"]);
        assert_eq!(after("/", "**", "/a/bb/x").await, ["/a/c", "/d", "/e/4"]);
        assert_eq!(after("/", "a/**", "/a/b").await, ["/a/b/2", "/a/b/3", "/a/c"]);
        assert_eq!(after("/", "a/b/*", "/b").await, Vec::<String>::new());
        assert_eq!(after("/a", "**", "/").await, ["/a/1", "/a/b/2", "/a/b/3", "/a/c"]);
        assert_eq!(after("/a/b", "*", "/a/b/2").await, ["/a/b/3"]);
        tree.write("/.gitignore", "b/\n").await.expect("written");
        assert_eq!(after("/", "**", "/a/b/2").await, ["/a/c", "/d", "/e/4"]);
        assert_eq!(after("/", "a/b/*", "/a").await, Vec::<String>::new());
        assert_eq!(after("/a/b", "*", "/a").await, ["/a/b/2", "/a/b/3"], "the searched directory itself is never a cursor");
    }

    #[tokio::test]
    async fn snapshot_of_nodes_without_their_directory_is_refused() {
        let node = || StateNode::file("x", Version::new(1), Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        for (places, version) in [(vec!["/d/a"], 1), (vec!["/a", "/a/b"], 1), (vec!["/"], 1), (vec!["/a"], 0), (vec!["/a", "/a"], 1)] {
            let nodes = places.iter().map(|place| (path(place), node()));
            let error = StateSnapshot::from_nodes(nodes, Version::new(version)).expect_err("no tree");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{places:?}");
        }
    }
}
