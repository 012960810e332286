//! Placeholders for missing messages and events, so that sequences and event ids have no gap here.

use super::MISSING;
use crate::id::TraceId;
use crate::model::{Message, TraceEvent};
use serde_json::json;
use treehold_core::error::Result;
use treehold_core::json::Json;

/// The field that marks a placeholder.
const PLACEHOLDER: &str = "treehold_placeholder";

/// Makes the placeholder for a sequence without a message.
pub(super) fn message(id: &TraceId, sequence: u64) -> Result<Message> {
    Json::of(&json!({
        "message_id": format!("{id}-{sequence:04}"),
        "trace_id": id.as_str(),
        "role": "system",
        "sequence": sequence,
        "content": text(sequence),
        "branch_type": MISSING,
        PLACEHOLDER: true,
    }))?
    .view()
}

fn text(sequence: u64) -> String {
    format!("Message {sequence} is missing: the imported directory has no readable file of it.")
}

/// Returns whether a message is still the placeholder for a missing one.
pub(super) fn is_placeholder(message: &Message) -> bool {
    message.branch_type.as_deref() == Some(MISSING)
        && message.other.get(PLACEHOLDER) == Some(&json!(true))
        && message.content.as_ref().and_then(|content| content.view::<String>().ok()) == Some(text(message.sequence))
}

/// Makes the placeholder for an id without an event.
pub(super) fn event(event_id: u64) -> Result<TraceEvent> {
    Json::of(&json!({ "event_id": event_id, "event": MISSING }))?.view()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_is_recognised_until_it_gets_another_content() {
        let id = TraceId::new("t").expect("an id");
        let mut placeholder = message(&id, 7).expect("a message");
        assert!(is_placeholder(&placeholder));
        placeholder.content = Some(Json::of("found").expect("a text"));
        assert!(!is_placeholder(&placeholder));
    }
}
