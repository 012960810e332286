//! What sends one request to one server: a pooled network client, or the tunnel of a machine that dialled in.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{HeaderMap, Method, StatusCode};
use std::fmt;
use std::time::Duration;

/// The cause beneath a [`TransportError`].
type Source = Box<dyn std::error::Error + Send + Sync>;

/// Sends requests to one server, once each.
///
/// A transport does not retry, follow redirects, or interpret a status. [`PeerClient`](crate::PeerClient) does all of that, and decides by
/// [`Failure`] whether a request may be sent again.
#[async_trait]
pub trait Transport: fmt::Debug + Send + Sync {
    /// Sends a request and returns the head of the response with its body as a stream. Dropping the body abandons the response.
    ///
    /// # Errors
    /// A [`TransportError`] whose [`Failure`] says whether the server may have received the request. If that is unknown, it is
    /// [`Failure::Broken`].
    async fn send(&self, request: TransportRequest) -> Result<TransportResponse, TransportError>;
}

/// One request. The transport adds the server's authority.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TransportRequest {
    /// The method.
    pub method: Method,
    /// The path with an optional query, percent-encoded, starting with `/`.
    pub path_and_query: String,
    /// The headers, which may include a token marked as sensitive.
    pub headers: HeaderMap,
    /// The body, or `None` for a request without one.
    pub body: Option<Bytes>,
    /// How long the caller will wait for the response. A transport that waits for a connection waits no longer than this.
    pub timeout: Duration,
}

impl TransportRequest {
    /// Makes a request without headers or body, with a time limit.
    pub fn new(method: Method, path_and_query: impl Into<String>, timeout: Duration) -> Self {
        Self { method, path_and_query: path_and_query.into(), headers: HeaderMap::new(), body: None, timeout }
    }

    /// Sets the headers.
    #[must_use]
    pub fn with_headers(mut self, headers: HeaderMap) -> Self {
        self.headers = headers;
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn with_body(mut self, body: Option<Bytes>) -> Self {
        self.body = body;
        self
    }
}

/// The head of a response, and its body as it arrives.
#[non_exhaustive]
pub struct TransportResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, decompressed. The stream ends after an error.
    pub body: BoxStream<'static, Result<Bytes, TransportError>>,
}

impl TransportResponse {
    /// Makes a response.
    pub fn new(status: StatusCode, headers: HeaderMap, body: BoxStream<'static, Result<Bytes, TransportError>>) -> Self {
        Self { status, headers, body }
    }
}

impl fmt::Debug for TransportResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportResponse").field("status", &self.status).finish_non_exhaustive()
    }
}

/// How far a failed request got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// There is no connection to the server, and another attempt at once would not change that. Nothing was sent.
    Absent,
    /// Connecting failed. Nothing was sent.
    Unsent,
    /// The time limit passed. The server may have received the request.
    TimedOut,
    /// The connection failed before the response was complete. The server may have received the request.
    Broken,
}

/// A request without a complete response.
#[derive(Debug)]
pub struct TransportError {
    failure: Failure,
    message: Option<String>,
    source: Option<Source>,
}

impl TransportError {
    /// Makes an error of a kind.
    pub fn new(failure: Failure) -> Self {
        Self { failure, message: None, source: None }
    }

    /// Sets a message for the caller, which replaces the usual one.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Sets the cause. It must not contain a token.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns how far the request got.
    pub fn failure(&self) -> Failure {
        self.failure
    }

    /// Takes the message and the cause.
    pub(crate) fn into_parts(self) -> (Failure, Option<String>, Option<Source>) {
        (self.failure, self.message, self.source)
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.message, self.failure) {
            (Some(message), _) => f.write_str(message),
            (None, Failure::Absent) => f.write_str("the server is not connected"),
            (None, Failure::Unsent) => f.write_str("the server cannot be reached"),
            (None, Failure::TimedOut) => f.write_str("the server did not answer in time"),
            (None, Failure::Broken) => f.write_str("the server closed the connection before it answered"),
        }
    }
}

impl std::error::Error for TransportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
