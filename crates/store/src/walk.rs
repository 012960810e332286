//! Iteration over every row of a store in order, to copy, compare or check it.
//!
//! Each page shows one moment of the store, but the walk as a whole does not: changes behind its position go unnoticed.

use super::derived::{is_index, is_note};
use super::faults::Lost;
use super::listing::AllNamespaces;
use super::{Item, Namespace, ScanEntry, ScanOptions, Store, Withheld};
use std::collections::{BTreeSet, VecDeque};
use treehold_core::error::Result;

/// A walk over the live rows of all namespaces.
#[derive(Debug)]
pub(super) struct Walk<'s> {
    store: &'s dyn Store,
    /// The options for reading a page, except where it starts.
    scan: ScanOptions,
    /// Whether to skip the notes of copies.
    without_notes: bool,
    /// The withheld rows that are walked.
    included: Option<BTreeSet<Withheld>>,
    /// Whether to skip indexes.
    without_indexes: bool,
    /// Namespaces that are listed and not walked yet.
    namespaces: VecDeque<Namespace>,
    listing: AllNamespaces<'s>,
    /// What could not be read, if the walk goes on after it.
    lost: Option<Lost>,
    /// The namespace being walked, and the key to continue after.
    open: Option<(Namespace, Option<String>)>,
}

/// Some rows of one namespace, in order; at least one.
#[derive(Debug)]
pub(super) struct WalkPage {
    pub(super) namespace: Namespace,
    pub(super) items: Vec<Item>,
}

impl<'s> Walk<'s> {
    /// Starts a walk that reads pages with the options `scan`.
    pub(super) fn new(store: &'s dyn Store, scan: ScanOptions) -> Self {
        Self {
            store,
            scan,
            without_notes: false,
            included: None,
            without_indexes: false,
            namespaces: VecDeque::new(),
            listing: AllNamespaces::new(store),
            lost: None,
            open: None,
        }
    }

    /// Goes on after partitions that cannot be read. Only for a store whose partitions can fail alone.
    pub(super) fn past_faults(mut self) -> Self {
        self.lost = Some(Lost::default());
        self
    }

    /// Returns what could not be read.
    pub(super) fn into_lost(self) -> Lost {
        self.lost.unwrap_or_default()
    }

    /// Skips what copies note about themselves.
    pub(super) fn without_notes(mut self) -> Self {
        self.without_notes = true;
        self
    }

    /// Skips the indexes of trees.
    #[cfg(feature = "archive")]
    pub(super) fn without_indexes(mut self) -> Self {
        self.without_indexes = true;
        self
    }

    /// Skips withheld rows, except those that are included.
    pub(super) fn without_withheld(mut self, included: &BTreeSet<Withheld>) -> Self {
        self.included = Some(included.clone());
        self
    }

    /// Starts after a row, whether or not it exists.
    pub(super) fn after(mut self, namespace: Namespace, key: String) -> Self {
        self.listing = AllNamespaces::after(self.store, namespace.clone());
        self.open = Some((namespace, Some(key)));
        self
    }

    /// Returns the next page; `None` at the end.
    pub(super) async fn page(&mut self) -> Result<Option<WalkPage>> {
        loop {
            let Some((namespace, after)) = self.open.take().or_else(|| Some((self.namespaces.pop_front()?, None))) else {
                if !self.list().await? {
                    return Ok(None);
                }
                continue;
            };
            let mut options = self.scan.clone();
            options.start_after = after;
            let page = match (self.store.scan(&namespace, options).await, &mut self.lost) {
                (Err(error), Some(lost)) => {
                    lost.add(Some(&namespace.partition()), error);
                    continue;
                }
                (scanned, _) => scanned?,
            };
            if let Some(next) = page.next {
                self.open = Some((namespace.clone(), Some(next)));
            }
            let items: Vec<Item> = page.entries.into_iter().filter_map(item).collect();
            if !items.is_empty() {
                return Ok(Some(WalkPage { namespace, items }));
            }
        }
    }

    /// Lists more namespaces. Returns whether there may be any.
    async fn list(&mut self) -> Result<bool> {
        let Some(page) = self.listing.next_page_past(self.lost.as_mut()).await? else { return Ok(false) };
        self.namespaces = page.into();
        self.namespaces.retain(|namespace| {
            let withheld = self.included.as_ref().zip(Withheld::of(namespace));
            let is_withheld = withheld.is_some_and(|(included, withheld)| !included.contains(&withheld));
            !(is_withheld || self.without_notes && is_note(namespace) || self.without_indexes && is_index(namespace))
        });
        Ok(true)
    }
}

fn item(entry: ScanEntry) -> Option<Item> {
    match entry {
        ScanEntry::Item(item) | ScanEntry::LeftOut { item, .. } => Some(item),
        // Without a delimiter there are no groups.
        ScanEntry::Group { item, .. } => item,
    }
}

/// Two walks in step, ordered by namespace and key.
#[derive(Debug)]
pub(super) struct SideBySide<'s> {
    one: Side<'s>,
    other: Side<'s>,
}

/// The rows of two stores at the same namespace and key; at least one exists.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) namespace: Namespace,
    /// The first store's row.
    pub(super) one: Option<Item>,
    /// The second store's row.
    pub(super) other: Option<Item>,
}

#[derive(Debug)]
struct Side<'s> {
    walk: Walk<'s>,
    namespace: Option<Namespace>,
    items: std::vec::IntoIter<Item>,
    is_over: bool,
}

impl<'s> SideBySide<'s> {
    /// Joins two walks.
    pub(super) fn new(one: Walk<'s>, other: Walk<'s>) -> Self {
        Self { one: Side::new(one), other: Side::new(other) }
    }

    /// Returns whether rows of a namespace that the first store may have could not be read so far.
    pub(super) fn one_may_have_lost(&self, namespace: &Namespace) -> bool {
        self.one.walk.lost.as_ref().is_some_and(|lost| lost.may_hold(namespace))
    }

    /// Returns whether the partition of a namespace could not be read, or not whole, in the first store so far.
    pub(super) fn one_has_lost(&self, namespace: &Namespace) -> bool {
        self.one.walk.lost.as_ref().is_some_and(|lost| lost.has(namespace))
    }

    /// Returns what of the first store could not be read.
    pub(super) fn into_lost(self) -> Lost {
        self.one.walk.into_lost()
    }

    /// Returns the rows at the next position that either store has; `None` at the end. Reads pages of both stores
    /// concurrently.
    pub(super) async fn next(&mut self) -> Result<Option<Pair>> {
        let (one, other) = futures::future::join(self.one.fill(), self.other.fill()).await;
        one?;
        other?;
        let (one, other) = (self.one.place(), self.other.place());
        // A finished side sorts after every position of the other.
        let (has_one, has_other) = match (&one, &other) {
            (None, None) => return Ok(None),
            (Some(_), None) => (true, false),
            (None, Some(_)) => (false, true),
            (Some(one), Some(other)) => (one <= other, other <= one),
        };
        let namespace = if has_one { self.one.namespace.clone() } else { self.other.namespace.clone() };
        let namespace = namespace.expect("a side with a row has a namespace");
        let one = if has_one { self.one.items.next() } else { None };
        let other = if has_other { self.other.items.next() } else { None };
        Ok(Some(Pair { namespace, one, other }))
    }
}

impl<'s> Side<'s> {
    fn new(walk: Walk<'s>) -> Self {
        Self { walk, namespace: None, items: Vec::new().into_iter(), is_over: false }
    }

    /// Reads a page if none is buffered.
    async fn fill(&mut self) -> Result<()> {
        if self.is_over || !self.items.as_slice().is_empty() {
            return Ok(());
        }
        match self.walk.page().await? {
            Some(page) => {
                self.namespace = Some(page.namespace);
                self.items = page.items.into_iter();
            }
            None => self.is_over = true,
        }
        Ok(())
    }

    fn place(&self) -> Option<(&Namespace, &str)> {
        Some((self.namespace.as_ref()?, self.items.as_slice().first()?.key.as_str()))
    }
}
