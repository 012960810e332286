//! Keys of the rows in memory.

use arrayvec::ArrayString;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

/// A key, compared as its text. Short keys, which are the majority, are stored inline so that iterating rows reads
/// memory in order: fetching a key from the heap takes more than half as long as searching a file of 4 KiB.
#[derive(Clone, Debug)]
pub(super) enum Key {
    Short(ArrayString<KEY_BYTES_SHORT>),
    Long(Arc<str>),
}

/// The longest key stored inline. It makes a [`Key`] 48 bytes, no larger than a heap key with its position.
const KEY_BYTES_SHORT: usize = 40;

impl From<String> for Key {
    fn from(key: String) -> Self {
        match ArrayString::from(&key) {
            Ok(short) => Self::Short(short),
            Err(_) => Self::Long(key.into()),
        }
    }
}

impl Deref for Key {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Short(key) => key,
            Self::Long(key) => key,
        }
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        self
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_keys_compare_as_their_text() {
        let text = |length: usize, last: char| format!("{}{last}", "k".repeat(length - last.len_utf8()));
        let lengths = [2, KEY_BYTES_SHORT - 1, KEY_BYTES_SHORT, KEY_BYTES_SHORT + 1, 1_000];
        let mut texts: Vec<String> = lengths.iter().flat_map(|length| [text(*length, 'a'), text(*length, 'é')]).collect();
        texts.push(String::new());
        let mut keys: Vec<Key> = texts.iter().cloned().map(Key::from).collect();
        assert!(keys.iter().all(|key| matches!(key, Key::Short(_)) == (key.len() <= KEY_BYTES_SHORT)));
        texts.sort();
        keys.sort();
        assert!(keys.iter().map(|key| &**key).eq(texts.iter().map(String::as_str)));
        assert_eq!(size_of::<Key>(), 48);
    }
}
