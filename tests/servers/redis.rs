//! Redis and Redis Cluster: a separate prefix for each fresh store, whose keys are removed at the end.

use super::proxy::Proxy;
use super::{OnServer, absent, url};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::{OnceCell, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use treehold::store::{RedisOptions, RedisStore};

const VARIABLE: &str = "TREEHOLD_TEST_REDIS_URL";
const CLUSTER_VARIABLE: &str = "TREEHOLD_TEST_REDIS_CLUSTER_URL";

/// How long a server may take to accept a connection. An absent one refuses at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the URL of the server.
pub(crate) fn server() -> String {
    url(VARIABLE, "redis://127.0.0.1:6379")
}

/// Makes a fresh store on the server.
pub(crate) async fn fresh() -> OnServer {
    reach().await;
    store(&server()).await
}

/// Returns an unused prefix on the server.
///
/// # Panics
/// If no server answers.
pub(crate) async fn prefix() -> Prefix {
    reach().await;
    Prefix::new(&server())
}

async fn reach() {
    static PROBE: OnceCell<Result<(), String>> = OnceCell::const_new();
    PROBE.get_or_init(async || probe("redis", VARIABLE, &server()).await).await.clone().unwrap_or_else(|reason| panic!("{reason}"));
}

/// Makes a fresh store on the cluster.
pub(crate) async fn fresh_in_cluster() -> OnServer {
    let prefix = prefix_in_cluster().await;
    (Arc::new(prefix.open().await), Box::new(prefix))
}

/// Returns an unused prefix on the cluster, whose nodes keep their roles meanwhile.
///
/// # Panics
/// If no cluster answers.
pub(crate) async fn prefix_in_cluster() -> Prefix {
    let use_ = CLUSTER.clone().read_owned().await;
    Prefix::new(&reach_cluster().await).using(Use::Shared(use_))
}

/// Returns an unused prefix on a cluster that no other test of this process uses.
///
/// # Panics
/// If no cluster answers.
pub(crate) async fn prefix_in_own_cluster() -> Prefix {
    let use_ = CLUSTER.clone().write_owned().await;
    Prefix::new(&reach_cluster().await).using(Use::Alone(use_))
}

/// Held by every test of this process that uses the cluster, and alone by those that disturb it.
static CLUSTER: LazyLock<Arc<RwLock<()>>> = LazyLock::new(Arc::default);

/// The right to use the cluster.
#[expect(dead_code, reason = "they are held")]
pub(crate) enum Use {
    Shared(OwnedRwLockReadGuard<()>),
    Alone(OwnedRwLockWriteGuard<()>),
}

/// Returns the URL of the cluster; empty if none is configured.
pub(crate) fn cluster() -> String {
    url(CLUSTER_VARIABLE, "")
}

async fn reach_cluster() -> String {
    static PROBE: OnceCell<Result<(), String>> = OnceCell::const_new();
    let url = cluster();
    assert!(!url.is_empty(), "{}", absent("redis_cluster", CLUSTER_VARIABLE, &"scripts/redis-cluster.sh starts one"));
    PROBE
        .get_or_init(async || probe("redis_cluster", CLUSTER_VARIABLE, &url).await)
        .await
        .clone()
        .unwrap_or_else(|reason| panic!("{reason}"));
    url
}

async fn store(url: &str) -> (Arc<dyn treehold::store::Store>, Box<dyn std::any::Any + Send>) {
    let prefix = Prefix::new(url);
    (Arc::new(prefix.open().await), Box::new(prefix))
}

async fn probe(server: &str, variable: &str, url: &str) -> Result<(), String> {
    let prefix = Prefix::new(url);
    let options = RedisOptions::new(url).with_prefix(prefix.name.clone()).with_connect_timeout(PATIENCE);
    RedisStore::open_with(options).await.map(drop).map_err(|error| absent(server, variable, &error))
}

/// A unique prefix, whose keys are removed on drop.
pub(crate) struct Prefix {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) _use: Option<Use>,
}

impl Prefix {
    /// Generates a prefix.
    pub(crate) fn new(url: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let started = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let name = format!("test-{}-{started}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Self { name, url: url.to_owned(), _use: None }
    }

    fn using(mut self, use_: Use) -> Self {
        self._use = Some(use_);
        self
    }

    /// Opens the store.
    pub(crate) async fn open(&self) -> RedisStore {
        RedisStore::open_with(RedisOptions::new(&self.url).with_prefix(&self.name)).await.unwrap()
    }

    /// Returns one of the keys of the store.
    pub(crate) fn key(&self, part: &str) -> String {
        format!("{{{}}}:{part}", self.name)
    }

    /// Returns one of the keys of a partition of the store in a cluster.
    pub(crate) fn partition_key(&self, partition: &str, part: &str) -> String {
        format!("{{{}%{partition}}}:{part}", self.name)
    }

    /// Returns the names of the keys on each master, or on the only server.
    pub(crate) fn keys_by_node(&self) -> Vec<(redis::Connection, Vec<String>)> {
        let Ok(mut first) = self.connect() else { return Vec::new() };
        let mut nodes = Vec::new();
        if self.url.contains("+cluster") {
            let told: String = redis::cmd("CLUSTER").arg("NODES").query(&mut first).unwrap();
            for line in told.lines().filter(|line| line.contains("master") && !line.contains("fail")) {
                let address = line.split(' ').nth(1).unwrap().split('@').next().unwrap();
                nodes.extend(redis::Client::open(format!("redis://{address}")).unwrap().get_connection());
            }
        } else {
            nodes.push(first);
        }
        let mut all = Vec::new();
        for mut node in nodes {
            let mut names: Vec<String> = Vec::new();
            for pattern in [format!("{{{}}}:*", self.name), format!("{{{}%*", self.name)] {
                names.extend(redis::cmd("KEYS").arg(pattern).query::<Vec<String>>(&mut node).unwrap_or_default());
            }
            all.push((node, names));
        }
        all
    }

    /// Returns how many scripts each node has run, in the order of [`Prefix::keys_by_node`].
    pub(crate) fn scripts_by_node(&self) -> Vec<u64> {
        let ran = |node: &mut redis::Connection| {
            let told: String = redis::cmd("INFO").arg("commandstats").query(node).unwrap();
            let calls = told
                .lines()
                .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="))
                .map_or("0", |rest| rest.split(',').next().unwrap());
            calls.parse().unwrap()
        };
        self.keys_by_node().iter_mut().map(|(node, _)| ran(node)).collect()
    }

    /// Removes all keys of the store.
    pub(crate) fn clear(&self) {
        for (mut node, names) in self.keys_by_node() {
            for name in names {
                // Each key may be in another slot.
                let _: redis::RedisResult<u64> = redis::cmd("UNLINK").arg(name).query(&mut node);
            }
        }
    }

    /// Connects to the node that has the store, without the store's own code.
    pub(crate) fn connect(&self) -> redis::RedisResult<redis::Connection> {
        let seed = self.url.replace("+cluster", "");
        let (scheme, rest) = seed.split_once("://").unwrap();
        let mut url = format!("{scheme}://{}", rest.split([',', '?']).next().unwrap());
        let mut redirects_left = 16;
        loop {
            let mut connection = redis::Client::open(&url[..])?.get_connection_with_timeout(PATIENCE)?;
            match redis::cmd("EXISTS").arg(self.key("rows")).exec(&mut connection) {
                Ok(()) => return Ok(connection),
                // Two nodes that each consider the other the owner would redirect forever.
                Err(error) if redirects_left == 0 => return Err(error),
                Err(error) => url = format!("{scheme}://{}", error.redirect_node().ok_or(error.clone())?.0),
            }
            redirects_left -= 1;
        }
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        // An absent server has nothing to remove.
        self.clear();
    }
}

/// Starts a proxy of the server; returns the URL through the proxy.
pub(crate) async fn proxy() -> (Proxy, String) {
    let client = redis::Client::open(server()).unwrap();
    let redis::ConnectionAddr::Tcp(host, port) = client.get_connection_info().addr() else { panic!("the server is on TCP") };
    let address = tokio::net::lookup_host((host.as_str(), *port)).await.unwrap().next().unwrap();
    let proxy = Proxy::start(address).await;
    let rest = server().split_once("://").unwrap().1.to_owned();
    let user = rest.rsplit_once('@').map(|(user, _)| format!("{user}@")).unwrap_or_default();
    let url = format!("redis://{user}127.0.0.1:{}", proxy.port);
    (proxy, url)
}
