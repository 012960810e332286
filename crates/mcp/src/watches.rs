//! Change notifications: compares subscribed resources with their previous state whenever they may have changed.
//!
//! A writing call on this server wakes every subscription at once. Changes by others are reported by the store
//! ([`Workspace::watch`](treehold_agent::workspace::Workspace::watch)). Only mounts without a watch, such as host directories, are polled every [`PERIOD`]; a
//! subscription to rows of a store does nothing while nobody writes. In either case the resource itself is compared, so the behaviour is
//! the same on every tier. No change is missed. A change made while a subscription starts is notified even if the client may have seen it.

use super::uri;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use treehold_agent::session::Threads;
use treehold_core::error::ErrorKind;
use treehold_core::ops::{EntryKind, LsOptions, StatOptions, Version};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_core::shares::{Share, User};
use treehold_store::Watch;

/// How often resources without a watch are polled.
const PERIOD: Duration = Duration::from_secs(1);

/// The most resources of one subscription.
pub(super) const WATCHED_MAX: usize = 100;

/// The most directory entries that are compared.
const ENTRIES_MAX: usize = 10_000;

/// The observed state of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Absent,
    File(Version),
    /// A hash of the names, kinds and versions of the direct children.
    Directory(blake3::Hash),
    Other,
}

/// A resource and its last observed state.
#[derive(Debug)]
struct Resource {
    uri: String,
    path: VfsPathBuf,
    seen: Option<Seen>,
    /// The index of the watch that reports changes. Without one the resource is polled.
    told_by: Option<usize>,
    /// Whether the last check failed, so that a change may have been missed.
    is_uncertain: bool,
}

impl Resource {
    fn is_polled(&self) -> bool {
        self.told_by.is_none() || self.is_uncertain
    }
}

/// The watch of one mount, while it works.
#[derive(Debug)]
struct Told {
    mount: VfsPathBuf,
    watch: Option<Watch>,
}

/// Why resources are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    Call,
    Watch(usize),
    Time,
}

/// The resources of one subscription with their observed states.
#[derive(Debug)]
pub(super) struct Watched {
    threads: Arc<Threads>,
    scope: Scope,
    resources: Vec<Resource>,
    told: Vec<Told>,
    /// Subscribed before the first check, so that concurrent writes also wake it.
    writes: watch::Receiver<u64>,
    ticks: Interval,
    /// Its slot among the user's subscriptions.
    _place: Share<User>,
}

impl Watched {
    /// Checks the resources for the first time. Strings that are not URIs of this tree are ignored.
    pub(super) async fn begin(threads: Arc<Threads>, scope: Scope, uris: &[String], place: Share<User>) -> Self {
        let writes = threads.writes().subscribe();
        let mut ticks = interval_at(Instant::now() + PERIOD, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watched = Self { threads, scope, resources: Vec::new(), told: Vec::new(), writes, ticks, _place: place };
        for uri in uris.iter().take(WATCHED_MAX) {
            if let Some(path) = uri::path(uri) {
                // A watch reports only changes after it starts, so start it before the first check.
                let told_by = watched.told_by(&path).await;
                let seen = watched.look(&path).await;
                let is_uncertain = seen.is_none();
                watched.resources.push(Resource { uri: uri.clone(), path, seen, told_by, is_uncertain });
            }
        }
        watched
    }

    /// Returns the index of the watch for a path, starting one if needed.
    async fn told_by(&mut self, path: &VfsPath) -> Option<usize> {
        let mount = self.threads.workspace().mount_of(path).to_owned();
        let place = match self.told.iter().position(|told| told.mount == mount) {
            Some(place) => place,
            None => {
                let watch = self.threads.workspace().watch(&self.scope, &mount).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, %mount, "watching for changes failed; polling instead");
                    None
                });
                self.told.push(Told { mount, watch });
                self.told.len() - 1
            }
        };
        self.told[place].watch.is_some().then_some(place)
    }

    /// Returns every resource if a call may have written between the mark and the first check, since that check took the new state as the
    /// old one.
    pub(super) fn missed(&self, mark: u64) -> Vec<String> {
        let missed = self.threads.writes().since(mark);
        self.resources.iter().filter(|_| missed).map(|resource| resource.uri.clone()).collect()
    }

    /// Waits until resources have changed, and returns their URIs.
    pub(super) async fn changed(&mut self) -> Vec<String> {
        loop {
            let is_polled = self.resources.iter().any(Resource::is_polled);
            let woken = tokio::select! {
                // The sender lives as long as `threads`, which `self` owns.
                _ = self.writes.changed() => Woken::Call,
                place = first(&mut self.told) => Woken::Watch(place),
                _ = self.ticks.tick(), if is_polled => Woken::Time,
            };
            if let Woken::Watch(ended) = woken
                && self.told[ended].watch.is_none()
            {
                self.resources.iter_mut().filter(|resource| resource.told_by == Some(ended)).for_each(|resource| resource.told_by = None);
            }
            let changed = self.look_again(woken).await;
            if !changed.is_empty() {
                return changed;
            }
        }
    }

    /// Checks the resources that may have changed, and returns the URIs of those that have.
    async fn look_again(&mut self, woken: Woken) -> Vec<String> {
        let mut changed = Vec::new();
        for at in 0..self.resources.len() {
            let resource = &self.resources[at];
            let is_due = match woken {
                Woken::Call => true,
                Woken::Watch(place) => resource.told_by == Some(place) || resource.told_by.is_none(),
                Woken::Time => resource.is_polled(),
            };
            if !is_due {
                continue;
            }
            let now = self.look(&resource.path).await;
            let resource = &mut self.resources[at];
            // After a failed check it is unknown whether the resource has changed.
            resource.is_uncertain = now.is_none();
            if now.is_some() && now != resource.seen {
                if resource.seen.is_some() {
                    changed.push(resource.uri.clone());
                }
                resource.seen = now;
            }
        }
        changed
    }

    /// Returns the state of a resource, or `None` if the check fails.
    async fn look(&self, path: &VfsPath) -> Option<Seen> {
        let tree = self.threads.session(&self.scope).await.ok()?.backend();
        match tree.stat(path, &StatOptions::new()).await {
            Ok(entry) if entry.kind == EntryKind::Directory => {
                let listing = tree.ls(path, &LsOptions::new().with_limit(ENTRIES_MAX)).await.ok()?;
                let mut hasher = blake3::Hasher::new();
                for entry in &listing.entries {
                    hasher.update(format!("{}\n{:?} {:?}\n", entry.name(), entry.kind, entry.version).as_bytes());
                }
                Some(Seen::Directory(hasher.finalize()))
            }
            Ok(entry) => Some(entry.version.map_or(Seen::Other, Seen::File)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Some(Seen::Absent),
            Err(_) => None,
        }
    }
}

/// Waits for any watch and returns its index. Removes a watch that has failed.
async fn first(told: &mut [Told]) -> usize {
    let waits: Vec<_> = told
        .iter_mut()
        .enumerate()
        .filter(|(_, told)| told.watch.is_some())
        .map(|(place, told)| {
            Box::pin(async move {
                if let Some(watch) = &mut told.watch
                    && let Err(error) = watch.changed().await
                {
                    tracing::debug!(%error, mount = %told.mount, "the watch for changes ended; polling instead");
                    told.watch = None;
                }
                place
            })
        })
        .collect();
    if waits.is_empty() {
        return std::future::pending().await;
    }
    futures::future::select_all(waits).await.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_agent::workspace::Workspace;
    use treehold_core::scope::NamespaceTemplate;
    use treehold_store::{MemoryStore, Namespace, Store};
    use treehold_tree::backend::{BackendExt, StoreBackend};
    use treehold_tree::layer::{Fault, Layered};

    fn namespace() -> Namespace {
        NamespaceTemplate::parse("memories").and_then(|template| template.fill(&Scope::new())).expect("a namespace")
    }

    async fn watched(workspace: Workspace) -> Watched {
        let place = Arc::new(treehold_core::shares::Shares::default()).take((None, None), 1).expect("a slot");
        let uris = ["vfs:///memories/a".to_owned(), "vfs:///memories".to_owned()];
        Watched::begin(Arc::new(Threads::new(workspace)), Scope::new().with_thread("t"), &uris, place).await
    }

    #[tokio::test(start_paused = true)]
    async fn watched_store_is_not_polled() {
        let store = Arc::new(MemoryStore::new());
        let tree = Arc::new(Layered::new(Fault::never(), StoreBackend::new(store.clone(), namespace())));
        let mounted = || Workspace::builder().backend("/memories", tree.clone()).expect("a mount");
        let rows = store.clone();
        let told =
            mounted().with_change_source("/memories", move |_| Ok((rows.clone() as Arc<dyn Store>, namespace()))).expect("a path").build();
        let (mut told, mut asked) = (watched(told).await, watched(mounted().build()).await);
        let hour = Duration::from_secs(3_600);
        let before = tree.layer().calls();
        assert!(tokio::time::timeout(hour, told.changed()).await.is_err());
        assert_eq!(tree.layer().calls(), before);
        assert!(tokio::time::timeout(hour, asked.changed()).await.is_err());
        assert!(tree.layer().calls() > before + 3_000);
        // Another program writes the same rows.
        let start = Instant::now();
        StoreBackend::new(store.clone(), namespace()).write("/a", "x").await.expect("written");
        let mut uris = told.changed().await;
        uris.sort_unstable();
        assert_eq!(uris, ["vfs:///memories", "vfs:///memories/a"]);
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(asked.changed().await.len(), 2);
        assert!(start.elapsed() > Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn resource_is_checked_again_after_failed_check() {
        let store = Arc::new(MemoryStore::new());
        let tree = Arc::new(Layered::new(Fault::nth(3), StoreBackend::new(store.clone(), namespace())));
        let rows = store.clone();
        let workspace = Workspace::builder().backend("/memories", tree.clone()).expect("a mount");
        let workspace =
            workspace.with_change_source("/memories", move |_| Ok((rows.clone() as Arc<dyn Store>, namespace()))).expect("a path");
        let mut watched = watched(workspace.build()).await;
        StoreBackend::new(store.clone(), namespace()).write("/a", "x").await.expect("written");
        let mut heard = watched.changed().await;
        while heard.len() < 2 {
            heard.extend(watched.changed().await);
        }
        assert_eq!(tree.layer().faults(), 1, "the check after the notification failed");
    }
}
