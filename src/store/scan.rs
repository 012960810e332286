//! Pages of rows and of namespaces: how they are asked for, and what comes back.

use super::{Item, Namespace};
use bytes::Bytes;

/// How to scan a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanOptions {
    /// Only keys that start with this.
    pub prefix: String,
    /// Groups the keys that hold this character after the prefix: each group is returned once, as [`ScanEntry::Group`].
    pub delimiter: Option<char>,
    /// Only keys after this one. A group's name is a key in this sense: what lies in the group is not after it, so the
    /// cursor of a page that ended with a group passes over the group.
    pub start_after: Option<String>,
    /// The most entries returned. Default 1,000. With 0 the page is empty and its `next` tells whether anything is there:
    /// it is `start_after` again, or the empty key, which is before all others.
    pub limit: usize,
    /// Reads bodies. Default false.
    pub with_values: bool,
    /// Ends the page early once the bodies in it are this many bytes, with those that were left out. The entry that goes over it is still on the page, so
    /// every page makes progress. Default 8 MiB.
    pub bytes_max: usize,
    /// Lets the store leave out bodies that do not hold this, as [`ScanEntry::LeftOut`]: for a search, which finds nothing in them. Those
    /// of [binary](crate::file::is_binary) content are returned whatever they hold, as searches tell of them. Default none.
    ///
    /// A store that has the bodies at hand returns all of them. Those that would send them look for the text where they are: PostgreSQL
    /// (bodies of 1 KiB and more) and MySQL (16 KiB). Nothing else about a page depends on it.
    pub values_holding: Option<Bytes>,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            delimiter: None,
            start_after: None,
            limit: 1_000,
            with_values: false,
            bytes_max: 8 << 20,
            values_holding: None,
        }
    }
}

impl ScanOptions {
    /// Scans the whole namespace, keys only, 1,000 entries a page.
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

    /// Goes on after a key or group.
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

    /// Reads bodies.
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

    /// Lets the store leave out bodies that do not hold a text.
    #[must_use]
    pub fn with_values_holding(mut self, text: impl Into<Bytes>) -> Self {
        self.values_holding = Some(text.into());
        self
    }
}

/// One entry of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanEntry {
    /// A row.
    Item(Item),
    /// All keys that share the text up to and with the delimiter.
    Group {
        /// That text.
        name: String,
        /// The row whose key is just that text, if there is one (without its body).
        item: Option<Item>,
    },
    /// A row whose body was read by the engine and left out, as it does not hold [`ScanOptions::values_holding`].
    LeftOut {
        /// The row without its body.
        item: Item,
        /// How long the body is.
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
    /// Where to go on, as [`ScanOptions::start_after`]; none when there is no more.
    pub next: Option<String>,
}

impl Scan {
    /// Makes a page.
    pub fn new(entries: Vec<ScanEntry>, next: Option<String>) -> Self {
        Self { entries, next }
    }
}

/// How to list namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespacesOptions {
    /// Only this namespace and those beneath it.
    pub beneath: Option<Namespace>,
    /// Only namespaces after this one.
    pub start_after: Option<Namespace>,
    /// The most returned. Default 1,000.
    pub limit: usize,
}

impl Default for NamespacesOptions {
    fn default() -> Self {
        Self { beneath: None, start_after: None, limit: 1_000 }
    }
}

impl NamespacesOptions {
    /// Lists all namespaces, 1,000 a page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lists a namespace and those beneath it.
    #[must_use]
    pub fn with_beneath(mut self, namespace: Namespace) -> Self {
        self.beneath = Some(namespace);
        self
    }

    /// Goes on after a namespace.
    #[must_use]
    pub fn with_start_after(mut self, namespace: Namespace) -> Self {
        self.start_after = Some(namespace);
        self
    }

    /// Sets the most returned.
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
    /// Whether there are more after the last.
    pub more: bool,
}

impl NamespacePage {
    /// Makes a page.
    pub fn new(namespaces: Vec<Namespace>, more: bool) -> Self {
        Self { namespaces, more }
    }
}
