//! The conversations of an agent host, over any [`Store`](treehold_store::Store).
//!
//! An agent host stores its sessions through six contracts. [`Sessions`] implements all of them over one store:
//!
//! | contract | trait |
//! | --- | --- |
//! | messages, turns, compaction | [`SessionStore`] |
//! | the sessions of a user | [`UserSessionLister`] |
//! | the trace of a session | [`SessionTraceStore`] |
//! | the orchestration of a session | [`OrchestrationPersistence`] |
//! | the data of an inspector | [`InspectorDataSource`] |
//! | memory documents and tool results | [`SandboxMemoProvider`] |
//!
//! Messages, events and other values keep their original text, so fields and kinds that this crate does not
//! know survive. A conversation only grows: compaction moves the beginning of its window and destroys nothing. Changes that
//! belong together are one commit.
//!
//! Start with [`Sessions`].

mod append;
mod changes;
mod compact;
mod consolidation;
mod contract;
mod events;
mod info;
mod inspector;
mod kept;
pub mod layout;
mod live;
mod memo;
mod message;
#[cfg(all(feature = "mirror", unix))]
mod mirror;
mod numbers;
mod once;
mod options;
pub mod orchestration;
mod registration;
mod removal;
mod rows;
mod sessions;
mod side;
mod skill_log;
pub mod tokens;
pub mod trace;
mod usage;
mod window;

pub use append::{AppendOptions, Appended};
pub use changes::{SessionChange, SessionFollower, SessionPosition};
pub use compact::{
    COMPACT_MESSAGES_MIN, CompactOptions, Compaction, CompactionPlan, Placeholder, SUMMARY_BYTES_MAX, SessionWindow, SummarizeWith,
    Summarizer, notes_entry, view,
};
pub use consolidation::{Consolidation, ConsolidationOptions, ConsolidationReason, ConsolidationState, Consolidator, MemorySummarizer};
pub use contract::{SessionStore, UserSessionLister};
pub use info::{SessionDescription, SessionInfo, SessionMeta, SessionPage, SessionRef, TurnPage};
pub use inspector::{InspectedPage, InspectedSession, InspectedStatus, InspectorDataSource};
pub use kept::Kept;
pub use memo::{
    MEMO_FILE_BYTES_MAX, MemoFile, MemoMount, MemoScope, MemoryIndexEntry, NOTES, SESSION_MOUNT, SandboxMemoProvider, SessionMemo, TODO,
    TOOL_RESULTS, TodoStorage, ToolResultPage, USER, USER_MOUNT, session_memo, user_memo,
};
pub use message::{Block, Content, Message, Role, TOOL_CALL_ID_BYTES_MAX, TOOL_CALLS_MAX};
#[cfg(all(feature = "mirror", unix))]
pub use mirror::{MemoMirrorOptions, MemoMirrors};
pub use once::{IDEMPOTENCY_KEY_BYTES_MAX, KeyReused, KeyUse};
pub use options::SessionsOptions;
pub use orchestration::OrchestrationPersistence;
pub use removal::SessionsSweeper;
pub use sessions::{Ids, SessionHandle, Sessions};
pub use side::{CheckStatus, Readiness, ReadyCheck, ReadyStatus, SideOrchestration, SideTrace, SideWrites};
pub use skill_log::{SkillLog, SkillLogFile};
pub use trace::SessionTraceStore;
pub use treehold_core::json::{JSON_DEPTH_MAX, Json};
pub use treehold_core::scope::check_id;
pub use usage::{CONTEXT_TOKENS, Cost, SessionContextUsage, TurnUsage, Usage, UsageTotals};
pub use window::{BUDGET_TOKENS, MessagesRead, MessagesView};
