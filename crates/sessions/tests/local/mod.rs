//! What calls cost, leases and deadlines as time passes, and stores that cannot be reached: tests of the in-memory store.

mod costs;
mod deadline;
mod following;
mod handover;
mod lease;
mod unreachable;
