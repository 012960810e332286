//! One tunnel: HTTP/2 over a stream, asked from this side.

use super::TunnelOptions;
use crate::transport::{Failure, TransportError, TransportRequest, TransportResponse};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt};
use http::{Method, Request};
use http_body_util::{BodyDataStream, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

/// The most unread bytes of one response, and of all responses of a tunnel.
const RESPONSE_WINDOW_BYTES: u32 = 256 << 10;
const TUNNEL_WINDOW_BYTES: u32 = 1 << 20;

/// The most bytes of request bodies that a tunnel buffers for each request.
const SEND_BYTES_MAX: usize = 256 << 10;

/// The largest head of a response, in bytes.
const HEAD_BYTES_MAX: u32 = 64 << 10;

/// How many streams that a machine resets, or that its errors reset, are tolerated at a time.
const RESETS_MAX: usize = 64;

/// The authority of requests. The machine has no address; every server answers for this one.
const AUTHORITY: &str = "localhost";

/// The tasks of a connection, which end with it.
#[derive(Debug, Clone, Default)]
struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// A tunnel.
pub(super) struct Line {
    /// Sends requests; `None` once the tunnel is closing.
    sender: Mutex<Option<SendRequest<Full<Bytes>>>>,
    requests: Arc<Semaphore>,
    tasks: Tasks,
    replaced: Notify,
}

impl Line {
    /// Starts HTTP/2 over a stream. The returned future drives the connection and completes when it ends.
    pub(super) async fn open(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        options: &TunnelOptions,
    ) -> Option<(Arc<Self>, BoxFuture<'static, ()>)> {
        let tasks = Tasks::default();
        let mut builder = Builder::new(tasks.clone());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(RESPONSE_WINDOW_BYTES)
            .initial_connection_window_size(TUNNEL_WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES_MAX)
            .max_header_list_size(HEAD_BYTES_MAX)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .max_local_error_reset_streams(RESETS_MAX)
            .keep_alive_interval(options.keep_alive)
            .keep_alive_timeout(options.keep_alive)
            .keep_alive_while_idle(true);
        let (sender, connection) = match builder.handshake(TokioIo::new(stream)).await {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(%error, "a tunnel could not be opened");
                return None;
            }
        };
        let requests = Arc::new(Semaphore::new(options.requests_max));
        let line = Arc::new(Self { sender: Mutex::new(Some(sender)), requests, tasks, replaced: Notify::new() });
        let driven = Box::pin(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a tunnel broke");
            }
        });
        Some((line, driven))
    }

    /// Sends a request, once fewer than the allowed number are running.
    pub(super) async fn send(&self, request: TransportRequest, wait_max: Duration) -> Result<TransportResponse, TransportError> {
        let slot = tokio::time::timeout(wait_max.min(request.timeout), self.requests.clone().acquire_owned()).await;
        let Ok(Ok(slot)) = slot else {
            return Err(TransportError::new(Failure::Unsent).with_message("too many requests are running through this tunnel"));
        };
        let mut head = Request::builder().method(request.method).uri(format!("http://{AUTHORITY}{}", request.path_and_query));
        if let Some(headers) = head.headers_mut() {
            headers.extend(request.headers);
        }
        let request = head.body(Full::new(request.body.unwrap_or_default()));
        let request = request.map_err(|error| TransportError::new(Failure::Absent).with_source(error))?;
        let Some(mut sender) = self.sender.lock().clone() else { return Err(TransportError::new(Failure::Unsent)) };
        let sent = sender.try_send_request(request).await;
        let response = sent.map_err(|mut failed| {
            // A request that comes back was never sent.
            let failure = if failed.take_message().is_some() { Failure::Unsent } else { Failure::Broken };
            TransportError::new(failure).with_source(failed.into_error())
        })?;
        let (head, body) = response.into_parts();
        let body = BodyDataStream::new(body).map_err(|error| TransportError::new(Failure::Broken).with_source(error));
        // The slot is free again once the body has ended or is dropped.
        let body = body.inspect(move |_| {
            let _held = &slot;
        });
        Ok(TransportResponse::new(head.status, head.headers, body.boxed()))
    }

    /// Returns whether the machine answers a request in time, whatever the answer.
    pub(super) async fn answers(&self, timeout: Duration) -> bool {
        let request = Request::builder().method(Method::GET).uri(format!("http://{AUTHORITY}/livez")).body(Full::default());
        let (Ok(request), Some(mut sender)) = (request, self.sender.lock().clone()) else { return false };
        match tokio::time::timeout(timeout, sender.try_send_request(request)).await {
            Ok(Ok(_)) => true,
            Ok(Err(_)) | Err(_) => false,
        }
    }

    /// Returns whether no further request can be sent.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.lock().as_ref().is_none_or(SendRequest::is_closed)
    }

    /// Accepts no further requests, and waits for at most `timeout` until the running ones have ended.
    pub(super) async fn close(&self, timeout: Duration) {
        self.sender.lock().take();
        let mut tasks = std::mem::take(&mut *self.tasks.0.lock());
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(timeout, ended).await.is_err() {
            tracing::debug!("requests through a tunnel did not end in time");
        }
    }

    /// Ends the connection, and all running requests with an error.
    pub(super) fn cut(&self) {
        self.sender.lock().take();
        self.tasks.0.lock().abort_all();
    }

    /// Ends the tunnel in favour of another connection.
    pub(super) fn replace(&self) {
        self.replaced.notify_one();
    }

    /// Completes when the tunnel ends in favour of another connection.
    pub(super) async fn replaced(&self) {
        self.replaced.notified().await;
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("requests", &self.requests.available_permits()).finish_non_exhaustive()
    }
}
