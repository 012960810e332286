//! Byte ranges ([RFC 9110, section 14](https://www.rfc-editor.org/rfc/rfc9110#section-14)). Only single ranges are supported. As the
//! standard allows, a request for several ranges or a malformed one receives the whole file.

use axum::http::{HeaderMap, header};

/// The single range of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranged {
    /// From one byte to another.
    From {
        /// The first byte, counted from 0.
        first: u64,
        /// The last byte, inclusive; `None` for the end of the file.
        last: Option<u64>,
    },
    /// This many bytes at the end of the file.
    Last(u64),
}

/// Parses the range of a request. Returns `None` without a supported range.
pub(super) fn of(headers: &HeaderMap) -> Option<Ranged> {
    let text = headers.get(header::RANGE)?.to_str().ok()?;
    let spec = text.trim().strip_prefix("bytes=")?.trim();
    let (first, last) = spec.split_once('-')?;
    let number = |text: &str| (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse::<u64>().ok())?;
    match (first.trim(), last.trim()) {
        ("", last) => number(last).map(Ranged::Last),
        (first, "") => Some(Ranged::From { first: number(first)?, last: None }),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last && last < u64::MAX).then_some(Ranged::From { first, last: Some(last) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn single_range_is_parsed_and_others_are_ignored() {
        for (text, range) in [
            ("bytes=0-4", Some(Ranged::From { first: 0, last: Some(4) })),
            ("bytes=7-", Some(Ranged::From { first: 7, last: None })),
            ("bytes=-5", Some(Ranged::Last(5))),
            ("bytes=5-4", None),
            ("bytes=0-1,3-4", None),
            ("bytes=-", None),
            ("bytes=+1-2", None),
            ("lines=0-4", None),
            ("bytes=0-18446744073709551615", None),
        ] {
            let headers = HeaderMap::from_iter([(header::RANGE, HeaderValue::from_static(text))]);
            assert_eq!(of(&headers), range, "{text}");
        }
    }
}
