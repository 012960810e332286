//! `checkpoint show`: one checkpoint and what changed in it.

use super::diff::{Differences, print_line};
use super::{calls, history, ls, parent_of};
use crate::CheckpointId;
use crate::audit::AuditRow;
use crate::backend::StateSnapshot;
use crate::checkpoint::{Checkpoint, Opened, Parent, open_checkpoint};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::ids::ShortIds;
use crate::cli::output::{Output, Style};
use crate::cli::time::ago;
use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

/// Show a checkpoint, its parent and the changes between them
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold checkpoint show
  treehold checkpoint show before --calls
  treehold --json checkpoint show ~2")]
pub(crate) struct Show {
    /// Checkpoint: id or start of an id, label, `latest` or `~N`
    #[arg(value_name = "CHECKPOINT", default_value = "latest")]
    name: String,
    /// Also print the tool calls since its parent
    #[arg(long)]
    calls: bool,
}

/// A checkpoint as JSON.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    checkpoint: &'a Checkpoint,
    /// The changes since its parent, or `None` if the parent was pruned.
    changes: Option<&'a Differences>,
    /// The tool calls since its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<Vec<AuditRow>>,
}

impl Show {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let found = Found::open(context, &self.name).await?;
        let Found { checkpoint, changes, .. } = &found;
        let calls = match self.calls {
            true => {
                // If the parent belongs to another thread, all calls of this thread come after it.
                let parent = checkpoint.parent.as_ref().filter(|parent| parent.thread.is_none()).map(|parent| parent.id);
                Some(calls::between(context, parent, checkpoint.id).await?)
            }
            false => None,
        };
        if !context.out.is_text() {
            context.out.json(&Shown { checkpoint, changes: changes.as_ref(), calls })?;
            return Ok(Outcome::Done);
        }
        found.print(context).await?;
        if let Some(changes) = changes {
            changes.paths.iter().try_for_each(|difference| print_line(context, difference))?;
        }
        if let Some(calls) = &calls {
            context.out.empty_line()?;
            context.out.line(format_args!("calls     {}", calls.len()))?;
            context.out.empty_line()?;
            calls::print(context, calls)?;
        }
        Ok(Outcome::Done)
    }
}

/// A checkpoint with what changed in it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) checkpoint: Checkpoint,
    /// The state of its parent: empty if it has none, `None` if the parent was pruned.
    pub(crate) older: Option<StateSnapshot>,
    /// Its own state.
    pub(crate) newer: StateSnapshot,
    /// The changes since its parent, unless that was pruned.
    pub(crate) changes: Option<Differences>,
}

impl Found {
    /// Finds a checkpoint by name, and compares it with its parent.
    pub(crate) async fn open(context: &mut Context, name: &str) -> Result<Self, Failure> {
        let (checkpointer, scope) = history(context)?;
        let session = context.session().await?;
        let Opened { checkpoint, state: newer, .. } = open_checkpoint(&*checkpointer, &scope, name).await?;
        let checkpoint = session.shown(checkpoint).await?;
        let progress = context.progress("comparing");
        let older = match parent_of(&*checkpointer, &scope, &checkpoint).await? {
            Some((_, state)) => Some(state),
            None if checkpoint.parent.is_none() => Some(Default::default()),
            None => None,
        };
        let changes = match &older {
            Some(older) => Some(Differences::of(&session, older, &newer, None, &progress).await?),
            None => None,
        };
        Ok(Self { checkpoint, older, newer, changes })
    }

    /// Prints the facts about the checkpoint, and how many changes there are.
    pub(crate) async fn print(&self, context: &mut Context) -> Result<(), Failure> {
        let (checkpointer, scope) = history(context)?;
        let ids = match context.out.width() {
            Some(_) => Some(ShortIds::of(&*checkpointer, &scope).await?),
            None => None,
        };
        print(context, ids.as_ref(), &self.checkpoint, self.older.is_some())?;
        if let Some(changes) = &self.changes {
            context.out.line(format_args!("changes   {}", changes.counts()))?;
            if !changes.paths.is_empty() {
                context.out.empty_line()?;
            }
        }
        Ok(())
    }
}

fn print(context: &mut Context, ids: Option<&ShortIds>, checkpoint: &Checkpoint, parent_is_kept: bool) -> Result<(), Failure> {
    let out = &mut context.out;
    let shown = |out: &Output, id: CheckpointId| ids.map_or_else(|| id.to_string(), |ids| ids.text(out, id));
    let id = match ids {
        Some(_) => format!("{}  {}", shown(out, checkpoint.id), out.paint(Style::Faint, checkpoint.id)),
        None => checkpoint.id.to_string(),
    };
    out.line(format_args!("id        {id}"))?;
    match &checkpoint.parent {
        Some(Parent { thread, id, .. }) => {
            // The letters that suffice are those of this thread.
            let id = if thread.is_none() { shown(out, *id) } else { id.to_string() };
            let thread = thread.as_ref().map_or_else(String::new, |thread| format!(" of thread {thread}"));
            let pruned = if parent_is_kept { "" } else { " (pruned)" };
            out.line(format_args!("parent    {id}{thread}{pruned}"))?;
        }
        None => out.line("parent    none")?,
    }
    if let Some(restored) = checkpoint.parent.as_ref().and_then(|parent| parent.restored) {
        let restored = shown(out, restored);
        out.line(format_args!("restored  {restored}"))?;
    }
    let when = ids.map_or_else(String::new, |_| format!("  {}", out.paint(Style::Faint, ago(checkpoint.created_at, Timestamp::now()))));
    out.line(format_args!("created   {}{when}", checkpoint.created_at))?;
    if let Some(label) = &checkpoint.label {
        out.line(format_args!("label     {label}"))?;
    }
    if let Some(notes) = ls::notes(checkpoint) {
        out.line(format_args!("noted     {notes}"))?;
    }
    out.line(format_args!("entries   {}", checkpoint.entries))?;
    out.line(format_args!("size      {}", checkpoint.size_bytes))
}
