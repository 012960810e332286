//! Failures of parts of a store, such as damaged partitions, while the others are handled.

use super::{Namespace, Partition};
use std::collections::BTreeMap;
use treehold_core::error::{Error, ErrorRecord};

/// The most faults that are kept.
pub(super) const FAULTS_MAX: usize = 1_000;

/// Returns whether there are no faults, for reports that leave out their number then.
pub(super) fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The failures of parts of a store, such as partitions that cannot be read: the first 1,000, and how many there are.
///
/// # Examples
/// ```
/// use treehold_core::error::{Error, ErrorKind};
/// use treehold_store::Faults;
///
/// let mut faults = Faults::new();
/// faults.add(Error::new(ErrorKind::Corrupt, "the file of the partition `acme/ada`: it is damaged"));
/// assert_eq!((faults.count(), faults.kept().len()), (1, 1));
/// assert_eq!(faults.into_first().map(|error| error.kind()), Some(ErrorKind::Corrupt));
/// ```
#[derive(Debug, Default)]
pub struct Faults {
    kept: Vec<Error>,
    count: u64,
}

impl Faults {
    /// Starts without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a fault, unless one with the same message is kept.
    pub fn add(&mut self, error: Error) {
        if self.kept.iter().any(|known| known.message() == error.message()) {
            return;
        }
        self.count += 1;
        if self.kept.len() < FAULTS_MAX {
            self.kept.push(error);
        }
    }

    /// Returns the first 1,000 faults.
    pub fn kept(&self) -> &[Error] {
        &self.kept
    }

    /// Returns how many faults were added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the first 1,000 faults as data.
    pub fn records(&self) -> Vec<ErrorRecord> {
        self.kept.iter().map(ErrorRecord::from).collect()
    }

    /// Returns the first fault.
    pub fn into_first(self) -> Option<Error> {
        self.kept.into_iter().next()
    }
}

/// The parts of a store that could not be read, and why. Memory: the names of the partitions, and 1,000 reasons.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// The reasons; those of further partitions are left out.
    partitions: BTreeMap<Partition, Option<Error>>,
    /// Parts of which it is unknown what partitions they have.
    unknown: Faults,
}

impl Lost {
    /// Adds a partition, or a part of which it is unknown what partitions it has.
    pub(super) fn add(&mut self, partition: Option<&Partition>, error: Error) {
        let Some(partition) = partition else { return self.unknown.add(error) };
        let name = format!("`{partition}`");
        let is_named = error.message().contains(&name);
        let message = format!("the partition {name}: {}", error.message());
        self.insert(partition.clone(), Some(if is_named { error } else { error.with_message(message) }));
    }

    /// Adds what another walk has lost.
    pub(super) fn append(&mut self, other: Self) {
        other.partitions.into_iter().for_each(|(partition, error)| self.insert(partition, error));
        other.unknown.kept.into_iter().for_each(|error| self.unknown.add(error));
    }

    fn insert(&mut self, partition: Partition, error: Option<Error>) {
        let error = error.filter(|_| self.partitions.len() < FAULTS_MAX);
        self.partitions.entry(partition).or_insert(error);
    }

    /// Returns whether rows of a namespace that were not seen may be lost.
    pub(super) fn may_hold(&self, namespace: &Namespace) -> bool {
        !self.unknown.is_empty() || self.has(namespace)
    }

    /// Returns whether the partition of a namespace could not be read, or not whole.
    pub(super) fn has(&self, namespace: &Namespace) -> bool {
        !self.partitions.is_empty() && self.partitions.contains_key(&namespace.partition())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns the reasons as data, one for each part: the first 1,000.
    pub(super) fn records(&self) -> Vec<ErrorRecord> {
        let partitions = self.partitions.values().flatten();
        self.unknown.kept.iter().chain(partitions).take(FAULTS_MAX).map(ErrorRecord::from).collect()
    }

    /// Returns how many parts there are.
    pub(super) fn count(&self) -> u64 {
        self.unknown.count() + self.partitions.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::error::ErrorKind;

    #[test]
    fn first_faults_are_kept_and_all_are_counted() {
        let mut faults = Faults::new();
        for number in (0..FAULTS_MAX + 5).chain([3]) {
            faults.add(Error::new(ErrorKind::Corrupt, format!("fault {number}")));
        }
        assert_eq!((faults.kept().len(), faults.count()), (FAULTS_MAX, FAULTS_MAX as u64 + 5));
        assert_eq!(faults.into_first().expect("there are some").message(), "fault 0");
    }

    #[test]
    fn lost_partition_is_named_once_and_an_unknown_part_may_hold_every_row() {
        let mut lost = Lost::default();
        let [ada, bob] = ["acme/ada/notes", "acme/bob/notes"].map(|text| Namespace::parse(text).expect("a legal namespace"));
        let failed = |message: &str| Error::new(ErrorKind::Unavailable, message.to_owned());
        lost.add(Some(&ada.partition()), failed("busy"));
        lost.add(Some(&ada.partition()), failed("the file of the partition `acme/ada`: gone"));
        assert_eq!((lost.may_hold(&ada), lost.may_hold(&bob), lost.count()), (true, false, 1));
        assert_eq!(lost.records()[0].message, "the partition `acme/ada`: busy");
        let mut other = Lost::default();
        other.add(Some(&ada.partition()), failed("found again by another walk"));
        other.add(None, failed("the directory of the tenant `zoe` cannot be listed"));
        lost.append(other);
        assert_eq!((lost.may_hold(&bob), lost.has(&bob), lost.count(), lost.records().len()), (true, false, 2, 2));
    }
}
