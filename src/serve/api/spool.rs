//! A file that a large body waits in until it is whole. It has no name once it is open, so nothing is left of it whatever happens.

use super::body::kib;
use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

/// A body that is not whole yet.
#[derive(Debug)]
pub(super) struct Spool {
    file: Arc<File>,
    size_bytes: usize,
    disk: Arc<Semaphore>,
    room: Option<OwnedSemaphorePermit>,
}

impl Spool {
    /// Makes an empty one, in the directory of the system for what does not last.
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

    /// Adds to its end. There is room for it, or it is refused: what waited for room would keep the room that it has.
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

    /// Reads all of it.
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

/// Does what waits for the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|error| {
        Error::new(ErrorKind::Unavailable, "a large body cannot be kept while it is received").without_effect().with_source(error)
    })
}
