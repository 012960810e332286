//! The key `history` of a store route: how much of the past of its files is kept.

use super::check::positive_time;
use super::fault::Broken;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use treehold_core::clock::parse_age;
use treehold_tree::backend::HistoryPolicy;

/// How much of the past of its files a store route keeps. In a configuration file it is `false`, or a table with `keep_last` and
/// `older_than`; what the table leaves out has its default.
///
/// ```
/// use treehold::config::{HistoryConfig, HistoryLimits};
///
/// let history: HistoryConfig = serde_json::from_str(r#"{"keep_last": 5}"#).unwrap();
/// let HistoryConfig::Kept(limits) = &history else { panic!("it is kept") };
/// assert_eq!((limits.keep_last, limits.older_than.as_str()), (5, "30d"));
/// assert_eq!(serde_json::from_str::<HistoryConfig>("false").unwrap(), HistoryConfig::Off);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryConfig {
    /// Nothing is kept.
    Off,
    /// The past is kept within limits.
    Kept(HistoryLimits),
}

/// The limits of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct HistoryLimits {
    /// How many earlier contents of each path are kept, at most 1,000. Default 20.
    pub keep_last: usize,
    /// How long a content is kept after it was replaced or removed. Default `30d`.
    pub older_than: String,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { keep_last: HistoryPolicy::new().keep_last, older_than: "30d".to_owned() }
    }
}

impl HistoryConfig {
    /// Returns the policy, if a history is kept.
    pub(super) fn policy(&self) -> Option<HistoryPolicy> {
        let Self::Kept(HistoryLimits { keep_last, older_than }) = self else { return None };
        let policy = HistoryPolicy::new().with_keep_last(*keep_last);
        // It was checked when the configuration was parsed.
        Some(parse_age(older_than).map_or(policy, |age| policy.with_older_than(age)))
    }

    pub(super) fn check(&self, path: &str) -> Result<(), Broken> {
        let Self::Kept(HistoryLimits { keep_last, older_than }) = self else { return Ok(()) };
        let broken = |key: &str, message: String| Err(Broken::new(&["routes", path, "history", key], message));
        if !(1..=HistoryPolicy::KEEP_LAST_MAX).contains(keep_last) {
            let message = format!("`keep_last` is {keep_last}; write 1 to {}, or `history = false`", HistoryPolicy::KEEP_LAST_MAX);
            return broken("keep_last", message);
        }
        let checked = positive_time(older_than, "how long to keep a content", "write it as `30d` or `12h`");
        checked.map(drop).or_else(|error| broken("older_than", error.message().to_owned()))
    }
}

impl Serialize for HistoryConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::Kept(limits) => limits.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for HistoryConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

struct Written;

impl<'de> Visitor<'de> for Written {
    type Value = HistoryConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`false`, or a table with `keep_last` and `older_than`")
    }

    fn visit_bool<E: serde::de::Error>(self, is_kept: bool) -> Result<HistoryConfig, E> {
        Ok(if is_kept { HistoryConfig::Kept(HistoryLimits::default()) } else { HistoryConfig::Off })
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<HistoryConfig, A::Error> {
        HistoryLimits::deserialize(MapAccessDeserializer::new(table)).map(HistoryConfig::Kept)
    }
}
