//! The location and form of each row.
//!
//! Every row of a user is in the user's partition, so one commit may change any of it. Two lists are elsewhere: the users of an agent, in the
//! partition of the tenant, and the [schedule](crate::schedule) of sweeps. `docs/design/agent-state.md` has the map.
//!
//! Every row starts with a check sum of what follows, so that a damaged row is reported and never used.

use crate::owner::{BundleOwner, of_tenant, of_user};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{row, stored};
use treehold_store::proof::Proof;
use treehold_store::{Namespace, escape_key, unescape_key};
use uuid::Uuid;

/// The users that have sessions of an agent.
pub(crate) fn users_of(tenant: &str, agent: &str) -> Result<Namespace> {
    of_tenant(tenant, ["directory", agent])
}

/// Whose rows: those of a user of a tenant, for one agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) tenant: String,
    /// `None` is the anonymous user.
    pub(crate) user: Option<String>,
    pub(crate) agent: String,
}

impl Owner {
    fn beneath<const N: usize>(&self, components: [&str; N]) -> Result<Namespace> {
        of_user(&self.tenant, self.user.as_deref(), ["agents", &*self.agent].into_iter().chain(components))
    }

    /// The owner of the rows that the parts of a bundle keep for the same user and agent.
    pub(crate) fn bundle(&self) -> Result<BundleOwner> {
        match &self.user {
            Some(user) => BundleOwner::of_user(&self.tenant, user, &self.agent),
            None => BundleOwner::anonymous(&self.tenant, &self.agent),
        }
    }

    /// The rows of sessions, the heads of their values, the last versions of deleted values, and the owner's proofs.
    pub(crate) fn states(&self) -> Result<Namespace> {
        self.beneath(["states"])
    }

    /// The data that is to be removed, and the sessions that may have expired, by the time of the visit that does it.
    pub(crate) fn due(&self) -> Result<Namespace> {
        self.beneath(["due"])
    }

    /// Returns the proof that the directory has the user. Every session needs it.
    pub(crate) fn directory_proof(&self) -> Result<Proof> {
        Ok(Proof::new(self.states()?, "p\u{1}directory", users_of(&self.tenant, &self.agent)?, self.user_key(), ""))
    }

    /// All logs of a session.
    pub(crate) fn data(&self, data: &str) -> Result<Namespace> {
        self.beneath(["data", data])
    }

    /// One log: the messages of a value.
    pub(crate) fn log(&self, data: &str, log: &str) -> Result<Namespace> {
        self.beneath(["data", data, log])
    }

    /// A segment of a log with a namespace of its own.
    pub(crate) fn segment(&self, data: &str, log: &str, segment: &str) -> Result<Namespace> {
        self.beneath(["data", data, log, segment])
    }

    /// The namespace of a segment; without one, that of the log.
    pub(crate) fn log_of(&self, data: &str, log: &str, segment: Option<&str>) -> Result<Namespace> {
        match segment {
            Some(segment) => self.segment(data, log, segment),
            None => self.log(data, log),
        }
    }

    /// Checks that the longest names that the sessions of this owner will need are allowed.
    pub(crate) fn check(&self) -> Result<()> {
        let id = new_id();
        self.segment(&id, &id, &id).map(drop)
    }

    /// The key of the user in the directory: the anonymous one first.
    pub(crate) fn user_key(&self) -> String {
        self.user.as_ref().map_or_else(|| "a".to_owned(), |user| format!("u{user}"))
    }
}

/// Reads a key of the directory of users.
pub(crate) fn user_of_key(key: &str) -> Option<Option<String>> {
    if key == "a" { Some(None) } else { key.strip_prefix('u').map(|user| Some(user.to_owned())) }
}

/// Makes an id for data that is never reused.
pub(crate) fn new_id() -> String {
    Uuid::new_v4().simple().to_string()
}

/// The form of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Form {
    #[serde(rename = "s")]
    Single,
    #[serde(rename = "l")]
    List,
}

impl Form {
    pub(crate) const ALL: [Self; 2] = [Self::Single, Self::List];

    fn letter(self) -> char {
        match self {
            Self::Single => 's',
            Self::List => 'l',
        }
    }
}

/// The prefix of the keys of sessions. No id contains the separator.
pub(crate) const SESSIONS: &str = "s\u{1}";

pub(crate) fn session_key(session: &str) -> String {
    format!("{SESSIONS}{session}")
}

/// The prefix of the keys of a session's heads.
pub(crate) fn heads_prefix(session: &str) -> String {
    format!("h\u{1}{session}\u{1}")
}

pub(crate) fn head_key(session: &str, form: Form, key: &str) -> String {
    format!("{}{}{}", heads_prefix(session), form.letter(), escape_key(key))
}

/// Reads the form and key from the end of a head's key.
pub(crate) fn read_head_key(rest: &str) -> Result<(Form, String)> {
    let bad = || Error::new(ErrorKind::Corrupt, "the key of a stored state cannot be read");
    let form = Form::ALL.into_iter().find(|form| rest.starts_with(form.letter())).ok_or_else(bad)?;
    let key = unescape_key(&rest[1..]).map_err(|error| bad().with_source(error))?;
    Ok((form, key))
}

/// The last version of any value of a deleted session.
pub(crate) fn session_floor_key(session: &str) -> String {
    format!("f\u{1}{session}")
}

/// The last version of a deleted value.
pub(crate) fn floor_key(session: &str, form: Form, key: &str) -> String {
    format!("f\u{1}{session}\u{1}{}{}", form.letter(), escape_key(key))
}

/// Returns the key of a position of a log.
pub(crate) fn position_key(position: u64) -> String {
    format!("{position:020}")
}

/// Returns a time in milliseconds since 1970 as the beginning of a key.
pub(crate) fn time_key(at: i64) -> String {
    position_key(at.max(0).unsigned_abs())
}

/// Returns the time at the beginning of a key.
pub(crate) fn time_of(key: &str) -> Option<i64> {
    key.get(..20).and_then(|digits| digits.parse().ok())
}

/// Makes the error for a row that no writer makes.
pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the stored {what} is damaged; restore it from a backup or delete it"))
}

/// The length of a check sum in bytes.
const SUM_BYTES: usize = 16;

fn sum(body: &[u8]) -> String {
    blake3::hash(body).to_hex()[..SUM_BYTES].to_owned()
}

/// Puts the check sum before a text.
pub(crate) fn seal(body: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(SUM_BYTES + body.len());
    sealed.extend_from_slice(sum(body).as_bytes());
    sealed.extend_from_slice(body);
    sealed
}

/// Checks and removes the check sum.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt), naming `what` the row is.
pub(crate) fn unseal(what: &str, sealed: &Bytes) -> Result<Bytes> {
    if sealed.len() < SUM_BYTES {
        return Err(corrupt(what));
    }
    let body = sealed.slice(SUM_BYTES..);
    if sealed[..SUM_BYTES] != *sum(&body).as_bytes() {
        return Err(corrupt(what));
    }
    Ok(body)
}

pub(crate) fn sealed_row<T: Serialize>(value: &T) -> Vec<u8> {
    seal(&row(value))
}

pub(crate) fn unsealed_row<T: DeserializeOwned>(what: &str, sealed: &Bytes) -> Result<T> {
    stored(what, &unseal(what, sealed)?)
}

/// The meta of the row of a session. The row exists as long as the session: all of it is absent without the row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionRow {
    /// The component above the session's logs. A session that is created again gets another one.
    pub(crate) data: String,
    /// The number of its heads. Creating or deleting one replaces this row, so that no change of the others goes unnoticed.
    pub(crate) keys: u64,
    /// Whether a row says when to look whether it has expired.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) due: bool,
}

/// The meta of a head, which is all that a check of the version reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeadMeta {
    pub(crate) version: u64,
    /// The data of its session. A head of other data is absent.
    pub(crate) data: String,
    /// The log that holds its messages, if it ever had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<String>,
}

/// How long the last version of a deleted value is kept, so that a writer who loaded it cannot replace a later value of the same key.
pub(crate) const FLOOR_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The last version of a deleted value or session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Floor {
    pub(crate) version: u64,
}

/// A step of the sweeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Due {
    pub(crate) owner: Owner,
    pub(crate) session: String,
    pub(crate) data: String,
    pub(crate) task: Task,
}

/// What a step of the sweeper does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Task {
    /// Looks whether the session has expired, and then removes it.
    Expire,
    /// Removes all logs of a deleted session.
    RemoveData,
    /// Removes the log of a deleted value.
    RemoveLog(String),
    /// Ends a save that wrote messages to a segment of a log and never wrote its head. While this row exists, the save may go on.
    EndStage(String, String),
    /// Removes a segment of a log.
    RemoveSegment(String, String),
}

impl Due {
    /// Returns the key, which begins with the time of the visit.
    pub(crate) fn key(&self, visit: i64) -> String {
        let Self { session, data, .. } = self;
        let task = match &self.task {
            Task::Expire => "expire".to_owned(),
            Task::RemoveData => "data".to_owned(),
            Task::RemoveLog(log) => format!("log\u{1}{log}"),
            Task::EndStage(_, segment) => format!("stage\u{1}{segment}"),
            Task::RemoveSegment(_, segment) => format!("segment\u{1}{segment}"),
        };
        format!("{}\u{1}{session}\u{1}{data}\u{1}{task}", time_key(visit))
    }
}
