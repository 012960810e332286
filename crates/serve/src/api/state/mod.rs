//! The states of stateless agents: the contracts of [`treehold_agent_state`] as resources.
//!
//! A request is about the states of one tenant, user and agent. The tenant is the caller's, or the one that `Treehold-Tenant` names if the
//! caller may act for it. The user is a segment of the path, a field of the query or of the body, and the rights decide which one a caller
//! may name. [`AgentStates::for_user`](treehold_agent_state::AgentStates::for_user) restricts every read and write to that user.

mod admin;
mod listing;
mod table;
mod turns;
mod values;

pub(super) use table::routes;

use super::exchange::Asked;
use crate::caller::{NamedUser, StateOwner};
use crate::rights::Access;
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_agent_state::call::TurnKey;
use treehold_agent_state::{StateSlot, StoreStates};
use treehold_core::error::{Error, ErrorKind, Result};

/// The agent of a request that names none.
const AGENT: &str = "default";

/// The segment of the anonymous user. As it is not encoded, no user's id has this form: a user `-` is written `%2D`.
const ANONYMOUS: &str = "-";

/// The most entries of a page, and how many a page has by default.
const PAGE_MAX: usize = 1_000;
const PAGE: usize = 100;

/// The agent that a request is about.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct AgentQuery {
    /// The agent. Default `default`.
    agent: Option<String>,
}

/// The session that a request is about.
struct At {
    states: StoreStates,
    tenant: String,
    slot: StateSlot,
}

impl At {
    fn agent(&self) -> &str {
        self.states.agent()
    }

    /// Returns whose turn it is when this session is used.
    fn turn(&self) -> Result<TurnKey> {
        TurnKey::new(&self.tenant, self.agent(), &self.slot)
    }
}

impl Asked {
    /// Returns the states of an agent, restricted to those of the user that the request is about.
    fn states_of(&self, owner: &StateOwner, agent: Option<&str>) -> Result<StoreStates> {
        let own = self.api.states.for_user(&owner.tenant, owner.user.as_deref())?;
        own.for_agent(&owner.tenant, agent.unwrap_or(AGENT))
    }

    /// Returns the session of a user.
    fn slot_of(&self, named: NamedUser<'_>, session: &str, agent: Option<&str>, access: Access) -> Result<At> {
        let owner = self.caller.state_owner(&self.head.headers, named, access)?;
        let states = self.states_of(&owner, agent)?;
        let slot = StateSlot::new(owner.user.as_deref(), session)?;
        Ok(At { states, tenant: owner.tenant, slot })
    }

    /// Returns the session that the path names.
    fn state(&self, agent: Option<&str>, access: Access) -> Result<At> {
        let user = self.named_user()?;
        self.slot_of(named(user.as_deref()), self.param("session"), agent, access)
    }

    /// Returns the user that the path names; `None` is the anonymous one.
    fn named_user(&self) -> Result<Option<String>> {
        // The decoded parameter does not tell `-` from `%2D`.
        let raw = self.head.uri.path().split('/').nth(3).unwrap_or_default();
        if raw == ANONYMOUS {
            return Ok(None);
        }
        let user = percent_decode_str(raw).decode_utf8();
        let user = user.map_err(|error| Error::new(ErrorKind::InvalidPath, "the user is not UTF-8, percent-encoded").with_source(error))?;
        Ok(Some(user.into_owned()))
    }
}

fn named(user: Option<&str>) -> NamedUser<'_> {
    user.map_or(NamedUser::Anonymous, NamedUser::Named)
}

/// Returns the number of entries of a page.
fn page(limit: Option<usize>) -> Result<usize> {
    match limit {
        None => Ok(PAGE),
        Some(limit) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
        Some(limit) => Err(Error::invalid_argument(format!("the limit {limit} is not between 1 and {PAGE_MAX}"))),
    }
}

/// Returns the error for a session without states.
fn absent(slot: &StateSlot) -> Error {
    Error::new(ErrorKind::NotFound, format!("the {slot} has no states; a PUT of one of its keys creates it")).without_effect()
}
