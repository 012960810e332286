//! Tracks the writes of a transaction's earlier batches for the preconditions of later ones, without I/O.
//!
//! Preconditions are read before the transaction writes anything, so the effects of its earlier batches are overlaid on
//! what was read.

use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use treehold_store::Namespace;
use treehold_store::effect::{Effect, Prefixes};

/// What a condition finds at a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    /// A live row with this version.
    Version(u64),
    /// No live row.
    Absent,
}

/// The writes of the batches so far.
#[derive(Debug, Default)]
pub(super) struct Overlay<'b> {
    rows: BTreeMap<(&'b Namespace, &'b str), Met>,
    touched: BTreeSet<(&'b Namespace, &'b str)>,
    prefixes: Prefixes<'b>,
}

impl<'b> Overlay<'b> {
    /// Adds a batch whose numbers start above `counter`.
    pub(super) fn add(&mut self, effect: &Effect<'b>, counter: u64, now: Timestamp) {
        let is_over = |expires_at: Option<i64>| expires_at.is_some_and(|at| at <= now.as_microsecond());
        for &(namespace, prefix) in &effect.prefixes {
            let following = self.rows.range((namespace, prefix)..).map(|(at, _)| *at);
            let beneath: Vec<_> = following.take_while(|at| is_beneath(*at, namespace, prefix)).collect();
            for at in beneath {
                self.rows.remove(&at);
            }
            self.prefixes.insert(namespace, prefix);
        }
        for &at in &effect.deletes {
            self.rows.insert(at, Met::Absent);
        }
        for put in &effect.puts {
            let version = put.version.unwrap_or(counter + 1 + put.number);
            let met = if is_over(put.expires_at) { Met::Absent } else { Met::Version(version) };
            self.rows.insert((put.namespace, put.key), met);
        }
        for &(namespace, key, expires_at) in &effect.touches {
            self.touched.insert((namespace, key));
            // A touch leaves an absent row absent, and a live row keeps its version.
            if is_over(expires_at) {
                self.rows.insert((namespace, key), Met::Absent);
            }
        }
    }

    /// Returns what a condition finds at a key; `None` if no batch wrote to it.
    pub(super) fn met(&self, namespace: &Namespace, key: &str) -> Option<Met> {
        let is_removed = || self.prefixes.cover(namespace, key);
        self.rows.get(&(namespace, key)).copied().or_else(|| is_removed().then_some(Met::Absent))
    }

    /// Returns whether a batch wrote below a prefix.
    pub(super) fn is_beneath(&self, namespace: &Namespace, prefix: &str) -> bool {
        let row = self.rows.range((namespace, prefix)..).next().map(|(at, _)| *at);
        let touched = self.touched.range((namespace, prefix)..).next().copied();
        [row, touched].into_iter().flatten().any(|at| is_beneath(at, namespace, prefix))
            || self.prefixes.lie_beneath(namespace, prefix)
            || self.prefixes.cover(namespace, prefix)
    }
}

fn is_beneath(at: (&Namespace, &str), namespace: &Namespace, prefix: &str) -> bool {
    at.0 == namespace && at.1.starts_with(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use treehold_store::Batch;

    #[test]
    fn later_batches_see_the_writes_of_earlier_ones() {
        let a = Namespace::parse("a").expect("a legal namespace");
        let now = Timestamp::from_microsecond(1_000).expect("a time");
        let first = Batch::new().put(&a, "k", "").put(&a, "d/x", "").put_for(&a, "over", "", Duration::ZERO);
        let second = Batch::new().delete_prefix(&a, "d/").touch(&a, "t", Some(Duration::ZERO));
        let third = Batch::new().put(&a, "d/y", "");
        let mut overlay = Overlay::default();
        assert_eq!((overlay.met(&a, "k"), overlay.is_beneath(&a, "")), (None, false));
        overlay.add(&Effect::of(&first.writes, now), 10, now);
        assert_eq!(overlay.met(&a, "k"), Some(Met::Version(11)));
        assert_eq!((overlay.met(&a, "over"), overlay.met(&a, "other")), (Some(Met::Absent), None));
        assert!(overlay.is_beneath(&a, "d/") && !overlay.is_beneath(&a, "e/"));
        overlay.add(&Effect::of(&second.writes, now), 13, now);
        assert_eq!((overlay.met(&a, "d/x"), overlay.met(&a, "d/never")), (Some(Met::Absent), Some(Met::Absent)));
        assert_eq!(overlay.met(&a, "t"), Some(Met::Absent));
        assert!(overlay.is_beneath(&a, "d/deeper/"), "a prefix above it was removed");
        overlay.add(&Effect::of(&third.writes, now), 13, now);
        assert_eq!(overlay.met(&a, "d/y"), Some(Met::Version(14)));
    }
}
