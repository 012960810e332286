//! Pages of rows and of namespaces: options and results.

use super::{Item, Namespace, Partition};
use treehold_core::error::Error;

/// Options of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanOptions {
    /// Returns only keys that start with this.
    pub prefix: String,
    /// Groups the keys that contain this character after the prefix; each group is returned once, as
    /// [`ScanEntry::Group`].
    pub delimiter: Option<char>,
    /// Returns only keys after this one. The name of a group counts as a key that sorts after the group's members, so a
    /// page that ended with a group continues behind that group.
    pub start_after: Option<String>,
    /// The most entries returned. Default 1,000. With 0 the page is empty and `next` says whether any entry exists: it
    /// is then `start_after`, or the empty key, which sorts before all others.
    pub limit: usize,
    /// Whether to read bodies. Default false.
    pub with_values: bool,
    /// Ends the page once its bodies exceed this many bytes, left-out bodies included. The entry that crosses the bound
    /// is still on the page, so every page makes progress. Default 8 MiB.
    pub bytes_max: usize,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self { prefix: String::new(), delimiter: None, start_after: None, limit: 1_000, with_values: false, bytes_max: 8 << 20 }
    }
}

impl ScanOptions {
    /// Scans the whole namespace, keys only, 1,000 entries per page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the prefix.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the delimiter.
    #[must_use]
    pub fn with_delimiter(mut self, delimiter: char) -> Self {
        self.delimiter = Some(delimiter);
        self
    }

    /// Continues after a key or group.
    #[must_use]
    pub fn with_start_after(mut self, key: impl Into<String>) -> Self {
        self.start_after = Some(key.into());
        self
    }

    /// Sets the most entries returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets whether bodies are read.
    #[must_use]
    pub fn with_values(mut self, with_values: bool) -> Self {
        self.with_values = with_values;
        self
    }

    /// Sets how many bytes of bodies end a page.
    #[must_use]
    pub fn with_bytes_max(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }
}

/// One entry of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanEntry {
    /// A row.
    Item(Item),
    /// All keys that share a text up to and including the delimiter.
    Group {
        /// The shared text.
        name: String,
        /// The row whose key equals the shared text, if there is one, without its body.
        item: Option<Item>,
    },
    /// A row whose body the engine left out because it does not contain the text of a
    /// [`FilteredScan`](super::FilteredScan). [`Store::scan`](super::Store::scan) returns none.
    LeftOut {
        /// The row without its body.
        item: Item,
        /// The length of the body in bytes.
        value_bytes: u64,
    },
}

impl ScanEntry {
    /// Returns the key, or the group's name.
    pub fn key(&self) -> &str {
        match self {
            Self::Item(item) | Self::LeftOut { item, .. } => &item.key,
            Self::Group { name, .. } => name,
        }
    }
}

/// A page of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Scan {
    /// The entries in key order.
    pub entries: Vec<ScanEntry>,
    /// The cursor of the next page, for [`ScanOptions::start_after`]; `None` at the end.
    pub next: Option<String>,
}

impl Scan {
    /// Makes a page.
    pub fn new(entries: Vec<ScanEntry>, next: Option<String>) -> Self {
        Self { entries, next }
    }
}

/// Options of a listing of namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespacesOptions {
    /// Lists only this namespace and those below it, which are in its partition.
    pub beneath: Option<Namespace>,
    /// Lists only the partitions with this first component: those of a tenant.
    pub tenant: Option<String>,
    /// Lists only namespaces after this one.
    pub start_after: Option<Namespace>,
    /// The most namespaces returned. Default 1,000.
    pub limit: usize,
}

impl Default for NamespacesOptions {
    fn default() -> Self {
        Self { beneath: None, tenant: None, start_after: None, limit: 1_000 }
    }
}

impl NamespacesOptions {
    /// Lists all namespaces, 1,000 per page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lists a namespace and those below it.
    #[must_use]
    pub fn with_beneath(mut self, namespace: Namespace) -> Self {
        self.beneath = Some(namespace);
        self
    }

    /// Lists a namespace and those below it. Below a namespace of one component, a tenant, are also those of the tenant's users, which
    /// are in other partitions.
    #[must_use]
    pub fn with_ancestor(self, namespace: &Namespace) -> Self {
        let mut components = namespace.components();
        match (components.next(), components.next()) {
            (Some(tenant), None) => self.with_tenant(tenant),
            _ => self.with_beneath(namespace.clone()),
        }
    }

    /// Lists the partitions with this first component.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Returns the text that the [encoded](Namespace::encoded) form of each listed namespace starts with; `None` if none can be listed.
    pub fn prefix(&self) -> Option<String> {
        let tenant = self.tenant.as_ref().map_or(Ok(String::new()), |tenant| {
            let partition = Partition::new([tenant])?;
            Ok::<_, Error>(partition.encoded().strip_suffix('/').unwrap_or_default().to_owned())
        });
        let (tenant, beneath) = (tenant.ok()?, self.beneath.as_ref().map_or("", |beneath| beneath.encoded()));
        match () {
            () if beneath.is_empty() || tenant.starts_with(beneath) => Some(tenant),
            () if beneath.starts_with(&tenant) => Some(beneath.to_owned()),
            () => None,
        }
    }

    /// Continues after a namespace.
    #[must_use]
    pub fn with_start_after(mut self, namespace: Namespace) -> Self {
        self.start_after = Some(namespace);
        self
    }

    /// Sets the most namespaces returned.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// A page of namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct NamespacePage {
    /// The namespaces in order.
    pub namespaces: Vec<Namespace>,
    /// Whether more namespaces follow the last.
    pub more: bool,
}

impl NamespacePage {
    /// Makes a page.
    pub fn new(namespaces: Vec<Namespace>, more: bool) -> Self {
        Self { namespaces, more }
    }

    /// Makes the page that `options` ask for from namespaces in their order. Those before the page are skipped; an
    /// engine that can seek starts with the first on the page. At most one after the page is read.
    pub fn of(namespaces: impl IntoIterator<Item = Namespace>, options: &NamespacesOptions) -> Self {
        let Some(prefix) = options.prefix() else { return Self::default() };
        let is_before = |namespace: &Namespace| {
            options.start_after.as_ref().is_some_and(|after| namespace <= after) || namespace.encoded() < prefix.as_str()
        };
        let is_beneath = |namespace: &Namespace| namespace.encoded().starts_with(&prefix);
        let mut listed = namespaces.into_iter().skip_while(is_before).take_while(is_beneath);
        let page = listed.by_ref().take(options.limit).collect();
        Self::new(page, listed.next().is_some())
    }
}

/// A page of partitions that can fail alone.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PartitionPage {
    /// The partitions in order, also those that cannot be read.
    pub partitions: Vec<Partition>,
    /// Why parts of the store could not be listed, such as the directory of a tenant: one error for each. The page lacks their partitions.
    /// Several pages may have the same error.
    pub faults: Vec<Error>,
}

impl PartitionPage {
    /// Makes a page.
    pub fn new(partitions: Vec<Partition>, faults: Vec<Error>) -> Self {
        Self { partitions, faults }
    }
}
