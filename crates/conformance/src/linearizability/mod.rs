//! A linearizability checker for stores: whether the answers that concurrent callers got can be explained by one order in which
//! each call takes effect at a single moment between its start and its end.
//!
//! A history is a list of [`Operation`]s: what was requested, what was answered, and when. [`check`] searches for an order of all
//! of them in which every answer is correct for versioned rows, and in which no call comes before one that had ended when it
//! started ([Herlihy and Wing](https://doi.org/10.1145/78969.78972)). A batch takes effect at once. So a partially visible batch,
//! a stale read, a lost update, or a condition that was checked against an old version leaves no such order. A call without an
//! answer, because its caller was killed or the answer was lost, may take effect at any time after its start, or never.
//!
//! Each partition of a store is an object of its own, since a history is linearizable if that of each object is: versions are
//! compared within a partition only, so a store may have one counter for each partition or one for all. Rows of a partition that
//! no batch touches together are checked separately first; a violation found this way is small and easy to read. But one counter
//! gives the versions of all rows of a partition, so everything in it is then checked again: nothing may become visible with a
//! version older than one known before. The search is that of Wing and Gong with the state cache that
//! [Lowe](https://doi.org/10.1002/cpe.3928) added, as in [Porcupine](https://github.com/anishathalye/porcupine). Three shortcuts
//! follow from the contract of stores and exclude no relevant order: answered puts are taken in version order, reads are taken as
//! soon as their answer fits, and open calls are tried last. The search is bounded, and reports when it gives up.
//!
//! [`RecordedStore`] wraps any store and records the calls that pass through it:
//!
//! ```
//! use std::sync::Arc;
//! use treehold_conformance::linearizability::{Journal, RecordedStore, Verdict, check};
//! use treehold_store::{Batch, Condition, MemoryStore, Namespace, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> treehold_core::Result<()> {
//! let begin = std::time::Instant::now();
//! let journal = Journal::in_memory(0, move || u64::try_from(begin.elapsed().as_nanos()).expect("less than 500 years"));
//! let store = RecordedStore::new(Arc::new(MemoryStore::new()), journal.clone());
//! let rows = Namespace::new(["rows"])?;
//! let versions = store.commit(Batch::new().put(&rows, "k", "one")).await?;
//! store.commit(Batch::new().expect(&rows, "k", Condition::Version(versions[0])).put(&rows, "k", "two")).await?;
//! assert_eq!(check(&journal.operations()), Verdict::Linearizable);
//! # Ok(())
//! # }
//! ```

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

mod counter;
mod journal;
#[cfg(test)]
mod laws;
mod recorded;
mod rows;
mod search;

pub use journal::Journal;
pub use recorded::RecordedStore;

/// The most steps that [`check`] takes for one group of rows before it gives up.
pub const STEPS_MAX: u64 = 2_000_000;

/// One call of a history.
///
/// All times of a history are nanoseconds of one clock; across the processes of one machine, this is the system's monotonic
/// clock. Equal times do not order two calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The caller.
    pub process: u64,
    /// The number of the call, unique within its process.
    pub number: u64,
    /// A moment before the call.
    pub start: u64,
    /// A moment after the answer, or `None` if there was none.
    pub end: Option<u64>,
    /// The request and the answer.
    pub action: Action,
}

/// The request and answer of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Read several keys atomically.
    Read(Vec<Sight>),
    /// Read the version of the latest commit of a partition.
    CurrentVersion {
        /// The partition.
        partition: String,
        /// The version.
        version: u64,
    },
    /// Commit a batch.
    Commit {
        /// The conditions.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        conditions: Vec<Requirement>,
        /// The writes, in order.
        writes: Vec<Write>,
        /// The outcome.
        outcome: Outcome,
    },
}

/// The result of a read for one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// The key, with everything that distinguishes it from others in the same store. The text before its first NUL is its partition; all
    /// keys without one are in one partition, which has no name.
    pub key: String,
    /// The row, or `None` if it was absent.
    pub row: Option<Seen>,
}

/// A row as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its version.
    pub version: u64,
    /// Its content or a digest of it; `None` if it was not requested.
    pub value: Option<String>,
}

/// A condition on a key or prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The key or prefix.
    pub key: String,
    /// The condition.
    pub condition: Condition,
}

/// A condition, as in [`treehold_store::Condition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The row is absent.
    Absent,
    /// The row exists.
    Exists,
    /// The row has this version.
    Version(u64),
    /// No row is beneath the prefix.
    NoneBeneath,
    /// No row beneath the prefix is newer than this version.
    NoneBeneathSince(u64),
}

/// A write of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Write {
    /// Puts a row.
    Put {
        /// The key.
        key: String,
        /// The content or a digest of it.
        value: String,
    },
    /// Removes a row.
    Delete {
        /// The key.
        key: String,
    },
    /// Removes every row whose key starts with the prefix.
    DeletePrefix {
        /// The prefix.
        prefix: String,
    },
}

/// The outcome of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was committed, with a version for each put.
    Done(Vec<u64>),
    /// A condition did not hold.
    Refused {
        /// The index of the condition, from 0. Those before it held.
        index: usize,
        /// The version of the conflicting row.
        met: Option<u64>,
    },
    /// It failed with an error that rules out any effect.
    Failed,
    /// The caller got no answer: it may take effect at any time after its start, or never.
    Unknown,
}

/// The result of [`check`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// An order explains every answer.
    Linearizable,
    /// No order does.
    Violated(Violation),
    /// The search gave up.
    Undecided {
        /// The keys of the rows it was checking.
        keys: Vec<String>,
    },
}

/// Why no order explains a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong.
    pub message: String,
    /// The positions of the calls involved in the history. After an exhaustive search, these are the call that fits nowhere and
    /// those concurrent with it at the end of the longest order found.
    pub operations: Vec<usize>,
}

impl Violation {
    fn new(message: impl Into<String>, operations: Vec<usize>) -> Self {
        Self { message: message.into(), operations }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (operations {:?} of the history)", self.message, self.operations)
    }
}

/// Searches for an order of a history in which every answer is correct.
///
/// The store must be empty when the history begins. Cost: about linear for a history without [`Outcome::Unknown`]; in the worst
/// case exponential in the number of those that are open for the same rows, but bounded by [`STEPS_MAX`].
pub fn check(history: &[Operation]) -> Verdict {
    check_with(history, STEPS_MAX)
}

/// Like [`check`], with another limit on the number of steps.
pub fn check_with(history: &[Operation], steps_max: u64) -> Verdict {
    let partitions = match partitions(history) {
        Ok(partitions) => partitions,
        Err(violation) => return Verdict::Violated(violation),
    };
    for operations in &partitions {
        if let Err(violation) = counter::check(history, operations) {
            return Verdict::Violated(violation);
        }
    }
    let mut verdict = Verdict::Linearizable;
    for operations in partitions {
        let mut parts = parts(history, &operations);
        let mut keys: Vec<&str> = parts.iter().flat_map(|part| part.keys.iter().copied()).collect();
        keys.sort_unstable();
        parts.push(Part { keys, operations });
        for part in parts {
            match search::search(history, &part, steps_max) {
                Verdict::Linearizable => {}
                Verdict::Violated(violation) => return Verdict::Violated(violation),
                undecided @ Verdict::Undecided { .. } => verdict = undecided,
            }
        }
    }
    verdict
}

/// Panics unless a history is linearizable. Before that, writes the history to a file in `directory`, one JSON document for each
/// line.
///
/// # Panics
/// If [`check`] finds a violation or gives up. The message says why, and names the file.
pub fn assert_linearizable(history: &[Operation], directory: &Path, name: &str) {
    let why = match check(history) {
        Verdict::Linearizable => return,
        Verdict::Violated(violation) => format!("the history is not linearizable: {violation}"),
        Verdict::Undecided { keys } => format!("the search for an order of the calls on {keys:?} gave up"),
    };
    let path = directory.join(format!("{name}-{}.jsonl", std::process::id()));
    let kept = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, journal::to_lines(history)));
    match kept {
        Ok(()) => panic!("{why}; the history is in {}", path.display()),
        Err(error) => panic!("{why}; the history could not be written to {}: {error}", path.display()),
    }
}

/// A group of rows that some calls touch together, and those calls.
struct Part<'h> {
    /// The keys, sorted.
    keys: Vec<&'h str>,
    /// The positions of the calls in the history.
    operations: Vec<usize>,
}

impl Operation {
    /// Returns the keys and the prefixes that the call refers to.
    fn places(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        match &self.action {
            Action::Read(rows) => keys.extend(rows.iter().map(|sight| sight.key.as_str())),
            Action::CurrentVersion { .. } => {}
            Action::Commit { conditions, writes, .. } => {
                for requirement in conditions {
                    match requirement.condition {
                        Condition::Absent | Condition::Exists | Condition::Version(_) => keys.push(&requirement.key),
                        Condition::NoneBeneath | Condition::NoneBeneathSince(_) => prefixes.push(requirement.key.as_str()),
                    }
                }
                for write in writes {
                    match write {
                        Write::Put { key, .. } | Write::Delete { key } => keys.push(key),
                        Write::DeletePrefix { prefix } => prefixes.push(prefix),
                    }
                }
            }
        }
        (keys, prefixes)
    }

    /// Returns the partitions that the call refers to.
    fn partitions(&self) -> BTreeSet<&str> {
        if let Action::CurrentVersion { partition, .. } = &self.action {
            return BTreeSet::from([partition.as_str()]);
        }
        let (keys, prefixes) = self.places();
        keys.into_iter().chain(prefixes).map(partition_of).collect()
    }
}

/// Returns the partition of a key or prefix.
fn partition_of(key: &str) -> &str {
    key.split_once('\0').map_or("", |(partition, _)| partition)
}

/// Returns the positions of the calls of each partition. Calls that refer to none are together with those of the partition without a name.
///
/// No store takes a batch over two partitions, so one that failed or has no answer has no effect and is left out.
fn partitions(history: &[Operation]) -> Result<Vec<Vec<usize>>, Violation> {
    let mut partitions: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, operation) in history.iter().enumerate() {
        let named = operation.partitions();
        if named.len() > 1 {
            if matches!(operation.action, Action::Commit { outcome: Outcome::Failed | Outcome::Unknown, .. }) {
                continue;
            }
            return Err(Violation::new("a call over two partitions was answered", vec![at]));
        }
        partitions.entry(named.first().copied().unwrap_or_default()).or_default().push(at);
    }
    Ok(partitions.into_values().collect())
}

/// Divides the calls of a partition into parts without common rows. A call that touches no row is in none of them.
fn parts<'h>(history: &'h [Operation], operations: &[usize]) -> Vec<Part<'h>> {
    let places: Vec<(Vec<&str>, Vec<&str>)> = operations.iter().map(|at| history[*at].places()).collect();
    let mut keys: Vec<&str> = places.iter().flat_map(|(keys, _)| keys.iter().copied()).collect();
    keys.sort_unstable();
    keys.dedup();
    // A union-find structure: for each key, another key of the same part, finally its first.
    let mut first: Vec<usize> = (0..keys.len()).collect();
    let mut touched = Vec::with_capacity(history.len());
    for (named, prefixes) in &places {
        let mut all: Vec<usize> = named.iter().map(|key| keys.binary_search(key).expect("each key named is in the list")).collect();
        for prefix in prefixes {
            let from = keys.partition_point(|key| key < prefix);
            all.extend((from..keys.len()).take_while(|at| keys[*at].starts_with(prefix)));
        }
        for pair in all.windows(2) {
            let (one, other) = (root(&mut first, pair[0]), root(&mut first, pair[1]));
            first[one.max(other)] = one.min(other);
        }
        touched.push(all.first().copied());
    }
    let mut parts: BTreeMap<usize, Part<'_>> = BTreeMap::new();
    for (at, key) in keys.iter().enumerate() {
        let part = parts.entry(root(&mut first, at)).or_insert_with(|| Part { keys: Vec::new(), operations: Vec::new() });
        part.keys.push(key);
    }
    for (operation, key) in operations.iter().zip(touched) {
        let Some(key) = key else { continue };
        parts.get_mut(&root(&mut first, key)).expect("each key has a part").operations.push(*operation);
    }
    parts.into_values().collect()
}

/// Returns the first key of a key's part, compressing the path to it.
fn root(first: &mut [usize], mut at: usize) -> usize {
    while first[at] != at {
        first[at] = first[first[at]];
        at = first[at];
    }
    at
}
