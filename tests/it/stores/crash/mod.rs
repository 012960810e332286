//! Killed processes, and processes that share a store. The test binary starts itself; the environment selects its role. `TREEHOLD_KILLS`
//! sets how often each engine's writer is killed.

#![allow(clippy::print_stdout, reason = "child processes report what was acknowledged")]

#[cfg(feature = "redis")]
mod masters;
mod past;

use super::namespace;
use std::io::{BufRead, BufReader, Write};
#[cfg(unix)]
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use treehold::ErrorKind;
use treehold::store::{Batch, Condition, Namespace, Store, StoreExt};

const PATH: &str = "TREEHOLD_TEST_STORE";
const NUMBER: &str = "TREEHOLD_TEST_NUMBER";
const SLOTS: u64 = 16;
const ROWS: [&str; 3] = ["x", "y", "z"];
/// The partitions of the slots. Batches go to each in turn.
const PARTITIONS: u64 = 4;

/// Returns where the rows of a slot are: in the partition of a tenant or of a user.
fn space(slot: u64) -> Namespace {
    match slot % PARTITIONS {
        0 => namespace(),
        user => Namespace::new(["rows", &format!("user {user}"), "rows"]).unwrap(),
    }
}

fn start(test: &str, path: &Path, number: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("stores::crash::{test}"), "--nocapture", "--include-ignored"])
        .env(PATH, path)
        .env(NUMBER, number.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the path and number with which this process was started, if it plays one of these roles.
fn part() -> Option<(std::path::PathBuf, u64)> {
    let path = std::env::var_os(PATH)?;
    Some((path.into(), std::env::var(NUMBER).unwrap().parse().unwrap()))
}

fn key(slot: u64, row: &str) -> String {
    format!("{slot:02}/{row}")
}

/// Returns a body that names its batch, of a few bytes, one page, several pages or many.
fn body(number: u64) -> String {
    format!("{number} ").repeat([1, 800, 3_000, 20_000][(number % 4) as usize])
}

fn number_of(stored: &[u8]) -> u64 {
    let text = std::str::from_utf8(stored).unwrap();
    let number = text.split(' ').next().unwrap().parse().unwrap();
    assert!(text == body(number), "a body of batch {number} is not what was written");
    number
}

/// Returns the key of the row that names a slot's latest batch.
fn mark(slot: u64) -> String {
    format!("{slot:02}")
}

/// Adds the writes of a batch to the three rows of its slot: most batches put them, the others remove them, by key or by prefix.
fn writes(batch: Batch, slot: u64, number: u64) -> Batch {
    let space = space(slot);
    match number % 5 {
        3 => ROWS.iter().fold(batch, |batch, row| batch.delete(&space, key(slot, row))),
        4 => batch.delete_prefix(&space, format!("{slot:02}/")),
        _ => ROWS.iter().fold(batch, |batch, row| batch.put(&space, key(slot, row), body(number))),
    }
}

fn leaves_rows(number: u64) -> bool {
    number != 0 && number % 5 < 3
}

/// Commits batches of four rows that change together forever, each on the condition that its slot is unchanged since it was read, and
/// prints the number of each acknowledged batch. Before every seventh, tries a condition that fails.
async fn write(store: Arc<dyn Store>, first: u64) {
    for number in first.. {
        let slot = number % SLOTS;
        let (space, mark) = (space(slot), mark(slot));
        loop {
            let met = store.get(&space, &mark).await.unwrap().map(|item| item.version);
            let condition = met.map_or(Condition::Absent, Condition::Version);
            if number.is_multiple_of(7) {
                let refused = Batch::new().expect(&space, &mark, condition.clone()).expect(&space, "never", Condition::Exists);
                let error = store.commit(writes(refused, slot, number).put(&space, "refused", "")).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
            }
            let batch = Batch::new().expect(&space, &mark, condition).put(&space, &mark, body(number));
            match store.commit(writes(batch, slot, number)).await {
                Ok(_) => break,
                // The last batch of the killed writer reached the server only now.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}"),
            }
        }
        let mut out = std::io::stdout();
        out.write_all(format!("acknowledged {number}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
}

/// Asserts that a slot holds exactly one whole batch, and returns its number.
async fn check_slot(store: &dyn Store, slot: u64) -> u64 {
    let keys = [mark(slot), key(slot, ROWS[0]), key(slot, ROWS[1]), key(slot, ROWS[2])];
    let rows = store.get_many(&space(slot), &keys.each_ref().map(String::as_str), true).await.unwrap();
    let numbers: Vec<Option<u64>> = rows.into_iter().map(|row| row.map(|item| number_of(&item.value))).collect();
    let number = numbers[0].unwrap_or(0);
    let left = leaves_rows(number).then_some(number);
    assert!(numbers[1..].iter().all(|row| *row == left), "slot {slot} is torn: {numbers:?}");
    number
}

/// Asserts that every acknowledged batch is there, and that every batch is whole. Returns the newest one.
async fn check(store: Arc<dyn Store>, acknowledged: u64) -> u64 {
    let mut newest = 0;
    for slot in 0..SLOTS {
        let number = check_slot(&*store, slot).await;
        let expected = (1..=acknowledged).rev().find(|number| number % SLOTS == slot).unwrap_or_default();
        assert!(number >= expected, "slot {slot} holds batch {number} and {expected} was acknowledged");
        newest = newest.max(number);
        assert!(store.get(&space(slot), "refused").await.unwrap().is_none(), "a batch that was refused has left a row");
    }
    let damage = store.check().await.unwrap();
    assert!(damage.is_empty(), "{damage:?}");
    newest
}

/// Kills the writer repeatedly, after one to a few dozen acknowledged batches.
async fn kill_again_and_again(
    test: &str,
    path: &Path,
    open: impl AsyncFn(&Path) -> Arc<dyn Store>,
    check: impl AsyncFn(Arc<dyn Store>, u64) -> u64,
) {
    let kills = std::env::var("TREEHOLD_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let mut newest = 0;
    for round in 0..kills {
        let mut child = start(test, path, newest + 1);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let acknowledged = lines.by_ref().filter_map(|line| line.rsplit_once("acknowledged ")?.1.parse::<u64>().ok());
        let mut last = newest;
        for number in acknowledged.take(1 + round * 7 % 31) {
            last = number;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Lines printed before it died count too.
        for number in lines.filter_map(|line| line.rsplit_once("acknowledged ")?.1.parse::<u64>().ok()) {
            last = number;
        }
        newest = check(open(path).await, last).await;
        assert!(newest == last || newest == last + 1, "one batch at most was under way: {newest} after {last}");
    }
}

/// The system calls that fail or kill, of those that write to files.
const CALLS: [&str; 6] = ["pwrite64", "fdatasync", "fsync", "ftruncate", "rename", "sync_file_range"];

/// Kills the writer at some of its system calls and fails others, each on a fresh store; `scripts/faults.sh` covers all of them.
async fn fault_at_system_calls(test: &str, open: impl AsyncFn(&Path) -> Arc<dyn Store>, check: impl AsyncFn(Arc<dyn Store>, u64) -> u64) {
    let traces = Command::new("strace").args(["-o", "/dev/null", "true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(traces.is_ok_and(|status| status.success()), "strace is not installed, or may not trace");
    let mut all_acknowledged = 0;
    for (number, call) in [2, 7].into_iter().flat_map(|number| CALLS.map(|call| (number, call))) {
        for fault in ["signal=SIGKILL", "error=ENOSPC", "error=EIO"] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("store");
            let mut command = Command::new("strace");
            command.args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &format!("inject={call}:{fault}:when={number}")]);
            command.arg(std::env::current_exe().unwrap());
            command
                .args(["--exact", &format!("stores::crash::{test}"), "--nocapture", "--include-ignored"])
                .env(PATH, &path)
                .env(NUMBER, "1");
            let mut child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            let _ended = ended_within(STUCK, &child);
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            let acknowledged = lines.by_ref().filter_map(|line| line.rsplit_once("acknowledged ")?.1.parse::<u64>().ok());
            let last = acknowledged.take(8).last().unwrap_or_default();
            all_acknowledged += last;
            // It ends once nobody reads its output.
            drop(lines);
            child.wait().unwrap();
            let newest = check(open(&path).await, last).await;
            assert!(newest >= last, "{fault} at {call} {number}: {newest} after {last}");
        }
    }
    assert!(all_acknowledged > 0, "no writer came as far as to acknowledge anything");
}

/// How long to wait for a lock whose holder may be waiting for the disk.
#[cfg(any(feature = "sled", feature = "sqlite"))]
const LOCK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

#[cfg(feature = "sqlite")]
fn open_sqlite(path: &Path) -> Arc<dyn Store> {
    let options = treehold::store::SqliteOptions::new(path).with_busy_timeout(LOCK_PATIENCE);
    Arc::new(treehold::store::SqliteStore::open_with(options).unwrap())
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn killed_sqlite_writer_loses_and_tears_nothing() {
    if let Some((path, first)) = part() {
        return write(open_sqlite(&path), first).await;
    }
    let directory = tempfile::tempdir().unwrap();
    kill_again_and_again(
        "killed_sqlite_writer_loses_and_tears_nothing",
        &directory.path().join("store.db"),
        async |path| open_sqlite(path),
        check,
    )
    .await;
}

/// Opens a directory that keeps one file open, so that a batch in another partition closes it.
#[cfg(feature = "sqlite")]
fn open_sqlite_directory(path: &Path) -> Arc<dyn Store> {
    let options = treehold::store::SqliteDirectoryOptions::new(path).with_open_max(1).with_busy_timeout(LOCK_PATIENCE);
    Arc::new(treehold::store::SqliteDirectory::open_with(options).unwrap())
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn killed_sqlite_directory_writer_loses_and_tears_nothing() {
    if let Some((path, first)) = part() {
        return write(open_sqlite_directory(&path), first).await;
    }
    let directory = tempfile::tempdir().unwrap();
    kill_again_and_again(
        "killed_sqlite_directory_writer_loses_and_tears_nothing",
        &directory.path().join("store"),
        async |path| open_sqlite_directory(path),
        check,
    )
    .await;
}

#[cfg(feature = "sled")]
fn open_sled(path: &Path) -> Arc<dyn Store> {
    let options = treehold::store::SledOptions::new(path).with_lock_timeout(LOCK_PATIENCE);
    Arc::new(treehold::store::SledStore::open_with(options).unwrap())
}

#[cfg(feature = "sled")]
#[tokio::test]
async fn killed_sled_writer_loses_and_tears_nothing() {
    if let Some((path, first)) = part() {
        return write(open_sled(&path), first).await;
    }
    let directory = tempfile::tempdir().unwrap();
    kill_again_and_again(
        "killed_sled_writer_loses_and_tears_nothing",
        &directory.path().join("store.sled"),
        async |path| open_sled(path),
        check,
    )
    .await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
#[ignore = "needs strace and the right to trace"]
async fn sqlite_writer_with_failing_system_calls_loses_and_tears_nothing() {
    if let Some((path, first)) = part() {
        return write(open_sqlite(&path), first).await;
    }
    fault_at_system_calls("sqlite_writer_with_failing_system_calls_loses_and_tears_nothing", async |path| open_sqlite(path), check).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
#[ignore = "needs strace and the right to trace"]
async fn sqlite_directory_writer_with_failing_system_calls_loses_and_tears_nothing() {
    if let Some((path, first)) = part() {
        return write(open_sqlite_directory(&path), first).await;
    }
    let test = "sqlite_directory_writer_with_failing_system_calls_loses_and_tears_nothing";
    fault_at_system_calls(test, async |path| open_sqlite_directory(path), check).await;
}

#[cfg(feature = "sled")]
#[tokio::test]
#[ignore = "needs strace and the right to trace"]
async fn sled_writer_with_failing_system_calls_loses_and_tears_nothing() {
    if let Some((path, first)) = part() {
        return write(open_sled(&path), first).await;
    }
    fault_at_system_calls("sled_writer_with_failing_system_calls_loses_and_tears_nothing", async |path| open_sled(path), check).await;
}

#[cfg(feature = "sled")]
#[tokio::test]
async fn sled_directory_is_refused_to_a_second_process() {
    if let Some((path, _)) = part() {
        let error = treehold::store::SledStore::open(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sled");
    let store = open_sled(&path);
    let output = start("sled_directory_is_refused_to_a_second_process", &path, 0).wait_with_output().unwrap();
    assert!(output.status.success());
    store.commit(Batch::new().put(&namespace(), "k", "v")).await.unwrap();
}

/// How long a writer may take after a failed system call. The sled engine sometimes waits forever then
/// (docs/durability.md#sled).
#[cfg(unix)]
const STUCK: std::time::Duration = std::time::Duration::from_secs(120);

/// Kills the process group of a child that runs longer, unless the result is dropped before.
#[cfg(unix)]
fn ended_within(limit: std::time::Duration, child: &Child) -> std::sync::mpsc::Sender<()> {
    let (ended, over) = std::sync::mpsc::channel();
    let group = rustix::process::Pid::from_child(child);
    std::thread::spawn(move || {
        if over.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    });
    ended
}

/// Starts four processes that count together, each increment a compare-and-swap, and asserts that none is lost. In one of the four, this
/// counts.
async fn count_in_four_processes(test: &str, path: &Path, open: impl AsyncFn(&Path) -> Arc<dyn Store>) {
    const PROCESSES: u64 = 4;
    const EACH: u64 = 50;
    if let Some((path, number)) = part() {
        let store = open(&path).await;
        let mut done = 0;
        while done < EACH {
            let item = store.get(&namespace(), "counter").await.unwrap();
            let condition = item.as_ref().map_or(Condition::Absent, |item| Condition::Version(item.version));
            let count = item.map_or(0, |item| std::str::from_utf8(&item.value).unwrap().parse::<u64>().unwrap());
            let batch = Batch::new().expect(&namespace(), "counter", condition).put(&namespace(), "counter", format!("{}", count + 1));
            match store.commit(batch.put(&namespace(), format!("{number}/{done}"), "")).await {
                Ok(_) => done += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}"),
            }
        }
        return;
    }
    let children: Vec<Child> = (0..PROCESSES).map(|number| start(test, path, number)).collect();
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    let store = open(path).await;
    let counter = store.get(&namespace(), "counter").await.unwrap().unwrap();
    assert_eq!(counter.value, format!("{}", PROCESSES * EACH));
    // Two versions per batch, from one counter shared by all processes.
    assert_eq!(store.current_version(&namespace().partition()).await.unwrap().number(), PROCESSES * EACH * 2);
}

/// All four start on a file that does not exist yet.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn four_processes_lose_no_increment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    count_in_four_processes("four_processes_lose_no_increment", &path, async |path| open_sqlite(path)).await;
}

/// All four create the directory and the file of the partition.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn four_processes_lose_no_increment_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    count_in_four_processes("four_processes_lose_no_increment_in_a_directory", &path, async |path| open_sqlite_directory(path)).await;
}

/// Opens the store of a prefix.
#[cfg(feature = "redis")]
pub(super) async fn open_redis(prefix: &Path) -> Arc<dyn Store> {
    let options = treehold::store::RedisOptions::new(crate::servers::redis::server()).with_prefix(prefix.to_str().unwrap());
    Arc::new(treehold::store::RedisStore::open_with(options).await.unwrap())
}

#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn killed_redis_writer_loses_and_tears_nothing() {
    if let Some((prefix, first)) = part() {
        return write(open_redis(&prefix).await, first).await;
    }
    let prefix = crate::servers::redis::prefix().await;
    kill_again_and_again("killed_redis_writer_loses_and_tears_nothing", Path::new(&prefix.name), open_redis, check).await;
}

/// All four create the store, because there is none.
#[cfg(feature = "redis")]
#[tokio::test]
#[ignore = "needs Redis: run scripts/servers.sh"]
async fn four_processes_lose_no_increment_in_redis() {
    let prefix = match part() {
        Some(_) => None,
        None => Some(crate::servers::redis::prefix().await),
    };
    let name = prefix.as_ref().map_or("", |prefix| &prefix.name);
    count_in_four_processes("four_processes_lose_no_increment_in_redis", Path::new(name), open_redis).await;
}

/// Opens the store in a database, by its URL.
#[cfg(feature = "mysql")]
pub(super) async fn open_mysql(url: &Path) -> Arc<dyn Store> {
    Arc::new(treehold::store::MysqlStore::open(url.to_str().unwrap()).await.unwrap())
}

#[cfg(feature = "mysql")]
#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn killed_mysql_writer_loses_and_tears_nothing() {
    if let Some((url, first)) = part() {
        return write(open_mysql(&url).await, first).await;
    }
    let database = crate::servers::mysql::database().await;
    kill_again_and_again("killed_mysql_writer_loses_and_tears_nothing", Path::new(&database.url), open_mysql, check).await;
}

/// All four create the tables, because there are none.
#[cfg(feature = "mysql")]
#[tokio::test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
async fn four_processes_lose_no_increment_in_mysql() {
    let database = match part() {
        Some(_) => None,
        None => Some(crate::servers::mysql::database().await),
    };
    let url = database.as_ref().map_or("", |database| &database.url);
    count_in_four_processes("four_processes_lose_no_increment_in_mysql", Path::new(url), open_mysql).await;
}

/// Opens the store of a schema, in sessions with that name.
#[cfg(feature = "postgres")]
pub(crate) async fn open_postgres(schema: &Path) -> Arc<dyn Store> {
    let schema = schema.to_str().unwrap();
    let url = format!("{}?application_name={}", crate::servers::postgres::server(), schema.replace(' ', "%20"));
    let options = treehold::store::PostgresOptions::new(url).with_schema(schema);
    Arc::new(treehold::store::PostgresStore::open_with(options).await.unwrap())
}

/// Waits until the server has finished everything that processes sent in sessions with the name of a schema before they were
/// killed.
#[cfg(feature = "postgres")]
pub(crate) async fn wait_for_sessions_of(schema: &str) {
    use crate::servers::postgres::{connect, server};
    let client = connect(&server()).await.unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1::text";
    while client.query_one(sessions, &[&schema]).await.unwrap().get::<_, i64>(0) > 0 {}
}

#[cfg(feature = "postgres")]
async fn open_postgres_after_kill(schema: &Path) -> Arc<dyn Store> {
    wait_for_sessions_of(schema.to_str().unwrap()).await;
    open_postgres(schema).await
}

#[cfg(feature = "postgres")]
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn killed_postgres_writer_loses_and_tears_nothing() {
    if let Some((schema, first)) = part() {
        return write(open_postgres(&schema).await, first).await;
    }
    let schema = crate::servers::postgres::distributed_schema().await;
    let test = "killed_postgres_writer_loses_and_tears_nothing";
    kill_again_and_again(test, Path::new(&schema.name), open_postgres_after_kill, check).await;
}

/// All four create the tables, because there are none.
#[cfg(feature = "postgres")]
#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
async fn four_processes_lose_no_increment_in_postgres() {
    let test = "four_processes_lose_no_increment_in_postgres";
    if part().is_some() {
        return count_in_four_processes(test, Path::new(""), open_postgres).await;
    }
    let schema = crate::servers::postgres::distributed_schema().await;
    count_in_four_processes(test, Path::new(&schema.name), open_postgres).await;
}

/// Commits while the server is killed and restarted by the command in a variable that `scripts/kill-postgres.sh` sets. The store stays open
/// meanwhile.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a PostgreSQL server that it may kill: run scripts/kill-postgres.sh"]
async fn killed_postgres_server_keeps_acknowledged_commits() {
    let restart = std::env::var("TREEHOLD_TEST_POSTGRES_RESTART").expect("scripts/kill-postgres.sh sets it");
    let kills: usize = std::env::var("TREEHOLD_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let schema = crate::servers::postgres::distributed_schema().await;
    let store = open_postgres(Path::new(&schema.name)).await;
    let (mut kept, mut acknowledged, mut open_ended) = ([0; SLOTS as usize], 0, 0);
    for round in 0..kills {
        let commits = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let writers = (0..SLOTS).zip(kept).map(|(slot, kept)| {
            let (store, commits) = (store.clone(), commits.clone());
            tokio::spawn(async move {
                for number in kept + 1.. {
                    let space = space(slot);
                    let batch = Batch::new().expect(&space, "never", Condition::Absent);
                    let batch = if number % 2 == 0 { batch } else { Batch::new() };
                    let batch = writes(batch.put(&space, mark(slot), body(number)), slot, number);
                    if let Err(error) = store.commit(batch).await {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                        return (number - 1, error.may_have_effect());
                    }
                    commits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                unreachable!("numbers do not end");
            })
        });
        let writers: Vec<_> = writers.collect();
        while commits.load(std::sync::atomic::Ordering::Relaxed) < 20 + round * 37 % 300 {
            tokio::task::yield_now().await;
        }
        let restart = Command::new("sh").args(["-c", &restart]).status();
        assert!(restart.unwrap().success(), "the server is back");
        for (slot, writer) in writers.into_iter().enumerate() {
            let (last, may_have_effect) = writer.await.unwrap();
            let newest = check_slot(&*store, slot as u64).await;
            assert!(newest == last || (may_have_effect && newest == last + 1), "slot {slot} holds batch {newest} after {last}");
            acknowledged += last - kept[slot];
            open_ended += newest - last;
            kept[slot] = newest;
        }
    }
    assert!(store.check().await.unwrap().is_empty());
    println!("{kills} kills, {acknowledged} batches acknowledged and all whole, {open_ended} more whose answer was lost");
}
