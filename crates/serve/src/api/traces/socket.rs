//! Following a trace over a WebSocket ([RFC 6455](https://www.rfc-editor.org/rfc/rfc6455)): one event per text frame.
//!
//! The upgrade is a request like any other: it needs a token, and pages of other origins are refused before it gets here. What the client
//! sends is ignored, except for frames that control the connection. A client that reads too slowly is disconnected, as is one that
//! answers no ping.

use super::watch::{Ending, Next, Watching};
use crate::connection::{Connected, ConnectionLimits, Running};
use axum::extract::FromRequestParts;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{Error, Result};
use treehold_core::work;

/// The largest message that a client may send, in bytes. The server has no use for any.
const RECEIVED_BYTES_MAX: usize = 4 << 10;

/// How long the client may take to close its side.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the headers of an upgrade.
///
/// # Errors
/// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for another protocol and for a malformed handshake.
pub(super) async fn upgrade(head: &mut Parts) -> Result<WebSocketUpgrade> {
    WebSocketUpgrade::from_request_parts(head, &()).await.map_err(|rejection: WebSocketUpgradeRejection| {
        let message = format!(
            "the upgrade is no WebSocket handshake of version 13 over HTTP/1.1: {}; correct it, or leave the header `Upgrade` out for \
             server-sent events",
            rejection.body_text()
        );
        Error::invalid_argument(message).without_effect()
    })
}

/// Answers an upgrade. The stream starts once the connection has changed its protocol.
pub(super) fn open(upgrade: WebSocketUpgrade, watching: Watching, head: &Parts) -> Response {
    // The connection counts as busy until the socket is closed.
    let running = head.extensions.get::<Connected>().and_then(Connected::running);
    let upgrade = upgrade.max_message_size(RECEIVED_BYTES_MAX).max_frame_size(RECEIVED_BYTES_MAX);
    upgrade.on_upgrade(move |socket| work::carried(serve(socket, watching, running)))
}

/// Sends events until the stream ends or the client is gone.
async fn serve(mut socket: WebSocket, mut watching: Watching, running: Option<Arc<Running>>) {
    let limits = running.as_deref().map(|running| running.limits().clone()).unwrap_or_default();
    let mut is_unanswered = false;
    let ending = loop {
        let next = tokio::select! {
            next = watching.next() => next,
            received = socket.recv() => match received {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                Some(Ok(_)) => {
                    is_unanswered = false;
                    continue;
                }
            },
        };
        let message = match next {
            Next::End(ending) => break ending,
            Next::Beat if is_unanswered => return,
            Next::Beat => {
                is_unanswered = true;
                Message::Ping(Bytes::new())
            }
            Next::Event(event) => match (watching.refusal().await, serde_json::to_string(&event)) {
                (Some(ending), _) => break ending,
                (None, Ok(text)) => Message::Text(text.into()),
                (None, Err(error)) => {
                    tracing::error!(%error, "an event of a trace cannot be encoded");
                    break Ending::Failed;
                }
            },
        };
        if !send(&mut socket, message, &limits).await {
            return;
        }
    };
    if send(&mut socket, Message::Close(Some(farewell(ending))), &limits).await {
        // If the connection were closed now, a client that is still sending would lose the reason.
        let closed = async { while let Some(Ok(_)) = socket.recv().await {} };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    }
}

/// Sends a message at the pace at which a client must read. Returns whether the client has taken it.
async fn send(socket: &mut WebSocket, message: Message, limits: &ConnectionLimits) -> bool {
    let bytes = match &message {
        Message::Text(text) => text.len() as u64,
        _ => 0,
    };
    let earned = Duration::from_millis(bytes.saturating_mul(1_000) / limits.answer_bytes_per_second_min.max(1));
    matches!(tokio::time::timeout(limits.write_timeout + earned, socket.send(message)).await, Ok(Ok(())))
}

fn farewell(ending: Ending) -> CloseFrame {
    let (code, reason) = match ending {
        Ending::Stopping => (close_code::AWAY, "the server is stopping; connect again with the last event_id"),
        Ending::Revoked => (close_code::POLICY, "the token is no longer valid"),
        Ending::Unchecked => (close_code::AGAIN, "the token cannot be checked now; connect again with the last event_id"),
        Ending::Removed => (close_code::NORMAL, "the trace was removed"),
        Ending::Failed => (close_code::ERROR, "the events cannot be read now; connect again with the last event_id"),
    };
    CloseFrame { code, reason: Utf8Bytes::from_static(reason) }
}
