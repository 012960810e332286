//! The message that replaces others, and the text of messages for a model that summarises them.

use crate::state::{Block, Message, MessageFields, Role, render_message_time};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use treehold_core::error::Result;
use uuid::Builder;

/// The name of a message with a summary. AgentScope recognises its own by it.
pub const SUMMARY_NAME: &str = "__compaction_summary__";

/// How many characters of a tool's result a [`prompt_text`] holds.
const RESULT_CHARS: usize = 500;

/// Returns whether a message is the summary of a compaction.
pub fn is_summary(message: &Message) -> bool {
    message.name() == Some(SUMMARY_NAME)
}

/// Makes the message with a summary. The same text gives the same id.
pub(crate) fn summary_message(summary: &str, kept_at: Option<&str>, now: Timestamp) -> Result<Message> {
    let place = kept_at.map_or_else(String::new, |place| format!(" Their full text is kept in `{place}`."));
    let text = format!("Earlier messages of this conversation were replaced by a summary.{place}\n\n<summary>\n{summary}\n</summary>");
    let mut digest = [0; 16];
    digest.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..16]);
    Message::from_fields(&MessageFields {
        id: Some(format!("{SUMMARY_NAME}:{}", Builder::from_custom_bytes(digest).into_uuid())),
        name: Some(SUMMARY_NAME.to_owned()),
        role: Some(Role::User),
        content: vec![Block::text(text)],
        timestamp: Some(render_message_time(now, &TimeZone::UTC)),
        ..MessageFields::default()
    })
}

/// Writes messages as a text for a model that summarises them: one paragraph for each message, with the names of called tools and the
/// start of their results. Messages of the host, and blocks without text, are left out.
pub fn prompt_text(messages: &[Message]) -> String {
    let mut paragraphs = Vec::new();
    for message in messages {
        let author = match message.role() {
            Some(Role::User) | None => "User",
            Some(Role::Assistant) => "Assistant",
            Some(Role::Tool) => "Tool",
            Some(Role::System) => continue,
        };
        let parts: Vec<String> = message.content().iter().filter_map(line).collect();
        if !parts.is_empty() {
            paragraphs.push(format!("{author}: {}", parts.join("\n")));
        }
    }
    paragraphs.join("\n\n")
}

fn line(block: &Block) -> Option<String> {
    let named = |name: &Option<String>| name.as_deref().unwrap_or("?").to_owned();
    match block {
        Block::Text(block) => Some(block.text.trim().to_owned()).filter(|text| !text.is_empty()),
        Block::ToolUse(call) => Some(format!("[call of {}]", named(&call.name))),
        Block::ToolResult(result) => {
            let text = result.output_text();
            let start = match text.char_indices().nth(RESULT_CHARS) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            };
            Some(format!("[result of {}, {}] {start}", named(&result.name), result.state).trim_end().to_owned())
        }
        _ => None,
    }
}
