//! `store sweep`: removes expired rows.

use super::StoreName;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::counted;
use crate::store::StoreExt;
use clap::Args;
use serde_json::json;

/// The most rows to remove at a time.
const ROWS: usize = 1_000;

/// Remove expired rows
///
/// Reads already ignore expired rows; removing them frees their space. Every process that has a store open does this by default
/// once a minute; see `sweep_every` in the configuration.
#[derive(Debug, Args)]
pub(crate) struct Sweep {
    /// Remove at most N rows
    #[arg(long, value_name = "N", value_parser = crate::cli::args::at_least_one)]
    limit: Option<usize>,
    #[command(flatten)]
    store: StoreName,
}

impl Sweep {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context).await?;
        let progress = context.progress("removing");
        let mut removed = 0;
        loop {
            let rows = self.limit.map_or(ROWS, |limit| ROWS.min(limit - removed));
            let swept = if rows == 0 { 0 } else { store.sweep(rows).await? };
            removed += swept;
            progress.tell(removed as u64, "rows");
            if swept < rows || rows == 0 {
                break;
            }
        }
        drop(progress);
        match context.out.is_text() {
            true => context.out.line(format_args!("{} removed", counted(removed, "row", "rows")))?,
            false => context.out.json(&json!({"removed": removed}))?,
        }
        Ok(Outcome::Done)
    }
}
