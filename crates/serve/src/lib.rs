//! The tree over HTTP: one address with several interfaces.
//!
//! - `/v1` is the API for any language: files as resources, searches, threads and items. `/openapi.json` describes it.
//! - `/mcp` is the Model Context Protocol ([`mcp`](treehold_mcp)). `/mcp/t/{thread}` is the same for one thread, as is a request with the
//!   header [`THREAD_HEADER`].
//! - `/livez` reports that the process answers, `/readyz` that its store accepts a durable write. `/metrics` serves metrics, `/version`
//!   names the program.
//!
//! Requests without a token are admitted only if the server has none, and then it listens only on the loopback interface. A token
//! ([`TokenBook`]) determines the caller and their [`Rights`]. Tenant and user always come from the token, whatever the request says.
//!
//! Where to start reading: `caller.rs` authenticates callers, `doors.rs` restricts the tree to their rights, and `api/routes.rs` lists all
//! routes.

mod answer;
mod api;
mod caller;
mod connection;
mod doors;
mod etag;
mod large;
mod metrics;
mod observed;
mod problem;
mod rights;
mod served_traces;
mod tls;
mod token;
mod tunnels;

use api::{Api, ApiLimits};
use axum::middleware;
use axum_server::Handle;
use caller::Doorkeeper;
use connection::{Connections, Guard};
use doors::Doors;
use hyper_util::rt::TokioTimer;
use large::LargeAnswers;
use metrics::{Metrics, Swept};
use observed::Observed;
use served_traces::ServedTraces;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use treehold_agent::retention::{Retention, RetentionSweeper};
use treehold_agent::session::ThreadDurability;
use treehold_agent::workspace::Workspace;
use treehold_agent_state::{AgentStates, AgentStatesSweeper, SessionCompactor};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;
use treehold_core::work::Owner;
use treehold_mcp::{Consents, HttpLimits, McpOptions};
use treehold_remote::Tunnels;
use treehold_sessions::{Sessions, SessionsSweeper};
use treehold_store::{MemoryStore, Namespace, Store, SweeperCounts};
use treehold_traces::{OrganizationTraces, Runs, TraceRunner, Traces, TracesSweeper};
use treehold_tree::layer::Layered;
use tunnels::{Dialling, ServedTunnels};

pub use connection::ConnectionLimits;
pub use rights::{Access, ActsFor, Rights};
pub use tls::TlsFiles;
pub use token::{TOKENS_NAMESPACE, Token, TokenBook, TokenRecord};
pub use treehold_core::wire::THREAD_HEADER;
pub use tunnels::Dial;

/// How long shutdown waits for running requests.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a stopping server waits until its round of retention has given its claim back. Requests and streams end meanwhile.
const RETENTION_STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// How often rows of deleted and expired sessions, of deleted traces, and of interrupted imports, are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How often an HTTP/2 peer is pinged, and how long its reply may take.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Where a tree is served, and to whom.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServeOptions {
    /// The address to listen on. Port 0 selects a free port.
    pub address: SocketAddr,
    /// The scope of requests that specify no other.
    pub scope: Scope,
    /// A secret that grants full access as the caller of `scope`. Default none.
    pub token: Option<Token>,
    /// Whether to accept the tokens of the store, and require one of every request. Default false.
    pub tokens: bool,
    /// The store for tokens, items and idempotent responses. Defaults to process memory.
    pub store: Option<Arc<dyn Store>>,
    /// The sessions of agent hosts. Defaults to those of `store`.
    pub sessions: Option<Sessions>,
    /// The states of agents. Defaults to those of `store`.
    pub states: Option<AgentStates>,
    /// The traces of agents, those of other places included if it reaches any. Defaults to those of `store`.
    pub traces: Option<OrganizationTraces>,
    /// What runs agents on traces; none by default, so that requests to run are refused.
    pub trace_runs: Option<Runs>,
    /// What compacts a session for an operator; none by default, so that requests to compact are refused.
    pub compactor: Option<Arc<dyn SessionCompactor>>,
    /// What removes what a policy does not keep, and the pause between its rounds; none by default, so that everything is kept.
    pub retention: Option<(Retention, Duration)>,
    /// What the sweepers of the stores have done, for the metrics.
    pub swept: SweeperCounts,
    /// The path prefix of the routes that the inspector of agent hosts expects; none by default. It is empty, or starts with `/`.
    pub host_routes: Option<String>,
    /// The machines that connect to this server; none by default, so that they are refused.
    pub tunnels: Option<Tunnels>,
    /// The servers to dial, so that they can send requests here.
    pub dials: Vec<Dial>,
    /// Whether to listen on `address`. A server that does not is reached only by the servers that it dials. Default true.
    pub listens: bool,
    /// The certificate to serve TLS with; none by default.
    pub tls: Option<TlsFiles>,
    /// Which hosts and origins may send requests, and how large request bodies may be.
    pub limits: HttpLimits,
    /// The largest request body that is written to a file, in bytes; `limits` bounds all others. Default 64 MiB.
    pub upload_bytes_max: usize,
    /// The most bytes of request bodies in memory at once; each counts until its request ends. Default 256 MiB.
    pub bodies_bytes_max: usize,
    /// The most bytes of request bodies spooled to disk until they are complete. Default 4 GiB.
    pub spool_bytes_max: usize,
    /// The most concurrent requests; further ones are refused. Default 1,024.
    pub requests_max: usize,
    /// The most concurrent requests of one user; further ones are refused. Default 256.
    pub requests_per_user_max: usize,
    /// Limits on connections: how many may be open, and how long each may keep the server waiting.
    pub connections: ConnectionLimits,
    /// The most event streams open at once; further ones are refused. Default 1,024.
    pub streams_max: usize,
    /// How long an API request may take, and how long the lookup of a token may take, also for a stream that is open. Default one minute.
    pub deadline: Duration,
    /// How long the response to a request with an `Idempotency-Key` is kept for repetitions, at least a minute. Default a day.
    pub idempotency_time: Duration,
}

impl ServeOptions {
    /// Serves one caller at an address.
    pub fn new(address: SocketAddr, scope: Scope) -> Self {
        Self {
            address,
            scope,
            token: None,
            tokens: false,
            store: None,
            sessions: None,
            states: None,
            traces: None,
            trace_runs: None,
            compactor: None,
            retention: None,
            swept: SweeperCounts::new(),
            host_routes: None,
            tunnels: None,
            dials: Vec::new(),
            listens: true,
            tls: None,
            limits: HttpLimits::default(),
            upload_bytes_max: 64 << 20,
            bodies_bytes_max: 256 << 20,
            spool_bytes_max: 4 << 30,
            requests_max: 1_024,
            requests_per_user_max: 256,
            connections: ConnectionLimits::default(),
            streams_max: 1_024,
            deadline: Duration::from_secs(60),
            idempotency_time: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// Sets a secret that grants full access.
    #[must_use]
    pub fn with_token(mut self, token: Option<Token>) -> Self {
        self.token = token;
        self
    }

    /// Sets whether to accept the tokens of the store, and require one of every request.
    #[must_use]
    pub fn with_tokens(mut self, tokens: bool) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets the store for tokens, items and idempotent responses.
    #[must_use]
    pub fn with_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Sets the sessions of agent hosts.
    #[must_use]
    pub fn with_sessions(mut self, sessions: Sessions) -> Self {
        self.sessions = Some(sessions);
        self
    }

    /// Sets the states of agents.
    #[must_use]
    pub fn with_states(mut self, states: AgentStates) -> Self {
        self.states = Some(states);
        self
    }

    /// Sets the traces of agents, each user's own.
    #[must_use]
    pub fn with_traces(self, traces: Traces) -> Self {
        let members = self.scope.tenant.clone().unwrap_or_default();
        self.with_organization_traces(OrganizationTraces::new(traces, members))
    }

    /// Sets the traces of agents, together with those of other places. Its members name those by qualified ids, and reach them with the
    /// keys of this server; the registry of peers says which places there are.
    #[must_use]
    pub fn with_organization_traces(mut self, traces: OrganizationTraces) -> Self {
        self.traces = Some(traces);
        self
    }

    /// Runs agents on traces, with the default limits.
    #[must_use]
    pub fn with_trace_runner(self, runner: Arc<dyn TraceRunner>) -> Self {
        self.with_trace_runs(Runs::new(runner))
    }

    /// Sets what runs agents on traces. The server stops the runs when it stops.
    #[must_use]
    pub fn with_trace_runs(mut self, runs: Runs) -> Self {
        self.trace_runs = Some(runs);
        self
    }

    /// Sets what compacts a session for an operator.
    #[must_use]
    pub fn with_compactor(mut self, compactor: Arc<dyn SessionCompactor>) -> Self {
        self.compactor = Some(compactor);
        self
    }

    /// Removes what a policy does not keep, in rounds with a pause between them. Requests have priority.
    #[must_use]
    pub fn with_retention(mut self, retention: Retention, every: Duration) -> Self {
        self.retention = Some((retention, every));
        self
    }

    /// Reports how many expired rows were removed from the stores and how many pages were given back, as their sweepers count them.
    #[must_use]
    pub fn with_swept(mut self, swept: SweeperCounts) -> Self {
        self.swept = swept;
        self
    }

    /// Serves the routes that the inspector of agent hosts expects, such as `/__inspector/sessions` and `/ready`, beneath a prefix.
    #[must_use]
    pub fn with_host_routes(mut self, prefix: Option<String>) -> Self {
        self.host_routes = prefix;
        self
    }

    /// Accepts machines that connect, and keeps their connections in a registry.
    #[must_use]
    pub fn with_tunnels(mut self, tunnels: Tunnels) -> Self {
        self.tunnels = Some(tunnels);
        self
    }

    /// Sets the servers to dial, so that they can send requests here.
    #[must_use]
    pub fn with_dials(mut self, dials: Vec<Dial>) -> Self {
        self.dials = dials;
        self
    }

    /// Sets whether to listen on the address.
    #[must_use]
    pub fn with_listens(mut self, listens: bool) -> Self {
        self.listens = listens;
        self
    }

    /// Sets the certificate to serve TLS with.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<TlsFiles>) -> Self {
        self.tls = tls;
        self
    }

    /// Sets which hosts and origins may send requests, and how large request bodies may be.
    #[must_use]
    pub fn with_limits(mut self, limits: HttpLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the largest request body that is written to a file, in bytes.
    #[must_use]
    pub fn with_upload_bytes_max(mut self, bytes: usize) -> Self {
        self.upload_bytes_max = bytes;
        self
    }

    /// Sets the most bytes of request bodies spooled to disk until they are complete.
    #[must_use]
    pub fn with_spool_bytes_max(mut self, bytes: usize) -> Self {
        self.spool_bytes_max = bytes;
        self
    }

    /// Sets the most bytes of request bodies in memory at once.
    #[must_use]
    pub fn with_bodies_bytes_max(mut self, bytes: usize) -> Self {
        self.bodies_bytes_max = bytes;
        self
    }

    /// Sets the most concurrent requests.
    #[must_use]
    pub fn with_requests_max(mut self, requests: usize) -> Self {
        self.requests_max = requests;
        self
    }

    /// Sets the most concurrent requests of one user.
    #[must_use]
    pub fn with_requests_per_user_max(mut self, requests: usize) -> Self {
        self.requests_per_user_max = requests;
        self
    }

    /// Sets the limits on connections.
    #[must_use]
    pub fn with_connections(mut self, limits: ConnectionLimits) -> Self {
        self.connections = limits;
        self
    }

    /// Sets the most event streams open at once.
    #[must_use]
    pub fn with_streams_max(mut self, streams: usize) -> Self {
        self.streams_max = streams;
        self
    }

    /// Sets how long the response to a request with an `Idempotency-Key` is kept, at least a minute: the mark of a request that runs is
    /// renewed more often.
    #[must_use]
    pub fn with_idempotency_time(mut self, time: Duration) -> Self {
        self.idempotency_time = time.max(Duration::from_secs(60));
        self
    }

    /// Sets how long an API request and the lookup of a token may take.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// A server that is listening; [`run`](Self::run) answers requests.
#[derive(Debug)]
pub struct HttpServer {
    listener: Option<TcpListener>,
    workspace: Workspace,
    mcp: McpOptions,
    options: ServeOptions,
}

impl HttpServer {
    /// Listens on the address of the options.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an address that other hosts can reach, without a token, for a prefix of host
    /// routes that is no path or is taken, for a server to dial whose requests would need no token, for options that neither listen nor
    /// dial, and for threads that are saved only at the end ([`ThreadDurability::Exit`]) in a store that other processes share;
    /// [`Unavailable`](ErrorKind::Unavailable) if listening on the address fails.
    pub async fn bind(workspace: Workspace, mcp: McpOptions, options: ServeOptions) -> Result<Self> {
        let address = options.address;
        if options.listens && options.token.is_none() && !options.tokens && !address.ip().is_loopback() {
            let message = format!("{address} is reachable from other machines, and no token is set; set one, or listen on 127.0.0.1");
            return Err(Error::invalid_argument(message));
        }
        if let Some(prefix) = &options.host_routes {
            check_prefix(prefix)?;
        }
        let requires_token = options.token.is_some() || options.tokens;
        options.dials.iter().try_for_each(|dial| dial.check(requires_token))?;
        if !options.listens && options.dials.is_empty() {
            return Err(Error::invalid_argument("a server that does not listen is reached by nobody; name a server to dial"));
        }
        let is_shared = options.store.as_ref().is_some_and(|store| store.capabilities().shared);
        if is_shared && workspace.checkpointer().is_some() && workspace.durability() == ThreadDurability::Exit {
            let message = "threads are saved at the end (`durability = \"exit\"`), so other servers of this store would not see them, and they \
                           would not outlive this one; serve with `step` or `sync`";
            return Err(Error::invalid_argument(message));
        }
        let failed =
            |error: std::io::Error| Error::new(ErrorKind::Unavailable, format!("cannot listen on {address}: {error}")).with_source(error);
        let listener = options.listens.then(|| TcpListener::bind(address)).transpose().map_err(failed)?;
        listener.iter().try_for_each(|listener| listener.set_nonblocking(true)).map_err(failed)?;
        Ok(Self { listener, workspace, mcp, options })
    }

    /// Returns the address that the server listens on.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the system does not report it, [`Unsupported`](ErrorKind::Unsupported) for a server that
    /// does not listen.
    pub fn address(&self) -> Result<SocketAddr> {
        let listener = self.listener.as_ref().ok_or_else(|| Error::unsupported("this server does not listen, so it has no address"))?;
        listener
            .local_addr()
            .map_err(|error| Error::new(ErrorKind::Unavailable, format!("the listening address is unknown: {error}")).with_source(error))
    }

    /// Answers requests until `stop` completes. Then running requests get up to 10 seconds to finish, streams are closed, and threads are
    /// saved.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the listener fails, [`InvalidArgument`](ErrorKind::InvalidArgument) for an unusable
    /// certificate, and errors of saving threads.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let address = self.listener.is_some().then(|| self.address()).transpose()?;
        let Self { listener, workspace, mcp, mut options } = self;
        let tls = options.tls.as_ref().map(TlsFiles::config).transpose()?;
        // Pages that this server serves are same-origin under any of its names.
        let scheme = if tls.is_some() { "https" } else { "http" };
        if let Some(address) = address {
            let port = address.port();
            options.limits.origins.extend(["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{scheme}://{host}:{port}")));
        }
        let limits = ApiLimits {
            body_bytes_max: options.limits.body_bytes_max,
            upload_bytes_max: options.upload_bytes_max,
            bodies_bytes_max: options.bodies_bytes_max,
            spool_bytes_max: options.spool_bytes_max,
            requests_max: options.requests_max,
            requests_per_user_max: options.requests_per_user_max,
            body_timeout: options.connections.body_timeout,
            body_bytes_per_second_min: options.connections.body_bytes_per_second_min,
            streams_max: options.streams_max,
            deadline: options.deadline,
            idempotency_time: options.idempotency_time,
            http: options.limits.clone(),
            host_routes: options.host_routes.clone(),
        };
        let store = options.store.clone().unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let book = options.tokens.then(|| TokenBook::new(store.clone()));
        let is_open = options.token.is_none() && book.is_none();
        let mut mcp = mcp;
        mcp.consents = match Consents::shared(store.clone(), Namespace::new(TOKENS_NAMESPACE.into_iter().chain(["questions"]))?).await {
            Ok(consents) => Some(Arc::new(consents)),
            Err(error) => {
                tracing::warn!(%error, "only this server will accept the replies to the questions that it asks people");
                None
            }
        };
        let swept = Swept { stores: options.swept.clone(), ..Swept::default() };
        let metrics = Arc::new(Metrics::new(swept.clone()));
        let large = Arc::new(LargeAnswers::default());
        let (counted, slots, deadline) = (metrics.clone(), large.clone(), options.deadline);
        let workspace = workspace.with_layer(move |tree, scope| {
            let observed = Observed { metrics: counted.clone(), large: slots.clone(), owner: Owner::from(scope), deadline };
            Arc::new(Layered::new(observed, tree))
        });
        let doors = Doors::new(workspace.clone(), mcp, options.limits);
        let doorkeeper = Arc::new(Doorkeeper::new(options.scope, options.token, book, doors, is_open, options.deadline));
        let sessions = options.sessions.clone().unwrap_or_else(|| Sessions::new(store.clone()));
        let sweeper = SessionsSweeper::start_counting(sessions.clone(), SWEEP_EVERY, swept.sessions);
        let states = options.states.clone().unwrap_or_else(|| AgentStates::new(store.clone()));
        let states_sweeper = AgentStatesSweeper::start_counting(states.clone(), SWEEP_EVERY, swept.states);
        let retention = options.retention.clone().filter(|(retention, _)| !retention.policy().keeps_everything());
        let retention = retention.map(|(retention, every)| {
            let (running, counted) = (metrics.running(), metrics.clone());
            // No request sees what it reads removed.
            let retention = retention.with_grace_of_at_least(options.deadline).with_is_busy(move || running.get() > 0);
            RetentionSweeper::start(retention, every, Arc::new(move |round| counted.retention(round)))
        });
        let traces = options.traces.clone();
        let traces = traces.unwrap_or_else(|| OrganizationTraces::new(Traces::new(store.clone()), ""));
        let traces_sweeper = TracesSweeper::start_counting(traces.local().clone(), SWEEP_EVERY, swept.traces);
        let traces = ServedTraces::new(traces, options.trace_runs.clone());
        let tunnels = ServedTunnels::new(options.tunnels.clone());
        let api =
            Arc::new(Api::new(workspace, store, sessions, states, traces, tunnels, options.compactor.clone(), limits, metrics, large));
        let head_timeout = options.connections.head_timeout;
        let connections = Connections::new(options.connections);
        let attend = middleware::from_fn_with_state(connections.clone(), answer::attended);
        let router = api::router(api.clone(), doorkeeper.clone()).layer(attend);

        let dialling = Dialling { router: router.clone(), stop_timeout: STOP_TIMEOUT, open: api.metrics().dialled() };
        let mut dials = JoinSet::new();
        for dial in options.dials {
            dials.spawn(dialling.clone().keep(dial, api.stopping()));
        }

        let handle: Handle<SocketAddr> = Handle::new();
        let (stopping, ending, ended) = (handle.clone(), doorkeeper.clone(), api.clone());
        let stopper = tokio::spawn(async move {
            stop.await;
            ending.doors().end_streams();
            ended.end_streams();
            stopping.graceful_shutdown(Some(STOP_TIMEOUT));
        });
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let failed = |error: std::io::Error| Error::new(ErrorKind::Unavailable, format!("the server stopped: {error}")).with_source(error);
        let mut stopping = api.stopping();
        let served = match (listener, tls) {
            (None, _) => {
                let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
                Ok(())
            }
            (Some(listener), Some(tls)) => {
                let server = axum_server::from_tcp_rustls(listener, tls).map_err(failed)?.handle(handle);
                let mut server = server.map(|acceptor| Guard::new(acceptor.handshake_timeout(head_timeout), connections));
                bound(server.http_builder(), head_timeout);
                server.serve(service).await
            }
            (Some(listener), None) => {
                let server = axum_server::from_tcp(listener).map_err(failed)?.handle(handle);
                let mut server = server.map(|acceptor| Guard::new(acceptor, connections));
                bound(server.http_builder(), head_timeout);
                server.serve(service).await
            }
        };
        stopper.abort();
        // Connections that changed their protocol are no longer among those of the server.
        api.end_streams();
        let retained = async {
            if let Some(retention) = retention {
                retention.stop(RETENTION_STOP_TIMEOUT).await;
            }
        };
        tokio::join!(api.streams_ended(STOP_TIMEOUT), api.stop_runs(STOP_TIMEOUT), api.tunnels().ended(STOP_TIMEOUT), retained);
        // Each gives its running requests as long as the server gives others.
        while dials.join_next().await.is_some() {}
        drop((sweeper, states_sweeper, traces_sweeper));
        doorkeeper.doors().close().await.and(served.map_err(failed))
    }
}

/// Checks the prefix of the host routes.
fn check_prefix(prefix: &str) -> Result<()> {
    let is_plain = |segment: &str| {
        let is_word = segment.chars().all(|character| character.is_ascii_alphanumeric() || "-_.~".contains(character));
        is_word && !matches!(segment, "" | "." | "..")
    };
    let is_taken = ["v1", "mcp"].contains(&prefix.split('/').nth(1).unwrap_or_default());
    if !is_taken && (prefix.is_empty() || prefix.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain))) {
        return Ok(());
    }
    let message = format!(
        "`{}` cannot be the prefix of host routes; use a path such as `/agentrail`, without a slash at its end, or nothing",
        prefix.escape_debug()
    );
    Err(Error::invalid_argument(message))
}

/// Bounds what a connection may cost before its request is complete.
fn bound(builder: &mut hyper_util::server::conn::auto::Builder<hyper_util::rt::TokioExecutor>, head_timeout: Duration) {
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(HEAD_BYTES_MAX.max(8 << 10));
    builder.http2().timer(TokioTimer::new()).max_header_list_size(HEAD_BYTES_MAX as u32).max_concurrent_streams(256);
    // Detect peers that vanished without closing the connection.
    builder.http2().keep_alive_interval(KEEP_ALIVE).keep_alive_timeout(KEEP_ALIVE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_beyond_loopback_requires_a_token() {
        let bind = async |options| HttpServer::bind(Workspace::builder().build(), McpOptions::default(), options).await;
        let open = ServeOptions::new(([0, 0, 0, 0], 0).into(), Scope::new());
        assert_eq!(bind(open.clone()).await.expect_err("open to all").kind(), ErrorKind::InvalidArgument);
        bind(open.clone().with_token(Token::new("0123456789abcdef").ok())).await.expect("a token is required");
        bind(open.with_tokens(true)).await.expect("tokens are required");
    }

    #[tokio::test]
    async fn threads_saved_at_exit_are_refused_on_a_shared_store() {
        let directory = tempfile::tempdir().expect("a directory");
        let store: Arc<dyn Store> = Arc::new(treehold_sqlite::SqliteStore::open(directory.path().join("db")).expect("opened"));
        let options = || ServeOptions::new(([127, 0, 0, 1], 0).into(), Scope::new());
        let bind = async |durability, options| {
            let checkpointer = treehold_tree::checkpoint::StoreCheckpointer::new(store.clone());
            let workspace = Workspace::builder().checkpointer(checkpointer).durability(durability).build();
            HttpServer::bind(workspace, McpOptions::default(), options).await
        };
        let refused = bind(ThreadDurability::Exit, options().with_store(store.clone())).await.expect_err("shared");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        bind(ThreadDurability::Sync, options().with_store(store.clone())).await.expect("saved by each change");
        bind(ThreadDurability::Exit, options()).await.expect("no other process shares an in-memory store");
    }
}
