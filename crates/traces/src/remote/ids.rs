//! Ids that cross a border: qualified when they arrive from the owner of a trace, stripped when they are sent to it.

use super::Place;
use crate::id::{Location, TraceAddress, TraceId};
use crate::model::{EventsPage, Goal, GoalTree, Message, NewTrace, OtherFields, Trace, TraceEvent};
use serde_json::Value;
use treehold_core::error::{Error, Result};

/// The fields of events, and of the goals and traces in them, that hold ids of traces.
const ID_FIELDS: [&str; 4] = ["trace_id", "parent_trace_id", "sub_trace_id", "add_sub_trace"];

/// The field of goals that lists ids of traces.
const ID_LIST: &str = "sub_trace_ids";

/// The fields of events that hold a goal, a message or another value with ids. Contents of messages are none of them.
const NESTED: [&str; 5] = ["goal", "goals", "goal_tree", "message", "trace"];

impl Place {
    /// Qualifies an id that arrived. One that names a third place stays as it is; one of this place becomes local.
    pub(super) fn received(&self, id: TraceAddress) -> TraceAddress {
        match id.location() {
            Some(location) if self.own.as_ref().is_some_and(|own| own.is_same(location)) => id.stripped(),
            _ => id.qualified(&self.location),
        }
    }

    /// Returns the id for the owner: stripped if it is the owner's, qualified if it is of this place. `None` for an id of this place whose
    /// location is not known.
    fn sent(&self, id: &TraceAddress) -> Option<TraceAddress> {
        match id.location() {
            Some(location) if self.peers.is_same(location, &self.location) => Some(id.stripped()),
            Some(location) => Some(TraceAddress::at(self.peers.by_host(location), id.id().clone())),
            None => self.own.as_ref().map(|own| id.qualified(own)),
        }
    }

    /// Returns an id for the owner.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for an id of this place, if its location is not known.
    pub(super) fn sent_or_refused(&self, id: &TraceAddress) -> Result<TraceAddress> {
        self.sent(id).ok_or_else(|| {
            let message = format!("`{id}` is a trace of this place, which `{}` could not find; set `own_location`", self.location);
            Error::invalid_argument(message).without_effect()
        })
    }

    /// Prepares a trace for its owner. A parent that the owner could not find is left out; the parent's goals name the trace.
    pub(super) fn new_trace_sent(&self, mut trace: NewTrace) -> NewTrace {
        trace.trace_id = trace.trace_id.map(|id| id.stripped());
        trace.parent_trace_id = trace.parent_trace_id.and_then(|id| self.sent(&id));
        trace
    }

    /// Prepares goals for their owner.
    ///
    /// # Errors
    /// As [`Place::sent_or_refused`].
    pub(super) fn goals_sent(&self, mut tree: GoalTree) -> Result<GoalTree> {
        for goal in &mut tree.goals {
            goal.sub_trace_ids = goal.sub_trace_ids.iter().map(|id| self.sent_or_refused(id)).collect::<Result<_>>()?;
        }
        Ok(tree)
    }

    pub(super) fn trace_received(&self, mut trace: Trace) -> Trace {
        trace.trace_id = self.received(trace.trace_id);
        trace.parent_trace_id = trace.parent_trace_id.map(|id| self.received(id));
        (trace.remote, trace.stale) = (true, false);
        // The answer about one trace includes its goals, which have a method of their own.
        trace.other.remove("goal_tree");
        trace
    }

    pub(super) fn message_received(&self, mut message: Message) -> Message {
        message.trace_id = self.received(message.trace_id);
        message
    }

    pub(super) fn goal_received(&self, mut goal: Goal) -> Goal {
        goal.sub_trace_ids = goal.sub_trace_ids.into_iter().map(|id| self.received(id)).collect();
        goal
    }

    pub(super) fn goals_received(&self, mut tree: GoalTree) -> GoalTree {
        tree.goals = tree.goals.into_iter().map(|goal| self.goal_received(goal)).collect();
        tree
    }

    pub(super) fn events_received(&self, mut page: EventsPage) -> EventsPage {
        page.events = page.events.into_iter().map(|event| self.event_received(event)).collect();
        page
    }

    pub(super) fn event_received(&self, mut event: TraceEvent) -> TraceEvent {
        map_ids(&mut event.data, &|id| self.received(id));
        event
    }

    /// Prepares the data of an event for the owner of the trace. Ids of this place stay local if its location is not known.
    pub(super) fn event_sent(&self, mut data: OtherFields) -> OtherFields {
        map_ids(&mut data, &|id| self.sent(&id).unwrap_or(id));
        data
    }
}

/// Maps the ids of traces in the data of an event.
fn map_ids(data: &mut OtherFields, map: &dyn Fn(TraceAddress) -> TraceAddress) {
    let mapped = |text: &mut String| {
        if let Ok(id) = TraceAddress::parse(text) {
            *text = map(id).to_string();
        }
    };
    for (name, value) in data {
        match value {
            Value::String(text) if ID_FIELDS.contains(&name.as_str()) => mapped(text),
            Value::Array(ids) if name == ID_LIST => ids.iter_mut().for_each(|id| {
                if let Value::String(text) = id {
                    mapped(text);
                }
            }),
            Value::Object(fields) if NESTED.contains(&name.as_str()) => map_ids(fields, map),
            Value::Array(values) if NESTED.contains(&name.as_str()) => values.iter_mut().for_each(|value| {
                if let Value::Object(fields) = value {
                    map_ids(fields, map);
                }
            }),
            _ => {}
        }
    }
}

/// Returns whether an id that arrived names a trace of the sender.
pub(super) fn is_of_sender(id: &TraceAddress, expected: Option<&TraceId>) -> bool {
    id.is_local() && expected.is_none_or(|expected| id.id() == expected)
}

/// Returns the location that a store of one place fills in.
pub(super) fn at_home(id: &TraceAddress, home: Option<&Location>) -> Option<Location> {
    id.location().or(home).cloned()
}
