//! Idempotency keys that a session stores in the commit of the write itself, so an answer that was lost is known even if the server died.
//! Such a key belongs to the session, not to the token that sends it: a write that is sent again with a new token is not made twice.

use super::super::exchange::Asked;
use super::super::idempotency::REPLAYED;
use crate::problem::{Failed, tell_key};
use axum::http::HeaderValue;
use axum::response::Response;
use jiff::Timestamp;
use std::error::Error as _;
use treehold_core::error::Error;
use treehold_core::wire::{KeyRecord, KeyState, RequestFault};
use treehold_sessions::KeyReused;

/// Returns the idempotency key of a request.
pub(in crate::api) fn of(asked: &Asked) -> Option<String> {
    asked.head.headers.get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned)
}

/// Tells what became of the key of a request.
pub(in crate::api) fn tell(response: &mut Response, is_repeated: bool, expires_at: Option<Timestamp>) {
    if let Some(expires_at) = expires_at {
        let left = expires_at.duration_since(Timestamp::now()).as_secs().max(0).unsigned_abs();
        tell_key(response.headers_mut(), KeyRecord::new(KeyState::Done, left));
    }
    if is_repeated {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
}

/// Converts the error of a write with a key.
pub(super) fn refused(error: Error) -> Failed {
    match error.source().is_some_and(|source| source.is::<KeyReused>()) {
        true => Failed::of_request(RequestFault::KeyReused, error.message()),
        false => error.into(),
    }
}
