//! `store stats`: the size of a store.

use super::{StoreName, next_past, tell_faults};
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::Progress;
use crate::store::{AllNamespaces, Faults, ScanEntry, ScanOptions, StoreExt};
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
        let mut faults = Faults::new();
        let stats = store.stats_with_faults(&mut faults).await?;
        let by_namespace = if self.by_namespace { Some(by_namespace(&*store, &progress, &mut faults).await?) } else { None };
        let described = store.describe().await?;
        drop(progress);
        let capabilities = store.capabilities();
        let bytes = stats.meta_bytes + stats.value_bytes;
        let out = &mut context.out;
        if !out.is_text() {
            let mut value = json!({
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
            });
            if !faults.is_empty() {
                (value["faults"], value["faults_count"]) = (json!(faults.records()), faults.count().into());
            }
            out.json(&value)?;
            return Ok(tell_faults(context, &faults.records(), faults.count()));
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
        Ok(tell_faults(context, &faults.records(), faults.count()))
    }
}

/// Counts the rows of each namespace without reading their bodies. Leaves out namespaces of partitions that cannot be read.
async fn by_namespace(store: &dyn Rows, progress: &Progress, faults: &mut Faults) -> Result<Vec<Held>, Error> {
    let mut all = Vec::new();
    let mut counted = 0;
    let mut listing = AllNamespaces::new(store);
    while let Some(page) = next_past(&mut listing, faults).await? {
        for namespace in page {
            match count(store, namespace, progress, &mut counted).await {
                Err(error) if listing.partition().is_some() => faults.add(error),
                held => all.push(held?),
            }
        }
    }
    Ok(all)
}

/// Counts the rows of one namespace. `counted` is the number of rows of all.
async fn count(store: &dyn Rows, namespace: Namespace, progress: &Progress, counted: &mut u64) -> Result<Held, Error> {
    let mut options = ScanOptions::new();
    let mut held = Held { namespace, rows: 0, meta_bytes: 0 };
    loop {
        let page = store.scan(&held.namespace, options.clone()).await?;
        for entry in &page.entries {
            let ScanEntry::Item(item) = entry else { continue };
            held.rows += 1;
            held.meta_bytes += item.meta.len() as u64;
        }
        *counted += page.entries.len() as u64;
        progress.tell(*counted, "rows");
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => return Ok(held),
        }
    }
}
