//! The paths that a change can reach: the named path, the targets of links on the way, and their paths before the batch.

use crate::backend::Backend;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Change, EntryKind, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The most earlier paths that one path may have had during a batch.
const PLACES_MAX: usize = 64;

/// Returns every path that a change to `path` may reach: itself, the targets of links on the way, and the targets of links that were
/// elsewhere before earlier changes of the batch.
pub(super) async fn places(tree: &dyn Backend, done: &[Change], path: &VfsPath, follows_last: bool) -> Result<Vec<VfsPathBuf>> {
    let mut places = vec![path.to_owned()];
    for change in done.iter().rev() {
        treehold_core::work::step().await;
        let (Change::Rename { from, to, .. } | Change::Copy { from, to, .. }) = change else { continue };
        // Go one step back for each change, without following paths that this step adds: a move onto its own parent would never end.
        for index in 0..places.len() {
            let before = places[index].strip_prefix(to).map(|rest| from.concat(rest));
            places.extend(before.filter(|before| !places.contains(before)));
        }
        if places.len() > PLACES_MAX {
            let message = format!("too many changes of this batch move what becomes `{path}`; send them one by one");
            return Err(Error::new(ErrorKind::PermissionDenied, message).at(path));
        }
    }
    if !tree.capabilities().symlinks {
        return Ok(places);
    }
    for index in 0..places.len() {
        let resolved = resolved(tree, &places[index], follows_last).await?;
        places.extend(resolved.filter(|resolved| !places.contains(resolved)));
    }
    Ok(places)
}

/// Returns where a path leads through links; `None` if there is no link on the way.
async fn resolved(tree: &dyn Backend, path: &VfsPath, follows_last: bool) -> Result<Option<VfsPathBuf>> {
    for step in path.ancestors().skip(1).chain(follows_last.then_some(path)) {
        match tree.stat(step, &StatOptions::new()).await {
            Ok(entry) if entry.kind == EntryKind::Symlink => {
                let rest = path.strip_prefix(step).map(ToOwned::to_owned);
                let Some((target, rest)) = entry.leads_to.zip(rest) else {
                    let message = format!("`{step}` is a link whose target is not in this tree; name a path without it");
                    return Err(Error::new(ErrorKind::PermissionDenied, message).at(step));
                };
                let on = target.concat(&rest);
                // The target has no links above it, but may have some beneath.
                let further = match rest.is_root() {
                    true => None,
                    false => Box::pin(resolved(tree, &on, follows_last)).await?,
                };
                return Ok(Some(further.unwrap_or(on)));
            }
            Ok(entry) if entry.is_directory() => {}
            Ok(_) => return Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
