//! What the parts of a bundle keep of one session.

use super::tasks::tasks_of;
use super::tools;
use crate::owner::BundleOwner;
use crate::{bus, transcript};
use treehold_core::error::Result;
use treehold_store::Batch;

/// Adds the removal of a session's transcript, inbox, events, tasks and tool runs to the batch that deletes the session, so that no later
/// session of the same name finds them.
pub(crate) fn remove_session(batch: Batch, owner: &BundleOwner, session: &str) -> Result<Batch> {
    let rows = transcript::namespaces_of(owner, session)?.into_iter().chain(bus::namespaces_of(owner, session)?);
    let rows = rows.chain([tasks_of(owner, session)?]).chain(tools::namespaces_of(owner, session)?);
    Ok(rows.fold(batch, |batch, rows| batch.delete_prefix(&rows, "")))
}
