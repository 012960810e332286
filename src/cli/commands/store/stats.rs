//! `store stats`: the size of a store.

use super::{StoreName, all_namespaces};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::Progress;
use crate::store::{ScanEntry, ScanOptions, StoreExt};
use crate::{Error, Namespace, Store as Rows};
use clap::Args;
use serde::Serialize;
use serde_json::json;

/// Count the namespaces, rows and bytes of the stores
///
/// Reads no content. Expired rows count only as `expired`, until they are swept.
#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Also count the rows of each namespace
    #[arg(long)]
    by_namespace: bool,
    #[command(flatten)]
    store: StoreName,
}

/// The size of one namespace.
#[derive(Debug, Serialize)]
struct Held {
    namespace: Namespace,
    rows: u64,
    meta_bytes: u64,
}

impl Stats {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let store = self.store.open(context).await?;
        let progress = context.progress("counting");
        progress.wait();
        let stats = store.stats().await?;
        let by_namespace = if self.by_namespace { Some(by_namespace(&*store, &progress).await?) } else { None };
        let described = store.describe().await?;
        drop(progress);
        let capabilities = store.capabilities();
        let bytes = stats.meta_bytes + stats.value_bytes;
        let out = &mut context.out;
        if !out.is_text() {
            out.json(&json!({
                "store": store.to_string(),
                "engine": described.engine,
                "schema": described.schema,
                "durability": described.durability,
                "notices": described.notices,
                "capabilities": capabilities,
                "namespaces": stats.namespaces,
                "rows": stats.items,
                "expired": stats.expired,
                "bytes": bytes,
                "meta_bytes": stats.meta_bytes,
                "value_bytes": stats.value_bytes,
                "stored_bytes": stats.stored_bytes,
                "by_namespace": by_namespace,
            }))?;
            return Ok(Outcome::Done);
        }
        out.line(format_args!("store       {store}"))?;
        out.line(format_args!("engine      {}", described.engine))?;
        if let Some(schema) = described.schema {
            out.line(format_args!("schema      {schema}"))?;
        }
        out.line(format_args!("durability  {}", described.durability))?;
        out.line(format_args!("shared      {}", if capabilities.shared { "several processes" } else { "one process" }))?;
        out.line(format_args!("namespaces  {}", stats.namespaces))?;
        out.line(format_args!("rows        {}", stats.items))?;
        out.line(format_args!("expired     {}", stats.expired))?;
        out.line(format_args!("bytes       {bytes}"))?;
        if let Some(stored) = stats.stored_bytes {
            out.line(format_args!("stored      {stored}"))?;
        }
        for Held { namespace, rows, .. } in by_namespace.iter().flatten() {
            out.line(format_args!("{rows:>10}  {namespace}"))?;
        }
        for notice in &described.notices {
            out.notice(notice);
        }
        Ok(Outcome::Done)
    }
}

/// Counts the rows of each namespace without reading their bodies.
async fn by_namespace(store: &dyn Rows, progress: &Progress) -> Result<Vec<Held>, Error> {
    let mut all = Vec::new();
    let mut counted = 0;
    for namespace in all_namespaces(store).await? {
        let mut options = ScanOptions::new();
        let mut held = Held { namespace, rows: 0, meta_bytes: 0 };
        loop {
            let page = store.scan(&held.namespace, options.clone()).await?;
            for entry in &page.entries {
                let ScanEntry::Item(item) = entry else { continue };
                held.rows += 1;
                held.meta_bytes += item.meta.len() as u64;
            }
            counted += page.entries.len() as u64;
            progress.tell(counted, "rows");
            match page.next {
                Some(next) => options.start_after = Some(next),
                None => break,
            }
        }
        all.push(held);
    }
    Ok(all)
}
