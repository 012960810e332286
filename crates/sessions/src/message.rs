//! Messages. Each keeps its original text; typed facts are read from it.

use crate::tokens::{self, IMAGE_TOKENS, MESSAGE_TOKENS};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::json::Json;

/// The longest id of a tool call in bytes.
pub const TOOL_CALL_ID_BYTES_MAX: usize = 512;

/// The most tool calls in one message.
pub const TOOL_CALLS_MAX: usize = 64;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// The user, or the host on the user's behalf.
    User,
    /// The model.
    Assistant,
    /// A tool, in answer to a call of the model.
    ToolResult,
}

/// One message of a conversation. It serialises as its original text, which clones share.
///
/// # Examples
/// ```
/// use treehold_sessions::{Message, Role};
///
/// let text = r#"{"role":"user","content":"hello","timestamp":1,"mood":"good"}"#;
/// let message = Message::parse(text)?;
/// assert_eq!((message.role(), message.tokens()), (Role::User, 6));
/// assert_eq!(message.json().as_str(), text);
/// assert!(Message::parse(r#"{"role":"oracle","content":"hello"}"#).is_err());
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Message {
    json: Json,
    facts: Arc<Facts>,
}

/// A message created by this crate.
#[derive(Serialize)]
struct Made<C> {
    role: Role,
    content: C,
    timestamp: i64,
}

#[derive(Serialize)]
struct MadeText<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    text: &'a str,
}

/// The facts that the store needs about a message.
#[derive(Debug, Clone)]
struct Facts {
    role: Role,
    timestamp: Option<f64>,
    tokens: u64,
    calls: Vec<String>,
    answers: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
    timestamp: Option<f64>,
    /// Only a tool result needs it, so only there it must be a text.
    #[serde(borrow)]
    tool_call_id: Option<&'a RawValue>,
}

/// One block of a message's content. Its kind decides which fields are read; others may have any type.
#[derive(Debug, Clone)]
pub struct Block<'a> {
    /// The kind: `text`, `image`, `thinking`, `toolCall`, or one that this crate does not know.
    pub kind: Cow<'a, str>,
    /// The text of a text block, or of a block of an unknown kind that has one.
    pub text: Option<Cow<'a, str>>,
    /// The text of a thinking block.
    pub thinking: Option<Cow<'a, str>>,
    /// The id of a tool call.
    pub id: Option<Cow<'a, str>>,
    /// The name of the tool that is called.
    pub name: Option<Cow<'a, str>>,
    /// The arguments of a tool call.
    pub arguments: Option<&'a RawValue>,
}

/// A block whose fields are not read yet.
#[derive(Deserialize)]
struct RawBlock<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Block<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawBlock::deserialize(deserializer)?;
        let (mut text, mut thinking, mut id, mut name, mut arguments) = (None, None, None, None, None);
        let of = |field: &str, value: Option<&'a RawValue>| {
            let wrong = |error| serde::de::Error::custom(format!("the `{field}` of a `{}` block: {error}", raw.kind.escape_debug()));
            value.map(|value| self::text(value).map_err(wrong)).transpose()
        };
        match &*raw.kind {
            "text" => text = of("text", raw.text)?,
            "thinking" => thinking = of("thinking", raw.thinking)?,
            "toolCall" => (id, name, arguments) = (of("id", raw.id)?, of("name", raw.name)?, raw.arguments),
            "image" => {}
            _ => text = raw.text.and_then(|value| self::text(value).ok()),
        }
        Ok(Self { kind: raw.kind, text, thinking, id, name, arguments })
    }
}

/// The content of a message.
#[derive(Debug, Clone)]
pub enum Content<'a> {
    /// Plain text.
    Text(Cow<'a, str>),
    /// Blocks, each with its own text.
    Blocks(Vec<Block<'a>>),
}

impl Message {
    /// Parses a message.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for text that is not JSON, an unknown role, content
    /// that is neither a text nor a list of blocks, a block without what its kind needs, and a tool result that does not
    /// name its call.
    pub fn parse(text: &str) -> Result<Self> {
        Self::from_json(Json::parse(text)?)
    }

    /// Reads a message from parsed JSON.
    ///
    /// # Errors
    /// As [`Message::parse`].
    pub fn from_json(json: Json) -> Result<Self> {
        let facts = Arc::new(Facts::of(&json)?);
        Ok(Self { json, facts })
    }

    /// Makes a user message.
    pub fn user(content: &str, timestamp: i64) -> Self {
        Self::of(&Made { role: Role::User, content, timestamp })
    }

    /// Makes an assistant message of one text.
    pub fn assistant(text: &str, timestamp: i64) -> Self {
        Self::of(&Made { role: Role::Assistant, content: [MadeText { kind: "text", text }], timestamp })
    }

    fn of<C: Serialize>(made: &Made<C>) -> Self {
        Json::of(made).and_then(Self::from_json).expect("a message of this shape is valid")
    }

    /// Returns the text.
    pub fn json(&self) -> &Json {
        &self.json
    }

    /// Returns who it is from.
    pub fn role(&self) -> Role {
        self.facts.role
    }

    /// Returns the time that its author gave, in milliseconds since 1970.
    pub fn timestamp(&self) -> Option<f64> {
        self.facts.timestamp
    }

    /// Returns the estimate of its tokens, see [`tokens`].
    pub fn tokens(&self) -> u64 {
        self.facts.tokens
    }

    /// Returns the ids of the tool calls in it.
    pub fn tool_call_ids(&self) -> &[String] {
        &self.facts.calls
    }

    /// Returns the id of the tool call that it answers, if it is a tool result.
    pub fn answers(&self) -> Option<&str> {
        self.facts.answers.as_deref()
    }

    /// Reads its content.
    pub fn content(&self) -> Content<'_> {
        self.json.view().and_then(|fields: Fields<'_>| content(fields.content)).expect("it was read when it was made")
    }

    /// Returns its text: the content, or the texts of its text blocks, joined.
    pub fn text(&self) -> String {
        match self.content() {
            Content::Text(text) => text.into_owned(),
            Content::Blocks(blocks) => blocks.into_iter().filter_map(|block| block.text).collect(),
        }
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

impl Eq for Message {}

impl JsonSchema for Message {
    fn schema_name() -> Cow<'static, str> {
        "Message".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "one message of a conversation; further fields are kept",
            "properties": {
                "role": {"type": "string", "enum": ["user", "assistant", "toolResult"], "description": "its author"},
                "content": {
                    "description": "a text, or a list of blocks",
                    "anyOf": [
                        {"type": "string"},
                        {"type": "array", "items": {
                            "type": "object",
                            "properties": {"type": {"type": "string", "description": "such as `text`, `image`, `thinking` and `toolCall`"}},
                            "required": ["type"]
                        }}
                    ]
                },
                "timestamp": {"type": ["number", "null"], "description": "when it was made, in milliseconds since 1970"},
                "toolCallId": {"type": ["string", "null"], "description": "the call that a `toolResult` answers"}
            },
            "required": ["role", "content"]
        })
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(Json::deserialize(deserializer)?).map_err(|error| serde::de::Error::custom(error.message()))
    }
}

/// Reads content: a text, or a list of blocks.
fn content(raw: &RawValue) -> Result<Content<'_>> {
    let wrong = |error| Error::invalid_argument(format!("the content of the message is not valid: {error}"));
    match raw.get().as_bytes().first() {
        Some(b'"') => Ok(Content::Text(text(raw).map_err(wrong)?)),
        Some(b'[') => Ok(Content::Blocks(serde_json::from_str(raw.get()).map_err(wrong)?)),
        _ => Err(Error::invalid_argument("the content of a message is neither a text nor a list of blocks")),
    }
}

fn text(raw: &RawValue) -> Result<Cow<'_, str>, serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<Text<'_>>(raw.get()).map(|text| text.0)
}

impl Facts {
    fn of(json: &Json) -> Result<Self> {
        let fields: Fields<'_> = json.view()?;
        let role = match &*fields.role {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "toolResult" => Role::ToolResult,
            other => {
                let message = format!("the role `{}` is unknown; use `user`, `assistant` or `toolResult`", other.escape_debug());
                return Err(Error::invalid_argument(message));
            }
        };
        let mut facts = Self { role, timestamp: fields.timestamp, tokens: 0, calls: Vec::new(), answers: None };
        if role == Role::ToolResult {
            let wrong = |error| Error::invalid_argument(format!("the `toolCallId` of the message is not valid: {error}"));
            let id = fields.tool_call_id.map(|id| text(id).map_err(wrong)).transpose()?.filter(|id| !id.is_empty());
            let id = id.ok_or_else(|| Error::invalid_argument("a tool result has no `toolCallId`; name the call that it answers"))?;
            facts.answers = Some(tool_call_id(&id)?);
        }
        let mut quarters = 0;
        match content(fields.content)? {
            Content::Text(text) => quarters += tokens::quarters(&text),
            Content::Blocks(blocks) => {
                for block in &blocks {
                    quarters += facts.read_block(block)?;
                }
            }
        }
        facts.tokens += tokens::of_quarters(quarters) + MESSAGE_TOKENS;
        Ok(facts)
    }

    /// Reads a block and returns the estimate of its texts in quarters of a token.
    fn read_block(&mut self, block: &Block<'_>) -> Result<u64> {
        let lacks = |field: &str| Error::invalid_argument(format!("a `{}` block has no `{field}`", block.kind.escape_debug()));
        Ok(match &*block.kind {
            "text" => tokens::quarters(block.text.as_deref().ok_or_else(|| lacks("text"))?),
            "thinking" => tokens::quarters(block.thinking.as_deref().ok_or_else(|| lacks("thinking"))?),
            "image" => {
                self.tokens += IMAGE_TOKENS;
                0
            }
            "toolCall" => {
                let id = block.id.as_deref().filter(|id| !id.is_empty()).ok_or_else(|| lacks("id"))?;
                if self.role != Role::Assistant {
                    return Err(Error::invalid_argument("only an assistant message holds `toolCall` blocks"));
                }
                if self.calls.len() == TOOL_CALLS_MAX {
                    return Err(Error::invalid_argument(format!("a message holds more than {TOOL_CALLS_MAX} tool calls; split it")));
                }
                self.calls.push(tool_call_id(id)?);
                block.arguments.map_or(0, |arguments| tokens::quarters(arguments.get()))
            }
            // A kind of block from a later version counts by its text, if it has one.
            _ => block.text.as_deref().map_or(0, tokens::quarters),
        })
    }
}

/// Checks the id of a tool call.
pub(crate) fn tool_call_id(id: &str) -> Result<String> {
    if id.is_empty() || id.contains('\0') {
        return Err(Error::invalid_argument("the id of a tool call is empty or holds NUL"));
    }
    if id.len() > TOOL_CALL_ID_BYTES_MAX {
        return Err(Error::invalid_argument(format!("the id of a tool call is over {TOOL_CALL_ID_BYTES_MAX} bytes; shorten it")));
    }
    Ok(id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use treehold_core::ErrorKind;

    #[test]
    fn unknown_fields_and_kinds_of_blocks_survive_byte_for_byte() {
        for text in [
            r#"{"role":"user","content":"é\u00e9","timestamp":1.0,"extra":{"b":1,"a":[ ]}}"#,
            r#"{ "role" : "assistant", "content":[{"type":"hologram","watts":9.50},{"type":"text","text":"x"}], "stopReason":"later" }"#,
            r#"{"role":"toolResult","toolCallId":"c","toolName":"t","content":[],"details":{"z":1,"a":2},"isError":false,"timestamp":3}"#,
        ] {
            let message = Message::parse(text).expect("valid");
            assert_eq!(serde_json::to_string(&message).expect("plain"), text);
            assert_eq!(serde_json::from_str::<Message>(text).expect("valid"), message);
        }
    }

    /// Only the fields that a kind needs must have the types of this version.
    #[test]
    fn fields_that_a_kind_does_not_need_may_have_any_type() {
        let odd = ["5", "null", "{\"a\":[1]}", "[]", "1e999", r#""\ud800""#, "true"];
        for value in odd {
            let every = format!(r#""text":{value},"thinking":{value},"id":{value},"name":{value},"arguments":{value}"#);
            for text in [
                format!(r#"{{"role":"user","content":[{{"type":"foo",{every}}}]}}"#),
                format!(r#"{{"role":"user","content":[{{"type":"image",{every}}}],"toolCallId":{value}}}"#),
                format!(r#"{{"role":"user","content":[{{"type":"text","text":"x","id":{value},"thinking":{value}}}]}}"#),
                format!(r#"{{"role":"assistant","content":[{{"type":"thinking","thinking":"x","text":{value}}}]}}"#),
                format!(r#"{{"role":"assistant","content":[{{"type":"toolCall","id":"c","text":{value},"arguments":{value}}}]}}"#),
            ] {
                let message = Message::parse(&text).expect(&text);
                assert_eq!(message.json().as_str(), text);
                message.text();
            }
        }
        let later = Message::parse(r#"{"role":"user","content":[{"type":"foo","text":"abcd"}]}"#).expect("valid");
        assert_eq!((later.tokens(), later.text()), (5, "abcd".to_owned()), "a text of an unknown kind counts");
    }

    #[test]
    fn calls_and_answers_are_read() {
        let call = r#"{"role":"assistant","content":[{"type":"toolCall","id":"a","name":"grep","arguments":{"p":"x"}},{"type":"toolCall","id":"b","name":"ls","arguments":{}}]}"#;
        assert_eq!(Message::parse(call).expect("valid").tool_call_ids(), ["a", "b"]);
        let answer = r#"{"role":"toolResult","toolCallId":"a\/b","content":[{"type":"text","text":"ok"}]}"#;
        assert_eq!(Message::parse(answer).expect("valid").answers(), Some("a/b"));
        assert_eq!(Message::parse(answer).expect("valid").text(), "ok");
    }

    #[test]
    fn messages_of_a_wrong_shape_are_refused() {
        for text in [
            "",
            "[]",
            "7",
            "{}",
            r#"{"role":"user"}"#,
            r#"{"role":"user","content":7}"#,
            r#"{"role":"system","content":"x"}"#,
            r#"{"role":"User","content":"x"}"#,
            r#"{"role":["user"],"content":"x"}"#,
            r#"{"role":"user","content":[{"text":"x"}]}"#,
            r#"{"role":"user","content":["x"]}"#,
            r#"{"role":"user","content":[{"type":"text"}]}"#,
            r#"{"role":"user","content":[{"type":"text","text":7}]}"#,
            r#"{"role":"user","content":[{"type":"toolCall","id":"a"}]}"#,
            r#"{"role":"assistant","content":[{"type":"toolCall","id":7}]}"#,
            r#"{"role":"assistant","content":[{"type":"toolCall","id":"a","name":7}]}"#,
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":7}]}"#,
            r#"{"role":"toolResult","toolCallId":7,"content":[]}"#,
            r#"{"role":"user","content":"x","timestamp":"now"}"#,
            r#"{"role":"assistant","content":[{"type":"toolCall","id":""}]}"#,
            r#"{"role":"assistant","content":[{"type":"toolCall","name":"x"}]}"#,
            r#"{"role":"toolResult","content":[]}"#,
            r#"{"role":"toolResult","toolCallId":"","content":[]}"#,
            r#"{"role":"toolResult","toolCallId":"\u0000","content":[]}"#,
            r#"{"role":"user","content":"x"} {}"#,
        ] {
            assert_eq!(Message::parse(text).expect_err(text).kind(), ErrorKind::InvalidArgument, "{text}");
        }
    }
}
