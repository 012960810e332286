//! Embedded stores, each opened once per process under any of its names.
//!
//! The lock of a sled directory excludes a second handle, and a second handle on a SQLite file would have its own writer, readers and
//! caches. So opening a location that is already open returns the existing store. Names of the same location, such as a link or a relative
//! path, are unified by the canonical path.

use super::create_parent;
use crate::Store;
use crate::file_identity::FileIdentity;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use treehold_core::error::{Error, ErrorKind, Result};

/// An open store, and the file that identifies it. Once that file is removed or replaced, the path denotes a different store.
struct Opened {
    store: Weak<dyn Store>,
    file: FileIdentity,
    /// The process that opened it. A child that is forked later opens its own, since the threads of the store are not in it.
    process: u32,
}

impl Opened {
    fn current(&self) -> Option<Arc<dyn Store>> {
        self.store.upgrade().filter(|_| self.process == std::process::id() && self.file.check().is_ok())
    }
}

/// Locked while the store at a location is opened.
type Slot = Arc<Mutex<Option<Opened>>>;

static OPENED: LazyLock<Mutex<HashMap<PathBuf, Slot>>> = LazyLock::new(Mutex::default);

/// Returns the store at `path`. Calls `open` unless the store is already open in this process. `file` is a file at that
/// location that the store keeps open as long as it is open. Blocks.
///
/// # Errors
/// Those of `open`.
pub fn open_once(path: &Path, file: &Path, open: fn(&Path) -> Result<Arc<dyn Store>>) -> Result<Arc<dyn Store>> {
    let slot = slot(canonical(path));
    let mut opened = slot.lock();
    if let Some(store) = opened.as_ref().and_then(Opened::current) {
        return Ok(store);
    }
    let store = open(path)?;
    *opened = FileIdentity::of(file).ok().map(|file| Opened { store: Arc::downgrade(&store), file, process: std::process::id() });
    Ok(store)
}

fn slot(path: PathBuf) -> Slot {
    let mut all = OPENED.lock();
    // A slot that only the table references cannot be locked.
    all.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().as_ref().is_some_and(|opened| opened.store.strong_count() > 0));
    all.entry(path).or_default().clone()
}

/// Returns the canonical path of a location, whether or not it exists.
fn canonical(path: &Path) -> PathBuf {
    let within_parent = || Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    std::fs::canonicalize(path).ok().or_else(within_parent).unwrap_or_else(|| path.to_owned())
}

/// Returns the embedded store at `path`: what the location of such a store calls to open it. Creates the parent directory, and calls `open`
/// on a blocking thread unless the store is already open in this process. `file` returns a file at the location that the store keeps open
/// as long as it is open.
///
/// # Errors
/// Those of `open` and [`create_parent`]; [`Internal`](ErrorKind::Internal) if `open` panics.
pub async fn open_embedded(path: &Path, file: fn(&Path) -> PathBuf, open: fn(&Path) -> Result<Arc<dyn Store>>) -> Result<Arc<dyn Store>> {
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        create_parent(&path)?;
        open_once(&path, &file(&path), open)
    });
    opened.await.map_err(|error| Error::new(ErrorKind::Internal, "opening a store was interrupted").with_source(error))?
}
