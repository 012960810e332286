//! The body of an answer, and how fast its client takes it.
//!
//! An answer is handed on in small parts, and the next one is asked for once there is room for it: in the window of the client (HTTP/2), in
//! the buffers of the connection (HTTP/1). The time between the two is the client's. It counts against the pace that a client has to keep;
//! time in which the server itself has nothing to send does not.

use super::api::problem;
use super::connection::{ConnectionLimits, Connections, Running, is_health};
use crate::error::{Error, ErrorKind};
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

/// The most bytes that are handed on at a time: what a client may leave without keeping its request under way.
const PART_BYTES: usize = 16 << 10;

/// Notes that a request of a connection is under way, and refuses those that come where all places are taken.
pub(super) async fn attended(
    State(connections): State<Arc<Connections>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let Some(running) = connections.begin(&peer) else { return next.run(request).await };
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
    response.map(|body| Body::new(Answer { body, rest: Bytes::new(), pace: Pace::default(), running }))
}

/// The body of an answer, with its request.
struct Answer {
    body: Body,
    /// What is left of a part of the body that was larger.
    rest: Bytes,
    pace: Pace,
    running: Running,
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

/// How fast a client takes an answer.
#[derive(Debug, Default)]
struct Pace {
    /// How many bytes it has taken.
    taken_bytes: u64,
    /// How long the answer has waited for it.
    waited: Duration,
    /// How much it was given last, and when.
    given: Option<(u64, Instant)>,
}

impl Pace {
    /// Notes that the client has taken what it was given. Returns whether it was given anything since the last time.
    fn taken(&mut self, now: Instant) -> bool {
        let Some((bytes, since)) = self.given.take() else { return false };
        self.taken_bytes += bytes;
        self.waited += now - since;
        true
    }

    /// Notes that the client is given so many bytes, and returns until when it has to take them: it may pause for a while, and has to keep a
    /// pace after as long.
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
    fn client_earns_time_by_what_it_takes_and_loses_it_by_waiting() {
        let limits = ConnectionLimits::new().with_write_timeout(seconds(10)).with_answer_bytes_per_second_min(100);
        let begun = Instant::now();
        let mut pace = Pace::default();
        assert!(!pace.taken(begun), "it was given nothing");
        assert_eq!(pace.given(500, begun, &limits), begun + seconds(10));
        assert!(pace.taken(begun + seconds(8)));
        // Time in which the server had nothing to send does not count.
        let later = begun + seconds(1_000);
        assert_eq!(pace.given(100, later, &limits), later + seconds(10 + 5 - 8));
        assert!(pace.taken(later + seconds(7)));
        let last = later + seconds(7);
        assert_eq!(pace.given(100, last, &limits), last + seconds(10 + 6 - 15));
        assert!(pace.taken(last + seconds(2)));
        assert_eq!(pace.given(1, last + seconds(2), &limits), last + seconds(2), "it is too slow");
    }
}
