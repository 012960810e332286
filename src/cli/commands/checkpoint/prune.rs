//! `checkpoint prune` and `checkpoint sweep`: remove old checkpoints, and then the contents that only they held.

use super::history;
use crate::Error;
use crate::checkpoint::PruneOptions;
use crate::cli::args::age;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::counted;
use clap::Args;
use serde_json::json;
use std::time::Duration;

/// Remove old checkpoints of the thread, but never the latest
///
/// A checkpoint is removed if no given rule keeps it. Run `checkpoint sweep` afterwards to free the space of content that only
/// removed checkpoints used.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  treehold checkpoint prune --keep-last 50 --older-than 30d --dry-run
  treehold checkpoint prune --older-than 12h --keep-labelled")]
pub(crate) struct Prune {
    /// Keep the N newest checkpoints
    #[arg(long, value_name = "N")]
    keep_last: Option<u64>,
    /// Keep checkpoints younger than this, such as `12h` or `30d`
    #[arg(long, value_name = "DURATION", value_parser = age)]
    older_than: Option<Duration>,
    /// Keep checkpoints that have a label
    #[arg(long)]
    keep_labelled: bool,
    /// Remove all but the latest, without any rule
    #[arg(long, conflicts_with_all = ["keep_last", "older_than", "keep_labelled"])]
    all: bool,
    /// Only count what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// Remove content that no checkpoint of the user's threads uses
///
/// It is safe to run while other processes use the store.
#[derive(Debug, Args)]
pub(crate) struct Sweep {
    /// Only count what would be removed
    #[arg(long)]
    dry_run: bool,
}

impl Prune {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        if !self.all && self.keep_last.is_none() && self.older_than.is_none() && !self.keep_labelled {
            let message = "no rule selects checkpoints to remove; give `--keep-last`, `--older-than` or `--keep-labelled`, or `--all` \
                for all but the latest";
            return Err(Error::invalid_argument(message).into());
        }
        let (checkpointer, scope) = history(context)?;
        let mut options = PruneOptions::new().with_keep_labelled(self.keep_labelled).with_dry_run(self.dry_run);
        (options.keep_last, options.older_than) = (self.keep_last, self.older_than);
        let progress = context.progress("pruning");
        progress.wait();
        let pruned = checkpointer.prune(&scope, &options).await?;
        drop(progress);
        if !context.out.is_text() {
            context.out.json(&json!({"removed": pruned.removed, "kept": pruned.kept, "dry_run": self.dry_run}))?;
            return Ok(Outcome::Done);
        }
        let verb = if self.dry_run { "would remove" } else { "removed" };
        let removed = counted(usize::try_from(pruned.removed).unwrap_or(usize::MAX), "checkpoint", "checkpoints");
        context.out.line(format_args!("{verb} {removed}, {} kept", pruned.kept))?;
        Ok(Outcome::Done)
    }
}

impl Sweep {
    pub(crate) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let (checkpointer, scope) = history(context)?;
        let progress = context.progress("sweeping");
        progress.wait();
        let swept = checkpointer.sweep(&scope, self.dry_run).await?;
        drop(progress);
        if !context.out.is_text() {
            let mut value = serde_json::to_value(swept).map_err(std::io::Error::from)?;
            value["dry_run"] = self.dry_run.into();
            context.out.json(&value)?;
            return Ok(Outcome::Done);
        }
        let verb = if self.dry_run { "would remove" } else { "removed" };
        let bodies = counted(usize::try_from(swept.bodies).unwrap_or(usize::MAX), "content", "contents");
        let packs = counted(usize::try_from(swept.packs).unwrap_or(usize::MAX), "pack of pages", "packs of pages");
        context.out.line(format_args!("{verb} {bodies} of {} bytes and {packs}, {} contents kept", swept.body_bytes, swept.bodies_kept))?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_accepts_days_and_weeks() {
        let table = [("90m", 5_400), ("12h", 43_200), ("1d", 86_400), ("2w", 1_209_600), ("1h 30m", 5_400), ("30s", 30)];
        for (text, seconds) in table {
            assert_eq!(age(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "d", "-3d", "-2h", "soon", "99999999999999999999d", "9999999999999999d"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }
}
