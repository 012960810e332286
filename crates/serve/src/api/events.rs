//! Events: the past as pages, and new ones as server-sent events.
//!
//! A stream starts after the event whose id is in the header `Last-Event-ID`, or now. The id of an event consists of its position and the
//! time at which it was sent. The time tells whether later events may have expired. If so, the stream starts with `reset`, and the client
//! must read everything again. After 15 seconds without an event, the stream sends its current position, so that a client can resume from a
//! recent id.

use super::exchange::{Answer, Asked, json};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use treehold_agent::feed::{Feed, FeedEvent, FeedPage, FeedPosition, FeedTail, FeedView};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::path::VfsPathBuf;
use treehold_core::shares::{Share, User};
use treehold_core::wire::THREAD_HEADER;
use treehold_mcp::Standing;

/// The header with the id of the last event that the client saw.
pub(super) const LAST_EVENT_ID: &str = "last-event-id";

/// After how long without an event the stream sends its position.
pub(super) const BEAT: Duration = Duration::from_secs(15);

/// The assumed clock skew between servers.
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// The most events of a page.
const PAGE_MAX: usize = 1_000;

/// Which events to stream.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EventsQuery {
    /// Only changes at this path or beneath it.
    prefix: Option<VfsPathBuf>,
    /// Of thread states, only that of this thread. Default all threads that the token allows.
    thread: Option<String>,
    /// The id of the last event seen, for clients that cannot set the header `Last-Event-ID`.
    after: Option<String>,
}

/// Which past events to list.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TimelineQuery {
    /// Only changes at this path or beneath it.
    prefix: Option<VfsPathBuf>,
    /// Of thread states, only that of this thread. Default all threads that the token allows.
    thread: Option<String>,
    /// Only events at this time or later.
    since: Option<Timestamp>,
    /// Only events before this position, at which the previous page ended.
    before: Option<FeedPosition>,
    /// The most events. Default 100, at most 1,000.
    limit: Option<usize>,
}

/// Lists past events, newest first.
pub(super) async fn timeline(asked: Asked) -> Answer {
    let query: TimelineQuery = asked.query()?;
    let limit = query.limit.unwrap_or(100);
    if limit == 0 || limit > PAGE_MAX {
        return Err(Error::invalid_argument(format!("`limit` must be between 1 and {PAGE_MAX}")).into());
    }
    let (feed, view) = view(&asked, query.prefix, query.thread)?;
    let page: FeedPage = feed.before(&view, query.before.as_ref(), query.since, limit).await?;
    json(StatusCode::OK, page).await
}

/// Streams events as they occur.
pub(super) async fn events(asked: Asked) -> Answer {
    let query: EventsQuery = asked.query()?;
    let given = match asked.head.headers.get(LAST_EVENT_ID) {
        Some(id) => Some(id.to_str().map_err(|_| no_id())?.to_owned()),
        None => query.after.clone(),
    };
    let (feed, view) = view(&asked, query.prefix, query.thread)?;
    let place = StreamSlot::take(&asked)?;
    let newest = feed.position(&view).await?;
    let (from, is_reset) = match given.map(|id| EventId::parse(&id)).transpose()? {
        None => (EventId::now(newest), false),
        // A position beyond the newest is from another store. With an old id, later events may have expired.
        Some(id) if id.position.is_beyond(&newest) || id.is_older_than(feed.keep()) => (EventId::now(newest), true),
        Some(id) => (id, false),
    };
    let tail = feed.follow(view, from.position.clone()).await?;
    let opening = Event::default().event(if is_reset { "reset" } else { "open" }).data("{}").id(from.to_string());
    let stopping = asked.api.stopping.subscribe();
    let standing = asked.caller.standing(&asked.head.headers);
    let stream = stream(Following { tail, opening: Some(opening), at: from.at, stopping, standing, _place: place });
    Ok(sse(stream))
}

/// Responds with a stream of events.
pub(super) fn sse(stream: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let mut response = Sse::new(stream).into_response();
    // Proxies must not buffer events.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns whether the token of a stream is still valid for its caller. One that cannot be looked up in time is not.
pub(super) async fn is_allowed(standing: &Standing) -> bool {
    standing.holds().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "closing a stream of events because its token cannot be checked");
        false
    })
}

/// Returns the feed and the caller's view of it.
fn view(asked: &Asked, prefix: Option<VfsPathBuf>, thread: Option<String>) -> Result<(Arc<Feed>, FeedView)> {
    let (workspace, rights) = (&asked.caller.door.workspace, &asked.caller.rights);
    let feed =
        workspace.feed().cloned().ok_or_else(|| Error::unsupported("this server does not save events; set `[events] save = true`"))?;
    let view = workspace.feed_view(&asked.caller.scope)?;
    let mut view = view.with_roots(rights.paths.iter().cloned()).with_known_threads(rights.threads.iter().cloned());
    if let Some(prefix) = prefix {
        view = view.with_prefix(&prefix);
    }
    let named = thread.or_else(|| asked.head.headers.contains_key(THREAD_HEADER).then(|| asked.caller.scope.thread.clone()).flatten());
    match named {
        Some(thread) => {
            rights.need_thread(&thread)?;
            Ok((feed, view.with_threads([thread])))
        }
        None => Ok((feed, view.with_threads(rights.threads.iter().cloned()))),
    }
}

/// The state of an open stream.
struct Following {
    tail: FeedTail,
    opening: Option<Event>,
    /// The last time at which the stream had caught up.
    at: Timestamp,
    stopping: watch::Receiver<bool>,
    standing: Standing,
    _place: StreamSlot,
}

impl Following {
    /// Returns the id for the current position, at which an event stands. Every later event was committed after the time in the id.
    fn id(&mut self, event: Option<&FeedEvent>) -> String {
        let now = Timestamp::now();
        if self.tail.is_caught_up() {
            self.at = now;
        } else if let Some(event) = event {
            self.at = self.at.max(event.at.min(now));
        }
        EventId { position: self.tail.position().clone(), at: self.at }.to_string()
    }
}

/// A slot among the open streams. Each user has a limited share, so that no user can exclude all others.
pub(super) struct StreamSlot {
    _share: Share<User>,
    _permit: OwnedSemaphorePermit,
}

impl StreamSlot {
    pub(super) fn take(asked: &Asked) -> Result<Self> {
        let busy = |whose: &str| {
            let message = format!("{whose} has as many open streams as allowed; close one, or try again later");
            Error::new(ErrorKind::Unavailable, message).without_effect()
        };
        let permit = asked.api.streams.clone().try_acquire_owned().map_err(|_| busy("this server"))?;
        let owner = (asked.caller.scope.tenant.clone(), asked.caller.scope.user.clone());
        let share = asked.api.streams_of.take(owner, (asked.api.limits.streams_max / 4).max(2));
        Ok(Self { _share: share.ok_or_else(|| busy("this user"))?, _permit: permit })
    }
}

fn stream(following: Following) -> impl Stream<Item = Result<Event, Infallible>> {
    futures::stream::unfold(following, |mut following| async move {
        if let Some(opening) = following.opening.take() {
            return Some((Ok(opening), following));
        }
        let Following { tail, stopping, .. } = &mut following;
        let found = tokio::select! {
            found = tail.next() => Some(found),
            () = tokio::time::sleep(BEAT) => None,
            _ = stopping.wait_for(|is_stopping| *is_stopping) => return None,
        };
        if !is_allowed(&following.standing).await {
            return None;
        }
        let event = match found {
            Some(Ok(event)) => {
                let told = told(&event)?;
                // A commit can have several events. Only the last carries the id, so that a client that resumes from it has seen them all.
                if following.tail.is_within_commit() { told } else { told.id(following.id(Some(&event))) }
            }
            Some(Err(error)) => {
                // The client reconnects and resumes.
                tracing::warn!(%error, "closing a stream of events because the store fails");
                return None;
            }
            None => Event::default().id(following.id(None)),
        };
        Some((Ok(event), following))
    })
}

fn told(event: &FeedEvent) -> Option<Event> {
    match Event::default().event("change").json_data(event) {
        Ok(told) => Some(told),
        Err(error) => {
            tracing::error!(%error, "an event cannot be encoded");
            None
        }
    }
}

/// The position of a stream and the time at which it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EventId {
    position: FeedPosition,
    at: Timestamp,
}

impl EventId {
    fn now(position: FeedPosition) -> Self {
        Self { position, at: Timestamp::now() }
    }

    fn parse(text: &str) -> Result<Self> {
        let (position, at) = text.rsplit_once('-').ok_or_else(no_id)?;
        let position = position.parse().map_err(|_| no_id())?;
        let at = at.parse().ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).ok_or_else(no_id)?;
        Ok(Self { position, at })
    }

    /// Returns whether a later event may have expired.
    fn is_older_than(&self, keep: Duration) -> bool {
        let age = Timestamp::now().duration_since(self.at);
        Duration::try_from(age).is_ok_and(|age| age + CLOCKS_APART > keep)
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.position, self.at.as_second())
    }
}

fn no_id() -> Error {
    Error::invalid_argument("`Last-Event-ID` is not the id of an event of this server; leave it out, and read everything again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::ops::Version;

    #[test]
    fn event_id_round_trips_and_expires() {
        let id = EventId { position: Version::new(0x1f).into(), at: Timestamp::from_second(1_000_000).expect("a time") };
        assert_eq!(id.to_string(), "1f-1000000");
        assert_eq!(EventId::parse("1f-1000000").expect("its own"), id);
        let long = "0123456789ab.1f~ba9876543210.3-1000000";
        assert_eq!(EventId::parse(long).expect("its own").to_string(), long);
        for none in ["", "1f", "1f-", "-5", "x-5", "1f-x", "1f-1-2", "1f-99999999999999999999"] {
            assert!(EventId::parse(none).is_err(), "{none}");
        }
        assert!(id.is_older_than(Duration::from_secs(3_600)));
        assert!(!EventId::now(id.position.clone()).is_older_than(Duration::from_secs(3_600)));
        assert!(EventId::now(id.position).is_older_than(Duration::from_secs(1)), "clocks may be further apart");
    }
}
