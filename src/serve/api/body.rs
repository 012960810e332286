//! The bodies of requests: how they are received, and what bounds the memory and the disk that they take.
//!
//! The first [`NEAR_BYTES`] are received into memory; what comes after waits in a file ([`Spool`]) until the body is whole, so a sender that is
//! slow, or goes away, holds little. A tree takes a content in one piece, so that a change is made whole or not at all: there has to be room in memory
//! for all of a body before it is read back, and the room is held as long as the request is.
//!
//! A request that waits for room holds none, so that requests never wait for each other.

use super::spool::Spool;
use crate::error::{Error, ErrorKind, Result};
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

/// How much of a body is received into memory.
const NEAR_BYTES: usize = 256 << 10;

/// How much of a body that is refused is taken before the answer: a client that still sends when it is answered loses the answer with the
/// connection.
pub(super) const LINGER_BYTES: usize = 32 << 20;

/// What bodies may take.
#[derive(Debug)]
pub(super) struct Rooms {
    /// How much more may be in memory, in KiB.
    memory: Arc<Semaphore>,
    memory_bytes_max: usize,
    /// How much more may wait on disk, in KiB.
    disk: Arc<Semaphore>,
    pace: Pace,
}

/// How fast a body has to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// How long it may pause, and how long it may be slower than that at its start.
    pub(super) timeout: Duration,
    pub(super) bytes_per_second_min: u64,
}

impl Pace {
    /// Returns until when more has to come of a body that began at an instant and of which so many bytes have come.
    fn until(&self, begun: Instant, size_bytes: usize) -> Instant {
        let earned = Duration::from_millis((size_bytes as u64).saturating_mul(1_000) / self.bytes_per_second_min.max(1));
        (Instant::now() + self.timeout).min(begun + self.timeout + earned)
    }
}

/// A body that is whole. It is shared by who looks at it, and takes its room until the last of them drops it.
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

    /// Sets how fast bodies have to come.
    pub(super) fn with_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Waits until so much may be in memory.
    async fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let wanted = kib(bytes.min(self.memory_bytes_max));
        let held = self.memory.clone().acquire_many_owned(wanted).await;
        held.map_err(|_| Error::new(ErrorKind::Unavailable, "the server stops").without_effect())
    }

    fn too_slow(&self) -> Error {
        let Pace { timeout, bytes_per_second_min } = self.pace;
        let message = format!(
            "the body comes too slowly: it may pause for {timeout:?} and has to bring {bytes_per_second_min} bytes each second; send it in parts by \
             appending"
        );
        Error::new(ErrorKind::Deadline, message).without_effect()
    }

    /// Receives a body of at most `limit` bytes. `seen` is shown each part of it as it comes.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) for a larger one, [`InvalidArgument`](ErrorKind::InvalidArgument) for one that ends before it is whole or is not
    /// what its `Content-Digest` says, [`Unavailable`](ErrorKind::Unavailable) when there is no room on disk.
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
        // A client that waits to be asked for its body keeps one that is too large.
        let is_kept_back = is_larger && waits_for_leave(headers);
        loop {
            if is_kept_back {
                break;
            }
            let next = tokio::time::timeout_at(self.pace.until(begun, size_bytes), parts.next()).await;
            let Some(part) = next.map_err(|_| self.too_slow())? else { break };
            let part = match part {
                Ok(part) => part,
                // Of what is refused anyway it does not matter how it ended.
                Err(_) if is_larger => break,
                Err(error) => {
                    return Err(Error::invalid_argument("the body ended before it was whole").without_effect().with_source(error));
                }
            };
            size_bytes += part.len();
            is_larger |= size_bytes > limit;
            if is_larger {
                // A client that still sends when it is answered loses the answer with the connection: some of the rest is taken first.
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
            let message = format!("the body is over {limit} bytes, the most that is taken here; send it in parts by appending");
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

/// Tells whether a client sends the body when it is asked to, and not before (RFC 9110, section 10.1.1).
pub(super) fn waits_for_leave(headers: &HeaderMap) -> bool {
    headers.get(header::EXPECT).is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Returns how large a body says that it is.
fn announced_bytes(headers: &HeaderMap, body: &Body) -> Option<usize> {
    let header = headers.get(header::CONTENT_LENGTH).and_then(|text| text.to_str().ok()?.parse().ok());
    header.or_else(|| body.size_hint().exact().and_then(|bytes| bytes.try_into().ok()))
}

pub(super) fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}

/// The digest that a sender gave ([RFC 9530](https://www.rfc-editor.org/rfc/rfc9530)), and that of what has come.
struct Digested {
    given: Option<String>,
    hasher: Sha256,
}

impl Digested {
    fn of(headers: &HeaderMap) -> Result<Self> {
        let given = match headers.get("content-digest") {
            None => None,
            Some(given) => {
                let text = given.to_str().unwrap_or_default();
                let own = text.split(',').map(str::trim).find(|part| part.starts_with("sha-256="));
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
                Err(Error::invalid_argument("the content is not that of the header `Content-Digest`; send it again").without_effect())
            }
            _ => Ok(()),
        }
    }
}

/// Returns the digest of a content, as a header.
pub(super) fn digest(content: &[u8]) -> HeaderValue {
    HeaderValue::from_str(&encoded(&Sha256::digest(content))).expect("Base64 is visible")
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
    async fn a_body_is_what_was_sent_and_its_room_comes_back() {
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
    async fn a_body_that_is_cut_is_not_one_that_is_too_large() {
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
    async fn bodies_at_once_stay_within_the_bound_and_do_not_wait_for_each_other() {
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
    async fn a_full_disk_refuses_and_is_not_waited_for() {
        let rooms = Rooms::new(8 * MIB, MIB);
        let body = || streamed((0..3).map(|_| Ok(vec![1; MIB].into())).collect());
        assert_eq!(received(&rooms, &HeaderMap::new(), body(), 4 * MIB).await.expect_err("full").kind(), ErrorKind::Unavailable);
        assert_eq!(rooms.disk.available_permits(), 1_024);
    }
}
