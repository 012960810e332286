//! `checkpoint`: the history of a thread's state.

mod calls;
mod diff;
mod ls;
mod prune;
mod show;

use crate::commands::thread::kept;
use crate::context::{Context, REPLAYS_MAX, pause};
use crate::exit::{Failure, Outcome};
use clap::{Args, Subcommand};
use futures::future::BoxFuture;
use std::sync::Arc;
use treehold::backend::StateSnapshot;
use treehold::checkpoint::{At, Checkpoint as Saved, PutOptions, is_reserved_name, with_checkpoint};
use treehold::{Checkpointer, Error, ErrorKind, Scope};

/// List, make, compare and restore checkpoints of the thread
///
/// Whenever `/` changed it is saved as a checkpoint. One is named by its id or the start of it, by its label (of several
/// checkpoints with it the newest), by `latest`, or by how far it lies back: `~1` is the one before the latest.
#[derive(Debug, Subcommand)]
#[command(after_long_help = "Example:
  treehold checkpoint create --label before
  treehold write /plan.md 'another plan'
  treehold checkpoint diff before --patch
  treehold cat /plan.md --at before
  treehold checkpoint restore before")]
pub(crate) enum Checkpoint {
    Ls(ls::Ls),
    Create(Create),
    Show(show::Show),
    Restore(Restore),
    Diff(diff::Diff),
    Prune(prune::Prune),
    Sweep(prune::Sweep),
}

/// Make a checkpoint of the thread as it is, and print its id
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    notes: Notes,
}

/// Make a checkpoint the state of the thread again, and print the id of the new checkpoint
///
/// Nothing is lost: what was the latest stays in the history.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold checkpoint restore ~1
  treehold checkpoint restore before --label 'back again'")]
pub(crate) struct Restore {
    /// Checkpoint: id, start of an id, label, `latest` or `~N`
    #[arg(value_name = "CHECKPOINT")]
    name: String,
    #[command(flatten)]
    notes: Notes,
}

/// What is noted with a checkpoint.
#[derive(Debug, Clone, Args)]
struct Notes {
    /// Call it TEXT
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Note a value under a name
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
}

impl Notes {
    fn options(&self) -> Result<PutOptions, Error> {
        let mut options = PutOptions::new();
        if let Some(label) = &self.label {
            if is_reserved_name(label) {
                let message =
                    format!("`{label}` names a checkpoint by itself, so one of that label would not be found; choose another label");
                return Err(Error::invalid_argument(message));
            }
            options.label = Some(label.clone());
        }
        options.metadata.extend(self.meta.iter().cloned());
        Ok(options)
    }
}

/// Parses `NAME=VALUE`.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

impl Checkpoint {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        match self {
            Self::Ls(ls) => ls.run(context).await,
            Self::Create(create) => create.run(context).await,
            Self::Show(show) => show.run(context).await,
            Self::Restore(restore) => restore.run(context).await,
            Self::Diff(diff) => diff.run(context).await,
            Self::Prune(prune) => prune.run(context).await,
            Self::Sweep(sweep) => sweep.run(context).await,
        }
    }
}

impl Create {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let options = self.notes.options()?;
        kept(context)?;
        let session = context.session().await?;
        let mut attempt = 0;
        let made = loop {
            match session.checkpoint(options.clone()).await {
                // Another writer saved the thread meanwhile, so record that state instead.
                Err(error) if error.kind() == ErrorKind::Conflict && attempt < REPLAYS_MAX => {
                    pause(attempt).await;
                    attempt += 1;
                    session.reload().await?;
                }
                made => break made?,
            }
        };
        tell_made(context, &made)
    }
}

impl Restore {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let options = self.notes.options()?;
        let (checkpointer, scope) = history(context)?;
        let session = &context.session().await?;
        let restore = |found: Saved| -> BoxFuture<'_, _> {
            let options = options.clone();
            Box::pin(async move { session.restore(found.id, options).await })
        };
        let made = with_checkpoint(&*checkpointer, &scope, &self.name, restore).await?;
        tell_made(context, &made)
    }
}

/// Prints the id of a new checkpoint.
pub(crate) fn tell_made(context: &mut Context, made: &Saved) -> Result<Outcome, Failure> {
    match context.out.is_text() {
        true => context.out.line(made.id)?,
        false => context.out.json(made)?,
    }
    Ok(Outcome::Done)
}

/// Returns the checkpointer and the scope of the thread.
fn history(context: &mut Context) -> Result<(Arc<dyn Checkpointer>, Scope), Error> {
    Ok((kept(context)?, context.scope()?))
}

/// Returns the parent of a checkpoint with its state, or `None` if it has none or the parent was pruned.
async fn parent_of(checkpointer: &dyn Checkpointer, scope: &Scope, checkpoint: &Saved) -> Result<Option<(Saved, StateSnapshot)>, Error> {
    let Some(parent) = &checkpoint.parent else { return Ok(None) };
    let scope = match &parent.thread {
        Some(thread) => scope.clone().with_thread(thread),
        None => scope.clone(),
    };
    let opened = checkpointer.open(&scope, At::Id(parent.id)).await?;
    Ok(opened.map(|opened| (opened.checkpoint, opened.state)))
}
