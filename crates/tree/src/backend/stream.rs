//! A file in parts, all of one version.

use super::Backend;
use bytes::Bytes;
use futures::stream::Stream;
use jiff::Timestamp;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::file::{PART_BYTES, part_bytes};
use treehold_core::ops::{FileRead, OpKind, ReadOptions, StatOptions, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// Options of a [`ContentStream`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct StreamOptions {
    /// How many bytes at the start to skip.
    pub offset: u64,
    /// Fails with `conflict` unless the file has this version, as when an interrupted stream is continued.
    pub expect: Option<Version>,
    /// Refuses with `permission_denied` to follow host links in the path. Default false.
    pub refuse_links: bool,
}

impl StreamOptions {
    /// Streams the whole file in its current version.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many bytes to skip.
    #[must_use]
    pub fn with_offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Sets the version that the file must have.
    #[must_use]
    pub fn with_expect(mut self, version: Version) -> Self {
        self.expect = Some(version);
        self
    }

    /// Sets whether following host links is refused.
    #[must_use]
    pub fn with_refuse_links(mut self, refuse_links: bool) -> Self {
        self.refuse_links = refuse_links;
        self
    }
}

/// The content of one version of a file, read in parts.
///
/// Every part comes from a ranged [`read`](Backend::read), and its version is compared with that of the first part. So the parts of any
/// backend, also behind layers and on other servers, are those of one version. If the file changes before the last part is read, the
/// next part is a [`Conflict`](ErrorKind::Conflict) that carries the current version.
///
/// Nothing is read ahead: the stream holds at most one part of 4 to 16 MiB, and reads nothing after it is dropped.
///
/// Cost: one read for each part.
///
/// ```
/// use treehold_tree::backend::{BackendExt, StateBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let tree = StateBackend::new();
/// tree.write("/log.txt", "one\n".repeat(2_000_000)).await?;
/// let mut stream = tree.read_stream("/log.txt").await?;
/// let mut bytes = 0;
/// while let Some(part) = stream.next().await? {
///     bytes += part.len() as u64;
/// }
/// assert_eq!(bytes, stream.size_bytes());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ContentStream<B> {
    tree: B,
    path: VfsPathBuf,
    refuse_links: bool,
    version: Version,
    size_bytes: u64,
    modified_at: Option<Timestamp>,
    /// The first part, until it is taken.
    first: Option<Bytes>,
    /// How many bytes of the file are before the next part that is read.
    offset: u64,
}

impl<B: Backend> ContentStream<B> {
    /// Opens a file and reads the first part.
    ///
    /// # Errors
    /// Those of [`Backend::read`], and [`Conflict`](ErrorKind::Conflict) for a version other than the expected one.
    pub async fn open(tree: B, path: &VfsPath, options: &StreamOptions) -> Result<Self> {
        let range = ReadOptions::bytes(options.offset, PART_BYTES).with_refuse_links(options.refuse_links);
        let read = tree.read(path, &range).await?;
        if options.expect.is_some_and(|expected| expected != read.version) {
            let message =
                format!("`{path}` is not the expected version any more: its version is now `{}`; read it from the start", read.version);
            return Err(Error::new(ErrorKind::Conflict, message).at(path).with_current_version(Some(read.version)).during(OpKind::Read));
        }
        let FileRead { content, version, size_bytes, modified_at, .. } = read;
        let offset = options.offset + content.len() as u64;
        let first = (!content.is_empty()).then_some(content);
        Ok(Self { tree, path: path.to_owned(), refuse_links: options.refuse_links, version, size_bytes, modified_at, first, offset })
    }

    /// Returns the version that all parts belong to.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the size in bytes of the whole file, including what the options skip.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns when the content last changed, if the tier knows.
    pub fn modified_at(&self) -> Option<Timestamp> {
        self.modified_at
    }

    /// Returns whether nothing is left to read from the tree. A part that is already read may still be left to take.
    pub fn is_read(&self) -> bool {
        self.offset >= self.size_bytes
    }

    /// Returns the next part, or `None` at the end of the file. A future that is dropped loses nothing: the next call reads the same part.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if the file changed or was removed since the stream was opened, [`Corrupt`](ErrorKind::Corrupt)
    /// if the tier returns less than the file has, and otherwise those of [`Backend::read`].
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        if self.is_read() {
            return Ok(None);
        }
        let range = ReadOptions::bytes(self.offset, part_bytes(self.size_bytes)).with_refuse_links(self.refuse_links);
        let read = match self.tree.read(&self.path, &range).await {
            Ok(read) => read,
            Err(error) => return Err(self.failed(error).await),
        };
        if read.version != self.version {
            return Err(self.changed(Some(read.version)));
        }
        if read.content.is_empty() {
            let message = format!("`{}` ends after {} of its {} bytes", self.path, self.offset, self.size_bytes);
            return Err(Error::new(ErrorKind::Corrupt, message).at(&self.path).during(OpKind::Read));
        }
        self.offset += read.content.len() as u64;
        Ok(Some(read.content))
    }

    /// Returns the parts as a stream for combinators and response bodies. It ends after the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes>> + Send {
        futures::stream::try_unfold(self, |mut parts| async move { Ok(parts.next().await?.map(|part| (part, parts))) })
    }

    /// Converts the error of a part: a file that is gone, replaced by a directory or too short by now has changed.
    async fn failed(&self, error: Error) -> Error {
        use ErrorKind::{InvalidArgument, IsDirectory, NotADirectory, NotFound};
        if !matches!(error.kind(), InvalidArgument | IsDirectory | NotADirectory | NotFound) {
            return error;
        }
        let options = StatOptions::new().with_refuse_links(self.refuse_links);
        let current = self.tree.stat(&self.path, &options).await.ok().and_then(|entry| entry.version);
        if current == Some(self.version) {
            return error;
        }
        self.changed(current).with_source(error)
    }

    fn changed(&self, current: Option<Version>) -> Error {
        let now = match current {
            Some(version) => format!("its version is now `{version}`"),
            None => "it is no longer a file".to_owned(),
        };
        let message = format!("`{}` changed while it was read: {now}; read it again from the start", self.path);
        Error::new(ErrorKind::Conflict, message).at(&self.path).with_current_version(current).during(OpKind::Read)
    }
}
