//! `store migrate`: moves a store of the former layout to the present one.

use super::{named, shown, tell_faults};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::config::OpenStoreOptions;
use crate::store::{MigrateOptions, MigrateOutcome, MigrateProgress};
use clap::Args;

/// Migrate a store from an earlier version
///
/// Moves treehold's own rows to where this version keeps them, and renames databases that have the former default name. First stop all servers and commands
/// that use the store. Run an interrupted migration again to resume it.
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Store: a name of the configuration, or a URL such as `sqlite:FILE` [default: the only one, or `default`]
    store: Option<String>,
    /// Only print what would be moved
    #[arg(long)]
    dry_run: bool,
}

impl Migrate {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let how = MigrateOptions::new().with_dry_run(self.dry_run);
        let progress = context.progress("migrating");
        let tell = |at: MigrateProgress| progress.share(at.rows, at.rows_total, format_args!("{} of {} rows", at.rows, at.rows_total));
        let store = named(context, self.store.as_deref())?;
        let report = match store.contains(':') {
            true => context.registry.migrate_store(&store, &OpenStoreOptions::new(), &how, tell).await?,
            false => context.config()?.migrate_store(&store, &how, tell).await?,
        };
        drop(progress);
        let shown = shown(context, &store);
        let out = &mut context.out;
        if !out.is_text() {
            out.json(&report)?;
            return Ok(tell_faults(context, &report.faults, report.faults_count));
        }
        if report.outcome == MigrateOutcome::UpToDate {
            let what = if report.faults_count > 0 { "the rest of " } else { "" };
            out.line(format_args!("{what}`{shown}` has the current layout; nothing to do"))?;
            return Ok(tell_faults(context, &report.faults, report.faults_count));
        }
        for (name, rows) in report.rows.iter().filter(|(_, rows)| **rows > 0) {
            out.line(format_args!("{name:<10}{rows}"))?;
        }
        let done = if self.dry_run { "would be moved; nothing was changed" } else { "moved" };
        out.line(format_args!("{:<10}{} {done}", "rows", report.rows_total()))?;
        if let Some(former) = &report.taken_from {
            let verb = if self.dry_run { "would be renamed" } else { "renamed" };
            out.line(format_args!("{verb} from {former}"))?;
        }
        Ok(tell_faults(context, &report.faults, report.faults_count))
    }
}
