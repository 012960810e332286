//! `store sweep`: removes expired rows.

use super::StoreName;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::counted;
use crate::store::{StoreExt, SweepCount};
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
        let count = SweepCount::new();
        let removed = || usize::try_from(count.get()).unwrap_or(usize::MAX);
        let failed = loop {
            let rows = self.limit.map_or(ROWS, |limit| ROWS.min(limit.saturating_sub(removed())));
            if rows == 0 {
                break None;
            }
            let swept = store.sweep_counting(rows, &count).await;
            progress.tell(count.get(), "rows");
            match swept {
                Ok(swept) if swept >= rows => {}
                swept => break swept.err(),
            }
        };
        let removed = removed();
        drop(progress);
        // What was removed is said even if a part of the store could not be swept.
        let failed = match failed {
            Some(error) if removed == 0 => return Err(error.into()),
            failed => failed,
        };
        match context.out.is_text() {
            true => context.out.line(format_args!("{} removed", counted(removed, "row", "rows")))?,
            false => context.out.json(&json!({"removed": removed}))?,
        }
        failed.map_or(Ok(Outcome::Done), |error| Err(error.into()))
    }
}
