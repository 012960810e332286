//! Redis Cluster: how many round trips calls take, and how the partitions of a store spread over the masters. While the store is in use,
//! slots move, replicas take over, and keys are lost.

use super::namespace;
use crate::servers::redis::{prefix_in_cluster, prefix_in_own_cluster};
use crate::servers::redis_nodes::Nodes;
use redis::{Connection, Value};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use treehold::ErrorKind;
use treehold::store::{Batch, Condition, Namespace, NamespacesOptions, RedisOptions, RedisStore, ScanOptions, Store, StoreExt};

/// How long the nodes may take to agree, and a replica to take over.
const PATIENCE: Duration = Duration::from_secs(120);

/// A master of the cluster.
struct Master {
    id: String,
    host: String,
    port: u16,
    connection: Connection,
}

impl Master {
    fn run(&mut self, words: &[&str]) -> redis::RedisResult<Value> {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection)
    }
}

/// Parses what a node reports about another: its id, its epoch, and whether it has a slot.
fn told(line: &str, slot: u16) -> (String, String, bool) {
    let fields: Vec<&str> = line.split(' ').collect();
    let has = fields[8..].iter().any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse().is_ok_and(|first: u16| first <= slot) && last.parse().is_ok_and(|last: u16| slot <= last)
    });
    (fields[0].to_owned(), fields[6].to_owned(), has)
}

/// Waits until all masters agree and no two have the same epoch. Before that, outdated reports from before a move may still be in flight
/// and revert the move, because two owners with the same epoch are ordered by their names.
fn wait_until_agreed(masters: &mut [&mut Master], slot: u16) {
    let start = Instant::now();
    loop {
        let views = masters.iter_mut().map(|master| {
            let nodes: String = redis::from_redis_value(master.run(&["CLUSTER", "NODES"]).unwrap()).unwrap();
            nodes.lines().filter(|line| line.contains("master")).map(|line| told(line, slot)).collect::<BTreeSet<_>>()
        });
        let views: BTreeSet<_> = views.collect();
        let epochs: BTreeSet<&str> = views.iter().flatten().map(|(_, epoch, _)| epoch.as_str()).collect();
        if views.len() == 1 && epochs.len() == masters.len() {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{views:?}");
        std::thread::yield_now();
    }
}

/// Connects to the masters: the owner of a slot, and the others.
fn masters(nodes: &str, slot: u16) -> (Master, Vec<Master>) {
    let (mut owner, mut others) = (None, Vec::new());
    for line in nodes.lines().filter(|line| line.contains("master") && !line.contains("fail")) {
        let fields: Vec<&str> = line.split(' ').collect();
        let (host, port) = fields[1].split('@').next().unwrap().rsplit_once(':').unwrap();
        let connection = redis::Client::open(format!("redis://{host}:{port}")).unwrap().get_connection().unwrap();
        let master = Master { id: fields[0].to_owned(), host: host.to_owned(), port: port.parse().unwrap(), connection };
        let (_, _, has) = told(line, slot);
        if has { owner = Some(master) } else { others.push(master) }
    }
    (owner.unwrap(), others)
}

/// Counts until told to stop. Returns how many increments were acknowledged, and how many may have been made.
async fn count(store: RedisStore, a: Namespace, key: String, is_over: Arc<AtomicBool>) -> (u64, u64) {
    let (mut acknowledged, mut open) = (0, 0);
    while !is_over.load(Ordering::SeqCst) {
        let item = match store.get(&a, &key).await {
            Ok(item) => item,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                continue;
            }
        };
        let condition = item.as_ref().map_or(Condition::Absent, |item| Condition::Version(item.version));
        let value = item.map_or(0, |item| std::str::from_utf8(&item.value).unwrap().parse::<u64>().unwrap());
        // The two rows belong to one batch, so they are equal.
        let batch = Batch::new().expect(&a, &key, condition).put(&a, &key, format!("{}", value + 1));
        match store.commit(batch.put(&a, format!("{key}/twin"), format!("{}", value + 1))).await {
            Ok(_) => acknowledged += 1,
            Err(error) if error.kind() == ErrorKind::Unavailable => open += u64::from(error.may_have_effect()),
            Err(error) => panic!("{error:?}"),
        }
    }
    (acknowledged, open)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn store_follows_its_moving_slot() {
    let prefix = prefix_in_cluster().await;
    let store = prefix.open().await;
    // Rows with and without expiry and body, so that no key of the store is empty.
    let a = namespace();
    let filled = (0..500).fold(Batch::new(), |batch, number| batch.put(&a, format!("row {number}"), vec![b'x'; number]));
    store.commit(filled.put_for(&a, "mortal", "v", Duration::from_secs(3_600))).await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        (0..4).map(|number| tokio::spawn(count(store.clone(), namespace(), format!("count {number}"), is_over.clone()))).collect();

    let moves = tokio::task::spawn_blocking({
        let keys = ["rows", "keys", "expiries", "changes"].map(|part| prefix.partition_key("rows", part));
        let rows = keys[0].clone();
        let mut connection = prefix.connect().unwrap();
        move || {
            let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(rows).query(&mut connection).unwrap();
            let text = slot.to_string();
            for round in 0..6 {
                let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(&mut connection).unwrap();
                let (mut from, mut others) = masters(&nodes, slot);
                let mut to = others.swap_remove(round % others.len());
                to.run(&["CLUSTER", "SETSLOT", &text, "IMPORTING", &from.id]).unwrap();
                from.run(&["CLUSTER", "SETSLOT", &text, "MIGRATING", &to.id]).unwrap();
                // Migrates one key at a time, so that for a while they are on both nodes.
                for key in &keys {
                    from.run(&["MIGRATE", &to.host, &to.port.to_string(), key, "0", "5000"]).unwrap();
                    std::thread::yield_now();
                }
                let target = to.id.clone();
                let mut masters: Vec<&mut Master> = [&mut to, &mut from].into_iter().chain(&mut others).collect();
                for master in &mut masters {
                    master.run(&["CLUSTER", "SETSLOT", &text, "NODE", &target]).unwrap();
                }
                wait_until_agreed(&mut masters, slot);
            }
        }
    });
    moves.await.unwrap();
    is_over.store(true, Ordering::SeqCst);
    for (number, writer) in writers.into_iter().enumerate() {
        let (acknowledged, open) = writer.await.unwrap();
        let key = format!("count {number}");
        let rows = store.get_many(&a, &[&key, &format!("{key}/twin")], true).await.unwrap();
        let rows: Vec<_> = rows.into_iter().map(|row| row.unwrap().value).collect();
        assert_eq!(rows[0], rows[1], "only half of the batch is visible");
        let counted: u64 = std::str::from_utf8(&rows[0]).unwrap().parse().unwrap();
        assert!(acknowledged > 0 && (acknowledged..=acknowledged + open).contains(&counted), "{counted} of {acknowledged} and {open}");
    }
    assert_eq!(store.stats().await.unwrap().items, 509);
    assert!(store.check().await.unwrap().is_empty());
}

/// Returns a namespace in the partition of a user.
fn space(user: usize) -> Namespace {
    Namespace::new(["acme", &format!("u{user}"), "notes"]).unwrap()
}

/// One node has all slots, so one proxy sees every request.
#[tokio::test]
#[ignore = "needs redis-server, which it starts: run scripts/servers.sh"]
async fn calls_take_the_documented_round_trips() {
    let mut nodes = Nodes::start(1);
    let proxy = nodes.proxied().await;
    let options = RedisOptions::new(format!("redis+cluster://127.0.0.1:{}", proxy.port)).with_prefix("counted");
    let store = RedisStore::open_with(options).await.unwrap();
    let [known, new, absent] = [0, 1, 2].map(space);
    // The node has every script afterwards, and both connections are open.
    store.commit(Batch::new().put(&known, "k", "v")).await.unwrap();
    store.scan(&known, ScanOptions::new().with_values(true)).await.unwrap();
    proxy.round_trips();
    store.commit(Batch::new().put(&known, "k", "w")).await.unwrap();
    assert_eq!(proxy.round_trips(), 1, "a commit");
    store.commit(Batch::new().put(&new, "k", "v")).await.unwrap();
    assert_eq!(proxy.round_trips(), 6, "the first commit to a partition: five more");
    store.commit(Batch::new().put(&new, "k", "w")).await.unwrap();
    assert_eq!(proxy.round_trips(), 1, "the second commit to a partition");
    let used = |space: &Namespace, condition| Batch::new().expect(space, "k", condition).put(space, "k", "x");
    let refused = store.commit(used(&new, Condition::Absent)).await.unwrap_err();
    assert_eq!((refused.kind(), proxy.round_trips()), (ErrorKind::Conflict, 1), "a commit that is refused");
    assert!(store.get(&new, "k").await.unwrap().is_some());
    assert_eq!(proxy.round_trips(), 1, "a get");
    assert_eq!(store.get_many(&new, &["k", "none"], true).await.unwrap().iter().flatten().count(), 1);
    assert_eq!(proxy.round_trips(), 1, "a get of many");
    assert_eq!(store.scan(&new, ScanOptions::new().with_values(true)).await.unwrap().entries.len(), 1);
    assert_eq!(proxy.round_trips(), 1, "a page with bodies");
    assert_eq!(store.current_version(&new.partition()).await.unwrap().number(), 2);
    assert_eq!(proxy.round_trips(), 1, "the version");
    assert_eq!(store.get(&absent, "k").await.unwrap(), None);
    assert_eq!(proxy.round_trips(), 2, "a get from a partition that does not exist");
    assert_eq!(store.current_version(&absent.partition()).await.unwrap().number(), 0);
    assert_eq!(proxy.round_trips(), 2, "the version of a partition that does not exist");
    let refused = store.commit(used(&absent, Condition::Exists)).await.unwrap_err();
    assert_eq!((refused.kind(), proxy.round_trips()), (ErrorKind::Conflict, 2), "a refused commit to a partition that does not exist");
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut nodes.connect(0)).unwrap();
    for expected in [2, 1] {
        store.commit(Batch::new().put(&new, "k", "w")).await.unwrap();
        assert_eq!(proxy.round_trips(), expected, "the first commit takes the script along");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn partitions_spread_over_all_masters_and_page_in_order() {
    const USERS: usize = 40;
    // Each node counts what it runs.
    let prefix = prefix_in_own_cluster().await;
    let (store, other) = (prefix.open().await, prefix.open().await);
    assert_eq!(store.get(&space(0), "k").await.unwrap(), None);
    assert_eq!(store.commit(Batch::new().delete(&space(0), "k")).await.unwrap(), []);
    let refused = store.commit(Batch::new().expect(&space(0), "k", Condition::Exists).put(&space(0), "k", "v")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.change()), (ErrorKind::Conflict, Some(0)));
    assert_eq!(store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces, [], "nothing was made");
    for user in 0..USERS {
        for round in 1..=3 {
            let writer = if round == 2 { &other } else { &store };
            assert_eq!(writer.commit(Batch::new().put(&space(user), "k", "v")).await.unwrap()[0].number(), round, "each counts for itself");
        }
    }
    let nodes = prefix.keys_by_node();
    let partitions = |names: &[String]| names.iter().filter(|name| name.contains("%acme") && name.ends_with(":rows")).count();
    let counts: Vec<usize> = nodes.iter().map(|(_, names)| partitions(names)).collect();
    assert_eq!((counts.len(), counts.iter().sum::<usize>()), (3, USERS));
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    // A commit to a partition that exists is one script, on the master of the partition and on no other.
    let before = prefix.scripts_by_node();
    for user in 0..USERS {
        store.commit(Batch::new().put(&space(user), "k", "w")).await.unwrap();
    }
    let commits: Vec<u64> = prefix.scripts_by_node().iter().zip(&before).map(|(after, before)| after - before).collect();
    assert_eq!(commits, counts.iter().map(|count| *count as u64).collect::<Vec<_>>());
    let mut expected: Vec<Namespace> = (0..USERS).map(space).collect();
    expected.sort();
    for limit in [1, 7, 39, 40, 1_000] {
        let (mut found, mut options) = (Vec::new(), NamespacesOptions::new().with_limit(limit));
        loop {
            let page = other.namespaces(options.clone()).await.unwrap();
            found.extend(page.namespaces);
            if !page.more {
                break;
            }
            options.start_after = found.last().cloned();
        }
        assert_eq!(found, expected, "{limit}");
    }
    assert_eq!(other.namespaces(NamespacesOptions::new().with_beneath(space(7))).await.unwrap().namespaces, [space(7)]);
    assert_eq!((store.stats().await.unwrap().items, store.stats().await.unwrap().namespaces), (USERS as u64, USERS as u64));
    assert!(store.check().await.unwrap().is_empty());
}

/// A node that lost its data must not make a partition look empty.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn partition_whose_keys_are_gone_is_an_error_not_empty() {
    let prefix = prefix_in_cluster().await;
    let store = prefix.open().await;
    for user in 0..3 {
        store.commit(Batch::new().put(&space(user), "k", "v")).await.unwrap();
    }
    for (mut node, names) in prefix.keys_by_node() {
        for name in names.iter().filter(|name| name.contains("%acme/u1}")) {
            redis::cmd("DEL").arg(name).exec(&mut node).unwrap();
        }
    }
    for store in [store, prefix.open().await] {
        for error in [
            store.get(&space(1), "k").await.unwrap_err(),
            store.commit(Batch::new().put(&space(1), "k", "v")).await.unwrap_err(),
            store.current_version(&space(1).partition()).await.unwrap_err(),
            store.namespaces(NamespacesOptions::new()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
        }
        assert!(store.get(&space(2), "k").await.unwrap().is_some(), "it harms nobody else");
        let findings = store.check().await.unwrap();
        assert!(findings.len() == 1 && findings[0].message().contains("acme/u1"), "{findings:?}");
    }
}

/// The node with the list has lost its data. A process that opens the store now must not take lost partitions for new ones.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn store_whose_list_is_gone_is_not_opened() {
    let prefix = prefix_in_cluster().await;
    let store = prefix.open().await;
    store.commit(Batch::new().put(&space(0), "k", "v")).await.unwrap();
    for (mut node, names) in prefix.keys_by_node() {
        for name in names.iter().filter(|name| name.contains("%}")) {
            redis::cmd("DEL").arg(name).exec(&mut node).unwrap();
        }
    }
    assert_eq!(store.namespaces(NamespacesOptions::new()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    let options = RedisOptions::new(&prefix.url).with_prefix(&prefix.name);
    assert_eq!(RedisStore::open_with(options).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(store.get(&space(0), "k").await.unwrap().is_some());
}

/// Another process stopped after it had put the partition on the list, or the list lost the partition when a replica took over.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn list_of_partitions_is_mended_by_the_next_commit() {
    let prefix = prefix_in_cluster().await;
    let store = prefix.open().await;
    store.commit(Batch::new().put(&space(0), "k", "v")).await.unwrap();
    let of_list = prefix.partition_key("", "rows");
    let row = "_treehold/partitions/\0acme/u0/";
    let change = |words: &[&str]| {
        for (mut node, names) in prefix.keys_by_node() {
            if names.contains(&of_list) {
                redis::cmd(words[0]).arg(&words[1..]).exec(&mut node).unwrap();
            }
        }
    };
    change(&["HDEL", &of_list, &format!("r{row}"), &format!("b{row}")]);
    change(&["ZREM", &prefix.partition_key("", "keys"), row]);
    let late = prefix.open().await;
    assert!(late.get(&space(0), "k").await.unwrap().is_some(), "rows are found without the list");
    assert_eq!(late.namespaces(NamespacesOptions::new()).await.unwrap().namespaces, []);
    // The commit does not wait for it.
    while late.namespaces(NamespacesOptions::new()).await.unwrap().namespaces != [space(0)] {
        late.commit(Batch::new().put(&space(0), "l", "v")).await.unwrap();
    }
}

fn is_master(node: &mut Connection) -> bool {
    let role: Vec<Value> = redis::cmd("ROLE").query(node).unwrap();
    role[0] == Value::BulkString(b"master".to_vec())
}

/// Waits until all nodes agree on the role of each, and every replica has caught up.
fn wait_until_settled(nodes: &mut [Connection]) {
    let start = Instant::now();
    loop {
        let mut views = BTreeSet::new();
        let mut are_in_sync = true;
        for node in nodes.iter_mut() {
            let told: String = redis::cmd("CLUSTER").arg("NODES").query(node).unwrap();
            // Id, role, master and epoch, whoever tells.
            let view = told.lines().map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                (fields[0].to_owned(), fields[2].replace("myself,", ""), fields[3].to_owned(), fields[6].to_owned())
            });
            views.insert(view.collect::<BTreeSet<_>>());
            let replication: String = redis::cmd("INFO").arg("replication").query(node).unwrap();
            are_in_sync &= replication.contains("role:master") || replication.contains("master_link_status:up");
        }
        if views.len() == 1 && are_in_sync {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{views:?}");
        std::thread::yield_now();
    }
}

/// Replicas take over from their masters one after another, after they have caught up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs a Redis Cluster: run scripts/servers.sh"]
async fn failovers_in_the_middle_of_load_lose_nothing_acknowledged() {
    let prefix = prefix_in_own_cluster().await;
    let store = prefix.open().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let spaces: Vec<Namespace> = (0..6).map(space).collect();
    let writers: Vec<_> =
        spaces.iter().map(|space| tokio::spawn(count(store.clone(), space.clone(), "count".into(), is_over.clone()))).collect();
    let failovers = tokio::task::spawn_blocking({
        let mut connection = prefix.connect().unwrap();
        move || {
            let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(&mut connection).unwrap();
            let addresses = nodes.lines().map(|line| line.split(' ').nth(1).unwrap().split('@').next().unwrap());
            let open = |address: &str| redis::Client::open(format!("redis://{address}")).unwrap().get_connection().unwrap();
            let mut nodes: Vec<Connection> = addresses.map(open).collect();
            let mut done = 0;
            wait_until_settled(&mut nodes);
            for at in 0..nodes.len() {
                if is_master(&mut nodes[at]) {
                    continue;
                }
                let start = Instant::now();
                let mut asked: Option<Instant> = None;
                while !is_master(&mut nodes[at]) {
                    assert!(start.elapsed() < PATIENCE, "node {at} does not take over");
                    // A failover is given up after 5 seconds, if the replica has not caught up by then.
                    if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(6)) {
                        redis::cmd("CLUSTER").arg("FAILOVER").exec(&mut nodes[at]).unwrap();
                        asked = Some(Instant::now());
                    }
                    std::thread::yield_now();
                }
                wait_until_settled(&mut nodes);
                done += 1;
            }
            done
        }
    });
    let failovers = failovers.await.unwrap();
    assert!(failovers >= 3, "{failovers}");
    is_over.store(true, Ordering::SeqCst);
    for (space, writer) in spaces.iter().zip(writers) {
        let (acknowledged, open) = writer.await.unwrap();
        let counted = loop {
            match store.get(space, "count").await {
                Ok(item) => break std::str::from_utf8(&item.unwrap().value).unwrap().parse::<u64>().unwrap(),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
            }
        };
        assert!(acknowledged > 0 && (acknowledged..=acknowledged + open).contains(&counted), "{counted} of {acknowledged} and {open}");
    }
    assert!(store.check().await.unwrap().is_empty());
}
