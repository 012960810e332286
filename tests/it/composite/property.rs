//! A composite with mounts anywhere behaves like one flat tree: the model, with a directory at each mount point.

use super::{path, state};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use treehold::conformance::model::ModelBackend;
use treehold::error::Result;
use treehold::ops::{Change, Changed, GlobOptions, GrepOptions, GrepOutput, LsOptions, ReadOptions, StatOptions, WriteMode};
use treehold::{Backend, BackendExt, CompositeBackend, ErrorKind, VfsPath, VfsPathBuf};

const MOUNTS: [&str; 8] = ["/.h", "/a", "/a/b", "/a/b/c/d", "/b/c", "/c.md", "/v/w", "/v/w/a"];
const NAMES: [&str; 10] = ["a", "b", "c", "d", "v", "w", ".h", "n.md", "c.md", "a-b"];
const CONTENTS: [&str; 4] = ["needle\n", "hay\nneedle\nneedle", "", "hay\n"];

/// One read of a tree.
#[derive(Debug, Clone)]
enum Look {
    Stat,
    Read,
    Ls(LsOptions),
    Glob(GlobOptions),
    Grep(GrepOptions),
}

fn some_path() -> impl Strategy<Value = VfsPathBuf> {
    prop_oneof![
        6 => vec(select(&NAMES[..]), 1..=4).prop_map(|names| path(&format!("/{}", names.join("/")))),
        3 => (select(&MOUNTS[..]), vec(select(&NAMES[..]), 0..=2)).prop_map(|(mount, names)| path(&format!("{mount}/{}", names.join("/")))),
        1 => Just(VfsPathBuf::root()),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let content = || select(&CONTENTS[..]).prop_map(|text| text.into());
    let mode = || select(vec![WriteMode::Overwrite, WriteMode::Overwrite, WriteMode::CreateNew]);
    prop_oneof![
        10 => (some_path(), content(), mode()).prop_map(|(path, content, mode)| Change::Write { path, content, mode }),
        1 => some_path().prop_map(|path| Change::Append { path, content: "needle\n".into() }),
        2 => some_path().prop_map(|path| Change::CreateDir { path }),
        2 => (some_path(), any::<bool>()).prop_map(|(path, recursive)| Change::Delete { path, recursive, expect: None }),
        4 => (some_path(), some_path(), any::<bool>()).prop_map(|(from, to, overwrite)| Change::Rename { from, to, overwrite }),
        4 => (some_path(), some_path(), any::<bool>()).prop_map(|(from, to, overwrite)| Change::Copy { from, to, overwrite }),
    ]
}

fn pattern() -> impl Strategy<Value = String> {
    let piece = select(vec!["a", "b", "*", "?", "**", "*.md", "{a,b}", "{a,b/c}", "[!a]", ".h", ".*", "{v/w,.h}", "d", "w"]);
    (any::<bool>(), vec(piece, 1..4)).prop_map(|(anchored, pieces)| format!("{}{}", if anchored { "/" } else { "" }, pieces.join("/")))
}

fn limit() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 1_usize..5, 2 => Just(1_000), 1 => Just(0)]
}

fn look() -> impl Strategy<Value = Look> {
    let glob = (pattern(), limit(), any::<[bool; 2]>()).prop_map(|(pattern, limit, [directories, hidden])| {
        Look::Glob(GlobOptions::new(pattern).with_limit(limit).with_directories(directories).with_hidden(hidden))
    });
    let output = select(vec![GrepOutput::Content, GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts]);
    let grep = (vec(pattern(), 0..3), vec(pattern(), 0..2), limit(), output, any::<bool>()).prop_map(
        |(include, exclude, limit, output, hidden)| {
            let mut options = GrepOptions::new("needle").with_matches_max(limit).with_output(output).with_hidden(hidden);
            (options.include, options.exclude) = (include, exclude);
            Look::Grep(options)
        },
    );
    prop_oneof![
        1 => Just(Look::Stat),
        1 => Just(Look::Read),
        2 => limit().prop_map(|limit| Look::Ls(LsOptions::new().with_limit(limit))),
        4 => glob,
        4 => grep,
    ]
}

/// Reads, page by page, and returns the result as text.
async fn seen(tree: &dyn Backend, at: &VfsPath, look: Look) -> Result<Vec<String>, ErrorKind> {
    match look {
        Look::Stat => {
            tree.stat(at, &StatOptions::new()).await.map(|entry| vec![format!("{} {} {}", entry.path, entry.kind, entry.size_bytes)])
        }
        Look::Read => tree.read(at, &ReadOptions::new()).await.map(|read| vec![format!("{:?}", read.content)]),
        Look::Ls(options) => list(tree, at, options).await,
        Look::Glob(options) => glob(tree, at, options).await,
        Look::Grep(options) => grep(tree, at, options).await,
    }
    .map_err(|error| {
        assert!(error.path().is_none_or(|path| path.starts_with(at) || at.starts_with(path)), "{error:?} of {at}");
        error.kind()
    })
}

async fn list(tree: &dyn Backend, at: &VfsPath, mut options: LsOptions) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    loop {
        let page = tree.ls(at, &options).await?;
        seen.extend(page.entries.iter().map(|entry| format!("{} {} {}", entry.path, entry.kind, entry.size_bytes)));
        match page.truncated {
            Some(cut) if options.limit > 0 => options.start_after = Some(cut.cursor),
            cut => {
                seen.push(format!("cut {}", cut.is_some()));
                return Ok(seen);
            }
        }
    }
}

async fn glob(tree: &dyn Backend, at: &VfsPath, mut options: GlobOptions) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    loop {
        let page = tree.glob(at, &options).await?;
        assert!(
            page.truncated.is_none() || page.entries.len() == options.limit,
            "a truncated page has as many entries as the limit: {page:?}"
        );
        seen.extend(page.entries.iter().map(|entry| format!("{} {} {}", entry.path, entry.kind, entry.size_bytes)));
        match page.truncated {
            Some(cut) if options.limit > 0 => options.start_after = Some(cut.cursor.parse().unwrap()),
            cut => {
                seen.push(format!("cut {}", cut.is_some()));
                return Ok(seen);
            }
        }
    }
}

async fn grep(tree: &dyn Backend, at: &VfsPath, mut options: GrepOptions) -> Result<Vec<String>> {
    let mut seen = Vec::new();
    loop {
        let page = tree.grep(at, &options).await?;
        assert!(
            page.truncated.is_none() || page.matches() == options.matches_max,
            "a truncated page has as many matches as the limit: {page:?}"
        );
        for file in &page.files {
            match options.output {
                GrepOutput::Content => seen.extend(file.lines.iter().map(|line| format!("{}:{}:{:?}", file.path, line.line, line.text))),
                _ => seen.push(format!("{}: {}", file.path, file.count)),
            }
        }
        match page.truncated {
            Some(cut) if options.matches_max > 0 => options.start_after = Some(cut.cursor.parse().unwrap()),
            cut => {
                let searched = if cut.is_none() && options.start_after.is_none() { page.files_searched } else { 0 };
                seen.push(format!("cut {}, {searched} searched", cut.is_some()));
                return Ok(seen);
            }
        }
    }
}

/// Both trees: the composite, and the model with a directory at each mount point.
struct Both {
    mounts: Vec<VfsPathBuf>,
    composite: CompositeBackend,
    flat: ModelBackend,
}

impl Both {
    async fn new(mounts: &[&str]) -> Self {
        let flat = ModelBackend::new();
        for mount in mounts {
            flat.create_dir(mount).await.unwrap();
        }
        let composite = CompositeBackend::builder(state()).routes(mounts.iter().map(|mount| (mount, state()))).unwrap().build().unwrap();
        Self { mounts: mounts.iter().map(|mount| path(mount)).collect(), composite, flat }
    }

    /// Returns whether a mount is at or beneath a path.
    fn holds_mount(&self, at: &VfsPath) -> bool {
        at.is_root() || self.mounts.iter().any(|mount| mount.starts_with(at))
    }

    async fn apply(&self, change: &Change) {
        let seen = self.composite.apply_one(change.clone()).await;
        let takes_away = matches!(change, Change::Delete { .. } | Change::Rename { .. }) && self.holds_mount(change.path());
        if takes_away {
            assert_eq!(seen.expect_err("mounts stay").kind(), ErrorKind::InvalidArgument, "{change:?}");
            return;
        }
        let expected = self.flat.apply_one(change.clone()).await;
        let shown = |changed: Changed| {
            let Changed { operation, path, size_bytes, created, entries, .. } = changed;
            (operation, path, size_bytes, created, entries)
        };
        match (seen, expected) {
            // A mount cannot be replaced, but the flat tree has an ordinary directory there.
            (Err(_), Err(_)) if change.target().is_some_and(|to| self.holds_mount(to)) => {}
            (seen, expected) => {
                assert_eq!(seen.map(shown).map_err(|error| error.kind()), expected.map(shown).map_err(|error| error.kind()), "{change:?}");
            }
        }
        assert_eq!(everything(&self.composite).await, everything(&self.flat).await, "the tree after {change:?}");
    }
}

async fn everything(tree: &dyn Backend) -> Vec<String> {
    let tree = tree.tree("/", 20, 10_000).await.unwrap();
    tree.entries.iter().map(|entry| format!("{} {} {}", entry.path, entry.kind, entry.size_bytes)).collect()
}

#[test]
fn composite_behaves_like_one_flat_tree() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cases = std::env::var("TREEHOLD_MODEL_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(96);
    let config = ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 4_000, ..ProptestConfig::default() };
    let looks = || vec((some_path(), look()), 1..16);
    proptest!(config, |(mounts in subsequence(MOUNTS.to_vec(), 0..=MOUNTS.len()), changes in vec(change(), 1..24), looks in looks())| {
        runtime.block_on(async {
            let both = Both::new(&mounts).await;
            for change in &changes {
                both.apply(change).await;
            }
            for (at, look) in looks {
                for at in [&*at, VfsPath::ROOT] {
                    let (found, expected) = (seen(&both.composite, at, look.clone()).await, seen(&both.flat, at, look.clone()).await);
                    assert_eq!(found, expected, "{look:?} at {at}");
                }
            }
        });
    });
}
