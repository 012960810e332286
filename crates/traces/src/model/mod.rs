//! The values of a trace, with the field names of the original. Unknown fields are kept.

mod event;
mod goal;
mod message;
mod trace;

pub use event::{EventsPage, TraceEvent, kinds};
pub use goal::{Goal, GoalStats, GoalStatus, GoalTree, GoalUpdate, NewGoal};
pub use message::{Message, MessageUpdate, NewMessage, SequenceRange};
pub use trace::{NewTrace, Trace, TraceMode, TraceStatus, TraceUpdate};

/// Fields that this crate does not know.
pub type OtherFields = serde_json::Map<String, serde_json::Value>;
