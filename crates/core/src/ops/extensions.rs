//! Typed values that accompany a batch or a checkpoint, for the tiers that understand them.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

/// A set of values with at most one of each type. Layers pass it on unchanged. A tier that does not know a type ignores the value.
///
/// ```
/// use treehold_core::ops::{ApplyOptions, Extensions};
///
/// #[derive(Debug, PartialEq)]
/// struct Reason(&'static str);
///
/// let options = ApplyOptions::new().with_extension(Reason("import"));
/// assert_eq!(options.extensions.get::<Reason>(), Some(&Reason("import")));
/// assert_eq!(options.extensions.get::<String>(), None);
/// ```
#[derive(Clone, Default)]
pub struct Extensions(Vec<(TypeId, Arc<dyn Any + Send + Sync>)>);

impl Extensions {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value. It replaces the value of the same type.
    pub fn insert<T: Any + Send + Sync>(&mut self, value: T) {
        self.remove::<T>();
        self.0.push((TypeId::of::<T>(), Arc::new(value)));
    }

    /// Adds the values of another set. They replace the values of the same types.
    pub fn extend(&mut self, other: &Self) {
        self.0.retain(|(id, _)| other.0.iter().all(|(added, _)| added != id));
        self.0.extend(other.0.iter().cloned());
    }

    /// Returns the value of a type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        let (_, value) = self.0.iter().find(|(id, _)| *id == TypeId::of::<T>())?;
        value.downcast_ref()
    }

    /// Removes the value of a type.
    pub fn remove<T: Any>(&mut self) {
        self.0.retain(|(id, _)| *id != TypeId::of::<T>());
    }

    /// Returns whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Two sets are equal if they share their values.
impl PartialEq for Extensions {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|((_, one), (_, other))| Arc::ptr_eq(one, other))
    }
}

impl Eq for Extensions {}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Extensions").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_holds_the_newest_value_of_each_type() {
        let mut extensions = Extensions::new();
        assert!(extensions.is_empty());
        extensions.insert(1_u8);
        extensions.insert("text");
        extensions.insert(2_u8);
        assert_eq!((extensions.get::<u8>(), extensions.get::<&str>(), extensions.get::<u16>()), (Some(&2), Some(&"text"), None));
        let shared = extensions.clone();
        assert_eq!(shared, extensions);
        let mut extended = Extensions::new();
        extended.insert(1_u8);
        extended.insert(1_u16);
        extended.extend(&extensions);
        assert_eq!((extended.get::<u8>(), extended.get::<&str>(), extended.get::<u16>()), (Some(&2), Some(&"text"), Some(&1)));
        extensions.remove::<u8>();
        assert_eq!((extensions.get::<u8>(), shared.get::<u8>()), (None, Some(&2)));
        assert_ne!(shared, extensions);
    }
}
