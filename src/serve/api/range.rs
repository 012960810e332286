//! Ranges of bytes ([RFC 9110, section 14](https://www.rfc-editor.org/rfc/rfc9110#section-14)): one of them; a request for several, or for
//! what is no range, is answered with the whole, as the standard allows.

use axum::http::{HeaderMap, header};

/// The one range of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranged {
    /// From a byte on, up to another.
    From {
        /// The first byte, from 0.
        first: u64,
        /// The last byte, itself included; to the end without it.
        last: Option<u64>,
    },
    /// The last bytes, so many.
    Last(u64),
}

/// Reads the range of a request; none when it has none that is served.
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
    fn one_range_is_served() {
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
