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

/// Parses an age such as `90m`, `12h`, `30d` or `2w`. A day has 24 hours.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for any other format.
pub fn parse_age(text: &str) -> Result<Duration> {
    let seconds = |count: &str, unit: u64| count.trim().parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
    let days = text.strip_suffix('d').and_then(|days| seconds(days, 86_400));
    let read = match days.or_else(|| text.strip_suffix('w').and_then(|weeks| seconds(weeks, 604_800))) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => text.parse::<SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok()),
    };
    read.ok_or_else(|| Error::invalid_argument("write it as `90m`, `12h`, `30d` or `2w`"))
}

/// Parses a time: an [RFC 3339](https://www.rfc-editor.org/rfc/rfc3339) timestamp, a date or time in UTC, or an age before `now`.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for any other format, and for a time out of range.
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
    if let Ok(ago) = parse_age(text) {
        let early = |error| Error::invalid_argument("it is before the earliest possible time; name a later time").with_source(error);
        return now.checked_sub(ago).map_err(early);
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
        for text in ["", "d", "-1h", "-1d", "soon", "2026-11-21", "99999999999999999999d", "9999999999999999d"] {
            assert!(parse_age(text).is_err(), "{text}");
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
}
