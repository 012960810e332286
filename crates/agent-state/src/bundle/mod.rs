//! What the processes of an agent share besides states: a registry of tool runs, a repository of tasks, snapshots of sandboxes, and the
//! bundle that hands all parts to a runtime.
//!
//! Each part keeps its rows beneath a [`BundleOwner`](crate::BundleOwner) in any store. [`DistributedStore`] holds one of each.

mod distributed;
mod session;
mod snapshots;
mod tasks;
mod tools;

pub use distributed::{AgentBundle, AgentBundleBuilder, DistributedStore, FilesystemSpec};
pub(crate) use session::remove_session;
pub use snapshots::{SNAPSHOT_BYTES_MAX, SnapshotInfo, Snapshots};
pub use tasks::{TASK_REFERENCES_MAX, TASKS_PAGE_MAX, TaskPage, TaskRecord, TaskReference, TaskRepository, TaskStatus, TaskUpdate};
pub use tools::{AsyncToolRecord, AsyncToolRegistry, AsyncToolStatus, STALE_TOOLS_MAX};

use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};

/// How long finished tool runs and tasks, and unused snapshots, are kept.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The largest text of a result, an error or a header of a record in bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;

fn check_text(what: &str, text: &str) -> Result<()> {
    if text.len() <= TEXT_BYTES_MAX {
        return Ok(());
    }
    let message =
        format!("the {what} has {} bytes and at most {TEXT_BYTES_MAX} are allowed; store it as a file and name the file", text.len());
    Err(Error::new(ErrorKind::TooLarge, message).without_effect())
}
