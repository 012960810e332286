//! Request bodies: how they are received, and the bounds on the memory and disk that they use.
//!
//! The first [`NEAR_BYTES`] are received into memory. Anything beyond waits in a file ([`Spool`]) until the body is complete, so a client
//! that is slow or disconnects holds little memory. A tree takes content in one piece, so that a change is applied completely or not at
//! all. A spooled body is therefore read back once memory is free for all of it, and that memory is reserved until the request ends.
//!
//! A request holds no memory while it waits for memory, so requests cannot deadlock.

use super::spool::Spool;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use treehold_core::error::{Error, ErrorKind, Result};

/// How much of a body is received into memory.
const NEAR_BYTES: usize = 256 << 10;

/// How much of a refused body is read before the response is sent. A client that is still sending when the response arrives loses it with
/// the connection.
pub(super) const LINGER_BYTES: usize = 32 << 20;

/// The memory and disk that bodies may use.
#[derive(Debug)]
pub(super) struct Rooms {
    /// The memory left, in KiB.
    memory: Arc<Semaphore>,
    memory_bytes_max: usize,
    /// The disk space left, in KiB.
    disk: Arc<Semaphore>,
    pace: Pace,
}

/// The minimum pace of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// How long a body may pause, and the grace period before the minimum rate applies.
    pub(super) timeout: Duration,
    pub(super) bytes_per_second_min: u64,
}

impl Pace {
    /// Returns the deadline for more of a body, given when it began and how many bytes have arrived.
    fn until(&self, begun: Instant, size_bytes: usize) -> Instant {
        let earned = Duration::from_millis((size_bytes as u64).saturating_mul(1_000) / self.bytes_per_second_min.max(1));
        (Instant::now() + self.timeout).min(begun + self.timeout + earned)
    }
}

/// A complete body. Clones share it; its memory is released when the last one is dropped.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) bytes: Bytes,
    _room: Arc<OwnedSemaphorePermit>,
}

impl Rooms {
    pub(super) fn new(memory_bytes_max: usize, disk_bytes_max: usize) -> Self {
        let semaphore = |bytes| Arc::new(Semaphore::new(kib(bytes) as usize));
        let pace = Pace { timeout: Duration::from_secs(15), bytes_per_second_min: 1_024 };
        Self { memory: semaphore(memory_bytes_max), memory_bytes_max, disk: semaphore(disk_bytes_max), pace }
    }

    /// Sets the minimum pace of bodies.
    pub(super) fn with_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Waits until this much memory is free, and reserves it.
    async fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let wanted = kib(bytes.min(self.memory_bytes_max));
        let held = self.memory.clone().acquire_many_owned(wanted).await;
        held.map_err(|_| Error::new(ErrorKind::Unavailable, "the server is stopping").without_effect())
    }

    fn too_slow(&self) -> Error {
        let Pace { timeout, bytes_per_second_min } = self.pace;
        let message = format!(
            "the body arrives too slowly: it may pause for {timeout:?} and must average {bytes_per_second_min} bytes per second; send it \
                in parts by appending"
        );
        Error::new(ErrorKind::Deadline, message).without_effect()
    }

    /// Receives a body of at most `limit` bytes. `seen` is called with each part as it arrives.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) for a larger body, [`InvalidArgument`](ErrorKind::InvalidArgument) for one that ends early or does
    /// not match its `Content-Digest`, [`Unavailable`](ErrorKind::Unavailable) without disk space, [`Deadline`](ErrorKind::Deadline) for
    /// one that arrives too slowly.
    pub(super) async fn receive(&self, headers: &HeaderMap, body: Body, limit: usize, mut seen: impl FnMut(&[u8])) -> Result<Received> {
        let limit = limit.min(self.memory_bytes_max);
        let mut digest = Digested::of(headers)?;
        let announced = announced_bytes(headers, &body);
        let mut parts = body.into_data_stream();
        let mut size_bytes = 0;
        let near_bytes = announced.unwrap_or(limit).min(NEAR_BYTES);
        let room = self.hold(near_bytes).await?;
        let mut near = BytesMut::new();
        let mut far: Option<Spool> = None;
        let mut is_larger = announced.is_some_and(|bytes| bytes > limit);
        let begun = Instant::now();
        // If the client waits for `100 Continue`, do not request a body that is too large.
        let is_kept_back = is_larger && waits_for_leave(headers);
        loop {
            if is_kept_back {
                break;
            }
            let next = tokio::time::timeout_at(self.pace.until(begun, size_bytes), parts.next()).await;
            let Some(part) = next.map_err(|_| self.too_slow())? else { break };
            let part = match part {
                Ok(part) => part,
                // If the body is refused anyway, it does not matter how it ended.
                Err(_) if is_larger => break,
                Err(error) => {
                    return Err(Error::invalid_argument("the body ended before it was complete").without_effect().with_source(error));
                }
            };
            size_bytes += part.len();
            is_larger |= size_bytes > limit;
            if is_larger {
                // A client that is still sending when the response arrives loses it with the connection, so read some of the rest first.
                (near, far) = (BytesMut::new(), None);
                if size_bytes > limit.saturating_add(LINGER_BYTES) {
                    break;
                }
                continue;
            }
            seen(&part);
            digest.add(&part);
            if near.len() + part.len() > near_bytes {
                let spool = match &mut far {
                    Some(spool) => spool,
                    None => far.insert(Spool::open(self.disk.clone()).await?),
                };
                spool.add(near.split().freeze()).await?;
                spool.add(part).await?;
            } else {
                near.extend_from_slice(&part);
            }
        }
        if is_larger {
            let message = format!("the body is over {limit} bytes, the most accepted here; send it in parts by appending");
            return Err(Error::new(ErrorKind::TooLarge, message).without_effect());
        }
        digest.check()?;
        let Some(mut spool) = far else { return Ok(Received { bytes: near.freeze(), _room: Arc::new(room) }) };
        spool.add(near.freeze()).await?;
        drop(room);
        let room = self.hold(size_bytes).await?;
        Ok(Received { bytes: spool.read().await?, _room: Arc::new(room) })
    }
}

/// Returns whether the client waits for `100 Continue` before it sends the body (RFC 9110, section 10.1.1).
pub(super) fn waits_for_leave(headers: &HeaderMap) -> bool {
    headers.get(header::EXPECT).is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Returns the declared size of a body.
fn announced_bytes(headers: &HeaderMap, body: &Body) -> Option<usize> {
    let header = headers.get(header::CONTENT_LENGTH).and_then(|text| text.to_str().ok()?.parse().ok());
    header.or_else(|| body.size_hint().exact().and_then(|bytes| bytes.try_into().ok()))
}

pub(super) fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}

/// The digest that the sender declared ([RFC 9530](https://www.rfc-editor.org/rfc/rfc9530)), and that of the bytes received so far.
struct Digested {
    given: Option<String>,
    hasher: Sha256,
}

impl Digested {
    fn of(headers: &HeaderMap) -> Result<Self> {
        let mut lines = headers.get_all("content-digest").iter().peekable();
        let given = match lines.peek() {
            None => None,
            Some(_) => {
                // If a key occurs twice, the last one counts (RFC 9651, section 3.2).
                let parts = lines.flat_map(|line| line.to_str().unwrap_or_default().split(','));
                let own = parts.map(str::trim).filter(|part| part.starts_with("sha-256=")).last();
                let message = "the header `Content-Digest` has no `sha-256`; add it, or leave the header out";
                Some(own.ok_or_else(|| Error::invalid_argument(message).without_effect())?.to_owned())
            }
        };
        Ok(Self { given, hasher: Sha256::new() })
    }

    fn add(&mut self, part: &[u8]) {
        if self.given.is_some() {
            self.hasher.update(part);
        }
    }

    fn check(self) -> Result<()> {
        match self.given {
            Some(given) if given != encoded(&self.hasher.finalize()) => {
                Err(Error::invalid_argument("the content does not match the header `Content-Digest`; send it again").without_effect())
            }
            _ => Ok(()),
        }
    }
}

/// Returns the digest of some content as a header value.
pub(super) fn digest(content: &[u8]) -> HeaderValue {
    HeaderValue::from_str(&encoded(&Sha256::digest(content))).expect("Base64 is visible ASCII")
}

fn encoded(hash: &[u8]) -> String {
    format!("sha-256=:{}:", BASE64.encode(hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MIB: usize = 1 << 20;

    fn streamed(parts: Vec<std::result::Result<Bytes, &'static str>>) -> Body {
        Body::from_stream(stream::iter(parts))
    }

    async fn received(rooms: &Rooms, headers: &HeaderMap, body: Body, limit: usize) -> Result<Received> {
        rooms.receive(headers, body, limit, |_| {}).await
    }

    #[tokio::test]
    async fn body_is_received_whole_and_releases_its_memory() {
        let rooms = Rooms::new(8 * MIB, 8 * MIB);
        for size_bytes in [0, 1, NEAR_BYTES, NEAR_BYTES + 1, 3 * MIB + 7] {
            let content: Vec<u8> = (0..size_bytes).map(|number| (number / 7) as u8).collect();
            let parts = content.chunks(70_000).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
            let mut shown = 0;
            let whole = rooms.receive(&HeaderMap::new(), streamed(parts), 4 * MIB, |part| shown += part.len()).await.expect("whole");
            assert!(whole.bytes == content && shown == size_bytes);
            assert!(rooms.memory.available_permits() <= 8 * 1_024 - kib(size_bytes) as usize, "{size_bytes} bytes are held");
            drop(whole);
            assert_eq!((rooms.memory.available_permits(), rooms.disk.available_permits()), (8 * 1_024, 8 * 1_024));
        }
    }

    #[tokio::test]
    async fn cut_body_is_invalid_and_large_body_is_too_large() {
        let rooms = Rooms::new(8 * MIB, 8 * MIB);
        for sent in [10, 2 * MIB] {
            let cut = streamed(vec![Ok(vec![0; sent].into()), Err("the connection is gone")]);
            let error = received(&rooms, &HeaderMap::new(), cut, 4 * MIB).await.expect_err("cut");
            assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::InvalidArgument, false));
        }
        let large = streamed(vec![Ok(vec![0; 3 * MIB].into()), Ok(vec![0; 2 * MIB].into())]);
        assert_eq!(received(&rooms, &HeaderMap::new(), large, 4 * MIB).await.expect_err("large").kind(), ErrorKind::TooLarge);
        let headers = HeaderMap::from_iter([(header::CONTENT_LENGTH, HeaderValue::from(5 * MIB))]);
        let announced = streamed(vec![Ok(vec![0; 5].into()), Err("the connection is gone")]);
        assert_eq!(received(&rooms, &headers, announced, 4 * MIB).await.expect_err("large").kind(), ErrorKind::TooLarge);
        assert_eq!((rooms.memory.available_permits(), rooms.disk.available_permits()), (8 * 1_024, 8 * 1_024));
    }

    #[tokio::test]
    async fn concurrent_bodies_stay_within_memory_and_do_not_deadlock() {
        let rooms = Arc::new(Rooms::new(4 * MIB, 400 * MIB));
        let most = Arc::new(AtomicUsize::new(0));
        let requests = (0..100).map(|_| {
            let (rooms, most) = (rooms.clone(), most.clone());
            tokio::spawn(async move {
                let parts = (0..3).map(|_| Ok(vec![1; MIB].into())).collect();
                let whole = received(&rooms, &HeaderMap::new(), streamed(parts), 4 * MIB).await.expect("whole");
                most.fetch_max(4 * 1_024 - rooms.memory.available_permits(), Ordering::Relaxed);
                tokio::task::yield_now().await;
                whole.bytes.len()
            })
        });
        for size_bytes in futures::future::join_all(requests).await {
            assert_eq!(size_bytes.expect("ran"), 3 * MIB);
        }
        assert!(most.load(Ordering::Relaxed) <= 4 * 1_024);
    }

    #[tokio::test]
    async fn body_is_refused_at_once_without_disk_space() {
        let rooms = Rooms::new(8 * MIB, MIB);
        let body = || streamed((0..3).map(|_| Ok(vec![1; MIB].into())).collect());
        assert_eq!(received(&rooms, &HeaderMap::new(), body(), 4 * MIB).await.expect_err("full").kind(), ErrorKind::Unavailable);
        assert_eq!(rooms.disk.available_permits(), 1_024);
    }
}
