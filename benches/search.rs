//! Search in memory: matching one glob against a path, and a grep over 10,000 contents of 4 KiB compared with one raw
//! `memmem` pass over each, which is the lower bound.

use bytes::Bytes;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use memchr::memmem;
use std::hint::black_box;
use std::ops::ControlFlow;
use treehold::ops::{CaseMode, GlobOptions, GrepOptions, GrepOutput};
use treehold::search::{GrepCollector, GrepMatcher, PathFilter, parallel};
use treehold::{VfsPath, VfsPathBuf};

const FILES: usize = 10_000;
const FILE_BYTES: usize = 4096;

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

/// Source-like text: lines of words, with `return` in most files and the needle in one of a hundred.
fn contents() -> Vec<(VfsPathBuf, Bytes)> {
    let words =
        ["let", "value", "return", "buffer", "(index)", "=", "self.state", "match", "Option<usize>", "// note", "String::new()", "{", "}"];
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize
    };
    (0..FILES)
        .map(|index| {
            let mut text = String::with_capacity(FILE_BYTES + 80);
            while text.len() < FILE_BYTES {
                text.push_str("    ");
                for _ in 0..random() % 9 {
                    text.push_str(words[random() % words.len()]);
                    text.push(' ');
                }
                text.push('\n');
            }
            text.truncate(FILE_BYTES);
            if index % 100 == 7 {
                text.replace_range(2000..2012, "needle_in_it");
            }
            (path(&format!("/project/module_{:03}/file_{index}.rs", index / 100)), Bytes::from(text))
        })
        .collect()
}

fn globs(criterion: &mut Criterion) {
    let paths: Vec<VfsPathBuf> = contents().into_iter().map(|(path, _)| path).collect();
    let mut group = criterion.benchmark_group("glob_10k_paths");
    group.throughput(Throughput::Elements(paths.len() as u64));
    for pattern in ["*.rs", "**/*.rs", "project/**/*.{rs,py}", "project/*/file_1*.rs", "project/module_050/*.rs", "**/file_77[0-9].rs"] {
        let filter = PathFilter::for_glob(VfsPath::ROOT, &GlobOptions::new(pattern)).expect("a legal pattern");
        group.bench_function(pattern, |bencher| bencher.iter(|| paths.iter().filter(|path| filter.selects(path, false)).count()));
    }
    group.finish();
    criterion.bench_function("glob_compile", |bencher| {
        bencher.iter(|| PathFilter::for_glob(VfsPath::ROOT, &GlobOptions::new(black_box("src/**/*.{rs,py}"))).expect("a legal pattern"))
    });
}

fn search(contents: &[(VfsPathBuf, Bytes)], options: &GrepOptions, workers: usize) -> usize {
    let matcher = GrepMatcher::compile(options).expect("a legal pattern");
    let mut collector = GrepCollector::new(options);
    let work = |(path, content): &(VfsPathBuf, Bytes)| (path.clone(), matcher.search(path, content));
    parallel::ordered(contents.iter(), workers, work, |(path, outcome)| {
        let flow = collector.push(path, outcome);
        if flow.is_break() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    collector.finish().files.len()
}

fn greps(criterion: &mut Criterion) {
    let contents = contents();
    let mut group = criterion.benchmark_group("grep_10k_x_4k");
    group.sample_size(20).throughput(Throughput::Bytes((FILES * FILE_BYTES) as u64));
    let memmem = |group: &mut BenchmarkGroup<'_, WallTime>, name: &str, needle: &str| {
        let finder = memmem::Finder::new(needle);
        group
            .bench_function(name, |bencher| bencher.iter(|| contents.iter().filter(|(_, content)| finder.find(content).is_some()).count()));
    };
    memmem(&mut group, "memmem_rare", "needle_in_it");
    let rare = GrepOptions::new("needle_in_it");
    let common = GrepOptions::new("String::new").with_matches_max(usize::MAX);
    for (name, options) in [
        ("literal_rare", rare.clone()),
        ("literal_rare_binary_too", rare.clone().with_binary(true)),
        ("literal_rare_files", rare.clone().with_output(GrepOutput::Files)),
        ("literal_common_files", common.clone().with_output(GrepOutput::Files)),
        ("literal_common_content", common),
        ("insensitive_rare", rare.clone().with_case(CaseMode::Insensitive)),
        ("regex_with_literal", GrepOptions::regex(r"needle_\w+_it")),
        ("regex_without_literal", GrepOptions::regex(r"\w{12}\s+\w{12}\s+\w{12}")),
    ] {
        group.bench_function(name, |bencher| bencher.iter(|| search(&contents, &options, 1)));
    }
    group.bench_function("literal_rare_2_workers", |bencher| bencher.iter(|| search(&contents, &rare, 2)));
    group.finish();
}

criterion_group!(benches, globs, greps);
criterion_main!(benches);
