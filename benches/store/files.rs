//! A tree of 10,000 files of 4 KiB on SQLite, measured like deepagents' `StoreBackend` over LangGraph's `SqliteStore`:
//! `ls` of a directory of 200, a glob with a literal prefix, a grep that finds one file in a hundred, and deleting
//! everything in one directory.

use crate::work::{BODY, ROWS, delete_of, write_files};
use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup};
use std::cell::LazyCell;
use std::sync::Arc;
use tokio::runtime::Runtime;
use treehold::ops::{ApplyOptions, GlobOptions, GrepOptions, GrepOutput, LsOptions};
#[cfg(all(feature = "mysql", feature = "postgres", feature = "redis"))]
use treehold::store::Store;
use treehold::store::{Namespace, SqliteStore};
use treehold::{Backend, StoreBackend, VfsPath};

pub(crate) fn bench(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime) {
    let directory = tempfile::tempdir().unwrap();
    let fill = |tree: &StoreBackend| write_files(runtime, tree, (0..ROWS).map(|number| (path(number), content(number))));
    let tree = LazyCell::new(|| {
        let store = Arc::new(SqliteStore::open(directory.path().join("files.db")).unwrap());
        let tree = StoreBackend::new(store, Namespace::new(["acme", "ada", "files"]).unwrap());
        fill(&tree);
        tree
    });
    let root = VfsPath::ROOT;
    let listed = VfsPath::parse("/all/d07").unwrap();
    group.bench_function("files_10000/ls_200", |bencher| {
        bencher.iter(|| assert_eq!(runtime.block_on(tree.ls(&listed, &LsOptions::new())).unwrap().entries.len(), 200));
    });
    group.bench_function("files_10000/glob_with_prefix", |bencher| {
        bencher.iter(|| assert_eq!(runtime.block_on(tree.glob(root, &GlobOptions::new("/all/d07/**/*.md"))).unwrap().entries.len(), 100));
    });
    group.bench_function("files_10000/glob_all", |bencher| {
        let options = GlobOptions::new("**/*.md").with_limit(ROWS);
        bencher.iter(|| assert_eq!(runtime.block_on(tree.glob(root, &options)).unwrap().entries.len(), ROWS / 2));
    });
    group.bench_function("files_10000/grep_literal", |bencher| {
        let options = GrepOptions::new("the needle").with_output(GrepOutput::Files);
        bencher.iter(|| runtime.block_on(tree.grep(root, &options)).unwrap());
    });
    group.bench_function("files_10000/delete_all", |bencher| {
        let delete = delete_of(&VfsPath::parse("/all").unwrap());
        bencher.iter_batched(
            || fill(&tree),
            |()| runtime.block_on(tree.apply(std::slice::from_ref(&delete), &ApplyOptions::new())).unwrap(),
            BatchSize::PerIteration,
        );
    });
}

/// Searches trees on a server for a rare text: once for a single text, which the engine filters by, and once for two
/// alternatives, which requires all bodies.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) fn bench_grep(group: &mut BenchmarkGroup<'_, WallTime>, runtime: &Runtime, name: &str, store: &Arc<dyn Store>) {
    for (size_bytes, files) in [(1 << 10, 2_000), (4 << 10, 2_000), (64 << 10, 500)] {
        let kibibytes = format!("{}k", size_bytes >> 10);
        let tree = LazyCell::new(|| {
            let tree = StoreBackend::new(store.clone(), Namespace::new(["acme", "ada", &kibibytes]).unwrap());
            write_files(runtime, &tree, (0..files).map(|number| (path(number), source(number, size_bytes))));
            tree
        });
        for (what, options) in
            [("in_engine", GrepOptions::new("needle_in_it")), ("all_sent", GrepOptions::regex("needle_in_it|thread_in_it"))]
        {
            let options = options.with_output(GrepOutput::Files);
            group.bench_function(format!("grep_{kibibytes}_{what}/{name}"), |bencher| {
                bencher.iter(|| assert_eq!(runtime.block_on(tree.grep(VfsPath::ROOT, &options)).unwrap().files.len(), files.div_ceil(100)));
            });
        }
    }
}

#[cfg(all(feature = "mysql", feature = "postgres", feature = "redis"))]
fn source(number: usize, size_bytes: usize) -> Vec<u8> {
    let lines = (0..).map(|line| format!("    let name_{line} = self.state.get(index + {number}).needed(); // in line {line}\n"));
    let mut text: Vec<u8> = lines.flat_map(String::into_bytes).take(size_bytes).collect();
    if number.is_multiple_of(100) {
        text[size_bytes / 2..][..12].copy_from_slice(b"needle_in_it");
    }
    text
}

fn path(number: usize) -> String {
    format!("/all/d{:02}/file-{number:05}.{}", number % 50, if (number / 50).is_multiple_of(2) { "md" } else { "txt" })
}

fn content(number: usize) -> Vec<u8> {
    let line = format!("a line of file {number} that says nothing of note\n");
    let mut content = line.repeat(*BODY / line.len());
    if number.is_multiple_of(100) {
        content.push_str("the needle\n");
    }
    content.into_bytes()
}
