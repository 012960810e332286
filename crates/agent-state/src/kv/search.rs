//! Searching items in pages, ordered by namespace and key.

use super::{KeyValues, KvItem, LIVE, item_of};
use crate::owner::check_limit;
use serde::{Deserialize, Serialize};
use treehold_core::error::{Error, Result};
use treehold_core::work;
use treehold_store::{Namespace, NamespacesOptions, ScanEntry, ScanOptions};

/// The longest page.
pub const PAGE_MAX: usize = 1_000;

/// The largest offset. Later pages are reached by cursor.
pub const OFFSET_MAX: usize = 10_000;

/// Once its values have this many bytes, a page ends.
const PAGE_BYTES_MAX: usize = 8 << 20;

/// Once this many namespaces were searched, a page ends.
const NAMESPACES_MAX: usize = 1_000;

/// Which items to find.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvSearch {
    /// The components of the namespace. None search all namespaces.
    pub namespace: Vec<String>,
    /// Whether namespaces beneath it are left out. Default false.
    pub exact: bool,
    /// The most items on the page, 1 to [`PAGE_MAX`]. Default 100.
    pub limit: usize,
    /// How many items to skip, at most [`OFFSET_MAX`]. Default 0. A cursor is faster.
    pub offset: usize,
    /// Where the page starts. Default the beginning.
    pub after: Option<KvCursor>,
}

impl KvSearch {
    /// Finds the items of a namespace and of those beneath it.
    pub fn new(namespace: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let namespace = namespace.into_iter().map(Into::into).collect();
        Self { namespace, exact: false, limit: 100, offset: 0, after: None }
    }

    /// Sets whether namespaces beneath it are left out.
    #[must_use]
    pub fn with_exact(mut self, exact: bool) -> Self {
        self.exact = exact;
        self
    }

    /// Sets the most items on the page.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets how many items to skip.
    #[must_use]
    pub fn with_offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Sets where the page starts.
    #[must_use]
    pub fn with_after(mut self, after: Option<KvCursor>) -> Self {
        self.after = after;
        self
    }
}

/// A position in a search: just after an item, or at the beginning of a namespace if the key is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KvCursor {
    /// The components of the namespace.
    pub namespace: Vec<String>,
    /// The key.
    pub key: String,
}

/// A page of items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct KvPage {
    /// The items in order: namespaces by their text, parents first, then keys.
    pub items: Vec<KvItem>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<KvCursor>,
}

impl KeyValues {
    /// Finds items in order. A page also ends once its values have 8 MiB.
    ///
    /// Cost: one round trip for each namespace with items, and one for each 100 of their names. Skipped items are read without values.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::ErrorKind::InvalidArgument) for a bad namespace, limit or offset and for the cursor of another
    /// search, [`Corrupt`](treehold_core::ErrorKind::Corrupt) for a row that cannot be read.
    pub async fn search(&self, search: &KvSearch) -> Result<KvPage> {
        check_limit(search.limit, PAGE_MAX)?;
        if search.offset > OFFSET_MAX {
            let message =
                format!("the offset is {} and the largest is {OFFSET_MAX}; continue with the cursor of the last page", search.offset);
            return Err(Error::invalid_argument(message));
        }
        let root = self.rows(&search.namespace)?;
        let (start, key) = match &search.after {
            Some(cursor) => (self.rows(&cursor.namespace)?, cursor.key.clone()),
            None => (root.clone(), String::new()),
        };
        if start != root && (search.exact || !start.starts_with(&root)) {
            return Err(Error::invalid_argument("the cursor belongs to another search; use the one of this search's last page"));
        }
        let mut run = Run { items: self, search, page: KvPage::default(), skip: search.offset, bytes: 0 };
        let mut after = Some(format!("{LIVE}{key}")).filter(|_| !key.is_empty());
        let mut next = vec![start];
        for _ in 0..NAMESPACES_MAX {
            let Some(namespace) = next.pop() else { return Ok(run.page) };
            if !run.read(&namespace, after.take()).await? {
                return Ok(run.page);
            }
            if next.is_empty() && !search.exact {
                let options = NamespacesOptions::new().with_beneath(root.clone()).with_start_after(namespace).with_limit(100);
                next = self.store.namespaces(options).await?.namespaces;
                next.reverse();
            }
        }
        run.page.next = next.pop().map(|namespace| KvCursor { namespace: run.components(&namespace), key: String::new() });
        Ok(run.page)
    }
}

/// A search in progress.
struct Run<'a> {
    items: &'a KeyValues,
    search: &'a KvSearch,
    page: KvPage,
    /// How many items are still to be skipped.
    skip: usize,
    bytes: usize,
}

impl Run<'_> {
    /// Reads one namespace. Returns false once the page is full.
    async fn read(&mut self, namespace: &Namespace, mut after: Option<String>) -> Result<bool> {
        loop {
            let room = self.search.limit - self.page.items.len();
            let is_full = room == 0 || self.bytes >= PAGE_BYTES_MAX;
            let skips = self.skip > 0;
            let limit = match (is_full, skips) {
                // Only whether another item follows.
                (true, _) => 0,
                (false, true) => self.skip.min(PAGE_MAX),
                (false, false) => room,
            };
            let mut options = ScanOptions::new().with_prefix(LIVE).with_values(!skips).with_limit(limit);
            options = options.with_bytes_max(PAGE_BYTES_MAX.saturating_sub(self.bytes).max(1));
            options.start_after = after.take();
            let scan = self.items.store.scan(namespace, options).await?;
            if is_full {
                if scan.next.is_none() {
                    return Ok(true);
                }
                self.page.next = self.page.items.last().map(|item| KvCursor { namespace: item.namespace.clone(), key: item.key.clone() });
                return Ok(false);
            }
            for entry in scan.entries {
                work::step().await;
                let ScanEntry::Item(row) = entry else { continue };
                if skips {
                    self.skip -= 1;
                    continue;
                }
                self.bytes += row.value.len();
                self.page.items.push(item_of(self.components(namespace), &row)?);
            }
            match scan.next {
                Some(next) => after = Some(next),
                None => return Ok(true),
            }
        }
    }

    /// Returns the components of a namespace of items.
    fn components(&self, namespace: &Namespace) -> Vec<String> {
        let none: [&str; 0] = [];
        let above = self.items.rows(&none).map_or(0, |root| root.components().count());
        namespace.components().skip(above).map(|component| component.into_owned()).collect()
    }
}
