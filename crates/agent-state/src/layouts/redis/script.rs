//! The scripts, what goes into them and what they answer.

use super::link::unexpected;
use crate::contract::{Expected, StateConflict, StateVersion};
use crate::layouts::UNCOUNTED_VERSION;
use crate::layouts::shared::uncounted;
use crate::slot::StateSlot;
use ::redis::{Cmd, cmd};
use treehold_core::error::{Error, ErrorKind, Result};

/// A script that compares versions starts with the function that does so.
pub(super) const SAVE: &str = concat!(include_str!("expect.lua"), include_str!("save.lua"));
pub(super) const SAVE_LIST: &str = include_str!("list.lua");
pub(super) const DELETE: &str = concat!(include_str!("expect.lua"), include_str!("delete.lua"));
pub(super) const DELETE_SESSION: &str = include_str!("delete_session.lua");
pub(super) const GET: &str = "return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}";
pub(super) const GET_VERSION: &str = "return {redis.call('EXISTS', KEYS[1]), redis.call('GET', KEYS[2])}";

/// Makes the command that runs a script.
pub(super) fn script<K: ::redis::ToRedisArgs>(text: &str, keys: &[K], arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(text).arg(keys.len());
    for key in keys {
        command.arg(key);
    }
    for argument in arguments {
        command.arg(argument);
    }
    command
}

/// Returns the text of an expectation in scripts.
pub(super) fn expectation(expected: Expected) -> String {
    match expected {
        Expected::Any => "any".to_owned(),
        Expected::Absent => "absent".to_owned(),
        Expected::Version(version) if version.number() == UNCOUNTED_VERSION => "uncounted".to_owned(),
        Expected::Version(version) => version.to_string(),
    }
}

/// Makes the error for the answer of a script that changed nothing.
pub(super) fn refused(slot: &StateSlot, key: &str, expected: Expected, answer: &[i64]) -> Error {
    match *answer {
        [0, current] => {
            let current = if current < 0 { Some(uncounted()) } else { StateVersion::new(current.unsigned_abs()) };
            StateConflict::new(slot, key, expected, current).into_error()
        }
        [-1] => damaged_version(slot, key),
        [-2] => Error::new(ErrorKind::Corrupt, format!("the stored `{key}` of the {slot} is data of another kind; delete it")),
        _ => unexpected(),
    }
}

/// Reads a version. A value may be without one.
pub(super) fn stored_version(slot: &StateSlot, key: &str, version: Option<Vec<u8>>) -> Result<StateVersion> {
    let Some(version) = version else { return Ok(uncounted()) };
    let text = std::str::from_utf8(&version).map_err(|_| damaged_version(slot, key))?.trim();
    match text.parse::<u64>() {
        Ok(number) => Ok(StateVersion::new(number).unwrap_or_else(uncounted)),
        Err(_) if text.is_empty() => Ok(uncounted()),
        Err(_) => Err(damaged_version(slot, key)),
    }
}

fn damaged_version(slot: &StateSlot, key: &str) -> Error {
    let message = format!("the stored version of `{key}` of the {slot} is not a number; delete the key that ends with `{key}:ver`");
    Error::new(ErrorKind::Corrupt, message)
}
