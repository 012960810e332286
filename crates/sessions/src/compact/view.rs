//! Views of a long window for a model: two layers of compaction that leave the stored messages as they are.
//!
//! [`shorten`] replaces long tool results with their beginning and the path of the full text. [`Reactive`] decides, while a
//! request runs, when to remove tool results of old rounds, and when to summarise.

use crate::memo::tool_result_path;
use crate::message::{Content, Message, Role};
use serde_json::{Value, json};
use treehold_core::error::Result;
use treehold_core::json::Json;

/// Where a sandbox sees the files of a session.
const SESSION_MOUNT: &str = "/workspace/memo/session";

/// When a tool result is shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ViewOptions {
    /// The estimate above which a tool result is shortened. Default 1,500 tokens.
    pub result_tokens_max: u64,
    /// How many of the newest tool results may be longer. Default 2.
    pub recent_results: usize,
    /// How much of the text is shown, in characters. Default 200.
    pub preview_characters: usize,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self { result_tokens_max: 1_500, recent_results: 2, preview_characters: 200 }
    }
}

impl ViewOptions {
    /// Returns the estimate above which one of the newest tool results is shortened: four times the usual one, at least
    /// 6,000 tokens.
    pub fn recent_result_tokens_max(&self) -> u64 {
        self.result_tokens_max.saturating_mul(4).max(6_000)
    }
}

/// A window in the form that a model is shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct View {
    /// The messages.
    pub messages: Vec<Message>,
    /// The full texts of tool results that were shortened, by tool call. Write them with
    /// [`Sessions::write_tool_result`](crate::Sessions::write_tool_result) before the call of the model.
    pub tool_results: Vec<(String, String)>,
}

/// Shortens long tool results, and removes images from all but the newest ones. The stored messages stay as they are.
///
/// # Errors
/// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for a tool call whose id is too long for a file.
pub fn shorten(messages: &[Message], options: &ViewOptions) -> Result<View> {
    let mut view = View::default();
    let results = messages.iter().filter(|message| message.role() == Role::ToolResult).count();
    let mut seen = 0;
    for message in messages {
        let Some(id) = message.answers() else {
            view.messages.push(message.clone());
            continue;
        };
        seen += 1;
        let is_recent = results - seen < options.recent_results;
        let text = message.text();
        let max = if is_recent { options.recent_result_tokens_max() } else { options.result_tokens_max };
        let is_long = crate::tokens::estimate(&text) > max;
        let images = if is_recent { 0 } else { images_of(message) };
        if !is_long && images == 0 {
            view.messages.push(message.clone());
            continue;
        }
        let mut shown = if is_long { preview(&text, id, options)? } else { text.clone() };
        if images > 0 {
            shown.push_str(&format!("\n[{images} image(s) removed from context]"));
        }
        if is_long {
            view.tool_results.push((id.to_owned(), text));
        }
        view.messages.push(with_text(message, &shown)?);
    }
    Ok(view)
}

fn preview(text: &str, id: &str, options: &ViewOptions) -> Result<String> {
    let start: String = text.chars().take(options.preview_characters).collect();
    Ok(format!("{start}…\n[full result: {SESSION_MOUNT}{}]", tool_result_path(id)?))
}

fn images_of(message: &Message) -> usize {
    match message.content() {
        Content::Text(_) => 0,
        Content::Blocks(blocks) => blocks.iter().filter(|block| block.kind == "image").count(),
    }
}

/// Returns a message with one text as its content, and all its other fields.
fn with_text(message: &Message, text: &str) -> Result<Message> {
    let mut fields: serde_json::Map<String, Value> = message.json().view()?;
    fields.insert("content".to_owned(), json!([{"type": "text", "text": text.trim_start_matches('\n')}]));
    Message::from_json(Json::of(&fields)?)
}

/// When a running request shortens the messages that it sends to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReactiveOptions {
    /// The share of the context, in percent, at which old tool results are removed. Default 85.
    pub micro_trigger_pct: u64,
    /// The share of the context, in percent, at which old rounds are summarised. Default 92.
    pub full_trigger_pct: u64,
    /// How many of the newest rounds are never changed. Default 2.
    pub preserve_recent_api_rounds: usize,
    /// How many rounds one removal takes the tool results from. Default 2.
    pub micro_batch_groups: usize,
    /// How often one request may compact. Default 3.
    pub max_per_request: usize,
}

impl Default for ReactiveOptions {
    fn default() -> Self {
        Self { micro_trigger_pct: 85, full_trigger_pct: 92, preserve_recent_api_rounds: 2, micro_batch_groups: 2, max_per_request: 3 }
    }
}

/// What a running request does when the context fills up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReactiveStep {
    /// Remove tool results of old rounds, see [`Reactive::remove_results`].
    Micro,
    /// Summarise old rounds, see [`Reactive::split`].
    Full,
}

/// Decides on compaction within one request. Create one for each request.
#[derive(Debug, Clone, Default)]
pub struct Reactive {
    options: ReactiveOptions,
    done: usize,
}

/// The text that replaces a removed tool result.
const REMOVED: &str = "[tool result removed from context]";

impl Reactive {
    /// Starts the state of a request.
    pub fn new(options: ReactiveOptions) -> Self {
        Self { options, done: 0 }
    }

    /// Decides what to do about a context of `used_tokens` out of `context_tokens`. A prompt that the model refused as too
    /// long needs the full step. Returns `None` if nothing is to be done, or if the request did so often enough.
    pub fn decide(&mut self, used_tokens: u64, context_tokens: u64, is_too_long: bool) -> Option<ReactiveStep> {
        if self.done == self.options.max_per_request {
            return None;
        }
        let is_over = |pct: u64| u128::from(used_tokens) * 100 >= u128::from(pct) * u128::from(context_tokens.max(1));
        let step = if is_too_long || is_over(self.options.full_trigger_pct) {
            ReactiveStep::Full
        } else if is_over(self.options.micro_trigger_pct) {
            ReactiveStep::Micro
        } else {
            return None;
        };
        self.done += 1;
        Some(step)
    }

    /// Removes the tool results of the oldest rounds that still have some.
    ///
    /// # Errors
    /// None for messages that were parsed.
    pub fn remove_results(&self, messages: &[Message]) -> Result<Vec<Message>> {
        let rounds = self.old_rounds(messages);
        let has_results = |range: &std::ops::Range<usize>| {
            messages[range.clone()].iter().any(|message| message.role() == Role::ToolResult && message.text() != REMOVED)
        };
        let chosen: Vec<_> = rounds.into_iter().filter(has_results).take(self.options.micro_batch_groups).collect();
        let mut shown = messages.to_vec();
        for index in chosen.into_iter().flatten() {
            if shown[index].role() == Role::ToolResult {
                shown[index] = with_text(&shown[index], REMOVED)?;
            }
        }
        Ok(shown)
    }

    /// Splits messages into those to summarise and those that stay. No tool result is separated from its call.
    pub fn split<'m>(&self, messages: &'m [Message]) -> (&'m [Message], &'m [Message]) {
        let cut = self.old_rounds(messages).last().map_or(0, |round| round.end);
        messages.split_at(cut)
    }

    /// Returns the rounds before the newest ones. A round begins with a message of the model, or with the first message.
    fn old_rounds(&self, messages: &[Message]) -> Vec<std::ops::Range<usize>> {
        let starts: Vec<usize> =
            messages.iter().enumerate().filter(|(_, message)| message.role() == Role::Assistant).map(|(index, _)| index).collect();
        let old = starts.len().saturating_sub(self.options.preserve_recent_api_rounds);
        (0..old).map(|round| starts[round]..starts[round + 1..].first().copied().unwrap_or(messages.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(id: &str, text: &str, image: bool) -> Message {
        let mut content = vec![json!({"type": "text", "text": text})];
        if image {
            content.push(json!({"type": "image", "data": "AAAA"}));
        }
        let value = json!({"role": "toolResult", "toolCallId": id, "toolName": "t", "content": content, "isError": false, "later": 1});
        Message::parse(&value.to_string()).expect("valid")
    }

    fn call(id: &str) -> Message {
        let value = json!({"role": "assistant", "content": [{"type": "toolCall", "id": id, "name": "t", "arguments": {}}]});
        Message::parse(&value.to_string()).expect("valid")
    }

    #[test]
    fn long_results_are_shortened_except_the_newest() {
        let long = "x".repeat(6_004);
        let messages = [
            call("a"),
            result("a", &long, false),
            call("b"),
            result("b", "short", true),
            call("c"),
            result("c", &"y".repeat(6_000), false),
            call("d"),
            result("d", &long, true),
            call("e"),
            result("e", &"z".repeat(24_004), false),
        ];
        let view = shorten(&messages, &ViewOptions::default()).expect("valid");
        assert_eq!(view.messages.len(), messages.len());
        let text = view.messages[1].text();
        assert_eq!(text, format!("{}…\n[full result: /workspace/memo/session/tool-results/a.txt]", "x".repeat(200)));
        assert!(view.messages[1].json().as_str().contains(r#""later":1"#));
        assert_eq!(view.messages[3].text(), "short\n[1 image(s) removed from context]");
        assert_eq!((&view.messages[5], &view.messages[7]), (&messages[5], &messages[7]));
        let kept: Vec<_> = view.tool_results.iter().map(|(id, text)| (id.as_str(), text.len())).collect();
        assert_eq!(kept, [("a", 6_004), ("e", 24_004)]);
    }

    #[test]
    fn reactive_compaction_follows_its_triggers_and_its_limit() {
        let mut reactive = Reactive::new(ReactiveOptions::default());
        assert_eq!(reactive.decide(84, 100, false), None);
        assert_eq!(reactive.decide(85, 100, false), Some(ReactiveStep::Micro));
        assert_eq!(reactive.decide(92, 100, false), Some(ReactiveStep::Full));
        assert_eq!(reactive.decide(1, 100, true), Some(ReactiveStep::Full));
        assert_eq!(reactive.decide(99, 100, true), None, "there are at most three reactive compactions");
        let messages: Vec<Message> = ["a", "b", "c", "d", "e"].iter().flat_map(|id| [call(id), result(id, "text", false)]).collect();
        let texts = |messages: &[Message]| messages.iter().skip(1).step_by(2).map(Message::text).collect::<Vec<_>>();
        let once = reactive.remove_results(&messages).expect("valid");
        assert_eq!(texts(&once), [REMOVED, REMOVED, "text", "text", "text"]);
        let twice = reactive.remove_results(&once).expect("valid");
        assert_eq!(texts(&twice), [REMOVED, REMOVED, REMOVED, "text", "text"]);
        assert_eq!(reactive.remove_results(&twice).expect("valid"), twice, "the newest rounds stay");
        let (old, stays) = reactive.split(&messages);
        assert_eq!((old.len(), stays.len()), (6, 4));
        assert_eq!(reactive.split(&messages[..4]).0.len(), 0);
    }
}
