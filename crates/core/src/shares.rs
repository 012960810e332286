//! Limits how many slots each owner can hold at a time, so that no user of a server exhausts what others need.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

/// A tenant and user. Their slots are counted together, whatever tokens they use.
pub type User = (Option<String>, Option<String>);

/// Counts the slots that each owner holds.
#[derive(Debug)]
pub struct Shares<K: Eq + Hash> {
    held: Mutex<HashMap<K, usize>>,
}

impl<K: Eq + Hash> Default for Shares<K> {
    fn default() -> Self {
        Self { held: Mutex::default() }
    }
}

impl<K: Eq + Hash + Clone> Shares<K> {
    /// Takes a slot for an owner until the [`Share`] is dropped. Returns `None` if the owner already holds `max` slots.
    pub fn take(self: &Arc<Self>, owner: K, max: usize) -> Option<Share<K>> {
        let mut held = self.held.lock();
        // A rejected owner must not leave an entry behind.
        if held.get(&owner).copied().unwrap_or_default() >= max {
            return None;
        }
        *held.entry(owner.clone()).or_default() += 1;
        drop(held);
        Some(Share { shares: self.clone(), owner })
    }
}

/// One slot, held until dropped.
pub struct Share<K: Eq + Hash> {
    shares: Arc<Shares<K>>,
    owner: K,
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut held = self.shares.held.lock();
        if let Some(count) = held.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.owner);
            }
        }
    }
}

impl<K: Eq + Hash + Debug> Debug for Share<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Share").field("owner", &self.owner).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_at_its_limit_does_not_affect_others() {
        let shares = Arc::new(Shares::default());
        let held: Vec<_> = (0..3).map(|_| shares.take("ada", 3).expect("a slot")).collect();
        assert!(shares.take("ada", 3).is_none());
        assert!(shares.take("bob", 0).is_none());
        let other = shares.take("bob", 3).expect("another owner");
        drop(held);
        assert!(shares.take("ada", 1).is_some());
        drop(other);
        assert!(shares.held.lock().is_empty());
    }
}
