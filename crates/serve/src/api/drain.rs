//! Handles the part of a request body that the handler did not read.
//!
//! A request that is refused by its head alone leaves its body on the connection, in front of the next request. hyper closes such a
//! connection without announcing it, and a client that reuses connections fails on its next request. So the rest of the body is read and
//! discarded, within bounds. If that is not enough, the response carries `Connection: close`
//! ([RFC 9112, section 9.6](https://www.rfc-editor.org/rfc/rfc9112#section-9.6)).

use super::body::{LINGER_BYTES, waits_for_leave};
use axum::body::{Body, BodyDataStream, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, Version, header};
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// How long to wait for the rest of a body.
const LINGER: Duration = Duration::from_secs(2);

/// A body that the handler reads. What the handler leaves can be drained afterwards.
#[derive(Clone)]
struct Parts {
    rest: Arc<Mutex<BodyDataStream>>,
    is_begun: Arc<AtomicBool>,
    is_ended: Arc<AtomicBool>,
}

impl Parts {
    fn new(body: Body) -> Self {
        Self { rest: Arc::new(Mutex::new(body.into_data_stream())), is_begun: Arc::default(), is_ended: Arc::default() }
    }

    /// Discards the rest, up to [`LINGER_BYTES`] and for at most [`LINGER`]. Returns whether the body has ended.
    async fn drain(mut self) -> bool {
        let mut left_bytes = LINGER_BYTES;
        let taken = async {
            while let Some(part) = self.next().await {
                match part.ok().and_then(|part| left_bytes.checked_sub(part.len())) {
                    Some(left) => left_bytes = left,
                    None => return,
                }
            }
        };
        let _ = tokio::time::timeout(LINGER, taken).await;
        self.is_ended.load(Ordering::Relaxed)
    }
}

impl Stream for Parts {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.is_begun.store(true, Ordering::Relaxed);
        let part = self.rest.lock().poll_next_unpin(context);
        if matches!(part, Poll::Ready(None)) {
            self.is_ended.store(true, Ordering::Relaxed);
        }
        part
    }
}

/// Drains what the handler leaves of the request body, or announces that the connection closes.
pub(super) async fn unread<F: Future<Output = Response>>(request: Request, next: impl FnOnce(Request) -> F) -> Response {
    if request.body().is_end_stream() || request.version() > Version::HTTP_11 {
        return next(request).await;
    }
    let is_kept_back = waits_for_leave(request.headers());
    let (head, body) = request.into_parts();
    let is_long = body.size_hint().lower() > (LINGER_BYTES as u64);
    let parts = Parts::new(body);
    let mut response = next(Request::from_parts(head, Body::from_stream(parts.clone()))).await;
    let is_begun = parts.is_begun.load(Ordering::Relaxed);
    // Reading from a body that the client holds back would request it. A body that is too long is not worth draining.
    let is_left = (is_kept_back || is_long) && !is_begun;
    let is_ended = parts.is_ended.load(Ordering::Relaxed) || (!is_left && parts.drain().await);
    if !is_ended {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
