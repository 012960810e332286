//! The files that are open: at most a number of them, closed when others are needed.

use super::names::{Found, belongs, file_of};
use crate::error::unreachable_file;
use crate::open::sync_directory_of;
use crate::{SqliteOptions, SqliteStore};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::OnceCell;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_store::Partition;
use treehold_store::file_identity::FileIdentity;

/// The open files of a directory, by partition.
#[derive(Debug)]
pub(super) struct OpenFiles {
    root: PathBuf,
    /// The options of every file, except its path.
    options: SqliteOptions,
    open_max: usize,
    slots: Mutex<HashMap<Partition, Arc<Slot>>>,
    uses: AtomicU64,
}

/// A file that is open, or being opened.
#[derive(Debug, Default)]
struct Slot {
    file: OnceCell<OpenFile>,
    used: AtomicU64,
}

#[derive(Debug)]
struct OpenFile {
    store: SqliteStore,
    identity: FileIdentity,
}

impl Slot {
    /// Returns whether nobody uses the file. The caller holds the lock under which users come.
    fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && self.file.get().is_none_or(|file| file.store.is_idle())
    }
}

impl OpenFiles {
    pub(super) fn new(root: PathBuf, options: SqliteOptions, open_max: usize) -> Self {
        Self { root, options, open_max: open_max.max(1), slots: Mutex::default(), uses: AtomicU64::new(0) }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn options(&self) -> &SqliteOptions {
        &self.options
    }

    /// Returns the store of a partition, if it has a file.
    pub(super) async fn find(&self, partition: &Partition) -> Result<Option<SqliteStore>> {
        match self.opened(partition) {
            Some(store) => Ok(Some(store)),
            None if !file_of(&self.root, partition).exists() => Ok(None),
            None => self.open(partition).await.map(Some),
        }
    }

    /// Returns the store of a partition, and creates its file if there is none.
    pub(super) async fn open(&self, partition: &Partition) -> Result<SqliteStore> {
        if let Some(store) = self.opened(partition) {
            return Ok(store);
        }
        let slot = self.slots.lock().entry(partition.clone()).or_default().clone();
        self.use_slot(&slot);
        let (root, options) = (self.root.clone(), self.options.clone());
        let opening = slot.file.get_or_try_init(|| async {
            let partition = partition.clone();
            on_blocking_thread(move || open_file(&root, &partition, options)).await
        });
        let store = opening.await?.store.clone();
        self.close_unused();
        Ok(store)
    }

    /// Returns a store for one look at a file. A file that is not open is opened for that alone, so that looking at all files closes none
    /// that is in use.
    pub(super) async fn look<T, F: Future<Output = Result<T>>>(&self, found: &Found, look: impl FnOnce(SqliteStore) -> F) -> Result<T> {
        if let Some(store) = self.opened(&found.partition) {
            return look(store).await;
        }
        let options = SqliteOptions { path: found.path.clone(), ..self.options.clone() };
        let store = on_blocking_thread(move || SqliteStore::open_with(options)).await?;
        let looked = look(store.clone()).await;
        on_blocking_thread(move || {
            drop(store);
            Ok(())
        })
        .await?;
        looked
    }

    /// Returns the store of a partition whose file is open. A file that was removed or replaced is closed.
    fn opened(&self, partition: &Partition) -> Option<SqliteStore> {
        let slot = self.slots.lock().get(partition)?.clone();
        let file = slot.file.get()?;
        if file.identity.check().is_ok() {
            self.use_slot(&slot);
            return Some(file.store.clone());
        }
        let mut slots = self.slots.lock();
        if slots.get(partition).is_some_and(|present| Arc::ptr_eq(present, &slot)) {
            slots.remove(partition);
        }
        drop(slots);
        close(vec![slot]);
        None
    }

    fn use_slot(&self, slot: &Slot) {
        slot.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Closes the files used least recently until there are few enough. Those in use stay open.
    fn close_unused(&self) {
        let mut slots = self.slots.lock();
        let mut closed = Vec::new();
        while slots.len() > self.open_max {
            let idle = slots.iter().filter(|(_, slot)| slot.is_idle());
            let Some(oldest) = idle.min_by_key(|(_, slot)| slot.used.load(Ordering::Relaxed)).map(|(partition, _)| partition.clone())
            else {
                break;
            };
            closed.extend(slots.remove(&oldest));
        }
        drop(slots);
        if !closed.is_empty() {
            close(closed);
        }
    }

    #[cfg(test)]
    pub(super) fn open_count(&self) -> usize {
        self.slots.lock().values().filter(|slot| slot.file.get().is_some()).count()
    }
}

/// Closes files: folds their logs into them, which blocks.
fn close(slots: Vec<Arc<Slot>>) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || drop(slots))),
        Err(_) => drop(slots),
    }
}

async fn on_blocking_thread<T: Send + 'static>(run: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(run)
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "opening a file of the store was interrupted").with_source(error))?
}

/// Opens the file of a partition, and creates it if needed. Blocks.
fn open_file(root: &Path, partition: &Partition, options: SqliteOptions) -> Result<OpenFile> {
    let path = file_of(root, partition);
    if let Some(directory) = path.parent().filter(|directory| *directory != root)
        && !path.exists()
    {
        create_directory(directory).map_err(|cause| unreachable_file(&path, cause))?;
    }
    let store = SqliteStore::open_with(SqliteOptions { path: path.clone(), ..options })?;
    let identity = FileIdentity::of(&path).map_err(|cause| unreachable_file(&path, cause))?;
    if let Some(first) = store.first_namespace()?
        && !belongs(root, &path, &first)
    {
        let message = format!(
            "the file of the partition `{partition}` holds rows of `{}`; give it the name of that partition again",
            first.partition()
        );
        return Err(Error::new(ErrorKind::Corrupt, message).with_source(AtHost::new(&path)));
    }
    Ok(OpenFile { store, identity })
}

fn create_directory(directory: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(directory) {
        // Another process may have created it and not synced it yet.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => created?,
    }
    sync_directory_of(directory)
}
