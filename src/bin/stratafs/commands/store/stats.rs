//! `store stats`: how much a store holds.

use super::{StoreName, all_namespaces};
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use clap::Args;
use serde_json::json;
use stratafs::store::{ScanEntry, ScanOptions};

/// Count the namespaces, rows and bytes of the stores
#[derive(Debug, Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    store: StoreName,
}

impl Stats {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context)?;
        let progress = context.progress("counting rows");
        let mut rows = 0_u64;
        let mut bytes = 0_u64;
        let namespaces = all_namespaces(&*store).await?;
        for namespace in &namespaces {
            let mut options = ScanOptions::new().with_values(true);
            loop {
                let page = store.scan(namespace, options.clone()).await?;
                for entry in &page.entries {
                    let ScanEntry::Item(item) = entry else { continue };
                    rows += 1;
                    bytes += (item.meta.len() + item.value.len()) as u64;
                }
                progress.tell(rows, "rows");
                match page.next {
                    Some(next) => options.start_after = Some(next),
                    None => break,
                }
            }
        }
        drop(progress);
        let capabilities = store.capabilities();
        let out = &mut context.out;
        if !out.is_text() {
            out.json(&json!({
                "store": store.to_string(),
                "capabilities": capabilities,
                "namespaces": namespaces.len(),
                "rows": rows,
                "bytes": bytes,
            }))?;
            return Ok(Outcome::Done);
        }
        out.line(format_args!("store       {store}"))?;
        out.line(format_args!("durability  {}", capabilities.durability))?;
        out.line(format_args!("shared      {}", if capabilities.shared { "several processes" } else { "one process" }))?;
        out.line(format_args!("namespaces  {}", namespaces.len()))?;
        out.line(format_args!("rows        {rows}"))?;
        out.line(format_args!("bytes       {bytes}"))?;
        Ok(Outcome::Done)
    }
}
