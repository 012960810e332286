//! `state copy`: states from AgentScope's own layouts into a store, out of it, or between layouts.

use super::AGENT;
use crate::Error;
use crate::agent_state::layouts::{CopyOptions, CopyPosition, CopyReport, Existing, copy_states, open};
use crate::agent_state::{AgentStateStore, StateKey};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome, message};
use crate::error::ErrorRecord;
use clap::Args;
use serde_json::{Value, json};
use std::sync::Arc;

/// Copy states between AgentScope's layouts and the store
///
/// FROM and TO are `store` for the states of --agent and --tenant, or the URL of a layout: `files:DIRECTORY`,
/// `redis://HOST/0?prefix=PREFIX` or `mysql://USER@HOST/DATABASE?table=TABLE`. What the target has already stays, except for earlier
/// states of the same conversation. A copy can be repeated, and takes over what is new. Values that one side refuses or that differ are
/// reported, and the exit code is that of the first one.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold state copy files:$HOME/.agentscope/state/helper store --dry-run
  treehold --agent helper state copy redis://cache/0 store
  treehold state copy store 'mysql://root@db/agentscope?create=true' --of ada --replace")]
pub(crate) struct Copy {
    /// Where to read
    #[arg(value_name = "FROM")]
    from: String,
    /// Where to write
    #[arg(value_name = "TO")]
    to: String,
    /// Write nothing, and print what would be copied
    #[arg(long)]
    dry_run: bool,
    /// Replace every value of the target that differs
    #[arg(long, conflicts_with = "keep")]
    replace: bool,
    /// Replace no value of the target, not even an earlier state
    #[arg(long)]
    keep: bool,
    /// Do not read back what was written
    #[arg(long)]
    unverified: bool,
    /// Copy the sessions of this user only
    #[arg(long, value_name = "USER", conflicts_with = "anonymous")]
    of: Option<String>,
    /// Copy the sessions of the anonymous user only
    #[arg(long)]
    anonymous: bool,
    /// Copy this session only; needs --of or --anonymous
    #[arg(long, value_name = "ID")]
    of_session: Option<String>,
}

impl Copy {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (from, to) = (side(context, &self.from).await?, side(context, &self.to).await?);
        let progress = context.progress("copying");
        progress.wait();
        let report = copy_states(&*from, &*to, &self.options(), |at| progress.tell(at.sessions, "sessions")).await?;
        drop(progress);
        self.tell(context, &report)
    }

    fn options(&self) -> CopyOptions {
        let existing = match (self.replace, self.keep) {
            (true, _) => Existing::Replace,
            (_, true) => Existing::Keep,
            _ => Existing::ReplaceEarlier,
        };
        let mut options = CopyOptions::new().with_dry_run(self.dry_run).with_existing(existing).with_unverified(self.unverified);
        if self.anonymous || self.of.is_some() {
            options = options.with_user(self.of.clone());
        }
        match &self.of_session {
            Some(session) => options.with_session(session),
            None => options,
        }
    }

    /// Prints the report. The exit code is that of the first problem.
    fn tell(&self, context: &mut Context, report: &CopyReport) -> Result<Outcome, Failure> {
        let out = &mut context.out;
        if out.is_text() {
            let done = if self.dry_run { "to copy" } else { "copied" };
            let CopyReport { sessions, copied, replaced, unchanged, bytes, conflicts, skipped, .. } = report;
            out.line(format_args!(
                "{sessions} sessions: {copied} values {done} ({bytes} bytes, {replaced} replaced), {unchanged} unchanged, {conflicts} in conflict, {skipped} refused"
            ))?;
            for problem in &report.problems {
                let CopyPosition { user, session } = &problem.position;
                let user = user.as_deref().unwrap_or("(anonymous)");
                let (key, _) = named(problem.key.as_ref());
                out.line(format_args!("failed {user} {session} {}: {}", key.unwrap_or_default(), message(&problem.error)))?;
            }
        } else {
            let problems: Vec<Value> = report
                .problems
                .iter()
                .map(|problem| {
                    let (key, form) = named(problem.key.as_ref());
                    let error = ErrorRecord::from(&problem.error);
                    json!({"user": problem.position.user, "session": problem.position.session, "key": key, "form": form, "error": error})
                })
                .collect();
            out.json(&json!({
                "dry_run": self.dry_run,
                "sessions": report.sessions,
                "copied": report.copied,
                "replaced": report.replaced,
                "unchanged": report.unchanged,
                "bytes": report.bytes,
                "conflicts": report.conflicts,
                "skipped": report.skipped,
                "problems": problems,
            }))?;
        }
        Ok(match report.problems.first() {
            Some(problem) => Outcome::Failed(problem.error.kind()),
            None => Outcome::Done,
        })
    }
}

/// Opens one side of the copy.
async fn side(context: &Context, name: &str) -> Result<Arc<dyn AgentStateStore>, Error> {
    if name != "store" {
        return open(name).await;
    }
    let scope = context.config()?.scope;
    let agent = scope.agent.unwrap_or_else(|| AGENT.to_owned());
    Ok(Arc::new(context.agent_states()?.for_tenant(&scope.tenant)?.for_agent(&scope.tenant, &agent)?))
}

/// Returns a key with the name of its form.
fn named(key: Option<&StateKey>) -> (Option<&str>, Option<&'static str>) {
    match key {
        Some(StateKey::Single(key)) => (Some(key), Some("single")),
        Some(StateKey::List(key)) => (Some(key), Some("list")),
        None => (None, None),
    }
}
