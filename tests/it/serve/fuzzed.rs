//! Random requests of two tenants with three tokens, over the API and MCP, compared with a model of who may see and change what.
//!
//! The model shares no code with the server: it has a map of files per tenant, the paths that each token may see, and the owner of each
//! session. Besides comparing outcomes, it searches every response for content that the reader may never have seen.
//!
//! `TREEHOLD_FUZZ_REQUESTS` and `TREEHOLD_FUZZ_SEED` set the number of requests and the seed. A failure is shrunk to the fewest requests
//! that still cause it.

use super::{Answer, Served};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use treehold::VfsPathBuf;
use treehold::serve::{Access, Rights};

/// The default number of requests.
const REQUESTS: usize = 1_500;

/// How many requests one server handles before the next one starts with an empty tree.
const ROUND: usize = 500;

const PATHS: [&str; 8] = ["/memories/pub/a", "/memories/pub/b", "/memories/priv/a", "/memories/c", "/pub/a", "/pub/b", "/priv/a", "/d"];

/// The paths that the second token of the first tenant may see.
const SHOWN: [&str; 2] = ["/memories/pub", "/pub"];

const THREADS: [&str; 2] = ["t0", "t1"];

/// The outcome of a request, as far as the model distinguishes outcomes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Done,
    Content(String),
    Paths(Vec<String>),
    NotFound,
    Denied,
    /// The session does not exist; the caller must start one.
    NoSession,
}

/// How a request is sent.
#[derive(Debug, Clone, Copy)]
enum Door {
    /// Over the API, with the thread in a header.
    Header,
    /// Over the API, with the thread in the path.
    Path,
    /// Over MCP without a session (2026-07-28).
    Modern,
    /// Over MCP in a session, by its index.
    Session(usize),
}

#[derive(Debug, Clone)]
enum Op {
    Write {
        token: usize,
        door: Door,
        thread: usize,
        path: usize,
        appends: bool,
    },
    Read {
        token: usize,
        door: Door,
        thread: usize,
        path: usize,
    },
    Delete {
        token: usize,
        door: Door,
        thread: usize,
        path: usize,
    },
    Move {
        token: usize,
        door: Door,
        thread: usize,
        from: usize,
        to: usize,
    },
    List {
        token: usize,
        thread: usize,
    },
    Begin {
        token: usize,
    },
    End {
        token: usize,
        session: usize,
    },
    /// A request that must neither reveal nor change anything it may not, by its number.
    Probe {
        token: usize,
        thread: usize,
        probe: usize,
    },
}

/// A seeded source of numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    fn door(&mut self) -> Door {
        match self.below(5) {
            0 | 1 => Door::Header,
            2 => Door::Path,
            3 => Door::Modern,
            _ => Door::Session(self.below(4)),
        }
    }

    fn op(&mut self) -> Op {
        let (token, thread, path) = (self.below(3), self.below(THREADS.len()), self.below(PATHS.len()));
        match self.below(20) {
            0..=4 => Op::Write { token, door: self.door(), thread, path, appends: self.below(3) == 0 },
            5..=9 => Op::Read { token, door: self.door(), thread, path },
            10..=11 => Op::Delete { token, door: self.door(), thread, path },
            12..=13 => Op::Move { token, door: self.door(), thread, from: path, to: self.below(PATHS.len()) },
            14..=15 => Op::List { token, thread },
            16 => Op::Begin { token },
            17 => Op::End { token, session: self.below(4) },
            _ => Op::Probe { token, thread, probe: self.below(PROBES) },
        }
    }
}

/// The model of a token.
struct Holder {
    tenant: &'static str,
    writes: bool,
    /// The paths that it may see, or empty for all.
    shown: &'static [&'static str],
}

impl Holder {
    fn sees(&self, path: &str) -> bool {
        self.shown.is_empty() || self.shown.iter().any(|root| path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/')))
    }
}

fn holders(limited_writes: bool) -> [Holder; 3] {
    [
        Holder { tenant: "acme", writes: true, shown: &[] },
        Holder { tenant: "acme", writes: limited_writes, shown: &SHOWN },
        Holder { tenant: "other", writes: true, shown: &[] },
    ]
}

/// The model of who may see and change what.
#[derive(Default)]
struct Model {
    /// The files by tenant and path. The path of a thread's file starts with the thread's name.
    files: BTreeMap<(&'static str, String), String>,
    /// For each piece of content: its tenant, and whether it was ever visible to the tenant's restricted token.
    pieces: BTreeMap<usize, (&'static str, bool)>,
    /// The owner and id of each session, and whether it is open.
    sessions: Vec<(usize, String, bool)>,
}

impl Model {
    fn place(tenant: &'static str, thread: usize, path: &str) -> (&'static str, String) {
        let is_shared = path.starts_with("/memories/");
        (tenant, if is_shared { path.to_owned() } else { format!("{}{path}", THREADS[thread]) })
    }

    /// Records that the pieces of some content are now at a path.
    fn lies(&mut self, content: &str, path: &str) {
        let limited = &holders(true)[1];
        for number in pieces(content) {
            if let Some((_, seen)) = self.pieces.get_mut(&number) {
                *seen |= limited.sees(path);
            }
        }
    }

    fn write(&mut self, holder: &Holder, thread: usize, path: &str, number: usize, appends: bool) -> Outcome {
        if !holder.writes || !holder.sees(path) {
            return Outcome::Denied;
        }
        self.pieces.insert(number, (holder.tenant, false));
        let file = self.files.entry(Self::place(holder.tenant, thread, path)).or_default();
        if !appends {
            file.clear();
        }
        file.push_str(&piece(number));
        let content = file.clone();
        self.lies(&content, path);
        Outcome::Done
    }

    fn read(&self, holder: &Holder, thread: usize, path: &str) -> Outcome {
        let found = self.files.get(&Self::place(holder.tenant, thread, path)).filter(|_| holder.sees(path));
        found.map_or(Outcome::NotFound, |content| Outcome::Content(content.clone()))
    }

    fn delete(&mut self, holder: &Holder, thread: usize, path: &str) -> Vec<Outcome> {
        if !holder.writes {
            return vec![Outcome::Denied];
        }
        if !holder.sees(path) {
            return vec![Outcome::Denied, Outcome::NotFound];
        }
        let removed = self.files.remove(&Self::place(holder.tenant, thread, path));
        vec![if removed.is_some() { Outcome::Done } else { Outcome::NotFound }]
    }

    fn rename(&mut self, holder: &Holder, thread: usize, from: &str, to: &str) -> Vec<Outcome> {
        if !holder.writes {
            return vec![Outcome::Denied];
        }
        if !holder.sees(from) || !holder.sees(to) {
            return vec![Outcome::Denied, Outcome::NotFound];
        }
        let Some(content) = self.files.get(&Self::place(holder.tenant, thread, from)).cloned() else { return vec![Outcome::NotFound] };
        self.files.remove(&Self::place(holder.tenant, thread, from));
        self.lies(&content, to);
        self.files.insert(Self::place(holder.tenant, thread, to), content);
        vec![Outcome::Done]
    }

    fn list(&self, holder: &Holder, thread: usize) -> Outcome {
        let paths = PATHS.iter().filter(|path| holder.sees(path) && self.files.contains_key(&Self::place(holder.tenant, thread, path)));
        let mut paths: Vec<String> = paths.map(|path| (*path).to_owned()).collect();
        paths.sort();
        Outcome::Paths(paths)
    }

    /// Returns a piece in a text that its reader may never have seen.
    fn leak(&self, holder: &Holder, text: &str) -> Option<usize> {
        pieces(text).into_iter().find(|number| match self.pieces.get(number) {
            Some((tenant, seen)) => *tenant != holder.tenant || (!holder.shown.is_empty() && !seen),
            None => false,
        })
    }
}

fn piece(number: usize) -> String {
    format!("piece{number:07};")
}

/// Returns the numbers of the pieces in a text.
fn pieces(text: &str) -> BTreeSet<usize> {
    text.match_indices("piece").filter_map(|(at, _)| text.get(at + 5..at + 12)?.parse().ok()).collect()
}

/// The number of probes.
const PROBES: usize = 24;

/// Returns a request that reveals or would change a lot: method, path, body, and whether it requires a token for the whole tree.
fn probe(number: usize, thread: &str) -> (&'static str, String, Value, bool) {
    let of = |rest: &str| format!("/v1/threads/{thread}{rest}");
    match number {
        0 => ("POST", "/v1/grep".into(), json!({"pattern": "piece", "hidden": true}), false),
        1 => ("POST", "/v1/search".into(), json!({"query": "piece"}), false),
        2 => ("GET", "/v1/tree?path=/".into(), Value::Null, false),
        3 => ("GET", "/v1/memory".into(), Value::Null, false),
        4 => ("GET", "/v1/capabilities".into(), Value::Null, false),
        5 => ("GET", "/v1/timeline".into(), Value::Null, false),
        6 => ("GET", "/v1/threads".into(), Value::Null, false),
        7 => ("GET", of(""), Value::Null, false),
        8 => ("GET", of("/checkpoints"), Value::Null, false),
        9 => ("GET", of("/diff"), Value::Null, false),
        10 => ("GET", of("/checkpoints/latest/fs/priv/a"), Value::Null, false),
        11 => ("GET", of("/checkpoints/latest/fs/pub/a"), Value::Null, false),
        12 => ("GET", "/v1/store/namespaces".into(), Value::Null, true),
        13 => ("GET", "/v1/audit".into(), Value::Null, true),
        14 => ("POST", of("/merge"), json!({"source": "absent", "dry_run": true}), false),
        15 => ("POST", "/v1/tools/grep".into(), json!({"pattern": "piece"}), false),
        16 => ("POST", "/v1/tools/glob".into(), json!({"pattern": "**"}), false),
        17 => ("POST", "/v1/tools/ls".into(), json!({"path": "/memories"}), false),
        18 => ("POST", "/v1/tools/read_file".into(), json!({"path": "/memories/priv/a"}), false),
        19 => ("POST", "/v1/tools/memory?set=memory".into(), json!({"command": "view", "path": "/memories"}), false),
        20 => ("POST", "/v1/copy".into(), json!({"from": "/absent", "to": "/pub/copied"}), false),
        21 => ("POST", "/v1/apply".into(), json!({"changes": [{"operation": "edit", "path": "/priv/a", "edits": []}]}), false),
        22 => ("GET", "/v1/ls?path=/".into(), Value::Null, false),
        _ => ("GET", "/v1/stat?path=/memories/priv".into(), Value::Null, false),
    }
}

/// A server with its model.
struct World {
    served: Served,
    tokens: [String; 3],
    holders: [Holder; 3],
    model: Model,
    written: usize,
}

impl World {
    fn new(limited_writes: bool) -> Self {
        let served = Served::closed();
        let access = |writes| if writes { Access::Write } else { Access::Read };
        let holders = holders(limited_writes);
        let tokens = [0, 1, 2].map(|at: usize| {
            let holder = &holders[at];
            let shown = holder.shown.iter().map(|path| VfsPathBuf::parse(*path).unwrap());
            served.token(holder.tenant, "ada", Rights::new(access(holder.writes)).with_paths(shown))
        });
        Self { served, tokens, holders, model: Model::default(), written: 0 }
    }

    /// Performs one operation and reports a difference from the model.
    fn step(&mut self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Write { token, door, thread, path, appends } => {
                let path = PATHS[path];
                self.written += 1;
                let content = piece(self.written);
                let arguments = json!({"path": path, "content": content, "mode": if appends { "append" } else { "overwrite" }});
                let verb = if appends { "POST" } else { "PUT" };
                let Some(met) = self.file(token, door, thread, (verb, path, content.as_bytes()), ("write_file", arguments))? else {
                    return Ok(());
                };
                let number = self.written;
                let wanted = self.model.write(&self.holders[token], thread, path, number, appends);
                differ(op, &met, &[wanted])
            }
            Op::Read { token, door, thread, path } => {
                let path = PATHS[path];
                let Some(met) = self.file(token, door, thread, ("GET", path, b""), ("read_file", json!({"path": path})))? else {
                    return Ok(());
                };
                differ(op, &met, &[self.model.read(&self.holders[token], thread, path)])
            }
            Op::Delete { token, door, thread, path } => {
                let path = PATHS[path];
                let Some(met) = self.file(token, door, thread, ("DELETE", path, b""), ("delete", json!({"path": path})))? else {
                    return Ok(());
                };
                let wanted = self.model.delete(&self.holders[token], thread, path);
                differ(op, &met, &wanted)
            }
            Op::Move { token, door, thread, from, to } => {
                let (from, to) = (PATHS[from], PATHS[to]);
                if from == to {
                    return Ok(());
                }
                let words = json!({"from": from, "to": to, "overwrite": true});
                let met = match door {
                    Door::Header | Door::Path => {
                        let headers = [("treehold-thread", THREADS[thread]), ("content-type", "application/json")];
                        let answer = self.send(token, "POST", "/v1/move", &headers, words.to_string().as_bytes());
                        self.of_answer(token, answer, false)?
                    }
                    _ => match self.call(token, door, thread, "move", words)? {
                        Some(met) => met,
                        None => return Ok(()),
                    },
                };
                let wanted = self.model.rename(&self.holders[token], thread, from, to);
                differ(op, &met, &wanted)
            }
            Op::List { token, thread } => {
                let headers = [("treehold-thread", THREADS[thread]), ("content-type", "application/json")];
                let answer = self.send(token, "POST", "/v1/glob", &headers, br#"{"pattern": "**"}"#);
                let found = self.text(token, answer)?.1;
                let found: Value = serde_json::from_str(&found).map_err(|error| format!("{op:?}: {error}: {found}"))?;
                let paths = found["entries"].as_array().into_iter().flatten().map(|entry| entry["path"].as_str().unwrap().to_owned());
                differ(op, &Outcome::Paths(paths.collect()), &[self.model.list(&self.holders[token], thread)])
            }
            Op::Begin { token } => {
                let client = json!({"name": "fuzz", "version": "1"});
                let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
                let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
                let answer = self.send(token, "POST", "/mcp", &mcp("2025-11-25"), body.to_string().as_bytes());
                let session = answer.header("mcp-session-id").ok_or_else(|| format!("{op:?}: {}", answer.status))?;
                self.text(token, answer)?;
                let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
                let mut headers = mcp("2025-11-25");
                headers.push(("mcp-session-id", &session));
                self.send(token, "POST", "/mcp", &headers, ready.to_string().as_bytes());
                self.model.sessions.push((token, session, true));
                Ok(())
            }
            Op::End { token, session } => {
                let Some((at, owner, id, lasts)) = self.session(session) else { return Ok(()) };
                let mut headers = mcp("2025-11-25");
                headers.push(("mcp-session-id", &id));
                let met = self.send(token, "DELETE", "/mcp", &headers, b"").status;
                let is_own = owner == token && lasts;
                if is_own {
                    self.model.sessions[at].2 = false;
                }
                let wanted = if is_own { 202 } else { 404 };
                if met == wanted { Ok(()) } else { Err(format!("{op:?}: {met} where {wanted} was due")) }
            }
            Op::Probe { token, thread, probe: number } => {
                let (method, path, body, needs_all) = probe(number, THREADS[thread]);
                let mut headers = vec![("content-type", "application/json")];
                if !path.starts_with("/v1/threads/") {
                    headers.push(("treehold-thread", THREADS[thread]));
                }
                let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
                let answer = self.send(token, method, &path, &headers, &body);
                let (status, text) = self.text(token, answer)?;
                let is_limited = !self.holders[token].shown.is_empty();
                if is_limited && text.contains("priv") && !path.contains("priv") && !String::from_utf8_lossy(&body).contains("priv") {
                    return Err(format!("{op:?}: {method} {path} reveals a hidden path: {text}"));
                }
                if is_limited && needs_all && status != 403 {
                    return Err(format!("{op:?}: {method} {path} requires a token for the whole tree, but answered {status}: {text}"));
                }
                if status >= 500 { Err(format!("{op:?}: {method} {path}: {status} {text}")) } else { Ok(()) }
            }
        }
    }

    /// Returns the index, owner, id and state of a recent session.
    fn session(&self, number: usize) -> Option<(usize, usize, String, bool)> {
        // Choose among the last few, so that most are still open.
        let at = self.model.sessions.len().checked_sub(1 + number)?;
        let (owner, id, lasts) = &self.model.sessions[at];
        Some((at, *owner, id.clone(), *lasts))
    }

    fn send(&self, token: usize, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let bearer = format!("Bearer {}", self.tokens[token]);
        let mut all = vec![("authorization", bearer.as_str())];
        all.extend(headers);
        self.served.send(method, path, &all, body)
    }

    /// Reads a response and searches it for content that its reader may not see.
    fn text(&self, token: usize, answer: Answer) -> Result<(u16, String), String> {
        let status = answer.status;
        let text = answer.text();
        match self.model.leak(&self.holders[token], &text) {
            Some(number) => Err(format!("token {token} received the hidden piece {number}: {text}")),
            None => Ok((status, text)),
        }
    }

    fn of_answer(&self, token: usize, answer: Answer, reads: bool) -> Result<Outcome, String> {
        let (status, text) = self.text(token, answer)?;
        Ok(match status {
            200 | 201 if reads => Outcome::Content(text),
            200 | 201 => Outcome::Done,
            403 => Outcome::Denied,
            404 => Outcome::NotFound,
            _ => return Err(format!("status {status}: {text}")),
        })
    }

    /// Sends a file operation by any route. Returns `None` if it needs a session and there is none.
    fn file(
        &mut self,
        token: usize,
        door: Door,
        thread: usize,
        (method, path, body): (&str, &str, &[u8]),
        (tool, arguments): (&str, Value),
    ) -> Result<Option<Outcome>, String> {
        let thread_name = THREADS[thread];
        let answer = match door {
            Door::Header => self.send(token, method, &format!("/v1/fs{path}"), &[("treehold-thread", thread_name)], body),
            Door::Path => self.send(token, method, &format!("/v1/threads/{thread_name}/fs{path}"), &[], body),
            _ => return self.call(token, door, thread, tool, arguments),
        };
        self.of_answer(token, answer, method == "GET").map(Some)
    }

    /// Calls a tool over MCP.
    fn call(&mut self, token: usize, door: Door, thread: usize, tool: &str, arguments: Value) -> Result<Option<Outcome>, String> {
        let path = format!("/mcp/t/{}", THREADS[thread]);
        let mut params = json!({"name": tool, "arguments": arguments});
        let (answer, is_own) = if let Door::Session(number) = door {
            let Some((_, owner, id, lasts)) = self.session(number) else { return Ok(None) };
            let mut headers = mcp("2025-11-25");
            headers.push(("mcp-session-id", &id));
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            (self.send(token, "POST", &path, &headers, body.to_string().as_bytes()), owner == token && lasts)
        } else {
            params["_meta"] =
                json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
            let mut headers = mcp("2026-07-28");
            headers.extend([("mcp-method", "tools/call"), ("mcp-name", tool)]);
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            (self.send(token, "POST", &path, &headers, body.to_string().as_bytes()), true)
        };
        let (status, text) = self.text(token, answer)?;
        if !is_own {
            return if status == 404 { Ok(None) } else { Err(format!("a session of another owner answered {status}: {text}")) };
        }
        if status == 404 {
            return Ok(Some(Outcome::NoSession));
        }
        // A session responds with an event stream whose last event is the response.
        let message = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).rfind(|data| data.starts_with('{'));
        let message: Value = serde_json::from_str(message.unwrap_or(&text)).map_err(|error| format!("{error}: {text}"))?;
        let told = message["result"]["content"][0]["text"].as_str().unwrap_or_default();
        Ok(Some(match &message["result"]["isError"] {
            // A tool that the token's access excludes is not offered.
            _ if message["error"]["code"] == -32602 => Outcome::Denied,
            Value::Bool(true) if told.starts_with("error [not_found]") => Outcome::NotFound,
            Value::Bool(true) if told.starts_with("error [permission_denied]") => Outcome::Denied,
            Value::Bool(true) => return Err(format!("status {status}: {text}")),
            _ if message["result"].is_null() => return Err(format!("status {status}: {text}")),
            _ if tool == "read_file" => Outcome::Content(told.to_owned()),
            _ => Outcome::Done,
        }))
    }
}

fn mcp(version: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut headers = vec![("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    headers.push(("mcp-protocol-version", version));
    headers
}

fn differ(op: &Op, met: &Outcome, wanted: &[Outcome]) -> Result<(), String> {
    if wanted.contains(met) { Ok(()) } else { Err(format!("{op:?}: {met:?} where the model says {wanted:?}")) }
}

/// Runs operations on a fresh server, and returns the first difference with its index.
fn play(ops: &[Op], limited_writes: bool) -> Option<(usize, String)> {
    let mut world = World::new(limited_writes);
    ops.iter().enumerate().find_map(|(at, op)| world.step(op).err().map(|difference| (at, difference)))
}

/// Removes operations as long as a difference remains.
fn shrunk(mut ops: Vec<Op>, limited_writes: bool) -> (Vec<Op>, String) {
    let mut difference = String::new();
    let mut stretch = ops.len();
    while stretch > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + stretch).min(ops.len()));
            match play(&fewer, limited_writes) {
                Some((last, found)) => {
                    fewer.truncate(last + 1);
                    (ops, difference) = (fewer, found);
                }
                None => at += stretch,
            }
        }
        stretch /= 2;
    }
    (ops, difference)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}: {error}")))
}

#[test]
fn random_requests_match_the_model() {
    let requests = number("TREEHOLD_FUZZ_REQUESTS").map_or(REQUESTS, |count| count as usize);
    let first_seed = number("TREEHOLD_FUZZ_SEED").unwrap_or(15);
    let (mut sent, mut seed) = (0, first_seed);
    while sent < requests {
        let mut numbers = Numbers(seed);
        let ops: Vec<Op> = (0..ROUND.min(requests - sent)).map(|_| numbers.op()).collect();
        let limited_writes = seed % 2 == 1;
        if let Some((at, difference)) = play(&ops, limited_writes) {
            let (ops, shrunk) = shrunk(ops[..=at].to_vec(), limited_writes);
            panic!("seed {seed}: {difference}\nin fewer requests: {shrunk}\n{ops:#?}");
        }
        sent += ops.len();
        seed += 1;
    }
    assert_eq!(sent, requests, "from seed {first_seed}, 0 differences");
}
