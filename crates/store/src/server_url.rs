//! Server URLs: stripping secrets and extracting our own parameters.

use std::borrow::Cow;
use treehold_core::error::{Error, Result};
use treehold_core::escape::unescape;

/// Returns the URL without user, password and query, safe to show anywhere.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.split(':').next().unwrap_or_default().to_owned() };
    // An unescaped password may contain any character, so it ends at the last `@`.
    let server = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let place = server.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{place}")
}

/// Extracts parameters from the query of a URL. Returns the URL without them, and the unescaped value of each of
/// `names`. The last value of a repeated parameter wins.
///
/// # Errors
/// [`InvalidArgument`](treehold_core::error::ErrorKind::InvalidArgument) for a bad escape in an extracted value.
pub fn take_parameters<const N: usize>(url: &str, names: [&str; N]) -> Result<(String, [Option<String>; N])> {
    let mut values = [const { None }; N];
    let Some((server, query)) = url.split_once('?') else { return Ok((url.to_owned(), values)) };
    let mut left = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match names.iter().position(|known| *known == name) {
            Some(index) => {
                let bad = || Error::invalid_argument(format!("the parameter `{name}` has a bad escape; write `%25` for a percent sign"));
                values[index] = Some(unescape(value).map(Cow::into_owned).ok_or_else(bad)?);
            }
            None => left.push(pair),
        }
    }
    let left = if left.is_empty() { server.to_owned() } else { format!("{server}?{}", left.join("&")) };
    Ok((left, values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_url_contains_no_secret() {
        for (url, expected) in [
            ("postgres://ada:s3cret@db:5432/x?sslmode=require", "postgres://db:5432/x"),
            ("mysql://ada:p@ss/w:rd@db/x", "mysql://db/x"),
            ("redis://:s3cret@host", "redis://host"),
            ("postgres://db/x?user=ada&password=s3cret", "postgres://db/x"),
            ("postgres:ada:s3cret", "postgres"),
            ("postgres://ada:p?ss#x@db/x", "postgres://db/x"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn take_parameters_extracts_ours_and_keeps_the_rest() {
        let (left, values) = take_parameters("p://h/d?a=1&schema=x%2Fy&b=%20&schema=%C3%A9", ["schema", "absent"]).expect("sound");
        assert_eq!((left.as_str(), values), ("p://h/d?a=1&b=%20", [Some("é".to_owned()), None]));
        let (left, [value]) = take_parameters("p://h/d?schema=x", ["schema"]).expect("sound");
        assert_eq!((left.as_str(), value.as_deref()), ("p://h/d", Some("x")));
        for bad in ["%", "%2", "%zz", "%FF"] {
            assert!(take_parameters(&format!("p://h?schema={bad}"), ["schema"]).is_err(), "{bad}");
        }
    }
}
