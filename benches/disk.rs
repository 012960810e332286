//! Searches of a directory compared with `rg`: 10,000 small files, a few thousand source files, and three large files,
//! with the kinds of patterns and output that agents use.
//!
//! `rg` runs as a process, including its start and output, because that is how others use it; its output is read and
//! discarded. It prints line numbers, as we do. If it is not installed, its rows are omitted with a notice.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use criterion::{Criterion, criterion_group, criterion_main};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use treehold::ops::{CaseMode, GrepOptions, GrepOutput};
use treehold::{Backend, FilesystemBackend, FilesystemOptions, VfsPath};

/// A tree and words that occur in it.
struct Tree {
    name: &'static str,
    directory: tempfile::TempDir,
    files: usize,
    bytes: u64,
    rare: &'static str,
    common: &'static str,
    include: &'static str,
}

/// Returns whether to measure; `cargo test --benches` only checks that the benchmark runs.
fn is_measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }

    /// A line of source-like words.
    fn line(&mut self, text: &mut Vec<u8>) {
        const WORDS: [&str; 12] =
            ["let", "value", "return", "buffer", "(index)", "=", "self.state", "match", "Option<usize>", "// note", "as u64", "{}"];
        text.extend_from_slice(b"    ");
        for _ in 0..self.next(12) {
            text.extend_from_slice(WORDS[self.next(WORDS.len())].as_bytes());
            text.push(b' ');
        }
        text.push(b'\n');
    }
}

fn small() -> Tree {
    let directory = tempfile::tempdir().unwrap();
    let files = if is_measured() { 10_000 } else { 200 };
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut bytes = 0;
    for index in 0..files {
        let module = directory.path().join(format!("module_{:03}", index / 100));
        fs::create_dir_all(&module).unwrap();
        let mut text = Vec::new();
        while text.len() < 4_096 {
            random.line(&mut text);
        }
        if index % 100 == 7 {
            text.extend_from_slice(b"the needle_in_it is rare\n");
        }
        bytes += text.len() as u64;
        fs::write(module.join(format!("file_{index}.rs")), text).unwrap();
    }
    Tree { name: "small", directory, files, bytes, rare: "needle_in_it", common: "return", include: "file_*7.rs" }
}

/// The sources of the crates in cargo's registry, in their own directory structure.
fn source() -> Tree {
    let directory = tempfile::tempdir().unwrap();
    let wanted = if is_measured() { 6_000 } else { 100 };
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let mut crates: Vec<PathBuf> = Vec::new();
    for registry in fs::read_dir(home.unwrap_or_default().join("registry/src")).into_iter().flatten() {
        crates.extend(fs::read_dir(registry.unwrap().path()).unwrap().map(|one| one.unwrap().path()));
    }
    crates.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    crates.sort();
    let (mut files, mut bytes) = (0, 0);
    for from in crates {
        if files >= wanted {
            break;
        }
        copy(&from, &directory.path().join(from.file_name().unwrap()), &mut files, &mut bytes);
    }
    Tree { name: "source", directory, files, bytes, rare: "needle", common: "return", include: "*.toml" }
}

fn copy(from: &Path, to: &Path, files: &mut usize, bytes: &mut u64) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, to) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &to, files, bytes);
        } else if kind.is_file() {
            *bytes += fs::copy(entry.path(), to).unwrap();
            *files += 1;
        }
    }
}

fn large() -> Tree {
    let directory = tempfile::tempdir().unwrap();
    let file_bytes = if is_measured() { 100 << 20 } else { 4 << 20 };
    let mut random = Random(0xD129_0B3B_9E1D_77A5);
    let mut bytes = 0;
    for file in 0..3 {
        let mut out = std::io::BufWriter::new(fs::File::create(directory.path().join(format!("{file}.log"))).unwrap());
        let (mut written, mut line, mut text) = (0, 0, Vec::new());
        while written < file_bytes {
            text.clear();
            random.line(&mut text);
            line += 1;
            match line {
                _ if line % 400_000 == 3 => text.splice(4..4, *b"needle_in_it ").for_each(drop),
                _ if line % 500 == 3 => text.splice(4..4, *b"warning: ").for_each(drop),
                _ => {}
            }
            out.write_all(&text).unwrap();
            written += text.len();
        }
        bytes += written as u64;
    }
    Tree { name: "large", directory, files: 3, bytes, rare: "needle_in_it", common: "warning:", include: "[01].log" }
}

/// Runs `rg`, reading and discarding its output.
fn rg(directory: &Path, arguments: &[&str]) -> bool {
    Command::new("rg")
        .arg("--no-config")
        .args(arguments)
        .arg("./")
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .status
        .success()
}

fn searches(criterion: &mut Criterion, tree: &Tree) {
    println!("{}: {} files, {} MB", tree.name, tree.files, tree.bytes / 1_000_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let backend = FilesystemBackend::open(tree.directory.path(), FilesystemOptions::new()).unwrap();
    let has_rg = Command::new("rg").arg("--version").output().is_ok();
    if !has_rg {
        println!("rg is not installed: its rows are left out");
    }
    let mut group = criterion.benchmark_group(format!("disk/{}", tree.name));
    group.sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    let literal = GrepOptions::new;
    let either = format!("{}|not_to_be_[a-z]+|nowhere", tree.rare);
    let insensitive = tree.rare.to_uppercase();
    for (name, options, arguments) in [
        ("literal_rare", literal(tree.rare), vec!["-n", "-F", tree.rare]),
        ("literal_common", literal(tree.common), vec!["-n", "-F", tree.common]),
        ("no_match", literal("not to be found"), vec!["-n", "-F", "not to be found"]),
        ("alternation", GrepOptions::regex(&either), vec!["-n", &either]),
        ("case_insensitive", literal(&insensitive).with_case(CaseMode::Insensitive), vec!["-n", "-i", "-F", &insensitive]),
        ("globs", literal(tree.common).with_include(tree.include), vec!["-n", "-F", "-g", tree.include, tree.common]),
        ("files", literal(tree.common).with_output(GrepOutput::Files), vec!["-l", "-F", tree.common]),
        ("counts", literal(tree.common).with_output(GrepOutput::Counts), vec!["-c", "-F", tree.common]),
    ] {
        let options = options.with_matches_max(usize::MAX);
        group.bench_function(format!("{name}/treehold"), |bencher| {
            bencher.iter(|| runtime.block_on(backend.grep(VfsPath::ROOT, &options)).unwrap().files.len());
        });
        if has_rg {
            group.bench_function(format!("{name}/rg"), |bencher| bencher.iter(|| rg(tree.directory.path(), &arguments)));
        }
    }
    group.finish();
}

fn disk(criterion: &mut Criterion) {
    for tree in [small, source, large] {
        searches(criterion, &tree());
    }
}

criterion_group!(benches, disk);
criterion_main!(benches);
