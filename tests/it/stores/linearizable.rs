//! Linearizability: many tasks and processes on one store record their results, and one sequential order must explain all of them.
//!
//! The test binary starts itself; the environment selects its role. `TREEHOLD_LINEARIZABLE_ROUNDS` sets how much each task does. A history
//! that no order explains is kept under `target/tmp`.

use super::wrapped::{Wrapped, Wrapper};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use treehold::conformance::linearizability::{Action, Journal, Operation, Outcome, RecordedStore, Verdict, assert_linearizable, check};
use treehold::ops::Version;
use treehold::store::{Batch, BatchWrite, Condition, Item, MemoryStore, Namespace, Store};
use treehold::{BackendExt, ErrorKind, Result, StoreBackend};

const PLACE: &str = "TREEHOLD_TEST_HISTORY_STORE";
const JOURNAL: &str = "TREEHOLD_TEST_HISTORY_JOURNAL";
const PROCESS: &str = "TREEHOLD_TEST_HISTORY_PROCESS";

/// The tasks of a history, in one process or in all processes together.
const TASKS: u64 = 16;
const PROCESSES: u64 = 4;
/// The partitions of a history over several.
#[cfg(feature = "sqlite")]
const PARTITIONS: u64 = 5;
/// How often each task edits its line of the shared file.
const EDITS: u64 = 4;
const FILE: &str = "/shared.md";
/// The keys of a partition.
const KEYS: [&str; 8] = ["counter 0", "counter 1", "put 0", "put 1", "pair x", "pair y", "tree/0", "tree/1"];

/// Returns the nanoseconds of the clock that all processes of a machine share.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

/// Returns whether this process is one of those that work on one store.
fn is_part() -> bool {
    std::env::var_os(PLACE).is_some()
}

fn rounds() -> u64 {
    std::env::var("TREEHOLD_LINEARIZABLE_ROUNDS").map_or(40, |rounds| rounds.parse().unwrap())
}

fn rows() -> Namespace {
    rows_of(0)
}

/// Returns the rows of a partition: of a tenant, or of one of its users.
fn rows_of(partition: u64) -> Namespace {
    match partition {
        0 => Namespace::new(["rows"]).unwrap(),
        user => Namespace::new(["rows", &format!("user {user}"), "rows"]).unwrap(),
    }
}

fn files(store: Arc<dyn Store>) -> StoreBackend {
    StoreBackend::new(store, Namespace::new(["files"]).unwrap())
}

/// Returns a task's line after `edits` edits.
fn line(task: u64, edits: u64) -> String {
    format!("task {task:02}: {edits} edits\n")
}

/// Creates the shared file, in which each task has a line.
async fn prepare(store: Arc<dyn Store>) {
    let content: String = (0..TASKS).map(|task| line(task, 0)).collect();
    files(store).write(FILE, content).await.unwrap();
}

/// Runs one task: increments, puts, deletes, reads, batches and edits, in a different order for each task, each in one of the partitions.
async fn work(store: Arc<dyn Store>, task: u64, rounds: u64, partitions: u64) {
    let backend = files(store.clone());
    let mut random = task.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut edits = 0;
    for round in 0..rounds {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let one = random >> 8 & 1;
        let rows = rows_of((random >> 16) % partitions);
        let value = format!("{task}/{round}");
        match random % 16 {
            0..5 => increment(&*store, &rows, &format!("counter {one}")).await,
            5..7 => drop(store.commit(Batch::new().put(&rows, format!("put {one}"), value)).await.unwrap()),
            7 => drop(store.commit(Batch::new().delete(&rows, format!("put {one}"))).await.unwrap()),
            8 => drop(store.get(&rows, &format!("put {one}")).await.unwrap()),
            9 => drop(store.get_many(&rows, &["counter 0", "put 0", "pair x", "pair y"], one == 0).await.unwrap()),
            10 => drop(store.commit(Batch::new().put(&rows, "pair x", value.clone()).put(&rows, "pair y", value)).await.unwrap()),
            11 => drop(store.current_version(&rows.partition()).await.unwrap()),
            12 => drop(store.commit(Batch::new().put(&rows, format!("tree/{one}"), value)).await.unwrap()),
            13 => drop(store.commit(Batch::new().delete_prefix(&rows, "tree/").put(&rows, "pair y", value)).await.unwrap()),
            14 => {
                let batch = Batch::new().expect(&rows, "tree/", Condition::NoneBeneath).put(&rows, format!("tree/{one}"), value);
                settle(store.commit(batch).await);
            }
            _ => drop(store.get_many(&rows, &["tree/0", "tree/1", "pair y"], true).await.unwrap()),
        }
        if edits < EDITS && round * EDITS >= edits * rounds {
            // Lost races are retried inside; many in a row are a conflict.
            while let Err(error) = backend.edit(FILE, &line(task, edits), &line(task, edits + 1)).await {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
            }
            edits += 1;
        }
    }
}

/// Adds one to a counter, retrying lost races.
async fn increment(store: &dyn Store, rows: &Namespace, key: &str) {
    loop {
        let item = store.get(rows, key).await.unwrap();
        let condition = item.as_ref().map_or(Condition::Absent, |item| Condition::Version(item.version));
        let count = item.map_or(0, |item| std::str::from_utf8(&item.value).unwrap().parse::<u64>().unwrap());
        if settle(store.commit(Batch::new().expect(rows, key, condition).put(rows, key, format!("{}", count + 1))).await) {
            return;
        }
    }
}

/// Returns whether a commit succeeded or was refused.
fn settle(answer: Result<Vec<Version>>) -> bool {
    match answer {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
            false
        }
    }
}

async fn in_tasks(store: &Arc<dyn Store>, tasks: std::ops::Range<u64>, rounds: u64, partitions: u64) {
    let tasks: Vec<_> = tasks.map(|task| tokio::spawn(work(store.clone(), task, rounds, partitions))).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Records the results of 16 tasks of this process.
async fn history_of_tasks(store: Arc<dyn Store>, partitions: u64) -> Vec<Operation> {
    let journal = Journal::in_memory(0, now);
    let recorded: Arc<dyn Store> = Arc::new(RecordedStore::new(store, journal.clone()));
    prepare(recorded.clone()).await;
    in_tasks(&recorded, 0..TASKS, rounds(), partitions).await;
    journal.operations()
}

/// Asserts that an order explains a history, and by counting that nothing acknowledged is lost. The tasks in `open` were killed.
async fn assert_right(name: &str, store: Arc<dyn Store>, mut history: Vec<Operation>, open: std::ops::Range<u64>, partitions: u64) {
    let last = Journal::in_memory(PROCESSES + 1, now);
    let recorded = RecordedStore::new(store.clone(), last.clone());
    for rows in (0..partitions).map(rows_of) {
        for key in KEYS {
            recorded.get(&rows, key).await.unwrap();
        }
    }
    history.extend(last.operations());
    assert_linearizable(&history, Path::new(env!("CARGO_TARGET_TMPDIR")), name);
    for rows in (0..partitions).map(rows_of) {
        for counter in ["counter 0", "counter 1"] {
            let count = store.get(&rows, counter).await.unwrap();
            let count = count.map_or(0, |item| std::str::from_utf8(&item.value).unwrap().parse::<u64>().unwrap());
            let place = format!("\0{rows}\0{counter}");
            let commits =
                |is_counted: fn(&Outcome) -> bool| history.iter().filter(|operation| is_of(operation, &place, is_counted)).count() as u64;
            let (done, unknown) = (commits(|outcome| matches!(outcome, Outcome::Done(_))), commits(|outcome| *outcome == Outcome::Unknown));
            assert!(
                (done..=done + unknown).contains(&count),
                "{counter} of {rows} is {count} after {done} increments and {unknown} without an answer"
            );
        }
    }
    let text = files(store).read_text(FILE).await.unwrap();
    for task in (0..TASKS).filter(|task| !open.contains(task)) {
        assert!(text.contains(&line(task, EDITS)), "task {task} edited {EDITS} times, in\n{text}");
    }
    assert_eq!(text.lines().count() as u64, TASKS, "{text}");
}

/// Returns whether an operation is an increment of the counter at a place, with an outcome that counts.
fn is_of(operation: &Operation, place: &str, is_counted: fn(&Outcome) -> bool) -> bool {
    use treehold::conformance::linearizability::Write;
    let Action::Commit { writes, outcome, .. } = &operation.action else { return false };
    let is_put = |write: &Write| matches!(write, Write::Put { key, .. } if key.ends_with(place));
    writes.iter().any(is_put) && is_counted(outcome)
}

async fn check_tasks(name: &str, store: Arc<dyn Store>) {
    check_tasks_in(name, store, 1).await;
}

async fn check_tasks_in(name: &str, store: Arc<dyn Store>, partitions: u64) {
    let history = history_of_tasks(store.clone(), partitions).await;
    assert_right(name, store, history, 0..0, partitions).await;
}

/// Lets four processes of four tasks each work on a store. The last one is killed in the middle.
///
/// In one of those four processes, this runs its work.
async fn check_processes(test: &str, place: &str, open: impl AsyncFn(&str) -> Arc<dyn Store>) {
    check_processes_in(test, place, open, 1).await;
}

/// As [`check_processes`], in several partitions.
async fn check_processes_in(test: &str, place: &str, open: impl AsyncFn(&str) -> Arc<dyn Store>, partitions: u64) {
    const EACH: u64 = TASKS / PROCESSES;
    if is_part() {
        let place = std::env::var(PLACE).unwrap();
        let process: u64 = std::env::var(PROCESS).unwrap().parse().unwrap();
        let journal = Journal::in_file(process, Path::new(&std::env::var(JOURNAL).unwrap()), now).unwrap();
        let store: Arc<dyn Store> = Arc::new(RecordedStore::new(open(&place).await, journal));
        let rounds = if process + 1 == PROCESSES { u64::MAX / EDITS } else { rounds() };
        return in_tasks(&store, process * EACH..(process + 1) * EACH, rounds, partitions).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let journal = |process: u64| directory.path().join(format!("{process}.jsonl"));
    let first = Journal::in_memory(PROCESSES, now);
    let store = open(place).await;
    prepare(Arc::new(RecordedStore::new(store.clone(), first.clone()))).await;
    let start = |process: u64| -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--include-ignored", "--exact", &format!("stores::linearizable::{test}"), "--nocapture"]);
        command.env(PLACE, place).env(PROCESS, process.to_string()).env(JOURNAL, journal(process)).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..PROCESSES).map(start).collect();
    let mut killed = children.pop().unwrap();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut history = first.operations();
    for process in 0..PROCESSES {
        history.extend(Journal::read(&journal(process)).unwrap());
    }
    assert_right(test, store, history, TASKS - EACH..TASKS, partitions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_of_tasks_are_linearizable_in_memory() {
    check_tasks("histories_of_tasks_are_linearizable_in_memory", Arc::new(MemoryStore::new())).await;
}

#[cfg(feature = "sled")]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_tasks_are_linearizable_on_sled() {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SledStore::open(directory.path().join("store.sled")).unwrap();
    check_tasks("histories_of_tasks_are_linearizable_on_sled", Arc::new(store)).await;
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(path: &str) -> Arc<dyn Store> {
    // A writer may wait for several commits of others, and each of them for the disk.
    let options = treehold::store::SqliteOptions::new(path).with_busy_timeout(std::time::Duration::from_secs(120));
    Arc::new(treehold::store::SqliteStore::open_with(options).unwrap())
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_tasks_are_linearizable_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    check_tasks("histories_of_tasks_are_linearizable_on_sqlite", open_sqlite(directory.path().join("store.db").to_str().unwrap()).await)
        .await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_processes_are_linearizable_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    check_processes("histories_of_processes_are_linearizable_on_sqlite", directory.path().join("store.db").to_str().unwrap(), open_sqlite)
        .await;
}

#[cfg(feature = "sqlite")]
async fn open_sqlite_directory(path: &str) -> Arc<dyn Store> {
    Arc::new(treehold::store::SqliteDirectory::open(path).unwrap())
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_tasks_are_linearizable_on_a_sqlite_directory() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_sqlite_directory(directory.path().join("store").to_str().unwrap()).await;
    check_tasks("histories_of_tasks_are_linearizable_on_a_sqlite_directory", store).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_processes_are_linearizable_on_a_sqlite_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let test = "histories_of_processes_are_linearizable_on_a_sqlite_directory";
    check_processes(test, path.to_str().unwrap(), open_sqlite_directory).await;
}

/// Opens a directory that keeps one file open, so that a call in another partition closes it.
#[cfg(feature = "sqlite")]
async fn open_sqlite_directory_of_one_file(path: &str) -> Arc<dyn Store> {
    let options = treehold::store::SqliteDirectoryOptions::new(path).with_open_max(1);
    Arc::new(treehold::store::SqliteDirectory::open_with(options).unwrap())
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_tasks_over_partitions_are_linearizable_with_one_open_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = open_sqlite_directory_of_one_file(directory.path().join("store").to_str().unwrap()).await;
    let test = "histories_of_tasks_over_partitions_are_linearizable_with_one_open_file";
    check_tasks_in(test, store, PARTITIONS).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn histories_of_processes_over_partitions_are_linearizable_with_one_open_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let test = "histories_of_processes_over_partitions_are_linearizable_with_one_open_file";
    check_processes_in(test, path.to_str().unwrap(), open_sqlite_directory_of_one_file, PARTITIONS).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn histories_of_processes_are_linearizable_on_redis() {
    use super::crash::open_redis;
    let open = async |prefix: &str| open_redis(Path::new(prefix)).await;
    if is_part() {
        return check_processes("histories_of_processes_are_linearizable_on_redis", "", open).await;
    }
    let prefix = crate::servers::redis::prefix().await;
    check_processes("histories_of_processes_are_linearizable_on_redis", &prefix.name, open).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn histories_of_processes_are_linearizable_on_redis_cluster() {
    use crate::servers::redis::{cluster, prefix_in_cluster};
    let open = async |name: &str| {
        let options = treehold::store::RedisOptions::new(cluster()).with_prefix(name);
        let store = treehold::store::RedisStore::open_with(options).await.unwrap();
        Arc::new(store) as Arc<dyn Store>
    };
    if is_part() {
        return check_processes("histories_of_processes_are_linearizable_on_redis_cluster", "", open).await;
    }
    let prefix = prefix_in_cluster().await;
    check_processes("histories_of_processes_are_linearizable_on_redis_cluster", &prefix.name, open).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn histories_of_processes_are_linearizable_on_mysql() {
    use super::crash::open_mysql;
    let open = async |url: &str| open_mysql(Path::new(url)).await;
    if is_part() {
        return check_processes("histories_of_processes_are_linearizable_on_mysql", "", open).await;
    }
    let database = crate::servers::mysql::database().await;
    check_processes("histories_of_processes_are_linearizable_on_mysql", &database.url, open).await;
}

/// Three processes each use a node of their own. The fourth, which is killed, and this one use all of them in turn.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a MariaDB Galera cluster: run scripts/galera.sh"]
async fn histories_of_processes_are_linearizable_on_galera() {
    use crate::servers::galera::{Database, Spread};
    let open = async |urls: &str| {
        let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
        let process = std::env::var(PROCESS).map_or(urls.len(), |process| process.parse().unwrap());
        let urls = urls.get(process..=process).unwrap_or(&urls);
        Arc::new(Spread::new(crate::servers::galera::open(urls).await)) as Arc<dyn Store>
    };
    if is_part() {
        return check_processes("histories_of_processes_are_linearizable_on_galera", "", open).await;
    }
    let database = Database::fresh().await;
    check_processes("histories_of_processes_are_linearizable_on_galera", &database.urls().join(","), open).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn histories_of_processes_are_linearizable_on_postgres() {
    use super::crash::open_postgres;
    let open = async |schema: &str| open_postgres(Path::new(schema)).await;
    if is_part() {
        return check_processes("histories_of_processes_are_linearizable_on_postgres", "", open).await;
    }
    let schema = crate::servers::postgres::distributed_schema().await;
    check_processes("histories_of_processes_are_linearizable_on_postgres", &schema.name, open).await;
}

/// A way in which a store may violate its contract.
#[derive(Clone, Copy)]
enum Fault {
    /// Some reads return outdated rows.
    StaleRead,
    /// Some conditions are not checked.
    UncheckedCondition,
    /// Some batches are applied one write at a time.
    TornBatch,
    /// Some commits are acknowledged but not applied.
    LostCommit,
}

struct Faulty {
    fault: Fault,
    calls: AtomicU64,
    seen: Mutex<HashMap<String, Option<Item>>>,
}

#[async_trait]
impl Wrapper for Faulty {
    async fn get(&self, inner: &dyn Store, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        let item = inner.get(namespace, key).await?;
        // Let others run between a read and the write that depends on it.
        tokio::task::yield_now().await;
        if !matches!(self.fault, Fault::StaleRead) {
            return Ok(item);
        }
        let stale = self.seen.lock().insert(key.to_owned(), item.clone());
        Ok(if self.is_now() { stale.unwrap_or(item) } else { item })
    }

    async fn commit(&self, inner: &dyn Store, mut batch: Batch) -> Result<Vec<Version>> {
        let is_counter = matches!(&batch.writes[..], [BatchWrite::Put { key, .. }] if key.starts_with("counter"));
        match self.fault {
            Fault::UncheckedCondition if is_counter && self.is_now() => batch.preconditions.clear(),
            Fault::TornBatch if batch.preconditions.is_empty() => {
                let mut versions = Vec::new();
                for write in batch.writes {
                    versions.extend(inner.commit(Batch { preconditions: Vec::new(), writes: vec![write] }).await?);
                    tokio::task::yield_now().await;
                }
                return Ok(versions);
            }
            Fault::LostCommit if is_counter && self.is_now() => {
                let version = inner.current_version(&rows().partition()).await?;
                return Ok(vec![Version::new(version.number() + 1)]);
            }
            _ => {}
        }
        inner.commit(batch).await
    }
}

impl Faulty {
    fn is_now(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % 10 == 9
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_that_violates_its_contract_is_detected() {
    for fault in [Fault::StaleRead, Fault::UncheckedCondition, Fault::TornBatch, Fault::LostCommit] {
        let wrapper = Faulty { fault, calls: AtomicU64::new(0), seen: Mutex::default() };
        let store = Wrapped::new(Arc::new(MemoryStore::new()), wrapper);
        let journal = Journal::in_memory(0, now);
        let recorded: Arc<dyn Store> = Arc::new(RecordedStore::new(Arc::new(store), journal.clone()));
        let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(meddle(recorded.clone(), task))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        let history = journal.operations();
        assert!(matches!(check(&history), Verdict::Violated(_)), "fault {} of {} calls", fault as u8, history.len());
    }
}

/// Enough work to find each fault with any interleaving: fewer rounds would usually suffice.
async fn meddle(store: Arc<dyn Store>, task: u64) {
    for round in 0..200 {
        let value = format!("{task}/{round}");
        increment(&*store, &rows(), "counter").await;
        store.commit(Batch::new().put(&rows(), "pair x", value.clone()).put(&rows(), "pair y", value)).await.unwrap();
        store.get_many(&rows(), &["pair x", "pair y", "counter"], true).await.unwrap();
        tokio::task::yield_now().await;
    }
}
