//! A table of values that are shared while someone holds them: open threads, counted trees.
//!
//! The table keeps only weak references. Its size is at most twice the number of values held at once, or 64.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

/// Shared values by key. Entries that nobody holds are removed whenever the table has doubled, so the amortized cost of a lookup
/// is constant.
#[derive(Debug)]
pub struct Shared<K, T: ?Sized> {
    held: HashMap<K, Weak<T>>,
    sweep_at: usize,
}

impl<K: Eq + Hash, T: ?Sized> Shared<K, T> {
    /// Returns the value held at a key, or creates it.
    pub fn get_or_insert(&mut self, key: K, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        if let Some(found) = self.held.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        if self.held.len() >= self.sweep_at {
            self.held.retain(|_, held| held.strong_count() > 0);
            self.sweep_at = (self.held.len() * 2).max(64);
        }
        let made = make();
        self.held.insert(key, Arc::downgrade(&made));
        made
    }

    /// Returns all values held now.
    pub fn held(&self) -> Vec<Arc<T>> {
        self.held.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the number of values held now.
    pub fn count(&self) -> usize {
        self.held.values().filter(|held| held.strong_count() > 0).count()
    }
}

impl<K, T: ?Sized> Default for Shared<K, T> {
    fn default() -> Self {
        Self { held: HashMap::new(), sweep_at: 64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_entries_are_removed() {
        let mut shared = Shared::default();
        let held: Vec<Arc<u32>> = (0..100).map(|key| shared.get_or_insert(key, || Arc::new(key))).collect();
        for key in 100..10_000 {
            drop(shared.get_or_insert(key, || Arc::new(key)));
        }
        assert_eq!(shared.count(), 100);
        assert!(shared.held.len() <= 200, "{}", shared.held.len());
        assert!(Arc::ptr_eq(&held[7], &shared.get_or_insert(7, || Arc::new(0))));
        drop(held);
        for key in 10_000..20_000 {
            drop(shared.get_or_insert(key, || Arc::new(key)));
        }
        assert!(shared.held.len() <= 64, "{}", shared.held.len());
    }
}
