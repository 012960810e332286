//! The files that are open: at most a number of them, closed when others are needed.

use super::MARK;
use super::names::{self, Found, belongs, file_of};
use crate::error::unreachable_file;
use crate::recognise::with_suffix;
use crate::{SqliteOptions, SqliteStore};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::OnceCell;
use treehold_core::error::{AtHost, Error, ErrorKind, Result};
use treehold_store::committer::check_process;
use treehold_store::file_identity::FileIdentity;
use treehold_store::{Namespace, Partition};

/// The open files of a directory, by partition.
#[derive(Debug)]
pub(super) struct OpenFiles {
    root: PathBuf,
    /// The mark of the directory. If it is gone, the whole directory is, and no file in it counts as deleted.
    mark: FileIdentity,
    /// The options of every file, except its path.
    options: SqliteOptions,
    open_max: usize,
    slots: Mutex<HashMap<Partition, Arc<Slot>>>,
    uses: AtomicU64,
    /// Held while a deleted file is closed. Until that is done, no file of its name is opened.
    closing: tokio::sync::Mutex<()>,
    process: u32,
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
    /// Returns whether only the table and `users` callers have the file. Called under the lock of the table.
    fn is_idle(self: &Arc<Self>, users: usize) -> bool {
        Arc::strong_count(self) == 1 + users && self.file.get().is_none_or(|file| file.store.is_idle())
    }
}

impl OpenFiles {
    /// Makes the table for a directory that has its mark.
    pub(super) fn new(root: PathBuf, options: SqliteOptions, open_max: usize) -> io::Result<Self> {
        let mark = FileIdentity::of(&root.join(MARK))?;
        let (open_max, process) = (open_max.max(1), std::process::id());
        Ok(Self {
            root,
            mark,
            options,
            open_max,
            slots: Mutex::default(),
            uses: AtomicU64::new(0),
            closing: tokio::sync::Mutex::default(),
            process,
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn options(&self) -> &SqliteOptions {
        &self.options
    }

    /// Returns the store of a partition; `None` if it has no file.
    pub(super) async fn find(&self, partition: &Partition) -> Result<Option<SqliteStore>> {
        check_process(self.process)?;
        if let Some(store) = self.opened(partition).await? {
            return Ok(Some(store));
        }
        if !self.is_present(&file_of(&self.root, partition))? {
            return Ok(None);
        }
        match self.open_slot(partition, false).await {
            // It was deleted meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Returns the store of a partition, and creates its file if there is none.
    pub(super) async fn open(&self, partition: &Partition) -> Result<SqliteStore> {
        check_process(self.process)?;
        if let Some(store) = self.opened(partition).await? {
            return Ok(store);
        }
        self.mark.check()?;
        self.open_slot(partition, true).await
    }

    /// Opens a file for one look at it; `None` if it was deleted meanwhile. A file that is not open is opened for that alone, so that looking
    /// at all files closes none that is in use.
    pub(super) async fn look<T, F: Future<Output = Result<T>>>(
        &self,
        found: &Found,
        look: impl FnOnce(SqliteStore) -> F,
    ) -> Result<Option<T>> {
        check_process(self.process)?;
        if let Some(store) = self.opened(&found.partition).await? {
            return look(store).await.map(Some);
        }
        let options = SqliteOptions { path: found.path.clone(), create: false, ..self.options.clone() };
        let (root, path) = (self.root.clone(), found.path.clone());
        let opened = on_blocking_thread(move || {
            let store = open_store(options)?;
            check_place(&root, &path, &store)?;
            Ok(store)
        });
        let private = match opened.await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => Private(Some(opened?)),
        };
        let looked = look(private.store()).await;
        private.close().await;
        looked.map(Some)
    }

    /// Returns the file of a partition; `None` without one.
    pub(super) fn found(&self, partition: &Partition) -> Result<Option<Found>> {
        let path = file_of(&self.root, partition);
        Ok(self.is_present(&path)?.then(|| Found { path, partition: partition.clone() }))
    }

    /// Returns the store of a partition whose file is open.
    async fn opened(&self, partition: &Partition) -> Result<Option<SqliteStore>> {
        let Some(slot) = self.slots.lock().get(partition).cloned() else { return Ok(None) };
        let Some(file) = slot.file.get() else { return Ok(None) };
        match file.identity.check() {
            Ok(()) => {
                self.use_slot(&slot);
                Ok(Some(file.store.clone()))
            }
            Err(error) if is_deleted(&file_of(&self.root, partition)) => {
                self.mark.check()?;
                self.close_deleted(partition, slot, error).await.map(|()| None)
            }
            Err(error) => Err(error),
        }
    }

    /// Closes a file that was deleted. Until its last user is gone, `error` says what happened.
    async fn close_deleted(&self, partition: &Partition, slot: Arc<Slot>, error: Error) -> Result<()> {
        let _closing = self.closing.lock().await;
        {
            let mut slots = self.slots.lock();
            match slots.get(partition) {
                Some(present) if Arc::ptr_eq(present, &slot) && present.is_idle(1) => drop(slots.remove(partition)),
                Some(present) if Arc::ptr_eq(present, &slot) => return Err(error),
                _ => return Ok(()),
            }
        }
        on_blocking_thread(move || {
            drop(slot);
            Ok(())
        })
        .await
    }

    async fn open_slot(&self, partition: &Partition, create: bool) -> Result<SqliteStore> {
        let slot = {
            let _closing = self.closing.lock().await;
            self.slots.lock().entry(partition.clone()).or_default().clone()
        };
        self.use_slot(&slot);
        let (root, options) = (self.root.clone(), SqliteOptions { create, ..self.options.clone() });
        let opening = slot.file.get_or_try_init(|| async {
            let partition = partition.clone();
            on_blocking_thread(move || open_file(&root, &partition, options)).await
        });
        let opened = opening.await.map(|file| file.store.clone());
        if opened.is_err() {
            let mut slots = self.slots.lock();
            if slots.get(partition).is_some_and(|present| Arc::ptr_eq(present, &slot) && present.file.get().is_none()) {
                slots.remove(partition);
            }
        }
        drop(slot);
        self.close_unused();
        opened
    }

    fn use_slot(&self, slot: &Slot) {
        slot.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Closes the files used least recently until there are few enough. Those in use stay open.
    fn close_unused(&self) {
        let mut slots = self.slots.lock();
        let mut closed = Vec::new();
        while slots.len() > self.open_max {
            let idle = slots.iter().filter(|(_, slot)| slot.is_idle(0));
            let Some(oldest) = idle.min_by_key(|(_, slot)| slot.used.load(Ordering::Relaxed)).map(|(partition, _)| partition.clone())
            else {
                break;
            };
            closed.extend(slots.remove(&oldest));
        }
        drop(slots);
        if !closed.is_empty() {
            drop_elsewhere(closed);
        }
    }

    /// Returns whether a file exists. While the directory itself is not there, nobody knows.
    fn is_present(&self, path: &Path) -> Result<bool> {
        match std::fs::metadata(path) {
            Ok(_) => Ok(true),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                self.mark.check()?;
                // The directory of a tenant may be a link to a disk that is not mounted.
                let is_lost = path.parent().is_some_and(|directory| directory.is_symlink() && !directory.exists());
                if is_lost { Err(unreachable_file(path, io::Error::other("the directory is a link to nowhere"))) } else { Ok(false) }
            }
            Err(cause) => Err(unreachable_file(path, cause)),
        }
    }

    #[cfg(test)]
    pub(super) fn open_count(&self) -> usize {
        self.slots.lock().values().filter(|slot| slot.file.get().is_some()).count()
    }
}

/// A file that is open for one look. It is closed on a blocking thread, because that folds its log into it.
struct Private(Option<SqliteStore>);

impl Private {
    fn store(&self) -> SqliteStore {
        self.0.clone().expect("taken only when it is closed")
    }

    async fn close(mut self) {
        let store = self.0.take();
        let closed = on_blocking_thread(move || {
            drop(store);
            Ok(())
        });
        // Closing does not fail; at most the runtime ends.
        let _: Result<()> = closed.await;
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if let Some(store) = self.0.take() {
            drop_elsewhere(store);
        }
    }
}

/// Drops a value that blocks when it is dropped.
fn drop_elsewhere<T: Send + 'static>(value: T) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || drop(value))),
        Err(_) => drop(value),
    }
}

pub(super) async fn on_blocking_thread<T: Send + 'static>(run: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(run)
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "work on the files of the store was interrupted").with_source(error))?
}

/// Returns whether a file was deleted together with its log. What is left of a log would be applied to another file of that name.
fn is_deleted(path: &Path) -> bool {
    ["", "-wal", "-shm"]
        .iter()
        .all(|suffix| std::fs::symlink_metadata(with_suffix(path, suffix)).is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound))
}

/// Opens the file of a partition, and creates it if the options say so. Blocks.
fn open_file(root: &Path, partition: &Partition, options: SqliteOptions) -> Result<OpenFile> {
    let path = file_of(root, partition);
    if options.create && !path.exists() {
        names::prepare(root, partition).map_err(|cause| unreachable_file(&path, cause))?;
    }
    let store = open_store(SqliteOptions { path: path.clone(), ..options })?;
    let identity = FileIdentity::of(&path).map_err(|cause| unreachable_file(&path, cause))?;
    check_place(root, &path, &store)?;
    Ok(OpenFile { store, identity })
}

/// Opens the file of a partition. Blocks.
fn open_store(options: SqliteOptions) -> Result<SqliteStore> {
    SqliteStore::open_with(options).map_err(of_unnamed_file)
}

/// Returns the error about a file of a partition. Nobody named that file, so a damaged one is not mistaken for one that was named by mistake.
pub(super) fn of_unnamed_file(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => error.with_message("it is damaged; restore it from a backup"),
        _ => error,
    }
}

/// Refuses a file that holds rows of another partition than its name says. The rows of a partition follow each other, so the first and the
/// last one tell.
fn check_place(root: &Path, path: &Path, store: &SqliteStore) -> Result<()> {
    let is_foreign = |found: &Namespace| !belongs(root, path, found);
    let (first, last) = (store.first_namespace()?, store.last_namespace()?);
    let [one, other] = [&first, &last].map(|found| found.as_ref().map(Namespace::partition));
    let all = first.as_ref().is_some_and(is_foreign) && one == other;
    let Some(foreign) = first.into_iter().chain(last).find(is_foreign) else { return Ok(()) };
    let partition = foreign.partition();
    let message = match all {
        true => format!("it holds rows of the partition `{partition}`; give it the name of that partition again"),
        false => {
            format!("it also holds rows of the partition `{partition}`; remove them with `treehold store rm`, on this file as a store")
        }
    };
    Err(Error::new(ErrorKind::Corrupt, message).with_source(AtHost::new(path)))
}
