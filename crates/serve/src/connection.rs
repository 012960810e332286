//! Connection limits: how many may be open in total and per address, and how long each may keep the server waiting.
//!
//! A connection must send a request soon after it is opened, and the next one soon after the last response. Bytes that never form a request
//! do not count. A peer that reads nothing is disconnected, and so is one that reads a response too slowly (`answer.rs`). While a request
//! is running, only the deadlines for requests apply.
//!
//! When all slots are taken, a few more connections are accepted briefly, to answer health checks ([`is_health`]) and to refuse other
//! requests with a status that gives the reason.

use axum_server::accept::Accept;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// How many connections are accepted beyond the limit, each for one request.
const CROWDED_MAX: usize = 64;

/// How long a connection beyond the limit may take to send its request.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(2);

/// Limits on connections: how many may be open, and how long each may keep the server waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// The most connections at once. A few beyond it are accepted, but only to answer health checks. Default 4,096.
    pub connections_max: usize,
    /// The most connections at once from one address; further ones are closed. Behind a proxy, whose address all clients share, set it to
    /// `connections_max`. Default 1,024.
    pub per_address_max: usize,
    /// How long a connection may take to send its first request, and any request to send its head. Default 15 seconds.
    pub head_timeout: Duration,
    /// How long a connection may be idle between two requests. Default 75 seconds; HTTP/1 connections wait no longer than `head_timeout`.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of a response that waits for it. Default 30 seconds.
    pub write_timeout: Duration,
    /// How long a request body may pause. Default 15 seconds.
    pub body_timeout: Duration,
    /// The minimum rate of a request body, in bytes per second, after the first `body_timeout`. Default 1,024.
    pub body_bytes_per_second_min: u64,
    /// The minimum rate at which a client reads a response, in bytes per second of the time in which the response waits for it, after the
    /// first `write_timeout`. Default 1,024.
    pub answer_bytes_per_second_min: u64,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections_max: 4_096,
            per_address_max: 1_024,
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(15),
            body_bytes_per_second_min: 1_024,
            answer_bytes_per_second_min: 1_024,
        }
    }
}

impl ConnectionLimits {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most connections at once, in total and per address.
    #[must_use]
    pub fn with_connections_max(mut self, connections: usize, per_address: usize) -> Self {
        (self.connections_max, self.per_address_max) = (connections, per_address);
        self
    }

    /// Sets how long a connection may take to send its first request, and any request to send its head.
    #[must_use]
    pub fn with_head_timeout(mut self, timeout: Duration) -> Self {
        self.head_timeout = timeout;
        self
    }

    /// Sets how long a connection may be idle between two requests.
    #[must_use]
    pub fn with_idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets how long a client may read nothing of a response that waits for it.
    #[must_use]
    pub fn with_write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Sets how long a request body may pause, and its minimum rate in bytes per second.
    #[must_use]
    pub fn with_body_pace(mut self, timeout: Duration, bytes_per_second_min: u64) -> Self {
        (self.body_timeout, self.body_bytes_per_second_min) = (timeout, bytes_per_second_min);
        self
    }

    /// Sets the minimum rate at which a client reads a response, in bytes per second.
    #[must_use]
    pub fn with_answer_bytes_per_second_min(mut self, bytes: u64) -> Self {
        self.answer_bytes_per_second_min = bytes;
        self
    }

    /// Lowers the connection limit to three quarters of the files that the process may open, minus the connections accepted beyond the
    /// limit. The rest is left for stores, host files and bodies spooled to disk.
    #[must_use]
    pub fn within_open_files(mut self, open_files_max: u64) -> Self {
        let left = usize::try_from(open_files_max / 4 * 3).unwrap_or(usize::MAX);
        self.connections_max = self.connections_max.min(left.saturating_sub(CROWDED_MAX)).max(1);
        self
    }
}

/// Returns whether a path is a health check. Health checks are answered even when the server is full.
pub(super) fn is_health(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz" | "/healthz" | "/metrics")
}

/// The connections of a server.
#[derive(Debug)]
pub(super) struct Connections {
    limits: ConnectionLimits,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<SocketAddr, Weak<Connection>>,
    of_address: HashMap<IpAddr, usize>,
    places: usize,
    crowded: usize,
}

/// One connection. Its slot is freed when the last reference is dropped.
#[derive(Debug)]
struct Connection {
    all: Arc<Connections>,
    peer: SocketAddr,
    /// Whether it was accepted beyond the limit, for one request.
    is_crowded: bool,
    state: Mutex<Waiting>,
}

/// What a connection waits for.
#[derive(Debug)]
struct Waiting {
    requests: usize,
    since: Instant,
    has_asked: bool,
    /// The number of the newest request.
    newest: u64,
    /// The deadline of each response that waits for the client to read more, by request number.
    untaken: HashMap<u64, Instant>,
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default() })
    }

    /// Gives a connection a slot, if one is free.
    fn admit(self: &Arc<Self>, peer: SocketAddr) -> Option<Arc<Connection>> {
        let mut table = self.table.lock();
        let of_address = table.of_address.get(&peer.ip()).copied().unwrap_or(0);
        if of_address >= self.limits.per_address_max {
            return None;
        }
        let is_crowded = table.places >= self.limits.connections_max;
        if is_crowded && table.crowded >= CROWDED_MAX {
            return None;
        }
        *if is_crowded { &mut table.crowded } else { &mut table.places } += 1;
        table.of_address.insert(peer.ip(), of_address + 1);
        let state = Waiting { requests: 0, since: Instant::now(), has_asked: false, newest: 0, untaken: HashMap::new() };
        let state = Mutex::new(state);
        let connection = Arc::new(Connection { all: self.clone(), peer, is_crowded, state });
        table.open.insert(peer, Arc::downgrade(&connection));
        Some(connection)
    }

    /// Registers a running request of a peer's connection, until the returned guard is dropped.
    pub(super) fn begin(&self, peer: &SocketAddr) -> Option<Running> {
        let connection = self.table.lock().open.get(peer).and_then(Weak::upgrade)?;
        Some(Running::begin(connection))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut table = self.all.table.lock();
        *if self.is_crowded { &mut table.crowded } else { &mut table.places } -= 1;
        // The port may have been reused already.
        if table.open.get(&self.peer).is_some_and(|open| open.strong_count() == 0) {
            table.open.remove(&self.peer);
        }
        if let Some(count) = table.of_address.get_mut(&self.peer.ip()) {
            *count -= 1;
            if *count == 0 {
                table.of_address.remove(&self.peer.ip());
            }
        }
    }
}

impl Connection {
    /// Returns the deadline for the peer's next action, or `None` while the server is not waiting for the peer.
    fn waits_until(&self) -> Option<Instant> {
        let state = self.state.lock();
        if state.requests > 0 {
            return state.untaken.values().min().copied();
        }
        let limits = &self.all.limits;
        let patience = match (state.has_asked, self.is_crowded) {
            (false, false) => limits.head_timeout,
            (false, true) => limits.head_timeout.min(CROWDED_TIMEOUT),
            (true, false) => limits.idle_timeout,
            (true, true) => Duration::ZERO,
        };
        Some(state.since + patience)
    }

    /// Returns how often to check how long the connection has kept the server waiting.
    fn looked_at_every(&self) -> Duration {
        let limits = &self.all.limits;
        let patience = limits.head_timeout.min(limits.idle_timeout).min(limits.write_timeout);
        if self.is_crowded { patience.min(CROWDED_TIMEOUT) } else { patience }
    }
}

/// A running request, until its response is sent or abandoned.
#[derive(Debug)]
pub(super) struct Running {
    connection: Arc<Connection>,
    number: u64,
}

impl Running {
    fn begin(connection: Arc<Connection>) -> Self {
        let mut state = connection.state.lock();
        state.requests += 1;
        state.has_asked = true;
        state.newest += 1;
        let number = state.newest;
        drop(state);
        Self { connection, number }
    }

    /// Returns whether the connection was accepted beyond the limit.
    pub(super) fn is_crowded(&self) -> bool {
        self.connection.is_crowded
    }

    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.connection.all.limits
    }

    /// Sets the deadline for the client to read more of the response, or clears it while the response does not wait for the client.
    pub(super) fn wait_for_client(&self, until: Option<Instant>) {
        let mut state = self.connection.state.lock();
        match until {
            Some(until) => state.untaken.insert(self.number, until),
            None => state.untaken.remove(&self.number),
        };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.connection.state.lock();
        state.untaken.remove(&self.number);
        state.requests -= 1;
        state.since = Instant::now();
    }
}

/// A request extension: the running request, for what goes on with its connection after the response.
#[derive(Debug, Clone)]
pub(super) struct Connected(Weak<Running>);

impl Connected {
    pub(super) fn new(running: &Arc<Running>) -> Self {
        Self(Arc::downgrade(running))
    }

    /// Returns the running request, unless its client is gone. While it is held, the connection does not count as idle.
    pub(super) fn running(&self) -> Option<Arc<Running>> {
        self.0.upgrade()
    }
}

/// An acceptor that gives each connection its slot before the inner acceptor runs.
#[derive(Debug, Clone)]
pub(super) struct Guard<A> {
    inner: A,
    connections: Arc<Connections>,
}

impl<A> Guard<A> {
    pub(super) fn new(inner: A, connections: Arc<Connections>) -> Self {
        Self { inner, connections }
    }
}

impl<A, S> Accept<TcpStream, S> for Guard<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
{
    type Stream = Guarded<A::Stream>;
    type Service = A::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let admitted = stream.peer_addr().and_then(|peer| {
            let connection = self.connections.admit(peer);
            connection.ok_or_else(|| io::Error::other("too many connections"))
        });
        let inner = admitted.map(|connection| (connection, self.inner.accept(stream, service)));
        Box::pin(async move {
            let (connection, inner) = inner?;
            let (stream, service) = inner.await?;
            Ok((Guarded::new(stream, connection), service))
        })
    }
}

/// A stream that fails when its peer keeps the server waiting for too long.
pub(super) struct Guarded<S> {
    stream: S,
    connection: Arc<Connection>,
    /// Wakes the connection to check how long it has waited.
    alarm: Pin<Box<Sleep>>,
    /// The deadline for the peer to accept pending bytes.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    fn new(stream: S, connection: Arc<Connection>) -> Self {
        let alarm = Box::pin(sleep_until(Instant::now()));
        Self { stream, connection, alarm, stalled: None }
    }

    /// Completes once the connection has kept the server waiting for too long.
    fn poll_impatience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let now = Instant::now();
            let until = self.connection.waits_until();
            if until.is_some_and(|until| until <= now) {
                return Poll::Ready(());
            }
            // The deadline may change before then.
            let next = now + self.connection.looked_at_every();
            self.alarm.as_mut().reset(until.map_or(next, |until| until.min(next)));
        }
    }

    /// Fails a write that has been pending for too long.
    fn poll_written<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        if self.poll_impatience(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads its answers too slowly")));
        }
        let timeout = self.connection.all.limits.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(done) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
            return Poll::Ready(done);
        }
        ready!(self.poll_impatience(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client sends no requests or reads its answers too slowly")))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.poll_written(cx, written)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.poll_written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_flush(cx);
        self.poll_written(cx, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.poll_written(cx, written)
    }
}
