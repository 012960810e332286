//! An error as the body of an answer: `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)).

use crate::error::{Error, ErrorKind, ErrorRecord};
use crate::ops::OpKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The media type of a problem.
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// What only a request can meet, beside the kinds of errors of the tree. Each has a `code` and a `type` of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestFault {
    /// There is no such route; `/openapi.json` tells those there are.
    NoSuchRoute,
    /// The first request with this idempotency key still runs: ask again for its answer.
    RequestRunning,
    /// This idempotency key was used for another request: take a new one.
    KeyReused,
    /// The server that had begun the first request with this idempotency key died: look at what is there before anything is repeated.
    OutcomeUnknown,
}

/// What became of the first request with an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KeyState {
    /// It runs.
    Running,
    /// It is done, and its answer is kept.
    Done,
    /// Its server died before its answer was kept: it may have been done or not.
    Unknown,
}

impl KeyState {
    /// Returns the stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Unknown => "unknown",
        }
    }
}

/// What is known of an idempotency key, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct KeyRecord {
    /// What became of the first request with it.
    pub state: KeyState,
    /// After how many seconds the key may be used anew.
    pub expires_in_seconds: u64,
}

impl KeyRecord {
    /// Tells of a key.
    pub const fn new(state: KeyState, expires_in_seconds: u64) -> Self {
        Self { state, expires_in_seconds }
    }
}

impl RequestFault {
    /// Every fault.
    pub const ALL: [Self; 4] = [Self::NoSuchRoute, Self::RequestRunning, Self::KeyReused, Self::OutcomeUnknown];

    /// Returns the stable wire name.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoSuchRoute => "no_such_route",
            Self::RequestRunning => "request_running",
            Self::KeyReused => "key_reused",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }

    /// Returns the status of the answer; for keys, that of
    /// [the draft of the IETF](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/).
    pub const fn status(self) -> u16 {
        match self {
            Self::NoSuchRoute => 404,
            Self::RequestRunning | Self::OutcomeUnknown => 409,
            Self::KeyReused => 422,
        }
    }

    /// Returns the kind of error that it is to who knows trees and no requests.
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::NoSuchRoute => ErrorKind::Unsupported,
            Self::RequestRunning | Self::OutcomeUnknown => ErrorKind::Unavailable,
            Self::KeyReused => ErrorKind::InvalidArgument,
        }
    }
}

/// An error of the tree, or of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Problem {
    /// What kind of problem it is, as a URI that stays: `urn:stratafs:error:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// What kind of problem it is, in a few words.
    pub title: String,
    /// The status of the answer.
    pub status: u16,
    /// What went wrong and what to do.
    pub detail: String,
    /// What happened, as all doors of stratafs say it.
    #[serde(flatten)]
    pub error: ErrorRecord,
    /// The operation that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OpKind>,
    /// Whether the failed change may have had an effect all the same.
    #[serde(default)]
    pub may_have_effect: bool,
    /// The trace that the request is part of, by which the server's log tells more: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// What is known of the idempotency key of the request, where that is why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<KeyRecord>,
}

impl Problem {
    /// Tells of an error.
    pub fn new(error: &Error) -> Self {
        let kind = error.kind();
        let mut record = ErrorRecord::from(error);
        // It stands beside the record, where it is always said.
        record.may_have_effect = false;
        Self {
            kind: format!("urn:stratafs:error:{}", kind.code()),
            title: kind.code().replace('_', " "),
            status: status(kind),
            detail: error.message().to_owned(),
            error: record,
            operation: error.operation(),
            may_have_effect: error.may_have_effect(),
            trace_id: None,
            idempotency_key: None,
        }
    }

    /// Tells of a fault of the request; nothing was done by it.
    pub fn of_request(fault: RequestFault, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(&Error::new(fault.kind(), detail).without_effect());
        problem.kind = format!("urn:stratafs:error:{}", fault.code());
        problem.title = fault.code().replace('_', " ");
        problem.status = fault.status();
        problem.error.code = fault.code().to_owned();
        // The request itself did nothing, and the first one with its key may have.
        problem.may_have_effect = fault == RequestFault::OutcomeUnknown;
        problem
    }

    /// Returns the fault of the request that this tells of, if it is one.
    pub fn fault(&self) -> Option<RequestFault> {
        RequestFault::ALL.into_iter().find(|fault| fault.code() == self.error.code)
    }

    /// Returns the error, as the far side had it.
    pub fn into_error(self) -> Error {
        let mut error = match self.fault() {
            Some(fault) => Error::new(fault.kind(), self.detail.clone()),
            None => Error::from(&self.error),
        };
        if let Some(operation) = self.operation {
            error = error.during(operation);
        }
        if let Some(change) = self.error.change {
            error = error.in_batch(change, self.error.applied.unwrap_or(0));
        }
        if self.may_have_effect { error.with_unknown_effect() } else { error.without_effect() }
    }
}

/// Returns the status of an answer that is an error.
fn status(kind: ErrorKind) -> u16 {
    match kind {
        ErrorKind::InvalidPath | ErrorKind::InvalidArgument => 400,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnly => 403,
        ErrorKind::NotFound => 404,
        ErrorKind::AlreadyExists
        | ErrorKind::IsDirectory
        | ErrorKind::NotADirectory
        | ErrorKind::Conflict
        | ErrorKind::NoMatch
        | ErrorKind::Ambiguous => 409,
        ErrorKind::TooLarge => 413,
        ErrorKind::Unsupported => 422,
        ErrorKind::Unavailable => 503,
        ErrorKind::Deadline => 504,
        ErrorKind::QuotaExceeded => 507,
        ErrorKind::Corrupt | ErrorKind::Internal => 500,
    }
}
