//! Where a reader stands in the feed.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;
use treehold_store::Partition;

/// Where a reader stands in the feed: a version for each partition that holds logs of its view.
///
/// Its text is short, safe in URLs, and names no partition. A reader whose view has grown since reads the added partitions from their start.
/// A plain version, such as `0` or `1f`, stands for that version in every partition. That of an event is exact where the view has one
/// partition, or the store one counter for all. Where it lies beyond a partition of a view with several, it is refused.
///
/// ```
/// use treehold_agent::feed::FeedPosition;
///
/// let start: FeedPosition = "0".parse()?;
/// assert_eq!(start, FeedPosition::start());
/// # Ok::<(), treehold_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPosition {
    /// The version in partitions that are not listed.
    elsewhere: Version,
    listed: BTreeMap<Label, Version>,
}

/// What identifies a partition in a position: the start of its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Label(u64);

/// The length of a label in hexadecimal digits: 48 bits keep the few partitions of a view apart.
const LABEL_DIGITS: usize = 12;

impl Label {
    pub(super) fn of(partition: &Partition) -> Self {
        let hash = blake3::hash(partition.encoded().as_bytes());
        let start: [u8; 8] = *hash.as_bytes().first_chunk().expect("a hash has 32 bytes");
        Self(u64::from_be_bytes(start) >> 16)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0LABEL_DIGITS$x}", self.0)
    }
}

impl FeedPosition {
    /// Returns the position before all events.
    pub fn start() -> Self {
        Version::new(0).into()
    }

    pub(super) fn of(&self, label: Label) -> Version {
        self.listed.get(&label).copied().unwrap_or(self.elsewhere)
    }

    pub(super) fn set(&mut self, label: Label, version: Version) {
        self.listed.insert(label, version);
    }

    /// Returns the version before which a reader continues backwards; `None` for a partition that the position does not know, where it begins
    /// with the newest event.
    pub(super) fn before(&self, label: Label) -> Option<Version> {
        self.listed.get(&label).copied().or_else(|| self.listed.is_empty().then_some(self.elsewhere))
    }

    /// Returns whether this is a plain version that stands for all partitions.
    pub(super) fn is_plain(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns whether this position lies beyond another in a partition that the other lists. Beyond the newest position of a view, it is from
    /// another store.
    #[must_use]
    pub fn is_beyond(&self, other: &Self) -> bool {
        other.listed.iter().any(|(label, version)| self.of(*label) > *version)
    }
}

impl From<Version> for FeedPosition {
    fn from(version: Version) -> Self {
        Self { elsewhere: version, listed: BTreeMap::new() }
    }
}

impl fmt::Display for FeedPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.listed.is_empty() {
            return self.elsewhere.fmt(f);
        }
        for (index, (label, version)) in self.listed.iter().enumerate() {
            let separator = if index > 0 { "~" } else { "" };
            write!(f, "{separator}{label}.{version}")?;
        }
        Ok(())
    }
}

impl FromStr for FeedPosition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid_argument("this is not a position of the feed; take that of a page or of an event, or leave it out");
        if !text.contains('.') {
            return text.parse::<Version>().map(Self::from).map_err(|_| bad());
        }
        let mut listed = BTreeMap::new();
        for part in text.split('~') {
            let (label, version) = part.split_once('.').ok_or_else(bad)?;
            let is_label = label.len() == LABEL_DIGITS && label.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            let label = u64::from_str_radix(label, 16).ok().filter(|_| is_label).ok_or_else(bad)?;
            if listed.insert(Label(label), version.parse().map_err(|_| bad())?).is_some() {
                return Err(bad());
            }
        }
        Ok(Self { elsewhere: Version::new(0), listed })
    }
}

impl Serialize for FeedPosition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FeedPosition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(|error: Error| serde::de::Error::custom(error.message()))
    }
}

impl JsonSchema for FeedPosition {
    fn schema_name() -> Cow<'static, str> {
        "FeedPosition".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "Where a reader stands in the feed."})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_round_trips_through_its_text_and_names_no_partition() {
        let [ada, shared] = [&["acme", "ada"][..], &["acme"]].map(|owner| Label::of(&Partition::new(owner).expect("a legal partition")));
        let mut position = FeedPosition::start();
        assert_eq!(position.to_string(), "0");
        position.set(ada, Version::new(0x1f));
        position.set(shared, Version::new(3));
        let text = position.to_string();
        assert_eq!(text.parse::<FeedPosition>().expect("its own text"), position);
        assert!(!text.contains("acme") && text.len() == 2 * LABEL_DIGITS + 6, "{text}");
        assert!(text.chars().all(|character| character.is_ascii_alphanumeric() || ".~".contains(character)));
        assert_eq!((position.of(ada), position.of(shared)), (Version::new(0x1f), Version::new(3)));
        let plain: FeedPosition = "1f".parse().expect("a version");
        assert_eq!((plain.of(ada), plain.to_string()), (Version::new(0x1f), "1f".to_owned()));
        assert!(plain.is_beyond(&position) && !position.is_beyond(&plain) && !position.is_beyond(&position));
        let long = format!("{text}~{text}");
        for none in ["", ".", "x", "1f.2", "00112233445.1", "0011223344556.1", "00112233445G.1", "+01122334455.1", "001122334455.", &long] {
            assert!(none.parse::<FeedPosition>().is_err(), "{none}");
        }
    }
}
