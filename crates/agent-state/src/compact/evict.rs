//! Long results of tools: the text goes to a file, its start and end stay.

use super::hooks::Offload;
use super::options::EvictionOptions;
use crate::state::{Block, CallState, Message, ToolResultBlock};
use treehold_core::error::Result;
use treehold_core::json::Json;

/// The metadata field that marks a result whose text was evicted.
pub const METADATA_EVICTED: &str = "agentscope.tool_result_evicted";

/// Replaces the texts of long tool results by their start, their end and the path of a file with the whole. Returns how many.
///
/// Results that were replaced already stay, and so do blocks of a result that are not text. Messages that were added meanwhile are not
/// looked at. Cost: one write for each long result.
///
/// # Errors
/// Those of [`Offload::keep_tool_result`]. The context then stays as it is; files that were written are written again next time.
pub async fn evict_tool_results(state: &CallState, agent: &str, options: &EvictionOptions, offload: &dyn Offload) -> Result<usize> {
    // The text of a result is not longer than that of its message.
    let long = |message: &&Message| !message.answers().is_empty() && message.json().as_str().len() > options.chars_max;
    let messages: Vec<Message> = state.lock().context().iter().filter(long).cloned().collect();
    let (mut replaced, mut evicted) = (Vec::new(), 0);
    for message in messages {
        let mut content = message.content();
        let mut changed = false;
        for block in &mut content {
            if let Block::ToolResult(result) = block
                && let Some(text) = text_to_evict(result, options)
            {
                let path = offload.keep_tool_result(&file(agent, result, &text, options), &text).await?;
                replace(result, &text, &path, options);
                (changed, evicted) = (true, evicted + 1);
            }
        }
        if changed {
            let shorter = message.edited(|fields| fields.content = content)?;
            replaced.push((message, shorter));
        }
    }
    let mut state = state.lock();
    for (message, shorter) in replaced {
        if let Some(place) = state.context_mut().iter_mut().find(|other| **other == message) {
            *place = shorter;
        }
    }
    Ok(evicted)
}

fn text_to_evict(result: &ToolResultBlock, options: &EvictionOptions) -> Option<String> {
    let excluded = result.name.as_ref().is_some_and(|name| options.excluded_tools.contains(name));
    let done = result.metadata.get(METADATA_EVICTED).is_some_and(|value| value.as_str() == "true");
    if excluded || done {
        return None;
    }
    let text = result.output_text();
    (text.chars().nth(options.chars_max).is_some()).then_some(text)
}

/// Returns the path of a file: by the agent, the call and the text.
fn file(agent: &str, result: &ToolResultBlock, text: &str, options: &EvictionOptions) -> String {
    let plain = |text: &str| -> String {
        let plain = |character: char| if character.is_ascii_alphanumeric() || "_-".contains(character) { character } else { '_' };
        text.chars().take(64).map(plain).collect()
    };
    let call = result.id.as_deref().unwrap_or("call");
    // Different calls have different files, however much their ids look alike in plain characters.
    let digest = blake3::hash(format!("{call}\n{text}").as_bytes()).to_hex();
    format!("{}/{}/{}-{}", options.directory.trim_end_matches('/'), plain(agent), plain(call), &digest[..16])
}

fn replace(result: &mut ToolResultBlock, text: &str, path: &str, options: &EvictionOptions) {
    let count = text.chars().count();
    let shown = options.preview_chars.min(count / 2);
    let at = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (&text[..at(shown)], &text[at(count - shown)..]);
    let placeholder = format!(
        "This result of {count} characters is too long to be shown. It is kept in `{path}`: read that file in parts.\n\n\
         The first {shown} characters:\n{head}\n\nThe last {shown} characters:\n{tail}"
    );
    let at = result.output.iter().position(|block| matches!(block, Block::Text(_))).unwrap_or(0);
    result.output.retain(|block| !matches!(block, Block::Text(_)));
    result.output.insert(at, Block::text(placeholder));
    result.metadata.insert(METADATA_EVICTED, Json::parse("true").expect("valid JSON"));
}
