//! Where the calls of one process are noted while they are made.

use super::{Action, Operation, Outcome};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// The calls of one process. Clones share them.
///
/// A commit is noted when it starts and again when it is answered, so that one whose caller is killed is known to be open. A
/// journal in a file is written by the line, as JSON: the last line of a process and number is what became of that call.
#[derive(Clone)]
pub struct Journal {
    process: u64,
    now: Arc<dyn Fn() -> u64 + Send + Sync>,
    notes: Arc<Mutex<Notes>>,
}

struct Notes {
    next: u64,
    operations: BTreeMap<u64, Operation>,
    file: Option<File>,
}

impl Journal {
    /// Makes a journal in memory; `now` tells the time in nanoseconds.
    pub fn in_memory(process: u64, now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self::new(process, now, None)
    }

    /// Makes a journal that is kept in a file as well, which is what is left when the process is killed.
    ///
    /// # Errors
    /// Those of the system when the file cannot be made or is there already.
    pub fn in_file(process: u64, path: &Path, now: impl Fn() -> u64 + Send + Sync + 'static) -> io::Result<Self> {
        Ok(Self::new(process, now, Some(File::create_new(path)?)))
    }

    /// Reads what a process noted in a file; a line that it did not come to finish is left out.
    ///
    /// # Errors
    /// Those of the system, and `InvalidData` for a line that is no operation.
    pub fn read(path: &Path) -> io::Result<Vec<Operation>> {
        let text = std::fs::read_to_string(path)?;
        let mut operations = BTreeMap::new();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let operation: Operation = serde_json::from_str(line)?;
            operations.insert((operation.process, operation.number), operation);
        }
        Ok(operations.into_values().collect())
    }

    /// Returns what was noted so far, by the number of the call.
    pub fn operations(&self) -> Vec<Operation> {
        self.notes.lock().operations.values().cloned().collect()
    }

    fn new(process: u64, now: impl Fn() -> u64 + Send + Sync + 'static, file: Option<File>) -> Self {
        let notes = Notes { next: 0, operations: BTreeMap::new(), file };
        Self { process, now: Arc::new(now), notes: Arc::new(Mutex::new(notes)) }
    }

    /// Returns the time before a call.
    pub(super) fn start(&self) -> u64 {
        (self.now)()
    }

    /// Notes a commit that is about to be made, and returns its number.
    pub(super) fn begin(&self, action: Action) -> u64 {
        self.note(None, self.start(), None, action)
    }

    /// Notes what became of a commit.
    pub(super) fn finish(&self, number: u64, outcome: Outcome) {
        let end = (self.now)();
        let begun = self.notes.lock().operations.get(&number).cloned();
        let Some(Operation { start, action: Action::Commit { conditions, writes, .. }, .. }) = begun else { return };
        self.note(Some(number), start, Some(end), Action::Commit { conditions, writes, outcome });
    }

    /// Notes a read that was answered.
    pub(super) fn answered(&self, start: u64, action: Action) {
        let end = (self.now)();
        self.note(None, start, Some(end), action);
    }

    fn note(&self, number: Option<u64>, start: u64, end: Option<u64>, action: Action) -> u64 {
        let mut notes = self.notes.lock();
        let number = number.unwrap_or(notes.next);
        notes.next = notes.next.max(number + 1);
        let operation = Operation { process: self.process, number, start, end, action };
        if let Some(file) = &mut notes.file {
            file.write_all(to_lines(std::slice::from_ref(&operation)).as_bytes()).expect("a journal can be written");
        }
        notes.operations.insert(number, operation);
        number
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("process", &self.process).finish_non_exhaustive()
    }
}

/// Writes a history as JSON, an operation a line.
pub(super) fn to_lines(history: &[Operation]) -> String {
    let line = |operation: &Operation| serde_json::to_string(operation).expect("an operation is JSON") + "\n";
    history.iter().map(line).collect()
}
