//! `checkpoint`: the history of a thread's state.

mod calls;
mod diff;
mod ls;
mod prune;
mod show;

pub(crate) use diff::{Detail, ShownPath};
pub(crate) use show::Found;

use crate::backend::StateSnapshot;
use crate::checkpoint::{At, Checkpoint as Saved, PutOptions, is_reserved_name, with_checkpoint};
use crate::cli::commands::thread::kept;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::ids;
use crate::{Checkpointer, Error, Scope, Session};
use clap::{Args, Subcommand};
use futures::future::BoxFuture;
use std::sync::Arc;

/// List, create, compare and restore checkpoints of the thread
///
/// Every change to `/` is saved as a checkpoint. Name a checkpoint by its id or the start of it, by its label (the newest one with
/// that label), by `latest`, or by its distance from the latest: `~1` is the one before it.
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

/// Create a checkpoint of the thread and print its id
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    notes: Notes,
}

/// Restore the thread to a checkpoint and print the id of the new checkpoint
///
/// The restored state becomes a new checkpoint. Later checkpoints stay in the history. Other routes stay as they are; `treehold
/// restore` restores files of those that have a history.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold checkpoint restore ~1
  treehold checkpoint restore before --label 'back again'")]
pub(crate) struct Restore {
    /// Checkpoint: id or start of an id, label, `latest` or `~N`
    #[arg(value_name = "CHECKPOINT")]
    name: String,
    #[command(flatten)]
    notes: Notes,
}

/// The label and metadata of a new checkpoint.
#[derive(Debug, Clone, Args)]
struct Notes {
    /// Label the new checkpoint TEXT
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Attach metadata (repeatable)
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
}

impl Notes {
    fn options(&self) -> Result<PutOptions, Error> {
        let mut options = PutOptions::new();
        if let Some(label) = &self.label {
            if is_reserved_name(label) {
                let message = format!(
                    "`{label}` has the form of a checkpoint's name, so a checkpoint with that label would not be found; choose \
                        another label"
                );
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
        // If another writer saves the thread meanwhile, that state is recorded instead.
        let work = |session: Session| -> BoxFuture<'_, _> {
            let options = options.clone();
            Box::pin(async move { session.checkpoint(options).await })
        };
        let made = context.lasting_history(work).await?;
        tell_made(context, &made, None).await
    }
}

impl Restore {
    async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let options = self.notes.options()?;
        let (checkpointer, scope) = history(context)?;
        let threads = &*context.threads()?;
        let (scope_of, options) = (&scope, &options);
        let restore = |found: Saved| -> BoxFuture<'_, _> {
            let work = move |session: Session| -> BoxFuture<'_, _> {
                let options = options.clone();
                Box::pin(async move { session.restore(found.id, options).await })
            };
            Box::pin(threads.lasting_history(scope_of, work))
        };
        let made = with_checkpoint(&*checkpointer, &scope, &self.name, restore).await?;
        let others = context.session().await?.mounts_outside_state();
        if !others.is_empty() {
            let others: Vec<String> = others.iter().map(|mount| format!("`{mount}`")).collect();
            context.out.notice(format_args!("the thread's state is restored; {} did not change", others.join(", ")));
        }
        tell_made(context, &made, None).await
    }
}

/// Prints the id of a new checkpoint of this thread or another.
pub(crate) async fn tell_made(context: &mut Context, made: &Saved, thread: Option<&str>) -> Result<Outcome, Failure> {
    let (checkpointer, mut scope) = history(context)?;
    scope.thread = thread.map(str::to_owned).or(scope.thread);
    match context.out.is_text() {
        true => ids::print(&mut context.out, &*checkpointer, &scope, made.id).await?,
        false => context.out.json(made)?,
    }
    Ok(Outcome::Done)
}

/// Returns the checkpointer and the scope of the thread.
fn history(context: &mut Context) -> Result<(Arc<dyn Checkpointer>, Scope), Error> {
    Ok((kept(context)?, context.scope()?))
}

/// Returns the parent of a checkpoint with its state, or `None` if it has none or the parent was pruned.
pub(crate) async fn parent_of(
    checkpointer: &dyn Checkpointer,
    scope: &Scope,
    checkpoint: &Saved,
) -> Result<Option<(Saved, StateSnapshot)>, Error> {
    let Some(parent) = &checkpoint.parent else { return Ok(None) };
    let scope = match &parent.thread {
        Some(thread) => scope.clone().with_thread(thread),
        None => scope.clone(),
    };
    let opened = checkpointer.open(&scope, At::Id(parent.id)).await?;
    Ok(opened.map(|opened| (opened.checkpoint, opened.state)))
}
