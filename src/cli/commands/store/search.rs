//! `store search`: finds JSON items by content.

use super::StoreName;
use crate::cli::context::Context;
use crate::cli::exit::{Failure, Outcome};
use crate::store::{JsonCursor, JsonFilter, JsonSearch, JsonStore, escape_key, unescape_key};
use crate::{Error, Namespace};
use clap::Args;
use serde_json::{Value, json};

/// Find JSON items by their fields
///
/// Prints the key and value of each item on one line. Rows that are not JSON are skipped. A search does not extend the life of an
/// item.
#[derive(Debug, Args)]
pub(crate) struct Search {
    /// Namespace
    namespace: String,
    /// Print only items that match, such as `{"status": "open", "minutes": {"$gt": 5}}`; operators are $eq $ne $gt $gte $lt $lte
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Search only keys that start with TEXT
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// Also search the namespaces beneath, and print the namespace on each line
    #[arg(long)]
    beneath: bool,
    /// Print at most N items
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = crate::cli::args::at_least_one)]
    limit: usize,
    /// Continue after this item
    #[arg(long, num_args = 2, value_names = ["NAMESPACE", "KEY"])]
    start_after: Option<Vec<String>>,
    #[command(flatten)]
    store: StoreName,
}

impl Search {
    pub(super) async fn run(self, context: &mut Context) -> Result<Outcome, Failure> {
        let namespace = Namespace::parse(&self.namespace)?;
        let mut search = JsonSearch::new().with_prefix(unescape_key(&self.prefix)?).with_beneath(self.beneath);
        if let Some(text) = &self.filter {
            let filter: Value =
                serde_json::from_str(text).map_err(|error| Error::invalid_argument(format!("the filter is not JSON: {error}")))?;
            search = search.with_filter(JsonFilter::parse(&filter)?);
        }
        if let Some([space, key]) = self.start_after.as_deref() {
            search = search.with_start_after(JsonCursor::new(&Namespace::parse(space)?, unescape_key(key)?));
        }
        let items = JsonStore::new(self.store.open(context).await?).with_refresh_on_read(false);
        let mut count = 0;
        // A page may end early because enough rows were inspected.
        let next = loop {
            let page = items.search::<Value>(&namespace, &search.clone().with_limit(self.limit - count)).await?;
            for found in &page.items {
                let key = escape_key(&found.key);
                match (context.out.is_text(), self.beneath) {
                    (true, true) => context.out.line(format_args!("{}  {key}  {}", found.namespace, found.value))?,
                    (true, false) => context.out.line(format_args!("{key}  {}", found.value))?,
                    (false, _) => {
                        let item = json!({
                            "namespace": found.namespace,
                            "key": key,
                            "value": found.value,
                            "version": found.version,
                            "created_at": found.created_at,
                            "modified_at": found.modified_at,
                            "expires_at": found.expires_at,
                        });
                        context.out.json_element(count, &item)?;
                    }
                }
                count += 1;
            }
            match page.next {
                Some(next) if count < self.limit => search = search.with_start_after(next),
                next => break next,
            }
        };
        if !context.out.is_text() {
            context.out.json_end(count)?;
        }
        if let Some(next) = next {
            let (namespace, key) = (next.namespace, escape_key(&next.key));
            context.out.notice(format_args!("there are more items; continue with `--start-after '{namespace}' '{key}'`"));
        }
        Ok(Outcome::found(count > 0))
    }
}
