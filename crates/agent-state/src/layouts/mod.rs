//! The data of AgentScope's own state stores, read and written live, so that a fleet can move while both run.
//!
//! Each layout implements [`AgentStateStore`] over the files, keys or rows that AgentScope's stores use, and
//! writes values in the bytes that AgentScope would write:
//!
//! - [`JsonFileStates`]: a directory of JSON files;
//! - [`RedisStates`]: keys of a Redis server or cluster, with AgentScope's version counters;
//! - [`MysqlStates`]: a table of MySQL or MariaDB.
//!
//! [`copy_states`] copies between any two stores, and [`open`] opens a layout by its URL.
//!
//! # What a layout cannot hold
//!
//! AgentScope joins ids into names, so that some pairs of ids share one name. A layout refuses an id that another one could be mistaken
//! for with [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument), before it reads or writes anything:
//!
//! | layout | refused |
//! | --- | --- |
//! | all | the user `__anon__`, users and sessions of white space only |
//! | files | ids that are the encoded form of another id; keys with `/`; names over 255 bytes |
//! | MySQL | users with `:`; keys that end with `:_hash`; ids that differ from a stored one only in case, accents or trailing spaces |
//! | Redis | users with `/`; keys with `:`; the keys `list`, `ver`, `_keys` and `_hash` |
//!
//! No layout can check a [fence](crate::Fence). Lists have no versions: [`Any`](crate::Expected::Any) is all that saves and deletions of
//! lists accept where single values have versions.

mod copy;
#[cfg(all(feature = "filesystem", unix))]
mod file;
#[cfg(any(all(feature = "filesystem", unix), feature = "mysql", feature = "redis"))]
mod list_hash;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(all(feature = "filesystem", unix), feature = "mysql", feature = "redis"))]
mod shared;
mod text;

pub use copy::{CopyOptions, CopyPosition, CopyProblem, CopyProgress, CopyReport, Existing, copy_states};
#[cfg(all(feature = "filesystem", unix))]
pub use file::{JsonFileStates, JsonFileStatesOptions};
#[cfg(feature = "mysql")]
pub use mysql::{MysqlStates, MysqlStatesOptions};
#[cfg(feature = "redis")]
pub use redis::{RedisStates, RedisStatesOptions};

use crate::contract::AgentStateStore;
use std::sync::Arc;
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::{Error, Result};

/// The largest value that is read or written, in bytes, unless the options set another limit.
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// The version of a value that an older AgentScope stored without one. A save that expects it succeeds once, and gives the value the
/// version 1. No counter gets this far.
pub const UNCOUNTED_VERSION: u64 = i64::MAX as u64;

/// The schemes of URLs that name layouts.
const SCHEMES: [&str; 7] = ["files", "redis", "rediss", "redis+cluster", "rediss+cluster", "mysql", "mariadb"];

/// Opens a layout by its URL.
///
/// - `files:DIRECTORY`: JSON files, such as `files:/home/ada/.agentscope/state/assistant`. The directory is created if it is missing.
/// - `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE][?prefix=PREFIX]`, `rediss://` with TLS, `redis+cluster://HOST,HOST…` and
///   `rediss+cluster://` for clusters. The default prefix is `agentscope:session:`.
/// - `mysql://USER@HOST/DATABASE[?table=TABLE&create=true]`, also `mariadb://`. The default table is `agentscope_sessions`.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for another URL; the message never contains the URL, which may hold a password.
/// [`Unsupported`](ErrorKind::Unsupported) for a layout that this build lacks. Those of the layout.
pub async fn open(url: &str) -> Result<Arc<dyn AgentStateStore>> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        #[cfg(all(feature = "filesystem", unix))]
        "files" => Ok(Arc::new(JsonFileStates::open(url.trim_start_matches("files:")).await?)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+cluster" | "rediss+cluster" => Ok(Arc::new(RedisStates::open(url).await?)),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Arc::new(MysqlStates::open(url).await?)),
        known if SCHEMES.contains(&known) => {
            Err(Error::unsupported(format!("this build cannot open `{known}:`; build it with the feature of that engine")))
        }
        _ => {
            Err(Error::invalid_argument("the URL names no layout; write `files:DIRECTORY`, `redis://HOST` or `mysql://USER@HOST/DATABASE`"))
        }
    }
}
