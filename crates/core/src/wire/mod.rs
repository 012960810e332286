//! The JSON messages that a server and its clients share over HTTP.
//!
//! `serve` decodes them and `backend/remote` encodes them, so both ends agree by construction. Version 1 is everything beneath
//! [`PREFIX`]. Within it, fields are only ever added, each with a default. Servers reject unknown fields by name, so no request
//! is silently reduced to what an older server understands.
//!
//! The content of a file is the body of a message, not JSON. Only a batch ([`ApplyRequest`]) carries contents in JSON, as text or
//! Base64.

mod change;
mod problem;
mod request;

pub use change::{ApplyReply, ApplyRequest, ChangeRecord};
pub use problem::{KeyRecord, KeyState, PROBLEM_TYPE, Problem, RequestFault};
pub use request::{
    CapabilitiesReply, GlobRequest, GrepRequest, LIMIT_MAX, LsRequest, ReadRequest, SearchRequest, StatRequest, TreeRequest,
};

/// The path prefix of version 1.
pub const PREFIX: &str = "/v1";

/// The request header that names the thread.
pub const THREAD_HEADER: &str = "treehold-thread";

/// The request header that names the tenant whose sessions a request is about: UTF-8, percent-encoded.
pub const TENANT_HEADER: &str = "treehold-tenant";

/// The request header that names the user whose sessions a request is about: UTF-8, percent-encoded.
pub const USER_HEADER: &str = "treehold-user";

/// The request header that names the claim under which an orchestration is written.
pub const CLAIM_HEADER: &str = "treehold-claim";

/// The request header that names the actor, recorded in the history of changes.
pub const ACTOR_HEADER: &str = "treehold-actor";

/// The response header with the size of the whole file in bytes.
pub const SIZE_HEADER: &str = "treehold-size";

/// The response header of a window of lines: the offset of its first line, the number of its lines, and the number of lines in
/// the file.
pub const WINDOW_HEADER: &str = "treehold-window";

/// The response header with the time the content was last modified, to the microsecond.
pub const MODIFIED_HEADER: &str = "treehold-modified-at";
