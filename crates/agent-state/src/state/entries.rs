//! A map from texts that keeps the order in which its entries were added.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

/// A map from texts to values, in the order in which the entries were added, as in the JSON object that it is read from.
///
/// It is for few entries: finding one takes time by their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries<V>(Vec<(String, V)>);

impl<V> Entries<V> {
    /// Creates an empty map.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&V> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns the value of a key for changes.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        self.0.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Sets the value of a key, and returns the one before. A new key comes last.
    pub fn insert(&mut self, key: impl Into<String>, value: V) -> Option<V> {
        let key = key.into();
        match self.get_mut(&key) {
            Some(old) => Some(std::mem::replace(old, value)),
            None => {
                self.0.push((key, value));
                None
            }
        }
    }

    /// Removes a key, and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<V> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.remove(at).1)
    }

    /// Returns the entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &V)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<V> Default for Entries<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Into<String>, V> FromIterator<(K, V)> for Entries<V> {
    /// Collects entries. The last one of a key counts, at the place of the first.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let (mut list, mut places) = (Vec::<(String, V)>::new(), HashMap::new());
        for (key, value) in entries {
            let key = key.into();
            match places.get(&key) {
                Some(&at) => list[at] = (key, value),
                None => {
                    places.insert(key.clone(), list.len());
                    list.push((key, value));
                }
            }
        }
        Self(list)
    }
}

impl<V: Serialize> Serialize for Entries<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// `null` reads as an empty map.
impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Fields<V> {
            type Value = Entries<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or null")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Entries::new())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry::<String, V>()? {
                    entries.push(entry);
                }
                Ok(entries.into_iter().collect())
            }
        }
        deserializer.deserialize_any(Fields(PhantomData))
    }
}
