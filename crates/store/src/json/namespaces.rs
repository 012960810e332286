//! Listing namespaces by patterns of their components.

use super::JsonStore;
use crate::{Namespace, NamespacesOptions, RESERVED_ROOT, is_reserved};
use serde::Serialize;
use treehold_core::error::{Error, Result};
use treehold_core::reserved::after_reserved;

/// Matches any one component.
const ANY: &str = "*";

/// How many namespaces are read per page of the store.
const PAGE: usize = 1_000;

/// Selects the namespaces to list.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceSearch {
    /// The components that the namespaces start with; `*` matches any one. Default none.
    pub prefix: Vec<String>,
    /// The components that the namespaces end with; `*` matches any one. Default none.
    pub suffix: Vec<String>,
    /// Truncates the listed namespaces to this many components, and lists equal ones once. After a page that ended
    /// because of `namespaces_max`, the last one may be listed again.
    pub depth_max: Option<usize>,
    /// Continues after this namespace.
    pub start_after: Option<Namespace>,
    /// The most namespaces listed, at least 1. Default 100.
    pub limit: usize,
    /// The most namespaces examined, at least 1. Default 10,000. A page that reaches this bound ends early and returns
    /// a cursor.
    pub namespaces_max: usize,
}

impl Default for NamespaceSearch {
    fn default() -> Self {
        Self { prefix: Vec::new(), suffix: Vec::new(), depth_max: None, start_after: None, limit: 100, namespaces_max: 10_000 }
    }
}

impl NamespaceSearch {
    /// Lists all namespaces, 100 per page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the components that the namespaces start with.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.prefix = prefix.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the components that the namespaces end with.
    #[must_use]
    pub fn with_suffix(mut self, suffix: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.suffix = suffix.into_iter().map(Into::into).collect();
        self
    }

    /// Truncates the listed namespaces to this many components.
    #[must_use]
    pub fn with_depth_max(mut self, depth_max: usize) -> Self {
        self.depth_max = Some(depth_max);
        self
    }

    /// Continues after the last page.
    #[must_use]
    pub fn with_start_after(mut self, namespace: Namespace) -> Self {
        self.start_after = Some(namespace);
        self
    }

    /// Sets the most namespaces listed.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the most namespaces examined.
    #[must_use]
    pub fn with_namespaces_max(mut self, namespaces_max: usize) -> Self {
        self.namespaces_max = namespaces_max;
        self
    }

    /// Returns whether rows of this crate are listed: only for a prefix that names their place.
    fn shows_reserved(&self) -> bool {
        self.prefix.iter().any(|component| component == RESERVED_ROOT)
    }

    fn matches(&self, namespace: &Namespace) -> bool {
        let same = |(pattern, component): (&String, &str)| pattern == ANY || pattern == component;
        let components: Vec<_> = namespace.components().collect();
        (self.shows_reserved() || !is_reserved(namespace))
            && components.len() >= self.prefix.len().max(self.suffix.len())
            && self.prefix.iter().zip(components.iter().map(|component| &**component)).all(same)
            && self.suffix.iter().rev().zip(components.iter().rev().map(|component| &**component)).all(same)
    }

    /// Returns what to list for all matches: what starts with the components of the prefix before its first `*`.
    fn listing(&self) -> Result<NamespacesOptions> {
        let literal: Vec<&String> = self.prefix.iter().take_while(|component| *component != ANY).collect();
        let options = NamespacesOptions::new();
        if literal.is_empty() { Ok(options) } else { Ok(options.with_ancestor(&Namespace::new(literal)?)) }
    }

    /// Truncates a namespace to `depth_max` components.
    fn cut(&self, namespace: Namespace) -> Result<Namespace> {
        match self.depth_max {
            Some(depth) if namespace.components().count() > depth => {
                let partition = namespace.partition();
                match depth.checked_sub(partition.components().count()) {
                    Some(left) => partition.namespace(namespace.name().take(left)),
                    None => Namespace::new(namespace.components().take(depth)),
                }
            }
            _ => Ok(namespace),
        }
    }
}

/// A page of namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct JsonNamespacePage {
    /// The namespaces in order.
    pub namespaces: Vec<Namespace>,
    /// The cursor of the next page, for [`NamespaceSearch::start_after`]; `None` at the end.
    pub next: Option<Namespace>,
}

impl JsonStore {
    /// Lists the namespaces that hold at least one live row. Those of this crate's own rows are listed only with a prefix that has the
    /// component `_treehold`.
    ///
    /// Cost: linear in the namespaces that share the part of the prefix before its first `*`.
    ///
    /// # Errors
    /// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a depth of 0 or a prefix that is not a valid
    /// namespace. Otherwise as [`Store::namespaces`](crate::Store::namespaces).
    pub async fn namespaces(&self, search: &NamespaceSearch) -> Result<JsonNamespacePage> {
        if search.depth_max == Some(0) {
            return Err(Error::invalid_argument("namespaces have at least one component; a depth of 0 lists nothing"));
        }
        let mut options = search.listing()?;
        options.start_after = search.start_after.clone();
        // The namespace listed last on the previous page covers all that truncate to the same components.
        let before = search.start_after.clone().filter(|namespace| search.matches(namespace));
        let mut last_listed = before.map(|namespace| search.cut(namespace)).transpose()?;
        let mut last_matched = search.start_after.clone();
        let mut page = JsonNamespacePage::default();
        let mut looked_at = 0;
        loop {
            options.limit = PAGE.min(search.namespaces_max.max(1) - looked_at);
            let read = self.store().namespaces(options.clone()).await?;
            let more = read.more;
            for namespace in read.namespaces {
                looked_at += 1;
                options.start_after = Some(namespace.clone());
                if !search.matches(&namespace) {
                    continue;
                }
                let cut = search.cut(namespace.clone())?;
                if last_listed.as_ref() != Some(&cut) {
                    if page.namespaces.len() >= search.limit.max(1) {
                        page.next = last_matched;
                        return Ok(page);
                    }
                    last_listed = Some(cut.clone());
                    page.namespaces.push(cut);
                }
                last_matched = Some(namespace);
            }
            if !more {
                return Ok(page);
            }
            if !search.shows_reserved()
                && let Some(end) = options.start_after.as_ref().and_then(after_reserved)
            {
                options.start_after = Some(end);
            }
            if looked_at >= search.namespaces_max.max(1) {
                page.next = options.start_after;
                return Ok(page);
            }
        }
    }
}
