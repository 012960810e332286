//! Random histories of a tree, compared with plain maps: every version, the tree at every time, and undo.

use super::*;
use crate::backend::{Backend, BackendExt, RecordedCall, StateBackend};
use bytes::Bytes;
use jiff::Timestamp;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use treehold_core::clock::Clock;
use treehold_core::ops::{ApplyOptions, Author, Change, Edit, GlobOptions, ReadOptions, Version, WriteMode};
use treehold_core::path::VfsPathBuf;
use treehold_store::{MemoryStore, Store};

/// How many contents of each path are kept.
const KEEP_LAST: usize = 6;

/// The files of a tree with their contents and, in the tree without a history, their versions.
type Files = BTreeMap<VfsPathBuf, (Bytes, Version)>;

pub(super) fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

pub(super) fn namespace() -> Namespace {
    Namespace::parse("ada/notes").expect("legal")
}

/// A store whose clock the test moves.
pub(super) fn store() -> (Arc<dyn Store>, Arc<AtomicI64>) {
    let micros = Arc::new(AtomicI64::new(Timestamp::now().as_microsecond()));
    let source = micros.clone();
    let clock = Clock::from_fn(move || Timestamp::from_microsecond(source.load(Ordering::Relaxed)).expect("within the calendar"));
    (Arc::new(MemoryStore::with_clock(clock)), micros)
}

struct Random(TestRng);

impl Random {
    fn new(seed: u8) -> Self {
        Self(TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    fn path(&mut self) -> VfsPathBuf {
        // Few names, so that changes meet.
        let depth = 1 + self.below(3);
        let names: Vec<&str> = (0..depth).map(|_| ["a", "b", "c", "a-"][self.below(4) as usize]).collect();
        path(&format!("/{}", names.join("/")))
    }

    fn content(&mut self) -> Bytes {
        // Few contents, so that they recur.
        format!("content {}\n", self.below(5)).repeat(self.below(4) as usize).into()
    }

    fn change(&mut self) -> Change {
        match self.below(20) {
            0..9 => Change::Write { path: self.path(), content: self.content(), mode: WriteMode::Overwrite },
            9..11 => Change::Write { path: self.path(), content: self.content(), mode: WriteMode::CreateNew },
            11..13 => Change::Append { path: self.path(), content: self.content() },
            13 => Change::Edit { path: self.path(), edits: vec![Edit::all("content", "text")], expect: None },
            14..16 => Change::Delete { path: self.path(), recursive: true, expect: None },
            16..18 => Change::Rename { from: self.path(), to: self.path(), overwrite: true },
            18 => Change::Copy { from: self.path(), to: self.path(), overwrite: true },
            _ => Change::CreateDir { path: self.path() },
        }
    }
}

async fn files(tree: &StateBackend) -> Files {
    let nodes = tree.snapshot().nodes(None, usize::MAX).await.expect("in memory");
    let file = |(path, node): (VfsPathBuf, Arc<crate::backend::StateNode>)| Some((path, (node.content()?.clone(), node.version()?)));
    nodes.into_iter().filter_map(file).collect()
}

/// What the model knows of one path: its contents by revision, `None` where there was no file.
#[derive(Debug, Clone, Default)]
struct Past {
    revisions: Vec<(Timestamp, Option<Bytes>)>,
}

/// A call that the model can undo.
struct Call {
    recorded: RecordedCall,
    before: BTreeMap<VfsPathBuf, Option<Bytes>>,
}

struct Model {
    tree: StoreBackend,
    /// The same tree without a history.
    control: StateBackend,
    past: BTreeMap<VfsPathBuf, Past>,
    calls: Vec<Call>,
    micros: Arc<AtomicI64>,
    steps: u64,
}

impl Model {
    fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.micros.load(Ordering::Relaxed)).expect("within the calendar")
    }

    /// Applies a batch to both trees and compares the results. Returns the paths of the files that changed.
    async fn apply(&mut self, changes: &[Change], undoes: Option<&str>) -> Vec<VfsPathBuf> {
        self.steps += 1;
        self.micros.fetch_add(1_000, Ordering::Relaxed);
        let mut author = Author::new();
        (author.user, author.tool, author.undoes) = (Some("ada".to_owned()), Some("model".to_owned()), undoes.map(str::to_owned));
        author.call = Some(self.steps.to_string());
        let before = files(&self.control).await;
        // Versions of the two trees differ, so conditions on them hold for one only.
        let unconditional: Vec<Change> = changes.iter().cloned().map(without_version).collect();
        let expected = self.control.apply(&unconditional, &ApplyOptions::new()).await;
        let found = self.tree.apply(changes, &ApplyOptions::new().with_extension(author.clone())).await;
        let kinds = (found.as_ref().map(|_| ()).map_err(Error::kind), expected.as_ref().map(|_| ()).map_err(Error::kind));
        assert_eq!(kinds.0, kinds.1, "step {}: {changes:?}", self.steps);
        let after = files(&self.control).await;
        let paths = before.keys().chain(after.keys());
        let mut changed: Vec<VfsPathBuf> = paths.filter(|path| before.get(*path) != after.get(*path)).cloned().collect();
        changed.sort();
        changed.dedup();
        let at = self.now();
        for path in &changed {
            let content = after.get(path).map(|(content, _)| content.clone());
            self.past.entry(path.clone()).or_default().revisions.push((at, content));
        }
        if undoes.is_none() && !changed.is_empty() {
            let recorded = RecordedCall { at, author, paths: changed.clone(), is_cut: false };
            let before = changed.iter().map(|path| (path.clone(), before.get(path).map(|(content, _)| content.clone()))).collect();
            self.calls.push(Call { recorded, before });
        }
        changed
    }

    /// Compares every version of a path.
    async fn check_path(&self, path: &VfsPath) {
        let past = &self.past[path].revisions;
        let log = self.tree.log(path).await.expect("readable");
        assert_eq!(log.len(), past.len().min(KEEP_LAST + 1), "{path}: {log:?}");
        for (back, revision) in log.iter().enumerate() {
            let (at, content) = &past[past.len() - 1 - back];
            assert_eq!((revision.number, revision.at), ((past.len() - back) as u64, *at), "{path}");
            assert_eq!(revision.exists().then_some(revision.size_bytes), content.as_ref().map(|content| content.len() as u64), "{path}");
            assert!(revision.is_kept && revision.is_recorded && revision.author.tool.as_deref() == Some("model"), "{revision:?}");
            for moment in [Moment::Back(back as u64), Moment::Number(revision.number), Moment::Time(*at)] {
                let read = self.tree.at(moment).expect("a history").read(path, &ReadOptions::new()).await;
                match content {
                    Some(content) => {
                        let read = read.expect("kept");
                        assert_eq!((read.content, Some(read.version)), (content.clone(), revision.version), "{path}@{moment}");
                    }
                    None => assert!(read.is_err(), "{path}@{moment}"),
                }
            }
        }
    }

    /// Compares the whole tree as it was at a time, as far as the policy keeps it.
    async fn check_time(&self, at: Timestamp) {
        let past = self.tree.at(Moment::Time(at)).expect("a history");
        let found = past.glob(VfsPath::ROOT, &GlobOptions::new("**").with_hidden(true).with_limit(usize::MAX)).await.expect("listed");
        let found: BTreeMap<VfsPathBuf, u64> = found.entries.into_iter().map(|entry| (entry.path, entry.size_bytes)).collect();
        for (path, past_of_path) in &self.past {
            let revisions = &past_of_path.revisions;
            let index = revisions.partition_point(|(of, _)| *of <= at);
            let is_kept = index == 0 && revisions.len() <= KEEP_LAST + 1 || index > 0 && revisions.len() - index <= KEEP_LAST;
            if !is_kept {
                continue;
            }
            let expected = index.checked_sub(1).and_then(|index| revisions[index].1.as_ref());
            assert_eq!(found.get(path).copied(), expected.map(|content| content.len() as u64), "{path} at {at}");
            if let Some(expected) = expected {
                assert_eq!(past.read_bytes(path.as_str()).await.expect("kept"), expected, "{path} at {at}");
            }
        }
    }

    /// Undoes the newest call.
    async fn undo(&mut self) {
        let Some(Call { recorded, before }) = self.calls.pop() else { return };
        let is_kept = before.keys().all(|path| {
            let is_of_call = |(at, _): &(Timestamp, Option<Bytes>)| *at == recorded.at;
            let revisions = &self.past[path].revisions;
            let made = revisions.iter().position(is_of_call).expect("recorded");
            // The first revision needs no content before it.
            revisions.len() - made <= KEEP_LAST && (made > 0 || revisions.len() <= KEEP_LAST + 1)
        });
        let reversal = self.tree.reversal(&recorded, u64::MAX).await;
        match reversal {
            Ok(changes) => {
                let call = recorded.author.call.clone();
                self.apply(&changes, call.as_deref()).await;
                let now = files(&self.control).await;
                let is_done = before.iter().all(|(path, content)| now.get(path).map(|(content, _)| content) == content.as_ref());
                let mut is_blocked = false;
                for path in before.keys() {
                    is_blocked |= self.is_blocked(path).await;
                }
                assert!(is_done || is_blocked, "{before:?} {now:?}");
                if !is_done {
                    self.calls.clear();
                }
            }
            Err(error) => {
                assert!(!is_kept, "{error}");
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                // What lies before cannot be undone in order any more.
                self.calls.clear();
            }
        }
    }

    /// Returns whether a directory, which no undo removes, takes the place of a file.
    async fn is_blocked(&self, path: &VfsPath) -> bool {
        self.control.snapshot().node(path).await.expect("in memory").is_some_and(|node| node.is_directory())
    }
}

fn without_version(change: Change) -> Change {
    match change {
        Change::Write { path, content, mode: WriteMode::IfVersion(_) } => Change::Write { path, content, mode: WriteMode::Overwrite },
        Change::Delete { path, recursive, expect: Some(_) } => Change::Delete { path, recursive, expect: None },
        other => other,
    }
}

/// Runs random batches and undos, and compares the tree with the model.
async fn run(seed: u8, steps: usize) {
    let (store, micros) = store();
    let policy = HistoryPolicy::new().with_keep_last(KEEP_LAST);
    let tree = StoreBackend::new(store, namespace()).with_history(policy);
    let (past, calls) = (BTreeMap::new(), Vec::new());
    let mut model = Model { tree, control: StateBackend::new(), past, calls, micros, steps: 0 };
    let mut random = Random::new(seed);
    let mut times = Vec::new();
    for step in 0..steps {
        if random.below(12) == 0 {
            model.undo().await;
            continue;
        }
        let changes: Vec<Change> = (0..1 + random.below(3)).map(|_| random.change()).collect();
        let changed = model.apply(&changes, None).await;
        if let Some(path) = changed.first().filter(|_| step % 16 == 0) {
            model.check_path(path).await;
        }
        if step % 200 == 0 {
            times.push(model.now());
            let back = random.below(4.min(times.len() as u64)) as usize;
            model.check_time(times[times.len() - 1 - back]).await;
        }
    }
    for path in model.past.keys() {
        model.check_path(path).await;
    }
}

/// `TREEHOLD_STEPS` sets the number of steps of all runs together; the default is 16,000.
#[tokio::test(flavor = "multi_thread")]
async fn random_histories_and_undos_agree_with_the_model() {
    let steps = std::env::var("TREEHOLD_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(16_000);
    let runs = (0..8).map(|seed| tokio::spawn(run(seed, steps / 8)));
    for run in futures::future::join_all(runs).await {
        run.expect("agrees with the model");
    }
}
