//! The table of routes: the handler and description of each method and path.

use super::exchange::{Answer, Asked};
use super::{Api, apply, events, fs, problem, query, store, threads};
use crate::caller::Caller;
use crate::rights::Access;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::http::Method;
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Extension, Router};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use treehold_agent::audit::AuditPage;
use treehold_agent::feed::{FeedEvent, FeedPage};
use treehold_agent::memory::MemoryPrompt;
use treehold_agent::tools::ToolOutput;
use treehold_core::error::Error;
use treehold_core::ops::{Changed, Entry, GlobResult, GrepResult, Listing, SearchResult};
use treehold_core::wire::{
    ApplyReply, ApplyRequest, CapabilitiesReply, GlobRequest, GrepRequest, LsRequest, ReadRequest, SearchRequest, StatRequest, TreeRequest,
};
use treehold_tree::backend::Tree;
use treehold_tree::checkpoint::{Checkpoint, CheckpointPage, Diff, MergeOutcome, Pruned, ThreadPage};

/// Generates a schema.
pub(super) type Schemas = fn(&mut SchemaGenerator) -> Schema;

/// The content of a request or response body.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// No body.
    None,
    /// The bytes of a file.
    Bytes,
    /// JSON.
    Json(Schemas),
    /// Server-sent events; the schema is that of the data of change events.
    Events(Schemas),
}

/// One method of one path.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The operation id, which names the method in generated clients.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) query: Option<Schemas>,
    pub(super) body: Content,
    pub(super) status: u16,
    pub(super) reply: Content,
    /// The minimum access that its changes need, or `None` if it only reads.
    pub(super) changes: Option<Access>,
    handler: MethodRouter<Arc<Api>>,
}

fn schema<T: JsonSchema>() -> Schemas {
    |generator| generator.subschema_for::<T>()
}

/// The schema with its properties inline, for queries.
fn fields<T: JsonSchema>() -> Schemas {
    |generator| T::json_schema(generator)
}

fn route<F, Fut>(method: Method, path: &'static str, id: &'static str, summary: &'static str, handle: F) -> Route
where
    F: Fn(Asked) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Answer> + Send + 'static,
{
    let filter = MethodFilter::try_from(method.clone()).expect("a method that routers know");
    let handler = on(
        filter,
        move |State(api): State<Arc<Api>>,
              Extension(caller): Extension<Caller>,
              params: Result<RawPathParams, RawPathParamsRejection>,
              request: Request| {
            let handle = handle.clone();
            async move {
                let Ok(params) = params else {
                    return problem::response(&Error::new(
                        treehold_core::error::ErrorKind::InvalidPath,
                        "the path is not UTF-8, percent-encoded",
                    ));
                };
                let params = params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                match handle(Asked::new(api, caller, params, request)).await {
                    Ok(response) => response,
                    Err(failed) => failed.into_response(),
                }
                .into_response()
            }
        },
    );
    Route { method, path, id, summary, query: None, body: Content::None, status: 200, reply: Content::None, changes: None, handler }
}

impl Route {
    fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(fields::<T>());
        self
    }

    fn takes<T: JsonSchema>(mut self) -> Self {
        self.body = Content::Json(schema::<T>());
        self
    }

    fn takes_bytes(mut self) -> Self {
        self.body = Content::Bytes;
        self
    }

    fn gives<T: JsonSchema>(mut self) -> Self {
        self.reply = Content::Json(schema::<T>());
        self
    }

    fn gives_events<T: JsonSchema>(mut self) -> Self {
        self.reply = Content::Events(schema::<T>());
        self
    }

    fn gives_bytes(mut self) -> Self {
        self.reply = Content::Bytes;
        self
    }

    /// Marks a route that makes changes: idempotency keys apply, and callers with less access are refused up front.
    fn changes(mut self, access: Access) -> Self {
        self.changes = Some(access);
        self
    }

    fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }
}

/// Returns every route.
#[rustfmt::skip]
pub(super) fn routes() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/fs/{*path}", "readFile", "Reads a file, or a part of it", fs::get).query::<ReadRequest>().gives_bytes(),
        route(M::HEAD, "/v1/fs/{*path}", "statFile", "Tells size, version and time of a file", fs::get),
        route(M::PUT, "/v1/fs/{*path}", "writeFile", "Creates a file or replaces its content; or makes a directory", fs::put)
            .query::<fs::PutQuery>().takes_bytes().gives::<Changed>().changes(Access::Write),
        route(M::POST, "/v1/fs/{*path}", "appendFile", "Adds to the end of a file", fs::append).takes_bytes().gives::<Changed>().changes(Access::Write),
        route(M::PATCH, "/v1/fs/{*path}", "editFile", "Replaces text within a file", fs::patch)
            .takes::<fs::PatchRequest>().gives::<Changed>().changes(Access::Write),
        route(M::DELETE, "/v1/fs/{*path}", "deleteFile", "Removes a file or directory", fs::delete)
            .query::<fs::DeleteQuery>().gives::<Changed>().changes(Access::Write),
        route(M::GET, "/v1/stat", "stat", "Looks at one path", query::stat).query::<StatRequest>().gives::<Entry>(),
        route(M::POST, "/v1/stat", "statBy", "Looks at one path", query::stat).takes::<StatRequest>().gives::<Entry>(),
        route(M::GET, "/v1/ls", "ls", "Lists a directory", query::ls).query::<LsRequest>().gives::<Listing>(),
        route(M::POST, "/v1/ls", "lsBy", "Lists a directory", query::ls).takes::<LsRequest>().gives::<Listing>(),
        route(M::GET, "/v1/tree", "tree", "Lists what lies beneath a directory", query::tree).query::<TreeRequest>().gives::<Tree>(),
        route(M::POST, "/v1/tree", "treeBy", "Lists what lies beneath a directory", query::tree).takes::<TreeRequest>().gives::<Tree>(),
        route(M::GET, "/v1/glob", "glob", "Finds paths by a pattern", query::glob).query::<GlobRequest>().gives::<GlobResult>(),
        route(M::POST, "/v1/glob", "globBy", "Finds paths by a pattern", query::glob).takes::<GlobRequest>().gives::<GlobResult>(),
        route(M::GET, "/v1/grep", "grep", "Finds lines by a pattern", query::grep).query::<GrepRequest>().gives::<GrepResult>(),
        route(M::POST, "/v1/grep", "grepBy", "Finds lines by a pattern", query::grep).takes::<GrepRequest>().gives::<GrepResult>(),
        route(M::POST, "/v1/search", "search", "Recalls files by what they are about", query::search)
            .takes::<SearchRequest>().gives::<SearchResult>(),
        route(M::GET, "/v1/capabilities", "capabilities", "Tells what the tree can do", query::capabilities).gives::<CapabilitiesReply>(),
        route(M::POST, "/v1/apply", "apply", "Makes several changes, all or none where the tree can", apply::apply)
            .takes::<ApplyRequest>().gives::<ApplyReply>().changes(Access::Write),
        route(M::POST, "/v1/copy", "copy", "Copies a file or directory", apply::copy).takes::<apply::TransferRequest>().gives::<Changed>().changes(Access::Write),
        route(M::POST, "/v1/move", "move", "Moves a file or directory", apply::rename).takes::<apply::TransferRequest>().gives::<Changed>().changes(Access::Write),
        route(M::GET, "/v1/tools", "listTools", "Lists the tools of a set", apply::tools)
            .query::<apply::ToolQuery>().gives::<Vec<apply::ToolRecord>>(),
        route(M::POST, "/v1/tools/{name}", "callTool", "Calls a tool, with its arguments as the body", apply::call)
            .query::<apply::ToolQuery>().takes::<serde_json::Map<String, serde_json::Value>>().gives::<ToolOutput>().changes(Access::Write),
        route(M::GET, "/v1/memory", "memory", "Tells the memory of the workspace, in words for a system prompt", threads::memory)
            .gives::<MemoryPrompt>(),
        route(M::GET, "/v1/events", "followEvents", "Tells of changes as they come, as server-sent events", events::events)
            .query::<events::EventsQuery>().gives_events::<FeedEvent>(),
        route(M::GET, "/v1/timeline", "timeline", "Tells what changed, the newest first", events::timeline)
            .query::<events::TimelineQuery>().gives::<FeedPage>(),
        route(M::GET, "/v1/audit", "audit", "Tells the calls of the thread", threads::audit)
            .query::<threads::AuditQuery>().gives::<AuditPage>(),
        route(M::GET, "/v1/threads", "listThreads", "Lists the threads that were saved", threads::threads)
            .query::<threads::ThreadsQuery>().gives::<ThreadPage>(),
        route(M::GET, "/v1/threads/{thread}", "getThread", "Tells the newest checkpoint of a thread", threads::thread).gives::<Checkpoint>(),
        route(M::DELETE, "/v1/threads/{thread}", "deleteThread", "Removes a thread with its history", threads::delete).with_status(204).changes(Access::Admin),
        route(M::GET, "/v1/threads/{thread}/fs/{*path}", "readThreadFile", "Reads a file as a thread sees it", fs::get)
            .query::<ReadRequest>().gives_bytes(),
        route(M::PUT, "/v1/threads/{thread}/fs/{*path}", "writeThreadFile", "Writes a file as a thread sees it", fs::put)
            .query::<fs::PutQuery>().takes_bytes().gives::<Changed>().changes(Access::Write),
        route(M::POST, "/v1/threads/{thread}/fs/{*path}", "appendThreadFile", "Adds to a file as a thread sees it", fs::append)
            .takes_bytes().gives::<Changed>().changes(Access::Write),
        route(M::PATCH, "/v1/threads/{thread}/fs/{*path}", "editThreadFile", "Edits a file as a thread sees it", fs::patch)
            .takes::<fs::PatchRequest>().gives::<Changed>().changes(Access::Write),
        route(M::DELETE, "/v1/threads/{thread}/fs/{*path}", "deleteThreadFile", "Removes a path as a thread sees it", fs::delete)
            .query::<fs::DeleteQuery>().gives::<Changed>().changes(Access::Write),
        route(M::POST, "/v1/threads/{thread}/tools/{name}", "callThreadTool", "Calls a tool in a thread", apply::call)
            .query::<apply::ToolQuery>().takes::<serde_json::Map<String, serde_json::Value>>().gives::<ToolOutput>().changes(Access::Write),
        route(M::GET, "/v1/threads/{thread}/checkpoints", "listCheckpoints", "Lists the checkpoints of a thread, the newest first",
            threads::checkpoints).query::<threads::CheckpointsQuery>().gives::<CheckpointPage>(),
        route(M::POST, "/v1/threads/{thread}/checkpoints", "makeCheckpoint", "Makes a checkpoint of a thread", threads::make_checkpoint)
            .takes::<threads::NotesRequest>().gives::<Checkpoint>().with_status(201).changes(Access::Write),
        route(M::GET, "/v1/threads/{thread}/checkpoints/{checkpoint}", "getCheckpoint", "Tells of a checkpoint", threads::checkpoint)
            .gives::<Checkpoint>(),
        route(M::POST, "/v1/threads/{thread}/checkpoints/{checkpoint}/restore", "restoreCheckpoint",
            "Goes back to a checkpoint, as a new one", threads::restore)
            .takes::<threads::NotesRequest>().gives::<Checkpoint>().with_status(201).changes(Access::Write),
        route(M::GET, "/v1/threads/{thread}/checkpoints/{checkpoint}/fs/{*path}", "readCheckpointFile",
            "Reads a file as it was at a checkpoint", threads::read_at).query::<ReadRequest>().gives_bytes(),
        route(M::POST, "/v1/threads/{thread}/fork", "forkThread", "Starts another thread from a checkpoint", threads::fork)
            .takes::<threads::ForkRequest>().gives::<Checkpoint>().with_status(201).changes(Access::Write),
        route(M::POST, "/v1/threads/{thread}/merge", "mergeThread", "Merges another thread into this one", threads::merge)
            .takes::<threads::MergeRequest>().gives::<MergeOutcome>().changes(Access::Write),
        route(M::GET, "/v1/threads/{thread}/diff", "diffCheckpoints", "Tells what differs between two checkpoints", threads::compare)
            .query::<threads::DiffQuery>().gives::<Diff>(),
        route(M::POST, "/v1/threads/{thread}/prune", "pruneThread", "Removes old checkpoints", threads::prune)
            .takes::<threads::PruneRequest>().gives::<Pruned>().changes(Access::Admin),
        route(M::GET, "/v1/store/item", "getItem", "Reads an item", store::get).query::<store::ItemQuery>().gives::<store::ItemRecord>(),
        route(M::PUT, "/v1/store/item", "putItem", "Puts an item", store::put)
            .query::<store::ItemQuery>().takes::<serde_json::Value>().gives::<store::ItemVersion>().changes(Access::Write),
        route(M::DELETE, "/v1/store/item", "deleteItem", "Removes an item", store::delete).query::<store::ItemQuery>().with_status(204).changes(Access::Write),
        route(M::POST, "/v1/store/search", "searchItems", "Finds items", store::search)
            .takes::<store::ItemSearch>().gives::<store::ItemPage>(),
        route(M::GET, "/v1/store/namespaces", "listNamespaces", "Lists the namespaces that hold items", store::namespaces)
            .query::<store::NamespacesQuery>().gives::<store::NamespacesReply>(),
    ]
}

/// Returns the minimum access that the changes of a route need, by its method and path template, or `None` if it only reads.
pub(super) fn changes(method: &Method, path: &str) -> Option<Access> {
    static CHANGES: LazyLock<HashMap<(Method, &'static str), Access>> =
        LazyLock::new(|| routes().into_iter().filter_map(|route| Some(((route.method, route.path), route.changes?))).collect());
    let whole = CHANGES.iter().find(|((own, at), _)| own == method && *at == path);
    // The root of the tree has a route of its own.
    let root = || CHANGES.iter().find(|((own, at), _)| own == method && at.strip_suffix("/{*path}") == Some(path.trim_end_matches('/')));
    whole.or_else(root).map(|(_, access)| *access)
}

/// Builds the router from the table.
pub(super) fn router() -> Router<Arc<Api>> {
    let mut router = Router::new();
    for route in routes() {
        if let Some(root) = route.path.strip_suffix("/{*path}") {
            // A wildcard does not match an empty path, but the root of the tree is also a path.
            let slash = format!("{root}/");
            router = router.route(root, route.handler.clone()).route(&slash, route.handler.clone());
        }
        router = router.route(route.path, route.handler);
    }
    router
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// An unmarked route would ignore idempotency keys.
    #[test]
    fn every_route_except_reads_declares_needed_access() {
        let reads = ["statBy", "lsBy", "treeBy", "globBy", "grepBy", "search", "searchItems"];
        for route in routes() {
            let is_read = matches!(route.method, Method::GET | Method::HEAD) || reads.contains(&route.id);
            assert_eq!(route.changes.is_none(), is_read, "{}", route.id);
            assert_eq!(changes(&route.method, route.path), route.changes, "{}", route.id);
        }
        assert_eq!(changes(&Method::PUT, "/v1/fs/"), Some(Access::Write));
        assert_eq!(changes(&Method::PUT, "/v1/none"), None);
    }

    #[test]
    fn operation_ids_are_unique() {
        let routes = routes();
        let ids: HashSet<&str> = routes.iter().map(|route| route.id).collect();
        assert_eq!(ids.len(), routes.len());
        // The router panics if one path has two handlers for a method.
        let _ = router();
    }

    /// Rules and quotas apply to paths, so no request may write rows directly. `store import` and similar commands are for the operator.
    #[test]
    fn requests_reach_rows_only_as_items_of_their_user() {
        let of_rows = ["getItem", "putItem", "deleteItem", "searchItems", "listNamespaces"];
        for route in routes() {
            let is_row = route.path.starts_with("/v1/store/");
            assert_eq!(is_row, of_rows.contains(&route.id), "{}", route.id);
            assert!(!["import", "export", "rows"].iter().any(|word| route.path.contains(word)), "{}", route.path);
        }
        let items = treehold_store::Namespace::new(store::ITEMS_NAMESPACE.into_iter().chain(["t", "u", "memories"])).expect("a namespace");
        assert!(treehold_store::Reserved::of(&items).is_some(), "no route shows the rows of items");
    }
}
