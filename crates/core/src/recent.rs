//! A cache of the entries that were used last, within a budget.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Entries in two generations. Entries that are not used while the younger generation fills are dropped.
///
/// Each entry has a weight of at least 1, such as its bytes, or 1 to bound the number of entries. All entries together weigh at most the
/// budget. A lookup or an insertion takes constant amortized time.
///
/// ```
/// use treehold_core::recent::Recent;
///
/// let mut recent = Recent::new(2);
/// recent.insert("a", 1, 1);
/// assert_eq!(recent.get("a"), Some(1));
/// ```
#[derive(Debug)]
pub struct Recent<K, V> {
    young: HashMap<K, (V, usize)>,
    old: HashMap<K, (V, usize)>,
    /// The weight of the younger generation.
    young_weight: usize,
    /// The largest weight of a generation: half of the budget.
    generation_max: usize,
}

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    /// Makes an empty cache with a budget.
    pub fn new(weight_max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), young_weight: 0, generation_max: weight_max / 2 }
    }

    /// Adds an entry, or replaces it. An entry of more than half of the budget is not kept.
    pub fn insert(&mut self, key: K, value: V, weight: usize) {
        let weight = weight.max(1);
        // The old value must not be found again, even if the new one is not kept.
        self.old.remove(&key);
        if weight > self.generation_max {
            if let Some((_, before)) = self.young.remove(&key) {
                self.young_weight -= before;
            }
            return;
        }
        if self.young_weight + weight > self.generation_max {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.young_weight += weight;
        if let Some((_, before)) = self.young.insert(key, (value, weight)) {
            self.young_weight -= before;
        }
    }

    /// Returns an entry, which counts as a use of it.
    pub fn get<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if let Some((value, _)) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, (value, weight)) = self.old.remove_entry(key)?;
        self.insert(key, value.clone(), weight);
        Some(value)
    }

    /// Returns the budget.
    pub fn weight_max(&self) -> usize {
        2 * self.generation_max
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Self::new(self.weight_max());
    }

    /// Returns the entries with their weights, in no order.
    pub fn entries(&self) -> impl Iterator<Item = (&V, usize)> {
        self.young.values().chain(self.old.values()).map(|(value, weight)| (value, *weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Weights of 9 and 10 are too large to keep.
        #[test]
        fn cache_is_bounded_and_returns_the_last_value(steps in proptest::collection::vec((0..12_u8, 0..11_usize, any::<bool>()), 1..300)) {
            const BUDGET: usize = 16;
            let mut cache = Recent::new(BUDGET);
            let mut last = HashMap::new();
            for (number, (key, weight, is_get)) in steps.into_iter().enumerate() {
                if is_get {
                    if let Some(found) = cache.get(&key) {
                        prop_assert_eq!(Some(&found), last.get(&key));
                    }
                } else {
                    cache.insert(key, number, weight);
                    last.insert(key, number);
                    prop_assert_eq!(cache.get(&key).is_some(), weight <= BUDGET / 2);
                }
                prop_assert!(cache.entries().map(|(_, weight)| weight).sum::<usize>() <= BUDGET);
            }
        }
    }

    #[test]
    fn entry_in_use_stays_while_others_are_dropped() {
        let mut cache = Recent::new(100);
        cache.insert(0, 0, 1);
        for key in 1..10_000 {
            cache.insert(key, key, 1);
            assert_eq!(cache.get(&0), Some(0), "{key}");
        }
        assert!(cache.get(&5).is_none());
        assert!(cache.entries().count() <= 100);
    }
}
