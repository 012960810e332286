//! Reading a file in parts.

use super::Subject;
use crate::noise::noise;
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use treehold_core::error::{ErrorKind, Result};
use treehold_core::file::part_bytes;
use treehold_core::ops::{FileRead, ReadOptions};
use treehold_core::path::VfsPath;
use treehold_tree::backend::{Backend, ContentStream, StreamOptions};
use treehold_tree::forward_backend;

/// Content that is read in several parts.
fn large(seed: u64) -> Bytes {
    noise(seed, (5 << 20) + 77)
}

/// The parts of a stream together are the content, from any offset on, and belong to one version.
pub(super) async fn stream_returns_content_in_parts(tree: Subject) {
    let content = large(0);
    let version = tree.put("/large.bin", content.clone()).await.version;
    for offset in [0, 1, 4 << 20, content.len() as u64] {
        let options = StreamOptions::new().with_offset(offset).with_expect(version.expect("a file has a version"));
        let mut stream = ContentStream::open(tree.backend(), &tree.path("/large.bin"), &options).await.expect("opened");
        assert_eq!((Some(stream.version()), stream.size_bytes()), (version, content.len() as u64));
        let mut parts = BytesMut::new();
        while let Some(part) = stream.next().await.expect("unchanged") {
            assert!(!part.is_empty() && part.len() as u64 <= part_bytes(stream.size_bytes()), "{} bytes", part.len());
            parts.extend_from_slice(&part);
        }
        assert!(parts == content[offset as usize..], "the content differs from byte {offset} on");
        assert_eq!(stream.next().await.expect("the stream has ended"), None);
    }
    for small in ["", "one part"] {
        tree.put("/small", small).await;
        let mut stream = ContentStream::open(tree.backend(), &tree.path("/small"), &StreamOptions::new()).await.expect("opened");
        assert_eq!(stream.next().await.expect("read").unwrap_or_default(), small);
        assert_eq!(stream.next().await.expect("the stream has ended"), None);
    }
    let path = tree.path("/absent");
    tree.refused(ContentStream::open(tree.backend(), &path, &StreamOptions::new()).await, ErrorKind::NotFound);
}

/// A file that changes while it is streamed is a conflict, never a mix of two contents.
pub(super) async fn stream_of_changed_file_is_a_conflict(tree: Subject) {
    let path = tree.path("/large.bin");
    for change in ["same size", "shorter", "longer", "removed", "a directory"] {
        let old = tree.put("/large.bin", large(0)).await.version.expect("a file has a version");
        let mut stream = ContentStream::open(tree.backend(), &path, &StreamOptions::new()).await.expect("opened");
        assert!(!stream.is_read(), "a file of several parts");
        let first = stream.next().await.expect("read before the change").expect("a part");
        assert!(first == large(0)[..first.len()], "the first part is the old content");
        let version = match change {
            "same size" => tree.put("/large.bin", large(1)).await.version,
            "shorter" => tree.put("/large.bin", "short").await.version,
            "longer" => tree.append("/large.bin", "more").await.expect("appended").version,
            _ => tree.delete("/large.bin", false, None).await.expect("removed").version.filter(|_| false),
        };
        if change == "a directory" {
            tree.create_dir("/large.bin").await.expect("made");
        }
        let error = tree.refused(stream.next().await, ErrorKind::Conflict);
        assert_eq!(error.current_version(), version, "{change}: {error:?}");
        assert_eq!(error.path(), Some(&*path), "{change}");
        if version.is_some() {
            let expected = StreamOptions::new().with_expect(old);
            let error = tree.refused(ContentStream::open(tree.backend(), &path, &expected).await, ErrorKind::Conflict);
            assert_eq!(error.current_version(), version, "{change}");
        }
        if change == "a directory" {
            tree.delete("/large.bin", false, None).await.expect("removed");
        }
    }
}

/// A stream reads a part only on request, and reads nothing after it is dropped.
pub(super) async fn stream_reads_nothing_that_is_not_taken(tree: Subject) {
    let content = large(0);
    tree.put("/large.bin", content.clone()).await;
    let counted = Counted { inner: tree.backend().clone(), reads: AtomicUsize::new(0), bytes: AtomicU64::new(0) };
    let path = tree.path("/large.bin");
    let mut stream = ContentStream::open(&counted, &path, &StreamOptions::new()).await.expect("opened");
    let first = stream.next().await.expect("read").expect("a part");
    assert_eq!((counted.reads(), counted.bytes()), (1, first.len() as u64));
    drop(stream.next());
    assert_eq!(counted.reads(), 1, "a part that nobody waits for is not read");
    let second = stream.next().await.expect("read").expect("a part");
    assert_eq!((counted.reads(), counted.bytes()), (2, (first.len() + second.len()) as u64));
    assert!(second == content[first.len()..first.len() + second.len()], "a call that was dropped skips nothing");
    drop(stream);
    assert_eq!(counted.reads(), 2);
}

/// A tree that counts reads and the bytes that they return.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn Backend>,
    reads: AtomicUsize,
    bytes: AtomicU64,
}

impl Counted {
    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counted({})", self.inner)
    }
}

#[async_trait]
impl Backend for Counted {
    forward_backend! { self => self.inner; capabilities, stat, ls, glob, grep, search, apply, review }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        let read = self.inner.read(path, options).await?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(read.content.len() as u64, Ordering::Relaxed);
        Ok(read)
    }
}
