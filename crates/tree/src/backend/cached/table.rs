//! The cached content of a tree, bounded in bytes, and in path order so that a directory can be invalidated with everything beneath it.

use std::collections::BTreeMap;
use std::ops::Bound;
use treehold_core::ops::{Entry, FileRead, Listing};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The approximate size of a path's record apart from its content: two tree nodes and two copies of the path.
const RECORD_BYTES: usize = 256;

/// The approximate size of an entry of a listing apart from its path.
const ENTRY_BYTES: usize = 96;

/// When content was known to be current, and which feed was live then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// The feed that has reported every change since; `None` without one.
    pub(super) feed: Option<u64>,
    /// The moment.
    pub(super) at: tokio::time::Instant,
}

/// A cached fact about a path.
#[derive(Debug, Clone)]
pub(super) enum Known {
    /// Its entry.
    Entry(Entry),
    /// A whole file.
    File(FileRead),
    /// The file is too large to be cached.
    Large,
    /// All children of a directory.
    Children(Listing),
}

impl Known {
    fn kind(&self) -> Kind {
        match self {
            Self::Entry(_) => Kind::Entry,
            Self::File(_) | Self::Large => Kind::Content,
            Self::Children(_) => Kind::Children,
        }
    }

    fn bytes(&self) -> usize {
        let of_entry = |entry: &Entry| ENTRY_BYTES + entry.path.as_str().len();
        match self {
            Self::Entry(entry) => of_entry(entry),
            Self::File(read) => read.content.len(),
            Self::Large => 0,
            Self::Children(listing) => listing.entries.iter().map(of_entry).sum(),
        }
    }
}

/// The kind of a cached fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Entry,
    Content,
    Children,
}

const KINDS: [Kind; 3] = [Kind::Entry, Kind::Content, Kind::Children];

#[derive(Debug)]
struct Record {
    known: Known,
    stamp: Stamp,
    /// When it was last used, counted in uses.
    used: u64,
    bytes: usize,
}

/// The cached content, and the fetches in progress.
#[derive(Debug, Default)]
pub(super) struct Table {
    records: BTreeMap<VfsPathBuf, BTreeMap<Kind, Record>>,
    /// The least recently used first.
    order: BTreeMap<u64, (VfsPathBuf, Kind)>,
    uses: u64,
    bytes: usize,
    bytes_max: usize,
    /// The fetches in progress, and whether their paths have changed since they began.
    fetches: BTreeMap<u64, (VfsPathBuf, bool)>,
    fetches_begun: u64,
}

impl Table {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Returns the number of cached bytes, records included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a cached fact about a path, and marks it as used.
    pub(super) fn get(&mut self, path: &VfsPath, kind: Kind) -> Option<(Known, Stamp)> {
        let record = self.records.get_mut(path)?.get_mut(&kind)?;
        self.uses += 1;
        let place = self.order.remove(&record.used);
        record.used = self.uses;
        self.order.extend(place.map(|place| (self.uses, place)));
        Some((record.known.clone(), record.stamp))
    }

    /// Marks a cached fact as still valid.
    pub(super) fn renew(&mut self, path: &VfsPath, kind: Kind, stamp: Stamp) {
        if let Some(record) = self.records.get_mut(path).and_then(|known| known.get_mut(&kind)) {
            record.stamp = stamp;
        }
    }

    /// Caches a fact, and evicts the least recently used ones until the bound holds.
    pub(super) fn insert(&mut self, path: &VfsPath, known: Known, stamp: Stamp) {
        let kind = known.kind();
        self.remove(path, kind);
        let bytes = RECORD_BYTES + 2 * path.as_str().len() + known.bytes();
        if bytes > self.bytes_max {
            return;
        }
        while self.bytes + bytes > self.bytes_max {
            let Some((_, (path, kind))) = self.order.first_key_value().map(|(used, place)| (*used, place.clone())) else { break };
            self.remove(&path, kind);
        }
        self.uses += 1;
        self.bytes += bytes;
        self.order.insert(self.uses, (path.to_owned(), kind));
        self.records.entry(path.to_owned()).or_default().insert(kind, Record { known, stamp, used: self.uses, bytes });
    }

    fn remove(&mut self, path: &VfsPath, kind: Kind) {
        let Some(known) = self.records.get_mut(path) else { return };
        if let Some(record) = known.remove(&kind) {
            self.bytes -= record.bytes;
            self.order.remove(&record.used);
        }
        if known.is_empty() {
            self.records.remove(path);
        }
    }

    /// Invalidates a path with everything beneath it, and the directories above, whose listings and existence may depend on it.
    pub(super) fn forget(&mut self, path: &VfsPath) {
        let beneath = self.records.range::<VfsPath, _>((Bound::Included(path), Bound::Unbounded)).map(|(found, _)| found);
        let gone: Vec<VfsPathBuf> = beneath.take_while(|found| found.starts_with(path)).cloned().collect();
        for found in gone {
            KINDS.into_iter().for_each(|kind| self.remove(&found, kind));
        }
        for above in path.ancestors().map(VfsPath::to_owned).collect::<Vec<_>>() {
            KINDS.into_iter().for_each(|kind| self.remove(&above, kind));
        }
        for (fetched, has_changed) in self.fetches.values_mut() {
            *has_changed |= fetched.starts_with(path) || path.starts_with(fetched);
        }
    }

    /// Begins to fetch a path. The result is cached only if the path does not change meanwhile.
    pub(super) fn begin_fetch(&mut self, path: &VfsPath) -> u64 {
        self.fetches_begun += 1;
        self.fetches.insert(self.fetches_begun, (path.to_owned(), false));
        self.fetches_begun
    }

    /// Ends a fetch and returns whether its result may be cached.
    pub(super) fn end_fetch(&mut self, fetch: u64) -> bool {
        self.fetches.remove(&fetch).is_some_and(|(_, has_changed)| !has_changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use treehold_core::ops::Version;

    fn path(text: &str) -> VfsPathBuf {
        VfsPathBuf::parse(text).expect("a legal path")
    }

    fn stamp() -> Stamp {
        Stamp { feed: None, at: tokio::time::Instant::now() }
    }

    fn file(size: usize) -> Known {
        Known::File(FileRead::new(Bytes::from(vec![0; size]), Version::new(1), None))
    }

    #[test]
    fn eviction_keeps_the_bound_and_recently_used_entries() {
        let mut table = Table::new(10_000);
        for number in 0..1_000 {
            table.insert(&path(&format!("/{number}")), file(number), stamp());
            assert!(table.bytes() <= 10_000, "{number}");
            assert!(number > 900 || table.get(&path("/0"), Kind::Content).is_some(), "{number}");
        }
        let counted: usize = table.records.values().flat_map(BTreeMap::values).map(|record| record.bytes).sum();
        let records: usize = table.records.values().map(BTreeMap::len).sum();
        assert_eq!((counted, records), (table.bytes(), table.order.len()));
        table.insert(&path("/large"), file(10_000), stamp());
        assert!(table.get(&path("/large"), Kind::Content).is_none() && table.bytes() > 0);
        table.forget(VfsPath::ROOT);
        assert_eq!((table.bytes(), table.records.len(), table.order.len()), (0, 0, 0));
    }

    #[test]
    fn forgetting_a_path_drops_its_subtree_and_its_parents_listing() {
        let mut table = Table::new(1 << 20);
        for name in ["/a", "/a/b", "/a/b/c", "/a/b-c", "/a/bb", "/x"] {
            table.insert(&path(name), file(1), stamp());
            table.insert(&path(name), Known::Children(Listing::default()), stamp());
        }
        table.insert(VfsPath::ROOT, Known::Children(Listing::default()), stamp());
        table.forget(&path("/a/b"));
        let kept: Vec<&str> = table.records.keys().map(|path| path.as_str()).collect();
        assert_eq!(kept, ["/a/b-c", "/a/bb", "/x"]);
    }

    #[test]
    fn content_changed_during_its_fetch_is_not_cached() {
        let mut table = Table::new(1 << 20);
        let fetches = ["/a/b", "/a", "/a/b/c", "/a/x"].map(|name| table.begin_fetch(&path(name)));
        table.forget(&path("/a/b"));
        assert_eq!(fetches.map(|fetch| table.end_fetch(fetch)), [false, false, false, true]);
        assert!(table.fetches.is_empty());
    }
}
