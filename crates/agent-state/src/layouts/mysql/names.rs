//! What stands in the columns that name a session and a key.

use crate::layouts::shared::{check_key, check_slot, mixed_up, name_of};
use crate::slot::StateSlot;
use mysql_async::{Params, params};
use treehold_core::error::{Error, Result};

/// The end of the keys of hashes.
pub(super) const HASH: &str = ":_hash";

/// The longest content of the columns `session_id` and `state_key`, in UTF-16 units, as AgentScope counts.
const COLUMN_MAX: usize = 255;

/// The names of what belongs to a key.
pub(super) struct Names {
    pub(super) slot: String,
    pub(super) key: String,
    pub(super) hash: String,
}

impl Names {
    pub(super) fn parameters(&self) -> Params {
        params! { "slot" => self.slot.as_str(), "key" => self.key.as_str(), "hash" => self.hash.as_str() }
    }
}

pub(super) fn params_of_key(names: &Names) -> Params {
    params! { "slot" => names.slot.as_str(), "key" => names.key.as_str() }
}

pub(super) fn params_of_slot(slot: &str) -> Params {
    params! { "slot" => slot }
}

pub(super) fn names(slot: &StateSlot, key: &str) -> Result<Names> {
    let slot = slot_id(slot)?;
    check_key(key)?;
    if key.to_lowercase().ends_with(HASH) {
        return Err(Error::invalid_argument(format!("the key `{key}` ends like the hash of a list; rename it")));
    }
    let hash = format!("{key}{HASH}");
    if hash.encode_utf16().count() > COLUMN_MAX {
        return Err(Error::invalid_argument(format!(
            "the key is too long for the table; shorten it to {} characters",
            COLUMN_MAX - HASH.len()
        )));
    }
    Ok(Names { slot, key: key.to_owned(), hash })
}

/// Returns what stands in the column of the session.
pub(super) fn slot_id(slot: &StateSlot) -> Result<String> {
    check_slot(slot)?;
    check_colon(slot.user())?;
    let id = format!("{}:{}", name_of(slot.user()), slot.session());
    if id.encode_utf16().count() > COLUMN_MAX {
        let message =
            format!("the user and session ids have over {} characters together, the most of the table; shorten them", COLUMN_MAX - 1);
        return Err(Error::invalid_argument(message));
    }
    Ok(id)
}

/// Refuses users whose name would end in the middle.
pub(super) fn check_colon(user: Option<&str>) -> Result<()> {
    match user {
        Some(user) if user.contains(':') => Err(mixed_up("user", user, "holds a `:`, where the name of a user ends in the table")),
        _ => Ok(()),
    }
}
