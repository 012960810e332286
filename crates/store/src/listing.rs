//! Listing of all namespaces of a store.

use super::faults::Lost;
use super::{Namespace, NamespacesOptions, Partition, Store, StoreExt};
use std::collections::VecDeque;
use treehold_core::error::{Error, Result};

/// How many partitions are listed at once.
const PARTITIONS: usize = 1_000;

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
    /// The partition that was listed last.
    partition: Option<Partition>,
}

/// What is listed next.
#[derive(Debug)]
enum Next {
    /// The first page, once it is known whether partitions are listed one by one. Begins after a namespace, if there is one.
    First(Option<Namespace>),
    /// A page of all namespaces.
    Page(NamespacesOptions),
    /// More of one partition if there is more, and then other partitions.
    Partitions(Option<NamespacesOptions>, Partitions),
    End,
}

/// Partitions that are still to be listed.
#[derive(Debug)]
struct Partitions {
    /// Why parts of the store that come next cannot be listed.
    faults: VecDeque<Error>,
    listed: VecDeque<Partition>,
    /// The last of them, if others may follow.
    after: Option<Partition>,
}

impl<'s> AllNamespaces<'s> {
    /// Lists all namespaces of a store, up to 1,000 per page.
    pub fn new(store: &'s dyn Store) -> Self {
        Self { store, limit: NamespacesOptions::new().limit, next: Next::First(None), partition: None }
    }

    /// Lists only the namespaces after one.
    pub(super) fn after(store: &'s dyn Store, namespace: Namespace) -> Self {
        Self { next: Next::First(Some(namespace)), ..Self::new(store) }
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

    /// Returns the partition that the last page or error was about. `None` where partitions are not listed one by one, and after an error
    /// about a part of the store whose partitions are unknown, such as the directory of a tenant.
    pub fn partition(&self) -> Option<&Partition> {
        self.partition.as_ref()
    }

    /// Returns the next page, in order, possibly an empty one; `None` at the end.
    ///
    /// Cost: one [`Store::namespaces`]. Where partitions are listed one by one, one for each partition, and one
    /// [`StoreExt::partitions`] for 1,000 of them.
    ///
    /// # Errors
    /// Those of the store. If only one partition failed, or a part of the store could not be listed, the next call goes on after it.
    /// Otherwise [`is_over`](Self::is_over) is true.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Namespace>>> {
        loop {
            match std::mem::replace(&mut self.next, Next::End) {
                Next::End => return Ok(None),
                Next::First(after) => self.next = self.first(after).await?,
                Next::Page(options) => {
                    let page = self.store.namespaces(options.clone()).await?;
                    if let Some(last) = page.namespaces.last().filter(|_| page.more) {
                        self.next = Next::Page(options.with_start_after(last.clone()));
                    }
                    return Ok(Some(page.namespaces));
                }
                Next::Partitions(None, mut rest) => {
                    if let Some(fault) = rest.faults.pop_front() {
                        self.partition = None;
                        self.next = Next::Partitions(None, rest);
                        return Err(fault);
                    }
                    match rest.listed.pop_front() {
                        Some(partition) => self.next = Next::Partitions(Some(self.within(&partition)?), rest),
                        None => {
                            if let Some(after) = rest.after {
                                self.next = self.partitions(Some(&after)).await?.map_or(Next::End, |more| Next::Partitions(None, more));
                            }
                        }
                    }
                }
                Next::Partitions(Some(options), rest) => {
                    self.partition = options.beneath.as_ref().map(Namespace::partition);
                    let listed = self.store.namespaces(options.clone()).await;
                    let last = listed.as_ref().ok().filter(|page| page.more).and_then(|page| page.namespaces.last().cloned());
                    self.next = Next::Partitions(last.map(|last| options.with_start_after(last)), rest);
                    return listed.map(|page| Some(page.namespaces));
                }
            }
        }
    }

    /// As [`next_page`](Self::next_page). With `lost`, adds the parts that fail to it and goes on after them, so that only errors about the
    /// whole store are left.
    pub(super) async fn next_page_past(&mut self, lost: Option<&mut Lost>) -> Result<Option<Vec<Namespace>>> {
        let Some(lost) = lost else { return self.next_page().await };
        loop {
            match self.next_page().await {
                Err(error) if !self.is_over() => lost.add(self.partition(), error),
                listed => return listed,
            }
        }
    }

    /// Begins the listing.
    async fn first(&self, after: Option<Namespace>) -> Result<Next> {
        let partition = after.as_ref().map(Namespace::partition);
        let rest = self.partitions(partition.as_ref()).await?;
        let with_start = |mut options: NamespacesOptions| {
            options.start_after = after;
            options
        };
        Ok(match (rest, partition) {
            (None, _) => Next::Page(with_start(NamespacesOptions::new().with_limit(self.limit))),
            (Some(rest), Some(partition)) => Next::Partitions(Some(with_start(self.within(&partition)?)), rest),
            (Some(rest), None) => Next::Partitions(None, rest),
        })
    }

    /// Lists the partitions after one; `None` if they are not listed one by one.
    async fn partitions(&self, after: Option<&Partition>) -> Result<Option<Partitions>> {
        let Some(page) = self.store.partitions(after, PARTITIONS).await? else { return Ok(None) };
        let after = page.partitions.last().filter(|_| page.partitions.len() >= PARTITIONS).cloned();
        Ok(Some(Partitions { faults: page.faults.into(), listed: page.partitions.into(), after }))
    }

    /// Returns the options that list one partition.
    fn within(&self, partition: &Partition) -> Result<NamespacesOptions> {
        Ok(NamespacesOptions::new().with_beneath(partition.namespace([""; 0])?).with_limit(self.limit))
    }
}
