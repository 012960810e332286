//! The states of stateless agents, over any [`Store`](treehold_store::Store).
//!
//! An agent object holds only configuration. All that changes during a conversation is its state, which a [`StateSlot`] addresses by
//! user and session: it is loaded at the start of a call and saved at its end, so that any process can serve any call.

mod contract;
mod slot;

pub use contract::{
    AgentStateStore, Expected, Fence, SaveOptions, SessionIdPage, StateCapabilities, StateKey, StateVersion, UserPage, VersionedState,
};
pub use slot::StateSlot;
pub use treehold_core::json::{JSON_DEPTH_MAX, Json};
