//! `store migrate`: moves a store of the former layout to the present one.

use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::Args;
use treehold::config::{OpenStoreOptions, migrate_store};
use treehold::store::{MigrateOptions, MigrateOutcome, MigrateProgress};

/// Migrate a store that an earlier version wrote
///
/// Moves the rows that treehold keeps for itself below `_treehold`, and takes over what stands under the former default names. Stop
/// all servers and commands that use the store first. SQLite and PostgreSQL migrate all or nothing; on the other engines an
/// interrupted migration resumes when the command is run again, and no version opens the store until then.
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Store: a name of the configuration, or a URL such as `sqlite:FILE`
    #[arg(default_value = treehold::config::DEFAULT_STORE)]
    store: String,
    /// Print what would be moved, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Migrate {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let how = MigrateOptions::new().with_dry_run(self.dry_run);
        let progress = context.progress("migrating");
        let tell = |at: MigrateProgress| progress.share(at.rows, at.rows_total, format_args!("{} of {} rows", at.rows, at.rows_total));
        let report = match self.store.contains(':') {
            true => migrate_store(&self.store, &OpenStoreOptions::new(), &how, tell).await?,
            false => context.config()?.migrate_store(&self.store, &how, tell).await?,
        };
        drop(progress);
        let out = &mut context.out;
        if !out.is_text() {
            out.json(&report)?;
            return Ok(Outcome::Done);
        }
        if report.outcome == MigrateOutcome::UpToDate {
            out.line(format_args!("`{}` has the present layout; nothing to do", self.store))?;
            return Ok(Outcome::Done);
        }
        for (name, rows) in report.rows.iter().filter(|(_, rows)| **rows > 0) {
            out.line(format_args!("{name:<10}{rows}"))?;
        }
        let done = if self.dry_run { "would be moved; nothing was changed" } else { "moved" };
        out.line(format_args!("{:<10}{} {done}", "rows", report.rows_total()))?;
        if let Some(former) = &report.taken_from {
            let verb = if self.dry_run { "would be taken over" } else { "taken over" };
            out.line(format_args!("{verb} from {former}"))?;
        }
        Ok(Outcome::Done)
    }
}
