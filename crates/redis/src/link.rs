//! Connections to the node that holds the store, with redirects and retries.
//!
//! A store occupies one slot and so one node of a cluster. Requests go to that node and follow the slot when it moves.
//! Nothing that may have taken effect is sent twice: a write without an answer fails, a read is retried once. Each
//! runtime has its own connections, because one whose runtime is no longer driven would never answer.

use super::address::Address;
use super::error::Fault;
use super::script::{Invocation, Keys};
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, PushInfo, PushKind, RedisError};
use ::redis::{ServerErrorKind, Value, cmd, pipe};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::{Handle, Id};

/// How often one request follows the store to another node.
const MOVES_MAX: usize = 8;

/// The connection that a request uses. Two lanes keep small requests from waiting behind large ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Requests with small payloads and answers.
    Small,
    /// Requests whose payload or answer may be large.
    Large,
}

/// The connections of a store.
pub(super) struct Link {
    address: Address,
    connect_timeout: Duration,
    response_timeout: Duration,
    keys: Keys,
    tracks: Mutex<HashMap<(Id, Lane), Arc<Track>>>,
    nodes: Mutex<Nodes>,
}

/// The known nodes of a cluster.
#[derive(Default)]
struct Nodes {
    /// The node that holds the store.
    owner: Option<ConnectionInfo>,
    /// Nodes that the cluster reported besides those in the URL.
    others: Vec<ConnectionInfo>,
}

/// The connection of one lane.
#[derive(Default)]
struct Track {
    live: tokio::sync::Mutex<Option<Live>>,
    /// How often a connection was attempted, and how the last attempt failed.
    tries: AtomicUsize,
    failure: Mutex<Option<RedisError>>,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// Set once the connection has ended for any reason.
    is_over: Arc<AtomicBool>,
}

/// A request.
pub(super) enum Request<'a> {
    /// One read-only command.
    Read(Cmd),
    /// One command that writes.
    Write(Cmd),
    /// A script.
    Script(Invocation<'a>),
}

impl Request<'_> {
    fn command(&self, by_text: bool) -> Cmd {
        match self {
            Self::Read(command) | Self::Write(command) => command.clone(),
            Self::Script(invocation) if by_text => invocation.by_text(),
            Self::Script(invocation) => invocation.by_hash(),
        }
    }

    fn writes(&self) -> bool {
        match self {
            Self::Read(_) => false,
            Self::Write(_) => true,
            Self::Script(invocation) => invocation.script.writes,
        }
    }
}

impl Link {
    /// Makes a link without connecting.
    pub(super) fn new(address: Address, keys: Keys, connect_timeout: Duration, response_timeout: Duration) -> Self {
        if address.is_encrypted() {
            // Keep the crypto provider that the program chose, if any.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Self { address, connect_timeout, response_timeout, keys, tracks: Mutex::default(), nodes: Mutex::default() }
    }

    /// Returns the address of the store.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Sends a request and returns the answer.
    pub(super) async fn call(&self, lane: Lane, request: &Request<'_>) -> Result<Value, Fault> {
        let track = self.track(lane);
        let mut tries_left = if request.writes() { 0 } else { 1 };
        let mut moves_left = MOVES_MAX;
        let mut by_text = false;
        let mut command = request.command(by_text);
        loop {
            let live = self.live(&track).await?;
            let answer = live.connection.clone().send_packed_command(&command).await.and_then(Value::extract_error);
            let error = match answer {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::NoScript) if !by_text => {
                    by_text = true;
                    command = request.command(by_text);
                }
                ErrorKind::Server(ServerErrorKind::Moved) if moves_left > 0 => {
                    moves_left -= 1;
                    self.follow(&error);
                    track.end(&live).await;
                }
                ErrorKind::Server(ServerErrorKind::Ask) => return self.ask(&error, request).await,
                ErrorKind::Server(ServerErrorKind::ReadOnly) => {
                    // The node was the primary; the next request finds the new one.
                    track.end(&live).await;
                    return Err(Fault::Refused(error));
                }
                ErrorKind::Server(_) | ErrorKind::Extension => return Err(Fault::Refused(error)),
                _ => {
                    track.end(&live).await;
                    if tries_left == 0 {
                        return Err(Fault::Lost(error));
                    }
                    tries_left -= 1;
                }
            }
        }
    }

    /// Sends read-only commands in one round trip, and returns their answers. One node runs them in order.
    pub(super) async fn ask_each(&self, commands: impl IntoIterator<Item = Cmd>) -> Vec<Result<Value, Fault>> {
        let requests: Vec<Request<'_>> = commands.into_iter().map(Request::Read).collect();
        futures::future::join_all(requests.iter().map(|request| self.call(Lane::Small, request))).await
    }

    fn track(&self, lane: Lane) -> Arc<Track> {
        let mut tracks = self.tracks.lock();
        let here = (Handle::current().id(), lane);
        if let Some(track) = tracks.get(&here) {
            return track.clone();
        }
        // New runtimes are rare, so this is a cheap moment to drop ended connections.
        tracks.retain(|_, track| !track.is_over());
        tracks.entry(here).or_default().clone()
    }

    /// Returns the connection of a track, connecting if needed. If the attempt fails, all callers that wait for it fail too.
    async fn live(&self, track: &Track) -> Result<Live, Fault> {
        let tries = track.tries.load(Ordering::Acquire);
        let mut live = track.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.is_over.load(Ordering::Acquire)) {
            return Ok(live.clone());
        }
        if track.tries.load(Ordering::Acquire) != tries
            && let Some(error) = track.failure.lock().clone()
        {
            return Err(Fault::Unsent(error));
        }
        let connected = self.connect().await;
        *track.failure.lock() = connected.as_ref().err().cloned();
        track.tries.fetch_add(1, Ordering::AcqRel);
        let connected = connected.map_err(Fault::Unsent)?;
        *live = Some(connected.clone());
        Ok(connected)
    }

    async fn connect(&self) -> Result<Live, RedisError> {
        if !self.address.is_cluster {
            return self.connect_to(&self.address.nodes[0]).await;
        }
        let mut candidates: Vec<ConnectionInfo> = {
            let nodes = self.nodes.lock();
            nodes.owner.iter().chain(&self.address.nodes).chain(&nodes.others).cloned().collect()
        };
        let mut failure = RedisError::from((ErrorKind::ClusterConnectionNotFound, "no node of the cluster can be reached"));
        let mut moves_left = MOVES_MAX;
        candidates.reverse();
        while let Some(node) = candidates.pop() {
            match self.connect_to_owner(&node).await {
                Ok(live) => {
                    self.nodes.lock().owner = Some(node);
                    return Ok(live);
                }
                Err(error) => {
                    if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) && moves_left > 0 {
                        moves_left -= 1;
                        candidates.extend(self.redirected(&error, &node));
                    }
                    failure = error;
                }
            }
        }
        self.nodes.lock().owner = None;
        Err(failure)
    }

    /// Connects to a node of a cluster. Fails with a redirect if another node holds the store.
    async fn connect_to_owner(&self, node: &ConnectionInfo) -> Result<Live, RedisError> {
        let live = self.connect_to(node).await?;
        let mut connection = live.connection.clone();
        let slots = connection.send_packed_command(cmd("CLUSTER").arg("SLOTS")).await.and_then(Value::extract_error)?;
        let others = named_nodes(slots).into_iter().map(|(host, port)| self.address.node(&host, port)).collect();
        self.nodes.lock().others = others;
        let look = cmd("HGET").arg(self.keys.rows()).arg(".schema").to_owned();
        match connection.send_packed_command(&look).await.and_then(Value::extract_error) {
            // The slot is migrating; requests are redirected one by one.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) => Ok(live),
            answer => answer.map(|_| live),
        }
    }

    async fn connect_to(&self, node: &ConnectionInfo) -> Result<Live, RedisError> {
        let is_over = Arc::new(AtomicBool::new(false));
        let guard = Over(is_over.clone());
        // The connection's handler owns the guard, so it is dropped with the connection or its runtime, even if no
        // disconnection is reported.
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                guard.0.store(true, Ordering::Release);
            }
            Ok::<(), ()>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout))
            .set_push_sender(on_push);
        let connection = Client::open(node.clone())?.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Live { connection, is_over })
    }

    /// Remembers the node that a redirect names.
    fn follow(&self, error: &RedisError) {
        let mut nodes = self.nodes.lock();
        let from = nodes.owner.clone().unwrap_or_else(|| self.address.nodes[0].clone());
        if let Some(node) = self.redirected(error, &from) {
            nodes.owner = Some(node);
        }
    }

    /// Returns the node that a redirect from `from` names. A redirect without a host means the same host.
    fn redirected(&self, error: &RedisError, from: &ConnectionInfo) -> Option<ConnectionInfo> {
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        let host = match from.addr() {
            ConnectionAddr::Tcp(from, _) if host.is_empty() => from,
            ConnectionAddr::TcpTls { host: from, .. } if host.is_empty() => from,
            _ => host,
        };
        Some(self.address.node(host, port.parse().ok()?))
    }

    /// Sends a request to the node that the slot is migrating to.
    async fn ask(&self, error: &RedisError, request: &Request<'_>) -> Result<Value, Fault> {
        let refused = || Fault::Refused(error.clone());
        let from = self.nodes.lock().owner.clone().ok_or_else(refused)?;
        let node = self.redirected(error, &from).ok_or_else(refused)?;
        let live = self.connect_to(&node).await.map_err(Fault::Unsent)?;
        let mut both = pipe();
        both.cmd("ASKING").add_command(request.command(true));
        let answers = live.connection.clone().send_packed_commands(&both, 0, 2).await;
        match answers.and_then(|mut answers| answers.pop().unwrap_or_default().extract_error()) {
            Ok(value) => Ok(value),
            Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => Err(Fault::Refused(error)),
            Err(error) => Err(Fault::Lost(error)),
        }
    }
}

impl Track {
    /// Discards a connection, unless a newer one has replaced it.
    async fn end(&self, ended: &Live) {
        ended.is_over.store(true, Ordering::Release);
        let mut live = self.live.lock().await;
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(&live.is_over, &ended.is_over)) {
            *live = None;
        }
    }

    /// Returns whether the connection has ended and nobody is reconnecting.
    fn is_over(&self) -> bool {
        self.live.try_lock().is_ok_and(|live| live.as_ref().is_none_or(|live| live.is_over.load(Ordering::Acquire)))
    }
}

/// Marks a connection as ended when dropped.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Extracts the nodes from the answer to `CLUSTER SLOTS`.
fn named_nodes(slots: Value) -> Vec<(String, u16)> {
    let Value::Array(ranges) = slots else { return Vec::new() };
    let mut named = Vec::new();
    for range in ranges {
        let Value::Array(parts) = range else { continue };
        for node in parts.into_iter().skip(2) {
            let Value::Array(node) = node else { continue };
            if let [Value::BulkString(host), Value::Int(port), ..] = &node[..]
                && let (Ok(host), Ok(port)) = (String::from_utf8(host.clone()), u16::try_from(*port))
                && !host.is_empty()
                && !named.contains(&(host.clone(), port))
            {
                named.push((host, port));
            }
        }
    }
    named
}
