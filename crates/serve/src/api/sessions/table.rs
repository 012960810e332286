//! The routes of sessions.

use super::super::route::{Route, route};
use super::{compaction, conversation, events, inspector, memo, runs, transfer};
use crate::rights::Access;
use axum::http::Method;
use treehold_sessions::layout::ImportReport;
use treehold_sessions::orchestration::{MailboxEvent, OrchestrationEvent, OrchestrationPage, RecoveredState};
use treehold_sessions::trace::TracePage;
use treehold_sessions::{SessionChange, SessionDescription, SkillLog};

/// Returns the routes of sessions.
#[rustfmt::skip]
pub(in crate::api) fn routes() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/sessions", "listSessions", "Lists the sessions of a user, newest first", conversation::list)
            .query::<conversation::SessionsQuery>().gives::<conversation::SessionsReply>().large(),
        route(M::POST, "/v1/sessions", "openSession", "Finds or creates a session", conversation::open)
            .takes::<conversation::OpenSession>().gives::<conversation::OpenedSession>().with_status(201).changes(Access::Write),
        route(M::GET, "/v1/sessions/{session}", "getSession", "Describes a session", conversation::describe).gives::<SessionDescription>(),
        route(M::PATCH, "/v1/sessions/{session}", "changeSession", "Sets or removes the title of a session", conversation::change)
            .takes::<conversation::ChangeSession>().with_status(204).changes(Access::Write).if_match(),
        route(M::DELETE, "/v1/sessions/{session}", "deleteSession", "Removes a session with everything in it", conversation::delete)
            .with_status(204).changes(Access::Admin),
        route(M::GET, "/v1/sessions/{session}/messages", "listMessages", "Reads messages of a session", conversation::messages)
            .query::<conversation::MessagesQuery>().gives::<conversation::MessagesReply>().large(),
        route(M::POST, "/v1/sessions/{session}/messages", "appendMessages", "Appends messages, with or without a turn", conversation::append)
            .takes::<conversation::AppendMessages>().gives::<conversation::AppendReply>().changes(Access::Write).keyed(),
        route(M::GET, "/v1/sessions/{session}/turns", "listTurns", "Lists the turns of a session, oldest first", conversation::turns)
            .query::<conversation::TurnsQuery>().gives::<conversation::TurnsReply>().large(),
        route(M::POST, "/v1/sessions/{session}/turns", "recordTurn", "Records a turn", conversation::record_turn)
            .takes::<conversation::RecordTurn>().gives::<conversation::TurnReply>().changes(Access::Write).keyed(),
        route(M::GET, "/v1/sessions/{session}/compaction", "planCompaction", "Returns the messages to summarise, if it is time", compaction::plan)
            .query::<compaction::CompactionQuery>().gives::<compaction::CompactionReply>().large(),
        route(M::POST, "/v1/sessions/{session}/compaction", "applyCompaction", "Replaces messages of the window with a summary", compaction::apply)
            .takes::<compaction::ApplyCompaction>().gives::<compaction::CompactionDone>().changes(Access::Write),
        route(M::GET, "/v1/sessions/{session}/memory-index", "getMemoryIndex", "Describes the memory documents", memo::index).gives::<memo::MemoryIndex>(),
        route(M::GET, "/v1/sessions/{session}/memo/{name}", "readMemo", "Reads a memory document of a session", memo::read).gives_text().large(),
        route(M::PUT, "/v1/sessions/{session}/memo/{name}", "writeMemo", "Writes a memory document of a session", memo::write)
            .takes_text().with_status(204).changes(Access::Write).if_match().if_none_match(),
        route(M::POST, "/v1/sessions/{session}/memo/{name}", "appendMemo", "Appends to a memory document of a session", memo::append)
            .takes_text().with_status(204).changes(Access::Write),
        route(M::GET, "/v1/user-memo/{name}", "readUserMemo", "Reads a memory document of a user", memo::read_user).gives_text().large(),
        route(M::PUT, "/v1/user-memo/{name}", "writeUserMemo", "Writes a memory document of a user", memo::write_user)
            .takes_text().with_status(204).changes(Access::Write).if_match().if_none_match(),
        route(M::POST, "/v1/user-memo/{name}", "appendUserMemo", "Appends to a memory document of a user", memo::append_user)
            .takes_text().with_status(204).changes(Access::Write),
        route(M::GET, "/v1/sessions/{session}/tool-results", "listToolResults", "Lists the tool calls whose full results are kept", memo::results)
            .query::<memo::ToolResultsQuery>().gives::<memo::ToolResultsReply>().large(),
        route(M::GET, "/v1/sessions/{session}/tool-results/{tool_call}", "readToolResult", "Reads the full result of a tool call", memo::read_result)
            .gives_text().large(),
        route(M::PUT, "/v1/sessions/{session}/tool-results/{tool_call}", "writeToolResult", "Keeps the full result of a tool call", memo::write_result)
            .takes_text().with_status(204).changes(Access::Write).if_match().if_none_match(),
        route(M::GET, "/v1/sessions/{session}/trace", "readTrace", "Reads the trace of a session", runs::trace)
            .query::<runs::LogQuery>().gives::<TracePage>().large(),
        route(M::POST, "/v1/sessions/{session}/trace", "appendTrace", "Appends an envelope to the trace", runs::append_envelope)
            .takes::<runs::AppendEnvelope>().gives::<runs::AppendedEnvelope>().changes(Access::Write).keyed(),
        route(M::GET, "/v1/sessions/{session}/orchestration/events", "listOrchestrationEvents", "Reads the events of an orchestration", runs::events)
            .query::<runs::LogQuery>().gives::<OrchestrationPage<OrchestrationEvent>>().large(),
        route(M::POST, "/v1/sessions/{session}/orchestration/events", "appendOrchestrationEvent", "Appends an event of an orchestration", runs::append_event)
            .takes::<runs::AppendEvent>().with_status(204).changes(Access::Write).keyed(),
        route(M::GET, "/v1/sessions/{session}/orchestration/checkpoint", "getOrchestrationCheckpoint", "Reads the checkpoint of an orchestration",
            runs::checkpoint).gives::<runs::CheckpointReply>().large(),
        route(M::PUT, "/v1/sessions/{session}/orchestration/checkpoint", "putOrchestrationCheckpoint", "Replaces the checkpoint of an orchestration",
            runs::write_checkpoint).takes::<runs::WriteCheckpoint>().with_status(204).changes(Access::Write),
        route(M::GET, "/v1/sessions/{session}/orchestration/state", "recoverOrchestration", "Recovers the state of an orchestration", runs::state)
            .gives::<RecoveredState>().large(),
        route(M::POST, "/v1/sessions/{session}/orchestration/commit", "commitOrchestration", "Writes events, checkpoint and mailboxes, all or none",
            runs::commit).takes::<runs::CommitRequest>().with_status(204).changes(Access::Write).keyed(),
        route(M::POST, "/v1/sessions/{session}/orchestration/claim", "claimOrchestration", "Claims an orchestration for a manager", runs::claim)
            .takes::<runs::ClaimRequest>().gives::<runs::ClaimReply>().changes(Access::Write),
        route(M::PUT, "/v1/sessions/{session}/orchestration/claim", "renewOrchestrationClaim", "Renews the lease of a claim", runs::renew)
            .takes::<runs::ClaimRequest>().with_status(204).changes(Access::Write),
        route(M::DELETE, "/v1/sessions/{session}/orchestration/claim", "releaseOrchestrationClaim", "Ends the lease of a claim", runs::release)
            .with_status(204).changes(Access::Write),
        route(M::GET, "/v1/sessions/{session}/orchestration/mailboxes/{agent}/events", "listMailboxEvents", "Reads the events of a mailbox", runs::mail)
            .query::<runs::LogQuery>().gives::<OrchestrationPage<MailboxEvent>>().large(),
        route(M::POST, "/v1/sessions/{session}/orchestration/mailboxes/{agent}/events", "appendMailboxEvent", "Appends an event to a mailbox",
            runs::append_mail).takes::<runs::AppendMail>().with_status(204).changes(Access::Write).keyed(),
        route(M::GET, "/v1/sessions/{session}/orchestration/mailboxes/{agent}/state", "getMailboxState", "Reads the state of a mailbox", runs::mailbox_state)
            .gives::<runs::MailboxStateRecord>().large(),
        route(M::PUT, "/v1/sessions/{session}/orchestration/mailboxes/{agent}/state", "putMailboxState", "Replaces the state of a mailbox",
            runs::write_mailbox_state).takes::<runs::MailboxStateRecord>().with_status(204).changes(Access::Write),
        route(M::GET, "/v1/sessions/{session}/orchestration/histories/{agent}", "getAgentHistory", "Reads the history of an agent", runs::history)
            .gives::<runs::HistoryRecord>().large(),
        route(M::PUT, "/v1/sessions/{session}/orchestration/histories/{agent}", "putAgentHistory", "Replaces the history of an agent",
            runs::write_history).takes::<runs::HistoryRecord>().with_status(204).changes(Access::Write),
        route(M::POST, "/v1/sessions/{session}/skill-logs", "storeSkillLog", "Stores the log of a skill", runs::store_skill_log)
            .takes::<SkillLog>().gives::<runs::SkillLogReply>().with_status(201).changes(Access::Write),
        route(M::GET, "/v1/sessions/{session}/events", "followSession", "Streams changes of a session as server-sent events", events::follow)
            .query::<events::FollowQuery>().gives_events::<SessionChange>(),
        route(M::GET, "/v1/inspector/sessions", "inspectSessions", "Lists the sessions that the caller may use", inspector::sessions)
            .query::<inspector::InspectedQuery>().gives::<inspector::InspectedSessions>().large(),
        route(M::GET, "/v1/sessions/{session}/export", "exportSession", "Returns a session as files", transfer::export)
            .gives::<transfer::SessionFilesRecord>().large(),
        route(M::POST, "/v1/sessions/{session}/import", "importSession", "Creates a session from files", transfer::import)
            .takes::<transfer::SessionFilesRecord>().uploads().gives::<ImportReport>().with_status(201).changes(Access::Write),
    ]
}
