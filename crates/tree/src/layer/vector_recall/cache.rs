//! The vectors that a process keeps in memory.

use super::passages::PassageKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use treehold_core::ops::Version;
use treehold_core::path::{VfsPath, VfsPathBuf};

/// What an entry takes in memory beside its content, approximately.
pub(super) const ENTRY_BYTES: usize = 96;

/// One over the part of the memory that one owner may use.
const OWNERS_MIN: usize = 2;

/// The vector of a passage, of length 1. It is empty if the model refuses the passage.
pub(super) type Vector = Arc<[f32]>;

/// The vectors that a process keeps in memory, up to a number of bytes, for any number of owners and of trees of each.
///
/// A vector belongs to an owner and a passage, so an owner's trees share it. A tree keeps which passages each version of a file has, since
/// two trees may use one version for different contents. An owner uses up to half of the memory, so the tree of one does not displace those
/// of all others; beyond that, what its searches have met least recently is dropped, half of it at a time. If the memory is full, the owner
/// whose last search is longest ago loses all.
#[derive(Debug)]
pub struct VectorCache {
    bytes_max: usize,
    owners: Mutex<Owners>,
}

#[derive(Debug, Default)]
struct Owners {
    by_name: HashMap<String, Owner>,
    bytes: usize,
    /// Counts the uses, to tell which owner was used longest ago.
    uses: u64,
}

/// What the searches of one owner have met recently, and what they had met before.
#[derive(Debug, Default)]
struct Owner {
    last_use: u64,
    recent: Generation,
    earlier: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    entries: HashMap<Key, Kept>,
    bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// A file of a tree.
    File(String, VfsPathBuf),
    Passage(PassageKey),
}

#[derive(Debug, Clone)]
enum Kept {
    File(Version, Arc<[PassageKey]>),
    Vector(Vector),
}

impl VectorCache {
    /// The default of the most bytes: 64 MiB, the vectors of some forty thousand passages of a model of 384 numbers.
    pub const BYTES_MAX: usize = 64 << 20;

    /// Makes a cache of up to a number of bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, owners: Mutex::default() }
    }

    /// Returns the vectors of a version of a file. Returns `None` unless all are kept and empty or of `numbers` numbers.
    pub(super) fn vectors(&self, owner: &str, tree: &str, path: &VfsPath, version: Option<Version>, numbers: usize) -> Option<Vec<Vector>> {
        let mut owners = self.owners.lock();
        let passages = match owners.get(owner, &Key::File(tree.to_owned(), path.to_owned()), self.bytes_max)? {
            Kept::File(known, passages) if Some(known) == version => passages,
            _ => return None,
        };
        passages.iter().map(|passage| owners.vector(owner, passage, numbers, self.bytes_max)).collect()
    }

    /// Returns the vector of a passage, if it is empty or has `numbers` numbers.
    pub(super) fn vector(&self, owner: &str, passage: &PassageKey, numbers: usize) -> Option<Vector> {
        self.owners.lock().vector(owner, passage, numbers, self.bytes_max)
    }

    /// Keeps which passages a version of a file has.
    pub(super) fn keep_file(&self, owner: &str, tree: &str, path: &VfsPath, version: Version, passages: Arc<[PassageKey]>) {
        let key = Key::File(tree.to_owned(), path.to_owned());
        self.owners.lock().keep(owner, key, Kept::File(version, passages), self.bytes_max);
    }

    /// Keeps the vector of a passage.
    pub(super) fn keep_vector(&self, owner: &str, passage: PassageKey, vector: Vector) {
        self.owners.lock().keep(owner, Key::Passage(passage), Kept::Vector(vector), self.bytes_max);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let owners = self.owners.lock();
        let counted: usize = owners.by_name.values().flat_map(|owner| [&owner.recent, &owner.earlier]).map(Generation::counted).sum();
        assert_eq!(counted, owners.bytes);
        counted
    }
}

impl Default for VectorCache {
    fn default() -> Self {
        Self::new(Self::BYTES_MAX)
    }
}

impl Owners {
    fn vector(&mut self, owner: &str, passage: &PassageKey, numbers: usize, bytes_max: usize) -> Option<Vector> {
        match self.get(owner, &Key::Passage(*passage), bytes_max)? {
            Kept::Vector(vector) if vector.is_empty() || vector.len() == numbers => Some(vector),
            _ => None,
        }
    }

    fn get(&mut self, owner: &str, key: &Key, bytes_max: usize) -> Option<Kept> {
        self.uses += 1;
        let own = self.by_name.get_mut(owner)?;
        own.last_use = self.uses;
        if let Some(kept) = own.recent.entries.get(key) {
            return Some(kept.clone());
        }
        let kept = own.earlier.entries.get(key)?.clone();
        self.keep(owner, key.clone(), kept.clone(), bytes_max);
        Some(kept)
    }

    fn keep(&mut self, owner: &str, key: Key, kept: Kept, bytes_max: usize) {
        self.uses += 1;
        let own = match self.by_name.get_mut(owner) {
            Some(own) => own,
            None => self.by_name.entry(owner.to_owned()).or_default(),
        };
        own.last_use = self.uses;
        let before = own.recent.bytes + own.earlier.bytes;
        own.keep(key, kept, bytes_max / OWNERS_MIN);
        self.bytes = self.bytes - before + own.recent.bytes + own.earlier.bytes;
        while self.bytes > bytes_max {
            let others = self.by_name.iter().filter(|(name, _)| *name != owner);
            let Some(idle) = others.min_by_key(|(_, other)| other.last_use).map(|(name, _)| name.clone()) else { break };
            let dropped = self.by_name.remove(&idle).expect("its name was just listed");
            self.bytes -= dropped.recent.bytes + dropped.earlier.bytes;
        }
    }
}

impl Owner {
    fn keep(&mut self, key: Key, kept: Kept, bytes_max: usize) {
        let size_bytes = size_bytes(&key, &kept);
        self.earlier.remove(&key);
        self.recent.remove(&key);
        if size_bytes > bytes_max / 2 {
            return;
        }
        if self.recent.bytes + size_bytes > bytes_max / 2 {
            self.earlier = std::mem::take(&mut self.recent);
        }
        self.recent.bytes += size_bytes;
        self.recent.entries.insert(key, kept);
    }
}

impl Generation {
    fn remove(&mut self, key: &Key) {
        if let Some((key, kept)) = self.entries.remove_entry(key) {
            self.bytes -= size_bytes(&key, &kept);
        }
    }

    #[cfg(test)]
    fn counted(&self) -> usize {
        self.entries.iter().map(|(key, kept)| size_bytes(key, kept)).sum()
    }
}

/// Returns how much memory an entry takes, approximately.
fn size_bytes(key: &Key, kept: &Kept) -> usize {
    let of_key = match key {
        Key::File(tree, path) => tree.len() + path.as_str().len(),
        Key::Passage(passage) => size_of_val(passage),
    };
    let of_kept = match kept {
        Kept::File(_, passages) => size_of_val(&**passages),
        Kept::Vector(vector) => size_of_val(&**vector),
    };
    ENTRY_BYTES + of_key + of_kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(cache: &VectorCache, owner: &str, passages: std::ops::Range<u8>) -> usize {
        passages.filter(|passage| cache.vector(owner, &[*passage; 32], 4).is_some()).count()
    }

    fn keep(cache: &VectorCache, owner: &str, passages: std::ops::Range<u8>) {
        passages.for_each(|passage| cache.keep_vector(owner, [passage; 32], vec![1.0; 4].into()));
    }

    /// The size of one vector of four numbers.
    const ONE: usize = ENTRY_BYTES + 32 + 16;

    #[test]
    fn one_owner_uses_half_of_the_memory() {
        let cache = VectorCache::new(40 * ONE);
        keep(&cache, "small", 0..5);
        for _ in 0..3 {
            keep(&cache, "large", 0..200);
            assert!(cache.bytes() <= 25 * ONE, "{}", cache.bytes());
            assert_eq!((kept(&cache, "small", 0..5), kept(&cache, "large", 190..200)), (5, 10));
        }
    }

    #[test]
    fn owner_that_searched_longest_ago_loses_its_memory() {
        let cache = VectorCache::new(40 * ONE);
        for owner in ["a", "b", "c"] {
            keep(&cache, owner, 0..15);
            kept(&cache, "a", 0..1);
            assert!(cache.bytes() <= 40 * ONE);
        }
        assert_eq!(["a", "b", "c"].map(|owner| kept(&cache, owner, 0..1)), [1, 0, 1]);
    }

    #[test]
    fn vector_of_another_length_is_not_kept_for_a_query() {
        let cache = VectorCache::default();
        cache.keep_vector("a", [1; 32], vec![1.0; 4].into());
        cache.keep_vector("a", [2; 32], Vec::new().into());
        assert_eq!([3, 4, 5].map(|numbers| cache.vector("a", &[1; 32], numbers).is_some()), [false, true, false]);
        assert_eq!([3, 4, 5].map(|numbers| cache.vector("a", &[2; 32], numbers).is_some()), [true; 3], "a refusal");
    }
}
