//! The URL of a server: what of it is ours, and what of it may be shown.

use super::escape::unescape;
use crate::error::{Error, Result};
use std::borrow::Cow;

/// Returns a URL as a store is named: without user, password and query, so that it may stand anywhere.
pub(super) fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.split(':').next().unwrap_or_default().to_owned() };
    // A password may hold any character where somebody did not escape it: the last `@` of all ends it.
    let server = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let place = server.split(['?', '#']).next().unwrap_or_default();
    format!("{scheme}://{place}")
}

/// Takes parameters out of the query of a URL: returns the URL with what is left, and the value of each of `names`, unescaped.
/// A parameter that is given twice has its last value.
///
/// # Errors
/// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a bad escape in one of them.
pub(super) fn take_parameters<const N: usize>(url: &str, names: [&str; N]) -> Result<(String, [Option<String>; N])> {
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
    fn no_secret_is_shown() {
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
    fn takes_what_is_ours_and_leaves_the_rest() {
        let (left, values) = take_parameters("p://h/d?a=1&schema=x%2Fy&b=%20&schema=%C3%A9", ["schema", "absent"]).expect("sound");
        assert_eq!((left.as_str(), values), ("p://h/d?a=1&b=%20", [Some("é".to_owned()), None]));
        let (left, [value]) = take_parameters("p://h/d?schema=x", ["schema"]).expect("sound");
        assert_eq!((left.as_str(), value.as_deref()), ("p://h/d", Some("x")));
        for bad in ["%", "%2", "%zz", "%FF"] {
            assert!(take_parameters(&format!("p://h?schema={bad}"), ["schema"]).is_err(), "{bad}");
        }
    }
}
