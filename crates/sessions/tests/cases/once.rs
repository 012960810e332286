//! Idempotency keys of envelopes and of commits of an orchestration.

use super::support::{SESSION, TENANT, USER, reference, sessions, version, with_session};
use async_trait::async_trait;
use std::error::Error as _;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::Version;
use treehold_sessions::orchestration::{MailboxEvent, MailboxState, OrchestrationCommit, OrchestrationEvent, OrchestrationPersistence};
use treehold_sessions::trace::Envelope;
use treehold_sessions::{AppendOptions, IDEMPOTENCY_KEY_BYTES_MAX, Json, KeyReused, SessionTraceStore, Usage};
use treehold_store::watch::Watch;
use treehold_store::{
    Batch, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, Scan, ScanOptions, Store, StoreCapabilities,
    StoreExtensions,
};

fn envelope(number: usize, kind: &str) -> Envelope {
    let text = format!(r#"{{"id":"h-1-{number}","timestamp":"t","sequence":{number},"source":"host","event":{{"type":"{kind}"}}}}"#);
    Envelope::parse(&text).unwrap()
}

fn event(number: usize) -> OrchestrationEvent {
    let text = format!(r#"{{"eventId":"e{number}","occurredAt":"t","runId":"r","type":"run_completed","status":"failed"}}"#);
    OrchestrationEvent::parse(&text).unwrap()
}

fn mail(number: usize) -> MailboxEvent {
    let text = format!(r#"{{"eventId":"m{number}","agentId":"a","occurredAt":"t","type":"input_enqueued","inputId":"i"}}"#);
    MailboxEvent::parse(&text).unwrap()
}

/// A commit with each kind of row.
fn commit() -> OrchestrationCommit {
    OrchestrationCommit::new()
        .with_event(event(1))
        .with_mailbox_event("a", mail(1))
        .with_mailbox_state("a", MailboxState::parse(r#"{"processedEventCount":1}"#).unwrap())
        .with_history("a", vec![Json::parse("{}").unwrap()])
}

/// Checks that a key was refused because it stands for another write.
fn assert_reused(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.source().is_some_and(|source| source.is::<KeyReused>()), "{error}");
}

/// Loses the answer of a commit that took effect.
#[derive(Debug)]
struct LosingAnswers {
    inner: Arc<dyn Store>,
    loses_next: AtomicBool,
}

impl LosingAnswers {
    fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, loses_next: AtomicBool::new(false) }
    }

    /// Loses the answer of the next commit.
    fn lose_next(&self) {
        self.loses_next.store(true, Ordering::Relaxed);
    }
}

impl fmt::Display for LosingAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LosingAnswers({})", self.inner)
    }
}

#[async_trait]
impl Store for LosingAnswers {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        let versions = self.inner.commit(batch).await?;
        match self.loses_next.swap(false, Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Unavailable, "the connection broke").with_unknown_effect()),
            false => Ok(versions),
        }
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

/// A repeated key returns the position of the first append, whatever was appended since.
pub(crate) async fn envelope_appended_again_with_its_key_takes_effect_once(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let trace = sessions.trace(reference());
    trace.append_envelope(&envelope(0, "turn_start")).await.unwrap();
    let first = trace.append_once(&envelope(1, "error"), "k").await.unwrap();
    trace.append_envelope(&envelope(2, "turn_end")).await.unwrap();
    let before = version(&store).await;
    // Another process knows nothing but the rows.
    let again = super::support::sessions(&store).trace(reference()).append_once(&envelope(1, "error"), "k").await.unwrap();
    assert_eq!((again.position, version(&store).await), (first.position, before));
    assert_eq!((first.key.repeated, again.key.repeated), (false, true));
    assert!(first.position.is_some() && first.key.expires_at.is_some() && again.key.expires_at.is_some());
    let page = trace.page(None, 9).await.unwrap();
    let at: Vec<_> = page.entries.iter().map(|entry| (entry.envelope.id.as_str(), Some(entry.position) == first.position)).collect();
    assert_eq!(at, [("h-1-0", false), ("h-1-1", true), ("h-1-2", false)]);
    assert_reused(&trace.append_once(&envelope(3, "error"), "k").await.unwrap_err());
    for bad in [String::new(), "k".repeat(IDEMPOTENCY_KEY_BYTES_MAX + 1)] {
        assert_eq!(trace.append_once(&envelope(1, "error"), &bad).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    // A kind that is never stored takes no key.
    let streamed = trace.append_once(&envelope(4, "text_delta"), "new").await.unwrap();
    assert_eq!((streamed.position, streamed.key.repeated, version(&store).await), (None, false, before));
    assert!(!trace.append_once(&envelope(5, "turn_end"), "new").await.unwrap().key.repeated);
    // The keys end with the session.
    sessions.delete(TENANT, SESSION).await.unwrap();
    sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
    assert!(!sessions.trace(reference()).append_once(&envelope(6, "turn_end"), "k").await.unwrap().key.repeated);
}

/// A repeated key writes no row of the commit. A key stands for every row of its commit.
pub(crate) async fn commit_repeated_with_its_key_takes_effect_once(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    assert!(!orchestration.commit_once(&commit(), "k").await.unwrap().repeated);
    // A later state is not replaced by the repetition.
    orchestration.write_mailbox_state("a", &MailboxState::parse(r#"{"processedEventCount":2}"#).unwrap()).await.unwrap();
    let before = version(&store).await;
    let again = super::support::sessions(&store).orchestration(reference()).commit_once(&commit(), "k").await.unwrap();
    assert!(again.repeated && again.expires_at.is_some());
    let others = [
        OrchestrationCommit::new(),
        OrchestrationCommit::new().with_event(event(1)),
        commit().with_event(event(2)),
        commit().with_mailbox_event("a", mail(2)),
        commit().with_mailbox_state("b", MailboxState::parse("{}").unwrap()),
        commit().with_history("a", Vec::new()),
    ];
    for other in others {
        assert_reused(&orchestration.commit_once(&other, "k").await.unwrap_err());
    }
    assert_reused(&sessions.trace(reference()).append_once(&envelope(1, "error"), "k").await.unwrap_err());
    let turn = AppendOptions::new().with_usage(Usage::of_tokens(1, 1).unwrap()).with_idempotency_key("k");
    assert_reused(&sessions.append(TENANT, SESSION, &[], &turn).await.unwrap_err());
    assert_eq!(version(&store).await, before);
    assert_eq!(orchestration.load_mailbox_state("a").await.unwrap().processed_event_count, 2);
}

/// Of concurrent calls with one key, one writes and all succeed.
pub(crate) async fn concurrent_repetitions_take_effect_once(store: Arc<dyn Store>) {
    with_session(&store).await;
    let callers: Vec<_> = (0..8).map(|_| sessions(&store)).collect();
    let appended = futures::future::join_all(
        callers.iter().map(|sessions| async { sessions.trace(reference()).append_once(&envelope(1, "error"), "k").await.unwrap() }),
    );
    let appended = appended.await;
    assert_eq!(appended.iter().filter(|appended| !appended.key.repeated).count(), 1);
    assert!(appended.iter().all(|one| one.position.is_some() && one.position == appended[0].position));
    let committed = futures::future::join_all(
        callers.iter().map(|sessions| async { sessions.orchestration(reference()).commit_once(&commit(), "other").await.unwrap() }),
    );
    assert_eq!(committed.await.iter().filter(|used| !used.repeated).count(), 1);
    let orchestration = callers[0].orchestration(reference());
    assert_eq!((orchestration.load_events().await.unwrap().len(), orchestration.load_mailbox_events("a").await.unwrap().len()), (1, 1));
    assert_eq!(callers[0].trace(reference()).load_envelopes().await.unwrap().len(), 1);
}

/// A caller that lost the answer repeats the call, and learns that it took effect.
pub(crate) async fn repetition_after_a_lost_answer_finds_the_first_write(store: Arc<dyn Store>) {
    with_session(&store).await;
    let losing = Arc::new(LosingAnswers::new(store.clone()));
    let cut: Arc<dyn Store> = losing.clone();
    let sessions = sessions(&cut);
    let (trace, orchestration) = (sessions.trace(reference()), sessions.orchestration(reference()));
    losing.lose_next();
    assert_eq!(trace.append_once(&envelope(1, "error"), "k").await.unwrap_err().kind(), ErrorKind::Unavailable);
    losing.lose_next();
    assert_eq!(orchestration.commit_once(&commit(), "l").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let before = version(&store).await;
    let again = trace.append_once(&envelope(1, "error"), "k").await.unwrap();
    assert_eq!((again.position, again.key.repeated), (Some(trace.page(None, 1).await.unwrap().entries[0].position), true));
    assert!(orchestration.commit_once(&commit(), "l").await.unwrap().repeated);
    assert_eq!(version(&store).await, before);
}

/// A commit under a lost claim is a conflict and takes no key. What was committed before the claim was lost stays known.
pub(crate) async fn key_of_a_commit_does_not_replace_its_claim(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    let orchestration = sessions.orchestration(reference());
    let lease = Duration::from_secs(600);
    let lost = orchestration.claim("one", lease).await.unwrap();
    assert!(!orchestration.commit_once(&commit().with_claim(lost), "k").await.unwrap().repeated);
    let claim = orchestration.claim("one", lease).await.unwrap();
    let before = version(&store).await;
    let late = OrchestrationCommit::new().with_event(event(2));
    assert_eq!(orchestration.commit_once(&late.clone().with_claim(lost), "late").await.unwrap_err().kind(), ErrorKind::Conflict);
    // The answer of the first commit may have been lost together with the claim.
    assert!(orchestration.commit_once(&commit().with_claim(lost), "k").await.unwrap().repeated);
    assert_eq!(version(&store).await, before);
    assert!(!orchestration.commit_once(&late.with_claim(claim), "late").await.unwrap().repeated);
    assert_eq!(orchestration.load_events().await.unwrap(), [event(1), event(2)]);
}
