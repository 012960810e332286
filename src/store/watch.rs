//! Wake-ups: how those who wait for a change of a namespace are told.
//!
//! A watch tells that something changed and up to which version; what changed is read from the store. Wake-ups that come
//! while nobody looks are one. An engine tells of its own commits as it acknowledges them; what other processes commit it
//! learns by asking at an interval ([`Watches::poll`]), and only while somebody watches.

#![cfg_attr(
    not(any(feature = "mysql", feature = "postgres", feature = "redis", feature = "sqlite")),
    allow(dead_code, reason = "only stores that processes share are polled")
)]

use super::{Batch, Namespace};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::Version;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// A wait for changes of one namespace, see [`Store::watch`](super::Store::watch).
///
/// # Examples
/// ```
/// use stratafs::store::{Batch, MemoryStore, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> stratafs::Result<()> {
/// let store = MemoryStore::new();
/// let notes = Namespace::new(["ada", "notes"])?;
/// let mut watch = store.watch(&notes).await?;
/// let versions = store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// assert_eq!(watch.changed().await?, versions[0]);
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    told: watch::Receiver<u64>,
    watches: Weak<Watches>,
}

impl Watch {
    /// Waits until something was committed in the namespace that this watch has not told of, and returns a version that is at
    /// least that of the newest such commit. Commits since the last call are told as one, and a wake-up without a change may
    /// happen. A dropped wait loses nothing.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) once the store is closed.
    pub async fn changed(&mut self) -> Result<Version> {
        // The task that asked for all ends with the runtime that it was started in.
        if let Some(watches) = self.watches.upgrade() {
            watches.start_polling();
        }
        let closed = |_| Error::new(ErrorKind::Unavailable, "the store that was watched is closed; open it again");
        self.told.changed().await.map_err(closed)?;
        Ok(Version::new(*self.told.borrow_and_update()))
    }
}

impl Watch {
    /// Counts what was told by now as seen.
    pub(super) fn caught_up(mut self) -> Self {
        self.told.mark_unchanged();
        self
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// Those who watch a store.
#[derive(Debug, Default)]
pub(super) struct Watches {
    watched: Mutex<HashMap<Namespace, watch::Sender<u64>>>,
    is_polled: AtomicBool,
    poller: OnceLock<Poller>,
}

/// Starts the task that asks a store for changes.
struct Poller(Box<dyn Fn(Polled) + Send + Sync>);

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Poller")
    }
}

impl Watches {
    /// Adds a watch of a namespace.
    pub(super) fn watch(self: &Arc<Self>, namespace: &Namespace) -> Watch {
        let mut watched = self.watched.lock();
        watched.retain(|_, told| told.receiver_count() > 0);
        let told = watched.entry(namespace.clone()).or_insert_with(|| watch::Sender::new(0));
        Watch { told: told.subscribe(), watches: Arc::downgrade(self) }
    }

    /// Tells those who watch a namespace of a commit.
    pub(super) fn tell(&self, namespace: &Namespace, version: Version) {
        if let Some(told) = self.watched.lock().get(namespace) {
            advance(told, version);
        }
    }

    /// Tells those who watch a namespace that the newest commit in it is not before `since` and not after `version`, unless they
    /// were told of `since` already. What each namespace was told is its own, so that looks may overlap.
    #[cfg(feature = "postgres")]
    pub(super) fn tell_since(&self, namespace: &Namespace, since: Version, version: Version) {
        if let Some(told) = self.watched.lock().get(namespace) {
            told.send_if_modified(|newest| *newest < since.number() && raise(newest, version));
        }
    }

    /// Returns what is watched.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn watched(&self) -> Vec<Namespace> {
        let watched = self.watched.lock();
        watched.iter().filter(|(_, told)| told.receiver_count() > 0).map(|(namespace, _)| namespace.clone()).collect()
    }

    /// Returns what a batch writes to that is watched: mostly nothing.
    pub(super) fn of(&self, batch: &Batch) -> Vec<Namespace> {
        let watched = self.watched.lock();
        if watched.is_empty() {
            return Vec::new();
        }
        batch.written().filter(|namespace| watched.contains_key(*namespace)).cloned().collect()
    }

    /// Tells those who watch what a batch wrote to.
    pub(super) fn tell_of(&self, batch: &Batch, version: Version) {
        let watched = self.watched.lock();
        if !watched.is_empty() {
            batch.written().filter_map(|namespace| watched.get(namespace)).for_each(|told| advance(told, version));
        }
    }

    /// Tells all, where it is not known which namespace a commit was in.
    #[cfg(any(feature = "redis", feature = "sqlite"))]
    pub(super) fn tell_all(&self, version: Version) {
        self.watched.lock().values().for_each(|told| advance(told, version));
    }

    /// Calls `look` at an interval while somebody watches; `look` tells of what it finds, and returns false once the store is
    /// closed. Does nothing while that is done already. A look that fails is tried again after the next pause.
    pub(super) fn poll<F>(self: &Arc<Self>, pause: Duration, look: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<bool>> + Send,
    {
        let look = Arc::new(look);
        self.poller.get_or_init(|| {
            Poller(Box::new(move |mut polled| {
                let look = look.clone();
                tokio::spawn(async move {
                    let mut is_away = false;
                    while polled.is_wanted() {
                        tokio::time::sleep(pause).await;
                        match look().await {
                            Ok(true) => is_away = false,
                            Ok(false) => break,
                            Err(error) if !is_away => {
                                tracing::warn!(%error, "a store could not be asked for changes, and is asked on");
                                is_away = true;
                            }
                            Err(_) => {}
                        }
                    }
                });
            }))
        });
        self.start_polling();
    }

    /// Starts to ask for changes, in the runtime of the caller, unless it is done already or there is nobody to ask.
    fn start_polling(self: &Arc<Self>) {
        if let Some(Poller(start)) = self.poller.get()
            && !self.is_polled.swap(true, Ordering::AcqRel)
        {
            start(Polled { watches: self.clone(), is_over: false });
        }
    }
}

/// Raises the version that was told.
fn advance(told: &watch::Sender<u64>, version: Version) {
    told.send_if_modified(|newest| raise(newest, version));
}

/// Tells whether a version is newer than the newest, and makes it that.
fn raise(newest: &mut u64, version: Version) -> bool {
    let is_newer = version.number() > *newest;
    *newest = (*newest).max(version.number());
    is_newer
}

/// Says that a store is polled, until it is dropped: by the end of the task or of its runtime.
struct Polled {
    watches: Arc<Watches>,
    is_over: bool,
}

impl Polled {
    /// Tells whether somebody still watches. The lock orders this against a watch that is added meanwhile: either it is seen
    /// here, or the mark is gone when its store asks for polling.
    fn is_wanted(&mut self) -> bool {
        let watched = self.watches.watched.lock();
        let is_wanted = watched.values().any(|told| told.receiver_count() > 0);
        if !is_wanted {
            self.is_over = true;
            self.watches.is_polled.store(false, Ordering::Release);
        }
        is_wanted
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        if !self.is_over {
            self.watches.is_polled.store(false, Ordering::Release);
            // Its runtime ended. Those who wait in another one wake, look, and start to ask again when they next wait.
            self.watches.watched.lock().values().for_each(|told| told.send_modify(|_| {}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// The task that asked for all was gone with the runtime of the first who watched, and the others were told nothing more.
    #[test]
    fn a_watch_is_told_though_the_runtime_of_another_has_ended() {
        let watches = Arc::<Watches>::default();
        let space = Namespace::parse("a").expect("a legal namespace");
        let newest = Arc::new(AtomicU64::new(0));
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let watch = |watches: &Arc<Watches>| {
            let watch = watches.watch(&space);
            let (told, newest) = (Arc::downgrade(watches), newest.clone());
            watches.poll(Duration::from_millis(1), move || {
                let (told, newest) = (told.clone(), newest.clone());
                async move {
                    let Some(watches) = told.upgrade() else { return Ok(false) };
                    watches.tell(&Namespace::parse("a").expect("a legal namespace"), Version::new(newest.load(Ordering::SeqCst)));
                    Ok(true)
                }
            });
            watch
        };
        let first = runtime();
        let _kept = first.block_on(async { watch(&watches) });
        let second = runtime();
        let mut other = second.block_on(async { watch(&watches) });
        drop(first);
        newest.store(7, Ordering::SeqCst);
        second.block_on(async { while other.changed().await.expect("the store is open") < Version::new(7) {} });
    }

    /// One mark for all namespaces let the first look of one watch take the news of another.
    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn what_one_namespace_was_told_is_not_counted_as_told_to_another() {
        let (watches, [a, b]) = (Arc::<Watches>::default(), ["a", "b"].map(|name| Namespace::parse(name).expect("a legal namespace")));
        let mut watch = watches.watch(&a);
        let late = watches.watch(&b);
        watches.tell_since(&b, Version::new(7), Version::new(9));
        let mut late = late.caught_up();
        watches.tell_since(&a, Version::new(8), Version::new(9));
        assert_eq!(watch.changed().await.expect("it is open"), Version::new(9));
        // What was told is told once, also by a look that began before and when nothing came of a commit.
        for (since, version) in [(8, 12), (10, 9), (3, 5)] {
            watches.tell_since(&a, Version::new(since), Version::new(version));
            assert!(!watch.told.has_changed().expect("it is open"), "{since} {version}");
        }
        watches.tell_since(&a, Version::new(10), Version::new(10));
        assert_eq!(watch.changed().await.expect("it is open"), Version::new(10));
        assert!(!late.told.has_changed().expect("it is open"));
        watches.tell_since(&b, Version::new(10), Version::new(10));
        assert_eq!(late.changed().await.expect("it is open"), Version::new(10));
    }
}
