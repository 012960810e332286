//! The tree of one session's memory documents and tool results.

use super::MEMO_FILE_BYTES_MAX;
use crate::rows::{self, CHANGED, Head, LIVE, Removal, UserRows};
use async_trait::async_trait;
use jiff::Timestamp;
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions, Op,
    ReadOptions, Review, SearchOptions, SearchResult, Sight, StatOptions,
};
use treehold_core::path::VfsPath;
use treehold_core::scope::check_id;
use treehold_store::intent::time_row;
use treehold_store::{Namespace, Store};
use treehold_tree::backend::{Backend, StateBackend, StoreBackend};

/// Opens the tree of a session as it was found. Every change depends on the existence of that session, so none is left behind for
/// a later session of the same name.
pub(crate) fn memo_of(store: Arc<dyn Store>, head: &Head) -> Result<StoreBackend> {
    let rows = head.user_rows();
    let refusal = rows::no_session(&head.session_id);
    let tree = StoreBackend::new(store, rows.session_memo(&head.data)?)
        .with_file_bytes_max(MEMO_FILE_BYTES_MAX as u64)
        .with_owner_row(&rows.data(&head.data)?, LIVE, refusal.message())
        .with_extra_row(&rows.memo_changes(&head.session_id)?, CHANGED, "");
    Ok(tree)
}

/// Opens the tree of a session that is imported. Every change depends on the import and renews its row.
pub(crate) fn memo_of_import(store: Arc<dyn Store>, head: &Head, import: &Removal, now: Timestamp) -> Result<StoreBackend> {
    let (rows, key) = (head.user_rows(), import.import_key());
    let tree = StoreBackend::new(store, rows.session_memo(&head.data)?)
        .with_file_bytes_max(MEMO_FILE_BYTES_MAX as u64)
        .with_owner_row(&rows.intents()?, &key, "the import was ended by a sweep; import again")
        .with_extra_row(&rows.intents()?, &key, time_row(now));
    Ok(tree)
}

/// The memory documents and tool results of the session that has a name at the time of each call. Empty if the user has no such
/// session; every change is then `not_found`. A change never reaches a later session of the same name.
///
/// Cost: one more round trip for each call.
#[derive(Clone)]
pub struct SessionMemo {
    store: Arc<dyn Store>,
    user: UserRows,
    session: String,
    /// The namespace of the row that changes with the files.
    changes: Namespace,
}

impl SessionMemo {
    pub(super) fn new(store: Arc<dyn Store>, tenant: &str, user: &str, session: &str) -> Result<Self> {
        check_id("tenant", tenant)?;
        check_id("user", user)?;
        check_id("session", session)?;
        let user = UserRows::new(tenant, user);
        let changes = user.memo_changes(session)?;
        Ok(Self { store, user, session: session.to_owned(), changes })
    }

    /// Returns the namespace of a row that changes with the files, which a change feed watches.
    pub fn changes(&self) -> &Namespace {
        &self.changes
    }

    async fn found(&self) -> Result<Option<StoreBackend>> {
        let opened = rows::open_of(&*self.store, &self.user, &self.session).await?;
        opened.map(|opened| memo_of(self.store.clone(), &opened.head)).transpose()
    }

    /// Returns the tree to read: an empty one without the session.
    async fn readable(&self, path: &VfsPath) -> Result<Arc<dyn Backend>> {
        match self.found().await.map_err(|error| error.at(path))? {
            Some(tree) => Ok(Arc::new(tree)),
            None => Ok(Arc::new(StateBackend::new())),
        }
    }

    fn refusal(&self) -> Error {
        rows::no_session(&self.session).without_effect()
    }
}

impl fmt::Debug for SessionMemo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionMemo").field("user", &self.user).field("session", &self.session).finish_non_exhaustive()
    }
}

impl fmt::Display for SessionMemo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionMemo({})", self.store)
    }
}

#[async_trait]
impl Backend for SessionMemo {
    fn capabilities(&self) -> Capabilities {
        StoreBackend::new(self.store.clone(), self.changes.clone()).with_file_bytes_max(MEMO_FILE_BYTES_MAX as u64).capabilities()
    }

    async fn stat(&self, path: &VfsPath, options: &StatOptions) -> Result<Entry> {
        self.readable(path).await?.stat(path, options).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.readable(path).await?.read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.readable(path).await?.ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.readable(path).await?.glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.readable(path).await?.grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.readable(path).await?.search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let op = Op::apply(changes);
        match self.found().await.map_err(|error| error.at(op.path).during(op.kind).without_effect())? {
            Some(tree) => tree.apply(changes, options).await,
            None => Err(self.refusal().at(op.path).during(op.kind).in_batch(0, 0)),
        }
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
