//! Entity tags ([RFC 9110, section 8.8.3](https://www.rfc-editor.org/rfc/rfc9110#section-8.8.3)): the version of a file, or of a state.
//!
//! A version is never reused for different content at the same path, so it is a strong tag, and it is known without reading the content. A
//! compressed response has different bytes and so a different tag: the version, `-`, and the name of the coding.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use treehold_agent_state::StateVersion;
use treehold_core::error::{Error, Result};
use treehold_core::ops::Version;

/// A version that tags can name.
pub(super) trait Tag: Copy + PartialEq + Sized {
    /// Parses the text of a tag without the name of a coding. Returns `None` if it is no version of this kind.
    fn parse(text: &str) -> Option<Self>;
}

impl Tag for Version {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Tag for StateVersion {
    fn parse(text: &str) -> Option<Self> {
        let number: u64 = text.parse().ok()?;
        // `007` and `+7` are tags of someone else.
        Self::new(number).filter(|version| version.to_string() == text)
    }
}

/// The versions that a conditional request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tags<V = Version> {
    /// `*`: any existing version.
    Any,
    /// These versions. Empty if no tag in the header is a version of ours.
    Versions(Vec<V>),
}

impl<V: Tag> Tags<V> {
    /// Parses `If-Match` or `If-None-Match`. Returns `None` without the header. A weak tag never equals a strong one, so it counts only if
    /// `weak` selects weak comparison. Several lines form one list, which must not contain `*`.
    pub(super) fn of(headers: &HeaderMap, name: &HeaderName, weak: bool) -> Result<Option<Self>> {
        let mut versions = Vec::new();
        let mut met = false;
        let is_only = headers.get_all(name).iter().nth(1).is_none();
        for value in headers.get_all(name) {
            met = true;
            let invalid = || Error::invalid_argument(format!("the header `{name}` is not a list of entity tags; write `\"TAG\"` or `*`"));
            let text = value.to_str().map_err(|_| invalid())?.trim();
            if text == "*" && is_only {
                return Ok(Some(Self::Any));
            }
            for tag in text.split(',') {
                let tag = tag.trim();
                let (tag, is_weak) = tag.strip_prefix("W/").map_or((tag, false), |tag| (tag, true));
                let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).ok_or_else(invalid)?;
                if !is_weak || weak {
                    versions.extend(inner.split('-').next().and_then(V::parse));
                }
            }
        }
        Ok(met.then_some(Self::Versions(versions)))
    }

    /// Returns whether the tags include a version.
    pub(super) fn holds(&self, version: V) -> bool {
        match self {
            Self::Any => true,
            Self::Versions(versions) => versions.contains(&version),
        }
    }
}

/// Returns the tag of a version.
pub(super) fn header(version: Version) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{version}\"")).expect("hexadecimal digits are visible ASCII")
}

/// Returns the tag of a version of a state: its number in decimal.
pub(super) fn of_state(version: StateVersion) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{version}\"")).expect("digits are visible ASCII")
}

/// Gives a compressed response a tag of its own.
pub(super) fn of_coding(mut response: Response) -> Response {
    let coding = response.headers().get(header::CONTENT_ENCODING).and_then(|coding| coding.to_str().ok()).map(str::to_owned);
    let tag = response.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
    if let (Some(coding), Some(tag)) = (coding, tag)
        && let Some(open) = tag.strip_suffix('"')
        && let Ok(value) = HeaderValue::from_str(&format!("{open}-{coding}\""))
    {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(text: &'static str, weak: bool) -> Option<Tags> {
        let headers = HeaderMap::from_iter([(header::IF_MATCH, HeaderValue::from_static(text))]);
        Tags::of(&headers, &header::IF_MATCH, weak).expect("a list")
    }

    #[test]
    fn tag_parses_to_version() {
        let version = Version::new(0x1f);
        assert_eq!(header(version), "\"1f\"");
        assert_eq!(tags("\"1f\"", false), Some(Tags::Versions(vec![version])));
        assert_eq!(tags("\"1f-gzip\", \"2\"", false), Some(Tags::Versions(vec![version, Version::new(2)])));
        assert_eq!(tags("*", false), Some(Tags::Any));
        assert_eq!(tags("W/\"1f\"", false), Some(Tags::Versions(vec![])));
        assert_eq!(tags("W/\"1f\"", true), Some(Tags::Versions(vec![version])));
        assert_eq!(tags("\"somebody's\"", false), Some(Tags::Versions(vec![])));
        assert_eq!(Tags::<Version>::of(&HeaderMap::new(), &header::IF_MATCH, false).expect("none"), None);
        for text in ["1f", "\"1f", "", "\"a\" \"b"] {
            let headers = HeaderMap::from_iter([(header::IF_MATCH, HeaderValue::from_static(text))]);
            assert!(Tags::<Version>::of(&headers, &header::IF_MATCH, false).is_err(), "{text}");
        }
    }

    #[test]
    fn tag_of_a_state_is_its_version_in_decimal() {
        let version = |number| StateVersion::new(number).expect("not 0");
        assert_eq!(of_state(version(31)), "\"31\"");
        for (text, expected) in [
            ("\"31\"", vec![version(31)]),
            ("\"31-gzip\", \"2\"", vec![version(31), version(2)]),
            ("\"0\", \"1f\", \"+7\", \"007\", \"-1\", \"18446744073709551616\"", vec![]),
            ("W/\"31\"", vec![]),
        ] {
            let headers = HeaderMap::from_iter([(header::IF_MATCH, HeaderValue::from_str(text).expect("visible"))]);
            assert_eq!(Tags::of(&headers, &header::IF_MATCH, false).expect("a list"), Some(Tags::Versions(expected)), "{text}");
        }
    }

    /// Regression: with `*` in one line and a tag in another, the first line took effect.
    #[test]
    fn tag_lines_form_one_list_without_star() {
        let of = |lines: &[&'static str]| {
            let headers = HeaderMap::from_iter(lines.iter().map(|line| (header::IF_MATCH, HeaderValue::from_static(line))));
            Tags::of(&headers, &header::IF_MATCH, false).map_err(|error| error.kind())
        };
        let both = Tags::Versions(vec![Version::new(1), Version::new(2)]);
        assert_eq!(of(&["\"1\"", "\"2\""]), Ok(Some(both)));
        for lines in [["*", "\"1\""], ["\"1\"", "*"], ["*", "*"]] {
            assert_eq!(of(&lines), Err(treehold_core::error::ErrorKind::InvalidArgument), "{lines:?}");
        }
    }
}
