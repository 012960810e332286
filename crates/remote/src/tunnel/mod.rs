//! Tunnels: connections that machines which cannot be called opened to this one.
//!
//! A machine behind NAT dials a server and upgrades the connection ([`dial`](crate::dial)). HTTP/2 then runs over it in reverse: the machine
//! that dialled serves, and the server that accepted asks. [`Tunnels`] is the registry of one process. Each tunnel has a tenant and a name;
//! [`Tunnels::transport`] reaches it as any other [`Transport`].
//!
//! - A name has at most one tunnel. A second connection under it is refused while the first one answers, and replaces it otherwise.
//! - A tunnel counts as open once its machine has answered a first request, so bytes that are not HTTP/2 never become a tunnel.
//! - Pings find a machine that vanished, within twice [`TunnelOptions::keep_alive`].
//! - A request waits for a tunnel that broke less than [`TunnelOptions::return_timeout`] ago. All other names fail at once.
//! - Tunnels are bounded in all and per user, requests per tunnel, and unread bytes by the windows of HTTP/2.

mod line;
mod slots;

use self::line::Line;
use self::slots::{Key, Slots};
use super::transport::{Failure, Transport, TransportError, TransportRequest, TransportResponse};
use async_trait::async_trait;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::check_peer_name;
use treehold_core::shares::{Share, Shares, User};

/// How long the running requests of a tunnel may take once either side is stopping.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits on tunnels.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TunnelOptions {
    /// The most tunnels at once. Default 1,024.
    pub tunnels_max: usize,
    /// The most tunnels of one user at once. Default 64.
    pub per_user_max: usize,
    /// The most concurrent requests through one tunnel; further ones wait. Default 64.
    pub requests_max: usize,
    /// How often a machine is pinged, and how long its reply may take. Default 5 seconds.
    pub keep_alive: Duration,
    /// How long a machine may take to answer its first request, and to show that it still answers when its name connects again. Default 3
    /// seconds.
    pub answer_timeout: Duration,
    /// How long requests wait for a tunnel that broke. Default 15 seconds.
    pub return_timeout: Duration,
}

impl Default for TunnelOptions {
    fn default() -> Self {
        Self {
            tunnels_max: 1_024,
            per_user_max: 64,
            requests_max: 64,
            keep_alive: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(3),
            return_timeout: Duration::from_secs(15),
        }
    }
}

impl TunnelOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most tunnels at once, in all and of one user.
    #[must_use]
    pub fn with_tunnels_max(mut self, tunnels: usize, per_user: usize) -> Self {
        (self.tunnels_max, self.per_user_max) = (tunnels, per_user);
        self
    }

    /// Sets the most concurrent requests through one tunnel; 0 counts as 1.
    #[must_use]
    pub fn with_requests_max(mut self, requests: usize) -> Self {
        self.requests_max = requests.max(1);
        self
    }

    /// Sets how often a machine is pinged, and how long its reply may take.
    #[must_use]
    pub fn with_keep_alive(mut self, keep_alive: Duration) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// Sets how long a machine may take to show that it answers.
    #[must_use]
    pub fn with_answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Sets how long requests wait for a tunnel that broke.
    #[must_use]
    pub fn with_return_timeout(mut self, timeout: Duration) -> Self {
        self.return_timeout = timeout;
        self
    }
}

/// Counts of a registry, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TunnelCounts {
    /// Tunnels that are open.
    pub open: usize,
    /// Tunnels opened so far.
    pub opened: u64,
    /// Connections refused so far: over a limit, under a taken name, or without a valid answer.
    pub refused: u64,
    /// Requests sent so far.
    pub requests: u64,
}

/// Why a tunnel ends from this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelEnd {
    /// The server stops: running requests may finish, within bounds.
    Stopping,
    /// The machine may no longer connect, or it cannot be checked whether it may: running requests fail.
    Revoked,
}

/// The tunnels of this process. Clones share them.
#[derive(Clone, Default)]
pub struct Tunnels {
    shared: Arc<Registry>,
}

#[derive(Debug)]
struct Registry {
    options: TunnelOptions,
    slots: Slots,
    places: Arc<Semaphore>,
    users: Arc<Shares<User>>,
    opened: AtomicU64,
    refused: AtomicU64,
    requests: AtomicU64,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new(TunnelOptions::default())
    }
}

impl Registry {
    fn new(options: TunnelOptions) -> Self {
        let places = Arc::new(Semaphore::new(options.tunnels_max));
        let (slots, users) = (Slots::default(), Arc::default());
        Self { options, slots, places, users, opened: AtomicU64::new(0), refused: AtomicU64::new(0), requests: AtomicU64::new(0) }
    }
}

/// What counts against the limits while a tunnel exists.
#[derive(Debug)]
struct Place {
    _share: Share<User>,
    _permit: OwnedSemaphorePermit,
}

impl Tunnels {
    /// Makes a registry without tunnels.
    pub fn new(options: TunnelOptions) -> Self {
        Self { shared: Arc::new(Registry::new(options)) }
    }

    /// Returns the limits.
    pub fn options(&self) -> &TunnelOptions {
        &self.shared.options
    }

    /// Returns the transport to a machine of a tenant, whether or not it is connected now. Machines of other tenants are never reached.
    pub fn transport(&self, tenant: Option<&str>, name: &str) -> Arc<dyn Transport> {
        let key = Key { tenant: tenant.map(str::to_owned), name: name.to_owned() };
        Arc::new(TunnelTransport { shared: self.shared.clone(), key })
    }

    /// Returns whether a machine of a tenant is connected.
    pub fn is_connected(&self, tenant: Option<&str>, name: &str) -> bool {
        self.shared.slots.line(&Key { tenant: tenant.map(str::to_owned), name: name.to_owned() }).is_some()
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> TunnelCounts {
        let Registry { slots, opened, refused, requests, .. } = &*self.shared;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TunnelCounts { open: slots.count_open(), opened: read(opened), refused: read(refused), requests: read(requests) }
    }

    /// Reserves a name for a machine that is about to connect. If the name is connected, asks that machine for an answer first.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid name, [`Conflict`](ErrorKind::Conflict) if another connection under the
    /// name answers or is being opened, [`Unavailable`](ErrorKind::Unavailable) beyond a limit.
    pub async fn reserve(&self, tenant: Option<String>, user: Option<String>, name: &str) -> Result<Reservation> {
        check_peer_name(name)?;
        let key = Key { tenant: tenant.clone(), name: name.to_owned() };
        let reserved = self.reserve_key(key, (tenant, user)).await;
        if reserved.is_err() {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        reserved
    }

    async fn reserve_key(&self, key: Key, user: User) -> Result<Reservation> {
        let Registry { options, slots, places, users, .. } = &*self.shared;
        if let Some(line) = slots.line(&key) {
            if line.answers(options.answer_timeout).await {
                let message = format!(
                    "`{}` is connected already, and that connection answers; stop the other program that dials, or use another name",
                    key.name
                );
                return Err(Error::new(ErrorKind::Conflict, message).without_effect());
            }
            tracing::info!(name = key.name, "replacing a tunnel that does not answer");
            slots.end(&key, &line);
        }
        let full = |whose: &str| {
            let message = format!("{whose} has as many tunnels as allowed; end one, or try again later");
            Error::new(ErrorKind::Unavailable, message).without_effect()
        };
        let permit = places.clone().try_acquire_owned().map_err(|_| full("this server"))?;
        let share = users.take(user, options.per_user_max).ok_or_else(|| full("this user"))?;
        let Some(number) = slots.reserve(&key, options.return_timeout) else {
            let message = format!("another connection under the name `{}` is being opened; try again in a second", key.name);
            return Err(Error::new(ErrorKind::Conflict, message).without_effect());
        };
        let place = Place { _share: share, _permit: permit };
        Ok(Reservation { shared: self.shared.clone(), key, number, place: Some(place) })
    }
}

impl fmt::Debug for Tunnels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnels").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// Registries are equal if they are the same one.
impl PartialEq for Tunnels {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// A name that is reserved for a connection, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Registry>,
    key: Key,
    number: u64,
    place: Option<Place>,
}

impl Reservation {
    /// Runs the tunnel over a stream until the stream breaks or `until` completes.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the machine does not answer as an HTTP/2 server in time.
    pub async fn run(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        until: impl Future<Output = TunnelEnd>,
    ) -> Result<()> {
        let options = &self.shared.options;
        let opened = tokio::time::timeout(options.answer_timeout, Line::open(stream, options)).await;
        let opened = opened.ok().flatten();
        let Some((line, mut connection)) = opened else { return Err(self.refused()) };
        let answers = tokio::select! {
            answers = line.answers(options.answer_timeout) => answers,
            () = &mut connection => false,
        };
        let place = self.place.take().expect("a reservation runs once");
        if !answers || !self.shared.slots.open(&self.key, self.number, line.clone(), place) {
            let refused = self.refused();
            line.cut();
            return Err(refused);
        }
        self.shared.opened.fetch_add(1, Ordering::Relaxed);
        tracing::info!(tenant = self.key.tenant, name = self.key.name, "a machine connected");
        tokio::select! {
            // A machine that stops accepts no further requests and answers the running ones. A connection that broke has none.
            () = &mut connection => {
                self.shared.slots.lost(&self.key, self.number);
                line.close(CLOSE_TIMEOUT).await;
            }
            () = line.replaced() => {}
            end = until => {
                self.shared.slots.lost(&self.key, self.number);
                if end == TunnelEnd::Stopping {
                    tokio::join!(line.close(CLOSE_TIMEOUT), async { tokio::time::timeout(CLOSE_TIMEOUT, &mut connection).await.ok() });
                }
            }
        }
        line.cut();
        tracing::info!(tenant = self.key.tenant, name = self.key.name, "a machine disconnected");
        Ok(())
    }

    /// Frees the name, before the machine can see that its connection ends and dial again.
    fn refused(&self) -> Error {
        self.shared.slots.lost(&self.key, self.number);
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        Error::new(ErrorKind::Unavailable, format!("`{}` did not answer over its connection; is it a treehold server?", self.key.name))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.slots.lost(&self.key, self.number);
    }
}

/// Sends requests through the tunnel of one machine.
#[derive(Debug)]
struct TunnelTransport {
    shared: Arc<Registry>,
    key: Key,
}

impl TunnelTransport {
    fn absent(&self) -> TransportError {
        let name = &self.key.name;
        let message = format!(
            "`{name}` is not connected to this server; run `treehold serve --dial URL` on it, with a token made by `treehold token create \
             --connect-as {name}`"
        );
        TransportError::new(Failure::Absent).with_message(message)
    }
}

#[async_trait]
impl Transport for TunnelTransport {
    async fn send(&self, request: TransportRequest) -> Result<TransportResponse, TransportError> {
        let Registry { options, slots, requests, .. } = &*self.shared;
        let end = Instant::now() + request.timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = slots.wait(&self.key, options.return_timeout, left).await.ok_or_else(|| self.absent())?;
            requests.fetch_add(1, Ordering::Relaxed);
            match line.send(request.clone(), options.return_timeout).await {
                // The tunnel ended before the request was sent, so the next one may have it.
                Err(error) if error.failure() == Failure::Unsent && line.is_closed() => slots.close(&self.key, &line),
                sent => return sent,
            }
        }
    }
}
