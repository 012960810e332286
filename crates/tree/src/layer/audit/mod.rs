//! A record of every call: who called which operation on which path, and how it ended; never file contents.

use super::{Layer, LayerName, Next, Reply};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use treehold_core::clock::Clock;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Op;
use treehold_core::scope::Scope;

mod record;
mod sink;

pub use record::{AuditChange, AuditOutcome, AuditRecord};
pub use sink::{AuditSink, JsonLinesSink, MemorySink};

/// Sends one [`AuditRecord`] per call to an [`AuditSink`], including failed and abandoned calls.
///
/// Paths, sizes, versions, codes and times are recorded; contents, edited texts, patterns and messages are not. [`SinkFailure`] decides
/// what happens to a call whose record cannot be stored.
#[derive(Debug)]
pub struct Audit {
    sink: Arc<dyn AuditSink>,
    on_sink_failure: SinkFailure,
    scope: Option<Scope>,
    clock: Clock,
    calls: AtomicU64,
    lost: AtomicU64,
}

/// What happens to a call whose record the sink refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SinkFailure {
    /// The call proceeds; the loss is logged and counted ([`Audit::lost`]).
    #[default]
    Continue,
    /// Nothing happens without a record. A change is recorded as [`Started`](AuditOutcome::Started) before it runs and again when it has
    /// ended; if the first record fails, the change is refused with `unavailable`, without effect. If the record of a read fails, its
    /// result is withheld with `unavailable`. If only the second record of a change fails, the change stands and is answered as it ended,
    /// and the loss is logged and counted.
    Refuse,
}

impl Audit {
    /// Records to a sink; calls proceed if the sink fails.
    pub fn new(sink: impl AuditSink + 'static) -> Self {
        Self {
            sink: Arc::new(sink),
            on_sink_failure: SinkFailure::default(),
            scope: None,
            clock: Clock::system(),
            calls: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Sets what happens to a call whose record the sink refuses.
    #[must_use]
    pub fn with_sink_failure(mut self, on_sink_failure: SinkFailure) -> Self {
        self.on_sink_failure = on_sink_failure;
        self
    }

    /// Adds the caller's scope to every record.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Returns the number of records that the sink refused.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn open(&self, op: &Op<'_>) -> Open<'_> {
        let changes: Vec<AuditChange> = op.changes.iter().map(AuditChange::new).collect();
        let record = AuditRecord {
            call: self.calls.fetch_add(1, Ordering::Relaxed),
            at: self.clock.now(),
            scope: self.scope.clone(),
            operation: op.kind,
            path: op.path.to_owned(),
            bytes_in: changes.iter().map(|change| change.bytes_in).sum(),
            changes,
            outcome: AuditOutcome::Started,
            duration: Duration::ZERO,
            bytes_out: 0,
            entries: 0,
            version: None,
        };
        Open { audit: self, record, started: Instant::now(), is_closed: false }
    }

    fn keep(&self, record: &AuditRecord) -> Result<()> {
        self.sink.record(record).map_err(|error| {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::error!(call = record.call, operation = %record.operation, path = %record.path, error = %error, "an audit record was lost");
            let message = "the audit log cannot be written, and no operation may run without a record; try again later";
            Error::new(ErrorKind::Unavailable, message).at(&record.path).during(record.operation).without_effect().with_source(error)
        })
    }
}

#[async_trait]
impl Layer for Audit {
    fn name(&self) -> LayerName {
        LayerName::new("Audit")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        let refuses = self.on_sink_failure == SinkFailure::Refuse;
        let mut open = self.open(&op);
        if refuses && op.kind.writes() {
            open.announce()?;
        }
        let result = next.run().await;
        let kept = open.close(&result);
        if refuses && !op.kind.writes() {
            kept?;
        }
        result
    }
}

/// The record of a running call. Dropped before it is closed, it records that the call was abandoned.
struct Open<'a> {
    audit: &'a Audit,
    record: AuditRecord,
    started: Instant,
    is_closed: bool,
}

impl Open<'_> {
    /// Records the call before it runs. If that fails, the call is not made, and nothing more is recorded.
    fn announce(&mut self) -> Result<()> {
        let kept = self.audit.keep(&self.record);
        self.is_closed = kept.is_err();
        kept
    }

    fn close<T: Reply>(&mut self, result: &Result<T>) -> Result<()> {
        self.is_closed = true;
        self.record.duration = self.started.elapsed();
        match result {
            Ok(reply) => {
                self.record.outcome = AuditOutcome::Done;
                self.record.bytes_out = reply.content_bytes();
                self.record.entries = reply.entries();
                self.record.version = reply.version();
                for (change, changed) in self.record.changes.iter_mut().zip(reply.changed()) {
                    change.version = changed.version;
                }
            }
            Err(error) => self.record.outcome = AuditOutcome::Failed(error.kind()),
        }
        self.audit.keep(&self.record)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.is_closed {
            self.record.outcome = AuditOutcome::GivenUp;
            self.record.duration = self.started.elapsed();
            // `keep` logs and counts a loss; there is nobody left to return it to.
            let _ = self.audit.keep(&self.record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use jiff::Timestamp;
    use treehold_core::ops::{Change, Changed, Edit, FileRead, OpKind, Version, WriteMode};
    use treehold_core::path::{VfsPath, VfsPathBuf};

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn write(content: &'static str) -> Change {
        Change::Write { path: path("/a.md"), content: content.into(), mode: WriteMode::Overwrite }
    }

    async fn apply(audit: &Audit, changes: &[Change]) -> Result<Vec<Changed>> {
        let results: Vec<Changed> =
            changes.iter().map(|change| Changed::new(change.kind(), change.path()).with_file(Version::new(7), 3)).collect();
        let run = || std::future::ready(Ok(results.clone())).boxed();
        audit.around(Op::apply(changes), Next::new(&run)).await
    }

    fn held_still(sink: impl AuditSink + 'static) -> Audit {
        Audit::new(sink).with_clock(Clock::from_fn(|| Timestamp::UNIX_EPOCH))
    }

    /// A sink that accepts `good` records and refuses all others.
    #[derive(Debug)]
    struct Full {
        good: AtomicU64,
        kept: MemorySink,
    }

    impl Full {
        fn after(good: u64) -> Arc<Self> {
            Arc::new(Self { good: AtomicU64::new(good), kept: MemorySink::new(9) })
        }
    }

    impl AuditSink for Full {
        fn record(&self, record: &AuditRecord) -> Result<()> {
            self.good
                .try_update(Ordering::Relaxed, Ordering::Relaxed, |good| good.checked_sub(1))
                .map_err(|_| Error::new(ErrorKind::Unavailable, "full"))?;
            self.kept.record(record)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_call_is_one_line_without_contents() {
        let sink = Arc::new(JsonLinesSink::new(Vec::new()));
        let audit = held_still(Arc::clone(&sink)).with_scope(Scope::new().with_user("ada"));
        let changes = [
            write("a secret"),
            Change::Edit { path: path("/b.md"), edits: vec![Edit::new("old secret", "new")], expect: None },
            Change::Rename { from: path("/c"), to: path("/d"), overwrite: false },
        ];
        apply(&audit, &changes).await.expect("done");
        let read = || async { Ok(FileRead::new("a secret".into(), Version::new(9), None)) }.boxed();
        audit.around(Op::read(OpKind::Read, &path("/a.md")), Next::new(&read)).await.expect("done");
        let missing = || async { Err::<FileRead, _>(Error::not_found(&path("/x"))) }.boxed();
        audit.around(Op::read(OpKind::Read, &path("/x")), Next::new(&missing)).await.expect_err("missing");
        drop(audit);
        let text = Arc::into_inner(sink).map(|sink| String::from_utf8(sink.into_inner()).expect("JSON is text")).expect("the last handle");
        assert!(!text.contains("secret"));
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                concat!(
                    r#"{"call":0,"at":"1970-01-01T00:00:00Z","scope":{"user":"ada"},"operation":"apply","path":"/a.md","changes":["#,
                    r#"{"operation":"write","path":"/a.md","bytes_in":8,"version":"7"},"#,
                    r#"{"operation":"edit","path":"/b.md","bytes_in":3,"version":"7"},"#,
                    r#"{"operation":"rename","path":"/c","target":"/d","bytes_in":0,"version":"7"}],"#,
                    r#""outcome":"ok","duration_micros":0,"bytes_in":11,"bytes_out":0,"entries":3}"#
                ),
                concat!(
                    r#"{"call":1,"at":"1970-01-01T00:00:00Z","scope":{"user":"ada"},"operation":"read","path":"/a.md","#,
                    r#""outcome":"ok","duration_micros":0,"bytes_in":0,"bytes_out":8,"entries":1,"version":"9"}"#
                ),
                concat!(
                    r#"{"call":2,"at":"1970-01-01T00:00:00Z","scope":{"user":"ada"},"operation":"read","path":"/x","#,
                    r#""outcome":"not_found","duration_micros":0,"bytes_in":0,"bytes_out":0,"entries":0}"#
                ),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_call_is_recorded_as_abandoned() {
        let sink = Arc::new(MemorySink::new(9));
        let audit = held_still(Arc::clone(&sink));
        let changes = [write("x")];
        let hang = || -> BoxFuture<'_, Result<Vec<Changed>>> { std::future::pending().boxed() };
        let call = audit.around(Op::apply(&changes), Next::new(&hang));
        assert!(tokio::time::timeout(Duration::from_secs(5), call).await.is_err());
        let records = sink.records();
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].outcome, records[0].duration), (AuditOutcome::GivenUp, Duration::from_secs(5)));
    }

    #[tokio::test]
    async fn calls_proceed_and_losses_are_counted_when_sink_fails() {
        let audit = held_still(Full::after(0));
        let changes = [write("x")];
        apply(&audit, &changes).await.expect("the change succeeds although the sink fails");
        assert_eq!(audit.lost(), 1);
    }

    #[tokio::test]
    async fn calls_without_a_record_are_refused() {
        let changes = [write("x")];
        let untouched = || -> BoxFuture<'_, Result<Vec<Changed>>> { panic!("the tree is not asked") };
        let audit = held_still(Full::after(0)).with_sink_failure(SinkFailure::Refuse);
        let error = audit.around(Op::apply(&changes), Next::new(&untouched)).await.expect_err("no record, no change");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.is_without_effect());
        assert_eq!(audit.lost(), 1);
        let read = || async { Ok(FileRead::new("x".into(), Version::new(9), None)) }.boxed();
        audit.around(Op::read(OpKind::Read, VfsPath::ROOT), Next::new(&read)).await.expect_err("no record, no content");
    }

    #[tokio::test]
    async fn announced_change_stands_when_its_second_record_fails() {
        let sink = Full::after(1);
        let audit = held_still(Arc::clone(&sink)).with_sink_failure(SinkFailure::Refuse);
        let changes = [write("x")];
        apply(&audit, &changes).await.expect("it took effect");
        assert_eq!(audit.lost(), 1);
        assert_eq!(sink.kept.records().iter().map(|record| record.outcome).collect::<Vec<_>>(), [AuditOutcome::Started]);
    }
}
