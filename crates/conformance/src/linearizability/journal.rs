//! The journal in which a process records its calls.

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
/// A commit is recorded when it starts and again when it is answered, so that the commit of a killed caller remains known as
/// open. A journal in a file has one JSON record for each line. The last record of a process and call number is the outcome of
/// that call.
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
    /// Creates a journal in memory. `now` returns the time in nanoseconds.
    pub fn in_memory(process: u64, now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self::new(process, now, None)
    }

    /// Creates a journal that is also kept in a file, which remains if the process is killed.
    ///
    /// # Errors
    /// I/O errors, in particular if the file cannot be created or exists already.
    pub fn in_file(process: u64, path: &Path, now: impl Fn() -> u64 + Send + Sync + 'static) -> io::Result<Self> {
        Ok(Self::new(process, now, Some(File::create_new(path)?)))
    }

    /// Reads the journal of a process. An unfinished last line is ignored.
    ///
    /// # Errors
    /// I/O errors, and `InvalidData` for a line that is not an operation.
    pub fn read(path: &Path) -> io::Result<Vec<Operation>> {
        let text = std::fs::read_to_string(path)?;
        let mut operations = BTreeMap::new();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let operation: Operation = serde_json::from_str(line)?;
            operations.insert((operation.process, operation.number), operation);
        }
        Ok(operations.into_values().collect())
    }

    /// Returns all operations so far, by call number.
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

    /// Records a commit that is about to be made, and returns its number.
    pub(super) fn begin(&self, action: Action) -> u64 {
        self.note(None, self.start(), None, action)
    }

    /// Records the outcome of a commit.
    pub(super) fn finish(&self, number: u64, outcome: Outcome) {
        let end = (self.now)();
        let begun = self.notes.lock().operations.get(&number).cloned();
        let Some(Operation { start, action: Action::Commit { conditions, writes, .. }, .. }) = begun else { return };
        self.note(Some(number), start, Some(end), Action::Commit { conditions, writes, outcome });
    }

    /// Records a read that was answered.
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

/// Formats a history as JSON, one operation for each line.
pub(super) fn to_lines(history: &[Operation]) -> String {
    let line = |operation: &Operation| serde_json::to_string(operation).expect("an operation is JSON") + "\n";
    history.iter().map(line).collect()
}
