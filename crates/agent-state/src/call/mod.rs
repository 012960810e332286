//! Calls of stateless agents: whose turn it is, what interrupts them, and what is saved when they end.
//!
//! Start with [`StatelessAgent`]. Its calls take turns at a [`TurnGate`]. Callers elsewhere take theirs with a [`TurnRequest`].
//! `docs/design/agent-turns.md` describes the rows and the rules.

mod agent;
mod gate;
mod interrupt;
mod lease;
mod line;
mod running;
mod shutdown;
mod tickets;

pub use agent::{AgentOptions, CallError, CallOutcome, Durability, InterruptedCall, PartialReasoning, StatelessAgent};
pub use gate::{Turn, TurnGate, TurnKey, TurnOptions, TurnRefusal};
pub use interrupt::{Interrupt, InterruptSource};
pub use running::{Call, CallInterrupted};
pub use shutdown::{Shutdown, ShutdownState};
pub use tickets::{LeaseGrant, LeaseRenewal, TurnAnswer, TurnRequest};
