//! The state of one live thread as a tree: read when it is first needed, saved when it changed.

use crate::backend::{Backend, StateBackend, StateSnapshot};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Saved {
    /// The version of the saved thread; none when it was never saved.
    thread: Option<Version>,
    /// The version of the state at that time: as long as it is the same, nothing changed.
    state: Version,
}

impl LiveThread {
    pub(crate) fn new(scope: Scope, threads: Option<Arc<dyn Threads>>) -> Self {
        let saved = Saved { thread: None, state: StateSnapshot::new().version() };
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
                let saved = Saved { thread: Some(found.version), state: found.state.version() };
                (found.state, saved)
            }
            None => {
                let empty = StateSnapshot::new();
                let saved = Saved { thread: None, state: empty.version() };
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
        let thread = threads.save(&self.scope, &snapshot, saved.thread).await?;
        *saved = Saved { thread: Some(thread), state: snapshot.version() };
        Ok(true)
    }

    pub(crate) async fn save_as(&self, thread: &str) -> Result<()> {
        let Some(threads) = &self.threads else {
            return Err(Error::unsupported("this workspace saves no threads; build it with a place to save them in"));
        };
        let scope = self.scope.clone().with_thread(thread);
        let snapshot = self.state().await?.snapshot();
        threads.save(&scope, &snapshot, None).await.map(drop).map_err(|error| match error.kind() {
            ErrorKind::Conflict => Error::new(ErrorKind::AlreadyExists, format!("a thread `{thread}` is saved already; choose another id")),
            _ => error,
        })
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
