//! The routes of states, turns and administration.

use super::super::route::{Route, route};
use super::{admin, listing, turns, values};
use crate::rights::Access;
use axum::http::Method;
use treehold_agent_state::{Json, MessageText, SessionExport};

/// Returns the routes of states, turns and administration.
#[rustfmt::skip]
pub(in crate::api) fn routes() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/state", "listStateUsers", "Lists the users whose states the caller may use", listing::users)
            .query::<listing::StatesQuery>().gives::<listing::StateUsersReply>().large(),
        route(M::GET, "/v1/state/{user}", "listStateSessions", "Lists the sessions of a user", listing::sessions)
            .query::<listing::StatesQuery>().gives::<listing::StateSessionsReply>().large(),
        route(M::GET, "/v1/state/{user}/{session}", "listStateKeys", "Lists the keys of a session", listing::keys)
            .query::<super::AgentQuery>().gives::<listing::StateKeysReply>().large(),
        route(M::DELETE, "/v1/state/{user}/{session}", "deleteStateSession", "Removes a session with all its states", listing::delete)
            .query::<listing::RemoveSessionQuery>().with_status(204).changes(Access::Write),
        route(M::GET, "/v1/state/{user}/{session}:export", "exportState", "Returns all states of a session, or its conversation as Markdown",
            listing::export).query::<super::AgentQuery>().gives::<SessionExport>().large(),
        route(M::POST, "/v1/state/{user}/{session}:interrupt", "interruptState", "Interrupts the call of a session that runs now", turns::interrupt)
            .query::<super::AgentQuery>().takes::<turns::InterruptRequest>().gives::<turns::InterruptReply>().with_status(202)
            .changes(Access::Write),
        route(M::GET, "/v1/state/{user}/{session}/{key}", "getState", "Returns a state as it was saved", values::get)
            .query::<values::ValueQuery>().gives::<Json>().large(),
        route(M::HEAD, "/v1/state/{user}/{session}/{key}", "statState", "Returns the version of a state as a header", values::head)
            .query::<values::ValueQuery>(),
        route(M::PUT, "/v1/state/{user}/{session}/{key}", "putState", "Saves a state", values::put)
            .query::<values::SaveQuery>().takes::<Json>().uploads().gives::<values::SavedState>().changes(Access::Write)
            .if_match().if_none_match(),
        route(M::DELETE, "/v1/state/{user}/{session}/{key}", "deleteState", "Removes a state", values::delete)
            .query::<values::RemoveQuery>().with_status(204).changes(Access::Write).if_match(),
        route(M::POST, "/v1/turns:acquire", "acquireTurn", "Waits for the turn of a session", turns::acquire)
            .takes::<turns::AcquireRequest>().gives::<turns::AcquireReply>().changes(Access::Write),
        route(M::POST, "/v1/turns:renew", "renewTurn", "Renews a turn, and returns its interrupt", turns::renew)
            .takes::<turns::TurnRequest>().gives::<turns::RenewReply>().changes(Access::Write),
        route(M::POST, "/v1/turns:release", "releaseTurn", "Ends a turn", turns::release)
            .takes::<turns::TurnRequest>().with_status(204).changes(Access::Write),
        route(M::GET, "/v1/admin/sessions", "adminListSessions", "Lists the sessions of a user by id", admin::sessions)
            .query::<admin::AdminListQuery>().gives::<Vec<String>>().large(),
        route(M::GET, "/v1/admin/sessions/{session}/messages", "adminListMessages", "Lists the messages of a session with their texts", admin::messages)
            .query::<admin::AdminQuery>().gives::<Vec<MessageText>>().large(),
        route(M::GET, "/v1/admin/sessions/{session}/state", "adminGetState", "Returns the state of the agent in a session", admin::state)
            .query::<admin::AdminQuery>().gives::<Json>().large(),
        route(M::GET, "/v1/admin/sessions/{session}:export", "adminExport", "Returns the conversation of a session as Markdown", admin::export)
            .query::<admin::AdminQuery>().gives_text().large(),
        route(M::POST, "/v1/admin/sessions/{session}:abort", "adminAbort", "Interrupts the call of a session that runs now", admin::abort)
            .query::<admin::AdminQuery>().with_status(202).changes(Access::Admin),
        route(M::POST, "/v1/admin/sessions/{session}:compact", "adminCompact", "Replaces the oldest messages of a session with their summary",
            admin::compact).query::<admin::AdminQuery>().takes::<admin::CompactRequest>().gives::<admin::CompactReply>().changes(Access::Admin),
        route(M::POST, "/v1/admin/sessions/{session}:undo", "adminUndo", "Restores the state before the last change by an operator", admin::undo)
            .query::<admin::AdminQuery>().gives::<admin::UndoReply>().changes(Access::Admin),
        route(M::POST, "/v1/admin/sessions/{session}:redo", "adminRedo", "Reverses an undo, unless the state has changed since", admin::redo)
            .query::<admin::AdminQuery>().gives::<admin::UndoReply>().changes(Access::Admin),
    ]
}
