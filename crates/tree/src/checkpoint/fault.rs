//! Errors that all checkpointers share.

use super::CheckpointId;
use treehold_core::error::{Error, ErrorKind};
use treehold_core::ops::Version;

pub(super) fn no_thread(thread: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("no thread `{thread}` is saved; `treehold thread ls` lists them"))
}

pub(super) fn no_checkpoint(thread: &str, id: CheckpointId) -> Error {
    Error::new(ErrorKind::NotFound, format!("thread `{thread}` has no checkpoint `{id}`; `treehold checkpoint ls` lists them"))
}

pub(super) fn taken(thread: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("thread `{thread}` exists already; choose another id")).without_effect()
}

/// Returns the error for a thread whose head changed before every attempt to follow it.
pub(super) fn busy(thread: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("thread `{thread}` keeps being changed by others; try again")).without_effect()
}

/// Returns the error for a save to a thread that changed meanwhile, with the version of its current head.
pub(super) fn saved_meanwhile(thread: &str, current: Option<Version>) -> Error {
    let now = match current {
        Some(version) => format!("it was saved by another session meanwhile, as version `{version}`"),
        None => "it was removed meanwhile".to_owned(),
    };
    let message = format!("thread `{thread}` is not saved: {now}; redo the changes on its current state, or save them as another thread");
    Error::new(ErrorKind::Conflict, message).with_current_version(current).without_effect()
}
