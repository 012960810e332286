//! A file that holds a large body until it is complete. It is unlinked as soon as it is open, so nothing remains even after a crash.

use super::body::kib;
use bytes::Bytes;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use treehold_core::error::{Error, ErrorKind, Result};
use uuid::Uuid;

/// An incomplete body on disk.
#[derive(Debug)]
pub(super) struct Spool {
    file: Arc<File>,
    size_bytes: usize,
    disk: Arc<Semaphore>,
    room: Option<OwnedSemaphorePermit>,
}

impl Spool {
    /// Creates an empty file in the system's temporary directory.
    pub(super) async fn open(disk: Arc<Semaphore>) -> Result<Self> {
        let file = blocking(|| {
            let path = std::env::temp_dir().join(format!("treehold-{}", Uuid::new_v4().simple()));
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let file = options.open(&path)?;
            std::fs::remove_file(path)?;
            Ok(file)
        });
        Ok(Self { file: Arc::new(file.await?), size_bytes: 0, disk, room: None })
    }

    /// Appends a part. Fails if there is no disk space left: waiting for space would keep the space already reserved.
    pub(super) async fn add(&mut self, part: Bytes) -> Result<()> {
        if part.is_empty() {
            return Ok(());
        }
        let size_bytes = self.size_bytes + part.len();
        let wanted = kib(size_bytes) - kib(self.size_bytes);
        let more = self.disk.clone().try_acquire_many_owned(wanted).map_err(|_| {
            let message = "too many large bodies are being received; try again in a second";
            Error::new(ErrorKind::Unavailable, message).without_effect()
        })?;
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        let file = self.file.clone();
        blocking(move || (&*file).write_all(&part)).await?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    /// Reads the whole body.
    pub(super) async fn read(self) -> Result<Bytes> {
        let Self { file, size_bytes, .. } = &self;
        let (file, size_bytes) = (file.clone(), *size_bytes);
        let content = blocking(move || {
            let mut file = &*file;
            file.rewind()?;
            let mut content = vec![0; size_bytes];
            file.read_exact(&mut content)?;
            Ok(content)
        });
        Ok(content.await?.into())
    }
}

/// Runs blocking file I/O.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|error| {
        Error::new(ErrorKind::Unavailable, "a large body cannot be kept while it is received").without_effect().with_source(error)
    })
}
