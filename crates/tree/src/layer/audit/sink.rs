//! Destinations of audit records.

use super::AuditRecord;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};

/// A destination of audit records.
///
/// The call waits for it, and it also runs while a future is dropped, so it must return quickly: a sink over a network puts the record into
/// a queue of its own.
pub trait AuditSink: Send + Sync + fmt::Debug {
    /// Stores one record.
    ///
    /// # Errors
    /// The sink's own, if the record was not stored.
    fn record(&self, record: &AuditRecord) -> Result<()>;
}

impl<S: AuditSink + ?Sized> AuditSink for Arc<S> {
    fn record(&self, record: &AuditRecord) -> Result<()> {
        (**self).record(record)
    }
}

/// Keeps the latest records in memory.
#[derive(Debug)]
pub struct MemorySink {
    records: Mutex<VecDeque<AuditRecord>>,
    records_max: usize,
}

impl MemorySink {
    /// Keeps at most `records_max` records, dropping the oldest.
    pub fn new(records_max: usize) -> Self {
        Self { records: Mutex::default(), records_max }
    }

    /// Returns the kept records, oldest first.
    pub fn records(&self) -> Vec<AuditRecord> {
        self.records.lock().iter().cloned().collect()
    }
}

impl AuditSink for MemorySink {
    fn record(&self, record: &AuditRecord) -> Result<()> {
        let mut records = self.records.lock();
        records.push_back(record.clone());
        if records.len() > self.records_max {
            records.pop_front();
        }
        Ok(())
    }
}

/// Writes each record as one line of JSON in a single write, and flushes it.
///
/// Give it a file opened for appending. A line torn by a failed write is terminated before the next one, so every later line is intact.
/// Nothing is synced to disk: records survive the end of the process, but not of the machine.
pub struct JsonLinesSink<W> {
    writer: Mutex<LineWriter<W>>,
}

struct LineWriter<W> {
    inner: W,
    is_torn: bool,
}

impl<W: Write + Send> JsonLinesSink<W> {
    /// Creates a sink on a writer.
    pub fn new(writer: W) -> Self {
        Self { writer: Mutex::new(LineWriter { inner: writer, is_torn: false }) }
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.writer.into_inner().inner
    }
}

impl<W: Write> LineWriter<W> {
    fn write_line(&mut self, line: &[u8]) -> std::io::Result<()> {
        if self.is_torn {
            self.inner.write_all(b"\n")?;
        }
        self.is_torn = true;
        self.inner.write_all(line)?;
        self.inner.flush()?;
        self.is_torn = false;
        Ok(())
    }
}

impl<W> fmt::Debug for JsonLinesSink<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonLinesSink")
    }
}

impl<W: Write + Send> AuditSink for JsonLinesSink<W> {
    fn record(&self, record: &AuditRecord) -> Result<()> {
        let mut line = serde_json::to_vec(record)
            .map_err(|error| Error::new(ErrorKind::Internal, "an audit record could not be encoded as JSON").with_source(error))?;
        line.push(b'\n');
        self.writer
            .lock()
            .write_line(&line)
            .map_err(|error| Error::new(ErrorKind::Unavailable, "the audit log could not be written; check its disk").with_source(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::AuditOutcome;
    use jiff::Timestamp;
    use std::time::Duration;
    use treehold_core::ops::OpKind;
    use treehold_core::path::VfsPathBuf;

    fn record(call: u64) -> AuditRecord {
        AuditRecord {
            call,
            at: Timestamp::UNIX_EPOCH,
            scope: None,
            operation: OpKind::Stat,
            path: VfsPathBuf::root(),
            changes: Vec::new(),
            outcome: AuditOutcome::Done,
            duration: Duration::ZERO,
            bytes_in: 0,
            bytes_out: 0,
            entries: 1,
            version: None,
        }
    }

    /// A writer that accepts half a line once.
    struct Torn {
        bytes: Vec<u8>,
        tears: bool,
    }

    impl Write for Torn {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if std::mem::take(&mut self.tears) {
                self.bytes.extend_from_slice(&bytes[..bytes.len() / 2]);
                return Err(std::io::Error::other("no space"));
            }
            self.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn torn_line_does_not_corrupt_the_next() {
        let sink = JsonLinesSink::new(Torn { bytes: Vec::new(), tears: true });
        assert_eq!(sink.record(&record(0)).expect_err("no space").kind(), ErrorKind::Unavailable);
        sink.record(&record(1)).expect("there is space again");
        let bytes = sink.into_inner().bytes;
        let lines: Vec<Option<serde_json::Value>> =
            bytes.split(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].is_none());
        assert_eq!(lines[1].as_ref().map(|line| line["call"].clone()), Some(1.into()));
    }

    #[test]
    fn memory_sink_drops_the_oldest() {
        let sink = MemorySink::new(2);
        for call in 0..3 {
            sink.record(&record(call)).expect("memory takes all");
        }
        assert_eq!(sink.records().iter().map(|record| record.call).collect::<Vec<_>>(), [1, 2]);
    }
}
