//! The tree over HTTP: one address, and at each path the door that stands there.
//!
//! - `/mcp` is the Model Context Protocol ([`mcp`](crate::mcp)); `/mcp/t/{thread}` is the same about one thread alone, as is a request with
//!   the header [`THREAD_HEADER`].
//! - `/livez` says that the process answers.
//!
//! Whoever reaches the address may read and write, so without a token only the loopback device is served. A token is compared
//! without telling by the time it takes how much of it was right.

mod caller;

use crate::error::{Error, ErrorKind, Result};
use crate::mcp::{HttpLimits, McpServer};
use crate::scope::Scope;
use axum::Router;
use axum::middleware;
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

pub use caller::THREAD_HEADER;

/// How long requests that run are waited for when the server is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a tree is served, and to whom.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServeOptions {
    /// The address to listen at. Port 0 takes any that is free.
    pub address: SocketAddr,
    /// Who calls when a request says no more.
    pub scope: Scope,
    /// What every request has to bring as `Authorization: Bearer`; none by default.
    pub token: Option<Token>,
    /// Whose requests are answered, and how large they may be.
    pub limits: HttpLimits,
}

impl ServeOptions {
    /// Serves one caller at an address.
    pub fn new(address: SocketAddr, scope: Scope) -> Self {
        Self { address, scope, token: None, limits: HttpLimits::default() }
    }

    /// Sets what every request has to bring.
    #[must_use]
    pub fn with_token(mut self, token: Option<Token>) -> Self {
        self.token = token;
        self
    }

    /// Sets whose requests are answered, and how large they may be.
    #[must_use]
    pub fn with_limits(mut self, limits: HttpLimits) -> Self {
        self.limits = limits;
        self
    }
}

/// A secret that a request has to bring. It is kept as its hash, and printed nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(blake3::Hash);

impl Token {
    /// The fewest bytes of a token: fewer are guessed.
    pub const BYTES_MIN: usize = 16;

    /// Takes a token, without the line break that a file ends with.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for one that is too short, or is not made of visible ASCII.
    pub fn new(text: &str) -> Result<Self> {
        let text = text.trim_end_matches(['\n', '\r']);
        if text.len() < Self::BYTES_MIN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = format!("a token has at least {} characters, all of them visible ASCII", Self::BYTES_MIN);
            return Err(Error::invalid_argument(message));
        }
        Ok(Self(blake3::hash(text.as_bytes())))
    }

    /// Tells whether a text is the token. Hashes are compared in constant time.
    fn is(&self, text: &[u8]) -> bool {
        self.0 == blake3::hash(text)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A server that listens, and answers once it is run.
#[derive(Debug)]
pub struct HttpServer {
    listener: TcpListener,
    mcp: McpServer,
    options: ServeOptions,
}

impl HttpServer {
    /// Listens at the address of the options.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an address that others reach, without a token;
    /// [`Unavailable`](ErrorKind::Unavailable) for one that cannot be listened at.
    pub async fn bind(mcp: McpServer, options: ServeOptions) -> Result<Self> {
        let address = options.address;
        if options.token.is_none() && !address.ip().is_loopback() {
            let message = format!("{address} is reached by others, and there is no token; set one, or listen at 127.0.0.1");
            return Err(Error::invalid_argument(message));
        }
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| Error::new(ErrorKind::Unavailable, format!("{address} cannot be listened at: {error}")).with_source(error))?;
        Ok(Self { listener, mcp, options })
    }

    /// Returns the address it listens at.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the system does not tell.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener
            .local_addr()
            .map_err(|error| Error::new(ErrorKind::Unavailable, format!("the address is not known: {error}")).with_source(error))
    }

    /// Answers requests until `stop` ends. Those that run then are finished, for 10 seconds at most; streams are closed, threads saved.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the system takes the listener away, and those of saving threads.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let port = self.address()?.port();
        let Self { listener, mcp, mut options } = self;
        // A page of this server itself is of its own origin, whichever name it was asked by.
        options.limits.origins.extend(["127.0.0.1", "localhost", "[::1]"].map(|host| format!("http://{host}:{port}")));
        let cors = options.limits.cors();
        let (service, end_streams) = mcp.http_service(options.limits);
        let doorkeeper = Arc::new(caller::Doorkeeper::new(options.scope, options.token));
        let router = Router::new()
            .route_service("/mcp", service.clone())
            .route_service("/mcp/t/{thread}", service)
            .route_layer(middleware::from_fn_with_state(doorkeeper, caller::admit))
            .route("/livez", get(async || "ok\n"))
            .layer(cors);
        let (stopping, stopped) = tokio::sync::oneshot::channel();
        let served = axum::serve(listener, router).with_graceful_shutdown(async move {
            stop.await;
            end_streams();
            // Nobody waits for it when the server has failed.
            let _ = stopping.send(());
        });
        let late = async {
            let _ = stopped.await;
            tokio::time::sleep(STOP_TIMEOUT).await;
        };
        let served = tokio::select! {
            served = served.into_future() => served,
            () = late => Ok(()),
        };
        let served = served.map_err(|error| Error::new(ErrorKind::Unavailable, format!("the server stopped: {error}")).with_source(error));
        mcp.close().await.and(served)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::McpOptions;
    use crate::workspace::Workspace;

    #[test]
    fn a_token_is_compared_whole_and_never_printed() {
        let token = Token::new("0123456789abcdef\n").expect("long enough");
        assert!(token.is(b"0123456789abcdef"));
        assert!(!token.is(b"0123456789abcdeg") && !token.is(b"") && !token.is(b"0123456789abcdef\n"));
        assert_eq!(format!("{token:?}"), "Token(..)");
        for text in ["short", "0123456789abcde f", "0123456789abcdeü"] {
            assert_eq!(Token::new(text).expect_err("no token").kind(), ErrorKind::InvalidArgument);
        }
    }

    #[tokio::test]
    async fn what_others_reach_needs_a_token() {
        let mcp = || McpServer::new(Workspace::builder().build(), McpOptions::default());
        let open = ServeOptions::new(([0, 0, 0, 0], 0).into(), Scope::new());
        let refused = HttpServer::bind(mcp(), open.clone()).await.expect_err("open to all");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let closed = open.with_token(Token::new("0123456789abcdef").ok());
        HttpServer::bind(mcp(), closed).await.expect("a token is asked for");
    }
}
