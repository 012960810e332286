//! The keys of a session.

use super::StoreStates;
use super::head::SeenHead;
use crate::contract::{StateKey, StateVersion};
use crate::rows::{Form, corrupt};
use crate::slot::StateSlot;
use treehold_core::error::Result;
use treehold_core::retry::Attempts;

impl StoreStates {
    /// Returns the keys of a session with their versions, in order.
    ///
    /// Cost: two round trips, which read no values.
    ///
    /// # Errors
    /// As [`AgentStateStore::keys`](crate::AgentStateStore::keys).
    pub async fn keys_with_versions(&self, slot: &StateSlot) -> Result<Vec<(StateKey, StateVersion)>> {
        let owner = self.owner(slot.user())?;
        let mut attempts = Attempts::new();
        loop {
            let Some(session) = self.session(&owner, slot.session()).await? else { return Ok(Vec::new()) };
            let heads = self.heads(&owner, slot.session()).await?;
            let mut keys = Vec::with_capacity(heads.len());
            for (form, key, item) in heads {
                let head = SeenHead::read(item)?;
                if !head.is_of(Some(&session)) {
                    continue;
                }
                let version = head.state_version()?;
                keys.push(match form {
                    Form::Single => (StateKey::Single(key), version),
                    Form::List => (StateKey::List(key), version),
                });
            }
            if keys.len() as u64 == session.row.keys {
                keys.sort();
                return Ok(keys);
            }
            let now = self.session(&owner, slot.session()).await?;
            if now.is_some_and(|now| now.version == session.version) {
                return Err(corrupt("list of a session's states"));
            }
            attempts.lost().await?;
        }
    }
}
