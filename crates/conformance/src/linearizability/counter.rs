//! The version counter of a partition: no version is given twice, and each is newer than all that were known before.

use super::{Action, Operation, Outcome, Violation, Write};
use std::collections::HashMap;

/// Checks the versions in the calls of a partition without a search: each answer on its own, and against those given before the call began.
pub(super) fn check(history: &[Operation], operations: &[usize]) -> Result<(), Violation> {
    let mut given: HashMap<u64, usize> = HashMap::new();
    for at in operations.iter().copied() {
        let operation = &history[at];
        if operation.end.is_some_and(|end| end < operation.start) {
            return Err(Violation::new("a call ended before it started", vec![at]));
        }
        let Action::Commit { writes, outcome: Outcome::Done(versions), .. } = &operation.action else { continue };
        let puts = writes.iter().filter(|write| matches!(write, Write::Put { .. })).count();
        if versions.len() != puts {
            return Err(Violation::new(format!("a batch of {puts} puts was given {} versions", versions.len()), vec![at]));
        }
        if !versions.is_sorted_by(|one, next| one < next) {
            return Err(Violation::new(format!("the versions of a batch do not grow: {versions:?}"), vec![at]));
        }
        for version in versions {
            if let Some(other) = given.insert(*version, at) {
                return Err(Violation::new(format!("version {version} was given twice"), vec![other, at]));
            }
        }
    }
    in_real_time(history, operations)
}

/// Checks that calls that started after a version was known got a newer one.
fn in_real_time(history: &[Operation], operations: &[usize]) -> Result<(), Violation> {
    let mut starts = operations.to_vec();
    starts.sort_by_key(|at| history[*at].start);
    let mut ends: Vec<(u64, usize)> = operations.iter().filter_map(|at| Some((history[*at].end?, *at))).collect();
    ends.sort_unstable();
    let mut ended = ends.into_iter().peekable();
    // The newest version reported so far, and the call that reported it.
    let mut newest = (0, 0);
    for at in starts {
        let operation = &history[at];
        while let Some((_, before)) = ended.next_if(|(end, _)| *end < operation.start) {
            newest = newest.max((told(&history[before].action), before));
        }
        let (version, is_put) = match &operation.action {
            Action::Commit { outcome: Outcome::Done(versions), .. } if !versions.is_empty() => (versions[0], true),
            Action::CurrentVersion { version, .. } => (*version, false),
            Action::Commit { .. } | Action::Read(_) => continue,
        };
        if version < newest.0 || (is_put && version == newest.0) {
            let message = format!("version {version} was given when {} was known already", newest.0);
            return Err(Violation::new(message, vec![newest.1, at]));
        }
    }
    Ok(())
}

/// Returns the newest version that an answer reports.
fn told(action: &Action) -> u64 {
    match action {
        Action::Read(rows) => rows.iter().filter_map(|sight| Some(sight.row.as_ref()?.version)).max().unwrap_or(0),
        Action::CurrentVersion { version, .. } => *version,
        Action::Commit { outcome: Outcome::Done(versions), .. } => versions.last().copied().unwrap_or(0),
        Action::Commit { outcome: Outcome::Refused { met, .. }, .. } => met.unwrap_or(0),
        Action::Commit { outcome: Outcome::Failed | Outcome::Unknown, .. } => 0,
    }
}
