//! Faults at every call of a scenario, before and after its effect, leave either the old content or the new.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use treehold::layer::{Fault, Layered, Retry, Timeout};
use treehold::ops::{ApplyOptions, Change, Edit, GlobOptions, ReadOptions, WriteMode};
use treehold::{Backend, ErrorKind, StateBackend, VfsPath, VfsPathBuf};

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

fn write(at: &str, content: &'static str, mode: WriteMode) -> Change {
    Change::Write { path: path(at), content: content.into(), mode }
}

/// One batch of every kind, each building on the earlier ones. Every batch also applies if those that may be lost
/// were lost.
fn scenario() -> Vec<Vec<Change>> {
    let edit = |at: &str, old: &str, new: &str| Change::Edit { path: path(at), edits: vec![Edit::new(old, new)], expect: None };
    vec![
        vec![write("/a", "one\n", WriteMode::Overwrite)],
        vec![Change::Append { path: path("/a"), content: "two\n".into() }],
        vec![Change::Append { path: path("/a"), content: "two\n".into() }],
        vec![write("/b", "new\n", WriteMode::CreateNew)],
        vec![edit("/a", "one", "one and one")],
        vec![Change::CreateDir { path: path("/d/e") }],
        vec![Change::Copy { from: path("/a"), to: path("/d/a"), overwrite: false }],
        vec![Change::Rename { from: path("/d"), to: path("/f"), overwrite: false }],
        vec![write("/a", "again\n", WriteMode::Overwrite), Change::Append { path: path("/log"), content: "x\n".into() }],
        vec![write("/g", "g", WriteMode::Overwrite), Change::CreateDir { path: path("/h") }],
        vec![Change::Delete { path: path("/a"), recursive: false, expect: None }],
        vec![Change::Delete { path: path("/f"), recursive: true, expect: None }],
    ]
}

/// The whole content of a tree: `None` for directories.
async fn dump(tree: &dyn Backend) -> BTreeMap<VfsPathBuf, Option<String>> {
    let all = tree.glob(VfsPath::ROOT, &GlobOptions::new("**").with_directories(true).with_hidden(true)).await.unwrap();
    let mut dump = BTreeMap::new();
    for entry in all.entries {
        let content = match entry.is_directory() {
            true => None,
            false => Some(tree.read(&entry.path, &ReadOptions::new()).await.unwrap().text_lossy().into_owned()),
        };
        dump.insert(entry.path, content);
    }
    dump
}

/// Runs the scenario through `wrap` around a tree and compares it after every batch with a plain tree to which only the batches
/// that took effect were applied. Returns how many failed batches took effect, and how many did not.
async fn play<B: Backend>(wrap: impl FnOnce(Arc<StateBackend>) -> B) -> (usize, usize) {
    let state = Arc::new(StateBackend::new());
    let tree = wrap(Arc::clone(&state));
    let (mut plain, mut before) = (StateBackend::new(), BTreeMap::new());
    let (mut done, mut lost) = (0, 0);
    for batch in scenario() {
        let result = tree.apply(&batch, &ApplyOptions::new()).await;
        let next = StateBackend::from_snapshot(&plain.snapshot());
        let fits = next.apply(&batch, &ApplyOptions::new()).await.is_ok();
        let (now, after) = (dump(&*state).await, dump(&next).await);
        match result {
            Ok(_) => assert_eq!(now, after, "acknowledged: {batch:?}"),
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Deadline) => {
                assert!(now == before || now == after, "{batch:?} took partial effect and left {now:?}");
                assert!(!error.is_without_effect() || now == before, "the error denies an effect, and there is one: {batch:?}");
                *if now == after { &mut done } else { &mut lost } += 1;
            }
            // It depends on a batch that was lost.
            Err(error) => assert!(!fits && now == before, "refused: {batch:?} {error}"),
        }
        if now == after {
            (plain, before) = (next, after);
        }
    }
    (done, lost)
}

fn retry() -> Retry {
    Retry::new(4).with_jitter(|_| Duration::ZERO)
}

#[tokio::test]
async fn fault_at_any_call_leaves_old_or_new_content() {
    for n in 0..scenario().len() as u64 {
        assert_eq!(play(|state| Layered::new(Fault::nth(n), state)).await, (0, 1), "before call {n}");
        assert_eq!(play(|state| Layered::new(Fault::nth(n).after_effect(), state)).await, (1, 0), "after call {n}");
    }
}

#[tokio::test]
async fn retry_repeats_only_safe_calls() {
    // The batches that have the same effect when applied twice.
    let repeatable = [0, 5, 9];
    for n in 0..scenario().len() as u64 {
        let heals = repeatable.contains(&n);
        let stated = play(|state| Layered::new(retry(), Layered::new(Fault::nth(n).stated(), state))).await;
        assert_eq!(stated, (0, 0), "before call {n}, stated");
        let before = play(|state| Layered::new(retry(), Layered::new(Fault::nth(n), state))).await;
        assert_eq!(before, (0, usize::from(!heals)), "before call {n}");
        let after = play(|state| Layered::new(retry(), Layered::new(Fault::nth(n).after_effect(), state))).await;
        assert_eq!(after, (usize::from(!heals), 0), "after call {n}");
    }
}

#[tokio::test]
async fn random_faults_leave_old_or_new_content() {
    for seed in 0..12 {
        play(|state| Layered::new(retry(), Layered::new(Fault::random(seed, 0.4), state))).await;
        play(|state| Layered::new(retry(), Layered::new(Fault::random(seed, 0.4).after_effect(), state))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_call_times_out_and_leaves_old_or_new_content() {
    for n in 0..scenario().len() as u64 {
        let timeout = || Timeout::new(Duration::from_secs(1));
        assert_eq!(play(|state| Layered::new(timeout(), Layered::new(Fault::nth(n).hanging(), state))).await, (0, 1), "before call {n}");
        let after = Fault::nth(n).hanging().after_effect();
        assert_eq!(play(|state| Layered::new(timeout(), Layered::new(after, state))).await, (1, 0), "after call {n}");
    }
}
