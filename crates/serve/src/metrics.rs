//! Metrics in the Prometheus text format, named by
//! [OpenTelemetry's conventions](https://opentelemetry.io/docs/specs/semconv/http/http-metrics/) where one exists.
//!
//! Every label value comes from a fixed list: methods, routes, statuses, operations, error codes. Paths, tokens, threads, users and tenants
//! are never labels, so clients cannot create series.

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use treehold_agent::retention::Round;
use treehold_agent::workspace::Workspace;
use treehold_core::ops::OpKind;
use treehold_remote::TunnelCounts;
use treehold_store::{SweepCount, SweeperCounts};

/// The histogram buckets for requests, in seconds, as the conventions recommend.
const REQUEST_SECONDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// The histogram buckets for operations, in seconds. Many operations take microseconds.
const OPERATION_SECONDS: [f64; 12] = [0.000_01, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// The histogram buckets for rounds of the retention, in seconds. They are slow on purpose.
const ROUND_SECONDS: [f64; 10] = [0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    http_request_method: &'static str,
    http_route: String,
    http_response_status_code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Direction {
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Removed {
    kind: &'static str,
}

/// The metrics of a server.
pub(super) struct Metrics {
    registry: Registry,
    durations: Family<Answered, Histogram, fn() -> Histogram>,
    refused: Counter,
    running: Gauge,
    received: Counter,
    sent: Counter,
    operations: Family<Operation, Histogram, fn() -> Histogram>,
    content: Family<Direction, Counter>,
    threads: Gauge,
    audit_lost: Gauge,
    events_lost: Gauge,
    tunnels: Gauge,
    tunnels_opened: Gauge,
    tunnels_refused: Gauge,
    tunnel_requests: Gauge,
    dialled: Gauge,
    removed: Family<Removed, Counter>,
    removed_bytes: Counter,
    retention_failed: Counter,
    retention_rounds: Histogram,
    /// The pages that rounds of the retention gave back.
    retention_pages: Counter,
    swept: Swept,
    shown_swept: Family<Removed, Counter>,
    shown_pages: Counter,
}

/// Counts what sweepers removed.
#[derive(Debug, Clone, Default)]
pub(super) struct Swept {
    /// Expired rows, and the pages given back.
    pub(super) stores: SweeperCounts,
    /// What interrupted deletions and imports left of the sessions of agent hosts.
    pub(super) sessions: SweepCount,
    /// Expired states of agents, and what interrupted deletions left of them.
    pub(super) states: SweepCount,
    /// What interrupted deletions and imports left of traces.
    pub(super) traces: SweepCount,
}

impl Metrics {
    pub(super) fn new(swept: Swept) -> Self {
        let metrics = Self {
            registry: Registry::default(),
            durations: Family::new_with_constructor(|| Histogram::new(REQUEST_SECONDS)),
            refused: Counter::default(),
            running: Gauge::default(),
            received: Counter::default(),
            sent: Counter::default(),
            operations: Family::new_with_constructor(|| Histogram::new(OPERATION_SECONDS)),
            content: Family::default(),
            threads: Gauge::default(),
            audit_lost: Gauge::default(),
            events_lost: Gauge::default(),
            tunnels: Gauge::default(),
            tunnels_opened: Gauge::default(),
            tunnels_refused: Gauge::default(),
            tunnel_requests: Gauge::default(),
            dialled: Gauge::default(),
            removed: Family::default(),
            removed_bytes: Counter::default(),
            retention_failed: Counter::default(),
            retention_rounds: Histogram::new(ROUND_SECONDS),
            retention_pages: Counter::default(),
            swept,
            shown_swept: Family::default(),
            shown_pages: Counter::default(),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        registry.register("http_server_request_duration_seconds", "Time from receiving a request to its response", self.durations.clone());
        registry.register("http_server_active_requests", "Requests in progress", self.running.clone());
        registry.register("http_server_requests_refused", "Requests refused because too many were in progress", self.refused.clone());
        registry.register("http_server_request_body_bytes", "Bytes of request bodies received", self.received.clone());
        registry.register("http_server_response_body_bytes", "Bytes of response bodies sent", self.sent.clone());
        registry.register("vfs_operation_duration_seconds", "Duration of operations on the tree", self.operations.clone());
        registry.register("vfs_content_bytes", "Bytes of file content that operations read and wrote", self.content.clone());
        registry.register("vfs_threads", "Threads that are currently open", self.threads.clone());
        registry.register("vfs_audit_rows_lost", "Audit rows that could not be saved", self.audit_lost.clone());
        registry.register("vfs_events_lost", "Changes whose events could not be saved", self.events_lost.clone());
        registry.register("vfs_tunnels", "Machines that are connected to this server", self.tunnels.clone());
        registry.register("vfs_tunnels_opened", "Connections of machines that were opened", self.tunnels_opened.clone());
        registry.register("vfs_tunnels_refused", "Connections of machines that were refused", self.tunnels_refused.clone());
        registry.register("vfs_tunnel_requests", "Requests sent to machines that are connected", self.tunnel_requests.clone());
        registry.register("vfs_dialled", "Servers that this one dialled and that are connected", self.dialled.clone());
        registry.register("vfs_retention_removed", "Rows that were removed because no policy keeps them", self.removed.clone());
        registry.register("vfs_retention_removed_content_bytes", "Bytes of the contents among them", self.removed_bytes.clone());
        registry.register(
            "vfs_retention_failures",
            "Threads, users and rounds that failed and are tried again",
            self.retention_failed.clone(),
        );
        registry.register("vfs_retention_round_duration_seconds", "Duration of rounds of the retention", self.retention_rounds.clone());
        registry.register(
            "vfs_swept",
            "Expired rows that this server removed, and what it removed of expired states and of interrupted deletions and imports",
            self.shown_swept.clone(),
        );
        registry.register(
            "vfs_store_pages_given_back",
            "Unused pages that this server gave back from files of stores to the file system",
            self.shown_pages.clone(),
        );
        self
    }

    /// Returns the gauge of connections to other servers.
    pub(super) fn dialled(&self) -> Gauge {
        self.dialled.clone()
    }

    /// Returns the gauge of requests in progress.
    pub(super) fn running(&self) -> Gauge {
        self.running.clone()
    }

    /// Counts what a round of the retention removed and gave back.
    pub(super) fn retention(&self, round: &Round) {
        let report = &round.report;
        let removed =
            [("checkpoints", report.checkpoints), ("calls", report.calls), ("contents", report.contents), ("packs", report.packs)];
        for (kind, count) in removed.into_iter().chain([("file_pages", round.pages)]) {
            self.removed.get_or_create(&Removed { kind }).inc_by(count);
        }
        self.retention_pages.inc_by(round.pages);
        self.removed_bytes.inc_by(report.content_bytes);
        self.retention_failed.inc_by(report.failed + u64::from(!round.is_complete));
        self.retention_rounds.observe(round.took.as_secs_f64());
    }

    pub(super) fn refuse(&self) {
        self.refused.inc();
    }

    /// Counts received bytes of a request body.
    pub(super) fn receive(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }

    /// Counts a finished operation.
    pub(super) fn operation(&self, kind: OpKind, outcome: &'static str, took: Duration) {
        let labels = Operation { operation: kind.name(), outcome };
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Counts the bytes of content that an operation read and wrote.
    pub(super) fn content(&self, read: u64, written: u64) {
        for (direction, bytes) in [("read", read), ("write", written)] {
            if bytes > 0 {
                self.content.get_or_create(&Direction { direction }).inc_by(bytes);
            }
        }
    }

    /// Returns all metrics, those of the workspace and of the tunnels as they are now.
    pub(super) fn show(&self, workspace: &Workspace, tunnels: TunnelCounts) -> Response {
        self.tunnels.set(i64::try_from(tunnels.open).unwrap_or(i64::MAX));
        for (gauge, count) in
            [(&self.tunnels_opened, tunnels.opened), (&self.tunnels_refused, tunnels.refused), (&self.tunnel_requests, tunnels.requests)]
        {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.threads.set(i64::try_from(workspace.open_threads()).unwrap_or(i64::MAX));
        self.audit_lost.set(i64::try_from(workspace.audit_log().map_or(0, |log| log.lost())).unwrap_or(i64::MAX));
        self.events_lost.set(i64::try_from(workspace.feed().map_or(0, |feed| feed.lost())).unwrap_or(i64::MAX));
        let Swept { stores, sessions, states, traces } = &self.swept;
        for (kind, count) in [("rows", &stores.rows), ("sessions", sessions), ("states", states), ("traces", traces)] {
            self.shown_swept.get_or_create(&Removed { kind }).inner().store(count.get(), Ordering::Relaxed);
        }
        self.shown_pages.inner().store(stores.pages.get() + self.retention_pages.get(), Ordering::Relaxed);
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response(),
            Err(fmt::Error) => axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// Decrements the gauge when a request ends, however it ends.
struct Running(Gauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Returns the method as the conventions name it; unknown methods are `_OTHER`.
pub(super) fn method(request: &Request) -> &'static str {
    ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"].into_iter().find(|known| request.method() == known).unwrap_or("_OTHER")
}

/// Returns the route template of a request, or `none` if no route matches.
pub(super) fn route(request: &Request) -> &str {
    request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str)
}

/// Times a request and counts the bytes of its response.
pub(super) async fn time<F: Future<Output = Response>>(metrics: &Metrics, request: Request, next: impl FnOnce(Request) -> F) -> Response {
    let begun = Instant::now();
    let (method, route) = (method(&request), route(&request).to_owned());
    metrics.running.inc();
    let running = Running(metrics.running.clone());
    let response = next(request).await;
    drop(running);
    let labels = Answered { http_request_method: method, http_route: route, http_response_status_code: response.status().as_u16() };
    metrics.durations.get_or_create(&labels).observe(begun.elapsed().as_secs_f64());
    if method == "HEAD" {
        return response;
    }
    match response.body().size_hint().exact() {
        Some(bytes) => {
            metrics.sent.inc_by(bytes);
            response
        }
        None => response.map(|body| {
            let sent = metrics.sent.clone();
            let count = move |part: &Result<bytes::Bytes, axum::Error>| {
                if let Ok(part) = part {
                    sent.inc_by(part.len() as u64);
                }
            };
            Body::from_stream(body.into_data_stream().inspect(count))
        }),
    }
}
