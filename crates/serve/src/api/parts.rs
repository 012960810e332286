//! Response bodies in small parts.
//!
//! A compressor works until its input has nothing more to give, and a single chunk may have megabytes. So each part is small, and other
//! requests of the runtime thread run before the next one.

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::future::BoxFuture;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The largest part in bytes.
const PART_BYTES: usize = 16 << 10;

/// Hands over the body of a response in small parts.
pub(super) async fn split(response: Response) -> Response {
    response.map(|body| Body::new(Parts { body, rest: Bytes::new(), pause: None }))
}

struct Parts {
    body: Body,
    /// The rest of a chunk larger than [`PART_BYTES`].
    rest: Bytes,
    /// Lets other tasks run after a full part.
    pause: Option<BoxFuture<'static, ()>>,
}

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let parts = &mut *self;
        if let Some(pause) = &mut parts.pause {
            ready!(pause.as_mut().poll(cx));
            parts.pause = None;
        }
        while parts.rest.is_empty() {
            match ready!(Pin::new(&mut parts.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => parts.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let part = parts.rest.split_to(parts.rest.len().min(PART_BYTES));
        if part.len() == PART_BYTES {
            parts.pause = Some(Box::pin(tokio::task::yield_now()));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;
    use std::task::Waker;

    #[tokio::test]
    async fn long_chunk_becomes_small_parts_with_pauses() {
        let content = Bytes::from(vec![7; 10 * PART_BYTES + 3]);
        let mut body = Box::pin(split(Response::new(Body::from(content.clone()))).await.into_body());
        assert_eq!(body.size_hint().exact(), Some(content.len() as u64));
        let (mut received, mut pauses) = (Vec::new(), 0);
        loop {
            match body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => pauses += 1,
                Poll::Ready(Some(frame)) => {
                    let part = frame.expect("a frame").into_data().expect("data");
                    assert!(part.len() <= PART_BYTES);
                    received.extend_from_slice(&part);
                }
                Poll::Ready(None) => break,
            }
        }
        assert_eq!((received, pauses), (content.to_vec(), 10));
    }
}
