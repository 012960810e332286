//! A user with traces, and what tests ask about them.

use std::sync::Arc;
use std::time::Duration;
use treehold_core::shares::User;
use treehold_store::MemoryStore;
use treehold_traces::{
    MessagesQuery, NewMessage, NewTrace, RunRequest, Runs, StoredTraces, Trace, TraceAddress, TraceEvent, TraceRunner, TraceRuns,
    TraceStore, Traces,
};

/// Longer than any run of a test takes.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn user() -> User {
    (Some("acme".to_owned()), Some("ada".to_owned()))
}

pub(crate) fn traces() -> StoredTraces {
    Traces::new(Arc::new(MemoryStore::new())).for_user("acme", "ada").unwrap()
}

/// Returns the runs of a runner on the traces of a user.
pub(crate) fn runs(runner: impl TraceRunner + 'static, traces: &StoredTraces) -> TraceRuns {
    on(&Runs::new(Arc::new(runner)), traces)
}

pub(crate) fn on(runs: &Runs, traces: &StoredTraces) -> TraceRuns {
    runs.on(user(), Arc::new(traces.clone())).with_claims(Arc::new(traces.clone()))
}

pub(crate) async fn created(traces: &dyn TraceStore, id: &str) -> TraceAddress {
    let address: TraceAddress = id.parse().unwrap();
    traces.create_trace(NewTrace::new("test").with_id(address.clone())).await.unwrap();
    address
}

pub(crate) fn asking(text: &str) -> RunRequest {
    let mut request = RunRequest::default();
    request.messages.push(NewMessage::text("user", text));
    request
}

pub(crate) async fn found(traces: &dyn TraceStore, trace: &TraceAddress) -> Trace {
    traces.get_trace(trace).await.unwrap().unwrap()
}

pub(crate) async fn events(traces: &dyn TraceStore, trace: &TraceAddress) -> Vec<TraceEvent> {
    let page = traces.get_events(trace, 0, 1_000).await.unwrap();
    assert!(!page.more);
    page.events
}

/// Returns the role, text and parent of every message.
pub(crate) async fn messages(traces: &dyn TraceStore, trace: &TraceAddress) -> Vec<(String, String, Option<u64>)> {
    let page = traces.get_messages(trace, &MessagesQuery::default()).await.unwrap();
    let text = |message: &treehold_traces::Message| message.content.as_ref().map(|content| content.as_str().to_owned()).unwrap_or_default();
    page.messages.iter().map(|message| (message.role.clone(), text(message), message.parent_sequence)).collect()
}
