//! The location of each row, and the head of a trace.
//!
//! Every row of a user is in the user's own partition. Three small directories are elsewhere: the user of each trace of a tenant, the data
//! that remains to be removed, and imports. [Intents](treehold_store::intent) keep them in step. `docs/design/traces.md` has the map.

use super::path::Path;
use crate::id::{TraceAddress, TraceId};
use crate::model::{OtherFields, Trace, TraceMode, TraceStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{Json, row, stored};
use treehold_core::ops::Version;
use treehold_core::reserved::{RESERVED_ROOT, TRACES};
use treehold_store::{Batch, Namespace, Partition, Store};
use uuid::Uuid;

/// The traces of a tenant: the user of each. It is in the partition of the tenant, and an entry may be left without a trace.
pub(super) fn directory(tenant: &str) -> Result<Namespace> {
    Partition::new([tenant])?.namespace(TRACES)
}

/// The data that remains to be removed. No tenant can have this name.
pub(super) fn removals() -> Namespace {
    Namespace::new(TRACES.into_iter().chain([RESERVED_ROOT, "removals"])).expect("four plain components")
}

/// The row of a trace in its tenant's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DirectoryRow {
    pub(super) user: String,
}

/// A user of a tenant, with everything of the user beneath.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct UserRows {
    pub(super) tenant: String,
    pub(super) user: String,
}

impl UserRows {
    fn beneath<const N: usize>(&self, components: [&str; N]) -> Result<Namespace> {
        Partition::new([&self.tenant, &self.user])?.namespace(TRACES.into_iter().chain(components))
    }

    /// Traces that are about to be created or deleted.
    pub(super) fn intents(&self) -> Result<Namespace> {
        self.beneath(["intents"])
    }

    /// Two rows for each trace: its head and its description.
    pub(super) fn traces(&self) -> Result<Namespace> {
        self.beneath(["traces"])
    }

    /// The traces by time, newest first.
    pub(super) fn recent(&self) -> Result<Namespace> {
        self.beneath(["recent"])
    }

    /// How many traces there are of each status and mode.
    pub(super) fn counts(&self) -> Result<Namespace> {
        self.beneath(["counts"])
    }

    /// Everything of one trace but its head and description.
    pub(super) fn data(&self, data: &str) -> Result<Namespace> {
        self.beneath(["data", data])
    }

    /// One kind of a trace's rows.
    pub(super) fn part(&self, data: &str, part: Part) -> Result<Namespace> {
        self.beneath(["data", data, part.name()])
    }
}

/// The kinds of a trace's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Messages by sequence. The meta of each has its path.
    Messages,
    /// The sequence of each message whose id is not the default one.
    MessageIds,
    /// The messages of each goal.
    GoalMessages,
    /// The goal tree, and what the messages of each goal took.
    Goals,
    /// Events by id.
    Events,
    /// What was added under each idempotency key.
    Keys,
    /// The claim of the process that runs the trace.
    Run,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::MessageIds => "message-ids",
            Self::GoalMessages => "goal-messages",
            Self::Goals => "goals",
            Self::Events => "events",
            Self::Keys => "keys",
            Self::Run => "run",
        }
    }
}

/// The key, beneath a trace's data, of the row that exists as long as the trace.
pub(super) const LIVE: &str = "live";

/// Returns the key of a sequence or event id.
pub(super) fn position_key(position: u64) -> String {
    format!("{position:020}")
}

/// Returns the key of a trace's head. No id contains the separator.
pub(super) fn head_key(id: &TraceId) -> String {
    format!("{id}\u{1}head")
}

/// Returns the key of a trace's description.
pub(super) fn description_key(id: &TraceId) -> String {
    format!("{id}\u{1}description")
}

/// The head of a trace: one small row that every change of the trace replaces, on the condition of the version that it was planned on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    /// The component above the trace's data. A trace that is created again after its deletion gets another one.
    pub(super) data: String,
    pub(super) mode: TraceMode,
    pub(super) status: TraceStatus,
    /// In microseconds since 1970.
    pub(super) created_at: i64,
    /// In microseconds since 1970.
    pub(super) completed_at: Option<i64>,
    /// The sequence of the newest message, and the number of messages.
    pub(super) last_sequence: u64,
    pub(super) last_event_id: u64,
    pub(super) total_tokens: u64,
    pub(super) total_cost: f64,
    pub(super) total_duration_ms: u64,
    pub(super) current_goal_id: Option<String>,
    /// The path to the head; empty without one.
    pub(super) path: Path,
}

impl Head {
    /// Reads a row.
    pub(super) fn read(value: &[u8]) -> Result<Self> {
        let head: Self = stored("trace", value)?;
        if !head.path.is_descending() || head.sequence() > head.last_sequence {
            return Err(corrupt("the path of a stored trace cannot be read; restore a backup"));
        }
        Ok(head)
    }

    /// Returns the sequence at which the main path ends, 0 without messages.
    pub(super) fn sequence(&self) -> u64 {
        self.path.end().unwrap_or(0)
    }

    /// Returns whether a message has this sequence.
    pub(super) fn has(&self, sequence: u64) -> bool {
        (1..=self.last_sequence).contains(&sequence)
    }

    /// Returns the name of what [`counts`](UserRows::counts) counts it as.
    pub(super) fn kind(&self) -> String {
        kind(self.status, self.mode)
    }
}

pub(super) fn kind(status: TraceStatus, mode: TraceMode) -> String {
    format!("{status} {mode}")
}

/// The fields of a trace that messages do not change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) task: Option<String>,
    pub(super) parent_trace_id: Option<TraceAddress>,
    pub(super) parent_goal_id: Option<String>,
    pub(super) agent_type: Option<String>,
    pub(super) run_config: Option<Json>,
    pub(super) other: OtherFields,
}

/// A head as it was read, with its version.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    pub(super) head: Head,
    pub(super) version: Version,
}

/// Returns the beginning of the keys of intents to create a trace. No id contains the separator.
pub(super) fn creations(id: &TraceId) -> String {
    format!("create\u{1}{id}\u{1}")
}

/// Makes a key of an intent, which no other has.
pub(super) fn new_key(prefix: &str) -> String {
    format!("{prefix}{}", Uuid::new_v4().simple())
}

/// Reads a head. Cost: one round trip.
pub(super) async fn open(store: &dyn Store, rows: &UserRows, id: &TraceId) -> Result<Option<Opened>> {
    let found = store.get(&rows.traces()?, &head_key(id)).await?;
    found.map(|item| Ok(Opened { head: Head::read(&item.value)?, version: item.version })).transpose()
}

/// Assembles a trace from its two rows.
pub(super) fn trace_of(user: &str, id: &TraceId, head: &Head, description: Description) -> Trace {
    let Description { task, parent_trace_id, parent_goal_id, agent_type, run_config, other } = description;
    Trace {
        trace_id: id.clone().into(),
        mode: head.mode,
        task,
        parent_trace_id,
        parent_goal_id,
        agent_type,
        uid: Some(user.to_owned()),
        status: head.status,
        total_messages: head.last_sequence,
        total_tokens: head.total_tokens,
        total_cost: head.total_cost,
        total_duration_ms: head.total_duration_ms,
        last_sequence: head.last_sequence,
        last_event_id: head.last_event_id,
        current_goal_id: head.current_goal_id.clone(),
        head_sequence: head.sequence(),
        created_at: Some(time_text(head.created_at)),
        completed_at: head.completed_at.map(time_text),
        run_config,
        remote: false,
        stale: false,
        other,
    }
}

/// Returns a time in ISO 8601.
pub(super) fn time_text(microsecond: i64) -> String {
    Timestamp::from_microsecond(microsecond).unwrap_or(Timestamp::MAX).to_string()
}

/// The data of a deleted trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Removal {
    pub(super) tenant: String,
    pub(super) user: String,
    pub(super) trace: TraceAddress,
    pub(super) data: String,
}

impl Removal {
    /// Returns the key. No id contains the separator.
    pub(super) fn key(&self) -> String {
        format!("{}\u{1}{}\u{1}{}", self.tenant, self.user, self.data)
    }

    pub(super) fn rows(&self) -> UserRows {
        UserRows { tenant: self.tenant.clone(), user: self.user.clone() }
    }

    /// Returns the beginning of the keys of intents to delete the trace.
    pub(super) fn deletions(&self) -> String {
        format!("delete\u{1}{}\u{1}", self.data)
    }

    pub(super) fn put(&self, batch: Batch) -> Batch {
        batch.put(&removals(), self.key(), row(self))
    }
}

/// Commits a batch. Returns the versions, or `None` if a condition did not hold.
pub(super) async fn commit(store: &dyn Store, batch: Batch) -> Result<Option<Vec<Version>>> {
    match store.commit(batch).await {
        Ok(versions) => Ok(Some(versions)),
        Err(error) if error.kind() == ErrorKind::Conflict => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the error for rows that contradict each other.
pub(super) fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}
