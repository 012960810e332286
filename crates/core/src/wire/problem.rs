//! Errors as response bodies: `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)).

use crate::error::{Error, ErrorKind, ErrorRecord};
use crate::ops::OpKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The media type of a problem.
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// Faults of a request itself, in addition to the error kinds of the tree. Each has its own `code` and `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestFault {
    /// There is no such route. `/openapi.json` lists all routes.
    NoSuchRoute,
    /// The first request with this idempotency key is still running. Repeat the request later to get its response.
    RequestRunning,
    /// This idempotency key was used for a different request. Use a new key.
    KeyReused,
    /// The server that ran the first request with this idempotency key died. Check the current state before repeating anything.
    OutcomeUnknown,
}

/// The state of the first request with an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KeyState {
    /// It is running.
    Running,
    /// It is done, and its response is stored.
    Done,
    /// Its server died before the response was stored. It may or may not have taken effect.
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

/// The state of an idempotency key, and how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct KeyRecord {
    /// The state of the first request with this key.
    pub state: KeyState,
    /// The number of seconds until the key can be used again.
    pub expires_in_seconds: u64,
}

impl KeyRecord {
    /// Creates the record of a key.
    pub const fn new(state: KeyState, expires_in_seconds: u64) -> Self {
        Self { state, expires_in_seconds }
    }
}

impl RequestFault {
    /// All faults.
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

    /// Returns the HTTP status. Those about keys follow the [IETF
    /// draft](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/).
    pub const fn status(self) -> u16 {
        match self {
            Self::NoSuchRoute => 404,
            Self::RequestRunning | Self::OutcomeUnknown => 409,
            Self::KeyReused => 422,
        }
    }

    /// Returns the closest error kind, for callers that only know errors of trees.
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::NoSuchRoute => ErrorKind::Unsupported,
            Self::RequestRunning | Self::OutcomeUnknown => ErrorKind::Unavailable,
            Self::KeyReused => ErrorKind::InvalidArgument,
        }
    }
}

/// An error of the tree or of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Problem {
    /// The problem type as a stable URI: `urn:treehold:error:` followed by the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// A short description of the problem type.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What went wrong and what to do about it.
    pub detail: String,
    /// The error record, the same in all interfaces of treehold.
    #[serde(flatten)]
    pub error: ErrorRecord,
    /// The operation that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OpKind>,
    /// Whether the failed change may have taken effect anyway.
    #[serde(default)]
    pub may_have_effect: bool,
    /// The trace of the request, by which to find it in the server's log: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The state of the request's idempotency key, if the request was rejected because of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<KeyRecord>,
}

impl Problem {
    /// Creates a problem from an error.
    pub fn new(error: &Error) -> Self {
        let kind = error.kind();
        let mut record = ErrorRecord::from(error);
        // Reported in a field of its own, which is always present.
        record.may_have_effect = false;
        Self {
            kind: format!("urn:treehold:error:{}", kind.code()),
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

    /// Creates a problem from a fault of the request, which itself had no effect.
    pub fn of_request(fault: RequestFault, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(&Error::new(fault.kind(), detail).without_effect());
        problem.kind = format!("urn:treehold:error:{}", fault.code());
        problem.title = fault.code().replace('_', " ");
        problem.status = fault.status();
        problem.error.code = fault.code().to_owned();
        // This request had no effect, but the first one with its key may have.
        problem.may_have_effect = fault == RequestFault::OutcomeUnknown;
        problem
    }

    /// Returns the fault of the request, if it is one.
    pub fn fault(&self) -> Option<RequestFault> {
        RequestFault::ALL.into_iter().find(|fault| fault.code() == self.error.code)
    }

    /// Converts back to the error on the other side.
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

/// Returns the HTTP status of an error kind.
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
