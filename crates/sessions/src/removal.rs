//! Removes the rows of deleted sessions and of imports that did not complete.
//!
//! A deletion hides a session with one commit, which also records the data that remains to be removed. An import records its data
//! before it writes, every commit of it depends on that row and renews it, and the last one removes it. So a sweep finds all data
//! without a session, and an import whose data was swept cannot complete.

use crate::rows::{self, LIVE, Removal, removals};
use crate::sessions::Sessions;
use std::time::Duration;
use tokio::task::JoinHandle;
use treehold_core::error::Result;
use treehold_core::json::{row, stored};
use treehold_core::scope::check_id;
use treehold_store::{Batch, Condition, Item, NamespacesOptions, ScanEntry, ScanOptions};

/// How long an import may write nothing before a sweep removes its rows.
pub(crate) const IMPORT_PAUSE_MAX: Duration = Duration::from_secs(60 * 60);

impl Sessions {
    /// Removes the rows that interrupted deletions and imports of a user's sessions left behind. Returns the number of those
    /// sessions. An import in progress is left alone unless it has written nothing for an hour.
    ///
    /// # Errors
    /// As [`Sessions::list`]: the last error, after every other session was removed.
    pub async fn sweep(&self, tenant: &str, user: &str) -> Result<usize> {
        check_id("tenant", tenant)?;
        check_id("user", user)?;
        self.check_owner(tenant, user)?;
        self.sweep_beneath(Removal::prefix(tenant, Some(user)), usize::MAX).await
    }

    /// Removes the rows that interrupted deletions and imports of all accessible users left behind, for at most `sessions_max`
    /// sessions. Returns the number of those sessions. Otherwise as [`Sessions::sweep`].
    ///
    /// Cost: one round trip if there is nothing to remove.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn sweep_some(&self, sessions_max: usize) -> Result<usize> {
        self.sweep_beneath(self.removals_prefix(), sessions_max).await
    }

    async fn sweep_beneath(&self, prefix: String, sessions_max: usize) -> Result<usize> {
        let mut options = ScanOptions::new().with_prefix(prefix).with_values(true).with_limit(self.options.page_max);
        let (mut removed, mut failed) = (0, None);
        loop {
            let page = self.store.scan(&removals(), options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                if removed == sessions_max {
                    return failed.map_or(Ok(removed), Err);
                }
                // One session that cannot be removed does not stop the others.
                match self.sweep_one(&item).await {
                    Ok(is_removed) => removed += usize::from(is_removed),
                    Err(error) => {
                        tracing::warn!(%error, key = item.key, "the rows of a deleted session remain until the next sweep");
                        failed = Some(error);
                    }
                }
            }
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => return failed.map_or(Ok(removed), Err),
            }
        }
    }

    /// Removes what a row says. Returns whether it was due.
    async fn sweep_one(&self, item: &Item) -> Result<bool> {
        let Some(removal) = self.due(item).await? else { return Ok(false) };
        self.remove(&removal).await?;
        Ok(true)
    }

    /// Returns what a row says to remove. An import that stopped is ended first, so that it writes nothing more.
    async fn due(&self, item: &Item) -> Result<Option<Removal>> {
        let removal: Removal = match stored("removal of a session", &item.value) {
            Ok(removal) => removal,
            Err(error) => {
                tracing::warn!(%error, key = item.key, "skipping the rows of a deleted session");
                return Ok(None);
            }
        };
        let Some(import_at) = removal.import_at else { return Ok(Some(removal)) };
        let pause_max = i64::try_from(IMPORT_PAUSE_MAX.as_millis()).unwrap_or(i64::MAX);
        if self.now().saturating_sub(import_at) < pause_max {
            return Ok(None);
        }
        if self.store.get(&removal.user_rows().data(&removal.data)?, LIVE).await?.is_some() {
            return Ok(Some(removal));
        }
        self.end_import(&removal, Condition::Version(item.version)).await
    }

    /// Ends an import, which writes nothing more. Returns the removal of its rows, or `None` if it has ended already.
    async fn end_import(&self, import: &Removal, expected: Condition) -> Result<Option<Removal>> {
        let removal = Removal { import_at: None, ..import.clone() };
        let data = removal.user_rows().data(&removal.data)?;
        let batch = Batch::new().expect(&removals(), import.key(), expected).expect(&data, LIVE, Condition::Absent);
        let batch = batch.delete(&removals(), import.key()).put(&removals(), removal.key(), row(&removal));
        Ok(rows::commit(&*self.store, batch).await?.map(|_| removal))
    }

    /// Removes the rows of an import that failed. If that fails too, a sweep does it.
    pub(crate) async fn abandon(&self, import: &Removal) {
        let removed = async {
            match self.end_import(import, Condition::Exists).await? {
                Some(removal) => self.remove(&removal).await,
                None => Ok(()),
            }
        };
        if let Err(error) = removed.await {
            tracing::warn!(%error, session = import.session_id, "the rows of a failed import remain until the next sweep");
        }
    }

    /// Removes the rows of a deleted session, one namespace at a time. An archive may have brought a session together with an older
    /// row that says to remove it; then only that row is removed.
    pub(crate) async fn remove(&self, removal: &Removal) -> Result<()> {
        let beneath = removal.user_rows().data(&removal.data)?;
        if self.store.get(&beneath, LIVE).await?.is_some() {
            return self.store.commit(Batch::new().delete(&removals(), removal.key())).await.map(drop);
        }
        loop {
            let page = self.store.namespaces(NamespacesOptions::new().with_beneath(beneath.clone())).await?;
            for namespace in &page.namespaces {
                self.store.commit(Batch::new().delete_prefix(namespace, "")).await?;
            }
            if !page.more {
                break;
            }
        }
        let batch = Batch::new().delete(&removal.user_rows().trace_errors()?, &removal.data);
        self.store.commit(batch.delete(&removals(), removal.key())).await.map(drop)
    }
}

/// Calls [`Sessions::sweep_some`] at regular intervals, until it is dropped.
///
/// Several processes may sweep the sessions of one store. A failed round is logged, and the next one tries again.
#[derive(Debug)]
pub struct SessionsSweeper {
    task: JoinHandle<()>,
}

impl SessionsSweeper {
    /// How many sessions a round removes. Other writers get their turn between rounds.
    const SESSIONS_MAX: usize = 100;

    /// Starts a task on the current runtime. The first round is after the first pause.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start(sessions: Sessions, every: Duration) -> Self {
        Self { task: tokio::spawn(sweep_on(sessions, every)) }
    }
}

impl Drop for SessionsSweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sweep_on(sessions: Sessions, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        match sessions.sweep_some(SessionsSweeper::SESSIONS_MAX).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(%sessions, removed, "rows of deleted sessions were removed"),
            Err(error) => tracing::warn!(%sessions, %error, "removing rows of deleted sessions failed; retrying in the next round"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use treehold_store::{MemoryStore, Store};

    /// As an archive brings them that was written while the import completed.
    #[tokio::test]
    async fn live_session_survives_old_rows_that_say_to_remove_it() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let sessions = Sessions::new(store.clone());
        sessions.get_or_create("acme", "ada", "helper", Some("s")).await.expect("created");
        let opened = sessions.open("acme", "s").await.expect("readable").expect("created");
        let data = opened.head.user_rows().data(&opened.head.data).expect("legal ids");
        for import_at in [None, Some(0)] {
            let removal = Removal { import_at, ..Removal::of(&opened.head) };
            store.commit(Batch::new().put(&removals(), removal.key(), row(&removal))).await.expect("stored");
            let _ = sessions.sweep_some(9).await.expect("swept");
            assert!(store.get(&data, LIVE).await.expect("readable").is_some(), "{import_at:?}");
            assert!(store.get(&removals(), &removal.key()).await.expect("readable").is_none(), "{import_at:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sweeper_removes_what_an_interrupted_deletion_left() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let sessions = Sessions::new(store.clone());
        sessions.get_or_create("acme", "ada", "helper", Some("s")).await.expect("created");
        let opened = sessions.open("acme", "s").await.expect("readable").expect("created");
        store.commit(opened.delete().expect("legal ids")).await.expect("deleted");
        let data = opened.head.user_rows().data(&opened.head.data).expect("legal ids");
        let left = async || store.namespaces(NamespacesOptions::new().with_beneath(data.clone())).await.expect("listed").namespaces.len();
        assert!(left().await > 0);
        let sweeper = SessionsSweeper::start(sessions, Duration::from_secs(60));
        // The clock of the test advances by itself while every task waits.
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!(left().await, 0);
        drop(sweeper);
    }
}
