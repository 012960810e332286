//! Decides which batches of a transaction hold, by what was read under the lock, without I/O.

use super::overlay::{Met, Overlay};
use jiff::Timestamp;
use std::borrow::Cow;
use std::collections::HashMap;
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;
use treehold_store::effect::Effect;
use treehold_store::{Batch, BatchWrite, Condition, Precondition, log_key, precondition_failed, unvalidated};

/// The decisions on the batches of a transaction.
#[derive(Default)]
pub(super) struct Decided<'g> {
    /// The answers, up to the first batch that must wait for the next transaction.
    pub(super) answers: Vec<Result<Vec<Version>>>,
    pub(super) runs: Vec<Run<'g>>,
    /// How many numbers the batches take from the counter.
    pub(super) numbers: u64,
    /// The counter after them, if they take any.
    pub(super) counter: u64,
}

/// Batches written as one.
pub(super) struct Run<'g> {
    pub(super) batches: Vec<&'g Batch>,
    /// The counter before them.
    pub(super) counter: u64,
    /// Whether the run restores items. Then the counter ends above their versions rather than above the run's numbers.
    restores: bool,
}

impl<'g> Run<'g> {
    /// Returns the writes. Appends to logs get their keys here, since the versions are known.
    pub(super) fn keyed(&self) -> Vec<Cow<'g, BatchWrite>> {
        let mut number = self.counter;
        let writes = self.batches.iter().flat_map(|batch| &batch.writes);
        let keyed = writes.map(|write| {
            number += u64::from(matches!(write, BatchWrite::Put { .. } | BatchWrite::Append { .. } | BatchWrite::Restore { .. }));
            match write {
                BatchWrite::Append { namespace, meta, value, time_to_live } => Cow::Owned(BatchWrite::Put {
                    namespace: namespace.clone(),
                    key: log_key(Version::new(number)),
                    meta: meta.clone(),
                    value: value.clone(),
                    time_to_live: *time_to_live,
                    created_at: None,
                }),
                write => Cow::Borrowed(write),
            }
        });
        keyed.collect()
    }
}

/// What was read for the preconditions.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The versions of live rows, by namespace and key.
    pub(super) keys: HashMap<(String, String), u64>,
    /// The versions found below prefixes, by batch and index of the condition.
    pub(super) beneath: HashMap<(usize, usize), u64>,
}

enum Decision {
    Holds,
    Refused(Error),
    /// The batch depends on an earlier batch's writes in a way that only the server can decide.
    Waits,
}

/// Decides batches in order. Every put or restore takes a number from the counter; if the batches have none, a removal advances it by one.
pub(super) fn decide_all<'g>(batches: &[&'g Batch], counter: u64, read: &Read, now: Timestamp) -> Decided<'g> {
    let mut decided = Decided { counter, ..Decided::default() };
    let mut overlay = Overlay::default();
    for (index, &batch) in batches.iter().enumerate() {
        match decide(&overlay, read, index, batch) {
            Decision::Waits => break,
            Decision::Refused(error) => decided.answers.push(Err(error)),
            Decision::Holds => {
                if batches[index + 1..].iter().any(|later| !later.preconditions.is_empty()) {
                    overlay.add(&Effect::of(&batch.writes, now), decided.counter, now);
                }
                decided.accept(batch);
            }
        }
    }
    decided
}

impl<'g> Decided<'g> {
    /// Accepts a batch whose preconditions hold, and records its answer.
    fn accept(&mut self, batch: &'g Batch) {
        let (before, mut floor, mut versions) = (self.counter, None, Vec::new());
        for write in &batch.writes {
            match write {
                BatchWrite::Put { .. } | BatchWrite::Append { .. } => versions.push(Version::new(self.counter + 1)),
                BatchWrite::Restore { item, .. } => floor = floor.max(Some(item.version.number())),
                BatchWrite::Touch { .. } | BatchWrite::Delete { .. } | BatchWrite::DeletePrefix { .. } => continue,
                _ => unvalidated(),
            }
            self.counter += 1;
            self.numbers += 1;
        }
        self.counter = self.counter.max(floor.unwrap_or(0));
        self.answers.push(Ok(versions));
        let restores = floor.is_some();
        match self.runs.last_mut() {
            _ if batch.is_empty() => {}
            Some(run) if !run.restores && !restores => run.batches.push(batch),
            _ => self.runs.push(Run { batches: vec![batch], counter: before, restores }),
        }
    }
}

/// Decides a batch by what was read and what earlier batches write.
fn decide(overlay: &Overlay<'_>, read: &Read, place: usize, batch: &Batch) -> Decision {
    for (index, precondition) in batch.preconditions.iter().enumerate() {
        let Precondition { namespace, key, condition } = precondition;
        let met = match condition {
            Condition::NoneBeneath | Condition::NoneBeneathSince(_) if overlay.is_beneath(namespace, key) => return Decision::Waits,
            Condition::NoneBeneath | Condition::NoneBeneathSince(_) => read.beneath.get(&(place, index)).copied(),
            Condition::Absent | Condition::Exists | Condition::Version(_) => match overlay.met(namespace, key) {
                Some(Met::Version(version)) => Some(version),
                Some(Met::Absent) => None,
                None => read.keys.get(&(namespace.encoded().to_owned(), key.clone())).copied(),
            },
            _ => unvalidated(),
        };
        let met = met.map(Version::new);
        if !condition.holds(met) {
            return Decision::Refused(precondition_failed(index, precondition, met));
        }
    }
    Decision::Holds
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use treehold_store::{Item, Namespace};

    #[test]
    fn batches_merge_into_one_write_up_to_a_restore() {
        let a = Namespace::parse("a").expect("a legal namespace");
        let now = Timestamp::from_microsecond(1_000).expect("a time");
        let item = Item::new("r", Bytes::new(), Bytes::new(), Version::new(70), now, now);
        let batches = [
            Batch::new().put(&a, "k", "").put(&a, "k", ""),
            Batch::new().delete_prefix(&a, "d/"),
            Batch::new().expect(&a, "k", Condition::Version(Version::new(12))).put(&a, "l", ""),
            Batch::new(),
            Batch::new().expect(&a, "k", Condition::Version(Version::new(11))).put(&a, "never", ""),
            Batch::new().restore(&a, item).put(&a, "m", ""),
            Batch::new().put(&a, "n", ""),
            Batch::new().expect(&a, "d/", Condition::NoneBeneath),
            Batch::new().put(&a, "never", ""),
        ];
        let decided = decide_all(&batches.iter().collect::<Vec<_>>(), 10, &Read::default(), now);
        let answers: Vec<Option<Vec<u64>>> = decided
            .answers
            .iter()
            .map(|answer| answer.as_ref().ok().map(|versions| versions.iter().map(|version| version.number()).collect()))
            .collect();
        let expected = [Some(vec![11, 12]), Some(vec![]), Some(vec![13]), Some(vec![]), None, Some(vec![15]), Some(vec![71])];
        assert_eq!(answers, expected, "the last but one depends on a removed prefix and waits");
        let runs: Vec<(usize, u64)> = decided.runs.iter().map(|run| (run.batches.len(), run.counter)).collect();
        assert_eq!((runs, decided.counter, decided.numbers), (vec![(3, 10), (1, 13), (1, 70)], 71, 6));
    }
}
