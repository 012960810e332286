//! What is kept of a tree: in path order, so that a directory is forgotten with all beneath it, and within a bound of bytes.

use std::collections::BTreeMap;
use std::ops::Bound;
use treehold_core::ops::{Entry, FileRead, Listing};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// How many bytes the record of a path takes beside what it holds, about: two places in trees and two times its path.
const RECORD_BYTES: usize = 256;

/// What an entry of a listing takes beside its path, about.
const ENTRY_BYTES: usize = 96;

/// When something was known, and by which feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// The feed that has told of every change since; none told.
    pub(super) feed: Option<u64>,
    /// The moment.
    pub(super) at: tokio::time::Instant,
}

/// One thing that is known of a path.
#[derive(Debug, Clone)]
pub(super) enum Known {
    /// What stands there.
    Entry(Entry),
    /// A whole file.
    File(FileRead),
    /// That it is a file too large to be kept.
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

/// What is asked of a path.
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
    /// When it was used last, in uses.
    used: u64,
    bytes: usize,
}

/// What is kept, and what is being fetched.
#[derive(Debug, Default)]
pub(super) struct Table {
    records: BTreeMap<VfsPathBuf, BTreeMap<Kind, Record>>,
    /// What was used last, the longest ago first.
    order: BTreeMap<u64, (VfsPathBuf, Kind)>,
    uses: u64,
    bytes: usize,
    bytes_max: usize,
    /// What is being fetched, and whether it has changed since that began.
    fetches: BTreeMap<u64, (VfsPathBuf, bool)>,
    fetches_begun: u64,
}

impl Table {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Returns how many bytes are kept, records included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns what is known of a path, and counts it as used.
    pub(super) fn get(&mut self, path: &VfsPath, kind: Kind) -> Option<(Known, Stamp)> {
        let record = self.records.get_mut(path)?.get_mut(&kind)?;
        self.uses += 1;
        let place = self.order.remove(&record.used);
        record.used = self.uses;
        self.order.extend(place.map(|place| (self.uses, place)));
        Some((record.known.clone(), record.stamp))
    }

    /// Notes that what is known of a path still holds.
    pub(super) fn renew(&mut self, path: &VfsPath, kind: Kind, stamp: Stamp) {
        if let Some(record) = self.records.get_mut(path).and_then(|known| known.get_mut(&kind)) {
            record.stamp = stamp;
        }
    }

    /// Keeps something, and puts down what was used the longest ago until all is within the bound.
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

    /// Forgets a path with all beneath it, and what is known of the directories above: they list it, and may come and go with it.
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

    /// Begins to fetch a path. What comes is kept only if nothing of it changes until then.
    pub(super) fn begin_fetch(&mut self, path: &VfsPath) -> u64 {
        self.fetches_begun += 1;
        self.fetches.insert(self.fetches_begun, (path.to_owned(), false));
        self.fetches_begun
    }

    /// Ends a fetch and tells whether what came may be kept.
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
    fn the_bound_holds_and_what_is_used_stays() {
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
    fn a_path_is_forgotten_with_all_beneath_it_and_what_lists_it() {
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
    fn what_changes_while_it_is_fetched_is_not_kept() {
        let mut table = Table::new(1 << 20);
        let fetches = ["/a/b", "/a", "/a/b/c", "/a/x"].map(|name| table.begin_fetch(&path(name)));
        table.forget(&path("/a/b"));
        assert_eq!(fetches.map(|fetch| table.end_fetch(fetch)), [false, false, false, true]);
        assert!(table.fetches.is_empty());
    }
}
