//! The states of stateless agents, over any [`Store`](treehold_store::Store).
//!
//! An agent object holds only configuration. All that changes during a conversation is its state, which a [`StateSlot`] addresses by
//! user and session: it is loaded at the start of a call and saved at its end, so that any process can serve any call.

pub mod call;
mod contract;
mod options;
mod rows;
mod slot;
mod states;
mod store_states;
mod sweep;
mod value;

pub use contract::{
    AgentStateStore, Expected, Fence, FenceFallen, SaveOptions, SessionIdPage, StateCapabilities, StateConflict, StateKey, StateVersion,
    UserPage, VersionedState,
};
pub use options::{AgentStatesOptions, Expiry};
pub use slot::StateSlot;
pub use states::AgentStates;
pub use store_states::StoreStates;
pub use sweep::AgentStatesSweeper;
pub use treehold_core::json::{JSON_DEPTH_MAX, Json};
