//! Every row of a store in order, page by page: what reads a whole store to copy, compare or check it.
//!
//! A page shows one moment of the store, a walk of several pages does not: what is changed behind it is not met.

use super::{Item, Namespace, NamespacesOptions, ScanEntry, ScanOptions, Store};
use crate::error::Result;
use std::collections::VecDeque;

/// A walk over the live rows of all namespaces.
#[derive(Debug)]
pub(super) struct Walk<'s> {
    store: &'s dyn Store,
    /// How a page is read, but for where it starts.
    scan: ScanOptions,
    /// What is passed over, with all beneath it.
    without: Vec<Namespace>,
    /// Namespaces that were listed and are still to be walked.
    namespaces: VecDeque<Namespace>,
    /// How to list more of them; none at the end of the list.
    listing: Option<NamespacesOptions>,
    /// The namespace that is being walked, and the key to go on after.
    open: Option<(Namespace, Option<String>)>,
}

/// Some rows of one namespace, in order: at least one.
#[derive(Debug)]
pub(super) struct WalkPage {
    pub(super) namespace: Namespace,
    pub(super) items: Vec<Item>,
}

impl<'s> Walk<'s> {
    /// Starts a walk whose pages are read as `scan` says.
    pub(super) fn new(store: &'s dyn Store, scan: ScanOptions) -> Self {
        let listing = Some(NamespacesOptions::new());
        Self { store, scan, without: Vec::new(), namespaces: VecDeque::new(), listing, open: None }
    }

    /// Passes over a namespace and what lies beneath it.
    pub(super) fn without(mut self, namespace: Namespace) -> Self {
        self.without.push(namespace);
        self
    }

    /// Passes over several namespaces and what lies beneath them.
    pub(super) fn without_all(mut self, namespaces: impl IntoIterator<Item = Namespace>) -> Self {
        self.without.extend(namespaces);
        self
    }

    /// Starts after a row, whether or not it is there.
    pub(super) fn after(mut self, namespace: Namespace, key: String) -> Self {
        self.listing = Some(NamespacesOptions::new().with_start_after(namespace.clone()));
        self.open = Some((namespace, Some(key)));
        self
    }

    /// Returns the next page; none at the end.
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
            let page = self.store.scan(&namespace, options).await?;
            if let Some(next) = page.next {
                self.open = Some((namespace.clone(), Some(next)));
            }
            let items: Vec<Item> = page.entries.into_iter().filter_map(item).collect();
            if !items.is_empty() {
                return Ok(Some(WalkPage { namespace, items }));
            }
        }
    }

    /// Lists more namespaces; tells whether there may be any.
    async fn list(&mut self) -> Result<bool> {
        let Some(options) = self.listing.take() else { return Ok(false) };
        let page = self.store.namespaces(options.clone()).await?;
        self.listing = page.namespaces.last().filter(|_| page.more).map(|last| options.with_start_after(last.clone()));
        self.namespaces = page.namespaces.into();
        self.namespaces.retain(|namespace| !self.without.iter().any(|without| namespace.starts_with(without)));
        Ok(true)
    }
}

fn item(entry: ScanEntry) -> Option<Item> {
    match entry {
        ScanEntry::Item(item) | ScanEntry::LeftOut { item, .. } => Some(item),
        // Nothing is grouped without a delimiter.
        ScanEntry::Group { item, .. } => item,
    }
}

/// Two walks side by side, in the order of namespaces and keys.
#[derive(Debug)]
pub(super) struct SideBySide<'s> {
    one: Side<'s>,
    other: Side<'s>,
}

/// What two stores have at one place.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) namespace: Namespace,
    /// What the first store has there.
    pub(super) one: Option<Item>,
    /// What the second store has there; there is one of the two at least.
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

    /// Returns what stands at the next place that either store has; none at the end. Pages of both are read at the same time.
    pub(super) async fn next(&mut self) -> Result<Option<Pair>> {
        let (one, other) = futures::future::join(self.one.fill(), self.other.fill()).await;
        one?;
        other?;
        let (one, other) = (self.one.place(), self.other.place());
        // A side that is over stands behind every place of the other.
        let (has_one, has_other) = match (&one, &other) {
            (None, None) => return Ok(None),
            (Some(_), None) => (true, false),
            (None, Some(_)) => (false, true),
            (Some(one), Some(other)) => (one <= other, other <= one),
        };
        let namespace = if has_one { self.one.namespace.clone() } else { self.other.namespace.clone() };
        let namespace = namespace.expect("a side with a row is in a namespace");
        let one = if has_one { self.one.items.next() } else { None };
        let other = if has_other { self.other.items.next() } else { None };
        Ok(Some(Pair { namespace, one, other }))
    }
}

impl<'s> Side<'s> {
    fn new(walk: Walk<'s>) -> Self {
        Self { walk, namespace: None, items: Vec::new().into_iter(), is_over: false }
    }

    /// Reads a page when there is none.
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
