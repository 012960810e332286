//! Calls of stateless agents: whose turn it is, what interrupts it, and what is saved when it ends.

mod gate;
mod interrupt;
mod lease;
mod line;
mod tickets;

pub use gate::{Turn, TurnGate, TurnKey, TurnOptions, TurnRefusal};
pub use interrupt::{Interrupt, InterruptSource};
pub use tickets::{LeaseGrant, LeaseRenewal, Locks, TurnAnswer, TurnRequest};
