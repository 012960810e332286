//! Following a trace: its events from a position on, then new ones as they come.
//!
//! A client gets server-sent events, or a WebSocket (`socket.rs`) if it asks for an upgrade. Both have the ids of events, so a client that
//! reconnects continues after the last event that it saw.

use super::super::events::{BEAT, LAST_EVENT_ID, StreamSlot, sse};
use super::super::exchange::{Answer, Asked};
use super::socket;
use crate::rights::Access;
use axum::http::{HeaderMap, header};
use axum::response::sse::Event;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use tokio::sync::watch;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_mcp::Standing;
use treehold_traces::{EventStream, TraceEvent};

/// Where a stream starts.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WatchQuery {
    /// Only events with a greater id. Default 0, for all. The header `Last-Event-ID` takes precedence.
    since_event_id: u64,
}

pub(super) async fn watch(mut asked: Asked) -> Answer {
    let query: WatchQuery = asked.query()?;
    let since = last_event_id(&asked.head.headers)?.unwrap_or(query.since_event_id);
    let at = asked.trace(Access::Read)?;
    let upgrade = match asked.head.headers.contains_key(header::UPGRADE) {
        true => Some(socket::upgrade(&mut asked.head).await?),
        false => None,
    };
    let slot = StreamSlot::take(&asked)?;
    let events = at.store.watch(&at.trace, since).await?;
    let watching = Watching::new(&asked, events, slot);
    match upgrade {
        Some(upgrade) => Ok(socket::open(upgrade, watching, &asked.head)),
        None => Ok(sse(stream(watching))),
    }
}

/// Returns the id in the header `Last-Event-ID`, if there is one. A stream that has sent no event yet has no id, so its client may send an
/// empty one.
fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>> {
    let Some(given) = headers.get(LAST_EVENT_ID).filter(|given| !given.is_empty()) else { return Ok(None) };
    let id = given.to_str().ok().and_then(|text| text.parse().ok());
    id.map(Some).ok_or_else(|| Error::invalid_argument("`Last-Event-ID` is not the id of an event of a trace; leave it out"))
}

/// An open stream, whatever form it is sent in.
pub(super) struct Watching {
    events: EventStream,
    stopping: watch::Receiver<bool>,
    /// Completes when the caller is no longer authorized, with an error if that cannot be checked.
    revoked: BoxFuture<'static, Result<()>>,
    standing: Standing,
    _slot: StreamSlot,
}

/// What an open stream has to tell.
pub(super) enum Next {
    /// An event.
    Event(TraceEvent),
    /// There was no event for [`BEAT`].
    Beat,
    /// There are no more events.
    End(Ending),
}

/// Why a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The server is stopping.
    Stopping,
    /// The caller is no longer authorized.
    Revoked,
    /// Whether the caller is still authorized cannot be checked.
    Unchecked,
    /// The trace was removed.
    Removed,
    /// The events can no longer be read.
    Failed,
}

impl Ending {
    /// Returns how a stream ends whose caller is not known to be authorized.
    fn of_standing(ended: Result<()>) -> Self {
        match ended {
            Ok(()) => Self::Revoked,
            Err(error) => {
                tracing::warn!(%error, "closing a stream of a trace because its token cannot be checked");
                Self::Unchecked
            }
        }
    }
}

impl Watching {
    fn new(asked: &Asked, events: EventStream, slot: StreamSlot) -> Self {
        let standing = asked.caller.standing(&asked.head.headers);
        let revoked: BoxFuture<'static, Result<()>> = Box::pin(standing.clone().ends(BEAT));
        let stopping = asked.api.stopping.subscribe();
        Self { events, stopping, revoked, standing, _slot: slot }
    }

    /// Waits for what comes next. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Next {
        let found = tokio::select! {
            biased;
            _ = self.stopping.wait_for(|is_stopping| *is_stopping) => return Next::End(Ending::Stopping),
            ended = &mut self.revoked => return Next::End(Ending::of_standing(ended)),
            found = self.events.next() => found,
            () = tokio::time::sleep(BEAT) => return Next::Beat,
        };
        match found {
            Some(Ok(event)) => Next::Event(event),
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => Next::End(Ending::Removed),
            Some(Err(error)) => {
                // The client reconnects and resumes.
                tracing::warn!(%error, "closing a stream of a trace because its events cannot be read");
                Next::End(Ending::Failed)
            }
            None => Next::End(Ending::Failed),
        }
    }

    /// Returns why the caller may no longer read the trace, if so. An event that was found before the token was revoked is not sent after
    /// it.
    pub(super) async fn refusal(&mut self) -> Option<Ending> {
        match self.standing.holds().await {
            Ok(true) => None,
            Ok(false) => Some(Ending::of_standing(Ok(()))),
            Err(error) => Some(Ending::of_standing(Err(error))),
        }
    }
}

/// Sends a stream as server-sent events. Between events it sends comments, so that a client notices the loss of its connection.
fn stream(watching: Watching) -> impl Stream<Item = Result<Event, Infallible>> {
    let opening = Some(Event::default().comment("open"));
    futures::stream::unfold((opening, watching), |(opening, mut watching)| async move {
        if let Some(opening) = opening {
            return Some((Ok(opening), (None, watching)));
        }
        let event = match watching.next().await {
            Next::End(_) => return None,
            Next::Beat => Event::default().comment("beat"),
            Next::Event(event) => match watching.refusal().await {
                Some(_) => return None,
                None => told(&event)?,
            },
        };
        Some((Ok(event), (None, watching)))
    })
}

fn told(event: &TraceEvent) -> Option<Event> {
    let told = Event::default().id(event.event_id.to_string());
    // The name of an event is one line. Kinds come from runners and from other servers.
    let told = if event.event.contains(['\r', '\n']) { told } else { told.event(&event.event) };
    match told.json_data(event) {
        Ok(told) => Some(told),
        Err(error) => {
            tracing::error!(%error, "an event of a trace cannot be encoded");
            None
        }
    }
}
