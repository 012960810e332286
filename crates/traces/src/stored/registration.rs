//! Which user of a tenant has a trace.
//!
//! A trace is named by its tenant and id alone, so the tenant has a directory of them. It is in the partition of the tenant, and the trace in
//! that of its user. [Intents](treehold_store::intent) make sure that no trace is missing from the directory. An entry without a trace, as a
//! process that died may leave, counts for nothing.

use super::rows::{self, DirectoryRow, UserRows, directory, head_key};
use super::{StoredTraces, Traces};
use crate::id::TraceId;
use bytes::Bytes;
use treehold_core::error::Result;
use treehold_core::json::{row, stored};
use treehold_store::Item;
use treehold_store::intent::{self, Intent, Registered};

/// What came of entering a trace into the directory of its tenant.
pub(super) enum Registration {
    /// It is entered. The commit that creates it fulfils the intent.
    Intended(Intent),
    /// Another writer was faster; try again.
    Lost,
    /// The id is that of another trace, or of one that another user is about to create.
    Taken,
}

impl Traces {
    async fn exists(&self, user: &UserRows, id: &TraceId) -> Result<bool> {
        Ok(self.store.get_part(&user.traces()?, &head_key(id), 0..0).await?.is_some())
    }

    /// Returns whether a user has a trace or is about to create it.
    async fn is_taken(&self, user: &UserRows, id: &TraceId) -> Result<bool> {
        let is_intended = intent::end(&*self.store, &user.intents()?, &rows::creations(id), self.clock.now()).await?;
        Ok(is_intended || self.exists(user, id).await?)
    }

    /// Removes a trace from the directory of its tenant, unless the user has it again.
    pub(super) async fn unregister(&self, user: &UserRows, id: &TraceId) -> Result<()> {
        let directory = directory(&user.tenant)?;
        let found = self.store.get(&directory, id.as_str()).await?;
        let is_own = |item: &Item| user_in(&item.value).map_or(true, |owner| owner == user.user);
        if !self.is_taken(user, id).await?
            && let Some(item) = found.filter(is_own)
        {
            intent::unregister(&*self.store, &directory, id.as_str(), item.version).await?;
        }
        Ok(())
    }
}

impl StoredTraces {
    /// Returns the user of a trace that exists.
    pub(super) async fn owner(&self, id: &TraceId) -> Result<Option<String>> {
        let found = self.store().get(&directory(&self.rows.tenant)?, id.as_str()).await?;
        let Some(item) = found else { return Ok(None) };
        let rows = UserRows { tenant: self.rows.tenant.clone(), user: user_in(&item.value)? };
        Ok(self.traces.exists(&rows, id).await?.then_some(rows.user))
    }

    /// Enters a trace that is about to be created into the directory of its tenant.
    pub(super) async fn register(&self, id: &TraceId) -> Result<Registration> {
        let (store, directory) = (self.store(), directory(&self.rows.tenant)?);
        let key = rows::new_key(&rows::creations(id));
        let intent = Intent::put(store, &self.rows.intents()?, key, self.traces.clock.now()).await?;
        let entry = row(&DirectoryRow { user: self.rows.user.clone() });
        let is_own = |entry: &Bytes| Ok(user_in(entry)? == self.rows.user);
        let registration = match intent::register(store, &directory, id.as_str(), entry, is_own).await? {
            Registered::Done => return Ok(Registration::Intended(intent)),
            Registered::Lost => Registration::Lost,
            Registered::Taken(entry, version) => {
                let other = UserRows { tenant: self.rows.tenant.clone(), user: user_in(&entry)? };
                if self.traces.is_taken(&other, id).await? {
                    Registration::Taken
                } else {
                    intent::unregister(store, &directory, id.as_str(), version).await?;
                    Registration::Lost
                }
            }
        };
        intent.withdraw(store).await;
        Ok(registration)
    }
}

/// Returns the user in an entry of the directory.
fn user_in(entry: &Bytes) -> Result<String> {
    Ok(stored::<DirectoryRow>("directory of traces", entry)?.user)
}
