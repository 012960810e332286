//! An overlay that another process changes during an apply: an apply never conflicts with what an apply wrote, no change is lost, and
//! changes that others make to the lower tree are still reported.

use super::*;
use async_trait::async_trait;
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};
use treehold::Error;
use treehold::layer::{Layer, LayerName, Layered, Next, Reply};
use treehold::ops::Op;

/// The other process's actions around one write of an apply, on the overlay or the lower tree.
#[derive(Debug, Clone, Default)]
struct Due {
    before: Vec<Change>,
    after: Vec<Change>,
    /// Whether the write takes effect but its answer is lost.
    loses_answer: bool,
}

/// The other process, and when it acts.
#[derive(Debug)]
struct Script {
    other: OverlayBackend,
    /// A plain tree that receives the same changes.
    plain: Arc<StateBackend>,
    writes: AtomicUsize,
    due: Mutex<BTreeMap<usize, Due>>,
}

impl Script {
    async fn edit(&self, changes: &[Change]) {
        for change in changes {
            let done = self.other.apply_one(change.clone()).await.map_err(|error| error.kind());
            let expected = self.plain.apply_one(change.clone()).await.map_err(|error| error.kind());
            assert_eq!(done.map(drop), expected.map(drop), "{change:?}");
        }
    }
}

/// Lets the other process act around the writes of one tree.
#[derive(Debug)]
struct Between {
    script: Arc<Script>,
    is_lower: bool,
}

#[async_trait]
impl Layer for Between {
    fn name(&self) -> LayerName {
        LayerName::new("Between")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> treehold::Result<T> {
        if !op.kind.writes() {
            return next.run().await;
        }
        let number = self.script.writes.fetch_add(1, Ordering::Relaxed);
        let due = self.script.due.lock().remove(&number).unwrap_or_default();
        self.script.edit(&due.before).await;
        let result = next.run().await?;
        self.script.edit(&due.after).await;
        if due.loses_answer && self.is_lower {
            return Err(Error::new(ErrorKind::Unavailable, "the answer was lost"));
        }
        Ok(result)
    }
}

/// Returns an overlay whose applies race, and the other process's view of it.
fn raced(lower: Arc<dyn Backend>) -> (OverlayBackend, Arc<Script>) {
    let upper = rows();
    let script = Arc::new(Script {
        other: OverlayBackend::new(lower.clone(), upper.clone()),
        plain: Arc::default(),
        writes: AtomicUsize::new(0),
        due: Mutex::default(),
    });
    let lower = Layered::new(Between { script: script.clone(), is_lower: true }, lower);
    let upper = Layered::new(Between { script: script.clone(), is_lower: false }, upper);
    (OverlayBackend::new(Arc::new(lower), Arc::new(upper)), script)
}

fn due(before: Vec<Change>, after: Vec<Change>) -> Due {
    Due { before, after, loses_answer: false }
}

fn write(at: &str, content: &str) -> Change {
    Change::Write { path: path(at), content: content.to_owned().into(), mode: WriteMode::Overwrite }
}

fn remove(at: &str) -> Change {
    Change::Delete { path: path(at), recursive: true, expect: None }
}

/// Each kind of edit, right after its path was written to the lower tree: the next applies take it and report no conflict.
#[tokio::test]
async fn apply_never_conflicts_with_what_an_apply_wrote_before_an_edit() {
    let edits: &[(&str, &[Change], &[Change])] = &[
        ("a new file is edited", &[write("/n", "1")], &[write("/n", "2")]),
        ("a changed file is edited", &[write("/a", "1")], &[write("/a", "2")]),
        ("a new file is removed", &[write("/n", "1")], &[remove("/n")]),
        ("a changed file is removed", &[write("/a", "1")], &[remove("/a")]),
        ("a removed file is created again", &[remove("/a")], &[write("/a", "2")]),
        ("a removed directory is created again", &[remove("/d")], &[write("/d/x", "2")]),
        ("a new directory is removed", &[write("/e/x/y", "1")], &[remove("/e")]),
        (
            "a new directory in a new directory moves away",
            &[write("/e/x/y", "1")],
            &[Change::Rename { from: path("/e"), to: path("/g"), overwrite: false }],
        ),
        ("a new empty directory is removed", &[Change::CreateDir { path: path("/e") }], &[remove("/e")]),
        ("a new empty directory gets a file", &[Change::CreateDir { path: path("/e") }], &[write("/e/x", "1")]),
        ("a new directory is replaced by a file", &[write("/e/x", "1")], &[remove("/e"), write("/e", "2")]),
        ("a replaced directory is edited", &[remove("/d"), write("/d/x", "1")], &[write("/d/x", "2")]),
        ("a replaced directory is removed", &[remove("/d"), write("/d/x", "1"), write("/d/z", "1")], &[remove("/d")]),
        (
            "a directory replaced by a file becomes a directory again",
            &[remove("/d"), write("/d", "1")],
            &[remove("/d"), write("/d/x", "2")],
        ),
        ("a file replaced by a directory becomes a file again", &[remove("/a"), write("/a/x", "1")], &[remove("/a"), write("/a", "2")]),
        ("a changed file moves away", &[write("/d/x", "1")], &[Change::Rename { from: path("/d"), to: path("/f"), overwrite: false }]),
    ];
    for (what, first, then) in edits {
        for number in 0..4 {
            for loses_answer in [false, true] {
                let lower = Arc::new(StateBackend::new());
                let (overlay, script) = raced(lower.clone());
                for tree in [&*lower, &*script.plain] {
                    for (at, content) in [("/a", "0"), ("/d/x", "0"), ("/d/y", "0")] {
                        tree.write(at, content).await.unwrap();
                    }
                }
                script.edit(first).await;
                script.due.lock().insert(number, Due { loses_answer, ..due(Vec::new(), then.to_vec()) });
                for _ in 0..2 {
                    let done = applied(&overlay).await;
                    assert_eq!(drawn(&done.conflicts), Vec::<String>::new(), "{what}, write {number}");
                    assert_eq!(whole(&script.other).await, whole(&*script.plain).await, "{what}, write {number}");
                }
                let left = std::mem::take(&mut *script.due.lock());
                script.edit(&left.into_values().flat_map(|due| due.after).collect::<Vec<_>>()).await;
                let done = applied(&overlay).await;
                assert_eq!((drawn(&done.conflicts), done.failure), (Vec::new(), None), "{what}, write {number}");
                assert_eq!(whole(&*lower).await, whole(&*script.plain).await, "{what}, write {number}");
                assert_is_empty(&script.other).await;
            }
        }
    }
}

/// An apply that died after writing to the lower tree leaves nothing that a later apply reports as another writer's change.
#[tokio::test]
async fn apply_that_dies_after_writing_leaves_no_conflict_with_later_edits() {
    for (first, then) in [(write("/n", "1"), write("/n", "2")), (write("/a", "1"), remove("/a")), (remove("/a"), write("/a", "2"))] {
        let lower: Arc<StateBackend> = Arc::default();
        let upper = rows();
        lower.write("/a", "0").await.unwrap();
        let dying = Arc::new(Dying { wrote: tokio::sync::Notify::new() });
        let overlay = OverlayBackend::new(Arc::new(Layered::new(dying.clone(), lower.clone())), upper.clone());
        overlay.apply_one(first).await.unwrap();
        let options = OverlayApplyOptions::new();
        tokio::select! {
            biased;
            done = overlay.apply_changes(&options) => panic!("the apply ended before it was stopped: {done:?}"),
            () = dying.wrote.notified() => {}
        }
        let later = OverlayBackend::new(lower.clone(), upper);
        later.apply_one(then).await.unwrap();
        let shown = whole(&later).await;
        let done = applied(&later).await;
        assert_eq!((drawn(&done.conflicts), done.failure), (Vec::new(), None));
        assert_eq!(whole(&*lower).await, shown);
        assert_is_empty(&later).await;
    }
}

/// A process that dies during its write.
#[derive(Debug)]
struct Dying {
    wrote: tokio::sync::Notify,
}

#[async_trait]
impl Layer for Dying {
    fn name(&self) -> LayerName {
        LayerName::new("Dying")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> treehold::Result<T> {
        let result = next.run().await;
        if op.kind.writes() {
            self.wrote.notify_one();
            std::future::pending::<()>().await;
        }
        result
    }
}

/// Tasks edit continuously while applies run: no apply conflicts, and in the end every acknowledged edit is in the lower tree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applies_with_concurrent_edits_lose_and_refuse_nothing() {
    const EDITS: usize = 60;
    let (lower, upper) = (Arc::new(StateBackend::new()), rows());
    lower.write("/shared", "").await.unwrap();
    let editors: Vec<_> = (0..3)
        .map(|editor| {
            let overlay = OverlayBackend::new(lower.clone(), upper.clone());
            tokio::spawn(async move {
                for edit in 0..EDITS {
                    overlay.append("/shared", format!("{editor}-{edit}\n")).await.unwrap();
                    overlay.write(&format!("/own/{editor}"), edit.to_string()).await.unwrap();
                    if edit % 7 == 0 {
                        overlay.delete(&format!("/own/{editor}")).await.unwrap();
                    }
                }
            })
        })
        .collect();
    let overlay = OverlayBackend::new(lower.clone(), upper);
    while !editors.iter().all(|editor| editor.is_finished()) {
        let done = applied(&overlay).await;
        assert_eq!(drawn(&done.conflicts), Vec::<String>::new());
    }
    for editor in editors {
        editor.await.unwrap();
    }
    let done = applied(&overlay).await;
    assert_eq!((drawn(&done.conflicts), done.failure), (Vec::new(), None));
    let lines: BTreeSet<String> = lower.read_text("/shared").await.unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3 * EDITS);
    for editor in 0..3 {
        assert_eq!(lower.read_text(&format!("/own/{editor}")).await.unwrap(), (EDITS - 1).to_string());
    }
    assert_is_empty(&overlay).await;
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn place() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(&NAMES[..]), 1..4).prop_map(|names| format!("/{}", names.join("/")))
}

fn edits(most: usize) -> impl Strategy<Value = Vec<Change>> {
    let file = || place().prop_map(|text| path(&text));
    let content = || proptest::sample::select(vec!["one\n", "two\n", "three\n"]);
    let change = prop_oneof![
        5 => (file(), content()).prop_map(|(path, content)| Change::Write { path, content: content.into(), mode: WriteMode::Overwrite }),
        2 => (file(), content()).prop_map(|(path, content)| Change::Append { path, content: content.into() }),
        1 => file().prop_map(|path| Change::CreateDir { path }),
        3 => file().prop_map(|path| Change::Delete { path, recursive: true, expect: None }),
        2 => (file(), file()).prop_map(|(from, to)| Change::Rename { from, to, overwrite: true }),
    ];
    proptest::collection::vec(change, 0..most)
}

fn scripted() -> impl Strategy<Value = BTreeMap<usize, Due>> {
    let due = (edits(3), edits(3), proptest::bool::weighted(0.2));
    let due = due.prop_map(|(before, after, loses_answer)| Due { before, after, loses_answer });
    proptest::collection::btree_map(0..6_usize, due, 0..4)
}

fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("TREEHOLD_MODEL_CASES").ok().and_then(|text| text.parse().ok());
    let (cases, rng_seed) = asked.map_or((cases, RngSeed::Fixed(1)), |asked| (asked, RngSeed::Random));
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn race(lower: Arc<dyn Backend>, rounds: Vec<(Vec<Change>, BTreeMap<usize, Due>)>) {
    let (overlay, script) = raced(lower.clone());
    for (first, dues) in rounds {
        script.edit(&first).await;
        script.writes.store(0, Ordering::Relaxed);
        *script.due.lock() = dues;
        let done = applied(&overlay).await;
        script.due.lock().clear();
        assert_eq!(drawn(&done.conflicts), Vec::<String>::new());
        assert_eq!(whole(&script.other).await, whole(&*script.plain).await, "the overlay has every change that was made through it");
        let diff = script.other.diff(&OverlayDiffOptions::new()).await.unwrap().differences;
        assert!(diff.iter().all(|difference| difference.conflict.is_none()), "{:?}", drawn(&diff));
    }
    let done = applied(&overlay).await;
    assert_eq!((drawn(&done.conflicts), done.failure), (Vec::new(), None));
    assert_eq!(whole(&*lower).await, whole(&*script.plain).await, "the lower tree has every change");
}

/// One step of an overlay or its lower tree.
#[derive(Debug, Clone)]
enum Step {
    Edit(usize, Option<u8>),
    /// Another writer changes the lower tree.
    Beneath(usize, bool),
    /// An apply, with an edit of the overlay before or after one of its writes.
    Apply(usize, bool, usize, u8),
    Discard(usize),
    Resolve(OverlayStrategy),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4_usize, proptest::option::weighted(0.8, any::<u8>())).prop_map(|(file, content)| Step::Edit(file, content)),
        3 => (0..4_usize, any::<bool>()).prop_map(|(file, removes)| Step::Beneath(file, removes)),
        4 => (0..5_usize, any::<bool>(), 0..4_usize, any::<u8>()).prop_map(|(at, before, file, content)| Step::Apply(at, before, file, content)),
        1 => (0..4_usize).prop_map(Step::Discard),
        1 => prop_oneof![Just(OverlayStrategy::Ours), Just(OverlayStrategy::Theirs)].prop_map(Step::Resolve),
    ]
}

/// Plays a history over four files. Asserts that the conflicts of an apply are exactly the files that another writer changed in the lower
/// tree while the overlay had changed them too.
async fn dispute(steps: Vec<Step>) {
    let lower = Arc::new(StateBackend::new());
    let (overlay, script) = raced(lower.clone());
    let file = |number: usize| format!("/f{number}");
    for number in 0..2 {
        lower.write(&file(number), "seed").await.unwrap();
        script.plain.write(&file(number), "seed").await.unwrap();
    }
    let mut disputed: BTreeSet<String> = BTreeSet::new();
    let content = |tree: Arc<dyn Backend>, at: String| async move { tree.read_text(&at).await.ok() };
    let plain: Arc<dyn Backend> = script.plain.clone();
    for (index, step) in steps.into_iter().enumerate() {
        let differs = async |at: &str| content(lower.clone(), at.to_owned()).await != content(plain.clone(), at.to_owned()).await;
        match step {
            Step::Edit(number, Some(new)) => script.edit(&[write(&file(number), &format!("edit {new}"))]).await,
            Step::Edit(number, None) => script.edit(&[remove(&file(number))]).await,
            Step::Beneath(number, removes) => {
                let at = file(number);
                let there = lower.exists(&at).await.unwrap();
                let is_touched = script.other.upper().exists(&format!("/tree{at}")).await.unwrap();
                let is_pending = differs(&at).await;
                let is_free = is_pending || there && !is_touched;
                let may_remove = there && !is_pending;
                if !is_free || removes && !may_remove {
                    continue;
                }
                match removes {
                    true => lower.delete(&at).await.map(drop).unwrap(),
                    false => lower.write(&at, format!("beneath {index}")).await.map(drop).unwrap(),
                }
                if is_pending {
                    disputed.insert(at);
                } else if removes {
                    script.plain.delete(&at).await.unwrap();
                } else {
                    script.plain.write(&at, format!("beneath {index}")).await.unwrap();
                }
            }
            Step::Apply(number, is_before, of, new) => {
                let edit = vec![write(&file(of), &format!("edit {new}"))];
                let meanwhile = if is_before { due(edit, Vec::new()) } else { due(Vec::new(), edit) };
                script.writes.store(0, Ordering::Relaxed);
                script.due.lock().insert(number, meanwhile);
                let mut expected: Vec<String> = Vec::new();
                for at in &disputed {
                    if differs(at).await {
                        expected.push(at.clone());
                    }
                }
                let done = applied(&overlay).await;
                script.due.lock().clear();
                let conflicts: Vec<String> = done.conflicts.iter().map(|difference| difference.path.to_string()).collect();
                assert_eq!(conflicts, expected);
                assert!(conflicts.is_empty() || done.applied.is_empty(), "nothing is written beside a conflict");
            }
            Step::Discard(number) => {
                let at = file(number);
                script.other.discard(&[path(&at)]).await.unwrap();
                disputed.remove(&at);
                match content(lower.clone(), at.clone()).await {
                    Some(text) => script.plain.write(&at, text).await.map(drop).unwrap(),
                    None => drop(script.plain.delete(&at).await),
                }
            }
            Step::Resolve(strategy) => {
                let done = overlay.apply_changes(&OverlayApplyOptions::new().with_strategy(strategy)).await.unwrap();
                assert_eq!((drawn(&done.conflicts), done.failure), (Vec::new(), None));
                if strategy == OverlayStrategy::Theirs {
                    for at in &disputed {
                        match content(lower.clone(), at.clone()).await {
                            Some(text) => script.plain.write(at, text).await.map(drop).unwrap(),
                            None => drop(script.plain.delete(at).await),
                        }
                    }
                }
                disputed.clear();
                assert_eq!(whole(&*lower).await, whole(&*script.plain).await);
            }
        }
        assert_eq!(whole(&script.other).await, whole(&*script.plain).await, "the overlay has every change that was made through it");
    }
}

#[test]
fn edits_racing_applies_to_a_state_all_arrive_without_conflict() {
    let runtime = runtime();
    proptest!(config(96), |(rounds in proptest::collection::vec((edits(6), scripted()), 1..5))| {
        runtime.block_on(race(Arc::new(StateBackend::new()), rounds));
    });
}

#[cfg(all(feature = "filesystem", unix))]
#[test]
fn edits_racing_applies_to_a_directory_all_arrive_without_conflict() {
    let runtime = runtime();
    proptest!(config(24), |(rounds in proptest::collection::vec((edits(6), scripted()), 1..4))| {
        let directory = tempfile::tempdir().unwrap();
        let files = treehold::FilesystemBackend::open(directory.path(), treehold::FilesystemOptions::new()).unwrap();
        runtime.block_on(race(Arc::new(files), rounds));
    });
}

#[test]
fn raced_applies_report_exactly_the_conflicts_of_other_writers() {
    let runtime = runtime();
    proptest!(config(192), |(steps in proptest::collection::vec(step(), 1..20))| {
        runtime.block_on(dispute(steps));
    });
}
