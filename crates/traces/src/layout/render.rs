//! Writes values in the form of the original.

use super::python;
use crate::model::{GoalTree, Message, Trace, TraceEvent};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use treehold_core::error::Result;
use treehold_core::json::Json;

/// Returns a trace as JSON.
pub(crate) fn trace(trace: &Trace) -> Result<Json> {
    let mut trace = trace.clone();
    for time in [&mut trace.created_at, &mut trace.completed_at] {
        *time = time.as_deref().map(isoformat);
    }
    Json::of(&trace)
}

/// Returns a message as JSON.
pub(crate) fn message(message: &Message) -> Result<Json> {
    let mut message = message.clone();
    message.created_at = message.created_at.as_deref().map(isoformat);
    Json::of(&message)
}

/// Returns the goals as JSON.
pub(crate) fn goals(goals: &GoalTree) -> Result<Json> {
    Json::of(goals)
}

/// Returns the line of an event.
pub(crate) fn event(event: &TraceEvent) -> Result<String> {
    let mut event = event.clone();
    event.ts = event.ts.as_deref().map(isoformat);
    let mut line = python::on_one_line(&Json::of(&event)?);
    line.push('\n');
    Ok(line)
}

/// Returns JSON as the content of a file.
pub(crate) fn content(json: &Json) -> String {
    python::indented(json)
}

/// Returns a time as Python's `datetime.isoformat` does. A text that is not a time of this crate stays.
pub(crate) fn isoformat(text: &str) -> String {
    let Some(time) = text.ends_with('Z').then(|| text.parse::<Timestamp>().ok()).flatten() else { return text.to_owned() };
    let microsecond = time.as_microsecond().rem_euclid(1_000_000);
    let seconds = time.to_zoned(TimeZone::UTC).strftime("%Y-%m-%dT%H:%M:%S").to_string();
    let fraction = if microsecond == 0 { String::new() } else { format!(".{microsecond:06}") };
    format!("{seconds}{fraction}+00:00")
}

/// Reads a time. One without an offset counts as UTC.
pub(crate) fn time_of(text: &str) -> Option<Timestamp> {
    text.parse().ok().or_else(|| text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|time| time.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_python_does() {
        for (time, expected) in [
            ("2026-02-04T12:34:56Z", "2026-02-04T12:34:56+00:00"),
            ("2026-02-04T12:34:56.5Z", "2026-02-04T12:34:56.500000+00:00"),
            ("1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999+00:00"),
            ("2026-02-04T12:34:56.789012", "2026-02-04T12:34:56.789012"),
            ("soon Z", "soon Z"),
        ] {
            assert_eq!(isoformat(time), expected);
        }
        assert_eq!(time_of("2026-02-04T12:34:56.5").map(|time| time.to_string()).as_deref(), Some("2026-02-04T12:34:56.5Z"));
    }
}
