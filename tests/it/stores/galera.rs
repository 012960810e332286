//! MariaDB Galera: how many round trips calls take, and commits on three nodes that race with each other. While all nodes take writes, one
//! after another is cut off or killed.

#![allow(clippy::print_stdout, reason = "the counts are the result of a long run")]

use super::namespace;
use crate::servers::galera::{Database, cut_off, is_part_of_cluster, kill, open, open_with, reconnect, start};
use crate::servers::mysql::proxied;
use futures::future::join_all;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;
use treehold::clock::Clock;
use treehold::store::{Batch, Condition, MysqlOptions, MysqlStore, Namespace, NamespacesOptions, ScanOptions, Store, StoreExt};
use treehold::{BackendExt, Error, ErrorKind, StoreBackend};

const NODES: usize = 3;
/// The writers on each node.
const WRITERS: usize = 2;
const FILE: &str = "/shared.md";
const COUNTER: &str = "counter";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a MariaDB Galera cluster: run scripts/galera.sh"]
async fn stores_opened_on_all_nodes_at_once_share_their_tables() {
    let database = Database::fresh().await;
    let urls = database.urls();
    let stores = join_all((0..9).map(|number| open(&urls[number % NODES..=number % NODES]))).await.concat();
    for (number, store) in stores.iter().enumerate() {
        let written = store.commit(Batch::new().put(&namespace(), "k", format!("{number}"))).await.unwrap();
        assert_eq!(written[0].number(), number as u64 + 1, "all count in one row");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a MariaDB Galera cluster: run scripts/galera.sh"]
async fn acknowledged_commit_is_read_on_every_other_node() {
    let database = Database::fresh().await;
    let stores = open(&database.urls()).await;
    let a = namespace();
    // A body that takes longer to apply than a short answer takes to arrive.
    for number in 0..60 {
        let value = format!("{number:05}").repeat(40_000);
        let version = stores[number % NODES].commit(Batch::new().put(&a, "k", value.clone())).await.unwrap()[0];
        let read = join_all(stores.iter().map(|store| store.get(&a, "k"))).await;
        assert!(read.into_iter().all(|item| item.unwrap().unwrap().value == value.as_bytes()), "round {number}");
        let page = stores[(number + 1) % NODES].scan(&a, ScanOptions::new()).await.unwrap();
        assert_eq!(page.entries.len(), 1 + number.min(1), "`l` is put below");
        assert_eq!(stores[(number + 2) % NODES].current_version(&a.partition()).await.unwrap(), version);
        let batch = Batch::new().expect(&a, "k", Condition::Version(version)).put(&a, "l", "");
        stores[(number + 1) % NODES].commit(batch).await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs a MariaDB Galera cluster: run scripts/galera.sh"]
async fn calls_take_the_documented_round_trips() {
    let database = Database::fresh_alone().await;
    let (proxy, url) = proxied(&database.urls()[0]).await;
    let options = MysqlOptions::new(url).with_connections_max(1).with_connect_timeout(Duration::from_secs(30));
    let store = MysqlStore::open_with(options).await.unwrap();
    let a = namespace();
    // Prepares every statement.
    store.commit(Batch::new().put(&a, "k", "v").put(&a, "long", vec![0; 200_000])).await.unwrap();
    store.get(&a, "k").await.unwrap();
    store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap();
    store.current_version(&a.partition()).await.unwrap();
    proxy.round_trips();
    store.commit(Batch::new().put(&a, "k", "w")).await.unwrap();
    assert_eq!(proxy.round_trips(), 4, "a commit");
    let batch = (0..20).fold(Batch::new(), |batch, number| batch.expect(&a, format!("none{number}"), Condition::Absent));
    store.commit(batch.expect(&a, "d/", Condition::NoneBeneath).put(&a, "l", "w").delete_prefix(&a, "x/")).await.unwrap();
    assert_eq!(proxy.round_trips(), 4, "a commit with conditions");
    store.commit(Batch::new().delete(&a, "l")).await.unwrap();
    assert_eq!(proxy.round_trips(), 4, "a removal");
    store.commit(Batch::new().put(&a, "long", vec![1; 200_000])).await.unwrap();
    assert_eq!(proxy.round_trips(), 6, "a commit with a long body, and the writes before it");
    let refused = store.commit(Batch::new().expect(&a, "k", Condition::Absent).put(&a, "k", "x")).await.unwrap_err();
    assert_eq!((refused.kind(), proxy.round_trips()), (ErrorKind::Conflict, 2), "a commit that is refused");
    store.commit(Batch::new().put(&Namespace::new(["first"]).unwrap(), "k", "v")).await.unwrap();
    assert_eq!(proxy.round_trips(), 8, "the first commit to a partition: four more");
    assert!(store.get(&a, "k").await.unwrap().is_some());
    assert_eq!(proxy.round_trips(), 1, "a get");
    assert_eq!(store.get_many(&a, &["k", "none", "long"], true).await.unwrap().iter().flatten().count(), 2);
    assert_eq!(proxy.round_trips(), 1, "a get of many");
    assert_eq!(store.scan(&a, ScanOptions::new().with_values(true)).await.unwrap().entries.len(), 2);
    assert_eq!(proxy.round_trips(), 1, "a page with bodies");
    assert_eq!(store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces.len(), 2);
    assert_eq!(proxy.round_trips(), 1, "a page of namespaces");
    store.current_version(&a.partition()).await.unwrap();
    assert_eq!(proxy.round_trips(), 1, "the version");
}

/// Neither batch puts or removes a row, so the number of the counter stays as it is. The time stands still, since a batch that waits for
/// the other one still compares with the time at which it began.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a MariaDB Galera cluster: run scripts/galera.sh"]
async fn of_two_nodes_that_each_expire_what_the_other_expects_one_is_refused() {
    let database = Database::fresh().await;
    let stores = open_with(&database.urls(), &Clock::from_fn(|| Timestamp::UNIX_EPOCH)).await;
    let a = namespace();
    for round in 0..100 {
        stores[2].commit(Batch::new().put(&a, "x", "").put(&a, "y", "")).await.unwrap();
        let expire = |node: usize, expected: &str, expired: &str| {
            let batch = Batch::new().expect(&a, expected, Condition::Exists).touch(&a, expired, Some(Duration::ZERO));
            stores[node].commit(batch)
        };
        let (one, other) = tokio::join!(expire(0, "x", "y"), expire(1, "y", "x"));
        assert!(one.is_ok() != other.is_ok(), "round {round}: {one:?} and {other:?}");
        assert_eq!(one.and(other).unwrap_err().kind(), ErrorKind::Conflict);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a MariaDB Galera cluster: run scripts/galera.sh"]
async fn node_cut_off_from_its_cluster_serves_no_reads_and_commits_when_it_is_back() {
    let database = Database::fresh_alone().await;
    let stores = open(&database.urls()).await;
    let a = namespace();
    stores[2].commit(Batch::new().put(&a, "k", "before")).await.unwrap();
    cut_off(2).await;
    let error = stores[2].get(&a, "k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let committing = tokio::spawn({
        let (store, a) = (stores[2].clone(), a.clone());
        async move { store.commit(Batch::new().expect(&a, "k", Condition::Exists).append(&a, "once", None)).await }
    });
    stores[0].commit(Batch::new().put(&a, "k", "meanwhile")).await.unwrap();
    assert!(!is_part_of_cluster(2).await);
    reconnect(2).await;
    committing.await.unwrap().unwrap();
    let page = stores[1].scan(&a, ScanOptions::new().with_values(true)).await.unwrap();
    assert_eq!(page.entries.len(), 2, "one row was put and one was appended");
    assert_eq!(stores[2].get(&a, "k").await.unwrap().unwrap().value, "meanwhile");
}

/// What a writer knows of one of its changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Acknowledged,
    Unknown,
    Failed,
}

impl Fate {
    fn of<T>(answer: Result<T, Error>) -> Self {
        match answer {
            Ok(_) => Self::Acknowledged,
            Err(error) if error.kind() == ErrorKind::Conflict => Self::Failed,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                if error.may_have_effect() { Self::Unknown } else { Self::Failed }
            }
        }
    }

    /// Returns whether a change with this fate may be there this many times.
    fn allows(self, times: usize) -> bool {
        match self {
            Self::Acknowledged => times == 1,
            Self::Unknown => times <= 1,
            Self::Failed => times == 0,
        }
    }
}

/// A writer on one node, and what it was told.
struct Writer {
    name: String,
    store: Arc<dyn Store>,
    files: StoreBackend,
    /// Whether the node of the writer is in the cluster.
    is_up: watch::Receiver<bool>,
    /// How many changes the node has acknowledged.
    acknowledged: watch::Sender<u64>,
    /// By the key of the row that an increment puts, and by the body that is appended.
    increments: BTreeMap<String, Fate>,
    appends: BTreeMap<String, Fate>,
    edits: u64,
    moves: u64,
    pairs: u64,
}

fn line(name: &str, edits: u64) -> String {
    format!("{name}: {edits} edits\n")
}

fn log() -> Namespace {
    Namespace::new(["log"]).unwrap()
}

impl Writer {
    /// Changes things until told to stop.
    async fn work(mut self, is_over: Arc<AtomicBool>) -> Self {
        let mut turn = 0;
        while !is_over.load(Ordering::SeqCst) {
            let fate = match turn % 5 {
                0 | 1 => self.increment(turn).await,
                2 => self.append(turn).await,
                3 => self.edit().await,
                _ if turn % 2 == 0 => self.rename().await,
                _ => self.pair().await,
            };
            turn += 1;
            if fate == Fate::Acknowledged {
                self.acknowledged.send_modify(|count| *count += 1);
            } else {
                self.is_up.wait_for(|is_up| *is_up).await.unwrap();
            }
        }
        self
    }

    async fn increment(&mut self, turn: u64) -> Fate {
        let a = namespace();
        let Ok(item) = self.store.get(&a, COUNTER).await else { return Fate::Failed };
        let condition = item.as_ref().map_or(Condition::Absent, |item| Condition::Version(item.version));
        let count = item.map_or(0, |item| std::str::from_utf8(&item.value).unwrap().parse::<u64>().unwrap());
        let key = format!("{}/{turn}", self.name);
        let batch = Batch::new().expect(&a, COUNTER, condition).expect(&a, &key, Condition::Absent);
        let fate = Fate::of(self.store.commit(batch.put(&a, COUNTER, format!("{}", count + 1)).put(&a, &key, "")).await);
        self.increments.insert(key, fate);
        fate
    }

    /// Appends without a condition. Made twice, it would be there twice.
    async fn append(&mut self, turn: u64) -> Fate {
        let value = format!("{}/{turn}", self.name);
        let fate = Fate::of(self.store.commit(Batch::new().append(&log(), value.clone(), None)).await);
        self.appends.insert(value, fate);
        fate
    }

    async fn edit(&mut self) -> Fate {
        let edited = self.files.edit(FILE, &line(&self.name, self.edits), &line(&self.name, self.edits + 1)).await;
        match edited {
            // An edit whose answer was lost.
            Err(error) if error.kind() == ErrorKind::NoMatch => self.edits += 1,
            edited => {
                let fate = Fate::of(edited);
                if fate != Fate::Acknowledged {
                    return fate;
                }
                self.edits += 1;
            }
        }
        Fate::Acknowledged
    }

    fn place(&self, moves: u64) -> String {
        format!("/{}/{}", self.name, if moves.is_multiple_of(2) { "here" } else { "there" })
    }

    async fn rename(&mut self) -> Fate {
        let renamed = self.files.rename(&self.place(self.moves), &self.place(self.moves + 1)).await;
        match renamed {
            Err(error) if error.kind() == ErrorKind::NotFound => self.moves += 1,
            renamed => {
                let fate = Fate::of(renamed);
                if fate != Fate::Acknowledged {
                    return fate;
                }
                self.moves += 1;
            }
        }
        Fate::Acknowledged
    }

    /// Puts two rows that are equal at any moment, which another node may read meanwhile.
    async fn pair(&mut self) -> Fate {
        let a = namespace();
        let value = format!("{} {}", self.name, self.pairs);
        self.pairs += 1;
        let fate = Fate::of(self.store.commit(Batch::new().put(&a, "pair x", value.clone()).put(&a, "pair y", value)).await);
        if let Ok(rows) = self.store.get_many(&a, &["pair x", "pair y"], true).await {
            let values: Vec<_> = rows.into_iter().map(|row| row.map(|item| item.value)).collect();
            assert_eq!(values[0], values[1], "half of a batch is visible");
        }
        fate
    }
}

/// Asserts that a node shows each change as often as its writer was told.
async fn assert_exact(store: &Arc<dyn Store>, writers: &[Writer]) {
    let a = namespace();
    let mut there: BTreeMap<String, usize> = BTreeMap::new();
    for (space, with_values) in [(&a, false), (&log(), true)] {
        let mut options = ScanOptions::new().with_values(with_values);
        loop {
            let page = store.scan(space, options.clone()).await.unwrap();
            for entry in &page.entries {
                let treehold::store::ScanEntry::Item(item) = entry else { panic!("no delimiter was given") };
                let name = if with_values { format!("log {}", std::str::from_utf8(&item.value).unwrap()) } else { item.key.clone() };
                *there.entry(name).or_default() += 1;
            }
            let Some(next) = page.next else { break };
            options = ScanOptions::new().with_values(with_values).with_start_after(next);
        }
    }
    let mut increments = 0;
    for writer in writers {
        for (key, fate) in &writer.increments {
            let times = there.get(key).copied().unwrap_or_default();
            assert!(fate.allows(times), "increment {key} is {fate:?} and is there {times} times");
            increments += times;
        }
        for (value, fate) in &writer.appends {
            let times = there.get(&format!("log {value}")).copied().unwrap_or_default();
            assert!(fate.allows(times), "append {value} is {fate:?} and is there {times} times");
        }
        let text = writer.files.read_text(FILE).await.unwrap();
        let edited = text.contains(&line(&writer.name, writer.edits)) || text.contains(&line(&writer.name, writer.edits + 1));
        assert!(edited, "{} edited {} times: {text}", writer.name, writer.edits);
        let mut places = Vec::new();
        for moves in 0..2 {
            match writer.files.read_text(&writer.place(moves)).await {
                Ok(text) => places.push(text),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}"),
            }
        }
        assert_eq!(places, std::slice::from_ref(&writer.name), "a file that moves is in one place");
    }
    let counter = store.get(&a, COUNTER).await.unwrap().unwrap();
    assert_eq!(counter.value, format!("{increments}"), "every increment that left its row counts once");
    assert!(store.check().await.unwrap().is_empty());
}

/// Kills and cuts off one node after another while all three take writes. `TREEHOLD_GALERA_SECONDS` sets for how long.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a MariaDB Galera cluster: run scripts/galera.sh"]
async fn each_change_is_there_as_often_as_told_after_nodes_were_killed_and_cut_off() {
    let seconds = std::env::var("TREEHOLD_GALERA_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let database = Database::fresh_alone().await;
    let stores = open(&database.urls()).await;
    let names: Vec<String> = (0..NODES * WRITERS).map(|number| format!("writer{number}")).collect();
    let files = |store: &Arc<dyn Store>| StoreBackend::new(store.clone(), Namespace::new(["files"]).unwrap());
    let shared: String = names.iter().map(|name| line(name, 0)).collect();
    files(&stores[0]).write(FILE, shared).await.unwrap();
    for name in &names {
        files(&stores[0]).write(&format!("/{name}/here"), name.clone()).await.unwrap();
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let ups: Vec<watch::Sender<bool>> = (0..NODES).map(|_| watch::Sender::new(true)).collect();
    let counts: Vec<watch::Sender<u64>> = (0..NODES).map(|_| watch::Sender::new(0)).collect();
    let mut writers = JoinSet::new();
    for (number, name) in names.iter().enumerate() {
        let node = number % NODES;
        let writer = Writer {
            name: name.clone(),
            store: stores[node].clone(),
            files: files(&stores[node]),
            is_up: ups[node].subscribe(),
            acknowledged: counts[node].clone(),
            increments: BTreeMap::new(),
            appends: BTreeMap::new(),
            edits: 0,
            moves: 0,
            pairs: 0,
        };
        writers.spawn(writer.work(is_over.clone()));
    }
    let more = async |nodes: &[usize], changes: u64| {
        for &node in nodes {
            let target = *counts[node].borrow() + changes;
            counts[node].subscribe().wait_for(|count| *count >= target).await.unwrap();
        }
    };
    let mut rounds = 0;
    let disturbing = async {
        more(&[0, 1, 2], 10).await;
        while rounds < 2 || Instant::now() < until {
            // A node that was cut off, and then one that was killed.
            let (node, is_killed) = (rounds % NODES, rounds % 2 == 1);
            let others: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
            if is_killed {
                tokio::task::spawn_blocking(move || kill(node)).await.unwrap();
                ups[node].send_replace(false);
            } else {
                cut_off(node).await;
            }
            more(&others, 20).await;
            if is_killed {
                tokio::task::spawn_blocking(move || start(node)).await.unwrap();
                ups[node].send_replace(true);
            } else {
                reconnect(node).await;
            }
            more(&[0, 1, 2], 10).await;
            rounds += 1;
        }
    };
    tokio::select! {
        () = disturbing => {}
        ended = writers.join_next() => panic!("a writer stopped: {:?}", ended.map(|ended| ended.map(drop))),
    }
    is_over.store(true, Ordering::SeqCst);
    let writers = writers.join_all().await;
    for store in &stores {
        assert_exact(store, &writers).await;
    }
    let fates = writers.iter().flat_map(|writer| writer.increments.values().chain(writer.appends.values()));
    let [acknowledged, unknown] = [Fate::Acknowledged, Fate::Unknown].map(|of| fates.clone().filter(|fate| **fate == of).count());
    let (edits, moves) = writers.iter().fold((0, 0), |(edits, moves), writer| (edits + writer.edits, moves + writer.moves));
    println!("{rounds} faults, {acknowledged} increments and appends acknowledged, {unknown} unknown, {edits} edits, {moves} moves");
}
