//! Times for people: how long ago something was.

use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use jiff::{Span, Timestamp};

/// The seconds of a unit, and a span of some of it.
type Unit = (i64, fn(i64) -> Span);

/// The units, from the longest. A month has 30 days, a year 365.
const UNITS: [Unit; 7] = [
    (365 * 86_400, |count| Span::new().years(count)),
    (30 * 86_400, |count| Span::new().months(count)),
    (7 * 86_400, |count| Span::new().weeks(count)),
    (86_400, |count| Span::new().days(count)),
    (3_600, |count| Span::new().hours(count)),
    (60, |count| Span::new().minutes(count)),
    (1, |count| Span::new().seconds(count)),
];

/// Returns how long ago a time was, in the longest unit that fits: `3 hours ago`, `now`, or `in 2 days`.
pub(crate) fn ago(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - time.as_second();
    let Some((unit, span)) = UNITS.into_iter().find(|(unit, _)| seconds.abs() >= *unit) else { return "now".to_owned() };
    let printer = SpanPrinter::new().designator(Designator::Verbose).spacing(Spacing::BetweenUnitsAndDesignators);
    let count = printer.span_to_string(&span(seconds.abs() / unit));
    if seconds < 0 { format!("in {count}") } else { format!("{count} ago") }
}

/// Formats a time in UTC for programs: `2026-11-21T09:00:00Z`.
pub(crate) fn exact(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_told_in_the_longest_unit_that_fits() {
        let now = Timestamp::from_second(2_000_000_000).expect("within the calendar");
        let day = 86_400;
        for (seconds, expected) in [
            (0, "now"),
            (1, "1 second ago"),
            (59, "59 seconds ago"),
            (60, "1 minute ago"),
            (3_599, "59 minutes ago"),
            (2 * 3_600, "2 hours ago"),
            (day, "1 day ago"),
            (7 * day - 1, "6 days ago"),
            (13 * day, "1 week ago"),
            (31 * day, "1 month ago"),
            (800 * day, "2 years ago"),
            (-90, "in 1 minute"),
        ] {
            let time = Timestamp::from_second(now.as_second() - seconds).expect("within the calendar");
            assert_eq!(ago(time, now), expected);
        }
    }
}
