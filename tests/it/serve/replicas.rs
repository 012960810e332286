//! Three replicas of the real program over one database, behind a proxy: killed in the middle of writes, and paused while others write.
//!
//! The tests wait for counts, not for time. `TREEHOLD_REPLICAS_SECONDS` makes the kill tests run for that long, with a kill every five
//! seconds, and print statistics.

#![allow(clippy::print_stdout, reason = "the counts are the result of a long run")]

#[path = "../../../examples/proxy.rs"]
mod proxy;

use super::process::{Process as Replica, agent, ask};
use proxy::Replicas;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use ureq::Agent;

const REPLICAS: usize = 3;
const THREADS: usize = 24;
const WRITERS: usize = 8;

/// How many replicas are killed if no time is set.
const KILLS: usize = 4;

/// How often replicas are killed if a time is set.
const EVERY: Duration = Duration::from_secs(5);

/// Three replicas and the proxy in front of them.
struct Fleet {
    home: TempDir,
    replicas: Vec<Replica>,
    behind: Replicas,
    base: String,
    _runtime: Runtime,
}

impl Fleet {
    /// Starts replicas on the store at a URL.
    fn start(url: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let routes = "[routes.\"/memories\"]\ntype = \"store\"\nstore = \"default\"\nnamespace = \"{tenant}/{user}/memories\"\n";
        std::fs::write(home.path().join("treehold.toml"), format!("[stores.default]\nurl = {}\n{routes}", json!(url))).unwrap();
        let replicas: Vec<Replica> = (0..REPLICAS).map(|_| Replica::start(home.path())).collect();
        let behind = Replicas::new(replicas.iter().map(|replica| replica.address).collect());
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(proxy::run(listener, behind.clone()));
        Self { home, replicas, behind, base, _runtime: runtime }
    }

    fn kill(&mut self, index: usize) {
        self.replicas[index].child.kill().unwrap();
        self.replicas[index].child.wait().unwrap();
    }

    fn start_again(&mut self, index: usize) {
        self.replicas[index] = Replica::start(self.home.path());
        self.behind.replace(index, self.replicas[index].address);
    }

    fn direct(&self, index: usize) -> String {
        self.replicas[index].base()
    }
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Acknowledged,
    /// Not made, or unknown: its key is that of a request which a killed replica had started.
    Open,
}

/// Sends a change with its key until it is answered.
fn change(agent: &Agent, method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> Fate {
    loop {
        // A broken connection reveals nothing, and the key makes a retry safe.
        let Ok((status, answer)) = ask(agent, method, url, headers, body) else { continue };
        if status < 300 {
            return Fate::Acknowledged;
        }
        let problem: Value = serde_json::from_slice(&answer).unwrap();
        let detail = problem["detail"].as_str().unwrap();
        match status {
            409 if ["is still running", "the outcome is unknown", "saved as thread"].iter().any(|end| detail.contains(end)) => {
                return Fate::Open;
            }
            409 if detail.contains("has just ended") => {}
            503 if problem["may_have_effect"] == true => return Fate::Open,
            503 => {}
            _ => panic!("{status}: {problem}"),
        }
    }
}

fn thread(number: usize) -> String {
    format!("t{number}")
}

/// Content of one to some thousand bytes that identifies its change.
fn content(name: &str, number: usize) -> String {
    format!("{name} ").repeat(1 + number * 37 % 700)
}

/// The results of all writers.
#[derive(Default)]
struct Done {
    stop: AtomicBool,
    /// How many changes of each thread were acknowledged.
    of_thread: [AtomicU64; THREADS],
    /// The outcome of each change, by name.
    fates: Mutex<Vec<(String, usize, Fate)>>,
}

impl Done {
    fn acknowledged(&self) -> Vec<u64> {
        self.of_thread.iter().map(|count| count.load(Ordering::Acquire)).collect()
    }

    /// Waits until every thread has `more` acknowledged changes than in `since`.
    fn every_thread_goes_on(&self, since: &[u64], more: u64) {
        let begun = Instant::now();
        while self.acknowledged().iter().zip(since).any(|(now, since)| *now < since + more) {
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "no call was acknowledged for two minutes: {since:?}, {:?}",
                self.acknowledged()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Appends lines and writes files in all threads in turn, until told to stop.
fn write(base: &str, writer: usize, done: &Done) {
    let (agent, mut fates) = (agent(), Vec::new());
    for number in 0.. {
        if done.stop.load(Ordering::Acquire) {
            break;
        }
        let at = (writer * 5 + number) % THREADS;
        let (thread, name) = (thread(at), format!("{writer}-{number}"));
        let line = format!("{name}\n");
        let headers = [("idempotency-key", name.as_str()), ("content-type", "application/octet-stream")];
        let fate = match number / THREADS % 4 {
            0 => change(&agent, "POST", &format!("{base}/v1/threads/{thread}/fs/log"), &headers, line.as_bytes()),
            1 => {
                let url = format!("{base}/v1/threads/{thread}/fs/files/{name}");
                change(&agent, "PUT", &url, &headers, content(&name, number).as_bytes())
            }
            2 => change(&agent, "POST", &format!("{base}/v1/threads/{thread}/fs/memories/{thread}"), &headers, line.as_bytes()),
            _ => {
                let write =
                    |file: &str| json!({"operation": "write", "path": format!("/pairs/{name}/{file}"), "content": content(&name, number)});
                let batch = json!({"changes": [write("one"), write("two")]}).to_string();
                let headers = [headers[0], ("content-type", "application/json"), ("treehold-thread", thread.as_str())];
                change(&agent, "POST", &format!("{base}/v1/apply"), &headers, batch.as_bytes())
            }
        };
        if fate == Fate::Acknowledged {
            done.of_thread[at].fetch_add(1, Ordering::AcqRel);
        }
        fates.push((name, number, fate));
    }
    done.fates.lock().unwrap().extend(fates.into_iter().map(|(name, number, fate)| (format!("{name} {writer}"), number, fate)));
}

/// Returns the content at a path of a thread, or `None` if it does not exist.
fn found(agent: &Agent, base: &str, thread: &str, path: &str) -> Option<String> {
    let (status, content) = ask(agent, "GET", &format!("{base}/v1/threads/{thread}/fs/{path}"), &[], b"").unwrap();
    assert!(status == 200 || status == 404, "{status}: {}", String::from_utf8_lossy(&content));
    (status == 200).then(|| String::from_utf8(content).unwrap())
}

/// Checks that every acknowledged change is present exactly once, and none partially.
fn is_exactly(base: &str, done: &Done) -> (usize, usize) {
    let agent = agent();
    let mut lines: HashMap<String, usize> = HashMap::new();
    for at in 0..THREADS {
        for path in ["log".to_owned(), format!("memories/{}", thread(at))] {
            for line in found(&agent, base, &thread(at), &path).unwrap_or_default().lines() {
                *lines.entry(line.to_owned()).or_default() += 1;
            }
        }
    }
    let (mut acknowledged, mut open) = (0, 0);
    let fates = std::mem::take(&mut *done.fates.lock().unwrap());
    for (name, number, fate) in fates {
        let (name, writer) = name.split_once(' ').unwrap();
        let thread = thread((writer.parse::<usize>().unwrap() * 5 + number) % THREADS);
        let is_acknowledged = fate == Fate::Acknowledged;
        *if is_acknowledged { &mut acknowledged } else { &mut open } += 1;
        let counted = match number / THREADS % 4 {
            0 | 2 => lines.remove(name).unwrap_or_default(),
            kind => {
                let paths =
                    if kind == 1 { vec![format!("files/{name}")] } else { vec![format!("pairs/{name}/one"), format!("pairs/{name}/two")] };
                let there: Vec<Option<String>> = paths.iter().map(|path| found(&agent, base, &thread, path)).collect();
                assert!(there.iter().all(|text| *text == there[0]), "half of {name}: {there:?}");
                assert!(there[0].as_ref().is_none_or(|text| *text == content(name, number)), "a part of {name}");
                usize::from(there[0].is_some())
            }
        };
        assert!(counted == 1 || !is_acknowledged && counted == 0, "{name} of {thread} was {fate:?} and occurs {counted} times");
    }
    assert!(lines.is_empty(), "there are lines that no writer sent: {lines:?}");
    (acknowledged, open)
}

fn killed(url: &str) {
    let seconds = std::env::var("TREEHOLD_REPLICAS_SECONDS").ok().map(|text| Duration::from_secs(text.parse().unwrap()));
    let mut fleet = Fleet::start(url);
    let (done, begun) = (Done::default(), Instant::now());
    let (mut kills, mut longest, mut total) = (0, Duration::ZERO, Duration::ZERO);
    let base = fleet.base.clone();
    std::thread::scope(|scope| {
        /// Stops the writers even if the test fails, since the scope joins them.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let _stop = Stop(&done.stop);
        for writer in 0..WRITERS {
            let (base, done) = (&base, &done);
            scope.spawn(move || write(base, writer, done));
        }
        done.every_thread_goes_on(&[0; THREADS], 2);
        while seconds.map_or(kills < KILLS, |seconds| begun.elapsed() < seconds) {
            let next = Instant::now() + EVERY;
            let index = kills % REPLICAS;
            fleet.kill(index);
            kills += 1;
            let (since, killed) = (done.acknowledged(), Instant::now());
            // While it is down, all of its threads continue on other replicas.
            done.every_thread_goes_on(&since, 1);
            (longest, total) = (longest.max(killed.elapsed()), total + killed.elapsed());
            fleet.start_again(index);
            done.every_thread_goes_on(&done.acknowledged(), 1);
            if seconds.is_some() {
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        }
    });
    let took = begun.elapsed();
    let (acknowledged, open) = is_exactly(&base, &done);
    assert!(acknowledged > 0);
    println!(
        "{kills} kills in {:.0} s: {acknowledged} changes acknowledged ({:.0} a second) and each there once, {open} open and none of them half; \
         all {THREADS} threads were written to elsewhere {:.2} s after a kill, {:.2} s at most",
        took.as_secs_f64(),
        acknowledged as f64 / took.as_secs_f64(),
        total.as_secs_f64() / kills as f64,
        longest.as_secs_f64(),
    );
}

/// The lines of appends, by what their answers said.
#[derive(Default)]
struct Appended {
    /// Acknowledged: each is in the file once.
    sent: Mutex<Vec<String>>,
    /// Made, but not saved at that time: each is in the file, or in a thread that was set aside.
    unsaved: Mutex<Vec<String>>,
    /// To be checked by the client: each is in the file or nowhere.
    open: Mutex<Vec<String>>,
}

impl Appended {
    fn take(&self, line: String, status: u16, answer: &[u8]) {
        if status < 300 {
            self.sent.lock().unwrap().push(line);
            return;
        }
        let problem: Value = serde_json::from_slice(answer).unwrap();
        assert!([409, 503, 504].contains(&status), "{status}: {problem}");
        // A change without effect is in no file, which the count of the lines shows.
        if problem["may_have_effect"] == true {
            let detail = problem["detail"].as_str().unwrap();
            let is_kept = ["is not saved yet", "saved as thread"].iter().any(|promise| detail.contains(promise));
            if is_kept { &self.unsaved } else { &self.open }.lock().unwrap().push(line);
        }
    }

    /// Checks the lines of thread `t` and of the threads that were set aside from it.
    fn is_exactly(&self, base: &str) {
        let agent = agent();
        let log = found(&agent, base, "t", "log").unwrap();
        let mut lines: HashMap<&str, usize> = HashMap::new();
        for line in log.lines() {
            *lines.entry(line).or_default() += 1;
        }
        assert!(lines.values().all(|count| *count == 1), "a line is there twice");
        for line in self.sent.lock().unwrap().iter() {
            assert!(lines.remove(line.as_str()).is_some(), "`{line}` was acknowledged and is not there");
        }
        let (_, listed) = ask(&agent, "GET", &format!("{base}/v1/threads"), &[], b"").unwrap();
        let listed: Value = serde_json::from_slice(&listed).unwrap();
        let threads = listed["threads"].as_array().unwrap().iter().map(|thread| thread["thread"].as_str().unwrap());
        let aside: Vec<String> =
            threads.filter(|thread| thread.starts_with("t.")).map(|thread| found(&agent, base, thread, "log").unwrap()).collect();
        for line in self.unsaved.lock().unwrap().iter() {
            let is_kept = lines.remove(line.as_str()).is_some() || aside.iter().any(|log| log.lines().any(|other| other == line));
            assert!(is_kept, "`{line}` was made and is nowhere");
        }
        for line in self.open.lock().unwrap().iter() {
            lines.remove(line.as_str());
        }
        assert!(lines.is_empty(), "there are lines that were refused: {lines:?}");
    }
}

/// Pauses a replica in the middle of calls and resumes it after others wrote. Its late saves are refused, and its calls are repeated.
fn held_up(url: &str) {
    const ROUNDS: u64 = 8;
    let fleet = Fleet::start(url);
    let (slow, quick) = (fleet.direct(0), fleet.direct(1));
    let (stop, answered, appended) = (AtomicBool::new(false), AtomicU64::new(0), Appended::default());
    let append = |base: &str, agent: &Agent, line: String| {
        let url = format!("{base}/v1/threads/t/fs/log");
        let (status, answer) = ask(agent, "POST", &url, &[], format!("{line}\n").as_bytes()).unwrap();
        if status >= 300 {
            // The replica may have been paused in the middle of a commit, which holds a lock.
            fleet.replicas[0].signal("-CONT");
        }
        appended.take(line, status, &answer);
    };
    std::thread::scope(|scope| {
        /// Lets the writers end even if the test fails, since the scope joins them.
        struct End<'a>(&'a AtomicBool, &'a Replica);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
                self.1.signal("-CONT");
            }
        }
        let _end = End(&stop, &fleet.replicas[0]);
        for writer in 0..4 {
            let (slow, stop, answered, append) = (&slow, &stop, &answered, &append);
            scope.spawn(move || {
                let agent = agent();
                for number in 0.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    append(slow, &agent, format!("slow {writer}-{number}"));
                    answered.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
        let agent = agent();
        for round in 0..ROUNDS {
            let so_far = answered.load(Ordering::Acquire);
            while answered.load(Ordering::Acquire) < so_far + 5 {
                std::thread::yield_now();
            }
            fleet.replicas[0].signal("-STOP");
            for number in 0..3 {
                append(&quick, &agent, format!("quick {round}-{number}"));
            }
            fleet.replicas[0].signal("-CONT");
        }
    });
    // Each saves first what it could not save before.
    for (name, base) in [("slow", &slow), ("quick", &quick)] {
        append(base, &agent(), format!("last {name}"));
    }
    assert!(!appended.sent.lock().unwrap().is_empty());
    appended.is_exactly(&quick);
}

/// A session opened before a replica saved has an old head, so each of its saves is refused.
fn late(url: &str, store: std::sync::Arc<dyn treehold::store::Store>) {
    use treehold::{BackendExt, ErrorKind, Scope};
    let fleet = Fleet::start(url);
    let (agent, base) = (agent(), fleet.direct(0));
    let put = |path: &str, content: &str| {
        let (status, _) = ask(&agent, "PUT", &format!("{base}/v1/threads/t/fs/{path}"), &[], content.as_bytes()).unwrap();
        assert!(status < 300);
    };
    put("a", "first");
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let scope = Scope::new().with_tenant("default").with_user("default").with_thread("t");
        let session = super::workspace(&store).session(scope).await.unwrap();
        assert_eq!(session.backend().read_text("/a").await.unwrap(), "first");
        session.backend().write("/a", "late").await.unwrap();
        put("a", "newer");
        for _ in 0..2 {
            assert_eq!(session.save().await.unwrap_err().kind(), ErrorKind::Conflict);
        }
        assert_eq!(found(&agent, &base, "t", "a").unwrap(), "newer");
        // After a reload it continues from the current head.
        session.reload().await.unwrap();
        assert_eq!(session.backend().read_text("/a").await.unwrap(), "newer");
        session.backend().write("/b", "later").await.unwrap();
        session.save().await.unwrap();
    });
    let other = fleet.direct(2);
    assert_eq!((found(&agent, &other, "t", "a").unwrap(), found(&agent, &other, "t", "b").unwrap()), ("newer".into(), "later".into()));
}

/// Encodes text for a query.
#[cfg(feature = "postgres")]
fn in_query(text: &str) -> String {
    text.replace(' ', "%20")
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use crate::servers::postgres::{Schema, schema};
    use std::sync::Arc;

    /// Runs a test on a fresh schema.
    fn on(test: impl FnOnce(&str, &Schema)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let schema = runtime.block_on(schema());
        let joined = if schema.url.contains('?') { '&' } else { '?' };
        test(&format!("{}{joined}schema={}", schema.url, super::in_query(&schema.name)), &schema);
    }

    #[test]
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    fn killed_replicas_keep_acknowledged_changes_once_on_postgres() {
        on(|url, _| super::killed(url));
    }

    #[test]
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    fn paused_replica_is_refused_and_recovers_on_postgres() {
        on(|url, _| super::held_up(url));
    }

    #[test]
    #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
    fn late_save_with_an_old_head_is_refused_on_postgres() {
        on(|url, schema| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let store = runtime.block_on(treehold::store::PostgresStore::open_with(schema.options())).unwrap();
            super::late(url, Arc::new(store));
        });
    }
}

#[cfg(feature = "redis")]
mod on_redis {
    /// Runs a test on a fresh prefix.
    fn on(test: impl FnOnce(&str)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let prefix = runtime.block_on(crate::servers::redis::prefix());
        let joined = if prefix.url.contains('?') { '&' } else { '?' };
        test(&format!("{}{joined}prefix={}", prefix.url, prefix.name));
    }

    #[test]
    #[ignore = "needs Redis: run scripts/servers.sh"]
    fn killed_replicas_keep_acknowledged_changes_once_on_redis() {
        on(super::killed);
    }

    #[test]
    #[ignore = "needs Redis: run scripts/servers.sh"]
    fn paused_replica_is_refused_and_recovers_on_redis() {
        on(super::held_up);
    }
}
