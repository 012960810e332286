//! Messages. Each keeps its original text; typed facts are read from it.

use super::block::{Block, TextBlock, ToolResultBlock, ToolResultState, ToolUseBlock, blocks};
use super::entries::Entries;
use super::text::{self, JsonForm};
use super::time::{parse_message_time, render_message_time};
use super::tool::as_double;
use super::wire::{exactly, only_objects, or_default, wire_enum, written};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::json::{JSON_DEPTH_MAX, Json};
use treehold_core::tokens::{self, MESSAGE_TOKENS};
use uuid::Uuid;

/// The metadata field that marks a message that the runtime made for the model and that is never stored.
pub const METADATA_SYNTHETIC: &str = "agentscope_synthetic";

/// The metadata field that says why the model's answer ended.
pub const METADATA_GENERATE_REASON: &str = "agentscope_generate_reason";

/// The metadata field that held the usage in older versions.
pub const METADATA_CHAT_USAGE: &str = "_chat_usage";

wire_enum! {
    /// The author of a message.
    Role, "role", exactly {
        /// The user.
        User = "USER",
        /// The model.
        Assistant = "ASSISTANT",
        /// The host.
        System = "SYSTEM",
        /// Tools, in answer to calls of the model.
        Tool = "TOOL",
    }
}

impl Role {
    /// Returns whether messages of the role may hold blocks of a kind. Every role may hold kinds that this version does not know.
    pub fn allows(self, kind: &str) -> bool {
        match self {
            Self::User => matches!(kind, "text" | "data" | "image" | "audio" | "video") || !Block::KINDS.contains(&kind),
            Self::System => kind == "text" || !Block::KINDS.contains(&kind),
            Self::Assistant | Self::Tool => true,
        }
    }
}

wire_enum! {
    /// Why the model's answer ended.
    #[derive(Default)]
    GenerateReason, "generate reason", exactly {
        /// The model was done.
        #[default]
        ModelStop = "MODEL_STOP",
        /// The model calls tools.
        ToolCalls = "TOOL_CALLS",
        /// The structured answer is complete.
        StructuredOutput = "STRUCTURED_OUTPUT",
        /// A tool runs outside of the agent.
        ToolSuspended = "TOOL_SUSPENDED",
        /// A stop was requested after reasoning.
        ReasoningStopRequested = "REASONING_STOP_REQUESTED",
        /// A stop was requested after acting.
        ActingStopRequested = "ACTING_STOP_REQUESTED",
        /// The user is asked for permission.
        PermissionAsking = "PERMISSION_ASKING",
        /// A middleware requested a stop.
        MiddlewareStopRequested = "MIDDLEWARE_STOP_REQUESTED",
        /// All tools were denied.
        AllToolsDenied = "ALL_TOOLS_DENIED",
        /// The call was interrupted.
        Interrupted = "INTERRUPTED",
        /// The call reached its limit of iterations.
        MaxIterations = "MAX_ITERATIONS",
    }
}

/// What an answer of the model cost.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(remote = "Self")]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(default, deserialize_with = "or_default")]
    pub input_tokens: i32,
    /// Tokens of the answer.
    #[serde(default, deserialize_with = "or_default")]
    pub output_tokens: i32,
    /// Tokens of the prompt that the provider had cached.
    #[serde(default, deserialize_with = "or_default")]
    pub cached_tokens: i32,
    /// Seconds.
    #[serde(default, deserialize_with = "or_default", serialize_with = "as_double")]
    pub time: f64,
}

/// The fields of a message. Unknown fields of its JSON are not here, but [`Message::edited`] keeps them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct MessageFields {
    /// Its id.
    #[serde(default)]
    pub id: Option<String>,
    /// The name of its author.
    #[serde(default)]
    pub name: Option<String>,
    /// Its author.
    #[serde(default)]
    pub role: Option<Role>,
    /// What it says.
    #[serde(default, deserialize_with = "blocks")]
    pub content: Vec<Block>,
    /// Further facts.
    #[serde(default)]
    pub metadata: Entries<Json>,
    /// When it was made, see [`parse_message_time`].
    #[serde(default)]
    pub timestamp: Option<String>,
    /// What it cost.
    #[serde(default, serialize_with = "with_total")]
    pub usage: Option<Usage>,
}

/// Where the text of a message comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A stored state.
    Stored,
    /// JSON from the caller.
    Given,
    /// This crate, so it may be laid out like its surroundings.
    Made,
}

/// One message. It serialises as its original text, which clones share. Two messages are equal if their texts are.
///
/// ```
/// use treehold_agent_state::{Message, Role};
///
/// let text = r#"{"id":"m","role":"USER","content":[{"type":"text","text":"hello"}],"mood":"good"}"#;
/// let message = Message::parse(text)?;
/// assert_eq!((message.role(), message.text().as_str()), (Some(Role::User), "hello"));
/// let louder = message.edited(|fields| fields.name = Some("ada".into()))?;
/// assert_eq!(louder.json().as_str(), text.replace("\"m\",", "\"m\",\"name\":\"ada\","));
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Message {
    json: Json,
    facts: Arc<Facts>,
    origin: Origin,
}

#[derive(Debug)]
struct Facts {
    id: Option<String>,
    name: Option<String>,
    role: Option<Role>,
    timestamp: Option<String>,
    tokens: u64,
    synthetic: bool,
    calls: Vec<CallName>,
    results: Vec<CallName>,
    misplaced: Vec<String>,
}

/// The id and the tool of a call or a result.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CallName {
    /// The id of the call.
    pub id: Option<String>,
    /// The tool.
    pub name: Option<String>,
}

impl Message {
    /// Parses a message.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for text that is not JSON or nests too deep, an unknown role or
    /// state, and a field of a wrong type. Unknown fields and kinds of blocks are no error.
    pub fn parse(text: &str) -> Result<Self> {
        Self::from_json(Json::parse(text)?)
    }

    /// Reads a message from parsed JSON.
    ///
    /// # Errors
    /// As [`Message::parse`].
    pub fn from_json(json: Json) -> Result<Self> {
        // In a state it is an element of an array in an object.
        if text::depth(json.as_str()) > JSON_DEPTH_MAX - 2 {
            return Err(Error::invalid_argument(format!("the message nests deeper than {} levels; flatten it", JSON_DEPTH_MAX - 2)));
        }
        Self::of(json, Origin::Given)
    }

    /// Reads a message of a stored state.
    pub(crate) fn stored(json: Json) -> Result<Self> {
        Self::of(json, Origin::Stored)
    }

    fn of(json: Json, origin: Origin) -> Result<Self> {
        let fields: MessageFields = json.view()?;
        Ok(Self { facts: Arc::new(Facts::of(&fields)), json, origin })
    }

    /// Makes a message from its fields.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) if it nests too deep, and for numbers that are not finite.
    pub fn from_fields(fields: &MessageFields) -> Result<Self> {
        let json = Json::parse(&respelled(fields)?)?;
        Ok(Self { origin: Origin::Made, ..Self::from_json(json)? })
    }

    /// Makes a message with a random id.
    pub fn new(role: Role, content: Vec<Block>, time: Timestamp) -> Result<Self> {
        Self::from_fields(&MessageFields {
            id: Some(Uuid::new_v4().to_string()),
            role: Some(role),
            content,
            timestamp: Some(render_message_time(time, &TimeZone::UTC)),
            ..MessageFields::default()
        })
    }

    /// Makes a user message of one text.
    pub fn user(text: &str, time: Timestamp) -> Self {
        Self::new(Role::User, vec![Block::text(text)], time).expect("a message of this shape is valid")
    }

    /// Makes an assistant message of one text.
    pub fn assistant(text: &str, time: Timestamp) -> Self {
        Self::new(Role::Assistant, vec![Block::text(text)], time).expect("a message of this shape is valid")
    }

    /// Makes the message that answers calls of tools.
    ///
    /// # Errors
    /// As [`Message::from_fields`].
    pub fn tool_results(results: Vec<ToolResultBlock>, time: Timestamp) -> Result<Self> {
        Self::new(Role::Tool, results.into_iter().map(Block::ToolResult).collect(), time)
    }

    /// Makes the message that answers one call with a text.
    pub fn tool_result(id: &str, name: &str, text: &str, state: ToolResultState, time: Timestamp) -> Self {
        Self::tool_results(vec![ToolResultBlock::text(id, name, text, state)], time).expect("a message of this shape is valid")
    }

    /// Returns a changed message. Whatever `edit` leaves alone keeps its text, and so do unknown fields.
    ///
    /// # Errors
    /// As [`Message::from_fields`].
    pub fn edited(&self, edit: impl FnOnce(&mut MessageFields)) -> Result<Self> {
        let mut fields = self.fields();
        let base = written(&fields);
        edit(&mut fields);
        let new = respelled(&fields)?;
        if new == base {
            return Ok(self.clone());
        }
        let text = self.json.as_str();
        let pretty = self.origin != Origin::Made && text.contains('\n');
        let form = if pretty { JsonForm::Pretty } else { JsonForm::Compact };
        // A message of a state that is written in lines is indented by one object.
        let depth = usize::from(pretty && text.ends_with("\n  }"));
        let json = Json::parse(&text::patch(text, &base, &new, form, depth))?;
        Ok(Self { origin: self.origin, ..Self::from_json(json)? })
    }

    /// Returns its text.
    pub fn json(&self) -> &Json {
        &self.json
    }

    /// Reads all its fields. Cost: one pass over the text.
    pub fn fields(&self) -> MessageFields {
        self.json.view().expect("it was read when it was made")
    }

    /// Reads its content. Cost: one pass over the text.
    pub fn content(&self) -> Vec<Block> {
        self.fields().content
    }

    /// Returns its id.
    pub fn id(&self) -> Option<&str> {
        self.facts.id.as_deref()
    }

    /// Returns the name of its author.
    pub fn name(&self) -> Option<&str> {
        self.facts.name.as_deref()
    }

    /// Returns its author; `None` if its JSON does not say.
    pub fn role(&self) -> Option<Role> {
        self.facts.role
    }

    /// Returns when it was made, with milliseconds. Its text is read as UTC.
    pub fn time(&self) -> Option<Timestamp> {
        self.time_in(&TimeZone::UTC)
    }

    /// Returns when it was made. Its text is read in the time zone of the host that made it.
    pub fn time_in(&self, zone: &TimeZone) -> Option<Timestamp> {
        parse_message_time(self.facts.timestamp.as_deref()?, zone)
    }

    /// Returns the estimate of its tokens, see [`tokens`].
    pub fn tokens(&self) -> u64 {
        self.facts.tokens
    }

    /// Returns whether the runtime made it for the model. Such a message is not stored.
    pub fn is_synthetic(&self) -> bool {
        self.facts.synthetic
    }

    /// Returns the calls of tools in it.
    pub fn calls(&self) -> &[CallName] {
        &self.facts.calls
    }

    /// Returns the calls whose results it holds.
    pub fn answers(&self) -> &[CallName] {
        &self.facts.results
    }

    /// Returns the kinds of its blocks that its [role](Role::allows) does not allow.
    pub fn misplaced_kinds(&self) -> &[String] {
        &self.facts.misplaced
    }

    /// Returns the texts of its text blocks, joined by line breaks.
    pub fn text(&self) -> String {
        let content = self.content();
        content.iter().filter_map(Block::as_text).collect::<Vec<_>>().join("\n")
    }

    /// Returns what it cost. Older versions kept that in the metadata.
    pub fn usage(&self) -> Option<Usage> {
        let fields = self.fields();
        fields.usage.or_else(|| fields.metadata.get(METADATA_CHAT_USAGE)?.view().ok())
    }

    /// Returns why the model's answer ended: [`GenerateReason::ModelStop`] unless a known reason is given.
    pub fn generate_reason(&self) -> GenerateReason {
        let fields = self.fields();
        let reason = fields.metadata.get(METADATA_GENERATE_REASON).and_then(|reason| reason.view::<GenerateReason>().ok());
        reason.unwrap_or_default()
    }

    /// Returns whether a state stores it: a synthetic message only if a stored state already held it.
    pub(crate) fn is_stored(&self) -> bool {
        !self.is_synthetic() || self.origin == Origin::Stored
    }

    /// Returns its text as an element of the context of a state.
    pub(crate) fn text_in(&self, form: JsonForm) -> std::borrow::Cow<'_, str> {
        match self.origin {
            Origin::Made => form.at(self.json.as_str(), 1).into(),
            Origin::Stored | Origin::Given => self.json.as_str().into(),
        }
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

impl Eq for Message {}

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

impl Facts {
    fn of(fields: &MessageFields) -> Self {
        let call = |id: &Option<String>, name: &Option<String>| CallName { id: id.clone(), name: name.clone() };
        let calls = fields.content.iter().filter_map(|block| match block {
            Block::ToolUse(ToolUseBlock { id, name, .. }) => Some(call(id, name)),
            _ => None,
        });
        let results = fields.content.iter().filter_map(|block| match block {
            Block::ToolResult(ToolResultBlock { id, name, .. }) => Some(call(id, name)),
            _ => None,
        });
        let quarters = fields.content.iter().fold(0_u64, |sum, block| sum.saturating_add(block.quarters()));
        let misplaced =
            |role: Role| fields.content.iter().map(Block::kind).filter(move |kind| !role.allows(kind)).map(|kind| kind.into_owned());
        Self {
            id: fields.id.clone(),
            name: fields.name.clone(),
            role: fields.role,
            timestamp: fields.timestamp.clone(),
            tokens: tokens::of_quarters(quarters).saturating_add(MESSAGE_TOKENS),
            synthetic: fields.metadata.get(METADATA_SYNTHETIC).is_some_and(|value| value.as_str() == "true"),
            calls: calls.collect(),
            results: results.collect(),
            misplaced: fields.role.map_or_else(Vec::new, |role| misplaced(role).collect()),
        }
    }
}

/// Writes the fields of a message, which may hold a number that JSON has not.
fn respelled(fields: &MessageFields) -> Result<String> {
    let text = serde_json::to_string(fields).map_err(|error| Error::invalid_argument(format!("the message is not valid: {error}")))?;
    Ok(text::respell(text))
}

/// Writes the usage with its total, as AgentScope does.
fn with_total<S: Serializer>(usage: &Option<Usage>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct WithTotal<'a> {
        #[serde(flatten)]
        usage: &'a Usage,
        #[serde(rename = "totalTokens")]
        total: i32,
    }
    let with_total = |usage| WithTotal { usage, total: usage.input_tokens.wrapping_add(usage.output_tokens) };
    usage.as_ref().map(with_total).serialize(serializer)
}

impl From<TextBlock> for Block {
    fn from(block: TextBlock) -> Self {
        Self::Text(block)
    }
}

only_objects!(Usage, MessageFields);
