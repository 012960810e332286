//! Every route of the HTTP API and every tool, as the server itself lists them, called by clients without access to a part of the tree.
//!
//! A new route or tool fails here until [`requests`] or [`arguments`] defines how it accesses a path.

use crate::serve::{Answer, Served};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::runtime::Runtime;
use treehold::checkpoint::StoreCheckpointer;
use treehold::layer::{Operations, Quota, QuotaLimits, Rule};
use treehold::serve::{Access, Rights};
use treehold::store::Store;
use treehold::{MemoryStore, VfsPathBuf, Workspace};

/// Text that only hidden files contain, and text that only their names contain.
const SECRET: &str = "xyzzysecret";
const NAME: &str = "hiddenname";

/// The threads of the test data, each with hidden and protected files.
const THREADS: [&str; 3] = ["default", "other", "fine"];

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

fn rules() -> Vec<Rule> {
    vec![Rule::deny(Operations::ALL, ["/secret"]).unwrap(), Rule::deny(Operations::WRITE, ["/locked"]).unwrap()]
}

/// A store with threads that have a past, the server of a caller with all rights, and that of a limited caller.
pub(super) struct World {
    pub(super) open: Served,
    pub(super) admin: String,
    pub(super) store: Arc<dyn Store>,
}

impl World {
    pub(super) fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let open = Served::on(store.clone(), |options| options.with_tokens(true));
        let admin = open.token("acme", "ada", Rights::new(Access::Admin));
        let world = Self { open, admin, store };
        let files = |thread: &str, word: &str| {
            world.put(thread, &format!("secret/{NAME}"), &format!("{SECRET} {word}\n"));
            world.put(thread, "locked/l", &format!("lock {word}\n"));
            world.put(thread, "open/a", &format!("{word}\n"));
        };
        files("default", "old");
        world.ok("POST", "/v1/threads/default/checkpoints", r#"{"label": "old"}"#);
        world.ok("POST", "/v1/threads/default/fork", r#"{"thread": "other"}"#);
        files("other", "other");
        files("default", "now");
        world.ok("POST", "/v1/threads/default/fork", r#"{"thread": "fine"}"#);
        world.put("fine", "open/b", "fine\n");
        world
    }

    pub(super) fn put(&self, thread: &str, path: &str, content: &str) {
        self.ok("PUT", &format!("/v1/threads/{thread}/fs/{path}"), content);
    }

    fn ok(&self, method: &str, path: &str, body: &str) -> Answer {
        let answer = send(&self.open, &self.admin, method, path, body);
        assert!(answer.status < 300, "{method} {path}: {}", answer.text());
        answer
    }

    /// Starts a server on the same threads within rules.
    pub(super) fn ruled(&self, rules: Vec<Rule>) -> Served {
        let workspace = crate::serve::ruled(&self.store, rules);
        Served::of(Runtime::new().unwrap(), workspace, self.store.clone(), |options| options.with_tokens(true))
    }

    /// Returns what is withheld from the callers, in every thread that has it.
    fn protected(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for thread in THREADS {
            for file in [format!("secret/{NAME}"), "locked/l".to_owned(), "secret/new".to_owned(), "locked/new".to_owned()] {
                let at = format!("/v1/threads/{thread}/fs/{file}");
                let answer = send(&self.open, &self.admin, "GET", &at, "");
                let status = answer.status;
                all.insert(at, if status == 200 { format!("200 {}", answer.text()) } else { status.to_string() });
            }
        }
        all
    }

    /// Fails if a thread that a caller created holds a past version of protected files.
    fn check_made(&self) {
        for thread in ["made", "copied"] {
            for (file, known) in [(format!("secret/{NAME}"), format!("{SECRET} now\n")), ("locked/l".to_owned(), "lock now\n".to_owned())] {
                let answer = send(&self.open, &self.admin, "GET", &format!("/v1/threads/{thread}/fs/{file}"), "");
                assert!(answer.status == 404 || answer.text() == known, "{thread}: {file}");
            }
        }
    }
}

pub(super) fn send(served: &Served, token: &str, method: &str, path: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    served.send(method, path, &[("authorization", &bearer), ("content-type", "application/json")], body.as_bytes())
}

/// Returns whether a route is about the sessions of agent hosts, or the states or traces of agents.
fn is_of_sessions(pattern: &str) -> bool {
    ["/v1/sessions", "/v1/user-memo", "/v1/inspector", "/v1/state", "/v1/turns:", "/v1/admin/", "/v1/traces"]
        .iter()
        .any(|route| pattern.starts_with(route))
}

/// Returns the requests by which a route accesses hidden and protected paths: path beneath the pattern, query and body; or the reason why
/// the route reveals no path.
fn requests(id: &str) -> Result<Vec<(String, Value)>, &'static str> {
    let paths = ["/secret", "/secret/hiddenname", "/secret/new", "/locked/l", "/locked/new", "/"];
    let queries = |make: &dyn Fn(&str) -> Value| Ok(paths.iter().map(|path| (String::new(), make(path))).collect());
    let of_paths = |query: &str, body: Value| Ok(paths.iter().map(|path| (format!("{path}{query}"), body.clone())).collect());
    let pairs = |make: &dyn Fn(&str, &str) -> Value| {
        let into = paths.iter().map(|path| (String::new(), make("/open/a", path)));
        Ok(into.chain(paths.iter().map(|path| (String::new(), make(path, "/open/taken")))).collect())
    };
    let plain = |bodies: Vec<Value>| Ok(bodies.into_iter().map(|body| (String::new(), body)).collect());
    match id {
        "readFile" | "readThreadFile" | "readCheckpointFile" | "statFile" => of_paths("", Value::Null),
        "writeFile" | "writeThreadFile" => of_paths("", json!("overwritten")),
        "appendFile" | "appendThreadFile" => of_paths("", json!("appended")),
        "editFile" | "editThreadFile" => of_paths("", json!({"edits": [{"old": "now", "new": "edited"}]})),
        "deleteFile" | "deleteThreadFile" => of_paths("?recursive=true", Value::Null),
        "stat" | "ls" | "tree" | "glob" | "grep" => {
            let pattern = if matches!(id, "glob" | "grep") { "&pattern=now" } else { "" };
            Ok(paths.iter().map(|path| (format!("?path={path}{pattern}"), Value::Null)).collect())
        }
        "statBy" | "lsBy" | "treeBy" => queries(&|path| json!({"path": path})),
        "globBy" => queries(&|path| json!({"path": path, "pattern": "**", "hidden": true})),
        "grepBy" => queries(&|path| json!({"path": path, "pattern": "now"})),
        "search" => queries(&|path| json!({"path": path, "query": "now old secret"})),
        "apply" => pairs(&|from, to| {
            json!({"allow_partial": true, "changes": [
                {"operation": "copy", "from": from, "to": "/open/copied", "overwrite": true},
                {"operation": "rename", "from": "/open/copied", "to": to, "overwrite": true},
                {"operation": "write", "path": to, "content": "written"},
            ]})
        }),
        "copy" | "move" => pairs(&|from, to| json!({"from": from, "to": to, "overwrite": true})),
        "timeline" => Ok(["", "?prefix=/secret", "?prefix=/locked"].map(|query| (query.to_owned(), Value::Null)).into()),
        "memory" | "audit" | "listThreads" | "getThread" | "listCheckpoints" | "getCheckpoint" | "capabilities" | "listTools" => {
            plain(vec![Value::Null])
        }
        "deleteThread" => plain(vec![Value::Null]),
        "makeCheckpoint" => plain(vec![json!({"label": "mine"})]),
        "restoreCheckpoint" => plain(vec![json!({})]),
        "log" => Ok(paths.iter().map(|path| (format!("?path={path}"), Value::Null)).collect()),
        "readPastFile" => of_paths("", Value::Null),
        "restoreFiles" => {
            let at = |at: &'static str| paths.iter().map(move |path| (String::new(), json!({"paths": [path], "at": at})));
            Ok(["old", "latest"].into_iter().flat_map(at).collect())
        }
        "undo" => plain(vec![json!({}), json!({}), json!({}), json!({"of": "user"})]),
        "forkThread" => {
            plain(vec![json!({"thread": "made", "at": "old"}), json!({"thread": "made"}), json!({"thread": "copied", "history": true})])
        }
        "mergeThread" => {
            let mut all = Vec::new();
            for dry_run in [true, false] {
                for strategy in [Value::Null, json!("ours"), json!("theirs"), json!("union"), json!("markers")] {
                    all.push(json!({"source": "other", "strategy": strategy, "dry_run": dry_run}));
                }
                let resolutions = json!({format!("/secret/{NAME}"): "theirs", "/locked/l": "theirs", "/open/a": "ours"});
                all.push(json!({"source": "other", "resolutions": resolutions, "dry_run": dry_run}));
            }
            all.push(json!({"source": "fine"}));
            plain(all)
        }
        "diffCheckpoints" => Ok(["", "?from=old", "?from=old&limit=1"].map(|query| (query.to_owned(), Value::Null)).into()),
        "callTool" | "callThreadTool" => Err("every tool has its own row"),
        "followEvents" => Err("reports the same events as the timeline, and does not end"),
        "pruneThread" => Err("removes checkpoints and changes no file; a token for a part of the tree may not"),
        "getItem" | "putItem" | "deleteItem" | "searchItems" | "listNamespaces" => Err("items have no path"),
        other => panic!("add requests of `{other}` for a path here"),
    }
}

/// Returns arguments by which a tool accesses a path, derived from its schema. A new argument must be added here.
pub(crate) fn arguments(tool: &str, schema: &Value, path: &str) -> Vec<Value> {
    let commands: Vec<Option<String>> = match schema["properties"]["command"]["enum"].as_array() {
        Some(commands) => commands.iter().map(|command| command.as_str().map(ToOwned::to_owned)).collect(),
        None => vec![None],
    };
    let mut all = Vec::new();
    for command in commands {
        for own in [None, Some("source"), Some("destination"), Some("old_path"), Some("new_path"), Some("from"), Some("to")] {
            let mut arguments = json!({});
            for name in schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()) {
                let at = if own == Some(name) { "/open/a" } else { path };
                arguments[name] = match name {
                    "path" | "source" | "destination" | "old_path" | "new_path" | "from" | "to" | "file_path" => json!(at),
                    "command" => json!(command),
                    "content" | "file_text" | "insert_text" | "new_str" | "new_string" => json!("overwritten\n"),
                    "old_string" | "old_str" => json!("now"),
                    "pattern" if tool == "glob" => json!("**"),
                    "pattern" => json!("now"),
                    "query" => json!("now old"),
                    "insert_line" => json!(0),
                    "patch" => json!(format!(
                        "*** Begin Patch\n*** Update File: /open/a\n*** Move to: {path}\n-now\n+moved\n*** Add File: {path}\n+added\n*** Delete File: {path}\n*** End Patch"
                    )),
                    "paths" => json!([at]),
                    "checkpoint" => json!("old"),
                    "label" => json!("mine"),
                    "edits" if schema["properties"][name]["items"]["properties"]["oldText"].is_object() => {
                        json!([{"oldText": "now", "newText": "edited"}])
                    }
                    "edits" => json!([{"old_string": "now", "new_string": "edited"}]),
                    "recursive" | "overwrite" | "replace_all" => json!(true),
                    "view_range" => json!([1, -1]),
                    // Arguments that do not select a path have defaults.
                    _ if schema["properties"][name].get("default").is_some() => continue,
                    _ if !schema["required"].as_array().is_some_and(|required| required.contains(&json!(name))) => continue,
                    other => panic!("say here what `{other}` of `{tool}` is"),
                };
            }
            if !all.contains(&arguments) {
                all.push(arguments);
            }
        }
    }
    all
}

/// A caller without access to `/secret`, and without write access to `/locked`.
struct Caller<'a> {
    who: &'static str,
    served: &'a Served,
    token: String,
}

impl Caller<'_> {
    fn ask(&self, world: &World, before: &BTreeMap<String, String>, method: &str, path: &str, body: &Value) {
        let body = match body {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            body => body.to_string(),
        };
        let answer = send(self.served, &self.token, method, path, &body);
        let (status, said) = (answer.status, if method == "HEAD" { String::new() } else { answer.text() });
        let asked = format!("{}: {method} {path} {body}", self.who);
        assert!(status < 500, "{asked}: {status} {said}");
        assert!(!said.contains(SECRET), "{asked}: {status} {said}");
        assert!(said.contains(NAME) <= format!("{path}{body}").contains(NAME), "{asked}: {status} {said}");
        assert_eq!(&world.protected(), before, "{asked}: {status} {said}");
        world.check_made();
    }
}

fn callers<'a>(world: &'a World, ruled: &'a Served) -> [Caller<'a>; 2] {
    let partial = Rights::new(Access::Admin).with_paths([path("/open")]);
    [
        Caller { who: "a token for a part", served: &world.open, token: world.open.token("acme", "ada", partial) },
        Caller { who: "a rule", served: ruled, token: ruled.token("acme", "ada", Rights::new(Access::Admin)) },
    ]
}

#[test]
fn no_route_shows_or_changes_what_a_rule_or_token_withholds() {
    let world = World::new();
    let ruled = world.ruled(rules());
    let document = world.open.get("/openapi.json").json();
    let before = world.protected();
    assert_eq!(before.values().filter(|state| state.starts_with("200")).count(), 6, "{before:?}");
    let mut asked = 0;
    for caller in callers(&world, &ruled) {
        for (pattern, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap().iter().filter(|(_, operation)| operation["operationId"].is_string()) {
                // Sessions have no paths of the tree; a token for a part of it may not use them (`serve/conversations/refusals.rs`,
                // `serve/state/refusals.rs`, `traces/doors.rs`).
                if !pattern.starts_with("/v1/") || is_of_sessions(pattern) {
                    continue;
                }
                let Ok(requests) = requests(operation["operationId"].as_str().unwrap()) else { continue };
                for (rest, body) in requests {
                    for checkpoint in if pattern.contains("{checkpoint}") { &["old", "latest"][..] } else { &[""] } {
                        let base = pattern.replace("{thread}", "default").replace("{checkpoint}", checkpoint).replace("{moment}", "old");
                        let base = base.replace("/{*path}", "").replace("/{path}", "");
                        caller.ask(&world, &before, &method.to_uppercase(), &format!("{base}{rest}"), &body);
                        asked += 1;
                    }
                }
            }
        }
    }
    assert!(asked > 250, "{asked}");
}

#[test]
fn no_tool_shows_or_changes_what_a_rule_or_token_withholds() {
    let world = World::new();
    let ruled = world.ruled(rules());
    let before = world.protected();
    let mut asked = 0;
    for caller in callers(&world, &ruled) {
        for set in treehold::tools::ToolSet::ALL {
            let tools = send(caller.served, &caller.token, "GET", &format!("/v1/tools?set={set}"), "").json();
            for tool in tools.as_array().unwrap() {
                let name = tool["name"].as_str().unwrap();
                let schema = if tool["input_schema"].is_object() { &tool["input_schema"] } else { &tool["inputSchema"] };
                assert!(schema["properties"].is_object(), "{tool}");
                for at in ["/secret", "/secret/hiddenname", "/secret/new", "/locked/l", "/locked/new", "/"] {
                    for arguments in arguments(name, schema, at) {
                        caller.ask(&world, &before, "POST", &format!("/v1/threads/default/tools/{name}?set={set}"), &arguments);
                        asked += 1;
                    }
                }
            }
        }
    }
    assert!(asked > 200, "{asked}");
}

/// Returns the total size of the files of the default thread, in bytes.
fn held(world: &World) -> u64 {
    let tree = send(&world.open, &world.admin, "POST", "/v1/tree", r#"{"path": "/", "limit": 10000}"#).json();
    tree["entries"].as_array().unwrap().iter().filter_map(|entry| entry["size_bytes"].as_u64()).sum()
}

#[test]
fn no_route_grows_a_thread_beyond_its_quota() {
    const BYTES_MAX: u64 = 2_000;
    // The three directories of the thread, and one that a copy creates.
    const LIMIT: u64 = BYTES_MAX + 4 * QuotaLimits::DIRECTORY_BYTES;
    let world = World::new();
    // The past holds more than the quota leaves room for.
    for number in 0..9 {
        world.put("default", &format!("open/{number}"), &"now ".repeat(250));
    }
    world.ok("POST", "/v1/threads/default/checkpoints", r#"{"label": "large"}"#);
    world.ok("POST", "/v1/threads/default/fork", r#"{"thread": "big"}"#);
    world.ok("POST", "/v1/threads/default/checkpoints/old/restore", "{}");
    for number in 10..13 {
        world.put("big", &format!("open/{number}"), &"now ".repeat(250));
    }
    let limits = QuotaLimits::new().with_bytes_max(LIMIT);
    let store = world.store.clone();
    let bounded = Workspace::builder()
        .mount("/", move |opening| {
            let quota = Arc::new(Quota::new(limits, opening.state()));
            opening.recount_on_reload(&quota);
            Ok(quota)
        })
        .unwrap()
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .build();
    let served = Served::of(Runtime::new().unwrap(), bounded, store, |options| options.with_tokens(true));
    let token = served.token("acme", "ada", Rights::new(Access::Admin));
    let document = world.open.get("/openapi.json").json();
    let large = "x".repeat(LIMIT as usize + 1);
    for (pattern, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap().iter().filter(|(_, operation)| operation["operationId"].is_string()) {
            let id = operation["operationId"].as_str().unwrap();
            // Quotas count the files of routes; sessions are rows, as items are.
            if is_of_sessions(pattern) {
                continue;
            }
            let (rest, body) = match id {
                "writeFile" | "writeThreadFile" | "appendFile" | "appendThreadFile" => ("/open/a", large.clone()),
                "editFile" | "editThreadFile" => ("/open/a", json!({"edits": [{"old": "old", "new": large}]}).to_string()),
                "apply" => ("", json!({"changes": [{"operation": "write", "path": "/open/x", "content": large}]}).to_string()),
                "copy" | "move" => ("", json!({"from": "/open", "to": "/copied"}).to_string()),
                "restoreCheckpoint" => ("", "{}".to_owned()),
                "forkThread" => ("", json!({"thread": "made", "at": "large"}).to_string()),
                "mergeThread" => ("", json!({"source": "big", "strategy": "theirs"}).to_string()),
                "callTool" | "callThreadTool" => ("", json!({"path": "/open/x", "content": large}).to_string()),
                "restoreFiles" => ("", json!({"paths": ["/open"], "at": "large"}).to_string()),
                "undo" => ("", "{}".to_owned()),
                "makeCheckpoint" => ("", "{}".to_owned()),
                "deleteFile" | "deleteThreadFile" | "deleteThread" | "pruneThread" => continue,
                "putItem" | "deleteItem" | "searchItems" => continue,
                data_plane if data_plane.starts_with("dp") => continue,
                "statBy" | "lsBy" | "treeBy" | "globBy" | "grepBy" | "search" => continue,
                _ if method == "get" || method == "head" => continue,
                other => panic!("say here how `{other}` fills a thread"),
            };
            let base = pattern.replace("{thread}", "default").replace("{checkpoint}", "large").replace("{name}", "write_file");
            let at = format!("{}{rest}", base.replace("/{*path}", "").replace("/{path}", ""));
            let answer = send(&served, &token, &method.to_uppercase(), &at, &body);
            let (status, said) = (answer.status, answer.text());
            assert!(held(&world) <= BYTES_MAX, "{id}: {status} {said}");
            let fits = matches!(id, "makeCheckpoint" | "copy" | "move" | "undo");
            assert!(fits || said.contains("quota_exceeded"), "{id}: {status} {said}");
        }
    }
    let made = send(&world.open, &world.admin, "GET", "/v1/threads/made", "");
    assert_eq!(made.status, 404);
}
