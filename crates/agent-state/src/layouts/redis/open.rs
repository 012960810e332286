//! Opening the states: their URL, and the prefix of their keys.

use super::link::Link;
use super::{RedisStates, RedisStatesOptions};
use crate::layouts::shared::is_blank;
use ::redis::cmd;
use std::sync::Arc;
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::{Error, Result};
use treehold_store::server_url::take_parameters;

/// The prefix that AgentScope uses unless it is told another one.
const PREFIX: &str = "agentscope:session:";

impl RedisStates {
    /// Opens the states at a URL, and checks that the server answers.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for a URL or prefix that cannot be used. Those of the server.
    pub async fn open(url: impl Into<String>) -> Result<Self> {
        Self::open_with(RedisStatesOptions::new(url)).await
    }

    /// Opens the states with options.
    ///
    /// # Errors
    /// As [`RedisStates::open`].
    pub async fn open_with(options: RedisStatesOptions) -> Result<Self> {
        let (url, [prefix]) = take_parameters(&options.url, ["prefix"])?;
        let prefix = options.prefix.or(prefix).unwrap_or_else(|| PREFIX.to_owned());
        if is_blank(&prefix) {
            return Err(Error::invalid_argument("the prefix of the keys is empty; write `?prefix=agentscope:session:`"));
        }
        let link = Link::parse(&url, options.connect_timeout, options.response_timeout)?;
        if link.is_cluster && !has_hash_tag(&prefix) {
            return Err(Error::invalid_argument(
                "in a cluster the prefix of the keys needs a hash tag, such as `{agentscope}:session:`; without one, AgentScope cannot save",
            ));
        }
        let states = Self { link: Arc::new(link), prefix: prefix.into(), value_bytes_max: options.value_bytes_max };
        states.link.read(cmd("EXISTS").arg(&states.prefix[..])).await?;
        Ok(states)
    }
}

/// Returns whether a cluster keeps all keys with this prefix in one slot.
fn has_hash_tag(prefix: &str) -> bool {
    prefix.split_once('{').and_then(|(_, rest)| rest.split_once('}')).is_some_and(|(tag, _)| !tag.is_empty())
}
