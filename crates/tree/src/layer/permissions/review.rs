//! Checks changes that bypass the tree against the rules: each path that a restore, a merge or a fork changes, and what they reveal.

use super::{ApprovalRequest, Permissions, denied};
use crate::backend::Backend;
use crate::layer::permissions::rule::Effect;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Difference, OpKind, Review, ReviewPurpose, Sight};
use treehold_core::path::VfsPathBuf;

/// Checks differences against the rules, then lets the inner tree review them.
///
/// # Errors
/// `permission_denied` for a path that may not be changed this way; a hidden path is not named.
pub(super) async fn review<B: Backend>(layer: &Permissions<B>, review: &Review) -> Result<Vec<Sight>> {
    if layer.policy.is_open() {
        return layer.inner.review(review).await;
    }
    if review.purpose == ReviewPurpose::Whole
        && [OpKind::Stat, OpKind::Read].iter().any(|kind| layer.policy.may_refuse_beneath(*kind, &review.at))
    {
        let message = "this covers the whole tree, and rules hide a part of it from you; ask somebody who may read all of it";
        return Err(Error::new(ErrorKind::PermissionDenied, message).at(&review.at));
    }
    if matches!(review.purpose, ReviewPurpose::Change | ReviewPurpose::Permit) {
        let asked = check(layer, review)?;
        if !asked.is_empty() && (review.purpose == ReviewPurpose::Change || layer.approver.is_none()) {
            layer.ask(OpKind::Apply, asked, &[]).await?;
        }
    }
    let mut sights = layer.inner.review(review).await?;
    for (sight, difference) in sights.iter_mut().zip(&review.differences) {
        *sight = (*sight).min(sight_of(layer, difference));
    }
    Ok(sights)
}

/// Checks every difference and returns the paths that need approval.
fn check<B: Backend>(layer: &Permissions<B>, review: &Review) -> Result<Vec<VfsPathBuf>> {
    let (policy, mut asked) = (&layer.policy, Vec::new());
    for difference in &review.differences {
        let path = &difference.path;
        if review.covers_beneath {
            let mut kinds = std::iter::once(&OpKind::Stat).chain(difference.operations());
            if kinds.any(|kind| policy.may_refuse_beneath(*kind, path)) {
                let message = "this would change files that cannot be listed, and a rule may protect some of them; nothing was changed, \
                               ask somebody whose rules refuse nothing";
                return Err(Error::new(ErrorKind::PermissionDenied, message).at(&review.at));
            }
            continue;
        }
        if !policy.shows(path, difference.is_directory()) {
            let message = "this would change something that a rule protects; nothing was changed, skip it, or tell the user";
            return Err(Error::new(ErrorKind::PermissionDenied, message).at(&review.at));
        }
        for kind in difference.operations() {
            match policy.decide(*kind, path) {
                Effect::Allow => {}
                Effect::Ask if asked.len() < ApprovalRequest::PATHS_MAX => asked.push(path.clone()),
                Effect::Ask => {}
                Effect::Deny => return Err(denied(policy, *kind, *kind, path)),
            }
        }
    }
    Ok(asked)
}

fn sight_of<B>(layer: &Permissions<B>, difference: &Difference) -> Sight {
    let path = &difference.path;
    if !layer.policy.shows(path, difference.is_directory()) {
        return Sight::Hidden;
    }
    // Content that needs approval is not shown without it, as in searches.
    match layer.policy.decide(OpKind::Read, path) {
        Effect::Allow => Sight::Open,
        Effect::Ask | Effect::Deny if difference.is_directory() => Sight::Open,
        Effect::Ask | Effect::Deny => Sight::Named,
    }
}
