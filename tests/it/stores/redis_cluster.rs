//! Redis Cluster: a store whose slot moves to another node while in use.

use super::namespace;
use crate::servers::redis::prefix_in_cluster;
use redis::{Connection, Value};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use treehold::ErrorKind;
use treehold::store::{Batch, Condition, RedisStore, Store, StoreExt};

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
            nodes.lines().map(|line| told(line, slot)).collect::<BTreeSet<_>>()
        });
        let views: BTreeSet<_> = views.collect();
        let epochs: BTreeSet<&str> = views.iter().flatten().map(|(_, epoch, _)| epoch.as_str()).collect();
        if views.len() == 1 && epochs.len() == masters.len() {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{views:?}");
        std::thread::yield_now();
    }
}

/// Connects to the masters: the owner of a slot, and the others.
fn masters(nodes: &str, slot: u16) -> (Master, Vec<Master>) {
    let (mut owner, mut others) = (None, Vec::new());
    for line in nodes.lines().filter(|line| line.contains("master")) {
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
async fn count(store: RedisStore, key: String, is_over: Arc<AtomicBool>) -> (u64, u64) {
    let a = namespace();
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
    let writers: Vec<_> = (0..4).map(|number| tokio::spawn(count(store.clone(), format!("count {number}"), is_over.clone()))).collect();

    let moves = tokio::task::spawn_blocking({
        let rows = prefix.key("rows");
        let keys: Vec<String> = ["rows", "keys", "expiries", "changes"].iter().map(|part| prefix.key(part)).collect();
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
