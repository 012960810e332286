//! A scripted transport, and a store of traces whose owner can go away.

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_remote::{
    Failure, HeaderMap, Method, RemoteOptions, StatusCode, Transport, TransportError, TransportRequest, TransportResponse,
};
use treehold_store::MemoryStore;
use treehold_traces::{
    AddOptions, Added, ApiKey, EventStream, EventsPage, Goal, GoalTree, GoalUpdate, Location, Message, MessageRef, MessageUpdate,
    MessagesPage, MessagesQuery, NewGoal, NewMessage, NewTrace, OtherFields, PathQuery, Peer, Peers, PeersOptions, RemoteTraces,
    StoredTraces, Trace, TraceAddress, TracePage, TraceStore, TraceUpdate, Traces, TracesQuery,
};

/// The answer to one request.
pub(crate) enum Reply {
    Json(u16, Value),
    Text(u16, &'static str, String),
    /// Chunks of server-sent events, and then the end of the connection.
    Events(Vec<String>),
    Lost(Failure),
}

/// A request as it was sent.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Sent {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

type Answer = dyn Fn(&Sent) -> Reply + Send + Sync;

/// Answers requests with a function, and records them.
pub(crate) struct Scripted {
    answer: Box<Answer>,
    pub(crate) sent: Mutex<Vec<Sent>>,
}

impl Scripted {
    pub(crate) fn new(answer: impl Fn(&Sent) -> Reply + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { answer: Box::new(answer), sent: Mutex::default() })
    }

    /// Fails the test that uses it.
    pub(crate) fn unused() -> Arc<Self> {
        Self::new(|sent| panic!("nothing may be sent: {sent:?}"))
    }

    pub(crate) fn take(&self) -> Vec<Sent> {
        std::mem::take(&mut *self.sent.lock())
    }

    /// Returns a registry whose agent `far` is reached through this transport, with the key `s3cret`.
    pub(crate) fn peers(self: &Arc<Self>) -> Peers {
        let transport = self.clone();
        let far = Peer::dialling_in("far").expect("a legal name").with_key(ApiKey::text("s3cret"));
        let other = Peer::new("other", "https://other.example:8000", false).expect("a legal URL");
        let options = PeersOptions::new().with_tunnels(Arc::new(move |_| transport.clone() as Arc<dyn Transport>));
        Peers::new([far, other], options.with_remote(RemoteOptions::new())).expect("two names")
    }

    pub(crate) fn traces(self: &Arc<Self>) -> RemoteTraces {
        RemoteTraces::new(self.peers())
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

#[async_trait]
impl Transport for Scripted {
    async fn send(&self, request: TransportRequest) -> Result<TransportResponse, TransportError> {
        let body = request.body.as_deref().map_or(Value::Null, |body| serde_json::from_slice(body).expect("a JSON body"));
        let sent = Sent { method: request.method, path: request.path_and_query, headers: request.headers, body };
        self.sent.lock().push(sent.clone());
        let (status, media_type, chunks) = match (self.answer)(&sent) {
            Reply::Json(status, value) if status >= 400 => (status, "application/problem+json", vec![value.to_string()]),
            Reply::Json(status, value) => (status, "application/json", vec![value.to_string()]),
            Reply::Text(status, media_type, text) => (status, media_type, vec![text]),
            Reply::Events(chunks) => (200, "text/event-stream", chunks),
            Reply::Lost(failure) => return Err(TransportError::new(failure)),
        };
        let mut headers = HeaderMap::new();
        headers.insert("content-type", media_type.parse().expect("a media type"));
        let body = stream::iter(chunks.into_iter().map(|chunk| Ok(chunk.into()))).boxed();
        Ok(TransportResponse::new(StatusCode::from_u16(status).expect("a status"), headers, body))
    }
}

/// Returns the problem of an error.
pub(crate) fn problem(kind: ErrorKind, message: &str) -> Reply {
    let problem = treehold_core::wire::Problem::new(&Error::new(kind, message).without_effect());
    Reply::Json(problem.status, serde_json::to_value(problem).expect("a problem is JSON"))
}

/// Makes a value whose fields differ from the defaults.
pub(crate) fn made<T: Default>(set: impl FnOnce(&mut T)) -> T {
    let mut value = T::default();
    set(&mut value);
    value
}

pub(crate) fn trace_json(id: &str) -> Value {
    json!({"trace_id": id, "task": "make tea", "last_sequence": 2, "head_sequence": 2, "last_event_id": 3, "created_at": "2026-01-01T00:00:00Z"})
}

pub(crate) fn message_json(trace: &str, sequence: u64) -> Value {
    let parent = (sequence > 1).then(|| sequence - 1);
    json!({"message_id": format!("m{sequence}"), "trace_id": trace, "role": "user", "sequence": sequence, "parent_sequence": parent, "content": "hi"})
}

pub(crate) fn address(text: &str) -> TraceAddress {
    text.parse().expect(text)
}

pub(crate) fn far() -> Location {
    Location::agent("far").expect("a legal name")
}

/// Returns a fresh local store.
pub(crate) fn local() -> StoredTraces {
    Traces::new(Arc::new(MemoryStore::new())).for_user("acme", "ada").expect("legal ids")
}

/// The owner of traces, which can go away, and records calls.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) inner: Arc<dyn TraceStore>,
    failure: Mutex<Option<ErrorKind>>,
    calls: Mutex<Vec<&'static str>>,
    /// Holds the answers to these calls back until it is unlocked.
    pub(crate) gate: tokio::sync::RwLock<()>,
    gated: Mutex<Option<&'static str>>,
}

impl Owner {
    pub(crate) fn new(inner: impl TraceStore + 'static) -> Arc<Self> {
        let (failure, calls, gated) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { inner: Arc::new(inner), failure, calls, gate: tokio::sync::RwLock::default(), gated })
    }

    pub(crate) fn fail(&self, kind: impl Into<Option<ErrorKind>>) {
        *self.failure.lock() = kind.into();
    }

    pub(crate) fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.calls.lock())
    }

    /// Holds the answers to one kind of call back while the gate is locked for writing.
    pub(crate) fn hold(&self, call: &'static str) {
        *self.gated.lock() = Some(call);
    }

    fn called(&self, call: &'static str) -> Result<()> {
        self.calls.lock().push(call);
        match *self.failure.lock() {
            Some(kind) => Err(Error::new(kind, "the owner is away").without_effect()),
            None => Ok(()),
        }
    }

    async fn answered(&self, call: &'static str) {
        let is_held = *self.gated.lock() == Some(call);
        if is_held {
            drop(self.gate.read().await);
        }
    }
}

macro_rules! forwarded {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {
        #[async_trait]
        impl TraceStore for Owner {
            $(async fn $name(&self, $($argument: $type),*) -> Result<$result> {
                self.called(stringify!($name))?;
                let result = self.inner.$name($($argument),*).await;
                self.answered(stringify!($name)).await;
                result
            })+
        }
    };
}

forwarded! {
    create_trace(trace: NewTrace) -> Trace;
    get_trace(trace: &TraceAddress) -> Option<Trace>;
    update_trace(trace: &TraceAddress, update: TraceUpdate) -> Trace;
    list_traces(query: &TracesQuery) -> TracePage;
    delete_trace(trace: &TraceAddress) -> bool;
    get_goal_tree(trace: &TraceAddress) -> GoalTree;
    update_goal_tree(trace: &TraceAddress, tree: GoalTree) -> ();
    add_goal(trace: &TraceAddress, goal: NewGoal) -> Goal;
    update_goal(trace: &TraceAddress, goal: &str, update: GoalUpdate) -> Goal;
    add_messages(trace: &TraceAddress, messages: Vec<NewMessage>, options: &AddOptions) -> Added;
    get_message(trace: &TraceAddress, message: &MessageRef) -> Option<Message>;
    update_message(trace: &TraceAddress, message: &MessageRef, update: MessageUpdate) -> Message;
    get_messages(trace: &TraceAddress, query: &MessagesQuery) -> MessagesPage;
    get_main_path(trace: &TraceAddress, query: &PathQuery) -> MessagesPage;
    append_event(trace: &TraceAddress, kind: &str, data: OtherFields) -> u64;
    get_events(trace: &TraceAddress, since_event_id: u64, limit: usize) -> EventsPage;
    watch(trace: &TraceAddress, since_event_id: u64) -> EventStream;
}
