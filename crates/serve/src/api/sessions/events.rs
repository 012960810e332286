//! What changes in a session, as server-sent events.
//!
//! The id of an event is a position of the session. A client that reconnects with it, at any server of the store, is told of everything
//! that changed since. Changes that were found together carry their position with the last one.

use super::super::events::{BEAT, LAST_EVENT_ID, StreamSlot, is_allowed, sse};
use super::super::exchange::{Answer, Asked};
use super::absent;
use crate::rights::Access;
use axum::response::sse::Event;
use futures::Stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use tokio::sync::watch;
use treehold_core::error::{Error, Result};
use treehold_mcp::Standing;
use treehold_sessions::{SessionFollower, SessionPosition};

/// Where a stream starts.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FollowQuery {
    /// The id of the last event seen, for clients that cannot set the header `Last-Event-ID`.
    after: Option<String>,
}

pub(super) async fn follow(asked: Asked) -> Answer {
    let query: FollowQuery = asked.query()?;
    let given = match asked.head.headers.get(LAST_EVENT_ID) {
        Some(id) => Some(id.to_str().map_err(|_| Error::invalid_argument("`Last-Event-ID` is not the id of an event"))?.to_owned()),
        None => query.after,
    };
    let after = given.as_deref().map(str::parse::<SessionPosition>).transpose()?;
    let at = asked.named(Access::Read)?;
    let slot = StreamSlot::take(&asked)?;
    let follower = at.sessions.follow(&at.session, after.clone()).await?.ok_or_else(|| absent(at.id()))?;
    // A position of another session or store is not continued.
    let is_reset = after.is_some_and(|after| after != *follower.position());
    let opening = Event::default().event(if is_reset { "reset" } else { "open" }).data("{}").id(follower.position().to_string());
    let stopping = asked.api.stopping.subscribe();
    let following =
        Following { follower, opening: Some(opening), stopping, standing: asked.caller.standing(&asked.head.headers), _slot: slot };
    Ok(sse(stream(following)))
}

/// The state of an open stream.
struct Following {
    follower: SessionFollower,
    opening: Option<Event>,
    stopping: watch::Receiver<bool>,
    standing: Standing,
    _slot: StreamSlot,
}

fn stream(following: Following) -> impl Stream<Item = Result<Event, Infallible>> {
    futures::stream::unfold(following, |mut following| async move {
        if let Some(opening) = following.opening.take() {
            return Some((Ok(opening), following));
        }
        let Following { follower, stopping, .. } = &mut following;
        let found = tokio::select! {
            found = follower.next() => Some(found),
            () = tokio::time::sleep(BEAT) => None,
            _ = stopping.wait_for(|is_stopping| *is_stopping) => return None,
        };
        if !is_allowed(&following.standing).await {
            return None;
        }
        let event = match found {
            Some(Ok(Some(change))) => {
                let told = Event::default().event("change").json_data(&change).ok()?;
                if following.follower.has_more() { told } else { told.id(following.follower.position().to_string()) }
            }
            // The session was deleted.
            Some(Ok(None)) => return None,
            Some(Err(error)) => {
                // The client reconnects and resumes.
                tracing::warn!(%error, "closing a stream of a session because the store fails");
                return None;
            }
            None => Event::default().id(following.follower.position().to_string()),
        };
        Some((Ok(event), following))
    })
}
