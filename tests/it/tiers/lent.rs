//! A grep over lent rows returns the same as a grep over pages of the same rows.

use super::spy::Spy;
use super::{namespace, path};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use std::sync::Arc;
use treehold::ops::{CaseMode, Change, GrepCursor, GrepOptions, GrepOutput, GrepResult, PathGuard, WriteMode};
use treehold::store::{Batch, Store};
use treehold::{Backend, StoreBackend, VfsPath};

const PATHS: &[&str] = &[
    "/.gitignore",
    "/.hidden/a.md",
    "/a",
    "/b/.gitignore",
    "/b/.ignore",
    "/b/.x",
    "/b/a.md",
    "/b/c/a.rs",
    "/b/c/d/deep.md",
    "/b/d.md",
    "/b-/a.md",
    "/b.md",
    "/target/a.md",
    "/z/target",
    "/z/é.md",
];

const CONTENTS: &[&str] =
    &["needle\n", "a\nneedle needle\nb\nNeedle\r\n", "", "nothing", "nul \0 needle", "target\n", "*.md\n!d.md\n", "/c/\n", "c\n"];

/// Keys of files without a parent directory, and keys that are not paths.
const STRANGERS: &[&str] =
    &["o\u{1}needle.md", "o\u{1}.gitignore", "o\u{1}.h\u{1}a.md", "b\u{1}o\u{1}a.md", "b\u{1}\u{1}x", "b\u{1}..", "x\ny", "\u{1}"];

fn options() -> impl Strategy<Value = GrepOptions> {
    let pattern =
        select(vec![GrepOptions::new("needle"), GrepOptions::regex("ne+dle|a"), GrepOptions::new(""), GrepOptions::new("says nothing")]);
    let output = select(vec![GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts]);
    let globs = (subsequence(vec!["*.md", "b/**", "!c", ".hidden/", "/z/é.md"], 0..2), subsequence(vec!["d.md", "b/c/", "target"], 0..2));
    let cursor = prop::option::of((select(PATHS), select(vec![0, 1, 2, GrepCursor::END])));
    let limits = (prop_oneof![3 => Just(1_000_usize), 2 => 0..6_usize], prop::option::of(0..20_u64));
    (pattern, output, globs, cursor, limits, any::<u16>()).prop_map(|(pattern, output, globs, cursor, (matches_max, size_max), flags)| {
        let on = |bit: u16| flags >> (2 * bit) & 3 == 0;
        let mut options =
            pattern.with_output(output).with_matches_max(matches_max).with_hidden(on(0)).with_ignored(on(1)).with_invert(on(2));
        options = options.with_binary(on(3)).with_case(if on(4) { CaseMode::Insensitive } else { CaseMode::Sensitive });
        options.include = globs.0.into_iter().map(str::to_owned).collect();
        options.exclude = globs.1.into_iter().map(str::to_owned).collect();
        options.start_after = cursor.map(|(file, line)| GrepCursor { path: path(file), line });
        options.size_max_bytes = size_max.filter(|_| on(5));
        if on(6) {
            options.scope.prune = vec![path("/b/c"), path("/a")];
        }
        if on(7) {
            options.scope.guard = Some(PathGuard::new(|path, _| path.name() != "d.md"));
        }
        options
    })
}

async fn fill(spy: &Spy, files: &[(&'static str, &'static str)], strangers: &[&'static str], copies: usize) {
    let tree = StoreBackend::new(Arc::new(spy.inner.clone()), namespace());
    let more = (0..copies).map(|copy| (format!("/b/copy-{copy:04}.md"), files[copy % files.len()].1.to_owned()));
    let files = files.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned()));
    let write =
        |(file, content): (String, String)| Change::Write { path: path(&file), content: content.into(), mode: WriteMode::Overwrite };
    tree.apply(&files.chain(more).map(write).collect::<Vec<_>>(), &Default::default()).await.unwrap();
    let meta = spy.inner.get(&namespace(), "a").await.unwrap().map(|item| item.meta).unwrap_or_default();
    let put = |batch: Batch, key: &&str| batch.put_with_meta(&namespace(), *key, meta.clone(), "needle\n");
    spy.inner.commit(strangers.iter().fold(Batch::new(), put)).await.unwrap();
}

/// Searches the rows of one store both lent and in pages.
async fn both(spy: &Spy, root: &VfsPath, options: &GrepOptions) -> [treehold::Result<GrepResult>; 2] {
    let lent = StoreBackend::new(Arc::new(spy.inner.clone()), namespace());
    let paged = StoreBackend::new(Arc::new(spy.clone()), namespace());
    [lent.grep(root, options).await, paged.grep(root, options).await]
}

/// A row that is not a file has no path in the tree: the search reports it at its position in key order. How far pages reach into
/// directories that are not entered, or beyond a limit, is unspecified.
fn comparable(mut result: GrepResult) -> GrepResult {
    let named = result.failures.len();
    result.failures.retain(|failure| !failure.path.is_root());
    result.failures_count -= named - result.failures.len();
    result
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lent_rows_are_searched_like_pages(
        files in vec((select(PATHS), select(CONTENTS)), 1..16),
        strangers in subsequence(STRANGERS.to_vec(), 0..4),
        copies in prop_oneof![3 => Just(0_usize), 1 => 100..1_500_usize],
        searches in vec((select(vec!["/", "/b", "/b/c", "/a"]), options()), 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let spy = Spy::default();
            fill(&spy, &files, &strangers, copies).await;
            for (root, options) in &searches {
                match both(&spy, &path(root), options).await {
                    [Ok(lent), Ok(paged)] => assert_eq!(comparable(lent), comparable(paged), "{root} {options:?}"),
                    [lent, paged] => assert_eq!(lent.map_err(|error| error.kind()), paged.map_err(|error| error.kind()), "{root} {options:?}"),
                }
            }
        });
    }
}

#[tokio::test]
async fn rows_that_are_not_files_are_reported_and_hide_no_others() {
    let spy = Spy::default();
    fill(&spy, &[("/a", "needle"), ("/b/a.md", "needle"), ("/z/target", "needle")], STRANGERS, 0).await;
    let [lent, paged] = both(&spy, VfsPath::ROOT, &GrepOptions::new("needle")).await.map(Result::unwrap);
    assert_eq!(lent.failures.iter().filter(|failure| failure.path.is_root()).count(), 4);
    assert_eq!((lent.failures_count, lent.files_searched), (paged.failures_count, paged.files_searched));
    assert_eq!(comparable(lent), comparable(paged));
}

#[tokio::test]
async fn rows_beyond_the_limit_are_not_searched() {
    let spy = Spy::default();
    let files: Vec<(&str, &str)> = vec![("/a", "needle"), ("/b/a.md", "needle")];
    fill(&spy, &files, &[], 3_000).await;
    let [lent, paged] = both(&spy, VfsPath::ROOT, &GrepOptions::new("needle").with_matches_max(1)).await.map(Result::unwrap);
    assert_eq!(lent, paged);
    assert_eq!(lent.files_searched, 1);
}
