//! Searches of a store with a trigram index by the number of files, compared with the alternatives: the same store
//! without the index, `rg` on the same files on disk, one `memmem` pass over the same bytes, and SQLite's full-text
//! search with its trigram tokenizer.
//!
//! It also measures the word index: its size, its cost per write, and ranked searches with it compared with those that
//! read all files.
//!
//! Prints tables, and draws the growth to a file: `cargo bench --bench indexed -- --files 1000,10000,100000 --plot
//! docs/search-growth.svg`. Files have 4 KiB, or `--bytes N`. The store is SQLite, or `--store sled`, or `--store` and
//! a URL. Figures are medians of repeated searches with a warm page cache; `rg` and searches without the index are
//! repeated less often, from a million files on three times. Full-text search takes longer to build than everything
//! else together; `--no-fts` omits it. `--no-words` omits the word index.
//!
//! `rg` runs as a process, including its start and output, because that is how others use it.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use bytes::Bytes;
use memchr::memmem;
use rusqlite::Connection;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use treehold::backend::{IndexKind, search_by_reading};
use treehold::config::{OpenStoreOptions, open_store};
use treehold::ops::{ApplyOptions, Change, GrepOptions, GrepOutput, SearchOptions, WriteMode};
use treehold::store::{Namespace, Store};
use treehold::{Backend, StoreBackend, VfsPath, VfsPathBuf};

/// The searches: name, pattern, whether it is a regular expression, and the full-text query if there is an equivalent.
const SEARCHES: [(&str, &str, bool, Option<&str>); 5] = [
    ("rare literal", "needle_in_it", false, Some("\"needle_in_it\"")),
    ("no match", "not to be found", false, Some("\"not to be found\"")),
    ("regex", r"needle_(in|of)_\w+", true, None),
    ("regex, two parts", r"fn need.*_in_it\b", true, None),
    ("common literal", "self.state", false, Some("\"self.state\"")),
];

/// Lines of source-like words. One file in a hundred contains the needle, from 100,000 files on one in a thousand.
fn content(index: usize, files: usize, bytes: usize) -> Bytes {
    const WORDS: [&str; 16] = [
        "let",
        "value",
        "return",
        "buffer",
        "(index)",
        "=",
        "self.state",
        "match",
        "Option<usize>",
        "// note",
        "String::new()",
        "{}",
        "iterator",
        "collect",
        "-> Result",
        "unwrap_or",
    ];
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64 ^ (index as u64).wrapping_mul(0xD129_0B3B_9E1D_77A5) | 1;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize
    };
    let mut text = String::with_capacity(bytes + 80);
    while text.len() < bytes {
        text.push_str("    ");
        for _ in 0..random() % 9 {
            match random() % 4 {
                // Names unique to this file, as in real text.
                0 => write!(text, "name_{:x} ", random() % 100_000).unwrap(),
                _ => {
                    text.push_str(WORDS[random() % WORDS.len()]);
                    text.push(' ');
                }
            }
        }
        text.push('\n');
    }
    text.truncate(bytes);
    if index % (if files >= 100_000 { 1_000 } else { 100 }) == 7 && bytes > 200 {
        text.replace_range(100..124, "\nfn needle_in_it, or so\n");
    }
    Bytes::from(text)
}

fn name(index: usize) -> String {
    format!("/project/module_{:04}/file_{index}.rs", index / 200)
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

/// The measurements of one search at one number of files.
#[derive(Debug, Clone, Default)]
struct Row {
    search: &'static str,
    files: usize,
    indexed: Duration,
    plain: Duration,
    rg: Option<Duration>,
    memmem: Option<Duration>,
    fts: Option<Duration>,
}

struct Setting {
    times: usize,
    bytes: usize,
    store: String,
    fts: bool,
    rg: bool,
}

fn open(runtime: &Runtime, place: &Path, setting: &Setting) -> Arc<dyn Store> {
    let url = match setting.store.as_str() {
        "sqlite" | "sled" => format!("{}:{}", setting.store, place.join("store").display()),
        url => url.to_owned(),
    };
    runtime.block_on(open_store(&url, &OpenStoreOptions::new().with_create(true))).unwrap()
}

/// Writes files in batches of 500.
fn fill(runtime: &Runtime, tree: &StoreBackend, contents: &[Bytes], range: Range<usize>) -> Duration {
    let started = Instant::now();
    for start in range.clone().step_by(500) {
        let write = |index: usize| Change::Write {
            path: VfsPathBuf::parse(name(index)).unwrap(),
            content: contents[index].clone(),
            mode: WriteMode::Overwrite,
        };
        let batch: Vec<Change> = (start..range.end.min(start + 500)).map(write).collect();
        runtime.block_on(tree.apply(&batch, &ApplyOptions::new())).unwrap();
    }
    started.elapsed()
}

/// Prints the costs and gains of the word index.
fn measure_words(runtime: &Runtime, files: usize, setting: &Setting) {
    let directory = tempfile::tempdir().unwrap();
    let store = open(runtime, directory.path(), setting);
    let space = || Namespace::new(["bench", "words", &files.to_string()]).unwrap();
    let tree = StoreBackend::new(store.clone(), space());
    let clear = [Change::Delete { path: VfsPathBuf::parse("/project").unwrap(), recursive: true, expect: None }];
    drop(runtime.block_on(tree.apply(&clear, &ApplyOptions::new())));
    runtime.block_on(tree.remove_index(IndexKind::Words)).unwrap();
    let contents: Vec<Bytes> = (0..files).map(|index| content(index, files, setting.bytes)).collect();
    let without = fill(runtime, &tree, &contents, 0..files / 2);
    let indexed = StoreBackend::new(store, space()).with_index(IndexKind::Words);
    let started = Instant::now();
    runtime.block_on(indexed.build_index(IndexKind::Words, |_| {})).unwrap();
    let built = started.elapsed();
    let with = fill(runtime, &indexed, &contents, files / 2..files);
    let state = runtime.block_on(indexed.index_state(IndexKind::Words)).unwrap().unwrap();
    println!(
        "words of {files} files: index of {:.0} bytes a file ({:.1} % of the contents) in {} segments and a tail of {}; made for the first half \
         in {:.2} s; the halves were written in {:.2} s without and {:.2} s with it",
        state.size_bytes as f64 / files as f64,
        state.size_bytes as f64 / (files * setting.bytes) as f64 * 100.0,
        state.segments,
        state.files_in_tail,
        built.as_secs_f64(),
        without.as_secs_f64(),
        with.as_secs_f64(),
    );
    for query in ["needle", "iterator state", "name_1 unwrap or buffer", "nothing of it here"] {
        let options = SearchOptions::new(query);
        let recall = || runtime.block_on(indexed.search(VfsPath::ROOT, &options)).unwrap();
        let read = || runtime.block_on(search_by_reading(&indexed, VfsPath::ROOT, &options)).unwrap();
        assert_eq!(recall().hits.len(), read().hits.len());
        println!(
            "recall `{query}`: {:.2} ms by the index, {:.2} ms by reading",
            millis(time(setting.times, recall)),
            millis(time(setting.times.min(3), read))
        );
    }
}

fn measure(runtime: &Runtime, files: usize, setting: &Setting) -> Vec<Row> {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let space = || Namespace::new(["bench", &files.to_string()]).unwrap();
    let store = open(runtime, place, setting);
    let tree = StoreBackend::new(store.clone(), space());
    let clear = [Change::Delete { path: VfsPathBuf::parse("/project").unwrap(), recursive: true, expect: None }];
    drop(runtime.block_on(tree.apply(&clear, &ApplyOptions::new())));
    runtime.block_on(tree.remove_index(IndexKind::Trigram)).unwrap();
    let contents: Vec<Bytes> = (0..files).map(|index| content(index, files, setting.bytes)).collect();
    // The first half of the files exists before the index, the second half is written with it.
    let without = fill(runtime, &tree, &contents, 0..files / 2);
    let plain_times =
        |options: &GrepOptions, times: usize| time(times, || runtime.block_on(tree.grep(VfsPath::ROOT, options)).unwrap().files.len());
    let indexed = StoreBackend::new(store, space()).with_index(IndexKind::Trigram);
    let started = Instant::now();
    runtime.block_on(indexed.build_index(IndexKind::Trigram, |_| {})).unwrap();
    let built = started.elapsed();
    let with = fill(runtime, &indexed, &contents, files / 2..files);
    let state = runtime.block_on(indexed.index_state(IndexKind::Trigram)).unwrap().unwrap();
    println!(
        "{files} files of {} bytes in {}: index of {:.0} bytes a file ({:.1} % of the contents) in {} segments and a tail of {}; made for \
         the first half in {:.2} s; the halves were written in {:.2} s without and {:.2} s with it",
        setting.bytes,
        setting.store.split(':').next().unwrap_or_default(),
        state.size_bytes as f64 / files as f64,
        state.size_bytes as f64 / (files * setting.bytes) as f64 * 100.0,
        state.segments,
        state.files_in_tail,
        built.as_secs_f64(),
        without.as_secs_f64(),
        with.as_secs_f64(),
    );
    if setting.rg {
        for (index, content) in contents.iter().enumerate() {
            let file = place.join("disk").join(&name(index)[1..]);
            if index.is_multiple_of(200) {
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            }
            std::fs::write(file, content).unwrap();
        }
    }
    let slow_times = setting.times.min(if files >= 1_000_000 { 3 } else { 7 });
    let fts = setting.fts.then(|| full_text(&place.join("fts.db"), &contents));
    let mut rows = Vec::new();
    for (search, pattern, is_regex, asked) in SEARCHES {
        let options = if is_regex { GrepOptions::regex(pattern) } else { GrepOptions::new(pattern) };
        let options = options.with_output(GrepOutput::Files).with_matches_max(usize::MAX >> 1);
        let found = runtime.block_on(indexed.grep(VfsPath::ROOT, &options)).unwrap().files.len();
        let mut row = Row { search, files, ..Row::default() };
        row.indexed =
            time(setting.times, || assert_eq!(runtime.block_on(indexed.grep(VfsPath::ROOT, &options)).unwrap().files.len(), found));
        row.rg = setting.rg.then(|| {
            let arguments: &[&str] = if is_regex { &["-l", pattern, "."] } else { &["-l", "-F", pattern, "."] };
            time(slow_times, || assert_eq!(rg(&place.join("disk"), arguments), found, "{pattern}"))
        });
        row.memmem = (!is_regex).then(|| time(setting.times, || assert_eq!(memmem_pass(&contents, pattern), found)));
        row.fts = fts.as_ref().zip(asked).map(|(fts, asked)| {
            let mut statement = fts.prepare("SELECT path FROM files WHERE files MATCH ?1").unwrap();
            time(setting.times, || statement.query_map([asked], |row| row.get::<_, String>(0)).unwrap().flatten().count())
        });
        rows.push(row);
    }
    runtime.block_on(indexed.remove_index(IndexKind::Trigram)).unwrap();
    for (row, (_, pattern, is_regex, _)) in rows.iter_mut().zip(SEARCHES) {
        let options = if is_regex { GrepOptions::regex(pattern) } else { GrepOptions::new(pattern) };
        row.plain = plain_times(&options.with_output(GrepOutput::Files).with_matches_max(usize::MAX >> 1), slow_times);
    }
    rows
}

fn time<T>(times: usize, mut act: impl FnMut() -> T) -> Duration {
    act();
    let run = |_| {
        let started = Instant::now();
        std::hint::black_box(act());
        started.elapsed()
    };
    median((0..times.max(1)).map(run).collect())
}

/// The full-text index that a user would build by hand.
fn full_text(file: &Path, contents: &[Bytes]) -> Connection {
    let mut connection = Connection::open(file).unwrap();
    connection
        .execute_batch("PRAGMA synchronous = OFF; CREATE VIRTUAL TABLE files USING fts5(path UNINDEXED, content, tokenize = 'trigram')")
        .unwrap();
    let started = Instant::now();
    let transaction = connection.transaction().unwrap();
    for (index, content) in contents.iter().enumerate() {
        let text = String::from_utf8_lossy(content);
        transaction.prepare_cached("INSERT INTO files(path, content) VALUES (?1, ?2)").unwrap().execute((name(index), text)).unwrap();
    }
    transaction.commit().unwrap();
    let size = std::fs::metadata(file).unwrap().len();
    let data: usize = contents.iter().map(Bytes::len).sum();
    println!(
        "full text search: {:.1} s to fill, {:.0} % of the contents",
        started.elapsed().as_secs_f64(),
        size as f64 / data as f64 * 100.0
    );
    connection
}

/// One pass over all contents on all cores. Returns how many contain the text.
fn memmem_pass(contents: &[Bytes], needle: &str) -> usize {
    let (finder, next, found) = (memmem::Finder::new(needle), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let work = || {
            while let Some(chunk) = contents.chunks(256).nth(next.fetch_add(1, Ordering::Relaxed)) {
                found.fetch_add(chunk.iter().filter(|content| finder.find(content).is_some()).count(), Ordering::Relaxed);
            }
        };
        (1..std::thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    found.into_inner()
}

/// Runs `rg`. Returns how many lines it printed.
fn rg(directory: &Path, arguments: &[&str]) -> usize {
    let output = Command::new("rg").args(arguments).current_dir(directory).stdin(Stdio::null()).output().unwrap();
    output.stdout.iter().filter(|byte| **byte == b'\n').count()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Draws time by the number of files for two searches, with logarithmic axes.
fn plot(rows: &[Row], sizes: &[usize]) -> String {
    type Measure = fn(&Row) -> Option<Duration>;
    let lines: [(&str, &str, Measure); 5] = [
        ("store with index", "#1971c2", |row| Some(row.indexed)),
        ("store without", "#868e96", |row| Some(row.plain)),
        ("rg", "#e8590c", |row| row.rg),
        ("memmem", "#2b8a3e", |row| row.memmem),
        ("FTS5 trigram", "#9c36b5", |row| row.fts),
    ];
    let (low, high) = ((sizes[0] as f64).log10(), (*sizes.last().unwrap() as f64).log10());
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 320\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"760\" height=\"320\" fill=\"white\"/>\n",
    );
    for (chart, search) in ["rare literal", "regex"].into_iter().enumerate() {
        let left = 60.0 + chart as f64 * 370.0;
        let x = |files: usize| left + ((files as f64).log10() - low) / (high - low).max(0.1) * 280.0;
        let y = |duration: Duration| 240.0 - (millis(duration).max(0.1).log10() + 1.0) / 6.0 * 190.0;
        writeln!(svg, "<text x=\"{}\" y=\"30\" text-anchor=\"middle\">{search}, ms</text>", left + 140.0).unwrap();
        for power in -1..=5 {
            let at = y(Duration::from_secs_f64(10_f64.powi(power) / 1e3));
            writeln!(svg, "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>", left + 280.0).unwrap();
            writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", left - 6.0, at + 4.0, 10_f64.powi(power)).unwrap();
        }
        for files in sizes {
            writeln!(svg, "<text x=\"{:.1}\" y=\"258\" text-anchor=\"middle\">{files}</text>", x(*files)).unwrap();
        }
        writeln!(svg, "<text x=\"{}\" y=\"276\" text-anchor=\"middle\">files</text>", left + 140.0).unwrap();
        for (number, (line, colour, measure)) in lines.iter().enumerate() {
            let of_search = rows.iter().filter(|row| row.search == search);
            let points: Vec<(f64, f64)> = of_search.filter_map(|row| Some((x(row.files), y(measure(row)?)))).collect();
            if points.is_empty() {
                continue;
            }
            let drawn: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", drawn.join(" ")).unwrap();
            for (x, y) in &points {
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>").unwrap();
            }
            if chart == 0 {
                let at = 60 + number * 140;
                writeln!(svg, "<circle cx=\"{at}\" cy=\"300\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"304\">{line}</text>", at + 8)
                    .unwrap();
            }
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let value = |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1)).cloned();
    let is_bench = has("--bench");
    let sizes: Vec<usize> = match value("--files") {
        Some(list) => list.split(',').map(|number| number.parse().expect("numbers, separated by commas")).collect(),
        None if is_bench => vec![100_000],
        None => vec![600],
    };
    let has_rg = Command::new("rg").arg("--version").output().is_ok();
    if !has_rg {
        println!("rg is not installed: its column is left out");
    }
    let setting = Setting {
        times: if is_bench { 15 } else { 1 },
        bytes: value("--bytes").map_or(4_096, |bytes| bytes.parse().expect("a number of bytes")),
        store: value("--store").unwrap_or_else(|| "sqlite".to_owned()),
        fts: !has("--no-fts"),
        rg: has_rg,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if !has("--no-words") {
        sizes.iter().for_each(|files| measure_words(&runtime, *files, &setting));
    }
    let rows: Vec<Row> = sizes.iter().flat_map(|files| measure(&runtime, *files, &setting)).collect();
    println!(
        "{:<18} {:>8} {:>12} {:>12} {:>12} {:>12} {:>12} {:>8}",
        "search", "files", "indexed", "plain", "rg", "memmem", "FTS5", "rg / ix"
    );
    let shown = |duration: Option<Duration>| duration.map_or("-".to_owned(), |duration| format!("{:.2} ms", millis(duration)));
    for row in &rows {
        println!(
            "{:<18} {:>8} {:>12} {:>12} {:>12} {:>12} {:>12} {:>8}",
            row.search,
            row.files,
            shown(Some(row.indexed)),
            shown(Some(row.plain)),
            shown(row.rg),
            shown(row.memmem),
            shown(row.fts),
            row.rg.map_or("-".to_owned(), |rg| format!("{:.1}", rg.as_secs_f64() / row.indexed.as_secs_f64())),
        );
    }
    if let Some(file) = value("--plot") {
        std::fs::write(file, plot(&rows, &sizes)).unwrap();
    }
}
