//! Parsing of recorded transcripts into the tool calls they contain, in order.
//!
//! A transcript is JSON Lines or a single JSON document. These shapes of a call are recognized, alone on a line or
//! anywhere inside recorded messages:
//!
//! ```text
//! {"tool": "read_file", "args": {"path": "/a.md"}}                                            ours; also "id"
//! {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "/a.md"}}      Anthropic
//! {"function": {"name": "read_file", "arguments": "{\"path\": \"/a.md\"}"}}                   OpenAI, in "tool_calls"
//! {"type": "function_call", "name": "read_file", "arguments": "{\"path\": \"/a.md\"}"}        OpenAI, Responses
//! ```
//!
//! A line `{"thread": "t2"}` (also `tenant`, `user`, `agent`) sets the caller for the calls that follow; the same
//! fields beside `tool` do so from that call on. Recorded messages without calls, such as user messages and tool
//! results, are skipped. Any other line, including one that is not JSON or has unknown fields beside `tool`, becomes
//! [`TranscriptEvent::Invalid`] and reading continues, so no intended call is lost silently. Calls after a line that
//! fails to set the caller are refused until another line sets it.

use super::{ToolCall, ToolRegistry, ToolSet};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::io::{BufRead, Read};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;

/// The longest line, and the longest document, in bytes.
pub const TRANSCRIPT_LINE_BYTES_MAX: usize = 16 << 20;

/// One step of a transcript.
#[derive(Debug)]
#[non_exhaustive]
pub enum TranscriptEvent {
    /// A tool call.
    Call {
        /// The line of the call, from 1; in a document, the line where the document starts.
        line: usize,
        /// The recorded id of the call.
        id: Option<String>,
        /// The recorded name of the tool.
        name: String,
        /// The parsed call, or the error that the agent gets for a wrong tool or argument.
        call: Result<ToolCall>,
    },
    /// A new caller or thread for the calls that follow.
    Thread {
        /// The line, from 1.
        line: usize,
        /// All fields set so far. The player chooses fields that the transcript never set.
        scope: Scope,
    },
    /// An invalid line.
    Invalid {
        /// The line, from 1.
        line: usize,
        /// The reason.
        error: Error,
    },
}

/// An iterator over the events of a transcript. It holds one line, or one document, in memory at a time.
///
/// ```
/// use treehold_agent::tools::{Transcript, TranscriptEvent};
///
/// let recorded = concat!(
///     r#"{"role": "user", "content": "What is in the notes?"}"#, "\n",
///     r#"{"tool": "read_file", "args": {"path": "/notes.md"}}"#, "\n",
/// );
/// let events: Vec<TranscriptEvent> = Transcript::new(recorded.as_bytes()).collect();
/// assert!(matches!(&events[..], [TranscriptEvent::Call { line: 2, call: Ok(_), .. }]));
/// ```
#[derive(Debug)]
pub struct Transcript<R> {
    lines: Lines<R>,
    scope: Scope,
    tools: Option<ToolSet>,
    registry: ToolRegistry,
    queue: VecDeque<TranscriptEvent>,
    started: bool,
    /// The line that failed to set the caller, until another line sets it.
    unknown_since: Option<usize>,
}

impl<R: BufRead> Transcript<R> {
    /// Starts reading.
    pub fn new(reader: R) -> Self {
        Self {
            lines: Lines { reader, number: 0, buffered: VecDeque::new(), ended: false },
            scope: Scope::new(),
            tools: None,
            registry: ToolRegistry::new(),
            queue: VecDeque::new(),
            started: false,
            unknown_since: None,
        }
    }

    /// Parses all calls as those of one set of tools, instead of by [`ToolCall::from_json`].
    #[must_use]
    pub fn with_tools(mut self, tools: ToolSet) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Parses calls of tools that a program added, too.
    #[must_use]
    pub fn with_registry(mut self, registry: ToolRegistry) -> Self {
        self.registry = registry;
        self
    }

    fn decode(&self, name: &str, arguments: Value) -> Result<ToolCall> {
        let name = self.plain_name(name);
        match self.tools {
            Some(tools) => self.registry.decode(tools, name, arguments),
            None => self.registry.from_json(name, arguments),
        }
    }

    /// Returns the tool's own name from the form `mcp__server__name` that MCP clients use.
    fn plain_name<'n>(&self, name: &'n str) -> &'n str {
        let plain = name.strip_prefix("mcp__").and_then(|rest| rest.rsplit_once("__")).map(|(_, plain)| plain);
        plain.filter(|plain| self.registry.knows(plain)).unwrap_or(name)
    }

    /// Parses a call whose input is plain text, the value of the tool's only argument.
    fn decode_text(&self, name: &str, input: Option<&Value>) -> Result<ToolCall> {
        let input = input.and_then(Value::as_str).unwrap_or_default();
        match self.plain_name(name) {
            "apply_patch" => Ok(super::ApplyPatch::new(input).into()),
            name => self.decode(name, Value::from(input)),
        }
    }

    fn read_line(&mut self, line: usize, bytes: &[u8]) {
        let first = !std::mem::replace(&mut self.started, true);
        match serde_json::from_slice::<Value>(bytes) {
            Ok(value) => self.walk_line(&value, line),
            Err(error) if error.is_eof() && first => self.read_document(line, bytes),
            Err(error) => self.push_invalid(line, not_json(&error)),
        }
    }

    /// Reads a value that starts on the first line and continues beyond it. If it never ends, the first line is invalid
    /// by itself and the rest is read line by line.
    fn read_document(&mut self, line: usize, start: &[u8]) {
        let mut rest = Vec::new();
        match self.lines.read_rest(&mut rest) {
            Ok(()) => {}
            Err(error) => return self.push_invalid(line, error),
        }
        let mut document = start.to_vec();
        document.extend_from_slice(&rest);
        match serde_json::from_slice::<Value>(&document) {
            Ok(value) => self.walk_line(&value, line),
            Err(error) if starts_with_value(&rest) => {
                self.push_invalid(line, not_json(&error));
                self.lines.give_back(&rest);
            }
            Err(error) => self.push_invalid(line + error.line().saturating_sub(1), not_json(&error)),
        }
    }

    fn push_invalid(&mut self, line: usize, error: Error) {
        self.queue.push_back(TranscriptEvent::Invalid { line, error });
    }

    fn push_call(&mut self, line: usize, id: Option<&Value>, name: &str, call: Result<ToolCall>) {
        let id = id.and_then(Value::as_str).map(ToOwned::to_owned);
        let call = match self.unknown_since {
            Some(since) => {
                Err(Error::invalid_argument(format!("the call is refused because line {since} fails to set the caller; correct that line")))
            }
            None => call,
        };
        self.queue.push_back(TranscriptEvent::Call { line, id, name: name.to_owned(), call });
    }

    /// Finds the calls in a line, which must be of a known kind.
    fn walk_line(&mut self, value: &Value, line: usize) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.walk_line(item, line)),
            Value::Object(object) if object.contains_key("tool") || object.keys().any(|name| RECORDED.contains(&name.as_str())) => {
                self.walk_object(object, line);
            }
            Value::Object(object) if !object.is_empty() && object.keys().all(|name| SCOPE.contains(&name.as_str())) => {
                self.set_scope(object, line);
            }
            Value::Object(object) => {
                let keys = object.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
                let held = if keys.is_empty() { "nothing".to_owned() } else { keys };
                self.push_invalid(
                    line,
                    Error::invalid_argument(format!("neither a call nor a recorded message; it has {held}; give a `tool` or a `thread`")),
                );
            }
            other => {
                let shown: String = other.to_string().chars().take(40).collect();
                self.push_invalid(line, Error::invalid_argument(format!("`{shown}` is not a call; write an object with a `tool`")));
            }
        }
    }

    /// Finds the calls in a value, in order.
    fn walk(&mut self, value: &Value, line: usize) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.walk(item, line)),
            Value::Object(object) => self.walk_object(object, line),
            _ => {}
        }
    }

    fn walk_object(&mut self, object: &Map<String, Value>, line: usize) {
        let text = |name: &str| object.get(name).and_then(Value::as_str);
        if let Some(tool) = object.get("tool") {
            match own_call(object, tool) {
                Ok(name) => {
                    if self.set_scope(object, line) {
                        let call = self.decode(name, object.get("args").cloned().unwrap_or_default());
                        self.push_call(line, object.get("id"), name, call);
                    }
                    return;
                }
                // In other recordings `tool` may mean something else.
                Err(_) if !tool.is_string() && object.keys().any(|name| RECORDED.contains(&name.as_str())) => {}
                Err(error) => return self.push_invalid(line, error),
            }
        }
        match (text("type"), text("name")) {
            (Some("tool_use" | "mcp_tool_use"), Some(name)) => {
                let call = self.decode(name, object.get("input").cloned().unwrap_or_default());
                return self.push_call(line, object.get("id"), name, call);
            }
            (Some("function_call"), Some(name)) => {
                let call = self.decode(name, object.get("arguments").cloned().unwrap_or_default());
                return self.push_call(line, object.get("call_id"), name, call);
            }
            (Some("custom_tool_call"), Some(name)) => {
                let call = self.decode_text(name, object.get("input"));
                return self.push_call(line, object.get("call_id"), name, call);
            }
            (Some(kind @ ("tool_use" | "mcp_tool_use" | "function_call" | "custom_tool_call")), None) => {
                return self.push_invalid(line, Error::invalid_argument(format!("a `{kind}` names no tool; give its `name` as a text")));
            }
            (Some("tool_result" | "function_call_output" | "custom_tool_call_output"), _) => return,
            _ => {}
        }
        if let Some((name, arguments)) = object.get("function").and_then(function) {
            let call = self.decode(name, arguments.cloned().unwrap_or_default());
            return self.push_call(line, object.get("id"), name, call);
        }
        if text("role") == Some("tool") {
            return;
        }
        for name in ["messages", "message", "choices", "input", "output", "content", "tool_calls"] {
            if let Some(inner @ (Value::Array(_) | Value::Object(_))) = object.get(name) {
                self.walk(inner, line);
            }
        }
    }

    /// Applies the caller fields of an object. Returns whether they are valid.
    fn set_scope(&mut self, object: &Map<String, Value>, line: usize) -> bool {
        let mut scope = self.scope.clone();
        let mut said = false;
        for (name, field) in
            [("tenant", &mut scope.tenant), ("user", &mut scope.user), ("agent", &mut scope.agent), ("thread", &mut scope.thread)]
        {
            match object.get(name) {
                None => {}
                Some(Value::String(id)) => {
                    *field = Some(id.clone());
                    said = true;
                }
                Some(other) => {
                    self.unknown_since = Some(line);
                    let kind = kind_of(other);
                    self.push_invalid(line, Error::invalid_argument(format!("`{name}` is {kind}; give a text")));
                    return false;
                }
            }
        }
        if !said {
            return true;
        }
        if let Err(error) = scope.validate() {
            self.unknown_since = Some(line);
            self.push_invalid(line, error);
            return false;
        }
        self.unknown_since = None;
        if scope != self.scope {
            self.scope = scope.clone();
            self.queue.push_back(TranscriptEvent::Thread { line, scope });
        }
        true
    }
}

impl<R: BufRead> Iterator for Transcript<R> {
    type Item = TranscriptEvent;

    fn next(&mut self) -> Option<TranscriptEvent> {
        while self.queue.is_empty() {
            let (line, read) = self.lines.next()?;
            match read {
                Ok(bytes) if bytes.trim_ascii().is_empty() => {}
                Ok(bytes) => self.read_line(line, &bytes),
                Err(error) => self.push_invalid(line, error),
            }
        }
        self.queue.pop_front()
    }
}

/// The fields that set the caller.
const SCOPE: [&str; 4] = ["tenant", "user", "agent", "thread"];

/// The fields of recorded messages, their parts and their containers. An object with any of these may have others too.
const RECORDED: [&str; 11] =
    ["role", "type", "messages", "message", "choices", "input", "output", "content", "tool_calls", "tools", "function"];

/// Checks a line in our own shape, which allows no unknown fields. Returns the tool's name.
fn own_call<'v>(object: &Map<String, Value>, tool: &'v Value) -> Result<&'v str> {
    let Value::String(name) = tool else {
        return Err(Error::invalid_argument(format!("`tool` is {}; give the name of a tool as a text", kind_of(tool))));
    };
    for (key, value) in object {
        match key.as_str() {
            "tool" | "args" => {}
            "id" if value.is_string() => {}
            "id" => return Err(Error::invalid_argument(format!("`id` is {}; give a text", kind_of(value)))),
            key if SCOPE.contains(&key) => {}
            key => {
                let message = format!("unknown key `{key}` beside `tool`; use `args`, `id`, `thread`, `user`, `tenant` or `agent`");
                return Err(Error::invalid_argument(message));
            }
        }
    }
    Ok(name)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns the name and arguments of an OpenAI `function`.
fn function(value: &Value) -> Option<(&str, Option<&Value>)> {
    let object = value.as_object()?;
    // Without arguments this is the definition of a tool, not a call.
    let arguments = object.get("arguments")?;
    Some((object.get("name")?.as_str()?, Some(arguments)))
}

/// Returns whether the first nonblank line is a complete JSON value.
fn starts_with_value(bytes: &[u8]) -> bool {
    bytes
        .split(|byte| *byte == b'\n')
        .find(|line| !line.trim_ascii().is_empty())
        .is_some_and(|line| serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok())
}

fn not_json(error: &serde_json::Error) -> Error {
    Error::invalid_argument(format!("not JSON: {error}"))
}

/// Reads lines of bounded length.
#[derive(Debug)]
struct Lines<R> {
    reader: R,
    number: usize,
    /// Lines read ahead.
    buffered: VecDeque<Vec<u8>>,
    ended: bool,
}

impl<R: BufRead> Lines<R> {
    /// Returns the next line with its number; `None` at the end, and after a failed read.
    fn next(&mut self) -> Option<(usize, Result<Vec<u8>>)> {
        if self.ended && self.buffered.is_empty() {
            return None;
        }
        self.number += 1;
        if let Some(line) = self.buffered.pop_front() {
            return Some((self.number, Ok(line)));
        }
        let mut line = Vec::new();
        match self.reader.by_ref().take(TRANSCRIPT_LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line) {
            Ok(0) => {
                self.ended = true;
                None
            }
            Ok(_) if line.last() != Some(&b'\n') && line.len() > TRANSCRIPT_LINE_BYTES_MAX => {
                let skipped = self.reader.skip_until(b'\n');
                Some((self.number, self.checked(skipped).and_then(|_| Err(too_long("the line")))))
            }
            Ok(_) => Some((self.number, Ok(line))),
            Err(error) => Some((self.number, self.checked(Err(error)).map(|_| line))),
        }
    }

    /// Reads everything that is left.
    fn read_rest(&mut self, rest: &mut Vec<u8>) -> Result<()> {
        self.ended = true;
        let read = self.reader.by_ref().take(TRANSCRIPT_LINE_BYTES_MAX as u64 + 1).read_to_end(rest);
        match self.checked(read)? {
            length if length > TRANSCRIPT_LINE_BYTES_MAX => Err(too_long("the document")),
            _ => Ok(()),
        }
    }

    fn give_back(&mut self, rest: &[u8]) {
        self.buffered.extend(rest.split(|byte| *byte == b'\n').map(<[u8]>::to_vec));
    }

    fn checked(&mut self, read: std::io::Result<usize>) -> Result<usize> {
        read.map_err(|error| {
            self.ended = true;
            Error::new(ErrorKind::Unavailable, format!("the transcript cannot be read further: {error}")).with_source(error)
        })
    }
}

fn too_long(what: &str) -> Error {
    Error::new(ErrorKind::TooLarge, format!("{what} is over {TRANSCRIPT_LINE_BYTES_MAX} bytes; shorten what was recorded"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn played(text: &str) -> Vec<String> {
        Transcript::new(text.as_bytes()).map(|event| shown(&event)).collect()
    }

    fn shown(event: &TranscriptEvent) -> String {
        match event {
            TranscriptEvent::Call { line, id, name, call: Ok(call) } => {
                let id = id.as_deref().unwrap_or("-");
                format!("{line} {id} {name} {}", call.arguments()["path"].as_str().unwrap_or("-"))
            }
            TranscriptEvent::Call { line, name, call: Err(error), .. } => format!("{line} {name} wrong: {}", error.kind()),
            TranscriptEvent::Thread { line, scope } => {
                format!("{line} thread {} user {}", scope.thread.as_deref().unwrap_or("-"), scope.user.as_deref().unwrap_or("-"))
            }
            TranscriptEvent::Invalid { line, error } => format!("{line} invalid: {}", error.kind()),
        }
    }

    #[test]
    fn own_lines_yield_calls_and_callers() {
        let text = r#"
            {"thread": "t1", "user": "ada"}
            {"tool": "ls"}
            {"tool": "read_file", "args": {"path": "/a"}, "id": "7"}
            {"tool": "read_file", "args": {"path": "/b"}, "thread": "t2"}
            {"tool": "read_file", "args": {"path": "/c"}, "thread": "t2"}
            {"role": "user", "content": "passed over", "note": 7}
            {"thread": "t1"}"#;
        assert_eq!(
            played(text),
            [
                "2 thread t1 user ada",
                "3 - ls /",
                "4 7 read_file /a",
                "5 thread t2 user ada",
                "5 - read_file /b",
                "6 - read_file /c",
                "8 thread t1 user ada"
            ]
        );
    }

    #[test]
    fn anthropic_calls_are_found_alone_in_messages_and_in_documents() {
        let block = r#"{"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "/a"}}"#;
        let message = format!(r#"{{"role": "assistant", "content": [{{"type": "text", "text": "I look."}}, {block}]}}"#);
        let result =
            r#"{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "tool_use", "name": "ls", "input": {}}]}]}"#;
        let call = "toolu_1 read_file /a";
        assert_eq!(played(block), [format!("1 {call}")]);
        assert_eq!(played(&format!("{message}\n{result}\n")), [format!("1 {call}")]);
        assert_eq!(played(&format!(r#"{{"messages": [{message}, {result}, {message}]}}"#)), [format!("1 {call}"), format!("1 {call}")]);
        let pretty = serde_json::to_string_pretty(
            &serde_json::json!({"model": "m", "messages": [serde_json::from_str::<Value>(&message).expect("JSON")]}),
        );
        assert_eq!(played(&pretty.expect("JSON")), [format!("1 {call}")]);
        assert_eq!(played(&format!(r#"{{"type": "assistant", "message": {message}}}"#)), [format!("1 {call}")]);
    }

    #[test]
    fn openai_calls_of_both_apis_are_found() {
        let call = r#"{"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\": \"/a\"}"}}"#;
        let message = format!(r#"{{"role": "assistant", "content": null, "tool_calls": [{call}, {call}]}}"#);
        assert_eq!(played(call), ["1 call_1 read_file /a"]);
        assert_eq!(played(&message).len(), 2);
        assert_eq!(played(&format!(r#"{{"choices": [{{"message": {message}}}]}}"#)).len(), 2);
        assert_eq!(
            played(r#"{"role": "tool", "tool_call_id": "call_1", "content": [{"type": "tool_use", "name": "ls", "input": {}}]}"#),
            [""; 0]
        );
        let item = r#"{"type": "function_call", "call_id": "c1", "name": "read_file", "arguments": "{\"path\": \"/a\"}"}"#;
        assert_eq!(played(&format!(r#"{{"output": [{{"type": "reasoning"}}, {item}]}}"#)), ["1 c1 read_file /a"]);
        assert_eq!(
            played(r#"{"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin Patch"}"#),
            ["1 c2 apply_patch -"]
        );
        // The definition of a tool is not a call.
        assert_eq!(played(r#"{"tools": [{"type": "function", "function": {"name": "ls", "parameters": {}}}]}"#), [""; 0]);
    }

    #[test]
    fn wrong_call_is_an_event_with_an_error() {
        let text = concat!(
            r#"{"tool": "bash", "args": {"command": "ls"}}"#,
            "\n",
            r#"{"tool": "read_file", "args": {}}"#,
            "\n",
            r#"{"function": {"name": "ls", "arguments": "{oops"}}"#,
            "\n",
            r#"{"tool": "read_file", "args": {"path": "a"}}"#,
        );
        assert_eq!(
            played(text),
            [
                "1 bash wrong: invalid_argument",
                "2 read_file wrong: invalid_argument",
                "3 ls wrong: invalid_argument",
                "4 read_file wrong: invalid_path"
            ]
        );
    }

    #[test]
    fn malformed_line_is_reported_and_reading_continues() {
        let good = r#"{"tool": "ls"}"#;
        assert_eq!(
            played(&format!("{good}\nnonsense\n{good}\n{{\"tool\": \n{good}")),
            ["1 - ls /", "2 invalid: invalid_argument", "3 - ls /", "4 invalid: invalid_argument", "5 - ls /"]
        );
        // A truncated first line is not mistaken for the start of a document.
        assert_eq!(played(&format!("{{\"tool\": \n{good}\n\n{good}")), ["1 invalid: invalid_argument", "2 - ls /", "4 - ls /"]);
        // An invalid document reports the line of the fault within it.
        assert_eq!(played("{\n  \"messages\": [\n    oops\n  ]\n}\n"), ["3 invalid: invalid_argument"]);
        assert_eq!(played("{\"thread\": \"\"}"), ["1 invalid: invalid_argument"]);
        assert_eq!(played(""), [""; 0]);
    }

    #[test]
    fn unrecognized_line_is_an_invalid_event() {
        for (line, expected) in [
            (r#"{"tool": 7}"#, "`tool` is a number; give the name of a tool as a text"),
            (
                r#"{"tool": "ls", "arguments": {}}"#,
                "unknown key `arguments` beside `tool`; use `args`, `id`, `thread`, `user`, `tenant` or `agent`",
            ),
            (r#"{"tool": "ls", "thread": 2}"#, "`thread` is a number; give a text"),
            (r#"{"tool": "ls", "id": []}"#, "`id` is a list; give a text"),
            (r#"{"thread": null}"#, "`thread` is null; give a text"),
            (r#"{"tol": "ls", "args": {}}"#, "neither a call nor a recorded message; it has `args`, `tol`; give a `tool` or a `thread`"),
            ("{}", "neither a call nor a recorded message; it has nothing; give a `tool` or a `thread`"),
            (r#""ls""#, r#"`"ls"` is not a call; write an object with a `tool`"#),
            ("[1]", "`1` is not a call; write an object with a `tool`"),
            (r#"{"type": "tool_use", "input": {}}"#, "a `tool_use` names no tool; give its `name` as a text"),
        ] {
            let text = format!("\n{line}\n");
            match &Transcript::new(text.as_bytes()).collect::<Vec<_>>()[..] {
                [TranscriptEvent::Invalid { line: 2, error }] => assert_eq!(error.message(), expected, "{line}"),
                other => panic!("{line}: {other:?}"),
            }
        }
        for message in [
            r#"{"role": "user", "content": "hello", "id": 7, "tool": {"choice": "auto"}}"#,
            r#"{"type": "summary", "summary": "of it", "leafUuid": "x"}"#,
            r#"[{"role": "assistant", "content": null, "refusal": null, "annotations": []}, {"type": "reasoning", "summary": []}]"#,
            r#"{"id": "msg_1", "type": "message", "content": [{"type": "text", "text": "done"}], "usage": {"input_tokens": 1}}"#,
        ] {
            assert_eq!(played(message), [""; 0], "{message}");
        }
    }

    #[test]
    fn calls_after_an_invalid_caller_are_refused() {
        let ls = r#"{"tool": "ls"}"#;
        let text = format!("{ls}\n{{\"thread\": 5}}\n{ls}\n{{\"thread\": \"t2\"}}\n{ls}");
        assert_eq!(
            played(&text),
            ["1 - ls /", "2 invalid: invalid_argument", "3 ls wrong: invalid_argument", "4 thread t2 user -", "5 - ls /"]
        );
    }

    #[test]
    fn overlong_line_is_refused_and_skipped() {
        let long = "x".repeat(TRANSCRIPT_LINE_BYTES_MAX + 10);
        assert_eq!(played(&format!("{long}\n{{\"tool\": \"ls\"}}\n")), ["1 invalid: too_large", "2 - ls /"]);
    }

    #[test]
    fn failing_reader_ends_the_transcript() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("gone"))
            }
        }
        let events: Vec<String> = Transcript::new(std::io::BufReader::new(Broken)).map(|event| shown(&event)).collect();
        assert_eq!(events, ["1 invalid: unavailable"]);
    }

    #[test]
    fn mcp_client_names_resolve_to_tool_names() {
        let transcript = Transcript::new(&b""[..]);
        assert_eq!(transcript.plain_name("mcp__strata__read_file"), "read_file");
        assert_eq!(transcript.plain_name("mcp__github__create_issue"), "mcp__github__create_issue");
        assert_eq!(transcript.plain_name("ls"), "ls");
    }

    proptest! {
        #[test]
        fn arbitrary_transcripts_are_read_to_the_end(lines in proptest::collection::vec(prop_oneof![
            Just(r#"{"tool": "ls"}"#.to_owned()), Just("{".to_owned()), Just("[".to_owned()), Just(String::new()),
            Just(r#"{"messages": [{"content": [{"type": "tool_use", "name": "ls", "input": 1}]}]}"#.to_owned()), ".{0,20}",
        ], 0..8)) {
            let text = lines.join("\n");
            let good = lines.iter().filter(|line| *line == r#"{"tool": "ls"}"#).count();
            let events: Vec<TranscriptEvent> = Transcript::new(text.as_bytes()).collect();
            let calls = events.iter().filter(|event| matches!(event, TranscriptEvent::Call { call: Ok(_), .. })).count();
            // Lines of a document may be calls by themselves.
            prop_assert!(calls <= good);
            if lines.first().is_none_or(|first| serde_json::from_str::<Value>(first).is_ok()) {
                prop_assert_eq!(calls, good);
            }
        }
    }
}
