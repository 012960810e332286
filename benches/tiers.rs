//! The three tiers compared with what a program would use without them: a `BTreeMap` for state, `std::fs` and `rg` for
//! the disk, and one `memmem` pass for searches in memory (both in processor time, because searches run on all cores).
//! Also the cost of a listing or glob by the number of other files.
//!
//! `rg` runs as a process, including its start and output, because that is how others use it. If it is not installed,
//! its rows are omitted with a notice.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use bytes::Bytes;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use memchr::memmem;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use treehold::ops::{Change, GlobOptions, GrepOptions, GrepOutput, LsOptions, ReadOptions, WriteMode};
use treehold::store::{MemoryStore, Namespace, SledStore, SqliteStore};
use treehold::{
    Backend, BackendExt, CompositeBackend, FilesystemBackend, FilesystemOptions, StateBackend, StoreBackend, VfsPath, VfsPathBuf,
};

const FILES: usize = 10_000;
const FILE_BYTES: usize = 4_096;

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

/// Lines of source-like words. One file in a hundred contains the needle.
fn content(index: usize) -> Bytes {
    const WORDS: [&str; 12] =
        ["let", "value", "return", "buffer", "(index)", "=", "self.state", "match", "Option<usize>", "// note", "String::new()", "{}"];
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64 ^ (index as u64).wrapping_mul(0xD129_0B3B_9E1D_77A5) | 1;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize
    };
    let mut text = String::with_capacity(FILE_BYTES + 80);
    while text.len() < FILE_BYTES {
        text.push_str("    ");
        for _ in 0..random() % 9 {
            text.push_str(WORDS[random() % WORDS.len()]);
            text.push(' ');
        }
        text.push('\n');
    }
    text.truncate(FILE_BYTES);
    if index % 100 == 7 {
        text.replace_range(2_000..2_012, "needle_in_it");
    }
    Bytes::from(text)
}

fn name(index: usize) -> String {
    format!("/project/module_{:03}/file_{index}.rs", index / 100)
}

fn write(path: String, content: Bytes) -> Change {
    Change::Write { path: self::path(&path), content, mode: WriteMode::Overwrite }
}

/// Fills a tree with files, in batches.
fn fill(runtime: &Runtime, tree: &dyn Backend, files: impl Iterator<Item = (String, Bytes)>) {
    let changes: Vec<Change> = files.map(|(path, content)| write(path, content)).collect();
    for batch in changes.chunks(500) {
        runtime.block_on(tree.apply(batch, &Default::default())).unwrap();
    }
}

fn group<'c>(criterion: &'c mut Criterion, name: &str) -> BenchmarkGroup<'c, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    group
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// Visits the files in an order unlike that of their names.
fn turns() -> impl FnMut() -> usize {
    let mut turn = 0_usize;
    move || {
        turn += 1;
        turn.wrapping_mul(7_919) % FILES
    }
}

/// A read and a write of 4 KiB in the state tier, direct and through a composite, compared with a `BTreeMap` of the
/// same paths.
fn state(criterion: &mut Criterion) {
    let runtime = runtime();
    let state = Arc::new(StateBackend::new());
    fill(&runtime, &*state, (0..FILES).map(|index| (name(index), content(index))));
    let mut map: BTreeMap<String, Bytes> = (0..FILES).map(|index| (name(index), content(index))).collect();
    let child: Arc<dyn Backend> = state.clone();
    let composite = CompositeBackend::builder(child.clone()).route("/memories", child).unwrap().build().unwrap();
    let paths: Vec<VfsPathBuf> = (0..FILES).map(|index| path(&name(index))).collect();
    let options = ReadOptions::new();
    let mut group = group(criterion, "state");
    let mut next = turns();
    group.bench_function("read/btreemap", |bencher| bencher.iter(|| map.get(paths[next()].as_str()).unwrap().clone()));
    for (name, tree) in [("state", &*state as &dyn Backend), ("through_composite", &composite)] {
        group.bench_function(format!("read/{name}"), |bencher| {
            bencher.iter(|| tree.read(&paths[next()], &options).now_or_never().unwrap().unwrap().content);
        });
    }
    let body = content(1);
    group.bench_function("write/btreemap", |bencher| bencher.iter(|| map.insert(paths[next()].as_str().to_owned(), body.clone())));
    for (name, tree) in [("state", &*state as &dyn Backend), ("through_composite", &composite)] {
        group.bench_function(format!("write/{name}"), |bencher| {
            bencher.iter(|| {
                let change = Change::Write { path: paths[next()].clone(), content: body.clone(), mode: WriteMode::Overwrite };
                tree.apply(&[change], &Default::default()).now_or_never().unwrap().unwrap()
            });
        });
    }
    group.bench_function("snapshot", |bencher| bencher.iter(|| state.snapshot()));
    group.finish();
}

/// One `memmem` pass over all contents, on as many threads as a search uses.
fn memmem_pass(contents: &[Bytes], needle: &str, threads: usize) -> usize {
    let (finder, next, found) = (memmem::Finder::new(needle), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let work = || {
            while let Some(chunk) = contents.chunks(256).nth(next.fetch_add(1, Ordering::Relaxed)) {
                found.fetch_add(chunk.iter().filter(|content| finder.find(content).is_some()).count(), Ordering::Relaxed);
            }
        };
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    found.into_inner()
}

/// Processor time of one `memmem` pass and of whole searches for the same text, alternating. Other load on the machine
/// slows all of them alike, so the medians of their ratios are printed.
fn grep_in_memory(_: &mut Criterion) {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    if wanted.is_some_and(|wanted| !"grep_in_memory".contains(&wanted)) {
        println!("grep_in_memory: skipped by the filter");
        return;
    }
    let rounds = if std::env::args().any(|argument| argument == "--bench") { 200 } else { 1 };
    let runtime = runtime();
    let contents: Vec<Bytes> = (0..FILES).map(content).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let state = StateBackend::new();
    fill(&runtime, &state, contents.iter().enumerate().map(|(index, content)| (name(index), content.clone())));
    let store = StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["ada"]).unwrap());
    fill(&runtime, &store, contents.iter().enumerate().map(|(index, content)| (name(index), content.clone())));
    let lines = GrepOptions::new("needle_in_it");
    let names = lines.clone().with_output(GrepOutput::Files);
    let grep = |tree: &dyn Backend, options: &GrepOptions| runtime.block_on(tree.grep(VfsPath::ROOT, options)).unwrap().files.len();
    let searches: [(&str, &dyn Fn() -> usize); 4] = [
        ("state, lines", &|| grep(&state, &lines)),
        ("state, names of files", &|| grep(&state, &names)),
        ("store over memory, lines", &|| grep(&store, &lines)),
        ("store over memory, names of files", &|| grep(&store, &names)),
    ];
    let pass = || memmem_pass(&contents, "needle_in_it", threads);
    println!("grep_in_memory_10k_x_4k: {:<34} {:>9} {:>20}", "", "time", format!("memmem, {threads} threads /"));
    for (name, search) in searches {
        let (mut times, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let bound = processor_time(&pass);
            let time = processor_time(search);
            times.push(time);
            ratios.push(bound / time);
        }
        println!("grep_in_memory_10k_x_4k: {name:<34} {:>6.2} ms {:>20.2}", median(&mut times) * 1e3, median(&mut ratios));
    }
}

/// Returns the processor time of a search on all threads together, in seconds.
fn processor_time(search: &dyn Fn() -> usize) -> f64 {
    let now = || -> Duration { clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap() };
    let started = now();
    assert_eq!(search(), FILES / 100);
    (now() - started).as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs `rg`, reading and discarding its output. Returns whether it found anything.
fn rg(directory: &Path, arguments: &[&str]) -> bool {
    Command::new("rg").args(arguments).current_dir(directory).stdin(Stdio::null()).output().unwrap().status.success()
}

fn filesystem(criterion: &mut Criterion) {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    for index in 0..FILES {
        let file = directory.path().join(&name(index)[1..]);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content(index)).unwrap();
    }
    let tree = FilesystemBackend::open(directory.path(), FilesystemOptions::new()).unwrap();
    let has_rg = Command::new("rg").arg("--version").output().is_ok();
    if !has_rg {
        println!("rg is not installed: its rows are left out");
    }
    let mut group = group(criterion, "filesystem");
    for (name, options, arguments) in [
        ("grep_rare", GrepOptions::new("needle_in_it"), &["-n", "-F", "needle_in_it", "."][..]),
        ("grep_common_files", GrepOptions::new("String::new").with_output(GrepOutput::Files), &["-l", "-F", "String::new", "."]),
        ("grep_regex", GrepOptions::regex(r"needle_\w+_it"), &["-n", r"needle_\w+_it", "."]),
        ("grep_nothing", GrepOptions::new("not to be found"), &["-n", "-F", "not to be found", "."]),
    ] {
        let options = options.with_matches_max(100_000);
        group.bench_function(format!("{name}/treehold"), |bencher| {
            bencher.iter(|| runtime.block_on(tree.grep(VfsPath::ROOT, &options)).unwrap().files.len());
        });
        if has_rg {
            group.bench_function(format!("{name}/rg"), |bencher| bencher.iter(|| rg(directory.path(), arguments)));
        }
    }
    group.bench_function("glob_all/treehold", |bencher| {
        let options = GlobOptions::new("**/*.rs").with_limit(100_000);
        bencher.iter(|| assert_eq!(runtime.block_on(tree.glob(VfsPath::ROOT, &options)).unwrap().entries.len(), FILES));
    });
    if has_rg {
        group.bench_function("glob_all/rg", |bencher| bencher.iter(|| rg(directory.path(), &["--files", "-g", "**/*.rs"])));
    }
    let mut next = turns();
    group.bench_function("read_4k/std", |bencher| bencher.iter(|| std::fs::read(directory.path().join(&name(next())[1..])).unwrap()));
    group.bench_function("read_4k/treehold", |bencher| {
        bencher.iter(|| runtime.block_on(tree.read(&path(&name(next())), &ReadOptions::new())).unwrap().content);
    });
    let body = content(3);
    group.bench_function("write_4k/std_temp_and_rename", |bencher| {
        bencher.iter(|| {
            let temp = directory.path().join("project/.temp");
            std::fs::write(&temp, &body).unwrap();
            std::fs::rename(&temp, directory.path().join(&name(next())[1..])).unwrap();
        });
    });
    group.bench_function("write_4k/treehold", |bencher| {
        bencher.iter(|| runtime.block_on(tree.write(name(next()).as_str(), body.clone())).unwrap());
    });
    group.bench_function("ls_100/std_with_metadata", |bencher| {
        bencher.iter(|| {
            let entries = std::fs::read_dir(directory.path().join("project/module_050")).unwrap();
            entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>()
        });
    });
    group.bench_function("ls_100/treehold", |bencher| {
        let module = path("/project/module_050");
        bencher.iter(|| assert_eq!(runtime.block_on(tree.ls(&module, &LsOptions::new())).unwrap().entries.len(), 100));
    });
    group.finish();
}

/// A directory of 200 files, alone and among 100,000 others, listed and searched by a glob with a literal prefix.
fn among_others(criterion: &mut Criterion) {
    let runtime = runtime();
    let directory = tempfile::tempdir().unwrap();
    let own = |index| (format!("/wanted/file_{index}.md"), Bytes::from_static(b"text"));
    let other = |index| (format!("/other_{:02}/part_{:03}/file_{index}.md", index % 50, index / 250), Bytes::from_static(b"text"));
    let space = || Namespace::new(["ada"]).unwrap();
    let mut group = group(criterion, "among_others");
    for tier in ["state", "memory", "sqlite", "sled"] {
        for others in [0, 100_000] {
            let place = directory.path().join(format!("{tier}-{others}"));
            let tree: Arc<dyn Backend> = match tier {
                "state" => Arc::new(StateBackend::new()),
                "memory" => Arc::new(StoreBackend::new(Arc::new(MemoryStore::new()), space())),
                "sqlite" => Arc::new(StoreBackend::new(Arc::new(SqliteStore::open(&place).unwrap()), space())),
                _ => Arc::new(StoreBackend::new(Arc::new(SledStore::open(&place).unwrap()), space())),
            };
            fill(&runtime, &*tree, (0..others).map(other).chain((0..200).map(own)));
            let (wanted, pattern) = (path("/wanted"), GlobOptions::new("wanted/**/*7.md"));
            group.bench_function(format!("ls_200/{tier}/{others}"), |bencher| {
                bencher.iter(|| assert_eq!(runtime.block_on(tree.ls(&wanted, &LsOptions::new())).unwrap().entries.len(), 200));
            });
            group.bench_function(format!("glob_prefix/{tier}/{others}"), |bencher| {
                bencher.iter(|| assert_eq!(runtime.block_on(tree.glob(VfsPath::ROOT, &pattern)).unwrap().entries.len(), 20));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, state, grep_in_memory, filesystem, among_others);
criterion_main!(benches);
