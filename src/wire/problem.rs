//! An error as the body of an answer: `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)).

use crate::error::{Error, ErrorKind, ErrorRecord};
use crate::ops::OpKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The media type of a problem.
pub const PROBLEM_TYPE: &str = "application/problem+json";

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
}

impl Problem {
    /// Tells of an error.
    pub fn new(error: &Error) -> Self {
        let kind = error.kind();
        Self {
            kind: format!("urn:stratafs:error:{}", kind.code()),
            title: kind.code().replace('_', " "),
            status: status(kind),
            detail: error.message().to_owned(),
            error: ErrorRecord::from(error),
            operation: error.operation(),
            may_have_effect: error.may_have_effect(),
        }
    }

    /// Returns the error, as the far side had it.
    pub fn into_error(self) -> Error {
        let mut error = Error::from(&self.error);
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
