//! A private Redis Cluster whose nodes a test may kill. Each node is a master without replicas, and syncs its append-only file before it
//! acknowledges a change.

use super::proxy::Proxy;
use redis::Connection;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a node may take to answer, and a cluster to form.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one attempt to connect may take. Another program on the port may never answer.
const ATTEMPT: Duration = Duration::from_secs(5);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// How many slots a cluster has.
const SLOTS: usize = 16_384;

/// The settings of each node, beside its port and directory.
const SETTINGS: [(&str, &str); 9] = [
    ("appendfsync", "always"),
    ("appendonly", "yes"),
    // The file is rewritten every few hundred changes.
    ("auto-aof-rewrite-min-size", "8mb"),
    ("bind", "127.0.0.1"),
    ("cluster-announce-ip", "127.0.0.1"),
    ("cluster-enabled", "yes"),
    ("cluster-node-timeout", "5000"),
    // While a node is down, the others go on.
    ("cluster-require-full-coverage", "no"),
    ("save", ""),
];

/// A cluster. Dropping it ends the processes and removes the files.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    directory: TempDir,
}

struct Node {
    port: u16,
    process: Child,
}

impl Nodes {
    /// Starts masters that form a cluster.
    ///
    /// # Panics
    /// If Redis is not installed.
    pub(crate) fn start(masters: usize) -> Self {
        let mut cluster = Self { nodes: Vec::new(), directory: tempfile::tempdir().unwrap() };
        for number in 0..masters {
            let mut node = cluster.add();
            let (first, last) = (SLOTS * number / masters, SLOTS * (number + 1) / masters - 1);
            redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(number + 1).exec(&mut node).unwrap();
            redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(first).arg(last).exec(&mut node).unwrap();
            if number > 0 {
                redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(cluster.nodes[0].port).exec(&mut node).unwrap();
            }
        }
        cluster.wait_until_joined();
        cluster
    }

    /// Returns the URL of the cluster.
    pub(crate) fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// Returns the number of the node that has a key, from 0.
    pub(crate) fn owner(&mut self, key: &str) -> usize {
        let slot: usize = redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut self.connect(0)).unwrap();
        let masters = self.nodes.len();
        (0..masters).find(|number| slot < SLOTS * (number + 1) / masters).unwrap()
    }

    /// Kills a node with SIGKILL, and waits until its process is gone.
    pub(crate) fn kill(&mut self, number: usize) {
        let process = &mut self.nodes[number].process;
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Starts a killed node on its directory and port, and waits until it answers. It may still be reading its file.
    pub(crate) fn restart(&mut self, number: usize) {
        self.nodes[number].process = self.spawn(self.nodes[number].port);
        self.connect(number);
    }

    /// Waits until every node serves its slots and knows all others.
    pub(crate) fn wait_until_joined(&mut self) {
        let expected = ["cluster_state:ok".to_owned(), format!("cluster_known_nodes:{}", self.nodes.len())];
        for number in 0..self.nodes.len() {
            let mut node = self.connect(number);
            let start = Instant::now();
            loop {
                let told: String = redis::cmd("CLUSTER").arg("INFO").query(&mut node).unwrap();
                if expected.iter().all(|line| told.lines().any(|told| told == line)) {
                    break;
                }
                assert!(start.elapsed() < PATIENCE, "{told}");
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Starts a proxy of the only node, which tells clients to connect to the proxy.
    pub(crate) async fn proxied(&mut self) -> Proxy {
        assert_eq!(self.nodes.len(), 1, "other nodes would learn of the proxy later");
        let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, self.nodes[0].port))).await;
        let mut node = self.connect(0);
        redis::cmd("CONFIG").arg("SET").arg("cluster-announce-port").arg(proxy.port).exec(&mut node).unwrap();
        proxy
    }

    /// Connects to a node, without the store's own code.
    ///
    /// # Panics
    /// If its process has ended.
    pub(crate) fn connect(&mut self, number: usize) -> Connection {
        let connection = self.reach(number);
        connection.unwrap_or_else(|| panic!("node {number} has ended: {}", self.log(self.nodes[number].port)))
    }

    /// Connects to a node once it answers; `None` if its process has ended.
    fn reach(&mut self, number: usize) -> Option<Connection> {
        let Node { port, process } = &mut self.nodes[number];
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        // Another server may have taken the port.
        let own = format!("process_id:{}", process.id());
        let start = Instant::now();
        while process.try_wait().unwrap().is_none() {
            if let Ok(mut connection) = client.get_connection_with_timeout(ATTEMPT)
                && connection.set_read_timeout(Some(ATTEMPT)).is_ok()
                && let Ok(told) = redis::cmd("INFO").arg("server").query::<String>(&mut connection)
                && told.lines().any(|line| line == own)
            {
                connection.set_read_timeout(Some(PATIENCE)).unwrap();
                return Some(connection);
            }
            assert!(start.elapsed() < PATIENCE, "node {number} does not answer");
            std::thread::sleep(PAUSE);
        }
        None
    }

    /// Starts a node on a free port. If another process takes the port first, the node ends, and another port is tried.
    fn add(&mut self) -> Connection {
        let mut attempts_left = 10;
        loop {
            let port = free_port();
            let process = self.spawn(port);
            self.nodes.push(Node { port, process });
            if let Some(connection) = self.reach(self.nodes.len() - 1) {
                return connection;
            }
            attempts_left -= 1;
            assert!(attempts_left > 0, "no node starts: {}", self.log(port));
            self.nodes.pop();
        }
    }

    fn spawn(&self, port: u16) -> Child {
        let directory = self.directory.path().join(port.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        let log = File::options().create(true).append(true).open(directory.join("log")).unwrap();
        let mut command = Command::new("redis-server");
        command.arg("--port").arg(port.to_string()).arg("--dir").arg(&directory);
        for (name, value) in SETTINGS {
            command.arg(format!("--{name}")).arg(value);
        }
        let started = command.stdin(Stdio::null()).stdout(log).spawn();
        started.unwrap_or_else(|error| panic!("redis-server cannot be started ({error}); install Redis"))
    }

    /// Returns what a node has logged.
    fn log(&self, port: u16) -> String {
        std::fs::read_to_string(self.directory.path().join(port.to_string()).join("log")).unwrap_or_default()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.process.kill();
            let _ = node.process.wait();
        }
    }
}

/// Returns a port that is free. The port 10,000 above, which the cluster bus uses, is free too. Both are below the ephemeral ports.
fn free_port() -> u16 {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let first = std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
    let mut ports = (0..2_700).map(|number| 20_000 + ((first + number) % 2_700) as u16);
    ports.find(|port| is_free(*port) && is_free(port + 10_000)).unwrap()
}
