//! Removes the rows of deleted sessions and of imports that did not complete.
//!
//! A deletion first records the data that is to be removed, and then hides the session with one commit. It holds an
//! [intent](treehold_store::intent) meanwhile, so that a sweep between the two keeps the record. An import records its data before it writes;
//! every commit of it depends on a row beside the data and renews it, and the last one removes that row. So a sweep finds all data without a
//! session, and an import whose data was swept cannot complete.

use crate::rows::{self, LIVE, Removal, removals};
use crate::sessions::Sessions;
use std::time::Duration;
use tokio::task::JoinHandle;
use treehold_core::error::{Error, Result};
use treehold_core::json::stored;
use treehold_core::ops::Version;
use treehold_core::scope::check_id;
use treehold_store::intent;
use treehold_store::{Batch, Condition, Item, NamespacesOptions, ScanEntry, ScanOptions, SweepCount};

/// How long an import may write nothing before a sweep removes its rows.
pub(crate) const IMPORT_PAUSE_MAX: Duration = Duration::from_secs(60 * 60);

impl Sessions {
    /// Removes the rows that interrupted deletions and imports of a user's sessions left behind. Returns the number of those
    /// sessions. An import in progress is left alone unless it has written nothing for an hour.
    ///
    /// # Errors
    /// As [`Sessions::list`], and [`Corrupt`](treehold_core::error::ErrorKind::Corrupt) for a record that cannot be read: the last error,
    /// after every other session was removed.
    pub async fn sweep(&self, tenant: &str, user: &str) -> Result<usize> {
        check_id("tenant", tenant)?;
        check_id("user", user)?;
        self.check_owner(tenant, user)?;
        self.sweep_beneath(Removal::prefix(tenant, Some(user)), usize::MAX, &SweepCount::new()).await
    }

    /// Removes the rows that interrupted deletions and imports of all accessible users left behind, for at most `sessions_max`
    /// sessions. Returns the number of those sessions. Otherwise as [`Sessions::sweep`].
    ///
    /// Cost: one round trip if there is nothing to remove.
    ///
    /// # Errors
    /// As [`Sessions::sweep`].
    pub async fn sweep_some(&self, sessions_max: usize) -> Result<usize> {
        self.sweep_counting(sessions_max, &SweepCount::new()).await
    }

    /// As [`Sessions::sweep_some`]. Adds the number of removed sessions to `count`, also if it fails for another one.
    ///
    /// # Errors
    /// As [`Sessions::sweep`].
    pub async fn sweep_counting(&self, sessions_max: usize, count: &SweepCount) -> Result<usize> {
        self.sweep_beneath(self.removals_prefix(), sessions_max, count).await
    }

    async fn sweep_beneath(&self, prefix: String, sessions_max: usize, count: &SweepCount) -> Result<usize> {
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
                    Ok(is_removed) => {
                        removed += usize::from(is_removed);
                        count.add(usize::from(is_removed));
                    }
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
        let removal: Removal = stored(&format!("removal `{}` of a session", item.key.escape_debug()), &item.value)?;
        if removal.import_at.is_some() && !self.has_ended(&removal).await? {
            return Ok(false);
        }
        self.remove(&removal, Some(item.version)).await
    }

    /// Returns whether an import writes nothing more. One that paused for too long is ended.
    async fn has_ended(&self, import: &Removal) -> Result<bool> {
        let found = self.store.get(&import.user_rows().intents()?, &import.import_key()).await?;
        match found {
            // Its row comes before the record, so the import has completed or was ended.
            None => Ok(true),
            Some(item) if intent::is_older(&item.value, self.time(), IMPORT_PAUSE_MAX) => {
                self.end_import(import, Condition::Version(item.version)).await
            }
            Some(_) => Ok(false),
        }
    }

    /// Ends an import, which writes nothing more. Returns false if it has ended already.
    async fn end_import(&self, import: &Removal, expected: Condition) -> Result<bool> {
        let (intents, key) = (import.user_rows().intents()?, import.import_key());
        let batch = Batch::new().expect(&intents, &key, expected).delete(&intents, &key);
        Ok(rows::commit(&*self.store, batch).await?.is_some())
    }

    /// Removes the rows of an import that failed. If that fails too, a sweep does it.
    pub(crate) async fn abandon(&self, import: &Removal) {
        let removed = async {
            match self.end_import(import, Condition::Exists).await? {
                true => self.remove(import, None).await.map(drop),
                false => Ok(()),
            }
        };
        if let Err(error) = removed.await {
            tracing::warn!(%error, session = import.session_id, "the rows of a failed import remain until the next sweep");
        }
    }

    /// Removes the rows of a deleted session, one namespace at a time, and its entry in the directory. Returns false while the deletion has
    /// not taken effect. If it never did, or an archive brought a session together with an older record, only the record is removed, and the
    /// answer is false as well.
    ///
    /// `record` is the version of the record if it was read. Without it, the record of a live session stays: it may be that of a deletion that
    /// is about to take effect.
    pub(crate) async fn remove(&self, removal: &Removal, record: Option<Version>) -> Result<bool> {
        let user = removal.user_rows();
        let beneath = user.data(&removal.data)?;
        let is_live = async || Ok::<_, Error>(self.store.get_part(&beneath, LIVE, 0..0).await?.is_some());
        if is_live().await? {
            if intent::end(&*self.store, &user.intents()?, &removal.deletions(), self.time()).await? {
                return Ok(false);
            }
            if is_live().await? {
                if let Some(record) = record {
                    intent::unregister(&*self.store, &removals(), &removal.key(), record).await?;
                }
                return Ok(false);
            }
        }
        self.unregister(&user, &removal.session_id).await?;
        loop {
            let page = self.store.namespaces(NamespacesOptions::new().with_beneath(beneath.clone())).await?;
            for namespace in &page.namespaces {
                self.store.commit(Batch::new().delete_prefix(namespace, "")).await?;
            }
            if !page.more {
                break;
            }
        }
        // Nothing can be deleted any more.
        let ended = Batch::new().delete_prefix(&user.intents()?, removal.deletions()).delete(&user.trace_errors()?, &removal.data);
        self.store.commit(ended).await?;
        self.store.commit(Batch::new().delete(&removals(), removal.key())).await.map(|_| true)
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
        Self::start_counting(sessions, every, SweepCount::new())
    }

    /// As [`SessionsSweeper::start`], and counts the sessions that [`Sessions::sweep_some`] removes, also if it fails for another one.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn start_counting(sessions: Sessions, every: Duration, removed: SweepCount) -> Self {
        Self { task: tokio::spawn(sweep_on(sessions, every, removed)) }
    }
}

impl Drop for SessionsSweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sweep_on(sessions: Sessions, every: Duration, count: SweepCount) {
    loop {
        tokio::time::sleep(every).await;
        match sessions.sweep_counting(SessionsSweeper::SESSIONS_MAX, &count).await {
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
    use treehold_core::json::row;
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
        let removal = Removal::of(&opened.head);
        store.commit(Batch::new().put(&removals(), removal.key(), row(&removal))).await.expect("recorded");
        store.commit(opened.delete().expect("legal ids")).await.expect("deleted");
        let data = opened.head.user_rows().data(&opened.head.data).expect("legal ids");
        let left = async || store.namespaces(NamespacesOptions::new().with_beneath(data.clone())).await.expect("listed").namespaces.len();
        assert!(left().await > 0);
        let count = SweepCount::new();
        let sweeper = SessionsSweeper::start_counting(sessions, Duration::from_secs(60), count.clone());
        // The clock of the test advances by itself while every task waits.
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert_eq!((left().await, count.get()), (0, 1));
        drop(sweeper);
    }
}
