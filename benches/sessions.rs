//! Sessions of agent hosts by the number of messages, on SQLite: appends, loads of the newest messages, compactions, and
//! lists of sessions. Beside each, in the same run, the way of the original hosts: one file of JSON lines for each session,
//! which is read whole, and rewritten whole by a compaction.
//!
//! Prints tables. Figures are medians of repeated runs. Without `--bench`, as a test, it runs once at a small size.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

use async_trait::async_trait;
use std::fmt;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use treehold::error::Result;
use treehold::ops::Version;
use treehold::sessions::{AppendOptions, CompactOptions, Message, Sessions, SummarizeWith, Usage};
use treehold::store::{
    Batch, BatchWrite, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, SqliteStore, Store,
    StoreCapabilities, StoreExtensions, Watch,
};

const TENANT: &str = "acme";
const USER: &str = "ada";

/// How many messages a load returns.
const NEWEST: usize = 50;

/// How many sessions a page has.
const PAGE: usize = 100;

/// A store that counts the bytes of commits.
#[derive(Debug)]
struct Counting {
    inner: SqliteStore,
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

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
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
        for write in &batch.writes {
            if let BatchWrite::Put { namespace, key, meta, value, .. } = write {
                let bytes = namespace.encoded().len() + key.len() + meta.len() + value.len();
                self.written.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        }
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

/// The texts of a turn: a question and an answer, about 600 bytes.
fn turn(number: usize) -> [Message; 2] {
    let words = "some words of a conversation about tea and the weather, ";
    [
        Message::user(&format!("question {number}: {}", words.repeat(2)), number as i64),
        Message::assistant(&format!("answer {number}: {}", words.repeat(6)), number as i64),
    ]
}

/// The original's way: a directory for each session.
struct Files(PathBuf);

impl Files {
    fn directory(&self, session: &str) -> PathBuf {
        self.0.join("tenants").join(TENANT).join("sessions").join(session)
    }

    fn messages(&self, session: &str) -> PathBuf {
        self.directory(session).join("messages.jsonl")
    }

    fn create(&self, session: &str) {
        fs::create_dir_all(self.directory(session)).unwrap();
        let init = format!(r#"{{"type":"init","sessionId":"{session}","tenantId":"{TENANT}","userId":"{USER}","createdAt":1}}"#);
        append_lines(&self.directory(session).join("session.jsonl"), &[init], false);
    }

    /// Appends messages and an event of the turn. With `durable`, as durable as a commit.
    fn append(&self, session: &str, messages: &[Message], durable: bool) {
        let lines: Vec<String> = messages.iter().map(|message| message.json().as_str().to_owned()).collect();
        append_lines(&self.messages(session), &lines, durable);
        let event = r#"{"type":"turn","turnIndex":0,"inputTokens":10,"outputTokens":5,"updatedAt":1}"#.to_owned();
        append_lines(&self.directory(session).join("session.jsonl"), &[event], durable);
    }

    fn load_all(&self, session: &str) -> Vec<Message> {
        let text = fs::read_to_string(self.messages(session)).unwrap();
        text.lines().map(|line| Message::parse(line).unwrap()).collect()
    }

    fn load(&self, session: &str) -> Vec<Message> {
        let all = self.load_all(session);
        all[all.len().saturating_sub(NEWEST)..].to_vec()
    }

    /// Compacts the oldest half. Returns the bytes that it wrote.
    fn compact(&self, session: &str) -> u64 {
        let all = self.load_all(session);
        let (old, new) = all.split_at(all.len() / 2);
        let lines = |messages: &[Message]| messages.iter().map(|message| format!("{}\n", message.json())).collect::<String>();
        let archive = lines(old);
        let rest = format!("{}\n{}", Message::user("[Conversation summary]: short", 1).json(), lines(new));
        let directory = self.directory(session);
        fs::create_dir_all(directory.join("messages.compactions")).unwrap();
        for (path, text) in [(directory.join("messages.compactions/0001.jsonl"), &archive), (directory.join("messages.tmp"), &rest)] {
            let mut file = fs::File::create(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.sync_all().unwrap();
        }
        fs::rename(directory.join("messages.tmp"), self.messages(session)).unwrap();
        (archive.len() + rest.len()) as u64
    }

    /// Lists the newest sessions: reads the events of every session of the tenant.
    fn list(&self, limit: usize) -> Vec<(i64, String)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.0.join("tenants").join(TENANT).join("sessions")).unwrap() {
            let entry = entry.unwrap();
            let text = fs::read_to_string(entry.path().join("session.jsonl")).unwrap();
            let events: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if events[0]["userId"] == USER {
                let updated = events.iter().rev().find_map(|event| event["updatedAt"].as_i64()).unwrap_or_default();
                found.push((updated, entry.file_name().to_string_lossy().into_owned()));
            }
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.truncate(limit);
        found
    }
}

fn append_lines(path: &Path, lines: &[String], durable: bool) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    file.write_all(text.as_bytes()).unwrap();
    if durable {
        file.sync_data().unwrap();
    }
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

fn ratio(ours: Duration, theirs: Duration) -> String {
    format!("{:.3}", ours.as_secs_f64() / theirs.as_secs_f64())
}

fn print_row(what: &str, size: usize, ours: Duration, theirs: Duration) {
    println!("| {what} | {size} | {} | {} | {} |", shown(ours), shown(theirs), ratio(ours, theirs));
}

/// Measures one session with `count` messages.
fn measure_session(runtime: &Runtime, directory: &Path, count: usize, times: usize) {
    let store = Arc::new(Counting { inner: SqliteStore::open(directory.join("store.db")).unwrap(), written: AtomicU64::new(0) });
    let (sessions, files, id) = (Sessions::new(store.clone()), Files(directory.join("files")), "s-1");
    runtime.block_on(sessions.get_or_create(TENANT, USER, "helper", Some(id))).unwrap();
    files.create(id);
    for start in (0..count / 2).step_by(500) {
        let messages: Vec<Message> = (start..(start + 500).min(count / 2)).flat_map(turn).collect();
        runtime.block_on(sessions.append(TENANT, id, &messages, &AppendOptions::new())).unwrap();
        files.append(id, &messages, false);
    }
    let usage = Usage::of_tokens(10, 5).unwrap();
    let ours = median_of(times, || {
        let options = AppendOptions::new().with_usage(usage.clone());
        runtime.block_on(sessions.append(TENANT, id, &turn(count), &options)).unwrap();
    });
    print_row("append of a turn, durable", count, ours, median_of(times, || files.append(id, &turn(count), true)));
    println!("| append of a turn, file not synced | {count} | | {} | |", shown(median_of(times, || files.append(id, &turn(count), false))));
    // A whole file of a million lines takes seconds to read.
    let few = times.min(200_000_000 / (count * 200).max(1)).clamp(1, times);
    let ours = median_of(times, || assert_eq!(runtime.block_on(sessions.load(TENANT, id, Some(NEWEST))).unwrap().len(), NEWEST));
    print_row("load of the newest 50", count, ours, median_of(few.min(20), || assert_eq!(files.load(id).len(), NEWEST)));
    let ours = median_of(times, || drop(runtime.block_on(sessions.load_with_budget(TENANT, id, 40_000)).unwrap()));
    println!("| load of 40,000 tokens | {count} | {} | | |", shown(ours));
    store.written.store(0, Ordering::Relaxed);
    let summarize = SummarizeWith(|_: Vec<Message>| async { Ok("short".to_owned()) });
    let start = Instant::now();
    runtime.block_on(sessions.compact(TENANT, id, &summarize, &CompactOptions::new())).unwrap().unwrap();
    let ours = start.elapsed();
    let start = Instant::now();
    let theirs_written = files.compact(id);
    print_row("compaction of half, without the summary's time", count, ours, start.elapsed());
    let ours_written = store.written.load(Ordering::Relaxed);
    println!("| bytes that it wrote | {count} | {ours_written} | {theirs_written} | {:.6} |", ours_written as f64 / theirs_written as f64);
}

/// Measures lists of `count` sessions of one user.
fn measure_list(runtime: &Runtime, directory: &Path, count: usize, times: usize) {
    let sessions = Sessions::new(Arc::new(SqliteStore::open(directory.join("store.db")).unwrap()));
    let files = Files(directory.join("files"));
    runtime.block_on(async {
        for number in 0..count {
            let id = format!("s-{number:06}");
            sessions.get_or_create(TENANT, USER, "helper", Some(&id)).await.unwrap();
            files.create(&id);
            files.append(&id, &[], false);
        }
    });
    let page = |after: Option<&str>| runtime.block_on(sessions.list(TENANT, USER, PAGE, after)).unwrap();
    let ours = median_of(times, || assert_eq!(page(None).sessions.len(), PAGE.min(count)));
    print_row("first page of 100 sessions", count, ours, median_of(times.min(5), || assert_eq!(files.list(PAGE).len(), PAGE.min(count))));
    let (mut pages, mut listed, mut after) = (Vec::new(), 0, None);
    loop {
        let start = Instant::now();
        let read = page(after.as_deref());
        pages.push(start.elapsed());
        listed += read.sessions.len();
        match read.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(listed, count);
    let all: Duration = pages.iter().sum();
    print_row("all pages of 100", count, all, median_of(times.min(5), || assert_eq!(files.list(usize::MAX).len(), count)));
    println!("| slowest of these pages | {count} | {} | | |", shown(pages.iter().max().copied().unwrap_or_default()));
}

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    println!("| what | messages or sessions | treehold | the original's way | ratio |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let (sizes, times): (&[usize], usize) = if is_bench { (&[100, 10_000, 1_000_000], 51) } else { (&[100], 1) };
    for count in sizes {
        let directory = tempfile::tempdir().unwrap();
        measure_session(&runtime, directory.path(), *count, times);
    }
    let directory = tempfile::tempdir().unwrap();
    measure_list(&runtime, directory.path(), if is_bench { 10_000 } else { 200 }, times);
}
