//! When the state of a thread becomes durable.

use serde::{Deserialize, Serialize};
use std::fmt;

/// When the state of a thread is saved automatically.
///
/// With any setting, [`Session::save`](crate::session::Session::save) and [`Session::checkpoint`](crate::session::Session::checkpoint) save it when called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThreadDurability {
    /// Saves each change of the state before the change is acknowledged.
    Sync,
    /// Saves the state after each tool call or batch that changed it.
    #[default]
    Step,
    /// Saves the state when the session is closed.
    Exit,
}

impl fmt::Display for ThreadDurability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sync => "sync",
            Self::Step => "step",
            Self::Exit => "exit",
        })
    }
}
