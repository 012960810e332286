//! The trace of a session: what happened in its runs, as envelopes in a log.
//!
//! The order is that of the log, which the store assigns. The `sequence` of an envelope starts again with each request of
//! the host, so it is stored but not used.

use crate::info::SessionRef;
use crate::kept::Kept;
use crate::live::{Committed, LiveSession, Unreadable};
use crate::once::{KeyUse, Once};
use crate::rows::{self, Part};
use crate::sessions::Sessions;
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
#[cfg(doc)]
use treehold_core::error::ErrorKind;
use treehold_core::error::Result;
use treehold_core::ops::Version;
use treehold_store::Batch;

/// The name of a row in messages.
const ENVELOPE: &str = "envelope of a trace";

/// An envelope of the trace, with its original text.
pub type Envelope = Kept<EnvelopeFields>;

/// The fields of an envelope that the store reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvelopeFields {
    /// The id: the source, a time and a number.
    pub id: String,
    /// When it was created, as an ISO 8601 text.
    pub timestamp: String,
    /// The number that its source gave it.
    pub sequence: f64,
    /// Its source: `runtime`, `orchestration` or `host`.
    pub source: String,
    /// The event.
    pub event: EventFields,
}

/// The fields of an envelope's event that the store reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TraceEventFields")]
pub struct EventFields {
    /// The kind of event.
    #[serde(rename = "type")]
    pub kind: String,
}

/// An envelope with its position.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TraceEntry {
    /// Its position: positions rise, and are never used twice.
    pub position: Version,
    /// The envelope.
    pub envelope: Envelope,
}

/// A page of a trace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct TracePage {
    /// The envelopes in order.
    pub entries: Vec<TraceEntry>,
    /// Whether more follow.
    pub more: bool,
}

/// The trace of one session.
#[async_trait]
pub trait SessionTraceStore: Send + Sync {
    /// Appends an envelope. Returns its position, or `None` for an event that is never stored, see [`is_stored`].
    ///
    /// # Errors
    /// Those of the implementation.
    async fn append_envelope(&self, envelope: &Envelope) -> Result<Option<Version>>;

    /// Returns all envelopes in order; empty for an unknown session.
    ///
    /// # Errors
    /// Those of the implementation.
    async fn load_envelopes(&self) -> Result<Vec<Envelope>>;
}

/// Returns whether events of a kind are stored. Kinds that stream, such as the parts of an answer while a model writes it,
/// are not.
pub fn is_stored(kind: &str) -> bool {
    let is_listed = matches!(
        kind,
        "agent_start"
            | "agent_end"
            | "turn_start"
            | "turn_end"
            | "tool_execution_start"
            | "tool_execution_end"
            | "skill_start"
            | "skill_end"
            | "waiting_for_user_input"
            | "context_compaction_start"
            | "context_compaction_end"
            | "error"
            | "orchestration_run_start"
            | "orchestration_run_complete"
            | "wait_registered"
            | "wait_resolved"
            | "tool.before"
            | "tool.after"
    );
    let is_family = ["subagent_", "session.", "turn.", "message."].iter().any(|family| kind.starts_with(family));
    let streams = ["_delta", ".delta", "_update", ".update"].iter().any(|end| kind.ends_with(end));
    is_listed || (is_family && !streams)
}

/// The trace of one session in the store of [`Sessions`]. It caches the location of the session's rows.
#[derive(Debug)]
pub struct StoredTrace {
    live: LiveSession,
}

impl Sessions {
    /// Opens the trace of a session. Hosts keep it for as long as they serve the session.
    pub fn trace(&self, session: SessionRef) -> StoredTrace {
        StoredTrace { live: LiveSession::new(self.clone(), session) }
    }
}

/// What an append with an idempotency key did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppendedEnvelope {
    /// The position of the envelope, or `None` for an event that is never stored, see [`is_stored`].
    pub position: Option<Version>,
    /// What the key did.
    pub key: KeyUse,
}

impl StoredTrace {
    /// Appends an envelope once for an idempotency key. A client that lost the answer repeats the call with the same key.
    ///
    /// Cost: two round trips, once the session was found.
    ///
    /// # Errors
    /// As [`SessionTraceStore::append_envelope`]; [`InvalidArgument`](ErrorKind::InvalidArgument) for a key that is empty, longer than
    /// [`IDEMPOTENCY_KEY_BYTES_MAX`](crate::IDEMPOTENCY_KEY_BYTES_MAX), or used for another write (the source is
    /// [`KeyReused`](crate::KeyReused)).
    pub async fn append_once(&self, envelope: &Envelope, key: &str) -> Result<AppendedEnvelope> {
        let once = Once::new(key, ["envelope", envelope.json().as_str()])?;
        let sessions = self.live.sessions();
        if !is_stored(&envelope.event.kind) {
            return Ok(AppendedEnvelope { position: None, key: KeyUse::default() });
        }
        sessions.check_size("envelope", envelope.json().as_str().len())?;
        match self.live.commit_once(&once, |batch, head| planned(batch, head, envelope)).await? {
            Committed::Now(versions) => Ok(AppendedEnvelope { position: versions.first().copied(), key: Once::used(sessions) }),
            Committed::Earlier(earlier) => {
                let position = self.live.position_after(earlier.version, |head| head.part(Part::Trace)).await?;
                Ok(AppendedEnvelope { position, key: earlier.key_use() })
            }
        }
    }

    /// Returns all envelopes in order.
    ///
    /// # Errors
    /// Those of [`LiveSession::whole_log`].
    pub(crate) async fn envelopes(&self, unreadable: Unreadable) -> Result<Vec<Envelope>> {
        self.live.whole_log(ENVELOPE, |head| head.part(Part::Trace), unreadable).await
    }

    /// Returns a page of the trace after a position.
    ///
    /// Cost: one round trip, once the session was found.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for a row that cannot be read, and errors of the store.
    pub async fn page(&self, after: Option<Version>, limit: usize) -> Result<TracePage> {
        let (entries, more) = self.live.log_page(ENVELOPE, |head| head.part(Part::Trace), after, limit).await?;
        let entries = entries.into_iter().map(|(position, envelope)| TraceEntry { position, envelope }).collect();
        Ok(TracePage { entries, more })
    }
}

#[async_trait]
impl SessionTraceStore for StoredTrace {
    /// Cost: one round trip, once the session was found.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown session, [`TooLarge`](ErrorKind::TooLarge) for an envelope over the
    /// limit, and errors of the store.
    async fn append_envelope(&self, envelope: &Envelope) -> Result<Option<Version>> {
        if !is_stored(&envelope.event.kind) {
            return Ok(None);
        }
        self.live.sessions().check_size("envelope", envelope.json().as_str().len())?;
        Ok(self.live.commit(|head| planned(Batch::new(), head, envelope)).await?.first().copied())
    }

    async fn load_envelopes(&self) -> Result<Vec<Envelope>> {
        self.envelopes(Unreadable::Refuse).await
    }
}

/// Adds an envelope to a commit.
fn planned(batch: Batch, head: &rows::Head, envelope: &Envelope) -> Result<Batch> {
    let mut batch = batch.append(&head.part(Part::Trace)?, envelope.json().as_str().to_owned(), None);
    if envelope.event.kind == "error" {
        batch = mark_error(batch, head)?;
    }
    Ok(batch)
}

/// Adds the mark that the trace of a session has an error.
pub(crate) fn mark_error(batch: Batch, head: &rows::Head) -> Result<Batch> {
    Ok(batch.put(&head.user_rows().trace_errors()?, &head.data, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_parts_are_not_stored() {
        let stored = "agent_start agent_end turn_start turn_end tool_execution_start tool_execution_end skill_start skill_end \
                      waiting_for_user_input context_compaction_start context_compaction_end error orchestration_run_start \
                      orchestration_run_complete subagent_spawned subagent_status subagent_job_started subagent_job_completed \
                      subagent_job_failed subagent_message subagent_closed wait_registered wait_resolved turn.completed \
                      message.created tool.before tool.after session.later";
        for kind in stored.split(' ') {
            assert!(is_stored(kind), "{kind}");
        }
        for kind in ["text_delta", "message.delta", "message.update", "tool_execution_update", "subagent_delta", "", "noise"] {
            assert!(!is_stored(kind), "{kind}");
        }
    }
}
