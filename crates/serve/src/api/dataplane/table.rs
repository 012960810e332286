//! The routes of the data plane.

use super::super::route::{Route, route};
use super::{AgentQuery, bus, kv, locks, snapshots, tasks, tools};
use crate::rights::Access;
use axum::http::Method;
use treehold_agent_state::bundle::TaskRecord;

/// Returns the routes of the data plane.
#[rustfmt::skip]
pub(in crate::api) fn routes() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/api/v1/dp/healthz", "dpHealth", "Says that the data plane is served", super::health).gives::<super::StatusReply>(),
        route(M::GET, "/api/v1/dp/kv/item", "dpGetItem", "Reads an item of an agent", kv::get).query::<kv::KvQuery>().gives::<kv::KvReply>().large(),
        route(M::PUT, "/api/v1/dp/kv/item", "dpPutItem", "Writes an item of an agent", kv::put)
            .takes::<kv::PutKv>().gives::<kv::KvVersion>().changes(Access::Write),
        route(M::DELETE, "/api/v1/dp/kv/item", "dpDeleteItem", "Removes an item of an agent", kv::delete)
            .query::<kv::KvQuery>().with_status(204).changes(Access::Write),
        route(M::GET, "/api/v1/dp/kv/search", "dpSearchItems", "Finds items of an agent by namespace", kv::search)
            .query::<kv::KvSearchQuery>().gives::<kv::KvItems>().large(),
        route(M::GET, "/api/v1/dp/locks", "dpPeekLock", "Returns who holds a lock", locks::peek)
            .query::<locks::LockQuery>().gives::<locks::HolderReply>(),
        route(M::POST, "/api/v1/dp/locks/acquire", "dpAcquireLock", "Acquires a lock", locks::acquire)
            .takes::<locks::LockRequest>().gives::<locks::LockReply>().changes(Access::Write),
        route(M::POST, "/api/v1/dp/locks/renew", "dpRenewLock", "Renews a lock", locks::renew)
            .takes::<locks::LockRequest>().gives::<locks::RenewedLock>().changes(Access::Write),
        route(M::POST, "/api/v1/dp/locks/release", "dpReleaseLock", "Releases a lock", locks::release)
            .takes::<locks::LockRequest>().with_status(204).changes(Access::Write),
        route(M::PUT, "/api/v1/dp/snapshots/{id}", "dpPutSnapshot", "Stores a snapshot of a sandbox", snapshots::put)
            .query::<AgentQuery>().takes_bytes().gives::<snapshots::SnapshotStored>().with_status(201).changes(Access::Write),
        route(M::GET, "/api/v1/dp/snapshots/{id}", "dpGetSnapshot", "Reads a snapshot of a sandbox", snapshots::get)
            .query::<AgentQuery>().gives_bytes().large(),
        route(M::HEAD, "/api/v1/dp/snapshots/{id}", "dpStatSnapshot", "Says whether a snapshot exists", snapshots::head).query::<AgentQuery>(),
        route(M::POST, "/api/v1/dp/snapshots/{id}/upload-url", "dpSnapshotTarget", "Says where to upload a snapshot", snapshots::upload_target)
            .takes::<AgentQuery>().gives::<snapshots::UploadTarget>(),
        route(M::POST, "/api/v1/dp/bus/queue/push", "dpPushQueue", "Adds an entry to a queue", bus::push)
            .takes::<bus::BusRequest>().gives::<bus::EntryAdded>().changes(Access::Write),
        route(M::POST, "/api/v1/dp/bus/queue/drain", "dpDrainQueue", "Removes and returns entries of a queue", bus::drain)
            .takes::<bus::BusRequest>().gives::<bus::BusEntries>().changes(Access::Write),
        route(M::POST, "/api/v1/dp/bus/queue/delete", "dpDeleteQueue", "Removes a queue", bus::delete)
            .takes::<bus::BusRequest>().with_status(204).changes(Access::Write),
        route(M::GET, "/api/v1/dp/bus/queue/peek", "dpPeekQueue", "Says whether a queue has entries", bus::peek)
            .query::<bus::QueueQuery>().gives::<bus::BusPeek>(),
        route(M::POST, "/api/v1/dp/bus/log/append", "dpAppendLog", "Adds an entry to a log", bus::append)
            .takes::<bus::BusRequest>().gives::<bus::EntryAdded>().changes(Access::Write),
        route(M::GET, "/api/v1/dp/bus/log/read", "dpReadLog", "Reads entries of a log", bus::read)
            .query::<bus::LogQuery>().gives::<bus::BusEntries>().large(),
        route(M::POST, "/api/v1/dp/bus/log/trim", "dpTrimLog", "Removes all entries of a log", bus::trim)
            .takes::<bus::BusRequest>().with_status(204).changes(Access::Write),
        route(M::POST, "/api/v1/dp/async-tools", "dpRegisterTool", "Registers a tool call that runs in the background", tools::register)
            .takes::<tools::RegisterTool>().gives::<tools::ToolRegistered>().changes(Access::Write),
        route(M::POST, "/api/v1/dp/async-tools/{id}/complete", "dpCompleteTool", "Records the result of a tool call", tools::complete)
            .takes::<tools::EndTool>().with_status(204).changes(Access::Write),
        route(M::POST, "/api/v1/dp/async-tools/{id}/fail", "dpFailTool", "Records that a tool call failed", tools::fail)
            .takes::<tools::EndTool>().with_status(204).changes(Access::Write),
        route(M::POST, "/api/v1/dp/async-tools/{id}/timeout", "dpTimeOutTool", "Gives up a tool call", tools::timeout)
            .takes::<tools::EndTool>().with_status(204).changes(Access::Write),
        route(M::GET, "/api/v1/dp/async-tools/stale", "dpStaleTools", "Finds tool calls that have not ended", tools::stale)
            .query::<tools::StaleQuery>().gives::<tools::StaleTools>().large(),
        route(M::GET, "/api/v1/dp/tasks", "dpListTasks", "Lists the tasks of a session", tasks::list)
            .query::<tasks::TaskQuery>().gives::<tasks::Tasks>().large(),
        route(M::GET, "/api/v1/dp/tasks/pending-deliveries", "dpPendingTasks", "Lists tasks that ended and were not delivered", tasks::pending)
            .query::<tasks::TaskQuery>().gives::<tasks::Tasks>().large(),
        route(M::POST, "/api/v1/dp/tasks/heartbeat", "dpKeepTasks", "Says that tasks still run", tasks::heartbeat)
            .takes::<tasks::Heartbeat>().with_status(204).changes(Access::Write),
        route(M::PUT, "/api/v1/dp/tasks/{id}", "dpPutTask", "Creates a task or records its progress", tasks::put)
            .takes::<tasks::PutTask>().gives::<TaskRecord>().changes(Access::Write),
        route(M::GET, "/api/v1/dp/tasks/{id}", "dpGetTask", "Returns a task", tasks::get).query::<tasks::TaskQuery>().gives::<TaskRecord>().large(),
        route(M::DELETE, "/api/v1/dp/tasks/{id}", "dpDeleteTask", "Removes a task", tasks::delete)
            .query::<tasks::TaskQuery>().with_status(204).changes(Access::Write),
        route(M::POST, "/api/v1/dp/tasks/{id}/cancel", "dpCancelTask", "Requests that a task be cancelled", tasks::cancel)
            .takes::<tasks::TaskQuery>().with_status(204).changes(Access::Write),
        route(M::POST, "/api/v1/dp/tasks/{id}/delivered", "dpDeliverTask", "Records that the result of a task was delivered", tasks::delivered)
            .takes::<tasks::TaskQuery>().gives::<tasks::Delivered>().changes(Access::Write),
    ]
}
