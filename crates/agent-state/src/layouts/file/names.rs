//! How ids and keys become names of directories and files.

use crate::contract::StateKey;
use crate::layouts::shared::{check_key, is_blank, mixed_up};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::borrow::Cow;
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::{Error, Result};
use treehold_core::scope::check_id;

/// The longest name of a file or directory, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The suffixes of a key's files: the single value, the list and its hash.
pub(super) const SINGLE: &str = ".json";
pub(super) const LIST: &str = ".jsonl";
pub(super) const HASH: &str = ".hash";

/// Returns the name of an id.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for an id that would name another directory, or one that is the name of another id.
pub(super) fn segment<'a>(what: &str, id: &'a str) -> Result<Cow<'a, str>> {
    check_id(what, id)?;
    if is_blank(id) {
        return Err(Error::invalid_argument(format!("the {what} id is white space; choose another one")));
    }
    let name = match is_plain(id) {
        true if decoded(what, id).is_some() => return Err(mixed_up(what, id, "is the name of another id's directory")),
        true => Cow::Borrowed(id),
        false => Cow::Owned(URL_SAFE_NO_PAD.encode(id)),
    };
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid_argument(format!("the {what} id is too long for the name of a directory; shorten it to 191 bytes")));
    }
    Ok(name)
}

/// Returns the id of a directory; `None` if no id has this name.
pub(super) fn id_of(what: &str, name: &str) -> Option<String> {
    match decoded(what, name) {
        Some(id) => Some(id),
        None => (is_plain(name) && check_id(what, name).is_ok()).then(|| name.to_owned()),
    }
}

/// Returns whether AgentScope uses an id as a name without encoding it.
fn is_plain(id: &str) -> bool {
    id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Decodes a name that AgentScope encoded. `None` for other names.
fn decoded(what: &str, name: &str) -> Option<String> {
    let id = String::from_utf8(URL_SAFE_NO_PAD.decode(name).ok()?).ok()?;
    (!is_plain(&id) && !is_blank(&id) && check_id(what, &id).is_ok()).then_some(id)
}

/// Returns the name of one of a key's files.
pub(super) fn file_name(key: &str, suffix: &str) -> Result<String> {
    check_key(key)?;
    if key.contains('/') {
        return Err(Error::invalid_argument(format!("the key `{key}` holds a `/`, which would lead to another directory; rename it")));
    }
    if key.len() + LIST.len() > NAME_BYTES_MAX {
        return Err(Error::invalid_argument("the key is too long for the name of a file; shorten it to 249 bytes"));
    }
    Ok(format!("{key}{suffix}"))
}

/// Returns whether a session's directory with these entries has any value.
pub(super) fn has_state(entries: &[String]) -> bool {
    entries.iter().any(|entry| state_key(entry).is_some())
}

/// Returns the key that a file belongs to.
pub(super) fn state_key(entry: &str) -> Option<StateKey> {
    let (single, list) = (entry.strip_suffix(SINGLE), entry.strip_suffix(LIST));
    let key = single.map(str::to_owned).map(StateKey::Single).or(list.map(str::to_owned).map(StateKey::List))?;
    let (StateKey::Single(name) | StateKey::List(name)) = &key;
    check_key(name).is_ok().then_some(key)
}
