//! States under the keys of earlier versions, and the keys of sandboxes.

use crate::contract::{AgentStateStore, VersionedState};
use crate::slot::StateSlot;
use serde::Deserialize;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;

/// The key of the state of an agent.
pub const AGENT_STATE_KEY: &str = "agent_state";

/// The key of the list of messages in earlier versions.
pub const LEGACY_MESSAGES_KEY: &str = "memory_messages";

/// The key of the activated tool groups in earlier versions.
pub const LEGACY_TOOL_GROUPS_KEY: &str = "toolkit_activeGroups";

/// The key of the state of a sandbox.
pub const SANDBOX_STATE_KEY: &str = "_sandbox_state";

/// What a session has under the keys of earlier versions.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LegacyState {
    /// The messages.
    pub messages: Vec<Json>,
    /// The activated tool groups; `None` if the key is absent, which is not the same as no group.
    pub activated_groups: Option<Vec<String>>,
}

impl LegacyState {
    /// Makes the state that the next save stores under [`AGENT_STATE_KEY`], with the defaults for all that earlier versions did not have.
    /// The messages keep their text.
    pub fn to_json(&self, slot: &StateSlot) -> Result<Json> {
        #[derive(serde::Serialize)]
        struct State<'a> {
            session_id: &'a str,
            user_id: Option<&'a str>,
            summary: &'a str,
            context: &'a [Json],
            #[serde(skip_serializing_if = "Option::is_none")]
            tool_context: Option<Tools<'a>>,
        }

        #[derive(serde::Serialize)]
        struct Tools<'a> {
            activated_groups: &'a [String],
        }

        Json::of(&State {
            session_id: slot.session(),
            user_id: slot.user(),
            summary: "",
            context: &self.messages,
            tool_context: self.activated_groups.as_deref().map(|activated_groups| Tools { activated_groups }),
        })
    }
}

/// A state that was found, and where.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FoundState {
    /// Under [`AGENT_STATE_KEY`].
    Current(VersionedState),
    /// Under the keys of earlier versions, which are left as they are. The next save creates [`AGENT_STATE_KEY`], and from then on they
    /// are not read.
    Legacy(LegacyState),
}

/// Reads the state of an agent. If it is absent, reads what earlier versions stored.
///
/// Cost: one get, and two more if the state is absent.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) for legacy tool groups of another shape. Otherwise as [`AgentStateStore::get`].
pub async fn load_with_legacy(store: &dyn AgentStateStore, slot: &StateSlot) -> Result<Option<FoundState>> {
    if let Some(found) = store.get(slot, AGENT_STATE_KEY).await? {
        return Ok(Some(FoundState::Current(found)));
    }
    let messages = store.get_list(slot, LEGACY_MESSAGES_KEY).await?;
    let groups = store.get(slot, LEGACY_TOOL_GROUPS_KEY).await?;
    if messages.is_empty() && groups.is_none() {
        return Ok(None);
    }
    let activated_groups = groups.map(|groups| activated_groups(&groups.value)).transpose()?;
    Ok(Some(FoundState::Legacy(LegacyState { messages, activated_groups })))
}

fn activated_groups(groups: &Json) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Groups {
        active_groups: Option<Vec<String>>,
    }

    let read: Groups = groups.view().map_err(|error| {
        Error::new(ErrorKind::Corrupt, format!("the state `{LEGACY_TOOL_GROUPS_KEY}` cannot be read; correct or delete it"))
            .with_source(error)
    })?;
    Ok(read.active_groups.unwrap_or_default())
}

/// Whose sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxOwner<'a> {
    /// That of a session.
    Session(&'a str),
    /// That of a user of an agent.
    User {
        /// The agent.
        agent: &'a str,
        /// The user.
        user: &'a str,
    },
    /// That of an agent.
    Agent(&'a str),
    /// That of everyone.
    Global,
}

/// Returns the slot of the state of a sandbox, whose key is [`SANDBOX_STATE_KEY`]. The names are those of AgentScope: always anonymous.
///
/// An id with a `/` is refused, because two owners could have the same slot then.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that cannot be kept exactly.
pub fn sandbox_slot(owner: SandboxOwner<'_>) -> Result<StateSlot> {
    let checked = |id: &str| match id {
        "" => Err(Error::invalid_argument("the id of a sandbox's owner is empty; name one")),
        id if id.contains('/') => Err(Error::invalid_argument(format!("the id `{}` holds a slash; use another one", id.escape_debug()))),
        _ => Ok(()),
    };
    let session = match owner {
        SandboxOwner::Session(session) => {
            if session.is_empty() {
                checked(session)?;
            }
            format!("sandbox/session/{session}")
        }
        SandboxOwner::User { agent, user } => {
            checked(agent)?;
            checked(user)?;
            format!("sandbox/user/{agent}/{user}")
        }
        SandboxOwner::Agent(agent) => {
            checked(agent)?;
            format!("sandbox/agent/{agent}")
        }
        SandboxOwner::Global => "sandbox/global".to_owned(),
    };
    StateSlot::new(None, session)
}
