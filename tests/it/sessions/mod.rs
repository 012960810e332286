//! Sessions that several processes use at once, and what a killed process leaves. The test binary starts itself; the
//! environment names the store and the part. `TREEHOLD_KILLS` sets how often each test kills a process.

#![allow(clippy::print_stdout, reason = "child processes report what was acknowledged")]

mod appending;
mod compacting;
mod host;
#[cfg(all(feature = "sqlite", target_os = "linux"))]
mod idle;
mod managing;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use treehold::sessions::{AppendOptions, Message, SessionRef, Sessions, Usage};
use treehold::store::Store;

const STORE: &str = "TREEHOLD_TEST_SESSIONS_STORE";
const NUMBER: &str = "TREEHOLD_TEST_SESSIONS_NUMBER";

/// Precedes each report in a child's output. The test harness writes to the same output.
const REPORT: &str = "report:";

const TENANT: &str = "acme";
const USER: &str = "ada";
const SESSION: &str = "s-1";

/// Makes a test on each store that processes share: `name: (parent, child)`. The parent gets a [`Subject`], and the child
/// the sessions and its number.
macro_rules! on_shared_stores {
    ($($test:ident: ($parent:path, $child:path),)*) => {
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    let test = concat!(module_path!(), "::", stringify!($test));
                    match crate::sessions::part().await {
                        Some((sessions, number)) => $child(sessions, number).await,
                        None => $parent(crate::sessions::Subject::on_sqlite(test).await).await,
                    }
                }
            )*
        }

        #[cfg(feature = "postgres")]
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "needs PostgreSQL: run scripts/servers.sh"]
                async fn $test() {
                    let test = concat!(module_path!(), "::", stringify!($test));
                    match crate::sessions::part().await {
                        Some((sessions, number)) => $child(sessions, number).await,
                        None => $parent(crate::sessions::Subject::on_postgres(test).await).await,
                    }
                }
            )*
        }
    };
}
use on_shared_stores;

/// Returns the sessions and the number with which this process was started, if another one started it.
async fn part() -> Option<(Sessions, u64)> {
    let store = std::env::var(STORE).ok()?;
    Some((Sessions::new(open(&store).await), std::env::var(NUMBER).unwrap().parse().unwrap()))
}

/// Opens a store by the name that a child gets: the engine, and its file or schema.
async fn open(name: &str) -> Arc<dyn Store> {
    match name.split_once(':').unwrap() {
        #[cfg(feature = "sqlite")]
        ("sqlite", path) => {
            // A writer may wait for several commits of others, and each of them for the disk.
            let options = treehold::store::SqliteOptions::new(path).with_busy_timeout(std::time::Duration::from_secs(120));
            Arc::new(treehold::store::SqliteStore::open_with(options).unwrap())
        }
        #[cfg(feature = "postgres")]
        ("postgres", schema) => crate::stores::crash::open_postgres(std::path::Path::new(schema)).await,
        _ => panic!("{name}"),
    }
}

/// A test with its store, which has one session.
struct Subject {
    test: &'static str,
    store: String,
    _keep: Box<dyn std::any::Any + Send + Sync>,
}

impl Subject {
    #[cfg(feature = "sqlite")]
    async fn on_sqlite(test: &'static str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", directory.path().join("store.db").display());
        Self { test, store, _keep: Box::new(directory) }.with_session().await
    }

    #[cfg(feature = "postgres")]
    async fn on_postgres(test: &'static str) -> Self {
        let schema = crate::servers::postgres::schema().await;
        Self { test, store: format!("postgres:{}", schema.name), _keep: Box::new(schema) }.with_session().await
    }

    async fn with_session(self) -> Self {
        self.sessions().await.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
        self
    }

    /// Opens the store, once its server has finished everything that a killed process sent.
    async fn sessions(&self) -> Sessions {
        #[cfg(feature = "postgres")]
        if let Some(schema) = self.store.strip_prefix("postgres:") {
            crate::stores::crash::wait_for_sessions_of(schema).await;
        }
        Sessions::new(open(&self.store).await)
    }

    /// Starts a child.
    fn start(&self, number: u64) -> Process {
        let test = self.test.split_once("::").unwrap().1;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--include-ignored"])
            .env(STORE, &self.store)
            .env(NUMBER, number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        Process { child, input, output }
    }
}

/// A child process, which is killed when this is dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Returns the next report; `None` at the end of the output.
    fn next(&mut self) -> Option<String> {
        self.output.by_ref().map_while(Result::ok).find_map(|line| Some(line.split_once(REPORT)?.1.to_owned()))
    }

    /// Lets the child continue, which waits in [`paused`].
    fn resume(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    /// Kills the child. Returns the reports that it had made.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::iter::from_fn(|| self.next()).collect()
    }

    /// Waits for the child's end. Returns the rest of its reports.
    fn finish(mut self) -> Vec<String> {
        let reports = std::iter::from_fn(|| self.next()).collect();
        assert!(self.child.wait().unwrap().success());
        reports
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports to the parent. The child ends if its parent has stopped reading.
fn report(text: impl std::fmt::Display) {
    let mut out = std::io::stdout();
    if out.write_all(format!("{REPORT}{text}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Waits until the parent lets this child continue.
async fn paused() {
    let read = || std::io::stdin().read_line(&mut String::new()).unwrap();
    assert!(tokio::task::spawn_blocking(read).await.unwrap() > 0, "the parent has ended");
}

/// How often a test kills a process.
fn kills() -> u64 {
    std::env::var("TREEHOLD_KILLS").map_or(12, |kills| kills.parse().unwrap())
}

fn reference() -> SessionRef {
    SessionRef::new(TENANT, SESSION).unwrap()
}

/// The messages of a batch: one to three, each with the writer, the batch and the position in the batch.
fn batch(writer: u64, number: u64) -> Vec<Message> {
    (0..=number % 3).map(|place| Message::user(&format!("{writer} {number} {place}"), number as i64)).collect()
}

/// Appends a batch with a turn. A repetition has no second effect.
async fn append(sessions: &Sessions, writer: u64, number: u64) {
    let options = AppendOptions::new().with_idempotency_key(format!("{writer}/{number}")).with_usage(Usage::of_tokens(number, 1).unwrap());
    sessions.append(TENANT, SESSION, &batch(writer, number), &options).await.unwrap();
}

/// Asserts that messages are whole batches, each once, and the batches of each writer in order. Returns how many each of the
/// writers 0 and 1 appended.
fn check_batches(messages: &[Message]) -> [u64; 2] {
    let mut next = [0; 2];
    let mut left = messages;
    while let Some(first) = left.first() {
        let text = first.text();
        let writer: u64 = text.split(' ').next().unwrap().parse().unwrap();
        let expected = batch(writer, next[writer as usize]);
        assert!(left.starts_with(&expected), "batch {} of writer {writer} is missing, torn or repeated: {text}", next[writer as usize]);
        left = &left[expected.len()..];
        next[writer as usize] += 1;
    }
    next
}

/// Asserts that the session has turns without gaps, one for each batch, and one place in the list of sessions.
async fn check_turns(sessions: &Sessions, batches: u64) {
    let events = sessions.load_events(TENANT, SESSION).await.unwrap();
    let turns = events[1..].iter().map(|event| event.view::<serde_json::Value>().unwrap()["turnIndex"].as_u64());
    assert!(turns.eq((0..batches).map(Some)), "{} turns after {batches} batches", events.len() - 1);
    let listed = sessions.list_all(TENANT, USER).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(Some(listed[0].updated_at), sessions.info(TENANT, SESSION).await.unwrap().map(|info| info.updated_at));
}
