//! Chooses which batches of a group one statement writes.
//!
//! A statement costs the server more than a small batch of writes, so fewer statements are better. Consecutive batches without conditions
//! form one part, which is written like a single batch. Consecutive parts share a statement if none writes what another writes or checks:
//! then each finds the same rows as if those before it were done, and has an answer of its own.

use jiff::Timestamp;
use std::collections::BTreeSet;
use treehold_store::effect::Effect;
use treehold_store::{Batch, BatchWrite, Condition, Namespace, unvalidated};

/// The most writes and conditions of a part that shares a statement: the statement compares each row with each part.
const ROWS_MAX: usize = 16;

/// Batches that succeed or fail together: one with conditions, or any number without.
pub(super) struct Part<'g> {
    pub(super) batches: &'g [Batch],
    pub(super) effect: Effect<'g>,
}

/// Splits a group into statements, each with its parts.
pub(super) fn statements(group: &[Batch], now: Timestamp) -> Vec<Vec<Part<'_>>> {
    let mut statements: Vec<Statement<'_>> = Vec::new();
    let mut rest = group;
    while !rest.is_empty() {
        let alike = alike(rest);
        let (batches, others) = rest.split_at(alike);
        rest = others;
        let part = Part { batches, effect: Effect::of(batches.iter().flat_map(|batch| &batch.writes), now) };
        let reach = Reach::of(&part);
        match statements.last_mut().filter(|statement| statement.takes(reach.as_ref())) {
            Some(statement) => statement.add(part, reach),
            None => statements.push(Statement { parts: vec![part], reach }),
        }
    }
    statements.into_iter().map(|statement| statement.parts).collect()
}

/// Counts the leading batches that form one part: consecutive ones without conditions, or only the first. A removal by prefix does not see
/// rows that the same statement appends to a log.
fn alike(group: &[Batch]) -> usize {
    let mut logs: BTreeSet<&Namespace> = BTreeSet::new();
    for (count, batch) in group.iter().enumerate() {
        let clears = |write: &BatchWrite| matches!(write, BatchWrite::DeletePrefix { namespace, .. } if logs.contains(namespace));
        if !is_without_conditions(batch) || batch.writes.iter().any(clears) {
            return count.max(1);
        }
        for write in &batch.writes {
            if let BatchWrite::Append { namespace, .. } = write {
                logs.insert(namespace);
            }
        }
    }
    group.len().max(1)
}

/// Parts that share a statement.
struct Statement<'g> {
    parts: Vec<Part<'g>>,
    /// `None` if the only part must not share the statement.
    reach: Option<Reach<'g>>,
}

impl<'g> Statement<'g> {
    fn takes(&self, other: Option<&Reach<'g>>) -> bool {
        self.reach.as_ref().zip(other).is_some_and(|(reach, other)| !reach.meets(other))
    }

    fn add(&mut self, part: Part<'g>, other: Option<Reach<'g>>) {
        self.parts.push(part);
        if let Some((reach, other)) = self.reach.as_mut().zip(other) {
            reach.written.extend(other.written);
            reach.asked.extend(other.asked);
            reach.asked_beneath.extend(other.asked_beneath);
        }
    }
}

/// A restore is a separate part: the counter must exceed its version before the next put.
fn is_without_conditions(batch: &Batch) -> bool {
    batch.preconditions.is_empty() && !batch.writes.iter().any(|write| matches!(write, BatchWrite::Restore { .. }))
}

/// The keys that parts write and check.
struct Reach<'g> {
    written: BTreeSet<(&'g Namespace, &'g str)>,
    asked: BTreeSet<(&'g Namespace, &'g str)>,
    asked_beneath: Vec<(&'g Namespace, &'g str)>,
}

impl<'g> Reach<'g> {
    /// Returns the reach of a part if it may share a statement: it takes as many numbers of the counter as it has puts, whatever it finds,
    /// and is small.
    fn of(part: &Part<'g>) -> Option<Self> {
        let Effect { puts, appends, deletes, prefixes, touches, numbers, floor, .. } = &part.effect;
        let conditions = || part.batches.iter().flat_map(|batch| &batch.preconditions);
        // Appends to a log conflict with nothing.
        let is_small = puts.len() + appends.len() + deletes.len() + conditions().count() <= ROWS_MAX;
        if !is_small || *numbers == 0 || *floor > 0 || !prefixes.is_empty() || !touches.is_empty() {
            return None;
        }
        let written = puts.iter().map(|put| (put.namespace, put.key)).chain(deletes.iter().copied()).collect();
        let mut reach = Self { written, asked: BTreeSet::new(), asked_beneath: Vec::new() };
        for condition in conditions() {
            let at = (&condition.namespace, &condition.key[..]);
            match condition.condition {
                Condition::NoneBeneath | Condition::NoneBeneathSince(_) => reach.asked_beneath.push(at),
                Condition::Absent | Condition::Exists | Condition::Version(_) => drop(reach.asked.insert(at)),
                _ => unvalidated(),
            }
        }
        Some(reach)
    }

    /// Returns whether either writes what the other writes or checks.
    fn meets(&self, other: &Self) -> bool {
        other.written.iter().any(|at| {
            self.written.contains(at) || self.asked.contains(at) || self.asked_beneath.iter().any(|range| lies_beneath(at, range))
        }) || other.asked.iter().any(|at| self.written.contains(at))
            || other.asked_beneath.iter().any(|range| self.written.range(*range..).next().is_some_and(|at| lies_beneath(at, range)))
    }
}

fn lies_beneath(at: &(&Namespace, &str), range: &(&Namespace, &str)) -> bool {
    at.0 == range.0 && at.1.starts_with(range.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of batches in each part of each statement.
    fn cut(group: &[Batch]) -> Vec<Vec<usize>> {
        let sizes = |parts: Vec<Part<'_>>| parts.iter().map(|part| part.batches.len()).collect();
        statements(group, Timestamp::UNIX_EPOCH).into_iter().map(sizes).collect()
    }

    #[test]
    fn parts_share_a_statement_unless_one_writes_what_another_writes_or_checks() {
        let [a, b] = ["a", "b"].map(|name| Namespace::parse(name).expect("a legal namespace"));
        let put = |key: &str| Batch::new().put(&a, key, "v");
        let new = |key: &str| put(key).expect(&a, key, Condition::Absent);
        for (what, group, expected) in [
            ("different keys", vec![new("k"), new("l"), new("m")], vec![vec![1, 1, 1]]),
            ("the same key", vec![new("k"), new("l"), new("k")], vec![vec![1, 1], vec![1]]),
            ("another namespace", vec![new("k"), Batch::new().expect(&b, "k", Condition::Absent).put(&b, "k", "v")], vec![vec![1, 1]]),
            ("a key with a condition", vec![put("k").expect(&a, "l", Condition::Exists), new("l")], vec![vec![1], vec![1]]),
            ("a key that was written", vec![new("l"), put("k").expect(&a, "l", Condition::Exists)], vec![vec![1], vec![1]]),
            (
                "a condition of both",
                vec![put("k").expect(&a, "x", Condition::Exists), put("l").expect(&a, "x", Condition::Exists)],
                vec![vec![1, 1]],
            ),
            ("beneath a condition", vec![put("k").expect(&a, "d/", Condition::NoneBeneath), new("d/x")], vec![vec![1], vec![1]]),
            (
                "beneath a condition, written before",
                vec![new("d/x"), put("k").expect(&a, "d/", Condition::NoneBeneath)],
                vec![vec![1], vec![1]],
            ),
            ("beside a condition", vec![put("k").expect(&a, "d/", Condition::NoneBeneath), new("e/x")], vec![vec![1, 1]]),
            ("a key that is deleted", vec![new("k").delete(&a, "l"), new("l")], vec![vec![1], vec![1]]),
            ("without conditions", vec![put("k"), put("k"), new("l"), put("m")], vec![vec![2, 1, 1]]),
            ("a prefix", vec![new("k"), new("l").delete_prefix(&a, "d/"), new("m")], vec![vec![1], vec![1], vec![1]]),
            ("nothing put", vec![new("k"), Batch::new().delete(&a, "l"), new("m")], vec![vec![1], vec![1], vec![1]]),
            (
                "a log that is cleared behind",
                vec![Batch::new().append(&a, "e", None), put("k"), Batch::new().delete_prefix(&a, "")],
                vec![vec![2], vec![1]],
            ),
            (
                "many rows",
                vec![new("k"), (0..ROWS_MAX).fold(new("l"), |batch, number| batch.put(&a, format!("{number}"), "v"))],
                vec![vec![1], vec![1]],
            ),
        ] {
            assert_eq!(cut(&group), expected, "{what}");
        }
    }
}
