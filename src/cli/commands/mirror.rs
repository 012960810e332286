//! `mirror`: a part of the tree as files of a directory.

use crate::backend::{Backend, Subtree};
use crate::cli::commands::config::forgetful_stores;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{Output, Style, counted};
use crate::cli::signal::{self, StopSignal};
use crate::error::ErrorRecord;
use crate::mirror::{Mirror, MirrorAction, MirrorConflicts, MirrorEvent, MirrorOptions, MirrorReport};
use crate::ops::StatOptions;
use crate::{Error, VfsPathBuf};
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Keep a directory of the host equal to a part of the tree
///
/// Fills DIR with the files at and beneath PATH, for programs that only know real files, and follows the tree until interrupted. DIR must
/// be missing or empty, or be what an earlier mirror left. Changes in DIR are overwritten, or written back with `--write-back`. The files
/// are removed at the end.
///
/// Prints what is done at each path. With `--json`, each line is a JSON value.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold mirror /memories ./memories
  treehold mirror / ./sandbox --write-back --conflicts markers
  treehold mirror /memories ./export --once")]
pub(crate) struct MirrorCommand {
    /// Directory of the tree
    path: String,
    /// Directory of the host
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Write changes in DIR back to the tree; changes of both sides are merged by lines
    #[arg(long)]
    write_back: bool,
    /// Overwrite changes in DIR (the default)
    #[arg(long, conflicts_with = "write_back")]
    read_only: bool,
    /// What to keep where changes of both sides conflict: `tree`, or both with `markers`
    #[arg(long, value_enum, value_name = "WHAT", default_value = "tree", hide_possible_values = true, requires = "write_back")]
    conflicts: Conflicts,
    /// Leave the files in DIR at the end
    #[arg(long)]
    keep: bool,
    /// Compare DIR with the tree once, leave the files, and end
    #[arg(long)]
    once: bool,
}

/// What to keep in a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Conflicts {
    Tree,
    Markers,
}

impl MirrorCommand {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let conflicts = match self.conflicts {
            Conflicts::Tree => MirrorConflicts::Tree,
            Conflicts::Markers => MirrorConflicts::Markers,
        };
        let options = MirrorOptions::new().with_write_back(self.write_back).with_conflicts(conflicts).with_keep(self.keep || self.once);
        let mirroring = Mirroring { path: &self.path, directory: &self.directory, options, once: self.once, doing: "mirroring" };
        let ended = match mirroring.run(context).await? {
            Ok(ended) => ended,
            Err(signal) => return Ok(Outcome::Interrupted(signal)),
        };
        if ended.last.kept && !self.keep && !self.once {
            context.out.notice(format_args!(
                "`{}` stays: it holds changes that could not be written back, or `sync` has used it",
                self.directory.display()
            ));
        }
        Ok(ended.outcome(context, |_| true))
    }
}

/// A mirror that a command runs until it is interrupted, or once.
pub(super) struct Mirroring<'a> {
    /// The directory of the tree.
    pub(super) path: &'a str,
    /// The directory of the host.
    pub(super) directory: &'a Path,
    pub(super) options: MirrorOptions,
    /// Whether it ends after the first comparison.
    pub(super) once: bool,
    /// What the command does, for people.
    pub(super) doing: &'static str,
}

/// What a mirror did.
pub(super) struct Ended {
    pub(super) first: MirrorReport,
    pub(super) last: MirrorReport,
    /// How often each thing was done.
    pub(super) counts: BTreeMap<MirrorAction, usize>,
}

impl Mirroring<'_> {
    /// Runs the mirror and prints what it does. Returns the signal if one stopped it before it began.
    pub(super) async fn run(self, context: &mut Context) -> Result<Result<Ended, StopSignal>, Failure> {
        let base = VfsPathBuf::parse(self.path)?;
        for name in forgetful_stores(&context.config()?) {
            context.out.notice(format_args!("the store `{name}` is in memory; its content is lost when this command ends"));
        }
        let (threads, scope) = (context.threads()?, context.scope()?);
        let mut tree: Arc<dyn Backend> = Arc::new(threads.tree(scope.clone()).await?);
        if !base.is_root() {
            if !tree.stat(&base, &StatOptions::new()).await?.is_directory() {
                return Err(Error::not_a_directory(&base).into());
            }
            tree = Arc::new(Subtree::new(tree, base.clone()));
        }
        let workspace = context.workspace()?;
        let news = match workspace.feed().cloned() {
            Some(feed) => Some(feed.news(workspace.feed_view(&scope)?.with_threads(scope.thread.clone()), &base).await?),
            None => None,
        };
        let (observed, mut events) = mpsc::unbounded_channel();
        let options = self
            .options
            .with_tree_id(context.config()?.tree_id(&base)?)
            .with_protections(context.config()?.named_protections(&base)?)
            // If nobody reads the events any more, the command is ending.
            .with_observer(move |event| drop(observed.send(event.clone())));
        let mut stop = std::pin::pin!(signal::stop());
        let mirror = tokio::select! {
            opened = Mirror::open(tree, news, self.directory, options) => opened?,
            signal = &mut stop => return Ok(Err(signal)),
        };
        let mut counts = BTreeMap::new();
        let mut tell = |out: &mut Output, event: &MirrorEvent| {
            *counts.entry(event.action).or_default() += 1;
            print(out, event)
        };
        let mut printed = Ok(());
        if !self.once {
            while let Ok(event) = events.try_recv() {
                tell(&mut context.out, &event)?;
            }
            context.out.flush()?;
            context.out.notice(format_args!("{} `{base}` in `{}` until interrupted", self.doing, self.directory.display()));
            loop {
                tokio::select! {
                    _ = &mut stop => break,
                    Some(event) = events.recv() => {
                        printed = tell(&mut context.out, &event).and_then(|()| context.out.flush());
                    }
                }
                // Whoever read the output is gone. The last changes are written back nevertheless.
                if printed.is_err() {
                    break;
                }
            }
        }
        let last = mirror.close().await;
        while printed.is_ok()
            && let Ok(event) = events.try_recv()
        {
            printed = tell(&mut context.out, &event);
        }
        printed?;
        let (first, last) = (mirror.first().clone(), last?);
        Ok(Ok(Ended { first: if self.once { first } else { last.clone() }, last, counts }))
    }
}

impl Ended {
    /// Fails if something is not where it should be. `counts` says whether a failure does.
    pub(super) fn outcome(&self, context: &mut Context, counts: impl Fn(&ErrorRecord) -> bool) -> Outcome {
        let errors = |report: &'_ MirrorReport| -> Vec<ErrorRecord> {
            report.failures.iter().filter_map(|event| event.error.clone()).filter(|error| counts(error)).collect()
        };
        let (first, last) = (errors(&self.first), errors(&self.last));
        match first.first().or(last.first()).filter(|_| self.last.kept) {
            Some(error) => {
                let count = first.len().max(last.len());
                context.out.notice(format_args!("{} could not be mirrored", counted(count, "path", "paths")));
                Outcome::Failed(kind(error))
            }
            None => Outcome::Done,
        }
    }
}

fn kind(error: &ErrorRecord) -> crate::ErrorKind {
    crate::cli::exit::error_of(error).kind()
}

fn print(out: &mut Output, event: &MirrorEvent) -> Result<(), Failure> {
    if !out.is_text() {
        return out.json_line(event);
    }
    let mut line = format!("{:<17}  {}", event.action, event.path);
    if let Some(conflict) = event.conflict {
        line.push_str(&format!("  {}", out.paint(Style::Faint, conflict)));
    }
    if let Some(error) = &event.error {
        line.push_str(&format!("  {}", out.paint(Style::Faint, &error.message)));
    }
    out.line(line)
}
