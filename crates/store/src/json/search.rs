//! Searching items in pages, ordered by namespace and key.

use super::{JsonFilter, JsonItem, JsonStore, with_value};
use crate::{Item, Namespace, NamespacesOptions, ScanEntry, ScanOptions, is_reserved};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use treehold_core::error::{Error, Result};
use treehold_core::reserved::after_reserved;
use treehold_core::work;

/// How many rows are read per page of the store.
const PAGE_ROWS: usize = 500;

/// How many namespaces are listed at once to pass those of this crate.
const SPACES: usize = 16;

/// Once its items have this many bytes, a page ends.
const FOUND_BYTES_MAX: usize = 16 << 20;

/// Once this many bytes were examined, a page ends.
const EXAMINED_BYTES_MAX: usize = 256 << 20;

/// Options of an item search.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct JsonSearch {
    /// Only items that match. Default all.
    pub filter: JsonFilter,
    /// Only keys that start with this.
    pub prefix: String,
    /// Also searches the namespaces below. Default false.
    pub beneath: bool,
    /// Continues after this item.
    pub start_after: Option<JsonCursor>,
    /// The most items returned, at least 1. Default 100.
    pub limit: usize,
    /// The most rows examined, at least 1. Default 10,000. A page that reaches this bound ends early and returns a
    /// cursor.
    pub rows_max: usize,
}

impl Default for JsonSearch {
    fn default() -> Self {
        Self { filter: JsonFilter::default(), prefix: String::new(), beneath: false, start_after: None, limit: 100, rows_max: 10_000 }
    }
}

impl JsonSearch {
    /// Searches one namespace for all items, 100 per page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the filter that items must match.
    #[must_use]
    pub fn with_filter(mut self, filter: JsonFilter) -> Self {
        self.filter = filter;
        self
    }

    /// Sets the prefix that keys start with.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets whether namespaces below are searched too.
    #[must_use]
    pub fn with_beneath(mut self, beneath: bool) -> Self {
        self.beneath = beneath;
        self
    }

    /// Continues after the last page.
    #[must_use]
    pub fn with_start_after(mut self, cursor: JsonCursor) -> Self {
        self.start_after = Some(cursor);
        self
    }

    /// Sets the most items returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the most rows examined.
    #[must_use]
    pub fn with_rows_max(mut self, rows_max: usize) -> Self {
        self.rows_max = rows_max;
        self
    }
}

/// A position in a search: just after one item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JsonCursor {
    /// The namespace of that item, in display form.
    pub namespace: String,
    /// The key of that item.
    pub key: String,
}

impl JsonCursor {
    /// Makes the cursor that points after an item.
    pub fn new(namespace: &Namespace, key: impl Into<String>) -> Self {
        Self { namespace: namespace.to_string(), key: key.into() }
    }
}

/// A page of items.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct JsonPage<T> {
    /// The items with their namespaces, ordered by namespace and key.
    pub items: Vec<JsonFound<T>>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<JsonCursor>,
}

/// An item with its namespace. Dereferences to the item.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct JsonFound<T> {
    /// The namespace of the item.
    pub namespace: Namespace,
    /// The item.
    #[serde(flatten)]
    pub item: JsonItem<T>,
}

impl<T> std::ops::Deref for JsonFound<T> {
    type Target = JsonItem<T>;

    fn deref(&self) -> &JsonItem<T> {
        &self.item
    }
}

impl JsonStore {
    /// Searches the items of a namespace. Rows that are not JSON items (files, parts of threads, other values) are
    /// skipped. A page also ends once its items have 16 MiB, or 256 MiB were examined; it returns a cursor then.
    ///
    /// Cost: reads every row with the prefix up to the end of the page; filters apply after reading.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) when a matching item is not of type `T`, or for a
    /// cursor outside the namespace. Otherwise as [`Store::scan`](crate::Store::scan).
    pub async fn search<T: DeserializeOwned>(&self, namespace: &Namespace, search: &JsonSearch) -> Result<JsonPage<T>> {
        let (found, next) = self.found(namespace, search, false).await?;
        let refreshed: Vec<(&Namespace, &Item)> = found.iter().map(|(space, row, _)| (space, row)).collect();
        self.refresh(&refreshed).await;
        let decided = found.into_iter().filter_map(|(space, row, value)| Some((space, row, value?)));
        let items = decided.map(|(space, row, value)| {
            let value = serde_json::from_value(value).map_err(|source| {
                let message = format!("the item `{}` of `{space}` does not have the requested type: {source}", super::shown(&row.key));
                Error::invalid_argument(message).with_source(source)
            })?;
            Ok(JsonFound { item: with_value(&row, value), namespace: space })
        });
        Ok(JsonPage { items: items.collect::<Result<_>>()?, next })
    }

    /// Searches like [`JsonStore::search`], and returns the rows of the items with their namespaces. Reading them extends no item's life.
    ///
    /// Also returns items that the filter cannot decide about, because their JSON has what this crate does not read: a number beyond those
    /// of floating point, over 128 levels, half of a surrogate pair, another encoding than UTF-8. Callers that read more decide themselves.
    ///
    /// # Errors
    /// As [`JsonStore::search`].
    pub async fn search_rows(&self, namespace: &Namespace, search: &JsonSearch) -> Result<(Vec<(Namespace, Item)>, Option<JsonCursor>)> {
        let (found, next) = self.found(namespace, search, true).await?;
        Ok((found.into_iter().map(|(space, row, _)| (space, row)).collect(), next))
    }

    /// Returns the matching rows of a page, with their values, and the cursor of the next page. With `undecided`, also rows of items that
    /// cannot be parsed, without a value.
    async fn found(&self, namespace: &Namespace, search: &JsonSearch, undecided: bool) -> Result<(Vec<Found>, Option<JsonCursor>)> {
        let filter = Arc::new(search.filter.clone());
        let (rows_left, examined_bytes, found_bytes) = (search.rows_max.max(1), 0, 0);
        let mut run = Run { search, filter, undecided, rows_left, examined_bytes, found_bytes, found: Vec::new(), last: None };
        let cursor = match &search.start_after {
            Some(cursor) => Some((Namespace::parse(&cursor.namespace)?, cursor.key.clone())),
            None => None,
        };
        let listing = NamespacesOptions::new().with_ancestor(namespace);
        let prefix = listing.prefix().unwrap_or_default();
        let mut start = match cursor {
            Some((at, _)) if !(at == *namespace || search.beneath && at.encoded().starts_with(&prefix)) => {
                return Err(Error::invalid_argument("the cursor belongs to another search; use the one from this search's last page"));
            }
            Some((at, key)) => Some((at, Some(key))),
            // Users of a tenant may come before the rows of the tenant itself.
            None if search.beneath && prefix != namespace.encoded() => {
                self.next_space(namespace, &listing, None).await?.map(|space| (space, None))
            }
            None => Some((namespace.clone(), None)),
        };
        let mut more = false;
        while let Some((space, after)) = start.take() {
            more = !self.search_one(&space, after, &mut run).await?;
            if search.beneath && !more {
                start = self.next_space(namespace, &listing, Some(space)).await?.map(|space| (space, None));
            }
        }
        let Run { found, last, .. } = run;
        Ok((found, last.filter(|_| more)))
    }

    /// Returns the first listed namespace after another one. Below a namespace of an application, rows of this crate are left out.
    async fn next_space(&self, of: &Namespace, listing: &NamespacesOptions, mut after: Option<Namespace>) -> Result<Option<Namespace>> {
        let mut limit = 1;
        loop {
            let mut options = listing.clone().with_limit(limit);
            (options.start_after, limit) = (after, SPACES);
            let page = self.store().namespaces(options).await?;
            after = page.namespaces.last().map(|last| after_reserved(last).filter(|_| !is_reserved(of)).unwrap_or_else(|| last.clone()));
            let mut shown = page.namespaces.into_iter().filter(|space| is_reserved(of) || !is_reserved(space));
            match shown.next() {
                None if page.more && after.is_some() => {}
                next => return Ok(next),
            }
        }
    }

    /// Searches one namespace. Returns whether it was searched to its end.
    async fn search_one(&self, namespace: &Namespace, after: Option<String>, run: &mut Run<'_>) -> Result<bool> {
        let mut options = ScanOptions::new().with_prefix(&*run.search.prefix).with_values(true);
        options.start_after = after;
        loop {
            // A full page only needs to know whether more rows follow.
            options.limit = if run.is_full() { 0 } else { PAGE_ROWS.min(run.rows_left) };
            let page = self.store().scan(namespace, options.clone()).await?;
            for entry in page.entries {
                let ScanEntry::Item(row) = entry else { continue };
                if run.is_full() {
                    return Ok(false);
                }
                run.look_at(namespace, row).await?;
            }
            match page.next {
                Some(_) if run.is_full() => return Ok(false),
                Some(next) => options.start_after = Some(next),
                None => return Ok(true),
            }
        }
    }
}

/// A row that a search found. It has no value if it cannot be parsed.
type Found = (Namespace, Item, Option<Value>);

/// A search in progress.
struct Run<'s> {
    search: &'s JsonSearch,
    filter: Arc<JsonFilter>,
    /// Whether items that cannot be parsed are found.
    undecided: bool,
    rows_left: usize,
    examined_bytes: usize,
    found_bytes: usize,
    found: Vec<Found>,
    /// The row examined last.
    last: Option<JsonCursor>,
}

impl Run<'_> {
    fn is_full(&self) -> bool {
        let is_large = self.found_bytes >= FOUND_BYTES_MAX || self.examined_bytes >= EXAMINED_BYTES_MAX;
        is_large || self.rows_left == 0 || self.found.len() >= self.search.limit.max(1)
    }

    async fn look_at(&mut self, namespace: &Namespace, row: Item) -> Result<()> {
        work::step().await;
        self.rows_left -= 1;
        self.examined_bytes += row.value.len();
        self.last = Some(JsonCursor::new(namespace, &*row.key));
        if !JsonStore::is_item(&row) {
            return Ok(());
        }
        let (bytes, filter) = (row.value.clone(), self.filter.clone());
        // A row without the mark of an item may hold anything.
        let undecided = self.undecided && !row.meta.is_empty();
        let matching = work::run(row.value.len() as u64, move |_| match serde_json::from_slice::<Value>(&bytes) {
            Ok(value) => filter.matches(&value).then_some(Some(value)),
            Err(_) => undecided.then_some(None),
        });
        if let Some(value) = matching.await? {
            self.found_bytes += row.value.len();
            self.found.push((namespace.clone(), row, value));
        }
        Ok(())
    }
}
