//! Change notification for namespaces.
//!
//! A watch reports that something changed and up to which version; the reader fetches the changes from the store.
//! Notifications that arrive while nobody waits are merged into one. An engine notifies its watchers when it
//! acknowledges its own commits. Commits by other processes are found by polling ([`Watches::poll`]), and only while a
//! watch exists.

use super::{Batch, Namespace};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::watch;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;

/// A subscription to the changes of one namespace, see [`Store::watch`](super::Store::watch).
///
/// # Examples
/// ```
/// use treehold_store::{Batch, MemoryStore, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let store = MemoryStore::new();
/// let notes = Namespace::new(["ada", "notes"])?;
/// let mut watch = store.watch(&notes).await?;
/// let versions = store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// assert_eq!(watch.changed().await?, versions[0]);
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    announced: watch::Receiver<u64>,
    watches: Weak<Watches>,
}

impl Watch {
    /// Makes a watch and the half that notifies it, for engines that learn of commits in their own way. Most engines
    /// use [`Watches`], which does this for each namespace. The watch ends when the sender and its clones are dropped.
    ///
    /// # Examples
    /// ```
    /// use treehold_core::ops::Version;
    /// use treehold_store::Watch;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> treehold_core::Result<()> {
    /// let (sender, mut watch) = Watch::channel();
    /// sender.notify(Version::new(7));
    /// sender.notify(Version::new(5));
    /// assert_eq!(watch.changed().await?, Version::new(7));
    /// drop(sender);
    /// assert!(watch.changed().await.is_err(), "the store is closed");
    /// # Ok(())
    /// # }
    /// ```
    pub fn channel() -> (WatchSender, Self) {
        let sender = WatchSender::new();
        let watch = sender.subscribe();
        (sender, watch)
    }

    /// Waits for a commit in the namespace that this watch has not reported yet. Returns a version at or above that of
    /// the newest such commit. All commits since the last call are reported together, and the call may return without a
    /// change. Cancel-safe: dropping the future loses no notification.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) once the store is closed.
    pub async fn changed(&mut self) -> Result<Version> {
        // The polling task ends with the runtime that started it, so restart it here if needed.
        if let Some(watches) = self.watches.upgrade() {
            watches.start_polling();
        }
        let closed = |_| Error::new(ErrorKind::Unavailable, "the store that was watched is closed; open it again");
        self.announced.changed().await.map_err(closed)?;
        Ok(Version::new(*self.announced.borrow_and_update()))
    }

    /// Marks everything announced so far as seen. An engine calls it once it knows the newest commit that a read
    /// started now would show.
    #[must_use]
    pub fn caught_up(mut self) -> Self {
        self.announced.mark_unchanged();
        self
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// The half of a [`Watch`] that announces commits. Clones announce to the same watches.
#[derive(Debug, Clone)]
pub struct WatchSender {
    newest: watch::Sender<u64>,
}

impl WatchSender {
    fn new() -> Self {
        Self { newest: watch::Sender::new(0) }
    }

    /// Announces a commit of this version. Versions may arrive in any order; one that is not newer than all before it
    /// wakes nobody.
    pub fn notify(&self, version: Version) {
        self.newest.send_if_modified(|newest| raise(newest, version));
    }

    /// Makes another watch. What was announced before counts as seen.
    pub fn subscribe(&self) -> Watch {
        self.subscribe_polled(Weak::new())
    }

    fn subscribe_polled(&self, watches: Weak<Watches>) -> Watch {
        Watch { announced: self.newest.subscribe(), watches }
    }

    /// Returns whether a watch exists.
    pub fn is_watched(&self) -> bool {
        self.newest.receiver_count() > 0
    }
}

/// The watches of a store by namespace: what nearly every engine needs for [`Store::watch`](super::Store::watch).
///
/// The engine keeps one of these. Its `watch` calls [`watch`](Self::watch), and after each commit it calls
/// [`notify_batch`](Self::notify_batch). An engine that other processes write to also calls [`poll`](Self::poll).
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use treehold_core::ops::Version;
/// use treehold_store::{Batch, Namespace, Watches};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let watches = Arc::<Watches>::default();
/// let notes = Namespace::new(["ada", "notes"])?;
/// let mut watch = watches.watch(&notes);
/// watches.notify_batch(&Batch::new().put(&notes, "today", "walk the dog"), Version::new(1));
/// assert_eq!(watch.changed().await?, Version::new(1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Watches {
    watched: Mutex<HashMap<Namespace, WatchSender>>,
    is_polled: AtomicBool,
    poller: OnceLock<Poller>,
}

/// Starts the task that polls a store for changes.
struct Poller(Box<dyn Fn(Polled) + Send + Sync>);

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Poller")
    }
}

impl Watches {
    /// Adds a watch of a namespace.
    pub fn watch(self: &Arc<Self>, namespace: &Namespace) -> Watch {
        let mut watched = self.watched.lock();
        watched.retain(|_, sender| sender.is_watched());
        let sender = watched.entry(namespace.clone()).or_insert_with(WatchSender::new);
        sender.subscribe_polled(Arc::downgrade(self))
    }

    /// Notifies the watchers of a namespace of a commit.
    pub fn notify(&self, namespace: &Namespace, version: Version) {
        if let Some(sender) = self.watched.lock().get(namespace) {
            sender.notify(version);
        }
    }

    /// Notifies the watchers of a namespace that its partition was removed, and that its versions count anew.
    pub fn restart(&self, namespace: &Namespace) {
        if let Some(sender) = self.watched.lock().get(namespace) {
            sender.newest.send_modify(|newest| *newest = 0);
        }
    }

    /// Returns the namespaces that are being watched.
    pub fn namespaces(&self) -> Vec<Namespace> {
        let watched = self.watched.lock();
        watched.iter().filter(|(_, sender)| sender.is_watched()).map(|(namespace, _)| namespace.clone()).collect()
    }

    /// Returns the watched namespaces that a batch writes to; usually none. For engines that give the batch away before
    /// they know its version.
    pub fn written_by(&self, batch: &Batch) -> Vec<Namespace> {
        let watched = self.watched.lock();
        if watched.is_empty() {
            return Vec::new();
        }
        batch.written().filter(|namespace| watched.contains_key(*namespace)).cloned().collect()
    }

    /// Notifies the watchers of every namespace that a batch wrote to.
    pub fn notify_batch(&self, batch: &Batch, version: Version) {
        let watched = self.watched.lock();
        if !watched.is_empty() {
            batch.written().filter_map(|namespace| watched.get(namespace)).for_each(|sender| sender.notify(version));
        }
    }

    /// Notifies all watchers, for engines that cannot tell which namespace a commit wrote to.
    pub fn notify_all(&self, version: Version) {
        self.watched.lock().values().for_each(|sender| sender.notify(version));
    }

    /// Adds a watch of a namespace in a store that other processes write to. The `watch` of an engine calls it. `look` notifies the
    /// watchers of what it finds. It is called before this returns, so that the watch reports only what a later read may not show, and from
    /// then on every `pause` while somebody watches, until the store is dropped.
    ///
    /// # Errors
    /// Those of the first `look`.
    pub async fn watch_by_polling<S, F>(
        self: &Arc<Self>,
        namespace: &Namespace,
        store: &Arc<S>,
        pause: Duration,
        look: impl Fn(Arc<S>) -> F + Send + Sync + 'static,
    ) -> Result<Watch>
    where
        S: Send + Sync + 'static,
        F: Future<Output = Result<()>> + Send,
    {
        let watch = self.watch(namespace);
        look(store.clone()).await?;
        let watch = watch.caught_up();
        let store = Arc::downgrade(store);
        self.poll(pause, move || {
            let looking = store.upgrade().map(&look);
            async move {
                match looking {
                    Some(looking) => looking.await.map(|()| true),
                    None => Ok(false),
                }
            }
        });
        Ok(watch)
    }

    /// Calls `look` every `pause` while somebody watches. `look` notifies the watchers of what it finds, and returns
    /// false once the store is closed. A failed `look` is repeated after the next pause. Does nothing if the store is
    /// already being polled.
    pub fn poll<F>(self: &Arc<Self>, pause: Duration, look: impl Fn() -> F + Send + Sync + 'static)
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
                                tracing::warn!(%error, "polling a store for changes failed; retrying");
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

    /// Starts polling in the caller's runtime, unless a poller is running or the store has nothing to poll.
    fn start_polling(self: &Arc<Self>) {
        if let Some(Poller(start)) = self.poller.get()
            && !self.is_polled.swap(true, Ordering::AcqRel)
        {
            start(Polled { watches: self.clone(), is_over: false });
        }
    }
}

/// Raises `newest` to `version` if that is newer, and returns whether it was.
fn raise(newest: &mut u64, version: Version) -> bool {
    let is_newer = version.number() > *newest;
    *newest = (*newest).max(version.number());
    is_newer
}

/// Marks the store as being polled. Dropped when the polling task or its runtime ends.
struct Polled {
    watches: Arc<Watches>,
    is_over: bool,
}

impl Polled {
    /// Returns whether anybody still watches. The lock orders this check against new watches: either this check sees a
    /// new watch, or the mark is cleared before the new watch asks for polling.
    fn is_wanted(&mut self) -> bool {
        let watched = self.watches.watched.lock();
        let is_wanted = watched.values().any(WatchSender::is_watched);
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
            // The runtime ended. Wake watchers in other runtimes, so that their next wait restarts polling.
            self.watches.watched.lock().values().for_each(|sender| sender.newest.send_modify(|_| {}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Regression: the polling task ended with the runtime of the first watcher, and the other watchers heard nothing
    /// more.
    #[test]
    fn watch_is_notified_after_the_runtime_of_another_watcher_ended() {
        let watches = Arc::<Watches>::default();
        let space = Namespace::parse("a").expect("a legal namespace");
        let newest = Arc::new(AtomicU64::new(0));
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let watch = |watches: &Arc<Watches>| {
            let watch = watches.watch(&space);
            let (weak, newest) = (Arc::downgrade(watches), newest.clone());
            watches.poll(Duration::from_millis(1), move || {
                let (weak, newest) = (weak.clone(), newest.clone());
                async move {
                    let Some(watches) = weak.upgrade() else { return Ok(false) };
                    watches.notify(&Namespace::parse("a").expect("a legal namespace"), Version::new(newest.load(Ordering::SeqCst)));
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
}
