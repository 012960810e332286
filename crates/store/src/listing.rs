//! Listing of all namespaces of a store.

use super::{Namespace, NamespacesOptions, Store};
use treehold_core::error::Result;

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
