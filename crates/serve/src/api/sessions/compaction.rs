//! Compaction in two requests: the client asks what to summarise, makes the summary, and sends it.

use super::super::exchange::{Answer, Asked, json};
use crate::rights::Access;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treehold_sessions::{CompactOptions, Message, SessionWindow};

/// When to compact, and how much.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CompactionQuery {
    /// The estimate of the window at which it is compacted. Default 80,000 tokens.
    trigger_tokens: Option<u64>,
    /// The share of the messages to compact, from 0 to 1. Default 0.5.
    compact_fraction: Option<f64>,
    /// Whether to compact a window of any size. Default false.
    force: bool,
}

/// What is to be compacted.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CompactionReply {
    /// The plan; `null` if there is nothing to do.
    plan: Option<Plan>,
}

/// The messages to summarise.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CompactionPlan")]
struct Plan {
    /// The window.
    window: SessionWindow,
    /// How many messages to summarise.
    count: u64,
    /// The estimate of the messages in tokens.
    tokens: u64,
    /// The messages: the summary at the beginning of the window, if it has one, and those after it.
    messages: Vec<Message>,
}

pub(super) async fn plan(asked: Asked) -> Answer {
    let query: CompactionQuery = asked.query()?;
    let mut options = CompactOptions::new();
    options.trigger_tokens = if query.force { 0 } else { query.trigger_tokens.unwrap_or(options.trigger_tokens) };
    options.compact_fraction = query.compact_fraction.unwrap_or(options.compact_fraction);
    let at = asked.at(Access::Read).await?;
    let plan = at.sessions.plan_compaction(at.tenant(), at.id(), &options).await?;
    let plan =
        plan.map(|plan| Plan { window: plan.window, count: plan.messages.len() as u64, tokens: plan.tokens, messages: plan.messages });
    json(StatusCode::OK, CompactionReply { plan }).await
}

/// A summary that replaces the first messages of a window.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApplyCompaction {
    /// The window of the plan.
    window: SessionWindow,
    /// How many messages the summary replaces: `count` of the plan.
    count: u64,
    /// The summary, of at most 256 KiB.
    summary: String,
    /// A listing of the sandbox's files to add to the summary, of at most 256 KiB.
    #[serde(default)]
    workspace_snapshot: Option<String>,
}

/// A compaction that was made.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CompactionDone {
    /// The archive of the messages, such as `0001`.
    archive_id: String,
    /// How many messages the summary replaces.
    messages: u64,
    /// The estimate of the window before, in tokens.
    tokens_before: u64,
    /// The estimate of the window after, in tokens.
    tokens_after: u64,
}

pub(super) async fn apply(mut asked: Asked) -> Answer {
    let at = asked.named(Access::Write)?;
    let ApplyCompaction { window, count, summary, workspace_snapshot } = asked.json().await?;
    let done = at.sessions.apply_compaction(at.tenant(), at.id(), &window, count, &summary, workspace_snapshot.as_deref()).await?;
    let reply = CompactionDone {
        archive_id: done.archive_id,
        messages: done.messages,
        tokens_before: done.tokens_before,
        tokens_after: done.tokens_after,
    };
    json(StatusCode::OK, reply).await
}
