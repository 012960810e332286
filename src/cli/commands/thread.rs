//! `thread`: conversations with saved state.

mod merge;

use self::merge::Merge;
use crate::checkpoint::{At, Checkpoint, Checkpointer, PutOptions, with_checkpoint};
use crate::cli::commands::checkpoint::tell_made;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::table::{Cell, Column, Table};
use crate::cli::time::{ago, exact};
use crate::{Error, Scope};
use clap::Subcommand;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::json;
use std::sync::Arc;

/// List, fork, merge, copy and remove saved threads
#[derive(Debug, Subcommand)]
pub(crate) enum Thread {
    /// List the saved threads of the user
    ///
    /// Prints the id, number of entries, size in bytes and time of the last save of each.
    Ls,
    /// Start a thread from a checkpoint of this one and print its first checkpoint id
    ///
    /// The threads share unchanged content and never see each other's changes.
    #[command(after_long_help = "Examples:
  treehold thread fork experiment
  treehold --thread monday thread fork tuesday --at before")]
    Fork {
        /// Id of the new thread
        new: String,
        /// Checkpoint: id or start of an id, label, `latest` or `~N`
        #[arg(long, value_name = "CHECKPOINT", default_value = "latest")]
        at: String,
    },
    Merge(Merge),
    /// Copy this thread with all its checkpoints
    #[command(after_long_help = "Example:
  treehold --thread monday thread copy monday-kept")]
    Copy {
        /// Id of the new thread
        new: String,
    },
    /// Remove saved threads
    Rm {
        /// Threads to remove
        #[arg(required = true, value_name = "ID")]
        threads: Vec<String>,
    },
}

/// The most threads to request at a time.
const PAGE: usize = 1_000;

const COLUMNS: [Column; 4] =
    [Column::new("thread"), Column::new("saved"), Column::new("entries").right().optional(1), Column::new("bytes").right().optional(2)];

impl Thread {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let scope = context.scope()?;
        let threads = kept(context)?;
        match self {
            Self::Ls => list(context, &*threads, &scope).await,
            Self::Fork { new, at } => {
                let (session, to, notes) = (context.session().await?, &*new, &PutOptions::new());
                let fork = |found: Checkpoint| -> BoxFuture<'_, _> { Box::pin(session.fork(At::Id(found.id), to, notes)) };
                let forked = with_checkpoint(&*threads, &scope, &at, fork).await?;
                tell_made(context, &forked, Some(&new)).await
            }
            Self::Merge(merge) => merge.run(context, &*threads, &scope).await,
            Self::Copy { new } => {
                let progress = context.progress("copying");
                progress.wait();
                let (_, checkpoints) = context.session().await?.copy_thread(&new).await?;
                drop(progress);
                match context.out.is_text() {
                    true => context.out.detail(format_args!("copied {checkpoints} checkpoints to thread `{new}`")),
                    false => context.out.json(&json!({"thread": new, "checkpoints": checkpoints}))?,
                }
                Ok(Outcome::Done)
            }
            Self::Rm { threads: ids } => {
                for id in &ids {
                    context.workspace()?.delete_thread(&scope.clone().with_thread(id)).await?;
                    context.out.detail(format_args!("removed thread `{id}`"));
                }
                if !context.out.is_text() {
                    context.out.json_list(&ids)?;
                }
                Ok(Outcome::Done)
            }
        }
    }
}

async fn list(context: &mut Context, threads: &dyn Checkpointer, scope: &Scope) -> Result<Outcome, Failure> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = threads.threads(scope, after.as_deref(), PAGE).await?;
        all.extend(page.threads);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let all = context.session().await?.shown_threads(all).await?;
    let out = &mut context.out;
    if !out.is_text() {
        out.json_list(&all)?;
        return Ok(Outcome::Done);
    }
    if let Some(mut table) = Table::on_terminal(out, &COLUMNS) {
        for info in &all {
            let saved = ago(info.saved_at, Timestamp::now());
            table.row([Cell::new(&info.thread), Cell::new(saved), Cell::new(info.entries), Cell::new(info.size_bytes)]);
        }
        table.flush(out)?;
        return Ok(Outcome::Done);
    }
    let width = all.iter().map(|info| info.thread.chars().count()).max().unwrap_or(0);
    for info in &all {
        let saved_at = exact(info.saved_at);
        out.line(format_args!("{:<width$} {:>6} {:>10} {saved_at}", info.thread, info.entries, info.size_bytes))?;
    }
    Ok(Outcome::Done)
}

/// Returns the checkpointer, or an error if threads are not saved.
pub(crate) fn kept(context: &mut Context) -> Result<Arc<dyn Checkpointer>, Error> {
    context
        .workspace()?
        .checkpointer()
        .cloned()
        .ok_or_else(|| Error::invalid_argument("threads are not saved here; set `save = true` under `[threads]` of the configuration"))
}
