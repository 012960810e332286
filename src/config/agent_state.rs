//! `[agent_state]`: where the states of agents are stored, their limits, and when they expire.

use super::check::positive_time;
use super::fault::Broken;
use super::stores::Stores;
use super::{Config, DEFAULT_STORE};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use treehold_agent_state::{AgentStates, AgentStatesOptions, Expiry};
use treehold_core::error::Result;

/// The word for a time without an end.
const NEVER: &str = "never";

/// Where the states of agents are stored, their limits, and when they expire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct AgentStateConfig {
    /// The store of the states. Default: the only one configured, or `default`.
    pub store: String,
    /// The largest value in bytes. Default 64 MiB.
    pub value_bytes_max: usize,
    /// The largest message of a conversation, or element of a list, in bytes. Default 16 MiB.
    pub message_bytes_max: usize,
    /// The most keys of a session. Default 1,000.
    pub keys_max: usize,
    /// The most entries of one page. Default 1,000.
    pub page_max: usize,
    /// How long a message stays readable after it left its value: an age such as `30d`, or `never` to remove it only with its session.
    /// Default `30d`.
    pub forget_after: String,
    /// How long a session lives without a save: an age such as `90d`, or `never` to keep it until it is deleted. Default `never`.
    /// An expired session is absent at once. Its space is freed later, by less than a quarter of this time (or 64 seconds if that is more).
    pub expire_after: String,
    /// How long sessions live whose ids start with a prefix, by that prefix. The longest matching one decides.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub expire_prefix_after: BTreeMap<String, String>,
}

impl Default for AgentStateConfig {
    fn default() -> Self {
        let AgentStatesOptions { value_bytes_max, message_bytes_max, keys_max, page_max, .. } = AgentStatesOptions::default();
        Self {
            store: DEFAULT_STORE.to_owned(),
            value_bytes_max,
            message_bytes_max,
            keys_max,
            page_max,
            forget_after: "30d".to_owned(),
            expire_after: NEVER.to_owned(),
            expire_prefix_after: BTreeMap::new(),
        }
    }
}

impl AgentStateConfig {
    /// Returns the settings of the library.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed age.
    pub fn options(&self) -> Result<AgentStatesOptions> {
        let mut expiry = age(&self.expire_after)?.map_or_else(Expiry::never, Expiry::after);
        for (prefix, text) in &self.expire_prefix_after {
            expiry = expiry.with_prefix(prefix, age(text)?);
        }
        Ok(AgentStatesOptions::new()
            .with_value_bytes_max(self.value_bytes_max)
            .with_message_bytes_max(self.message_bytes_max)
            .with_keys_max(self.keys_max)
            .with_page_max(self.page_max)
            .with_retention(age(&self.forget_after)?)
            .with_expiry(expiry))
    }

    /// Checks each value.
    pub(super) fn check(&self) -> Result<(), Broken> {
        let counts = [
            ("value_bytes_max", self.value_bytes_max),
            ("message_bytes_max", self.message_bytes_max),
            ("keys_max", self.keys_max),
            ("page_max", self.page_max),
        ];
        for (key, count) in counts {
            if count == 0 {
                let hint = Some("set at least 1".to_owned());
                return Err(Broken::new(&["agent_state", key], format!("`{key}` is 0, which allows nothing")).with_hint(hint));
            }
        }
        for (key, text) in [("forget_after", &self.forget_after), ("expire_after", &self.expire_after)] {
            age(text).map_err(|error| Broken::new(&["agent_state", key], error.message()))?;
        }
        for (prefix, text) in &self.expire_prefix_after {
            let keys = ["agent_state", "expire_prefix_after", prefix];
            if prefix.is_empty() {
                let hint = Some("set `expire_after` for all sessions".to_owned());
                return Err(Broken::new(&keys, "a prefix is empty").with_hint(hint));
            }
            age(text).map_err(|error| Broken::new(&keys, error.message()))?;
        }
        Ok(())
    }
}

/// Parses a positive age; `None` for `never`.
fn age(text: &str) -> Result<Option<Duration>> {
    if text == NEVER {
        return Ok(None);
    }
    positive_time(text, "an age", &format!("write it as `30d` or `12h`, or write `{NEVER}`")).map(Some)
}

impl Config {
    /// Opens the states of agents with the configured limits.
    ///
    /// # Errors
    /// [`NotFound`](treehold_core::error::ErrorKind::NotFound) for a store that is not in `stores`, and
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a malformed age, which is possible if it was set after
    /// parsing.
    pub fn agent_states(&self, stores: &Stores) -> Result<AgentStates> {
        Ok(AgentStates::new(stores.get(&self.agent_state.store)?).with_options(self.agent_state.options()?))
    }
}
