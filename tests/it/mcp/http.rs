//! The server over HTTP, byte by byte: access, the thread of a request, and shutdown.

use super::{Client, Era};
use crate::cli::{Home, binary};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server in its own process on its own port.
pub(super) struct Served {
    child: Child,
    pub(super) address: String,
}

impl Served {
    pub(super) fn start(home: &Home, args: &[&str]) -> Self {
        Self::start_at(home, "127.0.0.1:0", args)
    }

    fn start_at(home: &Home, listen: &str, args: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.arg("serve").args(["--listen", listen]).args(args);
        command.current_dir(home.work()).env("TREEHOLD_DATA", home.data()).env("HOME", home.data()).stdout(Stdio::piped());
        for name in ["CONFIG", "THREAD", "USER", "TENANT", "AGENT", "SESSION"] {
            command.env_remove(format!("TREEHOLD_{name}"));
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap().to_owned();
        Self { child, address }
    }

    /// Sends one request and returns the status and body of the response.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let (head, body) = self.exchange(method, path, headers, body);
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }

    /// Sends one request and returns the head and body of the response.
    fn exchange(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_ascii_lowercase(), body.to_owned())
    }

    /// Calls a tool as clients of revision 2026-07-28 do.
    pub(super) fn call(&self, path: &str, headers: &[(&str, &str)], tool: &str, arguments: Value) -> (u16, Value) {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        let mut all = vec![
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", tool),
        ];
        all.extend(headers);
        let (status, body) = self.send("POST", path, &all, &body);
        // The body may be chunked; the message is the single object in it.
        let message = body.find('{').and_then(|start| serde_json::from_str(&body[start..=body.rfind('}')?]).ok());
        (status, message.unwrap_or(Value::String(body)))
    }

    fn text(&self, path: &str, tool: &str, arguments: Value) -> String {
        let (status, message) = self.call(path, &[], tool, arguments);
        assert_eq!(status, 200, "{message}");
        super::text(&message["result"])
    }

    /// Asks the server to stop, as a service manager does, and waits for it.
    fn stop(mut self) {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn thread_comes_from_url_header_or_argument() {
    let home = Home::new();
    let served = Served::start(&home, &[]);
    for thread in ["one", "two"] {
        served.text(&format!("/mcp/t/{thread}"), "write_file", json!({"path": "/own.md", "content": thread}));
    }
    assert_eq!(served.text("/mcp/t/one", "read_file", json!({"path": "/own.md"})), "one");
    assert_eq!(served.text("/mcp", "read_file", json!({"path": "/own.md", "thread_id": "two"})), "two");
    let (_, read) = served.call("/mcp", &[("Treehold-Thread", "one")], "read_file", json!({"path": "/own.md"}));
    assert_eq!(super::text(&read["result"]), "one");
    let (_, other) = served.call("/mcp/t/one", &[], "read_file", json!({"path": "/own.md", "thread_id": "two"}));
    assert!(super::text(&other["result"]).starts_with("error [permission_denied]: "), "{other}");
    assert_eq!(served.call("/mcp/t/one", &[("Treehold-Thread", "two")], "ls", json!({})).0, 400);
    served.text("/mcp/t/a%20b", "write_file", json!({"path": "/own.md", "content": "of a b"}));
    served.stop();
    assert_eq!(home.ok(&["--thread", "two", "cat", "/own.md"]), "two");
    assert_eq!(home.ok(&["--thread", "a b", "cat", "/own.md"]), "of a b");
}

#[test]
fn reserved_thread_id_is_refused_in_url_header_and_argument() {
    let home = Home::new();
    let served = Served::start(&home, &[]);
    let list = |path: &str, headers: &[(&str, &str)], arguments: Value| served.call(path, headers, "ls", arguments).1.to_string();
    for answer in [
        list("/mcp/t/_treehold", &[], json!({})),
        list("/mcp", &[("Treehold-Thread", "_treehold")], json!({})),
        list("/mcp", &[], json!({"thread_id": "_treehold"})),
    ] {
        assert!(answer.contains("the thread id `_treehold` is reserved"), "{answer}");
    }
    served.stop();
}

#[test]
fn requests_for_other_hosts_and_origins_are_refused() {
    let home = Home::new();
    let served = Served::start(&home, &["--allow-host", "files.example.com", "--allow-origin", "https://app.example.com:443"]);
    let own = format!("http://{}", served.address);
    for (name, value, status) in [
        ("Origin", own.as_str(), 200),
        ("Origin", "https://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://localhost", 403),
        ("Origin", "https://app.example.com", 200),
        ("Host", "evil.example", 403),
        ("Host", "files.example.com", 200),
        ("Host", "localhost:7777", 200),
    ] {
        assert_eq!(served.call("/mcp", &[(name, value)], "ls", json!({})).0, status, "{name}: {value}");
    }
}

#[test]
fn token_is_required_at_every_mcp_path() {
    let home = Home::new();
    let token = home.put("token", "0123456789abcdef\n");
    let served = Served::start(&home, &["--token-file", token.to_str().unwrap()]);
    for path in ["/mcp", "/mcp/t/x"] {
        assert_eq!(served.call(path, &[], "ls", json!({})).0, 401);
        assert_eq!(served.call(path, &[("Authorization", "Bearer 0123456789abcdeX")], "ls", json!({})).0, 401);
        assert_eq!(served.call(path, &[("Authorization", "Bearer 0123456789abcdef")], "ls", json!({})).0, 200);
    }
    assert_eq!(served.send("GET", "/livez", &[], ""), (200, "ok\n".to_owned()));
    assert_eq!(served.send("GET", "/none", &[], "").0, 404);
}

#[test]
fn address_beyond_loopback_requires_a_token() {
    let home = Home::new();
    let said = home.command(&["serve", "--listen", "0.0.0.0:0"]).assert().code(2).get_output().stderr.clone();
    assert!(String::from_utf8(said).unwrap().contains("no token is set"));
}

/// It was answered 415 in plain text, which clients cannot read as an answer to their message.
#[test]
fn body_that_is_no_message_is_answered_as_json_rpc_requires() {
    let home = Home::new();
    let served = Served::start(&home, &[]);
    let headers = [
        ("Content-Type", "application/json; charset=utf-8"),
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2025-06-18"),
    ];
    for (body, code, id, words) in [
        ("{\"jsonrpc\":\"2.0\",\"id\":1,", -32700, Value::Null, "the body is not JSON: "),
        ("", -32700, Value::Null, "the body is not JSON: "),
        ("{\"id\":7}", -32600, json!(7), "the body is not a message of the protocol"),
    ] {
        let (head, answer) = served.exchange("POST", "/mcp", &headers, body);
        assert!(head.starts_with("http/1.1 400 ") && head.contains("content-type: application/json"), "{body}: {head}");
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert_eq!((&answer["jsonrpc"], &answer["error"]["code"], &answer["id"]), (&json!("2.0"), &json!(code), &id), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().starts_with(words), "{answer}");
    }
    // Another media type is still what is wrong.
    let text = [("Content-Type", "text/plain"), headers[1], headers[2]];
    assert_eq!(served.send("POST", "/mcp", &text, "{").0, 415);
}

/// `/mcp` ignored them, so a call replaced what its client had not seen.
#[test]
fn call_under_a_condition_is_refused_and_a_key_is_ignored() {
    let home = Home::new();
    let served = Served::start(&home, &[]);
    let write =
        |name: &str, value: &str| served.call("/mcp", &[(name, value)], "write_file", json!({"path": "/memories/a.md", "content": name}));
    for (name, value) in [("If-None-Match", "*"), ("If-Match", "\"1\""), ("If-Unmodified-Since", "Thu, 01 Jan 2026 00:00:00 GMT")] {
        let (status, answer) = write(name, value);
        assert_eq!((status, &answer["code"]), (400, &json!("invalid_argument")), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("is not supported here, so nothing was done"), "{answer}");
    }
    assert_eq!(served.send("GET", "/v1/fs/memories/a.md", &[], "").0, 404);
    assert_eq!(write("Idempotency-Key", "k1").0, 200);
    assert_eq!(served.send("GET", "/v1/fs/memories/a.md", &[], ""), (200, "Idempotency-Key".to_owned()));
}

#[test]
fn oversized_request_is_refused() {
    let home = Home::new();
    let served = Served::start(&home, &[]);
    let content = "x".repeat(17 << 20);
    assert_eq!(served.call("/mcp", &[], "write_file", json!({"path": "/a", "content": content})).0, 413);
    assert_eq!(served.call("/mcp", &[], "ls", json!({})).0, 200);
}

#[test]
fn clients_with_separate_threads_share_only_memories() {
    const CLIENTS: usize = 32;
    let home = Home::new();
    let served = Served::start(&home, &[]);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let served = &served;
            scope.spawn(move || {
                let path = format!("/mcp/t/client-{client}");
                for step in 0..5 {
                    served.text(&path, "write_file", json!({"path": "/own.md", "content": format!("{client} {step}")}));
                    let line = json!({"path": "/memories/log.md", "content": format!("{client} {step}\n"), "mode": "append"});
                    served.text(&path, "write_file", line);
                    assert_eq!(served.text(&path, "read_file", json!({"path": "/own.md"})), format!("{client} {step}"));
                }
            });
        }
    });
    let log = served.text("/mcp", "read_file", json!({"path": "/memories/log.md"}));
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 5 * CLIENTS);
    assert!(served.text("/mcp", "ls", json!({})).lines().all(|line| !line.starts_with("own.md")));
}

#[test]
fn http_and_stdio_serve_one_tree() {
    let home = Home::new();
    let served = Served::start(&home, &[]);
    let mut client = Client::start(&home, Era::Legacy, &["mcp"]);
    client.text("write_file", json!({"path": "/a.md", "content": "over stdio"}));
    assert_eq!(served.text("/mcp", "read_file", json!({"path": "/a.md"})), "over stdio");
    served.stop();
}

#[test]
fn page_of_an_allowed_origin_may_use_mcp() {
    let home = Home::new();
    let token = home.put("token", "0123456789abcdef\n");
    let served = Served::start(&home, &["--allow-origin", "https://app.example.com", "--token-file", token.to_str().unwrap()]);
    let asked = "authorization,content-type,mcp-method,mcp-param-x,mcp-protocol-version,mcp-session-id";
    let preflight = |origin: &str| {
        let headers = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", asked),
            ("Access-Control-Request-Private-Network", "true"),
        ];
        served.exchange("OPTIONS", "/mcp/t/x", &headers, "").0
    };
    let head = preflight("https://app.example.com");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    for line in [
        "access-control-allow-origin: https://app.example.com",
        &format!("access-control-allow-headers: {asked}"),
        "access-control-allow-private-network: true",
        "access-control-max-age: 600",
    ] {
        assert!(head.lines().any(|other| other == line), "{line}: {head}");
    }
    assert!(head.contains("access-control-allow-methods: ") && head.contains("delete") && head.contains("vary: origin"), "{head}");
    for origin in ["https://evil.example", "https://app.example.com:444", "http://app.example.com", "null"] {
        assert!(!preflight(origin).contains("access-control-allow-origin"), "{origin}");
    }
    // The browser lets the page read whatever the response allows, including a refusal.
    let own = [("Origin", "https://app.example.com"), ("Authorization", "Bearer 0123456789abcdef"), ("Content-Type", "application/json")];
    let accept = ("Accept", "application/json, text/event-stream");
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}});
    let mut headers = own.to_vec();
    headers.push(accept);
    for (headers, status) in [(&headers[..], "200"), (&headers[..1], "401")] {
        let (head, _) = served.exchange("POST", "/mcp", headers, &initialize.to_string());
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{head}");
        assert!(head.contains("access-control-allow-origin: https://app.example.com"), "{head}");
        let exposed = head.lines().find(|line| line.starts_with("access-control-expose-headers: ")).unwrap();
        assert!(exposed.contains("mcp-session-id") && exposed.contains("mcp-protocol-version"), "{exposed}");
    }
}

#[test]
fn host_name_is_resolved_to_listen_on() {
    let home = Home::new();
    let served = Served::start_at(&home, "localhost:0", &[]);
    assert!(served.address.starts_with("127.0.0.1:") || served.address.starts_with("[::1]:"), "{}", served.address);
    served.text("/mcp", "ls", json!({}));
}

#[test]
fn invalid_options_are_refused_with_a_suggestion() {
    let home = Home::new();
    let serve = |more: &[&'static str]| [&["serve", "--listen", "127.0.0.1:0"], more].concat();
    for (args, says) in [
        (serve(&["--allow-origin", "nonsense"]), "`nonsense` is not an origin; give only a scheme and a host"),
        (serve(&["--allow-origin", "https://app.example.com/path"]), "is not an origin"),
        (serve(&["--allow-host", "https://files.example.com"]), "is not a host; give a name or an address"),
        (serve(&["--allow", "/memories"]), "add `--tools reference`"),
        (serve(&["--tools", "reference", "--allow", "/memories/nope"]), "create it first (`treehold mkdir /memories/nope`)"),
        (vec!["serve", "--listen", "localhost"], "such as `127.0.0.1:7777` or `localhost:7777`"),
        (vec!["serve", "--listen", "no-such-name.invalid:80"], "`no-such-name.invalid:80` is not an address to listen on"),
        (vec!["mcp", "--allow", "/memories"], "add `--tools reference`"),
        (vec!["mcp", "--tools", "reference", "--allow", "memories"], "a path of the tree starts with `/`"),
        (vec!["mcp", "--tools", "reference", "--allow", "/nope"], "create it first (`treehold mkdir /nope`)"),
    ] {
        let said = home.command(&args).assert().code(2).get_output().stderr.clone();
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains(says), "{args:?}: {said}");
    }
}
