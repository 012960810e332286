//! The logs of skills that ran as separate agents.

use crate::info::SessionRef;
use crate::live::LiveSession;
use crate::rows::Part;
use crate::sessions::{Sessions, scan_all};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::json::Json;
use treehold_store::{Batch, Condition};

/// The log of a skill that ran as a separate agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkillLog {
    /// The name of the skill.
    pub skill_name: String,
    /// Its task.
    pub task: String,
    /// Its input.
    pub input: String,
    /// Its system prompt.
    pub system_prompt: String,
    /// Its messages.
    pub messages: Vec<Json>,
    /// Its answer.
    pub result_text: String,
    /// When it began, in milliseconds since 1970.
    pub started_at: i64,
    /// When it ended, in milliseconds since 1970.
    pub finished_at: i64,
}

/// The first line of a log.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    skill_name: &'a str,
    task: &'a str,
    input: &'a str,
    system_prompt: &'a str,
    result_text: &'a str,
    started_at: i64,
    finished_at: i64,
    duration_ms: i64,
}

/// A log of a skill as a file of JSON lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillLogFile {
    /// Its name: `skill-{name}-{startedAt}.jsonl`.
    pub name: String,
    /// A line about the run, then a line for each message.
    pub content: String,
}

impl Sessions {
    /// Stores the log of a skill and returns its name. A second log of the same skill and time gets a number.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for an unknown session, [`TooLarge`](ErrorKind::TooLarge) for a log over the limit
    /// of an append, and errors of the store.
    pub async fn persist_skill_log(&self, session: &SessionRef, log: &SkillLog) -> Result<String> {
        let content = content_of(log)?;
        if content.len() > self.options.batch_bytes_max {
            let message = format!("the log has {} bytes and at most {} are allowed", content.len(), self.options.batch_bytes_max);
            return Err(Error::new(ErrorKind::TooLarge, message));
        }
        let attempts = AtomicU64::new(0);
        let live = LiveSession::new(self.clone(), session.clone());
        live.commit(|head| {
            let name = name_of(log, attempts.fetch_add(1, Ordering::Relaxed));
            let logs = head.part(Part::SkillLogs)?;
            Ok(Batch::new().expect(&logs, &name, Condition::Absent).put(&logs, &name, content.clone()))
        })
        .await?;
        Ok(name_of(log, attempts.load(Ordering::Relaxed) - 1))
    }

    /// Returns the logs of skills by name; empty for an unknown session.
    ///
    /// # Errors
    /// As [`Sessions::info`].
    pub async fn load_skill_logs(&self, session: &SessionRef) -> Result<Vec<SkillLogFile>> {
        let Some(opened) = self.open(session.tenant(), session.session()).await? else { return Ok(Vec::new()) };
        let items = scan_all(&*self.store, &opened.head.part(Part::SkillLogs)?).await?;
        Ok(items
            .into_iter()
            .map(|item| SkillLogFile { name: item.key, content: String::from_utf8_lossy(&item.value).into_owned() })
            .collect())
    }
}

fn content_of(log: &SkillLog) -> Result<String> {
    let meta = Meta {
        kind: "meta",
        skill_name: &log.skill_name,
        task: &log.task,
        input: &log.input,
        system_prompt: &log.system_prompt,
        result_text: &log.result_text,
        started_at: log.started_at,
        finished_at: log.finished_at,
        duration_ms: log.finished_at.saturating_sub(log.started_at),
    };
    let mut content = Json::of(&meta)?.as_str().to_owned();
    for message in &log.messages {
        content.push('\n');
        content.push_str(&message.on_one_line());
    }
    content.push('\n');
    Ok(content)
}

/// Returns the name of a log. Characters of the skill's name that are not safe in file names become `_`.
fn name_of(log: &SkillLog, attempt: u64) -> String {
    let plain = |character: char| if character.is_ascii_alphanumeric() || "._-".contains(character) { character } else { '_' };
    let skill: String = log.skill_name.chars().take(200).map(plain).collect();
    let number = if attempt == 0 { String::new() } else { format!("-{}", attempt + 1) };
    format!("skill-{skill}-{}{number}.jsonl", log.started_at)
}
