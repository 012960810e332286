//! Connections to the nodes that hold the store, with redirects and retries.
//!
//! The keys of a partition are in one slot and so on one node of a cluster. Requests go to that node and follow the slot when it moves.
//! All slots share the connections to a node. Nothing that may have taken effect is sent twice: a write without an answer fails, a read is
//! retried once. Each runtime has its own connections, because one whose runtime is no longer driven would never answer.

use super::address::Address;
use super::error::Fault;
use super::script::{Invocation, Keys};
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, PushInfo, PushKind, RedisError};
use ::redis::{ServerErrorKind, Value, cmd, pipe};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use treehold_core::error::Error;

/// How often one request follows its slot to another node.
const MOVES_MAX: usize = 8;

/// How many nodes of a cluster are remembered.
const NODES_MAX: usize = 1_000;

/// How often one request looks for the nodes anew, because one cannot be reached.
const READINGS_MAX: usize = 2;

/// The connection that a request uses. Two lanes keep small requests from waiting behind large ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Requests with small payloads and answers.
    Small,
    /// Requests whose payload or answer may be large.
    Large,
}

/// A node, and its name among the connections.
#[derive(Clone)]
struct Node {
    name: Arc<str>,
    info: Arc<ConnectionInfo>,
}

impl From<ConnectionInfo> for Node {
    fn from(info: ConnectionInfo) -> Self {
        Self { name: info.addr().to_string().into(), info: Arc::new(info) }
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Which runtime has a connection, to which node, and for which requests.
type TrackKey = (Id, Arc<str>, Lane);

/// The connections to all nodes of a server or a cluster.
pub(super) struct Pool {
    address: Address,
    /// The nodes in the URL.
    seeds: Vec<Node>,
    connect_timeout: Duration,
    response_timeout: Duration,
    tracks: Mutex<HashMap<TrackKey, Arc<Track>>>,
    layout: Mutex<Layout>,
    refreshing: tokio::sync::Mutex<()>,
}

/// The connections for one slot of a cluster, or for a server that is none.
#[derive(Clone)]
pub(super) struct Link {
    pool: Arc<Pool>,
    slot: u16,
}

/// Which node holds each slot of a cluster, as far as known.
#[derive(Default)]
struct Layout {
    /// The masters of ranges of slots, by the last slot of the range.
    ranges: BTreeMap<u16, (u16, Node)>,
    /// The nodes that redirects have named since.
    moved: HashMap<u16, Node>,
    /// All nodes that the cluster reported.
    nodes: Vec<Node>,
    /// How often the layout was read, and how the last attempt failed.
    readings: u64,
    failure: Option<RedisError>,
}

impl Layout {
    fn owner(&self, slot: u16) -> Option<Node> {
        if let Some(node) = self.moved.get(&slot) {
            return Some(node.clone());
        }
        let (_, (first, node)) = self.ranges.range(slot..).next()?;
        (*first <= slot).then(|| node.clone())
    }
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
    pub(super) fn new(address: Address, keys: &Keys, connect_timeout: Duration, response_timeout: Duration) -> Self {
        if address.is_encrypted() {
            // Keep the crypto provider that the program chose, if any.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let (tracks, layout, refreshing) = (Mutex::default(), Mutex::default(), tokio::sync::Mutex::default());
        let seeds = address.nodes.iter().cloned().map(Node::from).collect();
        let pool = Pool { address, seeds, connect_timeout, response_timeout, tracks, layout, refreshing };
        Self { pool: Arc::new(pool), slot: keys.slot() }
    }

    /// Returns the link for other keys, which shares the connections.
    pub(super) fn for_keys(&self, keys: &Keys) -> Self {
        Self { pool: self.pool.clone(), slot: keys.slot() }
    }

    /// Returns a link to each master of a cluster, or to the server.
    pub(super) async fn of_each_master(&self) -> Result<Vec<Self>, Error> {
        if !self.pool.address.is_cluster {
            return Ok(vec![self.clone()]);
        }
        self.pool.owner(self.slot).await.map_err(Fault::of_read)?;
        let layout = self.pool.layout.lock();
        let mut masters: Vec<&Node> = Vec::new();
        let mut links = Vec::new();
        for (last, (_, node)) in &layout.ranges {
            if !masters.contains(&node) {
                masters.push(node);
                links.push(Self { pool: self.pool.clone(), slot: *last });
            }
        }
        Ok(links)
    }

    /// Returns the address of the store.
    pub(super) fn address(&self) -> &Address {
        &self.pool.address
    }

    /// Sends a request and returns the answer.
    pub(super) async fn call(&self, lane: Lane, request: &Request<'_>) -> Result<Value, Fault> {
        let pool = &*self.pool;
        let mut tries_left = if request.writes() { 0 } else { 1 };
        let (mut moves_left, mut readings_left) = (MOVES_MAX, READINGS_MAX);
        let mut by_text = false;
        let mut command = request.command(by_text);
        loop {
            let node = pool.owner(self.slot).await?;
            let track = pool.track(&node, lane);
            let live = match pool.live(&track, &node).await {
                Err(Fault::Unsent(_)) if pool.address.is_cluster && readings_left > 0 => {
                    // Another node may have taken over.
                    readings_left -= 1;
                    pool.read_layout(self.slot, Some(&node)).await?;
                    continue;
                }
                live => live?,
            };
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
                    pool.follow(self.slot, &error, &node);
                }
                ErrorKind::Server(ServerErrorKind::Ask) => return pool.ask(&error, &node, request).await,
                ErrorKind::Server(ServerErrorKind::ReadOnly) => {
                    // The node was the master; the next request finds the new one.
                    track.end(&live).await;
                    pool.forget(self.slot);
                    return Err(Fault::Refused(error));
                }
                ErrorKind::Server(ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown) => {
                    // It may be cut off from the others, which have another master by now.
                    pool.forget(self.slot);
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
}

impl Pool {
    /// Returns the node that holds a slot.
    async fn owner(&self, slot: u16) -> Result<Node, Fault> {
        if !self.address.is_cluster {
            return Ok(self.seeds[0].clone());
        }
        if let Some(node) = self.layout.lock().owner(slot) {
            return Ok(node);
        }
        self.read_layout(slot, None).await?;
        let none = || RedisError::from((ErrorKind::ClusterConnectionNotFound, "no node of the cluster serves the slot of the keys"));
        self.layout.lock().owner(slot).ok_or_else(|| Fault::Unsent(none()))
    }

    fn track(&self, node: &Node, lane: Lane) -> Arc<Track> {
        let mut tracks = self.tracks.lock();
        let here = (Handle::current().id(), node.name.clone(), lane);
        if let Some(track) = tracks.get(&here) {
            return track.clone();
        }
        // New runtimes and nodes are rare, so this is a cheap moment to drop ended connections.
        tracks.retain(|_, track| !track.is_over());
        tracks.entry(here).or_default().clone()
    }

    /// Returns the connection of a track, connecting if needed. If the attempt fails, all callers that wait for it fail too.
    async fn live(&self, track: &Track, node: &Node) -> Result<Live, Fault> {
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
        let connected = self.connect_to(node).await;
        *track.failure.lock() = connected.as_ref().err().cloned();
        track.tries.fetch_add(1, Ordering::AcqRel);
        let connected = connected.map_err(Fault::Unsent)?;
        *live = Some(connected.clone());
        Ok(connected)
    }

    /// Reads which node holds each slot, from the first node that knows one for `slot` other than `failed`. Callers that wait meanwhile get the
    /// same answer.
    async fn read_layout(&self, slot: u16, failed: Option<&Node>) -> Result<(), Fault> {
        let readings = self.layout.lock().readings;
        let _reading = self.refreshing.lock().await;
        let candidates: Vec<Node> = {
            let layout = self.layout.lock();
            if layout.readings != readings {
                return layout.failure.clone().map_or(Ok(()), |error| Err(Fault::Unsent(error)));
            }
            let masters = layout.ranges.values().map(|(_, node)| node);
            let known = masters.chain(&self.seeds).chain(&layout.nodes);
            known.filter(|node| failed != Some(*node)).chain(failed).cloned().collect()
        };
        let mut failure = RedisError::from((ErrorKind::ClusterConnectionNotFound, "no node of the cluster can be reached"));
        let mut asked: Vec<Node> = Vec::new();
        let mut doubtful = None;
        for node in candidates {
            if asked.contains(&node) {
                continue;
            }
            asked.push(node.clone());
            match self.layout_of(&node).await {
                Ok(found) => {
                    let owner = found.owner(slot);
                    if owner.is_some() && owner.as_ref() != failed {
                        self.learn(found, asked, None);
                        return Ok(());
                    }
                    // It is no part of the cluster any more, or does not know yet who has taken over.
                    doubtful.get_or_insert(found);
                }
                Err(error) => failure = error,
            }
        }
        match doubtful {
            Some(found) => {
                self.learn(found, asked, None);
                Ok(())
            }
            None => {
                self.learn(Layout::default(), asked, Some(failure.clone()));
                Err(Fault::Unsent(failure))
            }
        }
    }

    /// Takes over a layout, and keeps what nodes were known before.
    fn learn(&self, found: Layout, known: Vec<Node>, failure: Option<RedisError>) {
        let mut layout = self.layout.lock();
        let mut nodes = found.nodes;
        for node in known {
            if nodes.len() < NODES_MAX && !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        *layout = Layout { ranges: found.ranges, moved: HashMap::new(), nodes, readings: layout.readings + 1, failure };
    }

    /// Asks one node for the layout of the cluster: the master of each range of slots, and all nodes.
    async fn layout_of(&self, node: &Node) -> Result<Layout, RedisError> {
        let mut connection = self.connect_to(node).await?.connection;
        let slots = connection.send_packed_command(cmd("CLUSTER").arg("SLOTS")).await.and_then(Value::extract_error)?;
        let (mut ranges, mut nodes) = (BTreeMap::new(), Vec::new());
        for (first, last, named) in named_ranges(slots) {
            let mut of_range = named.iter().filter_map(|(host, port)| self.named(host, *port, node));
            if let Some(master) = of_range.next() {
                ranges.insert(last, (first, master.clone()));
                nodes.push(master);
            }
            nodes.extend(of_range);
        }
        Ok(Layout { ranges, nodes, ..Layout::default() })
    }

    /// Returns the node that another one names. A name without a host means the same host.
    fn named(&self, host: &str, port: u16, from: &Node) -> Option<Node> {
        let host = match from.info.addr() {
            ConnectionAddr::Tcp(from, _) | ConnectionAddr::TcpTls { host: from, .. } if host.is_empty() => from,
            _ if host.is_empty() => return None,
            _ => host,
        };
        Some(self.address.node(host, port).into())
    }

    /// Forgets where the slots are.
    fn forget(&self, slot: u16) {
        let mut layout = self.layout.lock();
        layout.moved.remove(&slot);
        layout.ranges.clear();
    }

    async fn connect_to(&self, node: &Node) -> Result<Live, RedisError> {
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
        let connection = Client::open((*node.info).clone())?.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Live { connection, is_over })
    }

    /// Remembers the node that a redirect names.
    fn follow(&self, slot: u16, error: &RedisError, from: &Node) {
        if let Some(node) = self.redirected(error, from) {
            self.layout.lock().moved.insert(slot, node);
        }
    }

    /// Returns the node that a redirect from `from` names.
    fn redirected(&self, error: &RedisError, from: &Node) -> Option<Node> {
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        self.named(host, port.parse().ok()?, from)
    }

    /// Sends a request to the node that the slot is migrating to.
    async fn ask(&self, error: &RedisError, from: &Node, request: &Request<'_>) -> Result<Value, Fault> {
        let node = self.redirected(error, from).ok_or_else(|| Fault::Refused(error.clone()))?;
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

/// A range of slots, and the names of its nodes: the master first.
type NamedRange = (u16, u16, Vec<(String, u16)>);

/// Parses the answer to `CLUSTER SLOTS`.
fn named_ranges(slots: Value) -> Vec<NamedRange> {
    let number = |value: &Value| if let Value::Int(number) = value { u16::try_from(*number).ok() } else { None };
    let node = |value: &Value| {
        let Value::Array(node) = value else { return None };
        let (host, port) = (node.first()?, number(node.get(1)?)?);
        match host {
            Value::BulkString(host) => Some((String::from_utf8(host.clone()).ok()?, port)),
            Value::Nil => Some((String::new(), port)),
            _ => None,
        }
    };
    let range = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let [first, last, nodes @ ..] = &parts[..] else { return None };
        Some((number(first)?, number(last)?, nodes.iter().filter_map(node).collect()))
    };
    let Value::Array(ranges) = slots else { return Vec::new() };
    ranges.iter().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_a_cluster_names_the_master_of_each_slot() {
        let node = |host: &str, port| Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(port)]);
        let range = |first, last, nodes: &[Value]| Value::Array([&[Value::Int(first), Value::Int(last)][..], nodes].concat());
        let answer = Value::Array(vec![
            range(0, 100, &[node("a", 1), node("b", 2)]),
            range(101, 101, &[node("", 3)]),
            range(200, 300, &[Value::Array(vec![Value::Nil, Value::Int(4)])]),
            Value::Nil,
        ]);
        let ranges = named_ranges(answer);
        let names = |index: usize| ranges[index].2.clone();
        assert_eq!(ranges.len(), 3);
        assert_eq!((names(0), names(1)), (vec![("a".to_owned(), 1), ("b".to_owned(), 2)], vec![(String::new(), 3)]));
        let address = Address::parse("redis+cluster://seed:7").expect("legal");
        let mut layout = Layout::default();
        for (first, last, named) in ranges {
            layout.ranges.insert(last, (first, address.node(&named[0].0, named[0].1).into()));
        }
        let port = |slot| match layout.owner(slot)?.info.addr() {
            ConnectionAddr::Tcp(_, port) => Some(*port),
            _ => None,
        };
        assert_eq!([0, 100, 101, 102, 199, 200, 300, 301].map(port), [Some(1), Some(1), Some(3), None, None, Some(4), Some(4), None]);
    }
}
