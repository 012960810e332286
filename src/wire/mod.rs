//! The words that a server and its clients share: what is asked over HTTP and what is answered, as JSON.
//!
//! `serve` decodes these and `backend/remote` encodes them, so that both ends agree by construction. Version 1 is what stands
//! beneath [`PREFIX`]. Within it fields are only ever added, each with what holds without it; a field that a server does not know is
//! refused by name, so that no request is taken for less than it says.
//!
//! A file's bytes are the body of a message and never stand in JSON; only a batch ([`ApplyRequest`]) carries contents, as text or as Base64.

mod change;
mod problem;
mod request;

pub use change::{ApplyReply, ApplyRequest, ChangeRecord};
pub use problem::{KeyRecord, KeyState, PROBLEM_TYPE, Problem, RequestFault};
pub use request::{
    CapabilitiesReply, GlobRequest, GrepRequest, LIMIT_MAX, LsRequest, ReadRequest, SearchRequest, StatRequest, TreeRequest,
};

/// Where version 1 stands on a server.
pub const PREFIX: &str = "/v1";

/// The header that names the thread that a request is about.
pub const THREAD_HEADER: &str = "stratafs-thread";

/// The header that names who acts, for the history of what is changed.
pub const ACTOR_HEADER: &str = "stratafs-actor";

/// The header of an answer with content: the size in bytes of the whole file.
pub const SIZE_HEADER: &str = "stratafs-size";

/// The header of an answer with a window of lines: the offset of its first line, how many lines it has, and how many the file has.
pub const WINDOW_HEADER: &str = "stratafs-window";

/// The header of an answer with content: when it was changed last, to the microsecond.
pub const MODIFIED_HEADER: &str = "stratafs-modified-at";
