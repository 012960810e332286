//! Traces of agents across devices: one id, wherever the trace lives.
//!
//! An agent in one place starts work in another, gets the id of a trace back, and later continues that trace, though it lives on the other
//! side. A [`TraceAddress`] says where a trace lives. Every [`TraceStore`] has the same methods, whether its traces are rows of a store,
//! lie behind another server, or both.
//!
//! Start with [`TraceStore`].

mod contract;
mod id;
mod model;
mod runner;
mod runs;

pub use contract::{
    AddOptions, Added, EventStream, ForeignTrace, MessageRef, MessagesPage, MessagesQuery, PAGE_MAX, PathQuery, TracePage, TraceStore,
    TracesQuery, UnknownAgent,
};
pub use id::{BadTraceId, Location, TraceAddress, TraceId};
pub use model::{
    EventsPage, Goal, GoalStats, GoalStatus, GoalTree, GoalUpdate, Message, MessageUpdate, NewGoal, NewMessage, NewTrace, OtherFields,
    SequenceRange, Trace, TraceEvent, TraceMode, TraceStatus, TraceUpdate, kinds,
};
pub use runner::{RESULT_BYTES_MAX, RunRequest, RunResult, TraceRunner};
pub use runs::{ClaimRuns, HeldRun, RUN_ENDED, RunHandle, Runs, RunsOptions, TraceRuns};
