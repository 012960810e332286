//! The states of stateless agents, over any [`Store`](treehold_store::Store).
//!
//! An agent object holds only configuration. All that changes during a conversation is its state, which a [`StateSlot`] addresses by
//! user and session: it is loaded at the start of a call and saved at its end, so that any process can serve any call.

mod cache;
pub mod call;
mod contract;
mod legacy;
mod log;
mod options;
mod policy;
mod rows;
mod shared;
mod slot;
mod states;
mod store_states;
mod sweep;
mod value;

pub use cache::CachedStates;
pub use contract::{
    AgentStateStore, Expected, Fence, FenceFallen, SaveOptions, SessionIdPage, StateCapabilities, StateConflict, StateKey, StateVersion,
    UserPage, VersionedState,
};
pub use legacy::{
    AGENT_STATE_KEY, FoundState, LEGACY_MESSAGES_KEY, LEGACY_TOOL_GROUPS_KEY, LegacyState, SANDBOX_STATE_KEY, SandboxOwner,
    load_with_legacy, sandbox_slot,
};
pub use options::{AgentStatesOptions, Expiry};
pub use policy::{ConflictPolicy, LoadedState, PolicySave, StateSaver};
pub use shared::{StatesNotShared, require_shared};
pub use slot::StateSlot;
pub use states::AgentStates;
pub use store_states::{HistoryEntry, HistoryPage, StoreStates};
pub use sweep::AgentStatesSweeper;
pub use treehold_core::json::{JSON_DEPTH_MAX, Json};
