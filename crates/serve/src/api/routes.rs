//! The table of routes: the handler and description of each method and path.

use super::route::{Choice, Route, pattern, route};
use super::{Api, apply, dataplane, events, fs, past, query, sessions, state, store, threads, traces};
use crate::rights::Access;
use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use treehold_agent::audit::AuditPage;
use treehold_agent::feed::{FeedEvent, FeedPage};
use treehold_agent::memory::MemoryPrompt;
use treehold_agent::session::{FileLog, Undone};
use treehold_agent::tools::ToolOutput;
use treehold_core::ops::{Changed, Entry, GlobResult, GrepResult, Listing, SearchResult};
use treehold_core::wire::{
    ApplyReply, ApplyRequest, CapabilitiesReply, GlobRequest, GrepRequest, LsRequest, ReadRequest, SearchRequest, StatRequest, TreeRequest,
};
use treehold_tree::backend::Tree;
use treehold_tree::checkpoint::{Checkpoint, CheckpointPage, Diff, MergeOutcome, Pruned, ThreadPage};

/// Returns every route.
pub(super) fn routes() -> Vec<Route> {
    let mut routes = of_trees();
    routes.extend(sessions::routes());
    routes.extend(dataplane::routes());
    routes.extend(state::routes());
    routes.extend(traces::routes());
    routes
}

/// Returns the routes of trees, threads and items.
#[rustfmt::skip]
fn of_trees() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/fs/{*path}", "readFile", "Reads a file or a range of it", fs::get).query::<ReadRequest>().gives_bytes(),
        route(M::HEAD, "/v1/fs/{*path}", "statFile", "Returns the size, version and time of a file as headers", fs::get),
        route(M::PUT, "/v1/fs/{*path}", "writeFile", "Creates a file or replaces its content, or creates a directory", fs::put)
            .query::<fs::PutQuery>().takes_bytes().gives::<Changed>().changes(Access::Write).if_match().if_none_match(),
        route(M::POST, "/v1/fs/{*path}", "appendFile", "Appends to a file", fs::append).takes_bytes().gives::<Changed>().changes(Access::Write),
        route(M::PATCH, "/v1/fs/{*path}", "editFile", "Replaces text in a file", fs::patch)
            .takes::<fs::PatchRequest>().gives::<Changed>().changes(Access::Write).if_match(),
        route(M::DELETE, "/v1/fs/{*path}", "deleteFile", "Removes a file or directory", fs::delete)
            .query::<fs::DeleteQuery>().gives::<Changed>().changes(Access::Write).if_match(),
        route(M::GET, "/v1/stat", "stat", "Returns the entry of a path", query::stat).query::<StatRequest>().gives::<Entry>(),
        route(M::POST, "/v1/stat", "statBy", "Returns the entry of a path", query::stat).takes::<StatRequest>().gives::<Entry>(),
        route(M::GET, "/v1/ls", "ls", "Lists a directory", query::ls).query::<LsRequest>().gives::<Listing>(),
        route(M::POST, "/v1/ls", "lsBy", "Lists a directory", query::ls).takes::<LsRequest>().gives::<Listing>(),
        route(M::GET, "/v1/tree", "tree", "Lists a directory recursively", query::tree).query::<TreeRequest>().gives::<Tree>(),
        route(M::POST, "/v1/tree", "treeBy", "Lists a directory recursively", query::tree).takes::<TreeRequest>().gives::<Tree>(),
        route(M::GET, "/v1/glob", "glob", "Finds paths by a glob pattern", query::glob).query::<GlobRequest>().gives::<GlobResult>(),
        route(M::POST, "/v1/glob", "globBy", "Finds paths by a glob pattern", query::glob).takes::<GlobRequest>().gives::<GlobResult>(),
        route(M::GET, "/v1/grep", "grep", "Finds lines that match a pattern", query::grep).query::<GrepRequest>().gives::<GrepResult>(),
        route(M::POST, "/v1/grep", "grepBy", "Finds lines that match a pattern", query::grep).takes::<GrepRequest>().gives::<GrepResult>(),
        route(M::POST, "/v1/search", "search", "Finds files by topic, best match first", query::search)
            .takes::<SearchRequest>().gives::<SearchResult>(),
        route(M::GET, "/v1/capabilities", "capabilities", "Lists the capabilities of the tree", query::capabilities).gives::<CapabilitiesReply>(),
        route(M::POST, "/v1/apply", "apply", "Applies several changes, atomically where the tree supports it", apply::apply)
            .takes::<ApplyRequest>().gives::<ApplyReply>().changes(Access::Write),
        route(M::POST, "/v1/copy", "copy", "Copies a file or directory", apply::copy).takes::<apply::TransferRequest>().gives::<Changed>().changes(Access::Write),
        route(M::POST, "/v1/move", "move", "Moves a file or directory", apply::rename).takes::<apply::TransferRequest>().gives::<Changed>().changes(Access::Write),
        route(M::GET, "/v1/log", "log", "Lists the versions of a file, newest first", past::log)
            .query::<past::LogQuery>().gives::<FileLog>().large(),
        route(M::GET, "/v1/past/{moment}/fs/{*path}", "readPastFile", "Reads a file as of a moment", past::read)
            .query::<ReadRequest>().gives_bytes().large(),
        route(M::POST, "/v1/restore", "restoreFiles", "Restores files and directories to a moment", past::restore)
            .takes::<past::RestoreRequest>().gives::<Vec<Changed>>().changes(Access::Write),
        route(M::POST, "/v1/undo", "undo", "Undoes the newest call of the thread or user", past::undo)
            .takes::<past::UndoRequest>().gives::<Undone>().changes(Access::Write),
        route(M::GET, "/v1/tools", "listTools", "Lists the tools of a set", apply::tools)
            .query::<apply::ToolQuery>().gives::<Vec<apply::ToolRecord>>(),
        route(M::POST, "/v1/tools/{name}", "callTool", "Calls a tool, with its arguments as the body", apply::call)
            .query::<apply::ToolQuery>().takes::<serde_json::Map<String, serde_json::Value>>().gives::<ToolOutput>().changes(Access::Write),
        route(M::GET, "/v1/memory", "memory", "Returns the prompt memory as text for a system prompt", threads::memory)
            .gives::<MemoryPrompt>(),
        route(M::GET, "/v1/events", "followEvents", "Streams changes as server-sent events", events::events)
            .query::<events::EventsQuery>().gives_events::<FeedEvent>(),
        route(M::GET, "/v1/timeline", "timeline", "Lists changes, newest first", events::timeline)
            .query::<events::TimelineQuery>().gives::<FeedPage>().large(),
        route(M::GET, "/v1/audit", "audit", "Lists the tool calls of a thread from the audit log", threads::audit)
            .query::<threads::AuditQuery>().gives::<AuditPage>().large(),
        route(M::GET, "/v1/threads", "listThreads", "Lists the saved threads", threads::threads)
            .query::<threads::ThreadsQuery>().gives::<ThreadPage>().large(),
        route(M::GET, "/v1/threads/{thread}", "getThread", "Returns the newest checkpoint of a thread", threads::thread).gives::<Checkpoint>(),
        route(M::DELETE, "/v1/threads/{thread}", "deleteThread", "Removes a thread and its history", threads::delete).with_status(204).changes(Access::Admin),
        route(M::GET, "/v1/threads/{thread}/fs/{*path}", "readThreadFile", "Reads a file in a thread", fs::get)
            .query::<ReadRequest>().gives_bytes(),
        route(M::PUT, "/v1/threads/{thread}/fs/{*path}", "writeThreadFile", "Writes a file in a thread", fs::put)
            .query::<fs::PutQuery>().takes_bytes().gives::<Changed>().changes(Access::Write).if_match().if_none_match(),
        route(M::POST, "/v1/threads/{thread}/fs/{*path}", "appendThreadFile", "Appends to a file in a thread", fs::append)
            .takes_bytes().gives::<Changed>().changes(Access::Write),
        route(M::PATCH, "/v1/threads/{thread}/fs/{*path}", "editThreadFile", "Replaces text in a file in a thread", fs::patch)
            .takes::<fs::PatchRequest>().gives::<Changed>().changes(Access::Write).if_match(),
        route(M::DELETE, "/v1/threads/{thread}/fs/{*path}", "deleteThreadFile", "Removes a file or directory in a thread", fs::delete)
            .query::<fs::DeleteQuery>().gives::<Changed>().changes(Access::Write).if_match(),
        route(M::POST, "/v1/threads/{thread}/tools/{name}", "callThreadTool", "Calls a tool in a thread", apply::call)
            .query::<apply::ToolQuery>().takes::<serde_json::Map<String, serde_json::Value>>().gives::<ToolOutput>().changes(Access::Write),
        route(M::GET, "/v1/threads/{thread}/checkpoints", "listCheckpoints", "Lists the checkpoints of a thread, newest first",
            threads::checkpoints).query::<threads::CheckpointsQuery>().gives::<CheckpointPage>().large(),
        route(M::POST, "/v1/threads/{thread}/checkpoints", "makeCheckpoint", "Creates a checkpoint of a thread", threads::make_checkpoint)
            .takes::<threads::NotesRequest>().gives::<Checkpoint>().with_status(201).changes(Access::Write),
        route(M::GET, "/v1/threads/{thread}/checkpoints/{checkpoint}", "getCheckpoint", "Returns a checkpoint", threads::checkpoint)
            .gives::<Checkpoint>(),
        route(M::POST, "/v1/threads/{thread}/checkpoints/{checkpoint}/restore", "restoreCheckpoint",
            "Restores a checkpoint as a new one", threads::restore)
            .takes::<threads::NotesRequest>().gives::<Checkpoint>().with_status(201).changes(Access::Write),
        route(M::GET, "/v1/threads/{thread}/checkpoints/{checkpoint}/fs/{*path}", "readCheckpointFile",
            "Reads a file as of a checkpoint", threads::read_at).query::<ReadRequest>().gives_bytes().large(),
        route(M::POST, "/v1/threads/{thread}/fork", "forkThread", "Starts a new thread from a checkpoint", threads::fork)
            .takes::<threads::ForkRequest>().gives::<Checkpoint>().with_status(201).changes(Access::Write),
        route(M::POST, "/v1/threads/{thread}/merge", "mergeThread", "Merges another thread into this one", threads::merge)
            .takes::<threads::MergeRequest>().gives::<MergeOutcome>().changes(Access::Write),
        route(M::GET, "/v1/threads/{thread}/diff", "diffCheckpoints", "Compares two checkpoints", threads::compare)
            .query::<threads::DiffQuery>().gives::<Diff>().large(),
        route(M::POST, "/v1/threads/{thread}/prune", "pruneThread", "Removes old checkpoints", threads::prune)
            .takes::<threads::PruneRequest>().gives::<Pruned>().changes(Access::Admin),
        route(M::GET, "/v1/store/item", "getItem", "Reads a JSON item", store::get).query::<store::ItemQuery>().gives::<store::ItemRecord>().large(),
        route(M::PUT, "/v1/store/item", "putItem", "Writes a JSON item", store::put)
            .query::<store::ItemQuery>().takes::<serde_json::Value>().gives::<store::ItemVersion>().changes(Access::Write).if_match().if_none_match(),
        route(M::DELETE, "/v1/store/item", "deleteItem", "Removes a JSON item", store::delete).query::<store::ItemQuery>().with_status(204).changes(Access::Write).if_match(),
        route(M::POST, "/v1/store/search", "searchItems", "Finds JSON items by key and fields", store::search)
            .takes::<store::ItemSearch>().gives::<store::ItemPage>(),
        route(M::GET, "/v1/store/namespaces", "listNamespaces", "Lists the namespaces that hold JSON items", store::namespaces)
            .query::<store::NamespacesQuery>().gives::<store::NamespacesReply>().large(),
    ]
}

/// What the layers before the handlers need to know about a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Traits {
    changes: Option<Access>,
    uploads: bool,
    keyed: bool,
    large: bool,
    if_match: bool,
    if_none_match: bool,
}

/// Returns the traits of a route by its method and the path that a request matched; `None` for an unknown one. The router serves `HEAD` by
/// the handler of `GET` where the table has no route for it, so it has the traits of `GET` there. Cost: one lookup.
fn traits(method: &Method, path: &str) -> Option<Traits> {
    static TRAITS: LazyLock<HashMap<String, Vec<(Method, Traits)>>> = LazyLock::new(|| {
        let mut known: HashMap<String, Vec<(Method, Traits)>> = HashMap::new();
        for route in routes() {
            let Route { changes, uploads, keyed, large, if_match, if_none_match, .. } = route;
            let traits = Traits { changes, uploads, keyed, large, if_match, if_none_match };
            for path in matched_paths(pattern(route.path).0) {
                let of_path = known.entry(path).or_default();
                // A request matches a pattern, whichever of its actions it names.
                match of_path.iter().find(|(method, _)| *method == route.method) {
                    Some((_, others)) => assert_eq!(*others, traits, "{} differs from other actions of its pattern", route.id),
                    None => of_path.push((route.method.clone(), traits)),
                }
            }
        }
        known
    });
    let of_path = TRAITS.get(path)?;
    let of = |method: &Method| of_path.iter().find(|(known, _)| known == method).map(|(_, traits)| *traits);
    of(method).or_else(|| if *method == Method::HEAD { of(&Method::GET) } else { None })
}

/// Returns the paths at which the router serves a pattern, the pattern itself last.
fn matched_paths(pattern: &str) -> Vec<String> {
    let mut paths = Vec::new();
    if let Some(root) = pattern.strip_suffix("/{*path}") {
        // A wildcard does not match an empty path, but the root of the tree is also a path.
        paths.extend([root.to_owned(), format!("{root}/")]);
    }
    paths.extend(traces::original(pattern));
    paths.push(pattern.to_owned());
    paths
}

/// Returns the minimum access that the changes of a route need, by its method and path template, or `None` if it only reads.
pub(super) fn changes(method: &Method, path: &str) -> Option<Access> {
    traits(method, path)?.changes
}

/// Returns whether the body of a route may be as large as a file.
pub(super) fn is_upload(method: &Method, path: &str) -> bool {
    traits(method, path).is_some_and(|traits| traits.uploads)
}

/// Returns whether the handler of a route processes idempotency keys itself.
pub(super) fn is_keyed(method: &Method, path: &str) -> bool {
    traits(method, path).is_some_and(|traits| traits.keyed)
}

/// Returns whether the answer of a route may be large. The routes of the hosts' inspector are not in the table; those of sessions may be.
pub(super) fn is_large(method: &Method, path: &str) -> bool {
    let is_inspected = || matches!(*method, Method::GET | Method::HEAD) && path.contains("/__inspector/sessions");
    traits(method, path).map_or_else(is_inspected, |traits| traits.large)
}

/// The conditions on a change that a client may send.
pub(super) const CONDITIONS: [HeaderName; 3] = [header::IF_MATCH, header::IF_NONE_MATCH, header::IF_UNMODIFIED_SINCE];

/// Returns a condition in the headers of a change that the route does not check.
pub(super) fn unchecked_condition(method: &Method, path: &str, headers: &HeaderMap) -> Option<HeaderName> {
    let traits = traits(method, path).filter(|traits| traits.changes.is_some())?;
    let checked = [traits.if_match, traits.if_none_match, false];
    CONDITIONS.into_iter().zip(checked).find(|(name, is_checked)| !is_checked && headers.contains_key(name)).map(|(name, _)| name)
}

/// Builds the router from the table.
pub(super) fn router() -> Router<Arc<Api>> {
    let mut router = Router::new();
    for ((path, method), choice) in choices() {
        let handler = choice.on(&method);
        for path in matched_paths(path) {
            router = router.route(&path, handler.clone());
        }
    }
    router
}

/// Returns the methods of what a path names, if its pattern has actions.
pub(super) fn allowed(pattern: &str, raw_path: &str) -> Option<HeaderValue> {
    type Methods = Vec<(Option<&'static str>, Method)>;
    static METHODS: LazyLock<HashMap<&'static str, Methods>> = LazyLock::new(|| {
        let mut methods: HashMap<&'static str, Methods> = HashMap::new();
        for route in routes() {
            let (path, action) = super::route::pattern(route.path);
            methods.entry(path).or_default().push((action, route.method));
        }
        methods.retain(|_, of_path| of_path.iter().any(|(action, _)| action.is_some()));
        methods
    });
    let own = METHODS.get(pattern)?;
    let segment = raw_path.rsplit('/').next().unwrap_or_default();
    let named = segment.rsplit_once(':').and_then(|(_, last)| own.iter().find_map(|(action, _)| action.filter(|action| *action == last)));
    let mut methods: Vec<&str> = own.iter().filter(|(action, _)| *action == named).map(|(_, method)| method.as_str()).collect();
    if methods.contains(&"GET") && !methods.contains(&"HEAD") {
        methods.push("HEAD");
    }
    HeaderValue::from_str(&methods.join(",")).ok()
}

/// Returns the handlers by pattern and method, in the order of the table.
fn choices() -> Vec<((&'static str, Method), Choice)> {
    let mut choices: Vec<((&'static str, Method), Choice)> = Vec::new();
    for route in routes() {
        let (path, action) = pattern(route.path);
        let handler = route.handler();
        let key = (path, route.method);
        let at = match choices.iter().position(|(known, _)| *known == key) {
            Some(at) => at,
            None => {
                choices.push((key, Choice::default()));
                choices.len() - 1
            }
        };
        match action {
            Some(action) => choices[at].1.actions.push((action, handler)),
            None => {
                let taken = choices[at].1.plain.replace(handler);
                assert!(taken.is_none(), "{path} has two handlers for a method");
            }
        }
    }
    for at in 0..choices.len() {
        let path = choices[at].0.0;
        let of_path = choices.iter().filter(|((other, _), _)| *other == path);
        choices[at].1.known = of_path.flat_map(|(_, choice)| choice.actions.iter().map(|(action, _)| *action)).collect();
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// An unmarked route would ignore idempotency keys.
    #[test]
    fn every_route_except_reads_declares_needed_access() {
        let reads = ["statBy", "lsBy", "treeBy", "globBy", "grepBy", "search", "searchItems", "dpSnapshotTarget"];
        for route in routes() {
            let is_read = matches!(route.method, Method::GET | Method::HEAD) || reads.contains(&route.id);
            assert_eq!(route.changes.is_none(), is_read, "{}", route.id);
            assert_eq!(changes(&route.method, pattern(route.path).0), route.changes, "{}", route.id);
        }
        assert_eq!(changes(&Method::PUT, "/v1/fs/"), Some(Access::Write));
        assert_eq!(changes(&Method::PUT, "/v1/none"), None);
    }

    /// A new route that reads needs a decision: its answer is small, it takes a slot, or it is streamed or made by operations of the tree
    /// that take a slot.
    #[test]
    fn every_read_bounds_its_answer_or_takes_a_slot() {
        let small = [
            "capabilities",
            "dpHealth",
            "dpPeekLock",
            "dpPeekQueue",
            "dpSnapshotTarget",
            "dpStatSnapshot",
            "getCheckpoint",
            "getMemoryIndex",
            "getSession",
            "getThread",
            "listTools",
            "memory",
            "stat",
            "statBy",
            "statFile",
            "statState",
        ];
        let streamed = ["followEvents", "followSession", "readFile", "readThreadFile", "watchTrace"];
        let in_handler = ["searchItems"];
        let of_tree = ["glob", "globBy", "grep", "grepBy", "ls", "lsBy", "search", "tree", "treeBy"];
        for route in routes().into_iter().filter(|route| route.changes.is_none()) {
            let decided = [&small[..], &streamed, &in_handler, &of_tree].concat().contains(&route.id);
            assert_ne!(decided, route.large, "{}", route.id);
            assert_eq!(is_large(&route.method, pattern(route.path).0), route.large, "{}", route.id);
        }
        for method in [Method::GET, Method::HEAD] {
            assert!(is_large(&method, "/host/__inspector/sessions/{session}/trace"), "{method}");
            for quick in ["/host/ready", "/host/health", "/host/__inspector/health"] {
                assert!(!is_large(&method, quick), "{method} {quick}");
            }
        }
    }

    #[test]
    fn operation_ids_are_unique() {
        let routes = routes();
        let ids: HashSet<&str> = routes.iter().map(|route| route.id).collect();
        assert_eq!(ids.len(), routes.len());
        // The router panics if one path has two handlers for a method.
        let _ = router();
    }

    /// The layers before a handler know the pattern that the router matched, not the action.
    #[test]
    fn traits_are_those_of_the_route_at_every_path_that_the_router_serves() {
        for route in routes() {
            let own = (route.changes, route.uploads, route.keyed, route.large, route.if_match, route.if_none_match);
            let (pattern, _) = pattern(route.path);
            for path in matched_paths(pattern) {
                let found = traits(&route.method, &path).expect("it is in the table");
                let of_table = (found.changes, found.uploads, found.keyed, found.large, found.if_match, found.if_none_match);
                assert_eq!(of_table, own, "{} at {path}", route.id);
            }
        }
        assert_eq!(matched_paths("/v1/fs/{*path}"), ["/v1/fs", "/v1/fs/", "/v1/fs/{*path}"]);
        assert_eq!(matched_paths("/v1/traces/{trace}"), ["/api/traces/{trace}", "/v1/traces/{trace}"]);
        assert_eq!(matched_paths("/v1/stat"), ["/v1/stat"]);
        for (method, path) in [(Method::PUT, "/v1/none"), (Method::TRACE, "/v1/stat"), (Method::HEAD, "/v1/apply"), (Method::GET, "/ready")]
        {
            assert!(traits(&method, path).is_none(), "{method} {path}");
        }
        assert_eq!(pattern("/v1/state/{user}/{session}:export"), ("/v1/state/{user}/{session}", Some("export")));
        assert_eq!(pattern("/v1/turns:acquire"), ("/v1/turns:acquire", None));
    }

    /// `HEAD` runs the handler of `GET`. Without its traits, a `HEAD` of an export computed a large answer and took no slot.
    #[test]
    fn head_has_the_traits_of_get_unless_it_has_a_route_of_its_own() {
        let routes = routes();
        let own: HashSet<&str> = routes.iter().filter(|route| route.method == Method::HEAD).map(|route| pattern(route.path).0).collect();
        let (mut count, mut large) = (0, 0);
        for route in routes.iter().filter(|route| route.method == Method::GET) {
            let (pattern, _) = pattern(route.path);
            for path in matched_paths(pattern).into_iter().filter(|_| !own.contains(pattern)) {
                let of_get = traits(&Method::GET, &path);
                assert!(of_get.is_some(), "{path}");
                assert_eq!(traits(&Method::HEAD, &path), of_get, "{path}");
                assert_eq!(is_large(&Method::HEAD, &path), route.large, "{path}");
                assert_eq!(changes(&Method::HEAD, &path), None, "{path}");
                count += 1;
                large += usize::from(route.large);
            }
        }
        assert!(count > 50 && large > 10, "{count} paths, {large} of them large");
        assert!(own.contains("/v1/fs/{*path}"));
    }

    /// Rules and quotas apply to paths, so no request may write rows directly. `store import` and similar commands are for the operator.
    #[test]
    fn requests_reach_rows_only_as_items_of_their_user() {
        let of_rows = ["getItem", "putItem", "deleteItem", "searchItems", "listNamespaces"];
        for route in routes() {
            let is_row = route.path.starts_with("/v1/store/");
            assert_eq!(is_row, of_rows.contains(&route.id), "{}", route.id);
            // The sessions of a user are exported and imported as files, and only below that user.
            let of_user = ["/v1/sessions/{session}/", "/v1/state/{user}/{session}:", "/v1/admin/sessions/{session}:"];
            let is_session = of_user.iter().any(|pattern| route.path.starts_with(pattern));
            assert!(is_session || !["import", "export", "rows"].iter().any(|word| route.path.contains(word)), "{}", route.path);
        }
        let items =
            treehold_store::Namespace::new(["t", "u"].into_iter().chain(store::ITEMS_NAMESPACE).chain(["memories"])).expect("a namespace");
        assert!(treehold_store::Reserved::of(&items).is_some(), "no route shows the rows of items");
    }
}
