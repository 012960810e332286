//! Values that accompany a change or checkpoint, for the tiers that understand them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Typed values that layers pass down. A tier that does not know a value passes it on or ignores it.
#[derive(Clone, Default)]
pub struct Along(Vec<Arc<dyn Any + Send + Sync>>);

impl Along {
    /// Adds a value.
    pub fn push<T: Any + Send + Sync>(&mut self, thing: T) {
        self.0.push(Arc::new(thing));
    }

    /// Returns the values of one type.
    pub fn iter<T: Any>(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(|thing| thing.downcast_ref())
    }
}

impl PartialEq for Along {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

impl Eq for Along {}

impl fmt::Debug for Along {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Along").field(&self.0.len()).finish()
    }
}
