//! When to compact, and how much to keep.

use std::collections::BTreeSet;
use treehold_core::error::{Error, Result};

/// The trigger where the model's context window is unknown, in tokens.
pub const FALLBACK_TRIGGER_TOKENS: u64 = 160_000;

/// From how many tokens on a context is compacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TokenTrigger {
    /// The model's context window without [`CompactionOptions::reserved_tokens`], or half of the window if that is not more.
    /// [`FALLBACK_TRIGGER_TOKENS`] if the window is unknown.
    #[default]
    Dynamic,
    /// From this many.
    At(u64),
    /// Their number does not matter.
    Never,
}

/// How much of the newest messages a compaction keeps as they are.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Keep {
    /// [`CompactionOptions::keep_ratio`] of the usable context window, at least [`CompactionOptions::keep_tokens_min`] and at most
    /// [`CompactionOptions::keep_tokens_max`]. [`CompactionOptions::keep_messages`] messages if the window is unknown.
    #[default]
    Dynamic,
    /// As many messages as fit in these tokens, at least one.
    Tokens(u64),
    /// These many messages, at least one.
    Messages(usize),
}

/// When to compact, and how much to keep.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CompactionOptions {
    /// From how many messages on a context is compacted: 50 by default. 0 for any number.
    pub trigger_messages: usize,
    /// From how many tokens on a context is compacted.
    pub trigger_tokens: TokenTrigger,
    /// The tokens that the prompt and the answer of the summary need: 20,000 by default.
    pub reserved_tokens: u64,
    /// The model's context window in tokens.
    pub context_window: Option<u64>,
    /// How much to keep.
    pub keep: Keep,
    /// See [`Keep::Dynamic`]: 20 by default.
    pub keep_messages: usize,
    /// See [`Keep::Dynamic`]: 2,000 by default.
    pub keep_tokens_min: u64,
    /// See [`Keep::Dynamic`]: 8,000 by default.
    pub keep_tokens_max: u64,
    /// See [`Keep::Dynamic`]: 0.25 by default.
    pub keep_ratio: f64,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        Self {
            trigger_messages: 50,
            trigger_tokens: TokenTrigger::Dynamic,
            reserved_tokens: 20_000,
            context_window: None,
            keep: Keep::Dynamic,
            keep_messages: 20,
            keep_tokens_min: 2_000,
            keep_tokens_max: 8_000,
            keep_ratio: 0.25,
        }
    }
}

impl CompactionOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets from how many messages on a context is compacted. 0 for any number.
    #[must_use]
    pub fn with_trigger_messages(mut self, messages: usize) -> Self {
        self.trigger_messages = messages;
        self
    }

    /// Sets from how many tokens on a context is compacted.
    #[must_use]
    pub fn with_trigger_tokens(mut self, trigger: TokenTrigger) -> Self {
        self.trigger_tokens = trigger;
        self
    }

    /// Sets the tokens that the prompt and the answer of the summary need.
    #[must_use]
    pub fn with_reserved_tokens(mut self, tokens: u64) -> Self {
        self.reserved_tokens = tokens;
        self
    }

    /// Sets the model's context window in tokens.
    #[must_use]
    pub fn with_context_window(mut self, tokens: Option<u64>) -> Self {
        self.context_window = tokens;
        self
    }

    /// Sets how much to keep.
    #[must_use]
    pub fn with_keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Sets the numbers of [`Keep::Dynamic`].
    #[must_use]
    pub fn with_dynamic_keep(mut self, messages: usize, tokens_min: u64, tokens_max: u64, ratio: f64) -> Self {
        (self.keep_messages, self.keep_tokens_min, self.keep_tokens_max, self.keep_ratio) = (messages, tokens_min, tokens_max, ratio);
        self
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for a ratio outside of 0 to 1.
    pub(crate) fn check(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.keep_ratio) {
            return Err(Error::invalid_argument(format!("the ratio to keep is {}; it must be from 0 to 1", self.keep_ratio)));
        }
        Ok(())
    }

    /// Returns from how many tokens on a context is compacted; `None` if their number does not matter.
    pub fn effective_trigger_tokens(&self) -> Option<u64> {
        match (self.trigger_tokens, self.context_window) {
            (TokenTrigger::Never, _) => None,
            (TokenTrigger::At(tokens), _) => Some(tokens),
            (TokenTrigger::Dynamic, None) => Some(FALLBACK_TRIGGER_TOKENS),
            (TokenTrigger::Dynamic, Some(window)) => match window.saturating_sub(self.reserved_tokens) {
                0 => Some((window / 2).max(1)),
                usable => Some(usable),
            },
        }
    }

    /// Returns how much to keep, without [`Keep::Dynamic`].
    pub fn effective_keep(&self) -> Keep {
        match (self.keep, self.context_window) {
            (Keep::Dynamic, None) => Keep::Messages(self.keep_messages),
            (Keep::Dynamic, Some(window)) => {
                let usable = window.saturating_sub(self.reserved_tokens);
                let share = (usable as f64 * self.keep_ratio) as u64;
                Keep::Tokens(share.max(self.keep_tokens_min).min(self.keep_tokens_max))
            }
            (keep, _) => keep,
        }
    }

    /// Returns whether a context is compacted.
    pub fn is_due(&self, messages: usize, tokens: u64) -> bool {
        let by_messages = self.trigger_messages > 0 && messages >= self.trigger_messages;
        by_messages || self.effective_trigger_tokens().is_some_and(|trigger| tokens >= trigger)
    }
}

/// Which results of tools leave the context.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvictionOptions {
    /// The longest text of a result in characters that stays: 80,000 by default.
    pub chars_max: usize,
    /// How many characters of the start and of the end stay: 2,000 by default.
    pub preview_chars: usize,
    /// The directory of the files: `large_tool_results` by default.
    pub directory: String,
    /// The tools whose results stay, whatever their length: by default those that read files and memories a part at a time, since
    /// reading the file of an evicted result would only evict it again.
    pub excluded_tools: BTreeSet<String>,
}

impl Default for EvictionOptions {
    fn default() -> Self {
        let excluded = [
            "edit_file",
            "glob_files",
            "grep_files",
            "list_files",
            "memory_get",
            "memory_search",
            "read_file",
            "session_search",
            "write_file",
        ];
        Self {
            chars_max: 80_000,
            preview_chars: 2_000,
            directory: "large_tool_results".to_owned(),
            excluded_tools: excluded.map(str::to_owned).into(),
        }
    }
}

impl EvictionOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the longest text of a result in characters that stays.
    #[must_use]
    pub fn with_chars_max(mut self, chars: usize) -> Self {
        self.chars_max = chars;
        self
    }

    /// Sets how many characters of the start and of the end stay.
    #[must_use]
    pub fn with_preview_chars(mut self, chars: usize) -> Self {
        self.preview_chars = chars;
        self
    }

    /// Sets the directory of the files.
    #[must_use]
    pub fn with_directory(mut self, directory: impl Into<String>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Sets the tools whose results stay.
    #[must_use]
    pub fn with_excluded_tools<T: Into<String>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.excluded_tools = tools.into_iter().map(Into::into).collect();
        self
    }
}
