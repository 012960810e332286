//! Text for a system prompt: the prompt memory of the workspace, as a prompt and at the end of the instructions.

use super::resources::protocol_error;
use rmcp::ErrorData;
use rmcp::model::{CacheScope, GetPromptResult, ListPromptsResult, Prompt, PromptMessage, Role};
use treehold_agent::session::Threads;
use treehold_core::error::Result;
use treehold_core::scope::Scope;

/// The assumed number of characters per token.
const CHARS_A_TOKEN: usize = 4;

/// The name of the prompt.
pub(super) const MEMORY: &str = "memory";

/// Returns the only prompt.
pub(super) fn list() -> ListPromptsResult {
    let description = "The prompt memory shared by all conversations, with instructions on how to add to it";
    let prompts = vec![Prompt::new(MEMORY, Some(description), None)];
    ListPromptsResult::with_all_items(prompts).with_ttl_ms(3_600_000).with_cache_scope(CacheScope::Public)
}

/// Returns the prompt memory as a prompt.
pub(super) async fn get(threads: &Threads, scope: &Scope, may_write: bool, name: &str) -> Result<GetPromptResult, ErrorData> {
    if name != MEMORY {
        return Err(ErrorData::invalid_params(format!("there is no prompt `{name}`; the prompts are {MEMORY}"), None));
    }
    let text = memory(threads, scope, may_write, usize::MAX).await.map_err(|error| protocol_error(&error, MEMORY))?;
    let text = if text.is_empty() { "There is no prompt memory in this workspace.".to_owned() } else { text };
    Ok(GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]))
}

/// Returns the current prompt memory in at most about `chars_max` characters, or an empty string if there is none. `may_write` selects
/// whether it explains how to add to the memory.
pub(super) async fn memory(threads: &Threads, scope: &Scope, may_write: bool, chars_max: usize) -> Result<String> {
    let session = threads.session(scope).await?;
    let settings = session.memory_settings();
    let options = if may_write { settings.prompt.clone() } else { settings.prompt.clone().read_only() };
    let tokens_max = options.tokens_max.min(chars_max / CHARS_A_TOKEN);
    let memory = session.configured_memory().await;
    Ok(memory.prompt_in_background(options.with_tokens_max(tokens_max)).await?.text)
}
