//! Response bodies, and how fast a client must read them.
//!
//! A response is sent in small parts. The next part is polled once there is room for it: in the client's flow-control window (HTTP/2) or in
//! the connection's buffers (HTTP/1). The time between two polls counts against the client's minimum pace. Time in which the server itself
//! has nothing to send does not count.

use super::connection::{Connected, ConnectionLimits, Connections, Running, is_health};
use super::large::LargeAnswer;
use super::problem;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;
use treehold_core::error::{Error, ErrorKind};

/// The largest part sent at once, in bytes. A client may leave this much unread while its request no longer counts as running.
const PART_BYTES: usize = 16 << 10;

/// Registers the request with its connection, and refuses it if the connection was accepted beyond the limit. Health checks are always
/// answered.
pub(super) async fn attended(
    State(connections): State<Arc<Connections>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(running) = connections.begin(&peer) else { return next.run(request).await };
    let running = Arc::new(running);
    request.extensions_mut().insert(Connected::new(&running));
    let is_crowded = running.is_crowded();
    let mut response = if is_crowded && !is_health(request.uri().path()) {
        let message = "too many connections are open; try again in a second";
        problem::response(&Error::new(ErrorKind::Unavailable, message).without_effect())
    } else {
        next.run(request).await
    };
    if is_crowded {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let _large = response.extensions_mut().remove();
    response.map(|body| Body::new(Answer { body, rest: Bytes::new(), pace: Pace::default(), running, _large }))
}

/// A response body and the request it belongs to.
struct Answer {
    body: Body,
    /// The unsent rest of a chunk larger than [`PART_BYTES`].
    rest: Bytes,
    pace: Pace,
    running: Arc<Running>,
    /// The slot of a large answer, held until the body is dropped.
    _large: Option<LargeAnswer>,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let answer = &mut *self;
        if answer.pace.taken(Instant::now()) {
            answer.running.wait_for_client(None);
        }
        while answer.rest.is_empty() {
            match ready!(Pin::new(&mut answer.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => answer.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let part = answer.rest.split_to(answer.rest.len().min(PART_BYTES));
        let until = answer.pace.given(part.len(), Instant::now(), answer.running.limits());
        answer.running.wait_for_client(Some(until));
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

/// How fast a client reads a response.
#[derive(Debug, Default)]
struct Pace {
    /// How many bytes the client has read.
    taken_bytes: u64,
    /// How long the response has waited for the client.
    waited: Duration,
    /// The size of the last part, and when it was handed over.
    given: Option<(u64, Instant)>,
}

impl Pace {
    /// Records that the client has read the last part. Returns false if no part was outstanding.
    fn taken(&mut self, now: Instant) -> bool {
        let Some((bytes, since)) = self.given.take() else { return false };
        self.taken_bytes += bytes;
        self.waited += now - since;
        true
    }

    /// Records that a part is handed over, and returns the deadline for reading it. The client may pause for up to `write_timeout` at a
    /// time, and must keep the minimum pace after an initial `write_timeout`.
    fn given(&mut self, bytes: usize, now: Instant, limits: &ConnectionLimits) -> Instant {
        self.given = Some((bytes as u64, now));
        let earned = Duration::from_millis(self.taken_bytes.saturating_mul(1_000) / limits.answer_bytes_per_second_min.max(1));
        now + limits.write_timeout.min((limits.write_timeout + earned).saturating_sub(self.waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn deadline_grows_with_bytes_read_and_shrinks_with_time_waited() {
        let limits = ConnectionLimits::new().with_write_timeout(seconds(10)).with_answer_bytes_per_second_min(100);
        let begun = Instant::now();
        let mut pace = Pace::default();
        assert!(!pace.taken(begun), "the client has read nothing");
        assert_eq!(pace.given(500, begun, &limits), begun + seconds(10));
        assert!(pace.taken(begun + seconds(8)));
        // The server's own idle time does not count.
        let later = begun + seconds(1_000);
        assert_eq!(pace.given(100, later, &limits), later + seconds(10 + 5 - 8));
        assert!(pace.taken(later + seconds(7)));
        let last = later + seconds(7);
        assert_eq!(pace.given(100, last, &limits), last + seconds(10 + 6 - 15));
        assert!(pace.taken(last + seconds(2)));
        assert_eq!(pace.given(1, last + seconds(2), &limits), last + seconds(2), "it is too slow");
    }
}
