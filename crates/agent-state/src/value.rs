//! The text of a value, and its messages within it.

use crate::options::AgentStatesOptions;
use crate::rows::{Form, corrupt, seal, unseal};
use crate::state::text_depth;
use bytes::Bytes;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::{JSON_DEPTH_MAX, Json, row, stored};
use treehold_core::work;

/// The member of a state whose elements are kept as a log.
pub(crate) const CONTEXT: &str = "context";

/// The most messages that a value may have for these to be kept as a log. Values with more are kept whole.
const MESSAGES_MAX: usize = 100_000;

/// A digest of a message, or of all messages of a value in order.
pub(crate) type Digest = [u8; 32];

pub(crate) fn digest_of(message: &str) -> Digest {
    *blake3::hash(message.as_bytes()).as_bytes()
}

/// Returns the digest of some messages and one more.
pub(crate) fn chain(before: &Digest, message: &Digest) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    hasher.update(message);
    *hasher.finalize().as_bytes()
}

/// The digest of no messages.
pub(crate) const NO_MESSAGES: Digest = [0; 32];

/// A value to save.
pub(crate) struct Content<'a> {
    form: Form,
    /// The whole text of a single value.
    text: Option<&'a str>,
    frame: Option<Frame<'a>>,
    values: &'a [Json],
}

/// A text taken apart at its messages: `before`, `lead`, the messages with `separator` between them, `trail`, `after`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) before: &'a str,
    pub(crate) lead: &'a str,
    pub(crate) messages: Vec<&'a str>,
    pub(crate) separator: &'a str,
    pub(crate) trail: &'a str,
    pub(crate) after: &'a str,
}

/// A value as a caller gives it.
#[derive(Clone, Copy)]
pub(crate) enum Given<'a> {
    Single(&'a Json),
    List(&'a [Json]),
}

/// What reading a whole value yields: its messages and their digests.
pub(crate) struct Prepared {
    layout: Option<Layout>,
    pub(crate) digests: Option<Digests>,
}

impl<'a> Given<'a> {
    fn size_bytes(self) -> usize {
        match self {
            Self::Single(value) => value.as_str().len(),
            Self::List(values) => values.iter().map(|value| value.as_str().len().saturating_add(1)).sum(),
        }
    }

    /// Checks a value and reads its messages.
    ///
    /// # Errors
    /// [`TooLarge`](ErrorKind::TooLarge) over a limit, [`InvalidArgument`](ErrorKind::InvalidArgument) for a list that nests too deep.
    pub(crate) async fn prepare(self, options: &Arc<AgentStatesOptions>) -> Result<Prepared> {
        let size_bytes = self.size_bytes();
        if size_bytes > options.value_bytes_max {
            let max = options.value_bytes_max;
            let message = format!("the state has {size_bytes} bytes and at most {max} are allowed; compact its context");
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let options = options.clone();
        let prepared = match self {
            Self::Single(value) => {
                let value = value.clone();
                work::run(size_bytes as u64, move |_| Prepared::of(Given::Single(&value), &options)).await
            }
            Self::List(values) => {
                let values = values.to_vec();
                work::run(size_bytes as u64, move |_| Prepared::of(Given::List(&values), &options)).await
            }
        };
        prepared.map_err(Error::without_effect)?
    }

    /// Returns the content, after it was prepared.
    pub(crate) fn content(self, prepared: &Prepared) -> Content<'a> {
        match self {
            Self::Single(value) => Content::single(value, prepared.layout.as_ref()),
            Self::List(values) => Content::list(values),
        }
    }
}

impl Prepared {
    fn of(given: Given<'_>, options: &AgentStatesOptions) -> Result<Self> {
        let layout = match given {
            Given::Single(value) => Layout::of(value.as_str()).filter(|layout| layout.messages.len() <= MESSAGES_MAX),
            Given::List(_) => None,
        };
        let mut prepared = Self { layout, digests: None };
        let content = given.content(&prepared);
        content.check(options)?;
        let digests = content.frame().map(Digests::of);
        prepared.digests = digests;
        Ok(prepared)
    }
}

impl<'a> Content<'a> {
    /// Returns a single value with its messages, if it has a layout for them.
    pub(crate) fn single(value: &'a Json, layout: Option<&Layout>) -> Self {
        let text = value.as_str();
        Self { form: Form::Single, text: Some(text), frame: layout.map(|layout| layout.frame(text)), values: &[] }
    }

    pub(crate) fn list(values: &'a [Json]) -> Self {
        let messages = || values.iter().map(Json::as_str).collect();
        let frame = (values.len() <= MESSAGES_MAX).then(|| Frame {
            before: "[",
            lead: "",
            messages: messages(),
            separator: ",",
            trail: "",
            after: "]",
        });
        Self { form: Form::List, text: None, frame, values }
    }

    pub(crate) fn form(&self) -> Form {
        self.form
    }

    pub(crate) fn frame(&self) -> Option<&Frame<'a>> {
        self.frame.as_ref()
    }

    /// Returns the text of a value that is kept whole.
    pub(crate) fn whole(&self) -> String {
        match self.text {
            Some(text) => text.to_owned(),
            None => format!("[{}]", self.values.iter().map(Json::as_str).collect::<Vec<_>>().join(",")),
        }
    }

    /// Checks the sizes of the messages, and how deep a list nests.
    fn check(&self, options: &AgentStatesOptions) -> Result<()> {
        let max = options.message_bytes_max;
        for (index, message) in self.frame.iter().flat_map(|frame| &frame.messages).enumerate() {
            if message.len() > max {
                let size_bytes = message.len();
                let message = format!("message {index} has {size_bytes} bytes and at most {max} are allowed; keep large results in files");
                return Err(Error::new(ErrorKind::TooLarge, message));
            }
        }
        // A list is also read as one array: over HTTP, in an export, and if it is kept whole.
        let too_deep = |value: &Json| text_depth(value.as_str()) >= JSON_DEPTH_MAX;
        if let Some(index) = self.values.iter().position(too_deep) {
            let message = format!("element {index} of the list nests deeper than {} levels; flatten it", JSON_DEPTH_MAX - 1);
            return Err(Error::invalid_argument(message).without_effect());
        }
        Ok(())
    }
}

/// Where the messages are in a text.
pub(crate) struct Layout {
    /// The inside of the array.
    inner: Range<usize>,
    messages: Vec<Range<usize>>,
}

impl Layout {
    /// Finds the elements of the only member `context` of a text; `None` if it has none, if that is not an array, or if the white space
    /// between its elements differs, so that the text could not be put together again.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let mut contexts = members(text)?.into_iter().filter(|(name, _)| name == CONTEXT);
        let (_, context) = contexts.next()?;
        if contexts.next().is_some() {
            return None;
        }
        let messages: Vec<&RawValue> = serde_json::from_str(context).ok()?;
        let messages: Vec<Range<usize>> = messages.into_iter().map(|message| range_in(text, message.get())).collect();
        let mut gaps = messages.windows(2).map(|pair| &text[pair[0].end..pair[1].start]);
        if let Some(separator) = gaps.next()
            && gaps.any(|gap| gap != separator)
        {
            return None;
        }
        let whole = range_in(text, context);
        Some(Self { inner: whole.start + 1..whole.end - 1, messages })
    }

    /// Takes the text apart.
    fn frame<'a>(&self, text: &'a str) -> Frame<'a> {
        let Range { start, end } = self.inner;
        let (before, inner, after) = (&text[..start], &text[start..end], &text[end..]);
        let (lead, trail) = match (self.messages.first(), self.messages.last()) {
            (Some(first), Some(last)) => (&text[start..first.start], &text[last.end..end]),
            _ => (inner, ""),
        };
        let separator = self.messages.windows(2).next().map_or(",", |pair| &text[pair[0].end..pair[1].start]);
        Frame { before, lead, messages: self.messages.iter().map(|message| &text[message.clone()]).collect(), separator, trail, after }
    }
}

impl<'a> Frame<'a> {
    /// Takes a text apart at its messages; `None` if it could not be put together again.
    pub(crate) fn of(text: &'a str) -> Option<Self> {
        Layout::of(text).map(|layout| layout.frame(text))
    }
}

/// Returns where a part of a text lies in it.
pub(crate) fn range_in(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}

/// Returns the members of an object with their texts, in order; `None` for text that is not an object.
pub(crate) fn members(text: &str) -> Option<Vec<(String, &str)>> {
    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(String, &'de str)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                members.push((name, value.get()));
            }
            Ok(members)
        }
    }

    if !text.starts_with('{') {
        return None;
    }
    serde_json::Deserializer::from_str(text).deserialize_map(Members).ok()
}

/// Where messages are: a run of positions of a segment of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The index of the segment.
    #[serde(rename = "s", default, skip_serializing_if = "is_zero")]
    pub(crate) segment: usize,
    #[serde(rename = "f")]
    pub(crate) from: u64,
    #[serde(rename = "t")]
    pub(crate) to: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A part of a log with a namespace of its own. The first one has no id: it is in the namespace of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// The first position that may be in it. Positions grow from segment to segment.
    pub(crate) start: u64,
}

impl Segment {
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }
}

/// The log of a value: every message that it ever had, until retention removes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Log {
    pub(crate) id: String,
    /// The position that the next message gets.
    pub(crate) end: u64,
    /// New messages go to the last one.
    pub(crate) segments: Vec<Segment>,
}

impl Log {
    pub(crate) fn new(id: String) -> Self {
        Self { id, end: 0, segments: vec![Segment { id: None, start: 0 }] }
    }
}

/// The messages of a value, within its log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Where they belong in the text, in bytes.
    pub(crate) at: usize,
    pub(crate) lead: String,
    pub(crate) separator: String,
    pub(crate) trail: String,
    pub(crate) count: u64,
    /// The digest of all of them in order, in hexadecimal.
    pub(crate) digest: String,
    pub(crate) runs: Vec<Run>,
}

/// What a head holds: the text of the value without its messages, and where these are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) log: Option<Log>,
    pub(crate) window: Option<Window>,
    pub(crate) text: String,
}

/// The first line of a head.
#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log: Option<Log>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<Window>,
}

impl Body {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut body = row(&Header { log: self.log, window: self.window });
        body.push(b'\n');
        body.extend_from_slice(self.text.as_bytes());
        seal(&body)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let body = unseal("state", value)?;
        let end = body.iter().position(|byte| *byte == b'\n').ok_or_else(|| corrupt("state"))?;
        let Header { log, window } = stored("state", &body[..end])?;
        let text = std::str::from_utf8(&body[end + 1..]).map_err(|error| corrupt("state").with_source(error))?;
        if let Some(window) = &window {
            let log = log.as_ref().ok_or_else(|| corrupt("state"))?;
            let runs = window.runs.iter().all(|run| run.from < run.to && run.to <= log.end && run.segment < log.segments.len());
            let count = window.runs.iter().fold(0_u64, |count, run| count.saturating_add(run.to.saturating_sub(run.from)));
            if !runs || count != window.count || !text.is_char_boundary(window.at) {
                return Err(corrupt("state"));
            }
        }
        Ok(Self { log, window, text: text.to_owned() })
    }

    /// Puts the text together again.
    pub(crate) fn assemble(&self, messages: &[Bytes]) -> Result<Json> {
        let Some(window) = &self.window else { return json(&self.text) };
        let size_bytes = messages.iter().map(|message| message.len() + window.separator.len()).sum::<usize>() + self.text.len();
        let mut text = String::with_capacity(size_bytes + window.lead.len() + window.trail.len());
        text.push_str(&self.text[..window.at]);
        text.push_str(&window.lead);
        for (index, message) in messages.iter().enumerate() {
            if index > 0 {
                text.push_str(&window.separator);
            }
            text.push_str(std::str::from_utf8(message).map_err(|error| corrupt("message").with_source(error))?);
        }
        text.push_str(&window.trail);
        text.push_str(&self.text[window.at..]);
        json(&text)
    }

    /// Returns the elements of a list.
    pub(crate) fn elements(&self, messages: &[Bytes]) -> Result<Vec<Json>> {
        match self.window {
            Some(_) => messages.iter().map(|message| message_json(message)).collect(),
            None => json(&self.text)?.view().map_err(|error| corrupt("list of states").with_source(error)),
        }
    }
}

fn json(text: &str) -> Result<Json> {
    Json::parse(text).map_err(|error| corrupt("state").with_source(error))
}

/// Reads a message.
pub(crate) fn message_json(message: &[u8]) -> Result<Json> {
    Json::from_bytes(message).map_err(|error| corrupt("message").with_source(error))
}

/// The digests of the messages of a content.
pub(crate) struct Digests {
    pub(crate) each: Vec<Digest>,
    /// The digest of the first n messages, by n.
    pub(crate) chained: Vec<Digest>,
}

impl Digests {
    pub(crate) fn of(frame: &Frame<'_>) -> Self {
        let each: Vec<Digest> = frame.messages.iter().map(|message| digest_of(message)).collect();
        let mut chained = vec![NO_MESSAGES];
        for digest in &each {
            chained.push(chain(&chained[chained.len() - 1], digest));
        }
        Self { each, chained }
    }

    /// Returns whether the messages start with those of a window.
    pub(crate) fn start_with(&self, window: &Window) -> bool {
        let chained = usize::try_from(window.count).ok().and_then(|count| self.chained.get(count));
        chained.is_some_and(|digest| hex(digest) == window.digest)
    }
}

pub(crate) fn hex(digest: &Digest) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(frame: &Frame<'_>) -> String {
        let Frame { before, lead, messages, separator, trail, after } = frame;
        format!("{before}{lead}{}{trail}{after}", messages.join(separator))
    }

    #[test]
    fn text_is_taken_apart_at_its_messages_and_put_together_again() {
        for (text, messages) in [
            (r#"{"context":[]}"#, &[][..]),
            (r#"{"context":[ ]}"#, &[]),
            (r#"{"a":1, "context" : [1] ,"b":{"context":[2]}}"#, &["1"]),
            (r#"{"context":[ {"a":[1,2]} , "x" , null ]}"#, &[r#"{"a":[1,2]}"#, r#""x""#, "null"]),
            ("{\n  \"context\": [\n    1,\n    2\n  ]\n}", &["1", "2"]),
            (r#"{"cont\u0065xt":[1]}"#, &["1"]),
        ] {
            let frame = Frame::of(text).expect("it has messages");
            assert_eq!((joined(&frame).as_str(), frame.messages.as_slice()), (text, messages));
        }
    }

    #[test]
    fn text_that_could_not_be_put_together_again_is_kept_whole() {
        for text in [
            "1",
            "null",
            r#"["context"]"#,
            "{}",
            r#"{"context":1}"#,
            r#"{"context":{"a":[1]}}"#,
            r#"{"x":{"context":[1]}}"#,
            r#"{"context":[1,2, 3]}"#,
            r#"{"context":[1],"context":[2]}"#,
        ] {
            assert_eq!(Frame::of(text), None, "{text}");
        }
    }
}
