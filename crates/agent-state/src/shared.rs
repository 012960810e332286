//! Agents whose files are shared need a state store that is shared, too.

use crate::contract::AgentStateStore;
use std::fmt;
use treehold_core::error::{Error, ErrorKind, Result};

/// The files of an agent are shared and its states are not: the source of such a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatesNotShared;

impl fmt::Display for StatesNotShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the states are not shared")
    }
}

impl std::error::Error for StatesNotShared {}

/// Refuses a state store that other machines cannot use for an agent whose files they can use: in a sandbox or remote filesystem, for
/// example. Such an agent would forget its conversations as soon as another machine serves it. A wrapper answers for its inner store, so
/// no wrapper hides the problem.
///
/// Someone who runs one machine only, and accepts this, does not call the function.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported), from [`StatesNotShared`].
pub fn require_shared(states: &dyn AgentStateStore, files_shared: bool) -> Result<()> {
    if !files_shared || states.capabilities().shared {
        return Ok(());
    }
    let message = format!(
        "the files of the agent are shared between machines and its states in `{states}` are not; \
        keep them in a shared store, or allow it explicitly if only one machine runs the agent"
    );
    Err(Error::new(ErrorKind::Unsupported, message).with_source(StatesNotShared))
}
