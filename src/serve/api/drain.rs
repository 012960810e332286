//! What becomes of a body that an answer does not wait for.
//!
//! A request that is refused by its head alone leaves its body on the connection, where the next answer would be looked for behind it. hyper
//! closes such a connection without saying so, and a client that keeps connections fails with its next request. So what is left of a body is taken
//! and thrown away, within bounds; where that is not enough, the answer says `Connection: close`
//! ([RFC 9112, section 9.6](https://www.rfc-editor.org/rfc/rfc9112#section-9.6)).

use super::body::{LINGER_BYTES, waits_for_leave};
use axum::body::{Body, BodyDataStream, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, Version, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// How long the rest of a body is waited for.
const LINGER: Duration = Duration::from_secs(2);

/// A body that the handler of a request reads, and of which the rest can be taken when it is done.
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

    /// Takes what is left. Returns whether the body has ended.
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

/// Takes what an answer leaves of the body of its request, or says that the connection ends.
pub(super) async fn unread(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() || request.version() > Version::HTTP_11 {
        return next.run(request).await;
    }
    let is_kept_back = waits_for_leave(request.headers());
    let (head, body) = request.into_parts();
    let is_long = body.size_hint().lower() > (LINGER_BYTES as u64);
    let parts = Parts::new(body);
    let mut response = next.run(Request::from_parts(head, Body::from_stream(parts.clone()))).await;
    let is_begun = parts.is_begun.load(Ordering::Relaxed);
    // To take anything of a body that the client holds back asks the client to send it. One that is too long is not waited for.
    let is_left = (is_kept_back || is_long) && !is_begun;
    let is_ended = parts.is_ended.load(Ordering::Relaxed) || (!is_left && parts.drain().await);
    if !is_ended {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
