//! The orchestration of a session: the agents of a run, their inputs, jobs and waits, as a log of events.
//!
//! The log is authoritative. A checkpoint is the state up to an event; it is written with that event and shortens the
//! replay. Each agent has a mailbox: a separate log, with a count of its processed events. The commit that removes an input
//! from the queue also counts it, so after a crash the input is either still queued or processed, never both. Inputs are
//! delivered in order and at least once.
//!
//! At most one manager runs an orchestration. It holds a claim, and each of its commits depends on that claim.

mod claim;
mod event;
mod manager;
mod persistence;
mod recover;
mod snapshot;

pub use claim::Claim;
pub use event::{
    AgentJob, AgentSpawn, AgentStatus, CloseRequest, EventFields, EventKind, InitialTask, InputRemoval, JobOutcome, MailboxEvent,
    MailboxEventFields, MailboxEventKind, MailboxState, MailboxStateFields, OrchestrationEvent, QueuedInput, RunStatus, WaitKind,
    WaitMatch, WaitRegistration,
};
pub use manager::{AgentRuntime, Delivery, ManagerOptions, OrchestrationManager};
pub(crate) use persistence::put_event;
pub use persistence::{OrchestrationCommit, OrchestrationEntry, OrchestrationPage, OrchestrationPersistence, StoredOrchestration};
pub use recover::{RecoveredState, recover};
pub use snapshot::{Agent, InputEnvelope, Run, Snapshot, SnapshotFields, Task, Wait, WaitStatus};
