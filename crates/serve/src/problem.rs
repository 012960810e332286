//! Errors as HTTP responses.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use treehold_agent::tools::with_near_paths;
use treehold_core::error::Error;
use treehold_core::trace::TraceContext;
use treehold_core::wire::{KeyRecord, PROBLEM_TYPE, Problem, RequestFault};
use treehold_tree::backend::Backend;

/// The response headers about an idempotency key.
const STATE: HeaderName = HeaderName::from_static("idempotency-state");
const EXPIRES_IN: HeaderName = HeaderName::from_static("idempotency-expires-in");

/// A response extension: whether the change may have taken effect despite the error.
#[derive(Debug, Clone, Copy)]
pub(super) struct MayHaveEffect(pub(super) bool);

/// An error that becomes a response.
#[derive(Debug)]
pub(crate) struct Failed {
    error: Error,
    /// A status that overrides that of the error kind.
    status: Option<StatusCode>,
    /// What is wrong with the request itself.
    fault: Option<RequestFault>,
    /// The state of the request's idempotency key.
    key: Option<KeyRecord>,
}

impl Failed {
    /// A failed precondition (RFC 9110, section 13).
    pub(super) fn precondition(error: Error) -> Self {
        Self::with_status(error, StatusCode::PRECONDITION_FAILED)
    }

    /// Overrides the status of the error kind.
    pub(super) fn with_status(error: Error, status: StatusCode) -> Self {
        Self { error, status: Some(status), fault: None, key: None }
    }

    /// The request itself cannot be handled, and nothing was done.
    pub(super) fn of_request(fault: RequestFault, message: impl Into<String>) -> Self {
        Self { error: Error::new(fault.kind(), message).without_effect(), status: None, fault: Some(fault), key: None }
    }

    /// Attaches the state of the request's idempotency key.
    pub(super) fn with_key(mut self, key: KeyRecord) -> Self {
        self.key = Some(key);
        self
    }

    /// Adds similar paths of the caller's tree if the error says that one does not exist.
    pub(super) async fn with_near_paths(mut self, tree: &dyn Backend) -> Self {
        self.error = with_near_paths(tree, self.error).await;
        self
    }

    /// Changes the error.
    pub(super) fn map(mut self, change: impl FnOnce(Error) -> Error) -> Self {
        self.error = change(self.error);
        self
    }

    pub(super) fn into_response(self) -> Response {
        match (self.fault, self.status) {
            (Some(fault), _) => {
                let mut problem = Problem::of_request(fault, self.error.message());
                problem.idempotency_key = self.key;
                let mut response = answer(problem, &self.error);
                if let Some(key) = self.key {
                    tell_key(response.headers_mut(), key);
                }
                response
            }
            (None, Some(status)) => with_status(&self.error, status),
            (None, None) => response(&self.error),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, status: None, fault: None, key: None }
    }
}

/// Returns the response for an error.
pub(crate) fn response(error: &Error) -> Response {
    answer(Problem::new(error), error)
}

/// Returns the response for an error, with a status that overrides that of its kind.
pub(crate) fn with_status(error: &Error, status: StatusCode) -> Response {
    let mut problem = Problem::new(error);
    problem.status = status.as_u16();
    answer(problem, error)
}

fn answer(mut problem: Problem, error: &Error) -> Response {
    problem.trace_id = TraceContext::current().map(|context| context.trace_id());
    if problem.status >= 500 {
        tracing::warn!(code = error.kind().code(), source = ?std::error::Error::source(error), "{error}");
    }
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.extensions_mut().insert(MayHaveEffect(error.may_have_effect() || error.applied() > 0));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(version) = error.current_version() {
        headers.insert(header::ETAG, crate::etag::header(version));
    }
    if problem.status == 503 {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Adds headers with the state of a key and the time until it expires.
pub(crate) fn tell_key(headers: &mut HeaderMap, record: KeyRecord) {
    headers.insert(STATE, HeaderValue::from_static(record.state.name()));
    headers.insert(EXPIRES_IN, HeaderValue::from(record.expires_in_seconds));
}
