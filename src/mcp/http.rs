//! The protocol over HTTP: a service that a router of the process puts at a path.
//!
//! Clients of the era of handshakes get a session, whose stream tells of what they subscribed to; those of today none. A request
//! from a web page is refused unless its origin is allowed, and one for a host that is not this one is refused too, as the
//! protocol asks for ([DNS rebinding](https://modelcontextprotocol.io/specification/2026-07-28/basic/transports#security-warning)).

use super::connection::Connection;
use super::{McpCaller, McpServer};
use axum::http::request::Parts;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use std::sync::Arc;

/// The service of one path; any number of paths may share one.
///
/// Who calls is the [`McpCaller`] among the extensions of a request, if there is one.
pub type HttpService = StreamableHttpService<Connection, LocalSessionManager>;

/// Whose requests are answered, and how large they may be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpLimits {
    /// The hosts that a request may name, with or without a port. Default those of the loopback device.
    pub hosts: Vec<String>,
    /// The origins of web pages that may send requests, such as `https://app.example.com:443`. Default none.
    pub origins: Vec<String>,
    /// The most bytes of a request. Default 16 MiB.
    pub body_bytes_max: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        let hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        Self { hosts, origins: Vec::new(), body_bytes_max: 16 << 20 }
    }
}

impl McpServer {
    /// Makes a service for HTTP, and what ends its sessions and streams when it is called.
    pub fn http_service(&self, limits: HttpLimits) -> (HttpService, impl FnOnce() + Send + 'static) {
        let config = StreamableHttpServerConfig::default()
            .with_allowed_hosts(limits.hosts)
            .with_allowed_origins(limits.origins)
            .enforce_origin_validation()
            .with_max_request_body_bytes(limits.body_bytes_max)
            .with_json_response(true);
        let stop = config.cancellation_token.clone();
        let server = self.clone();
        let service = StreamableHttpService::new(move || Ok(server.connection()), Arc::new(LocalSessionManager::default()), config);
        (service, move || stop.cancel())
    }
}

/// Returns who calls, as the router found out.
pub(super) fn caller(context: &RequestContext<RoleServer>) -> Option<McpCaller> {
    context.extensions.get::<Parts>()?.extensions.get::<McpCaller>().cloned()
}
