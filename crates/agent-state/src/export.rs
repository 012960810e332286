//! A whole session as one document, and a conversation as text for people.

use crate::contract::{AgentStateStore, StateForm, StateKey, StateVersion, VersionedState};
use crate::slot::StateSlot;
use crate::store_states::StoreStates;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write as _;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_core::work;

/// All values of a session.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SessionExport {
    /// The session.
    pub session: String,
    /// The user; `null` is the anonymous one.
    pub user: Option<String>,
    /// The agent.
    pub agent: String,
    /// The values, by key.
    pub entries: Vec<StateEntry>,
}

/// A value of a session.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct StateEntry {
    /// The key.
    pub key: String,
    /// The form.
    pub form: StateForm,
    /// The version; `null` in a store without versions.
    pub version: Option<u64>,
    /// The value as it was saved, or the elements of the list.
    pub value: Json,
}

/// Reads all values of a session; `None` if it has none. The values are read one after another, so a save meanwhile shows in some of them.
///
/// Cost: one listing and one read for each key.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge) if the values have over `bytes_max` bytes together, and errors of the store.
pub async fn export_session(states: &StoreStates, slot: &StateSlot, bytes_max: usize) -> Result<Option<SessionExport>> {
    let keys = states.keys_with_versions(slot).await?;
    let (mut entries, mut bytes) = (Vec::with_capacity(keys.len()), 0_usize);
    for (key, version) in keys {
        let entry = match key {
            StateKey::Single(key) => {
                let Some(VersionedState { value, version, .. }) = states.get(slot, &key).await? else { continue };
                StateEntry { key, form: StateForm::Single, version: version.map(StateVersion::number), value }
            }
            StateKey::List(key) => {
                // A list that was saved meanwhile has a later version than the one told, so a save that expects the latter is refused.
                let elements = states.get_list(slot, &key).await?;
                let size_bytes = elements.iter().map(|element| element.as_str().len() as u64).sum();
                let value = work::run(size_bytes, move |_| list_text(&elements)).await??;
                StateEntry { key, form: StateForm::List, version: Some(version.number()), value }
            }
        };
        bytes = bytes.saturating_add(entry.value.as_str().len());
        if bytes > bytes_max {
            let message = format!("the values of the {slot} have over {bytes_max} bytes together; read them one by one");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        entries.push(entry);
    }
    if entries.is_empty() {
        return Ok(None);
    }
    let (session, user) = (slot.session().to_owned(), slot.user().map(str::to_owned));
    Ok(Some(SessionExport { session, user, agent: states.agent().to_owned(), entries }))
}

/// Returns a list as one JSON array that holds the text of each element.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if the array nests deeper than [`JSON_DEPTH_MAX`](crate::JSON_DEPTH_MAX).
pub fn list_text(elements: &[Json]) -> Result<Json> {
    let size = elements.iter().map(|element| element.as_str().len() + 1).sum::<usize>() + 1;
    let mut text = String::with_capacity(size);
    text.push('[');
    for (index, element) in elements.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(element.as_str());
    }
    text.push(']');
    Json::parse(&text)
}

/// A message of a conversation, reduced to what a console lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct MessageText {
    /// The id of the message.
    pub id: Option<String>,
    /// The role, such as `USER`.
    pub role: Option<String>,
    /// The name of the author.
    pub name: Option<String>,
    /// The time as it is stored.
    pub timestamp: Option<String>,
    /// The texts of the message, one beneath another. Other content is left out.
    pub text: String,
}

/// The parts of a state that a conversation consists of. Everything else is skipped.
#[derive(Deserialize)]
struct Conversation {
    #[serde(default)]
    summary: Option<String>,
    #[serde(default)]
    context: Vec<Json>,
}

fn conversation(state: &Json) -> Result<Conversation> {
    let message = "the value is not the state of an agent: it needs a `context`, a list of messages, and a `summary`, a text";
    // A derived struct is also read from an array of its fields.
    if !state.as_str().starts_with('{') {
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    serde_json::from_str(state.as_str()).map_err(|error| Error::new(ErrorKind::Corrupt, message).with_source(error))
}

/// Returns the number of messages in a state, and the length of its summary in characters.
pub(crate) fn conversation_size(state: &Json) -> Result<(usize, usize)> {
    let Conversation { summary, context } = conversation(state)?;
    Ok((context.len(), summary.map_or(0, |summary| summary.chars().count())))
}

/// Lists the messages in the `context` of a state.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) for a value that is not the state of an agent.
pub fn conversation_messages(state: &Json) -> Result<Vec<MessageText>> {
    conversation(state)?.context.iter().map(|message| Ok(described(&message.view()?, text_only))).collect()
}

/// Writes the conversation in the `context` of a state as Markdown: the summary, then each message under a heading with its role.
///
/// The text of a message is a block quotation, so no message can imitate the heading of another one.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) for a value that is not the state of an agent.
pub fn conversation_markdown(session: &str, state: &Json) -> Result<String> {
    let Conversation { summary, context } = conversation(state)?;
    let mut text = format!("# Session {}\n", in_line(session));
    if let Some(summary) = summary.filter(|summary| !summary.trim().is_empty()) {
        text.push_str("\n## Summary\n");
        quote(&mut text, &summary);
    }
    text.push_str("\n## Messages\n");
    for message in context {
        let message = described(&message.view()?, all_content);
        let role = message.role.map_or_else(|| "unknown".to_owned(), |role| role.to_lowercase());
        write!(text, "\n### {}", in_line(&role)).expect("writing to a string cannot fail");
        for part in [message.name, message.timestamp].into_iter().flatten().filter(|part| !part.is_empty()) {
            write!(text, " — {}", in_line(&part)).expect("writing to a string cannot fail");
        }
        text.push('\n');
        if !message.text.is_empty() {
            quote(&mut text, &message.text);
        }
    }
    Ok(text)
}

fn described(message: &Value, text_of: fn(&Value) -> Option<String>) -> MessageText {
    let field = |name: &str| message[name].as_str().map(str::to_owned);
    let texts: Vec<String> = match &message["content"] {
        Value::String(text) => vec![text.clone()],
        Value::Array(blocks) => blocks.iter().filter_map(text_of).collect(),
        Value::Object(_) => text_of(&message["content"]).into_iter().collect(),
        _ => Vec::new(),
    };
    MessageText { id: field("id"), role: field("role"), name: field("name"), timestamp: field("timestamp"), text: texts.join("\n") }
}

fn text_only(block: &Value) -> Option<String> {
    let is_text = block["type"].as_str().is_none_or(|kind| kind == "text");
    if is_text { block["text"].as_str().map(str::to_owned) } else { None }
}

/// Describes a block of any kind.
fn all_content(block: &Value) -> Option<String> {
    let field = |name: &str| block[name].as_str().unwrap_or_default();
    match field("type") {
        "" | "text" => block["text"].as_str().map(str::to_owned),
        "thinking" => Some(format!("[thinking] {}", field("thinking"))),
        "tool_use" => Some(format!("[tool call {}] {} {}", field("id"), field("name"), block["input"])),
        "tool_result" => {
            let output: Vec<String> = match &block["output"] {
                Value::Array(blocks) => blocks.iter().filter_map(all_content).collect(),
                Value::String(text) => vec![text.clone()],
                _ => Vec::new(),
            };
            Some(format!("[tool result {}] {}\n{}", field("id"), field("name"), output.join("\n")))
        }
        kind => Some(format!("[{kind}]")),
    }
}

/// Appends a text as a block quotation.
fn quote(text: &mut String, quoted: &str) {
    text.push('\n');
    // A carriage return ends a line in Markdown too.
    for line in quoted.trim_end().replace("\r\n", "\n").split(['\n', '\r']) {
        text.push_str(if line.is_empty() { ">" } else { "> " });
        text.push_str(line);
        text.push('\n');
    }
}

/// Returns a name on one line.
fn in_line(name: &str) -> String {
    name.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Json {
        let text = r#"{"summary": "Tea was\n# bought", "context": [
            {"id": "m1", "name": "ada", "role": "USER", "timestamp": "2026-01-02 03:04:05.678",
             "content": [{"type": "text", "text": "Hello\r### assistant"}, {"type": "image", "source": {}}]},
            {"role": "ASSISTANT", "name": "a\n### x", "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "tool_use", "id": "c1", "name": "find", "input": {"what": "tea"}},
                {"type": "tool_result", "id": "c1", "name": "find", "output": [{"type": "text", "text": "here"}]},
                {"type": "hologram"}]},
            {"content": "plain"}]}"#;
        Json::parse(text).expect("JSON")
    }

    #[test]
    fn messages_are_listed_with_their_texts_only() {
        let messages = conversation_messages(&state()).expect("a state");
        assert_eq!(messages[0].text, "Hello\r### assistant");
        assert_eq!((messages[0].id.as_deref(), messages[0].role.as_deref()), (Some("m1"), Some("USER")));
        assert_eq!((messages[1].text.as_str(), messages[2].text.as_str()), ("", "plain"));
        assert_eq!(conversation_messages(&Json::parse("{}").expect("JSON")).expect("no messages"), []);
    }

    #[test]
    fn text_of_a_message_cannot_imitate_a_heading() {
        let text = conversation_markdown("s\n# forged", &state()).expect("a state");
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        let expected = [
            "# Session s # forged",
            "## Summary",
            "## Messages",
            "### user — ada — 2026-01-02 03:04:05.678",
            "### assistant — a ### x",
            "### unknown",
        ];
        assert_eq!(headings, expected);
        assert!(text.contains("> [tool call c1] find {\"what\":\"tea\"}\n> [tool result c1] find\n> here\n> [hologram]\n"), "{text}");
        assert!(text.contains("> Hello\n> ### assistant\n> [image]\n"), "{text}");
    }

    #[test]
    fn value_that_is_no_state_is_corrupt() {
        for text in ["[]", "7", "null", r#"{"context": 7}"#, r#"{"context": [7], "summary": 7}"#] {
            let value = Json::parse(text).expect("JSON");
            assert_eq!(conversation_messages(&value).expect_err(text).kind(), ErrorKind::Corrupt);
            assert_eq!(conversation_markdown("s", &value).expect_err(text).kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn list_keeps_the_text_of_its_elements() {
        let element = |text: &str| Json::parse(text).expect("JSON");
        assert_eq!(list_text(&[]).expect("an array").as_str(), "[]");
        assert_eq!(list_text(&[element("1.0"), element("{ \"a\":1}")]).expect("an array").as_str(), "[1.0,{ \"a\":1}]");
    }
}
