//! `checkpoint show`: one checkpoint and what changed in it.

use super::diff::{Differences, print_line};
use super::{calls, history, ls, parent_of};
use crate::audit::AuditRow;
use crate::checkpoint::{Checkpoint, Opened, Parent, open_checkpoint};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use clap::Args;
use serde::Serialize;

/// Show a checkpoint, its parent and the changes between them
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold checkpoint show
  treehold checkpoint show before --calls
  treehold --json checkpoint show ~2")]
pub(crate) struct Show {
    /// Checkpoint: id, prefix of an id, label, `latest` or `~N`
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
        let (checkpointer, scope) = history(context)?;
        let session = context.session().await?;
        let Opened { checkpoint, state: newer, .. } = open_checkpoint(&*checkpointer, &scope, &self.name).await?;
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
        drop(progress);
        let calls = match self.calls {
            true => {
                // If the parent belongs to another thread, all calls of this thread come after it.
                let parent = checkpoint.parent.as_ref().filter(|parent| parent.thread.is_none()).map(|parent| parent.id);
                Some(calls::between(context, parent, checkpoint.id).await?)
            }
            false => None,
        };
        if !context.out.is_text() {
            context.out.json(&Shown { checkpoint: &checkpoint, changes: changes.as_ref(), calls })?;
            return Ok(Outcome::Done);
        }
        print(context, &checkpoint, older.is_some())?;
        if let Some(changes) = &changes {
            context.out.line(format_args!("changes   {}", changes.counts()))?;
            if !changes.paths.is_empty() {
                context.out.empty_line()?;
            }
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

fn print(context: &mut Context, checkpoint: &Checkpoint, parent_is_kept: bool) -> Result<(), Failure> {
    let out = &mut context.out;
    out.line(format_args!("id        {}", checkpoint.id))?;
    match &checkpoint.parent {
        Some(Parent { thread, id, .. }) => {
            let thread = thread.as_ref().map_or_else(String::new, |thread| format!(" of thread {thread}"));
            let pruned = if parent_is_kept { "" } else { " (pruned)" };
            out.line(format_args!("parent    {id}{thread}{pruned}"))?;
        }
        None => out.line("parent    none")?,
    }
    if let Some(restored) = checkpoint.parent.as_ref().and_then(|parent| parent.restored) {
        out.line(format_args!("restored  {restored}"))?;
    }
    out.line(format_args!("created   {}", checkpoint.created_at))?;
    if let Some(label) = &checkpoint.label {
        out.line(format_args!("label     {label}"))?;
    }
    if let Some(notes) = ls::notes(checkpoint) {
        out.line(format_args!("noted     {notes}"))?;
    }
    out.line(format_args!("entries   {}", checkpoint.entries))?;
    out.line(format_args!("size      {}", checkpoint.size_bytes))
}
