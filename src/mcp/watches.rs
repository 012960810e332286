//! What clients are told of changes: resources that they subscribed to, looked at again whenever something may have changed.
//!
//! A call of this server that writes wakes every subscription at once; what other processes and programs change is seen within
//! [`PERIOD`]. Either way the resource itself is compared with how it was, so it is the same on every tier. A change is never missed; what was
//! written while a subscription began is told of although it may have been seen.

use super::threads::Threads;
use super::uri;
use crate::error::ErrorKind;
use crate::ops::{EntryKind, LsOptions, Version};
use crate::path::VfsPathBuf;
use crate::scope::Scope;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// How often resources are looked at when no call of this server wrote.
const PERIOD: Duration = Duration::from_secs(1);

/// The most resources that one subscription is about.
pub(super) const WATCHED_MAX: usize = 100;

/// The most entries of a directory that are compared.
const ENTRIES_MAX: usize = 10_000;

/// Tells when calls of this server write.
#[derive(Debug)]
pub(super) struct Changes {
    writes: watch::Sender<u64>,
    running: AtomicUsize,
}

/// A call that writes; it has ended when this is dropped.
#[derive(Debug)]
pub(super) struct Writing<'a>(&'a Changes);

impl Default for Changes {
    fn default() -> Self {
        Self { writes: watch::Sender::new(0), running: AtomicUsize::new(0) }
    }
}

impl Changes {
    /// Begins a call that writes.
    pub(super) fn begin(&self) -> Writing<'_> {
        self.running.fetch_add(1, Ordering::AcqRel);
        self.writes.send_modify(|count| *count += 1);
        Writing(self)
    }

    /// Returns a mark of now, to ask later whether a call wrote since.
    pub(super) fn now(&self) -> u64 {
        *self.writes.borrow()
    }

    /// Tells whether a call may have written since a mark.
    fn since(&self, mark: u64) -> bool {
        self.now() != mark || self.running.load(Ordering::Acquire) > 0
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.writes.send_modify(|count| *count += 1);
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How a resource was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Absent,
    File(Version),
    /// The names, kinds and versions of its direct children, hashed.
    Directory(blake3::Hash),
    Other,
}

/// The resources of one subscription, and how each was.
#[derive(Debug)]
pub(super) struct Watched {
    threads: Arc<Threads>,
    scope: Scope,
    resources: Vec<(String, VfsPathBuf, Option<Seen>)>,
    /// From before the first look on, so that what is written meanwhile wakes too.
    writes: watch::Receiver<u64>,
}

impl Watched {
    /// Looks at the resources for the first time. What is no URI of this tree is left out.
    pub(super) async fn begin(threads: Arc<Threads>, scope: Scope, uris: &[String]) -> Self {
        let writes = threads.changes().writes.subscribe();
        let mut watched = Self { threads, scope, resources: Vec::new(), writes };
        for uri in uris.iter().take(WATCHED_MAX) {
            if let Some(path) = uri::path(uri) {
                let seen = watched.look(&path).await;
                watched.resources.push((uri.clone(), path, seen));
            }
        }
        watched
    }

    /// Returns every resource if a call may have written between a mark and the first look, which shows what it wrote as if it had been so.
    pub(super) fn missed(&self, mark: u64) -> Vec<String> {
        let missed = self.threads.changes().since(mark);
        self.resources.iter().filter(|_| missed).map(|(uri, ..)| uri.clone()).collect()
    }

    /// Waits until resources have changed, and returns which.
    pub(super) async fn changed(&mut self) -> Vec<String> {
        loop {
            tokio::select! {
                // The sender lives as long as the threads, which are held here.
                _ = self.writes.changed() => {}
                () = tokio::time::sleep(PERIOD) => {}
            }
            let mut changed = Vec::new();
            for at in 0..self.resources.len() {
                let now = self.look(&self.resources[at].1).await;
                let (uri, _, before) = &mut self.resources[at];
                // What cannot be looked at now has neither changed nor stayed.
                if now.is_some() && now != *before {
                    if before.is_some() {
                        changed.push(uri.clone());
                    }
                    *before = now;
                }
            }
            if !changed.is_empty() {
                return changed;
            }
        }
    }

    /// Looks at a resource; nothing when it cannot be looked at.
    async fn look(&self, path: &VfsPathBuf) -> Option<Seen> {
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
