//! Sending requests: retries where they are safe, bounds on answers, and conversion of errors.

use super::address::{Address, encoded};
use super::{RemoteOptions, no_answer};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url, redirect};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::{Instrument, debug_span};
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Capabilities;
use treehold_core::trace::{TRACEPARENT, TRACESTATE, TraceContext};
use treehold_core::wire::{ACTOR_HEADER, CapabilitiesReply, PREFIX, PROBLEM_TYPE, Problem, RequestFault, THREAD_HEADER};

/// The pause before a request is sent again.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));

/// The most bytes of an error answer, and of its message.
const PROBLEM_BYTES_MAX: u64 = 1 << 20;
const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// A server and the connections to it.
pub(super) struct Far {
    client: Client,
    address: Address,
    peer: String,
    pub(super) options: RemoteOptions,
    /// The capabilities of the remote tree, once known.
    declared: OnceLock<Capabilities>,
    /// Whether a task is fetching the capabilities.
    asking: Mutex<bool>,
}

/// A request, which may be sent several times.
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) body: Option<Bytes>,
    /// For changes: the idempotency key that all attempts share.
    pub(super) key: Option<String>,
    /// The most bytes of the answer.
    pub(super) bytes_max: u64,
}

/// A successful answer.
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// A failed attempt.
struct Failed {
    error: Error,
    /// Whether another attempt may succeed.
    in_passing: bool,
    /// Whether the request may have taken effect.
    effect_open: bool,
}

impl Far {
    pub(super) fn new(address: Address, options: RemoteOptions) -> Result<Self> {
        let peer = address.peer();
        let is_encrypted = address.origin.scheme() == "https";
        let builder = Client::builder()
            .user_agent(concat!("treehold/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers(&options)?)
            .tls_backend_preconfigured(tls(is_encrypted)?)
            .connect_timeout(options.connect_timeout)
            .pool_idle_timeout(Duration::from_secs(60))
            .tcp_keepalive(Duration::from_secs(30))
            // Never follow redirects: the other server would choose where requests go.
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false);
        // Unencrypted requests must not go through a proxy that an environment variable names.
        let builder = if is_encrypted { builder } else { builder.no_proxy() };
        let client = builder
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, "the client of other servers cannot be set up").with_source(error))?;
        Ok(Self { client, address, peer, options, declared: OnceLock::new(), asking: Mutex::new(false) })
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns the capabilities of the remote tree as far as they are known.
    pub(super) fn declared(&self) -> Capabilities {
        let unknown = || Capabilities::new().with_atomic_batch(false).with_symlinks(true).with_indexed(true);
        self.declared.get().cloned().unwrap_or_else(unknown)
    }

    /// Fetches the capabilities of the remote tree.
    pub(super) async fn ask_capabilities(&self) -> Result<Capabilities> {
        let bytes_max = PROBLEM_BYTES_MAX;
        let ask = Ask { method: Method::GET, url: self.url(["capabilities"]), body: None, key: None, bytes_max };
        let reply: CapabilitiesReply = self.json(&self.ask(&ask).await?)?;
        Ok(self.declared.get_or_init(|| reply.capabilities).clone())
    }

    /// Fetches the capabilities in the background, without delaying the current call.
    pub(super) fn ask_capabilities_beside(self: &Arc<Self>) {
        if self.declared.get().is_some() || std::mem::replace(&mut *self.asking.lock(), true) {
            return;
        }
        let far = self.clone();
        tokio::spawn(async move {
            if let Err(error) = far.ask_capabilities().await {
                tracing::debug!(peer = far.peer, %error, "the capabilities of the remote tree are not known yet");
            }
            *far.asking.lock() = false;
        });
    }

    /// Makes the URL of a resource below `/v1`.
    pub(super) fn url<'s>(&self, segments: impl IntoIterator<Item = &'s str>) -> Url {
        let mut url = self.address.origin.clone();
        url.path_segments_mut()
            .expect("an http URL has a path")
            .pop_if_empty()
            .extend(PREFIX.split('/').filter(|segment| !segment.is_empty()))
            .extend(segments);
        url
    }

    /// Starts a request without retries, for the change feed.
    pub(super) fn get(&self, url: Url) -> RequestBuilder {
        self.client.get(url)
    }

    /// Sends a request until it is answered or must not be sent again.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Answer> {
        let trace = TraceContext::current().map_or_else(TraceContext::new, |context| context.child());
        let span = debug_span!(
            "request",
            otel.kind = "client",
            http.request.method = ask.method.as_str(),
            server.address = self.peer,
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
            tracing::debug!(peer = self.peer, attempts, ?pause, %trace, error = %failed.error, "the remote server failed temporarily; retrying");
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(&self, ask: &Ask, trace: &TraceContext) -> Result<Answer, Failed> {
        let mut request =
            self.client.request(ask.method.clone(), ask.url.clone()).timeout(self.options.timeout).header(TRACEPARENT, trace.to_string());
        if let Some(state) = trace.state() {
            request = request.header(TRACESTATE, state);
        }
        if let Some(body) = &ask.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
        }
        if let Some(key) = &ask.key {
            request = request.header("idempotency-key", key);
        }
        let response = request.send().await.map_err(|error| self.unreached(error))?;
        let status = response.status();
        let media_type = media_type(&response);
        let is_error = !status.is_success() || media_type == PROBLEM_TYPE;
        let bytes_max = if is_error { ask.bytes_max.min(PROBLEM_BYTES_MAX) } else { ask.bytes_max };
        let headers = response.headers().clone();
        let body = match self.body(response, bytes_max).await {
            // An overlong error is dropped; its status still says what it is.
            Err(failed) if is_error && failed.error.kind() == ErrorKind::TooLarge => Bytes::new(),
            body => body?,
        };
        match is_error {
            false => Ok(Answer { headers, body }),
            true => Err(self.refusal(status, &media_type, &body, ask)),
        }
    }

    /// Reads a body up to a bound, whatever length its header declares.
    async fn body(&self, mut response: Response, bytes_max: u64) -> Result<Bytes, Failed> {
        let large = || Failed {
            error: Error::new(
                ErrorKind::TooLarge,
                format!("the answer of `{}` has over {bytes_max} bytes; request less at once", self.peer),
            ),
            in_passing: false,
            effect_open: true,
        };
        let promised = response.content_length().unwrap_or(0);
        if promised > bytes_max {
            return Err(large());
        }
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreached(error))? {
            if (body.len() + chunk.len()) as u64 > bytes_max {
                return Err(large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Makes the failure of a request whose answer is missing or incomplete.
    fn unreached(&self, error: reqwest::Error) -> Failed {
        let is_unsent = error.is_connect();
        let ran_out = error.is_timeout() && !is_unsent;
        let (kind, what) = match (is_unsent, ran_out) {
            (true, _) => (ErrorKind::Unavailable, "cannot be reached"),
            (false, true) => (ErrorKind::Deadline, "did not answer in time"),
            (false, false) => (ErrorKind::Unavailable, "closed the connection before it answered"),
        };
        let message = format!("`{}` {what}", self.peer);
        Failed { error: Error::new(kind, message).with_source(error.without_url()), in_passing: !ran_out, effect_open: !is_unsent }
    }

    /// Makes the failure for an error answer.
    fn refusal(&self, status: StatusCode, media_type: &str, body: &[u8], ask: &Ask) -> Failed {
        let peer = &self.peer;
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
            let in_passing = error.kind().is_transient() && (ask.key.is_none() || !may_have_effect);
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
        let error = Error::new(kind, format!("`{peer}` {what} (status {})", status.as_u16()));
        Failed { error, in_passing, effect_open: status.is_server_error() }
    }

    /// Parses a JSON answer.
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, answer: &Answer) -> Result<T> {
        let media_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if essence(media_type) != "application/json" {
            return Err(no_answer(&self.peer, "something other than JSON"));
        }
        serde_json::from_slice(&answer.body).map_err(|error| no_answer(&self.peer, "unexpected JSON").with_source(error))
    }
}

impl fmt::Debug for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Far").field("peer", &self.peer).field("options", &self.options).finish_non_exhaustive()
    }
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

fn media_type(response: &Response) -> String {
    essence(response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()).to_ascii_lowercase()
}

/// Returns a media type without parameters.
fn essence(media_type: &str) -> &str {
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

/// Makes the TLS configuration. The system's root certificates are read once per process, and only if encryption is
/// used.
fn tls(is_encrypted: bool) -> Result<ClientConfig> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = match is_encrypted {
        false => Arc::new(RootCertStore::empty()),
        true => ROOTS
            .get_or_init(|| {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                Arc::new(roots)
            })
            .clone(),
    };
    if is_encrypted && roots.is_empty() {
        let message = "this system has no root certificates; set the variable `SSL_CERT_FILE` to a file of them";
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|source| Error::new(ErrorKind::Internal, "TLS cannot be set up; this is a bug in the program").with_source(source))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
