//! The MCP server as clients run it: a real process with one message per line, for both forms of the protocol.

mod consent;
mod http;
mod memo;
mod profiles;
mod reference;
mod resources;
#[cfg(feature = "serve")]
mod rules;
mod subscriptions;
mod threads;
mod tools;

use crate::cli::{Home, binary};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long to wait for a line until the server counts as hung.
const HUNG: Duration = Duration::from_secs(60);

/// The form of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// With an `initialize` handshake, up to revision 2025-11-25.
    Legacy,
    /// With self-contained requests, from revision 2026-07-28 on.
    Modern,
}

const ERAS: [Era; 2] = [Era::Legacy, Era::Modern];

/// A client with a server that it started.
pub(crate) struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    era: Era,
    capabilities: Value,
    requests: u64,
    /// Messages received that were not responses.
    heard: Vec<Value>,
}

impl Client {
    pub(crate) fn start(home: &Home, era: Era, args: &[&str]) -> Self {
        Self::start_with(home, era, args, json!({}))
    }

    /// Starts a server for a client with some capabilities.
    fn start_with(home: &Home, era: Era, args: &[&str], capabilities: Value) -> Self {
        let mut command = Command::new(binary());
        command.args(args).current_dir(home.work()).env("TREEHOLD_DATA", home.data()).env("HOME", home.data());
        for name in ["CONFIG", "USER", "TENANT", "AGENT", "SESSION"] {
            command.env_remove(format!("TREEHOLD_{name}"));
        }
        // The default thread of commands, so that they see what the server does.
        command.env("TREEHOLD_THREAD", "default");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        let mut client = Self { child, stdin, lines, era, capabilities, requests: 0, heard: Vec::new() };
        if era == Era::Legacy {
            client.initialize();
        }
        client
    }

    fn initialize(&mut self) {
        let client = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": self.capabilities, "clientInfo": client});
        self.result("initialize", params);
        self.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    fn send(&mut self, message: Value) {
        self.send_line(&message.to_string());
    }

    fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// Sends a request and returns its id.
    fn ask(&mut self, method: &str, mut params: Value) -> u64 {
        self.requests += 1;
        if self.era == Era::Modern {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        self.send(json!({"jsonrpc": "2.0", "id": self.requests, "method": method, "params": params}));
        self.requests
    }

    /// Returns the next message of the server.
    fn next(&mut self) -> Value {
        self.lines.recv_timeout(HUNG).expect("the server sends a message")
    }

    /// Returns the response to a request. Earlier messages are kept in `heard`.
    fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.next();
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.heard.push(message);
        }
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params);
        self.answer(id)
    }

    /// Sends a request that must succeed.
    pub(crate) fn result(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.request(method, params);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }

    /// Sends a request that must fail with a protocol error, and returns the error.
    fn error(&mut self, method: &str, params: Value) -> Value {
        let mut answer = self.request(method, params);
        assert!(answer.get("result").is_none(), "{method}: {answer}");
        answer["error"].take()
    }

    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Calls a tool that must succeed, and returns its text.
    fn text(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments);
        assert_ne!(result["isError"], true, "{tool}: {result}");
        text(&result)
    }

    /// Calls a tool that must fail, and returns its text.
    fn failure(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool}: {result}");
        text(&result)
    }

    /// Closes the connection as a client does, and waits for the server to exit.
    pub(crate) fn close(mut self) {
        self.stdin = None;
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

/// Returns the text of a result that consists of one text only.
fn text(result: &Value) -> String {
    assert!(result.get("structuredContent").is_none(), "{result}");
    assert_eq!(result["content"].as_array().unwrap().len(), 1, "{result}");
    assert_eq!(result["content"][0]["type"], "text");
    result["content"][0]["text"].as_str().unwrap().to_owned()
}
