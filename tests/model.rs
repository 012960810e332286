//! Random operations with a bias for edge cases, on every backend and the model at once.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use treehold::conformance::backend::Tree;
use treehold::conformance::history::{Expectation, Mutation, Step, check};
use treehold::ops::{CaseMode, Edit, GlobOptions, GrepOptions, GrepOutput, LsOptions, ReadOptions, SearchOptions};

#[path = "conformance/layer_trees.rs"]
mod layer_trees;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
mod servers;
#[path = "model/snapshots.rs"]
mod snapshots;
#[path = "model/stores.rs"]
mod stores;
#[path = "conformance/trees.rs"]
mod trees;

const NAMES: [&str; 16] =
    ["a", "b", "c", "a-b", "a.b", "ab", "foo..bar", ".dot", ".gitignore", "é", "日本", "n.md", "n.rs", "[z]", "x y", "*"];

const PIECES: [&[u8]; 20] = [
    b"a",
    b"b",
    b"x",
    b"needle",
    b"Needle",
    b"\n",
    b"\r\n",
    b"\r",
    b" ",
    b"\0",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\xe2\x80\xa8",
    "é".as_bytes(),
    b"needle one\n",
    b"line two\r\n",
    b"fn main() {\n",
    b"}\n",
    b"/a\n*.md\n!b\n",
    b"ab/\n",
];

fn segment() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => proptest::sample::select(&NAMES[..]).prop_map(str::to_owned),
        1 => Just("l".repeat(255)),
        1 => "[a-cé. -]{1,4}".prop_filter("a legal name", |name| name != "." && name != ".."),
    ]
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        1 => Just("/".to_owned()),
        20 => vec(segment(), 1..=4).prop_map(|segments| format!("/{}", segments.join("/"))),
        // Few names, so that operations collide.
        30 => vec(proptest::sample::select(&NAMES[..3]), 1..=3).prop_map(|segments| format!("/{}", segments.join("/"))),
    ]
}

fn text() -> impl Strategy<Value = String> {
    vec(proptest::sample::select(vec!["a", "b", "x", "needle", "\n", "\r\n", "one", " ", "é", "line two", "a\nb"]), 0..4)
        .prop_map(|pieces| pieces.concat())
}

fn content() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        30 => vec(proptest::sample::select(&PIECES[..]), 0..12).prop_map(|pieces| Bytes::from(pieces.concat())),
        1 => (8_000_usize..8_400, any::<u8>()).prop_map(|(size, byte)| Bytes::from(vec![byte; size])),
        1 => (8_100_usize..8_300).prop_map(|at| Bytes::from([vec![b'x'; at], b"\0needle\n".to_vec()].concat())),
    ]
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = (text(), text(), any::<bool>()).prop_map(|(old, new, all)| if all { Edit::all(old, new) } else { Edit::new(old, new) });
    vec(edit, 0..4)
}

fn expectation() -> impl Strategy<Value = Expectation> {
    prop_oneof![3 => Just(Expectation::Current), 1 => Just(Expectation::Stale)]
}

fn maybe_expectation() -> impl Strategy<Value = Option<Expectation>> {
    prop_oneof![3 => Just(None), 1 => expectation().prop_map(Some)]
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        8 => (path(), content()).prop_map(|(path, content)| Mutation::Overwrite(path, content)),
        2 => (path(), content()).prop_map(|(path, content)| Mutation::Create(path, content)),
        2 => (path(), content(), expectation()).prop_map(|(path, content, expectation)| Mutation::WriteIf(path, content, expectation)),
        2 => (path(), content()).prop_map(|(path, content)| Mutation::Append(path, content)),
        4 => (path(), edits(), maybe_expectation()).prop_map(|(path, edits, expectation)| Mutation::Edit(path, edits, expectation)),
        2 => path().prop_map(Mutation::CreateDir),
        3 => (path(), any::<bool>(), maybe_expectation()).prop_map(|(path, recursive, expect)| Mutation::Delete(path, recursive, expect)),
        3 => (path(), path(), any::<bool>()).prop_map(|(from, to, overwrite)| Mutation::Rename(from, to, overwrite)),
        3 => (path(), path(), any::<bool>()).prop_map(|(from, to, overwrite)| Mutation::Copy(from, to, overwrite)),
    ]
}

fn glob() -> impl Strategy<Value = String> {
    let piece = proptest::sample::select(vec![
        "a",
        "b",
        "*",
        "?",
        "**",
        "a*",
        "*.md",
        "{a,b}",
        "{,x}a",
        "{a,b/c}",
        "[ab]",
        "[!a]",
        "[à-ü]",
        ".dot",
        ".*",
        "n.{md,rs}",
        "é",
        "[[]z]",
        "\\*",
        "foo..bar",
    ]);
    (any::<bool>(), vec(piece, 1..4)).prop_map(|(anchored, pieces)| format!("{}{}", if anchored { "/" } else { "" }, pieces.join("/")))
}

fn limit() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0_usize), 3 => 1_usize..4, 4 => Just(1_000)]
}

fn glob_options() -> impl Strategy<Value = GlobOptions> {
    (glob(), any::<[bool; 5]>(), limit()).prop_map(|(pattern, [hidden, entered, ignored, insensitive, directories], limit)| {
        let options = GlobOptions::new(pattern).with_limit(limit).with_directories(directories).with_case_insensitive(insensitive);
        options.with_hidden(hidden).with_hidden_directories(entered).with_ignored(ignored)
    })
}

fn grep_options() -> impl Strategy<Value = GrepOptions> {
    let pattern = prop_oneof![
        3 => proptest::sample::select(vec![("needle", false), ("a", false), ("x", false), ("line two", false), ("é", false)]),
        2 => proptest::sample::select(vec![(r"^\w+", true), ("need.*e", true), ("a|b$", true), (r"\s$", true), ("[^a]b", true), ("(?i)NEEDLE", true)]),
    ];
    let globs = || vec(glob(), 0..2);
    let flags = (any::<[bool; 6]>(), 0_usize..3, 0_usize..3, proptest::option::weighted(0.2, 0_u64..30));
    (pattern, globs(), globs(), flags, limit(), proptest::option::weighted(0.2, 1_usize..3), 0_u8..9).prop_map(
        |(
            (pattern, regex),
            include,
            exclude,
            ([hidden, entered, ignored, binary, word, line], before, after, size),
            limit,
            of_file,
            kind,
        )| {
            let mut options = if regex { GrepOptions::regex(pattern) } else { GrepOptions::new(pattern) };
            (options.include, options.exclude, options.size_max_bytes) = (include, exclude, size);
            options.case = [CaseMode::Sensitive, CaseMode::Insensitive, CaseMode::Smart][usize::from(kind % 3)];
            options.output = [GrepOutput::Content, GrepOutput::Files, GrepOutput::Counts][usize::from(kind / 3)];
            // Context lines on one page may be matches on the next, so the sum of pages is only defined without
            // context.
            if limit == 1_000 {
                options = options.with_context(before, after);
                // Which context follows the last line that a file may return is unspecified.
                options.file_matches_max = of_file.filter(|_| before + after == 0);
            }
            options.invert = kind == 8;
            options
                .with_hidden(hidden)
                .with_hidden_directories(entered)
                .with_ignored(ignored)
                .with_binary(binary)
                .with_word(word)
                .with_whole_line(line)
                .with_matches_max(limit)
        },
    )
}

/// Words that occur in no path, because the words of a path depend on where a tree is mounted.
fn search_options() -> impl Strategy<Value = SearchOptions> {
    let query = proptest::sample::select(vec!["needle", "needles", "line two", "needle or line", "absent"]);
    (query, vec(glob(), 0..2), vec(glob(), 0..2), any::<[bool; 3]>(), 1_usize..4).prop_map(
        |(query, include, exclude, [hidden, entered, ignored], limit)| {
            let mut options = SearchOptions::new(query).with_hidden(hidden).with_hidden_directories(entered);
            options = options.with_ignored(ignored).with_limit(limit);
            (options.include, options.exclude) = (include, exclude);
            options
        },
    )
}

fn read_options() -> impl Strategy<Value = ReadOptions> {
    prop_oneof![
        2 => Just(ReadOptions::new()),
        2 => (0_usize..5, 0_usize..5).prop_map(|(offset, limit)| ReadOptions::lines(offset, limit)),
        2 => (0_u64..20, 0_u64..20).prop_map(|(offset, limit)| ReadOptions::bytes(offset, limit)),
        1 => (0_usize..3, 0_u64..12).prop_map(|(offset, max)| ReadOptions::lines(offset, 9).with_bytes_max(max)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => mutation().prop_map(|mutation| Step::Apply(vec![mutation])),
        3 => vec(mutation(), 0..5).prop_map(Step::Apply),
        1 => path().prop_map(Step::Stat),
        2 => (path(), read_options()).prop_map(|(path, options)| Step::Read(path, options)),
        1 => (path(), limit()).prop_map(|(path, limit)| Step::Ls(path, LsOptions::new().with_limit(limit))),
        3 => (prop_oneof![2 => Just("/".to_owned()), 1 => path()], glob_options()).prop_map(|(path, options)| Step::Glob(path, options)),
        3 => (prop_oneof![2 => Just("/".to_owned()), 1 => path()], grep_options()).prop_map(|(path, options)| Step::Grep(path, options)),
        2 => (prop_oneof![2 => Just("/".to_owned()), 1 => path()], search_options()).prop_map(|(path, options)| Step::Search(path, options)),
    ]
}

/// Runs histories on fresh trees of one kind. `TREEHOLD_MODEL_CASES` sets how many.
fn histories<F: Future<Output = treehold::conformance::Fresh<Tree>>>(cases: u32, fresh: impl Fn() -> F) {
    // By default the same histories every time, so that a failure is due to the change. With `TREEHOLD_MODEL_CASES`
    // they are random.
    let asked = std::env::var("TREEHOLD_MODEL_CASES").ok().and_then(|text| text.parse().ok());
    let (cases, rng_seed) = asked.map_or((cases, RngSeed::Fixed(1)), |asked| (asked, RngSeed::Random));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig { cases, rng_seed, failure_persistence: None, max_shrink_iters: 4_000, ..ProptestConfig::default() };
    proptest!(config, |(steps in vec(step(), 1..30))| {
        runtime.block_on(async {
            let (tree, keep) = fresh().await.into_parts();
            check(&tree, &steps).await;
            drop((tree, keep));
        });
    });
}

macro_rules! rows {
    ($($(#[$attribute:meta])* $name:ident: $cases:expr, $fresh:expr;)+) => { $($(#[$attribute])* #[test] fn $name() { histories($cases, $fresh); })+ };
}

rows! {
    model: 32, trees::model;
    state: 256, trees::state;
    store_memory: 128, trees::store_memory;
    store_small_pages: 128, trees::store_small_pages;
    store_with_history: 96, trees::store_with_history;
    store_indexed: 96, trees::store_indexed;
    #[cfg(feature = "sqlite")]
    store_sqlite: 32, trees::store_sqlite;
    #[cfg(feature = "sled")]
    store_sled: 16, trees::store_sled;
    #[cfg(feature = "mysql")]
    #[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
    store_mysql: 16, trees::store_mysql;
    #[cfg(feature = "postgres")]
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    store_postgres: 16, trees::store_postgres;
    #[cfg(feature = "redis")]
    #[ignore = "needs Redis: run scripts/servers.sh"]
    store_redis: 16, trees::store_redis;
    #[cfg(feature = "filesystem")]
    filesystem: 64, trees::filesystem;
    #[cfg(feature = "filesystem")]
    filesystem_by_component: 32, trees::filesystem_by_component;
    composite_default: 64, trees::composite_default;
    composite_mount: 64, trees::composite_mount;
    composite_nested: 64, trees::composite_nested;
    composite_three_deep: 64, trees::composite_three_deep;
    composite_merged: 64, trees::composite_merged;
    composite_merged_mount: 64, trees::composite_merged_mount;
    subtree: 64, trees::subtree;
    overlay_empty: 64, trees::overlay_empty;
    overlay_store: 64, trees::overlay_store;
    overlay_beside: 64, trees::overlay_beside;
    overlay_hiding: 64, trees::overlay_hiding;
    overlay_nested: 32, trees::overlay_nested;
    #[cfg(feature = "filesystem")]
    overlay_filesystem: 32, trees::overlay_filesystem;
    layer_audit: 32, layer_trees::layer_audit;
    layer_limit: 32, layer_trees::layer_limit;
    layer_permissions: 32, layer_trees::layer_permissions;
    layer_protected: 32, layer_trees::layer_protected;
    layer_quota: 32, layer_trees::layer_quota;
    layer_retry: 32, layer_trees::layer_retry;
    layer_timeout: 32, layer_trees::layer_timeout;
    layer_stack: 32, layer_trees::layer_stack;
}
