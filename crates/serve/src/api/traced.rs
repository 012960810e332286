//! Each request as a span, in the trace that it continues or starts.
//!
//! Names follow [OpenTelemetry's conventions](https://opentelemetry.io/docs/specs/semconv/http/http-spans/). Spans contain nothing from
//! queries or headers.

use crate::metrics::{method, route};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;
use std::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, info, info_span};
use treehold_core::trace::{TRACEPARENT, TRACESTATE, TraceContext};

/// Runs a request in a span of its trace.
pub(super) async fn follow<F: Future<Output = Response>>(mut request: Request, next: impl FnOnce(Request) -> F) -> Response {
    let begun = Instant::now();
    let before = told(request.headers());
    let context = before.as_ref().map_or_else(TraceContext::new, TraceContext::child);
    let (method, path) = (method(&request), request.uri().path().to_owned());
    let span = info_span!(
        "request",
        otel.kind = "server",
        otel.name = format!("{method} {}", route(&request)),
        http.request.method = method,
        http.route = route(&request),
        url.path = path,
        http.response.status_code = Empty,
        trace_id = context.trace_id(),
        span_id = context.span_id(),
        parent_span_id = before.map(|before| before.span_id()),
    );
    request.extensions_mut().insert(context.clone());
    let done = async {
        let response = next(request).await;
        let status = response.status().as_u16();
        let duration_ms = begun.elapsed().as_millis() as u64;
        info!(http.request.method = method, url.path = path, http.response.status_code = status, duration_ms, "answered");
        response
    };
    let response = context.scope(done.instrument(span.clone())).await;
    span.record("http.response.status_code", response.status().as_u16());
    response
}

/// Parses the trace context of a request. Several parent headers count as none.
fn told(headers: &HeaderMap) -> Option<TraceContext> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let (parent, None) = (parents.next()?.to_str().ok()?, parents.next()) else { return None };
    let states: Vec<&str> = headers.get_all(TRACESTATE).iter().filter_map(|state| state.to_str().ok()).collect();
    TraceContext::parse(parent, Some(&states.join(",")))
}
