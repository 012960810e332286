//! The live threads of a workspace: their states, when these are saved, and which mounts show them.
//!
//! A [`Session`](crate::session::Session) is a caller's handle on one of them.

mod durability;
mod held;
mod open;
mod reach;
mod thread;

pub use durability::ThreadDurability;
pub(crate) use open::OpenThreads;
pub(crate) use reach::{Mounted, Reach};
#[cfg(test)]
pub(crate) use thread::tests::Lossy;
pub(crate) use thread::{LiveThread, ThreadTree};

use treehold_core::error::Error;

/// Returns the error for changes that were made in memory but could not be saved.
pub(crate) fn unsaved_until(error: Error, until: &str) -> Error {
    let message = format!("the change was made but is not saved yet: {}; {until}", error.message());
    error.with_message(message).with_unknown_effect()
}
