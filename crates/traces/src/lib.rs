//! Traces of agents across devices: one id, wherever the trace lives.
//!
//! An agent in one place starts work in another, gets the id of a trace back, and later continues that trace, though it lives on the other
//! side. A [`TraceAddress`] says where a trace lives. Every [`TraceStore`] has the same methods, whether its traces are rows of a store,
//! lie behind another server, or both.
//!
//! Start with [`TraceStore`].

mod cached;
#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
pub mod files;
mod hybrid;
mod id;
pub mod layout;
mod model;
mod organization;
#[cfg(feature = "remote")]
mod peers;
#[cfg(feature = "remote")]
mod remote;
mod runs;
mod scripted;
mod stored;
#[cfg(feature = "tool")]
mod tool;

pub use cached::{CacheOptions, CachedTraces, TraceCopies};
pub use contract::{
    AddOptions, Added, EventStream, ForeignTrace, MessageRef, MessagesPage, MessagesQuery, PAGE_MAX, PathQuery, TracePage, TraceStore,
    TracesQuery, UnknownAgent,
};
pub use hybrid::HybridTraces;
pub use id::{BadTraceId, Location, TraceAddress, TraceId};
pub use model::{
    EventsPage, Goal, GoalStats, GoalStatus, GoalTree, GoalUpdate, Message, MessageUpdate, NewGoal, NewMessage, NewTrace, OtherFields,
    SequenceRange, Trace, TraceEvent, TraceMode, TraceStatus, TraceUpdate, kinds,
};
pub use organization::OrganizationTraces;
#[cfg(feature = "remote")]
pub use peers::{ApiKey, Peer, Peers, PeersOptions, TunnelOf};
#[cfg(feature = "remote")]
pub use remote::RemoteTraces;
#[cfg(feature = "remote")]
pub use runs::PeerRuns;
pub use runs::{
    ClaimRuns, HeldRun, REFLECTION, RESULT_BYTES_MAX, RUN_ENDED, RunContext, RunHandle, RunRequest, RunResult, Runs, RunsOptions,
    TraceRunner, TraceRuns,
};
pub use scripted::{Gate, ScriptedRunner, Step};
pub use stored::{KeyReused, RUN_LEASE_MAX, RunClaim, RunHeld, StoredTraces, Traces, TracesOptions, TracesSweeper};
#[cfg(feature = "tool")]
pub use tool::{AGENT_TOOL, AgentCall, AgentCaller, AgentPlace, AgentPlaces, AgentTool, AgentToolOptions, OrganizationAgents};
