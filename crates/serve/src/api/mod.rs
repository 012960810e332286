//! Version 1 of the HTTP API: the operations of the library as resources and JSON.
//!
//! [`routes`] is the only table of routes. The router and the API description ([`openapi`]) are built from it. A handler takes an [`Asked`]
//! and returns a response or an error; [`problem`] converts all errors to `application/problem+json`.

mod apply;
mod body;
mod drain;
pub(super) mod etag;
mod events;
mod exchange;
mod fs;
mod idempotency;
mod openapi;
pub(super) mod problem;
mod query;
mod range;
mod ready;
mod routes;
mod spool;
mod store;
mod threads;
mod traced;

use idempotency::ANSWERS_NAMESPACE;

use super::caller::{Caller, Doorkeeper, admit};
use super::connection::is_health;
use super::metrics::{self, Metrics};
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Json, Router};
use body::{Pace, Received, Rooms};
use parking_lot::Mutex;
use problem::Failed;
use ready::{Readiness, ready};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tower_http::compression::{CompressionLayer, Predicate};
use treehold_agent::workspace::Workspace;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::shared::Shared;
use treehold_core::shares::{Shares, User};
use treehold_core::wire::RequestFault;
use treehold_core::work;
use treehold_mcp::{HttpLimits, check_single};
use treehold_store::Store;

/// How many health checks are answered concurrently.
const HEALTH_MAX: usize = 64;

/// The limits on requests.
#[derive(Debug, Clone)]
pub(super) struct ApiLimits {
    pub(super) body_bytes_max: usize,
    pub(super) upload_bytes_max: usize,
    pub(super) bodies_bytes_max: usize,
    pub(super) spool_bytes_max: usize,
    pub(super) requests_max: usize,
    pub(super) requests_per_user_max: usize,
    /// How long a body may pause.
    pub(super) body_timeout: Duration,
    /// The minimum rate of a body.
    pub(super) body_bytes_per_second_min: u64,
    pub(super) streams_max: usize,
    pub(super) deadline: Duration,
    pub(super) http: HttpLimits,
}

/// The state that all handlers share.
#[derive(Debug)]
pub(super) struct Api {
    workspace: Workspace,
    store: Arc<dyn Store>,
    limits: ApiLimits,
    rooms: Rooms,
    running: Arc<Semaphore>,
    /// How many more health checks may run.
    health: Arc<Semaphore>,
    /// How many more requests of each user may run.
    running_of: Mutex<Shared<work::Owner, Semaphore>>,
    /// How many more event streams may be open.
    streams: Arc<Semaphore>,
    /// How many event streams each user has open.
    streams_of: Arc<Shares<User>>,
    keys: idempotency::Keys,
    /// Becomes true when the server stops.
    stopping: watch::Sender<bool>,
    metrics: Arc<Metrics>,
    readiness: Readiness,
}

impl Api {
    pub(super) fn new(workspace: Workspace, store: Arc<dyn Store>, limits: ApiLimits, metrics: Arc<Metrics>) -> Self {
        let pace = Pace { timeout: limits.body_timeout, bytes_per_second_min: limits.body_bytes_per_second_min };
        let rooms = Rooms::new(limits.bodies_bytes_max, limits.spool_bytes_max).with_pace(pace);
        let running = Arc::new(Semaphore::new(limits.requests_max));
        let streams = Arc::new(Semaphore::new(limits.streams_max));
        Self {
            workspace,
            store,
            limits,
            rooms,
            running,
            health: Arc::new(Semaphore::new(HEALTH_MAX)),
            running_of: Mutex::default(),
            streams,
            streams_of: Arc::default(),
            keys: idempotency::Keys::new(),
            stopping: watch::Sender::new(false),
            metrics,
            readiness: Readiness::default(),
        }
    }

    /// Ends the event streams.
    pub(super) fn end_streams(&self) {
        self.stopping.send_replace(true);
    }

    pub(super) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub(super) fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Receives the body of a request. Uploads to files may be larger than other bodies.
    async fn receive(&self, head: &Parts, body: Body, mut seen: impl FnMut(&[u8])) -> Result<Received> {
        let is_file = head.extensions.get::<MatchedPath>().is_some_and(|route| route.as_str().ends_with("/fs/{*path}"));
        let is_upload = is_file && matches!(head.method, Method::PUT | Method::POST);
        let limit = if is_upload { self.limits.upload_bytes_max } else { self.limits.body_bytes_max };
        let seen = |part: &[u8]| {
            self.metrics.receive(part.len());
            seen(part);
        };
        self.rooms.receive(&head.headers, body, limit, seen).await
    }
}

/// Builds the router of the API and of the other interfaces.
pub(super) fn router(api: Arc<Api>, doorkeeper: Arc<Doorkeeper>) -> Router {
    let cors = api.limits.http.cors();
    let admitted = Router::new()
        .merge(routes::router())
        .layer(middleware::from_fn_with_state(api.clone(), idempotency::once))
        .layer(middleware::from_fn_with_state(api.clone(), within_deadline))
        .route("/mcp", axum::routing::any(mcp))
        .route("/mcp/t/{thread}", axum::routing::any(mcp))
        .layer(middleware::from_fn_with_state(api.clone(), one_of_its_user))
        .route("/metrics", get(metrics::show))
        .route_layer(middleware::from_fn_with_state(doorkeeper, admit));
    Router::new()
        .merge(admitted)
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/healthz", get(ready))
        .route("/version", get(async || Json(serde_json::json!({"name": "treehold", "version": env!("CARGO_PKG_VERSION"), "api": "v1"}))))
        .route("/openapi.json", get(openapi::show))
        .route("/", get(openapi::show_page))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(CompressionLayer::new().compress_when(whole_answers()))
        .layer(middleware::map_response(etag::of_coding))
        .layer(middleware::from_fn_with_state(api.clone(), from_this_house))
        .layer(cors)
        .layer(middleware::from_fn_with_state(api.clone(), one_of_many))
        .layer(middleware::from_fn_with_state(api.clone(), metrics::time))
        .layer(middleware::from_fn(traced::follow))
        .layer(middleware::from_fn(drain::unread))
        .with_state(api)
}

/// Selects the responses to compress: complete ones above a minimum size. A range refers to the uncompressed bytes, and a stream must not
/// be delayed.
fn whole_answers() -> impl Predicate {
    let whole = |status: StatusCode, _: axum::http::Version, headers: &axum::http::HeaderMap, _: &axum::http::Extensions| {
        let media = headers.get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok()).unwrap_or_default();
        status != StatusCode::PARTIAL_CONTENT
            && (media.starts_with("text/") && !media.starts_with("text/event-stream") || media.contains("json"))
    };
    tower_http::compression::predicate::SizeAbove::new(1_024).and(whole)
}

/// The Model Context Protocol, restricted to the caller's rights.
async fn mcp(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    // A response may take long, but the body must arrive within the deadline.
    let received = match tokio::time::timeout(api.limits.deadline, api.receive(&head, body, |_| {})).await {
        Ok(Ok(received)) => received,
        Ok(Err(error)) => return problem::response(&error),
        Err(_) => return problem::response(&Error::new(ErrorKind::Deadline, "the body did not come in time").without_effect()),
    };
    let request = Request::from_parts(head, Body::from(received.bytes.clone()));
    axum::handler::Handler::call(caller.door.service.clone(), request, ()).await
}

async fn nowhere(request: Request) -> Response {
    let message = format!("there is no route `{}`; GET /openapi.json tells those there are", request.uri().path());
    Failed::of_request(RequestFault::NoSuchRoute, message).into_response()
}

async fn not_so(request: Request) -> Response {
    let message = format!("`{}` is not done here; GET /openapi.json tells what is", request.method());
    problem::with_status(&Error::unsupported(message), StatusCode::METHOD_NOT_ALLOWED)
}

/// Ends a request that exceeds the deadline.
async fn within_deadline(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let writes = !matches!(*request.method(), Method::GET | Method::HEAD);
    match tokio::time::timeout(api.limits.deadline, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("the request was not done within {:?}; ask for less", api.limits.deadline);
            let error = Error::new(ErrorKind::Deadline, message);
            problem::response(&if writes { error.with_unknown_effect() } else { error })
        }
    }
}

/// Refuses requests beyond the limit. Health checks are counted separately, so that load cannot block them.
async fn one_of_many(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let places = if is_health(request.uri().path()) { &api.health } else { &api.running };
    match places.clone().try_acquire_owned() {
        Ok(place) => Places::hold(place, request, next).await,
        Err(_) => {
            api.metrics.refuse();
            problem::response(&Error::new(ErrorKind::Unavailable, "too many requests run; try again in a second").without_effect())
        }
    }
}

/// The places that a request occupies, for as long as any work is done for it.
#[derive(Clone, Default)]
struct Places(Vec<Arc<OwnedSemaphorePermit>>);

impl Places {
    /// Runs a request that has a place. Work that continues after the client disconnects keeps the place by cloning the extension.
    async fn hold(place: OwnedSemaphorePermit, mut request: Request, next: Next) -> Response {
        let place = Arc::new(place);
        request.extensions_mut().get_or_insert_default::<Self>().0.push(place.clone());
        let response = next.run(request).await;
        drop(place);
        response
    }
}

/// Refuses requests of one user beyond the limit.
async fn one_of_its_user(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    let count = api.limits.requests_per_user_max;
    let places = api.running_of.lock().get_or_insert((&caller.scope).into(), || Arc::new(Semaphore::new(count)));
    match places.try_acquire_owned() {
        Ok(place) => Places::hold(place, request, next).await,
        Err(_) => {
            api.metrics.refuse();
            let message = format!("{count} of your requests run, which is all a user may at once; try again when one is done");
            problem::response(&Error::new(ErrorKind::Unavailable, message).without_effect())
        }
    }
}

/// Refuses requests for other hosts and from origins that are not allowed. This prevents DNS rebinding: a web page whose domain resolves to
/// this address must not act on behalf of its visitor.
async fn from_this_house(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if let Err(fault) = check_single(&request) {
        return problem::response(&Error::invalid_argument(fault).without_effect());
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).or_else(|| request.uri().authority().map(|at| at.as_str()));
    let known = host.is_some_and(|host| api.limits.http.hosts.iter().any(|own| own == host || own.as_str() == without_port(host)));
    if !known {
        let message =
            format!("this server does not answer for the host `{}`; allow it when the server is started", host.unwrap_or_default());
        return problem::response(&Error::new(ErrorKind::PermissionDenied, message).without_effect());
    }
    if let Some(origin) = headers.get(header::ORIGIN)
        && !api.limits.http.allows_origin(origin)
    {
        let error =
            Error::new(ErrorKind::PermissionDenied, "pages of this origin may not send requests; allow it when the server is started");
        return problem::response(&error.without_effect());
    }
    next.run(request).await
}

fn without_port(host: &str) -> &str {
    let named = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(host, |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    named.trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::without_port;

    #[test]
    fn host_name_excludes_port() {
        for (host, name) in
            [("localhost:80", "localhost"), ("localhost", "localhost"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("a.b.:1", "a.b")]
        {
            assert_eq!(without_port(host), name);
        }
    }
}
