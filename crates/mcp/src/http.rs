//! The protocol over HTTP: a service that a router of the process mounts at a path.
//!
//! Clients of revisions with the `initialize` handshake get a session, whose stream notifies them of what they subscribed to. Clients of
//! revision 2026-07-28 and later have no sessions. A session belongs to the tenant, user and credential that started it (`sessions.rs`);
//! for anybody else it does not exist. Streams and sessions end when their caller is no longer authorized.
//!
//! As the protocol requires ([DNS rebinding](https://modelcontextprotocol.io/specification/2026-07-28/basic/transports#security-warning)),
//! requests are refused if they name a host that is not allowed, or come from a web page whose origin is not allowed. Requests that repeat
//! a header that is not a list, such as `Host`, are also refused (`single.rs`). [`HttpLimits::cors`] answers the preflight requests of
//! browsers.

use super::long::{self, LongAnswer};
use super::sessions::{Owner, Sessions};
use super::single::check_single;
use super::{McpCaller, McpServer, Standing};
use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any_service};
use futures::StreamExt;
use futures::future::BoxFuture;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::{SessionManager, StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tower_http::cors::{AllowHeaders, AllowOrigin, AllowPrivateNetwork, CorsLayer};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::shares::{Shares, User};
use treehold_core::trace::TraceContext;
use treehold_core::work;

/// How long a browser may cache the response to a preflight request.
const PREFLIGHT_AGE: Duration = Duration::from_secs(600);

/// The `Retry-After` value when there are too many sessions, in seconds.
const RETRY_AFTER: &str = "30";

/// The header with the session id.
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// The header with the protocol revision.
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// The first revision without sessions.
const SESSIONLESS_SINCE: &str = "2026-07-28";

/// The header with the method of a request.
const METHOD: HeaderName = HeaderName::from_static("mcp-method");

/// The response headers that pages may read in addition to the CORS-safelisted ones.
const EXPOSED: [HeaderName; 13] = [
    SESSION,
    VERSION,
    header::WWW_AUTHENTICATE,
    header::RETRY_AFTER,
    header::ETAG,
    header::CONTENT_RANGE,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("idempotency-expires-in"),
    HeaderName::from_static("idempotency-replayed"),
    HeaderName::from_static("idempotency-state"),
    HeaderName::from_static("treehold-modified-at"),
    HeaderName::from_static("treehold-size"),
    HeaderName::from_static("treehold-window"),
];

/// The service for one path; several paths may share one.
///
/// It takes the caller from the [`McpCaller`] in the extensions of a request, if there is one.
pub type HttpService = MethodRouter;

/// Which hosts and origins may send requests, and how large request bodies may be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpLimits {
    /// The hosts that a request may name, with or without a port. Default the names of the loopback interface.
    pub hosts: Vec<String>,
    /// The origins of web pages that may send requests, such as `https://app.example.com:443`. Default none.
    pub origins: Vec<String>,
    /// The largest request body, in bytes. Default 16 MiB.
    pub body_bytes_max: usize,
    /// The most sessions of one user across all tokens, for clients that use the `initialize` handshake. Further handshakes get status 503.
    /// A session ends after five minutes without activity. Default 1,000.
    pub sessions_max: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        let hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        Self { hosts, origins: Vec::new(), body_bytes_max: 16 << 20, sessions_max: 1_000 }
    }
}

impl HttpLimits {
    /// Adds a host that a request may name, with or without a port.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed host.
    pub fn add_host(&mut self, host: &str) -> Result<()> {
        let is_address = host.parse::<std::net::IpAddr>().is_ok();
        if !is_address && !host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@') && !host.host().is_empty()) {
            let message = format!("`{host}` is not a host; give a name or an address, with or without a port, such as `files.example.com`");
            return Err(Error::invalid_argument(message));
        }
        self.hosts.push(host.to_owned());
        Ok(())
    }

    /// Adds an origin whose web pages may send requests: a scheme, a host, and a port unless it is the default of the scheme.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a malformed origin.
    pub fn add_origin(&mut self, text: &str) -> Result<()> {
        let origin = Origin::parse(text).ok_or_else(|| {
            Error::invalid_argument(format!("`{text}` is not an origin; give only a scheme and a host, such as `https://app.example.com`"))
        })?;
        // Stored with its port, since an origin without one would match any port.
        self.origins.push(origin.to_string());
        Ok(())
    }

    /// Returns whether pages of an origin may send requests.
    pub fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let origin = origin.to_str().ok().and_then(Origin::parse);
        origin.is_some_and(|origin| self.origins.iter().any(|own| Origin::parse(own).as_ref() == Some(&origin)))
    }

    /// Returns the layer that answers preflight requests and lets pages of allowed origins read responses
    /// ([CORS](https://fetch.spec.whatwg.org/#http-cors-protocol)). It must be the outermost layer, also outside authentication, because
    /// browsers send preflight requests without credentials.
    pub fn cors(&self) -> CorsLayer {
        let origins: Arc<Vec<Origin>> = Arc::new(self.origins.iter().filter_map(|origin| Origin::parse(origin)).collect());
        let is_allowed =
            move |origin: &HeaderValue| origin.to_str().ok().and_then(Origin::parse).is_some_and(|origin| origins.contains(&origin));
        let is_near = is_allowed.clone();
        CorsLayer::new()
            .allow_origin(AllowOrigin::predicate(move |origin, _| is_allowed(origin)))
            .allow_private_network(AllowPrivateNetwork::predicate(move |origin, _| is_near(origin)))
            .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
            // The protocol's headers are not a closed list (`Mcp-Param-*`), and pages of an allowed origin may send whatever other clients
            // may.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED)
            .max_age(PREFLIGHT_AGE)
    }
}

/// The origin of a web page: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let default = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let authority = uri.authority()?;
        let says_more = uri.path() != "/" || text.ends_with('/') || uri.query().is_some() || authority.as_str().contains('@');
        // Parse the port from the text, since `Authority` ignores a malformed one.
        let port = match authority.as_str().strip_prefix(authority.host())? {
            "" => default,
            port => port.strip_prefix(':')?.parse().ok()?,
        };
        let host = authority.host().to_ascii_lowercase();
        (!says_more && !host.is_empty()).then_some(Self { scheme, host, port })
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}:{}", self.scheme, self.host, self.port)
    }
}

impl McpServer {
    /// Returns a service for HTTP, and a function that ends its sessions and streams.
    pub fn http_service(&self, limits: HttpLimits) -> (HttpService, impl FnOnce() + Send + 'static) {
        let config = StreamableHttpServerConfig::default()
            .with_allowed_hosts(limits.hosts)
            .with_allowed_origins(limits.origins)
            .enforce_origin_validation()
            .with_max_request_body_bytes(limits.body_bytes_max)
            .with_json_response(true);
        let stop = config.cancellation_token.clone();
        let server = self.clone();
        let sessions = Arc::new(Sessions::default());
        let pool = server.0.options.pools.sessions.clone();
        let service = StreamableHttpService::new(move || Ok(server.connection()), sessions.clone(), config);
        let gate = Gate { sessions, pool, sessions_max: limits.sessions_max };
        let service = any_service(service).layer(middleware::from_fn_with_state(gate, keep_to_owner));
        (service, move || stop.cancel())
    }
}

/// What the middleware in front of the service needs: the owners of sessions, and how many sessions each user may have.
#[derive(Debug, Clone)]
struct Gate {
    sessions: Arc<Sessions>,
    pool: Arc<Shares<User>>,
    sessions_max: usize,
}

/// Restricts requests to sessions of their caller, and refuses a handshake beyond the user's limit of sessions.
async fn keep_to_owner(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    if let Err(fault) = check_single(&request) {
        return (StatusCode::BAD_REQUEST, format!("Bad Request: {fault}")).into_response();
    }
    let owner = Owner::of(request.extensions().get::<McpCaller>());
    let standing = request.extensions().get::<Standing>().cloned();
    if request.headers().get(VERSION).and_then(|version| version.to_str().ok()).is_some_and(|version| version >= SESSIONLESS_SINCE) {
        // Clients of this revision have no sessions, so the header is meaningless.
        request.headers_mut().remove(SESSION);
    }
    let named = request.headers().get(SESSION).map(|id| id.to_str().unwrap_or_default().to_owned());
    if let Some(id) = &named
        && !gate.sessions.is_of(id, &owner)
    {
        return (StatusCode::NOT_FOUND, "Not Found: Session not found").into_response();
    }
    // Requests within a session name it, and those without sessions name their method. The rest are handshakes, or are refused anyway.
    let says_method = request.headers().get(METHOD).is_some_and(|method| method != "initialize");
    let is_handshake = request.method() == Method::POST && named.is_none() && !says_method;
    let long = LongAnswer::default();
    let worker = request.extensions().get::<McpCaller>().map(|caller| work::Owner::from(&caller.scope)).unwrap_or_default();
    request.extensions_mut().insert(long.clone());
    let is_short = request.body().size_hint().upper().is_some_and(|bytes| bytes <= work::IN_PLACE_BYTES);
    let answered = |response| answered(&long, &worker, is_short, response);
    let response = if is_handshake {
        let Some(place) = gate.pool.take(owner.user(), gate.sessions_max) else { return full(gate.sessions_max) };
        let response = answered(Box::pin(Sessions::begun_by(owner, place, next.run(request)))).await;
        if let (Some(id), Some(standing)) = (session_of(&response), &standing) {
            gate.sessions.end_with(id, standing.clone());
        }
        response
    } else {
        answered(Box::pin(next.run(request))).await
    };
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|media| media.to_str().ok())
        .is_some_and(|media| media.starts_with("text/event-stream"));
    let response = if is_stream { long::streamed(response, long, worker) } else { response };
    match standing {
        Some(standing) if is_stream => {
            let begun = session_of(&response).map(str::to_owned);
            response.map(|body| while_standing(body, standing, gate.sessions, named.or(begun)))
        }
        _ => response,
    }
}

/// Awaits a response. A request that is not short is parsed, and a long response written, on a blocking thread.
async fn answered(long: &LongAnswer, worker: &work::Owner, is_short: bool, response: BoxFuture<'static, Response>) -> Response {
    let response = long.during(response);
    let answer = if is_short {
        long::unless_long(long, worker, response).await
    } else {
        let (long, owner) = (long.clone(), worker.clone());
        let response = async move { long::unless_long(&long, &owner, response).await };
        long::begun_apart(worker, response).await.flatten()
    };
    answer.unwrap_or_else(|error| {
        tracing::error!(%error, "a long request or answer cannot be processed");
        (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error: the request or its answer cannot be processed").into_response()
    })
}

/// Returns the id of the session that a response starts or belongs to.
fn session_of(response: &Response) -> Option<&str> {
    response.headers().get(SESSION)?.to_str().ok()
}

/// Returns the response to a handshake beyond the user's limit of sessions.
fn full(sessions_max: usize) -> Response {
    let message = format!("this user has {sessions_max} sessions, the most allowed; end one, or try again later");
    let error = json!({"code": -32000, "message": message, "data": {"code": ErrorKind::Unavailable.code()}});
    let body = json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::RETRY_AFTER, RETRY_AFTER)];
    (StatusCode::SERVICE_UNAVAILABLE, headers, body).into_response()
}

/// Passes a stream on until its caller is no longer authorized, then ends it together with its session. An idle stream carries a keep-alive
/// at least every 15 seconds, so the check also runs then. A keep-alive shows nothing, so as in an idle session, checks that fail then are
/// tolerated for as long as a check may take.
fn while_standing(body: Body, standing: Standing, sessions: Arc<Sessions>, session: Option<String>) -> Body {
    let failing_since: Option<Instant> = None;
    let state: (BodyDataStream, _, _, _, _) = (body.into_data_stream(), standing, sessions, session, failing_since);
    Body::from_stream(futures::stream::unfold(state, |(mut parts, standing, sessions, session, mut failing_since)| async move {
        let part = parts.next().await?;
        let began = Instant::now();
        let holds = match standing.holds().await {
            Ok(holds) => {
                failing_since = None;
                holds
            }
            Err(_) if is_keep_alive(&part) && failing_since.get_or_insert(began).elapsed() < standing.limit() => true,
            Err(error) => {
                tracing::warn!(%error, "closing a stream because its token cannot be checked");
                false
            }
        };
        if holds {
            return Some((part, (parts, standing, sessions, session, failing_since)));
        }
        if let Some(session) = session
            && let Err(error) = sessions.close_session(&session.into()).await
        {
            tracing::warn!(%error, "a session whose token has ended cannot be closed");
        }
        None
    }))
}

/// Returns whether a part of a stream of events is only a comment.
fn is_keep_alive(part: &Result<Bytes, axum::Error>) -> bool {
    part.as_ref().is_ok_and(|part| part.starts_with(b":") && part.trim_ascii_end().iter().all(|byte| *byte != b'\n'))
}

/// Returns the caller that the router authenticated.
pub(super) fn caller(context: &RequestContext<RoleServer>) -> Option<McpCaller> {
    context.extensions.get::<Parts>()?.extensions.get::<McpCaller>().cloned()
}

/// Runs work in the trace of its HTTP request, since a different task handles the request than received it.
pub(super) fn within_trace<F: Future>(context: &RequestContext<RoleServer>, work: F) -> impl Future<Output = F::Output> + use<F> {
    let trace = context.extensions.get::<Parts>().and_then(|head| head.extensions.get::<TraceContext>().cloned());
    async move {
        match trace {
            Some(trace) => trace.scope(work).await,
            None => work.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_consists_of_scheme_host_and_port() {
        for (text, origin) in [
            ("https://app.example.com", Some("https://app.example.com:443")),
            ("HTTPS://App.Example.com:443", Some("https://app.example.com:443")),
            ("http://[::1]:3000", Some("http://[::1]:3000")),
            ("http://localhost", Some("http://localhost:80")),
            ("nonsense", None),
            ("app.example.com", None),
            ("null", None),
            ("*", None),
            ("https://", None),
            ("https://a.example/", None),
            ("https://a.example/path", None),
            ("https://a.example?x", None),
            ("https://user@a.example", None),
            ("https://a.example:99999", None),
            ("https://a.example:*", None),
            ("ftp://a.example", None),
            ("", None),
        ] {
            let mut limits = HttpLimits::default();
            assert_eq!(limits.add_origin(text).is_ok(), origin.is_some(), "{text}");
            assert_eq!(limits.origins.first().map(String::as_str), origin, "{text}");
        }
    }

    /// A store that does not answer for a while ends no idle stream, and shows nothing.
    #[tokio::test(start_paused = true)]
    async fn only_keep_alives_pass_while_the_caller_cannot_be_checked() {
        let away = || -> BoxFuture<'static, Result<bool>> { Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "away")) }) };
        for (parts, passed) in [
            (&[":\n\n", ": ping\n\n", "data: a\n\n", ":\n\n"][..], 2),
            (&["data: a\n\n"][..], 0),
            (&[": a comment\ndata: a\n\n"][..], 0),
            // By the sixth, the first check failed a minute ago.
            (&[":\n\n"; 10][..], 4),
        ] {
            let seconds = if parts.len() == 10 { 15 } else { 0 };
            let parts = futures::stream::iter(parts.iter().copied()).then(move |part| async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok::<_, std::io::Error>(part)
            });
            let stream = while_standing(Body::from_stream(parts), Standing::new(away, || None), Arc::default(), None);
            assert_eq!(stream.into_data_stream().count().await, passed);
        }
    }

    #[tokio::test]
    async fn service_refuses_request_that_names_two_hosts() {
        let server = McpServer::new(treehold_agent::workspace::Workspace::builder().build(), crate::McpOptions::default());
        let (service, _end) = server.http_service(HttpLimits::default());
        let ping = r#"{"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}"#;
        for (uri, hosts, is_refused) in [
            ("/mcp", &["localhost"][..], false),
            ("/mcp", &["localhost", "localhost"], true),
            ("/mcp", &["localhost", "evil.example"], true),
            ("http://evil.example/mcp", &["localhost"], true),
            ("http://localhost/mcp", &["localhost"], false),
        ] {
            let mut request = Request::post(uri).header(header::CONTENT_TYPE, "application/json");
            request = request.header(header::ACCEPT, "application/json, text/event-stream");
            for host in hosts {
                request = request.header(header::HOST, *host);
            }
            let request = request.body(Body::from(ping)).expect("a request");
            let response: Response = axum::handler::Handler::call(service.clone(), request, ()).await;
            let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("an answer");
            let text = String::from_utf8_lossy(&bytes);
            assert_eq!(text.contains("more than once"), is_refused, "{uri} {hosts:?}: {text}");
        }
    }

    #[tokio::test]
    async fn service_refuses_request_that_repeats_a_single_header() {
        let server = McpServer::new(treehold_agent::workspace::Workspace::builder().build(), crate::McpOptions::default());
        let (service, _end) = server.http_service(HttpLimits::default());
        for (name, is_refused) in [("authorization", true), ("mcp-session-id", true), ("mcp-param-path", true), ("accept", false)] {
            let request = Request::post("/mcp").header(header::HOST, "localhost").header(name, "a").header(name, "b");
            let request = request.body(Body::from("{}")).expect("a request");
            let response: Response = axum::handler::Handler::call(service.clone(), request, ()).await;
            let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("an answer");
            let text = String::from_utf8_lossy(&bytes);
            assert_eq!(text.contains("more than once"), is_refused, "{name}: {text}");
        }
    }

    #[test]
    fn url_is_not_accepted_as_host() {
        let mut limits = HttpLimits::default();
        for host in ["files.example.com", "files.example.com:7777", "10.0.0.1", "[::1]:80", "::1"] {
            limits.add_host(host).expect(host);
        }
        for host in ["", "https://files.example.com", "a b", "user@files.example.com", "files.example.com/mcp"] {
            assert!(limits.add_host(host).is_err(), "{host}");
        }
    }
}
