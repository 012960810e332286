//! The states of stateless agents, over any [`Store`](treehold_store::Store).
//!
//! An agent object holds only configuration. All that changes during a conversation is its state, which a [`StateSlot`] addresses by
//! user and session: it is loaded at the start of a call and saved at its end, so that any process can serve any call.

pub mod bundle;
pub mod bus;
mod cache;
pub mod call;
pub mod compact;
mod contract;
mod export;
pub mod kv;
pub mod layouts;
mod legacy;
pub mod locks;
mod log;
mod operator;
mod options;
mod owner;
mod policy;
mod proofs;
mod rows;
mod schedule;
pub mod scopes;
mod shared;
mod slot;
mod state;
mod states;
mod store_states;
mod sweep;
pub mod transcript;
pub mod undo;
mod value;

pub use cache::CachedStates;
pub use contract::{
    AgentStateStore, DeleteOptions, DeleteSessionOptions, Expected, Fence, FenceFallen, SaveOptions, SessionIdPage, StateCapabilities,
    StateConflict, StateForm, StateKey, StateVersion, UserPage, VersionedState,
};
pub use export::{MessageText, SessionExport, StateEntry, conversation_markdown, conversation_messages, export_session, list_text};
pub use legacy::{
    AGENT_STATE_KEY, FoundState, LEGACY_MESSAGES_KEY, LEGACY_TOOL_GROUPS_KEY, LegacyState, SANDBOX_STATE_KEY, SandboxOwner,
    load_with_legacy, sandbox_slot,
};
pub use operator::{CompactionCounts, OperatorCompaction, SessionCompactor, compact_session};
pub use options::{AgentStatesOptions, Expiry};
pub use owner::{BundleOwner, NAME_BYTES_MAX};
pub use policy::{ConflictPolicy, LoadedState, PolicySave, StateSaver};
pub use shared::{StatesNotShared, require_shared};
pub use slot::StateSlot;
pub use state::{
    AgentState, Attribute, AudioBlock, Base64Source, Block, CallName, CallState, DataBlock, Entries, Flaw, GenerateReason, HintBlock,
    ImageBlock, JsonForm, METADATA_CHAT_USAGE, METADATA_GENERATE_REASON, METADATA_SYNTHETIC, Message, MessageFields, NewTask, OpenCall,
    PermissionBehavior, PermissionContext, PermissionMode, PermissionRule, PlanModeContext, Role, Rules, RuntimeContext, Source,
    SpawnEntry, TASKS_MAX, Task, TaskState, TasksContext, TextBlock, ThinkingBlock, ToolCallState, ToolContext, ToolResultBlock,
    ToolResultState, ToolUseBlock, UrlSource, Usage, VideoBlock, WorkingDirectory, parse_message_time, render_message_time,
};
pub use states::AgentStates;
pub use store_states::{HistoryEntry, HistoryPage, StoreStates};
pub use sweep::AgentStatesSweeper;
pub use treehold_core::json::{JSON_DEPTH_MAX, Json};
