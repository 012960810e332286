//! Sending requests: retries where they are safe, bounds on answers, and conversion of errors.

use super::address::{Address, encoded};
use super::network::Network;
use super::transport::{Failure, Transport, TransportError, TransportRequest, TransportResponse};
use super::{ANSWER_BYTES_MAX, RemoteOptions, no_answer};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tracing::{Instrument, debug_span};
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::trace::{TRACEPARENT, TRACESTATE, TraceContext};
use treehold_core::wire::{ACTOR_HEADER, PROBLEM_TYPE, Problem, RequestFault, THREAD_HEADER};

/// The pause before a request is sent again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));

/// The most bytes of an error answer, and of its message.
const PROBLEM_BYTES_MAX: u64 = 1 << 20;
const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// The client of one treehold server. Clones share its connections.
///
/// Every request carries the token, thread and actor of the [`RemoteOptions`]. Requests that are safe to repeat are sent again after
/// failures that may pass: those without an idempotency key must be reads, and those with one keep it for all attempts.
#[derive(Clone)]
pub struct PeerClient {
    transport: Arc<dyn Transport>,
    name: Arc<str>,
    headers: HeaderMap,
    options: RemoteOptions,
}

/// A request, which may be sent several times.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Ask {
    /// The method.
    pub method: Method,
    /// The path with an optional query, percent-encoded, starting with `/`.
    pub path_and_query: String,
    /// The body, which is JSON.
    pub body: Option<Bytes>,
    /// For changes: the idempotency key that all attempts share. A request that changes something must have one.
    pub key: Option<String>,
    /// The most bytes of the answer. Default 64 MiB.
    pub bytes_max: u64,
}

impl Ask {
    /// Asks by a method, without a body or key.
    pub fn new(method: Method, path_and_query: impl Into<String>) -> Self {
        Self { method, path_and_query: path_and_query.into(), body: None, key: None, bytes_max: ANSWER_BYTES_MAX }
    }

    /// Asks by GET.
    pub fn get(path_and_query: impl Into<String>) -> Self {
        Self::new(Method::GET, path_and_query)
    }

    /// Asks by POST.
    pub fn post(path_and_query: impl Into<String>) -> Self {
        Self::new(Method::POST, path_and_query)
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Sets a value as the body.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a value that JSON cannot represent.
    pub fn with_json(self, value: &impl Serialize) -> Result<Self> {
        let body = serde_json::to_vec(value)
            .map_err(|error| Error::invalid_argument("the request cannot be written as JSON").with_source(error))?;
        Ok(self.with_body(body))
    }

    /// Sets the idempotency key of a change.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the most bytes of the answer.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: u64) -> Self {
        self.bytes_max = bytes_max;
        self
    }
}

/// A successful answer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Answer {
    /// The status, one of 2xx.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// The source of an error that a server reported by a status alone, without a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedStatus(
    /// The status.
    pub StatusCode,
);

impl fmt::Display for RefusedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.0.as_u16())
    }
}

impl std::error::Error for RefusedStatus {}

/// A failed attempt.
struct Failed {
    error: Error,
    /// Whether another attempt may succeed.
    in_passing: bool,
    /// Whether the request may have taken effect.
    effect_open: bool,
}

impl PeerClient {
    /// Makes the client of a server, given as `https://HOST:PORT`. A path in the URL names a directory for file operations
    /// ([`RemoteBackend`](crate::RemoteBackend)) and is ignored here. Sends nothing. Blocks for some milliseconds to read the system's
    /// root certificates.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a URL that is invalid, contains a user, or uses `http` to another host without
    /// permission, and for a token, thread or actor that does not fit into a header. [`Unavailable`](ErrorKind::Unavailable) if no root
    /// certificates can be found.
    pub fn new(url: &str, options: RemoteOptions) -> Result<Self> {
        Self::at(&Address::parse(url, options.plain_http)?, options)
    }

    pub(super) fn at(address: &Address, options: RemoteOptions) -> Result<Self> {
        let network = Network::new(address, &options)?;
        Self::over(Arc::new(network), address.peer(), options)
    }

    /// Makes the client of a server that a transport reaches. `name` is the server's name in messages.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a token that does not fit into a header.
    pub fn over(transport: Arc<dyn Transport>, name: impl Into<Arc<str>>, options: RemoteOptions) -> Result<Self> {
        Ok(Self { transport, name: name.into(), headers: headers(&options)?, options })
    }

    /// Returns the server's name in messages: scheme, host and port, or the name of the peer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the options.
    pub fn options(&self) -> &RemoteOptions {
        &self.options
    }

    /// Sends one request without retries. `headers` are added to those of every request.
    pub(super) async fn open(
        &self,
        method: Method,
        path_and_query: &str,
        headers: HeaderMap,
        body: Option<Bytes>,
    ) -> Result<TransportResponse, TransportError> {
        let mut all = self.headers.clone();
        for (name, value) in &headers {
            all.insert(name, value.clone());
        }
        let request = TransportRequest::new(method, path_and_query, self.options.timeout).with_headers(all).with_body(body);
        self.transport.send(request).await
    }

    /// Sends a request until it is answered or must not be sent again.
    ///
    /// # Errors
    /// The error that the server reports. [`Unavailable`](ErrorKind::Unavailable) if it cannot be reached or closed the connection,
    /// [`Deadline`](ErrorKind::Deadline) if it did not answer in time, [`PermissionDenied`](ErrorKind::PermissionDenied) for a wrong token,
    /// [`TooLarge`](ErrorKind::TooLarge) for an overlong answer, [`InvalidArgument`](ErrorKind::InvalidArgument) for a path that is no
    /// path. An error of a request with a key says whether it may have taken effect.
    pub async fn ask(&self, ask: &Ask) -> Result<Answer> {
        check_path(&ask.path_and_query)?;
        let trace = TraceContext::current().map_or_else(TraceContext::new, |context| context.child());
        let span = debug_span!(
            "request",
            otel.kind = "client",
            http.request.method = ask.method.as_str(),
            server.address = &*self.name,
            trace_id = trace.trace_id(),
            span_id = trace.span_id(),
        );
        self.ask_within(ask, &trace).instrument(span).await
    }

    async fn ask_within(&self, ask: &Ask, trace: &TraceContext) -> Result<Answer> {
        let mut effect_open = false;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let failed = match self.attempt(ask, trace).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            effect_open |= failed.effect_open && ask.key.is_some();
            if !failed.in_passing || attempts >= self.options.attempts_max {
                return Err(with_attempts(failed.error, ask, attempts, effect_open));
            }
            let pause = BACKOFF.pause(u32::try_from(attempts - 1).unwrap_or(u32::MAX));
            tracing::debug!(peer = &*self.name, attempts, ?pause, %trace, error = %failed.error, "the remote server failed temporarily; retrying");
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(&self, ask: &Ask, trace: &TraceContext) -> Result<Answer, Failed> {
        let answered = tokio::time::timeout(self.options.timeout, self.exchange(ask, trace));
        answered.await.unwrap_or_else(|_| Err(self.unreached(TransportError::new(Failure::TimedOut))))
    }

    async fn exchange(&self, ask: &Ask, trace: &TraceContext) -> Result<Answer, Failed> {
        let mut headers = HeaderMap::new();
        let header = |text: &str| HeaderValue::from_str(text).ok();
        headers.extend(header(&trace.to_string()).map(|value| (HeaderName::from_static(TRACEPARENT), value)));
        headers.extend(trace.state().and_then(header).map(|value| (HeaderName::from_static(TRACESTATE), value)));
        if ask.body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = &ask.key {
            let key = HeaderValue::from_str(key).map_err(|error| Failed {
                error: Error::invalid_argument("an idempotency key must consist of visible ASCII characters").with_source(error),
                in_passing: false,
                effect_open: false,
            })?;
            headers.insert("idempotency-key", key);
        }
        let opened = self.open(ask.method.clone(), &ask.path_and_query, headers, ask.body.clone()).await;
        let response = opened.map_err(|error| self.unreached(error))?;
        let (status, media_type) = (response.status, media_type(&response.headers));
        let is_error = !status.is_success() || media_type == PROBLEM_TYPE;
        let bytes_max = if is_error { ask.bytes_max.min(PROBLEM_BYTES_MAX) } else { ask.bytes_max };
        let headers = response.headers.clone();
        let body = match self.body(response, bytes_max).await {
            // An overlong error is dropped; its status still says what it is.
            Err(failed) if is_error && failed.error.kind() == ErrorKind::TooLarge => Bytes::new(),
            body => body?,
        };
        match is_error {
            false => Ok(Answer { status, headers, body }),
            true => Err(self.refusal(status, &media_type, &body, ask.key.is_some())),
        }
    }

    /// Returns the error of a response that is not the stream it should be.
    pub(super) async fn refusal_of(&self, response: TransportResponse) -> Error {
        let (status, media_type) = (response.status, media_type(&response.headers));
        let body = self.body(response, PROBLEM_BYTES_MAX).await.unwrap_or_default();
        self.refusal(status, &media_type, &body, false).error.without_effect()
    }

    /// Reads a body up to a bound, whatever length its header declares.
    async fn body(&self, mut response: TransportResponse, bytes_max: u64) -> Result<Bytes, Failed> {
        let large = || Failed {
            error: Error::new(
                ErrorKind::TooLarge,
                format!("the answer of `{}` has over {bytes_max} bytes; request less at once", self.name),
            ),
            in_passing: false,
            effect_open: true,
        };
        let promised = response.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if promised.unwrap_or(0) > bytes_max {
            return Err(large());
        }
        let mut body = BytesMut::new();
        while let Some(chunk) = response.body.next().await {
            let chunk = chunk.map_err(|error| self.unreached(error))?;
            if (body.len() + chunk.len()) as u64 > bytes_max {
                return Err(large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Returns the headers of every request.
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Makes the error of a request without effects whose answer is missing or incomplete.
    pub(super) fn unanswered(&self, error: TransportError) -> Error {
        self.unreached(error).error.without_effect()
    }

    /// Makes the failure of a request whose answer is missing or incomplete.
    fn unreached(&self, error: TransportError) -> Failed {
        let (failure, message, source) = error.into_parts();
        let (kind, what, in_passing, effect_open) = match failure {
            Failure::Absent => (ErrorKind::Unavailable, "is not connected", false, false),
            Failure::Unsent => (ErrorKind::Unavailable, "cannot be reached", true, false),
            Failure::TimedOut => (ErrorKind::Deadline, "did not answer in time", false, true),
            Failure::Broken => (ErrorKind::Unavailable, "closed the connection before it answered", true, true),
        };
        let error = Error::new(kind, message.unwrap_or_else(|| format!("`{}` {what}", self.name)));
        let error = match source {
            Some(source) => error.with_source(source),
            None => error,
        };
        Failed { error, in_passing, effect_open }
    }

    /// Makes the failure for an error answer.
    fn refusal(&self, status: StatusCode, media_type: &str, body: &[u8], has_key: bool) -> Failed {
        let peer = &self.name;
        if status == StatusCode::UNAUTHORIZED {
            let message = match self.options.token {
                Some(_) => format!("`{peer}` rejects its token; check that the token is still valid"),
                None => format!("`{peer}` requires a token; set `token` of the peer"),
            };
            return Failed { error: Error::new(ErrorKind::PermissionDenied, message), in_passing: false, effect_open: false };
        }
        let problem = (media_type == PROBLEM_TYPE).then(|| serde_json::from_slice::<Problem>(body).ok()).flatten();
        if let Some(problem) = problem {
            let fault = problem.fault();
            let error = shortened(problem.into_error());
            if fault == Some(RequestFault::RequestRunning) {
                // The first attempt continues without its connection, and its answer comes later.
                let message = format!("`{peer}` is still processing an earlier attempt of this change");
                return Failed { error: Error::new(ErrorKind::Unavailable, message), in_passing: true, effect_open: true };
            }
            let may_have_effect = error.may_have_effect() || error.applied() > 0;
            let in_passing = error.kind().is_transient() && (!has_key || !may_have_effect);
            return Failed { in_passing, effect_open: may_have_effect, error };
        }
        let (kind, what, in_passing) = match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                (ErrorKind::Unavailable, "is not available", true)
            }
            StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => (ErrorKind::Deadline, "did not answer in time", false),
            StatusCode::FORBIDDEN => (ErrorKind::PermissionDenied, "refuses the request", false),
            StatusCode::PAYLOAD_TOO_LARGE => (ErrorKind::TooLarge, "does not accept a request this large", false),
            _ if status.is_redirection() => {
                (ErrorKind::Unsupported, "redirects elsewhere, and redirects are not followed; use the target address itself", false)
            }
            _ if status.is_client_error() => (ErrorKind::Unsupported, "does not support the request; is it a treehold server?", false),
            _ if status.is_server_error() => (ErrorKind::Internal, "failed", false),
            // This includes an answer with a success status and the content type of an error.
            _ => return Failed { error: no_answer(peer, format_args!("status {status}")), in_passing: false, effect_open: true },
        };
        let error = Error::new(kind, format!("`{peer}` {what} (status {})", status.as_u16())).with_source(RefusedStatus(status));
        Failed { error, in_passing, effect_open: status.is_server_error() }
    }

    /// Parses a JSON answer.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for an answer that is not JSON, or not that of a `T`.
    pub fn json<T: DeserializeOwned>(&self, answer: &Answer) -> Result<T> {
        if media_type(&answer.headers) != "application/json" {
            return Err(no_answer(&self.name, "something other than JSON"));
        }
        serde_json::from_slice(&answer.body).map_err(|error| no_answer(&self.name, "unexpected JSON").with_source(error))
    }
}

impl fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerClient").field("name", &self.name).field("options", &self.options).finish_non_exhaustive()
    }
}

/// Refuses a path that could name another server or hides a second request.
fn check_path(path_and_query: &str) -> Result<()> {
    let is_plain = path_and_query.starts_with('/') && path_and_query.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if is_plain {
        return Ok(());
    }
    Err(Error::invalid_argument("the path of a request starts with `/` and is percent-encoded").without_effect())
}

/// Adds the number of attempts, and whether a change may have taken effect.
fn with_attempts(error: Error, ask: &Ask, attempts: usize, effect_open: bool) -> Error {
    let error = match attempts {
        1 => error,
        _ => {
            let message = format!("{} (tried {attempts} times)", error.message());
            error.with_message(message)
        }
    };
    match (&ask.key, error.change()) {
        (None, _) => error.without_effect(),
        // The remote tree itself reports what became of its batch.
        (Some(_), Some(_)) => error,
        (Some(_), None) if effect_open => error.with_unknown_effect(),
        (Some(_), None) => error.without_effect(),
    }
}

/// Shortens an overlong message.
fn shortened(error: Error) -> Error {
    let message = error.message();
    if message.len() <= MESSAGE_BYTES_MAX {
        return error;
    }
    let message = format!("{}…", &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)]);
    error.with_message(message)
}

fn media_type(headers: &HeaderMap) -> String {
    essence(headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()).to_ascii_lowercase()
}

/// Returns a media type without parameters.
pub(super) fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

/// Makes the headers of every request.
fn headers(options: &RemoteOptions) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    if let Some(token) = &options.token {
        // The error does not reveal the token.
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim_end()))
            .map_err(|_| Error::invalid_argument("the token of the peer must consist of visible ASCII characters"))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    for (name, value) in [(THREAD_HEADER, &options.thread), (ACTOR_HEADER, &options.actor)] {
        if let Some(value) = value {
            let value = HeaderValue::from_str(&encoded(value)).expect("percent-encoded text is visible ASCII");
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;

    /// A transport that nothing may reach.
    #[derive(Debug)]
    struct Unused;

    #[async_trait]
    impl Transport for Unused {
        async fn send(&self, request: TransportRequest) -> Result<TransportResponse, TransportError> {
            panic!("{request:?} was sent");
        }
    }

    #[tokio::test]
    async fn path_that_is_none_is_refused_before_anything_is_sent() {
        let client = PeerClient::over(Arc::new(Unused), "agent://laptop", RemoteOptions::new()).expect("no token");
        for path in ["", "v1/ls", "http://other/v1/ls", "/v1/a b", "/v1/ls\r\nhost: other", "/v1/\u{e9}", "/v1/ls#x", "\0"] {
            let error = client.ask(&Ask::get(path)).await.expect_err(path);
            assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::InvalidArgument, false), "{path}");
        }
        let error = client.ask(&Ask::post("/v1/apply").with_key("a\nb")).await.expect_err("no header value");
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::InvalidArgument, false));
    }

    #[test]
    fn token_that_fits_in_no_header_is_refused_without_revealing_it() {
        let options = RemoteOptions::new().with_token("s3cret\nx");
        let error = PeerClient::over(Arc::new(Unused), "agent://laptop", options).expect_err("a line break");
        assert!(error.kind() == ErrorKind::InvalidArgument && !format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}
