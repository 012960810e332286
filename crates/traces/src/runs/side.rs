//! The traces of a run on a side branch.

use crate::contract::{
    AddOptions, Added, EventStream, MessageRef, MessagesPage, MessagesQuery, PathQuery, TracePage, TraceStore, TracesQuery,
};
use crate::id::{Location, TraceAddress};
use crate::model::{
    EventsPage, Goal, GoalTree, GoalUpdate, Message, MessageUpdate, NewGoal, NewMessage, NewTrace, OtherFields, Trace, TraceUpdate,
};
use async_trait::async_trait;
use std::sync::Arc;
use tokio::sync::Mutex;
use treehold_core::error::{Error, ErrorKind, Result};

/// Traces in which the end of a side branch takes the place of the head of one trace, for paths and appends. So a runner needs to know
/// nothing of the branch, and the main path stays as it is. All other traces are as they are.
#[derive(Debug)]
pub(super) struct SideTraces {
    inner: Arc<dyn TraceStore>,
    trace: TraceAddress,
    /// The locations of this place.
    own: Vec<Location>,
    branch_type: String,
    /// The end of the branch.
    end: Mutex<u64>,
}

impl SideTraces {
    /// Begins a branch of a local trace after a message.
    pub(super) fn new(inner: Arc<dyn TraceStore>, trace: TraceAddress, own: Vec<Location>, branch_type: String, after: u64) -> Self {
        Self { inner, trace, own, branch_type, end: Mutex::new(after) }
    }

    fn is_branched(&self, trace: &TraceAddress) -> bool {
        let is_here = |location: &Location| self.own.iter().any(|own| own.is_same(location));
        trace.id() == self.trace.id() && trace.location().is_none_or(is_here)
    }
}

#[async_trait]
impl TraceStore for SideTraces {
    async fn add_messages(&self, trace: &TraceAddress, mut messages: Vec<NewMessage>, options: &AddOptions) -> Result<Added> {
        if !self.is_branched(trace) {
            return self.inner.add_messages(trace, messages, options).await;
        }
        // Held until the end is known, so that concurrent appends continue each other.
        let mut end = self.end.lock().await;
        let mut options = options.clone();
        if let Some(expected) = options.expected_head.take().filter(|expected| *expected != *end) {
            let message = format!("the end of the branch is {end} and not {expected}; read what was added, and try again");
            return Err(Error::new(ErrorKind::Conflict, message).without_effect());
        }
        for message in &mut messages {
            message.branch_type.get_or_insert_with(|| self.branch_type.clone());
        }
        if let Some(first) = messages.first_mut() {
            first.parent_sequence.get_or_insert(*end);
        }
        let mut added = self.inner.add_messages(trace, messages, &options).await?;
        *end = added.messages.last().map_or(*end, |message| message.sequence);
        added.head_sequence = *end;
        Ok(added)
    }

    async fn get_main_path(&self, trace: &TraceAddress, query: &PathQuery) -> Result<MessagesPage> {
        let mut query = query.clone();
        if self.is_branched(trace) && query.head_sequence.is_none() {
            query.head_sequence = Some(*self.end.lock().await);
        }
        self.inner.get_main_path(trace, &query).await
    }

    async fn update_trace(&self, trace: &TraceAddress, update: TraceUpdate) -> Result<Trace> {
        if self.is_branched(trace) && update.head_sequence.is_some() {
            return Err(
                Error::invalid_argument("a run on a side branch does not move the head; leave out `head_sequence`").without_effect()
            );
        }
        self.inner.update_trace(trace, update).await
    }

    async fn create_trace(&self, trace: NewTrace) -> Result<Trace> {
        self.inner.create_trace(trace).await
    }

    async fn get_trace(&self, trace: &TraceAddress) -> Result<Option<Trace>> {
        self.inner.get_trace(trace).await
    }

    async fn list_traces(&self, query: &TracesQuery) -> Result<TracePage> {
        self.inner.list_traces(query).await
    }

    async fn delete_trace(&self, trace: &TraceAddress) -> Result<bool> {
        self.inner.delete_trace(trace).await
    }

    async fn get_goal_tree(&self, trace: &TraceAddress) -> Result<GoalTree> {
        self.inner.get_goal_tree(trace).await
    }

    async fn update_goal_tree(&self, trace: &TraceAddress, tree: GoalTree) -> Result<()> {
        self.inner.update_goal_tree(trace, tree).await
    }

    async fn add_goal(&self, trace: &TraceAddress, goal: NewGoal) -> Result<Goal> {
        self.inner.add_goal(trace, goal).await
    }

    async fn update_goal(&self, trace: &TraceAddress, goal: &str, update: GoalUpdate) -> Result<Goal> {
        self.inner.update_goal(trace, goal, update).await
    }

    async fn get_message(&self, trace: &TraceAddress, message: &MessageRef) -> Result<Option<Message>> {
        self.inner.get_message(trace, message).await
    }

    async fn update_message(&self, trace: &TraceAddress, message: &MessageRef, update: MessageUpdate) -> Result<Message> {
        self.inner.update_message(trace, message, update).await
    }

    async fn get_messages(&self, trace: &TraceAddress, query: &MessagesQuery) -> Result<MessagesPage> {
        self.inner.get_messages(trace, query).await
    }

    async fn append_event(&self, trace: &TraceAddress, kind: &str, data: OtherFields) -> Result<u64> {
        self.inner.append_event(trace, kind, data).await
    }

    async fn get_events(&self, trace: &TraceAddress, since_event_id: u64, limit: usize) -> Result<EventsPage> {
        self.inner.get_events(trace, since_event_id, limit).await
    }

    async fn watch(&self, trace: &TraceAddress, since_event_id: u64) -> Result<EventStream> {
        self.inner.watch(trace, since_event_id).await
    }
}
