//! Embedded stores, each opened once per process under whatever name.
//!
//! The lock of a sled directory excludes a second handle, and a second handle on a SQLite file would have its own writer, readers and
//! caches. So opening a location that is already open returns the existing store. Names of the same location, such as a link or a relative
//! path, are unified by the canonical path.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use treehold_core::error::Result;
use treehold_store::Store;
use treehold_store::place::Place;

/// An open store, and the file that identifies it. Once that file is removed or replaced, the path denotes a different store.
struct Opened {
    store: Weak<dyn Store>,
    place: Place,
}

impl Opened {
    fn current(&self) -> Option<Arc<dyn Store>> {
        self.store.upgrade().filter(|_| self.place.check().is_ok())
    }
}

/// Locked while the store at a location is opened.
type Slot = Arc<Mutex<Option<Opened>>>;

static OPENED: LazyLock<Mutex<HashMap<PathBuf, Slot>>> = LazyLock::new(Mutex::default);

/// Returns the store at `path`. Calls `open` unless the store is already open in this process. `file` is a file at that location that the
/// store keeps open as long as it is open. Blocks.
pub(super) fn open_once(path: &Path, file: &Path, open: fn(&Path) -> Result<Arc<dyn Store>>) -> Result<Arc<dyn Store>> {
    let slot = slot(canonical(path));
    let mut opened = slot.lock();
    if let Some(store) = opened.as_ref().and_then(Opened::current) {
        return Ok(store);
    }
    let store = open(path)?;
    *opened = Place::of(file).ok().map(|place| Opened { store: Arc::downgrade(&store), place });
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

#[cfg(all(test, feature = "sled", feature = "sqlite"))]
mod tests {
    use crate::config::{Config, Place};
    use std::sync::Arc;
    use treehold_store::{Batch, Namespace, Store};

    #[tokio::test]
    async fn names_of_one_location_share_a_store_that_reopens_after_close() {
        let directory = tempfile::tempdir().expect("a directory");
        let real = directory.path().join("real");
        std::fs::create_dir(&real).expect("made");
        #[cfg(unix)]
        std::os::unix::fs::symlink(&real, directory.path().join("link")).expect("linked");
        let link = if cfg!(unix) { "link" } else { "real" };
        for place in ["sled:{}/tree", "sqlite:{}/store.db"] {
            let [one, two, three] = ["real", link, "real/../real"].map(|at| place.replace("{}", at));
            let text = format!("[stores.default]\nurl = \"{one}\"\n[stores.two]\nurl = \"{two}\"\n[stores.three]\nurl = \"{three}\"");
            let config = Config::parse(&text, &Place::new(directory.path(), directory.path())).expect("a sound configuration");
            let namespace = Namespace::new(["a"]).expect("plain");
            for round in 0..2 {
                // Two sets of stores, as separate parts of a program would open them.
                let sets = [config.stores().expect("stores"), config.stores().expect("stores")];
                let all: Vec<(String, Arc<dyn Store>)> = sets
                    .iter()
                    .flat_map(|set| set.iter().map(|(name, store)| (name.to_owned(), store.clone())).collect::<Vec<_>>())
                    .collect();
                let puts = all.iter().zip(0..).map(|((name, store), number)| {
                    let batch = Batch::new().put(&namespace, format!("{round} {number}"), name.clone());
                    let store = store.clone();
                    async move { store.commit(batch).await }
                });
                let committed = futures::future::try_join_all(puts.collect::<Vec<_>>()).await;
                committed.unwrap_or_else(|error| panic!("{place} in round {round}: {error:?}"));
                for (name, store) in &all {
                    let scan = store.scan(&namespace, Default::default()).await.expect("read");
                    assert_eq!(scan.entries.len(), (round + 1) * all.len(), "`{name}` of {place}");
                }
            }
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn store_is_reopened_after_its_file_is_replaced() {
        use crate::config::{OpenStoreOptions, open_store};
        use treehold_core::error::ErrorKind;

        let directory = tempfile::tempdir().expect("a directory");
        let options = OpenStoreOptions::new().with_directory(directory.path());
        let namespace = Namespace::new(["a"]).expect("plain");
        let put = || Batch::new().put(&namespace, "k", "v");
        let before = open_store("sqlite:store.db", &options).await.expect("opened");
        before.commit(put()).await.expect("committed");
        std::fs::create_dir(directory.path().join("aside")).expect("made");
        for suffix in ["", "-wal", "-shm"] {
            let name = format!("store.db{suffix}");
            std::fs::rename(directory.path().join(&name), directory.path().join("aside").join(&name)).expect("moved");
        }
        let after = open_store("sqlite:store.db", &options).await.expect("opened");
        assert!(after.get(&namespace, "k").await.expect("read").is_none(), "it is a new store");
        after.commit(put()).await.expect("committed");
        assert_eq!(before.commit(put()).await.expect_err("its file is elsewhere").kind(), ErrorKind::Unavailable);
    }
}
