//! Automatic removal of expired rows. The runtime's clock stands still and is advanced by the tests.

use super::namespace;
use super::wrapped::{Wrapped, Wrapper};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::sleep;
use treehold::config::{Config, ConfigBase};
use treehold::store::{Batch, MemoryStore, Store, StoreExt, Sweeper, SweeperOptions};
use treehold::{Error, ErrorKind, Result};

async fn put_ended(store: &dyn Store, count: usize) {
    let batch = (0..count).fold(Batch::new(), |batch, number| batch.put_for(&namespace(), format!("{number}"), "v", Duration::ZERO));
    store.commit(batch.put(&namespace(), "kept", "v")).await.unwrap();
}

async fn ended(store: &dyn Store) -> u64 {
    store.stats().await.unwrap().expired
}

/// Counts the steps, and fails the first ones.
#[derive(Default)]
struct Counted {
    steps: AtomicUsize,
    failing: AtomicUsize,
}

#[async_trait]
impl Wrapper for Arc<Counted> {
    async fn sweep(&self, inner: &dyn Store, limit: usize) -> Result<usize> {
        self.steps.fetch_add(1, Ordering::Relaxed);
        match self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Err(Error::new(ErrorKind::Unavailable, "not now")),
            Err(_) => inner.sweep(limit).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sweep_after_each_pause_removes_all_expired_rows() {
    let counted = Arc::new(Counted::default());
    let store: Arc<dyn Store> = Arc::new(Wrapped::new(Arc::new(MemoryStore::new()), counted.clone()));
    put_ended(&*store, 25).await;
    let _sweeper = Sweeper::start(&store, SweeperOptions::new().with_rows(10));
    sleep(Duration::from_secs(59)).await;
    assert_eq!((ended(&*store).await, counted.steps.load(Ordering::Relaxed)), (25, 0));
    sleep(Duration::from_secs(2)).await;
    assert_eq!((ended(&*store).await, counted.steps.load(Ordering::Relaxed)), (0, 3), "ten, ten and five");
    assert_eq!(store.stats().await.unwrap().items, 1, "items that have not expired stay");
    put_ended(&*store, 10).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!((ended(&*store).await, counted.steps.load(Ordering::Relaxed)), (0, 5), "a full step is followed by another");
}

#[tokio::test(start_paused = true)]
async fn failed_round_is_retried() {
    let counted = Arc::new(Counted { failing: AtomicUsize::new(2), ..Counted::default() });
    let store: Arc<dyn Store> = Arc::new(Wrapped::new(Arc::new(MemoryStore::new()), counted.clone()));
    put_ended(&*store, 5).await;
    let _sweeper = Sweeper::start(&store, SweeperOptions::new().with_every(Duration::from_secs(10)));
    sleep(Duration::from_secs(25)).await;
    assert_eq!((ended(&*store).await, counted.steps.load(Ordering::Relaxed)), (5, 2));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(ended(&*store).await, 0);
}

#[tokio::test(start_paused = true)]
async fn sweeper_stops_when_dropped_and_with_its_store() {
    let counted = Arc::new(Counted::default());
    let store: Arc<dyn Store> = Arc::new(Wrapped::new(Arc::new(MemoryStore::new()), counted.clone()));
    drop(Sweeper::start(&store, SweeperOptions::new()));
    sleep(Duration::from_secs(300)).await;
    assert_eq!(counted.steps.load(Ordering::Relaxed), 0);
    let _sweeper = Sweeper::start(&store, SweeperOptions::new());
    drop(store);
    assert_eq!(Arc::strong_count(&counted), 1, "the sweeper does not keep the store open");
    sleep(Duration::from_secs(300)).await;
    assert_eq!(counted.steps.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn configured_stores_are_swept_at_their_pause() {
    let text = "[stores.default]\nurl = \"memory:\"\n[stores.quick]\nurl = \"memory:\"\nsweep_every = \"5s\"\n\
                [stores.never]\nurl = \"memory:\"\nsweep_every = \"never\"\n";
    let config = Config::parse(text, &ConfigBase::new("/nowhere", "/nowhere")).unwrap();
    let stores = config.stores().unwrap();
    for (_, store) in stores.iter() {
        put_ended(&**store, 3).await;
    }
    let mut left = Vec::new();
    for seconds in [4, 2, 50, 5, 600] {
        sleep(Duration::from_secs(seconds)).await;
        for (_, store) in stores.iter() {
            left.push(ended(&**store).await);
        }
    }
    let [at_4, at_6, at_56, at_61, at_661] = [[3, 3, 3], [3, 3, 0], [3, 3, 0], [0, 3, 0], [0, 3, 0]];
    assert_eq!(left, [at_4, at_6, at_56, at_61, at_661].concat(), "of `default`, `never` and `quick`");
}

#[test]
fn invalid_pause_is_reported_with_its_line() {
    let fault = |value: &str| {
        let text = format!("[stores.default]\nurl = \"memory:\"\nsweep_every = \"{value}\"\n");
        Config::parse(&text, &ConfigBase::new("/nowhere", "/nowhere")).unwrap_err()
    };
    for value in ["soon", "0s", ""] {
        let fault = fault(value);
        assert_eq!((fault.line, fault.column), (3, 15), "{fault}");
        assert!(fault.to_string().contains("`never`"), "{fault}");
    }
}
