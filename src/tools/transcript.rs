//! Recorded tool calls: an agent's transcript, read as the calls it made, in order.
//!
//! A transcript is JSON Lines, or one JSON document. Three shapes of a call are understood, alone on a line or anywhere inside
//! recorded messages:
//!
//! ```text
//! {"tool": "read_file", "args": {"path": "/a.md"}}                                            ours; also "id"
//! {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "/a.md"}}      Anthropic
//! {"function": {"name": "read_file", "arguments": "{\"path\": \"/a.md\"}"}}                   OpenAI, in "tool_calls"
//! {"type": "function_call", "name": "read_file", "arguments": "{\"path\": \"/a.md\"}"}        OpenAI, Responses
//! ```
//!
//! A line `{"thread": "t2"}` (also `tenant`, `user`, `agent`) says who makes the calls from here on; the same fields beside `tool`
//! say so from that call on. What holds no call (what the user said, results of tools) is passed over. A line that is not JSON
//! is an event too, [`TranscriptEvent::Invalid`], and the reader goes on with the next.

use super::{ToolCall, tools};
use crate::error::{Error, ErrorKind, Result};
use crate::scope::Scope;
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::io::{BufRead, Read};

/// The longest line in bytes, and the longest document.
pub const TRANSCRIPT_LINE_BYTES_MAX: usize = 16 << 20;

/// One step of a transcript.
#[derive(Debug)]
#[non_exhaustive]
pub enum TranscriptEvent {
    /// A tool was called.
    Call {
        /// The line, from 1, it stands on; of a document, the line that starts it.
        line: usize,
        /// The id the recording gave it.
        id: Option<String>,
        /// The name of the tool as recorded.
        name: String,
        /// The call; or what the agent is told of a tool or arguments that are wrong.
        call: Result<ToolCall>,
    },
    /// The calls that follow are made by someone else, or in another thread.
    Thread {
        /// The line, from 1, that says so.
        line: usize,
        /// All fields set so far. A field that the transcript never set is the player's to choose.
        scope: Scope,
    },
    /// A line cannot be read.
    Invalid {
        /// The line, from 1.
        line: usize,
        /// Why.
        error: Error,
    },
}

/// Reads a transcript event by event, holding one line (or one document) at a time.
///
/// ```
/// use stratafs::tools::{Transcript, TranscriptEvent};
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
    queue: VecDeque<TranscriptEvent>,
    started: bool,
}

impl<R: BufRead> Transcript<R> {
    /// Starts to read.
    pub fn new(reader: R) -> Self {
        Self {
            lines: Lines { reader, number: 0, buffered: VecDeque::new(), ended: false },
            scope: Scope::new(),
            queue: VecDeque::new(),
            started: false,
        }
    }

    fn read_line(&mut self, line: usize, bytes: &[u8]) {
        let first = !std::mem::replace(&mut self.started, true);
        match serde_json::from_slice::<Value>(bytes) {
            Ok(value) => self.walk(&value, line),
            Err(error) if error.is_eof() && first => self.read_document(line, bytes),
            Err(error) => self.push_invalid(line, not_json(&error)),
        }
    }

    /// Reads a value that starts on the first line and does not end there. When it never ends, that line is a broken line of
    /// its own, and what follows is read line by line.
    fn read_document(&mut self, line: usize, start: &[u8]) {
        let mut rest = Vec::new();
        match self.lines.read_rest(&mut rest) {
            Ok(()) => {}
            Err(error) => return self.push_invalid(line, error),
        }
        let mut document = start.to_vec();
        document.extend_from_slice(&rest);
        match serde_json::from_slice::<Value>(&document) {
            Ok(value) => self.walk(&value, line),
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
        self.queue.push_back(TranscriptEvent::Call { line, id, name: name.to_owned(), call });
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
        if let Some(name) = text("tool") {
            self.set_scope(object, line);
            let call = decode(name, object.get("args"));
            return self.push_call(line, object.get("id"), name, call);
        }
        match (text("type"), text("name")) {
            (Some("tool_use" | "mcp_tool_use"), Some(name)) => {
                let call = decode(name, object.get("input"));
                return self.push_call(line, object.get("id"), name, call);
            }
            (Some("function_call"), Some(name)) => {
                let call = decode(name, object.get("arguments"));
                return self.push_call(line, object.get("call_id"), name, call);
            }
            (Some("custom_tool_call"), Some(name)) => {
                let call = decode_text(name, object.get("input"));
                return self.push_call(line, object.get("call_id"), name, call);
            }
            (Some("tool_result" | "function_call_output" | "custom_tool_call_output"), _) => return,
            _ => {}
        }
        if let Some((name, arguments)) = object.get("function").and_then(function) {
            return self.push_call(line, object.get("id"), name, decode(name, arguments));
        }
        if text("role") == Some("tool") {
            return;
        }
        for name in ["messages", "message", "choices", "input", "output", "content", "tool_calls"] {
            if let Some(inner @ (Value::Array(_) | Value::Object(_))) = object.get(name) {
                self.walk(inner, line);
            }
        }
        // Only a line that says nothing else: `{"user": "...", "text": "..."}` is a message of some other recording.
        if object.keys().all(|name| matches!(name.as_str(), "tenant" | "user" | "agent" | "thread")) {
            self.set_scope(object, line);
        }
    }

    fn set_scope(&mut self, object: &Map<String, Value>, line: usize) {
        let mut scope = self.scope.clone();
        for (name, field) in
            [("tenant", &mut scope.tenant), ("user", &mut scope.user), ("agent", &mut scope.agent), ("thread", &mut scope.thread)]
        {
            if let Some(id) = object.get(name).and_then(Value::as_str) {
                *field = Some(id.to_owned());
            }
        }
        if scope == self.scope {
            return;
        }
        match scope.validate() {
            Ok(()) => {
                self.scope = scope.clone();
                self.queue.push_back(TranscriptEvent::Thread { line, scope });
            }
            Err(error) => self.push_invalid(line, error),
        }
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

/// Returns the name and arguments of OpenAI's `function`.
fn function(value: &Value) -> Option<(&str, Option<&Value>)> {
    let object = value.as_object()?;
    // Without arguments it is a definition of a tool, not a call.
    let arguments = object.get("arguments")?;
    Some((object.get("name")?.as_str()?, Some(arguments)))
}

fn decode(name: &str, arguments: Option<&Value>) -> Result<ToolCall> {
    ToolCall::from_json(plain_name(name), arguments.cloned().unwrap_or_default())
}

/// Reads a call whose input is free text: the one argument that such a tool has.
fn decode_text(name: &str, input: Option<&Value>) -> Result<ToolCall> {
    let input = input.and_then(Value::as_str).unwrap_or_default();
    match plain_name(name) {
        "apply_patch" => Ok(super::ApplyPatch::new(input).into()),
        name => ToolCall::from_json(name, Value::from(input)),
    }
}

/// Returns the name that the server gave a tool which a client lists as `mcp__server__name`.
fn plain_name(name: &str) -> &str {
    name.strip_prefix("mcp__")
        .and_then(|rest| rest.rsplit_once("__"))
        .map(|(_, plain)| plain)
        .filter(|plain| tools().iter().any(|info| info.name == *plain))
        .unwrap_or(name)
}

/// Tells whether the first line that is not blank is a JSON value by itself.
fn starts_with_value(bytes: &[u8]) -> bool {
    bytes
        .split(|byte| *byte == b'\n')
        .find(|line| !line.trim_ascii().is_empty())
        .is_some_and(|line| serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok())
}

fn not_json(error: &serde_json::Error) -> Error {
    Error::invalid_argument(format!("not JSON: {error}"))
}

/// Lines of bounded length.
#[derive(Debug)]
struct Lines<R> {
    reader: R,
    number: usize,
    /// Lines that were read ahead.
    buffered: VecDeque<Vec<u8>>,
    ended: bool,
}

impl<R: BufRead> Lines<R> {
    /// Returns the next line and its number; none at the end. After a failure to read there is nothing more.
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

    /// Reads all that is left.
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
    fn reads_our_own_lines_and_who_calls() {
        let text = r#"
            {"thread": "t1", "user": "ada"}
            {"tool": "ls"}
            {"tool": "read_file", "args": {"path": "/a"}, "id": "7"}
            {"tool": "read_file", "args": {"path": "/b"}, "thread": "t2"}
            {"tool": "read_file", "args": {"path": "/c"}, "thread": "t2"}
            {"note": "passed over"}
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
    fn reads_anthropic_blocks_alone_in_messages_and_in_a_document() {
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
    fn reads_openai_calls_of_both_apis() {
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
        // A definition of a tool is no call.
        assert_eq!(played(r#"{"tools": [{"type": "function", "function": {"name": "ls", "parameters": {}}}]}"#), [""; 0]);
    }

    #[test]
    fn a_wrong_call_is_an_event_of_its_own() {
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
    fn a_malformed_line_is_named_and_the_rest_is_read() {
        let good = r#"{"tool": "ls"}"#;
        assert_eq!(
            played(&format!("{good}\nnonsense\n{good}\n{{\"tool\": \n{good}")),
            ["1 - ls /", "2 invalid: invalid_argument", "3 - ls /", "4 invalid: invalid_argument", "5 - ls /"]
        );
        // A first line that is cut off is not taken for the start of a document.
        assert_eq!(played(&format!("{{\"tool\": \n{good}\n\n{good}")), ["1 invalid: invalid_argument", "2 - ls /", "4 - ls /"]);
        // A document that is broken names the line within.
        assert_eq!(played("{\n  \"messages\": [\n    oops\n  ]\n}\n"), ["3 invalid: invalid_argument"]);
        assert_eq!(played("{\"thread\": \"\"}"), ["1 invalid: invalid_argument"]);
        assert_eq!(played(""), [""; 0]);
    }

    #[test]
    fn a_line_without_end_is_refused_and_passed_over() {
        let long = "x".repeat(TRANSCRIPT_LINE_BYTES_MAX + 10);
        assert_eq!(played(&format!("{long}\n{{\"tool\": \"ls\"}}\n")), ["1 invalid: too_large", "2 - ls /"]);
    }

    #[test]
    fn a_reader_that_fails_ends_the_transcript() {
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
    fn names_of_mcp_clients_are_understood() {
        assert_eq!(plain_name("mcp__strata__read_file"), "read_file");
        assert_eq!(plain_name("mcp__github__search"), "mcp__github__search");
        assert_eq!(plain_name("ls"), "ls");
    }

    proptest! {
        #[test]
        fn whatever_was_recorded_is_read_to_its_end(lines in proptest::collection::vec(prop_oneof![
            Just(r#"{"tool": "ls"}"#.to_owned()), Just("{".to_owned()), Just("[".to_owned()), Just(String::new()),
            Just(r#"{"messages": [{"content": [{"type": "tool_use", "name": "ls", "input": 1}]}]}"#.to_owned()), ".{0,20}",
        ], 0..8)) {
            let text = lines.join("\n");
            let good = lines.iter().filter(|line| *line == r#"{"tool": "ls"}"#).count();
            let events: Vec<TranscriptEvent> = Transcript::new(text.as_bytes()).collect();
            let calls = events.iter().filter(|event| matches!(event, TranscriptEvent::Call { call: Ok(_), .. })).count();
            // A document may hold lines that would be calls by themselves.
            prop_assert!(calls <= good);
            if lines.first().is_none_or(|first| serde_json::from_str::<Value>(first).is_ok()) {
                prop_assert_eq!(calls, good);
            }
        }
    }
}
