//! The blocks that the content of a message consists of.

use super::entries::Entries;
use super::tool::as_double;
use super::wire::{exactly, or_default, wire_enum};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use treehold_core::json::Json;
use treehold_core::tokens;

wire_enum! {
    /// How far a call of a tool is.
    #[derive(Default)]
    ToolCallState, "state of a tool call", exactly {
        /// Requested by the model.
        #[default]
        Pending = "pending",
        /// The user is asked.
        Asking = "asking",
        /// Allowed.
        Allowed = "allowed",
        /// Handed over.
        Submitted = "submitted",
        /// Done.
        Finished = "finished",
    }
}

wire_enum! {
    /// The outcome of a call of a tool.
    #[derive(Default)]
    ToolResultState, "state of a tool result", exactly {
        /// It succeeded.
        Success = "success",
        /// It failed.
        Error = "error",
        /// It was interrupted.
        Interrupted = "interrupted",
        /// It was denied.
        Denied = "denied",
        /// It has not ended, or its author did not say.
        #[default]
        Running = "running",
    }
}

/// Where the bytes of a medium are.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Source {
    /// At a URL.
    Url(UrlSource),
    /// In the block.
    Base64(Base64Source),
    /// Of a kind that this version does not know. It is kept.
    Other(Json),
}

/// A URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrlSource {
    /// The URL.
    pub url: String,
    /// The media type, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
}

/// Bytes in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base64Source {
    /// The media type.
    pub media_type: String,
    /// The bytes.
    pub data: String,
}

/// Text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TextBlock {
    /// The text.
    #[serde(default, deserialize_with = "or_default")]
    pub text: String,
}

/// Reasoning of the model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ThinkingBlock {
    /// The text.
    #[serde(default, deserialize_with = "or_default")]
    pub thinking: String,
    /// What the model's provider added, such as a signature.
    #[serde(default)]
    pub metadata: Option<Entries<Json>>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "ImageFields")]
pub struct ImageBlock {
    /// The bytes.
    pub source: Source,
    /// The fewest pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_pixels: Option<i32>,
    /// The most pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pixels: Option<i32>,
}

/// Sound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AudioBlock {
    /// The bytes.
    pub source: Source,
}

/// A video.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "VideoFields")]
pub struct VideoBlock {
    /// The bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Frames per second.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "optional_double")]
    pub fps: Option<f64>,
    /// The most frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_frames: Option<i32>,
    /// The fewest pixels of a frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_pixels: Option<i32>,
    /// The most pixels of a frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pixels: Option<i32>,
    /// The most pixels of all frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_pixels: Option<i32>,
}

/// A hint to the model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HintBlock {
    /// Its id.
    #[serde(default)]
    pub id: Option<String>,
    /// The hint.
    #[serde(default)]
    pub hint: Option<String>,
    /// Who gave it.
    #[serde(default)]
    pub source: Option<String>,
}

/// A file of any type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataBlock {
    /// The bytes.
    pub source: Source,
    /// Its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ToolUseBlock {
    /// The id that the result repeats.
    #[serde(default)]
    pub id: Option<String>,
    /// The tool.
    #[serde(default)]
    pub name: Option<String>,
    /// The arguments.
    #[serde(default)]
    pub input: Entries<Json>,
    /// The arguments as the model wrote them.
    #[serde(default)]
    pub content: Option<String>,
    /// What the model's provider added.
    #[serde(default)]
    pub metadata: Entries<Json>,
    /// How far it is.
    #[serde(default, deserialize_with = "or_default")]
    pub state: ToolCallState,
}

/// The result of a call of a tool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ToolResultBlock {
    /// The id of the call.
    #[serde(default)]
    pub id: Option<String>,
    /// The tool.
    #[serde(default)]
    pub name: Option<String>,
    /// What the tool returned.
    #[serde(default, deserialize_with = "blocks")]
    pub output: Vec<Block>,
    /// Further facts.
    #[serde(default)]
    pub metadata: Entries<Json>,
    /// The outcome.
    #[serde(default, deserialize_with = "or_default")]
    pub state: ToolResultState,
}

impl ToolResultBlock {
    /// Makes a result of one text.
    pub fn text(id: &str, name: &str, text: &str, state: ToolResultState) -> Self {
        let output = vec![Block::Text(TextBlock { text: text.to_owned() })];
        Self { id: Some(id.to_owned()), name: Some(name.to_owned()), output, metadata: Entries::new(), state }
    }

    /// Returns the text of its text blocks, joined.
    pub fn output_text(&self) -> String {
        self.output.iter().filter_map(Block::as_text).collect()
    }
}

/// One block of a message's content.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Block {
    /// Text.
    Text(TextBlock),
    /// Reasoning of the model.
    Thinking(ThinkingBlock),
    /// An image.
    Image(ImageBlock),
    /// Sound.
    Audio(AudioBlock),
    /// A video.
    Video(VideoBlock),
    /// A call of a tool.
    ToolUse(ToolUseBlock),
    /// The result of a call.
    ToolResult(ToolResultBlock),
    /// A hint to the model.
    Hint(HintBlock),
    /// A file of any type.
    Data(DataBlock),
    /// A block of a kind that this version does not know. It is kept.
    Other(Json),
}

impl Block {
    /// The names of the known kinds.
    pub const KINDS: [&'static str; 9] = ["text", "thinking", "image", "audio", "video", "tool_use", "tool_result", "hint", "data"];

    /// Makes a text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(TextBlock { text: text.into() })
    }

    /// Makes a call of a tool.
    pub fn tool_use(id: &str, name: &str, input: Entries<Json>) -> Self {
        Self::ToolUse(ToolUseBlock { id: Some(id.to_owned()), name: Some(name.to_owned()), input, ..ToolUseBlock::default() })
    }

    /// Returns the name of its kind in JSON.
    pub fn kind(&self) -> Cow<'_, str> {
        let known = match self {
            Self::Text(_) => 0,
            Self::Thinking(_) => 1,
            Self::Image(_) => 2,
            Self::Audio(_) => 3,
            Self::Video(_) => 4,
            Self::ToolUse(_) => 5,
            Self::ToolResult(_) => 6,
            Self::Hint(_) => 7,
            Self::Data(_) => 8,
            Self::Other(json) => return kind_of(json).ok().flatten().unwrap_or_default().into(),
        };
        Self::KINDS[known].into()
    }

    /// Returns the text of a text block.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(block) => Some(&block.text),
            _ => None,
        }
    }

    /// Estimates it in quarters of a token, see [`tokens`].
    pub(crate) fn quarters(&self) -> u64 {
        let text = |text: &Option<String>| text.as_deref().map_or(0, tokens::quarters);
        let map = |map: &Entries<Json>| {
            map.iter().map(|(key, value)| tokens::quarters(key).saturating_add(tokens::quarters(value.as_str()))).sum::<u64>()
        };
        match self {
            Self::Text(block) => tokens::quarters(&block.text),
            Self::Thinking(block) => tokens::quarters(&block.thinking),
            Self::Image(_) | Self::Audio(_) | Self::Video(_) | Self::Data(_) => 4 * tokens::IMAGE_TOKENS,
            Self::Hint(block) => text(&block.hint),
            // The raw text repeats the arguments.
            Self::ToolUse(block) => text(&block.name) + map(&block.input).max(text(&block.content)),
            Self::ToolResult(block) => text(&block.name) + block.output.iter().map(Self::quarters).sum::<u64>(),
            Self::Other(json) => tokens::quarters(json.as_str()),
        }
    }
}

/// Returns the `type` of an object.
fn kind_of(json: &Json) -> Result<Option<String>, String> {
    #[derive(Deserialize)]
    struct Tag {
        #[serde(rename = "type")]
        kind: Option<String>,
    }
    // A struct is read from an array too.
    if !json.as_str().starts_with('{') {
        return Err("it is not an object".to_owned());
    }
    json.view().map(|tag: Tag| tag.kind).map_err(|error| error.message().to_owned())
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let json = Json::deserialize(deserializer)?;
        let kind = kind_of(&json).map_err(|error| D::Error::custom(format!("a block: {error}")))?;
        let kind = kind.ok_or_else(|| D::Error::custom("a block has no `type`"))?;
        let wrong = |error: treehold_core::Error| D::Error::custom(format!("a `{}` block: {}", kind.escape_debug(), error.message()));
        Ok(match kind.as_str() {
            "text" => Self::Text(json.view().map_err(wrong)?),
            "thinking" => Self::Thinking(json.view().map_err(wrong)?),
            "image" => Self::Image(json.view().map_err(wrong)?),
            "audio" => Self::Audio(json.view().map_err(wrong)?),
            "video" => Self::Video(json.view().map_err(wrong)?),
            "tool_use" => Self::ToolUse(json.view().map_err(wrong)?),
            "tool_result" => Self::ToolResult(json.view().map_err(wrong)?),
            "hint" => Self::Hint(json.view().map_err(wrong)?),
            "data" => Self::Data(json.view().map_err(wrong)?),
            _ => Self::Other(json),
        })
    }
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

impl Serialize for Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = &*self.kind();
        match self {
            Self::Text(body) => Tagged { kind, body }.serialize(serializer),
            Self::Thinking(body) => Tagged { kind, body }.serialize(serializer),
            Self::Image(body) => Tagged { kind, body }.serialize(serializer),
            Self::Audio(body) => Tagged { kind, body }.serialize(serializer),
            Self::Video(body) => Tagged { kind, body }.serialize(serializer),
            Self::ToolUse(body) => Tagged { kind, body }.serialize(serializer),
            Self::ToolResult(body) => Tagged { kind, body }.serialize(serializer),
            Self::Hint(body) => Tagged { kind, body }.serialize(serializer),
            Self::Data(body) => Tagged { kind, body }.serialize(serializer),
            Self::Other(json) => json.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let json = Json::deserialize(deserializer)?;
        let wrong = |error: treehold_core::Error| D::Error::custom(format!("a source: {}", error.message()));
        let kind = kind_of(&json).map_err(|error| D::Error::custom(format!("a source: {error}")))?;
        let kind = kind.ok_or_else(|| D::Error::custom("a source has no `type`"))?;
        Ok(match kind.as_str() {
            "url" => Self::Url(json.view().map_err(wrong)?),
            "base64" => Self::Base64(json.view().map_err(wrong)?),
            _ => Self::Other(json),
        })
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Url(body) => Tagged { kind: "url", body }.serialize(serializer),
            Self::Base64(body) => Tagged { kind: "base64", body }.serialize(serializer),
            Self::Other(json) => json.serialize(serializer),
        }
    }
}

/// AgentScope writes the sizes of media in camel case, and reads them in snake case too.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImageFields {
    source: Source,
    min_pixels: Option<i32>,
    max_pixels: Option<i32>,
    #[serde(rename = "min_pixels")]
    min_pixels_snake: Option<i32>,
    #[serde(rename = "max_pixels")]
    max_pixels_snake: Option<i32>,
}

impl From<ImageFields> for ImageBlock {
    fn from(fields: ImageFields) -> Self {
        Self {
            source: fields.source,
            min_pixels: fields.min_pixels.or(fields.min_pixels_snake),
            max_pixels: fields.max_pixels.or(fields.max_pixels_snake),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VideoFields {
    source: Option<Source>,
    fps: Option<f64>,
    max_frames: Option<i32>,
    min_pixels: Option<i32>,
    max_pixels: Option<i32>,
    total_pixels: Option<i32>,
    #[serde(rename = "max_frames")]
    max_frames_snake: Option<i32>,
    #[serde(rename = "min_pixels")]
    min_pixels_snake: Option<i32>,
    #[serde(rename = "max_pixels")]
    max_pixels_snake: Option<i32>,
    #[serde(rename = "total_pixels")]
    total_pixels_snake: Option<i32>,
}

impl From<VideoFields> for VideoBlock {
    fn from(fields: VideoFields) -> Self {
        Self {
            source: fields.source,
            fps: fields.fps,
            max_frames: fields.max_frames.or(fields.max_frames_snake),
            min_pixels: fields.min_pixels.or(fields.min_pixels_snake),
            max_pixels: fields.max_pixels.or(fields.max_pixels_snake),
            total_pixels: fields.total_pixels.or(fields.total_pixels_snake),
        }
    }
}

fn optional_double<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => as_double(number, serializer),
        None => serializer.serialize_none(),
    }
}

/// Reads blocks, for which `null` is none, and without those that are `null`.
pub(crate) fn blocks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Block>, D::Error> {
    Ok(Option::<Vec<Option<Block>>>::deserialize(deserializer)?.unwrap_or_default().into_iter().flatten().collect())
}
