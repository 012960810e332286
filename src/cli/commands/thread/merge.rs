//! `thread merge`: brings the changes of another thread into this one.

use crate::checkpoint::{
    At, ChangeKind, Checkpoint, Checkpointer, MergeConflict, MergeConflictKind, MergeLines, MergeOptions, MergeOutcome, MergeStatus,
    MergeStrategy, find_checkpoint, with_checkpoint,
};
use crate::cli::context::Context;
use crate::cli::exit::{self, Failure, Outcome};
use crate::cli::output::{Output, Style, counted};
use crate::config::did_you_mean;
use crate::session::Threads;
use crate::{CheckpointId, Error, ErrorKind, Scope, Session, VfsPathBuf};
use clap::{Args, ValueEnum};
use futures::future::BoxFuture;

/// The most threads whose names are compared with an unknown one.
const THREADS_MAX: usize = 1_000;

/// Merge the changes of another thread into this one, as a new checkpoint
///
/// Compares both threads with their newest common checkpoint. Takes what only one side changed, and merges texts that both
/// changed line by line. Prints the changed paths. If there is a conflict, prints both sides, writes nothing and exits with 4,
/// unless `--resolve` or `--strategy` decides it.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold thread merge experiment --dry-run
  treehold thread merge experiment --resolve /plan.md=theirs --strategy ours")]
pub(crate) struct Merge {
    /// Thread whose changes to merge
    source: String,
    /// Thread to merge into [default: the current one]
    #[arg(long, value_name = "THREAD")]
    into: Option<String>,
    /// Checkpoint of SOURCE: id or start of an id, label, `latest` or `~N`
    #[arg(long, value_name = "CHECKPOINT", default_value = "latest")]
    at: String,
    /// Checkpoint to use as the common base if the actual one was pruned
    #[arg(long, value_name = "CHECKPOINT")]
    base: Option<String>,
    /// Decide conflicts: ours, theirs, union (lines of both) or markers (conflict markers)
    #[arg(long, value_enum, value_name = "STRATEGY", hide_possible_values = true)]
    strategy: Option<Strategy>,
    /// Decide the conflicts at or beneath PATH (repeatable)
    #[arg(long, value_name = "PATH=STRATEGY", value_parser = resolution)]
    resolve: Vec<(VfsPathBuf, Strategy)>,
    /// Only print what would be done
    #[arg(long)]
    dry_run: bool,
    /// Label of the new checkpoint
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
    let (path, strategy) = text.rsplit_once('=').ok_or("it names no strategy; write `PATH=ours` or `PATH=theirs`")?;
    let path = VfsPathBuf::parse(path).map_err(|error| error.to_string())?;
    let strategy = Strategy::from_str(strategy, false).map_err(|_| {
        format!(
            "`{strategy}` is not a strategy; write `ours`, `theirs`, `union` or \
            `markers`"
        )
    })?;
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
        let merging =
            Merging { checkpointer: threads, threads: &*context.threads()?, into: &into, base: self.base.as_deref(), source: &source };
        let merge = |found: Checkpoint| -> BoxFuture<'_, _> { Box::pin(merging.of(&self.source, found.id, &options)) };
        if threads.get(&source, At::Latest).await?.is_none() {
            return Err(no_thread(context, threads, scope, &self.source).await.into());
        }
        let merged = with_checkpoint(threads, &source, &self.at, merge);
        // A dry run saves nothing that an interrupt should wait for.
        let outcome = if self.dry_run { merged.await? } else { context.until_saved(merged).await? };
        drop(progress);
        tell(context, &outcome, self.dry_run)
    }
}

/// A merge into a thread. The source has been found.
struct Merging<'m> {
    checkpointer: &'m dyn Checkpointer,
    threads: &'m Threads,
    into: &'m Scope,
    source: &'m Scope,
    base: Option<&'m str>,
}

impl Merging<'_> {
    /// Merges a checkpoint of the source. If another writer saves the thread meanwhile, merges into the new head.
    async fn of(&self, source: &str, at: CheckpointId, options: &MergeOptions) -> Result<MergeOutcome, Error> {
        let merge = |options: MergeOptions| {
            let work = move |session: Session| -> BoxFuture<'_, _> {
                let options = options.clone();
                Box::pin(async move { session.merge(source, At::Id(at), options).await })
            };
            self.threads.lasting_history(self.into, work)
        };
        let Some(base) = self.base else { return merge(options.clone()).await };
        let scope = match find_checkpoint(self.checkpointer, self.into, base).await {
            Err(error) if error.kind() == ErrorKind::NotFound => self.source,
            found => found.map(|_| self.into)?,
        };
        let merge = |found: Checkpoint| -> BoxFuture<'_, _> { Box::pin(merge(options.clone().with_base(found.id))) };
        with_checkpoint(self.checkpointer, scope, base, merge).await
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
            let message = format!(
                "{conflicts} undecided, nothing was merged; decide with `--resolve PATH=ours`, `theirs`, `union` (both texts) or `markers` \
                    (both, marked), or all with `--strategy`"
            );
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
    out.line(format_args!("{word}  {}  ({})", conflict.path, sides(conflict, outcome)))?;
    for hunk in &conflict.hunks {
        out.line(out.paint(Style::Faint, format_args!("@@ line {} @@", hunk.ours.line)).to_string())?;
        print_side(out, Style::Removed, '-', &outcome.ours.thread, &hunk.ours)?;
        print_side(out, Style::Added, '+', &outcome.theirs.thread, &hunk.theirs)?;
    }
    Ok(())
}

/// Says what makes a conflict, and which thread did what.
fn sides(conflict: &MergeConflict, outcome: &MergeOutcome) -> String {
    let (ours, theirs) = (&outcome.ours.thread, &outcome.theirs.thread);
    let (first, second) = match (conflict.kind, &conflict.ours, &conflict.theirs) {
        (MergeConflictKind::ChangedAndRemoved, None, _) => (format!("`{ours}` removed it"), format!("`{theirs}` changed it")),
        (MergeConflictKind::ChangedAndRemoved, _, None) => (format!("`{ours}` changed it"), format!("`{theirs}` removed it")),
        (MergeConflictKind::DirectoryRemoved, None, _) => (format!("`{ours}` removed its directory"), format!("`{theirs}` added it")),
        (MergeConflictKind::DirectoryRemoved, _, None) => (format!("`{ours}` added it"), format!("`{theirs}` removed its directory")),
        (MergeConflictKind::FileAndDirectory, Some(one), Some(other)) => {
            (format!("a {} in `{ours}`", one.kind), format!("a {} in `{theirs}`", other.kind))
        }
        _ => return conflict.kind.to_string(),
    };
    format!("{first}, {second}")
}

/// Returns the error for a thread that is not saved, with the most similar name of those that are.
async fn no_thread(context: &mut Context, threads: &dyn Checkpointer, scope: &Scope, name: &str) -> Error {
    let known = match threads.threads(scope, None, THREADS_MAX).await {
        Ok(page) => page.threads,
        Err(error) => return error,
    };
    let known = match context.session().await {
        Ok(session) => session.shown_threads(known).await.unwrap_or_default(),
        Err(error) => return error,
    };
    let near = did_you_mean(name, known.iter().map(|info| info.thread.as_str()));
    let hint = near.unwrap_or_else(|| "`treehold thread ls` lists them".to_owned());
    Error::new(ErrorKind::NotFound, format!("there is no thread `{name}`; {hint}"))
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
