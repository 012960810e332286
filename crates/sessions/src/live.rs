//! Writes to a session without looking up its rows each time.

use crate::info::SessionRef;
use crate::kept::Kept;
use crate::once::{Earlier, Once};
use crate::rows::{self, Head, LIVE};
use crate::sessions::{ReadBytes, Sessions};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::ops::Version;
use treehold_core::retry::Attempts;
use treehold_core::work;
use treehold_store::{Batch, Condition, Item, Namespace, ScanEntry, ScanOptions};

/// What [`LiveSession::commit_once`] did.
pub(crate) enum Committed {
    /// It committed; these are the versions of the rows after the key.
    Now(Vec<Version>),
    /// An earlier call had committed.
    Earlier(Earlier),
}

/// What a read of a log does with a row that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It fails.
    Refuse,
    /// It continues with the next row.
    Skip,
}

/// Caches the location of a session's rows. Each write is conditional on the existence of the session. If the session was
/// deleted, and perhaps created again, its rows are looked up again.
#[derive(Debug)]
pub(crate) struct LiveSession {
    sessions: Sessions,
    session: SessionRef,
    found: Mutex<Option<Arc<Head>>>,
}

impl LiveSession {
    pub(crate) fn new(sessions: Sessions, session: SessionRef) -> Self {
        Self { sessions, session, found: Mutex::new(None) }
    }

    /// Returns the id of the session.
    pub(crate) fn name(&self) -> &str {
        self.session.session()
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Returns the session as it was when it was located. Use only fields of it that never change.
    pub(crate) async fn find(&self) -> Result<Option<Arc<Head>>> {
        if let Some(found) = self.found.lock().clone() {
            return Ok(Some(found));
        }
        let opened = self.sessions.open(self.session.tenant(), self.session.session()).await?;
        let found = opened.map(|opened| Arc::new(opened.head));
        self.found.lock().clone_from(&found);
        Ok(found)
    }

    /// Reads a page of one of the session's logs after a position; empty for an unknown session.
    ///
    /// # Errors
    /// [`Corrupt`](treehold_core::ErrorKind::Corrupt) for a row that cannot be read, and errors of the store.
    pub(crate) async fn log_page<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        log: impl Fn(&Head) -> Result<Namespace>,
        after: Option<Version>,
        limit: usize,
    ) -> Result<(Vec<(Version, Kept<T>)>, bool)> {
        let Some(head) = self.find().await? else { return Ok((Vec::new(), false)) };
        let mut options = ScanOptions::new().with_values(true).with_limit(limit.min(self.sessions.options.page_max));
        options.start_after = after.map(treehold_store::log_key);
        let page = self.sessions.store.scan(&log(&head)?, options).await?;
        let items = page.entries.into_iter().filter_map(|entry| match entry {
            ScanEntry::Item(item) => Some(item),
            ScanEntry::Group { .. } | ScanEntry::LeftOut { .. } => None,
        });
        Ok((kept(what, items.collect(), Unreadable::Refuse).await?, page.next.is_some()))
    }

    /// Reads one of the session's logs; empty for an unknown session.
    ///
    /// # Errors
    /// As [`LiveSession::log_page`], and [`TooLarge`](treehold_core::ErrorKind::TooLarge) for more than one call may read.
    pub(crate) async fn whole_log<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        log: impl Fn(&Head) -> Result<Namespace>,
        unreadable: Unreadable,
    ) -> Result<Vec<Kept<T>>> {
        self.log_after(what, log, None, unreadable).await
    }

    /// Reads one of the session's logs after a position; otherwise as [`LiveSession::whole_log`].
    ///
    /// # Errors
    /// As [`LiveSession::whole_log`].
    pub(crate) async fn log_after<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        log: impl Fn(&Head) -> Result<Namespace>,
        after: Option<Version>,
        unreadable: Unreadable,
    ) -> Result<Vec<Kept<T>>> {
        let Some(head) = self.find().await? else { return Ok(Vec::new()) };
        let (log, mut items) = (log(&head)?, Vec::new());
        let mut read = ReadBytes::new(self.sessions.options.read_bytes_max);
        let mut options = ScanOptions::new().with_values(true);
        options.start_after = after.map(treehold_store::log_key);
        loop {
            let page = self.sessions.store.scan(&log, options.clone()).await?;
            for entry in page.entries {
                if let ScanEntry::Item(item) = entry {
                    read.add(item.value.len())?;
                    items.push(item);
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        Ok(kept(what, items, unreadable).await?.into_iter().map(|(_, value)| value).collect())
    }

    /// Commits rows of the session.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::ErrorKind::NotFound) if there is no such session, and errors of the store.
    pub(crate) async fn commit(&self, plan: impl Fn(&Head) -> Result<Batch>) -> Result<Vec<Version>> {
        let mut attempts = Attempts::new();
        loop {
            let head = self.find_existing().await?;
            if let Some(versions) = self.try_commit(&head, plan(&head)?).await? {
                return Ok(versions);
            }
            attempts.lost().await?;
        }
    }

    /// Commits rows of the session once for an idempotency key. Returns the earlier commit instead if there is one.
    ///
    /// # Errors
    /// As [`LiveSession::commit`], and [`Once::find`].
    pub(crate) async fn commit_once(&self, once: &Once, plan: impl Fn(Batch, &Head) -> Result<Batch>) -> Result<Committed> {
        let mut attempts = Attempts::new();
        loop {
            let head = self.find_existing().await?;
            if let Some(earlier) = once.find(&self.sessions, &head).await? {
                return Ok(Committed::Earlier(earlier));
            }
            // The key comes first, so the rows that are appended have greater versions.
            let batch = once.put(Batch::new(), &self.sessions, &head, None)?;
            if let Some(versions) = self.try_commit(&head, plan(batch, &head)?).await? {
                return Ok(Committed::Now(versions.into_iter().skip(1).collect()));
            }
            attempts.lost().await?;
        }
    }

    /// Returns the position of the first entry of a log after a version.
    pub(crate) async fn position_after(&self, version: Version, log: impl Fn(&Head) -> Result<Namespace>) -> Result<Option<Version>> {
        let Some(head) = self.find().await? else { return Ok(None) };
        let mut options = ScanOptions::new().with_limit(1);
        options.start_after = Some(treehold_store::log_key(version));
        let page = self.sessions.store.scan(&log(&head)?, options).await?;
        Ok(page.entries.into_iter().find_map(|entry| match entry {
            ScanEntry::Item(item) => Some(item.version),
            ScanEntry::Group { .. } | ScanEntry::LeftOut { .. } => None,
        }))
    }

    /// Commits rows of the session as it was located. Returns `None` if a condition did not hold; the next
    /// [`find`](Self::find) then looks the rows up again.
    pub(crate) async fn try_commit(&self, head: &Head, batch: Batch) -> Result<Option<Vec<Version>>> {
        let batch = batch.expect(&head.user_rows().data(&head.data)?, LIVE, Condition::Exists);
        let versions = rows::commit(&*self.sessions.store, batch).await?;
        if versions.is_none() {
            *self.found.lock() = None;
        }
        Ok(versions)
    }

    /// Returns a session that must exist, as [`find`](Self::find) does.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::ErrorKind::NotFound) if there is no such session, and errors of the store.
    pub(crate) async fn find_existing(&self) -> Result<Arc<Head>> {
        self.find().await?.ok_or_else(|| rows::no_session(self.session.session()))
    }
}

/// Parses rows, on a blocking thread if there is much to parse.
async fn kept<T: DeserializeOwned + Send + 'static>(
    what: &'static str,
    items: Vec<Item>,
    unreadable: Unreadable,
) -> Result<Vec<(Version, Kept<T>)>> {
    let size_bytes = items.iter().map(|item| item.value.len() as u64).sum();
    let read = move |item: Item| match Json::from_bytes(&item.value).and_then(Kept::from_json) {
        Ok(value) => Some(Ok((item.version, value))),
        Err(error) if unreadable == Unreadable::Skip => {
            tracing::warn!(%error, key = item.key, "skipping a stored {what} that cannot be read");
            None
        }
        Err(error) => Some(Err(Error::new(ErrorKind::Corrupt, format!("a stored {what} cannot be read")).with_source(error))),
    };
    work::run(size_bytes, move |_| items.into_iter().filter_map(read).collect()).await?
}
