//! A MariaDB Galera cluster: a separate database for each fresh store, dropped at the end.
//!
//! Only `scripts/galera.sh` starts a cluster, since the tests kill its nodes.

use super::{OnServer, absent, url};
use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use std::fmt;
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use treehold::Result;
use treehold::clock::Clock;
use treehold::ops::Version;
use treehold::store::{
    Batch, Item, ItemPart, MysqlOptions, MysqlStore, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store,
    StoreCapabilities, StoreExtensions, Watch,
};

const VARIABLE: &str = "TREEHOLD_TEST_GALERA_URLS";
const NODES: &str = "TREEHOLD_TEST_GALERA_NODES";
const PATIENCE: Duration = Duration::from_secs(30);

/// Held by every test of this process that uses the cluster, and alone by those that disturb it.
static CLUSTER: RwLock<()> = RwLock::const_new(());

/// A database that is dropped with this.
pub(crate) struct Database {
    name: String,
    _turn: Turn,
}

/// The right to use the cluster.
enum Turn {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

impl Database {
    /// Makes an empty database and waits until every node has it.
    ///
    /// # Panics
    /// If no cluster answers.
    pub(crate) async fn fresh() -> Self {
        Self::made(Turn::Shared { _guard: CLUSTER.read().await }).await
    }

    /// As [`Database::fresh`], for a test that no other test may meet.
    pub(crate) async fn fresh_alone() -> Self {
        Self::made(Turn::Alone { _guard: CLUSTER.write().await }).await
    }

    async fn made(turn: Turn) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let started = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
        let name = format!("treehold_test_{}_{started}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let made = administer(0, &format!("CREATE DATABASE `{name}`")).await;
        made.unwrap_or_else(|error| panic!("{}", absent("galera", VARIABLE, &error)));
        for node in 0..nodes().len() {
            administer(node, "SET SESSION wsrep_sync_wait = 1; START TRANSACTION; COMMIT").await.unwrap();
        }
        Self { name, _turn: turn }
    }

    /// Returns the URL of the database on each node.
    pub(crate) fn urls(&self) -> Vec<String> {
        nodes().iter().map(|node| format!("{}/{}", node.rsplit_once('/').unwrap().0, self.name)).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS `{}`", self.name);
        // Use a separate thread and runtime: the test's runtime may be ending.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(administer(0, &sql))
        });
        // If the cluster is gone, so is the database.
        let _ = dropped.join();
    }
}

/// Returns the URL of each node, with its administration database.
fn nodes() -> Vec<String> {
    let urls = url(VARIABLE, "");
    assert!(!urls.is_empty(), "{}", absent("galera", VARIABLE, &"scripts/galera.sh starts one"));
    urls.split(',').map(str::to_owned).collect()
}

/// Runs statements on a node, numbered from 0, as the administrator.
async fn administer(node: usize, sql: &str) -> Result<Vec<mysql_async::Row>, String> {
    let run = async {
        let options = OptsBuilder::from_opts(Opts::from_url(&nodes()[node]).unwrap()).prefer_socket(false);
        let mut connection = Conn::new(Opts::from(options)).await?;
        let rows = connection.query(sql).await?;
        connection.disconnect().await?;
        Ok::<_, mysql_async::Error>(rows)
    };
    match tokio::time::timeout(PATIENCE, run).await {
        Ok(rows) => rows.map_err(|error| error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Opens a store on each node of a database.
pub(crate) async fn open(urls: &[String]) -> Vec<Arc<dyn Store>> {
    open_with(urls, &Clock::system()).await
}

/// Opens stores that take the time from `clock`.
pub(crate) async fn open_with(urls: &[String], clock: &Clock) -> Vec<Arc<dyn Store>> {
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for url in urls {
        // Three nodes share the cores of a test machine.
        let options = MysqlOptions::new(url).with_clock(clock.clone()).with_connections_max(4).with_connect_timeout(PATIENCE);
        stores.push(Arc::new(MysqlStore::open_with(options).await.unwrap()));
    }
    stores
}

/// Makes a fresh store, whose calls go to the nodes in turn.
pub(crate) async fn fresh() -> OnServer {
    let database = Database::fresh().await;
    let stores = open(&database.urls()).await;
    (Arc::new(Spread::new(stores)), Box::new(database))
}

/// Kills a node, numbered from 0, and waits until its process is gone.
pub(crate) fn kill(node: usize) {
    control("kill", node);
}

/// Starts a killed node and waits until it has joined.
pub(crate) fn start(node: usize) {
    control("start", node);
}

/// Cuts a node off from the others, and waits until it knows.
pub(crate) async fn cut_off(node: usize) {
    administer(node, "SET GLOBAL wsrep_provider_options = 'gmcast.isolate = 1'").await.unwrap();
    while is_part_of_cluster(node).await {}
}

/// Connects a node to the others again, and waits until it has joined.
pub(crate) async fn reconnect(node: usize) {
    administer(node, "SET GLOBAL wsrep_provider_options = 'gmcast.isolate = 0'").await.unwrap();
    while !is_part_of_cluster(node).await {}
}

/// Returns whether a node is part of its cluster and has every commit.
pub(crate) async fn is_part_of_cluster(node: usize) -> bool {
    let rows = administer(node, "SHOW STATUS LIKE 'wsrep_local_state_comment'").await.unwrap();
    let state: (String, String) = mysql_async::from_row(rows.into_iter().next().unwrap());
    state.1 == "Synced"
}

fn control(action: &str, node: usize) {
    let directory = std::env::var_os(NODES).unwrap_or_else(|| panic!("scripts/galera.sh sets {NODES}"));
    let status = Command::new(std::path::Path::new(&directory).join(action)).arg((node + 1).to_string()).status().unwrap();
    assert!(status.success(), "{action} of node {}", node + 1);
}

/// A store whose calls go to the nodes of a cluster in turn. So a read rarely goes to the node that made the commit before it.
///
/// After a commit whose caller went away, all further commits go to its node. Another node could overtake it.
pub(crate) struct Spread {
    stores: Vec<Arc<dyn Store>>,
    calls: AtomicUsize,
    left: OnceLock<usize>,
}

/// Notes the node of a commit whose caller goes away.
struct Leaving<'s>(&'s OnceLock<usize>, Option<usize>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.1 {
            let _ = self.0.set(node);
        }
    }
}

impl Spread {
    pub(crate) fn new(stores: Vec<Arc<dyn Store>>) -> Self {
        Self { stores, calls: AtomicUsize::new(0), left: OnceLock::new() }
    }

    fn next(&self) -> &dyn Store {
        &*self.stores[self.turn()]
    }

    fn turn(&self) -> usize {
        self.calls.fetch_add(1, Ordering::Relaxed) % self.stores.len()
    }
}

#[async_trait]
impl Store for Spread {
    fn capabilities(&self) -> StoreCapabilities {
        self.stores[0].capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.next().extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.next().get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.next().get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.next().get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.next().scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.next().namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        let node = self.left.get().copied().unwrap_or_else(|| self.turn());
        let mut leaving = Leaving(&self.left, Some(node));
        let answer = self.stores[node].commit(batch).await;
        leaving.1 = None;
        answer
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.next().current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.next().watch(namespace).await
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.stores[0])
    }
}

impl fmt::Debug for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.stores).finish()
    }
}
