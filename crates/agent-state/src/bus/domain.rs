//! Inboxes, wake-ups and session events: the keys and payloads that all clients of the bus agree on.

use super::{BusEntry, EntryId, Kind, MessageBus, Subscription, rows_of};
use crate::owner::BundleOwner;
use serde::{Deserialize, Serialize};
use treehold_core::error::Result;
use treehold_core::json::Json;
use treehold_core::scope::check_id;
use treehold_store::{Batch, Namespace};

/// About how many events of a session are kept for readers that come late.
pub const SESSION_EVENTS_MAX: usize = 1_000;

const WAKEUPS: &str = "agentscope:wakeups";
const WAKEUP_SIGNAL: &str = "agentscope:wakeup_signal";

/// Returns the key of the queue that is the inbox of a session.
pub fn inbox_key(session: &str) -> String {
    format!("agentscope:inbox:{session}")
}

/// Returns the key of the log with the events of a session.
pub fn session_events_key(session: &str) -> String {
    format!("agentscope:session:events:{session}")
}

/// Returns the namespaces of a session's inbox and events.
pub(crate) fn namespaces_of(owner: &BundleOwner, session: &str) -> Result<[Namespace; 2]> {
    let inbox = rows_of(owner, Kind::Queue, &inbox_key(session))?;
    Ok([inbox, rows_of(owner, Kind::Log, &session_events_key(session))?])
}

/// A request to run a session that has something to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wakeup {
    /// The user of the session; empty for an anonymous one.
    #[serde(default)]
    pub user_id: String,
    /// The session.
    pub session_id: String,
    /// The agent of the session.
    pub agent_id: String,
}

impl MessageBus {
    /// Adds a message to the inbox of a session.
    ///
    /// # Errors
    /// As [`MessageBus::queue_push`].
    pub async fn inbox_push(&self, session: &str, message: &Json) -> Result<EntryId> {
        check_id("session", session)?;
        self.queue_push(&inbox_key(session), message).await
    }

    /// Removes and returns messages of the inbox of a session.
    ///
    /// # Errors
    /// As [`MessageBus::queue_drain`].
    pub async fn inbox_drain(&self, session: &str, max: usize) -> Result<Vec<BusEntry>> {
        check_id("session", session)?;
        self.queue_drain(&inbox_key(session), max).await
    }

    /// Returns whether the inbox of a session has a message.
    ///
    /// # Errors
    /// As [`MessageBus::queue_peek`].
    pub async fn inbox_has_messages(&self, session: &str) -> Result<bool> {
        check_id("session", session)?;
        self.queue_peek(&inbox_key(session)).await
    }

    /// Asks for a session to be run: queues the request and signals those who wait for one, in one commit.
    ///
    /// # Errors
    /// As [`MessageBus::queue_push`].
    pub async fn enqueue_wakeup(&self, wakeup: &Wakeup) -> Result<EntryId> {
        let (queue, signal) = (self.rows(Kind::Queue, WAKEUPS)?, self.rows(Kind::Log, WAKEUP_SIGNAL)?);
        let request = self.body(&Json::of(wakeup)?)?;
        let retention = (self.options.queue_retention, Some(self.options.broadcast_retention));
        self.append(Batch::new().append(&queue, request, retention.0).append(&signal, "{}", retention.1)).await
    }

    /// Removes and returns requests to run sessions. One that cannot be read is skipped and reported in the log.
    ///
    /// # Errors
    /// As [`MessageBus::queue_drain`].
    pub async fn drain_wakeups(&self, max: usize) -> Result<Vec<Wakeup>> {
        let entries = self.queue_drain(WAKEUPS, max).await?;
        let read = |entry: BusEntry| match entry.payload.view() {
            Ok(wakeup) => Some(wakeup),
            Err(error) => {
                tracing::warn!(%error, id = %entry.id, "a request to wake a session cannot be read; it is skipped");
                None
            }
        };
        Ok(entries.into_iter().filter_map(read).collect())
    }

    /// Subscribes to the signal that the queue of wake-ups has something. Drain the queue once after subscribing.
    ///
    /// # Errors
    /// As [`MessageBus::subscribe`].
    pub async fn subscribe_wakeups(&self) -> Result<Subscription> {
        self.subscribe(WAKEUP_SIGNAL).await
    }

    /// Adds an event to the log of a session, from which it also reaches the subscribers.
    ///
    /// # Errors
    /// As [`MessageBus::log_append`].
    pub async fn publish_session_event(&self, session: &str, event: &Json) -> Result<EntryId> {
        check_id("session", session)?;
        self.log_append(&session_events_key(session), event, Some(SESSION_EVENTS_MAX)).await
    }

    /// Returns events of a session after the event `since`, or from the oldest that is kept.
    ///
    /// # Errors
    /// As [`MessageBus::log_read`].
    pub async fn read_session_events(&self, session: &str, since: Option<EntryId>, max: usize) -> Result<Vec<BusEntry>> {
        check_id("session", session)?;
        self.log_read(&session_events_key(session), since, max).await
    }

    /// Subscribes to the events of a session.
    ///
    /// # Errors
    /// As [`MessageBus::subscribe`].
    pub async fn subscribe_session_events(&self, session: &str) -> Result<Subscription> {
        check_id("session", session)?;
        self.subscribe(&session_events_key(session)).await
    }

    /// Removes the events of a session, so that later readers do not see those of an earlier run.
    ///
    /// # Errors
    /// As [`MessageBus::log_trim`].
    pub async fn trim_session_events(&self, session: &str) -> Result<()> {
        check_id("session", session)?;
        self.log_trim(&session_events_key(session)).await
    }
}
