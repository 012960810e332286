//! Notification of watchers about commits of this and other processes.
//!
//! The partitions that are watched are polled by the times and sizes of their files, so that watching many keeps none open. Only a partition
//! whose file has changed is asked for its version.

use super::names::file_of;
use super::opened::OpenFiles;
use super::upkeep::FileMark;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_store::watch::Watches;
use treehold_store::{Namespace, Partition, Store};

/// The watches of a directory.
#[derive(Debug, Default)]
pub(super) struct WatchedFiles {
    pub(super) watches: Arc<Watches>,
    known: Mutex<HashMap<Partition, Known>>,
}

/// What is known of a watched partition.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The newest version that was announced.
    version: Version,
    mark: FileMark,
}

impl WatchedFiles {
    /// Announces a commit of this process to the watched namespaces that it wrote to. `first` is the version of its first put.
    pub(super) fn announce(&self, partition: &Partition, written: &[Namespace], first: Option<Version>, newest: Version) {
        if let Some(known) = self.known.lock().get_mut(partition) {
            // If nothing was committed in between, the poll need not tell the other namespaces.
            let before = first.map_or(newest.number(), Version::number).saturating_sub(1);
            if known.version == Version::new(before) {
                known.version = newest;
            }
        }
        written.iter().for_each(|namespace| self.watches.notify(namespace, newest));
    }

    /// Announces what other processes have committed, in unknown namespaces.
    pub(super) async fn look(&self, files: &OpenFiles) -> Result<()> {
        let mut watched: HashMap<Partition, Vec<Namespace>> = HashMap::new();
        for namespace in self.watches.namespaces() {
            watched.entry(namespace.partition()).or_default().push(namespace);
        }
        self.known.lock().retain(|partition, _| watched.contains_key(partition));
        for (partition, namespaces) in watched {
            let mark = FileMark::of(&file_of(files.root(), &partition));
            let known = self.known.lock().get(&partition).copied();
            if known.is_some_and(|known| known.mark == mark && mark.is_settled()) {
                continue;
            }
            let version = match files.find(&partition).await? {
                Some(store) => store.current_version(&partition).await?,
                None => Version::new(0),
            };
            let mut all = self.known.lock();
            let before = all.get(&partition).map(|known| known.version);
            all.insert(partition, Known { version: before.map_or(version, |before| before.max(version)), mark });
            drop(all);
            if before.is_none_or(|before| before < version) {
                namespaces.iter().for_each(|namespace| self.watches.notify(namespace, version));
            }
        }
        Ok(())
    }
}
