//! Listing of all namespaces of a store.

use super::{Namespace, NamespacesOptions, Partition, Store, StoreExt};
use std::collections::VecDeque;
use treehold_core::error::Result;

/// How many partitions are listed at once.
const PARTITIONS: usize = 1_000;

/// The namespaces of a store, page by page.
#[derive(Debug)]
pub(super) struct Listing<'s> {
    store: &'s dyn Store,
    /// How to list more; `None` once all are listed.
    options: Option<NamespacesOptions>,
}

/// Lists the namespaces of a store in order.
pub(super) fn list_namespaces(store: &dyn Store) -> Listing<'_> {
    Listing { store, options: Some(NamespacesOptions::new()) }
}

impl Listing<'_> {
    /// Returns the listing of the namespaces after one.
    pub(super) fn after(&self, namespace: &Namespace) -> Self {
        Self { store: self.store, options: Some(NamespacesOptions::new().with_start_after(namespace.clone())) }
    }

    /// Returns the next page; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Namespace>>> {
        let Some(options) = self.options.take() else { return Ok(None) };
        let page = self.store.namespaces(options.clone()).await?;
        self.options = page.namespaces.last().filter(|_| page.more).map(|last| options.with_start_after(last.clone()));
        Ok(Some(page.namespaces))
    }
}

/// The namespaces of a store, page by page, for work on all partitions that a damaged one does not stop.
///
/// Where one partition can fail alone, each is listed by itself, so that only its own page fails.
///
/// # Examples
/// ```
/// use treehold_store::{AllNamespaces, Batch, MemoryStore, Namespace, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> treehold_core::Result<()> {
/// let store = MemoryStore::new();
/// let notes = Namespace::new(["acme", "ada", "notes"])?;
/// store.commit(Batch::new().put(&notes, "today", "walk the dog")).await?;
/// let mut all = AllNamespaces::new(&store);
/// assert_eq!(all.next_page().await?, Some(vec![notes]));
/// assert_eq!(all.next_page().await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AllNamespaces<'s> {
    store: &'s dyn Store,
    limit: usize,
    next: Next,
}

/// What is listed next.
#[derive(Debug)]
enum Next {
    /// The first page, once it is known whether partitions are listed one by one.
    First,
    /// A page of all namespaces.
    Page(NamespacesOptions),
    /// More of one partition if there is more, and then other partitions.
    Partitions(Option<NamespacesOptions>, Partitions),
    End,
}

/// Partitions that are still to be listed.
#[derive(Debug)]
struct Partitions {
    listed: VecDeque<Partition>,
    /// The last of them, if others may follow.
    after: Option<Partition>,
}

impl<'s> AllNamespaces<'s> {
    /// Lists all namespaces of a store, up to 1,000 per page.
    pub fn new(store: &'s dyn Store) -> Self {
        Self { store, limit: NamespacesOptions::new().limit, next: Next::First }
    }

    /// Sets the most namespaces of a page.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Returns whether nothing more is listed. After an error that says whether it was about the whole store.
    pub fn is_over(&self) -> bool {
        matches!(self.next, Next::End)
    }

    /// Returns the next page, in order, possibly an empty one; `None` at the end.
    ///
    /// Cost: one [`Store::namespaces`]. Where partitions are listed one by one, one for each partition, and one
    /// [`StoreExt::partitions`] for 1,000 of them.
    ///
    /// # Errors
    /// Those of the store. If only one partition failed, the next call goes on after it. Otherwise [`is_over`](Self::is_over) is true.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Namespace>>> {
        loop {
            match std::mem::replace(&mut self.next, Next::End) {
                Next::End => return Ok(None),
                Next::First => self.next = self.partitions(None).await?,
                Next::Page(options) => {
                    let page = self.store.namespaces(options.clone()).await?;
                    if let Some(last) = page.namespaces.last().filter(|_| page.more) {
                        self.next = Next::Page(options.with_start_after(last.clone()));
                    }
                    return Ok(Some(page.namespaces));
                }
                Next::Partitions(None, mut rest) => match rest.listed.pop_front() {
                    Some(partition) => {
                        let own = NamespacesOptions::new().with_beneath(partition.namespace([""; 0])?).with_limit(self.limit);
                        self.next = Next::Partitions(Some(own), rest);
                    }
                    None => {
                        if let Some(after) = rest.after {
                            self.next = self.partitions(Some(&after)).await?;
                        }
                    }
                },
                Next::Partitions(Some(options), rest) => {
                    let listed = self.store.namespaces(options.clone()).await;
                    let last = listed.as_ref().ok().filter(|page| page.more).and_then(|page| page.namespaces.last().cloned());
                    self.next = Next::Partitions(last.map(|last| options.with_start_after(last)), rest);
                    return listed.map(|page| Some(page.namespaces));
                }
            }
        }
    }

    /// Begins the listing, or goes on after a partition.
    async fn partitions(&self, after: Option<&Partition>) -> Result<Next> {
        let Some(listed) = self.store.partitions(after, PARTITIONS).await? else {
            return Ok(Next::Page(NamespacesOptions::new().with_limit(self.limit)));
        };
        let after = listed.last().filter(|_| listed.len() >= PARTITIONS).cloned();
        Ok(Next::Partitions(None, Partitions { listed: listed.into(), after }))
    }
}
