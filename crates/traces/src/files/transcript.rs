//! The end of the main path as text to read.

use super::render::{Rendered, time_of};
use crate::contract::MessagesPage;
use crate::layout::python;
use crate::model::{Message, Trace};
use serde_json::Value;
use std::fmt::Write;
use treehold_core::json::Json;

/// The most messages of the main path in `path.md`.
pub const PATH_MESSAGES_MAX: usize = 1_000;

/// The most bytes of messages in `path.md`. The last message may exceed it.
pub const PATH_BYTES_MAX: usize = 4 << 20;

/// Writes a page of the main path that ends at the head.
pub(super) fn of(trace: &Trace, page: &MessagesPage) -> Rendered {
    let mut sections = Vec::new();
    let mut size_bytes = 0;
    for message in page.messages.iter().rev() {
        let section = section_of(message);
        size_bytes += section.len();
        if size_bytes > PATH_BYTES_MAX && !sections.is_empty() {
            break;
        }
        sections.push(section);
    }
    let mut text = format!("# {}\n\n", first_line(trace.task.as_deref().unwrap_or("Trace")));
    let _ = writeln!(
        text,
        "Trace `{}`, {}, {}, {} messages, head {}.",
        trace.trace_id, trace.mode, trace.status, trace.total_messages, trace.head_sequence
    );
    let left_out = page.messages.len() - sections.len();
    if page.earlier.is_some() || left_out > 0 {
        let first = page.messages.get(left_out).map_or(0, |message| message.sequence);
        let _ = writeln!(
            text,
            "\nEarlier messages of the path are left out. Message {first} is the first one here; `messages/` has all of them."
        );
    }
    text.extend(sections.into_iter().rev());
    let created_at = trace.created_at.as_deref().and_then(time_of);
    let last = page.messages.last().and_then(|message| message.created_at.as_deref().and_then(time_of));
    Rendered::new(text, created_at, last.or(created_at))
}

fn section_of(message: &Message) -> String {
    let mut section = format!("\n## {} {}", message.sequence, first_line(&message.role));
    if let Some(call) = &message.tool_call_id {
        let _ = write!(section, " of `{}`", first_line(call));
    }
    if let Some(span) = &message.summarizes {
        let _ = write!(section, ", summary of {} to {}", span.from, span.to);
    }
    section.push('\n');
    if let Some(content) = &message.content {
        push_content(&mut section, content);
    }
    section
}

/// Adds the text and the tool calls of a content. A content of another shape is added as JSON.
fn push_content(section: &mut String, content: &Json) {
    let Ok(value) = content.view::<Value>() else { return };
    match &value {
        Value::Null => {}
        Value::String(text) => push_text(section, text),
        Value::Object(fields) if fields.contains_key("text") || fields.contains_key("tool_calls") => {
            if let Some(Value::String(text)) = fields.get("text") {
                push_text(section, text);
            }
            for call in fields.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
                push_call(section, call);
            }
        }
        Value::Array(blocks) if blocks.iter().all(|block| block.get("text").is_some_and(Value::is_string)) => {
            blocks.iter().filter_map(|block| block["text"].as_str()).for_each(|text| push_text(section, text));
        }
        _ => {
            let _ = write!(section, "\n```json\n{}\n```\n", python::indented(content));
        }
    }
}

fn push_text(section: &mut String, text: &str) {
    if !text.is_empty() {
        section.push('\n');
        section.push_str(text);
        if !text.ends_with('\n') {
            section.push('\n');
        }
    }
}

/// Adds a call as one line: its id, its name and its arguments.
fn push_call(section: &mut String, call: &Value) {
    let function = call.get("function").unwrap_or(call);
    let name = function.get("name").and_then(Value::as_str).unwrap_or("?");
    let id = call.get("id").and_then(Value::as_str).unwrap_or("?");
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => first_line(text).into_owned(),
        Some(arguments) => arguments.to_string(),
        None => String::new(),
    };
    let _ = writeln!(section, "\n- calls `{}` (`{}`) {arguments}", first_line(name), first_line(id));
}

/// Returns a text without line breaks, which would end a heading.
fn first_line(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], " ").into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn trace() -> Trace {
        serde_json::from_value(json!({"trace_id": "t", "task": "make\ntea", "total_messages": 3, "head_sequence": 3})).expect("valid")
    }

    fn message(value: Value) -> Message {
        // A content keeps its text, which a value does not have.
        serde_json::from_str(&value.to_string()).expect("valid")
    }

    #[test]
    fn transcript_shows_texts_calls_and_other_contents() {
        let page = MessagesPage {
            messages: vec![
                message(json!({"message_id": "1", "trace_id": "t", "role": "user", "sequence": 1, "content": "Tea, please.\n"})),
                message(json!({"message_id": "2", "trace_id": "t", "role": "assistant", "sequence": 2, "content": {
                    "text": "Boiling.", "tool_calls": [{"id": "c1", "function": {"name": "boil", "arguments": "{\"litres\": 1}"}}]
                }})),
                message(
                    json!({"message_id": "3", "trace_id": "t", "role": "tool", "sequence": 3, "tool_call_id": "c1", "content": {"ok": true}}),
                ),
            ],
            ..MessagesPage::default()
        };
        let text = String::from_utf8(of(&trace(), &page).content.to_vec()).expect("text");
        let expected = "# make tea\n\nTrace `t`, agent, running, 3 messages, head 3.\n\n## 1 user\n\nTea, please.\n\n## 2 assistant\n\nBoiling.\n\n\
            - calls `boil` (`c1`) {\"litres\": 1}\n\n## 3 tool of `c1`\n\n```json\n{\n  \"ok\": true\n}\n```\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn transcript_over_its_limit_keeps_the_last_messages_and_says_so() {
        let long = "x".repeat(PATH_BYTES_MAX * 2 / 3);
        let messages = (1..4)
            .map(|sequence| message(json!({"message_id": "m", "trace_id": "t", "role": "user", "sequence": sequence, "content": long})));
        let page = MessagesPage { messages: messages.collect(), ..MessagesPage::default() };
        let text = of(&trace(), &page).content;
        assert!(text.len() < PATH_BYTES_MAX);
        let start = String::from_utf8_lossy(&text[..300]).into_owned();
        assert!(start.contains("Message 3 is the first one here") && start.contains("## 3 user"), "{start}");
    }
}
