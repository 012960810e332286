//! The routes of traces.

use super::super::exchange::{Answer, Asked};
use super::super::route::{self, Route};
use super::{events, goals, messages, records, runs, watch};
use crate::rights::Access;
use axum::http::Method;
use std::error::Error as _;
use treehold_core::error::Error;
use treehold_traces::{
    EventsPage, ForeignTrace, Goal, GoalTree, GoalUpdate, Message, MessageUpdate, MessagesPage, NewGoal, NewTrace, Trace, TraceEvent,
    TracePage, TraceUpdate,
};

/// Makes a route whose errors are those of the protocol.
fn route<F, Fut>(method: Method, path: &'static str, id: &'static str, summary: &'static str, handle: F) -> Route
where
    F: Fn(Asked) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let handle = move |asked| {
        let answered = handle(asked);
        async move { answered.await.map_err(|failed| failed.map(in_words)) }
    };
    route::route(method, path, id, summary, handle)
}

/// Replaces the message of an error about the trace of another user by that of the protocol.
fn in_words(error: Error) -> Error {
    match error.source().and_then(|source| source.downcast_ref::<ForeignTrace>()) {
        Some(foreign) => Error::new(error.kind(), foreign.to_string()).without_effect().with_source(*foreign),
        None => error,
    }
}

/// Returns the routes of traces.
#[rustfmt::skip]
pub(in crate::api) fn routes() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/traces", "listTraces", "Lists the traces of the caller, newest first", records::list)
            .query::<records::ListQuery>().gives::<TracePage>().large(),
        route(M::POST, "/v1/traces", "createTrace", "Creates a trace", records::create)
            .takes::<NewTrace>().gives::<Trace>().with_status(201).changes(Access::Write),
        route(M::GET, "/v1/traces/{trace}", "getTrace", "Returns a trace with its goals", records::get).gives::<records::TraceWithGoals>().large(),
        route(M::PATCH, "/v1/traces/{trace}", "updateTrace", "Changes the status, task, goal, head or configuration of a trace", records::update)
            .takes::<TraceUpdate>().gives::<Trace>().changes(Access::Write),
        route(M::DELETE, "/v1/traces/{trace}", "deleteTrace", "Removes a trace with its messages, goals and events", records::delete)
            .with_status(204).changes(Access::Admin),
        route(M::GET, "/v1/traces/{trace}/messages", "listTraceMessages", "Lists the messages of a trace, or those of its main path", messages::list)
            .query::<messages::ListQuery>().gives::<MessagesPage>().large(),
        route(M::POST, "/v1/traces/{trace}/messages", "appendTraceMessages", "Appends messages to a trace, all or none", messages::append)
            .takes::<messages::AppendRequest>().gives::<messages::AppendReply>().changes(Access::Write).keyed(),
        route(M::GET, "/v1/traces/{trace}/messages/{message}", "getTraceMessage", "Returns a message of a trace", messages::get)
            .query::<messages::MessageQuery>().gives::<Message>().large(),
        route(M::PATCH, "/v1/traces/{trace}/messages/{message}", "updateTraceMessage", "Changes a message of a trace", messages::update)
            .query::<messages::MessageQuery>().takes::<MessageUpdate>().gives::<Message>().changes(Access::Write),
        route(M::GET, "/v1/traces/{trace}/goals", "getGoals", "Returns the goals of a trace", goals::get).gives::<GoalTree>().large(),
        route(M::PUT, "/v1/traces/{trace}/goals", "replaceGoals", "Replaces the goals of a trace", goals::replace)
            .takes::<GoalTree>().gives::<GoalTree>().changes(Access::Write),
        route(M::POST, "/v1/traces/{trace}/goals", "addGoal", "Adds a goal to a trace", goals::add)
            .takes::<NewGoal>().gives::<Goal>().with_status(201).changes(Access::Write),
        route(M::PATCH, "/v1/traces/{trace}/goals/{goal}", "updateGoal", "Changes a goal of a trace", goals::update)
            .takes::<GoalUpdate>().gives::<Goal>().changes(Access::Write),
        route(M::GET, "/v1/traces/{trace}/events", "listTraceEvents", "Lists the events of a trace", events::list)
            .query::<events::ListQuery>().gives::<EventsPage>().large(),
        route(M::POST, "/v1/traces/{trace}/events", "appendTraceEvent", "Appends an event to a trace", events::append)
            .takes::<events::NewEvent>().gives::<events::EventAdded>().with_status(201).changes(Access::Write),
        route(M::GET, "/v1/traces/{trace}/watch", "watchTrace", "Streams the events of a trace as server-sent events, or over a WebSocket", watch::watch)
            .query::<watch::WatchQuery>().gives_events::<TraceEvent>(),
        route(M::POST, "/v1/traces/{trace}/run", "runTrace", "Continues a trace with the runner of this server", runs::run)
            .takes::<runs::StartRun>().gives::<runs::RunReply>().with_status(202).changes(Access::Write),
        route(M::POST, "/v1/traces/{trace}/reflect", "reflectTrace", "Runs the runner of this server on a side branch, on which the agent reflects on its trace", runs::reflect)
            .takes::<runs::StartReflection>().gives::<runs::RunReply>().with_status(202).changes(Access::Write),
        route(M::POST, "/v1/traces/{trace}/stop", "stopTrace", "Stops the run of a trace", runs::stop)
            .gives::<runs::StopReply>().changes(Access::Write),
    ]
}
