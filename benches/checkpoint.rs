//! The cost of checkpoints by the number of files N in the thread: time, and bytes written as seen by the store. Also
//! the cost of opening a thread and reading one file, of fork, restore, diff and prune.
//!
//! Prints a table, and draws the growth to a file: `cargo bench --bench checkpoint -- --plot
//! docs/checkpoint-growth.svg`.
//! Figures are medians of repeated runs. Without `--bench`, as a test, it runs once at a small N.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use async_trait::async_trait;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use treehold::checkpoint::{At, Checkpointer, ListOptions, PruneOptions, PutOptions, StoreCheckpointer, diff};
use treehold::error::Result;
use treehold::ops::{Change, Version, WriteMode};
use treehold::store::{
    Batch, BatchWrite, Item, ItemPart, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, SledStore,
    SqliteStore, Store, StoreCapabilities, StoreExtensions,
};
use treehold::{Backend, BackendExt, Scope, StateBackend, VfsPathBuf};

const FILE_BYTES: usize = 4_096;

/// A store that counts commits and their bytes.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Store>,
    written: AtomicU64,
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Store for Counting {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: std::ops::Range<u64>) -> Result<Option<ItemPart>> {
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        let bytes: usize = batch
            .writes
            .iter()
            .map(|write| match write {
                BatchWrite::Put { namespace, key, meta, value, .. } => namespace.encoded().len() + key.len() + meta.len() + value.len(),
                BatchWrite::Append { namespace, meta, value, .. } => namespace.encoded().len() + 20 + meta.len() + value.len(),
                BatchWrite::Restore { namespace, item } => namespace.encoded().len() + item.key.len() + item.meta.len() + item.value.len(),
                BatchWrite::Touch { namespace, key, .. } => namespace.encoded().len() + key.len(),
                BatchWrite::Delete { namespace, key } => namespace.encoded().len() + key.len(),
                BatchWrite::DeletePrefix { namespace, prefix } => namespace.encoded().len() + prefix.len(),
                other => panic!("{other:?} is not counted"),
            })
            .sum();
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<treehold::store::Watch> {
        self.inner.watch(namespace).await
    }
}

fn path(index: usize) -> VfsPathBuf {
    VfsPathBuf::parse(format!("/project/module_{:03}/file_{index:06}.rs", index / 200)).unwrap()
}

/// The content of a file, unlike that of any other.
fn content(index: usize, edit: u64) -> Vec<u8> {
    let line = format!("file {index} of the project, edit {edit}, some words of source text\n");
    line.bytes().cycle().take(FILE_BYTES).collect()
}

fn scope(thread: &str) -> Scope {
    Scope::new().with_tenant("acme").with_user("ada").with_thread(thread)
}

/// The measurements at one N on one store.
#[derive(Debug, Clone, Default)]
struct Row {
    store: &'static str,
    files: usize,
    checkpoint: Duration,
    written: u64,
    get: Duration,
    open_and_read: Duration,
    fork: Duration,
    restore: Duration,
    diff: Duration,
    prune: Duration,
}

fn blake3_hex(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

fn median<T: Ord + Copy>(mut all: Vec<T>) -> T {
    all.sort_unstable();
    all[all.len() / 2]
}

fn fill(runtime: &Runtime, files: usize) -> StateBackend {
    let state = StateBackend::new();
    for start in (0..files).step_by(1_000) {
        let write = |index| Change::Write { path: path(index), content: content(index, 0).into(), mode: WriteMode::Overwrite };
        let batch: Vec<Change> = (start..files.min(start + 1_000)).map(write).collect();
        runtime.block_on(state.apply(&batch, &Default::default())).unwrap();
    }
    state
}

fn measure(runtime: &Runtime, name: &'static str, store: Arc<dyn Store>, files: usize, times: usize) -> Row {
    let store = Arc::new(Counting { inner: store, written: AtomicU64::new(0) });
    let checkpointer = StoreCheckpointer::new(store.clone());
    let own = scope("t");
    let state = fill(runtime, files);
    let mut head = runtime.block_on(checkpointer.put(&own, &state.snapshot(), &PutOptions::new())).unwrap().head;
    let mut row = Row { store: name, files, ..Row::default() };
    let any = |turn: usize| turn.wrapping_mul(7_919) % files;

    let (mut spent, mut written) = (Vec::new(), Vec::new());
    for turn in 0..times {
        let body = content(any(turn), turn as u64 + 1);
        runtime.block_on(state.write(path(any(turn)).as_str(), body)).unwrap();
        let before = store.written.load(Ordering::Relaxed);
        let started = Instant::now();
        head = runtime.block_on(checkpointer.put(&own, &state.snapshot(), &PutOptions::new().with_head(head))).unwrap().head;
        spent.push(started.elapsed());
        written.push(store.written.load(Ordering::Relaxed) - before);
    }
    (row.checkpoint, row.written) = (median(spent), median(written));
    drop(state);

    let time = |act: &mut dyn FnMut(usize)| {
        let run = |turn| {
            let started = Instant::now();
            act(turn);
            started.elapsed()
        };
        median((0..times).map(run).collect())
    };
    // The engine's cost of reading one row at this size, which every lookup pays three or four times.
    let bodies = Namespace::new(["acme", "ada", "_treehold", "threads", "bodies"]).unwrap();
    let keys: Vec<String> = (0..times).map(|turn| blake3_hex(&content(any(turn + times), 0))).collect();
    row.get = time(&mut |turn| assert!(runtime.block_on(store.get(&bodies, &keys[turn])).unwrap().is_some()));
    row.open_and_read = time(&mut |turn| {
        let opened = runtime.block_on(checkpointer.open(&own, At::Latest)).unwrap().unwrap();
        assert_eq!(runtime.block_on(opened.state.read_bytes(path(any(turn)).as_str())).unwrap().len(), FILE_BYTES);
    });
    row.fork = time(&mut |turn| {
        runtime.block_on(checkpointer.fork(&own, At::Latest, &format!("fork-{turn}"), &PutOptions::new())).unwrap();
    });
    let older = runtime.block_on(checkpointer.list(&own, &ListOptions::new().with_limit(2))).unwrap().checkpoints[1].id;
    row.diff = time(&mut |_| {
        let open = |at| runtime.block_on(checkpointer.open(&own, at)).unwrap().unwrap().state;
        let differences = runtime.block_on(diff(&open(older.into()), &open(At::Latest), None, 100)).unwrap();
        assert_eq!(differences.paths.len(), 1);
    });
    row.restore = time(&mut |_| drop(runtime.block_on(checkpointer.restore(&own, older, &PutOptions::new())).unwrap()));
    let started = Instant::now();
    let pruned = runtime.block_on(checkpointer.prune(&own, &PruneOptions::new().with_keep_last(1))).unwrap();
    row.prune = started.elapsed() / u32::try_from(pruned.removed.max(1)).unwrap();
    row
}

/// Returns how many bytes an idle file of state takes beyond its content, measured by the memory of this process.
fn idle_file_bytes(runtime: &Runtime, files: usize) -> i64 {
    let resident = || -> i64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        statm.split(' ').nth(1).and_then(|pages| pages.parse::<i64>().ok()).unwrap_or(0) * 4_096
    };
    let before = resident();
    let state = fill(runtime, files);
    let taken = resident() - before;
    let (entries, size_bytes) = runtime.block_on(state.snapshot().totals()).unwrap();
    assert!(entries as usize > files);
    (taken - size_bytes as i64) / files as i64
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Draws time by N, one line per store, for two measurements side by side, with logarithmic axes.
fn plot(rows: &[Row]) -> String {
    const COLOURS: [(&str, &str); 3] = [("memory", "#2b8a3e"), ("sled", "#e8590c"), ("sqlite", "#1971c2")];
    type Measure = fn(&Row) -> f64;
    let charts: [(&str, Measure); 2] =
        [("edit 4 KiB and checkpoint, µs", |row| micros(row.checkpoint)), ("open and read one file, µs", |row| micros(row.open_and_read))];
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 300\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"760\" height=\"300\" fill=\"white\"/>\n",
    );
    for (chart, (title, value)) in charts.iter().enumerate() {
        let left = 60.0 + chart as f64 * 370.0;
        let x = |files: usize| left + ((files as f64).log10() - 2.0) / 3.0 * 280.0;
        let y = |micros: f64| 240.0 - (micros.max(1.0).log10() / 4.0) * 190.0;
        writeln!(svg, "<text x=\"{}\" y=\"30\" text-anchor=\"middle\">{title}</text>", left + 140.0).unwrap();
        for power in 0..=4 {
            let at = y(10_f64.powi(power));
            writeln!(svg, "<line x1=\"{left}\" y1=\"{at}\" x2=\"{}\" y2=\"{at}\" stroke=\"#ddd\"/>", left + 280.0).unwrap();
            writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", left - 6.0, at + 4.0, 10_u32.pow(power as u32)).unwrap();
        }
        for files in [100, 1_000, 10_000, 100_000] {
            writeln!(svg, "<text x=\"{}\" y=\"258\" text-anchor=\"middle\">{files}</text>", x(files)).unwrap();
        }
        writeln!(svg, "<text x=\"{}\" y=\"276\" text-anchor=\"middle\">files of the thread</text>", left + 140.0).unwrap();
        for (store, colour) in COLOURS {
            let points: Vec<(f64, f64)> = rows.iter().filter(|row| row.store == store).map(|row| (x(row.files), y(value(row)))).collect();
            let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", line.join(" ")).unwrap();
            for (x, y) in &points {
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>").unwrap();
            }
            if let Some((x, y)) = points.last() {
                writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{colour}\">{store}</text>", x, y - 8.0).unwrap();
            }
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let is_bench = arguments.iter().any(|argument| argument == "--bench");
    let plot_to = arguments.iter().position(|argument| argument == "--plot").and_then(|at| arguments.get(at + 1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let (sizes, times): (&[usize], usize) = if is_bench { (&[100, 1_000, 10_000, 100_000], 101) } else { (&[100], 3) };
    let idle = idle_file_bytes(&runtime, *sizes.last().unwrap());
    println!("an idle file of state takes its content and {idle} bytes (resident memory, {} files)", sizes.last().unwrap());
    println!(
        "{:<7} {:>7} {:>12} {:>14} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11}",
        "store", "files", "checkpoint", "bytes over 4K", "get", "open+read", "fork", "restore", "diff", "prune, each"
    );
    let mut rows = Vec::new();
    for store in ["memory", "sled", "sqlite"] {
        for files in sizes {
            let directory = tempfile::tempdir().unwrap();
            let place: &Path = directory.path();
            let engine: Arc<dyn Store> = match store {
                "memory" => Arc::new(MemoryStore::new()),
                "sled" => Arc::new(SledStore::open(place.join("store")).unwrap()),
                _ => Arc::new(SqliteStore::open(place.join("store.db")).unwrap()),
            };
            let row = measure(&runtime, store, engine, *files, times);
            println!(
                "{:<7} {:>7} {:>9.1} µs {:>14} {:>6.1} µs {:>6.1} µs {:>6.1} µs {:>6.1} µs {:>6.1} µs {:>8.1} µs",
                row.store,
                row.files,
                micros(row.checkpoint),
                row.written as i64 - FILE_BYTES as i64,
                micros(row.get),
                micros(row.open_and_read),
                micros(row.fork),
                micros(row.restore),
                micros(row.diff),
                micros(row.prune),
            );
            rows.push(row);
        }
    }
    if let Some(file) = plot_to {
        std::fs::write(file, plot(&rows)).unwrap();
    }
}
