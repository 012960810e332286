//! Tracks the writes of a transaction's earlier batches for the preconditions of later ones, without I/O.
//!
//! Preconditions are read before the transaction writes anything, so the effects of its earlier batches are overlaid on
//! what was read.

use crate::store::Namespace;
use crate::store::effect::Effect;
use jiff::Timestamp;
use std::collections::HashMap;

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
    rows: HashMap<(&'b Namespace, &'b str), Met>,
    touched: Vec<(&'b Namespace, &'b str)>,
    prefixes: Vec<(&'b Namespace, &'b str)>,
}

impl<'b> Overlay<'b> {
    /// Adds a batch whose numbers start above `counter`.
    pub(super) fn add(&mut self, effect: &Effect<'b>, counter: u64, now: Timestamp) {
        let is_over = |expires_at: Option<i64>| expires_at.is_some_and(|at| at <= now.as_microsecond());
        for &(namespace, prefix) in &effect.prefixes {
            self.rows.retain(|(of, key), _| *of != namespace || !key.starts_with(prefix));
            self.prefixes.push((namespace, prefix));
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
            self.touched.push((namespace, key));
            // A touch leaves an absent row absent, and a live row keeps its version.
            if is_over(expires_at) {
                self.rows.insert((namespace, key), Met::Absent);
            }
        }
    }

    /// Returns what a condition finds at a key; `None` if no batch wrote to it.
    pub(super) fn met(&self, namespace: &Namespace, key: &str) -> Option<Met> {
        let is_removed = || self.prefixes.iter().any(|(of, prefix)| *of == namespace && key.starts_with(prefix));
        self.rows.get(&(namespace, key)).copied().or_else(|| is_removed().then_some(Met::Absent))
    }

    /// Returns whether a batch wrote below a prefix.
    pub(super) fn is_beneath(&self, namespace: &Namespace, prefix: &str) -> bool {
        let is_in = |of: &Namespace, key: &str| of == namespace && key.starts_with(prefix);
        self.rows.keys().any(|(of, key)| is_in(of, key))
            || self.touched.iter().any(|(of, key)| is_in(of, key))
            || self.prefixes.iter().any(|(of, other)| is_in(of, other) || (*of == namespace && prefix.starts_with(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Batch;
    use std::time::Duration;

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
