//! The key `index` of a store route: which indexes it keeps.

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use treehold_tree::backend::IndexKind;

/// The name for no index.
const NONE: &str = "none";

/// All legal names.
const NAMES: [&str; 3] = [NONE, "trigram", "words"];

/// The indexes that a store route keeps of its files. In a configuration file it is `"none"`, the name of a kind, or a list of names.
///
/// An existing index that is not listed is kept up to date.
///
/// ```
/// use treehold::backend::IndexKind;
/// use treehold::config::RouteIndex;
///
/// let both = RouteIndex::new([IndexKind::Words, IndexKind::Trigram]);
/// assert_eq!(both.kinds(), [IndexKind::Trigram, IndexKind::Words]);
/// assert_eq!(serde_json::to_string(&both).unwrap(), r#"["trigram","words"]"#);
/// assert_eq!(serde_json::from_str::<RouteIndex>(r#""words""#).unwrap().kinds(), [IndexKind::Words]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouteIndex {
    kinds: Vec<IndexKind>,
}

impl RouteIndex {
    /// Selects indexes of these kinds.
    pub fn new(kinds: impl IntoIterator<Item = IndexKind>) -> Self {
        let mut kinds: Vec<IndexKind> = kinds.into_iter().collect();
        kinds.sort_unstable();
        kinds.dedup();
        Self { kinds }
    }

    /// Returns the selected kinds, each once, in order.
    pub fn kinds(&self) -> &[IndexKind] {
        &self.kinds
    }
}

impl Serialize for RouteIndex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.kinds.as_slice() {
            [] => serializer.serialize_str(NONE),
            [kind] => kind.serialize(serializer),
            kinds => kinds.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for RouteIndex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

struct Written;

impl<'de> Visitor<'de> for Written {
    type Value = RouteIndex;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`none`, a kind of index, or a list of them")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RouteIndex, E> {
        let kinds = if text == NONE { Vec::new() } else { vec![kind(text)?] };
        Ok(RouteIndex::new(kinds))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RouteIndex, A::Error> {
        let mut kinds = Vec::new();
        while let Some(text) = list.next_element::<String>()? {
            if text == NONE {
                return Err(serde::de::Error::custom("`none` cannot be combined: write `index = \"none\"`, or leave it out of the list"));
            }
            kinds.push(kind(&text)?);
        }
        Ok(RouteIndex::new(kinds))
    }
}

fn kind<E: serde::de::Error>(text: &str) -> Result<IndexKind, E> {
    text.parse().map_err(|_| E::unknown_variant(text, &NAMES))
}
