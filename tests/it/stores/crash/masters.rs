//! Killed masters of a Redis Cluster that sync their append-only files: an acknowledged change is there once, and one whose answer was lost
//! is there once or not at all.

use super::{body, number_of};
use crate::servers::redis::Prefix;
use crate::servers::redis_nodes::Nodes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use treehold::ops::{Durability, Version};
use treehold::store::{Batch, Condition, Namespace, RedisStore, Store, StoreExt};
use treehold::{Error, ErrorKind};

const MASTERS: usize = 3;
/// The writers on each master.
const WRITERS: usize = 2;
/// How long a master may take to acknowledge some changes. After a restart, it refuses requests for two seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// The two rows of a partition, which always belong to one number.
const ROWS: [&str; 2] = ["count", "body"];

/// The only writer of a partition.
struct Writer {
    store: RedisStore,
    space: Namespace,
    /// Whether the master of the partition has been started.
    is_up: watch::Receiver<bool>,
    /// How many changes the master has acknowledged.
    acknowledged: watch::Sender<u64>,
    /// The number that is known to be there.
    last: u64,
    /// Whether the next number may be there too.
    is_open: bool,
    /// How many numbers are there whose answer was lost.
    found: u64,
}

impl Writer {
    /// Counts until told to stop.
    async fn count(mut self, is_over: Arc<AtomicBool>) -> Self {
        while !is_over.load(Ordering::SeqCst) {
            if let Err(error) = self.step().await {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                self.is_up.wait_for(|is_up| *is_up).await.unwrap();
            }
        }
        self
    }

    /// Puts the next number. Every other number has no condition, so it would be put again if it was sent again.
    async fn step(&mut self) -> Result<(), Error> {
        let number = counted(&self.store, &self.space).await?;
        self.settle(number);
        let next = number + 1;
        let batch = Batch::new().put(&self.space, ROWS[0], next.to_string()).put(&self.space, ROWS[1], body(next));
        let unchanged = Condition::Version(Version::new((number * 2).saturating_sub(1)));
        let batch = if number % 2 == 0 { batch } else { batch.expect(&self.space, ROWS[0], unchanged) };
        match self.store.commit(batch).await {
            Ok(_) => {
                self.last = next;
                self.acknowledged.send_modify(|count| *count += 1);
                Ok(())
            }
            Err(error) => {
                self.is_open = error.may_have_effect();
                Err(error)
            }
        }
    }

    /// Accepts a number that was read, if it may be there.
    fn settle(&mut self, number: u64) {
        let is_next = self.is_open && number == self.last + 1;
        assert!(number == self.last || is_next, "{} holds {number} after {}, open: {}", self.space, self.last, self.is_open);
        self.found += u64::from(is_next);
        (self.last, self.is_open) = (number, false);
    }
}

/// Returns the number that a partition holds. A batch takes two versions, so other versions show that a number was put twice or is gone.
async fn counted(store: &RedisStore, space: &Namespace) -> Result<u64, Error> {
    let rows = store.get_many(space, &ROWS, true).await?;
    let number: u64 = rows[0].as_ref().map_or(0, |row| std::str::from_utf8(&row.value).unwrap().parse().unwrap());
    assert_eq!(rows[1].as_ref().map_or(0, |row| number_of(&row.value)), number, "half of a batch of {space} is there");
    let versions: Vec<u64> = rows.iter().flatten().map(|row| row.version.number()).collect();
    let expected = if number == 0 { Vec::new() } else { vec![number * 2 - 1, number * 2] };
    assert_eq!(versions, expected, "the versions of number {number} of {space}");
    Ok(number)
}

/// Kills one master after another in the middle of commits and starts it again on its directory. The store stays open meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "needs redis-server, which it starts and kills: run scripts/servers.sh"]
async fn killed_redis_cluster_masters_keep_each_acknowledged_change_once() {
    let kills: usize = std::env::var("TREEHOLD_KILLS").map_or(6, |kills| kills.parse().unwrap());
    let mut nodes = Nodes::start(MASTERS);
    let prefix = Prefix::new(&nodes.url());
    let store = prefix.open().await;
    assert_eq!(store.capabilities().durability, Durability::Power);
    let mut spaces: Vec<(usize, Namespace)> = Vec::new();
    for user in 0.. {
        let space = Namespace::new(["acme", &format!("u{user}"), "notes"]).unwrap();
        let owner = nodes.owner(&prefix.partition_key(&space.partition().to_string(), "rows"));
        if spaces.iter().filter(|(of, _)| *of == owner).count() < WRITERS {
            spaces.push((owner, space));
        }
        if spaces.len() == MASTERS * WRITERS {
            break;
        }
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let ups: Vec<watch::Sender<bool>> = (0..MASTERS).map(|_| watch::Sender::new(true)).collect();
    let counts: Vec<watch::Sender<u64>> = (0..MASTERS).map(|_| watch::Sender::new(0)).collect();
    let mut writers = JoinSet::new();
    for (owner, space) in &spaces {
        let writer = Writer {
            store: store.clone(),
            space: space.clone(),
            is_up: ups[*owner].subscribe(),
            acknowledged: counts[*owner].clone(),
            last: 0,
            is_open: false,
            found: 0,
        };
        writers.spawn(writer.count(is_over.clone()));
    }
    let more = async |masters: &[usize], changes: u64| {
        for &master in masters {
            let mut count = counts[master].subscribe();
            let target = *count.borrow() + changes;
            let waited = tokio::time::timeout(PATIENCE, count.wait_for(|count| *count >= target)).await;
            assert!(waited.is_ok_and(|count| count.is_ok()), "master {master} acknowledges nothing");
        }
    };
    let killing = async {
        for round in 0..kills {
            let master = round % MASTERS;
            let others: Vec<usize> = (0..MASTERS).filter(|other| *other != master).collect();
            more(&[0, 1, 2], 1 + (round * 7 % 31) as u64).await;
            block_in_place(|| nodes.kill(master));
            ups[master].send_replace(false);
            for (_, space) in spaces.iter().filter(|(owner, _)| *owner == master) {
                let error = counted(&store, space).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "a lost partition never looks empty: {error:?}");
            }
            more(&others, 10).await;
            block_in_place(|| nodes.restart(master));
            ups[master].send_replace(true);
            more(&[master], 10).await;
        }
    };
    tokio::select! {
        () = killing => {}
        ended = writers.join_next() => panic!("a writer stopped: {:?}", ended.map(|ended| ended.map(drop))),
    }
    is_over.store(true, Ordering::SeqCst);
    let writers = writers.join_all().await;
    nodes.wait_until_joined();
    let fresh = prefix.open().await;
    let mut found = 0;
    for mut writer in writers {
        let number = counted(&fresh, &writer.space).await.unwrap();
        writer.settle(number);
        found += writer.found;
    }
    assert!(fresh.check().await.unwrap().is_empty());
    let acknowledged: u64 = counts.iter().map(|count| *count.borrow()).sum();
    println!("{kills} kills, {acknowledged} changes acknowledged and there once, {found} more whose answer was lost");
}
