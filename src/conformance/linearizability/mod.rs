//! Whether what several callers of a store were told can be put in one order, in which each call takes effect at one moment
//! between its start and its end.
//!
//! A history is a list of [`Operation`]s: what was asked, what was answered, and when. [`check`] looks for an order of all of
//! them in which every answer is the one that rows with versions give, and in which no call stands before one that had ended
//! when it started ([Herlihy and Wing](https://doi.org/10.1145/78969.78972) call such a history linearizable). A batch takes
//! effect as one, so one that is seen in part, a stale read, a lost update or a condition that was not checked against the
//! newest version leaves no such order. What is left open: a call without an answer, because its caller was killed or the
//! answer was lost, may take effect at any time after its start, or never.
//!
//! Rows that no batch touches together are searched by themselves first, as a history is linearizable when that of each object
//! is; what this finds is small and easy to read. The one counter that gives all versions ties the rows of a store together, so
//! the whole history is searched once more: nothing may become visible with a version below one that was known before.
//! The search is that of Wing and Gong with the memory of states that
//! [Lowe](https://doi.org/10.1002/cpe.3928) added, as in [Porcupine](https://github.com/anishathalye/porcupine). Three
//! shortcuts follow from what a store promises and cut no order that counts: puts with an answer are taken in the order of
//! their versions; what only reads is taken as soon as its answer fits; and what was left open is tried last. The search
//! is bounded, and says so when it gives up.
//!
//! [`RecordedStore`] wraps any store and records what passes through it:
//!
//! ```
//! use std::sync::Arc;
//! use stratafs::conformance::linearizability::{Journal, RecordedStore, Verdict, check};
//! use stratafs::store::{Batch, Condition, MemoryStore, Namespace, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> stratafs::Result<()> {
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
use std::collections::BTreeMap;
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

/// How many steps [`check`] takes for rows that belong together before it gives up.
pub const STEPS_MAX: u64 = 2_000_000;

/// One call of a history.
///
/// Times are nanoseconds of one clock for the whole history: between processes of one machine that which the system calls
/// monotonic. Two moments that are the same do not order two calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Who called.
    pub process: u64,
    /// The number of the call, which no other of the same process has.
    pub number: u64,
    /// A moment before the call was made.
    pub start: u64,
    /// A moment after it was answered; none when it was not.
    pub end: Option<u64>,
    /// What was asked and answered.
    pub action: Action,
}

/// What was asked and answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Several keys were read as of one moment.
    Read(Vec<Sight>),
    /// The version of the newest commit was asked for.
    CurrentVersion(u64),
    /// A batch was to be committed.
    Commit {
        /// What must hold.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        conditions: Vec<Requirement>,
        /// What is written, in order.
        writes: Vec<Write>,
        /// What became of it.
        outcome: Outcome,
    },
}

/// What a read met at one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// The key, with all that sets it apart from others of the same store.
    pub key: String,
    /// The row; none where there was none.
    pub row: Option<Seen>,
}

/// A row as it was met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its version.
    pub version: u64,
    /// Its content, or what stands for it; none when it was not asked for.
    pub value: Option<String>,
}

/// A condition at a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The key, or the prefix.
    pub key: String,
    /// What must hold.
    pub condition: Condition,
}

/// What must hold, as in [`crate::store::Condition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// There is no row.
    Absent,
    /// There is one.
    Exists,
    /// The row has this version.
    Version(u64),
    /// No row lies beneath the prefix.
    NoneBeneath,
    /// None that lies beneath the prefix is newer.
    NoneBeneathSince(u64),
}

/// One write of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Write {
    /// Puts a row.
    Put {
        /// The key.
        key: String,
        /// The content, or what stands for it.
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

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was committed, with a version for each put.
    Done(Vec<u64>),
    /// A condition did not hold.
    Refused {
        /// Which one, counted from 0: those before it held.
        index: usize,
        /// The version that it met.
        met: Option<u64>,
    },
    /// It failed, and the error says that it had no effect.
    Failed,
    /// Nobody was told: it may take effect at any time after its start, or never.
    Unknown,
}

/// What [`check`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// There is an order that explains every answer.
    Linearizable,
    /// There is none.
    Violated(Violation),
    /// The search was given up.
    Undecided {
        /// The keys that it was about.
        keys: Vec<String>,
    },
}

/// Why no order explains a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong.
    pub message: String,
    /// Where the calls that it is about stand in the history. For a search that came to its end these are the one that fits
    /// nowhere and those that were under way with it, as far as the longest order came.
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

/// Looks for an order of a history in which every answer is right.
///
/// The history begins with an empty store. Cost: about linear in a history without [`Outcome::Unknown`], and exponential in
/// how many of those stand open for the same rows at worst; [`STEPS_MAX`] bounds it.
pub fn check(history: &[Operation]) -> Verdict {
    check_with(history, STEPS_MAX)
}

/// Does the same with another bound on the steps of the search.
pub fn check_with(history: &[Operation], steps_max: u64) -> Verdict {
    if let Err(violation) = counter::check(history) {
        return Verdict::Violated(violation);
    }
    let mut parts = parts(history);
    let mut keys: Vec<&str> = parts.iter().flat_map(|part| part.keys.iter().copied()).collect();
    keys.sort_unstable();
    parts.push(Part { keys, operations: (0..history.len()).collect() });
    let mut verdict = Verdict::Linearizable;
    for part in parts {
        match search::search(history, &part, steps_max) {
            Verdict::Linearizable => {}
            Verdict::Violated(violation) => return Verdict::Violated(violation),
            undecided @ Verdict::Undecided { .. } => verdict = undecided,
        }
    }
    verdict
}

/// Panics unless a history is linearizable; before that, writes it into `directory` as a JSON document a line.
///
/// # Panics
/// When [`check`] finds a violation or gives up. The message says why and where the history is.
pub fn assert_linearizable(history: &[Operation], directory: &Path, name: &str) {
    let why = match check(history) {
        Verdict::Linearizable => return,
        Verdict::Violated(violation) => format!("the history is not linearizable: {violation}"),
        Verdict::Undecided { keys } => format!("the search for an order of what touches {keys:?} was given up"),
    };
    let path = directory.join(format!("{name}-{}.jsonl", std::process::id()));
    let kept = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, journal::to_lines(history)));
    match kept {
        Ok(()) => panic!("{why}; it is kept in {}", path.display()),
        Err(error) => panic!("{why}; it could not be kept in {}: {error}", path.display()),
    }
}

/// Rows that some calls touch together, and those calls.
struct Part<'h> {
    /// In order.
    keys: Vec<&'h str>,
    /// Where they stand in the history.
    operations: Vec<usize>,
}

impl Operation {
    /// Returns the keys that the call names, and the prefixes.
    fn places(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut keys, mut prefixes) = (Vec::new(), Vec::new());
        match &self.action {
            Action::Read(rows) => keys.extend(rows.iter().map(|sight| sight.key.as_str())),
            Action::CurrentVersion(_) => {}
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
}

/// Divides a history into parts that have no row in common. A call that touches no row is in none.
fn parts(history: &[Operation]) -> Vec<Part<'_>> {
    let places: Vec<(Vec<&str>, Vec<&str>)> = history.iter().map(Operation::places).collect();
    let mut keys: Vec<&str> = places.iter().flat_map(|(keys, _)| keys.iter().copied()).collect();
    keys.sort_unstable();
    keys.dedup();
    // For each key one of the same part, and in the end the first of it.
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
    for (operation, key) in touched.into_iter().enumerate() {
        let Some(key) = key else { continue };
        parts.get_mut(&root(&mut first, key)).expect("each key has a part").operations.push(operation);
    }
    parts.into_values().collect()
}

/// Returns the first key of the part that a key is in, and shortens the way to it.
fn root(first: &mut [usize], mut at: usize) -> usize {
    while first[at] != at {
        first[at] = first[first[at]];
        at = first[at];
    }
    at
}
