//! Saves in the layout of the rows, beside the layout before it, on fresh stores of the same engine in the same run.
//!
//! The former layout is that of the commit before 54c9089. All its rows were in one partition, `_treehold/agent-state`, so that one commit
//! could create a session and put its user into the directory of the tenant. Now a user's rows are in the partition of the user. The user's
//! first session puts the entry of the directory and leaves a proof of it, which later sessions expect.

use crate::counting::Counting;
use crate::{KEY, median, message, shown, state};
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use treehold::agent_state::{AgentStateStore, AgentStates, Json, SaveOptions, StateSlot, StoreStates};
use treehold::error::Result;
use treehold::ops::Version;
use treehold::store::{
    Batch, BatchWrite, Item, ItemPart, MemoryStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions,
    SqliteDirectory, SqliteStore, Store, StoreCapabilities, StoreExtensions, Watch,
};

/// How many messages a state has before the turns that are measured.
const MESSAGES: usize = 100;

/// How many users save at once.
const USERS: usize = 16;

/// The key of the proof that the directory has the user.
const PROOF: &str = "p\u{1}directory";

/// A fresh store, and a guard that removes it.
type Fresh = (Arc<dyn Store>, Box<dyn Any + Send>);

/// A store that makes the calls of the former layout.
///
/// [`StoreStates`] is above it as it is above the store of the present layout, so both ways do the same work outside of the store. Its calls
/// become those of the former layout: each row is where it was, the proof is neither read nor written, and the commit that would put it puts
/// the user into the directory. The time of the former layout includes this translation.
#[derive(Debug)]
struct Former {
    inner: Arc<Counting>,
}

impl fmt::Display for Former {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Former({})", self.inner)
    }
}

/// Returns where rows of a user were.
fn former(namespace: &Namespace) -> Namespace {
    let components: Vec<String> = namespace.components().map(|component| component.into_owned()).collect();
    let [tenant, user, _, _, name @ ..] = &components[..] else { panic!("`{namespace}` is not a namespace of states") };
    let user = ["_treehold", "agent-state", tenant.as_str(), "users", user.as_str()];
    Namespace::new(user.into_iter().chain(name.iter().map(String::as_str))).unwrap()
}

/// Returns the entry of the directory that a save put: its namespace and its key. `states` is the namespace of the user's states.
fn entry(states: &Namespace) -> (Namespace, String) {
    let components: Vec<String> = states.components().map(|component| component.into_owned()).collect();
    let [tenant, user, _, _, _, agent, ..] = &components[..] else { panic!("`{states}` is not a namespace of states") };
    let directory = ["_treehold", "agent-state", tenant.as_str(), "directory", agent.as_str()];
    (Namespace::new(directory).unwrap(), format!("u{user}"))
}

/// Makes a proof that counts, so that the save does not announce the entry.
fn proof() -> Item {
    let now = Timestamp::now();
    Item::new(PROOF, Bytes::new(), Bytes::from(now.as_microsecond().to_string()), Version::new(1), now, now)
}

#[async_trait]
impl Store for Former {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.inner.get(&former(namespace), key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.inner.get_part(&former(namespace), key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        let without_proof = keys.strip_suffix(&[PROOF]);
        let mut found = self.inner.get_many(&former(namespace), without_proof.unwrap_or(keys), with_values).await?;
        found.extend(without_proof.map(|_| Some(proof())));
        Ok(found)
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.inner.scan(&former(namespace), options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    async fn commit(&self, mut batch: Batch) -> Result<Vec<Version>> {
        batch.preconditions.retain(|precondition| precondition.key != PROOF);
        for precondition in &mut batch.preconditions {
            precondition.namespace = former(&precondition.namespace);
        }
        for write in &mut batch.writes {
            match write {
                BatchWrite::Put { namespace, key, value, .. } if *key == PROOF => {
                    (*namespace, *key) = entry(namespace);
                    *value = Bytes::new();
                }
                BatchWrite::Put { namespace, .. } => *namespace = former(namespace),
                other => panic!("a save of the former layout did not write {other:?}"),
            }
        }
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(&former(namespace)).await
    }
}

/// States in one of the layouts, on a store of their own.
struct Way {
    states: StoreStates,
    counting: Arc<Counting>,
    /// Dropped after the store.
    _keep: Box<dyn Any + Send>,
}

impl Way {
    fn new((store, keep): Fresh, is_former: bool) -> Self {
        let counting = Arc::new(Counting::new(store));
        let above: Arc<dyn Store> = if is_former { Arc::new(Former { inner: counting.clone() }) } else { counting.clone() };
        Self { states: AgentStates::new(above).for_agent("acme", "helper").unwrap(), counting, _keep: keep }
    }

    async fn save(&self, slot: &StateSlot, value: &Json) {
        self.states.save(slot, KEY, value, SaveOptions::new()).await.unwrap();
    }
}

fn slot(user: &str, session: &str) -> StateSlot {
    StateSlot::new(Some(user), session).unwrap()
}

fn state_of(count: usize) -> Json {
    state(&(0..count).map(message).collect::<Vec<_>>())
}

/// Saves in the former layout and in the present one, one after the other in each round. Returns the times of the rounds in both.
fn compare(runtime: &Runtime, ways: &[Way; 2], rounds: usize, save: impl AsyncFn(&Way, usize)) -> [Vec<Duration>; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for way in ways {
        way.counting.take_calls();
    }
    for round in 0..rounds {
        // Neither is always the first.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for at in order {
            let start = Instant::now();
            runtime.block_on(save(&ways[at], round));
            times[at].push(start.elapsed());
        }
    }
    times
}

/// Prints a row. In the former layout each of the `saves` of a round was one read and one commit.
fn print(engine: &str, what: &str, ways: &[Way; 2], saves: usize, [before, now]: [Vec<Duration>; 2]) {
    let rounds = now.len();
    let [calls_before, calls_now] = ways.each_ref().map(|way| way.counting.take_calls() as usize);
    assert_eq!(calls_before, 2 * saves * rounds, "{engine}, {what}");
    let (before, now) = (median(before), median(now));
    println!(
        "| {engine} | {what} | {} | {} | {} | {} | {:.2} |",
        calls_before / rounds,
        calls_now / rounds,
        shown(before),
        shown(now),
        now.as_secs_f64() / before.as_secs_f64(),
    );
}

fn measure(runtime: &Runtime, engine: &str, rounds: usize, fresh: impl Fn() -> Fresh) {
    let ways = [true, false].map(|is_former| Way::new(fresh(), is_former));
    let turns: Vec<Json> = (0..=rounds).map(|round| state_of(MESSAGES + 2 * round)).collect();
    let first_turn = state_of(2);
    let ada = slot("ada", "s");
    let users: Vec<StateSlot> = (0..USERS).map(|user| slot(&format!("user {user}"), "s")).collect();
    for way in &ways {
        for slot in users.iter().chain([&ada]) {
            runtime.block_on(way.save(slot, &turns[0]));
        }
    }

    let times = compare(runtime, &ways, rounds, async |way: &Way, round: usize| way.save(&ada, &turns[round + 1]).await);
    print(engine, "a turn", &ways, 1, times);

    let times = compare(runtime, &ways, rounds, async |way: &Way, round: usize| {
        way.save(&slot("ada", &format!("s {round}")), &first_turn).await;
    });
    print(engine, "another session of a user", &ways, 1, times);

    let times = compare(runtime, &ways, rounds, async |way: &Way, round: usize| {
        way.save(&slot(&format!("new {round}"), "s"), &first_turn).await;
    });
    print(engine, "the first session of a user", &ways, 1, times);

    let times = compare(runtime, &ways, rounds, async |way: &Way, round: usize| {
        let saves = users.iter().map(|slot| way.save(slot, &turns[round + 1]));
        futures::future::join_all(saves).await;
    });
    print(engine, "a turn of each of 16 users at once", &ways, USERS, times);

    for way in &ways {
        for slot in users.iter().chain([&ada]) {
            assert_eq!(runtime.block_on(way.states.get(slot, KEY)).unwrap().unwrap().value, turns[rounds]);
        }
    }
}

fn in_memory() -> Fresh {
    (Arc::new(MemoryStore::new()), Box::new(()))
}

fn sqlite() -> Fresh {
    let directory = tempfile::tempdir().unwrap();
    (Arc::new(SqliteStore::open(directory.path().join("store.db")).unwrap()), Box::new(directory))
}

fn sqlite_directory() -> Fresh {
    let directory = tempfile::tempdir().unwrap();
    (Arc::new(SqliteDirectory::open(directory.path().join("store")).unwrap()), Box::new(directory))
}

/// Prints a table of the calls and the time of a save in both layouts, by store.
pub(crate) fn bench(runtime: &Runtime, rounds: usize) {
    println!();
    println!("| store | save | calls before | calls | time before | time | ratio |");
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
    measure(runtime, "in-memory", rounds, in_memory);
    measure(runtime, "SQLite", rounds, sqlite);
    measure(runtime, "SQLite in a directory", rounds, sqlite_directory);
    #[cfg(all(feature = "conformance", feature = "mysql", feature = "postgres", feature = "redis"))]
    if std::env::var_os("TREEHOLD_BENCH_SERVERS").is_some() {
        use crate::servers::{mysql, postgres, redis};
        // The stores of servers are dropped within a runtime.
        let _entered = runtime.enter();
        measure(runtime, "PostgreSQL", rounds, || runtime.block_on(postgres::fresh()));
        measure(runtime, "MySQL or MariaDB", rounds, || runtime.block_on(mysql::fresh()));
        measure(runtime, "Redis", rounds, || runtime.block_on(redis::fresh()));
    }
}
