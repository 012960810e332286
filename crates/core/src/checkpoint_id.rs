//! The ids of checkpoints: UUIDs of version 7 (RFC 9562), which sort by time.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// The largest random step from an id to its successor.
const STEP: u128 = (1 << 40) - 1;

/// The number of letters of an id, one for every four bits.
const LETTERS: usize = 32;

/// The id of a checkpoint. Ids within one thread increase even if the clock goes back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckpointId(Uuid);

impl CheckpointId {
    /// The least value: before every id.
    pub const MIN: Self = Self(Uuid::nil());

    /// The greatest value: after every id.
    pub const MAX: Self = Self(Uuid::max());

    /// Creates an id for a time, greater than `after`.
    pub fn new(now: Timestamp, after: Option<Self>) -> Self {
        let milliseconds = u64::try_from(now.as_millisecond()).unwrap_or(0);
        let nanoseconds = u32::try_from(now.subsec_nanosecond()).unwrap_or(0);
        let id = Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, milliseconds / 1_000, nanoseconds));
        match after {
            // The clock went back, or both ids fall into one millisecond. The step is random because several threads may continue from the
            // same id.
            Some(Self(after)) if id <= after => Self(Uuid::from_u128(after.as_u128() + 1 + (id.as_u128() & STEP))),
            _ => Self(id),
        }
    }

    /// Returns the bytes of the id.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// Creates an id from its bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// Returns text that sorts in reverse, newest first.
    pub fn descending(self) -> String {
        format!("{:032x}", !self.0.as_u128())
    }

    /// Returns the id as 32 letters from `k` to `z`, its random end first, so that few letters tell it from others. Parsing accepts them.
    ///
    /// ```
    /// use treehold_core::checkpoint_id::CheckpointId;
    ///
    /// let id: CheckpointId = "0195a1b2-0000-7000-8000-0123456789ab".parse()?;
    /// assert!(id.letters().starts_with("opqrst"));
    /// assert_eq!(id.letters().parse(), Ok(id));
    /// # Ok::<(), treehold_core::checkpoint_id::InvalidCheckpointId>(())
    /// ```
    pub fn letters(self) -> String {
        let digit = |place: usize| (self.0.as_u128() >> (4 * place)) as u8 & 0xf;
        (0..LETTERS).map(|place| char::from(b'z' - digit(place))).collect()
    }

    /// Parses [`letters`](Self::letters), in either case.
    fn from_letters(text: &str) -> Option<Self> {
        if text.len() != LETTERS {
            return None;
        }
        text.bytes()
            .rev()
            .try_fold(0_u128, |id, letter| Some(id << 4 | u128::from(letter_digit(letter)?)))
            .map(|id| Self(Uuid::from_u128(id)))
    }

    /// Returns whether text can be the start of [`letters`](Self::letters), in either case.
    pub fn is_letters(text: &str) -> bool {
        !text.is_empty() && text.len() <= LETTERS && text.bytes().all(|letter| letter_digit(letter).is_some())
    }

    /// Returns the time of the id, in whole milliseconds.
    pub fn time(self) -> Timestamp {
        let milliseconds = i64::try_from(self.0.as_u128() >> 80).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(milliseconds).unwrap_or(Timestamp::MAX)
    }

    /// Returns an id that is at least as great as any other of the same millisecond.
    pub fn behind(time: Timestamp) -> Self {
        Self(Uuid::from_u128(Self::at_least(time).0.as_u128() | ((1 << 80) - 1)))
    }

    /// Returns the smallest id of a time.
    pub fn at_least(time: Timestamp) -> Self {
        let milliseconds = u128::try_from(time.as_millisecond()).unwrap_or(0);
        Self(Uuid::from_u128(milliseconds << 80))
    }
}

/// Returns the value of a letter of [`CheckpointId::letters`].
fn letter_digit(letter: u8) -> Option<u8> {
    let letter = letter.to_ascii_lowercase();
    matches!(letter, b'k'..=b'z').then(|| b'z' - letter)
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
    }
}

impl fmt::Debug for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckpointId({self})")
    }
}

/// The error for text that is not a checkpoint id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidCheckpointId(String);

impl fmt::Display for InvalidCheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not the id of a checkpoint; use one that `treehold checkpoint ls` shows", self.0)
    }
}

impl std::error::Error for InvalidCheckpointId {}

impl FromStr for CheckpointId {
    type Err = InvalidCheckpointId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_letters(text).or_else(|| Uuid::parse_str(text).ok().map(Self)).ok_or_else(|| InvalidCheckpointId(text.to_owned()))
    }
}

impl Serialize for CheckpointId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl schemars::JsonSchema for CheckpointId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CheckpointId".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "format": "uuid", "description": "the id of a checkpoint, which sorts by time"})
    }
}

impl<'de> Deserialize<'de> for CheckpointId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a fork and its source gave their next checkpoints the same id.
    #[test]
    fn successors_of_one_id_at_the_same_time_differ() {
        let now = Timestamp::from_second(1_000).expect("within the calendar");
        let first = CheckpointId::new(now, Some(CheckpointId::behind(now)));
        let next: std::collections::BTreeSet<CheckpointId> = (0..100).map(|_| CheckpointId::new(now, Some(first))).collect();
        assert_eq!(next.len(), 100);
    }

    #[test]
    fn letters_begin_with_the_random_end_and_parse_to_the_same_id() {
        for text in ["0195a1b2-0000-7000-8000-0123456789ab", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]
        {
            let id: CheckpointId = text.parse().expect("an id");
            let digits: String =
                text.chars().rev().filter_map(|digit| digit.to_digit(16)).map(|digit| char::from(b'z' - digit as u8)).collect();
            assert_eq!(id.letters(), digits);
            assert_eq!(digits.to_uppercase().parse(), Ok(id));
        }
        for wrong in ["", "k", &"k".repeat(31), &"k".repeat(33), &"j".repeat(32), &"é".repeat(16)] {
            assert!(wrong.parse::<CheckpointId>().is_err(), "{wrong}");
        }
        for (text, is_start) in [("k", true), ("QZ", true), ("", false), ("latest", false), ("018f", false), ("k-", false)] {
            assert_eq!(CheckpointId::is_letters(text), is_start, "{text}");
        }
    }

    #[test]
    fn ids_increase_even_if_the_clock_goes_back() {
        let time = |seconds| Timestamp::from_second(seconds).expect("within the calendar");
        let mut ids = vec![CheckpointId::new(time(1_000), None)];
        for seconds in [1_000, 900, 1_001, 1_001, 0, -5, 2_000] {
            ids.push(CheckpointId::new(time(seconds), ids.last().copied()));
        }
        assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
        let texts: Vec<String> = ids.iter().map(|id| id.descending()).collect();
        assert!(texts.is_sorted_by(|one, other| one > other));
        assert!(CheckpointId::at_least(time(1_000)) <= ids[0] && ids[0] < CheckpointId::at_least(time(1_001)));
        assert_eq!(ids[0].to_string().parse(), Ok(ids[0]));
        assert!("latest".parse::<CheckpointId>().is_err());
    }
}
