//! Saves of the state of an agent.
//!
//! The first table is by the number of messages: the log of [`StoreStates`](treehold::agent_state::StoreStates) beside the original's way,
//! the whole state as one row. Both are on the same store, in the same run. The second table is by store: the layout of the rows beside the
//! former one, see `layouts.rs`.
//!
//! Figures are medians of repeated saves, each of which adds a turn of two messages or creates a session. Without `--bench`, as a test, it
//! runs once at a small size. With `TREEHOLD_BENCH_SERVERS`, the second table has the servers of the tests, too.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

mod counting;
mod layouts;
#[cfg(all(feature = "conformance", feature = "mysql", feature = "postgres", feature = "redis"))]
#[path = "../../tests/servers/mod.rs"]
mod servers;

use counting::Counting;
use std::sync::Arc;
use std::time::{Duration, Instant};
use treehold::agent_state::{AgentStateStore, AgentStates, Json, SaveOptions, StateSlot, StoreStates};
use treehold::store::{Batch, Namespace, SqliteStore, Store};

const KEY: &str = "agent_state";

/// A message of about 700 bytes, as the original writes them.
fn message(number: usize) -> String {
    let (role, words) = if number.is_multiple_of(2) { ("USER", 5) } else { ("ASSISTANT", 14) };
    let text = "some words of a conversation about tea, ".repeat(words);
    format!(
        r#"{{"id":"m{number}","name":"agent","role":"{role}","content":[{{"type":"text","text":"{number} {text}"}}],"metadata":{{}},"timestamp":"2026-11-23 12:00:00.000"}}"#
    )
}

fn state(messages: &[String]) -> Json {
    let text = format!(
        r#"{{"session_id":"s1","user_id":"ada","summary":"","context":[{}],"reply_id":"","cur_iter":0,"shutdown_interrupted":false}}"#,
        messages.join(",")
    );
    Json::parse(&text).unwrap()
}

fn shown(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1_000.0 { format!("{micros:.0} µs") } else { format!("{:.1} ms", micros / 1_000.0) }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

struct Measured {
    save: Duration,
    bytes: u64,
    load: Duration,
}

/// Saves a state of `count` messages, and then turns of two messages each.
fn measure(count: usize, turns: usize, mut save: impl FnMut(&Json), mut load: impl FnMut() -> Json, counting: &Counting) -> Measured {
    let mut messages: Vec<String> = (0..count).map(message).collect();
    save(&state(&messages));
    counting.take_written();
    let mut times = Vec::new();
    for _ in 0..turns {
        messages.extend([message(messages.len()), message(messages.len() + 1)]);
        let value = state(&messages);
        let start = Instant::now();
        save(&value);
        times.push(start.elapsed());
    }
    let bytes = counting.take_written() / turns as u64;
    let loads = (0..turns.min(11)).map(|_| {
        let start = Instant::now();
        assert_eq!(load(), state(&messages));
        start.elapsed()
    });
    Measured { save: median(times), bytes, load: median(loads.collect()) }
}

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (sizes, turns): (&[usize], usize) = if is_bench { (&[1, 10, 100, 1_000, 10_000], 41) } else { (&[10], 2) };
    println!("| messages before | bytes, log | bytes, whole | ratio | save, log | save, whole | ratio | load, log | load, whole | ratio |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for count in sizes {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Counting::new(Arc::new(SqliteStore::open(directory.path().join("store.db")).unwrap())));
        let states: StoreStates = AgentStates::new(store.clone()).for_agent("acme", "helper").unwrap();
        let slot = StateSlot::new(Some("ada"), "s1").unwrap();
        let log = measure(
            *count,
            turns,
            |value| {
                runtime.block_on(states.save(&slot, KEY, value, SaveOptions::new())).unwrap();
            },
            || runtime.block_on(states.get(&slot, KEY)).unwrap().unwrap().value,
            &store,
        );
        let namespace = Namespace::parse("states/ada/s1").unwrap();
        let whole = measure(
            *count,
            turns,
            |value| drop(runtime.block_on(store.commit(Batch::new().put(&namespace, KEY, value.as_str().to_owned()))).unwrap()),
            || Json::from_bytes(&runtime.block_on(store.get(&namespace, KEY)).unwrap().unwrap().value).unwrap(),
            &store,
        );
        let ratio = |ours: f64, theirs: f64| format!("{:.4}", ours / theirs);
        println!(
            "| {count} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            log.bytes,
            whole.bytes,
            ratio(log.bytes as f64, whole.bytes as f64),
            shown(log.save),
            shown(whole.save),
            ratio(log.save.as_secs_f64(), whole.save.as_secs_f64()),
            shown(log.load),
            shown(whole.load),
            ratio(log.load.as_secs_f64(), whole.load.as_secs_f64()),
        );
    }
    layouts::bench(&runtime, if is_bench { 41 } else { 2 });
}
