//! Connections: how many there may be, from one address too, and how long each may keep the server waiting.
//!
//! A connection has to bring a request soon after it is opened, and another one soon after the last was answered, whatever it sends
//! meanwhile: bytes that never become a request do not count. A peer that takes no bytes off it is cut off too, and so is one that takes an
//! answer too slowly (`answer.rs`). While a request is under way the deadlines of requests hold, and these do not.
//!
//! Where all places are taken, a few more connections are let in for a moment, to answer what asks whether the server is alive
//! ([`is_health`]) and to refuse the rest with a status that says why.

use crate::config::ServeConfig;
use crate::error::Result;
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

/// How many connections are let in beyond the most, each for one request.
const CROWDED_MAX: usize = 64;

/// How long such a connection may take to bring its request.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(2);

/// How many connections there may be, and how long each may keep the server waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// The most connections at once; of what is more only questions after the server's health are answered. Default 4,096.
    pub connections_max: usize,
    /// The most connections at once from one address; what is more is closed. Set it as high as `connections_max` behind a proxy, whose
    /// address all clients share. Default 1,024.
    pub per_address_max: usize,
    /// How long a connection may take to bring its first request, and any request to bring its head. Default 15 seconds.
    pub head_timeout: Duration,
    /// How long a connection may wait between two requests. Default 75 seconds; HTTP/1 waits no longer than `head_timeout`.
    pub idle_timeout: Duration,
    /// How long a client may take no bytes of an answer that waits for it. Default 30 seconds.
    pub write_timeout: Duration,
    /// How long a body may pause. Default 15 seconds.
    pub body_timeout: Duration,
    /// The fewest bytes of a body for each second, after the first `body_timeout`. Default 1,024.
    pub body_bytes_per_second_min: u64,
    /// The fewest bytes of an answer that its client takes for each second in which the answer waits for it, after the first
    /// `write_timeout`. Default 1,024.
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
    /// Takes the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most connections at once, and how many of them may come from one address.
    #[must_use]
    pub fn with_connections_max(mut self, connections: usize, per_address: usize) -> Self {
        (self.connections_max, self.per_address_max) = (connections, per_address);
        self
    }

    /// Sets how long a connection may take to bring its first request, and any request to bring its head.
    #[must_use]
    pub fn with_head_timeout(mut self, timeout: Duration) -> Self {
        self.head_timeout = timeout;
        self
    }

    /// Sets how long a connection may wait between two requests.
    #[must_use]
    pub fn with_idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets how long a client may take no bytes of an answer that waits for it.
    #[must_use]
    pub fn with_write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Sets how long a body may pause, and how many bytes of it have to come each second.
    #[must_use]
    pub fn with_body_pace(mut self, timeout: Duration, bytes_per_second_min: u64) -> Self {
        (self.body_timeout, self.body_bytes_per_second_min) = (timeout, bytes_per_second_min);
        self
    }

    /// Sets how many bytes of an answer its client has to take each second.
    #[must_use]
    pub fn with_answer_bytes_per_second_min(mut self, bytes: u64) -> Self {
        self.answer_bytes_per_second_min = bytes;
        self
    }

    /// Takes what a configuration says.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a time that was set after the configuration was read and is none.
    pub(super) fn from_config(config: &ServeConfig) -> Result<Self> {
        Ok(Self {
            connections_max: config.connections_max,
            per_address_max: config.connections_per_address_max,
            head_timeout: config.head_timeout()?,
            idle_timeout: config.idle_timeout()?,
            write_timeout: config.write_timeout()?,
            body_timeout: config.body_timeout()?,
            body_bytes_per_second_min: config.body_bytes_per_second_min,
            answer_bytes_per_second_min: config.answer_bytes_per_second_min,
        })
    }

    /// Lowers the most connections so that they leave a quarter of the files that the process may have open, and what is let in beyond
    /// them, to everything else: stores, files of the host, bodies on disk.
    #[must_use]
    pub fn within_open_files(mut self, open_files_max: u64) -> Self {
        let left = usize::try_from(open_files_max / 4 * 3).unwrap_or(usize::MAX);
        self.connections_max = self.connections_max.min(left.saturating_sub(CROWDED_MAX)).max(1);
        self
    }
}

/// Tells whether a path asks after the health of the server: such requests are answered whatever else waits.
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

/// One connection; its place is free again when the last who holds it lets go.
#[derive(Debug)]
struct Connection {
    all: Arc<Connections>,
    peer: SocketAddr,
    /// It was let in beyond the most, for one request.
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
    /// Of each answer that waits for the client, by the number of its request: until when the client has to take more of it.
    untaken: HashMap<u64, Instant>,
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default() })
    }

    /// Gives a connection a place, if there is one for it.
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

    /// Notes that a request of a peer's connection is under way, until what is returned is dropped.
    pub(super) fn begin(&self, peer: &SocketAddr) -> Option<Running> {
        let connection = self.table.lock().open.get(peer).and_then(Weak::upgrade)?;
        Some(Running::begin(connection))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut table = self.all.table.lock();
        *if self.is_crowded { &mut table.crowded } else { &mut table.places } -= 1;
        // The port may have been taken again already.
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
    /// Returns until when the connection may keep the server waiting; none while it does not.
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

    /// Returns how often it is looked at how long the connection has kept the server waiting.
    fn looked_at_every(&self) -> Duration {
        let limits = &self.all.limits;
        let patience = limits.head_timeout.min(limits.idle_timeout).min(limits.write_timeout);
        if self.is_crowded { patience.min(CROWDED_TIMEOUT) } else { patience }
    }
}

/// A request under way, until its answer is sent or given up.
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

    /// Tells whether its connection was let in beyond the most.
    pub(super) fn is_crowded(&self) -> bool {
        self.connection.is_crowded
    }

    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.connection.all.limits
    }

    /// Notes until when the client has to take more of the answer; none while the answer does not wait for it.
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

/// Gives connections their places, around what makes streams of them.
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

/// A stream that fails when it keeps the server waiting for too long.
pub(super) struct Guarded<S> {
    stream: S,
    connection: Arc<Connection>,
    /// Wakes the connection to look at how long it has waited.
    alarm: Pin<Box<Sleep>>,
    /// Until when bytes that wait have to be taken.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Guarded<S> {
    fn new(stream: S, connection: Arc<Connection>) -> Self {
        let alarm = Box::pin(sleep_until(Instant::now()));
        Self { stream, connection, alarm, stalled: None }
    }

    /// Waits until the connection has kept the server waiting for too long.
    fn poll_impatience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let now = Instant::now();
            let until = self.connection.waits_until();
            if until.is_some_and(|until| until <= now) {
                return Poll::Ready(());
            }
            // What it waits for may change before then.
            let next = now + self.connection.looked_at_every();
            self.alarm.as_mut().reset(until.map_or(next, |until| until.min(next)));
        }
    }

    /// Fails a write that has waited for too long.
    fn poll_written<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        if self.poll_impatience(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes its answers too slowly")));
        }
        let timeout = self.connection.all.limits.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no bytes")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(done) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
            return Poll::Ready(done);
        }
        ready!(self.poll_impatience(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client asks nothing, or takes its answers too slowly")))
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
