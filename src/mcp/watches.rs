//! What clients are told of changes: resources that they subscribed to, looked at again whenever something may have changed.
//!
//! A call of this server that writes wakes every subscription at once. What others change is told of by the store that it is kept in
//! ([`Workspace::watch`](crate::Workspace::watch)), and only what nothing tells of (a directory of the host) is looked at every
//! [`PERIOD`]: where nobody writes, a subscription to the rows of a store does nothing. Either way the resource itself is compared with how it
//! was, so it is the same on every tier. A change is never missed; what was written while a subscription began is told of although it may
//! have been seen.

use super::uri;
use crate::error::ErrorKind;
use crate::ops::{EntryKind, LsOptions, Version};
use crate::path::{VfsPath, VfsPathBuf};
use crate::scope::Scope;
use crate::session::Threads;
use crate::shares::{Share, User};
use crate::store::Watch;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// How often resources are looked at that nothing tells of.
const PERIOD: Duration = Duration::from_secs(1);

/// The most resources that one subscription is about.
pub(super) const WATCHED_MAX: usize = 100;

/// The most entries of a directory that are compared.
const ENTRIES_MAX: usize = 10_000;

/// How a resource was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Absent,
    File(Version),
    /// The names, kinds and versions of its direct children, hashed.
    Directory(blake3::Hash),
    Other,
}

/// One resource, and how it was.
#[derive(Debug)]
struct Resource {
    uri: String,
    path: VfsPathBuf,
    seen: Option<Seen>,
    /// Which watch tells of it; without one it is looked at.
    told_by: Option<usize>,
    /// It could not be looked at when it may have changed.
    is_uncertain: bool,
}

impl Resource {
    fn is_polled(&self) -> bool {
        self.told_by.is_none() || self.is_uncertain
    }
}

/// What tells of changes in one mount, as long as it does.
#[derive(Debug)]
struct Told {
    mount: VfsPathBuf,
    watch: Option<Watch>,
}

/// Why resources are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    Call,
    Watch(usize),
    Time,
}

/// The resources of one subscription, and how each was.
#[derive(Debug)]
pub(super) struct Watched {
    threads: Arc<Threads>,
    scope: Scope,
    resources: Vec<Resource>,
    told: Vec<Told>,
    /// From before the first look on, so that what is written meanwhile wakes too.
    writes: watch::Receiver<u64>,
    ticks: Interval,
    /// Its place among the subscriptions that its user has at most.
    _place: Share<User>,
}

impl Watched {
    /// Looks at the resources for the first time. What is no URI of this tree is left out.
    pub(super) async fn begin(threads: Arc<Threads>, scope: Scope, uris: &[String], place: Share<User>) -> Self {
        let writes = threads.writes().subscribe();
        let mut ticks = interval_at(Instant::now() + PERIOD, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watched = Self { threads, scope, resources: Vec::new(), told: Vec::new(), writes, ticks, _place: place };
        for uri in uris.iter().take(WATCHED_MAX) {
            if let Some(path) = uri::path(uri) {
                // What is told of comes after the watch has begun, so it begins before the look.
                let told_by = watched.told_by(&path).await;
                let seen = watched.look(&path).await;
                let is_uncertain = seen.is_none();
                watched.resources.push(Resource { uri: uri.clone(), path, seen, told_by, is_uncertain });
            }
        }
        watched
    }

    /// Returns the place of the watch that tells of a path, which is begun unless it is there.
    async fn told_by(&mut self, path: &VfsPath) -> Option<usize> {
        let mount = self.threads.workspace().mount_of(path).to_owned();
        let place = match self.told.iter().position(|told| told.mount == mount) {
            Some(place) => place,
            None => {
                let watch = self.threads.workspace().watch(&self.scope, &mount).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, %mount, "changes are not told of, and are looked for");
                    None
                });
                self.told.push(Told { mount, watch });
                self.told.len() - 1
            }
        };
        self.told[place].watch.is_some().then_some(place)
    }

    /// Returns every resource if a call may have written between a mark and the first look, which shows what it wrote as if it had been so.
    pub(super) fn missed(&self, mark: u64) -> Vec<String> {
        let missed = self.threads.writes().since(mark);
        self.resources.iter().filter(|_| missed).map(|resource| resource.uri.clone()).collect()
    }

    /// Waits until resources have changed, and returns which.
    pub(super) async fn changed(&mut self) -> Vec<String> {
        loop {
            let is_polled = self.resources.iter().any(Resource::is_polled);
            let woken = tokio::select! {
                // The sender lives as long as the threads, which are held here.
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

    /// Looks at the resources that may have changed, and returns the URIs of those that have.
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
            // What cannot be looked at now has neither changed nor stayed.
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

    /// Looks at a resource; nothing when it cannot be looked at.
    async fn look(&self, path: &VfsPath) -> Option<Seen> {
        let tree = self.threads.session(&self.scope).await.ok()?.backend();
        match tree.stat(path).await {
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

/// Waits until a watch tells, and returns its place. One that has ended is taken away.
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
                    tracing::debug!(%error, mount = %told.mount, "changes are told of no more, and are looked for");
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
    use crate::backend::{BackendExt, StoreBackend};
    use crate::layer::{Fault, Layered};
    use crate::scope::NamespaceTemplate;
    use crate::store::{MemoryStore, Namespace, Store};
    use crate::workspace::Workspace;

    fn namespace() -> Namespace {
        NamespaceTemplate::parse("memories").and_then(|template| template.fill(&Scope::new())).expect("a namespace")
    }

    async fn watched(workspace: Workspace) -> Watched {
        let place = Arc::new(crate::shares::Shares::default()).take((None, None), 1).expect("a place");
        let uris = ["vfs:///memories/a".to_owned(), "vfs:///memories".to_owned()];
        Watched::begin(Arc::new(Threads::new(workspace)), Scope::new().with_thread("t"), &uris, place).await
    }

    #[tokio::test(start_paused = true)]
    async fn where_a_store_tells_of_changes_nobody_asks_it() {
        let store = Arc::new(MemoryStore::new());
        let tree = Arc::new(Layered::new(Fault::never(), StoreBackend::new(store.clone(), namespace())));
        let mounted = || Workspace::builder().backend("/memories", tree.clone()).expect("a mount");
        let rows = store.clone();
        let told = mounted().watched("/memories", move |_| Ok((rows.clone() as Arc<dyn Store>, namespace()))).expect("a path").build();
        let (mut told, mut asked) = (watched(told).await, watched(mounted().build()).await);
        let hour = Duration::from_secs(3_600);
        let before = tree.layer().calls();
        assert!(tokio::time::timeout(hour, told.changed()).await.is_err());
        assert_eq!(tree.layer().calls(), before);
        assert!(tokio::time::timeout(hour, asked.changed()).await.is_err());
        assert!(tree.layer().calls() > before + 3_000);
        // Another program's write to the same rows.
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
    async fn what_could_not_be_looked_at_when_it_changed_is_looked_at_again() {
        let store = Arc::new(MemoryStore::new());
        let tree = Arc::new(Layered::new(Fault::nth(3), StoreBackend::new(store.clone(), namespace())));
        let rows = store.clone();
        let workspace = Workspace::builder().backend("/memories", tree.clone()).expect("a mount");
        let workspace = workspace.watched("/memories", move |_| Ok((rows.clone() as Arc<dyn Store>, namespace()))).expect("a path");
        let mut watched = watched(workspace.build()).await;
        StoreBackend::new(store.clone(), namespace()).write("/a", "x").await.expect("written");
        let mut heard = watched.changed().await;
        while heard.len() < 2 {
            heard.extend(watched.changed().await);
        }
        assert_eq!(tree.layer().faults(), 1, "the look failed that was made when it was told");
    }
}
