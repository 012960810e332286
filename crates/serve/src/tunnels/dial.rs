//! Dials other servers, and answers what they ask over those connections.

use super::merged::Merged;
use crate::caller::Dialled;
use crate::rights::Rights;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use axum::{Extension, Router, middleware};
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::gauge::Gauge;
use std::error::Error as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::check_peer_name;
use treehold_remote::{RemoteBackend, RemoteOptions, dial};

/// The pause before dialling again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// The pause after a refusal that a person must mend, such as a revoked token.
const REFUSED_BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// How long a connection must last for the pauses to start over.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// How often the other server is pinged, and how long its reply may take.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The most concurrent requests through one connection. The other server sends fewer, and needs room to ask whether this one answers.
const REQUESTS_MAX: u32 = 128;

/// The most bytes of one answer that are buffered.
const SEND_BYTES_MAX: usize = 256 << 10;

/// How many streams that the other server resets are tolerated at a time.
const RESETS_MAX: usize = 64;

/// A server to dial, which then asks this one over the connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Dial {
    /// The URL of the server: `https://HOST:PORT`.
    pub url: String,
    /// The name to connect as. Default that of the token.
    pub name: Option<String>,
    /// What requests without a token may do, as the caller of the server's own scope. By default, they need a token of this server.
    pub rights: Option<Rights>,
    /// The token for the other server, the time limits, and whether `http` to another host is allowed.
    pub options: RemoteOptions,
}

impl Dial {
    /// Dials a server by its URL.
    pub fn new(url: impl Into<String>, options: RemoteOptions) -> Self {
        Self { url: url.into(), name: None, rights: None, options }
    }

    /// Sets the name to connect as.
    #[must_use]
    pub fn with_name(mut self, name: Option<String>) -> Self {
        self.name = name;
        self
    }

    /// Sets what requests without a token may do.
    #[must_use]
    pub fn with_rights(mut self, rights: Option<Rights>) -> Self {
        self.rights = rights;
        self
    }

    /// Checks the URL and the name, and that requests through the connection are authenticated.
    pub(crate) fn check(&self, requires_token: bool) -> Result<()> {
        RemoteBackend::check_url(&self.url, self.options.plain_http)?;
        self.name.as_deref().map(check_peer_name).transpose()?;
        if self.rights.is_some() || requires_token {
            return Ok(());
        }
        let message = format!(
            "requests through the connection to `{}` would need no token; require one (`--tokens`, `--token-file`), or set what they may do \
             without one (`--dial-access`, or `access` in `[serve.dial]`)",
            self.url
        );
        Err(Error::invalid_argument(message))
    }
}

/// What all connections to other servers need.
#[derive(Clone)]
pub(crate) struct Dialling {
    pub(crate) router: Router,
    /// How long running requests may take once the server is stopping.
    pub(crate) stop_timeout: Duration,
    /// Counts the connections that are open.
    pub(crate) open: Gauge,
}

impl Dialling {
    /// Dials until the server stops, again after every failure.
    pub(crate) async fn keep(self, server: Dial, mut stopping: watch::Receiver<bool>) {
        let through = Extension(Dialled(server.rights.clone().map(Arc::new)));
        // No client of these requests has an address.
        let peer = Extension(ConnectInfo(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))));
        let merged = middleware::map_response(async |response: Response| response.map(|body| Body::new(Merged::new(body))));
        let router = self.router.clone().layer(merged).layer(through).layer(peer);
        let (mut attempts, mut last_message) = (0, String::new());
        while !*stopping.borrow() {
            let dialled = tokio::select! {
                dialled = dial(&server.url, server.name.as_deref(), server.options.clone()) => dialled,
                _ = stopping.wait_for(|is_stopping| *is_stopping) => return,
            };
            let backoff = match dialled {
                Ok(stream) => {
                    tracing::info!(url = server.url, "connected; requests of that server are answered");
                    last_message.clear();
                    let begun = Instant::now();
                    self.open.inc();
                    self.answer(stream, router.clone(), &mut stopping).await;
                    self.open.dec();
                    if *stopping.borrow() {
                        return;
                    }
                    tracing::warn!(url = server.url, "the connection ended; dialling again");
                    if begun.elapsed() >= SETTLED_AFTER {
                        attempts = 0;
                    }
                    BACKOFF
                }
                Err(error) => {
                    if error.message() != last_message {
                        tracing::warn!(url = server.url, %error, cause = ?error.source(), "cannot connect; trying again until it works");
                        error.message().clone_into(&mut last_message);
                    }
                    match error.kind() {
                        ErrorKind::Unavailable | ErrorKind::Deadline => BACKOFF,
                        _ => REFUSED_BACKOFF,
                    }
                }
            };
            tokio::select! {
                () = backoff.wait(attempts) => {}
                _ = stopping.wait_for(|is_stopping| *is_stopping) => return,
            }
            attempts = attempts.saturating_add(1);
        }
    }

    /// Answers requests over a stream until it breaks or the server stops.
    async fn answer(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        router: Router,
        stopping: &mut watch::Receiver<bool>,
    ) {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(REQUESTS_MAX)
            .max_header_list_size(crate::HEAD_BYTES_MAX as u32)
            .max_send_buf_size(SEND_BYTES_MAX)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .max_local_error_reset_streams(RESETS_MAX)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
        let ended = tokio::select! {
            ended = &mut connection => Some(ended),
            _ = stopping.wait_for(|is_stopping| *is_stopping) => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::time::timeout(self.stop_timeout, connection).await.unwrap_or(Ok(()))
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection to another server broke");
        }
    }
}
