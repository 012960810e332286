//! Listings of a host directory at every entry point: links by their targets, and names that no path can express.
//!
//! Every [`Door`] answers every [`Case`]. The doors are derived from the program's own lists: a new route, tool or command fails
//! here until [`of_route`], [`of_mcp_tool`] or [`of_command`] decides about it.

use crate::cli::Home;
use crate::mcp::{Client, Era};
use crate::rules::commands::commands;
use crate::serve::process::{Process, agent, ask, command};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use treehold::config::Config;
use treehold::mcp::McpTools;
use treehold::ops::LsOptions;
use treehold::tools::ToolCall;
use treehold::{Backend, Error, FilesystemBackend, FilesystemOptions, Scope, VfsPath};

/// An entry point that lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    /// The tier itself, as a program embeds it.
    Tier,
    /// The tree of a session of the configuration, with its other mounts.
    Tree,
    /// The tool, called in a session.
    Tool,
    /// The command.
    Command,
    /// The command that runs a transcript of tool calls.
    Run,
    /// The API.
    Http,
    /// The API, with the request in a body.
    HttpBody,
    /// The tool over the API.
    HttpTool,
    /// The protocol for models.
    Mcp,
    /// The tree of another server.
    Remote,
}

/// The doors that no server or help lists.
const EMBEDDED: [Door; 4] = [Door::Tier, Door::Tree, Door::Tool, Door::Remote];

const NO_LISTING: &str = "lists no directory";
const AS_TEXT: &str = "shows a directory as text, by the same call of the tree";
const WALK: &str = "walks, and enters no link";

/// Returns whether a route is about the sessions of agent hosts, whose only trees are memory documents of fixed names.
fn is_of_sessions(id: &str) -> bool {
    const SUBJECTS: [&str; 16] = [
        "Session",
        "Message",
        "Turn",
        "Compaction",
        "MemoryIndex",
        "Memo",
        "ToolResult",
        "Trace",
        "Goal",
        "Orchestration",
        "Mailbox",
        "AgentHistory",
        "SkillLog",
        "exportSession",
        "importSession",
        "openSession",
    ];
    SUBJECTS.iter().any(|subject| id.contains(subject))
}

/// Returns the door of an API route, or the reason why the route lists nothing.
fn of_route(id: &str) -> Result<Door, &'static str> {
    match id {
        "ls" => Ok(Door::Http),
        "lsBy" => Ok(Door::HttpBody),
        "callTool" => Ok(Door::HttpTool),
        "callThreadTool" => Err("is `callTool` within a thread"),
        "tree" | "treeBy" | "glob" | "globBy" | "grep" | "grepBy" | "search" => Err(WALK),
        "readFile" | "readThreadFile" | "readCheckpointFile" | "statFile" | "stat" | "statBy" => Err(NO_LISTING),
        "writeFile" | "writeThreadFile" | "appendFile" | "appendThreadFile" | "editFile" | "editThreadFile" => Err(NO_LISTING),
        "deleteFile" | "deleteThreadFile" | "apply" | "copy" | "move" | "timeline" | "memory" | "audit" | "followEvents" => Err(NO_LISTING),
        "log" | "readPastFile" | "restoreFiles" | "undo" => Err(NO_LISTING),
        "listThreads" | "getThread" | "deleteThread" | "forkThread" | "mergeThread" | "pruneThread" => Err(NO_LISTING),
        "listCheckpoints" | "getCheckpoint" | "makeCheckpoint" | "restoreCheckpoint" | "diffCheckpoints" => Err(NO_LISTING),
        "getItem" | "putItem" | "deleteItem" | "searchItems" | "listNamespaces" | "capabilities" | "listTools" => Err(NO_LISTING),
        sessions if is_of_sessions(sessions) => Err(NO_LISTING),
        state if state.contains("State") || state.starts_with("admin") => Err("reaches no file"),
        data_plane if data_plane.starts_with("dp") => Err("reaches no file"),
        other => panic!("say here whether the route `{other}` lists a directory"),
    }
}

/// Returns the door of an MCP tool, or the reason why the tool lists nothing.
fn of_mcp_tool(name: &str) -> Result<Door, &'static str> {
    match name {
        "ls" => Ok(Door::Mcp),
        "list_directory" | "list_directory_with_sizes" | "memory" | "str_replace_based_edit_tool" | "treehold" => Err(AS_TEXT),
        "directory_tree" | "glob" | "grep" | "search" | "search_files" => Err(WALK),
        "read" | "read_file" | "read_text_file" | "read_media_file" | "read_multiple_files" | "get_file_info" => Err(NO_LISTING),
        "write" | "write_file" | "edit" | "edit_file" | "apply_patch" | "create_directory" | "delete" | "move" | "move_file" => {
            Err(NO_LISTING)
        }
        "checkpoint" | "history" | "list_allowed_directories" | "restore" | "undo" => Err(NO_LISTING),
        other => panic!("say here whether the tool `{other}` lists a directory"),
    }
}

/// The same of a command.
fn of_command(command: &str) -> Result<Door, &'static str> {
    match command {
        "ls" => Ok(Door::Command),
        "run" => Ok(Door::Run),
        "mcp" | "serve" => Err("asked by itself, tool by tool and route by route"),
        "tree" | "find" | "glob" | "grep" | "search" | "import" | "export" | "mirror" | "sync" => Err(WALK),
        "cat" | "head" | "stat" | "diff" | "write" | "append" | "edit" | "patch" | "rm" | "mkdir" | "mv" | "cp" | "tools" => {
            Err(NO_LISTING)
        }
        "status" | "log" | "show" | "restore" | "undo" => Err(NO_LISTING),
        "shell" => Err("runs the other commands"),
        "timeline" | "watch" | "doctor" | "completions" | "man" | "memory show" => Err(NO_LISTING),
        "checkpoint ls" | "checkpoint create" | "checkpoint show" | "checkpoint restore" | "checkpoint diff" | "checkpoint prune"
        | "checkpoint sweep" | "sweep" => Err(NO_LISTING),
        "thread ls" | "thread fork" | "thread merge" | "thread copy" | "thread rm" => Err(NO_LISTING),
        "overlay diff" | "overlay apply" | "overlay discard" => Err(NO_LISTING),
        "store ls" | "store get" | "store put" | "store rm" | "store search" | "store compact" | "store copy" | "store export"
        | "store import" | "store index" | "store migrate" | "store snapshot" | "store stats" | "store sweep" | "store verify" => {
            Err(NO_LISTING)
        }
        "session ls" | "session show" | "session messages" | "session turns" | "session compact" | "session export" | "session import"
        | "session rm" => Err(NO_LISTING),
        "state ls" | "state show" | "state get" | "state put" | "state copy" | "state export" | "state interrupt" | "state rm" => {
            Err("reaches no file")
        }
        "trace ls" | "trace show" | "trace messages" | "trace tail" | "trace create" | "trace continue" | "trace export"
        | "trace import" | "trace rm" => Err("reaches no file"),
        "token create" | "token ls" | "token revoke" | "config show" | "config check" | "config init" | "config trust" => Err(NO_LISTING),
        _ => panic!("say here whether the command `{command}` lists a directory"),
    }
}

/// Returns every door: those of the routes, tools and commands that the program itself lists, and those within a program.
fn doors(world: &World) -> Vec<Door> {
    let (status, document) = ask(&agent(), "GET", &format!("{}/openapi.json", world.server.base()), &[], b"").unwrap();
    assert_eq!(status, 200);
    let document: Value = serde_json::from_slice(&document).unwrap();
    let operations = document["paths"].as_object().unwrap().values().flat_map(|methods| methods.as_object().unwrap().values());
    let routes: Vec<&str> = operations.filter_map(|operation| operation["operationId"].as_str()).collect();
    let home = Home::new();
    let mut tools = Vec::new();
    for set in McpTools::ALL {
        let mut client = Client::start(&home, Era::Modern, &["mcp", "--tools", set.name()]);
        let listed = client.result("tools/list", json!({}));
        tools.extend(listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        client.close();
    }
    let commands: Vec<String> = commands(&home, &[]).iter().map(|words| words.join(" ")).collect();
    assert!(routes.len() > 40 && tools.len() > 20 && commands.len() > 30, "{routes:?} {tools:?} {commands:?}");
    let decided = routes.iter().map(|id| of_route(id)).chain(tools.iter().map(|name| of_mcp_tool(name)));
    let decided = decided.chain(commands.iter().map(|command| of_command(command)));
    let mut doors = EMBEDDED.to_vec();
    for door in decided.flatten() {
        if !doors.contains(&door) {
            doors.push(door);
        }
    }
    doors
}

/// A path to list, and the answer of every door: names, kinds and codes of unreadable entries; or an error code.
type Case = (&'static str, Result<(&'static [(&'static str, &'static str)], &'static [&'static str]), &'static str>);

const CASES: [Case; 6] = [
    (
        "/host",
        Ok((
            &[
                ("dangling", "symlink"),
                ("directory", "directory"),
                ("file", "file"),
                ("out", "symlink"),
                ("to-directory", "symlink"),
                ("to-file", "symlink"),
            ],
            &["invalid_path"],
        )),
    ),
    ("/host/to-directory", Ok((&[("inner", "file")], &[]))),
    ("/host/to-file", Err("not_a_directory")),
    ("/host/file", Err("not_a_directory")),
    ("/host/dangling", Err("not_found")),
    ("/host/out", Err("permission_denied")),
];

/// A directory of the host with links and a name that is not UTF-8, a server of it, and a configuration that mounts that server.
struct World {
    home: TempDir,
    far: TempDir,
    server: Process,
    runtime: Runtime,
}

impl World {
    fn new() -> Self {
        let [home, far] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let root = home.path().join("root");
        fs::create_dir_all(root.join("directory")).unwrap();
        fs::write(root.join("directory/inner"), "x").unwrap();
        fs::write(root.join("file"), "x").unwrap();
        fs::write(home.path().join("outside"), "x").unwrap();
        fs::write(root.join(OsStr::from_bytes(b"\xff")), "x").unwrap();
        for (target, link) in [("directory", "to-directory"), ("file", "to-file"), ("none", "dangling"), ("../outside", "out")] {
            symlink(target, root.join(link)).unwrap();
        }
        fs::write(home.path().join("treehold.toml"), "[routes.\"/host\"]\ntype = \"filesystem\"\nroot = \"root\"\n").unwrap();
        fs::create_dir(home.path().join("library")).unwrap();
        let server = Process::start(home.path());
        let route = format!("[routes.\"/host\"]\ntype = \"remote\"\nurl = \"{}/host\"\n", server.base());
        fs::write(far.path().join("treehold.toml"), route).unwrap();
        Self { home, far, server, runtime: Runtime::new().unwrap() }
    }

    /// Lists a path at a door; returns the listing as JSON, or the code of the error.
    fn listed(&self, door: Door, path: &str) -> Result<Value, String> {
        let code = |error: Error| error.kind().code().to_owned();
        let json = |listing| serde_json::to_value(listing).unwrap();
        let (agent, base) = (agent(), self.server.base());
        let post = |path: &str, headers: &[(&str, &str)], body: Value| -> Value {
            let headers = [&[("content-type", "application/json")][..], headers].concat();
            serde_json::from_slice(&ask(&agent, "POST", &format!("{base}{path}"), &headers, body.to_string().as_bytes()).unwrap().1)
                .unwrap()
        };
        match door {
            Door::Tier => {
                let tree = FilesystemBackend::open(self.home.path().join("root"), FilesystemOptions::new()).unwrap();
                let path = path.strip_prefix("/host").unwrap();
                let path = VfsPath::parse(if path.is_empty() { "/" } else { path }).unwrap();
                self.runtime.block_on(tree.ls(&path, &LsOptions::new())).map(json).map_err(code)
            }
            Door::Tree => {
                let path = VfsPath::parse(path).unwrap();
                self.runtime.block_on(async { self.session().await.backend().ls(&path, &LsOptions::new()).await }).map(json).map_err(code)
            }
            Door::Tool => {
                let call = ToolCall::from_json("ls", json!({"path": path})).unwrap();
                let output = self.runtime.block_on(async { self.session().await.call(call).await });
                of_tool(&serde_json::to_value(output).unwrap())
            }
            Door::Command => told(self.home.path(), path),
            Door::Remote => told(self.far.path(), path),
            Door::Run => {
                let calls = self.home.path().join("calls.jsonl");
                fs::write(&calls, json!({"tool": "ls", "args": {"path": path}}).to_string()).unwrap();
                let output = command(self.home.path(), &["run", calls.to_str().unwrap(), "--jsonl"]).output().unwrap();
                of_tool(&serde_json::from_slice::<Value>(&output.stdout).unwrap())
            }
            Door::Http => {
                let (status, body) = ask(&agent, "GET", &format!("{base}/v1/ls?path={path}"), &[], b"").unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap();
                if status == 200 { Ok(body) } else { Err(body["code"].as_str().unwrap().to_owned()) }
            }
            Door::HttpBody => {
                let body = post("/v1/ls", &[], json!({"path": path}));
                body["code"].as_str().map_or(Ok(body.clone()), |code| Err(code.to_owned()))
            }
            Door::HttpTool => of_tool(&post("/v1/tools/ls", &[], json!({"path": path}))),
            Door::Mcp => {
                let meta =
                    json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
                let params = json!({"name": "ls", "arguments": {"path": path}, "_meta": meta});
                let headers = [
                    ("accept", "application/json, text/event-stream"),
                    ("mcp-protocol-version", "2026-07-28"),
                    ("mcp-method", "tools/call"),
                    ("mcp-name", "ls"),
                ];
                let answer = post("/mcp", &headers, json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
                let meta = &answer["result"]["_meta"];
                of_tool(&json!({"data": meta["treehold/data"], "error": meta["treehold/error"]}))
            }
        }
    }

    async fn session(&self) -> treehold::Session {
        let config = Config::load(&self.home.path().join("treehold.toml"), &self.home.path().join("library")).unwrap();
        let scope = Scope::new().with_tenant("t").with_user("u").with_thread("h");
        config.workspace().unwrap().session(scope).await.unwrap()
    }
}

/// Returns the structured answer of a tool.
fn of_tool(output: &Value) -> Result<Value, String> {
    match output["error"]["code"].as_str() {
        Some(code) => Err(code.to_owned()),
        None => Ok(output["data"].clone()),
    }
}

/// Returns the output of the command in a directory.
fn told(home: &Path, path: &str) -> Result<Value, String> {
    let output = command(home, &["ls", path, "--json"]).output().unwrap();
    match serde_json::from_slice(&output.stdout) {
        Ok(listing) => Ok(listing),
        Err(_) => Err(serde_json::from_slice::<Value>(&output.stderr).unwrap()["code"].as_str().unwrap().to_owned()),
    }
}

/// The names and kinds of entries, and the codes of failures.
type Listed = (Vec<(String, String)>, Vec<String>);

#[test]
fn listing_of_links_and_unreadable_names_is_the_same_at_every_door() {
    let world = World::new();
    let mut wrong = Vec::new();
    for door in doors(&world) {
        for (path, expected) in CASES {
            let listed = world.listed(door, path).map(|listing| {
                let entries = listing["entries"].as_array().unwrap_or_else(|| panic!("{door:?} {path}: {listing}")).iter();
                let name = |entry: &Value| entry["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
                let entries: Vec<(String, String)> =
                    entries.map(|entry| (name(entry), entry["kind"].as_str().unwrap().to_owned())).collect();
                let failures = listing["failures"].as_array().map(Vec::as_slice).unwrap_or_default();
                let codes: Vec<String> = failures.iter().map(|failure| failure["error"]["code"].as_str().unwrap().to_owned()).collect();
                (entries, codes)
            });
            let expected: Result<Listed, String> = expected.map_err(str::to_owned).map(|(entries, codes)| {
                let entries = entries.iter().map(|(name, kind)| ((*name).to_owned(), (*kind).to_owned())).collect();
                (entries, codes.iter().map(|code| (*code).to_owned()).collect())
            });
            // The command lists a file by its own name; elsewhere, a file is no directory to list.
            let is_right = match (door, &listed, &expected) {
                (Door::Command | Door::Remote, Ok((entries, codes)), Err(code)) if code == "not_a_directory" => {
                    entries.len() == 1 && codes.is_empty() && path.ends_with(&format!("/{}", entries[0].0))
                }
                _ => listed == expected,
            };
            if !is_right {
                wrong.push(format!("{door:?} {path}: {listed:?}, not {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
