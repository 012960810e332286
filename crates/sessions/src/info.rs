//! The identity and description of a session.

use crate::usage::SessionContextUsage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use treehold_core::error::{Error, Result};
use treehold_core::escape::{escape, unescape};
use treehold_core::json::Json;
use treehold_core::ops::Version;
use treehold_core::scope::check_id;

/// The description of a session, which is read without its messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session.
    pub session_id: String,
    /// The tenant that it belongs to.
    pub tenant_id: String,
    /// The user that it belongs to.
    pub user_id: String,
    /// The agent that the user talks to.
    pub agent_id: String,
    /// The title, if set.
    pub title: Option<String>,
    /// When it was created, in milliseconds since 1970.
    pub created_at: i64,
    /// When it was last appended to, in milliseconds since 1970.
    pub updated_at: i64,
}

/// A session with its last turn and its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SessionDescription {
    /// The description.
    #[serde(flatten)]
    pub info: SessionInfo,
    /// How full the model's context was at the last turn; `None` before the first turn.
    pub last_context_usage: Option<SessionContextUsage>,
    /// The version, which every change of the conversation replaces.
    #[serde(skip)]
    pub version: Version,
}

/// A page of a session's turns.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct TurnPage {
    /// The turns, as they were recorded.
    pub turns: Vec<Json>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<u64>,
}

/// One line of a list of sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SessionMeta {
    /// The session.
    pub session_id: String,
    /// When it was last appended to, in milliseconds since 1970.
    pub updated_at: i64,
}

/// A page of a user's sessions, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<SessionMeta>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<String>,
}

/// A session of a tenant as one opaque text, for hosts that pass it around.
///
/// ```
/// use treehold_sessions::SessionRef;
///
/// let session = SessionRef::new("a:b", "c")?;
/// assert_ne!(session.to_string(), SessionRef::new("a", "b:c")?.to_string());
/// assert_eq!(session.to_string().parse::<SessionRef>()?, session);
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionRef {
    tenant: String,
    session: String,
}

impl SessionRef {
    /// Makes a reference.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for an id that cannot name a tenant or session.
    pub fn new(tenant: impl Into<String>, session: impl Into<String>) -> Result<Self> {
        let (tenant, session) = (tenant.into(), session.into());
        check_id("tenant", &tenant)?;
        check_id("session", &session)?;
        Ok(Self { tenant, session })
    }

    /// Returns the tenant.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns the session.
    pub fn session(&self) -> &str {
        &self.session
    }
}

impl fmt::Display for SessionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |id: &str| escape(id, |character| character == ':');
        write!(f, "{}:{}", part(&self.tenant), part(&self.session))
    }
}

impl FromStr for SessionRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid_argument(format!("`{}` is not a reference to a session", text.escape_debug()));
        let (tenant, session) = text.split_once(':').filter(|(_, session)| !session.contains(':')).ok_or_else(bad)?;
        let part = |part| unescape(part).ok_or_else(bad);
        Self::new(part(tenant)?, part(session)?)
    }
}

impl Serialize for SessionRef {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(|error: Error| serde::de::Error::custom(error.message()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_to_different_sessions_never_collide() {
        let ids = ["a", "a:b", "b:c", "c", ":", "%", "%3A", "a%3Ab", "é/ü", " ", "a b"];
        let mut texts = std::collections::BTreeSet::new();
        for tenant in ids {
            for session in ids {
                let one = SessionRef::new(tenant, session).expect("legal");
                assert_eq!(one.to_string().parse::<SessionRef>().expect("it parses its own text"), one);
                assert!(texts.insert(one.to_string()), "{one}");
            }
        }
        assert_eq!(SessionRef::new("default", "abc-1").expect("legal").to_string(), "default:abc-1");
        for bad in ["", "a", ":", "a:", ":b", "a:b:c", "a:%", "a:%00"] {
            assert!(bad.parse::<SessionRef>().is_err(), "{bad}");
        }
    }
}
