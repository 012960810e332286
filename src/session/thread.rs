//! The state of one live thread as a tree: read when it is first needed, saved when it changed.

use crate::backend::{Backend, StateBackend, StateNode, StateSnapshot};
use crate::checkpoint::Threads;
use crate::error::{Error, ErrorKind, Result};
use crate::layer::Quota;
use crate::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Version,
};
use crate::path::VfsPath;
use crate::scope::Scope;
use async_trait::async_trait;
use std::fmt;
use std::sync::{Arc, Weak};
use tokio::sync::{Mutex, OnceCell};

/// The state of one thread, shared by its sessions.
#[derive(Debug)]
pub(crate) struct LiveThread {
    scope: Scope,
    threads: Option<Arc<dyn Threads>>,
    state: OnceCell<StateBackend>,
    /// Held while the thread is saved, so that saves follow one another.
    saved: Arc<Mutex<Saved>>,
    /// Who is told when another state takes the place of this one, as long as they are there.
    listeners: parking_lot::Mutex<Vec<Weak<dyn ReloadListener>>>,
}

/// What keeps something that it knows of the state.
pub(crate) trait ReloadListener: Send + Sync + fmt::Debug {
    /// The state is another one now.
    fn reloaded(&self);
}

impl<B: Backend> ReloadListener for Quota<B> {
    fn reloaded(&self) {
        self.forget();
    }
}

/// What is known of the thread where it is saved.
#[derive(Debug, Clone)]
struct Saved {
    /// The version of the saved thread; none when it was never saved.
    thread: Option<Version>,
    /// The version of the state at that time: as long as it is the same, nothing changed.
    state: Version,
    /// The states of saves whose end is not known: any of them may be the saved thread.
    unsettled: Vec<StateSnapshot>,
}

/// How many states of such saves are kept to be found again.
const UNSETTLED_MAX: usize = 4;

impl LiveThread {
    pub(crate) fn new(scope: Scope, threads: Option<Arc<dyn Threads>>) -> Self {
        let saved = Saved { thread: None, state: StateSnapshot::new().version(), unsettled: Vec::new() };
        Self { scope, threads, state: OnceCell::new(), saved: Arc::new(Mutex::new(saved)), listeners: Default::default() }
    }

    /// Returns the state, read when this is the first call. A failure is not kept: the next call tries again.
    async fn state(&self) -> Result<&StateBackend> {
        self.state
            .get_or_try_init(async || {
                let (state, saved) = self.load().await?;
                *self.saved.lock().await = saved;
                Ok(StateBackend::from_snapshot(&state))
            })
            .await
    }

    async fn load(&self) -> Result<(StateSnapshot, Saved)> {
        let found = match &self.threads {
            Some(threads) => threads.load(&self.scope).await?,
            None => None,
        };
        Ok(match found {
            Some(found) => {
                let saved = Saved { thread: Some(found.version), state: found.state.version(), unsettled: Vec::new() };
                (found.state, saved)
            }
            None => {
                let empty = StateSnapshot::new();
                let saved = Saved { thread: None, state: empty.version(), unsettled: Vec::new() };
                (empty, saved)
            }
        })
    }

    /// Saves the state if it changed, to the end even when the future is dropped: half-way it would be unknown what the
    /// saved thread is, and the next save would take its own for another's.
    pub(crate) async fn save(self: Arc<Self>) -> Result<bool> {
        if self.threads.is_none() || self.state.get().is_none() {
            return Ok(false);
        }
        let saving = tokio::spawn(async move { self.save_now().await });
        saving.await.map_err(|error| Error::new(ErrorKind::Internal, "the save of a thread was stopped").with_source(error))?
    }

    async fn save_now(&self) -> Result<bool> {
        let (Some(threads), Some(state)) = (&self.threads, self.state.get()) else { return Ok(false) };
        let mut saved = self.saved.lock().await;
        let snapshot = state.snapshot();
        if snapshot.version() == saved.state {
            return Ok(false);
        }
        loop {
            let error = match threads.save(&self.scope, &snapshot, saved.thread).await {
                Ok(thread) => {
                    *saved = Saved { thread: Some(thread), state: snapshot.version(), unsettled: Vec::new() };
                    return Ok(true);
                }
                Err(error) => error,
            };
            if error.may_have_effect() {
                saved.unsettled.truncate(UNSETTLED_MAX - 1);
                saved.unsettled.insert(0, snapshot.clone());
            } else if error.kind() != ErrorKind::Conflict || saved.unsettled.is_empty() {
                return Err(error);
            }
            // The answer of this save, or of one before it, may have been lost behind its effect: then what is saved is ours.
            let Ok(Some(found)) = threads.load(&self.scope).await else { return Err(error) };
            let Some(ours) = saved.unsettled.iter().find(|state| is_same(state, &found.state)) else { return Err(error) };
            let is_done = ours.version() == snapshot.version();
            *saved = Saved { thread: Some(found.version), state: ours.version(), unsettled: Vec::new() };
            if is_done {
                return Ok(true);
            }
        }
    }

    pub(crate) async fn save_as(&self, thread: &str) -> Result<()> {
        let Some(threads) = &self.threads else {
            return Err(Error::unsupported("this workspace saves no threads; build it with a place to save them in"));
        };
        let scope = self.scope.clone().with_thread(thread);
        let snapshot = self.state().await?.snapshot();
        let Err(error) = threads.save(&scope, &snapshot, None).await else { return Ok(()) };
        if error.kind() == ErrorKind::Conflict {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("a thread `{thread}` is saved already; choose another id")));
        }
        match threads.load(&scope).await {
            Ok(Some(found)) if error.may_have_effect() && is_same(&snapshot, &found.state) => Ok(()),
            _ => Err(error),
        }
    }

    /// Tells a listener of each reload, as long as it is there.
    pub(crate) fn on_reload(&self, listener: Weak<dyn ReloadListener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    pub(crate) async fn reload(&self) -> Result<()> {
        let Some(state) = self.state.get() else { return Ok(()) };
        let mut saved = self.saved.lock().await;
        let (snapshot, found) = self.load().await?;
        state.restore(&snapshot).await;
        *saved = found;
        self.listeners.lock().iter().filter_map(Weak::upgrade).for_each(|listener| listener.reloaded());
        Ok(())
    }
}

/// Tells whether two states hold the same, content and times: numbers alone do not tell, as two sessions count from the same one.
fn is_same(one: &StateSnapshot, other: &StateSnapshot) -> bool {
    let is_same_node = |one: &StateNode, other: &StateNode| {
        one.version() == other.version()
            && one.content() == other.content()
            && one.created_at() == other.created_at()
            && one.modified_at() == other.modified_at()
    };
    one.version() == other.version()
        && one.len() == other.len()
        && one.iter().zip(other.iter()).all(|((path, node), (other_path, other))| path == other_path && is_same_node(node, other))
}

impl fmt::Display for LiveThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

#[async_trait]
impl Backend for LiveThread {
    fn capabilities(&self) -> Capabilities {
        self.state.get().map_or_else(Capabilities::new, Backend::capabilities)
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.state().await?.stat(path).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.state().await?.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.state().await?.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.state().await?.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.state().await?.grep(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.state().await?.apply(changes, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendExt;
    use crate::checkpoint::{SavedThread, StoreThreads, ThreadPage};
    use crate::store::MemoryStore;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Loses answers: of the first saves after their effect, and of the first loads.
    #[derive(Debug)]
    struct Lossy {
        inner: StoreThreads,
        saves: AtomicUsize,
        loads: AtomicUsize,
    }

    impl Lossy {
        fn new(saves: usize, loads: usize) -> Self {
            Self { inner: StoreThreads::new(Arc::new(MemoryStore::new())), saves: saves.into(), loads: loads.into() }
        }

        fn answer<T>(left: &AtomicUsize, answer: Result<T>) -> Result<T> {
            match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => answer.and(Err(Error::new(ErrorKind::Unavailable, "the answer was lost"))),
                Err(_) => answer,
            }
        }
    }

    impl fmt::Display for Lossy {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Lossy")
        }
    }

    #[async_trait]
    impl Threads for Lossy {
        async fn load(&self, scope: &Scope) -> Result<Option<SavedThread>> {
            Self::answer(&self.loads, self.inner.load(scope).await)
        }

        async fn save(&self, scope: &Scope, state: &StateSnapshot, expected: Option<Version>) -> Result<Version> {
            Self::answer(&self.saves, self.inner.save(scope, state, expected).await)
        }

        async fn list(&self, scope: &Scope, start_after: Option<&str>, limit: usize) -> Result<ThreadPage> {
            self.inner.list(scope, start_after, limit).await
        }

        async fn delete(&self, scope: &Scope) -> Result<()> {
            self.inner.delete(scope).await
        }
    }

    fn thread(threads: &Arc<Lossy>) -> Arc<LiveThread> {
        Arc::new(LiveThread::new(Scope::new().with_thread("t"), Some(threads.clone())))
    }

    /// The next save took the session's own for another's, and was refused for ever.
    #[tokio::test]
    async fn a_save_whose_answer_was_lost_is_found_again() {
        let threads = Arc::new(Lossy::new(1, 0));
        let live = thread(&threads);
        live.write("/a", "one").await.expect("written");
        assert!(live.clone().save().await.expect("the head is read and is ours"));
        assert!(!live.clone().save().await.expect("nothing is left to save"));
        live.write("/a", "two").await.expect("written");
        assert!(live.clone().save().await.expect("on top of it"));
        assert_eq!(thread(&threads).read_text("/a").await.expect("as saved"), "two");
    }

    #[tokio::test]
    async fn a_save_whose_answer_was_lost_is_found_by_the_next_when_it_cannot_be_read_at_once() {
        let threads = Arc::new(Lossy::new(1, 0));
        let live = thread(&threads);
        live.write("/a", "one").await.expect("written");
        threads.loads.store(1, Ordering::Relaxed);
        assert_eq!(live.clone().save().await.expect_err("its end is not known").kind(), ErrorKind::Unavailable);
        live.write("/a", "two").await.expect("written");
        assert!(live.clone().save().await.expect("what was saved before is ours"));
        assert_eq!(thread(&threads).read_text("/a").await.expect("as saved"), "two");
    }

    #[tokio::test]
    async fn a_save_of_another_is_never_taken_for_the_lost_one() {
        let threads = Arc::new(Lossy::new(0, 0));
        let (live, other) = (thread(&threads), thread(&threads));
        live.write("/a", "mine").await.expect("written");
        other.write("/a", "his!").await.expect("written");
        // Both count from nothing, so their states have the same number.
        assert!(other.save().await.expect("the first"));
        live.saved.lock().await.unsettled.push(live.state().await.expect("a state").snapshot());
        assert_eq!(live.clone().save().await.expect_err("the second").kind(), ErrorKind::Conflict);
        assert_eq!(thread(&threads).read_text("/a").await.expect("as saved"), "his!");
    }

    #[tokio::test]
    async fn a_thread_saved_aside_whose_answer_was_lost_is_there() {
        let threads = Arc::new(Lossy::new(1, 0));
        let live = thread(&threads);
        live.write("/a", "one").await.expect("written");
        live.save_as("u").await.expect("it is read again and is ours");
        assert_eq!(live.save_as("u").await.expect_err("it is there").kind(), ErrorKind::AlreadyExists);
    }
}
