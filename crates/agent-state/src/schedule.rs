//! When a sweep visits which owner.
//!
//! What is due for an owner is in the owner's partition. One list for all owners, the *schedule*, has the visits. The key of each row of
//! [`Owner::due`] begins with the time of its visit, and the row needs the [proof](Owner::visit_proof) of that visit. A visit does what its
//! rows say, and is removed once none of them is left.
//!
//! The visits of an owner are on a grid of times, so that rows that are due at about the same time share a visit. Each owner's grid is
//! shifted, so that not all owners are visited at once.

use crate::rows::{Due, Owner, sealed_row, time_key};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use treehold_core::error::Result;
use treehold_core::reserved::{AGENT_STATE, RESERVED_ROOT};
use treehold_store::Namespace;
use treehold_store::proof::Proof;

/// The finest grid of visits, in seconds.
const GRID_SECONDS_MIN: u64 = 1 << 6;

/// The coarsest grid of visits, in seconds: 12 days.
const GRID_SECONDS_MAX: u64 = 1 << 20;

/// How long the data of an interrupted deletion may wait for a visit: 4.6 hours. The deletions of an owner within this time share a visit.
const DELETION_SLACK: Duration = Duration::from_secs(1 << 14);

/// The prefix of the keys of proofs of visits.
pub(crate) const VISITS: &str = "p\u{1}visit\u{1}";

/// The visits of all owners, by time. Earlier versions kept here what is due of all owners.
pub(crate) fn schedule() -> Namespace {
    Namespace::new(AGENT_STATE.into_iter().chain([RESERVED_ROOT, "due"])).expect("four plain components")
}

/// A row of the [`schedule`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Scheduled {
    Visit(Visit),
    /// From an earlier version.
    Former(Due),
}

/// A visit of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Visit {
    pub(crate) owner: Owner,
}

impl Owner {
    /// Returns the proof that there is a visit at this time.
    pub(crate) fn visit_proof(&self, visit: i64) -> Result<Proof> {
        let time = time_key(visit);
        let entry = format!("{time}\u{1}{}\u{1}{}\u{1}{}", self.tenant, self.user_key(), self.agent);
        let value = sealed_row(&Scheduled::Visit(Visit { owner: self.clone() }));
        Ok(Proof::new(self.states()?, format!("{VISITS}{time}"), schedule(), entry, value))
    }

    /// Returns when a sweep visits something that is due at a time. The visit is later by less than a quarter of the time until then, or than
    /// 64 seconds if that is more, and never by over 12 days.
    pub(crate) fn visit_for(&self, now: i64, at: i64) -> i64 {
        let wait = u64::try_from(at.saturating_sub(now)).unwrap_or_default();
        visit_time(at, Duration::from_millis(wait / 4), self.seed())
    }

    /// Returns when a sweep visits what a deletion that begins now may leave behind.
    pub(crate) fn visit_for_deletion(&self, now: i64) -> i64 {
        visit_time(now, DELETION_SLACK, self.seed())
    }

    /// A number that shifts the visits of this owner.
    fn seed(&self) -> u64 {
        let name = format!("{}\u{1}{}\u{1}{}", self.tenant, self.user_key(), self.agent);
        let hash = blake3::hash(name.as_bytes());
        u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("8 of 32 bytes"))
    }
}

/// Returns the first time of a grid that is not before `at`, in milliseconds since 1970. It is later by less than `slack`, which counts as 64
/// seconds at the least and 12 days at the most.
fn visit_time(at: i64, slack: Duration, seed: u64) -> i64 {
    let slack = slack.as_secs().clamp(GRID_SECONDS_MIN, GRID_SECONDS_MAX);
    let width = 1_u64 << slack.ilog2();
    let [width, shift] = [width, seed % width].map(|seconds| i64::try_from(seconds).expect("at most 2^20") * 1_000);
    let past = at.saturating_sub(shift).rem_euclid(width);
    if past == 0 { at } else { at.saturating_add(width - past) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{Task, unsealed_row};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn visit_time_is_not_before_the_due_time_and_within_the_slack(
            at in 0..1_i64 << 50,
            slack in prop_oneof![0..100_u64, 0..1_u64 << 30],
            seed in any::<u64>(),
        ) {
            let visit = visit_time(at, Duration::from_secs(slack), seed);
            prop_assert!(visit >= at);
            prop_assert!(visit - at < 1_000 * i64::try_from(slack.clamp(GRID_SECONDS_MIN, GRID_SECONDS_MAX)).expect("small"));
            prop_assert_eq!(visit_time(visit, Duration::from_secs(slack), seed), visit);
        }
    }

    #[test]
    fn visit_time_of_the_latest_time_saturates() {
        assert_eq!(visit_time(i64::MAX, Duration::MAX, 7), i64::MAX);
    }

    #[test]
    fn schedule_row_of_either_form_round_trips() {
        let owner = Owner { tenant: "acme".into(), user: Some("ada".into()), agent: "helper".into() };
        let due = Due { owner: owner.clone(), session: "s".into(), data: "d".into(), task: Task::RemoveLog("l".into()) };
        for scheduled in [Scheduled::Former(due), Scheduled::Visit(Visit { owner })] {
            let read: Scheduled = unsealed_row("row", &sealed_row(&scheduled).into()).expect("readable");
            assert_eq!(read, scheduled);
        }
        let of_a_later_version = r#"{"owner":{"tenant":"acme","user":"ada","agent":"helper"},"session":"s","data":"d","task":"later"}"#;
        let read = unsealed_row::<Scheduled>("row", &crate::rows::seal(of_a_later_version.as_bytes()).into());
        assert!(read.is_err(), "{read:?}");
    }
}
