//! `store compact`: rewrites a store without its unused space.

use super::StoreName;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::store::StoreExt;
use clap::Args;
use serde_json::json;

/// Rewrite a store without its unused space
///
/// A SQLite file that an earlier version created needs this once; from then on `treehold sweep` and a server give unused space back by
/// themselves. It writes everything again and needs as much free space, and other writers wait, so run it when the store is quiet.
/// Other engines reuse space, or give it back by themselves.
#[derive(Debug, Args)]
pub(crate) struct Compact {
    #[command(flatten)]
    store: StoreName,
}

impl Compact {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context).await?;
        let progress = context.progress("rewriting");
        progress.wait();
        let is_compacted = store.compact().await?;
        drop(progress);
        match context.out.is_text() {
            true if is_compacted => context.out.line(format_args!("{store} was rewritten"))?,
            true => context.out.line(format_args!("{store} needs no rewriting; its engine manages space by itself"))?,
            false => context.out.json(&json!({"compacted": is_compacted}))?,
        }
        Ok(Outcome::Done)
    }
}
