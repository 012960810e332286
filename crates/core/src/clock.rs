//! Time: a clock that constructors accept, so that tests can stop it, and parsing of times as people write them.

#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A source of the current time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// Returns the system clock.
    pub fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// Creates a clock that calls a function.
    pub fn from_fn(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// The longest age or duration that can be written: 1,000,000 days, which is over 2,700 years.
///
/// Added to the present or subtracted from it, it gives a time that exists.
pub const AGE_MAX: Duration = Duration::from_secs(1_000_000 * 86_400);

/// The longest text that is read as an age, in bytes. It has room for each unit with a number of many digits.
const AGE_TEXT_BYTES_MAX: usize = 200;

/// Why a text is not an age or duration. Its text continues a sentence: ``too long: the longest is `1000000d` ``.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidAge {
    /// The text has another form.
    Malformed,
    /// The age is negative.
    Negative,
    /// The age is longer than [`AGE_MAX`].
    TooLong,
}

impl InvalidAge {
    /// Returns whether the text has the form of an age, whose value is out of bounds.
    pub fn is_out_of_bounds(self) -> bool {
        self != Self::Malformed
    }
}

impl fmt::Display for InvalidAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("write it as `90m`, `12h`, `30d` or `2w`"),
            Self::Negative => f.write_str("too short: the shortest is `0s`"),
            Self::TooLong => write!(f, "too long: the longest is `{}d`", AGE_MAX.as_secs() / 86_400),
        }
    }
}

impl std::error::Error for InvalidAge {}

/// Parses an age or duration such as `90m`, `12h`, `30d` or `2w`. A day has 24 hours. A text has at most 200 bytes.
///
/// # Errors
/// [`InvalidAge`] for any other format, and for an age out of bounds.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use treehold_core::clock::{InvalidAge, parse_age};
///
/// assert_eq!(parse_age("2d"), Ok(Duration::from_secs(172_800)));
/// assert_eq!(parse_age("soon"), Err(InvalidAge::Malformed));
/// assert_eq!(parse_age("30000000d"), Err(InvalidAge::TooLong));
/// ```
pub fn parse_age(text: &str) -> Result<Duration, InvalidAge> {
    if text.len() > AGE_TEXT_BYTES_MAX {
        return Err(InvalidAge::Malformed);
    }
    let age = match whole_days(text) {
        Some(age) => age,
        None => match text.parse::<SignedDuration>() {
            Ok(duration) => Duration::try_from(duration).map_err(|_| fault_of_negative(text))?,
            Err(_) => return Err(fault_of(text)),
        },
    };
    if age <= AGE_MAX { Ok(age) } else { Err(InvalidAge::TooLong) }
}

/// Parses a number of days or weeks. One that is too large counts as the longest duration.
fn whole_days(text: &str) -> Option<Duration> {
    let (count, unit) = match text.strip_suffix('d') {
        Some(days) => (days, 86_400),
        None => (text.strip_suffix('w')?, 604_800),
    };
    let count = count.trim();
    let digits = count.strip_prefix('+').unwrap_or(count);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some(Duration::from_secs(digits.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(unit)))
}

/// Returns what is wrong with a text that no age was read from.
fn fault_of(text: &str) -> InvalidAge {
    if text.strip_prefix('-').is_some_and(|age| whole_days(age).is_some()) {
        return InvalidAge::Negative;
    }
    // With small numbers it could be read, so its numbers are too large.
    match with_small_numbers(text).parse::<SignedDuration>() {
        Ok(duration) if duration.is_negative() => fault_of_negative(text),
        Ok(_) => InvalidAge::TooLong,
        Err(_) => InvalidAge::Malformed,
    }
}

/// Returns what is wrong with a text that reads as a negative duration. `1 hour ago` does so too, and means an age in another form.
fn fault_of_negative(text: &str) -> InvalidAge {
    if text.starts_with('-') { InvalidAge::Negative } else { InvalidAge::Malformed }
}

/// Shortens each number to its first digit. The digits after a decimal point stay.
fn with_small_numbers(text: &str) -> String {
    let mut small = String::with_capacity(text.len());
    let mut is_fraction = false;
    for character in text.chars() {
        let is_digit = character.is_ascii_digit();
        let continues_number = is_digit && small.ends_with(|last: char| last.is_ascii_digit());
        if is_fraction || !continues_number {
            small.push(character);
        }
        is_fraction = matches!(character, '.' | ',') || (is_fraction && is_digit);
    }
    small
}

/// Parses a time: an [RFC 3339](https://www.rfc-editor.org/rfc/rfc3339) timestamp, a date or time in UTC, or an age before `now`.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for any other format, and for an age or time out of range.
///
/// # Examples
/// ```
/// use treehold_core::clock::parse_time;
///
/// let now = parse_time("2026-11-21T12:00:00Z", jiff::Timestamp::UNIX_EPOCH)?;
/// assert_eq!(parse_time("2026-11-14", now)?, parse_time("2026-11-14T00:00:00Z", now)?);
/// assert_eq!(parse_time("7d", now)?, parse_time("2026-11-14T12:00", now)?);
/// assert!(parse_time("yesterday", now).is_err());
/// # Ok::<(), treehold_core::Error>(())
/// ```
pub fn parse_time(text: &str, now: Timestamp) -> Result<Timestamp> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    match parse_age(text) {
        Ok(ago) => {
            let early = |error| Error::invalid_argument("it is before the earliest possible time; name a later time").with_source(error);
            return now.checked_sub(ago).map_err(early);
        }
        Err(invalid) if invalid.is_out_of_bounds() => return Err(Error::invalid_argument(format!("the age is {invalid}"))),
        Err(_) => {}
    }
    let civil = text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(Into::into));
    let time = civil.and_then(|civil| civil.to_zoned(TimeZone::UTC)).map(|zoned| zoned.timestamp());
    let unread = "write a time as `2026-11-21T09:00:00Z`, a date as `2026-11-21`, or how long ago as `2h` or `7d`";
    time.map_err(|_| Error::invalid_argument(unread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_times_parse() {
        for (text, hours) in [("90m", 1.5), ("12h", 12.0), ("30d", 720.0), ("2w", 336.0), ("1h 30m", 1.5), ("0d", 0.0)] {
            assert_eq!(parse_age(text).expect("an age").as_secs_f64(), hours * 3_600.0, "{text}");
        }
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        for (text, expected) in [
            ("2026-11-20T01:00:00+01:00", "2026-11-20T00:00:00Z"),
            ("2026-11-20", "2026-11-20T00:00:00Z"),
            ("2026-11-20T09:30", "2026-11-20T09:30:00Z"),
            ("1d", "2026-11-20T12:00:00Z"),
            ("30m", "2026-11-21T11:30:00Z"),
        ] {
            assert_eq!(parse_time(text, now).expect("a time"), expected.parse().expect("a time"), "{text}");
        }
        for text in ["", "soon", "2026-13-01", "9999999w"] {
            assert!(parse_time(text, now).is_err(), "{text}");
        }
    }

    /// Regression: an age of the right form was called malformed if it was too long.
    #[test]
    fn age_out_of_bounds_is_told_from_a_malformed_one() {
        const DIGITS: &str = "99999999999999999999999";
        let units = ["d", " d", "w", "h", "m", "s", " hours", "ms"];
        let long: Vec<String> = units.iter().map(|unit| format!("{DIGITS}{unit}")).collect();
        let long = long.iter().map(String::as_str).chain(["1000001d", "142858w", "24000001h", "86400000001s", "PT999999999999999999999H"]);
        for text in long {
            assert_eq!(parse_age(text), Err(InvalidAge::TooLong), "{text}");
            assert_eq!(parse_age(&format!("-{text}")), Err(InvalidAge::Negative), "-{text}");
            let told = parse_time(text, Timestamp::UNIX_EPOCH).expect_err("it is too long ago");
            assert_eq!(told.message(), "the age is too long: the longest is `1000000d`", "{text}");
        }
        for text in ["1000000d", "142857w", "24000000h", "86400000000s"] {
            let age = parse_age(text).expect("an age");
            let now = Timestamp::now();
            assert!(age <= AGE_MAX && now.checked_sub(age).is_ok() && now.checked_add(age).is_ok(), "{text}");
        }
        for text in ["-1h", "-1d", "-1m 30s"] {
            assert_eq!(parse_age(text), Err(InvalidAge::Negative), "{text}");
        }
        let malformed =
            ["", "d", "-", "-d", "--1d", "1", "1x", "soon", "2026-11-21", "1.5d", "1.5w", "1h 1h", DIGITS, "-soon", "1h ago", "1 hour ago"];
        for text in malformed {
            assert_eq!(parse_age(text), Err(InvalidAge::Malformed), "{text}");
        }
        // Callers of a server send such texts, which must neither end the process nor take long.
        for part in ["-", "9", "1h ", "-1d", "P", "."] {
            let long = part.repeat(1 << 20);
            assert_eq!(parse_age(&long), Err(InvalidAge::Malformed), "{part}");
            assert!(parse_time(&long, Timestamp::UNIX_EPOCH).is_err(), "{part}");
        }
    }
}
