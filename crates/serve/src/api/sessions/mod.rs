//! Sessions of agent hosts: the contracts of [`treehold_sessions`] as resources.
//!
//! A request is about the sessions of one tenant and user: the caller's own, or those that `Treehold-Tenant` and `Treehold-User` name if
//! the caller may act for them. [`Sessions::for_user`] restricts every read and write to them, so sessions of others appear not to exist.

mod compaction;
mod conversation;
mod events;
mod inspector;
pub(super) mod keys;
mod memo;
mod runs;
mod table;
mod transfer;

pub(super) use inspector::host_routes;
pub(super) use table::routes;

use super::exchange::Asked;
use crate::caller::SessionOwner;
use crate::rights::Access;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_sessions::{SessionRef, Sessions};

/// The most entries of a page.
const PAGE_MAX: usize = 1_000;

/// The sessions of the user that a request is about.
struct Own {
    sessions: Sessions,
    tenant: String,
    user: String,
}

/// The session that a request is about.
struct At {
    sessions: Sessions,
    session: SessionRef,
}

impl At {
    fn tenant(&self) -> &str {
        self.session.tenant()
    }

    fn id(&self) -> &str {
        self.session.session()
    }
}

impl Asked {
    /// Returns the sessions of the user that the request is about.
    fn own(&self, access: Access) -> Result<Own> {
        let SessionOwner { tenant, user, .. } = self.caller.owner(&self.head.headers, access)?;
        Ok(Own { sessions: self.api.sessions.for_user(&tenant, &user)?, tenant, user })
    }

    /// Returns the session that the request names, whether or not it exists.
    fn named(&self, access: Access) -> Result<At> {
        let SessionOwner { tenant, user, is_any_user } = self.caller.owner(&self.head.headers, access)?;
        let sessions = match is_any_user {
            true => self.api.sessions.for_tenant(&tenant)?,
            false => self.api.sessions.for_user(&tenant, &user)?,
        };
        Ok(At { sessions, session: SessionRef::new(tenant, self.param("session"))? })
    }

    /// Returns the session that the request names.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if it does not exist or belongs to another user.
    async fn at(&self, access: Access) -> Result<At> {
        let at = self.named(access)?;
        match at.sessions.info(at.tenant(), at.id()).await? {
            Some(_) => Ok(at),
            None => Err(absent(at.id())),
        }
    }
}

/// Returns the error for a session that does not exist.
fn absent(session: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("the session `{session}` does not exist; `POST /v1/sessions` creates it")).without_effect()
}

/// Returns the number of entries of a page.
fn page(limit: Option<usize>, default: usize) -> Result<usize> {
    match limit {
        None => Ok(default),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(limit) => Err(Error::invalid_argument(format!("the limit {limit} is not between 1 and {PAGE_MAX}"))),
    }
}
