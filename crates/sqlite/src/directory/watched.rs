//! Notification of watchers about commits of this and other processes.
//!
//! The partitions that are watched are polled by the times and sizes of their files, so that watching many keeps none open. Only a partition
//! whose file may have changed is asked for its version.

use super::names::file_of;
use super::opened::{OpenFiles, on_blocking_thread};
use super::upkeep::FileMark;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
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
    /// The mark of the file before the version was read, if every later commit changes it.
    mark: Option<FileMark>,
}

impl WatchedFiles {
    /// Announces a commit of this process to the watched namespaces that it wrote to. `first` is the version of its first put.
    pub(super) fn announce(&self, partition: &Partition, written: &[Namespace], first: Option<Version>, newest: Version) {
        if let Some(first) = first
            && let Some(known) = self.known.lock().get_mut(partition)
            && known.version.number() + 1 == first.number()
        {
            // Nothing was committed in between, so the poll need not tell the other namespaces.
            known.version = newest;
        }
        written.iter().for_each(|namespace| self.watches.notify(namespace, newest));
    }

    /// Announces what other processes have committed, in unknown namespaces of all watched partitions or of one.
    ///
    /// # Errors
    /// Those of the one partition. What else fails is tried again with the next poll.
    pub(super) async fn look(&self, files: &OpenFiles, only: Option<&Partition>) -> Result<()> {
        let mut watched: HashMap<Partition, Vec<Namespace>> = HashMap::new();
        for namespace in self.watches.namespaces() {
            watched.entry(namespace.partition()).or_default().push(namespace);
        }
        self.known.lock().retain(|partition, _| watched.contains_key(partition));
        let partitions = watched.keys().filter(|partition| only.is_none_or(|only| only == *partition)).cloned().collect::<Vec<_>>();
        let root = files.root().to_owned();
        let marks = on_blocking_thread(move || {
            let mark = |partition: Partition| (FileMark::of(&file_of(&root, &partition)), partition);
            Ok(partitions.into_iter().map(mark).collect::<Vec<_>>())
        });
        let mut failed: Option<Error> = None;
        for (mark, partition) in marks.await? {
            let known = self.known.lock().get(&partition).copied();
            if known.is_some_and(|known| known.mark == Some(mark)) {
                continue;
            }
            let Some(namespaces) = watched.get(&partition) else { continue };
            let read = async {
                match files.find(&partition).await? {
                    Some(store) => store.current_version(&partition).await,
                    None => Ok(Version::new(0)),
                }
            };
            match read.await {
                Ok(version) => self.learn(&partition, namespaces, version, mark.is_settled().then_some(mark)),
                Err(error) if only.is_some() => failed = Some(error),
                Err(error) => tracing::debug!(%partition, %error, "a watched partition could not be polled"),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn learn(&self, partition: &Partition, namespaces: &[Namespace], version: Version, mark: Option<FileMark>) {
        let mut all = self.known.lock();
        let before = all.get(partition).map(|known| known.version);
        // A partition that was deleted counts anew.
        let is_anew = before.is_some_and(|before| version < before) && version == Version::new(0);
        let newest = before.filter(|_| !is_anew).map_or(version, |before| before.max(version));
        all.insert(partition.clone(), Known { version: newest, mark });
        drop(all);
        if is_anew {
            namespaces.iter().for_each(|namespace| self.watches.restart(namespace));
        } else if before.is_none_or(|before| before < version) {
            namespaces.iter().for_each(|namespace| self.watches.notify(namespace, version));
        }
    }
}
