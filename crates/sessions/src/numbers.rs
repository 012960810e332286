//! Bounds of the numbers that hosts write into files and requests.

use jiff::Timestamp;
use treehold_core::error::{Error, ErrorKind, Result};

/// The greatest index of a turn, number of an archive, and count of processed events that is read from files. A session
/// continues from them, so there must be room above.
pub(crate) const NUMBER_MAX: u64 = 1_000_000_000;

/// The beginning of the year 0, in milliseconds since 1970.
const TIME_MIN: i64 = -62_167_219_200_000;

/// Checks a number that a session continues from.
pub(crate) fn check_number(what: &str, number: u64) -> Result<()> {
    if number <= NUMBER_MAX {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("`{what}` is {number} and may be at most {NUMBER_MAX}")))
}

/// Checks a time in milliseconds since 1970.
pub(crate) fn check_time(what: &str, millisecond: i64) -> Result<()> {
    if millisecond >= TIME_MIN && Timestamp::from_millisecond(millisecond).is_ok() {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("`{what}` is {millisecond}, which is not a time in milliseconds between the years 0 and 9999")))
}

/// Returns the number after another one.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) after the last number, which only damaged rows reach.
pub(crate) fn following(what: &str, number: u64) -> Result<u64> {
    number.checked_add(1).ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("no {what} can follow number {number}; export the session")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_within_the_years_0_to_9999() {
        for time in [0, 1_700_000_000_000, TIME_MIN, 253_402_200_000_000] {
            assert!(check_time("t", time).is_ok(), "{time}");
        }
        for time in [i64::MIN, i64::MAX, TIME_MIN - 1, 253_402_300_800_000] {
            assert!(check_time("t", time).is_err(), "{time}");
        }
        assert!(following("turn", NUMBER_MAX).is_ok());
        assert_eq!(following("turn", u64::MAX).expect_err("the last").kind(), ErrorKind::Corrupt);
    }
}
