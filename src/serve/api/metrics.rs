//! Counts and times of requests, in the text format of Prometheus. The label of a path is its route, never the path.

use super::Api;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The bounds of the times, in seconds.
const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    method: String,
    route: String,
    status: u16,
}

/// What is counted.
pub(super) struct Metrics {
    registry: Registry,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    refused: Counter,
    running: Gauge,
    threads: Gauge,
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

impl Metrics {
    pub(super) fn new() -> Self {
        let durations: Family<Labels, Histogram, fn() -> Histogram> = Family::new_with_constructor(histogram);
        let (refused, running, threads) = (Counter::default(), Gauge::default(), Gauge::default());
        let mut registry = Registry::default();
        registry.register("http_server_request_duration_seconds", "How long requests took", durations.clone());
        registry.register("http_server_requests_refused", "Requests refused as too many ran", refused.clone());
        registry.register("http_server_active_requests", "Requests that run now", running.clone());
        registry.register("vfs_threads", "Threads that are open now", threads.clone());
        Self { registry, durations, refused, running, threads }
    }

    pub(super) fn refuse(&self) {
        self.refused.inc();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// Counts a request down when it ends, however that is.
struct Running(Gauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Times a request.
pub(super) async fn time(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = match request.method().as_str() {
        known @ ("GET" | "HEAD" | "PUT" | "POST" | "PATCH" | "DELETE" | "OPTIONS") => known.to_owned(),
        _ => "other".to_owned(),
    };
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    api.metrics.running.inc();
    let running = Running(api.metrics.running.clone());
    let response = next.run(request).await;
    drop(running);
    let labels = Labels { method, route, status: response.status().as_u16() };
    api.metrics.durations.get_or_create(&labels).observe(begun.elapsed().as_secs_f64());
    response
}

/// Tells all counts.
pub(super) async fn show(State(api): State<Arc<Api>>) -> Response {
    let open = i64::try_from(api.workspace.open_threads()).unwrap_or(i64::MAX);
    api.metrics.threads.set(open);
    let mut text = String::new();
    match encode(&mut text, &api.metrics.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response(),
        Err(fmt::Error) => axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
