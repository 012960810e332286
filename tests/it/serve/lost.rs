//! Database responses are lost while another server works on the same thread: tool calls over the API and MCP (over HTTP, and over the
//! standard input and output of another process), and plain changes, on each server engine. An acknowledged change is present exactly once, a refused one is absent, and one with an unknown outcome is present once
//! or not at all.
//!
//! `TREEHOLD_LOST_ANSWERS` sets how many responses are lost on each engine.

#![allow(clippy::print_stdout, reason = "the counts are the result of a long run")]

use super::{Served, workspace};
use crate::cli::Home;
use crate::mcp::{Client, Era};
use crate::servers::proxy::{Break, Proxy};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Runtime;
use treehold::store::Store;
use ureq::Agent;
use ureq::http::Request;

/// The default number of lost responses.
const LOST: usize = 60;

/// The most exchanges with the database of one request at which the connection is broken.
const EXCHANGES: usize = 8;

const JSON: &str = "application/json";

/// The MCP revision to use.
const MCP: &str = "2026-07-28";

/// How many kinds of changes are made in rotation.
const KINDS: usize = 15;

/// The first of the kinds that are sent over standard input and output.
const STDIO: usize = 11;

/// Returns whether a change moves a file of its own.
fn moves(number: usize) -> bool {
    matches!(number % KINDS, 6 | 10 | 14)
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fate {
    Acknowledged,
    /// The outcome is unknown.
    Open,
    Refused,
}

/// Where changes are sent.
struct Doors {
    agent: Agent,
    base: String,
    /// An MCP server on standard input and output.
    stdio: Client,
}

/// A change and how to find it: its text must occur once in each of some files.
struct Change {
    method: &'static str,
    path: String,
    media: &'static str,
    /// The tool and its arguments, if it is called over MCP.
    tool: Option<(&'static str, Value)>,
    /// Whether it is called over standard input and output.
    is_stdio: bool,
    body: Vec<u8>,
    text: String,
    files: &'static [&'static str],
}

impl Change {
    /// Returns a change of the kind whose turn it is.
    fn new(number: usize) -> Self {
        let text = format!("<{number}>");
        let line = format!("{text}\n");
        let edit = json!({"path": "/marks", "old_string": "end", "new_string": format!("{line}end")});
        let edits = json!({"edits": [{"old": "end", "new": format!("{line}end")}]});
        let append = |path: &str| json!({"operation": "append", "path": path, "content": line});
        let batch = json!({"changes": [append("/log"), append("/other")]});
        let tool = json!({"path": "/log", "content": line, "mode": "append"});
        let patch = format!("*** Begin Patch\n*** Update File: /patched\n@@\n-end\n+{text}\n+end\n*** End Patch");
        let moved = json!({"from": format!("/seeds/{number}"), "to": format!("/grown/{number}")});
        let kind = number % KINDS;
        let is_stdio = kind >= STDIO;
        let of_models = match if is_stdio { kind - 4 } else { kind } {
            7 => Some(("write_file", tool.clone())),
            8 => Some(("edit_file", edit.clone())),
            9 => Some(("apply_patch", json!({"patch": patch}))),
            10 => Some(("move", moved.clone())),
            _ => None,
        };
        let call = of_models.as_ref().map(|(tool, arguments)| {
            let meta = json!({"io.modelcontextprotocol/protocolVersion": MCP, "io.modelcontextprotocol/clientCapabilities": {}});
            let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
        });
        let (method, path, media, body, files): (_, &str, _, String, &[&str]) = match kind {
            0 => ("POST", "/v1/fs/log", "text/plain", line, &["/log"]),
            1 => ("POST", "/v1/tools/write_file", JSON, tool.to_string(), &["/log"]),
            2 => ("POST", "/v1/apply", JSON, batch.to_string(), &["/log", "/other"]),
            3 => ("POST", "/v1/tools/edit_file", JSON, edit.to_string(), &["/marks"]),
            4 => ("PATCH", "/v1/fs/marks", JSON, edits.to_string(), &["/marks"]),
            5 => ("POST", "/v1/tools/apply_patch", JSON, json!({"patch": patch}).to_string(), &["/patched"]),
            6 => ("POST", "/v1/move", JSON, moved.to_string(), &["/grown"]),
            _ => {
                let files: [&[&str]; 4] = [&["/log"], &["/marks"], &["/patched"], &["/grown"]];
                ("POST", "/mcp", JSON, call.unwrap_or_default(), files[(kind - 7) % 4])
            }
        };
        Self { method, path: path.to_owned(), media, tool: of_models, is_stdio, body: body.into_bytes(), text, files }
    }

    /// Sends the change.
    fn send(&self, doors: &mut Doors) -> Fate {
        let (status, answer) = match &self.tool {
            Some((tool, arguments)) if self.is_stdio => {
                let result = doors.stdio.call(tool, arguments.clone());
                (200, json!({"is_error": result["isError"] == true, "error": result["_meta"]["treehold/error"]}))
            }
            _ => self.post(&doors.agent, &doors.base),
        };
        let error = match status {
            200..300 if answer["is_error"] == true => &answer["error"],
            200..300 => return Fate::Acknowledged,
            _ => &answer,
        };
        // The other server must not cause a refusal, since the two change different lines.
        let code = error["code"].as_str().unwrap_or_else(|| panic!("{}: {answer}", self.path));
        assert!(["unavailable", "deadline", "internal"].contains(&code) || error["may_have_effect"] == true, "{}: {answer}", self.path);
        if error["may_have_effect"] == true { Fate::Open } else { Fate::Refused }
    }

    /// Sends the change over HTTP. Returns the status and the answer, in the form of the API's answers to tool calls.
    fn post(&self, agent: &Agent, base: &str) -> (u16, Value) {
        let mut request = Request::builder().method(self.method).uri(format!("{base}{}", self.path)).header("content-type", self.media);
        if let Some((tool, _)) = &self.tool {
            request = request.header("accept", "application/json, text/event-stream").header("mcp-protocol-version", MCP);
            request = request.header("mcp-method", "tools/call").header("mcp-name", *tool);
        }
        let mut response = agent.run(request.body(&*self.body).unwrap()).unwrap();
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().unwrap();
        // The last event of a stream is the response.
        let message = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).rfind(|data| data.starts_with('{'));
        let mut answer: Value = serde_json::from_str(message.unwrap_or(&text)).unwrap_or_else(|error| panic!("{status}: {error}: {text}"));
        if self.tool.is_some() {
            assert_eq!(status, 200, "{}: {answer}", self.text);
            let result = &answer["result"];
            assert!(result.is_object(), "{}: {answer}", self.text);
            answer = json!({"is_error": result["isError"] == true, "error": result["_meta"]["treehold/error"]});
        }
        (status, answer)
    }
}

fn agent() -> Agent {
    Agent::config_builder().http_status_as_error(false).build().new_agent()
}

/// Reads a file of the thread; for a directory, the names in it.
fn read(served: &Served, file: &str) -> String {
    match file {
        "/grown" => {
            let listing = served.post("/v1/tree", &json!({"path": file, "limit": 100_000})).json();
            let entries = listing["entries"].as_array().unwrap().clone();
            entries.iter().map(|entry| format!("<{}>", entry["path"].as_str().unwrap().rsplit('/').next().unwrap())).collect()
        }
        file => served.get(&format!("/v1/fs{file}")).text(),
    }
}

/// Loses responses between the servers of one database and that database, over HTTP and over standard input and output, while another
/// server works on the same thread. `url` names the database through the proxy.
fn lose(engine: &str, near: Arc<dyn Store>, cut: Arc<dyn Store>, proxy: &Proxy, url: &str, runtime: Runtime) {
    let lost: usize = std::env::var("TREEHOLD_LOST_ANSWERS").ok().and_then(|count| count.parse().ok()).unwrap_or(LOST);
    let other = Served::of(Runtime::new().unwrap(), workspace(&near), near, |options| options);
    let seeds: Vec<Value> = (0..lost * 4)
        .filter(|number| moves(*number))
        .map(|number| json!({"operation": "write", "path": format!("/seeds/{number}"), "content": "x"}))
        .chain(["/marks", "/patched"].map(|path| json!({"operation": "write", "path": path, "content": "end\n"})))
        .chain(["/log", "/other", "/theirs", "/grown/0"].map(|path| json!({"operation": "write", "path": path, "content": ""})))
        .collect();
    assert_eq!(other.post("/v1/apply", &json!({"changes": seeds})).status, 200);
    let served = Served::of(runtime, workspace(&cut), cut, |options| options);
    let home = Home::new();
    home.put("lost.toml", format!("[stores.default]\nurl = {}\n[threads]\naudit = true\n[events]\nsave = true\n", json!(url)));
    let stdio = Client::start(&home, Era::Modern, &["--config", "lost.toml", "--tenant", "acme", "--user", "ada", "mcp"]);
    let ended = Arc::new(AtomicBool::new(false));
    let writer = {
        let (ended, base) = (ended.clone(), other.base.clone());
        std::thread::spawn(move || {
            let (agent, mut count) = (agent(), 0);
            while !ended.load(Ordering::Relaxed) {
                let sent = agent.post(format!("{base}/v1/fs/theirs")).send(format!("<{count}>\n")).unwrap();
                assert!(sent.status().as_u16() < 300, "{}", sent.status());
                count += 1;
            }
            count
        })
    };
    let mut doors = Doors { agent: agent(), base: served.base.clone(), stdio };
    // Each server opens its store with its first call.
    for kind in [0, STDIO] {
        assert_eq!(Change::new(lost * 8 * KINDS + kind).send(&mut doors), Fate::Acknowledged);
    }
    let (mut changes, mut fates) = (Vec::<(Change, Fate)>::new(), HashMap::new());
    let mut broken = 0;
    while broken < lost {
        let number = changes.len();
        let change = Change::new(number);
        // Break each exchange of a request in turn, before the request arrives or after.
        let at = if number % 3 == 0 { Break::Request } else { Break::Answer };
        proxy.break_after((number / KINDS) % EXCHANGES, at);
        let fate = change.send(&mut doors);
        broken += usize::from(!proxy.mend());
        *fates.entry(fate).or_insert(0) += 1;
        changes.push((change, fate));
        assert!(changes.len() < lost * 4, "the connection broke during {broken} of {} requests", changes.len());
    }
    // Unsaved changes are saved or set aside before the next change of the thread, by each server on its own.
    for kind in [0, STDIO] {
        assert_eq!(Change::new(lost * 4 * KINDS + kind).send(&mut doors), Fate::Acknowledged);
    }
    ended.store(true, Ordering::Relaxed);
    let theirs: usize = writer.join().unwrap();
    let files: HashMap<&str, String> =
        ["/log", "/other", "/marks", "/patched", "/grown", "/theirs"].into_iter().map(|file| (file, read(&other, file))).collect();
    for (change, fate) in &changes {
        let counts: Vec<usize> = change.files.iter().map(|file| files[file].matches(&change.text).count()).collect();
        let is_right = match fate {
            Fate::Acknowledged => counts.iter().all(|count| *count == 1),
            Fate::Refused => counts.iter().all(|count| *count == 0),
            // Either all of a change or nothing.
            Fate::Open => counts.iter().all(|count| *count <= 1 && *count == counts[0]),
        };
        assert!(is_right, "{engine}: {} {} `{}` was {fate:?} and occurs {counts:?} times", change.method, change.path, change.text);
    }
    for count in 0..theirs {
        assert_eq!(files["/theirs"].matches(&format!("<{count}>\n")).count(), 1, "{engine}: the other server's own {count}");
    }
    let [of_models, of_stdio] = [false, true].map(|is_stdio| {
        let count = |change: &Change| change.tool.is_some() && change.is_stdio == is_stdio;
        changes.iter().filter(|(change, _)| count(change)).count()
    });
    assert!(of_models * 5 > changes.len() && of_stdio * 5 > changes.len(), "{of_models} and {of_stdio} of {}", changes.len());
    doors.stdio.close();
    println!("{engine}: {broken} answers lost in {} changes beside {theirs} of another server: {fates:?}", changes.len());
    served.stop().unwrap();
    other.stop().unwrap();
}

#[cfg(feature = "postgres")]
#[test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
fn postgres_change_is_made_at_most_once_if_its_response_is_lost() {
    use crate::servers::postgres;
    use treehold::store::{PostgresOptions, PostgresStore};

    let runtime = Runtime::new().unwrap();
    let (_schema, proxy, near, cut, url) = runtime.block_on(async {
        let schema = postgres::schema().await;
        let (proxy, url) = postgres::proxied(&schema).await;
        let near = PostgresStore::open_with(schema.options()).await.unwrap();
        let cut = PostgresStore::open_with(PostgresOptions::new(&url).with_schema(&schema.name)).await.unwrap();
        let url = format!("{url}&schema={}", schema.name.replace(' ', "%20"));
        (schema, proxy, near, cut, url)
    });
    lose("PostgreSQL", Arc::new(near), Arc::new(cut), &proxy, &url, runtime);
}

#[cfg(feature = "mysql")]
#[test]
#[ignore = "needs MySQL or MariaDB: run scripts/servers.sh"]
fn mysql_change_is_made_at_most_once_if_its_response_is_lost() {
    use crate::servers::mysql;
    use treehold::store::{MysqlOptions, MysqlStore};

    let runtime = Runtime::new().unwrap();
    let (_database, proxy, near, cut, url) = runtime.block_on(async {
        let database = mysql::database().await;
        let (proxy, url) = mysql::proxied(&database.url).await;
        let near = MysqlStore::open_with(MysqlOptions::new(database.url.clone())).await.unwrap();
        let cut = MysqlStore::open_with(MysqlOptions::new(url.clone())).await.unwrap();
        (database, proxy, near, cut, url)
    });
    lose("MariaDB", Arc::new(near), Arc::new(cut), &proxy, &url, runtime);
}

#[cfg(feature = "redis")]
#[test]
#[ignore = "needs Redis: run scripts/servers.sh"]
fn redis_change_is_made_at_most_once_if_its_response_is_lost() {
    use crate::servers::redis;
    use treehold::store::{RedisOptions, RedisStore};

    let runtime = Runtime::new().unwrap();
    let (_prefix, proxy, near, cut, url) = runtime.block_on(async {
        let prefix = redis::prefix().await;
        let (proxy, url) = redis::proxy().await;
        let near = RedisStore::open_with(RedisOptions::new(redis::server()).with_prefix(&prefix.name)).await.unwrap();
        let cut = RedisStore::open_with(RedisOptions::new(&url).with_prefix(&prefix.name)).await.unwrap();
        let url = format!("{url}?prefix={}", prefix.name);
        (prefix, proxy, near, cut, url)
    });
    lose("Redis", Arc::new(near), Arc::new(cut), &proxy, &url, runtime);
}
