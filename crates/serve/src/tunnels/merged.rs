//! Merges the small parts of a response body that are ready together.
//!
//! An HTTP/2 client ends a connection on which too many small frames wait to be read, and a tunnel is one connection for all requests. So a
//! listener that reads a long replay of events slowly must not make each event a frame.

use axum::body::{Body, Bytes, HttpBody};
use bytes::BytesMut;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The largest part that is merged, in bytes.
const PART_BYTES: usize = 16 << 10;

/// A response body in larger parts.
pub(super) struct Merged {
    body: Body,
    /// What follows the merged part: trailers, or an error.
    next: Option<Result<Frame<Bytes>, axum::Error>>,
    is_ended: bool,
}

impl Merged {
    pub(super) fn new(body: Body) -> Self {
        Self { body, next: None, is_ended: false }
    }
}

impl HttpBody for Merged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(next) = self.next.take() {
            return Poll::Ready(Some(next));
        }
        let mut first = Bytes::new();
        let mut merged = BytesMut::new();
        while !self.is_ended && first.len().max(merged.len()) < PART_BYTES {
            let data = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending if first.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(None) => {
                    self.is_ended = true;
                    break;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => data,
                    Err(trailers) => {
                        self.next = Some(Ok(trailers));
                        break;
                    }
                },
                Poll::Ready(Some(Err(error))) => {
                    self.next = Some(Err(error));
                    break;
                }
            };
            match (first.is_empty(), merged.is_empty()) {
                // A single part is passed on without a copy.
                (true, _) => first = data,
                (false, true) => {
                    merged.extend_from_slice(&first);
                    merged.extend_from_slice(&data);
                }
                (false, false) => merged.extend_from_slice(&data),
            }
        }
        let part = if merged.is_empty() { first } else { merged.freeze() };
        if part.is_empty() {
            return Poll::Ready(self.next.take());
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none() && (self.is_ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use std::convert::Infallible;

    async fn parts(parts: Vec<&'static [u8]>) -> Vec<usize> {
        let stream = futures::stream::iter(parts.into_iter().map(|part| Ok::<_, Infallible>(Bytes::from_static(part))));
        let merged = Body::new(Merged::new(Body::from_stream(stream)));
        merged.into_data_stream().map(|part| part.expect("no error").len()).collect().await
    }

    #[tokio::test]
    async fn parts_that_are_ready_together_are_merged_up_to_a_bound() {
        assert_eq!(parts(vec![b"event: x\n\n"; 3]).await, [30]);
        assert_eq!(parts(vec![b"", b"a", b"", b"b"]).await, [2]);
        assert_eq!(parts(vec![&[b'x'; 6_000]; 4]).await, [18_000, 6_000]);
        assert_eq!(parts(vec![&[b'x'; 100_000], b"y"]).await, [100_000, 1]);
        assert!(parts(Vec::new()).await.is_empty());
    }

    /// A part that is ready is sent before the next one, which may take long.
    #[tokio::test]
    async fn ready_part_does_not_wait_for_the_next() {
        let stream = futures::stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"now"))]).chain(futures::stream::pending());
        let mut merged = Body::new(Merged::new(Body::from_stream(stream))).into_data_stream();
        assert_eq!(merged.next().await.expect("a part").expect("no error"), "now");
    }

    #[tokio::test]
    async fn error_follows_the_parts_before_it() {
        let stream =
            futures::stream::iter([Ok(Bytes::from_static(b"a")), Ok(Bytes::from_static(b"b")), Err(std::io::Error::other("lost"))]);
        let parts: Vec<_> = Body::new(Merged::new(Body::from_stream(stream))).into_data_stream().collect().await;
        assert_eq!(parts.len(), 2);
        assert!(parts[0].as_ref().is_ok_and(|part| part == "ab") && parts[1].is_err(), "{parts:?}");
    }
}
