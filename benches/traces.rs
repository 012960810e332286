//! Traces by the number of messages, on SQLite: appends, pages, main paths with and without jumps, lists of traces, and many writers of one
//! trace.
//!
//! Prints tables. Figures are medians of repeated runs. Without `--bench`, as a test, it runs once at a small size. With it, the run fails
//! if an append, a page or a main path takes over twice as long in a trace of 100,000 messages as in one of 1,000.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use treehold::store::SqliteStore;
use treehold::traces::{
    AddOptions, MessagesQuery, NewMessage, NewTrace, PathQuery, SequenceRange, StoredTraces, TraceAddress, TraceStore, Traces, TracesQuery,
};

/// How many messages a page has.
const PAGE: usize = 50;

/// How many writers append to one trace at once.
const WRITERS: usize = 50;

/// How much longer a call may take in the longest trace than in the shortest.
const RATIO_MAX: f64 = 2.0;

fn open(directory: &Path) -> StoredTraces {
    Traces::new(Arc::new(SqliteStore::open(directory.join("store.db")).unwrap())).for_user("acme", "ada").unwrap()
}

/// Makes a message of about 300 bytes.
fn message(number: usize) -> NewMessage {
    let words = "some words of a conversation about tea and the weather, ";
    NewMessage::text(if number.is_multiple_of(2) { "user" } else { "assistant" }, &format!("{number}: {}", words.repeat(5)))
        .with_usage(70, 0.001)
}

/// Returns the median time of some calls.
fn median_of(times: usize, mut call: impl FnMut()) -> Duration {
    let mut all: Vec<Duration> = (0..times)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed()
        })
        .collect();
    all.sort_unstable();
    all[all.len() / 2]
}

fn shown(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1_000.0 { format!("{micros:.0} µs") } else { format!("{:.1} ms", micros / 1_000.0) }
}

/// A trace with `count` messages. Every tenth is an aside, if `has_jumps`.
fn fill(runtime: &Runtime, traces: &StoredTraces, count: usize, has_jumps: bool) -> TraceAddress {
    let trace = runtime.block_on(traces.create_trace(NewTrace::new("make tea"))).unwrap().trace_id;
    let mut parent = None;
    for start in (0..count).step_by(1_000) {
        let mut messages: Vec<NewMessage> = (start..count.min(start + 1_000)).map(message).collect();
        if has_jumps {
            for (index, message) in messages.iter_mut().enumerate() {
                let sequence = (start + index + 1) as u64;
                message.parent_sequence = parent;
                if sequence.is_multiple_of(10) {
                    message.branch_type = Some("reflection".to_owned());
                } else {
                    parent = Some(sequence);
                }
            }
        }
        runtime.block_on(traces.add_messages(&trace, messages, &AddOptions::new())).unwrap();
    }
    trace
}

/// Measures the calls of one trace with `count` messages.
fn measure(runtime: &Runtime, directory: &Path, count: usize, times: usize) -> Vec<(&'static str, Duration)> {
    let traces = open(directory);
    let trace = fill(runtime, &traces, count, false);
    let jumping = fill(runtime, &traces, count, true);
    let add = |message: NewMessage| drop(runtime.block_on(traces.add_messages(&trace, vec![message], &AddOptions::new())).unwrap());
    let path = |trace: &TraceAddress, query: PathQuery| {
        assert_eq!(runtime.block_on(traces.get_main_path(trace, &query)).unwrap().messages.len(), PAGE);
    };
    let page = |query: MessagesQuery| {
        assert_eq!(runtime.block_on(traces.get_messages(&trace, &query)).unwrap().messages.len(), PAGE);
    };
    let middle = (count / 2) as u64;
    let query = PathQuery::new().with_limit(PAGE);
    let mut figures = vec![
        ("append of a message", median_of(times, || add(message(count)))),
        ("append with an earlier parent", median_of(times, || add(message(count).with_parent(middle)))),
        ("end of the main path", median_of(times, || path(&trace, PathQuery::new().with_head(count as u64).with_limit(PAGE)))),
        ("end of a path with jumps", median_of(times, || path(&jumping, query.clone()))),
        ("page in the middle, by sequence", median_of(times, || page(MessagesQuery::new().with_since(middle).with_limit(PAGE)))),
        ("page in the middle, by offset", median_of(times, || page(MessagesQuery::new().with_offset(middle).with_limit(PAGE)))),
        ("events", median_of(times, || drop(runtime.block_on(traces.get_events(&trace, middle, PAGE)).unwrap()))),
        ("trace", median_of(times, || drop(runtime.block_on(traces.get_trace(&trace)).unwrap()))),
    ];
    let head = runtime.block_on(traces.get_trace(&jumping)).unwrap().unwrap().head_sequence;
    let span = SequenceRange { from: head - 20, to: head };
    let summary = message(count).with_summarizes(span);
    let start = Instant::now();
    drop(runtime.block_on(traces.add_messages(&jumping, vec![summary], &AddOptions::new())).unwrap());
    figures.push(("summary, measured once", start.elapsed()));
    figures
}

/// Measures lists of `count` traces.
fn measure_list(runtime: &Runtime, directory: &Path, count: usize, times: usize) -> Duration {
    let traces = open(directory);
    for _ in 0..count {
        runtime.block_on(traces.create_trace(NewTrace::new("make tea"))).unwrap();
    }
    median_of(times, || {
        let page = runtime.block_on(traces.list_traces(&TracesQuery::new().with_limit(PAGE))).unwrap();
        assert_eq!((page.traces.len(), page.total), (PAGE.min(count), count as u64));
    })
}

/// Measures how long many writers need for one message each.
fn measure_writers(runtime: &Runtime, directory: &Path) -> Duration {
    let traces = open(directory);
    let trace = fill(runtime, &traces, 1, false);
    let start = Instant::now();
    runtime.block_on(async {
        let writers = (0..WRITERS).map(|writer| {
            let (traces, trace) = (traces.clone(), trace.clone());
            tokio::spawn(async move { traces.add_messages(&trace, vec![message(writer)], &AddOptions::new()).await.unwrap() })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
    });
    let elapsed = start.elapsed();
    assert_eq!(runtime.block_on(traces.get_trace(&trace)).unwrap().unwrap().last_sequence, 1 + WRITERS as u64);
    elapsed
}

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (sizes, times): (&[usize], usize) = if is_bench { (&[1_000, 10_000, 100_000], 101) } else { (&[200], 1) };
    let figures: Vec<_> = sizes
        .iter()
        .map(|count| {
            let directory = tempfile::tempdir().unwrap();
            measure(&runtime, directory.path(), *count, times)
        })
        .collect();
    println!("| what | {} |", sizes.iter().map(|size| format!("{size} messages")).collect::<Vec<_>>().join(" | "));
    println!("| --- |{}", " ---: |".repeat(sizes.len()));
    for (row, (what, first)) in figures[0].iter().enumerate() {
        let times: Vec<Duration> = figures.iter().map(|column| column[row].1).collect();
        println!("| {what} | {} |", times.iter().map(|time| shown(*time)).collect::<Vec<_>>().join(" | "));
        let ratio = times.last().unwrap().as_secs_f64() / first.as_secs_f64();
        assert!(!is_bench || what.contains("once") || ratio <= RATIO_MAX, "{what}: {ratio:.2} times as long in the longest trace");
    }
    println!();
    for count in if is_bench { [100, 10_000] } else { [20, 60] } {
        let directory = tempfile::tempdir().unwrap();
        println!("first page of {count} traces: {}", shown(measure_list(&runtime, directory.path(), count, times)));
    }
    let directory = tempfile::tempdir().unwrap();
    println!("{WRITERS} writers of one trace, a message each: {}", shown(measure_writers(&runtime, directory.path())));
}
