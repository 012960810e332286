//! Version 1 of the HTTP API: the operations of the library as resources and JSON.
//!
//! [`routes`] is the only table of routes. The router and the API description ([`openapi`]) are built from it. A handler takes an [`Asked`]
//! and returns a response or an error; [`problem`](crate::problem) converts all errors to `application/problem+json`.

mod apply;
mod body;
mod connect;
mod dataplane;
mod drain;
mod events;
mod exchange;
mod fs;
mod idempotency;
mod objects;
mod openapi;
mod parts;
mod past;
mod query;
mod range;
mod ready;
mod route;
mod routes;
mod sessions;
mod spool;
mod state;
mod store;
mod threads;
mod traced;
mod traces;

use idempotency::ANSWERS_NAMESPACE;

use super::caller::{CONNECT_ROUTE, Caller, Doorkeeper, PathParams, admit};
use super::connection::is_health;
use super::etag;
use super::large::{LargeAnswers, SMALL_BYTES};
use super::metrics::{self, Metrics};
use super::problem::{self, Failed};
use super::served_traces::ServedTraces;
use super::tunnels::ServedTunnels;
use axum::body::{Body, HttpBody as _};
use axum::extract::{MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use body::{Pace, Received, Rooms};
use parking_lot::Mutex;
use ready::{Readiness, ready};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tower_http::compression::{CompressionLayer, Predicate};
use treehold_agent::workspace::Workspace;
use treehold_agent_state::call::TurnGate;
use treehold_agent_state::{AgentStates, SessionCompactor};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::shared::Shared;
use treehold_core::shares::{Shares, User};
use treehold_core::wire::RequestFault;
use treehold_core::work;
use treehold_mcp::{HttpLimits, check_single, refusal};
use treehold_sessions::Sessions;
use treehold_store::Store;

/// The most bytes of a session that one request reads.
const SESSION_BYTES_MAX: usize = 64 << 20;

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
    /// How long the response to a request with a key is kept.
    pub(super) idempotency_time: Duration,
    pub(super) http: HttpLimits,
    /// The prefix of the routes for the inspector of agent hosts, if they are served.
    pub(super) host_routes: Option<String>,
}

/// The state that all handlers share.
#[derive(Debug)]
pub(super) struct Api {
    workspace: Workspace,
    store: Arc<dyn Store>,
    /// The sessions of all users.
    sessions: Sessions,
    /// The states of the agents of all users.
    states: AgentStates,
    /// The traces of all users.
    traces: ServedTraces,
    /// The machines that are connected.
    tunnels: ServedTunnels,
    /// The turns of their sessions.
    turns: TurnGate,
    /// What compacts a session for an operator.
    compactor: Option<Arc<dyn SessionCompactor>>,
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
    /// Becomes true when the server is stopping.
    stopping: watch::Sender<bool>,
    metrics: Arc<Metrics>,
    large: Arc<LargeAnswers>,
    readiness: Readiness,
}

impl Api {
    #[expect(clippy::too_many_arguments, reason = "the parts of a server, taken apart once")]
    pub(super) fn new(
        workspace: Workspace,
        store: Arc<dyn Store>,
        sessions: Sessions,
        states: AgentStates,
        traces: ServedTraces,
        tunnels: ServedTunnels,
        compactor: Option<Arc<dyn SessionCompactor>>,
        limits: ApiLimits,
        metrics: Arc<Metrics>,
        large: Arc<LargeAnswers>,
    ) -> Self {
        let options = sessions.options().clone();
        let read_bytes_max = options.read_bytes_max.min(SESSION_BYTES_MAX);
        let sessions = sessions.with_options(options.with_read_bytes_max(read_bytes_max));
        let pace = Pace { timeout: limits.body_timeout, bytes_per_second_min: limits.body_bytes_per_second_min };
        let rooms = Rooms::new(limits.bodies_bytes_max, limits.spool_bytes_max).with_pace(pace);
        let running = Arc::new(Semaphore::new(limits.requests_max));
        let streams = Arc::new(Semaphore::new(limits.streams_max));
        Self {
            workspace,
            store,
            sessions,
            turns: TurnGate::new(states.store().clone()),
            states,
            traces,
            tunnels,
            compactor,
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
            large,
            readiness: Readiness::default(),
        }
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the machines that are connected.
    pub(super) fn tunnels(&self) -> &ServedTunnels {
        &self.tunnels
    }

    /// Returns a receiver that becomes true when the server is stopping.
    pub(super) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Ends the event streams.
    pub(super) fn end_streams(&self) {
        self.stopping.send_replace(true);
    }

    /// Waits for at most `limit` until the event streams have ended, those over WebSockets as well.
    pub(super) async fn streams_ended(&self, limit: Duration) {
        let all = u32::try_from(self.limits.streams_max).unwrap_or(u32::MAX);
        if tokio::time::timeout(limit, self.streams.acquire_many(all)).await.is_err() {
            tracing::warn!("some event streams did not end in time");
        }
    }

    /// Stops the runs of agents, and waits for at most `limit` until their traces say so.
    pub(super) async fn stop_runs(&self, limit: Duration) {
        self.traces.shutdown(limit).await;
    }

    /// Waits until the answer of the current request may be large.
    async fn hold_answer(&self, caller: &Caller) -> Result<()> {
        // Less than the deadline of the request, so that the answer says what it waited for.
        self.large.take(&caller.owner, self.limits.deadline / 2).await.map(drop)
    }

    /// Receives the body of a request. Uploads to files may be larger than other bodies.
    async fn receive(&self, head: &Parts, body: Body, mut seen: impl FnMut(&[u8])) -> Result<Received> {
        let is_upload = head.extensions.get::<MatchedPath>().is_some_and(|route| routes::is_upload(&head.method, route.as_str()));
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
    let entrance = Entrance { api: api.clone(), doorkeeper };
    let requests = Router::new()
        .merge(routes::router())
        .merge(api.limits.host_routes.as_deref().map(sessions::host_routes).unwrap_or_default())
        .route_layer(middleware::from_fn_with_state(entrance.clone(), admit_request));
    let lasting = Router::new()
        .route("/mcp", axum::routing::any(mcp))
        .route("/mcp/t/{thread}", axum::routing::any(mcp))
        .route(CONNECT_ROUTE, get(connect::connect))
        .route_layer(middleware::from_fn_with_state(entrance.clone(), admit_lasting));
    let unlimited =
        Router::new().route("/metrics", get(show_metrics)).route_layer(middleware::from_fn_with_state(entrance, admit_unlimited));
    Router::new()
        .merge(requests)
        .merge(lasting)
        .merge(unlimited)
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/healthz", get(ready))
        .route("/version", get(async || Json(serde_json::json!({"name": "treehold", "version": env!("CARGO_PKG_VERSION"), "api": "v1"}))))
        .route("/openapi.json", get(openapi::show))
        .route("/", get(openapi::show_page))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(middleware::map_response(parts::split))
        .layer(CompressionLayer::new().compress_when(whole_answers()))
        .layer(middleware::from_fn_with_state(api.clone(), from_this_house))
        .layer(cors)
        .layer(middleware::from_fn_with_state(api.clone(), account_for))
        .with_state(api)
}

/// Traces, times and counts a request, and handles what it leaves of its body.
///
/// A layer clones all layers beneath it for each request, so steps that follow each other are functions within one layer.
async fn account_for(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let admitted = |request| one_of_many(&api, request, |request| tell_methods(request, next));
    let timed = |request| metrics::time(&api.metrics, request, admitted);
    drain::unread(request, |request| traced::follow(request, timed)).await
}

/// The state of the middleware that admits requests.
#[derive(Clone)]
struct Entrance {
    api: Arc<Api>,
    doorkeeper: Arc<Doorkeeper>,
}

/// Authenticates a request, keeps it within the limits of its user and of its time, checks its condition, and handles it once if it has a
/// key.
async fn admit_request(State(Entrance { api, doorkeeper }): State<Entrance>, params: PathParams, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let limit = api.limits.deadline;
    let limited = async |caller: Caller, request| {
        let checked = |request| async {
            match unchecked_condition(&request) {
                Some(refused) => problem::response(&refused),
                None => idempotency::once(&api, request, next).await,
            }
        };
        let held = |request| hold_large(&api, &caller, request, checked);
        // The lookup of the caller counts.
        let left = limit.saturating_sub(begun.elapsed());
        one_of_its_user(&api, &caller, request, |request| within_deadline(&api, left, request, held)).await
    };
    admit(&doorkeeper, params, request, limited).await
}

/// Authenticates a request that may last long, and keeps it within the limits of its user. Only the lookup of its caller has a deadline.
async fn admit_lasting(State(Entrance { api, doorkeeper }): State<Entrance>, params: PathParams, request: Request, next: Next) -> Response {
    let limited = async |caller: Caller, request| one_of_its_user(&api, &caller, request, |request| next.run(request)).await;
    admit(&doorkeeper, params, request, limited).await
}

/// Authenticates a request that no limit of its user applies to. Only the lookup of its caller has a deadline.
async fn admit_unlimited(State(entrance): State<Entrance>, params: PathParams, request: Request, next: Next) -> Response {
    admit(&entrance.doorkeeper, params, request, |_, request| next.run(request)).await
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

/// The Model Context Protocol, restricted to the caller's rights. It checks no condition, so a call under one is refused. An idempotency
/// key is ignored: clients may send one with everything.
async fn mcp(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if head.method == Method::POST
        && let Some(name) = routes::CONDITIONS.into_iter().find(|name| head.headers.contains_key(name))
    {
        return problem::response(&refused_condition(&name));
    }
    // A response may take long, but the body must arrive within the deadline.
    let received = match tokio::time::timeout(api.limits.deadline, api.receive(&head, body, |_| {})).await {
        Ok(Ok(received)) => received,
        Ok(Err(error)) => return problem::response(&error),
        Err(_) => {
            return problem::response(
                &Error::new(
                    ErrorKind::Deadline,
                    "the body did not arrive in time; send it \
            again",
                )
                .without_effect(),
            );
        }
    };
    let body = received.bytes.clone();
    let checked = work::run(body.len() as u64, move |_| work::check_json_values(&body));
    if let Err(error) = work::as_owner(caller.owner.clone(), None, checked).await.flatten() {
        return problem::response(&error);
    }
    let media = head.headers.get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok()).unwrap_or_default();
    let is_json = media.split(';').next().is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json"));
    let mut request = Request::from_parts(head, Body::from(received.bytes.clone()));
    let standing = caller.standing(request.headers());
    request.extensions_mut().insert(standing);
    request.extensions_mut().insert(caller.to_mcp());
    let is_post = request.method() == Method::POST;
    let response = axum::handler::Handler::call(caller.door.service.clone(), request, ()).await;
    if !is_post || !is_json || response.status() != StatusCode::UNSUPPORTED_MEDIA_TYPE {
        return response;
    }
    // The service answers a body that is no message as if it had another media type, in plain text.
    let body = received.bytes.clone();
    let refused = work::run(body.len() as u64, move |_| refusal(&body));
    match work::as_owner(caller.owner.clone(), None, refused).await {
        Ok(told) => (StatusCode::BAD_REQUEST, Json(told)).into_response(),
        Err(error) => problem::response(&error),
    }
}

/// Serves all metrics.
async fn show_metrics(State(api): State<Arc<Api>>) -> Response {
    api.metrics.show(&api.workspace, api.tunnels.counts())
}

async fn nowhere(request: Request) -> Response {
    let message = format!("there is no route `{}`; `GET /openapi.json` lists them", request.uri().path());
    Failed::of_request(RequestFault::NoSuchRoute, message).into_response()
}

async fn not_so(request: Request) -> Response {
    let message = format!("the method `{}` is not allowed here; `GET /openapi.json` lists those that are", request.method());
    problem::with_status(&Error::unsupported(message), StatusCode::METHOD_NOT_ALLOWED)
}

/// Tells the methods of an action. The router would tell those of its pattern.
async fn tell_methods(request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let allowed = matched.and_then(|matched| routes::allowed(matched.as_str(), request.uri().path()));
    let is_options = request.method() == Method::OPTIONS;
    let mut response = next.run(request).await;
    if let Some(allowed) = allowed.filter(|_| is_options || response.status() == StatusCode::METHOD_NOT_ALLOWED) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

/// Ends a request that exceeds the deadline, of which some time is left.
async fn within_deadline<F: Future<Output = Response>>(
    api: &Api,
    left: Duration,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let writes = !matches!(*request.method(), Method::GET | Method::HEAD);
    match tokio::time::timeout(left, next(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("the request did not finish within {:?}; request less", api.limits.deadline);
            let error = Error::new(ErrorKind::Deadline, message);
            problem::response(&if writes { error.with_unknown_effect() } else { error })
        }
    }
}

/// Returns the error for a change on a condition that its route does not check. If the condition were ignored, the change could replace
/// what the client has not seen.
fn unchecked_condition(request: &Request) -> Option<Error> {
    let route = request.extensions().get::<MatchedPath>()?;
    routes::unchecked_condition(request.method(), route.as_str(), request.headers()).map(|name| refused_condition(&name))
}

fn refused_condition(name: &HeaderName) -> Error {
    let message = format!("`{name}` is not supported here, so nothing was done; leave it out (`GET /openapi.json` lists who takes it)");
    Error::invalid_argument(message).without_effect()
}

/// Lets a request whose answer may be large wait for a slot, which its answer keeps until it is sent.
async fn hold_large<F: Future<Output = Response>>(
    api: &Api,
    caller: &Caller,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let is_large = request.extensions().get::<MatchedPath>().is_some_and(|route| routes::is_large(request.method(), route.as_str()));
    let (response, slot) = LargeAnswers::during(async {
        if is_large && let Err(error) = api.hold_answer(caller).await {
            return problem::response(&error);
        }
        next(request).await
    })
    .await;
    let Some(slot) = slot else { return response };
    let mut response = response;
    if response.body().size_hint().upper().is_none_or(|bytes| bytes > SMALL_BYTES) {
        response.extensions_mut().insert(slot);
    }
    response
}

/// Refuses requests beyond the limit. Health checks are counted separately, so that load cannot block them.
async fn one_of_many<F: Future<Output = Response>>(api: &Api, request: Request, next: impl FnOnce(Request) -> F) -> Response {
    let places = if is_health(request.uri().path()) { &api.health } else { &api.running };
    match places.clone().try_acquire_owned() {
        Ok(place) => Places::hold(place, request, next).await,
        Err(_) => {
            api.metrics.refuse();
            problem::response(&Error::new(ErrorKind::Unavailable, "too many requests are running; try again in a second").without_effect())
        }
    }
}

/// The slots that a request occupies, for as long as any work is done for it.
#[derive(Clone, Default)]
struct Places(Vec<Arc<Mutex<Option<OwnedSemaphorePermit>>>>);

impl Places {
    /// Gives the slots back before the request ends, for one that waits without using anything of the server.
    fn give_back(&self) {
        self.0.iter().for_each(|place| drop(place.lock().take()));
    }

    /// Runs a request that has a slot. Work that continues after the client disconnects keeps the slot by cloning the extension.
    async fn hold<F: Future<Output = Response>>(
        place: OwnedSemaphorePermit,
        mut request: Request,
        next: impl FnOnce(Request) -> F,
    ) -> Response {
        let place = Arc::new(Mutex::new(Some(place)));
        request.extensions_mut().get_or_insert_default::<Self>().0.push(place.clone());
        let response = next(request).await;
        drop(place);
        response
    }
}

/// Refuses requests of one user beyond the limit.
async fn one_of_its_user<F: Future<Output = Response>>(
    api: &Api,
    caller: &Caller,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let count = api.limits.requests_per_user_max;
    let places = api.running_of.lock().get_or_insert(caller.owner.clone(), || Arc::new(Semaphore::new(count)));
    match places.try_acquire_owned() {
        Ok(place) => Places::hold(place, request, next).await,
        Err(_) => {
            api.metrics.refuse();
            let message = format!("{count} of your requests are running, the most allowed per user; try again when one is done");
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
    etag::of_coding(next.run(request).await)
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
