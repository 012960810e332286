//! When the state of a thread becomes durable.

use serde::{Deserialize, Serialize};
use std::fmt;

/// When the state of a thread is saved by itself.
///
/// Whatever is set, [`Session::save`](crate::Session::save) and [`Session::checkpoint`](crate::Session::checkpoint) save it
/// when they are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThreadDurability {
    /// Each change of the state is saved before it is answered.
    Sync,
    /// The state is saved after each tool call or batch that changed it.
    #[default]
    Step,
    /// The state is saved when the session is closed.
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
