//! How the keys in Redis are named.

use super::RedisStates;
use crate::layouts::shared::{check_key, check_slot, is_blank, mixed_up, name_of};
use crate::slot::StateSlot;
use treehold_core::error::{Error, Result};
use treehold_core::scope::check_id;

/// The ends of names: the set of a session's keys, a list, its hash, and the version of a single value.
pub(super) const KEYS: &str = ":_keys";
pub(super) const LIST: &str = ":list";
pub(super) const HASH: &str = ":_hash";
pub(super) const VERSION: &str = ":ver";

/// The names of what belongs to a key.
pub(super) struct Names {
    pub(super) value: String,
    pub(super) version: String,
    pub(super) list: String,
    pub(super) hash: String,
    pub(super) keys: String,
    pub(super) member: String,
    pub(super) list_member: String,
}

impl RedisStates {
    /// Returns the names of what belongs to a key.
    pub(super) fn names(&self, slot: &StateSlot, key: &str) -> Result<Names> {
        let slot = self.slot(slot)?;
        check_key(key)?;
        if key.contains(':') || matches!(key, "list" | "ver" | "_keys" | "_hash") {
            let message = format!(
                "the key `{key}` could name other data of a session in Redis; choose one without `:`, other than `list`, `ver`, `_keys` and `_hash`"
            );
            return Err(Error::invalid_argument(message));
        }
        let value = format!("{slot}:{key}");
        let list = format!("{value}{LIST}");
        Ok(Names {
            version: format!("{value}{VERSION}"),
            hash: format!("{list}{HASH}"),
            keys: format!("{slot}{KEYS}"),
            member: key.to_owned(),
            list_member: format!("{key}{LIST}"),
            value,
            list,
        })
    }

    /// Returns what the keys of a session start with.
    pub(super) fn slot(&self, slot: &StateSlot) -> Result<String> {
        check_slot(slot)?;
        check_slashes(slot.user())?;
        Ok(format!("{}{}/{}", self.prefix, name_of(slot.user()), slot.session()))
    }

    /// Returns the ids in the key of a set of keys: the part between the prefix and the first `/`, and the rest.
    pub(super) fn ids<'a>(&self, key: &'a [u8]) -> Option<(&'a str, &'a str)> {
        let key = std::str::from_utf8(key).ok()?;
        let (user, session) = key.strip_prefix(&*self.prefix)?.strip_suffix(KEYS)?.split_once('/')?;
        (check_id("user", user).is_ok() && check_id("session", session).is_ok() && !is_blank(user) && !is_blank(session))
            .then_some((user, session))
    }
}

/// Refuses users whose name would end in the middle.
pub(super) fn check_slashes(user: Option<&str>) -> Result<()> {
    match user {
        Some(user) if user.contains('/') => Err(mixed_up("user", user, "holds a `/`, where the name of a user ends in Redis")),
        _ => Ok(()),
    }
}
