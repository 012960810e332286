//! Connections to a server or cluster, and the conversion of their errors.

use ::redis::aio::{ConnectionLike, MultiplexedConnection};
use ::redis::cluster::{ClusterClient, ClusterClientBuilder};
use ::redis::cluster_async::ClusterConnection;
use ::redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use ::redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind as Kind, IntoConnectionInfo, RedisError, RedisResult};
use ::redis::{ServerErrorKind, Value, cmd};
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use treehold_core::error::{Error, ErrorKind, Result};

/// How many keys a server looks at in one step of a scan.
const SCAN_KEYS: usize = 1_000;

/// How many runtimes keep connections at once.
const RUNTIMES_MAX: usize = 8;

/// The connections to a server or cluster: one for each runtime, because one whose runtime is gone would never answer.
pub(super) struct Link {
    nodes: Vec<ConnectionInfo>,
    pub(super) is_cluster: bool,
    shown: String,
    connect_timeout: Duration,
    response_timeout: Duration,
    live: tokio::sync::Mutex<HashMap<Id, Connection>>,
}

#[derive(Clone)]
enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Link {
    /// Parses a URL without its query. Does not connect.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument); the message never contains the URL, which may hold a password.
    pub(super) fn parse(url: &str, connect_timeout: Duration, response_timeout: Duration) -> Result<Self> {
        let invalid = |message: &str| Error::invalid_argument(format!("the URL of the Redis server {message}"));
        let schemes = "must start with `redis://`, `rediss://`, `redis+cluster://` or `rediss+cluster://`";
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(schemes))?;
        let (scheme, is_cluster) = scheme.strip_suffix("+cluster").map_or((scheme, false), |scheme| (scheme, true));
        if !matches!(scheme, "redis" | "rediss") {
            return Err(invalid(schemes));
        }
        if rest.contains(['?', '#']) {
            return Err(invalid("may have only the parameter `?prefix=PREFIX`"));
        }
        let (user, server) = rest.rsplit_once('@').map_or(("", rest), |(user, server)| (user, server));
        let (hosts, database) = server.split_once('/').map_or((server, ""), |(hosts, database)| (hosts, database));
        if !is_cluster && hosts.contains(',') {
            return Err(invalid("names several hosts; write `redis+cluster://` for a cluster"));
        }
        if is_cluster && !matches!(database, "" | "0") {
            return Err(invalid("cannot name a database of a cluster, which has only one"));
        }
        let at = if user.is_empty() { "" } else { "@" };
        let mut nodes = Vec::new();
        for host in hosts.split(',') {
            let node = format!("{scheme}://{user}{at}{host}/{database}");
            let unusable = || invalid("cannot be used; write `redis://USER:PASSWORD@HOST:PORT/DATABASE`");
            nodes.push(node.into_connection_info().map_err(|_| unusable())?);
        }
        if scheme == "rediss" {
            // Keep the crypto provider that the program chose, if any.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let shown = treehold_store::server_url::shown(url);
        Ok(Self { nodes, is_cluster, shown, connect_timeout, response_timeout, live: tokio::sync::Mutex::default() })
    }

    /// Sends a command that only reads. Retries once on a new connection.
    pub(super) async fn read(&self, command: &Cmd) -> Result<Value> {
        match self.send(command).await {
            Err(Fault::Unsent(_) | Fault::Lost(_)) => self.send(command).await.map_err(Fault::of_read),
            answer => answer.map_err(Fault::of_read),
        }
    }

    /// Sends a command that writes, once.
    pub(super) async fn write(&self, command: &Cmd) -> Result<Value> {
        self.send(command).await.map_err(Fault::of_write)
    }

    /// Passes every key that matches a pattern to `found`, some perhaps twice.
    ///
    /// Cost: reads all keys of the database.
    pub(super) async fn scan(&self, pattern: &[u8], mut found: impl FnMut(&[u8])) -> Result<()> {
        let connection = self.live().await.map_err(|error| Fault::Unsent(error).of_read())?;
        let nodes = match &connection {
            Connection::Server(_) => vec![None],
            Connection::Cluster(_) => primaries(&self.read(cmd("CLUSTER").arg("SLOTS")).await?).into_iter().map(Some).collect(),
        };
        for node in nodes {
            let mut cursor = "0".to_owned();
            loop {
                let step = cmd("SCAN").arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_KEYS).to_owned();
                let answer = match (&mut connection.clone(), &node) {
                    (Connection::Cluster(cluster), Some((host, port))) => {
                        let node = SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port };
                        cluster.route_command(step, RoutingInfo::SingleNode(node)).await.and_then(Value::extract_error)
                    }
                    (Connection::Server(server), _) => server.send_packed_command(&step).await.and_then(Value::extract_error),
                    (Connection::Cluster(_), None) => return Err(unexpected()),
                };
                let Ok((next, keys)) = answer
                    .and_then(|value| ::redis::from_redis_value::<(String, Vec<Vec<u8>>)>(value).map_err(Into::into))
                    .map_err(|error: RedisError| error)
                else {
                    self.forget().await;
                    return Err(Error::new(ErrorKind::Unavailable, "the keys of the Redis server cannot be listed; try again"));
                };
                keys.iter().for_each(|key| found(key));
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        Ok(())
    }

    async fn send(&self, command: &Cmd) -> std::result::Result<Value, Fault> {
        let mut connection = self.live().await.map_err(Fault::Unsent)?;
        let answer = match &mut connection {
            Connection::Server(server) => server.req_packed_command(command).await,
            Connection::Cluster(cluster) => cluster.req_packed_command(command).await,
        };
        match answer.and_then(Value::extract_error) {
            Ok(value) => Ok(value),
            Err(error) => {
                let is_refusal = matches!(error.kind(), Kind::Server(_) | Kind::Extension);
                // The node may no longer be the one that serves the keys.
                if !is_refusal || matches!(error.kind(), Kind::Server(ServerErrorKind::Moved | ServerErrorKind::ReadOnly)) {
                    self.forget().await;
                }
                Err(if is_refusal { Fault::Refused(error) } else { Fault::Lost(error) })
            }
        }
    }

    async fn live(&self) -> RedisResult<Connection> {
        let here = Handle::current().id();
        let mut live = self.live.lock().await;
        if let Some(connection) = live.get(&here) {
            return Ok(connection.clone());
        }
        let connection = match self.is_cluster {
            true => Connection::Cluster(self.cluster()?.get_async_connection().await?),
            false => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.connect_timeout))
                    .set_response_timeout(Some(self.response_timeout));
                let client = Client::open(self.nodes[0].clone())?;
                Connection::Server(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
        };
        if live.len() >= RUNTIMES_MAX {
            live.clear();
        }
        live.insert(here, connection.clone());
        Ok(connection)
    }

    fn cluster(&self) -> RedisResult<ClusterClient> {
        // Without retries: a write whose answer was lost must not be sent again.
        ClusterClientBuilder::new(self.nodes.clone())
            .retries(0)
            .connection_timeout(self.connect_timeout)
            .response_timeout(self.response_timeout)
            .build()
    }

    async fn forget(&self) {
        self.live.lock().await.remove(&Handle::current().id());
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Escapes a text in a pattern of Redis.
pub(super) fn escaped(text: &str) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^') {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern
}

/// Extracts the primary of each range of slots from the answer to `CLUSTER SLOTS`.
fn primaries(slots: &Value) -> Vec<(String, u16)> {
    let Value::Array(ranges) = slots else { return Vec::new() };
    let mut named = Vec::new();
    for range in ranges {
        let Value::Array(parts) = range else { continue };
        let Some(Value::Array(node)) = parts.get(2) else { continue };
        if let [host, Value::Int(port), ..] = &node[..]
            && let (Some(host), Ok(port)) = (text(host), u16::try_from(*port))
            && !named.contains(&(host.clone(), port))
        {
            named.push((host, port));
        }
    }
    named
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// How far a failed command got.
enum Fault {
    /// It was not sent.
    Unsent(RedisError),
    /// The server rejected it.
    Refused(RedisError),
    /// It was sent, and whether it took effect is unknown.
    Lost(RedisError),
}

impl Fault {
    fn of_read(self) -> Error {
        match self {
            Self::Unsent(error) | Self::Refused(error) | Self::Lost(error) => converted(error),
        }
    }

    fn of_write(self) -> Error {
        match self {
            // A script checks before it writes, so that a rejected one had no effect.
            Self::Unsent(error) | Self::Refused(error) => converted(error).without_effect(),
            Self::Lost(error) => converted(error).with_unknown_effect(),
        }
    }
}

/// Makes the error for an answer that no script returns.
pub(super) fn unexpected() -> Error {
    Error::new(ErrorKind::Internal, "the Redis server sent an unexpected answer; this is a bug in the program")
}

fn converted(error: RedisError) -> Error {
    let text = error.to_string();
    let code = error.code().unwrap_or_default().to_owned();
    let is_login = ["WRONGPASS", "NOAUTH", "NOPERM"].contains(&code.as_str()) || text.contains("invalid password");
    let (kind, message) = match (error.kind(), code.as_str()) {
        _ if is_login => (ErrorKind::PermissionDenied, "the Redis server rejects the user, the password or the command; check the URL"),
        (Kind::AuthenticationFailed, _) => {
            (ErrorKind::PermissionDenied, "the Redis server rejects the user or the password; check the URL")
        }
        (_, "WRONGTYPE") => {
            (ErrorKind::Corrupt, "a key of the states holds data of another kind; delete it, or choose another `?prefix=PREFIX`")
        }
        (_, "CROSSSLOT") => (
            ErrorKind::Unsupported,
            "the keys of one value are on different nodes of the cluster; choose a prefix with a hash tag, such as `{agentscope}:session:`",
        ),
        _ if text.contains("cluster support disabled") => {
            (ErrorKind::Unsupported, "the Redis server is not part of a cluster; write `redis://` instead of `redis+cluster://`")
        }
        (Kind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask), _) => (
            ErrorKind::Unavailable,
            "the data is moving to another node, or the server is part of a cluster; write `redis+cluster://`, or try again",
        ),
        (_, "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "READONLY") => {
            (ErrorKind::Unavailable, "the Redis server does not accept the command now; check its log and try again")
        }
        (Kind::Server(_) | Kind::Extension | Kind::InvalidClientConfig, _) => {
            (ErrorKind::Internal, "the Redis server rejected a command unexpectedly; this is a bug in the program")
        }
        _ if error.is_timeout() => (ErrorKind::Unavailable, "the Redis server did not answer in time; try again"),
        _ => (ErrorKind::Unavailable, "the Redis server cannot be reached; check that it is running and try again"),
    };
    Error::new(kind, message).with_source(error)
}
