//! Random histories of checkpoints (puts, restores, forks, copies, prunes, deletes and sweeps), compared with plain maps.
//!
//! After each step every remaining checkpoint is read in full, and the removals of a sweep are compared with the contents that
//! the maps contain.

use crate::trees::SmallPages;
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use treehold::backend::StateSnapshot;
use treehold::checkpoint::{
    At, CheckpointId, Checkpointer, Head, ListOptions, MemoryCheckpointer, PruneOptions, PutOptions, StoreCheckpointer, diff,
};
use treehold::ops::ReadOptions;
use treehold::store::{MemoryStore, Namespace, ScanOptions, Store};
use treehold::{Backend, BackendExt, ErrorKind, Scope, StateBackend};

/// The files of a tree by path; a directory has no content.
type Files = BTreeMap<String, Option<Bytes>>;

#[derive(Debug, Clone)]
enum Edit {
    Write(String, u8, usize),
    CreateDir(String),
    Remove(String),
    Rename(String, String),
    Copy(String, String),
}

/// The origin of the state of a put.
#[derive(Debug, Clone)]
enum From {
    /// The head of the thread.
    Head,
    /// An empty state.
    Nothing,
    /// Any checkpoint of any thread.
    Any(usize),
    /// A state still in memory from an earlier step, whether or not its checkpoint exists.
    Kept(usize),
}

#[derive(Debug, Clone)]
enum Step {
    Put { thread: usize, from: From, edits: Vec<Edit>, label: bool },
    Restore { thread: usize, at: usize },
    Fork { thread: usize, at: usize, to: usize },
    Copy { thread: usize, to: usize },
    Prune { thread: usize, keep_last: u64, keep_labelled: bool },
    Delete { thread: usize },
    Sweep,
    Reopen,
}

const THREADS: [&str; 4] = ["t", "t2", "t/3", "-"];

/// Few names, so that edits collide.
fn path() -> impl Strategy<Value = String> {
    vec(select(vec!["a", "b", "c", "a-", "d"]), 1..4).prop_map(|segments| format!("/{}", segments.join("/")))
}

fn edit() -> impl Strategy<Value = Edit> {
    // Few contents, so that they are shared and recur.
    let size = prop_oneof![1 => Just(0_usize), 6 => 1_usize..60, 1 => 5_000_usize..20_000];
    prop_oneof![
        8 => (path(), 0_u8..12, size).prop_map(|(path, seed, size)| Edit::Write(path, seed, size)),
        1 => path().prop_map(Edit::CreateDir),
        3 => path().prop_map(Edit::Remove),
        2 => (path(), path()).prop_map(|(from, to)| Edit::Rename(from, to)),
        1 => (path(), path()).prop_map(|(from, to)| Edit::Copy(from, to)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let thread = || prop_oneof![3 => Just(0_usize), 2 => 0..THREADS.len()];
    let from = prop_oneof![
        8 => Just(From::Head),
        1 => Just(From::Nothing),
        2 => any::<usize>().prop_map(From::Any),
        2 => any::<usize>().prop_map(From::Kept),
    ];
    prop_oneof![
        12 => (thread(), from, vec(edit(), 0..12), any::<bool>()).prop_map(|(thread, from, edits, label)| Step::Put { thread, from, edits, label }),
        2 => (thread(), any::<usize>()).prop_map(|(thread, at)| Step::Restore { thread, at }),
        3 => (thread(), any::<usize>(), thread()).prop_map(|(thread, at, to)| Step::Fork { thread, at, to }),
        1 => (thread(), thread()).prop_map(|(thread, to)| Step::Copy { thread, to }),
        2 => (thread(), 0_u64..4, any::<bool>()).prop_map(|(thread, keep_last, keep_labelled)| Step::Prune { thread, keep_last, keep_labelled }),
        1 => thread().prop_map(|thread| Step::Delete { thread }),
        3 => Just(Step::Sweep),
        1 => Just(Step::Reopen),
    ]
}

fn content(seed: u8, size: usize) -> Bytes {
    (0..size).map(|at| seed.wrapping_mul(31).wrapping_add((at / 7) as u8)).collect()
}

fn beneath(files: &Files, path: &str) -> Vec<(String, Option<Bytes>)> {
    let prefix = format!("{path}/");
    files
        .iter()
        .filter(|(file, _)| *file == path || file.starts_with(&prefix))
        .map(|(file, content)| (file.clone(), content.clone()))
        .collect()
}

fn insert(files: &mut Files, path: &str, content: Option<Bytes>) {
    for (at, _) in path.match_indices('/').skip(1) {
        files.entry(path[..at].to_owned()).or_insert(None);
    }
    files.insert(path.to_owned(), content);
}

/// Applies an edit to a tree, and if it succeeded, to the tree's map.
async fn make(tree: &StateBackend, files: &mut Files, edit: &Edit) {
    let moved = |files: &mut Files, from: &str, to: &str, keeps: bool| {
        for (path, content) in beneath(files, from) {
            if !keeps {
                files.remove(&path);
            }
            insert(files, &format!("{to}{}", &path[from.len()..]), content);
        }
    };
    match edit {
        Edit::Write(path, seed, size) => {
            let content = content(*seed, *size);
            if tree.write(path, content.clone()).await.is_ok() {
                insert(files, path, Some(content));
            }
        }
        Edit::CreateDir(path) => {
            if tree.create_dir(path).await.is_ok() && !files.contains_key(path) {
                insert(files, path, None);
            }
        }
        Edit::Remove(path) => {
            if tree.delete_all(path).await.is_ok() {
                beneath(files, path).iter().for_each(|(path, _)| drop(files.remove(path)));
            }
        }
        Edit::Rename(from, to) if from != to => {
            if tree.rename(from, to).await.is_ok() {
                moved(files, from, to, false);
            }
        }
        Edit::Copy(from, to) => {
            if tree.copy(from, to).await.is_ok() {
                moved(files, from, to, true);
            }
        }
        Edit::Rename(..) => {}
    }
}

async fn read(state: &StateSnapshot) -> Files {
    let mut files = Files::new();
    for (path, node) in state.nodes(None, usize::MAX).await.unwrap() {
        let content = match node.is_directory() {
            true => None,
            false => Some(state.read(&path, &ReadOptions::new()).await.unwrap().content),
        };
        files.insert(path.to_string(), content);
    }
    files
}

/// A checkpoint of the model.
#[derive(Debug, Clone)]
struct Kept {
    id: CheckpointId,
    files: Arc<Files>,
    label: Option<String>,
}

fn pick<T>(among: &[T], index: usize) -> &T {
    &among[index % among.len()]
}

type Make = Box<dyn Fn() -> Arc<dyn Checkpointer>>;

/// A checkpointer, and its expected content.
struct World {
    checkpointer: Arc<dyn Checkpointer>,
    /// Reopens the checkpointer on the same rows, if it has rows.
    reopen: Option<Make>,
    rows: Option<Arc<dyn Store>>,
    /// The checkpoints of each thread, the oldest first.
    threads: BTreeMap<&'static str, Vec<Kept>>,
    heads: BTreeMap<&'static str, Head>,
    /// Every content that was put and not swept.
    stored: BTreeSet<Bytes>,
    /// States in memory.
    in_memory: Vec<(StateSnapshot, Arc<Files>)>,
    refused: usize,
}

fn scope(thread: &str) -> Scope {
    Scope::new().with_tenant("acme").with_user("ada").with_thread(thread)
}

fn contents(files: &Files) -> impl Iterator<Item = Bytes> + '_ {
    files.values().flatten().filter(|content| !content.is_empty()).cloned()
}

impl World {
    fn new(checkpointer: Arc<dyn Checkpointer>, reopen: Option<Make>, rows: Option<Arc<dyn Store>>) -> Self {
        let (threads, heads, stored) = Default::default();
        Self { checkpointer, reopen, rows, threads, heads, stored, in_memory: Vec::new(), refused: 0 }
    }

    fn memory() -> Self {
        Self::new(Arc::new(MemoryCheckpointer::new()), None, None)
    }

    fn over(store: impl Store + 'static) -> Self {
        let store: Arc<dyn Store> = Arc::new(store);
        let rows = store.clone();
        let open: Make = Box::new(move || Arc::new(StoreCheckpointer::new(store.clone())));
        Self::new(open(), Some(open), Some(rows))
    }

    fn all(&self) -> Vec<(&'static str, &Kept)> {
        self.threads.iter().flat_map(|(thread, made)| made.iter().map(|made| (*thread, made))).collect()
    }

    fn push(&mut self, thread: &'static str, saved: treehold::checkpoint::Saved, files: Arc<Files>) {
        let made = self.threads.entry(thread).or_default();
        assert!(made.last().is_none_or(|last| last.id < saved.checkpoint.id));
        made.push(Kept { id: saved.checkpoint.id, files, label: saved.checkpoint.label });
        self.heads.insert(thread, saved.head.unwrap());
    }

    async fn put(&mut self, thread: &'static str, from: &From, edits: &[Edit], label: bool) {
        let (base, files) = match from {
            From::Nothing => (StateSnapshot::new(), Arc::default()),
            From::Kept(_) if self.in_memory.is_empty() => return,
            From::Kept(index) => pick(&self.in_memory, *index).clone(),
            From::Head | From::Any(_) => {
                let all = self.all();
                let chosen = match from {
                    From::Any(index) if !all.is_empty() => Some(*pick(&all, *index)),
                    _ => self.threads.get(thread).and_then(|made| Some((thread, made.last()?))),
                };
                match chosen {
                    Some((of, kept)) => {
                        let opened = self.checkpointer.open(&scope(of), kept.id.into()).await.unwrap().unwrap();
                        (opened.state, kept.files.clone())
                    }
                    None => (StateSnapshot::new(), Arc::default()),
                }
            }
        };
        let is_kept = matches!(from, From::Kept(_));
        let (state, files) = match edits {
            // Exactly the state that was saved before.
            [] => (base, files),
            _ => {
                let tree = StateBackend::from_snapshot(&base);
                let mut files = (*files).clone();
                for edit in edits {
                    make(&tree, &mut files, edit).await;
                }
                (tree.snapshot(), Arc::new(files))
            }
        };
        let mut options = PutOptions::new().with_head(self.heads.get(thread).copied());
        if label {
            options = options.with_label("labelled");
        }
        match self.checkpointer.put(&scope(thread), &state, &options).await {
            Ok(saved) => {
                assert_eq!(saved.checkpoint.entries, files.len() as u64);
                self.stored.extend(contents(&files));
                self.push(thread, saved, files.clone());
                if self.in_memory.len() == 6 {
                    self.in_memory.remove(0);
                }
                self.in_memory.push((state, files));
            }
            // A part of it was never loaded, and has been swept since.
            Err(error) if is_kept && error.kind() == ErrorKind::Corrupt => self.refused += 1,
            Err(error) => panic!("put: {error:?}"),
        }
    }

    async fn step(&mut self, step: &Step) {
        let name = |thread: &usize| THREADS[*thread];
        match step {
            Step::Put { thread, from, edits, label } => self.put(name(thread), from, edits, *label).await,
            Step::Restore { thread, at } => {
                let thread = name(thread);
                let Some(made) = self.threads.get(thread) else { return };
                let kept = pick(made, *at).clone();
                let saved = self.checkpointer.restore(&scope(thread), kept.id, &PutOptions::new()).await.unwrap();
                self.push(thread, saved, kept.files);
            }
            Step::Fork { thread, at, to } => {
                let (thread, to) = (name(thread), name(to));
                let Some(made) = self.threads.get(thread) else { return };
                let kept = pick(made, *at).clone();
                match self.checkpointer.fork(&scope(thread), kept.id.into(), to, &PutOptions::new()).await {
                    Ok(saved) => {
                        assert!(!self.threads.contains_key(to));
                        self.push(to, saved, kept.files);
                    }
                    Err(error) => assert!(error.kind() == ErrorKind::AlreadyExists && self.threads.contains_key(to), "{error:?}"),
                }
            }
            Step::Copy { thread, to } => {
                let (thread, to) = (name(thread), name(to));
                let Some(made) = self.threads.get(thread).cloned() else { return };
                match self.checkpointer.copy(&scope(thread), to).await {
                    Ok(count) => {
                        assert_eq!((count, self.threads.contains_key(to)), (made.len() as u64, false));
                        self.threads.insert(to, made);
                        let head = self.checkpointer.get(&scope(to), At::Latest).await.unwrap().unwrap().head.unwrap();
                        self.heads.insert(to, head);
                    }
                    Err(error) => assert!(error.kind() == ErrorKind::AlreadyExists && self.threads.contains_key(to), "{error:?}"),
                }
            }
            Step::Prune { thread, keep_last, keep_labelled } => {
                let thread = name(thread);
                let Some(made) = self.threads.get_mut(thread) else { return };
                let options = PruneOptions::new().with_keep_last(*keep_last).with_keep_labelled(*keep_labelled);
                let pruned = self.checkpointer.prune(&scope(thread), &options).await.unwrap();
                let (before, newest_kept) = (made.len(), (*keep_last).max(1) as usize);
                let mut at = 0;
                made.retain(|kept| {
                    at += 1;
                    before - at < newest_kept || (*keep_labelled && kept.label.is_some())
                });
                assert_eq!((pruned.removed, pruned.kept), ((before - made.len()) as u64, made.len() as u64));
            }
            Step::Delete { thread } => {
                let thread = name(thread);
                if self.threads.remove(thread).is_some() {
                    self.heads.remove(thread);
                    self.checkpointer.delete(&scope(thread)).await.unwrap();
                }
            }
            Step::Sweep => self.sweep().await,
            Step::Reopen => {
                if let Some(open) = &self.reopen {
                    self.checkpointer = open();
                }
            }
        }
    }

    /// Sweeps, and counts removed and remaining contents.
    async fn sweep(&mut self) {
        let held: BTreeSet<Bytes> = self.all().iter().flat_map(|(_, kept)| contents(&kept.files)).collect();
        let unheld: Vec<&Bytes> = self.stored.difference(&held).collect();
        let bytes = unheld.iter().map(|content| content.len() as u64).sum::<u64>();
        let dry = self.checkpointer.sweep(&scope("-"), true).await.unwrap();
        assert_eq!((dry.bodies, dry.body_bytes, dry.bodies_kept), (unheld.len() as u64, bytes, held.len() as u64));
        assert_eq!(self.checkpointer.sweep(&scope("-"), false).await.unwrap(), dry);
        let again = self.checkpointer.sweep(&scope("-"), false).await.unwrap();
        assert_eq!((again.bodies, again.packs), (0, 0));
        self.stored = held;
        self.count_rows().await;
    }

    /// Counts the stored rows of contents.
    async fn count_rows(&self) {
        let Some(rows) = &self.rows else { return };
        let namespace = Namespace::new(["acme", "ada", "_treehold", "threads", "bodies"]).unwrap();
        let (mut count, mut options) = (0, ScanOptions::new());
        loop {
            let page = rows.scan(&namespace, options.clone()).await.unwrap();
            count += page.entries.len();
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        assert_eq!(count, self.stored.len(), "the rows of contents");
    }

    /// Reads every remaining checkpoint.
    async fn check(&self) {
        for thread in THREADS {
            let listed = self.checkpointer.list(&scope(thread), &ListOptions::new().with_limit(usize::MAX)).await.unwrap();
            let made = self.threads.get(thread).map_or(&[][..], Vec::as_slice);
            let ids: Vec<CheckpointId> = made.iter().rev().map(|kept| kept.id).collect();
            assert_eq!(listed.checkpoints.iter().map(|checkpoint| checkpoint.id).collect::<Vec<_>>(), ids, "{thread}");
            for kept in made {
                let opened = self.checkpointer.open(&scope(thread), kept.id.into()).await.unwrap().unwrap();
                assert!(read(&opened.state).await == *kept.files, "{thread} at {}", kept.id);
            }
            let latest = self.checkpointer.get(&scope(thread), At::Latest).await.unwrap();
            assert_eq!(latest.and_then(|saved| saved.head), self.heads.get(thread).copied());
        }
        // The differences between the first and the last remaining checkpoint.
        if let [(one, older), .., (other, newer)] = self.all()[..] {
            let (before, after) = (self.open(one, older.id).await, self.open(other, newer.id).await);
            let found = diff(&before, &after, None, usize::MAX).await.unwrap();
            let paths: Vec<String> = found.paths.iter().map(|path| path.path.to_string()).collect();
            let all: BTreeSet<&String> = older.files.keys().chain(newer.files.keys()).collect();
            let mut expected: Vec<String> =
                all.into_iter().filter(|path| older.files.get(*path) != newer.files.get(*path)).cloned().collect();
            expected.sort_by_key(|path| treehold::VfsPathBuf::parse(path).unwrap());
            assert_eq!(paths, expected);
        }
    }

    async fn open(&self, thread: &str, id: CheckpointId) -> StateSnapshot {
        self.checkpointer.open(&scope(thread), id.into()).await.unwrap().unwrap().state
    }
}

fn histories(cases: u32, fresh: impl Fn() -> World) {
    let asked = std::env::var("TREEHOLD_MODEL_CASES").ok().and_then(|text| text.parse().ok());
    let (cases, rng_seed) = asked.map_or((cases, RngSeed::Fixed(1)), |asked| (asked, RngSeed::Random));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig { cases, rng_seed, failure_persistence: None, max_shrink_iters: 2_000, ..ProptestConfig::default() };
    proptest!(config, |(steps in vec(step(), 1..30))| {
        runtime.block_on(async {
            let mut world = fresh();
            for step in &steps {
                world.step(step).await;
                world.check().await;
            }
            world.sweep().await;
            world.check().await;
        });
    });
}

#[test]
fn snapshot_histories_match_the_model_in_memory() {
    histories(48, World::memory);
}

#[test]
fn snapshot_histories_match_the_model_in_a_store() {
    histories(96, || World::over(MemoryStore::new()));
}

#[test]
fn snapshot_histories_match_the_model_with_small_pages() {
    histories(24, || World::over(SmallPages::default()));
}

#[cfg(feature = "sqlite")]
#[test]
fn snapshot_histories_match_the_model_in_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicUsize::new(0);
    histories(8, || {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        World::over(treehold::store::SqliteStore::open(directory.path().join(format!("{number}.db"))).unwrap())
    });
}

/// Random numbers that are the same on every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn index(&mut self) -> usize {
        self.below(1 << 20) as usize
    }
}

/// A thousand checkpoints of one thread with some hundred files, with random forks, restores, prunes and sweeps.
async fn thousand(mut world: World) {
    let mut dice = Dice(0x5EED);
    let start: Vec<Edit> = (0..150).map(|file| Edit::Write(format!("/d{}/s{}/f{file}", file % 6, file % 4), file as u8, 300)).collect();
    world.put("t", &From::Nothing, &start, false).await;
    let mut puts = 1;
    while puts < 1_000 {
        let thread = if dice.below(8) == 0 { THREADS[dice.below(4) as usize] } else { "t" };
        let edits: Vec<Edit> = (0..=dice.below(3))
            .map(|_| {
                let file = dice.below(150);
                let path = format!("/d{}/s{}/f{file}", file % 6, file % 4);
                match dice.below(12) {
                    0 => Edit::Remove(path),
                    1 => Edit::Remove(format!("/d{}/s{}", file % 6, file % 4)),
                    2 => Edit::Rename(path, format!("/d{}/moved{}", dice.below(6), dice.below(40))),
                    3 => Edit::Copy(format!("/d{}/s{}", file % 6, file % 4), format!("/copies/c{}", dice.below(5))),
                    _ => Edit::Write(path, dice.below(256) as u8, 1 + dice.below(900) as usize),
                }
            })
            .collect();
        if thread == "t" || world.threads.contains_key(thread) {
            let from = if dice.below(20) == 0 { From::Any(dice.index()) } else { From::Head };
            world.put(thread, &from, &edits, dice.below(30) == 0).await;
            puts += usize::from(thread == "t");
        }
        match dice.below(60) {
            0 | 1 => world.step(&Step::Fork { thread: 0, at: dice.index(), to: 1 + dice.below(3) as usize }).await,
            2 => world.step(&Step::Restore { thread: dice.below(4) as usize, at: dice.index() }).await,
            3 => world.step(&Step::Prune { thread: 0, keep_last: 60 + dice.below(60), keep_labelled: true }).await,
            4 => world.step(&Step::Prune { thread: 1 + dice.below(3) as usize, keep_last: 2, keep_labelled: true }).await,
            5 if dice.below(3) == 0 => world.step(&Step::Delete { thread: 1 + dice.below(3) as usize }).await,
            6 => world.step(&Step::Sweep).await,
            7 => world.step(&Step::Reopen).await,
            _ => {}
        }
    }
    world.sweep().await;
    world.check().await;
    assert!(world.all().len() > 60, "{} are left", world.all().len());
}

#[tokio::test]
async fn every_survivor_of_a_thousand_checkpoints_is_readable() {
    thousand(World::over(MemoryStore::new())).await;
}
