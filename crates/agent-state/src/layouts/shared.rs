//! What all layouts share: the refusal of ids that could be mistaken for others, and pages.

#[cfg(any(feature = "mysql", feature = "redis"))]
use crate::contract::{Expected, StateVersion};
use crate::contract::{Fence, UserPage};
use crate::slot::StateSlot;
use std::collections::BTreeSet;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::scope::check_id;

/// The name that AgentScope gives to the absent user.
pub(super) const ANONYMOUS: &str = "__anon__";

/// The most sessions or users of a page.
pub(super) const PAGE_MAX: usize = 1_000;

/// The most keys of a session that are listed.
pub(super) const KEYS_MAX: usize = 10_000;

/// Refuses ids that every layout would mix up.
pub(super) fn check_slot(slot: &StateSlot) -> Result<()> {
    check_user(slot.user())?;
    if is_blank(slot.session()) {
        return Err(Error::invalid_argument("the session id is white space; AgentScope refuses it, choose another one"));
    }
    Ok(())
}

/// Refuses users that every layout would take for the absent one.
pub(super) fn check_user(user: Option<&str>) -> Result<()> {
    if let Some(user) = user {
        check_id("user", user)?;
    }
    match user {
        Some(ANONYMOUS) => Err(mixed_up("user", ANONYMOUS, "is AgentScope's name of the anonymous user")),
        Some(user) if is_blank(user) => Err(mixed_up("user", user, "is white space, which AgentScope takes for the anonymous user")),
        _ => Ok(()),
    }
}

/// Refuses keys that no layout can hold.
pub(super) fn check_key(key: &str) -> Result<()> {
    let problem = match key {
        blank if is_blank(blank) => "is empty; name one",
        long if long.len() > 255 => "is over 255 bytes; shorten it",
        bad if bad.chars().any(char::is_control) => "holds a control character; remove it",
        _ => return Ok(()),
    };
    Err(Error::invalid_argument(format!("the key of the state {problem}")))
}

/// Returns whether a text has only characters that Java counts as white space.
pub(super) fn is_blank(text: &str) -> bool {
    text.chars().all(|character| character.is_whitespace() && !matches!(character, '\u{85}' | '\u{a0}' | '\u{2007}' | '\u{202f}'))
}

/// Makes the error for an id that shares its stored name with another one.
pub(super) fn mixed_up(what: &str, id: &str, why: &str) -> Error {
    Error::invalid_argument(format!("the {what} id `{id}` {why}; this layout cannot tell the two apart, choose another id"))
}

/// Returns the name of a user in a layout.
pub(super) fn name_of(user: Option<&str>) -> &str {
    user.unwrap_or(ANONYMOUS)
}

/// Returns the user that a name in a layout stands for; `None` is the anonymous one.
pub(super) fn user_of(name: &str) -> Option<String> {
    (name != ANONYMOUS).then(|| name.to_owned())
}

/// Refuses fences, which no layout can check.
pub(super) fn check_fence(fence: Option<&Fence>) -> Result<()> {
    if fence.is_some() {
        let message = "this layout cannot check a fence in the commit of a save or deletion; keep the states in a treehold store";
        return Err(Error::unsupported(message));
    }
    Ok(())
}

/// Refuses conditions on lists.
#[cfg(any(feature = "mysql", feature = "redis"))]
pub(super) fn check_list_expected(expected: Expected) -> Result<()> {
    if expected != Expected::Any {
        return Err(Error::unsupported("lists have no versions in this layout; leave out the expected version"));
    }
    Ok(())
}

/// Refuses values over the limit.
pub(super) fn check_bytes(bytes: usize, bytes_max: usize) -> Result<()> {
    if bytes > bytes_max {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("the value has {bytes} bytes, over the limit of {bytes_max}; raise the limit or store less"),
        ));
    }
    Ok(())
}

/// Makes the error for a session with more keys than are listed.
pub(super) fn too_many_keys() -> Error {
    Error::new(ErrorKind::TooLarge, format!("the session has over {KEYS_MAX} keys, the most that are listed"))
}

/// Returns the version of a value without one.
#[cfg(any(feature = "mysql", feature = "redis"))]
pub(super) fn uncounted() -> StateVersion {
    StateVersion::new(super::UNCOUNTED_VERSION).expect("the number is not 0")
}

/// Parses a stored value.
pub(super) fn parse_stored(slot: &StateSlot, key: &str, bytes: &[u8]) -> Result<Json> {
    Json::from_bytes(bytes).map_err(|error| {
        Error::new(ErrorKind::Corrupt, format!("the stored `{key}` of the {slot} is not JSON; restore it, or delete it")).with_source(error)
    })
}

/// Returns how many ids a page may have.
pub(super) fn page_limit(limit: usize) -> usize {
    limit.clamp(1, PAGE_MAX)
}

/// Keeps the first ids of a page in order, and one more, from any number of ids in any order.
pub(super) struct Smallest {
    limit: usize,
    ids: BTreeSet<String>,
}

impl Smallest {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: page_limit(limit), ids: BTreeSet::new() }
    }

    /// Returns whether an id would be kept.
    pub(super) fn wants(&self, id: &str) -> bool {
        self.ids.len() <= self.limit || self.ids.last().is_some_and(|last| id < last.as_str())
    }

    pub(super) fn insert(&mut self, id: String) {
        if self.wants(&id) && self.ids.insert(id) && self.ids.len() > self.limit + 1 {
            self.ids.pop_last();
        }
    }

    /// Returns the ids of the page, and where the next one starts.
    pub(super) fn into_page(mut self) -> (Vec<String>, Option<String>) {
        let is_more = self.ids.len() > self.limit;
        if is_more {
            self.ids.pop_last();
        }
        let ids: Vec<String> = self.ids.into_iter().collect();
        let next = if is_more { ids.last().cloned() } else { None };
        (ids, next)
    }
}

/// Makes a page of users. `named` are the smallest named users after the cursor; the anonymous one comes before them.
///
/// The cursor after the anonymous user is the empty text, which no user's id is.
pub(super) fn user_page(named: Smallest, has_anonymous: bool, after: Option<&str>) -> UserPage {
    let limit = named.limit;
    let (ids, mut next) = named.into_page();
    let mut users: Vec<Option<String>> = ids.into_iter().map(Some).collect();
    if after.is_none() && has_anonymous {
        users.insert(0, None);
        if users.len() > limit {
            users.truncate(limit);
            next = Some(users.last().cloned().flatten().unwrap_or_default());
        }
    }
    UserPage { users, next }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_the_smallest_ids_and_end_where_they_should() {
        for count in 0..6_usize {
            for limit in 1..6_usize {
                let mut smallest = Smallest::new(limit);
                for id in (0..count).rev() {
                    smallest.insert(format!("id{id}"));
                }
                let (ids, next) = smallest.into_page();
                let expected: Vec<String> = (0..count.min(limit)).map(|id| format!("id{id}")).collect();
                assert_eq!(ids, expected, "{limit} of {count}");
                assert_eq!(next, (count > limit).then(|| format!("id{}", limit - 1)), "{limit} of {count}");
            }
        }
    }

    #[test]
    fn users_page_through_with_the_anonymous_one_first() {
        for limit in 1..5 {
            for has_anonymous in [false, true] {
                let (mut after, mut seen): (Option<String>, Vec<Option<String>>) = (None, Vec::new());
                loop {
                    let mut named = Smallest::new(limit);
                    for user in ["ada", "bob", "cyd"] {
                        if after.as_deref().is_none_or(|after| user > after) {
                            named.insert(user.to_owned());
                        }
                    }
                    let page = user_page(named, has_anonymous, after.as_deref());
                    assert!(page.users.len() <= limit && (!page.users.is_empty() || page.next.is_none()));
                    seen.extend(page.users);
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
                let named = ["ada", "bob", "cyd"].map(|user| Some(user.to_owned()));
                let expected: Vec<_> = has_anonymous.then_some(None).into_iter().chain(named).collect();
                assert_eq!(seen, expected, "pages of {limit}");
            }
        }
    }

    #[test]
    fn white_space_is_that_of_java() {
        for blank in ["", " ", "\t", "\u{2003}", " \u{3000}"] {
            assert!(is_blank(blank), "{blank:?}");
        }
        for visible in ["a", "\u{a0}", "\u{2007}", " x "] {
            assert!(!is_blank(visible), "{visible:?}");
        }
    }
}
