//! The memory documents and tool results of sessions as files of the host, for sandboxes.
//!
//! Each live session has one directory at most, which a sandbox mounts at `/workspace/memo`:
//!
//! | file | content |
//! | --- | --- |
//! | `session/NOTES.md`, `session/TODO.md` | notes and tasks of the session |
//! | `session/tool-results/{id}.txt` | the full text of a tool's result |
//! | `user/USER.md` | facts about the user |
//!
//! The store reports changes of these documents, whoever makes them, also in another process. So an append, a compaction or a consolidation
//! reaches every live directory by itself.

use crate::info::SessionRef;
use crate::memo::{MEMO_FILE_BYTES_MAX, MemoScope, TOOL_RESULTS, memo_of, tool_call_of, user_memo};
use crate::rows::Head;
use crate::sessions::Sessions;
use async_trait::async_trait;
use futures::future::{BoxFuture, join_all};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;
use treehold_core::backoff::Backoff;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Change, Op};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::check_id;
use treehold_store::{Store, Watch};
use treehold_tree::backend::{Backend, StateBackend, TreeNews};
use treehold_tree::composite::CompositeBackend;
use treehold_tree::layer::{Layer, LayerName, Layered, Next, ReadOnly, Reply};
use treehold_tree::mirror::{Mirror, MirrorConflicts, MirrorEvent, MirrorOptions, MirrorReport};
use uuid::Uuid;

/// The directory of a session's documents in a mirror.
const SESSION: &str = "/session";

/// The directory of the user's documents in a mirror.
const USER: &str = "/user";

/// How long to wait before watching a store again that failed.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// Options of the mirrors of sessions.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MemoMirrorOptions {
    /// Writes edits of documents and tool results back. Default false: they are overwritten. Other files are never written back.
    pub write_back: bool,
    /// What happens to edits that conflict with others.
    pub conflicts: MirrorConflicts,
    /// How often directories are checked for changes. Default 1 s.
    pub look_every: Duration,
}

impl Default for MemoMirrorOptions {
    fn default() -> Self {
        let MirrorOptions { conflicts, look_every, .. } = MirrorOptions::default();
        Self { write_back: false, conflicts, look_every }
    }
}

impl MemoMirrorOptions {
    /// Returns the defaults: read-only mirrors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether edits are written back.
    #[must_use]
    pub fn with_write_back(mut self, write_back: bool) -> Self {
        self.write_back = write_back;
        self
    }

    /// Sets what happens to edits that conflict with others.
    #[must_use]
    pub fn with_conflicts(mut self, conflicts: MirrorConflicts) -> Self {
        self.conflicts = conflicts;
        self
    }

    /// Sets how often directories are checked for changes.
    #[must_use]
    pub fn with_look_every(mut self, look_every: Duration) -> Self {
        self.look_every = look_every;
        self
    }
}

/// The mirrors of the live sessions of this process, in one directory of the host.
///
/// ```
/// use std::sync::Arc;
/// use treehold_sessions::{MemoMirrorOptions, MemoMirrors, MemoScope, NOTES, Sessions};
/// use treehold_store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sessions = Sessions::new(Arc::new(MemoryStore::new()));
/// let session = sessions.get_or_create("acme", "ada", "helper", None).await?;
/// # let parent = tempfile::tempdir()?;
/// # let parent = parent.path();
/// let mirrors = MemoMirrors::open(sessions.clone(), parent, MemoMirrorOptions::new()).await?;
/// let directory = mirrors.mirror(&session.session_ref).await?;
///
/// sessions.write_memory_document("acme", &session.session_id, MemoScope::Session, NOTES, "likes tea\n").await?;
/// mirrors.refresh_memo_mirror(&session.session_ref, "/session/NOTES.md").await?;
/// assert_eq!(std::fs::read_to_string(directory.join("session/NOTES.md"))?, "likes tea\n");
/// mirrors.close(&session.session_ref).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoMirrors {
    sessions: Sessions,
    parent: PathBuf,
    options: MemoMirrorOptions,
    live: Mutex<HashMap<SessionRef, Arc<OnceCell<LiveMirror>>>>,
}

#[derive(Debug)]
struct LiveMirror {
    user: String,
    /// Which of the sessions with this id it belongs to.
    data: String,
    mirror: Mirror,
}

impl MemoMirrors {
    /// Prepares a directory of the host for the mirrors of this process, and removes what mirrors of dead processes left in it. Several
    /// processes can use the same directory.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) and [`PermissionDenied`](ErrorKind::PermissionDenied) if the host refuses.
    pub async fn open(sessions: Sessions, parent: impl Into<PathBuf>, options: MemoMirrorOptions) -> Result<Self> {
        let parent = parent.into();
        Mirror::clear_leftovers(&parent).await?;
        Ok(Self { sessions, parent, options, live: Mutex::default() })
    }

    /// Returns the directory of a session's mirror, which is made by the first call. Concurrent calls make one mirror. Empty documents are
    /// left out, and so are documents that cannot be mirrored; [`MemoMirrors::refresh`] reports the latter. The mirror of a session that
    /// was deleted takes no more edits, and a session that was created again gets a mirror of its own.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown session, and the errors of the store and of [`Mirror::open`].
    pub async fn mirror(&self, session: &SessionRef) -> Result<PathBuf> {
        loop {
            let head = self.sessions.open_existing(session.tenant(), session.session()).await?.head;
            let is_other = |cell: &Arc<OnceCell<LiveMirror>>| cell.get().is_some_and(|live| live.data != head.data);
            let cell = self.live.lock().entry(session.clone()).or_default().clone();
            if is_other(&cell) {
                self.forget(session, &cell);
                continue;
            }
            match cell.get_or_try_init(|| self.make(session, &head)).await {
                Ok(live) if live.data == head.data => return Ok(live.mirror.directory().to_owned()),
                // Another call made the mirror, of an earlier or a later session with this id.
                Ok(_) => {}
                Err(error) => {
                    // Calls that wait for the same mirror make it again.
                    let mut live = self.live.lock();
                    if live.get(session).is_some_and(|cell| !cell.initialized() && Arc::strong_count(cell) <= 2) {
                        live.remove(session);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Removes a mirror from the live ones, unless another one took its place.
    fn forget(&self, session: &SessionRef, cell: &Arc<OnceCell<LiveMirror>>) {
        let mut live = self.live.lock();
        if live.get(session).is_some_and(|other| Arc::ptr_eq(cell, other)) {
            live.remove(session);
        }
    }

    async fn make(&self, session: &SessionRef, head: &Head) -> Result<LiveMirror> {
        let (store, tenant, user) = (self.sessions.store.clone(), &head.tenant_id, &head.user_id);
        let user_rows = head.user_rows();
        let mut watched = Vec::new();
        for (namespace, directory) in [(user_rows.session_memo(&head.data)?, SESSION), (user_rows.memo()?, USER)] {
            let watch = store.watch(&namespace).await?;
            watched.push(news(store.clone(), namespace, watch, VfsPathBuf::parse(directory)?));
        }
        let nothing = Layered::new(ReadOnly::new(), StateBackend::new());
        let tree = CompositeBackend::builder(Arc::new(nothing))
            .route(SESSION, Arc::new(memo_of(store.clone(), head)?))?
            .route(USER, Arc::new(user_memo(store, tenant, user)?))?
            .build()?;
        let tree: Arc<dyn Backend> = Arc::new(Layered::new(DocumentsOnly, tree));
        let at = session.clone();
        let options = MirrorOptions::new()
            .with_write_back(self.options.write_back)
            .with_conflicts(self.options.conflicts)
            .with_look_every(self.options.look_every)
            .with_skip_empty(true)
            .with_file_bytes_max(MEMO_FILE_BYTES_MAX as u64)
            .with_observer(move |event| trace(&at, event));
        let directory = self.parent.join(Uuid::now_v7().simple().to_string());
        let mirror = Mirror::open(tree, Some(stream::select_all(watched).boxed()), directory, options).await?;
        Ok(LiveMirror { user: user.clone(), data: head.data.clone(), mirror })
    }

    /// Returns whether a session has a live mirror in this process.
    pub fn is_live(&self, session: &SessionRef) -> bool {
        self.live.lock().get(session).is_some_and(|cell| cell.initialized())
    }

    /// Mirrors a document or tool result now, such as `/session/NOTES.md`, and returns once the directory has it. Does nothing without a live
    /// mirror. Not needed for changes through the store, which are mirrored by themselves soon after.
    ///
    /// # Errors
    /// [`InvalidPath`](ErrorKind::InvalidPath) for an invalid path, and those of [`Mirror::refresh_paths`].
    pub async fn refresh_memo_mirror(&self, session: &SessionRef, path: &str) -> Result<MirrorReport> {
        let path = VfsPathBuf::parse(path)?;
        self.refresh_of(session, path).await
    }

    /// Mirrors all documents and tool results of a session now. Does nothing without a live mirror.
    ///
    /// # Errors
    /// Those of [`Mirror::refresh`].
    pub async fn refresh(&self, session: &SessionRef) -> Result<MirrorReport> {
        self.refresh_of(session, VfsPathBuf::root()).await
    }

    async fn refresh_of(&self, session: &SessionRef, path: VfsPathBuf) -> Result<MirrorReport> {
        let cell = self.live.lock().get(session).cloned();
        match cell.as_ref().and_then(|cell| cell.get()) {
            Some(live) => live.mirror.refresh_paths([path]).await,
            None => Ok(MirrorReport::default()),
        }
    }

    /// Mirrors a document of a user, such as `USER.md`, into the live mirrors of all the user's sessions now. Returns how many there are. A
    /// mirror that fails is logged and does not stop the others.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id or name that cannot exist, and
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a user that is not accessible.
    pub async fn refresh_user_memo_mirror_for_all_sessions(&self, tenant: &str, user: &str, name: &str) -> Result<usize> {
        check_id("tenant", tenant)?;
        check_id("user", user)?;
        self.sessions.check_owner(tenant, user)?;
        if !MemoScope::User.documents().contains(&name) {
            let names = MemoScope::User.documents().join("`, `");
            return Err(Error::invalid_argument(format!("there is no document `{}` here, only `{names}`", name.escape_debug())));
        }
        let path = VfsPathBuf::parse(format!("{USER}/{name}"))?;
        let cells: Vec<(SessionRef, Arc<OnceCell<LiveMirror>>)> = {
            let live = self.live.lock();
            live.iter().filter(|(session, _)| session.tenant() == tenant).map(|(session, cell)| (session.clone(), cell.clone())).collect()
        };
        let refreshed = cells.iter().filter_map(|(session, cell)| {
            let live = cell.get().filter(|live| live.user == user)?;
            let path = path.clone();
            Some(async move {
                if let Err(error) = live.mirror.refresh_paths([path]).await {
                    tracing::warn!(%session, %error, "the mirror of a session could not be refreshed");
                }
            })
        });
        Ok(join_all(refreshed).await.len())
    }

    /// Writes back the last edits of a session's mirror, and removes it. Does nothing without a live mirror.
    ///
    /// # Errors
    /// Those of [`Mirror::close`]; the mirror stays live.
    pub async fn close(&self, session: &SessionRef) -> Result<MirrorReport> {
        let cell = self.live.lock().get(session).cloned();
        let Some(live) = cell.as_ref().and_then(|cell| cell.get()) else { return Ok(MirrorReport::default()) };
        let report = live.mirror.close().await?;
        cell.iter().for_each(|cell| self.forget(session, cell));
        Ok(report)
    }

    /// Closes all live mirrors, as [`MemoMirrors::close`] does.
    ///
    /// # Errors
    /// The first error of [`MemoMirrors::close`]; the others are closed nevertheless.
    pub async fn close_all(&self) -> Result<()> {
        let sessions: Vec<SessionRef> = self.live.lock().keys().cloned().collect();
        let closed = join_all(sessions.iter().map(|session| self.close(session))).await;
        closed.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// Returns the directory that holds the mirrors.
    pub fn directory(&self) -> &Path {
        &self.parent
    }
}

fn trace(session: &SessionRef, event: &MirrorEvent) {
    if let Some(error) = &event.error {
        tracing::warn!(%session, path = %event.path, action = %event.action, error = error.message, "a memory document was not mirrored");
    } else if let Some(conflict) = event.conflict {
        tracing::warn!(%session, path = %event.path, %conflict, "edits of a memory document conflict");
    }
}

/// Reports every change in a namespace as one of a directory. A failing store is watched again until it answers.
fn news(store: Arc<dyn Store>, namespace: treehold_store::Namespace, watch: Watch, directory: VfsPathBuf) -> BoxStream<'static, TreeNews> {
    struct Watched {
        watch: Option<Watch>,
        attempt: u32,
        is_told: bool,
    }
    let start = Watched { watch: Some(watch), attempt: 0, is_told: false };
    stream::unfold(start, move |mut watched| {
        let (store, namespace, directory) = (store.clone(), namespace.clone(), directory.clone());
        let next: BoxFuture<'static, Option<(TreeNews, Watched)>> = async move {
            if !watched.is_told {
                watched.is_told = true;
                return Some((TreeNews::Live, watched));
            }
            loop {
                if let Some(watch) = &mut watched.watch {
                    if watch.changed().await.is_ok() {
                        return Some((TreeNews::Changed(directory), watched));
                    }
                    watched.watch = None;
                    return Some((TreeNews::Lost, watched));
                }
                AGAIN.wait(watched.attempt).await;
                watched.attempt += 1;
                if let Ok(watch) = store.watch(&namespace).await {
                    watched = Watched { watch: Some(watch), attempt: 0, is_told: false };
                    return Some((TreeNews::Live, Watched { is_told: true, ..watched }));
                }
            }
        }
        .boxed();
        next
    })
    .boxed()
}

/// Admits changes of the documents and tool results only: others would be in the store without any way to name them.
#[derive(Debug)]
struct DocumentsOnly;

impl DocumentsOnly {
    fn check(change: &Change) -> Result<()> {
        let path = change.path();
        let is_tool_result = path.parent().is_some_and(|parent| parent.as_str() == format!("{SESSION}{TOOL_RESULTS}"));
        let is_document = |directory: &str, scope: MemoScope| {
            path.parent().is_some_and(|parent| parent.as_str() == directory) && scope.documents().contains(&path.name())
        };
        let is_allowed = (is_tool_result && tool_call_of(path.name()).is_some())
            || is_document(SESSION, MemoScope::Session)
            || is_document(USER, MemoScope::User)
            || matches!(change, Change::Delete { .. } if path.as_str() == format!("{SESSION}{TOOL_RESULTS}"));
        match change {
            Change::Write { content, .. } | Change::Append { content, .. } if is_allowed => match std::str::from_utf8(content) {
                Ok(_) => Ok(()),
                Err(error) => Err(Error::invalid_argument(format!("`{path}` is not UTF-8 text; write text")).at(path).with_source(error)),
            },
            Change::Edit { .. } | Change::Delete { .. } if is_allowed => Ok(()),
            _ => Err(refused(path)),
        }
    }
}

fn refused(path: &VfsPath) -> Error {
    let message = format!("`{path}` is not a memory document or tool result; only those are written back");
    Error::new(ErrorKind::PermissionDenied, message).at(path)
}

#[async_trait]
impl Layer for DocumentsOnly {
    fn name(&self) -> LayerName {
        LayerName::new("DocumentsOnly")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        for (index, change) in op.changes.iter().enumerate() {
            Self::check(change).map_err(|error| error.during(op.kind).in_batch(index, 0))?;
        }
        next.run().await
    }
}
