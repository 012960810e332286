//! Options for opening the states.

use crate::layouts::VALUE_BYTES_MAX;
#[cfg(doc)]
use crate::layouts::{RedisStates, open};
use std::fmt;
use std::time::Duration;

/// Options for [`RedisStates`].
#[derive(Clone)]
#[non_exhaustive]
pub struct RedisStatesOptions {
    /// The server's URL, as in [`open`].
    pub url: String,
    /// The prefix of the keys; overrides the one in the URL. Default `agentscope:session:`.
    pub prefix: Option<String>,
    /// The largest value, and the largest list, in bytes. Default [`VALUE_BYTES_MAX`].
    pub value_bytes_max: usize,
    /// The time limit for connecting. Default 5 s.
    pub connect_timeout: Duration,
    /// The time limit for an answer. Default 30 s.
    pub response_timeout: Duration,
}

impl RedisStatesOptions {
    /// Uses the defaults for the server at `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: None,
            value_bytes_max: VALUE_BYTES_MAX,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(30),
        }
    }

    /// Sets the prefix of the keys.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets the largest value and list, in bytes.
    #[must_use]
    pub fn with_value_bytes_max(mut self, value_bytes_max: usize) -> Self {
        self.value_bytes_max = value_bytes_max;
        self
    }

    /// Sets the time limit for connecting.
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets the time limit for an answer.
    #[must_use]
    pub fn with_response_timeout(mut self, response_timeout: Duration) -> Self {
        self.response_timeout = response_timeout;
        self
    }
}

impl fmt::Debug for RedisStatesOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStatesOptions").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
