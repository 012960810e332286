//! Which user of a tenant has a session.
//!
//! A session is named by its tenant and id alone, so the tenant has a directory of them. It is in the partition of the tenant, and the session
//! in that of its user. [Intents](treehold_store::intent) make sure that no session is missing from the directory. An entry without a session,
//! as a process that died may leave, counts for nothing.

use crate::rows::{self, DirectoryRow, Head, Registration, UserRows};
use crate::sessions::Sessions;
use bytes::Bytes;
use treehold_core::error::Result;
use treehold_core::json::{row, stored};
use treehold_store::intent::{self, Intent, Registered};
use treehold_store::{Batch, Item};

impl Sessions {
    /// Returns the user of a session that exists.
    pub(crate) async fn owner(&self, tenant: &str, session: &str) -> Result<Option<String>> {
        let Some(user) = rows::user_of(&*self.store, tenant, session).await? else { return Ok(None) };
        Ok(self.exists(&UserRows::new(tenant, &user), session).await?.then_some(user))
    }

    pub(crate) async fn exists(&self, user: &UserRows, session: &str) -> Result<bool> {
        Ok(self.store.get_part(&user.sessions()?, session, 0..0).await?.is_some())
    }

    /// Returns whether a user has a session or is about to create it.
    async fn is_taken(&self, user: &UserRows, session: &str) -> Result<bool> {
        let is_intended = intent::end(&*self.store, &user.intents()?, &rows::creations(session), self.time()).await?;
        Ok(is_intended || self.exists(user, session).await?)
    }

    /// Enters a session that is about to be created into the directory of its tenant.
    pub(crate) async fn register(&self, head: &Head) -> Result<Registration> {
        let (tenant, session, store) = (&head.tenant_id, &head.session_id, &*self.store);
        let (tenants, directory) = (rows::tenants(), rows::directory(tenant)?);
        if store.get_part(&tenants, tenant, 0..0).await?.is_none() {
            store.commit(Batch::new().put(&tenants, tenant, "")).await?;
        }
        let key = rows::new_key(&rows::creations(session));
        let intent = Intent::put(store, &head.user_rows().intents()?, key, self.time()).await?;
        let entry = row(&DirectoryRow { user_id: head.user_id.clone() });
        let is_own = |entry: &Bytes| Ok(user_in(entry)? == head.user_id);
        let registration = match intent::register(store, &directory, session, entry, is_own).await? {
            Registered::Done => return Ok(Registration::Intended(intent)),
            Registered::Lost => Registration::Lost,
            Registered::Taken(entry, version) => {
                if self.is_taken(&UserRows::new(tenant, &user_in(&entry)?), session).await? {
                    Registration::Taken
                } else {
                    intent::unregister(store, &directory, session, version).await?;
                    Registration::Lost
                }
            }
        };
        intent.withdraw(store).await;
        Ok(registration)
    }

    /// Removes a session from the directory of its tenant, unless the user has it again.
    pub(crate) async fn unregister(&self, user: &UserRows, session: &str) -> Result<()> {
        let directory = rows::directory(&user.tenant)?;
        let found = self.store.get(&directory, session).await?;
        let is_own = |item: &Item| user_in(&item.value).map_or(true, |owner| owner == user.user);
        if !self.is_taken(user, session).await?
            && let Some(item) = found.filter(is_own)
        {
            intent::unregister(&*self.store, &directory, session, item.version).await?;
        }
        Ok(())
    }
}

/// Returns the user in an entry of the directory.
fn user_in(entry: &Bytes) -> Result<String> {
    Ok(stored::<DirectoryRow>("directory of sessions", entry)?.user_id)
}
