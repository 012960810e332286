//! Any history over any tree: an overlay shows what a plain tree would, and only `apply` changes the lower tree.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn place() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(&NAMES[..]), 1..4).prop_map(|names| format!("/{}", names.join("/")))
}

fn change() -> impl Strategy<Value = Change> {
    let content = proptest::sample::select(vec!["one\n", "two\n", ""]);
    let file = || place().prop_map(|text| path(&text));
    prop_oneof![
        4 => (file(), content.clone()).prop_map(|(path, content)| Change::Write { path, content: content.into(), mode: WriteMode::Overwrite }),
        2 => (file(), content).prop_map(|(path, content)| Change::Append { path, content: content.into() }),
        1 => file().prop_map(|path| Change::CreateDir { path }),
        1 => proptest::sample::select(vec![("/.gitignore", "a\n"), ("/b/.gitignore", "/c\n"), ("/.gitignore", "!a\nb/c\n"), ("/a/.ignore", "d/\n")])
            .prop_map(|(at, rules)| Change::Write { path: path(at), content: rules.into(), mode: WriteMode::Overwrite }),
        4 => (file(), any::<bool>()).prop_map(|(path, recursive)| Change::Delete { path, recursive, expect: None }),
        3 => (file(), file(), any::<bool>()).prop_map(|(from, to, overwrite)| Change::Rename { from, to, overwrite }),
        2 => (file(), file(), any::<bool>()).prop_map(|(from, to, overwrite)| Change::Copy { from, to, overwrite }),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Batch(Vec<Change>),
    Apply(Option<String>),
    Discard(String),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => proptest::collection::vec(change(), 1..5).prop_map(Step::Batch),
        2 => proptest::option::of(place()).prop_map(Step::Apply),
        2 => place().prop_map(Step::Discard),
        1 => Just(Step::Reopen),
    ]
}

/// An overlay over a tree with files behaves like a plain tree with the same files, its diff is the difference of the two trees, and only
/// `apply` changes the lower tree.
async fn follow(lower: Arc<dyn Backend>, seeds: Vec<Change>, steps: Vec<Step>) {
    let upper = rows();
    let plain = StateBackend::new();
    for seed in &seeds {
        let one = lower.apply_one(seed.clone()).await.map_err(|error| error.kind());
        assert_eq!(one.is_ok(), plain.apply_one(seed.clone()).await.is_ok());
    }
    let mut overlay = OverlayBackend::new(lower.clone(), upper.clone());
    for step in steps {
        let beneath = whole(&*lower).await;
        let may_write = matches!(step, Step::Apply(_));
        match step {
            Step::Batch(batch) => {
                let kinds = |result: treehold::Result<Vec<treehold::ops::Changed>>| match result {
                    Ok(changed) => {
                        Ok(changed.iter().map(|changed| (changed.path.clone(), changed.entries, changed.created)).collect::<Vec<_>>())
                    }
                    Err(error) => Err((error.kind(), error.change(), error.path().map(VfsPath::to_owned))),
                };
                let options = ApplyOptions::new();
                assert_eq!(kinds(overlay.apply(&batch, &options).await), kinds(plain.apply(&batch, &options).await), "{batch:?}");
            }
            Step::Apply(only) => {
                let mut options = OverlayApplyOptions::new();
                options.paths = only.iter().map(|text| path(text)).collect();
                let done = overlay.apply_changes(&options).await.unwrap();
                assert_eq!(drawn(&done.conflicts), Vec::<String>::new());
                if only.is_none() {
                    assert_eq!(done.failure, None);
                    assert_eq!(whole(&*lower).await, whole(&overlay).await);
                    assert_is_empty_if_touched(&overlay).await;
                }
            }
            Step::Discard(of) => {
                if overlay.discard(&[path(&of)]).await.is_err() {
                    continue;
                }
                let here = |all: Vec<(String, Option<String>)>| -> Vec<_> {
                    all.into_iter().filter(|(at, _)| path(at).starts_with(&path(&of))).collect()
                };
                assert_eq!(here(whole(&overlay).await), here(whole(&*lower).await), "{of} is as below");
                // Makes the plain tree equal to the overlay.
                let _ = plain.delete_all("/").await;
                for (at, _) in whole(&plain).await {
                    let _ = plain.delete_all(&at).await;
                }
                for (at, content) in whole(&overlay).await {
                    match content {
                        Some(content) => plain.write(&at, content).await.map(drop).unwrap(),
                        None => plain.create_dir(&at).await.map(drop).unwrap(),
                    }
                }
            }
            Step::Reopen => overlay = OverlayBackend::new(lower.clone(), upper.clone()),
        }
        assert!(may_write || whole(&*lower).await == beneath, "only `apply` writes to the lower tree");
        let shown = whole(&overlay).await;
        assert_eq!(shown, whole(&plain).await);
        assert_found_alike(&overlay, &plain).await;
        let mut expected: Vec<(VfsPathBuf, char)> = Vec::new();
        let (above, beneath) = (shown, whole(&*lower).await);
        for (at, content) in &above {
            match beneath.iter().find(|(other, _)| other == at) {
                None => expected.push((path(at), '+')),
                Some((_, other)) if other != content => expected.push((path(at), '~')),
                Some(_) => {}
            }
        }
        expected.extend(beneath.iter().filter(|(at, _)| !above.iter().any(|(other, _)| other == at)).map(|(at, _)| (path(at), '-')));
        expected.sort();
        let diff = overlay.diff(&OverlayDiffOptions::new()).await.unwrap().differences;
        assert!(diff.iter().all(|difference| difference.conflict.is_none()), "{:?}", drawn(&diff));
        assert_eq!(diff.iter().map(|difference| (difference.path.clone(), letter(difference.kind))).collect::<Vec<_>>(), expected);
    }
}

/// Asserts that searches of both trees return the same, page by page.
async fn assert_found_alike(overlay: &OverlayBackend, plain: &StateBackend) {
    for (root, pattern) in [("/", "**"), ("/", "a"), ("/", "b/**"), ("/", "*/a/*"), ("/a", "*"), ("/b/c", "**")] {
        for limit in [0, 1, 3, 1_000] {
            let options = GlobOptions::new(pattern).with_limit(limit).with_directories(limit != 3).with_ignored(limit == 1);
            let (here, there) = (overlay.glob(&path(root), &options).await, plain.glob(&path(root), &options).await);
            match (here, there) {
                (Ok(here), Ok(there)) => {
                    let paths =
                        |found: &treehold::ops::GlobResult| found.entries.iter().map(|entry| entry.path.clone()).collect::<Vec<_>>();
                    assert_eq!((paths(&here), here.truncated), (paths(&there), there.truncated), "{root} {options:?}");
                    for entry in here.entries {
                        assert_eq!(entry, overlay.stat(&entry.path, &StatOptions::new()).await.unwrap());
                    }
                }
                (here, there) => assert_eq!(here.map_err(|error| error.kind()), there.map_err(|error| error.kind())),
            }
            let options = GrepOptions::new("o").with_matches_max(limit).with_ignored(limit == 1).with_hidden(limit == 3);
            let (here, there) = (overlay.grep(&path(root), &options).await, plain.grep(&path(root), &options).await);
            match (here, there) {
                (Ok(here), Ok(there)) => assert_eq!((here.files, here.truncated), (there.files, there.truncated), "{root} {options:?}"),
                (here, there) => assert_eq!(here.map_err(|error| error.kind()), there.map_err(|error| error.kind())),
            }
        }
    }
}

async fn assert_is_empty_if_touched(overlay: &OverlayBackend) {
    if overlay.upper().exists("/turn").await.unwrap() {
        assert_is_empty(overlay).await;
    }
}

fn histories(cases: u32, lower: impl Fn() -> (Arc<dyn Backend>, Option<tempfile::TempDir>)) {
    let asked = std::env::var("TREEHOLD_MODEL_CASES").ok().and_then(|text| text.parse().ok());
    let (cases, rng_seed) = asked.map_or((cases, RngSeed::Fixed(1)), |asked| (asked, RngSeed::Random));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(seeds in proptest::collection::vec(change(), 0..25), steps in proptest::collection::vec(step(), 1..15))| {
        let (lower, keep) = lower();
        runtime.block_on(follow(lower, seeds, steps));
        drop(keep);
    });
}

#[test]
fn overlay_over_a_state_behaves_like_a_plain_tree() {
    histories(48, || (Arc::new(StateBackend::new()), None));
}

#[cfg(all(feature = "filesystem", unix))]
#[test]
fn overlay_over_a_directory_behaves_like_a_plain_tree() {
    histories(16, || {
        let directory = tempfile::tempdir().unwrap();
        let files = treehold::FilesystemBackend::open(directory.path(), treehold::FilesystemOptions::new()).unwrap();
        (Arc::new(files), Some(directory))
    });
}
