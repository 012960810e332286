//! The times of messages.
//!
//! AgentScope writes a message's time without an offset, in the time zone of the host that made it. So a text alone names no moment:
//! whoever reads it says in which zone it was written. This crate writes all times in UTC and reads them as UTC unless told otherwise.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Writes a time as AgentScope does, `yyyy-MM-dd HH:mm:ss.SSS`. Fractions of a millisecond are cut off.
///
/// ```
/// use jiff::{Timestamp, tz::{TimeZone, offset}};
/// use treehold_agent_state::{parse_message_time, render_message_time};
///
/// let time = Timestamp::from_millisecond(1_779_703_200_250)?;
/// assert_eq!(render_message_time(time, &TimeZone::UTC), "2026-05-25 10:00:00.250");
/// let shanghai = TimeZone::fixed(offset(8));
/// assert_eq!(render_message_time(time, &shanghai), "2026-05-25 18:00:00.250");
/// assert_eq!(parse_message_time("2026-05-25 18:00:00.250", &shanghai), Some(time));
/// # Ok::<(), jiff::Error>(())
/// ```
pub fn render_message_time(time: Timestamp, zone: &TimeZone) -> String {
    let time = zone.to_datetime(time);
    let date = format!("{:04}-{:02}-{:02}", time.year(), time.month(), time.day());
    format!("{date} {:02}:{:02}:{:02}.{:03}", time.hour(), time.minute(), time.second(), time.millisecond())
}

/// Reads a time that was written in a time zone. `None` for a text of another form, which AgentScope allows.
///
/// A time that the zone's clocks showed twice is the first of the two.
pub fn parse_message_time(text: &str, zone: &TimeZone) -> Option<Timestamp> {
    let (date, clock) = text.split_once([' ', 'T'])?;
    if clock.contains(['+', '-', 'Z', 'z', '[']) || date.len() < 10 {
        return None;
    }
    let time: DateTime = text.parse().ok()?;
    zone.to_ambiguous_timestamp(time).compatible().ok()
}
