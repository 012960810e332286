//! `thread merge`: brings the changes of another thread into this one.

use crate::context::Context;
use crate::exit::{self, Failure, Outcome};
use crate::output::{Output, Style, counted};
use clap::{Args, ValueEnum};
use futures::future::BoxFuture;
use treehold::checkpoint::{
    At, ChangeKind, Checkpoint, Checkpointer, MergeConflict, MergeLines, MergeOptions, MergeOutcome, MergeStatus, MergeStrategy,
    find_checkpoint, with_checkpoint,
};
use treehold::{Error, ErrorKind, Scope, Session, VfsPathBuf};

/// Merge what another thread changed into this one, as a new checkpoint
///
/// Both are compared with the newest checkpoint that both come from. What one side changed is taken, texts that both changed are
/// merged by lines. Prints what changes by path. With a conflict it is printed with both sides, nothing is written, and the exit
/// code is 4; `--resolve` and `--strategy` decide conflicts.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold thread merge experiment --dry-run
  treehold thread merge experiment --resolve /plan.md=theirs --strategy ours")]
pub(crate) struct Merge {
    /// Thread whose changes are merged
    source: String,
    /// Thread that they are merged into [default: the current one]
    #[arg(long, value_name = "THREAD")]
    into: Option<String>,
    /// Checkpoint of SOURCE: id, start of an id, label, `latest` or `~N`
    #[arg(long, value_name = "CHECKPOINT", default_value = "latest")]
    at: String,
    /// Checkpoint of either thread to compare both with, where the one they come from was pruned
    #[arg(long, value_name = "CHECKPOINT")]
    base: Option<String>,
    /// How to decide conflicts: ours, theirs, union (the lines of both) or markers (both between conflict markers)
    #[arg(long, value_enum, value_name = "STRATEGY", hide_possible_values = true)]
    strategy: Option<Strategy>,
    /// Decide the conflicts at and beneath PATH by a strategy of their own
    #[arg(long, value_name = "PATH=STRATEGY", value_parser = resolution)]
    resolve: Vec<(VfsPathBuf, Strategy)>,
    /// Print what would be done
    #[arg(long)]
    dry_run: bool,
    /// What to call the new checkpoint
    #[arg(long)]
    label: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Strategy {
    Ours,
    Theirs,
    Union,
    Markers,
}

impl From<Strategy> for MergeStrategy {
    fn from(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Ours => Self::Ours,
            Strategy::Theirs => Self::Theirs,
            Strategy::Union => Self::Union,
            Strategy::Markers => Self::Markers,
        }
    }
}

/// Parses `PATH=STRATEGY`. The path may contain `=`.
fn resolution(text: &str) -> Result<(VfsPathBuf, Strategy), String> {
    let (path, strategy) = text.rsplit_once('=').ok_or("it names no strategy; write PATH=ours or PATH=theirs")?;
    let path = VfsPathBuf::parse(path).map_err(|error| error.to_string())?;
    let strategy =
        Strategy::from_str(strategy, false).map_err(|_| format!("`{strategy}` is no strategy; write ours, theirs, union or markers"))?;
    Ok((path, strategy))
}

impl Merge {
    pub(crate) async fn run(self, context: &mut Context, threads: &dyn Checkpointer, scope: &Scope) -> Result<Outcome, Failure> {
        let into = match &self.into {
            Some(thread) => scope.clone().with_thread(thread),
            None => scope.clone(),
        };
        let source = scope.clone().with_thread(&self.source);
        let mut options = MergeOptions::new().with_dry_run(self.dry_run);
        options.strategy = self.strategy.map(Into::into);
        options.label.clone_from(&self.label);
        for (path, strategy) in self.resolve {
            options = options.with_resolution(path, MergeStrategy::from(strategy));
        }
        let progress = context.progress("merging");
        progress.wait();
        let session = context.workspace()?.session(into.clone()).await?;
        let merging = Merging { threads, session: &session, into: &into, source: &source, base: self.base.as_deref(), options: &options };
        let merge = |found: Checkpoint| -> BoxFuture<'_, _> { Box::pin(merging.of(&self.source, At::Id(found.id))) };
        let outcome = with_checkpoint(threads, &source, &self.at, merge).await?;
        drop(progress);
        tell(context, &outcome, self.dry_run)
    }
}

/// A merge whose source has been found.
struct Merging<'m> {
    threads: &'m dyn Checkpointer,
    session: &'m Session,
    into: &'m Scope,
    source: &'m Scope,
    base: Option<&'m str>,
    options: &'m MergeOptions,
}

impl Merging<'_> {
    async fn of(&self, source: &str, at: At) -> Result<MergeOutcome, Error> {
        let Some(base) = self.base else { return self.session.merge(source, at, self.options.clone()).await };
        let scope = match find_checkpoint(self.threads, self.into, base).await {
            Err(error) if error.kind() == ErrorKind::NotFound => self.source,
            found => found.map(|_| self.into)?,
        };
        let merge = |found: Checkpoint| -> BoxFuture<'_, _> {
            let mut options = self.options.clone();
            options.base = Some(found.id);
            Box::pin(self.session.merge(source, at, options))
        };
        with_checkpoint(self.threads, scope, base, merge).await
    }
}

fn tell(context: &mut Context, outcome: &MergeOutcome, dry_run: bool) -> Result<Outcome, Failure> {
    if context.out.is_text() {
        print(&mut context.out, outcome)?;
    } else {
        context.out.json(outcome)?;
    }
    let changes = counted(outcome.changes_total as usize, "change", "changes");
    let (source, into) = (&outcome.theirs.thread, &outcome.ours.thread);
    match (outcome.status, &outcome.checkpoint) {
        (MergeStatus::UpToDate, _) => context.out.notice(format_args!("thread `{into}` is up to date: `{source}` has nothing new")),
        (MergeStatus::Merged, Some(checkpoint)) => {
            context.out.notice(format_args!("{changes} of `{source}` merged into `{into}` as checkpoint {}", checkpoint.id));
        }
        (MergeStatus::Merged, None) if dry_run => context.out.notice(format_args!("{changes} would be merged")),
        (MergeStatus::Merged, None) => {}
        (MergeStatus::Conflict, _) => {
            let conflicts = counted(outcome.undecided as usize, "conflict is", "conflicts are");
            let message =
                format!("{conflicts} undecided, nothing was merged; decide by `--resolve PATH=ours` or `theirs`, or all by `--strategy`");
            context.out.flush()?;
            exit::tell(&Error::new(ErrorKind::Conflict, message), &context.global);
            return Ok(Outcome::Failed(ErrorKind::Conflict));
        }
    }
    Ok(Outcome::Done)
}

fn print(out: &mut Output, outcome: &MergeOutcome) -> Result<(), Failure> {
    for change in &outcome.changes {
        let (word, style) = match change.change {
            ChangeKind::Added => ("added", Style::Added),
            ChangeKind::Changed => ("changed", Style::Path),
            ChangeKind::Removed => ("removed", Style::Removed),
        };
        let slash = if change.is_directory { "/" } else { "" };
        let word = out.paint(style, format_args!("{word:<8}")).to_string();
        out.line(format_args!("{word}  {}{slash}", change.path))?;
    }
    let listed = outcome.changes.len() as u64;
    if listed < outcome.changes_total {
        out.line(format_args!("... and {} more", outcome.changes_total - listed))?;
    }
    for conflict in outcome.conflicts.iter().filter(|conflict| conflict.decided.is_none()) {
        print_conflict(out, conflict, outcome)?;
    }
    Ok(())
}

fn print_conflict(out: &mut Output, conflict: &MergeConflict, outcome: &MergeOutcome) -> Result<(), Failure> {
    let word = out.paint(Style::Match, "conflict").to_string();
    out.line(format_args!("{word}  {}  ({})", conflict.path, conflict.kind))?;
    for hunk in &conflict.hunks {
        out.line(out.paint(Style::Faint, format_args!("@@ line {} @@", hunk.ours.line)).to_string())?;
        print_side(out, Style::Removed, '-', &outcome.ours.thread, &hunk.ours)?;
        print_side(out, Style::Added, '+', &outcome.theirs.thread, &hunk.theirs)?;
    }
    Ok(())
}

/// Prints the lines of one side, each after its sign: `-` for the thread's own, `+` for those of the merged thread.
fn print_side(out: &mut Output, style: Style, sign: char, thread: &str, lines: &MergeLines) -> Result<(), Failure> {
    for line in lines.text.lines() {
        out.line(out.paint(style, format_args!("{sign}{line}")).to_string())?;
    }
    if lines.truncated {
        out.line(format_args!("{sign}... ({} lines in `{thread}`)", lines.lines))?;
    }
    Ok(())
}
