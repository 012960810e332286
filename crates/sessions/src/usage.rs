//! Usage of a model, as the host reports it for each turn.

use crate::kept::Kept;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_core::error::Result;

/// The context size that [`SessionContextUsage`] compares with, in tokens.
pub const CONTEXT_TOKENS: u64 = 200_000;

/// The usage of one turn. Fields that this crate does not know survive.
pub type Usage = Kept<TurnUsage>;

/// The tokens and costs of one turn.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TurnUsage {
    /// Tokens of the prompt that did not come from a cache.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// Tokens of the prompt that came from a cache.
    pub cache_read_tokens: u64,
    /// Tokens that were written to a cache.
    pub cache_write_tokens: u64,
    /// All tokens, as the host counts them.
    pub total_tokens: u64,
    /// The cost of the turn.
    pub cost: Cost,
}

/// The cost of a turn, in the host's currency.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Cost {
    /// The cost of the prompt.
    pub input: f64,
    /// The cost of the answer.
    pub output: f64,
    /// The cost of reads from a cache.
    pub cache_read: f64,
    /// The cost of writes to a cache.
    pub cache_write: f64,
    /// The sum.
    pub total: f64,
}

impl Usage {
    /// Creates the usage of a turn without caches and costs.
    ///
    /// # Errors
    /// None: the signature is that of [`Kept::of`].
    pub fn of_tokens(input_tokens: u64, output_tokens: u64) -> Result<Self> {
        let total_tokens = input_tokens.saturating_add(output_tokens);
        Self::of(TurnUsage { input_tokens, output_tokens, total_tokens, ..TurnUsage::default() })
    }
}

/// The tokens of all turns of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UsageTotals {
    /// Tokens of prompts that did not come from a cache.
    pub input_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Tokens of prompts that came from a cache.
    pub cache_read_tokens: u64,
    /// Tokens that were written to a cache.
    pub cache_write_tokens: u64,
}

impl UsageTotals {
    /// Adds a turn.
    pub(crate) fn add(&mut self, turn: &Self) {
        let sum = |total: &mut u64, more: u64| *total = total.saturating_add(more);
        sum(&mut self.input_tokens, turn.input_tokens);
        sum(&mut self.output_tokens, turn.output_tokens);
        sum(&mut self.cache_read_tokens, turn.cache_read_tokens);
        sum(&mut self.cache_write_tokens, turn.cache_write_tokens);
    }
}

impl From<&TurnUsage> for UsageTotals {
    fn from(usage: &TurnUsage) -> Self {
        let TurnUsage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, .. } = *usage;
        Self { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens }
    }
}

/// How full the model's context was at the last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionContextUsage {
    /// All tokens of the last prompt, including those read from or written to a cache.
    pub input_tokens: u64,
    /// Tokens of the last answer.
    pub output_tokens: u64,
    /// The sum of both as a share of [`CONTEXT_TOKENS`], in percent, rounded.
    pub budget_used_pct: u64,
}

impl From<&UsageTotals> for SessionContextUsage {
    fn from(turn: &UsageTotals) -> Self {
        let input_tokens = turn.input_tokens.saturating_add(turn.cache_read_tokens).saturating_add(turn.cache_write_tokens);
        let total = input_tokens.saturating_add(turn.output_tokens);
        let budget_used_pct = (total as f64 / CONTEXT_TOKENS as f64 * 100.0).round() as u64;
        Self { input_tokens, output_tokens: turn.output_tokens, budget_used_pct }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_keeps_unknown_fields_and_context_usage_is_rounded() {
        let text =
            r#"{"inputTokens":1000,"outputTokens":500,"cacheReadTokens":1400,"cacheWriteTokens":100,"cost":{"total":0.10},"region":"eu"}"#;
        let usage = Usage::parse(text).expect("valid");
        assert_eq!(serde_json::to_string(&usage).expect("plain"), text);
        assert_eq!(usage.cost.total, 0.1);
        let context = SessionContextUsage::from(&UsageTotals::from(&*usage));
        assert_eq!(context, SessionContextUsage { input_tokens: 2_500, output_tokens: 500, budget_used_pct: 2 });
        assert!(Usage::parse(r#"{"inputTokens":-1}"#).is_err());
        assert!(Usage::parse(r#"{"inputTokens":"1"}"#).is_err());
    }
}
