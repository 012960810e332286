//! A store that routes every call by its id: traces of this place to the local store, all others to their owners.

use crate::contract::{
    AddOptions, Added, EventStream, MessageRef, MessagesPage, MessagesQuery, PathQuery, TracePage, TraceStore, TracesQuery,
};
use crate::id::{Location, TraceAddress};
use crate::model::{
    EventsPage, Goal, GoalTree, GoalUpdate, Message, MessageUpdate, NewGoal, NewMessage, NewTrace, OtherFields, Trace, TraceUpdate,
};
use async_trait::async_trait;
use std::borrow::Cow;
use std::sync::Arc;
use treehold_core::error::Result;

/// The traces of this place together with those elsewhere.
///
/// A call with a local id never reaches the other store, and so never the network. [`create_trace`](TraceStore::create_trace) is local unless
/// its id is qualified. [`list_traces`](TraceStore::list_traces) lists the local traces.
#[derive(Debug, Clone)]
pub struct HybridTraces {
    local: Arc<dyn TraceStore>,
    elsewhere: Arc<dyn TraceStore>,
    own: Vec<Location>,
}

impl HybridTraces {
    /// Combines a local store with one that reaches other places.
    pub fn new(local: Arc<dyn TraceStore>, elsewhere: Arc<dyn TraceStore>) -> Self {
        Self { local, elsewhere, own: Vec::new() }
    }

    /// Adds a location under which others know this place. Ids with it are local.
    #[must_use]
    pub fn with_own_location(mut self, location: Location) -> Self {
        self.own.push(location);
        self
    }

    /// Returns the store of a trace, and the address that this store knows it by.
    fn of<'a>(&self, trace: &'a TraceAddress) -> (&dyn TraceStore, Cow<'a, TraceAddress>) {
        match trace.location() {
            None => (&*self.local, Cow::Borrowed(trace)),
            Some(location) if self.own.iter().any(|own| own.is_same(location)) => (&*self.local, Cow::Owned(trace.stripped())),
            Some(_) => (&*self.elsewhere, Cow::Borrowed(trace)),
        }
    }
}

#[async_trait]
impl TraceStore for HybridTraces {
    async fn create_trace(&self, mut trace: NewTrace) -> Result<Trace> {
        let Some(id) = trace.trace_id.take() else { return self.local.create_trace(trace).await };
        let (store, id) = self.of(&id);
        trace.trace_id = Some(id.into_owned());
        store.create_trace(trace).await
    }

    async fn get_trace(&self, trace: &TraceAddress) -> Result<Option<Trace>> {
        let (store, trace) = self.of(trace);
        store.get_trace(&trace).await
    }

    async fn update_trace(&self, trace: &TraceAddress, update: TraceUpdate) -> Result<Trace> {
        let (store, trace) = self.of(trace);
        store.update_trace(&trace, update).await
    }

    async fn list_traces(&self, query: &TracesQuery) -> Result<TracePage> {
        self.local.list_traces(query).await
    }

    async fn delete_trace(&self, trace: &TraceAddress) -> Result<bool> {
        let (store, trace) = self.of(trace);
        store.delete_trace(&trace).await
    }

    async fn get_goal_tree(&self, trace: &TraceAddress) -> Result<GoalTree> {
        let (store, trace) = self.of(trace);
        store.get_goal_tree(&trace).await
    }

    async fn update_goal_tree(&self, trace: &TraceAddress, tree: GoalTree) -> Result<()> {
        let (store, trace) = self.of(trace);
        store.update_goal_tree(&trace, tree).await
    }

    async fn add_goal(&self, trace: &TraceAddress, goal: NewGoal) -> Result<Goal> {
        let (store, trace) = self.of(trace);
        store.add_goal(&trace, goal).await
    }

    async fn update_goal(&self, trace: &TraceAddress, goal: &str, update: GoalUpdate) -> Result<Goal> {
        let (store, trace) = self.of(trace);
        store.update_goal(&trace, goal, update).await
    }

    async fn add_messages(&self, trace: &TraceAddress, messages: Vec<NewMessage>, options: &AddOptions) -> Result<Added> {
        let (store, trace) = self.of(trace);
        store.add_messages(&trace, messages, options).await
    }

    async fn get_message(&self, trace: &TraceAddress, message: &MessageRef) -> Result<Option<Message>> {
        let (store, trace) = self.of(trace);
        store.get_message(&trace, message).await
    }

    async fn update_message(&self, trace: &TraceAddress, message: &MessageRef, update: MessageUpdate) -> Result<Message> {
        let (store, trace) = self.of(trace);
        store.update_message(&trace, message, update).await
    }

    async fn get_messages(&self, trace: &TraceAddress, query: &MessagesQuery) -> Result<MessagesPage> {
        let (store, trace) = self.of(trace);
        store.get_messages(&trace, query).await
    }

    async fn get_main_path(&self, trace: &TraceAddress, query: &PathQuery) -> Result<MessagesPage> {
        let (store, trace) = self.of(trace);
        store.get_main_path(&trace, query).await
    }

    async fn append_event(&self, trace: &TraceAddress, kind: &str, data: OtherFields) -> Result<u64> {
        let (store, trace) = self.of(trace);
        store.append_event(&trace, kind, data).await
    }

    async fn get_events(&self, trace: &TraceAddress, since_event_id: u64, limit: usize) -> Result<EventsPage> {
        let (store, trace) = self.of(trace);
        store.get_events(&trace, since_event_id, limit).await
    }

    async fn watch(&self, trace: &TraceAddress, since_event_id: u64) -> Result<EventStream> {
        let (store, trace) = self.of(trace);
        store.watch(&trace, since_event_id).await
    }
}
